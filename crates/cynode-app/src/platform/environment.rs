use std::sync::Arc;

use cynode_core::trace::TraceId;
use sha2::{Digest, Sha256};
use time::OffsetDateTime;
use uuid::Uuid;

/// Source of the current time.
pub trait Clock: Send + Sync {
    /// Returns the current time.
    fn now(&self) -> OffsetDateTime;
}

/// Source of cryptographically secure random bytes.
pub trait RandomSource: Send + Sync {
    /// Fills `bytes` with random bytes.
    fn fill_bytes(&self, bytes: &mut [u8]);
}

/// The only two dependencies of an operation outside the database. With the same clock and the same random source, a
/// run gives the same ids, tokens and answers.
#[derive(Clone)]
pub struct AppEnvironment {
    clock: Arc<dyn Clock>,
    random: Arc<dyn RandomSource>,
}

impl AppEnvironment {
    /// Creates an environment with these sources.
    pub fn new(clock: impl Clock + 'static, random: impl RandomSource + 'static) -> Self {
        Self { clock: Arc::new(clock), random: Arc::new(random) }
    }

    /// Creates an environment with the real clock and the randomness of the operating system.
    pub fn from_system() -> Self {
        Self::new(SystemClock, SystemRandom)
    }

    /// Returns the current time, in the precision of the database.
    pub fn now(&self) -> OffsetDateTime {
        let now = self.clock.now();
        let micros = now.microsecond();
        now.replace_microsecond(micros).unwrap_or(now)
    }

    /// Returns `N` unpredictable bytes.
    pub fn random_bytes<const N: usize>(&self) -> [u8; N] {
        let mut bytes = [0; N];
        self.random.fill_bytes(&mut bytes);
        bytes
    }

    /// Returns a new id that sorts by time.
    pub fn new_uuid(&self, now: OffsetDateTime) -> Uuid {
        let millis = u64::try_from(now.unix_timestamp_nanos() / 1_000_000).unwrap_or_default();
        uuid::Builder::from_unix_timestamp_millis(millis, &self.random_bytes::<10>()).into_uuid()
    }

    /// Returns a new trace id.
    pub fn new_trace_id(&self) -> TraceId {
        TraceId::from_random(|| u128::from_ne_bytes(self.random_bytes()))
    }
}

/// Clock of the machine.
#[derive(Clone, Copy, Debug)]
pub struct SystemClock;

impl Clock for SystemClock {
    #[expect(clippy::disallowed_methods, reason = "this is the Clock")]
    fn now(&self) -> OffsetDateTime {
        OffsetDateTime::now_utc()
    }
}

/// Randomness of the operating system, through a generator that it seeds.
#[derive(Clone, Copy, Debug)]
pub struct SystemRandom;

impl RandomSource for SystemRandom {
    fn fill_bytes(&self, bytes: &mut [u8]) {
        rand::fill(bytes);
    }
}

/// Derives an id from a name by hashing. The same name gives the same id.
pub(crate) fn derive_uuid(from: impl AsRef<[u8]>) -> Uuid {
    let digest = Sha256::digest(from);
    uuid::Builder::from_custom_bytes(std::array::from_fn(|at| digest[at])).into_uuid()
}
