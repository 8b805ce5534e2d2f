//! Input of commands: secrets without echo, files, values, amounts, times.

use std::io::Read as _;

use secrecy::SecretString;
use serde_json::Value;
use time::{Duration, OffsetDateTime, format_description::well_known::Rfc3339};

use crate::{
    context::CliContext,
    failure::{CliError, CliErrorKind, Result},
};

/// How a secret is read. It is never an argument: every process of the machine can read arguments.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SecretPrompt<'a> {
    /// The prompt.
    pub(crate) prompt: &'a str,
    /// The flag that reads it from standard input.
    pub(crate) flag: &'a str,
    /// Whether that flag was given.
    pub(crate) stdin: bool,
}

/// Reads a required secret: a line of standard input, or typed without echo.
pub(crate) fn read_secret(context: &CliContext, ask: SecretPrompt<'_>) -> Result<SecretString> {
    if ask.stdin {
        return read_stdin_line();
    }
    require_interactive(context, ask)?;
    let typed = dialoguer::Password::new().with_prompt(ask.prompt).interact();
    Ok(typed.map_err(|error| CliError::invalid_input(error.to_string()))?.into())
}

/// Allowed length of a password.
const PASSWORD_CHARACTERS: std::ops::RangeInclusive<usize> = 12..=256;

/// Returns why a password is invalid: the server's rule, checked before anything is sent.
fn password_error(typed: &str) -> Option<String> {
    let count = typed.chars().count();
    let (least, most) = (PASSWORD_CHARACTERS.start(), PASSWORD_CHARACTERS.end());
    (!PASSWORD_CHARACTERS.contains(&count)).then(|| {
        format!("A password has {least} to {most} characters, and this one {count}. Type another.")
    })
}

/// Reads a new password, typed twice. An invalid one is asked for again.
pub(crate) fn read_new_password(
    context: &CliContext,
    ask: SecretPrompt<'_>,
) -> Result<SecretString> {
    if ask.stdin {
        return read_stdin_line();
    }
    require_interactive(context, ask)?;
    let (least, most) = (PASSWORD_CHARACTERS.start(), PASSWORD_CHARACTERS.end());
    let typed = dialoguer::Password::new()
        .with_prompt(format!("{} ({least} to {most} characters)", ask.prompt))
        .validate_with(|typed: &String| password_error(typed).map_or(Ok(()), Err))
        .with_confirmation("Once more", "These were not the same. Type both again.")
        .interact()
        .map_err(|error| CliError::invalid_input(error.to_string()))?;
    Ok(typed.into())
}

/// Reads an optional secret; an empty line skips it.
pub(crate) fn read_optional_secret(
    context: &CliContext,
    ask: SecretPrompt<'_>,
) -> Result<Option<SecretString>> {
    if ask.stdin {
        return read_stdin_line().map(Some);
    }
    if !context.is_interactive() {
        return Ok(None);
    }
    let typed = dialoguer::Password::new()
        .with_prompt(ask.prompt)
        .allow_empty_password(true)
        .interact()
        .map_err(|error| CliError::invalid_input(error.to_string()))?;
    Ok(Some(typed).filter(|typed| !typed.is_empty()).map(SecretString::from))
}

/// Requires a person who can type it.
fn require_interactive(context: &CliContext, ask: SecretPrompt<'_>) -> Result<()> {
    if context.is_interactive() {
        return Ok(());
    }
    let what = format!("{}: nobody is there to type it", ask.prompt);
    Err(CliError::new(CliErrorKind::Usage, what)
        .with_fix(format!("give it on standard input with {}", ask.flag)))
}

/// Reads the next line of standard input.
pub(crate) fn read_stdin_line() -> Result<SecretString> {
    let mut line = String::new();
    let read = std::io::stdin().read_line(&mut line);
    match read {
        Ok(0) => Err(CliError::new(
            CliErrorKind::Usage,
            "standard input has ended where a secret should be",
        )),
        Ok(_) => Ok(line.trim_end_matches(['\r', '\n']).to_owned().into()),
        Err(error) => {
            Err(CliError::invalid_input(format!("standard input cannot be read: {error}")))
        }
    }
}

/// Reads a file; `-` is standard input.
pub(crate) fn read_file_bytes(path: &str) -> Result<Vec<u8>> {
    let failed = |error: std::io::Error| {
        CliError::new(CliErrorKind::Usage, format!("{path} cannot be read: {error}"))
    };
    if path == "-" {
        let mut read = Vec::new();
        std::io::stdin().read_to_end(&mut read).map_err(failed)?;
        return Ok(read);
    }
    std::fs::read(path).map_err(failed)
}

/// Reads a text file; `-` is standard input.
pub(crate) fn read_file_text(path: &str) -> Result<String> {
    String::from_utf8(read_file_bytes(path)?)
        .map_err(|_| CliError::invalid_input(format!("{path} is no text")))
}

/// Reads a JSON file; `-` is standard input.
pub(crate) fn read_file_json(path: &str) -> Result<Value> {
    serde_json::from_slice(&read_file_bytes(path)?)
        .map_err(|error| CliError::invalid_input(format!("{path} is not JSON: {error}")))
}

/// Returns a text argument, or the content of a file after `@`; `@-` is standard input.
pub(crate) fn read_text_argument(said: &str) -> Result<String> {
    said.strip_prefix('@').map_or_else(|| Ok(said.to_owned()), read_file_text)
}

/// Parses a JSON value, or returns the text itself if it is not JSON.
pub(crate) fn parse_json_or_text(said: &str) -> Value {
    serde_json::from_str(said).unwrap_or_else(|_| Value::from(said))
}

