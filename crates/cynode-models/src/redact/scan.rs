//! Scanner: finds anchors and secrets in one pass over a text, and the point from which the text is undecided.

use std::{collections::BTreeMap, ops::Range, sync::Arc};

use aho_corasick::{AhoCorasick, AhoCorasickKind, MatchKind};
use regex_automata::hybrid::dfa::Cache;

use super::{
    RedactorBuildError,
    kinds::AnchorEdge,
    own_secrets::SecretLiterals,
    placeholder::{PLACEHOLDER_PREFIX, PlaceholderLabels, PlaceholderMatch},
    rules::{PatternVerdict, RedactionRules},
};

/// Maximum number of letters and digits before an anchor that belong to a secret.
pub(super) const MAX_BACK_BYTES: usize = 40;

/// Number of bytes before an anchor that the scanner reads to see whether a word starts there.
pub(super) const LOOKBEHIND_BYTES: usize = 12;

/// Maximum number of anchors for the fast automaton. Beyond it, a slower automaton saves memory.
const MAX_DENSE_ANCHORS: usize = 4000;

/// Finds secrets in text.
pub(super) struct SecretScanner {
    rules: Arc<RedactionRules>,
    literals: SecretLiterals,
    anchors: AhoCorasick,
    /// Possible findings of each anchor.
    targets: Vec<Vec<AnchorTarget>>,
    /// The anchors in sorted order, to detect a text that ends within one.
    sorted: Vec<Vec<u8>>,
    longest: usize,
}

#[derive(Clone, Copy)]
enum AnchorTarget {
    Placeholder,
    Rule(usize),
    Literal(usize),
}

/// A text to scan.
#[derive(Clone, Copy)]
pub(super) struct ScanView<'a> {
    pub(super) text: &'a str,
    /// Start of the scan. The text before it only shows whether a word starts here.
    pub(super) from: usize,
    /// Whether a placeholder ends just before `from`.
    pub(super) after_placeholder: bool,
    /// Whether the text is complete: no more text follows.
    pub(super) complete: bool,
}

/// Result of a scan.
pub(super) struct ScanResult {
    /// Spans that do not overlap, in order.
    pub(super) spans: Vec<SecretSpan>,
    /// Offset up to which everything is decided.
    pub(super) decided: usize,
}

/// A part of the text that must be redacted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SecretSpan {
    pub(super) start: usize,
    pub(super) end: usize,
    /// Offset from which a scan finds the span again.
    anchor: usize,
    rank: u8,
    /// Source that names the span. `named` is the part that this source found.
    pub(super) who: SpanSource,
    pub(super) named: (usize, usize),
}

/// Source of a span.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SpanSource {
    Known(usize),
    Rule(usize),
}

impl SecretSpan {
    /// Returns the priority for naming overlapping findings: the highest rank, then the longest.
    fn naming_priority(&self) -> (u8, usize) {
        (self.rank, self.named.1 - self.named.0)
    }
}

/// Position and index of an anchor in the text.
type AnchorHit = (usize, usize);

impl<'a> ScanView<'a> {
    pub(super) const fn whole_text(text: &'a str) -> Self {
        ScanView { text, from: 0, after_placeholder: false, complete: true }
    }

    fn as_bytes(&self) -> &'a [u8] {
        self.text.as_bytes()
    }
}

impl SecretScanner {
    pub(super) fn new(
        rules: Arc<RedactionRules>,
        literals: SecretLiterals,
    ) -> Result<Self, RedactorBuildError> {
        let mut table: BTreeMap<Vec<u8>, Vec<AnchorTarget>> = BTreeMap::new();
        let mut add = |anchor: &[u8], target| {
            table.entry(anchor.to_vec()).or_default().push(target);
        };
        add(PLACEHOLDER_PREFIX.as_bytes(), AnchorTarget::Placeholder);
        for (index, rule) in rules.as_slice().iter().enumerate() {
            for anchor in rule.row.anchors.as_slice() {
                add(anchor.as_bytes(), AnchorTarget::Rule(index));
            }
        }
        for (index, literal) in literals.as_slice().iter().enumerate() {
            add(literal.anchor_bytes(), AnchorTarget::Literal(index));
        }
        let (sorted, targets): (Vec<_>, Vec<_>) = table.into_iter().unzip();
        let dense = sorted.len() <= MAX_DENSE_ANCHORS;
        let kind = if dense { AhoCorasickKind::DFA } else { AhoCorasickKind::ContiguousNFA };
        let anchors = AhoCorasick::builder()
            .match_kind(MatchKind::Standard)
            .kind(Some(kind))
            .build(&sorted)?;
        let longest = sorted.iter().map(Vec::len).max().unwrap_or_default();
        Ok(Self { rules, literals, anchors, targets, sorted, longest })
    }

    pub(super) fn redaction_rules(&self) -> &RedactionRules {
        &self.rules
    }

