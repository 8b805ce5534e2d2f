//! Build caches: directories with build results that checks left behind, kept per project and branch.
//!
//! A generation is a layer of its own, between the layer of the environment and the directories of a job. Nothing is copied when a job
//! starts, and no job changes it. What a check changed over a generation, together with what it left as it was, becomes the next one. A
//! generation belongs to the layer that it was made over: other lock files begin with an empty cache.
//!
//! **Trust**: checks read what commits of the default branch left, and nothing else. What the checks of a task leave is read by the
//! agents of the same task only. So no commit can bring build results into the evidence of another commit.

use std::{
    fs, io,
    os::unix::fs::{MetadataExt, PermissionsExt, symlink},
    path::{Path, PathBuf},
    sync::Arc,
};

use data_encoding::HEXLOWER;
use sha2::{Digest as _, Sha256};

use super::{LayerLease, LayerRecord, LayerStore, PARTIAL_MARK, is_partial};
use crate::{
    sandbox::{HiddenPaths, create_whiteout, find_hidden_paths, is_whiteout, sanitize_layer},
    store::{self, NodeStoreError},
    workspace::tree_files::fits_when_copied,
};

/// Branch of what commits of the default branch leave.
pub(crate) const DEFAULT_BRANCH: &str = "default";

/// Directories of the home directory in which compilers and package clients keep results.
pub(crate) const HOME_CACHE_DIRS: [&str; 5] =
    [".cache/ccache", ".cache/go-build", ".cache/pip", ".ccache", ".npm/_cacache"];

/// Beginning of the names of generations.
const CACHE_PREFIX: &str = "cache-";

/// Number of bytes of the digest in the name of a generation.
const SCOPE_BYTES: usize = 16;

/// Directories of a layer that hold build results.
const CACHED_TREES: [&str; 2] = ["work", "home"];

/// Cache of a branch over the layer of an environment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CacheScope {
    /// Directory of the project's layers.
    project: PathBuf,
    /// Name of the branch.
    branch: String,
    /// Beginning of the names of its generations.
    prefix: String,
}

impl CacheScope {
    pub(crate) fn new(layer: &LayerLease, branch: &str) -> Self {
        let mut digest = Sha256::new();
        let name = layer.dir_name();
        for part in [name.as_bytes(), branch.as_bytes()] {
            digest.update((part.len() as u64).to_le_bytes());
            digest.update(part);
        }
        let digest = digest.finalize();
        let short = digest.get(..SCOPE_BYTES).unwrap_or_default();
        Self {
            project: layer.dir.parent().unwrap_or(&layer.dir).to_owned(),
            branch: branch.to_owned(),
            prefix: format!("{CACHE_PREFIX}{}-", HEXLOWER.encode(short)),
        }
    }

    pub(crate) fn branch(&self) -> &str {
        &self.branch
    }

    /// Lists the generations, the newest first, with their numbers.
    fn list_generations(&self) -> Vec<(u64, PathBuf)> {
        let entries = fs::read_dir(&self.project).into_iter().flatten().flatten();
        let paths = entries.map(|entry| entry.path()).filter(|path| !is_partial(path));
        let mut generations: Vec<_> = paths
            .filter_map(|path| {
                let name = path.file_name()?.to_str()?;
                let number = u64::from_str_radix(name.strip_prefix(&self.prefix)?, 16).ok()?;
                Some((number, path))
            })
            .collect();
        generations.sort_by_key(|(number, _)| std::cmp::Reverse(*number));
        generations
    }

    fn generation_dir(&self, number: u64) -> PathBuf {
        self.project.join(format!("{}{number:016x}", self.prefix))
    }
}

/// Build results that were taken from the directories of a job. Dropping them removes them.
#[derive(Debug)]
pub(crate) struct BuildResults {
    layers: Arc<LayerStore>,
    partial: PathBuf,
    /// Size of the files.
    pub(crate) bytes: u64,
    /// When the files of the commit were written, in seconds of the wall clock.
    pub(crate) checkout_seconds: u64,
}

impl Drop for BuildResults {
    fn drop(&mut self) {
        // What stays is removed when the node starts.
        let _ = self.layers.store.move_to_trash(&self.partial);
    }
}

/// Directories of a job, with the paths below them that hold build results.
#[derive(Clone, Debug)]
pub(crate) struct CachedDirs {
    pub(crate) work: PathBuf,
    pub(crate) work_dirs: Vec<String>,
    pub(crate) home: PathBuf,
}

