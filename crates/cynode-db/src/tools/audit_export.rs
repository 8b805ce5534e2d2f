//! Privileged events on their way into chains of audit records, and the sinks that receive records.

use cynode_core::{
    events::EventPosition,
    ids::{ProjectId, TaskId, UserId},
};
use serde_json::Value;
use time::OffsetDateTime;
use uuid::Uuid;

use crate::{Conn, DbError};

/// A privileged event, as it is stored.
#[derive(Clone, Debug, PartialEq)]
pub struct PrivilegedEvent {
    /// Its place in the stream.
    pub position: EventPosition,
    /// When.
    pub occurred_at: OffsetDateTime,
    /// What kind of thing.
    pub kind: String,
    /// Who did it.
    pub actor: Option<UserId>,
    /// Whose account it concerns.
    pub subject: Option<UserId>,
    /// In which project.
    pub project: Option<ProjectId>,
    /// To which task.
    pub task: Option<TaskId>,
    /// The trace it belongs to.
    pub trace: String,
    /// More about it.
    pub data: Value,
}

struct PrivilegedEventRow {
    xact: i64,
    seq: i64,
    occurred_at: OffsetDateTime,
    kind: String,
    actor_id: Option<Uuid>,
    subject_id: Option<Uuid>,
    project_id: Option<Uuid>,
    task_id: Option<Uuid>,
    trace_id: String,
    data: Value,
}

impl From<PrivilegedEventRow> for PrivilegedEvent {
    fn from(row: PrivilegedEventRow) -> Self {
        Self {
            position: EventPosition { xact: row.xact, seq: row.seq },
            occurred_at: row.occurred_at,
            kind: row.kind,
            actor: row.actor_id.map(UserId::from_uuid),
            subject: row.subject_id.map(UserId::from_uuid),
            project: row.project_id.map(ProjectId::from_uuid),
            task: row.task_id.map(TaskId::from_uuid),
            trace: row.trace_id,
            data: row.data,
        }
    }
}

/// Takes the lock of the chain of privileged events until the end of the transaction. `false` when another process writes it.
pub async fn try_lock_privileged_chain(conn: &mut Conn) -> Result<bool, DbError> {
    let taken = sqlx::query_scalar!(
        r#"SELECT pg_try_advisory_xact_lock(hashtext('cynode.privileged_chain')) AS "taken!""#
    );
    Ok(taken.fetch_one(conn).await?)
}

/// Privileged events that are in no chain yet, oldest first.
#[tracing::instrument(name = "db.audit_export.list_queued_events", skip_all)]
pub async fn list_queued_events(
    conn: &mut Conn,
    limit: i64,
) -> Result<Vec<PrivilegedEvent>, DbError> {
    let rows = sqlx::query_as!(
        PrivilegedEventRow,
        "
        SELECT e.xact, e.seq, e.occurred_at, e.kind, e.actor_id, e.subject_id, e.project_id, e.task_id, e.trace_id, e.data
        FROM privileged_event_queue q
        JOIN events e ON e.xact = q.xact AND e.seq = q.seq AND e.occurred_at = q.occurred_at
        ORDER BY q.xact, q.seq LIMIT $1
        ",
        limit,
    )
    .fetch_all(conn)
    .await?;
    Ok(rows.into_iter().map(PrivilegedEvent::from).collect())
}

