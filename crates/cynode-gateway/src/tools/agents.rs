//! `agent.*` and `pm.*`: what agents say of themselves and to each other, by way of the project manager.

use cynode_app::reports;
use cynode_core::{
    agents::{AgentKind, AgentRole, ToolScope},
    ids::TaskId,
    workflow::instructions::InstructionKind,
};
use cynode_policy::catalogue::{Annotations, Binding};
use cynode_wire::{reports::ReportKind, timeline::Instruct};
use serde::Deserialize;
use serde_json::{Value, json};
use utoipa::ToSchema;

use super::{About, Invocation, Native, ToolError, database, value};

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct Heartbeat {
    /// The task you work on.
    #[schema(value_type = String)]
    task_id: TaskId,
    /// What you are at.
    note: Option<String>,
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct Checkpoint {
    /// The task you work on.
    #[schema(value_type = String)]
    task_id: TaskId,
    /// What you want to find again after a restart.
    #[schema(value_type = Object)]
    state: Value,
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct Context {
    /// The task you work on.
    #[schema(value_type = String)]
    task_id: TaskId,
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct Help {
    /// The task you work on.
    #[schema(value_type = String)]
    task_id: TaskId,
    /// What you need to know or have.
    question: String,
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct Complete {
    /// The task you work on.
    #[schema(value_type = String)]
    task_id: TaskId,
    /// What you did.
    summary: String,
    /// Facts beside it: commits, artifacts, results of tests.
    #[serde(default)]
    #[schema(value_type = Option<Object>)]
    details: Option<Value>,
}

/// A report, in our words or in those of `apmas_report_to_pm`.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct Report {
    /// The task you work on.
    #[schema(value_type = String)]
    task_id: TaskId,
    /// What you report.
    kind: Option<ReportKind>,
    /// Another name of `kind`.
    #[serde(rename = "messageType")]
    message_type: Option<ReportKind>,
    /// In a few sentences.
    summary: Option<String>,
    /// What it is about: your unit of the plan.
    component: Option<String>,
    /// Your role; checked against your token.
    #[expect(dead_code, reason = "the gate has compared it with the token")]
    agent_role: Option<String>,
    /// Another name of `agent_role`.
    #[serde(rename = "agentRole")]
    #[expect(dead_code, reason = "the gate has compared it with the token")]
    other_role: Option<String>,
    /// Facts beside it, by kind. `work_completed`: `files_modified`, `artifacts`, `notes`. `review_approved` and
    /// `review_changes_requested`: `critical_issues`, `major_issues`, `minor_issues` (each with `description`, `file_location`,
    /// `how_to_fix`) and `summary`. `tests_passed` and `tests_failed`: `passed`, `failed`, `command`, `failures`. `work_blocked`:
    /// `needs`, `tried`. `needs_clarification` and `request_human_input`: `options`.
    #[serde(default)]
    #[schema(value_type = Option<Object>)]
    details: Option<Value>,
    /// Another name of `details`.
    #[serde(default)]
    #[schema(value_type = Option<Object>)]
    payload: Option<Value>,
}

/// An instruction, in our words or in those of `apmas_pm_instruct`.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct Tell {
    /// The task that is meant.
    #[schema(value_type = String)]
    task_id: TaskId,
    /// `continue`, `pause`, `revise`, `abort`, `expand_scope` or `reduce_scope`.
    #[schema(value_type = Option<String>)]
    kind: Option<InstructionKind>,
    /// Another name of `kind`.
    #[serde(rename = "instructionType")]
    #[schema(value_type = Option<String>)]
    instruction_type: Option<InstructionKind>,
    /// What is meant; needed to revise, expand and reduce.
    text: Option<String>,
    /// Another name of `text`.
    instructions: Option<String>,
    /// The role of the agent that is meant; whoever works on the task is told.
    #[serde(rename = "toAgent")]
    to_agent: Option<String>,
    /// Facts beside it; told with the text.
    #[schema(value_type = Option<Object>)]
    context: Option<Value>,
}

pub(super) fn tools() -> Vec<Native> {
    let about = |name, title, description, scope, annotations| About {
        name,
        title,
        description,
        scope,
        binding: Binding::TASK,
        annotations,
    };
    let (both, pm) = (ToolScope::Both, ToolScope::Pm);
    let mut report = about(
        "pm.report",
        "Report to the project manager",
        "Tells the project manager what came of your work. It is a claim that will be checked.",
        both,
        Annotations::ADDS,
    )
    .does(report);
    let mut tell = about(
        "pm.instruct",
        "Instruct a task",
        "Tells whoever works on a task to continue, pause, revise, abort, expand or reduce.",
        pm,
        Annotations::ADDS,
    )
    .does(tell);
    report.definition.aliases.extend("apmas_report_to_pm".parse());
    tell.definition.aliases.extend("apmas_pm_instruct".parse());
    vec![
        about(
            "agent.heartbeat",
            "Say that you are alive",
            "Notes that you are at work, and at what.",
            both,
            Annotations::WRITES,
        )
        .does(heartbeat),
        about(
            "agent.checkpoint",
            "Keep your state",
            "Keeps what you want to find again after a restart.",
            both,
            Annotations::WRITES,
        )
        .does(checkpoint),
        about(
            "agent.get_context",
            "Get your context",
            "The task you work on, its plan, and the state you kept last.",
            both,
            Annotations::READS,
        )
        .does(context),
        about(
            "agent.request_help",
            "Ask for help",
            "Tells the project manager that you need to know or have something.",
            both,
            Annotations::ADDS,
        )
        .does(help),
        about(
            "agent.complete",
            "Say that you are done",
            "Reports your work as completed. It is a claim that will be checked.",
            both,
            Annotations::ADDS,
        )
        .does(complete),
        report,
        tell,
    ]
}

async fn heartbeat(call: Invocation, body: Heartbeat) -> Result<Value, ToolError> {
    let agent = call.agent.clone();
    let answer = call.app.mutate(&call.request, |ctx| {
        Box::pin(async move {
            reports::heartbeat(ctx, &agent, body.task_id, body.note).await?;
            Ok(json!({ "noted": true }))
        })
    });
    value(&answer.await?)
}

async fn checkpoint(call: Invocation, body: Checkpoint) -> Result<Value, ToolError> {
    let agent = call.agent.clone();
    let answer = call.app.mutate(&call.request, |ctx| {
        Box::pin(async move {
            reports::checkpoint(ctx, &agent, body.task_id, &body.state).await?;
            Ok(json!({ "kept": true }))
        })
    });
    value(&answer.await?)
}

async fn context(call: Invocation, Context { task_id }: Context) -> Result<Value, ToolError> {
    let job = call.agent.job;
    let found = call
        .app
        .read(&call.request, |ctx| {
            Box::pin(async move {
                let task = cynode_app::tasks::get(ctx, task_id).await?;
                let story = cynode_app::timeline::get(ctx, task_id).await?;
                let kept = reports::last_checkpoint(ctx, task_id, job).await?;
                Ok((task, story, kept))
            })
        })
        .await?;
    let (task, story, kept) = found;
    Ok(json!({
        "role": call.agent.role,
        "profile": call.profile(),
        "trace_id": call.trace().to_string(),
        "task": cynode_wire::tasks::TaskView::from(task),
        "run_id": story.run_id,
        "job_id": job,
        "standing": story.standing,
        "units": story.units,
        "checkpoint": kept,
    }))
}

async fn reported(
    call: Invocation,
    task: TaskId,
    kind: ReportKind,
    summary: String,
    details: Option<Value>,
) -> Result<Value, ToolError> {
    let agent = call.agent.clone();
    let details = details.unwrap_or_else(|| json!({}));
    let (summary, details) = reports::without_secrets(&call.app, summary, details).await?;
    let answer = call.app.mutate(&call.request, |ctx| {
        Box::pin(async move {
            let id = reports::report(ctx, &agent, task, kind, summary, details).await?;
            Ok(json!({ "report_id": id, "kind": kind }))
        })
    });
    value(&answer.await?)
}

async fn help(call: Invocation, body: Help) -> Result<Value, ToolError> {
    reported(call, body.task_id, ReportKind::NeedsClarification, body.question, None).await
}

async fn complete(call: Invocation, body: Complete) -> Result<Value, ToolError> {
    reported(call, body.task_id, ReportKind::WorkCompleted, body.summary, body.details).await
}

async fn report(call: Invocation, body: Report) -> Result<Value, ToolError> {
    let kind = one("kind", "messageType", body.kind, body.message_type)?;
    let kind = kind.ok_or_else(|| ToolError::invalid("`kind` is missing"))?;
    let mut details = one("details", "payload", body.details, body.payload)?;
    // A summary may come inside the facts; a review keeps it there too.
    let review = matches!(kind, ReportKind::ReviewApproved | ReportKind::ReviewChangesRequested);
    let inside = details.as_mut().and_then(Value::as_object_mut).and_then(|facts| {
        let found = facts.get("summary").and_then(Value::as_str).map(str::to_owned);
        if !review {
            facts.shift_remove("summary");
        }
        found
    });
    let summary = body.summary.or(inside).or_else(|| {
        let about = body.component.as_deref()?;
        Some(format!("{}: {about}", kind.as_str()))
    });
    let summary = summary.ok_or_else(|| ToolError::invalid("`summary` is missing"))?;
    reported(call, body.task_id, kind, summary, details).await
}

/// What was given under one of two names.
fn one<T>(
    name: &str,
    other: &str,
    first: Option<T>,
    second: Option<T>,
) -> Result<Option<T>, ToolError> {
    match (first, second) {
        (Some(_), Some(_)) => {
            Err(ToolError::invalid(format!("`{name}` and `{other}` are the same: give one")))
        }
        (first, second) => Ok(first.or(second)),
    }
}

async fn tell(call: Invocation, body: Tell) -> Result<Value, ToolError> {
    let kind = one("kind", "instructionType", body.kind, body.instruction_type)?;
    let kind = kind.ok_or_else(|| ToolError::invalid("`kind` is missing"))?;
    let mut text = one("text", "instructions", body.text, body.instructions)?;
    if let Some(role) = &body.to_agent {
        let role = AgentRole::from_name(role).filter(|role| role.kind() == AgentKind::Sandbox);
        role.ok_or_else(|| ToolError::invalid("`toAgent` is the role of an agent that works"))?;
    }
    if let Some(context) = &body.context {
        text = Some(format!("{}\n\n{context}", text.unwrap_or_default()));
    }
    let text = text.map(|text| text.parse()).transpose();
    let text = text.map_err(|error| ToolError::invalid(format!("`text`: {error}")))?;
    database::instruct(call, body.task_id, Instruct { kind, text }).await
}
