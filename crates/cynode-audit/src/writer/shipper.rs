//! Shipper: sends records to the store, chain by chain.

use std::{collections::VecDeque, fs::File, io, sync::Arc, time::Duration};

use tokio::time::{Instant, timeout, timeout_at};
use tokio_util::sync::CancellationToken;

use super::{
    UnshippedError, WriterShared, recovery,
    state::{ChainEnd, OutgoingChain, RecordSource},
};
use crate::{
    AuditCheckpoint, AuditRecord, AuditStore, AuditStoreError, MerkleTree, NewChain, genesis_hash,
    segment::quarantine_segment,
};

/// Progress of the shipping. It outlives a cancelled shipper, so that the next one continues from the same point.
#[derive(Debug, Default)]
pub(super) struct Shipper {
    current: Option<CurrentChain>,
}

/// The chain that is being shipped.
#[derive(Debug)]
struct CurrentChain {
    chain: NewChain,
    registered: bool,
    /// Records read from the file of a dead process, not yet in a batch.
    loaded: VecDeque<AuditRecord>,
    /// Records of the next store operation.
    batch: Vec<AuditRecord>,
    /// Ticket of the last record of the batch, if the records have tickets.
    ticket: Option<u64>,
    tree: MerkleTree,
    head: [u8; 32],
    checkpointed: u64,
    checkpointed_at: Instant,
}

/// Outcome of one shipping step.
enum ShipOutcome {
    /// The step did some work. There may be more.
    Done,
    /// There is no work now.
    Idle,
}

impl Shipper {
    pub(super) async fn run_until_stopped(
        &mut self,
        inner: &WriterShared,
        store: &dyn AuditStore,
        stop: &CancellationToken,
    ) -> Result<(), UnshippedError> {
        let mut pause = RetryBackoff::new(inner.options.longest_pause);
        let mut deadline = None;
        loop {
            if deadline.is_none() && stop.is_cancelled() {
                inner.close_chain();
                deadline = Some(Instant::now() + inner.options.patience);
            }
            let limit = deadline.map_or(inner.options.answer, |deadline: Instant| {
                inner.options.answer.min(deadline.saturating_duration_since(Instant::now()))
            });
            // A cancelled step starts again from its beginning. That is safe because every step is idempotent.
            let step = tokio::select! {
                biased;
                step = timeout(limit, self.ship_next(inner, store)) => step.unwrap_or_else(|_| {
                    Err(AuditStoreError::Unavailable("no answer in time".into()))
                }),
                () = stop.cancelled(), if deadline.is_none() => continue,
            };
            match step {
                Ok(ShipOutcome::Done) => pause.reset_delay(),
                Ok(ShipOutcome::Idle) if deadline.is_some() => return inner.ensure_all_shipped(),
                Ok(ShipOutcome::Idle) => self.wait_for_work(inner, stop).await,
                Err(AuditStoreError::Conflict(what)) => {
                    inner.handle_conflict(&what);
                    self.current = None;
                }
                Err(AuditStoreError::Unavailable(error)) => {
                    tracing::warn!(error = &*error as &dyn std::error::Error, "audit store failed");
                    if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                        return inner.ensure_all_shipped();
                    }
                    pause.wait_delay(stop).await;
                }
            }
        }
    }

    /// Performs the next shipping step.
    async fn ship_next(
        &mut self,
        inner: &WriterShared,
        store: &dyn AuditStore,
    ) -> Result<ShipOutcome, AuditStoreError> {
        if self.current.is_none() {
            self.current = CurrentChain::load_front_chain(inner).await;
        }
        let Some(current) = &mut self.current else { return Ok(ShipOutcome::Idle) };
        // The checkpoint comes before further records: under load there are always further records.
        if current.is_checkpoint_due(inner) {
            current.write_checkpoint(inner, store, ChainContinuation::GoesOn).await?;
            return Ok(ShipOutcome::Done);
        }
        if current.fill_batch(inner).await {
            current.store_batch(inner, store).await?;
            return Ok(ShipOutcome::Done);
        }
        let end = inner.front_chain_end();
        match end {
            ChainEnd::Open => return Ok(ShipOutcome::Idle),
            ChainEnd::Damaged => {
                current.write_checkpoint(inner, store, ChainContinuation::GoesOn).await?;
            }
            // A chain without records was never registered and leaves no trace.
            ChainEnd::Closed if current.tree.leaf_count() == 0 => {}
            ChainEnd::Closed => {
                current.write_checkpoint(inner, store, ChainContinuation::IsClosed).await?;
            }
        }
        inner.finish_front_chain(end);
        self.current = None;
        Ok(ShipOutcome::Done)
    }

    /// Waits for new records, the next checkpoint, or the stop.
    async fn wait_for_work(&self, inner: &WriterShared, stop: &CancellationToken) {
        let fresh = async {
            tokio::select! {
                () = stop.cancelled() => false,
                () = inner.fresh.notified() => true,
            }
        };
        let due = self.current.as_ref().and_then(|current| current.checkpoint_at(inner));
        let fresh = match due {
            Some(due) => timeout_at(due, fresh).await.unwrap_or(false),
            None => fresh.await,
        };
        // More records usually follow. One store operation is enough for all of them.
        if fresh && inner.lock_state().writer_status().backlog < inner.options.batch {
            let _ = timeout(inner.options.linger, stop.cancelled()).await;
        }
    }
}

