//! One budget of memory for the bodies of requests, shared by the gateway and the models of a process.
//!
//! A body is charged with what it costs once it is parsed, which may be many times its size. Requests wait a bounded time for the budget and
//! are then refused. Small bodies have a part of the budget of their own, and one caller has at most a share of each part, so that large
//! bodies do not keep small ones out, nor one caller the others.

use std::{
    collections::HashMap,
    fmt::Display,
    pin::pin,
    sync::{Arc, Mutex},
    time::Duration,
};

use bytes::Bytes;
use cynode_core::sync::lock_unpoisoned;
use futures::{Stream, StreamExt as _};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::timeout,
};

const BYTES_PER_KIB: usize = 1024;

/// Memory for small bodies, and what one caller has of it at most.
const SMALL_LANE_KIB: u32 = 16 * 1024;
const SMALL_SHARE_KIB: u32 = SMALL_LANE_KIB / 4;

/// Memory for large bodies, and what one caller has of it at most.
const LARGE_LANE_KIB: u32 = 112 * 1024;
const LARGE_SHARE_KIB: u32 = LARGE_LANE_KIB / 2;

/// Largest charge of a small body, and smallest charge of any.
const MAX_SMALL_KIB: u32 = 64;
const MIN_CHARGE_KIB: u32 = 4;

/// Memory of one parsed JSON value, with its share of the container.
const BYTES_PER_VALUE: usize = 100;

/// How long a request waits for the budget.
const BUDGET_TIMEOUT: Duration = Duration::from_secs(20);

/// How long a body may take to arrive: this time, and a second for each of these bytes.
const BODY_READ_TIMEOUT: Duration = Duration::from_secs(30);
const MIN_BYTES_PER_SECOND: usize = 512 * 1024;

/// Number of callers from which on those without a body are forgotten.
const MAX_TRACKED_CALLERS: usize = 1_000;

/// Identifies a caller: the hash of its token.
pub type BodyCaller = [u8; 32];

/// Limits of one body.
#[derive(Clone, Copy, Debug)]
pub struct BodyLimits {
    /// Maximum size in bytes.
    pub max_bytes: usize,
    /// Maximum number of JSON values.
    pub max_values: usize,
}

/// Why a body was not read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BodyError {
    /// It is larger than is allowed.
    #[error("the body has more than {0} bytes")]
    TooLarge(usize),
    /// It has more values than are allowed.
    #[error("the body has more than {0} JSON values")]
    TooManyValues(usize),
    /// The budget is used up.
    #[error("too many bytes of requests are being read at once; send it again in a moment")]
    Overloaded,
    /// It arrives too slowly.
    #[error("the body took longer to arrive than is waited for")]
    TooSlow,
    /// The connection failed.
    #[error("the body could not be read: {0}")]
    Broken(String),
}

/// The budget of a process.
#[derive(Debug)]
pub struct BodyBudget {
    small: BodyLane,
    large: BodyLane,
    patience: Duration,
    read_timeout: Duration,
}

impl Default for BodyBudget {
    fn default() -> Self {
        Self::with_timeout(BUDGET_TIMEOUT)
    }
}

impl BodyBudget {
    /// Creates a budget for which requests wait that long.
    pub fn with_timeout(patience: Duration) -> Self {
        Self {
            small: BodyLane::new(SMALL_LANE_KIB, SMALL_SHARE_KIB),
            large: BodyLane::new(LARGE_LANE_KIB, LARGE_SHARE_KIB),
            patience,
            read_timeout: BODY_READ_TIMEOUT,
        }
    }

