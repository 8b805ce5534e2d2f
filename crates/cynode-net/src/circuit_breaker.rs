//! Circuit breaker: opens after a number of failures in a row and stops calls for a pause. Failures after that double
//! the pause, up to a maximum. Only a success closes the breaker.

use std::time::{Duration, Instant};

use crate::backoff::exponential_delay;

/// Which callers the breaker admits once the pause is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HalfOpen {
    /// The breaker admits one caller, which probes the server. The probe opens the breaker for the doubled pause, and all other callers
    /// wait for its result or for the end of that pause. Failures of calls that were in flight do not prolong a pause.
    SingleProbe,
    /// The breaker admits every caller. Each failure opens the breaker again, for twice as long as the previous pause. For callers that
    /// call one after another anyway.
    AllCallers,
}

/// Configuration of a [`CircuitBreaker`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CircuitBreakerConfig {
    /// Number of failures in a row that open the breaker.
    pub failure_threshold: u32,
    /// Length of the first pause.
    pub initial_pause: Duration,
    /// Maximum length of a pause.
    pub max_pause: Duration,
    /// Which callers the breaker admits once the pause is over.
    pub half_open: HalfOpen,
}

/// Circuit breaker of one server. It starts closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CircuitBreaker {
    config: CircuitBreakerConfig,
    failures: u32,
    /// Number of times the pause was doubled.
    doublings: u32,
    /// End of the latest pause. `None` while the breaker is closed.
    open_until: Option<Instant>,
}

impl CircuitBreaker {
    /// Creates a closed breaker.
    pub const fn new(config: CircuitBreakerConfig) -> Self {
        Self { config, failures: 0, doublings: 0, open_until: None }
    }

    /// Returns whether the caller may call now. With [`HalfOpen::SingleProbe`], the caller that is admitted after a pause is the probe.
    pub fn try_admit(&mut self, now: Instant) -> bool {
        match (self.open_until, self.config.half_open) {
            (None, _) => true,
            (Some(until), _) if now < until => false,
            (Some(_), HalfOpen::AllCallers) => true,
            (Some(_), HalfOpen::SingleProbe) => {
                self.doublings = self.doublings.saturating_add(1);
                self.open_for_pause(now);
                true
            }
        }
    }

    /// Returns the time until calls are admitted again. Returns `None` if they are admitted now.
    pub fn retry_after(&self, now: Instant) -> Option<Duration> {
        let left = self.open_until?.saturating_duration_since(now);
        (!left.is_zero()).then_some(left)
    }

    /// Records a success and closes the breaker.
    pub const fn record_success(&mut self) {
        *self = Self::new(self.config);
    }

    /// Records a failure. Returns whether this failure opened a closed breaker.
    pub fn record_failure(&mut self, now: Instant) -> bool {
        self.record_failure_with_threshold(self.config.failure_threshold, now)
    }

    /// Records a failure that is weaker evidence of an outage: it opens a closed breaker only as the `threshold`th failure in a row.
    /// Returns whether this failure opened a closed breaker.
    pub fn record_failure_with_threshold(&mut self, threshold: u32, now: Instant) -> bool {
        self.failures = self.failures.saturating_add(1);
        let was_closed = self.open_until.is_none();
        let may_open = was_closed || self.config.half_open == HalfOpen::AllCallers;
        if self.failures < threshold || !may_open {
            return false;
        }
        self.doublings = self.failures.saturating_sub(self.config.failure_threshold);
        self.open_for_pause(now);
        was_closed
    }

