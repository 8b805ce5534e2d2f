//! Roster of the node's jobs and their states.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::{Arc, Mutex},
};

use cynode_core::{
    ids::{JobId, ProjectId},
    sync::lock_unpoisoned,
};
use cynode_wire::nodes::{HeartbeatAnswer, JobInstruction, NodeHeartbeat};
use tokio::sync::{Notify, futures::Notified};
use uuid::Uuid;

use crate::job::{HaltReason, NodeJob};

/// Number of finished jobs that are remembered, in case a claim returns them again.
const MAX_FINISHED_JOBS: usize = 1000;

/// Number of delivered instructions that are remembered for deduplication.
const MAX_SEEN_INSTRUCTIONS: usize = 1000;

pub(super) struct JobRoster {
    slots: u16,
    inner: Mutex<RosterState>,
    /// Notified when a job was added.
    more: Notify,
    /// Notified when a job was removed, or when draining has ended.
    fewer: Notify,
}

#[derive(Default)]
struct RosterState {
    jobs: BTreeMap<JobId, RosterEntry>,
    over: VecDeque<(JobId, i64)>,
    unwanted: Vec<Arc<NodeJob>>,
    /// Delivered instructions that are not acknowledged to the orchestrator yet.
    delivered: BTreeSet<Uuid>,
    heard: VecDeque<Uuid>,
    draining: bool,
}

struct RosterEntry {
    job: Arc<NodeJob>,
    started: bool,
}

impl JobRoster {
    pub(super) fn new(slots: u16) -> Self {
        Self { slots, inner: Mutex::default(), more: Notify::new(), fewer: Notify::new() }
    }

    pub(super) fn len(&self) -> usize {
        lock_unpoisoned(&self.inner).jobs.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        lock_unpoisoned(&self.inner).jobs.is_empty()
    }

    /// Adds a job that is not started.
    pub(super) fn add_waiting(&self, job: Arc<NodeJob>) {
        lock_unpoisoned(&self.inner).jobs.insert(job.job_id(), RosterEntry { job, started: false });
        self.more.notify_one();
    }

    /// Marks a job as started. Returns whether it was not started before.
    pub(super) fn mark_started(&self, job: &Arc<NodeJob>) -> bool {
        let mut inner = lock_unpoisoned(&self.inner);
        let entry = inner.jobs.get_mut(&job.job_id()).filter(|entry| Arc::ptr_eq(&entry.job, job));
        entry.is_some_and(|entry| !std::mem::replace(&mut entry.started, true))
    }

    pub(super) fn remove_job(&self, job: &Arc<NodeJob>) {
        let mut inner = lock_unpoisoned(&self.inner);
        if inner.jobs.get(&job.job_id()).is_some_and(|entry| Arc::ptr_eq(&entry.job, job)) {
            inner.jobs.remove(&job.job_id());
        }
        if inner.over.len() == MAX_FINISHED_JOBS {
            inner.over.pop_front();
        }
        inner.over.push_back((job.job_id(), job.fencing_token()));
        self.fewer.notify_waiters();
    }

    /// Returns whether the node has, or had, this claim of a job.
    pub(super) fn has_claim(&self, id: JobId, fencing_token: i64) -> bool {
        let inner = lock_unpoisoned(&self.inner);
        let has = inner.jobs.get(&id).map(|entry| entry.job.fencing_token());
        has == Some(fencing_token) || inner.over.contains(&(id, fencing_token))
    }

    /// Returns a job and whether it was started.
    pub(super) fn get(&self, id: JobId) -> Option<(Arc<NodeJob>, bool)> {
        let inner = lock_unpoisoned(&self.inner);
        inner.jobs.get(&id).map(|entry| (Arc::clone(&entry.job), entry.started))
    }

    pub(super) fn waiting_jobs(&self) -> Vec<Arc<NodeJob>> {
        self.jobs_in_state(false)
    }

    pub(super) fn started_jobs(&self) -> Vec<Arc<NodeJob>> {
        self.jobs_in_state(true)
    }

    fn jobs_in_state(&self, started: bool) -> Vec<Arc<NodeJob>> {
        let inner = lock_unpoisoned(&self.inner);
        let jobs = inner.jobs.values().filter(|entry| entry.started == started);
        jobs.map(|entry| Arc::clone(&entry.job)).collect()
    }

