//! What a person gives to a command: secrets that nobody sees, files, values, amounts, times.

use std::io::Read as _;

use secrecy::SecretString;
use serde_json::Value;
use time::{Duration, OffsetDateTime, format_description::well_known::Rfc3339};

use crate::{
    context::Context,
    failure::{Failure, Kind, Result},
};

/// How a secret is asked for. It is never an argument: arguments can be read by every process of the machine.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ask<'a> {
    /// What the person reads.
    pub(crate) prompt: &'a str,
    /// The flag that takes it from standard input.
    pub(crate) flag: &'a str,
    /// Whether that flag was given.
    pub(crate) stdin: bool,
}

/// A secret that must be there: a line of standard input, or typed where nobody sees it.
pub(crate) fn secret(context: &Context, ask: Ask<'_>) -> Result<SecretString> {
    if ask.stdin {
        return line();
    }
    typed(context, ask, false)
}

/// A new secret: typed twice.
pub(crate) fn new_secret(context: &Context, ask: Ask<'_>) -> Result<SecretString> {
    if ask.stdin {
        return line();
    }
    typed(context, ask, true)
}

/// A secret that may be left out; a person leaves it out with an empty line.
pub(crate) fn optional_secret(context: &Context, ask: Ask<'_>) -> Result<Option<SecretString>> {
    if ask.stdin {
        return line().map(Some);
    }
    if !context.person() {
        return Ok(None);
    }
    let typed = dialoguer::Password::new()
        .with_prompt(ask.prompt)
        .allow_empty_password(true)
        .interact()
        .map_err(|error| Failure::invalid(error.to_string()))?;
    Ok(Some(typed).filter(|typed| !typed.is_empty()).map(SecretString::from))
}

fn typed(context: &Context, ask: Ask<'_>, twice: bool) -> Result<SecretString> {
    if !context.person() {
        let what = format!("{}: nobody is there to type it", ask.prompt);
        return Err(Failure::new(Kind::Usage, what)
            .fix(format!("give it on standard input with {}", ask.flag)));
    }
    let mut question = dialoguer::Password::new().with_prompt(ask.prompt);
    if twice {
        question = question.with_confirmation("Once more", "These were not the same.");
    }
    let typed = question.interact().map_err(|error| Failure::invalid(error.to_string()))?;
    Ok(typed.into())
}

/// The next line of standard input.
pub(crate) fn line() -> Result<SecretString> {
    let mut line = String::new();
    let read = std::io::stdin().read_line(&mut line);
    match read {
        Ok(0) => {
            Err(Failure::new(Kind::Usage, "standard input has ended where a secret should be"))
        }
        Ok(_) => Ok(line.trim_end_matches(['\r', '\n']).to_owned().into()),
        Err(error) => Err(Failure::invalid(format!("standard input cannot be read: {error}"))),
    }
}

/// What is in a file; `-` is standard input.
pub(crate) fn bytes(path: &str) -> Result<Vec<u8>> {
    let failed = |error: std::io::Error| {
        Failure::new(Kind::Usage, format!("{path} cannot be read: {error}"))
    };
    if path == "-" {
        let mut read = Vec::new();
        std::io::stdin().read_to_end(&mut read).map_err(failed)?;
        return Ok(read);
    }
    std::fs::read(path).map_err(failed)
}

/// The text in a file; `-` is standard input.
pub(crate) fn text(path: &str) -> Result<String> {
    String::from_utf8(bytes(path)?).map_err(|_| Failure::invalid(format!("{path} is no text")))
}

/// The JSON in a file; `-` is standard input.
pub(crate) fn json(path: &str) -> Result<Value> {
    serde_json::from_slice(&bytes(path)?)
        .map_err(|error| Failure::invalid(format!("{path} is not JSON: {error}")))
}

/// A text as it was said, or from a file after `@`; `@-` is standard input.
pub(crate) fn words(said: &str) -> Result<String> {
    said.strip_prefix('@').map_or_else(|| Ok(said.to_owned()), text)
}

/// A value: JSON, or the text itself when it is none.
pub(crate) fn value(said: &str) -> Value {
    serde_json::from_str(said).unwrap_or_else(|_| Value::from(said))
}

