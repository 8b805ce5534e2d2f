//! The node's own program, as tests use it.

use std::{
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

use cynode_core::{
    agents::AgentRole,
    ids::{AgentTokenId, JobId, ProjectId, RunId, TaskId},
    workflow::jobs::{
        CommitRule, JobSpec, PlacementSpec, SandboxNeeds, ScriptedMove, StructuredContext,
        WorkerChoice,
    },
};
use cynode_wire::{
    identity::accounts::SecretText,
    nodes::{JobAssignment, WorkResult},
};
use data_encoding::HEXLOWER;
use sha2::{Digest, Sha256};
use tempfile::TempDir;
use uuid::Uuid;

use crate::fake::Fake;

/// A machine with a state directory, which outlives the program that runs on it.
pub(crate) struct Machine {
    pub(crate) dir: TempDir,
    url: String,
    flags: Vec<String>,
}

/// The program while it runs.
pub(crate) struct Running {
    child: std::process::Child,
}

impl Machine {
    /// A machine that has joined.
    pub(crate) fn joined(fake: &Fake) -> Self {
        let machine = Self::new(fake);
        let output = machine.join("welcome");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        machine
    }

    pub(crate) fn new(fake: &Fake) -> Self {
        let dir = tempfile::tempdir().unwrap();
        // Sandboxes run as other users, who must get as far as their files.
        std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o711)).unwrap();
        Self { dir, url: fake.url.clone(), flags: Vec::new() }
    }

    pub(crate) fn with(mut self, flags: &[&str]) -> Self {
        self.flags = flags.iter().map(|flag| (*flag).to_owned()).collect();
        self
    }

    pub(crate) fn state(&self) -> PathBuf {
        self.dir.path().join("state")
    }

    pub(crate) fn command(&self) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_cynode-node"));
        command.env_clear().env("PATH", "/usr/bin:/bin:/usr/sbin:/sbin");
        command.arg("--state").arg(self.state());
        command
    }

    pub(crate) fn join(&self, token: &str) -> std::process::Output {
        let file = self.dir.path().join("token");
        std::fs::write(&file, token).unwrap();
        let mut command = self.command();
        command.args(["join", "--name", "here", "--url", &self.url, "--token-file"]).arg(file);
        command.output().unwrap()
    }

    pub(crate) fn start(&self) -> Running {
        let mut command = self.command();
        command.args(["run", "--log", "info"]).args(&self.flags);
        if !self.flags.iter().any(|flag| flag == "--min-free-disk-mib") {
            command.args(["--min-free-disk-mib", "1"]);
        }
        let log = self.dir.path().join("log");
        let log = std::fs::OpenOptions::new().create(true).append(true).open(log).unwrap();
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        Running { child: command.spawn().unwrap() }
    }

    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("log")).unwrap_or_default()
    }

    fn entries(&self, of: &str) -> usize {
        std::fs::read_dir(self.state().join(of)).map_or(0, Iterator::count)
    }

    /// How many job directories there are.
    pub(crate) fn jobs(&self) -> usize {
        self.entries("jobs")
    }

    /// Waits until nothing of any job is left on disk.
    pub(crate) async fn cleared(&self) {
        let gone = || self.jobs() == 0 && self.entries("trash") == 0;
        until(gone, || format!("nothing of jobs is left on disk\n{}", self.log())).await;
    }
}

impl Drop for Machine {
    /// Takes away the control groups of a node that will not come back. Those that hold something stay.
    fn drop(&mut self) {
        let Ok(state) = self.state().canonicalize() else { return };
        let digest = Sha256::digest(state.as_os_str().as_encoded_bytes());
        let name = format!("cynode-{}", HEXLOWER.encode(&digest[..8]));
        let root = Path::new("/sys/fs/cgroup");
        let each = std::fs::read_dir(root).into_iter().flatten().flatten();
        for place in each.map(|entry| entry.path()).chain([root.to_owned()]) {
            // A node that was killed leaves the empty groups of its runs to its next start, which there will not be.
            let group = place.join(&name);
            for run in std::fs::read_dir(&group).into_iter().flatten().flatten() {
                let _ = std::fs::remove_dir(run.path());
            }
            let _ = std::fs::remove_dir(group);
        }
    }
}

impl Running {
    /// As `kill -9` does.
    pub(crate) fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// As `kill` does.
    pub(crate) fn terminate(&self) {
        let pid = i32::try_from(self.child.id()).unwrap();
        let pid = rustix::process::Pid::from_raw(pid).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    }

    pub(crate) async fn ended(mut self) -> std::process::ExitStatus {
        let mut status = None;
        let mut look = tokio::time::interval(Duration::from_millis(20));
        let deadline = tokio::time::Instant::now() + Duration::from_secs(20);
        while status.is_none() && tokio::time::Instant::now() < deadline {
            look.tick().await;
            status = self.child.try_wait().unwrap();
        }
        status.expect("the program ends")
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Waits until something of the machine holds that nobody tells us of.
pub(crate) async fn until(holds: impl Fn() -> bool, what: impl Fn() -> String) {
    let mut look = tokio::time::interval(Duration::from_millis(20));
    let deadline = tokio::time::Instant::now() + Duration::from_secs(20);
    while !holds() {
        assert!(tokio::time::Instant::now() < deadline, "waited in vain until {}", what());
        look.tick().await;
    }
}

/// Processes whose command line has this word in it.
pub(crate) fn processes(word: &str) -> Vec<String> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let Ok(line) = std::fs::read(entry.path().join("cmdline")) else { continue };
        let line = String::from_utf8_lossy(&line).replace('\0', " ");
        if line.contains(word) {
            found.push(format!("{} {line}", entry.file_name().to_string_lossy()));
        }
    }
    found
}

