//! Helpers for short critical sections.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Takes a lock. What is guarded here is only ever changed in one step, so a panic elsewhere leaves it usable.
pub fn lock_unpoisoned<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
