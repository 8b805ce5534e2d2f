//! Running a job: from the claim to the end of the worker's turn.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use cynode_core::{
    evidence::EvidenceCheck,
    nodes::{JobPhase, WorkStopReason},
    sync::lock_unpoisoned,
    workflow::jobs::WorkerChoice,
};
use cynode_wire::nodes::{AssignedProfile, MergeConflict, SandboxUse, WorkResult};
use tokio::{
    sync::mpsc,
    time::{Instant, timeout_at},
};

use super::{
    JobSandboxRunner, NodeJob,
    approval::PermissionRequester,
    check_workspace::{self, JobCheckWorkspace},
    format_error_chain,
    merge::{self, MergeError},
    result_size::truncate_step_outputs,
    trusted_command::TrustedCommandError,
};
use crate::{
    client::{CALL_BACKOFF, call_with_retry},
    job::environment::{self, SetupError},
    node::NodeContext,
    sandbox::{Backend, EgressAllowlist, SandboxExit},
    sockets::{AgentEgress, JobEgress, JobSockets, PackageEgress},
    store::{self, TurnRecord},
    workers::{
        JobWorker, SessionStart, TurnOutcome, WorkerError, WorkerSession, WorkerTimeouts,
        checks::ChecksWorker,
        prompt::{self, SessionContinuity},
    },
    workspace::{self, MergeResult, MirrorOrigin, WorkspaceError},
};

/// Maximum number of attempts to fetch a repository: enough to outlast a restart of the orchestrator.
const MAX_FETCH_ATTEMPTS: u32 = 12;

/// Extra time for a worker to end by itself after its limit.
const TURN_GRACE_PERIOD: Duration = Duration::from_secs(5);

/// Reason why the worker did not start its turn.
struct TurnFailure {
    stop: WorkStopReason,
    summary: String,
}

impl TurnFailure {
    fn new(stop: WorkStopReason, summary: impl Into<String>) -> Self {
        Self { stop, summary: summary.into() }
    }

    fn disk_full() -> Self {
        Self::new(WorkStopReason::DiskFull, "the node's disk is full")
    }
}

impl From<store::NodeStoreError> for TurnFailure {
    fn from(error: store::NodeStoreError) -> Self {
        if error.is_full() {
            Self::disk_full()
        } else {
            Self::new(WorkStopReason::Node, format_error_chain(error))
        }
    }
}

impl From<WorkspaceError> for TurnFailure {
    fn from(error: WorkspaceError) -> Self {
        if error.is_full() {
            Self::disk_full()
        } else {
            Self::new(WorkStopReason::Workspace, format_error_chain(error))
        }
    }
}

impl From<WorkerError> for TurnFailure {
    fn from(error: WorkerError) -> Self {
        match error {
            WorkerError::Sandbox(error) => Self::new(
                WorkStopReason::Sandbox,
                format!("the sandbox: {}", format_error_chain(error)),
            ),
            error => Self::new(WorkStopReason::Worker, format_error_chain(error)),
        }
    }
}

impl From<SetupError> for TurnFailure {
    fn from(error: SetupError) -> Self {
        match error {
            SetupError::Workspace(error) => error.into(),
            SetupError::Store(error) => error.into(),
            SetupError::Sandbox(error) => WorkerError::Sandbox(error).into(),
            SetupError::Failed(summary) => Self::new(WorkStopReason::Environment, summary),
        }
    }
}

impl From<MergeError> for TurnFailure {
    fn from(error: MergeError) -> Self {
        match error {
            MergeError::Workspace(error) => error.into(),
            MergeError::Store(error) => error.into(),
            MergeError::Aside(TrustedCommandError::Sandbox(_) | TrustedCommandError::NoSandbox) => {
                Self::new(WorkStopReason::Sandbox, format_error_chain(error))
            }
            MergeError::Aside(_) => Self::new(WorkStopReason::Workspace, format_error_chain(error)),
        }
    }
}

/// Runs the worker of a job. A failure is recorded as a result too.
pub(super) async fn run_worker(node: &Arc<NodeContext>, job: &Arc<NodeJob>) -> TurnRecord {
    let done = tokio::select! {
        () = job.aborted.cancelled() => {
            Err(TurnFailure::new(WorkStopReason::Cancelled, "it was aborted"))
        }
        done = try_run_worker(node, job) => done,
    };
    *lock_unpoisoned(&job.orders) = None;
    // Processes that the worker left running are not part of its work.
    node.end_job_sandboxes(&job.job_id().to_string()).await;
    done.unwrap_or_else(|TurnFailure { stop, summary }| TurnRecord {
        succeeded: false,
        prepared: false,
        result: WorkResult { stop_reason: Some(stop), summary, ..WorkResult::default() },
    })
}

