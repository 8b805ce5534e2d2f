//! Giving records to the store, chain after chain.

use std::{collections::VecDeque, fs::File, io, sync::Arc, time::Duration};

use tokio::time::{Instant, timeout, timeout_at};
use tokio_util::sync::CancellationToken;

use super::{
    Inner, Unshipped,
    book::{ChainEnd, Outgoing, Source},
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
            let limit = deadline.map_or(inner.options.answer, |deadline: Instant| {
                inner.options.answer.min(deadline.saturating_duration_since(Instant::now()))
            });
            // A step that is given up is done again from its start, which changes nothing.
            let step = tokio::select! {
                biased;
                step = timeout(limit, self.step(inner, store)) => step.unwrap_or_else(|_| {
                    Err(StoreError::Unavailable("no answer in time".into()))
                }),
                () = stop.cancelled(), if deadline.is_none() => continue,
            };
            match step {
                Ok(Step::Done) => pause.reset(),
                Ok(Step::Idle) if deadline.is_some() => return inner.all_shipped(),
                Ok(Step::Idle) => self.rest(inner, stop).await,
                Err(StoreError::Conflict(what)) => {
                    inner.contradict(&what);
                    self.current = None;
                }
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
            self.current = Current::begin(inner).await;
        }
        let Some(current) = &mut self.current else { return Ok(Step::Idle) };
        // Before more is stored: under load there is always more.
        if current.is_checkpoint_due(inner) {
            current.checkpoint(inner, store, Chain::GoesOn).await?;
            return Ok(Step::Done);
        }
        if current.fill(inner).await {
            current.store(inner, store).await?;
            return Ok(Step::Done);
        }
        let end = inner.end();
        match end {
            ChainEnd::Open => return Ok(Step::Idle),
            ChainEnd::Damaged => current.checkpoint(inner, store, Chain::GoesOn).await?,
            // A chain without records was never registered and leaves no trace.
            ChainEnd::Closed if current.tree.size() == 0 => {}
            ChainEnd::Closed => current.checkpoint(inner, store, Chain::IsClosed).await?,
        }
        inner.finish(end);
        self.current = None;
        Ok(Step::Done)
    }

    /// Waits for something to do.
    async fn rest(&self, inner: &Inner, stop: &CancellationToken) {
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
        // What comes now comes in company; one piece of work of the store is enough for it.
        if fresh && inner.book().status().backlog < inner.options.batch {
            let _ = timeout(inner.options.linger, stop.cancelled()).await;
        }
    }
}

impl Current {
    /// The chain whose turn it is, with its records if they are in a file.
    async fn begin(inner: &Inner) -> Option<Self> {
        while let Some((chain, file)) = inner.front() {
            let Some(file) = file else { return Some(Self::new(chain, Vec::new())) };
            match load(file).await {
                Ok(records) => return Some(Self::new(chain, records)),
                Err(error) => {
                    // It stays where it is, and the next writer of the directory tries again.
                    let error = &error as &dyn std::error::Error;
                    tracing::error!(error, chain = %chain.chain, "an audit file cannot be read");
                    inner.pass_over();
                }
            }
        }
        None
    }

    fn new(chain: NewChain, records: Vec<Record>) -> Self {
        Self {
            head: genesis(chain.chain),
            chain,
            registered: false,
            loaded: records.into(),
            batch: Vec::new(),
            ticket: None,
            tree: Tree::new(),
            checkpointed: 0,
            checkpointed_at: Instant::now(),
        }
    }

    /// Gets the next batch; whether there is one.
    async fn fill(&mut self, inner: &Inner) -> bool {
        let most = inner.options.batch;
        if self.batch.is_empty() && !self.loaded.is_empty() {
            self.batch.extend(self.loaded.drain(..most.min(self.loaded.len())));
        }
        if self.batch.is_empty()
            && let Some(last) = inner.last_of_batch(most)
        {
            // If the disk fails, what reached it before is shipped all the same.
            let durable =
                inner.durable(last).await.map_or_else(|_| inner.book().synced(), |()| last);
            self.ticket = inner.take_upto(durable.min(last), &mut self.batch);
        }
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

    fn is_checkpoint_due(&self, inner: &Inner) -> bool {
        self.tree.size() - self.checkpointed >= inner.options.checkpoint_records
            || self.checkpoint_at(inner).is_some_and(|due| due <= Instant::now())
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
        is: Chain,
    ) -> Result<(), StoreError> {
        let closed = matches!(is, Chain::IsClosed);
        let (chain, at) = (self.chain.chain, (inner.now)());
        let checkpoint = Checkpoint::sign(chain, &self.tree, self.head, at, closed, &inner.signer);
        store.checkpoint(&checkpoint).await?;
        self.checkpointed = checkpoint.size;
        self.checkpointed_at = Instant::now();
        Ok(())
    }
}

/// What a checkpoint says about the chain after it.
enum Chain {
    GoesOn,
    IsClosed,
}

async fn load(file: Arc<File>) -> io::Result<Vec<Record>> {
    tokio::task::spawn_blocking(move || recovery::load(&file)).await.map_err(io::Error::other)?
}

impl Inner {
    /// The chain whose turn it is, and its file if its records are to be read from there.
    fn front(&self) -> Option<(NewChain, Option<Arc<File>>)> {
        let mut book = self.book();
        let front = book.front()?;
        let file = match front.records {
            Source::File => Some(Arc::clone(&front.file)),
            Source::Memory(_) => None,
        };
        Some((front.chain.clone(), file))
    }

