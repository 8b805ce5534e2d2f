//! Finds words in text, splits identifiers and stems.

use std::{borrow::Cow, mem};

use unicode_normalization::{UnicodeNormalization, char::is_combining_mark};

use super::{MAX_LEXEME_BYTES, stem::stem_in_place};

/// More changes between letters and digits than this in one word: it is a digest or an id, and stays whole.
const MAX_DIGIT_CHANGES: usize = 3;

/// Length of the longest of [`STOP_WORDS`].
const MAX_STOP_WORD_BYTES: usize = 7;

/// Words that say nothing about a text. Sorted.
const STOP_WORDS: [&str; 88] = [
    "a", "about", "after", "all", "also", "am", "an", "and", "any", "are", "as", "at", "be",
    "because", "been", "before", "being", "both", "but", "by", "can", "could", "did", "do", "does",
    "doing", "don", "during", "each", "for", "from", "had", "has", "have", "having", "he", "her",
    "here", "his", "how", "i", "if", "in", "into", "is", "it", "its", "just", "me", "more", "most",
    "my", "no", "nor", "not", "of", "on", "or", "our", "should", "so", "some", "such", "t", "than",
    "that", "the", "their", "them", "then", "there", "these", "they", "this", "those", "to", "too",
    "very", "was", "we", "were", "what", "when", "which", "will", "with", "would", "you",
];

/// What a token is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TokenKind {
    /// A word, or a part of an identifier.
    Word,
    /// An identifier that has parts.
    Whole,
    /// A character or two of a script without spaces.
    Characters,
}

/// One token of a text.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Token<'a> {
    pub(crate) kind: TokenKind,
    /// As it is written, in lower case.
    pub(crate) word: &'a str,
    /// As it is indexed.
    pub(crate) lexeme: &'a str,
}

/// Unicode form NFKC: one form for characters that only look different.
pub(crate) fn normalize(text: &str) -> Cow<'_, str> {
    if text.is_ascii() { Cow::Borrowed(text) } else { Cow::Owned(text.nfkc().collect()) }
}

/// Calls `sink` with every token of the text, in order.
pub(crate) fn scan(text: &str, sink: impl FnMut(Token<'_>)) {
    let text = normalize(text);
    let mut scanner =
        Scanner { sink, word: String::new(), lexeme: String::new(), whole: String::new() };
    let mut start = 0;
    let mut current = Script::Separator;
    for (at, letter) in text.char_indices() {
        let script = Script::of(letter);
        if script != current {
            scanner.run(current, text.get(start..at).unwrap_or_default());
            (start, current) = (at, script);
        }
    }
    scanner.run(current, text.get(start..).unwrap_or_default());
}

/// What a character is to the scanner.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Script {
    Separator,
    Spaced,
    Unspaced,
}

impl Script {
    fn of(letter: char) -> Self {
        if letter.is_ascii() {
            return if letter.is_ascii_alphanumeric() || letter == '_' {
                Self::Spaced
            } else {
                Self::Separator
            };
        }
        if is_unspaced(letter) {
            Self::Unspaced
        } else if letter.is_alphanumeric() || is_combining_mark(letter) {
            Self::Spaced
        } else {
            Self::Separator
        }
    }
}

/// Whether the script of a letter has no spaces between words: Chinese, Japanese, Korean (long compounds), Thai, Lao, Khmer, Burmese.
pub(crate) const fn is_unspaced(letter: char) -> bool {
    matches!(
        letter,
        '\u{0E00}'..='\u{0E4E}'
        | '\u{0E80}'..='\u{0ECF}'
        | '\u{1000}'..='\u{103F}'
        | '\u{1100}'..='\u{11FF}'
        | '\u{1780}'..='\u{17D3}'
        | '\u{3005}'..='\u{3007}'
        | '\u{3040}'..='\u{30FF}'
        | '\u{3130}'..='\u{318F}'
        | '\u{31F0}'..='\u{31FF}'
        | '\u{3400}'..='\u{4DBF}'
        | '\u{4E00}'..='\u{9FFF}'
        | '\u{AC00}'..='\u{D7A3}'
        | '\u{F900}'..='\u{FAFF}'
        | '\u{20000}'..='\u{3FFFF}'
    )
}

/// What part of an identifier a character belongs to.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Class {
    Lower,
    Upper,
    Digit,
    Underscore,
}

impl Class {
    fn of(letter: char) -> Self {
        if letter == '_' {
            Self::Underscore
        } else if letter.is_numeric() {
            Self::Digit
        } else if letter.is_uppercase() {
            Self::Upper
        } else {
            Self::Lower
        }
    }
}

struct Scanner<S> {
    sink: S,
    word: String,
    lexeme: String,
    whole: String,
}