/// Notes that these events are in a chain.
#[tracing::instrument(name = "db.audit_export.dequeue_events", skip_all)]
pub async fn dequeue_events(conn: &mut Conn, positions: &[EventPosition]) -> Result<(), DbError> {
    let (xacts, seqs): (Vec<i64>, Vec<i64>) =
        positions.iter().map(|position| (position.xact, position.seq)).unzip();
    sqlx::query!(
        "
        DELETE FROM privileged_event_queue q USING unnest($1::bigint[], $2::bigint[]) AS d (xact, seq)
        WHERE q.xact = d.xact AND q.seq = d.seq
        ",
        &xacts,
        &seqs,
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// The privileged events that are in no chain yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EventBacklog {
    /// The number of events.
    pub events: i64,
    /// When the oldest of them happened.
    pub oldest_at: Option<OffsetDateTime>,
}

/// How many privileged events are in no chain yet, and since when.
#[tracing::instrument(name = "db.audit_export.measure_event_queue", skip_all)]
pub async fn measure_event_queue(conn: &mut Conn) -> Result<EventBacklog, DbError> {
    Ok(sqlx::query_as!(
        EventBacklog,
        r#"SELECT count(*) AS "events!", min(occurred_at) AS oldest_at FROM privileged_event_queue"#
    )
    .fetch_one(conn)
    .await?)
}

/// The partitions of a table, one for each month that it has.
#[tracing::instrument(name = "db.audit_export.list_partitions", skip_all)]
pub async fn list_partitions(conn: &mut Conn, table: &str) -> Result<Vec<String>, DbError> {
    Ok(sqlx::query_scalar!(
        r#"
        SELECT c.relname::text AS "name!" FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
        WHERE i.inhparent = to_regclass($1::text)
        "#,
        table,
    )
    .fetch_all(conn)
    .await?)
}

/// Which events are privileged.
#[derive(Clone, Debug)]
pub struct PrivilegedKinds {
    /// Kinds that always are.
    pub always: Vec<String>,
    /// Kinds that are when a person is the actor.
    pub by_person: Vec<String>,
}

/// A privileged event without a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnrecordedEvent {
    /// Its place in the stream.
    pub position: EventPosition,
    /// What kind of thing.
    pub kind: String,
}

/// Privileged events of a time that are neither in a chain nor on their way to one, oldest first. `method` is that of their records.
#[tracing::instrument(name = "db.audit_export.list_unrecorded_events", skip_all)]
pub async fn list_unrecorded_events(
    conn: &mut Conn,
    kinds: &PrivilegedKinds,
    method: &str,
    (since, until): (OffsetDateTime, OffsetDateTime),
    limit: i64,
) -> Result<Vec<UnrecordedEvent>, DbError> {
    let rows = sqlx::query!(
        "
        SELECT e.xact, e.seq, e.kind FROM events e
        WHERE e.occurred_at >= $1 AND e.occurred_at < $2
          AND (e.kind = ANY ($3) OR (e.kind = ANY ($4) AND e.actor_id IS NOT NULL))
          AND NOT EXISTS (
              SELECT FROM audit_records r
              WHERE r.call_id = (lpad(to_hex(e.xact), 16, '0') || lpad(to_hex(e.seq), 16, '0'))::uuid AND r.method = $5)
          AND NOT EXISTS (SELECT FROM privileged_event_queue q WHERE q.xact = e.xact AND q.seq = e.seq)
        ORDER BY e.xact, e.seq LIMIT $6
        ",
        since,
        until,
        &kinds.always,
        &kinds.by_person,
        method,
        limit,
    )
    .fetch_all(conn)
    .await?;
    let read = rows.into_iter().map(|row| UnrecordedEvent {
        position: EventPosition { xact: row.xact, seq: row.seq },
        kind: row.kind,
    });
    Ok(read.collect())
}

/// The events at these positions.
#[tracing::instrument(name = "db.audit_export.list_events_at", skip_all)]
pub async fn list_events_at(
    conn: &mut Conn,
    positions: &[EventPosition],
) -> Result<Vec<PrivilegedEvent>, DbError> {
    let (xacts, seqs): (Vec<i64>, Vec<i64>) =
        positions.iter().map(|position| (position.xact, position.seq)).unzip();
    let rows = sqlx::query_as!(
        PrivilegedEventRow,
        "
        SELECT e.xact, e.seq, e.occurred_at, e.kind, e.actor_id, e.subject_id, e.project_id, e.task_id, e.trace_id, e.data
        FROM unnest($1::bigint[], $2::bigint[]) AS p (xact, seq) JOIN events e ON e.xact = p.xact AND e.seq = p.seq
        ",
        &xacts,
        &seqs,
    )
    .fetch_all(conn)
    .await?;
    Ok(rows.into_iter().map(PrivilegedEvent::from).collect())
}

/// A chain that a writer has not closed, with its newest record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenChain {
    /// The chain.
    pub chain: Uuid,
    /// When it began.
    pub started_at: OffsetDateTime,
}

