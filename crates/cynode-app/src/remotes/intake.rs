//! What comes in from forges. A delivery is only a hint: what stands there is asked of the forge, in turns, by whoever has the lease.
//!
//! An issue becomes a task once: the task, the row that says so and the event are one transaction, and the row's key is the issue. Killed anywhere, the
//! next turn goes on; done twice, nothing changes.

use std::{
    collections::{BTreeSet, HashMap},
    time::Duration,
};

use cynode_core::{
    budget::Budget,
    delivery::Destination,
    events::EventKind,
    ids::ProjectId,
    names::{Prose, TaskName},
    tasks::Criterion,
};
use cynode_db::{
    DbError,
    remotes::{self, Delivery, Looked, Named, Remote, WantedIssue},
};
use cynode_forge::{
    Forge, ForgeError, ForgeKind, IssueText, Thread, Wanted, clean,
    webhook::{self, Event},
};
use cynode_wire::tasks::CreateTask;
use futures::future::join_all;
use serde_json::json;
use time::OffsetDateTime;
use tokio_util::sync::CancellationToken;

use super::{kind_of, open, reading};
use crate::{App, Error, Request, context::Told, error::complain, inference};

/// How often it is looked whether a remote is due.
const EVERY: Duration = Duration::from_secs(2);

/// Most remotes that one process looks at at once.
const AT_ONCE: usize = 8;

/// How long one look may take, and how long others leave it alone.
const PATIENCE: Duration = Duration::from_secs(150);
const LEASE_MS: i64 = 180_000;

/// Most bytes of a delivery.
pub const MOST_BYTES: usize = 4 * 1024 * 1024;

/// Most issues that one look makes tasks of; the rest is for the next.
const MOST_ISSUES: usize = 25;

/// Most things that a list in an issue may require.
const MOST_CRITERIA: usize = 50;

/// How long deliveries are remembered.
const REMEMBERED: time::Duration = time::Duration::days(30);

/// What became of a delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Received {
    /// It is kept and will be looked at.
    Kept,
    /// It was there already.
    Known,
    /// It is about nothing that we want to know.
    Ignored,
}

/// Whether a project takes deliveries of such a forge. Asked before a body is read.
pub async fn expected(
    app: &App,
    project: ProjectId,
    forge: Destination,
) -> Result<Expected, Error> {
    let mut conn = app.pool().acquire().await.map_err(DbError::from)?;
    let found = remotes::get(&mut conn, project).await?;
    let found = found.filter(|remote| remote.forge == forge).zip(kind_of(forge));
    let (remote, kind) = found.ok_or_else(|| Error::not_found("remote of project", project))?;
    Ok(Expected { remote, kind })
}

/// A remote that takes deliveries.
#[derive(Clone, Debug)]
pub struct Expected {
    remote: Remote,
    kind: ForgeKind,
}

/// Takes a delivery of a forge. Its signature is the only thing that says where it comes from.
#[tracing::instrument(name = "app.remotes.receive", skip_all)]
pub async fn receive(
    app: &App,
    expected: &Expected,
    headers: &webhook::Headers,
    body: &[u8],
) -> Result<Received, Error> {
    let Expected { remote, kind } = expected;
    let secret = app.gate()?.keys.webhook_secret(remote)?;
    let delivery = match webhook::read(*kind, headers, body, &secret) {
        Ok(delivery) => delivery,
        Err(refused) => {
            note_refusal(app, remote.project, &refused.to_string()).await?;
            return Err(Error::Unauthenticated);
        }
    };
    let about_us = delivery.repository.as_ref();
    let about_us = about_us.is_none_or(|name| name.eq_ignore_ascii_case(&remote.repository));
    if delivery.event == Event::Ignored || !about_us {
        return Ok(Received::Ignored);
    }
    let event = serde_json::to_value(&delivery.event).map_err(|e| Error::Internal(e.into()))?;
    let kept = Delivery { digest: delivery.digest, event };
    let name: String = delivery.id.chars().filter(|c| !c.is_control()).take(200).collect();
    let name = if name.is_empty() { "unnamed".to_owned() } else { name };
    let mut conn = app.pool().acquire().await.map_err(DbError::from)?;
    let now = app.environment().now();
    let new = remotes::deliver(&mut conn, remote.project, &kept, &name, now).await?;
    Ok(if new { Received::Kept } else { Received::Known })
}

