//! Load Task Context: loads the task, its criteria and the effective preferences into the state.

use std::collections::BTreeMap;

use cynode_core::{names::DottedKey, tasks::Criterion, workflow::StepVerdict};
use cynode_wire::workflow::RunState;
use serde_json::Value;

use super::{CheckpointDraft, StepContext};

struct LoadInput<'a> {
    criteria: &'a [Criterion],
    preferences: &'a BTreeMap<DottedKey, Value>,
}

struct LoadOutput {
    acceptance_criteria: Vec<Criterion>,
    preferences_effective: BTreeMap<DottedKey, Value>,
}

fn load_task_context(input: &LoadInput<'_>) -> LoadOutput {
    LoadOutput {
        acceptance_criteria: input.criteria.to_vec(),
        preferences_effective: input.preferences.clone(),
    }
}

pub(super) fn run_load_step(scene: &StepContext<'_>) -> CheckpointDraft {
    let task = scene.task;
    let input = LoadInput { criteria: &task.acceptance_criteria, preferences: &task.preferences };
    let LoadOutput { acceptance_criteria, preferences_effective } = load_task_context(&input);
    let state = RunState { acceptance_criteria, preferences_effective, ..scene.state.clone() };
    CheckpointDraft::new(StepVerdict::Pass, state)
}
