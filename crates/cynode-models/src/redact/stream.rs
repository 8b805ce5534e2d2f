//! Text that comes in pieces.

use super::{
    RedactionCounts, RedactionResult, Redactor,
    scan::{LOOKBEHIND_BYTES, ScanView},
};

/// More is never held back. Longer than any rule needs; only an unbroken chain of secrets that
/// overlap each other can reach it, and then all that was held is taken out as one.
const MAX_HELD_BYTES: usize = 64 * 1024;

/// Takes secrets out of a stream of text, wherever it is cut.
///
/// All pieces given out together are what [`Redactor::text`] makes of all pieces taken in together.
/// Held back is only what may be a part of a secret: mostly nothing or the last word.
#[derive(Debug)]
pub struct StreamRedactor {
    redactor: Redactor,
    /// The last bytes that were given out, then what is held back.
    text: String,
    /// Where the held back part begins.
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

    /// Takes the next piece and gives out what is decided.
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

    /// Gives out the rest, and what was found in the whole stream.
    pub fn finish(mut self) -> RedactionResult<String> {
        let value = self.advance_scan(true);
        RedactionResult { value, found: self.found }
    }

    /// How many bytes are held back.
    pub fn held_bytes(&self) -> usize {
        self.text.len() - self.from
    }

    /// What was found so far.
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

    /// Forgets what was given out, but for the few bytes that the scanner looks back at.
    fn trim_to_lookbehind(&mut self, decided: usize) {
        let keep = self.text.floor_char_boundary(decided.saturating_sub(LOOKBEHIND_BYTES));
        self.text.drain(..keep);
        self.from = decided - keep;
    }
}
