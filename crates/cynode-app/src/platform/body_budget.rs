//! One budget of memory for the bodies of requests, shared by the gateway and the models of a process.
//!
//! A body is charged with its bytes while it is read, and then with what it costs once it is parsed, which may be many times as much. Requests
//! wait a bounded time for the budget and are then refused. Small bodies have a part of the budget of their own, and one caller has at most a
//! share of each part, so that large bodies do not keep small ones out, nor one caller the others. A body that waits for the part of parsed
//! bodies keeps its bytes; a body that has it waits for nothing, so that no two wait for each other.

use std::{
    collections::HashMap,
    fmt::Display,
    pin::pin,
    sync::{Arc, Mutex},
    time::Duration,
};

use bytes::Bytes;
use cynode_core::{ids::UserId, sync::lock_unpoisoned};
use futures::{Stream, StreamExt as _};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::timeout,
};

const BYTES_PER_KIB: usize = 1024;

/// Memory for small bodies, read and parsed, and what one caller has of it at most.
const SMALL_LANE_KIB: u32 = 16 * 1024;
const SMALL_SHARE_KIB: u32 = SMALL_LANE_KIB / 4;

/// Memory for the bytes of large bodies, and for what they are parsed into, and what one caller has of each at most.
const LARGE_LANE_KIB: u32 = 56 * 1024;
const LARGE_SHARE_KIB: u32 = LARGE_LANE_KIB / 4;

/// Largest small body.
const MAX_SMALL_BYTES: usize = 8 * 1024;

/// Charge of a small body: this many times its bytes, and at least so much.
const SMALL_FACTOR: usize = 8;
const MIN_SMALL_KIB: u32 = 16;

/// Memory of one parsed JSON value. An object with one member has two values here.
const BYTES_PER_VALUE: usize = 256;

/// How long a request waits for the budget.
const BUDGET_TIMEOUT: Duration = Duration::from_secs(20);

/// How long a body may take to arrive: this time, and a second for each of these bytes.
const BODY_READ_TIMEOUT: Duration = Duration::from_secs(30);
const MIN_BYTES_PER_SECOND: usize = 64 * 1024;

/// Longest wait for the next bytes of a body: what holds memory has to arrive.
const STALL_TIMEOUT: Duration = Duration::from_secs(5);

/// Number of callers from which on those without a body are forgotten.
const MAX_TRACKED_CALLERS: usize = 1_000;

/// Identifies a caller: by its account, since tokens are cheap, or by the hash of a token without one.
pub type BodyCaller = [u8; 32];

