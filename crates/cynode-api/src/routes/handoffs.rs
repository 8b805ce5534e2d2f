//! Handoffs to the project manager and to analysts, and conversations with the manager, for people.

use axum::http::StatusCode;
use cynode_app::{
    manager::{conversations, handoffs, replays},
    tasks::projects,
};
use cynode_core::{
    ids::{HandoffId, TaskId, ThreadId},
    paging::Page,
    workflow::reports::ReportView,
};
use cynode_wire::manager::handoffs::{
    ChatTurn, DecisionReplayView, DecisionReplays, HandoffView, ReplayDecision, ThreadView,
};
use serde::Deserialize;
use serde_json::Value;

use super::{projects::ProjectName, tools::UnpagedList};
use crate::{
    error::ApiError,
    extract::{AuthenticatedCall, Json, MutationCall, MutationResponse, PageQuery, Path, Query},
};

/// Filter of handoffs.
#[derive(Clone, Copy, Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct HandoffQuery {
    /// Only handoffs of this task.
    #[param(value_type = Option<String>)]
    task_id: Option<TaskId>,
}

/// Lists the handoffs of a project to the project manager and to analysts, newest first, with their decisions.
#[utoipa::path(get, path = "/v1/projects/{project}/handoffs", tag = "manager",
    params(("project" = String, Path), HandoffQuery, PageQuery), responses((status = OK, body = Page<HandoffView>)))]
pub(crate) async fn list_handoffs(
    Path(ProjectName(project)): Path<ProjectName>,
    call: AuthenticatedCall,
    Query(of): Query<HandoffQuery>,
    Query(page): Query<PageQuery>,
) -> Result<Json<Page<HandoffView>>, ApiError> {
    let page = page.to_page_request()?;
    let found = call.app.read(&call.request, |ctx| {
        Box::pin(async move {
            let id = projects::resolve_project(ctx, &project).await?;
            handoffs::list_handoffs(ctx, id, of.task_id, page).await
        })
    });
    Ok(Json(found.await?))
}

/// Returns one handoff.
#[utoipa::path(get, path = "/v1/handoffs/{handoff}", tag = "manager", params(("handoff" = String, Path)),
    responses((status = OK, body = HandoffView)))]
pub(crate) async fn get_handoff(
    Path(id): Path<HandoffId>,
    call: AuthenticatedCall,
) -> Result<Json<HandoffView>, ApiError> {
    let found = call.app.read(&call.request, |ctx| handoffs::get_handoff(ctx, id));
    Ok(Json(found.await?))
}

/// Returns the whole model request behind a decision, as long as it is stored.
#[utoipa::path(get, path = "/v1/handoffs/{handoff}/decisions/{step}/prompt", tag = "manager",
    params(("handoff" = String, Path), ("step" = u32, Path)), responses((status = OK, body = Object)))]
pub(crate) async fn get_prompt(
    Path((id, step)): Path<(HandoffId, u32)>,
    call: AuthenticatedCall,
) -> Result<Json<Value>, ApiError> {
    let found = call.app.read(&call.request, |ctx| handoffs::get_think_prompt(ctx, id, step));
    Ok(Json(found.await?))
}

/// Has a decision asked again with its recorded prompt, by the same model or another one that you may use in the project, and answers when the
/// model has. Nothing of the task changes; the project pays for the call. It is refused when the prompt is no longer stored.
#[utoipa::path(post, path = "/v1/handoffs/{handoff}/decisions/{step}/replays", tag = "manager", request_body = ReplayDecision,
    params(("handoff" = String, Path), ("step" = u32, Path)), responses((status = OK, body = DecisionReplayView)))]
pub(crate) async fn replay_decision(
    Path((id, step)): Path<(HandoffId, u32)>,
    call: MutationCall<ReplayDecision>,
) -> Result<MutationResponse, ApiError> {
    let MutationCall { app, request, body } = call;
    let replayed = replays::replay_decision(&app, &request, id, step, body).await?;
    Ok(MutationResponse(StatusCode::OK, replayed))
}

/// Returns a decision as it was recorded, and its replays, newest first, with the fields in which each differs.
#[utoipa::path(get, path = "/v1/handoffs/{handoff}/decisions/{step}/replays", tag = "manager",
    params(("handoff" = String, Path), ("step" = u32, Path)), responses((status = OK, body = DecisionReplays)))]
pub(crate) async fn list_replays(
    Path((id, step)): Path<(HandoffId, u32)>,
    call: AuthenticatedCall,
) -> Result<Json<DecisionReplays>, ApiError> {
    let found = call.app.read(&call.request, |ctx| replays::list_decision_replays(ctx, id, step));
    Ok(Json(found.await?))
}

/// Lists the reports of agents about a task, oldest first. A report is a claim, not evidence.
#[utoipa::path(get, path = "/v1/tasks/{task}/reports", tag = "tasks", params(("task" = String, Path)),
    responses((status = OK, body = UnpagedList<ReportView>)))]
pub(crate) async fn list_reports(
    Path(id): Path<TaskId>,
    call: AuthenticatedCall,
) -> Result<Json<UnpagedList<ReportView>>, ApiError> {
    let found = call.app.read(&call.request, |ctx| handoffs::list_task_reports(ctx, id));
    Ok(Json(UnpagedList::new(found.await?)))
}

/// Lists your conversations with the project manager, newest first.
#[utoipa::path(get, path = "/v1/chat/threads", tag = "manager", params(PageQuery),
    responses((status = OK, body = Page<ThreadView>)))]
pub(crate) async fn list_threads(
    call: AuthenticatedCall,
    Query(page): Query<PageQuery>,
) -> Result<Json<Page<ThreadView>>, ApiError> {
    let page = page.to_page_request()?;
    let found = call.app.read(&call.request, |ctx| conversations::list_threads(ctx, page));
    Ok(Json(found.await?))
}

/// Lists the messages of one of your conversations, oldest first.
#[utoipa::path(get, path = "/v1/chat/threads/{thread}/messages", tag = "manager", params(("thread" = String, Path)),
    responses((status = OK, body = UnpagedList<ChatTurn>)))]
pub(crate) async fn list_messages(
    Path(id): Path<ThreadId>,
    call: AuthenticatedCall,
) -> Result<Json<UnpagedList<ChatTurn>>, ApiError> {
    let found = call.app.read(&call.request, |ctx| conversations::list_messages(ctx, id));
    Ok(Json(UnpagedList::new(found.await?)))
}
