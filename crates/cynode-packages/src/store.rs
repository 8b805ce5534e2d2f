//! Content-addressed cache. A file appears under its SHA-256 by an atomic rename after it was checked and synced; an entry maps the key of a
//! request to a file. Killed at any moment, the cache holds whole files only.

use std::{
    collections::BTreeSet,
    fs::{self, File},
    io::{self, Read, Write},
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::SystemTime,
};

use cynode_core::sync::lock_unpoisoned;
use rustix::fs::{Timespec, Timestamps, UTIME_NOW, UTIME_OMIT};
use serde::{Deserialize, Serialize};
use tempfile::{NamedTempFile, TempPath};

use crate::{
    error::PackageProxyError,
    integrity::{ExpectedDigest, hash_file, is_sha256_hex, sha256_text},
};

/// Maximum size of the file of an entry.
const MAX_ENTRY_BYTES: u64 = 64 << 10;

/// Maximum number of bytes of one file of an archive.
const MAX_IMPORT_FILE_BYTES: u64 = 8 << 30;

const FILES: &str = "files";
const ENTRIES: &str = "entries";
const TEMPORARY: &str = "tmp";
const LOCK: &str = "lock";

/// What is stored for the key of a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct CacheEntry {
    /// Key of the request.
    pub(crate) key: String,
    /// SHA-256 of the file, in hexadecimal.
    pub(crate) sha256: String,
    /// Size of the file.
    pub(crate) bytes: u64,
    /// Media type that the upstream gave.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) content_type: Option<String>,
    /// Validator of the upstream.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) etag: Option<String>,
    /// Validator of the upstream.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) last_modified: Option<String>,
    /// When it was fetched or validated, in seconds since 1970.
    pub(crate) fetched_at: i64,
    /// Digest that the index names, if it is not SHA-256.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) digest: Option<String>,
}

/// Size of the cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct StoreSize {
    pub(crate) files: u64,
    pub(crate) bytes: u64,
}

/// The cache in its directory.
#[derive(Debug)]
pub(crate) struct PackageStore {
    directory: PathBuf,
    max_bytes: u64,
    used_bytes: AtomicU64,
    /// Shared lock of all processes that have the cache open.
    _lock: File,
    pruning: Mutex<()>,
}

