//! System settings and their history.

use cynode_core::{
    ids::UserId,
    names::DottedKey,
    settings::{ExpectedVersion, ValueChange, VersionedValue},
};
use serde_json::Value;
use time::OffsetDateTime;
use uuid::Uuid;

use crate::{Conn, DbError, platform::error::corrupt_column};

pub(crate) struct VersionedValueRow {
    pub(crate) key: String,
    pub(crate) value: Value,
    pub(crate) version: i64,
    pub(crate) updated_by: Uuid,
    pub(crate) updated_at: OffsetDateTime,
}

impl TryFrom<VersionedValueRow> for VersionedValue {
    type Error = DbError;

    fn try_from(row: VersionedValueRow) -> Result<Self, DbError> {
        Ok(Self {
            key: row.key.try_into().map_err(corrupt_column("settings", "key"))?,
            value: row.value,
            version: row.version,
            updated_by: UserId::from_uuid(row.updated_by),
            updated_at: row.updated_at,
        })
    }
}

pub(crate) struct ValueChangeRow {
    pub(crate) version: i64,
    pub(crate) value: Option<Value>,
    pub(crate) changed_by: Uuid,
    pub(crate) changed_at: OffsetDateTime,
}

impl From<ValueChangeRow> for ValueChange {
    fn from(row: ValueChangeRow) -> Self {
        let ValueChangeRow { version, value, changed_by, changed_at } = row;
        Self { version, value, changed_by: UserId::from_uuid(changed_by), changed_at }
    }
}

/// All settings, by key.
pub async fn list_settings(conn: &mut Conn) -> Result<Vec<VersionedValue>, DbError> {
    sqlx::query_as!(
        VersionedValueRow,
        "SELECT key, value, version, updated_by, updated_at FROM system_settings ORDER BY key"
    )
    .fetch_all(conn)
    .await?
    .into_iter()
    .map(VersionedValue::try_from)
    .collect()
}

/// One setting.
pub async fn get_setting(
    conn: &mut Conn,
    key: &DottedKey,
) -> Result<Option<VersionedValue>, DbError> {
    sqlx::query_as!(
        VersionedValueRow,
        "SELECT key, value, version, updated_by, updated_at FROM system_settings WHERE key = $1",
        key.as_str(),
    )
    .fetch_optional(conn)
    .await?
    .map(VersionedValue::try_from)
    .transpose()
}

/// Writes a setting if what the writer believes is there is there; `None` when it is not.
///
/// One statement checks, writes and keeps the history. A second writer waits for the first and then
/// sees another version. A key that was deleted goes on counting where it stopped.
#[tracing::instrument(name = "db.settings.set_setting", skip_all, fields(setting.key = %key))]
pub async fn set_setting(
    conn: &mut Conn,
    key: &DottedKey,
    value: &Value,
    expected: ExpectedVersion,
    by: UserId,
    now: OffsetDateTime,
) -> Result<Option<VersionedValue>, DbError> {
    sqlx::query_as!(
        VersionedValueRow,
        r#"
        WITH written AS (
            INSERT INTO system_settings AS s (key, value, version, updated_by, updated_at)
            SELECT $1, $2,
                coalesce((SELECT max(h.version) FROM system_settings_history h WHERE h.key = $1), 0) + 1,
                $4, $5
            WHERE $3::bigint = 0
               OR EXISTS (SELECT FROM system_settings WHERE key = $1 AND version = $3)
            ON CONFLICT (key) DO UPDATE
            SET value = excluded.value, version = excluded.version,
                updated_by = excluded.updated_by, updated_at = excluded.updated_at
            WHERE s.version = $3
            RETURNING key, value, version, updated_by, updated_at
        ), kept AS (
            INSERT INTO system_settings_history (key, version, value, changed_by, changed_at)
            SELECT key, version, value, updated_by, updated_at FROM written
        )
        SELECT key AS "key!", value AS "value!", version AS "version!",
            updated_by AS "updated_by!", updated_at AS "updated_at!"
        FROM written
        "#,
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

/// Deletes a setting of that version; `false` when that version is not there.
#[tracing::instrument(name = "db.settings.delete_setting", skip_all, fields(setting.key = %key))]
pub async fn delete_setting(
    conn: &mut Conn,
    key: &DottedKey,
    version: i64,
    by: UserId,
    now: OffsetDateTime,
) -> Result<bool, DbError> {
    let done = sqlx::query!(
        "
        WITH gone AS (
            DELETE FROM system_settings WHERE key = $1 AND version = $2 RETURNING key, version
        )
        INSERT INTO system_settings_history (key, version, value, changed_by, changed_at)
        SELECT key, version + 1, NULL, $3, $4 FROM gone
        ",
        key.as_str(),
        version,
        by.as_uuid(),
        now,
    )
    .execute(conn)
    .await?;
    Ok(done.rows_affected() == 1)
}

/// The last 200 writes of a key, newest first.
pub async fn setting_history(
    conn: &mut Conn,
    key: &DottedKey,
) -> Result<Vec<ValueChange>, DbError> {
    let rows = sqlx::query_as!(
        ValueChangeRow,
        "
        SELECT version, value, changed_by, changed_at
        FROM system_settings_history
        WHERE key = $1
        ORDER BY version DESC
        LIMIT 200
        ",
        key.as_str(),
    )
    .fetch_all(conn)
    .await?;
    Ok(rows.into_iter().map(ValueChange::from).collect())
}
