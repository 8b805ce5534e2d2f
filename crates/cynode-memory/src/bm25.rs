//! BM25 over the terms of [`crate::lexemes`].
//!
//! The score of a record is the sum of [`term_score`] over the terms of the query. It has no upper limit; higher is better.

use crate::numbers::ln;

/// How soon repeats of a term stop to count.
pub const K1: f64 = 1.2;

/// How much the length of a record counts.
pub const B: f64 = 0.75;

/// Returns how rare a term is: `ln(1 + (n - df + 0.5) / (df + 0.5))` of `df` among `n` records. Never negative.
pub fn idf(n: u64, df: u64) -> f64 {
    let df = df.min(n);
    ln(1.0 + (float(n - df) + 0.5) / (float(df) + 0.5))
}

/// Returns what `tf` occurrences of a term add to the score of a record of `len` lexemes, where the average is `avg_len`.
pub fn term_score(tf: u32, len: u32, avg_len: f64, idf: f64) -> f64 {
    let relative = if avg_len > 0.0 { f64::from(len) / avg_len } else { 1.0 };
    let tf = f64::from(tf);
    idf * tf * (K1 + 1.0) / (tf + K1 * (1.0 - B + B * relative))
}

/// An occurrence of a term in a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Posting {
    /// Number of the record.
    pub record: i64,
    /// How often the term occurs in it.
    pub tf: u32,
    /// How many lexemes it has.
    pub len: u32,
}

/// A term of a query with the records that have it.
#[derive(Clone, Debug, PartialEq)]
pub struct TermPostings {
    /// How rare the term is, by [`idf`].
    pub idf: f64,
    /// The records, each once.
    pub postings: Vec<Posting>,
}

/// Largest span of record numbers whose scores are summed in one array.
const MAX_DENSE_SPAN: usize = 4_000_000;

/// Returns the average length of `records` records that have `total_length` lexemes together.
pub fn average_length(records: u64, total_length: u64) -> f64 {
    if records == 0 { 0.0 } else { float(total_length) / float(records) }
}

fn float(count: u64) -> f64 {
    f64::from(u32::try_from(count).unwrap_or(u32::MAX))
}

/// Returns the `top` best records of a query with their scores, best first; of equal scores the lower number goes first. Sums are made in
/// the order of `terms`, so that they are equal to the last bit wherever they are made.
pub fn score_postings(terms: &[TermPostings], average_length: f64, top: usize) -> Vec<(i64, f64)> {
    let mut scored = sum_scores(terms, average_length);
    let order = |one: &(i64, f64), other: &(i64, f64)| {
        other.1.total_cmp(&one.1).then_with(|| one.0.cmp(&other.0))
    };
    if scored.len() > top {
        if top == 0 {
            return Vec::new();
        }
        scored.select_nth_unstable_by(top - 1, order);
        scored.truncate(top);
    }
    scored.sort_unstable_by(order);
    scored
}

fn sum_scores(terms: &[TermPostings], average_length: f64) -> Vec<(i64, f64)> {
    let numbers = || terms.iter().flat_map(|term| &term.postings).map(|posting| posting.record);
    let (Some(first), Some(last)) = (numbers().min(), numbers().max()) else { return Vec::new() };
    let span = last.checked_sub(first).and_then(|span| usize::try_from(span).ok());
    let score = |posting: &Posting, idf| term_score(posting.tf, posting.len, average_length, idf);
    match span {
        Some(span) if span < MAX_DENSE_SPAN => {
            let mut sums = vec![0.0_f64; span.saturating_add(1)];
            for term in terms {
                for posting in &term.postings {
                    let place = usize::try_from(posting.record.saturating_sub(first));
                    if let Some(sum) = place.ok().and_then(|place| sums.get_mut(place)) {
                        *sum += score(posting, term.idf);
                    }
                }
            }
            (first..).zip(sums).filter(|(_, sum)| *sum > 0.0).collect()
        }
        Some(_) | None => {
            let mut sums = std::collections::HashMap::new();
            for term in terms {
                for posting in &term.postings {
                    *sums.entry(posting.record).or_insert(0.0) += score(posting, term.idf);
                }
            }
            sums.into_iter().filter(|(_, sum)| *sum > 0.0).collect()
        }
    }
}
