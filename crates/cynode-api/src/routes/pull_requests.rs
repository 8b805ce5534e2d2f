//! Pull requests: the changes that tasks deliver, and their review by people.

use axum::http::StatusCode;
use cynode_app::{delivery::pull_requests, tasks::projects};
use cynode_core::{delivery::PullRequestState, ids::PullRequestId, paging::Page};
use cynode_wire::delivery::{
    ChangedFiles, CommentView, DiffView, NewComment, NewReview, PullRequestDetail,
    PullRequestStateView, PullRequestView, ReviewReceipt,
};
use serde::Deserialize;

use super::projects::ProjectName;
use crate::{
    error::ApiError,
    extract::{AuthenticatedCall, Json, MutationCall, MutationResponse, PageQuery, Path, Query},
};

/// State filter of pull requests.
#[derive(Clone, Copy, Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct PullRequestStateQuery {
    /// Only pull requests in this state.
    #[param(value_type = Option<PullRequestStateView>)]
    state: Option<PullRequestState>,
}

/// Lists the pull requests of a project, newest first.
#[utoipa::path(get, path = "/v1/projects/{project}/pull-requests", tag = "delivery",
    params(("project" = String, Path), PullRequestStateQuery, PageQuery), responses((status = OK, body = Page<PullRequestView>)))]
pub(crate) async fn list_pull_requests(
    Path(ProjectName(project)): Path<ProjectName>,
    call: AuthenticatedCall,
    Query(wanted): Query<PullRequestStateQuery>,
    Query(page): Query<PageQuery>,
) -> Result<Json<Page<PullRequestView>>, ApiError> {
    let page = page.to_page_request()?;
    let found = call.app.read(&call.request, |ctx| {
        Box::pin(async move {
            let id = projects::resolve_project(ctx, &project).await?;
            pull_requests::list_pull_requests(ctx, id, wanted.state, page).await
        })
    });
    Ok(Json(found.await?))
}

/// Returns one pull request with its checks, comments, reviews and deliveries.
#[utoipa::path(get, path = "/v1/pull-requests/{pull_request}", tag = "delivery",
    params(("pull_request" = String, Path)), responses((status = OK, body = PullRequestDetail)))]
pub(crate) async fn get_pull_request(
    Path(id): Path<PullRequestId>,
    call: AuthenticatedCall,
) -> Result<Json<PullRequestDetail>, ApiError> {
    let found = call.app.read(&call.request, |ctx| pull_requests::get_pull_request(ctx, id));
    Ok(Json(found.await?))
}

/// Selection of the diff.
#[derive(Clone, Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct DiffQuery {
    /// Only the diff of this file.
    path: Option<String>,
}

/// Returns the unified diff of a pull request, at most one mebibyte.
#[utoipa::path(get, path = "/v1/pull-requests/{pull_request}/diff", tag = "delivery",
    params(("pull_request" = String, Path), DiffQuery), responses((status = OK, body = DiffView)))]
pub(crate) async fn diff_pull_request(
    Path(id): Path<PullRequestId>,
    call: AuthenticatedCall,
    Query(of): Query<DiffQuery>,
) -> Result<Json<DiffView>, ApiError> {
    let path = of.path.as_deref();
    Ok(Json(pull_requests::diff_pull_request(&call.app, &call.request, id, path).await?))
}

/// Lists the files that a pull request changes.
#[utoipa::path(get, path = "/v1/pull-requests/{pull_request}/files", tag = "delivery",
    params(("pull_request" = String, Path)), responses((status = OK, body = ChangedFiles)))]
pub(crate) async fn pull_request_files(
    Path(id): Path<PullRequestId>,
    call: AuthenticatedCall,
) -> Result<Json<ChangedFiles>, ApiError> {
    Ok(Json(pull_requests::list_changed_files(&call.app, &call.request, id).await?))
}

/// Adds a comment to a pull request.
#[utoipa::path(post, path = "/v1/pull-requests/{pull_request}/comments", tag = "delivery",
    params(("pull_request" = String, Path)), request_body = NewComment,
    responses((status = CREATED, body = CommentView)))]
pub(crate) async fn comment_pull_request(
    Path(id): Path<PullRequestId>,
    call: MutationCall<NewComment>,
) -> Result<MutationResponse, ApiError> {
    let MutationCall { app, request, mut body } = call;
    cynode_app::platform::redaction::redact_prose(&app, vec![&mut body.body]).await?;
    let answer = app.mutate(&request, |ctx| pull_requests::add_comment(ctx, id, body));
    Ok(MutationResponse(StatusCode::CREATED, answer.await?))
}

/// Reviews a pull request.
/// A request for changes is passed once to a follow-up task, at most three times per pull request.
#[utoipa::path(post, path = "/v1/pull-requests/{pull_request}/reviews", tag = "delivery",
    params(("pull_request" = String, Path)), request_body = NewReview,
    responses((status = CREATED, body = ReviewReceipt)))]
pub(crate) async fn review_pull_request(
    Path(id): Path<PullRequestId>,
    call: MutationCall<NewReview>,
) -> Result<MutationResponse, ApiError> {
    let MutationCall { app, request, mut body } = call;
    let remarks = body.comments.iter_mut().map(|comment| &mut comment.body);
    let texts = body.note.iter_mut().chain(remarks).collect();
    cynode_app::platform::redaction::redact_prose(&app, texts).await?;
    let answer = app.mutate(&request, |ctx| pull_requests::submit_review(ctx, id, body));
    Ok(MutationResponse(StatusCode::CREATED, answer.await?))
}

/// Merges a pull request that is hosted here into its base branch. Repeated, it has no further effect.
#[utoipa::path(post, path = "/v1/pull-requests/{pull_request}/merge", tag = "delivery",
    params(("pull_request" = String, Path)), responses((status = OK, body = PullRequestView)))]
pub(crate) async fn merge_pull_request(
    Path(id): Path<PullRequestId>,
    call: AuthenticatedCall,
) -> Result<Json<PullRequestView>, ApiError> {
    Ok(Json(pull_requests::merge_pull_request(&call.app, &call.request, id).await?))
}

/// Closes a pull request without merging it.
#[utoipa::path(post, path = "/v1/pull-requests/{pull_request}/close", tag = "delivery",
    params(("pull_request" = String, Path)), responses((status = OK, body = PullRequestView)))]
pub(crate) async fn close_pull_request(
    Path(id): Path<PullRequestId>,
    call: MutationCall<()>,
) -> Result<MutationResponse, ApiError> {
    let answer = call.app.mutate(&call.request, |ctx| pull_requests::close_pull_request(ctx, id));
    Ok(MutationResponse(StatusCode::OK, answer.await?))
}
