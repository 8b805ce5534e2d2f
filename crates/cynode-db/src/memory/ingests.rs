//! Ingests, the files that wait to be read, and the sources of records.
//!
//! Files and sources are seen only in a transaction that has entered their partition. An ingest itself says no word of what it read, so that a
//! worker finds the ones that are due.

use cynode_core::{
    ids::{IngestId, ProjectId, UserId},
    memory::ingests::{Ingest, IngestKind, IngestProgress, IngestState},
    paging::PageRequest,
    profiles::ProfileName,
};
use time::OffsetDateTime;
use uuid::Uuid;

use crate::{Conn, DbError, platform::error::corrupt_column};

struct IngestRow {
    ingest_id: Uuid,
    project_id: Uuid,
    profile: String,
    kind: String,
    source: String,
    commit_hash: Option<String>,
    state: String,
    uploaded_at: Option<OffsetDateTime>,
    file_count: i64,
    read_count: i64,
    unchanged_count: i64,
    skipped_count: i64,
    removed_count: i64,
    record_count: i64,
    error: Option<String>,
    requested_by: Uuid,
    trace_id: String,
    created_at: OffsetDateTime,
    finished_at: Option<OffsetDateTime>,
}

const TABLE: &str = "memory_ingests";

impl TryFrom<IngestRow> for Ingest {
    type Error = DbError;

    fn try_from(row: IngestRow) -> Result<Self, DbError> {
        let corrupt = |column| DbError::Corrupt { table: TABLE, column };
        let count = |number: i64| u64::try_from(number).unwrap_or_default();
        Ok(Self {
            id: IngestId::from_uuid(row.ingest_id),
            project: ProjectId::from_uuid(row.project_id),
            profile: row.profile.try_into().map_err(corrupt_column(TABLE, "profile"))?,
            kind: IngestKind::from_name(&row.kind).ok_or_else(|| corrupt("kind"))?,
            source: row.source,
            commit: row.commit_hash,
            state: IngestState::from_name(&row.state).ok_or_else(|| corrupt("state"))?,
            uploaded_at: row.uploaded_at,
            progress: IngestProgress {
                files: count(row.file_count),
                read: count(row.read_count),
                unchanged: count(row.unchanged_count),
                skipped: count(row.skipped_count),
                removed: count(row.removed_count),
                records: count(row.record_count),
            },
            error: row.error,
            requested_by: UserId::from_uuid(row.requested_by),
            trace: row.trace_id.parse().map_err(corrupt_column(TABLE, "trace_id"))?,
            created_at: row.created_at,
            finished_at: row.finished_at,
        })
    }
}

