//! `workflow.*` and `verification.record`: how tasks are driven. The program that drives them comes through the same gate as
//! everybody; under the lease its word counts, without it nobody's does.

use cynode_app::{reports, workflow};
use cynode_core::{
    agents::{AgentKind, ToolScope},
    ids::TaskId,
};
use cynode_policy::catalogue::{Annotations, Binding};
use cynode_wire::workflow::{
    Checkpoint, Finding, LeaseRef, RenewLease, ResumeWorkflow, StartWorkflow, VerificationStatus,
};
use serde::Deserialize;
use serde_json::{Value, json};
use utoipa::ToSchema;

use super::{About, Invocation, Native, ToolError, value};

/// Starts the workflow of a task. The program that drives tasks takes the lease; the project manager asks for it to be driven.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct Start {
    /// The task.
    #[schema(value_type = String)]
    task_id: TaskId,
    /// The name of the runner; only a runner gives it.
    holder: Option<String>,
    /// Names this attempt at driving; only a runner gives it.
    idempotency_key: Option<String>,
    /// The process; only a runner gives it.
    instance: Option<String>,
    /// How long the lease lasts, 1 to 3600; only a runner gives it.
    expires_in_seconds: Option<u32>,
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct StoreStep {
    /// The task.
    #[schema(value_type = String)]
    task_id: TaskId,
    /// What a node did.
    checkpoint: Checkpoint,
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct Record {
    /// The task.
    #[schema(value_type = String)]
    task_id: TaskId,
    /// The unit of the plan that was judged.
    unit: Option<String>,
    /// Whether it was judged good.
    status: VerificationStatus,
    /// What was found.
    #[serde(default)]
    findings: Vec<Finding>,
}

pub(super) fn tools() -> Vec<Native> {
    let about = |name, title, description, annotations| About {
        name,
        title,
        description,
        scope: ToolScope::Pm,
        binding: Binding::TASK,
        annotations,
    };
    vec![
        about(
            "workflow.start",
            "Start a task's workflow",
            "Asks for a task to be driven; a runner takes its lease.",
            Annotations::WRITES,
        )
        .does(start),
        about(
            "workflow.resume",
            "Where a run stands",
            "Where the run of a task stands and what its next node needs.",
            Annotations::READS,
        )
        .does(resume),
        about(
            "workflow.checkpoint",
            "Store a step",
            "Stores what a node did: state, history and effects together, under the lease.",
            Annotations::WRITES,
        )
        .does(checkpoint),
        about("workflow.renew", "Keep a lease", "Gives a lease more time.", Annotations::WRITES)
            .does(renew),
        about(
            "workflow.release",
            "Give a lease back",
            "Gives a lease back before it ends.",
            Annotations::WRITES,
        )
        .does(release),
        about(
            "verification.record",
            "Record a judgement",
            "Records whether a task's work was found good, and what was found.",
            Annotations::ADDS,
        )
        .does(record),
    ]
}

async fn start(call: Invocation, body: Start) -> Result<Value, ToolError> {
    if call.agent.kind() != AgentKind::Runner {
        // Who drives is a matter of the token: whoever may only ask must not seem to be taken for a runner.
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
            return Err(ToolError::invalid(told));
        }
        let task = body.task_id;
        let answer = call.app.mutate(&call.request, |ctx| {
            Box::pin(async move {
                let task = workflow::request(ctx, task).await?;
                Ok(json!({ "task_id": task.id, "requested": true }))
            })
        });
        return value(&answer.await?);
    }
    let (Some(holder), Some(idempotency_key)) = (body.holder, body.idempotency_key) else {
        return Err(ToolError::invalid("a runner gives `holder` and `idempotency_key`"));
    };
    let Start { task_id, instance, expires_in_seconds, .. } = body;
    let start = StartWorkflow { task_id, holder, idempotency_key, instance, expires_in_seconds };
    value(&workflow::start(&call.app, &call.request, &start).await?)
}

async fn resume(call: Invocation, body: ResumeWorkflow) -> Result<Value, ToolError> {
    Ok(json!(workflow::resume(&call.app, &call.request, &body).await?))
}

async fn checkpoint(call: Invocation, body: StoreStep) -> Result<Value, ToolError> {
    if body.checkpoint.lease.task_id != body.task_id {
        return Err(ToolError::invalid("the lease is of another task"));
    }
    value(&workflow::checkpoint(&call.app, &call.request, body.checkpoint).await?)
}

async fn renew(call: Invocation, body: RenewLease) -> Result<Value, ToolError> {
    let answer = call
        .app
        .mutate(&call.request, |ctx| Box::pin(async move { workflow::renew(ctx, &body).await }));
    value(&answer.await?)
}

async fn release(call: Invocation, body: LeaseRef) -> Result<Value, ToolError> {
    let answer = call
        .app
        .mutate(&call.request, |ctx| Box::pin(async move { workflow::release(ctx, &body).await }));
    answer.await?;
    Ok(json!({ "released": true }))
}

async fn record(call: Invocation, body: Record) -> Result<Value, ToolError> {
    let (token, role) = (call.agent.token, call.agent.role.as_str());
    let answer = call.app.mutate(&call.request, |ctx| {
        Box::pin(async move {
            let Record { task_id, unit, status, findings } = body;
            let id = reports::verify(ctx, token, role, task_id, unit, status, findings).await?;
            Ok(json!({ "verification_id": id }))
        })
    });
    value(&answer.await?)
}
