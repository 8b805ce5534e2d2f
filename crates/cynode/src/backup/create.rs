//! Makes a backup. An interrupted one goes on with the parts that it completed.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::{self, Write as _},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use age::x25519;
use anyhow::{Context, ensure};
use cynode_app::{AppEnvironment, platform::keys::InstallationKeys};
use cynode_db::{
    DbOptions, Pool,
    platform::{
        backup::{self, BackupLock, BackupRecord, FencedCounts},
        schema,
    },
};
use secrecy::ExposeSecret;
use serde::{Deserialize, Serialize};
use time::OffsetDateTime;
use uuid::Uuid;

use super::{
    database::{self, FencedState, WalReceiver},
    encryption::{KeyRecipients, SEALED_KEY_FILE},
    files::{FileClass, InstallationFiles, SourceFile},
    manifest::{BackupIndex, BackupManifest, IndexedFile, public_key_of, public_keys_of},
    parts::{DigestReader, PartRecord, PartWriter, digest_bytes},
    refs::{RefLists, list_refs, stable_refs},
};
use crate::{cluster, restate};

/// Size of the files of one part, before compression. An interrupted backup repeats at most so much.
const PART_BYTES: u64 = 256 << 20;

/// How often files are listed again when some were removed in between.
const MAX_LISTINGS: usize = 5;

/// How long a backup waits for another one, or for maintenance that removes files.
const LOCK_TIMEOUT: Duration = Duration::from_mins(2);

/// File in the data directory with the progress of a backup.
const PROGRESS_FILE: &str = "backup-progress.json";

/// Extension of the directory of a backup that is not complete.
const PARTIAL_EXTENSION: &str = "partial";

/// File in it with the public key of the installation that makes it.
const OWNER_FILE: &str = "owner";

/// What is backed up, and where to.
pub(crate) struct BackupPlan {
    pub(crate) source: InstallationFiles,
    /// Directory of all backups.
    pub(crate) destination: PathBuf,
    pub(crate) recipients: KeyRecipients,
    pub(crate) keys: InstallationKeys,
}

/// A completed backup.
pub(crate) struct CompletedBackup {
    pub(crate) path: PathBuf,
    pub(crate) manifest: BackupManifest,
    /// How long writers waited at most.
    pub(crate) fenced: Duration,
    /// Number of parts that an interrupted attempt had completed.
    pub(crate) resumed_parts: usize,
}

/// Progress of a backup. It is in the data directory, since it names files; the destination never has names in the clear.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct BackupDraft {
    backup_id: Uuid,
    destination: PathBuf,
    name: String,
    /// Public half of the key of the backup.
    key: String,
    /// Recipients of that key.
    recipients: Vec<String>,
    parts: Vec<PartRecord>,
    files: BTreeMap<String, IndexedFile>,
}

