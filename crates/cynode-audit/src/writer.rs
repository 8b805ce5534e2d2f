//! Taking records in, keeping them safe, and shipping them to a store.
//!
//! A record goes three steps. [`AuditWriter::append`] gives it its place in the chain and writes it to
//! the file of the chain: it survives the death of the process. A thread of its own brings the
//! file to the disk, for all who wait in [`AuditWriter::durable`] at once: it survives a power loss.
//! [`AuditWriter::ship_records`] gives it to the store, and never before it is on the disk: a record that the
//! store has and the file lost would leave its place to another one.

mod recovery;
mod shipper;
mod state;
mod sync;
#[cfg(test)]
mod tests;

use std::{
    fmt, io,
    path::{Path, PathBuf},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread::JoinHandle,
    time::Duration,
};

use ed25519_dalek::SigningKey;
use time::OffsetDateTime;
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::{
    AuditEntry, AuditStore, BadEntry, encode_entry, open_calls::CallStateError,
    segment::SegmentDirectory, truncate_to_micros,
};
use shipper::Shipper;
use state::WriterState;
use sync::SyncProgress;

/// Where a writer takes the time from.
pub type Now = Arc<dyn Fn() -> OffsetDateTime + Send + Sync>;

/// Where a writer takes the ids of its chains from.
pub type NewId = Arc<dyn Fn() -> Uuid + Send + Sync>;

/// What can be chosen about a writer.
#[derive(Clone, Debug)]
pub struct AuditWriterOptions {
    /// The name of the writer, as the starts of its chains tell it.
    pub writer: String,
    /// How many records a chain has before the next one is begun.
    pub chain_records: u64,
    /// How old a chain with records may be when the next record comes, before the next one is begun:
    /// only a chain that has ended can be removed when its time is over.
    pub chain_age: Duration,
    /// How many records may wait for the store before calls are refused.
    pub max_backlog: usize,
    /// How long a record that nobody waits for may stay off the disk.
    pub lazy_sync: Duration,
    /// How many records the store is given at once.
    pub batch: usize,
    /// How long the shipper gathers records before it stores the first.
    pub linger: Duration,
    /// How many records are stored at most before the next checkpoint.
    pub checkpoint_records: u64,
    /// How long a stored record waits at most for a checkpoint.
    pub checkpoint_every: Duration,
    /// How long the store may take for one piece of work before it counts as failed.
    pub answer: Duration,
    /// The longest pause after a failure of the store. The first is 64 times shorter.
    pub longest_pause: Duration,
    /// How long the end waits for a store that fails. What is left then is on the disk, and the
    /// next writer of the directory ships it.
    pub patience: Duration,
}

impl AuditWriterOptions {
    /// What fits a busy gateway.
    pub fn new(writer: impl Into<String>) -> Self {
        Self {
            writer: writer.into(),
            chain_records: 65_536,
            chain_age: Duration::from_hours(24),
            max_backlog: 100_000,
            lazy_sync: Duration::from_millis(50),
            batch: 500,
            linger: Duration::from_millis(20),
            checkpoint_records: 1_000,
            checkpoint_every: Duration::from_mins(1),
            answer: Duration::from_secs(10),
            longest_pause: Duration::from_secs(5),
            patience: Duration::from_secs(10),
        }
    }
}

/// Why a record was not taken. A call whose decision cannot be recorded must not be made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AppendError {
    /// The entry says what an entry may not say.
    #[error(transparent)]
    Entry(#[from] BadEntry),
    /// The call has a decision already and waits for its outcome.
    #[error("the call has a decision already")]
    AlreadyOpen,
    /// The call has no decision, or its outcome was written before.
    #[error("the call has no decision that waits for an outcome")]
    NotOpen,
    /// Too many records wait for the store.
    #[error("too many records wait for the store")]
    Full,
    /// The file cannot be written.
    #[error("the audit file cannot be written")]
    Broken,
    /// The writer has been stopped.
    #[error("the audit writer has been stopped")]
    Closed,
}

impl From<CallStateError> for AppendError {
    fn from(unfit: CallStateError) -> Self {
        match unfit {
            CallStateError::AlreadyOpen => Self::AlreadyOpen,
            CallStateError::NotOpen => Self::NotOpen,
        }
    }
}

