//! Host programs that the node runs outside of sandboxes: `git` and `rm`, never a program of a job.
//!
//! They end with the node, also when it is killed, together with their children: each runs under `cynode-node hold`,
//! which kills it when the node's end of a pipe closes.
//!
//! Git reads packs and trees that agents wrote. It runs under resource limits, without new privileges, and as a user of its own where
//! the node is root: a flaw of git, or a pack that expands to any size, harms neither the machine nor the node.

use std::{
    ffi::{OsStr, OsString},
    io,
    os::unix::process::{CommandExt, ExitStatusExt},
    path::PathBuf,
    process::Stdio,
    thread,
    time::Duration,
};

use cynode_core::git_limits::GIT_OVER_LIMIT_MARKERS;
use rustix::{
    process::{Pid, Resource, Rlimit, Signal, kill_process_group, setrlimit},
    thread::set_no_new_privs,
};
use tokio::{
    io::{AsyncRead, AsyncReadExt},
    process::Command,
    time::timeout,
};

/// Maximum number of bytes that are kept of a program's output.
const MAX_OUTPUT_BYTES: usize = 64 * 1024;

/// Resource limits of a confined program and of each of its children, in bytes and seconds. The memory of git grows with the number of
/// objects, not with what one of them expands to. The address space also has the packs and indexes that git maps.
const CONFINED_LIMITS: [(Resource, u64); 4] = [
    (Resource::Core, 0),
    (Resource::Data, 224 << 20),
    (Resource::As, 512 << 20),
    (Resource::Fsize, 4 << 30),
];

/// CPU time of a confined program in seconds, and the time after which it is killed if it ignores the signal.
const CONFINED_CPU_SECONDS: u64 = 300;
const CONFINED_CPU_KILL_SECONDS: u64 = CONFINED_CPU_SECONDS + 5;

/// Exit codes of a program that was ended because it used up its CPU time, or wrote a file above its limit.
const OVER_LIMIT_CODES: [i32; 2] = [128 + 24, 128 + 25];

/// Messages of git about a cause that its input did not bring. They go before every other message.
const TRANSIENT_MARKERS: [&str; 3] =
    ["No space left on device", "died of signal 9", "died of signal 15"];

/// `PATH` of host programs.
const PROGRAM_SEARCH_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Failure of a host program.
#[derive(Debug, thiserror::Error)]
pub(crate) enum HostCommandError {
    /// The program could not be started.
    #[error("{program} cannot be started: {source}")]
    Start {
        /// Name of the program.
        program: String,
        /// Cause of the failure.
        source: io::Error,
    },
    /// The program exited with an error.
    #[error("{program} failed: {told}")]
    Failed {
        /// Name of the program.
        program: String,
        /// Tail of its output.
        told: String,
    },
    /// The program hit a limit of its resources. It would do so again.
    #[error("{program} needs more memory, time or space than it is given: {told}")]
    OverLimit {
        /// Name of the program.
        program: String,
        /// Tail of its output.
        told: String,
    },
    /// The program exceeded its timeout.
    #[error("{0} took too long")]
    Slow(String),
}

/// Restrictions of a host program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Confinement {
    /// None, for programs that read no data of agents.
    Unconfined,
    /// Resource limits, no new privileges, and another user if one is given.
    Confined(Option<u32>),
}

/// Runner of host programs.
#[derive(Clone, Debug)]
pub struct HostCommands {
    own: PathBuf,
    git_user: Option<u32>,
}

impl HostCommands {
    /// Creates a runner; `own` is the path of the node's own binary.
    pub const fn new(own: PathBuf) -> Self {
        Self { own, git_user: None }
    }

    /// Makes git run as a user of its own. The node must be root.
    #[must_use]
    pub fn with_git_user(self, user: u32) -> Self {
        Self { git_user: Some(user), ..self }
    }

    /// Returns the user of git, if it is not the node's own.
    pub(crate) const fn git_user(&self) -> Option<u32> {
        self.git_user
    }

    /// Builds a command that ends with the node. It inherits nothing of the node's environment.
    pub(crate) fn build_command(&self, program: &str) -> Command {
        let mut command = Command::new(&self.own);
        command.args(["hold", "--", program]);
        command.env_clear().env("PATH", PROGRAM_SEARCH_PATH).env("LC_ALL", "C");
        command
    }

    /// Builds a git command that ends with the node and is confined.
    pub(crate) fn build_git_command(&self) -> Command {
        let mut command = Command::new(&self.own);
        command.args(["hold", "--confine"]);
        if let Some(user) = self.git_user {
            command.arg("--user").arg(user.to_string());
        }
        command.args(["--", "git"]);
        command.env_clear().env("PATH", PROGRAM_SEARCH_PATH).env("LC_ALL", "C");
        command
    }

    /// Removes a directory tree of any depth and with any file modes.
    pub(crate) async fn remove_tree(&self, path: &OsStr) -> Result<(), HostCommandError> {
        let long = Duration::from_mins(10);
        let mut rm = self.build_command("rm");
        rm.args(["-rf", "--"]).arg(path);
        if run_program("rm", rm, long).await.is_ok() {
            return Ok(());
        }
        let mut chmod = self.build_command("chmod");
        chmod.args(["-R", "u+rwX", "--"]).arg(path);
        // A directory that chmod cannot open cannot be removed either: the second attempt reports that.
        let _ = run_program("chmod", chmod, long).await;
        let mut rm = self.build_command("rm");
        rm.args(["-rf", "--"]).arg(path);
        run_program("rm", rm, long).await.map(drop)
    }
}

