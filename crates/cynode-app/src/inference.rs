//! The one way to models: every question of every agent and every person passes here.
//!
//! The order is fixed: who asks and what they may ask, secrets out, which ways there are, the worst it may cost held back,
//! the question, the answer, what it cost. Nothing is asked whose worst case does not fit under every ceiling. A process
//! that dies leaves what it held back; whoever finds it counts it as spent.

mod answering;
mod held;
mod ledger;
mod managing;
mod question;
mod refusing;
mod registry;
mod telemetry;

use std::{
    borrow::Cow,
    collections::HashMap,
    path::PathBuf,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use bytes::Bytes;
use cynode_core::{
    accounts::Credential,
    events::EventKind,
    ids::{BudgetId, CallId, ProjectId, ProviderId},
    models::{PROJECT_MANAGER, Tier},
    names::{Prose, TextError},
    roles::Role,
    sync::lock,
};
use cynode_db::{
    DbError,
    budgets::{self, Reservation, Reserved},
    models,
};
use cynode_models::{
    bound,
    breaker::Breaker,
    cassette::Cassette,
    redact::Rules,
    shape::Shaped,
    upstream::{Unasked, Upstream},
};
use serde_json::{Value, json};
use time::OffsetDateTime;
use tokio::sync::mpsc;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

pub use cynode_models::{
    dialect::{Dialect, Speak, WireError},
    talk::{Kind, ModelError},
    upstream::FORWARDED,
};
pub use managing::ManagerPlace;
pub use question::{Header, Question, Who};
pub(crate) use refusing::pause_parked;

use crate::{App, Error, Request, agents, context::Told, error::complain, tokens::Presented};
use answering::{Accepting, Recorder, passed_on, told_at_once};
use held::Held;
use ledger::Ledger;
use refusing::{full, park_for_quota, parked};
pub(crate) use registry::{CALLS, DEFAULT, Epochs, PER_MINUTE, REPEATS, epochs};
use registry::{Candidate, Model, Registry, Source};

/// How long a provider may be silent.
const IDLE: Duration = Duration::from_mins(5);

/// A provider that wants to be left alone for longer than this is left alone by everybody.
const SHORT: Duration = Duration::from_secs(10);

/// How long a key rests at least: one that may be used at once would be asked over and over.
const LEAST: Duration = Duration::from_secs(1);

/// How long a key rests whose quota is used up, when the provider does not say.
const QUOTA: Duration = Duration::from_mins(5);

/// A question of so many bytes is looked through apart.
const LARGE: usize = 128 * 1024;

/// How often the registry is read again when it changes while a question is routed.
const LOOKS: usize = 10;

/// What a process needs to ask models.
pub struct Models {
    upstream: Upstream,
    registry: tokio::sync::RwLock<Option<Arc<Registry>>>,
    breakers: Mutex<HashMap<ProviderId, Breaker>>,
    ledger: Ledger,
    rules: Arc<Rules>,
    cassettes: PathBuf,
    /// Where the project manager answers, if one is connected.
    manager: Option<ManagerPlace>,
    /// Answers under way: a process that is to end waits for them.
    answers: TaskTracker,
    told: Mutex<HashMap<BudgetId, Instant>>,
}

impl Models {
    /// Opens the way. It must be called inside the async runtime.
    pub fn open(app: &App, cassettes: PathBuf) -> Result<Self, Error> {
        let failed = |error: anyhow::Error| Error::Internal(error);
        Ok(Self {
            upstream: Upstream::new(IDLE).map_err(|error| failed(error.into()))?,
            registry: tokio::sync::RwLock::default(),
            breakers: Mutex::default(),
            ledger: Ledger::open(app.pool()),
            rules: Rules::new().map_err(|error| failed(error.into()))?,
            cassettes,
            manager: None,
            answers: TaskTracker::new(),
            told: Mutex::default(),
        })
    }

    /// With a project manager to talk to.
    #[must_use]
    pub fn with_manager(mut self, manager: Option<ManagerPlace>) -> Self {
        self.manager = manager;
        self
    }
}

/// An answer for a client.
#[derive(Debug)]
pub enum Answered {
    /// All of it.
    Whole(CallId, Value),
    /// Piece by piece.
    Streamed(CallId, mpsc::Receiver<Bytes>),
}

/// A model that a caller may ask.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offered {
    /// Its id.
    pub id: String,
    /// What people call it.
    pub title: String,
    /// Who has it.
    pub owner: String,
    /// Since when it is there.
    pub created: OffsetDateTime,
}

