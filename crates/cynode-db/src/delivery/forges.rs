//! Remotes of projects, webhook deliveries and imported issues.

use cynode_core::{
    delivery::Destination,
    ids::{ProjectId, PullRequestId, TaskId, UserId},
};
use serde_json::Value;
use time::OffsetDateTime;
use uuid::Uuid;

use crate::{Conn, DbError, platform::error::corrupt_column};

/// The repository of a project on a forge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProjectRemote {
    /// The project.
    pub project: ProjectId,
    /// The kind of forge.
    pub forge: Destination,
    /// Where it is cloned from.
    pub url: String,
    /// Where its API is.
    pub api: String,
    /// Its name there.
    pub repository: String,
    /// The branch that work starts from.
    pub default_branch: String,
    /// What opens it, sealed.
    pub credential: Vec<u8>,
    /// What its deliveries are signed with, sealed.
    pub webhook_secret: Vec<u8>,
    /// Whose credential it is.
    pub login: Option<String>,
    /// The label that makes an issue a task.
    pub label: Option<String>,
    /// Whether an issue that is assigned to the bot becomes a task.
    pub assigned_to_bot: bool,
    /// Whether also of people who may not write.
    pub allow_untrusted_authors: bool,
    /// How often it is looked at.
    pub poll_seconds: i32,
    /// Whether it may be on this machine or in a private network.
    pub private: bool,
    /// Who set it.
    pub set_by: UserId,
    /// When.
    pub set_at: OffsetDateTime,
    /// When its newest commits were last brought.
    pub fetched_at: Option<OffsetDateTime>,
    /// From where on issues are looked at.
    pub issues_since: OffsetDateTime,
    /// Why the last look came to nothing.
    pub failure: Option<String>,
    /// When it was last looked at.
    pub looked_at: Option<OffsetDateTime>,
    /// How many deliveries were not from the forge.
    pub refused: i64,
}

struct ProjectRemoteRow {
    project_id: Uuid,
    forge: String,
    url: String,
    api: String,
    repository: String,
    default_branch: String,
    credential: Vec<u8>,
    webhook_secret: Vec<u8>,
    login: Option<String>,
    label: Option<String>,
    assigned_to_bot: bool,
    allow_untrusted_authors: bool,
    poll_seconds: i32,
    allow_private: bool,
    set_by: Uuid,
    set_at: OffsetDateTime,
    fetched_at: Option<OffsetDateTime>,
    issues_since: OffsetDateTime,
    failure: Option<String>,
    polled_at: Option<OffsetDateTime>,
    rejected_webhooks: i64,
}

impl TryFrom<ProjectRemoteRow> for ProjectRemote {
    type Error = DbError;

    fn try_from(row: ProjectRemoteRow) -> Result<Self, DbError> {
        let forge = Destination::from_name(&row.forge);
        let forge = forge.filter(|forge| *forge != Destination::Local);
        Ok(Self {
            project: ProjectId::from_uuid(row.project_id),
            forge: forge.ok_or(DbError::Corrupt { table: "project_remotes", column: "forge" })?,
            url: row.url,
            api: row.api,
            repository: row.repository,
            default_branch: row.default_branch,
            credential: row.credential,
            webhook_secret: row.webhook_secret,
            login: row.login,
            label: row.label,
            assigned_to_bot: row.assigned_to_bot,
            allow_untrusted_authors: row.allow_untrusted_authors,
            poll_seconds: row.poll_seconds,
            private: row.allow_private,
            set_by: UserId::from_uuid(row.set_by),
            set_at: row.set_at,
            fetched_at: row.fetched_at,
            issues_since: row.issues_since,
            failure: row.failure,
            looked_at: row.polled_at,
            refused: row.rejected_webhooks,
        })
    }
}

