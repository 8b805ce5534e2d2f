use axum::http::StatusCode;
use cynode_app::{evidence, inference, timeline, workflow::signals};
use cynode_wire::{
    evidence::TaskEvidence,
    tasks::TaskView,
    timeline::{AnswerQuestion, Approve, Instruct, Instructed, Timeline},
};

use crate::{
    error::ApiError,
    extract::{Answered, Call, Json, Mutation, Path, Query},
    routes::tasks::{InProject, TaskInUrl, resolve},
};

/// Tell a task something while it runs: pause, continue, abort, revise, expand or reduce its scope.
#[utoipa::path(post, path = "/v1/tasks/{task}/instructions", tag = "tasks", request_body = Instruct,
    params(("task" = String, Path), InProject), responses((status = ACCEPTED, body = Instructed)))]
pub(crate) async fn instruct_task(
    Path(task): Path<TaskInUrl>,
    Query(InProject { project }): Query<InProject>,
    call: Mutation<Instruct>,
) -> Result<Answered, ApiError> {
    let Mutation { app, request, mut body } = call;
    inference::without_secrets(&app, body.text.iter_mut().collect()).await?;
    let answer = app.mutate(&request, |ctx| {
        Box::pin(async move {
            let id = resolve(ctx, task, project.map(|name| name.0)).await?;
            signals::instruct(ctx, id, &body).await
        })
    });
    Ok(Answered(StatusCode::ACCEPTED, answer.await?))
}

/// Say yes or no to the plan that a task waits with.
#[utoipa::path(post, path = "/v1/tasks/{task}/approve", tag = "tasks", request_body = Approve,
    params(("task" = String, Path), InProject), responses((status = OK, body = TaskView)))]
pub(crate) async fn approve_task(
    Path(task): Path<TaskInUrl>,
    Query(InProject { project }): Query<InProject>,
    call: Mutation<Approve>,
) -> Result<Answered, ApiError> {
    let Mutation { app, request, mut body } = call;
    inference::without_secrets(&app, body.note.iter_mut().collect()).await?;
    let answer = app.mutate(&request, |ctx| {
        Box::pin(async move {
            let id = resolve(ctx, task, project.map(|name| name.0)).await?;
            Ok(TaskView::from(signals::approve(ctx, id, &body).await?))
        })
    });
    Ok(Answered(StatusCode::OK, answer.await?))
}

/// Answer the question that a task waits with.
#[utoipa::path(post, path = "/v1/tasks/{task}/answer", tag = "tasks", request_body = AnswerQuestion,
    params(("task" = String, Path), InProject), responses((status = OK, body = TaskView)))]
pub(crate) async fn answer_task(
    Path(task): Path<TaskInUrl>,
    Query(InProject { project }): Query<InProject>,
    call: Mutation<AnswerQuestion>,
) -> Result<Answered, ApiError> {
    let Mutation { app, request, mut body } = call;
    inference::without_secrets(&app, vec![&mut body.text]).await?;
    let answer = app.mutate(&request, |ctx| {
        Box::pin(async move {
            let id = resolve(ctx, task, project.map(|name| name.0)).await?;
            Ok(TaskView::from(signals::answer(ctx, id, &body).await?))
        })
    });
    Ok(Answered(StatusCode::OK, answer.await?))
}

/// What happened to a task: steps, waits, jobs, cost, and where it stands, drawn.
#[utoipa::path(get, path = "/v1/tasks/{task}/timeline", tag = "tasks",
    params(("task" = String, Path), InProject), responses((status = OK, body = Timeline)))]
pub(crate) async fn task_timeline(
    call: Call,
    Path(task): Path<TaskInUrl>,
    Query(InProject { project }): Query<InProject>,
) -> Result<Json<Timeline>, ApiError> {
    let found = call.app.read(&call.request, |ctx| {
        Box::pin(async move {
            let id = resolve(ctx, task, project.map(|name| name.0)).await?;
            timeline::get(ctx, id).await
        })
    });
    Ok(Json(found.await?))
}

/// What was shown of a task, by checks that no agent ran.
#[utoipa::path(get, path = "/v1/tasks/{task}/evidence", tag = "tasks",
    params(("task" = String, Path), InProject), responses((status = OK, body = TaskEvidence)))]
pub(crate) async fn task_evidence(
    call: Call,
    Path(task): Path<TaskInUrl>,
    Query(InProject { project }): Query<InProject>,
) -> Result<Json<TaskEvidence>, ApiError> {
    let found = call.app.read(&call.request, |ctx| {
        Box::pin(async move {
            let id = resolve(ctx, task, project.map(|name| name.0)).await?;
            evidence::get(ctx, id).await
        })
    });
    Ok(Json(found.await?))
}