/// Removes `null` fields from a body.
pub(crate) fn without_nulls(mut body: Value) -> Value {
    if let Some(fields) = body.as_object_mut() {
        fields.retain(|_, value| !value.is_null());
    }
    body
}

/// Requires at least one change in a body.
pub(crate) fn require_changes(body: Value) -> Result<Value> {
    let body = without_nulls(body);
    if body.as_object().is_some_and(|fields| fields.is_empty()) {
        return Err(CliError::new(CliErrorKind::Usage, "what is to be changed?")
            .with_fix("say it with a flag; see --help"));
    }
    Ok(body)
}

/// Parses an amount of money into millionths.
pub(crate) fn parse_money(text: &str) -> std::result::Result<u64, String> {
    let (whole, rest) = text.split_once('.').unwrap_or((text, ""));
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if whole.is_empty() && rest.is_empty() || !digits(whole) || !digits(rest) || rest.len() > 6 {
        return Err(
            "an amount is written like 0.50, with at most six digits behind the point".to_owned()
        );
    }
    let whole: Option<u64> = if whole.is_empty() { Some(0) } else { whole.parse().ok() };
    let rest: Option<u64> = format!("{rest:0<6}").parse().ok();
    let micros = whole.and_then(|whole| whole.checked_mul(1_000_000)?.checked_add(rest?));
    micros.ok_or_else(|| "that is too much".to_owned())
}

/// Parses `NAME=VALUE`.
pub(crate) fn parse_name_value(text: &str) -> std::result::Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("write it like NAME=VALUE")?;
    Ok((name.to_owned(), value.to_owned()))
}

/// A time argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TimeArgument {
    /// An absolute time.
    At(OffsetDateTime),
    /// A duration before now.
    Ago(Duration),
}

impl TimeArgument {
    /// Returns it in the wire format.
    pub(crate) fn to_rfc3339(self, now: OffsetDateTime) -> Result<String> {
        let at = match self {
            Self::At(at) => at,
            Self::Ago(time) => now.checked_sub(time).unwrap_or(OffsetDateTime::UNIX_EPOCH),
        };
        at.format(&Rfc3339).map_err(|error| CliError::internal_error(error.to_string()))
    }
}

/// Parses a time: `2026-11-15T12:00:00Z`, `2026-11-15`, or `90m`, `2h`, `3d` for a duration before now.
pub(crate) fn parse_time_argument(text: &str) -> std::result::Result<TimeArgument, String> {
    if let Some(number) = text.strip_suffix(['s', 'm', 'h', 'd'])
        && let Ok(number) = number.parse::<u32>()
    {
        let unit = match text.as_bytes().last() {
            Some(b's') => Duration::SECOND,
            Some(b'm') => Duration::MINUTE,
            Some(b'h') => Duration::HOUR,
            _ => Duration::DAY,
        };
        return Ok(TimeArgument::Ago(unit * number));
    }
    let whole = if text.contains('T') { text.to_owned() } else { format!("{text}T00:00:00Z") };
    OffsetDateTime::parse(&whole, &Rfc3339).map(TimeArgument::At).map_err(|_| {
        "write it like 2026-11-15T12:00:00Z, 2026-11-15 or 2h for two hours ago".to_owned()
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use time::macros::datetime;

    use super::*;

    #[test]
    fn a_password_is_refused_with_the_rule_and_with_what_was_typed() {
        assert_eq!(password_error(&"ö".repeat(12)), None);
        assert_eq!(password_error(&"x".repeat(256)), None);
        let short = "A password has 12 to 256 characters, and this one 5. Type another.";
        assert_eq!(password_error("short").as_deref(), Some(short));
        assert!(password_error(&"x".repeat(257)).is_some());
    }

    #[test]
    fn a_value_is_json_or_the_text_itself() {
        assert_eq!(parse_json_or_text("true"), json!(true));
        assert_eq!(parse_json_or_text("[1, 2]"), json!([1, 2]));
        assert_eq!(parse_json_or_text("\"3\""), json!("3"));
        assert_eq!(parse_json_or_text("deep thought"), json!("deep thought"));
    }

    #[test]
    fn money_is_read_exactly_or_not_at_all() {
        assert_eq!(parse_money("12.50"), Ok(12_500_000));
        assert_eq!(parse_money("0.000001"), Ok(1));
        assert_eq!(parse_money("3"), Ok(3_000_000));
        assert_eq!(parse_money(".5"), Ok(500_000));
        for wrong in ["", ".", "-1", "1.0000001", "1,5", "1e3", "99999999999999999999"] {
            assert!(parse_money(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_moment_is_a_time_a_day_or_so_long_ago() {
        let now = datetime!(2026-11-15 12:00 UTC);
        let written = |text: &str| parse_time_argument(text).unwrap().to_rfc3339(now).unwrap();
        assert_eq!(written("2026-11-01T08:00:00Z"), "2026-11-01T08:00:00Z");
        assert_eq!(written("2026-11-01"), "2026-11-01T00:00:00Z");
        assert_eq!(written("90m"), "2026-11-15T10:30:00Z");
        assert_eq!(written("3d"), "2026-11-12T12:00:00Z");
        for wrong in ["yesterday", "2h30", "", "m"] {
            assert!(parse_time_argument(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn what_was_not_said_is_not_sent_and_a_change_of_nothing_is_none() {
        assert_eq!(without_nulls(json!({ "a": 1, "b": null })), json!({ "a": 1 }));
        assert_eq!(require_changes(json!({ "a": null })).unwrap_err().kind, CliErrorKind::Usage);
    }
}