/// Why a writer could not begin.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The directory cannot be used.
    #[error("the audit directory `{}` cannot be used", path.display())]
    Directory {
        /// The directory.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The thread that brings records to the disk could not be started.
    #[error("the thread of the audit writer could not be started")]
    Thread(#[source] io::Error),
}

/// The writer ended before the store had everything. What is left is on the disk.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{chains} chains are not stored yet; the next writer of the directory will ship them")]
pub struct UnshippedError {
    /// How many chains are left.
    pub chains: usize,
}

/// Stands for a record that was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RecordTicket(u64);

/// A file of a dead process that was taken over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecoveryReport {
    /// The chain, if the file still tells it.
    pub chain: Option<Uuid>,
    /// The file.
    pub path: PathBuf,
    /// How many good records it holds, with those that were added now.
    pub records: u64,
    /// The calls that got an unknown outcome now.
    pub cut_off: Vec<Uuid>,
    /// How many bytes of a record that was never acknowledged were dropped at the end.
    pub torn: u64,
    /// What becomes of it.
    pub condition: SegmentCondition,
}

/// What becomes of a file that was taken over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SegmentCondition {
    /// It is closed and shipped like any other.
    Good,
    /// It is not what was written. The good records before the damage are shipped, the chain
    /// stays open, and the file is kept as `*.damaged`.
    Damaged,
    /// It could not be read or written, and is left for the next start.
    Unreadable,
}

/// How a writer is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriterStatus {
    /// Records that are not stored yet.
    pub backlog: usize,
    /// Calls that wait for their outcome.
    pub open_calls: usize,
    /// Records taken since the start.
    pub written: u64,
    /// How many of those are on the disk.
    pub synced: u64,
    /// Chains that are not wholly stored yet, with the one being written.
    pub chains: usize,
    /// Whether everything is refused because the file cannot be trusted any more.
    pub broken: bool,
}

/// Takes records in, keeps them safe and ships them.
///
/// Dropping it is like the death of the process: the files stay, and the next writer of the
/// directory takes them over. The clean end is stopping [`AuditWriter::ship_records`].
pub struct AuditWriter {
    inner: Arc<WriterShared>,
    shipper: tokio::sync::Mutex<Shipper>,
    thread: Option<JoinHandle<()>>,
}

/// What the writer and its thread share.
struct WriterShared {
    book: Mutex<WriterState>,
    /// Wakes the thread.
    wake: Condvar,
    /// What is on the disk.
    synced: watch::Sender<SyncProgress>,
    /// What is in the store.
    shipped: watch::Sender<ShippingProgress>,
    /// Wakes the shipper.
    fresh: Notify,
    directory: SegmentDirectory,
    options: AuditWriterOptions,
    signer: SigningKey,
    now: Now,
    new_id: NewId,
}

/// How far the store has come.
#[derive(Clone, Copy, Debug, Default)]
struct ShippingProgress {
    upto: u64,
    /// Whether every file that was taken over is done.
    recovered: bool,
}

impl AuditWriter {
    /// Begins a chain in `directory` and takes over what dead processes left there.
    pub fn open_in_directory(
        directory: &Path,
        options: AuditWriterOptions,
        signer: SigningKey,
        now: Now,
        new_id: NewId,
    ) -> Result<(Self, Vec<RecoveryReport>), OpenError> {
        let failed = |source| OpenError::Directory { path: directory.to_owned(), source };
        let directory = SegmentDirectory::open_directory(directory).map_err(failed)?;
        let (outgoing, recovered) = recovery::recover_segments(&directory, &now).map_err(failed)?;
        let shipped = ShippingProgress { upto: 0, recovered: outgoing.is_empty() };
        let book = WriterState::open_first_chain(&directory, &options, outgoing, &now, &new_id)
            .map_err(failed)?;
        let inner = Arc::new(WriterShared {
            book: Mutex::new(book),
            wake: Condvar::new(),
            synced: watch::Sender::new(SyncProgress::default()),
            shipped: watch::Sender::new(shipped),
            fresh: Notify::new(),
            directory,
            options,
            signer,
            now,
            new_id,
        });
        let thread = sync::spawn_sync_thread(Arc::clone(&inner)).map_err(OpenError::Thread)?;
        let shipper = tokio::sync::Mutex::new(Shipper::default());
        Ok((Self { inner, shipper, thread: Some(thread) }, recovered))
    }

