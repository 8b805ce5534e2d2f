//! Dispatch Step: sends every unit that is ready, up to the limit.

use cynode_core::workflow::{
    Node, Verdict,
    plan::{Dispatch, Standing, UnitKey, dispatch},
    units::UnitState,
};
use cynode_wire::workflow::{Effect, UnitView};

use super::{Scene, Step};

struct Input<'a> {
    units: &'a [UnitView],
    max_parallel: u32,
}

#[derive(Debug, PartialEq, Eq)]
enum Output {
    Send(Vec<UnitKey>),
    Await,
    Done,
    Stuck(UnitKey),
}

fn run(input: &Input<'_>) -> Output {
    let standing: Vec<_> = input
        .units
        .iter()
        .map(|unit| Standing { key: &unit.key, depends_on: &unit.depends_on, state: unit.state })
        .collect();
    match dispatch(&standing, input.max_parallel) {
        Dispatch::Send(keys) => Output::Send(keys.into_iter().cloned().collect()),
        Dispatch::Await => Output::Await,
        Dispatch::Done => Output::Done,
        Dispatch::Stuck(key) => Output::Stuck(key.clone()),
    }
}

pub(super) fn step(scene: &Scene<'_>) -> Step {
    let units = &scene.position.units;
    let mut state = scene.state.clone();
    let done = units.iter().filter(|unit| unit.state == UnitState::Done).count();
    state.current_step_index = u32::try_from(done).unwrap_or(u32::MAX);
    let timeout = scene.limits.timeout(Node::CollectResult).as_secs();
    let timeout_seconds = u32::try_from(timeout).unwrap_or(u32::MAX);
    match run(&Input { units, max_parallel: scene.limits.max_parallel_units }) {
        Output::Send(keys) => {
            let effects = units
                .iter()
                .filter(|unit| keys.contains(&unit.key))
                .map(|unit| {
                    let attempt = unit.attempts + 1;
                    state.attempts_by_step.insert(unit.key.clone(), attempt);
                    Effect::CreateJob {
                        unit: unit.key.clone(),
                        attempt,
                        remedy: serde_json::json!({ "findings": unit.findings }),
                        timeout_seconds,
                    }
                })
                .collect();
            let names: Vec<_> = keys.iter().map(|key| key.as_str()).collect();
            let note = Some(format!("sent {}", names.join(", ")));
            Step { effects, note, ..Step::new(Verdict::Pass, state) }
        }
        Output::Await => Step::new(Verdict::Pass, state),
        Output::Done => Step::new(Verdict::Done, state),
        Output::Stuck(key) => {
            Step::give_up(state, format!("unit `{key}` can never start: what it needs is not done"))
        }
    }
}
