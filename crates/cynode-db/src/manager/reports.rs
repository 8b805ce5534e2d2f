//! Heartbeats, checkpoints, reports and verifications of agents.

use cynode_core::ids::{AgentTokenId, JobId, ProjectId, TaskId, UserId};
use serde_json::Value;
use time::OffsetDateTime;
use uuid::Uuid;

use crate::{Conn, DbError};

/// Who says something about which task.
#[derive(Clone, Copy, Debug)]
pub struct ReportingAgent {
    /// The token.
    pub agent: AgentTokenId,
    /// The task.
    pub task: TaskId,
    /// The job.
    pub job: Option<JobId>,
}

/// Notes that an agent is alive.
#[tracing::instrument(name = "db.agents.record_heartbeat", skip_all)]
pub async fn record_heartbeat(
    conn: &mut Conn,
    who: ReportingAgent,
    note: Option<&str>,
    now: OffsetDateTime,
) -> Result<(), DbError> {
    sqlx::query!(
        "
        INSERT INTO agent_states AS s (agent_token_id, task_id, job_id, heartbeat_at, note) VALUES ($1, $2, $3, $5, $4)
        ON CONFLICT (agent_token_id) DO UPDATE SET heartbeat_at = $5, note = coalesce($4, s.note)
        ",
        who.agent.as_uuid(),
        who.task.as_uuid(),
        who.job.map(JobId::as_uuid),
        note,
        now,
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// Keeps what an agent wants to find again after a restart.
#[tracing::instrument(name = "db.agents.save_agent_checkpoint", skip_all)]
pub async fn save_agent_checkpoint(
    conn: &mut Conn,
    who: ReportingAgent,
    state: &Value,
    now: OffsetDateTime,
) -> Result<(), DbError> {
    sqlx::query!(
        "
        INSERT INTO agent_states (agent_token_id, task_id, job_id, heartbeat_at, checkpoint, checkpoint_at)
        VALUES ($1, $2, $3, $5, $4, $5)
        ON CONFLICT (agent_token_id) DO UPDATE SET heartbeat_at = $5, checkpoint = $4, checkpoint_at = $5
        ",
        who.agent.as_uuid(),
        who.task.as_uuid(),
        who.job.map(JobId::as_uuid),
        state,
        now,
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// Notes that an agent says it is done.
#[tracing::instrument(name = "db.agents.record_completion", skip_all)]
pub async fn record_completion(
    conn: &mut Conn,
    who: ReportingAgent,
    now: OffsetDateTime,
) -> Result<(), DbError> {
    sqlx::query!(
        "
        INSERT INTO agent_states (agent_token_id, task_id, job_id, heartbeat_at, completed_at) VALUES ($1, $2, $3, $4, $4)
        ON CONFLICT (agent_token_id) DO UPDATE SET heartbeat_at = $4, completed_at = coalesce(agent_states.completed_at, $4)
        ",
        who.agent.as_uuid(),
        who.task.as_uuid(),
        who.job.map(JobId::as_uuid),
        now,
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// The checkpoint that was kept last for this task and job, by whichever agent worked on it; else the last one of an earlier attempt of
/// the same unit.
#[tracing::instrument(name = "db.agents.last_checkpoint", skip_all)]
pub async fn last_checkpoint(
    conn: &mut Conn,
    task: TaskId,
    job: Option<JobId>,
) -> Result<Option<Value>, DbError> {
    let found = sqlx::query_scalar!(
        "
        SELECT s.checkpoint FROM agent_states s LEFT JOIN jobs j ON j.job_id = s.job_id
        WHERE s.task_id = $1 AND s.checkpoint IS NOT NULL
            AND (s.job_id IS NOT DISTINCT FROM $2 OR j.unit_id = (SELECT own.unit_id FROM jobs own WHERE own.job_id = $2))
        ORDER BY s.job_id IS NOT DISTINCT FROM $2 DESC, s.checkpoint_at DESC LIMIT 1
        ",
        task.as_uuid(),
        job.map(JobId::as_uuid),
    );
    Ok(found.fetch_optional(conn).await?.flatten())
}

/// What an agent reports.
#[derive(Clone, Debug)]
pub struct NewAgentReport {
    /// Its id.
    pub id: Uuid,
    /// Who reports about what.
    pub who: ReportingAgent,
    /// The role of the agent.
    pub role: &'static str,
    /// The project.
    pub project: ProjectId,
    /// What kind of report.
    pub kind: String,
    /// In a few sentences.
    pub summary: String,
    /// And in data.
    pub details: Value,
}

/// Keeps a report. Sent again with the same id, nothing changes.
#[tracing::instrument(name = "db.agents.insert_agent_report", skip_all)]
pub async fn insert_agent_report(
    conn: &mut Conn,
    report: &NewAgentReport,
    now: OffsetDateTime,
) -> Result<(), DbError> {
    sqlx::query!(
        "
        INSERT INTO agent_reports (report_id, agent_token_id, agent_role, project_id, task_id, job_id, kind, summary,
            details, reported_at)
        VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10) ON CONFLICT DO NOTHING
        ",
        report.id,
        report.who.agent.as_uuid(),
        report.role,
        report.project.as_uuid(),
        report.who.task.as_uuid(),
        report.who.job.map(JobId::as_uuid),
        report.kind,
        report.summary,
        report.details,
        now,
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// A judgement of a piece of work.
#[derive(Clone, Debug)]
pub struct NewVerification {
    /// Its id.
    pub id: Uuid,
    /// Who judged.
    pub agent: AgentTokenId,
    /// In which role.
    pub role: &'static str,
    /// The task.
    pub task: TaskId,
    /// The unit of the plan, if one is meant.
    pub unit: Option<String>,
    /// `pass` or `fail`.
    pub status: &'static str,
    /// What was found.
    pub findings: Value,
}

/// Keeps a judgement.
#[tracing::instrument(name = "db.agents.insert_verification", skip_all)]
pub async fn insert_verification(
    conn: &mut Conn,
    verification: &NewVerification,
    now: OffsetDateTime,
) -> Result<bool, DbError> {
    let done = sqlx::query!(
        "
        INSERT INTO verifications (verification_id, task_id, unit_key, status, findings, recorded_by, agent_role, recorded_at)
        VALUES ($1, $2, $3, $4, $5, $6, $7, $8) ON CONFLICT DO NOTHING
        ",
        verification.id,
        verification.task.as_uuid(),
        verification.unit,
        verification.status,
        verification.findings,
        verification.agent.as_uuid(),
        verification.role,
        now,
    )
    .execute(conn)
    .await?;
    Ok(done.rows_affected() > 0)
}

/// The images that sandboxes may be made from.
#[tracing::instrument(name = "db.agents.list_allowed_images", skip_all)]
pub async fn list_allowed_images(conn: &mut Conn) -> Result<Vec<String>, DbError> {
    let found = sqlx::query_scalar!("SELECT image FROM allowed_images ORDER BY image");
    Ok(found.fetch_all(conn).await?)
}

/// Adds an image that sandboxes may be made from.
#[tracing::instrument(name = "db.agents.add_allowed_image", skip_all)]
pub async fn add_allowed_image(
    conn: &mut Conn,
    image: &str,
    by: UserId,
    now: OffsetDateTime,
) -> Result<(), DbError> {
    sqlx::query!(
        "INSERT INTO allowed_images (image, added_by, added_at) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING",
        image,
        by.as_uuid(),
        now,
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// Removes an image.
#[tracing::instrument(name = "db.agents.remove_allowed_image", skip_all)]
pub async fn remove_allowed_image(conn: &mut Conn, image: &str) -> Result<bool, DbError> {
    let done = sqlx::query!("DELETE FROM allowed_images WHERE image = $1", image);
    Ok(done.execute(conn).await?.rows_affected() > 0)
}
