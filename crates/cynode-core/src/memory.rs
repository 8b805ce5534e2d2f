//! Memory: what a project knows under a profile, as records that are found by search.
//!
//! Everything is isolated by [`MemoryScope`]. A record that an agent proposes is found by others only after a person or a rule
//! accepted it. Scores of a search are in 0..=1, higher is better, and equal scores are ordered by id.

pub mod ingests;
pub mod prompts;

use std::borrow::Cow;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{
    ids::{MemoryId, ProjectId},
    profiles::ProfileName,
};

macro_rules! words {
    ($($(#[$doc:meta])* $name:ident { $($(#[$item_doc:meta])* $item:ident = $text:literal,)+ })+) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema)]
        #[serde(rename_all = "snake_case")]
        pub enum $name {
            $($(#[$item_doc])* $item,)+
        }

        impl $name {
            /// Every one.
            pub const ALL: &'static [Self] = &[$(Self::$item,)+];
            /// The name of every one.
            pub const NAMES: &'static [&'static str] = &[$($text,)+];

            /// The name on the wire and in the database.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$item => $text,)+ }
            }

            /// The one of that name.
            pub fn from_name(name: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|one| one.as_str() == name)
            }
        }
    )+};
}

words! {
    /// What a record of memory is.
    MemoryKind {
        /// Something that is so.
        Fact = "fact",
        /// Something that was decided.
        Decision = "decision",
        /// How things are done in the project.
        Convention = "convention",
        /// What a task or a review found out.
        Finding = "finding",
        /// A part of a document.
        Document = "document",
        /// A part of source code.
        Code = "code",
        /// A summary of other text.
        Summary = "summary",
    }

    /// Whether a record is found.
    MemoryState {
        /// An agent proposed it. Only the same task finds it.
        Proposed = "proposed",
        /// Every search of its scope finds it.
        Accepted = "accepted",
        /// A person rejected it. No search finds it, and it is not proposed again.
        Rejected = "rejected",
    }

    /// Who wrote a record.
    MemoryAuthor {
        /// A person.
        Person = "person",
        /// An agent.
        Agent = "agent",
        /// The orchestrator: an ingest, a report, a review.
        System = "system",
    }

    /// Which proposals of agents are accepted without a person.
    AcceptanceRule {
        /// None: a person decides each.
        Person = "person",
        /// None, but the same task finds its own at once. Others wait for a person.
        SameTask = "same_task",
        /// All.
        All = "all",
    }
}

/// Maximum length of a title, in characters.
pub const MAX_TITLE_CHARS: usize = 300;
/// Maximum size of the text of a record, in bytes.
pub const MAX_CONTENT_BYTES: usize = 16 * 1024;
/// Maximum length of the name of a source, in characters.
pub const MAX_SOURCE_CHARS: usize = 500;
/// Maximum length of a path, in characters.
pub const MAX_PATH_CHARS: usize = 1000;
/// Maximum length of a URL, in characters.
pub const MAX_URL_CHARS: usize = 2000;
/// Maximum length of a query, in characters. What is longer is cut.
pub const MAX_QUERY_CHARS: usize = 4000;
/// Maximum number of hits of one search.
pub const MAX_HITS: u16 = 50;
/// Characters that count as one token in an estimate.
pub const CHARS_PER_TOKEN: usize = 4;

/// The place that a record belongs to. Nothing of one scope is returned, ranked, counted or logged in another.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct MemoryScope {
    /// The project.
    pub project: ProjectId,
    /// The profile.
    pub profile: ProfileName,
}

/// A record that is given to an agent in its prompt.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct PromptMemory {
    /// The record.
    #[schema(value_type = String)]
    pub memory_id: MemoryId,
    /// What it is.
    pub kind: MemoryKind,
    /// Where it comes from.
    pub source: String,
    /// Its title.
    pub title: String,
    /// Its text, cut to the budget of the prompt.
    pub text: String,
    /// How well it fits, from 0 to 1; higher is better.
    pub score: f64,
    /// Whether a stranger may have written it: it is fenced where it is used.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub untrusted: bool,
}

