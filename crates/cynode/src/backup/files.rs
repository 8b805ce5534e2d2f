//! Files of an installation: which belong to a backup, and which of them change.

use std::{
    collections::BTreeMap,
    fs::{self, Metadata},
    io::ErrorKind,
    os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt},
    path::{Path, PathBuf},
};

use anyhow::{Context, bail, ensure};

/// How a file may change while a backup is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FileClass {
    /// Written once, under a name that follows from its content: artifacts, objects of repositories, recorded answers of models.
    Immutable,
    /// Small and changing: refs of repositories, audit records on their way to the database, keys. They are read within the fence.
    Fenced,
}

/// A file of the installation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SourceFile {
    /// Path below the data directory, as the backup has it.
    pub(super) path: String,
    /// Path on this machine.
    pub(super) source: PathBuf,
    pub(super) bytes: u64,
    pub(super) mode: u32,
    pub(super) modified_ns: i64,
}

/// Files and directories of one class.
#[derive(Debug, Default)]
pub(super) struct FileListing {
    pub(super) files: Vec<SourceFile>,
    /// Directories with their permissions.
    pub(super) directories: BTreeMap<String, u32>,
}

/// Places of the files of an installation.
#[derive(Clone, Debug)]
pub(crate) struct InstallationFiles {
    /// Data directory of `cynode up`.
    pub(crate) data_dir: PathBuf,
    /// Directory of the storage, if it is elsewhere.
    pub(crate) storage: PathBuf,
    /// The master key, if it is elsewhere.
    pub(crate) master_key: Option<PathBuf>,
    /// Whether the master key is a file: a backup without it is refused then.
    pub(crate) needs_master_key: bool,
    /// The certificate authority with its key, if it is elsewhere.
    pub(crate) authority: Option<PathBuf>,
}

/// Directories that may be on another disk and linked here. Every entry of the storage may be, too.
const LINKABLE_PATHS: [&str; 3] = ["node", "postgres", "storage"];

/// The master key in a backup.
const MASTER_KEY_PATH: &str = "storage/master.key";

/// What is made anew at every start, or by others: logs, tokens, sockets, copies of programs, the engine, which can be rebuilt, and the database, which has its
/// own part.
const EXCLUDED_PATHS: [&str; 21] = [
    "analyst-token",
    "backup-progress.json",
    "engine",
    "lock",
    "manager-credential",
    "manager-token",
    "node-join-token",
    "postgres/data",
    "postgres/data.new",
    "postgres/restore-wal",
    "postgres/run",
    "programs",
    "restore.json",
    "runner-token",
    "scratch",
    "setup-link",
    "storage/artifacts/incoming",
    "storage/audit/lock",
    "storage/repositories/incoming",
    "storage/sandboxes",
    "verify",
];

/// What a node keeps of its jobs and can fetch or build again is left out; its key, its identity and what it trusts are not.
const NODE_FILES: [&str; 4] =
    ["node/authority.pem", "node/node.json", "node/node.key", "node/node.pem"];

/// Directory of the storage in a backup.
const STORAGE_PREFIX: &str = "storage/";

/// Directory of the certificate authority in a backup.
const AUTHORITY_PREFIX: &str = "storage/tls/";

