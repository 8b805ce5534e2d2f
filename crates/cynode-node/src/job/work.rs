//! From the claim to the end of the worker's turn.

use std::{path::PathBuf, sync::Arc, time::Duration};

use cynode_core::{evidence::Check, sync::lock};
use cynode_wire::{
    nodes::{Conflict, JobPhase, SandboxUse, WorkResult},
    work::WorkerChoice,
};
use tokio::{
    sync::mpsc,
    time::{Instant, timeout_at},
};

use super::{
    Job, JobRuns,
    aside::AsideError,
    asking::Asking,
    chain,
    fit::fit,
    merge::{self, MergeError},
    pins::{self, JobFloor},
};
use crate::{
    client::{Backoff, until_answered},
    node::Node,
    sandbox::{Backend, Ended},
    sockets::{AgentReach, Allowed, Reach, Sockets},
    store::{self, Worked},
    workers::{
        Patience, Session, Start, Turn, Worker, WorkerError,
        checks::Checks,
        prompt::{self, Taken},
        stops,
    },
    workspace::{self, Merged, Origin, WorkspaceError},
};

/// How often a repository is asked for that cannot be had: long enough to outlast an orchestrator that starts anew.
const FETCHES: u32 = 12;

/// How much longer than its limit a worker may take to end by itself.
const GRACE: Duration = Duration::from_secs(5);

/// Why the worker did not get as far as a turn.
struct Failure {
    stop: &'static str,
    summary: String,
}

impl Failure {
    fn new(stop: &'static str, summary: impl Into<String>) -> Self {
        Self { stop, summary: summary.into() }
    }

    fn disk_full() -> Self {
        Self::new("disk_full", "the node's disk is full")
    }
}

impl From<store::StoreError> for Failure {
    fn from(error: store::StoreError) -> Self {
        if error.is_full() { Self::disk_full() } else { Self::new("node", chain(error)) }
    }
}

impl From<WorkspaceError> for Failure {
    fn from(error: WorkspaceError) -> Self {
        if error.is_full() { Self::disk_full() } else { Self::new("workspace", chain(error)) }
    }
}

impl From<WorkerError> for Failure {
    fn from(error: WorkerError) -> Self {
        match error {
            WorkerError::Sandbox(error) => {
                Self::new("sandbox", format!("the sandbox: {}", chain(error)))
            }
            error => Self::new("worker", chain(error)),
        }
    }
}

impl From<MergeError> for Failure {
    fn from(error: MergeError) -> Self {
        match error {
            MergeError::Workspace(error) => error.into(),
            MergeError::Store(error) => error.into(),
            MergeError::Aside(AsideError::Sandbox(_) | AsideError::NoSandbox) => {
                Self::new("sandbox", chain(error))
            }
            MergeError::Aside(_) => Self::new("workspace", chain(error)),
        }
    }
}

/// Has the worker do the job. That it failed is a result like any other.
pub(super) async fn work(node: &Arc<Node>, job: &Arc<Job>) -> Worked {
    let done = tokio::select! {
        () = job.aborted.cancelled() => Err(Failure::new(stops::CANCELLED, "it was aborted")),
        done = try_work(node, job) => done,
    };
    *lock(&job.orders) = None;
    // Whatever the worker left running is not part of what it did.
    node.end_sandboxes(&job.id().to_string()).await;
    done.unwrap_or_else(|Failure { stop, summary }| Worked {
        succeeded: false,
        prepared: false,
        result: WorkResult { stop: stop.to_owned(), summary, ..WorkResult::default() },
    })
}

