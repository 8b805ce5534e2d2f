//! Issue sync with forges. A webhook is only a hint: the worker that holds the remote's lease polls the forge for the
//! current state.
//!
//! An issue is imported once: the task, the row keyed by the issue and the event are one transaction. Sync is
//! idempotent and continues after a kill.

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
    delivery::forges::{
        self, ProjectRemote, RemotePollResult, ReportedPullRequests, WantedIssue, WebhookRecord,
    },
};
use cynode_forge::{
    CommentTarget, Forge, ForgeError, ForgeKind, IssueFilter, IssueText, sanitize,
    webhook::{self, WebhookEvent},
};
use cynode_wire::tasks::CreateTask;
use futures::future::join_all;
use serde_json::json;
use time::OffsetDateTime;
use tokio_util::sync::CancellationToken;

use super::{forge_kind_of, open_forge, pr_feedback};
use crate::{
    App, Error, OperationRequest,
    platform::{context::EventDraft, error::log_background_error, operation},
};

/// Poll interval for due remotes.
const REMOTE_POLL_INTERVAL: Duration = Duration::from_secs(2);

/// Maximum number of concurrent syncs per process.
const MAX_CONCURRENT_SYNCS: usize = 8;

/// Timeout of one sync, and lease during which other processes skip the remote.
const SYNC_TIMEOUT: Duration = Duration::from_secs(150);
const SYNC_LEASE_MS: i64 = 180_000;

/// Maximum size of a webhook delivery.
pub const MAX_DELIVERY_BYTES: usize = 4 * 1024 * 1024;

/// Maximum number of issues that one sync imports. The next sync continues.
const MAX_ISSUES_PER_SYNC: usize = 25;

/// Maximum number of criteria that are parsed from an issue's checklist.
const MAX_ISSUE_CRITERIA: usize = 50;

/// Retention of webhook deliveries.
const DELIVERY_RETENTION: time::Duration = time::Duration::days(30);

/// Outcome of a webhook delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WebhookOutcome {
    /// It is stored and will be processed.
    Kept,
    /// It is a duplicate.
    Known,
    /// It concerns nothing that is synced.
    Ignored,
}

/// Returns the webhook target of a project, if it accepts deliveries of this kind of forge. Call it before the body
/// is read.
#[operation]
pub async fn find_webhook_target(
    app: &App,
    project: ProjectId,
    forge: Destination,
) -> Result<WebhookTarget, Error> {
    let mut conn = app.conn().await?;
    let found = forges::get_remote(&mut conn, project).await?;
    let found = found.filter(|remote| remote.forge == forge).zip(forge_kind_of(forge));
    let (remote, kind) = found.ok_or_else(|| Error::not_found("remote of project", project))?;
    Ok(WebhookTarget { remote, kind })
}

/// A remote that accepts webhook deliveries.
#[derive(Clone, Debug)]
pub struct WebhookTarget {
    remote: ProjectRemote,
    kind: ForgeKind,
}

/// Receives a webhook delivery of a forge. Its signature alone proves its origin.
#[tracing::instrument(name = "app.remotes.receive_webhook", skip_all)]
#[operation]
pub async fn receive_webhook(
    app: &App,
    expected: &WebhookTarget,
    headers: &webhook::WebhookHeaders,
    body: &[u8],
) -> Result<WebhookOutcome, Error> {
    let WebhookTarget { remote, kind } = expected;
    let secret = app.gateway_parts()?.keys.webhook_secret(remote)?;
    let delivery = match webhook::verify_delivery(*kind, headers, body, &secret) {
        Ok(delivery) => delivery,
        Err(refused) => {
            record_webhook_refusal(app, remote.project, &refused.to_string()).await?;
            return Err(Error::Unauthenticated);
        }
    };
    let about_us = delivery.repository.as_ref();
    let about_us = about_us.is_none_or(|name| name.eq_ignore_ascii_case(&remote.repository));
    if delivery.event == WebhookEvent::Ignored || !about_us {
        return Ok(WebhookOutcome::Ignored);
    }
    let event = serde_json::to_value(&delivery.event).map_err(|e| Error::Internal(e.into()))?;
    let kept = WebhookRecord { digest: delivery.digest, event };
    let name: String = delivery.id.chars().filter(|c| !c.is_control()).take(200).collect();
    let name = if name.is_empty() { "unnamed".to_owned() } else { name };
    let mut conn = app.conn().await?;
    let now = app.environment().now();
    let new = forges::store_webhook_delivery(&mut conn, remote.project, &kept, &name, now).await?;
    Ok(if new { WebhookOutcome::Kept } else { WebhookOutcome::Known })
}

