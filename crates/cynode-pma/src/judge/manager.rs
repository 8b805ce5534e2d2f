//! What the project manager decides. Code decides what a table or a rule knows; a model is asked for the rest, one question at a
//! time, and sees nothing of the questions before.

use std::collections::BTreeMap;

use cynode_core::{agents::AgentRole, judgement::review::ReviewOptions, names::DottedKey};
use cynode_wire::{
    handoffs::{HandoffAnswer, HandoffRequest, ProjectContext, TaskFacts},
    reports::{ReportKind, ReportView},
};
use serde_json::Value;

use super::{Outcome, fence};
use crate::desk::{Desk, Trouble};

mod delivery;
mod dispatch;
mod failure;
mod plan;
mod report;
mod summary;
mod trace;
mod verify;

pub use dispatch::{DEFAULT_WORKER, design_path, spec_path};
pub use verify::TESTS_WANTED;

/// Works on a handoff of the project manager.
pub async fn work(desk: &Desk<'_>) -> Result<Outcome, Trouble> {
    match &desk.handoff.request {
        HandoffRequest::Plan { before, feedback, answer, attempt, begun } => {
            let request = plan::Request {
                before: before.as_ref(),
                feedback,
                answer: answer.as_ref(),
                attempt: *attempt,
                begun,
            };
            plan::plan(desk, request).await.map(answered)
        }
        HandoffRequest::Dispatch { units } => dispatch::dispatch(desk, units).map(answered),
        HandoffRequest::Verify(judge) => verify::verify(desk, judge).await,
        HandoffRequest::Failure { .. } => failure::failure(desk).await.map(answered),
        HandoffRequest::Report { report } => report::report(desk, report).await.map(answered),
        HandoffRequest::Summarise { units, answer } => {
            summary::summarise(desk, units, answer.as_ref()).await.map(answered)
        }
        HandoffRequest::Schedule { schedule, text } => {
            summary::schedule(desk, schedule, text).await.map(answered)
        }
        HandoffRequest::Analyse(_) => {
            Err(Trouble::Permanent("a project manager does not analyse".into()))
        }
        HandoffRequest::Chat { .. } => {
            Err(Trouble::Permanent("a chat is answered as it goes, and not here".into()))
        }
    }
}

fn answered(answer: HandoffAnswer) -> Outcome {
    Outcome::Answer(Box::new(answer))
}

/// The task that a handoff is about.
pub(super) fn task<'a>(desk: &'a Desk<'_>) -> Result<&'a TaskFacts, Trouble> {
    desk.handoff
        .context
        .task
        .as_ref()
        .ok_or_else(|| Trouble::Permanent("the handoff names no task".into()))
}

/// What must be shown for the task to be done.
pub(super) fn criteria(task: &TaskFacts) -> Vec<String> {
    task.acceptance_criteria.iter().map(|criterion| criterion.text.to_string()).collect()
}

/// What was learned of the project when the plan was made.
fn project(desk: &Desk<'_>) -> ProjectContext {
    desk.handoff.context.planned.as_ref().map(|planned| planned.project.clone()).unwrap_or_default()
}

/// How strict reviews are. What cannot be used is said in the log.
fn options(desk: &Desk<'_>) -> ReviewOptions {
    let (options, notes) = ReviewOptions::read(&desk.handoff.context.preferences);
    for note in notes {
        tracing::warn!(event = "preference.unusable", note = %note, "a preference cannot be used as it is");
    }
    options
}

fn preference<'a>(preferences: &'a BTreeMap<DottedKey, Value>, key: &str) -> Option<&'a Value> {
    preferences.get(&key.parse::<DottedKey>().ok()?)
}

/// The last report of that kind by an agent of that role about a unit. Roles come from tokens; everything else is a claim.
fn last_report<'a>(
    desk: &'a Desk<'_>,
    unit: &str,
    by: impl Fn(AgentRole) -> bool,
    of: impl Fn(ReportKind) -> bool,
) -> Option<&'a ReportView> {
    desk.handoff.context.reports.iter().rev().find(|report| {
        report.unit.as_deref().is_none_or(|about| about == unit)
            && by(report.agent_role)
            && of(report.kind)
    })
}

/// A report in one line.
pub(super) fn told(report: &ReportView) -> String {
    let details = if report.details.is_null() { String::new() } else { report.details.to_string() };
    let summary = fence::line(&report.summary, 500);
    format!("{} ({}): {summary} {details}", report.kind.as_str(), report.agent_role.as_str())
}
