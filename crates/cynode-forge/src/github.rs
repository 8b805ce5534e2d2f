//! GitHub's REST API, version 2022-11-28.

use serde::Deserialize;
use serde_json::{Value, json};
use time::OffsetDateTime;
use url::Url;

use crate::{
    CheckState, CommentTarget, Forge, ForgeCheck, ForgeEndpoint, ForgeError, ForgeFuture,
    ForgeKind, IssueFilter, IssueText, NewPullRequest, PullState, RemotePullRequest, ReviewComment,
    ReviewCommentKind, append_marker,
    http::{AuthScheme, ForgeHttpClient},
    marker_comment, sort_review_comments, sort_unique_issues,
};

/// Page size.
const PAGE_SIZE_PARAM: (&str, &str) = ("per_page", "100");

/// A repository on GitHub.
#[derive(Debug)]
pub(crate) struct GithubForge {
    http: ForgeHttpClient,
    owner: String,
    name: String,
}

#[derive(Deserialize)]
struct GithubUser {
    login: String,
}

/// Returns the login, or that of the ghost user for a deleted account.
fn login_or_ghost(user: Option<GithubUser>) -> String {
    user.map_or_else(|| "ghost".into(), |user| user.login)
}

#[derive(Deserialize)]
struct GithubBranch {
    #[serde(rename = "ref")]
    name: String,
    sha: String,
    /// Source repository; `None` if it was a fork that is deleted.
    repo: Option<GithubRepository>,
}

#[derive(PartialEq, Deserialize)]
struct GithubRepository {
    id: u64,
}

#[derive(Deserialize)]
struct GithubPull {
    number: u64,
    state: String,
    merged_at: Option<String>,
    merge_commit_sha: Option<String>,
    html_url: String,
    head: GithubBranch,
    base: GithubBranch,
}

impl From<GithubPull> for RemotePullRequest {
    fn from(pull: GithubPull) -> Self {
        let state = match (pull.merged_at.is_some(), pull.state.as_str()) {
            (true, _) => PullState::Merged,
            (false, "open") => PullState::Open,
            (false, _) => PullState::Closed,
        };
        // Before the merge this is only a test merge commit.
        let merge_commit = pull.merge_commit_sha.filter(|_| state == PullState::Merged);
        Self {
            number: pull.number,
            state,
            ours: pull.head.repo.is_some() && pull.head.repo == pull.base.repo,
            branch: pull.head.name,
            base: pull.base.name,
            head: pull.head.sha,
            merge_commit,
            url: pull.html_url,
        }
    }
}

#[derive(Deserialize)]
struct GithubComment {
    id: u64,
    user: Option<GithubUser>,
    body: Option<String>,
    path: Option<String>,
    line: Option<u64>,
    original_line: Option<u64>,
    #[serde(with = "time::serde::rfc3339")]
    created_at: OffsetDateTime,
}

impl GithubComment {
    fn into_review_comment(self, of: &str) -> ReviewComment {
        ReviewComment {
            id: format!("{of}:{}", self.id),
            author: login_or_ghost(self.user),
            body: self.body.unwrap_or_default(),
            path: self.path,
            line: self.line.or(self.original_line),
            kind: ReviewCommentKind::Comment,
            at: self.created_at,
        }
    }
}

#[derive(Deserialize)]
struct GithubReview {
    id: u64,
    user: Option<GithubUser>,
    body: Option<String>,
    state: String,
    #[serde(default, with = "time::serde::rfc3339::option")]
    submitted_at: Option<OffsetDateTime>,
}

#[derive(Deserialize)]
struct GithubLabel {
    name: String,
}

#[derive(Deserialize)]
struct GithubIssue {
    number: u64,
    state: String,
    title: String,
    body: Option<String>,
    user: Option<GithubUser>,
    labels: Vec<GithubLabel>,
    assignees: Vec<GithubUser>,
    html_url: String,
    #[serde(with = "time::serde::rfc3339")]
    updated_at: OffsetDateTime,
    pull_request: Option<Value>,
}

impl GithubIssue {
    /// Converts an issue. GitHub lists pull requests as issues; these are skipped.
    fn into_issue_text(self) -> Option<IssueText> {
        if self.pull_request.is_some() {
            return None;
        }
        Some(IssueText {
            number: self.number,
            open: self.state == "open",
            title: self.title,
            body: self.body.unwrap_or_default(),
            author: login_or_ghost(self.user),
            labels: self.labels.into_iter().map(|label| label.name).collect(),
            assignees: self.assignees.into_iter().map(|user| user.login).collect(),
            url: self.html_url,
            updated_at: self.updated_at,
        })
    }
}

#[derive(Deserialize)]
struct GithubCheckRuns {
    total_count: usize,
    check_runs: Vec<GithubCheckRun>,
}

