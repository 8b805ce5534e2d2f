//! Nodes: for people on the user-facing port, for nodes themselves on the internal one.

use axum::{body::Body, http::StatusCode};
use cynode_app::nodes;
use cynode_core::ids::{JobId, NodeId};
use cynode_wire::{
    jobs::JobStanding,
    nodes::{
        AskChallenge, AskNodeToken, AskPermission, Assignments, ChangeNode, ClaimAssignments,
        EventsStored, Heartbeat, HeartbeatAnswer, IssueJoinToken, IssuedJoinToken, JobEventView,
        JobEvents, JoinNode, JoinedNode, NodeChallenge, NodeReport, NodeResult, NodeToken,
        NodeView, Permission, StoredBlob,
    },
};
use serde::Deserialize;

use super::gate::Whole;
use crate::{
    error::ApiError,
    extract::{Anonymous, Answered, Call, Json, Mutation, NodeCall, NodeSays, Path, Query},
};

/// Let one machine join as a node. The token is shown once.
#[utoipa::path(post, path = "/v1/nodes/join-tokens", tag = "nodes", request_body = IssueJoinToken,
    responses((status = CREATED, body = IssuedJoinToken)))]
pub(crate) async fn issue_join_token(call: Mutation<IssueJoinToken>) -> Result<Answered, ApiError> {
    let Mutation { app, request, body } = call;
    let issued = app.mutate_secret(&request, |ctx| {
        Box::pin(async move { nodes::issue_join_token(ctx, body).await })
    });
    Ok(Answered(StatusCode::CREATED, issued.await?))
}

/// The nodes, by name.
#[utoipa::path(get, path = "/v1/nodes", tag = "nodes", responses((status = OK, body = Whole<NodeView>)))]
pub(crate) async fn list_nodes(call: Call) -> Result<Json<Whole<NodeView>>, ApiError> {
    let found = call.app.read(&call.request, |ctx| Box::pin(nodes::list(ctx)));
    Ok(Json(Whole::new(found.await?)))
}

/// One node.
#[utoipa::path(get, path = "/v1/nodes/{node}", tag = "nodes", params(("node" = String, Path)),
    responses((status = OK, body = NodeView)))]
pub(crate) async fn get_node(
    Path(node): Path<NodeId>,
    call: Call,
) -> Result<Json<NodeView>, ApiError> {
    let found = call.app.read(&call.request, |ctx| Box::pin(nodes::get(ctx, node)));
    Ok(Json(found.await?))
}

/// Let a node end what it has and get no more, give it jobs again, or give it other labels.
#[utoipa::path(patch, path = "/v1/nodes/{node}", tag = "nodes", params(("node" = String, Path)),
    request_body = ChangeNode, responses((status = OK, body = NodeView)))]
pub(crate) async fn change_node(
    Path(node): Path<NodeId>,
    call: Mutation<ChangeNode>,
) -> Result<Answered, ApiError> {
    let Mutation { app, request, body } = call;
    let changed =
        app.mutate(&request, |ctx| Box::pin(async move { nodes::change(ctx, node, body).await }));
    Ok(Answered(StatusCode::OK, changed.await?))
}

/// Remove a node: it is not ours any more.
#[utoipa::path(delete, path = "/v1/nodes/{node}", tag = "nodes", params(("node" = String, Path)),
    responses((status = NO_CONTENT)))]
pub(crate) async fn remove_node(
    Path(node): Path<NodeId>,
    call: Mutation<()>,
) -> Result<Answered, ApiError> {
    let done = call
        .app
        .mutate(&call.request, |ctx| Box::pin(async move { nodes::remove(ctx, node).await }));
    Ok(Answered(StatusCode::NO_CONTENT, done.await?))
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
    responses((status = OK, body = Whole<JobEventView>)))]
pub(crate) async fn job_events(
    Path(job): Path<JobId>,
    Query(query): Query<FromQuery>,
    call: Call,
) -> Result<Json<Whole<JobEventView>>, ApiError> {
    let (from, most) = (query.from.unwrap_or(0), query.limit.unwrap_or(200));
    if !(1..=500).contains(&most) {
        return Err(ApiError::Malformed("`limit` is 1 to 500".into()));
    }
    let found = call.app.read(&call.request, |ctx| Box::pin(nodes::events(ctx, job, from, most)));
    let shown = found.await?.into_iter().map(|told| JobEventView {
        number: u64::try_from(told.number).unwrap_or_default(),
        at: told.at,
        at_ms: u64::try_from(told.at_ms).unwrap_or_default(),
        event: told.event,
        data: told.data,
    });
    Ok(Json(Whole::new(shown.collect())))
}