/// A generation that is to be stored.
pub(crate) struct NewGeneration {
    pub(crate) scope: CacheScope,
    pub(crate) results: BuildResults,
    /// The layer below.
    pub(crate) layer: LayerLease,
    /// The generation that the results were made over.
    pub(crate) earlier: Option<LayerLease>,
    pub(crate) record: LayerRecord,
    /// Maximum size. A cache that grew over it begins anew.
    pub(crate) max_bytes: u64,
}

impl LayerStore {
    /// Takes a lease of the newest generation of a cache.
    pub(crate) fn lease_newest_generation(
        self: &Arc<Self>,
        scope: &CacheScope,
    ) -> Option<LayerLease> {
        let mut generations = scope.list_generations().into_iter();
        generations.find_map(|(_, dir)| self.lease_layer(&dir).ok().flatten())
    }

    /// Takes a lease of a generation by its name.
    pub(crate) fn lease_generation(
        self: &Arc<Self>,
        layer: &LayerLease,
        name: &str,
    ) -> Option<LayerLease> {
        let is_name = name.starts_with(CACHE_PREFIX) && !name.contains('/');
        let dir = layer.dir.parent().filter(|_| is_name)?.join(name);
        self.lease_layer(&dir).ok().flatten()
    }

    /// Moves build results out of the directories of a job, if there are any. No process of the job may be alive.
    pub(crate) fn take_build_results(
        self: &Arc<Self>,
        scope: &CacheScope,
        dirs: &CachedDirs,
        checkout_seconds: u64,
        max_bytes: u64,
    ) -> io::Result<Option<BuildResults>> {
        let work_dirs = dirs.work_dirs.iter().map(|below| ("work", &dirs.work, below.as_str()));
        let home_dirs = HOME_CACHE_DIRS.into_iter().map(|below| ("home", &dirs.home, below));
        let there: Vec<_> = work_dirs
            .chain(home_dirs)
            .filter_map(|(tree, top, below)| Some((tree, below, find_real_dir(top, below)?)))
            .collect();
        if there.is_empty() {
            return Ok(None);
        }
        let name = format!("{}{PARTIAL_MARK}{:016x}", scope.prefix, rand::random::<u64>());
        let partial = scope.project.join(name);
        let mut results =
            BuildResults { layers: Arc::clone(self), partial, bytes: 0, checkout_seconds };
        for tree in CACHED_TREES {
            store::create_private_dir(&results.partial.join(tree)).map_err(io::Error::other)?;
        }
        let mut left = max_bytes;
        for (tree, below, from) in there {
            let to = results.partial.join(tree).join(below);
            fs::create_dir_all(to.parent().unwrap_or(&to))?;
            match fs::rename(&from, &to) {
                // It is part of one that was taken already.
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                renamed => renamed?,
            }
            if !fits_when_copied(&to, &mut left)? {
                return Ok(None);
            }
        }
        results.bytes = max_bytes - left;
        Ok(Some(results))
    }

    /// Stores build results as the next generation of a cache and removes earlier ones that no job uses. Blocks until everything is
    /// on disk. Returns the size of the generation, or `None` if the cache grew too large and begins anew.
    pub(crate) fn add_generation(
        &self,
        generation: NewGeneration,
    ) -> Result<Option<u64>, NodeStoreError> {
        let NewGeneration { scope, results, layer, earlier, record, max_bytes } = generation;
        let partial = &results.partial;
        let fail = NodeStoreError::wrap_io("cannot store", partial);
        let completed = complete_generation(partial, &layer, earlier.as_ref());
        let (bytes, entries) = completed.map_err(fail)?;
        let generations = scope.list_generations();
        let is_kept = bytes <= max_bytes;
        if is_kept {
            let number = generations.first().map_or(0, |(number, _)| number.saturating_add(1));
            let record = LayerRecord { has_root: false, bytes, entries, ..record };
            self.rename_layer(&scope.generation_dir(number), partial, &record)?;
        }
        // The lease would keep the one of before.
        drop(earlier);
        for (_, dir) in generations {
            self.remove_unused_layer(&dir);
        }
        Ok(is_kept.then_some(bytes))
    }
}

