//! Rescoring: orders the candidates that BM25 found.
//!
//! The score of a candidate is from 0 to 1, higher is better, and candidates with equal scores are ordered by id, lowest first. It is a weighted
//! sum ([`Weights`]) of parts that are each from 0 to 1:
//!
//! - its BM25 score divided by the best BM25 score of the candidates,
//! - the cosine of the hashed TF-IDF vectors of the character 4-grams of query and title,
//! - the same of query and the whole record, which finds other forms of a word and parts of names,
//! - the same of stemmed words,
//! - the share of the query's pairs of neighbouring words that the record has, where rare ones count more,
//! - with an embedder: the cosine of its vectors.
//!
//! How rare a feature is, is counted among the candidates. So the candidates of one project say nothing about another.

use uuid::Uuid;

use crate::{
    Hit, by_score_then_id,
    embedders::{Embedder, cosine},
    features::{BUCKETS, FeatureReader, Features},
    numbers::{float, ln},
};

/// Maximum number of candidates that a search rescores.
pub const MAX_CANDIDATES: usize = 100;

/// A record that may match.
#[derive(Clone, Copy, Debug)]
pub struct Candidate<'a> {
    /// The record.
    pub id: Uuid,
    /// Its title: a path of headings, or a path and a name.
    pub title: &'a str,
    /// Its text.
    pub text: &'a str,
    /// Its BM25 score.
    pub bm25: f64,
}

/// A candidate with its score.
pub type Scored = Hit;

/// What each part counts. The parts that are used are divided by their sum.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Weights {
    /// BM25, relative to the best candidate.
    pub bm25: f64,
    /// Cosine of the character 4-grams of the title.
    pub title: f64,
    /// Cosine of stemmed words.
    pub words: f64,
    /// Pairs of neighbouring words.
    pub pairs: f64,
    /// Cosine of character 4-grams.
    pub grams: f64,
    /// Cosine of the embedder, if there is one.
    pub embedder: f64,
}

/// The weights of [`rescore`], chosen on one half of the evaluation set.
pub const WEIGHTS: Weights =
    Weights { bm25: 0.3, title: 0.3, words: 0.1, pairs: 0.1, grams: 0.2, embedder: 0.15 };