/// Keeps what was held back for calls under way, and ends what nothing was heard of, until it is told to stop.
pub async fn keep(app: App, stop: CancellationToken) {
    let Ok(models) = app.models().cloned() else { return };
    let mut turn = tokio::time::interval(ledger::RENEW);
    turn.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            () = stop.cancelled() => break,
            _ = turn.tick() => {}
        }
        if let Err(error) = models.ledger.renew(app.pool()).await {
            complain(&error, "calls could not be kept and will be tried again");
        }
        if let Err(error) = settle_lost(&app).await {
            complain(&error, "lost calls could not be ended and will be tried again");
        }
    }
    // Whoever reads slowly is cut off with the process; what they cost then counts as its worst case.
    let _ = tokio::time::timeout(ledger::LEASE / 2, settled(&app)).await;
}

/// Waits until every answer that is under way now has been settled.
pub async fn settled(app: &App) {
    let Ok(models) = app.models() else { return };
    models.answers.close();
    models.answers.wait().await;
    models.answers.reopen();
}

/// Ends calls of which nothing was heard. Gives how many.
pub async fn settle_lost(app: &App) -> Result<usize, Error> {
    let mut conn = app.pool().acquire().await.map_err(DbError::from)?;
    let lost = budgets::settle_lost(&mut conn, 100).await?;
    for call in &lost {
        tracing::warn!(event = "model.lost", call.id = %call, "nothing was heard of a model call; it counts as its worst case");
    }
    Ok(lost.len())
}

/// The models that a caller may ask.
#[tracing::instrument(name = "app.inference.offered", skip_all)]
pub async fn offered(app: &App, who: &Who) -> Result<Vec<Offered>, Error> {
    let models = app.models()?;
    let registry = latest(app, models).await?;
    let mut offered: Vec<Offered> = registry
        .models
        .values()
        .filter(|model| model.is_for(who.project))
        .map(|model| Offered {
            id: model.id.clone(),
            title: model.title.clone(),
            owner: model
                .routes
                .first()
                .map(|route| route.provider.name.clone())
                .unwrap_or_default(),
            created: model.created,
        })
        .collect();
    let own = |id: String, title: &str| Offered {
        id,
        title: title.to_owned(),
        owner: "cynode".into(),
        created: registry.since,
    };
    for tier in Tier::ALL {
        let answers = |model: &Model| model.is_for(who.project) && model.tier == Some(*tier);
        if registry.models.values().any(answers) {
            offered.push(own(tier.model_id(), tier.as_str()));
        }
    }
    offered.push(own(PROJECT_MANAGER.to_owned(), "Project manager"));
    if let Some(agent) = &who.agent {
        offered.retain(|model| agent.models.contains(&model.id));
    }
    offered.sort_by(|a, b| a.id.cmp(&b.id));
    Ok(offered)
}

/// A person who asks, in the name of a project if they say so and may.
pub async fn person(
    app: &App,
    request: &Request,
    project: Option<ProjectId>,
) -> Result<Who, Error> {
    let caller = request.caller.ok_or(Error::Unauthenticated)?;
    if let Some(project) = project {
        app.permit(request, project, Role::Operator).await?;
    }
    let credential = match caller.credential {
        Credential::Session(_) => "session",
        Credential::ApiKey(_) => "api_key",
        Credential::Agent(_) | Credential::Link(_) | Credential::Schedule(_) => {
            return Err(Error::Unauthenticated);
        }
    };
    let role_everywhere = caller.role;
    Ok(Who { user: caller.user, project, agent: None, role_everywhere, credential })
}

