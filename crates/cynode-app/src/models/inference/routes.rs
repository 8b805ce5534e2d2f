//! Model registry: a cached snapshot of models, providers, keys and routes from the database.

use cynode_core::settings::registry::{
    BUDGET_WAIT_SETTING, DEFAULT_BUDGET_WAIT_SECONDS, DEFAULT_LOOP_GUARD_CALLS_WITHOUT_PROGRESS,
    DEFAULT_LOOP_GUARD_COST_PER_MINUTE, DEFAULT_LOOP_GUARD_IDENTICAL_CALLS, DEFAULT_MODEL_SETTING,
    LOOP_GUARD_CALLS_WITHOUT_PROGRESS_SETTING, LOOP_GUARD_COST_PER_MINUTE_SETTING,
    LOOP_GUARD_IDENTICAL_CALLS_SETTING, PROVIDER_FETCHES_MEDIA_SETTING, THINK_TIMEOUT_SETTING,
};
use std::{
    collections::{HashMap, HashSet},
    fmt,
    sync::Arc,
    time::Duration,
};

use cynode_core::{
    agents::{AgentKind, AgentRole},
    budget::{self, Amount},
    ids::{ProjectId, ProviderId, ProviderKeyId, TaskId, UserId},
    models::{ModelPrices, OWN_MODEL_PREFIX, ProviderKind, Tier},
};
use cynode_db::{
    Conn, Pool,
    delivery::{environments, forges},
    models::{budgets::LoopGuardLimits, registry},
    notifications,
    platform::settings,
    tasks::{preferences, projects},
    tools::{audit_export, tool_servers},
};
use cynode_models::{
    dialect::{
        Dialect, ProviderCapabilities,
        canonical::{ModelError, ModelErrorKind},
    },
    redact::{FingerprintKey, KnownSecret, Redactor},
    routing::{ProviderRoute, RoutingPreferences},
    script::ModelScript,
    upstream::UpstreamEndpoint as Address,
};
use secrecy::SecretString;
use time::OffsetDateTime;
use tokio::sync::Mutex;
use tokio_util::task::TaskTracker;

use super::{
    InferenceCaller, InferenceRuntime, PROVIDER_IDLE_TIMEOUT,
    key_parks::{KeyTenant, TenantKeyParks},
    to_model_error, truncate_text,
};
use crate::{
    App, Error,
    models::registry::{ProviderEndpoint, is_private, provider_key_associated_data},
    platform::{batch::Batcher, keys::InstallationKeys},
    tools::{audit::sinks, tool_servers::CallableServer},
};

/// Default interaction skill: how to work with `CyNode`, for agents whose model accepts skills.
pub(super) const DEFAULT_SKILL: &str = include_str!("default_skill.md");

/// Maximum number of callers whose preferences are cached.
const MAX_CACHED_PREFERENCES: usize = 10_000;

/// Registry that requests are routed by.
pub(crate) struct ModelRegistry {
    /// Epoch of the last change that it contains.
    pub(super) epoch: i64,
    pub(super) models: HashMap<String, RoutedModel>,
    pub(crate) redactor: Arc<Redactor>,
    pub(super) loop_guard: LoopGuardLimits,
    /// How long a call waits for calls in progress before a budget refuses it.
    pub(super) budget_wait: Duration,
    /// Model that is called when a request names none.
    pub(super) default: Option<String>,
    /// Budget of a task that is created without one.
    pub(crate) task_default: Option<Amount>,
    /// Archived projects, in which no model may be called.
    archived: HashSet<ProjectId>,
    /// Time at which it was loaded.
    pub(super) since: OffsetDateTime,
    /// Cached preferences of callers.
    wishes: Mutex<HashMap<RoutingPreferenceKey, CachedPreferences>>,
}

pub(super) type RoutingPreferenceKey =
    (Option<AgentRole>, UserId, Option<ProjectId>, Option<TaskId>);

/// Routing preferences of a caller. They have an epoch of their own, so that a change by one user concerns no other.
#[derive(Clone)]
pub(super) struct CachedPreferences {
    /// Epoch of the last change that they contain.
    pub(super) epoch: i64,
    pub(super) preferences: Arc<RoutingPreferences>,
}

