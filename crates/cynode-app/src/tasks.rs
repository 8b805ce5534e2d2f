//! Tasks: create, read, retry, cancel.

pub mod estimates;
pub(crate) mod event_feed;
pub mod events;
pub mod policies;
pub mod preferences;
pub(crate) mod profiles;
pub mod projects;

use cynode_core::{
    accounts::CallerCredential,
    events::EventKind,
    ids::{AgentTokenId, InstructionId, ProjectId, RunId, TaskId, UserId},
    names::{ProfileName, Prose, TaskName},
    paging::{Page, PageRequest},
    policies::PolicyKey,
    roles::UserRole,
    tasks::{Criterion, Task, TaskState, TaskStateName},
    workflow::{handoffs::TaskRefinement, instructions::InstructionKind},
};
use cynode_db::{
    Pool,
    delivery::evidence::TaskContinuation,
    platform::idempotency::IdempotencyRecord,
    tasks::{self, NewTaskRecord, TaskFilter, TaskInsertOutcome},
    tools::agent_tokens,
    workflow::{self, instructions},
};
use cynode_wire::{
    tasks::{CreateTask, TaskView},
    workflow::timeline::InstructionReceipt,
};
use serde_json::json;
use time::OffsetDateTime;
use tokio_util::task::TaskTracker;

use crate::{
    App, Ctx, Error, OperationAnswer, OperationRequest,
    platform::{
        batch::{Batcher, LaneConnection},
        context::EventDraft,
        operation, settings,
    },
};

/// Maximum number of numbered names that are tried for a generated name, while other requests take names too.
const MAX_NAME_ATTEMPTS: u32 = 20;

/// Maximum number of criteria or dependencies of a task.
const MAX_TASK_CRITERIA: usize = 100;

/// Batches the inserts of new tasks of several requests.
pub(crate) type NewTaskBatcher = Batcher<NewTaskRecord, ()>;

pub(crate) fn spawn_new_task_batcher(lanes: &TaskTracker, pool: &Pool) -> NewTaskBatcher {
    let own = LaneConnection::new(pool);
    Batcher::spawn_lane(lanes, move |mut new: Vec<NewTaskRecord>| {
        let own = own.clone();
        async move {
            // Batches of several processes take names in the same order, so they cannot deadlock.
            new.sort_by(|a, b| (a.task.project, &a.task.name).cmp(&(b.task.project, &b.task.name)));
            let mut conn = own.take_connection().await.ok()?;
            // Each request learns its own error (a taken name, a reused key) when it is tried alone.
            tasks::insert_tasks(&mut conn, &new).await.ok()?;
            own.return_connection(conn).await;
            Some(vec![(); new.len()])
        }
    })
}

/// Accepts a task. A plain task goes into a batch with others that arrive at the same moment.
#[tracing::instrument(name = "app.tasks.submit_task", skip_all, fields(project.id = %body.project_id))]
#[operation]
pub async fn submit_task(
    app: &App,
    request: &OperationRequest,
    mut body: CreateTask,
) -> Result<OperationAnswer, Error> {
    crate::platform::redaction::redact_prose(
        app,
        task_texts(&mut body.description, &mut body.acceptance_criteria),
    )
    .await?;
    // Finding a free name and reading dependencies need a transaction of their own. So do checks, which need a
    // repository to run in, profiles, which have to exist, and tasks of agents, which share the budget of the task that
    // the agent works on and are marked as unreviewed.
    let by_agent = request.caller.is_some_and(|caller| caller.bounds.is_some());
    if !by_agent
        && body.name.is_some()
        && body.depends_on.is_empty()
        && body.approve_plan.is_none()
        && body.profile.is_none()
        && body.acceptance_criteria.iter().all(|criterion| criterion.check.is_none())
        && let Some(answer) = submit_in_batch(app, request, &body).await?
    {
        return Ok(answer);
    }
    app.mutate(request, |ctx| Box::pin(async { Ok(TaskView::from(create_task(ctx, body).await?)) }))
        .await
}

/// Returns the texts of a task that people and models read, for redaction. The commands of checks are left unchanged:
/// a redacted command would be another check.
pub fn task_texts<'a>(
    description: &'a mut Prose,
    criteria: &'a mut [Criterion],
) -> Vec<&'a mut Prose> {
    let criteria = criteria.iter_mut().map(|criterion| &mut criterion.text);
    std::iter::once(description).chain(criteria).collect()
}

