//! The installation of the demonstration: `cynode up`, kept running whatever happens to it, and the processes that belong to it.

use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::OpenOptionsExt,
    path::Path,
    process::Stdio,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use anyhow::Context;
use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use tokio::process::{Child, Command};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::layout::DemoLayout;

/// How long silence about something that the project manager thinks about is believed: there is only one, and it comes back at once.
const MANAGER_LEASE_SECONDS: &str = "10";

/// The pause before it is started again.
const RESTART_DELAY: Duration = Duration::from_millis(200);

/// How long it may take to end when it is told to.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(20);

/// The file that `cynode up` writes to.
const UP_LOG_FILE: &str = "up.log";

/// An installation that is kept running.
pub(super) struct DemoInstallation {
    up: Arc<Mutex<Option<u32>>>,
    stop: CancellationToken,
    tasks: TaskTracker,
}

impl DemoInstallation {
    /// Starts it.
    pub(super) fn start_installation(place: &DemoLayout) -> anyhow::Result<Self> {
        let program = std::env::current_exe().context("the place of this program is not known")?;
        let (up, stop, tasks) = (Arc::default(), CancellationToken::new(), TaskTracker::new());
        let keeper = UpSupervisor {
            program: program.into(),
            dir: place.dir.clone(),
            config: place.config_path(),
            up: Arc::clone(&up),
        };
        // The first start tells whether it can be started at all.
        let first = keeper.spawn_up()?;
        tasks.spawn(keeper.supervise_up(first, stop.clone()));
        Ok(Self { up, stop, tasks })
    }

    /// Who belongs to it now, by name.
    pub(super) fn running_programs(&self) -> ProgramPids {
        let up = *self.up.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(up) = up else { return ProgramPids::new() };
        let mut found = ProgramPids::from([(ORCHESTRATOR, up)]);
        for (pid, parent, words) in list_processes() {
            if parent == up
                && let Some(name) = program_name_of(&words)
            {
                found.insert(name, pid);
            }
        }
        found
    }

    /// Ends it, and waits until nothing of it is left.
    pub(super) async fn stop_installation(self) {
        self.stop.cancel();
        self.tasks.close();
        self.tasks.wait().await;
    }
}

/// Names of processes, and their ids.
pub(super) type ProgramPids = BTreeMap<&'static str, u32>;

/// The process that starts all others.
pub(super) const ORCHESTRATOR: &str = "orchestrator";

/// Who belongs to an installation.
pub(super) const PROGRAM_NAMES: [&str; 7] =
    [ORCHESTRATOR, "runner", "manager", "analyst", "node", "engine", "postgresql"];

/// Keeps `cynode up` running.
struct UpSupervisor {
    program: std::ffi::OsString,
    dir: std::path::PathBuf,
    config: std::path::PathBuf,
    up: Arc<Mutex<Option<u32>>>,
}

impl UpSupervisor {
    fn spawn_up(&self) -> anyhow::Result<Child> {
        // The first link of the installation is in it.
        let log = fs::OpenOptions::new()
            .create(true)
            .append(true)
            .mode(0o600)
            .open(self.dir.join(UP_LOG_FILE))?;
        let path = std::env::join_paths(crate::config::search_path())?;
        let mut command = Command::new("setpriv");
        command
            .arg("--pdeathsig=KILL")
            .arg("--")
            .arg(&self.program)
            .arg("--config")
            .arg(&self.config)
            .args(["up", "--data-dir"])
            .arg(&self.dir)
            // Nothing of what is set up here for another installation.
            .env_clear()
            .env("PATH", path)
            .env("HOME", &self.dir)
            .env("LANG", "C.UTF-8")
            .env("PMA_LEASE_SECONDS", MANAGER_LEASE_SECONDS)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            // Ctrl-C is for us; we end it in our own time.
            .process_group(0)
            .kill_on_drop(true);
        let child = command
            .spawn()
            .context("`setpriv` could not be started: `apt-get install -y util-linux`")?;
        *self.up.lock().unwrap_or_else(PoisonError::into_inner) = child.id();
        Ok(child)
    }

    async fn supervise_up(self, mut child: Child, stop: CancellationToken) {
        loop {
            let ended = tokio::select! {
                () = stop.cancelled() => false,
                _ = child.wait() => true,
            };
            if !ended {
                return terminate_up(&mut child, &self.dir).await;
            }
            *self.up.lock().unwrap_or_else(PoisonError::into_inner) = None;
            loop {
                if tokio::time::timeout(RESTART_DELAY, stop.cancelled()).await.is_ok() {
                    return terminate_database(&self.dir).await;
                }
                if let Ok(next) = self.spawn_up() {
                    child = next;
                    break;
                }
            }
        }
    }
}

