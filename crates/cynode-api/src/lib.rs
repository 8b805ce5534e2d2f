//! The HTTP API: extractors, routes, problem+json, the OpenAPI document.
//!
//! **Invariant**: a handler takes validated input, calls one operation of `cynode-app`, and chooses a status. It
//! contains no
//! business rule and no SQL. `AuthenticatedCall` or `MutationCall` in its signature is the authentication; the few
//! public
//! endpoints take `AnonymousCall` and are listed in [`document::PUBLIC_ENDPOINTS`].

mod browser;
mod console;
pub mod document;
mod error;
mod etag;
mod extract;
mod inference;
mod key_scopes;
mod middleware;
pub mod problems;
mod routes;
mod scim;

use std::time::Duration;

use axum::{Router, extract::DefaultBodyLimit};
use cynode_app::App;
use metrics_exporter_prometheus::PrometheusHandle;
use tokio_util::sync::CancellationToken;
use tower_http::{catch_panic::CatchPanicLayer, timeout::TimeoutLayer};
use utoipa::openapi::OpenApi;

pub use browser::BrowserAccess;
pub use console::ConsoleFiles;

/// The shared state of all handlers.
#[derive(Clone)]
pub struct AppState {
    /// The application operations.
    pub app: App,
    /// The metrics of this process.
    pub metrics: PrometheusHandle,
    /// Cancelled on shutdown, so that streams end too.
    pub stop: CancellationToken,
    /// How browsers may use cookie sessions on the user-facing port.
    pub browser: BrowserAccess,
    /// The web console of the user-facing port.
    pub console: ConsoleFiles,
}

/// Limits of one request.
#[derive(Clone, Copy, Debug)]
pub struct RequestLimits {
    /// Maximum size of a body in bytes.
    pub body: usize,
    /// Maximum time until the response begins.
    pub time: Duration,
}

/// Builds the router of the user-facing port.
pub fn public_router(state: AppState, limits: RequestLimits) -> Router {
    let (router, _) = routes::public_routes().split_for_parts();
    let document = public_openapi();
    let models = inference::router_for_people(&state);
    let (long, _) = routes::long_running_routes().split_for_parts();
    let long =
        with_layers(long, state.clone(), RequestLimits { time: LONG_REQUEST_TIMEOUT, ..limits });
    let directory = with_layers(scim::scim_routes(), state.clone(), limits);
    let headers = browser::SecurityHeaders::new(&state.browser, &state.console);
    let router = router
        .merge(routes::document_route(&document))
        .merge(console::page_routes())
        .fallback(console::serve_console)
        .method_not_allowed_fallback(routes::method_not_allowed);
    with_layers(router, state, limits)
        .merge(models)
        .merge(long)
        .merge(directory)
        .layer(axum::middleware::from_fn_with_state(headers, browser::add_security_headers))
}

/// Builds the router of the internal port: runners, workers, and agents that call models. A cookie is no credential
/// there.
pub fn internal_router(state: AppState, limits: RequestLimits) -> Router {
    let state =
        AppState { browser: BrowserAccess::Disabled, console: ConsoleFiles::default(), ..state };
    let (router, _) = routes::internal_routes().split_for_parts();
    let document = internal_openapi();
    let models = inference::router_for_agents(&state);
    let (long, _) = routes::internal_long_routes().split_for_parts();
    let long =
        with_layers(long, state.clone(), RequestLimits { time: LONG_REQUEST_TIMEOUT, ..limits });
    let router = router
        .merge(routes::document_route(&document))
        .fallback(routes::path_not_found)
        .method_not_allowed_fallback(routes::method_not_allowed);
    with_layers(router, state, limits).merge(models).merge(long)
}

/// Adds the demand for client certificates to everything that the internal port serves.
pub fn require_client_certificates(router: Router, app: App) -> Router {
    router.layer(axum::middleware::from_fn_with_state(app, middleware::require_client_certificate))
}

/// Timeout of requests that transfer many bytes or read a commit.
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

/// Returns the OpenAPI document of [`internal_router`].
pub fn internal_openapi() -> OpenApi {
    let (_, document) =
        routes::internal_routes().merge(routes::internal_long_routes()).split_for_parts();
    document::complete_internal(document)
}

/// Returns the OpenAPI document of [`public_router`].
pub fn public_openapi() -> OpenApi {
    let (_, document) =
        routes::public_routes().merge(routes::long_running_routes()).split_for_parts();
    document::complete_document(document)
}