/// The agent behind a token, which opens the models that it names.
#[tracing::instrument(name = "app.inference.agent", skip_all)]
pub async fn agent(app: &App, shown: &Presented) -> Result<Who, Error> {
    let found = agents::find(app, &[*shown]).await?.into_iter().next();
    let (_, known) = found.ok_or(Error::Unauthenticated)?;
    let user = known.agent.user.filter(|_| known.state == agents::TokenState::Good);
    let user = user.ok_or(Error::Unauthenticated)?;
    // A model is asked at the project's cost, which nobody who may only read there can cause.
    if !known.agent.operates {
        return Err(Error::forbidden(Role::Operator, "in the project"));
    }
    Ok(Who {
        user,
        project: known.agent.project,
        agent: Some(Arc::new(known)),
        role_everywhere: None,
        credential: "agent",
    })
}

/// About how many tokens a request of Messages has. The provider alone knows exactly; a token has about four letters.
pub fn count(body: &Value) -> u64 {
    fn letters(value: &Value) -> u64 {
        match value {
            Value::String(text) => text.chars().count() as u64,
            Value::Array(items) => items.iter().map(letters).sum(),
            Value::Object(fields) => fields.values().map(letters).sum::<u64>() + 8,
            Value::Null | Value::Bool(_) | Value::Number(_) => 1,
        }
    }
    let parts = ["system", "messages", "tools"];
    parts.iter().filter_map(|part| body.get(*part)).map(letters).sum::<u64>().div_ceil(4)
}

/// Asks a model.
#[tracing::instrument(name = "app.inference.ask", skip_all, fields(dialect = question.dialect.as_str()))]
pub async fn ask(app: &App, mut question: Question) -> Result<Answered, ModelError> {
    let models = app.models().map_err(|error| ours(&error))?;
    let mut shaped = Shaped::new(question.dialect, std::mem::take(&mut question.body))?;
    let dropped = shaped.without_hosted_tools();
    if dropped > 0 {
        tracing::info!(
            event = "model.tools_dropped",
            dropped,
            "tools that a provider would run were taken out"
        );
    }
    let size = question.size;
    let mut prepared = Prepared { shaped, size, redactions: 0, instructed: false };
    let mut registry = models.registry(app, None).await.map_err(|error| ours(&error))?;
    for _ in 0..LOOKS {
        let refused = match routed(app, models, &registry, &question, &mut prepared).await {
            Ok(answered) => return Ok(answered),
            Err(Refused::Failed(error)) => return Err(error),
            Err(Refused::Stale) => None,
            Err(Refused::NoWay(error)) => Some(error),
        };
        let old = registry.epoch;
        registry = models.current(app, &registry).await.map_err(|error| ours(&error))?;
        // What is not there by what holds now is not there.
        if let Some(error) = refused
            && registry.epoch == old
        {
            return Err(error);
        }
    }
    Err(ModelError::new(Kind::Unavailable, "the models are being changed; try again in a moment"))
}

/// Takes the secrets that we know or recognise out of something that is to be stored.
pub(crate) async fn redact(app: &App, value: &mut serde_json::Value) -> Result<(), Error> {
    latest(app, app.models()?).await?.redactor.json(value);
    Ok(())
}

/// What is known of models and secrets, and holds now.
async fn latest(app: &App, models: &Models) -> Result<Arc<Registry>, Error> {
    let registry = models.registry(app, None).await?;
    models.current(app, &registry).await
}

