//! Batching: one statement serves several requests.
//!
//! Requests that arrive while a statement runs go into the next one. Under load one round trip and one commit serve
//! many requests; a lone request does not wait. A batch succeeds or fails as a whole. When it fails, each request is
//! tried alone. Backpressure: the queue is bounded, and a sender waits while it is full.

use std::{future::Future, sync::Arc};

use cynode_db::{DbError, Pool, PooledConn};
use tokio::sync::{Mutex, mpsc, oneshot};
use tokio_util::task::TaskTracker;
use tracing::{Instrument, Span};

/// Lanes of one process that keep a connection: callers, services, new tasks, model calls reserved and settled.
const BATCH_LANE_COUNT: u32 = 5;

/// A connection that a lane keeps while all goes well: its statements stay prepared and its caches warm, which
/// a pool that hands out another connection each time would undo. Of a pool that would have fewer left for everything else
/// than the lanes keep, none is kept.
#[derive(Clone)]
pub(crate) struct LaneConnection {
    pool: Pool,
    kept: Arc<Mutex<Option<PooledConn>>>,
}

impl LaneConnection {
    /// None is taken from the pool before the first use.
    pub(crate) fn new(pool: &Pool) -> Self {
        Self { pool: pool.clone(), kept: Arc::default() }
    }

    /// The connection; whoever takes it puts it back if it served well.
    pub(crate) async fn take_connection(&self) -> Result<PooledConn, DbError> {
        match self.kept.lock().await.take() {
            Some(conn) => Ok(conn),
            None => cynode_db::acquire_connection(&self.pool).await,
        }
    }

    /// Keeps it for the next batch, or gives it back where connections are few.
    pub(crate) async fn return_connection(&self, conn: PooledConn) {
        if self.pool.options().get_max_connections() >= 2 * BATCH_LANE_COUNT {
            *self.kept.lock().await = Some(conn);
        }
    }
}

/// Most requests served at once.
const MAX_BATCH_SIZE: usize = 64;

/// Hands work over to a lane.
pub(crate) struct Batcher<I, O> {
    sender: mpsc::Sender<BatchEntry<I, O>>,
}

/// An item, who waits for its result, and the span of the request it belongs to.
struct BatchEntry<I, O> {
    item: I,
    result: oneshot::Sender<O>,
    span: Span,
}

impl<I: Send + 'static, O: Send + 'static> Batcher<I, O> {
    /// Starts the lane, in which one batch is under way at a time: while it is, the next one grows, and a larger
    /// batch costs less for each item. `work` gives one result for each item, in order, or none at all.
    pub(crate) fn spawn_lane<F, W>(tasks: &TaskTracker, work: W) -> Self
    where
        W: Fn(Vec<I>) -> F + Send + 'static,
        F: Future<Output = Option<Vec<O>>> + Send,
    {
        let (sender, mut receiver) = mpsc::channel(4 * MAX_BATCH_SIZE);
        tasks.spawn(async move {
            let mut batch: Vec<BatchEntry<I, O>> = Vec::new();
            while collect_batch(&mut receiver, &mut batch).await {
                // The work shows in the trace of the first request; the others point to it.
                let span = batch[0].span.clone();
                let mut items = Vec::with_capacity(batch.len());
                let mut results = Vec::with_capacity(batch.len());
                for waiting in batch.drain(..) {
                    waiting.span.follows_from(&span);
                    items.push(waiting.item);
                    results.push(waiting.result);
                }
                // Without outcomes the senders are dropped, which tells whoever waits to go alone.
                let outcomes = work(items).instrument(span).await.unwrap_or_default();
                for (outcome, result) in outcomes.into_iter().zip(results) {
                    let _ = result.send(outcome);
                }
            }
        });
        Self { sender }
    }

    /// Does the work with others; `None` when it must be tried alone.
    pub(crate) async fn submit_item(&self, item: I) -> Option<O> {
        let (result, outcome) = oneshot::channel();
        let waiting = BatchEntry { item, result, span: Span::current() };
        self.sender.send(waiting).await.ok()?;
        outcome.await.ok()
    }
}

/// Takes what is waiting; `false` when nobody will ever come again.
async fn collect_batch<T>(receiver: &mut mpsc::Receiver<T>, batch: &mut Vec<T>) -> bool {
    if receiver.recv_many(batch, MAX_BATCH_SIZE).await == 0 {
        return false;
    }
    // Whoever is about to submit gets on too; when nobody is, this costs nothing.
    tokio::task::yield_now().await;
    while batch.len() < MAX_BATCH_SIZE
        && let Ok(waiting) = receiver.try_recv()
    {
        batch.push(waiting);
    }
    true
}
