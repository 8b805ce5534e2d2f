//! The node's state on disk. Files are readable by the node's own user only. Directories above a bind mount are
//! traversable by other users (the users of jobs) and not listable; all others are closed.
//!
//! ```text
//! node.key                  the Ed25519 key
//! node.json                 the node's identity and its orchestrator
//! claim                     the claim in progress, so that a killed node does not lose its jobs
//! mirrors/<project>.git     fetched commits, one mirror per project; of git's own user where the node is root
//! agents/<name>/            installed agents
//! environments/<project>/   kept environments; see `job::environment::layer_store`
//! packages/                 cache of the package proxy
//! jobs/<job>/               assignment.json, merged.json, session, cache.json, turn.json, result.json, events,
//!                           workspace/, home/, out/, source/, sockets/, scratch/, setup-…/, exclude
//! sandboxes/                shared files of sandboxes
//! trash/                    directories to delete
//! ```
//!
//! **Invariant**: a directory below `jobs/` is a job exactly as long as it has an `assignment.json`. One rename moves
//! it to `trash/`, so no half-removed job exists.

use std::{
    collections::BTreeSet,
    fs::{self, File, OpenOptions},
    io::{self, Read, Write},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt},
    path::{Path, PathBuf},
};

use cynode_core::ids::{JobId, NodeId, ProjectId};
use cynode_wire::nodes::{JobAssignment, NodeResult};
use rustix::fs::{AtFlags, CWD, Timespec, Timestamps, UTIME_NOW};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use uuid::Uuid;

use crate::{clock::PersistentInstant, workspace::MergeResult};

/// Maximum size of a file that the node wrote itself.
const MAX_FILE_BYTES: u64 = 64 * 1024 * 1024;

/// Beginning of the names of directories of set-ups.
const SETUP_DIR_PREFIX: &str = "setup-";

/// Error of the state directory.
#[derive(Debug, thiserror::Error)]
#[error("{doing} {}", path.display())]
pub struct NodeStoreError {
    doing: &'static str,
    path: PathBuf,
    source: io::Error,
}

impl NodeStoreError {
    pub(crate) fn wrap_io(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |source| Self { doing, path: path.to_owned(), source }
    }

    /// Returns whether the disk, or the node's quota on it, is full.
    pub fn is_full(&self) -> bool {
        use io::ErrorKind::{QuotaExceeded, StorageFull};
        matches!(self.source.kind(), StorageFull | QuotaExceeded)
    }
}

/// Identity of the node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeIdentity {
    /// Unique id of the node.
    pub node_id: NodeId,
    /// Name of the node.
    pub name: String,
    /// URL of its orchestrator.
    pub url: String,
}

/// State directory of one node.
#[derive(Clone, Debug)]
pub struct NodeStore {
    root: PathBuf,
}

