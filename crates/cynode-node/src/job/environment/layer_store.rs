//! Layers: what set-ups of environments left behind, read-only.
//!
//! ```text
//! environments/<project>/<key>/layer.json    what the layer is
//! environments/<project>/<key>/work/         files that set-up made in the workspace
//! environments/<project>/<key>/home/         the home directory
//! environments/<project>/<key>/root/         files of system packages, if there are any
//! environments/<project>/cache-<scope>-<n>/  the n-th generation of a build cache, in the same form; see [`build_cache`]
//! environments/<project>/<key>.partial-…/    a layer that is being stored; removed at start
//! ```
//!
//! **Invariant**: one rename makes a layer and one rename removes it. No job sees a part of one, also after a kill or a power cut, and
//! none that a job uses is removed.

pub(crate) mod build_cache;

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{self, File},
    io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
    time::Duration,
};

use cynode_core::{environments::EnvironmentRef, ids::ProjectId, sync::lock_unpoisoned};
use data_encoding::HEXLOWER;
use rustix::fs::{AtFlags, CWD, Timespec, Timestamps, UTIME_NOW};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::{
    clock,
    sandbox::sanitize_layer,
    store::{self, NodeStore, NodeStoreError},
};

/// Name of the file by which a directory is a layer.
const RECORD_FILE: &str = "layer.json";

/// Part of the name of a directory that is no layer yet.
const PARTIAL_MARK: &str = ".partial-";

/// What a layer is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LayerRecord {
    /// The environment that was set up.
    pub(crate) environment: EnvironmentRef,
    /// Commit whose files it was set up with, if the project has a repository.
    pub(crate) base_commit: Option<String>,
    /// Whether that commit is of the default branch. Other set-ups start only from such a layer.
    pub(crate) is_trusted: bool,
    /// Modification time of the tracked files during set-up, in seconds of the wall clock.
    pub(crate) source_seconds: u64,
    /// Patterns of git for the topmost paths that set-up made in the workspace.
    pub(crate) exclude: Vec<String>,
    /// Whether there are system packages.
    pub(crate) has_root: bool,
    /// When it was made, in seconds of the wall clock.
    pub(crate) created_seconds: u64,
    /// How long set-up took, in milliseconds.
    pub(crate) setup_milliseconds: u64,
    /// Size in bytes.
    pub(crate) bytes: u64,
    /// Number of files and directories.
    pub(crate) entries: u64,
    /// What identifies the package policy of the set-up; empty if that forbade nothing.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(crate) policy: String,
    /// Packages that were fetched for it, as `SOURCE:PACKAGE==VERSION`.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub(crate) packages: BTreeSet<String>,
    /// Where the build results come from, if it is a generation of a build cache.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) cache: Option<CacheOrigin>,
}

/// Where the build results of a cache come from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct CacheOrigin {
    /// The branch whose jobs read it.
    pub(crate) branch: String,
    /// Paths whose files may have been others than those of the commit.
    pub(crate) pinned_paths: Vec<String>,
}

/// Directories that become a layer.
#[derive(Clone, Debug)]
pub(crate) struct LayerParts {
    pub(crate) work: PathBuf,
    pub(crate) home: PathBuf,
    pub(crate) root: Option<PathBuf>,
}

/// A stored layer, for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StoredLayer {
    /// Directory of the layer. Its name is the key, and the directory above is named after the project.
    pub(crate) dir: PathBuf,
    /// What it is.
    pub(crate) record: LayerRecord,
    /// When a job last started over it, in seconds of the wall clock.
    pub(crate) used_seconds: u64,
}

/// Layers of all projects of a node.
#[derive(Debug)]
pub(crate) struct LayerStore {
    store: NodeStore,
    /// Number of leases, by the layer's directory.
    leases: Mutex<BTreeMap<PathBuf, usize>>,
    /// Locks that let one set-up at a time make a layer.
    setup_locks: Mutex<BTreeMap<PathBuf, Arc<tokio::sync::Mutex<()>>>>,
}

/// A layer in use. It is not removed while this exists.
#[derive(Debug)]
pub(crate) struct LayerLease {
    layers: Arc<LayerStore>,
    dir: PathBuf,
    pub(crate) record: LayerRecord,
}

impl LayerLease {
    /// Returns the directory of the files that set-up made in the workspace.
    pub(crate) fn work_dir(&self) -> PathBuf {
        self.dir.join("work")
    }

    /// Returns the home directory.
    pub(crate) fn home_dir(&self) -> PathBuf {
        self.dir.join("home")
    }

