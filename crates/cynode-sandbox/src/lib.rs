//! Sandboxes: isolate a command and its children from the machine. Nodes run jobs in them, the gateway runs tool servers in them.
//!
//! One [`SandboxRun`] is one process tree. It has its own host user (where this process may assign one), its own
//! namespaces, no network, a read-only system, cgroup limits, and Landlock and seccomp filters ([`cynode_sandbox_init`]). Its
//! processes are one pid namespace and one cgroup. Both end with it, with this process, or at the next orphan cleanup
//! ([`Backend::cleanup_orphans`]). The only way out is a socket that is forwarded into it: [`EgressProxy`] connects to the public
//! addresses of allowlisted hosts.
//!
//! A path that a sandbox sees must be traversable by another user: the directory of [`SandboxOptions`] and those below it down to
//! the bind mount have mode 0711. Files that a job may change belong to its user and have mode 0700.
//!
//! **Invariant**: this crate knows neither the database nor a credential, so that the node may link it.

mod bubblewrap;
mod cgroups;
mod disk;
mod egress;
mod host_env;
mod layers;
mod output;
mod podman;
mod running;
mod socket_server;
mod system;
pub mod users;
mod visible_paths;

use std::{collections::BTreeMap, io, path::PathBuf, time::Duration};

use cynode_core::workflow::jobs::SandboxBackend;
use futures::future::BoxFuture;

pub use self::{
    bubblewrap::BubblewrapBackend,
    egress::{
        AddressConnector, EGRESS_PORT, EgressAllowlist, EgressDialer, EgressProxy, EgressReporter,
        HostResolver, proxy_environment,
    },
    host_env::{
        DEFAULT_USERS, HostEnv, SandboxOptions, check_dir_ownership, create_traversable_dir,
    },
    layers::{
        HiddenPaths, LayerStats, OverlayMount, SystemLayers, create_whiteout, find_hidden_paths,
        is_whiteout, remove_whiteouts, sanitize_layer,
    },
    output::{CapturedOutput, capture_tail},
    podman::PodmanBackend,
    running::{ExitReason, KillHandle, SandboxExit, SandboxProcess},
    socket_server::{
        SocketBody, SocketBodyError, SocketHandler, bind_socket_server, error_response, full_body,
    },
    visible_paths::VisiblePaths,
};

/// A sandbox implementation.
pub trait Backend: Send + Sync {
    /// Returns the kind of the backend.
    fn backend_kind(&self) -> SandboxBackend;
    /// Runs a probe in the sandbox. Returns the backend's version, or why it does not work and how to fix it.
    fn probe_backend(&self) -> BoxFuture<'_, Result<String, SandboxError>>;
    /// Returns whether runs can have overlays. If not, the caller copies the layer. The first call may take some milliseconds.
    fn supports_overlays(&self) -> bool;
    /// Starts a run. When it returns, the command is about to start and all restrictions are in effect.
    fn start_run<'a>(
        &'a self,
        run: SandboxRun<'a>,
    ) -> BoxFuture<'a, Result<SandboxProcess, SandboxError>>;
    /// Ends every run of the job and removes its remains.
    fn end_job<'a>(&'a self, job: &'a str) -> BoxFuture<'a, ()>;
    /// Ends every run of this node whose job is not in `keep`. Called at start and every few seconds.
    fn cleanup_orphans<'a>(&'a self, keep: &'a [String]) -> BoxFuture<'a, CleanupStats>;
}

/// Specification of one run.
#[derive(Clone, Copy, Debug)]
pub struct SandboxRun<'a> {
    /// Id of the run, unique on this node; letters, digits, `_` and `-`.
    pub id: &'a str,
    /// Id of the job. Runs of one job share its user.
    pub job: &'a str,
    /// Program and arguments.
    pub argv: &'a [String],
    /// Complete environment of the program.
    pub env: &'a BTreeMap<String, String>,
    /// Working directory inside the sandbox.
    pub cwd: &'a str,
    /// Container image, for backends that have images.
    pub image: Option<&'a str>,
    /// Bind mounts of host paths.
    pub binds: &'a [BindMount],
    /// Directories that are put together from layers. They are mounted before the bind mounts.
    pub overlays: &'a [OverlayMount],
    /// System below the sandbox.
    pub system: &'a SystemLayers,
    /// Sockets that are forwarded into the sandbox.
    pub sockets: &'a [SocketForward],
    /// Resource limits.
    pub limits: &'a SandboxLimits,
}

