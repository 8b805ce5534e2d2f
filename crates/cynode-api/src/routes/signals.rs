use axum::{
    http::{HeaderMap, StatusCode},
    response::Response,
};
use cynode_app::{
    delivery::evidence,
    workflow::{signals, timeline},
};
use cynode_wire::{
    delivery::evidence::TaskEvidence,
    tasks::TaskView,
    workflow::timeline::{
        AnswerQuestion, ApprovePlan, InstructTask, InstructionReceipt, TaskTimeline,
    },
};

use crate::{
    error::ApiError,
    etag::json_with_etag,
    extract::{AuthenticatedCall, Json, MutationCall, MutationResponse, Path, Query},
    routes::tasks::{ProjectQuery, TaskPathParam, resolve_task},
};

/// Sends an instruction to a running task: pause, resume, abort, revise, expand or reduce its scope.
#[utoipa::path(post, path = "/v1/tasks/{task}/instructions", tag = "tasks", request_body = InstructTask,
    params(("task" = String, Path), ProjectQuery), responses((status = ACCEPTED, body = InstructionReceipt)))]
pub(crate) async fn instruct_task(
    Path(task): Path<TaskPathParam>,
    Query(ProjectQuery { project }): Query<ProjectQuery>,
    call: MutationCall<InstructTask>,
) -> Result<MutationResponse, ApiError> {
    let MutationCall { app, request, mut body } = call;
    cynode_app::platform::redaction::redact_prose(&app, body.text.iter_mut().collect()).await?;
    let answer = app.mutate(&request, |ctx| {
        Box::pin(async move {
            let id = resolve_task(ctx, task, project.map(|name| name.0)).await?;
            signals::instruct_task(ctx, id, &body).await
        })
    });
    Ok(MutationResponse(StatusCode::ACCEPTED, answer.await?))
}

/// Approves or rejects the plan of a waiting task.
#[utoipa::path(post, path = "/v1/tasks/{task}/approve", tag = "tasks", request_body = ApprovePlan,
    params(("task" = String, Path), ProjectQuery), responses((status = OK, body = TaskView)))]
pub(crate) async fn approve_task(
    Path(task): Path<TaskPathParam>,
    Query(ProjectQuery { project }): Query<ProjectQuery>,
    call: MutationCall<ApprovePlan>,
) -> Result<MutationResponse, ApiError> {
    let MutationCall { app, request, mut body } = call;
    cynode_app::platform::redaction::redact_prose(&app, body.note.iter_mut().collect()).await?;
    let answer = app.mutate(&request, |ctx| {
        Box::pin(async move {
            let id = resolve_task(ctx, task, project.map(|name| name.0)).await?;
            Ok(TaskView::from(signals::approve_plan(ctx, id, &body).await?))
        })
    });
    Ok(MutationResponse(StatusCode::OK, answer.await?))
}

/// Answers the question of a waiting task.
#[utoipa::path(post, path = "/v1/tasks/{task}/answer", tag = "tasks", request_body = AnswerQuestion,
    params(("task" = String, Path), ProjectQuery), responses((status = OK, body = TaskView)))]
pub(crate) async fn answer_task(
    Path(task): Path<TaskPathParam>,
    Query(ProjectQuery { project }): Query<ProjectQuery>,
    call: MutationCall<AnswerQuestion>,
) -> Result<MutationResponse, ApiError> {
    let MutationCall { app, request, mut body } = call;
    cynode_app::platform::redaction::redact_prose(&app, vec![&mut body.text]).await?;
    let answer = app.mutate(&request, |ctx| {
        Box::pin(async move {
            let id = resolve_task(ctx, task, project.map(|name| name.0)).await?;
            Ok(TaskView::from(signals::answer_task_question(ctx, id, &body).await?))
        })
    });
    Ok(MutationResponse(StatusCode::OK, answer.await?))
}

/// Returns the timeline of a task: steps, waits, jobs, cost, and its current position as a drawing. A client that sends
/// the entity tag of its last answer in `If-None-Match` gets it again only if it has changed.
#[utoipa::path(get, path = "/v1/tasks/{task}/timeline", tag = "tasks",
    params(("task" = String, Path), ProjectQuery), responses((status = OK, body = TaskTimeline)))]
pub(crate) async fn task_timeline(
    call: AuthenticatedCall,
    Path(task): Path<TaskPathParam>,
    Query(ProjectQuery { project }): Query<ProjectQuery>,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let found = call.app.read(&call.request, |ctx| {
        Box::pin(async move {
            let id = resolve_task(ctx, task, project.map(|name| name.0)).await?;
            timeline::get_timeline(ctx, id).await
        })
    });
    Ok(json_with_etag(&found.await?, &headers))
}

/// Returns the evidence of a task: results of checks that no agent ran.
#[utoipa::path(get, path = "/v1/tasks/{task}/evidence", tag = "tasks",
    params(("task" = String, Path), ProjectQuery), responses((status = OK, body = TaskEvidence)))]
pub(crate) async fn task_evidence(
    call: AuthenticatedCall,
    Path(task): Path<TaskPathParam>,
    Query(ProjectQuery { project }): Query<ProjectQuery>,
) -> Result<Json<TaskEvidence>, ApiError> {
    let found = call.app.read(&call.request, |ctx| {
        Box::pin(async move {
            let id = resolve_task(ctx, task, project.map(|name| name.0)).await?;
            evidence::get_evidence(ctx, id).await
        })
    });
    Ok(Json(found.await?))
}

/// Runs the checks of an ended task again, on the commits that it left and in fresh sandboxes. The evidence so far becomes stale. Refused
/// while the task runs its checks, and before it has ended: until then its run goes by them.
#[utoipa::path(post, path = "/v1/tasks/{task}/evidence/rerun", tag = "tasks",
    params(("task" = String, Path), ProjectQuery), responses((status = ACCEPTED, body = TaskEvidence)))]
pub(crate) async fn rerun_evidence(
    Path(task): Path<TaskPathParam>,
    Query(ProjectQuery { project }): Query<ProjectQuery>,
    call: MutationCall<()>,
) -> Result<MutationResponse, ApiError> {
    let answer = call.app.mutate(&call.request, |ctx| {
        Box::pin(async move {
            let id = resolve_task(ctx, task, project.map(|name| name.0)).await?;
            evidence::rerun_checks(ctx, id).await
        })
    });
    Ok(MutationResponse(StatusCode::ACCEPTED, answer.await?))
}
