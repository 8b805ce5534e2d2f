//! What the gate knows, and how old that knowledge is.
//!
//! A call is decided from memory only if the database has confirmed that memory less than [`FRESH`] ago, counted from the
//! moment the question was sent. A revoked token or a tool that was switched off is therefore refused by every replica
//! within that time, whatever the load: a replica that could not ask in time asks before it decides, and one that cannot ask
//! decides nothing. Calls under way are looked at with every change.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
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
use cynode_core::{causes::told, ids::ServerId, sync::lock};
use cynode_policy::{
    agents::Agent,
    catalogue::Tool,
    gate::{Gate, open_to},
    reasons::Reason,
};
use tokio::sync::{Mutex as AsyncMutex, Notify};
use tokio_util::sync::CancellationToken;

use crate::{reach, upstream::Server};

/// How old knowledge may be.
pub const FRESH: Duration = Duration::from_millis(80);

/// How often it is confirmed while calls come in.
const EVERY: Duration = Duration::from_millis(25);

/// How long a token is kept warm after its last use.
const WARM: Duration = Duration::from_secs(2);

/// How often a call asks before it gives up.
const ATTEMPTS: usize = 5;

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
    last_used: Mutex<Instant>,
    idle: AtomicBool,
    used: Notify,
}

/// The gate, and when it was confirmed.
#[derive(Clone)]
pub struct State {
    /// The gate.
    pub loaded: Loaded,
    /// The servers of the gate, as the way to them wants them.
    pub(crate) servers: Arc<HashMap<ServerId, Server>>,
    confirmed: Instant,
    /// What is shown to each agent, made once.
    pub(crate) lists: Lists,
}

impl State {
    fn new(loaded: Loaded, confirmed: Instant) -> Self {
        let servers = loaded.servers.iter().map(|(id, server)| (*id, reach::server(server)));
        Self { servers: Arc::new(servers.collect()), loaded, confirmed, lists: Lists::default() }
    }
}

/// What is shown to each agent, by its token and whether the person it works for may do more than read.
pub(crate) type Lists = Arc<Mutex<HashMap<(uuid::Uuid, bool), Arc<str>>>>;

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
    /// The gate by which it was last looked at.
    epoch: i64,
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
    /// Whether the call is still permitted, as the database says now or said a moment ago. It is asked last, when everything
    /// that takes time before a call has been done.
    pub async fn still_permitted(&self) -> Result<(), Reason> {
        let (shown, agent, tool, epoch) = {
            let running = lock(&self.keeper.running);
            let call = running.get(&self.number).ok_or(Reason::Stale)?;
            (call.shown, call.agent.clone(), call.tool.clone(), call.epoch)
        };
        let known = self.keeper.agent(shown).await?;
        let state = self.keeper.state().await?;
        if state.loaded.epoch == epoch && known.agent == agent && !self.ended.is_cancelled() {
            return Ok(());
        }
        still_open(&state.loaded.gate, &known.agent, &tool)
    }

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

impl Keeper {
    /// Reads the gate for the first time.
    pub async fn open(app: App) -> Result<Arc<Self>, Error> {
        let confirmed = Instant::now();
        let loaded = gate::load(&app).await?;
        let state = State::new(loaded, confirmed);
        Ok(Arc::new(Self {
            app,
            state: ArcSwap::from_pointee(state),
            tokens: Mutex::default(),
            running: Mutex::default(),
            next: AtomicU64::new(0),
            asking: AsyncMutex::new(()),
            last_used: Mutex::new(confirmed),
            idle: AtomicBool::new(false),
            used: Notify::new(),
        }))
    }

