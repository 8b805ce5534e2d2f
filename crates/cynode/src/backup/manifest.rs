//! Manifest and index of a backup. The manifest is readable without a key and names no person, project or file; the index is encrypted.

use std::{
    collections::BTreeMap,
    fs,
    path::{Component, Path},
};

use anyhow::{Context, ensure};
use cynode_app::platform::keys::InstallationKeys;
use cynode_core::releases::Release;
use cynode_db::platform::{backup::FencedCounts, schema};
use data_encoding::HEXLOWER;
use ed25519_dalek::{Signature, Signer as _, Verifier as _, VerifyingKey};
use serde::{Deserialize, Serialize};
use time::OffsetDateTime;
use uuid::Uuid;

use super::{parts::PartRecord, refs::RefLists};

/// Names of the files of a backup beside its parts.
pub(super) const MANIFEST_FILE: &str = "manifest.json";
const SIGNATURE_FILE: &str = "manifest.sig";
const VERIFICATION_FILE: &str = "verification.json";

/// Version of the format of backups.
const FORMAT: u32 = 1;

/// Beginning of what is signed of a manifest.
const SIGNATURE_LABEL: &[u8] = b"cynode/backup-manifest/v1\n";

/// What a backup consists of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct BackupManifest {
    format: u32,
    /// Unique id of the backup.
    pub(crate) backup_id: Uuid,
    /// Time of the restore point, by the clock of the database.
    #[serde(with = "time::serde::rfc3339")]
    pub(crate) taken_at: OffsetDateTime,
    /// Version of the program that made it.
    pub(crate) program_version: String,
    /// Newest migration of the database.
    pub(super) schema_version: i64,
    /// Major version of PostgreSQL.
    pub(super) postgres_version: u32,
    /// Name of the restore point, and its position in the write-ahead log.
    pub(super) restore_point: String,
    pub(super) position: String,
    /// Public key of the installation, as hexadecimal digits.
    pub(super) public_key: String,
    /// Age recipients that can open it; none for a backup with a passphrase.
    pub(super) recipients: Vec<String>,
    /// What the restored database must have.
    pub(super) counts: FencedCounts,
    /// Parts in the order in which they were written.
    pub(super) parts: Vec<PartRecord>,
}

/// Names of the parts that are no archives of files.
pub(super) const DATABASE_PART: &str = "database.tar.gz.age";
pub(super) const WAL_PART: &str = "wal.tar.gz.age";
pub(super) const INDEX_PART: &str = "index.json.gz.age";

impl BackupManifest {
    #[expect(clippy::too_many_arguments, reason = "each is a field of its own type")]
    pub(super) fn new(
        backup_id: Uuid,
        taken_at: OffsetDateTime,
        schema_version: i64,
        postgres_version: u32,
        (restore_point, position): (String, String),
        public_key: String,
        recipients: Vec<String>,
        counts: FencedCounts,
        parts: Vec<PartRecord>,
    ) -> Self {
        Self {
            format: FORMAT,
            backup_id,
            taken_at,
            program_version: Release::current().to_string(),
            schema_version,
            postgres_version,
            restore_point,
            position,
            public_key,
            recipients,
            counts,
            parts,
        }
    }

    /// Reads the manifest of a backup, and refuses one that this program cannot restore.
    pub(crate) fn load(backup: &Path) -> anyhow::Result<Self> {
        let path = backup.join(MANIFEST_FILE);
        let text = fs::read_to_string(&path).with_context(|| {
            format!("{} is no complete backup: it has no {MANIFEST_FILE}", backup.display())
        })?;
        Self::parse_text(&text).with_context(|| format!("in {}", path.display()))
    }

    fn parse_text(text: &str) -> anyhow::Result<Self> {
        #[derive(Deserialize)]
        struct FormatOnly {
            format: u32,
            program_version: Option<String>,
        }
        // The format first: a later one may have other fields.
        let about: FormatOnly = serde_json::from_str(text).context("it is no manifest")?;
        let by = about.program_version.unwrap_or_default();
        ensure!(
            about.format == FORMAT,
            "the backup has format {} and was made by version {by}; this program knows format {FORMAT}: restore it with that version",
            about.format
        );
        let manifest: Self = serde_json::from_str(text).context("it is no manifest")?;
        let made_by: Release = manifest
            .program_version
            .parse()
            .with_context(|| format!("`{by}` is no version of a program"))?;
        ensure!(
            manifest.schema_version <= schema::program_schema_version(),
            "the backup was made by version {made_by}, whose schema is newer than that of this program: restore it with {made_by} or newer"
        );
        Ok(manifest)
    }

