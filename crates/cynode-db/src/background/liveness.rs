//! Stall detection: finds work that nobody takes in the stored state.

use cynode_core::ids::{HandoffId, JobId, ProjectId, TaskId};
use serde_json::Value;
use time::OffsetDateTime;
use uuid::Uuid;

use crate::{Conn, DbError};

/// Most that is found at once.
const MAX_STALLS: i64 = 200;

/// Something that waits and that nobody has taken for a while.
#[derive(Clone, Debug, PartialEq)]
pub struct Stall {
    /// The task that waits for it; none for a question of a chat or a schedule.
    pub task: Option<TaskId>,
    /// Its project.
    pub project: ProjectId,
    /// Since when.
    pub since: OffsetDateTime,
    /// What waits.
    pub cause: StallCause,
}

/// What waits, and what is known of those who should take it.
#[derive(Clone, Debug, PartialEq)]
pub enum StallCause {
    /// A job that was placed on a node and is not claimed, or that a node has of which nothing was heard since.
    UnclaimedJob {
        /// The job.
        job: JobId,
        /// The node.
        node: String,
        /// Whether the node was heard of lately.
        heard: bool,
    },
    /// A job that fits no node.
    UnplacedJob {
        /// The job.
        job: JobId,
        /// What it is to do.
        work: Value,
    },
    /// A question to the project manager or an analyst that nobody has claimed.
    UnclaimedHandoff {
        /// The question.
        handoff: HandoffId,
        /// Whom it is for: `project_manager` or `project_analyst`.
        role: String,
        /// Whether a process of that role was heard of lately.
        heard: bool,
        /// How many questions of that role somebody works on.
        claimed: i64,
    },
    /// A run that is due and that nobody drives.
    UndrivenRun {
        /// Whether the engine was told of it.
        sent: bool,
    },
    /// A model that was asked for a decision and has not answered.
    SlowModel {
        /// The call.
        call: Uuid,
        /// The model, as its provider calls it.
        model: String,
        /// The provider.
        provider: String,
    },
}

/// How long ago something was heard of at most, for it to count as heard of lately.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LivenessWindow {
    /// Of a node.
    pub node_ms: i64,
    /// Of a process of the project manager or an analyst.
    pub service_ms: i64,
}