/// Lock that keeps a second node process out of the state directory while it is alive.
#[derive(Debug)]
pub struct StateDirLock(#[expect(dead_code, reason = "it is held, not read")] File);

impl NodeStore {
    /// Opens the directory and creates it if it is missing.
    pub fn open_state_dir(root: &Path) -> Result<Self, NodeStoreError> {
        create_traversable_dir(root)?;
        // A relative path would not survive being passed to other programs.
        let root = root.canonicalize().map_err(NodeStoreError::wrap_io("cannot find", root))?;
        for part in ["agents", "jobs", "mirrors", "sandboxes"] {
            create_traversable_dir(&root.join(part))?;
        }
        for part in ["environments", "trash"] {
            create_private_dir(&root.join(part))?;
        }
        Ok(Self { root })
    }

    /// Locks the directory for this process.
    pub fn acquire_lock(&self) -> Result<StateDirLock, NodeStoreError> {
        let path = self.root.join("lock");
        let file =
            OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).open(&path);
        let file = file.map_err(NodeStoreError::wrap_io("cannot open", &path))?;
        let taken = file.try_lock().map_err(io::Error::from);
        taken.map_err(NodeStoreError::wrap_io("another node has", &self.root))?;
        Ok(StateDirLock(file))
    }

    /// Returns the path of the directory.
    pub fn root_dir(&self) -> &Path {
        &self.root
    }

    /// Returns the path of the key file.
    pub fn key_file(&self) -> PathBuf {
        self.root.join("node.key")
    }

    /// Returns the directory of the shared sandbox files.
    pub(crate) fn sandboxes_dir(&self) -> PathBuf {
        self.root.join("sandboxes")
    }

    /// Returns the directory of the installed agents.
    pub fn agents_dir(&self) -> PathBuf {
        self.root.join("agents")
    }

    /// Returns the directory of the kept environments.
    pub(crate) fn environments_dir(&self) -> PathBuf {
        self.root.join("environments")
    }

    /// Returns the directory of the package cache.
    pub fn packages_dir(&self) -> PathBuf {
        self.root.join("packages")
    }

    /// Returns the path of a project's mirror.
    pub fn mirror_path(&self, project: ProjectId) -> PathBuf {
        self.root.join("mirrors").join(format!("{project}.git"))
    }

    /// Updates the last-used time of a project's mirror.
    pub(crate) fn touch_mirror(&self, project: ProjectId) {
        let now = Timespec { tv_sec: 0, tv_nsec: UTIME_NOW };
        let times = Timestamps { last_access: now, last_modification: now };
        // A mirror that does not exist yet gets its time when it is created.
        let _ = rustix::fs::utimensat(CWD, self.mirror_path(project), &times, AtFlags::empty());
    }

    /// Returns the least recently used mirror, except those of the given projects.
    pub(crate) fn oldest_mirror(&self, but: &BTreeSet<ProjectId>) -> Option<PathBuf> {
        let kept: BTreeSet<_> = but.iter().map(|project| self.mirror_path(*project)).collect();
        let entries = fs::read_dir(self.root.join("mirrors")).into_iter().flatten().flatten();
        let others = entries.map(|entry| entry.path()).filter(|path| !kept.contains(path));
        others.min_by_key(|path| fs::metadata(path).and_then(|meta| meta.modified()).ok())
    }

    /// Returns the file of the certificate authority that the node trusts. Every user may read it: git runs as another one.
    pub(crate) fn authority_file(&self) -> PathBuf {
        self.root.join("authority.pem")
    }

    /// Returns the file of the node's client certificate.
    pub(crate) fn certificate_file(&self) -> PathBuf {
        self.root.join("node.pem")
    }

    /// Persists the certificate authority.
    pub(crate) fn save_authority(&self, pem: &str) -> Result<(), NodeStoreError> {
        let path = self.authority_file();
        let written = replace_file(&path, pem.as_bytes(), |temporary| {
            fs::set_permissions(temporary, fs::Permissions::from_mode(0o644))?;
            fs::rename(temporary, &path)
        });
        written.map_err(NodeStoreError::wrap_io("cannot write", &path))
    }

    /// Persists the client certificate.
    pub(crate) fn save_certificate(&self, pem: &str) -> Result<(), NodeStoreError> {
        let path = self.certificate_file();
        let written = replace_file(&path, pem.as_bytes(), |temporary| fs::rename(temporary, &path));
        written.map_err(NodeStoreError::wrap_io("cannot write", &path))
    }

    /// Loads the node's identity; `None` before it has joined.
    pub fn load_identity(&self) -> Result<Option<NodeIdentity>, NodeStoreError> {
        read_json(&self.root.join("node.json"))
    }

    /// Persists the node's identity.
    pub fn save_identity(&self, identity: &NodeIdentity) -> Result<(), NodeStoreError> {
        write_json(&self.root.join("node.json"), identity)
    }

    /// Loads the claim that was in progress when the node last ran.
    pub(crate) fn load_claim(&self) -> Result<Option<Uuid>, NodeStoreError> {
        read_json(&self.root.join("claim"))
    }

    /// Persists the id of a claim before the claim is made.
    pub(crate) fn save_claim(&self, claim: Uuid) -> Result<(), NodeStoreError> {
        write_json(&self.root.join("claim"), &claim)
    }

    /// Persists a claimed job.
    pub(crate) fn add_job(&self, kept: &JobRecord) -> Result<JobDir, NodeStoreError> {
        let dir = self.job_dir(kept.assignment.job_id);
        create_traversable_dir(dir.as_path())?;
        write_json(&dir.as_path().join("assignment.json"), kept)?;
        Ok(dir)
    }

    /// Returns the directory of a job.
    pub(crate) fn job_dir(&self, job: JobId) -> JobDir {
        JobDir(self.root.join("jobs").join(job.to_string()))
    }

    /// Loads all jobs. A directory that is not a job or cannot be read is moved to the trash.
    pub(crate) fn load_jobs(&self) -> Result<Vec<(JobRecord, JobDir)>, NodeStoreError> {
        let path = self.root.join("jobs");
        let mut jobs = Vec::new();
        for entry in fs::read_dir(&path).map_err(NodeStoreError::wrap_io("cannot read", &path))? {
            let path = entry.map_err(NodeStoreError::wrap_io("cannot read", &path))?.path();
            let kept: Result<Option<JobRecord>, NodeStoreError> =
                read_json(&path.join("assignment.json"));
            match kept {
                Ok(Some(kept)) if path == self.job_dir(kept.assignment.job_id).0 => {
                    jobs.push((kept, JobDir(path)));
                }
                Ok(_) => self.move_to_trash(&path)?,
                Err(error) => {
                    tracing::warn!(event = "job.load_failed", %error, path = %path.display(), "a stored job cannot be read and is dropped");
                    self.move_to_trash(&path)?;
                }
            }
        }
        jobs.sort_by_key(|(kept, _)| kept.assignment.job_id);
        Ok(jobs)
    }

    /// Moves a directory to the trash in one rename. The cleanup loop deletes its content later.
    pub(crate) fn move_to_trash(&self, path: &Path) -> Result<(), NodeStoreError> {
        let to = self.root.join("trash").join(format!("{:032x}", rand::random::<u128>()));
        match fs::rename(path, &to) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            renamed => renamed.map_err(NodeStoreError::wrap_io("cannot remove", path)),
        }
    }

    /// Returns the trash entries to delete.
    pub(crate) fn trash_entries(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.root.join("trash")).into_iter().flatten();
        entries.flatten().map(|entry| entry.path()).collect()
    }

    /// Returns the free disk space in bytes.
    pub fn free_bytes(&self) -> Result<u64, NodeStoreError> {
        let stat = rustix::fs::statvfs(&self.root).map_err(io::Error::from);
        let stat = stat.map_err(NodeStoreError::wrap_io("cannot measure", &self.root))?;
        Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
    }
}

