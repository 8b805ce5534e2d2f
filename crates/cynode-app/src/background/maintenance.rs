//! Retention: prunes rows and files past their retention, removes orphans and creates partitions, at a fixed interval.
//! Any number of processes may run it at once.

use std::time::{Duration, Instant, SystemTime};

use cynode_core::{
    ids::{JobId, ProjectId},
    settings::registry::{
        DEFAULT_MEMORY_PROPOSAL_DAYS, DEFAULT_TASK_RETENTION_DAYS, MEMORY_PROPOSAL_DAYS_SETTING,
        TASK_RETENTION_SETTING,
    },
};
use cynode_db::{
    DbError, PooledConn,
    delivery::environments,
    identity::{accounts, device_authorizations, identity_providers, provider_grants},
    manager::{handoffs, replays},
    memory::partitions,
    nodes, notifications,
    platform::{backup, idempotency, schema},
    tasks::projects,
    tools::{agent_tokens, approvals, artifacts as blobs},
    workflow::schedules,
};
use time::OffsetDateTime;
use tokio_util::sync::CancellationToken;

use crate::{
    App, Error, GatewayParts,
    memory::ingest,
    platform::{error::log_background_error, operation, orphan_cleanup, settings},
    tools::artifacts,
};

/// Interval of maintenance.
const MAINTENANCE_INTERVAL: Duration = Duration::from_mins(10);

/// Maximum number of rows removed by one statement, so that no lock is held for long.
const PRUNE_BATCH_SIZE: i64 = 1000;

/// How long one round removes files of expired tasks.
const MAX_EXPIRY_TIME: Duration = Duration::from_mins(20);

/// Maximum number of tasks whose files expire in one round.
const MAX_EXPIRED_TASKS: i64 = 200;

/// Retention of notifications.
const NOTIFICATION_RETENTION: time::Duration = time::Duration::days(30);

/// Retention of the firings of schedules. The last firing is kept as long as its schedule.
const FIRING_RETENTION: time::Duration = time::Duration::days(90);

/// Retention of ingests after their end. Their records stay.
const INGEST_RETENTION: time::Duration = time::Duration::days(90);

/// Time after which an upload that was not completed is given up.
const UPLOAD_TTL: time::Duration = time::Duration::days(1);

/// Retention of sessions and agent tokens after their end. They no longer authenticate in that time.
const SESSION_RETENTION: time::Duration = time::Duration::days(1);
const AGENT_TOKEN_RETENTION: time::Duration = time::Duration::days(90);

/// Runs maintenance until shutdown. A failure is logged and retried in the next round.
#[operation]
pub async fn run_maintenance(app: App, stop: CancellationToken) {
    let mut turn = tokio::time::interval(MAINTENANCE_INTERVAL);
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            _ = turn.tick() => {}
        }
        // Each failure was already logged.
        let _ = run_maintenance_once(&app).await;
    }
}

/// Creates the partitions of the coming months, prunes rows past their retention and removes orphans. Each step runs
/// regardless of earlier failures. Failures are logged, and the first is returned.
#[operation]
pub async fn run_maintenance_once(app: &App) -> Result<(), Error> {
    let now = app.environment().now();
    let mut first = Ok(());
    let mut finish_step = |event: &'static str, step: Result<(), Error>| {
        if let Err(error) = step {
            log_background_error(event, &error, "a maintenance step failed; it is retried");
            if first.is_ok() {
                first = Err(error);
            }
        }
    };
    finish_step("partitions.create_failed", ensure_partitions(app, now).await);
    finish_step("idempotency_keys.prune_failed", prune_idempotency_answers(app, now).await);
    finish_step("approvals.prune_failed", prune_approvals(app, now).await);
    finish_step("notifications.prune_failed", prune_notifications(app, now).await);
    finish_step("schedule_firings.prune_failed", prune_firings(app, now).await);
    finish_step("memory_uploads.end_failed", end_uploads(app, now).await);
    finish_step("memory_ingests.prune_failed", prune_ingests(app, now).await);
    finish_step("memory_proposals.prune_failed", prune_memory_proposals(app, now).await);
    finish_step("sessions.prune_failed", prune_sessions(app, now).await);
    finish_step("logins.prune_failed", prune_logins(app, now).await);
    finish_step("agent_tokens.prune_failed", prune_agent_tokens(app, now).await);
    finish_step("certificates.prune_failed", prune_certificates(app, now).await);
    if let Ok(parts) = app.gateway_parts() {
        let before = now - parts.transcript_retention;
        finish_step("transcripts.prune_failed", prune_transcripts(app, before).await);
        finish_step("prompts.prune_failed", prune_prompts(app, before).await);
        finish_step("chats.prune_failed", prune_chats(app, before).await);
        finish_step("audit.prune_failed", prune_audit_records(app, parts).await);
        let removed =
            remove_orphaned_files(parts, (now - orphan_cleanup::ORPHAN_MIN_AGE).into()).await;
        let removed = removed.map_err(|error| Error::Internal(error.into()));
        finish_step("orphans.remove_failed", removed);
        // Each of its failures was already logged.
        first = first.and(remove_stored_files(app, now).await);
    }
    first
}

