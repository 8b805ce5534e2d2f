//! Inference: every model call of every agent and every user passes here.
//!
//! The order is fixed: authenticate the caller, redact secrets, route to candidate providers, reserve the worst-case
//! cost, call the provider, relay the response, settle the cost. A call is made only if its worst case fits every
//! budget. A process that dies leaves its reservation; another process finds it and counts it as spent. A circuit
//! breaker guards each provider.

mod attempt;
mod explain;
mod key_parks;
mod ledger;
mod rejection;
mod request;
mod reservation;
pub(crate) mod response_stream;
mod routes;
mod telemetry;

use std::{
    collections::{BTreeMap, HashMap},
    path::PathBuf,
    pin::Pin,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use bytes::Bytes;
use cynode_core::{
    accounts::CallerCredential,
    ids::{BudgetId, CallId, ProjectId, ProviderId},
    models::{PROJECT_MANAGER_MODEL_ID, Tier},
    roles::UserRole,
    sync::lock_unpoisoned,
};
use cynode_db::models::budgets;
use cynode_models::{
    dialect::canonical::CanonicalRequest, redact::RedactionRules, request_rewrite::RequestRewrite,
    upstream::UpstreamClient,
};
use cynode_net::circuit_breaker::{CircuitBreaker, CircuitBreakerConfig, HalfOpen};
use serde_json::Value;
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
pub use request::{ForwardedHeader, InferenceCaller, InferenceRequest, ThreadChoice};

use crate::{
    App, Error, OperationRequest,
    identity::api_keys::{may_chat_with_manager, require_inference_scope},
    platform::{error::log_background_error, operation, tokens::PresentedToken},
    tasks::projects::{self, ProjectRef},
    tools::agent_tokens::{self, ResolvedAgentToken},
};
use attempt::{CandidateError, ProviderAttempt};
use key_parks::{KeyTenant, TenantKeyParks};
use ledger::{BudgetLedger, BudgetTurn};
use rejection::{park_for_quota, restrict_agent_content};
pub(crate) use routes::ModelRegistry;
use routes::RoutedModel;
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
const MAX_REGISTRY_RELOADS: usize = 64;

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
    tenant_parks: TenantKeyParks,
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
            tenant_parks: TenantKeyParks::default(),
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
#[operation]
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
#[operation]
pub async fn wait_until_settled(app: &App) {
    let Ok(models) = app.inference_runtime() else { return };
    models.answers.close();
    models.answers.wait().await;
    models.answers.reopen();
}

/// Settles lost calls, whose leases have expired. Returns their number.
#[operation]
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
#[operation]
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
        let spec = &agent.agent.profile.spec;
        offered.retain(|model| agent.models.contains(&model.id) && spec.allows_model(&model.id));
    }
    offered.sort_by(|a, b| a.id.cmp(&b.id));
    Ok(offered)
}

/// Resolves a user who calls a model, on behalf of a project if the user names one and may use it.
#[operation]
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
    require_inference_scope(&caller, project)?;
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
    Ok(InferenceCaller {
        user: caller.user,
        project,
        agent: None,
        role_everywhere,
        credential,
        can_chat: may_chat_with_manager(&caller),
    })
}

/// Resolves the agent of a token, which grants the models that it names.
#[tracing::instrument(name = "app.inference.resolve_agent_caller", skip_all)]
#[operation]
pub async fn resolve_agent_caller(
    app: &App,
    shown: &PresentedToken,
) -> Result<InferenceCaller, Error> {
    let found = agent_tokens::resolve_agent_tokens(app, &[*shown]).await?.into_iter().next();
    let (_, known) = found.ok_or(Error::Unauthenticated)?;
    caller_of_agent(known)
}

