//! Restores a backup into an empty data directory. An interrupted restore goes on with the parts that it completed.

use std::{
    fs::{self, File},
    io::{self, Read, Write as _},
    os::unix::fs::{OpenOptionsExt, PermissionsExt},
    path::{Path, PathBuf},
    time::Duration,
};

use age::x25519;
use anyhow::{Context, bail, ensure};
use cynode_app::{App, AppEnvironment, LifetimePolicy, tools::audit};
use cynode_db::{
    DbOptions,
    platform::{
        backup::{self, RestoreSummary},
        schema,
    },
};
use secrecy::{ExposeSecret, SecretString};
use serde::{Deserialize, Serialize};
use time::OffsetDateTime;
use uuid::Uuid;

use super::{
    encryption::DecryptionArgs,
    manifest::{BackupIndex, BackupManifest, DATABASE_PART, INDEX_PART, WAL_PART},
    parts::{DigestWriter, PartRecord, open_part},
};
use crate::{
    cluster::{PostgresCluster, RecoveryTarget, RestoredCluster},
    installation, restate,
};

/// File in the data directory with the progress of a restore.
pub(crate) const RESTORE_PROGRESS_FILE: &str = "restore.json";

/// What is restored, and where to.
pub(crate) struct RestorePlan<'a> {
    /// The backup.
    pub(crate) backup: PathBuf,
    /// Data directory, which must be empty.
    pub(crate) data_dir: PathBuf,
    pub(crate) opening: &'a DecryptionArgs,
    /// Expected public key of the installation, as `cynode audit key` prints it. Anybody can encrypt to a recipient, and the settings of a
    /// database name commands: without it, whoever can write to the place of the backups can run programs here.
    pub(crate) public_key: Option<&'a str>,
    /// Directory of archived segments, for a later moment than that of the backup.
    pub(crate) wal_archive: Option<&'a Path>,
    /// Time at which the replay of the archive ends.
    pub(crate) until: Option<OffsetDateTime>,
}

/// Progress of a restore.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct RestoreProgress {
    backup_id: Uuid,
    /// Names of the parts whose files are restored.
    parts: Vec<String>,
}

/// A restored installation whose database runs.
pub(super) struct RestoredInstallation {
    pub(super) manifest: BackupManifest,
    pub(super) index: BackupIndex,
    pub(super) cluster: PostgresCluster,
    files: RestoredCluster,
    /// Lock of the data directory.
    lock: File,
}

/// Restores a backup and begins the epoch of the restored installation. The installation is stopped when this returns.
pub(crate) async fn restore_backup(
    plan: &RestorePlan<'_>,
) -> anyhow::Result<(BackupManifest, Option<RestoreSummary>)> {
    let restored = recover_installation(plan).await?;
    let summary = match reconcile_audit_files(&restored, plan).await {
        Ok(()) => begin_epoch(&restored, plan).await,
        Err(error) => Err(error),
    };
    let manifest = restored.manifest.clone();
    // Until the progress is removed, nobody else may begin here.
    let _lock = restored.stop().await?;
    let summary = summary?;
    fs::remove_file(plan.data_dir.join(RESTORE_PROGRESS_FILE))?;
    Ok((manifest, summary))
}

/// Restores files and database, and replays the database to its moment.
pub(super) async fn recover_installation(
    plan: &RestorePlan<'_>,
) -> anyhow::Result<RestoredInstallation> {
    let manifest = BackupManifest::load(&plan.backup)?;
    manifest.verify_signature(&plan.backup)?;
    manifest.ensure_origin(plan.public_key)?;
    let key = plan.opening.open_key(&plan.backup)?;
    let (mut progress, lock) = open_directory(&plan.data_dir, &manifest)?;
    let index = read_index(plan, &manifest, &key)?;
    restore_files(plan, &manifest, &index, &key, &mut progress)?;
    let files = RestoredCluster::prepare_in(&plan.data_dir)?;
    unpack_part(&plan.backup, manifest.part(DATABASE_PART)?, &key, files.data_path())?;
    unpack_part(&plan.backup, manifest.part(WAL_PART)?, &key, files.wal_path())?;
    let until = plan.until.map(format_recovery_time);
    let target = match (&until, plan.wal_archive) {
        (Some(time), Some(_)) => RecoveryTarget::Time(time),
        (None, Some(_)) => RecoveryTarget::Latest,
        (None, None) => RecoveryTarget::Point(&manifest.restore_point),
        (Some(_), None) => bail!("--until needs --wal-archive: a backup alone has one moment"),
    };
    let recovery = files.request_recovery(&target, plan.wal_archive)?;
    let cluster = PostgresCluster::start_restored(&plan.data_dir, recovery).await?;
    let restored = RestoredInstallation { manifest, index, cluster, files, lock };
    if let Err(error) = restored.wait_for_recovery().await {
        restored.stop().await?;
        return Err(error);
    }
    Ok(restored)
}

