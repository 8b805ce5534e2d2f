//! Retention of backups in their directory.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::Context;
use cynode_db::{
    Conn,
    platform::backup::{self as records, BackupRecord},
};

use super::{
    create::describe_backup,
    manifest::{BackupManifest, BackupVerification},
    parts::PartRecord,
};

/// A complete backup in a directory.
#[derive(Debug)]
pub(crate) struct StoredBackup {
    pub(crate) path: PathBuf,
    pub(crate) manifest: BackupManifest,
    pub(crate) verification: Option<BackupVerification>,
}

impl StoredBackup {
    /// Returns it as the table of backups has it. A verification without a problem counts only if an installation with one of these public
    /// keys signed it.
    pub(crate) fn to_record(&self, public_keys: &[String]) -> BackupRecord {
        let counts = |found: &&BackupVerification| {
            !found.problems.is_empty() || found.is_signed_by(self.manifest.backup_id, public_keys)
        };
        let verified = self.verification.as_ref().filter(counts);
        BackupRecord {
            verified_at: verified.map(|found| found.verified_at),
            problems: verified.map(|found| found.problems.clone()).unwrap_or_default(),
            ..describe_backup(&self.manifest, &self.path)
        }
    }

    /// Returns it without the check of signatures, for a machine that has the backup only.
    pub(crate) fn to_unchecked_record(&self) -> BackupRecord {
        let verified = self.verification.as_ref();
        BackupRecord {
            verified_at: verified.map(|found| found.verified_at),
            problems: verified.map(|found| found.problems.clone()).unwrap_or_default(),
            ..describe_backup(&self.manifest, &self.path)
        }
    }

    /// Returns whether an installation with one of these public keys signed its manifest.
    pub(crate) fn is_signed_by(&self, public_keys: &[String]) -> bool {
        self.manifest.is_signed_by(public_keys)
            && self.manifest.verify_signature(&self.path).is_ok()
    }

    /// Returns the number of parts that are not there with their size.
    pub(crate) fn missing_parts(&self) -> usize {
        let is_there = |part: &PartRecord| {
            fs::metadata(self.path.join(&part.name)).is_ok_and(|meta| meta.len() == part.bytes)
        };
        self.manifest.parts.iter().filter(|part| !is_there(part)).count()
    }
}

/// Lists the complete backups of a directory, oldest first. Other things in it are passed over.
fn list_stored_backups(directory: &Path) -> anyhow::Result<Vec<StoredBackup>> {
    let unreadable = || format!("cannot read {}", directory.display());
    let mut backups = Vec::new();
    for entry in fs::read_dir(directory).with_context(unreadable)? {
        let path = entry.with_context(unreadable)?.path();
        let Ok(manifest) = BackupManifest::load(&path) else { continue };
        let verification = BackupVerification::load(&path).ok().flatten();
        backups.push(StoredBackup { path, manifest, verification });
    }
    backups.sort_by_key(|backup| backup.manifest.taken_at);
    Ok(backups)
}

/// Returns the newest complete backup of a directory. With public keys, of the installation with these.
pub(crate) fn find_newest_backup(
    directory: &Path,
    public_keys: Option<&[String]>,
) -> anyhow::Result<Option<StoredBackup>> {
    let mut found = list_stored_backups(directory)?;
    found.retain(|backup| public_keys.is_none_or(|keys| backup.is_signed_by(keys)));
    Ok(found.pop())
}

/// Reads a complete backup.
pub(crate) fn open_stored_backup(path: &Path) -> anyhow::Result<StoredBackup> {
    let manifest = BackupManifest::load(path)?;
    let verification = BackupVerification::load(path)?;
    Ok(StoredBackup { path: path.to_owned(), manifest, verification })
}

/// Tells the installation with these public keys of its backups in a directory: those of which it does not know, and verifications that were
/// made elsewhere. Returns their number.
pub(crate) async fn import_backups(
    conn: &mut Conn,
    directory: &Path,
    public_keys: &[String],
) -> anyhow::Result<usize> {
    let directory = std::path::absolute(directory)?;
    let mut own = list_stored_backups(&directory)?;
    own.retain(|backup| backup.is_signed_by(public_keys));
    for backup in &own {
        records::record_backup(conn, &backup.to_record(public_keys)).await?;
    }
    Ok(own.len())
}

