//! Partitions: one project under one profile. A transaction enters one, and sees and changes that one only.

use cynode_core::{
    ids::{MemoryId, ProjectId},
    memory::MemoryScope,
    profiles::ProfileName,
};
use time::OffsetDateTime;

use crate::{Conn, DbError, platform::error::corrupt_column};

/// A partition that the transaction has entered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Partition {
    /// Its number.
    pub number: i64,
    /// How many records its index holds.
    pub records: i64,
    /// How many lexemes those have together.
    pub total_length: i64,
    /// The number of its newest record.
    pub last_record_no: i32,
    /// The project and profile.
    pub scope: MemoryScope,
}

/// How a transaction enters a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryMode {
    /// To read.
    Read,
    /// To write: other writers wait until the transaction ends.
    Lock,
    /// To write, and it is made where it is missing.
    Create,
}

impl EntryMode {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Lock => "lock",
            Self::Create => "create",
        }
    }
}

/// Enters the partition of a scope until the end of the transaction; `None` where there is none. Outside of a transaction nothing is seen.
#[tracing::instrument(name = "db.memory.enter_partition", skip_all)]
pub async fn enter_partition(
    conn: &mut Conn,
    scope: &MemoryScope,
    mode: EntryMode,
) -> Result<Option<Partition>, DbError> {
    let entered = sqlx::query!(
        r#"
        SELECT number AS "number!", record_count AS "records!", length_sum AS "total_length!", last_number AS "last_record_no!"
        FROM enter_memory_partition($1, $2, $3)
        "#,
        scope.project.as_uuid(),
        scope.profile.as_str(),
        mode.as_str(),
    )
    .fetch_optional(conn)
    .await?;
    Ok(entered.map(|row| Partition {
        number: row.number,
        records: row.records,
        total_length: row.total_length,
        last_record_no: row.last_record_no,
        scope: scope.clone(),
    }))
}

/// Enters the partition of a scope to write. It is made where it is missing.
pub async fn open_partition(conn: &mut Conn, scope: &MemoryScope) -> Result<Partition, DbError> {
    let entered = enter_partition(conn, scope, EntryMode::Create).await?;
    entered.ok_or(DbError::Corrupt { table: "memory_partitions", column: "partition_no" })
}

/// The project and profile of a record, whatever partition was entered.
#[tracing::instrument(name = "db.memory.find_scope", skip_all)]
pub async fn find_scope(conn: &mut Conn, id: MemoryId) -> Result<Option<MemoryScope>, DbError> {
    let found = sqlx::query!(
        r#"SELECT scope_project AS "project!", scope_profile AS "profile!" FROM find_memory_scope($1)"#,
        id.as_uuid(),
    )
    .fetch_optional(conn)
    .await?;
    let Some(row) = found else { return Ok(None) };
    let profile: ProfileName =
        row.profile.parse().map_err(corrupt_column("memories", "profile"))?;
    Ok(Some(MemoryScope { project: ProjectId::from_uuid(row.project), profile }))
}

/// Deletes an entered partition with all of its records.
#[tracing::instrument(name = "db.memory.delete_partition", skip_all)]
pub async fn delete_partition(conn: &mut Conn, partition: &Partition) -> Result<u64, DbError> {
    let records = sqlx::query_scalar!(
        r#"SELECT count(*) AS "records!" FROM memories WHERE partition_no = $1"#,
        partition.number,
    )
    .fetch_one(&mut *conn)
    .await?;
    sqlx::query!("DELETE FROM memory_partitions WHERE partition_no = $1", partition.number)
        .execute(conn)
        .await?;
    Ok(u64::try_from(records).unwrap_or_default())
}

/// Removes some proposals, of every partition, that were made before a time and that nobody decided; how many.
#[tracing::instrument(name = "db.memory.prune_proposals", skip_all)]
pub async fn prune_proposals(
    conn: &mut Conn,
    before: OffsetDateTime,
    max: i64,
) -> Result<i64, DbError> {
    let removed =
        sqlx::query_scalar!(r#"SELECT prune_memory_proposals($1, $2) AS "removed!""#, before, max);
    Ok(removed.fetch_one(conn).await?)
}
