//! The few building blocks that everything hashed, signed or written to a file is made of.
//!
//! Numbers are big-endian and of fixed width, texts and lists carry their length, an absent value
//! is a zero byte and a present one follows a one: so no two values have the same bytes.

use time::OffsetDateTime;
use uuid::Uuid;

/// Bytes that are none of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Malformed;

/// Writes values one after another.
pub(crate) trait Put {
    fn bytes(&mut self, bytes: &[u8]);

    fn byte(&mut self, byte: u8) {
        self.bytes(&[byte]);
    }

    fn u32(&mut self, number: u32) {
        self.bytes(&number.to_be_bytes());
    }

    fn u64(&mut self, number: u64) {
        self.bytes(&number.to_be_bytes());
    }

    fn uuid(&mut self, id: Uuid) {
        self.bytes(id.as_bytes());
    }

    /// Writes the moment in microseconds; the years `time` knows fit many times over.
    fn time(&mut self, at: OffsetDateTime) {
        let micros = at.unix_timestamp_nanos().div_euclid(1_000);
        self.bytes(&i64::try_from(micros).unwrap_or(i64::MAX).to_be_bytes());
    }

    fn text(&mut self, text: &str) {
        self.length(text.len());
        self.bytes(text.as_bytes());
    }

    fn length(&mut self, length: usize) {
        self.u32(u32::try_from(length).unwrap_or(u32::MAX));
    }

    fn option<T>(&mut self, value: Option<T>, put: impl FnOnce(&mut Self, T)) {
        match value {
            Some(value) => {
                self.byte(1);
                put(self, value);
            }
            None => self.byte(0),
        }
    }
}

impl Put for Vec<u8> {
    fn bytes(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }
}

/// Reads values one after another.
pub(crate) struct Take<'a>(pub(crate) &'a [u8]);

impl<'a> Take<'a> {
    pub(crate) fn bytes(&mut self, length: usize) -> Result<&'a [u8], Malformed> {
        let (taken, rest) = self.0.split_at_checked(length).ok_or(Malformed)?;
        self.0 = rest;
        Ok(taken)
    }

    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        self.bytes(N)?.try_into().map_err(|_| Malformed)
    }

    pub(crate) fn byte(&mut self) -> Result<u8, Malformed> {
        self.array().map(|[byte]| byte)
    }

    pub(crate) fn u32(&mut self) -> Result<u32, Malformed> {
        self.array().map(u32::from_be_bytes)
    }

    pub(crate) fn u64(&mut self) -> Result<u64, Malformed> {
        self.array().map(u64::from_be_bytes)
    }

    pub(crate) fn uuid(&mut self) -> Result<Uuid, Malformed> {
        self.array().map(Uuid::from_bytes)
    }

    pub(crate) fn time(&mut self) -> Result<OffsetDateTime, Malformed> {
        let micros = self.array().map(i64::from_be_bytes)?;
        OffsetDateTime::from_unix_timestamp_nanos(i128::from(micros) * 1_000).map_err(|_| Malformed)
    }

    pub(crate) fn length(&mut self) -> Result<usize, Malformed> {
        usize::try_from(self.u32()?).map_err(|_| Malformed)
    }

    pub(crate) fn text(&mut self) -> Result<String, Malformed> {
        let length = self.length()?;
        String::from_utf8(self.bytes(length)?.to_vec()).map_err(|_| Malformed)
    }

    pub(crate) fn option<T>(
        &mut self,
        take: impl FnOnce(&mut Self) -> Result<T, Malformed>,
    ) -> Result<Option<T>, Malformed> {
        match self.byte()? {
            0 => Ok(None),
            1 => take(self).map(Some),
            _ => Err(Malformed),
        }
    }

    /// Nothing may follow.
    pub(crate) fn end(self) -> Result<(), Malformed> {
        if self.0.is_empty() { Ok(()) } else { Err(Malformed) }
    }
}
