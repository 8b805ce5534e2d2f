//! Environments of projects, the secrets of their set-up, and the packages that jobs fetched.

use cynode_core::{
    environments::{
        EnvironmentOrigin, EnvironmentRef, EnvironmentSpec, EnvironmentState, PackageFetch,
        PackageSource, ProposalReason,
    },
    ids::{JobId, ProjectId, TaskId, UserId},
};
use serde_json::Value;
use time::OffsetDateTime;
use uuid::Uuid;

use crate::{Conn, DbError, platform::error::corrupt_column};

/// Table of the versions, as errors name it.
const TABLE: &str = "project_environments";

/// A version of an environment, as it is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EnvironmentRecord {
    /// Version, counted per project from 1.
    pub version: u32,
    /// SHA-256 of the canonical specification, in hexadecimal.
    pub digest: String,
    /// The environment itself.
    pub spec: EnvironmentSpec,
    /// Where it comes from.
    pub origin: EnvironmentOrigin,
    /// Commit that it was read from.
    pub source_commit: Option<String>,
    /// State of the version.
    pub state: EnvironmentState,
    /// Reasons for its lines.
    pub reasons: Vec<ProposalReason>,
    /// What a person should look at.
    pub warnings: Vec<String>,
    /// User who proposed it; none for the installation itself.
    pub proposed_by: Option<UserId>,
    /// Time of the proposal.
    pub proposed_at: OffsetDateTime,
    /// User who accepted or rejected it.
    pub decided_by: Option<UserId>,
    /// Time of the decision.
    pub decided_at: Option<OffsetDateTime>,
    /// Note of the decision.
    pub decision_note: Option<String>,
}

impl EnvironmentRecord {
    /// Returns the reference by which jobs name it.
    pub fn reference(&self) -> EnvironmentRef {
        EnvironmentRef { version: self.version, digest: self.digest.clone() }
    }

    /// Returns whether a person has accepted it, now or before a later version superseded it.
    pub const fn was_accepted(&self) -> bool {
        match self.state {
            EnvironmentState::Accepted => true,
            EnvironmentState::Superseded => self.decided_by.is_some(),
            EnvironmentState::Proposed | EnvironmentState::Rejected => false,
        }
    }
}

struct EnvironmentRow {
    version: i32,
    digest: String,
    spec: Value,
    origin: String,
    source_commit: Option<String>,
    state: String,
    reasons: Value,
    warnings: Value,
    proposed_by: Option<Uuid>,
    proposed_at: OffsetDateTime,
    decided_by: Option<Uuid>,
    decided_at: Option<OffsetDateTime>,
    decision_note: Option<String>,
}

impl TryFrom<EnvironmentRow> for EnvironmentRecord {
    type Error = DbError;

    fn try_from(row: EnvironmentRow) -> Result<Self, DbError> {
        let corrupt = |column| DbError::Corrupt { table: TABLE, column };
        Ok(Self {
            version: u32::try_from(row.version).map_err(corrupt_column(TABLE, "version"))?,
            digest: row.digest,
            spec: serde_json::from_value(row.spec).map_err(corrupt_column(TABLE, "spec"))?,
            origin: EnvironmentOrigin::from_name(&row.origin).ok_or_else(|| corrupt("origin"))?,
            source_commit: row.source_commit,
            state: EnvironmentState::from_name(&row.state).ok_or_else(|| corrupt("state"))?,
            reasons: serde_json::from_value(row.reasons)
                .map_err(corrupt_column(TABLE, "reasons"))?,
            warnings: serde_json::from_value(row.warnings)
                .map_err(corrupt_column(TABLE, "warnings"))?,
            proposed_by: row.proposed_by.map(UserId::from_uuid),
            proposed_at: row.proposed_at,
            decided_by: row.decided_by.map(UserId::from_uuid),
            decided_at: row.decided_at,
            decision_note: row.decision_note,
        })
    }
}

