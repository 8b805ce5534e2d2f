//! `handoff.*` and `think.*`: how the programs in which the project manager and analysts run take work and bring it back.
//! What the work itself needs is called with the token of each handoff, as any agent's.

use cynode_app::handoffs::{self, Host};
use cynode_core::agents::ToolScope;
use cynode_policy::catalogue::{Annotations, Binding};
use cynode_wire::handoffs::{
    BeginThought, ClaimHandoff, CompleteHandoff, DelegateHandoff, FailHandoff, KeepHandoff,
    RecordThought,
};
use serde_json::{Value, json};

use super::{About, Invocation, Native, ToolError, value};

pub(super) fn tools() -> Vec<Native> {
    let about = |name, title, description| About {
        name,
        title,
        description,
        scope: ToolScope::Pm,
        binding: Binding::NONE,
        annotations: Annotations::WRITES,
    };
    vec![
        about(
            "handoff.claim",
            "Take a handoff",
            "Gives work for the role of the caller, with a token for tools and models.",
        )
        .does(claim),
        about("handoff.keep", "Keep a handoff", "Says that a handoff is still worked on.")
            .does(keep),
        about("handoff.complete", "Answer a handoff", "Ends a handoff with its answer, once.")
            .does(complete),
        about(
            "handoff.fail",
            "Give a handoff back",
            "Says that a handoff came to nothing, and whether that may pass.",
        )
        .does(fail),
        about(
            "handoff.delegate",
            "Ask an analyst",
            "Gives an analyst its share of a judgement; the handoff comes back with its findings.",
        )
        .does(delegate),
        about(
            "think.begin",
            "Begin a thought",
            "Says that a model is about to be asked; while the task is paused, the handoff goes back instead.",
        )
        .does(begin_thought),
        about(
            "think.record",
            "Keep a thought",
            "Keeps a decision that a model was asked for, before it is used.",
        )
        .does(think),
    ]
}

/// The program that calls.
fn host(call: &Invocation) -> Result<Host, ToolError> {
    let name = call.service.clone().unwrap_or_default();
    Ok(Host::new(name, call.agent.role)?)
}

async fn claim(call: Invocation, body: ClaimHandoff) -> Result<Value, ToolError> {
    let host = host(&call)?;
    Ok(json!(handoffs::claim(&call.app, &call.request, &host, &body, &call.gone).await?))
}

async fn keep(call: Invocation, body: KeepHandoff) -> Result<Value, ToolError> {
    let host = host(&call)?;
    let answer = call.app.mutate(&call.request, |ctx| {
        Box::pin(async move {
            let until = handoffs::keep(ctx, &host, &body).await?;
            let until = until.format(&time::format_description::well_known::Rfc3339);
            Ok(json!({ "expires_at": until.unwrap_or_default() }))
        })
    });
    value(&answer.await?)
}

async fn complete(call: Invocation, body: CompleteHandoff) -> Result<Value, ToolError> {
    let host = host(&call)?;
    let state = handoffs::complete(&call.app, &call.request, &host, &body).await?;
    Ok(json!({ "state": state }))
}

async fn fail(call: Invocation, body: FailHandoff) -> Result<Value, ToolError> {
    let host = host(&call)?;
    let state = handoffs::fail(&call.app, &call.request, &host, &body).await?;
    Ok(json!({ "state": state }))
}

async fn delegate(call: Invocation, body: DelegateHandoff) -> Result<Value, ToolError> {
    let host = host(&call)?;
    let answer = call.app.mutate(&call.request, |ctx| {
        Box::pin(async move {
            let id = handoffs::delegate(ctx, &host, &body).await?;
            Ok(json!({ "handoff_id": id }))
        })
    });
    value(&answer.await?)
}

async fn begin_thought(call: Invocation, body: BeginThought) -> Result<Value, ToolError> {
    let host = host(&call)?;
    let answer = call.app.mutate(&call.request, |ctx| {
        Box::pin(async move { handoffs::begin_thought(ctx, &host, &body).await })
    });
    value(&answer.await?)
}

async fn think(call: Invocation, body: RecordThought) -> Result<Value, ToolError> {
    let host = host(&call)?;
    handoffs::think(&call.app, &call.request, &host, body).await?;
    Ok(json!({ "kept": true }))
}
