//! Delivery: states of pull requests, and the wording of commits.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{
    InvalidTransition,
    ids::TaskId,
    names::{TaskName, TextError},
};

macro_rules! names {
    ($($(#[$doc:meta])* $name:ident { $($(#[$each:meta])* $variant:ident = $text:literal;)+ })+) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
        #[serde(rename_all = "snake_case")]
        pub enum $name { $($(#[$each])* $variant,)+ }

        impl $name {
            /// Every one.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)+];

            /// The name on the wire and in the database.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $text,)+ }
            }

            /// The one of that name.
            pub fn from_name(name: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|it| it.as_str() == name)
            }
        }
    )+};
}

names! {
    /// Where a pull request lives.
    Destination {
        /// Here.
        Local = "local";
        /// At GitHub.
        Github = "github";
        /// At a GitLab.
        Gitlab = "gitlab";
        /// At a Gitea or Forgejo.
        Gitea = "gitea";
    }

    /// Where a pull request stands.
    PullRequestState {
        /// It is being made.
        Opening = "opening";
        /// It waits for people.
        Open = "open";
        /// It was taken over.
        Merged = "merged";
        /// It is not wanted.
        Closed = "closed";
        /// It could not be made; it may be tried again.
        Failed = "failed";
    }

    /// What a person thinks of a pull request.
    ReviewVerdict {
        /// It is good.
        Approve = "approve";
        /// Something must be different.
        Changes = "changes";
        /// Neither; there are remarks.
        Comment = "comment";
    }

    /// How a task's work leaves.
    DeliveryMode {
        /// As a pull request.
        PullRequest = "pull_request";
        /// As a branch; where there is no forge, that is the same.
        Branch = "branch";
        /// Not at all: people fetch it.
        None = "none";
    }
}

impl DeliveryMode {
    /// The preference that says it.
    pub const PREFERENCE_KEY: &'static str = "delivery.mode";

    /// What a preference says; without one, a pull request is opened.
    pub fn from_preference(preference: Option<&serde_json::Value>) -> Self {
        let said = preference.and_then(serde_json::Value::as_str);
        said.and_then(Self::from_name).unwrap_or(Self::PullRequest)
    }
}

/// The preference that says whether nothing is merged before somebody approved.
pub const REQUIRE_APPROVAL_PREFERENCE: &str = "delivery.require_approval";

/// The setting with the name and address that commits for people bear, as `Name <address>`.
pub const AUTHOR_SETTING: &str = "delivery.author";

/// Most times that a pull request is gone on with.
pub const MAX_FOLLOW_UPS: i32 = 3;

/// What a person answers who wants the task to end though nothing was delivered.
pub const ANSWER_END_WITHOUT: &str = "end without";

/// What a person answers who wants it to be tried again.
pub const ANSWER_RETRY: &str = "again";

/// Whether an answer says that the task is to end though nothing was delivered.
pub fn is_end_without_answer(answer: &str) -> bool {
    let plain = |c: char| !c.is_alphanumeric();
    let words = answer.split(plain).filter(|word| !word.is_empty()).map(str::to_lowercase);
    words.collect::<Vec<_>>().join(" ") == ANSWER_END_WITHOUT
}

impl PullRequestState {
    /// Whether something may be added, said or decided.
    pub const fn is_open(self) -> bool {
        matches!(self, Self::Open)
    }

    /// Why it cannot do what it is asked to.
    pub const fn invalid_transition(self, verb: &'static str) -> InvalidTransition {
        InvalidTransition { what: "pull request", state: self.as_str(), verb }
    }
}

/// The branch that a task is delivered on; `turn` is above 1 when an earlier one of the same task has been merged.
pub fn delivery_branch(name: &TaskName, task: TaskId, turn: i64) -> String {
    let id = task.as_uuid().simple().to_string();
    // The end of an id is random, its beginning is a time.
    let end = &id[id.len() - 8..];
    match turn {
        ..=1 => format!("cynode/{name}-{end}"),
        turn => format!("cynode/{name}-{end}-{turn}"),
    }
}

/// A name and an address that a commit bears.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommitAuthor {
    /// The name.
    pub name: String,
    /// The address.
    pub email: String,
}

impl Default for CommitAuthor {
    fn default() -> Self {
        Self { name: "CyNode".to_owned(), email: "cynode@localhost".to_owned() }
    }
}

impl std::fmt::Display for CommitAuthor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { name, email } = self;
        write!(f, "{name} <{email}>")
    }
}

impl std::str::FromStr for CommitAuthor {
    type Err = TextError;

    fn from_str(text: &str) -> Result<Self, TextError> {
        let rule = TextError::Shape { what: "an author", rule: "is written `Name <address>`" };
        let plain = |text: &str| {
            (1..=100).contains(&text.chars().count())
                && text.trim() == text
                && !text.contains(|c: char| c.is_control() || matches!(c, '<' | '>'))
        };
        let (name, email) = text.split_once(" <").ok_or_else(|| rule.clone())?;
        let email = email.strip_suffix('>').ok_or_else(|| rule.clone())?;
        if !plain(name) || !plain(email) || email.contains(' ') {
            return Err(rule);
        }
        Ok(Self { name: name.to_owned(), email: email.to_owned() })
    }
}

/// The message of a commit for people: what it is, why, and which task it came from.
pub fn commit_message(title: &str, body: &str, task: TaskId, author: &CommitAuthor) -> String {
    let body = body.trim();
    let gap = if body.is_empty() { "" } else { "\n\n" };
    let trailer = task_trailer(task);
    format!("{title}{gap}{body}\n\n{trailer}\nSigned-off-by: {author}\n")
}

/// The line of a commit message that names its task.
fn task_trailer(task: TaskId) -> String {
    format!("CyNode-Task: {task}")
}

/// Returns whether a message is that of a commit that was made for the task.
pub fn is_message_of_task(message: &str, task: TaskId) -> bool {
    let trailer = task_trailer(task);
    message.lines().any(|line| line == trailer)
}

/// One line of at most 120 characters, as the title of a commit must be.
pub fn commit_title(text: &str) -> String {
    let words: Vec<&str> = text.split(|c: char| c.is_whitespace() || c.is_control()).collect();
    let line = words.into_iter().filter(|word| !word.is_empty()).collect::<Vec<_>>().join(" ");
    if line.chars().count() <= 120 {
        return line;
    }
    let cut: String = line.chars().take(119).collect();
    format!("{}…", cut.trim_end())
}

/// A pull request in a word, for whoever goes on without it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PullRequestRef {
    /// Its number: at the forge, or in the project.
    pub number: i64,
    /// Where people look at it.
    pub url: String,
}

#[cfg(test)]
mod tests;
