//! Work units of a task's plan.

use std::collections::BTreeMap;

use cynode_core::{
    ids::{TaskId, UnitId},
    workflow::{
        findings::VerificationFinding,
        jobs::JobSpec,
        plan::{PlannedUnit, UnitKey},
        units::{JobState, UnitJob, UnitState, UnitView},
    },
};
use serde_json::Value;
use uuid::Uuid;

use crate::{Conn, DbError, platform::error::corrupt_column};

/// The units of a task with their last jobs, in the order of the plan; results that were taken already are there only if so asked.
#[tracing::instrument(name = "db.units.list_task_units", skip_all, fields(task.id = %task))]
pub async fn list_task_units(
    conn: &mut Conn,
    task: TaskId,
    taken_too: bool,
) -> Result<Vec<UnitView>, DbError> {
    let rows = sqlx::query!(
        r#"
        SELECT u.key, u.title, u.depends_on, u.state, u.attempts, u.findings,
            j.attempt AS "job_attempt?", j.state AS "job_state?", j.collected_at AS "collected_at?", j.result AS "result?"
        FROM work_units u
        -- Looked up one by one, whatever a plan that was made for an empty table thinks.
        LEFT JOIN LATERAL (
            SELECT attempt, state, collected_at, CASE WHEN collected_at IS NULL OR $2 THEN result END AS result
            FROM jobs WHERE unit_id = u.unit_id AND attempt = u.attempts AND evidence_id IS NULL
            OFFSET 0
        ) AS j ON true
        WHERE u.task_id = $1
        ORDER BY u.position, u.key
        "#,
        task.as_uuid(),
        taken_too,
    )
    .fetch_all(conn)
    .await?;
    rows.into_iter()
        .map(|row| {
            let key =
                |text: String| UnitKey::try_from(text).map_err(corrupt_column("work_units", "key"));
            let job = match (row.job_attempt, row.job_state) {
                (Some(attempt), Some(state)) => Some(UnitJob {
                    attempt: u32::try_from(attempt).map_err(corrupt_column("jobs", "attempt"))?,
                    state: JobState::from_name(&state)
                        .ok_or(DbError::Corrupt { table: "jobs", column: "state" })?,
                    collected: row.collected_at.is_some(),
                    result: row.result,
                }),
                _ => None,
            };
            Ok(UnitView {
                key: key(row.key)?,
                title: row.title.try_into().map_err(corrupt_column("work_units", "title"))?,
                depends_on: row.depends_on.into_iter().map(key).collect::<Result<_, _>>()?,
                state: UnitState::from_name(&row.state)
                    .ok_or(DbError::Corrupt { table: "work_units", column: "state" })?,
                attempts: u32::try_from(row.attempts)
                    .map_err(corrupt_column("work_units", "attempts"))?,
                findings: serde_json::from_value(row.findings)
                    .map_err(corrupt_column("work_units", "findings"))?,
                job,
            })
        })
        .collect()
}