/// Makes a backup of a running installation.
pub(crate) async fn create_backup(plan: &BackupPlan) -> anyhow::Result<CompletedBackup> {
    let data_dir = &plan.source.data_dir;
    let url = cluster::running_cluster_url(data_dir)?;
    let pool = cynode_db::connect_pool(&DbOptions {
        url: url.expose_secret().to_owned(),
        max_connections: 5,
        acquire_timeout: Duration::from_secs(10),
        statement_timeout: Duration::ZERO,
    })?;
    let _lock = lock_backups(&pool).await?;
    let (mut draft, directory) = open_draft(plan)?;
    remove_leftovers(plan, &directory)?;
    let resumed_parts = draft.parts.len();
    let key = draft.key.parse::<x25519::Recipient>();
    let key = key.map_err(|why| anyhow::anyhow!("{PROGRESS_FILE} is damaged: {why}"))?;
    // Most of the bytes, without any claim to completeness: what is missing is added after the fence.
    copy_immutable_files(plan, &mut draft, &directory, &key)?;
    let scratch = create_scratch_dir(data_dir, draft.backup_id)?;
    let refs = list_refs(&plan.source.storage)?;
    let copied = copy_database(plan, &pool, &draft, &directory, &key, &scratch).await;
    fs::remove_dir_all(&scratch).context("the scratch directory could not be removed")?;
    let (database_parts, state) = copied?;
    let refs = stable_refs(refs, &list_refs(&plan.source.storage)?);
    let index = BackupIndex { refs, ..complete_files(plan, &mut draft, &directory, &key, &state)? };
    ensure_storage_there(&index, &state.counts)?;
    let mut parts = draft.parts.clone();
    parts.extend(database_parts);
    parts.push(store_index(&index, &directory, &key)?);
    let mut conn = cynode_db::acquire_connection(&pool).await?;
    let manifest = BackupManifest::new(
        draft.backup_id,
        state.point.taken_at,
        schema::schema_version(&mut conn).await?,
        cluster::postgres_version(data_dir)?,
        (restore_point_name(draft.backup_id), state.point.position.clone()),
        public_key_of(&plan.keys),
        draft.recipients.clone(),
        state.counts.clone(),
        parts,
    );
    match fs::remove_file(directory.join(OWNER_FILE)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error.into()),
        _ => {}
    }
    manifest.store(&directory, &plan.keys)?;
    let path = plan.destination.join(&draft.name);
    fs::rename(&directory, &path)?;
    File::open(&plan.destination)?.sync_all()?;
    fs::remove_file(data_dir.join(PROGRESS_FILE))?;
    backup::record_backup(&mut conn, &describe_backup(&manifest, &path)).await?;
    drop(conn);
    Ok(CompletedBackup { path, manifest, fenced: state.duration, resumed_parts })
}

/// Describes a backup for the table of backups.
pub(crate) fn describe_backup(manifest: &BackupManifest, path: &Path) -> BackupRecord {
    BackupRecord {
        id: manifest.backup_id,
        taken_at: manifest.taken_at,
        completed_at: AppEnvironment::from_system().now(),
        location: path.display().to_string(),
        program_version: manifest.program_version.clone(),
        bytes: i64::try_from(manifest.total_bytes()).unwrap_or(i64::MAX),
        verified_at: None,
        problems: Vec::new(),
        recipients: manifest.recipients.clone(),
    }
}

async fn lock_backups(pool: &Pool) -> anyhow::Result<BackupLock> {
    let begun = Instant::now();
    loop {
        if let Some(lock) = backup::lock_backups(pool).await? {
            return Ok(lock);
        }
        ensure!(
            begun.elapsed() < LOCK_TIMEOUT,
            "another backup of this installation runs, or files are being removed: try again later"
        );
        std::thread::sleep(Duration::from_millis(200));
    }
}

/// Goes on with an interrupted backup to the same destination, or begins one.
fn open_draft(plan: &BackupPlan) -> anyhow::Result<(BackupDraft, PathBuf)> {
    // A directory that is there already may belong to others, too: each backup in it is closed to them.
    if !plan.destination.exists() {
        restate::create_private_dir(&plan.destination)?;
    }
    let progress = plan.source.data_dir.join(PROGRESS_FILE);
    if let Ok(text) = fs::read_to_string(&progress)
        && let Ok(draft) = serde_json::from_str::<BackupDraft>(&text)
        && draft.destination == plan.destination
        && plan.recipients.can_open(&partial_directory(&draft), &draft.recipients)
    {
        let directory = partial_directory(&draft);
        return Ok((keep_whole_parts(draft, &directory), directory));
    }
    let environment = AppEnvironment::from_system();
    let now = environment.now();
    let backup_id = environment.new_uuid(now);
    let key = x25519::Identity::generate();
    let draft = BackupDraft {
        backup_id,
        destination: plan.destination.clone(),
        name: backup_name(now, backup_id),
        key: key.to_public().to_string(),
        recipients: plan.recipients.public_texts(),
        parts: Vec::new(),
        files: BTreeMap::new(),
    };
    let directory = partial_directory(&draft);
    restate::create_private_dir(&directory)?;
    let mut file = File::create(directory.join(SEALED_KEY_FILE))?;
    file.write_all(&plan.recipients.seal_key(&key)?)?;
    file.sync_all()?;
    fs::write(directory.join(OWNER_FILE), public_key_of(&plan.keys))?;
    draft.save(&plan.source.data_dir)?;
    Ok((draft, directory))
}

