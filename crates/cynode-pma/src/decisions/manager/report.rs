//! Answers an agent that asks during its work: by an instruction to its task, or by a wait for a person.

use cynode_core::workflow::{
    handoffs::{FailureDecision, HandoffAnswer},
    instructions::InstructionKind,
    reports::{ReportKind, ReportView},
};
use cynode_wire::manager::handoffs::TaskFacts;
use serde_json::json;

use super::super::{
    fence,
    prompts::{self, FailureQuestion},
    types::{FailureHandled, TaskRefinement},
};
use crate::decision_context::{DecisionContext, DecisionError};

pub(super) async fn answer_report(
    desk: &DecisionContext<'_>,
    report: &ReportView,
) -> Result<HandoffAnswer, DecisionError> {
    let task = super::handoff_task(desk)?;
    let (kind, text) = match report.kind {
        // A request for a person gets a person; no model answers instead.
        ReportKind::RequestHumanInput => (InstructionKind::Pause, render_waiting_text(report)),
        ReportKind::NeedsClarification => clarify_report(desk, task, report).await?,
        ReportKind::WorkBlocked => unblock_report(desk, report).await?,
        ReportKind::WorkCompleted
        | ReportKind::ReviewApproved
        | ReportKind::ReviewChangesRequested
        | ReportKind::TestsPassed
        | ReportKind::TestsFailed => {
            return Ok(HandoffAnswer::Replied { note: "the report asks for nothing".into() });
        }
    };
    let arguments = json!({ "task_id": task.id, "kind": kind, "text": text });
    let note = match desk.call_tool("pm.instruct", arguments).await {
        Ok(_) => format!("told to {}: {}", kind.as_str(), fence::sanitize_line(&text, 300)),
        // The task may have ended in the meantime.
        Err(DecisionError::Permanent(why)) => {
            format!("in vain: {}", fence::sanitize_line(&why, 300))
        }
        Err(
            trouble @ (DecisionError::Transient(_)
            | DecisionError::Late(_)
            | DecisionError::Budget(_)
            | DecisionError::Untraced(_)
            | DecisionError::Paused
            | DecisionError::Refused { .. }),
        ) => return Err(trouble),
    };
    Ok(HandoffAnswer::Replied { note })
}

fn render_waiting_text(report: &ReportView) -> String {
    let asks = fence::sanitize_text(&report.summary, 2_000);
    format!("The {} waits for a person: {asks}", report.agent_role.as_str())
}

async fn clarify_report(
    desk: &DecisionContext<'_>,
    task: &TaskFacts,
    report: &ReportView,
) -> Result<(InstructionKind, String), DecisionError> {
    let criteria = super::criterion_texts(task);
    let question = prompts::refine_task_prompt(
        &task.description,
        &criteria,
        &super::planned_project(desk),
        &super::render_report_line(report),
    );
    let TaskRefinement { can_answer, instruction, .. } = desk.make_decision(&question).await?;
    let instruction = fence::sanitize_text(&instruction, 4_000);
    Ok(if can_answer && !instruction.is_empty() {
        (InstructionKind::Resume, instruction)
    } else {
        (InstructionKind::Pause, render_waiting_text(report))
    })
}

async fn unblock_report(
    desk: &DecisionContext<'_>,
    report: &ReportView,
) -> Result<(InstructionKind, String), DecisionError> {
    let why = super::render_report_line(report);
    let title = report.unit.as_deref().unwrap_or("the unit that the agent works on");
    let question = FailureQuestion { title, attempt: 1, attempts_left: 1, why: &why };
    let FailureHandled { note, decision, .. } =
        desk.make_decision(&prompts::handle_failure_prompt(&question)).await?;
    let note = fence::sanitize_text(&note, 4_000);
    Ok(match decision {
        FailureDecision::Retry => (InstructionKind::Resume, note),
        FailureDecision::ReduceScope => (InstructionKind::ReduceScope, note),
        FailureDecision::Escalate => (InstructionKind::Pause, render_waiting_text(report)),
    })
}