impl CurrentChain {
    /// Loads the first outgoing chain, with its records if they are in a file.
    async fn load_front_chain(inner: &WriterShared) -> Option<Self> {
        while let Some((chain, file)) = inner.front_chain() {
            let Some(file) = file else { return Some(Self::new(chain, Vec::new())) };
            match load_records_blocking(file).await {
                Ok(records) => return Some(Self::new(chain, records)),
                Err(error) => {
                    // The file stays in place, and the next writer of the directory tries again.
                    let error = &error as &dyn std::error::Error;
                    tracing::error!(error, chain = %chain.chain, "an audit file cannot be read");
                    inner.skip_front_chain();
                }
            }
        }
        None
    }

    fn new(chain: NewChain, records: Vec<AuditRecord>) -> Self {
        Self {
            head: genesis_hash(chain.chain),
            chain,
            registered: false,
            loaded: records.into(),
            batch: Vec::new(),
            ticket: None,
            tree: MerkleTree::new(),
            checkpointed: 0,
            checkpointed_at: Instant::now(),
        }
    }

    /// Fills the next batch. Returns whether it has records.
    async fn fill_batch(&mut self, inner: &WriterShared) -> bool {
        let most = inner.options.batch;
        if self.batch.is_empty() && !self.loaded.is_empty() {
            self.batch.extend(self.loaded.drain(..most.min(self.loaded.len())));
        }
        if self.batch.is_empty()
            && let Some(last) = inner.last_ticket_of_batch(most)
        {
            // If the sync fails, records that reached the disk before are still shipped.
            let durable = inner
                .wait_durable(last)
                .await
                .map_or_else(|_| inner.lock_state().synced_count(), |()| last);
            self.ticket = inner.take_records_up_to(durable.min(last), &mut self.batch);
        }
        !self.batch.is_empty()
    }

    async fn store_batch(
        &mut self,
        inner: &WriterShared,
        store: &dyn AuditStore,
    ) -> Result<(), AuditStoreError> {
        if !self.registered {
            store.register_chain(&self.chain).await?;
            self.registered = true;
        }
        store.store_records(&self.batch).await?;
        for record in &self.batch {
            self.tree.push(record.hash);
            self.head = record.hash;
        }
        if let Some(ticket) = self.ticket.take() {
            inner.record_stored(self.batch.len(), ticket);
        }
        self.batch.clear();
        Ok(())
    }

    fn is_checkpoint_due(&self, inner: &WriterShared) -> bool {
        self.tree.leaf_count() - self.checkpointed >= inner.options.checkpoint_records
            || self.checkpoint_at(inner).is_some_and(|due| due <= Instant::now())
    }

    /// Returns the due time of the next checkpoint. Returns `None` if no record is new.
    fn checkpoint_at(&self, inner: &WriterShared) -> Option<Instant> {
        let new = self.checkpointed < self.tree.leaf_count();
        new.then(|| self.checkpointed_at + inner.options.checkpoint_every)
    }

    async fn write_checkpoint(
        &mut self,
        inner: &WriterShared,
        store: &dyn AuditStore,
        is: ChainContinuation,
    ) -> Result<(), AuditStoreError> {
        let closed = matches!(is, ChainContinuation::IsClosed);
        let (chain, at) = (self.chain.chain, (inner.now)());
        let key = inner.signer.current_key();
        let checkpoint =
            AuditCheckpoint::sign_named(chain, &self.tree, self.head, at, closed, &key);
        store.store_checkpoint(&checkpoint).await?;
        self.checkpointed = checkpoint.size;
        self.checkpointed_at = Instant::now();
        Ok(())
    }
}

/// Whether the chain continues after a checkpoint.
enum ChainContinuation {
    GoesOn,
    IsClosed,
}

async fn load_records_blocking(file: Arc<File>) -> io::Result<Vec<AuditRecord>> {
    tokio::task::spawn_blocking(move || recovery::load_records(&file))
        .await
        .map_err(io::Error::other)?
}

impl WriterShared {
    /// Returns the first outgoing chain, and its file if its records must be read from the file.
    fn front_chain(&self) -> Option<(NewChain, Option<Arc<File>>)> {
        let mut book = self.lock_state();
        let front = book.front_chain()?;
        let file = match front.records {
            RecordSource::File => Some(Arc::clone(&front.file)),
            RecordSource::Memory(_) => None,
        };
        Some((front.chain.clone(), file))
    }