/// A version that is about to be stored as a proposal.
#[derive(Clone, Copy, Debug)]
pub struct NewEnvironment<'a> {
    /// SHA-256 of the canonical specification, in hexadecimal.
    pub digest: &'a str,
    /// The environment itself.
    pub spec: &'a EnvironmentSpec,
    /// Where it comes from.
    pub origin: EnvironmentOrigin,
    /// Commit that it was read from.
    pub source_commit: Option<&'a str>,
    /// Reasons for its lines.
    pub reasons: &'a [ProposalReason],
    /// What a person should look at.
    pub warnings: &'a [String],
    /// User who proposed it; none for the installation itself.
    pub proposed_by: Option<UserId>,
}

/// Locks the environments of a project until the transaction ends, so that versions are numbered and decided one after the other.
#[tracing::instrument(name = "db.environments.lock_environments", skip_all)]
pub async fn lock_environments(conn: &mut Conn, project: ProjectId) -> Result<(), DbError> {
    sqlx::query!(
        "SELECT pg_advisory_xact_lock(hashtextextended('environment:' || $1::text, 8))",
        project.as_uuid().to_string(),
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// Stores a proposal as the next version, in a transaction that [`lock_environments`] has locked. Open proposals of the same origin
/// are superseded. Returns the version.
#[tracing::instrument(name = "db.environments.insert_proposal", skip_all)]
pub async fn insert_proposal(
    conn: &mut Conn,
    project: ProjectId,
    new: &NewEnvironment<'_>,
    now: OffsetDateTime,
) -> Result<u32, DbError> {
    sqlx::query!(
        "UPDATE project_environments SET state = 'superseded' WHERE project_id = $1 AND origin = $2 AND state = 'proposed'",
        project.as_uuid(),
        new.origin.as_str(),
    )
    .execute(&mut *conn)
    .await?;
    let spec = serde_json::to_value(new.spec).map_err(corrupt_column(TABLE, "spec"))?;
    let reasons = serde_json::to_value(new.reasons).map_err(corrupt_column(TABLE, "reasons"))?;
    let warnings = serde_json::to_value(new.warnings).map_err(corrupt_column(TABLE, "warnings"))?;
    let version = sqlx::query_scalar!(
        "
        INSERT INTO project_environments
            (project_id, version, digest, spec, origin, source_commit, reasons, warnings, state, proposed_by, proposed_at)
        SELECT $1, coalesce(max(version), 0) + 1, $2, $3, $4, $5, $6, $7, 'proposed', $8, $9
        FROM project_environments WHERE project_id = $1
        RETURNING version
        ",
        project.as_uuid(),
        new.digest,
        spec,
        new.origin.as_str(),
        new.source_commit,
        reasons,
        warnings,
        new.proposed_by.map(UserId::as_uuid),
        now,
    )
    .fetch_one(conn)
    .await?;
    u32::try_from(version).map_err(corrupt_column(TABLE, "version"))
}

/// A decision of a person about a proposal.
#[derive(Clone, Copy, Debug)]
pub struct EnvironmentDecision<'a> {
    /// Whether it is accepted; rejected otherwise.
    pub accepted: bool,
    /// User who decides.
    pub decided_by: UserId,
    /// Note of that person.
    pub note: Option<&'a str>,
}

/// Accepts or rejects a proposal, in a transaction that [`lock_environments`] has locked. An acceptance supersedes the version that
/// was accepted before. A rejection of the accepted version leaves the project without one. Returns whether the decision applied.
#[tracing::instrument(name = "db.environments.decide_environment", skip_all)]
pub async fn decide_environment(
    conn: &mut Conn,
    project: ProjectId,
    version: u32,
    decision: &EnvironmentDecision<'_>,
    now: OffsetDateTime,
) -> Result<bool, DbError> {
    let version = i32::try_from(version).unwrap_or(i32::MAX);
    if decision.accepted {
        sqlx::query!(
            "
            UPDATE project_environments SET state = 'superseded'
            WHERE project_id = $1 AND version <> $2 AND state = 'accepted'
            ",
            project.as_uuid(),
            version,
        )
        .execute(&mut *conn)
        .await?;
    }
    let done = sqlx::query!(
        "
        UPDATE project_environments
        SET state = CASE WHEN $3 THEN 'accepted' ELSE 'rejected' END, decided_by = $4, decided_at = $5, decision_note = $6
        WHERE project_id = $1 AND version = $2 AND state <> CASE WHEN $3 THEN 'accepted' ELSE 'rejected' END
        ",
        project.as_uuid(),
        version,
        decision.accepted,
        decision.decided_by.as_uuid(),
        now,
        decision.note,
    )
    .execute(conn)
    .await?;
    Ok(done.rows_affected() == 1)
}

/// Returns a version of the environment of a project.
#[tracing::instrument(name = "db.environments.get_environment", skip_all)]
pub async fn get_environment(
    conn: &mut Conn,
    project: ProjectId,
    version: u32,
) -> Result<Option<EnvironmentRecord>, DbError> {
    sqlx::query_as!(
        EnvironmentRow,
        "
        SELECT version, digest, spec, origin, source_commit, state, reasons, warnings, proposed_by, proposed_at, decided_by,
            decided_at, decision_note
        FROM project_environments WHERE project_id = $1 AND version = $2
        ",
        project.as_uuid(),
        i32::try_from(version).unwrap_or(i32::MAX),
    )
    .fetch_optional(conn)
    .await?
    .map(EnvironmentRecord::try_from)
    .transpose()
}

/// Returns the version that jobs of a project run in, if one was accepted.
#[tracing::instrument(name = "db.environments.get_accepted_environment", skip_all)]
pub async fn get_accepted_environment(
    conn: &mut Conn,
    project: ProjectId,
) -> Result<Option<EnvironmentRecord>, DbError> {
    sqlx::query_as!(
        EnvironmentRow,
        "
        SELECT version, digest, spec, origin, source_commit, state, reasons, warnings, proposed_by, proposed_at, decided_by,
            decided_at, decision_note
        FROM project_environments WHERE project_id = $1 AND state = 'accepted'
        ",
        project.as_uuid(),
    )
    .fetch_optional(conn)
    .await?
    .map(EnvironmentRecord::try_from)
    .transpose()
}

/// Returns whether a task begins without a plan in a project that has a repository and no accepted environment.
#[tracing::instrument(name = "db.environments.may_need_detection", skip_all, fields(task.id = %task))]
pub async fn may_need_detection(conn: &mut Conn, task: TaskId) -> Result<bool, DbError> {
    let found = sqlx::query_scalar!(
        r#"
        SELECT EXISTS (
            SELECT FROM tasks t JOIN workflow_runs r USING (task_id) JOIN repositories USING (project_id)
            WHERE t.task_id = $1 AND r.ended_at IS NULL
                AND NOT EXISTS (SELECT FROM workflow_checkpoints c WHERE c.task_id = t.task_id)
                AND NOT EXISTS (SELECT FROM task_plans p WHERE p.task_id = t.task_id)
                AND NOT EXISTS (SELECT FROM project_environments e WHERE e.project_id = t.project_id AND e.state = 'accepted')
        ) AS "may_need!"
        "#,
        task.as_uuid(),
    );
    Ok(found.fetch_one(conn).await?)
}

/// Returns the newest proposal about which nobody has decided.
#[tracing::instrument(name = "db.environments.get_newest_proposal", skip_all)]
pub async fn get_newest_proposal(
    conn: &mut Conn,
    project: ProjectId,
) -> Result<Option<EnvironmentRecord>, DbError> {
    sqlx::query_as!(
        EnvironmentRow,
        "
        SELECT version, digest, spec, origin, source_commit, state, reasons, warnings, proposed_by, proposed_at, decided_by,
            decided_at, decision_note
        FROM project_environments WHERE project_id = $1 AND state = 'proposed'
        ORDER BY version DESC LIMIT 1
        ",
        project.as_uuid(),
    )
    .fetch_optional(conn)
    .await?
    .map(EnvironmentRecord::try_from)
    .transpose()
}

/// Returns the newest version with a digest, from any origin.
#[tracing::instrument(name = "db.environments.find_environment", skip_all)]
pub async fn find_environment(
    conn: &mut Conn,
    project: ProjectId,
    digest: &str,
) -> Result<Option<EnvironmentRecord>, DbError> {
    sqlx::query_as!(
        EnvironmentRow,
        "
        SELECT version, digest, spec, origin, source_commit, state, reasons, warnings, proposed_by, proposed_at, decided_by,
            decided_at, decision_note
        FROM project_environments WHERE project_id = $1 AND digest = $2
        ORDER BY version DESC LIMIT 1
        ",
        project.as_uuid(),
        digest,
    )
    .fetch_optional(conn)
    .await?
    .map(EnvironmentRecord::try_from)
    .transpose()
}

/// Returns whether the newest version that the repository of a project has brought has a digest.
#[tracing::instrument(name = "db.environments.has_repository_version", skip_all)]
pub async fn has_repository_version(
    conn: &mut Conn,
    project: ProjectId,
    digest: &str,
) -> Result<bool, DbError> {
    let found = sqlx::query_scalar!(
        r#"
        SELECT coalesce((
            SELECT digest = $2 FROM project_environments WHERE project_id = $1 AND origin = 'repository'
            ORDER BY version DESC LIMIT 1
        ), false) AS "is!"
        "#,
        project.as_uuid(),
        digest,
    );
    Ok(found.fetch_one(conn).await?)
}

/// Lists the versions of a project, the newest first; at most 200.
#[tracing::instrument(name = "db.environments.list_environments", skip_all)]
pub async fn list_environments(
    conn: &mut Conn,
    project: ProjectId,
) -> Result<Vec<EnvironmentRecord>, DbError> {
    sqlx::query_as!(
        EnvironmentRow,
        "
        SELECT version, digest, spec, origin, source_commit, state, reasons, warnings, proposed_by, proposed_at, decided_by,
            decided_at, decision_note
        FROM project_environments WHERE project_id = $1
        ORDER BY version DESC LIMIT 200
        ",
        project.as_uuid(),
    )
    .fetch_all(conn)
    .await?
    .into_iter()
    .map(EnvironmentRecord::try_from)
    .collect()
}

/// Lists projects whose default branch has moved since its environment file was read, with the branch's commit.
#[tracing::instrument(name = "db.environments.list_unread_repositories", skip_all)]
pub async fn list_unread_repositories(
    conn: &mut Conn,
    most: i64,
) -> Result<Vec<(ProjectId, String)>, DbError> {
    let rows = sqlx::query!(
        "
        SELECT r.project_id, r.head FROM repositories r JOIN projects p USING (project_id)
        WHERE r.environment_commit IS DISTINCT FROM r.head AND p.archived_at IS NULL
        ORDER BY r.project_id LIMIT $1
        ",
        most,
    )
    .fetch_all(conn)
    .await?;
    Ok(rows.into_iter().map(|row| (ProjectId::from_uuid(row.project_id), row.head)).collect())
}

/// Stores the commit at which the environment file of a project was read. Returns whether it was another one before.
#[tracing::instrument(name = "db.environments.mark_repository_read", skip_all)]
pub async fn mark_repository_read(
    conn: &mut Conn,
    project: ProjectId,
    commit: &str,
) -> Result<bool, DbError> {
    let done = sqlx::query!(
        "UPDATE repositories SET environment_commit = $2 WHERE project_id = $1 AND environment_commit IS DISTINCT FROM $2",
        project.as_uuid(),
        commit,
    )
    .execute(conn)
    .await?;
    Ok(done.rows_affected() == 1)
}

/// A secret of a project, without its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProjectSecretInfo {
    /// Name of the secret.
    pub name: String,
    /// User who set it.
    pub created_by: UserId,
    /// Time at which it was set.
    pub created_at: OffsetDateTime,
}

