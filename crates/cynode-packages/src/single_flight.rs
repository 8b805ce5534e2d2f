//! Single flight: of requests for the same thing at the same time one works, and the others wait for its result.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, Weak},
};

use cynode_core::sync::lock_unpoisoned;
use tokio::sync::OwnedMutexGuard;

/// Number of remembered keys above which those that nobody waits for are dropped.
const MAX_IDLE_KEYS: usize = 1000;

/// Locks by key.
#[derive(Debug, Default)]
pub(crate) struct SingleFlight {
    locks: Mutex<HashMap<String, Weak<tokio::sync::Mutex<()>>>>,
}

impl SingleFlight {
    /// Waits until nobody else works on the key.
    pub(crate) async fn lock_key(&self, key: &str) -> OwnedMutexGuard<()> {
        self.lock_of(key).lock_owned().await
    }

    fn lock_of(&self, key: &str) -> Arc<tokio::sync::Mutex<()>> {
        let mut locks = lock_unpoisoned(&self.locks);
        if let Some(lock) = locks.get(key).and_then(Weak::upgrade) {
            return lock;
        }
        if locks.len() >= MAX_IDLE_KEYS {
            locks.retain(|_, lock| lock.strong_count() > 0);
        }
        let lock = Arc::new(tokio::sync::Mutex::new(()));
        locks.insert(key.to_owned(), Arc::downgrade(&lock));
        lock
    }
}