/// Returns the caller of an account.
pub fn body_caller_of(user: UserId) -> BodyCaller {
    let mut caller = [0; 32];
    caller[..16].copy_from_slice(user.as_uuid().as_bytes());
    caller
}

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
    reading: BodyLane,
    parsing: BodyLane,
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
            reading: BodyLane::new(LARGE_LANE_KIB, LARGE_SHARE_KIB),
            parsing: BodyLane::new(LARGE_LANE_KIB, LARGE_SHARE_KIB),
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
        let mut reservation = self.reserve_memory(caller, expected).await?;
        let mut stream = pin!(stream);
        let reading = async {
            let mut bytes = Vec::<u8>::with_capacity(expected);
            while let Some(chunk) =
                timeout(STALL_TIMEOUT, stream.next()).await.map_err(|_| BodyError::TooSlow)?
            {
                let chunk = chunk.map_err(|error| BodyError::Broken(error.to_string()))?;
                let length = bytes.len() + chunk.len();
                if length > max {
                    return Err(BodyError::TooLarge(max));
                }
                if !reservation.covers_bytes(length) {
                    self.grow_reservation(caller, &mut reservation, length.saturating_mul(2))
                        .await?;
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
        let parsed = bytes.len().saturating_add(values.saturating_mul(BYTES_PER_VALUE));
        if !reservation.covers_parsed(bytes.len(), parsed) {
            let permits = self.take_permits(&self.parsing, caller, to_kib(parsed)).await?;
            reservation.parsed = Some(permits);
        }
        Ok(ReservedBody { bytes, reservation })
    }

    /// Reserves memory for a body of that length. Waits for it a bounded time.
    pub async fn reserve_memory(
        &self,
        caller: BodyCaller,
        length: usize,
    ) -> Result<BodyReservation, BodyError> {
        let is_small = length <= MAX_SMALL_BYTES;
        let (lane, kib) = if is_small {
            (&self.small, to_kib(length * SMALL_FACTOR).max(MIN_SMALL_KIB))
        } else {
            (&self.reading, to_kib(length))
        };
        let read = self.take_permits(lane, caller, kib).await?;
        Ok(BodyReservation { read, parsed: None, is_small })
    }

    /// Raises a reservation to a body of that length.
    async fn grow_reservation(
        &self,
        caller: BodyCaller,
        reservation: &mut BodyReservation,
        length: usize,
    ) -> Result<(), BodyError> {
        if reservation.is_small {
            *reservation = self.reserve_memory(caller, length).await?;
            return Ok(());
        }
        let wanted = to_kib(length).min(LARGE_SHARE_KIB);
        let more = wanted.saturating_sub(reservation.read.to_kib());
        if more > 0 {
            let permits = self.take_permits(&self.reading, caller, more).await?;
            reservation.read.merge_permits(permits);
        }
        Ok(())
    }

    async fn take_permits(
        &self,
        lane: &BodyLane,
        caller: BodyCaller,
        kib: u32,
    ) -> Result<LanePermits, BodyError> {
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
    async fn take_permits(&self, caller: BodyCaller, kib: u32) -> Option<LanePermits> {
        let kib = kib.min(self.share_kib);
        let share = self.share_of(caller).acquire_many_owned(kib).await.ok()?;
        let lane = self.permits.clone().acquire_many_owned(kib).await.ok()?;
        Some(LanePermits { share, lane })
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

/// Permits of a lane, and of its caller's share.
#[derive(Debug)]
struct LanePermits {
    share: OwnedSemaphorePermit,
    lane: OwnedSemaphorePermit,
}

impl LanePermits {
    fn to_kib(&self) -> u32 {
        u32::try_from(self.lane.num_permits()).unwrap_or(u32::MAX)
    }

    /// Adds permits of the same lane and caller.
    fn merge_permits(&mut self, more: Self) {
        self.share.merge(more.share);
        self.lane.merge(more.lane);
    }
}

/// Memory that is reserved until it is dropped.
#[derive(Debug)]
pub struct BodyReservation {
    read: LanePermits,
    parsed: Option<LanePermits>,
    is_small: bool,
}

impl BodyReservation {
    /// Whether so many bytes may be read. A body that has a whole share may have any length that is allowed.
    fn covers_bytes(&self, length: usize) -> bool {
        let kib = self.read.to_kib();
        if self.is_small {
            length <= MAX_SMALL_BYTES && to_kib(length * SMALL_FACTOR) <= kib
        } else {
            to_kib(length) <= kib || kib >= LARGE_SHARE_KIB
        }
    }

    /// Whether a body of that length and its parsed form are charged already.
    fn covers_parsed(&self, length: usize, parsed: usize) -> bool {
        let fits = to_kib(length.saturating_add(parsed)) <= self.read.to_kib();
        self.parsed.is_some() || (self.is_small && fits)
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
            let budget = impatient();
            let refused = budget.read_body(ALICE, chunks(9, b'x', 1 << 20), declared, LIMITS);
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
        let lanes = [SMALL_LANE_KIB, LARGE_LANE_KIB, LARGE_LANE_KIB].map(to_permits);
        let taken = |budget: &BodyBudget| {
            let free = [&budget.small, &budget.reading, &budget.parsing];
            let free = free.map(|lane| lane.permits.available_permits());
            [lanes[0] - free[0], lanes[1] - free[1], lanes[2] - free[2]]
        };
        let read = budget.read_body(ALICE, chunks(10, b',', 1000), None, LIMITS).await.unwrap();
        // 10,000 bytes, read in steps, and 10,001 values.
        assert_eq!(taken(&budget), [0, 14, 2511]);
        drop(read);
        assert_eq!(taken(&budget), [0, 0, 0]);
        let read = budget.read_body(ALICE, chunks(1, b',', 10), Some(10), LIMITS).await.unwrap();
        assert_eq!(taken(&budget), [16, 0, 0]);
        drop(read);
    }

    #[tokio::test]
    async fn one_caller_uses_up_its_share_and_all_callers_the_budget_while_small_bodies_pass() {
        let budget = impatient();
        let share = to_permits(LARGE_SHARE_KIB) * BYTES_PER_KIB;
        let mut taken = vec![budget.reserve_memory(ALICE, share).await.unwrap()];
        assert_eq!(budget.reserve_memory(ALICE, 1 << 20).await.unwrap_err(), BodyError::Overloaded);
        for other in [BOB, [8; 32], [9; 32]] {
            taken.push(budget.reserve_memory(other, usize::MAX).await.unwrap());
        }
        assert_eq!(budget.reserve_memory(CAROL, 1 << 20).await.unwrap_err(), BodyError::Overloaded);
        for caller in [ALICE, CAROL] {
            let body = Bytes::from_static(br#"{"a":1}"#);
            let body = stream::iter([Ok::<_, String>(body)]);
            budget.read_body(caller, body, Some(7), LIMITS).await.unwrap();
        }
        drop(taken);
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
        let free = budget.reading.permits.available_permits();
        assert_eq!(free, to_permits(LARGE_LANE_KIB));
    }
}
