//! What was said on a forge about our pull requests, and what became of them there.

use cynode_core::events::EventKind;
use cynode_db::{
    DbError, pull_requests,
    remotes::{self, Named, Offered, Remote},
};
use cynode_forge::{CheckState, Forge, PullRequest, PullState, Remark, RemarkKind, clean};
use data_encoding::HEXLOWER;
use serde_json::json;
use sha2::{Digest, Sha256};

use super::intake::{Seen, Stop};
use crate::{
    App, Request,
    context::Told,
    delivery::{self, FollowUp},
    inference,
};

/// How far the clock of a forge may be behind ours.
const SKEW: time::Duration = time::Duration::minutes(10);

/// Most things that one follow-up is asked to deal with.
const MOST_REMARKS: usize = 100;

/// Looks at each open pull request of ours, first at those that were told of, then at those that were read longest ago: a look that ends
/// early is gone on with by the next.
pub(super) async fn read_back(
    app: &App,
    forge: &dyn Forge,
    remote: &Remote,
    named: &Named,
    seen: &mut Seen,
) -> Result<(), Stop> {
    let mut conn = app.pool().acquire().await.map_err(DbError::from)?;
    let offered = remotes::offered(&mut conn, remote, named).await?;
    drop(conn);
    for (place, ours) in offered.iter().enumerate() {
        // The first also before it is read: were it what ends each look, none of the others would ever be.
        if place == 0 {
            note_read(app, ours).await?;
        }
        read_one(app, forge, remote, ours, seen).await?;
        note_read(app, ours).await?;
    }
    Ok(())
}

async fn note_read(app: &App, ours: &Offered) -> Result<(), Stop> {
    let mut conn = app.pool().acquire().await.map_err(DbError::from)?;
    remotes::was_read(&mut conn, ours.id).await?;
    Ok(())
}

/// Looks at one pull request of ours: what became of it, and what was said.
async fn read_one(
    app: &App,
    forge: &dyn Forge,
    remote: &Remote,
    ours: &Offered,
    seen: &mut Seen,
) -> Result<(), Stop> {
    let number = ours.number.unsigned_abs();
    let Some(there) = seen.heard(forge.pull_request(number).await)? else { return Ok(()) };
    // The number may mean something else since the project was connected with another repository, and a branch of the same name in a
    // fork is somebody else's.
    if there.branch != ours.branch || !there.ours {
        return Ok(());
    }
    match there.state {
        PullState::Merged | PullState::Closed => ended(app, remote, ours, &there).await,
        // What is being worked on is read when that is done: what was said meanwhile is then one batch.
        PullState::Open if ours.busy => Ok(()),
        PullState::Open => follow_up(app, forge, remote, ours, &there, seen).await,
    }
}

fn request(app: &App) -> Request {
    Request { caller: None, trace: app.environment().trace(), attempt: None }
}

/// Notes that a pull request has ended on the forge.
async fn ended(
    app: &App,
    remote: &Remote,
    ours: &Offered,
    there: &PullRequest,
) -> Result<(), Stop> {
    let mut ctx = app.open(&request(app)).await?;
    let now = ctx.now;
    let Some(found) = pull_requests::lock(ctx.conn(), ours.id).await? else { return Ok(()) };
    let (kind, done) = if there.state == PullState::Merged {
        let commit = there.merge_commit.as_deref();
        let done = pull_requests::merge(ctx.conn(), ours.id, commit, now).await?;
        (EventKind::PullRequestMerged, done)
    } else {
        (EventKind::PullRequestClosed, pull_requests::close(ctx.conn(), ours.id, now).await?)
    };
    if done {
        let data = json!({
            "pull_request_id": ours.id, "number": found.number, "title": found.title, "url": there.url,
        });
        ctx.record(Told::new(kind, data).project(remote.project).task(found.task)).await?;
        app.commit(ctx).await?;
    }
    Ok(())
}