impl InferenceCaller {
    /// Returns the key of the routing preferences that apply to the caller.
    pub(super) fn preference_key(&self) -> RoutingPreferenceKey {
        (self.agent_role(), self.user, self.project, self.task_id())
    }
}

/// A model that can be called.
#[expect(clippy::struct_excessive_bools, reason = "each is a thing that holds of a model or not")]
pub(super) struct RoutedModel {
    pub(super) id: String,
    pub(super) title: String,
    pub(super) tier: Option<Tier>,
    /// Whether the model is enabled.
    pub(super) enabled: bool,
    /// Whether its project is archived.
    pub(super) archived: bool,
    /// Whether it is enabled, its project is not archived, and it has a route.
    pub(super) usable: bool,
    /// The only project that may use it.
    pub(super) project: Option<ProjectId>,
    pub(super) skills: bool,
    /// Whether it can call tools.
    pub(super) tools: bool,
    /// Response timeout in seconds.
    pub(super) think_seconds: Option<u32>,
    pub(super) created: OffsetDateTime,
    pub(super) routes: Vec<UpstreamRoute>,
}

impl RoutedModel {
    /// Returns whether it can be used in that project, or outside any project.
    pub(super) fn is_usable_in(&self, project: Option<ProjectId>) -> bool {
        self.usable && (self.project.is_none() || self.project == project)
    }

    /// Converts one of its routes for ranking.
    pub(super) fn to_routing_option<'a>(&self, route: &'a UpstreamRoute) -> ProviderRoute<'a> {
        ProviderRoute {
            provider: &route.provider.name,
            local: route.provider.local,
            own: self.project.is_some(),
        }
    }
}

/// A route to a model.
#[derive(Clone)]
pub(super) struct UpstreamRoute {
    pub(super) provider: Arc<RoutedProvider>,
    pub(super) upstream: String,
    pub(super) prices: ModelPrices,
    pub(super) context: u64,
    pub(super) most_output: u64,
    pub(super) target: ProviderCapabilities,
    /// Idle timeout of the provider.
    pub(super) idle: Duration,
}

/// A provider that can be called.
pub(super) struct RoutedProvider {
    pub(super) id: ProviderId,
    pub(super) name: String,
    pub(super) kind: ProviderKind,
    pub(super) dialect: Dialect,
    pub(super) local: bool,
    /// Whether it gets no URLs of media: it could fetch them from the private network that it is in.
    pub(super) inline_media_only: bool,
    pub(super) source: AnswerSource,
    /// Cassette that records its responses.
    pub(super) record: Option<String>,
    keys: Vec<OpenProviderKey>,
}

/// Source of responses.
pub(super) enum AnswerSource {
    Network(Address),
    Script(ModelScript),
    Replay(String),
}

/// An unsealed key of a provider. The process sends it to its provider only.
pub(super) struct OpenProviderKey {
    pub(super) id: ProviderKeyId,
    pub(super) secret: Option<SecretString>,
    parked_until: Option<OffsetDateTime>,
}

impl fmt::Debug for ModelRegistry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Registry").field("epoch", &self.epoch).finish_non_exhaustive()
    }
}

impl RoutedProvider {
    /// Returns whether it has a key.
    pub(super) const fn has_key(&self) -> bool {
        !self.keys.is_empty()
    }

    /// Returns the number of its keys.
    pub(super) const fn count_keys(&self) -> usize {
        self.keys.len()
    }

    /// Returns a key that is in cooldown neither for everybody nor for this tenant, if one is needed. When all are, returns
    /// the earliest end of a cooldown.
    pub(super) fn usable_key(
        &self,
        now: OffsetDateTime,
        parks: &TenantKeyParks,
        tenant: KeyTenant,
    ) -> Result<Option<&OpenProviderKey>, OffsetDateTime> {
        let mut resting: Option<OffsetDateTime> = None;
        for key in &self.keys {
            let everybody = key.parked_until.filter(|until| *until > now);
            let Some(until) = everybody.max(parks.parked_until(key.id, tenant, now)) else {
                return Ok(Some(key));
            };
            resting = Some(resting.map_or(until, |earliest| earliest.min(until)));
        }
        resting.map_or(Ok(None), Err)
    }
}

