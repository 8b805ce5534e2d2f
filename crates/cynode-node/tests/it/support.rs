//! A job in a sandbox, and people who answer.

use std::{
    collections::BTreeMap,
    fs::{self, Permissions as Mode},
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    time::Duration,
};

use cynode_core::{
    agents::AgentRole,
    ids::{AgentTokenId, JobId, ProjectId, RunId, TaskId},
    nodes::JobEventData,
    workflow::jobs::{
        CommitRule, JobSpec, PlacementSpec, SandboxNeeds, StructuredContext, WorkerChoice,
    },
};
use cynode_node::{
    sandbox::{
        Backend as _, BindMount, BubblewrapBackend, HostEnv, SandboxError, SandboxExit,
        SandboxLimits, SandboxOptions, SandboxProcess, SandboxRun, SystemLayers,
    },
    workers::{
        AgentRecipes, PermissionPrompt, SandboxRunner, SessionStart, TurnOutcome, WorkerError,
        WorkerInstruction, WorkerSession, WorkerTimeouts, create_worker,
    },
};
use cynode_wire::{identity::accounts::SecretText, nodes::JobAssignment};
use futures::future::BoxFuture;
use serde_json::Value;
use tempfile::TempDir;
use tokio::{sync::mpsc, time::Instant};
use uuid::Uuid;

/// A job's sandbox.
pub(crate) struct Sandbox {
    backend: BubblewrapBackend,
    instance: String,
    runs: AtomicU32,
    /// Whether nothing can be heard of what runs in it.
    pub(crate) mute: AtomicBool,
    pub(crate) work: PathBuf,
    pub(crate) home: PathBuf,
}

impl Sandbox {
    fn new(place: &Path) -> Self {
        fs::set_permissions(place, Mode::from_mode(0o711)).unwrap();
        let [work, home] = ["work", "home"].map(|name| {
            let path = place.join(name);
            fs::create_dir(&path).unwrap();
            path
        });
        let name = place.file_name().unwrap().to_string_lossy().to_lowercase();
        let instance = format!("test-{}", name.trim_start_matches('.'));
        let ground =
            HostEnv::prepare_env(SandboxOptions::new(instance.clone(), place.join("ground")))
                .unwrap();
        let backend = BubblewrapBackend::new(&ground).unwrap();
        let (runs, mute) = (AtomicU32::new(0), AtomicBool::new(false));
        Self { backend, instance, runs, mute, work, home }
    }
}

impl Drop for Sandbox {
    fn drop(&mut self) {
        for hierarchy in fs::read_dir("/sys/fs/cgroup").unwrap().flatten() {
            let _ = fs::remove_dir(hierarchy.path().join(format!("cynode-{}", self.instance)));
        }
    }
}

impl SandboxRunner for Sandbox {
    fn run_program<'a>(
        &'a self,
        argv: &'a [String],
        env: &'a BTreeMap<String, String>,
        binds: &'a [BindMount],
    ) -> BoxFuture<'a, Result<SandboxProcess, SandboxError>> {
        Box::pin(async move {
            let number = self.runs.fetch_add(1, Ordering::Relaxed);
            let own = [(&self.work, "/work"), (&self.home, "/home/agent")];
            let own = own.map(|(host, inside)| BindMount {
                host: host.clone(),
                inside: inside.into(),
                writable: true,
            });
            let binds: Vec<_> = own.into_iter().chain(binds.iter().cloned()).collect();
            let run = SandboxRun {
                id: &format!("run-{number}"),
                job: "job",
                argv,
                env,
                cwd: "/work",
                image: None,
                binds: &binds,
                overlays: &[],
                system: &SystemLayers::default(),
                sockets: &[],
                limits: &SandboxLimits::default(),
            };
            let mut running = self.backend.start_run(run).await?;
            if self.mute.load(Ordering::Relaxed) {
                (running.stdout, running.stderr) = (None, None);
            }
            Ok(running)
        })
    }
}

/// People who always answer the same, and remember what they were asked.
#[derive(Default)]
pub(crate) struct People {
    pub(crate) allow: bool,
    pub(crate) silent: bool,
    pub(crate) asked: Mutex<Vec<(String, Value)>>,
}

impl PermissionPrompt for People {
    fn request_permission(&self, title: String, input: Value) -> BoxFuture<'_, bool> {
        self.asked.lock().unwrap().push((title, input));
        let (allow, silent) = (self.allow, self.silent);
        Box::pin(async move {
            if silent {
                std::future::pending::<()>().await;
            }
            allow
        })
    }
}

