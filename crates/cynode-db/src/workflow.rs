//! Runs, leases and checkpoints.
//!
//! Lock order against deadlocks, for a transaction that locks several rows of one task: task, lease, checkpoint, run,
//! wait, units, jobs.

pub mod instructions;
pub mod jobs;
pub mod schedules;
pub mod timeline;
pub mod units;
pub mod waits;

use cynode_core::{
    ids::{RunId, TaskId},
    tasks::TaskStateName,
    trace::TraceId,
    workflow::{StepVerdict, WorkflowStep},
};
use serde_json::Value;
use time::OffsetDateTime;
use uuid::Uuid;

use crate::{Conn, DbError, platform::error::corrupt_column};

/// Asks for a task to be driven: from now on if `due`, else when something wakes it. Asked again, nothing changes.
#[tracing::instrument(name = "db.workflow.request_run", skip_all, fields(task.id = %task))]
pub async fn request_run(
    conn: &mut Conn,
    task: TaskId,
    run: RunId,
    trace: TraceId,
    due: bool,
) -> Result<(), DbError> {
    sqlx::query!(
        "
        INSERT INTO workflow_runs (task_id, run_id, trace_id, due_at, created_at)
        VALUES ($1, $2, $3, CASE WHEN $4::bool THEN clock_timestamp() END, clock_timestamp())
        ON CONFLICT (task_id) DO NOTHING
        ",
        task.as_uuid(),
        run.as_uuid(),
        trace.to_string(),
        due,
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// Something happened to these tasks from outside: their runs are due, unless they have ended.
#[tracing::instrument(name = "db.workflow.wake_runs", skip_all)]
pub async fn wake_runs(conn: &mut Conn, tasks: &[Uuid]) -> Result<(), DbError> {
    sqlx::query!(
        "
        UPDATE workflow_runs
        SET wake_count = wake_count + 1, due_at = clock_timestamp()
        WHERE task_id = ANY($1) AND ended_at IS NULL
        ",
        tasks,
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// Locks a run until the transaction ends, before anything of it that comes later in the order: its waits, units, jobs and handoffs.
#[tracing::instrument(name = "db.workflow.lock_run", skip_all, fields(task.id = %task))]
pub async fn lock_run(conn: &mut Conn, task: TaskId) -> Result<(), DbError> {
    sqlx::query!("SELECT run_id FROM workflow_runs WHERE task_id = $1 FOR UPDATE", task.as_uuid())
        .fetch_optional(conn)
        .await?;
    Ok(())
}

/// Waits for what others have locked only so long, until the end of the transaction: a statement that would wait longer fails.
#[tracing::instrument(name = "db.workflow.set_lock_timeout", skip_all)]
pub async fn set_lock_timeout(conn: &mut Conn, milliseconds: u32) -> Result<(), DbError> {
    sqlx::query_scalar!(
        r#"SELECT set_config('lock_timeout', $1, true) AS "set!""#,
        milliseconds.to_string(),
    )
    .fetch_one(conn)
    .await?;
    Ok(())
}

/// Who asks for a lease.
#[derive(Clone, Copy, Debug)]
pub struct LeaseClaimant<'a> {
    /// The runner.
    pub holder: &'a str,
    /// The attempt at driving.
    pub lease_id: &'a str,
    /// The process, and after a `#` its attempt.
    pub instance: &'a str,
    /// For how long.
    pub ttl_ms: i64,
}

/// What became of a request for a lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LeaseGrant {
    /// It was granted now.
    New {
        /// The token of the grant.
        fencing_token: i64,
        /// Until when.
        expires_at: OffsetDateTime,
    },
    /// The same attempt has it already.
    Already {
        /// The token of the grant.
        fencing_token: i64,
        /// Until when.
        expires_at: OffsetDateTime,
    },
    /// Somebody else has it.
    Held {
        /// Who.
        holder: String,
        /// Until when.
        expires_at: OffsetDateTime,
    },
}

/// Locks the task against every change of it until the transaction ends, and grants the lease if it is free, expired, or the claimant's own
/// from another process or attempt: one statement, by the database's clock. `None` when there is no such task. Each grant raises the token.
/// A grant to another process than the one before, or after a lease that nobody gave back, is recorded as a takeover. A process that does not name itself goes by its lease and cannot be told from another one.
#[tracing::instrument(name = "db.workflow.grant_lease", skip_all, fields(task.id = %task))]
pub async fn grant_lease(
    conn: &mut Conn,
    task: TaskId,
    claimant: LeaseClaimant<'_>,
) -> Result<Option<LeaseGrant>, DbError> {
    let new = sqlx::query!(
        r#"
        WITH task AS MATERIALIZED (
            SELECT FROM tasks WHERE task_id = $1 FOR NO KEY UPDATE
        ), before AS MATERIALIZED (
            SELECT holder, split_part(nullif(instance, lease_id), '#', 1) AS process, fencing_token, expires_at, seen_at, released_at
            FROM workflow_leases WHERE task_id = $1 AND EXISTS (SELECT FROM task) FOR UPDATE
        ), granted AS (
            INSERT INTO workflow_leases AS l (task_id, lease_id, holder, instance, fencing_token, expires_at, seen_at)
            -- The lease before is read and locked first.
            SELECT $1::uuid, $2::text, $3::text, $4::text, 1, clock_timestamp() + $5::bigint * interval '1 millisecond',
                clock_timestamp()
            FROM (SELECT count(*) FROM before) AS locked, task
            ON CONFLICT (task_id) DO UPDATE
            SET lease_id = excluded.lease_id, holder = excluded.holder, instance = excluded.instance,
                fencing_token = l.fencing_token + 1, expires_at = excluded.expires_at, seen_at = excluded.seen_at,
                released_at = NULL
            WHERE l.expires_at <= clock_timestamp()
               OR (l.holder = excluded.holder AND l.lease_id = excluded.lease_id AND l.instance <> excluded.instance)
            RETURNING l.holder, split_part(nullif(l.instance, l.lease_id), '#', 1) AS process, l.fencing_token, l.expires_at, l.seen_at
        ), takeover AS (
            INSERT INTO lease_takeovers (task_id, fencing_token, sequence, holder, instance, previous_holder, previous_instance,
                previous_seen_at, ended_by, lease_ended_at, taken_at)
            SELECT $1::uuid, g.fencing_token, coalesce(c.sequence, 0), g.holder, g.process, b.holder, b.process,
                greatest(b.seen_at, CASE WHEN c.fencing_token = b.fencing_token THEN c.updated_at END),
                CASE WHEN b.released_at IS NOT NULL THEN 'released' WHEN b.expires_at <= g.seen_at THEN 'expired' ELSE 'replaced' END,
                coalesce(b.released_at, least(b.expires_at, g.seen_at)), g.seen_at
            FROM granted g CROSS JOIN before b LEFT JOIN workflow_checkpoints c ON c.task_id = $1
            WHERE b.released_at IS NULL OR b.holder <> g.holder
                OR b.process <> g.process
        )
        SELECT fencing_token AS "fencing_token!", expires_at AS "expires_at!" FROM granted
        "#,
        task.as_uuid(),
        claimant.lease_id,
        claimant.holder,
        claimant.instance,
        claimant.ttl_ms,
    )
    .fetch_optional(&mut *conn)
    .await?;
    if let Some(row) = new {
        return Ok(Some(LeaseGrant::New {
            fencing_token: row.fencing_token,
            expires_at: row.expires_at,
        }));
    }
    // The row is locked by the statement before: what is found now is what it saw.
    let own = sqlx::query!(
        "
        UPDATE workflow_leases
        SET expires_at = clock_timestamp() + $5::bigint * interval '1 millisecond', seen_at = clock_timestamp()
        WHERE task_id = $1 AND lease_id = $2 AND holder = $3 AND instance = $4
        RETURNING fencing_token, expires_at
        ",
        task.as_uuid(),
        claimant.lease_id,
        claimant.holder,
        claimant.instance,
        claimant.ttl_ms,
    )
    .fetch_optional(&mut *conn)
    .await?;
    if let Some(row) = own {
        return Ok(Some(LeaseGrant::Already {
            fencing_token: row.fencing_token,
            expires_at: row.expires_at,
        }));
    }
    let held = sqlx::query!(
        "SELECT holder, expires_at FROM workflow_leases WHERE task_id = $1",
        task.as_uuid(),
    )
    .fetch_optional(conn)
    .await?;
    Ok(held.map(|held| LeaseGrant::Held { holder: held.holder, expires_at: held.expires_at }))
}

/// A lease as its holder names it.
#[derive(Clone, Copy, Debug)]
pub struct LeaseHandle<'a> {
    /// The task.
    pub task: TaskId,
    /// The attempt at driving.
    pub lease_id: &'a str,
    /// The token of the grant.
    pub fencing_token: i64,
}

/// Gives a live lease more time; `None` when it is not live or not the holder's any more.
#[tracing::instrument(name = "db.workflow.renew_lease", skip_all, fields(task.id = %lease.task))]
pub async fn renew_lease(
    conn: &mut Conn,
    lease: LeaseHandle<'_>,
    ttl_ms: i64,
) -> Result<Option<(String, OffsetDateTime)>, DbError> {
    let row = sqlx::query!(
        "
        UPDATE workflow_leases
        SET expires_at = clock_timestamp() + $4::bigint * interval '1 millisecond', seen_at = clock_timestamp()
        WHERE task_id = $1 AND lease_id = $2 AND fencing_token = $3 AND expires_at > clock_timestamp()
        RETURNING holder, expires_at
        ",
        lease.task.as_uuid(),
        lease.lease_id,
        lease.fencing_token,
        ttl_ms,
    )
    .fetch_optional(conn)
    .await?;
    Ok(row.map(|row| (row.holder, row.expires_at)))
}

/// Gives a lease back; nothing happens when it is not the holder's any more.
#[tracing::instrument(name = "db.workflow.release_lease", skip_all, fields(task.id = %lease.task))]
pub async fn release_lease(conn: &mut Conn, lease: LeaseHandle<'_>) -> Result<(), DbError> {
    sqlx::query!(
        "
        UPDATE workflow_leases
        SET expires_at = clock_timestamp(), released_at = clock_timestamp()
        WHERE task_id = $1 AND lease_id = $2 AND fencing_token = $3 AND expires_at > clock_timestamp()
        ",
        lease.task.as_uuid(),
        lease.lease_id,
        lease.fencing_token,
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// Ends every grant of the task: whoever drives it is shut out from now on.
#[tracing::instrument(name = "db.workflow.revoke_lease", skip_all, fields(task.id = %task))]
pub async fn revoke_lease(conn: &mut Conn, task: TaskId) -> Result<(), DbError> {
    sqlx::query!(
        "
        UPDATE workflow_leases
        SET fencing_token = fencing_token + 1, expires_at = clock_timestamp(), released_at = clock_timestamp()
        WHERE task_id = $1
        ",
        task.as_uuid(),
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// A run, its last checkpoint and its task's state.
#[derive(Clone, Debug)]
pub struct RunStatus {
    /// The run.
    pub run: RunId,
    /// The trace of everything about it.
    pub trace: TraceId,
    /// How many things have happened to it from outside.
    pub wakes: i64,
    /// How many retries it has used.
    pub retries_used: u32,
    /// How many instructions wait to be taken up.
    pub instructions_waiting: i32,
    /// Whether somebody must drive it now.
    pub due: bool,
    /// Whether it has ended.
    pub ended: bool,
    /// The task's state.
    pub task_state: TaskStateName,
    /// The plan that was given with the task.
    pub given_plan: Option<Value>,
    /// The last checkpoint, if it was ever driven.
    pub checkpoint: Option<RunCheckpointRow>,
    /// The wait that is open.
    pub open_wait: Option<crate::workflow::waits::OpenWait>,
}

/// A checkpoint as it is stored.
#[derive(Clone, Debug)]
pub struct RunCheckpointRow {
    /// Its number.
    pub sequence: i64,
    /// The node that was last.
    pub last_node: Option<WorkflowStep>,
    /// The node that is next; none when the run has ended.
    pub next_node: Option<WorkflowStep>,
    /// What later nodes need.
    pub state: Value,
    /// When it was written.
    pub updated_at: OffsetDateTime,
}

fn parse_workflow_step(name: Option<&str>) -> Result<Option<WorkflowStep>, DbError> {
    name.map(|name| {
        WorkflowStep::from_name(name)
            .ok_or(DbError::Corrupt { table: "workflow_checkpoints", column: "next_step" })
    })
    .transpose()
}

/// Where a run stands; `None` when nobody has asked for the task to be driven.
#[tracing::instrument(name = "db.workflow.get_run_status", skip_all, fields(task.id = %task))]
pub async fn get_run_status(conn: &mut Conn, task: TaskId) -> Result<Option<RunStatus>, DbError> {
    let row = sqlx::query!(
        r#"
        SELECT r.run_id, r.trace_id, r.wake_count, r.retries_used, r.pending_instructions, r.ended_at,
            coalesce(r.due_at <= clock_timestamp(), false) AS "due!",
            t.state AS task_state, c.sequence AS "sequence?", c.last_step, c.next_step, c.state AS "state?",
            c.updated_at AS "updated_at?", w.wait_id AS "wait_id?", w.reason AS "reason?", p.plan AS "plan?"
        FROM workflow_runs r
        JOIN tasks t USING (task_id)
        LEFT JOIN task_plans p USING (task_id)
        LEFT JOIN workflow_checkpoints c USING (task_id)
        LEFT JOIN waits w ON w.task_id = r.task_id AND w.resolved_at IS NULL
        WHERE r.task_id = $1
        "#,
        task.as_uuid(),
    )
    .fetch_optional(conn)
    .await?;
    let Some(row) = row else { return Ok(None) };
    let checkpoint = match (row.sequence, row.state, row.updated_at) {
        (Some(sequence), Some(state), Some(updated_at)) => Some(RunCheckpointRow {
            sequence,
            last_node: parse_workflow_step(row.last_step.as_deref())?,
            next_node: parse_workflow_step(row.next_step.as_deref())?,
            state,
            updated_at,
        }),
        _ => None,
    };
    let task_state = TaskStateName::from_name(&row.task_state)
        .ok_or(DbError::Corrupt { table: "tasks", column: "state" })?;
    Ok(Some(RunStatus {
        run: RunId::from_uuid(row.run_id),
        trace: row.trace_id.parse().map_err(corrupt_column("workflow_runs", "trace_id"))?,
        wakes: row.wake_count,
        retries_used: u32::try_from(row.retries_used)
            .map_err(corrupt_column("workflow_runs", "retries_used"))?,
        instructions_waiting: row.pending_instructions,
        due: row.due,
        ended: row.ended_at.is_some(),
        task_state,
        given_plan: row.plan,
        checkpoint,
        open_wait: crate::workflow::waits::to_open_wait(row.wait_id, row.reason.as_deref())?,
    }))
}

/// Makes the checkpoint before the first node.
#[tracing::instrument(name = "db.workflow.insert_first_checkpoint", skip_all, fields(task.id = %task))]
pub async fn insert_first_checkpoint(
    conn: &mut Conn,
    task: TaskId,
    standing: &RunStatus,
    fencing_token: i64,
) -> Result<RunCheckpointRow, DbError> {
    let updated_at = sqlx::query_scalar!(
        "
        INSERT INTO workflow_checkpoints
            (task_id, run_id, sequence, next_step, state, fencing_token, trace_id, updated_at)
        VALUES ($1, $2, 0, $3, '{}', $4, $5, clock_timestamp())
        RETURNING updated_at
        ",
        task.as_uuid(),
        standing.run.as_uuid(),
        WorkflowStep::FIRST.as_str(),
        fencing_token,
        standing.trace.to_string(),
    )
    .fetch_one(conn)
    .await?;
    let state = Value::Object(serde_json::Map::new());
    Ok(RunCheckpointRow {
        sequence: 0,
        last_node: None,
        next_node: Some(WorkflowStep::FIRST),
        state,
        updated_at,
    })
}

/// What a node did, to be stored.
#[derive(Clone, Debug)]
pub struct StepRecord<'a> {
    /// The number of the checkpoint.
    pub sequence: i64,
    /// The node that ran.
    pub node: WorkflowStep,
    /// What it found.
    pub verdict: StepVerdict,
    /// The node that follows; none when the run ends.
    pub next_node: Option<WorkflowStep>,
    /// What later nodes need.
    pub state: &'a Value,
    /// The unit it was about.
    pub unit: Option<&'a str>,
    /// Which attempt of the node.
    pub attempt: i32,
    /// How long it took.
    pub duration_ms: i64,
    /// What it cost.
    pub cost_micros: i64,
    /// A sentence for the timeline.
    pub note: Option<&'a str>,
}

/// Records of a run that a step may need.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each is another table")]
pub struct RunContents {
    /// Units.
    pub units: bool,
    /// Evidence of units.
    pub evidence: bool,
    /// Checks of the commit that the task began at.
    pub base_checks: bool,
    /// An environment of the project, accepted or proposed.
    pub environment: bool,
}

/// A stored step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoredStep {
    /// The counters of the run as they were before.
    pub counters: RunCounters,
    /// Which of the wanted records there are.
    pub contents: RunContents,
}

/// Stores a checkpoint and its place in the history, if the lease is live and the number and the node are the ones that
/// follow, and looks which of the wanted records there are: one statement. `None` when nothing was stored.
#[tracing::instrument(name = "db.workflow.store_checkpoint", skip_all, fields(task.id = %lease.task, sequence = step.sequence))]
pub async fn store_checkpoint(
    conn: &mut Conn,
    lease: LeaseHandle<'_>,
    step: &StepRecord<'_>,
    wanted: RunContents,
) -> Result<Option<StoredStep>, DbError> {
    let row = sqlx::query!(
        r#"
        WITH lease AS MATERIALIZED (
            SELECT holder, split_part(nullif(instance, lease_id), '#', 1) AS instance FROM workflow_leases
            WHERE task_id = $1 AND lease_id = $2 AND fencing_token = $3 AND expires_at > clock_timestamp()
            FOR UPDATE
        ), moved AS (
            UPDATE workflow_checkpoints
            SET sequence = $4::bigint, last_step = $5, next_step = $6, state = $7, fencing_token = $3,
                updated_at = clock_timestamp()
            WHERE task_id = $1 AND sequence = $4::bigint - 1 AND next_step = $5 AND EXISTS (SELECT FROM lease)
            RETURNING run_id, trace_id, updated_at
        ), told AS (
            INSERT INTO workflow_transitions (task_id, run_id, sequence, step, verdict, next_step, unit_key, attempt,
                actor, instance, fencing_token, duration_ms, cost_micros, note, trace_id, recorded_at)
            SELECT $1, run_id, $4::bigint, $5, $8, $6, $9, $10, (SELECT holder FROM lease), (SELECT instance FROM lease), $3,
                $11, $12, $13, trace_id, updated_at
            FROM moved
        )
        SELECT m.run_id, m.trace_id, r.wake_count, r.retries_used, r.pending_instructions,
            $14 AND EXISTS (SELECT FROM work_units WHERE task_id = $1) AS "units!",
            $15 AND EXISTS (SELECT FROM evidence WHERE task_id = $1 AND unit_id IS NOT NULL) AS "evidence!",
            $16 AND EXISTS (SELECT FROM evidence WHERE task_id = $1 AND unit_id IS NULL) AS "base_checks!",
            $17 AND EXISTS (SELECT FROM tasks t JOIN project_environments e USING (project_id)
                WHERE t.task_id = $1 AND e.state IN ('accepted', 'proposed')) AS "environment!"
        FROM moved m, workflow_runs r
        WHERE r.task_id = $1
        "#,
        lease.task.as_uuid(),
        lease.lease_id,
        lease.fencing_token,
        step.sequence,
        step.node.as_str(),
        step.next_node.map(WorkflowStep::as_str),
        step.state,
        step.verdict.as_str(),
        step.unit,
        step.attempt,
        step.duration_ms,
        step.cost_micros,
        step.note,
        wanted.units,
        wanted.evidence,
        wanted.base_checks,
        wanted.environment,
    )
    .fetch_optional(conn)
    .await?;
    row.map(|row| {
        let counters = RunCounters {
            run: RunId::from_uuid(row.run_id),
            trace: row.trace_id.parse().map_err(corrupt_column("workflow_runs", "trace_id"))?,
            wakes: row.wake_count,
            retries_used: row.retries_used.cast_unsigned(),
            instructions_waiting: row.pending_instructions,
        };
        let contents = RunContents {
            units: row.units,
            evidence: row.evidence,
            base_checks: row.base_checks,
            environment: row.environment,
        };
        Ok(StoredStep { counters, contents })
    })
    .transpose()
}

/// Stores a change of course that a person made, at a place where no node runs.
#[tracing::instrument(name = "db.workflow.store_manual_transition", skip_all, fields(task.id = %task))]
pub async fn store_manual_transition(
    conn: &mut Conn,
    task: TaskId,
    actor: &str,
    step: &StepRecord<'_>,
) -> Result<(), DbError> {
    sqlx::query!(
        "
        WITH moved AS (
            UPDATE workflow_checkpoints
            SET sequence = $2::bigint, last_step = $3, next_step = $4, state = $5, updated_at = clock_timestamp()
            WHERE task_id = $1 AND sequence = $2::bigint - 1
            RETURNING run_id, trace_id, updated_at
        )
        INSERT INTO workflow_transitions (task_id, run_id, sequence, step, verdict, next_step, attempt,
            actor, fencing_token, duration_ms, cost_micros, note, trace_id, recorded_at)
        -- No holder stored it: no holder's token.
        SELECT $1, run_id, $2::bigint, $3, $6, $4, 1, $7, 0, 0, 0, $8, trace_id, updated_at
        FROM moved
        ",
        task.as_uuid(),
        step.sequence,
        step.node.as_str(),
        step.next_node.map(WorkflowStep::as_str),
        step.state,
        step.verdict.as_str(),
        actor,
        step.note,
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// How many things have happened to a run from outside; `None` when there is none, or it has ended.
#[tracing::instrument(name = "db.workflow.get_wake_count", skip_all, fields(task.id = %task))]
pub async fn get_wake_count(conn: &mut Conn, task: TaskId) -> Result<Option<i64>, DbError> {
    let wakes = sqlx::query_scalar!(
        "SELECT wake_count FROM workflow_runs WHERE task_id = $1 AND ended_at IS NULL",
        task.as_uuid(),
    )
    .fetch_optional(conn)
    .await?;
    Ok(wakes)
}

/// Locks a live lease until the transaction ends; `false` when it is not live or not the holder's any more.
#[tracing::instrument(name = "db.workflow.lock_lease", skip_all, fields(task.id = %lease.task))]
pub async fn lock_lease(conn: &mut Conn, lease: LeaseHandle<'_>) -> Result<bool, DbError> {
    let row = sqlx::query!(
        "
        SELECT FROM workflow_leases
        WHERE task_id = $1 AND lease_id = $2 AND fencing_token = $3 AND expires_at > clock_timestamp()
        FOR UPDATE
        ",
        lease.task.as_uuid(),
        lease.lease_id,
        lease.fencing_token,
    )
    .fetch_optional(conn)
    .await?;
    Ok(row.is_some())
}

/// Whether this very checkpoint was stored before, under the same grant.
#[tracing::instrument(name = "db.workflow.is_checkpoint_stored", skip_all, fields(task.id = %lease.task, sequence))]
pub async fn is_checkpoint_stored(
    conn: &mut Conn,
    lease: LeaseHandle<'_>,
    sequence: i64,
    node: WorkflowStep,
) -> Result<bool, DbError> {
    let found = sqlx::query_scalar!(
        r#"
        SELECT EXISTS (
            SELECT FROM workflow_transitions
            WHERE task_id = $1 AND sequence = $2 AND fencing_token = $3 AND step = $4) AS "found!"
        "#,
        lease.task.as_uuid(),
        sequence,
        lease.fencing_token,
        node.as_str(),
    )
    .fetch_one(conn)
    .await?;
    Ok(found)
}

/// Where a run comes to rest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SuspendPoint {
    /// At a node that waits: an instruction that was not taken up makes it due at once.
    AtANode,
    /// At a gate that is shut: what was said waits until it opens.
    AtAGate,
}

/// Notes that a run waits: it is due at once if something happened that it had not seen, else after `wake_in_ms`, else
/// when it is woken.
#[tracing::instrument(name = "db.workflow.suspend_run", skip_all, fields(task.id = %task))]
pub async fn suspend_run(
    conn: &mut Conn,
    task: TaskId,
    resting: SuspendPoint,
    seen_wakes: i64,
    wake_in_ms: Option<i64>,
) -> Result<(), DbError> {
    sqlx::query!(
        "
        UPDATE workflow_runs
        SET dispatched_at = NULL, due_at = CASE
            WHEN wake_count <> $2 OR ($4 AND pending_instructions > 0) THEN clock_timestamp()
            ELSE clock_timestamp() + $3::bigint * interval '1 millisecond' END
        WHERE task_id = $1 AND ended_at IS NULL
        ",
        task.as_uuid(),
        seen_wakes,
        wake_in_ms,
        resting == SuspendPoint::AtANode,
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// Counts a retry against the task's budget.
#[tracing::instrument(name = "db.workflow.count_retry", skip_all, fields(task.id = %task))]
pub async fn count_retry(conn: &mut Conn, task: TaskId) -> Result<(), DbError> {
    sqlx::query!(
        "UPDATE workflow_runs SET retries_used = retries_used + 1 WHERE task_id = $1",
        task.as_uuid(),
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// What is known of a task at the end of its run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each is another table")]
pub struct RunEndStatus {
    /// Whether units were left that are neither done nor unwanted.
    pub unsettled: bool,
    /// Whether other tasks depend on it.
    pub has_dependents: bool,
    /// Whether evidence was recorded for it.
    pub has_evidence: bool,
    /// Whether it had jobs on nodes.
    pub has_node_jobs: bool,
    /// Whether it has handoffs that nobody has taken up.
    pub has_handoffs: bool,
    /// Whether agents have tokens for it.
    pub has_tokens: bool,
}

/// Ends a run, whatever it was waiting for, and its lease.
#[tracing::instrument(name = "db.workflow.end_run", skip_all, fields(task.id = %task, outcome))]
pub async fn end_run(
    conn: &mut Conn,
    task: TaskId,
    outcome: &str,
) -> Result<RunEndStatus, DbError> {
    let row = sqlx::query!(
        r#"
        WITH lease AS (
            UPDATE workflow_leases SET expires_at = clock_timestamp(), released_at = clock_timestamp()
            WHERE task_id = $1 AND expires_at > clock_timestamp()
        ), run AS (
            UPDATE workflow_runs
            SET due_at = NULL, ended_at = clock_timestamp(), outcome = $2
            WHERE task_id = $1 AND ended_at IS NULL
        )
        SELECT
            EXISTS (SELECT FROM work_units WHERE task_id = $1 AND state NOT IN ('done', 'cancelled')) AS "unsettled!",
            EXISTS (SELECT FROM task_dependencies WHERE depends_on = $1) AS "has_dependents!",
            EXISTS (SELECT FROM evidence WHERE task_id = $1) AS "has_evidence!",
            EXISTS (SELECT FROM jobs WHERE task_id = $1 AND requires_node) AS "has_node_jobs!",
            EXISTS (SELECT FROM handoffs WHERE task_id = $1 AND consumed_at IS NULL AND state <> 'cancelled') AS "has_handoffs!",
            EXISTS (SELECT FROM agent_tokens WHERE task_id = $1 AND revoked_at IS NULL) AS "has_tokens!"
        "#,
        task.as_uuid(),
        outcome,
    )
    .fetch_one(conn)
    .await?;
    Ok(RunEndStatus {
        unsettled: row.unsettled,
        has_dependents: row.has_dependents,
        has_evidence: row.has_evidence,
        has_node_jobs: row.has_node_jobs,
        has_handoffs: row.has_handoffs,
        has_tokens: row.has_tokens,
    })
}

/// A run that is due and has not been told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DueRun {
    /// The task.
    pub task: TaskId,
    /// The run.
    pub run: RunId,
    /// How many things have happened to it.
    pub wakes: i64,
    /// The token of the last grant; 0 before the first.
    pub fencing_token: i64,
    /// The trace of everything about it.
    pub trace: TraceId,
}

/// Takes runs that are due, have no live lease, and were not told of since, or not for `redispatch_after_ms`. Two processes never
/// take the same; whoever takes one and dies leaves it to be taken again.
#[tracing::instrument(name = "db.workflow.take_due_runs", skip_all)]
pub async fn take_due_runs(
    conn: &mut Conn,
    redispatch_after_ms: i64,
    most: i64,
) -> Result<Vec<DueRun>, DbError> {
    let rows = sqlx::query!(
        r#"
        WITH due AS (
            SELECT r.task_id, coalesce(l.fencing_token, 0) AS fencing_token
            FROM workflow_runs r
            LEFT JOIN workflow_leases l USING (task_id)
            WHERE r.due_at <= clock_timestamp()
              AND (l.task_id IS NULL OR l.expires_at <= clock_timestamp())
              AND (r.dispatched_at IS NULL OR r.dispatched_wake_count <> r.wake_count
                OR r.dispatched_at < clock_timestamp() - $1::bigint * interval '1 millisecond')
            ORDER BY r.due_at
            LIMIT $2
            FOR UPDATE OF r SKIP LOCKED
        )
        UPDATE workflow_runs r
        SET dispatched_at = clock_timestamp(), dispatched_wake_count = r.wake_count
        FROM due
        WHERE r.task_id = due.task_id
        RETURNING r.task_id, r.run_id, r.wake_count, due.fencing_token AS "fencing_token!", r.trace_id
        "#,
        redispatch_after_ms,
        most,
    )
    .fetch_all(conn)
    .await?;
    rows.into_iter()
        .map(|row| {
            Ok(DueRun {
                task: TaskId::from_uuid(row.task_id),
                run: RunId::from_uuid(row.run_id),
                wakes: row.wake_count,
                fencing_token: row.fencing_token,
                trace: row.trace_id.parse().map_err(corrupt_column("workflow_runs", "trace_id"))?,
            })
        })
        .collect()
}

/// Takes back that the engine was told of these tasks: it was not.
#[tracing::instrument(name = "db.workflow.clear_dispatch_marks", skip_all)]
pub async fn clear_dispatch_marks(conn: &mut Conn, tasks: &[Uuid]) -> Result<(), DbError> {
    sqlx::query!("UPDATE workflow_runs SET dispatched_at = NULL WHERE task_id = ANY($1)", tasks)
        .execute(conn)
        .await?;
    Ok(())
}

/// Whether everything that the task depends on is completed.
#[tracing::instrument(name = "db.workflow.has_completed_dependencies", skip_all, fields(task.id = %task))]
pub async fn has_completed_dependencies(conn: &mut Conn, task: TaskId) -> Result<bool, DbError> {
    let completed = sqlx::query_scalar!(
        r#"
        SELECT NOT EXISTS (
            SELECT FROM task_dependencies d JOIN tasks t ON t.task_id = d.depends_on
            WHERE d.task_id = $1 AND t.state <> 'completed') AS "completed!"
        "#,
        task.as_uuid(),
    )
    .fetch_one(conn)
    .await?;
    Ok(completed)
}

/// Wakes the tasks that depend on this one and wait for nothing else. Their runs are locked before their dependencies
/// are looked at: of two dependencies that complete at the same moment, the second sees the first.
#[tracing::instrument(name = "db.workflow.wake_dependents", skip_all, fields(task.id = %task))]
pub async fn wake_dependents(conn: &mut Conn, task: TaskId) -> Result<(), DbError> {
    let dependents = sqlx::query_scalar!(
        "
        SELECT task_id FROM workflow_runs
        WHERE task_id IN (SELECT task_id FROM task_dependencies WHERE depends_on = $1)
        ORDER BY task_id
        FOR UPDATE
        ",
        task.as_uuid(),
    )
    .fetch_all(&mut *conn)
    .await?;
    sqlx::query!(
        "
        UPDATE workflow_runs r
        SET wake_count = wake_count + 1, due_at = clock_timestamp()
        WHERE task_id = ANY($1) AND ended_at IS NULL AND NOT EXISTS (
            SELECT FROM task_dependencies d JOIN tasks t ON t.task_id = d.depends_on
            WHERE d.task_id = r.task_id AND t.state <> 'completed')
        ",
        &dependents,
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// What a checkpoint's answer needs of the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunCounters {
    /// The run.
    pub run: RunId,
    /// The trace of everything about it.
    pub trace: TraceId,
    /// How many things have happened to it from outside.
    pub wakes: i64,
    /// How many retries it has used.
    pub retries_used: u32,
    /// How many instructions wait to be taken up.
    pub instructions_waiting: i32,
}

/// The task and everything that depends on it, directly or not, that has not ended; in the order of their ids.
pub async fn list_active_dependents(conn: &mut Conn, task: TaskId) -> Result<Vec<TaskId>, DbError> {
    let rows = sqlx::query_scalar!(
        r#"
        WITH RECURSIVE reached AS (
            SELECT $1::uuid AS task_id
            UNION
            SELECT d.task_id FROM task_dependencies d JOIN reached r ON d.depends_on = r.task_id
        )
        SELECT t.task_id AS "task_id!" FROM tasks t
        WHERE t.task_id = ANY (ARRAY(SELECT task_id FROM reached)) AND t.state IN ('queued', 'running')
        ORDER BY 1
        "#,
        task.as_uuid(),
    )
    .fetch_all(conn)
    .await?;
    Ok(rows.into_iter().map(TaskId::from_uuid).collect())
}