    fn open_for_pause(&mut self, now: Instant) {
        let CircuitBreakerConfig { initial_pause, max_pause, .. } = self.config;
        self.open_until = Some(now + exponential_delay(initial_pause, max_pause, self.doublings));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INITIAL_PAUSE: Duration = Duration::from_secs(10);
    const MAX_PAUSE: Duration = Duration::from_mins(2);

    fn with_probe() -> CircuitBreaker {
        CircuitBreaker::new(CircuitBreakerConfig {
            failure_threshold: 5,
            initial_pause: INITIAL_PAUSE,
            max_pause: MAX_PAUSE,
            half_open: HalfOpen::SingleProbe,
        })
    }

    fn without_probe() -> CircuitBreaker {
        CircuitBreaker::new(CircuitBreakerConfig {
            failure_threshold: 1,
            initial_pause: Duration::from_millis(500),
            max_pause: Duration::from_mins(1),
            half_open: HalfOpen::AllCallers,
        })
    }

    #[test]
    fn five_failures_in_a_row_open_the_breaker_and_one_caller_probes() {
        let (mut breaker, start) = (with_probe(), Instant::now());
        for _ in 0..4 {
            assert!(!breaker.record_failure(start));
            assert!(breaker.try_admit(start));
        }
        assert!(breaker.record_failure(start));
        assert!(!breaker.try_admit(start));
        assert_eq!(breaker.retry_after(start), Some(INITIAL_PAUSE));
        assert!(!breaker.record_failure(start), "others that were in flight");
        let later = start + INITIAL_PAUSE;
        assert_eq!(breaker.retry_after(start), Some(INITIAL_PAUSE));
        assert!(breaker.try_admit(later));
        assert!(!breaker.try_admit(later), "one at a time");
        assert!(!breaker.record_failure(later), "it was open before");
        assert!(!breaker.try_admit(later + INITIAL_PAUSE), "twice as long now");
        assert!(breaker.try_admit(later + 2 * INITIAL_PAUSE));
        breaker.record_success();
        assert_eq!(breaker, with_probe());
    }

    #[test]
    fn a_success_starts_the_count_anew() {
        let (mut breaker, start) = (with_probe(), Instant::now());
        for _ in 0..20 {
            for _ in 0..4 {
                assert!(!breaker.record_failure(start));
            }
            breaker.record_success();
        }
        assert!(breaker.try_admit(start));
    }

    #[test]
    fn no_pause_after_a_probe_is_longer_than_the_maximum() {
        let (mut breaker, mut now) = (with_probe(), Instant::now());
        for _ in 0..40 {
            breaker.record_failure(now);
            now += MAX_PAUSE;
            breaker.try_admit(now);
        }
        assert_eq!(breaker.retry_after(now), Some(MAX_PAUSE));
    }

    #[test]
    fn without_a_probe_each_failure_doubles_the_pause_up_to_the_maximum() {
        let (mut breaker, now) = (without_probe(), Instant::now());
        let pauses = [0; 9].map(|_| {
            breaker.record_failure(now);
            breaker.retry_after(now).unwrap().as_millis()
        });
        assert_eq!(pauses, [500, 1000, 2000, 4000, 8000, 16_000, 32_000, 60_000, 60_000]);
    }

    #[test]
    fn without_a_probe_all_callers_are_admitted_after_the_pause() {
        let (mut breaker, now) = (without_probe(), Instant::now());
        assert!(breaker.record_failure(now));
        assert!(!breaker.try_admit(now));
        let later = now + Duration::from_millis(500);
        assert_eq!(breaker.retry_after(later), None);
        assert!(breaker.try_admit(later) && breaker.try_admit(later));
        assert!(!breaker.record_failure(later), "it was open before");
        assert_eq!(breaker.retry_after(later), Some(Duration::from_secs(1)));
    }

    #[test]
    fn a_failure_with_a_higher_threshold_counts_without_opening_the_breaker() {
        let (mut breaker, now) = (without_probe(), Instant::now());
        assert!(!breaker.record_failure_with_threshold(2, now));
        assert_eq!(breaker.retry_after(now), None);
        assert!(breaker.record_failure_with_threshold(2, now));
        assert_eq!(breaker.retry_after(now), Some(Duration::from_secs(1)));
    }

    #[test]
    fn a_success_clears_everything() {
        let (mut breaker, now) = (without_probe(), Instant::now());
        breaker.record_failure(now);
        breaker.record_success();
        breaker.record_failure_with_threshold(2, now);
        assert_eq!(breaker.retry_after(now), None);
    }
}
