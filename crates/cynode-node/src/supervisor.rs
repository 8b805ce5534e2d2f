//! Keeps a node going: says what it is at, takes jobs, starts and ends them, and clears up behind them.
//!
//! The heartbeat waits for nothing but the orchestrator. What it hears decides: a job that is to stop stops at once, and a job of
//! an earlier life of the node goes on only when the orchestrator still counts it as the node's.

mod roster;

use std::{sync::Arc, time::Duration};

use cynode_core::ids::JobId;
use cynode_wire::nodes::{Assignment, BackendReport, ClaimAssignments, NodeReport};
use rand::random;
use tokio::{
    sync::Notify,
    time::{Instant, MissedTickBehavior, interval, timeout, timeout_at},
};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use self::roster::Roster;
use crate::{
    client::{Backoff, until_answered},
    clock::Moment,
    job::{self, Fate, Halt, Job},
    node::Node,
    report,
    store::{Kept, StoreError},
};

/// Between heartbeats while there are jobs.
const BUSY: Duration = Duration::from_secs(1);

/// Between heartbeats while there are none.
const IDLE: Duration = Duration::from_secs(5);

/// Longest time of one heartbeat.
const BEAT_WITHIN: Duration = Duration::from_secs(5);

/// How long a claim waits for jobs.
const CLAIM_WAIT_MS: u32 = 20_000;

/// Between looks for sandboxes that belong to no job.
const SWEEP: Duration = Duration::from_secs(5);

/// Between reports of what the node can do.
const REPORT: Duration = Duration::from_mins(5);

/// How long jobs have to end when the node stops.
const STOP_WITHIN: Duration = Duration::from_secs(10);

struct Supervisor {
    node: Arc<Node>,
    roster: Roster,
    stop: CancellationToken,
    /// Something lies in the trash.
    trash: Notify,
}

/// Works until it is told to stop. Jobs that are under way then stay on disk, for the next start.
pub async fn supervise(node: Arc<Node>, stop: CancellationToken) -> Result<(), StoreError> {
    // Nothing of an earlier life goes on by itself.
    for tried in &node.backends {
        let swept = tried.backend.sweep(&[]).await;
        tracing::info!(event = "node.swept", backend = ?tried.backend.kind(), ?swept, "left over from before");
    }
    let roster = Roster::new(node.settings.slots);
    for (kept, dir) in node.store.jobs()? {
        roster.wait(Job::again(kept, dir));
    }
    let this = Arc::new(Supervisor { node, roster, stop, trash: Notify::new() });
    this.trash.notify_one();
    let tasks = this.node.tasks.clone();
    // Results that are ready need no leave to be sent.
    for job in this.roster.waiting() {
        if matches!(job.dir.result(), Ok(Some(_))) {
            this.start(&job);
        }
    }
    tracing::info!(
        event = "node.started",
        slots = this.node.settings.slots,
        jobs = this.roster.len(),
        "working"
    );
    tokio::join!(this.beat(), this.claim(), this.sweep(), this.report());
    this.roster.halt_all();
    tasks.close();
    if timeout(STOP_WITHIN, tasks.wait()).await.is_err() {
        tracing::warn!(event = "node.slow_stop", "jobs did not end in time");
    }
    tracing::info!(
        event = "node.stopped",
        jobs = this.roster.len(),
        "stopped; jobs go on at the next start"
    );
    Ok(())
}

impl Supervisor {
    /// Lets a job run, in a task of its own.
    fn start(self: &Arc<Self>, job: &Arc<Job>) {
        if !self.roster.start(job) {
            return;
        }
        let (this, job) = (Arc::clone(self), Arc::clone(job));
        self.node.tasks.spawn(async move {
            let fate = job::run(&this.node, &job).await;
            this.ended(&job, fate);
        });
    }

    fn ended(&self, job: &Arc<Job>, fate: Fate) {
        match fate {
            Fate::Over => {
                if let Err(error) = self.node.store.discard(job.dir.path()) {
                    tracing::warn!(event = "job.kept", job.id = %job.id(), %error, "its directory stays until the next start");
                }
                self.roster.remove(job);
                self.trash.notify_one();
            }
            Fate::Suspended => self.roster.wait(Job::again(job.kept.clone(), job.dir.clone())),
        }
    }

