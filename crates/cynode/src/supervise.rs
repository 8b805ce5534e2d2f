//! Programs that `cynode up` keeps running: ended, they are started again; told to stop, they are really gone.

use std::{
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use anyhow::Context;
use rustix::process::{Pid, Signal, kill_process_group};
use tokio::{
    process::{Child, Command},
    time::Instant,
};
use tokio_util::sync::CancellationToken;

/// First and longest pause before a program that ended is started again.
const PAUSE: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(10));

/// How long a program must have run for its next end to count as the first.
const HEALTHY: Duration = Duration::from_mins(1);

/// How long a program may take to end when it is told to.
const GRACE: Duration = Duration::from_secs(5);

/// A program to be kept running.
#[derive(Clone, Debug)]
pub(crate) struct Program {
    pub(crate) name: &'static str,
    pub(crate) path: PathBuf,
    pub(crate) arguments: Vec<OsString>,
    pub(crate) log: PathBuf,
}

impl Program {
    /// Keeps it running until `stop`; then ends it and whatever it started.
    pub(crate) async fn keep(self, stop: CancellationToken) {
        let mut pause = PAUSE.0;
        loop {
            let begun = Instant::now();
            match self.spawn() {
                Ok(mut child) => {
                    // Known only while it runs.
                    let group = child.id().and_then(|id| Pid::from_raw(id.cast_signed()));
                    let ended = tokio::select! {
                        () = stop.cancelled() => return end(&mut child, group).await,
                        ended = child.wait() => ended,
                    };
                    // Whatever it had started must not live beside its successor.
                    kill_group(group, Signal::KILL);
                    self.complain(&match ended {
                        Ok(status) => format!("ended with {status}"),
                        Err(error) => format!("cannot be watched: {error}"),
                    });
                }
                Err(error) => self.complain(&format!("could not be started: {error:#}")),
            }
            if begun.elapsed() > HEALTHY {
                pause = PAUSE.0;
            }
            if tokio::time::timeout(pause, stop.cancelled()).await.is_ok() {
                return;
            }
            pause = (pause * 2).min(PAUSE.1);
        }
    }

    /// Runs it until it has succeeded once; `false` when it was told to stop before.
    pub(crate) async fn once(&self, stop: &CancellationToken) -> bool {
        loop {
            match self.spawn() {
                Ok(mut child) => {
                    let group = child.id().and_then(|id| Pid::from_raw(id.cast_signed()));
                    tokio::select! {
                        () = stop.cancelled() => {
                            end(&mut child, group).await;
                            return false;
                        }
                        ended = child.wait() => {
                            if ended.is_ok_and(|status| status.success()) {
                                return true;
                            }
                        }
                    }
                }
                Err(error) => self.complain(&format!("could not be started: {error:#}")),
            }
            if tokio::time::timeout(PAUSE.0 * 5, stop.cancelled()).await.is_ok() {
                return false;
            }
        }
    }

    fn complain(&self, what: &str) {
        let (name, log) = (self.name, self.log.display());
        tracing::warn!(
            event = "program.ended",
            program = name,
            "{name} {what} and is started again; see {log}"
        );
    }

    fn spawn(&self) -> anyhow::Result<Child> {
        let log = fs::OpenOptions::new().create(true).append(true).open(&self.log)?;
        let mut command = Command::new("setpriv");
        command
            // Killed ourselves, we leave nothing behind.
            .arg("--pdeathsig=KILL")
            .arg("--")
            .arg(&self.path)
            .args(&self.arguments)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .process_group(0)
            .kill_on_drop(true);
        command.spawn().with_context(|| format!("{} could not be started", self.name))
    }
}

fn kill_group(group: Option<Pid>, signal: Signal) {
    if let Some(pid) = group {
        let _ = kill_process_group(pid, signal);
    }
}

/// Asks politely, then insists; what it had started ends with it.
async fn end(child: &mut Child, group: Option<Pid>) {
    kill_group(group, Signal::TERM);
    if tokio::time::timeout(GRACE, child.wait()).await.is_err() {
        kill_group(group, Signal::KILL);
        let _ = child.wait().await;
    }
    kill_group(group, Signal::KILL);
}

/// The program of that name on the search path.
pub(crate) fn on_path(name: &str) -> Option<PathBuf> {
    crate::config::search_path().into_iter().map(|dir| dir.join(name)).find(|path| path.is_file())
}

/// The program of that name beside this one.
pub(crate) fn beside_us(name: &str) -> anyhow::Result<PathBuf> {
    let us = std::env::current_exe().context("the place of this program is not known")?;
    let beside = us.parent().unwrap_or(Path::new("/")).join(name);
    anyhow::ensure!(beside.is_file(), "{} is not installed beside this program", beside.display());
    Ok(beside)
}
