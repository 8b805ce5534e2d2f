//! A light English stemmer: plurals, `-ing`, `-ed` and a few endings that make nouns and verbs of each other.

/// Fewest letters that the endings of the last step leave.
const MIN_STEM: usize = 4;

/// The last letters of words that have an ending.
const ENDS: &[u8] = b"degnrsty";

/// Removes English endings, so that `caches`, `caching` and `cached` are one lexeme. A word that is not of lower case ASCII letters stays as it is.
pub fn stem(word: &str) -> String {
    let mut stemmed = word.to_owned();
    stem_in_place(&mut stemmed);
    stemmed
}

/// See [`stem`].
pub(super) fn stem_in_place(word: &mut String) {
    let ends = word.bytes().next_back().is_some_and(|last| ENDS.contains(&last));
    if !ends || word.len() <= 3 || !word.bytes().all(|byte| byte.is_ascii_lowercase()) {
        return;
    }
    remove_plural(word);
    if !remove_participle(word) {
        while remove_derived(word) {}
    }
    if word.len() > MIN_STEM - 1 && word.ends_with('e') {
        word.pop();
    }
    if word.len() > MIN_STEM - 1 && word.ends_with('y') {
        word.pop();
        word.push('i');
    }
}

fn remove_plural(word: &mut String) {
    let count = match word.as_bytes() {
        [.., b's', b's', b'e', b's']
        | [.., b'x' | b'z', b'e', b's']
        | [.., b'c' | b's', b'h', b'e', b's']
        | [_, _, .., b'i', b'e', b's'] => 2,
        [.., b's' | b'u' | b'i', b's'] => 0,
        [.., b's'] => 1,
        _ => 0,
    };
    cut(word, count);
}

/// Removes `-ing` or `-ed` behind at least three letters with a vowel, and one of two equal consonants or `-at` before it.
fn remove_participle(word: &mut String) -> bool {
    let (rest, count) = match word.as_bytes() {
        [rest @ .., b'i', b'n', b'g'] => (rest, 3),
        [rest @ .., b'e', b'd'] => (rest, 2),
        _ => return false,
    };
    if rest.len() < 3 || rest.ends_with(b"e") || !rest.iter().any(|letter| is_vowel(*letter)) {
        return false;
    }
    let more = match rest {
        [stem @ .., before, b'a', b't'] if stem.len() >= MIN_STEM - 1 && !is_vowel(*before) => 2,
        [.., before, last]
            if before == last && !is_vowel(*last) && !matches!(last, b'l' | b's' | b'z') =>
        {
            1
        }
        _ => 0,
    };
    cut(word, count + more);
    true
}

/// Removes one ending such as `-ation` or `-able` behind at least [`MIN_STEM`] letters.
fn remove_derived(word: &mut String) -> bool {
    let (rest, count) = match word.as_bytes() {
        [rest @ .., b'i', b'z', b'a', b't', b'i', b'o', b'n'] if rest.len() >= MIN_STEM => {
            (rest, 7)
        }
        [rest @ .., b'a', b't', b'i', b'o', b'n'] if rest.len() >= MIN_STEM => (rest, 5),
        [rest @ .., b'a', b't', b'o', b'r'] => (rest, 4),
        [rest @ .., b'm', b'e', b'n', b't'] => (rest, 4),
        [rest @ .., b'n', b'e', b's', b's'] => (rest, 4),
        [rest @ .., b'a' | b'i', b'b', b'l', b'e'] => (rest, 4),
        [rest @ .., b'i', b'o', b'n'] => (rest, 3),
        [rest @ .., b'a', b't', b'e'] => (rest, 3),
        [rest @ .., b'i', b'v', b'e'] => (rest, 3),
        _ => return false,
    };
    let removed = rest.len() >= MIN_STEM;
    cut(word, if removed { count } else { 0 });
    removed
}

fn cut(word: &mut String, count: usize) {
    word.truncate(word.len().saturating_sub(count));
}

const fn is_vowel(letter: u8) -> bool {
    matches!(letter, b'a' | b'e' | b'i' | b'o' | b'u' | b'y')
}
