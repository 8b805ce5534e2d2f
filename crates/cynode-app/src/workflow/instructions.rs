//! Applies pending instructions of people to a run between two steps.

use cynode_core::{
    ids::{TaskId, WaitId},
    workflow::{
        StepVerdict, WorkflowStep,
        instructions::InstructionEffect,
        plan::PlanFeedback,
        waits::{WaitReason, WaitResolution},
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

/// Outcome of applying instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum InstructionOutcome {
    /// There was none, or they cancelled each other out.
    No,
    /// A pause has ended, and nothing else.
    Resumed,
    /// The run returns to planning.
    Replanned,
    /// The run waits until a person resumes it.
    Paused,
}

/// Applies pending instructions. `open` is the wait of the run, if there is one.
pub(super) async fn apply_pending(
    ctx: &mut Ctx,
    task: TaskId,
    counters: &RunCounters,
    at: &mut RunPosition,
    open: Option<&waits::OpenWait>,
) -> Result<InstructionOutcome, Error> {
    if counters.instructions_waiting == 0 {
        return Ok(InstructionOutcome::No);
    }
    let taken = instructions::take_pending_instructions(ctx.conn(), task, at.sequence).await?;
    let was_paused = open.is_some_and(|wait| wait.reason == WaitReason::Paused);
    let (mut paused, mut replanned) = (was_paused, false);
    let asked_before = match open {
        Some(wait) if was_paused => waits::get_wait(ctx.conn(), wait.id).await?,
        Some(_) | None => None,
    };
    let asked_before = asked_before.and_then(|wait| wait.question).unwrap_or_default();
    let mut asked = asked_before.clone();
    for instruction in &taken {
        match instruction.kind.instruction_effect() {
            InstructionEffect::Pause => {
                paused = true;
                append_question(&mut asked, instruction.text.as_deref().unwrap_or_default());
            }
            InstructionEffect::Resume => {
                paused = false;
                asked.clear();
            }
            InstructionEffect::Replan => {
                let (kind, text) = (instruction.kind, instruction.text.clone().unwrap_or_default());
                at.state.feedback.push(PlanFeedback { kind, text });
                replanned = true;
            }
            // A stop took effect when it was given.
            InstructionEffect::Stop => {}
        }
    }
    let by = taken.last().map(|instruction| instruction.by.to_string()).unwrap_or_default();
    // A pause of a paused task may add a question, which is notified too.
    let news = paused != was_paused || asked != asked_before;
    if let Some(wait) = open
        && (replanned || news)
    {
        let resolution =
            if was_paused && !paused { WaitResolution::Resumed } else { WaitResolution::Cancelled };
        waits::resolve_wait(ctx.conn(), wait.id, resolution, None, None).await?;
    }
    if replanned {
        // Before the context is loaded there is nothing to replan: the feedback is kept for the first plan.
        let (verdict, next) = match at.next {
            WorkflowStep::LoadTaskContext => (StepVerdict::Redo, WorkflowStep::LoadTaskContext),
            _ => (StepVerdict::Revise, WorkflowStep::PlanSteps),
        };
        // Earlier failures of a step do not count against the new plan.
        at.state.node_failures = 0;
        append_transition(ctx, task, at, &by, verdict, next).await?;
    }
    if paused && (replanned || news) {
        append_transition(ctx, task, at, &by, StepVerdict::Wait, at.next).await?;
        let wait = waits::NewWaitRecord {
            id: WaitId::from_uuid(ctx.new_uuid()),
            sequence: at.sequence,
            reason: WaitReason::Paused,
            question: Some(asked.as_str()).filter(|asked| !asked.is_empty()),
            expires_in_ms: None,
        };
        workflow::suspend_run(ctx.conn(), task, SuspendPoint::AtAGate, counters.wakes, None)
            .await?;
        waits::open_wait(ctx.conn(), task, &wait).await?;
        // For a parked task, people were already notified of the park.
        let now = ctx.now;
        let park = budgets::get_task_park(ctx.conn(), task, now).await?;
        if park.is_none_or(|park| park.reason != asked) {
            super::notify_task_waits(ctx, task, &wait).await?;
        }
    }
    Ok(match (paused, replanned) {
        (true, _) => InstructionOutcome::Paused,
        (false, true) => InstructionOutcome::Replanned,
        (false, false) if was_paused => InstructionOutcome::Resumed,
        (false, false) => InstructionOutcome::No,
    })
}

/// Maximum number of paragraphs and bytes of the questions in one pause. Further ones are heard after it has ended.
const MAX_QUESTION_SIZE: (usize, usize) = (10, 4000);

/// Appends a question to those of the pause. Ignores a repeated one, and any beyond the maximum.
fn append_question(asked: &mut String, text: &str) {
    let text = text.trim();
    if asked.is_empty() {
        text.clone_into(asked);
        return;
    }
    let full =
        asked.split("\n\n").count() >= MAX_QUESTION_SIZE.0 || asked.len() >= MAX_QUESTION_SIZE.1;
    if !text.is_empty() && !full && !asked.contains(text) {
        asked.push_str("\n\n");
        asked.push_str(text);
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_asked_again_in_a_pause_is_nothing_new_and_what_is_asked_has_an_end() {
        let mut asked = String::new();
        append_question(&mut asked, "");
        assert_eq!(asked, "");
        for text in ["Which key?", "Which key?", "key", " And where? ", ""] {
            append_question(&mut asked, text);
        }
        assert_eq!(asked, "Which key?\n\nAnd where?");
        for number in 0..100 {
            append_question(&mut asked, &format!("Still there? ({number})"));
        }
        assert_eq!(asked.split("\n\n").count(), MAX_QUESTION_SIZE.0);
        let mut asked = "a".repeat(MAX_QUESTION_SIZE.1);
        append_question(&mut asked, "b");
        assert_eq!(asked.len(), MAX_QUESTION_SIZE.1);
    }
}
