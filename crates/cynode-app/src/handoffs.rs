//! Work that is given to the project manager and to analysts: stored, claimed, thought about, answered once.
//!
//! **Invariant**: what they do, they do under a claim with the newest fencing token and with a token for tools and models that ends
//! with the claim. An answer, what it changes and the waking of its run are one transaction.

use std::time::{Duration, Instant};

use cynode_core::{
    agents::{AgentKind, AgentRole},
    events::EventKind,
    ids::{CallId, HandoffId, JobId, ProjectId, RunId, TaskId, ThreadId, UserId},
    preferences::{self as rules, Scope},
    roles::Role,
    workflow::limits::backoff,
};
use cynode_db::{
    DbError, groups,
    handoffs::{self, Claim, Ending, Held, Kept, NewHandoff, NewThought},
    jobs, projects, repositories, tasks, workflow,
};
use cynode_wire::{
    handoffs::{
        BeginThought, ClaimHandoff, ClaimedHandoff, CompleteHandoff, DelegateHandoff, FailHandoff,
        Handoff, HandoffAnswer, HandoffContext, HandoffKind, HandoffRequest, HandoffState,
        HandoffView, KeepHandoff, PreferenceApplied, ProjectFacts, RecordThought, TaskFacts,
        ThoughtBegun,
    },
    page::{Page, PageRequest},
    reports::ReportView,
};
use serde_json::{Value, json};
use time::OffsetDateTime;
use tokio_util::sync::CancellationToken;

use crate::{
    App, Ctx, Error, Request,
    agents::{self, ForHandoff},
    context::Told,
    error::complain,
    inference::{self, Menu},
    settings,
    workflow::{lifetime, patience},
};

/// How long a handoff may be silent when its worker does not say.
const SILENCE: u32 = 60;

/// How often a handoff is begun before it has failed, when it ends in silence: whatever it is may kill whoever works on it. Likewise
/// without a task, when its model does not answer in time: each try may be paid for, and nothing is parked for it.
const LOST: u32 = 5;

/// And when whoever works on it says that it may pass: a provider that is away or a budget that is used up may take a day. It is tried
/// every half minute, which costs nothing; its view says why it waits.
const TRIES: u32 = 3000;

/// Most managers' handoffs at once, over all processes.
const MANAGERS: i64 = 1000;

/// The setting that says how many analysts may work at once, and what holds without it.
pub const ANALYSTS: &str = "manager.analysts_at_once";
const ANALYSTS_DEFAULT: i64 = 4;

/// How long a claim waits for a sign from this process before it looks by itself: other processes store too.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// Most bytes of a prompt that is kept.
const MOST_PROMPT: usize = 512 * 1024;

/// The program that claims.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Host {
    /// Its name.
    pub name: String,
    /// Whose work it does.
    pub role: AgentRole,
}

