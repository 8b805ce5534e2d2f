//! W3C trace ids: one id from the first request to the last log line.

use std::{fmt, str::FromStr};

/// A W3C trace id: 16 bytes, never all zero.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct TraceId(u128);

/// The caller's position in a trace, as the `traceparent` header carries it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceParent {
    /// The trace.
    pub trace: TraceId,
    /// The caller's span.
    pub span: u64,
    /// The trace-flags byte; bit 0 is `sampled`.
    pub flags: u8,
}

/// The text is no valid trace id or `traceparent`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a W3C trace id")]
pub struct TraceError;

impl TraceId {
    /// Wraps the bytes; zero is not a trace id.
    pub const fn from_u128(value: u128) -> Option<Self> {
        if value == 0 { None } else { Some(Self(value)) }
    }

    /// A new one, from whatever draws numbers at random.
    pub fn from_random(mut draw: impl FnMut() -> u128) -> Self {
        loop {
            if let Some(trace) = Self::from_u128(draw()) {
                return trace;
            }
        }
    }

    /// The id as a number.
    pub const fn as_u128(self) -> u128 {
        self.0
    }
}

impl fmt::Display for TraceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Debug for TraceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for TraceId {
    type Err = TraceError;

    fn from_str(text: &str) -> Result<Self, TraceError> {
        u128::from_str_radix(validate_hex(text, 32)?, 16)
            .ok()
            .and_then(Self::from_u128)
            .ok_or(TraceError)
    }
}

impl FromStr for TraceParent {
    type Err = TraceError;

    /// Reads `00-<trace>-<span>-<flags>`. Of a later version only the known parts are read.
    fn from_str(text: &str) -> Result<Self, TraceError> {
        let mut parts = text.split('-');
        let mut part =
            |digits| parts.next().ok_or(TraceError).and_then(|part| validate_hex(part, digits));
        let (version, trace, span, flags) = (part(2)?, part(32)?, part(16)?, part(2)?);
        if version == "ff" || (version == "00" && parts.next().is_some()) {
            return Err(TraceError);
        }
        let span = u64::from_str_radix(span, 16).map_err(|_| TraceError)?;
        let flags = u8::from_str_radix(flags, 16).map_err(|_| TraceError)?;
        if span == 0 {
            return Err(TraceError);
        }
        Ok(Self { trace: trace.parse()?, span, flags })
    }
}

impl fmt::Display for TraceParent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "00-{}-{:016x}-{:02x}", self.trace, self.span, self.flags)
    }
}

fn validate_hex(text: &str, digits: usize) -> Result<&str, TraceError> {
    let good = text.len() == digits && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
    if good { Ok(text) } else { Err(TraceError) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    #[test]
    fn a_traceparent_reads_back_what_it_wrote() {
        let parent: TraceParent = GOOD.parse().unwrap();
        assert_eq!(parent.trace.to_string(), "4bf92f3577b34da6a3ce929d0e0e4736");
        assert_eq!(parent.to_string(), GOOD);
    }

    #[test]
    fn a_malformed_traceparent_is_refused() {
        for text in [
            "",
            "00",
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
            "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
            "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-more",
            "00-+bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
        ] {
            assert_eq!(text.parse::<TraceParent>(), Err(TraceError), "{text}");
        }
    }
}
