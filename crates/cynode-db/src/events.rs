//! What happened, written in the transaction that made it happen.

use cynode_core::{
    events::EventKind,
    ids::{ProjectId, TaskId, UserId},
    trace::TraceId,
};
use cynode_wire::events::{EventView, Position};
use serde_json::Value;
use time::OffsetDateTime;

use crate::{Conn, DbError};

/// An event to be written.
#[derive(Clone, Debug)]
pub struct NewEvent {
    /// What kind of thing.
    pub kind: EventKind,
    /// Who did it.
    pub actor: Option<UserId>,
    /// Whose account it concerns; that user may see it without any role.
    pub subject: Option<UserId>,
    /// In which project.
    pub project: Option<ProjectId>,
    /// To which task.
    pub task: Option<TaskId>,
    /// More about it: an object, and never a secret.
    pub data: Value,
}

/// Writes an event; gives its place.
#[tracing::instrument(name = "db.events.insert", skip_all, fields(event.kind = event.kind.as_str()))]
pub async fn insert(
    conn: &mut Conn,
    event: &NewEvent,
    trace: TraceId,
    now: OffsetDateTime,
) -> Result<Position, DbError> {
    let row = sqlx::query!(
        "
        INSERT INTO events (occurred_at, kind, actor_id, subject_id, project_id, task_id, trace_id, data)
        VALUES ($1, $2, $3, $4, $5, $6, $7, $8)
        RETURNING xact, seq
        ",
        now,
        event.kind.as_str(),
        event.actor.map(UserId::as_uuid),
        event.subject.map(UserId::as_uuid),
        event.project.map(ProjectId::as_uuid),
        event.task.map(TaskId::as_uuid),
        trace.to_string(),
        event.data,
    )
    .fetch_one(conn)
    .await?;
    Ok(Position { xact: row.xact, seq: row.seq })
}

/// Who reads: whoever has a role in the installation sees everything, others see what happens in their
/// projects and to their own account.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reader {
    /// Sees everything.
    Installation,
    /// Sees its own.
    Member(UserId),
}

/// Which events are wanted.
#[derive(Clone, Copy, Debug, Default)]
pub struct Filter {
    /// Only of this project.
    pub project: Option<ProjectId>,
    /// Only of this task.
    pub task: Option<TaskId>,
}

/// Events behind `after`, in order, at most `limit`, and the place up to which everything was looked at: a reader
/// who goes on from there does not look again at what is not for them.
///
/// Only events whose transaction is older than every running one are given: nothing can appear later
/// in front of what was given, so a reader that goes on from the last one misses nothing.
#[tracing::instrument(name = "db.events.after", skip_all)]
pub async fn after(
    conn: &mut Conn,
    reader: Reader,
    filter: Filter,
    after: Position,
    limit: i64,
) -> Result<(Vec<EventView>, Position), DbError> {
    let head = head(conn).await?;
    let member = match reader {
        Reader::Installation => None,
        Reader::Member(user) => Some(user.as_uuid()),
    };
    let rows = sqlx::query!(
        r#"
        SELECT xact, seq, occurred_at, kind, actor_id, project_id, task_id, trace_id, data
        FROM events e
        WHERE (xact, seq) > ($1, $2)
          AND xact <= $7
          AND ($3::uuid IS NULL OR e.project_id = $3)
          AND ($4::uuid IS NULL OR e.task_id = $4)
          AND ($5::uuid IS NULL
            OR e.subject_id = $5
            OR EXISTS (SELECT FROM project_members m WHERE m.project_id = e.project_id AND m.user_id = $5)
            OR EXISTS (
                SELECT FROM role_bindings b JOIN group_members g USING (group_id)
                WHERE b.project_id = e.project_id AND g.user_id = $5))
        ORDER BY xact, seq
        LIMIT $6
        "#,
        after.xact,
        after.seq,
        filter.project.map(ProjectId::as_uuid),
        filter.task.map(TaskId::as_uuid),
        member,
        limit,
        head.xact,
    )
    .fetch_all(conn)
    .await?;
    let events: Vec<_> = rows
        .into_iter()
        .map(|row| EventView {
            id: Position { xact: row.xact, seq: row.seq },
            kind: row.kind,
            occurred_at: row.occurred_at,
            actor_id: row.actor_id.map(UserId::from_uuid),
            project_id: row.project_id.map(ProjectId::from_uuid),
            task_id: row.task_id.map(TaskId::from_uuid),
            trace_id: row.trace_id,
            data: row.data,
        })
        .collect();
    let read = match events.last() {
        Some(last) if i64::try_from(events.len()).is_ok_and(|count| count == limit) => last.id,
        Some(_) | None => head,
    };
    Ok((events, read))
}

/// The place behind everything that can be read now.
pub async fn head(conn: &mut Conn) -> Result<Position, DbError> {
    let xmin = sqlx::query_scalar!(
        r#"SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint AS "xmin!""#
    )
    .fetch_one(conn)
    .await?;
    Ok(Position { xact: xmin - 1, seq: i64::MAX })
}
