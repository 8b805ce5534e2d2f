//! Sandbox backend that uses the host's system, by bubblewrap.

use std::{
    path::{Path, PathBuf},
    process::Stdio,
    sync::Arc,
};

use cynode_core::workflow::jobs::SandboxBackend;
use cynode_sandbox_init::{EnterSpec, InitSpec, PortForward, encode_launch_spec};
use futures::{FutureExt, future::BoxFuture};
use tokio::{process::Command, task::spawn_blocking};

use super::{
    Backend, BindMount, CleanupStats, ExitReason, HostEnv, IoContext, SandboxError, SandboxLimits,
    SandboxProcess, SandboxRun, SystemLayers, capture_tail,
    disk::DiskQuota,
    host_env::RunAllocation,
    layers::MountPlan,
    running::RunWatcher,
    system::{self, SystemView},
};

/// Files of `/proc` about the whole machine that no job needs.
const HIDDEN_PROC_FILES: [&str; 14] = [
    "/proc/cmdline",
    "/proc/config.gz",
    "/proc/diskstats",
    "/proc/interrupts",
    "/proc/iomem",
    "/proc/ioports",
    "/proc/kallsyms",
    "/proc/kcore",
    "/proc/key-users",
    "/proc/keys",
    "/proc/kmsg",
    "/proc/partitions",
    "/proc/sched_debug",
    "/proc/timer_list",
];
/// Path of the first process inside the sandbox.
const INIT_PATH: &str = "/run/cynode/sandbox-init";

/// Bubblewrap backend.
pub struct BubblewrapBackend {
    ground: Arc<HostEnv>,
    system: SystemView,
}

impl BubblewrapBackend {
    /// Creates the backend on the shared host environment of the node.
    pub fn new(ground: &Arc<HostEnv>) -> Result<Self, SandboxError> {
        let system = SystemView::prepare_view(&ground.options.directory)?;
        Ok(Self { ground: Arc::clone(ground), system })
    }

    /// Builds the arguments of bubblewrap. Directories that are made of layers are added to `plan` and bound from their mount points.
    fn bwrap_arguments(&self, run: &SandboxRun<'_>, plan: &mut MountPlan) -> Vec<String> {
        let mut all = split_words(
            "--unshare-all --unshare-user --disable-userns --die-with-parent --new-session --as-pid-1 \
             --uid 1000 --gid 1000 --cap-drop ALL --hostname sandbox",
        );
        all.extend(self.system.mount_arguments(run.system, plan));
        all.extend(split_words("--proc /proc"));
        for path in HIDDEN_PROC_FILES.iter().filter(|path| Path::new(path).exists()) {
            all.extend(["--ro-bind", "/dev/null", path].map(str::to_owned));
        }
        let size = run.limits.tmp_bytes;
        all.extend(split_words(&format!(
            "--dev /dev --perms 1777 --size {size} --tmpfs /dev/shm --remount-ro /dev \
             --perms 1777 --size {size} --tmpfs /tmp --dir /var --symlink ../tmp /var/tmp"
        )));
        let show = &self.ground.options.show;
        for path in show.iter().filter(|path| system::has_mount_point(run.system, path)) {
            // A path that was removed since the node started must not fail a job.
            all.extend(bind_arguments("--ro-bind-try", path, path));
        }
        all.extend(bind_arguments("--ro-bind", self.ground.init_path(), Path::new(INIT_PATH)));
        for socket in run.sockets {
            all.extend(bind_arguments(
                "--bind",
                &socket.host,
                Path::new(&socket_inside(&socket.name)),
            ));
        }
        for overlay in run.overlays {
            let point = plan.add_overlay(overlay);
            all.extend(bind_arguments("--bind", &point, &overlay.inside));
        }
        for BindMount { host, inside, writable } in run.binds {
            all.extend(bind_arguments(
                if *writable { "--bind" } else { "--ro-bind" },
                host,
                inside,
            ));
        }
        all.extend(split_words("--remount-ro / --chdir / --"));
        all.extend([INIT_PATH, "run"].map(str::to_owned));
        all
    }

    async fn launch_run(&self, run: SandboxRun<'_>) -> Result<SandboxProcess, SandboxError> {
        if run.image.is_some() {
            return Err(SandboxError::Refused("bubblewrap has no images".into()));
        }
        if !self.ground.options.bwrap.exists() {
            return Err(SandboxError::Missing {
                what: format!("{} is not there", self.ground.options.bwrap.display()),
                todo: "install bubblewrap".into(),
            });
        }
        let mut plan = MountPlan::new(self.ground.mount_dir());
        let arguments = self.bwrap_arguments(&run, &mut plan);
        if !(plan.mounts.is_empty() || self.ground.supports_overlays()) {
            return Err(SandboxError::Missing {
                what: "this machine mounts no overlays".into(),
                todo: "use a kernel and a file system that do, or copy the layer".into(),
            });
        }
        let RunAllocation { user, group, name } = self.ground.allocate_run(&run).await?;
        let mut command = Command::new(self.ground.init_path());
        command
            .arg("enter")
            .env_clear()
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        let enter = EnterSpec {
            parent: std::process::id(),
            cgroups: group.join_files(),
            user,
            limits: process_limits(run.limits),
            mount_dir: plan.directory,
            mounts: plan.mounts,
            program: self.ground.options.bwrap.clone(),
            arguments,
        };
        let enter =
            encode_launch_spec(&enter).map_err(|error| SandboxError::Refused(error.to_string()))?;
        let child = match self.ground.spawn_process(command).await {
            Ok(child) => child,
            Err(error) => {
                group.remove_directories();
                return Err(error);
            }
        };
        let watch = RunWatcher {
            ground: Arc::clone(&self.ground),
            name,
            child,
            disk: to_disk_quota(&self.ground, &run, &group),
            group,
            wall: run.limits.wall,
            memory: run.limits.memory_bytes,
            container: None,
            by_force: false,
        };
        SandboxProcess::start_and_watch(watch, Some(enter), &to_init_spec(&run)).await
    }

