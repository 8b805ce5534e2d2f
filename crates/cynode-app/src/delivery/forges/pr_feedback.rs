//! Pull request feedback: reads comments, reviews and state of our pull requests from a forge.

use cynode_core::events::EventKind;
use cynode_db::delivery::{
    forges::{self, OpenPullRequest, ProjectRemote, ReportedPullRequests},
    pull_requests,
};
use cynode_forge::{
    CheckState, Forge, PullState, RemotePullRequest, ReviewComment, ReviewCommentKind, sanitize,
};
use data_encoding::HEXLOWER;
use serde_json::json;
use sha2::{Digest, Sha256};

use super::issue_sync::{RemoteSyncError, RemoteSyncProgress};
use crate::{
    App, OperationRequest,
    delivery::pull_requests::{FollowUpOutcome, ReviewRemark, create_follow_up},
    platform::context::EventDraft,
};

/// Maximum clock skew of a forge behind this machine.
const MAX_CLOCK_SKEW: time::Duration = time::Duration::minutes(10);

/// Maximum number of remarks of one follow-up.
const MAX_FOLLOW_UP_REMARKS: usize = 100;

/// Syncs each open pull request: first those that deliveries named, then those that were read longest ago. The next
/// sync continues one that ended early.
pub(super) async fn sync_pull_requests(
    app: &App,
    forge: &dyn Forge,
    remote: &ProjectRemote,
    named: &ReportedPullRequests,
    seen: &mut RemoteSyncProgress,
) -> Result<(), RemoteSyncError> {
    let mut conn = app.conn().await?;
    let offered = forges::list_open_pull_requests(&mut conn, remote, named).await?;
    drop(conn);
    for (place, ours) in offered.iter().enumerate() {
        // The first one is marked before it is read, too: if it always ended the sync, the others would starve.
        if place == 0 {
            record_pull_request_read(app, ours).await?;
        }
        sync_pull_request(app, forge, remote, ours, seen).await?;
        record_pull_request_read(app, ours).await?;
    }
    Ok(())
}

async fn record_pull_request_read(
    app: &App,
    ours: &OpenPullRequest,
) -> Result<(), RemoteSyncError> {
    let mut conn = app.conn().await?;
    forges::mark_pull_request_read(&mut conn, ours.id).await?;
    Ok(())
}

/// Syncs the state and the feedback of one pull request.
async fn sync_pull_request(
    app: &App,
    forge: &dyn Forge,
    remote: &ProjectRemote,
    ours: &OpenPullRequest,
    seen: &mut RemoteSyncProgress,
) -> Result<(), RemoteSyncError> {
    let number = ours.number.unsigned_abs();
    let Some(there) = seen.accept_response(forge.get_pull_request(number).await)? else {
        return Ok(());
    };
    // The number may belong to another pull request since the project was connected with another repository, and a
    // branch of the same name may belong to a fork.
    if there.branch != ours.branch || !there.ours {
        return Ok(());
    }
    match there.state {
        PullState::Merged | PullState::Closed => {
            record_pull_request_end(app, remote, ours, &there).await
        }
        // While a task works on it, feedback waits: it is then read as one batch.
        PullState::Open if ours.busy => Ok(()),
        PullState::Open => follow_up_feedback(app, forge, remote, ours, &there, seen).await,
    }
}

fn system_request(app: &App) -> OperationRequest {
    OperationRequest { caller: None, trace: app.environment().new_trace_id(), attempt: None }
}

/// Records that a pull request was merged or closed on the forge.
async fn record_pull_request_end(
    app: &App,
    remote: &ProjectRemote,
    ours: &OpenPullRequest,
    there: &RemotePullRequest,
) -> Result<(), RemoteSyncError> {
    let mut ctx = app.begin_transaction(&system_request(app)).await?;
    let now = ctx.now;
    let Some(found) = pull_requests::lock_pull_request(ctx.conn(), ours.id).await? else {
        return Ok(());
    };
    let (kind, done) = if there.state == PullState::Merged {
        let commit = there.merge_commit.as_deref();
        let done =
            pull_requests::mark_pull_request_merged(ctx.conn(), ours.id, commit, now).await?;
        (EventKind::PullRequestMerged, done)
    } else {
        (
            EventKind::PullRequestClosed,
            pull_requests::mark_pull_request_closed(ctx.conn(), ours.id, now).await?,
        )
    };
    if done {
        let data = json!({
            "pull_request_id": ours.id, "number": found.number, "title": found.title, "url": there.url,
        });
        ctx.record_event(
            EventDraft::new(kind, data).with_project(remote.project).with_task(found.task),
        )
        .await?;
        app.commit_operation(ctx).await?;
    }
    Ok(())
}

