//! Metadata of artifacts; their bytes are in the object store.

use cynode_core::ids::{AgentTokenId, ArtifactId, JobId, ProjectId, TaskId};
use time::OffsetDateTime;
use uuid::Uuid;

use crate::{Conn, DbError, platform::error::corrupt_column};

/// A stored object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Artifact {
    /// Its id.
    pub id: ArtifactId,
    /// The project.
    pub project: ProjectId,
    /// The task.
    pub task: Option<TaskId>,
    /// The job.
    pub job: Option<JobId>,
    /// What it is called.
    pub name: String,
    /// What kind of bytes.
    pub media_type: String,
    /// The SHA-256 of the bytes, under which they are stored.
    pub digest: [u8; 32],
    /// How many.
    pub size: i64,
    /// Who stored it.
    pub created_by: AgentTokenId,
    /// When.
    pub created_at: OffsetDateTime,
}

struct ArtifactRow {
    artifact_id: Uuid,
    project_id: Uuid,
    task_id: Option<Uuid>,
    job_id: Option<Uuid>,
    name: String,
    media_type: String,
    digest: Vec<u8>,
    size: i64,
    created_by: Uuid,
    created_at: OffsetDateTime,
}

impl TryFrom<ArtifactRow> for Artifact {
    type Error = DbError;

    fn try_from(row: ArtifactRow) -> Result<Self, DbError> {
        Ok(Self {
            id: ArtifactId::from_uuid(row.artifact_id),
            project: ProjectId::from_uuid(row.project_id),
            task: row.task_id.map(TaskId::from_uuid),
            job: row.job_id.map(JobId::from_uuid),
            name: row.name,
            media_type: row.media_type,
            digest: row.digest.try_into().map_err(corrupt_column("artifacts", "digest"))?,
            size: row.size,
            created_by: AgentTokenId::from_uuid(row.created_by),
            created_at: row.created_at,
        })
    }
}

/// Notes a stored object. The same bytes under the same name of the same task are there once: gives the id they have.
#[tracing::instrument(name = "db.artifacts.insert_artifact", skip_all)]
pub async fn insert_artifact(conn: &mut Conn, artifact: &Artifact) -> Result<ArtifactId, DbError> {
    let id = sqlx::query_scalar!(
        "
        INSERT INTO artifacts (artifact_id, project_id, task_id, job_id, name, media_type, digest, size, created_by, created_at)
        VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)
        ON CONFLICT ON CONSTRAINT artifacts_unique DO UPDATE SET size = artifacts.size
        RETURNING artifact_id
        ",
        artifact.id.as_uuid(),
        artifact.project.as_uuid(),
        artifact.task.map(TaskId::as_uuid),
        artifact.job.map(JobId::as_uuid),
        artifact.name,
        artifact.media_type,
        &artifact.digest as &[u8],
        artifact.size,
        artifact.created_by.as_uuid(),
        artifact.created_at,
    )
    .fetch_one(conn)
    .await?;
    Ok(ArtifactId::from_uuid(id))
}

/// What there is of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArtifactTotals {
    /// How many objects.
    pub objects: i64,
    /// How many bytes those have that are no larger than was asked for.
    pub bytes: i64,
    /// Whether one is there with that name and those bytes.
    pub is_there: bool,
}

/// What there is of a task, and whether `name` with the bytes of `digest` is. Bytes are counted of objects that have `most`
/// of them or fewer.
#[tracing::instrument(name = "db.artifacts.artifact_totals_of_task", skip_all)]
pub async fn artifact_totals_of_task(
    conn: &mut Conn,
    task: TaskId,
    name: &str,
    digest: &[u8; 32],
    most: i64,
) -> Result<ArtifactTotals, DbError> {
    let stored = sqlx::query_as!(
        ArtifactTotals,
        r#"
        SELECT count(*) AS "objects!",
            least(coalesce(sum(size) FILTER (WHERE size <= $4), 0), 9223372036854775807)::bigint AS "bytes!",
            coalesce(bool_or(name = $2 AND digest = $3), false) AS "is_there!"
        FROM artifacts WHERE task_id = $1
        "#,
        task.as_uuid(),
        name,
        digest as &[u8],
        most,
    )
    .fetch_one(conn)
    .await?;
    Ok(stored)
}

/// One object.
#[tracing::instrument(name = "db.artifacts.get_artifact", skip_all)]
pub async fn get_artifact(conn: &mut Conn, id: ArtifactId) -> Result<Option<Artifact>, DbError> {
    sqlx::query_as!(
        ArtifactRow,
        "
        SELECT artifact_id, project_id, task_id, job_id, name, media_type, digest, size, created_by, created_at
        FROM artifacts WHERE artifact_id = $1
        ",
        id.as_uuid(),
    )
    .fetch_optional(conn)
    .await?
    .map(Artifact::try_from)
    .transpose()
}

/// The objects of a task, oldest first.
#[tracing::instrument(name = "db.artifacts.list_task_artifacts", skip_all)]
pub async fn list_task_artifacts(conn: &mut Conn, task: TaskId) -> Result<Vec<Artifact>, DbError> {
    sqlx::query_as!(
        ArtifactRow,
        "
        SELECT artifact_id, project_id, task_id, job_id, name, media_type, digest, size, created_by, created_at
        FROM artifacts WHERE task_id = $1 ORDER BY artifact_id LIMIT 1000
        ",
        task.as_uuid(),
    )
    .fetch_all(conn)
    .await?
    .into_iter()
    .map(Artifact::try_from)
    .collect()
}

/// Notes that the node of a job uploaded these bytes for it.
#[tracing::instrument(name = "db.artifacts.record_job_blob", skip_all)]
pub async fn record_job_blob(
    conn: &mut Conn,
    job: JobId,
    digest: &[u8; 32],
    now: OffsetDateTime,
) -> Result<(), DbError> {
    sqlx::query!(
        "
        INSERT INTO job_blobs (job_id, digest, uploaded_at) VALUES ($1, $2, $3)
        ON CONFLICT (job_id, digest) DO NOTHING
        ",
        job.as_uuid(),
        digest as &[u8],
        now,
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// Whether these bytes were uploaded for the job, or are an artifact of its task already.
#[tracing::instrument(name = "db.artifacts.has_job_blob", skip_all)]
pub async fn has_job_blob(
    conn: &mut Conn,
    job: JobId,
    task: TaskId,
    digest: &[u8; 32],
) -> Result<bool, DbError> {
    let found = sqlx::query_scalar!(
        r#"
        SELECT EXISTS (SELECT FROM job_blobs WHERE job_id = $1 AND digest = $3)
            OR EXISTS (SELECT FROM artifacts WHERE task_id = $2 AND digest = $3) AS "found!"
        "#,
        job.as_uuid(),
        task.as_uuid(),
        digest as &[u8],
    );
    Ok(found.fetch_one(conn).await?)
}

/// Deletes the notes about the uploads of a job that has ended.
#[tracing::instrument(name = "db.artifacts.delete_job_blobs", skip_all)]
pub async fn delete_job_blobs(conn: &mut Conn, job: JobId) -> Result<(), DbError> {
    sqlx::query!("DELETE FROM job_blobs WHERE job_id = $1", job.as_uuid()).execute(conn).await?;
    Ok(())
}