/// A sealed secret of a project.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SealedSecret {
    /// Project of the secret.
    pub project: ProjectId,
    /// Name of the secret.
    pub name: String,
    /// Sealed value.
    pub sealed: Vec<u8>,
}

/// Sets a secret of a project.
#[tracing::instrument(name = "db.environments.set_secret", skip_all)]
pub async fn set_secret(
    conn: &mut Conn,
    secret: &SealedSecret,
    by: UserId,
    now: OffsetDateTime,
) -> Result<(), DbError> {
    sqlx::query!(
        "
        INSERT INTO project_secrets (project_id, name, sealed, created_by, created_at) VALUES ($1, $2, $3, $4, $5)
        ON CONFLICT (project_id, name) DO UPDATE
        SET sealed = excluded.sealed, created_by = excluded.created_by, created_at = excluded.created_at
        ",
        secret.project.as_uuid(),
        secret.name,
        secret.sealed,
        by.as_uuid(),
        now,
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// Deletes a secret of a project. Returns whether it was there.
#[tracing::instrument(name = "db.environments.delete_secret", skip_all)]
pub async fn delete_secret(
    conn: &mut Conn,
    project: ProjectId,
    name: &str,
) -> Result<bool, DbError> {
    let done = sqlx::query!(
        "DELETE FROM project_secrets WHERE project_id = $1 AND name = $2",
        project.as_uuid(),
        name,
    );
    Ok(done.execute(conn).await?.rows_affected() == 1)
}

/// Lists the secrets of a project by name, without their values.
#[tracing::instrument(name = "db.environments.list_secrets", skip_all)]
pub async fn list_secrets(
    conn: &mut Conn,
    project: ProjectId,
) -> Result<Vec<ProjectSecretInfo>, DbError> {
    let rows = sqlx::query!(
        "SELECT name, created_by, created_at FROM project_secrets WHERE project_id = $1 ORDER BY name",
        project.as_uuid(),
    )
    .fetch_all(conn)
    .await?;
    let secret = rows.into_iter().map(|row| ProjectSecretInfo {
        name: row.name,
        created_by: UserId::from_uuid(row.created_by),
        created_at: row.created_at,
    });
    Ok(secret.collect())
}

/// Lists the sealed secrets of one project, or of all projects.
#[tracing::instrument(name = "db.environments.list_sealed_secrets", skip_all)]
pub async fn list_sealed_secrets(
    conn: &mut Conn,
    project: Option<ProjectId>,
) -> Result<Vec<SealedSecret>, DbError> {
    let rows = sqlx::query!(
        "
        SELECT project_id, name, sealed FROM project_secrets
        WHERE $1::uuid IS NULL OR project_id = $1
        ORDER BY project_id, name
        ",
        project.map(ProjectId::as_uuid),
    )
    .fetch_all(conn)
    .await?;
    let secret = rows.into_iter().map(|row| SealedSecret {
        project: ProjectId::from_uuid(row.project_id),
        name: row.name,
        sealed: row.sealed,
    });
    Ok(secret.collect())
}

/// A fetch of a package, as it is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PackageFetchRecord {
    /// Number of the fetch; later ones have larger numbers.
    pub id: i64,
    /// Task of the job.
    pub task: TaskId,
    /// Job that fetched.
    pub job: JobId,
    /// The fetch itself.
    pub fetch: PackageFetch,
    /// Time at which it was reported.
    pub fetched_at: OffsetDateTime,
}

/// Stores fetches that a job reported.
#[tracing::instrument(name = "db.environments.insert_package_fetches", skip_all)]
pub async fn insert_package_fetches(
    conn: &mut Conn,
    project: ProjectId,
    task: TaskId,
    job: JobId,
    fetches: &[PackageFetch],
    now: OffsetDateTime,
) -> Result<(), DbError> {
    let column =
        |value: fn(&PackageFetch) -> String| -> Vec<String> { fetches.iter().map(value).collect() };
    let sources = column(|fetch| fetch.source.as_str().to_owned());
    let packages = column(|fetch| fetch.package.clone());
    let versions = column(|fetch| fetch.version.clone());
    let digests = column(|fetch| fetch.sha256.clone());
    let refusals: Vec<Option<String>> = fetches.iter().map(|fetch| fetch.refused.clone()).collect();
    let sizes: Vec<i64> =
        fetches.iter().map(|fetch| i64::try_from(fetch.bytes).unwrap_or(i64::MAX)).collect();
    let cached: Vec<bool> = fetches.iter().map(|fetch| fetch.cached).collect();
    sqlx::query!(
        "
        INSERT INTO package_fetches (project_id, task_id, job_id, source, package, version, sha256, bytes, cached, refused, fetched_at)
        SELECT $1, $2, $3, source, package, version, sha256, bytes, cached, refused, $11
        FROM unnest($4::text[], $5::text[], $6::text[], $7::text[], $8::bigint[], $9::boolean[], $10::text[])
            WITH ORDINALITY AS f (source, package, version, sha256, bytes, cached, refused, n)
        ORDER BY n
        ",
        project.as_uuid(),
        task.as_uuid(),
        job.as_uuid(),
        &sources,
        &packages,
        &versions,
        &digests,
        &sizes,
        &cached,
        &refusals as &[Option<String>],
        now,
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// Which fetches of a project are listed.
#[derive(Clone, Copy, Debug, Default)]
pub struct PackageFetchFilter {
    /// Only those of one task.
    pub task: Option<TaskId>,
    /// Only those that were refused.
    pub refused: bool,
}

/// Lists fetches of a project, the newest first; at most 1,000.
#[tracing::instrument(name = "db.environments.list_package_fetches", skip_all)]
pub async fn list_package_fetches(
    conn: &mut Conn,
    project: ProjectId,
    filter: PackageFetchFilter,
) -> Result<Vec<PackageFetchRecord>, DbError> {
    let rows = sqlx::query!(
        "
        SELECT fetch_id, task_id, job_id, source, package, version, sha256, bytes, cached, refused, fetched_at
        FROM package_fetches
        WHERE project_id = $1 AND ($2::uuid IS NULL OR task_id = $2) AND (NOT $3 OR refused IS NOT NULL)
        ORDER BY fetch_id DESC LIMIT 1000
        ",
        project.as_uuid(),
        filter.task.map(TaskId::as_uuid),
        filter.refused,
    )
    .fetch_all(conn)
    .await?;
    rows.into_iter()
        .map(|row| {
            let source = PackageSource::ALL.into_iter().find(|it| it.as_str() == row.source);
            let source =
                source.ok_or(DbError::Corrupt { table: "package_fetches", column: "source" })?;
            Ok(PackageFetchRecord {
                id: row.fetch_id,
                task: TaskId::from_uuid(row.task_id),
                job: JobId::from_uuid(row.job_id),
                fetch: PackageFetch {
                    source,
                    package: row.package,
                    version: row.version,
                    sha256: row.sha256,
                    bytes: row.bytes.unsigned_abs(),
                    cached: row.cached,
                    refused: row.refused,
                },
                fetched_at: row.fetched_at,
            })
        })
        .collect()
}

/// Prunes fetches that were reported before a time, at most so many. Returns how many there were.
#[tracing::instrument(name = "db.environments.prune_package_fetches", skip_all)]
pub async fn prune_package_fetches(
    conn: &mut Conn,
    before: OffsetDateTime,
    most: i64,
) -> Result<u64, DbError> {
    let done = sqlx::query!(
        "
        DELETE FROM package_fetches
        WHERE fetch_id = ANY (ARRAY(SELECT fetch_id FROM package_fetches WHERE fetched_at < $1 LIMIT $2))
        ",
        before,
        most,
    )
    .execute(conn)
    .await?;
    Ok(done.rows_affected())
}

/// Stores the plan that a task was given.
#[tracing::instrument(name = "db.environments.insert_task_plan", skip_all)]
pub async fn insert_task_plan(conn: &mut Conn, task: TaskId, plan: &Value) -> Result<(), DbError> {
    sqlx::query!("INSERT INTO task_plans (task_id, plan) VALUES ($1, $2)", task.as_uuid(), plan)
        .execute(conn)
        .await?;
    Ok(())
}

/// Returns the plan that a task was given, if it was given one.
#[tracing::instrument(name = "db.environments.get_task_plan", skip_all)]
pub async fn get_task_plan(conn: &mut Conn, task: TaskId) -> Result<Option<Value>, DbError> {
    let found =
        sqlx::query_scalar!("SELECT plan FROM task_plans WHERE task_id = $1", task.as_uuid());
    Ok(found.fetch_optional(conn).await?)
}
