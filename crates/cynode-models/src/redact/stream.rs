//! Redaction of text that arrives in pieces.

use super::{
    RedactionCounts, RedactionResult, Redactor,
    scan::{LOOKBEHIND_BYTES, ScanView},
};

/// Maximum number of bytes held back. No rule needs as much; only an unbroken chain of overlapping secrets can reach it, and then all text
/// held back is redacted as one secret.
const MAX_HELD_BYTES: usize = 64 * 1024;

/// Redacts secrets in a stream of text, wherever it is split.
///
/// The concatenated output equals the output of [`Redactor::redact_text`] for the concatenated input. Only text that may be part of a
/// secret is held back: usually nothing or the last word.
#[derive(Debug)]
pub struct StreamRedactor {
    redactor: Redactor,
    /// The last bytes of the output, then the text that is held back.
    text: String,
    /// Start of the text that is held back.
    from: usize,
    after_placeholder: bool,
    found: RedactionCounts,
}

impl StreamRedactor {
    pub(super) fn new(redactor: Redactor) -> Self {
        Self {
            redactor,
            text: String::new(),
            from: 0,
            after_placeholder: false,
            found: RedactionCounts::default(),
        }
    }

    /// Takes the next piece and returns the text that is decided.
    pub fn push_text(&mut self, piece: &str) -> String {
        self.text.push_str(piece);
        let mut out = self.advance_scan(false);
        if self.held_bytes() > MAX_HELD_BYTES {
            let labels = &self.redactor.0.labels;
            let kind = labels.write_unbroken(&self.text[self.from..], &mut out);
            self.found.add_kind(kind);
            self.trim_to_lookbehind(self.text.len());
            self.after_placeholder = true;
        }
        out
    }

    /// Returns the remaining text, and the secrets found in the whole stream.
    pub fn finish(mut self) -> RedactionResult<String> {
        let value = self.advance_scan(true);
        RedactionResult { value, found: self.found }
    }

    /// Returns the number of bytes held back.
    pub fn held_bytes(&self) -> usize {
        self.text.len() - self.from
    }

    /// Returns the secrets found so far.
    pub fn redaction_counts(&self) -> &RedactionCounts {
        &self.found
    }

    fn advance_scan(&mut self, complete: bool) -> String {
        let inner = &self.redactor.0;
        let view = ScanView {
            text: &self.text,
            from: self.from,
            after_placeholder: self.after_placeholder,
            complete,
        };
        let scan = inner.scanner.scan_text(view, &inner.labels);
        let mut out = String::new();
        if scan.decided > self.from {
            inner.write_redacted(
                &self.text,
                self.from..scan.decided,
                &scan.spans,
                &mut out,
                &mut self.found,
            );
            self.after_placeholder = scan.spans.last().is_some_and(|span| span.end == scan.decided);
            self.trim_to_lookbehind(scan.decided);
        }
        out
    }

    /// Drops the text that was output, except the few bytes that the scanner looks back at.
    fn trim_to_lookbehind(&mut self, decided: usize) {
        let keep = self.text.floor_char_boundary(decided.saturating_sub(LOOKBEHIND_BYTES));
        self.text.drain(..keep);
        self.from = decided - keep;
    }
}
