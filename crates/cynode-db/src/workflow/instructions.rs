//! Instructions of people to running tasks.

use cynode_core::{
    ids::{InstructionId, JobId, TaskId, UserId},
    workflow::instructions::InstructionKind,
};

use crate::{Conn, DbError};

/// An instruction that waits to be taken up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Instruction {
    /// Its id.
    pub id: InstructionId,
    /// What is to be done.
    pub kind: InstructionKind,
    /// What was said.
    pub text: Option<String>,
    /// Who said it.
    pub by: UserId,
    /// The job whose agent is meant; none: everybody who works on the task.
    pub job: Option<JobId>,
}

/// What kind of instruction was given under this id, if one was.
#[tracing::instrument(name = "db.instructions.find_instruction_kind", skip_all)]
pub async fn find_instruction_kind(
    conn: &mut Conn,
    task: TaskId,
    id: InstructionId,
) -> Result<Option<InstructionKind>, DbError> {
    let found = sqlx::query_scalar!(
        "SELECT kind FROM task_instructions WHERE instruction_id = $2 AND task_id = $1",
        task.as_uuid(),
        id.as_uuid(),
    );
    let found = found.fetch_optional(conn).await?;
    found.map(|kind| parse_instruction_kind(&kind)).transpose()
}

fn parse_instruction_kind(kind: &str) -> Result<InstructionKind, DbError> {
    InstructionKind::from_name(kind)
        .ok_or(DbError::Corrupt { table: "task_instructions", column: "kind" })
}

/// Stores an instruction and wakes the run.
#[tracing::instrument(name = "db.instructions.insert_instruction", skip_all, fields(task.id = %task, kind = given.kind.as_str()))]
pub async fn insert_instruction(
    conn: &mut Conn,
    task: TaskId,
    given: &Instruction,
) -> Result<(), DbError> {
    sqlx::query!(
        "
        WITH told AS (
            UPDATE workflow_runs
            SET wake_count = wake_count + 1, due_at = clock_timestamp(), pending_instructions = pending_instructions + 1
            WHERE task_id = $2 AND ended_at IS NULL
            RETURNING task_id
        )
        INSERT INTO task_instructions (instruction_id, task_id, kind, text, issued_by, issued_at, job_id)
        SELECT $1, task_id, $3, $4, $5, clock_timestamp(), $6
        FROM told
        ",
        given.id.as_uuid(),
        task.as_uuid(),
        given.kind.as_str(),
        given.text,
        given.by.as_uuid(),
        given.job.map(JobId::as_uuid),
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// Stores an instruction that is only for whoever works on the task's jobs: the run itself goes on as it does.
#[tracing::instrument(name = "db.instructions.insert_job_instruction", skip_all, fields(task.id = %task, kind = given.kind.as_str()))]
pub async fn insert_job_instruction(
    conn: &mut Conn,
    task: TaskId,
    given: &Instruction,
) -> Result<(), DbError> {
    sqlx::query!(
        "
        INSERT INTO task_instructions (instruction_id, task_id, kind, text, issued_by, issued_at, applied_at, sequence, job_id)
        SELECT $1, $2, $3, $4, $5, clock_timestamp(), clock_timestamp(),
            coalesce((SELECT sequence FROM workflow_checkpoints WHERE task_id = $2), 0), $6
        ",
        given.id.as_uuid(),
        task.as_uuid(),
        given.kind.as_str(),
        given.text,
        given.by.as_uuid(),
        given.job.map(JobId::as_uuid),
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// Takes up what waits, oldest first; `sequence` is the checkpoint after which it was taken up.
#[tracing::instrument(name = "db.instructions.take_pending_instructions", skip_all, fields(task.id = %task))]
pub async fn take_pending_instructions(
    conn: &mut Conn,
    task: TaskId,
    sequence: i64,
) -> Result<Vec<Instruction>, DbError> {
    sqlx::query!(
        "UPDATE workflow_runs SET pending_instructions = 0 WHERE task_id = $1",
        task.as_uuid()
    )
    .execute(&mut *conn)
    .await?;
    let mut rows = sqlx::query!(
        "
        UPDATE task_instructions
        SET applied_at = clock_timestamp(), sequence = $2
        WHERE task_id = $1 AND applied_at IS NULL
        RETURNING instruction_id, kind, text, issued_by, number, job_id
        ",
        task.as_uuid(),
        sequence,
    )
    .fetch_all(conn)
    .await?;
    rows.sort_by_key(|row| row.number);
    rows.into_iter()
        .map(|row| {
            Ok(Instruction {
                id: InstructionId::from_uuid(row.instruction_id),
                kind: parse_instruction_kind(&row.kind)?,
                text: row.text,
                by: UserId::from_uuid(row.issued_by),
                job: row.job_id.map(JobId::from_uuid),
            })
        })
        .collect()
}
