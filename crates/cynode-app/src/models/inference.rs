//! Inference: every model call of every agent and every user passes here.
//!
//! The order is fixed: authenticate the caller, redact secrets, route to candidate providers, reserve the worst-case
//! cost, call the provider, relay the response, settle the cost. A call is made only if its worst case fits every
//! budget. A process that dies leaves its reservation; another process finds it and counts it as spent. A circuit
//! breaker guards each provider.

mod explain;
mod ledger;
mod rejection;
mod request;
mod reservation;
pub(crate) mod response_stream;
mod routes;
mod telemetry;

use std::{
    borrow::Cow,
    collections::{BTreeMap, HashMap},
    path::PathBuf,
    pin::Pin,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use bytes::Bytes;
use cynode_core::{
    accounts::CallerCredential,
    events::EventKind,
    ids::{BudgetId, CallId, ProjectId, ProviderId},
    models::{PROJECT_MANAGER_MODEL_ID, Tier},
    roles::UserRole,
    sync::lock_unpoisoned,
};
use cynode_db::models::{
    budgets::{self, CallReservation, ReservationOutcome},
    registry,
};
use cynode_models::{
    cassette::ResponseCassette,
    cost_bound,
    redact::RedactionRules,
    request_rewrite::RequestRewrite,
    stream_observer::ResponseObservation,
    upstream::{UpstreamClient, UpstreamFailure},
};
use cynode_net::circuit_breaker::{CircuitBreaker, CircuitBreakerConfig, HalfOpen};
use serde_json::{Value, json};
use time::OffsetDateTime;
use tokio::sync::mpsc;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

pub use cynode_models::{
    dialect::{
        Dialect, DialectCodec, WireError,
        canonical::{ModelError, ModelErrorKind},
    },
    upstream::FORWARDED_HEADERS,
};
pub use explain::{RoutingSubject, explain_routing};
pub(crate) use rejection::pause_parked_tasks;
pub use request::{ForwardedHeader, InferenceCaller, InferenceRequest};

use crate::{
    App, Error, OperationRequest,
    platform::{context::EventDraft, error::log_background_error, tokens::PresentedToken},
    tasks::projects::{self, ProjectRef},
    tools::agent_tokens,
};
use ledger::BudgetLedger;
use rejection::{budget_exhausted_error, park_for_quota, parked_task_error};
use reservation::ReservedCall;
use response_stream::{CassetteRecorder, RelayedCall, relay_answer, send_ready_answer};
pub(crate) use routes::ModelRegistry;
use routes::{AnswerSource, RoutedModel, UpstreamRoute};
pub(crate) use routes::{EpochBatcher, spawn_epoch_batcher};

/// Idle timeout of a provider's response.
pub(crate) const PROVIDER_IDLE_TIMEOUT: Duration = Duration::from_mins(5);

/// Default cooldown after a rate limit, and longest pause that a caller waits out. A longer one parks the task.
const RATE_LIMIT_COOLDOWN: Duration = Duration::from_secs(10);

/// Minimum cooldown of a key. A key that is usable at once would be called over and over.
const MIN_KEY_COOLDOWN: Duration = Duration::from_secs(1);

/// Cooldown of a key whose quota is exhausted, when the provider names none.
const DEFAULT_QUOTA_COOLDOWN: Duration = Duration::from_mins(5);

/// Size from which a request is redacted on a blocking thread.
const LARGE_REQUEST_BYTES: usize = 128 * 1024;

/// Maximum number of reloads of the registry when it changes while a request is routed.
const MAX_REGISTRY_RELOADS: usize = 10;

/// Circuit breaker of a provider: opens after five failures in a row, and one request probes the provider after the pause.
const PROVIDER_BREAKER: CircuitBreaker = CircuitBreaker::new(CircuitBreakerConfig {
    failure_threshold: 5,
    initial_pause: Duration::from_secs(10),
    max_pause: Duration::from_mins(2),
    half_open: HalfOpen::SingleProbe,
});

/// Resources that a process needs to call models.
pub struct InferenceRuntime {
    pub(crate) upstream: UpstreamClient,
    registry: tokio::sync::RwLock<Option<Arc<ModelRegistry>>>,
    breakers: Mutex<HashMap<ProviderId, CircuitBreaker>>,
    ledger: BudgetLedger,
    rules: Arc<RedactionRules>,
    cassettes: PathBuf,
    /// Project manager, if one is connected.
    manager: Option<Arc<dyn ManagerChat>>,
    /// Responses in progress. Shutdown waits for them.
    pub(crate) answers: TaskTracker,
    told: Mutex<HashMap<BudgetId, Instant>>,
}

impl InferenceRuntime {
    /// Creates the runtime. Call it inside the async runtime.
    pub fn open_runtime(app: &App, cassettes: PathBuf) -> Result<Self, Error> {
        let failed = |error: anyhow::Error| Error::Internal(error);
        Ok(Self {
            upstream: UpstreamClient::new(PROVIDER_IDLE_TIMEOUT)
                .map_err(|error| failed(error.into()))?,
            registry: tokio::sync::RwLock::default(),
            breakers: Mutex::default(),
            ledger: BudgetLedger::start_lanes(app.pool()),
            rules: RedactionRules::new().map_err(|error| failed(error.into()))?,
            cassettes,
            manager: None,
            answers: TaskTracker::new(),
            told: Mutex::default(),
        })
    }

    /// Returns the runtime with a project manager that answers chats.
    #[must_use]
    pub(crate) fn with_manager_chat(mut self, manager: Arc<dyn ManagerChat>) -> Self {
        self.manager = Some(manager);
        self
    }
}

/// Response for a client.
#[derive(Debug)]
pub enum InferenceAnswer {
    /// Complete response.
    Whole(CallId, Value),
    /// Streamed response, in chunks.
    Streamed(CallId, mpsc::Receiver<Bytes>),
}

/// A model that a caller may use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OfferedModel {
    /// Unique id of the model.
    pub id: String,
    /// Display name.
    pub title: String,
    /// Owner of the model.
    pub owner: String,
    /// Time at which the model was added.
    pub created: OffsetDateTime,
}

