//! Workflow contract with runners: start, resume, checkpoint, renew and release a run.
//!
//! **Invariant**: a runner changes a task only under a live lease with the newest fencing token, and only by the
//! checkpoint that follows the last one. State, history and effects of a step are one transaction.

mod effects;
mod instructions;
pub mod jobs;
pub mod liveness;
pub(crate) mod placement;
pub mod reviews;
pub mod schedules;
pub mod signals;
pub mod timeline;

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use cynode_core::{
    events::EventKind,
    ids::{TaskId, WaitId},
    tasks::{Task, TaskStateName},
    workflow as graph,
    workflow::{
        StepTransition, StepVerdict, WorkflowStep,
        instructions::InstructionDecision,
        plan::Plan,
        waits::{WaitOwner, WaitReason, WaitResolution},
    },
};
use cynode_db::{
    delivery::evidence,
    manager::handoffs,
    tasks,
    workflow::{
        self, LeaseClaimant, LeaseGrant, LeaseHandle, RunContents, RunCounters, RunStatus,
        StepRecord, StoredStep, SuspendPoint, units, waits,
    },
};
use cynode_wire::workflow::{
    LeaseRef, LeaseView, NewWait, NextStep, RenewLease, ResumeWorkflow, ResumeWorkflowResult,
    RunState, StartStatus, StartWorkflow, StartWorkflowResult, StepCheckpoint, StepEffect,
    TaskContext, WorkflowPosition,
};
use serde_json::json;

use crate::{
    App, Ctx, Error, OperationAnswer, OperationRequest,
    delivery::task_environments,
    platform::{
        context::EventDraft,
        operation,
        timeouts::{validate_ttl_ms, wait_timeout},
    },
};

/// Lifetime of a lease when its holder names none.
const DEFAULT_LEASE_TTL_SECONDS: u32 = 30;

fn validate_label<'a>(what: &str, text: &'a str) -> Result<&'a str, Error> {
    if (1..=200).contains(&text.chars().count()) && !text.chars().any(char::is_control) {
        Ok(text)
    } else {
        Err(Error::Invalid(format!("`{what}` has 1 to 200 characters")))
    }
}

/// Grants the lease of a task and returns the position of its run. This is the only way to start driving a task.
#[tracing::instrument(name = "app.workflow.start_workflow", skip_all, fields(task.id = %body.task_id))]
#[operation]
pub async fn start_workflow(
    app: &App,
    request: &OperationRequest,
    body: &StartWorkflow,
) -> Result<OperationAnswer, Error> {
    // Reading a repository takes its time, so that it happens before the transaction.
    task_environments::propose_for_task(app, request, body.task_id).await;
    let mut ctx = app.begin_transaction(request).await?;
    let outcome = claim_run(&mut ctx, body).await?;
    // A refusal because the task is not runnable is committed too: no driver is dispatched again before something
    // happens.
    app.commit_operation(ctx).await?;
    let started = outcome.map_err(Error::NotRunnable)?;
    let body = serde_json::to_vec(&started).map_err(|error| Error::Internal(error.into()))?;
    Ok(OperationAnswer { body, replayed: false })
}