/// Removes what this installation left of interrupted backups that it does not go on with: one runs at a time. Those of other installations in
/// the same place stay.
fn remove_leftovers(plan: &BackupPlan, current: &Path) -> anyhow::Result<()> {
    let own = public_keys_of(&plan.keys);
    for entry in fs::read_dir(&plan.destination)? {
        let path = entry?.path();
        let is_partial = path.extension().is_some_and(|extension| extension == PARTIAL_EXTENSION);
        if !is_partial || path == current {
            continue;
        }
        let owner = fs::read_to_string(path.join(OWNER_FILE)).unwrap_or_default();
        if own.contains(&owner) {
            fs::remove_dir_all(&path)
                .with_context(|| format!("cannot remove {}", path.display()))?;
        }
    }
    Ok(())
}

fn partial_directory(draft: &BackupDraft) -> PathBuf {
    draft.destination.join(format!("{}.{PARTIAL_EXTENSION}", draft.name))
}

/// Returns the name of a backup, which sorts by time.
fn backup_name(now: OffsetDateTime, id: Uuid) -> String {
    let (date, time) = (now.date(), now.time());
    format!(
        "cynode-{:04}{:02}{:02}T{:02}{:02}{:02}Z-{}",
        date.year(),
        u8::from(date.month()),
        date.day(),
        time.hour(),
        time.minute(),
        time.second(),
        id.simple()
    )
}

/// Forgets parts that are not there as they were completed, with their files.
fn keep_whole_parts(mut draft: BackupDraft, directory: &Path) -> BackupDraft {
    draft.parts.retain(|part| {
        fs::metadata(directory.join(&part.name)).is_ok_and(|meta| meta.len() == part.bytes)
    });
    let names: Vec<String> = draft.parts.iter().map(|part| part.name.clone()).collect();
    draft.files.retain(|_, file| names.contains(&file.part));
    draft
}

impl BackupDraft {
    fn save(&self, data_dir: &Path) -> anyhow::Result<()> {
        restate::write_private_file(&data_dir.join(PROGRESS_FILE), &serde_json::to_string(self)?)
    }

    /// Returns whether a completed part has this file as it is now.
    fn has_file(&self, file: &SourceFile) -> bool {
        self.files.get(&file.path).is_some_and(|stored| {
            stored.bytes == file.bytes && stored.modified_ns == file.modified_ns
        })
    }

    /// Returns the name of the next part of files.
    fn next_part_name(&self) -> String {
        let last = self.parts.iter().filter_map(|part| {
            part.name.strip_prefix("files-")?.split('.').next()?.parse::<u32>().ok()
        });
        format!("files-{:05}.tar", last.max().unwrap_or(0) + 1)
    }
}

/// Makes a private directory for what is not encrypted yet. What interrupted backups left there is removed: one backup runs at a time.
fn create_scratch_dir(data_dir: &Path, id: Uuid) -> anyhow::Result<PathBuf> {
    let scratch = data_dir.join("scratch");
    if scratch.exists() {
        fs::remove_dir_all(&scratch)
            .with_context(|| format!("cannot empty {}", scratch.display()))?;
    }
    restate::create_private_dir(&scratch)?;
    let own = scratch.join(id.simple().to_string());
    restate::create_private_dir(&own)?;
    Ok(own)
}

fn restore_point_name(id: Uuid) -> String {
    format!("cynode-{}", id.simple())
}

