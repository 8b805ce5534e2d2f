//! The HTTP front door: extractors, routes, problem+json, the OpenAPI document.
//!
//! **Invariant**: a handler takes checked input, calls one operation of `cynode-app`, and chooses a
//! status. It holds no rule and no SQL. `Call` or `Mutation` in its signature is the authentication;
//! the few open endpoints take `Anonymous` and are listed in [`document::PUBLIC`].

pub mod document;
mod error;
mod extract;
mod inference;
mod middleware;
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
pub struct Limits {
    /// Most bytes of a body.
    pub body: usize,
    /// Longest time until an answer begins.
    pub time: Duration,
}

/// The router of the user-facing port.
pub fn router(state: AppState, limits: Limits) -> Router {
    let (router, _) = routes::all().split_for_parts();
    let document = openapi();
    let models = inference::for_people(&state);
    let (long, _) = routes::long().split_for_parts();
    let long = layered(long, state.clone(), Limits { time: LONG, ..limits });
    served(router.merge(routes::document_route(&document)), state, limits).merge(models).merge(long)
}

/// The router of the internal port: runners, workers, and agents that ask models.
pub fn internal_router(state: AppState, limits: Limits) -> Router {
    let (router, _) = routes::internal().split_for_parts();
    let document = internal_openapi();
    let models = inference::for_agents(&state);
    let (long, _) = routes::internal_long().split_for_parts();
    let long = layered(long, state.clone(), Limits { time: LONG, ..limits });
    served(router.merge(routes::document_route(&document)), state, limits).merge(models).merge(long)
}

/// What holds for every request, whatever the port.
fn served(router: Router<AppState>, state: AppState, limits: Limits) -> Router {
    let router =
        router.fallback(routes::nothing_here).method_not_allowed_fallback(routes::wrong_method);
    layered(router, state, limits)
}

/// How long it may take to bring many bytes, or to look at a commit.
const LONG: Duration = Duration::from_mins(15);

fn layered(router: Router<AppState>, state: AppState, limits: Limits) -> Router {
    router
        .layer(DefaultBodyLimit::max(limits.body))
        .layer(axum::middleware::from_fn(middleware::carried_out))
        .layer(TimeoutLayer::with_status_code(
            axum::http::StatusCode::SERVICE_UNAVAILABLE,
            limits.time,
        ))
        .layer(CatchPanicLayer::custom(middleware::panicked))
        .layer(axum::middleware::from_fn_with_state(state.clone(), middleware::observe))
        .with_state(state)
}

/// The OpenAPI document of [`internal_router`].
pub fn internal_openapi() -> OpenApi {
    let (_, document) = routes::internal().merge(routes::internal_long()).split_for_parts();
    document::complete_internal(document)
}

/// The OpenAPI document of [`router`].
pub fn openapi() -> OpenApi {
    let (_, document) = routes::all().merge(routes::long()).split_for_parts();
    document::complete(document)
}
