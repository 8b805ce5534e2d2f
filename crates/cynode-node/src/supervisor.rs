//! Supervisor of a node: sends heartbeats, claims jobs, starts and stops them, and cleans up orphans.
//!
//! The heartbeat waits for nothing but the orchestrator. Its answer decides: a job that is to stop stops at once, and a
//! job of an earlier process resumes only if the orchestrator still assigns it to the node.

mod roster;

use std::{sync::Arc, time::Duration};

use cynode_core::{
    ids::JobId,
    nodes::{BackendReport, NodeReport},
};
use cynode_net::backoff::Backoff;
use cynode_wire::nodes::{ClaimAssignments, JobAssignment};
use rand::random;
use tokio::{
    sync::Notify,
    time::{Instant, MissedTickBehavior, interval, timeout, timeout_at},
};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use self::roster::JobRoster;
use crate::{
    client::{CALL_BACKOFF, call_with_retry},
    clock::PersistentInstant,
    job::{self, HaltReason, JobDisposition, NodeJob},
    node::NodeContext,
    report,
    store::{JobRecord, NodeStoreError},
};

/// Between heartbeats while there are jobs.
const BUSY_HEARTBEAT_INTERVAL: Duration = Duration::from_secs(1);

/// Between heartbeats while there are none.
const IDLE_HEARTBEAT_INTERVAL: Duration = Duration::from_secs(5);

/// Longest time of one heartbeat.
const HEARTBEAT_TIMEOUT: Duration = Duration::from_secs(5);

/// How long a claim waits for jobs.
const CLAIM_WAIT_MS: u32 = 20_000;

/// Between looks for sandboxes that belong to no job.
const ORPHAN_CLEANUP_INTERVAL: Duration = Duration::from_secs(5);

/// Between looks whether a report would say something else than the last one. Nobody is asked for it.
const CHANGE_POLL_INTERVAL: Duration = Duration::from_secs(2);

/// Between reports of what the node can do.
const REPORT_INTERVAL: Duration = Duration::from_mins(5);

/// How long jobs have to end when the node stops.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(10);

/// Why a node ended without being told to.
#[derive(Debug, thiserror::Error)]
pub enum SuperviseError {
    /// Its files cannot be read.
    #[error(transparent)]
    Store(#[from] NodeStoreError),
    /// Another process of the node has taken over.
    #[error(
        "another process of this node started later and has taken over its jobs, so this one ends: \
         two processes use the same key; end the one that is not wanted, and give a second machine a node of its own with `cynode-node join`"
    )]
    Superseded,
}

/// What a report depends on.
#[derive(Debug, PartialEq, Eq)]
struct ReportConditions {
    /// The folders of coding agents, and when each was changed.
    agents: Vec<(std::ffi::OsString, Option<std::time::SystemTime>)>,
    has_room: bool,
}

struct NodeSupervisor {
    node: Arc<NodeContext>,
    roster: JobRoster,
    stop: CancellationToken,
    /// Something lies in the trash.
    trash: Notify,
}

/// Works until it is told to stop. Jobs that are under way then stay on disk, for the next start.
pub async fn supervise_node(
    node: Arc<NodeContext>,
    stop: CancellationToken,
) -> Result<(), SuperviseError> {
    // Nothing of an earlier life goes on by itself.
    for tried in &node.backends {
        let swept = tried.backend.cleanup_orphans(&[]).await;
        tracing::info!(event = "node.orphans_removed", backend = ?tried.backend.backend_kind(), ?swept, "removed orphans of an earlier process");
    }
    let roster = JobRoster::new(node.settings.slots);
    for (kept, dir) in node.store.load_jobs()? {
        roster.add_waiting(NodeJob::resume_from(kept, dir));
    }
    let this = Arc::new(NodeSupervisor { node, roster, stop, trash: Notify::new() });
    this.trash.notify_one();
    let tasks = this.node.tasks.clone();
    // Results that are ready need no leave to be sent.
    for job in this.roster.waiting_jobs() {
        if matches!(job.dir.load_result(), Ok(Some(_))) {
            this.start_job(&job);
        }
    }
    tracing::info!(
        event = "node.started",
        slots = this.node.settings.slots,
        jobs = this.roster.len(),
        "working"
    );
    let (.., superseded) = tokio::join!(
        this.run_heartbeat_loop(),
        this.run_claim_loop(),
        this.run_cleanup_loop(),
        this.run_report_loop(),
        this.stop_when_superseded()
    );
    this.roster.suspend_all_jobs();
    tasks.close();
    if timeout(SHUTDOWN_TIMEOUT, tasks.wait()).await.is_err() {
        tracing::warn!(event = "node.shutdown_timed_out", "jobs did not end in time");
    }
    tracing::info!(
        event = "node.stopped",
        jobs = this.roster.len(),
        "stopped; jobs go on at the next start"
    );
    if superseded { Err(SuperviseError::Superseded) } else { Ok(()) }
}