async fn try_run_worker(
    node: &Arc<NodeContext>,
    job: &Arc<NodeJob>,
) -> Result<TurnRecord, TurnFailure> {
    job.enter_phase(JobPhase::Preparing);
    let assignment = job.assignment();
    let needs = &job.sandbox_needs();
    let backend = node.select_backend(needs);
    let backend = backend
        .ok_or_else(|| TurnFailure::new(WorkStopReason::Sandbox, "the node has no such sandbox"))?;
    if !node.has_disk_space() {
        return Err(TurnFailure::disk_full());
    }
    require_readable_files(job)?;
    let session = job.dir.load_session()?;
    let merged = match &session {
        None => prepare_workspace(node, job, &backend).await?,
        Some(_) => {
            if assignment.environment.is_some() {
                let mirror = find_or_fetch_mirror(node, job).await?;
                Box::pin(set_up_environment(node, job, &backend, mirror.as_deref())).await?;
            }
            job.dir.load_merge_result()?
        }
    };
    let choice = &assignment.work.worker;
    let conflict = match (choice, merged) {
        (
            WorkerChoice::Merge | WorkerChoice::Checks { .. },
            Some(MergeResult { conflict: Some(conflict), used, .. }),
        ) => {
            return Ok(merge::conflict_record(conflict, used));
        }
        (WorkerChoice::Merge, merged) => return Ok(merge::merge_only_record(job, merged)),
        (_, merged) => merged.and_then(|merged| merged.conflict),
    };
    let due = job.due_at();
    let left = due.saturating_duration_since(Instant::now());
    // Part of the time is reserved for building the result.
    let until = due - (left / 10).min(Duration::from_mins(1));
    store::create_traversable_dir(&job.dir.sockets_dir())?;
    let sockets = open_sockets(node, job)?;
    let limits = node.settings.job_limits.run_limits(needs, left);
    let runs = JobSandboxRunner::new(
        Arc::clone(&backend),
        job.job_id().to_string(),
        limits,
        until + TURN_GRACE_PERIOD,
    )
    .with_image(needs.image.clone())
    .with_folders(&job.dir, job.dir.out_dir())
    .with_environment(job.environment.get(), &job.dir)
    .with_sockets(sockets.socket_forwards());
    job.enter_phase(JobPhase::Working);
    let told = TurnContext { resume: session.as_deref(), conflict: conflict.as_ref() };
    let (turn, ended) = run_turn(node, job, runs, &sockets, told, until).await?;
    Ok(to_turn_record(choice, turn, &ended, &*backend, job.dir.load_session()?))
}

/// Rejects a profile that hides files: all files of a commit are in a working copy. The orchestrator gives no such job.
fn require_readable_files(job: &NodeJob) -> Result<(), TurnFailure> {
    let hides = |profile: &&AssignedProfile| !profile.spec.reads_everything();
    job.agent_profile().filter(hides).map_or(Ok(()), |profile| {
        let summary = format!(
            "The profile `{}` does not read every file of the repository, and a working copy cannot hide files.",
            profile.name
        );
        Err(TurnFailure::new(WorkStopReason::Workspace, summary))
    })
}

/// Returns the mirror with the commits that a job needs, if it needs any.
pub(super) async fn mirror_of_job(
    node: &NodeContext,
    job: &NodeJob,
) -> Result<Option<PathBuf>, WorkerError> {
    let found = find_or_fetch_mirror(node, job).await;
    found.map_err(|TurnFailure { summary, .. }| WorkerError::Workspace(summary))
}

/// Recreates all directories of a job in their initial state.
pub(super) async fn reset_workspace(node: &NodeContext, job: &NodeJob) -> Result<(), WorkerError> {
    let done = async {
        let there = find_or_fetch_mirror(node, job).await?;
        prepare_from_mirror(node, job, there).await
    };
    done.await.map(drop).map_err(|TurnFailure { summary, .. }| WorkerError::Workspace(summary))
}

/// Returns the mirror with the commits that a job needs, if it needs any.
async fn find_or_fetch_mirror(
    node: &NodeContext,
    job: &NodeJob,
) -> Result<Option<PathBuf>, TurnFailure> {
    let commits = required_commits(job);
    if commits.is_empty() {
        return Ok(None);
    }
    let project = job.assignment().project_id;
    match workspace::find_mirror(&node.host, &node.store, project, &commits).await {
        Some(mirror) => Ok(Some(mirror)),
        None => fetch_mirror(node, job, &commits).await.map(Some),
    }
}

/// Sets the environment up, recreates the workspace and merges the job's commits in it.
async fn prepare_workspace(
    node: &NodeContext,
    job: &NodeJob,
    backend: &Arc<dyn Backend>,
) -> Result<Option<MergeResult>, TurnFailure> {
    let mirror = match required_commits(job).as_slice() {
        [] => None,
        commits => Some(fetch_mirror(node, job, commits).await?),
    };
    Box::pin(set_up_environment(node, job, backend, mirror.as_deref())).await?;
    prepare_from_mirror(node, job, mirror).await
}

