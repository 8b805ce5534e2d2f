//! How much agents may call: rates, repeats, quotas. A refusal says until when, so that a model waits instead of trying.

use std::{
    collections::HashMap,
    num::NonZeroU32,
    sync::Mutex,
    time::{Duration, Instant},
};

use cynode_app::{
    App,
    gate::{self, Limits, Whose},
};
use cynode_core::ids::AgentTokenId;
use cynode_policy::{agents::Agent, digest::Digest, reasons::Reason};
use governor::{
    DefaultDirectRateLimiter, Quota, RateLimiter, clock::Clock as _, clock::DefaultClock,
    state::keyed::DashMapStateStore,
};
use time::OffsetDateTime;

use cynode_core::sync::lock;

/// How many calls of an hour are taken from the database at once.
const BATCH: i64 = 50;

/// For how long the same call again counts as the same.
const MEMORY: Duration = Duration::from_mins(1);

/// Most agents whose last call is remembered.
const MOST: usize = 100_000;

/// How many refusals of one agent that calls too much are recorded at once, and how many a second from then on.
const REFUSALS: (u32, u32) = (100, 20);

/// How long an agent that goes on after that waits for each answer.
const HELD: Duration = Duration::from_secs(1);

/// Most calls of one agent that wait like that.
const MOST_HELD: u32 = 64;

/// How many callers without a token that works are recorded at once, and how many a second from then on: of all together whom
/// nobody knows, and of each token that was one.
const STRANGERS: (u32, u32) = (1000, 500);

type Rates =
    RateLimiter<(AgentTokenId, Digest), DashMapStateStore<(AgentTokenId, Digest)>, DefaultClock>;

type Refusals = RateLimiter<AgentTokenId, DashMapStateStore<AgentTokenId>, DefaultClock>;

/// Counts calls.
pub(crate) struct Counter {
    clock: DefaultClock,
    rates: Mutex<(u32, std::sync::Arc<Rates>)>,
    last: Mutex<HashMap<AgentTokenId, Last>>,
    hours: Mutex<HashMap<Whose, Hour>>,
    refusals: Refusals,
    /// How many calls of an agent wait for their refusal.
    held: Mutex<HashMap<AgentTokenId, u32>>,
    strangers: DefaultDirectRateLimiter,
    former: Refusals,
    /// How often it is said that records are left out.
    said: DefaultDirectRateLimiter,
}

struct Last {
    call: Digest,
    times: u32,
    at: Instant,
}

struct Hour {
    left: i64,
    ends: OffsetDateTime,
}

/// Why a call is too much, and until when.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TooMuch {
    /// Why.
    pub(crate) reason: Reason,
    /// Until when; `None` when waiting does not help.
    pub(crate) until: Option<OffsetDateTime>,
}

/// A call that waits for its refusal.
struct Held<'a> {
    counts: &'a Mutex<HashMap<AgentTokenId, u32>>,
    agent: AgentTokenId,
}

impl<'a> Held<'a> {
    /// One more of the agent, unless too many wait already.
    fn one_more(
        counts: &'a Mutex<HashMap<AgentTokenId, u32>>,
        agent: AgentTokenId,
    ) -> Option<Self> {
        let mut held = lock(counts);
        let count = held.entry(agent).or_default();
        if *count >= MOST_HELD {
            return None;
        }
        *count += 1;
        Some(Self { counts, agent })
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        let mut held = lock(self.counts);
        let left = held.get(&self.agent).map_or(0, |count| count.saturating_sub(1));
        if left == 0 {
            held.remove(&self.agent);
        } else {
            held.insert(self.agent, left);
        }
    }
}

fn number(value: u32) -> NonZeroU32 {
    NonZeroU32::new(value).unwrap_or(NonZeroU32::MIN)
}

fn rates(per_second: u32) -> std::sync::Arc<Rates> {
    std::sync::Arc::new(RateLimiter::dashmap(Quota::per_second(number(per_second))))
}

/// So many at once, and so many a second from then on.
fn quota((at_once, per_second): (u32, u32)) -> Quota {
    Quota::per_second(number(per_second)).allow_burst(number(at_once))
}

impl Default for Counter {
    fn default() -> Self {
        let per_second = Limits::default().per_second;
        Self {
            clock: DefaultClock::default(),
            rates: Mutex::new((per_second, rates(per_second))),
            last: Mutex::default(),
            hours: Mutex::default(),
            refusals: RateLimiter::dashmap(quota(REFUSALS)),
            held: Mutex::default(),
            strangers: RateLimiter::direct(quota(STRANGERS)),
            former: RateLimiter::dashmap(quota(STRANGERS)),
            said: RateLimiter::direct(Quota::per_minute(NonZeroU32::MIN)),
        }
    }
}

impl Counter {
    /// Counts a call, or says why it is too much. `call` names the tool with its arguments, `tool` the tool alone.
    pub(crate) async fn count(
        &self,
        app: &App,
        limits: Limits,
        agent: &Agent,
        tool: (&str, Digest),
        call: Digest,
    ) -> Result<(), TooMuch> {
        // The installation's own programs do what the graph and the queue say; nothing in them loops by itself.
        if agent.kind().is_program() {
            return Ok(());
        }
        let now = app.environment().now();
        self.rate(limits, agent, tool.1, now)?;
        // Being alive is said again and again.
        if tool.0 != "agent.heartbeat" {
            self.repeat(limits, agent, call)?;
        }
        let whose = agent.task.map_or(Whose::Token(agent.token), Whose::Task);
        self.quota(app, limits, whose, now).await
    }