impl PromptMemory {
    /// The tokens that it takes in a prompt, as an estimate.
    pub fn estimated_tokens(&self) -> usize {
        estimate_tokens(&self.title) + estimate_tokens(&self.text)
    }
}

/// The tokens of a text, as an estimate.
pub fn estimate_tokens(text: &str) -> usize {
    text.chars().count().div_ceil(CHARS_PER_TOKEN)
}

/// Why a text cannot be a record of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MemoryTextError {
    /// The title is missing or too long.
    #[error("a title of a memory has 1 to {MAX_TITLE_CHARS} characters on one line")]
    Title,
    /// There is no text, or too much of it.
    #[error(
        "the text of a memory has 1 to {MAX_CONTENT_BYTES} bytes: split what is longer, or ingest it as a document"
    )]
    Content,
    /// The source is missing or too long.
    #[error("the source of a memory has 1 to {MAX_SOURCE_CHARS} characters on one line")]
    Source,
    /// The path is too long.
    #[error("the path of a memory has 1 to {MAX_PATH_CHARS} characters on one line")]
    Path,
    /// The URL is too long.
    #[error("the URL of a memory has 1 to {MAX_URL_CHARS} characters on one line")]
    Url,
    /// The commit is none.
    #[error("the commit of a memory has 40 or 64 hexadecimal digits")]
    Commit,
}

/// The texts of a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryText {
    /// What it is about, on one line.
    pub title: String,
    /// The text.
    pub content: String,
    /// Where it comes from, such as `note` or `repository`. What is forgotten by source has this source.
    pub source: String,
    /// The path of the file it was in.
    pub path: Option<String>,
    /// The URL it was read from.
    pub url: Option<String>,
    /// The commit it was read at.
    pub commit: Option<String>,
}

impl MemoryText {
    /// Removes what people cannot see and PostgreSQL cannot hold.
    #[must_use]
    pub fn without_hidden(self) -> Self {
        Self {
            title: remove_hidden(&self.title).trim().to_owned(),
            content: remove_hidden(&self.content),
            source: remove_hidden(&self.source).trim().to_owned(),
            path: self.path.map(|path| remove_hidden(&path)),
            url: self.url.map(|url| remove_hidden(&url)),
            commit: self.commit,
        }
    }

    /// Refuses what cannot be stored.
    pub fn validate(&self) -> Result<(), MemoryTextError> {
        let line = |text: &str, max: usize| {
            (1..=max).contains(&text.chars().count()) && !text.chars().any(char::is_control)
        };
        let optional = |text: Option<&str>, max| text.is_none_or(|it| line(it, max));
        let is_commit = |text: &str| {
            matches!(text.len(), 40 | 64) && text.bytes().all(|byte| byte.is_ascii_hexdigit())
        };
        if !line(&self.title, MAX_TITLE_CHARS) {
            Err(MemoryTextError::Title)
        } else if self.content.trim().is_empty() || self.content.len() > MAX_CONTENT_BYTES {
            Err(MemoryTextError::Content)
        } else if !line(&self.source, MAX_SOURCE_CHARS) {
            Err(MemoryTextError::Source)
        } else if !optional(self.path.as_deref(), MAX_PATH_CHARS) {
            Err(MemoryTextError::Path)
        } else if !optional(self.url.as_deref(), MAX_URL_CHARS) {
            Err(MemoryTextError::Url)
        } else if !self.commit.as_deref().is_none_or(is_commit) {
            Err(MemoryTextError::Commit)
        } else {
            Ok(())
        }
    }

    /// The text that search looks at beside the title: the content, after a path that the title does not name.
    pub fn searchable_body(&self) -> Cow<'_, str> {
        match &self.path {
            Some(path) if !self.title.contains(path.as_str()) => {
                Cow::Owned(format!("{path}\n{}", self.content))
            }
            _ => Cow::Borrowed(&self.content),
        }
    }
}