/// Removes files that rows named until lately, unless a backup runs: it would have the rows and not the files. The next round does it.
async fn remove_stored_files(app: &App, now: OffsetDateTime) -> Result<(), Error> {
    let permit = backup::permit_removal(app.pool()).await.inspect_err(|error| {
        log_background_error("stored_files.permit_failed", error, "it is retried");
    });
    let Some(_permit) = permit? else {
        tracing::info!(event = "stored_files.removal_postponed", "a backup runs");
        return Ok(());
    };
    let before = now - orphan_cleanup::ORPHAN_MIN_AGE;
    let expired = expire_task_files(app, now).await;
    let blobs = remove_expired_blobs(app, before).await;
    let deleted = remove_deleted_project_files(app, before).await;
    let mut first = Ok(());
    for (event, step) in [
        ("task_files.expire_failed", expired),
        ("blobs.remove_failed", blobs),
        ("project.files_remove_failed", deleted),
    ] {
        if let Err(error) = step {
            log_background_error(event, &error, "a maintenance step failed; it is retried");
            first = first.and(Err(error));
        }
    }
    first
}

/// Acquires a connection for one step, so that no step inherits the connection state of another.
async fn acquire_connection(app: &App) -> Result<PooledConn, DbError> {
    app.conn().await
}

async fn ensure_partitions(app: &App, now: OffsetDateTime) -> Result<(), Error> {
    let mut conn = acquire_connection(app).await?;
    Ok(schema::ensure_partitions(&mut conn, now).await?)
}

async fn prune_idempotency_answers(app: &App, now: OffsetDateTime) -> Result<(), Error> {
    let mut conn = acquire_connection(app).await?;
    while idempotency::prune_idempotency_keys(&mut conn, now, PRUNE_BATCH_SIZE).await? > 0 {}
    Ok(())
}

async fn prune_approvals(app: &App, now: OffsetDateTime) -> Result<(), Error> {
    let mut conn = acquire_connection(app).await?;
    approvals::prune_approvals(&mut conn, now - time::Duration::days(1)).await?;
    Ok(())
}

async fn prune_notifications(app: &App, now: OffsetDateTime) -> Result<(), Error> {
    let mut conn = acquire_connection(app).await?;
    while notifications::prune_notifications(
        &mut conn,
        now - NOTIFICATION_RETENTION,
        now,
        PRUNE_BATCH_SIZE,
    )
    .await?
        > 0
    {}
    Ok(())
}

/// Removes proposals for memory that nobody decided in time.
async fn prune_memory_proposals(app: &App, now: OffsetDateTime) -> Result<(), Error> {
    let mut conn = acquire_connection(app).await?;
    let (key, default) = (MEMORY_PROPOSAL_DAYS_SETTING, DEFAULT_MEMORY_PROPOSAL_DAYS);
    let days = settings::setting_number(&mut conn, key, default).await?;
    let before = now - time::Duration::days(days);
    while partitions::prune_proposals(&mut conn, before, PRUNE_BATCH_SIZE).await? > 0 {}
    Ok(())
}

