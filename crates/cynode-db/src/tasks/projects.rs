//! Projects and their members.

use cynode_core::{
    ids::{ProjectId, UserId},
    names::{ProjectSlug, Prose, Title},
    paging::PageRequest,
    projects::{Project, ProjectMember},
    roles::UserRole,
};
use time::OffsetDateTime;
use uuid::Uuid;

use crate::{
    Conn, DbError,
    platform::error::{corrupt_column, parse_role},
};

struct ProjectRow {
    project_id: Uuid,
    slug: String,
    title: String,
    description: Option<String>,
    created_by: Uuid,
    created_at: OffsetDateTime,
    archived_at: Option<OffsetDateTime>,
}

impl TryFrom<ProjectRow> for Project {
    type Error = DbError;

    fn try_from(row: ProjectRow) -> Result<Self, DbError> {
        let description = row.description.map(TryInto::try_into).transpose();
        Ok(Self {
            id: ProjectId::from_uuid(row.project_id),
            slug: row.slug.try_into().map_err(corrupt_column("projects", "slug"))?,
            title: row.title.try_into().map_err(corrupt_column("projects", "title"))?,
            description: description.map_err(corrupt_column("projects", "description"))?,
            created_by: UserId::from_uuid(row.created_by),
            created_at: row.created_at,
            archived_at: row.archived_at,
        })
    }
}

