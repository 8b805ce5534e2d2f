//! Models and the ways to them, as the database describes them.

use std::{collections::HashMap, fmt, sync::Arc};

use cynode_core::{
    agents::{AgentKind, AgentRole},
    ids::{ProjectId, ProviderId, ProviderKeyId, TaskId, UserId},
    models::{OWN, Prices, ProviderKind, Tier},
    preferences as rules,
};
use cynode_db::{
    Conn, DbError, Pool, budgets::Breaker, models, notices, remotes, servers, settings,
};
use cynode_models::{
    dialect::{Dialect, Target},
    redact::{FingerprintKey, Known as KnownSecret, Redactor},
    routing::{Way, Wishes},
    script::Script,
    talk::{Kind, ModelError},
    upstream::Place as Address,
};
use secrecy::SecretString;
use time::OffsetDateTime;
use tokio::sync::Mutex;
use tokio_util::task::TaskTracker;

use super::{Models, Who, clipped, ours};
use crate::{App, Error, batch::Batcher, keys::Keys, models::Place, servers::Reachable};

/// The default interaction skill: how to work with `CyNode`, for agents whose model takes skills.
pub(super) const DEFAULT_SKILL: &str = include_str!("default_skill.md");

/// The settings that are looked at.
pub(crate) const REPEATS: &str = "models.breaker.repeats";
pub(crate) const CALLS: &str = "models.breaker.calls_without_progress";
pub(crate) const PER_MINUTE: &str = "models.breaker.micros_per_minute";
pub(crate) const DEFAULT: &str = "models.default";

/// Everything that questions are routed by.
pub(super) struct Registry {
    /// The number of the last change that is in it.
    pub(super) epoch: i64,
    pub(super) models: HashMap<String, Model>,
    pub(super) redactor: Redactor,
    pub(super) breaker: Breaker,
    /// The model that is asked when a request names none.
    pub(super) default: Option<String>,
    /// When it was read.
    pub(super) since: OffsetDateTime,
    /// What callers wish, looked up once.
    wishes: Mutex<HashMap<Wisher, Arc<Wishes>>>,
}

type Wisher = (Option<AgentRole>, UserId, Option<ProjectId>, Option<TaskId>);

/// A model that can be asked.
pub(super) struct Model {
    pub(super) id: String,
    pub(super) title: String,
    pub(super) tier: Option<Tier>,
    /// It is switched on and there is a way to it.
    pub(super) usable: bool,
    /// The only project that may use it.
    pub(super) project: Option<ProjectId>,
    pub(super) skills: bool,
    /// Whether it calls tools.
    pub(super) tools: bool,
    pub(super) created: OffsetDateTime,
    pub(super) routes: Vec<Candidate>,
}

impl Model {
    /// Whether it can be asked in that project, or outside of all.
    pub(super) fn is_for(&self, project: Option<ProjectId>) -> bool {
        self.usable && (self.project.is_none() || self.project == project)
    }
}

/// One way to a model.
#[derive(Clone)]
pub(super) struct Candidate {
    pub(super) provider: Arc<Provider>,
    pub(super) upstream: String,
    pub(super) prices: Prices,
    pub(super) context: u64,
    pub(super) most_output: u64,
    pub(super) target: Target,
}

/// A provider that can be asked.
pub(super) struct Provider {
    pub(super) id: ProviderId,
    pub(super) name: String,
    pub(super) kind: ProviderKind,
    pub(super) dialect: Dialect,
    pub(super) local: bool,
    pub(super) source: Source,
    /// The cassette that its answers are kept in.
    pub(super) record: Option<String>,
    keys: Vec<Key>,
}

/// Where answers come from.
pub(super) enum Source {
    Network(Address),
    Script(Script),
    Replay(String),
}

/// A key of a provider, in the open. It never leaves the process but towards its provider.
pub(super) struct Key {
    pub(super) id: ProviderKeyId,
    pub(super) secret: Option<SecretString>,
    parked_until: Option<OffsetDateTime>,
}

impl fmt::Debug for Registry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Registry").field("epoch", &self.epoch).finish_non_exhaustive()
    }
}

impl Provider {
    /// A key that does not rest, if one is needed; when all rest, until when the first of them does.
    pub(super) fn key(&self, now: OffsetDateTime) -> Result<Option<&Key>, OffsetDateTime> {
        let rests = |key: &&Key| key.parked_until.is_some_and(|until| until > now);
        let awake = self.keys.iter().find(|key| !rests(key));
        match self.keys.iter().filter_map(|key| key.parked_until).min() {
            Some(until) if awake.is_none() => Err(until),
            _ => Ok(awake),
        }
    }
}