/// Counts deliveries with invalid signatures and records an event at most once a minute, so that a flood fills no
/// table.
async fn record_webhook_refusal(app: &App, project: ProjectId, why: &str) -> Result<(), Error> {
    let mut ctx = app.begin_transaction(&system_request(app)).await?;
    let now = ctx.now;
    if forges::count_refused_delivery(ctx.conn(), project, now).await? {
        tracing::warn!(event = "webhook.refused", project.id = %project, "{why}");
        let told = EventDraft::new(EventKind::WebhookRefused, json!({ "reason": why }));
        ctx.record_event(told.with_project(project)).await?;
    }
    app.commit_operation(ctx).await
}

fn system_request(app: &App) -> OperationRequest {
    OperationRequest { caller: None, trace: app.environment().new_trace_id(), attempt: None }
}

/// Syncs due remotes until shutdown. Any number of processes may run it at once.
#[operation]
pub async fn run_issue_sync(app: App, stop: CancellationToken) {
    let all = join_all((0..MAX_CONCURRENT_SYNCS).map(|_| run_sync_loop(&app)));
    tokio::select! {
        () = stop.cancelled() => {}
        _ = all => {}
    }
}

/// Runs one of several sync loops. A forge that does not answer delays only its own loop.
async fn run_sync_loop(app: &App) {
    loop {
        loop {
            match sync_remote(app, None).await {
                Ok(true) => {}
                Ok(false) => break,
                Err(error) => {
                    log_background_error(
                        "remote.sync_failed",
                        &error,
                        "a remote could not be synchronized; it is retried",
                    );
                    break;
                }
            }
        }
        tokio::select! {
            () = app.until_remote_due() => {}
            () = app.until_poll_due(REMOTE_POLL_INTERVAL) => {}
        }
    }
}

/// Syncs the remote that has been due longest, or that of one project now. Returns whether there was one that no
/// other process syncs.
#[tracing::instrument(name = "app.remotes.sync_remote", skip_all)]
#[operation]
pub async fn sync_remote(app: &App, only: Option<ProjectId>) -> Result<bool, Error> {
    let environment = app.environment();
    let lease = environment.new_uuid(environment.now());
    let mut conn = app.conn().await?;
    let claimed = forges::claim_due_remote(&mut conn, lease, only, SYNC_LEASE_MS).await?;
    drop(conn);
    let Some(remote) = claimed else { return Ok(false) };
    let mut seen = RemoteSyncProgress::new(remote.issues_since);
    let looked = tokio::time::timeout(SYNC_TIMEOUT, sync_everything(app, &remote, &mut seen)).await;
    let usual = i64::from(remote.poll_seconds) * 1000;
    let silent = !seen.answered;
    let (again_in_ms, silent, stopped) = match looked {
        Ok(Ok(())) => (usual, false, None),
        Ok(Err(RemoteSyncError::Later(after, why))) => {
            (i64::try_from(after.as_millis()).unwrap_or(usual).max(1000), silent, Some(why))
        }
        Ok(Err(RemoteSyncError::Broken(error))) => {
            log_background_error(
                "remote.sync_failed",
                &error,
                "a remote could not be synchronized; it is retried",
            );
            (usual, false, Some(error.to_string()))
        }
        Err(_) => (usual, silent, Some("the look took too long".to_owned())),
    };
    seen.troubles.extend(stopped);
    let failure: String = seen.troubles.join("; ").chars().take(2000).collect();
    let failure = Some(failure.as_str()).filter(|failure| !failure.is_empty());
    let mut conn = app.conn().await?;
    let issues_since = seen.not_known.map_or(seen.since, |from| from.min(seen.since));
    let looked =
        RemotePollResult { issues_since, again_in_ms, silent, failure, now: environment.now() };
    forges::release_remote(&mut conn, remote.project, lease, looked).await?;
    Ok(true)
}