    /// Writes the manifest with the signature of the installation. It is the last of the backup: a directory without it is not a backup.
    pub(super) fn store(&self, backup: &Path, keys: &InstallationKeys) -> anyhow::Result<()> {
        let text = format!("{}\n", serde_json::to_string_pretty(self)?);
        let signature = keys.signing_key().key.sign(&signed_bytes(&text)).to_bytes();
        write_synced(&backup.join(SIGNATURE_FILE), &format!("{}\n", HEXLOWER.encode(&signature)))?;
        write_synced(&backup.join(MANIFEST_FILE), &text)
    }

    /// Verifies that the installation whose public key the manifest names has signed it.
    pub(super) fn verify_signature(&self, backup: &Path) -> anyhow::Result<()> {
        let text = fs::read_to_string(backup.join(MANIFEST_FILE))?;
        let signature = fs::read_to_string(backup.join(SIGNATURE_FILE))
            .context("the manifest has no signature")?;
        let is_signed = || -> Option<()> {
            let key: [u8; 32] = decode_hex(&self.public_key)?;
            let signature = Signature::from_bytes(&decode_hex::<64>(&signature)?);
            let key = VerifyingKey::from_bytes(&key).ok()?;
            key.verify(&signed_bytes(&text), &signature).ok()
        };
        is_signed().context("the manifest is not what the installation signed: it was changed")
    }

    /// Refuses a backup of another installation than the one with this public key. Without one any is accepted.
    pub(super) fn ensure_origin(&self, public_key: Option<&str>) -> anyhow::Result<()> {
        ensure!(
            public_key.is_none_or(|expected| self.public_key.eq_ignore_ascii_case(expected.trim())),
            "the backup is of another installation: its public key is {}",
            self.public_key
        );
        Ok(())
    }

    /// Returns a part by its name.
    pub(super) fn part(&self, name: &str) -> anyhow::Result<&PartRecord> {
        let found = self.parts.iter().find(|part| part.name == name);
        found.with_context(|| format!("the manifest names no part {name}"))
    }

    /// Returns whether it is of the installation with these public keys, those of earlier signatures included.
    pub(super) fn is_signed_by(&self, public_keys: &[String]) -> bool {
        public_keys.contains(&self.public_key)
    }

    /// Returns the size of all parts.
    pub(crate) fn total_bytes(&self) -> u64 {
        self.parts.iter().map(|part| part.bytes).sum()
    }
}

fn signed_bytes(text: &str) -> Vec<u8> {
    [SIGNATURE_LABEL, text.as_bytes()].concat()
}

fn decode_hex<const N: usize>(text: &str) -> Option<[u8; N]> {
    HEXLOWER.decode(text.trim().as_bytes()).ok()?.try_into().ok()
}

/// Returns the public key of an installation as the manifest has it.
pub(super) fn public_key_of(keys: &InstallationKeys) -> String {
    HEXLOWER.encode(keys.verifying_key().as_bytes())
}

/// Returns all public keys of an installation, those that were rotated out included: older backups have their signatures.
pub(crate) fn public_keys_of(keys: &InstallationKeys) -> Vec<String> {
    let known = keys.public_keys();
    let known = known.public_keys().iter();
    known.map(|key| HEXLOWER.encode(key.public_key.as_bytes())).collect()
}

/// A file of a backup.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct IndexedFile {
    /// Name of the part that has it.
    pub(super) part: String,
    /// Size of the file.
    pub(super) bytes: u64,
    /// SHA-256 of its content.
    pub(super) sha256: String,
    /// Permissions.
    pub(super) mode: u32,
    /// Time of its last change in nanoseconds, by which an interrupted backup recognizes it.
    pub(super) modified_ns: i64,
}

/// Files and directories of a backup at its restore point, by their path below the data directory. A part may have more: files that were
/// removed or changed while it was written.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct BackupIndex {
    /// Permissions of directories.
    pub(super) directories: BTreeMap<String, u32>,
    pub(super) files: BTreeMap<String, IndexedFile>,
    /// Refs of repositories that git listed with the same commit before and after the restore point.
    #[serde(default)]
    pub(super) refs: RefLists,
}

