//! Clients of forges: GitHub, GitLab and Gitea. Forgejo has the API of Gitea.
//!
//! [`Forge`] is the interface for the rest of the program: pull requests, review comments, checks, issues. [`git`] pushes branches and
//! mirrors them, [`git_process`] limits what a git process may use, [`webhook`] verifies deliveries of a forge, [`sanitize`] removes text that a person does not see on the forge.
//!
//! **Invariant**: no database. A credential is sent only to the host that an admin configured, and is never in an argument or a file.
//! SSRF guard: a forge that is not marked as private is contacted at public addresses only, independent of its name resolution. No
//! function forces a push or writes to a default branch. Creation is idempotent: an existing object is looked for first.

pub mod git;
pub mod git_process;
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

/// Kind of a forge.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ForgeKind {
    /// github.com and GitHub Enterprise, REST API of 2022-11-28.
    Github,
    /// GitLab, REST API v4.
    Gitlab,
    /// Gitea and Forgejo, REST API v1.
    Gitea,
}

impl ForgeKind {
    /// All kinds.
    pub const ALL: [Self; 3] = [Self::Github, Self::Gitlab, Self::Gitea];

    /// Returns the kind as a word.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Github => "github",
            Self::Gitlab => "gitlab",
            Self::Gitea => "gitea",
        }
    }

    /// Returns the kind with that word.
    pub fn from_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.as_str() == word)
    }

    /// Returns the default API URL for a clone URL.
    pub fn default_api_url(self, clone_from: &Url) -> Url {
        let mut api = clone_from.clone();
        api.set_query(None);
        api.set_fragment(None);
        let path = match self {
            Self::Github if api.host_str() == Some("github.com") => {
                // A constant valid host cannot be rejected.
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

    /// Creates a client for a repository on such a forge.
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

/// A repository on a forge, with its credential.
#[derive(Clone, Debug)]
pub struct ForgeEndpoint {
    /// Base URL of the API.
    pub api: Url,
    /// Repository: `owner/name`, on GitLab also `group/subgroup/name`.
    pub repository: String,
    /// Access token.
    pub token: SecretString,
    /// Whether the host may be this machine or in a private network.
    pub private: bool,
}

/// Error of a forge.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ForgeError {
    /// The request may succeed later.
    #[error("{why}; try again in {} s", after.as_secs())]
    Retry {
        /// Delay before the next attempt.
        after: Duration,
        /// Reason of the failure.
        why: String,
    },
    /// The credential is not accepted; the text says how to fix it.
    #[error("{0}")]
    Refused(String),
    /// The object does not exist or is not visible.
    #[error("{0}")]
    Missing(String),
    /// The request conflicts with existing state, or is invalid.
    #[error("{0}")]
    Conflict(String),
    /// Any other failure.
    #[error("{0}")]
    Failed(String),
}

impl ForgeError {
    /// Returns whether the request may succeed later without intervention.
    pub const fn is_transient(&self) -> bool {
        matches!(self, Self::Retry { .. })
    }
}

/// State of a pull request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PullState {
    /// Open.
    Open,
    /// Merged.
    Merged,
    /// Closed without a merge.
    Closed,
}

/// A pull request (merge request on GitLab).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemotePullRequest {
    /// Number in the repository.
    pub number: u64,
    /// State of the pull request.
    pub state: PullState,
    /// Source branch.
    pub branch: String,
    /// Whether the source branch is in the repository itself: anyone can have a branch of the same name in a fork.
    pub ours: bool,
    /// Target branch.
    pub base: String,
    /// Head commit of the source branch, as the forge sees it.
    pub head: String,
    /// Merge commit.
    pub merge_commit: Option<String>,
    /// Web URL.
    pub url: String,
}

/// A pull request to create.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewPullRequest {
    /// Source branch, which was pushed before.
    pub branch: String,
    /// Target branch.
    pub base: String,
    /// Title of the pull request.
    pub title: String,
    /// Description in Markdown.
    pub body: String,
}

/// Target of a comment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommentTarget {
    /// Issue with this number.
    Issue(u64),
    /// Pull request with this number.
    PullRequest(u64),
}

/// State of a check on the forge.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CheckState {
    /// Not completed.
    Pending,
    /// Successful, skipped or neutral.
    Passed,
    /// Failed.
    Failed,
}

/// A check on a commit, run by the forge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForgeCheck {
    /// Name of the check.
    pub name: String,
    /// State of the check.
    pub state: CheckState,
    /// Web URL.
    pub url: Option<String>,
    /// Short description of the result.
    pub summary: String,
}

/// Kind of a review comment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReviewCommentKind {
    /// Plain comment.
    Comment,
    /// Request for changes.
    ChangesRequested,
    /// Approval.
    Approved,
}

/// A comment or verdict on a pull request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReviewComment {
    /// Stable id, unique within the pull request.
    pub id: String,
    /// Login of the author.
    pub author: String,
    /// Text as received, not sanitized.
    pub body: String,
    /// File that the comment refers to.
    pub path: Option<String>,
    /// Line in that file.
    pub line: Option<u64>,
    /// Kind of the comment.
    pub kind: ReviewCommentKind,
    /// Time of the comment.
    pub at: OffsetDateTime,
}