impl InferenceRuntime {
    /// Returns the cached registry. Loads it when there is none, or when the cached one has the given epoch.
    pub(super) async fn get_registry(
        &self,
        app: &App,
        old: Option<i64>,
    ) -> Result<Arc<ModelRegistry>, Error> {
        let good = |held: &Option<Arc<ModelRegistry>>| {
            held.as_ref().filter(|held| old.is_none_or(|old| held.epoch > old)).cloned()
        };
        if let Some(held) = good(&*self.registry.read().await) {
            return Ok(held);
        }
        let mut held = self.registry.write().await;
        // Another request may have loaded it meanwhile.
        if let Some(held) = good(&held) {
            return Ok(held);
        }
        let fresh = Arc::new(load_registry(app, self).await?);
        *held = Some(fresh.clone());
        Ok(fresh)
    }
}

/// Batches the epoch checks of several requests.
pub(crate) type EpochBatcher = Batcher<(), i64>;

pub(crate) fn spawn_epoch_batcher(lanes: &TaskTracker, pool: &Pool) -> EpochBatcher {
    let pool = pool.clone();
    Batcher::spawn_lane(lanes, move |asked: Vec<()>| {
        let pool = pool.clone();
        async move {
            let mut conn = cynode_db::acquire_connection(&pool).await.ok()?;
            let epoch = registry::get_registry_epoch(&mut conn).await.ok()?;
            Some(vec![epoch; asked.len()])
        }
    })
}

impl InferenceRuntime {
    /// Returns the current registry: the same one if nothing has changed.
    pub(crate) async fn refresh_registry(
        &self,
        app: &App,
        held: &Arc<ModelRegistry>,
    ) -> Result<Arc<ModelRegistry>, Error> {
        let epoch = match app.shared_state().epochs.submit_item(()).await {
            Some(epoch) => epoch,
            None => registry::get_registry_epoch(&mut *app.conn().await?).await?,
        };
        if epoch == held.epoch {
            Ok(held.clone())
        } else {
            self.get_registry(app, Some(held.epoch)).await
        }
    }
}

