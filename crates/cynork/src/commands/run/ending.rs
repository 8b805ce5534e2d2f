//! What came of a task: what it changed, what was shown and found, what it cost, where it is offered.

use std::{io::IsTerminal, time::Duration};

use cynode_core::{delivery::PullRequestState, tasks::TaskStateName, workflow::plan::Plan};
use cynode_wire::{
    delivery::{ChangedFiles, PullRequestDetail},
    evidence::{EvidenceState, EvidenceView, TaskEvidence},
    tasks::TaskView,
    timeline::Timeline,
};
use serde::Serialize;

use crate::{
    client::Call,
    context::Context,
    draw,
    failure::{Failure, Kind, Result},
    operations,
    output::{Form, Output, say},
    terminal::{Paint, Style, clock, first_line, shown, size, wrapped},
};

/// The JSON schema of what `cynork run --json` and `cynork task watch --json` write.
pub const SCHEMA: &str = r#"{
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

/// What was known when it ended.
#[derive(Debug)]
pub(super) struct Ended {
    pub(super) timeline: Timeline,
    pub(super) plan: Option<Plan>,
    pub(super) cost_micros: u64,
}

/// What came of a task.
#[derive(Debug, Serialize)]
pub(super) struct Ending {
    task: TaskView,
    plan: Option<Plan>,
    evidence: Option<TaskEvidence>,
    pull_request: Option<PullRequestDetail>,
    cost_micros: u64,
    seconds: f64,
    #[serde(skip)]
    timeline: Option<Timeline>,
    #[serde(skip)]
    changed: Option<ChangedFiles>,
}

