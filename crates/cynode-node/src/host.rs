//! Host programs that the node runs outside of sandboxes: `git` and `rm`, never a program of a job.
//!
//! They end with the node, also when it is killed, together with their children: each runs under `cynode-node hold`,
//! which kills it when the node's end of a pipe closes.

use std::{
    ffi::{OsStr, OsString},
    io,
    os::unix::process::{CommandExt, ExitStatusExt},
    path::PathBuf,
    process::Stdio,
    thread,
    time::Duration,
};

use rustix::process::{Pid, Signal, kill_process_group};
use tokio::{
    io::{AsyncRead, AsyncReadExt},
    process::Command,
    time::timeout,
};

/// Maximum number of bytes that are kept of a program's output.
const MAX_OUTPUT_BYTES: usize = 64 * 1024;

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
    /// The program exceeded its timeout.
    #[error("{0} took too long")]
    Slow(String),
}

/// Runner of host programs.
#[derive(Clone, Debug)]
pub struct HostCommands {
    own: PathBuf,
}

impl HostCommands {
    /// Creates a runner; `own` is the path of the node's own binary.
    pub const fn new(own: PathBuf) -> Self {
        Self { own }
    }

    /// Builds a command that ends with the node. It inherits nothing of the node's environment.
    pub(crate) fn build_command(&self, program: &str) -> Command {
        let mut command = Command::new(&self.own);
        command.args(["hold", "--", program]);
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
            let told = if stderr.trim().is_empty() { status.to_string() } else { stderr };
            Err(HostCommandError::Failed { program, told: told.trim().to_owned() })
        }
        Err(source) => Err(HostCommandError::Start { program, source }),
    }
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
pub(crate) fn run_until_stdin_closes(argv: &[OsString]) -> io::Result<i32> {
    let [program, arguments @ ..] = argv else {
        return Err(io::Error::other("no program was named"));
    };
    let mut command = std::process::Command::new(program);
    let mut child = command.args(arguments).stdin(Stdio::null()).process_group(0).spawn()?;
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