impl RestoredInstallation {
    /// Returns the options of a connection as the owner.
    pub(super) fn owner_options(&self) -> DbOptions {
        let url: SecretString = self.cluster.connection_url();
        DbOptions {
            url: url.expose_secret().to_owned(),
            max_connections: 4,
            acquire_timeout: Duration::from_secs(10),
            statement_timeout: Duration::ZERO,
        }
    }

    /// Waits until the replay has ended and the database takes writes.
    async fn wait_for_recovery(&self) -> anyhow::Result<()> {
        let pool = cynode_db::connect_pool(&self.owner_options())?;
        let mut turn = tokio::time::interval(Duration::from_millis(100));
        loop {
            turn.tick().await;
            let mut conn = cynode_db::acquire_connection(&pool).await.context(
                "the database stopped while it replayed its log: postgres/server.log says why",
            )?;
            if !backup::is_in_recovery(&mut conn).await? {
                return Ok(());
            }
        }
    }

    /// Stops the database, and removes the segments that it replayed. Returns the lock of the data directory.
    pub(super) async fn stop(self) -> anyhow::Result<File> {
        self.cluster.stop_server().await?;
        self.files.remove_segments()?;
        Ok(self.lock)
    }
}

/// Brings the audit files, which are of the moment of the backup, up to a database of a later one.
async fn reconcile_audit_files(
    restored: &RestoredInstallation,
    plan: &RestorePlan<'_>,
) -> anyhow::Result<()> {
    if plan.wal_archive.is_none() {
        return Ok(());
    }
    let pool = cynode_db::connect_pool(&restored.owner_options())?;
    let mut conn = cynode_db::acquire_connection(&pool).await?;
    schema::migrate_schema(&mut conn, AppEnvironment::from_system().now()).await?;
    drop(conn);
    let app = App::new(pool, AppEnvironment::from_system(), LifetimePolicy::default());
    let directory = plan.data_dir.join("storage/audit");
    let done = audit::reconcile_segments(&app, &directory)
        .await
        .context("the audit log of the database and that of the backup do not go together")?;
    tracing::info!(
        event = "restore.audit_reconciled",
        records = done.records,
        starts = done.starts,
        damaged = done.damaged,
        "brought the audit files up to the database"
    );
    Ok(())
}

/// Brings the schema up to date and begins the new epoch.
async fn begin_epoch(
    restored: &RestoredInstallation,
    plan: &RestorePlan<'_>,
) -> anyhow::Result<Option<RestoreSummary>> {
    let pool = cynode_db::connect_pool(&restored.owner_options())?;
    let mut conn = cynode_db::acquire_connection(&pool).await?;
    schema::migrate_schema(&mut conn, AppEnvironment::from_system().now()).await?;
    drop(conn);
    let mut tx = cynode_db::begin_transaction(&pool).await?;
    let manifest = &restored.manifest;
    let taken_at = match (plan.until, plan.wal_archive) {
        (Some(until), _) => until,
        (None, Some(_)) => AppEnvironment::from_system().now(),
        (None, None) => manifest.taken_at,
    };
    let now = AppEnvironment::from_system().now();
    let summary = backup::begin_restored_epoch(&mut tx, manifest.backup_id, taken_at, now).await?;
    tx.commit().await.context("the new epoch could not be recorded")?;
    pool.close().await;
    Ok(summary)
}

