//! What every test needs: chance that repeats itself, and a redactor.

use std::sync::{Arc, LazyLock};

use cynode_models::redact::{FingerprintKey, Known, Redactor, Rules};

/// The rules, compiled once for all tests of a process.
pub(crate) static RULES: LazyLock<Arc<Rules>> = LazyLock::new(|| Rules::new().unwrap());

/// A redactor that knows these secrets.
pub(crate) fn redactor(known: &[(&str, &str)]) -> Redactor {
    let known = known
        .iter()
        .map(|(name, value)| Known { name: (*name).to_owned(), value: (*value).into() });
    Redactor::new(RULES.clone(), FingerprintKey::new([7; 32]), known).unwrap()
}

/// Numbers that are the same for the same seed.
pub(crate) struct Chance(u64);

/// Letters that secrets are made of.
pub(crate) const LOWER: &str = "abcdefghijklmnopqrstuvwxyz0123456789";
pub(crate) const UPPER: &str = "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567";
pub(crate) const HEX: &str = "0123456789abcdef";
pub(crate) const ALNUM: &str = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";
pub(crate) const URL64: &str = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
pub(crate) const BASE64: &str = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
pub(crate) const DIGITS: &str = "0123456789";

impl Chance {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// A number below `end`.
    pub(crate) fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^= mixed >> 31;
        usize::try_from(mixed % u64::try_from(end).unwrap()).unwrap()
    }

    /// Letters from a set.
    pub(crate) fn letters(&mut self, set: &str, count: usize) -> String {
        (0..count).map(|_| char::from(set.as_bytes()[self.below(set.len())])).collect()
    }

    /// One of some.
    pub(crate) fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.below(from.len())]
    }
}

/// Every piece of 12 letters of a secret that is still in a text.
pub(crate) fn survivors<'a>(secret: &'a str, text: &str) -> Vec<&'a str> {
    let pieces = (0..secret.len()).filter_map(|at| secret.get(at..at + 12));
    pieces.filter(|piece| text.contains(piece)).collect()
}
