//! Host environment that all sandboxes of a process share. Bind mounts with path traversal (`..`) are refused.

use std::{
    collections::HashMap,
    fs, io,
    ops::Range,
    os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, OnceLock, PoisonError, mpsc},
    thread,
    time::Duration,
};

use rustix::process::geteuid;
use tokio::{
    process::{Child, Command},
    runtime::Handle,
    sync::oneshot,
    task::spawn_blocking,
    time::{interval, timeout},
};
use tokio_util::task::TaskTracker;

use super::{
    CleanupStats, IoContext, KillHandle, SandboxError, SandboxRun,
    cgroups::{NodeCgroups, RunCgroup},
    layers::{create_scratch_dir, probe_overlay_mount},
    users::{self, SandboxUsers},
};

/// Binary of the first process of every sandbox. It is static, so that it runs in any image.
const SANDBOX_INIT_BINARY: &[u8] = include_bytes!(env!("CYNODE_SANDBOX_INIT"));
/// Time that the processes of a run have to exit after a kill.
const KILL_TIMEOUT: Duration = Duration::from_secs(10);

/// Host users that are reserved for the nodes of a machine.
pub const DEFAULT_USERS: Range<u32> = 1_900_000_000..1_900_060_000;

/// Options of the node's sandboxes.
#[derive(Clone, Debug)]
pub struct SandboxOptions {
    /// Instance name of the node, unique on the machine and stable across restarts; letters, digits and `-`.
    pub instance: String,
    /// Directory for the sandboxes' files. Other users must be able to traverse the whole path (mode 0711).
    pub directory: PathBuf,
    /// Range of host users reserved for sandboxes, used if the node runs as root. Nodes on one machine need disjoint ranges.
    pub users: Range<u32>,
    /// Host paths that bubblewrap sandboxes see read-only at the same path, besides the system. Meant for tools.
    pub show: Vec<PathBuf>,
    /// Path of the bubblewrap program.
    pub bwrap: PathBuf,
    /// Path of the podman program.
    pub podman: PathBuf,
    /// Default image of podman sandboxes.
    pub image: Option<String>,
    /// Minimum free disk space. Below it, runs that write are ended.
    pub free_floor_bytes: u64,
}

impl SandboxOptions {
    /// Creates options with defaults.
    pub fn new(instance: impl Into<String>, directory: impl Into<PathBuf>) -> Self {
        Self {
            instance: instance.into(),
            directory: directory.into(),
            users: DEFAULT_USERS,
            show: Vec::new(),
            bwrap: "/usr/bin/bwrap".into(),
            podman: "/usr/bin/podman".into(),
            image: None,
            free_floor_bytes: 1 << 30,
        }
    }
}

/// Host environment that all sandboxes of a process share: cgroups, users and the binary of the first process.
pub struct HostEnv {
    pub(super) options: SandboxOptions,
    pub(super) cgroups: NodeCgroups,
    users: Option<SandboxUsers>,
    init_path: PathBuf,
    /// Directory of the mount points of layers. It stays empty: they are mounted in the namespace of a run.
    mount_dir: PathBuf,
    overlays: OnceLock<bool>,
    spawner: ProcessSpawner,
    tracker: TaskTracker,
    live: Mutex<HashMap<String, KillHandle>>,
}

impl HostEnv {
    /// Prepares the host environment. Must be called within a tokio runtime.
    pub fn prepare_env(options: SandboxOptions) -> Result<Arc<Self>, SandboxError> {
        if !is_valid_name(&options.instance) || options.instance.contains('_') {
            return Err(SandboxError::Refused(format!("{:?} names no node", options.instance)));
        }
        create_traversable_dir(&options.directory)?;
        let init_path = options.directory.join("cynode-sandbox-init");
        write_atomically(&init_path, SANDBOX_INIT_BINARY, 0o755)?;
        let mount_dir = options.directory.join("mounts");
        create_traversable_dir(&mount_dir)?;
        let root = geteuid().is_root();
        let users = root
            .then(|| SandboxUsers::new(options.users.clone(), &options.directory))
            .transpose()?;
        Ok(Arc::new(Self {
            cgroups: NodeCgroups::prepare_hierarchies(&options.instance)?,
            users,
            init_path,
            mount_dir,
            overlays: OnceLock::new(),
            spawner: ProcessSpawner::new()?,
            tracker: TaskTracker::new(),
            live: Mutex::default(),
            options,
        }))
    }

