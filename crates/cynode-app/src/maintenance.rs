//! What must be done from time to time. Any number of processes may do it at once.

use std::time::{Duration, SystemTime};

use cynode_db::{
    DbError, Pooled, accounts, agent_tokens, approvals, handoffs, idempotency, nodes, notices,
    schedules, schema,
};
use time::OffsetDateTime;
use tokio_util::sync::CancellationToken;

use crate::{App, Error, error::complain, gate::Parts, leftovers};

/// How often.
const EVERY: Duration = Duration::from_mins(10);

/// Most rows removed in one statement, so that no lock is held for long.
const BATCH: i64 = 1000;

/// How long it is kept what people were told.
const KEEP_NOTICES: time::Duration = time::Duration::days(30);

/// How long it is kept what came of schedules; the last time is kept as long as the schedule.
const KEEP_FIRINGS: time::Duration = time::Duration::days(90);

/// How long sessions and tokens of agents are kept after their end, in which nobody can use them any more.
const KEEP_SESSIONS: time::Duration = time::Duration::days(1);
const KEEP_AGENT_TOKENS: time::Duration = time::Duration::days(90);

/// Works until it is told to stop. A failure is logged and tried again at the next turn.
pub async fn run(app: App, stop: CancellationToken) {
    let mut turn = tokio::time::interval(EVERY);
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            _ = turn.tick() => {}
        }
        // Each failure was said where it happened.
        let _ = once(&app).await;
    }
}

/// Makes partitions for the months to come, and forgets what nobody may ask for any more and what was left half done. Each step
/// is done whatever came of those before it; a failure is logged, and the first is given.
pub async fn once(app: &App) -> Result<(), Error> {
    let now = app.environment().now();
    let mut first = Ok(());
    let mut ended = |what: &str, step: Result<(), Error>| {
        if let Err(error) = step {
            complain(&error, &format!("{what}; it will be tried again"));
            if first.is_ok() {
                first = Err(error);
            }
        }
    };
    ended("partitions could not be made", partitions(app, now).await);
    ended("answers for repeats could not be forgotten", repeats(app, now).await);
    ended("old questions could not be forgotten", questions(app, now).await);
    ended("old notices could not be forgotten", told(app, now).await);
    ended("what came of schedules could not be forgotten", firings(app, now).await);
    ended("old sessions could not be forgotten", sessions(app, now).await);
    ended("old tokens of agents could not be forgotten", tokens(app, now).await);
    if let Ok(parts) = app.gate() {
        let before = now - parts.keep_transcripts;
        ended("transcripts could not be forgotten", transcripts(app, before).await);
        ended("prompts could not be forgotten", prompts(app, before).await);
        ended("chats could not be forgotten", chats(app, before).await);
        ended("old records could not be removed", records(app, parts).await);
        let tidied = tidy(parts, (now - leftovers::AGE).into()).await;
        let tidied = tidied.map_err(|error| Error::Internal(error.into()));
        ended("what was left half done could not be removed", tidied);
    }
    first
}

/// A connection for one step: what a step did to its own is no other's.
async fn conn(app: &App) -> Result<Pooled, DbError> {
    Ok(app.pool().acquire().await?)
}

async fn partitions(app: &App, now: OffsetDateTime) -> Result<(), Error> {
    let mut conn = conn(app).await?;
    Ok(schema::ensure_partitions(&mut conn, now).await?)
}

async fn repeats(app: &App, now: OffsetDateTime) -> Result<(), Error> {
    let mut conn = conn(app).await?;
    while idempotency::sweep(&mut conn, now, BATCH).await? > 0 {}
    Ok(())
}

async fn questions(app: &App, now: OffsetDateTime) -> Result<(), Error> {
    let mut conn = conn(app).await?;
    approvals::sweep(&mut conn, now - time::Duration::days(1)).await?;
    Ok(())
}

async fn told(app: &App, now: OffsetDateTime) -> Result<(), Error> {
    let mut conn = conn(app).await?;
    while notices::sweep(&mut conn, now - KEEP_NOTICES, now, BATCH).await? > 0 {}
    Ok(())
}

async fn firings(app: &App, now: OffsetDateTime) -> Result<(), Error> {
    let mut conn = conn(app).await?;
    while schedules::forget(&mut conn, now - KEEP_FIRINGS, BATCH).await? > 0 {}
    Ok(())
}

async fn transcripts(app: &App, before: OffsetDateTime) -> Result<(), Error> {
    let mut conn = conn(app).await?;
    while nodes::forget_events(&mut conn, before, BATCH).await? > 0 {}
    Ok(())
}

async fn prompts(app: &App, before: OffsetDateTime) -> Result<(), Error> {
    let mut conn = conn(app).await?;
    while handoffs::forget_prompts(&mut conn, before, BATCH).await? > 0 {}
    Ok(())
}

async fn chats(app: &App, before: OffsetDateTime) -> Result<(), Error> {
    let mut conn = conn(app).await?;
    while handoffs::forget_chats(&mut conn, before, BATCH).await? > 0 {}
    Ok(())
}

async fn records(app: &App, parts: &Parts) -> Result<(), Error> {
    let removed = crate::audit::prune(app, parts.keep_records).await?;
    if removed > 0 {
        tracing::info!(
            event = "audit.pruned",
            records = removed,
            "removed records whose time is over"
        );
    }
    Ok(())
}

async fn sessions(app: &App, now: OffsetDateTime) -> Result<(), Error> {
    let mut conn = conn(app).await?;
    while accounts::forget_sessions(&mut conn, now - KEEP_SESSIONS, BATCH).await? > 0 {}
    Ok(())
}

async fn tokens(app: &App, now: OffsetDateTime) -> Result<(), Error> {
    let mut conn = conn(app).await?;
    while agent_tokens::forget(&mut conn, now - KEEP_AGENT_TOKENS, BATCH).await? > 0 {}
    Ok(())
}

/// Removes what processes that were killed left half done.
async fn tidy(parts: &Parts, before: SystemTime) -> std::io::Result<()> {
    let uploads = parts.objects_directory.join("incoming");
    let mut removed = leftovers::remove(&uploads, "", before).await?;
    removed += parts.repositories.tidy(before).await?;
    if removed > 0 {
        tracing::info!(event = "leftovers.removed", removed, "removed what was left half done");
    }
    Ok(())
}
