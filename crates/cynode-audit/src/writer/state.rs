//! State of a writer, behind a single lock.

use std::{collections::VecDeque, fs::File, io, path::PathBuf, sync::Arc, time::Instant};

use uuid::Uuid;

use super::{AppendError, AuditWriterOptions, NewId, Now, WriterStatus};
use crate::{
    AuditEntry, AuditRecord, NewChain, Phase, chain, encode_entry, genesis_hash,
    open_calls::OpenCalls,
    segment::{SegmentDirectory, SegmentFile, SegmentFrame, SegmentHeader, WriteError, put_record},
    truncate_to_micros,
};

/// State of a writer.
#[derive(Debug)]
pub(super) struct WriterState {
    /// The chain being written. `None` once the writer was stopped.
    live: Option<LiveChain>,
    open: OpenCalls,
    /// Chains that are not completely stored, oldest first. The live one is the last.
    outgoing: VecDeque<OutgoingChain>,
    backlog: usize,
    written: u64,
    /// Highest ticket whose sync a caller waits for.
    wanted: u64,
    synced: u64,
    thread: SyncThreadState,
    /// File that holds the records that are not on the disk yet.
    file: Arc<File>,
    broken: bool,
    halted: bool,
    frames: Vec<u8>,
}

#[derive(Debug)]
struct LiveChain {
    segment: SegmentFile,
    chain: Uuid,
    begun: Instant,
    next: u64,
    prev: [u8; 32],
}

/// State of the sync thread. It avoids needless wakeups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SyncThreadState {
    /// The thread checks the state before it waits again.
    Busy,
    /// The thread waits for a sync request, and checks the state by itself after [`AuditWriterOptions::lazy_sync`].
    Dozing,
    /// The thread waits for the next record.
    Asleep,
}

/// A chain that is not completely stored.
#[derive(Debug)]
pub(super) struct OutgoingChain {
    pub(super) chain: NewChain,
    pub(super) path: PathBuf,
    /// Keeps the file locked.
    pub(super) file: Arc<File>,
    pub(super) records: RecordSource,
    pub(super) end: ChainEnd,
}

/// Location of the records of an outgoing chain.
#[derive(Debug)]
pub(super) enum RecordSource {
    /// In memory, each with its ticket.
    Memory(VecDeque<(u64, AuditRecord)>),
    /// In the file of a dead process. The shipper reads them when it reaches the chain.
    File,
}

/// Whether more records follow in a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ChainEnd {
    Open,
    Closed,
    /// No more records follow, and records may have been lost.
    Damaged,
}

impl WriterState {
    pub(super) fn open_first_chain(
        directory: &SegmentDirectory,
        options: &AuditWriterOptions,
        mut outgoing: VecDeque<OutgoingChain>,
        now: &Now,
        new_id: &NewId,
    ) -> io::Result<Self> {
        let (live, out) = begin_chain(directory, options, None, &[], (now, new_id))?;
        outgoing.push_back(out);
        Ok(Self {
            file: live.segment.shared_file(),
            live: Some(live),
            open: OpenCalls::default(),
            outgoing,
            backlog: 0,
            written: 0,
            wanted: 0,
            synced: 0,
            thread: SyncThreadState::Busy,
            broken: false,
            halted: false,
            frames: Vec::new(),
        })
    }

    /// Checks whether the entry may be written.
    pub(super) fn check_admission(
        &self,
        entry: &AuditEntry,
        max_backlog: usize,
    ) -> Result<(), AppendError> {
        if self.broken {
            return Err(AppendError::Broken);
        }
        if self.live.is_none() {
            return Err(AppendError::Closed);
        }
        self.open.check_entry(entry)?;
        // Every open call has room reserved for its outcome, so that the outcome of a call that was made can always be recorded.
        let room = 1 + usize::from(entry.expects_outcome());
        if entry.phase == Phase::Decision && self.backlog + self.open.len() + room > max_backlog {
            return Err(AppendError::Full);
        }
        Ok(())
    }

    /// Returns whether the next record belongs in a new chain.
    pub(super) fn is_rotation_due(&self, options: &AuditWriterOptions) -> bool {
        self.live.as_ref().is_some_and(|live| {
            live.next >= options.chain_records
                || live.next > 0 && live.begun.elapsed() >= options.chain_age
        })
    }