/// Makes one task of everything that was said since the last one, and of checks that failed.
async fn follow_up(
    app: &App,
    forge: &dyn Forge,
    remote: &Remote,
    ours: &Offered,
    there: &PullRequest,
    seen: &mut Seen,
) -> Result<(), Stop> {
    let mut conn = app.pool().acquire().await.map_err(DbError::from)?;
    let known = remotes::remarks(&mut conn, ours.id).await?;
    drop(conn);
    let is_new = |id: &str| !known.iter().any(|known| known == id);
    let mut wanted: Vec<(String, delivery::Remark)> = Vec::new();
    let mut ignored: Vec<String> = Vec::new();
    let said = seen.heard(forge.feedback(there.number, ours.opened_at - SKEW).await)?;
    for remark in said.unwrap_or_default() {
        let own = remote.login.as_ref().is_some_and(|us| us.eq_ignore_ascii_case(&remark.author));
        if own || !is_new(&remark.id) || !asks(remote, &remark) {
            continue;
        }
        let Some(may) = seen.may_write(forge, &remark.author).await? else { continue };
        if may {
            wanted.push((remark.id.clone(), told(&remark)));
        } else {
            ignored.push(remark.id);
        }
    }
    // Checks count when all have ended, over the commit that we delivered.
    if there.head == ours.head {
        let checks = seen.heard(forge.checks(&ours.head).await)?.unwrap_or_default();
        if checks.iter().all(|check| check.state != CheckState::Pending) {
            for check in checks.iter().filter(|check| check.state == CheckState::Failed) {
                let id: String =
                    format!("check:{}:{}", ours.head, check.name).chars().take(300).collect();
                if is_new(&id) {
                    let words =
                        [&check.name, " failed: ", &check.summary].map(clean::line).join(" ");
                    let link = check.url.as_deref().unwrap_or_default();
                    wanted.push((
                        id,
                        delivery::Remark::plain("checks", format!("{words} {link}").trim()),
                    ));
                }
            }
        }
    }
    wanted.truncate(MOST_REMARKS);
    if wanted.is_empty() && ignored.is_empty() {
        return Ok(());
    }
    for (_, remark) in &mut wanted {
        remark.body = inference::redacted(app, std::mem::take(&mut remark.body)).await?;
    }
    let mut ctx = app.open(&request(app)).await?;
    let now = ctx.now;
    for id in &ignored {
        let why = "its author may not write to the repository";
        remotes::keep_remark(ctx.conn(), ours.id, id, Err(why), now).await?;
    }
    if !wanted.is_empty() {
        let became = if remotes::may_ask(ctx.conn(), remote.set_by, remote.project).await? {
            let digest =
                Sha256::digest(wanted.iter().map(|(id, _)| format!("{id}\n")).collect::<String>());
            let source = format!("forge:{}", HEXLOWER.encode(&digest));
            let remarks: Vec<delivery::Remark> =
                wanted.iter().map(|(_, remark)| remark.clone()).collect();
            match delivery::follow_up(&mut ctx, ours.id, &source, remote.set_by, &remarks).await? {
                FollowUp::Made(task) | FollowUp::Before(task) => Ok(task),
                FollowUp::Refused(why) => Err(why),
            }
        } else {
            Err("whoever connected the remote may not ask for work any more")
        };
        for (id, _) in &wanted {
            remotes::keep_remark(ctx.conn(), ours.id, id, became, now).await?;
        }
    }
    app.commit(ctx).await?;
    Ok(())
}

/// Whether a remark asks us for something: a verdict, a place in a file, or our name.
fn asks(remote: &Remote, remark: &Remark) -> bool {
    match remark.kind {
        RemarkKind::ChangesRequested => true,
        RemarkKind::Approved => false,
        RemarkKind::Comment => {
            let body = remark.body.to_lowercase();
            let named = |us: &String| body.contains(&format!("@{}", us.to_lowercase()));
            remark.path.is_some() || remote.login.as_ref().is_some_and(named)
        }
    }
}

/// A remark without what hides in it.
fn told(remark: &Remark) -> delivery::Remark {
    let body = clean::text(&remark.body).text;
    let body = if body.trim().is_empty() { "changes were requested".to_owned() } else { body };
    delivery::Remark {
        author: clean::line(&remark.author),
        body,
        path: remark.path.as_deref().map(clean::line).filter(|path| !path.is_empty()),
        line: remark.line.and_then(|line| u32::try_from(line).ok()),
    }
}