/// Persisted form of a job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct JobRecord {
    /// Assignment of the job.
    pub(crate) assignment: JobAssignment,
    /// Time of the claim.
    pub(crate) claimed: PersistentInstant,
}

/// Outcome of the worker's turn, persisted so that a restart does not run the worker again.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct TurnRecord {
    /// Whether the worker says that it succeeded.
    pub(crate) succeeded: bool,
    /// Whether there is a workspace in which the worker ran.
    pub(crate) prepared: bool,
    /// Result, as far as it is known.
    pub(crate) result: cynode_wire::nodes::WorkResult,
}

/// Directory of one job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct JobDir(PathBuf);

impl JobDir {
    pub(crate) fn as_path(&self) -> &Path {
        &self.0
    }

    pub(crate) fn workspace_dir(&self) -> PathBuf {
        self.0.join("workspace")
    }

    pub(crate) fn home_dir(&self) -> PathBuf {
        self.0.join("home")
    }

    pub(crate) fn out_dir(&self) -> PathBuf {
        self.0.join("out")
    }

    /// Returns the directory of the source of pinned files.
    pub(crate) fn source_dir(&self) -> PathBuf {
        self.0.join("source")
    }

    pub(crate) fn sockets_dir(&self) -> PathBuf {
        self.0.join("sockets")
    }

    /// Returns the directory that the kernel needs for each overlay of the job.
    pub(crate) fn scratch_dir(&self) -> PathBuf {
        self.0.join("scratch")
    }

    /// Returns new directories for a set-up that the job runs. They have the form of the job's own.
    pub(crate) fn new_setup_dir(&self) -> Self {
        Self(self.0.join(format!("{SETUP_DIR_PREFIX}{:08x}", rand::random::<u32>())))
    }

    /// Returns the directories of earlier set-ups of the job.
    pub(crate) fn setup_dirs(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(&self.0).into_iter().flatten().flatten();
        let names = entries.filter(|entry| {
            entry.file_name().as_encoded_bytes().starts_with(SETUP_DIR_PREFIX.as_bytes())
        });
        names.map(|entry| entry.path()).collect()
    }

    /// Returns the directory of the system packages of a set-up.
    pub(crate) fn system_root_dir(&self) -> PathBuf {
        self.0.join("root")
    }

    /// Returns the file with the paths that never become part of the result, as patterns of git.
    pub(crate) fn exclude_file(&self) -> PathBuf {
        self.0.join("exclude")
    }

    /// Loads the outcome of the merge.
    pub(crate) fn load_merge_result(&self) -> Result<Option<MergeResult>, NodeStoreError> {
        read_json(&self.0.join("merged.json"))
    }

    pub(crate) fn save_merge_result(&self, merged: &MergeResult) -> Result<(), NodeStoreError> {
        write_json(&self.0.join("merged.json"), merged)
    }

    /// Loads the session to resume; it exists once the workspace is ready and the agent has started.
    pub(crate) fn load_session(&self) -> Result<Option<String>, NodeStoreError> {
        read_json(&self.0.join("session"))
    }

    pub(crate) fn save_session(&self, session: &str) -> Result<(), NodeStoreError> {
        write_json(&self.0.join("session"), &session)
    }

    /// Returns the spool file of unacknowledged events.
    pub(crate) fn events_file(&self) -> PathBuf {
        self.0.join("events")
    }

    pub(crate) fn load_turn_record(&self) -> Result<Option<TurnRecord>, NodeStoreError> {
        read_json(&self.0.join("turn.json"))
    }

