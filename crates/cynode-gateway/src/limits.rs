//! How much agents may call: rates, repeats, quotas. A refusal says until when, so that a model waits instead of trying.

use std::{
    collections::HashMap,
    num::NonZeroU32,
    sync::Mutex,
    time::{Duration, Instant},
};

use cynode_app::{
    App,
    gate::{self, Limits},
};
use cynode_core::ids::{AgentTokenId, TaskId};
use cynode_policy::{agents::Agent, digest::Digest, reasons::Reason};
use governor::{
    Quota, RateLimiter, clock::Clock as _, clock::DefaultClock, state::keyed::DashMapStateStore,
};
use time::OffsetDateTime;

use cynode_core::sync::lock;

/// How many calls of a task's hour are taken from the database at once.
const BATCH: i64 = 50;

/// For how long the same call again counts as the same.
const MEMORY: Duration = Duration::from_mins(1);

/// Most agents whose last call is remembered.
const MOST: usize = 100_000;

type Rates =
    RateLimiter<(AgentTokenId, Digest), DashMapStateStore<(AgentTokenId, Digest)>, DefaultClock>;

/// Counts calls.
pub(crate) struct Counter {
    clock: DefaultClock,
    rates: Mutex<(u32, std::sync::Arc<Rates>)>,
    last: Mutex<HashMap<AgentTokenId, Last>>,
    hours: Mutex<HashMap<TaskId, Hour>>,
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

fn rates(per_second: u32) -> std::sync::Arc<Rates> {
    let each = NonZeroU32::new(per_second).unwrap_or(NonZeroU32::MIN);
    std::sync::Arc::new(RateLimiter::dashmap(Quota::per_second(each)))
}

impl Default for Counter {
    fn default() -> Self {
        let per_second = Limits::default().per_second;
        Self {
            clock: DefaultClock::default(),
            rates: Mutex::new((per_second, rates(per_second))),
            last: Mutex::default(),
            hours: Mutex::default(),
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
        match agent.task {
            Some(task) => self.quota(app, limits, task, now).await,
            None => Ok(()),
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
        task: TaskId,
        now: OffsetDateTime,
    ) -> Result<(), TooMuch> {
        if let Some(hour) = lock(&self.hours).get_mut(&task)
            && hour.ends > now
            && hour.left > 0
        {
            hour.left -= 1;
            return Ok(());
        }
        let taken = gate::take_calls(app, task, BATCH, limits.per_task_hour.into()).await;
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
        let hour = hours.entry(task).or_insert(Hour { left: 0, ends });
        if hour.ends != ends {
            *hour = Hour { left: 0, ends };
        }
        hour.left += taken - 1;
        Ok(())
    }
}