impl Models {
    /// The registry; read anew if it is the one of that number, or if there is none yet.
    pub(super) async fn registry(
        &self,
        app: &App,
        old: Option<i64>,
    ) -> Result<Arc<Registry>, Error> {
        let good = |held: &Option<Arc<Registry>>| {
            held.as_ref().filter(|held| old.is_none_or(|old| held.epoch > old)).cloned()
        };
        if let Some(held) = good(&*self.registry.read().await) {
            return Ok(held);
        }
        let mut held = self.registry.write().await;
        // Somebody else may have read it meanwhile.
        if let Some(held) = good(&held) {
            return Ok(held);
        }
        let fresh = Arc::new(load(app, self).await?);
        *held = Some(fresh.clone());
        Ok(fresh)
    }
}

/// Looks for several requests at once whether what is known of models has changed.
pub(crate) type Epochs = Batcher<(), i64>;

pub(crate) fn epochs(lanes: &TaskTracker, pool: &Pool) -> Epochs {
    let pool = pool.clone();
    Batcher::start(lanes, move |asked: Vec<()>| {
        let pool = pool.clone();
        async move {
            let mut conn = pool.acquire().await.ok()?;
            let epoch = models::epoch(&mut conn).await.ok()?;
            Some(vec![epoch; asked.len()])
        }
    })
}

impl Models {
    /// The registry as it is now: the same, if nothing has changed since it was read.
    pub(super) async fn current(
        &self,
        app: &App,
        held: &Arc<Registry>,
    ) -> Result<Arc<Registry>, Error> {
        let epoch = match app.shared().epochs.submit(()).await {
            Some(epoch) => epoch,
            None => models::epoch(&mut *app.pool().acquire().await.map_err(DbError::from)?).await?,
        };
        if epoch == held.epoch {
            Ok(held.clone())
        } else {
            self.registry(app, Some(held.epoch)).await
        }
    }
}

#[tracing::instrument(name = "app.inference.load", skip_all)]
async fn load(app: &App, models: &Models) -> Result<Registry, Error> {
    let keys = &app.gate()?.keys;
    let mut conn = app.pool().acquire().await.map_err(DbError::from)?;
    // What changes while it is read belongs to the next number.
    let epoch = models::epoch(&mut conn).await?;
    let mut secrets = Vec::new();
    let providers = providers(&mut conn, keys, &mut secrets).await?;
    held_secrets(&mut conn, keys, &mut secrets).await?;
    let mut breaker = Breaker { repeats: 10, calls: 500, micros_per_minute: 5_000_000 };
    let mut default = None;
    for setting in settings::list(&mut conn).await? {
        let number = || setting.value.as_i64().filter(|number| *number > 0);
        let small = || number().and_then(|number| i32::try_from(number).ok());
        match setting.key.as_str() {
            REPEATS => breaker.repeats = small().unwrap_or(breaker.repeats),
            CALLS => breaker.calls = small().unwrap_or(breaker.calls),
            PER_MINUTE => breaker.micros_per_minute = number().unwrap_or(breaker.micros_per_minute),
            DEFAULT => default = setting.value.as_str().map(str::to_owned),
            _ => {}
        }
    }
    let described = models::list(&mut conn).await?;
    drop(conn);
    let key = FingerprintKey::new(keys.tag(&[b"redaction"]));
    let redactor = Redactor::new(models.rules.clone(), key, secrets)
        .map_err(|error| Error::Internal(error.into()))?;
    let models = described.into_iter().map(|model| (model.id.clone(), usable(model, &providers)));
    Ok(Registry {
        epoch,
        models: models.collect(),
        redactor,
        breaker,
        default,
        since: app.environment().now(),
        wishes: Mutex::default(),
    })
}

