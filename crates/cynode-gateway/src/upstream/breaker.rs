//! Leaving a failing server alone for a while.

use std::time::Duration;

use tokio::time::Instant;

/// The pause after the first failure; each further one doubles it.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
/// The longest pause.
const LONGEST_PAUSE: Duration = Duration::from_mins(1);

/// How a server failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Strike {
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
pub(super) struct Breaker {
    strikes: u32,
    until: Option<Instant>,
}

impl Breaker {
    /// How long to wait still, if at all.
    pub(super) fn pause(&self, now: Instant) -> Option<Duration> {
        self.until.map(|until| until.saturating_duration_since(now)).filter(|left| !left.is_zero())
    }

    /// Notes a failure.
    pub(super) fn strike(&mut self, strike: Strike, now: Instant) {
        self.strikes = self.strikes.saturating_add(1);
        // One broken connection says little: servers restart. The next attempt will tell.
        if self.strikes > 1 || strike == Strike::Connecting {
            let doublings = (self.strikes - 1).min(16);
            self.until = Some(now + (FIRST_PAUSE * (1 << doublings)).min(LONGEST_PAUSE));
        }
    }

    /// Notes an answer.
    pub(super) fn clear(&mut self) {
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
        let mut breaker = Breaker::default();
        let pauses: Vec<u128> = (0..9)
            .map(|_| {
                breaker.strike(Strike::Connecting, now);
                breaker.pause(now).unwrap().as_millis()
            })
            .collect();
        assert_eq!(pauses, [500, 1000, 2000, 4000, 8000, 16000, 32000, 60000, 60000]);
    }

    #[test]
    fn a_pause_ends_by_itself() {
        let now = Instant::now();
        let mut breaker = Breaker::default();
        breaker.strike(Strike::Connecting, now);
        assert_eq!(breaker.pause(now + FIRST_PAUSE), None);
    }

    #[test]
    fn a_connection_may_break_once_without_a_pause() {
        let now = Instant::now();
        let mut breaker = Breaker::default();
        breaker.strike(Strike::Connected, now);
        assert_eq!(breaker.pause(now), None);
        breaker.strike(Strike::Connected, now);
        assert!(breaker.pause(now).is_some());
    }

    #[test]
    fn an_answer_clears_everything() {
        let now = Instant::now();
        let mut breaker = Breaker::default();
        breaker.strike(Strike::Connecting, now);
        breaker.clear();
        breaker.strike(Strike::Connected, now);
        assert_eq!(breaker.pause(now), None);
    }
}
