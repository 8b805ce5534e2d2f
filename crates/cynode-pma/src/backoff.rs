//! Waiting longer and longer, and never in step with others.

use std::time::Duration;

/// First and longest wait.
const FIRST: Duration = Duration::from_millis(200);
const LONGEST: Duration = Duration::from_secs(15);

/// How long to wait after each failure in a row.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Backoff(u32);

impl Backoff {
    /// The next wait: about twice the one before, up to a bound, by chance between half and whole.
    pub(crate) fn next(&mut self) -> Duration {
        let wait = FIRST.saturating_mul(2u32.saturating_pow(self.0)).min(LONGEST);
        self.0 = self.0.saturating_add(1);
        wait.mul_f64(rand::random_range(0.5..=1.0))
    }

    /// Lets the next wait pass.
    pub(crate) async fn pass(&mut self) {
        let _ = tokio::time::timeout(self.next(), std::future::pending::<()>()).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_grow_to_a_bound_and_are_never_nothing() {
        let mut backoff = Backoff::default();
        for n in 0..100u32 {
            let wait = backoff.next();
            let whole = FIRST.saturating_mul(2u32.saturating_pow(n)).min(LONGEST);
            assert!(wait >= whole / 2 && wait <= whole, "{n}: {wait:?}");
        }
    }
}