    /// Returns the name of the layer in its project.
    pub(crate) fn dir_name(&self) -> String {
        self.dir.file_name().unwrap_or_default().to_string_lossy().into_owned()
    }

    /// Takes another lease of the same layer.
    pub(crate) fn lease_again(&self) -> Result<Option<Self>, NodeStoreError> {
        self.layers.lease_layer(&self.dir)
    }

    /// Returns the directory of the system packages, if there are any.
    pub(crate) fn root_dir(&self) -> Option<PathBuf> {
        self.record.has_root.then(|| self.dir.join("root"))
    }
}

impl Drop for LayerLease {
    fn drop(&mut self) {
        let mut leases = lock_unpoisoned(&self.layers.leases);
        if let Some(count) = leases.get_mut(&self.dir) {
            *count -= 1;
            if *count == 0 {
                leases.remove(&self.dir);
            }
        }
    }
}

/// Computes the key of a layer. `locks` is what git lists for the lock files of the commit, with the ids of their contents. `own_commit` is
/// the commit of a layer that is for this commit alone. `policy` identifies the package policy of its set-up; it is empty if that
/// forbids nothing.
pub(crate) fn layer_key(
    environment: &EnvironmentRef,
    locks: &[u8],
    own_commit: Option<&str>,
    policy: &str,
) -> String {
    let own_commit = own_commit.unwrap_or_default().as_bytes();
    let arch = std::env::consts::ARCH.as_bytes();
    let mut parts = vec![environment.digest.as_bytes(), arch, locks, own_commit];
    parts.extend(Some(policy.as_bytes()).filter(|policy| !policy.is_empty()));
    hash_parts(&parts)
}

/// Computes the key of the layer that replaces one whose packages are refused now.
pub(crate) fn replacement_key(key: &str, reason: &str) -> String {
    hash_parts(&[key.as_bytes(), reason.as_bytes()])
}

/// Returns the digest of parts and of where each ends.
fn hash_parts(parts: &[&[u8]]) -> String {
    let mut digest = Sha256::new();
    for part in parts {
        digest.update((part.len() as u64).to_le_bytes());
        digest.update(part);
    }
    HEXLOWER.encode(&digest.finalize())
}

impl LayerStore {
    pub(crate) fn new(store: NodeStore) -> Self {
        Self { store, leases: Mutex::default(), setup_locks: Mutex::default() }
    }

    /// Returns the directory of a layer.
    pub(crate) fn layer_dir(&self, project: ProjectId, key: &str) -> PathBuf {
        self.store.environments_dir().join(project.to_string()).join(key)
    }

    /// Returns the lock of a layer's set-up.
    pub(crate) fn setup_lock(&self, dir: &Path) -> Arc<tokio::sync::Mutex<()>> {
        let mut locks = lock_unpoisoned(&self.setup_locks);
        locks.retain(|_, lock| Arc::strong_count(lock) > 1);
        Arc::clone(locks.entry(dir.to_owned()).or_default())
    }

    /// Takes a lease of a layer, if there is one. A layer that cannot be read is removed.
    pub(crate) fn lease_layer(
        self: &Arc<Self>,
        dir: &Path,
    ) -> Result<Option<LayerLease>, NodeStoreError> {
        // The removal of layers takes the same lock.
        let mut leases = lock_unpoisoned(&self.leases);
        let record = match store::read_json(&dir.join(RECORD_FILE)) {
            Ok(Some(record)) => record,
            Ok(None) => return Ok(None),
            Err(error) => {
                tracing::warn!(event = "environment.unreadable", %error, "the environment is set up again");
                self.store.move_to_trash(dir)?;
                return Ok(None);
            }
        };
        *leases.entry(dir.to_owned()).or_default() += 1;
        drop(leases);
        touch_file(&dir.join(RECORD_FILE));
        Ok(Some(LayerLease { layers: Arc::clone(self), dir: dir.to_owned(), record }))
    }

    /// Takes a lease of the last used layer of the same environment, for other lock files, that a set-up may start from.
    pub(crate) fn lease_predecessor(
        self: &Arc<Self>,
        dir: &Path,
        environment: &EnvironmentRef,
        is_allowed: impl Fn(&LayerRecord) -> bool,
    ) -> Option<LayerLease> {
        let project = dir.parent()?;
        let others = list_project_layers(project).into_iter();
        let others = others.filter(|layer| {
            layer.dir != dir
                && layer.record.cache.is_none()
                && layer.record.is_trusted
                && layer.record.environment.digest == environment.digest
                && is_allowed(&layer.record)
        });
        let last = others.max_by_key(|layer| layer.used_seconds)?;
        self.lease_layer(&last.dir).ok().flatten()
    }

