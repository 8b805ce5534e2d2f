//! Handoffs: a work queue for the project manager and analysts, with leases, fencing tokens and recorded think calls.
//!
//! **Invariant**: a worker acts only under a claim with the newest fencing token, and with a token for tools and models
//! that ends with the claim. The answer, its effects and the wake-up of its run are one transaction.

use cynode_core::{
    paging::{Page, PageRequest},
    settings::registry::{DEFAULT_CONCURRENT_ANALYSTS, MAX_CONCURRENT_ANALYSTS_SETTING},
    workflow::{
        handoffs::{
            AppliedPreference, HandoffAnswer, HandoffKind, HandoffRequest, HandoffState,
            TRACE_EVENT_KINDS, TraceEvent,
        },
        reports::ReportView,
    },
};
use std::time::{Duration, Instant};

use cynode_core::{
    agents::{AgentKind, AgentRole},
    events::EventKind,
    ids::{CallId, HandoffId, JobId, ProjectId, RunId, TaskId, ThreadId, UserId},
    preferences::PreferenceScope,
    profiles::ProfileName,
    roles::UserRole,
    workflow::limits::backoff_delay,
};
use cynode_db::{
    delivery::repositories,
    identity::groups,
    manager::{
        given_context as db_given_context,
        handoffs::{
            self, HandoffClaim, HandoffLease, HandoffRecord, HandoffTransition, NewHandoff,
            NewModelDecision,
        },
    },
    tasks::{self, projects},
    workflow::{self, jobs},
};
use cynode_wire::manager::handoffs::{
    BeginDecision, ClaimHandoff, ClaimedHandoff, CompleteHandoff, DecisionPermit, DelegateHandoff,
    FailHandoff, HandoffAssignment, HandoffContext, HandoffView, PlanningEventView, ProjectFacts,
    RecordDecision, RecordPlanning, RenewHandoff, TaskFacts,
};
use serde_json::{Value, json};
use time::OffsetDateTime;
use tokio_util::sync::CancellationToken;

use crate::{
    App, Ctx, Error, OperationFuture, OperationRequest,
    identity::service_tokens::ServiceKind,
    manager::{given_context, skills},
    models::inference::{self, ModelSnapshot},
    platform::{
        context::EventDraft,
        error::log_background_error,
        operation, settings,
        timeouts::{validate_ttl_ms, wait_timeout},
    },
    tools::agent_tokens::{self, HandoffTokenRequest},
};

/// Lease of a handoff when its worker names none.
const DEFAULT_HANDOFF_TTL_SECONDS: u32 = 60;

/// Maximum number of attempts that end with an expired lease, since the handoff itself may kill its worker. The same
/// limit holds for a handoff without a task whose model times out: each attempt may cost money, and nothing is parked
/// for it.
const MAX_LOST_ATTEMPTS: u32 = 5;

/// Maximum number of attempts that end with a transient failure: an unavailable provider or an exhausted budget may
/// last a day. A retry every half minute costs nothing, and the view of the handoff names the reason.
const MAX_TRANSIENT_ATTEMPTS: u32 = 3000;

/// Maximum number of concurrent handoffs of project managers, over all processes.
const MAX_CONCURRENT_MANAGERS: i64 = 1000;

/// How long a claim waits for a wake-up before it polls, when no process-wide poll runs.
const CLAIM_POLL_INTERVAL: Duration = Duration::from_millis(250);

/// Maximum size of a stored prompt.
const MAX_PROMPT_BYTES: usize = 512 * 1024;

/// Maximum number of events of planning that are recorded at once, and the maximum size of the data of one.
const MAX_PLANNING_EVENTS: usize = 100;
const MAX_PLANNING_EVENT_BYTES: usize = 16 * 1024;

/// Program that claims handoffs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HandoffHost {
    /// Name of the service.
    pub name: String,
    /// Role that it works in.
    pub role: AgentRole,
}

impl HandoffHost {
    /// Returns the kind of its service.
    pub const fn service_kind(&self) -> ServiceKind {
        match self.role {
            AgentRole::ProjectAnalyst => ServiceKind::Analyst,
            _ => ServiceKind::Manager,
        }
    }

    /// Creates the host from its token at the gateway: the name of the service and the role of the token.
    pub fn new(name: String, role: AgentRole) -> Result<Self, Error> {
        let role = match role {
            AgentRole::ManagerHost => AgentRole::ProjectManager,
            AgentRole::AnalystHost => AgentRole::ProjectAnalyst,
            _ => return Err(Error::Invalid("only the program of an agent takes handoffs".into())),
        };
        Ok(Self { name, role })
    }
}

/// User, project, task and job that a handoff concerns.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HandoffSubject {
    pub(crate) user: UserId,
    pub(crate) project: ProjectId,
    pub(crate) task: Option<TaskId>,
    pub(crate) run: Option<RunId>,
    pub(crate) job: Option<JobId>,
    pub(crate) thread: Option<ThreadId>,
}

