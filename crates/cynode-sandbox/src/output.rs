//! Bounded capture of a program's output.

use tokio::io::{AsyncRead, AsyncReadExt};

/// Tail of a program's output.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CapturedOutput {
    /// Last bytes of the output.
    pub bytes: Vec<u8>,
    /// Number of bytes before them that were dropped.
    pub dropped: u64,
}

impl CapturedOutput {
    /// Returns the bytes as text; invalid UTF-8 is replaced.
    pub fn to_lossy_text(&self) -> String {
        String::from_utf8_lossy(&self.bytes).into_owned()
    }
}

/// Reads to the end of the stream and keeps the last `most` bytes.
pub async fn capture_tail(mut from: impl AsyncRead + Unpin, most: usize) -> CapturedOutput {
    let mut captured = CapturedOutput::default();
    let mut buffer = vec![0; 16 << 10];
    while let Ok(read) = from.read(&mut buffer).await {
        if read == 0 {
            break;
        }
        captured.bytes.extend_from_slice(&buffer[..read]);
        // Truncates in large steps, so that a flood of output is not copied again and again.
        if captured.bytes.len() > 2 * most + buffer.len() {
            captured.trim_to(most);
        }
    }
    captured.trim_to(most);
    captured
}

impl CapturedOutput {
    fn trim_to(&mut self, most: usize) {
        let over = self.bytes.len().saturating_sub(most);
        self.bytes.drain(..over);
        self.dropped += over as u64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_end_is_kept_and_the_rest_is_counted() {
        let flood = [b"x".repeat(1_000_000), b"the end".to_vec()].concat();
        let captured = capture_tail(&flood[..], 7).await;
        assert_eq!(captured, CapturedOutput { bytes: b"the end".to_vec(), dropped: 1_000_000 });
    }

    #[tokio::test]
    async fn what_is_short_is_kept_whole() {
        let captured = capture_tail(&b"short"[..], 7).await;
        assert_eq!(captured, CapturedOutput { bytes: b"short".to_vec(), dropped: 0 });
    }
}