/// Become a node, with a one-time token. With the same token and key it may be asked again.
#[utoipa::path(post, path = "/v1/nodes/join", tag = "nodes", request_body = JoinNode,
    responses((status = OK, body = JoinedNode)))]
pub(crate) async fn join(call: Anonymous<JoinNode>) -> Result<Json<JoinedNode>, ApiError> {
    Ok(Json(nodes::join(&call.app, &call.request, call.body).await?))
}

/// Get something to sign.
#[utoipa::path(post, path = "/v1/nodes/challenge", tag = "nodes", request_body = AskChallenge,
    responses((status = OK, body = NodeChallenge)))]
pub(crate) async fn challenge(
    call: Anonymous<AskChallenge>,
) -> Result<Json<NodeChallenge>, ApiError> {
    Ok(Json(nodes::challenge(&call.app, &call.body)?))
}

/// Get a short-lived token for a signed challenge.
#[utoipa::path(post, path = "/v1/nodes/token", tag = "nodes", request_body = AskNodeToken,
    responses((status = OK, body = NodeToken)))]
pub(crate) async fn token(call: Anonymous<AskNodeToken>) -> Result<Json<NodeToken>, ApiError> {
    Ok(Json(nodes::token(&call.app, &call.request, &call.body).await?))
}

/// Say what the node can do, as it measured.
#[utoipa::path(post, path = "/v1/nodes/report", tag = "nodes", request_body = NodeReport,
    responses((status = OK, body = NodeView)))]
pub(crate) async fn report(call: NodeSays<NodeReport>) -> Result<Json<NodeView>, ApiError> {
    Ok(Json(nodes::report(&call.app, call.node, call.body).await?))
}

/// Take the jobs that were placed on the node; wait for some if there are none.
#[utoipa::path(post, path = "/v1/nodes/claim", tag = "nodes", request_body = ClaimAssignments,
    responses((status = OK, body = Assignments)))]
pub(crate) async fn claim(call: NodeSays<ClaimAssignments>) -> Result<Json<Assignments>, ApiError> {
    Ok(Json(nodes::claim(&call.app, &call.request, call.node, &call.body).await?))
}

/// Say what the node is at: one message for all its jobs.
#[utoipa::path(post, path = "/v1/nodes/heartbeat", tag = "nodes", request_body = Heartbeat,
    responses((status = OK, body = HeartbeatAnswer)))]
pub(crate) async fn heartbeat(
    call: NodeSays<Heartbeat>,
) -> Result<Json<HeartbeatAnswer>, ApiError> {
    Ok(Json(nodes::heartbeat(&call.app, call.node, &call.body).await?))
}

/// Tell what happened in a job.
#[utoipa::path(post, path = "/v1/nodes/jobs/{job}/events", tag = "nodes", params(("job" = String, Path)),
    request_body = JobEvents, responses((status = OK, body = EventsStored)))]
pub(crate) async fn tell(
    Path(job): Path<JobId>,
    call: NodeSays<JobEvents>,
) -> Result<Json<EventsStored>, ApiError> {
    Ok(Json(nodes::tell(&call.app, call.node, job, call.body).await?))
}

/// Ask a person whether an agent may do something.
#[utoipa::path(post, path = "/v1/nodes/jobs/{job}/permission", tag = "nodes", params(("job" = String, Path)),
    request_body = AskPermission, responses((status = OK, body = Permission)))]
pub(crate) async fn ask_permission(
    Path(job): Path<JobId>,
    call: NodeSays<AskPermission>,
) -> Result<Json<Permission>, ApiError> {
    let NodeSays { app, request, node, body } = call;
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
    request_body = NodeResult, responses((status = OK, body = JobStanding)))]
pub(crate) async fn result(
    Path(job): Path<JobId>,
    call: NodeSays<NodeResult>,
) -> Result<Json<JobStanding>, ApiError> {
    Ok(Json(nodes::result(&call.app, call.node, job, call.body).await?))
}
