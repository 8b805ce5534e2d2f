//! Frames: the units of a segment file.

use time::OffsetDateTime;
use uuid::Uuid;

use crate::{
    AuditEntry, AuditRecord,
    bytes::{BinaryDecoder, BinaryEncoder, MalformedBytes},
    decode_entry, encode_entry,
};

/// Maximum size of a frame, far above the size of any valid entry. A larger length means damage.
pub(super) const MAX_FRAME_BYTES: usize = 16 * 1024;

/// Size of length and checksum.
pub(super) const FRAME_PREFIX_BYTES: usize = 8;

const SEGMENT_FORMAT_VERSION: u8 = 1;
const HEADER_TAG: u8 = 1;
const CARRIED_TAG: u8 = 2;
const RECORD_TAG: u8 = 3;
const CLOSED_TAG: u8 = 4;

/// First frame of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SegmentHeader {
    pub(crate) chain: Uuid,
    pub(crate) at: OffsetDateTime,
    pub(crate) writer: String,
    /// Previous chain, whose open calls this chain continues. `None` for the first chain of a writer.
    pub(crate) after: Option<Uuid>,
}

/// One frame of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum SegmentFrame {
    Header(SegmentHeader),
    Carried(AuditEntry),
    Record { seq: u64, prev: [u8; 32], hash: [u8; 32], encoded: Vec<u8>, entry: AuditEntry },
    Closed,
}

impl SegmentFrame {
    /// Appends the frame to `out`.
    pub(crate) fn append_to(&self, out: &mut Vec<u8>) {
        match self {
            Self::Header(header) => write_framed(out, |out| {
                out.put_u8(HEADER_TAG);
                out.put_u8(SEGMENT_FORMAT_VERSION);
                out.put_uuid(header.chain);
                out.put_timestamp(header.at);
                out.put_text(&header.writer);
                out.put_option(header.after, BinaryEncoder::put_uuid);
            }),
            Self::Carried(entry) => write_framed(out, |out| {
                out.put_u8(CARRIED_TAG);
                out.put_bytes(&encode_entry(entry));
            }),
            Self::Record { seq, prev, hash, encoded, .. } => {
                put_parts(out, *seq, prev, hash, encoded);
            }
            Self::Closed => write_framed(out, |out| out.put_u8(CLOSED_TAG)),
        }
    }

    /// Decodes the frame at the start of `bytes`. Returns it with its total length.
    pub(super) fn decode_frame(bytes: &[u8]) -> Result<(Self, usize), MalformedBytes> {
        let mut from = BinaryDecoder(bytes);
        let length = from.take_length()?;
        let checksum = from.take_u32()?;
        if !(1..=MAX_FRAME_BYTES).contains(&length) {
            return Err(MalformedBytes);
        }
        let payload = from.take_bytes(length)?;
        if crc32fast::hash(payload) != checksum {
            return Err(MalformedBytes);
        }
        Ok((Self::decode_payload(payload)?, FRAME_PREFIX_BYTES + length))
    }

    fn decode_payload(payload: &[u8]) -> Result<Self, MalformedBytes> {
        let mut from = BinaryDecoder(payload);
        let frame = match from.take_u8()? {
            HEADER_TAG => Self::Header(decode_header(&mut from)?),
            CARRIED_TAG => Self::Carried(decode_entry_tail(&mut from)?.1),
            RECORD_TAG => {
                let (seq, prev, hash) = (from.take_u64()?, from.take_array()?, from.take_array()?);
                let (encoded, entry) = decode_entry_tail(&mut from)?;
                Self::Record { seq, prev, hash, encoded, entry }
            }
            CLOSED_TAG => Self::Closed,
            _ => return Err(MalformedBytes),
        };
        from.expect_end()?;
        Ok(frame)
    }
}

/// Appends the frame of a record whose entry is already encoded.
pub(crate) fn put_record(out: &mut Vec<u8>, record: &AuditRecord, encoded: &[u8]) {
    put_parts(out, record.seq, &record.prev, &record.hash, encoded);
}

fn put_parts(out: &mut Vec<u8>, seq: u64, prev: &[u8; 32], hash: &[u8; 32], encoded: &[u8]) {
    write_framed(out, |out| {
        out.put_u8(RECORD_TAG);
        out.put_u64(seq);
        out.put_bytes(prev);
        out.put_bytes(hash);
        out.put_bytes(encoded);
    });
}

fn write_framed(out: &mut Vec<u8>, put: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    out.extend_from_slice(&[0; FRAME_PREFIX_BYTES]);
    put(out);
    let payload = start + FRAME_PREFIX_BYTES;
    let length = u32::try_from(out.len() - payload).unwrap_or(u32::MAX);
    let checksum = crc32fast::hash(&out[payload..]);
    out[start..start + 4].copy_from_slice(&length.to_be_bytes());
    out[start + 4..payload].copy_from_slice(&checksum.to_be_bytes());
}

fn decode_header(from: &mut BinaryDecoder<'_>) -> Result<SegmentHeader, MalformedBytes> {
    if from.take_u8()? != SEGMENT_FORMAT_VERSION {
        return Err(MalformedBytes);
    }
    Ok(SegmentHeader {
        chain: from.take_uuid()?,
        at: from.take_timestamp()?,
        writer: from.take_text()?,
        after: from.take_option(BinaryDecoder::take_uuid)?,
    })
}

fn decode_entry_tail(
    from: &mut BinaryDecoder<'_>,
) -> Result<(Vec<u8>, AuditEntry), MalformedBytes> {
    let encoded = from.take_bytes(from.0.len())?.to_vec();
    let entry = decode_entry(&encoded).map_err(|_| MalformedBytes)?;
    Ok((encoded, entry))
}
