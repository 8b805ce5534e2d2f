use std::sync::{Arc, Mutex};

use cynode_app::{Clock, RandomSource};
use cynode_testkit_db::NOW;
use time::{Duration, OffsetDateTime};

/// A manual clock.
#[derive(Clone, Debug)]
pub struct TestClock(Arc<Mutex<OffsetDateTime>>);

impl Default for TestClock {
    fn default() -> Self {
        Self(Arc::new(Mutex::new(NOW)))
    }
}

impl TestClock {
    /// Advances the clock.
    pub fn advance(&self, by: Duration) {
        *self.0.lock().unwrap() += by;
    }
}

impl Clock for TestClock {
    fn now(&self) -> OffsetDateTime {
        *self.0.lock().unwrap()
    }
}

/// Deterministic pseudo-random bytes.
#[derive(Debug)]
pub struct SeededRandom(Mutex<u64>);

impl SeededRandom {
    /// Starts with `seed`.
    pub const fn new(seed: u64) -> Self {
        Self(Mutex::new(seed))
    }
}

impl RandomSource for SeededRandom {
    fn fill_bytes(&self, bytes: &mut [u8]) {
        let mut state = self.0.lock().unwrap();
        for chunk in bytes.chunks_mut(8) {
            // splitmix64
            *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut word = *state;
            word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            word ^= word >> 31;
            chunk.copy_from_slice(&word.to_le_bytes()[..chunk.len()]);
        }
    }
}
