//! Ingests: files, repositories and pages that become records of memory.

use axum::http::StatusCode;
use cynode_app::{memory::ingest, tasks::projects};
use cynode_core::{ids::IngestId, paging::Page, profiles::ProfileName};
use cynode_wire::memory::ingests::{CreateIngest, IngestView};
use serde::Deserialize;

use super::projects::ProjectName;
use crate::{
    error::ApiError,
    extract::{AuthenticatedCall, Json, MutationCall, MutationResponse, PageQuery, Path, Query},
};

/// Filter of ingests.
#[derive(Clone, Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct IngestQuery {
    /// Profile of the records; `default` when it is left out.
    #[serde(default)]
    #[param(value_type = Option<String>)]
    profile: ProfileName,
}

/// Begins an ingest of files, of the project's repository at a commit, or of a page; or adds files to one.
/// A worker reads it in the background. Files that are as they were are not read again, and records of files that are gone are removed.
#[utoipa::path(post, path = "/v1/projects/{project}/memory-ingests", tag = "memory", params(("project" = String, Path)),
    request_body = CreateIngest, responses((status = CREATED, body = IngestView)))]
pub(crate) async fn create_ingest(
    Path(ProjectName(project)): Path<ProjectName>,
    call: MutationCall<CreateIngest>,
) -> Result<MutationResponse, ApiError> {
    let MutationCall { app, request, body } = call;
    let named = app.read(&request, |ctx| {
        Box::pin(async move { projects::resolve_project(ctx, &project).await })
    });
    let id = named.await?;
    let prepared = ingest::prepare_ingest(&app, &request, id, body).await?;
    let made = app.mutate(&request, |ctx| ingest::create_ingest(ctx, id, prepared));
    Ok(MutationResponse(StatusCode::CREATED, made.await?))
}

/// Lists the ingests of a project under a profile, newest first.
#[utoipa::path(get, path = "/v1/projects/{project}/memory-ingests", tag = "memory",
    params(("project" = String, Path), IngestQuery, PageQuery), responses((status = OK, body = Page<IngestView>)))]
pub(crate) async fn list_ingests(
    call: AuthenticatedCall,
    Path(ProjectName(project)): Path<ProjectName>,
    Query(IngestQuery { profile }): Query<IngestQuery>,
    Query(page): Query<PageQuery>,
) -> Result<Json<Page<IngestView>>, ApiError> {
    let page = page.to_page_request()?;
    let found = call.app.read(&call.request, |ctx| {
        Box::pin(async move {
            let id = projects::resolve_project(ctx, &project).await?;
            ingest::list_ingests(ctx, id, &profile, page).await
        })
    });
    Ok(Json(found.await?))
}

/// Returns one ingest with its progress.
#[utoipa::path(get, path = "/v1/memory-ingests/{ingest}", tag = "memory", params(("ingest" = String, Path)),
    responses((status = OK, body = IngestView)))]
pub(crate) async fn get_ingest(
    call: AuthenticatedCall,
    Path(id): Path<IngestId>,
) -> Result<Json<IngestView>, ApiError> {
    let found = call.app.read(&call.request, |ctx| ingest::get_ingest(ctx, id));
    Ok(Json(found.await?))
}

/// Stops an ingest. What was read until then stays.
#[utoipa::path(post, path = "/v1/memory-ingests/{ingest}/cancel", tag = "memory", params(("ingest" = String, Path)),
    responses((status = OK, body = IngestView)))]
pub(crate) async fn cancel_ingest(
    Path(id): Path<IngestId>,
    call: MutationCall<()>,
) -> Result<MutationResponse, ApiError> {
    let done = call.app.mutate(&call.request, |ctx| ingest::cancel_ingest(ctx, id));
    Ok(MutationResponse(StatusCode::OK, done.await?))
}
