//! Queries of backups and restores: the fence that gives database and files one moment, what a verification compares, and the epochs of
//! the installation.

use time::OffsetDateTime;
use uuid::Uuid;

use crate::{Conn, DbError, Pool, PooledConn, acquire_connection};

/// Why a notification is not sent by itself after a restore.
pub(crate) const RESTORED_REASON: &str = "the installation was restored from a backup: this may have been delivered before; redeliver it if it was not";

/// Number by which a restore raises fencing tokens and generations: no writer of the lost installation has as high a one. It follows from
/// the time of the restore, in milliseconds, so that a second restore of the same backup is also beyond what the first one handed out.
fn fencing_step(now: OffsetDateTime) -> i64 {
    i64::try_from(now.unix_timestamp_nanos() / 1_000_000).unwrap_or(i64::MAX / 4).max(1)
}

/// How long the fence waits for all tables together, and after which time it looks for a deadlock: before any request does, so that the backup
/// gives way and never a request. A vacuum in its way is cancelled at that time and begins again later.
const FENCE_LOCK_TIMEOUT_MS: u32 = 300;
const FENCE_DEADLOCK_TIMEOUT_MS: u32 = 100;

/// Session lock of the one backup that may run. Maintenance that removes files takes it shared.
pub struct BackupLock {
    /// The lock ends with the connection.
    _conn: PooledConn,
}

/// Permission to remove files that a backup would need. It ends when it is dropped.
pub struct RemovalPermit {
    /// The lock ends with the connection.
    _conn: PooledConn,
}

/// Takes the lock of backups. Returns `None` if another backup runs, or maintenance removes files at the moment.
#[tracing::instrument(name = "db.backup.lock_backups", skip_all)]
pub async fn lock_backups(pool: &Pool) -> Result<Option<BackupLock>, DbError> {
    let mut conn = acquire_connection(pool).await?;
    // A lock of a session outlives a statement: the connection must not go back to the pool with it.
    conn.close_on_drop();
    let locked = sqlx::query_scalar!(
        r#"SELECT pg_try_advisory_lock(hashtext('cynode.backup')) AS "locked!""#
    )
    .fetch_one(&mut *conn)
    .await?;
    Ok(locked.then_some(BackupLock { _conn: conn }))
}

/// Write-ahead log that the database keeps for a backup. It is given up when this is dropped.
pub struct WalReservation {
    /// The replication slot ends with the connection.
    _conn: PooledConn,
}

/// Keeps the write-ahead log from the last checkpoint on, by a temporary replication slot. Without it the checkpoint that a base backup
/// begins with can remove a segment that a slow receiver has not read yet.
#[tracing::instrument(name = "db.backup.reserve_wal", skip_all)]
pub async fn reserve_wal(pool: &Pool) -> Result<WalReservation, DbError> {
    let mut conn = acquire_connection(pool).await?;
    conn.close_on_drop();
    sqlx::raw_sql(
        "SELECT pg_create_physical_replication_slot('cynode_backup_' || pg_backend_pid(), true, true)",
    )
    .execute(&mut *conn)
    .await?;
    Ok(WalReservation { _conn: conn })
}

/// Takes the permission to remove files. Returns `None` while a backup runs.
#[tracing::instrument(name = "db.backup.permit_removal", skip_all)]
pub async fn permit_removal(pool: &Pool) -> Result<Option<RemovalPermit>, DbError> {
    let mut conn = acquire_connection(pool).await?;
    conn.close_on_drop();
    let permitted = sqlx::query_scalar!(
        r#"SELECT pg_try_advisory_lock_shared(hashtext('cynode.backup')) AS "permitted!""#
    )
    .fetch_one(&mut *conn)
    .await?;
    Ok(permitted.then_some(RemovalPermit { _conn: conn }))
}

