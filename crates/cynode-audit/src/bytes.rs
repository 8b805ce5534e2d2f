//! Binary encoding of everything that this crate hashes, signs or writes to a file.
//!
//! Numbers are big-endian and of fixed width. Texts and lists are preceded by their length. An absent value is a zero byte, and a present
//! value follows a one. So no two values have the same bytes.

use time::OffsetDateTime;
use uuid::Uuid;

/// Error: the bytes are not in this encoding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MalformedBytes;

/// Appends encoded values.
pub(crate) trait BinaryEncoder {
    fn put_bytes(&mut self, bytes: &[u8]);

    fn put_u8(&mut self, byte: u8) {
        self.put_bytes(&[byte]);
    }

    fn put_u32(&mut self, number: u32) {
        self.put_bytes(&number.to_be_bytes());
    }

    fn put_u64(&mut self, number: u64) {
        self.put_bytes(&number.to_be_bytes());
    }

    fn put_uuid(&mut self, id: Uuid) {
        self.put_bytes(id.as_bytes());
    }

    /// Appends the timestamp in microseconds. All years that `time` supports fit.
    fn put_timestamp(&mut self, at: OffsetDateTime) {
        let micros = at.unix_timestamp_nanos().div_euclid(1_000);
        self.put_bytes(&i64::try_from(micros).unwrap_or(i64::MAX).to_be_bytes());
    }

    fn put_text(&mut self, text: &str) {
        self.put_length(text.len());
        self.put_bytes(text.as_bytes());
    }

    fn put_length(&mut self, length: usize) {
        self.put_u32(u32::try_from(length).unwrap_or(u32::MAX));
    }

    fn put_option<T>(&mut self, value: Option<T>, put: impl FnOnce(&mut Self, T)) {
        match value {
            Some(value) => {
                self.put_u8(1);
                put(self, value);
            }
            None => self.put_u8(0),
        }
    }
}

impl BinaryEncoder for Vec<u8> {
    fn put_bytes(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }
}

/// Reads encoded values in order.
pub(crate) struct BinaryDecoder<'a>(pub(crate) &'a [u8]);

impl<'a> BinaryDecoder<'a> {
    pub(crate) fn take_bytes(&mut self, length: usize) -> Result<&'a [u8], MalformedBytes> {
        let (taken, rest) = self.0.split_at_checked(length).ok_or(MalformedBytes)?;
        self.0 = rest;
        Ok(taken)
    }

    pub(crate) fn take_array<const N: usize>(&mut self) -> Result<[u8; N], MalformedBytes> {
        self.take_bytes(N)?.try_into().map_err(|_| MalformedBytes)
    }

    pub(crate) fn take_u8(&mut self) -> Result<u8, MalformedBytes> {
        self.take_array().map(|[byte]| byte)
    }

    pub(crate) fn take_u32(&mut self) -> Result<u32, MalformedBytes> {
        self.take_array().map(u32::from_be_bytes)
    }

    pub(crate) fn take_u64(&mut self) -> Result<u64, MalformedBytes> {
        self.take_array().map(u64::from_be_bytes)
    }

    pub(crate) fn take_uuid(&mut self) -> Result<Uuid, MalformedBytes> {
        self.take_array().map(Uuid::from_bytes)
    }

    pub(crate) fn take_timestamp(&mut self) -> Result<OffsetDateTime, MalformedBytes> {
        let micros = self.take_array().map(i64::from_be_bytes)?;
        OffsetDateTime::from_unix_timestamp_nanos(i128::from(micros) * 1_000)
            .map_err(|_| MalformedBytes)
    }

    pub(crate) fn take_length(&mut self) -> Result<usize, MalformedBytes> {
        usize::try_from(self.take_u32()?).map_err(|_| MalformedBytes)
    }

    pub(crate) fn take_text(&mut self) -> Result<String, MalformedBytes> {
        let length = self.take_length()?;
        String::from_utf8(self.take_bytes(length)?.to_vec()).map_err(|_| MalformedBytes)
    }

    pub(crate) fn take_option<T>(
        &mut self,
        take: impl FnOnce(&mut Self) -> Result<T, MalformedBytes>,
    ) -> Result<Option<T>, MalformedBytes> {
        match self.take_u8()? {
            0 => Ok(None),
            1 => take(self).map(Some),
            _ => Err(MalformedBytes),
        }
    }

    /// Rejects trailing bytes.
    pub(crate) fn expect_end(self) -> Result<(), MalformedBytes> {
        if self.0.is_empty() { Ok(()) } else { Err(MalformedBytes) }
    }
}
