//! Rate limits, duplicate-call detection and quotas of agents. A refusal says when the next call is allowed, so that a
//! model waits instead of retrying. Records of refused calls have a rate limit of their own.

use std::{
    collections::HashMap,
    num::NonZeroU32,
    sync::Mutex,
    time::{Duration, Instant},
};

use cynode_app::{
    App,
    tools::catalogue::{self, CallLimits, QuotaOwner},
};
use cynode_core::{ids::AgentTokenId, metric_specs::GATEWAY_UNRECORDED_REFUSALS};
use cynode_policy::{agents::AgentIdentity, digest::Sha256Digest, reasons::RefusalReason};
use governor::{
    DefaultDirectRateLimiter, Quota, RateLimiter, clock::Clock as _, clock::DefaultClock,
    state::keyed::DashMapStateStore,
};
use time::OffsetDateTime;

use cynode_core::sync::lock_unpoisoned;

/// How many calls of an hour are taken from the database at once.
const QUOTA_BATCH_SIZE: i64 = 50;

/// For how long the same call again counts as the same.
const DUPLICATE_CALL_WINDOW: Duration = Duration::from_mins(1);

/// Most agents whose last call is remembered.
const MAX_TRACKED_AGENTS: usize = 100_000;

/// How many refusals of one agent that calls too much are recorded at once, and how many a second from then on.
const REFUSAL_RATE_LIMIT: (u32, u32) = (100, 20);

/// How long an agent that goes on after that waits for each answer.
const REFUSAL_DELAY: Duration = Duration::from_secs(1);

/// Most calls of one agent that wait like that.
const MAX_DELAYED_CALLS: u32 = 64;

/// How many callers without a token that works are recorded at once, and how many a second from then on: of all together whom
/// nobody knows, and of each token that was one.
const UNAUTHENTICATED_RATE_LIMIT: (u32, u32) = (1000, 500);

type ToolRateLimiter = RateLimiter<
    (AgentTokenId, Sha256Digest),
    DashMapStateStore<(AgentTokenId, Sha256Digest)>,
    DefaultClock,
>;

type AgentRateLimiter = RateLimiter<AgentTokenId, DashMapStateStore<AgentTokenId>, DefaultClock>;

/// Counts calls.
pub(crate) struct CallLimiter {
    clock: DefaultClock,
    rates: Mutex<(u32, std::sync::Arc<ToolRateLimiter>)>,
    last: Mutex<HashMap<AgentTokenId, LastCall>>,
    hours: Mutex<HashMap<QuotaOwner, HourlyQuota>>,
    refusals: AgentRateLimiter,
    /// How many calls of an agent wait for their refusal.
    held: Mutex<HashMap<AgentTokenId, u32>>,
    strangers: DefaultDirectRateLimiter,
    former: AgentRateLimiter,
    /// How often it is said that records are left out.
    said: DefaultDirectRateLimiter,
}

struct LastCall {
    call: Sha256Digest,
    times: u32,
    at: Instant,
}

struct HourlyQuota {
    left: i64,
    ends: OffsetDateTime,
}

/// Why a call is too much, and until when.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LimitExceeded {
    /// Why.
    pub(crate) reason: RefusalReason,
    /// Until when; `None` when waiting does not help.
    pub(crate) until: Option<OffsetDateTime>,
}

/// A call that waits for its refusal.
struct DelayedCall<'a> {
    counts: &'a Mutex<HashMap<AgentTokenId, u32>>,
    agent: AgentTokenId,
}

impl<'a> DelayedCall<'a> {
    /// One more of the agent, unless too many wait already.
    fn try_acquire(
        counts: &'a Mutex<HashMap<AgentTokenId, u32>>,
        agent: AgentTokenId,
    ) -> Option<Self> {
        let mut held = lock_unpoisoned(counts);
        let count = held.entry(agent).or_default();
        if *count >= MAX_DELAYED_CALLS {
            return None;
        }
        *count += 1;
        Some(Self { counts, agent })
    }
}