/// A text without the secrets that we know or recognise.
pub(crate) async fn redacted(app: &App, text: String) -> Result<String, Error> {
    let mut value = Value::String(text);
    redact(app, &mut value).await?;
    Ok(match value {
        Value::String(text) => text,
        _ => String::new(),
    })
}

/// Takes the secrets that we know or recognise out of what is handed in, before it is stored and handed on. It needs a connection
/// of its own, so it is for whoever has no transaction open yet.
#[tracing::instrument(name = "app.inference.without_secrets", skip_all)]
pub async fn without_secrets(app: &App, texts: Vec<&mut Prose>) -> Result<(), Error> {
    // A process without a way to models holds no secrets of theirs and no rules.
    let Ok(models) = app.models() else { return Ok(()) };
    if texts.is_empty() {
        return Ok(());
    }
    let registry = latest(app, models).await?;
    for text in texts {
        let mut value = Value::String(text.to_string());
        if registry.redactor.json(&mut value).is_empty() {
            continue;
        }
        let Value::String(left) = value else { continue };
        *text = left.try_into().map_err(|error: TextError| {
            Error::Invalid(format!("with marks in place of its secrets: {error}"))
        })?;
    }
    Ok(())
}

/// What may be asked, as it was when it was looked at: whoever is in a transaction looks no more.
#[derive(Clone, Debug)]
pub(crate) struct Menu(Option<Arc<Registry>>);

impl Menu {
    /// The models that agents on our side may ask in a project.
    pub(crate) fn models(&self, project: ProjectId) -> Vec<String> {
        self.0.as_ref().map(|registry| registry.open_in(Some(project))).unwrap_or_default()
    }

    /// Those of the models that call tools in a project.
    pub(crate) fn calling_tools(&self, project: ProjectId, ids: &[String]) -> Vec<String> {
        let Some(registry) = &self.0 else { return Vec::new() };
        ids.iter().filter(|id| registry.calls_tools(id, Some(project))).cloned().collect()
    }
}

/// Looks at what may be asked now.
pub(crate) async fn menu(app: &App) -> Result<Menu, Error> {
    let Ok(models) = app.models() else { return Ok(Menu(None)) };
    Ok(Menu(Some(latest(app, models).await?)))
}

/// Asks by what a registry says.
async fn routed(
    app: &App,
    models: &Arc<Models>,
    registry: &Arc<Registry>,
    question: &Question,
    prepared: &mut Prepared,
) -> Result<Answered, Refused> {
    let id = match prepared.shaped.model() {
        Some(id) => id.to_owned(),
        None => registry.default.clone().ok_or_else(|| {
            let told = "`model` is missing; `GET /v1/models` lists what may be asked";
            Refused::NoWay(ModelError::new(Kind::BadRequest, told))
        })?,
    };
    if let Some(agent) = &question.who.agent
        && !agent.models.contains(&id)
    {
        let told = format!("this token does not open the model `{}`", clipped(&id));
        return Err(ModelError::new(Kind::Forbidden, told).with_code("model_not_allowed").into());
    }
    if id == PROJECT_MANAGER {
        let answered = managing::ask(app, models, registry, question, prepared).await;
        return answered.map_err(Refused::Failed);
    }
    answer(app, models, registry, question, &id, prepared).await
}

/// A question that is being made ready.
struct Prepared {
    shaped: Shaped,
    /// Bytes of the question.
    size: usize,
    redactions: usize,
    instructed: bool,
}

impl Prepared {
    /// Takes secrets out that this registry knows of, and gives the default skill along. Done again, it adds only what is new.
    async fn ready(&mut self, registry: &Registry, who: &Who, id: &str) -> Result<(), ModelError> {
        let redactor = registry.redactor.clone();
        let redact = move |shaped: &mut Shaped| redactor.json(shaped.body_mut()).total();
        self.redactions += if self.size < LARGE {
            redact(&mut self.shaped)
        } else {
            // A long conversation must not hold up everybody else's.
            let mut shaped = self.shaped.clone();
            let done = tokio::task::spawn_blocking(move || (redact(&mut shaped), shaped)).await;
            let (found, shaped) = done.map_err(|_| {
                ModelError::new(Kind::Upstream, "the question could not be looked through")
            })?;
            self.shaped = shaped;
            found
        };
        if !self.instructed && registry.wants_skill(who, id) {
            self.shaped.instruct(registry::DEFAULT_SKILL);
            self.instructed = true;
        }
        Ok(())
    }
}