impl NodeSupervisor {
    /// Lets a job run, in a task of its own.
    fn start_job(self: &Arc<Self>, job: &Arc<NodeJob>) {
        if !self.roster.mark_started(job) {
            return;
        }
        let (this, job) = (Arc::clone(self), Arc::clone(job));
        self.node.tasks.spawn(async move {
            let fate = job::run_job(&this.node, &job).await;
            this.handle_job_end(&job, fate);
        });
    }

    fn handle_job_end(&self, job: &Arc<NodeJob>, fate: JobDisposition) {
        match fate {
            JobDisposition::Over => {
                if let Err(error) = self.node.store.move_to_trash(job.dir.as_path()) {
                    tracing::warn!(event = "job.cleanup_failed", job.id = %job.job_id(), %error, "its directory stays until the next start");
                }
                self.roster.remove_job(job);
                self.trash.notify_one();
            }
            JobDisposition::Suspended => {
                self.roster.add_waiting(NodeJob::resume_from(job.kept.clone(), job.dir.clone()));
            }
        }
    }

    /// Stops everything when another process of the node has taken over; whether one has.
    async fn stop_when_superseded(&self) -> bool {
        tokio::select! {
            () = self.stop.cancelled() => false,
            () = self.node.client.wait_superseded() => {
                tracing::error!(event = "node.superseded", "{}", SuperviseError::Superseded);
                self.stop.cancel();
                true
            }
        }
    }

