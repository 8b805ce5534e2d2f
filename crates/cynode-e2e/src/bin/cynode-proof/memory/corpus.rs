//! Made-up documents and queries whose words are as frequent as those of a language: few are everywhere, most are rare.

use std::fmt::Write as _;

use serde_json::{Value, json};

/// Number of words: two to this power.
const VOCABULARY_BITS: u64 = 15;

/// Words of a section.
const SECTION_WORDS: usize = 70;

const CONSONANTS: [char; 14] =
    ['b', 'd', 'f', 'g', 'h', 'k', 'l', 'm', 'n', 'p', 'r', 't', 'v', 'z'];
const VOWELS: [char; 5] = ['a', 'e', 'i', 'o', 'u'];

/// A source of numbers that is the same everywhere (`SplitMix64`).
pub(crate) struct SplitMix(u64);

impl SplitMix {
    pub(crate) const fn new(seed: u64) -> Self {
        Self(seed)
    }

    const fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// Returns a number below the limit.
    pub(crate) const fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }
}

/// Documents and queries over one vocabulary.
pub(crate) struct Corpus {
    dice: SplitMix,
    files: u64,
}

impl Corpus {
    pub(crate) const fn new(seed: u64) -> Self {
        Self { dice: SplitMix::new(seed), files: 0 }
    }

    /// Returns files of so many sections each, as an ingest takes them. Every section has the mark, if there is one.
    pub(crate) fn files(
        &mut self,
        count: usize,
        sections: usize,
        mark: Option<&str>,
    ) -> Vec<Value> {
        (0..count).map(|_| self.file(sections, mark)).collect()
    }

    fn file(&mut self, sections: usize, mark: Option<&str>) -> Value {
        self.files += 1;
        let mut text = format!("# {}\n", self.words(3, 0));
        for number in 0..sections {
            let (title, words) = (self.words(4, 4), self.words(SECTION_WORDS, 0));
            let mark = mark.unwrap_or_default();
            let _ = write!(text, "\n## {number} {title}\n\n{words} {mark}\n");
        }
        json!({ "path": format!("docs/{}.md", self.files), "text": text })
    }

    /// Returns a query: two words of any frequency and three that are not among the most frequent ones.
    pub(crate) fn query(&mut self) -> String {
        format!("{} {}", self.words(2, 0), self.words(3, 8))
    }

    /// Returns words of at least that octave of rarity.
    fn words(&mut self, count: usize, rarity: u64) -> String {
        let words: Vec<String> = (0..count).map(|_| self.word(rarity)).collect();
        words.join(" ")
    }

    /// Returns a word. Each octave of ranks is as likely as the others, so that a word's frequency falls with its rank.
    fn word(&mut self, rarity: u64) -> String {
        let octave = rarity + self.dice.below(VOCABULARY_BITS - rarity);
        let mut rank = (1 << octave) - 1 + self.dice.below(1 << octave);
        let mut word = String::new();
        for _ in 0..3 {
            let (consonant, vowel) = (rank % 14, rank / 14 % 5);
            word.push(pick(&CONSONANTS, consonant));
            word.push(pick(&VOWELS, vowel));
            rank /= 70;
        }
        // No stemmer takes anything from its end.
        word.push('k');
        word
    }
}

fn pick(letters: &[char], at: u64) -> char {
    usize::try_from(at).ok().and_then(|at| letters.get(at)).copied().unwrap_or('x')
}