    /// Takes a record. When this returns, it survives the death of the process.
    ///
    /// It takes some microseconds and may be called from async code. Room for the outcome of a
    /// call is set aside with its decision, so an outcome is never refused as [`AppendError::Full`].
    pub fn append_entry(&self, entry: AuditEntry) -> Result<RecordTicket, AppendError> {
        self.inner.append_entry(entry, SyncUrgency::Lazy).map(RecordTicket)
    }

    /// Takes a record and returns once it survives a power loss.
    ///
    /// It is [`AuditWriter::append`] and [`AuditWriter::durable`] in one, which disturbs the thread once.
    pub async fn record_durably(&self, entry: AuditEntry) -> Result<(), AppendError> {
        let ticket = self.inner.append_entry(entry, SyncUrgency::Now)?;
        self.inner.wait_synced(ticket).await
    }

    /// Returns once the record survives a power loss.
    pub async fn wait_durable(&self, ticket: RecordTicket) -> Result<(), AppendError> {
        self.inner.wait_durable(ticket.0).await
    }

    /// Ships records to the store until `stop`, then closes the chain and ships what is left.
    ///
    /// Calls that are under way at the end get an unknown outcome, and nothing more is taken.
    /// One shipper works at a time; a second one waits for the first to end.
    pub async fn ship_records(
        &self,
        store: Arc<dyn AuditStore>,
        stop: CancellationToken,
    ) -> Result<(), UnshippedError> {
        self.shipper.lock().await.run_until_stopped(&self.inner, &*store, &stop).await
    }

    /// Returns once everything taken before, and all that was taken over, is in the store.
    pub async fn wait_flushed(&self) -> Result<(), AppendError> {
        let written = self.inner.lock_state().written_count();
        let mut shipped = self.inner.shipped.subscribe();
        let mut synced = self.inner.synced.subscribe();
        let done = shipped.wait_for(|shipped| shipped.upto >= written && shipped.recovered);
        let broken = synced.wait_for(|synced| synced.broken);
        tokio::select! {
            biased;
            _ = done => Ok(()),
            _ = broken => Err(AppendError::Broken),
        }
    }

    /// How the writer is doing.
    pub fn writer_status(&self) -> WriterStatus {
        self.inner.lock_state().writer_status()
    }
}

/// How soon a record must be on the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SyncUrgency {
    /// Somebody waits for it.
    Now,
    /// Within [`AuditWriterOptions::lazy_sync`].
    Lazy,
}

impl WriterShared {
    /// Gives a record its place and writes it; its ticket.
    fn append_entry(&self, mut entry: AuditEntry, need: SyncUrgency) -> Result<u64, AppendError> {
        entry.at = truncate_to_micros(entry.at);
        entry.validate_fields()?;
        let encoded = encode_entry(&entry);
        let mut book = self.lock_state();
        book.check_admission(&entry, self.options.max_backlog)?;
        if book.is_rotation_due(&self.options) {
            self.rotate_chain(&mut book);
        }
        let ticket =
            book.append_record(entry, &encoded).inspect_err(|_| self.publish_if_broken(&book))?;
        let wake = match need {
            SyncUrgency::Now => book.request_sync(ticket),
            SyncUrgency::Lazy => book.is_thread_asleep(),
        };
        drop(book);
        if wake {
            self.wake.notify_one();
        }
        self.fresh.notify_one();
        Ok(ticket)
    }

    fn lock_state(&self) -> MutexGuard<'_, WriterState> {
        self.book.lock().unwrap_or_else(|poisoned: PoisonError<_>| {
            // Somebody panicked halfway through a change: the chain may be off.
            let mut book = poisoned.into_inner();
            book.mark_broken();
            book
        })
    }

    /// Begins the next chain, with the calls that are under way. If there can be no new file, the
    /// old chain goes on as long as it can be written: a call that was made has an outcome to tell.
    fn rotate_chain(&self, book: &mut WriterState) {
        let rotated = book.rotate_chain(&self.directory, &self.options, &self.now, &self.new_id);
        if let Err(error) = rotated {
            tracing::error!(error = &error as &dyn std::error::Error, "no new audit chain");
        }
        self.publish_synced(book);
    }
}

impl Drop for AuditWriter {
    fn drop(&mut self) {
        self.inner.lock_state().request_halt();
        self.inner.wake.notify_one();
        if let Some(thread) = self.thread.take() {
            // The locks on the files end with the thread, so the next writer can have them.
            let _ = thread.join();
        }
    }
}

impl fmt::Debug for AuditWriter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Writer").field("status", &self.writer_status()).finish_non_exhaustive()
    }
}