/// Counts what is not from the forge, and tells of it once a minute: whoever sends much fills no table.
async fn note_refusal(app: &App, project: ProjectId, why: &str) -> Result<(), Error> {
    let mut ctx = app.open(&request(app)).await?;
    let now = ctx.now;
    if remotes::refuse(ctx.conn(), project, now).await? {
        tracing::warn!(event = "webhook.refused", project.id = %project, "{why}");
        let told = Told::new(EventKind::WebhookRefused, json!({ "reason": why }));
        ctx.record(told.project(project)).await?;
    }
    app.commit(ctx).await
}

fn request(app: &App) -> Request {
    Request { caller: None, trace: app.environment().trace(), attempt: None }
}

/// Looks at remotes whenever they are due, until it is told to stop. Any number of processes may do so at once.
pub async fn run(app: App, stop: CancellationToken) {
    let all = join_all((0..AT_ONCE).map(|_| keep_looking(&app)));
    tokio::select! {
        () = stop.cancelled() => {}
        _ = all => {}
    }
}

/// One of those who look, each at its own pace: whoever meets a forge that does not answer keeps nobody else waiting.
async fn keep_looking(app: &App) {
    let mut turn = tokio::time::interval(EVERY);
    turn.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        turn.tick().await;
        loop {
            match look(app, None).await {
                Ok(true) => {}
                Ok(false) => break,
                Err(error) => {
                    complain(&error, "a forge could not be looked at and will be again");
                    break;
                }
            }
        }
    }
}

/// Looks at the remote that has been due longest, or at that of one project now. Gives whether there was one that nobody else looks at.
#[tracing::instrument(name = "app.remotes.look", skip_all)]
pub async fn look(app: &App, only: Option<ProjectId>) -> Result<bool, Error> {
    let environment = app.environment();
    let lease = environment.uuid(environment.now());
    let mut conn = app.pool().acquire().await.map_err(DbError::from)?;
    let claimed = remotes::claim(&mut conn, lease, only, LEASE_MS).await?;
    drop(conn);
    let Some(remote) = claimed else { return Ok(false) };
    let mut seen = Seen::new(remote.issues_since);
    let looked = tokio::time::timeout(PATIENCE, everything(app, &remote, &mut seen)).await;
    let usual = i64::from(remote.poll_seconds) * 1000;
    let silent = !seen.answered;
    let (again_in_ms, silent, stopped) = match looked {
        Ok(Ok(())) => (usual, false, None),
        Ok(Err(Stop::Later(after, why))) => {
            (i64::try_from(after.as_millis()).unwrap_or(usual).max(1000), silent, Some(why))
        }
        Ok(Err(Stop::Broken(error))) => {
            complain(&error, "a forge could not be looked at and will be again");
            (usual, false, Some(error.to_string()))
        }
        Err(_) => (usual, silent, Some("the look took too long".to_owned())),
    };
    seen.troubles.extend(stopped);
    let failure: String = seen.troubles.join("; ").chars().take(2000).collect();
    let failure = Some(failure.as_str()).filter(|failure| !failure.is_empty());
    let mut conn = app.pool().acquire().await.map_err(DbError::from)?;
    let issues_since = seen.not_known.map_or(seen.since, |from| from.min(seen.since));
    let looked = Looked { issues_since, again_in_ms, silent, failure, now: environment.now() };
    remotes::give_back(&mut conn, remote.project, lease, looked).await?;
    Ok(true)
}

