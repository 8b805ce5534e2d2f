//! Giving records to the store, chain after chain.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::{
    Inner, Shipped, Unshipped,
    book::{Book, ChainEnd, Outgoing, Source},
    recovery,
};
use crate::{Checkpoint, NewChain, Record, Store, StoreError, Tree, genesis, segment::set_aside};

/// How far the shipping has come. It outlives a shipper that is given up halfway, so that the
/// next one goes on where that one was.
#[derive(Debug, Default)]
pub(super) struct Shipper {
    current: Option<Current>,
}

/// The chain whose turn it is.
#[derive(Debug)]
struct Current {
    chain: NewChain,
    registered: bool,
    /// Read from the file of a dead process, waiting for their turn.
    loaded: VecDeque<Record>,
    /// Taken to be stored next.
    batch: Vec<Record>,
    /// The ticket of the last of the batch, if the records have tickets.
    ticket: Option<u64>,
    tree: Tree,
    head: [u8; 32],
    checkpointed: u64,
    checkpointed_at: Instant,
}

/// What was done.
enum Step {
    /// Something; there may be more.
    Done,
    /// Nothing: there is nothing to do now.
    Idle,
}

impl Shipper {
    pub(super) async fn run(
        &mut self,
        inner: &Inner,
        store: &dyn Store,
        stop: &CancellationToken,
    ) -> Result<(), Unshipped> {
        let mut pause = Pause::new(inner.options.longest_pause);
        let mut deadline = None;
        loop {
            if deadline.is_none() && stop.is_cancelled() {
                inner.close();
                deadline = Some(Instant::now() + inner.options.patience);
            }
            match self.step(inner, store).await {
                Ok(Step::Done) => pause.reset(),
                Ok(Step::Idle) if deadline.is_some() => return inner.all_shipped(),
                Ok(Step::Idle) => self.rest(inner, stop).await,
                Err(StoreError::Conflict(what)) => self.give_up(inner, &what),
                Err(StoreError::Unavailable(error)) => {
                    tracing::warn!(error = &*error as &dyn std::error::Error, "audit store failed");
                    if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                        return inner.all_shipped();
                    }
                    pause.take(stop).await;
                }
            }
        }
    }

    /// Does the next thing there is to do.
    async fn step(&mut self, inner: &Inner, store: &dyn Store) -> Result<Step, StoreError> {
        if self.current.is_none() {
            self.current = Current::begin(inner).await?;
        }
        let Some(current) = &mut self.current else { return Ok(Step::Idle) };
        if current.fill(inner).await {
            current.store(inner, store).await?;
            return Ok(Step::Done);
        }
        let end = current.end(inner);
        if current.is_checkpoint_due(inner, end) {
            current.checkpoint(inner, store, end == ChainEnd::Closed).await?;
            return Ok(Step::Done);
        }
        if end == ChainEnd::Open {
            return Ok(Step::Idle);
        }
        inner.finish(end);
        self.current = None;
        Ok(Step::Done)
    }

    /// Waits for something to do.
    async fn rest(&self, inner: &Inner, stop: &CancellationToken) {
        let due = self.current.as_ref().and_then(|current| current.checkpoint_at(inner));
        let until_due = async {
            match due {
                Some(due) => tokio::time::sleep_until(due).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = stop.cancelled() => return,
            () = until_due => return,
            () = inner.fresh.notified() => {}
        }
        // What comes now comes in company; one piece of work of the store is enough for it.
        if inner.book().status().backlog < inner.options.batch {
            let _ = timeout(inner.options.linger, stop.cancelled()).await;
        }
    }

    /// Somebody else wrote where this chain belongs: its file is kept as evidence.
    fn give_up(&mut self, inner: &Inner, what: &str) {
        tracing::error!(what, "the audit store holds something else in the place of a record");
        inner.contradicted();
        self.current = None;
    }
}

impl Current {
    async fn begin(inner: &Inner) -> Result<Option<Self>, StoreError> {
        let Some((chain, file)) = inner.front() else { return Ok(None) };
        let loaded = match file {
            None => Vec::new(),
            Some(file) => tokio::task::spawn_blocking(move || recovery::load(&file))
                .await
                .map_err(std::io::Error::other)
                .flatten()
                .map_err(|error| StoreError::Unavailable(Box::new(error)))?,
        };
        Ok(Some(Self {
            head: genesis(chain.chain),
            chain,
            registered: false,
            loaded: loaded.into(),
            batch: Vec::new(),
            ticket: None,
            tree: Tree::new(),
            checkpointed: 0,
            checkpointed_at: Instant::now(),
        }))
    }

    /// Gets the next batch; whether there is one.
    async fn fill(&mut self, inner: &Inner) -> bool {
        if !self.batch.is_empty() {
            return true;
        }
        let most = inner.options.batch;
        if !self.loaded.is_empty() {
            self.batch.extend(self.loaded.drain(..most.min(self.loaded.len())));
            return true;
        }
        let Some(last) = inner.last_of_batch(most) else { return false };
        if inner.durable(last).await.is_err() {
            return false;
        }
        self.ticket = Some(last);
        inner.take_upto(last, &mut self.batch);
        !self.batch.is_empty()
    }

    async fn store(&mut self, inner: &Inner, store: &dyn Store) -> Result<(), StoreError> {
        if !self.registered {
            store.register(&self.chain).await?;
            self.registered = true;
        }
        store.store(&self.batch).await?;
        for record in &self.batch {
            self.tree.push(record.hash);
            self.head = record.hash;
        }
        if let Some(ticket) = self.ticket.take() {
            inner.stored(self.batch.len(), ticket);
        }
        self.batch.clear();
        Ok(())
    }

    fn end(&self, inner: &Inner) -> ChainEnd {
        inner.book().front().map_or(ChainEnd::Open, |out| out.end)
    }

    fn is_checkpoint_due(&self, inner: &Inner, end: ChainEnd) -> bool {
        let new = self.tree.size() - self.checkpointed;
        match end {
            ChainEnd::Open => {
                new >= inner.options.checkpoint_records
                    || self.checkpoint_at(inner).is_some_and(|due| due <= Instant::now())
            }
            ChainEnd::Damaged => new > 0,
            // The closing one is made once, even if another of the same size was made before.
            ChainEnd::Closed => self.tree.size() > 0 && self.checkpointed != u64::MAX,
        }
    }

    /// When the next checkpoint is due, if anything is new.
    fn checkpoint_at(&self, inner: &Inner) -> Option<Instant> {
        let new = self.checkpointed < self.tree.size();
        new.then(|| self.checkpointed_at + inner.options.checkpoint_every)
    }

    async fn checkpoint(
        &mut self,
        inner: &Inner,
        store: &dyn Store,
        closed: bool,
    ) -> Result<(), StoreError> {
        let at = (inner.now)();
        let (chain, key) = (self.chain.chain, &inner.signer);
        let checkpoint = Checkpoint::sign(chain, &self.tree, self.head, at, closed, key);
        store.checkpoint(&checkpoint).await?;
        self.checkpointed = if closed { u64::MAX } else { checkpoint.size };
        self.checkpointed_at = Instant::now();
        Ok(())
    }
}
