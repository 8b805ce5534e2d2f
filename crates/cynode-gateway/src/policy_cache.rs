//! Policy cache: the policy snapshot and the tokens by which calls are decided, and their age.
//!
//! A call is decided from the cache only if the database confirmed it less than [`MAX_STALENESS`] ago, counted from the moment the query
//! was sent. A revoked token or a disabled tool is therefore invalidated in every replica within that time, whatever the load. A replica
//! that could not refresh in time refreshes before it decides, and one that cannot refresh refuses. Calls in flight are checked with every
//! change. An idle gateway sends no queries. A call that waits for work checks its permission again before it takes any.

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
    catalogue::{CatalogueTool, ToolCatalogue},
    decision::{PolicySnapshot, check_tool_access},
    reasons::RefusalReason,
};
use tokio::sync::{Mutex as AsyncMutex, Notify};
use tokio_util::sync::CancellationToken;

use crate::{tool_server_adapter, tools, upstream::UpstreamServer};

/// Maximum age of cached data.
pub const MAX_STALENESS: Duration = Duration::from_millis(80);

/// Refresh interval while calls come in.
const REFRESH_INTERVAL: Duration = Duration::from_millis(25);

/// Time after its last use for which a token is refreshed.
const TOKEN_IDLE_TTL: Duration = Duration::from_secs(2);

/// Maximum number of refreshes that one call triggers.
const MAX_REFRESH_ATTEMPTS: usize = 5;

/// Maximum number of cached tokens.
const MAX_CACHED_TOKENS: usize = 50_000;

/// Cache of tokens and of the policy snapshot, with the time of their last confirmation.
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

/// The policy snapshot, with the time of its last confirmation.
#[derive(Clone)]
pub struct CachedPolicy {
    /// The policy snapshot.
    pub loaded: GatewaySnapshot,
    /// Tool servers of the snapshot, in the form that the upstream pool takes.
    pub(crate) servers: Arc<HashMap<ServerId, UpstreamServer>>,
    confirmed: Instant,
    /// Rendered tool list of each agent, built once.
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

/// Rendered tool lists, by token, by whether the agent's user may do more than read, and by the version of the agent's profile.
pub(crate) type ToolListCache = Arc<Mutex<HashMap<(uuid::Uuid, bool, u32), Arc<str>>>>;

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
    /// Epoch of the policy snapshot by which the call was last checked.
    epoch: i64,
    ended: CancellationToken,
    reason: Arc<Mutex<Option<RefusalReason>>>,
    /// Whether the call checks its permission by itself before it takes work.
    waits: bool,
}

/// Watch of a call in flight. While it exists, a change that forbids the call ends it.
pub struct CallWatch {
    permit: CallPermit,
    ended: CancellationToken,
    reason: Arc<Mutex<Option<RefusalReason>>>,
}

/// Checks the permission of a call in flight.
#[derive(Clone)]
pub struct CallPermit {
    keeper: Arc<PolicyCache>,
    number: u64,
}

impl CallPermit {
    /// Checks whether the call is still permitted, by data confirmed within [`MAX_STALENESS`]. The check comes last, after all slow steps
    /// before the execution.
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
    /// Returns a handle that checks the permission of the call from elsewhere.
    pub const fn call_permit(&self) -> &CallPermit {
        &self.permit
    }

    /// Checks whether the call is still permitted.
    pub async fn check_permitted(&self) -> Result<(), RefusalReason> {
        self.permit.check_permitted().await
    }

    /// Waits until the call is forbidden, and returns the reason.
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
    /// Loads the policy snapshot for the first time.
    pub async fn load_initial(app: App) -> Result<Arc<Self>, Error> {
        let confirmed = Instant::now();
        let loaded = catalogue::load_gateway_snapshot(&app, &ToolCatalogue::empty()).await?;
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

    /// Refreshes the cache while calls come in, until `stop`.
    pub async fn run_refresh_loop(self: Arc<Self>, stop: CancellationToken) {
        let mut turn = tokio::time::interval(REFRESH_INTERVAL);
        turn.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut failing = false;
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                _ = turn.tick() => {}
            }
            // The flag is set before the check: a call in between wakes the loop again.
            self.idle.store(true, Ordering::SeqCst);
            let waits = lock_unpoisoned(&self.running).values().all(|call| call.waits);
            if waits && lock_unpoisoned(&self.last_used).elapsed() > TOKEN_IDLE_TTL {
                // No calls come in. The next call refreshes by itself.
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

    /// Records that an agent calls and will probably call again soon. Programs that wait for work call rarely: each of their calls
    /// refreshes by itself.
    fn record_use(&self, shown: PresentedToken) {
        if shown.kind == TokenKind::Host {
            return;
        }
        *lock_unpoisoned(&self.last_used) = Instant::now();
        self.wake_refresh();
    }

    /// Wakes the refresh loop.
    fn wake_refresh(&self) {
        if self.idle.swap(false, Ordering::SeqCst) {
            self.used.notify_one();
        }
    }

    /// Returns the policy snapshot, confirmed within [`MAX_STALENESS`].
    pub async fn fresh_policy(&self) -> Result<Arc<CachedPolicy>, RefusalReason> {
        let state = self.state.load_full();
        if state.confirmed.elapsed() < MAX_STALENESS {
            return Ok(state);
        }
        // A refresh may take longer than [`MAX_STALENESS`], for example after many changes. Then it is repeated.
        for _ in 0..MAX_REFRESH_ATTEMPTS {
            self.refresh_for_call(&[]).await?;
            let state = self.state.load_full();
            if state.confirmed.elapsed() < MAX_STALENESS {
                return Ok(state);
            }
        }
        Err(RefusalReason::StalePolicy)
    }

    /// Returns the agent of a token, confirmed within [`MAX_STALENESS`].
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

    /// Returns the agent of a token that is no longer valid, for the audit log.
    pub fn last_known_agent(&self, shown: PresentedToken) -> Option<ResolvedAgentToken> {
        lock_unpoisoned(&self.tokens).get(&shown).and_then(|cached| cached.known.clone())
    }

    /// Returns the cached agent of a token, if it was confirmed within [`MAX_STALENESS`].
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

    /// Refreshes on behalf of a call. Concurrent calls share one refresh.
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

    /// Refreshes the policy snapshot, the tokens in `more`, and every token in use.
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
            // Unknown tokens are not refreshed until a caller presents them again.
            tokens.iter().filter(|(_, cached)| warm(cached)).map(|(shown, _)| *shown).collect()
        };
        // The token of a call in flight is refreshed however long the call takes.
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
        let known = self.state.load_full();
        let loaded =
            catalogue::load_gateway_snapshot(&self.app, &known.loaded.gate.catalogue).await?;
        let fresh = CachedPolicy::new(loaded, asked);
        let before = self.state.rcu(|state| {
            if fresh.loaded.epoch < state.loaded.epoch {
                // Another task has loaded a newer snapshot in the meantime.
                return state.clone();
            }
            Arc::new(fresh.clone())
        });
        // Connections to removed or disabled servers are closed here, whichever replica made the change.
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
            // A slow query must not overwrite the result of a later one.
            if held.is_none_or(|cached| cached.confirmed <= asked) {
                let used = held.map_or(asked, |cached| cached.used);
                tokens.insert(*shown, CachedToken { known, confirmed: asked, used });
            }
        }
    }

    /// Ends the calls in flight that are no longer allowed.
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
                // No change since the last check.
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

    /// Watches a call until the returned guard is dropped.
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

/// Checks whether the agent may still call exactly this tool.
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
