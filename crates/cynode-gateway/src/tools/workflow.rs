//! `workflow.*` and `verification.record`: how a runner drives tasks. The runner passes the same policy as every agent
//! and acts only under its lease.

use cynode_app::{manager::reports, workflow};
use cynode_core::{
    agents::{AgentKind, ToolScope},
    ids::TaskId,
    tools::ToolAnnotations,
    workflow::findings::VerificationFinding,
};
use cynode_policy::catalogue::IdBinding;
use cynode_wire::workflow::{
    LeaseRef, RenewLease, ResumeWorkflow, StartWorkflow, StepCheckpoint, VerificationStatus,
};
use serde::Deserialize;
use serde_json::{Value, json};
use utoipa::ToSchema;

use super::{NativeTool, ToolError, ToolInvocation, ToolSpec, answer_value};

/// Starts the workflow of a task. The program that drives tasks takes the lease; the project manager requests that the task be driven.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct StartWorkflowArgs {
    /// The task.
    #[schema(value_type = String)]
    task_id: TaskId,
    /// Name of the runner; set by runners only.
    holder: Option<String>,
    /// Idempotency key of this attempt to drive the task; set by runners only.
    idempotency_key: Option<String>,
    /// Instance id of the process, and after a `#` its attempt; set by runners only.
    instance: Option<String>,
    /// Duration of the lease in seconds, 1 to 3600; set by runners only.
    expires_in_seconds: Option<u32>,
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct StoreCheckpointArgs {
    /// The task.
    #[schema(value_type = String)]
    task_id: TaskId,
    /// Result of a step.
    checkpoint: StepCheckpoint,
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct RecordVerificationArgs {
    /// The task.
    #[schema(value_type = String)]
    task_id: TaskId,
    /// The unit of the plan that was verified.
    unit: Option<String>,
    /// Result of the verification.
    status: VerificationStatus,
    /// Findings of the verification.
    #[serde(default)]
    findings: Vec<VerificationFinding>,
}

pub(super) fn workflow_tools() -> Vec<NativeTool> {
    let about = |name, title, description, annotations| ToolSpec {
        name,
        title,
        description,
        scope: ToolScope::Pm,
        binding: IdBinding::TASK,
        annotations,
    };
    vec![
        about(
            "workflow.start",
            "Start a task's workflow",
            "Asks for a task to be driven; a runner takes its lease.",
            ToolAnnotations::IDEMPOTENT_WRITE,
        )
        .with_handler(start_workflow),
        about(
            "workflow.resume",
            "Where a run stands",
            "Where the run of a task stands and what its next node needs.",
            ToolAnnotations::READ_ONLY,
        )
        .with_handler(resume_workflow),
        about(
            "workflow.checkpoint",
            "Store a step",
            "Stores what a node did: state, history and effects together, under the lease.",
            ToolAnnotations::IDEMPOTENT_WRITE,
        )
        .with_handler(store_checkpoint),
        about(
            "workflow.renew",
            "Keep a lease",
            "Gives a lease more time.",
            ToolAnnotations::IDEMPOTENT_WRITE,
        )
        .with_handler(renew_lease),
        about(
            "workflow.release",
            "Give a lease back",
            "Gives a lease back before it ends.",
            ToolAnnotations::IDEMPOTENT_WRITE,
        )
        .with_handler(release_lease),
        about(
            "verification.record",
            "Record a judgement",
            "Records whether a task's work was found good, and what was found.",
            ToolAnnotations::ADDITIVE_WRITE,
        )
        .with_handler(record_verification),
    ]
}

async fn start_workflow(call: ToolInvocation, body: StartWorkflowArgs) -> Result<Value, ToolError> {
    if call.agent.agent_kind() != AgentKind::Runner {
        // The token decides who drives a task: a caller that may only request a start must not set a runner's fields.
        let given = [
            ("holder", body.holder.is_some()),
            ("idempotency_key", body.idempotency_key.is_some()),
            ("instance", body.instance.is_some()),
            ("expires_in_seconds", body.expires_in_seconds.is_some()),
        ];
        if let Some((field, _)) = given.into_iter().find(|(_, given)| *given) {
            let told = format!(
                "`{field}` is for the program that drives tasks, and your token is not its: give `task_id` alone"
            );
            return Err(ToolError::invalid_arguments(told));
        }
        let task = body.task_id;
        let answer = call.app.mutate(&call.request, |ctx| {
            Box::pin(async move {
                let task = workflow::request_workflow_run(ctx, task).await?;
                Ok(json!({ "task_id": task.id, "requested": true }))
            })
        });
        return answer_value(&answer.await?);
    }
    let (Some(holder), Some(idempotency_key)) = (body.holder, body.idempotency_key) else {
        return Err(ToolError::invalid_arguments("a runner gives `holder` and `idempotency_key`"));
    };
    let StartWorkflowArgs { task_id, instance, expires_in_seconds, .. } = body;
    let start = StartWorkflow { task_id, holder, idempotency_key, instance, expires_in_seconds };
    answer_value(&workflow::start_workflow(&call.app, &call.request, &start).await?)
}

async fn resume_workflow(call: ToolInvocation, body: ResumeWorkflow) -> Result<Value, ToolError> {
    Ok(json!(workflow::resume_workflow(&call.app, &call.request, &body).await?))
}

async fn store_checkpoint(
    call: ToolInvocation,
    body: StoreCheckpointArgs,
) -> Result<Value, ToolError> {
    if body.checkpoint.lease.task_id != body.task_id {
        return Err(ToolError::invalid_arguments("the lease is of another task"));
    }
    answer_value(&workflow::store_checkpoint(&call.app, &call.request, body.checkpoint).await?)
}

async fn renew_lease(call: ToolInvocation, body: RenewLease) -> Result<Value, ToolError> {
    let answer = call.app.mutate(&call.request, |ctx| {
        Box::pin(async move { workflow::renew_lease(ctx, &body).await })
    });
    answer_value(&answer.await?)
}

async fn release_lease(call: ToolInvocation, body: LeaseRef) -> Result<Value, ToolError> {
    let answer = call.app.mutate(&call.request, |ctx| {
        Box::pin(async move { workflow::release_lease(ctx, &body).await })
    });
    answer.await?;
    Ok(json!({ "released": true }))
}

async fn record_verification(
    call: ToolInvocation,
    body: RecordVerificationArgs,
) -> Result<Value, ToolError> {
    let (token, role) = (call.agent.token, call.agent.role.as_str());
    let answer = call.app.mutate(&call.request, |ctx| {
        Box::pin(async move {
            let RecordVerificationArgs { task_id, unit, status, findings } = body;
            let id =
                reports::record_verification(ctx, token, role, task_id, unit, status, findings)
                    .await?;
            Ok(json!({ "verification_id": id }))
        })
    });
    answer_value(&answer.await?)
}