/// Renews the reservations of calls in progress and settles lost calls, until shutdown.
pub async fn run_reservation_upkeep(app: App, stop: CancellationToken) {
    let Ok(models) = app.inference_runtime().cloned() else { return };
    let mut turn = tokio::time::interval(ledger::LEASE_RENEW_INTERVAL);
    turn.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            () = stop.cancelled() => break,
            _ = turn.tick() => {}
        }
        if let Err(error) = models.ledger.renew_leases(app.pool()).await {
            log_background_error(
                "model_call.renew_failed",
                &error,
                "the leases of model calls could not be renewed; it is retried",
            );
        }
        if app.take_lost_calls()
            && let Err(error) = settle_lost_calls(&app).await
        {
            log_background_error(
                "model_call.expire_failed",
                &error,
                "expired model calls could not be settled; it is retried",
            );
        }
    }
    // Slow readers are cut off at shutdown. Their calls then count at worst-case cost.
    let _ = tokio::time::timeout(ledger::CALL_LEASE_TTL / 2, wait_until_settled(&app)).await;
}

/// Waits until every response in progress has been settled.
pub async fn wait_until_settled(app: &App) {
    let Ok(models) = app.inference_runtime() else { return };
    models.answers.close();
    models.answers.wait().await;
    models.answers.reopen();
}

/// Settles lost calls, whose leases have expired. Returns their number.
pub async fn settle_lost_calls(app: &App) -> Result<usize, Error> {
    let mut conn = app.conn().await?;
    let lost = budgets::settle_expired_calls(&mut conn, 100).await?;
    for call in &lost {
        tracing::warn!(event = "model_call.expired", call.id = %call, "the lease of a model call expired; the call counts as its worst case");
    }
    Ok(lost.len())
}

