//! Handoffs: a work queue for the project manager and analysts, with leases, fencing tokens and recorded think calls.
//!
//! **Invariant**: a worker acts only under a claim with the newest fencing token, and with a token for tools and models
//! that ends with the claim. The answer, its effects and the wake-up of its run are one transaction.

use cynode_core::{
    paging::{Page, PageRequest},
    settings::registry::{DEFAULT_CONCURRENT_ANALYSTS, MAX_CONCURRENT_ANALYSTS_SETTING},
    workflow::{
        handoffs::{AppliedPreference, HandoffAnswer, HandoffKind, HandoffRequest, HandoffState},
        reports::ReportView,
    },
};
use std::time::{Duration, Instant};

use cynode_core::{
    agents::{AgentKind, AgentRole},
    events::EventKind,
    ids::{CallId, HandoffId, JobId, ProjectId, RunId, TaskId, ThreadId, UserId},
    preferences::{self as rules, PreferenceScope},
    roles::UserRole,
    workflow::limits::backoff_delay,
};
use cynode_db::{
    DbError,
    delivery::repositories,
    identity::groups,
    manager::handoffs::{
        self, HandoffClaim, HandoffLease, HandoffRecord, HandoffTransition, NewHandoff,
        NewModelDecision,
    },
    tasks::{self, projects},
    workflow::{self, jobs},
};
use cynode_wire::manager::handoffs::{
    BeginDecision, ClaimHandoff, ClaimedHandoff, CompleteHandoff, DecisionPermit, DelegateHandoff,
    FailHandoff, HandoffAssignment, HandoffContext, HandoffView, ProjectFacts, RecordDecision,
    RenewHandoff, TaskFacts,
};
use serde_json::{Value, json};
use time::OffsetDateTime;
use tokio_util::sync::CancellationToken;

use crate::{
    App, Ctx, Error, OperationFuture, OperationRequest,
    identity::service_tokens::ServiceKind,
    models::inference::{self, ModelSnapshot},
    platform::{
        context::EventDraft,
        error::log_background_error,
        settings,
        timeouts::{validate_ttl_ms, wait_timeout},
    },
    tools::agent_tokens::{self, HandoffTokenRequest},
};

/// How long a handoff may be silent when its worker does not say.
const DEFAULT_HANDOFF_TTL_SECONDS: u32 = 60;

/// How often a handoff is begun before it has failed, when it ends in silence: whatever it is may kill whoever works on it. Likewise
/// without a task, when its model does not answer in time: each try may be paid for, and nothing is parked for it.
const MAX_LOST_ATTEMPTS: u32 = 5;

/// And when whoever works on it says that it may pass: a provider that is away or a budget that is used up may take a day. It is tried
/// every half minute, which costs nothing; its view says why it waits.
const MAX_TRANSIENT_ATTEMPTS: u32 = 3000;

/// Most managers' handoffs at once, over all processes.
const MAX_CONCURRENT_MANAGERS: i64 = 1000;

/// How long a claim waits for a sign before it looks by itself, where nobody looks for the whole process.
const CLAIM_POLL_INTERVAL: Duration = Duration::from_millis(250);

/// Most bytes of a prompt that is kept.
const MAX_PROMPT_BYTES: usize = 512 * 1024;

/// The program that claims.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HandoffHost {
    /// Its name.
    pub name: String,
    /// Whose work it does.
    pub role: AgentRole,
}

impl HandoffHost {
    /// What kind of service it is.
    pub const fn service_kind(&self) -> ServiceKind {
        match self.role {
            AgentRole::ProjectAnalyst => ServiceKind::Analyst,
            _ => ServiceKind::Manager,
        }
    }

    /// The host behind a token at the gate: the service's name and the role of its token.
    pub fn new(name: String, role: AgentRole) -> Result<Self, Error> {
        let role = match role {
            AgentRole::ManagerHost => AgentRole::ProjectManager,
            AgentRole::AnalystHost => AgentRole::ProjectAnalyst,
            _ => return Err(Error::Invalid("only the program of an agent takes handoffs".into())),
        };
        Ok(Self { name, role })
    }
}

