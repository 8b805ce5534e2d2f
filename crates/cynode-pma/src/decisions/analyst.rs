//! Decisions of the analyst: verifies the work on one task. It records a verification and answers the handoff.

use cynode_core::workflow::handoffs::{
    AnalysisAnswer, AnalysisStatus, HandoffAnswer, HandoffRequest, ResultVerification,
};
use cynode_wire::workflow::VerificationStatus;
use serde_json::{Value, json};

use super::{
    HandoffOutcome, fence,
    manager::{criterion_texts, handoff_task, render_report_line},
    prompts::{self, ReviewQuestion},
    types::Reviewed,
    unit::{UnitPayload, reviewable_output},
};
use crate::decision_context::{DecisionContext, DecisionError};

/// Processes a handoff of the analyst.
pub async fn process_analyst_handoff(
    desk: &DecisionContext<'_>,
) -> Result<HandoffOutcome, DecisionError> {
    let HandoffRequest::Analyse(judge) = &desk.handoff.request else {
        return Err(DecisionError::Permanent("an analyst only analyses".into()));
    };
    let analysed = review_result(desk, judge).await?;
    let findings = &analysed.findings;
    let status = match analysed.status {
        AnalysisStatus::Pass => VerificationStatus::Pass,
        AnalysisStatus::Fail => VerificationStatus::Fail,
        AnalysisStatus::NeedsClarification => VerificationStatus::NeedsClarification,
    };
    let arguments = json!({
        "task_id": analysed.task_id, "unit": judge.unit, "status": status, "findings": findings,
    });
    desk.call_tool("verification.record", arguments).await?;
    Ok(HandoffOutcome::Answer(Box::new(HandoffAnswer::Analysed(analysed))))
}

/// Reviews one result of the handoff's own task.
pub(super) async fn review_result(
    desk: &DecisionContext<'_>,
    judge: &ResultVerification,
) -> Result<AnalysisAnswer, DecisionError> {
    let context = &desk.handoff.context;
    let task = handoff_task(desk)?;
    let own = task.id.to_string();
    let other = [&judge.payload, &judge.output]
        .into_iter()
        .filter_map(|value| value.get("task_id").and_then(Value::as_str))
        .any(|named| named != own);
    if other {
        return Err(DecisionError::Permanent(
            "the result is of another task than the handoff".into(),
        ));
    }
    let payload = UnitPayload::parse_payload(&judge.unit, &judge.payload)?;
    let reports: Vec<String> =
        context.reports.iter().rev().take(6).rev().map(render_report_line).collect();
    let standards: Vec<String> = context
        .preferences
        .iter()
        .filter(|(key, _)| {
            key.as_str().starts_with("definition_of_done.")
                || key.as_str().starts_with("standards.")
        })
        .map(|(key, value)| format!("{key}: {value}"))
        .collect();
    let question = prompts::review_prompt(&ReviewQuestion {
        title: &judge.title,
        requirements: &payload.brief.requirements,
        criteria: &criterion_texts(task),
        standards: &standards,
        result: &serde_json::to_string_pretty(&reviewable_output(&judge.output))
            .unwrap_or_default(),
        reports: &reports,
    });
    let reviewed: Reviewed = desk.make_decision(&question).await?;
    Ok(AnalysisAnswer {
        task_id: task.id,
        status: reviewed.status,
        findings: reviewed.to_findings(),
        recommended_actions: reviewed
            .recommended_actions
            .iter()
            .map(|action| fence::sanitize_line(action, 500))
            .collect(),
        preferences_applied: context.preferences_applied.clone(),
    })
}
