//! The fence around untrusted text in a prompt: each line begins with a bar. It is pure.

use std::fmt::Write as _;

/// Prefix of every line of untrusted content.
pub const QUOTE_PREFIX: &str = "| ";

/// Quotes untrusted text: each line gets the prefix, and the size is limited.
pub fn quote_untrusted(text: &str, most: usize) -> String {
    let kept = truncate_text(text, most);
    let mut out = String::with_capacity(kept.len() + 64);
    for line in kept.split(is_line_break) {
        out.push_str(QUOTE_PREFIX);
        // Invisible characters could hide text from a person who reads the prompt.
        out.extend(line.chars().filter(|c| !c.is_control() || *c == '\t'));
        out.push('\n');
    }
    if kept.len() < text.len() {
        let _ = writeln!(out, "{QUOTE_PREFIX}[cut: {} bytes more]", text.len() - kept.len());
    }
    out
}

/// Returns the beginning of a text, cut at a character boundary.
pub fn truncate_text(text: &str, most: usize) -> &str {
    &text[..text.floor_char_boundary(most)]
}

/// Returns whether any reader could treat the character as a line break.
pub(super) const fn is_line_break(c: char) -> bool {
    matches!(
        c,
        '\n' | '\r' | '\u{b}' | '\u{c}' | '\u{1c}'..='\u{1e}' | '\u{85}' | '\u{2028}' | '\u{2029}'
    )
}