#[derive(Deserialize)]
struct GithubCheckRun {
    name: String,
    status: String,
    conclusion: Option<String>,
    html_url: Option<String>,
    output: Option<GithubCheckOutput>,
}

#[derive(Deserialize)]
struct GithubCheckOutput {
    title: Option<String>,
    summary: Option<String>,
}

#[derive(Deserialize)]
struct GithubCombinedStatus {
    total_count: usize,
    statuses: Vec<GithubCommitStatus>,
}

#[derive(Deserialize)]
struct GithubCommitStatus {
    context: String,
    state: String,
    target_url: Option<String>,
    description: Option<String>,
}

impl From<GithubCheckRun> for ForgeCheck {
    fn from(run: GithubCheckRun) -> Self {
        let state = match (run.status.as_str(), run.conclusion.as_deref()) {
            ("completed", Some("success" | "neutral" | "skipped")) => CheckState::Passed,
            ("completed", _) => CheckState::Failed,
            _ => CheckState::Pending,
        };
        let output = run.output.and_then(|output| output.title.or(output.summary));
        let summary = output.or(run.conclusion).unwrap_or(run.status);
        Self { name: run.name, state, url: run.html_url, summary }
    }
}

impl From<GithubCommitStatus> for ForgeCheck {
    fn from(status: GithubCommitStatus) -> Self {
        let state = match status.state.as_str() {
            "success" => CheckState::Passed,
            "pending" => CheckState::Pending,
            _ => CheckState::Failed,
        };
        let summary = status.description.unwrap_or(status.state);
        Self { name: status.context, state, url: status.target_url, summary }
    }
}

impl GithubForge {
    pub(crate) fn new(site: ForgeEndpoint) -> Result<Self, ForgeError> {
        let (owner, name) = split_repository_name(&site.repository)?;
        let http = ForgeHttpClient::new(
            site.api,
            &site.token,
            site.private,
            AuthScheme::Bearer,
            "application/vnd.github+json",
        )?;
        Ok(Self { http: http.with_header("x-github-api-version", "2022-11-28"), owner, name })
    }

    fn repository_url(&self, path: &[&str], query: &[(&str, &str)]) -> Url {
        self.http.build_url(&[&["repos", &self.owner, &self.name], path].concat(), query)
    }

    async fn fetch_review_comments(
        &self,
        number: u64,
        since: OffsetDateTime,
    ) -> Result<Vec<ReviewComment>, ForgeError> {
        let (number, since_text) = (number.to_string(), format_timestamp(since));
        let since_query = [("since", since_text.as_str()), PAGE_SIZE_PARAM];
        let mut remarks = Vec::new();
        let reviews: Vec<GithubReview> = self
            .http
            .get_all_pages(self.repository_url(&["pulls", &number, "reviews"], &[PAGE_SIZE_PARAM]))
            .await?;
        for review in reviews {
            let kind = match review.state.as_str() {
                "APPROVED" => ReviewCommentKind::Approved,
                "CHANGES_REQUESTED" => ReviewCommentKind::ChangesRequested,
                "COMMENTED" => ReviewCommentKind::Comment,
                // A pending or dismissed review.
                _ => continue,
            };
            let body = review.body.unwrap_or_default();
            // A comment review without text only groups inline comments.
            let Some(at) = review.submitted_at else { continue };
            if kind == ReviewCommentKind::Comment && body.trim().is_empty() {
                continue;
            }
            remarks.push(ReviewComment {
                id: format!("review:{}", review.id),
                author: login_or_ghost(review.user),
                body,
                path: None,
                line: None,
                kind,
                at,
            });
        }
        let inline: Vec<GithubComment> = self
            .http
            .get_all_pages(self.repository_url(&["pulls", &number, "comments"], &since_query))
            .await?;
        remarks.extend(inline.into_iter().map(|comment| comment.into_review_comment("inline")));
        let plain: Vec<GithubComment> = self
            .http
            .get_all_pages(self.repository_url(&["issues", &number, "comments"], &since_query))
            .await?;
        remarks.extend(plain.into_iter().map(|comment| comment.into_review_comment("comment")));
        Ok(sort_review_comments(remarks, since))
    }
}

/// Splits `owner/name` into its two parts.
pub(crate) fn split_repository_name(repository: &str) -> Result<(String, String), ForgeError> {
    match repository.split_once('/') {
        Some((owner, name)) if !owner.is_empty() && !name.is_empty() && !name.contains('/') => {
            Ok((owner.to_owned(), name.to_owned()))
        }
        _ => Err(ForgeError::Failed("a repository is named as `owner/name`".into())),
    }
}

/// Formats a time for the API.
pub(crate) fn format_timestamp(at: OffsetDateTime) -> String {
    let at = at.to_offset(time::UtcOffset::UTC);
    let whole = at.replace_nanosecond(0).unwrap_or(at);
    whole.format(&time::format_description::well_known::Rfc3339).unwrap_or_default()
}

