//! `db.*`: tasks, jobs, work units, projects and preferences. An agent reads and changes what its user may, within its own project.

use cynode_app::{
    tasks::{self, preferences, projects},
    workflow::{signals, timeline},
};
use cynode_core::{
    agents::ToolScope,
    budget::Budget,
    ids::{JobId, ProjectId, TaskId},
    names::{DottedKey, Prose, TaskName},
    paging::{Cursor, PageRequest},
    preferences::PreferenceScope,
    tasks::{Criterion, TaskStateName},
    tools::ToolAnnotations,
    workflow::{
        decisions::{IssueScope, WorkClass},
        handoffs::TaskRefinement,
    },
};
use cynode_policy::catalogue::IdBinding;
use cynode_wire::tasks::{CreateTask, CriterionView, TaskView, projects::ProjectView};
use serde::Deserialize;
use serde_json::{Value, json};
use utoipa::ToSchema;

use super::{NativeTool, ToolError, ToolInvocation, ToolSpec, answer_value};

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct TaskArgs {
    /// The task.
    #[schema(value_type = String)]
    task_id: TaskId,
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct ListTasksArgs {
    /// The project; your own if omitted.
    #[schema(value_type = Option<String>)]
    project_id: Option<ProjectId>,
    /// Only tasks in this state: queued, running, completed, failed or cancelled.
    #[schema(value_type = Option<String>)]
    state: Option<TaskStateName>,
    /// The `next_cursor` of the previous page.
    #[schema(value_type = Option<String>)]
    cursor: Option<Cursor>,
    /// Maximum number of tasks, 1 to 200.
    limit: Option<u16>,
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct CreateTaskArgs {
    /// The project.
    #[schema(value_type = String)]
    project_id: ProjectId,
    /// Name of the task, unique in the project. It makes the call idempotent: the same call again creates no second task.
    #[schema(value_type = Option<String>)]
    name: Option<TaskName>,
    /// Description of the work.
    #[schema(value_type = String)]
    description: Prose,
    /// Acceptance criteria: evidence that the task is done.
    #[serde(default)]
    #[schema(value_type = Vec<CriterionView>)]
    acceptance_criteria: Vec<Criterion>,
    /// Tasks that must be completed before this one may start.
    #[serde(default)]
    #[schema(value_type = Vec<String>)]
    depends_on: Vec<TaskId>,
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct UpdateTaskArgs {
    /// The task.
    #[schema(value_type = String)]
    task_id: TaskId,
    /// New description of the work. Only a task that has not started can be changed.
    description: String,
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct RefineTaskArgs {
    /// The task.
    #[schema(value_type = String)]
    task_id: TaskId,
    /// `quick_fix`, `feature_request` or `new_project`.
    #[schema(value_type = String)]
    class: WorkClass,
    /// `trivial`, `small`, `medium` or `large`.
    #[schema(value_type = String)]
    scope: IssueScope,
    /// What must hold when the task is done, at most 100.
    requirements: Vec<String>,
    /// What the plan takes for granted, at most 100.
    assumptions: Vec<String>,
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct UpdateStatusArgs {
    /// The task.
    #[schema(value_type = String)]
    task_id: TaskId,
    /// `cancelled`. Every other state follows from the work itself and cannot be set.
    status: String,
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct JobArgs {
    /// The task.
    #[schema(value_type = String)]
    task_id: TaskId,
    /// The job.
    #[schema(value_type = String)]
    job_id: JobId,
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct WorkUnitArgs {
    /// The task.
    #[schema(value_type = String)]
    task_id: TaskId,
    /// Key of the unit in the plan.
    unit: String,
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct ProjectArgs {
    /// The project; your own if omitted.
    #[schema(value_type = Option<String>)]
    project_id: Option<ProjectId>,
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct PreferenceArgs {
    /// The project; your own if omitted.
    #[schema(value_type = Option<String>)]
    project_id: Option<ProjectId>,
    /// Key of the preference.
    key: String,
}

/// Maximum number and length of the texts of a refinement.
const MAX_REFINED_ITEMS: usize = 100;
const MAX_REFINED_CHARS: usize = 1_000;

const READ_ACCESS: (ToolScope, ToolAnnotations) = (ToolScope::Pm, ToolAnnotations::READ_ONLY);
const WRITE_ACCESS: (ToolScope, ToolAnnotations) =
    (ToolScope::Pm, ToolAnnotations::IDEMPOTENT_WRITE);
const CREATE_ACCESS: (ToolScope, ToolAnnotations) =
    (ToolScope::Pm, ToolAnnotations::ADDITIVE_WRITE);
const DESTRUCTIVE_ACCESS: (ToolScope, ToolAnnotations) =
    (ToolScope::Pm, ToolAnnotations::DESTRUCTIVE_WRITE);

fn database_tool(
    name: &'static str,
    title: &'static str,
    description: &'static str,
    (scope, annotations): (ToolScope, ToolAnnotations),
    binding: IdBinding,
) -> ToolSpec {
    ToolSpec { name, title, description, scope, binding, annotations }
}

#[expect(clippy::too_many_lines, reason = "one entry for each tool")]
pub(super) fn database_tools() -> Vec<NativeTool> {
    vec![
        database_tool(
            "db.task.get",
            "Read a task",
            "One task with its state, criteria and budget.",
            READ_ACCESS,
            IdBinding::TASK,
        )
        .with_handler(get_task),
        database_tool(
            "db.task.list",
            "List tasks",
            "The tasks of the project, newest first.",
            READ_ACCESS,
            IdBinding::NONE,
        )
        .with_handler(list_tasks),
        database_tool(
            "db.task.create",
            "Ask for work",
            "Creates a task in the project. It is planned and driven by itself.",
            CREATE_ACCESS,
            IdBinding::NONE,
        )
        .with_handler(create_task),
        database_tool(
            "db.task.update",
            "Change a task",
            "Changes the description of a task that nobody works on yet.",
            WRITE_ACCESS,
            IdBinding::TASK,
        )
        .with_handler(update_task),
        database_tool(
            "db.task.refine",
            "Refine a task",
            "Says how a task is understood: its class and scope, what must hold, what is taken for granted.",
            WRITE_ACCESS,
            IdBinding::TASK,
        )
        .with_handler(refine_task),
        database_tool(
            "db.task.update_status",
            "Set a task's status",
            "Stops a task. Other states follow from the work and cannot be set.",
            DESTRUCTIVE_ACCESS,
            IdBinding::TASK,
        )
        .with_handler(update_status),
        database_tool(
            "db.task.result",
            "Read a task's result",
            "How a task stands or ended: state, units, cost, failure.",
            READ_ACCESS,
            IdBinding::TASK,
        )
        .with_handler(get_task_result),
        database_tool(
            "db.task.cancel",
            "Stop a task",
            "Stops a task and everything that depends on it.",
            DESTRUCTIVE_ACCESS,
            IdBinding::TASK,
        )
        .with_handler(cancel_task),
        database_tool(
            "db.task.logs",
            "Read a task's story",
            "Every step, wait and job of a task's run, oldest first.",
            READ_ACCESS,
            IdBinding::TASK,
        )
        .with_handler(get_task_logs),
        database_tool(
            "db.job.list",
            "List jobs",
            "The jobs of a task.",
            READ_ACCESS,
            IdBinding::TASK,
        )
        .with_handler(list_jobs),
        database_tool(
            "db.job.get",
            "Read a job",
            "One job of a task.",
            READ_ACCESS,
            IdBinding::JOB,
        )
        .with_handler(get_job),
        database_tool(
            "db.work_unit.list",
            "List work units",
            "The units of a task's plan.",
            READ_ACCESS,
            IdBinding::TASK,
        )
        .with_handler(list_units),
        database_tool(
            "db.work_unit.get",
            "Read a work unit",
            "One unit of a task's plan.",
            READ_ACCESS,
            IdBinding::TASK,
        )
        .with_handler(get_unit),
        database_tool(
            "db.project.get",
            "Read the project",
            "The project you work in.",
            READ_ACCESS,
            IdBinding::NONE,
        )
        .with_handler(get_project),
        database_tool(
            "db.project.list",
            "List projects",
            "The projects you may see: the one you work in.",
            READ_ACCESS,
            IdBinding::NONE,
        )
        .with_handler(list_projects),
        database_tool(
            "db.preference.list",
            "List preferences",
            "The preferences of the project.",
            READ_ACCESS,
            IdBinding::NONE,
        )
        .with_handler(list_preferences),
        database_tool(
            "db.preference.get",
            "Read a preference",
            "One preference of the project.",
            READ_ACCESS,
            IdBinding::NONE,
        )
        .with_handler(get_preference),
        database_tool(
            "db.preference.effective",
            "What holds for a task",
            "The preferences that hold for a task, and who said so.",
            READ_ACCESS,
            IdBinding::TASK,
        )
        .with_handler(effective_preferences),
    ]
}

async fn get_task(
    call: ToolInvocation,
    TaskArgs { task_id }: TaskArgs,
) -> Result<TaskView, ToolError> {
    // The program that drives tasks may read all of them.
    if call.service.is_some() {
        return Ok(tasks::get_task_of_any_project(&call.app, task_id).await?.into());
    }
    Ok(call.app.read(&call.request, |ctx| tasks::get_task_view(ctx, task_id)).await?)
}

fn own_project(call: &ToolInvocation, given: Option<ProjectId>) -> Result<ProjectId, ToolError> {
    given
        .or(call.agent.project)
        .ok_or_else(|| ToolError::invalid_arguments("`project_id` is missing"))
}

async fn list_tasks(call: ToolInvocation, wanted: ListTasksArgs) -> Result<Value, ToolError> {
    let project = own_project(&call, wanted.project_id)?;
    let limit = wanted.limit.unwrap_or(PageRequest::DEFAULT_LIMIT).clamp(1, PageRequest::MAX_LIMIT);
    let page = PageRequest { after: wanted.cursor, limit };
    let found = call
        .app
        .read(&call.request, |ctx| tasks::list_tasks(ctx, Some(project), wanted.state, page))
        .await?;
    Ok(json!(found.map(TaskView::from)))
}

async fn create_task(call: ToolInvocation, body: CreateTaskArgs) -> Result<Value, ToolError> {
    let CreateTaskArgs { project_id, name, description, acceptance_criteria, depends_on } = body;
    // Only people set the budget of a task.
    let budget = Budget::default();
    // Only people decide whether a plan needs approval.
    let approve_plan = None;
    let body = CreateTask {
        project_id,
        name,
        description,
        acceptance_criteria,
        budget,
        depends_on,
        approve_plan,
        // It is done under the profile of the agent's own work.
        profile: None,
    };
    answer_value(&tasks::submit_task(&call.app, &call.request, body).await?)
}

async fn update_task(call: ToolInvocation, body: UpdateTaskArgs) -> Result<Value, ToolError> {
    let mut description: Prose = body
        .description
        .parse()
        .map_err(|error| ToolError::invalid_arguments(format!("`description`: {error}")))?;
    cynode_app::platform::redaction::redact_prose(&call.app, vec![&mut description]).await?;
    let id = body.task_id;
    let answer = call.app.mutate(&call.request, |ctx| {
        Box::pin(async move {
            Ok(TaskView::from(tasks::update_description(ctx, id, description).await?))
        })
    });
    answer_value(&answer.await?)
}

async fn refine_task(call: ToolInvocation, body: RefineTaskArgs) -> Result<Value, ToolError> {
    let RefineTaskArgs { task_id, class, scope, mut requirements, mut assumptions } = body;
    for list in [&mut requirements, &mut assumptions] {
        if list.len() > MAX_REFINED_ITEMS
            || list.iter().any(|text| text.chars().count() > MAX_REFINED_CHARS)
        {
            return Err(ToolError::invalid_arguments(format!(
                "a list has at most {MAX_REFINED_ITEMS} texts of {MAX_REFINED_CHARS} characters"
            )));
        }
        for text in list {
            let taken = std::mem::take(text);
            *text = cynode_app::platform::redaction::redact_text(&call.app, taken).await?;
        }
    }
    let refinement = TaskRefinement { class, scope, requirements, assumptions };
    let answer = call.app.mutate(&call.request, |ctx| tasks::refine_task(ctx, task_id, refinement));
    answer_value(&answer.await?)
}

async fn update_status(call: ToolInvocation, body: UpdateStatusArgs) -> Result<Value, ToolError> {
    if body.status != "cancelled" {
        let told = "only `cancelled` can be set: the other states follow from the work, which the workflow drives";
        return Err(ToolError::invalid_arguments(told));
    }
    cancel_task(call, TaskArgs { task_id: body.task_id }).await
}

async fn cancel_task(
    call: ToolInvocation,
    TaskArgs { task_id }: TaskArgs,
) -> Result<Value, ToolError> {
    let answer = call.app.mutate(&call.request, |ctx| {
        Box::pin(async move {
            Ok(TaskView::from(cynode_app::workflow::signals::cancel_task(ctx, task_id).await?))
        })
    });
    answer_value(&answer.await?)
}

async fn load_timeline(call: &ToolInvocation, id: TaskId) -> Result<Value, ToolError> {
    let story = if call.service.is_some() {
        timeline::get_timeline_of_any_project(&call.app, id).await?
    } else {
        call.app.read(&call.request, |ctx| timeline::get_timeline(ctx, id)).await?
    };
    Ok(json!(story))
}

async fn get_task_result(
    call: ToolInvocation,
    TaskArgs { task_id }: TaskArgs,
) -> Result<Value, ToolError> {
    let mut story = load_timeline(&call, task_id).await?;
    for long in ["steps", "waits", "jobs", "mermaid", "plan_mermaid"] {
        if let Some(object) = story.as_object_mut() {
            object.remove(long);
        }
    }
    Ok(story)
}

async fn get_task_logs(
    call: ToolInvocation,
    TaskArgs { task_id }: TaskArgs,
) -> Result<Value, ToolError> {
    let story = load_timeline(&call, task_id).await?;
    Ok(
        json!({ "task_id": task_id, "standing": story["standing"], "steps": story["steps"], "waits": story["waits"], "jobs": story["jobs"] }),
    )
}

async fn list_jobs(
    call: ToolInvocation,
    TaskArgs { task_id }: TaskArgs,
) -> Result<Value, ToolError> {
    Ok(json!({ "jobs": load_timeline(&call, task_id).await?["jobs"] }))
}

async fn get_job(
    call: ToolInvocation,
    JobArgs { task_id, job_id }: JobArgs,
) -> Result<Value, ToolError> {
    let story = load_timeline(&call, task_id).await?;
    let found =
        story["jobs"].as_array().into_iter().flatten().find(|job| job["job_id"] == json!(job_id));
    found.cloned().ok_or_else(|| ToolError {
        code: "not_found",
        detail: format!("job `{job_id}` does not exist"),
        fix: None,
    })
}

async fn list_units(
    call: ToolInvocation,
    TaskArgs { task_id }: TaskArgs,
) -> Result<Value, ToolError> {
    Ok(json!({ "units": load_timeline(&call, task_id).await?["units"] }))
}

async fn get_unit(
    call: ToolInvocation,
    WorkUnitArgs { task_id, unit }: WorkUnitArgs,
) -> Result<Value, ToolError> {
    let story = load_timeline(&call, task_id).await?;
    let found =
        story["units"].as_array().into_iter().flatten().find(|found| found["key"] == json!(unit));
    found.cloned().ok_or_else(|| ToolError {
        code: "not_found",
        detail: "there is no such unit".into(),
        fix: None,
    })
}

async fn get_project(call: ToolInvocation, body: ProjectArgs) -> Result<ProjectView, ToolError> {
    let project = own_project(&call, body.project_id)?;
    let found = call
        .app
        .read(&call.request, |ctx| {
            Box::pin(
                async move { projects::get_project(ctx, &projects::ProjectRef::Id(project)).await },
            )
        })
        .await?;
    Ok(found.into())
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct ListProjectsArgs {}

async fn list_projects(
    call: ToolInvocation,
    ListProjectsArgs {}: ListProjectsArgs,
) -> Result<Value, ToolError> {
    let own = get_project(call, ProjectArgs { project_id: None }).await?;
    Ok(json!({ "items": [own] }))
}

async fn list_preferences(call: ToolInvocation, body: ProjectArgs) -> Result<Value, ToolError> {
    let scope = PreferenceScope::Project(own_project(&call, body.project_id)?);
    let found =
        call.app.read(&call.request, |ctx| preferences::list_preferences(ctx, scope)).await?;
    let items: Vec<_> = found
        .into_iter()
        .map(|held| json!({ "key": held.key, "value": held.value, "version": held.version }))
        .collect();
    Ok(json!({ "items": items }))
}

async fn get_preference(call: ToolInvocation, body: PreferenceArgs) -> Result<Value, ToolError> {
    let scope = PreferenceScope::Project(own_project(&call, body.project_id)?);
    let key: DottedKey = body
        .key
        .parse()
        .map_err(|error| ToolError::invalid_arguments(format!("`key`: {error}")))?;
    let held = call
        .app
        .read(&call.request, |ctx| {
            Box::pin(async move { preferences::get_preference(ctx, scope, &key).await })
        })
        .await?;
    Ok(json!({ "key": held.key, "value": held.value, "version": held.version }))
}

async fn effective_preferences(
    call: ToolInvocation,
    TaskArgs { task_id }: TaskArgs,
) -> Result<Value, ToolError> {
    let about = preferences::PreferenceSubject::Task(task_id);
    let role = call.agent.role;
    let found = call
        .app
        .read(&call.request, |ctx| preferences::effective_preferences(ctx, about, Some(role)))
        .await?;
    let view: cynode_wire::tasks::preferences::EffectiveView = found.into();
    Ok(json!(view))
}

/// Sends an instruction of the project manager to a running task; used by `pm.instruct`.
pub(super) async fn send_instruction(
    call: ToolInvocation,
    task: TaskId,
    mut body: cynode_wire::workflow::timeline::InstructTask,
) -> Result<Value, ToolError> {
    cynode_app::platform::redaction::redact_prose(&call.app, body.text.iter_mut().collect())
        .await?;
    let agent = call.agent.token;
    let answer = call.app.mutate(&call.request, |ctx| {
        Box::pin(async move { signals::reply_to_report(ctx, agent, task, &body).await })
    });
    answer_value(&answer.await?)
}
