//! Processes of git under resource limits.
//!
//! A pack is untrusted input: a delta of a few kilobytes can stand for an object of any size. Every process of git, and every child
//! of it, therefore runs under limits of memory, CPU time and file size, which `prlimit` of util-linux sets before it executes git.
//! Without `prlimit` git is not started. A process that hits a limit dies, and [`is_over_limit`] tells that death from others: it is a
//! verdict on the input, and a repeat would end the same way.

use std::{
    io,
    os::unix::process::ExitStatusExt,
    process::{ExitStatus, Stdio},
    time::Duration,
};

use cynode_core::git_limits::{GIT_MEMORY_SETTINGS, GIT_OVER_LIMIT_MARKERS};
use rustix::process::{Pid, Signal, kill_process_group};
use tokio::{
    io::{AsyncRead, AsyncReadExt},
    process::{Child, ChildStdin, ChildStdout, Command},
};

/// `PATH` for git and its helpers.
const GIT_SEARCH_PATH: &str = "/usr/local/bin:/usr/bin:/bin";

/// Seconds between the signal that ends a process which has used up its CPU time, and the kill.
const CPU_KILL_DELAY_SECONDS: u64 = 5;

/// Maximum number of bytes that are kept of the error output.
const MAX_STDERR_BYTES: u64 = 64 * 1024;

/// Number of the signal that ends a process which has used up its CPU time.
const SIGXCPU: i32 = 24;

/// Number of the signal that ends a process which writes a file above its limit.
const SIGXFSZ: i32 = 25;

/// Messages of git about a cause outside of the input: a full or broken disk, and a kill by somebody else. They go before every other
/// message, because git also says that its child died.
const TRANSIENT_MARKERS: [&str; 6] = [
    "No space left on device",
    "Disk quota exceeded",
    "Input/output error",
    "Read-only file system",
    "died of signal 9",
    "died of signal 15",
];

/// Resource limits of a git process and of each of its children.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GitLimits {
    /// Private memory in bytes.
    pub data_bytes: u64,
    /// Address space in bytes, with the packs and indexes that are mapped.
    pub address_space_bytes: u64,
    /// CPU time in seconds.
    pub cpu_seconds: u64,
    /// Size of the largest file that is written, in bytes.
    pub file_bytes: u64,
}

impl GitLimits {
    /// Limits of git where it reads objects: imports, inspections and merges.
    pub const READ: Self = Self {
        data_bytes: 224 << 20,
        address_space_bytes: 512 << 20,
        cpu_seconds: 120,
        file_bytes: 4 << 30,
    };

    /// Limits of git where it writes a pack of objects that an import under [`Self::READ`] has accepted. Its memory grows with the
    /// number of objects, not with what one of them expands to.
    pub const WRITE_PACK: Self = Self {
        data_bytes: 1 << 30,
        address_space_bytes: 2 << 30,
        cpu_seconds: 600,
        file_bytes: 64 << 30,
    };

    /// Returns the arguments of `prlimit`.
    fn prlimit_arguments(self) -> [String; 5] {
        let Self { data_bytes, address_space_bytes, cpu_seconds, file_bytes } = self;
        // At the soft limit of CPU time a process gets a signal of its own. At the hard limit it gets the one that everybody sends.
        let cpu_kill = cpu_seconds + CPU_KILL_DELAY_SECONDS;
        [
            "--core=0".to_owned(),
            format!("--data={data_bytes}"),
            format!("--as={address_space_bytes}"),
            format!("--cpu={cpu_seconds}:{cpu_kill}"),
            format!("--fsize={file_bytes}"),
        ]
    }
}

/// Builds a git command under limits. It ignores all configuration but its arguments and inherits nothing of the environment.
pub fn limited_git_command(limits: GitLimits) -> Command {
    let mut git = Command::new("prlimit");
    git.env_clear()
        .env("PATH", GIT_SEARCH_PATH)
        .env("HOME", "/nonexistent")
        .env("LC_ALL", "C.UTF-8")
        .env("GIT_CONFIG_NOSYSTEM", "1")
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .env("GIT_TERMINAL_PROMPT", "0")
        .args(limits.prlimit_arguments())
        .args(["--", "git"]);
    for (key, value) in GIT_MEMORY_SETTINGS {
        git.arg("-c").arg(format!("{key}={value}"));
    }
    git.stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .kill_on_drop(true);
    git
}