/// Copies the cluster, reads the state within the fence, and takes the write-ahead log up to it.
async fn copy_database(
    plan: &BackupPlan,
    pool: &Pool,
    draft: &BackupDraft,
    directory: &Path,
    key: &x25519::Recipient,
    scratch: &Path,
) -> anyhow::Result<([PartRecord; 2], FencedState)> {
    let data_dir = &plan.source.data_dir;
    let reservation = backup::reserve_wal(pool).await;
    let reservation =
        reservation.context("the database keeps no write-ahead log for the backup")?;
    let receiver = WalReceiver::start(data_dir, scratch)?;
    let cluster = database::copy_cluster(data_dir, directory, key)?;
    let name = restore_point_name(draft.backup_id);
    let state = database::read_fenced_state(pool, &plan.source, &name).await?;
    let mut conn = cynode_db::acquire_connection(pool).await?;
    backup::switch_segment(&mut conn).await?;
    drop(conn);
    let wal = receiver.finish(&state.point.segment)?;
    drop(reservation);
    let wal = database::store_wal(&wal, directory, key)?;
    Ok(([cluster, wal], state))
}

/// Copies every immutable file that no part has yet. Returns the paths of all that are there.
fn copy_immutable_files(
    plan: &BackupPlan,
    draft: &mut BackupDraft,
    directory: &Path,
    key: &x25519::Recipient,
) -> anyhow::Result<Vec<String>> {
    for _ in 0..MAX_LISTINGS {
        let listing = plan.source.list_class(FileClass::Immutable)?;
        let mut archive = FileArchive::new(directory, key, &plan.source.data_dir);
        let mut is_complete = true;
        for file in &listing.files {
            if !draft.has_file(file) {
                // A repository that was packed anew has its objects in another file: they are listed again.
                is_complete &= archive.add_file(draft, file)?;
            }
        }
        archive.close_part(draft)?;
        if is_complete {
            return Ok(listing.files.into_iter().map(|file| file.path).collect());
        }
    }
    anyhow::bail!("files were removed again and again while they were copied: try again later")
}

/// Adds what the first pass did not see and the files of the fence. Returns the index of the backup.
fn complete_files(
    plan: &BackupPlan,
    draft: &mut BackupDraft,
    directory: &Path,
    key: &x25519::Recipient,
    state: &FencedState,
) -> anyhow::Result<BackupIndex> {
    let present = copy_immutable_files(plan, draft, directory, key)?;
    let mut archive = FileArchive::new(directory, key, &plan.source.data_dir);
    for (file, content) in &state.files {
        archive.add_content(draft, file, content)?;
    }
    archive.close_part(draft)?;
    let fenced = state.files.iter().map(|(file, _)| file.path.clone());
    let mut files = BTreeMap::new();
    for path in present.into_iter().chain(fenced) {
        let stored = draft.files.get(&path).with_context(|| format!("{path} was not stored"))?;
        files.insert(path, stored.clone());
    }
    Ok(BackupIndex { directories: state.directories.clone(), files, refs: RefLists::new() })
}

/// Refuses a backup of a storage that is empty, although rows name files of it: the disk is probably not mounted.
fn ensure_storage_there(index: &BackupIndex, counts: &FencedCounts) -> anyhow::Result<()> {
    let expected = [(counts.artifacts, "artifacts"), (counts.repositories, "repositories")];
    for (count, directory) in expected {
        let prefix = format!("storage/{directory}/");
        ensure!(
            count == 0 || index.files.keys().any(|path| path.starts_with(&prefix)),
            "the database names {count} {directory}, and the storage has none: is the disk of `storage.directory` mounted?"
        );
    }
    Ok(())
}

fn store_index(
    index: &BackupIndex,
    directory: &Path,
    key: &x25519::Recipient,
) -> anyhow::Result<PartRecord> {
    let mut writer = PartWriter::create(directory, "index.json", key)?;
    serde_json::to_writer(&mut writer, index)?;
    writer.finish()
}

