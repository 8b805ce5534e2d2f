//! Login throttling against brute force: exponential backoff per handle and source. After ten wrong passwords in a row
//! each wrong one blocks the handle for that source for 1 to 8 seconds. The rightful user on another source does not
//! wait for it. When several sources guess at one handle, each wrong password blocks the handle for all of them, for one
//! second. The counters live in the memory of this process only.

use std::{
    collections::HashMap,
    hash::Hash,
    sync::{Mutex, MutexGuard, PoisonError},
};

use cynode_core::names::Handle;
use cynode_net::server::ClientSource;
use time::{Duration, OffsetDateTime};

/// Number of failures in a row without a delay, because people mistype. More of one source do not count against the
/// handle: a single source never delays others.
const MAX_FREE_FAILURES: u32 = 10;

/// Number of failures of all sources without a delay for the handle.
const MAX_FREE_HANDLE_FAILURES: u32 = 3 * MAX_FREE_FAILURES;

/// Delay of a handle that several sources guess at. It stays short: the first attempt after it is checked, which need
/// not be that of the rightful user.
const HANDLE_DELAY: Duration = Duration::SECOND;

/// Number of times that the delay of one second is doubled. The delay stays short, and existing sessions and keys
/// keep working. During a brute-force attack the first attempt after each delay is checked, which need not be that of
/// the rightful user.
const MAX_BACKOFF_DOUBLINGS: u32 = 3;

/// Maximum number of concurrent attempts per handle and source before a failure: a program may log in often.
const MAX_CONCURRENT_ATTEMPTS: u32 = 32;

/// Failures are forgotten when there was no attempt for this long.
const FAILURE_TTL: Duration = Duration::minutes(15);

/// Maximum number of tracked handles, and of handles with a source. Each attempt costs the attacker a place in the
/// hashing queue, so evicting an entry takes long.
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

    /// Returns the delay for all sources, if these are the attempts of all.
    fn handle_delay(self) -> Duration {
        if self.wrong < MAX_FREE_HANDLE_FAILURES { Duration::ZERO } else { HANDLE_DELAY }
    }

    const fn begun_at(now: OffsetDateTime) -> Self {
        Self { wrong: 0, under_way: 0, last: now }
    }

    /// Fails with the time to wait while the delay lasts.
    fn check_delay(self, delay: Duration, now: OffsetDateTime) -> Result<(), std::time::Duration> {
        let left = delay - self.elapsed_since_last(now);
        if left.is_positive() { Err(left.unsigned_abs()) } else { Ok(()) }
    }

    fn begin_attempt(&mut self, now: OffsetDateTime) {
        self.under_way += 1;
        if self.wrong == 0 {
            self.last = now;
        }
    }
}

/// Recent failures by handle and source, and by handle alone. Handles without a user are treated alike.
#[derive(Default)]
pub(crate) struct LoginThrottle(Mutex<TrackedAttempts>);

#[derive(Default)]
struct TrackedAttempts {
    by_source: HashMap<(Handle, ClientSource), LoginAttempts>,
    by_handle: HashMap<Handle, LoginAttempts>,
}

impl LoginThrottle {
    fn lock_attempts(&self) -> MutexGuard<'_, TrackedAttempts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins an attempt. Returns the time to wait when the handle is throttled. The caller reports the outcome by
    /// [`record_failure`](Self::record_failure), [`record_success`](Self::record_success) or
    /// [`cancel_attempt`](Self::cancel_attempt).
    pub(crate) fn begin_attempt(
        &self,
        handle: &Handle,
        source: ClientSource,
        now: OffsetDateTime,
    ) -> Result<(), std::time::Duration> {
        let mut all = self.lock_attempts();
        let key = (handle.clone(), source);
        let mut own = recent_attempts(&all.by_source, &key, now);
        let mut shared = recent_attempts(&all.by_handle, handle, now);
        own.check_delay(own.backoff_delay(), now)?;
        shared.check_delay(shared.handle_delay(), now)?;
        // Concurrent attempts must not bypass the delay.
        let max = if own.wrong < MAX_FREE_FAILURES { MAX_CONCURRENT_ATTEMPTS } else { 1 };
        let guessed = shared.wrong >= MAX_FREE_HANDLE_FAILURES && shared.under_way > 0;
        if own.under_way >= max || guessed {
            return Err(std::time::Duration::from_secs(1));
        }
        own.begin_attempt(now);
        shared.begin_attempt(now);
        store_attempts(&mut all.by_source, key, own, now);
        store_attempts(&mut all.by_handle, handle.clone(), shared, now);
        Ok(())
    }

