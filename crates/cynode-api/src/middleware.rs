//! Middleware of every request: trace, span, metrics, and problem+json for every failure.

use std::{any::Any, sync::Arc, time::Instant};

use axum::{
    body::Body,
    extract::{MatchedPath, Request, State},
    http::{HeaderMap, HeaderValue, Method, StatusCode, header},
    middleware::Next,
    response::{IntoResponse, Response},
};
use cynode_app::{App, Error, PeerCertificate};
use cynode_core::{
    metric_specs::{HTTP_REQUEST_DURATION, HTTP_REQUESTS},
    releases::{RELEASE_HEADER, Release, ReleaseSkew},
    trace::{TraceId, TraceParent},
};
use cynode_wire::platform::problem::{PROBLEM_JSON, ProblemDetails};
use opentelemetry::{
    Context,
    trace::{SpanContext, TraceContextExt, TraceFlags, TraceState},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tracing::{Instrument, Span};
use tracing_opentelemetry::OpenTelemetrySpanExt;

use crate::{
    AppState,
    error::{ApiError, problem_details, problem_response},
    problems::{self, ProblemSpec},
    scim::SCIM_MEDIA_TYPE,
};

/// Assigns a trace and a span to a request, records its metrics, and completes its response.
pub(crate) async fn observe_request(
    State(state): State<AppState>,
    mut request: Request,
    next: Next,
) -> Response {
    let parent = request.headers().get("traceparent").and_then(|value| value.to_str().ok());
    let parent: Option<TraceParent> = parent.and_then(|text| text.parse().ok());
    let trace =
        parent.map_or_else(|| state.app.environment().new_trace_id(), |parent| parent.trace);
    request.extensions_mut().insert(trace);

    let method = request.method().clone();
    let route = request.extensions().get::<MatchedPath>().map(|path| path.as_str().to_owned());
    let route = route.unwrap_or_else(|| "unmatched".into());
    // The path may contain text that a user typed; the route template does not.
    let span = tracing::info_span!(
        "http.request",
        trace_id = %trace,
        http.method = %method,
        http.route = route,
    );
    set_span_parent(&span, parent.unwrap_or_else(|| root_trace_parent(&state, trace)));

    let start = Instant::now();
    let mut response = match find_release_skew(request.headers()) {
        Some(refusal) => refusal,
        None => next.run(request).instrument(span.clone()).await,
    };
    finish_response(&mut response, trace);
    let status = response.status().as_u16();
    let duration = start.elapsed();
    span.in_scope(|| {
        let duration_ms = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
        tracing::info!(http.status = status, duration_ms, "answered");
    });
    // A client may send any word as a method, and each would become a metric series that is never removed.
    let known = [Method::GET, Method::POST, Method::PUT, Method::PATCH, Method::DELETE];
    let word = if known.contains(&method) { method.to_string() } else { "other".to_owned() };
    let labels = [("method", word), ("route", route), ("status", status.to_string())];
    metrics::counter!(HTTP_REQUESTS.name, &labels).increment(1);
    metrics::histogram!(HTTP_REQUEST_DURATION.name, &labels[1..2]).record(duration.as_secs_f64());
    response
}

/// Refuses a program of ours that is more than one release away. Other clients name no release.
fn find_release_skew(headers: &HeaderMap) -> Option<Response> {
    let named = headers.get(RELEASE_HEADER)?;
    let server = Release::current();
    let other = named.to_str().ok().and_then(|text| text.parse::<Release>().ok());
    let (detail, fix) = match other.map(|other| (other, server.skew_of(other))) {
        Some((_, ReleaseSkew::Compatible)) => return None,
        Some((other, ReleaseSkew::TooOld)) => (
            format!("the program is {other} and the server is {server}: it is too old"),
            format!("install {server} of the program"),
        ),
        Some((other, ReleaseSkew::TooNew)) => (
            format!("the program is {other} and the server is {server}: the server is too old"),
            format!(
                "upgrade the server to {other}, one release at a time, or install {server} of the program"
            ),
        ),
        None => (
            format!("the header `{RELEASE_HEADER}` names no release"),
            format!("leave it out, or install {server} of the program"),
        ),
    };
    Some(problem_response(problems::RELEASE_SKEW, detail, Some(fix)))
}

/// Returns the parent of a trace that begins here. Exported spans then have the same trace id as the log lines and the
/// event rows.
fn root_trace_parent(state: &AppState, trace: TraceId) -> TraceParent {
    let span = u64::from_ne_bytes(state.app.environment().random_bytes()).max(1);
    TraceParent { trace, span, flags: 1 }
}

/// Tells the exporter, if there is one, which trace the span belongs to.
fn set_span_parent(span: &Span, parent: TraceParent) {
    let remote = SpanContext::new(
        parent.trace.as_u128().into(),
        parent.span.into(),
        TraceFlags::new(parent.flags),
        true,
        TraceState::NONE,
    );
    // It fails where no exporter is configured, and that is not an error.
    let _ = span.set_parent(Context::new().with_remote_span_context(remote));
}

/// Turns every failure into problem+json, including those of the framework, and adds the trace id.
fn finish_response(response: &mut Response, trace: TraceId) {
    if let Ok(value) = HeaderValue::from_str(&trace.to_string()) {
        response.headers_mut().insert("x-trace-id", value);
    }
    if let Ok(release) = HeaderValue::from_str(&Release::current().to_string()) {
        response.headers_mut().insert(RELEASE_HEADER, release);
    }
    let status = response.status();
    if !(status.is_client_error() || status.is_server_error()) {
        return;
    }
    let told = response.extensions_mut().remove::<Arc<ProblemDetails>>();
    // An endpoint that fails with a body of its own, such as `/readyz` or an HTML page, has already described the
    // error.
    let own = |kind: &HeaderValue| {
        kind == "application/json"
            || kind == SCIM_MEDIA_TYPE
            || kind.as_bytes().starts_with(b"text/html")
    };
    if told.is_none() && response.headers().get(header::CONTENT_TYPE).is_some_and(own) {
        return;
    }
    let mut told = told.map_or_else(|| framework_problem(status), Arc::unwrap_or_clone);
    told.trace_id = Some(trace.to_string());
    let body = serde_json::to_vec(&told).unwrap_or_default();
    let headers = response.headers_mut();
    headers.remove(header::CONTENT_LENGTH);
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(PROBLEM_JSON));
    if status == StatusCode::UNAUTHORIZED {
        headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    }
    *response.body_mut() = Body::from(body);
}

