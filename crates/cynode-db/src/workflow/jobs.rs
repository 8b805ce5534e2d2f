//! Jobs: claims, leases, results and expiry.

use cynode_core::{
    ids::{JobId, TaskId},
    workflow::{jobs::ClaimedJob, units::JobState},
};
use serde_json::Value;
use uuid::Uuid;

use crate::{Conn, DbError, platform::error::corrupt_column};

/// Lets a claim wait until another under the same id has ended; to be called in a transaction.
pub async fn lock_claim(conn: &mut Conn, claim_id: Uuid) -> Result<(), DbError> {
    sqlx::query!("SELECT pg_advisory_xact_lock(hashtextextended($1::uuid::text, 0))", claim_id)
        .execute(conn)
        .await?;
    Ok(())
}

/// Gives the oldest queued jobs to a worker: one statement. Claimed again under the same id, the same jobs are given and
/// no others; two workers never get the same job.
#[tracing::instrument(name = "db.jobs.claim_jobs", skip_all)]
pub async fn claim_jobs(
    conn: &mut Conn,
    worker: &str,
    claim_id: Uuid,
    most: i64,
    ttl_ms: i64,
) -> Result<Vec<ClaimedJob>, DbError> {
    let rows = sqlx::query!(
        r#"
        WITH before AS MATERIALIZED (
            SELECT job_id FROM jobs WHERE claim_id = $2 AND worker = $1 AND state = 'running'
        ), free AS MATERIALIZED (
            SELECT job_id FROM jobs
            WHERE state = 'queued' AND NOT requires_node AND NOT EXISTS (SELECT FROM before)
                AND NOT EXISTS (SELECT FROM task_parks p
                    WHERE p.task_id = jobs.task_id AND (p.parked_until IS NULL OR p.parked_until > clock_timestamp()))
            ORDER BY queued_at
            LIMIT $3
            FOR UPDATE SKIP LOCKED
        ), claimed AS (
            UPDATE jobs j
            SET state = 'running', worker = $1, claim_id = $2, fencing_token = fencing_token + 1,
                started_at = clock_timestamp(),
                lease_expires_at = clock_timestamp() + $4::bigint * interval '1 millisecond',
                deadline_at = clock_timestamp() + (payload ->> 'timeout_seconds')::bigint * interval '1 second'
            FROM free WHERE j.job_id = free.job_id
            RETURNING j.job_id, j.task_id, j.unit_id, j.attempt, j.fencing_token, j.payload, j.deadline_at, j.trace_id,
                j.queued_at
        ), given AS (
            SELECT * FROM claimed
            UNION ALL
            SELECT j.job_id, j.task_id, j.unit_id, j.attempt, j.fencing_token, j.payload, j.deadline_at, j.trace_id,
                j.queued_at
            FROM jobs j JOIN before USING (job_id)
        )
        SELECT g.job_id AS "job_id!", g.task_id AS "task_id!", u.key, g.attempt AS "attempt!",
            g.fencing_token AS "fencing_token!", g.payload AS "payload!", g.deadline_at AS "deadline_at!",
            g.trace_id AS "trace_id!"
        FROM given g JOIN work_units u USING (unit_id)
        ORDER BY g.queued_at, g.job_id
        "#,
        worker,
        claim_id,
        most,
        ttl_ms,
    )
    .fetch_all(conn)
    .await?;
    rows.into_iter()
        .map(|row| {
            Ok(ClaimedJob {
                job_id: JobId::from_uuid(row.job_id),
                task_id: TaskId::from_uuid(row.task_id),
                unit: row.key.try_into().map_err(corrupt_column("work_units", "key"))?,
                attempt: u32::try_from(row.attempt).map_err(corrupt_column("jobs", "attempt"))?,
                fencing_token: row.fencing_token,
                payload: serde_json::from_value(row.payload)
                    .map_err(corrupt_column("jobs", "payload"))?,
                deadline_at: row.deadline_at,
                trace_id: row.trace_id,
            })
        })
        .collect()
}

