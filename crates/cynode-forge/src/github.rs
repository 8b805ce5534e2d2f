//! GitHub's REST API, version 2022-11-28.

use serde::Deserialize;
use serde_json::{Value, json};
use time::OffsetDateTime;
use url::Url;

use crate::{
    Asked, CheckState, CheckStatus, Forge, ForgeError, ForgeKind, IssueText, NewPullRequest,
    PullRequest, PullState, Remark, RemarkKind, Site, Thread, Wanted, each_once, hidden,
    http::{Http, Pass},
    in_order, marked,
};

/// Entries of a page.
const PAGE: (&str, &str) = ("per_page", "100");

/// A repository on GitHub.
#[derive(Debug)]
pub(crate) struct Github {
    http: Http,
    owner: String,
    name: String,
}

#[derive(Deserialize)]
struct User {
    login: String,
}

/// Somebody whose account is gone is nobody.
fn login(user: Option<User>) -> String {
    user.map_or_else(|| "ghost".into(), |user| user.login)
}

#[derive(Deserialize)]
struct Branch {
    #[serde(rename = "ref")]
    name: String,
    sha: String,
    /// None when it was a fork that is gone.
    repo: Option<Repository>,
}

#[derive(PartialEq, Deserialize)]
struct Repository {
    id: u64,
}

#[derive(Deserialize)]
struct Pull {
    number: u64,
    state: String,
    merged_at: Option<String>,
    merge_commit_sha: Option<String>,
    html_url: String,
    head: Branch,
    base: Branch,
}

