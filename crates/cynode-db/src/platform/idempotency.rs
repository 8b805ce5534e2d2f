//! Idempotency keys and their stored answers.

use time::OffsetDateTime;
use uuid::Uuid;

use crate::{Conn, DbError};

/// Names one attempt of one caller.
#[derive(Clone, Debug)]
pub struct IdempotencyKey {
    /// The caller; nil for callers without an account.
    pub actor: Uuid,
    /// What the caller sent as `Idempotency-Key`.
    pub key: String,
    /// What the request was, so that a key cannot be used for another one.
    pub request_digest: [u8; 32],
}

/// An answer to be kept.
#[derive(Clone, Debug)]
pub struct IdempotencyRecord {
    /// Under which key.
    pub key: IdempotencyKey,
    /// The answer.
    pub answer: Vec<u8>,
    /// Until when.
    pub expires_at: OffsetDateTime,
}

/// An answer that was given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredAnswer {
    /// What the request was.
    pub request_digest: Vec<u8>,
    /// The answer.
    pub answer: Vec<u8>,
}

/// Keeps an answer, as the last statement of the transaction that did the work. `false` when the key
/// was used before: the work must then be rolled back. A concurrent user of the same key waits here
/// until the first has ended, so of any number of equal requests one takes effect. An answer that has
/// expired is overwritten.
#[tracing::instrument(name = "db.idempotency.store_answer", skip_all)]
pub async fn store_answer(
    conn: &mut Conn,
    IdempotencyRecord { key, answer, expires_at }: &IdempotencyRecord,
    now: OffsetDateTime,
) -> Result<bool, DbError> {
    let done = sqlx::query!(
        "
        INSERT INTO idempotency_keys AS k (actor_id, key, request_digest, answer, expires_at)
        VALUES ($1, $2, $3, $4, $5)
        ON CONFLICT (actor_id, key) DO UPDATE
        SET request_digest = excluded.request_digest, answer = excluded.answer, expires_at = excluded.expires_at
        WHERE k.expires_at <= $6
        ",
        key.actor,
        key.key,
        &key.request_digest,
        answer,
        *expires_at,
        now,
    )
    .execute(conn)
    .await?;
    Ok(done.rows_affected() == 1)
}

/// The answer that was given under a key, if it is still kept.
#[tracing::instrument(name = "db.idempotency.find_stored_answer", skip_all)]
pub async fn find_stored_answer(
    conn: &mut Conn,
    key: &IdempotencyKey,
    now: OffsetDateTime,
) -> Result<Option<StoredAnswer>, DbError> {
    let kept = sqlx::query_as!(
        StoredAnswer,
        "
        SELECT request_digest, answer
        FROM idempotency_keys
        WHERE actor_id = $1 AND key = $2 AND expires_at > $3
        ",
        key.actor,
        key.key,
        now,
    )
    .fetch_optional(conn)
    .await?;
    Ok(kept)
}

/// Removes answers that have expired, at most `limit`. Returns how many.
#[tracing::instrument(name = "db.idempotency.prune_idempotency_keys", skip_all)]
pub async fn prune_idempotency_keys(
    conn: &mut Conn,
    now: OffsetDateTime,
    limit: i64,
) -> Result<u64, DbError> {
    let done = sqlx::query!(
        "
        DELETE FROM idempotency_keys
        WHERE ctid = ANY(ARRAY(SELECT ctid FROM idempotency_keys WHERE expires_at <= $1 LIMIT $2))
        ",
        now,
        limit,
    )
    .execute(conn)
    .await?;
    Ok(done.rows_affected())
}