/// A job with its folders.
pub(crate) struct Bench {
    pub(crate) folder: TempDir,
    pub(crate) sandbox: Arc<Sandbox>,
    pub(crate) people: Arc<People>,
    pub(crate) assignment: JobAssignment,
    pub(crate) recipes: AgentRecipes,
    pub(crate) limits: WorkerTimeouts,
    pub(crate) ask_permission: bool,
    pub(crate) resume: Option<String>,
}

/// What is told from outside, and what is heard.
pub(crate) struct Line {
    pub(crate) orders: mpsc::Sender<WorkerInstruction>,
    pub(crate) ears: mpsc::Receiver<WorkerInstruction>,
    pub(crate) events: mpsc::Receiver<JobEventData>,
}

impl Bench {
    pub(crate) fn new(choice: WorkerChoice) -> Self {
        let folder = tempfile::tempdir().unwrap();
        Self {
            sandbox: Arc::new(Sandbox::new(folder.path())),
            people: Arc::default(),
            assignment: assignment(choice),
            recipes: AgentRecipes::built_in().unwrap(),
            limits: WorkerTimeouts::with_deadline(Instant::now() + Duration::from_mins(1)),
            ask_permission: false,
            resume: None,
            folder,
        }
    }

    pub(crate) fn agents(&self) -> PathBuf {
        self.folder.path().join("agents")
    }

    pub(crate) fn gate(&self) -> PathBuf {
        self.folder.path().join("mcp.sock")
    }

    /// What is in a file of the workspace.
    pub(crate) fn file(&self, name: &str) -> Option<String> {
        fs::read_to_string(self.sandbox.work.join(name)).ok()
    }

    pub(crate) async fn start(&self) -> Result<(Box<dyn WorkerSession>, Line), WorkerError> {
        let (events, heard) = mpsc::channel(10_000);
        let (orders, ears) = mpsc::channel(8);
        let worker = create_worker(&self.assignment.work.worker, &self.recipes, &self.agents())?;
        let start = SessionStart {
            sandbox: Arc::clone(&self.sandbox) as _,
            assignment: &self.assignment,
            resume: self.resume.as_deref(),
            events,
            permissions: Arc::clone(&self.people) as _,
            gate: &self.gate(),
            ask_permission: self.ask_permission,
            limits: self.limits,
        };
        Ok((worker.start_session(start).await?, Line { orders, ears, events: heard }))
    }

    /// Starts, has one turn, and closes.
    pub(crate) async fn turn(&self, text: &str) -> (TurnOutcome, Vec<JobEventData>, SandboxExit) {
        let (mut session, mut line) = self.start().await.unwrap();
        let turn = session.run_prompt(text, &mut line.ears).await.unwrap();
        let ended = session.close_session().await;
        (turn, line.heard(), ended)
    }
}

impl Line {
    /// Everything that was heard and not yet looked at.
    pub(crate) fn heard(&mut self) -> Vec<JobEventData> {
        std::iter::from_fn(|| self.events.try_recv().ok()).collect()
    }

    /// Waits until something was heard for which this is so.
    pub(crate) async fn until(
        events: &mut mpsc::Receiver<JobEventData>,
        so: impl Fn(&JobEventData) -> bool,
    ) {
        while let Some(happened) = events.recv().await {
            if so(&happened) {
                return;
            }
        }
        panic!("it was never heard");
    }
}

fn assignment(worker: WorkerChoice) -> JobAssignment {
    let id = |number: u128| Uuid::from_u128(0x0192_d5c8_b6f0_7cc1_a1a3_c2b4_d5e6_f700 + number);
    JobAssignment {
        job_id: JobId::from_uuid(id(1)),
        task_id: TaskId::from_uuid(id(2)),
        run_id: RunId::from_uuid(id(3)),
        project_id: ProjectId::from_uuid(id(4)),
        unit: "greet".parse().unwrap(),
        title: "Greet".into(),
        attempt: 1,
        fencing_token: 1,
        work: JobSpec {
            role: AgentRole::Developer,
            worker,
            context: StructuredContext::default(),
            models: vec!["some/model".into()],
            tools: None,
            sandbox: SandboxNeeds::default(),
            placement: PlacementSpec::default(),
            commit: CommitRule::IfChanged,
        },
        base: None,
        merge: Vec::new(),
        branch: "cynode/greet".into(),
        agent_token: SecretText("the-token".into()),
        agent_token_id: AgentTokenId::from_uuid(id(5)),
        seconds_left: 60,
        trace_id: "0af7651916cd43dd8448eb211c80319c".into(),
        checkpoint: None,
        environment: None,
        profile: None,
    }
}

/// Puts a file somewhere, with the folders above it.
pub(crate) fn put(path: &Path, text: &str) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}
