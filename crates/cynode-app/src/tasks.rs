//! Tasks: asked for, found, stopped.

use cynode_core::{
    events::EventKind,
    ids::{ProjectId, RunId, TaskId, UserId},
    names::{Prose, TaskName},
    roles::Role,
    tasks::{Criterion, Task, TaskState, TaskStateName},
};
use cynode_db::{
    Pool,
    idempotency::Keep,
    tasks::{self, Filter, Inserted, NewTask},
    workflow,
};
use cynode_wire::{
    page::{Page, PageRequest},
    tasks::{CreateTask, TaskView},
};
use serde_json::json;
use time::OffsetDateTime;
use tokio_util::task::TaskTracker;

use crate::{
    Answer, App, Ctx, Error, Request,
    batch::{Batcher, OwnConnection},
    context::Told,
    inference,
};

/// How often a name made by us is tried with the next number, when others take names meanwhile.
const NAME_ATTEMPTS: u32 = 20;

/// Most things that may be required or waited for.
const MOST_CRITERIA: usize = 100;

/// Stores the new tasks of several requests at once.
pub(crate) type NewTasks = Batcher<NewTask, ()>;

pub(crate) fn new_tasks(lanes: &TaskTracker, pool: &Pool) -> NewTasks {
    let own = OwnConnection::new(pool);
    Batcher::start(lanes, move |mut new: Vec<NewTask>| {
        let own = own.clone();
        async move {
            // Batches of several processes take names in the same order and cannot wait for each other.
            new.sort_by(|a, b| (a.task.project, &a.task.name).cmp(&(b.task.project, &b.task.name)));
            let mut conn = own.take().await.ok()?;
            // Whatever it is (a name taken, a key used), each request alone learns it for itself.
            tasks::insert_many(&mut conn, &new).await.ok()?;
            own.put_back(conn).await;
            Some(vec![(); new.len()])
        }
    })
}

/// Accepts a task, together with others that arrive at the same moment when it is a plain one.
#[tracing::instrument(name = "app.tasks.submit", skip_all, fields(project.id = %body.project_id))]
pub async fn submit(app: &App, request: &Request, mut body: CreateTask) -> Result<Answer, Error> {
    inference::without_secrets(app, texts(&mut body.description, &mut body.acceptance_criteria))
        .await?;
    // A name to be found and dependencies to be looked at need a transaction of their own.
    // So do checks, which need a place to be run in.
    if body.name.is_some()
        && body.depends_on.is_empty()
        && body.acceptance_criteria.iter().all(|criterion| criterion.check.is_none())
        && let Some(answer) = submit_with_others(app, request, &body).await?
    {
        return Ok(answer);
    }
    app.mutate(request, |ctx| Box::pin(async { Ok(TaskView::from(create(ctx, body).await?)) }))
        .await
}

/// What people and models read of a task. What is run is left as it was written: changed, it would be another check.
pub(crate) fn texts<'a>(
    description: &'a mut Prose,
    criteria: &'a mut [Criterion],
) -> Vec<&'a mut Prose> {
    let criteria = criteria.iter_mut().map(|criterion| &mut criterion.text);
    std::iter::once(description).chain(criteria).collect()
}

/// `None` when it must be tried alone. If a batch was stored and only its confirmation was lost, then
/// alone the key is found, or without a key the name is taken: nothing is stored twice.
async fn submit_with_others(
    app: &App,
    request: &Request,
    body: &CreateTask,
) -> Result<Option<Answer>, Error> {
    let caller = app.permit(request, body.project_id, Role::Operator).await?;
    let environment = app.environment();
    let now = environment.now();
    let task = build(body.clone(), caller.user, TaskId::from_uuid(environment.uuid(now)), now)?;
    let body = serde_json::to_vec(&TaskView::from(task.clone()));
    let body = body.map_err(|error| Error::Internal(error.into()))?;
    let kept = request.attempt.as_ref().map(|attempt| Keep {
        key: attempt.stored(request),
        answer: body.clone(),
        expires_at: now + app.policy.idempotency_lifetime,
    });
    let (id, event) = (task.id, told(&task).by(Some(caller.user)));
    let run = RunId::from_uuid(environment.uuid(now));
    let new = NewTask { task, event, run, trace: request.trace, kept };
    let stored = app.shared().new_tasks.submit(new).await;
    if stored.is_some() {
        app.committed();
        app.woken(&[id]);
    }
    Ok(stored.map(|()| Answer { body, replayed: false }))
}

/// Accepts a task.
#[tracing::instrument(name = "app.tasks.create", skip_all, fields(project.id = %body.project_id))]
pub async fn create(ctx: &mut Ctx, body: CreateTask) -> Result<Task, Error> {
    let caller = ctx.require_in(body.project_id, Role::Operator).await?;
    accept(ctx, body, caller.user).await
}

