//! Preferences of every scope and their history.

use cynode_core::{
    ids::{GroupId, ProjectId, TaskId, UserId},
    names::DottedKey,
    preferences::{Entry, Scope, ScopeType},
    settings::{Change, Expected, Versioned},
};
use serde_json::Value;
use time::OffsetDateTime;
use uuid::Uuid;

use crate::{
    Conn, DbError,
    error::corrupt,
    settings::{ChangeRow, ValueRow},
};

/// A scope as its two columns.
const fn columns(scope: Scope) -> (&'static str, Uuid) {
    let id = match scope {
        Scope::System => Uuid::nil(),
        Scope::Group(id) => id.as_uuid(),
        Scope::User(id) => id.as_uuid(),
        Scope::Project(id) => id.as_uuid(),
        Scope::Task(id) => id.as_uuid(),
    };
    (scope.kind().as_str(), id)
}

fn scope(kind: &str, id: Uuid) -> Option<Scope> {
    let kind = ScopeType::ALL.into_iter().find(|known| known.as_str() == kind)?;
    Some(match kind {
        ScopeType::System => Scope::System,
        ScopeType::Group => Scope::Group(GroupId::from_uuid(id)),
        ScopeType::User => Scope::User(UserId::from_uuid(id)),
        ScopeType::Project => Scope::Project(ProjectId::from_uuid(id)),
        ScopeType::Task => Scope::Task(TaskId::from_uuid(id)),
    })
}

/// All preferences of one scope, by key.
pub async fn list(conn: &mut Conn, scope: Scope) -> Result<Vec<Versioned>, DbError> {
    let (kind, id) = columns(scope);
    sqlx::query_as!(
        ValueRow,
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
    .map(Versioned::try_from)
    .collect()
}

/// One preference.
pub async fn get(
    conn: &mut Conn,
    scope: Scope,
    key: &DottedKey,
) -> Result<Option<Versioned>, DbError> {
    let (kind, id) = columns(scope);
    sqlx::query_as!(
        ValueRow,
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
    .map(Versioned::try_from)
    .transpose()
}

/// Everything that may speak to a request: the entries of all the given scopes.
#[tracing::instrument(name = "db.preferences.entries", skip_all)]
pub async fn entries(conn: &mut Conn, scopes: &[Scope]) -> Result<Vec<Entry>, DbError> {
    let (kinds, ids): (Vec<&str>, Vec<Uuid>) = scopes.iter().copied().map(columns).unzip();
    let rows = sqlx::query!(
        r#"
        SELECT p.scope_type, p.scope_id, p.key, p.value, p.version
        FROM preferences p
        JOIN unnest($1::text[], $2::uuid[]) AS wanted (scope_type, scope_id)
          ON p.scope_type = wanted.scope_type AND p.scope_id = wanted.scope_id
        ORDER BY p.key, p.scope_type, p.scope_id
        "#,
        &kinds as &[&str],
        &ids,
    )
    .fetch_all(conn)
    .await?;
    rows.into_iter()
        .map(|row| {
            Ok(Entry {
                scope: scope(&row.scope_type, row.scope_id)
                    .ok_or(DbError::Corrupt { table: "preferences", column: "scope_type" })?,
                key: row.key.try_into().map_err(corrupt("preferences", "key"))?,
                value: row.value,
                version: row.version,
            })
        })
        .collect()
}

/// Writes a preference if what the writer believes is there is there; `None` when it is not.
/// See [`crate::settings::set`] for why this is one statement.
#[tracing::instrument(name = "db.preferences.set", skip_all, fields(preference.key = %key))]
pub async fn set(
    conn: &mut Conn,
    scope: Scope,
    key: &DottedKey,
    value: &Value,
    expected: Expected,
    by: UserId,
    now: OffsetDateTime,
) -> Result<Option<Versioned>, DbError> {
    let (kind, id) = columns(scope);
    sqlx::query_as!(
        ValueRow,
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
            ON CONFLICT ON CONSTRAINT preferences_once DO UPDATE
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
        expected.number(),
        by.as_uuid(),
        now,
    )
    .fetch_optional(conn)
    .await?
    .map(Versioned::try_from)
    .transpose()
}

/// Deletes a preference of that version; `false` when that version is not there.
#[tracing::instrument(name = "db.preferences.delete", skip_all, fields(preference.key = %key))]
pub async fn delete(
    conn: &mut Conn,
    scope: Scope,
    key: &DottedKey,
    version: i64,
    by: UserId,
    now: OffsetDateTime,
) -> Result<bool, DbError> {
    let (kind, id) = columns(scope);
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
pub async fn history(
    conn: &mut Conn,
    scope: Scope,
    key: &DottedKey,
) -> Result<Vec<Change>, DbError> {
    let (kind, id) = columns(scope);
    let rows = sqlx::query_as!(
        ChangeRow,
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
    Ok(rows.into_iter().map(Change::from).collect())
}