/// Completes the changes of a check to a generation: without marks of the kernel, with what the generation before has and they do not
/// hide, and with marks for what they hide of the layer below. Returns its size and the number of its files.
fn complete_generation(
    partial: &Path,
    layer: &LayerLease,
    earlier: Option<&LayerLease>,
) -> io::Result<(u64, u64)> {
    let mut hidden = Vec::new();
    for tree in CACHED_TREES {
        hidden.push((tree, find_hidden_paths(&partial.join(tree))?));
    }
    let stats = sanitize_layer(partial)?;
    let (mut bytes, mut entries) = (stats.bytes, stats.entries);
    for (tree, mut hidden) in hidden {
        let top = partial.join(tree);
        if let Some(earlier) = earlier {
            let linked = link_missing_files(&earlier.dir.join(tree), &top, &mut hidden)?;
            bytes = bytes.saturating_add(linked.0);
            entries = entries.saturating_add(linked.1);
        }
        mark_hidden_files(&layer.dir.join(tree), &top, hidden)?;
    }
    Ok((bytes, entries))
}

/// Links the files of an earlier generation into one that is to be stored: both are never written. Marks of deleted files are added to
/// `hidden`. Returns the size and the number of the files.
fn link_missing_files(
    earlier: &Path,
    top: &Path,
    hidden: &mut HiddenPaths,
) -> io::Result<(u64, u64)> {
    let (mut bytes, mut entries) = (0_u64, 0_u64);
    let mut marks = Vec::new();
    let mut open = vec![PathBuf::new()];
    while let Some(relative) = open.pop() {
        for entry in fs::read_dir(earlier.join(&relative))? {
            let entry = entry?;
            let (from, below) = (entry.path(), relative.join(entry.file_name()));
            let (meta, to) = (fs::symlink_metadata(&from)?, top.join(&below));
            if let Some(there) = read_metadata(&to)? {
                if there.is_dir() && meta.is_dir() && !hidden.opaque.contains(&below) {
                    open.push(below);
                }
                continue;
            }
            if hidden.deleted.contains(&below) {
                continue;
            }
            if is_whiteout(&meta) {
                marks.push(below);
                continue;
            }
            if meta.is_dir() {
                fs::create_dir(&to)?;
                fs::set_permissions(&to, fs::Permissions::from_mode(meta.mode() & 0o777))?;
                open.push(below);
            } else if meta.is_symlink() {
                symlink(fs::read_link(&from)?, &to)?;
            } else {
                fs::hard_link(&from, &to)?;
            }
            bytes = bytes.saturating_add(meta.blocks() * 512);
            entries += 1;
        }
    }
    hidden.deleted.extend(marks);
    Ok((bytes, entries))
}

/// Marks what is hidden of a layer.
fn mark_hidden_files(layer: &Path, top: &Path, hidden: HiddenPaths) -> io::Result<()> {
    let mut deleted = hidden.deleted;
    let mut open: Vec<PathBuf> = hidden.opaque.into_iter().collect();
    while let Some(relative) = open.pop() {
        let Some(directory) = relative.to_str().and_then(|below| find_real_dir(layer, below))
        else {
            continue;
        };
        for entry in fs::read_dir(directory)? {
            let entry = entry?;
            let below = relative.join(entry.file_name());
            match read_metadata(&top.join(&below))? {
                Some(there) if there.is_dir() && entry.file_type()?.is_dir() => open.push(below),
                Some(_) => {}
                None => {
                    deleted.insert(below);
                }
            }
        }
    }
    for below in deleted {
        let path = top.join(&below);
        let has_parent = path.parent().is_some_and(Path::is_dir);
        let is_in_layer = read_metadata(&layer.join(&below))?.is_some();
        if has_parent && is_in_layer && read_metadata(&path)?.is_none() {
            create_whiteout(&path)?;
        }
    }
    Ok(())
}

/// Returns the metadata of a file, if it is there. A symlink is not followed.
fn read_metadata(path: &Path) -> io::Result<Option<fs::Metadata>> {
    use io::ErrorKind::{NotADirectory, NotFound};
    match fs::symlink_metadata(path) {
        Err(error) if matches!(error.kind(), NotFound | NotADirectory) => Ok(None),
        read => read.map(Some),
    }
}

/// Returns a directory below another one, if no part of the path is a symlink.
fn find_real_dir(top: &Path, below: &str) -> Option<PathBuf> {
    let mut path = top.to_owned();
    for part in below.split('/') {
        path.push(part);
        if !fs::symlink_metadata(&path).is_ok_and(|meta| meta.is_dir()) {
            return None;
        }
    }
    Some(path)
}

#[cfg(test)]
mod tests;