impl BackupIndex {
    /// Refuses paths that lead out of the data directory.
    pub(super) fn ensure_paths_inside(&self) -> anyhow::Result<()> {
        for path in self.directories.keys().chain(self.files.keys()) {
            let inside = !path.is_empty()
                && Path::new(path).components().all(|part| matches!(part, Component::Normal(_)));
            ensure!(inside, "the index names a path outside of the data directory");
        }
        Ok(())
    }
}

/// Result of the last verification of a backup.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct BackupVerification {
    #[serde(with = "time::serde::rfc3339")]
    pub(crate) verified_at: OffsetDateTime,
    pub(crate) program_version: String,
    /// What was found; empty for a good backup.
    pub(crate) problems: Vec<String>,
    /// Signature by the keys of the restored installation, as hexadecimal digits; none if they could not be opened. Only a signed
    /// verification counts for a good backup: the place of backups may be writable for others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    signature: Option<String>,
}

/// Beginning of what is signed of a verification.
const VERIFICATION_LABEL: &[u8] = b"cynode/backup-verification/v1\n";

impl BackupVerification {
    /// Creates the result of a verification, signed by the keys of the restored installation if they could be opened.
    pub(super) fn new(
        backup_id: Uuid,
        verified_at: OffsetDateTime,
        problems: Vec<String>,
        keys: Option<&InstallationKeys>,
    ) -> anyhow::Result<Self> {
        let program_version = Release::current().to_string();
        let mut found = Self { verified_at, program_version, problems, signature: None };
        if let Some(keys) = keys {
            let signature = keys.signing_key().key.sign(&found.signed_bytes(backup_id)?);
            found.signature = Some(HEXLOWER.encode(&signature.to_bytes()));
        }
        Ok(found)
    }

    /// Returns whether an installation with one of these public keys, as hexadecimal digits, signed it for this backup.
    pub(crate) fn is_signed_by(&self, backup_id: Uuid, public_keys: &[String]) -> bool {
        let signature = self.signature.as_deref().and_then(decode_hex::<64>);
        let (Some(signature), Ok(signed)) = (signature, self.signed_bytes(backup_id)) else {
            return false;
        };
        let signature = Signature::from_bytes(&signature);
        public_keys.iter().any(|key| {
            let key = decode_hex::<32>(key).and_then(|key| VerifyingKey::from_bytes(&key).ok());
            key.is_some_and(|key| key.verify(&signed, &signature).is_ok())
        })
    }

    fn signed_bytes(&self, backup_id: Uuid) -> anyhow::Result<Vec<u8>> {
        let unsigned = Self { signature: None, ..self.clone() };
        let text = serde_json::to_string(&(backup_id, unsigned))?;
        Ok([VERIFICATION_LABEL, text.as_bytes()].concat())
    }