    /// Stores the directories of a set-up as a layer and takes a lease of it. Blocks until everything is on disk.
    pub(crate) fn add_layer(
        self: &Arc<Self>,
        dir: &Path,
        parts: &LayerParts,
        record: LayerRecord,
    ) -> Result<LayerLease, NodeStoreError> {
        let Some(project) = dir.parent() else {
            let source = io::Error::other("it is no path of a layer");
            return Err(NodeStoreError::wrap_io("cannot store", dir)(source));
        };
        store::create_private_dir(project)?;
        let mut name = dir.file_name().unwrap_or_default().to_owned();
        name.push(format!("{PARTIAL_MARK}{:016x}", rand::random::<u64>()));
        let partial = project.join(name);
        let stored = self.seal_layer(dir, &partial, parts, record);
        if stored.is_err() {
            self.store.move_to_trash(&partial)?;
        }
        stored?;
        self.lease_layer(dir)?.ok_or_else(|| {
            NodeStoreError::wrap_io("cannot find", dir)(io::ErrorKind::NotFound.into())
        })
    }

    fn seal_layer(
        &self,
        dir: &Path,
        partial: &Path,
        parts: &LayerParts,
        record: LayerRecord,
    ) -> Result<(), NodeStoreError> {
        store::create_private_dir(partial)?;
        let fail = NodeStoreError::wrap_io;
        let named = [
            ("work", Some(&parts.work)),
            ("home", Some(&parts.home)),
            ("root", parts.root.as_ref()),
        ];
        for (name, from) in named {
            if let Some(from) = from {
                fs::rename(from, partial.join(name)).map_err(fail("cannot store", from))?;
            }
        }
        let stats = sanitize_layer(partial).map_err(fail("cannot store", partial))?;
        let has_root = parts.root.is_some();
        let record = LayerRecord { has_root, bytes: stats.bytes, entries: stats.entries, ..record };
        self.rename_layer(dir, partial, &record)
    }

    /// Makes a complete directory a layer, in one rename after everything is on disk.
    fn rename_layer(
        &self,
        dir: &Path,
        partial: &Path,
        record: &LayerRecord,
    ) -> Result<(), NodeStoreError> {
        let fail = NodeStoreError::wrap_io;
        store::write_json(&partial.join(RECORD_FILE), record)?;
        // Without this, a power cut could leave the name of the layer and not the content of its files.
        let synced = File::open(partial).and_then(|file| Ok(rustix::fs::syncfs(file)?));
        synced.map_err(fail("cannot sync", partial))?;
        // The set-up of an aborted job may have stored the same layer meanwhile, and jobs may use it: then it stays.
        let leases = lock_unpoisoned(&self.leases);
        if leases.contains_key(dir) {
            return self.store.move_to_trash(partial);
        }
        self.store.move_to_trash(dir)?;
        fs::rename(partial, dir).map_err(fail("cannot store", dir))?;
        drop(leases);
        let above = dir.parent().unwrap_or(dir);
        let synced = File::open(above).and_then(|file| file.sync_all());
        synced.map_err(fail("cannot sync", above))
    }

    /// Lists all layers, the last used first.
    pub(crate) fn list_layers(&self) -> Vec<StoredLayer> {
        let projects = fs::read_dir(self.store.environments_dir()).into_iter().flatten().flatten();
        let mut layers: Vec<_> =
            projects.flat_map(|project| list_project_layers(&project.path())).collect();
        layers.sort_by_key(|layer| std::cmp::Reverse(layer.used_seconds));
        layers
    }

    /// Removes what killed processes left of layers that were not stored. Called before the first job.
    pub(crate) fn remove_partial_layers(&self) {
        let projects = fs::read_dir(self.store.environments_dir()).into_iter().flatten().flatten();
        for project in projects {
            for entry in fs::read_dir(project.path()).into_iter().flatten().flatten() {
                if !entry.path().join(RECORD_FILE).is_file() || is_partial(&entry.path()) {
                    self.remove_directory(&entry.path());
                }
            }
        }
    }

