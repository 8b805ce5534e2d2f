//! Steps of the workflow: each decides from its input and returns what to store. No step stores anything itself.

mod base_checks;
mod collect;
mod dispatch;
mod environment;
mod fail;
mod finalize;
mod load;
mod pending_checks;
mod plan;
mod verify;

use cynode_core::{
    delivery::ANSWER_RETRY,
    workflow::{
        StepVerdict, WorkflowStep,
        handoffs::{HandoffRequest, HandoffState, ReadyUnit, RunHandoff},
        limits::{RunLimits, backoff_delay},
        plan::UnitKey,
        waits::{ANSWER_STOP, EndedWait, WaitReason, WaitResolution, is_stop_answer},
    },
};
use cynode_wire::workflow::{NewWait, RunState, StepEffect, TaskContext, WorkflowPosition};

use crate::agent_backend::{AgentBackend, StepError};

/// Interval at which a run without a connected agent is checked again.
const UNATTENDED_RECHECK_MS: u64 = 600_000;

/// Input of a step.
pub(crate) struct StepContext<'a> {
    pub(crate) task: &'a TaskContext,
    pub(crate) position: &'a WorkflowPosition,
    pub(crate) state: &'a RunState,
    pub(crate) limits: &'a RunLimits,
    pub(crate) mind: &'a dyn AgentBackend,
}

/// Outcome of a step, to be stored as a checkpoint.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct CheckpointDraft {
    pub(crate) verdict: StepVerdict,
    pub(crate) state: RunState,
    pub(crate) effects: Vec<StepEffect>,
    pub(crate) wait: Option<NewWait>,
    pub(crate) unit: Option<UnitKey>,
    pub(crate) note: Option<String>,
    pub(crate) cost_micros: u64,
}

impl CheckpointDraft {
    /// Creates a checkpoint that has only a verdict and a state.
    pub(crate) const fn new(verdict: StepVerdict, state: RunState) -> Self {
        Self {
            verdict,
            state,
            effects: Vec::new(),
            wait: None,
            unit: None,
            note: None,
            cost_micros: 0,
        }
    }

    /// Creates a checkpoint that makes the run wait.
    pub(crate) fn with_wait(state: RunState, wait: NewWait, note: Option<String>) -> Self {
        Self { wait: Some(wait), note, ..Self::new(StepVerdict::Wait, state) }
    }

    /// Creates a checkpoint that fails the task.
    pub(crate) fn fail_task(mut state: RunState, why: String) -> Self {
        state.failure = Some(why.clone());
        Self { note: Some(why), ..Self::new(StepVerdict::Fail, state) }
    }
}

/// Creates a wait for `reason` without a deadline.
pub(crate) const fn open_ended_wait(reason: WaitReason) -> NewWait {
    NewWait { reason, question: None, wake_in_ms: None, expires_in_seconds: None }
}

/// Asks a person.
pub(crate) fn ask_person(state: RunState, question: String, cost_micros: u64) -> CheckpointDraft {
    let wait = NewWait { question: Some(question), ..open_ended_wait(WaitReason::HumanInput) };
    CheckpointDraft { cost_micros, ..CheckpointDraft::with_wait(state, wait, None) }
}

/// Creates a handoff and waits for its answer.
pub(crate) fn hand_off(state: RunState, request: HandoffRequest, about: String) -> CheckpointDraft {
    let note = Some(format!("asked the project manager: {}", request.handoff_kind().as_str()));
    let effects = vec![StepEffect::HandOff { about, request: Box::new(request) }];
    CheckpointDraft { effects, note, ..await_answer(state) }
}

/// Waits for the answer of an existing handoff.
pub(crate) fn await_answer(state: RunState) -> CheckpointDraft {
    let wait =
        NewWait { wake_in_ms: Some(UNATTENDED_RECHECK_MS), ..open_ended_wait(WaitReason::Agent) };
    CheckpointDraft::with_wait(state, wait, None)
}

/// Asks a person about a unit.
pub(crate) fn ask_about_unit(
    mut state: RunState,
    unit: &UnitKey,
    question: String,
    cost_micros: u64,
) -> CheckpointDraft {
    state.question_unit = Some(unit.clone());
    CheckpointDraft { unit: Some(unit.clone()), ..ask_person(state, question, cost_micros) }
}

/// Returns a person's answer about a unit, if it woke the run and the question was about this unit.
pub(crate) fn unit_answer<'a>(scene: &StepContext<'a>, unit: &UnitKey) -> Option<&'a EndedWait> {
    let is_about = |asked: &UnitKey| asked == unit;
    person_answer(scene).filter(|_| scene.state.question_unit.as_ref().is_none_or(is_about))
}