/// Opens the data directory: an empty one, or that of an interrupted restore of the same backup. It is locked: two restores at once would
/// write over each other.
fn open_directory(
    data_dir: &Path,
    manifest: &BackupManifest,
) -> anyhow::Result<(RestoreProgress, File)> {
    let is_new = !data_dir.exists();
    fs::create_dir_all(data_dir).with_context(|| format!("cannot make {}", data_dir.display()))?;
    let path = data_dir.join(RESTORE_PROGRESS_FILE);
    // Nothing is written into a directory of somebody else, not even the lock.
    if !path.exists() {
        ensure_unused(data_dir)?;
    }
    let lock = installation::lock_directory(data_dir)?;
    match fs::read_to_string(&path) {
        Ok(text) => {
            let progress: RestoreProgress = serde_json::from_str(&text)
                .with_context(|| format!("{} cannot be read", path.display()))?;
            ensure!(
                progress.backup_id == manifest.backup_id,
                "another backup was being restored into {}: empty it, or go on with that one",
                data_dir.display()
            );
            Ok((progress, lock))
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            // Another process may have used it while this one waited.
            ensure_unused(data_dir)?;
            // A directory that a person made keeps its permissions.
            if is_new {
                let mode = if rustix::process::geteuid().is_root() { 0o711 } else { 0o700 };
                fs::set_permissions(data_dir, fs::Permissions::from_mode(mode))?;
            }
            let progress = RestoreProgress { backup_id: manifest.backup_id, parts: Vec::new() };
            progress.save(data_dir)?;
            Ok((progress, lock))
        }
        Err(error) => Err(error).with_context(|| format!("cannot read {}", path.display())),
    }
}

/// Refuses a directory that has anything in it but the lock.
fn ensure_unused(data_dir: &Path) -> anyhow::Result<()> {
    for entry in fs::read_dir(data_dir)? {
        ensure!(
            entry?.file_name() == installation::LOCK_FILE,
            "{} is not empty: a backup is restored into an empty directory only",
            data_dir.display()
        );
    }
    Ok(())
}

impl RestoreProgress {
    fn save(&self, data_dir: &Path) -> anyhow::Result<()> {
        restate::write_private_file(
            &data_dir.join(RESTORE_PROGRESS_FILE),
            &serde_json::to_string(self)?,
        )
    }
}

fn read_index(
    plan: &RestorePlan<'_>,
    manifest: &BackupManifest,
    key: &x25519::Identity,
) -> anyhow::Result<BackupIndex> {
    let reader = open_part(&plan.backup, manifest.part(INDEX_PART)?, key)?;
    let index: BackupIndex = serde_json::from_reader(io::BufReader::new(reader))
        .context("the index of the backup cannot be read")?;
    index.ensure_paths_inside()?;
    Ok(index)
}

fn restore_files(
    plan: &RestorePlan<'_>,
    manifest: &BackupManifest,
    index: &BackupIndex,
    key: &x25519::Identity,
    progress: &mut RestoreProgress,
) -> anyhow::Result<()> {
    for (directory, mode) in &index.directories {
        let path = plan.data_dir.join(directory);
        fs::create_dir_all(&path).with_context(|| format!("cannot make {}", path.display()))?;
        fs::set_permissions(&path, fs::Permissions::from_mode(mode & 0o777))?;
    }
    for part in manifest.parts.iter().filter(|part| part.name.starts_with("files-")) {
        if progress.parts.contains(&part.name) {
            continue;
        }
        let wanted = index.files.values().filter(|file| file.part == part.name).count();
        let restored = if wanted == 0 { 0 } else { restore_part(plan, part, index, key)? };
        ensure!(
            restored == wanted,
            "{} has {restored} of the {wanted} files that the index names",
            part.name
        );
        progress.parts.push(part.name.clone());
        progress.save(&plan.data_dir)?;
    }
    let parts: Vec<&str> = manifest.parts.iter().map(|part| part.name.as_str()).collect();
    let missing = index.files.values().find(|file| !parts.contains(&file.part.as_str()));
    ensure!(missing.is_none(), "the index names a part that the manifest does not have");
    Ok(())
}

/// Restores the files of one part that the index names. Returns their number.
fn restore_part(
    plan: &RestorePlan<'_>,
    part: &PartRecord,
    index: &BackupIndex,
    key: &x25519::Identity,
) -> anyhow::Result<usize> {
    let mut archive = tar::Archive::new(open_part(&plan.backup, part, key)?);
    let mut restored = 0;
    for entry in archive.entries()? {
        let mut entry = entry.with_context(|| format!("{} is damaged", part.name))?;
        let path = String::from_utf8(entry.path_bytes().into_owned())
            .with_context(|| format!("{} names a file whose name is no text", part.name))?;
        // A file that changed later is in a later part, and one that was removed is nowhere.
        let Some(file) = index.files.get(&path).filter(|file| file.part == part.name) else {
            continue;
        };
        let target = plan.data_dir.join(&path);
        let parent = target.parent().context("a file has a directory")?;
        fs::create_dir_all(parent)?;
        let written = write_file(&target, file.mode, &mut entry)
            .with_context(|| format!("cannot restore {}", target.display()))?;
        ensure!(
            written == (file.bytes, file.sha256.clone()),
            "{path} in {} is not what the index names",
            part.name
        );
        restored += 1;
    }
    Ok(restored)
}