/// Inserts a task in a batch. Returns `None` when the request must be tried alone. If a batch was committed and only
/// its confirmation was lost, the retry finds the idempotency key, or without a key the taken name: nothing is stored
/// twice.
async fn submit_in_batch(
    app: &App,
    request: &OperationRequest,
    body: &CreateTask,
) -> Result<Option<OperationAnswer>, Error> {
    let caller = app.require_project_role(request, body.project_id, UserRole::Operator).await?;
    let environment = app.environment();
    let now = environment.now();
    let mut task =
        build_task(body.clone(), caller.user, TaskId::from_uuid(environment.new_uuid(now)), now)?;
    task.budget = task.budget.or_default_limit(app.default_task_budget().await?);
    let body = serde_json::to_vec(&TaskView::from(task.clone()));
    let body = body.map_err(|error| Error::Internal(error.into()))?;
    let kept = request.attempt.as_ref().map(|attempt| IdempotencyRecord {
        key: attempt.to_stored_key(request),
        answer: body.clone(),
        expires_at: now + app.policy.idempotency_lifetime,
    });
    let (id, event) = (task.id, to_event_draft(&task).into_event(Some(caller.user)));
    let run = RunId::from_uuid(environment.new_uuid(now));
    let new = NewTaskRecord { task, event, run, trace: request.trace, kept };
    let stored = app.shared_state().new_tasks.submit_item(new).await;
    if stored.is_some() {
        app.announce_commit();
        app.announce_due_runs(&[id]);
    }
    Ok(stored.map(|()| OperationAnswer { body, replayed: false }))
}

/// Creates a task.
#[tracing::instrument(name = "app.tasks.create_task", skip_all, fields(project.id = %body.project_id))]
#[operation]
pub async fn create_task(ctx: &mut Ctx, mut body: CreateTask) -> Result<Task, Error> {
    let caller = ctx.require_project_role(body.project_id, UserRole::Operator).await?;
    if body.approve_plan.is_some() && caller.bounds.is_some() {
        return Err(Error::forbidden(UserRole::Operator, "as a person: agents approve no plans"));
    }
    body.profile = profile_for_caller(ctx, caller.credential, body.profile).await?;
    let task = accept_task(ctx, body, caller.user).await?;
    if let CallerCredential::Agent(token) = caller.credential {
        share_budget(ctx, task.id, token).await?;
    }
    Ok(task)
}

/// Counts what a task of an agent spends against the budget of the task that the agent works on, too.
async fn share_budget(ctx: &mut Ctx, task: TaskId, token: AgentTokenId) -> Result<(), Error> {
    let agent = agent_tokens::get_agent_token(ctx.conn(), token).await?;
    let agent = agent.ok_or(Error::Unauthenticated)?;
    let Some(parent) = agent.agent.task else { return Ok(()) };
    if tasks::set_parent_task(ctx.conn(), task, parent).await? {
        return Ok(());
    }
    Err(Error::LimitExceeded(format!(
        "agents ask for tasks at most {} deep: do the work in this task, or ask a person",
        tasks::MAX_TASK_ANCESTORS
    )))
}

/// Returns the profile that work is asked for under. What an agent asks for is done under the profile that the agent's own work names. An
/// agent cannot choose another one, or it would get by a task what it has not itself.
pub(crate) async fn profile_for_caller(
    ctx: &mut Ctx,
    credential: CallerCredential,
    wished: Option<ProfileName>,
) -> Result<Option<ProfileName>, Error> {
    let CallerCredential::Agent(token) = credential else { return Ok(wished) };
    let own = tasks::profile_of_agent_work(ctx.conn(), token).await?;
    match wished {
        Some(wished) if own.as_ref() != Some(&wished) => Err(Error::forbidden(
            UserRole::Operator,
            "as a person: what an agent asks for is done under the profile of its own work",
        )),
        _ => Ok(own),
    }
}