impl Ending {
    /// Of a task that nobody waits for.
    pub(super) fn begun(task: &TaskView) -> Self {
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

    /// Asks for everything.
    pub(super) async fn find(context: &Context, id: &str, ended: Ended) -> Result<Self> {
        let Ended { timeline, plan, cost_micros } = ended;
        let client = &context.client;
        let task: TaskView = client.for_a_while(&Call::to(operations::GET_TASK, [id])).await?;
        let call = Call::to(operations::TASK_EVIDENCE, [id]);
        let evidence = Some(client.for_a_while(&call).await?);
        let (mut pull_request, mut changed) = (None, None);
        if let Some(entry) = &timeline.pull_request {
            let id = entry.id.to_string();
            let call = Call::to(operations::GET_PULL_REQUEST, [&id]);
            pull_request = Some(client.for_a_while(&call).await?);
            if entry.commit.is_some() {
                let call = Call::to(operations::PULL_REQUEST_FILES, [&id]);
                changed = Some(client.for_a_while(&call).await?);
            }
        }
        let seconds = task.ended_at.map_or(0.0, |end| (end - task.created_at).as_seconds_f64());
        let timeline = Some(timeline);
        Ok(Self { task, plan, evidence, pull_request, cost_micros, seconds, timeline, changed })
    }

    /// As one JSON value.
    pub(super) fn write(&self) -> Result<()> {
        Output::json(self)
    }

    /// Says it; a task that did not end well is a failure.
    pub(super) fn tell(&self, context: &Context, paint: Paint) -> Result<()> {
        match context.out.form {
            Form::Json => self.write()?,
            Form::Quiet => {
                self.pull_request.iter().for_each(|it| say(&it.pull_request.id.to_string()));
            }
            Form::Readable => {
                let lines = self.drawn(context.client.base(), paint);
                let columns = std::io::stdout().is_terminal().then(|| size().0);
                for line in &lines {
                    say(&columns.map_or(line.clone(), |columns| wrapped(line, columns)));
                }
            }
        }
        let id = self.task.id;
        let bad = |what: String| {
            Err(Failure::new(Kind::EndedBadly, what).fix(format!(
                "see why with `cynork task timeline {id}`; ask once more with `cynork task retry {id}`"
            )))
        };
        match self.task.state {
            TaskStateName::Completed => Ok(()),
            TaskStateName::Failed => {
                let why = self.task.failure.as_deref().unwrap_or("nobody said why");
                bad(format!("the task was given up: {}", shown(why)))
            }
            TaskStateName::Cancelled => bad("the task was stopped".to_owned()),
            TaskStateName::Queued | TaskStateName::Running => {
                bad("the task was let go before it ended".to_owned())
            }
        }
    }

    fn drawn(&self, base: &str, paint: Paint) -> Vec<String> {
        let took = clock(Duration::try_from_secs_f64(self.seconds).unwrap_or_default());
        let mut lines = vec![String::new()];
        let (sign, style) = match self.task.state {
            TaskStateName::Completed => ("✓", Style::Green),
            TaskStateName::Failed => ("✗", Style::Red),
            TaskStateName::Queued | TaskStateName::Running | TaskStateName::Cancelled => {
                ("–", Style::Yellow)
            }
        };
        let word = paint.dye(style, &format!("{sign} {}", self.task.state.as_str()));
        lines.push(format!("{word} in {took}: {}", self.task.name));
        let summary = self.timeline.as_ref().and_then(|it| it.summary.as_deref());
        lines.extend(shown(summary.unwrap_or_default()).lines().map(|line| format!("  {line}")));
        if let Some(changed) = &self.changed {
            lines.push(String::new());
            lines.extend(draw::files(changed, paint));
        }
        let judged = |shown: &&TaskEvidence| {
            !shown.evidence.is_empty() || !shown.feedback.findings().is_empty()
        };
        if let Some(shown) = self.evidence.as_ref().filter(judged) {
            lines.push(String::new());
            let last = last_of_each(&shown.evidence);
            lines.extend(last.into_iter().flat_map(|view| draw::evidence(view, paint)));
            lines.extend(draw::findings(&shown.feedback, paint));
        }
        lines.push(String::new());
        let most = self.task.budget.max_cost_micros.map(u64::from);
        lines.push(draw::spent(self.cost_micros, most, paint));
        if let Some(offered) = &self.pull_request {
            lines.extend(offer(offered, base, paint));
        }
        lines
    }
}

/// What was shown of each unit last; what was shown of attempts before is history.
fn last_of_each(evidence: &[EvidenceView]) -> Vec<&EvidenceView> {
    let done = |view: &&EvidenceView| view.state != EvidenceState::Gathering;
    let mut last: Vec<&EvidenceView> = Vec::new();
    for view in evidence.iter().filter(done) {
        last.retain(|before| before.unit != view.unit);
        last.push(view);
    }
    last
}

/// Where it is offered, and what can be done with it.
fn offer(detail: &PullRequestDetail, base: &str, paint: Paint) -> Vec<String> {
    let offered = &detail.pull_request;
    let title = first_line(&format!("#{} {}", offered.number, offered.title));
    let state = offered.state.as_str();
    let mut lines = vec![format!(
        "pull request {}  {} → {} ({state})",
        paint.dye(Style::Bold, &title),
        shown(&offered.branch),
        shown(&offered.base_branch)
    )];
    // What lives here has a path only.
    let address = if offered.url.starts_with('/') {
        format!("{base}{}", offered.url)
    } else {
        offered.url.clone()
    };
    lines.push(format!("  {}", paint.dye(Style::Cyan, &shown(&address))));
    lines.extend(offered.failure.iter().map(|why| {
        let why = format!("it could not be delivered: {}", first_line(why));
        format!("  {}", paint.dye(Style::Yellow, &why))
    }));
    let next = match offered.state {
        PullRequestState::Open => vec![
            format!("cynork task diff {}", offered.task_id),
            format!("cynork pr merge {}", offered.id),
        ],
        PullRequestState::Opening
        | PullRequestState::Merged
        | PullRequestState::Closed
        | PullRequestState::Failed => vec![format!("cynork pr show {}", offered.id)],
    };
    for (at, command) in next.iter().enumerate() {
        let head = if at == 0 { paint.dye(Style::Bold, "next:") } else { " ".repeat(5) };
        lines.push(format!("  {head} {command}"));
    }
    lines
}

#[cfg(test)]
mod tests;