/// Creates one follow-up task from all new remarks and failed checks.
async fn follow_up_feedback(
    app: &App,
    forge: &dyn Forge,
    remote: &ProjectRemote,
    ours: &OpenPullRequest,
    there: &RemotePullRequest,
    seen: &mut RemoteSyncProgress,
) -> Result<(), RemoteSyncError> {
    let mut conn = app.conn().await?;
    let known = forges::list_handled_remarks(&mut conn, ours.id).await?;
    drop(conn);
    let is_new = |id: &str| !known.iter().any(|known| known == id);
    let mut wanted: Vec<(String, ReviewRemark)> = Vec::new();
    let mut ignored: Vec<String> = Vec::new();
    let said = seen.accept_response(
        forge.list_review_comments(there.number, ours.opened_at - MAX_CLOCK_SKEW).await,
    )?;
    for remark in said.unwrap_or_default() {
        let own = remote.login.as_ref().is_some_and(|us| us.eq_ignore_ascii_case(&remark.author));
        if own || !is_new(&remark.id) || !requests_change(remote, &remark) {
            continue;
        }
        let Some(may) = seen.may_write(forge, &remark.author).await? else { continue };
        if may {
            wanted.push((remark.id.clone(), sanitize_remark(&remark)));
        } else {
            ignored.push(remark.id);
        }
    }
    // Checks count when all have ended on the delivered commit.
    if there.head == ours.head {
        let checks = seen.accept_response(forge.list_checks(&ours.head).await)?.unwrap_or_default();
        if checks.iter().all(|check| check.state != CheckState::Pending) {
            for check in checks.iter().filter(|check| check.state == CheckState::Failed) {
                let id: String =
                    format!("check:{}:{}", ours.head, check.name).chars().take(300).collect();
                if is_new(&id) {
                    let words = [&check.name, " failed: ", &check.summary]
                        .map(sanitize::sanitize_line)
                        .join(" ");
                    let link = check.url.as_deref().unwrap_or_default();
                    wanted.push((
                        id,
                        ReviewRemark::without_location("checks", format!("{words} {link}").trim()),
                    ));
                }
            }
        }
    }
    wanted.truncate(MAX_FOLLOW_UP_REMARKS);
    if wanted.is_empty() && ignored.is_empty() {
        return Ok(());
    }
    for (_, remark) in &mut wanted {
        remark.body =
            crate::platform::redaction::redact_text(app, std::mem::take(&mut remark.body)).await?;
    }
    let mut ctx = app.begin_transaction(&system_request(app)).await?;
    let now = ctx.now;
    for id in &ignored {
        let why = "its author may not write to the repository";
        forges::record_remark(ctx.conn(), ours.id, id, Err(why), now).await?;
    }
    if !wanted.is_empty() {
        let became = if forges::may_request_work(ctx.conn(), remote.set_by, remote.project).await? {
            let digest =
                Sha256::digest(wanted.iter().map(|(id, _)| format!("{id}\n")).collect::<String>());
            let source = format!("forge:{}", HEXLOWER.encode(&digest));
            let remarks: Vec<ReviewRemark> =
                wanted.iter().map(|(_, remark)| remark.clone()).collect();
            match create_follow_up(&mut ctx, ours.id, &source, remote.set_by, &remarks).await? {
                FollowUpOutcome::Made(task) | FollowUpOutcome::Before(task) => Ok(task),
                FollowUpOutcome::Refused(why) => Err(why),
            }
        } else {
            Err("whoever connected the remote may not ask for work any more")
        };
        for (id, _) in &wanted {
            forges::record_remark(ctx.conn(), ours.id, id, became, now).await?;
        }
    }
    app.commit_operation(ctx).await?;
    Ok(())
}

/// Returns whether a remark requests a change: by a verdict, a position in a file, or a mention of the bot.
fn requests_change(remote: &ProjectRemote, remark: &ReviewComment) -> bool {
    match remark.kind {
        ReviewCommentKind::ChangesRequested => true,
        ReviewCommentKind::Approved => false,
        ReviewCommentKind::Comment => {
            let body = remark.body.to_lowercase();
            let named = |us: &String| body.contains(&format!("@{}", us.to_lowercase()));
            remark.path.is_some() || remote.login.as_ref().is_some_and(named)
        }
    }
}

/// Sanitizes a remark by removing hidden text.
fn sanitize_remark(remark: &ReviewComment) -> ReviewRemark {
    let body = sanitize::sanitize_text(&remark.body).text;
    let body = if body.trim().is_empty() { "changes were requested".to_owned() } else { body };
    ReviewRemark {
        author: sanitize::sanitize_line(&remark.author),
        body,
        path: remark.path.as_deref().map(sanitize::sanitize_line).filter(|path| !path.is_empty()),
        line: remark.line.and_then(|line| u32::try_from(line).ok()),
    }
}