    /// Scans a text.
    pub(super) fn scan_text(&self, view: ScanView<'_>, labels: &PlaceholderLabels) -> ScanResult {
        let bytes = view.as_bytes();
        let mut hits: Vec<AnchorHit> = self
            .anchors
            .find_overlapping_iter(&bytes[view.from..])
            .map(|hit| (view.from + hit.start(), hit.pattern().as_usize()))
            .collect();
        hits.sort_unstable();
        let mut undecided = if view.complete { bytes.len() } else { self.undecided_tail(view) };
        let kept = self.find_placeholders(view, &hits, labels, &mut undecided);
        let mut spans: Vec<SecretSpan> = Vec::new();
        let mut cache = self.rules.acquire_cache();
        for (at, pattern) in hits {
            for target in &self.targets[pattern] {
                let found = match target {
                    AnchorTarget::Placeholder => continue,
                    AnchorTarget::Rule(index) => {
                        self.match_rule(view, &mut cache, (&kept, &spans), *index, at)
                    }
                    AnchorTarget::Literal(index) => self.match_literal(view, &kept, *index, at),
                };
                match found {
                    ScanFinding::Nothing => {}
                    ScanFinding::Unknown(from) => undecided = undecided.min(from),
                    ScanFinding::Found(span) => insert_span(&mut spans, span),
                }
            }
        }
        for span in spans.iter().rev() {
            if span.end <= undecided {
                break;
            }
            undecided = undecided.min(span.anchor);
        }
        undecided = view.text.floor_char_boundary(undecided).max(view.from);
        while spans.last().is_some_and(|span| span.end > undecided) {
            spans.pop();
        }
        ScanResult { spans, decided: undecided }
    }

    /// Finds placeholders in the text. They stay unchanged.
    fn find_placeholders(
        &self,
        view: ScanView<'_>,
        hits: &[AnchorHit],
        labels: &PlaceholderLabels,
        undecided: &mut usize,
    ) -> Vec<Range<usize>> {
        let mut kept = Vec::new();
        for (at, pattern) in hits {
            if !matches!(self.targets[*pattern][0], AnchorTarget::Placeholder) {
                continue;
            }
            match labels.match_placeholder(view.as_bytes(), *at, view.complete) {
                PlaceholderMatch::Placeholder(end) => kept.push(*at..end),
                PlaceholderMatch::Unknown => *undecided = (*undecided).min(*at),
                PlaceholderMatch::Other => {}
            }
        }
        kept
    }

    fn match_rule(
        &self,
        view: ScanView<'_>,
        cache: &mut Cache,
        (kept, spans): (&[Range<usize>], &[SecretSpan]),
        index: usize,
        at: usize,
    ) -> ScanFinding {
        let rule = &self.rules.as_slice()[index];
        let bytes = view.as_bytes();
        if !is_at_edge(view, spans, rule.row.edge, at) {
            return ScanFinding::Nothing;
        }
        let back = word_start_before(bytes, view.from, at, rule.row.back);
        match self.rules.apply_rule(cache, rule, bytes, at, back, view.complete) {
            PatternVerdict::Nothing => ScanFinding::Nothing,
            PatternVerdict::Unknown => ScanFinding::Unknown(back),
            PatternVerdict::Secret { start, end } => {
                let end = view.text.ceil_char_boundary(end);
                if overlaps_placeholder(kept, &(back..end)) {
                    return ScanFinding::Nothing;
                }
                ScanFinding::Found(SecretSpan {
                    start,
                    end,
                    anchor: back,
                    rank: rule.row.rank,
                    who: SpanSource::Rule(index),
                    named: (start, end),
                })
            }
        }
    }

    fn match_literal(
        &self,
        view: ScanView<'_>,
        kept: &[Range<usize>],
        index: usize,
        at: usize,
    ) -> ScanFinding {
        let literal = &self.literals.as_slice()[index];
        let rest = &view.as_bytes()[at..];
        if rest.len() < literal.bytes.len() {
            let open = !view.complete && literal.bytes.starts_with(rest);
            return if open { ScanFinding::Unknown(at) } else { ScanFinding::Nothing };
        }
        let end = at + literal.bytes.len();
        let within = |kept: &Range<usize>| kept.start <= at && end <= kept.end;
        if !rest.starts_with(&literal.bytes)
            || last_placeholder_before(kept, at).is_some_and(within)
        {
            return ScanFinding::Nothing;
        }
        // a piece of a known secret may begin or end within a character
        let (start, end) = (view.text.floor_char_boundary(at), view.text.ceil_char_boundary(end));
        let who = SpanSource::Known(literal.known);
        ScanFinding::Found(SecretSpan {
            start,
            end,
            anchor: start,
            rank: u8::MAX,
            who,
            named: (start, end),
        })
    }

