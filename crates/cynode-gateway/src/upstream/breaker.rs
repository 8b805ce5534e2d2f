//! Circuit breaker for an upstream MCP server: exponential backoff after each failure, up to one minute.

use std::time::Duration;

use tokio::time::Instant;

/// The pause after the first failure; each further one doubles it.
const INITIAL_BACKOFF: Duration = Duration::from_millis(500);
/// The longest pause.
const MAX_BACKOFF: Duration = Duration::from_mins(1);

/// How a server failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FailurePhase {
    /// It could not be connected to.
    Connecting,
    /// It was connected, and the connection broke.
    Connected,
}

/// Counts failures in a row and says how long to wait.
///
/// Only an answer clears it. A server that greets well and then falls over at every call is
/// therefore left alone like one that is not there.
#[derive(Debug, Default)]
pub(super) struct CircuitBreaker {
    strikes: u32,
    until: Option<Instant>,
}

impl CircuitBreaker {
    /// How long to wait still, if at all.
    pub(super) fn retry_after(&self, now: Instant) -> Option<Duration> {
        self.until.map(|until| until.saturating_duration_since(now)).filter(|left| !left.is_zero())
    }

    /// Notes a failure.
    pub(super) fn record_failure(&mut self, strike: FailurePhase, now: Instant) {
        self.strikes = self.strikes.saturating_add(1);
        // One broken connection says little: servers restart. The next attempt will tell.
        if self.strikes > 1 || strike == FailurePhase::Connecting {
            let doublings = (self.strikes - 1).min(16);
            self.until = Some(now + (INITIAL_BACKOFF * (1 << doublings)).min(MAX_BACKOFF));
        }
    }

    /// Notes an answer.
    pub(super) fn record_success(&mut self) {
        self.strikes = 0;
        self.until = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pause_doubles_up_to_a_minute() {
        let now = Instant::now();
        let mut breaker = CircuitBreaker::default();
        let pauses: Vec<u128> = (0..9)
            .map(|_| {
                breaker.record_failure(FailurePhase::Connecting, now);
                breaker.retry_after(now).unwrap().as_millis()
            })
            .collect();
        assert_eq!(pauses, [500, 1000, 2000, 4000, 8000, 16000, 32000, 60000, 60000]);
    }

    #[test]
    fn a_pause_ends_by_itself() {
        let now = Instant::now();
        let mut breaker = CircuitBreaker::default();
        breaker.record_failure(FailurePhase::Connecting, now);
        assert_eq!(breaker.retry_after(now + INITIAL_BACKOFF), None);
    }

    #[test]
    fn a_connection_may_break_once_without_a_pause() {
        let now = Instant::now();
        let mut breaker = CircuitBreaker::default();
        breaker.record_failure(FailurePhase::Connected, now);
        assert_eq!(breaker.retry_after(now), None);
        breaker.record_failure(FailurePhase::Connected, now);
        assert!(breaker.retry_after(now).is_some());
    }

    #[test]
    fn an_answer_clears_everything() {
        let now = Instant::now();
        let mut breaker = CircuitBreaker::default();
        breaker.record_failure(FailurePhase::Connecting, now);
        breaker.record_success();
        breaker.record_failure(FailurePhase::Connected, now);
        assert_eq!(breaker.retry_after(now), None);
    }
}