    /// Confirms what is known, over and over while calls come in, until it is told to stop.
    pub async fn run(self: Arc<Self>, stop: CancellationToken) {
        let mut turn = tokio::time::interval(EVERY);
        turn.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut failing = false;
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                _ = turn.tick() => {}
            }
            // Said before it is looked: whoever calls in between wakes us again.
            self.idle.store(true, Ordering::SeqCst);
            if lock(&self.last_used).elapsed() > WARM && lock(&self.running).is_empty() {
                // Nobody calls: the next call asks for itself.
                tokio::select! {
                    () = stop.cancelled() => return,
                    () = self.used.notified() => {}
                }
            }
            self.idle.store(false, Ordering::SeqCst);
            let confirmed = self.confirm(&[]).await;
            if let (Err(error), false) = (&confirmed, failing) {
                let error = told(error);
                tracing::warn!(
                    event = "gate.unconfirmed",
                    error,
                    "what the gate knows cannot be confirmed: calls are refused until it can"
                );
            }
            failing = confirmed.is_err();
        }
    }

    /// Notes that somebody calls.
    fn touch(&self) {
        *lock(&self.last_used) = Instant::now();
        if self.idle.swap(false, Ordering::SeqCst) {
            self.used.notify_one();
        }
    }

    /// The gate, confirmed.
    pub async fn state(&self) -> Result<Arc<State>, Reason> {
        let state = self.state.load_full();
        if state.confirmed.elapsed() < FRESH {
            return Ok(state);
        }
        // Asking may take longer than what was learned stays good, as when much has changed: then it is asked again.
        for _ in 0..ATTEMPTS {
            self.ask(&[]).await?;
            let state = self.state.load_full();
            if state.confirmed.elapsed() < FRESH {
                return Ok(state);
            }
        }
        Err(Reason::Stale)
    }

    /// Who is behind a token, confirmed.
    pub async fn agent(&self, shown: Presented) -> Result<Known, Reason> {
        self.touch();
        let known = match self.remembered(shown) {
            Some(known) => known,
            None => self.asked(shown).await?,
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

    async fn asked(&self, shown: Presented) -> Result<Option<Known>, Reason> {
        for _ in 0..ATTEMPTS {
            self.ask(&[shown]).await?;
            if let Some(known) = self.remembered(shown) {
                return Ok(known);
            }
        }
        Err(Reason::Stale)
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
            let warm = |cached: &Cached| cached.used.elapsed() < WARM && cached.known.is_some();
            if tokens.len() > MOST_TOKENS {
                tokens.retain(|_, cached| warm(cached));
            }
            // What nobody was given is not asked about again unless it is shown again.
            tokens.iter().filter(|(_, cached)| warm(cached)).map(|(shown, _)| *shown).collect()
        };
        // A call under way keeps its token in sight however long it takes.
        shown.extend(lock(&self.running).values().map(|running| running.shown));
        shown.extend_from_slice(more);
        shown.sort_unstable_by_key(|shown| shown.hash);
        shown.dedup();
        let epoch = gate::epoch(&self.app).await?;
        let found =
            if shown.is_empty() { Vec::new() } else { agents::find(&self.app, &shown).await? };
        self.learn(asked, &shown, found);
        if self.state.load().loaded.epoch == epoch {
            self.state.rcu(|state| {
                let confirmed = asked.max(state.confirmed);
                Arc::new(State { confirmed, ..State::clone(state) })
            });
        } else {
            self.load_anew().await?;
        }
        self.look_at_running();
        Ok(())
    }

    async fn load_anew(&self) -> Result<(), Error> {
        let asked = Instant::now();
        let fresh = State::new(gate::load(&self.app).await?, asked);
        let before = self.state.rcu(|state| {
            if fresh.loaded.epoch < state.loaded.epoch {
                // Somebody else has loaded a newer one meanwhile.
                return state.clone();
            }
            Arc::new(fresh.clone())
        });
        // What was removed or switched off is not kept running here, wherever that was done.
        let reach = &self.app.gate()?.reach;
        for server in before.servers.keys() {
            if !fresh.servers.contains_key(server) {
                reach.forget(*server);
            }
        }
        Ok(())
    }

    fn learn(&self, asked: Instant, shown: &[Presented], found: Vec<(Presented, Known)>) {
        let mut found: HashMap<_, _> = found.into_iter().collect();
        let mut tokens = lock(&self.tokens);
        for shown in shown {
            let known = found.remove(shown);
            let held = tokens.get(shown);
            // An answer that took long must not hide one that was asked for later.
            if held.is_none_or(|cached| cached.confirmed <= asked) {
                let used = held.map_or(asked, |cached| cached.used);
                tokens.insert(*shown, Cached { known, confirmed: asked, used });
            }
        }
    }

    /// Ends the calls under way that would not be allowed any more.
    fn look_at_running(&self) {
        let state = self.state.load();
        let (epoch, gate) = (state.loaded.epoch, &state.loaded.gate);
        let tokens = lock(&self.tokens);
        let mut running = lock(&self.running);
        for call in running.values_mut() {
            let forbidden = match tokens.get(&call.shown).and_then(|cached| cached.known.as_ref()) {
                None => Some(Reason::TokenRevoked),
                Some(known) if known.state == TokenState::Revoked => Some(Reason::TokenRevoked),
                Some(known) if known.state == TokenState::Expired => Some(Reason::TokenExpired),
                // Nothing else has changed since it was last looked at.
                Some(known) if call.epoch == epoch && known.agent == call.agent => None,
                Some(known) => {
                    call.agent = known.agent.clone();
                    still_open(gate, &call.agent, &call.tool).err()
                }
            };
            call.epoch = epoch;
            if let Some(reason) = forbidden {
                *lock(&call.reason) = Some(reason);
                call.ended.cancel();
            }
        }
    }

    /// Keeps a call in sight until what is returned is dropped.
    pub fn watch(
        self: &Arc<Self>,
        shown: Presented,
        agent: Arc<Agent>,
        tool: Arc<Tool>,
        epoch: i64,
    ) -> Watch {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let (ended, reason) = (CancellationToken::new(), Arc::new(Mutex::new(None)));
        let running =
            Running { shown, agent, tool, epoch, ended: ended.clone(), reason: reason.clone() };
        lock(&self.running).insert(number, running);
        Watch { keeper: self.clone(), number, ended, reason }
    }
}

/// Whether a call of that very tool would still be open to the agent.
fn still_open(gate: &Gate, agent: &Agent, tool: &Tool) -> Result<(), Reason> {
    let current = gate.catalogue.get(&tool.definition.name).ok_or(Reason::UnknownTool)?;
    if current.digest != tool.digest {
        return Err(Reason::DefinitionChanged);
    }
    open_to(agent, gate, current)
}