/// What a look has seen so far.
pub(super) struct Seen {
    since: OffsetDateTime,
    /// When the oldest issue was changed of whose author the forge did not say what they may: the next look begins there.
    not_known: Option<OffsetDateTime>,
    /// Who may write, as far as the forge says so: it is asked once in a look.
    writers: HashMap<String, Option<bool>>,
    /// Whether the forge answered anything, if only that it refuses.
    answered: bool,
    /// What went wrong with single things, while the rest went on.
    pub(super) troubles: Vec<String>,
}

/// Why a look ends early.
pub(super) enum Stop {
    /// The forge wants to be left alone.
    Later(Duration, String),
    /// It makes no sense to go on.
    Broken(Error),
}

impl From<Error> for Stop {
    fn from(error: Error) -> Self {
        Self::Broken(error)
    }
}

impl From<DbError> for Stop {
    fn from(error: DbError) -> Self {
        Self::Broken(error.into())
    }
}

impl Seen {
    fn new(since: OffsetDateTime) -> Self {
        Self {
            since,
            not_known: None,
            writers: HashMap::new(),
            answered: false,
            troubles: Vec::new(),
        }
    }

    /// Whether somebody may write to the repository; nothing when the forge does not say.
    pub(super) async fn may_write(
        &mut self,
        forge: &dyn Forge,
        login: &str,
    ) -> Result<Option<bool>, Stop> {
        if let Some(known) = self.writers.get(login) {
            return Ok(*known);
        }
        let may = self.heard_of_one(forge.may_write(login).await)?;
        self.writers.insert(login.to_owned(), may);
        Ok(may)
    }

    /// What a forge said of one thing among many: that it is refused stops nothing else.
    pub(super) fn heard_of_one<T>(
        &mut self,
        asked: Result<T, ForgeError>,
    ) -> Result<Option<T>, Stop> {
        match asked {
            Err(ForgeError::Refused(why)) => self.heard(Err(ForgeError::Failed(why))),
            other => self.heard(other),
        }
    }

    /// What a forge said; what concerns one thing only does not keep us from the others.
    pub(super) fn heard<T>(&mut self, asked: Result<T, ForgeError>) -> Result<Option<T>, Stop> {
        self.answered |= !matches!(asked, Err(ForgeError::Retry { .. }));
        match asked {
            Ok(value) => Ok(Some(value)),
            Err(ForgeError::Retry { after, why }) => Err(Stop::Later(after, why)),
            Err(error @ ForgeError::Refused(_)) => Err(Stop::Broken(error.into())),
            Err(error) => {
                self.troubles.push(error.to_string());
                Ok(None)
            }
        }
    }
}

async fn everything(app: &App, remote: &Remote, seen: &mut Seen) -> Result<(), Stop> {
    let (forge, _) = open(app, remote).await?;
    if let Err(error) = super::fetch_from(app, remote).await {
        seen.troubles.push(format!("newer commits could not be brought: {error}"));
    }
    let mut conn = app.pool().acquire().await.map_err(DbError::from)?;
    let told = remotes::waiting(&mut conn, remote.project).await?;
    drop(conn);
    let wanted = Wanted {
        label: remote.label.clone(),
        assignee: remote.login.clone().filter(|_| remote.assign_to_us),
    };
    let ToldOf { issues, pulls } = told_of(&told);
    for number in issues {
        if let Some(Some(issue)) = seen.heard(forge.issue(number).await)? {
            take(app, forge.as_ref(), remote, &wanted, &issue, seen).await?;
        }
    }
    // Only now: whoever is killed before looks at all of these again. And not later: the pull requests are read in their turn, told of
    // or not, and a forge that has had enough before the last of them would let deliveries pile up.
    let mut conn = app.pool().acquire().await.map_err(DbError::from)?;
    let digests: Vec<Vec<u8>> = told.iter().map(|delivery| delivery.digest.to_vec()).collect();
    let now = app.environment().now();
    remotes::dealt_with(&mut conn, remote.project, &digests, now).await?;
    remotes::forget_deliveries(&mut conn, now - REMEMBERED).await?;
    drop(conn);
    take_new(app, forge.as_ref(), remote, &wanted, seen).await?;
    answer(app, forge.as_ref(), remote, seen).await?;
    reading::read_back(app, forge.as_ref(), remote, &pulls, seen).await
}

