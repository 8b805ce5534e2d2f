//! Memory for people: the same operations as the tools of agents, and decisions that only people take.
//!
//! An answer with the text of a record is sealed where it is kept for a repeat, so that a forgotten text is nowhere in plain form.

use axum::{
    body::Body,
    http::{StatusCode, header},
    response::{IntoResponse, Response},
};
use cynode_app::{
    App, Error, OperationRequest,
    memory::{self, ForgetFilter, MemoryQuery, RecordFilter, RememberBy, to_memory_view},
    tasks::projects::{self, ProjectRef},
};
use cynode_core::{
    ids::{MemoryId, ProjectId},
    memory::{MAX_HITS, MemoryKind, MemoryScope, MemoryState, MemoryText},
    paging::Page,
    profiles::ProfileName,
};
use cynode_wire::memory::records::{
    CreateMemory, ForgetMemories, ForgottenView, MemoryHitView, MemoryHitsView, MemoryView,
    SearchMemories, UpdateMemory,
};
use serde::Deserialize;

use super::projects::ProjectName;
use crate::{
    error::ApiError,
    extract::{AuthenticatedCall, Json, MutationCall, MutationResponse, PageQuery, Path, Query},
};

/// Source of a record that names none.
const DEFAULT_SOURCE: &str = "note";

/// Hits of a search that says nothing about it.
const DEFAULT_HITS: u16 = 10;

/// Maximum age in days that a request to forget can name.
const MAX_AGE_DAYS: u32 = 36_500;

/// Profile of the records.
#[derive(Clone, Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct MemoryProfileQuery {
    /// The profile; `default` when it is left out.
    #[serde(default)]
    #[param(value_type = Option<String>)]
    profile: ProfileName,
}

/// Filter of records.
#[derive(Clone, Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct MemoryListQuery {
    /// The profile; `default` when it is left out.
    #[serde(default)]
    #[param(value_type = Option<String>)]
    profile: ProfileName,
    /// Of this kind only.
    #[param(value_type = Option<String>)]
    kind: Option<MemoryKind>,
    /// In this state only.
    #[param(value_type = Option<String>)]
    state: Option<MemoryState>,
    /// Of this source only.
    source: Option<String>,
    /// Whose path begins so.
    path_prefix: Option<String>,
    /// Also those that were corrected.
    #[serde(default)]
    superseded: bool,
}

async fn resolve_project(
    app: &App,
    request: &OperationRequest,
    project: ProjectRef,
) -> Result<ProjectId, Error> {
    app.read(request, |ctx| Box::pin(async move { projects::resolve_project(ctx, &project).await }))
        .await
}

/// Records something in the memory of a project. What a person writes is found at once; secrets are removed before it is stored.
#[utoipa::path(post, path = "/v1/projects/{project}/memories", tag = "memory", params(("project" = String, Path)),
    request_body = CreateMemory, responses((status = CREATED, body = MemoryView)))]
pub(crate) async fn create_memory(
    Path(ProjectName(project)): Path<ProjectName>,
    call: MutationCall<CreateMemory>,
) -> Result<MutationResponse, ApiError> {
    let MutationCall { app, request, body } = call;
    let project = resolve_project(&app, &request, project).await?;
    let CreateMemory { profile, kind, title, content, source, path, url } = body;
    let source = source.unwrap_or_else(|| DEFAULT_SOURCE.to_owned());
    let text = MemoryText { title, content, source, path, url, commit: None };
    let prepared = memory::records::prepare_memory(&app, kind, text).await?;
    let scope = MemoryScope { project, profile };
    let made = app.run_secret_mutation(&request, |ctx| {
        Box::pin(async move {
            let made = memory::remember(ctx, &scope, RememberBy::default(), prepared).await?;
            Ok(to_memory_view(&made))
        })
    });
    Ok(MutationResponse(StatusCode::CREATED, made.await?))
}

/// Lists records of memory, newest first.
#[utoipa::path(get, path = "/v1/projects/{project}/memories", tag = "memory",
    params(("project" = String, Path), MemoryListQuery, PageQuery), responses((status = OK, body = Page<MemoryView>)))]