/// Stores a handoff in this transaction.
pub(crate) async fn store_handoff(
    ctx: &mut Ctx,
    subject: HandoffSubject,
    parent: Option<HandoffId>,
    about: Option<&str>,
    request: &HandoffRequest,
) -> Result<HandoffId, Error> {
    let (id, trace) = (HandoffId::from_uuid(ctx.new_uuid()), ctx.trace.to_string());
    let new = NewHandoff {
        id,
        parent,
        user: subject.user,
        project: subject.project,
        task: subject.task,
        run: subject.run,
        job: subject.job,
        thread: subject.thread,
        driven: about.is_some(),
        about: about.unwrap_or_default(),
        request,
        trace: &trace,
    };
    handoffs::insert_handoff(ctx.conn(), &new).await?;
    ctx.mark_job_queued();
    let kind = request.handoff_kind();
    let role = kind.assigned_role();
    let data = json!({
        "handoff_id": id, "kind": kind, "category": kind.handoff_category(), "role": role, "thread_id": subject.thread,
        "run_id": subject.run, "job_id": subject.job, "user_id": subject.user,
    });
    let mut told = EventDraft::new(EventKind::HandoffCreated, data).with_project(subject.project);
    if let Some(task) = subject.task {
        told = told.with_task(task);
    }
    ctx.record_event(told).await?;
    tracing::info!(
        event = "handoff.created",
        handoff.id = %id,
        kind = kind.as_str(),
        role = role.as_str(),
        user.id = %subject.user,
        project.id = %subject.project,
        task.id = subject.task.map(tracing::field::display),
        trace_id = trace,
        "created a handoff"
    );
    Ok(id)
}

/// Checks whether a call is still permitted.
pub type PermissionCheck<'a> = &'a (dyn Fn() -> OperationFuture<'a, ()> + Send + Sync);

/// Conditions of a waiting claim.
#[derive(Clone, Copy)]
pub struct ClaimWait<'a> {
    /// Cancelled when the caller has disconnected.
    pub gone: &'a CancellationToken,
    /// Checks the permission of the call again. Nothing else checks a call that only waits, so it does so before it
    /// claims.
    pub permitted: PermissionCheck<'a>,
}

/// Claims a handoff for a program. With a wait time it long-polls for one.
#[tracing::instrument(name = "app.handoffs.claim_handoff", skip_all, fields(worker = host.name))]
pub async fn claim_handoff(
    app: &App,
    request: &OperationRequest,
    host: &HandoffHost,
    body: &ClaimHandoff,
    waiting: ClaimWait<'_>,
) -> Result<ClaimedHandoff, Error> {
    let ttl_ms = validate_ttl_ms(body.expires_in_seconds, DEFAULT_HANDOFF_TTL_SECONDS)?;
    let until = Instant::now() + wait_timeout(body.wait_ms);
    loop {
        // A disconnected caller must not claim anything: it would be stuck until its lease expires.
        if waiting.gone.is_cancelled() {
            return Ok(ClaimedHandoff { handoff: None });
        }
        let mut sign = std::pin::pin!(app.work_signal());
        sign.as_mut().enable();
        // Models may become available while the claim waits.
        let menu = inference::load_model_snapshot(app).await?;
        let mut ctx = app.begin_transaction(request).await?;
        jobs::lock_claim(ctx.conn(), body.claim_id).await?;
        let at_once = match host.role {
            AgentRole::ProjectAnalyst => {
                // Claims of analysts are serialized: two concurrent ones would both take the last slot.
                handoffs::lock_analyst_claims(ctx.conn()).await?;
                max_concurrent_analysts(&mut ctx).await?
            }
            _ => MAX_CONCURRENT_MANAGERS,
        };
        let HandoffHost { name, role } = host;
        let claim =
            HandoffClaim { role: *role, worker: name, claim_id: body.claim_id, ttl_ms, at_once };
        if let Some(kept) = handoffs::claim_handoff(ctx.conn(), claim).await? {
            let mut handoff = Box::new(build_handoff(&mut ctx, &kept, &menu).await?);
            app.commit_operation(ctx).await?;
            given_context::give_to_handoff(app, request, kept.project, &mut handoff).await;
            return Ok(ClaimedHandoff { handoff: Some(handoff) });
        }
        drop(ctx);
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(ClaimedHandoff { handoff: None });
        }
        let woken = tokio::select! {
            woken = tokio::time::timeout(left.min(app.poll_delay(CLAIM_POLL_INTERVAL)), sign) => woken.is_ok(),
            () = waiting.gone.cancelled() => false,
        };
        // The shared poll would have woken this claim, so there is nothing.
        if !woken && app.has_shared_poll() && Instant::now() >= until {
            return Ok(ClaimedHandoff { handoff: None });
        }
        // The claim may have waited for long: the permission is checked again before it takes anything.
        (waiting.permitted)().await?;
    }
}

async fn max_concurrent_analysts(ctx: &mut Ctx) -> Result<i64, Error> {
    let set = settings::setting_value(ctx.conn(), MAX_CONCURRENT_ANALYSTS_SETTING)
        .await?
        .and_then(|value| value.as_i64());
    Ok(set.filter(|most| (0..=1000).contains(most)).unwrap_or(DEFAULT_CONCURRENT_ANALYSTS))
}

