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
pub use platform::context::{Ctx, OperationFuture, OperationRequest};
pub use platform::environment::{AppEnvironment, Clock, RandomSource, SystemClock, SystemRandom};
pub use platform::error::Error;
pub use platform::idempotency::{IdempotentAttempt, OperationAnswer};
pub use platform::password_hashing::HashedPassword;

/// What an installation decides about its operations.
#[derive(Clone, Copy, Debug)]
pub struct LifetimePolicy {
    /// How long a login lasts.
    pub session_lifetime: Duration,
    /// How long an answer is kept for a repeat.
    pub idempotency_lifetime: Duration,
    /// How long the first admin's one-time token works.
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

/// The parts of a process that serves the gateway.
pub struct GatewayParts {
    /// The keys of the installation.
    pub keys: platform::keys::InstallationKeys,
    /// The product's own tools.
    pub native: Arc<[cynode_policy::catalogue::McpToolDefinition]>,
    /// The way to servers that people installed.
    pub reach: Arc<dyn tools::tool_servers::ToolServerClient>,
    /// Where the bytes of artifacts are.
    pub objects: Arc<dyn object_store::ObjectStore>,
    /// Where that is on disk: the store itself does not show what was left half written.
    pub objects_directory: std::path::PathBuf,
    /// Where the repositories of projects are.
    pub repositories: delivery::repositories::RepositoryStore,
    /// How long audit records of tool calls are kept.
    pub audit_retention: Duration,
    /// How long transcripts are kept: what agents said and did in their jobs.
    pub transcript_retention: Duration,
}

/// The application: what every operation needs. Cloning it is cheap.
#[derive(Clone)]
pub struct App {
    pool: Pool,
    environment: AppEnvironment,
    policy: LifetimePolicy,
    /// Counts commits, so that event streams of this process need not wait for their next look.
    commits: watch::Sender<u64>,
    /// What this process knows of before others do.
    signs: Arc<platform::wakeups::Wakeups>,
    hashing: platform::password_hashing::PasswordHashing,
    /// Work of several requests done at once.
    shared: Arc<SharedState>,
    /// What the gate needs; a process that only speaks to the database has none.
    gate: Option<Arc<GatewayParts>>,
    /// The way to models; as above.
    models: Option<Arc<models::inference::InferenceRuntime>>,
    /// The way to people; as above.
    notices: Option<Arc<notifications::NotificationParts>>,
    /// What drives runs; none where a runner asks by itself.
    engine: Option<Arc<dyn background::reconciler::WorkflowEngine>>,
}

struct SharedState {
    callers: identity::sessions::CallerBatcher,
    services: identity::service_tokens::ServiceBatcher,
    new_tasks: tasks::NewTaskBatcher,
    epochs: models::inference::EpochBatcher,
    guesses: identity::login_throttle::LoginThrottle,
    /// Held while all records of tool calls are checked.
    checking: tokio::sync::Mutex<()>,
    /// Held while nodes are chosen for jobs.
    placing: tokio::sync::Mutex<()>,
    node_tokens: nodes::NodeTokenCache,
    readiness_log: background::health::ReadinessLog,
}

impl App {
    /// Puts the parts together. It must be called inside the async runtime; what it starts ends when the
    /// last clone is dropped.
    pub fn new(pool: Pool, environment: AppEnvironment, policy: LifetimePolicy) -> Self {
        let (commits, _) = watch::channel(0);
        let lanes = TaskTracker::new();
        let shared = SharedState {
            callers: identity::sessions::spawn_caller_batcher(&lanes, &pool, &environment),
            services: identity::service_tokens::spawn_service_batcher(&lanes, &pool),
            new_tasks: tasks::spawn_new_task_batcher(&lanes, &pool),
            epochs: models::inference::spawn_epoch_batcher(&lanes, &pool),
            guesses: identity::login_throttle::LoginThrottle::default(),
            readiness_log: background::health::ReadinessLog::default(),
            checking: tokio::sync::Mutex::default(),
            placing: tokio::sync::Mutex::default(),
            node_tokens: nodes::NodeTokenCache::default(),
        };
        let (hashing, shared) =
            (platform::password_hashing::PasswordHashing::default(), Arc::new(shared));
        let signs = Arc::default();
        Self {
            pool,
            environment,
            policy,
            commits,
            signs,
            hashing,
            shared,
            gate: None,
            models: None,
            notices: None,
            engine: None,
        }
    }

    /// The same, with what the gate needs.
    #[must_use]
    pub fn with_gateway(mut self, parts: GatewayParts) -> Self {
        self.gate = Some(Arc::new(parts));
        self
    }

    /// The same, with the way to models.
    #[must_use]
    pub fn with_models(mut self, models: models::inference::InferenceRuntime) -> Self {
        self.models = Some(Arc::new(models));
        self
    }

    /// The same, with the way to people.
    #[must_use]
    pub fn with_notifications(mut self, parts: notifications::NotificationParts) -> Self {
        self.notices = Some(Arc::new(parts));
        self
    }

    /// The same, with what drives runs.
    #[must_use]
    pub fn with_engine(mut self, engine: Arc<dyn background::reconciler::WorkflowEngine>) -> Self {
        self.engine = Some(engine);
        self
    }

    /// Which checks of readiness were seen to fail.
    pub(crate) fn readiness_log(&self) -> &background::health::ReadinessLog {
        &self.shared.readiness_log
    }

    /// What drives runs, if this process tells it of them.
    pub(crate) fn engine(&self) -> Option<&dyn background::reconciler::WorkflowEngine> {
        self.engine.as_deref()
    }

    /// The way to people.
    pub fn notification_parts(&self) -> Result<&Arc<notifications::NotificationParts>, Error> {
        self.notices.as_ref().ok_or_else(|| {
            Error::Internal(anyhow::anyhow!("this process was started without a way to people"))
        })
    }

    /// The way to models.
    pub(crate) fn inference_runtime(
        &self,
    ) -> Result<&Arc<models::inference::InferenceRuntime>, Error> {
        self.models.as_ref().ok_or_else(|| {
            Error::Internal(anyhow::anyhow!("this process was started without a way to models"))
        })
    }

    /// What the gate needs. Without it everything that asks for it is refused.
    pub fn gateway_parts(&self) -> Result<&Arc<GatewayParts>, Error> {
        self.gate.as_ref().ok_or_else(|| {
            Error::Internal(anyhow::anyhow!("this process was started without a master key"))
        })
    }

    /// The redactor with every secret that is known now; `None` in a process without models, which holds no secrets of theirs.
    pub(crate) async fn redactor(
        &self,
    ) -> Result<Option<Arc<cynode_models::redact::Redactor>>, Error> {
        match &self.models {
            Some(models) => {
                Ok(Some(models::inference::latest_registry(self, models).await?.redactor.clone()))
            }
            None => Ok(None),
        }
    }

    /// The budget of a task that is created without one.
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