/// Stores a project.
#[tracing::instrument(name = "db.projects.insert_project", skip_all, fields(project.id = %project.id))]
pub async fn insert_project(conn: &mut Conn, project: &Project) -> Result<(), DbError> {
    sqlx::query!(
        "
        INSERT INTO projects (project_id, slug, title, description, created_by, created_at, updated_at)
        VALUES ($1, $2, $3, $4, $5, $6, $6)
        ",
        project.id.as_uuid(),
        project.slug.as_str(),
        project.title.as_str(),
        project.description.as_ref().map(|text| text.as_str()),
        project.created_by.as_uuid(),
        project.created_at,
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// Changes what is given.
pub async fn update_project(
    conn: &mut Conn,
    id: ProjectId,
    title: Option<&Title>,
    description: Option<&Prose>,
    now: OffsetDateTime,
) -> Result<Option<Project>, DbError> {
    sqlx::query_as!(
        ProjectRow,
        "
        UPDATE projects
        SET title = coalesce($2, title), description = coalesce($3, description), updated_at = $4
        WHERE project_id = $1
        RETURNING project_id, slug, title, description, created_by, created_at, archived_at
        ",
        id.as_uuid(),
        title.map(|text| text.as_str()),
        description.map(|text| text.as_str()),
        now,
    )
    .fetch_optional(conn)
    .await?
    .map(Project::try_from)
    .transpose()
}

/// One project.
#[tracing::instrument(name = "db.projects.get_project", skip_all, fields(project.id = %id))]
pub async fn get_project(conn: &mut Conn, id: ProjectId) -> Result<Option<Project>, DbError> {
    sqlx::query_as!(
        ProjectRow,
        "
        SELECT project_id, slug, title, description, created_by, created_at, archived_at
        FROM projects
        WHERE project_id = $1
        ",
        id.as_uuid(),
    )
    .fetch_optional(conn)
    .await?
    .map(Project::try_from)
    .transpose()
}

/// The id of the project of that slug.
pub async fn find_project_id(
    conn: &mut Conn,
    slug: &ProjectSlug,
) -> Result<Option<ProjectId>, DbError> {
    let id = sqlx::query_scalar!("SELECT project_id FROM projects WHERE slug = $1", slug.as_str())
        .fetch_optional(conn)
        .await?;
    Ok(id.map(ProjectId::from_uuid))
}

/// Projects by id, one more than a page holds; only those of `member`, when it is given; archived ones only when they are wanted.
#[tracing::instrument(name = "db.projects.list_projects", skip_all)]
pub async fn list_projects(
    conn: &mut Conn,
    member: Option<UserId>,
    archived: bool,
    page: PageRequest,
) -> Result<Vec<Project>, DbError> {
    sqlx::query_as!(
        ProjectRow,
        "
        SELECT project_id, slug, title, description, created_by, created_at, archived_at
        FROM projects p
        WHERE ($1::uuid IS NULL OR p.project_id > $1)
          AND ($4 OR p.archived_at IS NULL)
          AND ($2::uuid IS NULL
            OR EXISTS (SELECT FROM project_members m WHERE m.project_id = p.project_id AND m.user_id = $2)
            OR EXISTS (
                SELECT FROM role_bindings b JOIN group_members g USING (group_id)
                WHERE b.project_id = p.project_id AND g.user_id = $2))
        ORDER BY p.project_id
        LIMIT $3
        ",
        page.after.map(|cursor| cursor.0),
        member.map(UserId::as_uuid),
        page.row_limit(),
        archived,
    )
    .fetch_all(conn)
    .await?
    .into_iter()
    .map(Project::try_from)
    .collect()
}

/// The projects in which a user has a role, archived ones included.
#[tracing::instrument(name = "db.projects.list_member_projects", skip_all)]
pub async fn list_member_projects(
    conn: &mut Conn,
    member: UserId,
) -> Result<Vec<ProjectId>, DbError> {
    let found = sqlx::query_scalar!(
        r#"
        SELECT project_id AS "project_id!" FROM project_members WHERE user_id = $1
        UNION
        SELECT b.project_id FROM group_members m JOIN role_bindings b USING (group_id)
        WHERE m.user_id = $1 AND b.project_id IS NOT NULL
        "#,
        member.as_uuid(),
    );
    Ok(found.fetch_all(conn).await?.into_iter().map(ProjectId::from_uuid).collect())
}

/// The slugs of the projects that `member` may see, or of all; at most 1,000.
#[tracing::instrument(name = "db.projects.list_project_slugs", skip_all)]
pub async fn list_project_slugs(
    conn: &mut Conn,
    member: Option<UserId>,
) -> Result<Vec<String>, DbError> {
    let found = sqlx::query_scalar!(
        "
        SELECT slug FROM projects p
        WHERE $1::uuid IS NULL
            OR EXISTS (SELECT FROM project_members m WHERE m.project_id = p.project_id AND m.user_id = $1)
            OR EXISTS (
                SELECT FROM role_bindings b JOIN group_members g USING (group_id)
                WHERE b.project_id = p.project_id AND g.user_id = $1)
        ORDER BY slug
        LIMIT 1000
        ",
        member.map(UserId::as_uuid),
    );
    Ok(found.fetch_all(conn).await?)
}

/// One project, locked against changes and against references: whoever stores something of it waits until the transaction
/// ends.
#[tracing::instrument(name = "db.projects.lock_project", skip_all, fields(project.id = %id))]
pub async fn lock_project(conn: &mut Conn, id: ProjectId) -> Result<Option<Project>, DbError> {
    sqlx::query_as!(
        ProjectRow,
        "
        SELECT project_id, slug, title, description, created_by, created_at, archived_at
        FROM projects
        WHERE project_id = $1
        FOR UPDATE
        ",
        id.as_uuid(),
    )
    .fetch_optional(conn)
    .await?
    .map(Project::try_from)
    .transpose()
}

/// How many tasks of a project are not done.
#[tracing::instrument(name = "db.projects.count_open_tasks", skip_all, fields(project.id = %id))]
pub async fn count_open_tasks(conn: &mut Conn, id: ProjectId) -> Result<i64, DbError> {
    let open = sqlx::query_scalar!(
        r#"SELECT count(*) AS "open!" FROM tasks WHERE project_id = $1 AND state IN ('queued', 'running')"#,
        id.as_uuid(),
    );
    Ok(open.fetch_one(conn).await?)
}

/// Archives a project that is locked, or takes it back from there.
#[tracing::instrument(name = "db.projects.set_project_archived", skip_all, fields(project.id = %id))]
pub async fn set_project_archived(
    conn: &mut Conn,
    id: ProjectId,
    by: Option<UserId>,
    now: OffsetDateTime,
) -> Result<(), DbError> {
    sqlx::query!(
        "
        UPDATE projects
        SET archived_by = $2, archived_at = CASE WHEN $2::uuid IS NULL THEN NULL ELSE $3::timestamptz END, updated_at = $3
        WHERE project_id = $1
        ",
        id.as_uuid(),
        by.map(UserId::as_uuid),
        now,
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// The projects that are archived.
#[tracing::instrument(name = "db.projects.list_archived_projects", skip_all)]
pub async fn list_archived_projects(conn: &mut Conn) -> Result<Vec<ProjectId>, DbError> {
    let found =
        sqlx::query_scalar!("SELECT project_id FROM projects WHERE archived_at IS NOT NULL");
    Ok(found.fetch_all(conn).await?.into_iter().map(ProjectId::from_uuid).collect())
}

/// Whether a project is archived.
#[tracing::instrument(name = "db.projects.is_project_archived", skip_all, fields(project.id = %id))]
pub async fn is_project_archived(conn: &mut Conn, id: ProjectId) -> Result<bool, DbError> {
    let found = sqlx::query_scalar!(
        r#"SELECT EXISTS (SELECT FROM projects WHERE project_id = $1 AND archived_at IS NOT NULL) AS "is!""#,
        id.as_uuid(),
    );
    Ok(found.fetch_one(conn).await?)
}

/// Deletes a project with all its rows but the records of what happened, and notes its files for [`list_deleted_files`].
#[tracing::instrument(name = "db.projects.delete_project", skip_all, fields(project.id = %id))]
pub async fn delete_project(
    conn: &mut Conn,
    id: ProjectId,
    now: OffsetDateTime,
) -> Result<(), DbError> {
    sqlx::query!("SELECT delete_project($1, $2)", id.as_uuid(), now).execute(conn).await?;
    Ok(())
}

/// The files of a deleted project.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeletedFiles {
    /// The project.
    pub project: ProjectId,
    /// Bytes of its artifacts that belong to no artifact any more, by their SHA-256.
    pub digests: Vec<Vec<u8>>,
}

/// Files of projects that were deleted before then.
#[tracing::instrument(name = "db.projects.list_deleted_files", skip_all)]
pub async fn list_deleted_files(
    conn: &mut Conn,
    before: OffsetDateTime,
) -> Result<Vec<DeletedFiles>, DbError> {
    let rows = sqlx::query!(
        r#"
        SELECT d.project_id, ARRAY(
            SELECT digest FROM unnest(d.digests) AS o (digest)
            WHERE NOT EXISTS (SELECT FROM artifacts a WHERE a.digest = o.digest)
                AND NOT EXISTS (SELECT FROM job_blobs b WHERE b.digest = o.digest)
        ) AS "digests!"
        FROM deleted_project_files d
        WHERE d.deleted_at < $1
        ORDER BY d.deleted_at
        LIMIT 100
        "#,
        before,
    )
    .fetch_all(conn)
    .await?;
    let one = |project, digests| DeletedFiles { project: ProjectId::from_uuid(project), digests };
    Ok(rows.into_iter().map(|row| one(row.project_id, row.digests)).collect())
}

/// Notes that the files of a deleted project are removed.
#[tracing::instrument(name = "db.projects.clear_deleted_files", skip_all, fields(project.id = %id))]
pub async fn clear_deleted_files(conn: &mut Conn, id: ProjectId) -> Result<(), DbError> {
    sqlx::query!("DELETE FROM deleted_project_files WHERE project_id = $1", id.as_uuid())
        .execute(conn)
        .await?;
    Ok(())
}

/// Gives a user a role in a project.
pub async fn set_member(
    conn: &mut Conn,
    project: ProjectId,
    user: UserId,
    role: UserRole,
    now: OffsetDateTime,
) -> Result<(), DbError> {
    sqlx::query!(
        "
        INSERT INTO project_members (project_id, user_id, role, added_at)
        VALUES ($1, $2, $3, $4)
        ON CONFLICT (project_id, user_id) DO UPDATE SET role = $3
        ",
        project.as_uuid(),
        user.as_uuid(),
        role.as_str(),
        now,
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// Takes a user out of a project. Returns whether the user was in it.
pub async fn remove_member(
    conn: &mut Conn,
    project: ProjectId,
    user: UserId,
) -> Result<bool, DbError> {
    let done = sqlx::query!(
        "DELETE FROM project_members WHERE project_id = $1 AND user_id = $2",
        project.as_uuid(),
        user.as_uuid(),
    )
    .execute(conn)
    .await?;
    Ok(done.rows_affected() == 1)
}

/// The members of a project by user id, one more than a page holds.
pub async fn list_members(
    conn: &mut Conn,
    project: ProjectId,
    page: PageRequest,
) -> Result<Vec<ProjectMember>, DbError> {
    let rows = sqlx::query!(
        "
        SELECT m.user_id, u.handle, m.role, m.added_at
        FROM project_members m
        JOIN users u USING (user_id)
        WHERE m.project_id = $1 AND ($2::uuid IS NULL OR m.user_id > $2)
        ORDER BY m.user_id
        LIMIT $3
        ",
        project.as_uuid(),
        page.after.map(|cursor| cursor.0),
        page.row_limit(),
    )
    .fetch_all(conn)
    .await?;
    rows.into_iter()
        .map(|row| {
            Ok(ProjectMember {
                user: UserId::from_uuid(row.user_id),
                handle: row.handle.try_into().map_err(corrupt_column("users", "handle"))?,
                role: parse_role("project_members", &row.role)?,
                added_at: row.added_at,
            })
        })
        .collect()
}
