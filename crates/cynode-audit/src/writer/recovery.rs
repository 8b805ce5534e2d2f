//! Taking over what dead processes left.
//!
//! Whatever is added to a file here is a record like any other, so dying in the middle of it only
//! means that less is left to do for the next one.

use std::{
    collections::{HashSet, VecDeque},
    fs::File,
    io::{self, Read, Seek},
    path::PathBuf,
    sync::Arc,
};

use uuid::Uuid;

use super::{
    Condition, Now, Recovered,
    book::{ChainEnd, Outgoing, Source},
};
use crate::{
    NewChain, Record, chain, encode,
    segment::{
        Contents, Directory, End, Frame, Segment, Taken, WriteError, put_record, read, set_aside,
    },
};

/// A file that was read.
struct Found {
    path: PathBuf,
    file: File,
    contents: Contents,
    length: u64,
}

/// Takes over every file without a process: what there is to ship, and what is to be told.
pub(super) fn recover(
    directory: &Directory,
    now: &Now,
) -> io::Result<(VecDeque<Outgoing>, Vec<Recovered>)> {
    let mut found = Vec::new();
    let mut told = Vec::new();
    for taken in directory.take_over()? {
        let path = taken.path.clone();
        match look(directory, taken) {
            Ok(Look::Readable(file)) => found.push(*file),
            Ok(Look::Nothing) => {}
            Ok(Look::Strange) => told.push(hopeless(path, Condition::Damaged)),
            Err(error) => {
                complain(&path, &error);
                told.push(hopeless(path, Condition::Unreadable));
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
        match finish(directory, found, is_succeeded, now) {
            Ok((recovered, out)) => {
                told.extend(recovered);
                outgoing.extend(out);
            }
            Err(error) => {
                complain(&path, &error);
                told.push(hopeless(path, Condition::Unreadable));
            }
        }
    }
    Ok((outgoing, told))
}

/// The records of a file that was taken over.
pub(super) fn load(file: &File) -> io::Result<Vec<Record>> {
    let bytes = whole(file)?;
    read(&bytes).map(|contents| contents.records).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// What a file looks like at first sight.
enum Look {
    Readable(Box<Found>),
    /// Its process died before it wrote anything.
    Nothing,
    /// Not even the chain can be told.
    Strange,
}

fn look(directory: &Directory, taken: Taken) -> io::Result<Look> {
    let (path, file) = (taken.path, taken.file?);
    let bytes = whole(&file)?;
    if bytes.is_empty() {
        directory.remove(&path)?;
        return Ok(Look::Nothing);
    }
    match read(&bytes) {
        Some(contents) => {
            let length = bytes.len() as u64;
            Ok(Look::Readable(Box::new(Found { path, file, contents, length })))
        }
        None => {
            set_aside(&path)?;
            Ok(Look::Strange)
        }
    }
}

/// Brings a chain to its end, if its file is good.
fn finish(
    directory: &Directory,
    found: Found,
    is_succeeded: bool,
    now: &Now,
) -> io::Result<(Option<Recovered>, Option<Outgoing>)> {
    let Found { path, file, contents, length } = found;
    let mut recovered = Recovered {
        chain: Some(contents.header.chain),
        path: path.clone(),
        records: contents.records.len() as u64,
        cut_off: Vec::new(),
        torn: 0,
        condition: Condition::Good,
    };
    let (chain, end) = (of(&contents), contents.end);
    if end == End::Damaged {
        // What follows the damage may be in the store: nothing may be put in its place.
        recovered.condition = Condition::Damaged;
        if contents.records.is_empty() {
            set_aside(&path)?;
            return Ok((Some(recovered), None));
        }
        let out = outgoing(chain, path, Arc::new(file), ChainEnd::Damaged);
        return Ok((Some(recovered), Some(out)));
    }
    recovered.torn = length - contents.good as u64;
    file.set_len(contents.good as u64)?;
    let mut segment = Segment::new(path.clone(), file, contents.good as u64);
    if !contents.closed {
        recovered.cut_off = close(&mut segment, &contents, is_succeeded, now)?;
        recovered.records += recovered.cut_off.len() as u64;
    }
    segment.sync()?;
    if recovered.records == 0 {
        directory.remove(&path)?;
        return Ok((None, None));
    }
    let out = outgoing(chain, path, segment.file(), ChainEnd::Closed);
    Ok((Some(recovered), Some(out)))
}

/// Writes an unknown outcome for every call that nobody will finish, and closes the chain.
fn close(
    segment: &mut Segment,
    contents: &Contents,
    is_succeeded: bool,
    now: &Now,
) -> io::Result<Vec<Uuid>> {
    let chain = contents.header.chain;
    let (mut seq, mut prev) = (contents.records.len() as u64, contents.head());
    let mut calls = Vec::new();
    let mut frames = Vec::new();
    // The calls of a chain that has a successor were taken over by it.
    let unfinished = if is_succeeded { Vec::new() } else { contents.unfinished() };
    for decision in unfinished {
        let entry = decision.cut_off(now());
        let encoded = encode(&entry);
        let hash = chain::hash(chain, seq, &prev, &encoded);
        calls.push(entry.call);
        put_record(&mut frames, &Record { chain, seq, entry, prev, hash }, &encoded);
        (seq, prev) = (seq + 1, hash);
    }
    Frame::Closed.put(&mut frames);
    segment.write(&frames).map_err(WriteError::into_cause)?;
    Ok(calls)
}

fn of(contents: &Contents) -> NewChain {
    let header = &contents.header;
    NewChain { chain: header.chain, at: header.at, writer: header.writer.clone() }
}

fn outgoing(chain: NewChain, path: PathBuf, file: Arc<File>, end: ChainEnd) -> Outgoing {
    Outgoing { chain, path, file, records: Source::File, end }
}

fn hopeless(path: PathBuf, condition: Condition) -> Recovered {
    Recovered { chain: None, path, records: 0, cut_off: Vec::new(), torn: 0, condition }
}

fn complain(path: &std::path::Path, error: &io::Error) {
    tracing::error!(
        path = %path.display(),
        error = error as &dyn std::error::Error,
        "an audit file could not be taken over"
    );
}

fn whole(mut file: &File) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.rewind()?;
    file.read_to_end(&mut bytes)?;
    Ok(bytes)
}
