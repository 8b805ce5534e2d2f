//! Notifications: channels, the outbox, delivery attempts and used answer links.

pub mod inbox;
pub mod web_push;

use cynode_core::{
    events::{EventKind, EventPosition},
    ids::{ChannelId, NotificationId, ProjectId, TaskId, UserId},
    notifications::{ChannelKind, ChannelScope, NotificationState},
    paging::PageRequest,
    settings::registry::DEFAULT_KEY_CONFIRMATION_HOURS,
    trace::TraceId,
};
use serde_json::Value;
use time::OffsetDateTime;
use uuid::Uuid;

use crate::{Conn, DbError, platform::backup::RESTORED_REASON, tasks::events::NewEvent};

/// Who is told by a channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChannelOwner {
    /// One user.
    User(UserId),
    /// Whoever reads for a project.
    Project(ProjectId),
    /// Whoever reads for the installation.
    Installation,
}

impl ChannelOwner {
    /// What it is told of.
    pub const fn channel_scope(self) -> ChannelScope {
        match self {
            Self::User(_) => ChannelScope::User,
            Self::Project(_) => ChannelScope::Project,
            Self::Installation => ChannelScope::Installation,
        }
    }

    fn owner_columns(self) -> (Option<Uuid>, Option<Uuid>) {
        match self {
            Self::User(user) => (Some(user.as_uuid()), None),
            Self::Project(project) => (None, Some(project.as_uuid())),
            Self::Installation => (None, None),
        }
    }
}

/// A way to tell somebody.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotificationChannel {
    /// Its id.
    pub id: ChannelId,
    /// Who is told.
    pub owner: ChannelOwner,
    /// What people call it.
    pub name: String,
    /// How.
    pub kind: ChannelKind,
    /// Where.
    pub address: String,
    /// The secret, sealed.
    pub sealed: Option<Vec<u8>>,
    /// The secret before it, sealed, and until when it is used too.
    pub old: Option<(Vec<u8>, OffsetDateTime)>,
    /// Of which kinds of events.
    pub kinds: Vec<String>,
    /// How long there is quiet after each.
    pub min_gap_seconds: i32,
    /// Whether it is used.
    pub enabled: bool,
    /// Why it is not.
    pub disabled_reason: Option<String>,
    /// Who made it.
    pub created_by: UserId,
    /// When.
    pub created_at: OffsetDateTime,
}

struct NotificationChannelRow {
    channel_id: Uuid,
    user_id: Option<Uuid>,
    project_id: Option<Uuid>,
    name: String,
    kind: String,
    address: String,
    sealed_secret: Option<Vec<u8>>,
    old_sealed_secret: Option<Vec<u8>>,
    old_secret_until: Option<OffsetDateTime>,
    event_kinds: Vec<String>,
    min_gap_seconds: i32,
    enabled: bool,
    disabled_reason: Option<String>,
    created_by: Uuid,
    created_at: OffsetDateTime,
}

impl TryFrom<NotificationChannelRow> for NotificationChannel {
    type Error = DbError;

    fn try_from(row: NotificationChannelRow) -> Result<Self, DbError> {
        let wrong = DbError::Corrupt { table: "notification_channels", column: "kind" };
        let owner = match (row.user_id, row.project_id) {
            (Some(user), _) => ChannelOwner::User(UserId::from_uuid(user)),
            (None, Some(project)) => ChannelOwner::Project(ProjectId::from_uuid(project)),
            (None, None) => ChannelOwner::Installation,
        };
        Ok(Self {
            id: ChannelId::from_uuid(row.channel_id),
            owner,
            name: row.name,
            kind: ChannelKind::from_name(&row.kind).ok_or(wrong)?,
            address: row.address,
            sealed: row.sealed_secret,
            old: row.old_sealed_secret.zip(row.old_secret_until),
            kinds: row.event_kinds,
            min_gap_seconds: row.min_gap_seconds,
            enabled: row.enabled,
            disabled_reason: row.disabled_reason,
            created_by: UserId::from_uuid(row.created_by),
            created_at: row.created_at,
        })
    }
}

