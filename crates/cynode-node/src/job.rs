//! The lifecycle of one job, from its claim to the acknowledged result.
//!
//! Each step that must run once writes a file before the next one begins: the session when the agent has started,
//! `turn.json` when its turn has ended, `result.json` when the result is complete. After a kill the node resumes behind
//! the last of them.

mod approval;
mod check_workspace;
pub(crate) mod environment;
mod finish;
mod merge;
mod result_size;
mod runs;
mod trusted_command;
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
    environments::EnvironmentBase,
    ids::JobId,
    nodes::{JobEventData, JobPhase, NodeJobStatus, WorkStopReason},
    profiles::ProfileName,
    sync::lock_unpoisoned,
    workflow::{
        instructions::{InstructionEffect, InstructionKind},
        jobs::SandboxNeeds,
    },
};
use cynode_wire::{
    nodes::{AssignedProfile, JobAssignment, NodeResult, WorkResult},
    workflow::jobs::JobOutcome,
};
use tokio::{sync::mpsc, time::Instant};
use tokio_util::sync::CancellationToken;

pub(crate) use runs::JobSandboxRunner;

use crate::{
    client::call_with_retry,
    job::environment::JobEnvironment,
    node::NodeContext,
    outbox::{EventOutbox, JobGone},
    store::{JobDir, JobRecord},
    workers::WorkerInstruction,
};

/// Maximum time that the last events may delay the result.
const FINAL_FLUSH_TIMEOUT: Duration = Duration::from_secs(30);

/// Maximum time that the last events may delay the node's shutdown.
const SHUTDOWN_FLUSH_TIMEOUT: Duration = Duration::from_millis(1500);

/// A job of the node.
pub(crate) struct NodeJob {
    pub(crate) kept: JobRecord,
    pub(crate) dir: JobDir,
    pub(crate) outbox: Arc<EventOutbox>,
    /// Environment of the job, once it is prepared.
    environment: OnceLock<JobEnvironment>,
    phase: Mutex<JobPhase>,
    asking: AtomicU32,
    halt: OnceLock<HaltReason>,
    halted: CancellationToken,
    aborted: CancellationToken,
    orders: Mutex<Option<mpsc::Sender<WorkerInstruction>>>,
}

/// Reason why a job is stopped from outside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum HaltReason {
    /// The orchestrator no longer wants the job.
    Unwanted(String),
    /// The node stops; the job may be resumed.
    Suspended,
}

/// State of a job after `run_job` returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum JobDisposition {
    /// The job is complete; its directory can be removed.
    Over,
    /// The job may be resumed.
    Suspended,
}

impl NodeJob {
    /// Creates a job that was just claimed.
    pub(crate) fn new(kept: JobRecord, dir: JobDir) -> Arc<Self> {
        let outbox = EventOutbox::new(kept.claimed.clone(), dir.events_file());
        Self::with_outbox(kept, dir, outbox)
    }

    /// Restores a job that an earlier process started.
    pub(crate) fn resume_from(kept: JobRecord, dir: JobDir) -> Arc<Self> {
        let outbox = EventOutbox::resume_from(kept.claimed.clone(), dir.events_file());
        Self::with_outbox(kept, dir, outbox)
    }

    fn with_outbox(kept: JobRecord, dir: JobDir, outbox: EventOutbox) -> Arc<Self> {
        Arc::new(Self {
            kept,
            dir,
            outbox: Arc::new(outbox),
            environment: OnceLock::new(),
            phase: Mutex::new(JobPhase::Preparing),
            asking: AtomicU32::new(0),
            halt: OnceLock::new(),
            halted: CancellationToken::new(),
            aborted: CancellationToken::new(),
            orders: Mutex::new(None),
        })
    }

    pub(crate) const fn assignment(&self) -> &JobAssignment {
        &self.kept.assignment
    }

    /// Returns the profile that the agent of the job works under. Checks and merges are work of the installation and of no agent.
    pub(crate) fn agent_profile(&self) -> Option<&AssignedProfile> {
        let assignment = &self.kept.assignment;
        assignment.profile.as_deref().filter(|_| assignment.work.worker.is_agent_work())
    }

