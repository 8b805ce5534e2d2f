//! Nodes: for people on the user-facing port, for nodes themselves on the internal port.

use std::{convert::Infallible, time::Duration};

use axum::{
    body::Body,
    extract::State,
    http::{HeaderMap, HeaderValue, StatusCode},
    response::sse::{Event, KeepAlive, Sse},
};
use cynode_app::{
    Error,
    nodes::{self, JobLogItem},
};
use cynode_core::{
    ids::{JobId, NodeId},
    nodes::NodeReport,
};
use cynode_wire::{
    nodes::{
        AskCertificate, AskChallenge, AskNodeToken, AskPermission, ChangeNode, ClaimAssignments,
        EventsReceipt, HeartbeatAnswer, IssueJoinToken, IssuedJoinToken, JobAssignments,
        JobEventView, JobEvents, JoinNode, JoinedNode, NodeCertificate, NodeChallenge,
        NodeHeartbeat, NodeResult, NodeToken, NodeView, PermissionAnswer, StoredBlob, VerifiedNode,
        VerifyNode,
    },
    tasks::events::{JOB_ENDED_KIND, JOB_EVENT_KIND, STREAM_FAILED_KIND},
    workflow::jobs::JobStatusView,
};
use futures::{Stream, StreamExt};
use serde::Deserialize;

use super::tools::UnpagedList;
use crate::{
    AppState,
    error::ApiError,
    extract::{
        AnonymousCall, AuthenticatedCall, Json, MutationCall, MutationResponse, NodeCall,
        NodeHeartbeatCall, NodeMessage, Path, Query, RequestSource,
    },
};

/// Interval of keep-alive comments in the log of a job.
const LOG_KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(15);

/// Creates a join token, with which one machine joins as a node. The token is shown once.
#[utoipa::path(post, path = "/v1/nodes/join-tokens", tag = "nodes", request_body = IssueJoinToken,
    responses((status = CREATED, body = IssuedJoinToken)))]
pub(crate) async fn issue_join_token(
    call: MutationCall<IssueJoinToken>,
) -> Result<MutationResponse, ApiError> {
    let MutationCall { app, request, body } = call;
    let own = app.clone();
    let issued = app.run_secret_mutation(&request, |ctx| {
        Box::pin(async move { nodes::issue_join_token(&own, ctx, body).await })
    });
    Ok(MutationResponse(StatusCode::CREATED, issued.await?))
}

/// Lists the nodes, by name.
#[utoipa::path(get, path = "/v1/nodes", tag = "nodes", responses((status = OK, body = UnpagedList<NodeView>)))]
pub(crate) async fn list_nodes(
    call: AuthenticatedCall,
) -> Result<Json<UnpagedList<NodeView>>, ApiError> {
    let found = call.app.read(&call.request, |ctx| nodes::list_nodes(ctx));
    Ok(Json(UnpagedList::new(found.await?)))
}

/// Returns one node.
#[utoipa::path(get, path = "/v1/nodes/{node}", tag = "nodes", params(("node" = String, Path)),
    responses((status = OK, body = NodeView)))]
pub(crate) async fn get_node(
    Path(node): Path<NodeId>,
    call: AuthenticatedCall,
) -> Result<Json<NodeView>, ApiError> {
    let found = call.app.read(&call.request, |ctx| nodes::get_node(ctx, node));
    Ok(Json(found.await?))
}

/// Updates a node: drains it, resumes it, or sets its labels. A draining node finishes its jobs and gets no new ones.
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

/// Deletes a node. Its credentials stop working.
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

/// Range of job events.
#[derive(Clone, Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct FromQuery {
    /// The number of the first event; 0 by default.
    from: Option<u64>,
    /// Maximum number of events, 1 to 500; 200 by default.
    #[param(minimum = 1, maximum = 500)]
    limit: Option<u16>,
    /// Only events with this text in them, in any case; 1 to 200 characters.
    #[param(min_length = 1, max_length = 200)]
    contains: Option<String>,
}

/// Lists the events of a job in order: messages and actions of its agent, and output of programs.
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
    let found = call
        .app
        .read(&call.request, |ctx| nodes::list_job_events(ctx, job, from, query.contains, most));
    let shown = found.await?.into_iter().map(to_job_event_view);
    Ok(Json(UnpagedList::new(shown.collect())))
}