/// A body without what was not said.
pub(crate) fn said(mut body: Value) -> Value {
    if let Some(fields) = body.as_object_mut() {
        fields.retain(|_, value| !value.is_null());
    }
    body
}

/// A body of changes, of which there must be one.
pub(crate) fn changes(body: Value) -> Result<Value> {
    let body = said(body);
    if body.as_object().is_some_and(|fields| fields.is_empty()) {
        return Err(Failure::new(Kind::Usage, "what is to be changed?")
            .fix("say it with a flag; see --help"));
    }
    Ok(body)
}

/// Reads an amount of money, into millionths.
pub(crate) fn money(text: &str) -> std::result::Result<u64, String> {
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

/// Reads `NAME=VALUE`.
pub(crate) fn pair(text: &str) -> std::result::Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("write it like NAME=VALUE")?;
    Ok((name.to_owned(), value.to_owned()))
}

/// A moment as people say it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Moment {
    /// That moment.
    At(OffsetDateTime),
    /// So long ago.
    Ago(Duration),
}

impl Moment {
    /// As it is written on the wire.
    pub(crate) fn written(self, now: OffsetDateTime) -> Result<String> {
        let at = match self {
            Self::At(at) => at,
            Self::Ago(time) => now.checked_sub(time).unwrap_or(OffsetDateTime::UNIX_EPOCH),
        };
        at.format(&Rfc3339).map_err(|error| Failure::internal(error.to_string()))
    }
}

/// Reads a moment: `2026-11-15T12:00:00Z`, `2026-11-15`, or `90m`, `2h`, `3d` for so long ago.
pub(crate) fn moment(text: &str) -> std::result::Result<Moment, String> {
    if let Some(number) = text.strip_suffix(['s', 'm', 'h', 'd'])
        && let Ok(number) = number.parse::<u32>()
    {
        let unit = match text.as_bytes().last() {
            Some(b's') => Duration::SECOND,
            Some(b'm') => Duration::MINUTE,
            Some(b'h') => Duration::HOUR,
            _ => Duration::DAY,
        };
        return Ok(Moment::Ago(unit * number));
    }
    let whole = if text.contains('T') { text.to_owned() } else { format!("{text}T00:00:00Z") };
    OffsetDateTime::parse(&whole, &Rfc3339).map(Moment::At).map_err(|_| {
        "write it like 2026-11-15T12:00:00Z, 2026-11-15 or 2h for two hours ago".to_owned()
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use time::macros::datetime;

    use super::*;

    #[test]
    fn a_value_is_json_or_the_text_itself() {
        assert_eq!(value("true"), json!(true));
        assert_eq!(value("[1, 2]"), json!([1, 2]));
        assert_eq!(value("\"3\""), json!("3"));
        assert_eq!(value("deep thought"), json!("deep thought"));
    }

    #[test]
    fn money_is_read_exactly_or_not_at_all() {
        assert_eq!(money("12.50"), Ok(12_500_000));
        assert_eq!(money("0.000001"), Ok(1));
        assert_eq!(money("3"), Ok(3_000_000));
        assert_eq!(money(".5"), Ok(500_000));
        for wrong in ["", ".", "-1", "1.0000001", "1,5", "1e3", "99999999999999999999"] {
            assert!(money(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_moment_is_a_time_a_day_or_so_long_ago() {
        let now = datetime!(2026-11-15 12:00 UTC);
        let written = |text: &str| moment(text).unwrap().written(now).unwrap();
        assert_eq!(written("2026-11-01T08:00:00Z"), "2026-11-01T08:00:00Z");
        assert_eq!(written("2026-11-01"), "2026-11-01T00:00:00Z");
        assert_eq!(written("90m"), "2026-11-15T10:30:00Z");
        assert_eq!(written("3d"), "2026-11-12T12:00:00Z");
        for wrong in ["yesterday", "2h30", "", "m"] {
            assert!(moment(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn what_was_not_said_is_not_sent_and_a_change_of_nothing_is_none() {
        assert_eq!(said(json!({ "a": 1, "b": null })), json!({ "a": 1 }));
        assert_eq!(changes(json!({ "a": null })).unwrap_err().kind, Kind::Usage);
    }
}
