//! Formats an error and its causes in one line.

use std::error::Error;

/// The error with everything that caused it, as a log line or a person reads it.
pub fn format_error_chain(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}