pub(crate) async fn list_memories(
    call: AuthenticatedCall,
    Path(ProjectName(project)): Path<ProjectName>,
    Query(wanted): Query<MemoryListQuery>,
    Query(page): Query<PageQuery>,
) -> Result<Json<Page<MemoryView>>, ApiError> {
    let page = page.to_page_request()?;
    let project = resolve_project(&call.app, &call.request, project).await?;
    let MemoryListQuery { profile, kind, state, source, path_prefix, superseded } = wanted;
    let scope = MemoryScope { project, profile };
    let filter = RecordFilter {
        kinds: kind.into_iter().collect(),
        state,
        source,
        path_prefix,
        with_superseded: superseded,
    };
    let found = memory::list_memories(&call.app, &call.request, &scope, &filter, page).await?;
    Ok(Json(found.map(|record| to_memory_view(&record))))
}

/// Returns one record of memory.
#[utoipa::path(get, path = "/v1/memories/{memory}", tag = "memory", params(("memory" = String, Path)),
    responses((status = OK, body = MemoryView)))]
pub(crate) async fn get_memory(
    call: AuthenticatedCall,
    Path(id): Path<MemoryId>,
) -> Result<Json<MemoryView>, ApiError> {
    let found = memory::get_memory(&call.app, &call.request, id).await?;
    Ok(Json(to_memory_view(&found)))
}

/// Corrects a record of memory, pins it, or both. A correction is a new record that supersedes the old one, which is no longer found.
#[utoipa::path(patch, path = "/v1/memories/{memory}", tag = "memory", params(("memory" = String, Path)),
    request_body = UpdateMemory, responses((status = OK, body = MemoryView)))]
pub(crate) async fn update_memory(
    Path(id): Path<MemoryId>,
    call: MutationCall<UpdateMemory>,
) -> Result<MutationResponse, ApiError> {
    let MutationCall { app, request, body } = call;
    let change = memory::prepare_correction(&app, &request, id, body).await?;
    let written = app.run_secret_mutation(&request, |ctx| {
        Box::pin(async move { Ok(to_memory_view(&memory::update_memory(ctx, id, change).await?)) })
    });
    Ok(MutationResponse(StatusCode::OK, written.await?))
}

/// Deletes a record of memory, with the versions of it that were corrected before.
#[utoipa::path(delete, path = "/v1/memories/{memory}", tag = "memory", params(("memory" = String, Path)),
    responses((status = NO_CONTENT)))]
pub(crate) async fn delete_memory(
    Path(id): Path<MemoryId>,
    call: MutationCall<()>,
) -> Result<MutationResponse, ApiError> {
    let done = call.app.mutate(&call.request, |ctx| memory::forget(ctx, id));
    Ok(MutationResponse(StatusCode::NO_CONTENT, done.await?))
}

/// Accepts a record of memory that an agent proposed, or that was rejected: searches find it.
#[utoipa::path(post, path = "/v1/memories/{memory}/accept", tag = "memory", params(("memory" = String, Path)),
    responses((status = OK, body = MemoryView)))]
pub(crate) async fn accept_memory(
    Path(id): Path<MemoryId>,
    call: MutationCall<()>,
) -> Result<MutationResponse, ApiError> {
    let done = call.app.run_secret_mutation(&call.request, |ctx| {
        Box::pin(async move { Ok(to_memory_view(&memory::accept(ctx, id).await?)) })
    });
    Ok(MutationResponse(StatusCode::OK, done.await?))
}

/// Rejects a record of memory: no search finds it, and its text is not proposed again.
#[utoipa::path(post, path = "/v1/memories/{memory}/reject", tag = "memory", params(("memory" = String, Path)),
    responses((status = OK, body = MemoryView)))]
pub(crate) async fn reject_memory(
    Path(id): Path<MemoryId>,
    call: MutationCall<()>,
) -> Result<MutationResponse, ApiError> {
    let done = call.app.run_secret_mutation(&call.request, |ctx| {
        Box::pin(async move { Ok(to_memory_view(&memory::reject(ctx, id).await?)) })
    });
    Ok(MutationResponse(StatusCode::OK, done.await?))
}

