//! Sandbox backend that uses the host's system, by bubblewrap.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Stdio,
    sync::Arc,
};

use cynode_core::workflow::jobs::SandboxBackend;
use cynode_sandbox_init::{EnterSpec, InitSpec, PortForward, encode_launch_spec};
use futures::{FutureExt, future::BoxFuture};
use tokio::process::Command;

use super::{
    Backend, BindMount, CleanupStats, ExitReason, HostEnv, IoContext, SandboxError, SandboxLimits,
    SandboxProcess, SandboxRun, capture_tail,
    disk::DiskQuota,
    host_env::{self, RunAllocation},
    running::RunWatcher,
};

/// System directories. A directory that is a symlink on the host is a symlink in the sandbox.
const SYSTEM_DIRS: [&str; 7] = ["/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32"];
/// Files of the host's `/etc` that programs need and that contain no private data.
const SHARED_ETC_FILES: [&str; 9] = [
    "alternatives",
    "ca-certificates",
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "localtime",
    "mime.types",
    "ssl/certs",
    "ssl/openssl.cnf",
];
/// Files of `/etc` that are generated for the sandbox.
const GENERATED_ETC_FILES: [(&str, &str); 6] = [
    (
        "passwd",
        "root:x:0:0:root:/:/usr/sbin/nologin\nagent:x:1000:1000:agent:/home/agent:/bin/sh\n\
         nobody:x:65534:65534:nobody:/:/usr/sbin/nologin\n",
    ),
    ("group", "root:x:0:\nagent:x:1000:\nnogroup:x:65534:\n"),
    ("hosts", "127.0.0.1 localhost sandbox\n::1 localhost\n"),
    ("hostname", "sandbox\n"),
    ("nsswitch.conf", "passwd: files\ngroup: files\nhosts: files\n"),
    ("resolv.conf", ""),
];
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
    /// Arguments that mount the system in every sandbox.
    system: Vec<String>,
}

impl BubblewrapBackend {
    /// Creates the backend on the shared host environment of the node.
    pub fn new(ground: &Arc<HostEnv>) -> Result<Self, SandboxError> {
        let mut system = system_bind_arguments();
        system.extend(prepare_etc(&ground.options.directory.join("etc"))?);
        Ok(Self { ground: Arc::clone(ground), system })
    }

    fn bwrap_arguments(&self, run: &SandboxRun<'_>) -> Vec<String> {
        let mut all = split_words(
            "--unshare-all --unshare-user --disable-userns --die-with-parent --new-session --as-pid-1 \
             --uid 1000 --gid 1000 --cap-drop ALL --hostname sandbox",
        );
        all.extend(self.system.iter().cloned());
        all.extend(split_words("--proc /proc"));
        for path in HIDDEN_PROC_FILES.iter().filter(|path| Path::new(path).exists()) {
            all.extend(["--ro-bind", "/dev/null", path].map(str::to_owned));
        }
        let size = run.limits.tmp_bytes;
        all.extend(split_words(&format!(
            "--dev /dev --perms 1777 --size {size} --tmpfs /dev/shm --remount-ro /dev \
             --perms 1777 --size {size} --tmpfs /tmp --dir /var --symlink ../tmp /var/tmp"
        )));
        for path in &self.ground.options.show {
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
            program: self.ground.options.bwrap.clone(),
            arguments: self.bwrap_arguments(&run),
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
        writable: own.into_iter().chain(given).collect(),
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
            .collect(),
        most: run.limits.disk_bytes,
        floor: (!run.limits.despite_low_disk).then_some(ground.options.free_floor_bytes),
        group: group.clone(),
    }
}

fn split_words(text: &str) -> Vec<String> {
    text.split_whitespace().map(str::to_owned).collect()
}

fn bind_arguments(how: &str, host: &Path, inside: &Path) -> [String; 3] {
    [how.to_owned(), host.display().to_string(), inside.display().to_string()]
}

fn system_bind_arguments() -> Vec<String> {
    let mut all = Vec::new();
    for path in SYSTEM_DIRS {
        if let Ok(target) = fs::read_link(path) {
            all.extend(bind_arguments("--symlink", &target, Path::new(path)));
        } else if Path::new(path).is_dir() {
            all.extend(bind_arguments("--ro-bind", Path::new(path), Path::new(path)));
        }
    }
    all
}

/// Creates the sandbox's `/etc` directory, with a mount point for each host file that is shown in it.
fn prepare_etc(etc: &Path) -> Result<Vec<String>, SandboxError> {
    host_env::create_traversable_dir(etc)?;
    make_dir_listable(etc)?;
    for (name, text) in GENERATED_ETC_FILES {
        host_env::write_atomically(&etc.join(name), text.as_bytes(), 0o644)?;
    }
    let mut all = bind_arguments("--ro-bind", etc, Path::new("/etc")).to_vec();
    for name in SHARED_ETC_FILES {
        let (host, place) = (Path::new("/etc").join(name), etc.join(name));
        let Ok(meta) = fs::metadata(&host) else { continue };
        if let Some(above) = place.parent() {
            host_env::create_traversable_dir(above)?;
            make_dir_listable(above)?;
        }
        if meta.is_dir() {
            host_env::create_traversable_dir(&place)?;
        } else {
            host_env::write_atomically(&place, b"", 0o644)?;
        }
        all.extend(bind_arguments("--ro-bind", &host, &Path::new("/etc").join(name)));
    }
    Ok(all)
}

/// Makes a directory listable by other users.
fn make_dir_listable(path: &Path) -> Result<(), SandboxError> {
    use std::os::unix::fs::PermissionsExt;
    fs::set_permissions(path, fs::Permissions::from_mode(0o755))
        .with_io_context(|| format!("cannot change the mode of {}", path.display()))
}