/// The newest chain of a writer, unless it is closed.
#[tracing::instrument(name = "db.audit_export.find_open_chain", skip_all)]
pub async fn find_open_chain(conn: &mut Conn, writer: &str) -> Result<Option<OpenChain>, DbError> {
    let row = sqlx::query!(
        r#"
        SELECT chain_id, started_at,
            EXISTS (SELECT FROM audit_checkpoints k WHERE k.chain_id = c.chain_id AND k.closed) AS "closed!"
        FROM audit_chains c WHERE writer = $1 ORDER BY number DESC LIMIT 1
        "#,
        writer,
    )
    .fetch_optional(conn)
    .await?;
    Ok(row
        .filter(|row| !row.closed)
        .map(|row| OpenChain { chain: row.chain_id, started_at: row.started_at }))
}

/// The place and the hash of the last record of a chain.
#[tracing::instrument(name = "db.audit_export.last_record", skip_all)]
pub async fn last_record(conn: &mut Conn, chain: Uuid) -> Result<Option<(i64, [u8; 32])>, DbError> {
    let row = sqlx::query!(
        "SELECT seq, hash FROM audit_records WHERE chain_id = $1 ORDER BY seq DESC LIMIT 1",
        chain,
    )
    .fetch_optional(conn)
    .await?;
    row.map(|row| {
        let wrong = |_| DbError::Corrupt { table: "audit_records", column: "hash" };
        Ok((row.seq, row.hash.try_into().map_err(wrong)?))
    })
    .transpose()
}

/// A receiver of audit records, as it is stored.
#[derive(Clone, Debug, PartialEq)]
pub struct AuditSinkRecord {
    /// Its id.
    pub id: Uuid,
    /// What it is called.
    pub name: String,
    /// How records get there.
    pub kind: String,
    /// Where it is; without secrets.
    pub target: Value,
    /// Its secret, sealed.
    pub sealed: Option<Vec<u8>>,
    /// Whether it gets records.
    pub enabled: bool,
    /// Who set it.
    pub created_by: UserId,
    /// When it was made.
    pub created_at: OffsetDateTime,
    /// When it was changed.
    pub updated_at: OffsetDateTime,
    /// The last delivery.
    pub sent_at: Option<OffsetDateTime>,
    /// The last delivery of signed heads.
    pub heads_sent_at: Option<OffsetDateTime>,
    /// Failures since the last delivery.
    pub failures: i32,
    /// Why the last attempt failed.
    pub last_error: Option<String>,
    /// When it is tried again.
    pub retry_at: Option<OffsetDateTime>,
}

/// Every sink, by name.
#[tracing::instrument(name = "db.audit_export.list_sinks", skip_all)]
pub async fn list_sinks(conn: &mut Conn) -> Result<Vec<AuditSinkRecord>, DbError> {
    let rows = sqlx::query!(
        "
        SELECT sink_id, name, kind, target, sealed_secret, enabled, created_by, created_at, updated_at, sent_at, heads_sent_at,
            failures, last_error, retry_at
        FROM audit_sinks ORDER BY name
        "
    )
    .fetch_all(conn)
    .await?;
    let read = rows.into_iter().map(|row| AuditSinkRecord {
        id: row.sink_id,
        name: row.name,
        kind: row.kind,
        target: row.target,
        sealed: row.sealed_secret,
        enabled: row.enabled,
        created_by: UserId::from_uuid(row.created_by),
        created_at: row.created_at,
        updated_at: row.updated_at,
        sent_at: row.sent_at,
        heads_sent_at: row.heads_sent_at,
        failures: row.failures,
        last_error: row.last_error,
        retry_at: row.retry_at,
    });
    Ok(read.collect())
}