impl Host {
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
pub(crate) struct Subject {
    pub(crate) user: UserId,
    pub(crate) project: ProjectId,
    pub(crate) task: Option<TaskId>,
    pub(crate) run: Option<RunId>,
    pub(crate) job: Option<JobId>,
    pub(crate) thread: Option<ThreadId>,
}

/// Stores a handoff in this transaction.
pub(crate) async fn hand_off(
    ctx: &mut Ctx,
    subject: Subject,
    parent: Option<HandoffId>,
    about: Option<&str>,
    request: &HandoffRequest,
) -> Result<HandoffId, Error> {
    let (id, trace) = (HandoffId::from_uuid(ctx.uuid()), ctx.trace.to_string());
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
    handoffs::insert(ctx.conn(), &new).await?;
    ctx.queue();
    let kind = request.kind();
    let role = kind.role();
    let data = json!({
        "handoff_id": id, "kind": kind, "category": kind.category(), "role": role, "thread_id": subject.thread,
        "run_id": subject.run, "job_id": subject.job, "user_id": subject.user,
    });
    let mut told = Told::new(EventKind::HandoffStored, data).project(subject.project);
    if let Some(task) = subject.task {
        told = told.task(task);
    }
    ctx.record(told).await?;
    tracing::info!(
        event = "handoff.stored",
        handoff.id = %id,
        kind = kind.as_str(),
        role = role.as_str(),
        user.id = %subject.user,
        project.id = %subject.project,
        task.id = subject.task.map(tracing::field::display),
        trace_id = trace,
        "handed off"
    );
    Ok(id)
}

/// Gives a handoff to the program that asks; if so asked, it waits for one.
#[tracing::instrument(name = "app.handoffs.claim", skip_all, fields(worker = host.name))]
pub async fn claim(
    app: &App,
    request: &Request,
    host: &Host,
    body: &ClaimHandoff,
    gone: &CancellationToken,
) -> Result<ClaimedHandoff, Error> {
    let ttl_ms = lifetime(body.expires_in_seconds, SILENCE)?;
    let until = Instant::now() + patience(body.wait_ms);
    loop {
        // Whoever has gone must take nothing with it: it would rest until its lease is over.
        if gone.is_cancelled() {
            return Ok(ClaimedHandoff { handoff: None });
        }
        let mut sign = std::pin::pin!(app.sign_of_work());
        sign.as_mut().enable();
        // Models may be offered while it waits.
        let menu = inference::menu(app).await?;
        let mut ctx = app.open(request).await?;
        jobs::one_claim_at_a_time(ctx.conn(), body.claim_id).await?;
        let at_once = match host.role {
            AgentRole::ProjectAnalyst => {
                // One after the other: two that look at the same moment would both find the last place.
                handoffs::one_analyst_at_a_time(ctx.conn()).await?;
                analysts(&mut ctx).await?
            }
            _ => MANAGERS,
        };
        let Host { name, role } = host;
        let claim = Claim { role: *role, worker: name, claim_id: body.claim_id, ttl_ms, at_once };
        if let Some(kept) = handoffs::claim(ctx.conn(), claim).await? {
            let handoff = given(&mut ctx, &kept, &menu).await?;
            app.commit(ctx).await?;
            return Ok(ClaimedHandoff { handoff: Some(Box::new(handoff)) });
        }
        drop(ctx);
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(ClaimedHandoff { handoff: None });
        }
        tokio::select! {
            _ = tokio::time::timeout(left.min(LOOK_EVERY), sign) => {}
            () = gone.cancelled() => {}
        }
    }
}

async fn analysts(ctx: &mut Ctx) -> Result<i64, Error> {
    let set = settings::value(ctx.conn(), ANALYSTS).await?.and_then(|value| value.as_i64());
    Ok(set.filter(|most| (0..=1000).contains(most)).unwrap_or(ANALYSTS_DEFAULT))
}

/// A handoff for whoever works on it, with a token of its own; tokens of earlier claims end.
pub(crate) async fn given(ctx: &mut Ctx, kept: &Kept, menu: &Menu) -> Result<Handoff, Error> {
    let (now, models) = (ctx.now, menu.models(kept.project));
    let tool_models = menu.calling_tools(kept.project, &models);
    handoffs::revoke_tokens(ctx.conn(), &[kept.id], now).await?;
    let role = kept.kind.role();
    let issued = agents::issue_for_handoff(
        ctx,
        ForHandoff {
            role,
            user: kept.user,
            project: kept.project,
            task: kept.task,
            run: kept.run,
            models: &models,
        },
    );
    let (token_id, token) = issued.await?;
    handoffs::tie_token(ctx.conn(), token_id, kept.id).await?;
    let context = context(ctx, kept, role).await?;
    let thoughts = handoffs::thoughts(ctx.conn(), kept.id, kept.created_at).await?;
    Ok(Handoff {
        handoff_id: kept.id,
        fencing_token: kept.fencing_token,
        attempt: kept.attempt,
        request: kept.request.clone(),
        context,
        token,
        models,
        tool_models,
        thoughts: thoughts.into_iter().map(|(thought, _)| thought).collect(),
        delegated: handoffs::shares(ctx.conn(), kept.id).await?,
        expires_at: kept.lease_expires_at.unwrap_or(now),
    })
}

