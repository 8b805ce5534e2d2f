//! Decisions of the project manager. Code decides where a table or a rule knows the answer; a model is asked for the
//! rest, one independent question at a time.

use std::collections::BTreeMap;

use cynode_core::{
    agents::AgentRole,
    environments::EnvironmentCheck,
    evidence::EvidenceCheck,
    names::DottedKey,
    workflow::{
        decisions::review::ReviewOptions,
        environments::EnvironmentBrief,
        handoffs::{HandoffAnswer, HandoffRequest, ProjectContext},
        reports::{ReportKind, ReportView},
    },
};
use cynode_wire::manager::handoffs::TaskFacts;
use serde_json::Value;

use super::{HandoffOutcome, fence};
use crate::decision_context::{DecisionContext, DecisionError};

mod delivery;
mod dispatch;
mod failure;
mod plan;
mod report;
mod summary;
mod verify;

pub use dispatch::{DEFAULT_WORKER, design_path, spec_path};
pub use verify::TESTS_REQUIRED_PREFIX;

/// Processes a handoff of the project manager.
pub async fn process_manager_handoff(
    desk: &DecisionContext<'_>,
) -> Result<HandoffOutcome, DecisionError> {
    match &desk.handoff.request {
        HandoffRequest::Plan { previous_plan, feedback, answer, attempt, started_units } => {
            let request = plan::PlanningRequest {
                before: previous_plan.as_ref(),
                feedback,
                answer: answer.as_ref(),
                attempt: *attempt,
                begun: started_units,
            };
            plan::plan_task(desk, request).await.map(to_outcome)
        }
        HandoffRequest::Dispatch { units } => {
            dispatch::assign_ready_units(desk, units).map(to_outcome)
        }
        HandoffRequest::Verify(judge) => verify::verify_result(desk, judge).await,
        HandoffRequest::Failure { .. } => failure::decide_failure(desk).await.map(to_outcome),
        HandoffRequest::Report { report } => {
            report::answer_report(desk, report).await.map(to_outcome)
        }
        HandoffRequest::Summarise { units, answer } => {
            summary::summarize_task(desk, units, answer.as_ref()).await.map(to_outcome)
        }
        HandoffRequest::Schedule { schedule, text } => {
            summary::create_scheduled_tasks(desk, schedule, text).await.map(to_outcome)
        }
        HandoffRequest::Analyse(_) => {
            Err(DecisionError::Permanent("a project manager does not analyse".into()))
        }
        HandoffRequest::Chat { .. } => {
            Err(DecisionError::Permanent("a chat is answered as it goes, and not here".into()))
        }
    }
}

fn to_outcome(answer: HandoffAnswer) -> HandoffOutcome {
    HandoffOutcome::Answer(Box::new(answer))
}

/// Returns the task of a handoff.
pub(super) fn handoff_task<'a>(
    desk: &'a DecisionContext<'_>,
) -> Result<&'a TaskFacts, DecisionError> {
    desk.handoff
        .context
        .task
        .as_ref()
        .ok_or_else(|| DecisionError::Permanent("the handoff names no task".into()))
}

/// Returns the texts of the task's acceptance criteria.
pub(super) fn criterion_texts(task: &TaskFacts) -> Vec<String> {
    task.acceptance_criteria.iter().map(|criterion| criterion.text.to_string()).collect()
}

/// Returns the project context that was stored with the plan.
fn planned_project(desk: &DecisionContext<'_>) -> ProjectContext {
    desk.handoff.context.planned.as_ref().map(|planned| planned.project.clone()).unwrap_or_default()
}

/// Returns the accepted environment of the project, if the task uses one.
fn accepted_environment<'a>(desk: &DecisionContext<'a>) -> Option<&'a EnvironmentBrief> {
    desk.handoff.context.environment.as_ref()?.accepted.as_ref()
}

/// Returns the checks of the project's environment. Like the project's own commands they count only if they held before the change:
/// no change answers for what was broken already.
fn environment_checks(desk: &DecisionContext<'_>) -> Vec<EvidenceCheck> {
    let checks = accepted_environment(desk).map_or(&[][..], |it| it.checks.as_slice());
    let checks = checks.iter().map(EnvironmentCheck::to_evidence_check);
    checks.map(|check| EvidenceCheck { unless_before: true, ..check }).collect()
}

/// Returns the commands that build and test the project: those of its environment, then those that its files name.
fn join_commands(environment: &[EvidenceCheck], commands: Vec<String>) -> Vec<String> {
    let mut joined: Vec<String> = environment.iter().map(EvidenceCheck::command_line).collect();
    for command in commands {
        if !joined.contains(&command) {
            joined.push(command);
        }
    }
    joined
}

/// Returns the review options. An invalid preference is logged.
fn review_options(desk: &DecisionContext<'_>) -> ReviewOptions {
    let (options, notes) = ReviewOptions::from_preferences(&desk.handoff.context.preferences);
    for note in notes {
        tracing::warn!(event = "preference.invalid", note = %note, "a preference cannot be used as it is");
    }
    options
}

fn find_preference<'a>(
    preferences: &'a BTreeMap<DottedKey, Value>,
    key: &str,
) -> Option<&'a Value> {
    preferences.get(&key.parse::<DottedKey>().ok()?)
}

/// Returns the last report of a kind by an agent role about a unit. The role comes from the token; all other fields are claims.
fn last_report<'a>(
    desk: &'a DecisionContext<'_>,
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

/// Renders a report as one line.
pub(super) fn render_report_line(report: &ReportView) -> String {
    let details = if report.details.is_null() { String::new() } else { report.details.to_string() };
    let summary = fence::sanitize_line(&report.summary, 500);
    format!("{} ({}): {summary} {details}", report.kind.as_str(), report.agent_role.as_str())
}
