//! The fallback that needs no index: search for whole words.
//!
//! A word is a run of letters, digits, marks and `_` of any script, after normalization and in lower case: `art` does not find `start`, and `café`
//! is one word. Text of scripts without spaces is cut into characters and pairs of them, so that a word inside a sentence is found.
//!
//! The score is the number of words that query and text share, divided by the number of words of the query. Each word counts once. A record
//! that shares no word is no hit, and an empty query has no hits.

use std::collections::BTreeSet;

use uuid::Uuid;

use crate::{
    Hit, by_score_then_id,
    lexemes::{is_unspaced, normalize},
    numbers::float,
};

/// Returns the part of the query's words that the text has, from 0 to 1.
pub fn score(query: &str, text: &str) -> f64 {
    score_of(&query_words(query), text)
}

/// Returns the best `top_k` records: the best score first, and ids ascending among equal scores.
pub fn search(query: &str, records: &[(Uuid, &str)], top_k: usize) -> Vec<Hit> {
    let wanted = query_words(query);
    let mut hits: Vec<Hit> = records
        .iter()
        .map(|(id, text)| Hit { id: *id, score: score_of(&wanted, text) })
        .filter(|hit| hit.score > 0.0)
        .collect();
    hits.sort_by(by_score_then_id);
    hits.truncate(top_k);
    hits
}

fn score_of(wanted: &BTreeSet<String>, text: &str) -> f64 {
    if wanted.is_empty() {
        return 0.0;
    }
    let mut shared: BTreeSet<&str> = BTreeSet::new();
    let text = lower(text);
    for run in runs(&text) {
        if run.chars().next().is_some_and(is_unspaced) {
            let pairs =
                pairs(run).chain(run.char_indices().map(|(at, c)| &run[at..at + c.len_utf8()]));
            shared.extend(pairs.filter(|word| wanted.contains(*word)));
        } else if wanted.contains(run) {
            shared.insert(run);
        }
    }
    float(shared.len()) / float(wanted.len())
}

/// The words of a query. A run of characters of a script without spaces is its pairs, and a single character is itself.
fn query_words(query: &str) -> BTreeSet<String> {
    let query = lower(query);
    let mut words = BTreeSet::new();
    for run in runs(&query) {
        if run.chars().next().is_some_and(is_unspaced) && run.chars().nth(1).is_some() {
            words.extend(pairs(run).map(str::to_owned));
        } else {
            words.insert(run.to_owned());
        }
    }
    words
}

fn lower(text: &str) -> String {
    // Lower case can leave the normal form, and the normal form has no capital letters that lower case does not know.
    normalize(&normalize(text).to_lowercase()).into_owned()
}

/// Runs of one kind of script: words, and texts without spaces.
fn runs(text: &str) -> impl Iterator<Item = &str> {
    let is_word = |letter: char| {
        letter == '_'
            || letter.is_alphanumeric()
            || unicode_normalization::char::is_combining_mark(letter)
    };
    text.split(move |letter: char| !is_word(letter) && !is_unspaced(letter)).flat_map(|run| {
        let mut rest = run;
        std::iter::from_fn(move || {
            let unspaced = is_unspaced(rest.chars().next()?);
            let end = rest.find(|letter| is_unspaced(letter) != unspaced).unwrap_or(rest.len());
            let (first, remaining) = rest.split_at(end);
            rest = remaining;
            Some(first)
        })
    })
}

fn pairs(run: &str) -> impl Iterator<Item = &str> {
    let ends = run.char_indices().map(|(at, letter)| at + letter.len_utf8()).skip(1);
    run.char_indices().zip(ends).map(|((start, _), end)| &run[start..end])
}
