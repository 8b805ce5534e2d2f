//! Leaves a place alone that keeps failing.

use std::time::{Duration, Instant};

/// After how many failures in a row.
const FAILURES: u32 = 5;

/// How long at first.
const FIRST: Duration = Duration::from_secs(10);

/// How long at most.
const LONGEST: Duration = Duration::from_mins(2);

/// How a place has been doing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Breaker {
    failures: u32,
    /// When it may be tried again; one question at a time until it has answered.
    again: Option<Instant>,
    /// How long it is left alone.
    pause: Duration,
}

impl Breaker {
    /// Whether the place may be asked now. When its pause is over one may ask; whoever comes after waits for what becomes of
    /// that, or for another pause.
    pub fn admits(&mut self, now: Instant) -> bool {
        match self.again {
            None => true,
            Some(again) if now < again => false,
            Some(_) => {
                self.pause = (self.pause * 2).min(LONGEST);
                self.again = Some(now + self.pause);
                true
            }
        }
    }

    /// When it may be asked, if it may not be asked now.
    pub fn closed_until(&self, now: Instant) -> Option<Instant> {
        self.again.filter(|again| now < *again)
    }

    /// The place answered.
    pub fn succeeded(&mut self) {
        *self = Self::default();
    }

    /// The place failed. Gives whether it is left alone from now on.
    pub fn failed(&mut self, now: Instant) -> bool {
        self.failures += 1;
        if self.failures < FAILURES || self.again.is_some() {
            return false;
        }
        self.pause = FIRST;
        self.again = Some(now + self.pause);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn after_five_failures_in_a_row_a_place_is_left_alone_and_then_tried_by_one() {
        let (mut breaker, start) = (Breaker::default(), Instant::now());
        for _ in 0..4 {
            assert!(!breaker.failed(start));
            assert!(breaker.admits(start));
        }
        assert!(breaker.failed(start));
        assert!(!breaker.admits(start));
        assert_eq!(breaker.closed_until(start), Some(start + FIRST));
        assert!(!breaker.failed(start), "others that were under way");
        let later = start + FIRST;
        assert_eq!(breaker.closed_until(start), Some(later));
        assert!(breaker.admits(later));
        assert!(!breaker.admits(later), "one at a time");
        assert!(!breaker.failed(later), "it was left alone before");
        assert!(!breaker.admits(later + FIRST), "twice as long now");
        assert!(breaker.admits(later + 2 * FIRST));
        breaker.succeeded();
        assert_eq!(breaker, Breaker::default());
    }

    #[test]
    fn a_success_in_between_starts_the_count_anew() {
        let (mut breaker, start) = (Breaker::default(), Instant::now());
        for _ in 0..20 {
            for _ in 0..4 {
                assert!(!breaker.failed(start));
            }
            breaker.succeeded();
        }
        assert!(breaker.admits(start));
    }

    #[test]
    fn no_pause_is_longer_than_two_minutes() {
        let (mut breaker, mut now) = (Breaker::default(), Instant::now());
        for _ in 0..40 {
            breaker.failed(now);
            now += LONGEST;
            breaker.admits(now);
        }
        assert_eq!(breaker.closed_until(now), Some(now + LONGEST));
    }
}
