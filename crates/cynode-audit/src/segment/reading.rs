//! Reading a file that a dead process left.

use super::{
    Frame, Header,
    frame::{LONGEST, PREFIX},
};
use crate::{Entry, Record, chain, genesis, open_calls::OpenCalls};

/// How a file ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// With a whole frame.
    Whole,
    /// With a piece of a frame that was never acknowledged.
    Torn,
    /// It goes on after something that is not what was written there.
    Damaged,
}

/// What is in a file, up to the first frame that is not good.
#[derive(Debug)]
pub(crate) struct Contents {
    pub(crate) header: Header,
    pub(crate) records: Vec<Record>,
    pub(crate) open: OpenCalls,
    pub(crate) closed: bool,
    /// How many bytes are good.
    pub(crate) good: usize,
    pub(crate) end: End,
}

impl Contents {
    /// What the next record has as `prev`.
    pub(crate) fn head(&self) -> [u8; 32] {
        self.records.last().map_or_else(|| genesis(self.header.chain), |last| last.hash)
    }

    /// The decisions that still want an outcome.
    pub(crate) fn unfinished(&self) -> Vec<Entry> {
        self.open.decisions()
    }

    /// Takes the next frame, if it is one that may stand there.
    fn accept(&mut self, frame: Frame) -> bool {
        if self.closed {
            return false;
        }
        match frame {
            Frame::Header(_) => false,
            Frame::Carried(entry) => {
                let good = self.records.is_empty();
                if good {
                    self.open.note(&entry);
                }
                good
            }
            Frame::Record { seq, prev, hash, encoded, entry } => {
                let chain = self.header.chain;
                let good = seq == self.records.len() as u64
                    && prev == self.head()
                    && hash == chain::hash(chain, seq, &prev, &encoded);
                if good {
                    self.open.note(&entry);
                    self.records.push(Record { chain, seq, entry, prev, hash });
                }
                good
            }
            Frame::Closed => {
                self.closed = true;
                true
            }
        }
    }
}

/// Reads a file; `None` if there is not even a good header.
pub(crate) fn read(bytes: &[u8]) -> Option<Contents> {
    let Ok((Frame::Header(header), mut at)) = Frame::take(bytes) else { return None };
    let mut contents = Contents {
        header,
        records: Vec::new(),
        open: OpenCalls::default(),
        closed: false,
        good: at,
        end: End::Whole,
    };
    while at < bytes.len() && contents.end == End::Whole {
        match Frame::take(&bytes[at..]) {
            Ok((frame, length)) => {
                if contents.accept(frame) {
                    at += length;
                    contents.good = at;
                } else {
                    // A whole frame in the wrong place cannot come from a write cut short.
                    contents.end = End::Damaged;
                }
            }
            Err(_) if any_frame(&bytes[at + 1..]) => contents.end = End::Damaged,
            Err(_) => contents.end = End::Torn,
        }
    }
    Some(contents)
}

/// Whether a good frame begins anywhere in `bytes`: then what came before was not the tail.
fn any_frame(bytes: &[u8]) -> bool {
    (0..bytes.len().saturating_sub(PREFIX)).any(|at| {
        // Most places are ruled out by their length, long before a checksum is computed.
        let length = &bytes[at..at + 4];
        usize::from(length[0]) == 0
            && usize::from(length[1]) == 0
            && (usize::from(length[2]) << 8) <= LONGEST
            && Frame::take(&bytes[at..]).is_ok()
    })
}
