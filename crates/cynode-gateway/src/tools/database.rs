//! `db.*`: tasks, jobs, work units, projects, preferences. They read and change what the person whom the agent works for
//! may read and change, inside the agent's project.

use cynode_app::{inference, preferences, projects, tasks, timeline, workflow::signals};
use cynode_core::{
    agents::ToolScope,
    budget::Budget,
    ids::{JobId, ProjectId, TaskId},
    names::{DottedKey, Prose, TaskName},
    preferences::Scope,
    tasks::{Criterion, TaskStateName},
};
use cynode_policy::catalogue::{Annotations, Binding};
use cynode_wire::{
    page::{Cursor, PageRequest},
    projects::ProjectView,
    tasks::{CreateTask, CriterionView, TaskView},
};
use serde::Deserialize;
use serde_json::{Value, json};
use utoipa::ToSchema;

use super::{About, Invocation, Native, ToolError, value};

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct OneTask {
    /// The task.
    #[schema(value_type = String)]
    task_id: TaskId,
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct ListTasks {
    /// The project; yours when it is left out.
    #[schema(value_type = Option<String>)]
    project_id: Option<ProjectId>,
    /// Only in this state: queued, running, completed, failed or cancelled.
    #[schema(value_type = Option<String>)]
    state: Option<TaskStateName>,
    /// The `next_cursor` of the page before.
    #[schema(value_type = Option<String>)]
    cursor: Option<Cursor>,
    /// Most tasks, 1 to 200.
    limit: Option<u16>,
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct NewTask {
    /// The project.
    #[schema(value_type = String)]
    project_id: ProjectId,
    /// Its name, unique in the project: with it, the same call again makes no second task.
    #[schema(value_type = Option<String>)]
    name: Option<TaskName>,
    /// What is to be done.
    #[schema(value_type = String)]
    description: Prose,
    /// What must be shown for it to be done.
    #[serde(default)]
    #[schema(value_type = Vec<CriterionView>)]
    acceptance_criteria: Vec<Criterion>,
    /// What must be completed before it may start.
    #[serde(default)]
    #[schema(value_type = Vec<String>)]
    depends_on: Vec<TaskId>,
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct UpdateTask {
    /// The task.
    #[schema(value_type = String)]
    task_id: TaskId,
    /// What is to be done instead. Only a task that nobody works on yet can be changed.
    description: String,
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct UpdateStatus {
    /// The task.
    #[schema(value_type = String)]
    task_id: TaskId,
    /// `cancelled`. Every other state follows from the work itself and cannot be set.
    status: String,
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct OneJob {
    /// The task.
    #[schema(value_type = String)]
    task_id: TaskId,
    /// The job.
    #[schema(value_type = String)]
    job_id: JobId,
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct OneUnit {
    /// The task.
    #[schema(value_type = String)]
    task_id: TaskId,
    /// The key of the unit in the plan.
    unit: String,
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct OneProject {
    /// The project; yours when it is left out.
    #[schema(value_type = Option<String>)]
    project_id: Option<ProjectId>,
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct OnePreference {
    /// The project; yours when it is left out.
    #[schema(value_type = Option<String>)]
    project_id: Option<ProjectId>,
    /// The key.
    key: String,
}

const READ: (ToolScope, Annotations) = (ToolScope::Pm, Annotations::READS);
const WRITE: (ToolScope, Annotations) = (ToolScope::Pm, Annotations::WRITES);
const MAKE: (ToolScope, Annotations) = (ToolScope::Pm, Annotations::ADDS);
const END: (ToolScope, Annotations) = (ToolScope::Pm, Annotations::ENDS);

fn about(
    name: &'static str,
    title: &'static str,
    description: &'static str,
    (scope, annotations): (ToolScope, Annotations),
    binding: Binding,
) -> About {
    About { name, title, description, scope, binding, annotations }
}

#[expect(clippy::too_many_lines, reason = "one entry for each tool")]
pub(super) fn tools() -> Vec<Native> {
    vec![
        about(
            "db.task.get",
            "Read a task",
            "One task with its state, criteria and budget.",
            READ,
            Binding::TASK,
        )
        .does(get_task),
        about(
            "db.task.list",
            "List tasks",
            "The tasks of the project, newest first.",
            READ,
            Binding::NONE,
        )
        .does(list_tasks),
        about(
            "db.task.create",
            "Ask for work",
            "Creates a task in the project. It is planned and driven by itself.",
            MAKE,
            Binding::NONE,
        )
        .does(create_task),
        about(
            "db.task.update",
            "Change a task",
            "Changes the description of a task that nobody works on yet.",
            WRITE,
            Binding::TASK,
        )
        .does(update_task),
        about(
            "db.task.update_status",
            "Set a task's status",
            "Stops a task. Other states follow from the work and cannot be set.",
            END,
            Binding::TASK,
        )
        .does(update_status),
        about(
            "db.task.result",
            "Read a task's result",
            "How a task stands or ended: state, units, cost, failure.",
            READ,
            Binding::TASK,
        )
        .does(result),
        about(
            "db.task.cancel",
            "Stop a task",
            "Stops a task and everything that depends on it.",
            END,
            Binding::TASK,
        )
        .does(cancel_task),
        about(
            "db.task.logs",
            "Read a task's story",
            "Every step, wait and job of a task's run, oldest first.",
            READ,
            Binding::TASK,
        )
        .does(logs),
        about("db.job.list", "List jobs", "The jobs of a task.", READ, Binding::TASK)
            .does(list_jobs),
        about("db.job.get", "Read a job", "One job of a task.", READ, Binding::JOB).does(get_job),
        about(
            "db.work_unit.list",
            "List work units",
            "The units of a task's plan.",
            READ,
            Binding::TASK,
        )
        .does(list_units),
        about(
            "db.work_unit.get",
            "Read a work unit",
            "One unit of a task's plan.",
            READ,
            Binding::TASK,
        )
        .does(get_unit),
        about(
            "db.project.get",
            "Read the project",
            "The project you work in.",
            READ,
            Binding::NONE,
        )
        .does(get_project),
        about(
            "db.project.list",
            "List projects",
            "The projects you may see: the one you work in.",
            READ,
            Binding::NONE,
        )
        .does(list_projects),
        about(
            "db.preference.list",
            "List preferences",
            "The preferences of the project.",
            READ,
            Binding::NONE,
        )
        .does(list_preferences),
        about(
            "db.preference.get",
            "Read a preference",
            "One preference of the project.",
            READ,
            Binding::NONE,
        )
        .does(get_preference),
        about(
            "db.preference.effective",
            "What holds for a task",
            "The preferences that hold for a task, and who said so.",
            READ,
            Binding::TASK,
        )
        .does(effective),
    ]
}

async fn get_task(call: Invocation, OneTask { task_id }: OneTask) -> Result<TaskView, ToolError> {
    // The program that drives tasks sees any of them.
    if call.service.is_some() {
        return Ok(tasks::of_any_project(&call.app, task_id).await?.into());
    }
    let found = call.app.read(&call.request, |ctx| Box::pin(tasks::get(ctx, task_id))).await?;
    Ok(found.into())
}

fn own_project(call: &Invocation, given: Option<ProjectId>) -> Result<ProjectId, ToolError> {
    given.or(call.agent.project).ok_or_else(|| ToolError::invalid("`project_id` is missing"))
}

async fn list_tasks(call: Invocation, wanted: ListTasks) -> Result<Value, ToolError> {
    let project = own_project(&call, wanted.project_id)?;
    let limit = wanted.limit.unwrap_or(PageRequest::DEFAULT).clamp(1, PageRequest::MAX);
    let page = PageRequest { after: wanted.cursor, limit };
    let found = call
        .app
        .read(&call.request, |ctx| Box::pin(tasks::list(ctx, Some(project), wanted.state, page)))
        .await?;
    Ok(json!(found.map(TaskView::from)))
}

async fn create_task(call: Invocation, body: NewTask) -> Result<Value, ToolError> {
    let NewTask { project_id, name, description, acceptance_criteria, depends_on } = body;
    // What a task may spend is for people to say.
    let budget = Budget::default();
    let body =
        CreateTask { project_id, name, description, acceptance_criteria, budget, depends_on };
    value(&tasks::submit(&call.app, &call.request, body).await?)
}

async fn update_task(call: Invocation, body: UpdateTask) -> Result<Value, ToolError> {
    let mut description: Prose = body
        .description
        .parse()
        .map_err(|error| ToolError::invalid(format!("`description`: {error}")))?;
    inference::without_secrets(&call.app, vec![&mut description]).await?;
    let id = body.task_id;
    let answer = call.app.mutate(&call.request, |ctx| {
        Box::pin(async move { Ok(TaskView::from(tasks::describe(ctx, id, description).await?)) })
    });
    value(&answer.await?)
}

async fn update_status(call: Invocation, body: UpdateStatus) -> Result<Value, ToolError> {
    if body.status != "cancelled" {
        let told = "only `cancelled` can be set: the other states follow from the work, which the workflow drives";
        return Err(ToolError::invalid(told));
    }
    cancel_task(call, OneTask { task_id: body.task_id }).await
}

async fn cancel_task(call: Invocation, OneTask { task_id }: OneTask) -> Result<Value, ToolError> {
    let answer = call.app.mutate(&call.request, |ctx| {
        Box::pin(async move { Ok(TaskView::from(tasks::cancel(ctx, task_id).await?)) })
    });
    value(&answer.await?)
}

async fn story(call: &Invocation, id: TaskId) -> Result<Value, ToolError> {
    let story = if call.service.is_some() {
        timeline::of_any_project(&call.app, id).await?
    } else {
        call.app.read(&call.request, |ctx| Box::pin(timeline::get(ctx, id))).await?
    };
    Ok(json!(story))
}

async fn result(call: Invocation, OneTask { task_id }: OneTask) -> Result<Value, ToolError> {
    let mut story = story(&call, task_id).await?;
    for long in ["steps", "waits", "jobs", "mermaid", "plan_mermaid"] {
        if let Some(object) = story.as_object_mut() {
            object.remove(long);
        }
    }
    Ok(story)
}

async fn logs(call: Invocation, OneTask { task_id }: OneTask) -> Result<Value, ToolError> {
    let story = story(&call, task_id).await?;
    Ok(
        json!({ "task_id": task_id, "standing": story["standing"], "steps": story["steps"], "waits": story["waits"], "jobs": story["jobs"] }),
    )
}

async fn list_jobs(call: Invocation, OneTask { task_id }: OneTask) -> Result<Value, ToolError> {
    Ok(json!({ "jobs": story(&call, task_id).await?["jobs"] }))
}

async fn get_job(call: Invocation, OneJob { task_id, job_id }: OneJob) -> Result<Value, ToolError> {
    let story = story(&call, task_id).await?;
    let found =
        story["jobs"].as_array().into_iter().flatten().find(|job| job["job_id"] == json!(job_id));
    found.cloned().ok_or_else(|| ToolError {
        code: "not_found",
        detail: format!("job `{job_id}` does not exist"),
        fix: None,
    })
}

async fn list_units(call: Invocation, OneTask { task_id }: OneTask) -> Result<Value, ToolError> {
    Ok(json!({ "units": story(&call, task_id).await?["units"] }))
}

async fn get_unit(
    call: Invocation,
    OneUnit { task_id, unit }: OneUnit,
) -> Result<Value, ToolError> {
    let story = story(&call, task_id).await?;
    let found =
        story["units"].as_array().into_iter().flatten().find(|found| found["key"] == json!(unit));
    found.cloned().ok_or_else(|| ToolError {
        code: "not_found",
        detail: "there is no such unit".into(),
        fix: None,
    })
}

async fn get_project(call: Invocation, body: OneProject) -> Result<ProjectView, ToolError> {
    let project = own_project(&call, body.project_id)?;
    let found = call
        .app
        .read(&call.request, |ctx| {
            Box::pin(async move { projects::get(ctx, &projects::ProjectRef::Id(project)).await })
        })
        .await?;
    Ok(found.into())
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct Nothing {}

async fn list_projects(call: Invocation, Nothing {}: Nothing) -> Result<Value, ToolError> {
    let own = get_project(call, OneProject { project_id: None }).await?;
    Ok(json!({ "items": [own] }))
}

async fn list_preferences(call: Invocation, body: OneProject) -> Result<Value, ToolError> {
    let scope = Scope::Project(own_project(&call, body.project_id)?);
    let found = call.app.read(&call.request, |ctx| Box::pin(preferences::list(ctx, scope))).await?;
    let items: Vec<_> = found
        .into_iter()
        .map(|held| json!({ "key": held.key, "value": held.value, "version": held.version }))
        .collect();
    Ok(json!({ "items": items }))
}

async fn get_preference(call: Invocation, body: OnePreference) -> Result<Value, ToolError> {
    let scope = Scope::Project(own_project(&call, body.project_id)?);
    let key: DottedKey =
        body.key.parse().map_err(|error| ToolError::invalid(format!("`key`: {error}")))?;
    let held = call
        .app
        .read(&call.request, |ctx| {
            Box::pin(async move { preferences::get(ctx, scope, &key).await })
        })
        .await?;
    Ok(json!({ "key": held.key, "value": held.value, "version": held.version }))
}

async fn effective(call: Invocation, OneTask { task_id }: OneTask) -> Result<Value, ToolError> {
    let about = preferences::About::Task(task_id);
    let role = call.agent.role;
    let found = call
        .app
        .read(&call.request, |ctx| Box::pin(preferences::effective(ctx, about, Some(role))))
        .await?;
    let view: cynode_wire::preferences::EffectiveView = found.into();
    Ok(json!(view))
}

/// What the manager may tell a running task; used by `pm.instruct`.
pub(super) async fn instruct(
    call: Invocation,
    task: TaskId,
    mut body: cynode_wire::timeline::Instruct,
) -> Result<Value, ToolError> {
    inference::without_secrets(&call.app, body.text.iter_mut().collect()).await?;
    let agent = call.agent.token;
    let answer = call.app.mutate(&call.request, |ctx| {
        Box::pin(async move { signals::reply(ctx, agent, task, &body).await })
    });
    value(&answer.await?)
}
