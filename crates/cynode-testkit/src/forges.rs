//! Fake forges on loopback: they implement the three REST dialects, store requests, and serve a real repository through `git
//! http-backend`.

mod gitea;
mod github;
mod gitlab;
mod http_backend;

use std::{
    collections::{BTreeMap, VecDeque},
    fmt::Write as _,
    io::Write as _,
    net::SocketAddr,
    path::PathBuf,
    process::{Command, Stdio},
    sync::{Arc, Mutex, MutexGuard},
};

use axum::{
    Router,
    body::{Body, Bytes},
    extract::State,
    http::{HeaderMap, Method, StatusCode, Uri, header},
    response::{IntoResponse, Response},
};
pub use cynode_forge::ForgeKind;
use data_encoding::{BASE64, HEXLOWER};
use hmac::{Hmac, KeyInit, Mac};
use serde_json::{Value, json};
use sha2::Sha256;
use tempfile::TempDir;
use time::{Duration, OffsetDateTime, format_description::well_known::Rfc3339};
use tokio::net::TcpListener;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::NOW;

/// The repository of every fake forge.
pub const REPOSITORY: &str = "acme/web";

/// The access token of [`BOT`].
pub const TOKEN: &str = "forge-token-1";
/// The account that owns [`TOKEN`].
pub const BOT: &str = "cynode-bot";

/// A running fake forge.
pub struct TestForge {
    /// Kind of the forge.
    pub kind: ForgeKind,
    address: SocketAddr,
    shared: Arc<ForgeState>,
    stop: CancellationToken,
}

struct ForgeState {
    kind: ForgeKind,
    base: String,
    root: TempDir,
    world: Mutex<World>,
}

/// State of a forge.
#[derive(Default)]
struct World {
    pulls: Vec<Pull>,
    issues: Vec<Issue>,
    comments: Vec<Comment>,
    checks: Vec<Check>,
    members: BTreeMap<String, Level>,
    last: u64,
    page: Option<usize>,
    troubles: VecDeque<Trouble>,
    /// Remaining requests until the rate limit.
    left: Option<usize>,
    requests: Vec<(Method, String)>,
}

/// Access level of a user.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// May read.
    Read,
    /// May push.
    Write,
    /// May administer.
    Admin,
}

/// Location of a pull request's branch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// In the repository itself.
    Here,
    /// In the fork of that owner.
    Fork(String),
    /// In a fork that was deleted.
    Gone,
}

/// A pull request of the forge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pull {
    /// Number of the pull request.
    pub number: u64,
    /// Location of its branch.
    pub source: Source,
    /// Its head branch.
    pub branch: String,
    /// Its base branch.
    pub base: String,
    /// Its title.
    pub title: String,
    /// Its description.
    pub body: String,
    /// Login of its author.
    pub author: String,
    /// Whether it is open.
    pub open: bool,
    /// The merge commit, once it is merged.
    pub merged: Option<String>,
}

/// An issue of the forge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Issue {
    /// Number of the issue.
    pub number: u64,
    /// Its title.
    pub title: String,
    /// Its description.
    pub body: String,
    /// Login of its author.
    pub author: String,
    /// Its labels.
    pub labels: Vec<String>,
    /// Logins of its assignees.
    pub assignees: Vec<String>,
    /// Whether it is open.
    pub open: bool,
    /// Time of its last change.
    pub updated_at: OffsetDateTime,
}

/// Verdict of a review.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The reviewer approves.
    Approve,
    /// The reviewer requests changes.
    Changes,
}

/// A comment on the forge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Comment {
    /// Unique id of the comment.
    pub id: u64,
    /// Whether it is on a pull request.
    pub on_pull: bool,
    /// Number of the pull request or issue.
    pub number: u64,
    /// Login of its author.
    pub author: String,
    /// Its text.
    pub body: String,
    /// File and line, for a comment on a line.
    pub place: Option<(String, u64)>,
    /// Verdict, if it is a review.
    pub verdict: Option<Verdict>,
    /// Time of the comment.
    pub at: OffsetDateTime,
}

