//! Backups of an installation of `cynode up`, and their restore.
//!
//! A backup is a directory of encrypted parts with a manifest. The database is copied by PostgreSQL's own base backup, because positions
//! of events belong to its cluster, and is restored to a named point of the write-ahead log. Around that point a fence keeps writers away
//! from the rows that name commits and files while the small files that change are read: database, repositories and audit records are
//! of one moment. Files that never change are copied before and after, without the fence.
//!
//! The engine is not part of it: it holds nothing that the database does not know (`prove/resilience/engine-wipe`).

mod create;
mod database;
mod encryption;
mod files;
mod manifest;
mod parts;
mod refs;
mod restore;
mod retention;
mod verify;

pub(crate) use create::{BackupPlan, create_backup};
pub(crate) use encryption::{DecryptionArgs, EncryptionArgs};
pub(crate) use files::InstallationFiles;
pub(crate) use manifest::{BackupVerification, public_keys_of};
pub(crate) use restore::{RESTORE_PROGRESS_FILE, RestorePlan, restore_backup};
pub(crate) use retention::{
    StoredBackup, find_newest_backup, import_backups, open_stored_backup, prune_backups,
};
pub(crate) use verify::{create_verification_dir, verify_backup};