    /// Says what the node is at, and does what it hears.
    async fn run_heartbeat_loop(self: &Arc<Self>) {
        let mut heard = Instant::now();
        while !self.stop.is_cancelled() {
            let (body, shown) = self.roster.build_heartbeat();
            let began = Instant::now();
            let patience = HEARTBEAT_TIMEOUT.min(self.node.settings.lease / 4);
            let beat = timeout(patience, self.node.client.send_heartbeat(&body, patience)).await;
            match beat {
                Ok(Ok(answer)) => {
                    heard = began;
                    for job in self.roster.apply_heartbeat_answer(&answer, &body.delivered, &shown)
                    {
                        self.start_job(&job);
                    }
                    self.discard_stopped_jobs();
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
            if heard.elapsed() >= self.node.settings.lease && self.roster.suspend_all_jobs() > 0 {
                tracing::error!(
                    event = "lease.lost",
                    "the orchestrator does not hear this node: its jobs are ended"
                );
            }
            let next = began
                + if self.roster.is_empty() {
                    IDLE_HEARTBEAT_INTERVAL
                } else {
                    BUSY_HEARTBEAT_INTERVAL
                };
            tokio::select! {
                () = self.stop.cancelled() => return,
                _ = timeout_at(next, self.roster.watch_additions()) => {}
            }
        }
    }

    /// Clears up behind jobs that were to stop before they were started again.
    fn discard_stopped_jobs(&self) {
        for job in self.roster.take_unwanted_jobs() {
            self.handle_job_end(&job, JobDisposition::Over);
        }
    }

    /// Takes as many jobs as there is room for.
    async fn run_claim_loop(self: &Arc<Self>) {
        let mut claim_id = match self.node.store.load_claim() {
            Ok(claim) => claim.unwrap_or_else(new_claim_id),
            Err(_) => new_claim_id(),
        };
        let mut backoff = CALL_BACKOFF;
        loop {
            let room = self.wait_for_capacity();
            let max_jobs = tokio::select! {
                () = self.stop.cancelled() => return,
                max_jobs = room => max_jobs,
            };
            if let Err(error) = self.node.store.save_claim(claim_id) {
                tracing::warn!(event = "claim.persist_failed", %error, "no job is claimed");
                if self.pause_or_stop(&mut backoff).await {
                    return;
                }
                continue;
            }
            let body = ClaimAssignments { claim_id, max_jobs, wait_ms: CLAIM_WAIT_MS };
            let claimed = tokio::select! {
                () = self.stop.cancelled() => return,
                claimed = self.node.client.claim_jobs(&body) => claimed,
            };
            match claimed {
                Ok(claimed) => {
                    backoff.reset_failures();
                    let mut jobs = Vec::new();
                    for assignment in claimed.jobs {
                        jobs.extend(self.persist_assignment(assignment).await);
                    }
                    claim_id = new_claim_id();
                    if let Err(error) = self.node.store.save_claim(claim_id) {
                        tracing::warn!(event = "claim.persist_failed", %error, "the claim may be repeated");
                    }
                    for job in jobs {
                        self.start_job(&job);
                    }
                }
                Err(error) => {
                    tracing::debug!(
                        event = "claim.failed",
                        error = format!("{:#}", anyhow::Error::from(error)),
                        "the claim is retried"
                    );
                    if self.pause_or_stop(&mut backoff).await {
                        return;
                    }
                }
            }
        }
    }

    /// Writes a job down before anything else happens to it.
    async fn persist_assignment(&self, assignment: JobAssignment) -> Option<Arc<NodeJob>> {
        let (id, fencing_token) = (assignment.job_id, assignment.fencing_token);
        if self.roster.has_claim(id, fencing_token) {
            return None;
        }
        self.end_older_claim(id).await;
        let kept = JobRecord { assignment, claimed: PersistentInstant::now() };
        let dir = self.node.store.job_dir(id);
        // A directory of an earlier claim of the same job is of no use any more.
        if let Err(error) = self.node.store.move_to_trash(dir.as_path()) {
            tracing::warn!(event = "job.persist_failed", job.id = %id, %error, "an older directory is in the way");
        }
        if let Err(error) = self.node.store.add_job(&kept) {
            // It is done all the same, and fails for want of disk where that can be said.
            tracing::error!(event = "job.persist_failed", job.id = %id, %error, "the job would not survive a restart");
        }
        tracing::info!(event = "job.claimed", job.id = %id, job.attempt = kept.assignment.attempt, trace_id = %kept.assignment.trace_id, "claimed");
        let job = NodeJob::new(kept, dir);
        self.roster.add_waiting(Arc::clone(&job));
        Some(job)
    }

    /// Ends an older claim of a job, and waits until nothing is left of it.
    async fn end_older_claim(&self, id: JobId) {
        loop {
            let fewer = self.roster.watch_removals();
            let Some((job, started)) = self.roster.get(id) else { return };
            if !started {
                self.handle_job_end(&job, JobDisposition::Over);
                continue;
            }
            job.request_halt(HaltReason::Unwanted("it was claimed anew".to_owned()));
            fewer.await;
        }
    }

    /// Waits until there is room for jobs; how many.
    async fn wait_for_capacity(&self) -> u16 {
        let mut look = interval(IDLE_HEARTBEAT_INTERVAL);
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let fewer = self.roster.watch_removals();
            match self.roster.free_slots() {
                0 => {}
                free if self.node.has_disk_space() => return free,
                _ => {
                    tracing::warn!(event = "disk.low", "no job is taken: too little disk is free");
                    self.evict_oldest_mirror();
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
    fn evict_oldest_mirror(&self) {
        let store = &self.node.store;
        if !store.trash_entries().is_empty() {
            return;
        }
        let Some(mirror) = store.oldest_mirror(&self.roster.active_projects()) else { return };
        match store.move_to_trash(&mirror) {
            Ok(()) => {
                tracing::info!(event = "mirror.evicted", path = %mirror.display(), "fetched again when it is needed");
                self.trash.notify_one();
            }
            Err(error) => {
                tracing::warn!(event = "mirror.evict_failed", %error, "the mirror is evicted later");
            }
        }
    }

    /// Pauses; whether the node is to stop.
    async fn pause_or_stop(&self, backoff: &mut Backoff) -> bool {
        tokio::select! {
            () = self.stop.cancelled() => true,
            () = backoff.wait_next_delay() => false,
        }
    }

    /// Ends sandboxes that belong to no job, and empties the trash.
    async fn run_cleanup_loop(&self) {
        let mut turn = interval(ORPHAN_CLEANUP_INTERVAL);
        turn.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = self.stop.cancelled() => return,
                _ = turn.tick() => {
                    // Others of this program may be trying sandboxes out.
                    let mut keep = self.roster.running_job_ids();
                    keep.extend(["probe", "measure"].map(str::to_owned));
                    for tried in &self.node.backends {
                        tried.backend.cleanup_orphans(&keep).await;
                    }
                }
                () = self.trash.notified() => {}
            }
            for path in self.node.store.trash_entries() {
                if let Err(error) = self.node.host.remove_tree(path.as_os_str()).await {
                    tracing::warn!(event = "trash.delete_failed", %error, "the trash is emptied later");
                }
            }
        }
    }

    /// Says what the node can do: at its start, from time to time, and as soon as something has changed: disks fill, agents are
    /// installed.
    async fn run_report_loop(&self) {
        let mut turn = interval(CHANGE_POLL_INTERVAL);
        turn.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut told: Option<(Instant, ReportConditions)> = None;
        loop {
            tokio::select! {
                () = self.stop.cancelled() => return,
                _ = turn.tick() => {}
            }
            let conditions = self.report_conditions();
            if told
                .as_ref()
                .is_some_and(|(at, seen)| at.elapsed() < REPORT_INTERVAL && *seen == conditions)
            {
                continue;
            }
            told = Some((Instant::now(), conditions));
            let report = self.build_report().await;
            let told = call_with_retry(|| self.node.client.send_report(&report));
            tokio::select! {
                () = self.stop.cancelled() => return,
                told = told => if let Err(error) = told {
                    tracing::error!(event = "report.refused", %error, "the orchestrator did not take the report");
                }
            }
        }
    }

    /// What a report depends on and can be seen without much work.
    fn report_conditions(&self) -> ReportConditions {
        let entries =
            std::fs::read_dir(self.node.store.agents_dir()).into_iter().flatten().flatten();
        let mut agents: Vec<_> = entries
            .map(|entry| {
                (entry.file_name(), entry.metadata().and_then(|meta| meta.modified()).ok())
            })
            .collect();
        agents.sort();
        ReportConditions { agents, has_room: self.node.has_disk_space() }
    }

    async fn build_report(&self) -> NodeReport {
        let node = &self.node;
        let backends = node.backends.iter().map(|tried| BackendReport {
            backend: tried.backend.backend_kind(),
            version: tried.version.clone(),
        });
        let agents = match node.backends.first() {
            Some(tried) => node.workshop.detect_agents(&tried.backend).await,
            None => Vec::new(),
        };
        let mut warnings = node.warnings.clone();
        if !node.has_disk_space() {
            let floor = node.settings.min_free_disk_bytes >> 20;
            let place = node.store.root_dir().display();
            warnings.push(format!(
                "no job is taken: less than {floor} MiB are free in {place}; make room there, or lower min_free_disk_mib in node.toml"
            ));
        }
        report::build_node_report(
            &node.store,
            node.settings.slots,
            backends.collect(),
            agents,
            &warnings,
        )
    }
}

fn new_claim_id() -> Uuid {
    uuid::Builder::from_random_bytes(random()).into_uuid()
}

impl JobRoster {
    /// Suspends every job that runs; how many.
    fn suspend_all_jobs(&self) -> usize {
        let jobs = self.started_jobs();
        for job in &jobs {
            job.request_halt(HaltReason::Suspended);
        }
        jobs.len()
    }
}
