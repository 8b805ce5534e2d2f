//! Finalize Summary: says what was done.

use cynode_core::workflow::{Verdict, units::UnitState};
use cynode_wire::workflow::UnitView;

use super::{Scene, Step};

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

pub(super) fn step(scene: &Scene<'_>) -> Step {
    let Output { summary } = run(&Input { units: &scene.position.units });
    let mut state = scene.state.clone();
    state.current_step_index = u32::try_from(scene.position.units.len()).unwrap_or(u32::MAX);
    state.summary = Some(summary);
    Step::new(Verdict::Pass, state)
}
