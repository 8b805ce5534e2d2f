//! Retrieval: how records of memory are cut into chunks, indexed by words, scored and ranked.
//!
//! **Invariant**: pure, and total over any text. The one function that reads a file is [`embedders::FileEmbedder::load`]. There is no HTTP in this
//! crate, so a remote embedding service cannot be called.
//!
//! # Scores
//!
//! - **Range**: a score is a number from 0 to 1, both included. It is never NaN.
//! - **Direction**: higher is better.
//! - **Tie rule**: hits with equal scores are ordered by id, lowest first.
//! - **No match, no hit**: a record that shares nothing with the query is not returned.
//! - **Determinism**: the same query over the same records gives the same scores, bit by bit, on every run, platform and thread.
//!   Hashes are fixed functions over integers, sums have a fixed order, and the logarithm is this crate's own.
//!
//! | search | score |
//! |---|---|
//! | [`rescore::rescore`], the default | weighted sum of the BM25 score relative to the best candidate and of the cosines of hashed features of title and text |
//! | [`backend::LocalBackend`] | `1 / (1 + d)` of the Euclidean distance `d` between vectors of length one |
//! | [`whole_words::search`], the fallback | shared words / words of the query |
//!
//! BM25 scores ([`bm25`]) are sums without an upper limit. They rank candidates and are not shown to anyone.

pub mod backend;
pub mod bm25;
pub mod chunks;
pub mod embedders;
mod features;
pub mod lexemes;
mod numbers;
pub mod rescore;
pub mod whole_words;

use std::cmp::Ordering;

use uuid::Uuid;

/// A record that a search returns, with its score.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Hit {
    /// The record.
    pub id: Uuid,
    /// From 0 to 1, higher is better.
    pub score: f64,
}

/// Orders hits: the best score first, and ids ascending among equal scores.
pub(crate) fn by_score_then_id(one: &Hit, other: &Hit) -> Ordering {
    other.score.total_cmp(&one.score).then_with(|| one.id.cmp(&other.id))
}