/// Returns whether a character is one that people do not see and models read: soft hyphens, fillers, zero-width and bidirectional
/// characters, variation selectors and tags. Controls are none of these.
pub const fn is_hidden_character(letter: char) -> bool {
    matches!(
        letter,
        '\u{00ad}'
            | '\u{061c}'
            | '\u{115f}'
            | '\u{1160}'
            | '\u{180b}'..='\u{180f}'
            | '\u{200b}'..='\u{200f}'
            | '\u{202a}'..='\u{202e}'
            | '\u{2060}'..='\u{2069}'
            | '\u{3164}'
            | '\u{fe00}'..='\u{fe0f}'
            | '\u{feff}'
            | '\u{ffa0}'
            | '\u{fff9}'..='\u{fffb}'
            | '\u{e0000}'..='\u{e0fff}'
    )
}

/// Removes control characters and characters that hide text from people.
pub fn remove_hidden(text: &str) -> String {
    let is_shown = |letter: &char| {
        matches!(letter, '\n' | '\t') || !(is_hidden_character(*letter) || letter.is_control())
    };
    text.chars().filter(is_shown).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(title: &str, content: &str) -> MemoryText {
        MemoryText {
            title: title.to_owned(),
            content: content.to_owned(),
            source: "note".to_owned(),
            path: None,
            url: None,
            commit: None,
        }
    }

    #[test]
    fn names_read_back_what_they_wrote() {
        for kind in MemoryKind::ALL {
            assert_eq!(MemoryKind::from_name(kind.as_str()), Some(*kind));
            assert_eq!(serde_json::to_value(kind).unwrap(), kind.as_str());
        }
        for state in MemoryState::ALL {
            assert_eq!(serde_json::to_value(state).unwrap(), state.as_str());
        }
        for rule in AcceptanceRule::ALL {
            assert_eq!(serde_json::to_value(rule).unwrap(), rule.as_str());
        }
    }

    #[test]
    fn what_people_cannot_see_is_removed_and_lines_stay() {
        let cleaned = text("a\u{202e}b", "one\u{0}\n\ttw\u{200b}o\u{e0041}\r\n").without_hidden();
        assert_eq!((cleaned.title.as_str(), cleaned.content.as_str()), ("ab", "one\n\ttwo\n"));
        let hiding = "\u{ad}\u{61c}\u{115f}\u{1160}\u{180e}\u{3164}\u{fe0f}\u{ffa0}\u{e0100}";
        assert_eq!(remove_hidden(hiding), "");
        assert_eq!(remove_hidden("größe 数据 👍"), "größe 数据 👍");
    }

    #[test]
    fn a_record_has_a_title_of_one_line_and_a_text_that_is_not_too_long() {
        assert_eq!(text("title", "content").validate(), Ok(()));
        assert_eq!(text("", "content").validate(), Err(MemoryTextError::Title));
        assert_eq!(text("two\nlines", "content").validate(), Err(MemoryTextError::Title));
        assert_eq!(text("title", " \n").validate(), Err(MemoryTextError::Content));
        let long = "x".repeat(MAX_CONTENT_BYTES + 1);
        assert_eq!(text("title", &long).validate(), Err(MemoryTextError::Content));
        let odd = MemoryText { commit: Some("main".into()), ..text("title", "content") };
        assert_eq!(odd.validate(), Err(MemoryTextError::Commit));
    }

    #[test]
    fn a_path_is_searched_once() {
        let path = Some("src/lib.rs".to_owned());
        let plain = MemoryText { path: path.clone(), ..text("retry", "fn f()") };
        assert_eq!(plain.searchable_body(), "src/lib.rs\nfn f()");
        let named = MemoryText { path, ..text("src/lib.rs: retry", "fn f()") };
        assert_eq!(named.searchable_body(), "fn f()");
    }
}