fn to_count(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// Stores a new ingest. One whose files are all there is due at once.
#[tracing::instrument(name = "db.memory_ingests.insert_ingest", skip_all)]
pub async fn insert_ingest(conn: &mut Conn, ingest: &Ingest) -> Result<(), DbError> {
    sqlx::query!(
        "
        INSERT INTO memory_ingests (ingest_id, project_id, profile, kind, source, commit_hash, state, uploaded_at, requested_by, trace_id,
            due_at, created_at)
        VALUES ($1, $2, $3, $4, $5, $6, 'queued', $7, $8, $9,
            CASE WHEN $7::timestamptz IS NOT NULL THEN clock_timestamp() END, $10)
        ",
        ingest.id.as_uuid(),
        ingest.project.as_uuid(),
        ingest.profile.as_str(),
        ingest.kind.as_str(),
        ingest.source,
        ingest.commit,
        ingest.uploaded_at,
        ingest.requested_by.as_uuid(),
        ingest.trace.to_string(),
        ingest.created_at,
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// Returns one ingest.
#[tracing::instrument(name = "db.memory_ingests.get_ingest", skip_all)]
pub async fn get_ingest(conn: &mut Conn, id: IngestId) -> Result<Option<Ingest>, DbError> {
    sqlx::query_as!(
        IngestRow,
        "
        SELECT ingest_id, project_id, profile, kind, source, commit_hash, state, uploaded_at, file_count, read_count, unchanged_count,
            skipped_count, removed_count, record_count, error, requested_by, trace_id, created_at, finished_at
        FROM memory_ingests WHERE ingest_id = $1
        ",
        id.as_uuid(),
    )
    .fetch_optional(conn)
    .await?
    .map(Ingest::try_from)
    .transpose()
}

/// Returns one ingest, which nobody else changes before the transaction ends.
#[tracing::instrument(name = "db.memory_ingests.lock_ingest", skip_all)]
pub async fn lock_ingest(conn: &mut Conn, id: IngestId) -> Result<Option<Ingest>, DbError> {
    sqlx::query_as!(
        IngestRow,
        "
        SELECT ingest_id, project_id, profile, kind, source, commit_hash, state, uploaded_at, file_count, read_count, unchanged_count,
            skipped_count, removed_count, record_count, error, requested_by, trace_id, created_at, finished_at
        FROM memory_ingests WHERE ingest_id = $1 FOR UPDATE
        ",
        id.as_uuid(),
    )
    .fetch_optional(conn)
    .await?
    .map(Ingest::try_from)
    .transpose()
}

/// Lists the ingests of a project under a profile, newest first.
#[tracing::instrument(name = "db.memory_ingests.list_ingests", skip_all)]
pub async fn list_ingests(
    conn: &mut Conn,
    project: ProjectId,
    profile: &ProfileName,
    page: PageRequest,
) -> Result<Vec<Ingest>, DbError> {
    sqlx::query_as!(
        IngestRow,
        "
        SELECT ingest_id, project_id, profile, kind, source, commit_hash, state, uploaded_at, file_count, read_count, unchanged_count,
            skipped_count, removed_count, record_count, error, requested_by, trace_id, created_at, finished_at
        FROM memory_ingests
        WHERE project_id = $1 AND profile = $2 AND ($3::uuid IS NULL OR ingest_id < $3)
        ORDER BY ingest_id DESC LIMIT $4
        ",
        project.as_uuid(),
        profile.as_str(),
        page.after.map(|cursor| cursor.0),
        page.row_limit(),
    )
    .fetch_all(conn)
    .await?
    .into_iter()
    .map(Ingest::try_from)
    .collect()
}

/// Returns how many ingests of a project have not ended.
#[tracing::instrument(name = "db.memory_ingests.count_open_ingests", skip_all)]
pub async fn count_open_ingests(conn: &mut Conn, project: ProjectId) -> Result<i64, DbError> {
    let count = sqlx::query_scalar!(
        r#"
        SELECT count(*) AS "count!" FROM memory_ingests WHERE project_id = $1 AND state IN ('queued', 'running')
        "#,
        project.as_uuid(),
    );
    Ok(count.fetch_one(conn).await?)
}

/// A file that waits to be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StagedFile {
    /// Path below the root of the source.
    pub path: String,
    /// Text of the file.
    pub content: String,
    /// SHA-256 of the text.
    pub digest: [u8; 32],
}

/// Stores files that wait to be read. A path that is sent again replaces the file.
#[tracing::instrument(name = "db.memory_ingests.stage_files", skip_all)]
pub async fn stage_files(
    conn: &mut Conn,
    ingest: IngestId,
    partition: i64,
    files: &[StagedFile],
) -> Result<(), DbError> {
    let paths: Vec<String> = files.iter().map(|file| file.path.clone()).collect();
    let contents: Vec<String> = files.iter().map(|file| file.content.clone()).collect();
    let digests: Vec<[u8; 32]> = files.iter().map(|file| file.digest).collect();
    sqlx::query!(
        "
        INSERT INTO memory_ingest_files AS f (ingest_id, path, partition_no, content, digest)
        SELECT $1, given.path, $2, given.content, given.digest
        FROM unnest($3::text[], $4::text[], $5::bytea[]) AS given (path, content, digest)
        ON CONFLICT (ingest_id, path) DO UPDATE SET content = excluded.content, digest = excluded.digest
        ",
        ingest.as_uuid(),
        partition,
        &paths,
        &contents,
        &digests as &[[u8; 32]],
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// Returns how many files of an ingest wait to be read, and their bytes.
#[tracing::instrument(name = "db.memory_ingests.sum_staged_files", skip_all)]
pub async fn sum_staged_files(
    conn: &mut Conn,
    ingest: IngestId,
    partition: i64,
) -> Result<(i64, i64), DbError> {
    let sums = sqlx::query!(
        r#"
        SELECT count(*) AS "files!", coalesce(sum(octet_length(content)), 0)::bigint AS "bytes!"
        FROM memory_ingest_files WHERE ingest_id = $1 AND partition_no = $2
        "#,
        ingest.as_uuid(),
        partition,
    )
    .fetch_one(conn)
    .await?;
    Ok((sums.files, sums.bytes))
}

/// Returns the first files of an ingest that wait to be read, in the order of their paths.
#[tracing::instrument(name = "db.memory_ingests.list_staged_files", skip_all)]
pub async fn list_staged_files(
    conn: &mut Conn,
    ingest: IngestId,
    partition: i64,
    limit: i64,
) -> Result<Vec<StagedFile>, DbError> {
    let rows = sqlx::query!(
        "
        SELECT path, content, digest FROM memory_ingest_files
        WHERE ingest_id = $1 AND partition_no = $2 ORDER BY path LIMIT $3
        ",
        ingest.as_uuid(),
        partition,
        limit,
    )
    .fetch_all(conn)
    .await?;
    let files = rows.into_iter().map(|row| -> Result<StagedFile, DbError> {
        let digest: [u8; 32] =
            row.digest.try_into().map_err(corrupt_column("memory_ingest_files", "digest"))?;
        Ok(StagedFile { path: row.path, content: row.content, digest })
    });
    files.collect()
}

/// Removes files that were read.
#[tracing::instrument(name = "db.memory_ingests.delete_staged_files", skip_all)]
pub async fn delete_staged_files(
    conn: &mut Conn,
    ingest: IngestId,
    partition: i64,
    paths: &[String],
) -> Result<(), DbError> {
    sqlx::query!(
        "DELETE FROM memory_ingest_files WHERE ingest_id = $1 AND partition_no = $2 AND path = ANY ($3)",
        ingest.as_uuid(),
        partition,
        paths,
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// Counts what the client has sent until now, and lets a worker begin when it was the last.
#[tracing::instrument(name = "db.memory_ingests.record_upload", skip_all)]
pub async fn record_upload(
    conn: &mut Conn,
    ingest: IngestId,
    files: u64,
    skipped: u64,
    uploaded_at: Option<OffsetDateTime>,
) -> Result<(), DbError> {
    sqlx::query!(
        "
        UPDATE memory_ingests
        SET file_count = $2, skipped_count = skipped_count + $3, uploaded_at = $4,
            due_at = CASE WHEN $4::timestamptz IS NOT NULL THEN clock_timestamp() END
        WHERE ingest_id = $1 AND state = 'queued' AND uploaded_at IS NULL
        ",
        ingest.as_uuid(),
        to_count(files),
        to_count(skipped),
        uploaded_at,
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// Stops an ingest that has not ended. A worker that has it is shut out.
#[tracing::instrument(name = "db.memory_ingests.cancel_ingest", skip_all)]
pub async fn cancel_ingest(
    conn: &mut Conn,
    ingest: IngestId,
    now: OffsetDateTime,
) -> Result<bool, DbError> {
    let done = sqlx::query!(
        "
        UPDATE memory_ingests
        SET state = 'cancelled', due_at = NULL, finished_at = $2, fencing_token = fencing_token + 1
        WHERE ingest_id = $1 AND state IN ('queued', 'running')
        ",
        ingest.as_uuid(),
        now,
    );
    Ok(done.execute(conn).await?.rows_affected() > 0)
}

/// An ingest that a worker has claimed.
#[derive(Clone, Debug)]
pub struct ClaimedIngest {
    /// The ingest.
    pub ingest: Ingest,
    /// Token of the claim. A later claim and a cancellation raise it.
    pub fencing_token: i64,
    /// Claims in a row without progress, this one included.
    pub attempts: i32,
    /// Whether the files were counted.
    pub is_listed: bool,
}

/// Claims the ingest that is due the longest, or returns `None`. Two workers never get the same one.
#[tracing::instrument(name = "db.memory_ingests.claim_ingest", skip_all)]
pub async fn claim_ingest(
    conn: &mut Conn,
    lease_ms: i64,
) -> Result<Option<ClaimedIngest>, DbError> {
    let claimed = sqlx::query!(
        r#"
        UPDATE memory_ingests
        SET state = 'running', fencing_token = fencing_token + 1, attempts = attempts + 1,
            due_at = clock_timestamp() + $1::bigint * interval '1 millisecond'
        WHERE ingest_id = (
            SELECT ingest_id FROM memory_ingests WHERE due_at <= clock_timestamp() ORDER BY due_at LIMIT 1 FOR UPDATE SKIP LOCKED
        )
        RETURNING ingest_id, fencing_token, attempts, listed_at IS NOT NULL AS "is_listed!"
        "#,
        lease_ms,
    )
    .fetch_optional(&mut *conn)
    .await?;
    let Some(claimed) = claimed else { return Ok(None) };
    let ingest = get_ingest(conn, IngestId::from_uuid(claimed.ingest_id)).await?;
    Ok(ingest.map(|ingest| ClaimedIngest {
        ingest,
        fencing_token: claimed.fencing_token,
        attempts: claimed.attempts,
        is_listed: claimed.is_listed,
    }))
}

/// Counts the files of an ingest, once. Returns `false` when the worker was shut out.
#[tracing::instrument(name = "db.memory_ingests.record_listing", skip_all)]
pub async fn record_listing(
    conn: &mut Conn,
    claim: &ClaimedIngest,
    files: u64,
    skipped: u64,
    now: OffsetDateTime,
) -> Result<bool, DbError> {
    let done = sqlx::query!(
        "
        UPDATE memory_ingests
        SET file_count = CASE WHEN listed_at IS NULL THEN $3 ELSE file_count END,
            skipped_count = CASE WHEN listed_at IS NULL THEN skipped_count + $4 ELSE skipped_count END,
            listed_at = coalesce(listed_at, $5)
        WHERE ingest_id = $1 AND fencing_token = $2 AND state = 'running'
        ",
        claim.ingest.id.as_uuid(),
        claim.fencing_token,
        to_count(files),
        to_count(skipped),
        now,
    );
    Ok(done.execute(conn).await?.rows_affected() > 0)
}

/// Adds to the progress of an ingest and extends its lease, in the transaction that stores what was read. Returns `false` when the worker
/// was shut out: nothing of the transaction may be committed then.
#[tracing::instrument(name = "db.memory_ingests.record_progress", skip_all)]
pub async fn record_progress(
    conn: &mut Conn,
    claim: &ClaimedIngest,
    step: IngestProgress,
    lease_ms: i64,
) -> Result<bool, DbError> {
    let done = sqlx::query!(
        "
        UPDATE memory_ingests
        SET read_count = read_count + $3, unchanged_count = unchanged_count + $4, skipped_count = skipped_count + $5,
            removed_count = removed_count + $6, record_count = record_count + $7,
            attempts = CASE WHEN $3 + $4 + $5 + $6 > 0 THEN 0 ELSE attempts END,
            error = CASE WHEN $3 + $4 + $5 + $6 > 0 THEN NULL ELSE error END,
            due_at = clock_timestamp() + $8::bigint * interval '1 millisecond'
        WHERE ingest_id = $1 AND fencing_token = $2 AND state = 'running'
        ",
        claim.ingest.id.as_uuid(),
        claim.fencing_token,
        to_count(step.read),
        to_count(step.unchanged),
        to_count(step.skipped),
        to_count(step.removed),
        to_count(step.records),
        lease_ms,
    );
    Ok(done.execute(conn).await?.rows_affected() > 0)
}

/// Ends an ingest: well without an error, else as failed. Returns `false` when the worker was shut out.
#[tracing::instrument(name = "db.memory_ingests.finish_ingest", skip_all)]
pub async fn finish_ingest(
    conn: &mut Conn,
    claim: &ClaimedIngest,
    error: Option<&str>,
    now: OffsetDateTime,
) -> Result<bool, DbError> {
    let done = sqlx::query!(
        "
        UPDATE memory_ingests
        SET state = CASE WHEN $3::text IS NULL THEN 'done' ELSE 'failed' END, error = $3, due_at = NULL, finished_at = $4
        WHERE ingest_id = $1 AND fencing_token = $2 AND state = 'running'
        ",
        claim.ingest.id.as_uuid(),
        claim.fencing_token,
        error,
        now,
    );
    Ok(done.execute(conn).await?.rows_affected() > 0)
}

/// Returns how often in a row an ingest was claimed without progress.
#[tracing::instrument(name = "db.memory_ingests.count_attempts", skip_all)]
pub async fn count_attempts(conn: &mut Conn, ingest: IngestId) -> Result<i32, DbError> {
    let attempts = sqlx::query_scalar!(
        "SELECT attempts FROM memory_ingests WHERE ingest_id = $1",
        ingest.as_uuid(),
    );
    Ok(attempts.fetch_optional(conn).await?.unwrap_or_default())
}

/// Gives an ingest back until later, with what keeps it waiting.
#[tracing::instrument(name = "db.memory_ingests.postpone_ingest", skip_all)]
pub async fn postpone_ingest(
    conn: &mut Conn,
    claim: &ClaimedIngest,
    error: &str,
    delay_ms: i64,
) -> Result<(), DbError> {
    sqlx::query!(
        "
        UPDATE memory_ingests
        SET state = 'queued', error = $3, due_at = clock_timestamp() + $4::bigint * interval '1 millisecond'
        WHERE ingest_id = $1 AND fencing_token = $2 AND state = 'running'
        ",
        claim.ingest.id.as_uuid(),
        claim.fencing_token,
        error,
        delay_ms,
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// Removes the files of an ingest that nobody will read.
#[tracing::instrument(name = "db.memory_ingests.drop_staged_files", skip_all)]
pub async fn drop_staged_files(
    conn: &mut Conn,
    ingest: IngestId,
    partition: i64,
) -> Result<(), DbError> {
    sqlx::query!(
        "DELETE FROM memory_ingest_files WHERE ingest_id = $1 AND partition_no = $2",
        ingest.as_uuid(),
        partition,
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// Lists ingests whose client has sent nothing more since a time, the oldest first.
#[tracing::instrument(name = "db.memory_ingests.list_abandoned_uploads", skip_all)]
pub async fn list_abandoned_uploads(
    conn: &mut Conn,
    before: OffsetDateTime,
    limit: i64,
) -> Result<Vec<IngestId>, DbError> {
    let ids = sqlx::query_scalar!(
        "
        SELECT ingest_id FROM memory_ingests
        WHERE state = 'queued' AND uploaded_at IS NULL AND created_at < $1 ORDER BY created_at LIMIT $2
        ",
        before,
        limit,
    );
    Ok(ids.fetch_all(conn).await?.into_iter().map(IngestId::from_uuid).collect())
}

/// Ends an ingest whose client did not send the last file.
#[tracing::instrument(name = "db.memory_ingests.fail_upload", skip_all)]
pub async fn fail_upload(
    conn: &mut Conn,
    ingest: IngestId,
    error: &str,
    now: OffsetDateTime,
) -> Result<bool, DbError> {
    let done = sqlx::query!(
        "
        UPDATE memory_ingests SET state = 'failed', error = $2, finished_at = $3
        WHERE ingest_id = $1 AND state = 'queued' AND uploaded_at IS NULL
        ",
        ingest.as_uuid(),
        error,
        now,
    );
    Ok(done.execute(conn).await?.rows_affected() > 0)
}

/// Removes ingests that ended before a time. What they stored stays.
#[tracing::instrument(name = "db.memory_ingests.prune_ingests", skip_all)]
pub async fn prune_ingests(
    conn: &mut Conn,
    before: OffsetDateTime,
    limit: i64,
) -> Result<u64, DbError> {
    let done = sqlx::query!(
        "
        DELETE FROM memory_ingests
        WHERE ingest_id IN (SELECT ingest_id FROM memory_ingests WHERE finished_at < $1 ORDER BY finished_at LIMIT $2)
        ",
        before,
        limit,
    );
    Ok(done.execute(conn).await?.rows_affected())
}

/// A file or page that records were made from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceFile {
    /// Path of the file.
    pub path: String,
    /// Digest that it had.
    pub digest: [u8; 32],
    /// Ingest that saw it last.
    pub ingest: IngestId,
    /// Whether all of its records were forgotten since: it is read again.
    pub is_forgotten: bool,
}

/// Lists the files of a source by path.
#[tracing::instrument(name = "db.memory_ingests.list_source_files", skip_all)]
pub async fn list_source_files(
    conn: &mut Conn,
    partition: i64,
    source: &str,
) -> Result<Vec<SourceFile>, DbError> {
    let rows = sqlx::query!(
        r#"
        SELECT s.path, s.digest, s.ingest_id,
            s.record_count > 0 AND NOT EXISTS (
                SELECT FROM memories m
                WHERE m.partition_no = s.partition_no AND m.source = s.source AND md5(m.path) = md5(s.path) AND m.path = s.path
                    AND m.ingest_id IS NOT NULL AND m.record_no IS NOT NULL
            ) AS "is_forgotten!"
        FROM memory_sources s WHERE s.partition_no = $1 AND s.source = $2 ORDER BY s.path
        "#,
        partition,
        source,
    )
    .fetch_all(conn)
    .await?;
    let files = rows.into_iter().map(|row| -> Result<SourceFile, DbError> {
        let digest: [u8; 32] =
            row.digest.try_into().map_err(corrupt_column("memory_sources", "digest"))?;
        Ok(SourceFile {
            path: row.path,
            digest,
            ingest: IngestId::from_uuid(row.ingest_id),
            is_forgotten: row.is_forgotten,
        })
    });
    files.collect()
}

/// What was made of a file.
#[derive(Clone, Copy, Debug)]
pub struct ReadSource<'a> {
    /// Source.
    pub source: &'a str,
    /// Path of the file.
    pub path: &'a str,
    /// Digest of the file.
    pub digest: &'a [u8; 32],
    /// Number of its records. 0: it was skipped.
    pub records: usize,
    /// Ingest that read it.
    pub ingest: IngestId,
}

/// Records what was made of a file.
#[tracing::instrument(name = "db.memory_ingests.set_source_file", skip_all)]
pub async fn set_source_file(
    conn: &mut Conn,
    partition: i64,
    read: ReadSource<'_>,
    now: OffsetDateTime,
) -> Result<(), DbError> {
    sqlx::query!(
        "
        INSERT INTO memory_sources (partition_no, source, path, digest, record_count, ingest_id, read_at)
        VALUES ($1, $2, $3, $4, $5, $6, $7)
        ON CONFLICT (partition_no, source, path) DO UPDATE
        SET digest = excluded.digest, record_count = excluded.record_count, ingest_id = excluded.ingest_id, read_at = excluded.read_at
        ",
        partition,
        read.source,
        read.path,
        read.digest.as_slice(),
        i32::try_from(read.records).unwrap_or(i32::MAX),
        read.ingest.as_uuid(),
        now,
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// Notes that files are as they were.
#[tracing::instrument(name = "db.memory_ingests.mark_unchanged_files", skip_all)]
pub async fn mark_unchanged_files(
    conn: &mut Conn,
    partition: i64,
    source: &str,
    paths: &[String],
    ingest: IngestId,
) -> Result<(), DbError> {
    sqlx::query!(
        "UPDATE memory_sources SET ingest_id = $4 WHERE partition_no = $1 AND source = $2 AND path = ANY ($3)",
        partition,
        source,
        paths,
        ingest.as_uuid(),
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// Lists files of a source that an ingest has not seen: they are gone.
#[tracing::instrument(name = "db.memory_ingests.list_gone_files", skip_all)]
pub async fn list_gone_files(
    conn: &mut Conn,
    partition: i64,
    source: &str,
    ingest: IngestId,
    limit: i64,
) -> Result<Vec<String>, DbError> {
    let paths = sqlx::query_scalar!(
        "
        SELECT path FROM memory_sources
        WHERE partition_no = $1 AND source = $2 AND ingest_id <> $3 ORDER BY path LIMIT $4
        ",
        partition,
        source,
        ingest.as_uuid(),
        limit,
    );
    Ok(paths.fetch_all(conn).await?)
}

/// Removes files of a source that are gone.
#[tracing::instrument(name = "db.memory_ingests.delete_source_files", skip_all)]
pub async fn delete_source_files(
    conn: &mut Conn,
    partition: i64,
    source: &str,
    paths: &[String],
) -> Result<(), DbError> {
    sqlx::query!(
        "DELETE FROM memory_sources WHERE partition_no = $1 AND source = $2 AND path = ANY ($3)",
        partition,
        source,
        paths,
    )
    .execute(conn)
    .await?;
    Ok(())
}
