//! Nodes: for people on the user-facing port, for nodes themselves on the internal one.

use axum::{body::Body, http::StatusCode};
use cynode_app::nodes;
use cynode_core::{
    ids::{JobId, NodeId},
    nodes::NodeReport,
};
use cynode_wire::{
    nodes::{
        AskChallenge, AskNodeToken, AskPermission, ChangeNode, ClaimAssignments, EventsReceipt,
        HeartbeatAnswer, IssueJoinToken, IssuedJoinToken, JobAssignments, JobEventView, JobEvents,
        JoinNode, JoinedNode, NodeChallenge, NodeHeartbeat, NodeResult, NodeToken, NodeView,
        PermissionAnswer, StoredBlob, VerifiedNode, VerifyNode,
    },
    workflow::jobs::JobStatusView,
};
use serde::Deserialize;

use super::tools::UnpagedList;
use crate::{
    error::ApiError,
    extract::{
        AnonymousCall, AuthenticatedCall, Json, MutationCall, MutationResponse, NodeCall,
        NodeHeartbeatCall, NodeMessage, Path, Query,
    },
};

/// Let one machine join as a node. The token is shown once.
#[utoipa::path(post, path = "/v1/nodes/join-tokens", tag = "nodes", request_body = IssueJoinToken,
    responses((status = CREATED, body = IssuedJoinToken)))]
pub(crate) async fn issue_join_token(
    call: MutationCall<IssueJoinToken>,
) -> Result<MutationResponse, ApiError> {
    let MutationCall { app, request, body } = call;
    let issued = app.run_secret_mutation(&request, |ctx| {
        Box::pin(async move { nodes::issue_join_token(ctx, body).await })
    });
    Ok(MutationResponse(StatusCode::CREATED, issued.await?))
}

/// The nodes, by name.
#[utoipa::path(get, path = "/v1/nodes", tag = "nodes", responses((status = OK, body = UnpagedList<NodeView>)))]
pub(crate) async fn list_nodes(
    call: AuthenticatedCall,
) -> Result<Json<UnpagedList<NodeView>>, ApiError> {
    let found = call.app.read(&call.request, |ctx| Box::pin(nodes::list_nodes(ctx)));
    Ok(Json(UnpagedList::new(found.await?)))
}

/// One node.
#[utoipa::path(get, path = "/v1/nodes/{node}", tag = "nodes", params(("node" = String, Path)),
    responses((status = OK, body = NodeView)))]
pub(crate) async fn get_node(
    Path(node): Path<NodeId>,
    call: AuthenticatedCall,
) -> Result<Json<NodeView>, ApiError> {
    let found = call.app.read(&call.request, |ctx| Box::pin(nodes::get_node(ctx, node)));
    Ok(Json(found.await?))
}

/// Let a node end what it has and get no more, give it jobs again, or give it other labels.
#[utoipa::path(patch, path = "/v1/nodes/{node}", tag = "nodes", params(("node" = String, Path)),
    request_body = ChangeNode, responses((status = OK, body = NodeView)))]
pub(crate) async fn update_node(
    Path(node): Path<NodeId>,
    call: MutationCall<ChangeNode>,
) -> Result<MutationResponse, ApiError> {
    let MutationCall { app, request, body } = call;
    let changed = app
        .mutate(&request, |ctx| Box::pin(async move { nodes::update_node(ctx, node, body).await }));
    Ok(MutationResponse(StatusCode::OK, changed.await?))
}

/// Remove a node: it is not ours any more.
#[utoipa::path(delete, path = "/v1/nodes/{node}", tag = "nodes", params(("node" = String, Path)),
    responses((status = NO_CONTENT)))]
pub(crate) async fn delete_node(
    Path(node): Path<NodeId>,
    call: MutationCall<()>,
) -> Result<MutationResponse, ApiError> {
    let done = call
        .app
        .mutate(&call.request, |ctx| Box::pin(async move { nodes::remove_node(ctx, node).await }));
    Ok(MutationResponse(StatusCode::NO_CONTENT, done.await?))
}

/// Which events are wanted.
#[derive(Clone, Copy, Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct FromQuery {
    /// The number of the first one; 0 when it is left out.
    from: Option<u64>,
    /// Most events, 1 to 500; 200 when it is left out.
    #[param(minimum = 1, maximum = 500)]
    limit: Option<u16>,
}

/// What happened in a job, in order: what its agent said and did, what programs wrote.
#[utoipa::path(get, path = "/v1/jobs/{job}/events", tag = "nodes", params(("job" = String, Path), FromQuery),
    responses((status = OK, body = UnpagedList<JobEventView>)))]
pub(crate) async fn job_events(
    Path(job): Path<JobId>,
    Query(query): Query<FromQuery>,
    call: AuthenticatedCall,
) -> Result<Json<UnpagedList<JobEventView>>, ApiError> {
    let (from, most) = (query.from.unwrap_or(0), query.limit.unwrap_or(200));
    if !(1..=500).contains(&most) {
        return Err(ApiError::Malformed("`limit` is 1 to 500".into()));
    }
    let found =
        call.app.read(&call.request, |ctx| Box::pin(nodes::list_job_events(ctx, job, from, most)));
    let shown = found.await?.into_iter().map(|told| JobEventView {
        number: u64::try_from(told.number).unwrap_or_default(),
        at: told.recorded_at,
        at_ms: u64::try_from(told.elapsed_ms).unwrap_or_default(),
        event: told.event,
        data: told.data,
    });
    Ok(Json(UnpagedList::new(shown.collect())))
}

/// Become a node, with a one-time token. With the same token and key it may be asked again.
#[utoipa::path(post, path = "/v1/nodes/join", tag = "nodes", request_body = JoinNode,
    responses((status = OK, body = JoinedNode)))]
