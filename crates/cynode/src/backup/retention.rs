//! Retention of backups in their directory.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::Context;
use cynode_db::platform::backup::BackupRecord;

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
    /// Returns it as the table of backups has it.
    pub(crate) fn to_record(&self) -> BackupRecord {
        let verified = self.verification.as_ref();
        BackupRecord {
            verified_at: verified.map(|found| found.verified_at),
            problems: verified.map(|found| found.problems.clone()).unwrap_or_default(),
            ..describe_backup(&self.manifest, &self.path)
        }
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

/// Returns the newest complete backup of a directory.
pub(crate) fn find_newest_backup(directory: &Path) -> anyhow::Result<Option<StoredBackup>> {
    Ok(list_stored_backups(directory)?.pop())
}

/// Removes the oldest backups of the installation with these public keys beyond `keep`. The newest that was verified without a problem always stays. Returns
/// what was removed.
pub(crate) fn prune_backups(
    directory: &Path,
    public_keys: &[String],
    keep: usize,
) -> anyhow::Result<Vec<PathBuf>> {
    let mut own = list_stored_backups(directory)?;
    own.retain(|backup| backup.manifest.is_signed_by(public_keys));
    let verified = |backup: &StoredBackup| {
        backup.verification.as_ref().is_some_and(|found| found.problems.is_empty())
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
        removed.push(backup.path);
    }
    Ok(removed)
}

#[cfg(test)]
mod tests {
    use cynode_app::{AppEnvironment, platform::keys::InstallationKeys};
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
            let verified_at = AppEnvironment::from_system().now();
            let program_version = "0.1.0".to_owned();
            BackupVerification { verified_at, program_version, problems }.store(&path).unwrap();
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
        let removed = prune_backups(dir.path(), &own, 1).unwrap();
        let expected = ["backup-1", "backup-3"].map(|name| dir.path().join(name));
        assert_eq!(removed, expected);
        assert_eq!(find_newest_backup(dir.path()).unwrap().unwrap().manifest, newest);
        assert!(dir.path().join("something else").is_dir());
        assert_eq!(prune_backups(dir.path(), &own, 2).unwrap(), Vec::<PathBuf>::new());
    }
}
