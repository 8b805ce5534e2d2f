//! What a file is made of.

use time::OffsetDateTime;
use uuid::Uuid;

use crate::{
    Entry, Record,
    bytes::{Malformed, Put, Take},
    decode, encode,
};

/// Far above what a checked entry can need; a longer length is a damaged one.
pub(super) const LONGEST: usize = 16 * 1024;

/// Length and checksum.
pub(super) const PREFIX: usize = 8;

const VERSION: u8 = 1;
const HEADER: u8 = 1;
const CARRIED: u8 = 2;
const RECORD: u8 = 3;
const CLOSED: u8 = 4;

/// What a file says about itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) chain: Uuid,
    pub(crate) at: OffsetDateTime,
    pub(crate) writer: String,
    /// The chain whose calls under way were taken over, if this one follows another.
    pub(crate) after: Option<Uuid>,
}

/// One piece of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Frame {
    Header(Header),
    Carried(Entry),
    Record { seq: u64, prev: [u8; 32], hash: [u8; 32], encoded: Vec<u8>, entry: Entry },
    Closed,
}

impl Frame {
    /// Appends the frame to `out`.
    pub(crate) fn put(&self, out: &mut Vec<u8>) {
        match self {
            Self::Header(header) => framed(out, |out| {
                out.byte(HEADER);
                out.byte(VERSION);
                out.uuid(header.chain);
                out.time(header.at);
                out.text(&header.writer);
                out.option(header.after, Put::uuid);
            }),
            Self::Carried(entry) => framed(out, |out| {
                out.byte(CARRIED);
                out.bytes(&encode(entry));
            }),
            Self::Record { seq, prev, hash, encoded, .. } => {
                put_parts(out, *seq, prev, hash, encoded);
            }
            Self::Closed => framed(out, |out| out.byte(CLOSED)),
        }
    }

    /// The frame at the start of `bytes` and its whole length.
    pub(super) fn take(bytes: &[u8]) -> Result<(Self, usize), Malformed> {
        let mut from = Take(bytes);
        let length = from.length()?;
        let checksum = from.u32()?;
        if !(1..=LONGEST).contains(&length) {
            return Err(Malformed);
        }
        let payload = from.bytes(length)?;
        if crc32fast::hash(payload) != checksum {
            return Err(Malformed);
        }
        Ok((Self::payload(payload)?, PREFIX + length))
    }

    fn payload(payload: &[u8]) -> Result<Self, Malformed> {
        let mut from = Take(payload);
        let frame = match from.byte()? {
            HEADER => Self::Header(header(&mut from)?),
            CARRIED => Self::Carried(rest(&mut from)?.1),
            RECORD => {
                let (seq, prev, hash) = (from.u64()?, from.array()?, from.array()?);
                let (encoded, entry) = rest(&mut from)?;
                Self::Record { seq, prev, hash, encoded, entry }
            }
            CLOSED => Self::Closed,
            _ => return Err(Malformed),
        };
        from.end()?;
        Ok(frame)
    }
}

/// Appends the frame of a record whose entry is encoded already.
pub(crate) fn put_record(out: &mut Vec<u8>, record: &Record, encoded: &[u8]) {
    put_parts(out, record.seq, &record.prev, &record.hash, encoded);
}

fn put_parts(out: &mut Vec<u8>, seq: u64, prev: &[u8; 32], hash: &[u8; 32], encoded: &[u8]) {
    framed(out, |out| {
        out.byte(RECORD);
        out.u64(seq);
        out.bytes(prev);
        out.bytes(hash);
        out.bytes(encoded);
    });
}

fn framed(out: &mut Vec<u8>, put: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    out.extend_from_slice(&[0; PREFIX]);
    put(out);
    let payload = start + PREFIX;
    let length = u32::try_from(out.len() - payload).unwrap_or(u32::MAX);
    let checksum = crc32fast::hash(&out[payload..]);
    out[start..start + 4].copy_from_slice(&length.to_be_bytes());
    out[start + 4..payload].copy_from_slice(&checksum.to_be_bytes());
}

fn header(from: &mut Take<'_>) -> Result<Header, Malformed> {
    if from.byte()? != VERSION {
        return Err(Malformed);
    }
    Ok(Header {
        chain: from.uuid()?,
        at: from.time()?,
        writer: from.text()?,
        after: from.option(Take::uuid)?,
    })
}

fn rest(from: &mut Take<'_>) -> Result<(Vec<u8>, Entry), Malformed> {
    let encoded = from.bytes(from.0.len())?.to_vec();
    let entry = decode(&encoded).map_err(|_| Malformed)?;
    Ok((encoded, entry))
}
