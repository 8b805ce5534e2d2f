//! Spool file of events, so that a killed node does not lose unsent events.
//!
//! Each event is one line. Before a batch is sent for the first time, another line records its events and their
//! numbers. After a kill the orchestrator's next number tells which lines it has. The file is written and not synced:
//! it survives the process, not a power cut.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
};

use cynode_core::nodes::JobEvent;
use serde::{Deserialize, Serialize};

/// File size from which compaction is worthwhile.
const COMPACTION_THRESHOLD_BYTES: usize = 8 * 1024 * 1024;

/// A line of the spool file. Its event is borrowed for writing and owned after reading.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum SpoolLine<E> {
    /// A job event.
    Event(E),
    /// A mark that precedes the first send of a batch.
    Sent(BatchMark),
}

/// Mark of a batch that is about to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct BatchMark {
    /// Sequence number after the last event of the batch.
    next: u64,
    /// Number of events of the file, counted from its first, that are covered by this batch and earlier ones.
    through: u64,
}

/// Events that an earlier process did not send, or whose arrival is unknown.
#[derive(Debug, Default)]
pub(super) struct SpoolBacklog {
    events: Vec<JobEvent>,
    sent: Vec<BatchMark>,
}

impl SpoolBacklog {
    /// Returns the events that the orchestrator does not have, given the sequence number that it expects next.
    pub(super) fn unacknowledged_after(mut self, next: u64) -> Vec<JobEvent> {
        let arrived = self.sent.iter().filter(|sent| sent.next <= next);
        let through = arrived.map(|sent| sent.through).max().unwrap_or(0);
        let through = usize::try_from(through).unwrap_or(usize::MAX);
        self.events.split_off(through.min(self.events.len()))
    }

    /// Reads a spool file. Also returns whether its last line is complete.
    fn read_spool(path: &Path) -> io::Result<(Self, bool)> {
        let text = match fs::read(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            text => text?,
        };
        let whole = text.last().is_none_or(|byte| *byte == b'\n');
        let mut earlier = Self::default();
        for line in text.split(|byte| *byte == b'\n') {
            match serde_json::from_slice(line) {
                Ok(SpoolLine::Event(event)) => earlier.events.push(event),
                Ok(SpoolLine::Sent(sent)) => earlier.sent.push(sent),
                Err(_) => {}
            }
        }
        Ok((earlier, whole))
    }
}

/// Spool file of one job.
#[derive(Debug)]
pub(super) struct EventSpool {
    path: PathBuf,
    /// Open file; `None` after a write error: events are then in memory only.
    file: Option<File>,
    /// Number of events in the file.
    events: u64,
    bytes: usize,
    /// Size of the file after the last compaction.
    at_first: usize,
}

impl EventSpool {
    /// Creates the file and truncates existing content.
    pub(super) fn new(path: PathBuf) -> Self {
        let mut spool = Self { path, file: None, events: 0, bytes: 0, at_first: 0 };
        spool.write_or_disable(|spool| {
            let file = open_private_file(&spool.path)?;
            file.set_len(0)?;
            spool.file = Some(file);
            Ok(())
        });
        spool
    }

    /// Opens the file and returns the backlog of the earlier process.
    pub(super) fn open_existing(path: PathBuf) -> (Self, SpoolBacklog) {
        let mut spool = Self { path, file: None, events: 0, bytes: 0, at_first: 0 };
        let mut earlier = SpoolBacklog::default();
        spool.write_or_disable(|spool| {
            let whole;
            (earlier, whole) = SpoolBacklog::read_spool(&spool.path)?;
            let mut file = open_private_file(&spool.path)?;
            if !whole {
                file.write_all(b"\n")?;
            }
            spool.events = earlier.events.len() as u64;
            spool.bytes = usize::try_from(file.metadata()?.len()).unwrap_or(usize::MAX);
            spool.file = Some(file);
            Ok(())
        });
        (spool, earlier)
    }

    /// Returns whether the file is large and most of it was written since the last compaction.
    pub(super) const fn needs_compaction(&self) -> bool {
        self.file.is_some()
            && self.bytes > COMPACTION_THRESHOLD_BYTES
            && self.bytes / 2 > self.at_first
    }

    /// Appends an event and returns its position.
    pub(super) fn append_event(&mut self, event: &JobEvent) -> u64 {
        self.events += 1;
        self.append_line(&SpoolLine::Event(event));
        self.events
    }

    /// Records that the events with numbers below `next`, up to position `through`, are about to be sent.
    pub(super) fn append_batch_mark(&mut self, next: u64, through: u64) {
        self.append_line(&SpoolLine::Sent(BatchMark { next, through }));
    }

    /// Rewrites the file with the given events only. The first ones are in flight and have the numbers before `next`. Each event
    /// gets the position in which it is written.
    pub(super) fn compact_to<'a>(
        &mut self,
        events: impl Iterator<Item = &'a JobEvent>,
        (sent, next): (u64, u64),
    ) {
        let Some(file) = self.file.take() else { return };
        let mut text = Vec::new();
        self.events = 0;
        for event in events {
            self.events += 1;
            push_line(&mut text, &SpoolLine::Event(event));
        }
        if sent > 0 {
            push_line(&mut text, &SpoolLine::Sent(BatchMark { next, through: sent }));
        }
        self.write_or_disable(|spool| {
            if text.is_empty() {
                file.set_len(0)?;
                spool.file = Some(file);
            } else {
                // A kill before the rename loses nothing: the old file has the same events and more.
                let new = spool.path.with_extension("new");
                let mut file = open_private_file(&new)?;
                file.set_len(0)?;
                file.write_all(&text)?;
                fs::rename(&new, &spool.path)?;
                spool.file = Some(file);
            }
            (spool.bytes, spool.at_first) = (text.len(), text.len());
            Ok(())
        });
    }

    fn append_line(&mut self, line: &SpoolLine<&JobEvent>) {
        let Some(mut file) = self.file.take() else { return };
        let mut text = Vec::new();
        push_line(&mut text, line);
        self.write_or_disable(|spool| {
            file.write_all(&text)?;
            spool.bytes += text.len();
            spool.file = Some(file);
            Ok(())
        });
    }

    /// Runs a write and disables the file if it fails. No file remains then, because a partial one would be trusted.
    fn write_or_disable(&mut self, write: impl FnOnce(&mut Self) -> io::Result<()>) {
        if let Err(error) = write(self) {
            let path = self.path.display();
            tracing::warn!(event = "job_events.persist_failed", %path, %error, "events are in memory only");
            self.file = None;
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn push_line(text: &mut Vec<u8>, line: &SpoolLine<&JobEvent>) {
    if let Ok(line) = serde_json::to_vec(line) {
        text.extend(line);
        text.push(b'\n');
    }
}

/// Opens a file for appending that only its owner can read.
fn open_private_file(path: &Path) -> io::Result<File> {
    OpenOptions::new().create(true).append(true).mode(0o600).open(path)
}