    /// Says what the node is at, and does what it hears.
    async fn beat(self: &Arc<Self>) {
        let mut heard = Instant::now();
        while !self.stop.is_cancelled() {
            let (body, shown) = self.roster.heartbeat();
            let began = Instant::now();
            let patience = BEAT_WITHIN.min(self.node.settings.lease / 4);
            let beat = timeout(patience, self.node.client.heartbeat(&body, patience)).await;
            match beat {
                Ok(Ok(answer)) => {
                    heard = began;
                    for job in self.roster.hear(&answer, &body.delivered, &shown) {
                        self.start(&job);
                    }
                    self.forget_stopped();
                }
                Ok(Err(error)) => {
                    tracing::warn!(
                        event = "heartbeat.failed",
                        error = format!("{:#}", anyhow::Error::from(error)),
                        "not heard"
                    );
                }
                Err(_) => tracing::warn!(
                    event = "heartbeat.failed",
                    error = "no answer in time",
                    "not heard"
                ),
            }
            if heard.elapsed() >= self.node.settings.lease && self.roster.halt_all() > 0 {
                tracing::error!(
                    event = "lease.lost",
                    "the orchestrator does not hear this node: its jobs are ended"
                );
            }
            let next = began + if self.roster.is_empty() { IDLE } else { BUSY };
            tokio::select! {
                () = self.stop.cancelled() => return,
                _ = timeout_at(next, self.roster.more()) => {}
            }
        }
    }

    /// Clears up behind jobs that were to stop before they were started again.
    fn forget_stopped(&self) {
        for job in self.roster.take_unwanted() {
            self.ended(&job, Fate::Over);
        }
    }

    /// Takes as many jobs as there is room for.
    async fn claim(self: &Arc<Self>) {
        let mut claim_id = match self.node.store.claim() {
            Ok(claim) => claim.unwrap_or_else(new_claim),
            Err(_) => new_claim(),
        };
        let mut backoff = Backoff::default();
        loop {
            let room = self.room();
            let most = tokio::select! {
                () = self.stop.cancelled() => return,
                most = room => most,
            };
            if let Err(error) = self.node.store.set_claim(claim_id) {
                tracing::warn!(event = "claim.unkept", %error, "no job is taken");
                if self.rest(&mut backoff).await {
                    return;
                }
                continue;
            }
            let body = ClaimAssignments { claim_id, most, wait_ms: CLAIM_WAIT_MS };
            let claimed = tokio::select! {
                () = self.stop.cancelled() => return,
                claimed = self.node.client.claim(&body) => claimed,
            };
            match claimed {
                Ok(claimed) => {
                    backoff = Backoff::default();
                    let mut jobs = Vec::new();
                    for assignment in claimed.jobs {
                        jobs.extend(self.keep(assignment).await);
                    }
                    claim_id = new_claim();
                    if let Err(error) = self.node.store.set_claim(claim_id) {
                        tracing::warn!(event = "claim.unkept", %error, "the claim may be asked again");
                    }
                    for job in jobs {
                        self.start(&job);
                    }
                }
                Err(error) => {
                    tracing::debug!(
                        event = "claim.failed",
                        error = format!("{:#}", anyhow::Error::from(error)),
                        "asked again"
                    );
                    if self.rest(&mut backoff).await {
                        return;
                    }
                }
            }
        }
    }

    /// Writes a job down before anything else happens to it.
    async fn keep(&self, assignment: Assignment) -> Option<Arc<Job>> {
        let (id, fencing_token) = (assignment.job_id, assignment.fencing_token);
        if self.roster.knows(id, fencing_token) {
            return None;
        }
        self.end_older(id).await;
        let kept = Kept { assignment, claimed: Moment::now() };
        let dir = self.node.store.job(id);
        // A directory of an earlier claim of the same job is of no use any more.
        if let Err(error) = self.node.store.discard(dir.path()) {
            tracing::warn!(event = "job.unkept", job.id = %id, %error, "an older directory is in the way");
        }
        if let Err(error) = self.node.store.add_job(&kept) {
            // It is done all the same, and fails for want of disk where that can be said.
            tracing::error!(event = "job.unkept", job.id = %id, %error, "it would not survive a restart");
        }
        tracing::info!(event = "job.claimed", job.id = %id, job.attempt = kept.assignment.attempt, trace_id = %kept.assignment.trace_id, "claimed");
        let job = Job::new(kept, dir);
        self.roster.wait(Arc::clone(&job));
        Some(job)
    }