/// A check of the forge.
#[derive(Clone, Debug)]
struct Check {
    commit: String,
    name: String,
    /// `success`, `failure` or `pending`.
    state: &'static str,
    summary: String,
    /// Whether it is a check run, on forges that have them.
    run: bool,
}

/// A fault of one of the next requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// The rate limit is reached for this many seconds.
    Limited(u64),
    /// The request fails without an effect.
    Broken,
    /// The request takes effect and the response is lost.
    Lost,
    /// The response is a redirect to another address.
    Elsewhere(String),
}

/// Kind of a webhook delivery.
#[derive(Clone, Debug)]
pub enum Hook {
    /// An issue got a label.
    Labelled(u64),
    /// A pull request got a comment.
    Remark(u64),
    /// A pull request got a review.
    Review(u64),
    /// A pull request was merged.
    Merged(u64),
    /// Checks of a commit failed.
    Checks(String),
    /// A branch was pushed.
    Push,
}

impl TestForge {
    /// Starts a forge on a free port. Its repository has one commit.
    pub async fn serve(kind: ForgeKind) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let root = tempfile::tempdir().unwrap();
        let shared = ForgeState {
            kind,
            base: format!("http://{address}"),
            root,
            world: Mutex::new(World {
                // Gitea shows the permissions of others only to admins.
                members: BTreeMap::from([(
                    BOT.to_owned(),
                    if kind == ForgeKind::Gitea { Level::Admin } else { Level::Write },
                )]),
                ..World::default()
            }),
        };
        let shared = Arc::new(shared);
        let stop = CancellationToken::new();
        let until = stop.clone().cancelled_owned();
        let router = Router::new().fallback(answer).with_state(shared.clone());
        TaskTracker::new().spawn(async move {
            let _ = axum::serve(listener, router).with_graceful_shutdown(until).await;
        });
        let forge = Self { kind, address, shared, stop };
        forge.git(&["init", "--quiet", "--bare", "--initial-branch=main"], "");
        forge.git(&["config", "http.receivepack", "true"], "");
        forge.commit("main", "README.md", "# Web\n");
        forge
    }

    /// Returns the clone URL.
    pub fn clone_url(&self) -> String {
        format!("http://{}/{REPOSITORY}.git", self.address)
    }

    /// Returns the URL of its API.
    pub fn api(&self) -> String {
        self.kind.default_api_url(&self.clone_url().parse().unwrap()).to_string()
    }

    /// Returns the path of its repository on disk.
    pub fn directory(&self) -> PathBuf {
        self.shared.directory()
    }

    /// Commits one file on a branch as another author. Returns the commit.
    pub fn commit(&self, branch: &str, file: &str, text: &str) -> String {
        let parent = self.tip(branch).or_else(|| self.tip("main"));
        let blob = self.git(&["hash-object", "-w", "--stdin"], text);
        let mut tree = parent.as_ref().map_or_else(String::new, |parent| {
            let listed = self.git(&["ls-tree", parent], "");
            listed
                .lines()
                .filter(|line| !line.ends_with(&format!("\t{file}")))
                .map(|line| format!("{line}\n"))
                .collect()
        });
        let _ = writeln!(tree, "100644 blob {blob}\t{file}");
        let tree = self.git(&["mktree"], &tree);
        let mut args = vec!["commit-tree", &tree, "-m", "a change"];
        if let Some(parent) = &parent {
            args.extend(["-p", parent]);
        }
        let commit = self.git(&args, "");
        self.git(&["update-ref", &format!("refs/heads/{branch}"), &commit], "");
        commit
    }

    /// Sets a branch to any commit, as a force push does.
    pub fn force(&self, branch: &str, commit: &str) {
        self.git(&["update-ref", &format!("refs/heads/{branch}"), commit], "");
    }

    /// Returns the head commit of a branch.
    pub fn tip(&self, branch: &str) -> Option<String> {
        self.shared.tip(branch)
    }

    fn git(&self, args: &[&str], input: &str) -> String {
        self.shared.git(args, input).unwrap()
    }

    /// Returns its pull requests.
    pub fn pulls(&self) -> Vec<Pull> {
        self.shared.world().pulls.clone()
    }

    /// Returns all comments.
    pub fn comments(&self) -> Vec<Comment> {
        self.shared.world().comments.clone()
    }

    /// Returns the requests so far: methods and paths.
    pub fn requests(&self) -> Vec<(Method, String)> {
        self.shared.world().requests.clone()
    }

    /// Adds a member.
    pub fn member(&self, login: &str, level: Level) {
        self.shared.world().members.insert(login.to_owned(), level);
    }

    /// Opens an issue. Returns its number.
    pub fn issue(&self, author: &str, title: &str, body: &str, labels: &[&str]) -> u64 {
        let mut world = self.shared.world();
        let number = world.next();
        world.issues.push(Issue {
            number,
            title: title.to_owned(),
            body: body.to_owned(),
            author: author.to_owned(),
            labels: labels.iter().map(|label| (*label).to_owned()).collect(),
            assignees: Vec::new(),
            open: true,
            updated_at: NOW + Duration::seconds(i64::try_from(number).unwrap()),
        });
        number
    }

    /// Changes an issue.
    pub fn change_issue(&self, number: u64, change: impl FnOnce(&mut Issue)) {
        let mut world = self.shared.world();
        change(world.issues.iter_mut().find(|issue| issue.number == number).unwrap());
    }

    /// Adds a comment to a pull request.
    pub fn say(
        &self,
        number: u64,
        author: &str,
        body: &str,
        place: Option<(&str, u64)>,
        verdict: Option<Verdict>,
    ) -> u64 {
        let mut world = self.shared.world();
        let id = world.next();
        world.comments.push(Comment {
            id,
            on_pull: true,
            number,
            author: author.to_owned(),
            body: body.to_owned(),
            place: place.map(|(path, line)| (path.to_owned(), line)),
            verdict,
            at: NOW + Duration::seconds(i64::try_from(id).unwrap()),
        });
        id
    }

    /// Sets a check: `success`, `failure` or `pending`.
    pub fn check(&self, commit: &str, name: &str, state: &'static str, summary: &str, run: bool) {
        let mut world = self.shared.world();
        world.checks.retain(|check| check.commit != commit || check.name != name);
        world.checks.push(Check {
            commit: commit.to_owned(),
            name: name.to_owned(),
            state,
            summary: summary.to_owned(),
            run,
        });
    }

    /// Merges a pull request by moving the base to its head.
    pub fn merge(&self, number: u64) {
        let pull = self.pulls().into_iter().find(|pull| pull.number == number).unwrap();
        let tip = self.tip(&pull.branch).unwrap();
        self.force(&pull.base, &tip);
        let mut world = self.shared.world();
        let pull = world.pulls.iter_mut().find(|pull| pull.number == number).unwrap();
        (pull.open, pull.merged) = (false, Some(tip));
    }

    /// Opens a pull request as another user, from a branch that may be in a fork. Returns its number.
    pub fn pull_from(&self, source: Source, branch: &str, base: &str) -> u64 {
        let mut world = self.shared.world();
        let number = world.next();
        let author = match &source {
            Source::Fork(owner) => owner.clone(),
            Source::Here | Source::Gone => "somebody".to_owned(),
        };
        world.pulls.push(Pull {
            number,
            source,
            branch: branch.to_owned(),
            base: base.to_owned(),
            title: "Mine".to_owned(),
            body: String::new(),
            author,
            open: true,
            merged: None,
        });
        number
    }

    /// Closes a pull request.
    pub fn close(&self, number: u64) {
        let mut world = self.shared.world();
        world.pulls.iter_mut().find(|pull| pull.number == number).unwrap().open = false;
    }

    /// Sets the maximum page size of lists.
    pub fn page(&self, max: usize) {
        self.shared.world().page = Some(max);
    }

    /// Queues a fault for the next request without one.
    pub fn trouble(&self, trouble: Trouble) {
        self.shared.world().troubles.push_back(trouble);
    }

    /// Answers this number of further requests, and then applies the rate limit.
    pub fn allow(&self, requests: usize) {
        self.shared.world().left = Some(requests);
    }

    /// Returns a webhook delivery of this forge: headers and body.
    pub fn delivery(
        &self,
        hook: &Hook,
        id: &str,
        secret: &str,
    ) -> (Vec<(&'static str, String)>, String) {
        let (event, body) = match self.kind {
            ForgeKind::Github => github::hook(hook),
            ForgeKind::Gitlab => gitlab::hook(hook),
            ForgeKind::Gitea => gitea::hook(hook),
        };
        let body = body.to_string();
        let mut mac = Hmac::<Sha256>::new_from_slice(secret.as_bytes()).unwrap();
        mac.update(body.as_bytes());
        let signature = HEXLOWER.encode(&mac.finalize().into_bytes());
        let headers = match self.kind {
            ForgeKind::Github => vec![
                ("x-github-event", event.to_owned()),
                ("x-github-delivery", id.to_owned()),
                ("x-hub-signature-256", format!("sha256={signature}")),
            ],
            ForgeKind::Gitlab => vec![
                ("x-gitlab-event", event.to_owned()),
                ("x-gitlab-event-uuid", id.to_owned()),
                ("x-gitlab-token", secret.to_owned()),
            ],
            ForgeKind::Gitea => vec![
                ("x-gitea-event", event.to_owned()),
                ("x-gitea-delivery", id.to_owned()),
                ("x-gitea-signature", signature),
            ],
        };
        (headers, body)
    }
}