    /// Reads a body within its limits. What it costs is charged to the budget until the result is dropped.
    pub async fn read_body<E: Display>(
        &self,
        caller: BodyCaller,
        stream: impl Stream<Item = Result<Bytes, E>>,
        declared: Option<u64>,
        limits: BodyLimits,
    ) -> Result<ReservedBody, BodyError> {
        let max = limits.max_bytes;
        let declared = declared.map(|length| usize::try_from(length).unwrap_or(usize::MAX));
        if declared.is_some_and(|length| length > max) {
            return Err(BodyError::TooLarge(max));
        }
        // A body of unknown length is charged as it arrives.
        let expected = declared.unwrap_or_default();
        let mut reservation = self.reserve_memory(caller, expected.saturating_mul(2)).await?;
        let mut stream = pin!(stream);
        let reading = async {
            let mut bytes = Vec::with_capacity(expected);
            while let Some(chunk) = stream.next().await {
                let chunk = chunk.map_err(|error| BodyError::Broken(error.to_string()))?;
                let length = bytes.len() + chunk.len();
                if length > max {
                    return Err(BodyError::TooLarge(max));
                }
                if reservation.is_exceeded_by(length.saturating_mul(2)) {
                    let more = length.saturating_mul(4);
                    self.grow_reservation(caller, &mut reservation, more).await?;
                }
                bytes.extend_from_slice(&chunk);
            }
            Ok(bytes)
        };
        let seconds = declared.unwrap_or(max) / MIN_BYTES_PER_SECOND;
        let seconds = u64::try_from(seconds).unwrap_or(u64::MAX);
        let patience = self.read_timeout.saturating_add(Duration::from_secs(seconds));
        let bytes = timeout(patience, reading).await.map_err(|_| BodyError::TooSlow)??;
        let values = count_json_values(&bytes);
        if values > limits.max_values {
            return Err(BodyError::TooManyValues(limits.max_values));
        }
        let parsed = values.saturating_mul(BYTES_PER_VALUE);
        let cost = bytes.len().saturating_mul(2).saturating_add(parsed);
        self.grow_reservation(caller, &mut reservation, cost).await?;
        Ok(ReservedBody { bytes, reservation })
    }

    /// Reserves memory. Waits for it a bounded time.
    pub async fn reserve_memory(
        &self,
        caller: BodyCaller,
        bytes: usize,
    ) -> Result<BodyReservation, BodyError> {
        let kib = to_kib(bytes).max(MIN_CHARGE_KIB);
        let (lane, is_large) =
            if kib > MAX_SMALL_KIB { (&self.large, true) } else { (&self.small, false) };
        let (share, lane) = self.take_permits(lane, caller, kib).await?;
        Ok(BodyReservation { share, lane, is_large })
    }

    /// Raises a reservation to that many bytes. It never falls.
    async fn grow_reservation(
        &self,
        caller: BodyCaller,
        reservation: &mut BodyReservation,
        bytes: usize,
    ) -> Result<(), BodyError> {
        if !reservation.is_exceeded_by(bytes) {
            return Ok(());
        }
        if !reservation.is_large {
            // From the small lane to the large one, or higher within the small one.
            *reservation = self.reserve_memory(caller, bytes).await?;
            return Ok(());
        }
        let more = to_kib(bytes).min(LARGE_SHARE_KIB).saturating_sub(reservation.to_kib());
        if more > 0 {
            let (share, lane) = self.take_permits(&self.large, caller, more).await?;
            reservation.share.merge(share);
            reservation.lane.merge(lane);
        }
        Ok(())
    }

    async fn take_permits(
        &self,
        lane: &BodyLane,
        caller: BodyCaller,
        kib: u32,
    ) -> Result<(OwnedSemaphorePermit, OwnedSemaphorePermit), BodyError> {
        let taken = timeout(self.patience, lane.take_permits(caller, kib)).await;
        taken.ok().flatten().ok_or(BodyError::Overloaded)
    }
}

/// A part of the budget.
#[derive(Debug)]
struct BodyLane {
    permits: Arc<Semaphore>,
    share_kib: u32,
    callers: Mutex<HashMap<BodyCaller, Arc<Semaphore>>>,
}

impl BodyLane {
    fn new(kib: u32, share_kib: u32) -> Self {
        let permits = Arc::new(Semaphore::new(to_permits(kib)));
        Self { permits, share_kib, callers: Mutex::default() }
    }

