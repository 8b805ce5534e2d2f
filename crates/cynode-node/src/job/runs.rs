//! Sandbox runs of a job.

use std::{collections::BTreeMap, path::PathBuf, sync::Arc, time::Duration};

use cynode_core::environments::EnvironmentService;
use futures::future::BoxFuture;
use tokio::time::Instant;

use crate::{
    job::environment::{JobEnvironment, wrap_with_services},
    node::JobResourceLimits,
    sandbox::{
        Backend, BindMount, EGRESS_PORT, OverlayMount, SandboxError, SandboxLimits, SandboxProcess,
        SandboxRun, SocketForward, SystemLayers, proxy_environment,
    },
    store::JobDir,
    workers::{HOME_DIR, SandboxRunner, WORKSPACE_DIR, setup_step},
};

/// Starts programs in the sandbox of one job, with its workspace, home, sockets and limits.
pub(crate) struct JobSandboxRunner {
    backend: Arc<dyn Backend>,
    job: String,
    image: Option<String>,
    binds: Vec<BindMount>,
    sockets: Vec<SocketForward>,
    overlays: Vec<OverlayMount>,
    system: SystemLayers,
    variables: BTreeMap<String, String>,
    services: Vec<EnvironmentService>,
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
        Self {
            backend,
            job,
            image: None,
            binds: Vec::new(),
            sockets: Vec::new(),
            overlays: Vec::new(),
            system: SystemLayers::default(),
            variables: BTreeMap::new(),
            services: Vec::new(),
            limits,
            until,
        }
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

    /// Adds environment variables. They win over the base environment and over nothing else.
    pub(crate) fn with_variables(mut self, variables: BTreeMap<String, String>) -> Self {
        self.variables = variables;
        self
    }

    /// Sets the system below the sandbox.
    pub(crate) fn with_system(mut self, system: SystemLayers) -> Self {
        self.system = system;
        self
    }

    /// Puts the directories of a job over the layer of its environment, and adds its variables and services.
    pub(crate) fn with_environment(
        mut self,
        environment: Option<&JobEnvironment>,
        dir: &JobDir,
    ) -> Self {
        let Some(environment) = environment else { return self };
        self.overlays = environment.overlay_mounts(dir);
        let covered =
            |bind: &BindMount| self.overlays.iter().any(|overlay| overlay.inside == bind.inside);
        self.binds.retain(|bind| !covered(bind));
        self.services = environment.services().to_vec();
        self.with_system(environment.system_layers())
            .with_variables(environment.variables().clone())
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
        setup_step::add_variables(&mut env, &self.variables);
        if self.sockets.iter().any(|socket| socket.port == EGRESS_PORT) {
            env.extend(proxy_environment());
        }
        let beside;
        let argv = if self.services.is_empty() || !setup_step::needs_services(argv) {
            argv
        } else {
            beside = wrap_with_services(&self.services, argv);
            beside.as_slice()
        };
        let binds: Vec<_> = self.binds.iter().chain(binds).cloned().collect();
        let mut directories = (binds.iter().map(|bind| &bind.inside))
            .chain(self.overlays.iter().map(|overlay| &overlay.inside));
        let wall = self.until.saturating_duration_since(Instant::now());
        let limits =
            SandboxLimits { wall: wall.max(Duration::from_secs(1)), ..self.limits.clone() };
        let id = format!("{}-{:08x}", self.job, rand::random::<u32>());
        let run = SandboxRun {
            id: &id,
            job: &self.job,
            argv,
            env: &env,
            cwd: if directories.any(|inside| inside.as_os_str() == WORKSPACE_DIR) {
                WORKSPACE_DIR
            } else {
                "/"
            },
            image: self.image.as_deref(),
            binds: &binds,
            sockets: &self.sockets,
            overlays: &self.overlays,
            system: &self.system,
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