/// Retries a task that ended without being completed. Unless a fresh start is requested, it continues from the best
/// earlier result: the newest of the commits that passed the most checks. Its change is measured from where the
/// earlier work began.
#[tracing::instrument(name = "app.tasks.retry_task", skip_all, fields(task.id = %earlier))]
#[operation]
pub async fn retry_task(
    ctx: &mut Ctx,
    earlier: TaskId,
    fresh: bool,
    mut body: CreateTask,
) -> Result<Task, Error> {
    let before = get_task(ctx, earlier).await?;
    ctx.require_project_role(before.project, UserRole::Operator).await?;
    if body.project_id != before.project {
        return Err(Error::Invalid("a task is tried again in its own project".into()));
    }
    let reason = match &before.state {
        TaskState::Failed { reason, .. } => reason.chars().take(500).collect(),
        TaskState::Cancelled { .. } => "a person stopped it".to_owned(),
        TaskState::Queued | TaskState::Running { .. } | TaskState::Completed { .. } => {
            return Err(Error::Conflict(
                "it goes on, or was completed: only what failed or was stopped is tried again",
            ));
        }
    };
    body.profile = body.profile.or(before.profile);
    let from = if fresh { None } else { best_continuation(ctx, earlier).await? };
    if from.is_some() {
        let words = format!(
            "{}\n\nAn earlier attempt at this left unfinished work, which is in the files that you begin with. It ended: {reason}",
            body.description
        );
        // A description that would become too long stays as it was.
        body.description = words.parse().unwrap_or(body.description);
    }
    let task = create_task(ctx, body).await?;
    if let Some(from) = from {
        cynode_db::delivery::evidence::insert_task_continuation(
            ctx.conn(),
            task.id,
            earlier,
            &from,
        )
        .await?;
    }
    Ok(task)
}

/// Returns the newest of the commits of a task that passed the most checks, and the base of the work.
async fn best_continuation(ctx: &mut Ctx, task: TaskId) -> Result<Option<TaskContinuation>, Error> {
    let left = cynode_db::delivery::evidence::list_attempt_commits(ctx.conn(), task).await?;
    // `max_by_key` returns the last of equals, and the list is ordered oldest first.
    let best = left.into_iter().max_by_key(|it| it.held);
    let base = cynode_db::delivery::evidence::load_change_baseline(ctx.conn(), task).await?.base;
    Ok(best
        .zip(base)
        .map(|(best, base_commit)| TaskContinuation { start_commit: best.commit, base_commit }))
}

/// Creates a task in the name of a user whose permission was already checked.
pub(crate) async fn accept_task(
    ctx: &mut Ctx,
    body: CreateTask,
    user: UserId,
) -> Result<Task, Error> {
    let (given, approve_plan) = (body.name.is_some(), body.approve_plan);
    let mut task = build_task(body, user, TaskId::from_uuid(ctx.new_uuid()), ctx.now)?;
    prepare_task(ctx, &mut task).await?;
    if given {
        store_task(ctx, &task).await?;
    } else {
        store_with_free_name(ctx, &mut task).await?;
    }
    request_run(ctx, task, approve_plan).await
}

/// Rejects a task that can never be carried out, marks one that an agent wrote, and sets the default budget where the
/// request names none: that of the task's profile, else that of the installation.
async fn prepare_task(ctx: &mut Ctx, task: &mut Task) -> Result<(), Error> {
    task.unreviewed = ctx.is_agent();
    require_checkable(ctx, task).await?;
    let (project, named) = (task.project, task.profile.as_ref());
    if let Some(profile) = profiles::require_named_profile(ctx.conn(), project, named).await? {
        task.budget = profiles::budget_under_profile(task.budget, &profile);
    }
    if !task.budget.is_limited() {
        task.budget =
            task.budget.or_default_limit(settings::default_task_budget(ctx.conn()).await?);
    }
    Ok(())
}

/// Creates a task under the given name or the next free one.
pub(crate) async fn accept_named_task(
    ctx: &mut Ctx,
    body: CreateTask,
    name: TaskName,
    user: UserId,
) -> Result<Task, Error> {
    let approve_plan = body.approve_plan;
    let mut task = build_task(body, user, TaskId::from_uuid(ctx.new_uuid()), ctx.now)?;
    prepare_task(ctx, &mut task).await?;
    task.name = name;
    store_with_free_name(ctx, &mut task).await?;
    request_run(ctx, task, approve_plan).await
}

