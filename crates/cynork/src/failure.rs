//! Errors of commands: the reason, the fix, and the exit code.

use std::fmt;

use cynode_wire::platform::problem::ProblemDetails;
use serde::Serialize;
use serde_json::Value;

/// Kind of an error. Its number is the exit code, whose meaning is stable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum CliErrorKind {
    /// The command was executed, and the awaited result is a failure: a task failed, a check did not pass.
    Failed = 1,
    /// The command line is invalid.
    Usage = 2,
    /// Not logged in, or not allowed.
    Refused = 3,
    /// The object does not exist, or is not visible to the user.
    NotFound = 4,
    /// Another writer was first, or the state does not allow it.
    Conflict = 5,
    /// An argument is invalid.
    Invalid = 6,
    /// The server does not respond, or not now.
    Unreachable = 7,
    /// An internal error of this program or of the server.
    Internal = 8,
    /// A person interrupted the command with Ctrl-C; the work on the server continues.
    Interrupted = 130,
}

/// Why a command failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CliError {
    /// Kind of the error.
    pub kind: CliErrorKind,
    /// Description of the error.
    pub detail: String,
    /// The next action of the user.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fix: Option<String>,
    /// HTTP status of the response.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
    /// Problem code of the server.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
    /// Trace id, for support.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trace_id: Option<String>,
}

/// The result type of this crate.
pub type Result<T, E = CliError> = std::result::Result<T, E>;

impl CliError {
    /// Creates an error with a description.
    pub fn new(kind: CliErrorKind, detail: impl Into<String>) -> Self {
        Self { kind, detail: detail.into(), fix: None, status: None, code: None, trace_id: None }
    }

    /// Adds the next action.
    #[must_use]
    pub fn with_fix(mut self, fix: impl Into<String>) -> Self {
        self.fix = Some(fix.into());
        self
    }

    /// Creates an error about an invalid argument.
    pub fn invalid_input(detail: impl Into<String>) -> Self {
        Self::new(CliErrorKind::Invalid, detail)
    }

    /// Creates an internal error.
    pub fn internal_error(detail: impl Into<String>) -> Self {
        Self::new(CliErrorKind::Internal, detail)
    }

    /// Parses the error response of a server.
    pub fn from_response(status: u16, body: &[u8]) -> Self {
        let kind = match status {
            401..=403 => CliErrorKind::Refused,
            404 | 410 => CliErrorKind::NotFound,
            409 | 412 | 428 => CliErrorKind::Conflict,
            408 | 429 | 502..=504 => CliErrorKind::Unreachable,
            400..=499 => CliErrorKind::Invalid,
            _ => CliErrorKind::Internal,
        };
        // Inference endpoints return errors in the formats of model clients.
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

/// Removes the position in the request body from an error message: the user wrote no body. A body that a person wrote has
/// several lines, and then the position stays.
fn strip_body_position(detail: &str) -> &str {
    let Some(told) = detail.strip_prefix("the body is wrong: ") else { return detail };
    match told.rsplit_once(" at line 1 column ") {
        Some((what, column)) if column.bytes().all(|it| it.is_ascii_digit()) => what,
        _ => told,
    }
}

impl CliError {
    /// Returns whether the same request may succeed in a moment, because the server was unreachable or overloaded.
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
