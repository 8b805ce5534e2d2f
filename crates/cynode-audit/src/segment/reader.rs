//! Reader of a segment file that a dead process left behind.

use super::{
    SegmentFrame, SegmentHeader,
    frame::{FRAME_PREFIX_BYTES, MAX_FRAME_BYTES},
};
use crate::{AuditEntry, AuditRecord, chain, genesis_hash, open_calls::OpenCalls};

/// State of the end of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SegmentEnd {
    /// The file ends with a whole frame.
    Whole,
    /// The file ends with a partial frame, which was never acknowledged.
    Torn,
    /// The file continues after bytes that are not the bytes that were written.
    Damaged,
}

/// Contents of a file, up to the first invalid frame.
#[derive(Debug)]
pub(crate) struct SegmentContents {
    pub(crate) header: SegmentHeader,
    pub(crate) records: Vec<AuditRecord>,
    pub(crate) open: OpenCalls,
    pub(crate) closed: bool,
    /// Number of valid bytes.
    pub(crate) good: usize,
    pub(crate) end: SegmentEnd,
}

impl SegmentContents {
    /// Returns the hash that the next record has as `prev`.
    pub(crate) fn head_hash(&self) -> [u8; 32] {
        self.records.last().map_or_else(|| genesis_hash(self.header.chain), |last| last.hash)
    }

    /// Returns the decisions that have no outcome yet.
    pub(crate) fn open_decisions(&self) -> Vec<AuditEntry> {
        self.open.open_decisions()
    }

    /// Adds the next frame. Returns `false` if the frame is not valid at this position.
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

/// Reads a file. Returns `None` if it has no valid header.
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
                    // An interrupted write cannot leave a whole frame in the wrong position.
                    contents.end = SegmentEnd::Damaged;
                }
            }
            Err(_) if contains_frame(&bytes[at + 1..]) => contents.end = SegmentEnd::Damaged,
            Err(_) => contents.end = SegmentEnd::Torn,
        }
    }
    Some(contents)
}

/// Returns whether a valid frame begins anywhere in `bytes`. If so, the bytes before it were not the end of the file.
fn contains_frame(bytes: &[u8]) -> bool {
    (0..bytes.len().saturating_sub(FRAME_PREFIX_BYTES)).any(|at| {
        // The length rules out most offsets, long before a checksum is computed.
        let length = &bytes[at..at + 4];
        usize::from(length[0]) == 0
            && usize::from(length[1]) == 0
            && (usize::from(length[2]) << 8) <= MAX_FRAME_BYTES
            && SegmentFrame::decode_frame(&bytes[at..]).is_ok()
    })
}
