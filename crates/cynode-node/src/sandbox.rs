//! Sandboxes: isolate a command and its children from the machine.
//!
//! One [`SandboxRun`] is one process tree. It has its own host user (where the node may assign one), its own
//! namespaces, no network, a read-only system, cgroup limits, and Landlock and seccomp filters ([`cynode_sandbox_init`]). Its
//! processes are one pid namespace and one cgroup. Both end with it, with the node, or at the next orphan cleanup
//! ([`Backend::cleanup_orphans`]).
//!
//! A path that a sandbox sees must be traversable by another user: the node's directory and those below it down to the
//! bind mount have mode 0711. Files that a job may change belong to its user and have mode 0700.

mod bubblewrap;
mod cgroups;
mod disk;
mod host_env;
mod output;
mod podman;
mod running;
mod users;
mod visible_paths;

use std::{collections::BTreeMap, io, path::PathBuf, time::Duration};

use cynode_core::workflow::jobs::SandboxBackend;
use futures::future::BoxFuture;

pub use self::{
    bubblewrap::BubblewrapBackend,
    host_env::{HostEnv, SandboxOptions},
    output::{CapturedOutput, capture_tail},
    podman::PodmanBackend,
    running::{ExitReason, KillHandle, SandboxExit, SandboxProcess},
    visible_paths::VisiblePaths,
};

/// Something that makes sandboxes.
pub trait Backend: Send + Sync {
    /// Which.
    fn backend_kind(&self) -> SandboxBackend;
    /// Runs something in it; gives its version, or why it does not work and what to do.
    fn probe_backend(&self) -> BoxFuture<'_, Result<String, SandboxError>>;
    /// Starts a run. When it returns, the command is about to start, locked in.
    fn start_run<'a>(
        &'a self,
        run: SandboxRun<'a>,
    ) -> BoxFuture<'a, Result<SandboxProcess, SandboxError>>;
    /// Ends whatever of the job still lives and removes what is left of it.
    fn end_job<'a>(&'a self, job: &'a str) -> BoxFuture<'a, ()>;
    /// Ends whatever of this node belongs to a job that is not kept: at start, and every few seconds.
    fn cleanup_orphans<'a>(&'a self, keep: &'a [String]) -> BoxFuture<'a, CleanupStats>;
}

/// What is to run, and in what.
#[derive(Clone, Copy, Debug)]
pub struct SandboxRun<'a> {
    /// Names it, on this node; letters, digits, `_` and `-`.
    pub id: &'a str,
    /// The job; several runs of one job share its user.
    pub job: &'a str,
    /// Program and arguments.
    pub argv: &'a [String],
    /// The whole environment.
    pub env: &'a BTreeMap<String, String>,
    /// Where it starts, inside.
    pub cwd: &'a str,
    /// The image, for backends that have images.
    pub image: Option<&'a str>,
    /// What of the host it is shown.
    pub binds: &'a [BindMount],
    /// The sockets that it is given.
    pub sockets: &'a [SocketForward],
    /// What it may use.
    pub limits: &'a SandboxLimits,
}

/// A directory or file of the host, inside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BindMount {
    /// On the host.
    pub host: PathBuf,
    /// Inside.
    pub inside: PathBuf,
    /// Whether it may be changed. It then belongs to the job's user from the first run on, with all that is in it.
    pub writable: bool,
}

/// A Unix socket of the node, inside: at `/run/cynode/<name>.sock` and at a port of 127.0.0.1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SocketForward {
    /// The socket.
    pub host: PathBuf,
    /// The port inside.
    pub port: u16,
    /// Its name inside; letters, digits, `_` and `-`.
    pub name: String,
}

/// What a run may use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SandboxLimits {
    /// Memory, of all its processes together, files in /tmp included.
    pub memory_bytes: u64,
    /// CPU, in hundredths of a core.
    pub cpu_percent: u32,
    /// Processes and threads.
    pub processes: u32,
    /// The largest file.
    pub file_bytes: u64,
    /// Open files of a process.
    pub open_files: u64,
    /// All that lies in what it may change.
    pub disk_bytes: u64,
    /// Each of /tmp and /dev/shm.
    pub tmp_bytes: u64,
    /// Whether it goes on when too little is left on the disk: it is short, and what it saves would else be lost.
    pub despite_low_disk: bool,
    /// Time.
    pub wall: Duration,
}

impl Default for SandboxLimits {
    fn default() -> Self {
        Self {
            memory_bytes: 4 << 30,
            cpu_percent: 200,
            processes: 512,
            file_bytes: 4 << 30,
            open_files: 4096,
            disk_bytes: 8 << 30,
            tmp_bytes: 1 << 30,
            despite_low_disk: false,
            wall: Duration::from_hours(1),
        }
    }
}

/// What a sweep found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CleanupStats {
    /// Runs that still lived and were ended.
    pub ended: usize,
    /// Runs of which something was left and is gone now.
    pub removed: usize,
}

/// Why there is no sandbox.
#[derive(Debug, thiserror::Error)]
pub enum SandboxError {
    /// Something of the machine is missing.
    #[error("{what}: {todo}")]
    Missing {
        /// What.
        what: String,
        /// What to do.
        todo: String,
    },
    /// The run asks for what cannot be.
    #[error("{0}")]
    Refused(String),
    /// The job's user cannot get there.
    #[error("{} cannot be reached by the sandbox's user: make it mode 0711", .0.display())]
    Unreachable(PathBuf),
    /// What the job may change would be changed elsewhere too.
    #[error("{} has another name elsewhere (a hard link): copy it", .0.display())]
    Shared(PathBuf),
    /// It did not start.
    #[error("the sandbox did not start: {0}")]
    Start(String),
    /// The machine did not do what it was asked.
    #[error("{what}")]
    Io {
        /// What was tried.
        what: String,
        /// Why it failed.
        #[source]
        source: io::Error,
    },
}

/// Says what was tried when it fails.
trait IoContext<T> {
    fn with_io_context(self, what: impl FnOnce() -> String) -> Result<T, SandboxError>;
}

impl<T, E: Into<io::Error>> IoContext<T> for Result<T, E> {
    fn with_io_context(self, what: impl FnOnce() -> String) -> Result<T, SandboxError> {
        self.map_err(|error| SandboxError::Io { what: what(), source: error.into() })
    }
}
