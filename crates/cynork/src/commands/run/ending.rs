//! The outcome of a task: its changes, evidence and findings, its cost, its pull request.

use std::{io::IsTerminal, time::Duration};

use cynode_core::{
    budget::Currency,
    delivery::PullRequestState,
    tasks::TaskStateName,
    workflow::{
        evidence::{EvidenceState, EvidenceView},
        plan::Plan,
    },
};
use cynode_wire::{
    delivery::{ChangedFiles, PullRequestDetail, evidence::TaskEvidence},
    tasks::TaskView,
    workflow::timeline::TaskTimeline,
};
use serde::Serialize;

use crate::{
    client::ApiRequest,
    context::CliContext,
    draw,
    failure::{CliError, CliErrorKind, Result},
    operations,
    output::{CliOutput, CliOutputFormat, print_line},
    terminal::{
        Colorizer, TextStyle, escape_for_terminal, first_line, format_clock, terminal_size,
        wrap_line,
    },
};

/// The JSON schema of the output of `cynork run --json` and `cynork task watch --json`.
pub const RUN_OUTPUT_SCHEMA: &str = r#"{
  "$schema": "https://json-schema.org/draft/2020-12/schema",
  "title": "cynork run",
  "type": "object",
  "required": ["task", "plan", "evidence", "pull_request", "cost_micros", "seconds"],
  "additionalProperties": false,
  "properties": {
    "task": {
      "description": "The task, as GET /v1/tasks/{task} gives it.",
      "type": "object",
      "required": ["id", "project_id", "name", "description", "state", "budget", "created_at"],
      "properties": {
        "id": { "type": "string", "pattern": "^tsk_" },
        "project_id": { "type": "string", "pattern": "^prj_" },
        "name": { "type": "string" },
        "description": { "type": "string" },
        "state": { "enum": ["queued", "running", "completed", "failed", "cancelled"] },
        "budget": { "type": "object" },
        "created_at": { "type": "string", "format": "date-time" }
      }
    },
    "plan": {
      "description": "The newest plan; null when there is none yet.",
      "type": ["object", "null"],
      "required": ["steps", "assumptions"],
      "properties": {
        "steps": { "type": "array", "items": { "type": "object", "required": ["key", "title", "depends_on", "payload"] } },
        "assumptions": { "type": "array", "items": { "type": "string" } }
      }
    },
    "evidence": {
      "description": "What checks showed and what everybody found, as GET /v1/tasks/{task}/evidence gives it; null when the command came back at once.",
      "type": ["object", "null"],
      "required": ["evidence", "feedback"],
      "properties": {
        "evidence": { "type": "array", "items": { "type": "object", "required": ["evidence_id", "unit", "attempt", "state", "checks"] } },
        "feedback": { "type": "object", "required": ["verdict", "critical_issues", "major_issues", "minor_issues", "summary"] }
      }
    },
    "pull_request": {
      "description": "What it was delivered as, as GET /v1/pull-requests/{pull_request} gives it; null when it was not.",
      "type": ["object", "null"],
      "required": ["id", "number", "state", "url", "branch", "base_branch"],
      "properties": {
        "id": { "type": "string", "pattern": "^pul_" },
        "number": { "type": "integer" },
        "state": { "enum": ["opening", "open", "merged", "closed", "failed"] },
        "url": { "type": "string" },
        "branch": { "type": "string" },
        "base_branch": { "type": "string" }
      }
    },
    "cost_micros": { "description": "What it cost, in millionths of the currency.", "type": "integer", "minimum": 0 },
    "seconds": { "description": "From when it was asked for to its end.", "type": "number", "minimum": 0 }
  }
}"#;

/// The state at the end of a task.
#[derive(Debug)]
pub(super) struct FinalState {
    pub(super) timeline: TaskTimeline,
    pub(super) plan: Option<Plan>,
    pub(super) cost_micros: u64,
}

