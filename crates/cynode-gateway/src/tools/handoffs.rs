//! `handoff.*` and `think.*`: the programs of the project manager and analysts claim and answer handoffs. The work
//! itself uses the token of each handoff.

use cynode_app::{
    Error, OperationFuture,
    identity::service_tokens,
    manager::handoffs::{self, ClaimWait, HandoffHost},
};
use cynode_core::{agents::ToolScope, tools::ToolAnnotations};
use cynode_policy::{catalogue::IdBinding, reasons::RefusalReason};
use cynode_wire::manager::handoffs::{
    BeginDecision, ClaimHandoff, CompleteHandoff, DelegateHandoff, FailHandoff, RecordDecision,
    RecordPlanning, RenewHandoff,
};
use serde_json::{Value, json};

use super::{NativeTool, ToolError, ToolInvocation, ToolSpec, answer_value};

/// Tool that waits for a handoff and claims it.
pub(super) const CLAIM_TOOL_NAME: &str = "handoff.claim";

pub(super) fn handoff_tools() -> Vec<NativeTool> {
    let about = |name, title, description| ToolSpec {
        name,
        title,
        description,
        scope: ToolScope::Pm,
        binding: IdBinding::NONE,
        annotations: ToolAnnotations::IDEMPOTENT_WRITE,
    };
    vec![
        about(
            CLAIM_TOOL_NAME,
            "Take a handoff",
            "Gives work for the role of the caller, with a token for tools and models.",
        )
        .with_handler(claim_handoff),
        about("handoff.keep", "Keep a handoff", "Says that a handoff is still worked on.")
            .with_handler(renew_handoff),
        about("handoff.complete", "Answer a handoff", "Ends a handoff with its answer, once.")
            .with_handler(complete_handoff),
        about(
            "handoff.fail",
            "Give a handoff back",
            "Says that a handoff came to nothing, and whether that may pass.",
        )
        .with_handler(fail_handoff),
        about(
            "handoff.delegate",
            "Ask an analyst",
            "Gives an analyst its share of a judgement; the handoff comes back with its findings.",
        )
        .with_handler(delegate_handoff),
        about(
            "think.begin",
            "Begin a decision",
            "Says that a model is about to be asked; while the task is paused, the handoff goes back instead.",
        )
        .with_handler(begin_think_call),
        about(
            "think.record",
            "Record a decision",
            "Keeps a decision that a model was asked for, before it is used.",
        )
        .with_handler(record_think_call),
        about(
            "think.trace",
            "Record planning",
            "Keeps what happens while a plan is made, when it happens.",
        )
        .with_handler(record_planning),
    ]
}

/// Returns the calling program.
fn calling_host(call: &ToolInvocation) -> Result<HandoffHost, ToolError> {
    let name = call.service.clone().unwrap_or_default();
    Ok(HandoffHost::new(name, call.agent.role)?)
}

async fn claim_handoff(call: ToolInvocation, body: ClaimHandoff) -> Result<Value, ToolError> {
    let host = calling_host(&call)?;
    let permit = &call.permit;
    let permitted = move || -> OperationFuture<'_, ()> {
        Box::pin(async move {
            match permit.check_permitted().await {
                Ok(()) => Ok(()),
                Err(RefusalReason::StalePolicy) => Err(Error::Overloaded),
                Err(_) => Err(Error::Unauthenticated),
            }
        })
    };
    let waiting = ClaimWait { gone: &call.gone, permitted: &permitted };
    let kind = host.service_kind();
    service_tokens::record_presence(&call.app, kind, &host.name).await;
    let claimed = handoffs::claim_handoff(&call.app, &call.request, &host, &body, waiting).await;
    if call.gone.is_cancelled() {
        service_tokens::record_departure(&call.app, kind, &host.name).await;
    }
    Ok(json!(claimed?))
}

async fn renew_handoff(call: ToolInvocation, body: RenewHandoff) -> Result<Value, ToolError> {
    let host = calling_host(&call)?;
    // A busy program claims no further handoff, so the renewal records its presence.
    service_tokens::record_presence(&call.app, host.service_kind(), &host.name).await;
    let answer = call.app.mutate(&call.request, |ctx| {
        Box::pin(async move {
            let until = handoffs::renew_claim(ctx, &host, &body).await?;
            let until = until.format(&time::format_description::well_known::Rfc3339);
            Ok(json!({ "expires_at": until.unwrap_or_default() }))
        })
    });
    answer_value(&answer.await?)
}

async fn complete_handoff(call: ToolInvocation, body: CompleteHandoff) -> Result<Value, ToolError> {
    let host = calling_host(&call)?;
    let state = handoffs::complete_handoff(&call.app, &call.request, &host, &body).await?;
    Ok(json!({ "state": state }))
}

async fn fail_handoff(call: ToolInvocation, body: FailHandoff) -> Result<Value, ToolError> {
    let host = calling_host(&call)?;
    let state = handoffs::fail_handoff(&call.app, &call.request, &host, &body).await?;
    Ok(json!({ "state": state }))
}

async fn delegate_handoff(call: ToolInvocation, body: DelegateHandoff) -> Result<Value, ToolError> {
    let host = calling_host(&call)?;
    let answer = call.app.mutate(&call.request, |ctx| {
        Box::pin(async move {
            let id = handoffs::delegate_handoff(ctx, &host, &body).await?;
            Ok(json!({ "handoff_id": id }))
        })
    });
    answer_value(&answer.await?)
}

async fn begin_think_call(call: ToolInvocation, body: BeginDecision) -> Result<Value, ToolError> {
    let host = calling_host(&call)?;
    let answer = call.app.mutate(&call.request, |ctx| {
        Box::pin(async move { handoffs::begin_think_call(ctx, &host, &body).await })
    });
    answer_value(&answer.await?)
}

async fn record_think_call(call: ToolInvocation, body: RecordDecision) -> Result<Value, ToolError> {
    let host = calling_host(&call)?;
    handoffs::record_think_call(&call.app, &call.request, &host, body).await?;
    Ok(json!({ "kept": true }))
}

async fn record_planning(call: ToolInvocation, body: RecordPlanning) -> Result<Value, ToolError> {
    let host = calling_host(&call)?;
    handoffs::record_planning(&call.app, &call.request, &host, body).await?;
    Ok(json!({ "kept": true }))
}
