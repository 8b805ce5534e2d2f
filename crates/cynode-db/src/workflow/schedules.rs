//! Schedules and their firings.

use cynode_core::{
    ids::{HandoffId, ProjectId, ScheduleId, TaskId, UserId},
    names::{ProfileName, TaskName},
    paging::PageRequest,
    schedules::{FiringCause, MissedPolicy, Schedule, ScheduleAction, ScheduleTrigger},
    tasks::TaskStateName,
    trace::TraceId,
    workflow::handoffs::{HandoffAnswer, HandoffState},
};
use serde_json::Value;
use time::OffsetDateTime;
use uuid::Uuid;

use crate::{Conn, DbError, platform::error::corrupt_column};

struct ScheduleRow {
    schedule_id: Uuid,
    project_id: Uuid,
    name: String,
    cron: Option<String>,
    timezone: Option<String>,
    once_at: Option<OffsetDateTime>,
    prompt: Option<String>,
    template: Option<Value>,
    profile: Option<String>,
    missed_policy: String,
    enabled: bool,
    next_at: Option<OffsetDateTime>,
    firing_count: i64,
    version: i64,
    unreviewed: bool,
    acts_for: Uuid,
    created_by: Uuid,
    created_at: OffsetDateTime,
    updated_at: OffsetDateTime,
}

const fn corrupt_schedule(column: &'static str) -> DbError {
    DbError::Corrupt { table: "schedules", column }
}

impl TryFrom<ScheduleRow> for Schedule {
    type Error = DbError;

    fn try_from(row: ScheduleRow) -> Result<Self, DbError> {
        let trigger = match (row.cron, row.timezone, row.once_at) {
            (Some(expression), Some(timezone), None) => {
                ScheduleTrigger::Cron { expression, timezone }
            }
            (None, None, Some(at)) => ScheduleTrigger::Once { at },
            _ => return Err(corrupt_schedule("cron")),
        };
        let action = match (row.prompt, row.template) {
            (Some(words), None) => ScheduleAction::Words {
                text: words.try_into().map_err(corrupt_column("schedules", "prompt"))?,
            },
            (None, Some(template)) => ScheduleAction::Task(
                serde_json::from_value(template)
                    .map_err(corrupt_column("schedules", "template"))?,
            ),
            _ => return Err(corrupt_schedule("prompt")),
        };
        Ok(Self {
            id: ScheduleId::from_uuid(row.schedule_id),
            project: ProjectId::from_uuid(row.project_id),
            name: row.name.try_into().map_err(corrupt_column("schedules", "name"))?,
            trigger,
            action,
            profile: row
                .profile
                .map(TryInto::try_into)
                .transpose()
                .map_err(corrupt_column("schedules", "profile"))?,
            missed_policy: MissedPolicy::from_name(&row.missed_policy)
                .ok_or(corrupt_schedule("missed_policy"))?,
            enabled: row.enabled,
            next_at: row.next_at,
            firings: row.firing_count,
            version: row.version,
            unreviewed: row.unreviewed,
            acts_for: UserId::from_uuid(row.acts_for),
            created_by: UserId::from_uuid(row.created_by),
            created_at: row.created_at,
            updated_at: row.updated_at,
        })
    }
}

/// What a schedule says, as columns.
struct ScheduleColumns<'a> {
    cron: Option<&'a str>,
    timezone: Option<&'a str>,
    once_at: Option<OffsetDateTime>,
    prompt: Option<&'a str>,
    template: Option<Value>,
}

fn to_schedule_columns(schedule: &Schedule) -> Result<ScheduleColumns<'_>, DbError> {
    let (cron, timezone, once_at) = match &schedule.trigger {
        ScheduleTrigger::Cron { expression, timezone } => {
            (Some(expression.as_str()), Some(timezone.as_str()), None)
        }
        ScheduleTrigger::Once { at } => (None, None, Some(*at)),
    };
    let (prompt, template) = match &schedule.action {
        ScheduleAction::Words { text } => (Some(text.as_str()), None),
        ScheduleAction::Task(template) => {
            let template =
                serde_json::to_value(template).map_err(corrupt_column("schedules", "template"))?;
            (None, Some(template))
        }
    };
    Ok(ScheduleColumns { cron, timezone, once_at, prompt, template })
}