    pub(crate) fn save_turn_record(&self, worked: &TurnRecord) -> Result<(), NodeStoreError> {
        write_json(&self.0.join("turn.json"), worked)
    }

    pub(crate) fn load_result(&self) -> Result<Option<NodeResult>, NodeStoreError> {
        read_json(&self.0.join("result.json"))
    }

    pub(crate) fn save_result(&self, result: &NodeResult) -> Result<(), NodeStoreError> {
        write_json(&self.0.join("result.json"), result)
    }
}

/// Creates a directory that only its owner can enter.
pub(crate) fn create_private_dir(path: &Path) -> Result<(), NodeStoreError> {
    create_dir_with_mode(path, 0o700)
}

/// Creates a directory that other users can traverse and not list.
pub(crate) fn create_traversable_dir(path: &Path) -> Result<(), NodeStoreError> {
    create_dir_with_mode(path, 0o711)
}

fn create_dir_with_mode(path: &Path, mode: u32) -> Result<(), NodeStoreError> {
    let made = fs::DirBuilder::new().recursive(true).mode(mode).create(path);
    made.map_err(NodeStoreError::wrap_io("cannot make", path))?;
    let changed = fs::set_permissions(path, fs::Permissions::from_mode(mode));
    changed.map_err(NodeStoreError::wrap_io("cannot change the mode of", path))
}

pub(crate) fn read_json<T: DeserializeOwned>(path: &Path) -> Result<Option<T>, NodeStoreError> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error)
            if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) =>
        {
            return Ok(None);
        }
        Err(error) => return Err(NodeStoreError::wrap_io("cannot open", path)(error)),
    };
    let mut bytes = Vec::new();
    let read = file.take(MAX_FILE_BYTES).read_to_end(&mut bytes);
    read.map_err(NodeStoreError::wrap_io("cannot read", path))?;
    let value = serde_json::from_slice(&bytes).map_err(io::Error::from);
    value.map(Some).map_err(NodeStoreError::wrap_io("cannot understand", path))
}

pub(crate) fn write_json(path: &Path, value: &impl Serialize) -> Result<(), NodeStoreError> {
    let bytes = serde_json::to_vec(value).map_err(io::Error::from);
    let bytes = bytes.map_err(NodeStoreError::wrap_io("cannot write", path))?;
    let written = replace_file(path, &bytes, |temporary| fs::rename(temporary, path));
    written.map_err(NodeStoreError::wrap_io("cannot write", path))
}

/// Creates a file that only its owner can read. An existing file stays unchanged and gives `AlreadyExists`.
pub(crate) fn write_new(path: &Path, bytes: &[u8]) -> io::Result<()> {
    replace_file(path, bytes, |temporary| {
        let linked = fs::hard_link(temporary, path);
        fs::remove_file(temporary)?;
        linked
    })
}

/// Replaces a file atomically: a reader sees the new content or the old one, after a power cut too.
fn replace_file(
    path: &Path,
    bytes: &[u8],
    place: impl FnOnce(&Path) -> io::Result<()>,
) -> io::Result<()> {
    let temporary = path.with_extension(format!("{:016x}.new", rand::random::<u64>()));
    let write = || {
        let mut file =
            OpenOptions::new().create_new(true).write(true).mode(0o600).open(&temporary)?;
        file.write_all(bytes)?;
        file.sync_all()
    };
    if let Err(error) = write() {
        let _ = fs::remove_file(&temporary);
        return Err(error);
    }
    place(&temporary)?;
    match path.parent() {
        Some(parent) => File::open(parent)?.sync_all(),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use super::*;

    #[test]
    fn the_mirror_that_was_used_longest_ago_is_found_and_none_that_is_needed() {
        let root = tempfile::tempdir().unwrap();
        let store = NodeStore::open_state_dir(root.path()).unwrap();
        let projects = [1, 2, 3].map(|number| ProjectId::from_uuid(Uuid::from_u128(number)));
        for (days, project) in projects.iter().enumerate() {
            let path = store.mirror_path(*project);
            fs::create_dir(&path).unwrap();
            let then = SystemTime::UNIX_EPOCH + Duration::from_hours(24 * days as u64);
            File::open(&path).unwrap().set_modified(then).unwrap();
        }
        let oldest = |but: &[ProjectId]| store.oldest_mirror(&but.iter().copied().collect());
        assert_eq!(oldest(&[]), Some(store.mirror_path(projects[0])));
        assert_eq!(oldest(&projects[..1]), Some(store.mirror_path(projects[1])));
        assert_eq!(oldest(&projects), None);
        store.touch_mirror(projects[0]);
        assert_eq!(oldest(&[]), Some(store.mirror_path(projects[1])));
    }
}