    /// Returns the needs of the job's sandbox, with the image of its environment and the limits of its profile.
    pub(crate) fn sandbox_needs(&self) -> SandboxNeeds {
        let mut needs = self.kept.assignment.work.sandbox.clone();
        let assigned = self.kept.assignment.environment.as_ref();
        if let Some(EnvironmentBase::Image(image)) = assigned.map(|assigned| &assigned.spec.base) {
            needs.image.get_or_insert_with(|| image.clone());
        }
        match self.agent_profile() {
            Some(profile) => needs.limit_to(profile.spec.sandbox),
            None => needs,
        }
    }

    /// Returns the hosts that the job may reach: those of its profile. Checks have the same, because they run what the agent wrote. Under the
    /// default profile, which agents have that were given none, they are those of the plan.
    pub(crate) fn egress_hosts(&self) -> Vec<String> {
        let profile = self.kept.assignment.profile.as_deref();
        let profile = profile.filter(|profile| profile.name != ProfileName::default());
        let reachable = |host: &&String| {
            let host = host.to_ascii_lowercase();
            profile.is_none_or(|profile| profile.spec.allows_request("GET", &host))
        };
        self.kept.assignment.work.sandbox.egress_hosts.iter().filter(reachable).cloned().collect()
    }

    /// Returns whether the job gets a variable of its project's environment.
    pub(crate) fn allows_variable(&self, name: &str) -> bool {
        self.agent_profile().is_none_or(|profile| profile.spec.allows_variable(name))
    }

    pub(crate) const fn job_id(&self) -> JobId {
        self.kept.assignment.job_id
    }

    pub(crate) const fn fencing_token(&self) -> i64 {
        self.kept.assignment.fencing_token
    }

    /// Returns the job's entry in the heartbeat.
    pub(crate) fn to_held_job(&self) -> NodeJobStatus {
        let phase = match *lock_unpoisoned(&self.phase) {
            JobPhase::Working if self.asking.load(Ordering::Relaxed) > 0 => JobPhase::Asking,
            phase => phase,
        };
        NodeJobStatus { job_id: self.job_id(), fencing_token: self.fencing_token(), phase }
    }

    /// Requests the end of the job. The first reason wins.
    pub(crate) fn request_halt(&self, halt: HaltReason) {
        if self.halt.set(halt).is_ok() {
            self.halted.cancel();
        }
    }

    /// Delivers an instruction to the worker. Returns whether it was accepted.
    pub(crate) fn deliver_instruction(&self, kind: InstructionKind, text: &str) -> bool {
        let order = match kind.instruction_effect() {
            InstructionEffect::Stop => {
                self.aborted.cancel();
                return true;
            }
            InstructionEffect::Pause => WorkerInstruction::Pause,
            // An agent that receives a message continues by itself.
            InstructionEffect::Resume if !text.is_empty() => {
                WorkerInstruction::Tell(text.to_owned())
            }
            InstructionEffect::Resume => WorkerInstruction::Resume,
            InstructionEffect::Replan => WorkerInstruction::Tell(text.to_owned()),
        };
        lock_unpoisoned(&self.orders).as_ref().is_some_and(|orders| orders.try_send(order).is_ok())
    }

    pub(crate) fn enter_phase(&self, phase: JobPhase) {
        *lock_unpoisoned(&self.phase) = phase;
        self.outbox.push(JobEventData::Phase { phase });
    }

    pub(crate) fn push_note(&self, text: impl Into<String>) {
        self.outbox.push(JobEventData::Note { text: text.into() });
    }

    /// Returns the deadline of the result.
    pub(crate) fn due_at(&self) -> Instant {
        let all = Duration::from_secs(self.kept.assignment.seconds_left.into());
        Instant::now() + all.saturating_sub(self.kept.claimed.elapsed())
    }
}

