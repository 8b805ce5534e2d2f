//! Circuit breaker for a provider: opens after five failures in a row, half-opens after a pause for one request, and
//! doubles the pause up to two minutes while that request fails.

use std::time::{Duration, Instant};

/// After how many failures in a row.
const FAILURE_THRESHOLD: u32 = 5;

/// How long at first.
const INITIAL_PAUSE: Duration = Duration::from_secs(10);

/// How long at most.
const MAX_PAUSE: Duration = Duration::from_mins(2);

/// How a place has been doing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProviderCircuitBreaker {
    failures: u32,
    /// When it may be tried again; one question at a time until it has answered.
    again: Option<Instant>,
    /// How long it is left alone.
    pause: Duration,
}

impl ProviderCircuitBreaker {
    /// Whether the place may be asked now. When its pause is over one may ask; whoever comes after waits for what becomes of
    /// that, or for another pause.
    pub fn try_admit(&mut self, now: Instant) -> bool {
        match self.again {
            None => true,
            Some(again) if now < again => false,
            Some(_) => {
                self.pause = (self.pause * 2).min(MAX_PAUSE);
                self.again = Some(now + self.pause);
                true
            }
        }
    }

    /// When it may be asked, if it may not be asked now.
    pub fn open_until(&self, now: Instant) -> Option<Instant> {
        self.again.filter(|again| now < *again)
    }

    /// The place answered.
    pub fn record_success(&mut self) {
        *self = Self::default();
    }

    /// The place failed. Gives whether it is left alone from now on.
    pub fn record_failure(&mut self, now: Instant) -> bool {
        self.failures += 1;
        if self.failures < FAILURE_THRESHOLD || self.again.is_some() {
            return false;
        }
        self.pause = INITIAL_PAUSE;
        self.again = Some(now + self.pause);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn after_five_failures_in_a_row_a_place_is_left_alone_and_then_tried_by_one() {
        let (mut breaker, start) = (ProviderCircuitBreaker::default(), Instant::now());
        for _ in 0..4 {
            assert!(!breaker.record_failure(start));
            assert!(breaker.try_admit(start));
        }
        assert!(breaker.record_failure(start));
        assert!(!breaker.try_admit(start));
        assert_eq!(breaker.open_until(start), Some(start + INITIAL_PAUSE));
        assert!(!breaker.record_failure(start), "others that were under way");
        let later = start + INITIAL_PAUSE;
        assert_eq!(breaker.open_until(start), Some(later));
        assert!(breaker.try_admit(later));
        assert!(!breaker.try_admit(later), "one at a time");
        assert!(!breaker.record_failure(later), "it was left alone before");
        assert!(!breaker.try_admit(later + INITIAL_PAUSE), "twice as long now");
        assert!(breaker.try_admit(later + 2 * INITIAL_PAUSE));
        breaker.record_success();
        assert_eq!(breaker, ProviderCircuitBreaker::default());
    }

    #[test]
    fn a_success_in_between_starts_the_count_anew() {
        let (mut breaker, start) = (ProviderCircuitBreaker::default(), Instant::now());
        for _ in 0..20 {
            for _ in 0..4 {
                assert!(!breaker.record_failure(start));
            }
            breaker.record_success();
        }
        assert!(breaker.try_admit(start));
    }

    #[test]
    fn no_pause_is_longer_than_two_minutes() {
        let (mut breaker, mut now) = (ProviderCircuitBreaker::default(), Instant::now());
        for _ in 0..40 {
            breaker.record_failure(now);
            now += MAX_PAUSE;
            breaker.try_admit(now);
        }
        assert_eq!(breaker.open_until(now), Some(now + MAX_PAUSE));
    }
}
