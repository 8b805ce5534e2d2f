//! One-time links that somebody with the master key makes for an admin.

use cynode_core::{ids::UserId, names::Handle};
use time::OffsetDateTime;

use crate::{
    Conn, DbError,
    platform::{error::corrupt_column, keyring::TokenHash},
};

/// A link that was made on the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BreakGlassToken {
    /// Who logs in with it.
    pub user: UserId,
    /// The tag that the master key made of it.
    pub tag: [u8; 32],
    /// When it stops working.
    pub expires_at: OffsetDateTime,
}

/// The active account of that handle.
pub async fn find_active_user(conn: &mut Conn, handle: &Handle) -> Result<Option<UserId>, DbError> {
    let user = sqlx::query_scalar!(
        "SELECT user_id FROM users WHERE handle = $1 AND state = 'active'",
        handle.as_str(),
    );
    Ok(user.fetch_optional(conn).await?.map(UserId::from_uuid))
}

/// Stores a link. Links of that user that were not used stop working.
pub async fn insert_token(
    conn: &mut Conn,
    stored: &TokenHash,
    token: &BreakGlassToken,
    now: OffsetDateTime,
) -> Result<(), DbError> {
    sqlx::query!(
        "DELETE FROM break_glass_tokens WHERE user_id = $1 AND used_at IS NULL",
        token.user.as_uuid(),
    )
    .execute(&mut *conn)
    .await?;
    sqlx::query!(
        "
        INSERT INTO break_glass_tokens (token_hash, user_id, tag, created_at, expires_at, hash_key_id)
        VALUES ($1, $2, $3, $4, $5, $6)
        ",
        &stored.hash as &[u8],
        token.user.as_uuid(),
        &token.tag as &[u8],
        now,
        token.expires_at,
        stored.key,
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// A link that is stored under one of these hashes, was not used and still works.
pub async fn find_token(
    conn: &mut Conn,
    token_hashes: &[[u8; 32]],
    now: OffsetDateTime,
) -> Result<Option<BreakGlassToken>, DbError> {
    let row = sqlx::query!(
        "
        SELECT user_id, tag, expires_at FROM break_glass_tokens
        WHERE token_hash = ANY ($1) AND used_at IS NULL AND expires_at > $2
        ",
        token_hashes as &[[u8; 32]],
        now,
    )
    .fetch_optional(conn)
    .await?;
    row.map(|row| {
        Ok(BreakGlassToken {
            user: UserId::from_uuid(row.user_id),
            tag: row.tag.try_into().map_err(corrupt_column("break_glass_tokens", "tag"))?,
            expires_at: row.expires_at,
        })
    })
    .transpose()
}

/// Uses up a link. Of two callers at once, one gets `true`.
pub async fn consume_token(
    conn: &mut Conn,
    token_hashes: &[[u8; 32]],
    now: OffsetDateTime,
) -> Result<bool, DbError> {
    let done = sqlx::query!(
        "UPDATE break_glass_tokens SET used_at = $2 WHERE token_hash = ANY ($1) AND used_at IS NULL",
        token_hashes as &[[u8; 32]],
        now,
    )
    .execute(conn)
    .await?;
    Ok(done.rows_affected() == 1)
}