/// Rejects checks in a project that has no files to run them on and that will not get any by itself.
async fn require_checkable(ctx: &mut Ctx, task: &Task) -> Result<(), Error> {
    let project = task.project;
    if task.acceptance_criteria.iter().all(|criterion| criterion.check.is_none())
        || cynode_db::delivery::repositories::get_repository(ctx.conn(), project).await?.is_some()
        || cynode_db::delivery::forges::get_remote(ctx.conn(), project).await?.is_some()
    {
        return Ok(());
    }
    Err(Error::Invalid(format!(
        "the project has no repository in which a `check` could be run: bring one (`PUT /v1/projects/{project}/repository`), \
         connect a forge, or leave `check` out of the criteria"
    )))
}

/// Queues a run for a task that was just stored, with the advance decision about the approval of its plan.
async fn request_run(ctx: &mut Ctx, task: Task, approve_plan: Option<bool>) -> Result<Task, Error> {
    let run = RunId::from_uuid(ctx.new_uuid());
    // A dependency cannot end between this read and our commit: the transaction that ends it then sees our run.
    let before = tasks::lock_states_shared(ctx.conn(), &task.depends_on).await?;
    if before.iter().any(|state| matches!(state, TaskStateName::Failed | TaskStateName::Cancelled))
    {
        let gone =
            "`depends_on` names a task that failed or was stopped: it will never be completed";
        return Err(Error::Invalid(gone.into()));
    }
    let due = before.iter().all(|state| *state == TaskStateName::Completed);
    let trace = ctx.trace;
    workflow::request_run(ctx.conn(), task.id, run, trace, due).await?;
    ctx.wake_task(task.id);
    ctx.record_event(to_event_draft(&task)).await?;
    if let Some(asks) = approve_plan {
        preferences::set_plan_approval(ctx, &task, asks).await?;
    }
    Ok(task)
}

fn to_event_draft(task: &Task) -> EventDraft {
    let mut data = json!({ "name": task.name });
    if let Some(profile) = &task.profile {
        data["profile"] = json!(profile);
    }
    let told = EventDraft::new(EventKind::TaskCreated, data);
    told.with_project(task.project).with_task(task.id)
}

/// Rejects criteria and dependencies that no task may have.
pub(crate) fn validate_criteria(
    criteria: &[Criterion],
    depends_on: &[TaskId],
) -> Result<(), Error> {
    let mut checks = criteria.iter().filter_map(|criterion| criterion.check.as_ref());
    if let Some(why) = checks.find_map(cynode_core::evidence::EvidenceCheck::validation_error) {
        return Err(Error::Invalid(why));
    }
    if criteria.len() > MAX_TASK_CRITERIA || depends_on.len() > MAX_TASK_CRITERIA {
        let most = format!(
            "a task has at most {MAX_TASK_CRITERIA} criteria and {MAX_TASK_CRITERIA} dependencies"
        );
        return Err(Error::Invalid(most));
    }
    Ok(())
}

fn build_task(
    body: CreateTask,
    user: UserId,
    id: TaskId,
    now: OffsetDateTime,
) -> Result<Task, Error> {
    let mut depends_on = body.depends_on;
    depends_on.sort_unstable();
    depends_on.dedup();
    validate_criteria(&body.acceptance_criteria, &depends_on)?;
    Ok(Task {
        id,
        project: body.project_id,
        name: body.name.unwrap_or_else(|| TaskName::derive_name(body.description.as_str())),
        description: body.description,
        acceptance_criteria: body.acceptance_criteria,
        budget: body.budget,
        profile: body.profile,
        state: TaskState::Queued,
        unreviewed: false,
        depends_on,
        created_by: user,
        created_at: now,
        updated_at: now,
    })
}

async fn store_task(ctx: &mut Ctx, task: &Task) -> Result<(), Error> {
    match tasks::insert_task(ctx.conn(), task).await {
        Err(error) if error.is_refused_by("tasks_project_id_fkey") => {
            Err(Error::not_found("project", task.project))
        }
        Err(error) if error.is_refused_by("tasks_project_archived") => {
            Err(Error::Conflict(crate::tasks::projects::ARCHIVED_MESSAGE))
        }
        result => match result? {
            TaskInsertOutcome::Stored => Ok(()),
            TaskInsertOutcome::NameTaken => Err(Error::AlreadyExists {
                what: "a task with the name",
                name: task.name.to_string(),
            }),
            TaskInsertOutcome::UnknownDependency => {
                Err(Error::Invalid("`depends_on` names a task that is not in this project".into()))
            }
        },
    }
}