/// Searches the memory of a project under a profile. Scores are from 0 to 1, higher is better; hits with equal scores are ordered by id.
#[utoipa::path(post, path = "/v1/projects/{project}/memories/search", tag = "memory", params(("project" = String, Path)),
    request_body = SearchMemories, responses((status = OK, body = MemoryHitsView)))]
pub(crate) async fn search_memories(
    Path(ProjectName(project)): Path<ProjectName>,
    call: MutationCall<SearchMemories>,
) -> Result<Json<MemoryHitsView>, ApiError> {
    let MutationCall { app, request, body } = call;
    let SearchMemories { profile, query, kinds, path_prefix, limit } = body;
    let limit = limit.unwrap_or(DEFAULT_HITS);
    if !(1..=MAX_HITS).contains(&limit) {
        return Err(ApiError::Malformed(format!("`limit` is 1 to {MAX_HITS}")));
    }
    let project = resolve_project(&app, &request, project).await?;
    let scope = MemoryScope { project, profile };
    let query = MemoryQuery { text: query, kinds, path_prefix, limit, task: None };
    let hits = memory::search_memories(&app, &request, &scope, query).await?;
    let hits = hits
        .iter()
        .map(|hit| MemoryHitView { score: hit.score, memory: to_memory_view(&hit.memory) });
    Ok(Json(MemoryHitsView { hits: hits.collect() }))
}

/// Deletes the records of a profile that meet all conditions: a source, an age, or all of them. One request deletes at most 5000 records.
#[utoipa::path(post, path = "/v1/projects/{project}/memories/forget", tag = "memory", params(("project" = String, Path)),
    request_body = ForgetMemories, responses((status = OK, body = ForgottenView)))]
pub(crate) async fn forget_memories(
    Path(ProjectName(project)): Path<ProjectName>,
    call: MutationCall<ForgetMemories>,
) -> Result<MutationResponse, ApiError> {
    let MutationCall { app, request, body } = call;
    let ForgetMemories { profile, source, older_than_days, all } = body;
    if all == (source.is_some() || older_than_days.is_some()) {
        let told = "name `source`, `older_than_days` or both, or `all` alone";
        return Err(ApiError::Malformed(told.into()));
    }
    if older_than_days.is_some_and(|days| days > MAX_AGE_DAYS) {
        return Err(ApiError::Malformed(format!("`older_than_days` is 0 to {MAX_AGE_DAYS}")));
    }
    let project = resolve_project(&app, &request, project).await?;
    let scope = MemoryScope { project, profile };
    let done = app.mutate(&request, |ctx| {
        Box::pin(async move {
            let before = older_than_days.map(|days| ctx.now - time::Duration::days(days.into()));
            let filter = ForgetFilter { source, before, ..ForgetFilter::default() };
            let done = memory::forget_records(ctx, &scope, filter).await?;
            Ok(ForgottenView { forgotten: done.records, more: done.more })
        })
    });
    Ok(MutationResponse(StatusCode::OK, done.await?))
}

/// Exports all records of a profile, corrected ones too, one JSON object per line.
#[utoipa::path(get, path = "/v1/projects/{project}/memories/export", tag = "memory",
    params(("project" = String, Path), MemoryProfileQuery),
    responses((status = OK, body = MemoryView, content_type = "application/x-ndjson")))]
pub(crate) async fn export_memories(
    call: AuthenticatedCall,
    Path(ProjectName(project)): Path<ProjectName>,
    Query(MemoryProfileQuery { profile }): Query<MemoryProfileQuery>,
) -> Result<Response, ApiError> {
    let project = resolve_project(&call.app, &call.request, project).await?;
    let scope = MemoryScope { project, profile };
    let lines = memory::export_memories(&call.app, &call.request, &scope).await?;
    let headers = [
        (header::CONTENT_TYPE, "application/x-ndjson"),
        (header::CONTENT_DISPOSITION, "attachment; filename=\"cynode-memory.ndjson\""),
    ];
    Ok((headers, Body::from_stream(lines)).into_response())
}
