//! The pass over a text: anchors, findings, and what cannot be decided yet.

use std::{collections::BTreeMap, ops::Range, sync::Arc};

use aho_corasick::{AhoCorasick, AhoCorasickKind, MatchKind};
use regex_automata::hybrid::dfa::Cache;

use super::{
    BuildError,
    kinds::Edge,
    known::Literals,
    placeholder::{Labels, OPENING, Seen},
    rules::{Rules, Verdict},
};

/// How many letters and digits before an anchor can belong to a secret.
pub(super) const BACK: usize = 40;

/// How many bytes before an anchor the scanner may look at to see whether a word starts there.
pub(super) const BEHIND: usize = 12;

/// With more anchors than this the automaton trades speed for memory.
const DENSE: usize = 4000;

/// Finds secrets.
pub(super) struct Scanner {
    rules: Arc<Rules>,
    literals: Literals,
    anchors: AhoCorasick,
    /// What each anchor may be the start of.
    targets: Vec<Vec<Target>>,
    /// The anchors in order, to see whether a text ends within one.
    sorted: Vec<Vec<u8>>,
    longest: usize,
}

#[derive(Clone, Copy)]
enum Target {
    Placeholder,
    Rule(usize),
    Literal(usize),
}

/// A text to look at.
#[derive(Clone, Copy)]
pub(super) struct View<'a> {
    pub(super) text: &'a str,
    /// Where to begin. What is before only shows whether a word starts here.
    pub(super) from: usize,
    /// A placeholder ends just before `from`.
    pub(super) after_placeholder: bool,
    /// Whether the text is known to its end.
    pub(super) complete: bool,
}

/// What was found.
pub(super) struct Scan {
    /// Apart from each other and in order.
    pub(super) spans: Vec<Span>,
    /// Up to here everything is decided.
    pub(super) decided: usize,
}

/// A part of the text that must go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Span {
    pub(super) start: usize,
    pub(super) end: usize,
    /// Where the scanner must begin to find it again.
    anchor: usize,
    rank: u8,
    /// Who names it, and the part that it is named by.
    pub(super) who: Who,
    pub(super) named: (usize, usize),
}

/// Who found a span.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Who {
    Known(usize),
    Rule(usize),
}

impl Span {
    /// Who of several names what they found together: the highest rank, then the longest.
    fn worth(&self) -> (u8, usize) {
        (self.rank, self.named.1 - self.named.0)
    }
}

/// An anchor in the text: where, and which.
type Hit = (usize, usize);

impl<'a> View<'a> {
    pub(super) const fn whole(text: &'a str) -> Self {
        View { text, from: 0, after_placeholder: false, complete: true }
    }

    fn bytes(&self) -> &'a [u8] {
        self.text.as_bytes()
    }
}

impl Scanner {
    pub(super) fn new(rules: Arc<Rules>, literals: Literals) -> Result<Self, BuildError> {
        let mut table: BTreeMap<Vec<u8>, Vec<Target>> = BTreeMap::new();
        let mut add = |anchor: &[u8], target| {
            table.entry(anchor.to_vec()).or_default().push(target);
        };
        add(OPENING.as_bytes(), Target::Placeholder);
        for (index, rule) in rules.all().iter().enumerate() {
            for anchor in rule.row.anchors.list() {
                add(anchor.as_bytes(), Target::Rule(index));
            }
        }
        for (index, literal) in literals.all().iter().enumerate() {
            add(literal.anchor(), Target::Literal(index));
        }
        let (sorted, targets): (Vec<_>, Vec<_>) = table.into_iter().unzip();
        let dense = sorted.len() <= DENSE;
        let kind = if dense { AhoCorasickKind::DFA } else { AhoCorasickKind::ContiguousNFA };
        let anchors = AhoCorasick::builder()
            .match_kind(MatchKind::Standard)
            .kind(Some(kind))
            .build(&sorted)?;
        let longest = sorted.iter().map(Vec::len).max().unwrap_or_default();
        Ok(Self { rules, literals, anchors, targets, sorted, longest })
    }

    pub(super) fn rules(&self) -> &Rules {
        &self.rules
    }

