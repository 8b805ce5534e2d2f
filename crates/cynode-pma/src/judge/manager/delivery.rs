//! The pull request of a task: opened by the project manager, made by the orchestrator.

use std::fmt::Write as _;

use cynode_core::delivery::{AGAIN, DeliveryMode, END_WITHOUT, ends_without, title};
use cynode_wire::{
    delivery::PullRequestRef,
    handoffs::EndedUnit,
    workflow::{EndedWait, Severity},
};
use serde_json::{Value, json};

use super::super::fence;
use crate::desk::{Desk, Trouble};

/// The tool that opens it.
const OPEN: &str = "git.pull_request.open";

/// What became of it.
pub(super) enum Delivered {
    /// This, or nothing because nothing was to be delivered.
    As(Option<PullRequestRef>),
    /// A person must say what is to be done.
    Ask(String),
}

/// Delivers what the units brought, if they brought something and it is wanted. What may pass is tried again with the handoff.
pub(super) async fn deliver(
    desk: &Desk<'_>,
    units: &[EndedUnit],
    summary: &str,
    answer: Option<&EndedWait>,
) -> Result<Delivered, Trouble> {
    let context = &desk.handoff.context;
    let mode = DeliveryMode::of(super::preference(&context.preferences, DeliveryMode::KEY));
    let has_repository = context.project.as_ref().is_some_and(|project| project.head.is_some());
    let brought = units.iter().any(|unit| unit.output["commit"].is_string());
    let words = answer.and_then(|wait| wait.answer.as_deref()).unwrap_or_default();
    if !brought || !has_repository || mode == DeliveryMode::None || ends_without(words) {
        return Ok(Delivered::As(None));
    }
    let task = super::task(desk)?;
    let first = task.description.lines().find(|line| !line.trim().is_empty()).unwrap_or_default();
    let arguments = json!({
        "task_id": task.id,
        "title": title(&fence::line(first, 100)),
        "body": body(summary, units),
    });
    match desk.call(OPEN, arguments).await {
        Ok(opened) => Ok(Delivered::As(named(&opened["pull_request"]))),
        Err(trouble @ (Trouble::Transient(_) | Trouble::Late(_) | Trouble::Paused)) => Err(trouble),
        Err(trouble @ (Trouble::Permanent(_) | Trouble::Refused { .. })) => {
            let why = fence::line(&trouble.to_string(), 600);
            Ok(Delivered::Ask(format!(
                "The pull request could not be opened: {why}\nAnswer `{AGAIN}` to try it once more, or `{END_WITHOUT}` to end the \
                 task without one."
            )))
        }
    }
}

fn named(opened: &Value) -> Option<PullRequestRef> {
    let number = opened["remote_number"].as_i64().or_else(|| opened["number"].as_i64())?;
    Some(PullRequestRef { number, url: opened["url"].as_str()?.to_owned() })
}

/// What people read: what came of it, what was done, what was noted.
fn body(summary: &str, units: &[EndedUnit]) -> String {
    let mut text = format!("{summary}\n\n## What was done\n\n");
    for unit in units {
        let title = fence::line(&unit.title, 200);
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
            let _ =
                writeln!(text, "- {}: {}", word(finding.severity), fence::line(&finding.text, 500));
        }
    }
    text.trim_end().to_owned()
}

const fn word(severity: Severity) -> &'static str {
    match severity {
        Severity::Critical => "critical",
        Severity::Major => "major",
        Severity::Minor => "minor",
        Severity::Note => "note",
    }
}