/// What a handoff is about.
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

/// Asks whether a call is still permitted.
pub type PermissionCheck<'a> = &'a (dyn Fn() -> OperationFuture<'a, ()> + Send + Sync);

/// What whoever waits for a handoff is asked meanwhile.
#[derive(Clone, Copy)]
pub struct ClaimWait<'a> {
    /// Cancelled when nobody waits any more.
    pub gone: &'a CancellationToken,
    /// Whether the call is still permitted. Nobody looks at a call that only waits, so it asks before it takes anything.
    pub permitted: PermissionCheck<'a>,
}

/// Gives a handoff to the program that asks; if so asked, it waits for one.
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
        // Whoever has gone must take nothing with it: it would rest until its lease is over.
        if waiting.gone.is_cancelled() {
            return Ok(ClaimedHandoff { handoff: None });
        }
        let mut sign = std::pin::pin!(app.work_signal());
        sign.as_mut().enable();
        // Models may be offered while it waits.
        let menu = inference::load_model_snapshot(app).await?;
        let mut ctx = app.begin_transaction(request).await?;
        jobs::lock_claim(ctx.conn(), body.claim_id).await?;
        let at_once = match host.role {
            AgentRole::ProjectAnalyst => {
                // One after the other: two that look at the same moment would both find the last place.
                handoffs::lock_analyst_claims(ctx.conn()).await?;
                max_concurrent_analysts(&mut ctx).await?
            }
            _ => MAX_CONCURRENT_MANAGERS,
        };
        let HandoffHost { name, role } = host;
        let claim =
            HandoffClaim { role: *role, worker: name, claim_id: body.claim_id, ttl_ms, at_once };
        if let Some(kept) = handoffs::claim_handoff(ctx.conn(), claim).await? {
            let handoff = build_handoff(&mut ctx, &kept, &menu).await?;
            app.commit_operation(ctx).await?;
            return Ok(ClaimedHandoff { handoff: Some(Box::new(handoff)) });
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
        // Whoever is looked for knows that there was nothing.
        if !woken && app.has_shared_poll() && Instant::now() >= until {
            return Ok(ClaimedHandoff { handoff: None });
        }
        // It may have waited for long: what it was let in with is asked for anew before it takes anything.
        (waiting.permitted)().await?;
    }
}

async fn max_concurrent_analysts(ctx: &mut Ctx) -> Result<i64, Error> {
    let set = settings::setting_value(ctx.conn(), MAX_CONCURRENT_ANALYSTS_SETTING)
        .await?
        .and_then(|value| value.as_i64());
    Ok(set.filter(|most| (0..=1000).contains(most)).unwrap_or(DEFAULT_CONCURRENT_ANALYSTS))
}

/// A handoff for whoever works on it, with a token of its own; tokens of earlier claims end.
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
    let issued = agent_tokens::issue_for_handoff(
        ctx,
        HandoffTokenRequest {
            role,
            user: kept.user,
            project: kept.project,
            task: kept.task,
            run: kept.run,
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

/// Everything that a role is told beside the question; nothing that is meant for the other role.
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
    let entries = crate::tasks::preferences::load_preference_entries(
        ctx.conn(),
        kept.user,
        Some(kept.project),
        kept.task,
    )
    .await?;
    let held = rules::resolve_for_role(role, entries);
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
    if let (HandoffRequest::Verify(judge) | HandoffRequest::Analyse(judge), Some(task)) =
        (&kept.request, kept.task)
    {
        let (unit, attempt) = (judge.unit.as_str(), judge.unit_attempt);
        context.reports = handoffs::list_attempt_reports(ctx.conn(), task, unit, attempt).await?;
    }
    if let Some(run) = kept.run {
        context.planned = handoffs::latest_plan_of_run(ctx.conn(), run).await?.map(Box::new);
    }
    Ok(context)
}

const fn scope_name(scope: PreferenceScope) -> &'static str {
    scope.scope_type().as_str()
}

