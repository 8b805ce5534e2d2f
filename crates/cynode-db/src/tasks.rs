//! Tasks and their dependencies.

pub mod estimates;
pub mod events;
pub mod policies;
pub mod preferences;
pub mod projects;

use cynode_core::{
    budget::{Amount, Budget},
    ids::{AgentTokenId, ProjectId, RunId, TaskId, UserId},
    names::{ProfileName, TaskName},
    paging::PageRequest,
    tasks::{Task, TaskState, TaskStateName},
    trace::TraceId,
    workflow::handoffs::TaskRefinement,
};
use serde_json::Value;
use time::OffsetDateTime;
use uuid::Uuid;

use crate::{
    Conn, DbError,
    platform::{error::corrupt_column, idempotency::IdempotencyRecord},
    tasks::events::NewEvent,
};

struct TaskRow {
    task_id: Uuid,
    project_id: Uuid,
    name: String,
    description: String,
    acceptance_criteria: Value,
    max_cost_micros: Option<i64>,
    max_tokens: Option<i64>,
    profile: Option<String>,
    state: String,
    started_at: Option<OffsetDateTime>,
    ended_at: Option<OffsetDateTime>,
    failure: Option<String>,
    unreviewed: bool,
    depends_on: Vec<Uuid>,
    created_by: Uuid,
    created_at: OffsetDateTime,
    updated_at: OffsetDateTime,
}

impl TaskRow {
    fn parse_task_state(&mut self) -> Result<TaskState, DbError> {
        let name = TaskStateName::from_name(&self.state);
        let state = match (name, self.started_at, self.ended_at, self.failure.take()) {
            (Some(TaskStateName::Queued), None, None, None) => TaskState::Queued,
            (Some(TaskStateName::Running), Some(since), None, None) => TaskState::Running { since },
            (Some(TaskStateName::Completed), _, Some(at), None) => TaskState::Completed { at },
            (Some(TaskStateName::Failed), _, Some(at), Some(reason)) => {
                TaskState::Failed { at, reason }
            }
            (Some(TaskStateName::Cancelled), _, Some(at), None) => TaskState::Cancelled { at },
            _ => return Err(DbError::Corrupt { table: "tasks", column: "state" }),
        };
        Ok(state)
    }
}

impl TryFrom<TaskRow> for Task {
    type Error = DbError;

    fn try_from(mut row: TaskRow) -> Result<Self, DbError> {
        let state = row.parse_task_state()?;
        let amount = |amount: Option<i64>, column| {
            amount.map(TryInto::try_into).transpose().map_err(corrupt_column("tasks", column))
        };
        Ok(Self {
            id: TaskId::from_uuid(row.task_id),
            project: ProjectId::from_uuid(row.project_id),
            name: row.name.try_into().map_err(corrupt_column("tasks", "name"))?,
            description: row
                .description
                .try_into()
                .map_err(corrupt_column("tasks", "description"))?,
            acceptance_criteria: serde_json::from_value(row.acceptance_criteria)
                .map_err(corrupt_column("tasks", "acceptance_criteria"))?,
            budget: Budget {
                max_cost_micros: amount(row.max_cost_micros, "max_cost_micros")?,
                max_tokens: amount(row.max_tokens, "max_tokens")?,
            },
            profile: row
                .profile
                .map(TryInto::try_into)
                .transpose()
                .map_err(corrupt_column("tasks", "profile"))?,
            state,
            unreviewed: row.unreviewed,
            depends_on: row.depends_on.into_iter().map(TaskId::from_uuid).collect(),
            created_by: UserId::from_uuid(row.created_by),
            created_at: row.created_at,
            updated_at: row.updated_at,
        })
    }
}

/// What became of a new task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TaskInsertOutcome {
    /// It is stored.
    Stored,
    /// Another task of the project has that name.
    NameTaken,
    /// A task it depends on is not in the project.
    UnknownDependency,
}

