//! Repositories: uploaded by people, read by people and nodes through git's own protocol.

use std::io::Read;

use axum::{
    body::{Body, Bytes},
    http::{HeaderMap, header},
    response::{IntoResponse, Response},
};
use cynode_app::{
    App,
    delivery::repositories::{self, RefVisibility},
    nodes,
    tasks::projects::{self, ProjectRef},
};
use cynode_core::ids::{JobId, ProjectId};
use cynode_wire::nodes::RepositoryView;
use serde::Deserialize;
use tokio_util::io::ReaderStream;

use super::projects::ProjectName;
use crate::{
    error::ApiError,
    extract::{AuthenticatedCall, Json, NodeCall, Path, Query},
};

/// Maximum size of a request after decompression.
const MAX_UNPACKED_BYTES: u64 = 16 * 1024 * 1024;

fn to_repository_view(repository: repositories::RepositoryRecord) -> RepositoryView {
    RepositoryView {
        project_id: repository.project,
        default_branch: repository.default_branch,
        head: repository.head,
        imported_at: repository.imported_at,
    }
}

/// Returns the repository of a project.
#[utoipa::path(get, path = "/v1/projects/{project}/repository", tag = "projects",
    params(("project" = String, Path)), responses((status = OK, body = RepositoryView)))]
pub(crate) async fn get_repository(
    Path(ProjectName(project)): Path<ProjectName>,
    call: AuthenticatedCall,
) -> Result<Json<RepositoryView>, ApiError> {
    let found = call.app.read(&call.request, |ctx| {
        Box::pin(async move {
            let id = projects::resolve_project(ctx, &project).await?;
            repositories::get_repository(ctx, id).await
        })
    });
    Ok(Json(to_repository_view(found.await?)))
}

/// Base branch of the repository.
#[derive(Clone, Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct BranchQuery {
    /// The branch that work starts from; `main`, `master` or the first branch by default.
    branch: Option<String>,
}

/// Uploads a project's repository, or newer commits of it, as a git bundle.
/// Branches only move forward; a repeated upload changes nothing.
#[utoipa::path(put, path = "/v1/projects/{project}/repository", tag = "projects",
    params(("project" = String, Path), BranchQuery),
    request_body(content = Vec<u8>, content_type = "application/x-git-bundle"),
    responses((status = OK, body = RepositoryView)))]
pub(crate) async fn import_repository(
    call: AuthenticatedCall,
    Path(ProjectName(project)): Path<ProjectName>,
    Query(query): Query<BranchQuery>,
    body: Body,
) -> Result<Json<RepositoryView>, ApiError> {
    let project = call.app.read(&call.request, |ctx| {
        Box::pin(async move { projects::resolve_project(ctx, &project).await })
    });
    let project = project.await?;
    let (branch, bytes) = (query.branch.as_deref(), body.into_data_stream());
    let brought = repositories::import_repository(&call.app, &call.request, project, branch, bytes);
    Ok(Json(to_repository_view(brought.await?)))
}

/// Service of git's smart HTTP protocol.
#[derive(Clone, Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct ServiceQuery {
    /// Only `git-upload-pack`: pushing is not possible.
    service: String,
}

fn git_protocol(headers: &HeaderMap) -> Option<&str> {
    headers.get("git-protocol").and_then(|value| value.to_str().ok())
}

/// Advertises the refs of a repository to git.
async fn advertise_refs(
    app: &App,
    project: ProjectId,
    shown: RefVisibility<'_>,
    query: &ServiceQuery,
    headers: &HeaderMap,
) -> Result<Response, ApiError> {
    if query.service != "git-upload-pack" {
        return Err(ApiError::Malformed("nothing can be pushed here".into()));
    }
    let repositories = &app.gateway_parts()?.repositories;
    let offered = repositories.advertise_refs(project, git_protocol(headers), shown).await;
    let offered = offered.map_err(cynode_app::Error::from)?;
    let kind = "application/x-git-upload-pack-advertisement";
    Ok(([(header::CONTENT_TYPE, kind), (header::CACHE_CONTROL, "no-cache")], offered)
        .into_response())
}