/// What deliveries are about.
#[derive(Default)]
struct ToldOf {
    issues: BTreeSet<u64>,
    pulls: Named,
}

fn told_of(told: &[Delivery]) -> ToldOf {
    let mut of = ToldOf::default();
    for delivery in told {
        match serde_json::from_value(delivery.event.clone()) {
            Ok(Event::Issue { number }) => {
                of.issues.insert(number);
            }
            Ok(Event::Remark { number } | Event::Review { number } | Event::Ended { number }) => {
                of.pulls.numbers.extend(i64::try_from(number));
            }
            Ok(Event::Checks { commit }) => of.pulls.commits.push(commit),
            Ok(Event::Ignored) | Err(_) => {}
        }
    }
    of
}

/// Goes through the wanted issues that were changed since the last look, until enough of them became tasks.
async fn take_new(
    app: &App,
    forge: &dyn Forge,
    remote: &Remote,
    wanted: &Wanted,
    seen: &mut Seen,
) -> Result<(), Stop> {
    let found = seen.heard(forge.issues(wanted, remote.issues_since).await)?.unwrap_or_default();
    let numbers: Vec<i64> = found.iter().map(number_of).collect();
    let mut conn = app.pool().acquire().await.map_err(DbError::from)?;
    let taken = remotes::taken(&mut conn, remote, &numbers).await?;
    drop(conn);
    let mut made = 0;
    for issue in &found {
        if made == MOST_ISSUES {
            break;
        }
        // Only what becomes a task is counted: many that are refused, all changed in one second, would hide whatever comes after them.
        if !taken.contains(&number_of(issue))
            && take(app, forge, remote, wanted, issue, seen).await?
        {
            made += 1;
        }
        seen.since = seen.since.max(issue.updated_at);
    }
    Ok(())
}

/// The number of an issue, as it is kept.
fn number_of(issue: &IssueText) -> i64 {
    i64::try_from(issue.number).unwrap_or(i64::MAX)
}

/// Makes a task of an issue, once, or notes why not. Gives whether it became one now.
async fn take(
    app: &App,
    forge: &dyn Forge,
    remote: &Remote,
    wanted: &Wanted,
    issue: &IssueText,
    seen: &mut Seen,
) -> Result<bool, Stop> {
    if !issue.open || !wanted.has(issue) {
        return Ok(false);
    }
    let allowed = if remote.from_anyone {
        true
    } else {
        let Some(may) = seen.may_write(forge, &issue.author).await? else {
            // Not known is not allowed, and not refused either: it is asked again.
            let from = seen.not_known.unwrap_or(issue.updated_at);
            seen.not_known = Some(from.min(issue.updated_at));
            return Ok(false);
        };
        may
    };
    let number = number_of(issue);
    let title = inference::redacted(app, clean::line(&issue.title)).await?;
    let mut body = clean::text(&issue.body);
    body.text = inference::redacted(app, body.text).await?;
    let mut ctx = app.open(&request(app)).await?;
    if remotes::lock_issue(ctx.conn(), remote, number).await?.is_some() {
        return Ok(false);
    }
    let (project, by) = (remote.project, remote.set_by);
    let mut kept = WantedIssue {
        number,
        url: issue.url.chars().take(2000).collect(),
        author: clean::line(&issue.author).chars().take(200).collect(),
        task: None,
        refused: None,
        removed: json!(body.removed),
        seen_at: ctx.now,
    };
    if kept.author.is_empty() {
        kept.author = "nobody".into();
    }
    if !allowed {
        kept.refused = Some("its author may not write to the repository".into());
    } else if !remotes::may_ask(ctx.conn(), by, project).await? {
        kept.refused = Some("whoever connected the remote may not ask for work any more".into());
    }
    if let Some(why) = &kept.refused {
        if remotes::keep_issue(ctx.conn(), remote, &kept).await? {
            let data =
                json!({ "number": number, "url": kept.url, "author": kept.author, "reason": why });
            ctx.record(Told::new(EventKind::IssueIgnored, data).project(project)).await?;
            app.commit(ctx).await?;
        }
        return Ok(false);
    }
    let wish = CreateTask {
        project_id: project,
        name: None,
        description: description(remote, issue, &title, &body)?,
        acceptance_criteria: criteria(&body.text),
        budget: Budget::default(),
        depends_on: Vec::new(),
    };
    let task = crate::tasks::accept_like(&mut ctx, wish, TaskName::derive(&title), by).await?;
    kept.task = Some(task.id);
    remotes::keep_issue(ctx.conn(), remote, &kept).await?;
    let data =
        json!({ "number": number, "url": kept.url, "author": kept.author, "name": task.name });
    let told = Told::new(EventKind::IssueTaken, data).project(project).task(task.id);
    ctx.record(told).await?;
    app.commit(ctx).await?;
    Ok(true)
}

