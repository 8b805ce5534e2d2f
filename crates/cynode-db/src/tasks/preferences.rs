//! Preferences of every scope, and their history.

use cynode_core::{
    ids::{GroupId, ProjectId, TaskId, UserId},
    names::DottedKey,
    preferences::{PreferenceEntry, PreferenceScope, ScopeType},
    settings::{ExpectedVersion, ValueChange, VersionedValue},
};
use serde_json::Value;
use time::OffsetDateTime;
use uuid::Uuid;

use crate::{
    Conn, DbError,
    platform::{
        error::corrupt_column,
        settings::{ValueChangeRow, VersionedValueRow},
    },
};

/// A scope as its two columns.
const fn preference_scope_columns(scope: PreferenceScope) -> (&'static str, Uuid) {
    let id = match scope {
        PreferenceScope::System => Uuid::nil(),
        PreferenceScope::Group(id) => id.as_uuid(),
        PreferenceScope::User(id) => id.as_uuid(),
        PreferenceScope::Project(id) => id.as_uuid(),
        PreferenceScope::Task(id) => id.as_uuid(),
    };
    (scope.scope_type().as_str(), id)
}

fn parse_preference_scope(kind: &str, id: Uuid) -> Option<PreferenceScope> {
    let kind = ScopeType::ALL.into_iter().find(|known| known.as_str() == kind)?;
    Some(match kind {
        ScopeType::System => PreferenceScope::System,
        ScopeType::Group => PreferenceScope::Group(GroupId::from_uuid(id)),
        ScopeType::User => PreferenceScope::User(UserId::from_uuid(id)),
        ScopeType::Project => PreferenceScope::Project(ProjectId::from_uuid(id)),
        ScopeType::Task => PreferenceScope::Task(TaskId::from_uuid(id)),
    })
}

/// All preferences of one scope, by key.
pub async fn list_preferences(
    conn: &mut Conn,
    scope: PreferenceScope,
) -> Result<Vec<VersionedValue>, DbError> {
    let (kind, id) = preference_scope_columns(scope);
    sqlx::query_as!(
        VersionedValueRow,
        "
        SELECT key, value, version, updated_by, updated_at
        FROM preferences
        WHERE scope_type = $1 AND scope_id = $2
        ORDER BY key
        ",
        kind,
        id,
    )
    .fetch_all(conn)
    .await?
    .into_iter()
    .map(VersionedValue::try_from)
    .collect()
}

/// One preference.
pub async fn get_preference(
    conn: &mut Conn,
    scope: PreferenceScope,
    key: &DottedKey,
) -> Result<Option<VersionedValue>, DbError> {
    let (kind, id) = preference_scope_columns(scope);
    sqlx::query_as!(
        VersionedValueRow,
        "
        SELECT key, value, version, updated_by, updated_at
        FROM preferences
        WHERE scope_type = $1 AND scope_id = $2 AND key = $3
        ",
        kind,
        id,
        key.as_str(),
    )
    .fetch_optional(conn)
    .await?
    .map(VersionedValue::try_from)
    .transpose()
}

/// Everything that may speak to a request: the entries of all the given scopes and of the groups of a user.
#[tracing::instrument(name = "db.preferences.list_preference_entries", skip_all)]
pub async fn list_preference_entries(
    conn: &mut Conn,
    scopes: &[PreferenceScope],
    member: UserId,
) -> Result<Vec<PreferenceEntry>, DbError> {
    let (kinds, ids): (Vec<&str>, Vec<Uuid>) =
        scopes.iter().copied().map(preference_scope_columns).unzip();
    let rows = sqlx::query!(
        r#"
        SELECT p.scope_type, p.scope_id, p.key, p.value, p.version
        FROM preferences p
        JOIN (
            SELECT * FROM unnest($1::text[], $2::uuid[])
            UNION ALL
            SELECT 'group', group_id FROM group_members WHERE user_id = $3
        ) AS wanted (scope_type, scope_id)
          ON p.scope_type = wanted.scope_type AND p.scope_id = wanted.scope_id
        ORDER BY p.key, p.scope_type, p.scope_id
        "#,
        &kinds as &[&str],
        &ids,
        member.as_uuid(),
    )
    .fetch_all(conn)
    .await?;
    rows.into_iter()
        .map(|row| {
            Ok(PreferenceEntry {
                scope: parse_preference_scope(&row.scope_type, row.scope_id)
                    .ok_or(DbError::Corrupt { table: "preferences", column: "scope_type" })?,
                key: row.key.try_into().map_err(corrupt_column("preferences", "key"))?,
                value: row.value,
                version: row.version,
            })
        })
        .collect()
}

