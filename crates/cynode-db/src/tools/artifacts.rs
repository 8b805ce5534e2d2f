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

/// How many bytes the artifacts and the blobs of jobs of a project have, without those of `digest`. Equal bytes count once.
#[tracing::instrument(name = "db.artifacts.sum_project_blobs", skip_all)]
pub async fn sum_project_blobs(
    conn: &mut Conn,
    project: ProjectId,
    digest: &[u8; 32],
) -> Result<i64, DbError> {
    let bytes = sqlx::query_scalar!(
        r#"
        SELECT least(coalesce(sum(b.size), 0), 9223372036854775807)::bigint AS "bytes!"
        FROM (
            SELECT a.digest, max(a.size) AS size
            FROM (
                SELECT digest, size FROM artifacts WHERE project_id = $1
                UNION ALL
                SELECT digest, size FROM job_blobs WHERE project_id = $1
            ) a
            WHERE a.digest <> $2
            GROUP BY a.digest
        ) b
        "#,
        project.as_uuid(),
        digest as &[u8],
    );
    Ok(bytes.fetch_one(conn).await?)
}

/// Notes a blob that a node stores for a job, before its bytes are there. It does not expire any more if it was about to.
#[tracing::instrument(name = "db.artifacts.insert_job_blob", skip_all, fields(job.id = %job))]
pub async fn insert_job_blob(
    conn: &mut Conn,
    project: ProjectId,
    job: JobId,
    digest: &[u8; 32],
    size: i64,
    now: OffsetDateTime,
) -> Result<(), DbError> {
    sqlx::query!(
        "
        INSERT INTO job_blobs (job_id, project_id, digest, size, stored_at) VALUES ($1, $2, $3, $4, $5)
        ON CONFLICT (job_id, digest) DO NOTHING
        ",
        job.as_uuid(),
        project.as_uuid(),
        digest as &[u8],
        size,
        now,
    )
    .execute(&mut *conn)
    .await?;
    revive_blob(conn, digest).await
}

/// Ends the expiry of a blob that is about to be used again. It waits for a removal that is under way.
#[tracing::instrument(name = "db.artifacts.revive_blob", skip_all)]
async fn revive_blob(conn: &mut Conn, digest: &[u8; 32]) -> Result<(), DbError> {
    sqlx::query!("DELETE FROM expired_blobs WHERE digest = $1", digest as &[u8])
        .execute(conn)
        .await?;
    Ok(())
}

