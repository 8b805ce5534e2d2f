//! Recording of all requests and answers, so that an evaluation can be replayed without a model.
//!
//! A recording is a folder: `calls.jsonl` has a line for each row and way, `texts.jsonl` the long texts that many calls
//! share, by digest.

use std::{
    collections::BTreeMap,
    fs,
    io::{self, BufWriter, Write as _},
    path::{Path, PathBuf},
};

use data_encoding::HEXLOWER;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest, Sha256};

use super::score::EvalAnswer;

/// One request with all its answers and the decision.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RecordedCall {
    /// Name of the model.
    pub model: String,
    /// Digest of the system message; absent for a plain question.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub system: Option<String>,
    /// Digest of the whole request, including its schema.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
    /// User message.
    pub user: String,
    /// Every answer as received, including the rejected ones.
    pub answers: Vec<String>,
    /// The whole decision; absent if there was none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub decision: Option<Value>,
    /// Outcome for the score.
    pub outcome: EvalAnswer,
}

/// Error of writing or reading a recording.
#[derive(Debug, thiserror::Error)]
pub enum RecordingError {
    /// A file cannot be accessed.
    #[error("{file}: {error}")]
    File {
        /// Name of the file.
        file: String,
        /// Cause of the failure.
        error: io::Error,
    },
    /// A line is invalid.
    #[error("{file}, line {line}: {problem}")]
    Line {
        /// Name of the file.
        file: String,
        /// Line number, from 1.
        line: usize,
        /// Description of the error.
        problem: String,
    },
}

/// Writes a recording.
pub struct CallRecorder {
    calls: BufWriter<fs::File>,
    calls_file: PathBuf,
    texts: BTreeMap<String, String>,
    texts_file: PathBuf,
}

/// Returns the digest that identifies a text.
pub fn text_digest(text: &str) -> String {
    HEXLOWER.encode(&Sha256::digest(text.as_bytes()))
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct TextRecord {
    digest: String,
    text: String,
}

impl CallRecorder {
    /// Starts a recording in a directory that has none.
    pub fn create_recording(folder: &Path) -> Result<Self, RecordingError> {
        fs::create_dir_all(folder).map_err(|error| file_error(folder, error))?;
        let calls_file = folder.join("calls.jsonl");
        let calls =
            fs::File::create_new(&calls_file).map_err(|error| file_error(&calls_file, error))?;
        let texts_file = folder.join("texts.jsonl");
        Ok(Self { calls: BufWriter::new(calls), calls_file, texts: BTreeMap::new(), texts_file })
    }

    /// Stores a text that many calls share and returns its digest.
    pub fn record_text(&mut self, text: &str) -> String {
        let digest = text_digest(text);
        self.texts.entry(digest.clone()).or_insert_with(|| text.to_owned());
        digest
    }

    /// Stores a call.
    pub fn record_call(&mut self, call: &RecordedCall) -> Result<(), RecordingError> {
        write_json_line(&mut self.calls, call).map_err(|error| file_error(&self.calls_file, error))
    }

    /// Completes the recording.
    pub fn finish_recording(mut self) -> Result<(), RecordingError> {
        self.calls.flush().map_err(|error| file_error(&self.calls_file, error))?;
        let write = || {
            let mut out = BufWriter::new(fs::File::create_new(&self.texts_file)?);
            for (digest, text) in &self.texts {
                write_json_line(
                    &mut out,
                    &TextRecord { digest: digest.clone(), text: text.clone() },
                )?;
            }
            out.flush()
        };
        write().map_err(|error| file_error(&self.texts_file, error))
    }
}

fn write_json_line(out: &mut impl io::Write, value: &impl Serialize) -> io::Result<()> {
    let text = serde_json::to_string(value)?;
    writeln!(out, "{text}")
}

fn file_error(file: &Path, error: io::Error) -> RecordingError {
    RecordingError::File { file: file.display().to_string(), error }
}

/// A loaded recording.
#[derive(Clone, Debug, PartialEq)]
pub struct EvalRecording {
    /// Calls, in order.
    pub calls: Vec<RecordedCall>,
    texts: BTreeMap<String, String>,
}

impl EvalRecording {
    /// Loads a recording. A text that does not match its digest is an error.
    pub fn load_recording(folder: &Path) -> Result<Self, RecordingError> {
        let calls: Vec<RecordedCall> = read_json_lines(&folder.join("calls.jsonl"))?;
        let file = folder.join("texts.jsonl");
        let mut texts = BTreeMap::new();
        for (at, kept) in read_json_lines::<TextRecord>(&file)?.into_iter().enumerate() {
            if text_digest(&kept.text) != kept.digest {
                let file = file.display().to_string();
                let problem = "the text is not that of the digest".to_owned();
                return Err(RecordingError::Line { file, line: at + 1, problem });
            }
            texts.insert(kept.digest, kept.text);
        }
        Ok(Self { calls, texts })
    }

    /// Returns the text of a digest.
    pub fn text_of_digest(&self, digest: &str) -> Option<&str> {
        self.texts.get(digest).map(String::as_str)
    }
}

fn read_json_lines<T: serde::de::DeserializeOwned>(file: &Path) -> Result<Vec<T>, RecordingError> {
    let text = fs::read_to_string(file).map_err(|error| file_error(file, error))?;
    let read = |(at, line): (usize, &str)| {
        serde_json::from_str(line).map_err(|error| RecordingError::Line {
            file: file.display().to_string(),
            line: at + 1,
            problem: error.to_string(),
        })
    };
    text.lines().enumerate().map(read).collect()
}
