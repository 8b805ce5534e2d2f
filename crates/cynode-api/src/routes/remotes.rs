//! Remotes of projects, and what forges send.

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

/// A project's repository on a forge, without its secrets.
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

/// Connect a project with its repository on a forge. The forge is asked at once; `missing` says what does not work yet. A webhook
/// secret that was made is shown this once.
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

/// Take it away, with its credential. What is on the forge stays there.
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

/// The issues of the forge that were wanted, and what became of them.
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

/// What a forge sends when something happened there. Its signature says that it is from the forge; nothing else does.
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