/// Stores a new schedule.
#[tracing::instrument(name = "db.schedules.insert_schedule", skip_all)]
pub async fn insert_schedule(conn: &mut Conn, schedule: &Schedule) -> Result<(), DbError> {
    let ScheduleColumns { cron, timezone, once_at, prompt, template } =
        to_schedule_columns(schedule)?;
    sqlx::query!(
        "
        INSERT INTO schedules (schedule_id, project_id, name, cron, timezone, once_at, prompt, template, missed_policy, enabled, next_at,
            firing_count, version, acts_for, created_by, created_at, updated_at, unreviewed, profile)
        VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, 0, 1, $12, $12, $13, $13, $14, $15)
        ",
        schedule.id.as_uuid(),
        schedule.project.as_uuid(),
        schedule.name.as_str(),
        cron,
        timezone,
        once_at,
        prompt,
        template,
        schedule.missed_policy.as_str(),
        schedule.enabled,
        schedule.next_at,
        schedule.created_by.as_uuid(),
        schedule.created_at,
        schedule.unreviewed,
        schedule.profile.as_ref().map(ProfileName::as_str),
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// Writes a schedule that is locked anew: all but its project, its author and how often it fired.
#[tracing::instrument(name = "db.schedules.update_schedule", skip_all)]
pub async fn update_schedule(conn: &mut Conn, schedule: &Schedule) -> Result<(), DbError> {
    let ScheduleColumns { cron, timezone, once_at, prompt, template } =
        to_schedule_columns(schedule)?;
    sqlx::query!(
        "
        UPDATE schedules SET name = $2, cron = $3, timezone = $4, once_at = $5, prompt = $6, template = $7, missed_policy = $8, enabled = $9,
            next_at = $10, version = $11, acts_for = $12, updated_at = $13, unreviewed = $14, profile = $15
        WHERE schedule_id = $1
        ",
        schedule.id.as_uuid(),
        schedule.name.as_str(),
        cron,
        timezone,
        once_at,
        prompt,
        template,
        schedule.missed_policy.as_str(),
        schedule.enabled,
        schedule.next_at,
        schedule.version,
        schedule.acts_for.as_uuid(),
        schedule.updated_at,
        schedule.unreviewed,
        schedule.profile.as_ref().map(ProfileName::as_str),
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// Notes that a person has looked at a schedule.
#[tracing::instrument(name = "db.schedules.mark_schedule_reviewed", skip_all)]
pub async fn mark_schedule_reviewed(conn: &mut Conn, id: ScheduleId) -> Result<(), DbError> {
    sqlx::query!("UPDATE schedules SET unreviewed = false WHERE schedule_id = $1", id.as_uuid())
        .execute(conn)
        .await?;
    Ok(())
}

/// Removes a schedule, with what is known of its firings; what it asked for stays.
#[tracing::instrument(name = "db.schedules.delete_schedule", skip_all)]
pub async fn delete_schedule(conn: &mut Conn, id: ScheduleId) -> Result<bool, DbError> {
    let done = sqlx::query!("DELETE FROM schedules WHERE schedule_id = $1", id.as_uuid());
    Ok(done.execute(conn).await?.rows_affected() > 0)
}

/// One schedule.
#[tracing::instrument(name = "db.schedules.get_schedule", skip_all)]
pub async fn get_schedule(conn: &mut Conn, id: ScheduleId) -> Result<Option<Schedule>, DbError> {
    sqlx::query_as!(
        ScheduleRow,
        "
        SELECT schedule_id, project_id, name, cron, timezone, once_at, prompt, template, missed_policy, enabled, next_at, firing_count, version,
            profile, unreviewed, acts_for, created_by, created_at, updated_at
        FROM schedules WHERE schedule_id = $1
        ",
        id.as_uuid(),
    )
    .fetch_optional(conn)
    .await?
    .map(Schedule::try_from)
    .transpose()
}

/// One schedule, which nobody else changes or fires before the transaction ends.
#[tracing::instrument(name = "db.schedules.lock_schedule", skip_all)]
pub async fn lock_schedule(conn: &mut Conn, id: ScheduleId) -> Result<Option<Schedule>, DbError> {
    sqlx::query_as!(
        ScheduleRow,
        "
        SELECT schedule_id, project_id, name, cron, timezone, once_at, prompt, template, missed_policy, enabled, next_at, firing_count, version,
            profile, unreviewed, acts_for, created_by, created_at, updated_at
        FROM schedules WHERE schedule_id = $1 FOR UPDATE
        ",
        id.as_uuid(),
    )
    .fetch_optional(conn)
    .await?
    .map(Schedule::try_from)
    .transpose()
}

/// A schedule whose time has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DueSchedule {
    /// The schedule.
    pub id: ScheduleId,
    /// In whose name it acts.
    pub acts_for: UserId,
    /// The time that has come.
    pub at: OffsetDateTime,
}

/// Schedules whose time has come, the longest ago first.
#[tracing::instrument(name = "db.schedules.list_due_schedules", skip_all)]
pub async fn list_due_schedules(
    conn: &mut Conn,
    now: OffsetDateTime,
    most: i64,
) -> Result<Vec<DueSchedule>, DbError> {
    let rows = sqlx::query!(
        r#"
        SELECT schedule_id, acts_for, next_at AS "next_at!" FROM schedules s
        WHERE next_at <= $1
            AND NOT EXISTS (SELECT FROM projects p WHERE p.project_id = s.project_id AND p.archived_at IS NOT NULL)
        ORDER BY next_at LIMIT $2
        "#,
        now,
        most,
    )
    .fetch_all(conn)
    .await?;
    let due = |id, user, at| DueSchedule {
        id: ScheduleId::from_uuid(id),
        acts_for: UserId::from_uuid(user),
        at,
    };
    Ok(rows.into_iter().map(|row| due(row.schedule_id, row.acts_for, row.next_at)).collect())
}

/// Locks a schedule that is still due as it was found; `None` when somebody else has it, or it has changed meanwhile.
#[tracing::instrument(name = "db.schedules.lock_due_schedule", skip_all)]
pub async fn lock_due_schedule(
    conn: &mut Conn,
    due: DueSchedule,
) -> Result<Option<Schedule>, DbError> {
    sqlx::query_as!(
        ScheduleRow,
        "
        SELECT schedule_id, project_id, name, cron, timezone, once_at, prompt, template, missed_policy, enabled, next_at, firing_count, version,
            profile, unreviewed, acts_for, created_by, created_at, updated_at
        FROM schedules WHERE schedule_id = $1 AND acts_for = $2 AND next_at = $3
        FOR UPDATE SKIP LOCKED
        ",
        due.id.as_uuid(),
        due.acts_for.as_uuid(),
        due.at,
    )
    .fetch_optional(conn)
    .await?
    .map(Schedule::try_from)
    .transpose()
}

/// What a firing came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FiringOutcome<'a> {
    /// A task was made.
    Task(TaskId),
    /// The project manager was asked what it means.
    Handoff(HandoffId),
    /// Nothing was asked for, as the schedule says, and why.
    Skipped(&'a str),
    /// Nothing could be asked for, and why.
    Refused(&'a str),
}

impl FiringOutcome<'_> {
    /// The name on the wire and in the database.
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::Task(_) => "task",
            Self::Handoff(_) => "handoff",
            Self::Skipped(_) => "skipped",
            Self::Refused(_) => "refused",
        }
    }
}