/// Returns whether a failed process has hit a limit. `stderr` is what it said.
pub fn is_over_limit(status: ExitStatus, stderr: &str) -> bool {
    if TRANSIENT_MARKERS.iter().any(|marker| stderr.contains(marker)) {
        return false;
    }
    matches!(status.signal(), Some(SIGXCPU | SIGXFSZ))
        || GIT_OVER_LIMIT_MARKERS.iter().any(|marker| stderr.contains(marker))
}

/// Returns whether git failed for a cause outside of its input.
pub fn is_transient_failure(stderr: &str) -> bool {
    TRANSIENT_MARKERS.iter().any(|marker| stderr.contains(marker))
}

/// Output of a git process that has exited.
#[derive(Clone, Debug)]
pub struct GitOutput {
    /// Exit status.
    pub status: ExitStatus,
    /// Standard output, up to the maximum that the caller reads.
    pub stdout: Vec<u8>,
    /// Beginning of the error output.
    pub stderr: String,
    /// Whether the standard output is complete. Otherwise the process was killed.
    pub is_complete: bool,
}

impl GitOutput {
    /// Returns whether the process failed because it hit a limit.
    pub fn is_over_limit(&self) -> bool {
        self.is_complete && !self.status.success() && is_over_limit(self.status, &self.stderr)
    }
}

/// A running git process. Dropping it before its end kills its whole process group: git leaves children behind that would go on.
#[derive(Debug)]
pub struct GitProcess {
    child: Child,
    group: Option<Pid>,
}

impl GitProcess {
    /// Starts a command of [`limited_git_command`].
    pub fn spawn_limited(command: &mut Command) -> io::Result<Self> {
        let child = command.spawn().map_err(|error| {
            let why = format!(
                "`prlimit` of util-linux cannot be started, and git does not run without limits: {error}"
            );
            io::Error::new(error.kind(), why)
        })?;
        let group = child.id().and_then(|id| Pid::from_raw(i32::try_from(id).ok()?));
        Ok(Self { child, group })
    }

    /// Takes the pipe to standard input.
    pub fn take_stdin(&mut self) -> Option<ChildStdin> {
        self.child.stdin.take()
    }

    /// Takes the pipe of standard output.
    pub fn take_stdout(&mut self) -> Option<ChildStdout> {
        self.child.stdout.take()
    }

    /// Waits for the exit and reads the output: of the standard output at most a number of bytes. A longer output ends the process.
    pub async fn collect_output(mut self, max_bytes: u64) -> io::Result<GitOutput> {
        drop(self.child.stdin.take());
        let (stdout, stderr) = (self.child.stdout.take(), self.child.stderr.take());
        let group = self.group;
        let listen = async {
            let read = read_up_to(stdout, max_bytes).await?;
            if !read.1 {
                kill_group(group);
            }
            Ok::<_, io::Error>(read)
        };
        let complain = async {
            let mut text = Vec::new();
            if let Some(mut pipe) = stderr {
                (&mut pipe).take(MAX_STDERR_BYTES).read_to_end(&mut text).await?;
                tokio::io::copy(&mut pipe, &mut tokio::io::sink()).await?;
            }
            Ok::<_, io::Error>(text)
        };
        let (listened, complained, status) = tokio::join!(listen, complain, self.child.wait());
        let ((stdout, is_complete), status) = (listened?, status?);
        // Every pipe is closed and the process is reaped: nobody is left to be killed.
        self.group = None;
        let stderr = String::from_utf8_lossy(&complained?).into_owned();
        if !status.success() && stderr.starts_with("prlimit: ") {
            let why = format!("git does not run without limits: {}", stderr.trim());
            return Err(io::Error::other(why));
        }
        Ok(GitOutput { status, stdout, stderr, is_complete })
    }

    /// Does the same within a time. After it the process group is killed and the result is `None`.
    pub async fn collect_output_within(
        self,
        timeout: Duration,
        max_bytes: u64,
    ) -> io::Result<Option<GitOutput>> {
        match tokio::time::timeout(timeout, self.collect_output(max_bytes)).await {
            Ok(output) => output.map(Some),
            Err(_) => Ok(None),
        }
    }
}

impl Drop for GitProcess {
    fn drop(&mut self) {
        kill_group(self.group);
    }
}

/// Kills the processes of a group, if there is one.
fn kill_group(group: Option<Pid>) {
    if let Some(group) = group {
        let _ = kill_process_group(group, Signal::KILL);
    }
}