/// Runs a job, or resumes it.
pub(crate) async fn run_job(node: &Arc<NodeContext>, job: &Arc<NodeJob>) -> JobDisposition {
    let mut sending = pin!(job.outbox.send_events(&node.client, job.job_id(), job.fencing_token()));
    let fate = {
        let work = Box::pin(async {
            let result = load_or_build_result(node, job).await;
            deliver_result(node, job, &result).await;
        });
        tokio::select! {
            () = job.halted.cancelled() => None,
            JobGone = &mut sending => {
                job.request_halt(HaltReason::Unwanted("its events are not wanted".to_owned()));
                None
            }
            () = work => Some(JobDisposition::Over),
        }
    };
    // Dropping the work has killed its runs. This call also waits for them, and finds runs that nothing referenced any more.
    node.end_job_sandboxes(&job.job_id().to_string()).await;
    if let Some(fate) = fate {
        return fate;
    }
    match job.halt.get() {
        Some(HaltReason::Unwanted(reason)) => {
            tracing::info!(event = "job.stopped", job.id = %job.job_id(), reason, "the job was stopped");
            JobDisposition::Over
        }
        Some(HaltReason::Suspended) | None => {
            job.push_note("the node was interrupted; it goes on with this job when it is back");
            tokio::select! {
                JobGone = &mut sending => {}
                () = job.outbox.flush_within(SHUTDOWN_FLUSH_TIMEOUT) => {}
            }
            JobDisposition::Suspended
        }
    }
}

/// Returns the persisted result, or runs the job to build it.
async fn load_or_build_result(node: &Arc<NodeContext>, job: &Arc<NodeJob>) -> NodeResult {
    match job.dir.load_result() {
        Ok(Some(result)) => {
            *lock_unpoisoned(&job.phase) = JobPhase::Finishing;
            return result;
        }
        Ok(None) => {}
        Err(error) => log_persist_error(job, &error),
    }
    let worked = match job.dir.load_turn_record() {
        Ok(Some(worked)) => worked,
        Ok(None) | Err(_) => {
            let worked = work::run_worker(node, job).await;
            if let Err(error) = job.dir.save_turn_record(&worked) {
                log_persist_error(job, &error);
            }
            worked
        }
    };
    let result = finish::finish_job(node, job, worked).await;
    if let Err(error) = job.dir.save_result(&result) {
        // The result is still in memory and is sent from there.
        log_persist_error(job, &error);
    }
    result
}

/// Formats an error with all its causes.
fn format_error_chain(error: impl Into<anyhow::Error>) -> String {
    format!("{:#}", error.into())
}

fn log_persist_error(job: &NodeJob, error: &crate::store::NodeStoreError) {
    let error = format!("{:#}", anyhow::anyhow!("{error}"));
    tracing::warn!(event = "job.persist_failed", job.id = %job.job_id(), error, "a step could not be stored");
}

/// Sends the result until the orchestrator acknowledges it or no longer wants it.
async fn deliver_result(node: &NodeContext, job: &NodeJob, result: &NodeResult) {
    job.outbox.flush_within(FINAL_FLUSH_TIMEOUT).await;
    let sent = call_with_retry(|| node.client.submit_result(job.job_id(), result)).await;
    let Err(error) = sent else {
        tracing::info!(event = "job.completed", job.id = %job.job_id(), outcome = ?result.outcome, stop_reason = result.result.stop_reason.map(WorkStopReason::as_str).map(tracing::field::display), "the result was acknowledged");
        return;
    };
    if error.is_gone() {
        tracing::info!(event = "job.result_discarded", job.id = %job.job_id(), %error, "the orchestrator no longer wants the result");
        return;
    }
    // The orchestrator rejects this result. The node can still report that the job failed.
    tracing::error!(event = "job.result_refused", job.id = %job.job_id(), %error, "the orchestrator refused the result");
    let result = NodeResult {
        fencing_token: job.fencing_token(),
        outcome: JobOutcome::Failed,
        result: WorkResult {
            summary: format!("the orchestrator did not take the result: {error}"),
            stop_reason: Some(WorkStopReason::Refused),
            ..WorkResult::default()
        },
    };
    if let Err(error) = call_with_retry(|| node.client.submit_result(job.job_id(), &result)).await {
        tracing::error!(event = "job.abandoned", job.id = %job.job_id(), %error, "no result could be reported");
    }
}
