//! Remotes of projects, and webhook deliveries of forges.

use axum::{
    body::Body,
    extract::State,
    http::{HeaderMap, StatusCode},
};
use cynode_app::{
    delivery::forges::{self, issue_sync},
    tasks::projects,
};
use cynode_core::{delivery::Destination, ids::ProjectId};
use cynode_wire::delivery::forges::{RemoteView, SetRemote, WantedIssueView};

use super::{projects::ProjectName, tools::UnpagedList};
use crate::{
    AppState,
    error::ApiError,
    extract::{AuthenticatedCall, Json, MutationCall, MutationResponse, Path},
};

/// Returns the connection of a project to its repository on a forge, without secrets.
#[utoipa::path(get, path = "/v1/projects/{project}/remote", tag = "projects",
    params(("project" = String, Path)), responses((status = OK, body = RemoteView)))]
pub(crate) async fn get_remote(
    Path(ProjectName(project)): Path<ProjectName>,
    call: AuthenticatedCall,
) -> Result<Json<RemoteView>, ApiError> {
    let found = call.app.read(&call.request, |ctx| {
        Box::pin(async move {
            let id = projects::resolve_project(ctx, &project).await?;
            forges::get_remote(ctx, id).await
        })
    });
    Ok(Json(found.await?))
}

/// Connects a project to its repository on a forge. The connection is tested at once; `missing` lists what fails.
/// A generated webhook secret is shown only in this response.
#[utoipa::path(put, path = "/v1/projects/{project}/remote", tag = "projects",
    params(("project" = String, Path)), request_body = SetRemote, responses((status = OK, body = RemoteView)))]
pub(crate) async fn set_remote(
    Path(ProjectName(project)): Path<ProjectName>,
    call: MutationCall<SetRemote>,
) -> Result<MutationResponse, ApiError> {
    let MutationCall { app, request, body } = call;
    let found = app.read(&request, |ctx| {
        Box::pin(async move { projects::resolve_project(ctx, &project).await })
    });
    let project = found.await?;
    Ok(MutationResponse(StatusCode::OK, forges::set_remote(&app, &request, project, body).await?))
}

/// Deletes the connection with its credential. Nothing changes on the forge.
#[utoipa::path(delete, path = "/v1/projects/{project}/remote", tag = "projects",
    params(("project" = String, Path)), responses((status = NO_CONTENT)))]
pub(crate) async fn delete_remote(
    Path(ProjectName(project)): Path<ProjectName>,
    call: MutationCall<()>,
) -> Result<MutationResponse, ApiError> {
    let done = call.app.mutate(&call.request, |ctx| {
        Box::pin(async move {
            let id = projects::resolve_project(ctx, &project).await?;
            forges::delete_remote(ctx, id).await
        })
    });
    Ok(MutationResponse(StatusCode::NO_CONTENT, done.await?))
}

/// Lists the issues of the forge that were selected for work, with their tasks.
#[utoipa::path(get, path = "/v1/projects/{project}/remote/issues", tag = "projects",
    params(("project" = String, Path)), responses((status = OK, body = UnpagedList<WantedIssueView>)))]
pub(crate) async fn list_issues(
    Path(ProjectName(project)): Path<ProjectName>,
    call: AuthenticatedCall,
) -> Result<Json<UnpagedList<WantedIssueView>>, ApiError> {
    let found = call.app.read(&call.request, |ctx| {
        Box::pin(async move {
            let id = projects::resolve_project(ctx, &project).await?;
            forges::list_wanted_issues(ctx, id).await
        })
    });
    Ok(Json(UnpagedList::new(found.await?)))
}

/// Receives a webhook delivery of a forge. Only its signature authenticates it.
#[utoipa::path(post, path = "/v1/hooks/{project}/{forge}", tag = "projects",
    params(("project" = String, Path), ("forge" = String, Path)),
    request_body(content = Vec<u8>, content_type = "application/json"), responses((status = ACCEPTED)))]
pub(crate) async fn receive_hook(
    State(state): State<AppState>,
    Path((project, forge)): Path<(ProjectId, Destination)>,
    headers: HeaderMap,
    body: Body,
) -> Result<StatusCode, ApiError> {
    let app = state.app;
    let expected = issue_sync::find_webhook_target(&app, project, forge).await?;
    let body = axum::body::to_bytes(body, issue_sync::MAX_DELIVERY_BYTES).await;
    let body =
        body.map_err(|_| ApiError::Malformed("the delivery is too large or was cut off".into()))?;
    issue_sync::receive_webhook(&app, &expected, &headers, &body).await?;
    Ok(StatusCode::ACCEPTED)
}
