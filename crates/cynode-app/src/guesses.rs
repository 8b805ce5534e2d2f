//! Passwords that somebody tries one after the other. What is counted is kept in this process only.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

use cynode_core::names::Handle;
use time::{Duration, OffsetDateTime};

/// So many wrong passwords in a row cost nothing: people mistype.
const FREE: u32 = 10;

/// How often the pause is doubled, from a second on. It stays short, and sessions and keys that are there go on working. While
/// somebody guesses, whoever comes first after a pause is looked at, and that need not be the person.
const DOUBLINGS: u32 = 3;

/// Most passwords of a handle that are looked at at once, before any was found to be wrong: a program may log in often.
const AT_ONCE: u32 = 32;

/// When nothing was tried for so long, it is forgotten.
const FORGOTTEN: Duration = Duration::minutes(15);

/// Most handles that are remembered. Each costs whoever tries it a place at the hasher, so it takes long to push one out.
const MOST: usize = 10_000;

#[derive(Clone, Copy, Debug)]
struct Tried {
    /// In a row.
    wrong: u32,
    /// Being looked at.
    under_way: u32,
    /// When the last was begun or found to be wrong.
    last: OffsetDateTime,
}

impl Tried {
    /// How long ago the last was. A clock that was set back must not make a pause longer.
    fn since(self, now: OffsetDateTime) -> Duration {
        (now - self.last).abs()
    }

    fn pause(self) -> Duration {
        let more = self.wrong.checked_sub(FREE);
        more.map_or(Duration::ZERO, |more| Duration::seconds(1_i64 << more.min(DOUBLINGS)))
    }
}

/// Wrong passwords of late, by handle. Whether there is a user of that handle makes no difference.
#[derive(Default)]
pub(crate) struct Guesses(Mutex<HashMap<Handle, Tried>>);

impl Guesses {
    fn all(&self) -> MutexGuard<'_, HashMap<Handle, Tried>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A password is to be looked at; says how long to wait when it is too early for another. What comes of it is told by
    /// [`wrong`](Self::wrong), [`right`](Self::right) or [`take_back`](Self::take_back).
    pub(crate) fn begin(
        &self,
        handle: &Handle,
        now: OffsetDateTime,
    ) -> Result<(), std::time::Duration> {
        let mut all = self.all();
        let before = all.get(handle).copied().filter(|tried| tried.since(now) < FORGOTTEN);
        let mut tried = before.unwrap_or(Tried { wrong: 0, under_way: 0, last: now });
        let left = tried.pause() - tried.since(now);
        if left.is_positive() {
            return Err(left.unsigned_abs());
        }
        // Trying many at once is no way around the pause.
        if tried.under_way >= if tried.wrong < FREE { AT_ONCE } else { 1 } {
            return Err(std::time::Duration::from_secs(1));
        }
        if before.is_none() && all.len() >= MOST {
            make_room(&mut all, now);
        }
        tried.under_way += 1;
        if tried.wrong == 0 {
            tried.last = now;
        }
        all.insert(handle.clone(), tried);
        Ok(())
    }

    /// The password was wrong. Gives the number in a row.
    pub(crate) fn wrong(&self, handle: &Handle, now: OffsetDateTime) -> u32 {
        let mut all = self.all();
        let Some(tried) = all.get_mut(handle) else { return 1 };
        tried.under_way = tried.under_way.saturating_sub(1);
        tried.wrong = tried.wrong.saturating_add(1);
        tried.last = now;
        tried.wrong
    }

    /// The password was right.
    pub(crate) fn right(&self, handle: &Handle) {
        self.ended(handle, |tried| tried.wrong = 0);
    }

    /// Nobody looked at the password.
    pub(crate) fn take_back(&self, handle: &Handle) {
        self.ended(handle, |_| {});
    }

    fn ended(&self, handle: &Handle, change: impl FnOnce(&mut Tried)) {
        let mut all = self.all();
        if let Some(tried) = all.get_mut(handle) {
            tried.under_way = tried.under_way.saturating_sub(1);
            change(tried);
            if (tried.wrong, tried.under_way) == (0, 0) {
                all.remove(handle);
            }
        }
    }
}

fn make_room(all: &mut HashMap<Handle, Tried>, now: OffsetDateTime) {
    all.retain(|_, tried| tried.since(now) < FORGOTTEN);
    if all.len() >= MOST {
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
    fn try_wrong(guesses: &Guesses, handle: &Handle, now: OffsetDateTime) -> Result<u32, u64> {
        guesses.begin(handle, now).map_err(|wait| wait.as_secs())?;
        Ok(guesses.wrong(handle, now))
    }

    #[test]
    fn the_pause_grows_with_each_wrong_password_and_stays_short() {
        let (guesses, bob) = (Guesses::default(), handle("bob"));
        for number in 1..=FREE {
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
        let (guesses, bob) = (Guesses::default(), handle("bob"));
        let wrong = || {
            for number in 1..=FREE {
                assert_eq!(try_wrong(&guesses, &bob, NOON), Ok(number));
            }
        };
        wrong();
        guesses.begin(&bob, NOON + Duration::SECOND).unwrap();
        guesses.right(&bob);
        assert!(guesses.all().is_empty());
        guesses.begin(&bob, NOON).unwrap();
        guesses.take_back(&bob);
        assert!(guesses.all().is_empty());
        wrong();
        assert_eq!(try_wrong(&guesses, &bob, NOON + FORGOTTEN), Ok(1));
        guesses.right(&bob);
        wrong();
        // The clock was set back by an hour.
        assert_eq!(try_wrong(&guesses, &bob, NOON - Duration::HOUR), Ok(1));
    }

    #[test]
    fn many_may_log_in_at_once_until_passwords_are_wrong() {
        let (guesses, bob) = (Guesses::default(), handle("bob"));
        for _ in 0..AT_ONCE {
            guesses.begin(&bob, NOON).unwrap();
        }
        assert!(guesses.begin(&bob, NOON).is_err());
        guesses.right(&bob);
        guesses.begin(&bob, NOON).unwrap();
        let last = (0..AT_ONCE).map(|_| guesses.wrong(&bob, NOON)).last();
        assert_eq!(last, Some(AT_ONCE));
        let later = NOON + Duration::seconds(8);
        guesses.begin(&bob, later).unwrap();
        assert!(guesses.begin(&bob, later).is_err(), "one at a time from then on");
    }

    #[test]
    fn a_bounded_number_of_handles_is_remembered_and_the_oldest_goes_first() {
        let guesses = Guesses::default();
        let mut now = NOON;
        for number in 0..=MOST {
            now += Duration::MILLISECOND;
            guesses.begin(&handle(&format!("user-{number}")), now).unwrap();
        }
        let all = guesses.all();
        assert_eq!(all.len(), MOST);
        assert!(!all.contains_key(&handle("user-0")) && all.contains_key(&handle("user-1")));
    }
}
