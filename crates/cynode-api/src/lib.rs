//! The HTTP front door: extractors, routes, problem+json, the OpenAPI document.
//!
//! **Invariant**: a handler takes checked input, calls one operation of `cynode-app`, and chooses a
//! status. It holds no rule and no SQL. `AuthenticatedCall` or `MutationCall` in its signature is the authentication;
//! the few open endpoints take `AnonymousCall` and are listed in [`document::PUBLIC_ENDPOINTS`].

pub mod document;
mod error;
mod extract;
mod inference;
mod middleware;
pub mod problems;
mod routes;

use std::time::Duration;

use axum::{Router, extract::DefaultBodyLimit};
use cynode_app::App;
use metrics_exporter_prometheus::PrometheusHandle;
use tokio_util::sync::CancellationToken;
use tower_http::{catch_panic::CatchPanicLayer, timeout::TimeoutLayer};
use utoipa::openapi::OpenApi;

/// What every handler may use.
#[derive(Clone)]
pub struct AppState {
    /// The operations.
    pub app: App,
    /// The numbers of this process.
    pub metrics: PrometheusHandle,
    /// Cancelled when the process is to end, so that streams end too.
    pub stop: CancellationToken,
}

/// Bounds on one request.
#[derive(Clone, Copy, Debug)]
pub struct RequestLimits {
    /// Most bytes of a body.
    pub body: usize,
    /// Longest time until an answer begins.
    pub time: Duration,
}

/// The router of the user-facing port.
pub fn public_router(state: AppState, limits: RequestLimits) -> Router {
    let (router, _) = routes::public_routes().split_for_parts();
    let document = public_openapi();
    let models = inference::router_for_people(&state);
    let (long, _) = routes::long_running_routes().split_for_parts();
    let long =
        with_layers(long, state.clone(), RequestLimits { time: LONG_REQUEST_TIMEOUT, ..limits });
    with_fallbacks(router.merge(routes::document_route(&document)), state, limits)
        .merge(models)
        .merge(long)
}

/// The router of the internal port: runners, workers, and agents that ask models.
pub fn internal_router(state: AppState, limits: RequestLimits) -> Router {
    let (router, _) = routes::internal_routes().split_for_parts();
    let document = internal_openapi();
    let models = inference::router_for_agents(&state);
    let (long, _) = routes::internal_long_routes().split_for_parts();
    let long =
        with_layers(long, state.clone(), RequestLimits { time: LONG_REQUEST_TIMEOUT, ..limits });
    with_fallbacks(router.merge(routes::document_route(&document)), state, limits)
        .merge(models)
        .merge(long)
}

/// What holds for every request, whatever the port.
fn with_fallbacks(router: Router<AppState>, state: AppState, limits: RequestLimits) -> Router {
    let router = router
        .fallback(routes::path_not_found)
        .method_not_allowed_fallback(routes::method_not_allowed);
    with_layers(router, state, limits)
}

/// How long it may take to bring many bytes, or to look at a commit.
const LONG_REQUEST_TIMEOUT: Duration = Duration::from_mins(15);

fn with_layers(router: Router<AppState>, state: AppState, limits: RequestLimits) -> Router {
    router
        .layer(DefaultBodyLimit::max(limits.body))
        .layer(axum::middleware::from_fn(middleware::run_to_completion))
        .layer(TimeoutLayer::with_status_code(
            axum::http::StatusCode::SERVICE_UNAVAILABLE,
            limits.time,
        ))
        .layer(CatchPanicLayer::custom(middleware::panic_response))
        .layer(axum::middleware::from_fn_with_state(state.clone(), middleware::observe_request))
        .with_state(state)
}

/// The OpenAPI document of [`internal_router`].
pub fn internal_openapi() -> OpenApi {
    let (_, document) =
        routes::internal_routes().merge(routes::internal_long_routes()).split_for_parts();
    document::complete_internal(document)
}

/// The OpenAPI document of [`public_router`].
pub fn public_openapi() -> OpenApi {
    let (_, document) =
        routes::public_routes().merge(routes::long_running_routes()).split_for_parts();
    document::complete_document(document)
}
