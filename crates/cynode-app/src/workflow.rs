//! The contract with whoever drives tasks: start, resume, checkpoint, renew, release.
//!
//! **Invariant**: a task is changed by a runner only under a live lease with the newest fencing token, and only by the
//! checkpoint that follows the last. State, history and effects of a node are one transaction.

mod effects;
pub mod signals;
mod steering;

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use cynode_core::{
    events::EventKind,
    ids::{TaskId, WaitId},
    tasks::{Task, TaskStateName},
    workflow::{
        self as graph, Next, Node, Verdict,
        waits::{WaitOwner, WaitReason},
    },
};
use cynode_db::{
    DbError, evidence, handoffs, tasks, units, waits,
    workflow::{self, Claimant, Counters, Granted, Lease, Resting, Standing, Step},
};
use cynode_wire::workflow::{
    Checkpoint, Effect, LeaseRef, LeaseView, NewWait, NextStep, Position, RenewLease, Resolution,
    ResumeWorkflow, Resumed, RunState, StartStatus, StartWorkflow, Started, TaskContext,
};
use serde_json::json;

use self::steering::Steered;
use crate::{Answer, App, Ctx, Error, Request, context::Told};

/// How long a lease lasts when its holder does not say.
const LEASE: u32 = 30;

/// Longest lease.
const LONGEST: u32 = 3600;

/// A lifetime in milliseconds.
pub(crate) fn lifetime(seconds: Option<u32>, default: u32) -> Result<i64, Error> {
    let seconds = seconds.unwrap_or(default);
    if !(1..=LONGEST).contains(&seconds) {
        return Err(Error::Invalid(format!("`expires_in_seconds` is 1 to {LONGEST}")));
    }
    Ok(i64::from(seconds) * 1000)
}

fn named<'a>(what: &str, text: &'a str) -> Result<&'a str, Error> {
    if (1..=200).contains(&text.chars().count()) && !text.chars().any(char::is_control) {
        Ok(text)
    } else {
        Err(Error::Invalid(format!("`{what}` has 1 to 200 characters")))
    }
}

/// Grants the lease of a task and says where its run stands. The one way in: whoever wants a task driven ends here.
#[tracing::instrument(name = "app.workflow.start", skip_all, fields(task.id = %body.task_id))]
pub async fn start(app: &App, request: &Request, body: &StartWorkflow) -> Result<Answer, Error> {
    let mut ctx = app.open(request).await?;
    let outcome = take(&mut ctx, body).await?;
    // A refusal at a gate is written down too: nobody need ask again before something happens.
    app.commit(ctx).await?;
    let started = outcome.map_err(Error::Gate)?;
    let body = serde_json::to_vec(&started).map_err(|error| Error::Internal(error.into()))?;
    Ok(Answer { body, replayed: false })
}

async fn take(ctx: &mut Ctx, body: &StartWorkflow) -> Result<Result<Started, &'static str>, Error> {
    let id = body.task_id;
    let lease_id = named("idempotency_key", &body.idempotency_key)?;
    let holder = named("holder", &body.holder)?;
    let instance = named("instance", body.instance.as_deref().unwrap_or(lease_id))?;
    let ttl_ms = lifetime(body.expires_in_seconds, LEASE)?;

    // The task first, then the lease: what is read after that cannot change before the commit.
    let state = tasks::lock_state(ctx.conn(), id).await?;
    state.ok_or_else(|| Error::not_found("task", id))?;
    let claimant = Claimant { holder, lease_id, instance, ttl_ms };
    let granted = workflow::grant(ctx.conn(), id, claimant).await?;
    let (status, fencing_token, expires_at) = match granted {
        Granted::New { fencing_token, expires_at } => {
            (StartStatus::Started, fencing_token, expires_at)
        }
        Granted::Already { fencing_token, expires_at } => {
            (StartStatus::AlreadyRunning, fencing_token, expires_at)
        }
        Granted::Held { holder, .. } => return Err(Error::Held { holder }),
    };
    let standing = workflow::standing(ctx.conn(), id).await?;
    let Some(standing) = standing else {
        return Err(Error::Gate("nobody has asked for it to be driven"));
    };
    ctx.trace = standing.trace;
    let lease = Lease { task: id, lease_id, fencing_token };
    match enter(ctx, id, standing, fencing_token).await? {
        Entered::In(task, position) => {
            let (holder, lease_id) = (holder.to_owned(), lease_id.to_owned());
            let lease = LeaseView { lease_id, holder, fencing_token, expires_at };
            Ok(Ok(Started { status, lease, task: *task, position: *position }))
        }
        Entered::Shut { gate, seen_wakes } => {
            workflow::release(ctx.conn(), lease).await?;
            // Nobody is called again before something happens.
            workflow::rest(ctx.conn(), id, Resting::AtAGate, seen_wakes, None).await?;
            Ok(Err(gate))
        }
    }
}

