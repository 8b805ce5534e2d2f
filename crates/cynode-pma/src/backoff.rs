//! Exponential backoff with jitter, so that processes do not retry in step.

use std::time::Duration;

/// First and longest wait.
const INITIAL_BACKOFF: Duration = Duration::from_millis(200);
const MAX_BACKOFF: Duration = Duration::from_secs(15);

/// How long to wait after each failure in a row.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct JitteredBackoff(u32);

impl JitteredBackoff {
    /// The next wait: about twice the one before, up to a bound, by chance between half and whole.
    pub(crate) fn next(&mut self) -> Duration {
        let wait = INITIAL_BACKOFF.saturating_mul(2u32.saturating_pow(self.0)).min(MAX_BACKOFF);
        self.0 = self.0.saturating_add(1);
        wait.mul_f64(rand::random_range(0.5..=1.0))
    }

    /// Lets the next wait pass.
    pub(crate) async fn sleep_next(&mut self) {
        let _ = tokio::time::timeout(self.next(), std::future::pending::<()>()).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_grow_to_a_bound_and_are_never_nothing() {
        let mut backoff = JitteredBackoff::default();
        for n in 0..100u32 {
            let wait = backoff.next();
            let whole = INITIAL_BACKOFF.saturating_mul(2u32.saturating_pow(n)).min(MAX_BACKOFF);
            assert!(wait >= whole / 2 && wait <= whole, "{n}: {wait:?}");
        }
    }
}