impl PackageStore {
    /// Opens a cache. What a killed process left half-written is removed, unless another process has the cache open: a node may be at
    /// work while somebody looks at its cache.
    pub(crate) fn open(directory: &Path, max_bytes: u64) -> io::Result<Self> {
        fs::create_dir_all(directory)?;
        // Other accounts of the machine need not know what is built here.
        fs::set_permissions(directory, fs::Permissions::from_mode(0o700))?;
        let lock =
            File::options().create(true).truncate(false).write(true).open(directory.join(LOCK))?;
        if lock.try_lock().is_ok() {
            match fs::remove_dir_all(directory.join(TEMPORARY)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
            lock.unlock()?;
        }
        lock.lock_shared()?;
        for name in [FILES, ENTRIES, TEMPORARY] {
            fs::create_dir_all(directory.join(name))?;
        }
        let store = Self {
            directory: directory.to_owned(),
            max_bytes,
            used_bytes: AtomicU64::new(0),
            _lock: lock,
            pruning: Mutex::default(),
        };
        store.used_bytes.store(store.measure_size()?.bytes, Ordering::Relaxed);
        Ok(store)
    }

    fn file_path(&self, sha256: &str) -> PathBuf {
        let shard = sha256.get(..2).unwrap_or("00");
        self.directory.join(FILES).join(shard).join(sha256)
    }

    fn entry_path(&self, key: &str) -> PathBuf {
        let name = sha256_text(key);
        let shard = name.get(..2).unwrap_or("00");
        self.directory.join(ENTRIES).join(shard).join(format!("{name}.json"))
    }

    /// Returns the entry of a key if its file is there.
    pub(crate) fn find_entry(&self, key: &str) -> Option<CacheEntry> {
        let entry = read_entry(&self.entry_path(key)).ok()?;
        let file = fs::metadata(self.file_path(&entry.sha256)).ok()?;
        (entry.key == key && file.len() == entry.bytes).then_some(entry)
    }

    /// Returns the size of a file if it is there.
    pub(crate) fn find_file(&self, sha256: &str) -> Option<u64> {
        fs::metadata(self.file_path(sha256)).ok().map(|file| file.len())
    }

    /// Opens a file and marks it as used.
    pub(crate) fn open_file(&self, sha256: &str) -> io::Result<File> {
        let file = File::open(self.file_path(sha256))?;
        let now = Timestamps {
            last_access: Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
            last_modification: Timespec { tv_sec: 0, tv_nsec: UTIME_NOW },
        };
        // The order of removal is then less exact, which harms nobody.
        let _ = rustix::fs::futimens(&file, &now);
        Ok(file)
    }

    /// Reads a file whole, up to a limit.
    pub(crate) fn read_file(&self, sha256: &str, max_bytes: u64) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        self.open_file(sha256)?.take(max_bytes).read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    /// Makes a temporary file.
    pub(crate) fn create_temporary(&self) -> io::Result<NamedTempFile> {
        NamedTempFile::new_in(self.directory.join(TEMPORARY))
    }

    /// Returns whether there is disk space for another file.
    pub(crate) fn has_free_disk(&self, min_free_bytes: u64) -> bool {
        rustix::fs::statvfs(&self.directory)
            .is_ok_and(|disk| disk.f_bavail.saturating_mul(disk.f_frsize) >= min_free_bytes)
    }

    /// Stores a temporary file that was checked and synced.
    pub(crate) fn commit_file(&self, file: TempPath, sha256: &str, bytes: u64) -> io::Result<()> {
        let known = self.find_file(sha256).is_some();
        persist_file(file, &self.file_path(sha256))?;
        if !known {
            self.used_bytes.fetch_add(bytes, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Stores an entry. Its file is there already.
    pub(crate) fn commit_entry(&self, entry: &CacheEntry) -> io::Result<()> {
        let mut file = self.create_temporary()?;
        file.write_all(&serde_json::to_vec(entry)?)?;
        file.as_file().sync_all()?;
        persist_file(file.into_temp_path(), &self.entry_path(&entry.key))
    }

    /// Returns whether the cache is larger than it may be.
    pub(crate) fn is_over_limit(&self) -> bool {
        self.used_bytes.load(Ordering::Relaxed) > self.max_bytes
    }

    /// Measures the cache.
    pub(crate) fn measure_size(&self) -> io::Result<StoreSize> {
        let mut size = StoreSize::default();
        for (_, metadata) in list_files(&self.directory.join(FILES))? {
            size.files += 1;
            size.bytes += metadata.len();
        }
        Ok(size)
    }

    /// Removes the least recently used files until the cache is nine tenths of its limit, then entries without a file. Returns the number
    /// of removed bytes.
    pub(crate) fn prune(&self) -> io::Result<u64> {
        let _alone = lock_unpoisoned(&self.pruning);
        let mut files = list_files(&self.directory.join(FILES))?;
        files.sort_by_key(|(_, metadata)| metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH));
        let mut used: u64 = files.iter().map(|(_, metadata)| metadata.len()).sum();
        let mut removed = 0;
        if used > self.max_bytes {
            for (path, metadata) in files {
                if used <= self.max_bytes / 10 * 9 {
                    break;
                }
                fs::remove_file(path)?;
                used = used.saturating_sub(metadata.len());
                removed += metadata.len();
            }
        }
        self.used_bytes.store(used, Ordering::Relaxed);
        for (path, _) in list_files(&self.directory.join(ENTRIES))? {
            let kept = read_entry(&path).is_ok_and(|it| self.find_file(&it.sha256).is_some());
            if !kept {
                fs::remove_file(path)?;
            }
        }
        Ok(removed)
    }

    /// Writes the cache into one tar file, which appears whole or not at all.
    pub(crate) fn export(&self, to: &Path) -> Result<StoreSize, PackageProxyError> {
        let failed = |error| PackageProxyError::io("the cache could not be exported", error);
        let folder = to.parent().filter(|it| !it.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let target = NamedTempFile::new_in(folder).map_err(failed)?;
        let size = self.write_archive(target.as_file()).map_err(failed)?;
        persist_file(target.into_temp_path(), to).map_err(failed)?;
        Ok(size)
    }

    fn write_archive(&self, target: &File) -> io::Result<StoreSize> {
        let mut archive = tar::Builder::new(io::BufWriter::new(target));
        let mut size = StoreSize::default();
        for (path, _) in list_files(&self.directory.join(FILES))? {
            let name = file_name(&path);
            if is_sha256_hex(&name) {
                let mut file = File::open(&path)?;
                size.files += 1;
                size.bytes += file.metadata()?.len();
                archive.append_file(Path::new(FILES).join(name), &mut file)?;
            }
        }
        for (path, _) in list_files(&self.directory.join(ENTRIES))? {
            let mut file = File::open(&path)?;
            archive.append_file(Path::new(ENTRIES).join(file_name(&path)), &mut file)?;
        }
        archive.into_inner()?.flush()?;
        target.sync_all()?;
        Ok(size)
    }

    /// Takes over a tar file of [`Self::export`]. Every file is checked against its digest before the first one is taken over.
    pub(crate) fn import(&self, from: &Path) -> Result<StoreSize, PackageProxyError> {
        let failed = |error| PackageProxyError::io("the cache could not be imported", error);
        let archive = File::open(from).map_err(failed)?;
        let folder = tempfile::tempdir_in(self.directory.join(TEMPORARY)).map_err(failed)?;
        let (files, entries) = unpack_archive(archive, folder.path())?;
        let mut size = StoreSize::default();
        for (sha256, path) in files {
            let bytes = fs::metadata(&path).map_err(failed)?.len();
            size.files += 1;
            size.bytes += bytes;
            let path = TempPath::try_from_path(path).map_err(failed)?;
            self.commit_file(path, &sha256, bytes).map_err(failed)?;
        }
        for entry in entries {
            let newer =
                self.find_entry(&entry.key).is_some_and(|it| it.fetched_at >= entry.fetched_at);
            if !newer {
                self.commit_entry(&entry).map_err(failed)?;
            }
        }
        Ok(size)
    }
}

type UnpackedFiles = Vec<(String, PathBuf)>;

/// Unpacks an archive into an empty folder and checks all of it.
fn unpack_archive(
    archive: File,
    folder: &Path,
) -> Result<(UnpackedFiles, Vec<CacheEntry>), PackageProxyError> {
    let failed = |error| PackageProxyError::io("the archive could not be read", error);
    let refused = |reason: String| PackageProxyError::Archive(reason);
    let (mut files, mut entries, mut names) =
        (Vec::new(), Vec::<CacheEntry>::new(), BTreeSet::new());
    let mut archive = tar::Archive::new(archive);
    for member in archive.entries().map_err(failed)? {
        let mut member = member.map_err(failed)?;
        let path = member.path().map_err(failed)?.into_owned();
        let name = file_name(&path);
        let folder_name = path.parent().and_then(Path::to_str).unwrap_or_default().to_owned();
        if !member.header().entry_type().is_file() || member.size() > MAX_IMPORT_FILE_BYTES {
            return Err(refused(format!("`{}` is no file of a cache", path.display())));
        }
        if folder_name == ENTRIES && member.size() <= MAX_ENTRY_BYTES {
            let entry = serde_json::from_reader(&mut member)
                .map_err(|error| refused(format!("`{}`: {error}", path.display())))?;
            entries.push(entry);
        } else if folder_name == FILES && is_sha256_hex(&name) {
            let target = folder.join(&name);
            let mut file = File::create_new(&target).map_err(failed)?;
            io::copy(&mut member, &mut file).map_err(failed)?;
            file.sync_all().map_err(failed)?;
            let mut written = File::open(&target).map_err(failed)?;
            let actual = hash_file(&mut written, None).map_err(failed)?;
            if actual.as_deref() != Ok(name.as_str()) {
                return Err(refused(format!("`{}` does not have its digest", path.display())));
            }
            names.insert(name.clone());
            files.push((name, target));
        } else {
            return Err(refused(format!("`{}` is no file of a cache", path.display())));
        }
    }
    for entry in &entries {
        check_imported_entry(entry, &names, folder)?;
    }
    Ok((files, entries))
}

fn check_imported_entry(
    entry: &CacheEntry,
    names: &BTreeSet<String>,
    folder: &Path,
) -> Result<(), PackageProxyError> {
    let failed = |error| PackageProxyError::io("the archive could not be read", error);
    if !names.contains(&entry.sha256) {
        return Err(PackageProxyError::Archive(format!("the file of `{}` is missing", entry.key)));
    }
    let mut file = File::open(folder.join(&entry.sha256)).map_err(failed)?;
    let same_size = file.metadata().map_err(failed)?.len() == entry.bytes;
    let digest = entry.digest.as_deref().map(ExpectedDigest::parse);
    let right = match digest {
        None => true,
        Some(None) => false,
        Some(Some(digest)) => hash_file(&mut file, Some(&digest)).map_err(failed)?.is_ok(),
    };
    if same_size && right {
        return Ok(());
    }
    Err(PackageProxyError::Archive(format!("`{}` does not have its digest", entry.key)))
}

fn read_entry(path: &Path) -> io::Result<CacheEntry> {
    let mut text = Vec::new();
    File::open(path)?.take(MAX_ENTRY_BYTES).read_to_end(&mut text)?;
    Ok(serde_json::from_slice(&text)?)
}

/// Renames a temporary file to its name, and makes the name durable.
fn persist_file(file: TempPath, target: &Path) -> io::Result<()> {
    let folder = target.parent().unwrap_or(Path::new("."));
    fs::create_dir_all(folder)?;
    file.persist(target).map_err(|error| error.error)?;
    File::open(folder)?.sync_all()
}

/// Lists the files of the folders of a directory.
fn list_files(directory: &Path) -> io::Result<Vec<(PathBuf, fs::Metadata)>> {
    let mut files = Vec::new();
    for folder in fs::read_dir(directory)? {
        let folder = folder?;
        if !folder.file_type()?.is_dir() {
            continue;
        }
        for file in fs::read_dir(folder.path())? {
            let file = file?;
            match file.metadata() {
                Ok(metadata) if metadata.is_file() => files.push((file.path(), metadata)),
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
    }
    Ok(files)
}

fn file_name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}
