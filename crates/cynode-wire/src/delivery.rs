//! Pull requests on the wire.

pub mod artifacts;
pub mod environments;
pub mod evidence;
pub mod forges;

use cynode_core::{
    agents::AgentRole,
    delivery::{Destination, PullRequestState, ReviewVerdict},
    ids::{CommentId, ProjectId, PullRequestId, ReviewId, TaskId, UserId},
    names::Prose,
    tasks::TaskStateName,
};
use serde::{Deserialize, Serialize};
use time::OffsetDateTime;
use utoipa::ToSchema;

/// Names of [`Destination`] for the document.
#[derive(ToSchema)]
#[schema(as = Destination, rename_all = "snake_case")]
pub enum DestinationView {
    /// Here.
    Local,
    /// At GitHub.
    Github,
    /// At a GitLab.
    Gitlab,
    /// At a Gitea or Forgejo.
    Gitea,
}

/// Names of [`PullRequestState`] for the document.
#[derive(ToSchema)]
#[schema(as = PullRequestState, rename_all = "snake_case")]
pub enum PullRequestStateView {
    /// It is being made.
    Opening,
    /// It waits for people.
    Open,
    /// It was taken over.
    Merged,
    /// It is not wanted.
    Closed,
    /// It could not be made; it may be tried again.
    Failed,
}

/// Names of [`ReviewVerdict`] for the document.
#[derive(ToSchema)]
#[schema(as = ReviewVerdict, rename_all = "snake_case")]
pub enum ReviewVerdictView {
    /// It is good.
    Approve,
    /// Something must be different.
    Changes,
    /// Neither; there are remarks.
    Comment,
}

/// What a task brought, offered to people.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PullRequestView {
    /// Its id.
    #[schema(value_type = String)]
    pub id: PullRequestId,
    /// The project.
    #[schema(value_type = String)]
    pub project_id: ProjectId,
    /// The task that it was opened for.
    #[schema(value_type = String)]
    pub task_id: TaskId,
    /// Its number in the project.
    pub number: i64,
    /// Where it lives.
    #[schema(value_type = DestinationView)]
    pub forge: Destination,
    /// The branch that is offered.
    pub branch: String,
    /// The branch that it is meant for.
    pub base_branch: String,
    /// The commit that the work started from.
    pub base_commit: String,
    /// The commit that is offered.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub head_commit: Option<String>,
    /// Its tree.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tree: Option<String>,
    /// What it is.
    pub title: String,
    /// What was done, as Markdown.
    pub body: String,
    /// Where it stands.
    #[schema(value_type = PullRequestStateView)]
    pub state: PullRequestState,
    /// Its number at the forge.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remote_number: Option<i64>,
    /// Where people look at it.
    pub url: String,
    /// Why the last attempt to deliver came to nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
    /// When it was offered.
    #[serde(
        with = "time::serde::rfc3339::option",
        skip_serializing_if = "Option::is_none",
        default
    )]
    pub opened_at: Option<OffsetDateTime>,
    /// When it was taken over.
    #[serde(
        with = "time::serde::rfc3339::option",
        skip_serializing_if = "Option::is_none",
        default
    )]
    pub merged_at: Option<OffsetDateTime>,
    /// Who took it over, if it was done here.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub merged_by: Option<UserId>,
    /// The commit by which it was taken over.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub merge_commit: Option<String>,
    /// When it was closed.
    #[serde(
        with = "time::serde::rfc3339::option",
        skip_serializing_if = "Option::is_none",
        default
    )]
    pub closed_at: Option<OffsetDateTime>,
    /// When it was begun.
    #[serde(with = "time::serde::rfc3339")]
    pub created_at: OffsetDateTime,
    /// When it last changed.
    #[serde(with = "time::serde::rfc3339")]
    pub updated_at: OffsetDateTime,
}

/// A pull request with everything about it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PullRequestDetail {
    /// The pull request.
    #[serde(flatten)]
    pub pull_request: PullRequestView,
    /// What was checked about the commit that is offered.
    pub checks: Vec<PullRequestCheck>,
    /// What was said, oldest first.
    pub comments: Vec<CommentView>,
    /// What people think, oldest first.
    pub reviews: Vec<ReviewView>,
    /// The commits that were delivered, oldest first.
    pub deliveries: Vec<DeliveryView>,
    /// The tasks that go on with it.
    pub follow_ups: Vec<FollowUpView>,
}

