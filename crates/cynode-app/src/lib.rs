//! Application operations: one function per operation, with its permission check, its rules and its event.
//!
//! **Invariant**: every interface calls these operations and none bypasses them. An operation takes a [`Ctx`], requires
//! a role before anything else, changes state and records an event. [`App::mutate`] runs all of it in one transaction,
//! together with the answer stored for an idempotent repeat.
//!
//! An operation is a free function in the module of its aggregate. Time and randomness come from [`AppEnvironment`],
//! never from the system.

pub mod background;
pub mod delivery;
pub mod identity;
pub mod manager;
pub mod memory;
pub mod models;
pub mod nodes;
pub mod notifications;
pub mod platform;
pub mod tasks;
pub mod tools;
pub mod workflow;

use std::sync::Arc;

use cynode_core::budget::Amount;
use cynode_db::Pool;
use time::Duration;
use tokio::sync::watch;
use tokio_util::task::TaskTracker;

pub use cynode_db::identity::authentication::{AgentRestrictions, AuthenticatedCaller};
pub use cynode_net::{server::ClientSource, tls::PeerCertificate};
pub use platform::context::{Ctx, OperationFuture, OperationRequest};
pub use platform::environment::{AppEnvironment, Clock, RandomSource, SystemClock, SystemRandom};
pub use platform::error::Error;
pub use platform::idempotency::{IdempotentAttempt, OperationAnswer};
pub use platform::password_hashing::HashedPassword;
pub use platform::rate_limits::AccountLimits;

/// Lifetimes that the operator of an installation configures.
#[derive(Clone, Copy, Debug)]
pub struct LifetimePolicy {
    /// Lifetime of a login session.
    pub session_lifetime: Duration,
    /// How long a stored answer is replayed for the same idempotency key.
    pub idempotency_lifetime: Duration,
    /// Lifetime of the one-time token that creates the first admin.
    pub bootstrap_lifetime: Duration,
}

impl Default for LifetimePolicy {
    fn default() -> Self {
        Self {
            session_lifetime: Duration::hours(12),
            idempotency_lifetime: Duration::hours(24),
            bootstrap_lifetime: Duration::hours(24),
        }
    }
}

/// Resources of a process that serves the gateway.
pub struct GatewayParts {
    /// Keys of the installation.
    pub keys: platform::keys::InstallationKeys,
    /// Definitions of the built-in tools.
    pub native: Arc<[cynode_policy::catalogue::McpToolDefinition]>,
    /// Client for the tool servers that people installed.
    pub reach: Arc<dyn tools::tool_servers::ToolServerClient>,
    /// Object store that holds the bytes of artifacts.
    pub objects: Arc<dyn object_store::ObjectStore>,
    /// Directory of the object store on disk. Orphan cleanup needs it, because the store does not list partial
    /// uploads.
    pub objects_directory: std::path::PathBuf,
    /// Store of the git repositories of projects.
    pub repositories: delivery::repositories::RepositoryStore,
    /// Client that fetches pages for memory.
    pub pages: Arc<dyn memory::ingest::PageFetcher>,
    /// Retention of the audit records of tool calls.
    pub audit_retention: Duration,
    /// Retention of transcripts, the records of agent output and actions in jobs.
    pub transcript_retention: Duration,
}

/// Holds the shared resources that every operation needs. Cloning it is cheap.
#[derive(Clone)]
pub struct App {
    pool: Pool,
    environment: AppEnvironment,
    policy: LifetimePolicy,
    /// Counts commits that brought events. The event streams of this process wake on a change and need not poll.
    commits: watch::Sender<u64>,
    /// Wake-ups within this process and from other processes.
    signs: Arc<platform::wakeups::Wakeups>,
    hashing: platform::password_hashing::PasswordHashing,
    /// Memory for the bodies of requests.
    bodies: Arc<platform::body_budget::BodyBudget>,
    /// Rate limits of accounts.
    limits: Arc<platform::rate_limits::AccountLimiter>,
    /// Keys under which tokens are stored.
    tokens: platform::tokens::TokenKeys,
    /// Batchers, caches and locks that all requests of this process share.
    shared: Arc<SharedState>,
    /// Resources of the gateway. `None` in a process that only uses the database.
    gate: Option<Arc<GatewayParts>>,
    /// Client and registry of models. `None` in a process that only uses the database.
    models: Option<Arc<models::inference::InferenceRuntime>>,
    /// Delivery of notifications. `None` in a process that only uses the database.
    notices: Option<Arc<notifications::NotificationParts>>,
    /// Client of identity providers. `None` in a process that only uses the database.
    oidc: Option<Arc<cynode_oidc::OidcClient>>,
    /// Engine that drives runs. `None` where a runner polls for runs itself.
    engine: Option<Arc<dyn background::reconciler::WorkflowEngine>>,
    /// TLS of the ports. `None` in a process that serves none.
    tls: Option<Arc<platform::certificates::TlsParts>>,
    /// Embedder of memory search. `None`: searches compare words only.
    embedder: Option<Arc<dyn cynode_memory::embedders::Embedder>>,
}

