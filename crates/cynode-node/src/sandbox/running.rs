//! The lifecycle of a sandbox run.

use std::{fmt, future::pending, process::ExitStatus, sync::Arc, time::Duration};

use cynode_sandbox_init::{InitSpec, STARTED_MARKER, encode_launch_spec};
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
    process::{Child, ChildStderr, ChildStdin, ChildStdout},
    sync::oneshot,
    time::{interval, timeout},
};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::{
    SandboxError,
    cgroups::{CgroupUsage, RunCgroup},
    disk::DiskQuota,
    host_env::HostEnv,
    output::capture_tail,
    podman::PodmanContainer,
};

/// A sandbox that does not come up within this never does.
const START_TIMEOUT: Duration = Duration::from_mins(1);
/// What is kept of what was said by one that did not come up.
const STDERR_TAIL_BYTES: usize = 4096;
/// How long a container may take to go by itself.
const CONTAINER_EXIT_TIMEOUT: Duration = Duration::from_secs(3);
/// How often and how long apart the removal of an empty cgroup is tried.
const MAX_REMOVAL_ATTEMPTS: usize = 200;
const REMOVAL_INTERVAL: Duration = Duration::from_millis(5);

/// A run. To drop it is to kill it.
pub struct SandboxProcess {
    /// What it reads.
    pub stdin: Option<ChildStdin>,
    /// What it writes.
    pub stdout: Option<ChildStdout>,
    /// What it complains.
    pub stderr: Option<BufReader<ChildStderr>>,
    killer: KillHandle,
    _dropped: DropGuard,
    ended: oneshot::Receiver<SandboxExit>,
}

impl fmt::Debug for SandboxProcess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Running").finish_non_exhaustive()
    }
}

/// How a run ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SandboxExit {
    /// What the command gave; 128 and the signal when one ended it.
    pub exit_code: Option<i32>,
    /// The signal that ended it, or may have: a command that gives 128 and a signal cannot be told from one that was ended by it.
    pub signal: Option<i32>,
    /// Why it ended.
    pub why: ExitReason,
    /// CPU time of all its processes.
    pub cpu: Duration,
    /// The most memory at once, of all its processes.
    pub peak_memory: u64,
    /// Whether the memory limit has killed a process of it, the command or another.
    pub out_of_memory: bool,
}

/// Why a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExitReason {
    /// By itself.
    Exited,
    /// It was killed by [`Running::kill`] or its drop.
    Killed,
    /// It took too long.
    WallClock,
    /// The memory limit killed the command.
    OutOfMemory,
    /// There was too much in what it may change, or too little left on the disk.
    Disk,
}

/// Kills a run, from anywhere.
#[derive(Clone, Debug)]
pub struct KillHandle(CancellationToken);

impl KillHandle {
    /// Kills it and all that it started.
    pub fn kill(&self) {
        self.0.cancel();
    }
}

impl SandboxProcess {
    /// Kills it and all that it started.
    pub fn kill(&self) {
        self.killer.kill();
    }

    /// Something to kill it with while somebody waits for it.
    pub fn kill_handle(&self) -> KillHandle {
        self.killer.clone()
    }

    /// Waits for its end: when this returns, no process of it is left.
    pub async fn wait_for_exit(self) -> SandboxExit {
        let Self { stdin, stdout, stderr, ended, _dropped, .. } = self;
        drop(stdin);
        let lost = SandboxExit {
            exit_code: None,
            signal: None,
            why: ExitReason::Killed,
            cpu: Duration::ZERO,
            peak_memory: 0,
            out_of_memory: false,
        };
        // What nobody has taken is read away, so that a full pipe holds nothing up.
        let drained = async {
            tokio::join!(drain_pipe(stdout), drain_pipe(stderr));
            pending::<()>().await;
        };
        tokio::select! {
            ended = ended => ended.unwrap_or(lost),
            () = drained => lost,
        }
    }

    /// Follows a process that becomes a sandbox: writes its launch spec and waits until it is locked in.
    pub(super) async fn start_and_watch(
        mut watch: RunWatcher,
        first: Option<Vec<u8>>,
        init: &InitSpec,
    ) -> Result<Self, SandboxError> {
        let token = CancellationToken::new();
        let (send, ended) = oneshot::channel();
        let mut running = Self {
            stdin: watch.child.stdin.take(),
            stdout: watch.child.stdout.take(),
            stderr: watch.child.stderr.take().map(BufReader::new),
            killer: KillHandle(token.clone()),
            _dropped: token.clone().drop_guard(),
            ended,
        };
        let ground = Arc::clone(&watch.ground);
        ground.register_run(&watch.name, running.kill_handle());
        ground.task_tracker().spawn(async move {
            let ended = watch.watch_to_exit(&token).await;
            let _ = send.send(ended);
        });
        let begun = timeout(START_TIMEOUT, running.await_start(first, init)).await;
        match begun {
            Ok(begun) => begun?,
            Err(_) => return Err(SandboxError::Start("it took too long".into())),
        }
        Ok(running)
    }

    async fn await_start(
        &mut self,
        first: Option<Vec<u8>>,
        init: &InitSpec,
    ) -> Result<(), SandboxError> {
        let mut specs = first.unwrap_or_default();
        specs.extend(
            encode_launch_spec(init).map_err(|error| SandboxError::Refused(error.to_string()))?,
        );
        self.write_stdin(&specs).await;
        self.wait_for_marker(STARTED_MARKER).await
    }

