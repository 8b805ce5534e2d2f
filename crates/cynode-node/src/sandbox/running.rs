//! A run from its start to its end.

use std::{fmt, future::pending, process::ExitStatus, sync::Arc, time::Duration};

use cynode_inside::{Inside, STARTED, encode};
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
    process::{Child, ChildStderr, ChildStdin, ChildStdout},
    sync::oneshot,
    time::{interval, timeout},
};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::{
    SandboxError,
    cgroups::{Group, Used},
    disk::Disk,
    ground::Ground,
    output::capture,
    podman::Container,
};

/// A sandbox that does not come up within this never does.
const PATIENCE: Duration = Duration::from_mins(1);
/// What is kept of what was said by one that did not come up.
const LAST_WORDS: usize = 4096;
/// How long a container may take to go by itself.
const GRACE: Duration = Duration::from_secs(3);
/// How often and how long apart the removal of an empty cgroup is tried.
const REMOVALS: usize = 200;
const BETWEEN: Duration = Duration::from_millis(5);

/// A run. To drop it is to kill it.
pub struct Running {
    /// What it reads.
    pub stdin: Option<ChildStdin>,
    /// What it writes.
    pub stdout: Option<ChildStdout>,
    /// What it complains.
    pub stderr: Option<BufReader<ChildStderr>>,
    killer: Killer,
    _dropped: DropGuard,
    ended: oneshot::Receiver<Ended>,
}

impl fmt::Debug for Running {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Running").finish_non_exhaustive()
    }
}

/// How a run ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ended {
    /// What the command gave; 128 and the signal when one ended it.
    pub exit_code: Option<i32>,
    /// The signal that ended it, or may have: a command that gives 128 and a signal cannot be told from one that was ended by it.
    pub signal: Option<i32>,
    /// Why it ended.
    pub why: Why,
    /// CPU time of all its processes.
    pub cpu: Duration,
    /// The most memory at once, of all its processes.
    pub peak_memory: u64,
    /// Whether the memory limit has killed a process of it, the command or another.
    pub out_of_memory: bool,
}

/// Why a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
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
pub struct Killer(CancellationToken);

impl Killer {
    /// Kills it and all that it started.
    pub fn kill(&self) {
        self.0.cancel();
    }
}

impl Running {
    /// Kills it and all that it started.
    pub fn kill(&self) {
        self.killer.kill();
    }

    /// Something to kill it with while somebody waits for it.
    pub fn killer(&self) -> Killer {
        self.killer.clone()
    }

    /// Waits for its end: when this returns, no process of it is left.
    pub async fn wait(self) -> Ended {
        let Self { stdin, stdout, stderr, ended, _dropped, .. } = self;
        drop(stdin);
        let lost = Ended {
            exit_code: None,
            signal: None,
            why: Why::Killed,
            cpu: Duration::ZERO,
            peak_memory: 0,
            out_of_memory: false,
        };
        // What nobody has taken is read away, so that a full pipe holds nothing up.
        let drained = async {
            tokio::join!(drain(stdout), drain(stderr));
            pending::<()>().await;
        };
        tokio::select! {
            ended = ended => ended.unwrap_or(lost),
            () = drained => lost,
        }
    }

    /// Follows a process that becomes a sandbox: says its orders and waits until it is locked in.
    pub(super) async fn follow(
        mut watch: Watch,
        first: Option<Vec<u8>>,
        inside: &Inside,
    ) -> Result<Self, SandboxError> {
        let token = CancellationToken::new();
        let (send, ended) = oneshot::channel();
        let mut running = Self {
            stdin: watch.child.stdin.take(),
            stdout: watch.child.stdout.take(),
            stderr: watch.child.stderr.take().map(BufReader::new),
            killer: Killer(token.clone()),
            _dropped: token.clone().drop_guard(),
            ended,
        };
        let ground = Arc::clone(&watch.ground);
        ground.remember(&watch.name, running.killer());
        ground.tracker().spawn(async move {
            let ended = watch.until_the_end(&token).await;
            let _ = send.send(ended);
        });
        let begun = timeout(PATIENCE, running.begin(first, inside)).await;
        match begun {
            Ok(begun) => begun?,
            Err(_) => return Err(SandboxError::Start("it took too long".into())),
        }
        Ok(running)
    }

    async fn begin(&mut self, first: Option<Vec<u8>>, inside: &Inside) -> Result<(), SandboxError> {
        let mut orders = first.unwrap_or_default();
        orders.extend(encode(inside).map_err(|error| SandboxError::Refused(error.to_string()))?);
        self.say(&orders).await;
        self.hear(STARTED).await
    }