/// Begins the fence in an open transaction: until its end nobody writes to the tables whose rows name commits and files. Returns `false`
/// if a writer was in the way; the transaction must then be rolled back and begun again.
#[tracing::instrument(name = "db.backup.raise_fence", skip_all)]
pub async fn raise_fence(conn: &mut Conn) -> Result<bool, DbError> {
    sqlx::query!(
        // A timeout of locks would hold for each table.
        r#"SELECT set_config('statement_timeout', $1, true) AS "statement!", set_config('deadlock_timeout', $2, true) AS "deadlock!""#,
        FENCE_LOCK_TIMEOUT_MS.to_string(),
        FENCE_DEADLOCK_TIMEOUT_MS.to_string(),
    )
    .fetch_one(&mut *conn)
    .await?;
    let locked = sqlx::raw_sql(
        // Keys are among them: the files of the master key are read within the fence, and must open what the database has.
        "LOCK TABLE jobs, tasks, artifacts, job_blobs, repositories, pull_requests, deliveries, project_remotes, audit_chains, \
         audit_records, audit_checkpoints, installation_keys IN SHARE MODE",
    )
    .execute(&mut *conn)
    .await;
    match locked {
        Ok(_) => {}
        Err(sqlx::Error::Database(error))
            if matches!(error.code().as_deref(), Some("57014" | "40P01")) =>
        {
            return Ok(false);
        }
        Err(error) => return Err(error.into()),
    }
    sqlx::query!(r#"SELECT set_config('statement_timeout', '0', true) AS "none!""#)
        .fetch_one(conn)
        .await?;
    Ok(true)
}

/// Position in the write-ahead log that a backup restores.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RestorePoint {
    /// Position of the named restore point.
    pub position: String,
    /// Name of the segment file that has it.
    pub segment: String,
    /// Time of the database.
    pub taken_at: OffsetDateTime,
}

/// Writes a named restore point into the write-ahead log.
#[tracing::instrument(name = "db.backup.create_restore_point", skip_all)]
pub async fn create_restore_point(conn: &mut Conn, name: &str) -> Result<RestorePoint, DbError> {
    let point = sqlx::query_as!(
        RestorePoint,
        r#"
        SELECT lsn::text AS "position!", pg_walfile_name(lsn) AS "segment!", clock_timestamp() AS "taken_at!"
        FROM pg_create_restore_point($1) AS lsn
        "#,
        name,
    );
    Ok(point.fetch_one(conn).await?)
}

/// Ends the current segment of the write-ahead log, so that it is archived and streamed whole.
#[tracing::instrument(name = "db.backup.switch_segment", skip_all)]
pub async fn switch_segment(conn: &mut Conn) -> Result<(), DbError> {
    sqlx::query!(r#"SELECT pg_switch_wal()::text AS "position!""#).fetch_one(conn).await?;
    Ok(())
}

/// Whether the database still replays the write-ahead log.
#[tracing::instrument(name = "db.backup.is_in_recovery", skip_all)]
pub async fn is_in_recovery(conn: &mut Conn) -> Result<bool, DbError> {
    let recovering = sqlx::query_scalar!(r#"SELECT pg_is_in_recovery() AS "recovering!""#);
    Ok(recovering.fetch_one(conn).await?)
}

/// What a verification compares with the restored database. All of it is fenced: at the restore point there is exactly this.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FencedCounts {
    /// Number of tasks.
    pub tasks: i64,
    /// Number of jobs.
    pub jobs: i64,
    /// Number of artifacts.
    pub artifacts: i64,
    /// Number of repositories.
    pub repositories: i64,
    /// Number of pull requests.
    pub pull_requests: i64,
    /// Number of deliveries.
    pub deliveries: i64,
    /// Number of audit chains.
    pub audit_chains: i64,
    /// Number of audit records.
    pub audit_records: i64,
    /// Link of the newest audit chain, as hexadecimal digits; empty before the first.
    pub audit_head: String,
}

/// Counts what is fenced.
#[tracing::instrument(name = "db.backup.count_fenced_rows", skip_all)]
pub async fn count_fenced_rows(conn: &mut Conn) -> Result<FencedCounts, DbError> {
    let counts = sqlx::query_as!(
        FencedCounts,
        r#"
        SELECT (SELECT count(*) FROM tasks) AS "tasks!", (SELECT count(*) FROM jobs) AS "jobs!",
            (SELECT count(*) FROM artifacts) AS "artifacts!", (SELECT count(*) FROM repositories) AS "repositories!",
            (SELECT count(*) FROM pull_requests) AS "pull_requests!", (SELECT count(*) FROM deliveries) AS "deliveries!",
            (SELECT count(*) FROM audit_chains) AS "audit_chains!", (SELECT count(*) FROM audit_records) AS "audit_records!",
            coalesce((SELECT encode(c.signature, 'hex') FROM audit_chains c ORDER BY c.number DESC LIMIT 1), '') AS "audit_head!"
        "#
    );
    Ok(counts.fetch_one(conn).await?)
}

/// Commits that rows of a project name and that its repository must have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProjectCommits {
    /// Project.
    pub project: Uuid,
    /// Commits of its default branch and of its pull requests, and those of jobs, deliveries and continued tasks whose files have not expired.
    pub commits: Vec<String>,
}