/// Selects the open pull request of a branch, or else the newest. Pull requests of a branch of the same name in a fork are ignored.
pub(crate) fn select_pull_request(
    pulls: impl IntoIterator<Item = RemotePullRequest>,
    branch: &str,
) -> Option<RemotePullRequest> {
    let of_it = pulls.into_iter().filter(|pull| pull.ours && pull.branch == branch);
    of_it.max_by_key(|pull| (pull.state == PullState::Open, pull.number))
}

impl Forge for GithubForge {
    fn forge_kind(&self) -> ForgeKind {
        ForgeKind::Github
    }

    fn fetch_own_login(&self) -> ForgeFuture<'_, String> {
        Box::pin(async {
            Ok(self.http.get_json::<GithubUser>(self.http.build_url(&["user"], &[])).await?.login)
        })
    }

    fn can_write<'a>(&'a self, login: &'a str) -> ForgeFuture<'a, bool> {
        #[derive(Deserialize)]
        struct GithubPermission {
            permission: String,
        }
        Box::pin(async move {
            let url = self.repository_url(&["collaborators", login, "permission"], &[]);
            let found: Option<GithubPermission> = self.http.find_json(url).await?;
            // GitHub reports the role `maintain` as `write`, and `triage` as `read`.
            Ok(found
                .is_some_and(|found| ["admin", "write", "maintain"].contains(&&*found.permission)))
        })
    }

    fn find_pull_request<'a>(
        &'a self,
        branch: &'a str,
    ) -> ForgeFuture<'a, Option<RemotePullRequest>> {
        Box::pin(async move {
            let head = format!("{}:{branch}", self.owner);
            let query = [("head", head.as_str()), ("state", "all"), PAGE_SIZE_PARAM];
            let pulls: Vec<GithubPull> =
                self.http.get_all_pages(self.repository_url(&["pulls"], &query)).await?;
            // A server that ignores the filter returns all pull requests, and an owner may have their own fork.
            Ok(select_pull_request(pulls.into_iter().map(RemotePullRequest::from), branch))
        })
    }

    fn get_pull_request(&self, number: u64) -> ForgeFuture<'_, RemotePullRequest> {
        Box::pin(async move {
            let url = self.repository_url(&["pulls", &number.to_string()], &[]);
            Ok(self.http.get_json::<GithubPull>(url).await?.into())
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
                .post_json::<GithubPull>(self.repository_url(&["pulls"], &[]), &body)
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
            let there: Vec<GithubComment> =
                self.http.get_all_pages(self.repository_url(&path, &[PAGE_SIZE_PARAM])).await?;
            let mark = marker_comment(marker);
            if there.iter().any(|one| one.body.as_deref().is_some_and(|body| body.contains(&mark)))
            {
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
            for page in 1..=20_usize {
                let number = page.to_string();
                let url = self.repository_url(
                    &["commits", commit, "check-runs"],
                    &[PAGE_SIZE_PARAM, ("page", &number)],
                );
                let runs: GithubCheckRuns = self.http.get_json(url).await?;
                let got = runs.check_runs.len();
                all.extend(runs.check_runs.into_iter().map(Into::into));
                if got == 0 || page * 100 >= runs.total_count {
                    break;
                }
            }
            for page in 1..=20_usize {
                let number = page.to_string();
                let url = self.repository_url(
                    &["commits", commit, "status"],
                    &[PAGE_SIZE_PARAM, ("page", &number)],
                );
                let statuses: GithubCombinedStatus = self.http.get_json(url).await?;
                let got = statuses.statuses.len();
                all.extend(statuses.statuses.into_iter().map(Into::into));
                if got == 0 || page * 100 >= statuses.total_count {
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
            let usual = [
                ("state", "open"),
                ("since", since.as_str()),
                ("sort", "updated"),
                ("direction", "asc"),
                PAGE_SIZE_PARAM,
            ];
            let mut all = Vec::new();
            let label = wanted.label.as_deref().map(|label| ("labels", label));
            let assignee = wanted.assignee.as_deref().map(|login| ("assignee", login));
            for filter in [label, assignee].into_iter().flatten() {
                let url = self.repository_url(&["issues"], &[&[filter], &usual[..]].concat());
                let (found, _): (Vec<GithubIssue>, bool) =
                    self.http.get_first_pages(url, 10).await?;
                all.extend(found.into_iter().filter_map(GithubIssue::into_issue_text));
            }
            Ok(sort_unique_issues(all))
        })
    }

    fn get_issue(&self, number: u64) -> ForgeFuture<'_, Option<IssueText>> {
        Box::pin(async move {
            let url = self.repository_url(&["issues", &number.to_string()], &[]);
            Ok(self
                .http
                .find_json::<GithubIssue>(url)
                .await?
                .and_then(GithubIssue::into_issue_text))
        })
    }
}