    /// Whether a refusal is recorded. Whoever goes on calling too much waits for each answer, so that nobody fills the
    /// records by being refused; what comes faster all the same is left out of them.
    pub(crate) async fn hold_back(&self, agent: AgentTokenId, reason: &Reason) -> bool {
        // What is not the agent's own doing holds nobody back.
        let own = matches!(reason, Reason::TooFast | Reason::Repeated | Reason::QuotaUsed);
        if !own || self.refusals.check_key(&agent).is_ok() {
            return true;
        }
        if self.refusals.len() > MOST {
            self.refusals.retain_recent();
        }
        let Some(held) = Held::one_more(&self.held, agent) else {
            self.left_out("agent");
            return false;
        };
        let _ = tokio::time::timeout(HELD, std::future::pending::<()>()).await;
        drop(held);
        let recorded = self.refusals.check_key(&agent).is_ok();
        if !recorded {
            self.left_out("agent");
        }
        recorded
    }

    /// Whether one more caller without a token that works is recorded.
    pub(crate) fn records_stranger(&self) -> bool {
        let recorded = self.strangers.check().is_ok();
        if !recorded {
            self.left_out("stranger");
        }
        recorded
    }

    /// Whether one more call with a token that worked once is recorded: a flood of strangers does not hide it.
    pub(crate) fn records_former(&self, agent: AgentTokenId) -> bool {
        if self.former.len() > MOST {
            self.former.retain_recent();
        }
        let recorded = self.former.check_key(&agent).is_ok();
        if !recorded {
            self.left_out("former");
        }
        recorded
    }

    fn left_out(&self, who: &'static str) {
        metrics::counter!("gate_refusals_unrecorded_total", "who" => who).increment(1);
        if self.said.check().is_ok() {
            tracing::warn!(
                event = "gate.unrecorded",
                who,
                "refused callers go on too fast: some of their calls are answered without a record"
            );
        }
    }

    fn rate(
        &self,
        limits: Limits,
        agent: &Agent,
        tool: Digest,
        now: OffsetDateTime,
    ) -> Result<(), TooMuch> {
        let limiter = {
            let mut held = lock(&self.rates);
            if held.0 != limits.per_second {
                *held = (limits.per_second, rates(limits.per_second));
            }
            held.1.clone()
        };
        if limiter.len() > MOST {
            limiter.retain_recent();
        }
        limiter.check_key(&(agent.token, tool)).map_err(|until| {
            let wait = until.wait_time_from(self.clock.now());
            TooMuch { reason: Reason::TooFast, until: Some(now + wait) }
        })
    }

    fn repeat(&self, limits: Limits, agent: &Agent, call: Digest) -> Result<(), TooMuch> {
        let mut last = lock(&self.last);
        if last.len() > MOST {
            last.retain(|_, last| last.at.elapsed() < MEMORY);
        }
        let entry = last.entry(agent.token);
        let known = entry.or_insert_with(|| Last { call, times: 0, at: Instant::now() });
        if known.call != call || known.at.elapsed() >= MEMORY {
            *known = Last { call, times: 0, at: Instant::now() };
        }
        known.times = known.times.saturating_add(1);
        if known.times > limits.identical {
            return Err(TooMuch { reason: Reason::Repeated, until: None });
        }
        known.at = Instant::now();
        Ok(())
    }

    async fn quota(
        &self,
        app: &App,
        limits: Limits,
        whose: Whose,
        now: OffsetDateTime,
    ) -> Result<(), TooMuch> {
        if let Some(hour) = lock(&self.hours).get_mut(&whose)
            && hour.ends > now
            && hour.left > 0
        {
            hour.left -= 1;
            return Ok(());
        }
        let taken = gate::take_calls(app, whose, BATCH, limits.per_task_hour.into()).await;
        let Ok((taken, ends)) = taken else {
            return Err(TooMuch { reason: Reason::Stale, until: None });
        };
        if taken < 1 {
            return Err(TooMuch { reason: Reason::QuotaUsed, until: Some(ends) });
        }
        let mut hours = lock(&self.hours);
        if hours.len() > MOST {
            hours.retain(|_, hour| hour.ends > now);
        }
        let hour = hours.entry(whose).or_insert(Hour { left: 0, ends });
        if hour.ends != ends {
            *hour = Hour { left: 0, ends };
        }
        hour.left += taken - 1;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn callers_without_a_token_fill_no_more_records_than_a_database_takes() {
        let counter = Counter::default();
        let since = Instant::now();
        let recorded = (0..50_000).filter(|_| counter.records_stranger()).count();
        let most = 1001.0 + 500.0 * since.elapsed().as_secs_f64();
        assert!(recorded >= 1000, "{recorded}");
        assert!(u32::try_from(recorded).is_ok_and(|recorded| f64::from(recorded) <= most));
    }
}
