//! Login throttling against brute force: exponential backoff per handle. After ten wrong passwords in a row each wrong
//! one blocks the handle for 1 to 8 seconds. The counters live in the memory of this process only.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

use cynode_core::names::Handle;
use time::{Duration, OffsetDateTime};

/// Number of failures in a row without a delay, because people mistype.
const MAX_FREE_FAILURES: u32 = 10;

/// Number of times that the delay of one second is doubled. The delay stays short, and existing sessions and keys
/// keep working. During a brute-force attack the first attempt after each delay is checked, which need not be that of
/// the rightful user.
const MAX_BACKOFF_DOUBLINGS: u32 = 3;

/// Maximum number of concurrent attempts per handle before a failure: a program may log in often.
const MAX_CONCURRENT_ATTEMPTS: u32 = 32;

/// Failures are forgotten when there was no attempt for this long.
const FAILURE_TTL: Duration = Duration::minutes(15);

/// Maximum number of tracked handles. Each attempt costs the attacker a place in the hashing queue, so evicting an
/// entry takes long.
const MAX_TRACKED_HANDLES: usize = 10_000;

#[derive(Clone, Copy, Debug)]
struct LoginAttempts {
    /// Failures in a row.
    wrong: u32,
    /// Attempts that are being verified.
    under_way: u32,
    /// Time of the last attempt or failure.
    last: OffsetDateTime,
}

impl LoginAttempts {
    /// Returns the time since the last attempt. A clock that was set back must not prolong the delay.
    fn elapsed_since_last(self, now: OffsetDateTime) -> Duration {
        (now - self.last).abs()
    }

    fn backoff_delay(self) -> Duration {
        let more = self.wrong.checked_sub(MAX_FREE_FAILURES);
        more.map_or(Duration::ZERO, |more| {
            Duration::seconds(1_i64 << more.min(MAX_BACKOFF_DOUBLINGS))
        })
    }
}

/// Recent failures by handle. Handles without a user are treated alike.
#[derive(Default)]
pub(crate) struct LoginThrottle(Mutex<HashMap<Handle, LoginAttempts>>);

impl LoginThrottle {
    fn lock_attempts(&self) -> MutexGuard<'_, HashMap<Handle, LoginAttempts>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins an attempt. Returns the time to wait when the handle is throttled. The caller reports the outcome by
    /// [`record_failure`](Self::record_failure), [`record_success`](Self::record_success) or
    /// [`cancel_attempt`](Self::cancel_attempt).
    pub(crate) fn begin_attempt(
        &self,
        handle: &Handle,
        now: OffsetDateTime,
    ) -> Result<(), std::time::Duration> {
        let mut all = self.lock_attempts();
        let before =
            all.get(handle).copied().filter(|tried| tried.elapsed_since_last(now) < FAILURE_TTL);
        let mut tried = before.unwrap_or(LoginAttempts { wrong: 0, under_way: 0, last: now });
        let left = tried.backoff_delay() - tried.elapsed_since_last(now);
        if left.is_positive() {
            return Err(left.unsigned_abs());
        }
        // Concurrent attempts must not bypass the delay.
        if tried.under_way
            >= if tried.wrong < MAX_FREE_FAILURES { MAX_CONCURRENT_ATTEMPTS } else { 1 }
        {
            return Err(std::time::Duration::from_secs(1));
        }
        if before.is_none() && all.len() >= MAX_TRACKED_HANDLES {
            evict_oldest(&mut all, now);
        }
        tried.under_way += 1;
        if tried.wrong == 0 {
            tried.last = now;
        }
        all.insert(handle.clone(), tried);
        Ok(())
    }

    /// Records a wrong password. Returns the number of failures in a row.
    pub(crate) fn record_failure(&self, handle: &Handle, now: OffsetDateTime) -> u32 {
        let mut all = self.lock_attempts();
        let Some(tried) = all.get_mut(handle) else { return 1 };
        tried.under_way = tried.under_way.saturating_sub(1);
        tried.wrong = tried.wrong.saturating_add(1);
        tried.last = now;
        tried.wrong
    }

    /// Records a correct password and resets the failures.
    pub(crate) fn record_success(&self, handle: &Handle) {
        self.finish_attempt(handle, |tried| tried.wrong = 0);
    }

    /// Records that the password was not verified.
    pub(crate) fn cancel_attempt(&self, handle: &Handle) {
        self.finish_attempt(handle, |_| {});
    }

    fn finish_attempt(&self, handle: &Handle, change: impl FnOnce(&mut LoginAttempts)) {
        let mut all = self.lock_attempts();
        if let Some(tried) = all.get_mut(handle) {
            tried.under_way = tried.under_way.saturating_sub(1);
            change(tried);
            if (tried.wrong, tried.under_way) == (0, 0) {
                all.remove(handle);
            }
        }
    }
}

