//! The REST API of Gitea and Forgejo, version 1.

use serde::Deserialize;
use serde_json::{Value, json};
use time::OffsetDateTime;
use url::Url;

use crate::{
    Asked, CheckState, CheckStatus, Forge, ForgeError, ForgeKind, IssueText, NewPullRequest,
    PullRequest, PullState, Remark, RemarkKind, Site, Thread, Wanted, each_once,
    github::{choose, moment, owner_and_name},
    hidden,
    http::{Http, Pass},
    in_order, marked,
};

/// Entries of a page: what servers give at most unless they were told otherwise.
const PAGE: (&str, &str) = ("limit", "50");

/// A repository on Gitea or Forgejo.
#[derive(Debug)]
pub(crate) struct Gitea {
    http: Http,
    owner: String,
    name: String,
}

#[derive(Deserialize)]
struct User {
    login: String,
}

fn login(user: Option<User>) -> String {
    user.map_or_else(|| "Ghost".into(), |user| user.login)
}

#[derive(Deserialize)]
struct Branch {
    #[serde(rename = "ref")]
    name: String,
    /// The branch as it was called, also when it is gone: then `ref` names the pull request.
    label: Option<String>,
    sha: String,
    /// Below one when it was a fork that is gone.
    repo_id: Option<i64>,
}

#[derive(Deserialize)]
struct Pull {
    number: u64,
    state: String,
    #[serde(default)]
    merged: bool,
    merge_commit_sha: Option<String>,
    html_url: String,
    head: Branch,
    base: Branch,
}

impl From<Pull> for PullRequest {
    fn from(pull: Pull) -> Self {
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
struct Comment {
    id: u64,
    user: Option<User>,
    #[serde(default)]
    body: String,
    path: Option<String>,
    position: Option<u64>,
    original_position: Option<u64>,
    #[serde(with = "time::serde::rfc3339")]
    created_at: OffsetDateTime,
}

impl Comment {
    fn remark(self, of: &str) -> Remark {
        // A position of zero is none.
        let line = self.position.filter(|line| *line > 0);
        Remark {
            id: format!("{of}:{}", self.id),
            author: login(self.user),
            body: self.body,
            path: self.path.filter(|path| !path.is_empty()),
            line: line.or(self.original_position).filter(|line| *line > 0),
            kind: RemarkKind::Comment,
            at: self.created_at,
        }
    }
}

#[derive(Deserialize)]
struct Review {
    id: u64,
    user: Option<User>,
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
struct Label {
    name: String,
}

#[derive(Deserialize)]
struct Issue {
    number: u64,
    state: String,
    title: String,
    #[serde(default)]
    body: String,
    user: Option<User>,
    labels: Option<Vec<Label>>,
    assignees: Option<Vec<User>>,
    html_url: String,
    #[serde(with = "time::serde::rfc3339")]
    updated_at: OffsetDateTime,
    pull_request: Option<Value>,
}

impl Issue {
    fn text(self) -> Option<IssueText> {
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
            author: login(self.user),
            labels: labels.collect(),
            assignees: assignees.collect(),
            url: self.html_url,
            updated_at: self.updated_at,
        })
    }
}

#[derive(Deserialize)]
struct Combined {
    statuses: Option<Vec<Reported>>,
}

#[derive(Deserialize)]
struct Reported {
    context: String,
    status: String,
    target_url: Option<String>,
    #[serde(default)]
    description: String,
}

impl From<Reported> for CheckStatus {
    fn from(status: Reported) -> Self {
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

impl Gitea {
    pub(crate) fn new(site: Site) -> Result<Self, ForgeError> {
        let (owner, name) = owner_and_name(&site.repository)?;
        let http = Http::new(site.api, &site.token, site.private, Pass::Token, "application/json")?;
        Ok(Self { http, owner, name })
    }

    fn at(&self, path: &[&str], query: &[(&str, &str)]) -> Url {
        self.http.at(&[&["repos", &self.owner, &self.name], path].concat(), query)
    }

    async fn remarks(&self, number: u64, since: OffsetDateTime) -> Result<Vec<Remark>, ForgeError> {
        let number = number.to_string();
        let reviews: Vec<Review> =
            self.http.pages(self.at(&["pulls", &number, "reviews"], &[PAGE])).await?;
        let mut remarks = Vec::new();
        for review in reviews {
            let kind = match review.state.as_str() {
                _ if review.dismissed => continue,
                "APPROVED" => RemarkKind::Approved,
                "REQUEST_CHANGES" => RemarkKind::ChangesRequested,
                "COMMENT" => RemarkKind::Comment,
                // Not sent yet, or only asked for.
                _ => continue,
            };
            if review.comments_count > 0 && review.submitted_at >= since {
                let path = ["pulls", &number, "reviews", &review.id.to_string(), "comments"];
                let inline: Vec<Comment> = self.http.pages(self.at(&path, &[])).await?;
                remarks.extend(inline.into_iter().map(|comment| comment.remark("inline")));
            }
            if kind == RemarkKind::Comment && review.body.trim().is_empty() {
                continue;
            }
            remarks.push(Remark {
                id: format!("review:{}", review.id),
                author: login(review.user),
                body: review.body,
                path: None,
                line: None,
                kind,
                at: review.submitted_at,
            });
        }
        let url = self.at(&["issues", &number, "comments"], &[("since", &moment(since))]);
        let plain: Vec<Comment> = self.http.pages(url).await?;
        remarks.extend(plain.into_iter().map(|comment| comment.remark("comment")));
        Ok(in_order(remarks, since))
    }
}

impl Forge for Gitea {
    fn kind(&self) -> ForgeKind {
        ForgeKind::Gitea
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
            Ok(found.is_some_and(|found| ["owner", "admin", "write"].contains(&&*found.permission)))
        })
    }

    fn pull_request_of<'a>(&'a self, branch: &'a str) -> Asked<'a, Option<PullRequest>> {
        Box::pin(async move {
            // There is no filter by branch: the open ones all, then the closed ones that were changed last.
            let query = [("state", "open"), PAGE];
            let open: Vec<Pull> = self.http.pages(self.at(&["pulls"], &query)).await?;
            let of = |pulls: Vec<Pull>| choose(pulls.into_iter().map(PullRequest::from), branch);
            if let Some(found) = of(open) {
                return Ok(Some(found));
            }
            let query = [("state", "closed"), ("sort", "recentupdate"), PAGE];
            let (closed, _) = self.http.some_pages(self.at(&["pulls"], &query), 10).await?;
            Ok(of(closed))
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
            let there: Vec<Comment> = self.http.pages(self.at(&path, &[])).await?;
            let mark = hidden(marker);
            if there.iter().any(|comment| comment.body.contains(&mark)) {
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
            for page in 1..=20_u32 {
                let number = page.to_string();
                let url = self.at(&["commits", commit, "status"], &[PAGE, ("page", &number)]);
                let combined: Combined = self.http.get(url).await?;
                let statuses = combined.statuses.unwrap_or_default();
                let known = all.len();
                for status in statuses {
                    if !all.iter().any(|one| one.name == status.context) {
                        all.push(status.into());
                    }
                }
                // Also a server that does not know pages ends here.
                if all.len() == known {
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
            let usual = [("state", "open"), ("type", "issues"), ("since", since.as_str()), PAGE];
            let mut all = Vec::new();
            let label = wanted.label.as_deref().map(|label| ("labels", label));
            let assignee = wanted.assignee.as_deref().map(|login| ("assigned_by", login));
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
