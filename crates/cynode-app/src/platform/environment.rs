use std::sync::Arc;

use cynode_core::trace::TraceId;
use sha2::{Digest, Sha256};
use time::OffsetDateTime;
use uuid::Uuid;

/// Tells the time.
pub trait Clock: Send + Sync {
    /// The present moment.
    fn now(&self) -> OffsetDateTime;
}

/// Draws bytes that nobody can guess.
pub trait RandomSource: Send + Sync {
    /// Fills `bytes`.
    fn fill_bytes(&self, bytes: &mut [u8]);
}

/// The only two things outside the database that an operation depends on. With the same clock and the
/// same random source, a run gives the same ids, tokens and answers.
#[derive(Clone)]
pub struct AppEnvironment {
    clock: Arc<dyn Clock>,
    random: Arc<dyn RandomSource>,
}

impl AppEnvironment {
    /// Uses these sources.
    pub fn new(clock: impl Clock + 'static, random: impl RandomSource + 'static) -> Self {
        Self { clock: Arc::new(clock), random: Arc::new(random) }
    }

    /// The real clock and the operating system's randomness.
    pub fn from_system() -> Self {
        Self::new(SystemClock, SystemRandom)
    }

    /// The present moment, in the precision that the database keeps.
    pub fn now(&self) -> OffsetDateTime {
        let now = self.clock.now();
        let micros = now.microsecond();
        now.replace_microsecond(micros).unwrap_or(now)
    }

    /// `N` bytes that nobody can guess.
    pub fn random_bytes<const N: usize>(&self) -> [u8; N] {
        let mut bytes = [0; N];
        self.random.fill_bytes(&mut bytes);
        bytes
    }

    /// A new id whose order is the order of time.
    pub fn new_uuid(&self, now: OffsetDateTime) -> Uuid {
        let millis = u64::try_from(now.unix_timestamp_nanos() / 1_000_000).unwrap_or_default();
        uuid::Builder::from_unix_timestamp_millis(millis, &self.random_bytes::<10>()).into_uuid()
    }

    /// A new trace.
    pub fn new_trace_id(&self) -> TraceId {
        TraceId::from_random(|| u128::from_ne_bytes(self.random_bytes()))
    }
}

/// The machine's clock.
#[derive(Clone, Copy, Debug)]
pub struct SystemClock;

impl Clock for SystemClock {
    #[expect(clippy::disallowed_methods, reason = "this is the Clock")]
    fn now(&self) -> OffsetDateTime {
        OffsetDateTime::now_utc()
    }
}

/// The operating system's randomness, through a generator that it seeds.
#[derive(Clone, Copy, Debug)]
pub struct SystemRandom;

impl RandomSource for SystemRandom {
    fn fill_bytes(&self, bytes: &mut [u8]) {
        rand::fill(bytes);
    }
}

/// An id that follows from what it is of: the same whenever it is asked for.
pub(crate) fn derive_uuid(from: impl AsRef<[u8]>) -> Uuid {
    let digest = Sha256::digest(from);
    uuid::Builder::from_custom_bytes(std::array::from_fn(|at| digest[at])).into_uuid()
}
