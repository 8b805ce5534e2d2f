//! One function per operation: permission, rules, the event that tells of it.
//!
//! **Invariant**: every front door calls these and none goes around them. An operation takes a
//! [`Ctx`], asks it for the role it needs before anything else, changes state, and records an event;
//! [`App::mutate`] makes all of that one transaction together with the answer kept for a repeat.
//!
//! An operation is a free function in the module of its aggregate, so that call sites read
//! `tasks::create(ctx, body)`. Time and randomness come from [`Environment`], never from the system.

pub mod agents;
pub mod api_keys;
pub mod approvals;
pub mod artifacts;
pub mod audit;
mod batch;
pub mod bootstrap;
pub mod budgets;
pub mod chat;
mod context;
pub mod delivery;
pub mod egress;
mod environment;
mod error;
pub mod events;
pub mod evidence;
pub mod gate;
pub mod groups;
mod guesses;
pub mod handoffs;
pub mod health;
mod idempotency;
pub mod inference;
pub mod jobs;
pub mod keys;
mod leftovers;
pub mod links;
pub mod maintenance;
pub mod models;
pub mod nodes;
pub mod notices;
mod passwords;
pub mod preferences;
pub mod projects;
pub mod remotes;
pub mod reports;
pub mod repositories;
pub mod schedules;
pub mod servers;
pub mod services;
pub mod sessions;
pub mod settings;
pub mod skills;
pub mod sweep;
pub mod tasks;
pub mod timeline;
pub mod tokens;
pub mod usage;
pub mod users;
pub mod workflow;

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
};

use cynode_core::ids::TaskId;
use cynode_db::Pool;
use time::Duration;
use tokio::sync::{Notify, watch};
use tokio_util::task::TaskTracker;

pub use context::{Ctx, Operation, Request};
pub use cynode_db::authentication::{Bounds, Caller};
pub use environment::{Clock, Environment, Random, SystemClock, SystemRandom};
pub use error::Error;
pub use idempotency::{Answer, Attempt};
pub use passwords::HashedPassword;

/// What an installation decides about its operations.
#[derive(Clone, Copy, Debug)]
pub struct Policy {
    /// How long a login lasts.
    pub session_lifetime: Duration,
    /// How long an answer is kept for a repeat.
    pub idempotency_lifetime: Duration,
    /// How long the first admin's one-time token works.
    pub bootstrap_lifetime: Duration,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            session_lifetime: Duration::hours(12),
            idempotency_lifetime: Duration::hours(24),
            bootstrap_lifetime: Duration::hours(24),
        }
    }
}

/// The application: what every operation needs. Cloning it is cheap.
#[derive(Clone)]
pub struct App {
    pool: Pool,
    environment: Environment,
    policy: Policy,
    /// Counts commits, so that event streams of this process need not wait for their next look.
    commits: watch::Sender<u64>,
    /// What this process knows of before others do.
    signs: Arc<Signs>,
    hashing: passwords::Hashing,
    /// Work of several requests done at once.
    shared: Arc<Shared>,
    /// What the gate needs; a process that only speaks to the database has none.
    gate: Option<Arc<gate::Parts>>,
    /// The way to models; as above.
    models: Option<Arc<inference::Models>>,
    /// The way to people; as above.
    notices: Option<Arc<notices::Parts>>,
}

/// Signs between requests of one process. They only save time: whoever waits for one also looks by itself.
#[derive(Default)]
struct Signs {
    /// A run may have become due.
    due: Notify,
    /// A job was queued.
    queued: Arc<Notify>,
    /// Somebody is to be told something.
    told: Notify,
    /// Tasks that somebody looks at.
    watched: Mutex<HashMap<TaskId, Arc<Notify>>>,
}

struct Shared {
    callers: sessions::Callers,
    services: services::Services,
    new_tasks: tasks::NewTasks,
    epochs: inference::Epochs,
    guesses: guesses::Guesses,
    /// Held while all records of tool calls are checked.
    checking: tokio::sync::Mutex<()>,
}

impl App {
    /// Puts the parts together. It must be called inside the async runtime; what it starts ends when the
    /// last clone is dropped.
    pub fn new(pool: Pool, environment: Environment, policy: Policy) -> Self {
        let (commits, _) = watch::channel(0);
        let lanes = TaskTracker::new();
        let shared = Shared {
            callers: sessions::callers(&lanes, &pool, &environment),
            services: services::services(&lanes, &pool),
            new_tasks: tasks::new_tasks(&lanes, &pool),
            epochs: inference::epochs(&lanes, &pool),
            guesses: guesses::Guesses::default(),
            checking: tokio::sync::Mutex::default(),
        };
        let (hashing, shared) = (passwords::Hashing::default(), Arc::new(shared));
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
        }
    }

    /// The same, with what the gate needs.
    #[must_use]
    pub fn with_gate(mut self, parts: gate::Parts) -> Self {
        self.gate = Some(Arc::new(parts));
        self
    }

    /// The same, with the way to models.
    #[must_use]
    pub fn with_models(mut self, models: inference::Models) -> Self {
        self.models = Some(Arc::new(models));
        self
    }

    /// The same, with the way to people.
    #[must_use]
    pub fn with_notices(mut self, parts: notices::Parts) -> Self {
        self.notices = Some(Arc::new(parts));
        self
    }

    /// The way to people.
    pub fn notices(&self) -> Result<&Arc<notices::Parts>, Error> {
        self.notices.as_ref().ok_or_else(|| {
            Error::Internal(anyhow::anyhow!("this process was started without a way to people"))
        })
    }

    /// The way to models.
    pub(crate) fn models(&self) -> Result<&Arc<inference::Models>, Error> {
        self.models.as_ref().ok_or_else(|| {
            Error::Internal(anyhow::anyhow!("this process was started without a way to models"))
        })
    }

    /// What the gate needs. Without it everything that asks for it is refused.
    pub fn gate(&self) -> Result<&Arc<gate::Parts>, Error> {
        self.gate.as_ref().ok_or_else(|| {
            Error::Internal(anyhow::anyhow!("this process was started without a master key"))
        })
    }
}
