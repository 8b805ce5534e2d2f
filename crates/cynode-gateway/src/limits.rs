//! Rate limits, duplicate-call detection and quotas of agents. A refusal says when the next call is allowed, so that a model waits instead
//! of retrying. Records of refused calls have a rate limit of their own.

use std::{
    collections::HashMap,
    num::NonZeroU32,
    sync::{Arc, Mutex},
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
use tokio_util::task::TaskTracker;

use cynode_core::sync::lock_unpoisoned;

/// Number of calls of the hourly quota that are reserved in the database at once.
const QUOTA_BATCH_SIZE: i64 = 50;

/// Number of reserved calls below which the next ones are reserved in the background, so that no call waits for it.
const QUOTA_LOW_MARK: i64 = 15;

/// How soon an agent uses its reserved calls if more are reserved before they are used up. A slower agent reserves when it needs to, so that
/// it leaves the rest of its quota to other processes.
const QUOTA_RUSH: Duration = Duration::from_secs(5);

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
    rates: Mutex<(u32, Arc<ToolRateLimiter>)>,
    last: Mutex<HashMap<AgentTokenId, LastCall>>,
    hours: Arc<Mutex<HashMap<QuotaOwner, HourlyQuota>>>,
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
    /// When calls were last reserved.
    reserved_at: Instant,
    /// Whether the next calls are being reserved, or there are no more.
    is_closed: bool,
}

/// What the reserved calls say to one more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReservedCall {
    /// It is one of them.
    Taken,
    /// It is one of them, and more are to be reserved now.
    TakenNearEnd,
    /// None is left.
    NoneLeft,
}

impl HourlyQuota {
    fn take_call(&mut self, now: OffsetDateTime) -> ReservedCall {
        if self.ends <= now || self.left <= 0 {
            return ReservedCall::NoneLeft;
        }
        self.left -= 1;
        let rushes = self.reserved_at.elapsed() < QUOTA_RUSH;
        if self.left < QUOTA_LOW_MARK && rushes && !self.is_closed {
            self.is_closed = true;
            return ReservedCall::TakenNearEnd;
        }
        ReservedCall::Taken
    }

    /// Adds calls that were reserved until `ends`.
    fn add_reserved(&mut self, taken: i64, ends: OffsetDateTime) {
        let left = if self.ends == ends { self.left } else { 0 };
        // Fewer than were asked for are the last ones.
        let is_closed = taken < QUOTA_BATCH_SIZE;
        *self = Self { left: left + taken, ends, reserved_at: Instant::now(), is_closed };
    }
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

fn build_rate_limiter(per_second: u32) -> Arc<ToolRateLimiter> {
    Arc::new(RateLimiter::dashmap(Quota::per_second(to_non_zero(per_second))))
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
            hours: Arc::default(),
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
        let limit = i64::from(limits.per_task_hour);
        let known = lock_unpoisoned(&self.hours).get_mut(&whose).map(|hour| hour.take_call(now));
        match known {
            Some(ReservedCall::Taken) => return Ok(()),
            Some(ReservedCall::TakenNearEnd) => {
                self.reserve_ahead(app, whose, limit);
                return Ok(());
            }
            Some(ReservedCall::NoneLeft) | None => {}
        }
        let taken = catalogue::take_call_quota(app, whose, QUOTA_BATCH_SIZE, limit).await;
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
        add_reserved(&mut hours, whose, (taken, ends));
        if let Some(hour) = hours.get_mut(&whose) {
            hour.left -= 1;
        }
        Ok(())
    }

    /// Reserves the next calls in the background. If that fails, the call that finds none left reserves them itself.
    fn reserve_ahead(&self, app: &App, whose: QuotaOwner, limit: i64) {
        let (app, hours) = (app.clone(), self.hours.clone());
        TaskTracker::new().spawn(async move {
            let reserved =
                catalogue::take_call_quota(&app, whose, QUOTA_BATCH_SIZE, limit).await;
            let mut hours = lock_unpoisoned(&hours);
            match reserved {
                Ok(reserved) => add_reserved(&mut hours, whose, reserved),
                Err(error) => {
                    tracing::warn!(event = "quota.reserve_failed", error = %error, "calls of a quota could not be reserved ahead");
                }
            }
        });
    }
}

fn add_reserved(
    hours: &mut HashMap<QuotaOwner, HourlyQuota>,
    whose: QuotaOwner,
    (taken, ends): (i64, OffsetDateTime),
) {
    let new = HourlyQuota { left: 0, ends, reserved_at: Instant::now(), is_closed: false };
    hours.entry(whose).or_insert(new).add_reserved(taken, ends);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_agent_in_a_hurry_has_calls_reserved_before_its_own_are_used_up() {
        let now = OffsetDateTime::UNIX_EPOCH;
        let ends = now + time::Duration::hours(1);
        let mut hours = HashMap::new();
        let whose = QuotaOwner::Task(cynode_core::ids::TaskId::from_uuid(uuid::Uuid::nil()));
        add_reserved(&mut hours, whose, (QUOTA_BATCH_SIZE, ends));
        let hour = hours.get_mut(&whose).unwrap();
        let take = |hour: &mut HourlyQuota| {
            let taken: Vec<_> = (0..QUOTA_BATCH_SIZE).map(|_| hour.take_call(now)).collect();
            taken.iter().filter(|it| **it == ReservedCall::TakenNearEnd).count()
        };
        assert_eq!(take(hour), 1, "asked for once");
        assert_eq!(hour.take_call(now), ReservedCall::NoneLeft);
        // The last calls of the hour.
        hour.add_reserved(QUOTA_BATCH_SIZE - 1, ends);
        assert_eq!(take(hour), 0, "there are no more to ask for");
        hour.add_reserved(QUOTA_BATCH_SIZE, ends);
        hour.reserved_at = Instant::now().checked_sub(QUOTA_RUSH).unwrap();
        assert_eq!(
            take(hour),
            0,
            "an agent that takes its time leaves the rest to other processes"
        );
        assert_eq!(
            hour.take_call(ends),
            ReservedCall::NoneLeft,
            "what was reserved ends with its hour"
        );
    }

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