/// A text, or several one after the other.
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

/// Notes that a handoff is still worked on.
#[tracing::instrument(name = "app.handoffs.renew_claim", skip_all, fields(handoff.id = %body.handoff_id))]
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

/// Whether an answer is one to that kind of question.
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

/// Ends a handoff with its answer and wakes whoever waits for it. Sent again under the same claim, nothing changes.
#[tracing::instrument(name = "app.handoffs.complete_handoff", skip_all, fields(handoff.id = %body.handoff_id))]
pub async fn complete_handoff(
    app: &App,
    request: &OperationRequest,
    host: &HandoffHost,
    body: &CompleteHandoff,
) -> Result<HandoffState, Error> {
    // What models say may repeat a secret; it is taken out before it is stored.
    let mut answer =
        serde_json::to_value(&body.answer).map_err(|error| Error::Internal(error.into()))?;
    crate::platform::redaction::redact_value(app, &mut answer).await?;
    let answer: HandoffAnswer = serde_json::from_value(answer).map_err(|_| {
        Error::Invalid("the answer holds a secret where it cannot be taken out".into())
    })?;
    let mut ctx = app.begin_transaction(request).await?;
    // An analyst that answers gives the whole back to the manager: nothing has changed for the run yet.
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

/// Wakes the run that waits for a handoff which is about to end, unless it goes back to whoever works on it: nothing has changed for
/// the run then. What decides it stays as it is under one claim. A refusal undoes it. The run comes before the handoff: a checkpoint
/// takes them in this order too.
async fn wake_run_unless(
    ctx: &mut Ctx,
    id: HandoffId,
    goes_back: impl Fn(&HandoffRecord) -> bool + Send,
) -> Result<(), Error> {
    let Some(kept) = handoffs::get_handoff(ctx.conn(), id).await? else { return Ok(()) };
    // A share that fails takes the whole with it.
    let waits = kept.parent.is_some() || kept.driven;
    let Some(task) = kept.task.filter(|_| waits) else { return Ok(()) };
    if goes_back(&kept) {
        // Whoever drops what a run asked holds the run, and sees every share of it then.
        return Ok(workflow::lock_run(ctx.conn(), task).await?);
    }
    workflow::wake_runs(ctx.conn(), &[task.as_uuid()]).await?;
    ctx.wake_task(task);
    Ok(())
}

/// Moves a handoff that is locked; whoever waits for it was woken before.
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
    // Everybody who sees the project follows its events; what came of a chat is told to whoever has it.
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

/// Notes that a handoff came to nothing: it is tried again after a while, or has failed.
#[tracing::instrument(name = "app.handoffs.fail_handoff", skip_all, fields(handoff.id = %body.handoff_id))]
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

/// Whether a handoff that came to nothing is tried again.
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

/// Gives an analyst its share; the handoff may be claimed again when the analyst has answered.
#[tracing::instrument(name = "app.handoffs.delegate_handoff", skip_all, fields(handoff.id = %body.handoff_id))]
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

/// Notes that a model is about to be asked. While a person has paused the task, it is not: the handoff goes back with what was
/// thought, and is given again when the task goes on.
#[tracing::instrument(name = "app.handoffs.begin_think_call", skip_all, fields(handoff.id = %body.handoff_id))]
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

/// Keeps what was thought, before anything is done with it.
#[tracing::instrument(name = "app.handoffs.record_think_call", skip_all, fields(handoff.id = %body.handoff_id))]
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
    // A validation error repeats what was wrong.
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

/// Lets go of handoffs of which nothing is heard. Gives how many.
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
    // It may have been answered or kept meanwhile.
    let still = handoffs::lock_expired_handoff(ctx.conn(), held).await?;
    let Some(kept) = still else { return Ok(()) };
    let why = "nothing was heard of whoever worked on it";
    retry_or_fail(&mut ctx, &kept, true, true, why).await?;
    app.commit_operation(ctx).await?;
    tracing::warn!(event = "handoff.expired", handoff.id = %kept.id, attempt = kept.attempt, "{why}");
    Ok(())
}