/// Adds a channel, or writes what may change of it.
#[tracing::instrument(name = "db.notices.set_channel", skip_all, fields(channel.id = %channel.id))]
pub async fn set_channel(
    conn: &mut Conn,
    channel: &NotificationChannel,
    now: OffsetDateTime,
) -> Result<(), DbError> {
    let (user, project) = channel.owner.owner_columns();
    let (old_sealed, old_until) =
        channel.old.as_ref().map(|(old, until)| (old.as_slice(), *until)).unzip();
    sqlx::query!(
        "
        INSERT INTO notification_channels (channel_id, scope, user_id, project_id, name, kind, address, sealed_secret, old_sealed_secret,
            old_secret_until, event_kinds, min_gap_seconds, enabled, disabled_reason, created_by, created_at, updated_at)
        VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17)
        ON CONFLICT (channel_id) DO UPDATE SET
            name = $5, sealed_secret = $8, old_sealed_secret = $9, old_secret_until = $10, event_kinds = $11,
            min_gap_seconds = $12, enabled = $13, disabled_reason = $14, updated_at = $17, quiet_until = NULL
        ",
        channel.id.as_uuid(),
        channel.owner.channel_scope().as_str(),
        user,
        project,
        channel.name,
        channel.kind.as_str(),
        channel.address,
        channel.sealed,
        old_sealed,
        old_until,
        &channel.kinds,
        channel.min_gap_seconds,
        channel.enabled,
        channel.disabled_reason,
        channel.created_by.as_uuid(),
        channel.created_at,
        now,
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// One channel, locked until the transaction ends.
#[tracing::instrument(name = "db.notices.lock_channel", skip_all, fields(channel.id = %id))]
pub async fn lock_channel(
    conn: &mut Conn,
    id: ChannelId,
) -> Result<Option<NotificationChannel>, DbError> {
    sqlx::query_as!(
        NotificationChannelRow,
        "
        SELECT channel_id, user_id, project_id, name, kind, address, sealed_secret, old_sealed_secret, old_secret_until,
            event_kinds, min_gap_seconds, enabled, disabled_reason, created_by, created_at
        FROM notification_channels WHERE channel_id = $1
        FOR NO KEY UPDATE
        ",
        id.as_uuid(),
    )
    .fetch_optional(conn)
    .await?
    .map(NotificationChannel::try_from)
    .transpose()
}

/// One channel.
#[tracing::instrument(name = "db.notices.get_channel", skip_all, fields(channel.id = %id))]
pub async fn get_channel(
    conn: &mut Conn,
    id: ChannelId,
) -> Result<Option<NotificationChannel>, DbError> {
    sqlx::query_as!(
        NotificationChannelRow,
        "
        SELECT channel_id, user_id, project_id, name, kind, address, sealed_secret, old_sealed_secret, old_secret_until,
            event_kinds, min_gap_seconds, enabled, disabled_reason, created_by, created_at
        FROM notification_channels WHERE channel_id = $1
        ",
        id.as_uuid(),
    )
    .fetch_optional(conn)
    .await?
    .map(NotificationChannel::try_from)
    .transpose()
}

/// Channels, oldest first: all, or those of a user with those of the projects that the user is an admin of.
#[tracing::instrument(name = "db.notices.list_channels", skip_all)]
pub async fn list_channels(
    conn: &mut Conn,
    of: Option<UserId>,
    page: PageRequest,
) -> Result<Vec<NotificationChannel>, DbError> {
    sqlx::query_as!(
        NotificationChannelRow,
        "
        SELECT channel_id, user_id, project_id, name, kind, address, sealed_secret, old_sealed_secret, old_secret_until,
            event_kinds, min_gap_seconds, enabled, disabled_reason, created_by, created_at
        FROM notification_channels c
        WHERE ($1::uuid IS NULL OR user_id = $1
            OR EXISTS (SELECT FROM project_members m WHERE m.project_id = c.project_id AND m.user_id = $1 AND m.role = 'admin')
            OR EXISTS (
                SELECT FROM role_bindings b JOIN group_members g USING (group_id)
                WHERE b.project_id = c.project_id AND g.user_id = $1 AND b.role = 'admin'))
            AND ($2::uuid IS NULL OR channel_id > $2)
        ORDER BY channel_id
        LIMIT $3
        ",
        of.map(UserId::as_uuid),
        page.after.map(|cursor| cursor.0),
        page.row_limit(),
    )
    .fetch_all(conn)
    .await?
    .into_iter()
    .map(NotificationChannel::try_from)
    .collect()
}

/// The channels that have a secret, whosever they are.
#[tracing::instrument(name = "db.notices.list_sealed_channels", skip_all)]
pub async fn list_sealed_channels(conn: &mut Conn) -> Result<Vec<NotificationChannel>, DbError> {
    sqlx::query_as!(
        NotificationChannelRow,
        "
        SELECT channel_id, user_id, project_id, name, kind, address, sealed_secret, old_sealed_secret, old_secret_until,
            event_kinds, min_gap_seconds, enabled, disabled_reason, created_by, created_at
        FROM notification_channels WHERE sealed_secret IS NOT NULL
        ORDER BY channel_id
        ",
    )
    .fetch_all(conn)
    .await?
    .into_iter()
    .map(NotificationChannel::try_from)
    .collect()
}

/// How many channels a user has.
#[tracing::instrument(name = "db.notices.count_channels", skip_all)]
pub async fn count_channels(conn: &mut Conn, user: UserId) -> Result<i64, DbError> {
    let count = sqlx::query_scalar!(
        r#"SELECT count(*) AS "count!" FROM notification_channels WHERE created_by = $1"#,
        user.as_uuid(),
    );
    Ok(count.fetch_one(conn).await?)
}

/// Removes a channel with everything that was to be told by it.
#[tracing::instrument(name = "db.notices.remove_channel", skip_all, fields(channel.id = %id))]
pub async fn remove_channel(conn: &mut Conn, id: ChannelId) -> Result<bool, DbError> {
    let done =
        sqlx::query!("DELETE FROM notification_channels WHERE channel_id = $1", id.as_uuid());
    Ok(done.execute(conn).await?.rows_affected() == 1)
}

/// Who of those that a thing concerns is told of it.
#[derive(Clone, Copy, Debug)]
pub struct NotificationTopic<'a> {
    /// What kind of thing happened.
    pub kind: &'a str,
    /// In which project.
    pub project: Option<ProjectId>,
    /// To whose account.
    pub subject: Option<UserId>,
}

