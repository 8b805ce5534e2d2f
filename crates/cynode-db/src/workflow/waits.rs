//! Waits of runs.

use cynode_core::{
    ids::{TaskId, UserId, WaitId},
    workflow::waits::{EndedWait, WaitReason, WaitResolution},
};
use time::OffsetDateTime;

use crate::{Conn, DbError};

/// A wait to be opened.
#[derive(Clone, Debug)]
pub struct NewWaitRecord<'a> {
    /// Its id.
    pub id: WaitId,
    /// The checkpoint that opened it.
    pub sequence: i64,
    /// What is waited for.
    pub reason: WaitReason,
    /// What the owner is asked.
    pub question: Option<&'a str>,
    /// After how long nobody is waited for any more.
    pub expires_in_ms: Option<i64>,
}

/// Opens a wait. At most one of a task is open; a second is our mistake and is refused.
#[tracing::instrument(name = "db.waits.open_wait", skip_all, fields(task.id = %task, reason = wait.reason.as_str()))]
pub async fn open_wait(
    conn: &mut Conn,
    task: TaskId,
    wait: &NewWaitRecord<'_>,
) -> Result<(), DbError> {
    sqlx::query!(
        "
        INSERT INTO waits (wait_id, task_id, sequence, reason, owner, question, opened_at, expires_at)
        VALUES ($1, $2, $3, $4, $5, $6, clock_timestamp(), clock_timestamp() + $7::bigint * interval '1 millisecond')
        ",
        wait.id.as_uuid(),
        task.as_uuid(),
        wait.sequence,
        wait.reason.as_str(),
        wait.reason.wait_owner().as_str(),
        wait.question,
        wait.expires_in_ms,
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// A wait that is open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenWait {
    /// Its id.
    pub id: WaitId,
    /// What is waited for.
    pub reason: WaitReason,
}

pub(crate) fn to_open_wait(
    id: Option<uuid::Uuid>,
    name: Option<&str>,
) -> Result<Option<OpenWait>, DbError> {
    let both = id.zip(name);
    both.map(|(id, name)| {
        Ok(OpenWait { id: WaitId::from_uuid(id), reason: parse_wait_reason(name)? })
    })
    .transpose()
}

/// The open wait of a task, locked until the transaction ends.
#[tracing::instrument(name = "db.waits.lock_open_wait", skip_all, fields(task.id = %task))]
pub async fn lock_open_wait(conn: &mut Conn, task: TaskId) -> Result<Option<OpenWait>, DbError> {
    let row = sqlx::query!(
        "
        SELECT wait_id, reason FROM waits
        WHERE task_id = $1 AND resolved_at IS NULL
        FOR UPDATE
        ",
        task.as_uuid(),
    )
    .fetch_optional(conn)
    .await?;
    let (id, name) = row.map(|row| (row.wait_id, row.reason)).unzip();
    to_open_wait(id, name.as_deref())
}

/// A wait for a person, open or ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WaitRecord {
    /// Whose run waits.
    pub task: TaskId,
    /// What is waited for.
    pub reason: WaitReason,
    /// What the person is asked.
    pub question: Option<String>,
    /// Whether nobody has ended it.
    pub open: bool,
    /// When it ends by itself, if it does.
    pub expires_at: Option<OffsetDateTime>,
}

/// One wait.
#[tracing::instrument(name = "db.waits.get_wait", skip_all, fields(wait.id = %wait))]
pub async fn get_wait(conn: &mut Conn, wait: WaitId) -> Result<Option<WaitRecord>, DbError> {
    let row = sqlx::query!(
        r#"SELECT task_id, reason, question, resolved_at IS NULL AS "open!", expires_at FROM waits WHERE wait_id = $1"#,
        wait.as_uuid(),
    )
    .fetch_optional(conn)
    .await?;
    row.map(|row| {
        let (task, reason) = (TaskId::from_uuid(row.task_id), parse_wait_reason(&row.reason)?);
        let (question, open, expires_at) = (row.question, row.open, row.expires_at);
        Ok(WaitRecord { task, reason, question, open, expires_at })
    })
    .transpose()
}

fn parse_wait_reason(name: &str) -> Result<WaitReason, DbError> {
    WaitReason::from_name(name).ok_or(DbError::Corrupt { table: "waits", column: "reason" })
}