/// Returns a person's answer, if it woke the run.
pub(crate) fn person_answer<'a>(scene: &StepContext<'a>) -> Option<&'a EndedWait> {
    // A question that a pause cut off was not answered.
    let spoke = |wait: &&EndedWait| {
        matches!(wait.reason, WaitReason::HumanInput | WaitReason::Approval)
            && !matches!(wait.resolution, WaitResolution::Cancelled | WaitResolution::Woken)
    };
    scene.position.ended_wait.as_ref().filter(spoke)
}

/// Returns whether a person's answer requests a retry.
pub(crate) fn requests_retry(answer: Option<&EndedWait>) -> bool {
    let words = answer.filter(|wait| wait.reason == WaitReason::HumanInput);
    words
        .and_then(|wait| wait.answer.as_deref())
        .is_some_and(|words| normalize_answer(words) == ANSWER_RETRY)
}

/// Normalizes an answer: no punctuation, lower case.
pub(crate) fn normalize_answer(words: &str) -> String {
    let plain = words.chars().map(|c| if c.is_alphanumeric() { c } else { ' ' });
    let plain: String = plain.collect::<String>().to_lowercase();
    plain.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Returns the reason if a person's answer abandons the task.
pub(crate) fn abandonment_reason(scene: &StepContext<'_>) -> Option<&'static str> {
    let wait = person_answer(scene).filter(|wait| wait.reason == WaitReason::HumanInput)?;
    match wait.resolution {
        WaitResolution::Expired => Some("nobody answered in time"),
        WaitResolution::Rejected => Some("a person gave it up"),
        _ => wait.answer.as_deref().is_some_and(is_stop_answer).then_some("a person gave it up"),
    }
}

/// Consumes the handoff that a step has used, in the same checkpoint. A step that asks a new question drops the previous handoff.
fn consume_handoff(handoff: Option<&RunHandoff>, step: &mut CheckpointDraft) {
    let answered =
        handoff.filter(|it| matches!(it.state, HandoffState::Done | HandoffState::Failed));
    let asks = step.effects.iter().any(|effect| matches!(effect, StepEffect::HandOff { .. }));
    if let Some(handoff) = answered.filter(|_| !asks) {
        step.effects.insert(0, StepEffect::TakeHandoff { handoff_id: handoff.handoff_id });
    }
}

/// Returns whether the task may retry.
pub(crate) fn may_retry(scene: &StepContext<'_>, attempts: u32) -> bool {
    attempts < scene.limits.step_attempts && scene.position.retries_used < scene.limits.retry_budget
}

/// Returns the number of attempts that a unit has left.
pub(crate) fn attempts_left(scene: &StepContext<'_>, attempts: u32) -> u32 {
    let left = scene.limits.step_attempts.saturating_sub(attempts);
    if may_retry(scene, attempts) { left } else { 0 }
}

/// Returns whether the collect step would only find open jobs.
pub(crate) fn is_awaiting_jobs(position: &WorkflowPosition) -> bool {
    collect::has_only_open_jobs(&position.units)
}

/// Returns whether a worker must be assigned to the unit.
pub(crate) fn needs_assignment(unit: &ReadyUnit) -> bool {
    dispatch::lacks_assignment(unit)
}

/// Runs a step. A failure becomes a checkpoint too: a wait for the next attempt or for a person, or the end of the task.
pub(crate) async fn run_step(node: WorkflowStep, scene: &StepContext<'_>) -> CheckpointDraft {
    if scene.state.undecided {
        return Box::pin(retry_undecided_step(node, scene)).await;
    }
    execute_step(node, scene).await
}

/// Runs a step again about which a person was asked because it was undecided. The answer applies to that question: any answer but
/// `stop` retries the step.
async fn retry_undecided_step(node: WorkflowStep, scene: &StepContext<'_>) -> CheckpointDraft {
    let state = RunState { undecided: false, ..scene.state.clone() };
    if let Some(why) = abandonment_reason(scene) {
        return CheckpointDraft::fail_task(state, format!("{}: {why}", node.step_title()));
    }
    let position = WorkflowPosition { ended_wait: None, ..scene.position.clone() };
    let StepContext { task, limits, mind, .. } = *scene;
    execute_step(node, &StepContext { task, position: &position, state: &state, limits, mind })
        .await
}

async fn execute_step(node: WorkflowStep, scene: &StepContext<'_>) -> CheckpointDraft {
    let timeout = scene.limits.step_timeout(node);
    let work = async {
        match node {
            WorkflowStep::LoadTaskContext => Ok(load::run_load_step(scene)),
            WorkflowStep::PlanSteps => plan::run_plan_step(scene).await,
            WorkflowStep::DispatchStep => dispatch::run_dispatch_step(scene).await,
            WorkflowStep::CollectResult => collect::run_collect_step(scene).await,
            WorkflowStep::VerifyStepResult => verify::run_verify_step(scene).await,
            WorkflowStep::FinalizeSummary => finalize::run_finalize_step(scene).await,
            WorkflowStep::MarkFailed => Ok(fail::run_fail_step(scene)),
        }
    };
    let done = tokio::time::timeout(timeout, work).await.unwrap_or_else(|_| {
        Err(StepError::Transient(format!("{} took longer than {timeout:?}", node.step_title())))
    });
    let mut step = match done {
        Ok(mut step) => {
            // A step that waits for an agent has neither failed nor succeeded yet.
            let waits_for = step.wait.as_ref().map(|wait| wait.reason);
            if waits_for != Some(WaitReason::Agent) {
                step.state.node_failures = 0;
            }
            // A step that keeps waiting has not used the answer yet.
            if !matches!(
                waits_for,
                Some(WaitReason::Agent | WaitReason::HumanInput | WaitReason::Job)
            ) {
                step.state.question_unit = None;
            }
            step
        }
        Err(error) => handle_step_error(node, scene, &error),
    };
    consume_handoff(scene.position.handoff.as_ref(), &mut step);
    step
}

/// Returns the checkpoints to store if the orchestrator rejects a checkpoint permanently, the best first. Finished work is not
/// abandoned because the task may not end yet: a person is asked. The last fallback fails the task, without the state, which may be
/// the reason for the rejection (too large).
pub(crate) fn refusal_fallbacks(
    node: WorkflowStep,
    status: u16,
    state: &RunState,
    handoff: Option<&RunHandoff>,
    detail: &str,
) -> Vec<CheckpointDraft> {
    let mut instead = Vec::new();
    if node == WorkflowStep::FinalizeSummary && status == 422 {
        let question = format!(
            "Everything is done, and yet the task may not end: {detail}\nAnswer `{ANSWER_RETRY}` when that is mended, or cancel the task."
        );
        let mut asking = ask_person(state.clone(), question, 0);
        // The previous handoff is consumed: an answer runs the step again.
        consume_handoff(handoff, &mut asking);
        instead.push(asking);
    }
    let little = RunState { runner: state.runner.clone(), ..RunState::default() };
    instead.push(CheckpointDraft::fail_task(little, format!("{}: {detail}", node.step_title())));
    instead
}

fn handle_step_error(
    node: WorkflowStep,
    scene: &StepContext<'_>,
    error: &StepError,
) -> CheckpointDraft {
    let mut state = scene.state.clone();
    let why = format!("{}: {error}", node.step_title());
    let delay = match error {
        StepError::Unattended => {
            let wait = NewWait {
                wake_in_ms: Some(UNATTENDED_RECHECK_MS),
                ..open_ended_wait(WaitReason::Agent)
            };
            return CheckpointDraft::with_wait(state, wait, Some(why));
        }
        // Finished work must not be lost because a decision was not reached.
        StepError::Undecided(_) => {
            let question = format!(
                "{why}\nAnswer `{ANSWER_RETRY}` to have it tried once more, or `{ANSWER_STOP}` to give the task up."
            );
            (state.undecided, state.node_failures) = (true, 0);
            return ask_person(state, question, 0);
        }
        StepError::Permanent(_) => return CheckpointDraft::fail_task(state, why),
        StepError::Transient(_) => backoff_delay(state.node_failures + 1).as_millis(),
        StepError::Domain(_) => 0,
    };
    state.node_failures += 1;
    let left = state.node_failures < scene.limits.node_attempts
        && scene.position.retries_used < scene.limits.retry_budget;
    if !left {
        let why =
            format!("{why} (attempt {} of {})", state.node_failures, scene.limits.node_attempts);
        return CheckpointDraft::fail_task(state, why);
    }
    let wake_in_ms = Some(u64::try_from(delay).unwrap_or(u64::MAX));
    let wait = NewWait { wake_in_ms, ..open_ended_wait(WaitReason::Retry) };
    CheckpointDraft::with_wait(state, wait, Some(why))
}

#[cfg(test)]
mod tests;