    /// Checks that the users of sandboxes can reach this environment's directory, where sandboxes have users of their own.
    pub fn check_directory_reachable(&self) -> Result<(), SandboxError> {
        match &self.users {
            Some(_) => users::check_reachable(&self.init_path, self.options.users.start),
            None => Ok(()),
        }
    }

    /// Releases the user of a job that has no live run.
    pub fn release_user(&self, job: &str) {
        let live = self.lock_live_runs();
        if live.keys().any(|name| name.split('.').next() == Some(job)) {
            return;
        }
        if let Some(users) = &self.users {
            users.release_job(job);
        }
    }

    /// Kills all runs and waits until they are cleaned up. No run may be started afterwards.
    pub async fn shut_down(&self) {
        for killer in self.lock_live_runs().values() {
            killer.kill();
        }
        self.tracker.close();
        self.tracker.wait().await;
    }

    /// Returns the host path of the first process's binary.
    pub(super) fn init_path(&self) -> &Path {
        &self.init_path
    }

    /// Returns the directory of the mount points of layers.
    pub(super) fn mount_dir(&self) -> &Path {
        &self.mount_dir
    }

    /// Returns whether layers can be mounted. The first call tries it.
    pub(super) fn supports_overlays(&self) -> bool {
        *self.overlays.get_or_init(|| {
            let place = self.options.directory.join("overlay-probe");
            let tried = probe_overlay_mount(&self.init_path, &self.mount_dir, &place);
            if let Err(error) = &tried {
                tracing::warn!(%error, "this machine mounts no overlays");
            }
            tried.is_ok()
        })
    }

    pub(super) fn task_tracker(&self) -> &TaskTracker {
        &self.tracker
    }

    pub(super) fn register_run(&self, name: &str, killer: KillHandle) {
        self.lock_live_runs().insert(name.to_owned(), killer);
    }

    pub(super) fn unregister_run(&self, name: &str) {
        self.lock_live_runs().remove(name);
    }

    /// Returns whether any run is live.
    pub(super) fn has_live_runs(&self) -> bool {
        !self.lock_live_runs().is_empty()
    }

    fn lock_live_runs(&self) -> std::sync::MutexGuard<'_, HashMap<String, KillHandle>> {
        self.live.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Allocates a run: its name, its user, the ownership of its files, and its cgroup.
    pub(super) async fn allocate_run(
        self: &Arc<Self>,
        run: &SandboxRun<'_>,
    ) -> Result<RunAllocation, SandboxError> {
        validate_run(run)?;
        let name = format!("{}.{}", run.job, run.id);
        if self.lock_live_runs().contains_key(&name) {
            return Err(SandboxError::Refused(format!("{name} runs already")));
        }
        let ground = Arc::clone(self);
        let (job, limits) = (run.job.to_owned(), run.limits.clone());
        let (binds, overlays) = (run.binds.to_vec(), run.overlays.to_vec());
        let sockets: Vec<PathBuf> = run.sockets.iter().map(|socket| socket.host.clone()).collect();
        let made = spawn_blocking(move || {
            let given = binds.iter().filter(|bind| bind.writable).map(|bind| bind.host.as_path());
            let mut writable = overlays.iter().map(|overlay| overlay.upper.as_path()).chain(given);
            let user = match &ground.users {
                Some(users) => Some(users.user_of_job(&job, writable.next())?),
                None => None,
            };
            for overlay in &overlays {
                create_scratch_dir(&overlay.scratch)
                    .with_io_context(|| "cannot make a directory for the kernel".into())?;
            }
            if let Some(user) = user {
                // The layers below are the node's and stay so.
                for overlay in &overlays {
                    users::chown_tree(&overlay.upper, user)?;
                }
                for bind in &binds {
                    users::check_reachable(&bind.host, user)?;
                    if bind.writable {
                        users::chown_tree(&bind.host, user)?;
                    }
                }
                for socket in &sockets {
                    users::check_reachable(socket, user)?;
                    users::chown_socket(socket, user)?;
                }
            }
            Ok(RunAllocation {
                user,
                group: ground.cgroups.create_run_group(&name, &limits)?,
                name,
            })
        });
        made.await.map_err(|_| SandboxError::Start("the node is ending".into()))?
    }

