//! The REST API of Gitea and Forgejo, version 1.

use serde::Deserialize;
use serde_json::{Value, json};
use time::OffsetDateTime;
use url::Url;

use crate::{
    CheckState, CommentTarget, Forge, ForgeCheck, ForgeEndpoint, ForgeError, ForgeFuture,
    ForgeKind, IssueFilter, IssueText, NewPullRequest, PullState, RemotePullRequest, ReviewComment,
    ReviewCommentKind, append_marker,
    github::{format_timestamp, select_pull_request, split_repository_name},
    http::{AuthScheme, ForgeHttpClient},
    marker_comment, sort_review_comments, sort_unique_issues,
};

/// Page size: the default maximum of servers.
const PAGE_SIZE_PARAM: (&str, &str) = ("limit", "50");

/// A repository on Gitea or Forgejo.
#[derive(Debug)]
pub(crate) struct GiteaForge {
    http: ForgeHttpClient,
    owner: String,
    name: String,
}

#[derive(Deserialize)]
struct GiteaUser {
    login: String,
}

fn login_or_ghost(user: Option<GiteaUser>) -> String {
    user.map_or_else(|| "Ghost".into(), |user| user.login)
}

#[derive(Deserialize)]
struct GiteaBranch {
    #[serde(rename = "ref")]
    name: String,
    /// Original name of the branch. If the branch is deleted, `ref` names the pull request instead.
    label: Option<String>,
    sha: String,
    /// Id of the source repository; below 1 if it was a fork that is deleted.
    repo_id: Option<i64>,
}

#[derive(Deserialize)]
struct GiteaPull {
    number: u64,
    state: String,
    #[serde(default)]
    merged: bool,
    merge_commit_sha: Option<String>,
    html_url: String,
    head: GiteaBranch,
    base: GiteaBranch,
}

impl From<GiteaPull> for RemotePullRequest {
    fn from(pull: GiteaPull) -> Self {
        let state = match (pull.merged, pull.state.as_str()) {
            (true, _) => PullState::Merged,
            (false, "open") => PullState::Open,
            (false, _) => PullState::Closed,
        };
        Self {
            number: pull.number,
            state,
            ours: pull.head.repo_id.is_some_and(|id| id > 0)
                && pull.head.repo_id == pull.base.repo_id,
            branch: pull.head.label.unwrap_or(pull.head.name),
            base: pull.base.name,
            head: pull.head.sha,
            merge_commit: pull.merge_commit_sha.filter(|_| state == PullState::Merged),
            url: pull.html_url,
        }
    }
}

#[derive(Deserialize)]
struct GiteaComment {
    id: u64,
    user: Option<GiteaUser>,
    #[serde(default)]
    body: String,
    path: Option<String>,
    position: Option<u64>,
    original_position: Option<u64>,
    #[serde(with = "time::serde::rfc3339")]
    created_at: OffsetDateTime,
}

impl GiteaComment {
    fn into_review_comment(self, of: &str) -> ReviewComment {
        // A position of zero means no line.
        let line = self.position.filter(|line| *line > 0);
        ReviewComment {
            id: format!("{of}:{}", self.id),
            author: login_or_ghost(self.user),
            body: self.body,
            path: self.path.filter(|path| !path.is_empty()),
            line: line.or(self.original_position).filter(|line| *line > 0),
            kind: ReviewCommentKind::Comment,
            at: self.created_at,
        }
    }
}

#[derive(Deserialize)]
struct GiteaReview {
    id: u64,
    user: Option<GiteaUser>,
    #[serde(default)]
    body: String,
    state: String,
    #[serde(default)]
    dismissed: bool,
    #[serde(default)]
    comments_count: u64,
    #[serde(with = "time::serde::rfc3339")]
    submitted_at: OffsetDateTime,
}

#[derive(Deserialize)]
struct GiteaLabel {
    name: String,
}

#[derive(Deserialize)]
struct GiteaIssue {
    number: u64,
    state: String,
    title: String,
    #[serde(default)]
    body: String,
    user: Option<GiteaUser>,
    labels: Option<Vec<GiteaLabel>>,
    assignees: Option<Vec<GiteaUser>>,
    html_url: String,
    #[serde(with = "time::serde::rfc3339")]
    updated_at: OffsetDateTime,
    pull_request: Option<Value>,
}