/// What became of an attempt to drive a task.
enum Entered {
    /// The gates were open.
    In(Box<TaskContext>, Box<Position>),
    /// A gate was shut, after so many things had happened.
    Shut { gate: &'static str, seen_wakes: i64 },
}

async fn enter(
    ctx: &mut Ctx,
    id: TaskId,
    standing: Standing,
    fencing_token: i64,
) -> Result<Entered, Error> {
    let shut = |gate| Ok(Entered::Shut { gate, seen_wakes: standing.wakes });
    let may_run = matches!(standing.task_state, TaskStateName::Queued | TaskStateName::Running);
    if standing.ended || !may_run {
        return Err(Error::Ended);
    }
    let task = tasks::get(ctx.conn(), id).await?.ok_or_else(|| Error::not_found("task", id))?;
    let checkpoint = match standing.checkpoint.clone() {
        Some(checkpoint) => checkpoint,
        None => {
            if !task.depends_on.is_empty()
                && !workflow::dependencies_completed(ctx.conn(), id).await?
            {
                return shut("what it depends on is not completed");
            }
            begin(ctx, &task).await?;
            workflow::begin(ctx.conn(), id, &standing, fencing_token).await?
        }
    };
    let Some(next) = checkpoint.next_node else { return Err(Error::Ended) };
    let mut at = steering::Place {
        sequence: checkpoint.sequence,
        next,
        state: read_state(checkpoint.state)?,
    };
    let counters = counters(&standing);
    let open = standing.open_wait.as_ref();
    match (steering::take_up(ctx, id, &counters, &mut at, open).await?, open) {
        (Steered::Paused, _) => return shut("a person paused it"),
        (Steered::No, Some(wait)) if wait.reason.blocks() => return shut(gate(wait.reason)),
        // Whoever asks too early learns it, and the time at which the run is due stays.
        (Steered::No, Some(_)) if !standing.due => {
            return Err(Error::Gate("it waits, and nothing has happened yet"));
        }
        (Steered::No, Some(wait)) => {
            waits::resolve(ctx.conn(), wait.id, Resolution::Woken, None, None).await?;
        }
        (Steered::Replanned | Steered::Continued, _) | (Steered::No, None) => {}
    }
    let preferences = if at.next == Node::FIRST {
        crate::preferences::of_workflow(ctx, &task).await?
    } else {
        at.state.preferences_effective.clone()
    };
    let context = context(task, preferences, &counters);
    let next = NextStep::Run { node: at.next };
    let mut position = position(ctx, id, counters, at.sequence, next).await?;
    if at.sequence > 0 {
        position.ended_wait = waits::ended(ctx.conn(), id).await?;
        // Whoever asks waits, so the answer is only ever there for one who starts again.
        position.handoff = handoffs::of_run(ctx.conn(), id).await?;
    }
    position.state = Some(at.state);
    Ok(Entered::In(Box::new(context), Box::new(position)))
}

fn read_state(state: serde_json::Value) -> Result<RunState, Error> {
    serde_json::from_value(state)
        .map_err(|error| Error::Internal(anyhow::Error::from(error).context("a checkpoint")))
}

const fn counters(standing: &Standing) -> Counters {
    Counters {
        run: standing.run,
        trace: standing.trace,
        wakes: standing.wakes,
        retries_used: standing.retries_used,
        instructions_waiting: standing.instructions_waiting,
    }
}

const fn gate(reason: WaitReason) -> &'static str {
    match reason {
        WaitReason::Approval => "its plan waits for a person's yes",
        WaitReason::HumanInput => "it waits for a person's answer",
        WaitReason::Paused => "a person paused it",
        WaitReason::Job | WaitReason::Retry | WaitReason::Quota | WaitReason::Agent => "it waits",
    }
}

