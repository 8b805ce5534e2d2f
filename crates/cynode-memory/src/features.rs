//! Features of a text, hashed into 4,096 buckets: stemmed words, pairs of neighbouring words, and the 4-grams of the characters of words.

use crate::lexemes::{TITLE_WEIGHT, TokenKind, scan};

/// Number of buckets of each kind of feature.
pub(crate) const BUCKETS: usize = 4096;

/// Shift that leaves the number of a bucket of a 64-bit hash.
const BUCKET_SHIFT: u32 = 52;

/// Length of the character features.
const GRAM_LENGTH: usize = 4;

/// Bits of a character in a gram of four.
const LETTER_BITS: u32 = 16;

/// See [`LETTER_BITS`].
const LETTER_MASK: u64 = 0xffff;

/// What stands before and behind a word in its character features.
const EDGE: char = '_';

/// Which kind a feature is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FeatureKind {
    Word,
    Pair,
    Gram,
}

/// Calls `sink` with the kind and the bucket of every feature of the text.
pub(crate) fn for_each_feature(text: &str, mut sink: impl FnMut(FeatureKind, u16)) {
    let mut previous = None;
    scan(text, |token| {
        let hash = hash_bytes(token.lexeme.as_bytes());
        sink(FeatureKind::Word, bucket(hash));
        if token.kind != TokenKind::Word {
            return;
        }
        if let Some(before) = previous.replace(hash) {
            sink(FeatureKind::Pair, bucket(combine(before, hash)));
        }
        let mut gram = u64::from(u32::from(EDGE));
        let mut length = 1;
        for letter in token.word.chars().chain([EDGE]) {
            gram = (gram << LETTER_BITS) | (u64::from(u32::from(letter)) & LETTER_MASK);
            length += 1;
            if length >= GRAM_LENGTH {
                sink(FeatureKind::Gram, bucket(gram));
            }
        }
        if length < GRAM_LENGTH {
            sink(FeatureKind::Gram, bucket(gram));
        }
    });
}

const SEED: u64 = 0xcbf2_9ce4_8422_2325;
const MULTIPLIER: u64 = 0x9e37_79b9_7f4a_7c15;

/// FNV-1a.
fn hash_bytes(bytes: &[u8]) -> u64 {
    bytes.iter().fold(SEED, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

const fn combine(hash: u64, value: u64) -> u64 {
    (hash.rotate_left(23) ^ value).wrapping_mul(MULTIPLIER)
}

/// The bucket of a hash: its highest bits, after all bits were mixed.
fn bucket(hash: u64) -> u16 {
    let mixed = (hash ^ (hash >> 29)).wrapping_mul(MULTIPLIER);
    u16::try_from(mixed >> BUCKET_SHIFT).unwrap_or_default()
}

/// How often a text has the features of one kind. Cleared in the time of what is in it.
pub(crate) struct FeatureCounter {
    counts: Vec<u16>,
    touched: Vec<u16>,
}

impl FeatureCounter {
    pub(crate) fn new() -> Self {
        Self { counts: vec![0; BUCKETS], touched: Vec::new() }
    }

    pub(crate) fn add(&mut self, bucket: u16, weight: u16) {
        if let Some(count) = self.counts.get_mut(usize::from(bucket)) {
            if *count == 0 {
                self.touched.push(bucket);
            }
            *count = count.saturating_add(weight);
        }
    }

    /// Takes the buckets with their counts, in the order of their first use.
    pub(crate) fn take(&mut self) -> Vec<(u16, u16)> {
        let counts = &mut self.counts;
        self.touched
            .drain(..)
            .map(|bucket| {
                (
                    bucket,
                    counts.get_mut(usize::from(bucket)).map(std::mem::take).unwrap_or_default(),
                )
            })
            .collect()
    }
}

/// The features of one record or query.
pub(crate) struct Features {
    pub(crate) words: Vec<(u16, u16)>,
    pub(crate) pairs: Vec<(u16, u16)>,
    pub(crate) grams: Vec<(u16, u16)>,
}

/// Counts the features of texts.
pub(crate) struct FeatureReader {
    words: FeatureCounter,
    pairs: FeatureCounter,
    grams: FeatureCounter,
}

impl FeatureReader {
    pub(crate) fn new() -> Self {
        Self {
            words: FeatureCounter::new(),
            pairs: FeatureCounter::new(),
            grams: FeatureCounter::new(),
        }
    }

    /// Counts the features of a text.
    pub(crate) fn read(&mut self, text: &str) -> Features {
        self.read_record("", text)
    }

    /// Counts the features of a title, several times each, and of a text.
    pub(crate) fn read_record(&mut self, title: &str, text: &str) -> Features {
        self.add(title, u16::try_from(TITLE_WEIGHT).unwrap_or(1));
        self.add(text, 1);
        Features { words: self.words.take(), pairs: self.pairs.take(), grams: self.grams.take() }
    }

    fn add(&mut self, text: &str, weight: u16) {
        for_each_feature(text, |kind, bucket| {
            match kind {
                FeatureKind::Word => &mut self.words,
                FeatureKind::Pair => &mut self.pairs,
                FeatureKind::Gram => &mut self.grams,
            }
            .add(bucket, weight);
        });
    }
}
