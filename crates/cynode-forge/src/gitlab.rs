//! GitLab's REST API, version 4.

use serde::Deserialize;
use serde_json::{Value, json};
use time::OffsetDateTime;
use url::Url;

use crate::{
    CheckState, CommentTarget, Forge, ForgeCheck, ForgeEndpoint, ForgeError, ForgeFuture,
    ForgeKind, IssueFilter, IssueText, NewPullRequest, PullState, RemotePullRequest, ReviewComment,
    ReviewCommentKind, append_marker,
    github::{format_timestamp, select_pull_request},
    http::{AuthScheme, ForgeHttpClient},
    marker_comment, sort_review_comments, sort_unique_issues,
};

/// Page size.
const PAGE_SIZE_PARAM: (&str, &str) = ("per_page", "100");

/// Minimum access level for a push: Developer.
const DEVELOPER_ACCESS_LEVEL: u64 = 30;

/// A project on GitLab.
#[derive(Debug)]
pub(crate) struct GitlabForge {
    http: ForgeHttpClient,
    repository: String,
}

#[derive(Deserialize)]
struct GitlabUser {
    username: String,
}

#[derive(Deserialize)]
struct GitlabMergeRequest {
    iid: u64,
    state: String,
    sha: Option<String>,
    merge_commit_sha: Option<String>,
    squash_commit_sha: Option<String>,
    source_branch: String,
    target_branch: String,
    /// Id of the source project; `None` if it was a fork that is deleted.
    source_project_id: Option<u64>,
    target_project_id: Option<u64>,
    web_url: String,
}

impl From<GitlabMergeRequest> for RemotePullRequest {
    fn from(merge: GitlabMergeRequest) -> Self {
        let state = match merge.state.as_str() {
            "merged" => PullState::Merged,
            "closed" => PullState::Closed,
            // `locked` is a transient state before merged.
            _ => PullState::Open,
        };
        let head = merge.sha.unwrap_or_default();
        let merged = state == PullState::Merged;
        // If the merge made no commit of its own, the head of the branch is the merge commit.
        let merge_commit = merge.merge_commit_sha.or(merge.squash_commit_sha);
        Self {
            number: merge.iid,
            state,
            branch: merge.source_branch,
            ours: merge.source_project_id.is_some()
                && merge.source_project_id == merge.target_project_id,
            base: merge.target_branch,
            merge_commit: merged.then(|| merge_commit.unwrap_or_else(|| head.clone())),
            head,
            url: merge.web_url,
        }
    }
}

#[derive(Deserialize)]
struct GitlabNote {
    id: u64,
    body: String,
    author: GitlabUser,
    #[serde(default)]
    system: bool,
    position: Option<GitlabNotePosition>,
    #[serde(with = "time::serde::rfc3339")]
    created_at: OffsetDateTime,
}

#[derive(Deserialize)]
struct GitlabNotePosition {
    new_path: Option<String>,
    new_line: Option<u64>,
    old_line: Option<u64>,
}

impl GitlabNote {
    /// Converts a note. GitLab stores review verdicts as system notes; other system notes are skipped.
    fn into_review_comment(self) -> Option<ReviewComment> {
        let kind = match (self.system, self.body.trim()) {
            (false, _) => ReviewCommentKind::Comment,
            (true, "requested changes") => ReviewCommentKind::ChangesRequested,
            (true, "approved this merge request") => ReviewCommentKind::Approved,
            (true, _) => return None,
        };
        let line = self.position.as_ref().and_then(|at| at.new_line.or(at.old_line));
        Some(ReviewComment {
            id: format!("note:{}", self.id),
            author: self.author.username,
            body: if self.system { String::new() } else { self.body },
            path: self.position.and_then(|at| at.new_path),
            line,
            kind,
            at: self.created_at,
        })
    }
}

#[derive(Deserialize)]
struct GitlabCommitStatus {
    name: String,
    status: String,
    target_url: Option<String>,
    description: Option<String>,
    #[serde(default)]
    allow_failure: bool,
}

#[derive(Deserialize)]
struct GitlabPipeline {
    id: u64,
    status: String,
    web_url: Option<String>,
}

fn to_check_state(status: &str, allowed: bool) -> CheckState {
    match status {
        "success" | "skipped" | "manual" => CheckState::Passed,
        "failed" | "canceled" if allowed => CheckState::Passed,
        "failed" | "canceled" | "canceling" => CheckState::Failed,
        _ => CheckState::Pending,
    }
}