impl Drop for DelayedCall<'_> {
    fn drop(&mut self) {
        let mut held = lock_unpoisoned(self.counts);
        let left = held.get(&self.agent).map_or(0, |count| count.saturating_sub(1));
        if left == 0 {
            held.remove(&self.agent);
        } else {
            held.insert(self.agent, left);
        }
    }
}

fn to_non_zero(value: u32) -> NonZeroU32 {
    NonZeroU32::new(value).unwrap_or(NonZeroU32::MIN)
}

fn build_rate_limiter(per_second: u32) -> std::sync::Arc<ToolRateLimiter> {
    std::sync::Arc::new(RateLimiter::dashmap(Quota::per_second(to_non_zero(per_second))))
}

/// So many at once, and so many a second from then on.
fn burst_quota((at_once, per_second): (u32, u32)) -> Quota {
    Quota::per_second(to_non_zero(per_second)).allow_burst(to_non_zero(at_once))
}

impl Default for CallLimiter {
    fn default() -> Self {
        let per_second = CallLimits::default().per_second;
        Self {
            clock: DefaultClock::default(),
            rates: Mutex::new((per_second, build_rate_limiter(per_second))),
            last: Mutex::default(),
            hours: Mutex::default(),
            refusals: RateLimiter::dashmap(burst_quota(REFUSAL_RATE_LIMIT)),
            held: Mutex::default(),
            strangers: RateLimiter::direct(burst_quota(UNAUTHENTICATED_RATE_LIMIT)),
            former: RateLimiter::dashmap(burst_quota(UNAUTHENTICATED_RATE_LIMIT)),
            said: RateLimiter::direct(Quota::per_minute(NonZeroU32::MIN)),
        }
    }
}

impl CallLimiter {
    /// Counts a call, or says why it is too much. `call` names the tool with its arguments, `tool` the tool alone.
    pub(crate) async fn count_call(
        &self,
        app: &App,
        limits: CallLimits,
        agent: &AgentIdentity,
        tool: (&str, Sha256Digest),
        call: Sha256Digest,
    ) -> Result<(), LimitExceeded> {
        // The installation's own programs do what the graph and the queue say; nothing in them loops by itself.
        if agent.agent_kind().is_service_program() {
            return Ok(());
        }
        let now = app.environment().now();
        self.check_rate_limit(limits, agent, tool.1, now)?;
        // Being alive is said again and again.
        if tool.0 != "agent.heartbeat" {
            self.check_duplicate_call(limits, agent, call)?;
        }
        let whose = agent.task.map_or(QuotaOwner::Token(agent.token), QuotaOwner::Task);
        self.take_quota(app, limits, whose, now).await
    }

    /// Whether a refusal is recorded. Whoever goes on calling too much waits for each answer, so that nobody fills the
    /// records by being refused; what comes faster all the same is left out of them.
    pub(crate) async fn throttle_refusal(
        &self,
        agent: AgentTokenId,
        reason: &RefusalReason,
    ) -> bool {
        // What is not the agent's own doing holds nobody back.
        let own = matches!(
            reason,
            RefusalReason::RateLimited
                | RefusalReason::DuplicateCall
                | RefusalReason::QuotaExceeded
        );
        if !own || self.refusals.check_key(&agent).is_ok() {
            return true;
        }
        if self.refusals.len() > MAX_TRACKED_AGENTS {
            self.refusals.retain_recent();
        }
        let Some(held) = DelayedCall::try_acquire(&self.held, agent) else {
            self.report_unrecorded("agent");
            return false;
        };
        let _ = tokio::time::timeout(REFUSAL_DELAY, std::future::pending::<()>()).await;
        drop(held);
        let recorded = self.refusals.check_key(&agent).is_ok();
        if !recorded {
            self.report_unrecorded("agent");
        }
        recorded
    }

    /// Whether one more caller without a token that works is recorded.
    pub(crate) fn should_record_stranger(&self) -> bool {
        let recorded = self.strangers.check().is_ok();
        if !recorded {
            self.report_unrecorded("stranger");
        }
        recorded
    }

