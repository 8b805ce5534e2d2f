//! Remotes of projects, and what forges send.

use axum::{
    body::Body,
    extract::State,
    http::{HeaderMap, StatusCode},
};
use cynode_app::{
    projects,
    remotes::{self, intake},
};
use cynode_core::{delivery::Destination, ids::ProjectId};
use cynode_wire::remotes::{RemoteView, SetRemote, WantedIssueView};

use super::{gate::Whole, projects::ProjectName};
use crate::{
    AppState,
    error::ApiError,
    extract::{Answered, Call, Json, Mutation, Path},
};

/// A project's repository on a forge, without its secrets.
#[utoipa::path(get, path = "/v1/projects/{project}/remote", tag = "projects",
    params(("project" = String, Path)), responses((status = OK, body = RemoteView)))]
pub(crate) async fn get_remote(
    Path(ProjectName(project)): Path<ProjectName>,
    call: Call,
) -> Result<Json<RemoteView>, ApiError> {
    let found = call.app.read(&call.request, |ctx| {
        Box::pin(async move {
            let id = projects::resolve(ctx, &project).await?;
            remotes::get(ctx, id).await
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
    call: Mutation<SetRemote>,
) -> Result<Answered, ApiError> {
    let Mutation { app, request, body } = call;
    let found =
        app.read(&request, |ctx| Box::pin(async move { projects::resolve(ctx, &project).await }));
    let project = found.await?;
    Ok(Answered(StatusCode::OK, remotes::set(&app, &request, project, body).await?))
}

/// Take it away, with its credential. What is on the forge stays there.
#[utoipa::path(delete, path = "/v1/projects/{project}/remote", tag = "projects",
    params(("project" = String, Path)), responses((status = NO_CONTENT)))]
pub(crate) async fn remove_remote(
    Path(ProjectName(project)): Path<ProjectName>,
    call: Mutation<()>,
) -> Result<Answered, ApiError> {
    let done = call.app.mutate(&call.request, |ctx| {
        Box::pin(async move {
            let id = projects::resolve(ctx, &project).await?;
            remotes::remove(ctx, id).await
        })
    });
    Ok(Answered(StatusCode::NO_CONTENT, done.await?))
}

/// The issues of the forge that were wanted, and what became of them.
#[utoipa::path(get, path = "/v1/projects/{project}/remote/issues", tag = "projects",
    params(("project" = String, Path)), responses((status = OK, body = Whole<WantedIssueView>)))]
pub(crate) async fn list_issues(
    Path(ProjectName(project)): Path<ProjectName>,
    call: Call,
) -> Result<Json<Whole<WantedIssueView>>, ApiError> {
    let found = call.app.read(&call.request, |ctx| {
        Box::pin(async move {
            let id = projects::resolve(ctx, &project).await?;
            remotes::issues(ctx, id).await
        })
    });
    Ok(Json(Whole::new(found.await?)))
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
    let expected = intake::expected(&app, project, forge).await?;
    let body = axum::body::to_bytes(body, intake::MOST_BYTES).await;
    let body =
        body.map_err(|_| ApiError::Malformed("the delivery is too large or was cut off".into()))?;
    intake::receive(&app, &expected, &headers, &body).await?;
    Ok(StatusCode::ACCEPTED)
}