/// Progress of a sync.
pub(super) struct RemoteSyncProgress {
    since: OffsetDateTime,
    /// Last change of the oldest issue whose author's permission is unknown. The next sync starts there.
    not_known: Option<OffsetDateTime>,
    /// Cached write permissions by login. The forge is asked once per sync.
    writers: HashMap<String, Option<bool>>,
    /// Whether the forge answered at all, even with a refusal.
    answered: bool,
    /// Errors of single items that did not stop the sync.
    pub(super) troubles: Vec<String>,
}

/// Reason why a sync ends early.
pub(super) enum RemoteSyncError {
    /// The forge asks for a pause.
    Later(Duration, String),
    /// The sync cannot continue.
    Broken(Error),
}

impl From<Error> for RemoteSyncError {
    fn from(error: Error) -> Self {
        Self::Broken(error)
    }
}

impl From<DbError> for RemoteSyncError {
    fn from(error: DbError) -> Self {
        Self::Broken(error.into())
    }
}

impl RemoteSyncProgress {
    fn new(since: OffsetDateTime) -> Self {
        Self {
            since,
            not_known: None,
            writers: HashMap::new(),
            answered: false,
            troubles: Vec::new(),
        }
    }

    /// Returns whether a user may write to the repository. Returns `None` when the forge does not tell.
    pub(super) async fn may_write(
        &mut self,
        forge: &dyn Forge,
        login: &str,
    ) -> Result<Option<bool>, RemoteSyncError> {
        if let Some(known) = self.writers.get(login) {
            return Ok(*known);
        }
        let may = self.accept_single_response(forge.can_write(login).await)?;
        self.writers.insert(login.to_owned(), may);
        Ok(may)
    }

    /// Unwraps the response about one item of many. A refusal does not stop the sync.
    pub(super) fn accept_single_response<T>(
        &mut self,
        asked: Result<T, ForgeError>,
    ) -> Result<Option<T>, RemoteSyncError> {
        match asked {
            Err(ForgeError::Refused(why)) => self.accept_response(Err(ForgeError::Failed(why))),
            other => self.accept_response(other),
        }
    }

    /// Unwraps a response of the forge. An error about a single item does not stop the sync.
    pub(super) fn accept_response<T>(
        &mut self,
        asked: Result<T, ForgeError>,
    ) -> Result<Option<T>, RemoteSyncError> {
        self.answered |= !matches!(asked, Err(ForgeError::Retry { .. }));
        match asked {
            Ok(value) => Ok(Some(value)),
            Err(ForgeError::Retry { after, why }) => Err(RemoteSyncError::Later(after, why)),
            Err(error @ ForgeError::Refused(_)) => Err(RemoteSyncError::Broken(error.into())),
            Err(error) => {
                self.troubles.push(error.to_string());
                Ok(None)
            }
        }
    }
}

async fn sync_everything(
    app: &App,
    remote: &ProjectRemote,
    seen: &mut RemoteSyncProgress,
) -> Result<(), RemoteSyncError> {
    let (forge, _) = open_forge(app, remote).await?;
    if let Err(error) = super::fetch_commits_from(app, remote).await {
        seen.troubles.push(format!("newer commits could not be brought: {error}"));
    }
    let mut conn = app.conn().await?;
    let told = forges::list_pending_deliveries(&mut conn, remote.project).await?;
    drop(conn);
    let wanted = IssueFilter {
        label: remote.label.clone(),
        assignee: remote.login.clone().filter(|_| remote.assigned_to_bot),
    };
    let DeliverySubjects { issues, pulls } = group_deliveries(&told);
    for number in issues {
        if let Some(Some(issue)) = seen.accept_response(forge.get_issue(number).await)? {
            import_issue(app, forge.as_ref(), remote, &wanted, &issue, seen).await?;
        }
    }
    // Deliveries are marked as done at this point. Earlier, a kill would lose them; now they are only processed
    // again. Later, a rate limit of the forge before the last pull request would let deliveries pile up; pull
    // requests are read in turn anyway.
    let mut conn = app.conn().await?;
    let digests: Vec<Vec<u8>> = told.iter().map(|delivery| delivery.digest.to_vec()).collect();
    let now = app.environment().now();
    forges::mark_deliveries_done(&mut conn, remote.project, &digests, now).await?;
    forges::prune_deliveries(&mut conn, now - DELIVERY_RETENTION).await?;
    drop(conn);
    import_changed_issues(app, forge.as_ref(), remote, &wanted, seen).await?;
    comment_on_issues(app, forge.as_ref(), remote, seen).await?;
    pr_feedback::sync_pull_requests(app, forge.as_ref(), remote, &pulls, seen).await
}

