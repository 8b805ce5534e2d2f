//! Health queries about the database itself.

use time::OffsetDateTime;

use crate::{Conn, DbError};

/// Asks the database for a sign of life.
pub async fn ping_database(conn: &mut Conn) -> Result<(), DbError> {
    sqlx::query!(r#"SELECT 1 AS "one!""#).fetch_one(conn).await?;
    Ok(())
}

/// Whether anybody is admin of the installation.
pub async fn has_admin(conn: &mut Conn) -> Result<bool, DbError> {
    let found = sqlx::query_scalar!(
        r#"
        SELECT EXISTS (
            SELECT FROM role_bindings
            JOIN users USING (user_id)
            WHERE role = 'admin' AND project_id IS NULL AND state = 'active'
        ) AS "found!"
        "#
    )
    .fetch_one(conn)
    .await?;
    Ok(found)
}

/// The version and the clock of the database.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DatabaseFacts {
    /// Version of the server.
    pub version: String,
    /// Its time.
    pub now: OffsetDateTime,
}

/// The version and the clock of the database.
#[tracing::instrument(name = "db.health.get_database_facts", skip_all)]
pub async fn get_database_facts(conn: &mut Conn) -> Result<DatabaseFacts, DbError> {
    let facts = sqlx::query_as!(
        DatabaseFacts,
        r#"SELECT current_setting('server_version') AS "version!", clock_timestamp() AS "now!""#,
    );
    Ok(facts.fetch_one(conn).await?)
}

/// How the calls of a provider of models went.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProviderHealth {
    /// Name of the provider.
    pub provider: String,
    /// Number of calls.
    pub calls: i64,
    /// Number of those without an answer.
    pub failures: i64,
    /// Whether the last call had an answer.
    pub last_answered: bool,
    /// The last error.
    pub last_error: Option<String>,
}

/// How the calls of each provider went since then.
#[tracing::instrument(name = "db.health.list_provider_health", skip_all)]
pub async fn list_provider_health(
    conn: &mut Conn,
    since: OffsetDateTime,
) -> Result<Vec<ProviderHealth>, DbError> {
    let rows = sqlx::query_as!(
        ProviderHealth,
        r#"
        SELECT provider, count(*) AS "calls!", count(*) FILTER (WHERE outcome <> 'answered') AS "failures!",
            (array_agg(outcome = 'answered' ORDER BY started_at DESC))[1] AS "last_answered!",
            (array_agg(error ORDER BY started_at DESC) FILTER (WHERE error IS NOT NULL))[1] AS "last_error"
        FROM model_calls WHERE started_at >= $1
        GROUP BY provider ORDER BY provider
        "#,
        since,
    );
    Ok(rows.fetch_all(conn).await?)
}
