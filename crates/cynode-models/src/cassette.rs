//! Cassette: records responses of providers and replays them. The same request gets the same response without a provider.
//!
//! A cassette is a directory with one file per request, named by the digest of the request. Both request and response are redacted before
//! they are recorded.

use std::{fs, io, path::PathBuf, sync::LazyLock};

use regex::Regex;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::dialect::canonical::{CanonicalRequest, CanonicalResponse, ModelError, ModelErrorKind};

/// Directory of recorded responses.
#[derive(Clone, Debug)]
pub struct ResponseCassette {
    directory: PathBuf,
}

/// One recorded request and its response.
#[derive(Serialize, Deserialize)]
struct CassetteEntry {
    asked: Value,
    answered: CanonicalResponse,
}

impl ResponseCassette {
    /// Creates a cassette in a directory. The directory need not exist yet.
    pub fn new(directory: impl Into<PathBuf>) -> Self {
        Self { directory: directory.into() }
    }

    /// Returns the recorded response to a request.
    pub fn replay_response(
        &self,
        request: &CanonicalRequest,
    ) -> Result<CanonicalResponse, ModelError> {
        let (_, digest) = digest_request(request)?;
        let text = match fs::read(self.entry_path(&digest)) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let told = format!("no answer was kept for this question ({})", &digest[..12]);
                return Err(
                    ModelError::new(ModelErrorKind::NotFound, told).with_code("not_recorded")
                );
            }
            Err(error) => return Err(cassette_error(&error)),
        };
        let kept: CassetteEntry = serde_json::from_slice(&text).map_err(|_| {
            ModelError::new(ModelErrorKind::Upstream, "a kept answer cannot be read")
        })?;
        Ok(kept.answered)
    }

    /// Records a response atomically: a process that is killed in between leaves no partial file.
    pub fn record_response(
        &self,
        request: &CanonicalRequest,
        answered: CanonicalResponse,
    ) -> Result<(), ModelError> {
        let (asked, digest) = digest_request(request)?;
        let text = serde_json::to_vec_pretty(&CassetteEntry { asked, answered });
        let text = text.map_err(|error| cassette_error(&error.into()))?;
        fs::create_dir_all(&self.directory).map_err(|error| cassette_error(&error))?;
        let (file, part) =
            (self.entry_path(&digest), self.directory.join(format!("{digest}.part")));
        fs::write(&part, text)
            .and_then(|()| fs::rename(&part, file))
            .map_err(|error| cassette_error(&error))
    }

    fn entry_path(&self, digest: &str) -> PathBuf {
        self.directory.join(format!("{digest}.json"))
    }
}

/// Returns the request without fields that do not change the response, and its digest.
fn digest_request(request: &CanonicalRequest) -> Result<(Value, String), ModelError> {
    let mut asked = serde_json::to_value(request).map_err(|error| cassette_error(&error.into()))?;
    if let Some(fields) = asked.as_object_mut() {
        for field in ["stream", "include_usage", "user"] {
            fields.remove(field);
        }
        fields.sort_keys();
    }
    normalize_ids(&mut asked, &mut Vec::new());
    let digest = Sha256::digest(asked.to_string());
    Ok((asked, digest.iter().map(|byte| format!("{byte:02x}")).collect()))
}

/// Replaces ids and commit hashes of the installation by the order of their first appearance, so that the same request about another task
/// has the same digest.
fn normalize_ids(value: &mut Value, seen: &mut Vec<String>) {
    match value {
        Value::String(text) => {
            let mut place = |found: &regex::Captures<'_>| {
                let found = &found[0];
                let at = seen.iter().position(|known| known == found).unwrap_or_else(|| {
                    seen.push(found.to_owned());
                    seen.len() - 1
                });
                let kind = found.split_once('_').map_or("commit", |(kind, _)| kind);
                format!("<{kind}-{at}>")
            };
            if let std::borrow::Cow::Owned(changed) = ID_PATTERN.replace_all(text, &mut place) {
                *text = changed;
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| normalize_ids(item, seen)),
        Value::Object(fields) => {
            fields.iter_mut().for_each(|(_, field)| normalize_ids(field, seen));
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

#[expect(clippy::expect_used, reason = "a pattern of our own; a test uses it")]
static ID_PATTERN: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(r"\b(?:[a-z]{3}_[0-9a-f]{32}|[0-9a-f]{40})\b").expect("the pattern is good")
});

fn cassette_error(error: &io::Error) -> ModelError {
    ModelError::new(ModelErrorKind::Unavailable, format!("the cassette cannot be used: {error}"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::dialect::{
        Dialect, DialectCodec as _,
        canonical::{ContentPart, StopReason},
    };

    fn asked(text: &str, stream: bool) -> CanonicalRequest {
        let messages = json!([{ "role": "user", "content": text }]);
        let body = json!({ "model": "m", "messages": messages, "stream": stream });
        Dialect::Chat.decode_request(&body).unwrap()
    }

    fn answered(text: &str) -> CanonicalResponse {
        let (id, model) = ("a".into(), "m".into());
        CanonicalResponse {
            id,
            model,
            parts: vec![ContentPart::from_text(text)],
            stop: StopReason::EndTurn,
            usage: None,
        }
    }

    #[test]
    fn what_was_kept_is_given_for_the_same_question_streamed_or_not_and_for_no_other() {
        let directory = tempfile::tempdir().unwrap();
        let cassette = ResponseCassette::new(directory.path().join("tape"));
        cassette.record_response(&asked("one", false), answered("1")).unwrap();
        assert_eq!(cassette.replay_response(&asked("one", false)).unwrap(), answered("1"));
        assert_eq!(cassette.replay_response(&asked("one", true)).unwrap(), answered("1"));
        let error = cassette.replay_response(&asked("two", false)).unwrap_err();
        assert_eq!(
            (error.kind, error.code.as_deref()),
            (ModelErrorKind::NotFound, Some("not_recorded"))
        );
    }

    #[test]
    fn the_same_question_about_another_task_is_the_same_and_one_about_two_is_not() {
        let directory = tempfile::tempdir().unwrap();
        let cassette = ResponseCassette::new(directory.path());
        let (a, b) = (format!("tsk_{}", "a1".repeat(16)), format!("tsk_{}", "b2".repeat(16)));
        let about =
            |one: &str, two: &str| asked(&format!("{one} at {} and {two}", "c3".repeat(20)), false);
        cassette.record_response(&about(&a, &a), answered("1")).unwrap();
        assert_eq!(cassette.replay_response(&about(&b, &b)).unwrap(), answered("1"));
        assert!(cassette.replay_response(&about(&a, &b)).is_err());
    }

    #[test]
    fn the_last_answer_to_a_question_is_kept() {
        let directory = tempfile::tempdir().unwrap();
        let cassette = ResponseCassette::new(directory.path());
        cassette.record_response(&asked("one", false), answered("1")).unwrap();
        cassette.record_response(&asked("one", true), answered("2")).unwrap();
        assert_eq!(cassette.replay_response(&asked("one", false)).unwrap(), answered("2"));
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1);
    }
}
