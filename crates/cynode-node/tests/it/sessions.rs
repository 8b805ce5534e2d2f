//! What passes between people and a worker, with a worker and a sandbox of the test's own.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    sync::{Arc, Mutex},
    time::Duration,
};

use cynode_core::{
    evidence::EvidenceCheck,
    ids::NodeId,
    nodes::{AgentReport, JobPhase, WorkStopReason},
    workflow::{
        instructions::InstructionKind,
        jobs::{CommitRule, SandboxBackend, WorkerChoice},
    },
};
use cynode_node::{
    client::NodeClient,
    host::HostCommands,
    key::NodeKey,
    node::{
        AvailableBackend, JobResourceLimits, NodeContext, NodeParts, NodeSettings, PackageSettings,
        WorkerFactory,
    },
    sandbox::{
        Backend, CleanupStats, ExitReason, SandboxError, SandboxExit, SandboxProcess, SandboxRun,
    },
    store::NodeStore,
    supervisor::supervise_node,
    workers::{
        JobWorker, SessionStart, TurnOutcome, WorkerError, WorkerInstruction, WorkerSession,
    },
};
use cynode_wire::{
    nodes::{JobAssignment, JobInstruction, PermissionAnswer},
    workflow::jobs::JobOutcome,
};
use futures::future::BoxFuture;
use serde_json::json;
use tokio::sync::mpsc;
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use uuid::Uuid;

use crate::{
    fake::Fake,
    program::{bring_back, change, git, job, repository},
    world::{Kind, backend, options},
};

/// A sandbox that is never used.
struct Nowhere;

impl Backend for Nowhere {
    fn backend_kind(&self) -> SandboxBackend {
        SandboxBackend::Bubblewrap
    }
    fn probe_backend(&self) -> BoxFuture<'_, Result<String, SandboxError>> {
        Box::pin(async { Ok("0".to_owned()) })
    }
    fn supports_overlays(&self) -> bool {
        false
    }
    fn start_run<'a>(
        &'a self,
        _: SandboxRun<'a>,
    ) -> BoxFuture<'a, Result<SandboxProcess, SandboxError>> {
        Box::pin(async { Err(SandboxError::Refused("nowhere".to_owned())) })
    }
    fn end_job<'a>(&'a self, _: &'a str) -> BoxFuture<'a, ()> {
        Box::pin(async {})
    }
    fn cleanup_orphans<'a>(&'a self, _: &'a [String]) -> BoxFuture<'a, CleanupStats> {
        Box::pin(async { CleanupStats::default() })
    }
}

/// Asks for permission and says what it was told.
#[derive(Clone, Default)]
struct Listener {
    resumed: Arc<Mutex<Vec<Option<String>>>>,
    told: Arc<Mutex<Vec<String>>>,
}

struct Listening {
    told: Arc<Mutex<Vec<String>>>,
    permissions: Arc<dyn cynode_node::workers::PermissionPrompt>,
}

impl WorkerFactory for Listener {
    fn create_worker(&self, _: &WorkerChoice) -> Result<Box<dyn JobWorker>, WorkerError> {
        Ok(Box::new(self.clone()))
    }
    fn detect_agents<'a>(&'a self, _: &'a Arc<dyn Backend>) -> BoxFuture<'a, Vec<AgentReport>> {
        Box::pin(async { Vec::new() })
    }
}

impl JobWorker for Listener {
    fn start_session<'a>(
        &'a self,
        start: SessionStart<'a>,
    ) -> BoxFuture<'a, Result<Box<dyn WorkerSession>, WorkerError>> {
        Box::pin(async move {
            self.resumed.lock().unwrap().push(start.resume.map(str::to_owned));
            let session: Box<dyn WorkerSession> = Box::new(Listening {
                told: Arc::clone(&self.told),
                permissions: Arc::clone(&start.permissions),
            });
            Ok(session)
        })
    }
}

impl WorkerSession for Listening {
    fn session_id(&self) -> Option<&str> {
        Some("session-1")
    }
    fn run_prompt<'a>(
        &'a mut self,
        text: &'a str,
        orders: &'a mut mpsc::Receiver<WorkerInstruction>,
    ) -> BoxFuture<'a, Result<TurnOutcome, WorkerError>> {
        Box::pin(async move {
            self.told.lock().unwrap().push(text.to_owned());
            let input = json!({"command": "rm -rf build"});
            let allowed =
                self.permissions.request_permission("Run a command".to_owned(), input).await;
            let order = orders.recv().await;
            let said = format!("{allowed} {order:?}");
            Ok(TurnOutcome { said, ..TurnOutcome::new(WorkStopReason::EndTurn) })
        })
    }
    fn close_session(self: Box<Self>) -> BoxFuture<'static, SandboxExit> {
        Box::pin(async {
            SandboxExit {
                exit_code: None,
                signal: None,
                why: ExitReason::Exited,
                cpu: Duration::ZERO,
                peak_memory: 0,
                out_of_memory: false,
            }
        })
    }
}

