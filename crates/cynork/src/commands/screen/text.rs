//! Text for a grid of cells: escapes hidden characters, truncates or wraps long lines, formats times and sums briefly.

use time::{Duration, OffsetDateTime};

use crate::format::escape_invisible;
pub(super) use crate::{draw::render_bar, terminal::display_width};

/// Escapes control characters and invisible characters.
pub(super) fn sanitize_for_display(text: &str) -> String {
    escape_invisible(&text.replace('\t', "    "))
}

/// Returns the sanitized lines of a text.
pub(super) fn sanitize_lines(text: &str) -> Vec<String> {
    text.lines().map(sanitize_for_display).collect()
}

/// Returns the sanitized first line of a text.
pub(super) fn first_sanitized_line(text: &str) -> String {
    sanitize_for_display(
        text.lines().find(|line| !line.trim().is_empty()).unwrap_or_default().trim(),
    )
}

/// Truncates a text to this number of cells, with a mark.
pub(super) fn truncate_to_cells(text: &str, most: usize) -> String {
    if display_width(text) <= most {
        return text.to_owned();
    }
    let Some(room) = most.checked_sub(1) else { return String::new() };
    let (head, _) = split_at_cells(text, room);
    format!("{}…", head.trim_end())
}

/// Truncates or pads a text to exactly this number of cells.
pub(super) fn pad_to_cells(text: &str, cells: usize) -> String {
    let mut shown = truncate_to_cells(text, cells);
    let missing = cells.saturating_sub(display_width(&shown));
    shown.extend(std::iter::repeat_n(' ', missing));
    shown
}

/// Does the same, aligned right.
pub(super) fn align_right(text: &str, cells: usize) -> String {
    let shown = truncate_to_cells(text, cells);
    let missing = cells.saturating_sub(display_width(&shown));
    format!("{}{shown}", " ".repeat(missing))
}

/// Splits a text after this number of cells.
fn split_at_cells(text: &str, cells: usize) -> (&str, &str) {
    let mut used = 0;
    for (at, letter) in text.char_indices() {
        let end = at + letter.len_utf8();
        used += display_width(&text[at..end]);
        if used > cells {
            return text.split_at(at);
        }
    }
    (text, "")
}

/// Wraps a line between words where possible. The first line may be narrower than the rest.
pub(super) fn wrap_words(text: &str, cells: usize) -> Vec<String> {
    let cells = cells.max(1);
    let mut lines = Vec::new();
    for line in text.lines() {
        let mut rest = line.trim_end();
        let before = lines.len();
        while display_width(rest) > cells {
            let (head, _) = split_at_cells(rest, cells);
            // At least one character: a character that is wider than the room is shown all the same.
            let least = rest.chars().next().map_or(rest.len(), char::len_utf8);
            let end = head.len().max(least);
            let after_space = rest[end..].starts_with(' ');
            let spaces = rest[..end].rfind(' ').filter(|at| !rest[..*at].trim().is_empty());
            let end = if after_space { end } else { spaces.unwrap_or(end) };
            lines.push(rest[..end].trim_end().to_owned());
            rest = rest[end..].trim_start();
        }
        if !rest.is_empty() || lines.len() == before {
            lines.push(rest.to_owned());
        }
    }
    lines
}

/// Wraps a line at exactly this number of cells: no cell is lost.
pub(super) fn hard_wrap(text: &str, cells: usize) -> Vec<String> {
    let cells = cells.max(2);
    let (head, mut rest) = split_at_cells(text, cells);
    let mut lines = vec![head.to_owned()];
    while !rest.is_empty() {
        let (head, more) = split_at_cells(rest, cells);
        lines.push(head.to_owned());
        rest = more;
    }
    lines
}

/// Formats an age in two or three characters.
pub(super) fn format_age(then: OffsetDateTime, now: OffsetDateTime) -> String {
    let seconds = (now - then).whole_seconds().max(0);
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3600 => format!("{}m", seconds / 60),
        3600..86_400 => format!("{}h", seconds / 3600),
        _ => format!("{}d", seconds / 86_400),
    }
}

/// Formats a duration: `4.2s`, `3:07`, `2:03:07`, `3d 2h`.
pub(super) fn format_duration(time: Duration) -> String {
    let time = time.max(Duration::ZERO);
    let seconds = time.whole_seconds();
    match seconds {
        0..10 => format!("{}.{}s", seconds, time.subsec_milliseconds() / 100),
        10..60 => format!("{seconds}s"),
        60..3600 => format!("{}:{:02}", seconds / 60, seconds % 60),
        3600..86_400 => {
            format!("{}:{:02}:{:02}", seconds / 3600, seconds / 60 % 60, seconds % 60)
        }
        _ => format!("{}d {}h", seconds / 86_400, seconds / 3600 % 24),
    }
}