impl InstallationFiles {
    /// Lists the files of a class, in order.
    pub(super) fn list_class(&self, wanted: FileClass) -> anyhow::Result<FileListing> {
        let mut listing = FileListing::default();
        let storage_inside = self.storage == self.data_dir.join("storage");
        collect_directory(&self.data_dir, "", wanted, storage_inside, &mut listing)?;
        if !storage_inside {
            listing.directories.insert("storage".to_owned(), 0o700);
            collect_directory(&self.storage, STORAGE_PREFIX, wanted, true, &mut listing)?;
        }
        if let Some(key) = self.master_key.as_deref().filter(|_| wanted == FileClass::Fenced) {
            let meta = fs::metadata(key)
                .with_context(|| format!("cannot read the master key {}", key.display()))?;
            listing.files.retain(|file| !file.path.starts_with(MASTER_KEY_PATH));
            listing.files.push(describe_file(MASTER_KEY_PATH.to_owned(), key, &meta));
            // The key of a rotation that is under way.
            let mut next = key.as_os_str().to_owned();
            next.push(".next");
            let next = PathBuf::from(next);
            if let Ok(meta) = fs::metadata(&next) {
                let path = format!("{MASTER_KEY_PATH}.next");
                listing.files.push(describe_file(path, &next, &meta));
            }
        }
        let has_key = listing.files.iter().any(|file| file.path == MASTER_KEY_PATH);
        ensure!(
            has_key || !self.needs_master_key || wanted != FileClass::Fenced,
            "{} has no master.key, and nothing can be opened without it: name the key with `storage.master_key_file`",
            self.storage.display()
        );
        if let Some(authority) = &self.authority {
            listing.files.retain(|file| !file.path.starts_with(AUTHORITY_PREFIX));
            listing.directories.insert("storage/tls".to_owned(), 0o700);
            collect_directory(authority, AUTHORITY_PREFIX, wanted, true, &mut listing)?;
        }
        listing.files.sort_by(|left, right| left.path.cmp(&right.path));
        Ok(listing)
    }
}

fn collect_directory(
    directory: &Path,
    prefix: &str,
    wanted: FileClass,
    with_storage: bool,
    listing: &mut FileListing,
) -> anyhow::Result<()> {
    let unreadable = || format!("cannot read {}", directory.display());
    let entries = match fs::read_dir(directory) {
        Ok(entries) => entries,
        // Removed since its parent was read.
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error).with_context(unreadable),
    };
    for entry in entries {
        let entry = entry.with_context(unreadable)?;
        let Ok(name) = entry.file_name().into_string() else {
            bail!("{} has a name that is no text", entry.path().display());
        };
        let path = format!("{prefix}{name}");
        if is_excluded(&path) || (!with_storage && path == "storage") {
            continue;
        }
        let mut meta = match entry.metadata() {
            Ok(meta) => meta,
            Err(error) if error.kind() == ErrorKind::NotFound => continue,
            Err(error) => return Err(error).with_context(unreadable),
        };
        if meta.is_symlink() {
            meta = follow_link(&path, &entry.path())?;
        }
        if meta.is_dir() {
            let skips = wanted == FileClass::Fenced && is_immutable_directory(&path);
            let below = format!("{path}/");
            listing.directories.insert(path, meta.permissions().mode() & 0o777);
            if !skips {
                collect_directory(&entry.path(), &below, wanted, with_storage, listing)?;
            }
        } else if meta.is_file() {
            if class_of(&path) == wanted {
                listing.files.push(describe_file(path, &entry.path(), &meta));
            }
        } else {
            // A socket holds nothing; its program makes it anew.
            ensure!(
                meta.file_type().is_socket(),
                "{} is neither a file nor a directory, so that a backup cannot have it: move it out of the data directory",
                entry.path().display()
            );
        }
    }
    Ok(())
}

/// Follows a link that may be there. What is behind any other link would be missing in the backup, or be in it as something else.
fn follow_link(path: &str, place: &Path) -> anyhow::Result<Metadata> {
    let is_storage_entry =
        path.strip_prefix(STORAGE_PREFIX).is_some_and(|name| !name.contains('/'));
    ensure!(
        is_storage_entry || LINKABLE_PATHS.contains(&path),
        "{} is a symbolic link, and a backup does not follow it: put what it leads to in its place, or mount it there",
        place.display()
    );
    fs::metadata(place).with_context(|| {
        format!("the symbolic link {} leads nowhere: is the disk mounted?", place.display())
    })
}

fn describe_file(path: String, source: &Path, meta: &Metadata) -> SourceFile {
    SourceFile {
        path,
        source: source.to_owned(),
        bytes: meta.len(),
        mode: meta.permissions().mode() & 0o777,
        modified_ns: meta.mtime().saturating_mul(1_000_000_000).saturating_add(meta.mtime_nsec()),
    }
}