/// Reads a pipe up to a number of bytes. Returns the bytes and whether they are all.
async fn read_up_to(
    pipe: Option<impl AsyncRead + Unpin>,
    max_bytes: u64,
) -> io::Result<(Vec<u8>, bool)> {
    let mut bytes = Vec::new();
    let Some(mut pipe) = pipe else { return Ok((bytes, true)) };
    (&mut pipe).take(max_bytes).read_to_end(&mut bytes).await?;
    let is_complete = u64::try_from(bytes.len()).is_ok_and(|read| read < max_bytes)
        || pipe.read(&mut [0; 1]).await? == 0;
    Ok((bytes, is_complete))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exit(code: i32) -> ExitStatus {
        ExitStatus::from_raw(code << 8)
    }

    #[test]
    fn a_death_by_a_limit_is_told_from_one_that_the_input_did_not_cause() {
        for said in [
            "fatal: Out of memory, malloc failed (tried to allocate 1073741761 bytes)\nerror: index-pack died\n",
            "error: index-pack died of signal 24\nerror: index-pack died\n",
            "error: index-pack died of signal 25\n",
        ] {
            assert!(is_over_limit(exit(128), said), "{said}");
        }
        for said in [
            "fatal: write error: No space left on device\nerror: index-pack died\n",
            "error: index-pack died of signal 9\nerror: index-pack died\n",
            "fatal: bad object\n",
            "",
        ] {
            assert!(!is_over_limit(exit(128), said), "{said}");
        }
        let killed = [SIGXCPU, SIGXFSZ, 9].map(ExitStatus::from_raw);
        assert_eq!(killed.map(|status| is_over_limit(status, "")), [true, true, false]);
    }

    #[tokio::test]
    async fn a_process_of_git_and_its_children_have_the_limits() {
        let mut git = limited_git_command(GitLimits::READ);
        // An alias that begins with `!` runs a shell: a child of git.
        git.args(["-c", "alias.limits=!ulimit -d; ulimit -v; ulimit -t; ulimit -c", "limits"]);
        let done = GitProcess::spawn_limited(&mut git).unwrap();
        let done = done.collect_output(1000).await.unwrap();
        let said = String::from_utf8(done.stdout).unwrap();
        let GitLimits { data_bytes, address_space_bytes, cpu_seconds, .. } = GitLimits::READ;
        let meant =
            format!("{}\n{}\n{cpu_seconds}\n0\n", data_bytes / 1024, address_space_bytes / 1024);
        assert_eq!((said, done.is_complete), (meant, true), "{}", done.stderr);
    }

    #[tokio::test]
    async fn without_the_limiter_or_its_limits_git_does_not_run() {
        let mut absent = limited_git_command(GitLimits::READ);
        absent.env("PATH", "/nonexistent").arg("version");
        let error = GitProcess::spawn_limited(&mut absent).unwrap_err();
        assert!(error.to_string().contains("git does not run without limits"), "{error}");
        // No process may raise a limit above the one that it has.
        let mut below = Command::new("prlimit");
        below.args(["--nofile=64:64", "--", "prlimit", "--nofile=bad", "--", "git", "version"]);
        below.stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
        let done = GitProcess::spawn_limited(&mut below).unwrap().collect_output(1000).await;
        let error = done.unwrap_err().to_string();
        assert!(error.contains("git does not run without limits"), "{error}");
    }

    #[tokio::test]
    async fn output_above_its_maximum_ends_the_process_and_time_does_its_children() {
        let mut endless = limited_git_command(GitLimits::READ);
        endless.args(["-c", "alias.y=!yes", "y"]);
        let done = GitProcess::spawn_limited(&mut endless).unwrap();
        let done = done.collect_output(10).await.unwrap();
        assert_eq!((done.stdout.len(), done.is_complete), (10, false));
        let mut idle = limited_git_command(GitLimits::READ);
        idle.args(["-c", "alias.s=!sleep 600 & sleep 600", "s"]);
        let process = GitProcess::spawn_limited(&mut idle).unwrap();
        let group = process.group.unwrap();
        let done = process.collect_output_within(Duration::from_millis(100), 10).await.unwrap();
        assert!(done.is_none());
        // Each of them was sent the kill. Whoever is not reaped yet is a zombie.
        let group = group.as_raw_nonzero().to_string();
        let gone = async {
            while is_group_alive(&group) {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(Duration::from_secs(10), gone).await.unwrap();
    }

    fn is_group_alive(group: &str) -> bool {
        std::fs::read_dir("/proc").unwrap().flatten().any(|entry| {
            let stat = std::fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
            let fields: Vec<&str> =
                stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
            fields.get(2) == Some(&group)
                && fields.first().is_some_and(|state| !["Z", "X"].contains(state))
        })
    }
}
