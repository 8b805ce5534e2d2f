use axum::http::StatusCode;
use cynode_app::{
    Ctx, Error,
    projects::{self, ProjectRef},
    tasks::{self, TaskRef},
};
use cynode_core::{ids::TaskId, names::TaskName, tasks::TaskStateName};
use cynode_wire::{
    page::Page,
    tasks::{CreateTask, TaskView},
};
use serde::{Deserialize, Deserializer, de::Error as _};

use crate::{
    error::ApiError,
    extract::{Answered, Call, Json, Mutation, PageQuery, Path, Query},
    routes::projects::ProjectName,
};

/// A task as a URL names it: `tsk_…`, or its name together with `?project=`.
#[derive(Clone, Debug)]
pub(crate) enum TaskInUrl {
    Id(TaskId),
    Name(TaskName),
}

impl<'de> Deserialize<'de> for TaskInUrl {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        // No name has a `_`, so the two never meet.
        if text.contains('_') {
            text.parse().map(Self::Id).map_err(D::Error::custom)
        } else {
            text.parse().map(Self::Name).map_err(D::Error::custom)
        }
    }
}

/// Where a name is to be looked up.
#[derive(Clone, Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct InProject {
    /// The project, by id or slug; needed when the task is given by name.
    #[param(value_type = Option<String>)]
    pub(crate) project: Option<ProjectName>,
}

pub(crate) async fn resolve(
    ctx: &mut Ctx,
    task: TaskInUrl,
    project: Option<ProjectRef>,
) -> Result<TaskId, Error> {
    let named = match (task, project) {
        (TaskInUrl::Id(id), _) => TaskRef::Id(id),
        (TaskInUrl::Name(name), Some(project)) => {
            TaskRef::Name(projects::resolve(ctx, &project).await?, name)
        }
        (TaskInUrl::Name(_), None) => {
            let needed = "a task named by its name needs `?project=`";
            return Err(Error::Invalid(needed.into()));
        }
    };
    tasks::resolve(ctx, &named).await
}

/// Ask for a piece of work.
#[utoipa::path(post, path = "/v1/tasks", tag = "tasks", request_body = CreateTask,
    responses((status = CREATED, body = TaskView)))]
pub(crate) async fn create_task(call: Mutation<CreateTask>) -> Result<Answered, ApiError> {
    let Mutation { app, request, body } = call;
    Ok(Answered(StatusCode::CREATED, tasks::submit(&app, &request, body).await?))
}

/// Which tasks are wanted.
#[derive(Clone, Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct TaskQuery {
    /// Only of this project, by id or slug.
    #[param(value_type = Option<String>)]
    project: Option<ProjectName>,
    /// Only in this state.
    #[param(value_type = Option<String>)]
    state: Option<TaskStateName>,
}

/// The tasks you may see, newest first.
#[utoipa::path(get, path = "/v1/tasks", tag = "tasks", params(TaskQuery, PageQuery),
    responses((status = OK, body = Page<TaskView>)))]
pub(crate) async fn list_tasks(
    call: Call,
    Query(wanted): Query<TaskQuery>,
    Query(page): Query<PageQuery>,
) -> Result<Json<Page<TaskView>>, ApiError> {
    let page = page.page()?;
    let found = call.app.read(&call.request, |ctx| {
        Box::pin(async move {
            let named = wanted.project.as_ref().map(|ProjectName(project)| project);
            let project = projects::resolve_if(ctx, named).await?;
            tasks::list(ctx, project, wanted.state, page).await
        })
    });
    Ok(Json(found.await?.map(TaskView::from)))
}

/// One task, by id, or by name with `?project=`.
#[utoipa::path(get, path = "/v1/tasks/{task}", tag = "tasks",
    params(("task" = String, Path), InProject), responses((status = OK, body = TaskView)))]
pub(crate) async fn get_task(
    call: Call,
    Path(task): Path<TaskInUrl>,
    Query(InProject { project }): Query<InProject>,
) -> Result<Json<TaskView>, ApiError> {
    let found = call.app.read(&call.request, |ctx| {
        Box::pin(async move {
            let id = resolve(ctx, task, project.map(|name| name.0)).await?;
            tasks::get(ctx, id).await
        })
    });
    Ok(Json(found.await?.into()))
}

/// Stop a task that has not ended.
#[utoipa::path(post, path = "/v1/tasks/{task}/cancel", tag = "tasks",
    params(("task" = String, Path), InProject), responses((status = OK, body = TaskView)))]
pub(crate) async fn cancel_task(
    Path(task): Path<TaskInUrl>,
    Query(InProject { project }): Query<InProject>,
    call: Mutation<()>,
) -> Result<Answered, ApiError> {
    let answer = call.app.mutate(&call.request, |ctx| {
        Box::pin(async move {
            let id = resolve(ctx, task, project.map(|name| name.0)).await?;
            Ok(TaskView::from(tasks::cancel(ctx, id).await?))
        })
    });
    Ok(Answered(StatusCode::OK, answer.await?))
}