/// Prepares the environment of a job, if it has one. A job without a worker needs none.
async fn set_up_environment(
    node: &NodeContext,
    job: &NodeJob,
    backend: &Arc<dyn Backend>,
    mirror: Option<&Path>,
) -> Result<(), TurnFailure> {
    if job.assignment().work.worker == WorkerChoice::Merge {
        return Ok(());
    }
    if let Some(prepared) = environment::prepare_environment(node, job, backend, mirror).await? {
        prepared.create_scratch_dirs(&job.dir)?;
        // A job is prepared once: the first environment stays.
        let _ = job.environment.set(prepared);
    }
    Ok(())
}

/// Returns the commits that a job needs.
fn required_commits(job: &NodeJob) -> Vec<String> {
    let assignment = job.assignment();
    let pinned = pinned_checks(job).map(|(_, from)| from);
    assignment.base.iter().chain(&assignment.merge).chain(pinned).cloned().collect()
}

/// Returns the checks of a job and the commit of their pinned files.
fn pinned_checks(job: &NodeJob) -> Option<(&[EvidenceCheck], &String)> {
    match &job.assignment().work.worker {
        WorkerChoice::Checks { checks, pinned_from: Some(from) } => Some((checks, from)),
        _ => None,
    }
}

async fn prepare_from_mirror(
    node: &NodeContext,
    job: &NodeJob,
    mirror: Option<PathBuf>,
) -> Result<Option<MergeResult>, TurnFailure> {
    let assignment = job.assignment();
    let (host, store) = (&node.host, &node.store);
    let most = node.settings.job_limits.disk_bytes(&job.sandbox_needs());
    workspace::create_workspace(host, store, &job.dir, assignment, mirror.as_deref(), most).await?;
    if let Some(prepared) = job.environment.get() {
        prepared.prepare_files(node, job, mirror.as_deref()).await?;
    }
    if let (Some((checks, from)), Some(mirror)) = (pinned_checks(job), &mirror) {
        check_workspace::prepare_pin_source(node, job, mirror, checks, from).await?;
    }
    if assignment.merge.is_empty() {
        return Ok(None);
    }
    Ok(Some(merge::merge_commits(node, job).await?))
}

async fn fetch_mirror(
    node: &NodeContext,
    job: &NodeJob,
    commits: &[String],
) -> Result<PathBuf, TurnFailure> {
    let project = job.assignment().project_id;
    let alone = node.mirror_lock(project);
    let mut backoff = CALL_BACKOFF;
    let mut tries = 0;
    loop {
        let found = call_with_retry(|| node.client.repository_access(job.job_id())).await;
        let (url, token) = found.map_err(|error| {
            TurnFailure::new(WorkStopReason::Workspace, format_error_chain(error))
        })?;
        let made = {
            let _alone = alone.lock().await;
            let authority = Some(node.store.authority_file()).filter(|path| path.exists());
            let origin = MirrorOrigin { url, token, authority };
            workspace::update_mirror(&node.host, &node.store, project, commits, &origin).await
        };
        tries += 1;
        match made {
            Err(error)
                if error.is_retryable() && !error.is_full() && tries < MAX_FETCH_ATTEMPTS =>
            {
                job.push_note(format!("the repository could not be fetched, again: {error}"));
                backoff.wait_next_delay().await;
            }
            made => return Ok(made?),
        }
    }
}

fn open_sockets(node: &NodeContext, job: &Arc<NodeJob>) -> Result<JobSockets, TurnFailure> {
    let assignment = job.assignment();
    let outbox = Arc::clone(&job.outbox);
    let agent = match &assignment.work.worker {
        // Checks have no socket to models or tools.
        WorkerChoice::Checks { .. } | WorkerChoice::Merge => None,
        WorkerChoice::Acp { .. } | WorkerChoice::Command { .. } | WorkerChoice::Scripted { .. } => {
            Some(AgentEgress {
                upstream: node.upstream.clone(),
                token: assignment.agent_token.0.clone().into(),
                trace: assignment.trace_id.clone(),
            })
        }
    };
    // Set-up has its own socket to packages; agents and checks have one only if the environment says so.
    let packages = assignment.environment.as_ref().and_then(|assigned| {
        let proxy = node.packages.as_ref().filter(|_| assigned.spec.packages_during_work)?;
        Some(PackageEgress {
            proxy: Arc::clone(proxy),
            sources: assigned.spec.package_sources.clone(),
            policy: assigned.package_policy.clone(),
        })
    });
    let reach = JobEgress {
        agent,
        packages,
        net: EgressAllowlist::intersect_hosts(&job.egress_hosts(), &node.settings.egress_hosts),
        tell: Arc::new(move |what| outbox.push(what)),
    };
    JobSockets::bind_sockets(&job.dir.sockets_dir(), reach, &node.tasks).map_err(|error| {
        TurnFailure::new(WorkStopReason::Node, format!("the sockets cannot be opened: {error}"))
    })
}

