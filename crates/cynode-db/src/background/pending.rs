//! Pending work over all queues in one statement: an idle process polls once for all of them.

use cynode_core::{agents::AgentRole, ids::NodeId};
use time::OffsetDateTime;

use crate::{Conn, DbError};

/// What waits to be done. Whoever does it asks again by itself: this only says that asking is worth it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each is another queue")]
pub struct PendingWork {
    /// A run is due, nobody drives it, and the engine was not told of it lately.
    pub runs: bool,
    /// A wait, a job, a handoff or a park is over or was not looked after.
    pub overdue: bool,
    /// A job waits for a worker.
    pub jobs: bool,
    /// A job waits for a node to be chosen, or to be chosen anew.
    pub unplaced: bool,
    /// Nodes for which jobs wait.
    pub nodes: Vec<NodeId>,
    /// Roles for which handoffs wait.
    pub handoffs: Vec<AgentRole>,
    /// Somebody is to be told something.
    pub notices: bool,
    /// A schedule is to be fired.
    pub schedules: bool,
    /// A forge is to be looked at.
    pub remotes: bool,
    /// Nothing was heard of a model call for too long.
    pub calls: bool,
    /// An ingest is due, or a task has ended and is not in memory yet.
    pub memory: bool,
}

/// Looks at all queues.
#[tracing::instrument(name = "db.pending.find_pending_work", skip_all)]
pub async fn find_pending_work(
    conn: &mut Conn,
    now: OffsetDateTime,
    redispatch_after_ms: i64,
    silent_ms: i64,
) -> Result<PendingWork, DbError> {
    let row = sqlx::query!(
        r#"
        SELECT
            EXISTS (
                SELECT FROM (
                    SELECT FROM workflow_runs r LEFT JOIN workflow_leases l USING (task_id)
                    WHERE r.due_at <= clock_timestamp() AND (l.task_id IS NULL OR l.expires_at <= clock_timestamp())
                        AND (r.dispatched_at IS NULL OR r.dispatched_wake_count <> r.wake_count
                            OR r.dispatched_at < clock_timestamp() - $2::bigint * interval '1 millisecond')
                    ORDER BY r.due_at LIMIT 1
                ) due
            ) AS "runs!",
            EXISTS (SELECT FROM waits WHERE resolved_at IS NULL AND expires_at < clock_timestamp())
                OR EXISTS (SELECT FROM jobs
                    WHERE state = 'running' AND (lease_expires_at < clock_timestamp() OR deadline_at < clock_timestamp()))
                OR EXISTS (SELECT FROM handoffs WHERE state = 'claimed' AND lease_expires_at < clock_timestamp())
                OR EXISTS (SELECT FROM task_parks WHERE notified_at IS NULL) AS "overdue!",
            EXISTS (
                SELECT FROM jobs
                WHERE state = 'queued' AND NOT requires_node
                    AND NOT EXISTS (SELECT FROM task_parks p
                        WHERE p.task_id = jobs.task_id AND (p.parked_until IS NULL OR p.parked_until > clock_timestamp()))
            ) AS "jobs!",
            EXISTS (
                SELECT FROM jobs
                WHERE state = 'queued' AND requires_node AND node_id IS NULL
                    AND NOT EXISTS (SELECT FROM task_parks p
                        WHERE p.task_id = jobs.task_id AND (p.parked_until IS NULL OR p.parked_until > clock_timestamp()))
            ) OR EXISTS (
                SELECT FROM nodes n JOIN jobs j USING (node_id)
                WHERE j.state = 'queued' AND (n.state <> 'active'
                    OR n.last_seen_at < clock_timestamp() - $3::bigint * interval '1 millisecond')
            ) AS "unplaced!",
            ARRAY(
                SELECT DISTINCT j.node_id FROM jobs j
                WHERE j.state = 'queued' AND j.node_id IS NOT NULL
                    AND NOT EXISTS (SELECT FROM task_parks p
                        WHERE p.task_id = j.task_id AND (p.parked_until IS NULL OR p.parked_until > clock_timestamp()))
            ) AS "nodes!",
            ARRAY(
                SELECT DISTINCT h.role FROM handoffs h
                WHERE h.state = 'queued' AND h.kind <> 'chat' AND h.due_at <= clock_timestamp()
                    AND NOT EXISTS (SELECT FROM task_parks p
                        WHERE p.task_id = h.task_id AND (p.parked_until IS NULL OR p.parked_until > clock_timestamp()))
                    AND NOT coalesce(
                        (SELECT i.kind = 'pause' FROM task_instructions i
                            WHERE i.task_id = h.task_id AND i.applied_at IS NULL AND i.kind IN ('pause', 'resume')
                            ORDER BY i.number DESC LIMIT 1),
                        EXISTS (SELECT FROM waits w
                            WHERE w.task_id = h.task_id AND w.resolved_at IS NULL AND w.reason = 'paused'))
            ) AS "handoffs!",
            EXISTS (
                SELECT FROM notification_channels c
                WHERE c.enabled AND (c.quiet_until IS NULL OR c.quiet_until <= statement_timestamp())
                    AND EXISTS (SELECT FROM notifications n
                        WHERE n.channel_id = c.channel_id AND n.state = 'pending' AND n.due_at <= statement_timestamp())
            ) AS "notices!",
            EXISTS (SELECT FROM schedules WHERE next_at <= $1) AS "schedules!",
            EXISTS (
                SELECT FROM project_remotes
                WHERE due_at <= clock_timestamp() AND (lease_expires_at IS NULL OR lease_expires_at < clock_timestamp())
            ) AS "remotes!",
            EXISTS (SELECT FROM model_reservations WHERE expires_at < clock_timestamp()) AS "calls!",
            EXISTS (SELECT FROM memory_ingests WHERE due_at <= clock_timestamp())
                OR EXISTS (SELECT FROM tasks WHERE ended_at IS NOT NULL AND remembered_at IS NULL) AS "memory!"
        "#,
        now,
        redispatch_after_ms,
        silent_ms,
    )
    .fetch_one(conn)
    .await?;
    let role = |name: &String| {
        AgentRole::from_name(name).ok_or(DbError::Corrupt { table: "handoffs", column: "role" })
    };
    Ok(PendingWork {
        runs: row.runs,
        overdue: row.overdue,
        jobs: row.jobs,
        unplaced: row.unplaced,
        nodes: row.nodes.into_iter().map(NodeId::from_uuid).collect(),
        handoffs: row.handoffs.iter().map(role).collect::<Result<_, _>>()?,
        notices: row.notices,
        schedules: row.schedules,
        remotes: row.remotes,
        calls: row.calls,
        memory: row.memory,
    })
}