/// Removes the oldest backups of the installation with these public keys beyond `keep`. The newest that was verified without a problem always stays. Returns
/// what was removed.
pub(crate) fn prune_backups(
    directory: &Path,
    public_keys: &[String],
    keep: usize,
) -> anyhow::Result<Vec<StoredBackup>> {
    let mut own = list_stored_backups(directory)?;
    own.retain(|backup| backup.is_signed_by(public_keys));
    let verified = |backup: &StoredBackup| {
        let record = backup.to_record(public_keys);
        record.verified_at.is_some() && record.problems.is_empty()
    };
    let last_verified = own.iter().rposition(verified);
    let excess = own.len().saturating_sub(keep.max(1));
    let mut removed = Vec::new();
    for (at, backup) in own.into_iter().enumerate().take(excess) {
        if Some(at) == last_verified {
            continue;
        }
        // Without its manifest it is no backup any more, also if the rest cannot be removed.
        fs::remove_file(backup.path.join(super::manifest::MANIFEST_FILE))?;
        fs::remove_dir_all(&backup.path)
            .with_context(|| format!("cannot remove {}", backup.path.display()))?;
        removed.push(backup);
    }
    Ok(removed)
}

#[cfg(test)]
mod tests {
    use cynode_app::{AppEnvironment, platform::keys::InstallationKeys};
    use cynode_testkit_db::TestDb;
    use time::{Duration, macros::datetime};
    use uuid::Uuid;

    use super::*;

    fn store(directory: &Path, number: u8, problems: Option<Vec<String>>) -> BackupManifest {
        let keys = InstallationKeys::from_master(&[1; 32]);
        let path = directory.join(format!("backup-{number}"));
        fs::create_dir_all(&path).unwrap();
        let manifest = BackupManifest::example(
            &keys,
            Uuid::from_u128(u128::from(number)),
            datetime!(2026-11-18 0:00 UTC) + Duration::hours(i64::from(number)),
        );
        manifest.store(&path, &keys).unwrap();
        if let Some(problems) = problems {
            let (id, now) = (manifest.backup_id, AppEnvironment::from_system().now());
            let found = BackupVerification::new(id, now, problems, Some(&keys)).unwrap();
            found.store(&path).unwrap();
        }
        manifest
    }

    #[test]
    fn the_oldest_go_and_the_last_verified_one_stays() {
        let dir = tempfile::tempdir().unwrap();
        store(dir.path(), 1, Some(Vec::new()));
        store(dir.path(), 2, Some(Vec::new()));
        store(dir.path(), 3, Some(vec!["broken".to_owned()]));
        let newest = store(dir.path(), 4, None);
        fs::create_dir(dir.path().join("something else")).unwrap();
        let own = ["another".to_owned(), newest.public_key.clone()];
        let prune = |keep| -> Vec<PathBuf> {
            let removed = prune_backups(dir.path(), &own, keep).unwrap();
            removed.into_iter().map(|backup| backup.path).collect()
        };
        assert_eq!(prune(1), ["backup-1", "backup-3"].map(|name| dir.path().join(name)));
        let found = find_newest_backup(dir.path(), Some(&own)).unwrap().unwrap();
        assert_eq!(found.manifest, newest);
        let foreign = ["11".repeat(32)];
        assert!(find_newest_backup(dir.path(), Some(&foreign)).unwrap().is_none());
        assert!(dir.path().join("something else").is_dir());
        assert_eq!(prune(2), Vec::<PathBuf>::new());
    }

    #[tokio::test]
    async fn an_installation_learns_of_its_backups_and_of_verifications_that_it_signed() {
        let dir = tempfile::tempdir().unwrap();
        let (good, broken) =
            (store(dir.path(), 1, Some(Vec::new())), store(dir.path(), 2, Some(vec!["x".into()])));
        // Somebody who can write there says that the backup is good.
        let claimed = store(dir.path(), 3, None);
        let now = AppEnvironment::from_system().now();
        let unsigned = BackupVerification::new(claimed.backup_id, now, Vec::new(), None).unwrap();
        unsigned.store(&dir.path().join("backup-3")).unwrap();
        let db = TestDb::new().await;
        let mut conn = db.conn().await;
        let own = [good.public_key.clone()];
        assert_eq!(import_backups(&mut conn, dir.path(), &["11".repeat(32)]).await.unwrap(), 0);
        assert_eq!(import_backups(&mut conn, dir.path(), &own).await.unwrap(), 3);
        let listed = records::list_backups(&mut conn, 10).await.unwrap();
        let facts: Vec<_> = listed
            .iter()
            .map(|row| (row.id, row.verified_at.is_some(), row.problems.len()))
            .collect();
        let expected =
            [(claimed.backup_id, false, 0), (broken.backup_id, true, 1), (good.backup_id, true, 0)];
        assert_eq!(facts, expected);
        // A copy elsewhere that was never verified takes nothing back.
        fs::remove_file(dir.path().join("backup-1/verification.json")).unwrap();
        import_backups(&mut conn, dir.path(), &own).await.unwrap();
        assert_eq!(records::list_backups(&mut conn, 10).await.unwrap(), listed);
    }
}
