//! The way to forges: GitHub, GitLab and Gitea (Forgejo speaks as Gitea does).
//!
//! [`Forge`] is what the rest of the program knows of them: pull requests, remarks, checks, issues. [`git`] pushes branches and keeps
//! mirrors, [`webhook`] reads what a forge sends, [`clean`] takes out of a text what a person who reads it there does not see.
//!
//! **Invariant**: no database. A credential goes to the one host that an admin named and nowhere else, never into an argument or a
//! file. What is not marked as private is reached at public addresses only, whatever its name leads to. Nothing here forces a branch, or writes to a default branch. Whatever is made is looked for first: done twice, it is there once.

pub mod git;
mod gitea;
mod github;
mod gitlab;
mod http;
pub mod sanitize;
pub mod webhook;

use std::{fmt, time::Duration};

use futures::future::BoxFuture;
use secrecy::SecretString;
use serde::{Deserialize, Serialize};
use time::OffsetDateTime;
use url::Url;

/// A kind of forge.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ForgeKind {
    /// github.com and GitHub Enterprise, REST of 2022-11-28.
    Github,
    /// GitLab, REST v4.
    Gitlab,
    /// Gitea and Forgejo, REST v1.
    Gitea,
}

impl ForgeKind {
    /// Every kind.
    pub const ALL: [Self; 3] = [Self::Github, Self::Gitlab, Self::Gitea];

    /// Its word.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Github => "github",
            Self::Gitlab => "gitlab",
            Self::Gitea => "gitea",
        }
    }

    /// The kind of that word.
    pub fn from_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.as_str() == word)
    }

    /// Where its API usually is, when the repository is cloned from there.
    pub fn default_api_url(self, clone_from: &Url) -> Url {
        let mut api = clone_from.clone();
        api.set_query(None);
        api.set_fragment(None);
        let path = match self {
            Self::Github if api.host_str() == Some("github.com") => {
                // A host that is known to be good cannot be refused.
                let _ = api.set_host(Some("api.github.com"));
                "/"
            }
            Self::Github => "/api/v3",
            Self::Gitlab => "/api/v4",
            Self::Gitea => "/api/v1",
        };
        api.set_path(path);
        api
    }

    /// Opens the way to a repository on such a forge.
    pub fn connect_repository(self, site: ForgeEndpoint) -> Result<Box<dyn Forge>, ForgeError> {
        Ok(match self {
            Self::Github => Box::new(github::GithubForge::new(site)?),
            Self::Gitlab => Box::new(gitlab::GitlabForge::new(site)?),
            Self::Gitea => Box::new(gitea::GiteaForge::new(site)?),
        })
    }
}

impl fmt::Display for ForgeKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A repository on a forge, and what opens it.
#[derive(Clone, Debug)]
pub struct ForgeEndpoint {
    /// The API's address.
    pub api: Url,
    /// The repository: `owner/name`, on GitLab also `group/below/name`.
    pub repository: String,
    /// The token.
    pub token: SecretString,
    /// Whether it may be on this machine or in a private network.
    pub private: bool,
}

/// Why a forge did not do it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ForgeError {
    /// Not now; perhaps later.
    #[error("{why}; try again in {} s", after.as_secs())]
    Retry {
        /// How long it wants to be left alone.
        after: Duration,
        /// Why.
        why: String,
    },
    /// The credential does not open it. The words say what to do.
    #[error("{0}")]
    Refused(String),
    /// There is no such thing, or it may not be seen.
    #[error("{0}")]
    Missing(String),
    /// What is there already does not allow it, or what was sent is not taken.
    #[error("{0}")]
    Conflict(String),
    /// Anything else.
    #[error("{0}")]
    Failed(String),
}

impl ForgeError {
    /// Whether it may work later without anybody doing anything.
    pub const fn is_transient(&self) -> bool {
        matches!(self, Self::Retry { .. })
    }
}

/// What becomes of a pull request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PullState {
    /// It waits for somebody.
    Open,
    /// It is in.
    Merged,
    /// It was closed and is not in.
    Closed,
}

/// A pull request (merge request on GitLab).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemotePullRequest {
    /// Its number in the repository.
    pub number: u64,
    /// What became of it.
    pub state: PullState,
    /// The branch it brings.
    pub branch: String,
    /// Whether that branch is in the repository itself: anybody may have one of the same name in a fork.
    pub ours: bool,
    /// The branch it is for.
    pub base: String,
    /// The newest commit of its branch, as the forge sees it.
    pub head: String,
    /// The commit it was merged with.
    pub merge_commit: Option<String>,
    /// Where people see it.
    pub url: String,
}