    async fn say(&mut self, orders: &[u8]) {
        if let Some(stdin) = &mut self.stdin {
            // One that is gone has said why.
            let _ = stdin.write_all(orders).await;
            let _ = stdin.flush().await;
        }
    }

    /// Reads what it complains until it says the word. What it says before are warnings, or its last words.
    async fn hear(&mut self, word: &[u8]) -> Result<(), SandboxError> {
        let Some(stderr) = &mut self.stderr else { return Ok(()) };
        let mut before = Vec::new();
        loop {
            let mut line = Vec::new();
            let read = stderr.read_until(b'\n', &mut line).await;
            if line == word {
                return Ok(());
            }
            if !matches!(read, Ok(1..)) || before.len() > LAST_WORDS {
                let rest = capture(stderr, LAST_WORDS).await;
                before.extend(rest.bytes);
                let words = String::from_utf8_lossy(&before).trim().to_owned();
                return Err(SandboxError::Start(words));
            }
            before.extend(line);
        }
    }
}

async fn drain(from: Option<impl tokio::io::AsyncRead + Unpin>) {
    if let Some(from) = from {
        capture(from, 0).await;
    }
}

/// Who sees to it that a run ends and that nothing is left of it.
pub(super) struct Watch {
    pub(super) ground: Arc<Ground>,
    pub(super) name: String,
    pub(super) child: Child,
    pub(super) group: Group,
    pub(super) disk: Disk,
    pub(super) wall: Duration,
    pub(super) memory: u64,
    pub(super) container: Option<Container>,
    /// Whether it had to be killed from outside.
    pub(super) by_force: bool,
}

impl Watch {
    async fn until_the_end(mut self, kill: &CancellationToken) -> Ended {
        let (status, why) = match timeout(self.wall, self.something_happens(kill)).await {
            Ok((Some(status), why)) => (Some(status), why),
            Ok((None, why)) => (self.end().await, why),
            Err(_) => (self.end().await, Why::WallClock),
        };
        let (exit_code, signal) = outcome(status);
        let used = self.clear(signal).await;
        self.ground.forget(&self.name);
        let by_memory = why == Why::Exited && used.out_of_memory > 0 && signal == Some(9);
        Ended {
            exit_code,
            signal,
            why: if by_memory { Why::OutOfMemory } else { why },
            cpu: used.cpu,
            peak_memory: used.peak_memory,
            out_of_memory: used.out_of_memory > 0,
        }
    }

    async fn something_happens(&mut self, kill: &CancellationToken) -> (Option<ExitStatus>, Why) {
        let Self { child, disk, container, group, .. } = self;
        let alive = async {
            if let Some(container) = container {
                container.hold().await;
                container.look(group).await;
            }
            pending::<()>().await;
        };
        tokio::select! {
            status = child.wait() => (status.ok(), Why::Exited),
            () = kill.cancelled() => (None, Why::Killed),
            () = disk.exceeded() => (None, Why::Disk),
            () = alive => (None, Why::Killed),
        }
    }

    /// Kills it; gives how it then ended.
    async fn end(&mut self) -> Option<ExitStatus> {
        if let Some(container) = &mut self.container {
            container.let_go();
            if let Ok(status) = timeout(GRACE, self.child.wait()).await {
                return status.ok();
            }
        }
        self.by_force = true;
        self.group.kill();
        let _ = self.child.start_kill();
        self.child.wait().await.ok()
    }

    /// Whatever is left of it goes; gives what it has used.
    async fn clear(&mut self, signal: Option<i32>) -> Used {
        let mut used = self.group.used();
        if let Some(container) = &mut self.container {
            used.out_of_memory = container.kills(&used, self.memory, signal);
            container.clear(&self.ground, self.by_force).await;
        }
        let mut ticks = interval(BETWEEN);
        for _ in 0..REMOVALS {
            self.group.kill();
            if self.group.remove() {
                return used;
            }
            ticks.tick().await;
        }
        tracing::warn!(run = %self.name, "a cgroup could not be removed; the next sweep tries again");
        used
    }
}

/// The exit code, and the signal that it may stand for: what makes the sandbox gives 128 and the signal.
fn outcome(status: Option<ExitStatus>) -> (Option<i32>, Option<i32>) {
    use std::os::unix::process::ExitStatusExt;
    let Some(status) = status else { return (None, None) };
    match (status.code(), status.signal()) {
        (Some(code @ 129..=192), _) => (Some(code), Some(code - 128)),
        (Some(code), _) => (Some(code), None),
        (None, signal) => (None, signal),
    }
}
