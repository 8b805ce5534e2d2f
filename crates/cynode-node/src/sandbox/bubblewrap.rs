//! Sandboxes of the node's own system, by bubblewrap.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Stdio,
    sync::Arc,
};

use cynode_inside::{Door, Enter, Inside, encode};
use cynode_wire::work::SandboxBackend;
use futures::{FutureExt, future::BoxFuture};
use tokio::process::Command;

use super::{
    Backend, Bind, Ground, Limits, Run, Running, SandboxError, Swept, Tried, Why, capture,
    disk::Disk,
    ground::{self, Room},
    running::Watch,
};

/// Directories of the system; where one is a link, the link is shown.
const SYSTEM: [&str; 7] = ["/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32"];
/// What of the machine's settings programs need and strangers may know.
const SETTINGS: [&str; 9] = [
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
/// Settings that are the sandbox's own.
const OWN_SETTINGS: [(&str, &str); 6] = [
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
/// What the kernel tells about the whole machine and no job needs to know.
const HIDDEN: [&str; 14] = [
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
/// The first process, inside.
const FIRST: &str = "/run/cynode/inside";

/// Makes sandboxes by bubblewrap.
pub struct Bubblewrap {
    ground: Arc<Ground>,
    /// What every sandbox is shown.
    system: Vec<String>,
}

impl Bubblewrap {
    /// On the ground that the backends of a node share.
    pub fn new(ground: &Arc<Ground>) -> Result<Self, SandboxError> {
        let mut system = shown_system();
        system.extend(settings(&ground.options.directory.join("etc"))?);
        Ok(Self { ground: Arc::clone(ground), system })
    }

    fn arguments(&self, run: &Run<'_>) -> Vec<String> {
        let mut all = words(
            "--unshare-all --unshare-user --disable-userns --die-with-parent --new-session --as-pid-1 \
             --uid 1000 --gid 1000 --cap-drop ALL --hostname sandbox",
        );
        all.extend(self.system.iter().cloned());
        all.extend(words("--proc /proc"));
        for path in HIDDEN.iter().filter(|path| Path::new(path).exists()) {
            all.extend(["--ro-bind", "/dev/null", path].map(str::to_owned));
        }
        let size = run.limits.tmp_bytes;
        all.extend(words(&format!(
            "--dev /dev --perms 1777 --size {size} --tmpfs /dev/shm --remount-ro /dev \
             --perms 1777 --size {size} --tmpfs /tmp --dir /var --symlink ../tmp /var/tmp"
        )));
        for path in &self.ground.options.show {
            all.extend(bind("--ro-bind", path, path));
        }
        all.extend(bind("--ro-bind", self.ground.inside(), Path::new(FIRST)));
        for socket in run.sockets {
            all.extend(bind("--bind", &socket.host, Path::new(&socket_inside(&socket.name))));
        }
        for Bind { host, inside, writable } in run.binds {
            all.extend(bind(if *writable { "--bind" } else { "--ro-bind" }, host, inside));
        }
        all.extend(words("--remount-ro / --chdir / --"));
        all.extend([FIRST, "run"].map(str::to_owned));
        all
    }

    async fn launch(&self, run: Run<'_>) -> Result<Running, SandboxError> {
        if run.image.is_some() {
            return Err(SandboxError::Refused("bubblewrap has no images".into()));
        }
        if !self.ground.options.bwrap.exists() {
            return Err(SandboxError::Missing {
                what: format!("{} is not there", self.ground.options.bwrap.display()),
                todo: "install bubblewrap".into(),
            });
        }
        let Room { user, group, name } = self.ground.room(&run).await?;
        let mut command = Command::new(self.ground.inside());
        command
            .arg("enter")
            .env_clear()
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        let enter = Enter {
            parent: std::process::id(),
            cgroups: group.doors(),
            user,
            limits: process_limits(run.limits),
            program: self.ground.options.bwrap.clone(),
            arguments: self.arguments(&run),
        };
        let enter = encode(&enter).map_err(|error| SandboxError::Refused(error.to_string()))?;
        let child = match self.ground.spawn(command).await {
            Ok(child) => child,
            Err(error) => {
                group.remove();
                return Err(error);
            }
        };
        let watch = Watch {
            ground: Arc::clone(&self.ground),
            name,
            child,
            disk: disk(&self.ground, &run, &group),
            group,
            wall: run.limits.wall,
            memory: run.limits.memory_bytes,
            container: None,
            by_force: false,
        };
        Running::follow(watch, Some(enter), &inside(&run)).await
    }

    async fn try_it(&self) -> Result<String, SandboxError> {
        let version = Command::new(&self.ground.options.bwrap)
            .arg("--version")
            .env_clear()
            .output()
            .await
            .tried(|| "bubblewrap cannot be run: install it".into())?;
        probe(self, None).await.map_err(|error| match error {
            SandboxError::Start(said) => SandboxError::Missing {
                what: format!("bubblewrap makes no sandbox ({said})"),
                todo: "allow user namespaces: sysctl user.max_user_namespaces, and on Ubuntu \
                       kernel.apparmor_restrict_unprivileged_userns=0 or a profile for bwrap"
                    .into(),
            },
            other => other,
        })?;
        Ok(String::from_utf8_lossy(&version.stdout).trim().to_owned())
    }
}

impl Backend for Bubblewrap {
    fn kind(&self) -> SandboxBackend {
        SandboxBackend::Bubblewrap
    }

    fn probe(&self) -> BoxFuture<'_, Result<String, SandboxError>> {
        self.try_it().boxed()
    }

    fn start<'a>(&'a self, run: Run<'a>) -> BoxFuture<'a, Result<Running, SandboxError>> {
        self.launch(run).boxed()
    }

    fn end_job<'a>(&'a self, job: &'a str) -> BoxFuture<'a, ()> {
        self.ground.end_job(job).boxed()
    }

    fn sweep<'a>(&'a self, keep: &'a [String]) -> BoxFuture<'a, Swept> {
        self.ground.sweep(keep).boxed()
    }
}

/// Runs something and looks at what came of it.
pub(super) async fn probe(backend: &dyn Backend, image: Option<&str>) -> Result<(), SandboxError> {
    let argv = ["/bin/sh", "-c", "exit 42"].map(str::to_owned);
    let run = Run {
        id: "probe",
        job: "probe",
        argv: &argv,
        env: &std::collections::BTreeMap::default(),
        cwd: "/",
        image,
        binds: &[],
        sockets: &[],
        limits: &Limits { wall: std::time::Duration::from_mins(1), ..Limits::default() },
    };
    let mut running = backend.start(run).await?;
    let complaints = running.stderr.take();
    let said = async {
        match complaints {
            Some(complaints) => capture(complaints, 1000).await.text(),
            None => String::new(),
        }
    };
    let (ended, said) = tokio::join!(running.wait(), said);
    backend.end_job("probe").await;
    match (ended.exit_code, ended.why) {
        (Some(42), Why::Exited) => Ok(()),
        _ => Err(SandboxError::Start(format!("{ended:?} {said}"))),
    }
}

/// Where a socket is inside.
pub(super) fn socket_inside(name: &str) -> String {
    format!("/run/cynode/{name}.sock")
}

/// What the first process is told.
pub(super) fn inside(run: &Run<'_>) -> Inside {
    let own = ["/tmp", "/dev/shm"].map(PathBuf::from);
    let given = run.binds.iter().filter(|bind| bind.writable).map(|bind| bind.inside.clone());
    Inside {
        argv: run.argv.to_vec(),
        env: run.env.clone(),
        cwd: run.cwd.into(),
        doors: run
            .sockets
            .iter()
            .map(|socket| Door { socket: socket_inside(&socket.name).into(), port: socket.port })
            .collect(),
        writable: own.into_iter().chain(given).collect(),
        life: None,
        limits: None,
    }
}

pub(super) fn process_limits(limits: &Limits) -> cynode_inside::Limits {
    cynode_inside::Limits { file_bytes: limits.file_bytes, open_files: limits.open_files }
}

pub(super) fn disk(ground: &Ground, run: &Run<'_>, group: &super::cgroups::Group) -> Disk {
    Disk {
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

fn words(text: &str) -> Vec<String> {
    text.split_whitespace().map(str::to_owned).collect()
}

fn bind(how: &str, host: &Path, inside: &Path) -> [String; 3] {
    [how.to_owned(), host.display().to_string(), inside.display().to_string()]
}

fn shown_system() -> Vec<String> {
    let mut all = Vec::new();
    for path in SYSTEM {
        if let Ok(target) = fs::read_link(path) {
            all.extend(bind("--symlink", &target, Path::new(path)));
        } else if Path::new(path).is_dir() {
            all.extend(bind("--ro-bind", Path::new(path), Path::new(path)));
        }
    }
    all
}

/// Makes the directory that is /etc inside, with a place for each of the machine's settings that is shown in it.
fn settings(etc: &Path) -> Result<Vec<String>, SandboxError> {
    ground::directory(etc)?;
    open_up(etc)?;
    for (name, text) in OWN_SETTINGS {
        ground::put(&etc.join(name), text.as_bytes(), 0o644)?;
    }
    let mut all = bind("--ro-bind", etc, Path::new("/etc")).to_vec();
    for name in SETTINGS {
        let (host, place) = (Path::new("/etc").join(name), etc.join(name));
        let Ok(meta) = fs::metadata(&host) else { continue };
        if let Some(above) = place.parent() {
            ground::directory(above)?;
            open_up(above)?;
        }
        if meta.is_dir() {
            ground::directory(&place)?;
        } else {
            ground::put(&place, b"", 0o644)?;
        }
        all.extend(bind("--ro-bind", &host, &Path::new("/etc").join(name)));
    }
    Ok(all)
}

/// Lets strangers list a directory.
fn open_up(path: &Path) -> Result<(), SandboxError> {
    use std::os::unix::fs::PermissionsExt;
    fs::set_permissions(path, fs::Permissions::from_mode(0o755))
        .tried(|| format!("cannot change the mode of {}", path.display()))
}
