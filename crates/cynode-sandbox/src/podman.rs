//! Sandbox backend for container images, by podman.
//!
//! A container has a monitor process that outlives the node. Its first process therefore holds a connection to the node
//! and exits when the connection closes, which ends the container. Orphans are found by their labels.

use std::{
    path::{Path, PathBuf},
    process::Stdio,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use cynode_core::workflow::jobs::SandboxBackend;
use cynode_sandbox_init::InitSpec;
use futures::{FutureExt, future::BoxFuture};
use rustix::process::geteuid;
use serde::Deserialize;
use tokio::{
    net::{UnixListener, UnixStream},
    process::Command,
    time::interval,
};

use super::{
    Backend, BindMount, CleanupStats, HostEnv, IoContext, SandboxError, SandboxProcess, SandboxRun,
    SystemLayers,
    bubblewrap::{process_limits, run_probe, socket_inside, to_disk_quota, to_init_spec},
    cgroups::{CgroupUsage, RunCgroup},
    host_env::{self, RunAllocation},
    running::RunWatcher,
    users,
};

/// Path of the first process inside the container.
const INIT_PATH: &str = "/run/cynode/sandbox-init";
/// Path of the liveness socket inside the container.
const LIVENESS_SOCKET_PATH: &str = "/run/cynode/life.sock";
/// Interval of the check for OOM kills.
const OOM_POLL_INTERVAL: Duration = Duration::from_millis(500);
/// Memory usage that is this close to the limit counts as at the limit.
const MEMORY_LIMIT_SLACK_BYTES: u64 = 1 << 20;

/// Podman backend.
pub struct PodmanBackend {
    ground: Arc<HostEnv>,
    /// Whether containers may exist. Listing them costs more than a bubblewrap sandbox.
    may_be: AtomicBool,
    /// Next number of a liveness socket.
    next: AtomicU64,
}

impl PodmanBackend {
    /// Creates the backend on the shared host environment of the node.
    pub fn new(ground: &Arc<HostEnv>) -> Result<Self, SandboxError> {
        host_env::create_traversable_dir(&ground.options.directory.join("life"))?;
        Ok(Self {
            ground: Arc::clone(ground),
            may_be: AtomicBool::new(true),
            next: AtomicU64::new(0),
        })
    }

    fn podman_arguments(
        &self,
        run: &SandboxRun<'_>,
        room: &RunAllocation,
        life: &Path,
    ) -> Result<Vec<String>, SandboxError> {
        let image = run.image.or(self.ground.options.image.as_deref());
        let image = image.filter(|image| !image.starts_with('-')).ok_or_else(|| {
            SandboxError::Refused(
                "podman needs an image, and neither the job nor `default_image` of the node names one"
                    .into(),
            )
        })?;
        if *run.system != SystemLayers::default() {
            return Err(SandboxError::Refused(
                "an image has its own system: podman lays no other system over it".into(),
            ));
        }
        if !run.overlays.is_empty() {
            return Err(SandboxError::Refused(
                "podman gives the changes over a layer to root: copy the layer".into(),
            ));
        }
        let limits = run.limits;
        let user = room.user.map_or_else(
            || split_words("--userns keep-id:uid=1000,gid=1000 --user 1000:1000"),
            |user| split_words(&format!("--user {user}:{user}")),
        );
        let mut all = split_words(
            "run --rm --interactive --pull=never --network=none --read-only --read-only-tmpfs=false \
             --cap-drop=all --security-opt=no-new-privileges --ipc=private --uts=private --pid=private \
             --cgroupns=private --hostname=sandbox --no-hosts --http-proxy=false --log-driver=none \
             --stop-timeout=0 --systemd=false --workdir=/ --no-healthcheck --image-volume=ignore \
             --security-opt=mask=/sys/kernel:/sys/devices:/sys/block:/sys/module:/sys/class:/sys/bus",
        );
        all.extend(user);
        all.push(format!("--name={}", container_name(&self.ground.options.instance, &room.name)));
        all.push(format!("--label=cynode.instance={}", self.ground.options.instance));
        all.push(format!("--label=cynode.job={}", run.job));
        if let Some(parent) = self.ground.cgroups.parent_of(&room.name) {
            all.push(format!("--cgroup-parent={parent}"));
        }
        let tmp = limits.tmp_bytes;
        all.push(format!("--tmpfs=/tmp:rw,nosuid,nodev,size={tmp},mode=1777"));
        all.push(format!("--shm-size={tmp}b"));
        all.push(format!("--timeout={}", limits.wall.as_secs() + 60));
        // Every limit must be given explicitly. Otherwise podman requests more than this process may grant.
        for (name, most) in [
            ("core", 0),
            ("fsize", limits.file_bytes),
            ("nofile", limits.open_files),
            ("nproc", 4096),
        ] {
            all.push(format!("--ulimit={name}={most}:{most}"));
        }
        let mut mount = |host: &Path, inside: &Path, writable: bool| {
            let how = if writable { "rw" } else { "ro" };
            all.push(format!("--volume={}:{}:{how}", host.display(), inside.display()));
        };
        mount(self.ground.init_path(), Path::new(INIT_PATH), false);
        mount(life, Path::new(LIVENESS_SOCKET_PATH), true);
        for socket in run.sockets {
            mount(&socket.host, Path::new(&socket_inside(&socket.name)), true);
        }
        for BindMount { host, inside, writable } in run.binds {
            mount(host, inside, *writable);
        }
        all.push(format!("--entrypoint=[\"{INIT_PATH}\",\"run\"]"));
        all.push(image.to_owned());
        Ok(all)
    }

    async fn launch_run(&self, run: SandboxRun<'_>) -> Result<SandboxProcess, SandboxError> {
        let room = self.ground.allocate_run(&run).await?;
        let group = room.group.clone();
        let launched = self.launch_container(run, room).await;
        if launched.is_err() {
            group.remove_directories();
        }
        launched
    }

    async fn launch_container(
        &self,
        run: SandboxRun<'_>,
        room: RunAllocation,
    ) -> Result<SandboxProcess, SandboxError> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let life =
            self.ground.options.directory.join(format!("life/{}-{number}", std::process::id()));
        let container = PodmanContainer::new(&self.ground, &room, life.clone())?;
        if let Some(user) = room.user {
            users::chown_socket(&life, user)?;
        }
        let mut command = podman_command(&self.ground);
        command
            .args(self.podman_arguments(&run, &room, &life)?)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        self.may_be.store(true, Ordering::Relaxed);
        let watch = RunWatcher {
            ground: Arc::clone(&self.ground),
            child: self.ground.spawn_process(command).await?,
            disk: to_disk_quota(&self.ground, &run, &room.group),
            name: room.name,
            group: room.group,
            wall: run.limits.wall,
            memory: run.limits.memory_bytes,
            container: Some(container),
            by_force: false,
        };
        let init = InitSpec {
            life: Some(LIVENESS_SOCKET_PATH.into()),
            limits: Some(process_limits(run.limits)),
            ..to_init_spec(&run)
        };
        SandboxProcess::start_and_watch(watch, None, &init).await
    }

    async fn probe_podman(&self) -> Result<String, SandboxError> {
        let version = podman_command(&self.ground).arg("--version").output().await;
        let version = version.map_err(|error| SandboxError::Missing {
            what: format!("podman cannot be run ({error})"),
            todo: "install podman and runc".into(),
        })?;
        run_probe(self, None).await.map_err(|error| match error {
            SandboxError::Start(said) => SandboxError::Missing {
                what: format!("podman makes no sandbox ({said})"),
                todo: "see that the image is there (podman images, podman import) and that \
                       podman run works for the node's user"
                    .into(),
            },
            other => other,
        })?;
        Ok(String::from_utf8_lossy(&version.stdout).trim().to_owned())
    }

    /// Removes the containers that match, and returns their number.
    async fn remove_containers(&self, gone: impl Fn(&str) -> bool) -> usize {
        if !self.may_be.load(Ordering::Relaxed) {
            return 0;
        }
        let Ok(all) = list_containers(&self.ground).await else { return 0 };
        let (gone, left): (Vec<ContainerInfo>, Vec<ContainerInfo>) =
            all.into_iter().partition(|container| gone(container.job_label()));
        for container in &gone {
            remove_container(&self.ground, &container.id).await;
        }
        if left.is_empty() && !self.ground.has_live_runs() {
            self.may_be.store(false, Ordering::Relaxed);
        }
        gone.len()
    }
}