    /// Spawns a process that dies with the node, independent of the lifetime of the calling thread.
    pub(super) async fn spawn_process(&self, command: Command) -> Result<Child, SandboxError> {
        let what = command.as_std().get_program().display().to_string();
        self.spawner.spawn_command(command).await.with_io_context(|| format!("cannot start {what}"))
    }

    /// Ends every run of a job and removes its remains.
    pub(super) async fn end_job(&self, job: &str) {
        self.end_matching_runs(|name| name.split('.').next() == Some(job)).await;
        if let Some(users) = &self.users {
            users.release_job(job);
        }
    }

    /// Ends every run whose job is not in `keep`.
    pub(super) async fn cleanup_orphans(&self, keep: &[String]) -> CleanupStats {
        let kept = |name: &str| keep.iter().any(|job| name.split('.').next() == Some(job));
        self.end_matching_runs(|name| !kept(name)).await
    }

    async fn end_matching_runs(&self, of: impl Fn(&str) -> bool) -> CleanupStats {
        let mut swept = CleanupStats::default();
        for (name, killer) in self.lock_live_runs().iter() {
            if of(name) {
                killer.kill();
                swept.ended += 1;
            }
        }
        // The watcher of a live run cleans it up.
        let mut ticks = interval(Duration::from_millis(5));
        let followed = timeout(KILL_TIMEOUT, async {
            while self.lock_live_runs().keys().any(|name| of(name)) {
                ticks.tick().await;
            }
        });
        let _ = followed.await;
        let groups: Vec<RunCgroup> = self
            .cgroups
            .run_names()
            .into_iter()
            .filter(|name| of(name))
            .map(|name| self.cgroups.run_group(&name))
            .collect();
        for group in groups {
            if !group.list_processes().is_empty() {
                swept.ended += 1;
            }
            let mut ticks = interval(Duration::from_millis(5));
            let gone = timeout(KILL_TIMEOUT, async {
                loop {
                    group.kill_all();
                    if group.remove_directories() {
                        return;
                    }
                    ticks.tick().await;
                }
            });
            if gone.await.is_ok() {
                swept.removed += 1;
            }
        }
        swept
    }
}

impl Drop for HostEnv {
    /// Removes the cgroup directories if they are empty.
    fn drop(&mut self) {
        self.cgroups.remove_empty_directories();
    }
}

/// Allocated resources of a run.
pub(super) struct RunAllocation {
    pub(super) user: Option<u32>,
    pub(super) group: RunCgroup,
    pub(super) name: String,
}

/// Returns whether a name has only letters, digits, `_` and `-`. Such a name is safe as the name of a file, a cgroup and a
/// container, and as a program argument.
pub(super) fn is_valid_name(name: &str) -> bool {
    let fine = |letter: u8| {
        letter.is_ascii_lowercase() || letter.is_ascii_digit() || b"_-".contains(&letter)
    };
    (1..=64).contains(&name.len()) && name.bytes().all(fine) && !name.starts_with('-')
}

fn validate_run(run: &SandboxRun<'_>) -> Result<(), SandboxError> {
    let names =
        [run.id, run.job].into_iter().chain(run.sockets.iter().map(|socket| socket.name.as_str()));
    for name in names {
        if !is_valid_name(name) {
            return Err(SandboxError::Refused(format!("{name:?} is no name")));
        }
    }
    if run.argv.is_empty() {
        return Err(SandboxError::Refused("there is no command".into()));
    }
    let binds = run.binds.iter().flat_map(|bind| [&bind.host, &bind.inside]);
    let overlays = run.overlays.iter().flat_map(|overlay| {
        overlay.lower.iter().chain([&overlay.upper, &overlay.scratch, &overlay.inside])
    });
    let system = run.system.root.iter().chain(&run.system.over);
    let sockets = run.sockets.iter().map(|socket| &socket.host);
    if run.overlays.iter().any(|overlay| overlay.lower.is_empty()) {
        return Err(SandboxError::Refused("an overlay has no layer".into()));
    }
    for path in binds.chain(overlays).chain(system).chain(sockets) {
        let plain = path.to_str().is_some_and(|text| !text.contains([':', ',', '\\', '\0']));
        let straight =
            path.components().all(|part| !matches!(part, std::path::Component::ParentDir));
        if !path.is_absolute() || !plain || !straight {
            return Err(SandboxError::Refused(format!("{} cannot be shown", path.display())));
        }
    }
    Ok(())
}