/// Stores a new, queued task with its dependencies.
#[tracing::instrument(name = "db.tasks.insert_task", skip_all, fields(task.id = %task.id))]
pub async fn insert_task(conn: &mut Conn, task: &Task) -> Result<TaskInsertOutcome, DbError> {
    let criteria = serde_json::to_value(&task.acceptance_criteria)
        .map_err(corrupt_column("tasks", "acceptance_criteria"))?;
    let done = sqlx::query!(
        "
        INSERT INTO tasks (task_id, project_id, name, description, acceptance_criteria,
            max_cost_micros, max_tokens, state, created_by, created_at, updated_at, unreviewed, profile)
        VALUES ($1, $2, $3, $4, $5, $6, $7, 'queued', $8, $9, $9, $10, $11)
        ON CONFLICT ON CONSTRAINT tasks_name_unique DO NOTHING
        ",
        task.id.as_uuid(),
        task.project.as_uuid(),
        task.name.as_str(),
        task.description.as_str(),
        criteria,
        task.budget.max_cost_micros.map(|amount| amount.as_i64()),
        task.budget.max_tokens.map(|amount| amount.as_i64()),
        task.created_by.as_uuid(),
        task.created_at,
        task.unreviewed,
        task.profile.as_ref().map(ProfileName::as_str),
    )
    .execute(&mut *conn)
    .await?;
    if done.rows_affected() == 0 {
        return Ok(TaskInsertOutcome::NameTaken);
    }
    if task.depends_on.is_empty() {
        return Ok(TaskInsertOutcome::Stored);
    }
    insert_dependencies(conn, task).await
}

/// Maximum number of tasks that a task came from, one asked for by an agent of the other.
pub const MAX_TASK_ANCESTORS: usize = 4;

/// Counts what a task spends against the budgets of the task whose agent asked for it. `false` when there would be more than
/// [`MAX_TASK_ANCESTORS`].
#[tracing::instrument(name = "db.tasks.set_parent_task", skip_all, fields(task.id = %task, parent.id = %parent))]
pub async fn set_parent_task(
    conn: &mut Conn,
    task: TaskId,
    parent: TaskId,
) -> Result<bool, DbError> {
    let done = sqlx::query!(
        "
        UPDATE tasks t SET ancestors = p.ancestors || p.task_id
        FROM tasks p
        WHERE t.task_id = $1 AND p.task_id = $2 AND cardinality(p.ancestors) < 4
        ",
        task.as_uuid(),
        parent.as_uuid(),
    )
    .execute(conn)
    .await?;
    Ok(done.rows_affected() == 1)
}

