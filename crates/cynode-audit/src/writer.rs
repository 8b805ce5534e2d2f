//! Audit writer: accepts records, makes them durable, and ships them to a store.
//!
//! A record passes three stages. [`AuditWriter::append_entry`] assigns its position in the chain and writes it to the file of the chain: it
//! survives the death of the process. A separate thread syncs the file to the disk, once for all callers that wait in
//! [`AuditWriter::wait_durable`]: it survives a power loss. [`AuditWriter::ship_records`] sends it to the store, and never before it is on
//! the disk: if the store had a record that the file lost, another record would take its position.

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

use time::OffsetDateTime;
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::{
    AuditEntry, AuditSigner, AuditStore, BadEntry, encode_entry, open_calls::CallStateError,
    segment::SegmentDirectory, truncate_to_micros,
};
use shipper::Shipper;
use state::WriterState;
use sync::SyncProgress;

/// Clock of a writer.
pub type Now = Arc<dyn Fn() -> OffsetDateTime + Send + Sync>;

/// Source of chain ids of a writer.
pub type NewId = Arc<dyn Fn() -> Uuid + Send + Sync>;

/// Options of an [`AuditWriter`].
#[derive(Clone, Debug)]
pub struct AuditWriterOptions {
    /// Name of the writer, as recorded in the starts of its chains.
    pub writer: String,
    /// Maximum number of records of a chain. The writer then rotates to the next chain.
    pub chain_records: u64,
    /// Maximum age of a chain with records. The next record after that begins a new chain: retention can remove only a chain that has
    /// ended.
    pub chain_age: Duration,
    /// Maximum number of records that wait for the store. Beyond it the writer rejects calls (backpressure).
    pub max_backlog: usize,
    /// Maximum delay of the sync of a record that no caller waits for.
    pub lazy_sync: Duration,
    /// Number of records per store operation.
    pub batch: usize,
    /// Time for which the shipper collects records before it stores the first.
    pub linger: Duration,
    /// Maximum number of stored records between two checkpoints.
    pub checkpoint_records: u64,
    /// Maximum time from the storing of a record to its checkpoint.
    pub checkpoint_every: Duration,
    /// Timeout of one store operation.
    pub answer: Duration,
    /// Maximum retry delay after a failure of the store. The first delay is 64 times shorter.
    pub longest_pause: Duration,
    /// Time for which the shutdown waits for a failing store. The remaining records are on the disk, and the next writer of the directory
    /// ships them.
    pub patience: Duration,
}

impl AuditWriterOptions {
    /// Returns the defaults, which suit a busy gateway.
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

/// Reason for rejecting a record. A call whose decision cannot be recorded must not be made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AppendError {
    /// The entry is invalid.
    #[error(transparent)]
    Entry(#[from] BadEntry),
    /// The call already has a decision and waits for its outcome.
    #[error("the call has a decision already")]
    AlreadyOpen,
    /// The call has no decision, or already has an outcome.
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

/// Reason why a writer could not start.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The directory cannot be used.
    #[error("the audit directory `{}` cannot be used", path.display())]
    Directory {
        /// Path of the directory.
        path: PathBuf,
        /// Error of the operating system.
        source: io::Error,
    },
    /// The sync thread could not be started.
    #[error("the thread of the audit writer could not be started")]
    Thread(#[source] io::Error),
}

/// Error: the writer stopped before the store had all records. The remaining records are on the disk.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{chains} chains are not stored yet; the next writer of the directory will ship them")]
pub struct UnshippedError {
    /// Number of chains that are not completely stored.
    pub chains: usize,
}

/// Reference to an accepted record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RecordTicket(u64);

/// Report about one recovered file of a dead process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecoveryReport {
    /// Id of the chain, if the file still holds it.
    pub chain: Option<Uuid>,
    /// Path of the file.
    pub path: PathBuf,
    /// Number of valid records in the file, including those that the recovery added.
    pub records: u64,
    /// Calls for which the recovery recorded an unknown outcome.
    pub cut_off: Vec<Uuid>,
    /// Number of bytes dropped at the end: a partial record that was never acknowledged.
    pub torn: u64,
    /// Condition of the file.
    pub condition: SegmentCondition,
}

/// Condition of a recovered file, which decides its treatment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SegmentCondition {
    /// The file is valid. It is closed and shipped like any other.
    Good,
    /// The content is not what was written. The valid records before the damage are shipped, the chain stays open, and the file is kept as
    /// `*.damaged`.
    Damaged,
    /// The file could not be read or written. The next start tries again.
    Unreadable,
}