/// A firing to be stored.
#[derive(Clone, Copy, Debug)]
pub struct NewFiring<'a> {
    /// The schedule.
    pub schedule: ScheduleId,
    /// Why it fired.
    pub cause: FiringCause,
    /// The time that had come.
    pub due_at: OffsetDateTime,
    /// When it was done.
    pub fired_at: OffsetDateTime,
    /// How many times before were missed.
    pub missed_count: u32,
    /// What it came to.
    pub outcome: FiringOutcome<'a>,
    /// Its trace.
    pub trace: TraceId,
}

/// Stores a firing of a schedule that is locked. Gives its number.
#[tracing::instrument(name = "db.schedules.insert_firing", skip_all)]
pub async fn insert_firing(conn: &mut Conn, firing: &NewFiring<'_>) -> Result<i64, DbError> {
    let (task, handoff, reason) = match firing.outcome {
        FiringOutcome::Task(task) => (Some(task.as_uuid()), None, None),
        FiringOutcome::Handoff(handoff) => (None, Some(handoff.as_uuid()), None),
        FiringOutcome::Skipped(why) | FiringOutcome::Refused(why) => (None, None, Some(why)),
    };
    let number = sqlx::query_scalar!(
        "
        WITH counted AS (
            UPDATE schedules SET firing_count = firing_count + 1 WHERE schedule_id = $1 RETURNING firing_count
        )
        INSERT INTO schedule_firings (schedule_id, number, cause, due_at, fired_at, missed_count, outcome, task_id, handoff_id, reason,
            trace_id)
        SELECT $1, firing_count, $2, $3, $4, $5, $6, $7, $8, $9, $10 FROM counted
        RETURNING number
        ",
        firing.schedule.as_uuid(),
        firing.cause.as_str(),
        firing.due_at,
        firing.fired_at,
        i32::try_from(firing.missed_count).unwrap_or(i32::MAX),
        firing.outcome.as_str(),
        task,
        handoff,
        reason,
        firing.trace.to_string(),
    );
    Ok(number.fetch_one(conn).await?)
}

