//! What to tell an agent that asks in the middle of its work. It is told by an instruction to its task, or waits for a person.

use cynode_core::workflow::instructions::InstructionKind;
use cynode_wire::{
    handoffs::{FailureDecision, HandoffAnswer, TaskFacts},
    reports::{ReportKind, ReportView},
};
use serde_json::json;

use super::super::{
    decisions::{FailureHandled, Refined},
    fence,
    prompts::{self, FailureQuestion},
};
use crate::desk::{Desk, Trouble};

pub(super) async fn report(desk: &Desk<'_>, report: &ReportView) -> Result<HandoffAnswer, Trouble> {
    let task = super::task(desk)?;
    let (kind, text) = match report.kind {
        // Who asks for a person gets one; no model answers in their place.
        ReportKind::RequestHumanInput => (InstructionKind::Pause, waiting(report)),
        ReportKind::NeedsClarification => clarified(desk, task, report).await?,
        ReportKind::WorkBlocked => unblocked(desk, report).await?,
        ReportKind::WorkCompleted
        | ReportKind::ReviewApproved
        | ReportKind::ReviewChangesRequested
        | ReportKind::TestsPassed
        | ReportKind::TestsFailed => {
            return Ok(HandoffAnswer::Replied { note: "the report asks for nothing".into() });
        }
    };
    let arguments = json!({ "task_id": task.id, "kind": kind, "text": text });
    let note = match desk.call("pm.instruct", arguments).await {
        Ok(_) => format!("told to {}: {}", kind.as_str(), fence::line(&text, 300)),
        // The task may have ended in the meantime.
        Err(Trouble::Permanent(why)) => format!("in vain: {}", fence::line(&why, 300)),
        Err(
            trouble @ (Trouble::Transient(_)
            | Trouble::Late(_)
            | Trouble::Paused
            | Trouble::Refused { .. }),
        ) => return Err(trouble),
    };
    Ok(HandoffAnswer::Replied { note })
}

fn waiting(report: &ReportView) -> String {
    let asks = fence::clean(&report.summary, 2_000);
    format!("The {} waits for a person: {asks}", report.agent_role.as_str())
}

async fn clarified(
    desk: &Desk<'_>,
    task: &TaskFacts,
    report: &ReportView,
) -> Result<(InstructionKind, String), Trouble> {
    let criteria = super::criteria(task);
    let question =
        prompts::refine(&task.description, &criteria, &super::project(desk), &super::told(report));
    let Refined { can_answer, instruction, .. } = desk.think(&question).await?;
    let instruction = fence::clean(&instruction, 4_000);
    Ok(if can_answer && !instruction.is_empty() {
        (InstructionKind::Continue, instruction)
    } else {
        (InstructionKind::Pause, waiting(report))
    })
}

async fn unblocked(
    desk: &Desk<'_>,
    report: &ReportView,
) -> Result<(InstructionKind, String), Trouble> {
    let why = super::told(report);
    let title = report.unit.as_deref().unwrap_or("the unit that the agent works on");
    let question = FailureQuestion { title, attempt: 1, attempts_left: 1, why: &why };
    let FailureHandled { note, decision, .. } =
        desk.think(&prompts::handle_failure(&question)).await?;
    let note = fence::clean(&note, 4_000);
    Ok(match decision {
        FailureDecision::Retry => (InstructionKind::Continue, note),
        FailureDecision::ReduceScope => (InstructionKind::ReduceScope, note),
        FailureDecision::Escalate => (InstructionKind::Pause, waiting(report)),
    })
}
