//! Recovery of the segment files of dead processes.
//!
//! Each record that the recovery adds to a file is a normal record, so a crash during the recovery only leaves less work for the next one.

use std::{
    collections::{HashSet, VecDeque},
    fs::File,
    io::{self, Read, Seek},
    path::PathBuf,
    sync::Arc,
};

use uuid::Uuid;

use super::{
    Now, RecoveryReport, SegmentCondition,
    state::{ChainEnd, OutgoingChain, RecordSource},
};
use crate::{
    AuditRecord, NewChain, chain, encode_entry,
    segment::{
        OrphanedSegment, SegmentContents, SegmentDirectory, SegmentEnd, SegmentFile, SegmentFrame,
        WriteError, put_record, quarantine_segment, read_segment,
    },
};

/// A segment file that was read.
struct ReadableSegment {
    path: PathBuf,
    file: File,
    contents: SegmentContents,
    length: u64,
}

/// Claims every orphaned file. Returns the chains to ship and the reports.
pub(super) fn recover_segments(
    directory: &SegmentDirectory,
    now: &Now,
) -> io::Result<(VecDeque<OutgoingChain>, Vec<RecoveryReport>)> {
    let mut found = Vec::new();
    let mut told = Vec::new();
    for taken in directory.claim_orphans()? {
        let path = taken.path.clone();
        match inspect_segment(directory, taken) {
            Ok(SegmentInspection::Readable(file)) => found.push(*file),
            Ok(SegmentInspection::Nothing) => {}
            Ok(SegmentInspection::Strange) => {
                told.push(unrecoverable_report(path, SegmentCondition::Damaged));
            }
            Err(error) => {
                log_recovery_error(&path, &error);
                told.push(unrecoverable_report(path, SegmentCondition::Unreadable));
            }
        }
    }
    found.sort_by_key(|found| (found.contents.header.at, found.contents.header.chain));
    let succeeded: HashSet<Uuid> =
        found.iter().filter_map(|found| found.contents.header.after).collect();
    let mut outgoing = VecDeque::new();
    for found in found {
        let path = found.path.clone();
        let is_succeeded = succeeded.contains(&found.contents.header.chain);
        match recover_chain(directory, found, is_succeeded, now) {
            Ok((recovered, out)) => {
                told.extend(recovered);
                outgoing.extend(out);
            }
            Err(error) => {
                log_recovery_error(&path, &error);
                told.push(unrecoverable_report(path, SegmentCondition::Unreadable));
            }
        }
    }
    Ok((outgoing, told))
}

/// Loads the records of a recovered file.
pub(super) fn load_records(file: &File) -> io::Result<Vec<AuditRecord>> {
    let bytes = read_whole_file(file)?;
    read_segment(&bytes)
        .map(|contents| contents.records)
        .ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// First classification of a file.
enum SegmentInspection {
    Readable(Box<ReadableSegment>),
    /// The process died before it wrote anything.
    Nothing,
    /// Not even the chain id is readable.
    Strange,
}

fn inspect_segment(
    directory: &SegmentDirectory,
    taken: OrphanedSegment,
) -> io::Result<SegmentInspection> {
    let (path, file) = (taken.path, taken.file?);
    let bytes = read_whole_file(&file)?;
    if bytes.is_empty() {
        directory.remove_segment(&path)?;
        return Ok(SegmentInspection::Nothing);
    }
    match read_segment(&bytes) {
        Some(contents) => {
            let length = bytes.len() as u64;
            Ok(SegmentInspection::Readable(Box::new(ReadableSegment {
                path,
                file,
                contents,
                length,
            })))
        }
        None => {
            quarantine_segment(&path)?;
            Ok(SegmentInspection::Strange)
        }
    }
}

/// Closes a chain if its file is valid.
fn recover_chain(
    directory: &SegmentDirectory,
    found: ReadableSegment,
    is_succeeded: bool,
    now: &Now,
) -> io::Result<(Option<RecoveryReport>, Option<OutgoingChain>)> {
    let ReadableSegment { path, file, contents, length } = found;
    let mut recovered = RecoveryReport {
        chain: Some(contents.header.chain),
        path: path.clone(),
        records: contents.records.len() as u64,
        cut_off: Vec::new(),
        torn: 0,
        condition: SegmentCondition::Good,
    };
    let (chain, end) = (new_chain_of(&contents), contents.end);
    if end == SegmentEnd::Damaged {
        // The store may already have records from after the damage: nothing may take their positions.
        recovered.condition = SegmentCondition::Damaged;
        if contents.records.is_empty() {
            quarantine_segment(&path)?;
            return Ok((Some(recovered), None));
        }
        let out = build_outgoing_chain(chain, path, Arc::new(file), ChainEnd::Damaged);
        return Ok((Some(recovered), Some(out)));
    }
    recovered.torn = length - contents.good as u64;
    file.set_len(contents.good as u64)?;
    let mut segment = SegmentFile::new(path.clone(), file, contents.good as u64);
    if !contents.closed {
        recovered.cut_off = close_orphaned_chain(&mut segment, &contents, is_succeeded, now)?;
        recovered.records += recovered.cut_off.len() as u64;
    }
    segment.sync_data()?;
    if recovered.records == 0 {
        directory.remove_segment(&path)?;
        return Ok((None, None));
    }
    let out = build_outgoing_chain(chain, path, segment.shared_file(), ChainEnd::Closed);
    Ok((Some(recovered), Some(out)))
}

/// Records an unknown outcome for every open call, and closes the chain.
fn close_orphaned_chain(
    segment: &mut SegmentFile,
    contents: &SegmentContents,
    is_succeeded: bool,
    now: &Now,
) -> io::Result<Vec<Uuid>> {
    let chain = contents.header.chain;
    let (mut seq, mut prev) = (contents.records.len() as u64, contents.head_hash());
    let mut calls = Vec::new();
    let mut frames = Vec::new();
    // If the chain has a successor, the successor took over its open calls.
    let unfinished = if is_succeeded { Vec::new() } else { contents.open_decisions() };
    for decision in unfinished {
        let entry = decision.to_unknown_outcome(now());
        let encoded = encode_entry(&entry);
        let hash = chain::hash(chain, seq, &prev, &encoded);
        calls.push(entry.call);
        put_record(&mut frames, &AuditRecord { chain, seq, entry, prev, hash }, &encoded);
        (seq, prev) = (seq + 1, hash);
    }
    SegmentFrame::Closed.append_to(&mut frames);
    segment.append_frames(&frames).map_err(WriteError::into_cause)?;
    Ok(calls)
}

fn new_chain_of(contents: &SegmentContents) -> NewChain {
    let header = &contents.header;
    NewChain { chain: header.chain, at: header.at, writer: header.writer.clone() }
}

fn build_outgoing_chain(
    chain: NewChain,
    path: PathBuf,
    file: Arc<File>,
    end: ChainEnd,
) -> OutgoingChain {
    OutgoingChain { chain, path, file, records: RecordSource::File, end }
}

fn unrecoverable_report(path: PathBuf, condition: SegmentCondition) -> RecoveryReport {
    RecoveryReport { chain: None, path, records: 0, cut_off: Vec::new(), torn: 0, condition }
}

fn log_recovery_error(path: &std::path::Path, error: &io::Error) {
    tracing::error!(
        path = %path.display(),
        error = error as &dyn std::error::Error,
        "an audit file could not be taken over"
    );
}

fn read_whole_file(mut file: &File) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.rewind()?;
    file.read_to_end(&mut bytes)?;
    Ok(bytes)
}