/// Builds a handoff for its worker, with a token of its own. The tokens of earlier claims are revoked.
pub(crate) async fn build_handoff(
    ctx: &mut Ctx,
    kept: &HandoffRecord,
    menu: &ModelSnapshot,
) -> Result<HandoffAssignment, Error> {
    let (now, models) = (ctx.now, menu.model_ids(kept.project));
    let tool_models = menu.tool_calling_models(kept.project, &models);
    let think_seconds = menu.think_seconds(kept.project, &models);
    handoffs::revoke_handoff_tokens(ctx.conn(), &[kept.id], now).await?;
    let role = kept.kind.assigned_role();
    let profile = named_profile(ctx, kept).await?;
    let issued = agent_tokens::issue_for_handoff(
        ctx,
        HandoffTokenRequest {
            kind: kept.kind,
            role,
            user: kept.user,
            project: kept.project,
            task: kept.task,
            run: kept.run,
            profile,
            models: &models,
        },
    );
    let (token_id, token) = issued.await?;
    handoffs::bind_token_to_handoff(ctx.conn(), token_id, kept.id).await?;
    let context = build_handoff_context(ctx, kept, role).await?;
    let decisions = handoffs::list_decisions(ctx.conn(), kept.id, kept.created_at).await?;
    Ok(HandoffAssignment {
        handoff_id: kept.id,
        fencing_token: kept.fencing_token,
        attempt: kept.attempt,
        request: kept.request.clone(),
        context,
        token,
        models,
        tool_models,
        think_seconds,
        decisions: decisions.into_iter().map(|(decision, _)| decision).collect(),
        delegated: handoffs::list_analyses(ctx.conn(), kept.id).await?,
        expires_at: kept.lease_expires_at.unwrap_or(now),
    })
}

/// Returns the profile that a handoff is worked on under: that of its task, else that of its chat or its schedule.
async fn named_profile(ctx: &mut Ctx, kept: &HandoffRecord) -> Result<Option<ProfileName>, Error> {
    let of_task = match kept.task {
        Some(task) => tasks::profile_of_task(ctx.conn(), task).await?,
        None => None,
    };
    match of_task {
        Some(name) => Ok(Some(name)),
        None => Ok(handoffs::profile_of_handoff(ctx.conn(), kept.id).await?),
    }
}

/// Builds the context of a role beside the question. It contains nothing that is meant for the other role.
async fn build_handoff_context(
    ctx: &mut Ctx,
    kept: &HandoffRecord,
    role: AgentRole,
) -> Result<HandoffContext, Error> {
    let project = projects::get_project(ctx.conn(), kept.project).await?;
    let head =
        repositories::get_repository(ctx.conn(), kept.project).await?.map(|there| there.head);
    let project = project.map(|project| ProjectFacts {
        id: project.id,
        name: project.title.to_string(),
        slug: project.slug.to_string(),
        description: project.description.map(|text| text.to_string()).unwrap_or_default(),
        head,
    });
    let task = match kept.task {
        Some(id) => tasks::get_task(ctx.conn(), id).await?,
        None => None,
    };
    let task = task.map(|task| TaskFacts {
        id: task.id,
        name: task.name.to_string(),
        description: task.description.to_string(),
        acceptance_criteria: task.acceptance_criteria,
        status: task.state.state_name().as_str().to_owned(),
    });
    let group_ids = groups::groups_of_user(ctx.conn(), kept.user).await?;
    let held = crate::tasks::preferences::resolve_effective(
        ctx.conn(),
        Some(role),
        kept.user,
        Some(kept.project),
        kept.task,
    )
    .await?;
    let own = format!("agents.{}.additional_context", role.preference_name());
    let mut context = HandoffContext {
        trace_id: kept.trace.clone(),
        user_id: Some(kept.user),
        group_ids,
        project,
        task,
        thread_id: kept.thread,
        run_id: kept.run,
        ..HandoffContext::default()
    };
    for (key, held) in held.effective {
        if key.as_str() == own {
            context.additional_context = join_texts(&held.value);
        }
        let scope = scope_name(held.scope).to_owned();
        let applied = AppliedPreference { scope, version: held.version };
        context.preferences_applied.insert(key.clone(), applied);
        context.preferences.insert(key, held.value);
    }
    if let (HandoffKind::Plan | HandoffKind::Dispatch, Some(task)) = (kept.kind, kept.task) {
        context.environment =
            crate::delivery::task_environments::load_environment_facts(ctx.conn(), task).await?;
    }
    if let (HandoffRequest::Verify(judge) | HandoffRequest::Analyse(judge), Some(task)) =
        (&kept.request, kept.task)
    {
        let (unit, attempt) = (judge.unit.as_str(), judge.unit_attempt);
        context.reports = handoffs::list_attempt_reports(ctx.conn(), task, unit, attempt).await?;
    }
    if let Some(run) = kept.run {
        context.planned = handoffs::latest_plan_of_run(ctx.conn(), run).await?.map(Box::new);
    }
    if let Some(text) = given_context::handoff_text(&kept.request, &context) {
        context.skills = skills::skills_for(ctx.conn(), kept.user, kept.project, &text).await?;
        // Whoever works without a sandbox cannot use files.
        context.skills.iter_mut().for_each(|skill| skill.files.clear());
    }
    Ok(context)
}

const fn scope_name(scope: PreferenceScope) -> &'static str {
    scope.scope_type().as_str()
}

/// Returns a text, or several texts joined.
fn join_texts(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Array(items) => {
            let texts: Vec<&str> = items.iter().filter_map(Value::as_str).collect();
            (!texts.is_empty()).then(|| texts.join("\n\n"))
        }
        _ => None,
    }
}

const STALE_CLAIM_MESSAGE: &str = "the handoff is not worked on under this claim any more";