/// The task runs from now on.
async fn begin(ctx: &mut Ctx, task: &Task) -> Result<(), Error> {
    let now = ctx.now;
    let state = task.state.clone().start(now)?;
    tasks::set_state(ctx.conn(), task.id, &state, now).await?;
    let told = Told::new(EventKind::TaskStarted, json!({ "name": task.name }));
    ctx.record(told.project(task.project).task(task.id)).await
}

fn context(
    task: Task,
    preferences: std::collections::BTreeMap<cynode_core::names::DottedKey, serde_json::Value>,
    counters: &Counters,
) -> TaskContext {
    TaskContext {
        project_id: task.project,
        name: task.name,
        description: task.description,
        acceptance_criteria: task.acceptance_criteria,
        preferences,
        trace_id: counters.trace.to_string(),
    }
}

async fn position(
    ctx: &mut Ctx,
    id: TaskId,
    counters: Counters,
    sequence: i64,
    next: NextStep,
) -> Result<Position, Error> {
    // Loading and judging need no units; whoever plans anew must see which of them failed.
    let needed = match &next {
        NextStep::Run {
            node: Node::PlanSteps | Node::DispatchStep | Node::CollectResult | Node::FinalizeSummary,
        }
        | NextStep::Wait { .. } => sequence > 1,
        NextStep::Run {
            node: Node::LoadTaskContext | Node::VerifyStepResult | Node::MarkFailed,
        }
        | NextStep::End => false,
    };
    // Whoever sends what builds on them, or sums up, needs what the units brought.
    let taken_too =
        matches!(&next, NextStep::Run { node: Node::DispatchStep | Node::FinalizeSummary });
    let units = if needed { units::of_task(ctx.conn(), id, taken_too).await? } else { Vec::new() };
    let judged = matches!(
        &next,
        NextStep::Run {
            node: Node::CollectResult | Node::VerifyStepResult | Node::FinalizeSummary
        } | NextStep::Wait { node: Node::CollectResult | Node::VerifyStepResult, .. }
    );
    let evidence = if judged { evidence::of_task(ctx.conn(), id, true).await? } else { Vec::new() };
    Ok(Position {
        task_id: id,
        run_id: counters.run,
        sequence,
        next,
        wakes: counters.wakes,
        retries_used: counters.retries_used,
        units,
        state: None,
        ended_wait: None,
        handoff: None,
        evidence,
    })
}

/// How long it waits for a sign from this process before it looks by itself: other processes write too.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Says where a run stands, without taking it; if so asked, only when something has happened to it.
#[tracing::instrument(name = "app.workflow.resume", skip_all, fields(task.id = %body.task_id))]
pub async fn resume(app: &App, request: &Request, body: &ResumeWorkflow) -> Result<Resumed, Error> {
    let id = body.task_id;
    if let Some(seen) = body.seen_wakes {
        let happened = until_happened(app, id, seen, patience(body.wait_ms)).await;
        app.unwatch(id);
        happened?;
    }
    app.read(request, |ctx| Box::pin(standing_of(ctx, id))).await
}

/// Longest wait for something to happen.
pub(crate) fn patience(wait_ms: Option<u32>) -> Duration {
    Duration::from_millis(wait_ms.unwrap_or(0).min(20_000).into())
}

