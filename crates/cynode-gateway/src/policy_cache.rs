//! Policy cache: the policy snapshot and the tokens that calls are decided by, and how old they are.
//!
//! A call is decided from the cache only if the database confirmed it less than [`MAX_STALENESS`] ago, counted from the
//! moment the query was sent. A revoked token or a disabled tool is therefore invalidated in every replica within that
//! time, whatever the load. A replica that could not refresh in time refreshes before it decides, and one that cannot
//! refresh refuses. Calls in flight are checked with every change. An idle gateway asks nothing. A call that waits for
//! work checks its permission again before it takes anything.

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
    platform::tokens::{PresentedToken, TokenKind},
    tools::{
        agent_tokens::{self, ResolvedAgentToken, TokenState},
        catalogue::{self, GatewaySnapshot},
    },
};
use cynode_core::{error_chain::format_error_chain, ids::ServerId, sync::lock_unpoisoned};
use cynode_policy::{
    agents::AgentIdentity,
    catalogue::CatalogueTool,
    decision::{PolicySnapshot, check_tool_access},
    reasons::RefusalReason,
};
use tokio::sync::{Mutex as AsyncMutex, Notify};
use tokio_util::sync::CancellationToken;

use crate::{tool_server_adapter, tools, upstream::UpstreamServer};

/// How old knowledge may be.
pub const MAX_STALENESS: Duration = Duration::from_millis(80);

/// How often it is confirmed while calls come in.
const REFRESH_INTERVAL: Duration = Duration::from_millis(25);

/// How long a token is kept warm after its last use.
const TOKEN_IDLE_TTL: Duration = Duration::from_secs(2);

/// How often a call asks before it gives up.
const MAX_REFRESH_ATTEMPTS: usize = 5;

/// Most tokens that are kept at all.
const MAX_CACHED_TOKENS: usize = 50_000;

/// Knows tokens and the gate, and how old that knowledge is.
pub struct PolicyCache {
    app: App,
    state: ArcSwap<CachedPolicy>,
    tokens: Mutex<HashMap<PresentedToken, CachedToken>>,
    running: Mutex<HashMap<u64, RunningCall>>,
    next: AtomicU64,
    asking: AsyncMutex<()>,
    last_used: Mutex<Instant>,
    idle: AtomicBool,
    used: Notify,
}

/// The gate, and when it was confirmed.
#[derive(Clone)]
pub struct CachedPolicy {
    /// The gate.
    pub loaded: GatewaySnapshot,
    /// The servers of the gate, as the way to them wants them.
    pub(crate) servers: Arc<HashMap<ServerId, UpstreamServer>>,
    confirmed: Instant,
    /// What is shown to each agent, made once.
    pub(crate) lists: ToolListCache,
}

impl CachedPolicy {
    fn new(loaded: GatewaySnapshot, confirmed: Instant) -> Self {
        let servers = loaded
            .servers
            .iter()
            .map(|(id, server)| (*id, tool_server_adapter::to_upstream_server(server)));
        Self {
            servers: Arc::new(servers.collect()),
            loaded,
            confirmed,
            lists: ToolListCache::default(),
        }
    }
}

/// What is shown to each agent, by its token and whether the person it works for may do more than read.
pub(crate) type ToolListCache = Arc<Mutex<HashMap<(uuid::Uuid, bool), Arc<str>>>>;

#[derive(Clone)]
struct CachedToken {
    known: Option<ResolvedAgentToken>,
    confirmed: Instant,
    used: Instant,
}

struct RunningCall {
    shown: PresentedToken,
    agent: Arc<AgentIdentity>,
    tool: Arc<CatalogueTool>,
    /// The gate by which it was last looked at.
    epoch: i64,
    ended: CancellationToken,
    reason: Arc<Mutex<Option<RefusalReason>>>,
    /// Whether it asks by itself before it does anything.
    waits: bool,
}

/// A call under way. While it is held, a change that forbids the call ends it.
pub struct CallWatch {
    permit: CallPermit,
    ended: CancellationToken,
    reason: Arc<Mutex<Option<RefusalReason>>>,
}

/// Asks about a call under way.
#[derive(Clone)]
pub struct CallPermit {
    keeper: Arc<PolicyCache>,
    number: u64,
}