/// Counts what a task spends against the same budgets as another, without that of the other itself.
#[tracing::instrument(name = "db.tasks.copy_task_ancestors", skip_all, fields(task.id = %task))]
pub async fn copy_task_ancestors(
    conn: &mut Conn,
    task: TaskId,
    from: TaskId,
) -> Result<(), DbError> {
    sqlx::query!(
        "UPDATE tasks t SET ancestors = o.ancestors FROM tasks o WHERE t.task_id = $1 AND o.task_id = $2 AND o.ancestors <> '{}'",
        task.as_uuid(),
        from.as_uuid(),
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// The profile that a task names.
#[tracing::instrument(name = "db.tasks.profile_of_task", skip_all, fields(task.id = %task))]
pub async fn profile_of_task(
    conn: &mut Conn,
    task: TaskId,
) -> Result<Option<ProfileName>, DbError> {
    let name = sqlx::query_scalar!("SELECT profile FROM tasks WHERE task_id = $1", task.as_uuid());
    let name = name.fetch_optional(conn).await?.flatten();
    name.map(TryInto::try_into).transpose().map_err(corrupt_column("tasks", "profile"))
}

/// The profile that the work of an agent names: the one that a person issued its token with, else that of its task, its handoff, the handoff
/// that this is a share of, or its chat.
#[tracing::instrument(name = "db.tasks.profile_of_agent_work", skip_all)]
pub async fn profile_of_agent_work(
    conn: &mut Conn,
    token: AgentTokenId,
) -> Result<Option<ProfileName>, DbError> {
    let name = sqlx::query_scalar!(
        "
        SELECT coalesce(CASE WHEN a.issued_by IS NOT NULL THEN a.profile END,
            t.profile, h.profile, p.profile, c.profile)
        FROM agent_tokens a
        LEFT JOIN tasks t ON t.task_id = a.task_id
        LEFT JOIN handoffs h ON h.handoff_id = a.handoff_id
        LEFT JOIN handoffs p ON p.handoff_id = h.parent_id
        LEFT JOIN chat_threads c ON c.thread_id = h.thread_id
        WHERE a.agent_token_id = $1
        ",
        token.as_uuid(),
    );
    let name = name.fetch_optional(conn).await?.flatten();
    name.map(TryInto::try_into).transpose().map_err(corrupt_column("agent_tokens", "profile"))
}

/// A new task with everything that is written together with it.
pub struct NewTaskRecord {
    /// The task; without dependencies and profile, and asked for by a person.
    pub task: Task,
    /// The event that tells of it.
    pub event: NewEvent,
    /// The run that will drive it.
    pub run: RunId,
    /// The trace of the request.
    pub trace: TraceId,
    /// The answer that is kept for a repeat.
    pub kept: Option<IdempotencyRecord>,
}

/// Stores several new, queued tasks, their runs, their events and the answers kept for repeats: one statement, one
/// commit, all or nothing. Like a request alone it takes names first and keys last (the keys wait for the tasks
/// to be counted), so that the two cannot wait for each other.
#[tracing::instrument(name = "db.tasks.insert_tasks", skip_all, fields(count = new.len()))]
pub async fn insert_tasks(conn: &mut Conn, new: &[NewTaskRecord]) -> Result<(), DbError> {
    fn collect_column<'a, T>(
        new: &'a [NewTaskRecord],
        part: impl Fn(&'a NewTaskRecord) -> T,
    ) -> Vec<T> {
        new.iter().map(part).collect()
    }
    let criteria: Result<Vec<Value>, _> =
        new.iter().map(|new| serde_json::to_value(&new.task.acceptance_criteria)).collect();
    let criteria = criteria.map_err(corrupt_column("tasks", "acceptance_criteria"))?;
    let kept: Vec<&IdempotencyRecord> = new.iter().filter_map(|new| new.kept.as_ref()).collect();
    sqlx::query!(
        "
        WITH given AS (
            SELECT * FROM unnest($1::uuid[], $2::uuid[], $3::text[], $4::text[], $5::jsonb[], $6::bigint[],
                $7::bigint[], $8::uuid[], $9::timestamptz[], $10::text[], $11::text[], $12::jsonb[], $18::uuid[])
            AS given (task_id, project_id, name, description, criteria, max_cost_micros,
                max_tokens, created_by, created_at, kind, trace_id, data, run_id)
        ), stored AS (
            INSERT INTO tasks (task_id, project_id, name, description, acceptance_criteria,
                max_cost_micros, max_tokens, state, created_by, created_at, updated_at)
            SELECT task_id, project_id, name, description, criteria,
                max_cost_micros, max_tokens, 'queued', created_by, created_at, created_at
            FROM given
            RETURNING task_id
        ), runs AS (
            INSERT INTO workflow_runs (task_id, run_id, trace_id, due_at, created_at)
            SELECT task_id, run_id, trace_id, clock_timestamp(), clock_timestamp()
            FROM given
        ), told AS (
            INSERT INTO events (occurred_at, kind, actor_id, project_id, task_id, trace_id, data)
            SELECT created_at, kind, created_by, project_id, task_id, trace_id, data
            FROM given
        )
        INSERT INTO idempotency_keys (actor_id, key, request_digest, answer, expires_at)
        SELECT * FROM unnest($13::uuid[], $14::text[], $15::bytea[], $16::bytea[], $17::timestamptz[])
        WHERE (SELECT count(*) FROM stored) > 0
        ",
        &collect_column(new, |new| new.task.id.as_uuid()),
        &collect_column(new, |new| new.task.project.as_uuid()),
        &collect_column(new, |new| new.task.name.as_str()) as &[&str],
        &collect_column(new, |new| new.task.description.as_str()) as &[&str],
        &criteria,
        &collect_column(new, |new| new.task.budget.max_cost_micros.map(Amount::as_i64)) as &[Option<i64>],
        &collect_column(new, |new| new.task.budget.max_tokens.map(Amount::as_i64)) as &[Option<i64>],
        &collect_column(new, |new| new.task.created_by.as_uuid()),
        &collect_column(new, |new| new.task.created_at),
        &collect_column(new, |new| new.event.kind.as_str()) as &[&str],
        &collect_column(new, |new| new.trace.to_string()),
        &collect_column(new, |new| new.event.data.clone()),
        &kept.iter().map(|kept| kept.key.actor).collect::<Vec<_>>(),
        &kept.iter().map(|kept| kept.key.key.as_str()).collect::<Vec<_>>() as &[&str],
        &kept.iter().map(|kept| kept.key.request_digest).collect::<Vec<_>>() as &[[u8; 32]],
        &kept.iter().map(|kept| kept.answer.as_slice()).collect::<Vec<_>>() as &[&[u8]],
        &kept.iter().map(|kept| kept.expires_at).collect::<Vec<_>>(),
        &collect_column(new, |new| new.run.as_uuid()),
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// A new task can depend only on tasks that exist, so that no circle can arise.
async fn insert_dependencies(conn: &mut Conn, task: &Task) -> Result<TaskInsertOutcome, DbError> {
    let wanted: Vec<Uuid> = task.depends_on.iter().map(|id| id.as_uuid()).collect();
    let done = sqlx::query!(
        "
        INSERT INTO task_dependencies (task_id, depends_on)
        SELECT $1, task_id FROM tasks WHERE task_id = ANY($2) AND project_id = $3 AND task_id <> $1
        ",
        task.id.as_uuid(),
        &wanted,
        task.project.as_uuid(),
    )
    .execute(conn)
    .await?;
    let all = usize::try_from(done.rows_affected()).is_ok_and(|count| count == wanted.len());
    Ok(if all { TaskInsertOutcome::Stored } else { TaskInsertOutcome::UnknownDependency })
}

/// The greatest number in use behind `base` in the project's task names: 0 when `base` is free,
/// 1 when only `base` itself is taken.
pub async fn last_name_number(
    conn: &mut Conn,
    project: ProjectId,
    base: &TaskName,
) -> Result<u32, DbError> {
    let number = sqlx::query_scalar!(
        r#"
        SELECT coalesce(max(CASE
            WHEN name = $2 THEN 1
            ELSE substring(name FROM '-([0-9]{1,6})$')::int END), 0) AS "number!"
        FROM tasks
        WHERE project_id = $1
          AND (name = $2 OR (starts_with(name, $2 || '-') AND substr(name, length($2) + 2) ~ '^[0-9]{1,6}$'))
        "#,
        project.as_uuid(),
        base.as_str(),
    )
    .fetch_one(conn)
    .await?;
    u32::try_from(number).map_err(corrupt_column("tasks", "name"))
}

/// One task.
#[tracing::instrument(name = "db.tasks.get_task", skip_all, fields(task.id = %id))]
pub async fn get_task(conn: &mut Conn, id: TaskId) -> Result<Option<Task>, DbError> {
    sqlx::query_as!(
        TaskRow,
        r#"
        SELECT t.task_id, project_id, name, description, acceptance_criteria, max_cost_micros, max_tokens,
            profile, state, started_at, ended_at, failure, unreviewed, created_by, created_at, updated_at,
            ARRAY(SELECT depends_on FROM task_dependencies d WHERE d.task_id = t.task_id ORDER BY 1)
                AS "depends_on!"
        FROM tasks t
        WHERE t.task_id = $1
        "#,
        id.as_uuid(),
    )
    .fetch_optional(conn)
    .await?
    .map(Task::try_from)
    .transpose()
}

/// One task, locked until the transaction ends. References to the task from elsewhere do not wait for that; whoever goes
/// by its state reads it with [`lock_states_shared`].
#[tracing::instrument(name = "db.tasks.lock_task", skip_all, fields(task.id = %id))]
pub async fn lock_task(conn: &mut Conn, id: TaskId) -> Result<Option<Task>, DbError> {
    sqlx::query_as!(
        TaskRow,
        r#"
        SELECT t.task_id, project_id, name, description, acceptance_criteria, max_cost_micros, max_tokens,
            profile, state, started_at, ended_at, failure, unreviewed, created_by, created_at, updated_at,
            ARRAY(SELECT depends_on FROM task_dependencies d WHERE d.task_id = t.task_id ORDER BY 1)
                AS "depends_on!"
        FROM tasks t
        WHERE t.task_id = $1
        FOR NO KEY UPDATE
        "#,
        id.as_uuid(),
    )
    .fetch_optional(conn)
    .await?
    .map(Task::try_from)
    .transpose()
}

/// The states of tasks, which cannot change until the transaction ends.
#[tracing::instrument(name = "db.tasks.lock_states_shared", skip_all)]
pub async fn lock_states_shared(
    conn: &mut Conn,
    ids: &[TaskId],
) -> Result<Vec<TaskStateName>, DbError> {
    let ids: Vec<Uuid> = ids.iter().map(|id| id.as_uuid()).collect();
    let names = sqlx::query_scalar!(
        "SELECT state FROM tasks WHERE task_id = ANY($1) ORDER BY task_id FOR SHARE",
        &ids,
    )
    .fetch_all(conn)
    .await?;
    let state = |name: String| {
        TaskStateName::from_name(&name).ok_or(DbError::Corrupt { table: "tasks", column: "state" })
    };
    names.into_iter().map(state).collect()
}

/// The id of the task of that name in a project.
pub async fn find_task_id(
    conn: &mut Conn,
    project: ProjectId,
    name: &TaskName,
) -> Result<Option<TaskId>, DbError> {
    let id = sqlx::query_scalar!(
        "SELECT task_id FROM tasks WHERE project_id = $1 AND name = $2",
        project.as_uuid(),
        name.as_str(),
    )
    .fetch_optional(conn)
    .await?;
    Ok(id.map(TaskId::from_uuid))
}

/// Which tasks are wanted.
#[derive(Clone, Copy, Debug, Default)]
pub struct TaskFilter {
    /// Only of this project.
    pub project: Option<ProjectId>,
    /// Only in this state.
    pub state: Option<TaskStateName>,
    /// Only of projects that this user belongs to.
    pub member: Option<UserId>,
}

/// Tasks, newest first, one more than a page holds.
#[tracing::instrument(name = "db.tasks.list_tasks", skip_all)]
pub async fn list_tasks(
    conn: &mut Conn,
    filter: TaskFilter,
    page: PageRequest,
) -> Result<Vec<Task>, DbError> {
    sqlx::query_as!(
        TaskRow,
        r#"
        SELECT t.task_id, project_id, name, description, acceptance_criteria, max_cost_micros, max_tokens,
            profile, state, started_at, ended_at, failure, unreviewed, created_by, created_at, updated_at,
            ARRAY(SELECT depends_on FROM task_dependencies d WHERE d.task_id = t.task_id ORDER BY 1)
                AS "depends_on!"
        FROM tasks t
        WHERE ($1::uuid IS NULL OR t.task_id < $1)
          AND ($2::uuid IS NULL OR t.project_id = $2)
          AND ($3::text IS NULL OR t.state = $3)
          AND ($4::uuid IS NULL
            OR EXISTS (SELECT FROM project_members m WHERE m.project_id = t.project_id AND m.user_id = $4)
            OR EXISTS (
                SELECT FROM role_bindings b JOIN group_members g USING (group_id)
                WHERE b.project_id = t.project_id AND g.user_id = $4))
        ORDER BY t.task_id DESC
        LIMIT $5
        "#,
        page.after.map(|cursor| cursor.0),
        filter.project.map(ProjectId::as_uuid),
        filter.state.map(TaskStateName::as_str),
        filter.member.map(UserId::as_uuid),
        page.row_limit(),
    )
    .fetch_all(conn)
    .await?
    .into_iter()
    .map(Task::try_from)
    .collect()
}

/// Stores a new state of a task that the caller has locked.
#[tracing::instrument(name = "db.tasks.set_task_state", skip_all, fields(task.id = %id))]
pub async fn set_task_state(
    conn: &mut Conn,
    id: TaskId,
    state: &TaskState,
    now: OffsetDateTime,
) -> Result<(), DbError> {
    let (started_at, ended_at, failure) = match state {
        TaskState::Queued => (None, None, None),
        TaskState::Running { since } => (Some(*since), None, None),
        TaskState::Completed { at } | TaskState::Cancelled { at } => (None, Some(*at), None),
        TaskState::Failed { at, reason } => (None, Some(*at), Some(reason.as_str())),
    };
    sqlx::query!(
        "
        UPDATE tasks
        SET state = $2, started_at = coalesce($3, started_at), ended_at = $4, failure = $5, updated_at = $6
        WHERE task_id = $1
        ",
        id.as_uuid(),
        state.state_name().as_str(),
        started_at,
        ended_at,
        failure,
        now,
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// Says anew what must be shown for a task to be done.
#[tracing::instrument(name = "db.tasks.set_task_criteria", skip_all, fields(task.id = %id))]
pub async fn set_task_criteria(
    conn: &mut Conn,
    id: TaskId,
    criteria: &[cynode_core::tasks::Criterion],
    now: OffsetDateTime,
) -> Result<(), DbError> {
    let criteria =
        serde_json::to_value(criteria).map_err(corrupt_column("tasks", "acceptance_criteria"))?;
    sqlx::query!(
        "UPDATE tasks SET acceptance_criteria = $2, updated_at = $3 WHERE task_id = $1",
        id.as_uuid(),
        criteria,
        now,
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// Describes a task anew.
#[tracing::instrument(name = "db.tasks.set_task_description", skip_all, fields(task.id = %id))]
pub async fn set_task_description(
    conn: &mut Conn,
    id: TaskId,
    description: &cynode_core::names::Prose,
    unreviewed: bool,
    now: OffsetDateTime,
) -> Result<(), DbError> {
    sqlx::query!(
        "UPDATE tasks SET description = $2, updated_at = $3, unreviewed = $4 WHERE task_id = $1",
        id.as_uuid(),
        description.as_str(),
        now,
        unreviewed,
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// Notes that a person has looked at a task.
#[tracing::instrument(name = "db.tasks.mark_task_reviewed", skip_all, fields(task.id = %id))]
pub async fn mark_task_reviewed(conn: &mut Conn, id: TaskId) -> Result<(), DbError> {
    sqlx::query!("UPDATE tasks SET unreviewed = false WHERE task_id = $1", id.as_uuid())
        .execute(conn)
        .await?;
    Ok(())
}

/// Stores how the project manager understood a task. The newest refinement counts.
#[tracing::instrument(name = "db.tasks.set_task_refinement", skip_all, fields(task.id = %id))]
pub async fn set_task_refinement(
    conn: &mut Conn,
    id: TaskId,
    refinement: &TaskRefinement,
    now: OffsetDateTime,
) -> Result<(), DbError> {
    let refinement = serde_json::to_value(refinement)
        .map_err(corrupt_column("task_refinements", "refinement"))?;
    sqlx::query!(
        "
        INSERT INTO task_refinements (task_id, refinement, refined_at) VALUES ($1, $2, $3)
        ON CONFLICT (task_id) DO UPDATE SET refinement = excluded.refinement, refined_at = excluded.refined_at
        ",
        id.as_uuid(),
        refinement,
        now,
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// Returns how the project manager understood a task, if it has planned it.
#[tracing::instrument(name = "db.tasks.get_task_refinement", skip_all, fields(task.id = %id))]
pub async fn get_task_refinement(
    conn: &mut Conn,
    id: TaskId,
) -> Result<Option<TaskRefinement>, DbError> {
    let found = sqlx::query_scalar!(
        "SELECT refinement FROM task_refinements WHERE task_id = $1",
        id.as_uuid(),
    )
    .fetch_optional(conn)
    .await?;
    let read = |value| {
        serde_json::from_value(value).map_err(corrupt_column("task_refinements", "refinement"))
    };
    found.map(read).transpose()
}