/// Lists the models that a caller may use.
#[tracing::instrument(name = "app.inference.list_offered_models", skip_all)]
pub async fn list_offered_models(
    app: &App,
    who: &InferenceCaller,
) -> Result<Vec<OfferedModel>, Error> {
    let models = app.inference_runtime()?;
    let registry = latest_registry(app, models).await?;
    let mut offered: Vec<OfferedModel> = registry
        .models
        .values()
        .filter(|model| model.is_usable_in(who.project))
        .map(|model| OfferedModel {
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
    let own = |id: String, title: &str| OfferedModel {
        id,
        title: title.to_owned(),
        owner: "cynode".into(),
        created: registry.since,
    };
    for tier in Tier::ALL {
        let answers =
            |model: &RoutedModel| model.is_usable_in(who.project) && model.tier == Some(*tier);
        if registry.models.values().any(answers) {
            offered.push(own(tier.tier_model_id(), tier.as_str()));
        }
    }
    offered.push(own(PROJECT_MANAGER_MODEL_ID.to_owned(), "Project manager"));
    if let Some(agent) = &who.agent {
        offered.retain(|model| agent.models.contains(&model.id));
    }
    offered.sort_by(|a, b| a.id.cmp(&b.id));
    Ok(offered)
}

/// Resolves a user who calls a model, on behalf of a project if the user names one and may use it.
pub async fn resolve_user_caller(
    app: &App,
    request: &OperationRequest,
    project: Option<ProjectRef>,
) -> Result<InferenceCaller, Error> {
    let caller = request.caller.ok_or(Error::Unauthenticated)?;
    let project = match project {
        None => None,
        Some(ProjectRef::Id(id)) => Some(id),
        Some(named) => {
            let found = app.read(request, |ctx| {
                Box::pin(async move { projects::resolve_project(ctx, &named).await })
            });
            Some(found.await?)
        }
    };
    if let Some(project) = project {
        app.require_project_role(request, project, UserRole::Operator).await?;
    }
    let credential = match caller.credential {
        CallerCredential::Session(_) => "session",
        CallerCredential::ApiKey(_) => "api_key",
        CallerCredential::Agent(_) | CallerCredential::Link(_) | CallerCredential::Schedule(_) => {
            return Err(Error::Unauthenticated);
        }
    };
    let role_everywhere = caller.role;
    Ok(InferenceCaller { user: caller.user, project, agent: None, role_everywhere, credential })
}

/// Resolves the agent of a token, which grants the models that it names.
#[tracing::instrument(name = "app.inference.resolve_agent_caller", skip_all)]
pub async fn resolve_agent_caller(
    app: &App,
    shown: &PresentedToken,
) -> Result<InferenceCaller, Error> {
    let found = agent_tokens::resolve_agent_tokens(app, &[*shown]).await?.into_iter().next();
    let (_, known) = found.ok_or(Error::Unauthenticated)?;
    let user = known.agent.user.filter(|_| known.state == agent_tokens::TokenState::Good);
    let user = user.ok_or(Error::Unauthenticated)?;
    // The project pays for model calls, so a user with read access only cannot cause them.
    if !known.agent.operates {
        return Err(Error::forbidden(UserRole::Operator, "in the project"));
    }
    Ok(InferenceCaller {
        user,
        project: known.agent.project,
        agent: Some(Arc::new(known)),
        role_everywhere: None,
        credential: "agent",
    })
}

/// Estimates the number of tokens of a Messages request: about four characters per token. Only the provider knows the
/// exact number.
pub fn estimate_tokens(body: &Value) -> u64 {
    fn count_chars(value: &Value) -> u64 {
        match value {
            Value::String(text) => text.chars().count() as u64,
            Value::Array(items) => items.iter().map(count_chars).sum(),
            Value::Object(fields) => fields.values().map(count_chars).sum::<u64>() + 8,
            Value::Null | Value::Bool(_) | Value::Number(_) => 1,
        }
    }
    let parts = ["system", "messages", "tools"];
    parts.iter().filter_map(|part| body.get(*part)).map(count_chars).sum::<u64>().div_ceil(4)
}

/// Calls a model.
#[tracing::instrument(name = "app.inference.ask_model", skip_all, fields(dialect = question.dialect.as_str()))]
pub async fn ask_model(
    app: &App,
    mut question: InferenceRequest,
) -> Result<InferenceAnswer, ModelError> {
    let models = app.inference_runtime().map_err(|error| to_model_error(&error))?;
    // A request that is abandoned before its response begins must be settled too.
    let _under_way = models.answers.token();
    let mut shaped = RequestRewrite::new(question.dialect, std::mem::take(&mut question.body))?;
    let dropped = shaped.strip_hosted_tools();
    if dropped > 0 {
        tracing::info!(
            event = "model.tools_dropped",
            dropped,
            "removed tools that the provider would run"
        );
    }
    let size = question.size;
    let mut prepared = RequestDraft { shaped, size, redactions: 0, instructed: false };
    let mut registry =
        models.get_registry(app, None).await.map_err(|error| to_model_error(&error))?;
    for _ in 0..MAX_REGISTRY_RELOADS {
        let refused = match route_request(app, models, &registry, &question, &mut prepared).await {
            Ok(answered) => return Ok(answered),
            Err(RouteError::Failed(error)) => return Err(error),
            Err(RouteError::Stale) => None,
            Err(RouteError::NoWay(error)) => Some(error),
        };
        let old = registry.epoch;
        registry = models
            .refresh_registry(app, &registry)
            .await
            .map_err(|error| to_model_error(&error))?;
        // The model is missing in the current registry as well.
        if let Some(error) = refused
            && registry.epoch == old
        {
            return Err(error);
        }
    }
    Err(ModelError::new(
        ModelErrorKind::Unavailable,
        "the models are being changed; try again in a moment",
    ))
}

/// Returns the current registry of models and secrets.
pub(crate) async fn latest_registry(
    app: &App,
    models: &InferenceRuntime,
) -> Result<Arc<ModelRegistry>, Error> {
    let registry = models.get_registry(app, None).await?;
    models.refresh_registry(app, &registry).await
}

/// Snapshot of the available models. Code inside a transaction uses it instead of loading the registry.
#[derive(Clone, Debug)]
pub(crate) struct ModelSnapshot(Option<Arc<ModelRegistry>>);

impl ModelSnapshot {
    /// Returns the ids of the models that internal agents may use in a project.
    pub(crate) fn model_ids(&self, project: impl Into<Option<ProjectId>>) -> Vec<String> {
        let project = project.into();
        self.0.as_ref().map(|registry| registry.available_model_ids(project)).unwrap_or_default()
    }

    /// Returns those of the models that can call tools in a project.
    pub(crate) fn tool_calling_models(&self, project: ProjectId, ids: &[String]) -> Vec<String> {
        let Some(registry) = &self.0 else { return Vec::new() };
        ids.iter().filter(|id| registry.calls_tools(id, Some(project))).cloned().collect()
    }

    /// Returns the configured response timeouts of the models in a project, in seconds.
    pub(crate) fn think_seconds(
        &self,
        project: ProjectId,
        ids: &[String],
    ) -> BTreeMap<String, u32> {
        let Some(registry) = &self.0 else { return BTreeMap::new() };
        let said = |id: &String| Some((id.clone(), registry.think_seconds(id, Some(project))?));
        ids.iter().filter_map(said).collect()
    }
}

/// Loads a snapshot of the available models.
pub(crate) async fn load_model_snapshot(app: &App) -> Result<ModelSnapshot, Error> {
    let Ok(models) = app.inference_runtime() else { return Ok(ModelSnapshot(None)) };
    Ok(ModelSnapshot(Some(latest_registry(app, models).await?)))
}

/// Routes a request by one version of the registry.
async fn route_request(
    app: &App,
    models: &Arc<InferenceRuntime>,
    registry: &Arc<ModelRegistry>,
    question: &InferenceRequest,
    prepared: &mut RequestDraft,
) -> Result<InferenceAnswer, RouteError> {
    let id = match prepared.shaped.model_id() {
        Some(id) => id.to_owned(),
        None => registry.default.clone().ok_or_else(|| {
            let told = "`model` is missing; `GET /v1/models` lists what may be asked";
            RouteError::NoWay(ModelError::new(ModelErrorKind::BadRequest, told))
        })?,
    };
    if let Some(agent) = &question.who.agent
        && !agent.models.contains(&id)
    {
        let told = format!("this token does not open the model `{}`", truncate_text(&id));
        return Err(ModelError::new(ModelErrorKind::Forbidden, told)
            .with_code("model_not_allowed")
            .into());
    }
    if id == PROJECT_MANAGER_MODEL_ID {
        let answered = ask_manager(app, models, registry, question, prepared).await;
        return answered.map_err(RouteError::Failed);
    }
    try_candidates(app, models, registry, question, &id, prepared).await
}

/// A chat request for the project manager.
pub(crate) struct ManagerChatRequest<'a> {
    pub(crate) app: &'a App,
    pub(crate) models: &'a Arc<InferenceRuntime>,
    pub(crate) registry: &'a Arc<ModelRegistry>,
    pub(crate) question: &'a InferenceRequest,
    pub(crate) draft: &'a mut RequestDraft,
}

/// Future of the project manager's response.
pub(crate) type ManagerChatFuture<'a> =
    Pin<Box<dyn Future<Output = Result<InferenceAnswer, ModelError>> + Send + 'a>>;

/// Interface of the project manager for inference. It is implemented in a higher layer and injected.
pub(crate) trait ManagerChat: Send + Sync {
    /// Answers a chat.
    fn ask_manager<'a>(&'a self, request: ManagerChatRequest<'a>) -> ManagerChatFuture<'a>;
}

/// Forwards a chat to the project manager.
async fn ask_manager(
    app: &App,
    models: &Arc<InferenceRuntime>,
    registry: &Arc<ModelRegistry>,
    question: &InferenceRequest,
    draft: &mut RequestDraft,
) -> Result<InferenceAnswer, ModelError> {
    if question.who.agent.is_some() {
        let told = "agents speak to the project manager with the tool `pm.report`";
        return Err(ModelError::new(ModelErrorKind::Forbidden, told).with_code("model_not_allowed"));
    }
    let Some(manager) = &models.manager else {
        let told = "the project manager is not connected to this installation: set manager.url and manager.credential_file, or use \
                    `cynode up`; other models of `GET /v1/models` can be asked";
        return Err(ModelError::new(ModelErrorKind::Unavailable, told)
            .with_code("project_manager_not_configured"));
    };
    manager.ask_manager(ManagerChatRequest { app, models, registry, question, draft }).await
}

/// A request that is being prepared.
pub(crate) struct RequestDraft {
    pub(crate) shaped: RequestRewrite,
    /// Size of the request in bytes.
    size: usize,
    redactions: usize,
    instructed: bool,
}

impl RequestDraft {
    /// Redacts the secrets that this registry knows and adds the default skill. Repeating it adds only what is new.
    pub(crate) async fn prepare_for_registry(
        &mut self,
        registry: &ModelRegistry,
        who: &InferenceCaller,
        id: &str,
    ) -> Result<(), ModelError> {
        let redactor = registry.redactor.clone();
        let redact = move |shaped: &mut RequestRewrite| {
            redactor.redact_json(shaped.as_body_mut()).total_count()
        };
        self.redactions += if self.size < LARGE_REQUEST_BYTES {
            redact(&mut self.shaped)
        } else {
            // A long conversation must not block the async runtime.
            let mut shaped = self.shaped.clone();
            let done = tokio::task::spawn_blocking(move || (redact(&mut shaped), shaped)).await;
            let (found, shaped) = done.map_err(|_| {
                ModelError::new(
                    ModelErrorKind::Upstream,
                    "the question could not be looked through",
                )
            })?;
            self.shaped = shaped;
            found
        };
        if !self.instructed && registry.wants_skill(who, id) {
            self.shaped.prepend_instructions(routes::DEFAULT_SKILL);
            self.instructed = true;
        }
        Ok(())
    }
}

enum RouteError {
    /// The registry has changed.
    Stale,
    /// The registry has no route. It may have changed.
    NoWay(ModelError),
    Failed(ModelError),
}

impl From<ModelError> for RouteError {
    fn from(error: ModelError) -> Self {
        Self::Failed(error)
    }
}

/// Converts an error of ours to one for the client.
pub(crate) fn to_model_error(error: &Error) -> ModelError {
    let kind = match error {
        Error::UpstreamUnavailable { .. } | Error::Unavailable(_) => ModelErrorKind::Unavailable,
        Error::Internal(_) => ModelErrorKind::Upstream,
        _ => ModelErrorKind::BadRequest,
    };
    if matches!(kind, ModelErrorKind::Upstream) {
        tracing::error!(
            event = "model_call.failed",
            error = cynode_core::error_chain::format_error_chain(error),
            "a model could not be called"
        );
    }
    ModelError::new(kind, error.to_string())
}

fn truncate_text(text: &str) -> String {
    text.chars().take(100).collect()
}

async fn try_candidates(
    app: &App,
    models: &Arc<InferenceRuntime>,
    registry: &Arc<ModelRegistry>,
    question: &InferenceRequest,
    id: &str,
    prepared: &mut RequestDraft,
) -> Result<InferenceAnswer, RouteError> {
    let candidates =
        registry.route_candidates(app, &question.who, id).await.map_err(RouteError::NoWay)?;
    prepared.prepare_for_registry(registry, &question.who, id).await?;
    let keys =
        &app.gateway_parts().map_err(|error| RouteError::Failed(to_model_error(&error)))?.keys;
    let asked = RequestFacts {
        id,
        digest: keys.digest_key().digest_bytes(prepared.shaped.to_json_text().as_bytes()).0,
        redactions: prepared.redactions,
    };
    let shaped = &prepared.shaped;
    let mut failure: Option<ModelError> = None;
    let mut left_alone: Option<ModelError> = None;
    let mut resting: Option<OffsetDateTime> = None;
    for candidate in &candidates {
        let now = app.environment().now();
        if let Err(pause) = check_circuit_breaker(models, candidate.provider.id) {
            let told = format!(
                "provider `{}` keeps failing and is left alone for a moment",
                candidate.provider.name
            );
            // A breaker that stays open for long does not take precedence over a quota, whose end is known.
            let said = if pause <= RATE_LIMIT_COOLDOWN { &mut failure } else { &mut left_alone };
            said.get_or_insert(ModelError::new(ModelErrorKind::Unavailable, told));
            continue;
        }
        let key = match candidate.provider.usable_key(now) {
            Ok(key) => key,
            Err(until) => {
                resting = earliest_of(resting, Some(until));
                continue;
            }
        };
        match attempt_candidate(app, models, registry, question, &asked, shaped, candidate, key)
            .await
        {
            Ok(answered) => return Ok(answered),
            Err(CandidateError::Over(refused)) => return Err(refused),
            Err(CandidateError::Next(error, until)) => {
                match until.filter(|_| is_quota_error(&error)) {
                    Some(until) => resting = earliest_of(resting, Some(until)),
                    None => failure = Some(error),
                }
            }
        }
    }
    Err(match (failure, resting) {
        // A failing provider may recover long before a quota is renewed.
        (Some(error), _) => RouteError::Failed(error),
        (None, Some(until)) => park_for_quota(app, question, until).await.into(),
        (None, None) => {
            left_alone.map_or_else(|| RouteError::NoWay(no_route_error(id)), RouteError::Failed)
        }
    })
}

/// Checks the circuit breaker of a provider. Returns the remaining pause when it is open.
fn check_circuit_breaker(models: &InferenceRuntime, provider: ProviderId) -> Result<(), Duration> {
    let (mut breakers, now) = (lock_unpoisoned(&models.breakers), Instant::now());
    let breaker = breakers.entry(provider).or_insert(PROVIDER_BREAKER);
    if breaker.try_admit(now) {
        return Ok(());
    }
    Err(breaker.retry_after(now).unwrap_or_default())
}

fn earliest_of(a: Option<OffsetDateTime>, b: Option<OffsetDateTime>) -> Option<OffsetDateTime> {
    a.into_iter().chain(b).min()
}

fn no_route_error(id: &str) -> ModelError {
    let told = format!(
        "there is no way to the model `{}` now that your preferences allow",
        truncate_text(id)
    );
    ModelError::new(ModelErrorKind::Unavailable, told).with_code("no_route")
}

fn is_quota_error(error: &ModelError) -> bool {
    matches!(error.kind, ModelErrorKind::QuotaExhausted | ModelErrorKind::RateLimited)
}

/// Facts about a request that do not depend on the route.
struct RequestFacts<'a> {
    id: &'a str,
    digest: [u8; 32],
    redactions: usize,
}

