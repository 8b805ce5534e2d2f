//! `agent.*` and `pm.*`: reports of agents and their messages to the project manager.

use cynode_app::manager::reports;
use cynode_core::{
    agents::{AgentKind, AgentRole, ToolScope},
    ids::TaskId,
    tools::ToolAnnotations,
    workflow::{instructions::InstructionKind, reports::ReportKind},
};
use cynode_policy::catalogue::IdBinding;
use cynode_wire::workflow::timeline::InstructTask;
use serde::Deserialize;
use serde_json::{Value, json};
use utoipa::ToSchema;

use super::{NativeTool, ToolError, ToolInvocation, ToolSpec, answer_value, database};

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct HeartbeatArgs {
    /// The task you work on.
    #[schema(value_type = String)]
    task_id: TaskId,
    /// Your current activity.
    note: Option<String>,
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct AgentCheckpointArgs {
    /// The task you work on.
    #[schema(value_type = String)]
    task_id: TaskId,
    /// State that you need after a restart.
    #[schema(value_type = Object)]
    state: Value,
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct GetContextArgs {
    /// The task you work on.
    #[schema(value_type = String)]
    task_id: TaskId,
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct RequestHelpArgs {
    /// The task you work on.
    #[schema(value_type = String)]
    task_id: TaskId,
    /// The information or help that you need.
    question: String,
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct CompleteWorkArgs {
    /// The task you work on.
    #[schema(value_type = String)]
    task_id: TaskId,
    /// Summary of your work.
    summary: String,
    /// Further facts: commits, artifacts, test results.
    #[serde(default)]
    #[schema(value_type = Option<Object>)]
    details: Option<Value>,
}

/// A report, with CyNode's field names or those of `apmas_report_to_pm`.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct ReportArgs {
    /// The task you work on.
    #[schema(value_type = String)]
    task_id: TaskId,
    /// Kind of the report.
    kind: Option<ReportKind>,
    /// Another name of `kind`.
    #[serde(rename = "messageType")]
    message_type: Option<ReportKind>,
    /// Summary, in a few sentences.
    summary: Option<String>,
    /// Subject of the report: your unit of the plan.
    component: Option<String>,
    /// Your role; checked against your token.
    #[expect(dead_code, reason = "the gate has compared it with the token")]
    agent_role: Option<String>,
    /// Another name of `agent_role`.
    #[serde(rename = "agentRole")]
    #[expect(dead_code, reason = "the gate has compared it with the token")]
    other_role: Option<String>,
    /// Further facts, by kind. `work_completed`: `files_modified`, `artifacts`, `notes`. `review_approved` and `review_changes_requested`:
    /// `critical_issues`, `major_issues`, `minor_issues` (each with `description`, `file_location`, `how_to_fix`) and `summary`.
    /// `tests_passed` and `tests_failed`: `passed`, `failed`, `command`, `failures`. `work_blocked`: `needs`, `tried`.
    /// `needs_clarification` and `request_human_input`: `options`.
    #[serde(default)]
    #[schema(value_type = Option<Object>)]
    details: Option<Value>,
    /// Another name of `details`.
    #[serde(default)]
    #[schema(value_type = Option<Object>)]
    payload: Option<Value>,
}

/// An instruction, with CyNode's field names or those of `apmas_pm_instruct`.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct InstructArgs {
    /// The task to instruct.
    #[schema(value_type = String)]
    task_id: TaskId,
    /// `resume`, `pause`, `revise`, `abort`, `expand_scope` or `reduce_scope`.
    #[schema(value_type = Option<String>)]
    kind: Option<InstructionKind>,
    /// Another name of `kind`, with `continue` for `resume`.
    #[serde(rename = "instructionType")]
    #[schema(value_type = Option<String>)]
    instruction_type: Option<ApmasInstructionType>,
    /// Text of the instruction; required to revise, expand and reduce.
    text: Option<String>,
    /// Another name of `text`.
    instructions: Option<String>,
    /// Role of the agent that the instruction is for; the agent that works on the task receives it.
    #[serde(rename = "toAgent")]
    to_agent: Option<String>,
    /// Further facts; sent with the text.
    #[schema(value_type = Option<Object>)]
    context: Option<Value>,
}

/// Instruction kinds of `apmas_pm_instruct`.
#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "snake_case")]
enum ApmasInstructionType {
    Continue,
    Pause,
    Revise,
    Abort,
    ExpandScope,
    ReduceScope,
}

impl From<ApmasInstructionType> for InstructionKind {
    fn from(kind: ApmasInstructionType) -> Self {
        match kind {
            ApmasInstructionType::Continue => Self::Resume,
            ApmasInstructionType::Pause => Self::Pause,
            ApmasInstructionType::Revise => Self::Revise,
            ApmasInstructionType::Abort => Self::Abort,
            ApmasInstructionType::ExpandScope => Self::ExpandScope,
            ApmasInstructionType::ReduceScope => Self::ReduceScope,
        }
    }
}

pub(super) fn agent_tools() -> Vec<NativeTool> {
    let about = |name, title, description, scope, annotations| ToolSpec {
        name,
        title,
        description,
        scope,
        binding: IdBinding::TASK,
        annotations,
    };
    let (both, pm) = (ToolScope::Both, ToolScope::Pm);
    let mut report = about(
        "pm.report",
        "Report to the project manager",
        "Tells the project manager what came of your work. It is a claim that will be checked.",
        both,
        ToolAnnotations::ADDITIVE_WRITE,
    )
    .with_handler(report_to_manager);
    let mut tell = about(
        "pm.instruct",
        "Instruct a task",
        "Tells whoever works on a task to resume, pause, revise, abort, expand or reduce.",
        pm,
        ToolAnnotations::ADDITIVE_WRITE,
    )
    .with_handler(instruct_task);
    report.definition.aliases.extend("apmas_report_to_pm".parse());
    tell.definition.aliases.extend("apmas_pm_instruct".parse());
    vec![
        about(
            "agent.heartbeat",
            "Say that you are alive",
            "Notes that you are at work, and at what.",
            both,
            ToolAnnotations::IDEMPOTENT_WRITE,
        )
        .with_handler(record_heartbeat),
        about(
            "agent.checkpoint",
            "Keep your state",
            "Keeps what you want to find again after a restart.",
            both,
            ToolAnnotations::IDEMPOTENT_WRITE,
        )
        .with_handler(save_checkpoint),
        about(
            "agent.get_context",
            "Get your context",
            "The task you work on, its plan, and the state you kept last.",
            both,
            ToolAnnotations::READ_ONLY,
        )
        .with_handler(get_context),
        about(
            "agent.request_help",
            "Ask for help",
            "Tells the project manager that you need to know or have something.",
            both,
            ToolAnnotations::ADDITIVE_WRITE,
        )
        .with_handler(request_help),
        about(
            "agent.complete",
            "Say that you are done",
            "Reports your work as completed. It is a claim that will be checked.",
            both,
            ToolAnnotations::ADDITIVE_WRITE,
        )
        .with_handler(report_completion),
        report,
        tell,
    ]
}

async fn record_heartbeat(call: ToolInvocation, body: HeartbeatArgs) -> Result<Value, ToolError> {
    let agent = call.agent.clone();
    let answer = call.app.mutate(&call.request, |ctx| {
        Box::pin(async move {
            reports::record_agent_heartbeat(ctx, &agent, body.task_id, body.note).await?;
            Ok(json!({ "noted": true }))
        })
    });
    answer_value(&answer.await?)
}

async fn save_checkpoint(
    call: ToolInvocation,
    mut body: AgentCheckpointArgs,
) -> Result<Value, ToolError> {
    let agent = call.agent.clone();
    // The next attempt is told it, and its prompt goes to a model.
    cynode_app::platform::redaction::redact_value(&call.app, &mut body.state).await?;
    let answer = call.app.mutate(&call.request, |ctx| {
        Box::pin(async move {
            reports::store_agent_checkpoint(ctx, &agent, body.task_id, &body.state).await?;
            Ok(json!({ "kept": true }))
        })
    });
    answer_value(&answer.await?)
}

async fn get_context(
    call: ToolInvocation,
    GetContextArgs { task_id }: GetContextArgs,
) -> Result<Value, ToolError> {
    let job = call.agent.job;
    let found = call
        .app
        .read(&call.request, |ctx| {
            Box::pin(async move {
                let task = cynode_app::tasks::get_task(ctx, task_id).await?;
                let story = cynode_app::workflow::timeline::get_timeline(ctx, task_id).await?;
                let kept = reports::last_checkpoint(ctx, task_id, job).await?;
                Ok((task, story, kept))
            })
        })
        .await?;
    let (task, story, kept) = found;
    Ok(json!({
        "role": call.agent.role,
        "profile": call.profile_name(),
        "trace_id": call.trace_id().to_string(),
        "task": cynode_wire::tasks::TaskView::from(task),
        "run_id": story.run_id,
        "job_id": job,
        "standing": story.standing,
        "units": story.units,
        "checkpoint": kept,
    }))
}

async fn submit_report(
    call: ToolInvocation,
    task: TaskId,
    kind: ReportKind,
    summary: String,
    details: Option<Value>,
) -> Result<Value, ToolError> {
    let agent = call.agent.clone();
    let details = details.unwrap_or_else(|| json!({}));
    let (summary, details) = reports::redact_report(&call.app, summary, details).await?;
    let answer = call.app.mutate(&call.request, |ctx| {
        Box::pin(async move {
            let id = reports::store_report(ctx, &agent, task, kind, summary, details).await?;
            Ok(json!({ "report_id": id, "kind": kind }))
        })
    });
    answer_value(&answer.await?)
}

async fn request_help(call: ToolInvocation, body: RequestHelpArgs) -> Result<Value, ToolError> {
    submit_report(call, body.task_id, ReportKind::NeedsClarification, body.question, None).await
}

async fn report_completion(
    call: ToolInvocation,
    body: CompleteWorkArgs,
) -> Result<Value, ToolError> {
    submit_report(call, body.task_id, ReportKind::WorkCompleted, body.summary, body.details).await
}

async fn report_to_manager(call: ToolInvocation, body: ReportArgs) -> Result<Value, ToolError> {
    let kind = one_of_aliases("kind", "messageType", body.kind, body.message_type)?;
    let kind = kind.ok_or_else(|| ToolError::invalid_arguments("`kind` is missing"))?;
    let mut details = one_of_aliases("details", "payload", body.details, body.payload)?;
    // A summary may be inside the details; a review also keeps it there.
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
    let summary = summary.ok_or_else(|| ToolError::invalid_arguments("`summary` is missing"))?;
    submit_report(call, body.task_id, kind, summary, details).await
}

/// Returns the value that was given under one of two names.
fn one_of_aliases<T>(
    name: &str,
    other: &str,
    first: Option<T>,
    second: Option<T>,
) -> Result<Option<T>, ToolError> {
    match (first, second) {
        (Some(_), Some(_)) => Err(ToolError::invalid_arguments(format!(
            "`{name}` and `{other}` are the same: give one"
        ))),
        (first, second) => Ok(first.or(second)),
    }
}

async fn instruct_task(call: ToolInvocation, body: InstructArgs) -> Result<Value, ToolError> {
    let instruction_type = body.instruction_type.map(InstructionKind::from);
    let kind = one_of_aliases("kind", "instructionType", body.kind, instruction_type)?;
    let kind = kind.ok_or_else(|| ToolError::invalid_arguments("`kind` is missing"))?;
    let mut text = one_of_aliases("text", "instructions", body.text, body.instructions)?;
    if let Some(role) = &body.to_agent {
        let role =
            AgentRole::from_name(role).filter(|role| role.agent_kind() == AgentKind::Sandbox);
        role.ok_or_else(|| {
            ToolError::invalid_arguments("`toAgent` is the role of an agent that works")
        })?;
    }
    if let Some(context) = &body.context {
        text = Some(format!("{}\n\n{context}", text.unwrap_or_default()));
    }
    let text = text.map(|text| text.parse()).transpose();
    let text = text.map_err(|error| ToolError::invalid_arguments(format!("`text`: {error}")))?;
    database::send_instruction(call, body.task_id, InstructTask { kind, text }).await
}