impl From<Pull> for PullRequest {
    fn from(pull: Pull) -> Self {
        let state = match (pull.merged_at.is_some(), pull.state.as_str()) {
            (true, _) => PullState::Merged,
            (false, "open") => PullState::Open,
            (false, _) => PullState::Closed,
        };
        // Before it is merged this is a commit that was only tried.
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
struct Comment {
    id: u64,
    user: Option<User>,
    body: Option<String>,
    path: Option<String>,
    line: Option<u64>,
    original_line: Option<u64>,
    #[serde(with = "time::serde::rfc3339")]
    created_at: OffsetDateTime,
}

impl Comment {
    fn remark(self, of: &str) -> Remark {
        Remark {
            id: format!("{of}:{}", self.id),
            author: login(self.user),
            body: self.body.unwrap_or_default(),
            path: self.path,
            line: self.line.or(self.original_line),
            kind: RemarkKind::Comment,
            at: self.created_at,
        }
    }
}

#[derive(Deserialize)]
struct Review {
    id: u64,
    user: Option<User>,
    body: Option<String>,
    state: String,
    #[serde(default, with = "time::serde::rfc3339::option")]
    submitted_at: Option<OffsetDateTime>,
}

#[derive(Deserialize)]
struct Label {
    name: String,
}

#[derive(Deserialize)]
struct Issue {
    number: u64,
    state: String,
    title: String,
    body: Option<String>,
    user: Option<User>,
    labels: Vec<Label>,
    assignees: Vec<User>,
    html_url: String,
    #[serde(with = "time::serde::rfc3339")]
    updated_at: OffsetDateTime,
    pull_request: Option<Value>,
}

impl Issue {
    /// Pull requests are issues to GitHub; not to us.
    fn text(self) -> Option<IssueText> {
        if self.pull_request.is_some() {
            return None;
        }
        Some(IssueText {
            number: self.number,
            open: self.state == "open",
            title: self.title,
            body: self.body.unwrap_or_default(),
            author: login(self.user),
            labels: self.labels.into_iter().map(|label| label.name).collect(),
            assignees: self.assignees.into_iter().map(|user| user.login).collect(),
            url: self.html_url,
            updated_at: self.updated_at,
        })
    }
}

#[derive(Deserialize)]
struct CheckRuns {
    total_count: usize,
    check_runs: Vec<CheckRun>,
}

#[derive(Deserialize)]
struct CheckRun {
    name: String,
    status: String,
    conclusion: Option<String>,
    html_url: Option<String>,
    output: Option<Output>,
}

#[derive(Deserialize)]
struct Output {
    title: Option<String>,
    summary: Option<String>,
}

#[derive(Deserialize)]
struct Statuses {
    total_count: usize,
    statuses: Vec<Status>,
}

#[derive(Deserialize)]
struct Status {
    context: String,
    state: String,
    target_url: Option<String>,
    description: Option<String>,
}

impl From<CheckRun> for CheckStatus {
    fn from(run: CheckRun) -> Self {
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

impl From<Status> for CheckStatus {
    fn from(status: Status) -> Self {
        let state = match status.state.as_str() {
            "success" => CheckState::Passed,
            "pending" => CheckState::Pending,
            _ => CheckState::Failed,
        };
        let summary = status.description.unwrap_or(status.state);
        Self { name: status.context, state, url: status.target_url, summary }
    }
}

impl Github {
    pub(crate) fn new(site: Site) -> Result<Self, ForgeError> {
        let (owner, name) = owner_and_name(&site.repository)?;
        let http = Http::new(
            site.api,
            &site.token,
            site.private,
            Pass::Bearer,
            "application/vnd.github+json",
        )?;
        Ok(Self { http: http.with("x-github-api-version", "2022-11-28"), owner, name })
    }

    fn at(&self, path: &[&str], query: &[(&str, &str)]) -> Url {
        self.http.at(&[&["repos", &self.owner, &self.name], path].concat(), query)
    }

    async fn remarks(&self, number: u64, since: OffsetDateTime) -> Result<Vec<Remark>, ForgeError> {
        let (number, since_text) = (number.to_string(), moment(since));
        let since_query = [("since", since_text.as_str()), PAGE];
        let mut remarks = Vec::new();
        let reviews: Vec<Review> =
            self.http.pages(self.at(&["pulls", &number, "reviews"], &[PAGE])).await?;
        for review in reviews {
            let kind = match review.state.as_str() {
                "APPROVED" => RemarkKind::Approved,
                "CHANGES_REQUESTED" => RemarkKind::ChangesRequested,
                "COMMENTED" => RemarkKind::Comment,
                // Not sent yet, or taken back.
                _ => continue,
            };
            let body = review.body.unwrap_or_default();
            // A comment of no words is only the frame of inline ones.
            let Some(at) = review.submitted_at else { continue };
            if kind == RemarkKind::Comment && body.trim().is_empty() {
                continue;
            }
            remarks.push(Remark {
                id: format!("review:{}", review.id),
                author: login(review.user),
                body,
                path: None,
                line: None,
                kind,
                at,
            });
        }
        let inline: Vec<Comment> =
            self.http.pages(self.at(&["pulls", &number, "comments"], &since_query)).await?;
        remarks.extend(inline.into_iter().map(|comment| comment.remark("inline")));
        let plain: Vec<Comment> =
            self.http.pages(self.at(&["issues", &number, "comments"], &since_query)).await?;
        remarks.extend(plain.into_iter().map(|comment| comment.remark("comment")));
        Ok(in_order(remarks, since))
    }
}

/// The two parts of `owner/name`.
pub(crate) fn owner_and_name(repository: &str) -> Result<(String, String), ForgeError> {
    match repository.split_once('/') {
        Some((owner, name)) if !owner.is_empty() && !name.is_empty() && !name.contains('/') => {
            Ok((owner.to_owned(), name.to_owned()))
        }
        _ => Err(ForgeError::Failed("a repository is named as `owner/name`".into())),
    }
}

/// A moment, as the APIs read it.
pub(crate) fn moment(at: OffsetDateTime) -> String {
    let at = at.to_offset(time::UtcOffset::UTC);
    let whole = at.replace_nanosecond(0).unwrap_or(at);
    whole.format(&time::format_description::well_known::Rfc3339).unwrap_or_default()
}

/// Of a branch's pull requests the open one, or else the newest. Those of a branch of the same name in a fork are not among them.
pub(crate) fn choose(
    pulls: impl IntoIterator<Item = PullRequest>,
    branch: &str,
) -> Option<PullRequest> {
    let of_it = pulls.into_iter().filter(|pull| pull.ours && pull.branch == branch);
    of_it.max_by_key(|pull| (pull.state == PullState::Open, pull.number))
}

impl Forge for Github {
    fn kind(&self) -> ForgeKind {
        ForgeKind::Github
    }

    fn whoami(&self) -> Asked<'_, String> {
        Box::pin(async { Ok(self.http.get::<User>(self.http.at(&["user"], &[])).await?.login) })
    }

    fn may_write<'a>(&'a self, login: &'a str) -> Asked<'a, bool> {
        #[derive(Deserialize)]
        struct Permission {
            permission: String,
        }
        Box::pin(async move {
            let url = self.at(&["collaborators", login, "permission"], &[]);
            let found: Option<Permission> = self.http.find(url).await?;
            // Maintainers are told as `write`, those who may only sort as `read`.
            Ok(found
                .is_some_and(|found| ["admin", "write", "maintain"].contains(&&*found.permission)))
        })
    }

    fn pull_request_of<'a>(&'a self, branch: &'a str) -> Asked<'a, Option<PullRequest>> {
        Box::pin(async move {
            let head = format!("{}:{branch}", self.owner);
            let query = [("head", head.as_str()), ("state", "all"), PAGE];
            let pulls: Vec<Pull> = self.http.pages(self.at(&["pulls"], &query)).await?;
            // A server that does not know the filter answers with everything, and an owner may have a fork of their own.
            Ok(choose(pulls.into_iter().map(PullRequest::from), branch))
        })
    }

    fn pull_request(&self, number: u64) -> Asked<'_, PullRequest> {
        Box::pin(async move {
            let url = self.at(&["pulls", &number.to_string()], &[]);
            Ok(self.http.get::<Pull>(url).await?.into())
        })
    }

    fn create<'a>(&'a self, new: &'a NewPullRequest) -> Asked<'a, PullRequest> {
        Box::pin(async move {
            let body = json!({ "title": new.title, "head": new.branch, "base": new.base, "body": new.body });
            Ok(self.http.post::<Pull>(self.at(&["pulls"], &[]), &body).await?.into())
        })
    }

    fn comment<'a>(&'a self, on: Thread, marker: &'a str, text: &'a str) -> Asked<'a, ()> {
        Box::pin(async move {
            let (Thread::Issue(number) | Thread::PullRequest(number)) = on;
            let path = ["issues", &number.to_string(), "comments"];
            let there: Vec<Comment> = self.http.pages(self.at(&path, &[PAGE])).await?;
            let mark = hidden(marker);
            if there.iter().any(|one| one.body.as_deref().is_some_and(|body| body.contains(&mark)))
            {
                return Ok(());
            }
            let body = json!({ "body": marked(marker, text) });
            let _: Value = self.http.post(self.at(&path, &[]), &body).await?;
            Ok(())
        })
    }

