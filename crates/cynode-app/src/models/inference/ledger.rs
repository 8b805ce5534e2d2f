//! Ledger of model calls: reserves and settles cost for several calls in one statement.

use std::{collections::HashSet, sync::Mutex, time::Duration};

use cynode_core::{ids::CallId, sync::lock_unpoisoned};
use cynode_db::{
    DbError, Pool,
    models::budgets::{self, CallReservation, CallSettlement, LoopGuardLimits, ReservationOutcome},
};
use time::OffsetDateTime;
use tokio_util::task::TaskTracker;
use uuid::Uuid;

use crate::platform::{
    batch::{Batcher, LaneConnection},
    error::log_background_error,
};

/// Lease of a call. Without a renewal the call counts as lost.
pub(super) const CALL_LEASE_TTL: Duration = Duration::from_secs(30);

/// Interval at which the leases of calls in progress are renewed.
pub(super) const LEASE_RENEW_INTERVAL: Duration = Duration::from_secs(5);

/// Maximum number of attempts to settle a call, one per second. After that the call counts as lost, at its worst-case
/// cost.
const MAX_SETTLE_ATTEMPTS: usize = 30;

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
                let reserved =
                    budgets::reserve_calls(&mut conn, &calls, loop_guard, now, CALL_LEASE_TTL)
                        .await
                        .ok()?;
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
        Self { reserve, settle, live: Mutex::default() }
    }

    /// Reserves the worst-case cost of a call.
    pub(super) async fn reserve_call(
        &self,
        pool: &Pool,
        reservation: CallReservation,
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
            None => reserve_alone(pool, &reservation, loop_guard, now).await,
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

async fn reserve_alone(
    pool: &Pool,
    reservation: &CallReservation,
    loop_guard: LoopGuardLimits,
    now: OffsetDateTime,
) -> Result<ReservationOutcome, DbError> {
    let mut conn = cynode_db::acquire_connection(pool).await?;
    let reserved = budgets::reserve_calls(
        &mut conn,
        std::slice::from_ref(reservation),
        loop_guard,
        now,
        CALL_LEASE_TTL,
    )
    .await?;
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
