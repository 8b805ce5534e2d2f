//! Shared context of a running node.

use std::{
    collections::BTreeMap,
    fmt,
    path::PathBuf,
    sync::{Arc, Mutex},
    time::Duration,
};

use cynode_core::{
    ids::ProjectId,
    nodes::AgentReport,
    sync::lock_unpoisoned,
    workflow::jobs::{SandboxBackend, SandboxNeeds, WorkerChoice},
};
use cynode_packages::PackageProxy;
use futures::future::BoxFuture;
use tokio_util::task::TaskTracker;

use crate::{
    client::NodeClient,
    host::HostCommands,
    job::environment::LayerStore,
    sandbox::{Backend, SandboxLimits},
    sockets::AgentUpstream,
    store::NodeStore,
    workers::{JobWorker, WorkerError},
};

const MIB: u64 = 1024 * 1024;

/// Settings of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeSettings {
    /// Maximum number of concurrent jobs.
    pub slots: u16,
    /// Minimum free disk space, in bytes. Below it the node claims no job.
    pub min_free_disk_bytes: u64,
    /// Lease of a job: how long the node works without an acknowledged heartbeat.
    pub lease: Duration,
    /// Allowlist of hosts for packages. A job reaches a host only if it names it too.
    pub egress_hosts: Vec<String>,
    /// Whether agents ask for permission before they act. If false, they act freely in their sandbox.
    pub ask_permission: bool,
    /// Default and maximum resources of a job.
    pub job_limits: JobResourceLimits,
    /// Maximum size of all kept environments, in bytes.
    pub environments_max_bytes: u64,
    /// Maximum time that an environment is kept which no job uses.
    pub environments_max_age: Duration,
    /// Settings of the package proxy.
    pub packages: PackageSettings,
}

/// Settings of the package proxy.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct PackageSettings {
    /// Maximum size of the cache, in bytes.
    pub max_cache_bytes: u64,
    /// Registries by name, which win over those of the machine's package clients. They may hold credentials.
    pub upstreams: BTreeMap<String, String>,
    /// File of advisories.
    pub advisories: Option<PathBuf>,
    /// Whether only the cache answers.
    pub offline: bool,
}

impl fmt::Debug for PackageSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PackageSettings")
            .field("max_cache_bytes", &self.max_cache_bytes)
            .field("upstreams", &self.upstreams.keys())
            .field("advisories", &self.advisories)
            .field("offline", &self.offline)
            .finish()
    }
}

/// Maximum resources of one job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JobResourceLimits {
    /// Memory, in MiB.
    pub memory_mib: u32,
    /// CPU, in hundredths of a core.
    pub cpu_percent: u32,
    /// Number of processes.
    pub processes: u32,
    /// Disk space for workspace and home together, in MiB.
    pub disk_mib: u32,
    /// Size of the result bundle, in MiB.
    pub bundle_mib: u32,
}

impl JobResourceLimits {
    /// Returns the limits of one run of a job.
    pub(crate) fn run_limits(&self, needs: &SandboxNeeds, wall: Duration) -> SandboxLimits {
        let disk_bytes = self.disk_bytes(needs);
        SandboxLimits {
            memory_bytes: u64::from(clamp_request(needs.memory_mib, self.memory_mib)) * MIB,
            cpu_percent: clamp_request(needs.cpu_percent, self.cpu_percent),
            processes: clamp_request(needs.processes, self.processes),
            file_bytes: disk_bytes,
            open_files: 4096,
            disk_bytes,
            wall,
            tmp_bytes: disk_bytes.min(1024 * MIB),
            despite_low_disk: false,
        }
    }

    /// Returns the disk limit of a job, for workspace and home together.
    pub(crate) fn disk_bytes(&self, needs: &SandboxNeeds) -> u64 {
        u64::from(clamp_request(needs.disk_mib, self.disk_mib)) * MIB
    }

    pub(crate) fn bundle_bytes(&self) -> u64 {
        u64::from(self.bundle_mib) * MIB
    }
}

/// Clamps a requested value to the maximum; the maximum is the default.
fn clamp_request(asked: Option<u32>, most: u32) -> u32 {
    asked.map_or(most, |asked| asked.clamp(1, most))
}

/// Creates workers and detects coding agents.
pub trait WorkerFactory: Send + Sync {
    /// Creates the worker that a job asks for.
    fn create_worker(&self, choice: &WorkerChoice) -> Result<Box<dyn JobWorker>, WorkerError>;

    /// Detects the installed coding agents with the versions that they report.
    fn detect_agents<'a>(
        &'a self,
        backend: &'a Arc<dyn Backend>,
    ) -> BoxFuture<'a, Vec<AgentReport>>;
}

