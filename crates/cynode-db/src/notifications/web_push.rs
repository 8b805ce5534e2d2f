//! Web push: the key of the installation, and the browsers that are subscribed.

use cynode_core::ids::{ChannelId, SessionId, UserId};
use time::OffsetDateTime;

use super::{NotificationChannel, NotificationChannelRow};
use crate::{Conn, DbError};

/// Returns the sealed private key of the installation, if one was made.
#[tracing::instrument(name = "db.notices.find_web_push_key", skip_all)]
pub async fn find_web_push_key(conn: &mut Conn) -> Result<Option<Vec<u8>>, DbError> {
    let sealed = sqlx::query_scalar!("SELECT sealed_private_key FROM web_push_keys");
    Ok(sealed.fetch_optional(conn).await?)
}

/// Stores the private key of the installation, unless there is one.
#[tracing::instrument(name = "db.notices.insert_web_push_key", skip_all)]
pub async fn insert_web_push_key(
    conn: &mut Conn,
    sealed: &[u8],
    now: OffsetDateTime,
) -> Result<(), DbError> {
    sqlx::query!(
        "INSERT INTO web_push_keys (sealed_private_key, created_at) VALUES ($1, $2) ON CONFLICT DO NOTHING",
        sealed,
        now,
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// Returns the channel of a browser by the address of its subscription, locked until the transaction ends.
#[tracing::instrument(name = "db.notices.lock_browser_channel", skip_all)]
pub async fn lock_browser_channel(
    conn: &mut Conn,
    address: &str,
) -> Result<Option<NotificationChannel>, DbError> {
    sqlx::query_as!(
        NotificationChannelRow,
        "
        SELECT channel_id, user_id, project_id, name, kind, address, sealed_secret, old_sealed_secret, old_secret_until,
            event_kinds, min_gap_seconds, enabled, disabled_reason, created_by, created_at
        FROM notification_channels WHERE kind = 'web_push' AND address = $1
        FOR NO KEY UPDATE
        ",
        address,
    )
    .fetch_optional(conn)
    .await?
    .map(NotificationChannel::try_from)
    .transpose()
}

/// Binds the channel of a browser to the session that subscribed it.
#[tracing::instrument(name = "db.notices.bind_channel_session", skip_all, fields(channel.id = %id))]
pub async fn bind_channel_session(
    conn: &mut Conn,
    id: ChannelId,
    session: Option<SessionId>,
) -> Result<(), DbError> {
    sqlx::query!(
        "UPDATE notification_channels SET session_id = $2 WHERE channel_id = $1",
        id.as_uuid(),
        session.map(SessionId::as_uuid),
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// Removes the channels of the browsers that a session subscribed. Returns them.
#[tracing::instrument(name = "db.notices.remove_session_browsers", skip_all)]
pub async fn remove_session_browsers(
    conn: &mut Conn,
    session: SessionId,
) -> Result<Vec<NotificationChannel>, DbError> {
    sqlx::query_as!(
        NotificationChannelRow,
        "
        DELETE FROM notification_channels WHERE session_id = $1
        RETURNING channel_id, user_id, project_id, name, kind, address, sealed_secret, old_sealed_secret, old_secret_until, event_kinds,
            min_gap_seconds, enabled, disabled_reason, created_by, created_at
        ",
        session.as_uuid(),
    )
    .fetch_all(conn)
    .await?
    .into_iter()
    .map(NotificationChannel::try_from)
    .collect()
}

/// Removes the channels of all browsers of a user, but for those that the session `kept` subscribed. Returns them.
#[tracing::instrument(name = "db.notices.remove_user_browsers", skip_all, fields(user.id = %user))]
pub async fn remove_user_browsers(
    conn: &mut Conn,
    user: UserId,
    kept: Option<SessionId>,
) -> Result<Vec<NotificationChannel>, DbError> {
    sqlx::query_as!(
        NotificationChannelRow,
        "
        DELETE FROM notification_channels
        WHERE user_id = $1 AND kind = 'web_push' AND ($2::uuid IS NULL OR session_id IS DISTINCT FROM $2)
        RETURNING channel_id, user_id, project_id, name, kind, address, sealed_secret, old_sealed_secret, old_secret_until, event_kinds,
            min_gap_seconds, enabled, disabled_reason, created_by, created_at
        ",
        user.as_uuid(),
        kept.map(SessionId::as_uuid),
    )
    .fetch_all(conn)
    .await?
    .into_iter()
    .map(NotificationChannel::try_from)
    .collect()
}