/// The secrets that we hold for others than providers: tool servers, forges, and those who are told. One that cannot be
/// opened harms no other.
async fn held_secrets(
    conn: &mut Conn,
    keys: &Keys,
    secrets: &mut Vec<KnownSecret>,
) -> Result<(), Error> {
    let mut know = |name: String, opened: Result<SecretString, Error>| match opened {
        Ok(value) => secrets.push(KnownSecret { name, value }),
        Err(error) => {
            tracing::error!(event = "error", %error, held = name, "a secret cannot be opened and is not looked for");
        }
    };
    for server in servers::list(conn).await? {
        match Reachable::open(&server, keys) {
            Ok(open) => {
                for (name, value) in open.secrets {
                    know(format!("{}-{name}", server.name), Ok(value));
                }
            }
            Err(error) => know(server.name, Err(error)),
        }
    }
    for remote in remotes::list(conn).await? {
        know("forge-credential".into(), keys.credential(&remote));
        know("forge-webhook".into(), keys.webhook_secret(&remote));
    }
    for channel in notices::sealed_channels(conn).await? {
        match crate::notices::opened(&channel, keys) {
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

fn usable(model: models::Model, providers: &HashMap<ProviderId, Arc<Provider>>) -> Model {
    let (context, most_output) =
        (model.context_tokens.unsigned_abs(), model.max_output_tokens.unsigned_abs());
    let routes: Vec<Candidate> = model
        .routes
        .into_iter()
        .filter_map(|route| {
            let provider = providers.get(&route.provider)?.clone();
            let target = Target {
                default_max_tokens: u32::try_from(most_output).unwrap_or(u32::MAX),
                max_completion_tokens: provider.kind == ProviderKind::OpenAi,
                schema_output: model.json_schema,
                drop_foreign_tools: true,
                ..Target::default()
            };
            let (upstream, prices) = (route.upstream, route.prices);
            Some(Candidate { provider, upstream, prices, context, most_output, target })
        })
        .collect();
    Model {
        usable: model.enabled && !routes.is_empty(),
        project: model.project,
        id: model.id,
        title: model.title,
        tier: model.tier,
        skills: model.skills,
        tools: model.tools,
        created: model.created_at,
        routes,
    }
}

/// The providers that are switched on. One that cannot be used harms no other.
async fn providers(
    conn: &mut Conn,
    keys: &Keys,
    secrets: &mut Vec<KnownSecret>,
) -> Result<HashMap<ProviderId, Arc<Provider>>, Error> {
    let described = models::providers(conn).await?;
    let mut opened: HashMap<ProviderId, Vec<Key>> = HashMap::new();
    for key in models::keys(conn).await? {
        let secret = keys.open(key.id.as_uuid().as_bytes(), &key.sealed).and_then(|bytes| {
            String::from_utf8(bytes).map_err(|error| Error::Internal(error.into()))
        });
        match secret {
            Ok(secret) => {
                let secret = SecretString::from(secret);
                let name = format!("{}-key", key.provider);
                secrets.push(KnownSecret { name, value: secret.clone() });
                let held = Key { id: key.id, secret: Some(secret), parked_until: key.parked_until };
                opened.entry(key.provider).or_default().push(held);
            }
            Err(error) => {
                tracing::error!(event = "error", %error, key.id = %key.id, "a provider's key cannot be used");
            }
        }
    }
    let mut usable = HashMap::new();
    for provider in described.iter().filter(|provider| provider.enabled) {
        let place = Place::of(provider)?;
        // Who records asks in the name of another.
        let asked = match place.of {
            Some(of) => described.iter().find(|other| other.id == of),
            None => Some(provider),
        };
        let Some(asked) = asked.filter(|asked| asked.enabled) else { continue };
        let asked_place = Place::of(asked)?;
        let source = match (asked.kind, asked_place.base_url, asked_place.script, &place.cassette) {
            (ProviderKind::Replay, _, _, Some(cassette)) => Source::Replay(cassette.clone()),
            (ProviderKind::Scripted, _, Some(script), _) => match Script::read(&script) {
                Ok(script) => Source::Script(script),
                Err(error) => {
                    tracing::error!(event = "error", %error, provider = provider.name, "a script cannot be used");
                    continue;
                }
            },
            (_, Some(base_url), _, _) => {
                Source::Network(Address { kind: asked.kind, dialect: asked.dialect, base_url })
            }
            _ => continue,
        };
        let held = Provider {
            id: provider.id,
            name: provider.name.clone(),
            kind: asked.kind,
            dialect: asked.dialect,
            local: provider.local,
            source,
            record: (provider.kind == ProviderKind::Record).then_some(place.cassette).flatten(),
            keys: opened
                .get(&asked.id)
                .map(|keys| keys.iter().map(Key::copied).collect())
                .unwrap_or_default(),
        };
        usable.insert(provider.id, Arc::new(held));
    }
    Ok(usable)
}

impl Key {
    fn copied(&self) -> Self {
        Self { id: self.id, secret: self.secret.clone(), parked_until: self.parked_until }
    }
}

impl Registry {
    /// The ways that are tried, in their order; an id that nobody listed is an error and never another model.
    pub(super) async fn candidates(
        &self,
        app: &App,
        who: &Who,
        id: &str,
    ) -> Result<Vec<Candidate>, ModelError> {
        let unknown = || {
            let told = format!(
                "there is no model `{}`; `GET /v1/models` lists what may be asked",
                clipped(id)
            );
            ModelError::new(Kind::NotFound, told).with_code("model_not_found")
        };
        let mut ways: Vec<&Candidate> = Vec::new();
        if let Some(tier) = Tier::of_model_id(id) {
            let mut of_tier: Vec<&Model> = self
                .models
                .values()
                .filter(|model| model.is_for(who.project) && model.tier == Some(tier))
                .collect();
            of_tier.sort_by(|a, b| a.id.cmp(&b.id));
            ways.extend(of_tier.iter().flat_map(|model| &model.routes));
        } else if !id.starts_with(OWN)
            && let Some(model) = self.models.get(id).filter(|model| model.is_for(who.project))
        {
            ways.extend(&model.routes);
        }
        if ways.is_empty() {
            return Err(unknown());
        }
        let wishes = self.wishes(app, who).await.map_err(|error| ours(&error))?;
        let known: Vec<Way<'_>> = ways
            .iter()
            .map(|way| Way { provider: &way.provider.name, local: way.provider.local })
            .collect();
        Ok(wishes.choose(&known).into_iter().map(|at| ways[at].clone()).collect())
    }

    /// Whether the default interaction skill is given along: to agents that manage, where the model takes skills.
    pub(super) fn wants_skill(&self, who: &Who, id: &str) -> bool {
        let manages =
            who.role().is_some_and(|role| matches!(role.kind(), AgentKind::Pm | AgentKind::Pa));
        let takes = match Tier::of_model_id(id) {
            Some(tier) => {
                let of_tier =
                    |model: &&Model| model.is_for(who.project) && model.tier == Some(tier);
                self.models.values().filter(of_tier).all(|model| model.skills)
            }
            None => self.models.get(id).is_some_and(|model| model.skills),
        };
        manages && takes
    }

    /// Whatever may answer to that id in that project, or outside of all.
    fn behind(&self, id: &str, project: Option<ProjectId>) -> impl Iterator<Item = &Model> {
        let named = move |model: &&Model| match Tier::of_model_id(id) {
            Some(tier) => model.tier == Some(tier),
            None => model.id == id,
        };
        self.models.values().filter(move |model| model.is_for(project)).filter(named)
    }

    /// Whether whatever may answer to that id in that project calls tools.
    pub(super) fn calls_tools(&self, id: &str, project: Option<ProjectId>) -> bool {
        let mut those = self.behind(id, project).peekable();
        those.peek().is_some() && those.all(|model| model.tools)
    }

    /// What agents on our side may ask in that project: the tiers that somebody answers to, and the installation's own choice.
    pub(super) fn open_in(&self, project: Option<ProjectId>) -> Vec<String> {
        let tiers = Tier::ALL.iter().map(|tier| tier.model_id());
        let chosen = self.default.iter().filter(|id| Tier::of_model_id(id).is_none()).cloned();
        tiers.chain(chosen).filter(|id| self.behind(id, project).next().is_some()).collect()
    }

    /// What the preferences say for whoever asks. They are looked up once: every change of them makes a new registry.
    async fn wishes(&self, app: &App, who: &Who) -> Result<Arc<Wishes>, Error> {
        let wisher = (who.role(), who.user, who.project, who.task());
        let mut known = self.wishes.lock().await;
        if let Some(wishes) = known.get(&wisher) {
            return Ok(wishes.clone());
        }
        let mut conn = app.pool().acquire().await.map_err(DbError::from)?;
        let entries =
            crate::preferences::entries(&mut conn, who.user, who.project, who.task()).await?;
        let resolution = match who.role() {
            Some(role) => rules::resolve_for(role, entries),
            None => rules::resolve(entries),
        };
        let wishes = Arc::new(Wishes::of(who.role(), &resolution));
        if known.len() > 10_000 {
            known.clear();
        }
        known.insert(wisher, wishes.clone());
        Ok(wishes)
    }
}