/// The channels that are to be told: those of people who may see it now. They stay until the transaction ends.
#[tracing::instrument(name = "db.notices.list_subscribed_channels", skip_all)]
pub async fn list_subscribed_channels(
    conn: &mut Conn,
    about: NotificationTopic<'_>,
    only: Option<ChannelId>,
    now: OffsetDateTime,
) -> Result<Vec<ChannelId>, DbError> {
    let ids = sqlx::query_scalar!(
        "
        SELECT c.channel_id FROM notification_channels c
        WHERE c.enabled AND $1 = ANY (c.event_kinds) AND ($4::uuid IS NULL OR c.channel_id = $4)
            AND CASE c.scope
                WHEN 'installation' THEN true
                WHEN 'project' THEN c.project_id = $2
                ELSE EXISTS (SELECT FROM users u WHERE u.user_id = c.user_id AND u.state = 'active')
                    AND (NOT EXISTS (SELECT FROM external_identities e WHERE e.user_id = c.user_id)
                        OR provider_word(c.user_id, $5, $6) NOT IN ('refused', 'lapsed'))
                    AND (c.user_id = $3
                        OR EXISTS (SELECT FROM role_bindings b
                            WHERE b.user_id = c.user_id AND b.project_id IS NULL)
                        OR EXISTS (SELECT FROM project_members m WHERE m.project_id = $2 AND m.user_id = c.user_id)
                        OR EXISTS (SELECT FROM role_bindings b JOIN group_members g USING (group_id)
                            WHERE g.user_id = c.user_id AND (b.project_id IS NULL OR b.project_id = $2)))
            END
        ORDER BY c.channel_id
        FOR KEY SHARE OF c
        ",
        about.kind,
        about.project.map(ProjectId::as_uuid),
        about.subject.map(UserId::as_uuid),
        only.map(ChannelId::as_uuid),
        now,
        DEFAULT_KEY_CONFIRMATION_HOURS,
    )
    .fetch_all(conn)
    .await?;
    Ok(ids.into_iter().map(ChannelId::from_uuid).collect())
}