    /// Looks at a text.
    pub(super) fn scan(&self, view: View<'_>, labels: &Labels) -> Scan {
        let bytes = view.bytes();
        let mut hits: Vec<Hit> = self
            .anchors
            .find_overlapping_iter(&bytes[view.from..])
            .map(|hit| (view.from + hit.start(), hit.pattern().as_usize()))
            .collect();
        hits.sort_unstable();
        let mut undecided = if view.complete { bytes.len() } else { self.tail(view) };
        let kept = self.placeholders(view, &hits, labels, &mut undecided);
        let mut spans: Vec<Span> = Vec::new();
        let mut cache = self.rules.cache();
        for (at, pattern) in hits {
            for target in &self.targets[pattern] {
                let found = match target {
                    Target::Placeholder => continue,
                    Target::Rule(index) => self.rule(view, &mut cache, (&kept, &spans), *index, at),
                    Target::Literal(index) => self.literal(view, &kept, *index, at),
                };
                match found {
                    Finding::Nothing => {}
                    Finding::Unknown(from) => undecided = undecided.min(from),
                    Finding::Found(span) => insert(&mut spans, span),
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
        Scan { spans, decided: undecided }
    }

    /// Our own placeholders in the text: they stay.
    fn placeholders(
        &self,
        view: View<'_>,
        hits: &[Hit],
        labels: &Labels,
        undecided: &mut usize,
    ) -> Vec<Range<usize>> {
        let mut kept = Vec::new();
        for (at, pattern) in hits {
            if !matches!(self.targets[*pattern][0], Target::Placeholder) {
                continue;
            }
            match labels.read(view.bytes(), *at, view.complete) {
                Seen::Placeholder(end) => kept.push(*at..end),
                Seen::Unknown => *undecided = (*undecided).min(*at),
                Seen::Other => {}
            }
        }
        kept
    }

    fn rule(
        &self,
        view: View<'_>,
        cache: &mut Cache,
        (kept, spans): (&[Range<usize>], &[Span]),
        index: usize,
        at: usize,
    ) -> Finding {
        let rule = &self.rules.all()[index];
        let bytes = view.bytes();
        if !at_edge(view, spans, rule.row.edge, at) {
            return Finding::Nothing;
        }
        let back = before(bytes, view.from, at, rule.row.back);
        match self.rules.apply(cache, rule, bytes, at, back, view.complete) {
            Verdict::Nothing => Finding::Nothing,
            Verdict::Unknown => Finding::Unknown(back),
            Verdict::Secret { start, end } => {
                let end = view.text.ceil_char_boundary(end);
                if overlaps(kept, &(back..end)) {
                    return Finding::Nothing;
                }
                Finding::Found(Span {
                    start,
                    end,
                    anchor: back,
                    rank: rule.row.rank,
                    who: Who::Rule(index),
                    named: (start, end),
                })
            }
        }
    }

    fn literal(&self, view: View<'_>, kept: &[Range<usize>], index: usize, at: usize) -> Finding {
        let literal = &self.literals.all()[index];
        let rest = &view.bytes()[at..];
        if rest.len() < literal.bytes.len() {
            let open = !view.complete && literal.bytes.starts_with(rest);
            return if open { Finding::Unknown(at) } else { Finding::Nothing };
        }
        let end = at + literal.bytes.len();
        let within = |kept: &Range<usize>| kept.start <= at && end <= kept.end;
        if !rest.starts_with(&literal.bytes) || near(kept, at).is_some_and(within) {
            return Finding::Nothing;
        }
        // a piece of a known secret may begin and end within a letter
        let (start, end) = (view.text.floor_char_boundary(at), view.text.ceil_char_boundary(end));
        let who = Who::Known(literal.known);
        Finding::Found(Span { start, end, anchor: start, rank: u8::MAX, who, named: (start, end) })
    }

    /// Where an anchor may have begun that the text does not show whole.
    fn tail(&self, view: View<'_>) -> usize {
        let bytes = view.bytes();
        let earliest = bytes.len().saturating_sub(self.longest - 1).max(view.from);
        let begun = |at: &usize| {
            let rest = &bytes[*at..];
            let next = self.sorted.partition_point(|anchor| anchor.as_slice() < rest);
            self.sorted.get(next).is_some_and(|anchor| anchor.starts_with(rest))
        };
        let at = (earliest..bytes.len()).find(begun).unwrap_or(bytes.len());
        before(bytes, view.from, at, BACK)
    }
}

enum Finding {
    Found(Span),
    Nothing,
    Unknown(usize),
}

/// Adds a finding. What overlaps becomes one.
fn insert(spans: &mut Vec<Span>, mut span: Span) {
    let first = spans.partition_point(|other| other.end <= span.start);
    let last = spans.partition_point(|other| other.start < span.end);
    for other in spans.drain(first..last.max(first)) {
        let (start, end) = (other.start.min(span.start), other.end.max(span.end));
        let anchor = other.anchor.min(span.anchor);
        // of equals the longer one names it, then the first
        let named = if span.worth() > other.worth() { span } else { other };
        span = Span { start, end, anchor, ..named };
    }
    spans.insert(first, span);
}

/// The last placeholder that starts at or before `at`.
fn near(kept: &[Range<usize>], at: usize) -> Option<&Range<usize>> {
    kept[..kept.partition_point(|kept| kept.start <= at)].last()
}

fn overlaps(kept: &[Range<usize>], span: &Range<usize>) -> bool {
    let next = kept.partition_point(|kept| kept.end <= span.start);
    kept.get(next).is_some_and(|kept| kept.start < span.end)
}

/// Whether what stands before `at` lets a secret start there.
fn at_edge(view: View<'_>, spans: &[Span], edge: Edge, at: usize) -> bool {
    match edge {
        Edge::Any => true,
        Edge::Digit => at > 0 && view.bytes()[at - 1].is_ascii_digit(),
        Edge::Word => touches(view, spans, at) || word_starts(behind(view, at)),
        Edge::Apart(joints) => {
            touches(view, spans, at)
                || (word_starts(behind(view, at)) && !joined(behind(view, at), joints))
        }
    }
}

/// Whether a secret ends just before `at`.
fn touches(view: View<'_>, spans: &[Span], at: usize) -> bool {
    let next = spans.partition_point(|span| span.end < at);
    (view.after_placeholder && at == view.from)
        || spans.get(next).is_some_and(|span| span.end == at)
}

fn behind(view: View<'_>, at: usize) -> &[u8] {
    &view.bytes()[at.saturating_sub(BEHIND)..at]
}

/// Whether joints tie what comes next to a word before them.
fn joined(behind: &[u8], joints: &[u8]) -> bool {
    let count = behind.iter().rev().take_while(|byte| joints.contains(byte)).count();
    count == BEHIND || (count > 0 && !word_starts(&behind[..behind.len() - count]))
}

/// Where the letters and digits before `at` begin, not more than `most` of them.
fn before(bytes: &[u8], from: usize, at: usize, most: usize) -> usize {
    let run =
        bytes[from..at].iter().rev().take(most).take_while(|byte| byte.is_ascii_alphanumeric());
    at - run.count()
}

/// Whether a word can start after this: after nothing, after no letter, or after a letter that is
/// the end of an escape (`\n`, `\u0022`, `%3D`, a colour of a terminal).
fn word_starts(behind: &[u8]) -> bool {
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
