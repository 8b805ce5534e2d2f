//! Plan Steps: requests a plan, and a person's approval where one is required.

use cynode_core::workflow::{
    StepVerdict,
    evidence::BaseChecks,
    handoffs::HandoffRequest,
    instructions::InstructionKind,
    plan::{Plan, PlanFeedback, UnitKey},
    units::UnitState,
    waits::{EndedWait, WaitReason, WaitResolution},
};
use cynode_wire::{
    manager::handoffs::PlanRevision,
    workflow::{CheckTrial, NewWait, RunState, StepEffect},
};

use super::{
    CheckpointDraft, StepContext, abandonment_reason, ask_person, await_answer, base_checks,
    environment, hand_off, open_ended_wait, person_answer,
};
use crate::agent_backend::{AgentReply, PlanRequest, StepError};

/// State of the planning.
enum PlanInput<'a> {
    /// A plan must be made. The text is a person's note on rejecting the last plan. It is kept in the state: the run may wait for the plan
    /// and be woken by another event.
    Make { refused: Option<&'a str> },
    /// The plan was approved.
    Approved,
    /// The approval expired.
    TooLate,
}

enum PlanOutput {
    Planned { plan: Plan, cost_micros: u64 },
    Go,
    Ask(String, u64),
    HandOff(Box<HandoffRequest>, String),
    Await,
    GiveUp(&'static str),
}

fn plan_input<'a>(state: &'a RunState, ended: Option<&'a EndedWait>) -> PlanInput<'a> {
    let approval = ended.filter(|wait| wait.reason == WaitReason::Approval);
    match (approval.map(|wait| (wait.resolution, wait.answer.as_deref())), &state.plan) {
        // An approval does not apply if feedback arrived after it: the next plan needs its own.
        (Some((WaitResolution::Approved, _)), Some(_)) if state.feedback.is_empty() => {
            PlanInput::Approved
        }
        (Some((WaitResolution::Rejected, note)), _) => {
            PlanInput::Make { refused: note.or(Some("no")) }
        }
        (Some((WaitResolution::Expired, _)), _) => PlanInput::TooLate,
        (Some(_) | None, _) => PlanInput::Make { refused: None },
    }
}

async fn request_plan(
    input: PlanInput<'_>,
    scene: &StepContext<'_>,
    state: &mut RunState,
) -> Result<PlanOutput, StepError> {
    let refused = match input {
        PlanInput::Approved => return Ok(PlanOutput::Go),
        PlanInput::TooLate => return Ok(PlanOutput::GiveUp("nobody approved the plan in time")),
        PlanInput::Make { refused } => refused,
    };
    if let Some(text) = refused {
        state.feedback.push(PlanFeedback { kind: InstructionKind::Revise, text: text.to_owned() });
    }
    if let Some(why) = abandonment_reason(scene) {
        return Ok(PlanOutput::GiveUp(why));
    }
    let answer = person_answer(scene);
    // A rejection is kept in the state too: a repeated request must not continue from the rejected plan.
    let holds = |wait: &&EndedWait| {
        wait.reason == WaitReason::HumanInput || wait.resolution == WaitResolution::Rejected
    };
    if let Some(wait) = answer.filter(holds) {
        state.planning_answer = Some(wait.clone());
    }
    // A failed unit does not count as started: a replan may leave it out.
    let failed = |key: &UnitKey| {
        let mut units = scene.position.units.iter();
        units.any(|unit| unit.key == *key && unit.state == UnitState::Failed)
    };
    let mut begun = state.attempts_by_step.clone();
    begun.retain(|key, _| !failed(key));
    let reply = scene.mind.create_plan(PlanRequest {
        task: scene.task,
        criteria: &state.acceptance_criteria,
        before: state.plan.as_ref(),
        feedback: &state.feedback,
        answer: answer.or(state.planning_answer.as_ref()),
        attempt: state.node_failures + 1,
        begun: &begun,
        handed: scene.position.handoff.as_ref(),
    });
    Ok(match reply.await? {
        AgentReply::Done(plan, cost_micros) => PlanOutput::Planned { plan, cost_micros },
        AgentReply::Ask(question, cost) => PlanOutput::Ask(question, cost),
        AgentReply::Later(request, about) => PlanOutput::HandOff(request, about),
        AgentReply::Waiting => PlanOutput::Await,
    })
}

pub(super) async fn run_plan_step(scene: &StepContext<'_>) -> Result<CheckpointDraft, StepError> {
    let mut state = scene.state.clone();
    if let Some(step) = environment::review_proposal(scene, &mut state) {
        return Ok(step);
    }
    if let Some(trial) = base_checks::open_trial(&state) {
        // Later feedback is about another plan.
        if state.feedback.is_empty() {
            return Ok(base_checks::resume_trial(scene, state));
        }
        state.check_trial = Some(CheckTrial { open: false, ..trial });
    }
    let input = plan_input(scene.state, scene.position.ended_wait.as_ref());
    let output = request_plan(input, scene, &mut state).await?;
    Ok(match output {
        PlanOutput::Go => {
            let note = scene.position.base_checks.as_ref().map(BaseChecks::summary_line);
            CheckpointDraft { note, ..CheckpointDraft::new(StepVerdict::Pass, state) }
        }
        PlanOutput::Ask(question, cost) => ask_person(state, question, cost),
        PlanOutput::HandOff(request, about) => hand_off(state, *request, about),
        PlanOutput::Await => await_answer(state),
        PlanOutput::GiveUp(why) => CheckpointDraft::fail_task(state, why.to_owned()),
        PlanOutput::Planned { plan, cost_micros } => {
            let effects = vec![StepEffect::PlanUnits { units: plan.planned_units().to_vec() }];
            state.plan = Some(plan);
            // A revision that a review or tests requested needs no new approval: it mends the plan that a person approved.
            let own = |said: &PlanFeedback| PlanRevision::from_feedback(said).is_some();
            let asks = scene.limits.approve_plan
                && (state.feedback.is_empty() || !state.feedback.iter().all(own));
            // The feedback is part of the new plan.
            state.feedback.clear();
            state.planning_answer = None;
            let step = base_checks::begin_trial(scene, state, asks);
            CheckpointDraft { effects: [effects, step.effects].concat(), cost_micros, ..step }
        }
    })
}

/// Presents the plan: a person approves it, or it is executed.
pub(super) fn present_plan(
    state: RunState,
    approve: bool,
    base: Option<&BaseChecks>,
) -> CheckpointDraft {
    if !approve {
        let note = base.map(BaseChecks::summary_line);
        return CheckpointDraft { note, ..CheckpointDraft::new(StepVerdict::Pass, state) };
    }
    let units = state.plan.as_ref().map_or(0, |plan| plan.planned_units().len());
    let noun = if units == 1 { "unit" } else { "units" };
    let mut question = format!("May the plan of {units} {noun} be carried out?");
    for line in base.map(BaseChecks::describe_checks).unwrap_or_default() {
        question.push_str("\n- ");
        question.push_str(&line);
    }
    let wait = NewWait { question: Some(question), ..open_ended_wait(WaitReason::Approval) };
    CheckpointDraft::with_wait(state, wait, None)
}
