//! Why a command came to nothing, what to do next, and the number that programs see.

use std::fmt;

use cynode_wire::platform::problem::ProblemDetails;
use serde::Serialize;
use serde_json::Value;

/// What kind of failure it was. Its number is the exit code, which never changes its meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum CliErrorKind {
    /// The command was done, and what it waited for failed: a task failed, a check did not hold.
    Failed = 1,
    /// The command line cannot be understood.
    Usage = 2,
    /// Not logged in, or not allowed.
    Refused = 3,
    /// There is no such thing, or not for you.
    NotFound = 4,
    /// Somebody else was there first, or it is not in the state for it.
    Conflict = 5,
    /// What was given is not right.
    Invalid = 6,
    /// Nobody answers, or not now.
    Unreachable = 7,
    /// Something is wrong on this side or on the other.
    Internal = 8,
    /// A person interrupted it with Ctrl-C; what was begun goes on.
    Interrupted = 130,
}

/// Why a command came to nothing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CliError {
    /// What kind.
    pub kind: CliErrorKind,
    /// What went wrong.
    pub detail: String,
    /// What to do next.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fix: Option<String>,
    /// The status of the server's answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
    /// The server's word for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
    /// The trace to name when asking for help.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trace_id: Option<String>,
}

/// What every fallible part of this crate gives.
pub type Result<T, E = CliError> = std::result::Result<T, E>;

impl CliError {
    /// A failure with a sentence.
    pub fn new(kind: CliErrorKind, detail: impl Into<String>) -> Self {
        Self { kind, detail: detail.into(), fix: None, status: None, code: None, trace_id: None }
    }

    /// The same, with what to do next.
    #[must_use]
    pub fn with_fix(mut self, fix: impl Into<String>) -> Self {
        self.fix = Some(fix.into());
        self
    }

    /// What was given is not right.
    pub fn invalid_input(detail: impl Into<String>) -> Self {
        Self::new(CliErrorKind::Invalid, detail)
    }

    /// Something is wrong here.
    pub fn internal_error(detail: impl Into<String>) -> Self {
        Self::new(CliErrorKind::Internal, detail)
    }

    /// What a server said.
    pub fn from_response(status: u16, body: &[u8]) -> Self {
        let kind = match status {
            401..=403 => CliErrorKind::Refused,
            404 | 410 => CliErrorKind::NotFound,
            409 | 412 | 428 => CliErrorKind::Conflict,
            408 | 429 | 502..=504 => CliErrorKind::Unreachable,
            400..=499 => CliErrorKind::Invalid,
            _ => CliErrorKind::Internal,
        };
        // Where models are asked, failures are told as clients of models expect them.
        if let Ok(told) = serde_json::from_slice::<Value>(body)
            && let Some(message) = told["error"]["message"].as_str()
        {
            return Self {
                code: told["error"]["code"].as_str().map(str::to_owned),
                ..Self::new(kind, message)
            };
        }
        let Ok(problem) = serde_json::from_slice::<ProblemDetails>(body) else {
            let said = String::from_utf8_lossy(body);
            if let Some(words) = crate::page::first_paragraph(&said) {
                return Self::new(kind, words);
            }
            let said = said.chars().filter(|it| !it.is_control()).take(300).collect::<String>();
            let what = format!("the server answered {status}: {said}");
            let fix = "is this the address of a CyNode server? Name another with `--url` or `cynork login URL`";
            return Self { status: Some(status), ..Self::new(kind, what).with_fix(fix) };
        };
        let fix = problem
            .fix
            .or_else(|| (status == 401).then(|| "log in with `cynork login`".to_owned()));
        Self {
            kind,
            detail: strip_body_position(&problem.detail).to_owned(),
            fix,
            status: Some(status),
            code: Some(problem.code),
            trace_id: problem.trace_id,
        }
    }
}

/// What is wrong with what was given, without where in the body that was: whoever gave it wrote no body. One that a person wrote
/// has lines, and those are told.
fn strip_body_position(detail: &str) -> &str {
    let Some(told) = detail.strip_prefix("the body is wrong: ") else { return detail };
    match told.rsplit_once(" at line 1 column ") {
        Some((what, column)) if column.bytes().all(|it| it.is_ascii_digit()) => what,
        _ => told,
    }
}

impl CliError {
    /// Whether the same call may succeed in a moment, because nobody was there or somebody was in trouble.
    pub fn is_transient(&self) -> bool {
        self.kind == CliErrorKind::Unreachable || self.status.is_some_and(|status| status >= 500)
    }
}

impl fmt::Display for CliError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.detail)
    }
}

impl std::error::Error for CliError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_given_is_called_wrong_and_not_the_body_that_nobody_wrote() {
        let rule = "a handle cannot contain 'A': it has small letters, digits and dashes only";
        let told = |place: &str| {
            strip_body_position(&format!("the body is wrong: {rule}{place}")).to_owned()
        };
        assert_eq!(told(" at line 1 column 86"), rule);
        assert_eq!(told(" at line 3 column 8"), format!("{rule} at line 3 column 8"));
        assert_eq!(
            strip_body_position("too late at line 1 column 2"),
            "too late at line 1 column 2"
        );
    }
}