    /// Returns the offset from which the text may be the incomplete start of an anchor.
    fn undecided_tail(&self, view: ScanView<'_>) -> usize {
        let bytes = view.as_bytes();
        let earliest = bytes.len().saturating_sub(self.longest - 1).max(view.from);
        let begun = |at: &usize| {
            let rest = &bytes[*at..];
            let next = self.sorted.partition_point(|anchor| anchor.as_slice() < rest);
            self.sorted.get(next).is_some_and(|anchor| anchor.starts_with(rest))
        };
        let at = (earliest..bytes.len()).find(begun).unwrap_or(bytes.len());
        word_start_before(bytes, view.from, at, MAX_BACK_BYTES)
    }
}

enum ScanFinding {
    Found(SecretSpan),
    Nothing,
    Unknown(usize),
}

/// Adds a finding. Overlapping findings are merged.
fn insert_span(spans: &mut Vec<SecretSpan>, mut span: SecretSpan) {
    let first = spans.partition_point(|other| other.end <= span.start);
    let last = spans.partition_point(|other| other.start < span.end);
    for other in spans.drain(first..last.max(first)) {
        let (start, end) = (other.start.min(span.start), other.end.max(span.end));
        let anchor = other.anchor.min(span.anchor);
        // of equal ranks the longer one names the span, then the first
        let named = if span.naming_priority() > other.naming_priority() { span } else { other };
        span = SecretSpan { start, end, anchor, ..named };
    }
    spans.insert(first, span);
}

/// Returns the last placeholder that starts at or before `at`.
fn last_placeholder_before(kept: &[Range<usize>], at: usize) -> Option<&Range<usize>> {
    kept[..kept.partition_point(|kept| kept.start <= at)].last()
}

fn overlaps_placeholder(kept: &[Range<usize>], span: &Range<usize>) -> bool {
    let next = kept.partition_point(|kept| kept.end <= span.start);
    kept.get(next).is_some_and(|kept| kept.start < span.end)
}

/// Returns whether the text before `at` allows a secret to start there.
fn is_at_edge(view: ScanView<'_>, spans: &[SecretSpan], edge: AnchorEdge, at: usize) -> bool {
    match edge {
        AnchorEdge::Any => true,
        AnchorEdge::Digit => at > 0 && view.as_bytes()[at - 1].is_ascii_digit(),
        AnchorEdge::Word => {
            follows_secret(view, spans, at) || can_word_start(bytes_behind(view, at))
        }
        AnchorEdge::Apart(joints) => {
            follows_secret(view, spans, at)
                || (can_word_start(bytes_behind(view, at))
                    && !is_joined_to_word(bytes_behind(view, at), joints))
        }
    }
}

/// Returns whether a secret ends just before `at`.
fn follows_secret(view: ScanView<'_>, spans: &[SecretSpan], at: usize) -> bool {
    let next = spans.partition_point(|span| span.end < at);
    (view.after_placeholder && at == view.from)
        || spans.get(next).is_some_and(|span| span.end == at)
}

fn bytes_behind(view: ScanView<'_>, at: usize) -> &[u8] {
    &view.as_bytes()[at.saturating_sub(LOOKBEHIND_BYTES)..at]
}

/// Returns whether joining characters connect the next text to a word before them.
fn is_joined_to_word(behind: &[u8], joints: &[u8]) -> bool {
    let count = behind.iter().rev().take_while(|byte| joints.contains(byte)).count();
    count == LOOKBEHIND_BYTES || (count > 0 && !can_word_start(&behind[..behind.len() - count]))
}

/// Returns the start of the letters and digits before `at`, at most `most` of them.
fn word_start_before(bytes: &[u8], from: usize, at: usize, most: usize) -> usize {
    let run =
        bytes[from..at].iter().rev().take(most).take_while(|byte| byte.is_ascii_alphanumeric());
    at - run.count()
}

/// Returns whether a word can start after this text: after no text, after a character that is no letter, or after a letter that is the end
/// of an escape (`\n`, `\u0022`, `%3D`, a terminal colour).
fn can_word_start(behind: &[u8]) -> bool {
    let Some((last, rest)) = behind.split_last() else { return true };
    if !(last.is_ascii_alphanumeric() || *last == b'_') {
        return true;
    }
    let hex = |count: usize, opening: &[u8]| {
        behind.len() >= count + opening.len()
            && behind[behind.len() - count..].iter().all(u8::is_ascii_hexdigit)
            && behind[..behind.len() - count].ends_with(opening)
    };
    let escape = b"nrtbf0".contains(last) && rest.ends_with(b"\\");
    let colour = || {
        let numbers = rest.iter().rev().take_while(|byte| byte.is_ascii_digit() || **byte == b';');
        let opening = rest.len() - numbers.count();
        *last == b'm' && rest[..opening].ends_with(b"[")
    };
    escape || hex(2, b"%") || hex(2, b"\\x") || hex(4, b"\\u") || colour()
}
