//! Shared context of a running node.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use cynode_core::{
    ids::ProjectId,
    nodes::AgentReport,
    sync::lock_unpoisoned,
    workflow::jobs::{SandboxBackend, SandboxNeeds, WorkerChoice},
};
use futures::future::BoxFuture;
use tokio_util::task::TaskTracker;

use crate::{
    client::NodeClient,
    host::HostCommands,
    sandbox::{Backend, SandboxLimits},
    sockets::AgentUpstream,
    store::NodeStore,
    workers::{JobWorker, WorkerError},
};

const MIB: u64 = 1024 * 1024;

/// How a node works.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeSettings {
    /// How many jobs it takes at once.
    pub slots: u16,
    /// Below this many bytes of free disk no job is taken.
    pub min_free_disk_bytes: u64,
    /// For how long it works on without having been heard by the orchestrator.
    pub lease: Duration,
    /// Hosts that jobs may ask for packages, when they name them too.
    pub egress_hosts: Vec<String>,
    /// Whether agents ask people before what they do, instead of being free in their sandbox.
    pub ask_permission: bool,
    /// What a job gets when it asks for nothing, and the most that it gets.
    pub job_limits: JobResourceLimits,
}

/// The most that one job gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JobResourceLimits {
    /// Memory, in MiB.
    pub memory_mib: u32,
    /// CPU, in hundredths of a core.
    pub cpu_percent: u32,
    /// Processes.
    pub processes: u32,
    /// Disk for workspace and home together, in MiB.
    pub disk_mib: u32,
    /// What it may bring back, in MiB.
    pub bundle_mib: u32,
}

impl JobResourceLimits {
    /// The limits of one run of a job.
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

    /// Most disk of a job, for workspace and home together.
    pub(crate) fn disk_bytes(&self, needs: &SandboxNeeds) -> u64 {
        u64::from(clamp_request(needs.disk_mib, self.disk_mib)) * MIB
    }

    pub(crate) fn bundle_bytes(&self) -> u64 {
        u64::from(self.bundle_mib) * MIB
    }
}

/// What was asked for, as far as it may be had.
fn clamp_request(asked: Option<u32>, most: u32) -> u32 {
    asked.map_or(most, |asked| asked.clamp(1, most))
}

/// Where workers come from.
pub trait WorkerFactory: Send + Sync {
    /// The worker that a job asks for.
    fn create_worker(&self, choice: &WorkerChoice) -> Result<Box<dyn JobWorker>, WorkerError>;

    /// The coding agents that are there, by their own word.
    fn detect_agents<'a>(
        &'a self,
        backend: &'a Arc<dyn Backend>,
    ) -> BoxFuture<'a, Vec<AgentReport>>;
}

/// A node.
pub struct NodeContext {
    pub(crate) settings: NodeSettings,
    pub(crate) store: NodeStore,
    pub(crate) host: HostCommands,
    pub(crate) client: NodeClient,
    pub(crate) upstream: AgentUpstream,
    pub(crate) backends: Vec<AvailableBackend>,
    pub(crate) workshop: Arc<dyn WorkerFactory>,
    pub(crate) warnings: Vec<String>,
    pub(crate) tasks: TaskTracker,
    mirrors: Mutex<BTreeMap<ProjectId, Arc<tokio::sync::Mutex<()>>>>,
}

/// A backend that was tried and works.
#[derive(Clone)]
pub struct AvailableBackend {
    /// The backend.
    pub backend: Arc<dyn Backend>,
    /// Its version.
    pub version: String,
}

/// What a node is made of.
pub struct NodeParts {
    /// How it works.
    pub settings: NodeSettings,
    /// Where its files are.
    pub store: NodeStore,
    /// How it starts programs of the host.
    pub host: HostCommands,
    /// The way to the orchestrator.
    pub client: NodeClient,
    /// Where models and tools are.
    pub agents_url: String,
    /// The backends that work, the preferred one first.
    pub backends: Vec<AvailableBackend>,
    /// Where workers come from.
    pub workshop: Arc<dyn WorkerFactory>,
    /// What is wrong with the configuration, for people.
    pub warnings: Vec<String>,
}

impl NodeContext {
    /// Puts a node together.
    pub fn new(parts: NodeParts) -> anyhow::Result<Self> {
        let NodeParts { settings, store, host, client, agents_url, backends, workshop, warnings } =
            parts;
        let upstream = AgentUpstream::new(&agents_url)?;
        let (tasks, mirrors) = (TaskTracker::new(), Mutex::default());
        Ok(Self {
            settings,
            store,
            host,
            client,
            upstream,
            backends,
            workshop,
            warnings,
            tasks,
            mirrors,
        })
    }

    /// The backend for a job: the one it asks for, or the node's first that can do it.
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

    /// The backend that puts results together. Images need not have git; the node's own system has.
    pub(crate) fn select_trusted_backend(&self) -> Option<Arc<dyn Backend>> {
        let plain =
            |tried: &&AvailableBackend| tried.backend.backend_kind() == SandboxBackend::Bubblewrap;
        self.backends.iter().find(plain).map(|tried| Arc::clone(&tried.backend))
    }

    /// Ends everything of a job that still lives.
    pub(crate) async fn end_job_sandboxes(&self, job: &str) {
        for tried in &self.backends {
            tried.backend.end_job(job).await;
        }
    }

    /// Lets one at a time change the mirror of a project.
    pub(crate) fn mirror_lock(&self, project: ProjectId) -> Arc<tokio::sync::Mutex<()>> {
        Arc::clone(lock_unpoisoned(&self.mirrors).entry(project).or_default())
    }

    /// Whether there is room for another job.
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