/// Makes the plan's units exist: new ones are added, ones that are not done are brought up to date and wait to be sent,
/// unless their job is out; ones that the plan does not name are cancelled, and their jobs with them. What is done stays
/// done. One statement.
#[tracing::instrument(name = "db.units.upsert_planned_units", skip_all, fields(task.id = %task))]
pub async fn upsert_planned_units(
    conn: &mut Conn,
    task: TaskId,
    units: &[(UnitId, &PlannedUnit)],
) -> Result<(), DbError> {
    let keys: Vec<&str> = units.iter().map(|(_, unit)| unit.key.as_str()).collect();
    let depends_on: Vec<Value> = units
        .iter()
        .map(|(_, unit)| unit.depends_on.iter().map(|key| key.as_str()).collect())
        .collect();
    sqlx::query!(
        "
        WITH planned AS (
            INSERT INTO work_units (unit_id, task_id, key, title, position, depends_on, payload, state, updated_at)
            SELECT unit_id, $1, key, title, ordinal - 1,
                ARRAY(SELECT jsonb_array_elements_text(depends_on)), payload, 'pending', clock_timestamp()
            FROM unnest($2::uuid[], $3::text[], $4::text[], $5::jsonb[], $6::jsonb[])
                WITH ORDINALITY AS given (unit_id, key, title, depends_on, payload, ordinal)
            ON CONFLICT ON CONSTRAINT work_units_key_unique DO UPDATE
            SET title = excluded.title, position = excluded.position, depends_on = excluded.depends_on,
                payload = excluded.payload, updated_at = excluded.updated_at,
                state = CASE WHEN work_units.state = 'dispatched' THEN 'dispatched' ELSE 'pending' END
            WHERE work_units.state <> 'done'
        ), dropped AS (
            UPDATE work_units
            SET state = 'cancelled', updated_at = clock_timestamp()
            WHERE task_id = $1 AND NOT key = ANY($3) AND state IN ('pending', 'dispatched', 'collected', 'failed')
            RETURNING unit_id
        )
        UPDATE jobs j
        SET state = 'cancelled', ended_at = clock_timestamp()
        FROM dropped
        WHERE j.unit_id = dropped.unit_id AND j.state IN ('queued', 'running')
        ",
        task.as_uuid(),
        &units.iter().map(|(id, _)| id.as_uuid()).collect::<Vec<_>>(),
        &keys as &[&str],
        &units.iter().map(|(_, unit)| unit.title.as_str()).collect::<Vec<_>>() as &[&str],
        &depends_on,
        &units.iter().map(|(_, unit)| unit.payload.clone()).collect::<Vec<_>>(),
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// Moves a unit on, if its present state and attempt allow it. `false` when they do not.
#[tracing::instrument(name = "db.units.set_unit_state", skip_all, fields(task.id = %task, unit = %key))]
pub async fn set_unit_state(
    conn: &mut Conn,
    task: TaskId,
    key: &UnitKey,
    attempt: u32,
    to: UnitState,
    findings: Option<&[VerificationFinding]>,
) -> Result<bool, DbError> {
    let findings = findings
        .map(serde_json::to_value)
        .transpose()
        .map_err(corrupt_column("work_units", "findings"))?;
    let from = UnitState::before(to);
    let done = sqlx::query!(
        "
        UPDATE work_units
        SET state = $4, findings = coalesce($5, findings), updated_at = clock_timestamp()
        WHERE task_id = $1 AND key = $2 AND attempts = $3 AND state = ANY($6)
        ",
        task.as_uuid(),
        key.as_str(),
        attempt.cast_signed(),
        to.as_str(),
        findings,
        &from as &[&str],
    )
    .execute(conn)
    .await?;
    Ok(done.rows_affected() == 1)
}

/// A job for a unit that is pending: the unit is dispatched and the job queued, together. `None` when the unit is not
/// pending or the attempt is not the one that follows.
#[tracing::instrument(name = "db.units.dispatch_unit", skip_all, fields(task.id = %task, unit = %key))]
pub async fn dispatch_unit(
    conn: &mut Conn,
    task: TaskId,
    key: &UnitKey,
    job: &NewUnitJob<'_>,
) -> Result<Option<()>, DbError> {
    let work = job.work.map(|work| serde_json::json!({ "work": work }));
    let row = sqlx::query!(
        r#"
        WITH sent AS (
            UPDATE work_units
            SET state = 'dispatched', attempts = $3, updated_at = clock_timestamp()
            WHERE task_id = $1 AND key = $2 AND attempts = $3 - 1 AND state = 'pending'
            RETURNING unit_id, title, payload
        )
        INSERT INTO jobs (job_id, task_id, unit_id, attempt, state, payload, trace_id, queued_at, deadline_at)
        SELECT $4, $1, unit_id, $3, 'queued',
            jsonb_build_object('title', title, 'unit',
                CASE WHEN $8::jsonb IS NULL THEN payload WHEN jsonb_typeof(payload) = 'object' THEN payload || $8 ELSE $8 END, 'remedy', $5::jsonb, 'timeout_seconds', $6::bigint),
            $7, clock_timestamp(), NULL
        FROM sent
        RETURNING 1 AS "made!"
        "#,
        task.as_uuid(),
        key.as_str(),
        job.attempt,
        job.id,
        job.remedy,
        job.timeout_seconds,
        job.trace,
        work,
    )
    .fetch_optional(conn)
    .await?;
    Ok(row.map(|_| ()))
}

/// A job to be queued.
#[derive(Clone, Debug)]
pub struct NewUnitJob<'a> {
    /// Its id.
    pub id: Uuid,
    /// Which attempt of the unit.
    pub attempt: i32,
    /// What is to be done otherwise than the last time.
    pub remedy: &'a Value,
    /// Who does it, when that was decided only now.
    pub work: Option<&'a JobSpec>,
    /// Most seconds from claim to result.
    pub timeout_seconds: i64,
    /// The trace of the run.
    pub trace: &'a str,
}

/// Marks the result of a unit's job as taken, if it has ended and was not taken before.
#[tracing::instrument(name = "db.units.mark_result_collected", skip_all, fields(task.id = %task, unit = %key))]
pub async fn mark_result_collected(
    conn: &mut Conn,
    task: TaskId,
    key: &UnitKey,
    attempt: u32,
) -> Result<bool, DbError> {
    let done = sqlx::query!(
        "
        UPDATE jobs j
        SET collected_at = clock_timestamp()
        FROM work_units u
        WHERE u.task_id = $1 AND u.key = $2 AND j.unit_id = u.unit_id AND j.attempt = $3
          AND j.evidence_id IS NULL AND j.state IN ('succeeded', 'failed', 'lost') AND j.collected_at IS NULL
        ",
        task.as_uuid(),
        key.as_str(),
        attempt.cast_signed(),
    )
    .execute(conn)
    .await?;
    Ok(done.rows_affected() == 1)
}

/// Which unit of a task brought which of these commits.
#[tracing::instrument(name = "db.units.units_by_commit", skip_all, fields(task.id = %task))]
pub async fn units_by_commit(
    conn: &mut Conn,
    task: TaskId,
    commits: &[String],
) -> Result<BTreeMap<String, UnitKey>, DbError> {
    let rows = sqlx::query!(
        r#"
        SELECT u.key, j.result ->> 'commit' AS "commit!"
        FROM work_units u JOIN jobs j ON j.unit_id = u.unit_id AND j.attempt = u.attempts AND j.evidence_id IS NULL
        WHERE u.task_id = $1 AND j.result ->> 'commit' = ANY ($2)
        "#,
        task.as_uuid(),
        commits,
    )
    .fetch_all(conn)
    .await?;
    let key = |text: String| UnitKey::try_from(text).map_err(corrupt_column("work_units", "key"));
    rows.into_iter().map(|row| Ok((row.commit, key(row.key)?))).collect()
}

/// Cancels every unit of a task that has not ended.
pub async fn cancel_task_units(conn: &mut Conn, task: TaskId) -> Result<(), DbError> {
    sqlx::query!(
        "
        UPDATE work_units
        SET state = 'cancelled', updated_at = clock_timestamp()
        WHERE task_id = $1 AND state IN ('pending', 'dispatched', 'collected')
        ",
        task.as_uuid(),
    )
    .execute(conn)
    .await?;
    Ok(())
}