/// Where a job stands, and whose it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobClaimState {
    /// Where it stands.
    pub state: JobState,
    /// The token of the last claim.
    pub fencing_token: i64,
    /// Who has or had it.
    pub worker: Option<String>,
}

/// Where a job stands.
#[tracing::instrument(name = "db.jobs.get_claim_state", skip_all, fields(job.id = %job))]
pub async fn get_claim_state(
    conn: &mut Conn,
    job: JobId,
) -> Result<Option<JobClaimState>, DbError> {
    let row = sqlx::query!(
        "SELECT state, fencing_token, worker FROM jobs WHERE job_id = $1",
        job.as_uuid(),
    )
    .fetch_optional(conn)
    .await?;
    row.map(|row| {
        Ok(JobClaimState {
            state: JobState::from_name(&row.state)
                .ok_or(DbError::Corrupt { table: "jobs", column: "state" })?,
            fencing_token: row.fencing_token,
            worker: row.worker,
        })
    })
    .transpose()
}

/// The task that a job belongs to.
pub async fn task_of_job(conn: &mut Conn, job: JobId) -> Result<Option<TaskId>, DbError> {
    let found = sqlx::query_scalar!("SELECT task_id FROM jobs WHERE job_id = $1", job.as_uuid());
    Ok(found.fetch_optional(conn).await?.map(TaskId::from_uuid))
}

/// A job as whoever claimed it names it.
#[derive(Clone, Copy, Debug)]
pub struct JobClaim<'a> {
    /// The job.
    pub job: JobId,
    /// The worker.
    pub worker: &'a str,
    /// The token of the claim.
    pub fencing_token: i64,
}

/// Gives a running job more time before it counts as lost; never beyond its deadline. `false` when it is not running
/// under that claim.
#[tracing::instrument(name = "db.jobs.renew_job_lease", skip_all, fields(job.id = %claim.job))]
pub async fn renew_job_lease(
    conn: &mut Conn,
    claim: JobClaim<'_>,
    ttl_ms: i64,
) -> Result<bool, DbError> {
    let done = sqlx::query!(
        "
        UPDATE jobs
        SET lease_expires_at = least(clock_timestamp() + $4::bigint * interval '1 millisecond', deadline_at)
        WHERE job_id = $1 AND worker = $2 AND fencing_token = $3 AND state = 'running'
        ",
        claim.job.as_uuid(),
        claim.worker,
        claim.fencing_token,
        ttl_ms,
    )
    .execute(conn)
    .await?;
    Ok(done.rows_affected() == 1)
}

/// Stores what came of a job and wakes its run: one statement, which locks the run before the job, as everybody does.
/// Gives the task; `None` when the job is not running under that claim.
#[tracing::instrument(name = "db.jobs.record_job_result", skip_all, fields(job.id = %claim.job, state = state.as_str()))]
pub async fn record_job_result(
    conn: &mut Conn,
    claim: JobClaim<'_>,
    state: JobState,
    result: &Value,
) -> Result<Option<TaskId>, DbError> {
    let task = sqlx::query_scalar!(
        r#"
        WITH run AS MATERIALIZED (
            SELECT task_id FROM workflow_runs
            WHERE task_id = (SELECT task_id FROM jobs WHERE job_id = $1)
            FOR UPDATE
        ), reported AS (
            UPDATE jobs
            SET state = $4, result = $5, ended_at = clock_timestamp()
            WHERE job_id = $1 AND worker = $2 AND fencing_token = $3 AND state = 'running' AND EXISTS (SELECT FROM run)
            RETURNING task_id
        ), woken AS (
            UPDATE workflow_runs r
            SET wake_count = wake_count + 1, due_at = clock_timestamp()
            FROM reported WHERE r.task_id = reported.task_id AND r.ended_at IS NULL
        )
        SELECT task_id FROM reported
        "#,
        claim.job.as_uuid(),
        claim.worker,
        claim.fencing_token,
        state.as_str(),
        result,
    )
    .fetch_optional(conn)
    .await?;
    Ok(task.map(TaskId::from_uuid))
}

