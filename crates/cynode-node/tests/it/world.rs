//! A node's ground in a directory of its own, and runs in it.

use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Command,
    sync::Once,
    time::Duration,
};

use cynode_node::sandbox::{
    Backend, BindMount, BubblewrapBackend, HostEnv, OverlayMount, PodmanBackend, SandboxError,
    SandboxExit, SandboxLimits, SandboxOptions, SandboxProcess, SandboxRun, SocketForward,
    SystemLayers, capture_tail,
};
use tempfile::TempDir;

pub(crate) const IMAGE: &str = "localhost/cynode-sandbox:1";

/// Which backend a test is about.
#[derive(Clone, Copy)]
pub(crate) enum Kind {
    Bubblewrap,
    Podman,
}

pub(crate) struct World {
    pub(crate) place: TempDir,
    pub(crate) backend: Box<dyn Backend>,
}

impl World {
    pub(crate) fn new(kind: Kind) -> Self {
        let place = tempfile::tempdir().unwrap();
        fs::set_permissions(place.path(), fs::Permissions::from_mode(0o711)).unwrap();
        let backend = backend(kind, options(place.path()));
        Self { place, backend }
    }

    /// A directory that a job may change, at /work.
    pub(crate) fn workspace(&self, job: &str) -> BindMount {
        let host = self.path(job);
        fs::create_dir_all(&host).unwrap();
        BindMount { host, inside: "/work".into(), writable: true }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.place.path().join(name)
    }

    /// What is left of runs of this node: cgroups and processes in them.
    pub(crate) fn left(&self) -> Vec<PathBuf> {
        own(self.place.path()).iter().flat_map(|directory| folders(directory)).collect()
    }
}

/// The directories of a node in the hierarchies, be they mounted at the top or below.
fn own(place: &Path) -> Vec<PathBuf> {
    let name = format!("cynode-{}", instance(place));
    let top = PathBuf::from("/sys/fs/cgroup");
    folders(&top).into_iter().chain([top]).map(|hierarchy| hierarchy.join(&name)).collect()
}

fn folders(path: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(path).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).filter(|path| path.is_dir()).collect()
}

pub(crate) fn options(place: &Path) -> SandboxOptions {
    SandboxOptions {
        image: Some(IMAGE.into()),
        free_floor_bytes: 1 << 20,
        ..SandboxOptions::new(instance(place), place.join("ground"))
    }
}

pub(crate) fn backend(kind: Kind, options: SandboxOptions) -> Box<dyn Backend> {
    let ground = HostEnv::prepare_env(options).unwrap();
    match kind {
        Kind::Bubblewrap => Box::new(BubblewrapBackend::new(&ground).unwrap()),
        Kind::Podman => {
            image();
            Box::new(PodmanBackend::new(&ground).unwrap())
        }
    }
}

/// Names the node of a directory.
fn instance(place: &Path) -> String {
    let name = place.file_name().unwrap().to_string_lossy().to_lowercase();
    format!("test-{}", name.trim_start_matches('.'))
}

/// Makes the image, unless it is there.
pub(crate) fn image() {
    static MADE: Once = Once::new();
    MADE.call_once(|| {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scripts/sandbox-image");
        assert!(Command::new(script).arg(IMAGE).status().unwrap().success());
    });
}

/// A run that a test describes.
pub(crate) struct Wish {
    pub(crate) id: String,
    pub(crate) job: String,
    pub(crate) argv: Vec<String>,
    pub(crate) env: BTreeMap<String, String>,
    pub(crate) binds: Vec<BindMount>,
    pub(crate) overlays: Vec<OverlayMount>,
    pub(crate) system: SystemLayers,
    pub(crate) sockets: Vec<SocketForward>,
    pub(crate) limits: SandboxLimits,
}

/// What a run wrote and how it ended.
#[derive(Debug)]
pub(crate) struct Done {
    pub(crate) ended: SandboxExit,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

/// A script of the shell as a job of its own.
pub(crate) fn shell(script: &str) -> Wish {
    Wish {
        id: "run".into(),
        job: "job".into(),
        argv: ["/bin/bash", "-c", script].map(str::to_owned).to_vec(),
        env: BTreeMap::from([("PATH".into(), "/usr/bin:/bin".into())]),
        binds: Vec::new(),
        overlays: Vec::new(),
        system: SystemLayers::default(),
        sockets: Vec::new(),
        limits: SandboxLimits {
            memory_bytes: 256 << 20,
            disk_bytes: 64 << 20,
            tmp_bytes: 16 << 20,
            wall: Duration::from_mins(1),
            ..SandboxLimits::default()
        },
    }
}

impl Wish {
    pub(crate) async fn start(&self, world: &World) -> Result<SandboxProcess, SandboxError> {
        let run = SandboxRun {
            id: &self.id,
            job: &self.job,
            argv: &self.argv,
            env: &self.env,
            cwd: "/",
            image: None,
            binds: &self.binds,
            overlays: &self.overlays,
            system: &self.system,
            sockets: &self.sockets,
            limits: &self.limits,
        };
        world.backend.start_run(run).await
    }

    pub(crate) async fn done(&self, world: &World) -> Done {
        done(self.start(world).await.unwrap()).await
    }
}

pub(crate) async fn done(mut running: SandboxProcess) -> Done {
    let (stdout, stderr) = (running.stdout.take().unwrap(), running.stderr.take().unwrap());
    let (ended, stdout, stderr) = tokio::join!(
        running.wait_for_exit(),
        capture_tail(stdout, 1 << 20),
        capture_tail(stderr, 1 << 20)
    );
    Done { ended, stdout: stdout.to_lossy_text(), stderr: stderr.to_lossy_text() }
}

/// Waits until something holds, at most ten seconds.
pub(crate) async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let mut ticks = tokio::time::interval(Duration::from_millis(10));
    for _ in 0..1000 {
        if holds() {
            return;
        }
        ticks.tick().await;
    }
    panic!("not within ten seconds: {what}");
}

/// The command lines of the machine's processes in which a word is.
pub(crate) fn command_lines_with(word: &str) -> Vec<String> {
    let processes = fs::read_dir("/proc").unwrap().flatten();
    processes
        .filter_map(|entry| fs::read(entry.path().join("cmdline")).ok())
        .map(|line| String::from_utf8_lossy(&line).replace('\0', " "))
        .filter(|line| line.contains(word))
        .collect()
}