impl Drop for TestForge {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

impl World {
    fn next(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    fn level(&self, login: &str) -> Option<Level> {
        self.members.get(login).copied()
    }
}

impl ForgeState {
    fn world(&self) -> MutexGuard<'_, World> {
        self.world.lock().unwrap()
    }

    fn directory(&self) -> PathBuf {
        self.root.path().join(format!("{REPOSITORY}.git"))
    }

    fn git(&self, args: &[&str], input: &str) -> Option<String> {
        let directory = self.directory();
        std::fs::create_dir_all(&directory).unwrap();
        let mut git = Command::new("git");
        git.env_clear().env("PATH", "/usr/local/bin:/usr/bin:/bin").env("HOME", "/nonexistent");
        for who in ["AUTHOR", "COMMITTER"] {
            git.env(format!("GIT_{who}_NAME"), "Ann")
                .env(format!("GIT_{who}_EMAIL"), "ann@example.org");
            git.env(format!("GIT_{who}_DATE"), "2026-11-01T12:00:00Z");
        }
        git.env("GIT_CONFIG_NOSYSTEM", "1")
            .args(["--git-dir", "."])
            .args(args)
            .current_dir(directory);
        let mut child =
            git.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
        let done = child.wait_with_output().unwrap();
        done.status.success().then(|| String::from_utf8(done.stdout).unwrap().trim_end().to_owned())
    }

