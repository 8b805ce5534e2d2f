//! Lines of an output that comes in pieces.

use crate::MAX_REPORT_FILE_BYTES;

/// Maximum number of bytes of a line. The rest of a longer one is passed over.
const MAX_LINE_BYTES: usize = 16 * 1024;

/// Splits bytes into lines. Escape codes of terminals are removed.
#[derive(Debug, Default)]
pub(crate) struct LineBuffer {
    pending: Vec<u8>,
}

impl LineBuffer {
    pub(crate) fn push_bytes(&mut self, bytes: &[u8], mut each: impl FnMut(&str)) {
        let mut rest = bytes;
        while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
            self.append_bytes(&rest[..end]);
            self.flush_line(&mut each);
            rest = &rest[end + 1..];
        }
        self.append_bytes(rest);
    }

    fn append_bytes(&mut self, bytes: &[u8]) {
        // A JSON document is one line.
        let first = self.pending.first().or_else(|| bytes.first());
        let max = if first == Some(&b'{') { MAX_REPORT_FILE_BYTES } else { MAX_LINE_BYTES };
        let room = max.saturating_sub(self.pending.len());
        self.pending.extend_from_slice(&bytes[..bytes.len().min(room)]);
    }

    /// Hands out the pending line without waiting for its end.
    pub(crate) fn flush_line(&mut self, mut each: impl FnMut(&str)) {
        let text = String::from_utf8_lossy(&self.pending);
        let text = text.strip_suffix('\r').unwrap_or(&text);
        if text.starts_with('{') || !text.contains(['\u{1b}', '\r']) {
            each(text);
        } else {
            let text = remove_escape_codes(text);
            // A progress bar is overwritten by what follows it.
            each(text.rsplit('\r').next().unwrap_or_default());
        }
        self.pending.clear();
        self.pending.shrink_to(MAX_LINE_BYTES);
    }
}

/// Removes the escape codes of terminals: colours, cursor movements and links.
fn remove_escape_codes(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut letters = text.chars();
    while let Some(letter) = letters.next() {
        if letter != '\u{1b}' {
            plain.push(letter);
            continue;
        }
        match letters.next() {
            Some('[') => {
                letters.by_ref().find(|letter| ('\u{40}'..='\u{7e}').contains(letter));
            }
            Some(']') => {
                let end = letters.by_ref().find(|letter| matches!(letter, '\u{7}' | '\u{1b}'));
                if end == Some('\u{1b}') {
                    letters.next();
                }
            }
            _ => {}
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(pieces: &[&[u8]]) -> Vec<String> {
        let mut buffer = LineBuffer::default();
        let mut lines = Vec::new();
        for piece in pieces {
            buffer.push_bytes(piece, |line| lines.push(line.to_owned()));
        }
        buffer.flush_line(|line| lines.push(line.to_owned()));
        lines
    }

    #[test]
    fn lines_come_whole_however_the_bytes_are_cut() {
        assert_eq!(lines(&[b"on", b"e\r\ntw", b"o\n\nth"]), ["one", "two", "", "th"]);
    }

    #[test]
    fn colours_and_progress_bars_are_removed() {
        let text = b"\x1b[32m\xe2\x9c\x93\x1b[39m one\n\x1b]8;;x\x1b\\link\x1b]8;;\x07\n 10%\r 20%\rdone\n";
        assert_eq!(lines(&[text]), ["✓ one", "link", "done", ""]);
    }

    #[test]
    fn a_long_line_is_cut_and_a_document_is_not() {
        let long = "x".repeat(3 * MAX_LINE_BYTES);
        let document = format!("{{{long}");
        let text = format!("{long}\n{document}\nend");
        let read = lines(&[text.as_bytes()]);
        let lengths: Vec<usize> = read.iter().map(String::len).collect();
        assert_eq!(lengths, [MAX_LINE_BYTES, document.len(), 3]);
    }
}