#[tracing::instrument(name = "app.inference.load_registry", skip_all)]
async fn load_registry(app: &App, models: &InferenceRuntime) -> Result<ModelRegistry, Error> {
    let keys = &app.gateway_parts()?.keys;
    let mut conn = app.conn().await?;
    // The epoch is read first: a change during the load belongs to the next epoch.
    let epoch = registry::get_registry_epoch(&mut conn).await?;
    let stored = settings::list_settings(&mut conn).await?;
    let fetches_media = stored.iter().any(|setting| {
        setting.key.as_str() == PROVIDER_FETCHES_MEDIA_SETTING
            && setting.value.as_bool() == Some(true)
    });
    let mut secrets = Vec::new();
    let providers = load_providers(&mut conn, keys, &mut secrets, fetches_media).await?;
    load_known_secrets(&mut conn, keys, &mut secrets).await?;
    let mut loop_guard = LoopGuardLimits {
        max_identical_calls: DEFAULT_LOOP_GUARD_IDENTICAL_CALLS,
        max_calls_without_progress: DEFAULT_LOOP_GUARD_CALLS_WITHOUT_PROGRESS,
        max_cost_micros_per_minute: DEFAULT_LOOP_GUARD_COST_PER_MINUTE,
    };
    let (mut default, mut task_default, mut think) = (None, budget::default_task_limit(None), None);
    let mut budget_wait = Duration::from_secs(DEFAULT_BUDGET_WAIT_SECONDS.into());
    for setting in stored {
        let number = || setting.value.as_i64().filter(|number| *number > 0);
        let small = || number().and_then(|number| i32::try_from(number).ok());
        match setting.key.as_str() {
            LOOP_GUARD_IDENTICAL_CALLS_SETTING => {
                loop_guard.max_identical_calls = small().unwrap_or(loop_guard.max_identical_calls);
            }
            LOOP_GUARD_CALLS_WITHOUT_PROGRESS_SETTING => {
                loop_guard.max_calls_without_progress =
                    small().unwrap_or(loop_guard.max_calls_without_progress);
            }
            LOOP_GUARD_COST_PER_MINUTE_SETTING => {
                loop_guard.max_cost_micros_per_minute =
                    number().unwrap_or(loop_guard.max_cost_micros_per_minute);
            }
            DEFAULT_MODEL_SETTING => default = setting.value.as_str().map(str::to_owned),
            budget::TASK_DEFAULT_SETTING => {
                task_default = budget::default_task_limit(Some(&setting.value));
            }
            BUDGET_WAIT_SETTING => {
                budget_wait = setting.value.as_u64().map_or(budget_wait, Duration::from_secs);
            }
            THINK_TIMEOUT_SETTING => {
                think = number().and_then(|number| u32::try_from(number).ok());
            }
            _ => {}
        }
    }
    let described = registry::list_models(&mut conn).await?;
    let archived = projects::list_archived_projects(&mut conn).await?.into_iter().collect();
    drop(conn);
    let key = FingerprintKey::new(keys.compute_tag(&[b"redaction"]));
    let redactor = Redactor::new(models.rules.clone(), key, secrets)
        .map_err(|error| Error::Internal(error.into()))?;
    let redactor = Arc::new(redactor);
    let models = described
        .into_iter()
        .map(|model| (model.id.clone(), to_routed_model(model, &providers, think)));
    Ok(ModelRegistry {
        epoch,
        models: models.collect(),
        redactor,
        loop_guard,
        budget_wait,
        default,
        task_default,
        archived,
        since: app.environment().now(),
        wishes: Mutex::default(),
    })
}

/// Loads secrets of tool servers, forges, projects, audit sinks and notification channels for redaction. One that cannot be unsealed does
/// not affect the others.
async fn load_known_secrets(
    conn: &mut Conn,
    keys: &InstallationKeys,
    secrets: &mut Vec<KnownSecret>,
) -> Result<(), Error> {
    let mut know = |name: String, opened: Result<SecretString, Error>| match opened {
        Ok(value) => secrets.push(KnownSecret { name, value }),
        Err(error) => {
            tracing::error!(event = "secret.unseal_failed", %error, secret = name, "a secret cannot be unsealed and is not redacted");
        }
    };
    for server in tool_servers::list_tool_servers(conn).await? {
        match CallableServer::unseal_server(&server, keys) {
            Ok(open) => {
                for (name, value) in open.secrets {
                    know(format!("{}-{name}", server.name), Ok(value));
                }
            }
            Err(error) => know(server.name, Err(error)),
        }
    }
    for remote in forges::list_remotes(conn).await? {
        know("forge-credential".into(), keys.forge_credential(&remote));
        know("forge-webhook".into(), keys.webhook_secret(&remote));
    }
    for secret in environments::list_sealed_secrets(conn, None).await? {
        know(format!("project-secret-{}", secret.name), keys.project_secret(&secret));
    }
    for sink in audit_export::list_sinks(conn).await? {
        if let Some(sealed) = &sink.sealed {
            let place = sinks::sink_associated_data(sink.id);
            know(format!("audit-sink-{}", sink.name), keys.unseal_text(&place, sealed));
        }
    }
    for channel in notifications::list_sealed_channels(conn).await? {
        match keys.unseal_channel_secrets(&channel) {
            Ok(opened) => {
                for value in opened {
                    know("channel-secret".into(), Ok(value));
                }
            }
            Err(error) => know(format!("channel-{}", channel.id), Err(error)),
        }
    }
    Ok(())
}

