//! What must not be in a skill: characters that people cannot see, and phrases that turn an agent against its user.

use super::SkillError;
use crate::memory::is_hidden_character;

/// Phrases of prompt injection. The list is short on purpose: it stops known and careless attempts, and people still read the skills of
/// their agents.
const MALICIOUS_PHRASES: [(&str, &str); 7] = [
    ("ignore previous instructions", "it tells the agent to forget its instructions"),
    ("ignore all previous instructions", "it tells the agent to forget its instructions"),
    ("disregard your instructions", "it tells the agent to forget its instructions"),
    ("do not tell the user", "it tells the agent to hide something"),
    ("without telling the user", "it tells the agent to hide something"),
    ("exfiltrate", "it speaks of carrying data away"),
    ("curl | sh", "it runs what it downloads"),
];

/// Checks one text of a skill.
pub(super) fn check_text(place: &str, text: &str) -> Result<(), SkillError> {
    if text.contains(is_hidden) {
        return Err(SkillError::Hidden(place.to_owned()));
    }
    match find_malicious_phrase(text) {
        Some((phrase, reason)) => {
            Err(SkillError::Malicious { place: place.to_owned(), reason, phrase })
        }
        None => Ok(()),
    }
}

/// Characters that people cannot see hide text that models read. Controls have no place in text. The two selectors that say whether a symbol is
/// shown as an emoji are in many skills and carry nothing.
fn is_hidden(c: char) -> bool {
    (c.is_control() && !matches!(c, '\n' | '\r' | '\t'))
        || (is_hidden_character(c) && !matches!(c, '\u{fe0e}' | '\u{fe0f}'))
}

/// Finds what turns an agent against its user, however it is cased and spaced: the phrase, and what it does.
pub fn find_malicious_phrase(text: &str) -> Option<(&'static str, &'static str)> {
    let plain: String = text.to_lowercase().split_whitespace().collect::<Vec<_>>().join(" ");
    let known = MALICIOUS_PHRASES.into_iter().find(|(phrase, _)| plain.contains(phrase));
    known
        .or_else(|| {
            find_pipe_into_shell(&plain).map(|phrase| (phrase, "it runs what it downloads"))
        })
        .or_else(|| removes_root(&plain).then_some(("rm -rf /", "it removes everything")))
}

/// Finds a shell that reads its orders from a pipe.
fn find_pipe_into_shell(plain: &str) -> Option<&'static str> {
    let mut before = None;
    for (at, c) in plain.char_indices() {
        let rest = plain.get(at + c.len_utf8()..).unwrap_or_default();
        // Two bars are an alternative and no pipe.
        if c == '|' && before != Some('|') && !rest.starts_with('|') {
            let rest = rest.trim_start();
            let rest = rest.strip_prefix("sudo ").unwrap_or(rest);
            let word = rest.split(|c: char| !c.is_ascii_alphanumeric()).next().unwrap_or_default();
            match word {
                "sh" => return Some("| sh"),
                "bash" => return Some("| bash"),
                "zsh" => return Some("| zsh"),
                _ => {}
            }
        }
        before = Some(c);
    }
    None
}

/// Whether it removes the root of the file system, and not a folder below it.
fn removes_root(plain: &str) -> bool {
    plain.match_indices("rm -rf /").any(|(at, found)| {
        let next = plain.get(at + found.len()..).and_then(|rest| rest.chars().next());
        !next.is_some_and(|c| c.is_alphanumeric() || matches!(c, '.' | '_' | '-' | '$' | '{' | '<'))
    })
}
