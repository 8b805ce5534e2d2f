//! Logins of devices without a browser (RFC 8628).

use cynode_core::ids::{SessionId, UserId};
use time::OffsetDateTime;

use crate::{Conn, DbError, platform::keyring::TokenHash};

/// State of the login of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceState {
    /// Nobody has decided yet.
    Pending,
    /// A person approved it in this session.
    Approved {
        /// The person.
        user: UserId,
        /// Their session.
        session: SessionId,
    },
    /// A person denied it.
    Denied,
}

/// The login of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceAuthorization {
    /// The code that the person compares.
    pub user_code: String,
    /// What the device calls itself.
    pub device: String,
    /// Where its request came from.
    pub source: String,
    /// Whether somebody has decided.
    pub state: DeviceState,
    /// When it was asked for.
    pub created_at: OffsetDateTime,
    /// When its codes stop working.
    pub expires_at: OffsetDateTime,
    /// When the device last asked.
    pub polled_at: Option<OffsetDateTime>,
}

struct DeviceRow {
    user_code: String,
    device: String,
    source: String,
    state: String,
    decided_by: Option<uuid::Uuid>,
    decided_session: Option<uuid::Uuid>,
    created_at: OffsetDateTime,
    expires_at: OffsetDateTime,
    polled_at: Option<OffsetDateTime>,
}

impl TryFrom<DeviceRow> for DeviceAuthorization {
    type Error = DbError;

    fn try_from(row: DeviceRow) -> Result<Self, DbError> {
        let state = match (row.state.as_str(), row.decided_by, row.decided_session) {
            ("pending", None, None) => DeviceState::Pending,
            ("approved", Some(user), Some(session)) => DeviceState::Approved {
                user: UserId::from_uuid(user),
                session: SessionId::from_uuid(session),
            },
            ("denied", Some(_), Some(_)) => DeviceState::Denied,
            _ => {
                return Err(DbError::Corrupt { table: "device_authorizations", column: "state" });
            }
        };
        Ok(Self {
            user_code: row.user_code,
            device: row.device,
            source: row.source,
            state,
            created_at: row.created_at,
            expires_at: row.expires_at,
            polled_at: row.polled_at,
        })
    }
}

/// Stores a login that a device asks for.
pub async fn insert_device_authorization(
    conn: &mut Conn,
    stored: &TokenHash,
    asked: &DeviceAuthorization,
) -> Result<(), DbError> {
    sqlx::query!(
        "
        INSERT INTO device_authorizations (device_code_hash, user_code, device, source, state, created_at, expires_at, hash_key_id)
        VALUES ($1, $2, $3, $4, 'pending', $5, $6, $7)
        ",
        &stored.hash as &[u8],
        asked.user_code,
        asked.device,
        asked.source,
        asked.created_at,
        asked.expires_at,
        stored.key,
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// How many logins wait for a decision: those from one source, and all.
pub async fn count_pending_authorizations(
    conn: &mut Conn,
    source: &str,
    now: OffsetDateTime,
) -> Result<(i64, i64), DbError> {
    let row = sqlx::query!(
        r#"
        SELECT count(*) FILTER (WHERE source = $1) AS "own!", count(*) AS "all!"
        FROM device_authorizations
        WHERE state = 'pending' AND expires_at > $2
        "#,
        source,
        now,
    )
    .fetch_one(conn)
    .await?;
    Ok((row.own, row.all))
}

/// The login with a device code that is stored under one of these hashes; it stays locked until the transaction ends.
pub async fn lock_by_device_code(
    conn: &mut Conn,
    code_hashes: &[[u8; 32]],
) -> Result<Option<DeviceAuthorization>, DbError> {
    sqlx::query_as!(
        DeviceRow,
        "
        SELECT user_code, device, source, state, decided_by, decided_session, created_at, expires_at, polled_at
        FROM device_authorizations
        WHERE device_code_hash = ANY ($1)
        FOR UPDATE
        ",
        code_hashes as &[[u8; 32]],
    )
    .fetch_optional(conn)
    .await?
    .map(DeviceAuthorization::try_from)
    .transpose()
}

/// The login with that user code; it stays locked until the transaction ends.
pub async fn lock_by_user_code(
    conn: &mut Conn,
    user_code: &str,
) -> Result<Option<DeviceAuthorization>, DbError> {
    sqlx::query_as!(
        DeviceRow,
        "
        SELECT user_code, device, source, state, decided_by, decided_session, created_at, expires_at, polled_at
        FROM device_authorizations
        WHERE user_code = $1
        FOR UPDATE
        ",
        user_code,
    )
    .fetch_optional(conn)
    .await?
    .map(DeviceAuthorization::try_from)
    .transpose()
}

/// Stores when the device last asked.
pub async fn record_device_poll(
    conn: &mut Conn,
    code_hashes: &[[u8; 32]],
    now: OffsetDateTime,
) -> Result<(), DbError> {
    sqlx::query!(
        "UPDATE device_authorizations SET polled_at = $2 WHERE device_code_hash = ANY ($1)",
        code_hashes as &[[u8; 32]],
        now,
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// Stores what a person decided about a login that waits.
pub async fn decide_device_authorization(
    conn: &mut Conn,
    user_code: &str,
    approved: bool,
    user: UserId,
    session: SessionId,
) -> Result<bool, DbError> {
    let done = sqlx::query!(
        "
        UPDATE device_authorizations
        SET state = $2, decided_by = $3, decided_session = $4
        WHERE user_code = $1 AND state = 'pending'
        ",
        user_code,
        if approved { "approved" } else { "denied" },
        user.as_uuid(),
        session.as_uuid(),
    )
    .execute(conn)
    .await?;
    Ok(done.rows_affected() == 1)
}

/// Deletes a login: its codes work once.
pub async fn delete_device_authorization(
    conn: &mut Conn,
    code_hashes: &[[u8; 32]],
) -> Result<(), DbError> {
    sqlx::query!(
        "DELETE FROM device_authorizations WHERE device_code_hash = ANY ($1)",
        code_hashes as &[[u8; 32]],
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// Removes logins whose codes stopped working before then, up to a number of them. Gives how many.
pub async fn prune_device_authorizations(
    conn: &mut Conn,
    before: OffsetDateTime,
    limit: i64,
) -> Result<u64, DbError> {
    let done = sqlx::query!(
        "
        DELETE FROM device_authorizations
        WHERE device_code_hash = ANY (ARRAY(
            SELECT device_code_hash FROM device_authorizations WHERE expires_at < $1 LIMIT $2
        ))
        ",
        before,
        limit,
    )
    .execute(conn)
    .await?;
    Ok(done.rows_affected())
}