/// The outcome of a task.
#[derive(Debug, Serialize)]
pub(super) struct TaskOutcome {
    task: TaskView,
    plan: Option<Plan>,
    evidence: Option<TaskEvidence>,
    pull_request: Option<PullRequestDetail>,
    cost_micros: u64,
    seconds: f64,
    #[serde(skip)]
    timeline: Option<TaskTimeline>,
    #[serde(skip)]
    changed: Option<ChangedFiles>,
}

impl TaskOutcome {
    /// Returns the outcome of a task that the command does not wait for.
    pub(super) fn for_detached_task(task: &TaskView) -> Self {
        Self {
            task: task.clone(),
            plan: None,
            evidence: None,
            pull_request: None,
            cost_micros: 0,
            seconds: 0.0,
            timeline: None,
            changed: None,
        }
    }

    /// Fetches all parts of the outcome.
    pub(super) async fn fetch_outcome(
        context: &CliContext,
        id: &str,
        ended: FinalState,
    ) -> Result<Self> {
        let FinalState { timeline, plan, cost_micros } = ended;
        let client = &context.client;
        let task: TaskView = client
            .send_with_retry_timeout(&ApiRequest::with_path_params(operations::GET_TASK, [id]))
            .await?;
        let call = ApiRequest::with_path_params(operations::TASK_EVIDENCE, [id]);
        let evidence = Some(client.send_with_retry_timeout(&call).await?);
        let (mut pull_request, mut changed) = (None, None);
        if let Some(entry) = &timeline.pull_request {
            let id = entry.id.to_string();
            let call = ApiRequest::with_path_params(operations::GET_PULL_REQUEST, [&id]);
            pull_request = Some(client.send_with_retry_timeout(&call).await?);
            if entry.commit.is_some() {
                let call = ApiRequest::with_path_params(operations::PULL_REQUEST_FILES, [&id]);
                changed = Some(client.send_with_retry_timeout(&call).await?);
            }
        }
        let seconds = task.ended_at.map_or(0.0, |end| (end - task.created_at).as_seconds_f64());
        let timeline = Some(timeline);
        Ok(Self { task, plan, evidence, pull_request, cost_micros, seconds, timeline, changed })
    }

    /// Writes it as one JSON value.
    pub(super) fn write_json(&self) -> Result<()> {
        CliOutput::print_json(self)
    }

    /// Reports it; a task that did not succeed is an error.
    pub(super) fn report_outcome(&self, context: &CliContext, paint: Colorizer) -> Result<()> {
        match context.out.form {
            CliOutputFormat::Json => self.write_json()?,
            CliOutputFormat::Quiet => {
                self.pull_request.iter().for_each(|it| print_line(&it.pull_request.id.to_string()));
            }
            CliOutputFormat::Readable => {
                let pull = self
                    .pull_request
                    .as_ref()
                    .map(|it| context.pull_request_reference(&it.pull_request));
                let names = (context.task_reference(&self.task), pull.unwrap_or_default());
                let lines = self.render_lines(&names, context.currency(), paint);
                let columns = std::io::stdout().is_terminal().then(|| terminal_size().0);
                for line in &lines {
                    print_line(&columns.map_or(line.clone(), |columns| wrap_line(line, columns)));
                }
            }
        }
        let task = context.task_reference(&self.task);
        let bad = |what: String| {
            Err(CliError::new(CliErrorKind::Failed, what).with_fix(format!(
                "see why with `cynork task timeline {task}`; ask once more with `cynork task retry {task}`"
            )))
        };
        match self.task.state {
            TaskStateName::Completed => Ok(()),
            TaskStateName::Failed => {
                let why = self.task.failure.as_deref().unwrap_or("nobody said why");
                bad(format!("the task was given up: {}", escape_for_terminal(why)))
            }
            TaskStateName::Cancelled => bad("the task was stopped".to_owned()),
            TaskStateName::Queued | TaskStateName::Running => {
                bad("the task was let go before it ended".to_owned())
            }
        }
    }