impl Backend for PodmanBackend {
    fn backend_kind(&self) -> SandboxBackend {
        SandboxBackend::Podman
    }

    fn probe_backend(&self) -> BoxFuture<'_, Result<String, SandboxError>> {
        self.probe_podman().boxed()
    }

    /// Podman's overlay volumes take owner and mode of the layer for the directory with the changes: it would be root's and open to
    /// everyone, and git refuses to work in it.
    fn supports_overlays(&self) -> bool {
        false
    }

    fn start_run<'a>(
        &'a self,
        run: SandboxRun<'a>,
    ) -> BoxFuture<'a, Result<SandboxProcess, SandboxError>> {
        self.launch_run(run).boxed()
    }

    fn end_job<'a>(&'a self, job: &'a str) -> BoxFuture<'a, ()> {
        async move {
            self.ground.end_job(job).await;
            self.remove_containers(|other| other == job).await;
        }
        .boxed()
    }

    fn cleanup_orphans<'a>(&'a self, keep: &'a [String]) -> BoxFuture<'a, CleanupStats> {
        async move {
            let mut swept = self.ground.cleanup_orphans(keep).await;
            swept.removed +=
                self.remove_containers(|job| !keep.iter().any(|kept| kept == job)).await;
            swept
        }
        .boxed()
    }
}