/// The same in the name of a person whose right to it is known.
pub(crate) async fn accept(ctx: &mut Ctx, body: CreateTask, user: UserId) -> Result<Task, Error> {
    let given = body.name.is_some();
    let mut task = build(body, user, TaskId::from_uuid(ctx.uuid()), ctx.now)?;
    can_be_checked(ctx, &task).await?;
    if given {
        store(ctx, &task).await?;
    } else {
        store_under_a_free_name(ctx, &mut task).await?;
    }
    ask_for(ctx, task).await
}

/// The same under that name, or the next that is free.
pub(crate) async fn accept_like(
    ctx: &mut Ctx,
    body: CreateTask,
    name: TaskName,
    user: UserId,
) -> Result<Task, Error> {
    let mut task = build(body, user, TaskId::from_uuid(ctx.uuid()), ctx.now)?;
    can_be_checked(ctx, &task).await?;
    task.name = name;
    store_under_a_free_name(ctx, &mut task).await?;
    ask_for(ctx, task).await
}

/// Refuses checks where there are no files that they could be run over, and never will be by themselves.
async fn can_be_checked(ctx: &mut Ctx, task: &Task) -> Result<(), Error> {
    let project = task.project;
    if task.acceptance_criteria.iter().all(|criterion| criterion.check.is_none())
        || cynode_db::repositories::get(ctx.conn(), project).await?.is_some()
        || cynode_db::remotes::get(ctx.conn(), project).await?.is_some()
    {
        return Ok(());
    }
    Err(Error::Invalid(format!(
        "the project has no repository in which a `check` could be run: bring one (`PUT /v1/projects/{project}/repository`), \
         connect a forge, or leave `check` out of the criteria"
    )))
}

/// Asks for the run of a task that was just stored.
async fn ask_for(ctx: &mut Ctx, task: Task) -> Result<Task, Error> {
    let run = RunId::from_uuid(ctx.uuid());
    // What it depends on cannot end between this look and our commit: whoever ends it then sees our run.
    let before = tasks::share(ctx.conn(), &task.depends_on).await?;
    if before.iter().any(|state| matches!(state, TaskStateName::Failed | TaskStateName::Cancelled))
    {
        let gone =
            "`depends_on` names a task that failed or was stopped: it will never be completed";
        return Err(Error::Invalid(gone.into()));
    }
    let due = before.iter().all(|state| *state == TaskStateName::Completed);
    let trace = ctx.trace;
    workflow::request(ctx.conn(), task.id, run, trace, due).await?;
    ctx.wake(task.id);
    ctx.record(told(&task)).await?;
    Ok(task)
}

fn told(task: &Task) -> Told {
    let told = Told::new(EventKind::TaskCreated, json!({ "name": task.name }));
    told.project(task.project).task(task.id)
}

/// Refuses what no task may ask for.
pub(crate) fn check(criteria: &[Criterion], depends_on: &[TaskId]) -> Result<(), Error> {
    let mut checks = criteria.iter().filter_map(|criterion| criterion.check.as_ref());
    if let Some(why) = checks.find_map(cynode_core::evidence::Check::complaint) {
        return Err(Error::Invalid(why));
    }
    if criteria.len() > MOST_CRITERIA || depends_on.len() > MOST_CRITERIA {
        let most =
            format!("a task has at most {MOST_CRITERIA} criteria and {MOST_CRITERIA} dependencies");
        return Err(Error::Invalid(most));
    }
    Ok(())
}

fn build(body: CreateTask, user: UserId, id: TaskId, now: OffsetDateTime) -> Result<Task, Error> {
    let mut depends_on = body.depends_on;
    depends_on.sort_unstable();
    depends_on.dedup();
    check(&body.acceptance_criteria, &depends_on)?;
    Ok(Task {
        id,
        project: body.project_id,
        name: body.name.unwrap_or_else(|| TaskName::derive(body.description.as_str())),
        description: body.description,
        acceptance_criteria: body.acceptance_criteria,
        budget: body.budget,
        state: TaskState::Queued,
        depends_on,
        created_by: user,
        created_at: now,
        updated_at: now,
    })
}

async fn store(ctx: &mut Ctx, task: &Task) -> Result<(), Error> {
    match tasks::insert(ctx.conn(), task).await {
        Err(error) if error.refused_by("tasks_project_id_fkey") => {
            Err(Error::not_found("project", task.project))
        }
        result => match result? {
            Inserted::Stored => Ok(()),
            Inserted::NameTaken => {
                Err(Error::Taken { what: "a task with the name", name: task.name.to_string() })
            }
            Inserted::UnknownDependency => {
                Err(Error::Invalid("`depends_on` names a task that is not in this project".into()))
            }
        },
    }
}