impl CallPermit {
    /// Whether the call is still permitted, as the database says now or said a moment ago. It is asked last, when everything
    /// that takes time before a call has been done.
    pub async fn check_permitted(&self) -> Result<(), RefusalReason> {
        let (shown, agent, tool, epoch, ended) = {
            let running = lock_unpoisoned(&self.keeper.running);
            let call = running.get(&self.number).ok_or(RefusalReason::StalePolicy)?;
            let ended = call.ended.clone();
            (call.shown, call.agent.clone(), call.tool.clone(), call.epoch, ended)
        };
        let known = self.keeper.resolve_token(shown).await?;
        let state = self.keeper.fresh_policy().await?;
        if state.loaded.epoch == epoch && known.agent == agent && !ended.is_cancelled() {
            return Ok(());
        }
        check_tool_open(&state.loaded.gate, &known.agent, &tool)
    }
}

impl CallWatch {
    /// Asks about the call from elsewhere.
    pub const fn call_permit(&self) -> &CallPermit {
        &self.permit
    }

    /// Whether the call is still permitted.
    pub async fn check_permitted(&self) -> Result<(), RefusalReason> {
        self.permit.check_permitted().await
    }

    /// Ends when the call is forbidden, and says why.
    pub async fn wait_forbidden(&self) -> RefusalReason {
        self.ended.cancelled().await;
        lock_unpoisoned(&self.reason).clone().unwrap_or(RefusalReason::TokenRevoked)
    }
}

impl Drop for CallWatch {
    fn drop(&mut self) {
        lock_unpoisoned(&self.permit.keeper.running).remove(&self.permit.number);
    }
}