    /// Records a wrong password. Returns the number of failures in a row from this source.
    pub(crate) fn record_failure(
        &self,
        handle: &Handle,
        source: ClientSource,
        now: OffsetDateTime,
    ) -> u32 {
        let mut all = self.lock_attempts();
        let own = all.by_source.get_mut(&(handle.clone(), source)).map(|tried| {
            tried.under_way = tried.under_way.saturating_sub(1);
            tried.wrong = tried.wrong.saturating_add(1);
            tried.last = now;
            tried.wrong
        });
        let own = own.unwrap_or(1);
        if let Some(shared) = all.by_handle.get_mut(handle) {
            shared.under_way = shared.under_way.saturating_sub(1);
            shared.wrong = shared.wrong.saturating_add(u32::from(own <= MAX_FREE_FAILURES));
            shared.last = now;
        }
        own
    }

    /// Records a correct password and resets the failures.
    pub(crate) fn record_success(&self, handle: &Handle, source: ClientSource) {
        let mut all = self.lock_attempts();
        finish_attempt(&mut all.by_source, &(handle.clone(), source), |tried| tried.wrong = 0);
        finish_attempt(&mut all.by_handle, handle, |tried| tried.wrong = 0);
    }

    /// Records that the password was not verified.
    pub(crate) fn cancel_attempt(&self, handle: &Handle, source: ClientSource) {
        let mut all = self.lock_attempts();
        finish_attempt(&mut all.by_source, &(handle.clone(), source), |_| {});
        finish_attempt(&mut all.by_handle, handle, |_| {});
    }
}

/// Returns the attempts under a key that are not forgotten.
fn recent_attempts<K: Eq + Hash>(
    all: &HashMap<K, LoginAttempts>,
    key: &K,
    now: OffsetDateTime,
) -> LoginAttempts {
    let tried = all.get(key).copied().filter(|tried| tried.elapsed_since_last(now) < FAILURE_TTL);
    tried.unwrap_or(LoginAttempts::begun_at(now))
}

fn store_attempts<K: Clone + Eq + Hash>(
    all: &mut HashMap<K, LoginAttempts>,
    key: K,
    tried: LoginAttempts,
    now: OffsetDateTime,
) {
    if !all.contains_key(&key) && all.len() >= MAX_TRACKED_HANDLES {
        evict_oldest(all, now);
    }
    all.insert(key, tried);
}

fn finish_attempt<K: Eq + Hash>(
    all: &mut HashMap<K, LoginAttempts>,
    key: &K,
    change: impl FnOnce(&mut LoginAttempts),
) {
    if let Some(tried) = all.get_mut(key) {
        tried.under_way = tried.under_way.saturating_sub(1);
        change(tried);
        if (tried.wrong, tried.under_way) == (0, 0) {
            all.remove(key);
        }
    }
}

fn evict_oldest<K: Clone + Eq + Hash>(all: &mut HashMap<K, LoginAttempts>, now: OffsetDateTime) {
    all.retain(|_, tried| tried.elapsed_since_last(now) < FAILURE_TTL);
    if all.len() >= MAX_TRACKED_HANDLES {
        let oldest = all.iter().min_by_key(|(_, tried)| tried.last);
        if let Some(oldest) = oldest.map(|(key, _)| key.clone()) {
            all.remove(&oldest);
        }
    }
}

#[cfg(test)]
mod tests {
    use time::macros::datetime;

    use super::*;

    const NOON: OffsetDateTime = datetime!(2026-11-16 12:00 UTC);

    const HOME: ClientSource = ClientSource::LOCAL;

    fn handle(text: &str) -> Handle {
        text.parse().unwrap()
    }

    fn source(number: u8) -> ClientSource {
        ClientSource::from_address([192, 0, 2, number].into())
    }

    /// A wrong password; the number in a row, or the seconds to wait.
    fn try_wrong(
        guesses: &LoginThrottle,
        handle: &Handle,
        now: OffsetDateTime,
    ) -> Result<u32, u64> {
        try_wrong_from(guesses, handle, HOME, now)
    }

    fn try_wrong_from(
        guesses: &LoginThrottle,
        handle: &Handle,
        source: ClientSource,
        now: OffsetDateTime,
    ) -> Result<u32, u64> {
        guesses.begin_attempt(handle, source, now).map_err(|wait| wait.as_secs())?;
        Ok(guesses.record_failure(handle, source, now))
    }