/// Stores the task as `deploy-docs`, or as `deploy-docs-2` when that name is taken, and so on.
async fn store_with_free_name(ctx: &mut Ctx, task: &mut Task) -> Result<(), Error> {
    let base = task.name.clone();
    let last = tasks::last_name_number(ctx.conn(), task.project, &base).await?;
    for number in last + 1..=last + MAX_NAME_ATTEMPTS {
        task.name = base.with_number(number);
        match store_task(ctx, task).await {
            Err(Error::AlreadyExists { .. }) => {}
            result => return result,
        }
    }
    Err(Error::AlreadyExists { what: "a task with the name", name: base.into() })
}

/// Reference to a task: by id, or by its name in a project.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TaskRef {
    /// Unique id of the task.
    Id(TaskId),
    /// Project and name of the task.
    Name(ProjectId, TaskName),
}

/// Resolves a reference to the id of the task.
#[operation]
pub async fn resolve_task(ctx: &mut Ctx, task: &TaskRef) -> Result<TaskId, Error> {
    match task {
        TaskRef::Id(id) => Ok(*id),
        TaskRef::Name(project, name) => {
            ctx.require_project_role(*project, UserRole::Viewer).await?;
            let id = tasks::find_task_id(ctx.conn(), *project, name).await?;
            id.ok_or_else(|| Error::not_found("task", name))
        }
    }
}

/// Returns one task.
#[tracing::instrument(name = "app.tasks.get_task", skip_all, fields(task.id = %id))]
#[operation]
pub async fn get_task(ctx: &mut Ctx, id: TaskId) -> Result<Task, Error> {
    ctx.caller()?;
    let task =
        tasks::get_task(ctx.conn(), id).await?.ok_or_else(|| Error::not_found("task", id))?;
    match ctx.require_project_role(task.project, UserRole::Viewer).await {
        // A task in a project that the caller may not see does not exist for the caller.
        Err(Error::NotFound { .. }) => Err(Error::not_found("task", id)),
        result => result.map(|_| task),
    }
}

/// Returns one task with how the project manager understood it.
#[tracing::instrument(name = "app.tasks.get_task_view", skip_all, fields(task.id = %id))]
#[operation]
pub async fn get_task_view(ctx: &mut Ctx, id: TaskId) -> Result<TaskView, Error> {
    let task = get_task(ctx, id).await?;
    let refinement = tasks::get_task_refinement(ctx.conn(), id).await?;
    Ok(TaskView { refinement, ..TaskView::from(task) })
}

/// Stores how the project manager understood a task that is being worked on.
#[tracing::instrument(name = "app.tasks.refine_task", skip_all, fields(task.id = %id))]
#[operation]
pub async fn refine_task(
    ctx: &mut Ctx,
    id: TaskId,
    refinement: TaskRefinement,
) -> Result<TaskView, Error> {
    get_task(ctx, id).await?;
    let locked = tasks::lock_task(ctx.conn(), id).await?;
    let task = locked.ok_or_else(|| Error::not_found("task", id))?;
    ctx.require_project_role(task.project, UserRole::Operator).await?;
    if has_ended(&task) {
        return Err(Error::Conflict("the task has ended"));
    }
    let now = ctx.now;
    tasks::set_task_refinement(ctx.conn(), id, &refinement, now).await?;
    Ok(TaskView { refinement: Some(refinement), ..TaskView::from(task) })
}

/// Returns a task of any project, for the program that drives tasks.
#[tracing::instrument(name = "app.tasks.get_task_of_any_project", skip_all, fields(task.id = %id))]
#[operation]
pub async fn get_task_of_any_project(app: &App, id: TaskId) -> Result<Task, Error> {
    let mut conn = app.conn().await?;
    tasks::get_task(&mut conn, id).await?.ok_or_else(|| Error::not_found("task", id))
}