fn to_job_event_view(record: nodes::JobEventRecord) -> JobEventView {
    JobEventView {
        number: u64::try_from(record.number).unwrap_or_default(),
        at: record.recorded_at,
        at_ms: u64::try_from(record.elapsed_ms).unwrap_or_default(),
        event: record.event,
        data: record.data,
        profile: record.profile,
        trace_id: record.trace_id,
    }
}

/// Start of a followed job log.
#[derive(Clone, Copy, Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct LogStartQuery {
    /// The number of the first event; 0 by default.
    from: Option<u64>,
}

/// Streams the events of a job as server-sent events of the kind `job.event`: those so far, then new ones. A client that reconnects with
/// `Last-Event-ID` misses nothing.
/// When the job has ended, the last event is `job.ended` with the state of the job. A failure ends the stream with the event
/// `stream.failed`, whose data is a problem. Neither has an id. The stream counts as an event stream of the account.
#[utoipa::path(get, path = "/v1/jobs/{job}/events/stream", tag = "nodes",
    params(("job" = String, Path), LogStartQuery, ("Last-Event-ID" = Option<String>, Header)),
    responses((status = OK, body = JobEventView, content_type = "text/event-stream")))]
pub(crate) async fn follow_job_events(
    State(state): State<AppState>,
    Path(job): Path<JobId>,
    call: AuthenticatedCall,
    RequestSource(source): RequestSource,
    headers: HeaderMap,
    Query(query): Query<LogStartQuery>,
) -> Result<Sse<impl Stream<Item = Result<Event, Infallible>>>, ApiError> {
    let from = match headers.get("last-event-id") {
        Some(last) => parse_last_number(last)?.saturating_add(1),
        None => query.from.unwrap_or(0),
    };
    call.app.read(&call.request, |ctx| nodes::authorize_job_log(ctx, job)).await?;
    let caller = call.request.caller.ok_or(Error::Unauthenticated)?;
    let permit = call.app.open_event_stream(caller.user, source)?;
    let log = nodes::follow_job_log(&call.app, call.shown, call.request.trace, job, from, permit)
        .take_until(state.stop.cancelled_owned())
        .filter_map(move |item| std::future::ready(to_log_event(job, item)));
    Ok(Sse::new(log.map(Ok)).keep_alive(KeepAlive::new().interval(LOG_KEEP_ALIVE_INTERVAL)))
}

fn parse_last_number(last: &HeaderValue) -> Result<u64, ApiError> {
    let number = last.to_str().ok().and_then(|text| text.parse().ok());
    number.ok_or_else(|| {
        let rule = "Last-Event-ID: send the last `id:` that you received, unchanged";
        ApiError::Malformed(rule.into())
    })
}

fn to_log_event(job: JobId, item: Result<JobLogItem, Error>) -> Option<Event> {
    match item {
        Ok(JobLogItem::Event(record)) => {
            let view = to_job_event_view(record);
            Event::default().id(view.number.to_string()).event(JOB_EVENT_KIND).json_data(&view)
        }
        Ok(JobLogItem::End(state)) => {
            Event::default().event(JOB_ENDED_KIND).json_data(JobStatusView { job_id: job, state })
        }
        Err(error) => {
            Event::default().event(STREAM_FAILED_KIND).json_data(ApiError::from(error).to_problem())
        }
    }
    .ok()
}

/// Joins as a node with a one-time token. The request may be repeated with the same token and key.
#[utoipa::path(post, path = "/v1/nodes/join", tag = "nodes", request_body = JoinNode,
    responses((status = OK, body = JoinedNode)))]
pub(crate) async fn join(call: AnonymousCall<JoinNode>) -> Result<Json<JoinedNode>, ApiError> {
    Ok(Json(nodes::join_node(&call.app, &call.request, call.body).await?))
}

/// Creates a challenge for the node to sign.
#[utoipa::path(post, path = "/v1/nodes/challenge", tag = "nodes", request_body = AskChallenge,
    responses((status = OK, body = NodeChallenge)))]
pub(crate) async fn challenge(
    call: AnonymousCall<AskChallenge>,
) -> Result<Json<NodeChallenge>, ApiError> {
    Ok(Json(nodes::create_challenge(&call.app, &call.body)?))
}

/// Issues a short-lived token for a signed challenge.
#[utoipa::path(post, path = "/v1/nodes/token", tag = "nodes", request_body = AskNodeToken,
    responses((status = OK, body = NodeToken)))]
