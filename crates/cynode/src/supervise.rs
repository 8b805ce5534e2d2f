//! The supervisor of `cynode up`: it restarts programs that exit, and on shutdown ends them with all their children.

use std::{
    ffi::OsString,
    fs,
    io::{Read as _, Seek as _, SeekFrom},
    num::NonZeroU64,
    path::{Path, PathBuf},
    pin::pin,
    process::Stdio,
    time::Duration,
};

use anyhow::Context;
use cynode_net::backoff::{Backoff, Jitter};
use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::Value;
use tokio::{
    process::{Child, Command},
    time::Instant,
};
use tokio_util::sync::CancellationToken;

use crate::{output, program_zone::ProgramZone, restate::open_private_log};

/// Backoff between restarts.
const RESTART_BACKOFF: Backoff =
    Backoff::new(Duration::from_millis(200), Duration::from_secs(10), Jitter::None);

/// Delay before the next attempt of a program that must succeed once.
const RERUN_DELAY: Duration = Duration::from_secs(1);

/// Uptime after which the backoff starts over.
const HEALTHY_UPTIME: Duration = Duration::from_mins(1);

/// Timeout of a graceful shutdown.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(5);

/// Number of consecutive early exits that are reported to the person.
const MIN_REPORTED_EXITS: u32 = 2;

/// Uptime after which the recovery is reported.
const RECOVERY_UPTIME: Duration = Duration::from_secs(10);

/// Maximum bytes of a log that are searched for the reason of an exit.
const LOG_TAIL_BYTES: u64 = 16 * 1024;

/// Interval and number of attempts of the action after a start.
const TUNE_INTERVAL: Duration = Duration::from_millis(500);
const TUNE_ATTEMPTS: usize = 20;

/// A supervised program.
#[derive(Clone, Debug)]
pub(crate) struct SupervisedProgram {
    pub(crate) name: &'static str,
    pub(crate) path: PathBuf,
    pub(crate) arguments: Vec<OsString>,
    pub(crate) log: PathBuf,
    /// Its Unix user and its environment.
    pub(crate) zone: ProgramZone,
    /// A command that helps the person to find the problem, besides the log.
    pub(crate) advice: Option<String>,
    /// How late its timers may fire, so that an idle program wakes less often. Its threads and children inherit it.
    pub(crate) timer_slack: Option<Duration>,
    /// The action on the process after its start; repeated for a while until it returns `true`.
    pub(crate) after_start: Option<fn(u32) -> bool>,
}

impl SupervisedProgram {
    /// Creates a program that runs as it is, without advice and without tuning.
    pub(crate) const fn new(
        name: &'static str,
        path: PathBuf,
        arguments: Vec<OsString>,
        log: PathBuf,
        zone: ProgramZone,
    ) -> Self {
        let (advice, timer_slack, after_start) = (None, None, None);
        Self { name, path, arguments, log, zone, advice, timer_slack, after_start }
    }

    /// Keeps it running until `stop`; then ends it and all its children. Repeated exits are reported in the terminal.
    pub(crate) async fn run_supervised(self, stop: CancellationToken) {
        let mut backoff = RESTART_BACKOFF;
        let mut ends = ExitHistory::default();
        loop {
            let begun = Instant::now();
            let logged = self.log_length();
            let ended = match self.spawn_child() {
                Ok(mut child) => {
                    // The id is known only while it runs.
                    let child_id = child.id();
                    let group = child_id.and_then(|id| Pid::from_raw(id.cast_signed()));
                    let mut tuning = pin!(async {
                        self.tune_process(child_id).await;
                        std::future::pending::<()>().await;
                    });
                    let ended = loop {
                        tokio::select! {
                            () = stop.cancelled() => break None,
                            ended = child.wait() => break Some(ended),
                            () = &mut tuning => {}
                            () = tokio::time::sleep_until(begun + RECOVERY_UPTIME), if ends.is_reported() => {
                                ends = ExitHistory::default();
                                output::print_line(&format!("{} runs again", self.name));
                            }
                        }
                    };
                    let Some(ended) = ended else {
                        return terminate_child(&mut child, group).await;
                    };
                    // Its children must not run beside its successor.
                    kill_group(group, Signal::KILL);
                    match ended {
                        Ok(status) => format!("ended with {status}"),
                        Err(error) => format!("cannot be watched: {error}"),
                    }
                }
                Err(error) => format!("could not be started: {error:#}"),
            };
            self.log_exit(&ended);
            if begun.elapsed() > HEALTHY_UPTIME {
                backoff.reset_failures();
                ends = ExitHistory::default();
            }
            if let Some(told) = ends.record_exit(&self.exit_reason(logged, &ended)) {
                output::print_line(&self.describe_failure(&told));
            }
            if tokio::time::timeout(backoff.next_delay(), stop.cancelled()).await.is_ok() {
                return;
            }
        }
    }

