//! Segment files of a restored installation whose store is further than they are.
//!
//! A database that is replayed to a moment after its backup has records that the segment files of the backup lack. The next writer would
//! close such a chain at the end of its file, with records in places that are taken. So the records of the store are added to the files
//! first, and the recovery closes each chain behind its last record.

use std::{io, path::Path};

use uuid::Uuid;

use super::{
    SegmentDirectory, SegmentEnd, SegmentFile, SegmentFrame, SegmentHeader, WriteError, put_record,
    read_segment,
};
use crate::{AuditRecord, NewChain, encode_entry, genesis_hash};

/// What a store has of a chain.
#[derive(Clone, Debug)]
pub struct StoredChain {
    /// Start of the chain.
    pub chain: NewChain,
    /// Its records, from the first.
    pub records: Vec<AuditRecord>,
    /// Whether the store has its signed end.
    pub closed: bool,
}

/// What was done to a segment file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SegmentChange {
    /// The file has all that the store has, or the store has all of a closed chain.
    Unchanged,
    /// This number of records was added to the file, which may be new.
    Extended(u64),
    /// The file is damaged, and stays as it is.
    Damaged,
}

/// Reason why a segment file cannot follow its store.
#[derive(Debug, thiserror::Error)]
pub enum ReconcileError {
    /// The directory or the file cannot be used.
    #[error("the audit files cannot be brought up to the database")]
    File(#[from] io::Error),
    /// The records of the store do not follow each other.
    #[error(
        "the database has a record {seq} of an audit chain that does not follow the one before it"
    )]
    BrokenChain {
        /// Position of the record.
        seq: u64,
    },
    /// File and store have different records in one place.
    #[error("the audit file of a chain and the database have different records before {seq}")]
    Conflict {
        /// Position of the first record that only the store has.
        seq: u64,
    },
}

/// Adds the records that only the store has to the file of a chain, and marks a closed chain as closed. No writer may use the directory.
pub fn extend_segment(
    directory: &Path,
    stored: &StoredChain,
) -> Result<SegmentChange, ReconcileError> {
    verify_stored(stored)?;
    let path = directory.join(segment_file_name(stored.chain.chain));
    match std::fs::read(&path) {
        Ok(bytes) => extend_existing(&path, &bytes, stored),
        Err(error) if error.kind() == io::ErrorKind::NotFound => create_missing(directory, stored),
        Err(error) => Err(error.into()),
    }
}

/// Removes the file of a chain whose records the store has removed on purpose. Returns whether there was one.
pub fn remove_segment(directory: &Path, chain: Uuid) -> io::Result<bool> {
    match std::fs::remove_file(directory.join(segment_file_name(chain))) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// Returns whether a chain has a file.
pub fn has_segment(directory: &Path, chain: Uuid) -> io::Result<bool> {
    directory.join(segment_file_name(chain)).try_exists()
}

fn segment_file_name(chain: Uuid) -> String {
    format!("{}.{}", chain.simple(), super::directory::SEGMENT_EXTENSION)
}

fn verify_stored(stored: &StoredChain) -> Result<(), ReconcileError> {
    let id = stored.chain.chain;
    let mut prev = genesis_hash(id);
    for (expected, record) in (0_u64..).zip(&stored.records) {
        let position = (record.chain, record.seq, record.prev);
        if position != (id, expected, prev) || !record.has_valid_hash() {
            return Err(ReconcileError::BrokenChain { seq: expected });
        }
        prev = record.hash;
    }
    Ok(())
}

fn extend_existing(
    path: &Path,
    bytes: &[u8],
    stored: &StoredChain,
) -> Result<SegmentChange, ReconcileError> {
    let Some(contents) = read_segment(bytes) else { return Ok(SegmentChange::Damaged) };
    if contents.end == SegmentEnd::Damaged {
        return Ok(SegmentChange::Damaged);
    }
    let known = contents.records.len();
    let common = known.min(stored.records.len());
    if contents.records[..common] != stored.records[..common] {
        return Err(ReconcileError::Conflict { seq: common as u64 });
    }
    let added = &stored.records[common..];
    if contents.closed || (added.is_empty() && !stored.closed) {
        return Ok(SegmentChange::Unchanged);
    }
    let file = std::fs::OpenOptions::new().read(true).append(true).open(path)?;
    // A partial frame at the end was never acknowledged.
    file.set_len(contents.good as u64)?;
    let mut segment = SegmentFile::new(path.to_owned(), file, contents.good as u64);
    append_stored(&mut segment, added, stored.closed && stored.records.len() >= known)?;
    Ok(SegmentChange::Extended(added.len() as u64))
}

fn create_missing(directory: &Path, stored: &StoredChain) -> Result<SegmentChange, ReconcileError> {
    if stored.closed || stored.records.is_empty() {
        return Ok(SegmentChange::Unchanged);
    }
    let NewChain { chain, at, writer } = stored.chain.clone();
    let header = SegmentHeader { chain, at, writer, after: None };
    let directory = SegmentDirectory::open_directory(directory)?;
    let mut segment = directory.create_segment(&header, &[])?;
    append_stored(&mut segment, &stored.records, false)?;
    Ok(SegmentChange::Extended(stored.records.len() as u64))
}

fn append_stored(
    segment: &mut SegmentFile,
    records: &[AuditRecord],
    closed: bool,
) -> Result<(), ReconcileError> {
    let mut frames = Vec::new();
    for record in records {
        put_record(&mut frames, record, &encode_entry(&record.entry));
    }
    if closed {
        SegmentFrame::Closed.append_to(&mut frames);
    }
    segment.append_frames(&frames).map_err(WriteError::into_cause)?;
    Ok(segment.sync_data()?)
}
