//! Projects and their members.

use cynode_core::{
    ids::{ProjectId, UserId},
    names::{ProjectSlug, Prose, Title},
    projects::{Member, Project},
    roles::Role,
};
use cynode_wire::page::PageRequest;
use time::OffsetDateTime;
use uuid::Uuid;

use crate::{
    Conn, DbError,
    error::{corrupt, role},
};

struct ProjectRow {
    project_id: Uuid,
    slug: String,
    title: String,
    description: Option<String>,
    created_by: Uuid,
    created_at: OffsetDateTime,
}

impl TryFrom<ProjectRow> for Project {
    type Error = DbError;

    fn try_from(row: ProjectRow) -> Result<Self, DbError> {
        let description = row.description.map(TryInto::try_into).transpose();
        Ok(Self {
            id: ProjectId::from_uuid(row.project_id),
            slug: row.slug.try_into().map_err(corrupt("projects", "slug"))?,
            title: row.title.try_into().map_err(corrupt("projects", "title"))?,
            description: description.map_err(corrupt("projects", "description"))?,
            created_by: UserId::from_uuid(row.created_by),
            created_at: row.created_at,
        })
    }
}

/// Stores a project.
#[tracing::instrument(name = "db.projects.insert", skip_all, fields(project.id = %project.id))]
pub async fn insert(conn: &mut Conn, project: &Project) -> Result<(), DbError> {
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
pub async fn update(
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
        RETURNING project_id, slug, title, description, created_by, created_at
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
#[tracing::instrument(name = "db.projects.get", skip_all, fields(project.id = %id))]
pub async fn get(conn: &mut Conn, id: ProjectId) -> Result<Option<Project>, DbError> {
    sqlx::query_as!(
        ProjectRow,
        "
        SELECT project_id, slug, title, description, created_by, created_at
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
pub async fn id_of(conn: &mut Conn, slug: &ProjectSlug) -> Result<Option<ProjectId>, DbError> {
    let id = sqlx::query_scalar!("SELECT project_id FROM projects WHERE slug = $1", slug.as_str())
        .fetch_optional(conn)
        .await?;
    Ok(id.map(ProjectId::from_uuid))
}

/// Projects by id, one more than a page holds; only those of `member`, when it is given.
#[tracing::instrument(name = "db.projects.list", skip_all)]
pub async fn list(
    conn: &mut Conn,
    member: Option<UserId>,
    page: PageRequest,
) -> Result<Vec<Project>, DbError> {
    sqlx::query_as!(
        ProjectRow,
        "
        SELECT project_id, slug, title, description, created_by, created_at
        FROM projects p
        WHERE ($1::uuid IS NULL OR p.project_id > $1)
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
        page.rows(),
    )
    .fetch_all(conn)
    .await?
    .into_iter()
    .map(Project::try_from)
    .collect()
}

/// Gives a user a role in a project.
pub async fn set_member(
    conn: &mut Conn,
    project: ProjectId,
    user: UserId,
    role: Role,
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
pub async fn members(
    conn: &mut Conn,
    project: ProjectId,
    page: PageRequest,
) -> Result<Vec<Member>, DbError> {
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
        page.rows(),
    )
    .fetch_all(conn)
    .await?;
    rows.into_iter()
        .map(|row| {
            Ok(Member {
                user: UserId::from_uuid(row.user_id),
                handle: row.handle.try_into().map_err(corrupt("users", "handle"))?,
                role: role("project_members", &row.role)?,
                added_at: row.added_at,
            })
        })
        .collect()
}
