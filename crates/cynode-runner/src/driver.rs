//! Handler of the engine: one virtual object per task, one call of `advance` at a time.
//!
//! A call acquires the lease, runs step after step, and returns when the run waits or has ended. It keeps no state, neither here nor in the
//! journal of the engine: the checkpoint that the orchestrator stores is the durable step. When a call breaks off, the engine calls again,
//! in this process or in another one. Each such attempt acquires the lease anew under the same key, which raises the fencing token, fences
//! the attempt before it off, and says at which step the run stands.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use cynode_core::{ids::TaskId, workflow::WorkflowStep, workflow::limits::RunLimits};
use cynode_net::backoff::{Backoff, Jitter};
use cynode_wire::workflow::{
    LeaseRef, NextStep, RenewLease, ResumeWorkflow, RunState, StartWorkflow, StepCheckpoint,
    TaskContext, WorkflowPosition,
};
use restate_sdk::prelude::*;

use crate::{
    agent_backend::AgentBackend,
    client::{WorkflowClient, WorkflowClientError},
    given_plan::GivenPlanBackend,
    steps::{self, CheckpointDraft, StepContext},
};

/// Number of times that one call acquires the lease anew before it leaves the rest to the next call.
const MAX_LEASE_ACQUISITIONS: u32 = 20;

/// Time that a step retries to reach the orchestrator before the engine takes over the retries.
const UNREACHABLE_RETRY_TIMEOUT: Duration = Duration::from_secs(5);

/// Backoff between two attempts.
const RETRY_BACKOFF: Backoff =
    Backoff::new(Duration::from_millis(25), Duration::from_millis(400), Jitter::None);

/// Context shared by all calls.
pub(crate) struct DriverContext {
    /// Client of the orchestrator.
    pub(crate) client: WorkflowClient,
    /// Agent backend.
    pub(crate) mind: Arc<dyn AgentBackend>,
    /// Name of the runner, the same for all its processes.
    pub(crate) holder: String,
    /// Unique id of this process.
    pub(crate) instance: String,
    /// Number of the next attempt to drive a run. No two of this process have the same.
    pub(crate) attempts: AtomicU64,
    /// Duration of a lease.
    pub(crate) lease: Duration,
    /// Time to wait for a job's result before the run is suspended.
    pub(crate) linger: Duration,
}

/// Virtual object of the engine; its key is the task id.
pub(crate) struct TaskDriver(pub(crate) Arc<DriverContext>);

/// State of a run that a step follows on.
#[derive(Clone)]
struct RunSnapshot {
    task: TaskContext,
    position: WorkflowPosition,
    node: WorkflowStep,
    state: RunState,
}

/// A step to run.
#[derive(Clone, Copy)]
struct StepPosition {
    sequence: i64,
    node: WorkflowStep,
}

/// Outcome of a step.
enum StepProgress {
    /// This step follows.
    Go(Box<RunSnapshot>),
    /// The run waits or has ended.
    Rest,
    /// The lease is lost.
    Lost,
}

#[object(
    name = "TaskDriver",
    client_visibility = "pub(crate)",
    inactivity_timeout = "1h",
    abort_timeout = "10m",
    journal_retention = "0s",
    idempotency_retention = "0s",
    invocation_retry_policy(
        initial_interval = "50ms",
        factor = 2.0,
        max_interval = "1s",
        max_attempts = 120,
        on_max_attempts = "kill",
    )
)]
impl TaskDriver {
    /// Advances the task as far as possible now.
    #[handler]
    async fn advance(&self, ctx: ObjectContext<'_>) -> Result<(), HandlerError> {
        let Ok(task) = ctx.key().parse::<TaskId>() else {
            return Err(TerminalError::new_with_code(400, "the key is not a task's id").into());
        };
        // The engine journals no step: the checkpoint is the durable step, and a call that breaks off begins again at the last one.
        let lease_id = ctx.invocation_id().to_owned();
        let call = DriverCall { shared: self.0.clone(), task, lease_id };
        for _ in 0..MAX_LEASE_ACQUISITIONS {
            if call.drive_run().await? {
                break;
            }
        }
        Ok(())
    }
}

/// A call in this process.
struct DriverCall {
    shared: Arc<DriverContext>,
    task: TaskId,
    lease_id: String,
}

impl DriverCall {
    fn lease_seconds(&self) -> Option<u32> {
        u32::try_from(self.shared.lease.as_secs().max(1)).ok()
    }