async fn until_happened(app: &App, id: TaskId, seen: i64, wait: Duration) -> Result<(), Error> {
    let until = Instant::now() + wait;
    loop {
        let sign = app.sign_of(id);
        let mut conn = app.pool().acquire().await.map_err(DbError::from)?;
        if workflow::wakes(&mut conn, id).await?.is_none_or(|wakes| wakes != seen) {
            return Ok(());
        }
        drop(conn);
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(());
        }
        let _ = tokio::time::timeout(left.min(LOOK_EVERY), sign).await;
    }
}

async fn standing_of(ctx: &mut Ctx, id: TaskId) -> Result<Resumed, Error> {
    let task = tasks::get(ctx.conn(), id).await?.ok_or_else(|| Error::not_found("task", id))?;
    // What happened is counted before the jobs are looked at: a result in between is seen, or counted, or both.
    let standing = workflow::standing(ctx.conn(), id).await?;
    let standing = standing.ok_or_else(|| Error::not_found("workflow of task", id))?;
    let counters = counters(&standing);
    let checkpoint =
        standing.checkpoint.ok_or_else(|| Error::not_found("checkpoint of task", id))?;
    let next = match (checkpoint.next_node, standing.open_wait) {
        (Some(node), Some(wait)) => waiting(node, wait.reason),
        (Some(node), None) if !standing.ended => NextStep::Run { node },
        (Some(_) | None, _) => NextStep::End,
    };
    let state = read_state(checkpoint.state)?;
    let mut position = position(ctx, id, counters, checkpoint.sequence, next).await?;
    if matches!(position.next, NextStep::Run { .. }) && checkpoint.sequence > 0 {
        position.ended_wait = waits::ended(ctx.conn(), id).await?;
    }
    position.handoff = handoffs::of_run(ctx.conn(), id).await?;
    let preferences = if checkpoint.next_node == Some(Node::FIRST) {
        crate::preferences::of_workflow(ctx, &task).await?
    } else {
        state.preferences_effective.clone()
    };
    position.state = Some(state);
    let (last_node, updated_at) = (checkpoint.last_node, checkpoint.updated_at);
    Ok(Resumed { task: context(task, preferences, &counters), position, last_node, updated_at })
}

const fn waiting(node: Node, reason: WaitReason) -> NextStep {
    NextStep::Wait { node, reason, owner: reason.owner() }
}

fn lease(body: &LeaseRef) -> Lease<'_> {
    Lease { task: body.task_id, lease_id: &body.lease_id, fencing_token: body.fencing_token }
}

const SUPERSEDED: &str =
    "the lease has ended or was given to somebody else, or the run has gone on";

/// Stores what a node did and says what follows. Stored again under the same grant, nothing changes.
#[tracing::instrument(name = "app.workflow.checkpoint", skip_all,
    fields(task.id = %body.lease.task_id, sequence = body.sequence, node = body.node.as_str()))]
pub async fn checkpoint(app: &App, request: &Request, body: Checkpoint) -> Result<Answer, Error> {
    // Operations own what they work with; this one may need it twice.
    let body = Arc::new(body);
    if (body.verdict == Verdict::Wait) != body.wait.is_some() {
        return Err(Error::Invalid("`wait` belongs to the verdict `wait`, and only to it".into()));
    }
    if let Some(wait) = &body.wait
        && matches!(wait.reason.owner(), WaitOwner::Clock | WaitOwner::Operator)
        && wait.wake_in_ms.is_none()
        && wait.expires_in_seconds.is_none()
    {
        return Err(Error::Invalid("a wait that nobody ends needs `wake_in_ms`".into()));
    }
    let next = graph::next(body.node, body.verdict);
    let alone =
        body.effects.is_empty() && matches!(next, Next::Go(_)) && body.verdict != Verdict::Redo;
    if !alone {
        return app
            .mutate(request, |ctx| Box::pin(async move { store_all(ctx, &body, next).await }))
            .await;
    }
    // A checkpoint that changes nothing else is one statement, and needs no transaction around it.
    let first = body.clone();
    let stored = app
        .read(request, |ctx| Box::pin(async move { store_alone(ctx, &first, next).await }))
        .await?;
    match stored {
        Some(position) => {
            let body = serde_json::to_vec(&position);
            let body = body.map_err(|error| Error::Internal(error.into()))?;
            Ok(Answer { body, replayed: false })
        }
        // A person said something: it is taken up now. Should we die before, it is taken up at the next step.
        None => {
            app.mutate(request, |ctx| Box::pin(async move { taken_up(ctx, &body, next).await }))
                .await
        }
    }
}