/// Puts what happened into the outbox of a channel. Told of one event twice, it keeps one.
#[tracing::instrument(name = "db.notices.queue_notification", skip_all)]
pub async fn queue_notification(
    conn: &mut Conn,
    id: NotificationId,
    channel: ChannelId,
    event: &NewEvent,
    place: EventPosition,
    trace: TraceId,
    now: OffsetDateTime,
) -> Result<(), DbError> {
    sqlx::query!(
        "
        INSERT INTO notifications (notification_id, channel_id, event_xact, event_seq, kind, subject_id, project_id, task_id,
            trace_id, data, occurred_at, state, queued_at, due_at, attempts, total_attempts, ended_at, reason)
        SELECT $1::uuid, $2::uuid, $3::bigint, $4::bigint, $5::text, $6::uuid, $7::uuid, $8::uuid, $9::text, $10::jsonb, $11::timestamptz,
            CASE WHEN held THEN 'failed' ELSE 'pending' END, clock_timestamp(),
            CASE WHEN NOT held THEN clock_timestamp() END, 0, 0, CASE WHEN held THEN clock_timestamp() END, CASE WHEN held THEN $12::text END
        FROM (
            -- What a restored task reaches once, the lost installation may have reached and told.
            SELECT $5 = ANY ($13::text[]) AND EXISTS (
                SELECT FROM tasks t, installation_epochs e
                WHERE t.task_id = $8 AND e.epoch = (SELECT max(epoch) FROM installation_epochs)
                    AND e.reason = 'restored' AND t.created_at <= e.backup_taken_at
                    AND e.began_at > clock_timestamp() - interval '24 hours') AS held
        ) AS restored
        ON CONFLICT ON CONSTRAINT notifications_unique DO NOTHING
        ",
        id.as_uuid(),
        channel.as_uuid(),
        place.xact,
        place.seq,
        event.kind.as_str(),
        event.subject.map(UserId::as_uuid),
        event.project.map(ProjectId::as_uuid),
        event.task.map(TaskId::as_uuid),
        trace.to_string(),
        event.data,
        now,
        RESTORED_REASON,
        &MILESTONES.map(|kind| kind.as_str().to_owned())[..],
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// What a task reaches once, by itself. For a day after a restore it is not told by itself for a task that the backup had: the lost installation
/// may have told it between the backup and its end. Questions to people are told again.
const MILESTONES: [EventKind; 3] =
    [EventKind::TaskCompleted, EventKind::TaskFailed, EventKind::PullRequestOpened];

/// Puts something without an event into the outbox of a channel: somebody tries it.
#[tracing::instrument(name = "db.notices.queue_test_notification", skip_all)]
pub async fn queue_test_notification(
    conn: &mut Conn,
    id: NotificationId,
    channel: ChannelId,
    trace: TraceId,
    now: OffsetDateTime,
) -> Result<(), DbError> {
    sqlx::query!(
        "
        INSERT INTO notifications (notification_id, channel_id, kind, trace_id, data, occurred_at, state, queued_at, due_at,
            attempts, total_attempts)
        VALUES ($1, $2, $3, $4, '{}', $5, 'pending', clock_timestamp(), clock_timestamp(), 0, 0)
        ",
        id.as_uuid(),
        channel.as_uuid(),
        cynode_core::notifications::TEST_NOTIFICATION_KIND,
        trace.to_string(),
        now,
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// Counts that a user tries a channel, at most so often since `before`. Gives since when it was too often.
#[tracing::instrument(name = "db.notices.count_channel_test", skip_all, fields(user.id = %user))]
pub async fn count_channel_test(
    conn: &mut Conn,
    user: UserId,
    now: OffsetDateTime,
    before: OffsetDateTime,
    most: i32,
) -> Result<Option<OffsetDateTime>, DbError> {
    let counted = sqlx::query!(
        "
        INSERT INTO channel_tests AS t (user_id, window_start, tests) VALUES ($1, $2, 1)
        ON CONFLICT (user_id) DO UPDATE SET
            window_start = CASE WHEN t.window_start <= $3 THEN $2 ELSE t.window_start END,
            tests = CASE WHEN t.window_start <= $3 THEN 1 ELSE t.tests + 1 END
        WHERE t.window_start <= $3 OR t.tests < $4
        ",
        user.as_uuid(),
        now,
        before,
        most,
    )
    .execute(&mut *conn)
    .await?;
    if counted.rows_affected() == 1 {
        return Ok(None);
    }
    let since = sqlx::query_scalar!(
        "SELECT window_start FROM channel_tests WHERE user_id = $1",
        user.as_uuid(),
    );
    Ok(Some(since.fetch_one(conn).await?))
}

/// Something that is told.
#[derive(Clone, Debug, PartialEq)]
pub struct NotificationRecord {
    /// Its id.
    pub id: NotificationId,
    /// By which channel.
    pub channel: ChannelId,
    /// What kind of thing happened.
    pub kind: String,
    /// To whose account.
    pub subject: Option<UserId>,
    /// In which project.
    pub project: Option<ProjectId>,
    /// To which task.
    pub task: Option<TaskId>,
    /// The trace it belongs to.
    pub trace: String,
    /// More about it.
    pub data: Value,
    /// When it happened.
    pub occurred_at: OffsetDateTime,
    /// Where it stands.
    pub state: NotificationState,
    /// When it is next tried.
    pub due_at: Option<OffsetDateTime>,
    /// How often it was tried since it was queued.
    pub attempts: u32,
    /// How often it was ever tried.
    pub tries: u32,
    /// Since when it is tried, in milliseconds.
    pub age_ms: i64,
    /// Why it was not told.
    pub reason: Option<String>,
    /// When it was told or given up.
    pub ended_at: Option<OffsetDateTime>,
}

struct NotificationRow {
    notification_id: Uuid,
    channel_id: Uuid,
    kind: String,
    subject_id: Option<Uuid>,
    project_id: Option<Uuid>,
    task_id: Option<Uuid>,
    trace_id: String,
    data: Value,
    occurred_at: OffsetDateTime,
    state: String,
    due_at: Option<OffsetDateTime>,
    attempts: i32,
    total_attempts: i32,
    age_ms: i64,
    reason: Option<String>,
    ended_at: Option<OffsetDateTime>,
}

impl TryFrom<NotificationRow> for NotificationRecord {
    type Error = DbError;

    fn try_from(row: NotificationRow) -> Result<Self, DbError> {
        let wrong = |column| DbError::Corrupt { table: "notifications", column };
        Ok(Self {
            id: NotificationId::from_uuid(row.notification_id),
            channel: ChannelId::from_uuid(row.channel_id),
            kind: row.kind,
            subject: row.subject_id.map(UserId::from_uuid),
            project: row.project_id.map(ProjectId::from_uuid),
            task: row.task_id.map(TaskId::from_uuid),
            trace: row.trace_id,
            data: row.data,
            occurred_at: row.occurred_at,
            state: NotificationState::from_name(&row.state).ok_or_else(|| wrong("state"))?,
            due_at: row.due_at,
            attempts: u32::try_from(row.attempts).map_err(|_| wrong("attempts"))?,
            tries: u32::try_from(row.total_attempts).map_err(|_| wrong("total_attempts"))?,
            age_ms: row.age_ms,
            reason: row.reason,
            ended_at: row.ended_at,
        })
    }
}

/// Most notices that one channel is told at the same moment: whoever is slow keeps nobody else waiting.
const MAX_IN_FLIGHT_PER_CHANNEL: i64 = 4;

/// Takes what is due to tell it, for so long. Nobody else gets it before; then it comes back by itself. Trying counts from
/// here, so that a notice that kills whoever tells it is not tried for ever. Of each channel only
/// what comes next is looked at, however long its row is.
#[tracing::instrument(name = "db.notices.claim_notifications", skip_all)]
pub async fn claim_notifications(
    conn: &mut Conn,
    claim: Uuid,
    lease_ms: i64,
    most: i64,
) -> Result<Vec<NotificationRecord>, DbError> {
    sqlx::query_as!(
        NotificationRow,
        r#"
        WITH next AS (
            SELECT due.notification_id
            FROM notification_channels c
            CROSS JOIN LATERAL (
                SELECT greatest($4::bigint - count(*), 0) AS places FROM notifications o
                WHERE o.channel_id = c.channel_id AND o.state = 'pending' AND o.claim_id IS NOT NULL
                    AND o.due_at > statement_timestamp()
            ) AS free
            CROSS JOIN LATERAL (
                SELECT n.notification_id FROM notifications n
                WHERE n.channel_id = c.channel_id AND n.state = 'pending' AND n.due_at <= statement_timestamp()
                ORDER BY n.due_at, n.notification_id
                LIMIT free.places
            ) AS due
            WHERE c.enabled AND (c.quiet_until IS NULL OR c.quiet_until <= statement_timestamp())
        ), taken AS (
            SELECT n.notification_id FROM notifications n
            WHERE n.notification_id = ANY (ARRAY(SELECT next.notification_id FROM next)) AND n.state = 'pending' AND n.due_at <= statement_timestamp()
            ORDER BY n.due_at
            LIMIT $3
            FOR UPDATE OF n SKIP LOCKED
        )
        UPDATE notifications n
        SET claim_id = $1, attempts = attempts + 1, total_attempts = total_attempts + 1,
            due_at = clock_timestamp() + $2::bigint * interval '1 millisecond'
        FROM taken WHERE taken.notification_id = n.notification_id
        RETURNING n.notification_id, n.channel_id, n.kind, n.subject_id, n.project_id, n.task_id, n.trace_id, n.data,
            n.occurred_at, n.state, n.due_at, n.attempts, n.total_attempts, n.reason, n.ended_at,
            (extract(epoch FROM clock_timestamp() - n.queued_at) * 1000)::bigint AS "age_ms!"
        "#,
        claim,
        lease_ms,
        most,
        MAX_IN_FLIGHT_PER_CHANNEL,
    )
    .fetch_all(conn)
    .await?
    .into_iter()
    .map(NotificationRecord::try_from)
    .collect()
}

/// Begins the quiet after a notice of a channel; `false` when it is quiet already.
#[tracing::instrument(name = "db.notices.start_quiet_period", skip_all)]
pub async fn start_quiet_period(conn: &mut Conn, channel: ChannelId) -> Result<bool, DbError> {
    let done = sqlx::query!(
        "
        UPDATE notification_channels SET quiet_until = clock_timestamp() + min_gap_seconds * interval '1 second'
        WHERE channel_id = $1 AND (quiet_until IS NULL OR quiet_until <= clock_timestamp())
        ",
        channel.as_uuid(),
    )
    .execute(conn)
    .await?;
    Ok(done.rows_affected() == 1)
}

/// Gives a claim back untried until the quiet of its channel is over.
#[tracing::instrument(name = "db.notices.postpone_notification", skip_all)]
pub async fn postpone_notification(
    conn: &mut Conn,
    id: NotificationId,
    claim: Uuid,
) -> Result<(), DbError> {
    sqlx::query!(
        "
        UPDATE notifications n
        SET claim_id = NULL, attempts = n.attempts - 1, total_attempts = n.total_attempts - 1,
            due_at = greatest(c.quiet_until, clock_timestamp())
        FROM notification_channels c
        WHERE n.notification_id = $1 AND n.claim_id = $2 AND c.channel_id = n.channel_id
        ",
        id.as_uuid(),
        claim,
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// What becomes of a claimed notice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotificationOutcome<'a> {
    /// It was told, given up or dropped.
    Ended(NotificationState, Option<&'a str>),
    /// It is tried again after so many milliseconds.
    Again(i64, &'a str),
}

/// Ends a claim; `false` when it was lost meanwhile.
#[tracing::instrument(name = "db.notices.finish_notification", skip_all, fields(notification.id = %id))]
pub async fn finish_notification(
    conn: &mut Conn,
    id: NotificationId,
    claim: Uuid,
    outcome: NotificationOutcome<'_>,
) -> Result<bool, DbError> {
    let (state, reason, pause) = match outcome {
        NotificationOutcome::Ended(state, reason) => (state, reason, None),
        NotificationOutcome::Again(pause, reason) => {
            (NotificationState::Pending, Some(reason), Some(pause))
        }
    };
    let done = sqlx::query!(
        "
        UPDATE notifications
        SET state = $3, reason = $4, claim_id = NULL,
            due_at = clock_timestamp() + $5::bigint * interval '1 millisecond',
            ended_at = CASE WHEN $5::bigint IS NULL THEN clock_timestamp() END
        WHERE notification_id = $1 AND claim_id = $2 AND state = 'pending'
        ",
        id.as_uuid(),
        claim,
        state.as_str(),
        reason,
        pause,
    )
    .execute(conn)
    .await?;
    Ok(done.rows_affected() == 1)
}

/// Writes down an attempt.
#[tracing::instrument(name = "db.notices.record_attempt", skip_all)]
pub async fn record_attempt(
    conn: &mut Conn,
    id: NotificationId,
    number: u32,
    sent: bool,
    answer: &str,
) -> Result<(), DbError> {
    sqlx::query!(
        "
        INSERT INTO notification_attempts (notification_id, number, attempted_at, sent, response)
        VALUES ($1, $2, clock_timestamp(), $3, $4)
        ON CONFLICT DO NOTHING
        ",
        id.as_uuid(),
        i32::try_from(number).unwrap_or(i32::MAX),
        sent,
        answer,
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// Switches a channel off; `false` when it was off already.
#[tracing::instrument(name = "db.notices.disable_channel", skip_all, fields(channel.id = %id))]
pub async fn disable_channel(
    conn: &mut Conn,
    id: ChannelId,
    reason: &str,
    now: OffsetDateTime,
) -> Result<bool, DbError> {
    let done = sqlx::query!(
        "
        UPDATE notification_channels SET enabled = false, disabled_reason = $2, updated_at = $3
        WHERE channel_id = $1 AND enabled
        ",
        id.as_uuid(),
        reason,
        now,
    )
    .execute(conn)
    .await?;
    Ok(done.rows_affected() == 1)
}

/// Switches off the channels of a user's own; gives those that were on.
#[tracing::instrument(name = "db.notices.disable_user_channels", skip_all, fields(user.id = %user))]
pub async fn disable_user_channels(
    conn: &mut Conn,
    user: UserId,
    reason: &str,
    now: OffsetDateTime,
) -> Result<Vec<NotificationChannel>, DbError> {
    sqlx::query_as!(
        NotificationChannelRow,
        "
        UPDATE notification_channels SET enabled = false, disabled_reason = $2, updated_at = $3
        WHERE user_id = $1 AND enabled
        RETURNING channel_id, user_id, project_id, name, kind, address, sealed_secret, old_sealed_secret, old_secret_until, event_kinds,
            min_gap_seconds, enabled, disabled_reason, created_by, created_at
        ",
        user.as_uuid(),
        reason,
        now,
    )
    .fetch_all(conn)
    .await?
    .into_iter()
    .map(NotificationChannel::try_from)
    .collect()
}

/// Gives up what is still to be told by a channel that is off.
#[tracing::instrument(name = "db.notices.fail_pending_notifications", skip_all, fields(channel.id = %id))]
pub async fn fail_pending_notifications(
    conn: &mut Conn,
    id: ChannelId,
    reason: &str,
) -> Result<u64, DbError> {
    let done = sqlx::query!(
        "
        UPDATE notifications
        SET state = 'failed', reason = $2, claim_id = NULL, due_at = NULL, ended_at = clock_timestamp()
        WHERE channel_id = $1 AND state = 'pending'
        ",
        id.as_uuid(),
        reason,
    );
    Ok(done.execute(conn).await?.rows_affected())
}

/// Which notices are wanted.
#[derive(Clone, Copy, Debug, Default)]
pub struct NotificationFilter {
    /// Only of channels that this user has, or that belong to projects the user is an admin of.
    pub of: Option<UserId>,
    /// Only in this state.
    pub state: Option<NotificationState>,
}

/// Notices, newest first.
#[tracing::instrument(name = "db.notices.list_notifications", skip_all)]
pub async fn list_notifications(
    conn: &mut Conn,
    filter: NotificationFilter,
    page: PageRequest,
) -> Result<Vec<NotificationRecord>, DbError> {
    sqlx::query_as!(
        NotificationRow,
        r#"
        SELECT n.notification_id, n.channel_id, n.kind, n.subject_id, n.project_id, n.task_id, n.trace_id, n.data, n.occurred_at,
            n.state, n.due_at, n.attempts, n.total_attempts, n.reason, n.ended_at,
            (extract(epoch FROM clock_timestamp() - n.queued_at) * 1000)::bigint AS "age_ms!"
        FROM notifications n JOIN notification_channels c USING (channel_id)
        WHERE ($1::uuid IS NULL OR c.user_id = $1
            OR EXISTS (SELECT FROM project_members m WHERE m.project_id = c.project_id AND m.user_id = $1 AND m.role = 'admin')
            OR EXISTS (
                SELECT FROM role_bindings b JOIN group_members g USING (group_id)
                WHERE b.project_id = c.project_id AND g.user_id = $1 AND b.role = 'admin'))
            AND ($2::text IS NULL OR n.state = $2)
            AND ($3::uuid IS NULL OR n.notification_id < $3)
        ORDER BY n.notification_id DESC
        LIMIT $4
        "#,
        filter.of.map(UserId::as_uuid),
        filter.state.map(NotificationState::as_str),
        page.after.map(|cursor| cursor.0),
        page.row_limit(),
    )
    .fetch_all(conn)
    .await?
    .into_iter()
    .map(NotificationRecord::try_from)
    .collect()
}

/// One notice, locked until the transaction ends.
#[tracing::instrument(name = "db.notices.lock_notification", skip_all, fields(notification.id = %id))]
pub async fn lock_notification(
    conn: &mut Conn,
    id: NotificationId,
) -> Result<Option<NotificationRecord>, DbError> {
    sqlx::query_as!(
        NotificationRow,
        r#"
        SELECT notification_id, channel_id, kind, subject_id, project_id, task_id, trace_id, data, occurred_at, state, due_at,
            attempts, total_attempts, reason, ended_at,
            (extract(epoch FROM clock_timestamp() - queued_at) * 1000)::bigint AS "age_ms!"
        FROM notifications WHERE notification_id = $1
        FOR UPDATE
        "#,
        id.as_uuid(),
    )
    .fetch_optional(conn)
    .await?
    .map(NotificationRecord::try_from)
    .transpose()
}

/// Queues a notice anew, under the same id.
#[tracing::instrument(name = "db.notices.requeue_notification", skip_all, fields(notification.id = %id))]
pub async fn requeue_notification(conn: &mut Conn, id: NotificationId) -> Result<(), DbError> {
    sqlx::query!(
        "
        UPDATE notifications
        SET state = 'pending', reason = NULL, claim_id = NULL, ended_at = NULL, attempts = 0, queued_at = clock_timestamp(),
            due_at = clock_timestamp()
        WHERE notification_id = $1
        ",
        id.as_uuid(),
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// One attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotificationAttempt {
    /// Of which notice.
    pub of: NotificationId,
    /// Its number.
    pub number: i32,
    /// When.
    pub at: OffsetDateTime,
    /// Whether it was taken.
    pub sent: bool,
    /// What the other side said, or why nobody said anything.
    pub answer: String,
}

/// The attempts of some notices, in order.
#[tracing::instrument(name = "db.notices.list_attempts", skip_all)]
pub async fn list_attempts(
    conn: &mut Conn,
    of: &[NotificationId],
) -> Result<Vec<NotificationAttempt>, DbError> {
    let ids: Vec<Uuid> = of.iter().map(|id| id.as_uuid()).collect();
    let rows = sqlx::query!(
        "
        SELECT notification_id, number, attempted_at, sent, response FROM notification_attempts
        WHERE notification_id = ANY ($1)
        ORDER BY notification_id, number
        ",
        &ids,
    )
    .fetch_all(conn)
    .await?;
    let attempts = rows.into_iter().map(|row| NotificationAttempt {
        of: NotificationId::from_uuid(row.notification_id),
        number: row.number,
        at: row.attempted_at,
        sent: row.sent,
        answer: row.response,
    });
    Ok(attempts.collect())
}

/// Forgets notices that ended before, and links that nobody can use any more.
#[tracing::instrument(name = "db.notices.prune_notifications", skip_all)]
pub async fn prune_notifications(
    conn: &mut Conn,
    before: OffsetDateTime,
    now: OffsetDateTime,
    most: i64,
) -> Result<u64, DbError> {
    let notices = sqlx::query!(
        "
        DELETE FROM notifications WHERE notification_id IN (
            SELECT notification_id FROM notifications WHERE ended_at < $1 LIMIT $2)
        ",
        before,
        most,
    );
    let notices = notices.execute(&mut *conn).await?.rows_affected();
    let links = sqlx::query!(
        "
        DELETE FROM used_answer_links WHERE token_hash IN (SELECT token_hash FROM used_answer_links WHERE expires_at < $1 LIMIT $2)
        ",
        now,
        most,
    );
    Ok(notices + links.execute(conn).await?.rows_affected())
}

/// Uses up a link; `false` when it was used before. Of several at once, the second waits for what becomes of the first.
#[tracing::instrument(name = "db.notices.use_answer_link", skip_all)]
pub async fn use_answer_link(
    conn: &mut Conn,
    token_hash: &[u8; 32],
    user: UserId,
    now: OffsetDateTime,
    expires_at: OffsetDateTime,
) -> Result<bool, DbError> {
    let done = sqlx::query!(
        "
        INSERT INTO used_answer_links (token_hash, user_id, used_at, expires_at) VALUES ($1, $2, $3, $4)
        ON CONFLICT DO NOTHING
        ",
        token_hash as &[u8],
        user.as_uuid(),
        now,
        expires_at,
    )
    .execute(conn)
    .await?;
    Ok(done.rows_affected() == 1)
}

/// Whether a link was used.
#[tracing::instrument(name = "db.notices.is_link_used", skip_all)]
pub async fn is_link_used(conn: &mut Conn, token_hash: &[u8; 32]) -> Result<bool, DbError> {
    let used = sqlx::query_scalar!(
        r#"SELECT EXISTS (SELECT FROM used_answer_links WHERE token_hash = $1) AS "used!""#,
        token_hash as &[u8],
    );
    Ok(used.fetch_one(conn).await?)
}