    /// The ticket of the last record of the next batch.
    fn last_of_batch(&self, most: usize) -> Option<u64> {
        match &self.book().front()?.records {
            Source::File => None,
            Source::Memory(queue) => {
                queue.get(most.min(queue.len()).checked_sub(1)?).map(|(ticket, _)| *ticket)
            }
        }
    }

    /// Takes the records up to this ticket; the ticket of the last one taken.
    fn take_upto(&self, upto: u64, batch: &mut Vec<Record>) -> Option<u64> {
        let mut book = self.book();
        let Source::Memory(queue) = &mut book.front()?.records else { return None };
        let mut last = None;
        while let Some((ticket, record)) = queue.pop_front_if(|(ticket, _)| *ticket <= upto) {
            last = Some(ticket);
            batch.push(record);
        }
        last
    }

    /// How the chain whose turn it is ends; it is open as long as there is more of it.
    fn end(&self) -> ChainEnd {
        match self.book().front() {
            None => ChainEnd::Open,
            Some(Outgoing { records: Source::Memory(queue), .. }) if !queue.is_empty() => {
                ChainEnd::Open
            }
            Some(out) => out.end,
        }
    }

    fn stored(&self, records: usize, ticket: u64) {
        self.book().stored(records);
        self.shipped.send_modify(|shipped| shipped.upto = ticket);
    }

    /// The store has the whole chain: its file has done its work.
    fn finish(&self, end: ChainEnd) {
        let Some(out) = self.pop() else { return };
        let done = match end {
            ChainEnd::Damaged => set_aside(&out.path).map(|_| ()),
            ChainEnd::Open | ChainEnd::Closed => std::fs::remove_file(&out.path),
        };
        if let Err(error) = done {
            // It will be shipped once more, which changes nothing.
            let error = &error as &dyn std::error::Error;
            tracing::warn!(error, path = %out.path.display(), "an audit file stays");
        }
        drop(out);
        self.tell_recovered();
    }

    /// Leaves the file of a chain that cannot be shipped now.
    fn pass_over(&self) {
        self.pop();
        self.tell_recovered();
    }

    /// The store holds something else where this chain belongs. Its file is kept as evidence. If
    /// the chain is our own, nothing more is taken: somebody writes in our name.
    fn contradict(&self, what: &str) {
        tracing::error!(what, "the audit store holds something else in the place of a record");
        let Some(out) = self.pop() else { return };
        if let Err(error) = set_aside(&out.path) {
            let error = &error as &dyn std::error::Error;
            tracing::error!(error, path = %out.path.display(), "an audit file stays");
        }
        if matches!(out.records, Source::Memory(_)) {
            let mut book = self.book();
            book.break_down();
            self.tell_synced(&book);
        }
        self.tell_recovered();
    }

    fn pop(&self) -> Option<Outgoing> {
        self.book().pop_front()
    }

    fn tell_recovered(&self) {
        let recovered = !self.book().is_recovering();
        self.shipped.send_modify(|shipped| shipped.recovered = recovered);
    }

    /// Takes nothing more and closes the chain.
    fn close(&self) {
        let mut book = self.book();
        if let Err(error) = book.close(&self.now) {
            let error = &error as &dyn std::error::Error;
            tracing::error!(error, "the audit chain could not be closed");
        }
        self.tell_synced(&book);
    }

    fn all_shipped(&self) -> Result<(), Unshipped> {
        match self.book().chains() {
            0 => Ok(()),
            chains => Err(Unshipped { chains }),
        }
    }
}

/// The pauses after failures of the store: each twice as long as the one before.
struct Pause {
    first: Duration,
    longest: Duration,
    next: Duration,
}

impl Pause {
    fn new(longest: Duration) -> Self {
        let first = longest / 64;
        Self { first, longest, next: first }
    }

    fn reset(&mut self) {
        self.next = self.first;
    }

    /// Waits; the stop ends the pause, and those after it are waited out.
    async fn take(&mut self, stop: &CancellationToken) {
        let pause = self.next;
        self.next = (pause * 2).min(self.longest);
        if stop.is_cancelled() {
            let _ = timeout(pause, std::future::pending::<()>()).await;
        } else {
            let _ = timeout(pause, stop.cancelled()).await;
        }
    }
}