    /// Whether one more call with a token that worked once is recorded: a flood of strangers does not hide it.
    pub(crate) fn should_record_former(&self, agent: AgentTokenId) -> bool {
        if self.former.len() > MAX_TRACKED_AGENTS {
            self.former.retain_recent();
        }
        let recorded = self.former.check_key(&agent).is_ok();
        if !recorded {
            self.report_unrecorded("former");
        }
        recorded
    }

    fn report_unrecorded(&self, caller: &'static str) {
        metrics::counter!(GATEWAY_UNRECORDED_REFUSALS.name, "caller" => caller).increment(1);
        if self.said.check().is_ok() {
            tracing::warn!(
                event = "gateway.refusal_unrecorded",
                caller,
                "refused callers exceed the rate limit of records: some refusals are not recorded"
            );
        }
    }

    fn check_rate_limit(
        &self,
        limits: CallLimits,
        agent: &AgentIdentity,
        tool: Sha256Digest,
        now: OffsetDateTime,
    ) -> Result<(), LimitExceeded> {
        let limiter = {
            let mut held = lock_unpoisoned(&self.rates);
            if held.0 != limits.per_second {
                *held = (limits.per_second, build_rate_limiter(limits.per_second));
            }
            held.1.clone()
        };
        if limiter.len() > MAX_TRACKED_AGENTS {
            limiter.retain_recent();
        }
        limiter.check_key(&(agent.token, tool)).map_err(|until| {
            let wait = until.wait_time_from(self.clock.now());
            LimitExceeded { reason: RefusalReason::RateLimited, until: Some(now + wait) }
        })
    }

    fn check_duplicate_call(
        &self,
        limits: CallLimits,
        agent: &AgentIdentity,
        call: Sha256Digest,
    ) -> Result<(), LimitExceeded> {
        let mut last = lock_unpoisoned(&self.last);
        if last.len() > MAX_TRACKED_AGENTS {
            last.retain(|_, last| last.at.elapsed() < DUPLICATE_CALL_WINDOW);
        }
        let entry = last.entry(agent.token);
        let known = entry.or_insert_with(|| LastCall { call, times: 0, at: Instant::now() });
        if known.call != call || known.at.elapsed() >= DUPLICATE_CALL_WINDOW {
            *known = LastCall { call, times: 0, at: Instant::now() };
        }
        known.times = known.times.saturating_add(1);
        if known.times > limits.identical {
            return Err(LimitExceeded { reason: RefusalReason::DuplicateCall, until: None });
        }
        known.at = Instant::now();
        Ok(())
    }

    async fn take_quota(
        &self,
        app: &App,
        limits: CallLimits,
        whose: QuotaOwner,
        now: OffsetDateTime,
    ) -> Result<(), LimitExceeded> {
        if let Some(hour) = lock_unpoisoned(&self.hours).get_mut(&whose)
            && hour.ends > now
            && hour.left > 0
        {
            hour.left -= 1;
            return Ok(());
        }
        let taken =
            catalogue::take_call_quota(app, whose, QUOTA_BATCH_SIZE, limits.per_task_hour.into())
                .await;
        let Ok((taken, ends)) = taken else {
            return Err(LimitExceeded { reason: RefusalReason::StalePolicy, until: None });
        };
        if taken < 1 {
            return Err(LimitExceeded { reason: RefusalReason::QuotaExceeded, until: Some(ends) });
        }
        let mut hours = lock_unpoisoned(&self.hours);
        if hours.len() > MAX_TRACKED_AGENTS {
            hours.retain(|_, hour| hour.ends > now);
        }
        let hour = hours.entry(whose).or_insert(HourlyQuota { left: 0, ends });
        if hour.ends != ends {
            *hour = HourlyQuota { left: 0, ends };
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
        let counter = CallLimiter::default();
        let since = Instant::now();
        let recorded = (0..50_000).filter(|_| counter.should_record_stranger()).count();
        let most = 1001.0 + 500.0 * since.elapsed().as_secs_f64();
        assert!(recorded >= 1000, "{recorded}");
        assert!(u32::try_from(recorded).is_ok_and(|recorded| f64::from(recorded) <= most));
    }
}
