use axum::http::StatusCode;
use cynode_app::{
    Ctx, Error,
    delivery::pull_requests,
    tasks::{
        self, TaskRef,
        projects::{self, ProjectRef},
    },
};
use cynode_core::{ids::TaskId, names::TaskName, paging::Page, tasks::TaskStateName};
use cynode_wire::{
    delivery::TaskDiff,
    tasks::{CreateTask, TaskView},
};
use serde::{Deserialize, Deserializer, de::Error as _};

use crate::{
    error::ApiError,
    extract::{AuthenticatedCall, Json, MutationCall, MutationResponse, PageQuery, Path, Query},
    routes::projects::ProjectName,
};

/// A task in a URL: its id `tsk_…`, or its name together with `?project=`.
#[derive(Clone, Debug)]
pub(crate) enum TaskPathParam {
    Id(TaskId),
    Name(TaskName),
}

impl<'de> Deserialize<'de> for TaskPathParam {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        // No name contains a `_`, so ids and names are disjoint.
        if text.contains('_') {
            text.parse().map(Self::Id).map_err(D::Error::custom)
        } else {
            text.parse().map(Self::Name).map_err(D::Error::custom)
        }
    }
}

/// The project in which a task name is looked up.
#[derive(Clone, Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct ProjectQuery {
    /// The project, by id or slug; required if the task is given by name.
    #[param(value_type = Option<String>)]
    pub(crate) project: Option<ProjectName>,
}

pub(crate) async fn resolve_task(
    ctx: &mut Ctx,
    task: TaskPathParam,
    project: Option<ProjectRef>,
) -> Result<TaskId, Error> {
    let named = match (task, project) {
        (TaskPathParam::Id(id), _) => TaskRef::Id(id),
        (TaskPathParam::Name(name), Some(project)) => {
            TaskRef::Name(projects::resolve_project(ctx, &project).await?, name)
        }
        (TaskPathParam::Name(_), None) => {
            let needed = "a task named by its name needs `?project=`";
            return Err(Error::Invalid(needed.into()));
        }
    };
    tasks::resolve_task(ctx, &named).await
}

/// Creates a task.
#[utoipa::path(post, path = "/v1/tasks", tag = "tasks", request_body = CreateTask,
    responses((status = CREATED, body = TaskView)))]
pub(crate) async fn create_task(
    call: MutationCall<CreateTask>,
) -> Result<MutationResponse, ApiError> {
    let MutationCall { app, request, body } = call;
    Ok(MutationResponse(StatusCode::CREATED, tasks::submit_task(&app, &request, body).await?))
}

/// Filter of tasks.
#[derive(Clone, Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct TaskQuery {
    /// Only tasks of this project, by id or slug.
    #[param(value_type = Option<String>)]
    project: Option<ProjectName>,
    /// Only tasks in this state.
    #[param(value_type = Option<String>)]
    state: Option<TaskStateName>,
}

/// Lists the tasks you may see, newest first.
#[utoipa::path(get, path = "/v1/tasks", tag = "tasks", params(TaskQuery, PageQuery),
    responses((status = OK, body = Page<TaskView>)))]
pub(crate) async fn list_tasks(
    call: AuthenticatedCall,
    Query(wanted): Query<TaskQuery>,
    Query(page): Query<PageQuery>,
) -> Result<Json<Page<TaskView>>, ApiError> {
    let page = page.to_page_request()?;
    let found = call.app.read(&call.request, |ctx| {
        Box::pin(async move {
            let named = wanted.project.as_ref().map(|ProjectName(project)| project);
            let project = projects::resolve_optional_project(ctx, named).await?;
            tasks::list_tasks(ctx, project, wanted.state, page).await
        })
    });
    Ok(Json(found.await?.map(TaskView::from)))
}

/// Returns one task, by id, or by name with `?project=`.
#[utoipa::path(get, path = "/v1/tasks/{task}", tag = "tasks",
    params(("task" = String, Path), ProjectQuery), responses((status = OK, body = TaskView)))]