    /// Runs it until it has succeeded once. Returns `false` if it was stopped before.
    pub(crate) async fn run_until_success(&self, stop: &CancellationToken) -> bool {
        let mut ends = ExitHistory::default();
        loop {
            let logged = self.log_length();
            let ended = match self.spawn_child() {
                Ok(mut child) => {
                    let group = child.id().and_then(|id| Pid::from_raw(id.cast_signed()));
                    tokio::select! {
                        () = stop.cancelled() => {
                            terminate_child(&mut child, group).await;
                            return false;
                        }
                        ended = child.wait() => match ended {
                            Ok(status) if status.success() => return true,
                            Ok(status) => format!("ended with {status}"),
                            Err(error) => format!("cannot be watched: {error}"),
                        }
                    }
                }
                Err(error) => format!("could not be started: {error:#}"),
            };
            self.log_exit(&ended);
            if let Some(told) = ends.record_exit(&self.exit_reason(logged, &ended)) {
                output::print_line(&self.describe_failure(&told));
            }
            if tokio::time::timeout(RERUN_DELAY, stop.cancelled()).await.is_ok() {
                return false;
            }
        }
    }

    /// Applies the action after the start.
    async fn tune_process(&self, process: Option<u32>) {
        let (Some(after_start), Some(process)) = (self.after_start, process) else { return };
        let mut turn = tokio::time::interval(TUNE_INTERVAL);
        for _ in 0..TUNE_ATTEMPTS {
            turn.tick().await;
            if after_start(process) {
                return;
            }
        }
    }

    fn log_exit(&self, what: &str) {
        let (name, log) = (self.name, self.log.display());
        tracing::warn!(
            event = "program.exited",
            program = name,
            "{name} {what} and is started again; see {log}"
        );
    }

    fn log_length(&self) -> u64 {
        fs::metadata(&self.log).map_or(0, |meta| meta.len())
    }

    /// Returns the reason of an exit: the last error in the log since `from`, else the exit status.
    fn exit_reason(&self, from: u64, ended: &str) -> String {
        let written = || -> std::io::Result<String> {
            let mut file = fs::File::open(&self.log)?;
            let length = file.metadata()?.len();
            file.seek(SeekFrom::Start(from.max(length.saturating_sub(LOG_TAIL_BYTES))))?;
            let mut text = Vec::new();
            file.take(LOG_TAIL_BYTES).read_to_end(&mut text)?;
            Ok(String::from_utf8_lossy(&text).into_owned())
        };
        written().ok().and_then(|text| last_error(&text)).unwrap_or_else(|| ended.to_owned())
    }

    fn describe_failure(&self, reason: &str) -> String {
        let (name, log) = (self.name, self.log.display());
        let advice = match &self.advice {
            Some(command) => format!("`{command}` says more, and {log} has it all"),
            None => format!("read {log}"),
        };
        format!("{name} keeps ending: {reason}; it is started again and again. {advice}")
    }

    fn spawn_child(&self) -> anyhow::Result<Child> {
        let log = open_private_log(&self.log)?;
        let mut command = Command::new("setpriv");
        self.zone.apply_to(&mut command);
        command
            // If this process is killed, its children are killed too.
            .arg("--pdeathsig=KILL")
            .arg("--")
            .arg(&self.path)
            .args(&self.arguments)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .process_group(0)
            .kill_on_drop(true);
        // A process begins with the slack of the thread that starts it, and this needs no privilege.
        set_timer_slack(self.timer_slack);
        let child = command.spawn();
        set_timer_slack(None);
        child.with_context(|| format!("{} could not be started", self.name))
    }
}

/// Sets the timer slack of this thread; `None` restores the default. It only saves work, so that a failure is logged.
fn set_timer_slack(slack: Option<Duration>) {
    let nanoseconds = slack.and_then(|slack| NonZeroU64::new(slack.as_nanos().try_into().ok()?));
    if let Err(error) = rustix::thread::set_current_timer_slack(nanoseconds) {
        tracing::debug!(event = "program.timer_slack_refused", %error, "the timer slack was refused");
    }
}

/// Number of consecutive exits, and the reason that was reported.
#[derive(Debug, Default)]
struct ExitHistory {
    count: u32,
    told: Option<String>,
}

impl ExitHistory {
    /// Counts an exit. Returns the reason if it is to be reported: once, and again when it changes.
    fn record_exit(&mut self, reason: &str) -> Option<String> {
        self.count = self.count.saturating_add(1);
        if self.count < MIN_REPORTED_EXITS || self.told.as_deref() == Some(reason) {
            return None;
        }
        self.told = Some(reason.to_owned());
        self.told.clone()
    }

    const fn is_reported(&self) -> bool {
        self.told.is_some()
    }
}

/// Returns the last error in the output of a program: a log line of that level, or a line for people.
fn last_error(text: &str) -> Option<String> {
    text.lines().rev().map(str::trim).filter(|line| !line.is_empty()).find_map(|line| {
        let Ok(Value::Object(told)) = serde_json::from_str(line) else {
            return Some(line.chars().take(400).collect());
        };
        let word = |key: &str| told.get(key).and_then(Value::as_str);
        if !matches!(word("level"), Some("ERROR" | "WARN")) {
            return None;
        }
        let parts = [word("message"), word("error")].into_iter().flatten();
        Some(parts.collect::<Vec<_>>().join(": ").chars().take(400).collect())
    })
}