    /// Assigns the entry its position and writes it.
    pub(super) fn append_record(
        &mut self,
        entry: AuditEntry,
        encoded: &[u8],
    ) -> Result<u64, AppendError> {
        if self.broken {
            return Err(AppendError::Broken);
        }
        let live = self.live.as_mut().ok_or(AppendError::Closed)?;
        let (chain, seq, prev) = (live.chain, live.next, live.prev);
        let hash = chain::hash(chain, seq, &prev, encoded);
        let record = AuditRecord { chain, seq, entry, prev, hash };
        self.frames.clear();
        put_record(&mut self.frames, &record, encoded);
        live.segment.append_frames(&self.frames).map_err(|error| {
            let (WriteError::Undone(cause) | WriteError::Stuck(cause)) = &error;
            tracing::error!(
                error = cause as &dyn std::error::Error,
                "an audit record was not written"
            );
            self.broken |= matches!(error, WriteError::Stuck(_));
            AppendError::Broken
        })?;
        live.next += 1;
        live.prev = hash;
        self.open.apply_entry(&record.entry);
        self.written += 1;
        self.backlog += 1;
        if let Some(OutgoingChain { records: RecordSource::Memory(queue), .. }) =
            self.outgoing.back_mut()
        {
            queue.push_back((self.written, record));
        }
        Ok(self.written)
    }

    /// Starts the next chain. The open calls move to it: their decisions are on the disk in the new file before the old file records that
    /// it is closed.
    pub(super) fn rotate_chain(
        &mut self,
        directory: &SegmentDirectory,
        options: &AuditWriterOptions,
        now: &Now,
        new_id: &NewId,
    ) -> io::Result<()> {
        if self.live.is_none() {
            return Ok(());
        }
        let begun = self.next_chain(directory, options, (now, new_id))?;
        self.switch_chain(directory, begun)
    }

    /// Creates the successor of this chain, with the open calls.
    fn next_chain(
        &self,
        directory: &SegmentDirectory,
        options: &AuditWriterOptions,
        environment: (&Now, &NewId),
    ) -> io::Result<(LiveChain, OutgoingChain)> {
        let old = self.live.as_ref().map(|live| live.chain);
        begin_chain(directory, options, old, &self.open.open_decisions(), environment)
    }

    /// Closes the chain and continues in the next one.
    fn switch_chain(
        &mut self,
        directory: &SegmentDirectory,
        (live, out): (LiveChain, OutgoingChain),
    ) -> io::Result<()> {
        let (path, file) = (out.path.clone(), live.segment.shared_file());
        if let Err(error) = self.close_live_chain() {
            // If the old chain continues, no reader may believe that its calls were taken over. If the new file cannot be removed, the old
            // chain does not continue: calls would end in both chains.
            if !self.broken
                && let Err(left) = directory.remove_segment(&path)
            {
                tracing::error!(
                    error = &left as &dyn std::error::Error,
                    "the file of an audit chain that was not begun could not be removed"
                );
                self.broken = true;
            }
            return Err(error);
        }
        self.live = Some(live);
        self.file = file;
        self.outgoing.push_back(out);
        Ok(())
    }

    /// Records an unknown outcome for every open call and closes the chain for good. If that fails, the next writer of the directory does
    /// it.
    pub(super) fn finish_chain(&mut self, now: &Now) -> io::Result<()> {
        let closed = if self.broken {
            Ok(())
        } else {
            self.record_unknown_outcomes(now).and_then(|()| self.close_live_chain())
        };
        self.live = None;
        closed
    }

    fn record_unknown_outcomes(&mut self, now: &Now) -> io::Result<()> {
        if self.live.is_none() {
            return Ok(());
        }
        for decision in self.open.open_decisions() {
            let entry = decision.to_unknown_outcome(now());
            let encoded = encode_entry(&entry);
            self.append_record(entry, &encoded).map_err(io::Error::other)?;
        }
        Ok(())
    }

    fn close_live_chain(&mut self) -> io::Result<()> {
        let Some(live) = &mut self.live else { return Ok(()) };
        self.frames.clear();
        SegmentFrame::Closed.append_to(&mut self.frames);
        live.segment.append_frames(&self.frames).map_err(|error| match error {
            WriteError::Undone(error) => error,
            WriteError::Stuck(error) => {
                self.broken = true;
                error
            }
        })?;
        // After a failed sync the state of the disk is unknown, and a second sync does not reveal it.
        live.segment.sync_data().inspect_err(|_| self.broken = true)?;
        self.synced = self.written;
        if let Some(out) = self.outgoing.back_mut() {
            out.end = ChainEnd::Closed;
        }
        Ok(())
    }