struct SharedState {
    callers: identity::sessions::CallerBatcher,
    services: identity::service_tokens::ServiceBatcher,
    new_tasks: tasks::NewTaskBatcher,
    epochs: models::inference::EpochBatcher,
    guesses: identity::login_throttle::LoginThrottle,
    credential_use: identity::credential_use::CredentialUseLog,
    program_releases: platform::program_releases::ProgramReleaseLog,
    /// Held while all audit records of tool calls are verified.
    checking: tokio::sync::Mutex<()>,
    /// Held while jobs are placed on nodes.
    placing: tokio::sync::Mutex<()>,
    /// Serializes the storing of tool lists before they take a connection: they wait for one lock of the database.
    listing: tokio::sync::Mutex<()>,
    node_tokens: nodes::NodeTokenCache,
    certificates: platform::certificates::CertificateCache,
    readiness_log: background::health::ReadinessLog,
    /// The newest events, for all event streams.
    feed: tasks::event_feed::EventFeed,
    /// Open streams of accounts and sources.
    streams: platform::stream_limits::StreamLimiter,
}

impl App {
    /// Creates the application. Call it inside the async runtime. The background tasks that it spawns end when the
    /// last clone is dropped.
    pub fn new(pool: Pool, environment: AppEnvironment, policy: LifetimePolicy) -> Self {
        let (commits, _) = watch::channel(0);
        let lanes = TaskTracker::new();
        let tokens = platform::tokens::TokenKeys::default();
        let shared = SharedState {
            callers: identity::sessions::spawn_caller_batcher(&lanes, &pool, &environment, &tokens),
            services: identity::service_tokens::spawn_service_batcher(&lanes, &pool, &tokens),
            new_tasks: tasks::spawn_new_task_batcher(&lanes, &pool),
            epochs: models::inference::spawn_epoch_batcher(&lanes, &pool),
            guesses: identity::login_throttle::LoginThrottle::default(),
            credential_use: identity::credential_use::CredentialUseLog::default(),
            program_releases: platform::program_releases::ProgramReleaseLog::default(),
            readiness_log: background::health::ReadinessLog::default(),
            checking: tokio::sync::Mutex::default(),
            placing: tokio::sync::Mutex::default(),
            listing: tokio::sync::Mutex::default(),
            node_tokens: nodes::NodeTokenCache::default(),
            certificates: platform::certificates::CertificateCache::default(),
            feed: tasks::event_feed::EventFeed::default(),
            streams: platform::stream_limits::StreamLimiter::default(),
        };
        let (hashing, shared) =
            (platform::password_hashing::PasswordHashing::default(), Arc::new(shared));
        let signs = Arc::default();
        let limits = platform::rate_limits::AccountLimiter::new(AccountLimits::default());
        Self {
            pool,
            environment,
            policy,
            commits,
            signs,
            hashing,
            bodies: Arc::default(),
            limits: Arc::new(limits),
            tokens,
            shared,
            gate: None,
            models: None,
            notices: None,
            oidc: None,
            engine: None,
            tls: None,
            embedder: None,
        }
    }

    /// Returns the application with another budget for the bodies of requests.
    #[must_use]
    pub fn with_body_budget(mut self, bodies: platform::body_budget::BodyBudget) -> Self {
        self.bodies = Arc::new(bodies);
        self
    }

    /// Returns the budget for the bodies of requests, which all interfaces of this process share.
    pub fn body_budget(&self) -> &platform::body_budget::BodyBudget {
        &self.bodies
    }

    /// Returns the application with other rate limits of accounts.
    #[must_use]
    pub fn with_account_limits(mut self, limits: AccountLimits) -> Self {
        self.limits = Arc::new(platform::rate_limits::AccountLimiter::new(limits));
        self
    }

    /// Returns the application with the resources of the gateway.
    #[must_use]
    pub fn with_gateway(mut self, parts: GatewayParts) -> Self {
        self.tokens.connect_keys(parts.keys.clone());
        self.gate = Some(Arc::new(parts));
        self
    }

    /// Returns the application with the keys of the installation, for a process without a gateway.
    #[must_use]
    pub fn with_keys(self, keys: platform::keys::InstallationKeys) -> Self {
        self.tokens.connect_keys(keys);
        self
    }

