//! The node's state on disk. Files are readable by the node's own user only. Directories above a bind mount are
//! traversable by other users (the users of jobs) and not listable; all others are closed.
//!
//! ```text
//! node.key                  the Ed25519 key
//! node.json                 the node's identity and its orchestrator
//! claim                     the claim in progress, so that a killed node does not lose its jobs
//! mirrors/<project>.git     fetched commits, one mirror per project
//! agents/<name>/            installed agents
//! jobs/<job>/               assignment.json, merged.json, session, turn.json, result.json, events, workspace/, home/, out/, source/, sockets/
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

/// Most bytes of a file that the node wrote itself.
const MAX_FILE_BYTES: u64 = 64 * 1024 * 1024;

/// Something about the state directory is wrong.
#[derive(Debug, thiserror::Error)]
#[error("{doing} {}", path.display())]
pub struct NodeStoreError {
    doing: &'static str,
    path: PathBuf,
    source: io::Error,
}

impl NodeStoreError {
    fn wrap_io(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |source| Self { doing, path: path.to_owned(), source }
    }

    /// Whether the disk is full, or the node's share of it.
    pub fn is_full(&self) -> bool {
        use io::ErrorKind::{QuotaExceeded, StorageFull};
        matches!(self.source.kind(), StorageFull | QuotaExceeded)
    }
}

/// Who the node is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeIdentity {
    /// Its id.
    pub node_id: NodeId,
    /// What it is called.
    pub name: String,
    /// Its orchestrator.
    pub url: String,
}

/// The state directory of one node.
#[derive(Clone, Debug)]
pub struct NodeStore {
    root: PathBuf,
}

/// Keeps a second node out of the same state directory for as long as it lives.
#[derive(Debug)]
pub struct StateDirLock(#[expect(dead_code, reason = "it is held, not read")] File);

impl NodeStore {
    /// Opens the directory, and makes it when it is missing.
    pub fn open_state_dir(root: &Path) -> Result<Self, NodeStoreError> {
        create_traversable_dir(root)?;
        // Relative paths would not survive being passed on to other programs.
        let root = root.canonicalize().map_err(NodeStoreError::wrap_io("cannot find", root))?;
        for part in ["agents", "jobs", "sandboxes"] {
            create_traversable_dir(&root.join(part))?;
        }
        for part in ["mirrors", "trash"] {
            create_private_dir(&root.join(part))?;
        }
        Ok(Self { root })
    }

    /// Takes the directory for this process.
    pub fn acquire_lock(&self) -> Result<StateDirLock, NodeStoreError> {
        let path = self.root.join("lock");
        let file =
            OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).open(&path);
        let file = file.map_err(NodeStoreError::wrap_io("cannot open", &path))?;
        let taken = file.try_lock().map_err(io::Error::from);
        taken.map_err(NodeStoreError::wrap_io("another node has", &self.root))?;
        Ok(StateDirLock(file))
    }

    /// Where it is.
    pub fn root_dir(&self) -> &Path {
        &self.root
    }

    /// The file of the key.
    pub fn key_file(&self) -> PathBuf {
        self.root.join("node.key")
    }

    /// What sandboxes stand on.
    pub(crate) fn sandboxes_dir(&self) -> PathBuf {
        self.root.join("sandboxes")
    }

    /// Where agents are installed.
    pub fn agents_dir(&self) -> PathBuf {
        self.root.join("agents")
    }

    /// The mirror of a project.
    pub fn mirror_path(&self, project: ProjectId) -> PathBuf {
        self.root.join("mirrors").join(format!("{project}.git"))
    }

    /// Notes that the mirror of a project is used now.
    pub(crate) fn touch_mirror(&self, project: ProjectId) {
        let now = Timespec { tv_sec: 0, tv_nsec: UTIME_NOW };
        let times = Timestamps { last_access: now, last_modification: now };
        // One that is not there yet is as new when it is made.
        let _ = rustix::fs::utimensat(CWD, self.mirror_path(project), &times, AtFlags::empty());
    }

    /// The mirror that was used longest ago, of those that are of no such project.
    pub(crate) fn oldest_mirror(&self, but: &BTreeSet<ProjectId>) -> Option<PathBuf> {
        let kept: BTreeSet<_> = but.iter().map(|project| self.mirror_path(*project)).collect();
        let entries = fs::read_dir(self.root.join("mirrors")).into_iter().flatten().flatten();
        let others = entries.map(|entry| entry.path()).filter(|path| !kept.contains(path));
        others.min_by_key(|path| fs::metadata(path).and_then(|meta| meta.modified()).ok())
    }

    /// Who the node is; none before it has joined.
    pub fn load_identity(&self) -> Result<Option<NodeIdentity>, NodeStoreError> {
        read_json(&self.root.join("node.json"))
    }

    /// Keeps who the node is.
    pub fn save_identity(&self, identity: &NodeIdentity) -> Result<(), NodeStoreError> {
        write_json(&self.root.join("node.json"), identity)
    }

    /// The claim that was being made when the node was last heard of.
    pub(crate) fn load_claim(&self) -> Result<Option<Uuid>, NodeStoreError> {
        read_json(&self.root.join("claim"))
    }

    /// Keeps the claim that is about to be made.
    pub(crate) fn save_claim(&self, claim: Uuid) -> Result<(), NodeStoreError> {
        write_json(&self.root.join("claim"), &claim)
    }

    /// Keeps a job that was claimed.
    pub(crate) fn add_job(&self, kept: &JobRecord) -> Result<JobDir, NodeStoreError> {
        let dir = self.job_dir(kept.assignment.job_id);
        create_traversable_dir(dir.as_path())?;
        write_json(&dir.as_path().join("assignment.json"), kept)?;
        Ok(dir)
    }

    /// The directory of a job.
    pub(crate) fn job_dir(&self, job: JobId) -> JobDir {
        JobDir(self.root.join("jobs").join(job.to_string()))
    }

    /// Every job that is there. What is no job, or cannot be read, goes to the trash.
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

    /// Takes a directory away at once; what was in it is removed by [`Store::empty_trash`].
    pub(crate) fn move_to_trash(&self, path: &Path) -> Result<(), NodeStoreError> {
        let to = self.root.join("trash").join(format!("{:032x}", rand::random::<u128>()));
        match fs::rename(path, &to) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            renamed => renamed.map_err(NodeStoreError::wrap_io("cannot remove", path)),
        }
    }

    /// What is to be removed.
    pub(crate) fn trash_entries(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.root.join("trash")).into_iter().flatten();
        entries.flatten().map(|entry| entry.path()).collect()
    }

    /// Free space, in bytes.
    pub fn free_bytes(&self) -> Result<u64, NodeStoreError> {
        let stat = rustix::fs::statvfs(&self.root).map_err(io::Error::from);
        let stat = stat.map_err(NodeStoreError::wrap_io("cannot measure", &self.root))?;
        Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
    }
}

