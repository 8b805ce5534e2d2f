//! Backups with their last verification.

use serde::{Deserialize, Serialize};
use time::OffsetDateTime;
use utoipa::ToSchema;

/// A completed backup.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = BackupView)]
pub struct BackupView {
    /// Unique id of the backup.
    pub backup_id: String,
    /// Moment of the installation that it holds.
    #[serde(with = "time::serde::rfc3339")]
    pub taken_at: OffsetDateTime,
    /// Time at which its last file was written.
    #[serde(with = "time::serde::rfc3339")]
    pub completed_at: OffsetDateTime,
    /// Path of the backup on the machine that made it, or where it was seen last.
    pub location: String,
    /// Version of the program that made it.
    pub program_version: String,
    /// Size of its files in bytes.
    pub bytes: i64,
    /// Age recipients that can open it; none for a backup with a passphrase.
    pub recipients: Vec<String>,
    /// Time of its last verification, when it was restored for a trial.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        with = "time::serde::rfc3339::option"
    )]
    pub verified_at: Option<OffsetDateTime>,
    /// What the verification found; empty for a good backup.
    pub problems: Vec<String>,
}