fn followed_by(next: Next, wait: Option<&NewWait>) -> (NextStep, Option<Node>) {
    match next {
        Next::Go(node) => (NextStep::Run { node }, Some(node)),
        Next::Stay(node) => {
            let reason = wait.map_or(WaitReason::Retry, |wait| wait.reason);
            (waiting(node, reason), Some(node))
        }
        Next::End => (NextStep::End, None),
    }
}

async fn store(
    ctx: &mut Ctx,
    body: &Checkpoint,
    next_node: Option<Node>,
) -> Result<Option<Counters>, Error> {
    let state = serde_json::to_value(&body.state).map_err(|error| Error::Internal(error.into()))?;
    let number = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
    let step = Step {
        sequence: body.sequence,
        node: body.node,
        verdict: body.verdict,
        next_node,
        state: &state,
        unit: body.unit.as_ref().map(|unit| unit.as_str()),
        attempt: i32::try_from(body.attempt.max(1)).unwrap_or(i32::MAX),
        duration_ms: number(body.duration_ms),
        cost_micros: number(body.cost_micros),
        note: body.note.as_deref(),
    };
    Ok(workflow::advance(ctx.conn(), lease(&body.lease), &step).await?)
}

/// `None` when an instruction waits to be taken up.
async fn store_alone(
    ctx: &mut Ctx,
    body: &Checkpoint,
    next: Next,
) -> Result<Option<Position>, Error> {
    let (next, next_node) = followed_by(next, None);
    match store(ctx, body, next_node).await? {
        None => repeated(ctx, body).await.map(Some),
        Some(counters) if counters.instructions_waiting > 0 => Ok(None),
        Some(counters) => {
            position(ctx, body.lease.task_id, counters, body.sequence, next).await.map(Some)
        }
    }
}

async fn taken_up(ctx: &mut Ctx, body: &Checkpoint, next: Next) -> Result<Position, Error> {
    let id = body.lease.task_id;
    // Nobody else may move the run while its course is changed.
    if !workflow::hold(ctx.conn(), lease(&body.lease)).await? {
        return Err(Error::Fenced(SUPERSEDED));
    }
    let standing = workflow::standing(ctx.conn(), id).await?;
    let standing = standing.ok_or_else(|| Error::not_found("workflow of task", id))?;
    steered(ctx, body, counters(&standing), followed_by(next, None).0).await
}

/// Takes up what people said, and says what follows.
async fn steered(
    ctx: &mut Ctx,
    body: &Checkpoint,
    counters: Counters,
    next: NextStep,
) -> Result<Position, Error> {
    let id = body.lease.task_id;
    let NextStep::Run { node } = next else {
        // A run that waits or has ended takes instructions up when it is started again.
        return position(ctx, id, counters, body.sequence, next).await;
    };
    let (sequence, state) = (body.sequence, body.state.clone());
    let mut at = steering::Place { sequence, next: node, state };
    let next = match steering::take_up(ctx, id, &counters, &mut at, None).await? {
        Steered::No | Steered::Continued => {
            return position(ctx, id, counters, body.sequence, next).await;
        }
        Steered::Replanned => NextStep::Run { node: at.next },
        Steered::Paused => {
            workflow::release(ctx.conn(), lease(&body.lease)).await?;
            waiting(at.next, WaitReason::Paused)
        }
    };
    let mut position = position(ctx, id, counters, at.sequence, next).await?;
    position.state = Some(at.state);
    Ok(position)
}