async fn try_work(node: &Arc<Node>, job: &Arc<Job>) -> Result<Worked, Failure> {
    job.enter(JobPhase::Preparing);
    let assignment = job.assignment();
    let needs = &assignment.work.sandbox;
    let backend = node.backend(needs);
    let backend = backend.ok_or_else(|| Failure::new("sandbox", "the node has no such sandbox"))?;
    if !node.has_room() {
        return Err(Failure::disk_full());
    }
    let session = job.dir.session()?;
    let merged = match &session {
        None => prepare(node, job).await?,
        Some(_) => job.dir.merged()?,
    };
    let choice = &assignment.work.worker;
    let conflict = match (choice, merged) {
        (
            WorkerChoice::Merge | WorkerChoice::Checks { .. },
            Some(Merged { conflict: Some(conflict), used, .. }),
        ) => {
            return Ok(merge::conflicting(conflict, used));
        }
        (WorkerChoice::Merge, merged) => return Ok(merge::alone(job, merged)),
        (_, merged) => merged.and_then(|merged| merged.conflict),
    };
    let due = job.due();
    let left = due.saturating_duration_since(Instant::now());
    // Some of the time is for putting the result together.
    let until = due - (left / 10).min(Duration::from_mins(1));
    store::passage(&job.dir.sockets())?;
    let sockets = open_sockets(node, job)?;
    let limits = node.settings.most.limits(needs, left);
    let runs = JobRuns::new(Arc::clone(&backend), job.id().to_string(), limits, until + GRACE)
        .in_image(needs.image.clone())
        .with_folders(&job.dir, job.dir.out())
        .with_sockets(sockets.forwards());
    job.enter(JobPhase::Working);
    let told = Told { resume: session.as_deref(), conflict: conflict.as_ref() };
    let (turn, ended) = turn(node, job, runs, &sockets, told, until).await?;
    Ok(worked(choice, turn, &ended, &*backend, job.dir.session()?))
}

/// Makes all folders of a job anew, as they were before anything ran in them.
pub(super) async fn prepare_again(node: &Node, job: &Job) -> Result<(), WorkerError> {
    let project = job.assignment().project_id;
    let done = async {
        let there = match commits(job).as_slice() {
            [] => None,
            commits => match workspace::mirrored(&node.host, &node.store, project, commits).await {
                Some(there) => Some(there),
                None => Some(mirror(node, job, commits).await?),
            },
        };
        prepare_from(node, job, there).await
    };
    done.await.map(drop).map_err(|Failure { summary, .. }| WorkerError::Workspace(summary))
}

/// Makes the workspace anew, with all that is to be put together in it.
async fn prepare(node: &Node, job: &Job) -> Result<Option<Merged>, Failure> {
    let mirror = match commits(job).as_slice() {
        [] => None,
        commits => Some(mirror(node, job, commits).await?),
    };
    prepare_from(node, job, mirror).await
}

/// The commits that a job needs.
fn commits(job: &Job) -> Vec<String> {
    let assignment = job.assignment();
    let pinned = pinned(job).map(|(_, from)| from);
    assignment.base.iter().chain(&assignment.merge).chain(pinned).cloned().collect()
}

/// The checks of a job, and where the files are from that they go by.
fn pinned(job: &Job) -> Option<(&[Check], &String)> {
    match &job.assignment().work.worker {
        WorkerChoice::Checks { checks, pinned_from: Some(from) } => Some((checks, from)),
        _ => None,
    }
}

async fn prepare_from(
    node: &Node,
    job: &Job,
    mirror: Option<PathBuf>,
) -> Result<Option<Merged>, Failure> {
    let assignment = job.assignment();
    let (host, store) = (&node.host, &node.store);
    let most = node.settings.most.disk_bytes(&assignment.work.sandbox);
    workspace::make(host, store, &job.dir, assignment, mirror.as_deref(), most).await?;
    if let (Some((checks, from)), Some(mirror)) = (pinned(job), &mirror) {
        pins::source(node, job, mirror, checks, from).await?;
    }
    if assignment.merge.is_empty() {
        return Ok(None);
    }
    Ok(Some(merge::merge(node, job).await?))
}

async fn mirror(node: &Node, job: &Job, commits: &[String]) -> Result<PathBuf, Failure> {
    let project = job.assignment().project_id;
    let alone = node.mirror_lock(project);
    let mut backoff = Backoff::default();
    let mut tries = 0;
    loop {
        let found = until_answered(|| node.client.repository(job.id())).await;
        let (url, token) = found.map_err(|error| Failure::new("workspace", chain(error)))?;
        let made = {
            let _alone = alone.lock().await;
            let origin = Origin { url, token };
            workspace::mirror(&node.host, &node.store, project, commits, &origin).await
        };
        tries += 1;
        match made {
            Err(error) if error.may_pass() && !error.is_full() && tries < FETCHES => {
                job.note(format!("the repository could not be fetched, again: {error}"));
                backoff.pause().await;
            }
            made => return Ok(made?),
        }
    }
}