async fn lock_claimed_handoff(
    ctx: &mut Ctx,
    host: &HandoffHost,
    id: HandoffId,
    fencing_token: i64,
) -> Result<HandoffRecord, Error> {
    let held = HandoffLease { id, worker: &host.name, fencing_token };
    let kept = handoffs::lock_claimed_handoff(ctx.conn(), held)
        .await?
        .ok_or(Error::Fenced(STALE_CLAIM_MESSAGE))?;
    if kept.kind.assigned_role() != host.role {
        return Err(Error::Fenced(STALE_CLAIM_MESSAGE));
    }
    if let Ok(trace) = kept.trace.parse() {
        ctx.trace = trace;
    }
    Ok(kept)
}

/// Renews the lease of a handoff.
#[tracing::instrument(name = "app.handoffs.renew_claim", skip_all, fields(handoff.id = %body.handoff_id))]
#[operation]
pub async fn renew_claim(
    ctx: &mut Ctx,
    host: &HandoffHost,
    body: &RenewHandoff,
) -> Result<OffsetDateTime, Error> {
    let ttl = validate_ttl_ms(body.expires_in_seconds, DEFAULT_HANDOFF_TTL_SECONDS)?;
    let held =
        HandoffLease { id: body.handoff_id, worker: &host.name, fencing_token: body.fencing_token };
    handoffs::renew_handoff_lease(ctx.conn(), held, ttl)
        .await?
        .ok_or(Error::Fenced(STALE_CLAIM_MESSAGE))
}

/// Checks that an answer fits the kind of handoff.
fn validate_answer(kept: &HandoffRecord, answer: &HandoffAnswer) -> Result<(), String> {
    let kind = kept.kind;
    let good = matches!(
        (kind, answer),
        (HandoffKind::Plan, HandoffAnswer::Planned(_))
            | (HandoffKind::Dispatch, HandoffAnswer::Assigned { .. })
            | (HandoffKind::Verify, HandoffAnswer::Judged(_))
            | (HandoffKind::Analyse, HandoffAnswer::Analysed(_))
            | (HandoffKind::Failure, HandoffAnswer::Decided { .. })
            | (HandoffKind::Report, HandoffAnswer::Replied { .. })
            | (HandoffKind::Summarise, HandoffAnswer::Summarised { .. })
            | (HandoffKind::Schedule, HandoffAnswer::Interpreted { .. })
            | (HandoffKind::Chat, HandoffAnswer::Chatted { .. })
            | (
                HandoffKind::Plan
                    | HandoffKind::Dispatch
                    | HandoffKind::Verify
                    | HandoffKind::Failure
                    | HandoffKind::Summarise,
                HandoffAnswer::Ask { .. }
            )
    );
    if !good {
        return Err(format!("this is no answer to a handoff of the kind {}", kind.as_str()));
    }
    match (&kept.request, answer) {
        (HandoffRequest::Dispatch { units }, HandoffAnswer::Assigned { assignments }) => {
            for unit in units {
                if assignments.iter().filter(|one| one.unit == unit.unit).count() != 1 {
                    return Err(format!("unit `{}` must be assigned once", unit.unit));
                }
            }
            if assignments.len() != units.len() {
                return Err("a unit is assigned that was not asked for".into());
            }
            match assignments.iter().find(|one| one.work.role.agent_kind() != AgentKind::Sandbox) {
                Some(one) => Err(format!("{} does not work in a sandbox", one.work.role.as_str())),
                None => Ok(()),
            }
        }
        (_, HandoffAnswer::Analysed(analysed)) if Some(analysed.task_id) != kept.task => {
            Err("an analyst judges the task that it was given, and no other".into())
        }
        (_, HandoffAnswer::Ask { question }) if question.trim().is_empty() => {
            Err("a question says something".into())
        }
        _ => Ok(()),
    }
}

/// Completes a handoff with its answer and wakes the run that waits for it. A repeat under the same claim has no
/// effect.
#[tracing::instrument(name = "app.handoffs.complete_handoff", skip_all, fields(handoff.id = %body.handoff_id))]
#[operation]
pub async fn complete_handoff(
    app: &App,
    request: &OperationRequest,
    host: &HandoffHost,
    body: &CompleteHandoff,
) -> Result<HandoffState, Error> {
    // The output of a model may repeat a secret, so it is redacted before it is stored.
    let mut answer =
        serde_json::to_value(&body.answer).map_err(|error| Error::Internal(error.into()))?;
    crate::platform::redaction::redact_value(app, &mut answer).await?;
    let answer: HandoffAnswer = serde_json::from_value(answer).map_err(|_| {
        Error::Invalid("the answer holds a secret where it cannot be taken out".into())
    })?;
    let mut ctx = app.begin_transaction(request).await?;
    // The answer of an analyst returns the handoff to the manager: nothing has changed for the run yet.
    wake_run_unless(&mut ctx, body.handoff_id, |kept| kept.parent.is_some()).await?;
    let kept = match lock_claimed_handoff(&mut ctx, host, body.handoff_id, body.fencing_token).await
    {
        Ok(kept) => kept,
        Err(Error::Fenced(_)) => return check_repeated_completion(&mut ctx, host, body).await,
        Err(error) => return Err(error),
    };
    validate_answer(&kept, &answer).map_err(Error::Invalid)?;
    settle_handoff(&mut ctx, &kept, &HandoffTransition::Done(&answer)).await?;
    app.commit_operation(ctx).await?;
    Ok(HandoffState::Done)
}