#[derive(Deserialize)]
struct GitlabIssue {
    iid: u64,
    state: String,
    title: String,
    description: Option<String>,
    author: GitlabUser,
    labels: Vec<String>,
    #[serde(default)]
    assignees: Vec<GitlabUser>,
    web_url: String,
    #[serde(with = "time::serde::rfc3339")]
    updated_at: OffsetDateTime,
}

impl From<GitlabIssue> for IssueText {
    fn from(issue: GitlabIssue) -> Self {
        Self {
            number: issue.iid,
            open: issue.state == "opened",
            title: issue.title,
            body: issue.description.unwrap_or_default(),
            author: issue.author.username,
            labels: issue.labels,
            assignees: issue.assignees.into_iter().map(|user| user.username).collect(),
            url: issue.web_url,
            updated_at: issue.updated_at,
        }
    }
}

impl GitlabForge {
    pub(crate) fn new(site: ForgeEndpoint) -> Result<Self, ForgeError> {
        let parts = site.repository.split('/');
        if parts.clone().count() < 2 || parts.clone().any(str::is_empty) {
            return Err(ForgeError::Failed("a repository is named as `group/name`".into()));
        }
        let http = ForgeHttpClient::new(
            site.api,
            &site.token,
            site.private,
            AuthScheme::Bearer,
            "application/json",
        )?;
        Ok(Self { http, repository: site.repository })
    }

    fn project_url(&self, path: &[&str], query: &[(&str, &str)]) -> Url {
        self.http.build_url(&[&["projects", &self.repository], path].concat(), query)
    }
}

impl Forge for GitlabForge {
    fn forge_kind(&self) -> ForgeKind {
        ForgeKind::Gitlab
    }