async fn claim_run(
    ctx: &mut Ctx,
    body: &StartWorkflow,
) -> Result<Result<StartWorkflowResult, &'static str>, Error> {
    let id = body.task_id;
    let lease_id = validate_label("idempotency_key", &body.idempotency_key)?;
    let holder = validate_label("holder", &body.holder)?;
    let instance = validate_label("instance", body.instance.as_deref().unwrap_or(lease_id))?;
    let ttl_ms = validate_ttl_ms(body.expires_in_seconds, DEFAULT_LEASE_TTL_SECONDS)?;

    // The order of locks is task, then lease. Values read after that cannot change before the commit.
    let claimant = LeaseClaimant { holder, lease_id, instance, ttl_ms };
    let granted = workflow::grant_lease(ctx.conn(), id, claimant).await?;
    let granted = granted.ok_or_else(|| Error::not_found("task", id))?;
    let (status, fencing_token, expires_at) = match granted {
        LeaseGrant::New { fencing_token, expires_at } => {
            (StartStatus::Started, fencing_token, expires_at)
        }
        LeaseGrant::Already { fencing_token, expires_at } => {
            (StartStatus::AlreadyRunning, fencing_token, expires_at)
        }
        LeaseGrant::Held { holder, .. } => return Err(Error::LeaseHeld { holder }),
    };
    let standing = workflow::get_run_status(ctx.conn(), id).await?;
    let Some(standing) = standing else {
        return Err(Error::NotRunnable("nobody has asked for it to be driven"));
    };
    ctx.trace = standing.trace;
    let lease = LeaseHandle { task: id, lease_id, fencing_token };
    match admit_run(ctx, id, standing, fencing_token).await? {
        AdmissionOutcome::In(task, position) => {
            let (holder, lease_id) = (holder.to_owned(), lease_id.to_owned());
            let lease = LeaseView { lease_id, holder, fencing_token, expires_at };
            Ok(Ok(StartWorkflowResult { status, lease, task: *task, position: *position }))
        }
        AdmissionOutcome::Shut { gate, seen_wakes } => {
            workflow::release_lease(ctx.conn(), lease).await?;
            // No driver is dispatched again before something happens.
            workflow::suspend_run(ctx.conn(), id, SuspendPoint::AtAGate, seen_wakes, None).await?;
            Ok(Err(gate))
        }
    }
}

/// Outcome of an attempt to drive a task.
enum AdmissionOutcome {
    /// The task is runnable.
    In(Box<TaskContext>, Box<WorkflowPosition>),
    /// The task is not runnable. `seen_wakes` is the number of wake-ups that the decision has seen.
    Shut { gate: &'static str, seen_wakes: i64 },
}

async fn admit_run(
    ctx: &mut Ctx,
    id: TaskId,
    standing: RunStatus,
    fencing_token: i64,
) -> Result<AdmissionOutcome, Error> {
    let shut = |gate| Ok(AdmissionOutcome::Shut { gate, seen_wakes: standing.wakes });
    let may_run = matches!(standing.task_state, TaskStateName::Queued | TaskStateName::Running);
    if standing.ended || !may_run {
        return Err(Error::TaskEnded);
    }
    let task =
        tasks::get_task(ctx.conn(), id).await?.ok_or_else(|| Error::not_found("task", id))?;
    let checkpoint = match standing.checkpoint.clone() {
        Some(checkpoint) => checkpoint,
        None => {
            if !task.depends_on.is_empty()
                && !workflow::has_completed_dependencies(ctx.conn(), id).await?
            {
                return shut("what it depends on is not completed");
            }
            start_task(ctx, &task).await?;
            workflow::insert_first_checkpoint(ctx.conn(), id, &standing, fencing_token).await?
        }
    };
    let Some(next) = checkpoint.next_node else { return Err(Error::TaskEnded) };
    let mut at = instructions::RunPosition {
        sequence: checkpoint.sequence,
        next,
        state: parse_run_state(checkpoint.state)?,
    };
    let counters = to_counters(&standing);
    let open = standing.open_wait.as_ref();
    match (instructions::apply_pending(ctx, id, &counters, &mut at, open).await?, open) {
        (InstructionDecision::Pause { .. } | InstructionDecision::StayPaused, _) => {
            return shut("a person paused it");
        }
        (InstructionDecision::Continue, Some(wait)) if wait.reason.blocks_start() => {
            return shut(blocking_reason(wait.reason));
        }
        // A driver that asks too early is refused, and the time at which the run is due stays unchanged.
        (InstructionDecision::Continue, Some(_)) if !standing.due => {
            return Err(Error::NotRunnable("it waits, and nothing has happened yet"));
        }
        (InstructionDecision::Continue, Some(wait)) => {
            waits::resolve_wait(ctx.conn(), wait.id, WaitResolution::Woken, None, None).await?;
        }
        (InstructionDecision::Replan { .. } | InstructionDecision::Resume, _)
        | (InstructionDecision::Continue, None) => {}
    }
    let preferences = if at.next == WorkflowStep::FIRST {
        crate::tasks::preferences::workflow_preferences(ctx, &task).await?
    } else {
        let stored = &mut at.state.preferences_effective;
        crate::tasks::preferences::bound_stored_preferences(ctx, &task, stored).await?;
        stored.clone()
    };
    let plan = parse_given_plan(standing.given_plan)?;
    let context = to_task_context(task, preferences, &counters, plan);
    let next = NextStep::Run { node: at.next };
    let mut position = build_position(ctx, id, counters, at.sequence, next).await?;
    if at.sequence > 0 {
        position.ended_wait = waits::find_ended_wait(ctx.conn(), id).await?;
        // The run waits while the handoff is open, so only a driver that starts again finds its answer.
        position.handoff = handoffs::handoff_of_run(ctx.conn(), id).await?;
    }
    position.state = Some(at.state);
    Ok(AdmissionOutcome::In(Box::new(context), Box::new(position)))
}

fn parse_run_state(state: serde_json::Value) -> Result<RunState, Error> {
    serde_json::from_value(state)
        .map_err(|error| Error::Internal(anyhow::Error::from(error).context("a checkpoint")))
}

const fn to_counters(standing: &RunStatus) -> RunCounters {
    RunCounters {
        run: standing.run,
        trace: standing.trace,
        wakes: standing.wakes,
        retries_used: standing.retries_used,
        instructions_waiting: standing.instructions_waiting,
    }
}

const fn blocking_reason(reason: WaitReason) -> &'static str {
    match reason {
        WaitReason::Approval => "its plan waits for a person's yes",
        WaitReason::HumanInput => "it waits for a person's answer",
        WaitReason::Paused => "a person paused it",
        WaitReason::Job | WaitReason::Retry | WaitReason::Quota | WaitReason::Agent => "it waits",
    }
}

