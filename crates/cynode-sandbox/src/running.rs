//! The lifecycle of a sandbox run.

use std::{
    fmt, future::pending, os::unix::process::ExitStatusExt, process::ExitStatus, sync::Arc,
    time::Duration,
};

use cynode_sandbox_init::{InitSpec, STARTED_MARKER, encode_launch_spec};
use rustix::process::Signal;
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

/// Timeout of a sandbox start.
const START_TIMEOUT: Duration = Duration::from_mins(1);
/// Bytes of standard error that are kept of a sandbox that did not start.
const STDERR_TAIL_BYTES: usize = 4096;
/// Time that a container has to exit by itself.
const CONTAINER_EXIT_TIMEOUT: Duration = Duration::from_secs(3);
/// Time that the process outside has to reap the first process inside.
const REAP_TIMEOUT: Duration = Duration::from_millis(500);
/// Number of attempts to remove an empty cgroup, and the interval between them.
const MAX_REMOVAL_ATTEMPTS: usize = 200;
const REMOVAL_INTERVAL: Duration = Duration::from_millis(5);

/// A running sandbox process. Dropping it kills the run.
pub struct SandboxProcess {
    /// Standard input.
    pub stdin: Option<ChildStdin>,
    /// Standard output.
    pub stdout: Option<ChildStdout>,
    /// Standard error.
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

/// Outcome of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SandboxExit {
    /// Exit code of the command; 128 plus the signal if a signal ended it.
    pub exit_code: Option<i32>,
    /// Signal that may have ended the command. An exit code of 128 plus a signal cannot be distinguished from a real signal.
    pub signal: Option<i32>,
    /// Reason for the end.
    pub why: ExitReason,
    /// CPU time of all processes.
    pub cpu: Duration,
    /// Peak memory of all processes together.
    pub peak_memory: u64,
    /// Whether the memory limit killed any process of the run.
    pub out_of_memory: bool,
}

/// Reason why a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExitReason {
    /// The command exited by itself.
    Exited,
    /// [`SandboxProcess::kill`] or a drop killed it.
    Killed,
    /// It exceeded its wall-clock limit.
    WallClock,
    /// The memory limit killed the command.
    OutOfMemory,
    /// It exceeded its disk quota, or the disk was low.
    Disk,
}

/// Cloneable handle that kills a run.
#[derive(Clone, Debug)]
pub struct KillHandle(CancellationToken);

impl KillHandle {
    /// Kills the run and all its processes.
    pub fn kill(&self) {
        self.0.cancel();
    }
}

impl SandboxProcess {
    /// Kills the run and all its processes.
    pub fn kill(&self) {
        self.killer.kill();
    }

    /// Returns a handle that can kill the run while another task waits for it.
    pub fn kill_handle(&self) -> KillHandle {
        self.killer.clone()
    }

    /// Waits for the end of the run. When it returns, no process of the run is left.
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
        // Drains streams that the caller did not take, so that a full pipe does not block the run.
        let drained = async {
            tokio::join!(drain_pipe(stdout), drain_pipe(stderr));
            pending::<()>().await;
        };
        tokio::select! {
            ended = ended => ended.unwrap_or(lost),
            () = drained => lost,
        }
    }

    /// Watches a process that becomes a sandbox: writes its launch spec and waits until all restrictions are in effect.
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
            // A process that has exited reports its reason on standard error.
            let _ = stdin.write_all(bytes).await;
            let _ = stdin.flush().await;
        }
    }

    /// Reads standard error until the marker line. Earlier lines are warnings, or the reason of a failed start.
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

/// Watches a run to its end and removes its remains.
pub(super) struct RunWatcher {
    pub(super) ground: Arc<HostEnv>,
    pub(super) name: String,
    pub(super) child: Child,
    pub(super) group: RunCgroup,
    pub(super) disk: DiskQuota,
    pub(super) wall: Duration,
    pub(super) memory: u64,
    pub(super) container: Option<PodmanContainer>,
    /// Whether the run was killed from outside.
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

    /// Kills the run and returns its exit status.
    async fn kill_run(&mut self) -> Option<ExitStatus> {
        if let Some(container) = &mut self.container {
            container.close_connection();
            if let Ok(status) = timeout(CONTAINER_EXIT_TIMEOUT, self.child.wait()).await {
                return status.ok();
            }
        }
        // The process outside reaps the one inside. If both were killed at once, the machine's first process would have to, and where
        // that is a program that does not reap, zombies would pile up.
        let outside = self.child.id().and_then(|id| i32::try_from(id).ok());
        if let (None, Some(outside)) = (&self.container, outside) {
            self.group.kill_all_except(outside);
            if timeout(REAP_TIMEOUT, self.child.wait()).await.is_ok() {
                return Some(ExitStatus::from_raw(Signal::KILL.as_raw()));
            }
        }
        self.by_force = true;
        self.group.kill_all();
        let _ = self.child.start_kill();
        self.child.wait().await.ok()
    }

    /// Removes the remains of the run and returns its resource usage.
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

/// Returns the exit code, and the signal that it may stand for: the sandbox program exits with 128 plus the signal.
fn decode_exit_status(status: Option<ExitStatus>) -> (Option<i32>, Option<i32>) {
    let Some(status) = status else { return (None, None) };
    match (status.code(), status.signal()) {
        (Some(code @ 129..=192), _) => (Some(code), Some(code - 128)),
        (Some(code), _) => (Some(code), None),
        (None, signal) => (None, signal),
    }
}