/// Ends a wait that is open; `false` when it was ended before.
#[tracing::instrument(name = "db.waits.resolve_wait", skip_all, fields(wait.id = %wait))]
pub async fn resolve_wait(
    conn: &mut Conn,
    wait: WaitId,
    resolution: WaitResolution,
    answer: Option<&str>,
    by: Option<UserId>,
) -> Result<bool, DbError> {
    let done = sqlx::query!(
        "
        UPDATE waits
        SET resolved_at = clock_timestamp(), resolution = $2, answer = $3, resolved_by = $4
        WHERE wait_id = $1 AND resolved_at IS NULL
        ",
        wait.as_uuid(),
        resolution.as_str(),
        answer,
        by.map(UserId::as_uuid),
    )
    .execute(conn)
    .await?;
    Ok(done.rows_affected() == 1)
}

/// How the wait that the last node opened was ended; what people steered since does not hide it.
#[tracing::instrument(name = "db.waits.find_ended_wait", skip_all, fields(task.id = %task))]
pub async fn find_ended_wait(conn: &mut Conn, task: TaskId) -> Result<Option<EndedWait>, DbError> {
    let row = sqlx::query!(
        r#"
        SELECT reason, resolution AS "resolution!", answer,
            CASE WHEN reason = 'human_input' THEN question END AS question
        FROM waits
        WHERE task_id = $1 AND resolved_at IS NOT NULL AND sequence >= (
            SELECT max(sequence) FROM workflow_transitions WHERE task_id = $1 AND fencing_token > 0)
        ORDER BY reason = 'paused', opened_at DESC
        LIMIT 1
        "#,
        task.as_uuid(),
    )
    .fetch_optional(conn)
    .await?;
    row.map(|row| {
        Ok(EndedWait {
            reason: parse_wait_reason(&row.reason)?,
            resolution: WaitResolution::from_name(&row.resolution)
                .ok_or(DbError::Corrupt { table: "waits", column: "resolution" })?,
            question: row.question,
            answer: row.answer,
        })
    })
    .transpose()
}

/// The person who last answered a question of the task, and their words.
#[tracing::instrument(name = "db.waits.last_person_answer", skip_all, fields(task.id = %task))]
pub async fn last_person_answer(
    conn: &mut Conn,
    task: TaskId,
) -> Result<Option<(UserId, String)>, DbError> {
    let row = sqlx::query!(
        r#"
        SELECT resolved_by AS "resolved_by!", coalesce(answer, '') AS "answer!" FROM waits
        WHERE task_id = $1 AND reason = 'human_input' AND resolution = 'answered' AND resolved_by IS NOT NULL
        ORDER BY opened_at DESC
        LIMIT 1
        "#,
        task.as_uuid(),
    );
    let row = row.fetch_optional(conn).await?;
    Ok(row.map(|row| (UserId::from_uuid(row.resolved_by), row.answer)))
}

/// What a person last answered, since the last job of the task was queued.
#[tracing::instrument(name = "db.waits.last_wait_answer", skip_all, fields(task.id = %task))]
pub async fn last_wait_answer(conn: &mut Conn, task: TaskId) -> Result<Option<String>, DbError> {
    let answer = sqlx::query_scalar!(
        r#"
        SELECT answer AS "answer!" FROM waits
        WHERE task_id = $1 AND reason = 'human_input' AND resolution = 'answered' AND answer IS NOT NULL
            AND resolved_by IS NOT NULL
            AND opened_at > coalesce((SELECT max(queued_at) FROM jobs WHERE task_id = $1), '-infinity')
        ORDER BY opened_at DESC
        LIMIT 1
        "#,
        task.as_uuid(),
    );
    Ok(answer.fetch_optional(conn).await?)
}

/// Open waits whose time is over, oldest first.
#[tracing::instrument(name = "db.waits.list_expired_waits", skip_all)]
pub async fn list_expired_waits(
    conn: &mut Conn,
    most: i64,
) -> Result<Vec<(WaitId, TaskId)>, DbError> {
    let rows = sqlx::query!(
        "
        SELECT wait_id, task_id FROM waits
        WHERE resolved_at IS NULL AND expires_at < clock_timestamp()
        ORDER BY expires_at
        LIMIT $1
        ",
        most,
    )
    .fetch_all(conn)
    .await?;
    let ids = rows.into_iter();
    Ok(ids.map(|row| (WaitId::from_uuid(row.wait_id), TaskId::from_uuid(row.task_id))).collect())
}
