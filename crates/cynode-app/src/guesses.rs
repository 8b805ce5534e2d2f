//! Passwords that somebody tries one after the other. What is counted is kept in this process only.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

use cynode_core::names::Handle;
use time::{Duration, OffsetDateTime};

/// So many wrong passwords in a row cost nothing: people mistype.
const FREE: u32 = 10;

/// How often the pause is doubled, from a second on. It stays short: a guess keeps the person from logging in for no longer
/// than this, and sessions and keys that are there go on working. While somebody guesses, whoever comes first after a pause
/// is looked at.
const DOUBLINGS: u32 = 3;

/// When nothing was tried for so long, it is forgotten.
const FORGOTTEN: Duration = Duration::minutes(15);

/// Most handles that are remembered. Each costs whoever tries it a place at the hasher, so it takes long to push one out.
const MOST: usize = 10_000;

#[derive(Clone, Copy, Debug)]
struct Tried {
    wrong: u32,
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

    /// Counts a password as wrong before it is looked at, so that trying many at once is no way around. Gives the number
    /// in a row, or how long to wait when it is too early for another.
    pub(crate) fn begin(
        &self,
        handle: &Handle,
        now: OffsetDateTime,
    ) -> Result<u32, std::time::Duration> {
        let mut all = self.all();
        let before = all.get(handle).copied().filter(|tried| tried.since(now) < FORGOTTEN);
        let left = before.map_or(Duration::ZERO, |tried| tried.pause() - tried.since(now));
        if left.is_positive() {
            return Err(left.unsigned_abs());
        }
        if all.len() >= MOST {
            make_room(&mut all, now);
        }
        let wrong = before.map_or(0, |tried| tried.wrong).saturating_add(1);
        all.insert(handle.clone(), Tried { wrong, last: now });
        Ok(wrong)
    }

    /// The password was right.
    pub(crate) fn right(&self, handle: &Handle) {
        self.all().remove(handle);
    }

    /// Nobody looked at the password.
    pub(crate) fn take_back(&self, handle: &Handle) {
        let mut all = self.all();
        if let Some(tried) = all.get_mut(handle) {
            tried.wrong = tried.wrong.saturating_sub(1);
            if tried.wrong == 0 {
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

    #[test]
    fn the_pause_grows_with_each_wrong_password_and_stays_short() {
        let (guesses, bob) = (Guesses::default(), handle("bob"));
        for number in 1..=FREE {
            assert_eq!(guesses.begin(&bob, NOON), Ok(number));
        }
        let mut now = NOON;
        let pauses = [1, 2, 4, 8, 8, 8].map(|seconds| {
            let early = guesses.begin(&bob, now);
            now += Duration::seconds(seconds);
            assert!(guesses.begin(&bob, now).is_ok());
            early.unwrap_err().as_secs()
        });
        assert_eq!(pauses, [1, 2, 4, 8, 8, 8]);
        assert_eq!(guesses.begin(&handle("ann"), now), Ok(1), "another handle is no part of it");
    }

    #[test]
    fn what_was_right_long_ago_or_never_looked_at_is_not_counted() {
        let (guesses, bob) = (Guesses::default(), handle("bob"));
        let wrong = || {
            for number in 1..=FREE {
                assert_eq!(guesses.begin(&bob, NOON), Ok(number));
            }
        };
        wrong();
        guesses.right(&bob);
        assert_eq!(guesses.begin(&bob, NOON), Ok(1));
        guesses.take_back(&bob);
        assert!(guesses.all().is_empty());
        wrong();
        assert_eq!(guesses.begin(&bob, NOON + FORGOTTEN), Ok(1));
        wrong();
        // The clock was set back by an hour.
        assert_eq!(guesses.begin(&bob, NOON - Duration::HOUR), Ok(1));
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