enum Refused {
    /// The registry has changed.
    Stale,
    /// The registry has no way; it may have changed.
    NoWay(ModelError),
    Failed(ModelError),
}

impl From<ModelError> for Refused {
    fn from(error: ModelError) -> Self {
        Self::Failed(error)
    }
}

/// Our own failure, as a client is told of it.
fn ours(error: &Error) -> ModelError {
    let kind = match error {
        Error::Away { .. } | Error::Unavailable(_) => Kind::Unavailable,
        Error::Internal(_) => Kind::Upstream,
        _ => Kind::BadRequest,
    };
    if matches!(kind, Kind::Upstream) {
        tracing::error!(
            event = "error",
            error = cynode_core::causes::told(error),
            "a model could not be asked"
        );
    }
    ModelError::new(kind, error.to_string())
}

fn clipped(text: &str) -> String {
    text.chars().take(100).collect()
}

async fn answer(
    app: &App,
    models: &Arc<Models>,
    registry: &Arc<Registry>,
    question: &Question,
    id: &str,
    prepared: &mut Prepared,
) -> Result<Answered, Refused> {
    let candidates = registry.candidates(app, &question.who, id).await.map_err(Refused::NoWay)?;
    prepared.ready(registry, &question.who, id).await?;
    let keys = &app.gate().map_err(|error| Refused::Failed(ours(&error)))?.keys;
    let asked = Asked {
        id,
        digest: keys.digest().digest(prepared.shaped.text().as_bytes()).0,
        redactions: prepared.redactions,
    };
    let shaped = &prepared.shaped;
    let mut failure: Option<ModelError> = None;
    let mut left_alone: Option<ModelError> = None;
    let mut resting: Option<OffsetDateTime> = None;
    for candidate in &candidates {
        let now = app.environment().now();
        if let Err(pause) = admitted(models, candidate.provider.id) {
            let told = format!(
                "provider `{}` keeps failing and is left alone for a moment",
                candidate.provider.name
            );
            // One that went on failing is not waited for where a quota is.
            let said = if pause <= SHORT { &mut failure } else { &mut left_alone };
            said.get_or_insert(ModelError::new(Kind::Unavailable, told));
            continue;
        }
        let key = match candidate.provider.key(now) {
            Ok(key) => key,
            Err(until) => {
                resting = sooner(resting, Some(until));
                continue;
            }
        };
        match attempt(app, models, registry, question, &asked, shaped, candidate, key).await {
            Ok(answered) => return Ok(answered),
            Err(Tried::Over(refused)) => return Err(refused),
            Err(Tried::Next(error, until)) => match until.filter(|_| is_quota(&error)) {
                Some(until) => resting = sooner(resting, Some(until)),
                None => failure = Some(error),
            },
        }
    }
    Err(match (failure, resting) {
        // Whoever fails may be asked again long before a quota is there.
        (Some(error), _) => Refused::Failed(error),
        (None, Some(until)) => park_for_quota(app, question, until).await.into(),
        (None, None) => left_alone.map_or_else(|| Refused::NoWay(no_way(id)), Refused::Failed),
    })
}

/// Whether a provider may be asked; if not, for how long it is left alone.
fn admitted(models: &Models, provider: ProviderId) -> Result<(), Duration> {
    let (mut breakers, now) = (lock(&models.breakers), Instant::now());
    let breaker = breakers.entry(provider).or_default();
    if breaker.admits(now) {
        return Ok(());
    }
    Err(breaker.closed_until(now).map_or(Duration::ZERO, |again| again - now))
}

