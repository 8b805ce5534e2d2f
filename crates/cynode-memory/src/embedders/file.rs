//! An embedder of word vectors from a local file.

use std::{collections::HashMap, fs::File, io::Read, path::Path};

use sha2::{Digest, Sha256};

use super::{Embedder, unit_vector};
use crate::lexemes::normalize;

/// Maximum size of the file.
pub const MAX_FILE_BYTES: u64 = 512 << 20;

/// Maximum number of words.
pub const MAX_WORDS: usize = 1_000_000;

/// Maximum length of the vectors.
pub const MAX_DIMENSIONS: usize = 1024;

type WordVectors = HashMap<String, Box<[f32]>>;

/// Static word vectors, in the text format of word2vec: a line of two numbers (words and dimensions, may be left out), then a line per word.
///
/// The vector of a text is the mean of the vectors of its words, of length one. Words are runs of letters, digits and marks, in lower case.
/// Words that the file does not know count for nothing. The file is pinned by its SHA-256, and nothing else is ever read.
#[derive(Debug)]
pub struct FileEmbedder {
    id: String,
    dimensions: usize,
    words: WordVectors,
}

/// Why a file is not an embedder.
#[derive(Debug, thiserror::Error)]
pub enum EmbedderFileError {
    /// It cannot be read.
    #[error("the file of the embedder cannot be read: {0}")]
    Unreadable(#[from] std::io::Error),
    /// It is too large.
    #[error("the file of the embedder has more than {MAX_FILE_BYTES} bytes")]
    TooLarge,
    /// It is another file.
    #[error("the file of the embedder has the SHA-256 {actual}, not {expected}")]
    OtherDigest {
        /// The pinned digest.
        expected: String,
        /// The digest of the file.
        actual: String,
    },
    /// A line is not a word with a vector.
    #[error("line {0} of the file of the embedder is not a word and its vector")]
    Line(usize),
    /// It has no words, too many, or vectors that are too long.
    #[error(
        "the file of the embedder has no words, more than {MAX_WORDS}, or more than {MAX_DIMENSIONS} dimensions"
    )]
    Extent,
}

impl FileEmbedder {
    /// Reads a file whose SHA-256 is `sha256`, 64 hexadecimal digits.
    pub fn load(path: &Path, sha256: &str) -> Result<Self, EmbedderFileError> {
        let mut bytes = Vec::new();
        File::open(path)?.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes)?;
        Self::from_bytes(&bytes, sha256)
    }

    /// See [`FileEmbedder::load`].
    pub fn from_bytes(bytes: &[u8], sha256: &str) -> Result<Self, EmbedderFileError> {
        if u64::try_from(bytes.len()).unwrap_or(u64::MAX) > MAX_FILE_BYTES {
            return Err(EmbedderFileError::TooLarge);
        }
        let actual: String =
            Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect();
        if !actual.eq_ignore_ascii_case(sha256) {
            return Err(EmbedderFileError::OtherDigest { expected: sha256.to_owned(), actual });
        }
        let (dimensions, words) = parse(bytes)?;
        let id = format!("file-{}", actual.get(..16).unwrap_or_default());
        Ok(Self { id, dimensions, words })
    }
}

fn parse(bytes: &[u8]) -> Result<(usize, WordVectors), EmbedderFileError> {
    let mut words = WordVectors::new();
    let mut dimensions = None;
    for (index, line) in bytes.split(|byte| *byte == b'\n').enumerate() {
        let number = index + 1;
        let line =
            std::str::from_utf8(line).map_err(|_| EmbedderFileError::Line(number))?.trim_end();
        if line.is_empty() || (index == 0 && is_header(line)) {
            continue;
        }
        let mut parts = line.split(' ');
        let word =
            parts.next().filter(|word| !word.is_empty()).ok_or(EmbedderFileError::Line(number))?;
        let vector: Result<Box<[f32]>, _> = parts.map(str::parse::<f32>).collect();
        let vector = vector.map_err(|_| EmbedderFileError::Line(number))?;
        if vector.len() != *dimensions.get_or_insert(vector.len())
            || !vector.iter().all(|value| value.is_finite())
        {
            return Err(EmbedderFileError::Line(number));
        }
        if vector.len() > MAX_DIMENSIONS || words.len() >= MAX_WORDS {
            return Err(EmbedderFileError::Extent);
        }
        words.entry(lower(word)).or_insert(vector);
    }
    match dimensions {
        Some(dimensions) if dimensions > 0 => Ok((dimensions, words)),
        _ => Err(EmbedderFileError::Extent),
    }
}

/// Whether a line is the number of words and of dimensions.
fn is_header(line: &str) -> bool {
    let numbers: Vec<_> = line.split(' ').map(str::parse::<usize>).collect();
    numbers.len() == 2 && numbers.iter().all(Result::is_ok)
}

fn lower(text: &str) -> String {
    normalize(text).to_lowercase()
}

impl Embedder for FileEmbedder {
    fn id(&self) -> &str {
        &self.id
    }

    fn dimensions(&self) -> usize {
        self.dimensions
    }

    fn embed(&self, text: &str) -> Vec<f32> {
        let mut sums = vec![0.0; self.dimensions];
        let text = lower(text);
        let is_word = |letter: char| {
            letter.is_alphanumeric() || unicode_normalization::char::is_combining_mark(letter)
        };
        for vector in text.split(|letter| !is_word(letter)).filter_map(|word| self.words.get(word))
        {
            for (sum, value) in sums.iter_mut().zip(vector) {
                *sum += f64::from(*value);
            }
        }
        unit_vector(&sums)
    }
}
