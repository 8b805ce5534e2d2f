//! The file that the records of one chain are written ahead to.
//!
//! A file is a row of frames: length, checksum, payload. The first one says which chain it is;
//! then come the decisions of calls that were under way when the chain before was closed, then the
//! records, then perhaps the mark that the chain is closed.
//!
//! A process holds a lock on each of its files as long as it lives. A file nobody has locked has
//! lost its process and may be taken over.

mod directory;
mod frame;
mod reader;

pub(crate) use directory::{OrphanedSegment, SegmentDirectory, quarantine_segment};
pub(crate) use frame::{SegmentFrame, SegmentHeader, put_record};
pub(crate) use reader::{SegmentContents, SegmentEnd, read_segment};

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

/// Why frames were not written.
#[derive(Debug)]
pub(crate) enum WriteError {
    /// The file is as it was before.
    Undone(io::Error),
    /// The file may end in half a frame: nothing may follow it.
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

    /// Writes whole frames at the end, or nothing.
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