fn sooner(a: Option<OffsetDateTime>, b: Option<OffsetDateTime>) -> Option<OffsetDateTime> {
    a.into_iter().chain(b).min()
}

fn no_way(id: &str) -> ModelError {
    let told =
        format!("there is no way to the model `{}` now that your preferences allow", clipped(id));
    ModelError::new(Kind::Unavailable, told).with_code("no_route")
}

fn is_quota(error: &ModelError) -> bool {
    matches!(error.kind, Kind::QuotaExhausted | Kind::RateLimited)
}

/// What is asked, whichever way it goes.
struct Asked<'a> {
    id: &'a str,
    digest: [u8; 32],
    redactions: usize,
}

enum Tried {
    /// Nobody else is to be tried.
    Over(Refused),
    /// The next one may be tried; until when the key rests.
    Next(ModelError, Option<OffsetDateTime>),
}

#[expect(clippy::too_many_arguments, reason = "one way of one question: each is another thing")]
async fn attempt(
    app: &App,
    models: &Arc<Models>,
    registry: &Arc<Registry>,
    question: &Question,
    asked: &Asked<'_>,
    shaped: &Shaped,
    candidate: &Candidate,
    key: Option<&registry::Key>,
) -> Result<Answered, Tried> {
    let provider = &candidate.provider;
    let over = |error: ModelError| Tried::Over(Refused::Failed(error));
    let most_output = shaped.limit().unwrap_or(u64::MAX).min(candidate.most_output).max(1);
    // What both sides speak goes on as it is; what must be translated may be refused by the words it has.
    let same =
        provider.dialect == question.dialect && matches!(provider.source, Source::Network(_));
    let request = if same { None } else { Some(shaped_request(question, shaped).map_err(over)?) };
    let body = match (&request, &provider.source) {
        (None, _) => Cow::Owned(shaped.addressed(provider.kind, &candidate.upstream, most_output)),
        (Some(request), Source::Network(_)) => {
            let mut request = request.clone();
            request.model.clone_from(&candidate.upstream);
            request.max_output_tokens = Some(u32::try_from(most_output).unwrap_or(u32::MAX));
            request.include_usage = true;
            let written = provider.dialect.write_request(&request, &candidate.target);
            // Another provider may speak a dialect in which it can be said.
            Cow::Owned(written.map_err(|error| Tried::Next(error, None))?)
        }
        (Some(_), Source::Script(_) | Source::Replay(_)) => Cow::Borrowed(shaped.body()),
    };
    let most_input = bound::most_input_tokens(&body, candidate.context);
    let held = hold(
        app,
        models,
        registry,
        question,
        asked,
        candidate,
        most_input,
        most_output,
        shaped.streams(),
    );
    let held = held.await.map_err(Tried::Over)?;
    let recorder = || {
        provider.record.as_ref().map(|name| Recorder {
            cassette: Cassette::new(models.cassettes.join(name)),
            registry: registry.clone(),
        })
    };
    match &provider.source {
        Source::Script(script) => {
            let request = request.unwrap_or_default();
            let answer = script.answer(&request);
            if let (Some(recorder), Ok(answer)) = (recorder(), &answer) {
                recorder.keep(request.clone(), answer.clone()).await;
            }
            told_at_once(question, held, &request, answer).await
        }
        Source::Replay(name) => {
            let request = request.unwrap_or_default();
            let cassette = Cassette::new(models.cassettes.join(name));
            let answer = tokio::task::spawn_blocking({
                let request = request.clone();
                move || cassette.play(&request)
            });
            let answer = answer.await.unwrap_or_else(|_| {
                Err(ModelError::new(Kind::Upstream, "a cassette could not be played"))
            });
            told_at_once(question, held, &request, answer).await
        }
        Source::Network(place) => {
            let text = body.to_string().into_bytes();
            let (secret, stream) = (key.and_then(|key| key.secret.as_ref()), shaped.streams());
            let forwarded = question.forwarded(same);
            let sent = models.upstream.ask(place, secret, &forwarded, text, stream);
            match sent.await {
                Ok(accepted) => {
                    lock(&models.breakers).entry(provider.id).or_default().succeeded();
                    let (provider, record) = (provider.dialect, recorder());
                    let accepting = Accepting { held, provider, accepted, record };
                    passed_on(question, shaped, request, accepting).await
                }
                Err(mut unasked) => {
                    // What a provider says may hold what it was sent.
                    let told = registry.redactor.text(&unasked.error.message).value.into_owned();
                    unasked.error.message = told;
                    Err(failed_at(app, models, candidate, key, held, unasked).await)
                }
            }
        }
    }
}