impl GiteaIssue {
    fn into_issue_text(self) -> Option<IssueText> {
        if self.pull_request.is_some() {
            return None;
        }
        let labels = self.labels.unwrap_or_default().into_iter().map(|label| label.name);
        let assignees = self.assignees.unwrap_or_default().into_iter().map(|user| user.login);
        Some(IssueText {
            number: self.number,
            open: self.state == "open",
            title: self.title,
            body: self.body,
            author: login_or_ghost(self.user),
            labels: labels.collect(),
            assignees: assignees.collect(),
            url: self.html_url,
            updated_at: self.updated_at,
        })
    }
}

#[derive(Deserialize)]
struct GiteaCombinedStatus {
    statuses: Option<Vec<GiteaCommitStatus>>,
}

#[derive(Deserialize)]
struct GiteaCommitStatus {
    context: String,
    status: String,
    target_url: Option<String>,
    #[serde(default)]
    description: String,
}

impl From<GiteaCommitStatus> for ForgeCheck {
    fn from(status: GiteaCommitStatus) -> Self {
        let state = match status.status.as_str() {
            "success" | "skipped" | "warning" => CheckState::Passed,
            "pending" => CheckState::Pending,
            _ => CheckState::Failed,
        };
        let said = Some(status.description).filter(|said| !said.is_empty());
        Self {
            name: status.context,
            state,
            url: status.target_url.filter(|url| !url.is_empty()),
            summary: said.unwrap_or(status.status),
        }
    }
}

impl GiteaForge {
    pub(crate) fn new(site: ForgeEndpoint) -> Result<Self, ForgeError> {
        let (owner, name) = split_repository_name(&site.repository)?;
        let http = ForgeHttpClient::new(
            site.api,
            &site.token,
            site.private,
            AuthScheme::Token,
            "application/json",
        )?;
        Ok(Self { http, owner, name })
    }

    fn repository_url(&self, path: &[&str], query: &[(&str, &str)]) -> Url {
        self.http.build_url(&[&["repos", &self.owner, &self.name], path].concat(), query)
    }

    async fn fetch_review_comments(
        &self,
        number: u64,
        since: OffsetDateTime,
    ) -> Result<Vec<ReviewComment>, ForgeError> {
        let number = number.to_string();
        let reviews: Vec<GiteaReview> = self
            .http
            .get_all_pages(self.repository_url(&["pulls", &number, "reviews"], &[PAGE_SIZE_PARAM]))
            .await?;
        let mut remarks = Vec::new();
        for review in reviews {
            let kind = match review.state.as_str() {
                _ if review.dismissed => continue,
                "APPROVED" => ReviewCommentKind::Approved,
                "REQUEST_CHANGES" => ReviewCommentKind::ChangesRequested,
                "COMMENT" => ReviewCommentKind::Comment,
                // A pending review, or a review request.
                _ => continue,
            };
            if review.comments_count > 0 && review.submitted_at >= since {
                let path = ["pulls", &number, "reviews", &review.id.to_string(), "comments"];
                let inline: Vec<GiteaComment> =
                    self.http.get_all_pages(self.repository_url(&path, &[])).await?;
                remarks.extend(
                    inline.into_iter().map(|comment| comment.into_review_comment("inline")),
                );
            }
            if kind == ReviewCommentKind::Comment && review.body.trim().is_empty() {
                continue;
            }
            remarks.push(ReviewComment {
                id: format!("review:{}", review.id),
                author: login_or_ghost(review.user),
                body: review.body,
                path: None,
                line: None,
                kind,
                at: review.submitted_at,
            });
        }
        let url = self.repository_url(
            &["issues", &number, "comments"],
            &[("since", &format_timestamp(since))],
        );
        let plain: Vec<GiteaComment> = self.http.get_all_pages(url).await?;
        remarks.extend(plain.into_iter().map(|comment| comment.into_review_comment("comment")));
        Ok(sort_review_comments(remarks, since))
    }
}

impl Forge for GiteaForge {
    fn forge_kind(&self) -> ForgeKind {
        ForgeKind::Gitea
    }