/// Podman-specific state of a run.
pub(super) struct PodmanContainer {
    name: String,
    path: PathBuf,
    /// Listener for the first process; replaced by its connection.
    listener: Option<UnixListener>,
    life: Option<UnixStream>,
    /// Number of OOM kills observed so far.
    kills: u64,
}

impl PodmanContainer {
    fn new(ground: &HostEnv, room: &RunAllocation, path: PathBuf) -> Result<Self, SandboxError> {
        let listener = UnixListener::bind(&path)
            .with_io_context(|| format!("cannot listen at {}", path.display()))?;
        let name = container_name(&ground.options.instance, &room.name);
        Ok(Self { name, path, listener: Some(listener), life: None, kills: 0 })
    }

    /// Accepts the connection of the first process and closes the listener: no other process can connect.
    pub(super) async fn accept_liveness(&mut self) {
        if let Some(listener) = &self.listener
            && let Ok((life, _)) = listener.accept().await
        {
            self.life = Some(life);
            self.listener = None;
        }
    }

    /// Polls the number of OOM kills: the kernel's counter is removed together with the container.
    pub(super) async fn watch_oom_kills(&mut self, group: &RunCgroup) {
        let mut ticks = interval(OOM_POLL_INTERVAL);
        loop {
            ticks.tick().await;
            self.kills = self.kills.max(group.read_usage().out_of_memory);
        }
    }

    /// Returns the number of OOM kills. A container that ended by SIGKILL at its memory limit counts as one too.
    pub(super) fn count_oom_kills(
        &self,
        used: &CgroupUsage,
        most: u64,
        signal: Option<i32>,
    ) -> u64 {
        let full = used.peak_memory + MEMORY_LIMIT_SLACK_BYTES >= most && signal == Some(9);
        self.kills.max(used.out_of_memory).max(u64::from(full))
    }

    /// Closes the liveness connection, which ends the container.
    pub(super) fn close_connection(&mut self) {
        self.listener = None;
        self.life = None;
    }

    /// Removes the remains of the container. A container that exits by itself is removed automatically.
    pub(super) async fn clean_up(&mut self, ground: &HostEnv, by_force: bool) {
        self.close_connection();
        let _ = std::fs::remove_file(&self.path);
        if by_force {
            remove_container(ground, &self.name).await;
        }
    }
}

fn container_name(instance: &str, name: &str) -> String {
    format!("cynode-{instance}.{name}")
}

/// Builds a podman command with the options for this machine.
fn podman_command(ground: &HostEnv) -> Command {
    let mut command = Command::new(&ground.options.podman);
    command.env_clear().env("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin");
    command.current_dir("/");
    if geteuid().is_root() {
        command.env("HOME", "/root");
    }
    // crun does not work with mixed v1 and v2 hierarchies. Without systemd, cgroupfs is the only cgroup manager.
    if Path::new("/sys/fs/cgroup/memory").exists() {
        command.args(["--runtime", "runc"]);
    }
    command.args(["--cgroup-manager", "cgroupfs", "--events-backend", "none"]);
    command.stdin(Stdio::null());
    command
}

/// Entry of podman's container list.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct ContainerInfo {
    id: String,
    labels: std::collections::BTreeMap<String, String>,
}

impl ContainerInfo {
    fn job_label(&self) -> &str {
        self.labels.get("cynode.job").map_or("", String::as_str)
    }
}

async fn list_containers(ground: &HostEnv) -> Result<Vec<ContainerInfo>, SandboxError> {
    let listed = podman_command(ground)
        .args(["ps", "--all", "--format", "json", "--filter"])
        .arg(format!("label=cynode.instance={}", ground.options.instance))
        .output()
        .await
        .with_io_context(|| "podman cannot be run".into())?;
    serde_json::from_slice(&listed.stdout)
        .map_err(|error| SandboxError::Start(format!("podman lists what cannot be read: {error}")))
}

async fn remove_container(ground: &HostEnv, container: &str) {
    let removed = podman_command(ground)
        .args(["rm", "--force", "--ignore", "--time=0", container])
        .output()
        .await;
    if let Ok(removed) = removed
        && !removed.status.success()
    {
        tracing::warn!(container, said = %String::from_utf8_lossy(&removed.stderr), "a container was not removed");
    }
}

fn split_words(text: &str) -> Vec<String> {
    text.split_whitespace().map(str::to_owned).collect()
}
