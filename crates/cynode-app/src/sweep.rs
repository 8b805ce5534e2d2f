//! The continuous sweep: finds runs that are due and nobody drives, jobs of which nothing is heard, waits whose time is
//! over. Any number of processes may sweep at once, and any of them may die at any moment.

use std::{future::Future, pin::Pin, sync::Arc, time::Duration};

use cynode_core::{
    events::EventKind,
    ids::{JobId, TaskId, WaitId},
};
use cynode_db::{DbError, jobs, waits, workflow};
use cynode_wire::workflow::Resolution;
use futures::{StreamExt, stream};
use serde_json::json;
use tokio_util::sync::CancellationToken;

pub use cynode_db::workflow::Due;

use crate::{App, Ctx, Error, Request, context::Told, error::complain, settings};

/// Most runs, jobs or waits taken at once.
const BATCH: i64 = 100;

/// Most runs told of at the same moment.
const AT_ONCE: usize = 32;

/// How long the sweep waits for a row that somebody else holds: it comes by again, and others wait behind it.
const WAIT_MS: u32 = 250;

/// Smallest fleet that is judged as a whole: of two workers one may well be dead.
const FLEET: i64 = 3;

/// A setting by which an admin says that the workers are really dead.
pub const ANYWAY: &str = "workflow.sweep_anyway";

/// Why the engine could not be told.
#[derive(Debug, thiserror::Error)]
#[error("the engine could not be told: {0}")]
pub struct EngineError(pub String);

/// What drives runs: told that one is due, it sees to it that a runner is called, at least once.
pub trait Engine: Send + Sync {
    /// Tells it that a run is due. Told twice with the same key, it may call once.
    fn tell<'a>(
        &'a self,
        due: &'a Due,
    ) -> Pin<Box<dyn Future<Output = Result<(), EngineError>> + Send + 'a>>;
}

/// How the sweep goes about it.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// How often it looks by itself.
    pub every: Duration,
    /// How long it waits for a run that it told of before it tells again.
    pub resend: Duration,
}

/// Sweeps until it is told to stop. A failure is logged and tried again at the next turn.
pub async fn run(app: App, engine: Option<Arc<dyn Engine>>, pace: Pace, stop: CancellationToken) {
    let mut turn = tokio::time::interval(pace.every);
    turn.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut halted = false;
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            () = app.until_woken() => {}
            _ = turn.tick() => {
                match tidy(&app, halted).await {
                    Ok(now) => halted = now,
                    Err(error) => complain(&error, "the sweep failed and will be tried again"),
                }
            }
        }
        if let Some(engine) = &engine
            && let Err(error) = tell(&app, engine.as_ref(), pace.resend).await
        {
            complain(&error, "the sweep failed and will be tried again");
        }
    }
}

/// Tells the engine of every run that is due.
pub async fn tell(app: &App, engine: &dyn Engine, resend: Duration) -> Result<usize, Error> {
    let resend = i64::try_from(resend.as_millis()).unwrap_or(i64::MAX);
    let mut told = 0;
    loop {
        let mut conn = app.pool().acquire().await.map_err(DbError::from)?;
        let due = workflow::take_due(&mut conn, resend, BATCH).await?;
        drop(conn);
        let more = i64::try_from(due.len()).is_ok_and(|count| count == BATCH);
        told += due.len();
        let (mut failed, mut untold) = (None, Vec::new());
        let calls: Vec<_> = due.iter().map(|due| engine.tell(due)).collect();
        let mut sending = stream::iter(calls).buffered(AT_ONCE).zip(stream::iter(&due));
        while let Some((result, due)) = sending.next().await {
            if let Err(error) = result {
                failed = Some(error);
                untold.push(due.task.as_uuid());
            }
        }
        if let Some(error) = failed {
            // Whoever was not told of is taken again at the next turn; should we die here, after a while.
            let mut conn = app.pool().acquire().await.map_err(DbError::from)?;
            workflow::untell(&mut conn, &untold).await?;
            complain(&error, "the engine could not be told of runs");
            return Ok(told);
        }
        if !more {
            return Ok(told);
        }
    }
}