/// Shared context of a running node.
pub struct NodeContext {
    pub(crate) settings: NodeSettings,
    pub(crate) store: NodeStore,
    pub(crate) host: HostCommands,
    pub(crate) client: NodeClient,
    pub(crate) upstream: AgentUpstream,
    pub(crate) backends: Vec<AvailableBackend>,
    pub(crate) workshop: Arc<dyn WorkerFactory>,
    pub(crate) warnings: Vec<String>,
    /// Package proxy. Without it, environments that need packages are not set up.
    pub(crate) packages: Option<Arc<PackageProxy>>,
    pub(crate) tasks: TaskTracker,
    /// Kept environments.
    pub(crate) layers: Arc<LayerStore>,
    mirrors: Mutex<BTreeMap<ProjectId, Arc<tokio::sync::Mutex<()>>>>,
}

/// A backend that passed its probe.
#[derive(Clone)]
pub struct AvailableBackend {
    /// The sandbox backend.
    pub backend: Arc<dyn Backend>,
    /// Version that the backend reported.
    pub version: String,
}

/// Parts from which a node is built.
pub struct NodeParts {
    /// Settings of the node.
    pub settings: NodeSettings,
    /// State directory.
    pub store: NodeStore,
    /// Runner of host programs.
    pub host: HostCommands,
    /// Client of the orchestrator.
    pub client: NodeClient,
    /// URL for models and tools.
    pub agents_url: String,
    /// Working backends, the preferred one first.
    pub backends: Vec<AvailableBackend>,
    /// Factory of workers.
    pub workshop: Arc<dyn WorkerFactory>,
    /// Configuration warnings, for people.
    pub warnings: Vec<String>,
    /// Package proxy, if it could be opened.
    pub packages: Option<Arc<PackageProxy>>,
}

impl NodeContext {
    /// Builds a node context.
    pub fn new(parts: NodeParts) -> anyhow::Result<Self> {
        let NodeParts {
            settings,
            store,
            host,
            client,
            agents_url,
            backends,
            workshop,
            warnings,
            packages,
        } = parts;
        let upstream = AgentUpstream::new(&agents_url, client.tls())?;
        let (tasks, mirrors) = (TaskTracker::new(), Mutex::default());
        let layers = Arc::new(LayerStore::new(store.clone()));
        Ok(Self {
            settings,
            store,
            host,
            client,
            upstream,
            backends,
            workshop,
            warnings,
            packages,
            tasks,
            layers,
            mirrors,
        })
    }

    /// Selects the backend of a job: the requested one, or the node's first that meets the needs.
    pub(crate) fn select_backend(&self, needs: &SandboxNeeds) -> Option<Arc<dyn Backend>> {
        let wanted = match (needs.backend, &needs.image) {
            (Some(kind), _) => Some(kind),
            (None, Some(_)) => Some(SandboxBackend::Podman),
            (None, None) => None,
        };
        let fits = |tried: &&AvailableBackend| {
            wanted.is_none_or(|kind| tried.backend.backend_kind() == kind)
        };
        self.backends.iter().find(fits).map(|tried| Arc::clone(&tried.backend))
    }

    /// Selects the backend that builds results. An image may lack git; the node's own system has it.
    pub(crate) fn select_trusted_backend(&self) -> Option<Arc<dyn Backend>> {
        let plain =
            |tried: &&AvailableBackend| tried.backend.backend_kind() == SandboxBackend::Bubblewrap;
        self.backends.iter().find(plain).map(|tried| Arc::clone(&tried.backend))
    }

    /// Ends every sandbox run of a job.
    pub(crate) async fn end_job_sandboxes(&self, job: &str) {
        for tried in &self.backends {
            tried.backend.end_job(job).await;
        }
    }

    /// Returns the lock that serializes changes of a project's mirror.
    pub(crate) fn mirror_lock(&self, project: ProjectId) -> Arc<tokio::sync::Mutex<()>> {
        Arc::clone(lock_unpoisoned(&self.mirrors).entry(project).or_default())
    }

    /// Returns whether there is disk space for another job.
    pub(crate) fn has_disk_space(&self) -> bool {
        match self.store.free_bytes() {
            Ok(free) => free >= self.settings.min_free_disk_bytes,
            Err(error) => {
                tracing::warn!(event = "disk.measure_failed", %error, "free space cannot be measured");
                false
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_gets_what_it_asks_for_up_to_what_the_node_gives() {
        let most = JobResourceLimits {
            memory_mib: 1024,
            cpu_percent: 100,
            processes: 64,
            disk_mib: 2048,
            bundle_mib: 10,
        };
        let wall = Duration::from_secs(9);
        let nothing = most.run_limits(&SandboxNeeds::default(), wall);
        let asked = SandboxNeeds {
            memory_mib: Some(512),
            cpu_percent: Some(800),
            processes: Some(0),
            disk_mib: Some(1),
            ..SandboxNeeds::default()
        };
        let asked = most.run_limits(&asked, wall);
        assert_eq!((nothing.memory_bytes, nothing.cpu_percent), (1024 * MIB, 100));
        assert_eq!((nothing.processes, nothing.disk_bytes), (64, 2048 * MIB));
        assert_eq!((asked.memory_bytes, asked.cpu_percent), (512 * MIB, 100));
        assert_eq!((asked.processes, asked.disk_bytes, asked.wall), (1, MIB, wall));
    }
}