async fn check_repeated_completion(
    ctx: &mut Ctx,
    host: &HandoffHost,
    body: &CompleteHandoff,
) -> Result<HandoffState, Error> {
    let kept = handoffs::get_handoff(ctx.conn(), body.handoff_id).await?;
    let same = kept.filter(|kept| {
        kept.state == HandoffState::Done
            && kept.fencing_token == body.fencing_token
            && kept.worker.as_deref() == Some(host.name.as_str())
    });
    same.map(|kept| kept.state).ok_or(Error::Fenced(STALE_CLAIM_MESSAGE))
}

/// Wakes the run that waits for an ending handoff, unless the handoff returns to its worker: nothing has changed for
/// the run then. The condition cannot change under one claim. A refusal rolls the wake-up back. Lock order: the run
/// before the handoff, as in a checkpoint.
async fn wake_run_unless(
    ctx: &mut Ctx,
    id: HandoffId,
    goes_back: impl Fn(&HandoffRecord) -> bool + Send,
) -> Result<(), Error> {
    let Some(kept) = handoffs::get_handoff(ctx.conn(), id).await? else { return Ok(()) };
    // The failure of a delegated handoff fails its parent too.
    let waits = kept.parent.is_some() || kept.driven;
    let Some(task) = kept.task.filter(|_| waits) else { return Ok(()) };
    if goes_back(&kept) {
        // A transaction that cancels the handoffs of a run locks the run first, and so sees every delegated one.
        return Ok(workflow::lock_run(ctx.conn(), task).await?);
    }
    workflow::wake_runs(ctx.conn(), &[task.as_uuid()]).await?;
    ctx.wake_task(task);
    Ok(())
}

/// Moves a locked handoff to its next state. The run that waits for it was woken before.
async fn settle_handoff(
    ctx: &mut Ctx,
    kept: &HandoffRecord,
    ending: &HandoffTransition<'_>,
) -> Result<(), Error> {
    let now = ctx.now;
    let asked = kept.job.filter(|_| kept.kind == HandoffKind::Report);
    if let Some(job) = asked {
        handoffs::lock_job_questions(ctx.conn(), job).await?;
    }
    handoffs::settle_handoff(ctx.conn(), kept.id, ending).await?;
    handoffs::revoke_handoff_tokens(ctx.conn(), &[kept.id], now).await?;
    let (state, why) = match ending {
        HandoffTransition::Done(_) => (HandoffState::Done, None),
        HandoffTransition::Failed(why) => (HandoffState::Failed, Some((*why).to_owned())),
        HandoffTransition::Cancelled => (HandoffState::Cancelled, None),
        HandoffTransition::Again(..) | HandoffTransition::Delegated => {
            ctx.mark_job_queued();
            return Ok(());
        }
    };
    // All members of the project see its events. The outcome of a chat is for its user only.
    let shown = why.as_ref().filter(|_| kept.kind != HandoffKind::Chat);
    let data =
        json!({ "handoff_id": kept.id, "kind": kept.kind, "state": state, "failure": shown });
    let mut told = EventDraft::new(EventKind::HandoffEnded, data).with_project(kept.project);
    if let Some(task) = kept.task {
        told = told.with_task(task);
    }
    ctx.record_event(told).await?;
    if asked.is_some() {
        crate::manager::reports::hand_off_next_question(ctx, kept).await?;
    }
    let Some(parent) = kept.parent else { return Ok(()) };
    match why {
        None => {
            handoffs::requeue_delegated_handoff(ctx.conn(), parent).await?;
            ctx.mark_job_queued();
        }
        Some(why) => {
            let waiting = handoffs::get_handoff(ctx.conn(), parent).await?;
            if let Some(parent) = waiting.filter(|kept| kept.state == HandoffState::Delegated) {
                let why = format!("the analyst came to nothing: {why}");
                Box::pin(settle_handoff(ctx, &parent, &HandoffTransition::Failed(&why))).await?;
            }
        }
    }
    Ok(())
}

/// Records the failure of a handoff: it is retried after a delay, or has finally failed.
#[tracing::instrument(name = "app.handoffs.fail_handoff", skip_all, fields(handoff.id = %body.handoff_id))]
#[operation]
pub async fn fail_handoff(
    app: &App,
    request: &OperationRequest,
    host: &HandoffHost,
    body: &FailHandoff,
) -> Result<HandoffState, Error> {
    let why =
        crate::platform::redaction::redact_text(app, body.reason.chars().take(2000).collect())
            .await?;
    let mut ctx = app.begin_transaction(request).await?;
    let lost = |kept: &HandoffRecord| body.timed_out && kept.task.is_none();
    let goes_back = |kept: &HandoffRecord| should_retry(kept, body.transient, lost(kept));
    wake_run_unless(&mut ctx, body.handoff_id, goes_back).await?;
    let kept = lock_claimed_handoff(&mut ctx, host, body.handoff_id, body.fencing_token).await?;
    let state = retry_or_fail(&mut ctx, &kept, body.transient, lost(&kept), &why).await?;
    app.commit_operation(ctx).await?;
    Ok(state)
}

/// Returns whether a failed handoff is retried.
fn should_retry(kept: &HandoffRecord, transient: bool, lost: bool) -> bool {
    let left = if lost {
        kept.lost + 1 < MAX_LOST_ATTEMPTS
    } else {
        kept.attempt < MAX_TRANSIENT_ATTEMPTS
    };
    transient && left && kept.kind != HandoffKind::Chat
}