/// Removes client certificates that expired a month ago.
async fn prune_certificates(app: &App, now: OffsetDateTime) -> Result<(), Error> {
    let mut conn = app.conn().await?;
    let before = now - time::Duration::days(30);
    cynode_db::identity::certificates::prune_certificates(&mut conn, before).await?;
    Ok(())
}

async fn prune_firings(app: &App, now: OffsetDateTime) -> Result<(), Error> {
    let mut conn = acquire_connection(app).await?;
    while schedules::prune_firings(&mut conn, now - FIRING_RETENTION, PRUNE_BATCH_SIZE).await? > 0 {
    }
    Ok(())
}

async fn end_uploads(app: &App, now: OffsetDateTime) -> Result<(), Error> {
    ingest::end_abandoned_uploads(app, now - UPLOAD_TTL).await.map(drop)
}

async fn prune_ingests(app: &App, now: OffsetDateTime) -> Result<(), Error> {
    let before = now - INGEST_RETENTION;
    while ingest::prune_ended_ingests(app, before, PRUNE_BATCH_SIZE).await? > 0 {}
    Ok(())
}

async fn prune_transcripts(app: &App, before: OffsetDateTime) -> Result<(), Error> {
    let mut conn = acquire_connection(app).await?;
    while nodes::prune_job_events(&mut conn, before, PRUNE_BATCH_SIZE).await? > 0 {}
    while environments::prune_package_fetches(&mut conn, before, PRUNE_BATCH_SIZE).await? > 0 {}
    Ok(())
}

async fn prune_prompts(app: &App, before: OffsetDateTime) -> Result<(), Error> {
    let mut conn = acquire_connection(app).await?;
    while handoffs::prune_prompts(&mut conn, before, PRUNE_BATCH_SIZE).await? > 0 {}
    while replays::prune_replays(&mut conn, before, PRUNE_BATCH_SIZE).await? > 0 {}
    Ok(())
}

async fn prune_chats(app: &App, before: OffsetDateTime) -> Result<(), Error> {
    let mut conn = acquire_connection(app).await?;
    while handoffs::prune_chat_contents(&mut conn, before, PRUNE_BATCH_SIZE).await? > 0 {}
    Ok(())
}

async fn prune_audit_records(app: &App, parts: &GatewayParts) -> Result<(), Error> {
    let removed = crate::tools::audit::prune_records(app, parts.audit_retention).await?;
    if removed > 0 {
        tracing::info!(
            event = "audit.pruned",
            records = removed,
            "removed records past their retention"
        );
    }
    Ok(())
}

/// Prunes what logins leave: grants without a session, used states, and codes of devices.
async fn prune_logins(app: &App, now: OffsetDateTime) -> Result<(), Error> {
    let mut conn = acquire_connection(app).await?;
    let before = now - SESSION_RETENTION;
    while provider_grants::prune_grants(&mut conn, before, PRUNE_BATCH_SIZE).await? > 0 {}
    while identity_providers::prune_login_values(&mut conn, before, PRUNE_BATCH_SIZE).await? > 0 {}
    while device_authorizations::prune_device_authorizations(&mut conn, before, PRUNE_BATCH_SIZE)
        .await?
        > 0
    {}
    Ok(())
}

async fn prune_sessions(app: &App, now: OffsetDateTime) -> Result<(), Error> {
    let mut conn = acquire_connection(app).await?;
    while accounts::prune_sessions(&mut conn, now - SESSION_RETENTION, PRUNE_BATCH_SIZE).await? > 0
    {
    }
    Ok(())
}

async fn prune_agent_tokens(app: &App, now: OffsetDateTime) -> Result<(), Error> {
    let mut conn = acquire_connection(app).await?;
    while agent_tokens::prune_agent_tokens(&mut conn, now - AGENT_TOKEN_RETENTION, PRUNE_BATCH_SIZE)
        .await?
        > 0
    {}
    Ok(())
}