fn is_excluded(path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or(path);
    // A branch may have any of these names but that of a lock, which git refuses.
    let is_scratch = name.ends_with(".lock")
        || !is_in_repository(path) && (name.ends_with(".log") || name.ends_with(".new"));
    let is_partial = name.starts_with("tmp_") && path.contains(".git/objects/");
    let is_job_file = path.starts_with("node/") && !NODE_FILES.contains(&path);
    let is_sandbox = !path.contains('/') && path.ends_with("-sandboxes");
    let is_issued = !path.contains('/')
        && ["-client.pem", "-client.key", "-ca.pem"].iter().any(|end| path.ends_with(end));
    EXCLUDED_PATHS.contains(&path)
        || is_scratch
        || is_partial
        || is_job_file
        || is_sandbox
        || is_issued
}

/// Returns whether a path is inside a repository.
fn is_in_repository(path: &str) -> bool {
    path.strip_prefix("storage/repositories/")
        .and_then(|path| path.split_once('/'))
        .is_some_and(|(repository, _)| repository.ends_with(".git"))
}

/// Returns whether a directory holds immutable files only.
fn is_immutable_directory(path: &str) -> bool {
    let Some(path) = path.strip_prefix(STORAGE_PREFIX) else { return false };
    let mut parts = path.split('/');
    match (parts.next(), parts.next(), parts.next()) {
        (Some("artifacts" | "cassettes"), ..) => true,
        (Some("repositories"), Some(repository), Some("objects")) => repository.ends_with(".git"),
        _ => false,
    }
}