    fn fetch_own_login(&self) -> ForgeFuture<'_, String> {
        Box::pin(async {
            Ok(self
                .http
                .get_json::<GitlabUser>(self.http.build_url(&["user"], &[]))
                .await?
                .username)
        })
    }

    fn can_write<'a>(&'a self, login: &'a str) -> ForgeFuture<'a, bool> {
        #[derive(Deserialize)]
        struct GitlabUserMatch {
            id: u64,
            username: String,
        }
        #[derive(Deserialize)]
        struct GitlabMember {
            access_level: u64,
            state: Option<String>,
        }
        Box::pin(async move {
            let url = self.http.build_url(&["users"], &[("username", login)]);
            let found: Vec<GitlabUserMatch> = self.http.get_json(url).await?;
            let named = |one: &&GitlabUserMatch| one.username.eq_ignore_ascii_case(login);
            let Some(found) = found.iter().find(named) else { return Ok(false) };
            // Members who inherit access from a parent group count too.
            let url = self.project_url(&["members", "all", &found.id.to_string()], &[]);
            let member: Option<GitlabMember> = self.http.find_json(url).await?;
            Ok(member.is_some_and(|member| {
                member.access_level >= DEVELOPER_ACCESS_LEVEL
                    && member.state.is_none_or(|state| state == "active")
            }))
        })
    }

    fn find_pull_request<'a>(
        &'a self,
        branch: &'a str,
    ) -> ForgeFuture<'a, Option<RemotePullRequest>> {
        Box::pin(async move {
            let query = [("source_branch", branch), ("state", "all"), PAGE_SIZE_PARAM];
            let found: Vec<GitlabMergeRequest> =
                self.http.get_all_pages(self.project_url(&["merge_requests"], &query)).await?;
            // The filter matches branch names only, in forks too.
            Ok(select_pull_request(found.into_iter().map(RemotePullRequest::from), branch))
        })
    }

    fn get_pull_request(&self, number: u64) -> ForgeFuture<'_, RemotePullRequest> {
        Box::pin(async move {
            let url = self.project_url(&["merge_requests", &number.to_string()], &[]);
            Ok(self.http.get_json::<GitlabMergeRequest>(url).await?.into())
        })
    }

    fn create_pull_request<'a>(
        &'a self,
        new: &'a NewPullRequest,
    ) -> ForgeFuture<'a, RemotePullRequest> {
        Box::pin(async move {
            let body = json!({
                "source_branch": new.branch,
                "target_branch": new.base,
                "title": new.title,
                "description": new.body,
            });
            Ok(self
                .http
                .post_json::<GitlabMergeRequest>(self.project_url(&["merge_requests"], &[]), &body)
                .await?
                .into())
        })
    }

    fn ensure_comment<'a>(
        &'a self,
        on: CommentTarget,
        marker: &'a str,
        text: &'a str,
    ) -> ForgeFuture<'a, ()> {
        Box::pin(async move {
            let (of, number) = match on {
                CommentTarget::Issue(number) => ("issues", number.to_string()),
                CommentTarget::PullRequest(number) => ("merge_requests", number.to_string()),
            };
            let path = [of, &number, "notes"];
            let there: Vec<GitlabNote> =
                self.http.get_all_pages(self.project_url(&path, &[PAGE_SIZE_PARAM])).await?;
            let mark = marker_comment(marker);
            if there.iter().any(|note| note.body.contains(&mark)) {
                return Ok(());
            }
            let body = json!({ "body": append_marker(marker, text) });
            let _: Value = self.http.post_json(self.project_url(&path, &[]), &body).await?;
            Ok(())
        })
    }

    fn list_checks<'a>(&'a self, commit: &'a str) -> ForgeFuture<'a, Vec<ForgeCheck>> {
        Box::pin(async move {
            let url = self
                .project_url(&["repository", "commits", commit, "statuses"], &[PAGE_SIZE_PARAM]);
            let statuses: Vec<GitlabCommitStatus> = self.http.get_all_pages(url).await?;
            let mut all: Vec<ForgeCheck> = statuses
                .into_iter()
                .map(|status| ForgeCheck {
                    state: to_check_state(&status.status, status.allow_failure),
                    name: status.name,
                    url: status.target_url,
                    summary: status.description.unwrap_or(status.status),
                })
                .collect();
            // A pipeline that could not be created has no job that reports it.
            let pipelines: Vec<GitlabPipeline> = self
                .http
                .get_all_pages(
                    self.project_url(&["pipelines"], &[("sha", commit), PAGE_SIZE_PARAM]),
                )
                .await?;
            let newest = pipelines.into_iter().max_by_key(|pipeline| pipeline.id);
            all.extend(newest.map(|pipeline| ForgeCheck {
                name: "pipeline".into(),
                state: to_check_state(&pipeline.status, false),
                url: pipeline.web_url,
                summary: pipeline.status,
            }));
            Ok(all)
        })
    }

    fn list_review_comments(
        &self,
        number: u64,
        since: OffsetDateTime,
    ) -> ForgeFuture<'_, Vec<ReviewComment>> {
        Box::pin(async move {
            let path = ["merge_requests", &number.to_string(), "notes"];
            let query = [("sort", "asc"), ("order_by", "created_at"), PAGE_SIZE_PARAM];
            let notes: Vec<GitlabNote> =
                self.http.get_all_pages(self.project_url(&path, &query)).await?;
            Ok(sort_review_comments(
                notes.into_iter().filter_map(GitlabNote::into_review_comment).collect(),
                since,
            ))
        })
    }

    fn list_issues<'a>(
        &'a self,
        wanted: &'a IssueFilter,
        since: OffsetDateTime,
    ) -> ForgeFuture<'a, Vec<IssueText>> {
        Box::pin(async move {
            let since = format_timestamp(since);
            let usual = [
                ("state", "opened"),
                ("updated_after", since.as_str()),
                ("order_by", "updated_at"),
                ("sort", "asc"),
                PAGE_SIZE_PARAM,
            ];
            let mut all = Vec::new();
            let label = wanted.label.as_deref().map(|label| ("labels", label));
            let assignee = wanted.assignee.as_deref().map(|login| ("assignee_username", login));
            for filter in [label, assignee].into_iter().flatten() {
                let url = self.project_url(&["issues"], &[&[filter], &usual[..]].concat());
                let (found, _): (Vec<GitlabIssue>, bool) =
                    self.http.get_first_pages(url, 10).await?;
                all.extend(found.into_iter().map(IssueText::from));
            }
            Ok(sort_unique_issues(all))
        })
    }

    fn get_issue(&self, number: u64) -> ForgeFuture<'_, Option<IssueText>> {
        Box::pin(async move {
            let url = self.project_url(&["issues", &number.to_string()], &[]);
            Ok(self.http.find_json::<GitlabIssue>(url).await?.map(Into::into))
        })
    }
}
