//! Which jobs the node has, and how they stand.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::{Arc, Mutex},
};

use cynode_core::{
    ids::{JobId, ProjectId},
    sync::lock,
};
use cynode_wire::nodes::{Heartbeat, HeartbeatAnswer, JobInstruction};
use tokio::sync::{Notify, futures::Notified};
use uuid::Uuid;

use crate::job::{Halt, Job};

/// How many jobs that are over are remembered, in case a claim gives them again.
const REMEMBERED: usize = 1000;

/// How many instructions that were passed on are remembered.
const HEARD: usize = 1000;

pub(super) struct Roster {
    slots: u16,
    inner: Mutex<Inner>,
    /// A job came.
    more: Notify,
    /// A job went, or jobs may be taken again.
    fewer: Notify,
}

#[derive(Default)]
struct Inner {
    jobs: BTreeMap<JobId, Entry>,
    over: VecDeque<(JobId, i64)>,
    unwanted: Vec<Arc<Job>>,
    /// Instructions that were passed on and that the orchestrator does not know of yet.
    delivered: BTreeSet<Uuid>,
    heard: VecDeque<Uuid>,
    draining: bool,
}

struct Entry {
    job: Arc<Job>,
    started: bool,
}

impl Roster {
    pub(super) fn new(slots: u16) -> Self {
        Self { slots, inner: Mutex::default(), more: Notify::new(), fewer: Notify::new() }
    }

    pub(super) fn len(&self) -> usize {
        lock(&self.inner).jobs.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        lock(&self.inner).jobs.is_empty()
    }

    /// Puts a job in that is not started.
    pub(super) fn wait(&self, job: Arc<Job>) {
        lock(&self.inner).jobs.insert(job.id(), Entry { job, started: false });
        self.more.notify_one();
    }

    /// Marks a job as started; whether it was not.
    pub(super) fn start(&self, job: &Arc<Job>) -> bool {
        let mut inner = lock(&self.inner);
        let entry = inner.jobs.get_mut(&job.id()).filter(|entry| Arc::ptr_eq(&entry.job, job));
        entry.is_some_and(|entry| !std::mem::replace(&mut entry.started, true))
    }

    pub(super) fn remove(&self, job: &Arc<Job>) {
        let mut inner = lock(&self.inner);
        if inner.jobs.get(&job.id()).is_some_and(|entry| Arc::ptr_eq(&entry.job, job)) {
            inner.jobs.remove(&job.id());
        }
        if inner.over.len() == REMEMBERED {
            inner.over.pop_front();
        }
        inner.over.push_back((job.id(), job.fencing_token()));
        self.fewer.notify_waiters();
    }

    /// Whether the node has, or had, this claim of a job.
    pub(super) fn knows(&self, id: JobId, fencing_token: i64) -> bool {
        let inner = lock(&self.inner);
        let has = inner.jobs.get(&id).map(|entry| entry.job.fencing_token());
        has == Some(fencing_token) || inner.over.contains(&(id, fencing_token))
    }

    /// A job, and whether it was started.
    pub(super) fn get(&self, id: JobId) -> Option<(Arc<Job>, bool)> {
        let inner = lock(&self.inner);
        inner.jobs.get(&id).map(|entry| (Arc::clone(&entry.job), entry.started))
    }

    pub(super) fn waiting(&self) -> Vec<Arc<Job>> {
        self.with(false)
    }

    pub(super) fn started(&self) -> Vec<Arc<Job>> {
        self.with(true)
    }

    fn with(&self, started: bool) -> Vec<Arc<Job>> {
        let inner = lock(&self.inner);
        let jobs = inner.jobs.values().filter(|entry| entry.started == started);
        jobs.map(|entry| Arc::clone(&entry.job)).collect()
    }

    /// The names of jobs that may have sandboxes.
    pub(super) fn running(&self) -> Vec<String> {
        self.started().iter().map(|job| job.id().to_string()).collect()
    }

    /// The projects that jobs are of.
    pub(super) fn projects(&self) -> BTreeSet<ProjectId> {
        let inner = lock(&self.inner);
        inner.jobs.values().map(|entry| entry.job.assignment().project_id).collect()
    }

    /// How many more jobs may be taken.
    pub(super) fn free(&self) -> u16 {
        let inner = lock(&self.inner);
        let held = u16::try_from(inner.jobs.len()).unwrap_or(u16::MAX);
        if inner.draining { 0 } else { self.slots.saturating_sub(held).min(100) }
    }

    /// Returns when a job came.
    pub(super) fn more(&self) -> Notified<'_> {
        self.more.notified()
    }

    /// Returns when there may be more room.
    pub(super) fn fewer(&self) -> Notified<'_> {
        self.fewer.notified()
    }

    /// What to say, and the jobs that were not started when it was said.
    pub(super) fn heartbeat(&self) -> (Heartbeat, Vec<Arc<Job>>) {
        let inner = lock(&self.inner);
        let jobs = inner.jobs.values().map(|entry| entry.job.held()).collect();
        let waiting = inner.jobs.values().filter(|entry| !entry.started);
        let waiting = waiting.map(|entry| Arc::clone(&entry.job)).collect();
        (Heartbeat { jobs, delivered: inner.delivered.iter().copied().collect() }, waiting)
    }

    /// Does what the orchestrator said; gives the jobs that may go on.
    pub(super) fn hear(
        &self,
        answer: &HeartbeatAnswer,
        delivered: &[Uuid],
        shown: &[Arc<Job>],
    ) -> Vec<Arc<Job>> {
        let mut inner = lock(&self.inner);
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
                job.halt(Halt::Unwanted(stop.reason.clone()));
            } else {
                inner.unwanted.push(job);
            }
        }
        for instruction in &answer.instructions {
            inner.instruct(instruction);
        }
        if std::mem::replace(&mut inner.draining, answer.draining) && !answer.draining {
            self.fewer.notify_waiters();
        }
        let stopped = |job: &Arc<Job>| {
            let is = |stop: &cynode_wire::nodes::StopJob| stop.job_id == job.id();
            answer.stop.iter().any(is)
        };
        shown.iter().filter(|job| !stopped(job)).cloned().collect()
    }

    /// Jobs that were to stop before they were started.
    pub(super) fn take_unwanted(&self) -> Vec<Arc<Job>> {
        std::mem::take(&mut lock(&self.inner).unwanted)
    }
}

impl Inner {
    /// Passes an instruction on, once. One that cannot be taken yet is not acknowledged, and so comes again.
    fn instruct(&mut self, instruction: &JobInstruction) {
        let id = instruction.instruction_id;
        if self.heard.contains(&id) {
            self.delivered.insert(id);
            return;
        }
        let Some(entry) = self.jobs.get(&instruction.job_id) else { return };
        if !entry.job.instruct(instruction.kind, &instruction.text) {
            return;
        }
        if self.heard.len() == HEARD {
            self.heard.pop_front();
        }
        self.heard.push_back(id);
        self.delivered.insert(id);
    }
}