/// Marks the task as running.
async fn start_task(ctx: &mut Ctx, task: &Task) -> Result<(), Error> {
    let now = ctx.now;
    let state = task.state.clone().into_running(now)?;
    tasks::set_task_state(ctx.conn(), task.id, &state, now).await?;
    let told = EventDraft::new(EventKind::TaskStarted, json!({ "name": task.name }));
    ctx.record_event(told.with_project(task.project).with_task(task.id)).await
}

fn to_task_context(
    task: Task,
    preferences: std::collections::BTreeMap<cynode_core::names::DottedKey, serde_json::Value>,
    counters: &RunCounters,
    plan: Option<Plan>,
) -> TaskContext {
    TaskContext {
        project_id: task.project,
        name: task.name,
        description: task.description,
        acceptance_criteria: task.acceptance_criteria,
        preferences,
        trace_id: counters.trace.to_string(),
        plan,
    }
}

/// Parses the plan that was given with a task, if one was.
fn parse_given_plan(stored: Option<serde_json::Value>) -> Result<Option<Plan>, Error> {
    let parsed = stored.map(serde_json::from_value).transpose();
    parsed.map_err(|error| Error::Internal(anyhow::Error::from(error).context("a given plan")))
}

/// What a step needs to know of its run.
struct StepNeeds {
    contents: RunContents,
    /// Whether the results of units that were taken up are needed too.
    taken_too: bool,
}

impl StepNeeds {
    fn of_step(sequence: i64, next: &NextStep) -> Self {
        // Loading and judging need no units. Planning anew needs to know the failed ones.
        let units = match next {
            NextStep::Run {
                node:
                    WorkflowStep::PlanSteps
                    | WorkflowStep::DispatchStep
                    | WorkflowStep::CollectResult
                    | WorkflowStep::FinalizeSummary,
            }
            | NextStep::Wait { .. } => sequence > 1,
            NextStep::Run {
                node:
                    WorkflowStep::LoadTaskContext
                    | WorkflowStep::VerifyStepResult
                    | WorkflowStep::MarkFailed,
            }
            | NextStep::End => false,
        };
        // The steps that dispatch dependent units or summarize need the results of the units.
        let taken_too = matches!(
            next,
            NextStep::Run { node: WorkflowStep::DispatchStep | WorkflowStep::FinalizeSummary }
        );
        let evidence = matches!(
            next,
            NextStep::Run {
                node: WorkflowStep::CollectResult
                    | WorkflowStep::VerifyStepResult
                    | WorkflowStep::FinalizeSummary
            } | NextStep::Wait {
                node: WorkflowStep::CollectResult | WorkflowStep::VerifyStepResult,
                ..
            }
        );
        let plans = matches!(
            next,
            NextStep::Run { node: WorkflowStep::PlanSteps }
                | NextStep::Wait { node: WorkflowStep::PlanSteps, .. }
        );
        let base_checks = plans && sequence > 1;
        let environment = matches!(next, NextStep::Run { node: WorkflowStep::PlanSteps });
        Self { contents: RunContents { units, evidence, base_checks, environment }, taken_too }
    }
}

