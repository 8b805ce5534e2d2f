//! The installation of the demo: a supervised `cynode up`, and its processes.

use std::{
    collections::BTreeMap,
    fs,
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
use crate::{
    commands::up::SETUP_LINK_FILE,
    program_zone::{ProgramKind, ProgramZone, UserSeparation},
    restate::{find_engine_program, open_private_log},
};

/// Lease time of handoffs. It is short, because there is only one project manager, and it restarts at once.
const MANAGER_LEASE_SECONDS: &str = "10";

/// Delay before a restart.
const RESTART_DELAY: Duration = Duration::from_millis(200);

/// Timeout of a graceful shutdown.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(20);

/// The log file of `cynode up`.
const UP_LOG_FILE: &str = "up.log";

/// A supervised installation.
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
        // The first start shows whether it can be started at all.
        let first = keeper.spawn_up()?;
        tasks.spawn(keeper.supervise_up(first, stop.clone()));
        Ok(Self { up, stop, tasks })
    }

    /// Returns its running processes, by name.
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

    /// Stops it, and waits until no process of it is left.
    pub(super) async fn stop_installation(self) {
        self.stop.cancel();
        self.tasks.close();
        self.tasks.wait().await;
    }
}

/// Process ids by name.
pub(super) type ProgramPids = BTreeMap<&'static str, u32>;

/// The process that starts all others.
pub(super) const ORCHESTRATOR: &str = "orchestrator";

/// The processes of an installation.
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
    /// Returns whether root built the programs where no other user can reach them. The demo runs all the same: nothing in it is worth a
    /// separation.
    fn needs_one_user(&self) -> bool {
        let separation = UserSeparation::WherePossible;
        let zone = ProgramZone::for_program(ProgramKind::Runner, &self.dir, separation);
        let engine = find_engine_program();
        let programs = [Some(Path::new(&self.program)), engine.as_deref()];
        zone.is_ok_and(|zone| {
            programs.into_iter().flatten().any(|program| zone.ensure_reachable(program).is_err())
        })
    }

    fn spawn_up(&self) -> anyhow::Result<Child> {
        let log = open_private_log(&self.dir.join(UP_LOG_FILE))?;
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
            .args(self.needs_one_user().then_some("--one-user"))
            // The environment may configure another installation.
            .env_clear()
            .env("PATH", path)
            .env("HOME", &self.dir)
            .env("LANG", "C.UTF-8")
            .env("PMA_LEASE_SECONDS", MANAGER_LEASE_SECONDS)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            // Ctrl-C is for this process, which then stops `up` in order.
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

/// Sends `SIGTERM`, then `SIGKILL` after a timeout.
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

/// Waits for a database whose `cynode up` was killed and that is shutting down.
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

/// Returns the token of the setup link, while there is one.
pub(super) fn find_bootstrap_token(dir: &Path) -> Option<String> {
    let link = fs::read_to_string(dir.join(SETUP_LINK_FILE)).ok()?;
    Some(link.split_once("#bootstrap=")?.1.trim().to_owned())
}

/// Returns the last lines of `cynode up`, for a person who has to find the error.
pub(super) fn read_log_tail(dir: &Path) -> String {
    let text = fs::read_to_string(dir.join(UP_LOG_FILE)).unwrap_or_default();
    let lines: Vec<_> = text.lines().collect();
    lines[lines.len().saturating_sub(5)..].join("\n")
}

/// Returns every process: its id, its parent, its arguments.
fn list_processes() -> Vec<(u32, u32, Vec<String>)> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let one = |entry: fs::DirEntry| {
        let pid: u32 = entry.file_name().to_str()?.parse().ok()?;
        let stat = fs::read_to_string(entry.path().join("stat")).ok()?;
        // The name is in parentheses and may contain anything.
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

/// Identifies a process by its arguments.
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