/// Writes a file that is on the disk when this returns. Gives its size and digest.
fn write_file(path: &Path, mode: u32, content: &mut impl Read) -> io::Result<(u64, String)> {
    // An interrupted restore may have left it, perhaps without the right to write it again.
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    let mut writer = DigestWriter::new(io::BufWriter::new(file));
    io::copy(content, &mut writer)?;
    writer.flush()?;
    let (buffer, bytes, sha256) = writer.finish();
    let file: File = buffer.into_inner().map_err(io::IntoInnerError::into_error)?;
    file.set_permissions(fs::Permissions::from_mode(mode & 0o777))?;
    file.sync_all()?;
    Ok((bytes, sha256))
}

/// Unpacks an archive of PostgreSQL into a directory. Only files and directories are taken, and none outside of it.
fn unpack_part(
    backup: &Path,
    part: &PartRecord,
    key: &x25519::Identity,
    directory: &Path,
) -> anyhow::Result<()> {
    let mut archive = tar::Archive::new(open_part(backup, part, key)?);
    archive.set_preserve_permissions(true);
    for entry in archive.entries()? {
        let mut entry = entry.with_context(|| format!("{} is damaged", part.name))?;
        let kind = entry.header().entry_type();
        ensure!(
            kind.is_file() || kind.is_dir(),
            "{} has an entry that is neither a file nor a directory",
            part.name
        );
        let inside = entry.unpack_in(directory).with_context(|| {
            format!("{} cannot be unpacked into {}", part.name, directory.display())
        })?;
        ensure!(inside, "{} names a path outside of the database", part.name);
    }
    Ok(())
}

/// Formats a time as PostgreSQL reads it.
fn format_recovery_time(at: OffsetDateTime) -> String {
    let at = at.to_offset(time::UtcOffset::UTC);
    let (date, time) = (at.date(), at.time());
    format!(
        "{:04}-{:02}-{:02} {:02}:{:02}:{:02}.{:06}+00",
        date.year(),
        u8::from(date.month()),
        date.day(),
        time.hour(),
        time.minute(),
        time.second(),
        time.microsecond()
    )
}

#[cfg(test)]
mod tests {
    use time::macros::datetime;

    use super::*;

    #[test]
    fn one_restore_at_a_time_uses_a_directory_and_none_one_of_somebody_else() {
        let dir = tempfile::tempdir().unwrap();
        let keys = cynode_app::platform::keys::InstallationKeys::from_master(&[1; 32]);
        let taken_at = datetime!(2026-11-18 12:00 UTC);
        let manifest = |number| BackupManifest::example(&keys, Uuid::from_u128(number), taken_at);
        let (_, lock) = open_directory(dir.path(), &manifest(1)).unwrap();
        let refused = open_directory(dir.path(), &manifest(1)).unwrap_err().to_string();
        assert!(refused.starts_with("another `cynode up` or `cynode restore` uses"), "{refused}");
        drop(lock);
        let (progress, lock) = open_directory(dir.path(), &manifest(1)).unwrap();
        assert_eq!(progress.backup_id, Uuid::from_u128(1));
        drop(lock);
        let refused = open_directory(dir.path(), &manifest(2)).unwrap_err().to_string();
        assert!(refused.starts_with("another backup was being restored"), "{refused}");

        let foreign = tempfile::tempdir().unwrap();
        fs::write(foreign.path().join("letter"), "").unwrap();
        let refused = open_directory(foreign.path(), &manifest(1)).unwrap_err().to_string();
        assert!(refused.contains("is not empty"), "{refused}");
        assert_eq!(fs::read_dir(foreign.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_time_is_written_as_postgresql_reads_it() {
        let at = datetime!(2026-11-18 10:00:01.5 +1);
        assert_eq!(format_recovery_time(at), "2026-11-18 09:00:01.500000+00");
    }
}
