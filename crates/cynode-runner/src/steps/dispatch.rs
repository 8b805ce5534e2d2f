//! Dispatch Step: dispatches every ready unit. The plan or the project manager chooses the worker.

use std::collections::BTreeMap;

use cynode_core::workflow::{
    StepVerdict, WorkflowStep,
    handoffs::ReadyUnit,
    jobs::{JobSpec, UnitNeeds},
    plan::{DispatchDecision, UnitKey, UnitStatus, decide_dispatch},
    units::{UnitState, UnitView},
};
use cynode_wire::workflow::StepEffect;
use serde_json::Value;

use super::{CheckpointDraft, StepContext, ask_person, await_answer, hand_off};
use crate::agent_backend::{AgentReply, DispatchRequest, StepError};

struct DispatchInput<'a> {
    units: &'a [UnitView],
    max_parallel: u32,
}

#[derive(Debug, PartialEq, Eq)]
enum DispatchOutput {
    Send(Vec<UnitKey>),
    Await,
    Done,
    Stuck(UnitKey),
}

fn select_units(input: &DispatchInput<'_>) -> DispatchOutput {
    let standing: Vec<_> = input
        .units
        .iter()
        .map(|unit| UnitStatus { key: &unit.key, depends_on: &unit.depends_on, state: unit.state })
        .collect();
    match decide_dispatch(&standing, input.max_parallel) {
        DispatchDecision::Send(keys) => DispatchOutput::Send(keys.into_iter().cloned().collect()),
        DispatchDecision::Await => DispatchOutput::Await,
        DispatchDecision::Done => DispatchOutput::Done,
        DispatchDecision::Stuck(key) => DispatchOutput::Stuck(key.clone()),
    }
}

/// Returns the payload of a unit in the plan.
pub(super) fn unit_payload<'a>(scene: &StepContext<'a>, key: &UnitKey) -> &'a Value {
    let plan = scene.state.plan.as_ref();
    let unit = plan.and_then(|plan| plan.planned_units().iter().find(|unit| unit.key == *key));
    unit.map_or(&Value::Null, |unit| &unit.payload)
}

/// Builds the description of a unit for the assignment of a worker.
fn to_ready_unit(scene: &StepContext<'_>, unit: &UnitView) -> ReadyUnit {
    let results = scene.position.units.iter().filter(|other| unit.depends_on.contains(&other.key));
    let results = results.filter(|other| other.state == UnitState::Done).map(|other| {
        let result = other.job.as_ref().and_then(|job| job.result.clone());
        (other.key.to_string(), result.unwrap_or_default())
    });
    ReadyUnit {
        unit: unit.key.clone(),
        title: unit.title.to_string(),
        payload: unit_payload(scene, &unit.key).clone(),
        attempt: unit.attempts + 1,
        findings: unit.findings.clone(),
        results: results.collect(),
    }
}

pub(super) async fn run_dispatch_step(
    scene: &StepContext<'_>,
) -> Result<CheckpointDraft, StepError> {
    let units = &scene.position.units;
    let mut state = scene.state.clone();
    let done = units.iter().filter(|unit| unit.state == UnitState::Done).count();
    state.current_step_index = u32::try_from(done).unwrap_or(u32::MAX);
    let keys =
        match select_units(&DispatchInput { units, max_parallel: scene.limits.max_parallel_units })
        {
            DispatchOutput::Send(keys) => keys,
            DispatchOutput::Await => return Ok(CheckpointDraft::new(StepVerdict::Pass, state)),
            DispatchOutput::Done => return Ok(CheckpointDraft::new(StepVerdict::Done, state)),
            DispatchOutput::Stuck(key) => {
                let why = format!("unit `{key}` can never start: what it needs is not done");
                return Ok(CheckpointDraft::fail_task(state, why));
            }
        };
    let sent: Vec<&UnitView> = units.iter().filter(|unit| keys.contains(&unit.key)).collect();
    let open: Vec<ReadyUnit> = sent.iter().map(|unit| to_ready_unit(scene, unit)).collect();
    let handed = scene.position.handoff.as_ref();
    let (works, cost_micros) =
        match scene.mind.assign_units(DispatchRequest { units: open, handed }).await? {
            AgentReply::Done(works, cost) => (works, cost),
            AgentReply::Ask(question, cost) => return Ok(ask_person(state, question, cost)),
            AgentReply::Later(request, about) => return Ok(hand_off(state, *request, about)),
            AgentReply::Waiting => return Ok(await_answer(state)),
        };
    let mut works: BTreeMap<UnitKey, JobSpec> = works.into_iter().collect();
    let timeout = scene.limits.step_timeout(WorkflowStep::CollectResult).as_secs();
    let timeout_seconds = u32::try_from(timeout).unwrap_or(u32::MAX);
    let effects = sent.iter().map(|unit| {
        let attempt = unit.attempts + 1;
        state.attempts_by_step.insert(unit.key.clone(), attempt);
        StepEffect::CreateJob {
            unit: unit.key.clone(),
            attempt,
            remedy: serde_json::json!({ "findings": unit.findings }),
            work: works.remove(&unit.key).map(Box::new),
            timeout_seconds: UnitNeeds::of_payload(unit_payload(scene, &unit.key))
                .timeout_seconds(timeout_seconds),
        }
    });
    let effects: Vec<StepEffect> = effects.collect();
    let names: Vec<_> = keys.iter().map(|key| key.as_str()).collect();
    let note = Some(format!("sent {}", names.join(", ")));
    Ok(CheckpointDraft {
        effects,
        note,
        cost_micros,
        ..CheckpointDraft::new(StepVerdict::Pass, state)
    })
}

/// Returns whether a worker must be assigned to the unit: the project manager planned it and left that open.
pub(super) fn lacks_assignment(unit: &ReadyUnit) -> bool {
    unit.payload.get("kind").is_some() && unit.payload.get("work").is_none()
}
