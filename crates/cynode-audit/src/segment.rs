//! Segment files: the write-ahead file of one chain.
//!
//! A file is a sequence of frames: length, checksum, payload. The first frame names the chain. Then come the decisions of calls that were
//! open when the previous chain was closed, then the records, then possibly the mark that the chain is closed.
//!
//! A process holds a lock on each of its files for its whole life. A file without a lock is an orphan: its process is dead, and another
//! process may recover it.

mod directory;
mod frame;
mod reader;
mod reconcile;

pub(crate) use directory::{OrphanedSegment, SegmentDirectory, quarantine_segment};
pub(crate) use frame::{SegmentFrame, SegmentHeader, put_record};
pub(crate) use reader::{SegmentContents, SegmentEnd, read_segment};
pub use reconcile::{
    ReconcileError, SegmentChange, StoredChain, extend_segment, has_segment, remove_segment,
};

use std::{
    fs::File,
    io::{self, Write},
    path::{Path, PathBuf},
    sync::Arc,
};

/// A file that is being written.
#[derive(Debug)]
pub(crate) struct SegmentFile {
    path: PathBuf,
    file: Arc<File>,
    length: u64,
}

/// Reason why frames were not written.
#[derive(Debug)]
pub(crate) enum WriteError {
    /// The write was rolled back: the file is unchanged.
    Undone(io::Error),
    /// The file may end in a partial frame: nothing may be written after it.
    Stuck(io::Error),
}

impl WriteError {
    pub(crate) fn into_cause(self) -> io::Error {
        match self {
            Self::Undone(cause) | Self::Stuck(cause) => cause,
        }
    }
}

impl SegmentFile {
    pub(crate) fn new(path: PathBuf, file: File, length: u64) -> Self {
        Self { path, file: Arc::new(file), length }
    }

    pub(crate) fn file_path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn shared_file(&self) -> Arc<File> {
        Arc::clone(&self.file)
    }

    /// Appends the frames completely, or not at all.
    pub(crate) fn append_frames(&mut self, frames: &[u8]) -> Result<(), WriteError> {
        match (&*self.file).write_all(frames) {
            Ok(()) => {
                self.length += frames.len() as u64;
                Ok(())
            }
            Err(error) => match self.file.set_len(self.length) {
                Ok(()) => Err(WriteError::Undone(error)),
                Err(_) => Err(WriteError::Stuck(error)),
            },
        }
    }

    /// Returns once everything written survives a power loss.
    pub(crate) fn sync_data(&self) -> io::Result<()> {
        self.file.sync_data()
    }
}
