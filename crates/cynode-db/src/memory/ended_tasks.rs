//! Ended tasks whose summary and findings are not in memory yet.

use cynode_core::{
    ids::{ProjectId, TaskId, UserId},
    workflow::findings::{ReviewFeedback, VerificationFinding},
};
use serde_json::Value;
use time::OffsetDateTime;

use crate::{Conn, DbError};

/// What a task has left.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndedTask {
    /// The task.
    pub id: TaskId,
    /// Its project.
    pub project: ProjectId,
    /// Who asked for it.
    pub created_by: UserId,
    /// Its name.
    pub name: String,
    /// What was to be done.
    pub description: String,
    /// State that it ended in.
    pub state: String,
    /// Why it failed.
    pub failure: Option<String>,
    /// Summary of its run.
    pub summary: Option<String>,
    /// Findings of its verifications and reviews.
    pub findings: Vec<VerificationFinding>,
}

/// Lists tasks that have ended and are not recorded, the oldest end first.
#[tracing::instrument(name = "db.memory.list_unrecorded_tasks", skip_all)]
pub async fn list_unrecorded_tasks(conn: &mut Conn, limit: i64) -> Result<Vec<EndedTask>, DbError> {
    let rows = sqlx::query!(
        r#"
        SELECT t.task_id, t.project_id, t.created_by, t.name, t.description, t.state, t.failure,
            (SELECT c.state ->> 'summary' FROM workflow_checkpoints c WHERE c.task_id = t.task_id) AS summary,
            ARRAY(
                SELECT jsonb_array_elements(u.findings) FROM work_units u WHERE u.task_id = t.task_id
                UNION ALL
                SELECT jsonb_array_elements(v.findings) FROM verifications v WHERE v.task_id = t.task_id
            ) AS "findings!",
            ARRAY(
                SELECT r.details FROM agent_reports r
                WHERE r.task_id = t.task_id AND r.kind IN ('review_approved', 'review_changes_requested')
                ORDER BY r.report_id LIMIT 50
            ) AS "reviews!"
        FROM tasks t WHERE t.ended_at IS NOT NULL AND t.remembered_at IS NULL
        ORDER BY t.ended_at LIMIT $1
        "#,
        limit,
    )
    .fetch_all(conn)
    .await?;
    let tasks = rows.into_iter().map(|row| EndedTask {
        id: TaskId::from_uuid(row.task_id),
        project: ProjectId::from_uuid(row.project_id),
        created_by: UserId::from_uuid(row.created_by),
        name: row.name,
        description: row.description,
        state: row.state,
        failure: row.failure,
        summary: row.summary,
        findings: parse_findings(row.findings, row.reviews),
    });
    Ok(tasks.collect())
}

/// Reads findings in their stored forms. A claim of an agent that has no such form is passed over.
fn parse_findings(findings: Vec<Value>, reviews: Vec<Value>) -> Vec<VerificationFinding> {
    let own = findings.into_iter().filter_map(|value| serde_json::from_value(value).ok());
    let of_reviews = reviews
        .into_iter()
        .filter_map(|value| serde_json::from_value::<ReviewFeedback>(value).ok())
        .flat_map(|review| review.to_findings());
    own.chain(of_reviews).collect()
}

/// Marks a task as recorded. Of two processes one gets `true`.
#[tracing::instrument(name = "db.memory.mark_task_recorded", skip_all)]
pub async fn mark_task_recorded(
    conn: &mut Conn,
    task: TaskId,
    now: OffsetDateTime,
) -> Result<bool, DbError> {
    let done = sqlx::query!(
        "UPDATE tasks SET remembered_at = $2 WHERE task_id = $1 AND remembered_at IS NULL",
        task.as_uuid(),
        now,
    );
    Ok(done.execute(conn).await?.rows_affected() > 0)
}
