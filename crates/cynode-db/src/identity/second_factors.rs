//! Second factors: sealed secrets of one-time passwords, the last time step that was used, and hashes of recovery codes.

use cynode_core::ids::UserId;
use time::OffsetDateTime;

use crate::{Conn, DbError};

/// The second factor of a user.
#[derive(Clone, PartialEq, Eq)]
pub struct TotpCredential {
    /// The secret, sealed.
    pub sealed_secret: Vec<u8>,
    /// When a code first confirmed it; `None` while enrolment goes on.
    pub confirmed_at: Option<OffsetDateTime>,
}

/// The second factor of a user. It stays locked until the transaction ends.
#[tracing::instrument(name = "db.second_factors.lock_totp", skip_all)]
pub async fn lock_totp(conn: &mut Conn, user: UserId) -> Result<Option<TotpCredential>, DbError> {
    let row = sqlx::query_as!(
        TotpCredential,
        "SELECT sealed_secret, confirmed_at FROM totp_credentials WHERE user_id = $1 FOR UPDATE",
        user.as_uuid(),
    );
    Ok(row.fetch_optional(conn).await?)
}

/// Whether the user has a confirmed second factor.
pub async fn is_enrolled(conn: &mut Conn, user: UserId) -> Result<bool, DbError> {
    let enrolled = sqlx::query_scalar!(
        r#"
        SELECT EXISTS (
            SELECT FROM totp_credentials WHERE user_id = $1 AND confirmed_at IS NOT NULL
        ) AS "enrolled!"
        "#,
        user.as_uuid(),
    );
    Ok(enrolled.fetch_one(conn).await?)
}

/// Stores the secret of an enrolment that begins. It replaces an enrolment that was not confirmed; gives `false` for a user
/// with a confirmed second factor, which stays.
pub async fn begin_totp(
    conn: &mut Conn,
    user: UserId,
    sealed_secret: &[u8],
    now: OffsetDateTime,
) -> Result<bool, DbError> {
    let done = sqlx::query!(
        "
        INSERT INTO totp_credentials (user_id, sealed_secret, created_at) VALUES ($1, $2, $3)
        ON CONFLICT (user_id) DO UPDATE SET sealed_secret = $2, created_at = $3, last_step = 0
        WHERE totp_credentials.confirmed_at IS NULL
        ",
        user.as_uuid(),
        sealed_secret,
        now,
    )
    .execute(conn)
    .await?;
    Ok(done.rows_affected() == 1)
}

/// Confirms an enrolment with the time step of its first code.
pub async fn confirm_totp(
    conn: &mut Conn,
    user: UserId,
    step: i64,
    now: OffsetDateTime,
) -> Result<bool, DbError> {
    let done = sqlx::query!(
        "
        UPDATE totp_credentials SET confirmed_at = $3, last_step = $2
        WHERE user_id = $1 AND confirmed_at IS NULL
        ",
        user.as_uuid(),
        step,
        now,
    )
    .execute(conn)
    .await?;
    Ok(done.rows_affected() == 1)
}

/// Uses up a time step of a confirmed second factor. A step counts once, and none before it counts again.
pub async fn consume_step(conn: &mut Conn, user: UserId, step: i64) -> Result<bool, DbError> {
    let done = sqlx::query!(
        "
        UPDATE totp_credentials SET last_step = $2
        WHERE user_id = $1 AND confirmed_at IS NOT NULL AND last_step < $2
        ",
        user.as_uuid(),
        step,
    )
    .execute(conn)
    .await?;
    Ok(done.rows_affected() == 1)
}

/// Deletes the second factor of a user with its recovery codes. Returns whether there was a confirmed one.
pub async fn delete_totp(conn: &mut Conn, user: UserId) -> Result<bool, DbError> {
    sqlx::query!("DELETE FROM recovery_codes WHERE user_id = $1", user.as_uuid())
        .execute(&mut *conn)
        .await?;
    let confirmed = sqlx::query_scalar!(
        r#"
        DELETE FROM totp_credentials WHERE user_id = $1
        RETURNING confirmed_at IS NOT NULL AS "confirmed!"
        "#,
        user.as_uuid(),
    );
    Ok(confirmed.fetch_optional(conn).await?.unwrap_or(false))
}

/// Stores the hashes of new recovery codes. Earlier codes stop working.
pub async fn replace_recovery_codes(
    conn: &mut Conn,
    user: UserId,
    hashes: &[[u8; 32]],
    now: OffsetDateTime,
) -> Result<(), DbError> {
    sqlx::query!("DELETE FROM recovery_codes WHERE user_id = $1", user.as_uuid())
        .execute(&mut *conn)
        .await?;
    sqlx::query!(
        "
        INSERT INTO recovery_codes (user_id, code_hash, created_at)
        SELECT $1, code_hash, $3 FROM unnest($2::bytea[]) AS code_hash
        ",
        user.as_uuid(),
        hashes as &[[u8; 32]],
        now,
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// Uses up a recovery code. Of two callers at once, one gets `true`.
pub async fn consume_recovery_code(
    conn: &mut Conn,
    user: UserId,
    hash: &[u8; 32],
    now: OffsetDateTime,
) -> Result<bool, DbError> {
    let done = sqlx::query!(
        "
        UPDATE recovery_codes SET used_at = $3
        WHERE user_id = $1 AND code_hash = $2 AND used_at IS NULL
        ",
        user.as_uuid(),
        hash as &[u8],
        now,
    )
    .execute(conn)
    .await?;
    Ok(done.rows_affected() == 1)
}

/// How many recovery codes a user has left.
pub async fn count_recovery_codes(conn: &mut Conn, user: UserId) -> Result<i64, DbError> {
    let count = sqlx::query_scalar!(
        r#"SELECT count(*) AS "count!" FROM recovery_codes WHERE user_id = $1 AND used_at IS NULL"#,
        user.as_uuid(),
    );
    Ok(count.fetch_one(conn).await?)
}