    /// Reads the last verification of a backup; `None` if it was never verified.
    pub(crate) fn load(backup: &Path) -> anyhow::Result<Option<Self>> {
        match fs::read_to_string(backup.join(VERIFICATION_FILE)) {
            Ok(text) => Ok(Some(serde_json::from_str(&text)?)),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    pub(super) fn store(&self, backup: &Path) -> anyhow::Result<()> {
        let text = format!("{}\n", serde_json::to_string_pretty(self)?);
        write_synced(&backup.join(VERIFICATION_FILE), &text)
    }
}

/// Writes a file whole: under another name, synced, then renamed.
fn write_synced(path: &Path, text: &str) -> anyhow::Result<()> {
    crate::restate::write_private_file(path, text)?;
    let parent = path.parent().context("a file has a directory")?;
    fs::File::open(parent)?.sync_all()?;
    Ok(())
}

#[cfg(test)]
impl BackupManifest {
    /// A manifest for tests, without parts.
    pub(super) fn example(keys: &InstallationKeys, id: Uuid, taken_at: OffsetDateTime) -> Self {
        let counts = FencedCounts {
            tasks: 1,
            jobs: 2,
            artifacts: 3,
            repositories: 4,
            pull_requests: 5,
            deliveries: 6,
            audit_chains: 7,
            audit_records: 8,
            audit_head: "aa".to_owned(),
        };
        let point = ("cynode".to_owned(), "0/1".to_owned());
        let schema = schema::program_schema_version();
        let recipients = vec!["age1reader".to_owned()];
        Self::new(
            id,
            taken_at,
            schema,
            15,
            point,
            public_key_of(keys),
            recipients,
            counts,
            Vec::new(),
        )
    }
}

#[cfg(test)]
mod tests {
    use time::macros::datetime;

    use super::*;

    fn manifest(keys: &InstallationKeys, schema_version: i64) -> BackupManifest {
        let example =
            BackupManifest::example(keys, Uuid::from_u128(7), datetime!(2026-11-18 12:00 UTC));
        BackupManifest { schema_version, ..example }
    }

    #[test]
    fn a_manifest_is_read_back_and_belongs_to_its_installation() {
        let dir = tempfile::tempdir().unwrap();
        let keys = InstallationKeys::from_master(&[1; 32]);
        let written = manifest(&keys, schema::program_schema_version());
        written.store(dir.path(), &keys).unwrap();
        let read = BackupManifest::load(dir.path()).unwrap();
        assert_eq!(read, written);
        read.verify_signature(dir.path()).unwrap();
        read.ensure_origin(None).unwrap();
        read.ensure_origin(Some(&format!(" {}\n", public_key_of(&keys).to_uppercase()))).unwrap();
        let other = public_key_of(&InstallationKeys::from_master(&[2; 32]));
        assert!(read.ensure_origin(Some(&other)).is_err());
        let foreign = BackupManifest { public_key: other, ..read.clone() };
        assert!(foreign.verify_signature(dir.path()).is_err());
        let path = dir.path().join(MANIFEST_FILE);
        let changed = fs::read_to_string(&path).unwrap().replace("\"tasks\": 1", "\"tasks\": 0");
        fs::write(&path, changed).unwrap();
        assert!(read.verify_signature(dir.path()).is_err());
    }

    #[test]
    fn a_verification_counts_for_its_backup_and_its_installation_only() {
        let dir = tempfile::tempdir().unwrap();
        let (keys, other) =
            (InstallationKeys::from_master(&[1; 32]), InstallationKeys::from_master(&[2; 32]));
        let (id, at) = (Uuid::from_u128(7), datetime!(2026-11-18 12:00 UTC));
        let good = BackupVerification::new(id, at, Vec::new(), Some(&keys)).unwrap();
        good.store(dir.path()).unwrap();
        let read = BackupVerification::load(dir.path()).unwrap().unwrap();
        assert_eq!(read, good);
        let own = public_keys_of(&keys);
        assert!(read.is_signed_by(id, &own));
        assert!(!read.is_signed_by(Uuid::from_u128(8), &own));
        assert!(!read.is_signed_by(id, &public_keys_of(&other)));
        let later = BackupVerification { verified_at: at + time::Duration::days(1), ..read };
        assert!(!later.is_signed_by(id, &own));
        let unsigned = BackupVerification::new(id, at, Vec::new(), None).unwrap();
        assert!(!unsigned.is_signed_by(id, &own));
    }

    #[test]
    fn a_backup_of_a_later_program_is_refused_with_what_to_do() {
        let keys = InstallationKeys::from_master(&[1; 32]);
        let later = manifest(&keys, schema::program_schema_version() + 1);
        let text = serde_json::to_string(&later).unwrap();
        let refused = BackupManifest::parse_text(&text).unwrap_err().to_string();
        assert!(refused.contains("restore it with"), "{refused}");
        let text = text.replace("\"format\":1", "\"format\":2");
        let refused = BackupManifest::parse_text(&text).unwrap_err().to_string();
        assert!(refused.starts_with("the backup has format 2"), "{refused}");
        assert!(BackupManifest::parse_text("{}").is_err());
    }

    #[test]
    fn a_path_out_of_the_data_directory_is_refused() {
        for path in ["../escape", "/etc/passwd", "a/../../b", ""] {
            let index = BackupIndex {
                directories: BTreeMap::from([(path.to_owned(), 0o700)]),
                ..Default::default()
            };
            assert!(index.ensure_paths_inside().is_err(), "{path}");
        }
        let index = BackupIndex {
            directories: BTreeMap::from([("storage/a".to_owned(), 0o700)]),
            ..Default::default()
        };
        assert!(index.ensure_paths_inside().is_ok());
    }
}
