//! Mandatory policies of every scope.

use cynode_core::{
    ids::{GroupId, ProjectId, TaskId, UserId},
    policies::{PolicyEntry, PolicyKey, PolicyScope, PolicySet, PolicyValue},
    preferences::ScopeType,
};
use serde_json::Value;
use time::OffsetDateTime;
use uuid::Uuid;

use crate::{Conn, DbError, platform::error::corrupt_column};

/// A scope as its two columns.
const fn policy_scope_columns(scope: PolicyScope) -> (&'static str, Uuid) {
    let id = match scope {
        PolicyScope::System => Uuid::nil(),
        PolicyScope::Group(id) => id.as_uuid(),
        PolicyScope::Project(id) => id.as_uuid(),
    };
    (scope.to_preference_scope().scope_type().as_str(), id)
}

fn parse_policy_scope(kind: &str, id: Uuid) -> Option<PolicyScope> {
    let kind = ScopeType::ALL.into_iter().find(|known| known.as_str() == kind)?;
    match kind {
        ScopeType::System => Some(PolicyScope::System),
        ScopeType::Group => Some(PolicyScope::Group(GroupId::from_uuid(id))),
        ScopeType::Project => Some(PolicyScope::Project(ProjectId::from_uuid(id))),
        ScopeType::User | ScopeType::Task => None,
    }
}

struct PolicyRow {
    scope_type: String,
    scope_id: Uuid,
    key: String,
    value: Value,
    set_by: Uuid,
    handle: String,
    set_at: OffsetDateTime,
}

impl TryFrom<PolicyRow> for PolicyEntry {
    type Error = DbError;

    fn try_from(row: PolicyRow) -> Result<Self, DbError> {
        let table = "mandatory_policies";
        let scope = parse_policy_scope(&row.scope_type, row.scope_id);
        // A policy that this version cannot read is an error: without it, more would be allowed.
        let key =
            PolicyKey::from_name(&row.key).ok_or(DbError::Corrupt { table, column: "key" })?;
        Ok(Self {
            scope: scope.ok_or(DbError::Corrupt { table, column: "scope_type" })?,
            key,
            value: PolicyValue::parse_value(key, &row.value)
                .map_err(corrupt_column(table, "value"))?,
            set_by: UserId::from_uuid(row.set_by),
            set_by_handle: row.handle,
            set_at: row.set_at,
        })
    }
}

/// The policies that hold for a user, in a project if one is named: those of the system, of the user's groups and of the project.
#[tracing::instrument(name = "db.policies.load_policies", skip_all)]
pub async fn load_policies(
    conn: &mut Conn,
    user: UserId,
    project: Option<ProjectId>,
) -> Result<PolicySet, DbError> {
    let rows = sqlx::query_as!(
        PolicyRow,
        "
        SELECT p.scope_type, p.scope_id, p.key, p.value, p.set_by, u.handle, p.set_at
        FROM mandatory_policies p JOIN users u ON u.user_id = p.set_by
        WHERE p.scope_type = 'system'
           OR p.scope_type = 'project' AND p.scope_id = $2
           OR p.scope_type = 'group' AND p.scope_id IN (SELECT m.group_id FROM group_members m WHERE m.user_id = $1)
        ",
        user.as_uuid(),
        project.map(|project| project.as_uuid()),
    )
    .fetch_all(conn)
    .await?;
    let entries: Result<Vec<_>, _> = rows.into_iter().map(PolicyEntry::try_from).collect();
    Ok(PolicySet::from_entries(entries?))
}

/// The policies of one scope alone.
#[tracing::instrument(name = "db.policies.list_policies", skip_all)]
pub async fn list_policies(conn: &mut Conn, scope: PolicyScope) -> Result<PolicySet, DbError> {
    let (kind, id) = policy_scope_columns(scope);
    let rows = sqlx::query_as!(
        PolicyRow,
        "
        SELECT p.scope_type, p.scope_id, p.key, p.value, p.set_by, u.handle, p.set_at
        FROM mandatory_policies p JOIN users u ON u.user_id = p.set_by
        WHERE p.scope_type = $1 AND p.scope_id = $2
        ",
        kind,
        id,
    )
    .fetch_all(conn)
    .await?;
    let entries: Result<Vec<_>, _> = rows.into_iter().map(PolicyEntry::try_from).collect();
    Ok(PolicySet::from_entries(entries?))
}

/// The people whose words made the work of a task and of those that it continues: who asked for it, and who instructed, answered or
/// corrected it.
#[tracing::instrument(name = "db.policies.list_task_authors", skip_all)]
pub async fn list_task_authors(conn: &mut Conn, task: TaskId) -> Result<Vec<UserId>, DbError> {
    let found = sqlx::query_scalar!(
        r#"
        WITH RECURSIVE line AS (
            SELECT $1::uuid AS task_id
            UNION
            SELECT c.earlier_task_id FROM task_continuations c JOIN line l ON c.task_id = l.task_id
        )
        SELECT created_by AS "author!" FROM tasks WHERE task_id = ANY (ARRAY(SELECT task_id FROM line))
        UNION
        SELECT issued_by FROM task_instructions
        WHERE task_id = ANY (ARRAY(SELECT task_id FROM line)) AND text IS NOT NULL
        UNION
        SELECT resolved_by FROM waits
        WHERE task_id = ANY (ARRAY(SELECT task_id FROM line)) AND resolution IN ('answered', 'rejected') AND answer IS NOT NULL AND resolved_by IS NOT NULL
        "#,
        task.as_uuid(),
    )
    .fetch_all(conn)
    .await?;
    Ok(found.into_iter().map(UserId::from_uuid).collect())
}

/// Lets one writer at a time compare a policy with the present one.
#[tracing::instrument(name = "db.policies.lock_policies", skip_all)]
pub async fn lock_policies(conn: &mut Conn) -> Result<(), DbError> {
    sqlx::query!("SELECT pg_advisory_xact_lock(hashtext('cynode.policies'))").execute(conn).await?;
    Ok(())
}

/// Writes a policy.
#[tracing::instrument(name = "db.policies.set_policy", skip_all)]
pub async fn set_policy(
    conn: &mut Conn,
    scope: PolicyScope,
    key: PolicyKey,
    value: &PolicyValue,
    by: UserId,
    now: OffsetDateTime,
) -> Result<(), DbError> {
    let (kind, id) = policy_scope_columns(scope);
    sqlx::query!(
        "
        INSERT INTO mandatory_policies (scope_type, scope_id, key, value, set_by, set_at)
        VALUES ($1, $2, $3, $4, $5, $6)
        ON CONFLICT (scope_type, scope_id, key) DO UPDATE
        SET value = excluded.value, set_by = excluded.set_by, set_at = excluded.set_at
        ",
        kind,
        id,
        key.as_str(),
        value.to_json(),
        by.as_uuid(),
        now,
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// Deletes a policy; `false` when there is none.
#[tracing::instrument(name = "db.policies.delete_policy", skip_all)]
pub async fn delete_policy(
    conn: &mut Conn,
    scope: PolicyScope,
    key: PolicyKey,
) -> Result<bool, DbError> {
    let (kind, id) = policy_scope_columns(scope);
    let done = sqlx::query!(
        "DELETE FROM mandatory_policies WHERE scope_type = $1 AND scope_id = $2 AND key = $3",
        kind,
        id,
        key.as_str(),
    )
    .execute(conn)
    .await?;
    Ok(done.rows_affected() == 1)
}