/// Returns the caller that an agent is to models, which its token and its profile limit.
pub fn caller_of_agent(known: ResolvedAgentToken) -> Result<InferenceCaller, Error> {
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
        can_chat: true,
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
#[tracing::instrument(name = "app.inference.ask_model", skip_all, fields(dialect = request.dialect.as_str()))]
#[operation]
pub async fn ask_model(
    app: &App,
    mut request: InferenceRequest,
) -> Result<InferenceAnswer, ModelError> {
    let models = app.inference_runtime().map_err(|error| to_model_error(&error))?;
    // A request that is abandoned before its response begins must be settled too.
    let _under_way = models.answers.token();
    let mut rewrite = RequestRewrite::new(request.dialect, std::mem::take(&mut request.body))?;
    let dropped = rewrite.strip_hosted_tools();
    if dropped > 0 {
        tracing::info!(
            event = "model.tools_dropped",
            dropped,
            "removed tools that the provider would run"
        );
    }
    if request.who.agent.is_some() {
        restrict_agent_content(&mut rewrite, &request.who)?;
    }
    let size = request.size;
    let turn = BudgetTurn::default();
    let manager_skill = request.manager_skill;
    let mut draft =
        RequestDraft { rewrite, size, redactions: 0, instructed: false, manager_skill, turn };
    let mut registry =
        models.get_registry(app, None).await.map_err(|error| to_model_error(&error))?;
    for _ in 0..MAX_REGISTRY_RELOADS {
        let refused = match route_request(app, models, &registry, &request, &mut draft).await {
            Ok(answered) => return Ok(answered),
            Err(RouteError::Failed(error)) => return Err(error),
            Err(RouteError::Stale) => None,
            Err(RouteError::NoWay(error)) => Some((error, None)),
            Err(RouteError::NoPreferredWay(error, epoch)) => Some((error, Some(epoch))),
        };
        let old = registry.epoch;
        registry = models
            .refresh_registry(app, &registry)
            .await
            .map_err(|error| to_model_error(&error))?;
        if registry.epoch != old {
            continue;
        }
        // The registry is the current one. The preferences of the caller have an epoch of their own.
        if let Some((error, None)) = refused {
            return Err(error);
        }
        let current = registry
            .drop_cached_preferences(app, request.who.preference_key())
            .await
            .map_err(|error| to_model_error(&error))?;
        if let Some((error, routed_by)) = refused
            && routed_by == Some(current)
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
    request: &InferenceRequest,
    draft: &mut RequestDraft,
) -> Result<InferenceAnswer, RouteError> {
    let id = match draft.rewrite.model_id() {
        Some(id) => id.to_owned(),
        None => registry.default.clone().ok_or_else(|| {
            let told = "`model` is missing; `GET /v1/models` lists what may be asked";
            RouteError::NoWay(ModelError::new(ModelErrorKind::BadRequest, told))
        })?,
    };
    if let Some(agent) = &request.who.agent {
        require_agent_model(agent, &id)?;
    }
    if id == PROJECT_MANAGER_MODEL_ID {
        let answered = ask_manager(app, models, registry, request, draft).await;
        return answered.map_err(RouteError::Failed);
    }
    require_model_role(&request.who)?;
    try_candidates(app, models, registry, request, &id, draft).await
}

/// Rejects an agent whose token or profile does not have the model.
fn require_agent_model(agent: &ResolvedAgentToken, id: &str) -> Result<(), ModelError> {
    let profile = &agent.agent.profile;
    let (told, code) = if !profile.is_known() {
        let told = format!("the profile `{}` of this token does not exist any more", profile.name);
        (told, "unknown_profile")
    } else if !agent.models.iter().any(|model| model == id) {
        let told = format!("this token does not open the model `{}`", truncate_text(id));
        (told, "model_not_allowed")
    } else if !profile.spec.allows_model(id) {
        let told = format!(
            "the profile `{}` of this token does not have the model `{}`",
            profile.name,
            truncate_text(id)
        );
        (told, "model_not_in_profile")
    } else {
        return Ok(());
    };
    Err(ModelError::new(ModelErrorKind::Forbidden, told).with_code(code))
}

/// Rejects an account without any role that asks outside of projects: nobody would pay for it.
fn require_model_role(who: &InferenceCaller) -> Result<(), ModelError> {
    if who.has_any_role() {
        return Ok(());
    }
    let told = "you have no role in the installation: name a project in which you are an operator (header `OpenAI-Project`), or ask an admin for a role";
    Err(ModelError::new(ModelErrorKind::Forbidden, told).with_code("role_required"))
}

/// A chat request for the project manager.
pub(crate) struct ManagerChatRequest<'a> {
    pub(crate) app: &'a App,
    pub(crate) models: &'a Arc<InferenceRuntime>,
    pub(crate) registry: &'a Arc<ModelRegistry>,
    pub(crate) request: &'a InferenceRequest,
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
    request: &InferenceRequest,
    draft: &mut RequestDraft,
) -> Result<InferenceAnswer, ModelError> {
    if request.who.agent.is_some() {
        let told = "agents speak to the project manager with the tool `pm.report`";
        return Err(ModelError::new(ModelErrorKind::Forbidden, told).with_code("model_not_allowed"));
    }
    let Some(manager) = &models.manager else {
        let told = "the project manager is not connected to this installation: set manager.url and manager.credential_file, or use \
                    `cynode up`; other models of `GET /v1/models` can be asked";
        return Err(ModelError::new(ModelErrorKind::Unavailable, told)
            .with_code("project_manager_not_configured"));
    };
    manager.ask_manager(ManagerChatRequest { app, models, registry, request, draft }).await
}

/// A request that is being prepared.
pub(crate) struct RequestDraft {
    pub(crate) rewrite: RequestRewrite,
    /// Size of the request in bytes.
    size: usize,
    redactions: usize,
    instructed: bool,
    /// Whether the default skill is added as for the project manager.
    manager_skill: bool,
    /// Place of the request in the queue of a budget.
    turn: BudgetTurn,
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
        let redact = move |rewrite: &mut RequestRewrite| {
            redactor.redact_json(rewrite.as_body_mut()).total_count()
        };
        self.redactions += if self.size < LARGE_REQUEST_BYTES {
            redact(&mut self.rewrite)
        } else {
            // A long conversation must not block the async runtime.
            let mut rewrite = self.rewrite.clone();
            let done = tokio::task::spawn_blocking(move || (redact(&mut rewrite), rewrite)).await;
            let (found, rewrite) = done.map_err(|_| {
                ModelError::new(
                    ModelErrorKind::Upstream,
                    "the question could not be looked through",
                )
            })?;
            self.rewrite = rewrite;
            found
        };
        let wants_skill = registry.wants_skill(who, id)
            || (self.manager_skill && registry.accepts_skills(who.project, id));
        if !self.instructed && wants_skill {
            self.rewrite.prepend_instructions(routes::DEFAULT_SKILL);
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
    /// The preferences of this epoch leave no route. They may have changed, and so may the registry.
    NoPreferredWay(ModelError, i64),
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
    request: &InferenceRequest,
    id: &str,
    draft: &mut RequestDraft,
) -> Result<InferenceAnswer, RouteError> {
    let (candidates, preference_epoch) =
        registry.route_candidates(app, &request.who, id).await.map_err(RouteError::NoWay)?;
    draft.prepare_for_registry(registry, &request.who, id).await?;
    let draft: &RequestDraft = draft;
    let keys =
        &app.gateway_parts().map_err(|error| RouteError::Failed(to_model_error(&error)))?.keys;
    let prompt_digest = keys.digest_key().digest_bytes(draft.rewrite.to_json_text().as_bytes()).0;
    let mut failure: Option<ModelError> = None;
    let mut left_alone: Option<ModelError> = None;
    let mut resting: Option<OffsetDateTime> = None;
    let tenant = KeyTenant::of_caller(&request.who);
    for candidate in &candidates {
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
        let mut keys_left = candidate.provider.count_keys();
        loop {
            let now = app.environment().now();
            let key = match candidate.provider.usable_key(now, &models.tenant_parks, tenant) {
                Ok(key) => key,
                Err(until) => {
                    resting = earliest_of(resting, Some(until));
                    break;
                }
            };
            let attempt = ProviderAttempt {
                app,
                models,
                registry,
                request,
                draft,
                model_id: id,
                prompt_digest,
                route: candidate,
                epoch: registry.epoch + preference_epoch,
                key,
            };
            match attempt.run().await {
                Ok(answered) => return Ok(answered),
                Err(CandidateError::Over(refused)) => return Err(refused),
                Err(CandidateError::NextKey(until)) => {
                    keys_left = keys_left.saturating_sub(1);
                    if keys_left == 0 {
                        resting = earliest_of(resting, Some(until));
                        break;
                    }
                }
                Err(CandidateError::Next(error, until)) => {
                    match until.filter(|_| is_quota_error(&error)) {
                        Some(until) => resting = earliest_of(resting, Some(until)),
                        None => failure = Some(error),
                    }
                    break;
                }
            }
        }
    }
    Err(match (failure, resting) {
        // A failing provider may recover long before a quota is renewed.
        // A setting that was just changed may allow it.
        (Some(error), _)
            if error.code.as_deref() == Some(cynode_models::content_guard::REMOTE_MEDIA_CODE) =>
        {
            RouteError::NoWay(error)
        }
        (Some(error), _) => RouteError::Failed(error),
        (None, Some(until)) => park_for_quota(app, request, until).await.into(),
        (None, None) => left_alone.map_or_else(
            || RouteError::NoPreferredWay(no_route_error(id), preference_epoch),
            RouteError::Failed,
        ),
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

/// Decodes the client's request to its canonical form.
fn decode_canonical_request(
    request: &InferenceRequest,
    rewrite: &RequestRewrite,
) -> Result<CanonicalRequest, ModelError> {
    request.dialect.decode_request(rewrite.as_body())
}

/// Returns the error of a call whose client has disconnected.
fn caller_gone_error() -> ModelError {
    ModelError::new(ModelErrorKind::Timeout, "whoever asked has gone")
}

/// Formats a time for PostgreSQL.
fn format_timestamp(now: OffsetDateTime) -> String {
    now.format(&time::format_description::well_known::Rfc3339).unwrap_or_default()
}

impl InferenceRequest {
    pub(crate) fn to_operation_request(&self) -> OperationRequest {
        OperationRequest { caller: None, trace: self.trace, attempt: None }
    }
}
