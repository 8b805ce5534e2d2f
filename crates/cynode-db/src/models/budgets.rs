//! Budgets: their limits, and what is reserved and spent.

use cynode_core::{
    budget::{Amount, Budget},
    ids::{BudgetId, CallId, ProjectId, TaskId, UserId},
    models::{BudgetScope, ParkKind, Period},
};
use serde_json::Value;
use sqlx::postgres::types::PgInterval;
use time::OffsetDateTime;
use uuid::Uuid;

use crate::{Conn, DbError, platform::error::corrupt_column};

/// A ceiling and how near it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BudgetStatus {
    /// Its id.
    pub id: BudgetId,
    /// Whose spending.
    pub scope: BudgetScope,
    /// Over which time.
    pub period: Period,
    /// The limits.
    pub limits: Budget,
    /// Who set it; nobody when it came with its task or with the installation.
    pub set_by: Option<UserId>,
    /// When the present period began.
    pub since: OffsetDateTime,
    /// What was spent in it.
    pub spent_micros: i64,
    /// What calls under way may still spend.
    pub reserved_micros: i64,
    /// Tokens that were used in it.
    pub spent_tokens: i64,
    /// Tokens that calls under way may still use.
    pub reserved_tokens: i64,
}

/// The worst that a call may cost.
#[derive(Clone, Debug)]
pub struct CallReservation {
    /// The call.
    pub call: CallId,
    /// The request that makes it, by which it keeps its place in the queue of a budget.
    pub waiter: Uuid,
    /// The epochs of the registry and of the preferences that it was routed by, added up.
    pub epoch: i64,
    /// Who asks.
    pub user: UserId,
    /// In which project.
    pub project: Option<ProjectId>,
    /// For which task.
    pub task: Option<TaskId>,
    /// A keyed digest of what is asked.
    pub digest: [u8; 32],
    /// Most money, in millionths.
    pub micros: i64,
    /// Most tokens.
    pub tokens: i64,
    /// What its row will say.
    pub facts: Value,
}

/// When a task is taken to go in circles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoopGuardLimits {
    /// How often a task may make the same call in a row.
    pub max_identical_calls: i32,
    /// How many calls a task may make without a step forward.
    pub max_calls_without_progress: i32,
    /// How much a task may spend within a minute, in millionths of the currency.
    pub max_cost_micros_per_minute: i64,
}

/// What became of a reservation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReservationOutcome {
    /// It is held back.
    Held,
    /// A ceiling would be passed.
    Full(BudgetId),
    /// A ceiling would be passed while the calls in progress are not settled: the call has a place in its queue.
    Waiting {
        /// The ceiling.
        budget: BudgetId,
        /// How many calls come before it.
        ahead: u32,
    },
    /// The task may not think now; whether nobody was told of it yet.
    Parked(TaskPark, bool),
    /// The registry has changed since.
    Stale,
}

/// A task that may not think now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskPark {
    /// Why.
    pub kind: ParkKind,
    /// Why, in words.
    pub reason: String,
    /// When the clock ends it; without it a person does.
    pub until: Option<OffsetDateTime>,
}

/// How a call ended.
#[derive(Clone, Debug)]
pub struct CallSettlement {
    /// The call.
    pub call: CallId,
    /// What it cost, in millionths.
    pub micros: i64,
    /// Tokens that it used.
    pub tokens: i64,
    /// What its row says besides what is known since the reservation.
    pub facts: Value,
}

const fn budget_scope_columns(scope: BudgetScope) -> (&'static str, Uuid) {
    match scope {
        BudgetScope::Installation => ("installation", Uuid::nil()),
        BudgetScope::User(id) => ("user", id.as_uuid()),
        BudgetScope::Project(id) => ("project", id.as_uuid()),
        BudgetScope::Task(id) => ("task", id.as_uuid()),
    }
}

fn parse_budget_scope(kind: &str, id: Uuid) -> Result<BudgetScope, DbError> {
    match kind {
        "installation" => Ok(BudgetScope::Installation),
        "user" => Ok(BudgetScope::User(UserId::from_uuid(id))),
        "project" => Ok(BudgetScope::Project(ProjectId::from_uuid(id))),
        "task" => Ok(BudgetScope::Task(TaskId::from_uuid(id))),
        _ => Err(DbError::Corrupt { table: "budgets", column: "scope_type" }),
    }
}