async fn build_position(
    ctx: &mut Ctx,
    id: TaskId,
    counters: RunCounters,
    sequence: i64,
    next: NextStep,
) -> Result<WorkflowPosition, Error> {
    let needs = StepNeeds::of_step(sequence, &next);
    load_position(ctx, id, counters, sequence, next, &needs).await
}

/// Loads what a step needs. `needs` may leave out records that are known not to be there.
async fn load_position(
    ctx: &mut Ctx,
    id: TaskId,
    counters: RunCounters,
    sequence: i64,
    next: NextStep,
    needs: &StepNeeds,
) -> Result<WorkflowPosition, Error> {
    let contents = needs.contents;
    let units = if contents.units {
        units::list_task_units(ctx.conn(), id, needs.taken_too).await?
    } else {
        Vec::new()
    };
    let evidence = if contents.evidence {
        evidence::list_task_evidence(ctx.conn(), id, true).await?
    } else {
        Vec::new()
    };
    let base_checks =
        if contents.base_checks { evidence::get_base_checks(ctx.conn(), id).await? } else { None };
    let environment = if contents.environment {
        task_environments::load_environment_facts(ctx.conn(), id).await?
    } else {
        None
    };
    Ok(WorkflowPosition {
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
        base_checks,
        environment,
    })
}

/// How long a long poll waits for a wake-up of this process before it polls: other processes write too.
const RUN_POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Returns the position of a run without taking its lease. With a wait time it returns only after something has
/// happened to it.
#[tracing::instrument(name = "app.workflow.resume_workflow", skip_all, fields(task.id = %body.task_id))]
#[operation]
pub async fn resume_workflow(
    app: &App,
    request: &OperationRequest,
    body: &ResumeWorkflow,
) -> Result<ResumeWorkflowResult, Error> {
    let id = body.task_id;
    if let Some(seen) = body.seen_wakes {
        let happened = until_run_changed(app, id, seen, wait_timeout(body.wait_ms)).await;
        app.unwatch_task(id);
        happened?;
    }
    app.read(request, |ctx| Box::pin(load_standing(ctx, id))).await
}

async fn until_run_changed(app: &App, id: TaskId, seen: i64, wait: Duration) -> Result<(), Error> {
    let until = Instant::now() + wait;
    loop {
        let sign = app.task_signal(id);
        let mut conn = app.conn().await?;
        if workflow::get_wake_count(&mut conn, id).await?.is_none_or(|wakes| wakes != seen) {
            return Ok(());
        }
        drop(conn);
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(());
        }
        let _ = tokio::time::timeout(left.min(RUN_POLL_INTERVAL), sign).await;
    }
}

async fn load_standing(ctx: &mut Ctx, id: TaskId) -> Result<ResumeWorkflowResult, Error> {
    let task =
        tasks::get_task(ctx.conn(), id).await?.ok_or_else(|| Error::not_found("task", id))?;
    // The wake count is read before the jobs: a result that arrives in between is seen, or counted, or both.
    let standing = workflow::get_run_status(ctx.conn(), id).await?;
    let standing = standing.ok_or_else(|| Error::not_found("workflow of task", id))?;
    let counters = to_counters(&standing);
    let checkpoint =
        standing.checkpoint.ok_or_else(|| Error::not_found("checkpoint of task", id))?;
    let next = match (checkpoint.next_node, standing.open_wait) {
        (Some(node), Some(wait)) => to_wait_step(node, wait.reason),
        (Some(node), None) if !standing.ended => NextStep::Run { node },
        (Some(_) | None, _) => NextStep::End,
    };
    let mut state = parse_run_state(checkpoint.state)?;
    let mut position = build_position(ctx, id, counters, checkpoint.sequence, next).await?;
    if matches!(position.next, NextStep::Run { .. }) && checkpoint.sequence > 0 {
        position.ended_wait = waits::find_ended_wait(ctx.conn(), id).await?;
    }
    position.handoff = handoffs::handoff_of_run(ctx.conn(), id).await?;
    let preferences = if checkpoint.next_node == Some(WorkflowStep::FIRST) {
        crate::tasks::preferences::workflow_preferences(ctx, &task).await?
    } else {
        let stored = &mut state.preferences_effective;
        crate::tasks::preferences::bound_stored_preferences(ctx, &task, stored).await?;
        stored.clone()
    };
    position.state = Some(state);
    let (last_node, updated_at) = (checkpoint.last_node, checkpoint.updated_at);
    let plan = parse_given_plan(standing.given_plan)?;
    Ok(ResumeWorkflowResult {
        task: to_task_context(task, preferences, &counters, plan),
        position,
        last_node,
        updated_at,
    })
}

