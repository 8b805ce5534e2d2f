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

/// From this size on, the file is worth being written anew.
const COMPACTION_THRESHOLD_BYTES: usize = 8 * 1024 * 1024;

/// A line of the file. Its event is borrowed where it is written, and owned where it is read.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum SpoolLine<E> {
    /// It happened.
    Event(E),
    /// They are on their way.
    Sent(BatchMark),
}

/// Events that are sent together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct BatchMark {
    /// The number behind the last of them.
    next: u64,
    /// With how many events of the file, from its first, everything up to them is said.
    through: u64,
}

/// What an earlier process had not sent, or does not know to have arrived.
#[derive(Debug, Default)]
pub(super) struct SpoolBacklog {
    events: Vec<JobEvent>,
    sent: Vec<BatchMark>,
}

impl SpoolBacklog {
    /// What the orchestrator does not have when it expects this number next.
    pub(super) fn unacknowledged_after(mut self, next: u64) -> Vec<JobEvent> {
        let arrived = self.sent.iter().filter(|sent| sent.next <= next);
        let through = arrived.map(|sent| sent.through).max().unwrap_or(0);
        let through = usize::try_from(through).unwrap_or(usize::MAX);
        self.events.split_off(through.min(self.events.len()))
    }

    /// What is in a file, and whether its last line was written to the end.
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

/// The file of one job.
#[derive(Debug)]
pub(super) struct EventSpool {
    path: PathBuf,
    /// None when it could not be written: then events are in memory only.
    file: Option<File>,
    /// How many events are in it.
    events: u64,
    bytes: usize,
    /// How many bytes it had when it was last written anew.
    at_first: usize,
}

impl EventSpool {
    /// Makes the file, without what may be in it.
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

    /// Opens the file, and gives what an earlier process left in it.
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

    /// Whether it is large, and most of it came since it was last written anew.
    pub(super) const fn needs_compaction(&self) -> bool {
        self.file.is_some()
            && self.bytes > COMPACTION_THRESHOLD_BYTES
            && self.bytes / 2 > self.at_first
    }

    /// Keeps an event; gives its place.
    pub(super) fn append_event(&mut self, event: &JobEvent) -> u64 {
        self.events += 1;
        self.append_line(&SpoolLine::Event(event));
        self.events
    }

    /// Keeps that events are about to be sent: those with numbers below `next`, which were said up to this place.
    pub(super) fn append_batch_mark(&mut self, next: u64, through: u64) {
        self.append_line(&SpoolLine::Sent(BatchMark { next, through }));
    }

    /// Begins again with these ones alone, of which the first ones are on their way and get the numbers before `next`; each has the
    /// place that it comes in.
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
                // Killed before the file is replaced, nothing is lost: the old one says the same and more.
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

    /// What cannot be written is not kept. Then there is no file at all, since one that says only a part would be believed.
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

/// A file that nobody else can read, to be added to.
fn open_private_file(path: &Path) -> io::Result<File> {
    OpenOptions::new().create(true).append(true).mode(0o600).open(path)
}
