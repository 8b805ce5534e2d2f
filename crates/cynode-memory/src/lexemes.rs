//! Lexemes: the words under which a text is found.
//!
//! Text is normalized (NFKC) and lower case. Words are runs of letters, digits, marks and `_` of any script.
//!
//! - Identifiers are split at `_`, at changes of case and between letters and digits, and are also kept whole without `_`:
//!   `maxHTTPRetries_2` gives `max`, `http`, `retri`, `2` and `maxhttpretries2`. `max_retries` and `maxRetries` are therefore equal.
//! - English endings are removed ([`stem()`]), and English words that say nothing about a text are left out.
//! - Chinese, Japanese, Korean, Thai, Lao, Khmer and Burmese text, which is written without spaces or with long compounds, gives its pairs of
//!   characters and its single characters.

mod scan;
mod stem;

use std::collections::BTreeMap;

pub(crate) use scan::{TokenKind, is_unspaced, normalize, scan};
pub use stem::stem;

/// Version of the rules. Records that were indexed under another version must be indexed again.
pub const VERSION: i16 = 1;

/// Maximum length of a lexeme in bytes. A longer word is cut.
pub const MAX_LEXEME_BYTES: usize = 64;

/// How many times a word of the title counts in [`record_term_counts`].
pub const TITLE_WEIGHT: u32 = 4;

/// Returns the lexemes of a text in their order, with repeats.
pub fn lexemes(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    scan(text, |token| found.push(token.lexeme.to_owned()));
    found
}

/// Counts the lexemes of a text.
pub fn term_counts(text: &str) -> BTreeMap<String, u32> {
    let mut counts = BTreeMap::new();
    add_counts(&mut counts, text, 1);
    counts
}

/// Counts the lexemes of a record for its index. Words of the title count [`TITLE_WEIGHT`] times.
pub fn record_term_counts(title: &str, text: &str) -> BTreeMap<String, u32> {
    let mut counts = BTreeMap::new();
    add_counts(&mut counts, title, TITLE_WEIGHT);
    add_counts(&mut counts, text, 1);
    counts
}

fn add_counts(counts: &mut BTreeMap<String, u32>, text: &str, weight: u32) {
    scan(text, |token| match counts.get_mut(token.lexeme) {
        Some(count) => *count = count.saturating_add(weight),
        None => {
            counts.insert(token.lexeme.to_owned(), weight);
        }
    });
}
