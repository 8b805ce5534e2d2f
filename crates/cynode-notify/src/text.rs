//! Formats untrusted text for display.

use std::fmt::Write as _;

/// Maximum number of characters of a line.
const MAX_LINE_CHARS: usize = 200;

/// Converts a text to a single line of limited length.
pub fn to_single_line(text: &str) -> String {
    let words: Vec<&str> = text.split(|c: char| c.is_control() || c.is_whitespace()).collect();
    let whole = escape_hidden_chars(
        &words.iter().filter(|word| !word.is_empty()).copied().collect::<Vec<_>>().join(" "),
    );
    if whole.chars().count() <= MAX_LINE_CHARS {
        return whole;
    }
    whole.chars().take(MAX_LINE_CHARS - 1).chain(['…']).collect()
}

/// Escapes every invisible character, so that a person approves exactly what they see.
pub fn escape_hidden_chars(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for character in text.chars() {
        if is_hidden(character) {
            let _ = write!(shown, "\\u{{{:x}}}", u32::from(character));
        } else {
            shown.push(character);
        }
    }
    shown
}

/// Returns whether a character is invisible, or changes the reading order of others.
fn is_hidden(character: char) -> bool {
    match character {
        '\n' | '\t' => false,
        '\u{ad}'
        | '\u{34f}'
        | '\u{61c}'
        | '\u{115f}'
        | '\u{1160}'
        | '\u{17b4}'
        | '\u{17b5}'
        | '\u{180b}'..='\u{180f}'
        | '\u{200b}'..='\u{200f}'
        | '\u{2028}'..='\u{202e}'
        | '\u{2060}'..='\u{206f}'
        | '\u{3164}'
        | '\u{fe00}'..='\u{fe0f}'
        | '\u{feff}'
        | '\u{ffa0}'
        | '\u{fff0}'..='\u{fffb}'
        | '\u{e0000}'..='\u{e0fff}' => true,
        character => character.is_control(),
    }
}

/// Returns the longest prefix that fits into `most` bytes; `None` if the whole text fits.
pub fn truncate_to_bytes(text: &str, most: usize) -> Option<&str> {
    if text.len() <= most {
        return None;
    }
    let end = (0..=most).rev().find(|end| text.is_char_boundary(*end)).unwrap_or_default();
    text.get(..end)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_line_is_one_line_and_ends() {
        assert_eq!(to_single_line(" a\r\nBcc: b@c\t d\0 "), "a Bcc: b@c d");
        assert_eq!(to_single_line(""), "");
        assert_eq!(to_single_line(&"é".repeat(300)).chars().count(), 200);
    }

    #[test]
    fn what_cannot_be_seen_is_written_out() {
        assert_eq!(
            escape_hidden_chars("rm\u{202e}x -rf\u{200b} /\n\tok\u{1b}[2J"),
            "rm\\u{202e}x -rf\\u{200b} /\n\tok\\u{1b}[2J"
        );
        assert_eq!(escape_hidden_chars("a\u{e0041}b\u{feff}"), "a\\u{e0041}b\\u{feff}");
        assert_eq!(escape_hidden_chars("größe 漢字 — ok"), "größe 漢字 — ok");
    }

    proptest! {
        #[test]
        fn no_line_holds_a_control_character(text in any::<String>()) {
            prop_assert!(!to_single_line(&text).chars().any(char::is_control));
        }

        #[test]
        fn a_cut_text_fits(text in any::<String>(), most in 0_usize..40) {
            match truncate_to_bytes(&text, most) {
                Some(part) => prop_assert!(part.len() <= most && text.starts_with(part)),
                None => prop_assert!(text.len() <= most),
            }
        }
    }
}