    /// Renders the outcome; the names of the task and its pull request are those for the next commands.
    fn render_lines(
        &self,
        names: &(String, String),
        currency: Currency,
        paint: Colorizer,
    ) -> Vec<String> {
        let took = format_clock(Duration::try_from_secs_f64(self.seconds).unwrap_or_default());
        let mut lines = vec![String::new()];
        let (sign, style) = match self.task.state {
            TaskStateName::Completed => ("✓", TextStyle::Green),
            TaskStateName::Failed => ("✗", TextStyle::Red),
            TaskStateName::Queued | TaskStateName::Running | TaskStateName::Cancelled => {
                ("–", TextStyle::Yellow)
            }
        };
        let word = paint.apply_style(style, &format!("{sign} {}", self.task.state.as_str()));
        lines.push(format!("{word} in {took}: {}", self.task.name));
        let summary = self.timeline.as_ref().and_then(|it| it.summary.as_deref());
        lines.extend(
            escape_for_terminal(summary.unwrap_or_default())
                .lines()
                .map(|line| format!("  {line}")),
        );
        if let Some(changed) = &self.changed {
            lines.push(String::new());
            lines.extend(draw::render_changed_files(changed, paint));
        }
        let judged = |shown: &&TaskEvidence| {
            !shown.evidence.is_empty() || !shown.feedback.to_findings().is_empty()
        };
        if let Some(shown) = self.evidence.as_ref().filter(judged) {
            lines.push(String::new());
            let last = latest_per_unit(&shown.evidence);
            lines.extend(last.into_iter().flat_map(|view| draw::render_evidence(view, paint)));
            lines.extend(draw::render_findings(&shown.feedback, paint));
        }
        lines.push(String::new());
        let most = self.task.budget.max_cost_micros.map(u64::from);
        lines.push(draw::render_spending(self.cost_micros, most, currency, paint));
        if let Some(offered) = &self.pull_request {
            lines.extend(render_pull_request(offered, names, paint));
        }
        lines
    }
}

/// Returns the latest evidence of each unit; that of earlier attempts is history.
fn latest_per_unit(evidence: &[EvidenceView]) -> Vec<&EvidenceView> {
    let done = |view: &&EvidenceView| view.state != EvidenceState::Gathering;
    let mut last: Vec<&EvidenceView> = Vec::new();
    for view in evidence.iter().filter(done) {
        last.retain(|before| before.unit != view.unit);
        last.push(view);
    }
    last
}

/// Renders the pull request, and the commands for it.
fn render_pull_request(
    detail: &PullRequestDetail,
    (task, pull): &(String, String),
    paint: Colorizer,
) -> Vec<String> {
    let offered = &detail.pull_request;
    let title = first_line(&format!("#{} {}", offered.number, offered.title));
    let state = offered.state.as_str();
    let mut lines = vec![format!(
        "pull request {}  {} → {} ({state})",
        paint.apply_style(TextStyle::Bold, &title),
        escape_for_terminal(&offered.branch),
        escape_for_terminal(&offered.base_branch)
    )];
    // A pull request that is hosted here has no page.
    let address = if offered.url.starts_with('/') {
        format!("cynork pr show {}", offered.number)
    } else {
        offered.url.clone()
    };
    lines.push(format!("  {}", paint.apply_style(TextStyle::Cyan, &escape_for_terminal(&address))));
    lines.extend(offered.failure.iter().map(|why| {
        let why = format!("it could not be delivered: {}", first_line(why));
        format!("  {}", paint.apply_style(TextStyle::Yellow, &why))
    }));
    let next = match offered.state {
        PullRequestState::Open => {
            vec![format!("cynork task diff {task}"), format!("cynork pr merge {pull}")]
        }
        PullRequestState::Opening
        | PullRequestState::Merged
        | PullRequestState::Closed
        | PullRequestState::Failed => vec![format!("cynork pr show {pull}")],
    };
    for (at, command) in next.iter().enumerate() {
        let head =
            if at == 0 { paint.apply_style(TextStyle::Bold, "next:") } else { " ".repeat(5) };
        lines.push(format!("  {head} {command}"));
    }
    lines
}

#[cfg(test)]
mod tests;