pub(crate) async fn token(call: AnonymousCall<AskNodeToken>) -> Result<Json<NodeToken>, ApiError> {
    Ok(Json(nodes::issue_node_token(&call.app, &call.request, &call.body).await?))
}

/// Verifies a signed challenge without issuing a token, so the token of the node's running process stays valid.
#[utoipa::path(post, path = "/v1/nodes/verify", tag = "nodes", request_body = VerifyNode,
    responses((status = OK, body = VerifiedNode)))]
pub(crate) async fn verify(
    call: AnonymousCall<VerifyNode>,
) -> Result<Json<VerifiedNode>, ApiError> {
    Ok(Json(nodes::verify_node(&call.app, &call.request, &call.body).await?))
}

/// Issues a client certificate for a signed challenge. It needs no certificate, so that a node whose certificate has expired gets another.
#[utoipa::path(post, path = "/v1/nodes/certificate", tag = "nodes", request_body = AskCertificate,
    responses((status = OK, body = NodeCertificate)))]
pub(crate) async fn certificate(
    call: AnonymousCall<AskCertificate>,
) -> Result<Json<NodeCertificate>, ApiError> {
    Ok(Json(nodes::renew_certificate(&call.app, &call.request, &call.body).await?))
}

/// Reports the measured capabilities of the node.
#[utoipa::path(post, path = "/v1/nodes/report", tag = "nodes", request_body = NodeReport,
    responses((status = OK, body = NodeView)))]
pub(crate) async fn report(call: NodeMessage<NodeReport>) -> Result<Json<NodeView>, ApiError> {
    Ok(Json(nodes::update_node_report(&call.app, call.node, call.body).await?))
}

/// Returns the jobs that were assigned to the node. Waits for some if there are none.
#[utoipa::path(post, path = "/v1/nodes/claim", tag = "nodes", request_body = ClaimAssignments,
    responses((status = OK, body = JobAssignments)))]
pub(crate) async fn claim(
    call: NodeMessage<ClaimAssignments>,
) -> Result<Json<JobAssignments>, ApiError> {
    Ok(Json(nodes::claim_assignments(&call.app, &call.request, call.node, &call.body).await?))
}

/// Reports the state of all jobs of the node in one heartbeat.
#[utoipa::path(post, path = "/v1/nodes/heartbeat", tag = "nodes", request_body = NodeHeartbeat,
    responses((status = OK, body = HeartbeatAnswer)))]
pub(crate) async fn heartbeat(call: NodeHeartbeatCall) -> Result<Json<HeartbeatAnswer>, ApiError> {
    Ok(Json(nodes::record_heartbeat(&call.app, call.node, &call.body).await?))
}

/// Reports events of a job.
#[utoipa::path(post, path = "/v1/nodes/jobs/{job}/events", tag = "nodes", params(("job" = String, Path)),
    request_body = JobEvents, responses((status = OK, body = EventsReceipt)))]
pub(crate) async fn tell(
    Path(job): Path<JobId>,
    call: NodeMessage<JobEvents>,
) -> Result<Json<EventsReceipt>, ApiError> {
    Ok(Json(nodes::store_job_events(&call.app, call.node, job, call.body).await?))
}

/// Asks a person for permission for an action of an agent.
#[utoipa::path(post, path = "/v1/nodes/jobs/{job}/permission", tag = "nodes", params(("job" = String, Path)),
    request_body = AskPermission, responses((status = OK, body = PermissionAnswer)))]
pub(crate) async fn ask_permission(
    Path(job): Path<JobId>,
    call: NodeMessage<AskPermission>,
) -> Result<Json<PermissionAnswer>, ApiError> {
    let NodeMessage { app, request, node, body } = call;
    Ok(Json(nodes::ask_permission(&app, &request, node, job, &body).await?))
}

/// The claim under which an object is stored.
#[derive(Clone, Copy, Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct ClaimQuery {
    /// Fencing token of the claim.
    fencing_token: i64,
}

/// Stores an object of a job under its SHA-256.
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

/// Reports the result of a job.
#[utoipa::path(post, path = "/v1/nodes/jobs/{job}/result", tag = "nodes", params(("job" = String, Path)),
    request_body = NodeResult, responses((status = OK, body = JobStatusView)))]
pub(crate) async fn result(
    Path(job): Path<JobId>,
    call: NodeMessage<NodeResult>,
) -> Result<Json<JobStatusView>, ApiError> {
    Ok(Json(nodes::store_job_result(&call.app, call.node, job, call.body).await?))
}
