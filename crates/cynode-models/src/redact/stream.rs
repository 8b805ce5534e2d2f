//! Text that comes in pieces.

use super::{
    Found, Redacted, Redactor,
    scan::{BEHIND, View},
};

/// More is never held back. Longer than any rule needs; only an unbroken chain of secrets that
/// overlap each other can reach it, and then all that was held is taken out as one.
const MAX_HELD: usize = 64 * 1024;

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
    found: Found,
}

impl StreamRedactor {
    pub(super) fn new(redactor: Redactor) -> Self {
        Self {
            redactor,
            text: String::new(),
            from: 0,
            after_placeholder: false,
            found: Found::default(),
        }
    }

    /// Takes the next piece and gives out what is decided.
    pub fn push(&mut self, piece: &str) -> String {
        self.text.push_str(piece);
        let mut out = self.advance(false);
        if self.held() > MAX_HELD {
            let labels = &self.redactor.0.labels;
            let kind = labels.write_unbroken(&self.text[self.from..], &mut out);
            self.found.add(kind);
            self.keep_behind(self.text.len());
            self.after_placeholder = true;
        }
        out
    }

    /// Gives out the rest, and what was found in the whole stream.
    pub fn finish(mut self) -> Redacted<String> {
        let value = self.advance(true);
        Redacted { value, found: self.found }
    }

    /// How many bytes are held back.
    pub fn held(&self) -> usize {
        self.text.len() - self.from
    }

    /// What was found so far.
    pub fn found(&self) -> &Found {
        &self.found
    }

    fn advance(&mut self, complete: bool) -> String {
        let inner = &self.redactor.0;
        let view = View {
            text: &self.text,
            from: self.from,
            after_placeholder: self.after_placeholder,
            complete,
        };
        let scan = inner.scanner.scan(view, &inner.labels);
        let mut out = String::new();
        if scan.decided > self.from {
            inner.write(
                &self.text,
                self.from..scan.decided,
                &scan.spans,
                &mut out,
                &mut self.found,
            );
            self.after_placeholder = scan.spans.last().is_some_and(|span| span.end == scan.decided);
            self.keep_behind(scan.decided);
        }
        out
    }

    /// Forgets what was given out, but for the few bytes that the scanner looks back at.
    fn keep_behind(&mut self, decided: usize) {
        let keep = self.text.floor_char_boundary(decided.saturating_sub(BEHIND));
        self.text.drain(..keep);
        self.from = decided - keep;
    }
}