    fn fetch_own_login(&self) -> ForgeFuture<'_, String> {
        Box::pin(async {
            Ok(self.http.get_json::<GiteaUser>(self.http.build_url(&["user"], &[])).await?.login)
        })
    }

    fn can_write<'a>(&'a self, login: &'a str) -> ForgeFuture<'a, bool> {
        #[derive(Deserialize)]
        struct GiteaPermission {
            permission: String,
        }
        Box::pin(async move {
            let url = self.repository_url(&["collaborators", login, "permission"], &[]);
            let found: Option<GiteaPermission> = self.http.find_json(url).await?;
            Ok(found.is_some_and(|found| ["owner", "admin", "write"].contains(&&*found.permission)))
        })
    }

    fn find_pull_request<'a>(
        &'a self,
        branch: &'a str,
    ) -> ForgeFuture<'a, Option<RemotePullRequest>> {
        Box::pin(async move {
            // The API has no filter by branch: the client reads all open pull requests, then the closed ones that were updated last.
            let query = [("state", "open"), PAGE_SIZE_PARAM];
            let open: Vec<GiteaPull> =
                self.http.get_all_pages(self.repository_url(&["pulls"], &query)).await?;
            let of = |pulls: Vec<GiteaPull>| {
                select_pull_request(pulls.into_iter().map(RemotePullRequest::from), branch)
            };
            if let Some(found) = of(open) {
                return Ok(Some(found));
            }
            let query = [("state", "closed"), ("sort", "recentupdate"), PAGE_SIZE_PARAM];
            let (closed, _) =
                self.http.get_first_pages(self.repository_url(&["pulls"], &query), 10).await?;
            Ok(of(closed))
        })
    }

    fn get_pull_request(&self, number: u64) -> ForgeFuture<'_, RemotePullRequest> {
        Box::pin(async move {
            let url = self.repository_url(&["pulls", &number.to_string()], &[]);
            Ok(self.http.get_json::<GiteaPull>(url).await?.into())
        })
    }

    fn create_pull_request<'a>(
        &'a self,
        new: &'a NewPullRequest,
    ) -> ForgeFuture<'a, RemotePullRequest> {
        Box::pin(async move {
            let body = json!({ "title": new.title, "head": new.branch, "base": new.base, "body": new.body });
            Ok(self
                .http
                .post_json::<GiteaPull>(self.repository_url(&["pulls"], &[]), &body)
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
            let (CommentTarget::Issue(number) | CommentTarget::PullRequest(number)) = on;
            let path = ["issues", &number.to_string(), "comments"];
            let there: Vec<GiteaComment> =
                self.http.get_all_pages(self.repository_url(&path, &[])).await?;
            let mark = marker_comment(marker);
            if there.iter().any(|comment| comment.body.contains(&mark)) {
                return Ok(());
            }
            let body = json!({ "body": append_marker(marker, text) });
            let _: Value = self.http.post_json(self.repository_url(&path, &[]), &body).await?;
            Ok(())
        })
    }

    fn list_checks<'a>(&'a self, commit: &'a str) -> ForgeFuture<'a, Vec<ForgeCheck>> {
        Box::pin(async move {
            let mut all: Vec<ForgeCheck> = Vec::new();
            for page in 1..=20_u32 {
                let number = page.to_string();
                let url = self.repository_url(
                    &["commits", commit, "status"],
                    &[PAGE_SIZE_PARAM, ("page", &number)],
                );
                let combined: GiteaCombinedStatus = self.http.get_json(url).await?;
                let statuses = combined.statuses.unwrap_or_default();
                let known = all.len();
                for status in statuses {
                    if !all.iter().any(|one| one.name == status.context) {
                        all.push(status.into());
                    }
                }
                // This also ends the loop for a server without pagination.
                if all.len() == known {
                    break;
                }
            }
            Ok(all)
        })
    }

    fn list_review_comments(
        &self,
        number: u64,
        since: OffsetDateTime,
    ) -> ForgeFuture<'_, Vec<ReviewComment>> {
        Box::pin(self.fetch_review_comments(number, since))
    }

    fn list_issues<'a>(
        &'a self,
        wanted: &'a IssueFilter,
        since: OffsetDateTime,
    ) -> ForgeFuture<'a, Vec<IssueText>> {
        Box::pin(async move {
            let since = format_timestamp(since);
            let usual =
                [("state", "open"), ("type", "issues"), ("since", since.as_str()), PAGE_SIZE_PARAM];
            let mut all = Vec::new();
            let label = wanted.label.as_deref().map(|label| ("labels", label));
            let assignee = wanted.assignee.as_deref().map(|login| ("assigned_by", login));
            for filter in [label, assignee].into_iter().flatten() {
                let url = self.repository_url(&["issues"], &[&[filter], &usual[..]].concat());
                let (found, _): (Vec<GiteaIssue>, bool) =
                    self.http.get_first_pages(url, 10).await?;
                all.extend(found.into_iter().filter_map(GiteaIssue::into_issue_text));
            }
            Ok(sort_unique_issues(all))
        })
    }

    fn get_issue(&self, number: u64) -> ForgeFuture<'_, Option<IssueText>> {
        Box::pin(async move {
            let url = self.repository_url(&["issues", &number.to_string()], &[]);
            Ok(self.http.find_json::<GiteaIssue>(url).await?.and_then(GiteaIssue::into_issue_text))
        })
    }
}