/// Replaces the description of a task that has not started.
#[tracing::instrument(name = "app.tasks.update_description", skip_all, fields(task.id = %id))]
#[operation]
pub async fn update_description(
    ctx: &mut Ctx,
    id: TaskId,
    description: Prose,
) -> Result<Task, Error> {
    get_task(ctx, id).await?;
    let locked = tasks::lock_task(ctx.conn(), id).await?;
    let mut task = locked.ok_or_else(|| Error::not_found("task", id))?;
    ctx.require_project_role(task.project, UserRole::Operator).await?;
    if task.state.state_name() != TaskStateName::Queued {
        return Err(Error::Conflict("somebody works on the task already: instruct it instead"));
    }
    require_own_profile(ctx, &task).await?;
    // Another author would not be known as one.
    let (held, by) = (policies::policies_of_task(ctx, &task).await?, ctx.caller()?.user);
    if let Some(entry) = held.find_demand(PolicyKey::FourEyes).filter(|_| by != task.created_by) {
        return Err(policies::deny_by_policy("only its author describes a task anew", entry));
    }
    (task.description, task.updated_at, task.unreviewed) = (description, ctx.now, ctx.is_agent());
    let (text, unreviewed, now) = (&task.description, task.unreviewed, task.updated_at);
    tasks::set_task_description(ctx.conn(), id, text, unreviewed, now).await?;
    let told = EventDraft::new(
        EventKind::TaskInstructed,
        json!({ "name": task.name, "kind": "described" }),
    );
    ctx.record_event(told.with_project(task.project).with_task(id)).await?;
    Ok(task)
}

/// Rejects an agent that would have work done under a profile that its own work does not have.
async fn require_own_profile(ctx: &mut Ctx, task: &Task) -> Result<(), Error> {
    let CallerCredential::Agent(token) = ctx.caller()?.credential else { return Ok(()) };
    if task.profile.is_some()
        && tasks::profile_of_agent_work(ctx.conn(), token).await? != task.profile
    {
        return Err(Error::forbidden(
            UserRole::Operator,
            "as a person: the task has another profile",
        ));
    }
    Ok(())
}

/// Lists the tasks that the caller may see, newest first.
#[tracing::instrument(name = "app.tasks.list_tasks", skip_all)]
#[operation]
pub async fn list_tasks(
    ctx: &mut Ctx,
    project: Option<ProjectId>,
    state: Option<TaskStateName>,
    page: PageRequest,
) -> Result<Page<Task>, Error> {
    let filter = match project {
        Some(id) => {
            ctx.require_project_role(id, UserRole::Viewer).await?;
            TaskFilter { project, state, member: None }
        }
        None => TaskFilter { project, state, member: ctx.visibility_filter()? },
    };
    let found = tasks::list_tasks(ctx.conn(), filter, page).await?;
    Ok(page.into_page(found, |task| task.id.as_uuid()))
}

/// Returns whether a task has ended.
pub(crate) const fn has_ended(task: &Task) -> bool {
    match task.state {
        TaskState::Queued | TaskState::Running { .. } => false,
        TaskState::Completed { .. } | TaskState::Failed { .. } | TaskState::Cancelled { .. } => {
            true
        }
    }
}

/// Pauses a task that runs in a loop, in the name of the user whose agent works on it. A person resumes it.
pub(crate) async fn pause_task(
    ctx: &mut Ctx,
    id: TaskId,
    by: UserId,
    reason: &str,
) -> Result<(), Error> {
    let Some(task) = tasks::lock_task(ctx.conn(), id).await?.filter(|task| !has_ended(task)) else {
        return Ok(());
    };
    let kind = InstructionKind::Pause;
    let id = InstructionId::from_uuid(ctx.new_uuid());
    let given =
        instructions::Instruction { id, kind, text: Some(reason.to_owned()), by, job: None };
    instructions::insert_instruction(ctx.conn(), task.id, &given).await?;
    record_instruction(ctx, &task, kind, Some(given.id)).await.map(|_| ())
}

/// Wakes the run of a task that was given an instruction, and records the event.
pub(crate) async fn record_instruction(
    ctx: &mut Ctx,
    task: &Task,
    kind: InstructionKind,
    instruction_id: Option<InstructionId>,
) -> Result<InstructionReceipt, Error> {
    ctx.wake_task(task.id);
    let told =
        EventDraft::new(EventKind::TaskInstructed, json!({ "name": task.name, "kind": kind }));
    ctx.record_event(told.with_project(task.project).with_task(task.id)).await?;
    Ok(InstructionReceipt { instruction_id, kind, state: task.state.state_name() })
}