/// Says when a schedule that is locked is due next; nothing when it is over or switched off.
#[tracing::instrument(name = "db.schedules.set_next_firing", skip_all)]
pub async fn set_next_firing(
    conn: &mut Conn,
    id: ScheduleId,
    next_at: Option<OffsetDateTime>,
    enabled: bool,
) -> Result<(), DbError> {
    sqlx::query!(
        "UPDATE schedules SET next_at = $2, enabled = $3 WHERE schedule_id = $1",
        id.as_uuid(),
        next_at,
        enabled,
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// A firing, with what came of it so far.
#[derive(Clone, Debug, PartialEq)]
pub struct FiringRecord {
    /// The schedule.
    pub schedule: ScheduleId,
    /// Its number.
    pub number: i64,
    /// Why it fired.
    pub cause: FiringCause,
    /// The time that had come.
    pub due_at: OffsetDateTime,
    /// When it was done.
    pub fired_at: OffsetDateTime,
    /// How many times before were missed.
    pub missed_count: u32,
    /// What it came to at once: `task`, `handoff`, `skipped` or `refused`.
    pub outcome: String,
    /// The task that was made at once.
    pub task: Option<TaskId>,
    /// What the project manager was asked, and where that stands.
    pub handoff: Option<(HandoffId, HandoffState)>,
    /// What the project manager answered.
    pub answer: Option<HandoffAnswer>,
    /// Why nothing came of it.
    pub reason: Option<String>,
    /// Its trace.
    pub trace: String,
}

/// The last firing of each of these schedules.
#[tracing::instrument(name = "db.schedules.list_last_firings", skip_all)]
pub async fn list_last_firings(
    conn: &mut Conn,
    schedules: &[ScheduleId],
) -> Result<Vec<FiringRecord>, DbError> {
    let ids: Vec<Uuid> = schedules.iter().map(|id| id.as_uuid()).collect();
    let rows = sqlx::query!(
        r#"
        SELECT f.schedule_id, f.number, f.cause, f.due_at, f.fired_at, f.missed_count, f.outcome, f.task_id, f.handoff_id,
            coalesce(f.reason, h.failure) AS reason, f.trace_id, h.state AS "state?", h.answer AS "answer?"
        FROM schedules s
        JOIN schedule_firings f ON f.schedule_id = s.schedule_id AND f.number = s.firing_count
        LEFT JOIN handoffs h ON h.handoff_id = f.handoff_id
        WHERE s.schedule_id = ANY ($1)
        "#,
        &ids,
    )
    .fetch_all(conn)
    .await?;
    let wrong = |column| DbError::Corrupt { table: "schedule_firings", column };
    rows.into_iter()
        .map(|row| {
            let state = row.state.as_deref().map(HandoffState::from_name);
            let handoff = match (row.handoff_id, state) {
                (Some(id), Some(Some(state))) => Some((HandoffId::from_uuid(id), state)),
                (None, None) => None,
                _ => return Err(wrong("handoff_id")),
            };
            let answer = row.answer.map(serde_json::from_value).transpose();
            Ok(FiringRecord {
                schedule: ScheduleId::from_uuid(row.schedule_id),
                number: row.number,
                cause: FiringCause::from_name(&row.cause).ok_or_else(|| wrong("cause"))?,
                due_at: row.due_at,
                fired_at: row.fired_at,
                missed_count: row.missed_count.unsigned_abs(),
                outcome: row.outcome,
                task: row.task_id.map(TaskId::from_uuid),
                handoff,
                answer: answer.map_err(corrupt_column("handoffs", "answer"))?,
                reason: row.reason,
                trace: row.trace_id,
            })
        })
        .collect()
}

/// The tasks of these ids that are there, with their names and where they stand.
#[tracing::instrument(name = "db.schedules.list_fired_tasks", skip_all)]
pub async fn list_fired_tasks(
    conn: &mut Conn,
    ids: &[TaskId],
) -> Result<Vec<(TaskId, TaskName, TaskStateName)>, DbError> {
    let ids: Vec<Uuid> = ids.iter().map(|id| id.as_uuid()).collect();
    let rows =
        sqlx::query!("SELECT task_id, name, state FROM tasks WHERE task_id = ANY ($1)", &ids)
            .fetch_all(conn)
            .await?;
    rows.into_iter()
        .map(|row| {
            let name = row.name.try_into().map_err(corrupt_column("tasks", "name"))?;
            let state = TaskStateName::from_name(&row.state);
            let state = state.ok_or(DbError::Corrupt { table: "tasks", column: "state" })?;
            Ok((TaskId::from_uuid(row.task_id), name, state))
        })
        .collect()
}

/// The last of a schedule's own times that was done or left.
#[tracing::instrument(name = "db.schedules.last_due_at", skip_all)]
pub async fn last_due_at(
    conn: &mut Conn,
    id: ScheduleId,
) -> Result<Option<OffsetDateTime>, DbError> {
    let found = sqlx::query_scalar!(
        "SELECT max(due_at) FROM schedule_firings WHERE schedule_id = $1 AND cause = 'due'",
        id.as_uuid(),
    );
    Ok(found.fetch_one(conn).await?)
}

/// How many schedules a project has.
#[tracing::instrument(name = "db.schedules.count_schedules", skip_all)]
pub async fn count_schedules(conn: &mut Conn, project: ProjectId) -> Result<i64, DbError> {
    let found = sqlx::query_scalar!(
        r#"SELECT count(*) AS "count!" FROM schedules WHERE project_id = $1"#,
        project.as_uuid(),
    );
    Ok(found.fetch_one(conn).await?)
}

/// Which schedules are wanted.
#[derive(Clone, Copy, Debug, Default)]
pub struct ScheduleFilter {
    /// Only of this project.
    pub project: Option<ProjectId>,
    /// Only of projects that this user is a member of.
    pub member: Option<UserId>,
}

/// The schedules that are wanted, newest first.
#[tracing::instrument(name = "db.schedules.list_schedules", skip_all)]
pub async fn list_schedules(
    conn: &mut Conn,
    filter: ScheduleFilter,
    page: PageRequest,
) -> Result<Vec<Schedule>, DbError> {
    sqlx::query_as!(
        ScheduleRow,
        "
        SELECT schedule_id, project_id, name, cron, timezone, once_at, prompt, template, missed_policy, enabled, next_at, firing_count, version,
            profile, unreviewed, acts_for, created_by, created_at, updated_at
        FROM schedules s
        WHERE ($1::uuid IS NULL OR project_id = $1) AND ($3::uuid IS NULL OR schedule_id < $3)
            AND ($2::uuid IS NULL
                OR EXISTS (SELECT FROM project_members m WHERE m.user_id = $2 AND m.project_id = s.project_id)
                OR EXISTS (SELECT FROM group_members m JOIN role_bindings b USING (group_id)
                    WHERE m.user_id = $2 AND b.project_id = s.project_id))
        ORDER BY schedule_id DESC LIMIT $4
        ",
        filter.project.map(ProjectId::as_uuid),
        filter.member.map(UserId::as_uuid),
        page.after.map(|cursor| cursor.0),
        page.row_limit(),
    )
    .fetch_all(conn)
    .await?
    .into_iter()
    .map(Schedule::try_from)
    .collect()
}

/// Forgets firings from before `before`, at most `most`; the last of each schedule is kept. Gives how many.
#[tracing::instrument(name = "db.schedules.prune_firings", skip_all)]
pub async fn prune_firings(
    conn: &mut Conn,
    before: OffsetDateTime,
    most: i64,
) -> Result<u64, DbError> {
    let done = sqlx::query!(
        "
        DELETE FROM schedule_firings WHERE (schedule_id, number) IN (
            SELECT f.schedule_id, f.number FROM schedule_firings f JOIN schedules s USING (schedule_id)
            WHERE f.fired_at < $1 AND f.number < s.firing_count ORDER BY f.fired_at LIMIT $2)
        ",
        before,
        most,
    )
    .execute(conn)
    .await?;
    Ok(done.rows_affected())
}
