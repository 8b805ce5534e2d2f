//! Timeline entries of a task.

use cynode_core::{
    ids::TaskId,
    workflow::{
        timeline::{JobEntry, LeaseEnd, LeaseTakeover, StepEntry, WaitEntry},
        waits::WaitReason,
    },
};

use crate::{Conn, DbError, platform::error::corrupt_column};

/// Most entries of a kind that a timeline shows.
const MAX_TIMELINE_ENTRIES: i64 = 1000;

/// What a run has cost so far, in millionths.
#[tracing::instrument(name = "db.timeline.run_cost_micros", skip_all, fields(task.id = %task))]
pub async fn run_cost_micros(conn: &mut Conn, task: TaskId) -> Result<i64, DbError> {
    let cost = sqlx::query_scalar!(
        r#"SELECT coalesce(sum(cost_micros), 0)::bigint AS "cost!" FROM workflow_transitions WHERE task_id = $1"#,
        task.as_uuid(),
    );
    Ok(cost.fetch_one(conn).await?)
}

/// The steps of a run, in order; of a very long run the last ones.
#[tracing::instrument(name = "db.timeline.list_step_entries", skip_all, fields(task.id = %task))]
pub async fn list_step_entries(conn: &mut Conn, task: TaskId) -> Result<Vec<StepEntry>, DbError> {
    let rows = sqlx::query!(
        "
        SELECT sequence, step, verdict, unit_key, attempt, actor, instance, duration_ms, cost_micros, note, recorded_at
        FROM workflow_transitions
        WHERE task_id = $1
        ORDER BY sequence DESC
        LIMIT $2
        ",
        task.as_uuid(),
        MAX_TIMELINE_ENTRIES,
    )
    .fetch_all(conn)
    .await?;
    let steps = rows.into_iter().rev().map(|row| {
        let number = |value: i64, column| {
            u64::try_from(value).map_err(corrupt_column("workflow_transitions", column))
        };
        Ok(StepEntry {
            sequence: row.sequence,
            node: row.step,
            verdict: row.verdict,
            unit: row.unit_key,
            attempt: u32::try_from(row.attempt)
                .map_err(corrupt_column("workflow_transitions", "attempt"))?,
            actor: row.actor,
            instance: row.instance,
            duration_ms: number(row.duration_ms, "duration_ms")?,
            cost_micros: number(row.cost_micros, "cost_micros")?,
            note: row.note,
            at: row.recorded_at,
        })
    });
    steps.collect()
}

/// The takeovers of a run's lease, in order; of a very long run the last ones.
#[tracing::instrument(name = "db.timeline.list_lease_takeovers", skip_all, fields(task.id = %task))]
pub async fn list_lease_takeovers(
    conn: &mut Conn,
    task: TaskId,
) -> Result<Vec<LeaseTakeover>, DbError> {
    let rows = sqlx::query!(
        "
        SELECT sequence, holder, instance, previous_holder, previous_instance, previous_seen_at, ended_by, lease_ended_at, taken_at
        FROM lease_takeovers
        WHERE task_id = $1
        ORDER BY fencing_token DESC
        LIMIT $2
        ",
        task.as_uuid(),
        MAX_TIMELINE_ENTRIES,
    )
    .fetch_all(conn)
    .await?;
    let takeovers = rows.into_iter().rev().map(|row| {
        Ok(LeaseTakeover {
            sequence: row.sequence,
            holder: row.holder,
            instance: row.instance,
            previous_holder: row.previous_holder,
            previous_instance: row.previous_instance,
            previous_seen_at: row.previous_seen_at,
            ended_by: LeaseEnd::from_name(&row.ended_by)
                .ok_or(DbError::Corrupt { table: "lease_takeovers", column: "ended_by" })?,
            lease_ended_at: row.lease_ended_at,
            taken_at: row.taken_at,
        })
    });
    takeovers.collect()
}

/// The waits of a run, in order.
#[tracing::instrument(name = "db.timeline.list_wait_entries", skip_all, fields(task.id = %task))]
pub async fn list_wait_entries(conn: &mut Conn, task: TaskId) -> Result<Vec<WaitEntry>, DbError> {
    let rows = sqlx::query!(
        "
        SELECT wait_id, reason, owner, question, opened_at, expires_at, resolved_at, resolution, answer
        FROM waits
        WHERE task_id = $1
        ORDER BY sequence DESC, wait_id DESC
        LIMIT $2
        ",
        task.as_uuid(),
        MAX_TIMELINE_ENTRIES,
    )
    .fetch_all(conn)
    .await?;
    let waits = rows.into_iter().rev().map(|row| {
        Ok(WaitEntry {
            wait_id: cynode_core::ids::WaitId::from_uuid(row.wait_id),
            reason: WaitReason::from_name(&row.reason)
                .ok_or(DbError::Corrupt { table: "waits", column: "reason" })?,
            owner: row.owner,
            question: row.question,
            opened_at: row.opened_at,
            expires_at: row.expires_at,
            resolved_at: row.resolved_at,
            resolution: row.resolution,
            answer: row.answer,
        })
    });
    waits.collect()
}

/// The jobs of a task, in order.
#[tracing::instrument(name = "db.timeline.list_job_entries", skip_all, fields(task.id = %task))]
pub async fn list_job_entries(conn: &mut Conn, task: TaskId) -> Result<Vec<JobEntry>, DbError> {
    let rows = sqlx::query!(
        r#"
        SELECT j.job_id, coalesce(u.key, 'base-check') AS "key!", j.attempt, j.state, j.worker, j.queued_at, j.started_at, j.ended_at,
            CASE WHEN j.state = 'running' AND j.phase = 'setting_up' THEN coalesce((
                SELECT concat(e.data ->> 'number', ' of ', e.data ->> 'of', ': ', left(e.data ->> 'step', 200)) FROM job_events e
                WHERE e.job_id = j.job_id AND e.event = 'setup'
                ORDER BY e.number DESC LIMIT 1), '') END AS setup_step
        FROM jobs j LEFT JOIN work_units u ON u.unit_id = j.unit_id
        WHERE j.task_id = $1
        ORDER BY j.queued_at DESC, u.position DESC NULLS LAST
        LIMIT $2
        "#,
        task.as_uuid(),
        MAX_TIMELINE_ENTRIES,
    )
    .fetch_all(conn)
    .await?;
    let jobs = rows.into_iter().rev().map(|row| {
        Ok(JobEntry {
            job_id: cynode_core::ids::JobId::from_uuid(row.job_id),
            unit: row.key,
            attempt: u32::try_from(row.attempt).map_err(corrupt_column("jobs", "attempt"))?,
            state: row.state,
            worker: row.worker,
            setup_step: row.setup_step,
            queued_at: row.queued_at,
            started_at: row.started_at,
            ended_at: row.ended_at,
        })
    });
    jobs.collect()
}