fn kill_group(group: Option<Pid>, signal: Signal) {
    if let Some(pid) = group {
        let _ = kill_process_group(pid, signal);
    }
}

/// Sends `SIGTERM`, then `SIGKILL` after a timeout; its children end with it.
async fn terminate_child(child: &mut Child, group: Option<Pid>) {
    kill_group(group, Signal::TERM);
    if tokio::time::timeout(SHUTDOWN_TIMEOUT, child.wait()).await.is_err() {
        kill_group(group, Signal::KILL);
        let _ = child.wait().await;
    }
    kill_group(group, Signal::KILL);
}

/// Finds a program on the search path.
pub(crate) fn find_on_path(name: &str) -> Option<PathBuf> {
    crate::config::search_path().into_iter().map(|dir| dir.join(name)).find(|path| path.is_file())
}

/// Finds a program beside this one.
pub(crate) fn find_sibling_program(name: &str) -> anyhow::Result<PathBuf> {
    let us = std::env::current_exe().context("the place of this program is not known")?;
    let beside = us.parent().unwrap_or(Path::new("/")).join(name);
    anyhow::ensure!(beside.is_file(), "{} is not installed beside this program", beside.display());
    Ok(beside)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reason_of_an_end_is_the_last_error_that_was_written() {
        let info = r#"{"level":"INFO","event":"node.orphans_removed","message":"removed orphans of an earlier process"}"#;
        let warn = r#"{"level":"WARN","message":"it does not work here","error":"no bwrap"}"#;
        let person = "cynode-node: no sandbox works here; `cynode-node doctor` says why";
        let found = |lines: &[&str]| last_error(&lines.join("\n"));
        assert_eq!(found(&[info, warn, person, ""]).as_deref(), Some(person));
        assert_eq!(found(&[warn, info]).as_deref(), Some("it does not work here: no bwrap"));
        assert_eq!(found(&[info]), None);
    }

    #[test]
    fn a_person_is_told_once_for_each_reason_and_not_of_the_first_end() {
        let mut ends = ExitHistory::default();
        let told: Vec<_> =
            ["a", "a", "a", "b", "b"].iter().map(|reason| ends.record_exit(reason)).collect();
        assert_eq!(told, [None, Some("a".to_owned()), None, Some("b".to_owned()), None]);
    }

    #[tokio::test]
    async fn the_log_of_a_program_is_closed_to_others_also_if_it_was_open_before() {
        use std::os::unix::fs::PermissionsExt as _;
        let dir = tempfile::tempdir().unwrap();
        let program = |name: &str| {
            let arguments = vec!["-c".into(), "umask 0; echo secret".into()];
            let log = dir.path().join(name);
            SupervisedProgram::new("sh", "/bin/sh".into(), arguments, log, ProgramZone::example())
        };
        let (new, old) = (program("new.log"), program("old.log"));
        fs::write(&old.log, "earlier\n").unwrap();
        fs::set_permissions(&old.log, fs::Permissions::from_mode(0o644)).unwrap();
        for program in [new, old] {
            assert!(program.run_until_success(&CancellationToken::new()).await);
            let mode = fs::metadata(&program.log).unwrap().permissions().mode() & 0o777;
            assert_eq!(mode, 0o600, "{}", program.log.display());
        }
    }

    #[tokio::test]
    async fn a_program_gets_its_environment_and_nothing_of_ours() {
        let dir = tempfile::tempdir().unwrap();
        let arguments =
            vec!["-c".into(), "env | grep -v -e ^_= -e ^PWD= -e ^SHLVL= | cut -d= -f1".into()];
        let (log, zone) = (dir.path().join("log"), ProgramZone::example());
        let program = SupervisedProgram::new("sh", "/bin/sh".into(), arguments, log, zone);
        assert!(program.run_until_success(&CancellationToken::new()).await);
        assert_eq!(fs::read_to_string(&program.log).unwrap(), "PATH\n");
    }

    #[tokio::test]
    async fn a_program_begins_with_its_timer_slack_and_this_thread_keeps_its_own() {
        let dir = tempfile::tempdir().unwrap();
        let own = rustix::thread::current_timer_slack().unwrap();
        let arguments = vec!["-c".into(), "cat /proc/self/timerslack_ns".into()];
        let (log, zone) = (dir.path().join("log"), ProgramZone::example());
        let program = SupervisedProgram {
            timer_slack: Some(Duration::from_millis(50)),
            ..SupervisedProgram::new("sh", "/bin/sh".into(), arguments, log, zone)
        };
        assert!(program.run_until_success(&CancellationToken::new()).await);
        assert_eq!(fs::read_to_string(&program.log).unwrap(), "50000000\n");
        assert_eq!(rustix::thread::current_timer_slack().unwrap(), own);
    }
}
