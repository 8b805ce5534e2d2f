//! Untrusted text on a terminal: no control sequence takes effect, and nothing is hidden. It is pure.

/// Removes control sequences and hidden characters from untrusted text: line breaks and words stay, tabs become spaces. For
/// text that is only glanced at, such as coloured program output; see [`crate::terminal::escape_for_terminal`] for text that a
/// person decides by.
pub fn sanitize_text(text: &str) -> String {
    let mut kept = String::with_capacity(text.len());
    let mut rest = text.chars().peekable();
    while let Some(one) = rest.next() {
        match one {
            '\u{1b}' => match rest.next() {
                // A control sequence ends with a letter or a sign, a string with a bell or an escape.
                Some('[') => while rest.next().is_some_and(|it| !('@'..='~').contains(&it)) {},
                Some(']' | 'P' | '^' | '_' | 'X') => {
                    while let Some(inner) = rest.next() {
                        if inner == '\u{7}' || inner == '\u{1b}' && rest.next() == Some('\\') {
                            break;
                        }
                    }
                }
                _ => {}
            },
            '\n' => kept.push('\n'),
            '\t' => kept.push_str("    "),
            one if one.is_control() || is_bidi_control(one) => {}
            one => kept.push(one),
        }
    }
    kept
}

/// Returns whether a character is a bidirectional control.
const fn is_bidi_control(one: char) -> bool {
    matches!(one, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Escapes control characters and invisible characters in untrusted text: a person must not decide about hidden content. Line
/// breaks and tabs stay.
pub(crate) fn escape_invisible(text: &str) -> String {
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