    /// Removes layers that no job uses: those that were not used for a while, and the longest unused until the rest fits. Returns their
    /// number.
    pub(crate) fn collect_garbage(&self, max_bytes: u64, max_age: Duration) -> usize {
        let now = clock::unix_seconds();
        let mut bytes = 0_u64;
        let mut removed = 0;
        for layer in self.list_layers() {
            let fits = bytes.saturating_add(layer.record.bytes) <= max_bytes;
            let recent = now.saturating_sub(layer.used_seconds) <= max_age.as_secs();
            if (fits && recent) || !self.remove_unused_layer(&layer.dir) {
                bytes = bytes.saturating_add(layer.record.bytes);
            } else {
                removed += 1;
            }
        }
        removed
    }

    /// Removes the layer that was not used for the longest time, to make room on the disk. Returns whether there was one.
    pub(crate) fn remove_oldest_layer(&self) -> bool {
        let layers = self.list_layers();
        layers.iter().rev().any(|layer| self.remove_unused_layer(&layer.dir))
    }

    /// Removes a layer, unless a job uses it. Returns whether it was removed.
    fn remove_unused_layer(&self, dir: &Path) -> bool {
        let leases = lock_unpoisoned(&self.leases);
        if leases.contains_key(dir) {
            return false;
        }
        let removed = self.remove_directory(dir);
        drop(leases);
        removed
    }

    fn remove_directory(&self, dir: &Path) -> bool {
        match self.store.move_to_trash(dir) {
            Ok(()) => {
                tracing::info!(event = "environment.removed", path = %dir.display(), "set up again when it is needed");
                true
            }
            Err(error) => {
                tracing::warn!(event = "environment.remove_failed", %error, "the environment is removed later");
                false
            }
        }
    }
}

fn is_partial(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name.to_string_lossy().contains(PARTIAL_MARK))
}

/// Lists the layers of a project. One that cannot be read is left out.
fn list_project_layers(project: &Path) -> Vec<StoredLayer> {
    let entries = fs::read_dir(project).into_iter().flatten().flatten();
    let directories = entries.map(|entry| entry.path()).filter(|path| !is_partial(path));
    let layers = directories.filter_map(|dir| {
        let file = dir.join(RECORD_FILE);
        let record = store::read_json(&file).ok().flatten()?;
        let used_seconds = u64::try_from(fs::metadata(&file).ok()?.mtime()).ok()?;
        Some(StoredLayer { dir, record, used_seconds })
    });
    layers.collect()
}