/// Lists the commits that repositories must have.
#[tracing::instrument(name = "db.backup.list_project_commits", skip_all)]
pub async fn list_project_commits(conn: &mut Conn) -> Result<Vec<ProjectCommits>, DbError> {
    let projects = sqlx::query_as!(
        ProjectCommits,
        r#"
        SELECT r.project_id AS project, array(
            SELECT r.head
            UNION SELECT p.head_commit FROM pull_requests p WHERE p.project_id = r.project_id AND p.head_commit IS NOT NULL
            UNION SELECT p.base_commit FROM pull_requests p WHERE p.project_id = r.project_id
            UNION SELECT named.commit
            FROM tasks t CROSS JOIN LATERAL (
                SELECT j.result ->> 'commit' FROM jobs j WHERE j.task_id = t.task_id AND j.requires_node
                UNION ALL SELECT unnest(j.base_commit || j.merge_commits) FROM jobs j
                    WHERE j.task_id = t.task_id AND j.requires_node AND j.state IN ('queued', 'running')
                UNION ALL SELECT unnest(ARRAY[d.source, d.parent, d.commit_id]) FROM deliveries d WHERE d.task_id = t.task_id
                UNION ALL SELECT unnest(ARRAY[c.start_commit, c.base_commit]) FROM task_continuations c WHERE c.task_id = t.task_id
            ) AS named (commit)
            WHERE t.project_id = r.project_id AND t.files_expired_at IS NULL AND named.commit IS NOT NULL
        ) AS "commits!"
        FROM repositories r ORDER BY r.project_id
        "#
    );
    Ok(projects.fetch_all(conn).await?)
}

/// Lists the digests of artifacts and of files of jobs that succeeded: their bytes are stored. A file of another job may be on its way.
#[tracing::instrument(name = "db.backup.list_stored_digests", skip_all)]
pub async fn list_stored_digests(conn: &mut Conn) -> Result<Vec<Vec<u8>>, DbError> {
    let digests = sqlx::query_scalar!(
        r#"
        SELECT digest AS "digest!" FROM artifacts
        UNION SELECT b.digest FROM job_blobs b JOIN jobs j USING (job_id) WHERE j.state = 'succeeded'
        ORDER BY 1
        "#
    );
    Ok(digests.fetch_all(conn).await?)
}

/// The present epoch of the installation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InstallationEpoch {
    /// Number of the epoch: 1 for an installation that was never restored.
    pub epoch: i64,
    /// Time at which it began.
    pub began_at: OffsetDateTime,
    /// Time of the backup from which it was restored.
    pub backup_taken_at: Option<OffsetDateTime>,
}

/// Reads the present epoch.
#[tracing::instrument(name = "db.backup.get_epoch", skip_all)]
pub async fn get_epoch(conn: &mut Conn) -> Result<InstallationEpoch, DbError> {
    let epoch = sqlx::query_as!(
        InstallationEpoch,
        "SELECT epoch, began_at, backup_taken_at FROM installation_epochs ORDER BY epoch DESC LIMIT 1"
    );
    Ok(epoch.fetch_one(conn).await?)
}

/// What a restore put aside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RestoreSummary {
    /// Number of the new epoch.
    pub epoch: i64,
    /// Number of notifications that may have been delivered before, and are not sent by themselves.
    pub held_notifications: u64,
    /// Number of sessions that were ended.
    pub ended_sessions: u64,
}

/// Returns the number of other connections of our programs to this database: those of servers that run.
#[tracing::instrument(name = "db.backup.count_program_connections", skip_all)]
pub async fn count_program_connections(conn: &mut Conn) -> Result<i64, DbError> {
    let count = sqlx::query_scalar!(
        r#"
        SELECT count(*) AS "count!" FROM pg_stat_activity
        WHERE datname = current_database() AND application_name = $1 AND pid <> pg_backend_pid()
        "#,
        crate::platform::pool::APPLICATION_NAME,
    );
    Ok(count.fetch_one(conn).await?)
}