fn evict_oldest(all: &mut HashMap<Handle, LoginAttempts>, now: OffsetDateTime) {
    all.retain(|_, tried| tried.elapsed_since_last(now) < FAILURE_TTL);
    if all.len() >= MAX_TRACKED_HANDLES {
        let oldest = all.iter().min_by_key(|(_, tried)| tried.last);
        if let Some(oldest) = oldest.map(|(handle, _)| handle.clone()) {
            all.remove(&oldest);
        }
    }
}

#[cfg(test)]
mod tests {
    use time::macros::datetime;

    use super::*;

    const NOON: OffsetDateTime = datetime!(2026-11-16 12:00 UTC);

    fn handle(text: &str) -> Handle {
        text.parse().unwrap()
    }

    /// A wrong password; the number in a row, or the seconds to wait.
    fn try_wrong(
        guesses: &LoginThrottle,
        handle: &Handle,
        now: OffsetDateTime,
    ) -> Result<u32, u64> {
        guesses.begin_attempt(handle, now).map_err(|wait| wait.as_secs())?;
        Ok(guesses.record_failure(handle, now))
    }

    #[test]
    fn the_pause_grows_with_each_wrong_password_and_stays_short() {
        let (guesses, bob) = (LoginThrottle::default(), handle("bob"));
        for number in 1..=MAX_FREE_FAILURES {
            assert_eq!(try_wrong(&guesses, &bob, NOON), Ok(number));
        }
        let mut now = NOON;
        let pauses = [1, 2, 4, 8, 8, 8].map(|seconds| {
            let early = try_wrong(&guesses, &bob, now);
            now += Duration::seconds(seconds);
            assert!(try_wrong(&guesses, &bob, now).is_ok());
            early.unwrap_err()
        });
        assert_eq!(pauses, [1, 2, 4, 8, 8, 8]);
        let ann = try_wrong(&guesses, &handle("ann"), now);
        assert_eq!(ann, Ok(1), "another handle is no part of it");
    }

    #[test]
    fn what_was_right_long_ago_or_never_looked_at_is_not_counted() {
        let (guesses, bob) = (LoginThrottle::default(), handle("bob"));
        let wrong = || {
            for number in 1..=MAX_FREE_FAILURES {
                assert_eq!(try_wrong(&guesses, &bob, NOON), Ok(number));
            }
        };
        wrong();
        guesses.begin_attempt(&bob, NOON + Duration::SECOND).unwrap();
        guesses.record_success(&bob);
        assert!(guesses.lock_attempts().is_empty());
        guesses.begin_attempt(&bob, NOON).unwrap();
        guesses.cancel_attempt(&bob);
        assert!(guesses.lock_attempts().is_empty());
        wrong();
        assert_eq!(try_wrong(&guesses, &bob, NOON + FAILURE_TTL), Ok(1));
        guesses.record_success(&bob);
        wrong();
        // The clock was set back by an hour.
        assert_eq!(try_wrong(&guesses, &bob, NOON - Duration::HOUR), Ok(1));
    }

    #[test]
    fn many_may_log_in_at_once_until_passwords_are_wrong() {
        let (guesses, bob) = (LoginThrottle::default(), handle("bob"));
        for _ in 0..MAX_CONCURRENT_ATTEMPTS {
            guesses.begin_attempt(&bob, NOON).unwrap();
        }
        assert!(guesses.begin_attempt(&bob, NOON).is_err());
        guesses.record_success(&bob);
        guesses.begin_attempt(&bob, NOON).unwrap();
        let last = (0..MAX_CONCURRENT_ATTEMPTS).map(|_| guesses.record_failure(&bob, NOON)).last();
        assert_eq!(last, Some(MAX_CONCURRENT_ATTEMPTS));
        let later = NOON + Duration::seconds(8);
        guesses.begin_attempt(&bob, later).unwrap();
        assert!(guesses.begin_attempt(&bob, later).is_err(), "one at a time from then on");
    }

    #[test]
    fn a_bounded_number_of_handles_is_remembered_and_the_oldest_goes_first() {
        let guesses = LoginThrottle::default();
        let mut now = NOON;
        for number in 0..=MAX_TRACKED_HANDLES {
            now += Duration::MILLISECOND;
            guesses.begin_attempt(&handle(&format!("user-{number}")), now).unwrap();
        }
        let all = guesses.lock_attempts();
        assert_eq!(all.len(), MAX_TRACKED_HANDLES);
        assert!(!all.contains_key(&handle("user-0")) && all.contains_key(&handle("user-1")));
    }
}