/// Runs a program to its exit and returns its standard output.
pub(crate) async fn run_program(
    name: &str,
    command: Command,
    patience: Duration,
) -> Result<String, HostCommandError> {
    let mut kept = Vec::new();
    let keep = |piece: &[u8]| {
        kept.extend_from_slice(&piece[..piece.len().min(MAX_OUTPUT_BYTES - kept.len())]);
        true
    };
    run_streaming(name, command, patience, keep).await?;
    Ok(String::from_utf8_lossy(&kept).into_owned())
}

/// Runs a program and streams its standard output to a callback. Returns whether the callback wanted all of it.
pub(crate) async fn run_streaming(
    name: &str,
    mut command: Command,
    patience: Duration,
    mut wanted: impl FnMut(&[u8]) -> bool + Send,
) -> Result<bool, HostCommandError> {
    let program = name.to_owned();
    let start = |source| HostCommandError::Start { program: program.clone(), source };
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(start)?;
    // The program ends when this pipe closes, and waiting for the child would close it.
    let mut held = child.stdin.take();
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    let listen = async {
        let Some(mut pipe) = stdout else { return true };
        let mut piece = vec![0; 16 * 1024];
        while let Ok(length @ 1..) = pipe.read(&mut piece).await {
            if !wanted(&piece[..length]) {
                held = None;
                return false;
            }
        }
        true
    };
    let all = async { tokio::join!(listen, read_bounded(stderr), child.wait()) };
    let ended = timeout(patience, all).await;
    let (whole, stderr, status) = ended.map_err(|_| HostCommandError::Slow(program.clone()))?;
    drop(held);
    match status {
        Ok(_) if !whole => Ok(false),
        Ok(status) if status.success() => Ok(true),
        Ok(status) => {
            let over = is_over_limit(status.code(), &stderr);
            let told = if stderr.trim().is_empty() { status.to_string() } else { stderr };
            let told = told.trim().to_owned();
            Err(if over {
                HostCommandError::OverLimit { program, told }
            } else {
                HostCommandError::Failed { program, told }
            })
        }
        Err(source) => Err(HostCommandError::Start { program, source }),
    }
}

/// Returns whether a failed program has hit a limit of its resources.
fn is_over_limit(code: Option<i32>, stderr: &str) -> bool {
    let says = |markers: &[&str]| markers.iter().any(|marker| stderr.contains(marker));
    !says(&TRANSIENT_MARKERS)
        && (code.is_some_and(|code| OVER_LIMIT_CODES.contains(&code))
            || says(&GIT_OVER_LIMIT_MARKERS))
}

/// Reads the pipe to its end and keeps the beginning.
async fn read_bounded(pipe: Option<impl AsyncRead + Unpin>) -> String {
    let Some(mut pipe) = pipe else { return String::new() };
    let mut bytes = Vec::new();
    let _ = (&mut pipe).take(MAX_OUTPUT_BYTES as u64).read_to_end(&mut bytes).await;
    let _ = tokio::io::copy(&mut pipe, &mut tokio::io::sink()).await;
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Runs a program until it exits, or until the other end of standard input closes. Returns its exit code.
pub(crate) fn run_until_stdin_closes(
    argv: &[OsString],
    confinement: Confinement,
) -> io::Result<i32> {
    let [program, arguments @ ..] = argv else {
        return Err(io::Error::other("no program was named"));
    };
    let mut command = std::process::Command::new(program);
    command.args(arguments).stdin(Stdio::null()).process_group(0);
    if let Confinement::Confined(user) = confinement {
        confine_process()?;
        // The working directory of the node may be closed to the other user.
        command.current_dir("/");
        if let Some(user) = user {
            // It has no other groups: those of root are dropped with the change of user.
            command.gid(user).uid(user);
        }
    }
    let mut child = command.spawn()?;
    let group = Pid::from_child(&child);
    thread::spawn(move || {
        let _ = io::copy(&mut io::stdin(), &mut io::sink());
        let _ = kill_process_group(group, Signal::KILL);
    });
    let status = child.wait()?;
    // Kills the processes that the program left behind.
    let _ = kill_process_group(group, Signal::KILL);
    Ok(status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or_default()))
}

/// Confines this process and whatever it starts.
fn confine_process() -> io::Result<()> {
    let cpu =
        Rlimit { current: Some(CONFINED_CPU_SECONDS), maximum: Some(CONFINED_CPU_KILL_SECONDS) };
    setrlimit(Resource::Cpu, cpu)?;
    for (resource, most) in CONFINED_LIMITS {
        setrlimit(resource, Rlimit { current: Some(most), maximum: Some(most) })?;
    }
    set_no_new_privs(true)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_death_by_a_limit_is_told_from_one_that_may_pass() {
        let oom = "fatal: Out of memory, malloc failed (tried to allocate 1073741761 bytes)";
        assert!(is_over_limit(Some(128), oom));
        assert!(is_over_limit(Some(152), "") && is_over_limit(Some(153), ""));
        assert!(is_over_limit(Some(128), "error: index-pack died of signal 24"));
        assert!(!is_over_limit(Some(137), "") && !is_over_limit(None, ""));
        assert!(!is_over_limit(Some(128), "fatal: write error: No space left on device"));
        assert!(!is_over_limit(Some(128), "error: index-pack died of signal 9"));
        assert!(!is_over_limit(Some(128), "fatal: couldn't find remote ref"));
    }
}
