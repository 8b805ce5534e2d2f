//! Groups, their members and their roles.

use cynode_core::{
    accounts::Group,
    ids::{GroupId, ProjectId, UserId},
    names::GroupName,
    paging::PageRequest,
    roles::UserRole,
};
use time::OffsetDateTime;
use uuid::Uuid;

use crate::{
    Conn, DbError,
    platform::error::{corrupt_column, parse_role},
};

struct GroupRow {
    group_id: Uuid,
    name: String,
    created_at: OffsetDateTime,
    can_create_projects: bool,
    role: Option<String>,
    members: Vec<Uuid>,
}

impl TryFrom<GroupRow> for Group {
    type Error = DbError;

    fn try_from(row: GroupRow) -> Result<Self, DbError> {
        Ok(Self {
            id: GroupId::from_uuid(row.group_id),
            name: row.name.try_into().map_err(corrupt_column("groups", "name"))?,
            role: row.role.map(|name| parse_role("role_bindings", &name)).transpose()?,
            can_create_projects: row.can_create_projects,
            members: row.members.into_iter().map(UserId::from_uuid).collect(),
            created_at: row.created_at,
        })
    }
}

/// Stores a group without members.
pub async fn insert_group(
    conn: &mut Conn,
    id: GroupId,
    name: &GroupName,
    now: OffsetDateTime,
) -> Result<(), DbError> {
    sqlx::query!(
        "INSERT INTO groups (group_id, name, created_at) VALUES ($1, $2, $3)",
        id.as_uuid(),
        name.as_str(),
        now,
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// One group; it stays locked until the transaction ends.
pub async fn lock_group(conn: &mut Conn, id: GroupId) -> Result<Option<Group>, DbError> {
    sqlx::query_as!(
        GroupRow,
        r#"
        SELECT g.group_id, g.name, g.created_at, g.can_create_projects, b.role AS "role?",
            ARRAY(SELECT user_id FROM group_members m WHERE m.group_id = g.group_id ORDER BY 1) AS "members!"
        FROM groups g
        LEFT JOIN role_bindings b ON b.group_id = g.group_id AND b.project_id IS NULL
        WHERE g.group_id = $1
        FOR UPDATE OF g
        "#,
        id.as_uuid(),
    )
    .fetch_optional(conn)
    .await?
    .map(Group::try_from)
    .transpose()
}

/// Groups by id, one more than a page holds.
pub async fn list_groups(conn: &mut Conn, page: PageRequest) -> Result<Vec<Group>, DbError> {
    sqlx::query_as!(
        GroupRow,
        r#"
        SELECT g.group_id, g.name, g.created_at, g.can_create_projects, b.role AS "role?",
            ARRAY(SELECT user_id FROM group_members m WHERE m.group_id = g.group_id ORDER BY 1) AS "members!"
        FROM groups g
        LEFT JOIN role_bindings b ON b.group_id = g.group_id AND b.project_id IS NULL
        WHERE $1::uuid IS NULL OR g.group_id > $1
        ORDER BY g.group_id
        LIMIT $2
        "#,
        page.after.map(|cursor| cursor.0),
        page.row_limit(),
    )
    .fetch_all(conn)
    .await?
    .into_iter()
    .map(Group::try_from)
    .collect()
}

/// Puts users into a group; those who are in it stay, even if an identity provider that put them there would take them
/// out.
pub async fn add_members(
    conn: &mut Conn,
    id: GroupId,
    users: &[UserId],
    now: OffsetDateTime,
) -> Result<(), DbError> {
    let users: Vec<Uuid> = users.iter().map(|user| user.as_uuid()).collect();
    sqlx::query!(
        "
        INSERT INTO group_members (group_id, user_id, added_at)
        SELECT DISTINCT $1::uuid, user_id, $3::timestamptz FROM unnest($2::uuid[]) AS user_id
        ON CONFLICT (group_id, user_id) DO UPDATE SET identity_provider_id = NULL
        ",
        id.as_uuid(),
        &users,
        now,
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// Takes users out of a group.
pub async fn remove_members(conn: &mut Conn, id: GroupId, users: &[UserId]) -> Result<(), DbError> {
    let users: Vec<Uuid> = users.iter().map(|user| user.as_uuid()).collect();
    sqlx::query!(
        "DELETE FROM group_members WHERE group_id = $1 AND user_id = ANY($2)",
        id.as_uuid(),
        &users,
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// Gives a group a role in a project, or in the whole installation when there is none, or takes it away.
pub async fn set_group_role(
    conn: &mut Conn,
    id: GroupId,
    project: Option<ProjectId>,
    role: Option<UserRole>,
    now: OffsetDateTime,
) -> Result<(), DbError> {
    let project = project.map(ProjectId::as_uuid);
    match role {
        Some(role) => {
            sqlx::query!(
                "
            INSERT INTO role_bindings (group_id, project_id, role, bound_at)
            VALUES ($1, $2, $3, $4)
            ON CONFLICT ON CONSTRAINT role_bindings_unique DO UPDATE SET role = $3, bound_at = $4
            ",
                id.as_uuid(),
                project,
                role.as_str(),
                now,
            )
            .execute(conn)
            .await?
        }
        None => sqlx::query!(
            "DELETE FROM role_bindings WHERE group_id = $1 AND project_id IS NOT DISTINCT FROM $2",
            id.as_uuid(),
            project,
        )
        .execute(conn)
        .await?,
    };
    Ok(())
}

/// Gives the members of a group the permission to create projects, or takes it away.
pub async fn set_project_creation(
    conn: &mut Conn,
    id: GroupId,
    is_allowed: bool,
) -> Result<(), DbError> {
    sqlx::query!(
        "UPDATE groups SET can_create_projects = $2 WHERE group_id = $1",
        id.as_uuid(),
        is_allowed,
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// Deletes a group with its members and roles. Returns whether it existed.
pub async fn delete_group(conn: &mut Conn, id: GroupId) -> Result<bool, DbError> {
    let done =
        sqlx::query!("DELETE FROM groups WHERE group_id = $1", id.as_uuid()).execute(conn).await?;
    Ok(done.rows_affected() == 1)
}

/// The groups of a user.
pub async fn groups_of_user(conn: &mut Conn, user: UserId) -> Result<Vec<GroupId>, DbError> {
    let groups = sqlx::query_scalar!(
        "SELECT group_id FROM group_members WHERE user_id = $1 ORDER BY group_id",
        user.as_uuid(),
    )
    .fetch_all(conn)
    .await?;
    Ok(groups.into_iter().map(GroupId::from_uuid).collect())
}

/// The names of all groups, with their ids.
pub async fn list_group_names(conn: &mut Conn) -> Result<Vec<(GroupName, GroupId)>, DbError> {
    let rows =
        sqlx::query!("SELECT name, group_id FROM groups ORDER BY name").fetch_all(conn).await?;
    rows.into_iter()
        .map(|row| {
            let name = row.name.try_into().map_err(corrupt_column("groups", "name"))?;
            Ok((name, GroupId::from_uuid(row.group_id)))
        })
        .collect()
}
