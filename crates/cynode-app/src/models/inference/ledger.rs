//! Ledger of model calls: reserves and settles cost for several calls in one statement.
//!
//! A reservation holds much more than most calls cost. A call that does not fit only because of the reservations of others waits until they
//! are settled, in order: the database numbers the calls that wait for a budget, across all processes. Only a call that fits is
//! reserved, so that waiting never makes a budget exceed its limit.

use std::{
    collections::HashSet,
    sync::{Mutex, OnceLock},
    time::{Duration, Instant},
};

use cynode_core::{ids::CallId, sync::lock_unpoisoned};
use cynode_db::{
    Conn, DbError, Pool,
    models::budgets::{self, CallReservation, CallSettlement, LoopGuardLimits, ReservationOutcome},
};
use serde_json::Value;
use time::OffsetDateTime;
use tokio::{
    sync::{Notify, Semaphore},
    time::MissedTickBehavior,
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use uuid::Uuid;

use super::format_timestamp;
use crate::{
    App,
    platform::{
        batch::{Batcher, LaneConnection},
        error::log_background_error,
    },
};

/// Lease of a call. Without a renewal the call counts as lost.
pub(super) const CALL_LEASE_TTL: Duration = Duration::from_secs(30);

/// Interval at which the leases of calls in progress are renewed.
pub(super) const LEASE_RENEW_INTERVAL: Duration = Duration::from_secs(5);

/// Maximum number of attempts to settle a call, one per second. After that the call counts as lost, at its worst-case
/// cost.
const MAX_SETTLE_ATTEMPTS: usize = 30;

/// Maximum number of calls of one process that wait for budgets. Each holds its request in memory. Further calls are refused at once.
const MAX_WAITING_CALLS: usize = 256;

/// How long a waiting call keeps its place without asking again. It asks more often than that.
const WAITER_TTL: Duration = Duration::from_secs(3);

/// Minimum interval between two attempts of a waiting call.
const MIN_RETRY_INTERVAL: Duration = Duration::from_millis(25);

/// Interval at which the first call of a queue asks again when this process settles nothing: another process may have.
const FIRST_RETRY_INTERVAL: Duration = Duration::from_millis(250);

/// Interval at which the other calls of a queue ask again, which also keeps their places.
const QUEUE_RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// How many calls behind the first one ask again at once when a call leaves a queue.
const MAX_WOKEN_CALLS: u32 = 8;

/// Place of a request in the queue of a budget. It stays the same when the request is routed again.
#[derive(Debug, Default)]
pub(super) struct BudgetTurn {
    waiter: OnceLock<Uuid>,
    since: OnceLock<Instant>,
}

impl BudgetTurn {
    /// Returns the id by which the request waits: that of its first call.
    pub(super) fn waiter_id(&self, call: CallId) -> Uuid {
        *self.waiter.get_or_init(|| call.as_uuid())
    }

    /// Returns how much of `limit` is left. The time begins with the first question.
    fn remaining_wait(&self, limit: Duration) -> Duration {
        limit.saturating_sub(self.since.get_or_init(Instant::now).elapsed())
    }
}

/// How a call waits for a budget.
#[derive(Clone, Copy, Debug)]
pub(super) struct BudgetWait<'a> {
    pub(super) turn: &'a BudgetTurn,
    /// Maximum time that the request waits.
    pub(super) limit: Duration,
    /// Cancelled when the client has disconnected.
    pub(super) client_gone: &'a CancellationToken,
}

struct PendingReservation {
    reservation: CallReservation,
    loop_guard: LoopGuardLimits,
    now: OffsetDateTime,
}

/// Reserves and settles the cost of calls.
pub(super) struct BudgetLedger {
    reserve: Batcher<PendingReservation, ReservationOutcome>,
    settle: Batcher<CallSettlement, ()>,
    /// Calls in progress in this process.
    live: Mutex<HashSet<Uuid>>,
    /// Places for calls that wait.
    places: Semaphore,
    /// Notified when a call is settled.
    settled: Notify,
    /// Notified when a call has left a queue.
    advanced: Notify,
}