/// Writes files into parts, and the progress after each.
struct FileArchive<'a> {
    directory: &'a Path,
    key: &'a x25519::Recipient,
    data_dir: &'a Path,
    current: Option<OpenPart>,
}

/// A part of files that is being written.
struct OpenPart {
    name: String,
    archive: tar::Builder<PartWriter>,
    bytes: u64,
    files: Vec<(String, IndexedFile)>,
}

impl<'a> FileArchive<'a> {
    const fn new(directory: &'a Path, key: &'a x25519::Recipient, data_dir: &'a Path) -> Self {
        Self { directory, key, data_dir, current: None }
    }

    /// Adds a file. Returns `false` if it is no longer there.
    fn add_file(&mut self, draft: &mut BackupDraft, file: &SourceFile) -> anyhow::Result<bool> {
        let content = match File::open(&file.source) {
            Ok(content) => content,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            Err(error) => {
                return Err(error)
                    .with_context(|| format!("cannot read {}", file.source.display()));
            }
        };
        let mut reader = DigestReader::new(content, file.bytes);
        self.append_entry(draft, file, &mut reader)
            .with_context(|| format!("cannot copy {}", file.source.display()))?;
        self.record_file(draft, file, reader.finish())?;
        Ok(true)
    }

    /// Adds a file that was read before.
    fn add_content(
        &mut self,
        draft: &mut BackupDraft,
        file: &SourceFile,
        mut content: &[u8],
    ) -> anyhow::Result<()> {
        let sha256 = digest_bytes(content);
        self.append_entry(draft, file, &mut content)?;
        self.record_file(draft, file, sha256)
    }

    fn append_entry(
        &mut self,
        draft: &BackupDraft,
        file: &SourceFile,
        content: &mut dyn io::Read,
    ) -> anyhow::Result<()> {
        let part = match &mut self.current {
            Some(part) => part,
            none => {
                let name = draft.next_part_name();
                let writer = PartWriter::create(self.directory, &name, self.key)?;
                none.insert(OpenPart {
                    name: format!("{name}.gz.age"),
                    archive: tar::Builder::new(writer),
                    bytes: 0,
                    files: Vec::new(),
                })
            }
        };
        let mut header = tar::Header::new_gnu();
        header.set_size(file.bytes);
        header.set_mode(file.mode);
        header.set_entry_type(tar::EntryType::Regular);
        part.archive.append_data(&mut header, &file.path, content)?;
        Ok(())
    }

    fn record_file(
        &mut self,
        draft: &mut BackupDraft,
        file: &SourceFile,
        sha256: String,
    ) -> anyhow::Result<()> {
        let Some(part) = &mut self.current else { return Ok(()) };
        let stored = IndexedFile {
            part: part.name.clone(),
            bytes: file.bytes,
            sha256,
            mode: file.mode,
            modified_ns: file.modified_ns,
        };
        part.files.push((file.path.clone(), stored));
        part.bytes += file.bytes;
        if part.bytes >= PART_BYTES { self.close_part(draft) } else { Ok(()) }
    }

    /// Completes the part that is being written: its files count from now on.
    fn close_part(&mut self, draft: &mut BackupDraft) -> anyhow::Result<()> {
        let Some(part) = self.current.take() else { return Ok(()) };
        draft.parts.push(part.archive.into_inner()?.finish()?);
        draft.files.extend(part.files);
        draft.save(self.data_dir)
    }
}

#[cfg(test)]
mod tests {
    use time::macros::datetime;

    use super::*;

    #[test]
    fn names_of_backups_sort_by_time() {
        let name = |at| backup_name(at, Uuid::nil());
        let earlier = name(datetime!(2026-11-18 09:05:07 UTC));
        assert_eq!(earlier, "cynode-20261118T090507Z-00000000000000000000000000000000");
        assert!(earlier < name(datetime!(2026-11-18 10:00 UTC)));
    }