/// Issues and pull requests that deliveries are about.
#[derive(Default)]
struct DeliverySubjects {
    issues: BTreeSet<u64>,
    pulls: ReportedPullRequests,
}

fn group_deliveries(told: &[WebhookRecord]) -> DeliverySubjects {
    let mut of = DeliverySubjects::default();
    for delivery in told {
        match serde_json::from_value(delivery.event.clone()) {
            Ok(WebhookEvent::Issue { number }) => {
                of.issues.insert(number);
            }
            Ok(
                WebhookEvent::Remark { number }
                | WebhookEvent::Review { number }
                | WebhookEvent::Ended { number },
            ) => {
                of.pulls.numbers.extend(i64::try_from(number));
            }
            Ok(WebhookEvent::Checks { commit }) => of.pulls.commits.push(commit),
            Ok(WebhookEvent::Ignored) | Err(_) => {}
        }
    }
    of
}

/// Imports matching issues that were changed since the last sync, up to a maximum of new tasks.
async fn import_changed_issues(
    app: &App,
    forge: &dyn Forge,
    remote: &ProjectRemote,
    wanted: &IssueFilter,
    seen: &mut RemoteSyncProgress,
) -> Result<(), RemoteSyncError> {
    let found = seen
        .accept_response(forge.list_issues(wanted, remote.issues_since).await)?
        .unwrap_or_default();
    let numbers: Vec<i64> = found.iter().map(issue_number_of).collect();
    let mut conn = app.conn().await?;
    let taken = forges::list_taken_issues(&mut conn, remote, &numbers).await?;
    drop(conn);
    let mut made = 0;
    for issue in &found {
        if made == MAX_ISSUES_PER_SYNC {
            break;
        }
        // Only imported issues count: many refused issues with the same timestamp would otherwise hide all later
        // ones.
        if !taken.contains(&issue_number_of(issue))
            && import_issue(app, forge, remote, wanted, issue, seen).await?
        {
            made += 1;
        }
        seen.since = seen.since.max(issue.updated_at);
    }
    Ok(())
}

/// Returns the number of an issue in the type of the database.
fn issue_number_of(issue: &IssueText) -> i64 {
    i64::try_from(issue.number).unwrap_or(i64::MAX)
}

