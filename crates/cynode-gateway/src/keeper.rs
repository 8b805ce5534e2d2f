//! What the gate knows, and how old that knowledge is.
//!
//! A call is decided from memory only if the database has confirmed that memory less than [`FRESH`] ago, counted from the
//! moment the question was sent. A revoked token or a tool that was switched off is therefore refused by every replica
//! within that time, whatever the load: a replica that could not ask in time asks before it decides, and one that cannot ask
//! decides nothing. Calls under way are looked at with every change.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use arc_swap::ArcSwap;
use cynode_app::{
    App, Error,
    agents::{self, Known, TokenState},
    gate::{self, Loaded},
    tokens::Presented,
};
use cynode_policy::{agents::Agent, catalogue::Tool, gate::open_to, reasons::Reason};
use tokio::sync::{Mutex as AsyncMutex, Notify};
use tokio_util::sync::CancellationToken;

/// How old knowledge may be.
pub const FRESH: Duration = Duration::from_millis(80);

/// How often it is confirmed while calls come in.
const EVERY: Duration = Duration::from_millis(25);

/// How long a token is kept warm after its last use.
const WARM: Duration = Duration::from_secs(2);

/// Most tokens that are kept at all.
const MOST_TOKENS: usize = 50_000;

/// Knows tokens and the gate, and how old that knowledge is.
pub struct Keeper {
    app: App,
    state: ArcSwap<State>,
    tokens: Mutex<HashMap<Presented, Cached>>,
    running: Mutex<HashMap<u64, Running>>,
    next: AtomicU64,
    asking: AsyncMutex<()>,
    used: Notify,
}

/// The gate, and when it was confirmed.
pub struct State {
    /// The gate.
    pub loaded: Loaded,
    confirmed: Instant,
    /// What is shown to each agent, made once.
    pub(crate) lists: Mutex<HashMap<uuid::Uuid, Arc<str>>>,
}

#[derive(Clone)]
struct Cached {
    known: Option<Known>,
    confirmed: Instant,
    used: Instant,
}

struct Running {
    shown: Presented,
    agent: Arc<Agent>,
    tool: Arc<Tool>,
    ended: CancellationToken,
    reason: Arc<Mutex<Option<Reason>>>,
}

/// A call under way. While it is held, a change that forbids the call ends it.
pub struct Watch {
    keeper: Arc<Keeper>,
    number: u64,
    ended: CancellationToken,
    reason: Arc<Mutex<Option<Reason>>>,
}