pub(crate) async fn get_task(
    call: AuthenticatedCall,
    Path(task): Path<TaskPathParam>,
    Query(ProjectQuery { project }): Query<ProjectQuery>,
) -> Result<Json<TaskView>, ApiError> {
    let found = call.app.read(&call.request, |ctx| {
        Box::pin(async move {
            let id = resolve_task(ctx, task, project.map(|name| name.0)).await?;
            tasks::get_task_view(ctx, id).await
        })
    });
    Ok(Json(found.await?))
}

/// Selection of the diff.
#[derive(Clone, Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct TaskDiffQuery {
    /// Only the diff of this file.
    path: Option<String>,
}

/// Returns the unified diff of the newest commit of a task, finished or not, at most one mebibyte.
#[utoipa::path(get, path = "/v1/tasks/{task}/diff", tag = "tasks",
    params(("task" = String, Path), ProjectQuery, TaskDiffQuery), responses((status = OK, body = TaskDiff)))]
pub(crate) async fn task_diff(
    call: AuthenticatedCall,
    Path(task): Path<TaskPathParam>,
    Query(ProjectQuery { project }): Query<ProjectQuery>,
    Query(of): Query<TaskDiffQuery>,
) -> Result<Json<TaskDiff>, ApiError> {
    let id = call.app.read(&call.request, |ctx| {
        Box::pin(async move { resolve_task(ctx, task, project.map(|name| name.0)).await })
    });
    let (id, path) = (id.await?, of.path.as_deref());
    Ok(Json(pull_requests::diff_of_latest_commit(&call.app, &call.request, id, path).await?))
}

/// Mode of the retry.
#[derive(Clone, Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct RetryQuery {
    /// Whether the new task starts from the base branch instead of the best commit so far.
    fresh: Option<bool>,
}

/// Retries a task that failed or was stopped. The new task starts from its best commit so far.
#[utoipa::path(post, path = "/v1/tasks/{task}/retry", tag = "tasks",
    params(("task" = String, Path), ProjectQuery, RetryQuery), request_body = CreateTask,
    responses((status = CREATED, body = TaskView)))]
pub(crate) async fn retry_task(
    Path(task): Path<TaskPathParam>,
    Query(ProjectQuery { project }): Query<ProjectQuery>,
    Query(RetryQuery { fresh }): Query<RetryQuery>,
    call: MutationCall<CreateTask>,
) -> Result<MutationResponse, ApiError> {
    let MutationCall { app, request, mut body } = call;
    let texts = tasks::task_texts(&mut body.description, &mut body.acceptance_criteria);
    cynode_app::platform::redaction::redact_prose(&app, texts).await?;
    let answer = app.mutate(&request, |ctx| {
        Box::pin(async move {
            let id = resolve_task(ctx, task, project.map(|name| name.0)).await?;
            Ok(TaskView::from(tasks::retry_task(ctx, id, fresh.unwrap_or(false), body).await?))
        })
    });
    Ok(MutationResponse(StatusCode::CREATED, answer.await?))
}

/// Cancels a task that has not ended.
#[utoipa::path(post, path = "/v1/tasks/{task}/cancel", tag = "tasks",
    params(("task" = String, Path), ProjectQuery), responses((status = OK, body = TaskView)))]
pub(crate) async fn cancel_task(
    Path(task): Path<TaskPathParam>,
    Query(ProjectQuery { project }): Query<ProjectQuery>,
    call: MutationCall<()>,
) -> Result<MutationResponse, ApiError> {
    let answer = call.app.mutate(&call.request, |ctx| {
        Box::pin(async move {
            let id = resolve_task(ctx, task, project.map(|name| name.0)).await?;
            Ok(TaskView::from(cynode_app::workflow::signals::cancel_task(ctx, id).await?))
        })
    });
    Ok(MutationResponse(StatusCode::OK, answer.await?))
}