/// Cancels the jobs of a task whose units are not wanted any more, and those that try checks before the work: the task has ended.
#[tracing::instrument(name = "db.jobs.cancel_unwanted_jobs", skip_all, fields(task.id = %task))]
pub async fn cancel_unwanted_jobs(conn: &mut Conn, task: TaskId) -> Result<(), DbError> {
    sqlx::query!(
        "
        UPDATE jobs j
        SET state = 'cancelled', ended_at = clock_timestamp()
        FROM jobs own LEFT JOIN work_units u ON u.unit_id = own.unit_id
        WHERE own.job_id = j.job_id AND j.task_id = $1 AND j.state IN ('queued', 'running')
            AND CASE WHEN u.unit_id IS NULL THEN true WHEN j.evidence_id IS NULL THEN u.state <> 'dispatched'
                ELSE u.state NOT IN ('dispatched', 'collected', 'done') END
        ",
        task.as_uuid(),
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// How the fleet of workers looks: who has running jobs, and who of them was not heard of for too long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FleetHealth {
    /// Workers with running jobs.
    pub workers: i64,
    /// Those of which no running job is alive.
    pub silent: i64,
}

/// Looks at the fleet. A job that is merely past its deadline does not count against its worker.
#[tracing::instrument(name = "db.jobs.get_fleet_health", skip_all)]
pub async fn get_fleet_health(conn: &mut Conn) -> Result<FleetHealth, DbError> {
    let row = sqlx::query!(
        r#"
        SELECT count(*) AS "workers!", count(*) FILTER (WHERE silent) AS "silent!"
        FROM (
            SELECT worker, bool_and(lease_expires_at < least(clock_timestamp(), deadline_at)) AS silent
            FROM jobs WHERE state = 'running'
            GROUP BY worker
        ) AS workers
        "#,
    )
    .fetch_one(conn)
    .await?;
    Ok(FleetHealth { workers: row.workers, silent: row.silent })
}

/// Running jobs that were silent for too long or are past their deadline, oldest first.
#[tracing::instrument(name = "db.jobs.list_overdue_jobs", skip_all)]
pub async fn list_overdue_jobs(
    conn: &mut Conn,
    most: i64,
) -> Result<Vec<(JobId, TaskId)>, DbError> {
    let rows = sqlx::query!(
        "
        SELECT job_id, task_id FROM jobs
        WHERE state = 'running' AND (lease_expires_at < clock_timestamp() OR deadline_at < clock_timestamp())
        ORDER BY lease_expires_at
        LIMIT $1
        ",
        most,
    )
    .fetch_all(conn)
    .await?;
    let ids = rows.into_iter();
    Ok(ids.map(|row| (JobId::from_uuid(row.job_id), TaskId::from_uuid(row.task_id))).collect())
}

/// Gives up a job that is overdue and wakes its run; `false` when it was heard of meanwhile.
#[tracing::instrument(name = "db.jobs.mark_job_lost", skip_all, fields(job.id = %job))]
pub async fn mark_job_lost(conn: &mut Conn, job: JobId, task: TaskId) -> Result<bool, DbError> {
    crate::workflow::wake_runs(&mut *conn, &[task.as_uuid()]).await?;
    let done = sqlx::query!(
        "
        UPDATE jobs
        SET state = 'lost', ended_at = clock_timestamp()
        WHERE job_id = $1 AND state = 'running'
          AND (lease_expires_at < clock_timestamp() OR deadline_at < clock_timestamp())
        ",
        job.as_uuid(),
    )
    .execute(conn)
    .await?;
    Ok(done.rows_affected() == 1)
}