    /// Returns the ticket of the last record of the next batch.
    fn last_ticket_of_batch(&self, most: usize) -> Option<u64> {
        match &self.lock_state().front_chain()?.records {
            RecordSource::File => None,
            RecordSource::Memory(queue) => {
                queue.get(most.min(queue.len()).checked_sub(1)?).map(|(ticket, _)| *ticket)
            }
        }
    }

    /// Moves the records up to this ticket into `batch`. Returns the ticket of the last one moved.
    fn take_records_up_to(&self, upto: u64, batch: &mut Vec<AuditRecord>) -> Option<u64> {
        let mut book = self.lock_state();
        let RecordSource::Memory(queue) = &mut book.front_chain()?.records else { return None };
        let mut last = None;
        while let Some((ticket, record)) = queue.pop_front_if(|(ticket, _)| *ticket <= upto) {
            last = Some(ticket);
            batch.push(record);
        }
        last
    }

    /// Returns how the first outgoing chain ends. It is open as long as it has unshipped records.
    fn front_chain_end(&self) -> ChainEnd {
        match self.lock_state().front_chain() {
            None => ChainEnd::Open,
            Some(OutgoingChain { records: RecordSource::Memory(queue), .. })
                if !queue.is_empty() =>
            {
                ChainEnd::Open
            }
            Some(out) => out.end,
        }
    }

    fn record_stored(&self, records: usize, ticket: u64) {
        self.lock_state().record_stored(records);
        self.shipped.send_modify(|shipped| shipped.upto = ticket);
    }

    /// Removes the first chain and its file, once the store has the whole chain.
    fn finish_front_chain(&self, end: ChainEnd) {
        let Some(out) = self.pop_front_chain() else { return };
        let done = match end {
            ChainEnd::Damaged => quarantine_segment(&out.path).map(|_| ()),
            ChainEnd::Open | ChainEnd::Closed => std::fs::remove_file(&out.path),
        };
        if let Err(error) = done {
            // The chain will be shipped again, which is harmless because storing is idempotent.
            let error = &error as &dyn std::error::Error;
            tracing::warn!(error, path = %out.path.display(), "an audit file stays");
        }
        drop(out);
        self.publish_recovered();
    }

    /// Drops the first chain from the list because it cannot be shipped now. Its file stays.
    fn skip_front_chain(&self) {
        self.pop_front_chain();
        self.publish_recovered();
    }

    /// Handles a conflict: the store holds something else at the positions of this chain. The file is kept as evidence. If this writer
    /// wrote the chain, further records are rejected, because another process writes under the same identity.
    fn handle_conflict(&self, what: &str) {
        tracing::error!(what, "the audit store holds something else in the place of a record");
        let Some(out) = self.pop_front_chain() else { return };
        if let Err(error) = quarantine_segment(&out.path) {
            let error = &error as &dyn std::error::Error;
            tracing::error!(error, path = %out.path.display(), "an audit file stays");
        }
        if matches!(out.records, RecordSource::Memory(_)) {
            let mut book = self.lock_state();
            book.mark_broken();
            self.publish_synced(&book);
        }
        self.publish_recovered();
    }

    fn pop_front_chain(&self) -> Option<OutgoingChain> {
        self.lock_state().pop_front()
    }

    fn publish_recovered(&self) {
        let recovered = !self.lock_state().is_recovering();
        self.shipped.send_modify(|shipped| shipped.recovered = recovered);
    }

    /// Stops accepting records and closes the chain.
    fn close_chain(&self) {
        let mut book = self.lock_state();
        if let Err(error) = book.finish_chain(&self.now) {
            let error = &error as &dyn std::error::Error;
            tracing::error!(error, "the audit chain could not be closed");
        }
        self.publish_synced(&book);
    }

    fn ensure_all_shipped(&self) -> Result<(), UnshippedError> {
        match self.lock_state().chain_count() {
            0 => Ok(()),
            chains => Err(UnshippedError { chains }),
        }
    }
}

/// Exponential backoff after failures of the store: each delay is twice the previous one.
struct RetryBackoff {
    first: Duration,
    longest: Duration,
    next: Duration,
}

impl RetryBackoff {
    fn new(longest: Duration) -> Self {
        let first = longest / 64;
        Self { first, longest, next: first }
    }

    fn reset_delay(&mut self) {
        self.next = self.first;
    }

    /// Waits for the delay. The stop ends a delay early; delays after the stop are waited out in full.
    async fn wait_delay(&mut self, stop: &CancellationToken) {
        let pause = self.next;
        self.next = (pause * 2).min(self.longest);
        if stop.is_cancelled() {
            let _ = timeout(pause, std::future::pending::<()>()).await;
        } else {
            let _ = timeout(pause, stop.cancelled()).await;
        }
    }
}
