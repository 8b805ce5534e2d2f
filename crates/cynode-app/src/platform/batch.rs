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

/// Number of lanes of one process that keep a connection: callers, services, new tasks, reserved and settled model
/// calls.
const BATCH_LANE_COUNT: u32 = 5;

/// A connection that a lane keeps while its statements succeed. The statements stay prepared and the caches stay
/// warm; a pool that hands out another connection each time would lose that. In a small pool, where fewer connections
/// than lanes would be left for everything else, no lane keeps one.
#[derive(Clone)]
pub(crate) struct LaneConnection {
    pool: Pool,
    kept: Arc<Mutex<Option<PooledConn>>>,
}

impl LaneConnection {
    /// Creates a lane without a connection. The first use takes one from the pool.
    pub(crate) fn new(pool: &Pool) -> Self {
        Self { pool: pool.clone(), kept: Arc::default() }
    }

    /// Takes the connection. The caller returns it after success.
    pub(crate) async fn take_connection(&self) -> Result<PooledConn, DbError> {
        match self.kept.lock().await.take() {
            Some(conn) => Ok(conn),
            None => cynode_db::acquire_connection(&self.pool).await,
        }
    }

    /// Keeps the connection for the next batch, or returns it to a small pool.
    pub(crate) async fn return_connection(&self, conn: PooledConn) {
        if self.pool.options().get_max_connections() >= 2 * BATCH_LANE_COUNT {
            *self.kept.lock().await = Some(conn);
        }
    }
}

/// Maximum number of requests in one batch.
const MAX_BATCH_SIZE: usize = 64;

/// Queues work for a lane.
pub(crate) struct Batcher<I, O> {
    sender: mpsc::Sender<BatchEntry<I, O>>,
}

/// An item, the sender of its result, and the span of its request.
struct BatchEntry<I, O> {
    item: I,
    result: oneshot::Sender<O>,
    span: Span,
}

impl<I: Send + 'static, O: Send + 'static> Batcher<I, O> {
    /// Spawns the lane, which processes one batch at a time: meanwhile the next batch grows, and a larger batch costs
    /// less per item. `work` returns one result for each item, in order, or none at all.
    pub(crate) fn spawn_lane<F, W>(tasks: &TaskTracker, work: W) -> Self
    where
        W: Fn(Vec<I>) -> F + Send + 'static,
        F: Future<Output = Option<Vec<O>>> + Send,
    {
        let (sender, mut receiver) = mpsc::channel(4 * MAX_BATCH_SIZE);
        tasks.spawn(async move {
            let mut batch: Vec<BatchEntry<I, O>> = Vec::new();
            while collect_batch(&mut receiver, &mut batch).await {
                // The work is part of the trace of the first request. The others link to it.
                let span = batch[0].span.clone();
                let mut items = Vec::with_capacity(batch.len());
                let mut results = Vec::with_capacity(batch.len());
                for waiting in batch.drain(..) {
                    // A span that follows from itself would wait for its own lock in the exporter.
                    if waiting.span != span {
                        waiting.span.follows_from(&span);
                    }
                    items.push(waiting.item);
                    results.push(waiting.result);
                }
                // Without outcomes the senders are dropped, which tells the waiting requests to run alone.
                let outcomes = work(items).instrument(span).await.unwrap_or_default();
                for (outcome, result) in outcomes.into_iter().zip(results) {
                    let _ = result.send(outcome);
                }
            }
        });
        Self { sender }
    }

    /// Processes an item in a batch with others. Returns `None` when the item must be tried alone.
    pub(crate) async fn submit_item(&self, item: I) -> Option<O> {
        let (result, outcome) = oneshot::channel();
        let waiting = BatchEntry { item, result, span: Span::current() };
        self.sender.send(waiting).await.ok()?;
        outcome.await.ok()
    }
}

/// Collects the waiting items. Returns `false` when the queue is closed.
async fn collect_batch<T>(receiver: &mut mpsc::Receiver<T>, batch: &mut Vec<T>) -> bool {
    if receiver.recv_many(batch, MAX_BATCH_SIZE).await == 0 {
        return false;
    }
    // Yielding lets senders that are about to submit join this batch. Without any it costs nothing.
    tokio::task::yield_now().await;
    while batch.len() < MAX_BATCH_SIZE
        && let Ok(waiting) = receiver.try_recv()
    {
        batch.push(waiting);
    }
    true
}