/// Gives a project a remote, or another one. It is looked at soon.
#[tracing::instrument(name = "db.remotes.set_remote", skip_all)]
pub async fn set_remote(conn: &mut Conn, remote: &ProjectRemote) -> Result<(), DbError> {
    sqlx::query!(
        "
        INSERT INTO project_remotes (project_id, forge, url, api, repository, default_branch, credential, webhook_secret, login, label,
            assigned_to_bot, allow_untrusted_authors, poll_seconds, set_by, set_at, fetched_at, issues_since, allow_private)
        VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18)
        ON CONFLICT (project_id) DO UPDATE
        SET forge = excluded.forge, url = excluded.url, api = excluded.api, repository = excluded.repository,
            default_branch = excluded.default_branch, credential = excluded.credential,
            webhook_secret = excluded.webhook_secret, login = excluded.login, label = excluded.label,
            assigned_to_bot = excluded.assigned_to_bot, allow_untrusted_authors = excluded.allow_untrusted_authors, poll_seconds = excluded.poll_seconds,
            set_by = excluded.set_by, set_at = excluded.set_at, fetched_at = excluded.fetched_at,
            issues_since = excluded.issues_since, allow_private = excluded.allow_private, failure = NULL, failed_polls = 0,
            due_at = clock_timestamp(), lease_id = NULL, lease_expires_at = NULL
        ",
        remote.project.as_uuid(),
        remote.forge.as_str(),
        remote.url,
        remote.api,
        remote.repository,
        remote.default_branch,
        remote.credential,
        remote.webhook_secret,
        remote.login,
        remote.label,
        remote.assigned_to_bot,
        remote.allow_untrusted_authors,
        remote.poll_seconds,
        remote.set_by.as_uuid(),
        remote.set_at,
        remote.fetched_at,
        remote.issues_since,
        remote.private,
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// The remote of a project, if it has one.
#[tracing::instrument(name = "db.remotes.get_remote", skip_all)]
pub async fn get_remote(
    conn: &mut Conn,
    project: ProjectId,
) -> Result<Option<ProjectRemote>, DbError> {
    let row = sqlx::query_as!(
        ProjectRemoteRow,
        "
        SELECT project_id, forge, url, api, repository, default_branch, credential, webhook_secret, login, label, assigned_to_bot,
            allow_untrusted_authors, poll_seconds, allow_private, set_by, set_at, fetched_at, issues_since, failure, polled_at,
            rejected_webhooks
        FROM project_remotes WHERE project_id = $1
        ",
        project.as_uuid(),
    );
    row.fetch_optional(conn).await?.map(ProjectRemote::try_from).transpose()
}

/// The remotes of all projects.
#[tracing::instrument(name = "db.remotes.list_remotes", skip_all)]
pub async fn list_remotes(conn: &mut Conn) -> Result<Vec<ProjectRemote>, DbError> {
    let rows = sqlx::query_as!(
        ProjectRemoteRow,
        "
        SELECT project_id, forge, url, api, repository, default_branch, credential, webhook_secret, login, label, assigned_to_bot,
            allow_untrusted_authors, poll_seconds, allow_private, set_by, set_at, fetched_at, issues_since, failure, polled_at,
            rejected_webhooks
        FROM project_remotes ORDER BY project_id
        ",
    );
    rows.fetch_all(conn).await?.into_iter().map(ProjectRemote::try_from).collect()
}

/// Takes the remote of a project away, with its credential. Gives whether there was one.
#[tracing::instrument(name = "db.remotes.remove_remote", skip_all)]
pub async fn remove_remote(conn: &mut Conn, project: ProjectId) -> Result<bool, DbError> {
    let done = sqlx::query!("DELETE FROM project_remotes WHERE project_id = $1", project.as_uuid());
    Ok(done.execute(conn).await?.rows_affected() == 1)
}

/// Notes that the newest commits were brought.
#[tracing::instrument(name = "db.remotes.record_fetch", skip_all)]
pub async fn record_fetch(
    conn: &mut Conn,
    project: ProjectId,
    now: OffsetDateTime,
) -> Result<(), DbError> {
    sqlx::query!(
        "UPDATE project_remotes SET fetched_at = $2 WHERE project_id = $1",
        project.as_uuid(),
        now,
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// Moves the head of a project's repository from one commit to another. Gives whether it was there.
#[tracing::instrument(name = "db.remotes.move_repository_head", skip_all)]
pub async fn move_repository_head(
    conn: &mut Conn,
    project: ProjectId,
    from: &str,
    to: &str,
    now: OffsetDateTime,
) -> Result<bool, DbError> {
    let done = sqlx::query!(
        "UPDATE repositories SET head = $3, imported_at = $4 WHERE project_id = $1 AND head = $2",
        project.as_uuid(),
        from,
        to,
        now,
    );
    Ok(done.execute(conn).await?.rows_affected() == 1)
}

/// Takes the remote that has been due longest, or that of one project whether it is due or not, for so long. Whoever has it already keeps it.
/// Of those on one forge that last answered nothing, one is looked at at a time: the others' places are for forges that answer.
#[tracing::instrument(name = "db.remotes.claim_due_remote", skip_all)]
pub async fn claim_due_remote(
    conn: &mut Conn,
    lease: Uuid,
    only: Option<ProjectId>,
    ttl_ms: i64,
) -> Result<Option<ProjectRemote>, DbError> {
    let row = sqlx::query_as!(
        ProjectRemoteRow,
        r#"
        UPDATE project_remotes r
        SET lease_id = $1, lease_expires_at = clock_timestamp() + $3::bigint * interval '1 millisecond'
        FROM (
            SELECT f.project_id FROM project_remotes f
            WHERE (f.lease_expires_at IS NULL OR f.lease_expires_at < clock_timestamp())
                AND NOT EXISTS (SELECT FROM projects p WHERE p.project_id = f.project_id AND p.archived_at IS NOT NULL)
                AND (f.project_id = $2 OR $2::uuid IS NULL AND f.due_at <= clock_timestamp()
                    AND (f.failed_polls = 0 OR NOT EXISTS (
                        SELECT FROM project_remotes o
                        WHERE o.api = f.api AND o.failed_polls > 0 AND o.lease_expires_at >= clock_timestamp())))
            ORDER BY f.due_at
            LIMIT 1
            FOR UPDATE OF f SKIP LOCKED
        ) AS free
        WHERE r.project_id = free.project_id
        RETURNING r.project_id, r.forge, r.url, r.api, r.repository, r.default_branch, r.credential, r.webhook_secret, r.login, r.label,
            r.assigned_to_bot, r.allow_untrusted_authors, r.poll_seconds, r.allow_private, r.set_by, r.set_at, r.fetched_at,
            r.issues_since, r.failure, r.polled_at, r.rejected_webhooks
        "#,
        lease,
        only.map(ProjectId::as_uuid),
        ttl_ms,
    );
    row.fetch_optional(conn).await?.map(ProjectRemote::try_from).transpose()
}

/// What a look at a remote ends with.
#[derive(Clone, Copy, Debug)]
pub struct RemotePollResult<'a> {
    /// From where on the next look asks for issues.
    pub issues_since: OffsetDateTime,
    /// When it is to be looked at again, at the earliest.
    pub again_in_ms: i64,
    /// Whether the forge answered nothing: each time in a row it is left alone twice as long, up to an hour.
    pub silent: bool,
    /// Why it came to nothing.
    pub failure: Option<&'a str>,
    /// When.
    pub now: OffsetDateTime,
}

/// Gives a remote back. Whoever has lost it changes nothing. What was told meanwhile is looked at at once.
#[tracing::instrument(name = "db.remotes.release_remote", skip_all)]
pub async fn release_remote(
    conn: &mut Conn,
    project: ProjectId,
    lease: Uuid,
    looked: RemotePollResult<'_>,
) -> Result<bool, DbError> {
    let done = sqlx::query!(
        "
        UPDATE project_remotes r
        SET lease_id = NULL, lease_expires_at = NULL, issues_since = $3, failure = $5, polled_at = $6,
            failed_polls = CASE WHEN $7::boolean THEN least(failed_polls + 1, 20) ELSE 0 END,
            due_at = CASE
                WHEN $5::text IS NULL AND EXISTS (SELECT FROM webhook_deliveries d WHERE d.project_id = r.project_id AND d.processed_at IS NULL)
                THEN clock_timestamp()
                ELSE clock_timestamp() + interval '1 millisecond' * greatest($4::bigint, CASE WHEN $7 AND failed_polls > 0
                    THEN least((poll_seconds::bigint * 1000) << failed_polls, 3600000) ELSE 0 END) END
        WHERE project_id = $1 AND lease_id = $2
        ",
        project.as_uuid(),
        lease,
        looked.issues_since,
        looked.again_in_ms,
        looked.failure,
        looked.now,
        looked.silent,
    );
    Ok(done.execute(conn).await?.rows_affected() == 1)
}

/// Something that a forge told us of.
#[derive(Clone, Debug, PartialEq)]
pub struct WebhookRecord {
    /// The digest of what it said.
    pub digest: [u8; 32],
    /// What happened.
    pub event: Value,
}

/// Keeps a delivery, and has the remote looked at. What was dealt with and is sent again is looked at again. Gives whether it did not wait already.
#[tracing::instrument(name = "db.remotes.store_webhook_delivery", skip_all)]
pub async fn store_webhook_delivery(
    conn: &mut Conn,
    project: ProjectId,
    delivery: &WebhookRecord,
    name: &str,
    now: OffsetDateTime,
) -> Result<bool, DbError> {
    let done = sqlx::query!(
        "
        WITH kept AS (
            INSERT INTO webhook_deliveries (project_id, digest, delivery_id, event, received_at) VALUES ($1, $2, $3, $4, $5)
            ON CONFLICT (project_id, digest) DO UPDATE
            SET delivery_id = excluded.delivery_id, received_at = excluded.received_at, processed_at = NULL
            WHERE webhook_deliveries.processed_at IS NOT NULL
            RETURNING project_id
        )
        UPDATE project_remotes r SET due_at = least(r.due_at, clock_timestamp()) FROM kept WHERE r.project_id = kept.project_id
        ",
        project.as_uuid(),
        &delivery.digest,
        name,
        delivery.event,
        now,
    );
    Ok(done.execute(conn).await?.rows_affected() == 1)
}

/// What was told and not dealt with, the oldest first.
#[tracing::instrument(name = "db.remotes.list_pending_deliveries", skip_all)]
pub async fn list_pending_deliveries(
    conn: &mut Conn,
    project: ProjectId,
) -> Result<Vec<WebhookRecord>, DbError> {
    let rows = sqlx::query!(
        "
        SELECT digest, event FROM webhook_deliveries WHERE project_id = $1 AND processed_at IS NULL
        ORDER BY received_at, digest LIMIT 200
        ",
        project.as_uuid(),
    );
    let rows = rows.fetch_all(conn).await?.into_iter();
    rows.map(|row| {
        let digest =
            row.digest.try_into().map_err(corrupt_column("webhook_deliveries", "digest"))?;
        Ok(WebhookRecord { digest, event: row.event })
    })
    .collect()
}

/// Notes that deliveries were dealt with.
#[tracing::instrument(name = "db.remotes.mark_deliveries_done", skip_all)]
pub async fn mark_deliveries_done(
    conn: &mut Conn,
    project: ProjectId,
    digests: &[Vec<u8>],
    now: OffsetDateTime,
) -> Result<(), DbError> {
    sqlx::query!(
        "UPDATE webhook_deliveries SET processed_at = $3 WHERE project_id = $1 AND digest = ANY ($2)",
        project.as_uuid(),
        digests,
        now,
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// Forgets deliveries that were dealt with long ago.
#[tracing::instrument(name = "db.remotes.prune_deliveries", skip_all)]
pub async fn prune_deliveries(conn: &mut Conn, before: OffsetDateTime) -> Result<u64, DbError> {
    let done = sqlx::query!("DELETE FROM webhook_deliveries WHERE processed_at < $1", before);
    Ok(done.execute(conn).await?.rows_affected())
}

/// Counts a delivery that was not from the forge. Gives whether it is the first one for a minute.
#[tracing::instrument(name = "db.remotes.count_refused_delivery", skip_all)]
pub async fn count_refused_delivery(
    conn: &mut Conn,
    project: ProjectId,
    now: OffsetDateTime,
) -> Result<bool, DbError> {
    let before = sqlx::query_scalar!(
        "SELECT rejected_at FROM project_remotes WHERE project_id = $1 FOR NO KEY UPDATE",
        project.as_uuid(),
    );
    let before = before.fetch_optional(&mut *conn).await?;
    let Some(before) = before else { return Ok(false) };
    let first = before.is_none_or(|before| before + time::Duration::minutes(1) <= now);
    sqlx::query!(
        "
        UPDATE project_remotes SET rejected_webhooks = rejected_webhooks + 1, rejected_at = CASE WHEN $3 THEN $2 ELSE rejected_at END
        WHERE project_id = $1
        ",
        project.as_uuid(),
        now,
        first,
    )
    .execute(conn)
    .await?;
    Ok(first)
}

/// An issue that was wanted.
#[derive(Clone, Debug, PartialEq)]
pub struct WantedIssue {
    /// Its number.
    pub number: i64,
    /// Where people see it.
    pub url: String,
    /// Who wrote it.
    pub author: String,
    /// The task that it became.
    pub task: Option<TaskId>,
    /// Why it became none.
    pub refused: Option<String>,
    /// What was taken out of its text.
    pub removed: Value,
    /// When it was seen.
    pub seen_at: OffsetDateTime,
}

/// The task that an issue became, if it did. Whoever asks holds the place until its transaction ends.
#[tracing::instrument(name = "db.remotes.lock_issue", skip_all)]
pub async fn lock_issue(
    conn: &mut Conn,
    remote: &ProjectRemote,
    number: i64,
) -> Result<Option<TaskId>, DbError> {
    // Also an issue that is not there yet can be held: two who look at once come one after the other.
    sqlx::query!(
        "SELECT pg_advisory_xact_lock(hashtextextended('issue:' || $1::text || ':' || $2::text, 8))",
        remote.project.as_uuid().to_string(),
        number.to_string(),
    )
    .execute(&mut *conn)
    .await?;
    let found = sqlx::query_scalar!(
        "SELECT task_id FROM forge_issues WHERE project_id = $1 AND forge = $2 AND repository = $3 AND number = $4",
        remote.project.as_uuid(),
        remote.forge.as_str(),
        remote.repository,
        number,
    );
    Ok(found.fetch_optional(conn).await?.flatten().map(TaskId::from_uuid))
}

/// Those of some issues that are tasks already.
#[tracing::instrument(name = "db.remotes.list_taken_issues", skip_all)]
pub async fn list_taken_issues(
    conn: &mut Conn,
    remote: &ProjectRemote,
    numbers: &[i64],
) -> Result<Vec<i64>, DbError> {
    let found = sqlx::query_scalar!(
        "
        SELECT number FROM forge_issues
        WHERE project_id = $1 AND forge = $2 AND repository = $3 AND number = ANY ($4) AND task_id IS NOT NULL
        ",
        remote.project.as_uuid(),
        remote.forge.as_str(),
        remote.repository,
        numbers,
    );
    Ok(found.fetch_all(conn).await?)
}

/// Keeps what became of an issue. What became a task stays that task.
#[tracing::instrument(name = "db.remotes.record_issue", skip_all)]
pub async fn record_issue(
    conn: &mut Conn,
    remote: &ProjectRemote,
    issue: &WantedIssue,
) -> Result<bool, DbError> {
    let done = sqlx::query!(
        "
        INSERT INTO forge_issues (project_id, forge, repository, number, url, author, task_id, refusal_reason, removed, seen_at)
        VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)
        ON CONFLICT (project_id, forge, repository, number) DO UPDATE
        SET url = excluded.url, author = excluded.author, task_id = excluded.task_id, refusal_reason = excluded.refusal_reason,
            removed = excluded.removed, seen_at = excluded.seen_at
        WHERE forge_issues.task_id IS NULL AND forge_issues.refusal_reason IS DISTINCT FROM excluded.refusal_reason
        ",
        remote.project.as_uuid(),
        remote.forge.as_str(),
        remote.repository,
        issue.number,
        issue.url,
        issue.author,
        issue.task.map(TaskId::as_uuid),
        issue.refused,
        issue.removed,
        issue.seen_at,
    );
    Ok(done.execute(conn).await?.rows_affected() == 1)
}

/// The issues of a project that were wanted, the newest first.
#[tracing::instrument(name = "db.remotes.list_wanted_issues", skip_all)]
pub async fn list_wanted_issues(
    conn: &mut Conn,
    project: ProjectId,
) -> Result<Vec<WantedIssue>, DbError> {
    let rows = sqlx::query!(
        "
        SELECT number, url, author, task_id, refusal_reason, removed, seen_at FROM forge_issues
        WHERE project_id = $1 ORDER BY seen_at DESC, number DESC LIMIT 200
        ",
        project.as_uuid(),
    );
    let rows = rows.fetch_all(conn).await?.into_iter();
    let issue = rows.map(|row| WantedIssue {
        number: row.number,
        url: row.url,
        author: row.author,
        task: row.task_id.map(TaskId::from_uuid),
        refused: row.refusal_reason,
        removed: row.removed,
        seen_at: row.seen_at,
    });
    Ok(issue.collect())
}

/// Issues that became tasks and were not told: number, task and its name.
#[tracing::instrument(name = "db.remotes.list_unanswered_issues", skip_all)]
pub async fn list_unanswered_issues(
    conn: &mut Conn,
    remote: &ProjectRemote,
) -> Result<Vec<(i64, TaskId, String)>, DbError> {
    let rows = sqlx::query!(
        "
        SELECT i.number, t.task_id, t.name FROM forge_issues i JOIN tasks t USING (task_id)
        WHERE i.project_id = $1 AND i.forge = $2 AND i.repository = $3 AND i.answered_at IS NULL
        ORDER BY i.number LIMIT 50
        ",
        remote.project.as_uuid(),
        remote.forge.as_str(),
        remote.repository,
    );
    let rows = rows.fetch_all(conn).await?.into_iter();
    Ok(rows.map(|row| (row.number, TaskId::from_uuid(row.task_id), row.name)).collect())
}

/// Notes that an issue was told which task it became.
#[tracing::instrument(name = "db.remotes.mark_issue_answered", skip_all)]
pub async fn mark_issue_answered(
    conn: &mut Conn,
    task: TaskId,
    now: OffsetDateTime,
) -> Result<(), DbError> {
    sqlx::query!(
        "UPDATE forge_issues SET answered_at = $2 WHERE task_id = $1",
        task.as_uuid(),
        now,
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// Whether somebody may still ask for work in a project.
#[tracing::instrument(name = "db.remotes.may_request_work", skip_all)]
pub async fn may_request_work(
    conn: &mut Conn,
    user: UserId,
    project: ProjectId,
) -> Result<bool, DbError> {
    let found = sqlx::query_scalar!(
        r#"
        SELECT EXISTS (SELECT FROM users WHERE user_id = $1 AND state = 'active') AND EXISTS (
            SELECT FROM project_members WHERE project_id = $2 AND user_id = $1 AND role IN ('operator', 'admin')
            UNION ALL
            SELECT FROM role_bindings b
            WHERE (b.project_id = $2 OR b.project_id IS NULL) AND b.role IN ('operator', 'admin')
                AND (b.user_id = $1 OR b.group_id IN (SELECT group_id FROM group_members WHERE user_id = $1))
        ) AS "may!"
        "#,
        user.as_uuid(),
        project.as_uuid(),
    );
    Ok(found.fetch_one(conn).await?)
}

/// An open pull request on a forge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenPullRequest {
    /// Its id.
    pub id: PullRequestId,
    /// Its number on the forge.
    pub number: i64,
    /// Its branch.
    pub branch: String,
    /// The commit that we delivered last.
    pub head: String,
    /// When it was opened.
    pub opened_at: OffsetDateTime,
    /// Whether a task works on it.
    pub busy: bool,
}

/// Pull requests that a forge told us of.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReportedPullRequests {
    /// Their numbers there.
    pub numbers: Vec<i64>,
    /// Commits whose checks have ended.
    pub commits: Vec<String>,
}

/// The open pull requests of a project on its forge: first those that were told of, then those that were read longest ago.
#[tracing::instrument(name = "db.remotes.list_open_pull_requests", skip_all)]
pub async fn list_open_pull_requests(
    conn: &mut Conn,
    remote: &ProjectRemote,
    named: &ReportedPullRequests,
) -> Result<Vec<OpenPullRequest>, DbError> {
    let rows = sqlx::query!(
        r#"
        SELECT p.pull_request_id, p.branch, p.remote_number AS "remote_number!", p.head_commit AS "head_commit!", p.opened_at AS "opened_at!",
            EXISTS (
                SELECT FROM tasks t WHERE t.state IN ('queued', 'running') AND t.task_id IN (
                    SELECT p.task_id
                    UNION ALL SELECT f.task_id FROM pull_request_followups f WHERE f.pull_request_id = p.pull_request_id)
            ) AS "busy!"
        FROM pull_requests p
        WHERE p.project_id = $1 AND p.forge = $2 AND p.state = 'open' AND p.remote_number IS NOT NULL
        ORDER BY (p.remote_number = ANY ($3) OR p.head_commit = ANY ($4)) DESC, p.polled_at NULLS FIRST, p.number LIMIT 200
        "#,
        remote.project.as_uuid(),
        remote.forge.as_str(),
        &named.numbers[..],
        &named.commits[..],
    );
    let rows = rows.fetch_all(conn).await?.into_iter();
    let offered = rows.map(|row| OpenPullRequest {
        id: PullRequestId::from_uuid(row.pull_request_id),
        number: row.remote_number,
        branch: row.branch,
        head: row.head_commit,
        opened_at: row.opened_at,
        busy: row.busy,
    });
    Ok(offered.collect())
}

/// Notes that a pull request was read at its forge just now.
#[tracing::instrument(name = "db.remotes.mark_pull_request_read", skip_all)]
pub async fn mark_pull_request_read(conn: &mut Conn, id: PullRequestId) -> Result<(), DbError> {
    sqlx::query!(
        "UPDATE pull_requests SET polled_at = clock_timestamp() WHERE pull_request_id = $1",
        id.as_uuid(),
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// The remarks about a pull request that were dealt with.
#[tracing::instrument(name = "db.remotes.list_handled_remarks", skip_all)]
pub async fn list_handled_remarks(
    conn: &mut Conn,
    id: PullRequestId,
) -> Result<Vec<String>, DbError> {
    let found = sqlx::query_scalar!(
        "SELECT feedback_id FROM pull_request_feedback WHERE pull_request_id = $1",
        id.as_uuid(),
    );
    Ok(found.fetch_all(conn).await?)
}

/// Keeps what became of a remark. Gives whether it was not known.
#[tracing::instrument(name = "db.remotes.record_remark", skip_all)]
pub async fn record_remark(
    conn: &mut Conn,
    id: PullRequestId,
    remark: &str,
    became: Result<TaskId, &str>,
    now: OffsetDateTime,
) -> Result<bool, DbError> {
    let (task, ignored) = match became {
        Ok(task) => (Some(task.as_uuid()), None),
        Err(why) => (None, Some(why)),
    };
    let done = sqlx::query!(
        "
        INSERT INTO pull_request_feedback (pull_request_id, feedback_id, task_id, ignored_reason, recorded_at) VALUES ($1, $2, $3, $4, $5)
        ON CONFLICT DO NOTHING
        ",
        id.as_uuid(),
        remark,
        task,
        ignored,
        now,
    );
    Ok(done.execute(conn).await?.rows_affected() == 1)
}