fn to_routed_model(
    model: registry::ModelRecord,
    providers: &HashMap<ProviderId, Arc<RoutedProvider>>,
    think: Option<u32>,
) -> RoutedModel {
    let think_seconds = model.think_seconds.and_then(|own| u32::try_from(own).ok()).or(think);
    let idle = idle_timeout(think_seconds);
    let (context, most_output) =
        (model.context_tokens.unsigned_abs(), model.max_output_tokens.unsigned_abs());
    let routes: Vec<UpstreamRoute> = model
        .routes
        .into_iter()
        .filter_map(|route| {
            let provider = providers.get(&route.provider)?.clone();
            let target = ProviderCapabilities {
                default_max_tokens: u32::try_from(most_output).unwrap_or(u32::MAX),
                max_completion_tokens: provider.kind == ProviderKind::OpenAi,
                schema_output: model.json_schema,
                drop_foreign_tools: true,
                ..ProviderCapabilities::default()
            };
            let (upstream, prices) = (route.upstream, route.prices);
            Some(UpstreamRoute { provider, upstream, prices, context, most_output, target, idle })
        })
        .collect();
    RoutedModel {
        enabled: model.enabled,
        archived: model.archived,
        usable: model.enabled && !model.archived && !routes.is_empty(),
        project: model.project,
        id: model.id,
        title: model.title,
        tier: model.tier,
        skills: model.skills,
        tools: model.tools,
        think_seconds,
        created: model.created_at,
        routes,
    }
}

/// Returns the idle timeout of a provider for a model with this response timeout. The project manager triples the
/// timeout of its second attempt, so this does too.
fn idle_timeout(think_seconds: Option<u32>) -> Duration {
    let longest = Duration::from_secs(think_seconds.unwrap_or_default().into()).saturating_mul(3);
    PROVIDER_IDLE_TIMEOUT.max(longest)
}

/// Loads the enabled providers. An unusable one does not affect the others. `fetches_media` says whether providers in a private network may
/// fetch URLs.
async fn load_providers(
    conn: &mut Conn,
    keys: &InstallationKeys,
    secrets: &mut Vec<KnownSecret>,
    fetches_media: bool,
) -> Result<HashMap<ProviderId, Arc<RoutedProvider>>, Error> {
    let described = registry::list_providers(conn).await?;
    let mut opened: HashMap<ProviderId, Vec<OpenProviderKey>> = HashMap::new();
    for key in registry::list_provider_keys(conn).await? {
        let Some(owner) = described.iter().find(|provider| provider.id == key.provider) else {
            continue;
        };
        let secret = provider_key_associated_data(key.id, owner)
            .and_then(|place| keys.unseal_secret(&place, &key.sealed))
            .and_then(|bytes| {
                String::from_utf8(bytes).map_err(|error| Error::Internal(error.into()))
            });
        match secret {
            Ok(secret) => {
                let secret = SecretString::from(secret);
                let name = format!("{}-key", key.provider);
                secrets.push(KnownSecret { name, value: secret.clone() });
                let held = OpenProviderKey {
                    id: key.id,
                    secret: Some(secret),
                    parked_until: key.parked_until,
                };
                opened.entry(key.provider).or_default().push(held);
            }
            Err(error) => {
                tracing::error!(event = "provider_key.unseal_failed", %error, key.id = %key.id, "a provider's key cannot be used");
            }
        }
    }
    let mut usable = HashMap::new();
    for provider in described.iter().filter(|provider| provider.enabled) {
        let place = ProviderEndpoint::from_provider(provider)?;
        // A recording provider calls the provider that it records.
        let asked = match place.recorded_provider {
            Some(id) => described.iter().find(|other| other.id == id),
            None => Some(provider),
        };
        let Some(asked) = asked.filter(|asked| asked.enabled) else { continue };
        let asked_place = ProviderEndpoint::from_provider(asked)?;
        let source = match (asked.kind, asked_place.base_url, asked_place.script, &place.cassette) {
            (ProviderKind::Replay, _, _, Some(cassette)) => AnswerSource::Replay(cassette.clone()),
            (ProviderKind::Scripted, _, Some(script), _) => {
                match ModelScript::parse_script(&script) {
                    Ok(script) => AnswerSource::Script(script),
                    Err(error) => {
                        tracing::error!(event = "provider.script_invalid", %error, provider = provider.name, "a script cannot be used");
                        continue;
                    }
                }
            }
            (_, Some(base_url), _, _) => AnswerSource::Network(Address {
                kind: asked.kind,
                dialect: asked.dialect,
                base_url,
            }),
            _ => continue,
        };
        let private = match &source {
            AnswerSource::Network(address) => is_self_hosted(asked, address),
            AnswerSource::Script(_) | AnswerSource::Replay(_) => false,
        };
        let held = RoutedProvider {
            id: provider.id,
            name: provider.name.clone(),
            kind: asked.kind,
            dialect: asked.dialect,
            local: provider.local,
            inline_media_only: private && !fetches_media,
            source,
            record: (provider.kind == ProviderKind::Record).then_some(place.cassette).flatten(),
            keys: opened
                .get(&asked.id)
                .map(|keys| keys.iter().map(OpenProviderKey::clone_key).collect())
                .unwrap_or_default(),
        };
        usable.insert(provider.id, Arc::new(held));
    }
    Ok(usable)
}

