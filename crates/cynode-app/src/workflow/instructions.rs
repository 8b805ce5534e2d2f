//! Applies pending instructions of people to a run between two steps.

use cynode_core::{
    ids::{TaskId, WaitId},
    workflow::{
        StepVerdict, WorkflowStep,
        instructions::{InstructionDecision, RunActivity, replan_transition},
        plan::PlanFeedback,
        waits::WaitReason,
    },
};
use cynode_db::{
    models::budgets,
    workflow::{self, RunCounters, StepRecord, SuspendPoint, instructions, waits},
};
use cynode_wire::workflow::RunState;

use crate::{Ctx, Error};

/// Position of a run between two steps.
#[derive(Clone, Debug)]
pub(super) struct RunPosition {
    /// Sequence number of the last checkpoint.
    pub(super) sequence: i64,
    /// Next step.
    pub(super) next: WorkflowStep,
    /// State that later steps need.
    pub(super) state: RunState,
}

/// Applies pending instructions. `open` is the wait of the run, if there is one.
pub(super) async fn apply_pending(
    ctx: &mut Ctx,
    task: TaskId,
    counters: &RunCounters,
    at: &mut RunPosition,
    open: Option<&waits::OpenWait>,
) -> Result<InstructionDecision, Error> {
    if counters.instructions_waiting == 0 {
        return Ok(InstructionDecision::Continue);
    }
    let pending = instructions::take_pending_instructions(ctx.conn(), task, at.sequence).await?;
    let activity = load_run_activity(ctx, open).await?;
    let decision = InstructionDecision::decide(
        &activity,
        pending.iter().map(|it| (it.kind, it.text.as_deref().unwrap_or_default())),
    );
    let by = pending.last().map(|instruction| instruction.by.to_string()).unwrap_or_default();
    if let (Some(wait), Some(resolution)) = (open, decision.wait_resolution(&activity)) {
        waits::resolve_wait(ctx.conn(), wait.id, resolution, None, None).await?;
    }
    if !decision.feedback().is_empty() {
        return_to_planning(ctx, task, at, &by, decision.feedback()).await?;
    }
    if let InstructionDecision::Pause { question, .. } = &decision {
        append_transition(ctx, task, at, &by, StepVerdict::Wait, at.next).await?;
        open_pause(ctx, task, counters, at.sequence, question).await?;
    }
    Ok(decision)
}

/// Loads what the run does: its open wait, and the questions of a pause.
async fn load_run_activity(
    ctx: &mut Ctx,
    open: Option<&waits::OpenWait>,
) -> Result<RunActivity, Error> {
    let Some(open) = open else { return Ok(RunActivity::Running) };
    if open.reason != WaitReason::Paused {
        return Ok(RunActivity::Waiting);
    }
    let wait = waits::get_wait(ctx.conn(), open.id).await?;
    Ok(RunActivity::Paused { question: wait.and_then(|wait| wait.question).unwrap_or_default() })
}

/// Returns the run to planning with feedback. Earlier failures of a step do not count against the new plan.
async fn return_to_planning(
    ctx: &mut Ctx,
    task: TaskId,
    at: &mut RunPosition,
    by: &str,
    feedback: &[PlanFeedback],
) -> Result<(), Error> {
    at.state.feedback.extend_from_slice(feedback);
    at.state.node_failures = 0;
    let (verdict, next) = replan_transition(at.next);
    append_transition(ctx, task, at, by, verdict, next).await
}

/// Suspends the run until a person resumes it, and notifies people.
async fn open_pause(
    ctx: &mut Ctx,
    task: TaskId,
    counters: &RunCounters,
    sequence: i64,
    question: &str,
) -> Result<(), Error> {
    let wait = waits::NewWaitRecord {
        id: WaitId::from_uuid(ctx.new_uuid()),
        sequence,
        reason: WaitReason::Paused,
        question: Some(question).filter(|question| !question.is_empty()),
        expires_in_ms: None,
    };
    workflow::suspend_run(ctx.conn(), task, SuspendPoint::AtAGate, counters.wakes, None).await?;
    waits::open_wait(ctx.conn(), task, &wait).await?;
    // For a parked task, people were already notified of the park.
    let now = ctx.now;
    let park = budgets::get_task_park(ctx.conn(), task, now).await?;
    if park.is_none_or(|park| park.reason != question) {
        super::notify_task_waits(ctx, task, &wait).await?;
    }
    Ok(())
}

/// Records a change of course as a checkpoint of its own.
async fn append_transition(
    ctx: &mut Ctx,
    task: TaskId,
    at: &mut RunPosition,
    by: &str,
    verdict: StepVerdict,
    next: WorkflowStep,
) -> Result<(), Error> {
    let state = serde_json::to_value(&at.state).map_err(|error| Error::Internal(error.into()))?;
    let step = StepRecord {
        sequence: at.sequence + 1,
        node: at.next,
        verdict,
        next_node: Some(next),
        state: &state,
        unit: None,
        attempt: 1,
        duration_ms: 0,
        cost_micros: 0,
        note: Some("a person steered"),
    };
    workflow::store_manual_transition(ctx.conn(), task, by, &step).await?;
    at.sequence += 1;
    at.next = next;
    Ok(())
}