    async fn write_stdin(&mut self, bytes: &[u8]) {
        if let Some(stdin) = &mut self.stdin {
            // One that is gone has said why.
            let _ = stdin.write_all(bytes).await;
            let _ = stdin.flush().await;
        }
    }

    /// Reads what it complains until it says the word. What it says before are warnings, or its last words.
    async fn wait_for_marker(&mut self, word: &[u8]) -> Result<(), SandboxError> {
        let Some(stderr) = &mut self.stderr else { return Ok(()) };
        let mut before = Vec::new();
        loop {
            let mut line = Vec::new();
            let read = stderr.read_until(b'\n', &mut line).await;
            if line == word {
                return Ok(());
            }
            if !matches!(read, Ok(1..)) || before.len() > STDERR_TAIL_BYTES {
                let rest = capture_tail(stderr, STDERR_TAIL_BYTES).await;
                before.extend(rest.bytes);
                let words = String::from_utf8_lossy(&before).trim().to_owned();
                return Err(SandboxError::Start(words));
            }
            before.extend(line);
        }
    }
}

async fn drain_pipe(from: Option<impl tokio::io::AsyncRead + Unpin>) {
    if let Some(from) = from {
        capture_tail(from, 0).await;
    }
}

/// Who sees to it that a run ends and that nothing is left of it.
pub(super) struct RunWatcher {
    pub(super) ground: Arc<HostEnv>,
    pub(super) name: String,
    pub(super) child: Child,
    pub(super) group: RunCgroup,
    pub(super) disk: DiskQuota,
    pub(super) wall: Duration,
    pub(super) memory: u64,
    pub(super) container: Option<PodmanContainer>,
    /// Whether it had to be killed from outside.
    pub(super) by_force: bool,
}

impl RunWatcher {
    async fn watch_to_exit(mut self, kill: &CancellationToken) -> SandboxExit {
        let (status, why) = match timeout(self.wall, self.wait_for_end_cause(kill)).await {
            Ok((Some(status), why)) => (Some(status), why),
            Ok((None, why)) => (self.kill_run().await, why),
            Err(_) => (self.kill_run().await, ExitReason::WallClock),
        };
        let (exit_code, signal) = decode_exit_status(status);
        let used = self.clean_up(signal).await;
        self.ground.unregister_run(&self.name);
        let by_memory = why == ExitReason::Exited && used.out_of_memory > 0 && signal == Some(9);
        SandboxExit {
            exit_code,
            signal,
            why: if by_memory { ExitReason::OutOfMemory } else { why },
            cpu: used.cpu,
            peak_memory: used.peak_memory,
            out_of_memory: used.out_of_memory > 0,
        }
    }

    async fn wait_for_end_cause(
        &mut self,
        kill: &CancellationToken,
    ) -> (Option<ExitStatus>, ExitReason) {
        let Self { child, disk, container, group, .. } = self;
        let alive = async {
            if let Some(container) = container {
                container.accept_liveness().await;
                container.watch_oom_kills(group).await;
            }
            pending::<()>().await;
        };
        tokio::select! {
            status = child.wait() => (status.ok(), ExitReason::Exited),
            () = kill.cancelled() => (None, ExitReason::Killed),
            () = disk.wait_exceeded() => (None, ExitReason::Disk),
            () = alive => (None, ExitReason::Killed),
        }
    }

    /// Kills it; gives how it then ended.
    async fn kill_run(&mut self) -> Option<ExitStatus> {
        if let Some(container) = &mut self.container {
            container.close_connection();
            if let Ok(status) = timeout(CONTAINER_EXIT_TIMEOUT, self.child.wait()).await {
                return status.ok();
            }
        }
        self.by_force = true;
        self.group.kill_all();
        let _ = self.child.start_kill();
        self.child.wait().await.ok()
    }

    /// Whatever is left of it goes; gives what it has used.
    async fn clean_up(&mut self, signal: Option<i32>) -> CgroupUsage {
        let mut used = self.group.read_usage();
        if let Some(container) = &mut self.container {
            used.out_of_memory = container.count_oom_kills(&used, self.memory, signal);
            container.clean_up(&self.ground, self.by_force).await;
        }
        let mut ticks = interval(REMOVAL_INTERVAL);
        for _ in 0..MAX_REMOVAL_ATTEMPTS {
            self.group.kill_all();
            if self.group.remove_directories() {
                return used;
            }
            ticks.tick().await;
        }
        tracing::warn!(run = %self.name, "a cgroup could not be removed; the next sweep tries again");
        used
    }
}

/// The exit code, and the signal that it may stand for: what makes the sandbox gives 128 and the signal.
fn decode_exit_status(status: Option<ExitStatus>) -> (Option<i32>, Option<i32>) {
    use std::os::unix::process::ExitStatusExt;
    let Some(status) = status else { return (None, None) };
    match (status.code(), status.signal()) {
        (Some(code @ 129..=192), _) => (Some(code), Some(code - 128)),
        (Some(code), _) => (Some(code), None),
        (None, signal) => (None, signal),
    }
}