/// What the client asked, in our words.
fn shaped_request(
    question: &Question,
    shaped: &Shaped,
) -> Result<cynode_models::talk::Request, ModelError> {
    question.dialect.read_request(shaped.body())
}

/// Holds the worst case back, or says why the question is not asked.
#[expect(clippy::too_many_arguments, reason = "one way of one question: each is another thing")]
async fn hold(
    app: &App,
    models: &Arc<Models>,
    registry: &Registry,
    question: &Question,
    asked: &Asked<'_>,
    candidate: &Candidate,
    most_input: u64,
    most_output: u64,
    streamed: bool,
) -> Result<Held, Refused> {
    let environment = app.environment();
    let now = environment.now();
    let call = CallId::from_uuid(environment.uuid(now));
    let started = Instant::now();
    let number = |n: u64| i64::try_from(n).unwrap_or(i64::MAX);
    let micros = number(candidate.prices.worst_micros(most_input, most_output));
    let who = &question.who;
    let facts = json!({
        "call_id": call.as_uuid(), "at": stamp(now), "user_id": who.user.as_uuid(),
        "project_id": who.project.map(|id| id.as_uuid()), "task_id": who.task().map(|id| id.as_uuid()),
        "run_id": who.run().map(|id| id.as_uuid()), "job_id": who.job().map(|id| id.as_uuid()),
        "agent_token_id": who.agent_token().map(|id| id.as_uuid()), "agent_role": who.role().map(|role| role.as_str()),
        "credential": who.credential, "trace_id": question.trace.to_string(), "dialect": question.dialect.as_str(),
        "model": asked.id, "provider": candidate.provider.name, "upstream": candidate.upstream,
        "prompt_digest": format!("\\x{}", data_encoding::HEXLOWER.encode(&asked.digest)),
        "redactions": asked.redactions, "streamed": streamed,
        "input_tokens": most_input, "cached_tokens": 0, "cache_write_tokens": 0, "output_tokens": most_output,
        "reasoning_tokens": 0,
    });
    let reservation = Reservation {
        call,
        epoch: registry.epoch,
        user: who.user,
        project: who.project,
        task: who.task(),
        digest: asked.digest,
        micros,
        tokens: number(most_input.saturating_add(most_output)),
        facts,
    };
    let reserved = models.ledger.reserve(app.pool(), reservation, registry.breaker, now).await;
    match reserved.map_err(|error| Refused::Failed(ours(&error.into())))? {
        Reserved::Held => {}
        Reserved::Stale => return Err(Refused::Stale),
        Reserved::Full(budget) => return Err(full(app, models, question, budget).await.into()),
        Reserved::Parked(park, new) => return Err(parked(app, question, &park, new).await.into()),
    }
    let labels = telemetry::Labels::new(question.dialect, asked.id, &candidate.provider.name);
    Ok(Held {
        app: app.clone(),
        models: models.clone(),
        call,
        started,
        first_byte: None,
        prices: candidate.prices,
        most_input,
        most_output,
        most_micros: micros,
        labels,
    })
}

