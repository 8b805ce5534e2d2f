//! Formatting for people: relative times, coloured states, readable numbers.

use cynode_core::budget::Currency;
use serde_json::Value;
use time::{Duration, OffsetDateTime};

pub(crate) use crate::untrusted_text::escape_invisible;

use crate::terminal::{Colorizer, TextStyle};

/// Formats values at the current time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ValueFormatter {
    pub(crate) paint: Colorizer,
    pub(crate) now: OffsetDateTime,
    /// Currency of amounts.
    pub(crate) currency: Currency,
}

impl ValueFormatter {
    /// Uses the clock of this machine.
    #[expect(clippy::disallowed_methods, reason = "this is the clock of the command line")]
    pub(crate) fn with_current_time(paint: Colorizer, currency: Currency) -> Self {
        Self { paint, now: OffsetDateTime::now_utc(), currency }
    }

    /// Formats an amount in millionths; a negative one has a minus.
    pub(crate) fn format_money(&self, micros: i64) -> String {
        format!("{} {}", format_signed_amount(micros), self.currency)
    }

    /// Formats a time relative to now.
    pub(crate) fn format_relative_time(&self, at: OffsetDateTime) -> String {
        let away = at - self.now;
        if away.is_positive() && away > Duration::seconds(1) {
            return format!("in {}", format_duration(away));
        }
        match format_duration(away.abs()).as_str() {
            "0 s" => "now".to_owned(),
            length => format!("{length} ago"),
        }
    }

    /// Formats an optional time relative to now.
    pub(crate) fn format_optional_time(&self, at: Option<OffsetDateTime>) -> String {
        at.map(|at| self.format_relative_time(at)).unwrap_or_default()
    }

    /// Returns a state in the colour of its meaning.
    pub(crate) fn style_state(&self, word: &str) -> String {
        let style = match word {
            "active" | "allow" | "accepted" | "answered" | "approved" | "alive" | "completed"
            | "done" | "merged" | "ok" | "passed" | "sent" | "used" | "whole" => TextStyle::Green,
            "deny" | "dropped" | "failed" | "gone" | "lost" | "refused" | "removed" | "silent" => {
                TextStyle::Red
            }
            "asked" | "changed" | "draining" | "given_up" | "interrupted" | "needs_approval"
            | "new" | "parked" | "pending" | "revoked" | "unavailable" => TextStyle::Yellow,
            "claimed" | "delegated" | "open" | "opening" | "running" => TextStyle::Cyan,
            _ => TextStyle::Dim,
        };
        self.paint.apply_style(style, word)
    }

    /// Formats a boolean.
    pub(crate) fn format_yes_no(&self, holds: bool) -> String {
        if holds {
            self.paint.apply_style(TextStyle::Green, "yes")
        } else {
            self.paint.apply_style(TextStyle::Dim, "no")
        }
    }

    /// Emphasises a text.
    pub(crate) fn style_bold(&self, text: &str) -> String {
        self.paint.apply_style(TextStyle::Bold, text)
    }

    /// De-emphasises a text.
    pub(crate) fn style_dim(&self, text: &str) -> String {
        self.paint.apply_style(TextStyle::Dim, text)
    }
}

/// Formats a duration in its largest unit, rounded.
fn format_duration(time: Duration) -> String {
    let seconds = time.whole_seconds();
    let rounded = |unit: i64| (seconds + unit / 2) / unit;
    match seconds {
        ..60 => format!("{seconds} s"),
        60..3_570 => format!("{} min", rounded(60)),
        3_570..171_000 => format!("{} h", rounded(3_600)),
        _ => format!("{} d", rounded(86_400)),
    }
}

/// Formats an amount in millionths without its currency; a negative one has a minus.
pub(crate) fn format_signed_amount(micros: i64) -> String {
    let sign = if micros < 0 { "-" } else { "" };
    format!("{sign}{}", format_amount(micros.unsigned_abs()))
}

/// Formats a number in groups of three digits.
pub(crate) fn group_digits(number: i64) -> String {
    let digits = number.unsigned_abs().to_string();
    let mut written = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            written.push(',');
        }
        written.push(digit);
    }
    if number < 0 { format!("-{written}") } else { written }
}

/// Formats an amount in millionths without its currency.
pub fn format_amount(micros: u64) -> String {
    let (whole, rest) = (micros / 1_000_000, micros % 1_000_000);
    format!("{whole}.{:04}", rest / 100)
}

/// Escapes control characters and invisible characters in every text of a JSON value.
pub(crate) fn escape_invisible_in_json(value: Value) -> Value {
    match value {
        Value::String(text) => Value::String(escape_invisible(&text)),
        Value::Array(items) => items.into_iter().map(escape_invisible_in_json).collect(),
        Value::Object(fields) => fields
            .into_iter()
            .map(|(name, value)| (escape_invisible(&name), escape_invisible_in_json(value)))
            .collect(),
        other => other,
    }
}

/// Formats a JSON value on one line, a text without its quotation marks.
pub(crate) fn to_plain_text(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// Formats a JSON value for people.
pub(crate) fn to_pretty_json(value: &Value) -> String {
    serde_json::to_string_pretty(value).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use time::macros::datetime;

    use super::*;

    #[test]
    fn times_are_told_from_now_in_their_largest_unit() {
        let look = ValueFormatter {
            paint: Colorizer(false),
            now: datetime!(2026-11-15 12:00 UTC),
            currency: Currency::USD,
        };
        let told = [
            (datetime!(2026-11-15 12:00 UTC), "now"),
            (datetime!(2026-11-15 11:59:30 UTC), "30 s ago"),
            (datetime!(2026-11-15 11:57 UTC), "3 min ago"),
            (datetime!(2026-11-14 13:00 UTC), "23 h ago"),
            (datetime!(2026-11-01 12:00 UTC), "14 d ago"),
            (datetime!(2026-11-15 14:00 UTC), "in 2 h"),
        ];
        for (at, words) in told {
            assert_eq!(look.format_relative_time(at), words);
        }
    }

    #[test]
    fn what_hides_is_written_out_and_lines_and_tabs_stay() {
        assert_eq!(escape_invisible("a\u{1b}[8mb\n\tc\u{202e}d"), "a\\u{1b}[8mb\n\tc\\u{202e}d");
        let value = serde_json::json!({ "a": ["\u{7}", 1], "b\u{200b}": null });
        assert_eq!(
            escape_invisible_in_json(value),
            serde_json::json!({ "a": ["\\u{7}", 1], "b\\u{200b}": null })
        );
    }

    #[test]
    fn numbers_are_grouped_and_money_has_its_sign() {
        assert_eq!(
            [0, 999, 1_000, -1_234_567].map(group_digits),
            ["0", "999", "1,000", "-1,234,567"]
        );
        assert_eq!([1_500_000, -250_000].map(format_signed_amount), ["1.5000", "-0.2500"]);
    }

    #[test]
    fn a_state_has_the_colour_of_what_it_means_and_none_without_colours() {
        let look = ValueFormatter {
            paint: Colorizer(true),
            now: datetime!(2026-11-15 12:00 UTC),
            currency: Currency::USD,
        };
        assert_eq!(look.style_state("failed"), "\u{1b}[31mfailed\u{1b}[0m");
        let look = ValueFormatter { paint: Colorizer(false), ..look };
        assert_eq!(
            (look.style_state("failed"), look.format_yes_no(true)),
            ("failed".to_owned(), "yes".to_owned())
        );
    }
}