/// Gives up jobs of which nothing is heard, and waits whose time is over. Gives whether it refused to act.
pub async fn tidy(app: &App, was_halted: bool) -> Result<bool, Error> {
    let request = Request { caller: None, trace: app.environment().trace(), attempt: None };
    let mut conn = app.pool().acquire().await.map_err(DbError::from)?;
    let expired = waits::expired(&mut conn, BATCH).await?;
    let overdue = jobs::overdue(&mut conn, BATCH).await?;
    let fleet = jobs::fleet(&mut conn).await?;
    let anyway =
        !overdue.is_empty() && settings::value(&mut conn, ANYWAY).await? == Some(json!(true));
    drop(conn);
    // What fails or is held by somebody is left for the next turn: nothing behind it has to wait. Without a database it is over.
    if let Err(error) = crate::handoffs::sweep(app, &request, BATCH).await {
        complain(&error, "silent handoffs could not be looked after");
    }
    if let Err(error) = crate::inference::pause_parked(app, &request, BATCH).await {
        complain(&error, "parked tasks could not be looked after");
    }
    for (wait, task) in expired {
        let ctx = open(app, &request).await?;
        if let Err(error) = end_wait(app, ctx, wait, task).await {
            complain(&error, "a wait whose time is over could not be ended");
        }
    }
    let halted = !overdue.is_empty()
        && !anyway
        && fleet.workers >= FLEET
        && fleet.silent * 2 > fleet.workers;
    if halted != was_halted {
        tell_of_halt(app, &request, halted, fleet).await?;
    }
    if halted {
        return Ok(true);
    }
    for (job, task) in overdue {
        let ctx = open(app, &request).await?;
        if let Err(error) = lose(app, ctx, job, task).await {
            complain(&error, "a job of which nothing is heard could not be given up");
        }
    }
    Ok(false)
}

/// A transaction that does not wait long for what somebody else holds.
pub(crate) async fn open(app: &App, request: &Request) -> Result<Ctx, Error> {
    let mut ctx = app.open(request).await?;
    workflow::wait_at_most(ctx.conn(), WAIT_MS).await?;
    Ok(ctx)
}

async fn end_wait(app: &App, mut ctx: Ctx, wait: WaitId, task: TaskId) -> Result<(), Error> {
    workflow::wake(ctx.conn(), &[task.as_uuid()]).await?;
    if waits::resolve(ctx.conn(), wait, Resolution::Expired, None, None).await? {
        ctx.wake(task);
        app.commit(ctx).await?;
    }
    Ok(())
}

async fn lose(app: &App, mut ctx: Ctx, job: JobId, task: TaskId) -> Result<(), Error> {
    if jobs::lose(ctx.conn(), job, task).await? {
        ctx.wake(task);
        app.commit(ctx).await?;
        tracing::warn!(event = "job.lost", job.id = %job, task.id = %task, "nothing was heard of a job");
    }
    Ok(())
}

async fn tell_of_halt(
    app: &App,
    request: &Request,
    halted: bool,
    fleet: jobs::Fleet,
) -> Result<(), Error> {
    let data = json!({ "workers": fleet.workers, "silent": fleet.silent, "setting": ANYWAY });
    let kind = if halted { EventKind::SweepHalted } else { EventKind::SweepResumed };
    if halted {
        let (workers, silent) = (fleet.workers, fleet.silent);
        let act = "look at the workers; to give their jobs up set workflow.sweep_anyway to true";
        tracing::error!(
            event = "sweep.halted",
            workers,
            silent,
            "most workers look dead at once: {act}"
        );
    }
    let mut ctx = app.open(request).await?;
    ctx.record(Told::new(kind, data)).await?;
    app.commit(ctx).await
}
