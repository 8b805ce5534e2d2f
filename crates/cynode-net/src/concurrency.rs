//! Concurrency limits: how many of something may be open at once, by key.

use std::{
    collections::HashMap,
    hash::Hash,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

type OpenCounts<K> = Arc<Mutex<HashMap<K, usize>>>;

/// Counts what is open by key, such as the connections of a source. Keys with nothing open take no memory. Cloning it is cheap.
#[derive(Clone, Debug)]
pub struct ConcurrencyLimiter<K> {
    open: OpenCounts<K>,
}

impl<K> Default for ConcurrencyLimiter<K> {
    fn default() -> Self {
        Self { open: Arc::default() }
    }
}

impl<K: Clone + Eq + Hash> ConcurrencyLimiter<K> {
    /// Opens one more under each of these keys, which have a maximum each. Under all keys or under none: returns the first key whose
    /// maximum is reached.
    pub fn try_acquire(
        &self,
        wanted: impl IntoIterator<Item = (K, usize)>,
    ) -> Result<ConcurrencyPermit<K>, K> {
        let mut permit = ConcurrencyPermit { open: self.open.clone(), keys: Vec::new() };
        for (key, max) in wanted {
            let mut open = lock_counts(&self.open);
            let count = open.entry(key.clone()).or_default();
            if *count >= max {
                if *count == 0 {
                    open.remove(&key);
                }
                // The permit gives back what was counted already.
                drop(open);
                return Err(key);
            }
            *count += 1;
            drop(open);
            permit.keys.push(key);
        }
        Ok(permit)
    }

    /// Returns how many are open under a key.
    pub fn count_open(&self, key: &K) -> usize {
        lock_counts(&self.open).get(key).copied().unwrap_or_default()
    }
}

/// One that is open, until it is dropped.
#[derive(Debug)]
pub struct ConcurrencyPermit<K: Eq + Hash> {
    open: OpenCounts<K>,
    keys: Vec<K>,
}

impl<K: Eq + Hash> Drop for ConcurrencyPermit<K> {
    fn drop(&mut self) {
        let mut open = lock_counts(&self.open);
        for key in &self.keys {
            if let Some(count) = open.get_mut(key) {
                *count -= 1;
                if *count == 0 {
                    open.remove(key);
                }
            }
        }
    }
}

/// Counts are changed in one step, so a panic elsewhere leaves them usable.
fn lock_counts<K>(open: &Mutex<HashMap<K, usize>>) -> MutexGuard<'_, HashMap<K, usize>> {
    open.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_has_at_most_its_maximum_and_others_have_theirs() {
        let limiter = ConcurrencyLimiter::default();
        let held: Vec<_> = (0..3).map(|_| limiter.try_acquire([("a", 3)]).unwrap()).collect();
        assert_eq!(limiter.try_acquire([("a", 3)]).unwrap_err(), "a");
        let other = limiter.try_acquire([("b", 3)]).unwrap();
        assert_eq!((limiter.count_open(&"a"), limiter.count_open(&"b")), (3, 1));
        drop(held);
        limiter.try_acquire([("a", 3)]).unwrap();
        drop(other);
        assert!(lock_counts(&limiter.open).is_empty(), "nothing is open and nothing is remembered");
    }

    #[test]
    fn what_is_refused_by_one_key_is_counted_under_none() {
        let limiter = ConcurrencyLimiter::default();
        let first = limiter.try_acquire([("all", 1)]).unwrap();
        assert_eq!(limiter.try_acquire([("a", 5), ("all", 1)]).unwrap_err(), "all");
        assert_eq!(limiter.try_acquire([("never", 0)]).unwrap_err(), "never");
        assert_eq!(limiter.count_open(&"a"), 0);
        drop(first);
        assert!(lock_counts(&limiter.open).is_empty());
    }
}