/// Begins the epoch of a restored installation, in one transaction of the caller. Doing it again for the same backup changes nothing.
///
/// Leases end, running jobs are lost and fencing tokens rise, so that nodes, runners and managers of the lost installation are refused and
/// the work goes on. Notifications that were pending may have been delivered after the backup: they are held back for a person. Sessions end, since
/// those that were ended after the backup would be open again.
#[tracing::instrument(name = "db.backup.begin_restored_epoch", skip_all)]
pub async fn begin_restored_epoch(
    conn: &mut Conn,
    backup: Uuid,
    taken_at: OffsetDateTime,
    now: OffsetDateTime,
) -> Result<Option<RestoreSummary>, DbError> {
    let epoch = sqlx::query_scalar!(
        "
        INSERT INTO installation_epochs (epoch, reason, began_at, backup_id, backup_taken_at)
        SELECT max(e.epoch) + 1, 'restored', clock_timestamp(), $1::uuid, $2::timestamptz
        FROM installation_epochs e
        HAVING NOT coalesce(bool_or(e.backup_id = $1::uuid), false)
        RETURNING epoch
        ",
        backup,
        taken_at,
    )
    .fetch_optional(&mut *conn)
    .await?;
    let Some(epoch) = epoch else { return Ok(None) };
    fence_off_writers(conn, fencing_step(now)).await?;
    let held_notifications = sqlx::query!(
        "
        UPDATE notifications
        SET state = 'failed', due_at = NULL, claim_id = NULL, ended_at = clock_timestamp(),
            reason = $1
        WHERE state = 'pending'
        ",
        RESTORED_REASON,
    )
    .execute(&mut *conn)
    .await?
    .rows_affected();
    let ended_sessions = sqlx::query!(
        "UPDATE user_sessions SET ended_at = now() WHERE ended_at IS NULL AND expires_at > now()"
    )
    .execute(&mut *conn)
    .await?
    .rows_affected();
    // Links and codes that work once may have been used by the lost installation.
    sqlx::query!("DELETE FROM break_glass_tokens").execute(&mut *conn).await?;
    sqlx::query!("DELETE FROM device_authorizations").execute(&mut *conn).await?;
    sqlx::query!("DELETE FROM node_join_tokens WHERE node_id IS NULL").execute(&mut *conn).await?;
    Ok(Some(RestoreSummary { epoch, held_notifications, ended_sessions }))
}