    fn tip(&self, branch: &str) -> Option<String> {
        self.git(
            &["rev-parse", "--verify", "--quiet", &format!("refs/heads/{branch}^{{commit}}")],
            "",
        )
    }

    /// Returns the head commit of a pull request.
    fn head(&self, pull: &Pull) -> String {
        if pull.source != Source::Here {
            // Forks are not stored here: their commits are only names.
            return "e".repeat(40);
        }
        self.tip(&pull.branch).or_else(|| pull.merged.clone()).unwrap_or_else(|| "0".repeat(40))
    }
}

/// A parsed API request.
struct Call<'a> {
    shared: &'a ForgeState,
    method: Method,
    /// The segments below the API's root, decoded.
    path: Vec<String>,
    query: Vec<(String, String)>,
    uri: String,
    body: Value,
}

impl Call<'_> {
    fn query_value(&self, name: &str) -> Option<&str> {
        self.query.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    fn text(&self, field: &str) -> String {
        self.body[field].as_str().unwrap_or_default().to_owned()
    }

    /// Parses a time in the query.
    fn since(&self, name: &str) -> OffsetDateTime {
        self.query_value(name).map_or(OffsetDateTime::UNIX_EPOCH, |text| {
            OffsetDateTime::parse(text, &Rfc3339).unwrap()
        })
    }

    /// Returns the requested window of a list: offset and page size.
    fn window(&self, size: &str, usual: usize) -> (usize, usize) {
        let number =
            |name: &str| self.query_value(name).and_then(|text| text.parse::<usize>().ok());
        let max = self.shared.world().page.unwrap_or(usize::MAX);
        let size = number(size).unwrap_or(usual).min(max).max(1);
        (number("page").unwrap_or(1).max(1), size)
    }

    /// Returns a page of a list, with a link to the next.
    fn linked(&self, all: Vec<Value>, size: &str, usual: usize) -> Response {
        let (page, size) = self.window(size, usual);
        let total = all.len();
        let pages = total.div_ceil(size).max(1);
        let entries: Vec<Value> = all.into_iter().skip((page - 1) * size).take(size).collect();
        let mut response = json_response(200, &Value::Array(entries));
        let path = self.uri.split('?').next().unwrap();
        let link = |page: usize, rel: &str| {
            let kept = self.query.iter().filter(|(name, _)| name != "page");
            let query: Vec<String> =
                kept.map(|(name, value)| format!("{name}={}", encoded(value))).collect();
            format!("<{}{path}?{}&page={page}>; rel=\"{rel}\"", self.shared.base, query.join("&"))
        };
        if page < pages {
            let value = format!("{}, {}", link(page + 1, "next"), link(pages, "last"));
            response.headers_mut().insert(header::LINK, value.parse().unwrap());
        }
        response.headers_mut().insert("x-total-count", total.into());
        response
    }
}

