//! Rate limits, duplicate-call detection and quotas of agents. A refusal says when the next call is allowed, so that a model waits instead
//! of retrying. Records of refused calls have a rate limit of their own.

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

/// Number of calls of the hourly quota that are reserved in the database at once.
const QUOTA_BATCH_SIZE: i64 = 50;

/// Time window in which an identical call counts as a duplicate.
const DUPLICATE_CALL_WINDOW: Duration = Duration::from_mins(1);

/// Maximum number of agents whose last call is tracked.
const MAX_TRACKED_AGENTS: usize = 100_000;

/// Rate limit of recorded refusals per agent that exceeds its limits: burst, and number per second.
const REFUSAL_RATE_LIMIT: (u32, u32) = (100, 20);

/// Delay of each answer to an agent that exceeds [`REFUSAL_RATE_LIMIT`].
const REFUSAL_DELAY: Duration = Duration::from_secs(1);

/// Maximum number of delayed calls per agent.
const MAX_DELAYED_CALLS: u32 = 64;

/// Rate limit of recorded unauthenticated callers: burst, and number per second. One limit covers all unknown callers together, and each
/// formerly valid token has a limit of its own.
const UNAUTHENTICATED_RATE_LIMIT: (u32, u32) = (1000, 500);

type ToolRateLimiter = RateLimiter<
    (AgentTokenId, Sha256Digest),
    DashMapStateStore<(AgentTokenId, Sha256Digest)>,
    DefaultClock,
>;

type AgentRateLimiter = RateLimiter<AgentTokenId, DashMapStateStore<AgentTokenId>, DefaultClock>;

/// Counts calls and enforces the limits.
pub(crate) struct CallLimiter {
    clock: DefaultClock,
    rates: Mutex<(u32, std::sync::Arc<ToolRateLimiter>)>,
    last: Mutex<HashMap<AgentTokenId, LastCall>>,
    hours: Mutex<HashMap<QuotaOwner, HourlyQuota>>,
    refusals: AgentRateLimiter,
    /// Number of delayed refusals per agent.
    held: Mutex<HashMap<AgentTokenId, u32>>,
    strangers: DefaultDirectRateLimiter,
    former: AgentRateLimiter,
    /// Rate limit of the warning that refusals are not recorded.
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

/// A limit that a call exceeds, and the time of the next allowed call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LimitExceeded {
    /// Reason for the refusal.
    pub(crate) reason: RefusalReason,
    /// Time at which the call is allowed again. `None` if waiting does not help.
    pub(crate) until: Option<OffsetDateTime>,
}

/// A call whose refusal is delayed.
struct DelayedCall<'a> {
    counts: &'a Mutex<HashMap<AgentTokenId, u32>>,
    agent: AgentTokenId,
}

impl<'a> DelayedCall<'a> {
    /// Counts one more delayed call of the agent. Returns `None` if too many are delayed already.
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

/// Returns a quota with this burst and this number per second.
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
    /// Counts a call. Fails if it exceeds a limit. `call` identifies the tool with its arguments, `tool` the tool alone.
    pub(crate) async fn count_call(
        &self,
        app: &App,
        limits: CallLimits,
        agent: &AgentIdentity,
        tool: (&str, Sha256Digest),
        call: Sha256Digest,
    ) -> Result<(), LimitExceeded> {
        // The installation's own programs follow the workflow graph and the queue. They have no loops of their own.
        if agent.agent_kind().is_service_program() {
            return Ok(());
        }
        let now = app.environment().now();
        self.check_rate_limit(limits, agent, tool.1, now)?;
        // Heartbeats are identical by design.
        if tool.0 != "agent.heartbeat" {
            self.check_duplicate_call(limits, agent, call)?;
        }
        let whose = agent.task.map_or(QuotaOwner::Token(agent.token), QuotaOwner::Task);
        self.take_quota(app, limits, whose, now).await
    }

    /// Returns whether a refusal is recorded. An agent that keeps exceeding its limits waits for each answer, so that it cannot fill the
    /// audit log with refusals. Refusals beyond the rate limit are not recorded.
    pub(crate) async fn throttle_refusal(
        &self,
        agent: AgentTokenId,
        reason: &RefusalReason,
    ) -> bool {
        // Refusals that the agent did not cause are not delayed.
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

    /// Returns whether one more unauthenticated caller is recorded.
    pub(crate) fn should_record_stranger(&self) -> bool {
        let recorded = self.strangers.check().is_ok();
        if !recorded {
            self.report_unrecorded("stranger");
        }
        recorded
    }

    /// Returns whether one more call with a formerly valid token is recorded. Its limit is separate, so that a flood of unknown callers
    /// does not hide it.
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