pub(crate) async fn join(call: AnonymousCall<JoinNode>) -> Result<Json<JoinedNode>, ApiError> {
    Ok(Json(nodes::join_node(&call.app, &call.request, call.body).await?))
}

/// Get something to sign.
#[utoipa::path(post, path = "/v1/nodes/challenge", tag = "nodes", request_body = AskChallenge,
    responses((status = OK, body = NodeChallenge)))]
pub(crate) async fn challenge(
    call: AnonymousCall<AskChallenge>,
) -> Result<Json<NodeChallenge>, ApiError> {
    Ok(Json(nodes::create_challenge(&call.app, &call.body)?))
}

/// Get a short-lived token for a signed challenge.
#[utoipa::path(post, path = "/v1/nodes/token", tag = "nodes", request_body = AskNodeToken,
    responses((status = OK, body = NodeToken)))]
pub(crate) async fn token(call: AnonymousCall<AskNodeToken>) -> Result<Json<NodeToken>, ApiError> {
    Ok(Json(nodes::issue_node_token(&call.app, &call.request, &call.body).await?))
}

/// Look whether a signed challenge is good, without a token: nothing is taken from the node's process.
#[utoipa::path(post, path = "/v1/nodes/verify", tag = "nodes", request_body = VerifyNode,
    responses((status = OK, body = VerifiedNode)))]
pub(crate) async fn verify(
    call: AnonymousCall<VerifyNode>,
) -> Result<Json<VerifiedNode>, ApiError> {
    Ok(Json(nodes::verify_node(&call.app, &call.request, &call.body).await?))
}

/// Say what the node can do, as it measured.
#[utoipa::path(post, path = "/v1/nodes/report", tag = "nodes", request_body = NodeReport,
    responses((status = OK, body = NodeView)))]
pub(crate) async fn report(call: NodeMessage<NodeReport>) -> Result<Json<NodeView>, ApiError> {
    Ok(Json(nodes::update_node_report(&call.app, call.node, call.body).await?))
}

/// Take the jobs that were placed on the node; wait for some if there are none.
#[utoipa::path(post, path = "/v1/nodes/claim", tag = "nodes", request_body = ClaimAssignments,
    responses((status = OK, body = JobAssignments)))]
pub(crate) async fn claim(
    call: NodeMessage<ClaimAssignments>,
) -> Result<Json<JobAssignments>, ApiError> {
    Ok(Json(nodes::claim_assignments(&call.app, &call.request, call.node, &call.body).await?))
}

/// Say what the node is at: one message for all its jobs.
#[utoipa::path(post, path = "/v1/nodes/heartbeat", tag = "nodes", request_body = NodeHeartbeat,
    responses((status = OK, body = HeartbeatAnswer)))]
pub(crate) async fn heartbeat(call: NodeHeartbeatCall) -> Result<Json<HeartbeatAnswer>, ApiError> {
    Ok(Json(nodes::record_heartbeat(&call.app, call.node, &call.body).await?))
}

/// Tell what happened in a job.
#[utoipa::path(post, path = "/v1/nodes/jobs/{job}/events", tag = "nodes", params(("job" = String, Path)),
    request_body = JobEvents, responses((status = OK, body = EventsReceipt)))]
pub(crate) async fn tell(
    Path(job): Path<JobId>,
    call: NodeMessage<JobEvents>,
) -> Result<Json<EventsReceipt>, ApiError> {
    Ok(Json(nodes::store_job_events(&call.app, call.node, job, call.body).await?))
}

/// Ask a person whether an agent may do something.
#[utoipa::path(post, path = "/v1/nodes/jobs/{job}/permission", tag = "nodes", params(("job" = String, Path)),
    request_body = AskPermission, responses((status = OK, body = PermissionAnswer)))]
pub(crate) async fn ask_permission(
    Path(job): Path<JobId>,
    call: NodeMessage<AskPermission>,
) -> Result<Json<PermissionAnswer>, ApiError> {
    let NodeMessage { app, request, node, body } = call;
    Ok(Json(nodes::ask_permission(&app, &request, node, job, &body).await?))
}

/// Under which claim bytes are stored.
#[derive(Clone, Copy, Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct ClaimQuery {
    /// The token of the claim.
    fencing_token: i64,
}

/// Store bytes of a job under their SHA-256.
#[utoipa::path(put, path = "/v1/nodes/jobs/{job}/blobs/{sha256}", tag = "nodes",
    params(("job" = String, Path), ("sha256" = String, Path), ClaimQuery),
    request_body(content = Vec<u8>, content_type = "application/octet-stream"),
    responses((status = OK, body = StoredBlob)))]
pub(crate) async fn store_blob(
    call: NodeCall,
    Path((job, sha256)): Path<(JobId, String)>,
    Query(query): Query<ClaimQuery>,
    body: Body,
) -> Result<Json<StoredBlob>, ApiError> {
    let (bytes, token) = (body.into_data_stream(), query.fencing_token);
    Ok(Json(nodes::store_blob(&call.app, call.node, job, token, &sha256, bytes).await?))
}

/// Report what came of a job.
#[utoipa::path(post, path = "/v1/nodes/jobs/{job}/result", tag = "nodes", params(("job" = String, Path)),
    request_body = NodeResult, responses((status = OK, body = JobStatusView)))]
pub(crate) async fn result(
    Path(job): Path<JobId>,
    call: NodeMessage<NodeResult>,
) -> Result<Json<JobStatusView>, ApiError> {
    Ok(Json(nodes::store_job_result(&call.app, call.node, job, call.body).await?))
}
