//! GitLab's REST API, version 4.

use serde::Deserialize;
use serde_json::{Value, json};
use time::OffsetDateTime;
use url::Url;

use crate::{
    Asked, CheckState, CheckStatus, Forge, ForgeError, ForgeKind, IssueText, NewPullRequest,
    PullRequest, PullState, Remark, RemarkKind, Site, Thread, Wanted, each_once,
    github::{choose, moment},
    hidden,
    http::{Http, Pass},
    in_order, marked,
};

/// Entries of a page.
const PAGE: (&str, &str) = ("per_page", "100");

/// The level from which on somebody may push: Developer.
const DEVELOPER: u64 = 30;

/// A project on GitLab.
#[derive(Debug)]
pub(crate) struct Gitlab {
    http: Http,
    repository: String,
}

#[derive(Deserialize)]
struct User {
    username: String,
}

#[derive(Deserialize)]
struct MergeRequest {
    iid: u64,
    state: String,
    sha: Option<String>,
    merge_commit_sha: Option<String>,
    squash_commit_sha: Option<String>,
    source_branch: String,
    target_branch: String,
    /// None when it was a fork that is gone.
    source_project_id: Option<u64>,
    target_project_id: Option<u64>,
    web_url: String,
}

impl From<MergeRequest> for PullRequest {
    fn from(merge: MergeRequest) -> Self {
        let state = match merge.state.as_str() {
            "merged" => PullState::Merged,
            "closed" => PullState::Closed,
            // `locked` is a moment on the way to merged.
            _ => PullState::Open,
        };
        let head = merge.sha.unwrap_or_default();
        let merged = state == PullState::Merged;
        // Merged without a commit of its own, the branch's newest is it.
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
struct Note {
    id: u64,
    body: String,
    author: User,
    #[serde(default)]
    system: bool,
    position: Option<Position>,
    #[serde(with = "time::serde::rfc3339")]
    created_at: OffsetDateTime,
}

#[derive(Deserialize)]
struct Position {
    new_path: Option<String>,
    new_line: Option<u64>,
    old_line: Option<u64>,
}

impl Note {
    /// GitLab keeps verdicts as notes of its own, with a time; the rest of those is not for us.
    fn remark(self) -> Option<Remark> {
        let kind = match (self.system, self.body.trim()) {
            (false, _) => RemarkKind::Comment,
            (true, "requested changes") => RemarkKind::ChangesRequested,
            (true, "approved this merge request") => RemarkKind::Approved,
            (true, _) => return None,
        };
        let line = self.position.as_ref().and_then(|at| at.new_line.or(at.old_line));
        Some(Remark {
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
struct Reported {
    name: String,
    status: String,
    target_url: Option<String>,
    description: Option<String>,
    #[serde(default)]
    allow_failure: bool,
}

#[derive(Deserialize)]
struct Pipeline {
    id: u64,
    status: String,
    web_url: Option<String>,
}

fn check(status: &str, allowed: bool) -> CheckState {
    match status {
        "success" | "skipped" | "manual" => CheckState::Passed,
        "failed" | "canceled" if allowed => CheckState::Passed,
        "failed" | "canceled" | "canceling" => CheckState::Failed,
        _ => CheckState::Pending,
    }
}

#[derive(Deserialize)]
struct Issue {
    iid: u64,
    state: String,
    title: String,
    description: Option<String>,
    author: User,
    labels: Vec<String>,
    #[serde(default)]
    assignees: Vec<User>,
    web_url: String,
    #[serde(with = "time::serde::rfc3339")]
    updated_at: OffsetDateTime,
}

impl From<Issue> for IssueText {
    fn from(issue: Issue) -> Self {
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

impl Gitlab {
    pub(crate) fn new(site: Site) -> Result<Self, ForgeError> {
        let parts = site.repository.split('/');
        if parts.clone().count() < 2 || parts.clone().any(str::is_empty) {
            return Err(ForgeError::Failed("a repository is named as `group/name`".into()));
        }
        let http =
            Http::new(site.api, &site.token, site.private, Pass::Bearer, "application/json")?;
        Ok(Self { http, repository: site.repository })
    }

    fn at(&self, path: &[&str], query: &[(&str, &str)]) -> Url {
        self.http.at(&[&["projects", &self.repository], path].concat(), query)
    }
}

impl Forge for Gitlab {
    fn kind(&self) -> ForgeKind {
        ForgeKind::Gitlab
    }

    fn whoami(&self) -> Asked<'_, String> {
        Box::pin(async { Ok(self.http.get::<User>(self.http.at(&["user"], &[])).await?.username) })
    }

    fn may_write<'a>(&'a self, login: &'a str) -> Asked<'a, bool> {
        #[derive(Deserialize)]
        struct Found {
            id: u64,
            username: String,
        }
        #[derive(Deserialize)]
        struct Member {
            access_level: u64,
            state: Option<String>,
        }
        Box::pin(async move {
            let url = self.http.at(&["users"], &[("username", login)]);
            let found: Vec<Found> = self.http.get(url).await?;
            let named = |one: &&Found| one.username.eq_ignore_ascii_case(login);
            let Some(found) = found.iter().find(named) else { return Ok(false) };
            // Those who have it from a group above count as well.
            let url = self.at(&["members", "all", &found.id.to_string()], &[]);
            let member: Option<Member> = self.http.find(url).await?;
            Ok(member.is_some_and(|member| {
                member.access_level >= DEVELOPER
                    && member.state.is_none_or(|state| state == "active")
            }))
        })
    }

    fn pull_request_of<'a>(&'a self, branch: &'a str) -> Asked<'a, Option<PullRequest>> {
        Box::pin(async move {
            let query = [("source_branch", branch), ("state", "all"), PAGE];
            let found: Vec<MergeRequest> =
                self.http.pages(self.at(&["merge_requests"], &query)).await?;
            // The filter knows names only, also of branches in forks.
            Ok(choose(found.into_iter().map(PullRequest::from), branch))
        })
    }

    fn pull_request(&self, number: u64) -> Asked<'_, PullRequest> {
        Box::pin(async move {
            let url = self.at(&["merge_requests", &number.to_string()], &[]);
            Ok(self.http.get::<MergeRequest>(url).await?.into())
        })
    }

    fn create<'a>(&'a self, new: &'a NewPullRequest) -> Asked<'a, PullRequest> {
        Box::pin(async move {
            let body = json!({
                "source_branch": new.branch,
                "target_branch": new.base,
                "title": new.title,
                "description": new.body,
            });
            Ok(self
                .http
                .post::<MergeRequest>(self.at(&["merge_requests"], &[]), &body)
                .await?
                .into())
        })
    }

    fn comment<'a>(&'a self, on: Thread, marker: &'a str, text: &'a str) -> Asked<'a, ()> {
        Box::pin(async move {
            let (of, number) = match on {
                Thread::Issue(number) => ("issues", number.to_string()),
                Thread::PullRequest(number) => ("merge_requests", number.to_string()),
            };
            let path = [of, &number, "notes"];
            let there: Vec<Note> = self.http.pages(self.at(&path, &[PAGE])).await?;
            let mark = hidden(marker);
            if there.iter().any(|note| note.body.contains(&mark)) {
                return Ok(());
            }
            let body = json!({ "body": marked(marker, text) });
            let _: Value = self.http.post(self.at(&path, &[]), &body).await?;
            Ok(())
        })
    }

    fn checks<'a>(&'a self, commit: &'a str) -> Asked<'a, Vec<CheckStatus>> {
        Box::pin(async move {
            let url = self.at(&["repository", "commits", commit, "statuses"], &[PAGE]);
            let statuses: Vec<Reported> = self.http.pages(url).await?;
            let mut all: Vec<CheckStatus> = statuses
                .into_iter()
                .map(|status| CheckStatus {
                    state: check(&status.status, status.allow_failure),
                    name: status.name,
                    url: status.target_url,
                    summary: status.description.unwrap_or(status.status),
                })
                .collect();
            // A pipeline that cannot even be made has no job that says so.
            let pipelines: Vec<Pipeline> =
                self.http.pages(self.at(&["pipelines"], &[("sha", commit), PAGE])).await?;
            let newest = pipelines.into_iter().max_by_key(|pipeline| pipeline.id);
            all.extend(newest.map(|pipeline| CheckStatus {
                name: "pipeline".into(),
                state: check(&pipeline.status, false),
                url: pipeline.web_url,
                summary: pipeline.status,
            }));
            Ok(all)
        })
    }

    fn feedback(&self, number: u64, since: OffsetDateTime) -> Asked<'_, Vec<Remark>> {
        Box::pin(async move {
            let path = ["merge_requests", &number.to_string(), "notes"];
            let query = [("sort", "asc"), ("order_by", "created_at"), PAGE];
            let notes: Vec<Note> = self.http.pages(self.at(&path, &query)).await?;
            Ok(in_order(notes.into_iter().filter_map(Note::remark).collect(), since))
        })
    }

    fn issues<'a>(
        &'a self,
        wanted: &'a Wanted,
        since: OffsetDateTime,
    ) -> Asked<'a, Vec<IssueText>> {
        Box::pin(async move {
            let since = moment(since);
            let usual = [
                ("state", "opened"),
                ("updated_after", since.as_str()),
                ("order_by", "updated_at"),
                ("sort", "asc"),
                PAGE,
            ];
            let mut all = Vec::new();
            let label = wanted.label.as_deref().map(|label| ("labels", label));
            let assignee = wanted.assignee.as_deref().map(|login| ("assignee_username", login));
            for filter in [label, assignee].into_iter().flatten() {
                let url = self.at(&["issues"], &[&[filter], &usual[..]].concat());
                let (found, _): (Vec<Issue>, bool) = self.http.some_pages(url, 10).await?;
                all.extend(found.into_iter().map(IssueText::from));
            }
            Ok(each_once(all))
        })
    }

    fn issue(&self, number: u64) -> Asked<'_, Option<IssueText>> {
        Box::pin(async move {
            let url = self.at(&["issues", &number.to_string()], &[]);
            Ok(self.http.find::<Issue>(url).await?.map(Into::into))
        })
    }
}