impl Watch {
    /// Ends when the call is forbidden, and says why.
    pub async fn forbidden(&self) -> Reason {
        self.ended.cancelled().await;
        lock(&self.reason).clone().unwrap_or(Reason::TokenRevoked)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        lock(&self.keeper.running).remove(&self.number);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // What is guarded is only ever replaced whole, so a panic elsewhere leaves it usable.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Keeper {
    /// Reads the gate for the first time.
    pub async fn open(app: App) -> Result<Arc<Self>, Error> {
        let confirmed = Instant::now();
        let loaded = gate::load(&app).await?;
        let state = State { loaded, confirmed, lists: Mutex::default() };
        Ok(Arc::new(Self {
            app,
            state: ArcSwap::from_pointee(state),
            tokens: Mutex::default(),
            running: Mutex::default(),
            next: AtomicU64::new(0),
            asking: AsyncMutex::new(()),
            used: Notify::new(),
        }))
    }

    /// Confirms what is known, over and over while calls come in, until it is told to stop.
    pub async fn run(self: Arc<Self>, stop: CancellationToken) {
        let mut turn = tokio::time::interval(EVERY);
        turn.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut last_used = Instant::now();
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                () = self.used.notified() => last_used = Instant::now(),
                _ = turn.tick() => {
                    if last_used.elapsed() > WARM && lock(&self.running).is_empty() {
                        // Nobody calls: the next call asks for itself.
                        tokio::select! {
                            () = stop.cancelled() => return,
                            () = self.used.notified() => last_used = Instant::now(),
                        }
                    }
                    if let Err(error) = self.confirm(&[]).await {
                        let error = told(&error);
                        tracing::warn!(event = "gate.unconfirmed", error, "what the gate knows could not be confirmed");
                    }
                }
            }
        }
    }

    /// The gate, confirmed.
    pub async fn state(&self) -> Result<Arc<State>, Reason> {
        let state = self.state.load_full();
        if state.confirmed.elapsed() < FRESH {
            return Ok(state);
        }
        self.ask(&[]).await?;
        Ok(self.state.load_full())
    }

    /// Who is behind a token, confirmed.
    pub async fn agent(&self, shown: Presented) -> Result<Known, Reason> {
        self.used.notify_one();
        let known = match self.remembered(shown) {
            Some(known) => known,
            None => {
                self.ask(&[shown]).await?;
                lock(&self.tokens).get(&shown).and_then(|cached| cached.known.clone())
            }
        };
        let known = known.ok_or(Reason::NoToken)?;
        let now = self.app.environment().now();
        match known.state {
            TokenState::Revoked => Err(Reason::TokenRevoked),
            TokenState::Expired => Err(Reason::TokenExpired),
            TokenState::Good if known.agent.expires_at.is_some_and(|at| at <= now) => {
                Err(Reason::TokenExpired)
            }
            TokenState::Good => Ok(known),
        }
    }

    /// Who is behind a token that does not work, for the record.
    pub fn facts(&self, shown: Presented) -> Option<Known> {
        lock(&self.tokens).get(&shown).and_then(|cached| cached.known.clone())
    }

    /// What was confirmed lately about a token, if anything was.
    #[expect(
        clippy::option_option,
        reason = "not asked lately, and asked and unknown, are two things"
    )]
    fn remembered(&self, shown: Presented) -> Option<Option<Known>> {
        let mut tokens = lock(&self.tokens);
        let cached = tokens.get_mut(&shown)?;
        cached.used = Instant::now();
        (cached.confirmed.elapsed() < FRESH).then(|| cached.known.clone())
    }

    /// Asks the database on a call's behalf. Calls that wait for the same question share its answer.
    async fn ask(&self, shown: &[Presented]) -> Result<(), Reason> {
        let came = Instant::now();
        let _one = self.asking.lock().await;
        let answered = {
            let tokens = lock(&self.tokens);
            let since = |confirmed: Instant| confirmed >= came || confirmed.elapsed() < FRESH / 2;
            since(self.state.load().confirmed)
                && shown
                    .iter()
                    .all(|shown| tokens.get(shown).is_some_and(|cached| since(cached.confirmed)))
        };
        if answered {
            return Ok(());
        }
        self.confirm(shown).await.map_err(|error| {
            let error = told(&error);
            tracing::warn!(
                event = "gate.stale",
                error,
                "a call was refused because the gate could not ask the database"
            );
            Reason::Stale
        })
    }

    /// Asks the database about the gate, about `more`, and about every token that is in use.
    async fn confirm(&self, more: &[Presented]) -> Result<(), Error> {
        let asked = Instant::now();
        let mut shown: Vec<Presented> = {
            let mut tokens = lock(&self.tokens);
            if tokens.len() > MOST_TOKENS {
                tokens.retain(|_, cached| cached.used.elapsed() < WARM);
            }
            let warm = tokens.iter().filter(|(_, cached)| cached.used.elapsed() < WARM);
            warm.map(|(shown, _)| *shown).collect()
        };
        // A call under way keeps its token in sight however long it takes.
        shown.extend(lock(&self.running).values().map(|running| running.shown));
        shown.extend_from_slice(more);
        shown.sort_unstable_by_key(|shown| shown.hash);
        shown.dedup();
        let epoch = gate::epoch(&self.app).await?;
        let found =
            if shown.is_empty() { Vec::new() } else { agents::find(&self.app, &shown).await? };
        let state = self.state.load();
        let loaded =
            if state.loaded.epoch == epoch { None } else { Some(gate::load(&self.app).await?) };
        self.learn(asked, &shown, found, loaded.as_ref());
        self.look_at_running();
        Ok(())
    }

    fn learn(
        &self,
        asked: Instant,
        shown: &[Presented],
        found: Vec<(Presented, Known)>,
        loaded: Option<&Loaded>,
    ) {
        let mut found: HashMap<_, _> = found.into_iter().collect();
        let mut tokens = lock(&self.tokens);
        for shown in shown {
            let known = found.remove(shown);
            let used = tokens.get(shown).map_or(asked, |cached| cached.used);
            tokens.insert(*shown, Cached { known, confirmed: asked, used });
        }
        drop(tokens);
        self.state.rcu(|state| {
            let newer = match loaded {
                // Of two that loaded at once the newer one stays.
                Some(loaded) if loaded.epoch > state.loaded.epoch => {
                    return Arc::new(State {
                        loaded: loaded.clone(),
                        confirmed: asked,
                        lists: Mutex::default(),
                    });
                }
                Some(_) | None => state,
            };
            let lists = Mutex::new(lock(&newer.lists).clone());
            Arc::new(State {
                loaded: newer.loaded.clone(),
                confirmed: asked.max(newer.confirmed),
                lists,
            })
        });
    }

    /// Ends the calls under way that would not be allowed any more.
    fn look_at_running(&self) {
        let state = self.state.load();
        let tokens = lock(&self.tokens);
        let running = lock(&self.running);
        for call in running.values() {
            let forbidden = match tokens.get(&call.shown).and_then(|cached| cached.known.as_ref()) {
                None => Some(Reason::TokenRevoked),
                Some(known) if known.state == TokenState::Revoked => Some(Reason::TokenRevoked),
                Some(known) if known.state == TokenState::Expired => Some(Reason::TokenExpired),
                Some(_) => {
                    let tool = state.loaded.gate.catalogue.get(&call.tool.definition.name);
                    match tool {
                        Some(tool) => open_to(&call.agent, &state.loaded.gate, tool).err(),
                        None => Some(Reason::UnknownTool),
                    }
                }
            };
            if let Some(reason) = forbidden {
                *lock(&call.reason) = Some(reason);
                call.ended.cancel();
            }
        }
    }

    /// Keeps a call in sight until what is returned is dropped.
    pub fn watch(self: &Arc<Self>, shown: Presented, agent: Arc<Agent>, tool: Arc<Tool>) -> Watch {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let (ended, reason) = (CancellationToken::new(), Arc::new(Mutex::new(None)));
        let running = Running { shown, agent, tool, ended: ended.clone(), reason: reason.clone() };
        lock(&self.running).insert(number, running);
        Watch { keeper: self.clone(), number, ended, reason }
    }
}

/// The error with its causes, for the log.
fn told(error: &Error) -> String {
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}