/// Ends every lease and every running job, and raises fencing tokens and generations beyond those of the lost installation.
async fn fence_off_writers(conn: &mut Conn, step: i64) -> Result<(), DbError> {
    sqlx::query!(
        "
        UPDATE workflow_leases
        SET fencing_token = fencing_token + $1, expires_at = least(expires_at, clock_timestamp())
        ",
        step,
    )
    .execute(&mut *conn)
    .await?;
    // Running jobs are lost at once: a reconciler that finds a whole fleet silent would halt and wait for a person.
    sqlx::query!(
        "
        WITH lost AS (
            UPDATE jobs SET state = 'lost', ended_at = clock_timestamp(), fencing_token = fencing_token + $1
            WHERE state = 'running' RETURNING task_id
        )
        UPDATE workflow_runs
        SET wake_count = wake_count + 1, due_at = clock_timestamp()
        WHERE task_id IN (SELECT task_id FROM lost) AND ended_at IS NULL
        ",
        step,
    )
    .execute(&mut *conn)
    .await?;
    sqlx::query!(
        "UPDATE jobs SET fencing_token = fencing_token + $1 WHERE state = 'queued'",
        step,
    )
    .execute(&mut *conn)
    .await?;
    sqlx::query!(
        "
        UPDATE handoffs
        SET fencing_token = fencing_token + $1,
            lease_expires_at = CASE state WHEN 'claimed' THEN least(lease_expires_at, clock_timestamp()) ELSE lease_expires_at END
        WHERE state IN ('queued', 'claimed', 'delegated')
        ",
        step,
    )
    .execute(&mut *conn)
    .await?;
    sqlx::query!("UPDATE nodes SET generation = generation + $1 WHERE generation > 0", step)
        .execute(&mut *conn)
        .await?;
    sqlx::query!("DELETE FROM node_tokens").execute(&mut *conn).await?;
    sqlx::query!(
        "UPDATE project_remotes SET lease_id = NULL, lease_expires_at = NULL, due_at = clock_timestamp()"
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// A completed backup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackupRecord {
    /// Unique id of the backup.
    pub id: Uuid,
    /// Time of its restore point.
    pub taken_at: OffsetDateTime,
    /// Time at which its last file was written.
    pub completed_at: OffsetDateTime,
    /// Path of the backup.
    pub location: String,
    /// Version of the program that made it.
    pub program_version: String,
    /// Size of its files.
    pub bytes: i64,
    /// Time of its last verification.
    pub verified_at: Option<OffsetDateTime>,
    /// What the verification found.
    pub problems: Vec<String>,
    /// Age recipients that can open it; none for a backup with a passphrase.
    pub recipients: Vec<String>,
}

/// Records a completed backup, where it is, and its verification unless a later one is recorded.
#[tracing::instrument(name = "db.backup.record_backup", skip_all)]
pub async fn record_backup(conn: &mut Conn, backup: &BackupRecord) -> Result<(), DbError> {
    sqlx::query!(
        "
        INSERT INTO backups (backup_id, taken_at, completed_at, location, program_version, bytes, verified_at, problems, recipients)
        VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)
        ON CONFLICT (backup_id) DO UPDATE
        SET location = excluded.location,
            verified_at = CASE WHEN backups.verified_at IS NULL OR excluded.verified_at >= backups.verified_at
                THEN excluded.verified_at ELSE backups.verified_at END,
            problems = CASE WHEN backups.verified_at IS NULL OR excluded.verified_at >= backups.verified_at
                THEN excluded.problems ELSE backups.problems END
        ",
        backup.id,
        backup.taken_at,
        backup.completed_at,
        backup.location,
        backup.program_version,
        backup.bytes,
        backup.verified_at,
        &backup.problems[..],
        &backup.recipients[..],
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// Removes the records of backups that were deleted.
#[tracing::instrument(name = "db.backup.delete_backup_records", skip_all)]
pub async fn delete_backup_records(conn: &mut Conn, ids: &[Uuid]) -> Result<(), DbError> {
    sqlx::query!("DELETE FROM backups WHERE backup_id = ANY ($1)", ids).execute(conn).await?;
    Ok(())
}

/// How the archiver of the write-ahead log fares.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArchiverStatus {
    /// Time at which the last segment was archived.
    pub archived_at: Option<OffsetDateTime>,
    /// Time of the last failure.
    pub failed_at: Option<OffsetDateTime>,
    /// Name of the segment that could not be archived.
    pub failed_segment: Option<String>,
}

impl ArchiverStatus {
    /// Returns whether the last attempt failed: segments pile up, and a restore ends before the first of them.
    pub fn is_failing(&self) -> bool {
        self.failed_at.is_some_and(|failed| self.archived_at.is_none_or(|last| last <= failed))
    }
}

/// Asks the archiver of the write-ahead log; `None` if there is none.
#[tracing::instrument(name = "db.backup.get_archiver_status", skip_all)]
pub async fn get_archiver_status(conn: &mut Conn) -> Result<Option<ArchiverStatus>, DbError> {
    let status = sqlx::query_as!(
        ArchiverStatus,
        "
        SELECT last_archived_time AS archived_at, last_failed_time AS failed_at, last_failed_wal AS failed_segment
        FROM pg_stat_archiver WHERE current_setting('archive_mode') <> 'off'
        "
    );
    Ok(status.fetch_optional(conn).await?)
}

/// The newest backups, newest first.
#[tracing::instrument(name = "db.backup.list_backups", skip_all)]
pub async fn list_backups(conn: &mut Conn, limit: i64) -> Result<Vec<BackupRecord>, DbError> {
    let backups = sqlx::query_as!(
        BackupRecord,
        r#"
        SELECT backup_id AS id, taken_at, completed_at, location, program_version, bytes, verified_at, problems, recipients
        FROM backups ORDER BY taken_at DESC, backup_id LIMIT $1
        "#,
        limit,
    );
    Ok(backups.fetch_all(conn).await?)
}