fn class_of(path: &str) -> FileClass {
    let directory = path.rsplit_once('/').map_or("", |(directory, _)| directory);
    if is_immutable_directory(directory) { FileClass::Immutable } else { FileClass::Fenced }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn paths(listing: &FileListing) -> Vec<&str> {
        listing.files.iter().map(|file| file.path.as_str()).collect()
    }

    fn installation_in(data_dir: PathBuf) -> InstallationFiles {
        let storage = data_dir.join("storage");
        InstallationFiles {
            data_dir,
            storage,
            master_key: None,
            needs_master_key: true,
            authority: None,
        }
    }

    fn write(path: &Path, text: &str) {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    #[test]
    fn a_storage_on_another_disk_is_followed_and_every_other_link_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let place = |name: &str| dir.path().join(name);
        write(&place("disk/master.key"), "key");
        write(&place("disk/audit/1.wal"), "");
        write(&place("large/sha256/ab/abcd"), "");
        fs::create_dir(place("data")).unwrap();
        symlink(place("disk"), place("data/storage")).unwrap();
        symlink(place("large"), place("disk/artifacts")).unwrap();
        let source = installation_in(place("data"));
        let listed = |class| source.list_class(class).map(|listing| listing.files);
        let names = |class| -> Vec<String> {
            listed(class).unwrap().into_iter().map(|file| file.path).collect()
        };
        assert_eq!(names(FileClass::Immutable), ["storage/artifacts/sha256/ab/abcd"]);
        assert_eq!(names(FileClass::Fenced), ["storage/audit/1.wal", MASTER_KEY_PATH]);

        let refused = |class| listed(class).unwrap_err().to_string();
        symlink(place("elsewhere"), place("large/sha256/cd")).unwrap();
        assert!(refused(FileClass::Immutable).contains("a backup does not follow it"));
        fs::remove_file(place("large/sha256/cd")).unwrap();
        fs::rename(place("large"), place("unmounted")).unwrap();
        assert!(refused(FileClass::Immutable).contains("leads nowhere"));
        fs::rename(place("unmounted"), place("large")).unwrap();
        rustix::fs::mkfifoat(rustix::fs::CWD, place("data/pipe"), rustix::fs::Mode::RUSR).unwrap();
        assert!(refused(FileClass::Fenced).contains("neither a file nor a directory"));
    }

    #[test]
    fn a_backup_without_the_file_of_the_master_key_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        write(&dir.path().join("storage/audit/1.wal"), "");
        let source = installation_in(dir.path().to_owned());
        let refused = source.list_class(FileClass::Fenced).unwrap_err().to_string();
        assert!(refused.contains("has no master.key"), "{refused}");
        let held_elsewhere = InstallationFiles { needs_master_key: false, ..source };
        let listing = held_elsewhere.list_class(FileClass::Fenced).unwrap();
        assert_eq!(paths(&listing), ["storage/audit/1.wal"]);
    }

    #[test]
    fn keys_refs_and_objects_are_backed_up_and_what_is_made_anew_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let data_dir = dir.path().to_owned();
        let files = [
            "cynode.log",
            "database",
            "engine/data/journal",
            "lock",
            "node/node.json",
            "node/node.key",
            "node/jobs/job_1/workspace/file",
            "postgres/data/PG_VERSION",
            "postgres/password",
            "programs/cynode-runner",
            "runner-ca.pem",
            "runner-client.key",
            "runner-client.pem",
            "runner-token",
            "setup-link",
            "storage/artifacts/incoming/upload",
            "storage/artifacts/sha256/ab/abcd",
            "storage/audit/1.wal",
            "storage/audit/lock",
            "storage/master.key",
            "storage/repositories/prj_1.git/HEAD",
            "storage/repositories/prj_1.git/objects/ab/cd",
            "storage/repositories/prj_1.git/objects/pack/tmp_pack_1",
            "storage/repositories/prj_1.git/packed-refs.lock",
            "storage/repositories/prj_1.git/refs/heads/feature/audit.log",
            "storage/repositories/prj_1.git/refs/heads/main",
            "storage/repositories/prj_1.git/refs/heads/page.new/top",
            "storage/tls/ca.key",
            "storage-sandboxes/tools/file",
        ];
        for file in files {
            let path = data_dir.join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, file).unwrap();
        }
        let source = installation_in(data_dir);
        let immutable = source.list_class(FileClass::Immutable).unwrap();
        let objects =
            ["storage/artifacts/sha256/ab/abcd", "storage/repositories/prj_1.git/objects/ab/cd"];
        assert_eq!(paths(&immutable), objects);
        let fenced = source.list_class(FileClass::Fenced).unwrap();
        let changing = [
            "database",
            "node/node.json",
            "node/node.key",
            "postgres/password",
            "storage/audit/1.wal",
            "storage/master.key",
            "storage/repositories/prj_1.git/HEAD",
            "storage/repositories/prj_1.git/refs/heads/feature/audit.log",
            "storage/repositories/prj_1.git/refs/heads/main",
            "storage/repositories/prj_1.git/refs/heads/page.new/top",
            "storage/tls/ca.key",
        ];
        assert_eq!(paths(&fenced), changing);
        assert!(fenced.directories.contains_key("storage/repositories/prj_1.git/objects"));
        assert!(!fenced.directories.contains_key("engine"));
    }

    #[test]
    fn storage_and_master_key_are_found_where_they_are_configured() {
        let dir = tempfile::tempdir().unwrap();
        let place = |name: &str| dir.path().join(name);
        let files = [
            "data/database",
            "data/storage/stale",
            "elsewhere/audit/1.wal",
            "elsewhere/tls/stale",
            "key",
            "key.next",
            "tls/ca.key",
        ];
        for file in files {
            fs::create_dir_all(place(file).parent().unwrap()).unwrap();
            fs::write(place(file), file).unwrap();
        }
        let source = InstallationFiles {
            data_dir: place("data"),
            storage: place("elsewhere"),
            master_key: Some(place("key")),
            needs_master_key: true,
            authority: Some(place("tls")),
        };
        let fenced = source.list_class(FileClass::Fenced).unwrap();
        let expected = [
            "database",
            "storage/audit/1.wal",
            "storage/master.key",
            "storage/master.key.next",
            "storage/tls/ca.key",
        ];
        assert_eq!(paths(&fenced), expected);
    }
}
