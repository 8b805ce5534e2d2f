//! Load Task Context: takes the task, its criteria and the preferences that hold into the state.

use std::collections::BTreeMap;

use cynode_core::{names::DottedKey, tasks::Criterion, workflow::Verdict};
use cynode_wire::workflow::RunState;
use serde_json::Value;

use super::{Scene, Step};

struct Input<'a> {
    criteria: &'a [Criterion],
    preferences: &'a BTreeMap<DottedKey, Value>,
}

struct Output {
    acceptance_criteria: Vec<Criterion>,
    preferences_effective: BTreeMap<DottedKey, Value>,
}

fn run(input: &Input<'_>) -> Output {
    Output {
        acceptance_criteria: input.criteria.to_vec(),
        preferences_effective: input.preferences.clone(),
    }
}

pub(super) fn step(scene: &Scene<'_>) -> Step {
    let task = scene.task;
    let input = Input { criteria: &task.acceptance_criteria, preferences: &task.preferences };
    let Output { acceptance_criteria, preferences_effective } = run(&input);
    let state = RunState { acceptance_criteria, preferences_effective, ..scene.state.clone() };
    Step::new(Verdict::Pass, state)
}