    /// Returns the keys of the installation, or an error in a process without them.
    pub fn installation_keys(&self) -> Result<platform::keys::InstallationKeys, Error> {
        self.tokens.installation_keys().ok_or_else(|| {
            Error::Internal(anyhow::anyhow!("this process was started without a master key"))
        })
    }

    /// Returns the keys under which tokens are stored.
    pub(crate) const fn token_keys(&self) -> &platform::tokens::TokenKeys {
        &self.tokens
    }

    /// Returns the application with access to models.
    #[must_use]
    pub fn with_models(mut self, models: models::inference::InferenceRuntime) -> Self {
        self.models = Some(Arc::new(models));
        self
    }

    /// Returns the application with delivery of notifications.
    #[must_use]
    pub fn with_notifications(mut self, parts: notifications::NotificationParts) -> Self {
        self.notices = Some(Arc::new(parts));
        self
    }

    /// Returns the application with a client of identity providers.
    #[must_use]
    pub fn with_identity_client(mut self, client: cynode_oidc::OidcClient) -> Self {
        self.oidc = Some(Arc::new(client));
        self
    }

    /// Returns the application with an engine that drives runs.
    #[must_use]
    pub fn with_engine(mut self, engine: Arc<dyn background::reconciler::WorkflowEngine>) -> Self {
        self.engine = Some(engine);
        self
    }

    /// Returns the application with the TLS of the ports.
    #[must_use]
    pub fn with_tls(mut self, parts: platform::certificates::TlsParts) -> Self {
        self.tls = Some(Arc::new(parts));
        self
    }

    /// Returns the application with an embedder for memory search.
    #[must_use]
    pub fn with_embedder(mut self, embedder: Arc<dyn cynode_memory::embedders::Embedder>) -> Self {
        self.embedder = Some(embedder);
        self
    }

    /// Returns the TLS of the ports, if this process serves.
    pub fn tls_parts(&self) -> Option<&platform::certificates::TlsParts> {
        self.tls.as_deref()
    }

    /// Returns the log of readiness checks that have failed.
    pub(crate) fn readiness_log(&self) -> &background::health::ReadinessLog {
        &self.shared.readiness_log
    }

    /// Returns the engine that drives runs, if this process dispatches runs.
    pub(crate) fn engine(&self) -> Option<&dyn background::reconciler::WorkflowEngine> {
        self.engine.as_deref()
    }

    /// Returns the delivery of notifications, or an error in a process without it.
    pub fn notification_parts(&self) -> Result<&Arc<notifications::NotificationParts>, Error> {
        self.notices.as_ref().ok_or_else(|| {
            Error::Internal(anyhow::anyhow!("this process was started without a way to people"))
        })
    }

    /// Returns what single sign-on needs. A process without it refuses sessions whose check is due.
    pub fn sign_on_parts(&self) -> Result<identity::identity_providers::SignOnParts, Error> {
        let client = self.oidc.clone().ok_or_else(|| {
            Error::Internal(anyhow::anyhow!("this process was started without a way to providers"))
        })?;
        let keys = self.gateway_parts()?.keys.clone();
        Ok(identity::identity_providers::SignOnParts { client, keys })
    }

    /// Returns the access to models, or an error in a process without it.
    pub(crate) fn inference_runtime(
        &self,
    ) -> Result<&Arc<models::inference::InferenceRuntime>, Error> {
        self.models.as_ref().ok_or_else(|| {
            Error::Internal(anyhow::anyhow!("this process was started without a way to models"))
        })
    }

    /// Returns the resources of the gateway. A process without them rejects every operation that needs them.
    pub fn gateway_parts(&self) -> Result<&Arc<GatewayParts>, Error> {
        self.gate.as_ref().ok_or_else(|| {
            Error::Internal(anyhow::anyhow!("this process was started without a master key"))
        })
    }

    /// Returns a redactor with all currently known secrets, or an error in a process without models.
    pub(crate) async fn redactor(&self) -> Result<Arc<cynode_models::redact::Redactor>, Error> {
        let models = self.inference_runtime()?;
        Ok(models::inference::latest_registry(self, models).await?.redactor.clone())
    }

    /// Returns the budget of a task that is created without one.
    pub(crate) async fn default_task_budget(&self) -> Result<Option<Amount>, Error> {
        match &self.models {
            Some(models) => {
                Ok(models::inference::latest_registry(self, models).await?.task_default)
            }
            // A process without models has no registry.
            None => {
                let mut conn = self.conn().await?;
                platform::settings::default_task_budget(&mut conn).await
            }
        }
    }
}
