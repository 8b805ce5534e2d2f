//! One job, from its claim to the acknowledged result.
//!
//! Each step that must not be done twice leaves a file behind before the next one begins: the session once the agent has begun,
//! `turn.json` once it has ended, `result.json` once everything is put together. Killed at any moment, the node goes on behind
//! the last of them.

mod aside;
mod asking;
mod finish;
mod fit;
mod merge;
mod pins;
mod runs;
mod work;

use std::{
    pin::pin,
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use cynode_core::{
    ids::JobId,
    sync::lock,
    workflow::instructions::{InstructionKind, Steering},
};
use cynode_wire::{
    jobs::JobOutcome,
    nodes::{Assignment, Happened, HeldJob, JobPhase, NodeResult, WorkResult},
};
use tokio::{sync::mpsc, time::Instant};
use tokio_util::sync::CancellationToken;

pub(crate) use runs::JobRuns;

use crate::{
    client::until_answered,
    node::Node,
    outbox::{Outbox, Unwanted},
    store::{JobDir, Kept},
    workers::Order,
};

/// How long the last events may keep the result waiting.
const LAST_EVENTS: Duration = Duration::from_secs(30);

/// How long the last events may keep the node from stopping.
const LAST_WORDS: Duration = Duration::from_millis(1500);

/// A job that the node has.
pub(crate) struct Job {
    pub(crate) kept: Kept,
    pub(crate) dir: JobDir,
    outbox: Arc<Outbox>,
    phase: Mutex<JobPhase>,
    asking: AtomicU32,
    halt: OnceLock<Halt>,
    halted: CancellationToken,
    aborted: CancellationToken,
    orders: Mutex<Option<mpsc::Sender<Order>>>,
}

/// Why a job is ended from outside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Halt {
    /// Nothing more is wanted of it.
    Unwanted(String),
    /// It may be taken up again.
    Suspended,
}

/// What is left of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// Nothing: its directory can go.
    Over,
    /// It may be taken up again.
    Suspended,
}

impl Job {
    /// A job that was just claimed.
    pub(crate) fn new(kept: Kept, dir: JobDir) -> Arc<Self> {
        let outbox = Outbox::new(kept.claimed.clone(), dir.events());
        Self::make(kept, dir, outbox)
    }

    /// A job that was begun before.
    pub(crate) fn again(kept: Kept, dir: JobDir) -> Arc<Self> {
        let outbox = Outbox::again(kept.claimed.clone(), dir.events());
        Self::make(kept, dir, outbox)
    }

    fn make(kept: Kept, dir: JobDir, outbox: Outbox) -> Arc<Self> {
        Arc::new(Self {
            kept,
            dir,
            outbox: Arc::new(outbox),
            phase: Mutex::new(JobPhase::Preparing),
            asking: AtomicU32::new(0),
            halt: OnceLock::new(),
            halted: CancellationToken::new(),
            aborted: CancellationToken::new(),
            orders: Mutex::new(None),
        })
    }

    pub(crate) const fn assignment(&self) -> &Assignment {
        &self.kept.assignment
    }

    pub(crate) const fn id(&self) -> JobId {
        self.kept.assignment.job_id
    }

    pub(crate) const fn fencing_token(&self) -> i64 {
        self.kept.assignment.fencing_token
    }

    /// What the heartbeat says of it.
    pub(crate) fn held(&self) -> HeldJob {
        let phase = match *lock(&self.phase) {
            JobPhase::Working if self.asking.load(Ordering::Relaxed) > 0 => JobPhase::Asking,
            phase => phase,
        };
        HeldJob { job_id: self.id(), fencing_token: self.fencing_token(), phase }
    }

    /// Ends it. The first reason counts.
    pub(crate) fn halt(&self, halt: Halt) {
        if self.halt.set(halt).is_ok() {
            self.halted.cancel();
        }
    }

    /// Passes an instruction on; whether it was taken.
    pub(crate) fn instruct(&self, kind: InstructionKind, text: &str) -> bool {
        let order = match kind.steering() {
            Steering::Stop => {
                self.aborted.cancel();
                return true;
            }
            Steering::Pause => Order::Pause,
            // Told something, an agent goes on by itself.
            Steering::Continue if !text.is_empty() => Order::Tell(text.to_owned()),
            Steering::Continue => Order::Continue,
            Steering::Replan => Order::Tell(text.to_owned()),
        };
        lock(&self.orders).as_ref().is_some_and(|orders| orders.try_send(order).is_ok())
    }