/// Removes the commits, bundles and artifacts of tasks that ended long ago. The failure of one project delays no other.
async fn expire_task_files(app: &App, now: OffsetDateTime) -> Result<(), Error> {
    let mut conn = acquire_connection(app).await?;
    let days =
        settings::setting_number(&mut conn, TASK_RETENTION_SETTING, DEFAULT_TASK_RETENTION_DAYS)
            .await?;
    let before = now - time::Duration::days(days);
    let projects = blobs::list_expired_projects(&mut conn, before).await?;
    drop(conn);
    let began = Instant::now();
    let mut first = Ok(());
    for project in projects {
        // The next round goes on with the rest.
        if began.elapsed() >= MAX_EXPIRY_TIME {
            break;
        }
        if let Err(error) = expire_project_files(app, project, before, now).await {
            let message = "the files of a project could not expire; it is retried";
            log_background_error("task_files.expire_failed", &error, message);
            first = first.and(Err(error));
        }
    }
    first
}

/// Removes the files of one project's expired tasks. Refs go first and the mark of the task last: after a kill the next round
/// repeats it.
async fn expire_project_files(
    app: &App,
    project: ProjectId,
    before: OffsetDateTime,
    now: OffsetDateTime,
) -> Result<(), Error> {
    let parts = app.gateway_parts()?;
    let mut conn = acquire_connection(app).await?;
    // Read now, since a task may have been continued while other projects expired.
    let expired = blobs::list_expired_tasks(&mut conn, project, before, MAX_EXPIRED_TASKS).await?;
    drop(conn);
    let jobs: Vec<JobId> = expired.iter().flat_map(|task| task.jobs.iter().copied()).collect();
    parts.repositories.remove_job_refs(project, &jobs).await?;
    for task in &expired {
        let mut tx = app.begin().await?;
        blobs::expire_task_blobs(&mut tx, task.task, now).await?;
        tx.commit().await.map_err(DbError::from)?;
    }
    if !expired.is_empty() {
        tracing::info!(
            event = "task_files.expired",
            tasks = expired.len(),
            "removed commits, bundles and artifacts of tasks past their retention"
        );
    }
    Ok(())
}

/// Removes the bytes of expired blobs that nothing refers to. An upload of the same bytes waits for the end of the transaction and then
/// stores them anew.
async fn remove_expired_blobs(app: &App, before: OffsetDateTime) -> Result<(), Error> {
    let mut conn = acquire_connection(app).await?;
    let digests = blobs::list_expired_blobs(&mut conn, before, PRUNE_BATCH_SIZE).await?;
    drop(conn);
    for digest in digests {
        let mut tx = app.begin().await?;
        if blobs::begin_blob_removal(&mut tx, &digest).await? {
            artifacts::remove_artifact_bytes(app, &digest).await?;
        }
        tx.commit().await.map_err(DbError::from)?;
    }
    Ok(())
}

/// Removes the files of deleted projects. They outlive their rows for a while, until pending uploads into them have
/// given up. After a kill the next round completes it: the note of a project goes last.
async fn remove_deleted_project_files(app: &App, before: OffsetDateTime) -> Result<(), Error> {
    let parts = app.gateway_parts()?;
    let mut conn = app.conn().await?;
    let mut removed = 0;
    for files in projects::list_deleted_files(&mut conn, before).await? {
        let repository = parts.repositories.remove_repository(files.project).await;
        repository.map_err(|error| Error::Internal(error.into()))?;
        for digest in files.digests {
            let Ok(digest) = <[u8; 32]>::try_from(digest) else { continue };
            artifacts::remove_artifact_bytes(app, &digest).await?;
        }
        projects::clear_deleted_files(&mut conn, files.project).await?;
        removed += 1;
    }
    if removed > 0 {
        tracing::info!(
            event = "project.files_removed",
            projects = removed,
            "removed files of deleted projects"
        );
    }
    Ok(())
}

/// Removes partial files that killed processes left behind.
async fn remove_orphaned_files(parts: &GatewayParts, before: SystemTime) -> std::io::Result<()> {
    let uploads = parts.objects_directory.join("incoming");
    let mut removed = orphan_cleanup::remove_orphans(&uploads, "", before).await?;
    removed += parts.repositories.remove_orphaned_files(before).await?;
    if removed > 0 {
        tracing::info!(event = "orphans.removed", removed, "removed orphaned files");
    }
    Ok(())
}