fn framework_problem(status: StatusCode) -> ProblemDetails {
    let (spec, detail) = match status {
        StatusCode::SERVICE_UNAVAILABLE => {
            (problems::TIMEOUT, "the request took too long and was given up")
        }
        _ => (ProblemSpec { status, ..problems::REFUSED }, "the request was refused"),
    };
    problem_details(spec, detail.into(), None)
}

/// Returns the response to a request whose handler panicked. The panic message may contain anything, so it is not
/// included.
pub(crate) fn panic_response(_message: Box<dyn Any + Send + 'static>) -> Response<Body> {
    tracing::error!(event = "handler.panicked", "a handler panicked");
    let fix = Some("report it with the trace_id".to_owned());
    problem_response(problems::INTERNAL, "something went wrong on our side".into(), fix)
}

/// Paths of the internal port that a client without a certificate may call: with them a machine joins and gets its certificate. Each
/// proves the node's key by a join token or a signed challenge.
const UNCERTIFIED_PATHS: [&str; 4] =
    ["/healthz", "/v1/nodes/join", "/v1/nodes/challenge", "/v1/nodes/certificate"];

/// Path prefix and part of the repositories of jobs. The program `git` calls them with the token of the node; it is not given the node's key.
const JOB_PATH_PREFIX: &str = "/v1/nodes/jobs/";
const REPOSITORY_PATH_PART: &str = "/git/";

fn needs_no_certificate(path: &str) -> bool {
    let rest = path.strip_prefix(JOB_PATH_PREFIX).and_then(|rest| rest.split_once('/'));
    let repository = rest.is_some_and(|(job, rest)| {
        !job.is_empty() && format!("/{rest}").starts_with(REPOSITORY_PATH_PART)
    });
    repository || UNCERTIFIED_PATHS.contains(&path)
}

/// Refuses requests of the internal port without a valid client certificate, where the port speaks TLS. A certificate that was shown is
/// always checked, except where a node asks for another.
pub(crate) async fn require_client_certificate(
    State(app): State<App>,
    mut request: Request,
    next: Next,
) -> Response {
    if !app.needs_client_certificates() {
        return next.run(request).await;
    }
    let open = needs_no_certificate(request.uri().path());
    let shown = request.extensions().get::<PeerCertificate>().cloned();
    let client = match shown {
        Some(certificate) => app.authenticate_certificate(&certificate).await.map(Some),
        None if open => Ok(None),
        None => Err(Error::Unauthenticated),
    };
    match client {
        Ok(Some(client)) => {
            request.extensions_mut().insert(client);
            next.run(request).await
        }
        Ok(None) => next.run(request).await,
        Err(Error::Unauthenticated) if open => next.run(request).await,
        Err(error) => refuse_certificate(&app, error),
    }
}

/// Returns the answer to a client whose certificate is missing, revoked or cannot be checked now.
fn refuse_certificate(app: &App, error: Error) -> Response {
    let mut response = if matches!(error, Error::Unauthenticated) {
        let fix = "restart the node, or issue a certificate with `cynode admin certificate`";
        let detail = "the internal port takes no request without a valid client certificate";
        problem_response(problems::UNAUTHENTICATED, detail.into(), Some(fix.to_owned()))
    } else {
        ApiError::from(error).into_response()
    };
    finish_response(&mut response, app.environment().new_trace_id());
    // The client may have another certificate by now, and shows it on another connection.
    response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    response
}

/// Cancelled when the client has received its response or has disconnected.
#[derive(Clone, Debug)]
pub(crate) struct ClientGone(pub(crate) CancellationToken);

/// Runs a request to completion, even if its client disconnects or its timeout ends.
///
/// Dropping a request would drop its database work in the middle. The database library does not support that: a
/// transaction
/// that is dropped while it begins or ends can leave its connection inside an unknown transaction, and later work on
/// that
/// connection is acknowledged and never committed.
pub(crate) async fn run_to_completion(mut request: Request, next: Next) -> Response {
    // Work that only serves the client may check whether the client is still connected.
    let left = CancellationToken::new();
    let _line = left.clone().drop_guard();
    request.extensions_mut().insert(ClientGone(left));
    let work = next.run(request).instrument(Span::current());
    match TaskTracker::new().spawn(work).await {
        Ok(response) => response,
        Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
        // The runtime is shutting down.
        Err(_) => StatusCode::SERVICE_UNAVAILABLE.into_response(),
    }
}