    /// Takes permits of the caller's share first: a caller that waits for its own share keeps nobody else waiting.
    async fn take_permits(
        &self,
        caller: BodyCaller,
        kib: u32,
    ) -> Option<(OwnedSemaphorePermit, OwnedSemaphorePermit)> {
        let kib = kib.min(self.share_kib);
        let share = self.share_of(caller).acquire_many_owned(kib).await.ok()?;
        let lane = self.permits.clone().acquire_many_owned(kib).await.ok()?;
        Some((share, lane))
    }

    fn share_of(&self, caller: BodyCaller) -> Arc<Semaphore> {
        let mut callers = lock_unpoisoned(&self.callers);
        if callers.len() > MAX_TRACKED_CALLERS {
            callers.retain(|_, share| Arc::strong_count(share) > 1);
        }
        let share = || Arc::new(Semaphore::new(to_permits(self.share_kib)));
        callers.entry(caller).or_insert_with(share).clone()
    }
}

/// Memory that is reserved until it is dropped.
#[derive(Debug)]
pub struct BodyReservation {
    share: OwnedSemaphorePermit,
    lane: OwnedSemaphorePermit,
    is_large: bool,
}

impl BodyReservation {
    fn to_kib(&self) -> u32 {
        u32::try_from(self.lane.num_permits()).unwrap_or(u32::MAX)
    }

    fn is_exceeded_by(&self, bytes: usize) -> bool {
        to_kib(bytes) > self.to_kib()
    }
}

/// A body with its reservation.
#[derive(Debug)]
pub struct ReservedBody {
    /// The bytes.
    pub bytes: Vec<u8>,
    /// What it is charged.
    pub reservation: BodyReservation,
}

fn to_kib(bytes: usize) -> u32 {
    u32::try_from(bytes.div_ceil(BYTES_PER_KIB)).unwrap_or(u32::MAX)
}

fn to_permits(kib: u32) -> usize {
    usize::try_from(kib).unwrap_or(usize::MAX)
}

/// Counts the values of a JSON text before it is parsed: commas and brackets outside of its strings. It is an upper bound, also for a
/// text that is not JSON, of what a parser makes of it.
pub fn count_json_values(text: &[u8]) -> usize {
    let (mut count, mut in_string, mut escaped) = (1, false, false);
    for &byte in text {
        if in_string {
            match byte {
                _ if escaped => escaped = false,
                b'\\' => escaped = true,
                b'"' => in_string = false,
                _ => {}
            }
        } else {
            match byte {
                b'"' => in_string = true,
                b',' | b'[' | b'{' => count += 1,
                _ => {}
            }
        }
    }
    count
}

#[cfg(test)]
mod tests {
    use futures::{FutureExt as _, stream};

    use super::*;

    const LIMITS: BodyLimits = BodyLimits { max_bytes: 8 << 20, max_values: 50_000 };
    const ALICE: BodyCaller = [1; 32];
    const BOB: BodyCaller = [2; 32];
    const CAROL: BodyCaller = [3; 32];

    /// Chunks of so many bytes each, all the same.
    fn chunks(count: usize, byte: u8, length: usize) -> impl Stream<Item = Result<Bytes, String>> {
        let chunk = Bytes::from(vec![byte; length]);
        stream::iter((0..count).map(move |_| Ok(chunk.clone())))
    }

    fn impatient() -> BodyBudget {
        BodyBudget::with_timeout(Duration::ZERO)
    }