fn to_pg_interval(time: std::time::Duration) -> PgInterval {
    let microseconds = i64::try_from(time.as_micros()).unwrap_or(i64::MAX);
    PgInterval { months: 0, days: 0, microseconds }
}

/// Holds back what calls may cost, each or not at all. Gives for each call what became of it. A call that waits keeps its place for
/// `waiter_ttl`.
#[tracing::instrument(name = "db.budgets.reserve_calls", skip_all)]
pub async fn reserve_calls(
    conn: &mut Conn,
    calls: &[CallReservation],
    loop_guard: LoopGuardLimits,
    now: OffsetDateTime,
    lease: std::time::Duration,
    waiter_ttl: std::time::Duration,
) -> Result<Vec<ReservationOutcome>, DbError> {
    let ids: Vec<_> = calls.iter().map(|call| call.call.as_uuid()).collect();
    let epochs: Vec<_> = calls.iter().map(|call| call.epoch).collect();
    let users: Vec<_> = calls.iter().map(|call| call.user.as_uuid()).collect();
    let projects: Vec<_> = calls.iter().map(|call| call.project.map(ProjectId::as_uuid)).collect();
    let tasks: Vec<_> = calls.iter().map(|call| call.task.map(TaskId::as_uuid)).collect();
    let digests: Vec<_> = calls.iter().map(|call| call.digest.as_slice()).collect();
    let micros: Vec<_> = calls.iter().map(|call| call.micros).collect();
    let tokens: Vec<_> = calls.iter().map(|call| call.tokens).collect();
    let facts: Vec<_> = calls.iter().map(|call| call.facts.clone()).collect();
    let waiters: Vec<_> = calls.iter().map(|call| call.waiter).collect();
    let rows = sqlx::query!(
        r#"
        SELECT stale AS "stale!", budget, ahead, park, park_reason, park_until, park_new AS "park_new!"
        FROM reserve_calls($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16)
        "#,
        &ids,
        &epochs,
        &users,
        &projects as &[Option<Uuid>],
        &tasks as &[Option<Uuid>],
        &digests as &[&[u8]],
        &micros,
        &tokens,
        &facts,
        now,
        to_pg_interval(lease),
        loop_guard.max_identical_calls,
        loop_guard.max_calls_without_progress,
        loop_guard.max_cost_micros_per_minute,
        &waiters,
        to_pg_interval(waiter_ttl),
    )
    .fetch_all(conn)
    .await?;
    rows.into_iter()
        .map(|row| {
            if row.stale {
                return Ok(ReservationOutcome::Stale);
            }
            if let Some(kind) = row.park {
                let park =
                    to_task_park(&kind, row.park_reason.unwrap_or_default(), row.park_until)?;
                return Ok(ReservationOutcome::Parked(park, row.park_new));
            }
            let Some(budget) = row.budget.map(BudgetId::from_uuid) else {
                return Ok(ReservationOutcome::Held);
            };
            Ok(match row.ahead {
                Some(ahead) => ReservationOutcome::Waiting { budget, ahead: ahead.unsigned_abs() },
                None => ReservationOutcome::Full(budget),
            })
        })
        .collect()
}

fn to_task_park(
    kind: &str,
    reason: String,
    until: Option<OffsetDateTime>,
) -> Result<TaskPark, DbError> {
    let wrong = DbError::Corrupt { table: "task_parks", column: "kind" };
    Ok(TaskPark { kind: ParkKind::from_name(kind).ok_or(wrong)?, reason, until })
}

/// Gives up the place of a call that waits for a ceiling.
#[tracing::instrument(name = "db.budgets.remove_budget_waiter", skip_all)]
pub async fn remove_budget_waiter(conn: &mut Conn, waiter: Uuid) -> Result<(), DbError> {
    sqlx::query!("DELETE FROM budget_waiters WHERE waiter_id = $1", waiter).execute(conn).await?;
    Ok(())
}

/// Ends calls, each once. Gives those that were still open.
#[tracing::instrument(name = "db.budgets.settle_calls", skip_all)]
pub async fn settle_calls(
    conn: &mut Conn,
    calls: &[CallSettlement],
) -> Result<Vec<CallId>, DbError> {
    let ids: Vec<_> = calls.iter().map(|call| call.call.as_uuid()).collect();
    let micros: Vec<_> = calls.iter().map(|call| call.micros).collect();
    let tokens: Vec<_> = calls.iter().map(|call| call.tokens).collect();
    let facts: Vec<_> = calls.iter().map(|call| call.facts.clone()).collect();
    let settled = sqlx::query_scalar!(
        r#"SELECT settle_calls($1, $2, $3, $4) AS "call!""#,
        &ids,
        &micros,
        &tokens,
        &facts,
    );
    Ok(settled.fetch_all(conn).await?.into_iter().map(CallId::from_uuid).collect())
}

