//! Validated text types.
//!
//! A value of such a type has passed its rule and is not checked again. Every rule refuses control characters and
//! oversize input. Text that becomes part of a path or URL is limited to a short safe alphabet, which rules out path
//! traversal.

mod nearest;

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

pub use self::nearest::nearest_name;

/// Why a text was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TextError {
    /// Too short or too long.
    #[error("{what} has {min} to {max} characters, got {got}")]
    Length {
        /// What the text was to be.
        what: &'static str,
        /// Fewest characters.
        min: usize,
        /// Most characters.
        max: usize,
        /// Characters given.
        got: usize,
    },
    /// A character that is not in the alphabet.
    #[error("{what} cannot contain {bad:?}: it has {good}")]
    Character {
        /// What the text was to be.
        what: &'static str,
        /// The first bad character.
        bad: char,
        /// What it may contain.
        good: &'static str,
    },
    /// Right characters in a wrong order.
    #[error("{what} {rule}")]
    Shape {
        /// What the text was to be.
        what: &'static str,
        /// The rule that was broken, as the end of a sentence.
        rule: &'static str,
    },
}

macro_rules! checked_text {
    ($($(#[$doc:meta])* $name:ident($what:literal) = $rule:path;)+) => {$(
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(String);

        impl $name {
            /// The checked text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl FromStr for $name {
            type Err = TextError;

            fn from_str(text: &str) -> Result<Self, TextError> {
                Self::try_from(text.to_owned())
            }
        }

        impl TryFrom<String> for $name {
            type Error = TextError;

            fn try_from(text: String) -> Result<Self, TextError> {
                $rule($what, &text)?;
                Ok(Self(text))
            }
        }

        impl From<$name> for String {
            fn from(text: $name) -> Self {
                text.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    )+};
}

checked_text! {
    /// The name a user logs in with: safe in a URL, a log field and a DNS label.
    Handle("a handle") = validate_label;
    /// The name of a project in URLs and in `OpenAI-Project`.
    ProjectSlug("a project slug") = validate_label;
    /// The name of a group of users.
    GroupName("a group name") = validate_label;
    /// The name of a task, unique in its project: lower-case words joined by single dashes.
    TaskName("a task name") = validate_label;
    /// The name of a profile, unique in its project and in the installation.
    ProfileName("a profile name") = validate_label;
    /// A dotted key of a preference or setting, such as `agents.project_manager.additional_context`.
    DottedKey("a key") = validate_dotted_key;
    /// One line that people read: a title, a display name.
    Title("a title") = validate_line;
    /// Text of several lines: a brief, an acceptance criterion.
    Prose("a text") = validate_prose;
    /// An address of a person. It is personal data and is never logged.
    EmailAddress("an e-mail address") = validate_email;
}

impl TaskName {
    /// Most characters of a base from which a name with a number is made.
    const MAX_BASE_CHARS: usize = 56;

    /// A name from the first words of a brief; `task` when there is no usable word.
    pub fn derive_name(brief: &str) -> Self {
        let words =
            brief.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
        // A name starts with a letter, so that it can never be mistaken for a number.
        let lettered = words
            .clone()
            .next()
            .is_some_and(|word| word.starts_with(|c: char| c.is_ascii_alphabetic()));
        let mut name = if lettered { String::new() } else { "task".to_owned() };
        for word in words.take(6) {
            if name.len() + 1 + word.len() > Self::MAX_BASE_CHARS {
                break;
            }
            if !name.is_empty() {
                name.push('-');
            }
            name.push_str(&word.to_ascii_lowercase());
        }
        Self(if name.is_empty() { "task".to_owned() } else { name })
    }

    /// The `number`-th name of this kind in a project: `deploy-docs`, `deploy-docs-2`, …
    #[must_use]
    pub fn with_number(&self, number: u32) -> Self {
        if number <= 1 { self.clone() } else { Self(format!("{}-{number}", self.0)) }
    }
}

impl Default for ProfileName {
    /// The profile of agents that were given none.
    fn default() -> Self {
        Self("default".to_owned())
    }
}

impl Handle {
    /// A handle from the name that a directory gives a person, such as an e-mail address; `user` when there is no usable
    /// word.
    pub fn derive_handle(user_name: &str) -> Self {
        Self(derive_label(user_name.split('@').next().unwrap_or_default(), "user"))
    }

    /// The `number`-th handle of this kind: `ada`, `ada-2`, …
    #[must_use]
    pub fn with_number(&self, number: u32) -> Self {
        if number <= 1 { self.clone() } else { Self(format!("{}-{number}", self.0)) }
    }
}

impl GroupName {
    /// A name from the one that a directory gives a group; `group` when there is no usable word.
    pub fn derive_name(display_name: &str) -> Self {
        Self(derive_label(display_name, "group"))
    }

    /// The `number`-th name of this kind: `admins`, `admins-2`, …
    #[must_use]
    pub fn with_number(&self, number: u32) -> Self {
        if number <= 1 { self.clone() } else { Self(format!("{}-{number}", self.0)) }
    }
}

/// Most characters of a label that may still get a number.
const MAX_DERIVED_CHARS: usize = 56;

/// A label from the letters and digits of a text. It starts with a letter.
fn derive_label(text: &str, fallback: &str) -> String {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
    let mut label = words.map(str::to_ascii_lowercase).collect::<Vec<_>>().join("-");
    if !label.starts_with(|c: char| c.is_ascii_lowercase()) {
        label = if label.is_empty() { fallback.to_owned() } else { format!("{fallback}-{label}") };
    }
    label.truncate(MAX_DERIVED_CHARS);
    label.trim_end_matches('-').to_owned()
}

fn check_length(what: &'static str, text: &str, min: usize, max: usize) -> Result<(), TextError> {
    let got = text.chars().count();
    if (min..=max).contains(&got) { Ok(()) } else { Err(TextError::Length { what, min, max, got }) }
}

fn check_alphabet(
    what: &'static str,
    text: &str,
    good: &'static str,
    is_good: fn(char) -> bool,
) -> Result<(), TextError> {
    match text.chars().find(|c| !is_good(*c)) {
        Some(bad) => Err(TextError::Character { what, bad, good }),
        None => Ok(()),
    }
}

fn validate_label(what: &'static str, text: &str) -> Result<(), TextError> {
    check_length(what, text, 1, 63)?;
    let good = "small letters, digits and dashes only";
    check_alphabet(what, text, good, |c| matches!(c, 'a'..='z' | '0'..='9' | '-'))?;
    if !text.starts_with(|c: char| c.is_ascii_lowercase()) {
        return Err(TextError::Shape { what, rule: "starts with a letter" });
    }
    if text.ends_with('-') || text.contains("--") {
        return Err(TextError::Shape { what, rule: "has single dashes, between words only" });
    }
    Ok(())
}

fn validate_dotted_key(what: &'static str, text: &str) -> Result<(), TextError> {
    check_length(what, text, 1, 200)?;
    let good = "small letters, digits, dots, dashes and underscores only";
    check_alphabet(what, text, good, |c| matches!(c, 'a'..='z' | '0'..='9' | '_' | '-' | '.'))?;
    if text.split('.').any(str::is_empty) {
        return Err(TextError::Shape { what, rule: "has no empty part between dots" });
    }
    Ok(())
}

fn validate_line(what: &'static str, text: &str) -> Result<(), TextError> {
    check_length(what, text, 1, 200)?;
    let good = "one line, without what cannot be seen";
    check_alphabet(what, text, good, |c| !is_hidden_char(c) && c != '\n' && c != '\t')?;
    if text.trim() != text {
        return Err(TextError::Shape { what, rule: "has no space at either end" });
    }
    Ok(())
}

fn validate_prose(what: &'static str, text: &str) -> Result<(), TextError> {
    check_length(what, text, 1, 20_000)?;
    check_alphabet(what, text, "only what can be seen", |c| !is_hidden_char(c))
}

fn validate_email(what: &'static str, text: &str) -> Result<(), TextError> {
    check_length(what, text, 3, 254)?;
    check_alphabet(what, text, "no spaces", |c| !is_hidden_char(c) && !c.is_whitespace())?;
    match text.split_once('@') {
        Some((local, host)) if !local.is_empty() && host.contains('.') && !host.contains('@') => {
            Ok(())
        }
        Some(_) | None => Err(TextError::Shape { what, rule: "has the form name@host" }),
    }
}

/// Characters that a person cannot see and that change what others see: controls other than line
/// feed and tab, and the bidirectional overrides used to disguise text.
fn is_hidden_char(c: char) -> bool {
    (c.is_control() && c != '\n' && c != '\t')
        || matches!(c, '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}')
}

#[cfg(test)]
mod tests;