    #[test]
    fn values_are_counted_outside_of_strings() {
        for (text, values) in [
            (r#"{"a":[1,2,3],"b":{}}"#, 7),
            (r#""a,b,[c],{d}""#, 1),
            (r#"{"a":"\",[\\","b":1}"#, 3),
            ("[[[[", 5),
            ("", 1),
        ] {
            assert_eq!(count_json_values(text.as_bytes()), values, "{text}");
        }
    }

    #[tokio::test]
    async fn a_body_is_refused_by_its_declared_length_before_it_is_read() {
        let never = stream::pending::<Result<Bytes, String>>();
        let refused = impatient().read_body(ALICE, never, Some(9 << 20), LIMITS).await;
        assert_eq!(refused.unwrap_err(), BodyError::TooLarge(8 << 20));
        // Without a length, or with a wrong one, while it is read.
        for declared in [None, Some(10)] {
            let refused = impatient().read_body(ALICE, chunks(9, b'x', 1 << 20), declared, LIMITS);
            assert_eq!(refused.await.unwrap_err(), BodyError::TooLarge(8 << 20));
        }
    }

    #[tokio::test]
    async fn a_body_of_many_values_is_refused_and_one_of_long_texts_is_not() {
        let budget = impatient();
        let bomb = budget.read_body(ALICE, chunks(20, b',', 4096), None, LIMITS).await;
        assert_eq!(bomb.unwrap_err(), BodyError::TooManyValues(50_000));
        let text = stream::iter([
            Ok::<_, String>(Bytes::from_static(b"\"")),
            Ok(Bytes::from(vec![b','; 1 << 20])),
            Ok(Bytes::from_static(b"\"")),
        ]);
        let read = budget.read_body(ALICE, text, None, LIMITS).await.unwrap();
        assert_eq!(read.bytes.len(), (1 << 20) + 2);
    }

    #[tokio::test]
    async fn what_a_body_becomes_when_it_is_parsed_is_charged_and_given_back() {
        let budget = impatient();
        let free = budget.large.permits.available_permits();
        let read = budget.read_body(ALICE, chunks(10, b',', 1000), None, LIMITS).await.unwrap();
        // Twice 10,000 bytes, and 10,001 values.
        assert_eq!(free - budget.large.permits.available_permits(), 997);
        drop(read);
        assert_eq!(budget.large.permits.available_permits(), free);
        assert_eq!(budget.small.permits.available_permits(), to_permits(SMALL_LANE_KIB));
    }

    #[tokio::test]
    async fn one_caller_uses_up_its_share_and_all_callers_the_budget_while_small_bodies_pass() {
        let budget = impatient();
        let half = to_permits(LARGE_SHARE_KIB) * BYTES_PER_KIB;
        let first = budget.reserve_memory(ALICE, half).await.unwrap();
        assert_eq!(budget.reserve_memory(ALICE, 1 << 20).await.unwrap_err(), BodyError::Overloaded);
        let second = budget.reserve_memory(BOB, usize::MAX).await.unwrap();
        assert_eq!(budget.reserve_memory(CAROL, 1 << 20).await.unwrap_err(), BodyError::Overloaded);
        for caller in [ALICE, CAROL] {
            let body = Bytes::from_static(br#"{"a":1}"#);
            let body = stream::iter([Ok::<_, String>(body)]);
            budget.read_body(caller, body, Some(7), LIMITS).await.unwrap();
        }
        drop((first, second));
        budget.reserve_memory(CAROL, 1 << 20).await.unwrap();
    }

    #[tokio::test]
    async fn a_request_waits_for_the_budget_until_another_ends() {
        let budget = BodyBudget::default();
        let half = to_permits(LARGE_SHARE_KIB) * BYTES_PER_KIB;
        let first = budget.reserve_memory(ALICE, half).await.unwrap();
        let mut second = pin!(budget.reserve_memory(ALICE, 1 << 20));
        assert!(second.as_mut().now_or_never().is_none());
        drop(first);
        second.await.unwrap();
    }

    #[tokio::test]
    async fn a_sender_that_stops_sending_does_not_hold_the_budget_for_ever() {
        let mut budget = impatient();
        budget.read_timeout = Duration::ZERO;
        let slow = chunks(1, b' ', 1000).chain(stream::pending());
        let limits = BodyLimits { max_bytes: 100_000, max_values: 10 };
        let refused = budget.read_body(ALICE, slow, Some(100_000), limits).await;
        assert_eq!(refused.unwrap_err(), BodyError::TooSlow);
        let free = budget.large.permits.available_permits();
        assert_eq!(free, to_permits(LARGE_LANE_KIB));
    }
}