/// A moment as PostgreSQL reads it.
fn stamp(now: OffsetDateTime) -> String {
    now.format(&time::format_description::well_known::Rfc3339).unwrap_or_default()
}

/// A provider that could not be asked: what was held back is given free, and whoever rests is noted.
async fn failed_at(
    app: &App,
    models: &Arc<Models>,
    candidate: &Candidate,
    key: Option<&registry::Key>,
    held: Held,
    unasked: Unasked,
) -> Tried {
    let provider = &candidate.provider;
    let Unasked { error, free } = unasked;
    if free {
        held.release(&error).await;
    } else {
        held.assume_worst(&error).await;
    }
    let now = app.environment().now();
    match error.kind {
        // It was asked and said no for a reason that the next one would have too.
        Kind::BadRequest | Kind::TooLarge | Kind::ContentRefused => {
            lock(&models.breakers).entry(provider.id).or_default().succeeded();
            return Tried::Over(Refused::Failed(error));
        }
        Kind::QuotaExhausted | Kind::RateLimited | Kind::Unauthorized => {
            let usual = if error.kind == Kind::RateLimited { SHORT } else { QUOTA };
            let until = now + error.retry_after.map_or(usual, |wait| wait.max(LEAST));
            let Some(key) = key else {
                if error.kind != Kind::Unauthorized {
                    return Tried::Next(error, Some(until));
                }
                // Whoever asked has shown us a good key: told of a bad one, they would look in the wrong place.
                let told = format!("provider `{}` asks for a key and has none", provider.name);
                return Tried::Next(provider_refused(told), None);
            };
            match park_key(app, provider, key, until, &error).await {
                // The next key is tried by what holds now, or everybody rests.
                Ok(()) => return Tried::Over(Refused::Stale),
                Err(failure) => {
                    let failure = cynode_core::causes::told(&failure);
                    tracing::error!(event = "error", error = failure, "a key could not be parked");
                    return Tried::Next(error, Some(until));
                }
            }
        }
        Kind::Forbidden | Kind::NotFound => {
            tracing::error!(event = "model.refused", provider = provider.name, error = %error, "a provider refuses our key or does not know the model");
        }
        Kind::Overloaded
        | Kind::Upstream
        | Kind::Timeout
        | Kind::Unavailable
        | Kind::BudgetExhausted => {
            if lock(&models.breakers).entry(provider.id).or_default().failed(Instant::now()) {
                tracing::warn!(
                    event = "model.provider_down",
                    provider = provider.name,
                    "a provider keeps failing and is left alone for a while"
                );
            }
        }
    }
    // The client's key is good; ours is not, and that is ours to mend.
    let error = match error.kind {
        Kind::Forbidden | Kind::NotFound => {
            let told = format!("provider `{}` does not serve this model", provider.name);
            provider_refused(told)
        }
        _ => error,
    };
    Tried::Next(error, None)
}

fn provider_refused(told: String) -> ModelError {
    ModelError::new(Kind::Upstream, told).with_code("provider_refused")
}

async fn park_key(
    app: &App,
    provider: &registry::Provider,
    key: &registry::Key,
    until: OffsetDateTime,
    error: &ModelError,
) -> Result<(), Error> {
    let request = Request { caller: None, trace: app.environment().trace(), attempt: None };
    let mut ctx = app.open(&request).await?;
    let (now, reason) = (ctx.now, error.message.chars().take(300).collect::<String>());
    if models::park_key(ctx.conn(), key.id, until, &reason, now).await? {
        models::changed(ctx.conn()).await?;
        let data = json!({ "provider": provider.name, "key_id": key.id, "until": stamp(until) });
        ctx.record(Told::new(EventKind::ProviderKeyParked, data)).await?;
    }
    app.commit(ctx).await
}

impl Question {
    fn request(&self) -> Request {
        Request { caller: None, trace: self.trace, attempt: None }
    }
}