async fn store_all(ctx: &mut Ctx, body: &Checkpoint, next: Next) -> Result<Position, Error> {
    let (id, lease) = (body.lease.task_id, lease(&body.lease));
    let (next, next_node) = followed_by(next, body.wait.as_ref());
    let task = if next_node.is_none() { tasks::lock(ctx.conn(), id).await? } else { None };
    let Some(mut counters) = store(ctx, body, next_node).await? else {
        return repeated(ctx, body).await;
    };
    // What a person said before the end must be heard: the run is started again, and takes it up.
    if next_node.is_none() && counters.instructions_waiting > 0 {
        return Err(Error::Fenced("a person has said something meanwhile"));
    }
    ctx.trace = counters.trace;
    // Also a unit that failed and for which less is planned: what comes in its place is tried from the first attempt on.
    let failed = body.effects.iter().any(|effect| matches!(effect, Effect::FailUnit { .. }));
    if body.verdict == Verdict::Redo
        || (body.verdict == Verdict::Revise && failed)
        || body.wait.as_ref().is_some_and(|wait| wait.reason == WaitReason::Retry)
    {
        workflow::count_retry(ctx.conn(), id).await?;
        counters.retries_used += 1;
    }
    if !body.effects.is_empty() {
        // The run before its units, jobs and handoffs, as whoever reports a result or an answer takes them.
        workflow::lock_run(ctx.conn(), id).await?;
    }
    effects::apply(ctx, id, counters.trace, &body.effects).await?;
    match (&body.wait, task) {
        (Some(wait), _) => rest(ctx, id, body, wait).await?,
        (None, Some(task)) => end(ctx, task, body).await?,
        (None, None) => {}
    }
    if body.wait.is_some() {
        workflow::release(ctx.conn(), lease).await?;
    }
    steered(ctx, body, counters, next).await
}

/// The answer to a checkpoint that was stored before; a refusal if it was not, or not by this holder.
async fn repeated(ctx: &mut Ctx, body: &Checkpoint) -> Result<Position, Error> {
    if !workflow::stored(ctx.conn(), lease(&body.lease), body.sequence, body.node).await? {
        return Err(Error::Fenced(SUPERSEDED));
    }
    let position = standing_of(ctx, body.lease.task_id).await?.position;
    // Only who still holds the lease may drive on.
    let drives = matches!(position.next, NextStep::Run { .. });
    if drives && !workflow::hold(ctx.conn(), lease(&body.lease)).await? {
        return Err(Error::Fenced(SUPERSEDED));
    }
    Ok(position)
}

/// Longest wait for a time: ten years.
const LONGEST_WAIT_MS: u64 = 10 * 365 * 24 * 3600 * 1000;

fn bounded(milliseconds: u64) -> i64 {
    i64::try_from(milliseconds.min(LONGEST_WAIT_MS)).unwrap_or(i64::MAX)
}

async fn rest(ctx: &mut Ctx, id: TaskId, body: &Checkpoint, wait: &NewWait) -> Result<(), Error> {
    let new = waits::NewWait {
        id: WaitId::from_uuid(ctx.uuid()),
        sequence: body.sequence,
        reason: wait.reason,
        question: wait.question.as_deref(),
        expires_in_ms: wait.expires_in_seconds.map(|seconds| bounded(seconds.saturating_mul(1000))),
    };
    let wake_in = wait.wake_in_ms.map(bounded);
    workflow::rest(ctx.conn(), id, Resting::AtANode, body.seen_wakes, wake_in).await?;
    waits::open(ctx.conn(), id, &new).await?;
    // What came meanwhile makes the run due at once.
    ctx.wake(id);
    if wait.reason.blocks() { tell_who_waits(ctx, id, &new).await } else { Ok(()) }
}

