//! The rules, compiled.

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
    BuildError, check,
    kinds::{Anchors, GUESS, Head, Row, TABLE},
};

/// The rules for kinds of secrets. Compile them once and share them.
pub struct Rules {
    dfa: DFA,
    caches: Pool<Cache, MakeCache>,
    table: Vec<Rule>,
}

pub(super) type MakeCache =
    Box<dyn Fn() -> Cache + Send + Sync + std::panic::UnwindSafe + std::panic::RefUnwindSafe>;

/// A row of the table and its automata.
pub(super) struct Rule {
    pub(super) row: &'static Row,
    lead: Option<PatternID>,
    secret: PatternID,
}

/// What is known about a rule at an anchor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The secret is here.
    Secret { start: usize, end: usize },
    /// There is none.
    Nothing,
    /// The text ends too early to know.
    Unknown,
}

/// How far an automaton came.
enum Run {
    End(usize),
    Nothing,
    Unknown,
}

impl Rules {
    /// Compiles the table.
    pub fn new() -> Result<Arc<Self>, BuildError> {
        let mut patterns = Vec::new();
        let mut rules = Vec::new();
        for row in TABLE {
            let anchors = format!("(?:{})", row.anchors.map_escaped().join("|"));
            let (lead, secret) = match row.head {
                Head::InSecret => (None, format!("{anchors}{}", row.secret)),
                Head::Before(rest) => (Some(format!("{anchors}{rest}")), row.secret.to_owned()),
            };
            let lead = lead.map(|pattern| push(&mut patterns, pattern));
            let secret = push(&mut patterns, secret);
            rules.push(Rule { row, lead, secret });
        }
        let dfa = DFA::builder()
            .configure(DFA::config().starts_for_each_pattern(true).cache_capacity(CACHE))
            // secrets are ASCII: without Unicode's tables the automaton stays small
            .syntax(syntax::Config::new().unicode(false).utf8(false))
            .thompson(thompson::Config::new().utf8(false))
            .build_many(&patterns)
            .map_err(|error| BuildError::Rules(Box::new(error)))?;
        let maker = dfa.clone();
        let make: MakeCache = Box::new(move || maker.create_cache());
        Ok(Arc::new(Self { dfa, caches: Pool::new(make), table: rules }))
    }

    /// The name of each rule.
    pub(super) fn kinds(&self) -> impl Iterator<Item = &'static str> {
        self.table.iter().map(|rule| rule.row.kind)
    }

    pub(super) fn all(&self) -> &[Rule] {
        &self.table
    }

    /// What a scan needs to run the automata.
    pub(super) fn cache(&self) -> PoolGuard<'_, Cache, MakeCache> {
        self.caches.get()
    }

    /// The rule by which a value is a secret because its name announces one.
    pub(super) fn guess(&self, name: &str, value: &str) -> Option<usize> {
        let announced = Anchors::Words.list().iter().any(|word| name.contains(word));
        let fits = announced && value.len() >= 8 && !value.contains(char::is_whitespace);
        let index = self.table.iter().position(|rule| rule.row.kind == GUESS)?;
        (fits && check::quoted(value.as_bytes(), &[])).then_some(index)
    }

    /// Tries a rule at an anchor. What is between `back` and the anchor belongs to the secret.
    pub(super) fn apply(
        &self,
        cache: &mut Cache,
        rule: &Rule,
        text: &[u8],
        at: usize,
        back: usize,
        complete: bool,
    ) -> Verdict {
        let (start, body) = match rule.lead {
            None => (back, at),
            Some(lead) => match self.run(cache, lead, text, at, LEAD, complete) {
                Run::End(end) => (end, end),
                Run::Nothing => return Verdict::Nothing,
                Run::Unknown => return Verdict::Unknown,
            },
        };
        match self.run(cache, rule.secret, text, body, rule.row.limit, complete) {
            Run::End(end) => {
                let end = end.saturating_sub(rule.row.trim).max(start);
                if end > start && (rule.row.check)(&text[start..end], &text[end..]) {
                    Verdict::Secret { start, end }
                } else {
                    Verdict::Nothing
                }
            }
            Run::Nothing => Verdict::Nothing,
            Run::Unknown => Verdict::Unknown,
        }
    }

    /// Runs one pattern from `at` until it is decided, at most over `limit` bytes.
    fn run(
        &self,
        cache: &mut Cache,
        pattern: PatternID,
        text: &[u8],
        at: usize,
        limit: usize,
        complete: bool,
    ) -> Run {
        let input = Input::new(text).range(at..).anchored(Anchored::Pattern(pattern));
        let Ok(mut state) = self.dfa.start_state_forward(cache, &input) else {
            return Run::Nothing;
        };
        let stop = text.len().min(at + limit);
        let mut last = None;
        for (place, byte) in text[..stop].iter().enumerate().skip(at) {
            // the automaton may clear its cache, but is never told to give up
            let Ok(next) = self.dfa.next_state(cache, state, *byte) else { break };
            state = next;
            if state.is_match() {
                last = Some(place);
            } else if state.is_dead() {
                return last.map_or(Run::Nothing, Run::End);
            }
        }
        // a check may look at the byte after the secret
        if text.len() <= at + limit && !complete {
            return Run::Unknown;
        }
        if self.dfa.next_eoi_state(cache, state).is_ok_and(|state| state.is_match()) {
            last = Some(stop);
        }
        last.map_or(Run::Nothing, Run::End)
    }
}

/// How much memory the automaton of a scan may take before it forgets and starts again.
const CACHE: usize = 16 << 20;

/// What stands before a secret is not longer than this.
const LEAD: usize = 320;

impl fmt::Debug for Rules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rules").field("rules", &self.table.len()).finish_non_exhaustive()
    }
}

fn push(patterns: &mut Vec<String>, pattern: String) -> PatternID {
    patterns.push(pattern);
    PatternID::new_unchecked(patterns.len() - 1)
}