    fn enter(&self, phase: JobPhase) {
        *lock(&self.phase) = phase;
        self.outbox.push(Happened::Phase { phase });
    }

    fn note(&self, text: impl Into<String>) {
        self.outbox.push(Happened::Note { text: text.into() });
    }

    /// When the result is due.
    fn due(&self) -> Instant {
        let all = Duration::from_secs(self.kept.assignment.seconds_left.into());
        Instant::now() + all.saturating_sub(self.kept.claimed.elapsed())
    }
}

/// Does a job, or goes on with it.
pub(crate) async fn run(node: &Arc<Node>, job: &Arc<Job>) -> Fate {
    let mut sending = pin!(job.outbox.send(&node.client, job.id(), job.fencing_token()));
    let fate = {
        let work = Box::pin(async {
            let result = result(node, job).await;
            deliver(node, job, &result).await;
        });
        tokio::select! {
            () = job.halted.cancelled() => None,
            Unwanted = &mut sending => {
                job.halt(Halt::Unwanted("its events are not wanted".to_owned()));
                None
            }
            () = work => Some(Fate::Over),
        }
    };
    // Dropping the work has killed what ran; this also waits for it, and finds what nobody held any more.
    node.end_sandboxes(&job.id().to_string()).await;
    if let Some(fate) = fate {
        return fate;
    }
    match job.halt.get() {
        Some(Halt::Unwanted(reason)) => {
            tracing::info!(event = "job.stopped", job.id = %job.id(), reason, "nothing more is wanted of it");
            Fate::Over
        }
        Some(Halt::Suspended) | None => {
            job.note("the node was interrupted; it goes on with this job when it is back");
            tokio::select! {
                Unwanted = &mut sending => {}
                () = job.outbox.flush(LAST_WORDS) => {}
            }
            Fate::Suspended
        }
    }
}

/// The result: the one that is there, or the one that comes of the work.
async fn result(node: &Arc<Node>, job: &Arc<Job>) -> NodeResult {
    match job.dir.result() {
        Ok(Some(result)) => {
            *lock(&job.phase) = JobPhase::Finishing;
            return result;
        }
        Ok(None) => {}
        Err(error) => complain(job, &error),
    }
    let worked = match job.dir.worked() {
        Ok(Some(worked)) => worked,
        Ok(None) | Err(_) => {
            let worked = work::work(node, job).await;
            if let Err(error) = job.dir.set_worked(&worked) {
                complain(job, &error);
            }
            worked
        }
    };
    let result = finish::finish(node, job, worked).await;
    if let Err(error) = job.dir.set_result(&result) {
        // It is still in memory, and sent from there.
        complain(job, &error);
    }
    result
}

/// An error with all its causes.
fn chain(error: impl Into<anyhow::Error>) -> String {
    format!("{:#}", error.into())
}

fn complain(job: &Job, error: &crate::store::StoreError) {
    let error = format!("{:#}", anyhow::anyhow!("{error}"));
    tracing::warn!(event = "job.unkept", job.id = %job.id(), error, "a step was not written down");
}

/// Sends the result until it is acknowledged, or not wanted.
async fn deliver(node: &Node, job: &Job, result: &NodeResult) {
    job.outbox.flush(LAST_EVENTS).await;
    let sent = until_answered(|| node.client.result(job.id(), result)).await;
    let Err(error) = sent else {
        tracing::info!(event = "job.done", job.id = %job.id(), outcome = ?result.outcome, stop = %result.result.stop, "acknowledged");
        return;
    };
    if error.is_gone() {
        tracing::info!(event = "job.unwanted", job.id = %job.id(), %error, "its result is not wanted");
        return;
    }
    // The orchestrator does not take it as it is. That it failed can still be said.
    tracing::error!(event = "job.refused", job.id = %job.id(), %error, "its result was refused");
    let result = NodeResult {
        fencing_token: job.fencing_token(),
        outcome: JobOutcome::Failed,
        result: WorkResult {
            summary: format!("the orchestrator did not take the result: {error}"),
            stop: "refused".to_owned(),
            ..WorkResult::default()
        },
    };
    if let Err(error) = until_answered(|| node.client.result(job.id(), &result)).await {
        tracing::error!(event = "job.given_up", job.id = %job.id(), %error, "nothing can be said about it");
    }
}
