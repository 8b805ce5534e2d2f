//! Service tokens, and the presence of services.

use cynode_core::ids::ServiceTokenId;
use time::OffsetDateTime;

use crate::{
    Conn, DbError,
    platform::{error::corrupt_column, keyring::TokenHash},
};

/// What a service may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServiceKind {
    /// Drives tasks.
    Runner,
    /// Works on jobs.
    Worker,
    /// Runs the project manager.
    Manager,
    /// Runs analysts.
    Analyst,
}

/// A service that the database knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceIdentity {
    /// The token.
    pub id: ServiceTokenId,
    /// What it may do.
    pub kind: ServiceKind,
    /// What it is called.
    pub name: String,
}

impl ServiceKind {
    /// The name on the wire and in the database.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Runner => "runner",
            Self::Worker => "worker",
            Self::Manager => "manager",
            Self::Analyst => "analyst",
        }
    }

    /// The kind of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        let all = [Self::Runner, Self::Worker, Self::Manager, Self::Analyst];
        all.into_iter().find(|kind| kind.as_str() == name)
    }
}

/// Stores a new token's hash.
#[tracing::instrument(name = "db.service_tokens.insert_service_token", skip_all)]
pub async fn insert_service_token(
    conn: &mut Conn,
    service: &ServiceIdentity,
    token: &TokenHash,
    now: OffsetDateTime,
) -> Result<(), DbError> {
    sqlx::query!(
        "
        INSERT INTO service_tokens (service_token_id, kind, name, token_hash, created_at, hash_key_id)
        VALUES ($1, $2, $3, $4, $5, $6)
        ",
        service.id.as_uuid(),
        service.kind.as_str(),
        service.name,
        &token.hash as &[u8],
        now,
        token.key,
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// Ends every token of that kind and name, for a service that gets a new one. Gives how many there were.
#[tracing::instrument(name = "db.service_tokens.revoke_service_tokens", skip_all)]
pub async fn revoke_service_tokens(
    conn: &mut Conn,
    kind: ServiceKind,
    name: &str,
    now: OffsetDateTime,
) -> Result<u64, DbError> {
    let done = sqlx::query!(
        "UPDATE service_tokens SET revoked_at = $3 WHERE kind = $1 AND name = $2 AND revoked_at IS NULL",
        kind.as_str(),
        name,
        now,
    )
    .execute(conn)
    .await?;
    Ok(done.rows_affected())
}

/// The services behind those of the tokens that work.
#[tracing::instrument(name = "db.service_tokens.find_services", skip_all)]
pub async fn find_services(
    conn: &mut Conn,
    hashes: &[[u8; 32]],
) -> Result<Vec<([u8; 32], ServiceIdentity)>, DbError> {
    let rows = sqlx::query!(
        "
        SELECT service_token_id, kind, name, service_tokens.token_hash
        FROM unnest($1::bytea[]) AS shown (hash) JOIN service_tokens ON token_hash = hash
        WHERE revoked_at IS NULL
        ",
        hashes as &[[u8; 32]],
    )
    .fetch_all(conn)
    .await?;
    rows.into_iter()
        .map(|row| {
            let hash = row
                .token_hash
                .try_into()
                .map_err(corrupt_column("service_tokens", "token_hash"))?;
            let kind = ServiceKind::from_name(&row.kind)
                .ok_or(DbError::Corrupt { table: "service_tokens", column: "kind" })?;
            let id = ServiceTokenId::from_uuid(row.service_token_id);
            Ok((hash, ServiceIdentity { id, kind, name: row.name }))
        })
        .collect()
}

/// Notes that a service asked for work, unless that was noted within the last moments.
#[tracing::instrument(name = "db.service_tokens.record_presence", skip_all)]
pub async fn record_presence(
    conn: &mut Conn,
    kind: ServiceKind,
    name: &str,
    noted_ms: i64,
) -> Result<(), DbError> {
    sqlx::query!(
        "
        UPDATE service_tokens SET last_seen_at = clock_timestamp()
        WHERE kind = $1 AND name = $2 AND revoked_at IS NULL
            AND (last_seen_at IS NULL
                OR last_seen_at NOT BETWEEN clock_timestamp() - $3::bigint * interval '1 millisecond' AND clock_timestamp())
        ",
        kind.as_str(),
        name,
        noted_ms,
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// Notes that a service hung up while it waited for work.
#[tracing::instrument(name = "db.service_tokens.clear_presence", skip_all)]
pub async fn clear_presence(conn: &mut Conn, kind: ServiceKind, name: &str) -> Result<(), DbError> {
    sqlx::query!(
        "UPDATE service_tokens SET last_seen_at = NULL WHERE kind = $1 AND name = $2 AND revoked_at IS NULL",
        kind.as_str(),
        name,
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// The names of services of a kind that were heard of within that time.
#[tracing::instrument(name = "db.service_tokens.list_present_services", skip_all)]
pub async fn list_present_services(
    conn: &mut Conn,
    kind: ServiceKind,
    within_ms: i64,
) -> Result<Vec<String>, DbError> {
    let names = sqlx::query_scalar!(
        "
        SELECT name FROM service_tokens
        WHERE kind = $1 AND revoked_at IS NULL
            AND last_seen_at > clock_timestamp() - $2::bigint * interval '1 millisecond'
        ORDER BY name
        ",
        kind.as_str(),
        within_ms,
    );
    Ok(names.fetch_all(conn).await?)
}