    fn is_empty(guesses: &LoginThrottle) -> bool {
        let all = guesses.lock_attempts();
        all.by_source.is_empty() && all.by_handle.is_empty()
    }

    #[test]
    fn one_source_that_guesses_for_ever_never_delays_the_right_person_on_another() {
        let (guesses, bob) = (LoginThrottle::default(), handle("bob"));
        let (attacker, bobs_own) = (source(7), source(8));
        let mut now = NOON;
        let mut refused = 0;
        for _ in 0..1000 {
            now += Duration::SECOND;
            refused += u32::from(try_wrong_from(&guesses, &bob, attacker, now).is_err());
        }
        assert!(refused > 800, "only {refused} were refused");
        guesses.begin_attempt(&bob, bobs_own, now).unwrap();
        guesses.record_success(&bob, bobs_own);
        assert!(guesses.begin_attempt(&bob, attacker, now).is_err(), "it waits all the same");
    }

    #[test]
    fn many_sources_that_guess_at_one_handle_get_one_attempt_a_second_together() {
        let (guesses, bob) = (LoginThrottle::default(), handle("bob"));
        for number in 0..6 {
            for _ in 0..5 {
                try_wrong_from(&guesses, &bob, source(number), NOON).unwrap();
            }
        }
        let mut now = NOON;
        let mut passed = 0;
        for round in 0..100 {
            now += Duration::milliseconds(100);
            let new = source(10 + round);
            passed += u32::from(try_wrong_from(&guesses, &bob, new, now).is_ok());
        }
        assert_eq!(passed, 10);
        assert_eq!(try_wrong(&guesses, &handle("ann"), now), Ok(1));
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
        guesses.begin_attempt(&bob, HOME, NOON + Duration::SECOND).unwrap();
        guesses.record_success(&bob, HOME);
        assert!(is_empty(&guesses));
        guesses.begin_attempt(&bob, HOME, NOON).unwrap();
        guesses.cancel_attempt(&bob, HOME);
        assert!(is_empty(&guesses));
        wrong();
        assert_eq!(try_wrong(&guesses, &bob, NOON + FAILURE_TTL), Ok(1));
        guesses.record_success(&bob, HOME);
        wrong();
        // The clock was set back by an hour.
        assert_eq!(try_wrong(&guesses, &bob, NOON - Duration::HOUR), Ok(1));
    }

    #[test]
    fn many_may_log_in_at_once_until_passwords_are_wrong() {
        let (guesses, bob) = (LoginThrottle::default(), handle("bob"));
        for _ in 0..MAX_CONCURRENT_ATTEMPTS {
            guesses.begin_attempt(&bob, HOME, NOON).unwrap();
        }
        assert!(guesses.begin_attempt(&bob, HOME, NOON).is_err());
        guesses.record_success(&bob, HOME);
        guesses.begin_attempt(&bob, HOME, NOON).unwrap();
        let last =
            (0..MAX_CONCURRENT_ATTEMPTS).map(|_| guesses.record_failure(&bob, HOME, NOON)).last();
        assert_eq!(last, Some(MAX_CONCURRENT_ATTEMPTS));
        let later = NOON + Duration::seconds(8);
        guesses.begin_attempt(&bob, HOME, later).unwrap();
        assert!(guesses.begin_attempt(&bob, HOME, later).is_err(), "one at a time from then on");
    }

    #[test]
    fn a_bounded_number_of_handles_is_remembered_and_the_oldest_goes_first() {
        let guesses = LoginThrottle::default();
        let mut now = NOON;
        for number in 0..=MAX_TRACKED_HANDLES {
            now += Duration::MILLISECOND;
            guesses.begin_attempt(&handle(&format!("user-{number}")), HOME, now).unwrap();
        }
        let all = guesses.lock_attempts();
        assert_eq!(all.by_handle.len(), MAX_TRACKED_HANDLES);
        assert_eq!(all.by_source.len(), MAX_TRACKED_HANDLES);
        let is_tracked = |text: &str| {
            let handle = handle(text);
            (all.by_handle.contains_key(&handle), all.by_source.contains_key(&(handle, HOME)))
        };
        assert_eq!([is_tracked("user-0"), is_tracked("user-1")], [(false, false), (true, true)]);
    }
}
