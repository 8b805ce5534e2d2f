//! What is held back and settled, for several calls at once.

use std::{collections::HashSet, sync::Mutex, time::Duration};

use cynode_core::{ids::CallId, sync::lock};
use cynode_db::{
    DbError, Pool,
    budgets::{self, Breaker, Reservation, Reserved, Settlement},
};
use time::OffsetDateTime;
use tokio_util::task::TaskTracker;
use uuid::Uuid;

use crate::{
    batch::{Batcher, OwnConnection},
    error::complain,
};

/// How long a call may not be heard of before it counts as lost.
pub(super) const LEASE: Duration = Duration::from_secs(30);

/// How often calls under way are renewed.
pub(super) const RENEW: Duration = Duration::from_secs(5);

/// How often a settlement is tried, once in a second: after that the call counts as lost, which is never too little.
const TRIES: usize = 30;

struct Asking {
    reservation: Reservation,
    breaker: Breaker,
    now: OffsetDateTime,
}

/// Holds back and settles.
pub(super) struct Ledger {
    reserve: Batcher<Asking, Reserved>,
    settle: Batcher<Settlement, ()>,
    /// Calls under way in this process.
    live: Mutex<HashSet<Uuid>>,
}

impl Ledger {
    /// Starts the lanes. They end with the last clone of the app.
    pub(super) fn open(pool: &Pool) -> Self {
        let lanes = TaskTracker::new();
        let own = OwnConnection::new(pool);
        let reserve = Batcher::start(&lanes, move |asking: Vec<Asking>| {
            let own = own.clone();
            async move {
                let first = asking.first()?;
                let (breaker, now) = (first.breaker, first.now);
                let calls: Vec<_> = asking.into_iter().map(|one| one.reservation).collect();
                let mut conn = own.take().await.ok()?;
                let reserved =
                    budgets::reserve(&mut conn, &calls, breaker, now, LEASE).await.ok()?;
                own.put_back(conn).await;
                Some(reserved)
            }
        });
        let own = OwnConnection::new(pool);
        let settle = Batcher::start(&lanes, move |calls: Vec<Settlement>| {
            let own = own.clone();
            async move {
                let mut conn = own.take().await.ok()?;
                let settled = budgets::settle(&mut conn, &calls).await.ok()?;
                own.put_back(conn).await;
                complain_of_late(&calls, &settled);
                Some(vec![(); calls.len()])
            }
        });
        Self { reserve, settle, live: Mutex::default() }
    }

    /// Holds back what a call may cost.
    pub(super) async fn reserve(
        &self,
        pool: &Pool,
        reservation: Reservation,
        breaker: Breaker,
        now: OffsetDateTime,
    ) -> Result<Reserved, DbError> {
        let call = reservation.call;
        // Before it is held back: nobody else is to take it for lost.
        lock(&self.live).insert(call.as_uuid());
        let asking = Asking { reservation: reservation.clone(), breaker, now };
        let reserved = match self.reserve.submit(asking).await {
            Some(reserved) => Ok(reserved),
            // With others it failed; alone we learn why.
            None => alone(pool, &reservation, breaker, now).await,
        };
        if !matches!(reserved, Ok(Reserved::Held)) {
            self.forget(call);
        }
        reserved
    }

    /// Settles a call, as often as it takes. Whoever holds it forgets it then.
    pub(super) async fn settle(&self, pool: &Pool, settlement: Settlement) {
        let call = settlement.call;
        let mut settled = self.settle.submit(settlement.clone()).await.is_some();
        let mut turn = tokio::time::interval(Duration::from_secs(1));
        for _ in 0..TRIES {
            if settled {
                break;
            }
            turn.tick().await;
            settled = settle_alone(pool, &settlement).await;
        }
        if !settled {
            tracing::error!(event = "error", call.id = %call, "a call could not be settled and will count as its worst case");
        }
    }

    /// Does not keep a call any longer.
    pub(super) fn forget(&self, call: CallId) {
        lock(&self.live).remove(&call.as_uuid());
    }

    /// Keeps the calls under way from counting as lost.
    pub(super) async fn renew(&self, pool: &Pool) -> Result<(), DbError> {
        let live: Vec<Uuid> = lock(&self.live).iter().copied().collect();
        if live.is_empty() {
            return Ok(());
        }
        let mut conn = pool.acquire().await?;
        budgets::renew(&mut conn, &live, LEASE).await
    }
}

async fn alone(
    pool: &Pool,
    reservation: &Reservation,
    breaker: Breaker,
    now: OffsetDateTime,
) -> Result<Reserved, DbError> {
    let mut conn = pool.acquire().await?;
    let reserved =
        budgets::reserve(&mut conn, std::slice::from_ref(reservation), breaker, now, LEASE).await?;
    reserved
        .into_iter()
        .next()
        .ok_or(DbError::Corrupt { table: "model_reservations", column: "call_id" })
}

async fn settle_alone(pool: &Pool, settlement: &Settlement) -> bool {
    let settled = async {
        let mut conn = pool.acquire().await?;
        budgets::settle(&mut conn, std::slice::from_ref(settlement)).await
    };
    match settled.await {
        Ok(settled) => {
            complain_of_late(std::slice::from_ref(settlement), &settled);
            true
        }
        Err(error) => {
            complain(&error, "a call could not be settled and will be tried again");
            false
        }
    }
}

/// A call that was ended by somebody else counts as its worst case, whatever we know better.
fn complain_of_late(calls: &[Settlement], settled: &[CallId]) {
    for call in calls {
        if !settled.contains(&call.call) {
            tracing::warn!(event = "model.late", call.id = %call.call, "a call was settled by somebody else before us");
        }
    }
}