/// Waits until no such process is left.
pub(crate) async fn no_process(word: &str) {
    until(|| processes(word).is_empty(), || format!("it is gone: {:?}", processes(word))).await;
}

/// Waits until there is such a process.
pub(crate) async fn some_process(word: &str) {
    until(|| !processes(word).is_empty(), || format!("`{word}` runs")).await;
}

/// A job like no other, without a repository.
pub(crate) fn job(moves: Vec<ScriptedMove>) -> JobAssignment {
    let uuid = uuid::Builder::from_random_bytes(rand::random()).into_uuid();
    JobAssignment {
        job_id: JobId::from_uuid(uuid),
        task_id: TaskId::from_uuid(uuid),
        run_id: RunId::from_uuid(uuid),
        project_id: ProjectId::from_uuid(Uuid::from_u128(9)),
        unit: "unit".parse().unwrap(),
        title: "Add a file".to_owned(),
        attempt: 1,
        fencing_token: 7,
        work: JobSpec {
            role: AgentRole::Developer,
            worker: WorkerChoice::Scripted { moves, revised: None },
            context: StructuredContext::default(),
            models: Vec::new(),
            tools: None,
            sandbox: SandboxNeeds::default(),
            placement: PlacementSpec::default(),
            commit: CommitRule::IfChanged,
        },
        base: None,
        merge: Vec::new(),
        branch: "cynode/work".to_owned(),
        agent_token: SecretText("the-job-token".to_owned()),
        agent_token_id: AgentTokenId::from_uuid(uuid),
        seconds_left: 600,
        trace_id: "4bf92f3577b34da6a3ce929d0e0e4736".to_owned(),
        checkpoint: None,
        environment: None,
        profile: None,
    }
}

pub(crate) fn say(text: &str) -> ScriptedMove {
    ScriptedMove::Say { text: text.to_owned() }
}

pub(crate) fn write(path: &str, text: &str) -> ScriptedMove {
    ScriptedMove::Write { path: path.to_owned(), text: text.to_owned() }
}

pub(crate) fn shell(script: &str) -> ScriptedMove {
    ScriptedMove::Run { argv: ["sh", "-c", script].map(str::to_owned).to_vec() }
}

/// A command line that a process keeps: `sleep` with a number that nobody else uses.
pub(crate) fn sleep_forever(seconds: &str) -> ScriptedMove {
    ScriptedMove::Run { argv: ["sleep", seconds].map(str::to_owned).to_vec() }
}

/// A repository with one commit, and that commit.
pub(crate) fn repository(path: &Path) -> String {
    std::fs::create_dir_all(path).unwrap();
    git(path, &["init", "--quiet", "--initial-branch=main"]);
    std::fs::write(path.join("README"), "hello\n").unwrap();
    git(path, &["add", "--all"]);
    git(path, &["commit", "--quiet", "--message", "Begin"]);
    git(path, &["rev-parse", "HEAD"])
}

/// Makes a commit on top of another: the files are changed by a script. Nothing of it stays behind in the working tree.
pub(crate) fn change(path: &Path, from: &str, script: &str) -> String {
    git(path, &["checkout", "--quiet", "--force", "--detach", from]);
    git(path, &["clean", "--quiet", "-ffdx"]);
    let changed = Command::new("sh").args(["-euc", script]).current_dir(path).status().unwrap();
    assert!(changed.success(), "{script}");
    git(path, &["add", "--all"]);
    git(path, &["commit", "--quiet", "--allow-empty", "--message", "Change"]);
    let commit = git(path, &["rev-parse", "HEAD"]);
    git(path, &["update-ref", &format!("refs/heads/kept/{commit}"), &commit]);
    commit
}

/// The commit that a job brought back, as a branch of the repository.
pub(crate) fn bring_back(fake: &Fake, path: &Path, result: &WorkResult) -> String {
    let bundle = result.bundle.as_ref().unwrap_or_else(|| panic!("{result:?}"));
    let file = path.join(".git/work.bundle");
    std::fs::write(&file, &fake.world().blobs[&bundle.sha256]).unwrap();
    let from = file.to_str().unwrap();
    git(path, &["fetch", "--quiet", from, "+refs/heads/cynode/work:refs/heads/back"]);
    let commit = git(path, &["rev-parse", "back"]);
    assert_eq!(Some(&commit), result.commit.as_ref());
    commit
}

pub(crate) fn git(path: &Path, arguments: &[&str]) -> String {
    let output = Command::new("git")
        .arg("-C")
        .arg(path)
        .args(arguments)
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .envs([("GIT_AUTHOR_NAME", "T"), ("GIT_AUTHOR_EMAIL", "t@example.com")])
        .envs([("GIT_COMMITTER_NAME", "T"), ("GIT_COMMITTER_EMAIL", "t@example.com")])
        .output()
        .unwrap();
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}
