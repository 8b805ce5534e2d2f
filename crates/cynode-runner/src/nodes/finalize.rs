//! Finalize Summary: says what was done.

use cynode_core::workflow::{Verdict, units::UnitState};
use cynode_wire::workflow::UnitView;

use super::{Scene, Step, await_answer, hand_off};
use crate::mind::{NodeError, Reply};

struct Input<'a> {
    units: &'a [UnitView],
}

struct Output {
    summary: String,
}

fn run(input: &Input<'_>) -> Output {
    let done: Vec<_> = input.units.iter().filter(|unit| unit.state == UnitState::Done).collect();
    let lines = done.iter().map(|unit| match unit.attempts {
        1 => format!("- {}", unit.title),
        attempts => format!("- {} ({attempts} attempts)", unit.title),
    });
    let lines: Vec<_> = lines.collect();
    Output { summary: format!("{} units done:\n{}", done.len(), lines.join("\n")) }
}

pub(super) async fn step(scene: &Scene<'_>) -> Result<Step, NodeError> {
    let units = &scene.position.units;
    let mut state = scene.state.clone();
    let reply = scene.mind.summarise(units, scene.position.handoff.as_ref()).await;
    let (said, cost_micros) = match reply {
        Ok(Reply::Done(said, cost)) => (said, cost),
        Ok(Reply::Later(request, about)) => return Ok(hand_off(state, *request, about)),
        Ok(Reply::Waiting) => return Ok(await_answer(state)),
        // Work that is done does not fail for want of words about it.
        Ok(Reply::Ask(..)) | Err(_) => (None, 0),
    };
    let Output { summary } = run(&Input { units });
    let summary = match said {
        Some(said) => format!("{said}\n\n{summary}"),
        None => summary,
    };
    state.current_step_index = u32::try_from(scene.position.units.len()).unwrap_or(u32::MAX);
    state.summary = Some(summary);
    Ok(Step { cost_micros, ..Step::new(Verdict::Pass, state) })
}