/// Delays the removal of a blob that is about to be stored again. It waits for a removal that is under way.
#[tracing::instrument(name = "db.artifacts.delay_blob_removal", skip_all)]
pub async fn delay_blob_removal(conn: &mut Conn, digest: &[u8; 32]) -> Result<(), DbError> {
    sqlx::query!(
        "UPDATE expired_blobs SET expired_at = clock_timestamp() WHERE digest = $1",
        digest as &[u8],
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// A task whose files are past their retention.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExpiredTask {
    /// The task.
    pub task: TaskId,
    /// Its project.
    pub project: ProjectId,
    /// Its jobs.
    pub jobs: Vec<JobId>,
}

/// The projects with tasks that ended before then and still have files, in random order.
#[tracing::instrument(name = "db.artifacts.list_expired_projects", skip_all)]
pub async fn list_expired_projects(
    conn: &mut Conn,
    before: OffsetDateTime,
) -> Result<Vec<ProjectId>, DbError> {
    let rows = sqlx::query_scalar!(
        "
        SELECT p.project_id FROM projects p
        WHERE EXISTS (
            SELECT FROM tasks t WHERE t.project_id = p.project_id AND t.ended_at < $1 AND t.files_expired_at IS NULL)
        ORDER BY random()
        ",
        before,
    )
    .fetch_all(conn)
    .await?;
    Ok(rows.into_iter().map(ProjectId::from_uuid).collect())
}

/// Tasks of a project that ended before then and still have files, oldest first. A task whose pull request is open, whose delivery is under way
/// or that another task continues is not among them.
#[tracing::instrument(name = "db.artifacts.list_expired_tasks", skip_all)]
pub async fn list_expired_tasks(
    conn: &mut Conn,
    project: ProjectId,
    before: OffsetDateTime,
    most: i64,
) -> Result<Vec<ExpiredTask>, DbError> {
    let rows = sqlx::query!(
        r#"
        SELECT t.task_id, t.project_id, ARRAY(SELECT j.job_id FROM jobs j WHERE j.task_id = t.task_id) AS "jobs!"
        FROM tasks t
        WHERE t.ended_at < $1 AND t.files_expired_at IS NULL
            AND NOT EXISTS (
                SELECT FROM pull_requests p WHERE p.task_id = t.task_id AND p.state IN ('opening', 'open', 'failed'))
            AND NOT EXISTS (
                SELECT FROM deliveries d WHERE d.task_id = t.task_id AND d.delivered_at IS NULL AND d.pull_request_id IS NOT NULL)
            AND NOT EXISTS (
                SELECT FROM task_continuations c JOIN tasks later ON later.task_id = c.task_id
                WHERE c.earlier_task_id = t.task_id AND later.files_expired_at IS NULL)
            AND t.project_id = $3
        ORDER BY t.ended_at
        LIMIT $2
        "#,
        before,
        most,
        project.as_uuid(),
    )
    .fetch_all(conn)
    .await?;
    Ok(rows
        .into_iter()
        .map(|row| ExpiredTask {
            task: TaskId::from_uuid(row.task_id),
            project: ProjectId::from_uuid(row.project_id),
            jobs: row.jobs.into_iter().map(JobId::from_uuid).collect(),
        })
        .collect())
}

/// Removes the artifacts and blobs of a task whose commits are gone, and notes their bytes for [`begin_blob_removal`].
#[tracing::instrument(name = "db.artifacts.expire_task_blobs", skip_all, fields(task.id = %task))]
pub async fn expire_task_blobs(
    conn: &mut Conn,
    task: TaskId,
    now: OffsetDateTime,
) -> Result<(), DbError> {
    sqlx::query!(
        "
        WITH kept AS (
            DELETE FROM artifacts WHERE task_id = $1 RETURNING digest
        ), stored AS (
            DELETE FROM job_blobs b USING jobs j WHERE j.task_id = $1 AND b.job_id = j.job_id RETURNING b.digest
        )
        INSERT INTO expired_blobs (digest, expired_at)
        SELECT digest, $2::timestamptz FROM (SELECT digest FROM kept UNION SELECT digest FROM stored) gone
        ON CONFLICT (digest) DO UPDATE SET expired_at = excluded.expired_at
        ",
        task.as_uuid(),
        now,
    )
    .execute(&mut *conn)
    .await?;
    sqlx::query!("UPDATE tasks SET files_expired_at = $2 WHERE task_id = $1", task.as_uuid(), now)
        .execute(conn)
        .await?;
    Ok(())
}

/// The digests of blobs that expired before then.
#[tracing::instrument(name = "db.artifacts.list_expired_blobs", skip_all)]
pub async fn list_expired_blobs(
    conn: &mut Conn,
    before: OffsetDateTime,
    most: i64,
) -> Result<Vec<[u8; 32]>, DbError> {
    let rows = sqlx::query_scalar!(
        "SELECT digest FROM expired_blobs WHERE expired_at < $1 ORDER BY expired_at LIMIT $2",
        before,
        most,
    )
    .fetch_all(conn)
    .await?;
    rows.into_iter()
        .map(|digest| digest.try_into().map_err(corrupt_column("expired_blobs", "digest")))
        .collect()
}

/// Ends the expiry of a blob. Gives whether its bytes are to be removed before the transaction is committed: nothing refers to them,
/// and whoever stores the same bytes waits.
#[tracing::instrument(name = "db.artifacts.begin_blob_removal", skip_all)]
pub async fn begin_blob_removal(conn: &mut Conn, digest: &[u8; 32]) -> Result<bool, DbError> {
    let removed = sqlx::query!("DELETE FROM expired_blobs WHERE digest = $1", digest as &[u8])
        .execute(&mut *conn)
        .await?
        .rows_affected();
    let referred = sqlx::query_scalar!(
        r#"
        SELECT EXISTS (SELECT FROM artifacts WHERE digest = $1)
            OR EXISTS (SELECT FROM job_blobs WHERE digest = $1) AS "referred!"
        "#,
        digest as &[u8],
    )
    .fetch_one(conn)
    .await?;
    Ok(removed > 0 && !referred)
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

/// The size of these bytes, if they were uploaded for the job, or are an artifact of its task already.
#[tracing::instrument(name = "db.artifacts.find_job_blob", skip_all)]
pub async fn find_job_blob(
    conn: &mut Conn,
    job: JobId,
    task: TaskId,
    digest: &[u8; 32],
) -> Result<Option<i64>, DbError> {
    let found = sqlx::query_scalar!(
        r#"
        SELECT size AS "size!" FROM job_blobs WHERE job_id = $1 AND digest = $3
        UNION ALL
        SELECT size FROM artifacts WHERE task_id = $2 AND digest = $3
        LIMIT 1
        "#,
        job.as_uuid(),
        task.as_uuid(),
        digest as &[u8],
    );
    Ok(found.fetch_optional(conn).await?)
}
