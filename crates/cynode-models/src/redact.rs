//! Takes secrets out of text before it is stored and before a model sees it.
//!
//! Two sources of knowledge. A table of [rules](kinds) knows how secrets of the usual services look;
//! and every secret that CyNode itself holds is looked for literally, also in the encodings that
//! text on its way through programs tends to get.
//!
//! One pass of an Aho-Corasick automaton finds the *anchors*: the first letters of a rule, or of a
//! known secret. Only there a rule is tried, by an automaton that says "yes", "no" or "cannot know
//! yet". The last answer is what makes streams exact: [`StreamRedactor`] holds back what cannot be
//! decided, and gives the same text as [`Redactor::text`] wherever the stream is cut.
//!
//! All findings count, also overlapping ones; what they cover together is replaced. A finding's
//! best name wins: a known secret before a service's token before a guess by entropy.

mod check;
mod json;
mod kinds;
mod own_secrets;
mod placeholder;
mod rules;
mod scan;
mod stream;

use std::{borrow::Cow, collections::BTreeMap, fmt, sync::Arc};

pub use own_secrets::KnownSecret;
pub use placeholder::FingerprintKey;
pub use rules::RedactionRules;
pub use stream::StreamRedactor;

use own_secrets::SecretLiterals;
use placeholder::PlaceholderLabels;
use scan::{ScanView, SecretScanner};

/// Replaces secrets by placeholders such as `[redacted:github_token#3f2a]`. Cheap to clone.
///
/// The four digits tell two secrets apart and are the same for the same secret; they are keyed, so
/// that they do not help to guess it.
#[derive(Clone)]
pub struct Redactor(Arc<RedactorInner>);

struct RedactorInner {
    scanner: SecretScanner,
    labels: PlaceholderLabels,
    unguarded: Vec<String>,
}

/// Something, and what was taken out of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RedactionResult<T> {
    /// What is left.
    pub value: T,
    /// What was found.
    pub found: RedactionCounts,
}

/// The kinds of what was found and how often, never the values.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RedactionCounts(BTreeMap<Arc<str>, usize>);

/// The rules or the known secrets do not make an automaton.
#[derive(Debug, thiserror::Error)]
pub enum RedactorBuildError {
    /// A rule is not well-formed.
    #[error("the rules of redaction do not compile")]
    Rules(#[source] Box<regex_automata::hybrid::BuildError>),
    /// There are too many anchors.
    #[error("the anchors of redaction do not compile")]
    Anchors(#[from] aho_corasick::BuildError),
}

impl Redactor {
    /// Puts the rules and the known secrets together.
    pub fn new(
        rules: Arc<RedactionRules>,
        key: FingerprintKey,
        known: impl IntoIterator<Item = KnownSecret>,
    ) -> Result<Self, RedactorBuildError> {
        let (literals, unguarded) = SecretLiterals::new(known);
        let labels = PlaceholderLabels::new(key, &rules, &literals);
        let scanner = SecretScanner::new(rules, literals)?;
        Ok(Self(Arc::new(RedactorInner { scanner, labels, unguarded })))
    }

    /// The names of known secrets that are too short to be looked for: text would be full of them.
    pub fn unguarded_names(&self) -> &[String] {
        &self.0.unguarded
    }

    /// The text without secrets. Doing it twice changes nothing more.
    pub fn redact_text<'a>(&self, text: &'a str) -> RedactionResult<Cow<'a, str>> {
        let scan = self.0.scanner.scan_text(ScanView::whole_text(text), &self.0.labels);
        let mut found = RedactionCounts::default();
        if scan.spans.is_empty() {
            return RedactionResult { value: Cow::Borrowed(text), found };
        }
        let mut out = String::with_capacity(text.len());
        self.0.write_redacted(text, 0..text.len(), &scan.spans, &mut out, &mut found);
        RedactionResult { value: Cow::Owned(out), found }
    }

    /// Takes secrets out of every string of a JSON value and tells what they were.
    ///
    /// Object keys are strings too. A value under a key that announces a secret counts as assigned
    /// to it. A string that holds JSON, as the arguments of a tool call do, is looked into as well.
    pub fn redact_json(&self, value: &mut serde_json::Value) -> RedactionCounts {
        json::redact_value(self, value)
    }

    /// The redactor of one stream of text.
    pub fn stream_redactor(&self) -> StreamRedactor {
        StreamRedactor::new(self.clone())
    }
}

impl fmt::Debug for Redactor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Redactor").finish_non_exhaustive()
    }
}

impl RedactorInner {
    /// Writes a range of the text with placeholders for the spans in it.
    fn write_redacted(
        &self,
        text: &str,
        range: std::ops::Range<usize>,
        spans: &[scan::SecretSpan],
        out: &mut String,
        found: &mut RedactionCounts,
    ) {
        let mut at = range.start;
        for span in spans.iter().filter(|span| span.end <= range.end) {
            out.push_str(&text[at..span.start]);
            let kind = self.labels.write_span(span, text, out);
            found.add_kind(kind);
            at = span.end;
        }
        out.push_str(&text[at..range.end]);
    }
}

impl RedactionCounts {
    /// Whether nothing was found.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// How many secrets were found.
    pub fn total_count(&self) -> usize {
        self.0.values().sum()
    }

    /// Kind and number, by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, usize)> {
        self.0.iter().map(|(kind, count)| (&**kind, *count))
    }

    /// Adds what was found elsewhere.
    pub fn merge_counts(&mut self, other: Self) {
        for (kind, count) in other.0 {
            *self.0.entry(kind).or_default() += count;
        }
    }

    fn add_kind(&mut self, kind: Arc<str>) {
        *self.0.entry(kind).or_default() += 1;
    }
}
