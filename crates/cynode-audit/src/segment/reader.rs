//! Reading a file that a dead process left.

use super::{
    SegmentFrame, SegmentHeader,
    frame::{FRAME_PREFIX_BYTES, MAX_FRAME_BYTES},
};
use crate::{AuditEntry, AuditRecord, chain, genesis_hash, open_calls::OpenCalls};

/// How a file ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SegmentEnd {
    /// With a whole frame.
    Whole,
    /// With a piece of a frame that was never acknowledged.
    Torn,
    /// It goes on after something that is not what was written there.
    Damaged,
}

/// What is in a file, up to the first frame that is not good.
#[derive(Debug)]
pub(crate) struct SegmentContents {
    pub(crate) header: SegmentHeader,
    pub(crate) records: Vec<AuditRecord>,
    pub(crate) open: OpenCalls,
    pub(crate) closed: bool,
    /// How many bytes are good.
    pub(crate) good: usize,
    pub(crate) end: SegmentEnd,
}

impl SegmentContents {
    /// What the next record has as `prev`.
    pub(crate) fn head_hash(&self) -> [u8; 32] {
        self.records.last().map_or_else(|| genesis_hash(self.header.chain), |last| last.hash)
    }

    /// The decisions that still want an outcome.
    pub(crate) fn open_decisions(&self) -> Vec<AuditEntry> {
        self.open.open_decisions()
    }

    /// Takes the next frame, if it is one that may stand there.
    fn accept_frame(&mut self, frame: SegmentFrame) -> bool {
        if self.closed {
            return false;
        }
        match frame {
            SegmentFrame::Header(_) => false,
            SegmentFrame::Carried(entry) => {
                let good = self.records.is_empty();
                if good {
                    self.open.apply_entry(&entry);
                }
                good
            }
            SegmentFrame::Record { seq, prev, hash, encoded, entry } => {
                let chain = self.header.chain;
                let good = seq == self.records.len() as u64
                    && prev == self.head_hash()
                    && hash == chain::hash(chain, seq, &prev, &encoded);
                if good {
                    self.open.apply_entry(&entry);
                    self.records.push(AuditRecord { chain, seq, entry, prev, hash });
                }
                good
            }
            SegmentFrame::Closed => {
                self.closed = true;
                true
            }
        }
    }
}

/// Reads a file; `None` if there is not even a good header.
pub(crate) fn read_segment(bytes: &[u8]) -> Option<SegmentContents> {
    let Ok((SegmentFrame::Header(header), mut at)) = SegmentFrame::decode_frame(bytes) else {
        return None;
    };
    let mut contents = SegmentContents {
        header,
        records: Vec::new(),
        open: OpenCalls::default(),
        closed: false,
        good: at,
        end: SegmentEnd::Whole,
    };
    while at < bytes.len() && contents.end == SegmentEnd::Whole {
        match SegmentFrame::decode_frame(&bytes[at..]) {
            Ok((frame, length)) => {
                if contents.accept_frame(frame) {
                    at += length;
                    contents.good = at;
                } else {
                    // A whole frame in the wrong place cannot come from a write cut short.
                    contents.end = SegmentEnd::Damaged;
                }
            }
            Err(_) if contains_frame(&bytes[at + 1..]) => contents.end = SegmentEnd::Damaged,
            Err(_) => contents.end = SegmentEnd::Torn,
        }
    }
    Some(contents)
}

/// Whether a good frame begins anywhere in `bytes`: then what came before was not the tail.
fn contains_frame(bytes: &[u8]) -> bool {
    (0..bytes.len().saturating_sub(FRAME_PREFIX_BYTES)).any(|at| {
        // Most places are ruled out by their length, long before a checksum is computed.
        let length = &bytes[at..at + 4];
        usize::from(length[0]) == 0
            && usize::from(length[1]) == 0
            && (usize::from(length[2]) << 8) <= MAX_FRAME_BYTES
            && SegmentFrame::decode_frame(&bytes[at..]).is_ok()
    })
}