impl BudgetLedger {
    /// Starts the lanes. They end with the last clone of the app.
    pub(super) fn start_lanes(pool: &Pool) -> Self {
        let lanes = TaskTracker::new();
        let own = LaneConnection::new(pool);
        let reserve = Batcher::spawn_lane(&lanes, move |asking: Vec<PendingReservation>| {
            let own = own.clone();
            async move {
                let first = asking.first()?;
                let (loop_guard, now) = (first.loop_guard, first.now);
                let calls: Vec<_> = asking.into_iter().map(|one| one.reservation).collect();
                let mut conn = own.take_connection().await.ok()?;
                let reserved = reserve_batch(&mut conn, &calls, loop_guard, now).await.ok()?;
                own.return_connection(conn).await;
                Some(reserved)
            }
        });
        let own = LaneConnection::new(pool);
        let settle = Batcher::spawn_lane(&lanes, move |calls: Vec<CallSettlement>| {
            let own = own.clone();
            async move {
                let mut conn = own.take_connection().await.ok()?;
                let settled = budgets::settle_calls(&mut conn, &calls).await.ok()?;
                own.return_connection(conn).await;
                log_late_settlements(&calls, &settled);
                Some(vec![(); calls.len()])
            }
        });
        Self {
            reserve,
            settle,
            live: Mutex::default(),
            places: Semaphore::new(MAX_WAITING_CALLS),
            settled: Notify::new(),
            advanced: Notify::new(),
        }
    }

    /// Reserves the worst-case cost of a call. A call that fits only when calls in progress are settled waits for its turn. When the time is
    /// over, its budget is full.
    pub(super) async fn reserve_in_turn(
        &self,
        app: &App,
        reservation: CallReservation,
        loop_guard: LoopGuardLimits,
        wait: BudgetWait<'_>,
    ) -> Result<ReservationOutcome, DbError> {
        let now = app.environment().now();
        let reserved = self.reserve_call(app.pool(), &reservation, loop_guard, now).await?;
        match reserved {
            ReservationOutcome::Waiting { .. } => {
                let outcome = self.wait_for_turn(app, reservation, loop_guard, wait).await;
                self.advanced.notify_waiters();
                outcome
            }
            reserved => Ok(reserved),
        }
    }

    /// Asks again until the call is reserved or refused, or its time is over.
    async fn wait_for_turn(
        &self,
        app: &App,
        mut reservation: CallReservation,
        loop_guard: LoopGuardLimits,
        wait: BudgetWait<'_>,
    ) -> Result<ReservationOutcome, DbError> {
        let place = self.places.try_acquire();
        let mut pace = tokio::time::interval(MIN_RETRY_INTERVAL);
        pace.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            pace.tick().await;
            // Listen before asking, so that nothing is missed in between.
            let (settled, advanced) = (self.settled.notified(), self.advanced.notified());
            let now = app.environment().now();
            reservation.facts["started_at"] = Value::String(format_timestamp(now));
            let asked = self.reserve_call(app.pool(), &reservation, loop_guard, now).await?;
            let ReservationOutcome::Waiting { budget, ahead } = asked else { return Ok(asked) };
            let remaining = wait.turn.remaining_wait(wait.limit);
            if place.is_err() || remaining.is_zero() || wait.client_gone.is_cancelled() {
                leave_queue(app.pool(), reservation.waiter).await;
                return Ok(ReservationOutcome::Full(budget));
            }
            let interval = if ahead == 0 { FIRST_RETRY_INTERVAL } else { QUEUE_RETRY_INTERVAL };
            let woken = async {
                match ahead {
                    0 => settled.await,
                    1..=MAX_WOKEN_CALLS => advanced.await,
                    _ => std::future::pending().await,
                }
            };
            tokio::select! {
                () = wait.client_gone.cancelled() => {}
                _ = tokio::time::timeout(interval.min(remaining), woken) => {}
            }
        }
    }

    /// Reserves the worst-case cost of a call, or says why it cannot be reserved now.
    async fn reserve_call(
        &self,
        pool: &Pool,
        reservation: &CallReservation,
        loop_guard: LoopGuardLimits,
        now: OffsetDateTime,
    ) -> Result<ReservationOutcome, DbError> {
        let call = reservation.call;
        // The call is tracked before it is reserved, so that no process takes it for lost.
        lock_unpoisoned(&self.live).insert(call.as_uuid());
        let asking = PendingReservation { reservation: reservation.clone(), loop_guard, now };
        let reserved = match self.reserve.submit_item(asking).await {
            Some(reserved) => Ok(reserved),
            // The batch failed. A reservation alone returns the error.
            None => reserve_alone(pool, reservation, loop_guard, now).await,
        };
        if !matches!(reserved, Ok(ReservationOutcome::Held)) {
            self.stop_tracking(call);
        }
        reserved
    }

    /// Settles a call, with retries. The call is then no longer tracked.
    pub(super) async fn settle_call(&self, pool: &Pool, settlement: CallSettlement) {
        let call = settlement.call;
        let mut settled = self.settle.submit_item(settlement.clone()).await.is_some();
        let mut turn = tokio::time::interval(Duration::from_secs(1));
        for _ in 0..MAX_SETTLE_ATTEMPTS {
            if settled {
                break;
            }
            turn.tick().await;
            settled = settle_alone(pool, &settlement).await;
        }
        self.settled.notify_waiters();
        if !settled {
            tracing::error!(event = "model_call.settle_failed", call.id = %call, "a call could not be settled and will count as its worst case");
        }
    }

    /// Stops tracking a call.
    pub(super) fn stop_tracking(&self, call: CallId) {
        lock_unpoisoned(&self.live).remove(&call.as_uuid());
    }

    /// Renews the leases of calls in progress, so that they do not count as lost.
    pub(super) async fn renew_leases(&self, pool: &Pool) -> Result<(), DbError> {
        let live: Vec<Uuid> = lock_unpoisoned(&self.live).iter().copied().collect();
        if live.is_empty() {
            return Ok(());
        }
        let mut conn = cynode_db::acquire_connection(pool).await?;
        budgets::renew_reservations(&mut conn, &live, CALL_LEASE_TTL).await
    }
}