impl PolicyCache {
    /// Reads the gate for the first time.
    pub async fn load_initial(app: App) -> Result<Arc<Self>, Error> {
        let confirmed = Instant::now();
        let loaded = catalogue::load_gateway_snapshot(&app).await?;
        let state = CachedPolicy::new(loaded, confirmed);
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
    pub async fn run_refresh_loop(self: Arc<Self>, stop: CancellationToken) {
        let mut turn = tokio::time::interval(REFRESH_INTERVAL);
        turn.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut failing = false;
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                _ = turn.tick() => {}
            }
            // Said before it is looked: whoever calls in between wakes us again.
            self.idle.store(true, Ordering::SeqCst);
            let waits = lock_unpoisoned(&self.running).values().all(|call| call.waits);
            if waits && lock_unpoisoned(&self.last_used).elapsed() > TOKEN_IDLE_TTL {
                // Nobody calls: the next call asks for itself.
                tokio::select! {
                    () = stop.cancelled() => return,
                    () = self.used.notified() => {}
                }
            }
            self.idle.store(false, Ordering::SeqCst);
            let confirmed = self.refresh_policy(&[]).await;
            if let (Err(error), false) = (&confirmed, failing) {
                let error = format_error_chain(error);
                tracing::warn!(
                    event = "policy.refresh_failed",
                    error,
                    "the policy snapshot cannot be refreshed: calls are refused until it can"
                );
            }
            failing = confirmed.is_err();
        }
    }

    /// Notes that an agent calls, and will again soon. Programs that wait for work call seldom: each of their calls asks for
    /// itself.
    fn record_use(&self, shown: PresentedToken) {
        if shown.kind == TokenKind::Host {
            return;
        }
        *lock_unpoisoned(&self.last_used) = Instant::now();
        self.wake_refresh();
    }

    /// Sees to it that what is known is confirmed over and over.
    fn wake_refresh(&self) {
        if self.idle.swap(false, Ordering::SeqCst) {
            self.used.notify_one();
        }
    }

    /// The gate, confirmed.
    pub async fn fresh_policy(&self) -> Result<Arc<CachedPolicy>, RefusalReason> {
        let state = self.state.load_full();
        if state.confirmed.elapsed() < MAX_STALENESS {
            return Ok(state);
        }
        // Asking may take longer than what was learned stays good, as when much has changed: then it is asked again.
        for _ in 0..MAX_REFRESH_ATTEMPTS {
            self.refresh_for_call(&[]).await?;
            let state = self.state.load_full();
            if state.confirmed.elapsed() < MAX_STALENESS {
                return Ok(state);
            }
        }
        Err(RefusalReason::StalePolicy)
    }

    /// Who is behind a token, confirmed.
    pub async fn resolve_token(
        &self,
        shown: PresentedToken,
    ) -> Result<ResolvedAgentToken, RefusalReason> {
        self.record_use(shown);
        let known = match self.cached_token(shown) {
            Some(known) => known,
            None => self.fetch_token(shown).await?,
        };
        let known = known.ok_or(RefusalReason::InvalidToken)?;
        let now = self.app.environment().now();
        match known.state {
            TokenState::Revoked => Err(RefusalReason::TokenRevoked),
            TokenState::Expired => Err(RefusalReason::TokenExpired),
            TokenState::Good if known.agent.expires_at.is_some_and(|at| at <= now) => {
                Err(RefusalReason::TokenExpired)
            }
            TokenState::Good => Ok(known),
        }
    }

    async fn fetch_token(
        &self,
        shown: PresentedToken,
    ) -> Result<Option<ResolvedAgentToken>, RefusalReason> {
        for _ in 0..MAX_REFRESH_ATTEMPTS {
            self.refresh_for_call(&[shown]).await?;
            if let Some(known) = self.cached_token(shown) {
                return Ok(known);
            }
        }
        Err(RefusalReason::StalePolicy)
    }

    /// Who is behind a token that does not work, for the record.
    pub fn last_known_agent(&self, shown: PresentedToken) -> Option<ResolvedAgentToken> {
        lock_unpoisoned(&self.tokens).get(&shown).and_then(|cached| cached.known.clone())
    }

    /// What was confirmed lately about a token, if anything was.
    #[expect(
        clippy::option_option,
        reason = "not asked lately, and asked and unknown, are two things"
    )]
    fn cached_token(&self, shown: PresentedToken) -> Option<Option<ResolvedAgentToken>> {
        let mut tokens = lock_unpoisoned(&self.tokens);
        let cached = tokens.get_mut(&shown)?;
        cached.used = Instant::now();
        (cached.confirmed.elapsed() < MAX_STALENESS).then(|| cached.known.clone())
    }

    /// Asks the database on a call's behalf. Calls that wait for the same question share its answer.
    async fn refresh_for_call(&self, shown: &[PresentedToken]) -> Result<(), RefusalReason> {
        let came = Instant::now();
        let _one = self.asking.lock().await;
        let answered = {
            let tokens = lock_unpoisoned(&self.tokens);
            let since =
                |confirmed: Instant| confirmed >= came || confirmed.elapsed() < MAX_STALENESS / 2;
            since(self.state.load().confirmed)
                && shown
                    .iter()
                    .all(|shown| tokens.get(shown).is_some_and(|cached| since(cached.confirmed)))
        };
        if answered {
            return Ok(());
        }
        self.refresh_policy(shown).await.map_err(|error| {
            let error = format_error_chain(&error);
            tracing::warn!(
                event = "policy.stale",
                error,
                "a call was refused because the policy snapshot is stale and the database cannot be read"
            );
            RefusalReason::StalePolicy
        })
    }

    /// Asks the database about the gate, about `more`, and about every token that is in use.
    async fn refresh_policy(&self, more: &[PresentedToken]) -> Result<(), Error> {
        let asked = Instant::now();
        let mut shown: Vec<PresentedToken> = {
            let mut tokens = lock_unpoisoned(&self.tokens);
            let warm = |cached: &CachedToken| {
                cached.used.elapsed() < TOKEN_IDLE_TTL && cached.known.is_some()
            };
            if tokens.len() > MAX_CACHED_TOKENS {
                tokens.retain(|_, cached| warm(cached));
            }
            // What nobody was given is not asked about again unless it is shown again.
            tokens.iter().filter(|(_, cached)| warm(cached)).map(|(shown, _)| *shown).collect()
        };
        // A call under way keeps its token in sight however long it takes.
        shown.extend(lock_unpoisoned(&self.running).values().map(|running| running.shown));
        shown.extend_from_slice(more);
        shown.sort_unstable_by_key(|shown| shown.hash);
        shown.dedup();
        let epoch = catalogue::load_policy_epoch(&self.app).await?;
        let found = if shown.is_empty() {
            Vec::new()
        } else {
            agent_tokens::resolve_agent_tokens(&self.app, &shown).await?
        };
        self.refresh_tokens(asked, &shown, found);
        if self.state.load().loaded.epoch == epoch {
            self.state.rcu(|state| {
                let confirmed = asked.max(state.confirmed);
                Arc::new(CachedPolicy { confirmed, ..CachedPolicy::clone(state) })
            });
        } else {
            self.reload_policy().await?;
        }
        self.revoke_forbidden_calls();
        Ok(())
    }

    async fn reload_policy(&self) -> Result<(), Error> {
        let asked = Instant::now();
        let fresh = CachedPolicy::new(catalogue::load_gateway_snapshot(&self.app).await?, asked);
        let before = self.state.rcu(|state| {
            if fresh.loaded.epoch < state.loaded.epoch {
                // Somebody else has loaded a newer one meanwhile.
                return state.clone();
            }
            Arc::new(fresh.clone())
        });
        // What was removed or switched off is not kept running here, wherever that was done.
        let reach = &self.app.gateway_parts()?.reach;
        for server in before.servers.keys() {
            if !fresh.servers.contains_key(server) {
                reach.close_server(*server);
            }
        }
        Ok(())
    }

    fn refresh_tokens(
        &self,
        asked: Instant,
        shown: &[PresentedToken],
        found: Vec<(PresentedToken, ResolvedAgentToken)>,
    ) {
        let mut found: HashMap<_, _> = found.into_iter().collect();
        let mut tokens = lock_unpoisoned(&self.tokens);
        for shown in shown {
            let known = found.remove(shown);
            let held = tokens.get(shown);
            // An answer that took long must not hide one that was asked for later.
            if held.is_none_or(|cached| cached.confirmed <= asked) {
                let used = held.map_or(asked, |cached| cached.used);
                tokens.insert(*shown, CachedToken { known, confirmed: asked, used });
            }
        }
    }

    /// Ends the calls under way that would not be allowed any more.
    fn revoke_forbidden_calls(&self) {
        let state = self.state.load();
        let (epoch, gate) = (state.loaded.epoch, &state.loaded.gate);
        let tokens = lock_unpoisoned(&self.tokens);
        let mut running = lock_unpoisoned(&self.running);
        for call in running.values_mut() {
            let forbidden = match tokens.get(&call.shown).and_then(|cached| cached.known.as_ref()) {
                None => Some(RefusalReason::TokenRevoked),
                Some(known) if known.state == TokenState::Revoked => {
                    Some(RefusalReason::TokenRevoked)
                }
                Some(known) if known.state == TokenState::Expired => {
                    Some(RefusalReason::TokenExpired)
                }
                // Nothing else has changed since it was last looked at.
                Some(known) if call.epoch == epoch && known.agent == call.agent => None,
                Some(known) => {
                    call.agent = known.agent.clone();
                    check_tool_open(gate, &call.agent, &call.tool).err()
                }
            };
            call.epoch = epoch;
            if let Some(reason) = forbidden {
                *lock_unpoisoned(&call.reason) = Some(reason);
                call.ended.cancel();
            }
        }
    }

    /// Keeps a call in sight until what is returned is dropped.
    pub fn watch_call(
        self: &Arc<Self>,
        shown: PresentedToken,
        agent: Arc<AgentIdentity>,
        tool: Arc<CatalogueTool>,
        epoch: i64,
    ) -> CallWatch {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let (ended, reason) = (CancellationToken::new(), Arc::new(Mutex::new(None)));
        let waits = tools::waits_for_work(&tool.definition);
        lock_unpoisoned(&self.running).insert(
            number,
            RunningCall {
                shown,
                agent,
                tool,
                epoch,
                ended: ended.clone(),
                reason: reason.clone(),
                waits,
            },
        );
        if !waits {
            self.wake_refresh();
        }
        CallWatch { permit: CallPermit { keeper: self.clone(), number }, ended, reason }
    }
}

/// Whether a call of that very tool would still be open to the agent.
fn check_tool_open(
    gate: &PolicySnapshot,
    agent: &AgentIdentity,
    tool: &CatalogueTool,
) -> Result<(), RefusalReason> {
    let current =
        gate.catalogue.find_by_name(&tool.definition.name).ok_or(RefusalReason::UnknownTool)?;
    if current.digest != tool.digest {
        return Err(RefusalReason::DefinitionChanged);
    }
    check_tool_access(agent, gate, current)
}