async fn retry_or_fail(
    ctx: &mut Ctx,
    kept: &HandoffRecord,
    transient: bool,
    lost: bool,
    why: &str,
) -> Result<HandoffState, Error> {
    if lost {
        handoffs::count_lease_expiry(ctx.conn(), kept.id).await?;
    }
    if should_retry(kept, transient, lost) {
        let delay = i64::try_from(backoff_delay(kept.attempt).as_millis()).unwrap_or(1000);
        settle_handoff(ctx, kept, &HandoffTransition::Again(why, delay)).await?;
        return Ok(HandoffState::Queued);
    }
    settle_handoff(ctx, kept, &HandoffTransition::Failed(why)).await?;
    Ok(HandoffState::Failed)
}

/// Delegates a part of a handoff to an analyst. The handoff can be claimed again when the analyst has answered.
#[tracing::instrument(name = "app.handoffs.delegate_handoff", skip_all, fields(handoff.id = %body.handoff_id))]
#[operation]
pub async fn delegate_handoff(
    ctx: &mut Ctx,
    host: &HandoffHost,
    body: &DelegateHandoff,
) -> Result<HandoffId, Error> {
    wake_run_unless(ctx, body.handoff_id, |_| true).await?;
    let kept = lock_claimed_handoff(ctx, host, body.handoff_id, body.fencing_token).await?;
    let HandoffRequest::Verify(judge) = &kept.request else {
        return Err(Error::Invalid("only a judgement is shared with an analyst".into()));
    };
    if !handoffs::list_analyses(ctx.conn(), kept.id).await?.is_empty() {
        return Err(Error::Conflict("an analyst has answered already"));
    }
    let subject = HandoffSubject {
        user: kept.user,
        project: kept.project,
        task: kept.task,
        run: kept.run,
        job: kept.job,
        thread: kept.thread,
    };
    let request = HandoffRequest::Analyse(judge.clone());
    settle_handoff(ctx, &kept, &HandoffTransition::Delegated).await?;
    store_handoff(ctx, subject, Some(kept.id), None, &request).await
}

/// Records that a model is about to be called. While a person has paused the task, the call is refused: the handoff
/// is returned with its recorded decisions and handed out again when the task resumes.
#[tracing::instrument(name = "app.handoffs.begin_think_call", skip_all, fields(handoff.id = %body.handoff_id))]
#[operation]
pub async fn begin_think_call(
    ctx: &mut Ctx,
    host: &HandoffHost,
    body: &BeginDecision,
) -> Result<DecisionPermit, Error> {
    let kept = lock_claimed_handoff(ctx, host, body.handoff_id, body.fencing_token).await?;
    let paused = match kept.task {
        Some(task) => handoffs::is_task_paused(ctx.conn(), task).await?,
        None => false,
    };
    if paused {
        let now = ctx.now;
        handoffs::requeue_claimed_handoff(ctx.conn(), kept.id).await?;
        handoffs::revoke_handoff_tokens(ctx.conn(), &[kept.id], now).await?;
        tracing::info!(event = "handoff.requeued", handoff.id = %kept.id, "requeued a handoff: its task is paused");
    }
    Ok(DecisionPermit { paused })
}

/// Stores a think call before its decision is acted on.
#[tracing::instrument(name = "app.handoffs.record_think_call", skip_all, fields(handoff.id = %body.handoff_id))]
#[operation]
pub async fn record_think_call(
    app: &App,
    request: &OperationRequest,
    host: &HandoffHost,
    body: RecordDecision,
) -> Result<(), Error> {
    let RecordDecision { handoff_id, fencing_token, mut decision, mut prompt, calls } = body;
    if prompt.to_string().len() > MAX_PROMPT_BYTES {
        return Err(Error::Invalid(format!("a prompt has at most {MAX_PROMPT_BYTES} bytes")));
    }
    crate::platform::redaction::redact_value(app, &mut prompt).await?;
    if let Some(output) = &mut decision.output {
        crate::platform::redaction::redact_value(app, output).await?;
    }
    // A validation error may quote the invalid output, so it is redacted too.
    for error in &mut decision.validation_errors {
        *error = crate::platform::redaction::redact_text(app, std::mem::take(error)).await?;
    }
    let calls: Vec<CallId> = calls.iter().filter_map(|call| call.parse().ok()).collect();
    let mut ctx = app.begin_transaction(request).await?;
    let kept = lock_claimed_handoff(&mut ctx, host, handoff_id, fencing_token).await?;
    let new =
        NewModelDecision { handoff: &kept, decision: &decision, prompt: &prompt, calls: &calls };
    if !handoffs::record_decision(ctx.conn(), &new).await? {
        return Err(Error::Conflict("another question was asked at this step"));
    }
    app.commit_operation(ctx).await
}