async fn reserve_batch(
    conn: &mut Conn,
    calls: &[CallReservation],
    loop_guard: LoopGuardLimits,
    now: OffsetDateTime,
) -> Result<Vec<ReservationOutcome>, DbError> {
    budgets::reserve_calls(conn, calls, loop_guard, now, CALL_LEASE_TTL, WAITER_TTL).await
}

/// Gives up the place of a waiting call. If that fails, the place is lost a little later by itself.
async fn leave_queue(pool: &Pool, waiter: Uuid) {
    let left = async {
        let mut conn = cynode_db::acquire_connection(pool).await?;
        budgets::remove_budget_waiter(&mut conn, waiter).await
    };
    if let Err(error) = left.await {
        log_background_error(
            "model_call.leave_queue_failed",
            &error,
            "a call that waits no more could not leave the queue of its budget; its place expires",
        );
    }
}

async fn reserve_alone(
    pool: &Pool,
    reservation: &CallReservation,
    loop_guard: LoopGuardLimits,
    now: OffsetDateTime,
) -> Result<ReservationOutcome, DbError> {
    let mut conn = cynode_db::acquire_connection(pool).await?;
    let calls = std::slice::from_ref(reservation);
    let reserved = reserve_batch(&mut conn, calls, loop_guard, now).await?;
    reserved
        .into_iter()
        .next()
        .ok_or(DbError::Corrupt { table: "model_reservations", column: "call_id" })
}

async fn settle_alone(pool: &Pool, settlement: &CallSettlement) -> bool {
    let settled = async {
        let mut conn = cynode_db::acquire_connection(pool).await?;
        budgets::settle_calls(&mut conn, std::slice::from_ref(settlement)).await
    };
    match settled.await {
        Ok(settled) => {
            log_late_settlements(std::slice::from_ref(settlement), &settled);
            true
        }
        Err(error) => {
            log_background_error(
                "model_call.settle_retried",
                &error,
                "a model call could not be settled; it is retried",
            );
            false
        }
    }
}

/// Logs calls that another process has settled already. They stay at their worst-case cost.
fn log_late_settlements(calls: &[CallSettlement], settled: &[CallId]) {
    for call in calls {
        if !settled.contains(&call.call) {
            tracing::warn!(event = "model_call.already_settled", call.id = %call.call, "another process settled the call first");
        }
    }
}