/// Bind mount of a host directory or file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BindMount {
    /// Path on the host.
    pub host: PathBuf,
    /// Path inside the sandbox.
    pub inside: PathBuf,
    /// Whether the sandbox may write to it. From the first run on, the tree then belongs to the job's user.
    pub writable: bool,
}

/// A Unix socket of the node, visible in the sandbox at `/run/cynode/<name>.sock` and at a port of 127.0.0.1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SocketForward {
    /// Path of the socket on the host.
    pub host: PathBuf,
    /// Port inside the sandbox.
    pub port: u16,
    /// Name inside the sandbox; letters, digits, `_` and `-`.
    pub name: String,
}

/// Resource limits of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SandboxLimits {
    /// Memory of all processes together, including files in /tmp.
    pub memory_bytes: u64,
    /// CPU, in hundredths of a core.
    pub cpu_percent: u32,
    /// Number of processes and threads.
    pub processes: u32,
    /// Size of the largest file.
    pub file_bytes: u64,
    /// Number of open files per process.
    pub open_files: u64,
    /// Disk usage of all writable paths and of the changes over layers.
    pub disk_bytes: u64,
    /// Size of each of /tmp and /dev/shm.
    pub tmp_bytes: u64,
    /// Whether the run continues when the disk is low. It is set for a short run that saves work which would be lost otherwise.
    pub despite_low_disk: bool,
    /// Wall-clock time.
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

/// Outcome of an orphan cleanup.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CleanupStats {
    /// Number of live runs that were ended.
    pub ended: usize,
    /// Number of runs whose remains were removed.
    pub removed: usize,
}

/// Error of a sandbox.
#[derive(Debug, thiserror::Error)]
pub enum SandboxError {
    /// The machine lacks a requirement.
    #[error("{what}: {todo}")]
    Missing {
        /// The missing requirement.
        what: String,
        /// How to fix it.
        todo: String,
    },
    /// The run specification is invalid.
    #[error("{0}")]
    Refused(String),
    /// The job's user cannot reach the path.
    #[error("{} cannot be reached by the sandbox's user: make it mode 0711", .0.display())]
    Unreachable(PathBuf),
    /// A writable file has another hard link, so that a change by the job would be visible elsewhere too.
    #[error("{} has another name elsewhere (a hard link): copy it", .0.display())]
    Shared(PathBuf),
    /// The sandbox did not start.
    #[error("the sandbox did not start: {0}")]
    Start(String),
    /// A system operation failed.
    #[error("{what}")]
    Io {
        /// The attempted operation.
        what: String,
        /// Cause of the failure.
        #[source]
        source: io::Error,
    },
}

impl SandboxError {
    /// Adds to a failed start of bubblewrap what the machine has to allow.
    #[must_use]
    pub fn with_namespace_fix(self) -> Self {
        match self {
            Self::Start(output) => Self::Missing {
                what: format!("bubblewrap makes no sandbox ({output})"),
                todo: "allow user namespaces: sysctl user.max_user_namespaces, and on Ubuntu \
                       kernel.apparmor_restrict_unprivileged_userns=0 or a profile for bwrap"
                    .into(),
            },
            other => other,
        }
    }
}

/// Adds the attempted operation to an I/O error.
trait IoContext<T> {
    fn with_io_context(self, what: impl FnOnce() -> String) -> Result<T, SandboxError>;
}

impl<T, E: Into<io::Error>> IoContext<T> for Result<T, E> {
    fn with_io_context(self, what: impl FnOnce() -> String) -> Result<T, SandboxError> {
        self.map_err(|error| SandboxError::Io { what: what(), source: error.into() })
    }
}