/// A pull request that is to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewPullRequest {
    /// The branch it brings; it was pushed.
    pub branch: String,
    /// The branch it is for.
    pub base: String,
    /// Its title.
    pub title: String,
    /// Its text, Markdown.
    pub body: String,
}

/// What a comment is put on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommentTarget {
    /// An issue of that number.
    Issue(u64),
    /// A pull request of that number.
    PullRequest(u64),
}

/// How a check of the forge stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CheckState {
    /// Not ended.
    Pending,
    /// Good, skipped, or of no weight.
    Passed,
    /// Not good.
    Failed,
}

/// A check of the forge over a commit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForgeCheck {
    /// Its name.
    pub name: String,
    /// How it stands.
    pub state: CheckState,
    /// Where people see it.
    pub url: Option<String>,
    /// What it says in short.
    pub summary: String,
}

/// What a remark wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReviewCommentKind {
    /// To be heard.
    Comment,
    /// Changes.
    ChangesRequested,
    /// Nothing more.
    Approved,
}

/// Something that somebody said about a pull request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReviewComment {
    /// Its id among those of the pull request; always the same for the same remark.
    pub id: String,
    /// Who said it.
    pub author: String,
    /// What, as it came.
    pub body: String,
    /// The file it is about.
    pub path: Option<String>,
    /// The line in it.
    pub line: Option<u64>,
    /// What it wants.
    pub kind: ReviewCommentKind,
    /// When it was said.
    pub at: OffsetDateTime,
}

/// Which issues are looked for: those with the label, and those of the assignee.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IssueFilter {
    /// A label.
    pub label: Option<String>,
    /// A login.
    pub assignee: Option<String>,
}

impl IssueFilter {
    /// Whether an issue is one of them.
    pub fn matches_issue(&self, issue: &IssueText) -> bool {
        // Labels and logins are the same in capitals and small letters on all three.
        let among = |list: &[String], one: &Option<String>| {
            one.as_ref().is_some_and(|one| list.iter().any(|it| it.eq_ignore_ascii_case(one)))
        };
        among(&issue.labels, &self.label) || among(&issue.assignees, &self.assignee)
    }
}

/// An issue, as it came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IssueText {
    /// Its number in the repository.
    pub number: u64,
    /// Whether it is open.
    pub open: bool,
    /// Its title.
    pub title: String,
    /// Its text.
    pub body: String,
    /// Who wrote it.
    pub author: String,
    /// Its labels.
    pub labels: Vec<String>,
    /// Who is to do it.
    pub assignees: Vec<String>,
    /// Where people see it.
    pub url: String,
    /// When it was last changed.
    pub updated_at: OffsetDateTime,
}

/// What comes of asking a forge.
pub type ForgeFuture<'a, T> = BoxFuture<'a, Result<T, ForgeError>>;

/// A repository on a forge.
pub trait Forge: fmt::Debug + Send + Sync {
    /// Which kind of forge it is.
    fn forge_kind(&self) -> ForgeKind;

    /// Whose token it is.
    fn fetch_own_login(&self) -> ForgeFuture<'_, String>;

    /// Whether somebody may write to the repository.
    fn can_write<'a>(&'a self, login: &'a str) -> ForgeFuture<'a, bool>;