struct Scene {
    fake: Fake,
    dir: tempfile::TempDir,
    listener: Listener,
    key: NodeKey,
    backend: Arc<dyn Backend>,
}

impl Scene {
    async fn new() -> Self {
        let fake = Fake::start().await;
        let dir = tempfile::tempdir().unwrap();
        let key = NodeKey::load_or_create(&dir.path().join("node.key")).unwrap();
        fake.know(Self::id(), &key.public_key_hex());
        Self { fake, dir, listener: Listener::default(), key, backend: Arc::new(Nowhere) }
    }

    /// With a sandbox in which something can be done.
    async fn somewhere() -> Self {
        let mut scene = Self::new().await;
        fs::set_permissions(scene.dir.path(), fs::Permissions::from_mode(0o711)).unwrap();
        scene.backend = backend(Kind::Bubblewrap, options(scene.dir.path())).into();
        scene
    }

    fn id() -> NodeId {
        NodeId::from_uuid(Uuid::from_u128(1))
    }

    /// A node that works until it is told to stop.
    fn node(&self, stop: &CancellationToken) -> impl Future<Output = ()> + Send + 'static {
        let node = NodeContext::new(NodeParts {
            settings: NodeSettings {
                slots: 1,
                min_free_disk_bytes: 1,
                lease: Duration::from_mins(1),
                egress_hosts: Vec::new(),
                ask_permission: true,
                job_limits: JobResourceLimits {
                    memory_mib: 512,
                    cpu_percent: 100,
                    processes: 64,
                    disk_mib: 64,
                    bundle_mib: 1,
                },
                environments_max_bytes: 1 << 30,
                environments_max_age: Duration::from_hours(24),
                packages: PackageSettings::default(),
            },
            store: NodeStore::open_state_dir(&self.dir.path().join("state")).unwrap(),
            host: HostCommands::new(env!("CARGO_BIN_EXE_cynode-node").into()),
            client: NodeClient::new(&self.fake.url, Self::id(), self.key.clone()).unwrap(),
            agents_url: self.fake.url.clone(),
            backends: vec![AvailableBackend {
                backend: Arc::clone(&self.backend),
                version: "0".to_owned(),
            }],
            workshop: Arc::new(self.listener.clone()),
            warnings: Vec::new(),
            packages: None,
        });
        let (node, stop) = (Arc::new(node.unwrap()), stop.clone());
        async move { supervise_node(node, stop).await.unwrap() }
    }

    fn give(&self) -> JobAssignment {
        let mut assignment = job(Vec::new());
        assignment.work.commit = CommitRule::Never;
        self.fake.give(assignment.clone());
        assignment
    }

    fn tell(&self, assignment: &JobAssignment, number: u128, kind: InstructionKind, text: &str) {
        self.fake.instruct(JobInstruction {
            instruction_id: Uuid::from_u128(number),
            job_id: assignment.job_id,
            kind,
            text: text.to_owned(),
        });
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_person_is_asked_with_the_exact_command_and_then_told_on() {
    let scene = Scene::new().await;
    let stop = CancellationToken::new();
    let node = TaskTracker::new().spawn(scene.node(&stop));
    let assignment = scene.give();
    scene.fake.phase(assignment.job_id, JobPhase::Asking).await;
    let asked = scene.fake.until("it is asked", |world| world.asked.first().cloned()).await;
    assert_eq!((asked.fencing_token, asked.title.as_str()), (7, "Run a command"));
    assert_eq!(asked.input, json!({"command": "rm -rf build"}));
    scene.fake.world().permission = Some(PermissionAnswer::Allowed);
    scene.tell(&assignment, 5, InstructionKind::Revise, "use the other file");
    let result = scene.fake.result(assignment.job_id).await;
    assert_eq!(result.outcome, JobOutcome::Succeeded);
    assert_eq!(result.result.summary, "true Some(Tell(\"use the other file\"))");
    let known = |world: &crate::fake::World| {
        world.delivered.iter().filter(|id| **id == Uuid::from_u128(5)).count()
    };
    scene.fake.until("it is acknowledged", |world| (known(world) > 0).then_some(())).await;
    stop.cancel();
    node.await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_reaches_the_worker_and_a_pause_too() {
    let scene = Scene::new().await;
    scene.fake.world().permission = Some(PermissionAnswer::Refused);
    let stop = CancellationToken::new();
    let node = TaskTracker::new().spawn(scene.node(&stop));
    let assignment = scene.give();
    scene.tell(&assignment, 6, InstructionKind::Pause, "");
    let result = scene.fake.result(assignment.job_id).await;
    assert_eq!(result.result.summary, "false Some(Pause)");
    stop.cancel();
    node.await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_is_taken_up_again_by_its_id() {
    let scene = Scene::new().await;
    let stop = CancellationToken::new();
    let node = TaskTracker::new().spawn(scene.node(&stop));
    let assignment = scene.give();
    scene.fake.phase(assignment.job_id, JobPhase::Asking).await;
    stop.cancel();
    node.await.unwrap();
    scene.fake.world().permission = Some(PermissionAnswer::Allowed);
    scene.tell(&assignment, 7, InstructionKind::Resume, "");
    let stop = CancellationToken::new();
    let node = TaskTracker::new().spawn(scene.node(&stop));
    let result = scene.fake.result(assignment.job_id).await;
    assert_eq!(result.result.summary, "true Some(Resume)");
    assert_eq!(result.result.session.as_deref(), Some("session-1"));
    let resumed = scene.listener.resumed.lock().unwrap().clone();
    assert_eq!(resumed, [None, Some("session-1".to_owned())]);
    stop.cancel();
    node.await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_that_is_taken_up_again_still_mends_the_same_conflict() {
    let scene = Scene::somewhere().await;
    let origin = tempfile::tempdir().unwrap();
    let base = repository(origin.path());
    let [a, b] =
        ["a", "b"].map(|side| change(origin.path(), &base, &format!("echo {side} > README")));
    scene.fake.serve_repository(origin.path());
    let mut assignment = job(Vec::new());
    assignment.base = Some(base);
    assignment.merge = vec![a.clone(), b.clone()];
    let stop = CancellationToken::new();
    let node = TaskTracker::new().spawn(scene.node(&stop));
    scene.fake.give(assignment.clone());
    scene.fake.phase(assignment.job_id, JobPhase::Asking).await;
    stop.cancel();
    node.await.unwrap();
    // What it did meanwhile to the merge makes no difference to what it comes from.
    let workspace = scene.dir.path().join(format!("state/jobs/{}/workspace", assignment.job_id));
    fs::remove_file(workspace.join(".git/MERGE_HEAD")).unwrap();
    scene.fake.world().permission = Some(PermissionAnswer::Allowed);
    scene.tell(&assignment, 8, InstructionKind::Resume, "");
    let stop = CancellationToken::new();
    let node = TaskTracker::new().spawn(scene.node(&stop));
    let result = scene.fake.result(assignment.job_id).await;
    assert_eq!((result.outcome, result.result.conflict.clone()), (JobOutcome::Succeeded, None));
    bring_back(&scene.fake, origin.path(), &result.result);
    assert_eq!(git(origin.path(), &["log", "-1", "--format=%P", "back"]), format!("{a} {b}"));
    let told = scene.listener.told.lock().unwrap().clone();
    // It has forgotten the first time, so it is told again.
    assert_eq!(told.len(), 2);
    for told in told {
        assert!(
            told.contains(&format!("The commit {b} did not fit")) && told.contains("- `README`"),
            "{told}"
        );
    }
    stop.cancel();
    node.await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sandbox_that_comes_to_nothing_fails_merges_and_checks() {
    let scene = Scene::new().await;
    let origin = tempfile::tempdir().unwrap();
    let base = repository(origin.path());
    scene.fake.serve_repository(origin.path());
    let stop = CancellationToken::new();
    let node = TaskTracker::new().spawn(scene.node(&stop));
    let mut merge = job(Vec::new());
    merge.base = Some(base.clone());
    merge.merge = vec![base.clone()];
    merge.work.worker = WorkerChoice::Merge;
    let mut checks = job(Vec::new());
    checks.base = Some(base.clone());
    let line = vec![EvidenceCheck::from_shell_line("true")];
    checks.work.worker = WorkerChoice::Checks { checks: line, pinned_from: Some(base) };
    for (assignment, summary) in [
        (merge, "commits could not be put together: the sandbox: nowhere"),
        (checks, "the sandbox: nowhere"),
    ] {
        scene.fake.give(assignment.clone());
        let result = scene.fake.result(assignment.job_id).await;
        let told = (result.result.stop_reason, result.result.summary.as_str());
        assert_eq!(
            (result.outcome, told),
            (JobOutcome::Failed, (Some(WorkStopReason::Sandbox), summary))
        );
    }
    stop.cancel();
    node.await.unwrap();
}