/// Status of a writer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriterStatus {
    /// Number of records that are not stored yet.
    pub backlog: usize,
    /// Number of calls that have no outcome yet.
    pub open_calls: usize,
    /// Number of records accepted since the start.
    pub written: u64,
    /// Number of those records that are on the disk.
    pub synced: u64,
    /// Number of chains that are not completely stored yet, including the live one.
    pub chains: usize,
    /// Whether the writer rejects everything because the file is no longer reliable.
    pub broken: bool,
}

/// Accepts records, makes them durable and ships them.
///
/// Dropping a writer has the effect of a crash: the files stay, and the next writer of the directory recovers them. For a clean shutdown,
/// stop [`AuditWriter::ship_records`].
pub struct AuditWriter {
    inner: Arc<WriterShared>,
    shipper: tokio::sync::Mutex<Shipper>,
    thread: Option<JoinHandle<()>>,
}

/// State that the writer shares with its sync thread.
struct WriterShared {
    book: Mutex<WriterState>,
    /// Wakes the sync thread.
    wake: Condvar,
    /// Progress of the sync thread.
    synced: watch::Sender<SyncProgress>,
    /// Progress of the shipper.
    shipped: watch::Sender<ShippingProgress>,
    /// Wakes the shipper.
    fresh: Notify,
    directory: SegmentDirectory,
    options: AuditWriterOptions,
    signer: AuditSigner,
    now: Now,
    new_id: NewId,
}

/// Progress of the store.
#[derive(Clone, Copy, Debug, Default)]
struct ShippingProgress {
    upto: u64,
    /// Whether every recovered file is done.
    recovered: bool,
}

impl AuditWriter {
    /// Opens a writer: starts a chain in `directory` and recovers the orphaned files of dead processes.
    pub fn open_in_directory(
        directory: &Path,
        options: AuditWriterOptions,
        signer: impl Into<AuditSigner>,
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
            signer: signer.into(),
            now,
            new_id,
        });
        let thread = sync::spawn_sync_thread(Arc::clone(&inner)).map_err(OpenError::Thread)?;
        let shipper = tokio::sync::Mutex::new(Shipper::default());
        Ok((Self { inner, shipper, thread: Some(thread) }, recovered))
    }

    /// Accepts a record. When this returns, the record survives the death of the process.
    ///
    /// It takes some microseconds and may be called from async code. The decision of a call reserves room for its outcome, so an outcome is
    /// never rejected as [`AppendError::Full`].
    pub fn append_entry(&self, entry: AuditEntry) -> Result<RecordTicket, AppendError> {
        self.inner.append_entry(entry, SyncUrgency::Lazy).map(RecordTicket)
    }

    /// Accepts a record and returns once it survives a power loss.
    ///
    /// It combines [`AuditWriter::append_entry`] and [`AuditWriter::wait_durable`] and wakes the sync thread only once.
    pub async fn record_durably(&self, entry: AuditEntry) -> Result<(), AppendError> {
        let ticket = self.inner.append_entry(entry, SyncUrgency::Now)?;
        self.inner.wait_synced(ticket).await
    }

    /// Waits until the record survives a power loss.
    pub async fn wait_durable(&self, ticket: RecordTicket) -> Result<(), AppendError> {
        self.inner.wait_durable(ticket.0).await
    }

    /// Ships records to the store until `stop`, then closes the chain and ships the remaining records.
    ///
    /// Calls that are open at the end get an unknown outcome, and further records are rejected. One shipper runs at a time; a second one
    /// waits for the first to end.
    pub async fn ship_records(
        &self,
        store: Arc<dyn AuditStore>,
        stop: CancellationToken,
    ) -> Result<(), UnshippedError> {
        self.shipper.lock().await.run_until_stopped(&self.inner, &*store, &stop).await
    }

    /// Waits until the store has all records accepted before this call and all recovered records.
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

    /// Returns the status of the writer.
    pub fn writer_status(&self) -> WriterStatus {
        self.inner.lock_state().writer_status()
    }
}

/// Urgency of the sync of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SyncUrgency {
    /// A caller waits for the sync.
    Now,
    /// The sync may wait up to [`AuditWriterOptions::lazy_sync`].
    Lazy,
}

impl WriterShared {
    /// Assigns a record its position and writes it. Returns its ticket.
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
            // A thread panicked in the middle of a change: the chain may be inconsistent.
            let mut book = poisoned.into_inner();
            book.mark_broken();
            book
        })
    }

    /// Starts the next chain with the open calls. If no new file can be created, the old chain continues as long as it can be written: a
    /// call that was made must be able to record its outcome.
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
            // The file locks end with the thread, so the next writer can claim the files.
            let _ = thread.join();
        }
    }
}

impl fmt::Debug for AuditWriter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Writer").field("status", &self.writer_status()).finish_non_exhaustive()
    }
}