fn encoded(text: &str) -> String {
    url::form_urlencoded::byte_serialize(text.as_bytes()).collect()
}

fn stamp(at: OffsetDateTime) -> String {
    at.format(&Rfc3339).unwrap()
}

fn json_response(status: u16, body: &Value) -> Response {
    let headers = [(header::CONTENT_TYPE, "application/json; charset=utf-8")];
    (StatusCode::from_u16(status).unwrap(), headers, body.to_string()).into_response()
}

async fn answer(
    State(shared): State<Arc<ForgeState>>,
    method: Method,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let known = authenticated(&headers);
    let prefix = match shared.kind {
        ForgeKind::Github => "/api/v3/",
        ForgeKind::Gitlab => "/api/v4/",
        ForgeKind::Gitea => "/api/v1/",
    };
    let Some(below) = uri.path().strip_prefix(prefix) else {
        if !known {
            let ask = [(header::WWW_AUTHENTICATE, "Basic realm=\"forge\"")];
            return (StatusCode::UNAUTHORIZED, ask, "authentication is required").into_response();
        }
        return http_backend::answer(shared.root.path(), &method, &uri, &headers, body).await;
    };
    let decoded = |part: &str| {
        let plus = part.replace('+', "%2B");
        url::form_urlencoded::parse(format!("x={plus}").as_bytes()).next().unwrap().1.into_owned()
    };
    let trouble = {
        let mut world = shared.world();
        world.requests.push((method.clone(), uri.path().to_owned()));
        let left = world.left;
        match left {
            Some(0) => Some(Trouble::Limited(60)),
            Some(_) | None => {
                world.left = left.map(|left| left - 1);
                world.troubles.pop_front()
            }
        }
    };
    match &trouble {
        Some(Trouble::Limited(seconds)) => {
            let body = json!({ "message": "API rate limit exceeded", "documentation_url": "https://docs.example/rest" });
            let status = if shared.kind == ForgeKind::Github { 403 } else { 429 };
            let mut response = json_response(status, &body);
            response.headers_mut().insert(header::RETRY_AFTER, (*seconds).into());
            response.headers_mut().insert("x-ratelimit-remaining", 0.into());
            return response;
        }
        Some(Trouble::Broken) => return StatusCode::BAD_GATEWAY.into_response(),
        Some(Trouble::Elsewhere(to)) => {
            return (StatusCode::MOVED_PERMANENTLY, [(header::LOCATION, to.clone())])
                .into_response();
        }
        Some(Trouble::Lost) | None => {}
    }
    let call = Call {
        shared: &shared,
        method,
        path: below.split('/').map(decoded).collect(),
        query: url::form_urlencoded::parse(uri.query().unwrap_or_default().as_bytes())
            .into_owned()
            .collect(),
        uri: uri.to_string(),
        body: serde_json::from_slice(&body).unwrap_or_default(),
    };
    let response = match shared.kind {
        ForgeKind::Github => github::answer(&call, known),
        ForgeKind::Gitlab => gitlab::answer(&call, known),
        ForgeKind::Gitea => gitea::answer(&call, known),
    };
    if trouble == Some(Trouble::Lost) { StatusCode::BAD_GATEWAY.into_response() } else { response }
}