/// Stores events of planning when they happen. They are redacted: what a tool answered may hold a secret.
#[tracing::instrument(name = "app.handoffs.record_planning", skip_all, fields(handoff.id = %body.handoff_id))]
#[operation]
pub async fn record_planning(
    app: &App,
    request: &OperationRequest,
    host: &HandoffHost,
    body: RecordPlanning,
) -> Result<(), Error> {
    let RecordPlanning { handoff_id, fencing_token, mut events } = body;
    if events.is_empty() || events.len() > MAX_PLANNING_EVENTS {
        return Err(Error::Invalid(format!(
            "1 to {MAX_PLANNING_EVENTS} events are recorded at once"
        )));
    }
    for event in &mut events {
        if !TRACE_EVENT_KINDS.contains(&event.event.as_str()) {
            return Err(Error::Invalid(format!("there is no event `{}` of planning", event.event)));
        }
        let bounded = (1..=9999).contains(&event.number)
            && event.step <= 999
            && (1..=200).contains(&event.profile.chars().count());
        if !bounded {
            let told = "an event of planning has a number up to 9999, a step up to 999 and a profile of 1 to 200 characters";
            return Err(Error::Invalid(told.into()));
        }
        if event.data.to_string().len() > MAX_PLANNING_EVENT_BYTES {
            return Err(Error::Invalid(format!(
                "an event of planning has at most {MAX_PLANNING_EVENT_BYTES} bytes"
            )));
        }
        crate::platform::redaction::redact_value(app, &mut event.data).await?;
    }
    let mut ctx = app.begin_transaction(request).await?;
    let kept = lock_claimed_handoff(&mut ctx, host, handoff_id, fencing_token).await?;
    if kept.kind != HandoffKind::Plan {
        return Err(Error::Invalid(
            "only a handoff of the kind plan has events of planning".into(),
        ));
    }
    if !handoffs::record_planning_events(ctx.conn(), &kept, &events).await? {
        return Err(Error::Conflict("another event of planning has this number"));
    }
    app.commit_operation(ctx).await
}

/// Reaps handoffs whose leases have expired. Returns their number.
pub(crate) async fn reap_silent_handoffs(
    app: &App,
    request: &OperationRequest,
    most: i64,
) -> Result<usize, Error> {
    let mut conn = app.conn().await?;
    let silent = handoffs::list_expired_handoffs(&mut conn, most).await?;
    drop(conn);
    for kept in &silent {
        let ctx = app.begin_transaction_with_lock_timeout(request).await?;
        if let Err(error) = reap_handoff(app, ctx, kept).await {
            log_background_error(
                "handoff.expire_failed",
                &error,
                "an expired handoff could not be requeued",
            );
        }
    }
    Ok(silent.len())
}

async fn reap_handoff(app: &App, mut ctx: Ctx, kept: &HandoffRecord) -> Result<(), Error> {
    wake_run_unless(&mut ctx, kept.id, |kept| should_retry(kept, true, true)).await?;
    let worker = kept.worker.as_deref().unwrap_or_default();
    let held = HandoffLease { id: kept.id, worker, fencing_token: kept.fencing_token };
    // It may have been completed or renewed meanwhile.
    let still = handoffs::lock_expired_handoff(ctx.conn(), held).await?;
    let Some(kept) = still else { return Ok(()) };
    let why = "nothing was heard of whoever worked on it";
    retry_or_fail(&mut ctx, &kept, true, true, why).await?;
    app.commit_operation(ctx).await?;
    tracing::warn!(event = "handoff.expired", handoff.id = %kept.id, attempt = kept.attempt, "{why}");
    Ok(())
}

/// Cancels all handoffs of a task.
pub(crate) async fn cancel_task_handoffs(ctx: &mut Ctx, task: TaskId) -> Result<(), Error> {
    cancel_handoffs(ctx, task, false).await
}

/// Cancels the handoffs that the run of a task has requested.
pub(crate) async fn cancel_run_handoffs(ctx: &mut Ctx, task: TaskId) -> Result<(), Error> {
    cancel_handoffs(ctx, task, true).await
}

async fn cancel_handoffs(ctx: &mut Ctx, task: TaskId, driven: bool) -> Result<(), Error> {
    let now = ctx.now;
    let ended = handoffs::cancel_task_handoffs(ctx.conn(), task, driven).await?;
    Ok(handoffs::revoke_handoff_tokens(ctx.conn(), &ended, now).await?)
}

/// Renews the lease of a chat in progress. A failure is logged and retried at the next interval.
pub(crate) async fn renew_chat_claim(app: &App, kept: &HandoffRecord, ttl_ms: i64) {
    let worker = kept.worker.as_deref().unwrap_or_default();
    let held = HandoffLease { id: kept.id, worker, fencing_token: kept.fencing_token };
    let done = async {
        let mut conn = app.conn().await?;
        handoffs::renew_handoff_lease(&mut conn, held, ttl_ms).await?;
        Ok::<_, Error>(())
    };
    if let Err(error) = done.await {
        log_background_error(
            "chat.renew_failed",
            &error,
            "the lease of a chat could not be renewed; it is retried",
        );
    }
}

/// Ends the handoff of a chat with any outcome, unless it has ended already.
pub(crate) async fn end_chat(
    ctx: &mut Ctx,
    kept: &HandoffRecord,
    ended: Result<String, String>,
) -> Result<(), Error> {
    let worker = kept.worker.as_deref().unwrap_or_default();
    let held = HandoffLease { id: kept.id, worker, fencing_token: kept.fencing_token };
    let Some(kept) = handoffs::lock_claimed_handoff(ctx.conn(), held).await? else { return Ok(()) };
    match ended {
        Ok(content) => {
            let answer = HandoffAnswer::Chatted { content };
            settle_handoff(ctx, &kept, &HandoffTransition::Done(&answer)).await
        }
        Err(why) => settle_handoff(ctx, &kept, &HandoffTransition::Failed(&why)).await,
    }
}

