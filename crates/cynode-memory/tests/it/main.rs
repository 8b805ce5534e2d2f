//! Retrieval: lexemes, scores, embedders, backends and chunks.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod backends;
mod chunking;
mod embedders;
mod lexemes;
mod scores;
mod whole_words;