/// Returns whether the token is valid, in any header that it may be in.
fn authenticated(headers: &HeaderMap) -> bool {
    let Some(value) = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok())
    else {
        return false;
    };
    match value.split_once(' ') {
        Some(("Bearer" | "token", token)) => token == TOKEN,
        Some(("Basic", pair)) => {
            let pair = BASE64.decode(pair.as_bytes()).unwrap_or_default();
            pair.ends_with(format!(":{TOKEN}").as_bytes())
        }
        _ => false,
    }
}

/// Stores a requested pull request, or returns the existing one.
fn open_pull(
    call: &Call<'_>,
    branch: String,
    base: String,
    body: String,
) -> Result<Pull, Option<u64>> {
    if call.shared.tip(&branch).is_none() || call.shared.tip(&base).is_none() {
        return Err(None);
    }
    let mut world = call.shared.world();
    let same = |pull: &&Pull| {
        pull.open && pull.source == Source::Here && pull.branch == branch && pull.base == base
    };
    if let Some(found) = world.pulls.iter().find(same) {
        return Err(Some(found.number));
    }
    let pull = Pull {
        number: world.next(),
        source: Source::Here,
        branch,
        base,
        title: call.text("title"),
        body,
        author: BOT.to_owned(),
        open: true,
        merged: None,
    };
    world.pulls.push(pull.clone());
    Ok(pull)
}

/// Stores a comment of our own account.
fn store_comment(call: &Call<'_>, on_pull: bool, number: u64) -> Comment {
    let mut world = call.shared.world();
    let id = world.next();
    let said = Comment {
        id,
        on_pull,
        number,
        author: BOT.to_owned(),
        body: call.text("body"),
        place: None,
        verdict: None,
        at: NOW + Duration::seconds(i64::try_from(id).unwrap()),
    };
    world.comments.push(said.clone());
    said
}

/// Returns the open issues that match the filter.
fn matching_issues(call: &Call<'_>, label: &str, assignee: &str, since: &str) -> Vec<Issue> {
    let since = call.since(since);
    let (label, assignee) = (call.query_value(label), call.query_value(assignee));
    let mut found = call.shared.world().issues.clone();
    found.retain(|issue| {
        issue.open
            && issue.updated_at >= since
            && label.is_none_or(|label| issue.labels.iter().any(|one| one == label))
            && assignee.is_none_or(|login| issue.assignees.iter().any(|one| one == login))
    });
    found.sort_by_key(|issue| issue.updated_at);
    found
}

fn body_of(text: impl Into<Body>) -> Body {
    text.into()
}