enum CandidateError {
    /// No other candidate is tried.
    Over(RouteError),
    /// The next candidate may be tried. The time is the end of the key's cooldown.
    Next(ModelError, Option<OffsetDateTime>),
}

#[expect(clippy::too_many_arguments, reason = "one way of one question: each is another thing")]
async fn attempt_candidate(
    app: &App,
    models: &Arc<InferenceRuntime>,
    registry: &Arc<ModelRegistry>,
    question: &InferenceRequest,
    asked: &RequestFacts<'_>,
    shaped: &RequestRewrite,
    candidate: &UpstreamRoute,
    key: Option<&routes::OpenProviderKey>,
) -> Result<InferenceAnswer, CandidateError> {
    let provider = &candidate.provider;
    let over = |error: ModelError| CandidateError::Over(RouteError::Failed(error));
    let most_output =
        shaped.output_token_limit().unwrap_or(u64::MAX).min(candidate.most_output).max(1);
    // A request in the provider's dialect is passed on unchanged. One that must be translated may be rejected for its
    // content.
    let same =
        provider.dialect == question.dialect && matches!(provider.source, AnswerSource::Network(_));
    let request =
        if same { None } else { Some(decode_canonical_request(question, shaped).map_err(over)?) };
    let body = match (&request, &provider.source) {
        (None, _) => {
            Cow::Owned(shaped.to_provider_body(provider.kind, &candidate.upstream, most_output))
        }
        (Some(request), AnswerSource::Network(_)) => {
            let mut request = request.clone();
            request.model.clone_from(&candidate.upstream);
            request.max_output_tokens = Some(u32::try_from(most_output).unwrap_or(u32::MAX));
            request.include_usage = true;
            let written = provider.dialect.encode_request(&request, &candidate.target);
            // Another provider may have a dialect that can express the request.
            Cow::Owned(written.map_err(|error| CandidateError::Next(error, None))?)
        }
        (Some(_), AnswerSource::Script(_) | AnswerSource::Replay(_)) => {
            Cow::Borrowed(shaped.as_body())
        }
    };
    let most_input = cost_bound::max_input_tokens(&body, candidate.context);
    let held = reserve_call(
        app,
        models,
        registry,
        question,
        asked,
        candidate,
        most_input,
        most_output,
        shaped.is_streaming(),
    );
    let held = held.await.map_err(CandidateError::Over)?;
    let recorder = || {
        provider.record.as_ref().map(|name| CassetteRecorder {
            cassette: ResponseCassette::new(models.cassettes.join(name)),
            registry: registry.clone(),
        })
    };
    match &provider.source {
        AnswerSource::Script(script) => {
            let request = request.unwrap_or_default();
            let answer = script.respond_to(&request);
            if let (Some(recorder), Ok(answer)) = (recorder(), &answer) {
                recorder.record_answer(request.clone(), answer.clone()).await;
            }
            send_ready_answer(question, held, &request, answer).await
        }
        AnswerSource::Replay(name) => {
            let request = request.unwrap_or_default();
            let cassette = ResponseCassette::new(models.cassettes.join(name));
            let answer = tokio::task::spawn_blocking({
                let request = request.clone();
                move || cassette.replay_response(&request)
            });
            let answer = answer.await.unwrap_or_else(|_| {
                Err(ModelError::new(ModelErrorKind::Upstream, "a cassette could not be played"))
            });
            send_ready_answer(question, held, &request, answer).await
        }
        AnswerSource::Network(place) => {
            let text = body.to_string().into_bytes();
            let (secret, stream) = (key.and_then(|key| key.secret.as_ref()), shaped.is_streaming());
            let forwarded = question.forwarded_headers(same);
            let idle = candidate.idle;
            let sent = models.upstream.send_request(place, secret, &forwarded, text, stream, idle);
            let sent = tokio::select! {
                sent = sent => sent,
                // The client has disconnected. Dropping the connection stops the provider.
                () = question.left.cancelled() => {
                    held.settle_observed(&ResponseObservation::default(), true).await;
                    return Err(over(caller_gone_error()));
                }
            };
            match sent {
                Ok(accepted) => {
                    lock_unpoisoned(&models.breakers)
                        .entry(provider.id)
                        .or_insert(PROVIDER_BREAKER)
                        .record_success();
                    let (provider, record) = (provider.dialect, recorder());
                    let accepting = RelayedCall { held, provider, accepted, record };
                    relay_answer(question, shaped, request, accepting).await
                }
                Err(mut unasked) => {
                    // The error of a provider may quote the request, so it is redacted.
                    let told =
                        registry.redactor.redact_text(&unasked.error.message).value.into_owned();
                    unasked.error.message = told;
                    Err(handle_provider_failure(app, models, candidate, key, held, unasked).await)
                }
            }
        }
    }
}