/// Scores candidates, best first. Candidates behind [`MAX_CANDIDATES`] are left out, so the caller gives the best first.
pub fn rescore(
    query: &str,
    candidates: &[Candidate<'_>],
    embedder: Option<&dyn Embedder>,
) -> Vec<Scored> {
    rescore_with(&WEIGHTS, query, candidates.get(..MAX_CANDIDATES).unwrap_or(candidates), embedder)
}

/// Scores candidates with other weights, all of them.
pub fn rescore_with(
    weights: &Weights,
    query: &str,
    candidates: &[Candidate<'_>],
    embedder: Option<&dyn Embedder>,
) -> Vec<Scored> {
    let mut reader = FeatureReader::new();
    let wanted = reader.read(query);
    let features: Vec<Features> =
        candidates.iter().map(|it| reader.read_record(it.title, it.text)).collect();
    let titles: Vec<Features> = candidates.iter().map(|it| reader.read(it.title)).collect();
    let words = Space::new(&wanted.words, features.iter().map(|it| &it.words));
    let pairs = Space::new(&wanted.pairs, features.iter().map(|it| &it.pairs));
    let grams = Space::new(&wanted.grams, features.iter().map(|it| &it.grams));
    let best = candidates.iter().map(|it| it.bm25).filter(|it| it.is_finite()).fold(0.0, f64::max);
    let vector = embedder.map(|it| it.embed(query));
    let mut scored: Vec<Scored> = candidates
        .iter()
        .zip(features.iter().zip(&titles))
        .map(|(candidate, (features, title))| {
            let bm25 = if best > 0.0 && candidate.bm25 > 0.0 {
                (candidate.bm25 / best).min(1.0)
            } else {
                0.0
            };
            let mut sum = weights.bm25 * bm25
                + weights.title * grams.cosine(&title.grams)
                + weights.words * words.cosine(&features.words)
                + weights.pairs * pairs.coverage(&features.pairs)
                + weights.grams * grams.cosine(&features.grams);
            let mut total =
                weights.bm25 + weights.title + weights.words + weights.pairs + weights.grams;
            if let (Some(embedder), Some(vector)) = (embedder, &vector) {
                let text = format!("{} {}", candidate.title, candidate.text);
                sum += weights.embedder * cosine(vector, &embedder.embed(&text)).max(0.0);
                total += weights.embedder;
            }
            Hit { id: candidate.id, score: (sum / total).clamp(0.0, 1.0) }
        })
        .collect();
    scored.sort_by(by_score_then_id);
    scored
}

/// More occurrences than this count as this many.
const MAX_GROWTH: u32 = 256;

/// Features of one kind: how rare they are among the candidates, and the weights of the query's.
struct Space {
    idf: Vec<f64>,
    /// What a number of occurrences counts.
    growth: Vec<f64>,
    /// The weight of each bucket in the query's vector.
    query: Vec<f64>,
    query_length: f64,
    /// The sum of the rarities of the query's buckets.
    query_rarity: f64,
}

impl Space {
    fn new<'a>(
        query: &[(u16, u16)],
        candidates: impl Iterator<Item = &'a Vec<(u16, u16)>>,
    ) -> Self {
        let mut df = vec![0_usize; BUCKETS];
        let mut count = 0;
        for candidate in candidates {
            count += 1;
            for (bucket, _) in candidate {
                if let Some(df) = df.get_mut(usize::from(*bucket)) {
                    *df += 1;
                }
            }
        }
        let rarities: Vec<f64> =
            (0..=count).map(|df| ln(1.0 + (float(count) + 1.0) / (float(df) + 0.5))).collect();
        let idf = df.iter().map(|df| rarities.get(*df).copied().unwrap_or_default()).collect();
        let growth = (0..MAX_GROWTH).map(|tf| 1.0 + ln(f64::from(tf))).collect();
        let mut space =
            Self { idf, growth, query: vec![0.0; BUCKETS], query_length: 0.0, query_rarity: 0.0 };
        let mut squares = 0.0;
        for (bucket, tf) in query {
            let weight = space.weight(*bucket, *tf);
            squares += weight * weight;
            space.query_rarity += space.rarity(*bucket);
            if let Some(place) = space.query.get_mut(usize::from(*bucket)) {
                *place = weight;
            }
        }
        space.query_length = squares.sqrt();
        space
    }

    fn rarity(&self, bucket: u16) -> f64 {
        self.idf.get(usize::from(bucket)).copied().unwrap_or_default()
    }

    fn weight(&self, bucket: u16, tf: u16) -> f64 {
        let growth = self.growth.get(usize::from(tf)).or(self.growth.last());
        self.rarity(bucket) * growth.copied().unwrap_or_default()
    }

    fn query_weight(&self, bucket: u16) -> f64 {
        self.query.get(usize::from(bucket)).copied().unwrap_or_default()
    }

    /// The cosine of the query's vector and a candidate's.
    fn cosine(&self, candidate: &[(u16, u16)]) -> f64 {
        let (mut product, mut squares) = (0.0, 0.0);
        for (bucket, tf) in candidate {
            let weight = self.weight(*bucket, *tf);
            product += weight * self.query_weight(*bucket);
            squares += weight * weight;
        }
        let lengths = self.query_length * squares.sqrt();
        if lengths > 0.0 { product / lengths } else { 0.0 }
    }

    /// The share of the query's features that a candidate has, weighted by rarity.
    fn coverage(&self, candidate: &[(u16, u16)]) -> f64 {
        let shared = candidate.iter().filter(|(bucket, _)| self.query_weight(*bucket) > 0.0);
        let sum: f64 = shared.map(|(bucket, _)| self.rarity(*bucket)).sum();
        if self.query_rarity > 0.0 { sum / self.query_rarity } else { 0.0 }
    }
}
