//! How things look to a person: times as distances from now, states in their colours, numbers that can be read.

use serde_json::Value;
use time::{Duration, OffsetDateTime};

use crate::{
    draw,
    terminal::{Paint, Style},
};

/// How things look now.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Look {
    pub(crate) paint: Paint,
    pub(crate) now: OffsetDateTime,
}

impl Look {
    /// By the clock of this machine.
    #[expect(clippy::disallowed_methods, reason = "this is the clock of the command line")]
    pub(crate) fn now(paint: Paint) -> Self {
        Self { paint, now: OffsetDateTime::now_utc() }
    }

    /// How long ago, or in how long.
    pub(crate) fn when(&self, at: OffsetDateTime) -> String {
        let away = at - self.now;
        if away.is_positive() && away > Duration::seconds(1) {
            return format!("in {}", length(away));
        }
        match length(away.abs()).as_str() {
            "0 s" => "now".to_owned(),
            length => format!("{length} ago"),
        }
    }

    /// The same, if ever.
    pub(crate) fn when_ever(&self, at: Option<OffsetDateTime>) -> String {
        at.map(|at| self.when(at)).unwrap_or_default()
    }

    /// A state in the colour of what it means.
    pub(crate) fn state(&self, word: &str) -> String {
        let style = match word {
            "active" | "allow" | "accepted" | "answered" | "approved" | "alive" | "completed"
            | "done" | "merged" | "ok" | "passed" | "sent" | "used" | "whole" => Style::Green,
            "deny" | "dropped" | "failed" | "gone" | "lost" | "refused" | "removed" | "silent" => {
                Style::Red
            }
            "asked" | "changed" | "draining" | "given_up" | "interrupted" | "needs_approval"
            | "new" | "parked" | "pending" | "revoked" | "unavailable" => Style::Yellow,
            "claimed" | "delegated" | "open" | "opening" | "running" => Style::Cyan,
            _ => Style::Dim,
        };
        self.paint.dye(style, word)
    }

    /// Whether something holds.
    pub(crate) fn yes(&self, holds: bool) -> String {
        if holds { self.paint.dye(Style::Green, "yes") } else { self.paint.dye(Style::Dim, "no") }
    }

    /// What matters most.
    pub(crate) fn bold(&self, text: &str) -> String {
        self.paint.dye(Style::Bold, text)
    }

    /// What matters least.
    pub(crate) fn dim(&self, text: &str) -> String {
        self.paint.dye(Style::Dim, text)
    }
}

/// A stretch of time in its largest unit, rounded.
fn length(time: Duration) -> String {
    let seconds = time.whole_seconds();
    let rounded = |unit: i64| (seconds + unit / 2) / unit;
    match seconds {
        ..60 => format!("{seconds} s"),
        60..3_570 => format!("{} min", rounded(60)),
        3_570..171_000 => format!("{} h", rounded(3_600)),
        _ => format!("{} d", rounded(86_400)),
    }
}

/// Money, from millionths; what is owed has a minus.
pub(crate) fn money(micros: i64) -> String {
    let sign = if micros < 0 { "-" } else { "" };
    format!("{sign}{}", draw::money(micros.unsigned_abs()))
}

/// A number in groups of three.
pub(crate) fn number(number: i64) -> String {
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

/// A text of others with what a terminal would obey, or what cannot be seen, written out: nobody decides about what is
/// hidden. Lines and tabs stay.
pub(crate) fn visible(text: &str) -> String {
    let mut written = String::with_capacity(text.len());
    for character in text.chars() {
        let hidden = match character {
            '\n' | '\t' => false,
            '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{feff}' => true,
            '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}' | '\u{3164}' | '\u{ffa0}' => true,
            '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' => true,
            '\u{180b}'..='\u{180f}' | '\u{fe00}'..='\u{fe0f}' | '\u{fff9}'..='\u{fffb}' => true,
            '\u{e0000}'..='\u{e0fff}' => true,
            other => other.is_control(),
        };
        if hidden {
            written.extend(character.escape_unicode());
        } else {
            written.push(character);
        }
    }
    written
}

/// The same for every text in a value.
pub(crate) fn all_visible(value: Value) -> Value {
    match value {
        Value::String(text) => Value::String(visible(&text)),
        Value::Array(items) => items.into_iter().map(all_visible).collect(),
        Value::Object(fields) => {
            fields.into_iter().map(|(name, value)| (visible(&name), all_visible(value))).collect()
        }
        other => other,
    }
}

/// A value of JSON on one line, a text without its quotation marks.
pub(crate) fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// A value of JSON as people read it.
pub(crate) fn pretty(value: &Value) -> String {
    serde_json::to_string_pretty(value).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use time::macros::datetime;

    use super::*;

    #[test]
    fn times_are_told_from_now_in_their_largest_unit() {
        let look = Look { paint: Paint(false), now: datetime!(2026-11-15 12:00 UTC) };
        let told = [
            (datetime!(2026-11-15 12:00 UTC), "now"),
            (datetime!(2026-11-15 11:59:30 UTC), "30 s ago"),
            (datetime!(2026-11-15 11:57 UTC), "3 min ago"),
            (datetime!(2026-11-14 13:00 UTC), "23 h ago"),
            (datetime!(2026-11-01 12:00 UTC), "14 d ago"),
            (datetime!(2026-11-15 14:00 UTC), "in 2 h"),
        ];
        for (at, words) in told {
            assert_eq!(look.when(at), words);
        }
    }

    #[test]
    fn what_hides_is_written_out_and_lines_and_tabs_stay() {
        assert_eq!(visible("a\u{1b}[8mb\n\tc\u{202e}d"), "a\\u{1b}[8mb\n\tc\\u{202e}d");
        let value = serde_json::json!({ "a": ["\u{7}", 1], "b\u{200b}": null });
        assert_eq!(
            all_visible(value),
            serde_json::json!({ "a": ["\\u{7}", 1], "b\\u{200b}": null })
        );
    }

    #[test]
    fn numbers_are_grouped_and_money_has_its_sign() {
        assert_eq!([0, 999, 1_000, -1_234_567].map(number), ["0", "999", "1,000", "-1,234,567"]);
        assert_eq!([1_500_000, -250_000].map(money), ["1.5000", "-0.2500"]);
    }

    #[test]
    fn a_state_has_the_colour_of_what_it_means_and_none_without_colours() {
        let look = Look { paint: Paint(true), now: datetime!(2026-11-15 12:00 UTC) };
        assert_eq!(look.state("failed"), "\u{1b}[31mfailed\u{1b}[0m");
        let look = Look { paint: Paint(false), ..look };
        assert_eq!((look.state("failed"), look.yes(true)), ("failed".to_owned(), "yes".to_owned()));
    }
}