fn open_sockets(node: &Node, job: &Arc<Job>) -> Result<Sockets, Failure> {
    let assignment = job.assignment();
    let outbox = Arc::clone(&job.outbox);
    let agent = match &assignment.work.worker {
        // What checks run has neither a model nor a tool to ask: nobody answers for them.
        WorkerChoice::Checks { .. } | WorkerChoice::Merge => None,
        WorkerChoice::Acp { .. } | WorkerChoice::Command { .. } | WorkerChoice::Scripted { .. } => {
            Some(AgentReach {
                upstream: node.upstream.clone(),
                token: assignment.agent_token.0.clone().into(),
                trace: assignment.trace_id.clone(),
            })
        }
    };
    let reach = Reach {
        agent,
        net: Allowed::both(&assignment.work.sandbox.egress_hosts, &node.settings.egress_hosts),
        tell: Arc::new(move |what| outbox.push(what)),
    };
    Sockets::open(&job.dir.sockets(), reach, &node.tasks)
        .map_err(|error| Failure::new("node", format!("the sockets cannot be opened: {error}")))
}

/// What a worker finds when it begins.
#[derive(Clone, Copy)]
struct Told<'a> {
    /// The session that is to be taken up again.
    resume: Option<&'a str>,
    /// What did not fit together in its workspace.
    conflict: Option<&'a Conflict>,
}

/// Starts the worker, tells it what to do, and waits for what comes of it.
async fn turn(
    node: &Arc<Node>,
    job: &Arc<Job>,
    runs: JobRuns,
    sockets: &Sockets,
    Told { resume, conflict }: Told<'_>,
    until: Instant,
) -> Result<(Turn, Ended), Failure> {
    let assignment = job.assignment();
    let worker: Box<dyn Worker> = match &assignment.work.worker {
        WorkerChoice::Checks { checks, pinned_from } => {
            let floor = Arc::new(JobFloor::new(node, job, pinned_from.as_ref()));
            Box::new(Checks::new(checks.clone(), floor))
        }
        choice => node.workshop.worker(choice)?,
    };
    let (events, mut happened) = mpsc::channel(256);
    let (send_orders, mut orders) = mpsc::channel(16);
    let gate = sockets.gate();
    let start = Start {
        sandbox: Arc::new(runs),
        assignment,
        resume,
        events,
        permissions: Arc::new(Asking { node: Arc::clone(node), job: Arc::clone(job) }),
        gate: &gate,
        ask: node.settings.ask,
        limits: Patience::until(until),
    };
    let play = async {
        let mut session = worker.start(start).await?;
        keep_session(job, &*session)?;
        let taken = match (resume, session.resumed()) {
            (None, _) => Taken::First,
            (Some(_), true) => Taken::Resumed,
            (Some(_), false) => Taken::Forgotten,
        };
        *lock(&job.orders) = Some(send_orders);
        let text = prompt::prompt(assignment, conflict, taken);
        let turn = match timeout_at(until + GRACE, session.prompt(&text, &mut orders)).await {
            Ok(turn) => turn?,
            Err(_) => Turn { stop: stops::TIMEOUT.to_owned(), ..Turn::default() },
        };
        *lock(&job.orders) = None;
        keep_session(job, &*session)?;
        Ok::<_, Failure>((turn, session.close().await))
    };
    let listen = async {
        while let Some(what) = happened.recv().await {
            job.outbox.push(what);
        }
        std::future::pending::<()>().await;
    };
    let played = tokio::select! {
        played = play => played,
        () = listen => Err(Failure::new("node", "nobody listens")),
    };
    // What was told last may still be on its way.
    while let Ok(what) = happened.try_recv() {
        job.outbox.push(what);
    }
    played
}

fn keep_session(job: &Job, session: &dyn Session) -> Result<(), Failure> {
    if let Some(id) = session.id()
        && job.dir.session()?.as_deref() != Some(id)
    {
        job.dir.set_session(id)?;
    }
    Ok(())
}

fn worked(
    choice: &WorkerChoice,
    turn: Turn,
    ended: &Ended,
    backend: &dyn Backend,
    session: Option<String>,
) -> Worked {
    let Turn { stop, said, usage: _, mut steps } = turn;
    fit(&mut steps);
    let used = SandboxUse {
        backend: Some(backend.kind()),
        cpu_ms: u64::try_from(ended.cpu.as_millis()).unwrap_or(u64::MAX),
        peak_memory_bytes: ended.peak_memory,
        wall_ms: 0,
        out_of_memory: ended.out_of_memory,
    };
    let result = WorkResult { summary: said, stop, session, steps, used, ..WorkResult::default() };
    // Nothing that checks leave behind is taken out.
    let prepared = !matches!(choice, WorkerChoice::Checks { .. });
    Worked { succeeded: result.stop == stops::END_TURN, prepared, result }
}