    async fn probe_bubblewrap(&self) -> Result<String, SandboxError> {
        let version = Command::new(&self.ground.options.bwrap)
            .arg("--version")
            .env_clear()
            .output()
            .await
            .with_io_context(|| "bubblewrap cannot be run: install it".into())?;
        run_probe(self, None).await.map_err(SandboxError::with_namespace_fix)?;
        // Asked here, so that no job waits for the answer.
        let ground = Arc::clone(&self.ground);
        let _ = spawn_blocking(move || ground.supports_overlays()).await;
        Ok(String::from_utf8_lossy(&version.stdout).trim().to_owned())
    }
}

impl Backend for BubblewrapBackend {
    fn backend_kind(&self) -> SandboxBackend {
        SandboxBackend::Bubblewrap
    }

    fn probe_backend(&self) -> BoxFuture<'_, Result<String, SandboxError>> {
        self.probe_bubblewrap().boxed()
    }

    fn supports_overlays(&self) -> bool {
        self.ground.supports_overlays()
    }

    fn start_run<'a>(
        &'a self,
        run: SandboxRun<'a>,
    ) -> BoxFuture<'a, Result<SandboxProcess, SandboxError>> {
        self.launch_run(run).boxed()
    }

    fn end_job<'a>(&'a self, job: &'a str) -> BoxFuture<'a, ()> {
        self.ground.end_job(job).boxed()
    }

    fn cleanup_orphans<'a>(&'a self, keep: &'a [String]) -> BoxFuture<'a, CleanupStats> {
        self.ground.cleanup_orphans(keep).boxed()
    }
}

/// Runs a probe command and checks its output.
pub(super) async fn run_probe(
    backend: &dyn Backend,
    image: Option<&str>,
) -> Result<(), SandboxError> {
    let argv = ["/bin/sh", "-c", "exit 42"].map(str::to_owned);
    let run = SandboxRun {
        id: "probe",
        job: "probe",
        argv: &argv,
        env: &std::collections::BTreeMap::default(),
        cwd: "/",
        image,
        binds: &[],
        overlays: &[],
        system: &SystemLayers::default(),
        sockets: &[],
        limits: &SandboxLimits {
            wall: std::time::Duration::from_mins(1),
            ..SandboxLimits::default()
        },
    };
    let mut running = backend.start_run(run).await?;
    let complaints = running.stderr.take();
    let said = async {
        match complaints {
            Some(complaints) => capture_tail(complaints, 1000).await.to_lossy_text(),
            None => String::new(),
        }
    };
    let (ended, said) = tokio::join!(running.wait_for_exit(), said);
    backend.end_job("probe").await;
    match (ended.exit_code, ended.why) {
        (Some(42), ExitReason::Exited) => Ok(()),
        _ => Err(SandboxError::Start(format!("{ended:?} {said}"))),
    }
}

/// Returns the path of a socket inside the sandbox.
pub(super) fn socket_inside(name: &str) -> String {
    format!("/run/cynode/{name}.sock")
}

/// Builds the launch spec of the first process.
pub(super) fn to_init_spec(run: &SandboxRun<'_>) -> InitSpec {
    let own = ["/tmp", "/dev/shm"].map(PathBuf::from);
    let given = run.binds.iter().filter(|bind| bind.writable).map(|bind| bind.inside.clone());
    let layered = run.overlays.iter().map(|overlay| overlay.inside.clone());
    InitSpec {
        argv: run.argv.to_vec(),
        env: run.env.clone(),
        cwd: run.cwd.into(),
        doors: run
            .sockets
            .iter()
            .map(|socket| PortForward {
                socket: socket_inside(&socket.name).into(),
                port: socket.port,
            })
            .collect(),
        writable: own.into_iter().chain(given).chain(layered).collect(),
        life: None,
        limits: None,
    }
}

pub(super) fn process_limits(limits: &SandboxLimits) -> cynode_sandbox_init::ProcessLimits {
    cynode_sandbox_init::ProcessLimits {
        file_bytes: limits.file_bytes,
        open_files: limits.open_files,
    }
}

pub(super) fn to_disk_quota(
    ground: &HostEnv,
    run: &SandboxRun<'_>,
    group: &super::cgroups::RunCgroup,
) -> DiskQuota {
    DiskQuota {
        places: run
            .binds
            .iter()
            .filter(|bind| bind.writable)
            .map(|bind| bind.host.clone())
            .chain(run.overlays.iter().map(|overlay| overlay.upper.clone()))
            .collect(),
        most: run.limits.disk_bytes,
        floor: (!run.limits.despite_low_disk).then_some(ground.options.free_floor_bytes),
        group: group.clone(),
    }
}

fn split_words(text: &str) -> Vec<String> {
    text.split_whitespace().map(str::to_owned).collect()
}

/// Builds an argument of bubblewrap that shows a host path in the sandbox.
pub(super) fn bind_arguments(how: &str, host: &Path, inside: &Path) -> [String; 3] {
    [how.to_owned(), host.display().to_string(), inside.display().to_string()]
}
