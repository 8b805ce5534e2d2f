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
    hand_off, open_ended_wait, person_answer,
};
use crate::agent_backend::{AgentReply, PlanRequest, StepError};

/// Where planning stands.
enum PlanInput<'a> {
    /// A plan is to be made; the text is what a person said when the last was refused. It is kept with the state: the run may wait
    /// for the plan, and be woken by something else.
    Make { refused: Option<&'a str> },
    /// The plan was approved.
    Approved,
    /// Nobody said yes in time.
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
        // A yes to a plan about which more was said since is no yes to the next.
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
    // A no to a plan is kept as well: whoever is asked once more must not go on from what was refused.
    let holds = |wait: &&EndedWait| {
        wait.reason == WaitReason::HumanInput || wait.resolution == WaitResolution::Rejected
    };
    if let Some(wait) = answer.filter(holds) {
        state.planning_answer = Some(wait.clone());
    }
    // What failed is not under way: whoever plans anew may leave it out.
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
    if let Some(trial) = base_checks::open_trial(&state) {
        // What was said since is about another plan.
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
            // What a review or tests sent back is mended in the plan that a person said yes to.
            let own = |said: &PlanFeedback| PlanRevision::from_feedback(said).is_some();
            let asks = scene.limits.approve_plan
                && (state.feedback.is_empty() || !state.feedback.iter().all(own));
            // The plan was made with it.
            state.feedback.clear();
            state.planning_answer = None;
            let step = base_checks::begin_trial(scene, state, asks);
            CheckpointDraft { effects: [effects, step.effects].concat(), cost_micros, ..step }
        }
    })
}

/// The plan stands: a person is asked about it, or it is carried out.
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
    let mut question = format!("May the plan of {units} units be carried out?");
    for line in base.map(BaseChecks::describe_checks).unwrap_or_default() {
        question.push_str("\n- ");
        question.push_str(&line);
    }
    let wait = NewWait { question: Some(question), ..open_ended_wait(WaitReason::Approval) };
    CheckpointDraft::with_wait(state, wait, None)
}
