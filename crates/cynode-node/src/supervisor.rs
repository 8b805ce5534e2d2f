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

/// Interval of heartbeats while the node has jobs.
const BUSY_HEARTBEAT_INTERVAL: Duration = Duration::from_secs(1);

/// Interval of heartbeats while the node is idle.
const IDLE_HEARTBEAT_INTERVAL: Duration = Duration::from_secs(5);

/// Timeout of one heartbeat.
const HEARTBEAT_TIMEOUT: Duration = Duration::from_secs(5);

/// Wait of one long-poll claim.
const CLAIM_WAIT_MS: u32 = 20_000;

/// Interval of the orphan cleanup.
const ORPHAN_CLEANUP_INTERVAL: Duration = Duration::from_secs(5);

/// Interval of the removal of environments that are not used any more.
const ENVIRONMENT_CLEANUP_INTERVAL: Duration = Duration::from_mins(1);

/// Interval of the check whether a new report would differ from the last one. The check is local.
const CHANGE_POLL_INTERVAL: Duration = Duration::from_secs(2);

/// Interval of regular node reports.
const REPORT_INTERVAL: Duration = Duration::from_mins(5);

/// Time that jobs have to end when the node stops.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(10);

/// Reason why the supervisor ended without a stop request.
#[derive(Debug, thiserror::Error)]
pub enum SuperviseError {
    /// The state directory cannot be read.
    #[error(transparent)]
    Store(#[from] NodeStoreError),
    /// Another process of the node has taken over.
    #[error(
        "another process of this node started later and has taken over its jobs, so this one ends: \
         two processes use the same key; end the one that is not wanted, and give a second machine a node of its own with `cynode-node join`"
    )]
    Superseded,
}

/// Inputs of a node report.
#[derive(Debug, PartialEq, Eq)]
struct ReportConditions {
    /// Directories of coding agents and their modification times.
    agents: Vec<(std::ffi::OsString, Option<std::time::SystemTime>)>,
    has_room: bool,
}

struct NodeSupervisor {
    node: Arc<NodeContext>,
    roster: JobRoster,
    stop: CancellationToken,
    /// Notified when the trash has an entry.
    trash: Notify,
}