/// Asks politely, then insists.
async fn terminate_up(child: &mut Child, dir: &Path) {
    let pid = child.id().and_then(|id| Pid::from_raw(id.cast_signed()));
    if let Some(pid) = pid {
        let _ = kill_process(pid, Signal::TERM);
    }
    if tokio::time::timeout(SHUTDOWN_TIMEOUT, child.wait()).await.is_err() {
        if let Some(pid) = pid {
            let _ = kill_process_group(pid, Signal::KILL);
        }
        let _ = child.wait().await;
    }
    terminate_database(dir).await;
}

/// A database whose `cynode up` was killed is on its way out; it is waited for.
async fn terminate_database(dir: &Path) {
    let data = dir.join("postgres/data");
    let mut turn = tokio::time::interval(Duration::from_millis(50));
    for _ in 0..SHUTDOWN_TIMEOUT.as_millis() / 50 {
        turn.tick().await;
        let there = list_processes().into_iter().find(|(pid, _, words)| {
            program_name_of(words) == Some("postgresql")
                && fs::read_link(format!("/proc/{pid}/cwd")).is_ok_and(|place| place == data)
        });
        let Some((pid, ..)) = there else { return };
        if let Some(pid) = Pid::from_raw(pid.cast_signed()) {
            let _ = kill_process(pid, Signal::INT);
        }
    }
}

/// The link for the first admin that was printed last, without what comes before the token.
pub(super) fn find_bootstrap_token(dir: &Path) -> Option<String> {
    let text = fs::read_to_string(dir.join(UP_LOG_FILE)).ok()?;
    let token = text.lines().rev().find_map(|line| line.split_once("#bootstrap="))?.1;
    Some(token.split_whitespace().next()?.to_owned())
}

/// The last lines that `cynode up` said, for somebody who must see what is wrong.
pub(super) fn read_log_tail(dir: &Path) -> String {
    let text = fs::read_to_string(dir.join(UP_LOG_FILE)).unwrap_or_default();
    let lines: Vec<_> = text.lines().collect();
    lines[lines.len().saturating_sub(5)..].join("\n")
}

/// Every process: its id, its parent, its words.
fn list_processes() -> Vec<(u32, u32, Vec<String>)> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let one = |entry: fs::DirEntry| {
        let pid: u32 = entry.file_name().to_str()?.parse().ok()?;
        let stat = fs::read_to_string(entry.path().join("stat")).ok()?;
        // The name stands in parentheses and may hold anything.
        let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
        let state = fields.next()?;
        let parent: u32 = fields.next()?.parse().ok()?;
        let words = fs::read(entry.path().join("cmdline")).ok()?;
        let words = words.split(|byte| *byte == 0).filter(|word| !word.is_empty());
        let words = words.map(|word| String::from_utf8_lossy(word).into_owned()).collect();
        (state != "Z").then_some((pid, parent, words))
    };
    entries.filter_map(one).collect()
}

/// Who a process is, by its words.
fn program_name_of(words: &[String]) -> Option<&'static str> {
    let program = words.first()?.rsplit('/').next()?;
    Some(match program {
        "cynode-runner" => "runner",
        "cynode-node" if words.iter().any(|word| word == "run") => "node",
        "cynode-pma" if words.iter().any(|word| word == "--role=project_manager") => "manager",
        "cynode-pma" => "analyst",
        "restate-server" => "engine",
        "postgres" => "postgresql",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_are_known_by_their_words() {
        let words = |line: &str| line.split(' ').map(str::to_owned).collect::<Vec<_>>();
        for (line, name) in [
            ("/opt/cynode-runner --listen a", Some("runner")),
            ("/opt/cynode-node --state a run", Some("node")),
            ("/opt/cynode-node --state a join --url b", None),
            ("/opt/cynode-pma --role=project_manager", Some("manager")),
            ("/opt/cynode-pma --role=project_analyst", Some("analyst")),
            ("/x/restate-server --config-file a", Some("engine")),
            ("/x/postgres -D a", Some("postgresql")),
            ("setpriv --pdeathsig=KILL -- /x/postgres", None),
        ] {
            assert_eq!(program_name_of(&words(line)), name, "{line}");
        }
    }

    #[test]
    fn this_process_is_among_all() {
        let own = std::process::id();
        assert!(list_processes().iter().any(|(pid, ..)| *pid == own));
    }
}