/// A job, as it is kept.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct JobRecord {
    /// What is to be done.
    pub(crate) assignment: JobAssignment,
    /// When it was claimed.
    pub(crate) claimed: PersistentInstant,
}

/// What the worker came to, kept so that a restart does not let it work again.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct TurnRecord {
    /// Whether the worker says it is done.
    pub(crate) succeeded: bool,
    /// Whether there is a workspace that it worked in.
    pub(crate) prepared: bool,
    /// The result, as far as it is known.
    pub(crate) result: cynode_wire::nodes::WorkResult,
}

/// The directory of one job.
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

    /// What files that checks go by are taken from.
    pub(crate) fn source_dir(&self) -> PathBuf {
        self.0.join("source")
    }

    pub(crate) fn sockets_dir(&self) -> PathBuf {
        self.0.join("sockets")
    }

    /// What became of the commits that were to be put together.
    pub(crate) fn load_merge_result(&self) -> Result<Option<MergeResult>, NodeStoreError> {
        read_json(&self.0.join("merged.json"))
    }

    pub(crate) fn save_merge_result(&self, merged: &MergeResult) -> Result<(), NodeStoreError> {
        write_json(&self.0.join("merged.json"), merged)
    }

    /// The session to take up again, once the workspace is ready and the agent has begun.
    pub(crate) fn load_session(&self) -> Result<Option<String>, NodeStoreError> {
        read_json(&self.0.join("session"))
    }

    pub(crate) fn save_session(&self, session: &str) -> Result<(), NodeStoreError> {
        write_json(&self.0.join("session"), &session)
    }

    /// Where events wait until the orchestrator has them.
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

/// Makes a directory that only its owner can enter.
pub(crate) fn create_private_dir(path: &Path) -> Result<(), NodeStoreError> {
    create_dir_with_mode(path, 0o700)
}

/// Makes a directory that strangers can pass through and not look into.
pub(crate) fn create_traversable_dir(path: &Path) -> Result<(), NodeStoreError> {
    create_dir_with_mode(path, 0o711)
}

fn create_dir_with_mode(path: &Path, mode: u32) -> Result<(), NodeStoreError> {
    let made = fs::DirBuilder::new().recursive(true).mode(mode).create(path);
    made.map_err(NodeStoreError::wrap_io("cannot make", path))?;
    let changed = fs::set_permissions(path, fs::Permissions::from_mode(mode));
    changed.map_err(NodeStoreError::wrap_io("cannot change the mode of", path))
}

fn read_json<T: DeserializeOwned>(path: &Path) -> Result<Option<T>, NodeStoreError> {
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

fn write_json(path: &Path, value: &impl Serialize) -> Result<(), NodeStoreError> {
    let bytes = serde_json::to_vec(value).map_err(io::Error::from);
    let bytes = bytes.map_err(NodeStoreError::wrap_io("cannot write", path))?;
    let written = replace_file(path, &bytes, |temporary| fs::rename(temporary, path));
    written.map_err(NodeStoreError::wrap_io("cannot write", path))
}

/// Writes a new file that nobody else can read; one that is there already stays as it is and gives `AlreadyExists`.
pub(crate) fn write_new(path: &Path, bytes: &[u8]) -> io::Result<()> {
    replace_file(path, bytes, |temporary| {
        let linked = fs::hard_link(temporary, path);
        fs::remove_file(temporary)?;
        linked
    })
}

/// Whoever reads `path` sees all of it or what was there before, also after a power cut.
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
