//! Redacts secrets in text before it is stored and before a model sees it.
//!
//! There are two sources of knowledge. A table of rules (`kinds`) describes the secrets of common services. And the scanner searches for
//! every secret that CyNode itself holds, literally and in the encodings that programs commonly apply to text.
//!
//! One pass of an Aho-Corasick automaton finds the *anchors*: the first characters of a rule, or of a known secret. A rule is tried only at
//! an anchor, by an automaton that answers "yes", "no" or "cannot know yet". The last answer makes streams exact: [`StreamRedactor`] holds
//! back undecided text and produces the same text as [`Redactor::redact_text`] wherever the stream is split.
//!
//! All findings count, overlapping ones too; their union is replaced. The most specific name of a finding wins: a known secret before a
//! service's token before a guess by entropy.

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
/// The four digits are a keyed fingerprint: they are equal for equal secrets and tell different secrets apart, and do not help to guess a
/// secret.
#[derive(Clone)]
pub struct Redactor(Arc<RedactorInner>);

struct RedactorInner {
    scanner: SecretScanner,
    labels: PlaceholderLabels,
    unguarded: Vec<String>,
}

/// A redacted value, and the kinds of secrets that were removed from it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RedactionResult<T> {
    /// The redacted value.
    pub value: T,
    /// Kinds and numbers of the secrets that were found.
    pub found: RedactionCounts,
}

/// Number of secrets found per kind. It never holds the values.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RedactionCounts(BTreeMap<Arc<str>, usize>);

/// Error: the automaton cannot be built from the rules and the known secrets.
#[derive(Debug, thiserror::Error)]
pub enum RedactorBuildError {
    /// A rule is malformed.
    #[error("the rules of redaction do not compile")]
    Rules(#[source] Box<regex_automata::hybrid::BuildError>),
    /// There are too many anchors.
    #[error("the anchors of redaction do not compile")]
    Anchors(#[from] aho_corasick::BuildError),
}

impl Redactor {
    /// Builds a redactor from the rules and the known secrets.
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

    /// Returns the names of known secrets that are too short to search for: they would match ordinary text too often.
    pub fn unguarded_names(&self) -> &[String] {
        &self.0.unguarded
    }

    /// Returns the text without secrets. The operation is idempotent.
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

    /// Redacts every string of a JSON value and returns the kinds of secrets found.
    ///
    /// Object keys are strings too. A value under a key that names a secret is treated as an assignment. A string that holds JSON, such as
    /// the arguments of a tool call, is parsed and redacted as well.
    pub fn redact_json(&self, value: &mut serde_json::Value) -> RedactionCounts {
        json::redact_value(self, value)
    }

    /// Creates a redactor for one stream of text.
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
    /// Writes a range of the text with placeholders instead of the spans in it.
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
    /// Returns whether no secret was found.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the number of secrets that were found.
    pub fn total_count(&self) -> usize {
        self.0.values().sum()
    }

    /// Iterates over kinds and numbers, in order of kind.
    pub fn iter(&self) -> impl Iterator<Item = (&str, usize)> {
        self.0.iter().map(|(kind, count)| (&**kind, *count))
    }

    /// Adds the counts of another result.
    pub fn merge_counts(&mut self, other: Self) {
        for (kind, count) in other.0 {
            *self.0.entry(kind).or_default() += count;
        }
    }

    fn add_kind(&mut self, kind: Arc<str>) {
        *self.0.entry(kind).or_default() += 1;
    }
}