/// Lists the handoffs of a project, newest first; of one task if it is named.
#[tracing::instrument(name = "app.handoffs.list_handoffs", skip_all)]
#[operation]
pub async fn list_handoffs(
    ctx: &mut Ctx,
    project: ProjectId,
    task: Option<TaskId>,
    page: PageRequest,
) -> Result<Page<HandoffView>, Error> {
    ctx.require_project_role(project, UserRole::Viewer).await?;
    let found = handoffs::list_handoffs(ctx.conn(), project, task, page).await?;
    let page = page.into_page(found, |kept| kept.id.as_uuid());
    let mut items = Vec::with_capacity(page.items.len());
    for kept in page.items {
        items.push(to_handoff_view(ctx, kept).await?);
    }
    Ok(Page { items, next_cursor: page.next_cursor })
}

/// Returns one handoff with its think calls.
#[tracing::instrument(name = "app.handoffs.get_handoff", skip_all)]
#[operation]
pub async fn get_handoff(ctx: &mut Ctx, id: HandoffId) -> Result<HandoffView, Error> {
    let missing = || Error::not_found("handoff", id);
    ctx.caller()?;
    let kept = handoffs::get_handoff(ctx.conn(), id).await?.ok_or_else(missing)?;
    match ctx.require_project_role(kept.project, UserRole::Viewer).await {
        Err(Error::NotFound { .. }) => return Err(missing()),
        result => result?,
    };
    let (request, id) = (kept.request.clone(), kept.id);
    let events = handoffs::list_planning_events(ctx.conn(), &kept).await?;
    let events: Vec<PlanningEventView> =
        events.into_iter().map(|(claim, at, event)| to_planning_view(claim, at, event)).collect();
    let private = is_foreign_chat(ctx, &kept)?;
    let given = db_given_context::list_given_to_handoff(ctx.conn(), id).await?;
    let mut view = to_handoff_view(ctx, kept).await?;
    if private {
        return Ok(view);
    }
    view.given = given;
    view.request = Some(Box::new(request));
    view.answer = handoffs::get_handoff_answer(ctx.conn(), id).await?.map(Box::new);
    view.planning = events;
    Ok(view)
}

fn to_planning_view(
    fencing_token: i64,
    recorded_at: OffsetDateTime,
    event: TraceEvent,
) -> PlanningEventView {
    let TraceEvent { number, event, trace_id, step, profile, data } = event;
    PlanningEventView { fencing_token, recorded_at, number, event, trace_id, step, profile, data }
}

/// Lists the reports of agents about a task, oldest first.
#[tracing::instrument(name = "app.handoffs.list_task_reports", skip_all)]
#[operation]
pub async fn list_task_reports(ctx: &mut Ctx, task: TaskId) -> Result<Vec<ReportView>, Error> {
    crate::tasks::get_task(ctx, task).await?;
    Ok(handoffs::list_task_reports(ctx.conn(), task).await?)
}

/// Returns the prompt of a think call, while it is retained. It contains texts of users, so it requires an operator.
#[tracing::instrument(name = "app.handoffs.get_think_prompt", skip_all)]
#[operation]
pub async fn get_think_prompt(ctx: &mut Ctx, id: HandoffId, step: u32) -> Result<Value, Error> {
    load_decided_handoff(ctx, id, UserRole::Operator).await?;
    let prompt = handoffs::get_decision_prompt(ctx.conn(), id, step).await?;
    prompt.ok_or_else(|| missing_decision(id))
}

/// Returns the error for a decision that does not exist, or that the caller may not know of.
pub(super) fn missing_decision(id: HandoffId) -> Error {
    Error::not_found("decision of handoff", id)
}

/// Returns the handoff of a decision, for a caller with that role in its project. A chat of another user does not exist for the caller.
pub(super) async fn load_decided_handoff(
    ctx: &mut Ctx,
    id: HandoffId,
    needed: UserRole,
) -> Result<HandoffRecord, Error> {
    let missing = || missing_decision(id);
    ctx.caller()?;
    let kept = handoffs::get_handoff(ctx.conn(), id).await?.ok_or_else(missing)?;
    match ctx.require_project_role(kept.project, needed).await {
        Err(Error::NotFound { .. }) => return Err(missing()),
        result => result?,
    };
    if is_foreign_chat(ctx, &kept)? {
        return Err(missing());
    }
    Ok(kept)
}

/// Returns whether the handoff is a chat of another user, which is private.
fn is_foreign_chat(ctx: &Ctx, kept: &HandoffRecord) -> Result<bool, Error> {
    Ok(kept.kind == HandoffKind::Chat && kept.user != ctx.caller()?.user)
}

async fn to_handoff_view(ctx: &mut Ctx, kept: HandoffRecord) -> Result<HandoffView, Error> {
    let private = is_foreign_chat(ctx, &kept)?;
    let decisions = handoffs::list_decisions(ctx.conn(), kept.id, kept.created_at).await?;
    Ok(HandoffView {
        handoff_id: kept.id,
        kind: kept.kind,
        category: kept.kind.handoff_category(),
        role: kept.kind.assigned_role(),
        state: kept.state,
        parent_id: kept.parent,
        user_id: kept.user,
        project_id: kept.project,
        task_id: kept.task,
        run_id: kept.run,
        job_id: kept.job,
        thread_id: kept.thread,
        attempt: kept.attempt,
        expired_leases: kept.lost,
        worker: kept.worker,
        cost_micros: decisions.iter().map(|(_, cost)| cost).sum(),
        failure: kept.failure.filter(|_| !private),
        trace_id: kept.trace,
        created_at: kept.created_at,
        ended_at: kept.ended_at,
        decisions: decisions.into_iter().map(|(decision, _)| decision).collect(),
        request: None,
        answer: None,
        planning: Vec::new(),
        given: Vec::new(),
    })
}