/// Returns the error of a call whose client has disconnected.
fn caller_gone_error() -> ModelError {
    ModelError::new(ModelErrorKind::Timeout, "whoever asked has gone")
}

/// Decodes the client's request to its canonical form.
fn decode_canonical_request(
    question: &InferenceRequest,
    shaped: &RequestRewrite,
) -> Result<cynode_models::dialect::canonical::CanonicalRequest, ModelError> {
    question.dialect.decode_request(shaped.as_body())
}

/// Reserves the worst-case cost of a call. Returns why the call is rejected otherwise.
#[expect(clippy::too_many_arguments, reason = "one way of one question: each is another thing")]
async fn reserve_call(
    app: &App,
    models: &Arc<InferenceRuntime>,
    registry: &ModelRegistry,
    question: &InferenceRequest,
    asked: &RequestFacts<'_>,
    candidate: &UpstreamRoute,
    most_input: u64,
    most_output: u64,
    streamed: bool,
) -> Result<ReservedCall, RouteError> {
    let environment = app.environment();
    let now = environment.now();
    let call = CallId::from_uuid(environment.new_uuid(now));
    let started = Instant::now();
    let number = |n: u64| i64::try_from(n).unwrap_or(i64::MAX);
    let micros = number(candidate.prices.worst_case_micros(most_input, most_output));
    let who = &question.who;
    let facts = json!({
        "call_id": call.as_uuid(), "started_at": format_timestamp(now), "user_id": who.user.as_uuid(),
        "project_id": who.project.map(|id| id.as_uuid()), "task_id": who.task_id().map(|id| id.as_uuid()),
        "run_id": who.run_id().map(|id| id.as_uuid()), "job_id": who.job_id().map(|id| id.as_uuid()),
        "agent_token_id": who.agent_token().map(|id| id.as_uuid()), "agent_role": who.agent_role().map(|role| role.as_str()),
        "credential": who.credential, "trace_id": question.trace.to_string(), "dialect": question.dialect.as_str(),
        "model": asked.id, "provider": candidate.provider.name, "upstream": candidate.upstream,
        "prompt_digest": format!("\\x{}", data_encoding::HEXLOWER.encode(&asked.digest)),
        "redactions": asked.redactions, "streamed": streamed,
        "input_tokens": most_input, "cached_tokens": 0, "cache_write_tokens": 0, "output_tokens": most_output,
        "reasoning_tokens": 0,
    });
    let reservation = CallReservation {
        call,
        epoch: registry.epoch,
        user: who.user,
        project: who.project,
        task: who.task_id(),
        digest: asked.digest,
        micros,
        tokens: number(most_input.saturating_add(most_output)),
        facts,
    };
    let reserved =
        models.ledger.reserve_call(app.pool(), reservation, registry.loop_guard, now).await;
    match reserved.map_err(|error| RouteError::Failed(to_model_error(&error.into())))? {
        ReservationOutcome::Held => {}
        ReservationOutcome::Stale => return Err(RouteError::Stale),
        ReservationOutcome::Full(budget) => {
            return Err(budget_exhausted_error(app, models, question, budget).await.into());
        }
        ReservationOutcome::Parked(park, new) => {
            return Err(parked_task_error(app, question, &park, new).await.into());
        }
    }
    let labels = telemetry::CallLabels::new(question.dialect, asked.id, &candidate.provider.name);
    Ok(ReservedCall {
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

/// Formats a time for PostgreSQL.
fn format_timestamp(now: OffsetDateTime) -> String {
    now.format(&time::format_description::well_known::Rfc3339).unwrap_or_default()
}

/// Handles a failed call to a provider: releases or settles the reservation, and records the cooldown of a key or the
/// failure for the circuit breaker.
async fn handle_provider_failure(
    app: &App,
    models: &Arc<InferenceRuntime>,
    candidate: &UpstreamRoute,
    key: Option<&routes::OpenProviderKey>,
    held: ReservedCall,
    unasked: UpstreamFailure,
) -> CandidateError {
    let provider = &candidate.provider;
    let UpstreamFailure { error, free } = unasked;
    if free {
        held.release_unused(&error).await;
    } else {
        held.settle_worst_case(&error).await;
    }
    let now = app.environment().now();
    match error.kind {
        // The provider rejected the request for a reason that holds for every other provider too.
        ModelErrorKind::BadRequest | ModelErrorKind::TooLarge | ModelErrorKind::ContentRefused => {
            lock_unpoisoned(&models.breakers)
                .entry(provider.id)
                .or_insert(PROVIDER_BREAKER)
                .record_success();
            return CandidateError::Over(RouteError::Failed(error));
        }
        ModelErrorKind::QuotaExhausted
        | ModelErrorKind::RateLimited
        | ModelErrorKind::Unauthorized => {
            let usual = if error.kind == ModelErrorKind::RateLimited {
                RATE_LIMIT_COOLDOWN
            } else {
                DEFAULT_QUOTA_COOLDOWN
            };
            let until = now + error.retry_after.map_or(usual, |wait| wait.max(MIN_KEY_COOLDOWN));
            let Some(key) = key else {
                if error.kind != ModelErrorKind::Unauthorized {
                    return CandidateError::Next(error, Some(until));
                }
                // The client presented a valid credential of ours: an authentication error would mislead the client.
                let told = format!("provider `{}` asks for a key and has none", provider.name);
                return CandidateError::Next(provider_refused_error(told), None);
            };
            match park_provider_key(app, provider, key, until, &error).await {
                // The retry with the new registry tries the next key, or finds that all are cooling down.
                Ok(()) => return CandidateError::Over(RouteError::Stale),
                Err(failure) => {
                    let failure = cynode_core::error_chain::format_error_chain(&failure);
                    tracing::error!(
                        event = "provider_key.park_failed",
                        error = failure,
                        "a key could not be parked"
                    );
                    return CandidateError::Next(error, Some(until));
                }
            }
        }
        ModelErrorKind::Forbidden | ModelErrorKind::NotFound => {
            tracing::error!(event = "provider.request_refused", provider = provider.name, error = %error, "a provider refuses our key or does not know the model");
        }
        ModelErrorKind::Overloaded
        | ModelErrorKind::Upstream
        | ModelErrorKind::Timeout
        | ModelErrorKind::Unavailable
        | ModelErrorKind::BudgetExhausted => {
            if lock_unpoisoned(&models.breakers)
                .entry(provider.id)
                .or_insert(PROVIDER_BREAKER)
                .record_failure(Instant::now())
            {
                tracing::warn!(
                    event = "provider.circuit_opened",
                    provider = provider.name,
                    "a provider keeps failing; the circuit breaker opened"
                );
            }
        }
    }
    // The client's credential is valid. The provider's key is not, which is for an admin to fix.
    let error = match error.kind {
        ModelErrorKind::Forbidden | ModelErrorKind::NotFound => {
            let told = format!("provider `{}` does not serve this model", provider.name);
            provider_refused_error(told)
        }
        _ => error,
    };
    CandidateError::Next(error, None)
}

fn provider_refused_error(told: String) -> ModelError {
    ModelError::new(ModelErrorKind::Upstream, told).with_code("provider_refused")
}

async fn park_provider_key(
    app: &App,
    provider: &routes::RoutedProvider,
    key: &routes::OpenProviderKey,
    until: OffsetDateTime,
    error: &ModelError,
) -> Result<(), Error> {
    let request =
        OperationRequest { caller: None, trace: app.environment().new_trace_id(), attempt: None };
    let mut ctx = app.begin_transaction(&request).await?;
    let (now, reason) = (ctx.now, error.message.chars().take(300).collect::<String>());
    if registry::park_provider_key(ctx.conn(), key.id, until, &reason, now).await? {
        registry::bump_registry_epoch(ctx.conn()).await?;
        let data = json!({ "provider": provider.name, "key_id": key.id, "until": format_timestamp(until) });
        ctx.record_event(EventDraft::new(EventKind::ProviderKeyParked, data)).await?;
    }
    app.commit_operation(ctx).await
}

impl InferenceRequest {
    pub(crate) fn to_operation_request(&self) -> OperationRequest {
        OperationRequest { caller: None, trace: self.trace, attempt: None }
    }
}