/// Finds `deploy-docs`, or `deploy-docs-2` when that is taken, and so on.
async fn store_under_a_free_name(ctx: &mut Ctx, task: &mut Task) -> Result<(), Error> {
    let base = task.name.clone();
    let last = tasks::last_number(ctx.conn(), task.project, &base).await?;
    for number in last + 1..=last + NAME_ATTEMPTS {
        task.name = base.numbered(number);
        match store(ctx, task).await {
            Err(Error::Taken { .. }) => {}
            result => return result,
        }
    }
    Err(Error::Taken { what: "a task with the name", name: base.into() })
}

/// How a task is named: by id, or by its name in a project.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TaskRef {
    /// By id.
    Id(TaskId),
    /// By name.
    Name(ProjectId, TaskName),
}

/// The id of the task that is meant.
pub async fn resolve(ctx: &mut Ctx, task: &TaskRef) -> Result<TaskId, Error> {
    match task {
        TaskRef::Id(id) => Ok(*id),
        TaskRef::Name(project, name) => {
            ctx.require_in(*project, Role::Viewer).await?;
            let id = tasks::id_of(ctx.conn(), *project, name).await?;
            id.ok_or_else(|| Error::not_found("task", name))
        }
    }
}

/// One task.
#[tracing::instrument(name = "app.tasks.get", skip_all, fields(task.id = %id))]
pub async fn get(ctx: &mut Ctx, id: TaskId) -> Result<Task, Error> {
    ctx.caller()?;
    let task = tasks::get(ctx.conn(), id).await?.ok_or_else(|| Error::not_found("task", id))?;
    match ctx.require_in(task.project, Role::Viewer).await {
        // A task in a project that the caller may not see does not exist either.
        Err(Error::NotFound { .. }) => Err(Error::not_found("task", id)),
        result => result.map(|_| task),
    }
}

/// A task of any project, for the program that drives tasks.
#[tracing::instrument(name = "app.tasks.of_any_project", skip_all, fields(task.id = %id))]
pub async fn of_any_project(app: &App, id: TaskId) -> Result<Task, Error> {
    let mut conn = app.pool().acquire().await.map_err(cynode_db::DbError::from)?;
    tasks::get(&mut conn, id).await?.ok_or_else(|| Error::not_found("task", id))
}

/// Describes a task anew, as long as nobody works on it.
#[tracing::instrument(name = "app.tasks.describe", skip_all, fields(task.id = %id))]
pub async fn describe(ctx: &mut Ctx, id: TaskId, description: Prose) -> Result<Task, Error> {
    get(ctx, id).await?;
    let locked = tasks::lock(ctx.conn(), id).await?;
    let mut task = locked.ok_or_else(|| Error::not_found("task", id))?;
    ctx.require_in(task.project, Role::Operator).await?;
    if task.state.name() != TaskStateName::Queued {
        return Err(Error::Conflict("somebody works on the task already: instruct it instead"));
    }
    (task.description, task.updated_at) = (description, ctx.now);
    tasks::set_description(ctx.conn(), id, &task.description, task.updated_at).await?;
    let told =
        Told::new(EventKind::TaskInstructed, json!({ "name": task.name, "kind": "described" }));
    ctx.record(told.project(task.project).task(id)).await?;
    Ok(task)
}

/// The tasks that the caller may see, newest first.
#[tracing::instrument(name = "app.tasks.list", skip_all)]
pub async fn list(
    ctx: &mut Ctx,
    project: Option<ProjectId>,
    state: Option<TaskStateName>,
    page: PageRequest,
) -> Result<Page<Task>, Error> {
    let filter = match project {
        Some(id) => {
            ctx.require_in(id, Role::Viewer).await?;
            Filter { project, state, member: None }
        }
        None => Filter { project, state, member: ctx.seen_by()? },
    };
    let found = tasks::list(ctx.conn(), filter, page).await?;
    Ok(page.cut(found, |task| task.id.as_uuid()))
}

/// Stops a task, and with it everything that depends on it.
#[tracing::instrument(name = "app.tasks.cancel", skip_all, fields(task.id = %id))]
pub async fn cancel(ctx: &mut Ctx, id: TaskId) -> Result<Task, Error> {
    get(ctx, id).await?;
    let locked = tasks::lock(ctx.conn(), id).await?;
    let task = locked.ok_or_else(|| Error::not_found("task", id))?;
    ctx.require_in(task.project, Role::Operator).await?;
    crate::workflow::signals::stop(ctx, task).await
}
