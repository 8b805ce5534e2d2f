//! What must be done from time to time. Any number of processes may do it at once.

use std::time::{Duration, SystemTime};

use cynode_db::{
    DbError, accounts, agent_tokens, approvals, handoffs, idempotency, nodes, notices, schedules,
    schema,
};
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
        if let Err(error) = once(&app).await {
            complain(&error, "maintenance failed and will be tried again");
        }
    }
}

/// Makes partitions for the months to come, and forgets what nobody may ask for any more and what was left half done.
pub async fn once(app: &App) -> Result<(), Error> {
    let now = app.environment().now();
    let mut conn = app.pool().acquire().await.map_err(DbError::from)?;
    schema::ensure_partitions(&mut conn, now).await?;
    while idempotency::sweep(&mut conn, now, BATCH).await? > 0 {}
    approvals::sweep(&mut conn, now - time::Duration::days(1)).await?;
    while notices::sweep(&mut conn, now - KEEP_NOTICES, now, BATCH).await? > 0 {}
    while schedules::forget(&mut conn, now - KEEP_FIRINGS, BATCH).await? > 0 {}
    if let Ok(parts) = app.gate() {
        let before = now - parts.keep_transcripts;
        while nodes::forget_events(&mut conn, before, BATCH).await? > 0 {}
        while handoffs::forget_prompts(&mut conn, before, BATCH).await? > 0 {}
        while handoffs::forget_chats(&mut conn, before, BATCH).await? > 0 {}
    }
    drop(conn);
    if let Ok(parts) = app.gate() {
        let removed = crate::audit::prune(app, parts.keep_records).await?;
        if removed > 0 {
            tracing::info!(
                event = "audit.pruned",
                records = removed,
                "removed records whose time is over"
            );
        }
        tidy(parts, (now - leftovers::AGE).into())
            .await
            .map_err(|error| Error::Internal(error.into()))?;
    }
    let mut conn = app.pool().acquire().await.map_err(DbError::from)?;
    while accounts::forget_sessions(&mut conn, now - KEEP_SESSIONS, BATCH).await? > 0 {}
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