    pub(super) fn writer_status(&self) -> WriterStatus {
        WriterStatus {
            backlog: self.backlog,
            open_calls: self.open.len(),
            written: self.written,
            synced: self.synced,
            chains: self.outgoing.len(),
            broken: self.broken,
        }
    }
}

/// State transitions of the sync thread.
impl WriterState {
    pub(super) fn written_count(&self) -> u64 {
        self.written
    }

    pub(super) fn synced_count(&self) -> u64 {
        self.synced
    }

    pub(super) fn is_dirty(&self) -> bool {
        self.written > self.synced
    }

    pub(super) fn is_sync_requested(&self) -> bool {
        self.wanted > self.synced
    }

    /// Requests a sync. Returns whether the sync thread must be woken.
    pub(super) fn request_sync(&mut self, upto: u64) -> bool {
        let new = upto > self.wanted;
        self.wanted = self.wanted.max(upto);
        new && self.thread != SyncThreadState::Busy
    }

    /// Returns whether the sync thread must be woken for a record that no caller waits for.
    pub(super) fn is_thread_asleep(&self) -> bool {
        self.thread == SyncThreadState::Asleep
    }

    pub(super) fn set_thread(&mut self, thread: SyncThreadState) {
        self.thread = thread;
    }

    /// Returns the file to sync and the number of records that are on the disk after it. All records before those in this file are already
    /// on the disk, because a chain is synced when it is closed.
    pub(super) fn pending_sync(&self) -> (Arc<File>, u64) {
        (Arc::clone(&self.file), self.written)
    }

    pub(super) fn set_synced(&mut self, upto: u64) {
        self.synced = self.synced.max(upto);
    }

    pub(super) fn is_broken(&self) -> bool {
        self.broken
    }

    pub(super) fn mark_broken(&mut self) {
        self.broken = true;
    }

    pub(super) fn is_halted(&self) -> bool {
        self.halted
    }

    pub(super) fn request_halt(&mut self) {
        self.halted = true;
    }
}

/// State transitions of the shipper.
impl WriterState {
    /// Returns the first outgoing chain.
    pub(super) fn front_chain(&mut self) -> Option<&mut OutgoingChain> {
        self.outgoing.front_mut()
    }

    pub(super) fn chain_count(&self) -> usize {
        self.outgoing.len()
    }

    /// Removes the first outgoing chain from the list.
    pub(super) fn pop_front(&mut self) -> Option<OutgoingChain> {
        self.outgoing.pop_front()
    }

    /// Returns whether a recovered file is still on the list.
    pub(super) fn is_recovering(&self) -> bool {
        self.outgoing.iter().any(|out| matches!(out.records, RecordSource::File))
    }

    pub(super) fn record_stored(&mut self, records: usize) {
        self.backlog = self.backlog.saturating_sub(records);
    }
}

#[cfg(test)]
impl WriterState {
    /// Lets every later write go to `file`.
    pub(super) fn write_to(&mut self, file: File) {
        if let Some(live) = &mut self.live {
            live.segment = SegmentFile::new(live.segment.file_path().to_owned(), file, 0);
        }
    }

    /// Begins the next chain, whose file cannot be removed any more.
    pub(super) fn rotate_for_good(
        &mut self,
        directory: &SegmentDirectory,
        options: &AuditWriterOptions,
        now: &Now,
        new_id: &NewId,
    ) -> io::Result<()> {
        let begun = self.next_chain(directory, options, (now, new_id))?;
        std::fs::remove_file(&begun.1.path)?;
        self.switch_chain(directory, begun)
    }

    /// Lets every later sync go to `file`.
    pub(super) fn sync_to(&mut self, file: File) {
        self.file = Arc::new(file);
    }
}

fn begin_chain(
    directory: &SegmentDirectory,
    options: &AuditWriterOptions,
    after: Option<Uuid>,
    carried: &[AuditEntry],
    (now, new_id): (&Now, &NewId),
) -> io::Result<(LiveChain, OutgoingChain)> {
    let chain = new_id();
    let at = truncate_to_micros(now());
    let header = SegmentHeader { chain, at, writer: options.writer.clone(), after };
    let segment = directory.create_segment(&header, carried)?;
    let out = OutgoingChain {
        chain: NewChain { chain, at, writer: header.writer },
        path: segment.file_path().to_owned(),
        file: segment.shared_file(),
        records: RecordSource::Memory(VecDeque::new()),
        end: ChainEnd::Open,
    };
    let begun = Instant::now();
    Ok((LiveChain { segment, chain, begun, next: 0, prev: genesis_hash(chain) }, out))
}