    /// Drives the run under a new lease. Returns `false` if the lease was lost before the run came to rest.
    async fn drive_run(&self) -> Result<bool, HandlerError> {
        let Some((fencing_token, mut run)) = self.acquire_lease().await? else { return Ok(true) };
        loop {
            run = match self.drive_step(fencing_token, *run).await? {
                StepProgress::Go(next) => next,
                StepProgress::Rest => return Ok(true),
                StepProgress::Lost => return Ok(false),
            };
        }
    }

    /// Acquires the lease. Returns its fencing token and where the run stands, or `None` when there is nothing to drive now.
    async fn acquire_lease(&self) -> Result<Option<(i64, Box<RunSnapshot>)>, HandlerError> {
        let attempt = self.shared.attempts.fetch_add(1, Ordering::Relaxed);
        let body = StartWorkflow {
            task_id: self.task,
            holder: self.shared.holder.clone(),
            idempotency_key: self.lease_id.clone(),
            instance: Some(format!("{}#{attempt}", self.shared.instance)),
            expires_in_seconds: self.lease_seconds(),
        };
        let started =
            match retry_while_unreachable(|| self.shared.client.start_workflow(&body)).await {
                Ok(started) => started,
                Err(WorkflowClientError::NotNow(why)) => {
                    tracing::debug!(task.id = %self.task, why, "not now");
                    return Ok(None);
                }
                Err(error) => return Err(to_handler_error(error)),
            };
        let NextStep::Run { node } = started.position.next else { return Ok(None) };
        let state = started.position.state.clone().unwrap_or_default();
        let run = RunSnapshot { task: started.task, position: started.position, node, state };
        Ok(Some((started.lease.fencing_token, Box::new(run))))
    }

    async fn drive_step(
        &self,
        fencing_token: i64,
        run: RunSnapshot,
    ) -> Result<StepProgress, HandlerError> {
        let at = StepPosition { sequence: run.position.sequence, node: run.node };
        let RunSnapshot { task, position, state, .. } = self.await_early_result(run).await;
        let loading = at.node == WorkflowStep::FIRST;
        let preferences = if loading { &task.preferences } else { &state.preferences_effective };
        let (limits, notes) = RunLimits::from_preferences(preferences);
        for note in notes.iter().filter(|_| loading) {
            tracing::warn!(event = "preference.adjusted", task.id = %self.task, "{note}");
        }
        let given = task.plan.clone().map(GivenPlanBackend::new);
        let mind: &dyn AgentBackend = match &given {
            Some(given) => given,
            None => self.shared.mind.as_ref(),
        };
        let scene =
            StepContext { task: &task, position: &position, state: &state, limits: &limits, mind };
        let lease = LeaseRef { task_id: self.task, lease_id: self.lease_id.clone(), fencing_token };
        let begun = Instant::now();
        let Some(step) = self.with_lease_renewal(&lease, steps::run_step(at.node, &scene)).await
        else {
            return Ok(StepProgress::Lost);
        };
        let duration = begun.elapsed();
        let attempt = state.node_failures + 1;
        let (seen_wakes, trace) = (position.wakes, task.trace_id.clone());
        let body = build_checkpoint(lease, at, step, seen_wakes, attempt, duration);
        let stored =
            retry_while_unreachable(|| self.shared.client.store_checkpoint(&body, &trace)).await;
        let mut stored = stored.map(|stored| (stored, body.state));
        // If the orchestrator rejects a checkpoint permanently, a fallback that says why is stored instead.
        if let Err(WorkflowClientError::Refused { status: status @ (400 | 413 | 422), detail }) =
            &stored
        {
            let handoff = position.handoff.as_ref();
            let instead = steps::refusal_fallbacks(at.node, *status, &state, handoff, detail);
            for step in instead {
                let body =
                    build_checkpoint(body.lease.clone(), at, step, seen_wakes, attempt, duration);
                let again =
                    retry_while_unreachable(|| self.shared.client.store_checkpoint(&body, &trace))
                        .await;
                stored = again.map(|stored| (stored, body.state));
                if !matches!(
                    stored,
                    Err(WorkflowClientError::Refused { status: 400 | 413 | 422, .. })
                ) {
                    break;
                }
            }
        }
        let (position, sent) = match stored {
            Ok(stored) => stored,
            Err(WorkflowClientError::Fenced(why)) => {
                tracing::info!(event = "lease.lost", task.id = %self.task, why, "superseded");
                return Ok(StepProgress::Lost);
            }
            Err(error) => return Err(to_handler_error(error)),
        };
        let NextStep::Run { node } = position.next else { return Ok(StepProgress::Rest) };
        let state = position.state.clone().unwrap_or(sent);
        Ok(StepProgress::Go(Box::new(RunSnapshot { task, position, node, state })))
    }

