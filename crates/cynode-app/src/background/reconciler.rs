//! Reconciler: dispatches due runs that nobody drives, and reaps expired jobs, waits and handoffs. Any number of
//! processes may run it at once, and each may die at any moment.

use cynode_core::{settings::registry::FORCE_RECLAIM_SETTING, workflow::waits::WaitResolution};
use std::{future::Future, pin::Pin, sync::Arc, time::Duration};

use cynode_core::{
    events::EventKind,
    ids::{JobId, TaskId, WaitId},
};
use cynode_db::workflow::{self, jobs, waits};
use futures::{StreamExt, stream};
use serde_json::json;
use tokio_util::sync::CancellationToken;

pub use cynode_db::workflow::DueRun;

use crate::{
    App, Ctx, Error, OperationRequest,
    platform::{
        context::EventDraft,
        error::log_background_error,
        operation, settings,
        wakeups::{self, ReconcileInterval},
    },
    workflow::liveness::StallLog,
};

/// Maximum number of runs, jobs or waits per batch.
const RECONCILE_BATCH_SIZE: i64 = 100;

/// Maximum number of concurrent dispatches.
const MAX_CONCURRENT_DISPATCHES: usize = 32;

/// Interval of the check for stalled work.
const STALL_CHECK_INTERVAL: Duration = Duration::from_secs(4);

/// Minimum size of a fleet whose silence as a whole halts reaping: of two workers, one may well be dead.
const MIN_FLEET_SIZE: i64 = 3;

/// Error of a dispatch to the engine.
#[derive(Debug, thiserror::Error)]
#[error("the engine could not be told: {0}")]
pub struct EngineError(pub String);

/// Engine that drives runs. A dispatched run leads to at least one call of a runner.
pub trait WorkflowEngine: Send + Sync {
    /// Dispatches a due run. Two dispatches with the same key may lead to one call.
    fn dispatch_run<'a>(
        &'a self,
        due: &'a DueRun,
    ) -> Pin<Box<dyn Future<Output = Result<(), EngineError>> + Send + 'a>>;

    /// Checks whether the engine and its runner are reachable. The default reports nothing.
    fn check_health(&self) -> Pin<Box<dyn Future<Output = EngineHealth> + Send + '_>> {
        Box::pin(async { EngineHealth::default() })
    }

    /// Returns the version of the engine, if it says one.
    fn engine_version(&self) -> Pin<Box<dyn Future<Output = Option<String>> + Send + '_>> {
        Box::pin(async { None })
    }
}

/// Health of the engine and of the runner.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EngineHealth {
    /// Health of the engine, or its error. `None` when it was not checked.
    pub engine: Option<Result<String, String>>,
    /// Health of the runner, or its error. `None` when it was not checked.
    pub runner: Option<Result<String, String>>,
}

/// Runs the reconciler until shutdown. A failure is logged and retried in the next round.
#[operation]
pub async fn run_reconciler(
    app: App,
    engine: Option<Arc<dyn WorkflowEngine>>,
    pace: ReconcileInterval,
    stop: CancellationToken,
) {
    let (mut tidies, mut halted) = (true, false);
    let mut stalls = StallLog::default();
    let mut stall_turn = tokio::time::interval(STALL_CHECK_INTERVAL);
    stall_turn.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        if tidies {
            match reap_expired(&app, halted).await {
                Ok(now) => halted = now,
                Err(error) => {
                    log_background_error(
                        "reconciler.reap_failed",
                        &error,
                        "expired work could not be reaped; it is retried",
                    );
                }
            }
        }
        if let Some(engine) = &engine
            && let Err(error) = dispatch_due(&app, engine.as_ref(), pace.redispatch_after).await
        {
            log_background_error(
                "reconciler.dispatch_failed",
                &error,
                "due runs could not be dispatched; it is retried",
            );
        }
        // No wake-up tells when a halted reconciler may act again, so it polls.
        let own_look = async {
            if halted {
                wakeups::sleep_for(pace.every).await;
            } else {
                app.until_poll_due(pace.every).await;
            }
        };
        tokio::pin!(own_look);
        tidies = loop {
            tokio::select! {
                () = stop.cancelled() => return,
                () = app.until_run_due() => break false,
                () = app.until_overdue() => break true,
                () = &mut own_look => break true,
                _ = stall_turn.tick() => if let Err(error) = stalls.log_stalls(&app).await {
                    log_background_error("stall.check_failed", &error, "stalled work could not be looked up");
                },
            }
        };
    }
}