    /// The pull request of a branch of the repository itself: the open one, or else the newest.
    fn find_pull_request<'a>(
        &'a self,
        branch: &'a str,
    ) -> ForgeFuture<'a, Option<RemotePullRequest>>;

    /// The pull request of that number.
    fn get_pull_request(&self, number: u64) -> ForgeFuture<'_, RemotePullRequest>;

    /// Makes a pull request. Call [`open`](Self::open), which looks first.
    fn create_pull_request<'a>(
        &'a self,
        new: &'a NewPullRequest,
    ) -> ForgeFuture<'a, RemotePullRequest>;

    /// Opens a pull request, or gives the one that the branch has already.
    fn open_pull_request<'a>(
        &'a self,
        new: &'a NewPullRequest,
    ) -> ForgeFuture<'a, RemotePullRequest> {
        Box::pin(async move {
            if let Some(found) = self.find_pull_request(&new.branch).await? {
                return Ok(found);
            }
            match self.create_pull_request(new).await {
                // Somebody was faster, or our own earlier request has come through after all.
                Err(ForgeError::Conflict(why)) => {
                    let found = self.find_pull_request(&new.branch).await?;
                    found.ok_or(ForgeError::Conflict(why))
                }
                made => made,
            }
        })
    }

    /// Adds a comment, unless one with its marker is there.
    fn ensure_comment<'a>(
        &'a self,
        on: CommentTarget,
        marker: &'a str,
        text: &'a str,
    ) -> ForgeFuture<'a, ()>;

    /// The checks over a commit, the newest of each name.
    fn list_checks<'a>(&'a self, commit: &'a str) -> ForgeFuture<'a, Vec<ForgeCheck>>;

    /// What was said about a pull request since then, the oldest first.
    fn list_review_comments(
        &self,
        number: u64,
        since: OffsetDateTime,
    ) -> ForgeFuture<'_, Vec<ReviewComment>>;

    /// The open issues that are wanted and were changed since then, the longest unchanged first.
    fn list_issues<'a>(
        &'a self,
        wanted: &'a IssueFilter,
        since: OffsetDateTime,
    ) -> ForgeFuture<'a, Vec<IssueText>>;

    /// The issue of that number; none when it is a pull request or gone.
    fn get_issue(&self, number: u64) -> ForgeFuture<'_, Option<IssueText>>;
}

/// The text of a comment with its marker, which nobody sees.
fn append_marker(marker: &str, text: &str) -> String {
    format!("{text}\n\n{}", marker_comment(marker))
}

fn marker_comment(marker: &str) -> String {
    let plain = |c: &char| c.is_ascii_alphanumeric() || "-_.:/".contains(*c);
    let marker: String = marker.chars().filter(plain).collect();
    // Two dashes in a row would end the comment early.
    format!("<!-- cynode:{} -->", marker.replace("--", "-"))
}

/// Oldest first, and the same when asked again.
fn sort_review_comments(
    mut remarks: Vec<ReviewComment>,
    since: OffsetDateTime,
) -> Vec<ReviewComment> {
    remarks.retain(|remark| remark.at >= since);
    remarks.sort_by(|a, b| (a.at, &a.id).cmp(&(b.at, &b.id)));
    remarks
}

/// Each issue once, the longest unchanged first.
fn sort_unique_issues(mut issues: Vec<IssueText>) -> Vec<IssueText> {
    issues.sort_by_key(|issue| (issue.updated_at, issue.number));
    issues.dedup_by_key(|issue| issue.number);
    issues
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_usual_place_of_an_api_follows_from_where_one_clones() {
        let api =
            |kind: ForgeKind, from: &str| kind.default_api_url(&from.parse().unwrap()).to_string();
        assert_eq!(api(ForgeKind::Github, "https://github.com/o/r.git"), "https://api.github.com/");
        assert_eq!(api(ForgeKind::Github, "https://ghe.example/o/r"), "https://ghe.example/api/v3");
        assert_eq!(
            api(ForgeKind::Gitlab, "https://g.example:8/a/b/c?x#y"),
            "https://g.example:8/api/v4"
        );
        assert_eq!(api(ForgeKind::Gitea, "http://git.lan/o/r"), "http://git.lan/api/v1");
    }

    #[test]
    fn a_marker_cannot_end_the_comment_that_hides_it() {
        assert_eq!(marker_comment("task/1-2"), "<!-- cynode:task/1-2 -->");
        assert_eq!(marker_comment("a--> b"), "<!-- cynode:a-b -->");
    }

    #[test]
    fn an_issue_is_wanted_by_label_or_by_assignee_in_any_case_of_letters() {
        let issue = IssueText {
            number: 1,
            open: true,
            title: String::new(),
            body: String::new(),
            author: "ann".into(),
            labels: vec!["CyNode".into()],
            assignees: vec!["Bot".into()],
            url: String::new(),
            updated_at: OffsetDateTime::UNIX_EPOCH,
        };
        let wanted = |label: Option<&str>, assignee: Option<&str>| {
            let wanted =
                IssueFilter { label: label.map(Into::into), assignee: assignee.map(Into::into) };
            wanted.matches_issue(&issue)
        };
        assert!(wanted(Some("cynode"), None));
        assert!(wanted(Some("other"), Some("bot")));
        assert!(!wanted(Some("other"), Some("ann")));
        assert!(!wanted(None, None));
    }
}