/// Initial state of a worker's turn.
#[derive(Clone, Copy)]
struct TurnContext<'a> {
    /// Id of the session to resume.
    resume: Option<&'a str>,
    /// Merge conflict in the workspace.
    conflict: Option<&'a MergeConflict>,
}

/// Starts the worker, sends its prompt and waits for the outcome.
async fn run_turn(
    node: &Arc<NodeContext>,
    job: &Arc<NodeJob>,
    runs: JobSandboxRunner,
    sockets: &JobSockets,
    TurnContext { resume, conflict }: TurnContext<'_>,
    until: Instant,
) -> Result<(TurnOutcome, SandboxExit), TurnFailure> {
    let assignment = job.assignment();
    let worker: Box<dyn JobWorker> = match &assignment.work.worker {
        WorkerChoice::Checks { checks, pinned_from } => {
            let floor = Arc::new(JobCheckWorkspace::new(node, job, pinned_from.as_ref()));
            Box::new(ChecksWorker::new(checks.clone(), floor))
        }
        choice => node.workshop.create_worker(choice)?,
    };
    let (events, mut happened) = mpsc::channel(256);
    let (send_orders, mut orders) = mpsc::channel(16);
    let gate = sockets.gateway_socket();
    let start = SessionStart {
        sandbox: Arc::new(runs),
        assignment,
        resume,
        events,
        permissions: Arc::new(PermissionRequester { node: Arc::clone(node), job: Arc::clone(job) }),
        gate: &gate,
        ask_permission: node.settings.ask_permission,
        limits: WorkerTimeouts::with_deadline(until),
    };
    let play = async {
        let mut session = worker.start_session(start).await?;
        save_session_id(job, &*session)?;
        let taken = match (resume, session.is_resumed()) {
            (None, _) => SessionContinuity::First,
            (Some(_), true) => SessionContinuity::Resumed,
            (Some(_), false) => SessionContinuity::Forgotten,
        };
        *lock_unpoisoned(&job.orders) = Some(send_orders);
        let skills = worker.skills_dir();
        let text = prompt::build_prompt_for_worker(assignment, conflict, taken, skills.as_deref());
        let turn =
            match timeout_at(until + TURN_GRACE_PERIOD, session.run_prompt(&text, &mut orders))
                .await
            {
                Ok(turn) => turn?,
                Err(_) => TurnOutcome::new(WorkStopReason::Timeout),
            };
        *lock_unpoisoned(&job.orders) = None;
        save_session_id(job, &*session)?;
        Ok::<_, TurnFailure>((turn, session.close_session().await))
    };
    let listen = async {
        while let Some(what) = happened.recv().await {
            job.outbox.push(what);
        }
        std::future::pending::<()>().await;
    };
    let played = tokio::select! {
        played = play => played,
        () = listen => Err(TurnFailure::new(WorkStopReason::Node, "nobody listens")),
    };
    // The last events may still be in the channel.
    while let Ok(what) = happened.try_recv() {
        job.outbox.push(what);
    }
    played
}

fn save_session_id(job: &NodeJob, session: &dyn WorkerSession) -> Result<(), TurnFailure> {
    if let Some(id) = session.session_id()
        && job.dir.load_session()?.as_deref() != Some(id)
    {
        job.dir.save_session(id)?;
    }
    Ok(())
}

fn to_turn_record(
    choice: &WorkerChoice,
    turn: TurnOutcome,
    ended: &SandboxExit,
    backend: &dyn Backend,
    session: Option<String>,
) -> TurnRecord {
    let TurnOutcome { stop, said, usage: _, mut steps } = turn;
    truncate_step_outputs(&mut steps);
    let resource_usage = SandboxUse {
        backend: Some(backend.backend_kind()),
        cpu_ms: u64::try_from(ended.cpu.as_millis()).unwrap_or(u64::MAX),
        peak_memory_bytes: ended.peak_memory,
        wall_ms: 0,
        out_of_memory: ended.out_of_memory,
    };
    let result = WorkResult {
        summary: said,
        stop_reason: Some(stop),
        session,
        steps,
        resource_usage,
        ..WorkResult::default()
    };
    // Files that checks leave behind are not exported.
    let prepared = !matches!(choice, WorkerChoice::Checks { .. });
    TurnRecord { succeeded: stop == WorkStopReason::EndTurn, prepared, result }
}