/// Tells people that a task waits for one of them, and what it asks.
async fn tell_who_waits(ctx: &mut Ctx, id: TaskId, wait: &waits::NewWait<'_>) -> Result<(), Error> {
    let task = tasks::get(ctx.conn(), id).await?.ok_or_else(|| Error::not_found("task", id))?;
    let data = json!({ "name": task.name, "reason": wait.reason, "question": wait.question, "wait_id": wait.id });
    let told = Told::new(EventKind::TaskWaiting, data);
    ctx.record(told.project(task.project).task(id)).await
}

/// Ends the task with its run and its lease.
async fn end(ctx: &mut Ctx, task: Task, body: &Checkpoint) -> Result<(), Error> {
    let (id, now) = (task.id, ctx.now);
    let well = body.node == Node::FinalizeSummary;
    let ended = workflow::end(ctx.conn(), id, if well { "completed" } else { "failed" }).await?;
    let (state, kind, failure) = if well {
        if ended.unsettled {
            let left = "a task with units that are not done cannot be completed";
            return Err(Error::Invalid(left.into()));
        }
        crate::evidence::must_hold(ctx.conn(), id, &task.acceptance_criteria).await?;
        crate::delivery::must_be_delivered(ctx, &task).await?;
        (task.state.complete(now)?, EventKind::TaskCompleted, None)
    } else {
        let reason = body.note.clone().unwrap_or_else(|| "it was given up".to_owned());
        units::cancel_all(ctx.conn(), id).await?;
        cynode_db::jobs::cancel_unwanted(ctx.conn(), id).await?;
        (task.state.fail(now, reason.clone())?, EventKind::TaskFailed, Some(reason))
    };
    tasks::set_state(ctx.conn(), id, &state, now).await?;
    crate::handoffs::drop_all(ctx, id).await?;
    // Whoever still works on it works for nothing, and calls no more tools.
    cynode_db::agent_tokens::revoke_of_task(ctx.conn(), id, now).await?;
    if well && ended.has_dependents {
        workflow::wake_dependents(ctx.conn(), id).await?;
        ctx.wake(id);
    }
    let data = json!({ "name": task.name, "summary": body.state.summary, "failure": failure });
    ctx.record(Told::new(kind, data).project(task.project).task(id)).await
}

/// Asks for a task to be driven now, as a person or the project manager does. Whoever drives it comes by [`start`]: there is
/// no other way in.
#[tracing::instrument(name = "app.workflow.request", skip_all, fields(task.id = %id))]
pub async fn request(ctx: &mut Ctx, id: TaskId) -> Result<Task, Error> {
    let task = crate::tasks::get(ctx, id).await?;
    ctx.require_in(task.project, cynode_core::roles::Role::Operator).await?;
    if !matches!(task.state.name(), TaskStateName::Queued | TaskStateName::Running) {
        return Err(Error::Ended);
    }
    workflow::wake(ctx.conn(), &[id.as_uuid()]).await?;
    ctx.wake(id);
    Ok(task)
}

/// Gives a lease more time.
#[tracing::instrument(name = "app.workflow.renew", skip_all, fields(task.id = %body.task_id))]
pub async fn renew(ctx: &mut Ctx, body: &RenewLease) -> Result<LeaseView, Error> {
    let ttl = lifetime(body.expires_in_seconds, LEASE)?;
    let RenewLease { task_id, lease_id, fencing_token, .. } = body;
    let lease = Lease { task: *task_id, lease_id, fencing_token: *fencing_token };
    let renewed = workflow::renew(ctx.conn(), lease, ttl).await?;
    let (holder, expires_at) = renewed.ok_or(Error::Fenced(SUPERSEDED))?;
    Ok(LeaseView { lease_id: lease_id.clone(), holder, fencing_token: *fencing_token, expires_at })
}

/// Gives a lease back before it ends; the run stays due. A lease that is not the holder's any more is left alone.
#[tracing::instrument(name = "app.workflow.release", skip_all, fields(task.id = %body.task_id))]
pub async fn release(ctx: &mut Ctx, body: &LeaseRef) -> Result<(), Error> {
    workflow::release(ctx.conn(), lease(body)).await?;
    ctx.wake(body.task_id);
    Ok(())
}
