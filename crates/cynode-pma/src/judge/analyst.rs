//! What the analyst decides: whether the work on one task is good. It says so twice: in a record of its own, and in its answer.

use cynode_wire::{
    handoffs::{Analysed, AnalysisStatus, HandoffAnswer, HandoffRequest, Judge},
    workflow::VerificationStatus,
};
use serde_json::{Value, json};

use super::{
    Outcome,
    decisions::Reviewed,
    fence,
    manager::{criteria, task, told},
    prompts::{self, ReviewQuestion},
    unit::{UnitPayload, brought},
};
use crate::desk::{Desk, Trouble};

/// Works on a handoff of the analyst.
pub async fn work(desk: &Desk<'_>) -> Result<Outcome, Trouble> {
    let HandoffRequest::Analyse(judge) = &desk.handoff.request else {
        return Err(Trouble::Permanent("an analyst only analyses".into()));
    };
    let analysed = reviewed(desk, judge).await?;
    let findings = &analysed.findings;
    let status = match analysed.status {
        AnalysisStatus::Pass => VerificationStatus::Pass,
        AnalysisStatus::Fail => VerificationStatus::Fail,
        AnalysisStatus::NeedsClarification => VerificationStatus::NeedsClarification,
    };
    let arguments = json!({
        "task_id": analysed.task_id, "unit": judge.unit, "status": status, "findings": findings,
    });
    desk.call("verification.record", arguments).await?;
    Ok(Outcome::Answer(Box::new(HandoffAnswer::Analysed(analysed))))
}

/// Thinks about one result of the handoff's own task.
pub(super) async fn reviewed(desk: &Desk<'_>, judge: &Judge) -> Result<Analysed, Trouble> {
    let context = &desk.handoff.context;
    let task = task(desk)?;
    let own = task.id.to_string();
    let other = [&judge.payload, &judge.output]
        .into_iter()
        .filter_map(|value| value.get("task_id").and_then(Value::as_str))
        .any(|named| named != own);
    if other {
        return Err(Trouble::Permanent("the result is of another task than the handoff".into()));
    }
    let payload = UnitPayload::read(&judge.unit, &judge.payload)?;
    let reports: Vec<String> = context.reports.iter().rev().take(6).rev().map(told).collect();
    let standards: Vec<String> = context
        .preferences
        .iter()
        .filter(|(key, _)| {
            key.as_str().starts_with("definition_of_done.")
                || key.as_str().starts_with("standards.")
        })
        .map(|(key, value)| format!("{key}: {value}"))
        .collect();
    let question = prompts::review(&ReviewQuestion {
        title: &judge.title,
        requirements: &payload.brief.requirements,
        criteria: &criteria(task),
        standards: &standards,
        result: &serde_json::to_string_pretty(&brought(&judge.output)).unwrap_or_default(),
        reports: &reports,
    });
    let reviewed: Reviewed = desk.think(&question).await?;
    Ok(Analysed {
        task_id: task.id,
        status: reviewed.status,
        findings: reviewed.findings(),
        recommended_actions: reviewed
            .recommended_actions
            .iter()
            .map(|action| fence::line(action, 500))
            .collect(),
        preferences_applied: context.preferences_applied.clone(),
    })
}