/// Imports an issue as a task once, or records why not. Returns whether a task was created now.
async fn import_issue(
    app: &App,
    forge: &dyn Forge,
    remote: &ProjectRemote,
    wanted: &IssueFilter,
    issue: &IssueText,
    seen: &mut RemoteSyncProgress,
) -> Result<bool, RemoteSyncError> {
    if !issue.open || !wanted.matches_issue(issue) {
        return Ok(false);
    }
    let allowed = if remote.allow_untrusted_authors {
        true
    } else {
        let Some(may) = seen.may_write(forge, &issue.author).await? else {
            // An unknown permission is neither a grant nor a refusal: the forge is asked again.
            let from = seen.not_known.unwrap_or(issue.updated_at);
            seen.not_known = Some(from.min(issue.updated_at));
            return Ok(false);
        };
        may
    };
    let number = issue_number_of(issue);
    let title =
        crate::platform::redaction::redact_text(app, sanitize::sanitize_line(&issue.title)).await?;
    let mut body = sanitize::sanitize_text(&issue.body);
    body.text = crate::platform::redaction::redact_text(app, body.text).await?;
    let mut ctx = app.begin_transaction(&system_request(app)).await?;
    if forges::lock_issue(ctx.conn(), remote, number).await?.is_some() {
        return Ok(false);
    }
    let (project, by) = (remote.project, remote.set_by);
    let mut kept = WantedIssue {
        number,
        url: issue.url.chars().take(2000).collect(),
        author: sanitize::sanitize_line(&issue.author).chars().take(200).collect(),
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
    } else if !forges::may_request_work(ctx.conn(), by, project).await? {
        kept.refused = Some("whoever connected the remote may not ask for work any more".into());
    }
    if let Some(why) = &kept.refused {
        if forges::record_issue(ctx.conn(), remote, &kept).await? {
            let data =
                json!({ "number": number, "url": kept.url, "author": kept.author, "reason": why });
            ctx.record_event(EventDraft::new(EventKind::IssueIgnored, data).with_project(project))
                .await?;
            app.commit_operation(ctx).await?;
        }
        return Ok(false);
    }
    let wish = CreateTask {
        project_id: project,
        name: None,
        description: build_description(remote, issue, &title, &body)?,
        acceptance_criteria: parse_criteria(&body.text),
        budget: Budget::default(),
        depends_on: Vec::new(),
        approve_plan: None,
        profile: None,
    };
    let task =
        crate::tasks::accept_named_task(&mut ctx, wish, TaskName::derive_name(&title), by).await?;
    kept.task = Some(task.id);
    forges::record_issue(ctx.conn(), remote, &kept).await?;
    let data =
        json!({ "number": number, "url": kept.url, "author": kept.author, "name": task.name });
    let told =
        EventDraft::new(EventKind::IssueImported, data).with_project(project).with_task(task.id);
    ctx.record_event(told).await?;
    app.commit_operation(ctx).await?;
    Ok(true)
}

/// Builds the description of the task: the visible text of the issue and its origin.
fn build_description(
    remote: &ProjectRemote,
    issue: &IssueText,
    title: &str,
    body: &sanitize::SanitizedText,
) -> Result<Prose, Error> {
    let author = sanitize::sanitize_line(&issue.author);
    let mut from = format!(
        "This is issue {} of {}, written by {author}: {}",
        issue.number, remote.repository, issue.url
    );
    if !body.removed.is_empty() {
        from.push_str("\nWhat people do not see there was taken out of its text.");
    }
    // A text that is too long loses its end; the origin stays.
    let room = 20_000_usize.saturating_sub(from.chars().count() + title.chars().count() + 10);
    let text: String = body.text.trim().chars().take(room).collect();
    let whole = format!("{title}\n\n{text}\n\n{from}");
    whole
        .trim()
        .parse()
        .map_err(|error: cynode_core::names::TextError| Error::Invalid(error.to_string()))
}

/// Parses the unticked entries of checklists.
fn parse_criteria(text: &str) -> Vec<Criterion> {
    let entry = |line: &str| {
        let rest = line.trim_start().strip_prefix(['-', '*', '+'])?;
        let text: Prose = rest.trim_start().strip_prefix("[ ]")?.trim().parse().ok()?;
        Some(Criterion { text, check: None })
    };
    text.lines().filter_map(entry).take(MAX_ISSUE_CRITERIA).collect()
}

/// Comments on issues with the tasks that they became. An existing comment is not repeated.
async fn comment_on_issues(
    app: &App,
    forge: &dyn Forge,
    remote: &ProjectRemote,
    seen: &mut RemoteSyncProgress,
) -> Result<(), RemoteSyncError> {
    let mut conn = app.conn().await?;
    let untold = forges::list_unanswered_issues(&mut conn, remote).await?;
    drop(conn);
    for (number, task, name) in untold {
        let text = format!(
            "CyNode works on this as task `{name}` (`{task}`). A pull request follows when it is done."
        );
        let on = CommentTarget::Issue(number.unsigned_abs());
        let said = forge.ensure_comment(on, &format!("issue/{task}"), &text).await;
        // A locked conversation must not block the rest of the sync.
        if seen.accept_single_response(said)?.is_some() {
            let mut conn = app.conn().await?;
            forges::mark_issue_answered(&mut conn, task, app.environment().now()).await?;
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
        let got: Vec<String> =
            parse_criteria(text).into_iter().map(|it| it.text.to_string()).collect();
        assert_eq!(got, ["one", "two `x`"]);
    }
}