/// Returns whether a provider may be a server of one's own, whose network has more in it than the server.
fn is_self_hosted(provider: &registry::ProviderRecord, address: &Address) -> bool {
    address.kind == ProviderKind::Compatible || provider.local || is_private(&address.base_url)
}

impl OpenProviderKey {
    fn clone_key(&self) -> Self {
        Self { id: self.id, secret: self.secret.clone(), parked_until: self.parked_until }
    }
}

impl ModelRegistry {
    /// Returns the candidate routes in the order of attempts, and the epoch of the preferences that ordered them. An
    /// unlisted model id is an error and is never replaced by another model.
    pub(super) async fn route_candidates(
        &self,
        app: &App,
        who: &InferenceCaller,
        id: &str,
    ) -> Result<(Vec<UpstreamRoute>, i64), ModelError> {
        let unknown = || {
            let told = format!(
                "there is no model `{}`; `GET /v1/models` lists what may be asked",
                truncate_text(id)
            );
            ModelError::new(ModelErrorKind::NotFound, told).with_code("model_not_found")
        };
        if who.project.is_some_and(|project| self.archived.contains(&project)) {
            return Err(ModelError::new(
                ModelErrorKind::BadRequest,
                crate::tasks::projects::ARCHIVED_MESSAGE,
            ));
        }
        let ways = self.list_routes(id, who.project);
        if ways.is_empty() {
            return Err(unknown());
        }
        let CachedPreferences { epoch, preferences } = self
            .routing_preferences(app, who.preference_key())
            .await
            .map_err(|error| to_model_error(&error))?;
        let known: Vec<ProviderRoute<'_>> =
            ways.iter().map(|(model, way)| model.to_routing_option(way)).collect();
        let ranked = preferences.rank_routes(&known).into_iter();
        Ok((ranked.map(|at| ways[at].1.clone()).collect(), epoch))
    }

    /// Lists the routes of all models that match an id in a project, by model id and route order.
    pub(super) fn list_routes(
        &self,
        id: &str,
        project: Option<ProjectId>,
    ) -> Vec<(&RoutedModel, &UpstreamRoute)> {
        // An id with our own prefix is a tier or unknown.
        if id.starts_with(OWN_MODEL_PREFIX) && Tier::from_model_id(id).is_none() {
            return Vec::new();
        }
        let mut models: Vec<&RoutedModel> = self.models_for_id(id, project).collect();
        models.sort_by(|a, b| a.id.cmp(&b.id));
        let routes = models.into_iter();
        routes.flat_map(|model| model.routes.iter().map(move |way| (model, way))).collect()
    }

    /// Returns whether the default interaction skill is added: for the project manager and analysts, where the model accepts
    /// skills.
    pub(super) fn wants_skill(&self, who: &InferenceCaller, id: &str) -> bool {
        let manages = who
            .agent_role()
            .is_some_and(|role| matches!(role.agent_kind(), AgentKind::Pm | AgentKind::Pa));
        manages && self.accepts_skills(who.project, id)
    }

