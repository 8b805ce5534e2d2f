//! Embedders: from a text to a vector, offline and deterministic.
//!
//! The same text gives the same vector on every run, platform and thread. No embedder sends a request: this crate has no HTTP.

mod file;

use sha2::{Digest, Sha256};

pub use file::{EmbedderFileError, FileEmbedder, MAX_DIMENSIONS, MAX_FILE_BYTES, MAX_WORDS};

use crate::{
    features::{BUCKETS, FeatureKind, FeatureReader},
    numbers::{ln, single},
};

/// Makes vectors of texts.
pub trait Embedder: Send + Sync {
    /// Names the embedder and its version. Vectors of different ids are never compared.
    fn id(&self) -> &str;

    /// Returns the length of every vector.
    fn dimensions(&self) -> usize;

    /// Returns the vector of a text: of length one, or zero when the text has nothing that the embedder knows.
    fn embed(&self, text: &str) -> Vec<f32>;
}

/// The seed's embedder: 64 dimensions. Each lower-cased word between spaces counts in the dimension of the first byte of its SHA-256 modulo 64.
#[derive(Clone, Copy, Debug)]
pub struct Hashing64;

/// Stemmed words, pairs of words and character 4-grams, hashed into 4,096 dimensions.
#[derive(Clone, Copy, Debug)]
pub struct Hashing4096;

const SEED_DIMENSIONS: usize = 64;

impl Embedder for Hashing64 {
    fn id(&self) -> &'static str {
        "hashing64"
    }

    fn dimensions(&self) -> usize {
        SEED_DIMENSIONS
    }

    fn embed(&self, text: &str) -> Vec<f32> {
        let mut counts = vec![0.0; SEED_DIMENSIONS];
        for word in text.to_lowercase().split_whitespace() {
            let first = Sha256::digest(word.as_bytes()).first().copied().unwrap_or_default();
            if let Some(count) = counts.get_mut(usize::from(first) % SEED_DIMENSIONS) {
                *count += 1.0;
            }
        }
        unit_vector(&counts)
    }
}

impl Embedder for Hashing4096 {
    fn id(&self) -> &'static str {
        "hashing4096"
    }

    fn dimensions(&self) -> usize {
        BUCKETS
    }

    fn embed(&self, text: &str) -> Vec<f32> {
        let features = FeatureReader::new().read(text);
        let mut sums = vec![0.0; BUCKETS];
        let kinds = [
            (FeatureKind::Word, &features.words),
            (FeatureKind::Pair, &features.pairs),
            (FeatureKind::Gram, &features.grams),
        ];
        for (kind, counts) in kinds {
            for (bucket, tf) in counts {
                if let Some(sum) = sums.get_mut(usize::from(*bucket)) {
                    *sum += kind_weight(kind) * (1.0 + ln(f64::from(*tf)));
                }
            }
        }
        unit_vector(&sums)
    }
}

const fn kind_weight(kind: FeatureKind) -> f64 {
    match kind {
        FeatureKind::Word => 1.0,
        FeatureKind::Pair => 0.5,
        FeatureKind::Gram => 0.5,
    }
}

/// Divides a vector by its length. The zero vector stays.
fn unit_vector(values: &[f64]) -> Vec<f32> {
    let length = values.iter().map(|value| value * value).sum::<f64>().sqrt();
    values.iter().map(|value| if length > 0.0 { single(value / length) } else { 0.0 }).collect()
}

/// Returns the cosine of two vectors, from -1 to 1. With a zero vector, or of vectors of different lengths, it is 0.
pub fn cosine(one: &[f32], other: &[f32]) -> f64 {
    if one.len() != other.len() {
        return 0.0;
    }
    let (mut product, mut first, mut second) = (0.0, 0.0, 0.0);
    for (left, right) in one.iter().zip(other) {
        let (left, right) = (f64::from(*left), f64::from(*right));
        product += left * right;
        first += left * left;
        second += right * right;
    }
    let lengths = first.sqrt() * second.sqrt();
    if lengths > 0.0 { (product / lengths).clamp(-1.0, 1.0) } else { 0.0 }
}
