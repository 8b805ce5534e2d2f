//! Pull request of a task: the project manager requests it, the orchestrator creates it.

use std::fmt::Write as _;

use cynode_core::{
    delivery::{
        ANSWER_END_WITHOUT, ANSWER_RETRY, DeliveryMode, PullRequestRef, commit_title,
        is_end_without_answer,
    },
    workflow::{findings::FindingSeverity, handoffs::EndedUnit, waits::EndedWait},
};
use serde_json::{Value, json};

use super::super::fence;
use crate::decision_context::{DecisionContext, DecisionError};

/// Tool that opens a pull request.
const OPEN_PULL_REQUEST_TOOL: &str = "git.pull_request.open";

/// Outcome of the delivery.
pub(super) enum DeliveryOutcome {
    /// The pull request, or `None` if there was nothing to deliver.
    As(Option<PullRequestRef>),
    /// A question that a person must answer.
    Ask(String),
}

/// Delivers the changes of the units, if there are any and delivery is wanted. A transient error is retried with the handoff.
pub(super) async fn deliver_changes(
    desk: &DecisionContext<'_>,
    units: &[EndedUnit],
    summary: &str,
    answer: Option<&EndedWait>,
) -> Result<DeliveryOutcome, DecisionError> {
    let context = &desk.handoff.context;
    let mode = DeliveryMode::from_preference(super::find_preference(
        &context.preferences,
        DeliveryMode::PREFERENCE_KEY,
    ));
    let has_repository = context.project.as_ref().is_some_and(|project| project.head.is_some());
    let brought = units.iter().any(|unit| unit.output["commit"].is_string());
    let words = answer.and_then(|wait| wait.answer.as_deref()).unwrap_or_default();
    if !brought || !has_repository || mode == DeliveryMode::None || is_end_without_answer(words) {
        return Ok(DeliveryOutcome::As(None));
    }
    let task = super::handoff_task(desk)?;
    let first = task.description.lines().find(|line| !line.trim().is_empty()).unwrap_or_default();
    let arguments = json!({
        "task_id": task.id,
        "title": commit_title(&fence::sanitize_line(first, 100)),
        "body": render_body(summary, units),
    });
    match desk.call_tool(OPEN_PULL_REQUEST_TOOL, arguments).await {
        Ok(opened) => Ok(DeliveryOutcome::As(parse_pull_request(&opened["pull_request"]))),
        Err(
            trouble @ (DecisionError::Transient(_)
            | DecisionError::Late(_)
            | DecisionError::Budget(_)
            | DecisionError::Untraced(_)
            | DecisionError::Paused),
        ) => Err(trouble),
        Err(trouble @ (DecisionError::Permanent(_) | DecisionError::Refused { .. })) => {
            let why = fence::sanitize_line(&trouble.to_string(), 600);
            Ok(DeliveryOutcome::Ask(format!(
                "The pull request could not be opened: {why}\nAnswer `{ANSWER_RETRY}` to try it once more, or `{ANSWER_END_WITHOUT}` to end the \
                 task without one."
            )))
        }
    }
}

fn parse_pull_request(opened: &Value) -> Option<PullRequestRef> {
    let number = opened["remote_number"].as_i64().or_else(|| opened["number"].as_i64())?;
    Some(PullRequestRef { number, url: opened["url"].as_str()?.to_owned() })
}

/// Renders the description of the pull request: the summary, the units, and the notes.
fn render_body(summary: &str, units: &[EndedUnit]) -> String {
    let mut text = format!("{summary}\n\n## What was done\n\n");
    for unit in units {
        let title = fence::sanitize_line(&unit.title, 200);
        let again = match unit.attempts {
            0 | 1 => String::new(),
            attempts => format!(" ({attempts} attempts)"),
        };
        let _ = writeln!(text, "- {title}{again}");
    }
    let noted: Vec<_> = units.iter().flat_map(|unit| &unit.findings).collect();
    if !noted.is_empty() {
        text.push_str("\n## What was noted\n\n");
        for finding in noted {
            let _ = writeln!(
                text,
                "- {}: {}",
                severity_name(finding.severity),
                fence::sanitize_line(&finding.text, 500)
            );
        }
    }
    text.trim_end().to_owned()
}

const fn severity_name(severity: FindingSeverity) -> &'static str {
    match severity {
        FindingSeverity::Critical => "critical",
        FindingSeverity::Major => "major",
        FindingSeverity::Minor => "minor",
        FindingSeverity::Note => "note",
    }
}