/// Updates the last-used time of a layer. A failure makes it look older.
fn touch_file(path: &Path) {
    let now = Timespec { tv_sec: 0, tv_nsec: UTIME_NOW };
    let times = Timestamps { last_access: now, last_modification: now };
    let _ = rustix::fs::utimensat(CWD, path, &times, AtFlags::empty());
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use uuid::Uuid;

    use super::*;

    struct Scene {
        dir: tempfile::TempDir,
        layers: Arc<LayerStore>,
    }

    impl Scene {
        fn new() -> Self {
            let dir = tempfile::tempdir().unwrap();
            let store = NodeStore::open_state_dir(&dir.path().join("state")).unwrap();
            Self { dir, layers: Arc::new(LayerStore::new(store)) }
        }

        fn project() -> ProjectId {
            ProjectId::from_uuid(Uuid::from_u128(1))
        }

        /// Stores a layer with one file of that many bytes in the workspace.
        fn add(&self, locks: &str, bytes: usize) -> LayerLease {
            let [work, home] = ["work", "home"].map(|name| {
                let path = self.dir.path().join(name);
                fs::create_dir(&path).unwrap();
                path
            });
            fs::write(work.join("made"), vec![0; bytes]).unwrap();
            let dir = self
                .layers
                .layer_dir(Self::project(), &layer_key(&environment(), locks.as_bytes(), None, ""));
            self.layers.add_layer(&dir, &LayerParts { work, home, root: None }, record()).unwrap()
        }

        fn set_age(lease: &LayerLease, days: u64) {
            let then = SystemTime::UNIX_EPOCH + Duration::from_secs(clock::unix_seconds())
                - Duration::from_hours(24 * days);
            File::open(lease.dir.join(RECORD_FILE)).unwrap().set_modified(then).unwrap();
        }
    }

    fn environment() -> EnvironmentRef {
        EnvironmentRef { version: 1, digest: "ab".repeat(32) }
    }

    fn record() -> LayerRecord {
        LayerRecord {
            environment: environment(),
            base_commit: None,
            is_trusted: true,
            source_seconds: 7,
            exclude: vec!["/made".to_owned()],
            has_root: false,
            created_seconds: 8,
            setup_milliseconds: 9,
            bytes: 0,
            entries: 0,
            policy: String::new(),
            packages: BTreeSet::new(),
            cache: None,
        }
    }

    #[test]
    fn the_key_depends_on_each_part_and_on_where_it_ends() {
        let other = EnvironmentRef { digest: "cd".repeat(32), ..environment() };
        let later = EnvironmentRef { version: 2, ..environment() };
        let key = |environment: &EnvironmentRef, locks: &str| {
            layer_key(environment, locks.as_bytes(), None, "")
        };
        assert_ne!(key(&environment(), "a"), key(&other, "a"));
        assert_ne!(key(&environment(), "a"), key(&environment(), "b"));
        assert_eq!(key(&environment(), "a"), key(&later, "a"));
        let with_policy = layer_key(&environment(), b"a", None, "policy");
        assert_ne!(key(&environment(), "a"), with_policy);
        assert_ne!(with_policy, layer_key(&environment(), b"a", Some("policy"), ""));
        assert_ne!(with_policy, replacement_key(&with_policy, "reason"));
    }

    #[test]
    fn a_layer_is_whole_or_not_there() {
        let scene = Scene::new();
        let lease = scene.add("a", 10);
        assert_eq!(fs::read(lease.work_dir().join("made")).unwrap().len(), 10);
        assert_eq!(lease.root_dir(), None);
        let project = lease.dir.parent().unwrap();
        let partial = project.join(format!("x{PARTIAL_MARK}1"));
        fs::create_dir(&partial).unwrap();
        fs::copy(lease.dir.join(RECORD_FILE), partial.join(RECORD_FILE)).unwrap();
        fs::create_dir(project.join("without-record")).unwrap();
        assert_eq!(scene.layers.list_layers().len(), 1);
        scene.layers.remove_partial_layers();
        assert_eq!(fs::read_dir(project).unwrap().count(), 1);
        let dir = lease.dir.clone();
        fs::write(dir.join(RECORD_FILE), "{").unwrap();
        drop(lease);
        assert!(scene.layers.lease_layer(&dir).unwrap().is_none());
        assert!(!dir.exists());
    }

    #[test]
    fn a_layer_that_is_used_is_not_replaced() {
        let scene = Scene::new();
        let used = scene.add("a", 10);
        let second = scene.add("a", 20);
        assert_eq!(fs::read(second.work_dir().join("made")).unwrap().len(), 10);
        drop((used, second));
        let third = scene.add("a", 30);
        assert_eq!(fs::read(third.work_dir().join("made")).unwrap().len(), 30);
        assert_eq!(fs::read_dir(third.dir.parent().unwrap()).unwrap().count(), 1);
    }

    #[test]
    fn old_layers_and_those_that_do_not_fit_are_removed_and_none_that_is_used() {
        let scene = Scene::new();
        let [old, large, used, new] = ["old", "large", "used", "new"]
            .map(|name| scene.add(name, if name == "large" { 1 << 20 } else { 10 }));
        for (lease, days) in [(&old, 40), (&large, 2), (&used, 50), (&new, 1)] {
            Scene::set_age(lease, days);
        }
        let dirs = [&old, &large, &used, &new].map(|lease| lease.dir.clone());
        drop((old, large, new));
        let month = Duration::from_hours(24 * 30);
        assert_eq!(scene.layers.collect_garbage(1 << 19, month), 2);
        assert_eq!(dirs.each_ref().map(|dir| dir.exists()), [false, false, true, true]);
        drop(used);
        assert!(scene.layers.remove_oldest_layer());
        assert_eq!(dirs.map(|dir| dir.exists()), [false, false, false, true]);
    }

    #[test]
    fn the_last_used_layer_of_the_same_environment_is_the_predecessor() {
        let scene = Scene::new();
        let (first, second) = (scene.add("a", 1), scene.add("b", 1));
        Scene::set_age(&first, 1);
        Scene::set_age(&second, 2);
        let dir = scene.layers.layer_dir(Scene::project(), "c");
        let found = scene.layers.lease_predecessor(&dir, &environment(), |_| true).unwrap();
        assert_eq!(found.dir, first.dir);
        let other = EnvironmentRef { digest: "cd".repeat(32), ..environment() };
        assert!(scene.layers.lease_predecessor(&dir, &other, |_| true).is_none());
        let strict = |record: &LayerRecord| record.policy == "strict";
        assert!(scene.layers.lease_predecessor(&dir, &environment(), strict).is_none());
    }
}