    /// Ends an older claim of a job, and waits until nothing is left of it.
    async fn end_older(&self, id: JobId) {
        loop {
            let fewer = self.roster.fewer();
            let Some((job, started)) = self.roster.get(id) else { return };
            if !started {
                self.ended(&job, Fate::Over);
                continue;
            }
            job.halt(Halt::Unwanted("it was claimed anew".to_owned()));
            fewer.await;
        }
    }

    /// Waits until there is room for jobs; how many.
    async fn room(&self) -> u16 {
        let mut look = interval(IDLE);
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let fewer = self.roster.fewer();
            match self.roster.free() {
                0 => {}
                free if self.node.has_room() => return free,
                _ => {
                    tracing::warn!(event = "disk.low", "no job is taken: too little disk is free");
                    self.make_room();
                }
            }
            tokio::select! {
                () = fewer => {}
                _ = look.tick() => {}
            }
        }
    }

    /// Gives up the mirror that was used longest ago of those that no job needs, one at a time: it is only a copy, and its project may
    /// be gone. Only whoever asks for room takes jobs, so that none that needs it comes meanwhile.
    fn make_room(&self) {
        let store = &self.node.store;
        if !store.trash().is_empty() {
            return;
        }
        let Some(mirror) = store.oldest_mirror(&self.roster.projects()) else { return };
        match store.discard(&mirror) {
            Ok(()) => {
                tracing::info!(event = "mirror.given_up", path = %mirror.display(), "fetched again when it is needed");
                self.trash.notify_one();
            }
            Err(error) => tracing::warn!(event = "mirror.kept", %error, "tried again later"),
        }
    }

    /// Pauses; whether the node is to stop.
    async fn rest(&self, backoff: &mut Backoff) -> bool {
        tokio::select! {
            () = self.stop.cancelled() => true,
            () = backoff.pause() => false,
        }
    }

    /// Ends sandboxes that belong to no job, and empties the trash.
    async fn sweep(&self) {
        let mut turn = interval(SWEEP);
        turn.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = self.stop.cancelled() => return,
                _ = turn.tick() => {
                    // Others of this program may be trying sandboxes out.
                    let mut keep = self.roster.running();
                    keep.extend(["probe", "measure"].map(str::to_owned));
                    for tried in &self.node.backends {
                        tried.backend.sweep(&keep).await;
                    }
                }
                () = self.trash.notified() => {}
            }
            for path in self.node.store.trash() {
                if let Err(error) = self.node.host.remove(path.as_os_str()).await {
                    tracing::warn!(event = "trash.kept", %error, "tried again later");
                }
            }
        }
    }

    /// Says what the node can do, again and again: disks fill, agents are installed.
    async fn report(&self) {
        let mut turn = interval(REPORT);
        turn.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = self.stop.cancelled() => return,
                _ = turn.tick() => {}
            }
            let report = self.measured().await;
            let told = until_answered(|| self.node.client.report(&report));
            tokio::select! {
                () = self.stop.cancelled() => return,
                told = told => if let Err(error) = told {
                    tracing::error!(event = "report.refused", %error, "the orchestrator did not take the report");
                }
            }
        }
    }

    async fn measured(&self) -> NodeReport {
        let node = &self.node;
        let backends = node.backends.iter().map(|tried| BackendReport {
            backend: tried.backend.kind(),
            version: tried.version.clone(),
        });
        let agents = match node.backends.first() {
            Some(tried) => node.workshop.found(&tried.backend).await,
            None => Vec::new(),
        };
        report::measure(&node.store, node.settings.slots, backends.collect(), agents)
    }
}

fn new_claim() -> Uuid {
    uuid::Builder::from_random_bytes(random()).into_uuid()
}

impl Roster {
    /// Suspends every job that runs; how many.
    fn halt_all(&self) -> usize {
        let jobs = self.started();
        for job in &jobs {
            job.halt(Halt::Suspended);
        }
        jobs.len()
    }
}