/// Runs the node until it is told to stop. Jobs in progress stay on disk for the next start.
pub async fn supervise_node(
    node: Arc<NodeContext>,
    stop: CancellationToken,
) -> Result<(), SuperviseError> {
    // Sandboxes of an earlier process are ended.
    for tried in &node.backends {
        let swept = tried.backend.cleanup_orphans(&[]).await;
        tracing::info!(event = "node.orphans_removed", backend = ?tried.backend.backend_kind(), ?swept, "removed orphans of an earlier process");
    }
    node.layers.remove_partial_layers();
    let roster = JobRoster::new(node.settings.slots);
    for (kept, dir) in node.store.load_jobs()? {
        roster.add_waiting(NodeJob::resume_from(kept, dir));
    }
    let this = Arc::new(NodeSupervisor { node, roster, stop, trash: Notify::new() });
    this.trash.notify_one();
    let tasks = this.node.tasks.clone();
    // A complete result is sent without waiting for the orchestrator's confirmation of the job.
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
    /// Runs a job in its own task.
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

    /// Waits until another process of the node has taken over and stops everything then. Returns whether one has.
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

    /// Sends heartbeats and applies their answers.
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

    /// Cleans up jobs that were told to stop before they were started again.
    fn discard_stopped_jobs(&self) {
        for job in self.roster.take_unwanted_jobs() {
            self.handle_job_end(&job, JobDisposition::Over);
        }
    }

    /// Claims as many jobs as there is capacity for.
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
            let (wait_ms, applies_profiles) = (CLAIM_WAIT_MS, true);
            let body = ClaimAssignments { claim_id, max_jobs, wait_ms, applies_profiles };
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

    /// Persists a job before anything else happens to it.
    async fn persist_assignment(&self, assignment: JobAssignment) -> Option<Arc<NodeJob>> {
        let (id, fencing_token) = (assignment.job_id, assignment.fencing_token);
        if self.roster.has_claim(id, fencing_token) {
            return None;
        }
        self.end_older_claim(id).await;
        let kept = JobRecord { assignment, claimed: PersistentInstant::now() };
        let dir = self.node.store.job_dir(id);
        // The directory of an earlier claim of the same job is obsolete.
        if let Err(error) = self.node.store.move_to_trash(dir.as_path()) {
            tracing::warn!(event = "job.persist_failed", job.id = %id, %error, "an older directory is in the way");
        }
        if let Err(error) = self.node.store.add_job(&kept) {
            // The job runs nevertheless. If the disk is full it fails later, where that can be reported.
            tracing::error!(event = "job.persist_failed", job.id = %id, %error, "the job would not survive a restart");
        }
        tracing::info!(event = "job.claimed", job.id = %id, job.attempt = kept.assignment.attempt, trace_id = %kept.assignment.trace_id, "claimed");
        let job = NodeJob::new(kept, dir);
        self.roster.add_waiting(Arc::clone(&job));
        Some(job)
    }

    /// Ends an older claim of a job and waits until nothing of it is left.
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

    /// Waits until there is capacity for jobs and returns how many.
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
                    self.evict_kept_files();
                }
            }
            tokio::select! {
                () = fewer => {}
                _ = look.tick() => {}
            }
        }
    }

    /// Evicts the least recently used environment that no job uses, or mirror that no job needs, one at a time. An environment is set up
    /// again, a mirror is only a copy, and its project may be gone.
    /// Only the claim loop calls this and only it adds jobs, so no job that needs the mirror can arrive meanwhile.
    fn evict_kept_files(&self) {
        let store = &self.node.store;
        if !store.trash_entries().is_empty() {
            return;
        }
        if self.node.layers.remove_oldest_layer() {
            self.trash.notify_one();
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

    /// Waits for the backoff delay. Returns whether the node is to stop.
    async fn pause_or_stop(&self, backoff: &mut Backoff) -> bool {
        tokio::select! {
            () = self.stop.cancelled() => true,
            () = backoff.wait_next_delay() => false,
        }
    }

    /// Ends orphaned sandboxes, removes environments that are not used any more, and empties the trash.
    async fn run_cleanup_loop(&self) {
        let mut turn = interval(ORPHAN_CLEANUP_INTERVAL);
        turn.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut environments = interval(ENVIRONMENT_CLEANUP_INTERVAL);
        environments.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = self.stop.cancelled() => return,
                _ = environments.tick() => {
                    let settings = &self.node.settings;
                    let (bytes, age) = (settings.environments_max_bytes, settings.environments_max_age);
                    self.node.layers.collect_garbage(bytes, age);
                }
                _ = turn.tick() => {
                    // Other processes of this program may be probing sandboxes.
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

    /// Sends node reports: at start, at an interval, and as soon as something has changed, such as free disk space or installed
    /// agents.
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

    /// Collects the inputs of a report that are cheap to read.
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
        let mut report = report::build_node_report(
            &node.store,
            &node.settings,
            backends.collect(),
            agents,
            &warnings,
        );
        let has_overlays = node.backends.iter().any(|tried| tried.backend.supports_overlays());
        let answer = if has_overlays { "yes" } else { "no" };
        report.facts.insert("overlays".to_owned(), answer.to_owned());
        report
    }
}

fn new_claim_id() -> Uuid {
    uuid::Builder::from_random_bytes(random()).into_uuid()
}

impl JobRoster {
    /// Suspends all running jobs and returns their number.
    fn suspend_all_jobs(&self) -> usize {
        let jobs = self.started_jobs();
        for job in &jobs {
            job.request_halt(HaltReason::Suspended);
        }
        jobs.len()
    }
}
