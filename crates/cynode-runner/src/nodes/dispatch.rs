//! Dispatch Step: sends every unit that may be sent; who does it is the plan's word, or the project manager's.

use std::collections::BTreeMap;

use cynode_core::workflow::{
    Node, Verdict,
    plan::{Dispatch, Standing, UnitKey, dispatch},
    units::UnitState,
};
use cynode_wire::{
    handoffs::ReadyUnit,
    work::Work,
    workflow::{Effect, UnitView},
};
use serde_json::Value;

use super::{Scene, Step, ask, await_answer, hand_off};
use crate::mind::{DispatchRequest, NodeError, Reply};

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

/// What the plan says of a unit.
pub(super) fn payload<'a>(scene: &Scene<'a>, key: &UnitKey) -> &'a Value {
    let plan = scene.state.plan.as_ref();
    let unit = plan.and_then(|plan| plan.steps().iter().find(|unit| unit.key == *key));
    unit.map_or(&Value::Null, |unit| &unit.payload)
}

/// A unit for whoever says who does it.
fn ready(scene: &Scene<'_>, unit: &UnitView) -> ReadyUnit {
    let results = scene.position.units.iter().filter(|other| unit.depends_on.contains(&other.key));
    let results = results.filter(|other| other.state == UnitState::Done).map(|other| {
        let result = other.job.as_ref().and_then(|job| job.result.clone());
        (other.key.to_string(), result.unwrap_or_default())
    });
    ReadyUnit {
        unit: unit.key.clone(),
        title: unit.title.to_string(),
        payload: payload(scene, &unit.key).clone(),
        attempt: unit.attempts + 1,
        findings: unit.findings.clone(),
        results: results.collect(),
    }
}

pub(super) async fn step(scene: &Scene<'_>) -> Result<Step, NodeError> {
    let units = &scene.position.units;
    let mut state = scene.state.clone();
    let done = units.iter().filter(|unit| unit.state == UnitState::Done).count();
    state.current_step_index = u32::try_from(done).unwrap_or(u32::MAX);
    let keys = match run(&Input { units, max_parallel: scene.limits.max_parallel_units }) {
        Output::Send(keys) => keys,
        Output::Await => return Ok(Step::new(Verdict::Pass, state)),
        Output::Done => return Ok(Step::new(Verdict::Done, state)),
        Output::Stuck(key) => {
            let why = format!("unit `{key}` can never start: what it needs is not done");
            return Ok(Step::give_up(state, why));
        }
    };
    let sent: Vec<&UnitView> = units.iter().filter(|unit| keys.contains(&unit.key)).collect();
    let open: Vec<ReadyUnit> = sent.iter().map(|unit| ready(scene, unit)).collect();
    let handed = scene.position.handoff.as_ref();
    let (works, cost_micros) =
        match scene.mind.dispatch(DispatchRequest { units: open, handed }).await? {
            Reply::Done(works, cost) => (works, cost),
            Reply::Ask(question, cost) => return Ok(ask(state, question, cost)),
            Reply::Later(request, about) => return Ok(hand_off(state, *request, about)),
            Reply::Waiting => return Ok(await_answer(state)),
        };
    let mut works: BTreeMap<UnitKey, Work> = works.into_iter().collect();
    let timeout = scene.limits.timeout(Node::CollectResult).as_secs();
    let timeout_seconds = u32::try_from(timeout).unwrap_or(u32::MAX);
    let effects = sent.iter().map(|unit| {
        let attempt = unit.attempts + 1;
        state.attempts_by_step.insert(unit.key.clone(), attempt);
        Effect::CreateJob {
            unit: unit.key.clone(),
            attempt,
            remedy: serde_json::json!({ "findings": unit.findings }),
            work: works.remove(&unit.key).map(Box::new),
            timeout_seconds,
        }
    });
    let effects: Vec<Effect> = effects.collect();
    let names: Vec<_> = keys.iter().map(|key| key.as_str()).collect();
    let note = Some(format!("sent {}", names.join(", ")));
    Ok(Step { effects, note, cost_micros, ..Step::new(Verdict::Pass, state) })
}

/// Whether somebody must say who does this unit: the project manager planned it and left that open.
pub(super) fn open(unit: &ReadyUnit) -> bool {
    unit.payload.get("kind").is_some() && unit.payload.get("work").is_none()
}
