//! A stand-in for a node: a directory, its sandboxes, and runs in them.

use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    time::Duration,
};

use clap::ValueEnum;
use cynode_sandbox::{
    Backend, BindMount, BubblewrapBackend, CapturedOutput, HostEnv, PodmanBackend, SandboxError,
    SandboxExit, SandboxLimits, SandboxOptions, SandboxProcess, SandboxRun, SocketForward,
    SystemLayers, capture_tail,
};
use tempfile::TempDir;

/// Which backend.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum BackendKind {
    Bubblewrap,
    Podman,
}

pub(crate) struct NodeLayout {
    directory: TempDir,
    instance: String,
    pub(crate) backend: Box<dyn Backend>,
}

impl NodeLayout {
    pub(crate) fn new(kind: BackendKind, image: Option<&str>) -> anyhow::Result<Self> {
        let directory = tempfile::tempdir()?;
        fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o711))?;
        let instance = format!("proof-{}", std::process::id());
        let options = SandboxOptions {
            image: image.map(str::to_owned),
            ..SandboxOptions::new(&instance, directory.path().join("host-env"))
        };
        let host_env = HostEnv::prepare_env(options)?;
        let backend: Box<dyn Backend> = match kind {
            BackendKind::Bubblewrap => Box::new(BubblewrapBackend::new(&host_env)?),
            BackendKind::Podman => Box::new(PodmanBackend::new(&host_env)?),
        };
        Ok(Self { directory, instance, backend })
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Creates a directory for a bind mount.
    pub(crate) fn folder(&self, name: &str, inside: &str, writable: bool) -> BindMount {
        let host = self.path(name);
        fs::create_dir_all(&host).unwrap();
        let mode = fs::Permissions::from_mode(0o755);
        if !writable {
            fs::set_permissions(&host, mode).unwrap();
        }
        BindMount { host, inside: inside.into(), writable }
    }

    /// Returns the cgroup directories that runs left behind.
    pub(crate) fn remaining_cgroups(&self) -> Vec<PathBuf> {
        self.own().into_iter().flat_map(|own| below(&own)).collect()
    }

    fn own(&self) -> Vec<PathBuf> {
        let name = format!("cynode-{}", self.instance);
        let top = Path::new("/sys/fs/cgroup");
        let all = below(top).into_iter().chain([top.to_owned()]).map(|path| path.join(&name));
        all.filter(|path| path.is_dir()).collect()
    }
}

impl Drop for NodeLayout {
    fn drop(&mut self) {
        for own in self.own() {
            let _ = fs::remove_dir(own);
        }
    }
}

fn below(path: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(path).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).filter(|path| path.is_dir()).collect()
}

/// Specification of a run.
pub(crate) struct Wish {
    pub(crate) id: String,
    pub(crate) job: String,
    pub(crate) argv: Vec<String>,
    pub(crate) env: BTreeMap<String, String>,
    pub(crate) binds: Vec<BindMount>,
    pub(crate) sockets: Vec<SocketForward>,
    pub(crate) limits: SandboxLimits,
}

/// Outcome of a run.
pub(crate) struct Done {
    pub(crate) ended: SandboxExit,
    pub(crate) stdout: CapturedOutput,
    pub(crate) stderr: CapturedOutput,
    pub(crate) took: Duration,
}

impl Wish {
    pub(crate) fn new(job: &str, argv: &[&str]) -> Self {
        Self {
            id: "run".into(),
            job: job.into(),
            argv: argv.iter().map(ToString::to_string).collect(),
            env: BTreeMap::from([("PATH".into(), "/usr/bin:/bin".into())]),
            binds: Vec::new(),
            sockets: Vec::new(),
            limits: SandboxLimits {
                memory_bytes: 256 << 20,
                cpu_percent: 100,
                processes: 128,
                file_bytes: 64 << 20,
                open_files: 1024,
                disk_bytes: 96 << 20,
                tmp_bytes: 32 << 20,
                despite_low_disk: false,
                wall: Duration::from_mins(2),
            },
        }
    }

    pub(crate) async fn start(&self, place: &NodeLayout) -> Result<SandboxProcess, SandboxError> {
        let run = SandboxRun {
            id: &self.id,
            job: &self.job,
            argv: &self.argv,
            env: &self.env,
            cwd: "/",
            image: None,
            binds: &self.binds,
            overlays: &[],
            system: &SystemLayers::default(),
            sockets: &self.sockets,
            limits: &self.limits,
        };
        place.backend.start_run(run).await
    }

    /// Runs it to its end. Keeps the last 64 KiB of its output.
    pub(crate) async fn done(&self, place: &NodeLayout) -> anyhow::Result<Done> {
        let began = std::time::Instant::now();
        let mut running = self.start(place).await?;
        let (stdout, stderr) = (running.stdout.take().unwrap(), running.stderr.take().unwrap());
        let (ended, stdout, stderr) = tokio::join!(
            running.wait_for_exit(),
            capture_tail(stdout, 64 << 10),
            capture_tail(stderr, 64 << 10)
        );
        Ok(Done { ended, stdout, stderr, took: began.elapsed() })
    }
}

/// Returns the processes of the machine with a word on their command line.
pub(crate) fn processes_with(word: &str) -> Vec<String> {
    let all = fs::read_dir("/proc").into_iter().flatten().flatten();
    all.filter_map(|entry| fs::read(entry.path().join("cmdline")).ok())
        .map(|line| String::from_utf8_lossy(&line).replace('\0', " "))
        .filter(|line| line.contains(word))
        .collect()
}