/// Formats a count briefly: `950`, `12.3k`, `4.5M`.
pub(super) fn format_count(number: u64) -> String {
    match number {
        0..1000 => number.to_string(),
        1000..1_000_000 => format!("{}.{}k", number / 1000, number % 1000 / 100),
        _ => format!("{}.{}M", number / 1_000_000, number % 1_000_000 / 100_000),
    }
}

/// Formats memory or disk space from mebibytes.
pub(super) fn format_mebibytes(number: u64) -> String {
    if number < 1024 {
        format!("{number}M")
    } else {
        format!("{}.{}G", number / 1024, number % 1024 * 10 / 1024)
    }
}

#[cfg(test)]
mod tests {
    use time::macros::datetime;

    use super::*;

    #[test]
    fn what_hides_or_commands_is_written_out() {
        assert_eq!(
            sanitize_for_display("rm\u{202e} -rf\u{200b}\u{1b}[2J\tx"),
            "rm\\u{202e} -rf\\u{200b}\\u{1b}[2J    x"
        );
        assert_eq!(sanitize_for_display("Grüße 漢字"), "Grüße 漢字");
    }

    #[test]
    fn what_is_too_long_is_cut_with_a_mark_and_wide_letters_count_twice() {
        assert_eq!(truncate_to_cells("abcdef", 6), "abcdef");
        assert_eq!(truncate_to_cells("abcdefg", 6), "abcde…");
        assert_eq!(truncate_to_cells("漢字漢字", 5), "漢字…");
        assert_eq!(truncate_to_cells("abc", 0), "");
        assert_eq!(pad_to_cells("漢字漢字", 6), "漢字… ");
        assert_eq!(align_right("1.5", 6), "   1.5");
    }

    #[test]
    fn lines_are_broken_between_words_and_lose_nothing() {
        assert_eq!(wrap_words("one two three", 8), ["one two", "three"]);
        assert_eq!(wrap_words("onetwothree", 4), ["onet", "woth", "ree"]);
        assert_eq!(wrap_words("a\n\nb", 4), ["a", "", "b"]);
        assert_eq!(wrap_words("漢字", 1), ["漢", "字"]);
        assert_eq!(wrap_words("  indented words", 12), ["  indented", "words"]);
    }

    #[test]
    fn lines_that_are_chopped_are_whole_when_put_together() {
        for text in ["", "+    let  x = 1;", "漢字漢字 ab", "abc"] {
            for cells in 2..9 {
                let lines = hard_wrap(text, cells);
                assert_eq!(lines.concat(), text);
                assert!(lines.iter().all(|line| display_width(line) <= cells), "{lines:?}");
            }
        }
    }

    #[test]
    fn times_are_short() {
        let then = datetime!(2026-11-01 12:00 UTC);
        let ages = [3, 62, 7300, 200_000].map(|it| format_age(then, then + Duration::seconds(it)));
        assert_eq!(ages, ["3s", "1m", "2h", "2d"]);
        assert_eq!(format_age(then, then - Duration::seconds(5)), "0s");
        let took = [4_250, 59_000, 187_000, 7_387_000, 266_400_000]
            .map(|it| format_duration(Duration::milliseconds(it)));
        assert_eq!(took, ["4.2s", "59s", "3:07", "2:03:07", "3d 2h"]);
    }

    #[test]
    fn bars_are_empty_for_next_to_nothing_and_full_only_for_all() {
        assert_eq!(render_bar(0, 10, 4), "░░░░");
        assert_eq!(render_bar(1, 1000, 4), "░░░░");
        assert_eq!(render_bar(2, 10, 4), "█░░░");
        assert_eq!(render_bar(5, 10, 4), "██░░");
        assert_eq!(render_bar(999, 1000, 4), "███░");
        assert_eq!(render_bar(30, 10, 4), "████");
        assert_eq!(render_bar(3, 0, 2), "██");
    }

    #[test]
    fn great_numbers_are_short() {
        assert_eq!([999, 12_345, 4_560_000].map(format_count), ["999", "12.3k", "4.5M"]);
        assert_eq!([512, 1536].map(format_mebibytes), ["512M", "1.5G"]);
    }
}