/// Keeps calls from counting as lost.
#[tracing::instrument(name = "db.budgets.renew_reservations", skip_all)]
pub async fn renew_reservations(
    conn: &mut Conn,
    calls: &[Uuid],
    lease: std::time::Duration,
) -> Result<(), DbError> {
    sqlx::query!(
        "UPDATE model_reservations SET expires_at = clock_timestamp() + $2 WHERE call_id = ANY ($1)",
        calls,
        to_pg_interval(lease),
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// Ends calls of which nothing was heard, at the worst that each may have cost.
#[tracing::instrument(name = "db.budgets.settle_expired_calls", skip_all)]
pub async fn settle_expired_calls(conn: &mut Conn, most: i32) -> Result<Vec<CallId>, DbError> {
    let lost = sqlx::query_scalar!(r#"SELECT settle_expired_calls($1) AS "call!""#, most);
    Ok(lost.fetch_all(conn).await?.into_iter().map(CallId::from_uuid).collect())
}

struct BudgetRow {
    budget_id: Uuid,
    scope_type: String,
    scope_id: Uuid,
    period: String,
    max_cost_micros: Option<i64>,
    max_tokens: Option<i64>,
    updated_by: Option<Uuid>,
    since: OffsetDateTime,
    spent_micros: i64,
    reserved_micros: i64,
    spent_tokens: i64,
    reserved_tokens: i64,
}

impl TryFrom<BudgetRow> for BudgetStatus {
    type Error = DbError;

    fn try_from(row: BudgetRow) -> Result<Self, DbError> {
        let amount = |number: Option<i64>, column| {
            number.map(Amount::try_from).transpose().map_err(corrupt_column("budgets", column))
        };
        let wrong = DbError::Corrupt { table: "budgets", column: "period" };
        Ok(Self {
            id: BudgetId::from_uuid(row.budget_id),
            scope: parse_budget_scope(&row.scope_type, row.scope_id)?,
            period: Period::from_name(&row.period).ok_or(wrong)?,
            limits: Budget {
                max_cost_micros: amount(row.max_cost_micros, "max_cost_micros")?,
                max_tokens: amount(row.max_tokens, "max_tokens")?,
            },
            set_by: row.updated_by.map(UserId::from_uuid),
            since: row.since,
            spent_micros: row.spent_micros,
            reserved_micros: row.reserved_micros,
            spent_tokens: row.spent_tokens,
            reserved_tokens: row.reserved_tokens,
        })
    }
}

/// The ceilings of a scope, in their present period.
#[tracing::instrument(name = "db.budgets.list_scope_budgets", skip_all)]
pub async fn list_scope_budgets(
    conn: &mut Conn,
    scope: BudgetScope,
    now: OffsetDateTime,
) -> Result<Vec<BudgetStatus>, DbError> {
    let (kind, id) = budget_scope_columns(scope);
    let rows = sqlx::query_as!(
        BudgetRow,
        r#"
        SELECT b.budget_id, b.scope_type, b.scope_id, b.period, b.max_cost_micros, b.max_tokens, b.updated_by,
            budget_period_start(b.period, $3) AS "since!", coalesce(c.spent_micros, 0) AS "spent_micros!",
            coalesce(c.reserved_micros, 0) AS "reserved_micros!", coalesce(c.spent_tokens, 0) AS "spent_tokens!",
            coalesce(c.reserved_tokens, 0) AS "reserved_tokens!"
        FROM budgets b
        LEFT JOIN budget_counters c ON c.budget_id = b.budget_id AND c.period_start = budget_period_start(b.period, $3)
        WHERE b.scope_type = $1 AND b.scope_id = $2
        ORDER BY b.period
        "#,
        kind,
        id,
        now,
    );
    rows.fetch_all(conn).await?.into_iter().map(BudgetStatus::try_from).collect()
}

/// All ceilings but those of tasks that have ended, in their present period. Those of tasks come last, so that the others are
/// seen however many tasks there are.
#[tracing::instrument(name = "db.budgets.list_budgets", skip_all)]
pub async fn list_budgets(
    conn: &mut Conn,
    now: OffsetDateTime,
) -> Result<Vec<BudgetStatus>, DbError> {
    let rows = sqlx::query_as!(
        BudgetRow,
        r#"
        SELECT b.budget_id AS "budget_id!", b.scope_type AS "scope_type!", b.scope_id AS "scope_id!", b.period AS "period!",
            b.max_cost_micros, b.max_tokens, b.updated_by,
            budget_period_start(b.period, $1) AS "since!", coalesce(c.spent_micros, 0) AS "spent_micros!",
            coalesce(c.reserved_micros, 0) AS "reserved_micros!", coalesce(c.spent_tokens, 0) AS "spent_tokens!",
            coalesce(c.reserved_tokens, 0) AS "reserved_tokens!"
        FROM (
            SELECT * FROM budgets WHERE scope_type IN ('installation', 'project', 'user')
            UNION ALL
            SELECT own.* FROM tasks t JOIN budgets own ON own.scope_type = 'task' AND own.scope_id = t.task_id
            WHERE t.state IN ('queued', 'running')
        ) AS b
        LEFT JOIN budget_counters c ON c.budget_id = b.budget_id AND c.period_start = budget_period_start(b.period, $1)
        ORDER BY b.scope_type = 'task', b.scope_type, b.scope_id, b.period
        LIMIT 1000
        "#,
        now,
    );
    rows.fetch_all(conn).await?.into_iter().map(BudgetStatus::try_from).collect()
}

/// One ceiling.
pub async fn get_budget(
    conn: &mut Conn,
    id: BudgetId,
    now: OffsetDateTime,
) -> Result<Option<BudgetStatus>, DbError> {
    let row = sqlx::query_as!(
        BudgetRow,
        r#"
        SELECT b.budget_id, b.scope_type, b.scope_id, b.period, b.max_cost_micros, b.max_tokens, b.updated_by,
            budget_period_start(b.period, $2) AS "since!", coalesce(c.spent_micros, 0) AS "spent_micros!",
            coalesce(c.reserved_micros, 0) AS "reserved_micros!", coalesce(c.spent_tokens, 0) AS "spent_tokens!",
            coalesce(c.reserved_tokens, 0) AS "reserved_tokens!"
        FROM budgets b
        LEFT JOIN budget_counters c ON c.budget_id = b.budget_id AND c.period_start = budget_period_start(b.period, $2)
        WHERE b.budget_id = $1
        "#,
        id.as_uuid(),
        now,
    );
    row.fetch_optional(conn).await?.map(BudgetStatus::try_from).transpose()
}

/// Sets a ceiling. What was spent under it stays spent. Gives its id.
#[tracing::instrument(name = "db.budgets.set_budget", skip_all)]
pub async fn set_budget(
    conn: &mut Conn,
    new: BudgetId,
    scope: BudgetScope,
    period: Period,
    limits: &Budget,
    by: UserId,
    now: OffsetDateTime,
) -> Result<BudgetId, DbError> {
    let (kind, id) = budget_scope_columns(scope);
    let set = sqlx::query_scalar!(
        "
        INSERT INTO budgets (budget_id, scope_type, scope_id, period, max_cost_micros, max_tokens, updated_by, updated_at)
        VALUES ($1, $2, $3, $4, $5, $6, $7, $8)
        ON CONFLICT ON CONSTRAINT budgets_unique DO UPDATE
        SET max_cost_micros = $5, max_tokens = $6, updated_by = $7, updated_at = $8
        RETURNING budget_id
        ",
        new.as_uuid(),
        kind,
        id,
        period.as_str(),
        limits.max_cost_micros.map(Amount::as_i64),
        limits.max_tokens.map(Amount::as_i64),
        by.as_uuid(),
        now,
    );
    Ok(BudgetId::from_uuid(set.fetch_one(conn).await?))
}

/// Stores the monthly ceiling that a user begins with, set by nobody.
#[tracing::instrument(name = "db.budgets.insert_default_budget", skip_all)]
pub async fn insert_default_budget(
    conn: &mut Conn,
    new: BudgetId,
    user: UserId,
    limits: &Budget,
    now: OffsetDateTime,
) -> Result<(), DbError> {
    sqlx::query!(
        "
        INSERT INTO budgets (budget_id, scope_type, scope_id, period, max_cost_micros, max_tokens, updated_at)
        VALUES ($1, 'user', $2, 'month', $3, $4, $5)
        ON CONFLICT ON CONSTRAINT budgets_unique DO NOTHING
        ",
        new.as_uuid(),
        user.as_uuid(),
        limits.max_cost_micros.map(Amount::as_i64),
        limits.max_tokens.map(Amount::as_i64),
        now,
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// Removes a ceiling, and with that of a task what the task was asked with: else the next call would set it again. Gives
/// whether it was there.
#[tracing::instrument(name = "db.budgets.remove_budget", skip_all)]
pub async fn remove_budget(conn: &mut Conn, id: BudgetId) -> Result<bool, DbError> {
    let gone = sqlx::query_scalar!(
        r#"
        WITH gone AS (
            DELETE FROM budgets WHERE budget_id = $1 RETURNING scope_type, scope_id, period
        ), wished AS (
            UPDATE tasks t SET max_cost_micros = NULL, max_tokens = NULL FROM gone g
            WHERE g.scope_type = 'task' AND g.period = 'total' AND t.task_id = g.scope_id
        )
        SELECT count(*) AS "gone!" FROM gone
        "#,
        id.as_uuid(),
    );
    Ok(gone.fetch_one(conn).await? == 1)
}

/// Lets a task rest until a provider's quota is renewed, if it does not rest already. Whoever does it tells of it at once.
#[tracing::instrument(name = "db.budgets.park_task", skip_all, fields(task.id = %task))]
pub async fn park_task(
    conn: &mut Conn,
    task: TaskId,
    park: &TaskPark,
    now: OffsetDateTime,
) -> Result<bool, DbError> {
    let done = sqlx::query!(
        "
        INSERT INTO task_parks AS p (task_id, kind, reason, parked_until, parked_at, notified_at) VALUES ($1, $2, $3, $4, $5, $5)
        ON CONFLICT (task_id) DO UPDATE SET kind = $2, reason = $3, parked_until = $4, parked_at = $5, notified_at = $5
        WHERE p.parked_until < $5
        ",
        task.as_uuid(),
        park.kind.as_str(),
        park.reason,
        park.until,
        now,
    );
    Ok(done.execute(conn).await?.rows_affected() == 1)
}

/// Notes that people are told of a parked task. Gives whether they were not, which only one who asks hears.
#[tracing::instrument(name = "db.budgets.mark_park_notified", skip_all, fields(task.id = %task))]
pub async fn mark_park_notified(
    conn: &mut Conn,
    task: TaskId,
    now: OffsetDateTime,
) -> Result<bool, DbError> {
    let done = sqlx::query!(
        "UPDATE task_parks SET notified_at = $2 WHERE task_id = $1 AND notified_at IS NULL",
        task.as_uuid(),
        now,
    );
    Ok(done.execute(conn).await?.rows_affected() == 1)
}

/// Parked tasks of which nobody was told: whoever found it out has died.
#[tracing::instrument(name = "db.budgets.list_unnotified_parks", skip_all)]
pub async fn list_unnotified_parks(
    conn: &mut Conn,
    most: i64,
) -> Result<Vec<(TaskId, TaskPark)>, DbError> {
    let rows = sqlx::query!(
        "SELECT task_id, kind, reason, parked_until FROM task_parks WHERE notified_at IS NULL ORDER BY task_id LIMIT $1",
        most,
    );
    let rows = rows.fetch_all(conn).await?.into_iter();
    rows.map(|row| {
        Ok((TaskId::from_uuid(row.task_id), to_task_park(&row.kind, row.reason, row.parked_until)?))
    })
    .collect()
}

/// Why a task may not think now, if it may not.
#[tracing::instrument(name = "db.budgets.get_task_park", skip_all, fields(task.id = %task))]
pub async fn get_task_park(
    conn: &mut Conn,
    task: TaskId,
    now: OffsetDateTime,
) -> Result<Option<TaskPark>, DbError> {
    let row = sqlx::query!(
        "SELECT kind, reason, parked_until FROM task_parks WHERE task_id = $1 AND (parked_until IS NULL OR parked_until > $2)",
        task.as_uuid(),
        now,
    );
    let row = row.fetch_optional(conn).await?;
    row.map(|row| to_task_park(&row.kind, row.reason, row.parked_until)).transpose()
}

/// Lets a task think again. Gives whether it was parked.
#[tracing::instrument(name = "db.budgets.unpark_task", skip_all, fields(task.id = %task))]
pub async fn unpark_task(conn: &mut Conn, task: TaskId) -> Result<bool, DbError> {
    let done = sqlx::query!("DELETE FROM task_parks WHERE task_id = $1", task.as_uuid());
    Ok(done.execute(conn).await?.rows_affected() == 1)
}