/// Everything that a role is told beside the question; nothing that is meant for the other role.
async fn context(ctx: &mut Ctx, kept: &Kept, role: AgentRole) -> Result<HandoffContext, Error> {
    let project = projects::get(ctx.conn(), kept.project).await?;
    let head = repositories::get(ctx.conn(), kept.project).await?.map(|there| there.head);
    let project = project.map(|project| ProjectFacts {
        id: project.id,
        name: project.title.to_string(),
        slug: project.slug.to_string(),
        description: project.description.map(|text| text.to_string()).unwrap_or_default(),
        head,
    });
    let task = match kept.task {
        Some(id) => tasks::get(ctx.conn(), id).await?,
        None => None,
    };
    let task = task.map(|task| TaskFacts {
        id: task.id,
        name: task.name.to_string(),
        description: task.description.to_string(),
        acceptance_criteria: task.acceptance_criteria,
        status: task.state.name().as_str().to_owned(),
    });
    let group_ids = groups::of_user(ctx.conn(), kept.user).await?;
    let entries =
        crate::preferences::entries(ctx.conn(), kept.user, Some(kept.project), kept.task).await?;
    let held = rules::resolve_for(role, entries);
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
            context.additional_context = said(&held.value);
        }
        let scope = scope_name(held.scope).to_owned();
        let applied = PreferenceApplied { scope, version: held.version };
        context.preferences_applied.insert(key.clone(), applied);
        context.preferences.insert(key, held.value);
    }
    if let (HandoffRequest::Verify(judge) | HandoffRequest::Analyse(judge), Some(task)) =
        (&kept.request, kept.task)
    {
        let (unit, attempt) = (judge.unit.as_str(), judge.unit_attempt);
        context.reports = handoffs::reports(ctx.conn(), task, unit, attempt).await?;
    }
    if let Some(run) = kept.run {
        context.planned = handoffs::planned(ctx.conn(), run).await?.map(Box::new);
    }
    Ok(context)
}

const fn scope_name(scope: Scope) -> &'static str {
    scope.kind().as_str()
}

/// A text, or several one after the other.
fn said(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Array(items) => {
            let texts: Vec<&str> = items.iter().filter_map(Value::as_str).collect();
            (!texts.is_empty()).then(|| texts.join("\n\n"))
        }
        _ => None,
    }
}

const NOT_YOURS: &str = "the handoff is not worked on under this claim any more";

async fn held(
    ctx: &mut Ctx,
    host: &Host,
    id: HandoffId,
    fencing_token: i64,
) -> Result<Kept, Error> {
    let held = Held { id, worker: &host.name, fencing_token };
    let kept = handoffs::hold(ctx.conn(), held).await?.ok_or(Error::Fenced(NOT_YOURS))?;
    if kept.kind.role() != host.role {
        return Err(Error::Fenced(NOT_YOURS));
    }
    if let Ok(trace) = kept.trace.parse() {
        ctx.trace = trace;
    }
    Ok(kept)
}

/// Notes that a handoff is still worked on.
#[tracing::instrument(name = "app.handoffs.keep", skip_all, fields(handoff.id = %body.handoff_id))]
pub async fn keep(ctx: &mut Ctx, host: &Host, body: &KeepHandoff) -> Result<OffsetDateTime, Error> {
    let ttl = lifetime(body.expires_in_seconds, SILENCE)?;
    let held = Held { id: body.handoff_id, worker: &host.name, fencing_token: body.fencing_token };
    handoffs::keep(ctx.conn(), held, ttl).await?.ok_or(Error::Fenced(NOT_YOURS))
}