/// What the task is asked: what a person reads in the issue, and where it is from.
fn description(
    remote: &Remote,
    issue: &IssueText,
    title: &str,
    body: &clean::Cleaned,
) -> Result<Prose, Error> {
    let author = clean::line(&issue.author);
    let mut from = format!(
        "This is issue {} of {}, written by {author}: {}",
        issue.number, remote.repository, issue.url
    );
    if !body.removed.is_nothing() {
        from.push_str("\nWhat people do not see there was taken out of its text.");
    }
    // Of a text that is too long, the end goes; where it is from stays.
    let room = 20_000_usize.saturating_sub(from.chars().count() + title.chars().count() + 10);
    let text: String = body.text.trim().chars().take(room).collect();
    let whole = format!("{title}\n\n{text}\n\n{from}");
    whole
        .trim()
        .parse()
        .map_err(|error: cynode_core::names::TextError| Error::Invalid(error.to_string()))
}

/// The entries of lists with boxes that are not ticked.
fn criteria(text: &str) -> Vec<Criterion> {
    let entry = |line: &str| {
        let rest = line.trim_start().strip_prefix(['-', '*', '+'])?;
        let text: Prose = rest.trim_start().strip_prefix("[ ]")?.trim().parse().ok()?;
        Some(Criterion { text, check: None })
    };
    text.lines().filter_map(entry).take(MOST_CRITERIA).collect()
}

/// Tells issues which tasks they became. A comment that is there already is not made again.
async fn answer(
    app: &App,
    forge: &dyn Forge,
    remote: &Remote,
    seen: &mut Seen,
) -> Result<(), Stop> {
    let mut conn = app.pool().acquire().await.map_err(DbError::from)?;
    let untold = remotes::unanswered(&mut conn, remote).await?;
    drop(conn);
    for (number, task, name) in untold {
        let text = format!(
            "CyNode works on this as task `{name}` (`{task}`). A pull request follows when it is done."
        );
        let on = Thread::Issue(number.unsigned_abs());
        let said = forge.comment(on, &format!("issue/{task}"), &text).await;
        // A conversation that is closed to us must not keep everything else from being read.
        if seen.heard_of_one(said)?.is_some() {
            let mut conn = app.pool().acquire().await.map_err(DbError::from)?;
            remotes::answered(&mut conn, task, app.environment().now()).await?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn boxes_that_are_not_ticked_are_what_must_hold() {
        let text = "Do it.\n- [ ] one\n  * [ ] two `x`\n- [x] done\n- [ ]\n- plain\n[ ] no list";
        let got: Vec<String> = criteria(text).into_iter().map(|it| it.text.to_string()).collect();
        assert_eq!(got, ["one", "two `x`"]);
    }
}