const fn to_wait_step(node: WorkflowStep, reason: WaitReason) -> NextStep {
    NextStep::Wait { node, reason, owner: reason.wait_owner() }
}

fn to_lease(body: &LeaseRef) -> LeaseHandle<'_> {
    LeaseHandle { task: body.task_id, lease_id: &body.lease_id, fencing_token: body.fencing_token }
}

const SUPERSEDED_MESSAGE: &str =
    "the lease has ended or was given to somebody else, or the run has gone on";

/// Stores the checkpoint of a step and returns the next step. Storing it again under the same lease changes nothing.
#[tracing::instrument(name = "app.workflow.store_checkpoint", skip_all,
    fields(task.id = %body.lease.task_id, sequence = body.sequence, node = body.node.as_str()))]
#[operation]
pub async fn store_checkpoint(
    app: &App,
    request: &OperationRequest,
    body: StepCheckpoint,
) -> Result<OperationAnswer, Error> {
    // Operations own their input, and this one may run twice.
    let body = Arc::new(body);
    if (body.verdict == StepVerdict::Wait) != body.wait.is_some() {
        return Err(Error::Invalid("`wait` belongs to the verdict `wait`, and only to it".into()));
    }
    if let Some(wait) = &body.wait
        && matches!(wait.reason.wait_owner(), WaitOwner::Clock | WaitOwner::Operator)
        && wait.wake_in_ms.is_none()
        && wait.expires_in_seconds.is_none()
    {
        return Err(Error::Invalid("a wait that nobody ends needs `wake_in_ms`".into()));
    }
    let next = graph::next(body.node, body.verdict);
    let alone = body.effects.is_empty()
        && matches!(next, StepTransition::Go(_))
        && body.verdict != StepVerdict::Redo;
    if !alone {
        return app
            .mutate(request, |ctx| {
                Box::pin(async move { advance_run_with_effects(ctx, &body, next).await })
            })
            .await;
    }
    // A checkpoint without further effects is one statement and needs no transaction around it.
    let first = body.clone();
    let stored = app
        .read(request, |ctx| Box::pin(async move { advance_run_alone(ctx, &first, next).await }))
        .await?;
    match stored {
        Some(position) => {
            let body = serde_json::to_vec(&position);
            let body = body.map_err(|error| Error::Internal(error.into()))?;
            Ok(OperationAnswer { body, replayed: false })
        }
        // A person gave an instruction, and it is applied now. If this process dies first, the next step applies it.
        None => {
            app.mutate(request, |ctx| {
                Box::pin(async move { advance_with_instructions(ctx, &body, next).await })
            })
            .await
        }
    }
}

fn next_step_of(next: StepTransition, wait: Option<&NewWait>) -> (NextStep, Option<WorkflowStep>) {
    match next {
        StepTransition::Go(node) => (NextStep::Run { node }, Some(node)),
        StepTransition::Stay(node) => {
            let reason = wait.map_or(WaitReason::Retry, |wait| wait.reason);
            (to_wait_step(node, reason), Some(node))
        }
        StepTransition::End => (NextStep::End, None),
    }
}