/// Stores a sink, or changes the one of that name; its positions stay.
#[tracing::instrument(name = "db.audit_export.set_sink", skip_all)]
pub async fn set_sink(conn: &mut Conn, sink: &AuditSinkRecord) -> Result<(), DbError> {
    sqlx::query!(
        "
        INSERT INTO audit_sinks (sink_id, name, kind, target, sealed_secret, enabled, created_by, created_at, updated_at)
        VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)
        ON CONFLICT (name) DO UPDATE SET kind = excluded.kind, target = excluded.target, sealed_secret = excluded.sealed_secret,
            enabled = excluded.enabled, updated_at = excluded.updated_at, failures = 0, last_error = NULL, retry_at = NULL
        ",
        sink.id,
        sink.name,
        sink.kind,
        sink.target,
        sink.sealed.as_deref(),
        sink.enabled,
        sink.created_by.as_uuid(),
        sink.created_at,
        sink.updated_at,
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// Deletes a sink and its positions. `false` when there is none of that name.
#[tracing::instrument(name = "db.audit_export.delete_sink", skip_all)]
pub async fn delete_sink(conn: &mut Conn, name: &str) -> Result<bool, DbError> {
    let done = sqlx::query!("DELETE FROM audit_sinks WHERE name = $1", name).execute(conn).await?;
    Ok(done.rows_affected() == 1)
}

/// Takes or renews the lease of a sink. `false` when another process delivers to it.
#[tracing::instrument(name = "db.audit_export.lease_sink", skip_all)]
pub async fn lease_sink(
    conn: &mut Conn,
    sink: Uuid,
    holder: Uuid,
    now: OffsetDateTime,
    until: OffsetDateTime,
) -> Result<bool, DbError> {
    let done = sqlx::query!(
        "
        UPDATE audit_sinks SET lease_holder = $2, lease_until = $4
        WHERE sink_id = $1 AND enabled AND (lease_holder IS NULL OR lease_holder = $2 OR lease_until <= $3)
        ",
        sink,
        holder,
        now,
        until,
    )
    .execute(conn)
    .await?;
    Ok(done.rows_affected() == 1)
}

/// Gives the lease of a sink back.
#[tracing::instrument(name = "db.audit_export.release_sink", skip_all)]
pub async fn release_sink(conn: &mut Conn, sink: Uuid, holder: Uuid) -> Result<(), DbError> {
    sqlx::query!(
        "UPDATE audit_sinks SET lease_holder = NULL, lease_until = NULL WHERE sink_id = $1 AND lease_holder = $2",
        sink,
        holder,
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// A chain that a sink has not received completely.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PendingChain {
    /// The chain.
    pub chain: Uuid,
    /// The first record that was not delivered.
    pub next_seq: i64,
    /// The number of its records, if it is closed.
    pub closed_size: Option<i64>,
    /// Whether its records were removed.
    pub pruned: bool,
}

/// The chains that have something that a sink has not received, oldest first. A chain that a dead process left open has nothing more.
#[tracing::instrument(name = "db.audit_export.list_pending_chains", skip_all)]
pub async fn list_pending_chains(
    conn: &mut Conn,
    sink: Uuid,
    limit: i64,
) -> Result<Vec<PendingChain>, DbError> {
    Ok(sqlx::query_as!(
        PendingChain,
        r#"
        SELECT c.chain_id AS "chain!", coalesce(p.next_seq, 0) AS "next_seq!",
            (SELECT k.size FROM audit_checkpoints k WHERE k.chain_id = c.chain_id AND k.closed ORDER BY k.size LIMIT 1)
                AS closed_size,
            c.pruned_at IS NOT NULL AS "pruned!"
        FROM audit_chains c LEFT JOIN audit_sink_positions p ON p.chain_id = c.chain_id AND p.sink_id = $1
        WHERE NOT coalesce(p.finished, false)
          AND (c.pruned_at IS NOT NULL
              OR EXISTS (SELECT FROM audit_checkpoints k WHERE k.chain_id = c.chain_id AND k.closed)
              OR EXISTS (SELECT FROM audit_records r WHERE r.chain_id = c.chain_id AND r.seq >= coalesce(p.next_seq, 0)))
        ORDER BY c.number LIMIT $2
        "#,
        sink,
        limit,
    )
    .fetch_all(conn)
    .await?)
}

/// How far a sink is in a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SinkPosition {
    /// The sink.
    pub sink: Uuid,
    /// The process that delivers to it.
    pub holder: Uuid,
    /// The chain.
    pub chain: Uuid,
    /// The first record that was not delivered.
    pub next_seq: i64,
    /// Whether the chain is closed, and everything was delivered.
    pub finished: bool,
}

/// Notes how far a sink is in a chain. `false` when the process lost the lease.
#[tracing::instrument(name = "db.audit_export.set_sink_position", skip_all)]
pub async fn set_sink_position(conn: &mut Conn, position: SinkPosition) -> Result<bool, DbError> {
    let done = sqlx::query!(
        "
        INSERT INTO audit_sink_positions (sink_id, chain_id, next_seq, finished)
        SELECT sink_id, $3, $4, $5 FROM audit_sinks WHERE sink_id = $1 AND lease_holder = $2
        ON CONFLICT (sink_id, chain_id) DO UPDATE SET next_seq = excluded.next_seq, finished = excluded.finished
        ",
        position.sink,
        position.holder,
        position.chain,
        position.next_seq,
        position.finished,
    )
    .execute(conn)
    .await?;
    Ok(done.rows_affected() == 1)
}

/// Notes a delivery of records to a sink.
#[tracing::instrument(name = "db.audit_export.record_delivery", skip_all)]
pub async fn record_delivery(
    conn: &mut Conn,
    sink: Uuid,
    now: OffsetDateTime,
) -> Result<(), DbError> {
    sqlx::query!("UPDATE audit_sinks SET sent_at = $2 WHERE sink_id = $1", sink, now)
        .execute(conn)
        .await?;
    Ok(())
}

/// Notes a delivery of signed heads to a sink.
#[tracing::instrument(name = "db.audit_export.record_heads_delivery", skip_all)]
pub async fn record_heads_delivery(
    conn: &mut Conn,
    sink: Uuid,
    now: OffsetDateTime,
) -> Result<(), DbError> {
    sqlx::query!(
        "UPDATE audit_sinks SET sent_at = $2, heads_sent_at = $2 WHERE sink_id = $1",
        sink,
        now
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// Notes that a sink has received what there was for it.
#[tracing::instrument(name = "db.audit_export.clear_delivery_failures", skip_all)]
pub async fn clear_delivery_failures(conn: &mut Conn, sink: Uuid) -> Result<(), DbError> {
    sqlx::query!(
        "UPDATE audit_sinks SET failures = 0, last_error = NULL, retry_at = NULL WHERE sink_id = $1 AND failures > 0",
        sink,
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// The chains whose newest heads are shipped: every chain that is not closed, and the newest `closed` of the others, oldest first.
#[tracing::instrument(name = "db.audit_export.list_head_chains", skip_all)]
pub async fn list_head_chains(conn: &mut Conn, closed: i64) -> Result<Vec<Uuid>, DbError> {
    Ok(sqlx::query_scalar!(
        r#"
        WITH chain AS (
            SELECT chain_id, number,
                pruned_at IS NOT NULL
                    OR EXISTS (SELECT FROM audit_checkpoints k WHERE k.chain_id = c.chain_id AND k.closed) AS ended
            FROM audit_chains c
        )
        SELECT chain_id AS "chain_id!" FROM (
            SELECT chain_id, number FROM chain WHERE NOT ended
            UNION ALL (SELECT chain_id, number FROM chain WHERE ended ORDER BY number DESC LIMIT $1)
        ) AS shipped ORDER BY number
        "#,
        closed,
    )
    .fetch_all(conn)
    .await?)
}

/// Notes that a delivery failed.
#[tracing::instrument(name = "db.audit_export.record_delivery_failure", skip_all)]
pub async fn record_delivery_failure(
    conn: &mut Conn,
    sink: Uuid,
    error: &str,
    retry_at: OffsetDateTime,
) -> Result<(), DbError> {
    sqlx::query!(
        "
        UPDATE audit_sinks SET failures = least(failures, 1000000) + 1, last_error = left($2, 500), retry_at = $3
        WHERE sink_id = $1
        ",
        sink,
        error,
        retry_at,
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// How much a sink has not received.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SinkLag {
    /// The number of records.
    pub records: i64,
    /// When the oldest of them was made.
    pub oldest_at: Option<OffsetDateTime>,
}

/// How much a sink has not received.
#[tracing::instrument(name = "db.audit_export.measure_sink_lag", skip_all)]
pub async fn measure_sink_lag(conn: &mut Conn, sink: Uuid) -> Result<SinkLag, DbError> {
    Ok(sqlx::query_as!(
        SinkLag,
        r#"
        SELECT coalesce(sum(r.records), 0)::bigint AS "records!", min(r.oldest_at) AS oldest_at
        FROM audit_chains c LEFT JOIN audit_sink_positions p ON p.chain_id = c.chain_id AND p.sink_id = $1
        CROSS JOIN LATERAL (
            SELECT count(*) AS records, min(recorded_at) AS oldest_at FROM audit_records
            WHERE chain_id = c.chain_id AND seq >= coalesce(p.next_seq, 0)
        ) AS r
        WHERE NOT coalesce(p.finished, false)
        "#,
        sink,
    )
    .fetch_one(conn)
    .await?)
}
