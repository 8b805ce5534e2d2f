//! Unix sockets of a sandbox: they forward to the orchestrator's models and tools and to nothing else.
//!
//! **Invariant**: a process in the sandbox chooses neither the address nor the identity, and only the listed paths. The
//! node adds the job's token; the sandbox never sees it. Semaphores bound the connections.

mod forward;
mod package_report;

use std::{
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

use cynode_core::{
    environments::{PackagePolicy, PackageSource},
    nodes::JobEventData,
};
use cynode_packages::{JobPackages, PACKAGE_PORT, PackageProxy};
use cynode_sandbox::{
    EGRESS_PORT, EgressAllowlist, EgressProxy, SocketForward, SocketHandler, bind_socket_server,
};
use secrecy::SecretString;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

pub(crate) use forward::AgentUpstream;
pub(crate) use package_report::PackageReport;

/// Port of the models inside the sandbox.
pub(crate) const MODELS_PORT: u16 = 4001;
/// Port of the tools inside the sandbox.
pub(crate) const TOOLS_PORT: u16 = 4002;

/// Name of the package proxy's socket.
const PACKAGES_NAME: &str = "packages";

/// Open sockets of a job. Dropping it closes them and ends every connection.
#[derive(Debug)]
pub(crate) struct JobSockets {
    stop: CancellationToken,
    dir: PathBuf,
    forwards: Vec<SocketForward>,
    /// Report of fetched packages.
    fetches: Option<Arc<PackageReport>>,
}

/// Egress permissions of a job.
pub(crate) struct JobEgress {
    /// Access to models and tools, if the worker may use them.
    pub(crate) agent: Option<AgentEgress>,
    /// Allowlist for package registries, if there is one. The job and the owner of the node both name its hosts.
    pub(crate) net: Option<EgressAllowlist>,
    /// Access to packages, if the environment gives it to agents and checks.
    pub(crate) packages: Option<PackageEgress>,
    /// Receives an event for each use.
    pub(crate) tell: Arc<dyn Fn(JobEventData) + Send + Sync>,
}

/// Access of an agent to models and tools.
pub(crate) struct AgentEgress {
    /// The orchestrator.
    pub(crate) upstream: AgentUpstream,
    /// Token of the job.
    pub(crate) token: SecretString,
    /// Trace header that every forwarded request carries.
    pub(crate) trace: String,
}

/// Access of a job to packages.
pub(crate) struct PackageEgress {
    /// The proxy of the node.
    pub(crate) proxy: Arc<PackageProxy>,
    /// Registries that the job may use.
    pub(crate) sources: Vec<PackageSource>,
    /// Package policy.
    pub(crate) policy: PackagePolicy,
}

/// Closes a socket and ends its connections when it is dropped.
#[derive(Debug)]
pub(crate) struct SocketGuard {
    stop: CancellationToken,
}

impl Drop for SocketGuard {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

/// Binds the socket of the package proxy below `dir`, until the returned guard is dropped.
pub(crate) fn bind_package_socket(
    dir: &Path,
    proxy: &Arc<PackageProxy>,
    job: JobPackages,
    tasks: &TaskTracker,
) -> io::Result<(SocketForward, SocketGuard)> {
    let guard = SocketGuard { stop: CancellationToken::new() };
    let handler = proxy.job_handler(job);
    let forward =
        bind_socket_server(dir, PACKAGES_NAME, PACKAGE_PORT, handler, tasks, &guard.stop)?;
    Ok((forward, guard))
}

impl JobSockets {
    /// Binds the sockets of a job below `dir`.
    pub(crate) fn bind_sockets(
        dir: &Path,
        reach: JobEgress,
        tasks: &TaskTracker,
    ) -> io::Result<Self> {
        let stop = CancellationToken::new();
        let mut sockets = Self { stop, dir: dir.to_owned(), forwards: Vec::new(), fetches: None };
        if let Some(AgentEgress { upstream, token, trace }) = reach.agent {
            let forward = |kind| {
                let (upstream, token, trace) = (upstream.clone(), token.clone(), trace.clone());
                Arc::new(forward::UpstreamForwarder::new(kind, upstream, token, trace))
            };
            let (models, tools) =
                (forward(forward::UpstreamKind::Models), forward(forward::UpstreamKind::Tools));
            sockets.bind_socket("llm", MODELS_PORT, models, tasks)?;
            sockets.bind_socket("mcp", TOOLS_PORT, tools, tasks)?;
        }
        if let Some(PackageEgress { proxy, sources, policy }) = reach.packages {
            let fetches = Arc::new(PackageReport::new(Arc::clone(&reach.tell)));
            let job = JobPackages { sources, policy, locked: [].into(), report: fetches.to_sink() };
            sockets.bind_socket(PACKAGES_NAME, PACKAGE_PORT, proxy.job_handler(job), tasks)?;
            sockets.fetches = Some(fetches);
        }
        if let Some(allowed) = reach.net {
            let tell = reach.tell;
            let note = Arc::new(move |text| tell(JobEventData::Note { text }));
            let proxy = EgressProxy::new(allowed, note, tasks.clone(), sockets.stop.clone());
            sockets.bind_socket("net", EGRESS_PORT, Arc::new(proxy), tasks)?;
        }
        Ok(sockets)
    }

    fn bind_socket(
        &mut self,
        name: &str,
        port: u16,
        handler: Arc<impl SocketHandler>,
        tasks: &TaskTracker,
    ) -> io::Result<()> {
        let forward = bind_socket_server(&self.dir, name, port, handler, tasks, &self.stop)?;
        self.forwards.push(forward);
        Ok(())
    }

    /// Returns the sockets in the form that a sandbox run expects.
    pub(crate) fn socket_forwards(&self) -> &[SocketForward] {
        &self.forwards
    }

    /// Returns the host path of the gateway socket.
    pub(crate) fn gateway_socket(&self) -> PathBuf {
        self.dir.join("mcp.sock")
    }
}

impl Drop for JobSockets {
    fn drop(&mut self) {
        self.stop.cancel();
        if let Some(fetches) = &self.fetches {
            fetches.flush_fetches();
        }
    }
}
