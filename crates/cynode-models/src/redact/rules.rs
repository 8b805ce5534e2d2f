//! Compiled rules.

use std::{fmt, sync::Arc};

use regex_automata::{
    Anchored, Input, PatternID,
    hybrid::dfa::{Cache, DFA},
    nfa::thompson,
    util::{
        pool::{Pool, PoolGuard},
        syntax,
    },
};

use super::{
    RedactorBuildError, check,
    kinds::{AnchorPosition, GUESS_KIND, RULE_TABLE, RuleAnchors, RuleRow},
};

/// Compiled rules for all kinds of secrets. Compile them once and share them.
pub struct RedactionRules {
    dfa: DFA,
    caches: Pool<Cache, CacheFactory>,
    table: Vec<CompiledRule>,
}

pub(super) type CacheFactory =
    Box<dyn Fn() -> Cache + Send + Sync + std::panic::UnwindSafe + std::panic::RefUnwindSafe>;

/// A row of the table and its patterns.
pub(super) struct CompiledRule {
    pub(super) row: &'static RuleRow,
    lead: Option<PatternID>,
    secret: PatternID,
}

/// Result of a rule at an anchor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PatternVerdict {
    /// The rule found a secret.
    Secret { start: usize, end: usize },
    /// The rule found no secret.
    Nothing,
    /// Undecided: the text ends too early.
    Unknown,
}

/// Result of one pattern.
enum PatternRun {
    End(usize),
    Nothing,
    Unknown,
}

impl RedactionRules {
    /// Compiles the table.
    pub fn new() -> Result<Arc<Self>, RedactorBuildError> {
        let mut patterns = Vec::new();
        let mut rules = Vec::new();
        for row in RULE_TABLE {
            let anchors = format!("(?:{})", row.anchors.to_patterns().join("|"));
            let (lead, secret) = match row.head {
                AnchorPosition::InSecret => (None, format!("{anchors}{}", row.secret)),
                AnchorPosition::Before(rest) => {
                    (Some(format!("{anchors}{rest}")), row.secret.to_owned())
                }
            };
            let lead = lead.map(|pattern| push_pattern(&mut patterns, pattern));
            let secret = push_pattern(&mut patterns, secret);
            rules.push(CompiledRule { row, lead, secret });
        }
        let dfa = DFA::builder()
            .configure(DFA::config().starts_for_each_pattern(true).cache_capacity(DFA_CACHE_BYTES))
            // secrets are ASCII: without Unicode tables the automaton stays small
            .syntax(syntax::Config::new().unicode(false).utf8(false))
            .thompson(thompson::Config::new().utf8(false))
            .build_many(&patterns)
            .map_err(|error| RedactorBuildError::Rules(Box::new(error)))?;
        let maker = dfa.clone();
        let make: CacheFactory = Box::new(move || maker.create_cache());
        Ok(Arc::new(Self { dfa, caches: Pool::new(make), table: rules }))
    }

    /// Returns the kind of each rule.
    pub(super) fn kind_names(&self) -> impl Iterator<Item = &'static str> {
        self.table.iter().map(|rule| rule.row.kind)
    }

    pub(super) fn as_slice(&self) -> &[CompiledRule] {
        &self.table
    }

    /// Returns the cache that a scan needs to run the automaton.
    pub(super) fn acquire_cache(&self) -> PoolGuard<'_, Cache, CacheFactory> {
        self.caches.get()
    }

    /// Returns the rule that treats a value as a secret because its name suggests one.
    pub(super) fn guess_rule(&self, name: &str, value: &str) -> Option<usize> {
        let announced = RuleAnchors::Words.as_slice().iter().any(|word| name.contains(word));
        let fits = announced && value.len() >= 8 && !value.contains(char::is_whitespace);
        let index = self.table.iter().position(|rule| rule.row.kind == GUESS_KIND)?;
        (fits && check::is_quoted_secret(value.as_bytes(), &[])).then_some(index)
    }

    /// Applies a rule at an anchor. The text between `back` and the anchor belongs to the secret.
    pub(super) fn apply_rule(
        &self,
        cache: &mut Cache,
        rule: &CompiledRule,
        text: &[u8],
        at: usize,
        back: usize,
        complete: bool,
    ) -> PatternVerdict {
        let (start, body) = match rule.lead {
            None => (back, at),
            Some(lead) => match self.run_pattern(cache, lead, text, at, MAX_LEAD_BYTES, complete) {
                PatternRun::End(end) => (end, end),
                PatternRun::Nothing => return PatternVerdict::Nothing,
                PatternRun::Unknown => return PatternVerdict::Unknown,
            },
        };
        match self.run_pattern(cache, rule.secret, text, body, rule.row.limit, complete) {
            PatternRun::End(end) => {
                let end = end.saturating_sub(rule.row.trim).max(start);
                if end > start && (rule.row.check)(&text[start..end], &text[end..]) {
                    PatternVerdict::Secret { start, end }
                } else {
                    PatternVerdict::Nothing
                }
            }
            PatternRun::Nothing => PatternVerdict::Nothing,
            PatternRun::Unknown => PatternVerdict::Unknown,
        }
    }

    /// Runs one pattern from `at` until it is decided, over at most `limit` bytes.
    fn run_pattern(
        &self,
        cache: &mut Cache,
        pattern: PatternID,
        text: &[u8],
        at: usize,
        limit: usize,
        complete: bool,
    ) -> PatternRun {
        let input = Input::new(text).range(at..).anchored(Anchored::Pattern(pattern));
        let Ok(mut state) = self.dfa.start_state_forward(cache, &input) else {
            return PatternRun::Nothing;
        };
        let stop = text.len().min(at + limit);
        let mut last = None;
        for (place, byte) in text[..stop].iter().enumerate().skip(at) {
            // the automaton may clear its cache, but is never configured to give up
            let Ok(next) = self.dfa.next_state(cache, state, *byte) else { break };
            state = next;
            if state.is_match() {
                last = Some(place);
            } else if state.is_dead() {
                return last.map_or(PatternRun::Nothing, PatternRun::End);
            }
        }
        // a check may look at the byte after the secret
        if text.len() <= at + limit && !complete {
            return PatternRun::Unknown;
        }
        if self.dfa.next_eoi_state(cache, state).is_ok_and(|state| state.is_match()) {
            last = Some(stop);
        }
        last.map_or(PatternRun::Nothing, PatternRun::End)
    }
}

/// Maximum memory of the automaton's cache. A full cache is cleared.
const DFA_CACHE_BYTES: usize = 16 << 20;

/// Maximum length of the text before a secret.
const MAX_LEAD_BYTES: usize = 320;

impl fmt::Debug for RedactionRules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rules").field("rules", &self.table.len()).finish_non_exhaustive()
    }
}

fn push_pattern(patterns: &mut Vec<String>, pattern: String) -> PatternID {
    patterns.push(pattern);
    PatternID::new_unchecked(patterns.len() - 1)
}