    /// Returns the ids of jobs that may have sandboxes.
    pub(super) fn running_job_ids(&self) -> Vec<String> {
        self.started_jobs().iter().map(|job| job.job_id().to_string()).collect()
    }

    /// Returns the projects of all jobs.
    pub(super) fn active_projects(&self) -> BTreeSet<ProjectId> {
        let inner = lock_unpoisoned(&self.inner);
        inner.jobs.values().map(|entry| entry.job.assignment().project_id).collect()
    }

    /// Returns the number of free job slots.
    pub(super) fn free_slots(&self) -> u16 {
        let inner = lock_unpoisoned(&self.inner);
        let held = u16::try_from(inner.jobs.len()).unwrap_or(u16::MAX);
        if inner.draining { 0 } else { self.slots.saturating_sub(held).min(100) }
    }

    /// Returns a future that completes when a job was added.
    pub(super) fn watch_additions(&self) -> Notified<'_> {
        self.more.notified()
    }

    /// Returns a future that completes when there may be more capacity.
    pub(super) fn watch_removals(&self) -> Notified<'_> {
        self.fewer.notified()
    }

    /// Builds a heartbeat. Also returns the jobs that were not started at that time.
    pub(super) fn build_heartbeat(&self) -> (NodeHeartbeat, Vec<Arc<NodeJob>>) {
        let inner = lock_unpoisoned(&self.inner);
        let jobs = inner.jobs.values().map(|entry| entry.job.to_held_job()).collect();
        let waiting = inner.jobs.values().filter(|entry| !entry.started);
        let waiting = waiting.map(|entry| Arc::clone(&entry.job)).collect();
        (NodeHeartbeat { jobs, delivered: inner.delivered.iter().copied().collect() }, waiting)
    }

    /// Applies the answer of a heartbeat. Returns the jobs that may continue.
    pub(super) fn apply_heartbeat_answer(
        &self,
        answer: &HeartbeatAnswer,
        delivered: &[Uuid],
        shown: &[Arc<NodeJob>],
    ) -> Vec<Arc<NodeJob>> {
        let mut inner = lock_unpoisoned(&self.inner);
        for known in delivered {
            inner.delivered.remove(known);
        }
        for stop in &answer.stop {
            let entry = inner.jobs.get(&stop.job_id);
            let Some(entry) = entry.filter(|e| e.job.fencing_token() == stop.fencing_token) else {
                continue;
            };
            let job = Arc::clone(&entry.job);
            if entry.started {
                job.request_halt(HaltReason::Unwanted(stop.reason.clone()));
            } else {
                inner.unwanted.push(job);
            }
        }
        for instruction in &answer.instructions {
            inner.deliver_instruction(instruction);
        }
        if std::mem::replace(&mut inner.draining, answer.draining) && !answer.draining {
            self.fewer.notify_waiters();
        }
        let stopped = |job: &Arc<NodeJob>| {
            let is = |stop: &cynode_wire::nodes::StopJob| stop.job_id == job.job_id();
            answer.stop.iter().any(is)
        };
        shown.iter().filter(|job| !stopped(job)).cloned().collect()
    }

    /// Takes the jobs that were told to stop before they were started.
    pub(super) fn take_unwanted_jobs(&self) -> Vec<Arc<NodeJob>> {
        std::mem::take(&mut lock_unpoisoned(&self.inner).unwanted)
    }
}

impl RosterState {
    /// Delivers an instruction once. An instruction that cannot be delivered yet is not acknowledged, so the orchestrator sends it
    /// again.
    fn deliver_instruction(&mut self, instruction: &JobInstruction) {
        let id = instruction.instruction_id;
        if self.heard.contains(&id) {
            self.delivered.insert(id);
            return;
        }
        let Some(entry) = self.jobs.get(&instruction.job_id) else { return };
        if !entry.job.deliver_instruction(instruction.kind, &instruction.text) {
            return;
        }
        if self.heard.len() == MAX_SEEN_INSTRUCTIONS {
            self.heard.pop_front();
        }
        self.heard.push_back(id);
        self.delivered.insert(id);
    }
}