    fn draft(destination: &Path) -> BackupDraft {
        BackupDraft {
            backup_id: Uuid::nil(),
            destination: destination.to_owned(),
            name: "cynode".to_owned(),
            key: String::new(),
            recipients: Vec::new(),
            parts: Vec::new(),
            files: BTreeMap::new(),
        }
    }

    #[test]
    fn an_interrupted_backup_keeps_its_whole_parts_and_copies_the_rest_again() {
        let dir = tempfile::tempdir().unwrap();
        let key = x25519::Identity::generate().to_public();
        let file = |name: &str| {
            let source = dir.path().join(name);
            fs::write(&source, name).unwrap();
            let bytes = name.len() as u64;
            SourceFile { path: name.to_owned(), source, bytes, mode: 0o600, modified_ns: 1 }
        };
        let (first, second) = (file("first"), file("second"));
        let mut draft = draft(dir.path());
        for file in [&first, &second] {
            let mut archive = FileArchive::new(dir.path(), &key, dir.path());
            assert!(archive.add_file(&mut draft, file).unwrap());
            archive.close_part(&mut draft).unwrap();
        }
        let names: Vec<_> = draft.parts.iter().map(|part| part.name.clone()).collect();
        assert_eq!(names, ["files-00001.tar.gz.age", "files-00002.tar.gz.age"]);

        // The second part was cut off, and the progress is read from the disk.
        fs::write(dir.path().join(&names[1]), "cut").unwrap();
        let text = fs::read_to_string(dir.path().join(PROGRESS_FILE)).unwrap();
        let resumed = keep_whole_parts(serde_json::from_str(&text).unwrap(), dir.path());
        assert_eq!((resumed.has_file(&first), resumed.has_file(&second)), (true, false));
        assert_eq!(resumed.next_part_name(), "files-00002.tar");
        let changed = SourceFile { modified_ns: 2, ..first };
        assert!(!resumed.has_file(&changed));
    }

    #[test]
    fn what_an_interrupted_backup_left_in_the_clear_is_removed_by_the_next() {
        let dir = tempfile::tempdir().unwrap();
        let first = create_scratch_dir(dir.path(), Uuid::from_u128(1)).unwrap();
        fs::write(first.join("wal"), "secret").unwrap();
        let second = create_scratch_dir(dir.path(), Uuid::from_u128(2)).unwrap();
        assert!(!first.exists() && second.is_dir());
    }

    #[test]
    fn an_empty_storage_whose_files_rows_name_is_not_backed_up() {
        let keys = InstallationKeys::from_master(&[1; 32]);
        let taken_at = datetime!(2026-11-18 12:00 UTC);
        let counts = BackupManifest::example(&keys, Uuid::nil(), taken_at).counts;
        let stored = IndexedFile {
            part: "files-00001.tar.gz.age".to_owned(),
            bytes: 1,
            sha256: String::new(),
            mode: 0o600,
            modified_ns: 1,
        };
        let mut index = BackupIndex::default();
        index.files.insert("storage/repositories/prj_1.git/HEAD".to_owned(), stored);
        let refused = ensure_storage_there(&index, &counts).unwrap_err().to_string();
        assert!(refused.starts_with("the database names 3 artifacts"), "{refused}");
        let without = FencedCounts { artifacts: 0, ..counts };
        assert!(ensure_storage_there(&index, &without).is_ok());
    }

    #[test]
    fn a_file_that_is_gone_is_passed_over() {
        let dir = tempfile::tempdir().unwrap();
        let key = x25519::Identity::generate().to_public();
        let gone = SourceFile {
            path: "gone".to_owned(),
            source: dir.path().join("gone"),
            bytes: 1,
            mode: 0o600,
            modified_ns: 1,
        };
        let mut archive = FileArchive::new(dir.path(), &key, dir.path());
        assert!(!archive.add_file(&mut draft(dir.path()), &gone).unwrap());
    }
}
