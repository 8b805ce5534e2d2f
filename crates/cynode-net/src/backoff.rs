//! Exponential backoff: the delay doubles after each failure in a row, up to a maximum. Jitter keeps processes from
//! retrying in step.

use std::time::Duration;

/// Random share of a delay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Jitter {
    /// No randomness: the delay is exact. For a single process that retries.
    None,
    /// The delay is random between half of the computed delay and all of it. For many processes that call the same server.
    Half,
}

/// Configuration and failure count of a backoff. A copy has its own failure count, so a constant can hold the configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    initial: Duration,
    max: Duration,
    jitter: Jitter,
    failures: u32,
}

impl Backoff {
    /// Creates a backoff that starts at `initial` and never exceeds `max`.
    pub const fn new(initial: Duration, max: Duration, jitter: Jitter) -> Self {
        Self { initial, max, jitter, failures: 0 }
    }

    /// Counts a failure and returns the delay before the next attempt.
    pub fn next_delay(&mut self) -> Duration {
        let delay = exponential_delay(self.initial, self.max, self.failures);
        self.failures = self.failures.saturating_add(1);
        match self.jitter {
            Jitter::None => delay,
            Jitter::Half => delay.mul_f64(rand::random_range(0.5..=1.0)),
        }
    }

    /// Counts a failure and waits until the next attempt is due.
    pub async fn wait_next_delay(&mut self) {
        let _ = tokio::time::timeout(self.next_delay(), std::future::pending::<()>()).await;
    }

    /// Resets the delay to the initial one. Callers call it after a success.
    pub const fn reset_failures(&mut self) {
        self.failures = 0;
    }
}

/// Returns `initial` doubled `doublings` times, but at most `max`.
pub(crate) fn exponential_delay(initial: Duration, max: Duration, doublings: u32) -> Duration {
    initial.saturating_mul(2_u32.saturating_pow(doublings)).min(max)
}

#[cfg(test)]
mod tests {
    use super::*;

    const INITIAL: Duration = Duration::from_millis(200);
    const MAX: Duration = Duration::from_secs(15);

    #[test]
    fn jittered_delays_grow_to_the_maximum_and_are_never_zero() {
        let mut backoff = Backoff::new(INITIAL, MAX, Jitter::Half);
        for n in 0..100_u32 {
            let delay = backoff.next_delay();
            let whole = INITIAL.saturating_mul(2_u32.saturating_pow(n)).min(MAX);
            assert!(delay >= whole / 2 && delay <= whole, "{n}: {delay:?}");
        }
    }

    #[test]
    fn delays_without_jitter_are_exact_and_a_success_resets_them() {
        let mut backoff = Backoff::new(INITIAL, MAX, Jitter::None);
        let mut delays = || [0; 8].map(|_| backoff.next_delay().as_millis());
        assert_eq!(delays(), [200, 400, 800, 1600, 3200, 6400, 12_800, 15_000]);
        assert_eq!(delays(), [15_000; 8]);
        backoff.reset_failures();
        assert_eq!(backoff.next_delay(), INITIAL);
    }
}
