//! Estimates of tasks before they are created.

use cynode_app::tasks::estimates;
use cynode_wire::tasks::{CreateTask, TaskEstimate};

use crate::{
    error::ApiError,
    extract::{Json, MutationCall},
};

/// Estimates the cost and the duration of a task from completed tasks of its project, or of all projects. Nothing is created.
#[utoipa::path(post, path = "/v1/task-estimates", tag = "tasks", request_body = CreateTask,
    responses((status = OK, body = TaskEstimate)))]
pub(crate) async fn estimate_task(
    call: MutationCall<CreateTask>,
) -> Result<Json<TaskEstimate>, ApiError> {
    let MutationCall { app, request, body } = call;
    let project = body.project_id;
    let found = app.read(&request, |ctx| estimates::estimate_task(ctx, project));
    Ok(Json(found.await?))
}