/// Whether an answer is one to that kind of question.
fn fits(kept: &Kept, answer: &HandoffAnswer) -> Result<(), String> {
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
            match assignments.iter().find(|one| one.work.role.kind() != AgentKind::Sandbox) {
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
#[tracing::instrument(name = "app.handoffs.complete", skip_all, fields(handoff.id = %body.handoff_id))]
pub async fn complete(
    app: &App,
    request: &Request,
    host: &Host,
    body: &CompleteHandoff,
) -> Result<HandoffState, Error> {
    // What models say may repeat a secret; it is taken out before it is stored.
    let mut answer =
        serde_json::to_value(&body.answer).map_err(|error| Error::Internal(error.into()))?;
    inference::redact(app, &mut answer).await?;
    let answer: HandoffAnswer = serde_json::from_value(answer).map_err(|_| {
        Error::Invalid("the answer holds a secret where it cannot be taken out".into())
    })?;
    let mut ctx = app.open(request).await?;
    // An analyst that answers gives the whole back to the manager: nothing has changed for the run yet.
    wake_unless(&mut ctx, body.handoff_id, |kept| kept.parent.is_some()).await?;
    let kept = match held(&mut ctx, host, body.handoff_id, body.fencing_token).await {
        Ok(kept) => kept,
        Err(Error::Fenced(_)) => return done_before(&mut ctx, host, body).await,
        Err(error) => return Err(error),
    };
    fits(&kept, &answer).map_err(Error::Invalid)?;
    settle(&mut ctx, &kept, &Ending::Done(&answer)).await?;
    app.commit(ctx).await?;
    Ok(HandoffState::Done)
}

async fn done_before(
    ctx: &mut Ctx,
    host: &Host,
    body: &CompleteHandoff,
) -> Result<HandoffState, Error> {
    let kept = handoffs::get(ctx.conn(), body.handoff_id).await?;
    let same = kept.filter(|kept| {
        kept.state == HandoffState::Done
            && kept.fencing_token == body.fencing_token
            && kept.worker.as_deref() == Some(host.name.as_str())
    });
    same.map(|kept| kept.state).ok_or(Error::Fenced(NOT_YOURS))
}

/// Wakes the run that waits for a handoff which is about to end, unless it goes back to whoever works on it: nothing has changed for
/// the run then. What decides it stays as it is under one claim. A refusal undoes it. The run comes before the handoff: a checkpoint
/// takes them in this order too.
async fn wake_unless(
    ctx: &mut Ctx,
    id: HandoffId,
    goes_back: impl Fn(&Kept) -> bool + Send,
) -> Result<(), Error> {
    let Some(kept) = handoffs::get(ctx.conn(), id).await? else { return Ok(()) };
    // A share that fails takes the whole with it.
    let waits = kept.parent.is_some() || kept.driven;
    let Some(task) = kept.task.filter(|_| waits) else { return Ok(()) };
    if goes_back(&kept) {
        // Whoever drops what a run asked holds the run, and sees every share of it then.
        return Ok(workflow::lock_run(ctx.conn(), task).await?);
    }
    workflow::wake(ctx.conn(), &[task.as_uuid()]).await?;
    ctx.wake(task);
    Ok(())
}

/// Moves a handoff that is locked; whoever waits for it was woken before.
async fn settle(ctx: &mut Ctx, kept: &Kept, ending: &Ending<'_>) -> Result<(), Error> {
    let now = ctx.now;
    let asked = kept.job.filter(|_| kept.kind == HandoffKind::Report);
    if let Some(job) = asked {
        handoffs::one_question_at_a_time(ctx.conn(), job).await?;
    }
    handoffs::settle(ctx.conn(), kept.id, ending).await?;
    handoffs::revoke_tokens(ctx.conn(), &[kept.id], now).await?;
    let (state, why) = match ending {
        Ending::Done(_) => (HandoffState::Done, None),
        Ending::Failed(why) => (HandoffState::Failed, Some((*why).to_owned())),
        Ending::Cancelled => (HandoffState::Cancelled, None),
        Ending::Again(..) | Ending::Delegated => {
            ctx.queue();
            return Ok(());
        }
    };
    // Everybody who sees the project follows its events; what came of a chat is told to whoever has it.
    let shown = why.as_ref().filter(|_| kept.kind != HandoffKind::Chat);
    let data =
        json!({ "handoff_id": kept.id, "kind": kept.kind, "state": state, "failure": shown });
    let mut told = Told::new(EventKind::HandoffEnded, data).project(kept.project);
    if let Some(task) = kept.task {
        told = told.task(task);
    }
    ctx.record(told).await?;
    if asked.is_some() {
        crate::reports::ask_next(ctx, kept).await?;
    }
    let Some(parent) = kept.parent else { return Ok(()) };
    match why {
        None => {
            handoffs::give_back(ctx.conn(), parent).await?;
            ctx.queue();
        }
        Some(why) => {
            let waiting = handoffs::get(ctx.conn(), parent).await?;
            if let Some(parent) = waiting.filter(|kept| kept.state == HandoffState::Delegated) {
                let why = format!("the analyst came to nothing: {why}");
                Box::pin(settle(ctx, &parent, &Ending::Failed(&why))).await?;
            }
        }
    }
    Ok(())
}

/// Notes that a handoff came to nothing: it is tried again after a while, or has failed.
#[tracing::instrument(name = "app.handoffs.fail", skip_all, fields(handoff.id = %body.handoff_id))]
pub async fn fail(
    app: &App,
    request: &Request,
    host: &Host,
    body: &FailHandoff,
) -> Result<HandoffState, Error> {
    let why = inference::redacted(app, body.why.chars().take(2000).collect()).await?;
    let mut ctx = app.open(request).await?;
    let lost = |kept: &Kept| body.late && kept.task.is_none();
    let goes_back = |kept: &Kept| goes_back(kept, body.transient, lost(kept));
    wake_unless(&mut ctx, body.handoff_id, goes_back).await?;
    let kept = held(&mut ctx, host, body.handoff_id, body.fencing_token).await?;
    let state = failed(&mut ctx, &kept, body.transient, lost(&kept), &why).await?;
    app.commit(ctx).await?;
    Ok(state)
}

/// Whether a handoff that came to nothing is tried again.
fn goes_back(kept: &Kept, transient: bool, lost: bool) -> bool {
    let left = if lost { kept.lost + 1 < LOST } else { kept.attempt < TRIES };
    transient && left && kept.kind != HandoffKind::Chat
}

async fn failed(
    ctx: &mut Ctx,
    kept: &Kept,
    transient: bool,
    lost: bool,
    why: &str,
) -> Result<HandoffState, Error> {
    if lost {
        handoffs::lose(ctx.conn(), kept.id).await?;
    }
    if goes_back(kept, transient, lost) {
        let delay = i64::try_from(backoff(kept.attempt).as_millis()).unwrap_or(1000);
        settle(ctx, kept, &Ending::Again(why, delay)).await?;
        return Ok(HandoffState::Queued);
    }
    settle(ctx, kept, &Ending::Failed(why)).await?;
    Ok(HandoffState::Failed)
}

/// Gives an analyst its share; the handoff may be claimed again when the analyst has answered.
#[tracing::instrument(name = "app.handoffs.delegate", skip_all, fields(handoff.id = %body.handoff_id))]
pub async fn delegate(
    ctx: &mut Ctx,
    host: &Host,
    body: &DelegateHandoff,
) -> Result<HandoffId, Error> {
    wake_unless(ctx, body.handoff_id, |_| true).await?;
    let kept = held(ctx, host, body.handoff_id, body.fencing_token).await?;
    let HandoffRequest::Verify(judge) = &kept.request else {
        return Err(Error::Invalid("only a judgement is shared with an analyst".into()));
    };
    if !handoffs::shares(ctx.conn(), kept.id).await?.is_empty() {
        return Err(Error::Conflict("an analyst has answered already"));
    }
    let subject = Subject {
        user: kept.user,
        project: kept.project,
        task: kept.task,
        run: kept.run,
        job: kept.job,
        thread: kept.thread,
    };
    let request = HandoffRequest::Analyse(judge.clone());
    settle(ctx, &kept, &Ending::Delegated).await?;
    hand_off(ctx, subject, Some(kept.id), None, &request).await
}

/// Notes that a model is about to be asked. While a person has paused the task, it is not: the handoff goes back with what was
/// thought, and is given again when the task goes on.
#[tracing::instrument(name = "app.handoffs.begin_thought", skip_all, fields(handoff.id = %body.handoff_id))]
pub async fn begin_thought(
    ctx: &mut Ctx,
    host: &Host,
    body: &BeginThought,
) -> Result<ThoughtBegun, Error> {
    let kept = held(ctx, host, body.handoff_id, body.fencing_token).await?;
    let paused = match kept.task {
        Some(task) => handoffs::paused(ctx.conn(), task).await?,
        None => false,
    };
    if paused {
        let now = ctx.now;
        handoffs::take_back(ctx.conn(), kept.id).await?;
        handoffs::revoke_tokens(ctx.conn(), &[kept.id], now).await?;
        tracing::info!(event = "handoff.paused", handoff.id = %kept.id, "taken back: its task is paused");
    }
    Ok(ThoughtBegun { paused })
}

/// Keeps what was thought, before anything is done with it.
#[tracing::instrument(name = "app.handoffs.think", skip_all, fields(handoff.id = %body.handoff_id))]
pub async fn think(
    app: &App,
    request: &Request,
    host: &Host,
    body: RecordThought,
) -> Result<(), Error> {
    let RecordThought { handoff_id, fencing_token, mut thought, mut prompt, calls } = body;
    if prompt.to_string().len() > MOST_PROMPT {
        return Err(Error::Invalid(format!("a prompt has at most {MOST_PROMPT} bytes")));
    }
    inference::redact(app, &mut prompt).await?;
    if let Some(output) = &mut thought.output {
        inference::redact(app, output).await?;
    }
    // A complaint repeats what was wrong.
    for complaint in &mut thought.complaints {
        *complaint = inference::redacted(app, std::mem::take(complaint)).await?;
    }
    let calls: Vec<CallId> = calls.iter().filter_map(|call| call.parse().ok()).collect();
    let mut ctx = app.open(request).await?;
    let kept = held(&mut ctx, host, handoff_id, fencing_token).await?;
    let new = NewThought { handoff: &kept, thought: &thought, prompt: &prompt, calls: &calls };
    if !handoffs::think(ctx.conn(), &new).await? {
        return Err(Error::Conflict("another question was asked at this step"));
    }
    app.commit(ctx).await
}

/// Lets go of handoffs of which nothing is heard. Gives how many.
pub(crate) async fn sweep(app: &App, request: &Request, most: i64) -> Result<usize, Error> {
    let mut conn = app.pool().acquire().await.map_err(DbError::from)?;
    let silent = handoffs::silent(&mut conn, most).await?;
    drop(conn);
    for kept in &silent {
        let ctx = crate::sweep::open(app, request).await?;
        if let Err(error) = let_go(app, ctx, kept).await {
            complain(&error, "a handoff of which nothing is heard could not be let go of");
        }
    }
    Ok(silent.len())
}

async fn let_go(app: &App, mut ctx: Ctx, kept: &Kept) -> Result<(), Error> {
    wake_unless(&mut ctx, kept.id, |kept| goes_back(kept, true, true)).await?;
    let worker = kept.worker.as_deref().unwrap_or_default();
    let held = Held { id: kept.id, worker, fencing_token: kept.fencing_token };
    // It may have been answered or kept meanwhile.
    let still = handoffs::hold_silent(ctx.conn(), held).await?;
    let Some(kept) = still else { return Ok(()) };
    let why = "nothing was heard of whoever worked on it";
    failed(&mut ctx, &kept, true, true, why).await?;
    app.commit(ctx).await?;
    tracing::warn!(event = "handoff.lost", handoff.id = %kept.id, attempt = kept.attempt, "{why}");
    Ok(())
}

/// Nobody wants the handoffs of a task any more.
pub(crate) async fn drop_all(ctx: &mut Ctx, task: TaskId) -> Result<(), Error> {
    dropped(ctx, task, false).await
}

/// Nobody wants what the run of a task asked before.
pub(crate) async fn drop_asked(ctx: &mut Ctx, task: TaskId) -> Result<(), Error> {
    dropped(ctx, task, true).await
}

async fn dropped(ctx: &mut Ctx, task: TaskId, driven: bool) -> Result<(), Error> {
    let now = ctx.now;
    let ended = handoffs::cancel(ctx.conn(), task, driven).await?;
    Ok(handoffs::revoke_tokens(ctx.conn(), &ended, now).await?)
}

/// Keeps the handoff of a chat that is under way; a failure is logged, and tried again at the next turn.
pub(crate) async fn keep_chat(app: &App, kept: &Kept, ttl_ms: i64) {
    let worker = kept.worker.as_deref().unwrap_or_default();
    let held = Held { id: kept.id, worker, fencing_token: kept.fencing_token };
    let done = async {
        let mut conn = app.pool().acquire().await.map_err(DbError::from)?;
        handoffs::keep(&mut conn, held, ttl_ms).await?;
        Ok::<_, Error>(())
    };
    if let Err(error) = done.await {
        complain(&error, "a chat could not be kept and will be tried again");
    }
}

/// Ends the handoff of a chat, one way or another, unless somebody else has.
pub(crate) async fn end_chat(
    ctx: &mut Ctx,
    kept: &Kept,
    ended: Result<String, String>,
) -> Result<(), Error> {
    let worker = kept.worker.as_deref().unwrap_or_default();
    let held = Held { id: kept.id, worker, fencing_token: kept.fencing_token };
    let Some(kept) = handoffs::hold(ctx.conn(), held).await? else { return Ok(()) };
    match ended {
        Ok(content) => {
            let answer = HandoffAnswer::Chatted { content };
            settle(ctx, &kept, &Ending::Done(&answer)).await
        }
        Err(why) => settle(ctx, &kept, &Ending::Failed(&why)).await,
    }
}

/// The handoffs of a project, newest first; of one task if it is named.
#[tracing::instrument(name = "app.handoffs.list", skip_all)]
pub async fn list(
    ctx: &mut Ctx,
    project: ProjectId,
    task: Option<TaskId>,
    page: PageRequest,
) -> Result<Page<HandoffView>, Error> {
    ctx.require_in(project, Role::Viewer).await?;
    let found = handoffs::list(ctx.conn(), project, task, page).await?;
    let page = page.cut(found, |kept| kept.id.as_uuid());
    let mut items = Vec::with_capacity(page.items.len());
    for kept in page.items {
        items.push(view(ctx, kept).await?);
    }
    Ok(Page { items, next_cursor: page.next_cursor })
}

/// One handoff with what was thought.
#[tracing::instrument(name = "app.handoffs.get", skip_all)]
pub async fn get(ctx: &mut Ctx, id: HandoffId) -> Result<HandoffView, Error> {
    let missing = || Error::not_found("handoff", id);
    ctx.caller()?;
    let kept = handoffs::get(ctx.conn(), id).await?.ok_or_else(missing)?;
    match ctx.require_in(kept.project, Role::Viewer).await {
        Err(Error::NotFound { .. }) => return Err(missing()),
        result => result?,
    };
    let (request, id) = (kept.request.clone(), kept.id);
    let private = of_another(ctx, &kept)?;
    let mut view = view(ctx, kept).await?;
    if private {
        return Ok(view);
    }
    view.request = Some(Box::new(request));
    view.answer = handoffs::answer(ctx.conn(), id).await?.map(Box::new);
    Ok(view)
}

/// What agents reported about a task, oldest first.
#[tracing::instrument(name = "app.handoffs.reports", skip_all)]
pub async fn reports(ctx: &mut Ctx, task: TaskId) -> Result<Vec<ReportView>, Error> {
    crate::tasks::get(ctx, task).await?;
    Ok(handoffs::reports_of_task(ctx.conn(), task).await?)
}

/// The question of a thought, while it is kept. It holds what people wrote, so it takes an operator.
#[tracing::instrument(name = "app.handoffs.prompt", skip_all)]
pub async fn prompt(ctx: &mut Ctx, id: HandoffId, step: u32) -> Result<Value, Error> {
    let missing = || Error::not_found("thought of handoff", id);
    ctx.caller()?;
    let kept = handoffs::get(ctx.conn(), id).await?.ok_or_else(missing)?;
    match ctx.require_in(kept.project, Role::Operator).await {
        Err(Error::NotFound { .. }) => return Err(missing()),
        result => result?,
    };
    if of_another(ctx, &kept)? {
        return Err(missing());
    }
    handoffs::prompt(ctx.conn(), id, step).await?.ok_or_else(missing)
}

/// Whether it is somebody else's chat: what others said there is theirs.
fn of_another(ctx: &Ctx, kept: &Kept) -> Result<bool, Error> {
    Ok(kept.kind == HandoffKind::Chat && kept.user != ctx.caller()?.user)
}

async fn view(ctx: &mut Ctx, kept: Kept) -> Result<HandoffView, Error> {
    let private = of_another(ctx, &kept)?;
    let thoughts = handoffs::thoughts(ctx.conn(), kept.id, kept.created_at).await?;
    Ok(HandoffView {
        handoff_id: kept.id,
        kind: kept.kind,
        category: kept.kind.category(),
        role: kept.kind.role(),
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
        cost_micros: thoughts.iter().map(|(_, cost)| cost).sum(),
        failure: kept.failure.filter(|_| !private),
        trace_id: kept.trace,
        created_at: kept.created_at,
        ended_at: kept.ended_at,
        thoughts: thoughts.into_iter().map(|(thought, _)| thought).collect(),
        request: None,
        answer: None,
    })
}