    fn checks<'a>(&'a self, commit: &'a str) -> Asked<'a, Vec<CheckStatus>> {
        Box::pin(async move {
            let mut all: Vec<CheckStatus> = Vec::new();
            for page in 1..=20_usize {
                let number = page.to_string();
                let url = self.at(&["commits", commit, "check-runs"], &[PAGE, ("page", &number)]);
                let runs: CheckRuns = self.http.get(url).await?;
                let got = runs.check_runs.len();
                all.extend(runs.check_runs.into_iter().map(Into::into));
                if got == 0 || page * 100 >= runs.total_count {
                    break;
                }
            }
            for page in 1..=20_usize {
                let number = page.to_string();
                let url = self.at(&["commits", commit, "status"], &[PAGE, ("page", &number)]);
                let statuses: Statuses = self.http.get(url).await?;
                let got = statuses.statuses.len();
                all.extend(statuses.statuses.into_iter().map(Into::into));
                if got == 0 || page * 100 >= statuses.total_count {
                    break;
                }
            }
            Ok(all)
        })
    }

    fn feedback(&self, number: u64, since: OffsetDateTime) -> Asked<'_, Vec<Remark>> {
        Box::pin(self.remarks(number, since))
    }

    fn issues<'a>(
        &'a self,
        wanted: &'a Wanted,
        since: OffsetDateTime,
    ) -> Asked<'a, Vec<IssueText>> {
        Box::pin(async move {
            let since = moment(since);
            let usual = [
                ("state", "open"),
                ("since", since.as_str()),
                ("sort", "updated"),
                ("direction", "asc"),
                PAGE,
            ];
            let mut all = Vec::new();
            let label = wanted.label.as_deref().map(|label| ("labels", label));
            let assignee = wanted.assignee.as_deref().map(|login| ("assignee", login));
            for filter in [label, assignee].into_iter().flatten() {
                let url = self.at(&["issues"], &[&[filter], &usual[..]].concat());
                let (found, _): (Vec<Issue>, bool) = self.http.some_pages(url, 10).await?;
                all.extend(found.into_iter().filter_map(Issue::text));
            }
            Ok(each_once(all))
        })
    }

    fn issue(&self, number: u64) -> Asked<'_, Option<IssueText>> {
        Box::pin(async move {
            let url = self.at(&["issues", &number.to_string()], &[]);
            Ok(self.http.find::<Issue>(url).await?.and_then(Issue::text))
        })
    }
}