/// One check of a commit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PullRequestCheck {
    /// What was checked.
    pub name: String,
    /// `pending`, `passed` or `failed`.
    pub state: String,
    /// What came of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub summary: Option<String>,
    /// Where more is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
}

/// One commit that was delivered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DeliveryView {
    /// The task that it came from.
    #[schema(value_type = String)]
    pub task_id: TaskId,
    /// The commit; none while it is under way.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub commit: Option<String>,
    /// The verified commit of the work, whose files it has.
    pub source: String,
    /// Its first line.
    pub title: String,
    /// When it was begun.
    #[serde(with = "time::serde::rfc3339")]
    pub created_at: OffsetDateTime,
}

/// A task that goes on with a pull request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FollowUpView {
    /// The task.
    #[schema(value_type = String)]
    pub task_id: TaskId,
    /// Which one it is, from 1.
    pub number: i32,
    /// What it was made for.
    pub source: String,
    /// When.
    #[serde(with = "time::serde::rfc3339")]
    pub created_at: OffsetDateTime,
}

/// Something that was said.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CommentView {
    /// Its id.
    #[schema(value_type = String)]
    pub id: CommentId,
    /// The person who said it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub author_id: Option<UserId>,
    /// The agent that said it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub author_role: Option<AgentRole>,
    /// The file that it is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// The line.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub line: Option<u32>,
    /// What was said.
    pub body: String,
    /// The review that it was part of.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub review_id: Option<ReviewId>,
    /// When.
    #[serde(with = "time::serde::rfc3339")]
    pub created_at: OffsetDateTime,
}

/// What a person thinks of one commit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ReviewView {
    /// Its id.
    #[schema(value_type = String)]
    pub id: ReviewId,
    /// Who.
    #[schema(value_type = String)]
    pub user_id: UserId,
    /// What.
    #[schema(value_type = ReviewVerdictView)]
    pub verdict: ReviewVerdict,
    /// Why.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// The commit that was looked at.
    pub commit: String,
    /// Whether it is still the one that is offered.
    pub current: bool,
    /// When.
    #[serde(with = "time::serde::rfc3339")]
    pub created_at: OffsetDateTime,
}

/// Says something about a pull request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewComment {
    /// The file that it is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// The line of that file, as it is offered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub line: Option<u32>,
    /// What is to be said.
    #[schema(value_type = String)]
    pub body: Prose,
}

/// Judges a pull request. What asks for something (`changes`, or any remark) is given to a task that goes on with it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewReview {
    /// What you think.
    #[schema(value_type = ReviewVerdictView)]
    pub verdict: ReviewVerdict,
    /// Why, or what should be different.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub note: Option<Prose>,
    /// Remarks on files and lines.
    #[serde(default)]
    pub comments: Vec<NewComment>,
    /// The commit that you looked at; refused when another is offered by now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub commit: Option<String>,
}

/// A review that was taken.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ReviewReceipt {
    /// The review.
    pub review: ReviewView,
    /// The task that goes on with the pull request because of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub follow_up: Option<TaskId>,
    /// Why there is none though something was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub no_follow_up: Option<String>,
}

/// What is different, as text.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DiffView {
    /// From this commit.
    pub base: String,
    /// To this one.
    pub head: String,
    /// A unified diff.
    pub text: String,
    /// Whether there is more than is shown.
    pub truncated: bool,
    /// Whether it cannot be applied as it is, because a file is binary or not UTF-8; absent when it can.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub inexact: bool,
}

/// What the work on a task has changed so far, offered or not, finished or not.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TaskDiff {
    /// The unit that left the newest commit.
    pub unit: String,
    /// Its attempt.
    pub attempt: u32,
    /// Where the task stands.
    #[schema(value_type = crate::tasks::TaskStateView)]
    pub state: TaskStateName,
    /// How many checks were asked for at that commit.
    pub checks: u32,
    /// How many of them held.
    pub checks_passed: u32,
    /// The files.
    pub files: ChangedFiles,
    /// The change.
    pub diff: DiffView,
}

/// The files that are different.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ChangedFiles {
    /// From this commit.
    pub base: String,
    /// To this one.
    pub head: String,
    /// The files.
    pub files: Vec<ChangedFile>,
    /// Whether there are more than are shown.
    pub truncated: bool,
}

/// One of them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ChangedFile {
    /// Where it is.
    pub path: String,
    /// Lines that came; none when it is no text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub insertions: Option<u64>,
    /// Lines that went.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deletions: Option<u64>,
}