/// Answers the fetch request of git.
async fn answer_upload_pack(
    app: &App,
    project: ProjectId,
    shown: RefVisibility<'_>,
    headers: &HeaderMap,
    body: Bytes,
) -> Result<Response, ApiError> {
    let question = match headers.get(header::CONTENT_ENCODING).map(|value| value.as_bytes()) {
        None => body,
        Some(b"gzip" | b"x-gzip") => decompress_body(&body)?,
        Some(_) => return Err(ApiError::Malformed("only gzip is understood".into())),
    };
    let repositories = &app.gateway_parts()?.repositories;
    let answering = repositories.upload_pack(project, git_protocol(headers), shown, question);
    let answering = answering.await.map_err(cynode_app::Error::from)?;
    // The git process is killed when the response is dropped, whether it was read to the end or not.
    let pieces = ReaderStream::new(answering);
    let kind = "application/x-git-upload-pack-result";
    let headers = [(header::CONTENT_TYPE, kind), (header::CACHE_CONTROL, "no-cache")];
    Ok((headers, Body::from_stream(pieces)).into_response())
}

/// Advertises the commits that a job works on to git: nothing else of the project's repository.
#[utoipa::path(get, path = "/v1/nodes/jobs/{job}/git/info/refs", tag = "nodes",
    params(("job" = String, Path), ServiceQuery),
    responses((status = OK, content_type = "application/x-git-upload-pack-advertisement")))]
pub(crate) async fn advertise(
    call: NodeCall,
    Path(job): Path<JobId>,
    Query(query): Query<ServiceQuery>,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let sources = nodes::sources_of_job(&call.app, call.node, job).await?;
    let shown = RefVisibility::Commits(&sources.commits);
    advertise_refs(&call.app, sources.project, shown, &query, &headers).await
}

/// Answers a fetch by git.
#[utoipa::path(post, path = "/v1/nodes/jobs/{job}/git/git-upload-pack", tag = "nodes",
    params(("job" = String, Path)),
    request_body(content = Vec<u8>, content_type = "application/x-git-upload-pack-request"),
    responses((status = OK, content_type = "application/x-git-upload-pack-result")))]
pub(crate) async fn upload_pack(
    call: NodeCall,
    Path(job): Path<JobId>,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Response, ApiError> {
    let sources = nodes::sources_of_job(&call.app, call.node, job).await?;
    let shown = RefVisibility::Commits(&sources.commits);
    answer_upload_pack(&call.app, sources.project, shown, &headers, body).await
}

/// Returns the project of a repository that the caller may read.
async fn readable_project(
    call: &AuthenticatedCall,
    project: ProjectRef,
) -> Result<ProjectId, ApiError> {
    let found = call.app.read(&call.request, |ctx| {
        Box::pin(async move {
            let id = projects::resolve_project(ctx, &project).await?;
            repositories::get_repository(ctx, id).await
        })
    });
    Ok(found.await?.project)
}

/// Advertises the branches of a project's repository for `git clone` and `git pull`. Pushing is not possible.
#[utoipa::path(get, path = "/v1/projects/{project}/git/info/refs", tag = "projects",
    params(("project" = String, Path), ServiceQuery),
    responses((status = OK, content_type = "application/x-git-upload-pack-advertisement")))]
pub(crate) async fn project_refs(
    call: AuthenticatedCall,
    Path(ProjectName(project)): Path<ProjectName>,
    Query(query): Query<ServiceQuery>,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let project = readable_project(&call, project).await?;
    advertise_refs(&call.app, project, RefVisibility::Branches, &query, &headers).await
}

/// Answers a clone or pull of a project's repository by git.
#[utoipa::path(post, path = "/v1/projects/{project}/git/git-upload-pack", tag = "projects",
    params(("project" = String, Path)),
    request_body(content = Vec<u8>, content_type = "application/x-git-upload-pack-request"),
    responses((status = OK, content_type = "application/x-git-upload-pack-result")))]
pub(crate) async fn project_pack(
    call: AuthenticatedCall,
    Path(ProjectName(project)): Path<ProjectName>,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Response, ApiError> {
    let project = readable_project(&call, project).await?;
    answer_upload_pack(&call.app, project, RefVisibility::Branches, &headers, body).await
}

fn decompress_body(body: &[u8]) -> Result<Bytes, ApiError> {
    let mut question = Vec::new();
    let mut reader = flate2::read::GzDecoder::new(body).take(MAX_UNPACKED_BYTES + 1);
    let read = reader.read_to_end(&mut question);
    if read.is_err() || question.len() as u64 > MAX_UNPACKED_BYTES {
        return Err(ApiError::Malformed("the body cannot be unpacked".into()));
    }
    Ok(question.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_gzip_or_too_large_is_refused() {
        assert!(decompress_body(b"not gzip").is_err());
        let mut packed = flate2::read::GzEncoder::new(
            std::io::repeat(0).take(MAX_UNPACKED_BYTES + 1),
            flate2::Compression::fast(),
        );
        let mut bytes = Vec::new();
        packed.read_to_end(&mut bytes).unwrap();
        assert!(decompress_body(&bytes).is_err());
    }
}