    /// Returns whether a model, or each model of a tier, accepts skills.
    pub(super) fn accepts_skills(&self, project: Option<ProjectId>, id: &str) -> bool {
        match Tier::from_model_id(id) {
            Some(tier) => {
                let of_tier =
                    |model: &&RoutedModel| model.is_usable_in(project) && model.tier == Some(tier);
                self.models.values().filter(of_tier).all(|model| model.skills)
            }
            None => self.models.get(id).is_some_and(|model| model.skills),
        }
    }

    /// Returns the models that match an id in a project, or outside any project.
    fn models_for_id(
        &self,
        id: &str,
        project: Option<ProjectId>,
    ) -> impl Iterator<Item = &RoutedModel> {
        let named = move |model: &&RoutedModel| match Tier::from_model_id(id) {
            Some(tier) => model.tier == Some(tier),
            None => model.id == id,
        };
        self.models.values().filter(move |model| model.is_usable_in(project)).filter(named)
    }

    /// Returns whether all models that match an id in a project can call tools.
    pub(super) fn calls_tools(&self, id: &str, project: Option<ProjectId>) -> bool {
        let mut those = self.models_for_id(id, project).peekable();
        those.peek().is_some() && those.all(|model| model.tools)
    }

    /// Returns the longest configured response timeout of the models that match an id in a project, in seconds.
    pub(super) fn think_seconds(&self, id: &str, project: Option<ProjectId>) -> Option<u32> {
        self.models_for_id(id, project).filter_map(|model| model.think_seconds).max()
    }

    /// Returns the idle timeout of the project manager, which may wait for any model.
    pub(crate) fn manager_idle_timeout(&self) -> Duration {
        idle_timeout(self.models.values().filter_map(|model| model.think_seconds).max())
    }

    /// Returns the ids that internal agents may use in a project: the available tiers and the default model of the
    /// installation.
    pub(super) fn available_model_ids(&self, project: Option<ProjectId>) -> Vec<String> {
        let tiers = Tier::ALL.iter().map(|tier| tier.tier_model_id());
        let chosen = self.default.iter().filter(|id| Tier::from_model_id(id).is_none()).cloned();
        tiers.chain(chosen).filter(|id| self.models_for_id(id, project).next().is_some()).collect()
    }

    /// Returns the routing preferences of a caller. They are cached: a call that was routed by older ones is not
    /// reserved.
    pub(super) async fn routing_preferences(
        &self,
        app: &App,
        wisher: RoutingPreferenceKey,
    ) -> Result<CachedPreferences, Error> {
        if let Some(held) = self.wishes.lock().await.get(&wisher) {
            return Ok(held.clone());
        }
        // The lock is not held during the queries: the preferences of one caller delay no other.
        let (role, user, project, task) = wisher;
        let mut conn = app.conn().await?;
        // The epoch is read first: a change during the load belongs to the next epoch.
        let epoch = preferences::get_preference_epoch(&mut conn, user, project, task).await?;
        let resolution =
            crate::tasks::preferences::resolve_effective(&mut conn, role, user, project, task)
                .await?;
        drop(conn);
        let preferences = Arc::new(RoutingPreferences::from_preferences(role, &resolution));
        let fresh = CachedPreferences { epoch, preferences };
        let mut known = self.wishes.lock().await;
        if known.len() > MAX_CACHED_PREFERENCES {
            known.clear();
        }
        if known.get(&wisher).is_none_or(|held| held.epoch <= epoch) {
            known.insert(wisher, fresh.clone());
        }
        Ok(fresh)
    }

    /// Drops the cached preferences of a caller. Returns the current epoch of the preferences.
    pub(super) async fn drop_cached_preferences(
        &self,
        app: &App,
        wisher: RoutingPreferenceKey,
    ) -> Result<i64, Error> {
        self.wishes.lock().await.remove(&wisher);
        let (_, user, project, task) = wisher;
        let mut conn = app.conn().await?;
        Ok(preferences::get_preference_epoch(&mut conn, user, project, task).await?)
    }
}