/// Nobody wants the handoffs of a task any more.
pub(crate) async fn cancel_task_handoffs(ctx: &mut Ctx, task: TaskId) -> Result<(), Error> {
    cancel_handoffs(ctx, task, false).await
}

/// Nobody wants what the run of a task asked before.
pub(crate) async fn cancel_run_handoffs(ctx: &mut Ctx, task: TaskId) -> Result<(), Error> {
    cancel_handoffs(ctx, task, true).await
}

async fn cancel_handoffs(ctx: &mut Ctx, task: TaskId, driven: bool) -> Result<(), Error> {
    let now = ctx.now;
    let ended = handoffs::cancel_task_handoffs(ctx.conn(), task, driven).await?;
    Ok(handoffs::revoke_handoff_tokens(ctx.conn(), &ended, now).await?)
}

/// Keeps the handoff of a chat that is under way; a failure is logged, and tried again at the next turn.
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

/// Ends the handoff of a chat, one way or another, unless somebody else has.
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

/// The handoffs of a project, newest first; of one task if it is named.
#[tracing::instrument(name = "app.handoffs.list_handoffs", skip_all)]
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

/// One handoff with what was thought.
#[tracing::instrument(name = "app.handoffs.get_handoff", skip_all)]
pub async fn get_handoff(ctx: &mut Ctx, id: HandoffId) -> Result<HandoffView, Error> {
    let missing = || Error::not_found("handoff", id);
    ctx.caller()?;
    let kept = handoffs::get_handoff(ctx.conn(), id).await?.ok_or_else(missing)?;
    match ctx.require_project_role(kept.project, UserRole::Viewer).await {
        Err(Error::NotFound { .. }) => return Err(missing()),
        result => result?,
    };
    let (request, id) = (kept.request.clone(), kept.id);
    let private = is_foreign_chat(ctx, &kept)?;
    let mut view = to_handoff_view(ctx, kept).await?;
    if private {
        return Ok(view);
    }
    view.request = Some(Box::new(request));
    view.answer = handoffs::get_handoff_answer(ctx.conn(), id).await?.map(Box::new);
    Ok(view)
}

/// What agents reported about a task, oldest first.
#[tracing::instrument(name = "app.handoffs.list_task_reports", skip_all)]
pub async fn list_task_reports(ctx: &mut Ctx, task: TaskId) -> Result<Vec<ReportView>, Error> {
    crate::tasks::get_task(ctx, task).await?;
    Ok(handoffs::list_task_reports(ctx.conn(), task).await?)
}

/// The question of a thought, while it is kept. It holds what people wrote, so it takes an operator.
#[tracing::instrument(name = "app.handoffs.get_think_prompt", skip_all)]
pub async fn get_think_prompt(ctx: &mut Ctx, id: HandoffId, step: u32) -> Result<Value, Error> {
    let missing = || Error::not_found("decision of handoff", id);
    ctx.caller()?;
    let kept = handoffs::get_handoff(ctx.conn(), id).await?.ok_or_else(missing)?;
    match ctx.require_project_role(kept.project, UserRole::Operator).await {
        Err(Error::NotFound { .. }) => return Err(missing()),
        result => result?,
    };
    if is_foreign_chat(ctx, &kept)? {
        return Err(missing());
    }
    handoffs::get_decision_prompt(ctx.conn(), id, step).await?.ok_or_else(missing)
}

/// Whether it is somebody else's chat: what others said there is theirs.
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
        worker: kept.worker,
        cost_micros: decisions.iter().map(|(_, cost)| cost).sum(),
        failure: kept.failure.filter(|_| !private),
        trace_id: kept.trace,
        created_at: kept.created_at,
        ended_at: kept.ended_at,
        decisions: decisions.into_iter().map(|(decision, _)| decision).collect(),
        request: None,
        answer: None,
    })
}