async fn advance_run(
    ctx: &mut Ctx,
    body: &StepCheckpoint,
    next_node: Option<WorkflowStep>,
    wanted: RunContents,
) -> Result<Option<StoredStep>, Error> {
    let state = serde_json::to_value(&body.state).map_err(|error| Error::Internal(error.into()))?;
    let number = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
    let step = StepRecord {
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
    Ok(workflow::store_checkpoint(ctx.conn(), to_lease(&body.lease), &step, wanted).await?)
}

/// Advances the run in one statement. Returns `None` when an instruction waits to be applied.
async fn advance_run_alone(
    ctx: &mut Ctx,
    body: &StepCheckpoint,
    next: StepTransition,
) -> Result<Option<WorkflowPosition>, Error> {
    let (next, next_node) = next_step_of(next, None);
    let StepNeeds { contents, taken_too } = StepNeeds::of_step(body.sequence, &next);
    match advance_run(ctx, body, next_node, contents).await? {
        None => replay_checkpoint(ctx, body).await.map(Some),
        Some(StoredStep { counters, .. }) if counters.instructions_waiting > 0 => Ok(None),
        Some(StoredStep { counters, contents }) => {
            let (id, needs) = (body.lease.task_id, StepNeeds { contents, taken_too });
            load_position(ctx, id, counters, body.sequence, next, &needs).await.map(Some)
        }
    }
}

async fn advance_with_instructions(
    ctx: &mut Ctx,
    body: &StepCheckpoint,
    next: StepTransition,
) -> Result<WorkflowPosition, Error> {
    let id = body.lease.task_id;
    // The lock keeps others from advancing the run while its course is changed.
    if !workflow::lock_lease(ctx.conn(), to_lease(&body.lease)).await? {
        return Err(Error::Fenced(SUPERSEDED_MESSAGE));
    }
    let standing = workflow::get_run_status(ctx.conn(), id).await?;
    let standing = standing.ok_or_else(|| Error::not_found("workflow of task", id))?;
    apply_instructions(ctx, body, to_counters(&standing), next_step_of(next, None).0).await
}

/// Applies pending instructions and returns the next step.
async fn apply_instructions(
    ctx: &mut Ctx,
    body: &StepCheckpoint,
    counters: RunCounters,
    next: NextStep,
) -> Result<WorkflowPosition, Error> {
    let id = body.lease.task_id;
    let NextStep::Run { node } = next else {
        // A run that waits or has ended applies instructions when it is started again.
        return build_position(ctx, id, counters, body.sequence, next).await;
    };
    let (sequence, state) = (body.sequence, body.state.clone());
    let mut at = instructions::RunPosition { sequence, next: node, state };
    let next = match instructions::apply_pending(ctx, id, &counters, &mut at, None).await? {
        InstructionDecision::Continue | InstructionDecision::Resume => {
            return build_position(ctx, id, counters, body.sequence, next).await;
        }
        InstructionDecision::Replan { .. } => NextStep::Run { node: at.next },
        InstructionDecision::Pause { .. } | InstructionDecision::StayPaused => {
            workflow::release_lease(ctx.conn(), to_lease(&body.lease)).await?;
            to_wait_step(at.next, WaitReason::Paused)
        }
    };
    let mut position = build_position(ctx, id, counters, at.sequence, next).await?;
    position.state = Some(at.state);
    Ok(position)
}

async fn advance_run_with_effects(
    ctx: &mut Ctx,
    body: &StepCheckpoint,
    next: StepTransition,
) -> Result<WorkflowPosition, Error> {
    let (id, lease) = (body.lease.task_id, to_lease(&body.lease));
    let (next, next_node) = next_step_of(next, body.wait.as_ref());
    let task = if next_node.is_none() { tasks::lock_task(ctx.conn(), id).await? } else { None };
    // Lock order: the task before its run, as everywhere.
    if body.effects.iter().any(|effect| matches!(effect, StepEffect::SetCriteria { .. })) {
        tasks::lock_task(ctx.conn(), id).await?;
    }
    // The effects may add to what there is, so that it is looked for after them.
    let nothing =
        RunContents { units: false, evidence: false, base_checks: false, environment: false };
    let stored = advance_run(ctx, body, next_node, nothing).await?;
    let Some(StoredStep { mut counters, .. }) = stored else {
        return replay_checkpoint(ctx, body).await;
    };
    // An instruction that a person gave before the end must be applied: the run is started again and applies it.
    if next_node.is_none() && counters.instructions_waiting > 0 {
        return Err(Error::Fenced("a person has said something meanwhile"));
    }
    ctx.trace = counters.trace;
    // A failed unit that is replanned smaller counts as a retry too: its replacement starts with the first attempt.
    let failed = body.effects.iter().any(|effect| matches!(effect, StepEffect::FailUnit { .. }));
    if body.verdict == StepVerdict::Redo
        || (body.verdict == StepVerdict::Revise && failed)
        || body.wait.as_ref().is_some_and(|wait| wait.reason == WaitReason::Retry)
    {
        workflow::count_retry(ctx.conn(), id).await?;
        counters.retries_used += 1;
    }
    if !body.effects.is_empty() {
        // Lock order: the run before its units, jobs and handoffs, as in the reports of results and answers.
        workflow::lock_run(ctx.conn(), id).await?;
    }
    effects::apply_effects(ctx, id, counters.trace, &body.effects).await?;
    match (&body.wait, task) {
        (Some(wait), _) => rest_run(ctx, id, body, wait).await?,
        (None, Some(task)) => end_task(ctx, task, body).await?,
        (None, None) => {}
    }
    if body.wait.is_some() {
        workflow::release_lease(ctx.conn(), lease).await?;
    }
    apply_instructions(ctx, body, counters, next).await
}

/// Returns the answer to a checkpoint that was stored before. Rejects one that was not stored, or not by this holder.
async fn replay_checkpoint(
    ctx: &mut Ctx,
    body: &StepCheckpoint,
) -> Result<WorkflowPosition, Error> {
    if !workflow::is_checkpoint_stored(ctx.conn(), to_lease(&body.lease), body.sequence, body.node)
        .await?
    {
        return Err(Error::Fenced(SUPERSEDED_MESSAGE));
    }
    let position = load_standing(ctx, body.lease.task_id).await?.position;
    // Only the current holder of the lease may continue to drive.
    let drives = matches!(position.next, NextStep::Run { .. });
    if drives && !workflow::lock_lease(ctx.conn(), to_lease(&body.lease)).await? {
        return Err(Error::Fenced(SUPERSEDED_MESSAGE));
    }
    Ok(position)
}

/// Maximum wait for a time: ten years.
const MAX_WAIT_MS: u64 = 10 * 365 * 24 * 3600 * 1000;

fn clamp_wait_ms(milliseconds: u64) -> i64 {
    i64::try_from(milliseconds.min(MAX_WAIT_MS)).unwrap_or(i64::MAX)
}

async fn rest_run(
    ctx: &mut Ctx,
    id: TaskId,
    body: &StepCheckpoint,
    wait: &NewWait,
) -> Result<(), Error> {
    let new = waits::NewWaitRecord {
        id: WaitId::from_uuid(ctx.new_uuid()),
        sequence: body.sequence,
        reason: wait.reason,
        question: wait.question.as_deref(),
        expires_in_ms: wait
            .expires_in_seconds
            .map(|seconds| clamp_wait_ms(seconds.saturating_mul(1000))),
    };
    let wake_in = wait.wake_in_ms.map(clamp_wait_ms);
    workflow::suspend_run(ctx.conn(), id, SuspendPoint::AtANode, body.seen_wakes, wake_in).await?;
    waits::open_wait(ctx.conn(), id, &new).await?;
    // A wake-up that came meanwhile makes the run due at once.
    ctx.wake_task(id);
    if wait.reason.blocks_start() { notify_task_waits(ctx, id, &new).await } else { Ok(()) }
}

/// Maximum number of characters of a question in the log.
const MAX_LOGGED_CHARS: usize = 600;

/// Notifies people that a task waits for one of them, with its question.
async fn notify_task_waits(
    ctx: &mut Ctx,
    id: TaskId,
    wait: &waits::NewWaitRecord<'_>,
) -> Result<(), Error> {
    let task =
        tasks::get_task(ctx.conn(), id).await?.ok_or_else(|| Error::not_found("task", id))?;
    let question =
        wait.question.unwrap_or_default().split_whitespace().collect::<Vec<_>>().join(" ");
    let question: String = question.chars().take(MAX_LOGGED_CHARS).collect();
    tracing::info!(
        event = "task.waiting",
        task.id = %id,
        project.id = %task.project,
        "{question}; to do: cynork task watch {}",
        task.name
    );
    let data = json!({ "name": task.name, "reason": wait.reason, "question": wait.question, "wait_id": wait.id });
    let told = EventDraft::new(EventKind::TaskWaiting, data);
    ctx.record_event(told.with_project(task.project).with_task(id)).await
}

/// Ends the task with its run and its lease.
async fn end_task(ctx: &mut Ctx, task: Task, body: &StepCheckpoint) -> Result<(), Error> {
    let (id, now) = (task.id, ctx.now);
    let well = body.node == WorkflowStep::FinalizeSummary;
    let ended =
        workflow::end_run(ctx.conn(), id, if well { "completed" } else { "failed" }).await?;
    let (state, kind, failure) = if well {
        if ended.unsettled {
            let left = "a task with units that are not done cannot be completed";
            return Err(Error::Invalid(left.into()));
        }
        let criteria = &task.acceptance_criteria;
        if ended.has_evidence || criteria.iter().any(|criterion| criterion.check.is_some()) {
            crate::delivery::evidence::require_evidence(ctx.conn(), id, criteria).await?;
        }
        // Only jobs on nodes bring commits.
        if ended.has_node_jobs {
            crate::delivery::pull_requests::require_delivered(ctx, &task).await?;
        }
        (task.state.into_completed(now)?, EventKind::TaskCompleted, None)
    } else {
        let reason = body.note.clone().unwrap_or_else(|| "it was given up".to_owned());
        units::cancel_task_units(ctx.conn(), id).await?;
        cynode_db::workflow::jobs::cancel_unwanted_jobs(ctx.conn(), id).await?;
        (task.state.into_failed(now, reason.clone())?, EventKind::TaskFailed, Some(reason))
    };
    tasks::set_task_state(ctx.conn(), id, &state, now).await?;
    if ended.has_handoffs {
        crate::manager::handoffs::cancel_task_handoffs(ctx, id).await?;
    }
    // Agents that still work on the task can call no more tools.
    if ended.has_tokens {
        cynode_db::tools::agent_tokens::revoke_task_tokens(ctx.conn(), id, now).await?;
    }
    if well && ended.has_dependents {
        workflow::wake_dependents(ctx.conn(), id).await?;
        ctx.wake_task(id);
    }
    let data = json!({ "name": task.name, "summary": body.state.summary, "failure": failure });
    ctx.record_event(EventDraft::new(kind, data).with_project(task.project).with_task(id)).await
}

/// Requests that a task is driven now, on behalf of a person or the project manager. The driver still starts it by
/// [`start_workflow`]: there is no other way in.
#[tracing::instrument(name = "app.workflow.request_workflow_run", skip_all, fields(task.id = %id))]
#[operation]
pub async fn request_workflow_run(ctx: &mut Ctx, id: TaskId) -> Result<Task, Error> {
    let task = crate::tasks::get_task(ctx, id).await?;
    ctx.require_project_role(task.project, cynode_core::roles::UserRole::Operator).await?;
    if !matches!(task.state.state_name(), TaskStateName::Queued | TaskStateName::Running) {
        return Err(Error::TaskEnded);
    }
    workflow::wake_runs(ctx.conn(), &[id.as_uuid()]).await?;
    ctx.wake_task(id);
    Ok(task)
}

/// Extends a lease.
#[tracing::instrument(name = "app.workflow.renew_lease", skip_all, fields(task.id = %body.task_id))]
#[operation]
pub async fn renew_lease(ctx: &mut Ctx, body: &RenewLease) -> Result<LeaseView, Error> {
    let ttl = validate_ttl_ms(body.expires_in_seconds, DEFAULT_LEASE_TTL_SECONDS)?;
    let RenewLease { task_id, lease_id, fencing_token, .. } = body;
    let lease = LeaseHandle { task: *task_id, lease_id, fencing_token: *fencing_token };
    let renewed = workflow::renew_lease(ctx.conn(), lease, ttl).await?;
    let (holder, expires_at) = renewed.ok_or(Error::Fenced(SUPERSEDED_MESSAGE))?;
    Ok(LeaseView { lease_id: lease_id.clone(), holder, fencing_token: *fencing_token, expires_at })
}

/// Releases a lease before it expires. The run stays due. A lease that the holder has lost is left unchanged.
#[tracing::instrument(name = "app.workflow.release_lease", skip_all, fields(task.id = %body.task_id))]
#[operation]
pub async fn release_lease(ctx: &mut Ctx, body: &LeaseRef) -> Result<(), Error> {
    workflow::release_lease(ctx.conn(), to_lease(body)).await?;
    ctx.wake_task(body.task_id);
    Ok(())
}
