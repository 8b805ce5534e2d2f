//! Events, inserted in the transaction that causes them.

use cynode_core::{
    events::{EventKind, EventPosition, EventView},
    ids::{ProjectId, TaskId, UserId},
    trace::TraceId,
};
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
#[tracing::instrument(name = "db.events.insert_event", skip_all, fields(event.kind = event.kind.as_str()))]
pub async fn insert_event(
    conn: &mut Conn,
    event: &NewEvent,
    trace: TraceId,
    now: OffsetDateTime,
) -> Result<InsertedEvent, DbError> {
    let row = sqlx::query!(
        r#"
        WITH event AS (
            INSERT INTO events (occurred_at, kind, actor_id, subject_id, project_id, task_id, trace_id, data)
            VALUES ($1, $2, $3, $4, $5, $6, $7, $8)
            RETURNING xact, seq
        ), queued AS (
            INSERT INTO privileged_event_queue (xact, seq, occurred_at) SELECT xact, seq, $1 FROM event WHERE $9
        )
        SELECT xact AS "xact!", seq AS "seq!", EXISTS (SELECT FROM notification_channels WHERE enabled) AS "has_channels!" FROM event
        "#,
        now,
        event.kind.as_str(),
        event.actor.map(UserId::as_uuid),
        event.subject.map(UserId::as_uuid),
        event.project.map(ProjectId::as_uuid),
        event.task.map(TaskId::as_uuid),
        trace.to_string(),
        event.data,
        event.kind.is_privileged(event.actor.is_some()),
    )
    .fetch_one(conn)
    .await?;
    let position = EventPosition { xact: row.xact, seq: row.seq };
    Ok(InsertedEvent { position, has_channels: row.has_channels })
}

/// An event that was stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InsertedEvent {
    /// Its position.
    pub position: EventPosition,
    /// Whether there are channels that may have to be told.
    pub has_channels: bool,
}

/// Who reads: whoever has a role in the installation sees everything, others see what happens in their
/// projects and to their own account.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventReader {
    /// Sees everything.
    Installation,
    /// Sees its own.
    Member(UserId),
}

/// Which events are wanted.
#[derive(Clone, Copy, Debug, Default)]
pub struct EventFilter {
    /// Only of this project.
    pub project: Option<ProjectId>,
    /// Only of this task.
    pub task: Option<TaskId>,
}

/// An event as it is stored, with what decides about who may see it.
#[derive(Clone, Debug)]
pub struct LoggedEvent {
    /// What readers get.
    pub view: EventView,
    /// Whose account it concerns.
    pub subject: Option<UserId>,
}

/// A piece of the stream of events.
#[derive(Clone, Debug)]
pub struct EventPage {
    /// The events, in order.
    pub events: Vec<LoggedEvent>,
    /// Everything up to here was looked at: a reader who goes on from there does not look again at what is not for them.
    pub read_to: EventPosition,
    /// Whether there are committed events behind it that an older transaction holds back. Its end wakes nobody.
    pub held_back: bool,
}

/// Events behind `after`, in order. At most `limit` are looked at: a reader who sees few of them gets short pages, and no page costs more
/// than another.
///
/// Only events whose transaction is older than every running one are given: nothing can appear later
/// in front of what was given, so a reader that goes on from the last one misses nothing.
#[tracing::instrument(name = "db.events.list_events_after", skip_all)]
pub async fn list_events_after(
    conn: &mut Conn,
    reader: EventReader,
    filter: EventFilter,
    after: EventPosition,
    limit: i64,
) -> Result<EventPage, DbError> {
    let (head, held_back) = visible_stream_head(conn).await?;
    let member = match reader {
        EventReader::Installation => None,
        EventReader::Member(user) => Some(user.as_uuid()),
    };
    let rows = sqlx::query!(
        r#"
        SELECT xact, seq, occurred_at, kind, actor_id, subject_id, project_id, task_id, trace_id, data,
            ($5::uuid IS NULL
                OR COALESCE(e.subject_id = $5, false)
                OR EXISTS (SELECT FROM project_members m WHERE m.project_id = e.project_id AND m.user_id = $5)
                OR EXISTS (
                    SELECT FROM role_bindings b JOIN group_members g USING (group_id)
                    WHERE b.project_id = e.project_id AND g.user_id = $5)) AS "visible!"
        FROM events e
        WHERE (xact, seq) > ($1, $2)
          AND xact <= $7
          AND ($3::uuid IS NULL OR e.project_id = $3)
          AND ($4::uuid IS NULL OR e.task_id = $4)
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
    let read_to = match rows.last() {
        Some(last) if i64::try_from(rows.len()).is_ok_and(|count| count == limit) => {
            EventPosition { xact: last.xact, seq: last.seq }
        }
        Some(_) | None => head,
    };
    let events = rows
        .into_iter()
        .filter(|row| row.visible)
        .map(|row| LoggedEvent {
            view: EventView {
                id: EventPosition { xact: row.xact, seq: row.seq },
                kind: row.kind,
                occurred_at: row.occurred_at,
                actor_id: row.actor_id.map(UserId::from_uuid),
                project_id: row.project_id.map(ProjectId::from_uuid),
                task_id: row.task_id.map(TaskId::from_uuid),
                trace_id: row.trace_id,
                data: row.data,
            },
            subject: row.subject_id.map(UserId::from_uuid),
        })
        .collect();
    Ok(EventPage { events, read_to, held_back })
}

/// The place behind everything that can be read now.
pub async fn event_stream_head(conn: &mut Conn) -> Result<EventPosition, DbError> {
    Ok(visible_stream_head(conn).await?.0)
}

/// The same, and whether there are committed events behind it.
async fn visible_stream_head(conn: &mut Conn) -> Result<(EventPosition, bool), DbError> {
    let row = sqlx::query!(
        r#"
        SELECT oldest AS "oldest!", EXISTS (SELECT FROM events WHERE xact >= oldest) AS "held_back!"
        FROM (SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint AS oldest) snapshot
        "#
    )
    .fetch_one(conn)
    .await?;
    Ok((EventPosition { xact: row.oldest - 1, seq: i64::MAX }, row.held_back))
}