impl<S: FnMut(Token<'_>)> Scanner<S> {
    fn run(&mut self, script: Script, run: &str) {
        match script {
            Script::Separator => {}
            Script::Spaced => self.identifier(run),
            Script::Unspaced => self.characters(run),
        }
    }

    /// Gives the parts of an identifier and, if there are several, the whole.
    fn identifier(&mut self, run: &str) {
        if run.bytes().all(|byte| byte.is_ascii_lowercase()) {
            self.part(run);
            return;
        }
        self.whole.clear();
        let mut parts = 0;
        for segment in run.split('_').filter(|segment| !segment.is_empty()) {
            let mut start = 0;
            if is_digest(segment) {
                parts += self.part(segment);
                continue;
            }
            for end in boundaries(segment) {
                parts += self.part(segment.get(start..end).unwrap_or_default());
                start = end;
            }
        }
        if parts > 1 {
            let mut whole = mem::take(&mut self.whole);
            cut_to(&mut whole, MAX_LEXEME_BYTES);
            (self.sink)(Token { kind: TokenKind::Whole, word: &whole, lexeme: &whole });
            self.whole = whole;
        }
    }

    fn part(&mut self, part: &str) -> usize {
        self.word.clear();
        if part.is_ascii() {
            self.word.push_str(part);
            self.word.make_ascii_lowercase();
        } else {
            self.word.extend(part.chars().flat_map(char::to_lowercase));
        }
        self.whole.push_str(&self.word);
        cut_to(&mut self.word, MAX_LEXEME_BYTES);
        if !self.word.is_empty() && !is_stop_word(&self.word) {
            self.lexeme.clear();
            self.lexeme.push_str(&self.word);
            stem_in_place(&mut self.lexeme);
            (self.sink)(Token { kind: TokenKind::Word, word: &self.word, lexeme: &self.lexeme });
        }
        1
    }

    /// Gives each character and each pair of neighbours.
    fn characters(&mut self, run: &str) {
        let mut previous: Option<usize> = None;
        for (at, letter) in run.char_indices() {
            let end = at + letter.len_utf8();
            for start in [previous, Some(at)].into_iter().flatten() {
                let word = run.get(start..end).unwrap_or_default();
                (self.sink)(Token { kind: TokenKind::Characters, word, lexeme: word });
            }
            previous = Some(at);
        }
    }
}

fn is_stop_word(word: &str) -> bool {
    stop_key(word.as_bytes()).is_some_and(|key| STOP_KEYS.binary_search(&key).is_ok())
}

/// [`STOP_WORDS`] as numbers, which are compared faster.
const STOP_KEYS: [u64; STOP_WORDS.len()] = {
    let mut keys = [0; STOP_WORDS.len()];
    let mut at = 0;
    while at < keys.len() {
        if let Some(key) = stop_key(STOP_WORDS[at].as_bytes()) {
            keys[at] = key;
        }
        at += 1;
    }
    keys
};

/// The bytes of a short word as a number. Numbers have the order of the words.
const fn stop_key(word: &[u8]) -> Option<u64> {
    if word.len() > MAX_STOP_WORD_BYTES {
        return None;
    }
    let mut bytes = [0; 8];
    let mut at = 0;
    while at < word.len() {
        bytes[at] = word[at];
        at += 1;
    }
    Some(u64::from_be_bytes(bytes))
}

/// Whether letters and digits alternate so often that the word is no name.
fn is_digest(segment: &str) -> bool {
    let mut changes = 0;
    let mut digit = None;
    for letter in segment.chars() {
        let now = Some(letter.is_numeric());
        changes += usize::from(digit.is_some() && digit != now);
        digit = now;
    }
    changes > MAX_DIGIT_CHANGES
}

/// The ends of the parts of a segment without underscores.
fn boundaries(segment: &str) -> impl Iterator<Item = usize> {
    let mut letters = segment.char_indices().peekable();
    let mut previous: Option<Class> = None;
    std::iter::from_fn(move || {
        for (at, letter) in letters.by_ref() {
            let class = if !letter.is_ascii() && is_combining_mark(letter) {
                previous.unwrap_or(Class::Lower)
            } else {
                Class::of(letter)
            };
            let before = previous.replace(class);
            let next = segment
                .get(at + letter.len_utf8()..)
                .and_then(|rest| rest.chars().next())
                .map(Class::of);
            let splits = match (before, class) {
                (Some(Class::Digit), Class::Lower | Class::Upper)
                | (Some(Class::Lower | Class::Upper), Class::Digit) => true,
                (Some(Class::Lower), Class::Upper) => true,
                (Some(Class::Upper), Class::Upper) => next == Some(Class::Lower),
                _ => false,
            };
            if splits {
                return Some(at);
            }
        }
        None
    })
    .chain([segment.len()])
}

/// Cuts at the last character boundary that is not behind `max` bytes.
fn cut_to(word: &mut String, max: usize) {
    while word.len() > max {
        word.pop();
    }
}