/// Dispatches every due run to the engine.
#[operation]
pub async fn dispatch_due(
    app: &App,
    engine: &dyn WorkflowEngine,
    redispatch_after: Duration,
) -> Result<usize, Error> {
    let redispatch_after_ms = i64::try_from(redispatch_after.as_millis()).unwrap_or(i64::MAX);
    let mut told = 0;
    loop {
        let mut conn = app.conn().await?;
        let due =
            workflow::take_due_runs(&mut conn, redispatch_after_ms, RECONCILE_BATCH_SIZE).await?;
        drop(conn);
        let more = i64::try_from(due.len()).is_ok_and(|count| count == RECONCILE_BATCH_SIZE);
        told += due.len();
        let (mut failed, mut untold) = (None, Vec::new());
        let calls: Vec<_> = due.iter().map(|due| engine.dispatch_run(due)).collect();
        let mut sending =
            stream::iter(calls).buffered(MAX_CONCURRENT_DISPATCHES).zip(stream::iter(&due));
        while let Some((result, due)) = sending.next().await {
            if let Err(error) = result {
                failed = Some(error);
                untold.push(due.task.as_uuid());
            }
        }
        if let Some(error) = failed {
            // The next round dispatches these runs again. If this process dies here, they are dispatched again after
            // a while.
            let mut conn = app.conn().await?;
            workflow::clear_dispatch_marks(&mut conn, &untold).await?;
            log_background_error(
                "engine.dispatch_failed",
                &error,
                "due runs could not be sent to the engine",
            );
            return Ok(told);
        }
        if !more {
            return Ok(told);
        }
    }
}

/// Reaps jobs whose leases have expired, and ends expired waits. Returns whether it halted and refused to act.
#[operation]
pub async fn reap_expired(app: &App, was_halted: bool) -> Result<bool, Error> {
    let request =
        OperationRequest { caller: None, trace: app.environment().new_trace_id(), attempt: None };
    let mut conn = app.conn().await?;
    let expired = waits::list_expired_waits(&mut conn, RECONCILE_BATCH_SIZE).await?;
    let overdue = jobs::list_overdue_jobs(&mut conn, RECONCILE_BATCH_SIZE).await?;
    let fleet = jobs::get_fleet_health(&mut conn).await?;
    let anyway = !overdue.is_empty()
        && settings::setting_value(&mut conn, FORCE_RECLAIM_SETTING).await? == Some(json!(true));
    drop(conn);
    // Work that fails or is locked is left for the next round and blocks nothing behind it. Without a database the
    // round ends.
    if let Err(error) =
        crate::manager::handoffs::reap_silent_handoffs(app, &request, RECONCILE_BATCH_SIZE).await
    {
        log_background_error(
            "handoff.expire_failed",
            &error,
            "expired handoffs could not be requeued",
        );
    }
    if let Err(error) =
        crate::models::inference::pause_parked_tasks(app, &request, RECONCILE_BATCH_SIZE).await
    {
        log_background_error("task.pause_failed", &error, "parked tasks could not be paused");
    }
    for (wait, task) in expired {
        let ctx = app.begin_transaction_with_lock_timeout(&request).await?;
        if let Err(error) = expire_wait(app, ctx, wait, task).await {
            log_background_error(
                "wait.expire_failed",
                &error,
                "an expired wait could not be ended",
            );
        }
    }
    let halted = !overdue.is_empty()
        && !anyway
        && fleet.workers >= MIN_FLEET_SIZE
        && fleet.silent * 2 > fleet.workers;
    if halted != was_halted {
        record_halt_event(app, &request, halted, fleet).await?;
    }
    if halted {
        return Ok(true);
    }
    for (job, task) in overdue {
        let ctx = app.begin_transaction_with_lock_timeout(&request).await?;
        if let Err(error) = reap_job(app, ctx, job, task).await {
            log_background_error("job.expire_failed", &error, "an expired job could not be ended");
        }
    }
    Ok(false)
}

async fn expire_wait(app: &App, mut ctx: Ctx, wait: WaitId, task: TaskId) -> Result<(), Error> {
    workflow::wake_runs(ctx.conn(), &[task.as_uuid()]).await?;
    if waits::resolve_wait(ctx.conn(), wait, WaitResolution::Expired, None, None).await? {
        ctx.wake_task(task);
        app.commit_operation(ctx).await?;
    }
    Ok(())
}

async fn reap_job(app: &App, mut ctx: Ctx, job: JobId, task: TaskId) -> Result<(), Error> {
    if jobs::mark_job_lost(ctx.conn(), job, task).await? {
        ctx.wake_task(task);
        ctx.mark_job_changed();
        app.commit_operation(ctx).await?;
        app.announce_job_log(job);
        tracing::warn!(event = "job.lost", job.id = %job, task.id = %task, "nothing was heard of a job");
    }
    Ok(())
}

async fn record_halt_event(
    app: &App,
    request: &OperationRequest,
    halted: bool,
    fleet: jobs::FleetHealth,
) -> Result<(), Error> {
    let data = json!({ "workers": fleet.workers, "silent": fleet.silent, "setting": FORCE_RECLAIM_SETTING });
    let kind = if halted { EventKind::ReconcilerHalted } else { EventKind::ReconcilerResumed };
    if halted {
        let (workers, silent) = (fleet.workers, fleet.silent);
        let act = "look at the workers; to give their jobs up set workflow.force_reclaim to true";
        tracing::error!(
            event = "reconciler.halted",
            workers,
            silent,
            "most workers look dead at once: {act}"
        );
    }
    let mut ctx = app.begin_transaction(request).await?;
    ctx.record_event(EventDraft::new(kind, data)).await?;
    app.commit_operation(ctx).await
}