/// Creates a directory that other users can traverse.
pub fn create_traversable_dir(path: &Path) -> Result<(), SandboxError> {
    if path.is_dir() {
        return Ok(());
    }
    if let Some(above) = path.parent() {
        create_traversable_dir(above)?;
    }
    let context = || format!("cannot make {}", path.display());
    match fs::DirBuilder::new().mode(0o711).create(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return Ok(()),
        made => made.with_io_context(context)?,
    }
    // The mask of this process may have taken the permission away.
    fs::set_permissions(path, fs::Permissions::from_mode(0o711)).with_io_context(context)
}

/// Checks that nobody else can replace what is in a directory: this process runs a program from it with its own rights.
pub fn check_dir_ownership(path: &Path) -> Result<(), SandboxError> {
    for directory in path.ancestors().take(2) {
        let meta = fs::symlink_metadata(directory)
            .with_io_context(|| format!("cannot look at {}", directory.display()))?;
        let own = meta.is_dir() && meta.uid() == geteuid().as_raw() && meta.mode() & 0o022 == 0;
        if !own {
            return Err(SandboxError::Missing {
                what: format!("{} is not this program's own", directory.display()),
                todo: "let it belong to the account that runs this program, and let nobody else write to it (mode 0711)".into(),
            });
        }
    }
    Ok(())
}

/// Writes a file atomically: no process sees it half-written, and a running binary is not overwritten.
pub(super) fn write_atomically(path: &Path, bytes: &[u8], mode: u32) -> Result<(), SandboxError> {
    if fs::read(path).is_ok_and(|there| there == bytes) {
        return Ok(());
    }
    let beside = path.with_extension(format!("new{}", std::process::id()));
    let write = || -> io::Result<()> {
        fs::write(&beside, bytes)?;
        fs::set_permissions(&beside, fs::Permissions::from_mode(mode))?;
        fs::rename(&beside, path)
    };
    write().with_io_context(|| format!("cannot write {}", path.display()))
}

/// Spawns processes from one long-lived thread. The parent-death signal is tied to the THREAD that spawned the process, and
/// threads of a tokio runtime come and go.
struct ProcessSpawner(mpsc::Sender<(Command, oneshot::Sender<io::Result<Child>>)>);

impl ProcessSpawner {
    fn new() -> Result<Self, SandboxError> {
        let runtime = Handle::try_current()
            .map_err(|_| SandboxError::Refused("sandboxes need a runtime".into()))?;
        let (send, receive) = mpsc::channel::<(Command, oneshot::Sender<io::Result<Child>>)>();
        thread::Builder::new()
            .name("sandboxes".into())
            .spawn(move || {
                let _entered = runtime.enter();
                for (mut command, answer) in receive {
                    let _ = answer.send(command.spawn());
                }
            })
            .with_io_context(|| "cannot start a thread".into())?;
        Ok(Self(send))
    }

    async fn spawn_command(&self, command: Command) -> io::Result<Child> {
        let (send, receive) = oneshot::channel();
        let gone = || io::Error::other("the thread that starts sandboxes is gone");
        self.0.send((command, send)).map_err(|_| gone())?;
        receive.await.map_err(|_| gone())?
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_plain() {
        let good = ["a", "job-1_x", "0190f5"].map(is_valid_name);
        let bad = ["", "-a", "a.b", "a/b", "A", "ä", "a b", &"a".repeat(65)].map(is_valid_name);
        assert_eq!((good, bad), ([true; 3], [false; 8]));
    }
}