    /// Waits shortly for a result: a short job then needs no round trip through the engine.
    async fn await_early_result(&self, run: RunSnapshot) -> RunSnapshot {
        let moment = u32::try_from(self.shared.linger.as_millis()).unwrap_or(0);
        if moment == 0
            || run.node != WorkflowStep::CollectResult
            || !steps::is_awaiting_jobs(&run.position)
        {
            return run;
        }
        let body = ResumeWorkflow {
            task_id: self.task,
            seen_wakes: Some(run.position.wakes),
            wait_ms: Some(moment),
        };
        let there = NextStep::Run { node: run.node };
        match self.shared.client.resume_workflow(&body).await {
            Ok(now)
                if now.position.sequence == run.position.sequence && now.position.next == there =>
            {
                RunSnapshot { position: now.position, ..run }
            }
            // On any other outcome the step runs without the result: the run waits and is woken later.
            Ok(_) | Err(_) => run,
        }
    }

    /// Runs the work while the lease is renewed. Returns `None` if the lease was lost.
    async fn with_lease_renewal<T>(
        &self,
        lease: &LeaseRef,
        work: impl Future<Output = T>,
    ) -> Option<T> {
        let mut work = std::pin::pin!(work);
        let third = self.shared.lease / 3;
        loop {
            if let Ok(done) = tokio::time::timeout(third, &mut work).await {
                return Some(done);
            }
            let body = RenewLease {
                task_id: lease.task_id,
                lease_id: lease.lease_id.clone(),
                fencing_token: lease.fencing_token,
                expires_in_seconds: self.lease_seconds(),
            };
            // The work continues while renewals fail; it ends if the orchestrator is unreachable for a whole lease.
            let renewing = retry_while_unreachable(|| self.shared.client.renew_lease(&body));
            if let Ok(Err(WorkflowClientError::Fenced(_) | WorkflowClientError::Refused { .. })) =
                tokio::time::timeout(third, renewing).await
            {
                return None;
            }
        }
    }
}

fn build_checkpoint(
    lease: LeaseRef,
    at: StepPosition,
    step: CheckpointDraft,
    seen_wakes: i64,
    attempt: u32,
    duration: Duration,
) -> StepCheckpoint {
    StepCheckpoint {
        lease,
        sequence: at.sequence + 1,
        node: at.node,
        verdict: step.verdict,
        state: step.state,
        effects: step.effects,
        wait: step.wait,
        seen_wakes,
        unit: step.unit,
        attempt,
        duration_ms: u64::try_from(duration.as_millis()).unwrap_or(u64::MAX),
        cost_micros: step.cost_micros,
        note: step.note,
    }
}

/// Retries while the orchestrator is unreachable, up to a timeout. A request may have been executed; all requests are idempotent.
async fn retry_while_unreachable<T, F>(ask: impl Fn() -> F) -> Result<T, WorkflowClientError>
where
    F: Future<Output = Result<T, WorkflowClientError>>,
{
    let begun = Instant::now();
    let mut backoff = RETRY_BACKOFF;
    loop {
        match ask().await {
            Err(WorkflowClientError::Unreachable(error))
                if begun.elapsed() < UNREACHABLE_RETRY_TIMEOUT =>
            {
                tracing::debug!(error = format!("{error:#}"), "tried again");
                backoff.wait_next_delay().await;
            }
            result => return result,
        }
    }
}

/// Converts an error for the engine: it retries transient errors, and others end the call. The run stays due, and the
/// orchestrator's reconciler dispatches it again.
fn to_handler_error(error: WorkflowClientError) -> HandlerError {
    match error {
        WorkflowClientError::Unreachable(_) => HandlerError::from(error),
        WorkflowClientError::Fenced(_)
        | WorkflowClientError::NotNow(_)
        | WorkflowClientError::Refused { .. } => {
            tracing::error!(
                event = "workflow_call.refused",
                error = format!("{error}"),
                "the orchestrator refused a call"
            );
            TerminalError::new(error.to_string()).into()
        }
    }
}
