//! Metadata of repositories; their objects are on disk.

use cynode_core::ids::{ProjectId, UserId};
use time::OffsetDateTime;

use crate::{Conn, DbError};

/// A repository, as it is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RepositoryRecord {
    /// The project.
    pub project: ProjectId,
    /// The branch that work starts from.
    pub default_branch: String,
    /// Its commit.
    pub head: String,
    /// Who brought it.
    pub imported_by: UserId,
    /// When.
    pub imported_at: OffsetDateTime,
}

/// Notes what a project's repository is now.
#[tracing::instrument(name = "db.repositories.set_repository", skip_all)]
pub async fn set_repository(conn: &mut Conn, repository: &RepositoryRecord) -> Result<(), DbError> {
    sqlx::query!(
        "
        INSERT INTO repositories (project_id, default_branch, head, imported_by, imported_at)
        VALUES ($1, $2, $3, $4, $5)
        ON CONFLICT (project_id) DO UPDATE
        SET default_branch = excluded.default_branch, head = excluded.head, imported_by = excluded.imported_by,
            imported_at = excluded.imported_at
        ",
        repository.project.as_uuid(),
        repository.default_branch,
        repository.head,
        repository.imported_by.as_uuid(),
        repository.imported_at,
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// The repository of a project, if it has one.
#[tracing::instrument(name = "db.repositories.get_repository", skip_all)]
pub async fn get_repository(
    conn: &mut Conn,
    project: ProjectId,
) -> Result<Option<RepositoryRecord>, DbError> {
    let row = sqlx::query!(
        "SELECT default_branch, head, imported_by, imported_at FROM repositories WHERE project_id = $1",
        project.as_uuid(),
    )
    .fetch_optional(conn)
    .await?;
    Ok(row.map(|row| RepositoryRecord {
        project,
        default_branch: row.default_branch,
        head: row.head,
        imported_by: UserId::from_uuid(row.imported_by),
        imported_at: row.imported_at,
    }))
}

/// The same, locked until the transaction ends: whoever numbers pull requests or moves the branch holds it.
#[tracing::instrument(name = "db.repositories.lock_repository", skip_all)]
pub async fn lock_repository(
    conn: &mut Conn,
    project: ProjectId,
) -> Result<Option<RepositoryRecord>, DbError> {
    sqlx::query!(
        "SELECT FROM repositories WHERE project_id = $1 FOR NO KEY UPDATE",
        project.as_uuid()
    )
    .execute(&mut *conn)
    .await?;
    get_repository(conn, project).await
}

/// Notes the commit that the default branch has now.
#[tracing::instrument(name = "db.repositories.set_repository_head", skip_all)]
pub async fn set_repository_head(
    conn: &mut Conn,
    project: ProjectId,
    head: &str,
) -> Result<(), DbError> {
    sqlx::query!(
        "UPDATE repositories SET head = $2 WHERE project_id = $1 AND head <> $2",
        project.as_uuid(),
        head
    )
    .execute(conn)
    .await?;
    Ok(())
}
