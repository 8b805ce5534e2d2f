//! Programs of the installation and the releases that they named.

use time::OffsetDateTime;

use crate::{Conn, DbError};

/// A program that named its release.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcessRecord {
    /// Kind of the program.
    pub kind: String,
    /// Name of the service, of the host, or of the account of a command line.
    pub name: String,
    /// Release that it named.
    pub release: String,
    /// Time at which it named it last.
    pub last_seen_at: OffsetDateTime,
}

/// Notes that a program named its release.
#[tracing::instrument(name = "db.processes.record_process", skip_all)]
pub async fn record_process(conn: &mut Conn, process: &ProcessRecord) -> Result<(), DbError> {
    sqlx::query!(
        "
        INSERT INTO processes (kind, name, release, last_seen_at) VALUES ($1, $2, $3, $4)
        ON CONFLICT (kind, name, release) DO UPDATE
        SET last_seen_at = greatest(processes.last_seen_at, excluded.last_seen_at)
        ",
        process.kind,
        process.name,
        process.release,
        process.last_seen_at,
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// Lists the programs that were seen since then: each with its last release, and command lines with each of theirs. The account of a command
/// line is given by its handle.
#[tracing::instrument(name = "db.processes.list_processes", skip_all)]
pub async fn list_processes(
    conn: &mut Conn,
    since: OffsetDateTime,
) -> Result<Vec<ProcessRecord>, DbError> {
    let processes = sqlx::query_as!(
        ProcessRecord,
        r#"
        SELECT p.kind, coalesce(u.handle, p.name) AS "name!", p.release, p.last_seen_at
        FROM processes p LEFT JOIN users u ON p.kind = 'command_line' AND u.user_id::text = p.name
        WHERE p.last_seen_at >= $1
            AND (p.kind = 'command_line' OR NOT EXISTS (
                SELECT FROM processes later
                WHERE later.kind = p.kind AND later.name = p.name AND later.last_seen_at > p.last_seen_at))
        ORDER BY p.kind, 2, p.last_seen_at DESC
        "#,
        since,
    );
    Ok(processes.fetch_all(conn).await?)
}

/// Removes programs that were not seen since then.
#[tracing::instrument(name = "db.processes.delete_processes", skip_all)]
pub async fn delete_processes(conn: &mut Conn, before: OffsetDateTime) -> Result<(), DbError> {
    sqlx::query!("DELETE FROM processes WHERE last_seen_at < $1", before).execute(conn).await?;
    Ok(())
}