/// Writes a preference if what the writer believes is there is there; `None` when it is not.
/// See [`crate::platform::settings::set_setting`] for why this is one statement.
#[tracing::instrument(name = "db.preferences.set_preference", skip_all, fields(preference.key = %key))]
pub async fn set_preference(
    conn: &mut Conn,
    scope: PreferenceScope,
    key: &DottedKey,
    value: &Value,
    expected: ExpectedVersion,
    by: UserId,
    now: OffsetDateTime,
) -> Result<Option<VersionedValue>, DbError> {
    let (kind, id) = preference_scope_columns(scope);
    sqlx::query_as!(
        VersionedValueRow,
        r#"
        WITH written AS (
            INSERT INTO preferences AS p (scope_type, scope_id, key, value, version, updated_by, updated_at)
            SELECT $1, $2, $3, $4,
                coalesce((
                    SELECT max(h.version) FROM preferences_history h
                    WHERE h.scope_type = $1 AND h.scope_id = $2 AND h.key = $3), 0) + 1,
                $6, $7
            WHERE $5::bigint = 0
               OR EXISTS (
                    SELECT FROM preferences
                    WHERE scope_type = $1 AND scope_id = $2 AND key = $3 AND version = $5)
            ON CONFLICT ON CONSTRAINT preferences_unique DO UPDATE
            SET value = excluded.value, version = excluded.version,
                updated_by = excluded.updated_by, updated_at = excluded.updated_at
            WHERE p.version = $5
            RETURNING scope_type, scope_id, key, value, version, updated_by, updated_at
        ), kept AS (
            INSERT INTO preferences_history
                (scope_type, scope_id, key, version, value, changed_by, changed_at)
            SELECT scope_type, scope_id, key, version, value, updated_by, updated_at FROM written
        )
        SELECT key AS "key!", value AS "value!", version AS "version!",
            updated_by AS "updated_by!", updated_at AS "updated_at!"
        FROM written
        "#,
        kind,
        id,
        key.as_str(),
        value,
        expected.version_number(),
        by.as_uuid(),
        now,
    )
    .fetch_optional(conn)
    .await?
    .map(VersionedValue::try_from)
    .transpose()
}

/// Notes, in the transaction of the change, that the preferences of a user, a project or a task choose models otherwise.
/// Gives whether the scope has an epoch of its own: those of the system and of groups have none.
#[tracing::instrument(name = "db.preferences.bump_preference_epoch", skip_all)]
pub async fn bump_preference_epoch(
    conn: &mut Conn,
    scope: PreferenceScope,
) -> Result<bool, DbError> {
    match scope {
        PreferenceScope::System | PreferenceScope::Group(_) => return Ok(false),
        PreferenceScope::User(_) | PreferenceScope::Project(_) | PreferenceScope::Task(_) => {}
    }
    let (kind, id) = preference_scope_columns(scope);
    sqlx::query!(
        "
        INSERT INTO preference_epochs AS e (scope_type, scope_id, epoch) VALUES ($1, $2, 1)
        ON CONFLICT (scope_type, scope_id) DO UPDATE SET epoch = e.epoch + 1
        ",
        kind,
        id,
    )
    .execute(conn)
    .await?;
    Ok(true)
}

/// The epoch of the preferences by which models are chosen for a user in a project and for a task.
pub async fn get_preference_epoch(
    conn: &mut Conn,
    user: UserId,
    project: Option<ProjectId>,
    task: Option<TaskId>,
) -> Result<i64, DbError> {
    let epoch = sqlx::query_scalar!(
        r#"SELECT preference_epoch($1, $2, $3) AS "epoch!""#,
        user.as_uuid(),
        project.map(ProjectId::as_uuid),
        task.map(TaskId::as_uuid),
    );
    Ok(epoch.fetch_one(conn).await?)
}

/// Deletes a preference of that version; `false` when that version is not there.
#[tracing::instrument(name = "db.preferences.delete_preference", skip_all, fields(preference.key = %key))]
pub async fn delete_preference(
    conn: &mut Conn,
    scope: PreferenceScope,
    key: &DottedKey,
    version: i64,
    by: UserId,
    now: OffsetDateTime,
) -> Result<bool, DbError> {
    let (kind, id) = preference_scope_columns(scope);
    let done = sqlx::query!(
        "
        WITH gone AS (
            DELETE FROM preferences
            WHERE scope_type = $1 AND scope_id = $2 AND key = $3 AND version = $4
            RETURNING scope_type, scope_id, key, version
        )
        INSERT INTO preferences_history (scope_type, scope_id, key, version, value, changed_by, changed_at)
        SELECT scope_type, scope_id, key, version + 1, NULL, $5, $6 FROM gone
        ",
        kind,
        id,
        key.as_str(),
        version,
        by.as_uuid(),
        now,
    )
    .execute(conn)
    .await?;
    Ok(done.rows_affected() == 1)
}

/// The last 200 writes of a key in a scope, newest first.
pub async fn preference_history(
    conn: &mut Conn,
    scope: PreferenceScope,
    key: &DottedKey,
) -> Result<Vec<ValueChange>, DbError> {
    let (kind, id) = preference_scope_columns(scope);
    let rows = sqlx::query_as!(
        ValueChangeRow,
        "
        SELECT version, value, changed_by, changed_at
        FROM preferences_history
        WHERE scope_type = $1 AND scope_id = $2 AND key = $3
        ORDER BY version DESC
        LIMIT 200
        ",
        kind,
        id,
        key.as_str(),
    )
    .fetch_all(conn)
    .await?;
    Ok(rows.into_iter().map(ValueChange::from).collect())
}
