//! Sandbox runs of a job.

use std::{collections::BTreeMap, path::PathBuf, sync::Arc, time::Duration};

use futures::future::BoxFuture;
use tokio::time::Instant;

use crate::{
    node::JobResourceLimits,
    sandbox::{
        Backend, BindMount, EGRESS_PORT, SandboxError, SandboxLimits, SandboxProcess, SandboxRun,
        SocketForward, SystemLayers, proxy_environment,
    },
    store::JobDir,
    workers::{HOME_DIR, SandboxRunner, WORKSPACE_DIR},
};

/// Starts programs in the sandbox of one job, with its workspace, home, sockets and limits.
pub(crate) struct JobSandboxRunner {
    backend: Arc<dyn Backend>,
    job: String,
    image: Option<String>,
    binds: Vec<BindMount>,
    sockets: Vec<SocketForward>,
    limits: SandboxLimits,
    until: Instant,
}

impl JobSandboxRunner {
    pub(crate) fn new(
        backend: Arc<dyn Backend>,
        job: String,
        limits: SandboxLimits,
        until: Instant,
    ) -> Self {
        let (image, binds, sockets) = (None, Vec::new(), Vec::new());
        Self { backend, job, image, binds, sockets, limits, until }
    }

    /// Creates a runner for a program that uses no directory of a job.
    pub(crate) fn new_standalone(
        backend: Arc<dyn Backend>,
        job: String,
        most: &JobResourceLimits,
        until: Instant,
    ) -> Self {
        let wall = until.saturating_duration_since(Instant::now());
        Self::new(
            backend,
            job,
            most.run_limits(&cynode_core::workflow::jobs::SandboxNeeds::plain_sandbox(), wall),
            until,
        )
    }

    pub(crate) fn with_image(mut self, image: Option<String>) -> Self {
        self.image = image;
        self
    }

    /// Adds the directories of a job; `out` receives the files to export.
    pub(crate) fn with_folders(mut self, dir: &JobDir, out: PathBuf) -> Self {
        let writable =
            |host, inside: &str| BindMount { host, inside: inside.into(), writable: true };
        self.binds.push(writable(dir.workspace_dir(), WORKSPACE_DIR));
        self.binds.push(writable(dir.home_dir(), HOME_DIR));
        self.binds.push(writable(out, "/out"));
        self
    }

    pub(crate) fn with_sockets(mut self, sockets: &[SocketForward]) -> Self {
        self.sockets = sockets.to_vec();
        self
    }

    async fn start_program(
        &self,
        argv: &[String],
        env: &BTreeMap<String, String>,
        binds: &[BindMount],
    ) -> Result<SandboxProcess, SandboxError> {
        let mut env = env.clone();
        if self.sockets.iter().any(|socket| socket.port == EGRESS_PORT) {
            env.extend(proxy_environment());
        }
        let binds: Vec<_> = self.binds.iter().chain(binds).cloned().collect();
        let wall = self.until.saturating_duration_since(Instant::now());
        let limits =
            SandboxLimits { wall: wall.max(Duration::from_secs(1)), ..self.limits.clone() };
        let id = format!("{}-{:08x}", self.job, rand::random::<u32>());
        let run = SandboxRun {
            id: &id,
            job: &self.job,
            argv,
            env: &env,
            cwd: if binds.iter().any(|bind| bind.inside.as_os_str() == WORKSPACE_DIR) {
                WORKSPACE_DIR
            } else {
                "/"
            },
            image: self.image.as_deref(),
            binds: &binds,
            overlays: &[],
            system: &SystemLayers::default(),
            sockets: &self.sockets,
            limits: &limits,
        };
        self.backend.start_run(run).await
    }
}

impl SandboxRunner for JobSandboxRunner {
    fn run_program<'a>(
        &'a self,
        argv: &'a [String],
        env: &'a BTreeMap<String, String>,
        binds: &'a [BindMount],
    ) -> BoxFuture<'a, Result<SandboxProcess, SandboxError>> {
        Box::pin(self.start_program(argv, env, binds))
    }
}