/// Filter for issues: an issue matches by its label or by its assignee.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IssueFilter {
    /// Label name.
    pub label: Option<String>,
    /// Login of the assignee.
    pub assignee: Option<String>,
}

impl IssueFilter {
    /// Returns whether an issue matches.
    pub fn matches_issue(&self, issue: &IssueText) -> bool {
        // Labels and logins are case-insensitive on all three forges.
        let among = |list: &[String], one: &Option<String>| {
            one.as_ref().is_some_and(|one| list.iter().any(|it| it.eq_ignore_ascii_case(one)))
        };
        among(&issue.labels, &self.label) || among(&issue.assignees, &self.assignee)
    }
}

/// An issue as received, not sanitized.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IssueText {
    /// Number in the repository.
    pub number: u64,
    /// Whether it is open.
    pub open: bool,
    /// Title of the issue.
    pub title: String,
    /// Description of the issue.
    pub body: String,
    /// Login of the author.
    pub author: String,
    /// Names of its labels.
    pub labels: Vec<String>,
    /// Logins of its assignees.
    pub assignees: Vec<String>,
    /// Web URL.
    pub url: String,
    /// Time of the last update.
    pub updated_at: OffsetDateTime,
}

/// Future of a forge request.
pub type ForgeFuture<'a, T> = BoxFuture<'a, Result<T, ForgeError>>;

/// A repository on a forge.
pub trait Forge: fmt::Debug + Send + Sync {
    /// Returns the kind of the forge.
    fn forge_kind(&self) -> ForgeKind;

    /// Returns the login of the token's owner.
    fn fetch_own_login(&self) -> ForgeFuture<'_, String>;

    /// Returns whether a user may write to the repository.
    fn can_write<'a>(&'a self, login: &'a str) -> ForgeFuture<'a, bool>;

    /// Returns the pull request of a branch in the repository itself: the open one, or else the newest.
    fn find_pull_request<'a>(
        &'a self,
        branch: &'a str,
    ) -> ForgeFuture<'a, Option<RemotePullRequest>>;

    /// Returns the pull request with that number.
    fn get_pull_request(&self, number: u64) -> ForgeFuture<'_, RemotePullRequest>;

    /// Creates a pull request. Callers use [`open_pull_request`](Self::open_pull_request), which looks for an existing one first.
    fn create_pull_request<'a>(
        &'a self,
        new: &'a NewPullRequest,
    ) -> ForgeFuture<'a, RemotePullRequest>;

    /// Opens a pull request, or returns the branch's existing one.
    fn open_pull_request<'a>(
        &'a self,
        new: &'a NewPullRequest,
    ) -> ForgeFuture<'a, RemotePullRequest> {
        Box::pin(async move {
            if let Some(found) = self.find_pull_request(&new.branch).await? {
                return Ok(found);
            }
            match self.create_pull_request(new).await {
                // A concurrent request, or an earlier one of our own that did succeed, has created it.
                Err(ForgeError::Conflict(why)) => {
                    let found = self.find_pull_request(&new.branch).await?;
                    found.ok_or(ForgeError::Conflict(why))
                }
                made => made,
            }
        })
    }

    /// Adds a comment, unless one with its marker exists.
    fn ensure_comment<'a>(
        &'a self,
        on: CommentTarget,
        marker: &'a str,
        text: &'a str,
    ) -> ForgeFuture<'a, ()>;

    /// Returns the checks on a commit, the newest of each name.
    fn list_checks<'a>(&'a self, commit: &'a str) -> ForgeFuture<'a, Vec<ForgeCheck>>;

    /// Returns the review comments of a pull request since a time, the oldest first.
    fn list_review_comments(
        &self,
        number: u64,
        since: OffsetDateTime,
    ) -> ForgeFuture<'_, Vec<ReviewComment>>;

    /// Returns the matching open issues that were updated since a time, the least recently updated first.
    fn list_issues<'a>(
        &'a self,
        wanted: &'a IssueFilter,
        since: OffsetDateTime,
    ) -> ForgeFuture<'a, Vec<IssueText>>;

    /// Returns the issue with that number; `None` if it is a pull request or deleted.
    fn get_issue(&self, number: u64) -> ForgeFuture<'_, Option<IssueText>>;
}

/// Returns the text of a comment with its invisible marker.
fn append_marker(marker: &str, text: &str) -> String {
    format!("{text}\n\n{}", marker_comment(marker))
}

fn marker_comment(marker: &str) -> String {
    let plain = |c: &char| c.is_ascii_alphanumeric() || "-_.:/".contains(*c);
    let marker: String = marker.chars().filter(plain).collect();
    // Two consecutive dashes would end the HTML comment early.
    format!("<!-- cynode:{} -->", marker.replace("--", "-"))
}

/// Sorts comments by time, in a stable order.
fn sort_review_comments(
    mut remarks: Vec<ReviewComment>,
    since: OffsetDateTime,
) -> Vec<ReviewComment> {
    remarks.retain(|remark| remark.at >= since);
    remarks.sort_by(|a, b| (a.at, &a.id).cmp(&(b.at, &b.id)));
    remarks
}

/// Removes duplicates and sorts issues by update time, the oldest first.
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
