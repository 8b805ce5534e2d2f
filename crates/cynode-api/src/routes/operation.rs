use axum::{
    extract::State,
    http::{HeaderMap, StatusCode},
    response::{IntoResponse, Response},
};
use cynode_app::{
    Error,
    background::{doctor, health, processes},
    platform::certificates,
};
use cynode_core::{ids::ProjectId, releases::Release, roles::UserRole};
use cynode_wire::platform::{
    backups::BackupView,
    certificates::CertificateView,
    health::{Diagnosis, HealthStatus, Readiness},
    processes::ProcessView,
};
use serde::Deserialize;
use utoipa::IntoParams;

use super::tools::UnpagedList;
use crate::{
    AppState,
    error::ApiError,
    extract::{AuthenticatedCall, Json, Query},
};

/// Serves the web console. A server that was built without it says so.
#[utoipa::path(get, path = "/", tag = "operation", responses((status = OK, content_type = "text/html")))]
pub(crate) async fn home(State(state): State<AppState>, headers: HeaderMap) -> Response {
    state.console.index_response(StatusCode::OK, &headers)
}

/// Confirms that the process answers (liveness).
#[utoipa::path(get, path = "/healthz", tag = "operation", responses((status = OK, body = HealthStatus)))]
pub(crate) async fn healthz() -> Json<HealthStatus> {
    Json(HealthStatus { status: "ok".into(), version: Release::current().to_string() })
}

/// Checks the dependencies of the server (readiness). Each missing one comes with its fix.
#[utoipa::path(
    get,
    path = "/readyz",
    tag = "operation",
    responses((status = OK, body = Readiness), (status = SERVICE_UNAVAILABLE, body = Readiness)),
)]
pub(crate) async fn readyz(State(state): State<AppState>) -> impl IntoResponse {
    let readiness = health::check_readiness(&state.app).await;
    let status = if readiness.ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (status, Json(readiness))
}

/// Checks whether a project or the installation can run tasks. Each finding comes with the command that fixes it.
#[utoipa::path(
    get,
    path = "/v1/readiness",
    tag = "operation",
    params(ReadinessQuery),
    responses((status = OK, body = Readiness)),
)]
pub(crate) async fn readiness(
    call: AuthenticatedCall,
    Query(of): Query<ReadinessQuery>,
) -> Result<Json<Readiness>, ApiError> {
    Ok(Json(health::report_health(&call.app, &call.request, of.project_id).await?))
}

/// Diagnoses the installation: what the server can check by itself, each with what to do about it. For admins.
#[utoipa::path(get, path = "/v1/doctor", tag = "operation", responses((status = OK, body = Diagnosis)))]
pub(crate) async fn diagnose(call: AuthenticatedCall) -> Result<Json<Diagnosis>, ApiError> {
    Ok(Json(doctor::diagnose_installation(&call.app, &call.request).await?))
}

/// Lists the certificates of the ports, of the certificate authority and of its clients, each with what is wrong with it. For admins.
#[utoipa::path(
    get,
    path = "/v1/certificates",
    tag = "operation",
    responses((status = OK, body = UnpagedList<CertificateView>)),
)]
pub(crate) async fn list_certificates(
    call: AuthenticatedCall,
) -> Result<Json<UnpagedList<CertificateView>>, ApiError> {
    let found = certificates::list_certificates(&call.app, &call.request).await?;
    Ok(Json(UnpagedList::new(found)))
}

/// Lists every program of the installation with its release: servers, engine, database, nodes, and command lines that were used lately. For
/// admins.
#[utoipa::path(
    get,
    path = "/v1/processes",
    tag = "operation",
    responses((status = OK, body = UnpagedList<ProcessView>)),
)]
pub(crate) async fn list_processes(
    call: AuthenticatedCall,
) -> Result<Json<UnpagedList<ProcessView>>, ApiError> {
    let found = processes::list_processes(&call.app, &call.request).await?;
    Ok(Json(UnpagedList::new(found)))
}

/// Lists the backups of the installation with their last verification, newest first. For admins.
#[utoipa::path(
    get,
    path = "/v1/backups",
    tag = "operation",
    responses((status = OK, body = UnpagedList<BackupView>)),
)]
pub(crate) async fn list_backups(
    call: AuthenticatedCall,
) -> Result<Json<UnpagedList<BackupView>>, ApiError> {
    let found = processes::list_backups(&call.app, &call.request).await?;
    Ok(Json(UnpagedList::new(found)))
}

/// Subject of the readiness check.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct ReadinessQuery {
    /// The project; the installation by default.
    #[param(value_type = Option<String>)]
    project_id: Option<ProjectId>,
}

/// Returns the metrics of this process in the Prometheus text format. For viewers of the installation.
#[utoipa::path(
    get,
    path = "/metrics",
    tag = "operation",
    responses((status = OK, body = String, content_type = "text/plain")),
)]
pub(crate) async fn metrics(
    State(state): State<AppState>,
    call: AuthenticatedCall,
) -> Result<String, ApiError> {
    if call.request.caller.and_then(|caller| caller.role) < Some(UserRole::Viewer) {
        let place = "in the installation";
        return Err(Error::Forbidden { needed: UserRole::Viewer.as_str(), place }.into());
    }
    Ok(state.metrics.render())
}