/// What has waited for longer than `after_ms`, of one task or of all, oldest first. It reads only rows that wait: each part has an
/// index of its own for them.
#[tracing::instrument(name = "db.liveness.list_stalls", skip_all)]
pub async fn list_stalls(
    conn: &mut Conn,
    task: Option<TaskId>,
    after_ms: i64,
    within: LivenessWindow,
) -> Result<Vec<Stall>, DbError> {
    let rows = sqlx::query!(
        r#"
        WITH moment AS MATERIALIZED (
            SELECT clock_timestamp() AS now, clock_timestamp() - $2::bigint * interval '1 millisecond' AS before
        ), parked AS (
            SELECT p.task_id FROM task_parks p, moment WHERE p.parked_until IS NULL OR p.parked_until > moment.now
        ), found AS (
            SELECT 'unclaimed_job' AS kind, j.task_id, j.job_id AS id, NULL::uuid AS project_id, j.placed_at AS since,
                n.name AS name, n.last_seen_at > moment.now - $3::bigint * interval '1 millisecond' AS flag,
                NULL::bigint AS count, NULL::jsonb AS work
            FROM moment, jobs j JOIN nodes n USING (node_id)
            WHERE j.state = 'queued' AND j.placed_at < moment.before AND ($1::uuid IS NULL OR j.task_id = $1)
            UNION ALL
            SELECT 'unclaimed_job', j.task_id, j.job_id, NULL, n.last_seen_at, n.name, false, NULL, NULL
            FROM moment, jobs j JOIN nodes n USING (node_id)
            WHERE j.state = 'running' AND n.last_seen_at < moment.before AND ($1::uuid IS NULL OR j.task_id = $1)
            UNION ALL
            SELECT 'unplaced_job', j.task_id, j.job_id, NULL, j.queued_at, NULL, NULL, NULL, j.payload -> 'unit' -> 'work'
            FROM moment, jobs j
            WHERE j.state = 'queued' AND j.requires_node AND j.node_id IS NULL AND j.queued_at < moment.before
                AND ($1::uuid IS NULL OR j.task_id = $1)
            UNION ALL
            SELECT 'unclaimed_handoff', h.task_id, h.handoff_id, h.project_id, h.due_at, h.role,
                EXISTS (SELECT FROM service_tokens s
                    WHERE s.revoked_at IS NULL AND s.last_seen_at > moment.now - $5::bigint * interval '1 millisecond'
                        AND s.kind = CASE h.role WHEN 'project_manager' THEN 'manager' ELSE 'analyst' END),
                (SELECT count(*) FROM handoffs c WHERE c.state = 'claimed' AND c.role = h.role), NULL
            FROM moment, handoffs h
            WHERE h.state = 'queued' AND h.kind <> 'chat' AND h.due_at < moment.before AND ($1::uuid IS NULL OR h.task_id = $1)
                AND NOT coalesce(
                    (SELECT i.kind = 'pause' FROM task_instructions i
                        WHERE i.task_id = h.task_id AND i.applied_at IS NULL AND i.kind IN ('pause', 'resume')
                        ORDER BY i.number DESC LIMIT 1),
                    EXISTS (SELECT FROM waits w
                        WHERE w.task_id = h.task_id AND w.resolved_at IS NULL AND w.reason = 'paused'))
            UNION ALL
            SELECT 'undriven_run', r.task_id, r.run_id, NULL, greatest(r.due_at, l.expires_at), NULL, r.dispatched_at IS NOT NULL, NULL, NULL
            FROM moment, workflow_runs r LEFT JOIN workflow_leases l USING (task_id)
            WHERE r.due_at < moment.before AND (l.task_id IS NULL OR l.expires_at < moment.before)
                AND ($1::uuid IS NULL OR r.task_id = $1)
            UNION ALL
            SELECT 'slow_model', (c.call_record ->> 'task_id')::uuid, c.call_id, (c.call_record ->> 'project_id')::uuid,
                (c.call_record ->> 'started_at')::timestamptz, c.call_record ->> 'upstream', NULL, NULL, c.call_record
            FROM moment, model_reservations c
            WHERE (c.call_record ->> 'started_at')::timestamptz < moment.before AND c.expires_at > moment.now
                AND c.call_record ->> 'agent_role' IN ('project_manager', 'project_analyst') AND c.call_record ->> 'task_id' IS NOT NULL
                AND ($1::uuid IS NULL OR (c.call_record ->> 'task_id')::uuid = $1)
        )
        SELECT f.kind AS "kind!", f.task_id, f.id AS "id!", coalesce(f.project_id, t.project_id) AS "project_id!",
            f.since AS "since!", f.name, f.flag, f.count, f.work
        FROM found f LEFT JOIN tasks t USING (task_id)
        WHERE f.task_id IS NULL OR NOT EXISTS (SELECT FROM parked WHERE parked.task_id = f.task_id)
        ORDER BY f.since, f.id
        LIMIT $4
        "#,
        task.map(TaskId::as_uuid),
        after_ms,
        within.node_ms,
        MAX_STALLS,
        within.service_ms,
    )
    .fetch_all(conn)
    .await?;
    rows.into_iter()
        .map(|row| {
            let wrong = |column| DbError::Corrupt { table: "jobs", column };
            let cause = match row.kind.as_str() {
                "unclaimed_job" => StallCause::UnclaimedJob {
                    job: JobId::from_uuid(row.id),
                    node: row.name.ok_or_else(|| wrong("node_id"))?,
                    heard: row.flag.unwrap_or_default(),
                },
                "unplaced_job" => StallCause::UnplacedJob {
                    job: JobId::from_uuid(row.id),
                    work: row.work.unwrap_or_default(),
                },
                "unclaimed_handoff" => StallCause::UnclaimedHandoff {
                    handoff: HandoffId::from_uuid(row.id),
                    role: row.name.ok_or_else(|| wrong("role"))?,
                    heard: row.flag.unwrap_or_default(),
                    claimed: row.count.unwrap_or_default(),
                },
                "undriven_run" => StallCause::UndrivenRun { sent: row.flag.unwrap_or_default() },
                "slow_model" => StallCause::SlowModel {
                    call: row.id,
                    model: row.name.ok_or_else(|| wrong("call_record"))?,
                    provider: provider_name(row.work.as_ref()),
                },
                _ => return Err(wrong("state")),
            };
            Ok(Stall {
                task: row.task_id.map(TaskId::from_uuid),
                project: ProjectId::from_uuid(row.project_id),
                since: row.since,
                cause,
            })
        })
        .collect()
}

/// The provider that a call's facts name.
fn provider_name(facts: Option<&serde_json::Value>) -> String {
    facts.and_then(|facts| facts["provider"].as_str()).unwrap_or_default().to_owned()
}
