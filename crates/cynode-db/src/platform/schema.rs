//! Schema: embedded forward-only migrations, and monthly partitions of tables that grow.

use sqlx::migrate::{Migrate, MigrateError, Migrator};
use time::{Date, Month, OffsetDateTime};

use crate::{Conn, DbError};

/// Every migration, in order.
pub static MIGRATOR: Migrator = sqlx::migrate!();

/// How many months ahead partitions are made.
const PARTITION_MONTHS_AHEAD: u8 = 3;

/// What `migrate` did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MigrationSummary {
    /// Migrations that the database had not seen.
    pub applied: usize,
    /// Migrations in all.
    pub total: usize,
}

/// Why the schema could not be brought up to date.
#[derive(Debug, thiserror::Error)]
pub enum MigrationError {
    /// The database holds tables, and none of them is ours.
    #[error(
        "the database holds tables of something else, `{table}` among them: CyNode needs a database of its own"
    )]
    Foreign {
        /// One of them.
        table: String,
    },
    /// A migration failed, or the database was migrated by another version.
    #[error("the schema could not be migrated")]
    Migrate(#[from] MigrateError),
    /// Another statement failed.
    #[error(transparent)]
    Db(#[from] DbError),
}

/// Applies what is missing, then makes the partitions around `now`. It holds an advisory lock while it
/// works, so that two processes starting at once do it once; killed half-way, it goes on from there,
/// since each migration is one transaction. A database that something else has tables in is left alone.
#[tracing::instrument(name = "db.schema.migrate_schema", skip_all)]
pub async fn migrate_schema(
    conn: &mut Conn,
    now: OffsetDateTime,
) -> Result<MigrationSummary, MigrationError> {
    let total = MIGRATOR.iter().count();
    if let Some(table) = foreign_table(conn).await? {
        return Err(MigrationError::Foreign { table });
    }
    let before = pending_migrations(conn).await?.len();
    MIGRATOR.run(&mut *conn).await?;
    ensure_partitions(conn, now).await?;
    Ok(MigrationSummary { applied: before, total })
}

/// A table of something else, where nothing was migrated yet. Those of extensions do not count. One statement, so that what
/// another process migrates meanwhile is not taken for it.
async fn foreign_table(conn: &mut Conn) -> Result<Option<String>, DbError> {
    let found = sqlx::query_scalar!(
        r#"SELECT c.relname::text AS "name!"
           FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
           WHERE n.nspname = current_schema() AND c.relkind IN ('r', 'p')
             AND to_regclass('_sqlx_migrations') IS NULL
             AND NOT EXISTS (
                 SELECT FROM pg_depend d
                 WHERE d.classid = 'pg_class'::regclass AND d.objid = c.oid AND d.deptype = 'e')
           ORDER BY c.relname LIMIT 1"#
    )
    .fetch_optional(conn)
    .await?;
    Ok(found)
}

/// The migrations that the database has not seen, by their description.
pub async fn pending_migrations(conn: &mut Conn) -> Result<Vec<String>, MigrationError> {
    let table = &MIGRATOR.table_name;
    let known =
        sqlx::query_scalar!(r#"SELECT to_regclass('_sqlx_migrations') IS NOT NULL AS "known!""#)
            .fetch_one(&mut *conn)
            .await
            .map_err(DbError::from)?;
    let applied = if known { conn.list_applied_migrations(table).await? } else { Vec::new() };
    let seen = |version| applied.iter().any(|migration| migration.version == version);
    let pending = MIGRATOR.iter().filter(|migration| !seen(migration.version));
    Ok(pending.map(|migration| migration.description.to_string()).collect())
}

/// The tables that grow with time, partitioned by month.
const PARTITIONED_TABLES: [&str; 6] =
    ["events", "workflow_transitions", "audit_records", "model_calls", "job_events", "think_calls"];

/// Makes the monthly partitions from last month to some months ahead, of `now` and of the database's own clock, by which
/// some tables go. Running it again, or in two processes at once, changes nothing.
#[tracing::instrument(name = "db.schema.ensure_partitions", skip_all)]
pub async fn ensure_partitions(conn: &mut Conn, now: OffsetDateTime) -> Result<(), DbError> {
    let theirs =
        sqlx::query_scalar!(r#"SELECT clock_timestamp() AS "now!""#).fetch_one(&mut *conn).await?;
    for table in PARTITIONED_TABLES {
        for around in [now, theirs] {
            ensure_months(conn, table, first_of_month(around.date())).await?;
        }
    }
    Ok(())
}

async fn ensure_months(conn: &mut Conn, table: &str, month: Date) -> Result<(), DbError> {
    let mut month = previous_month(month);
    for _ in 0..=PARTITION_MONTHS_AHEAD + 1 {
        let next = next_month(month);
        let name = format!("{table}_{:04}_{:02}", month.year(), u8::from(month.month()));
        // Name and bounds are numbers that we formatted; DDL takes no parameters.
        let statement = format!(
            "SELECT pg_advisory_xact_lock(hashtext('cynode.partitions')); \
             CREATE TABLE IF NOT EXISTS {name} PARTITION OF {table} \
             FOR VALUES FROM ('{month} 00:00:00+00') TO ('{next} 00:00:00+00')"
        );
        sqlx::raw_sql(sqlx::AssertSqlSafe(statement)).execute(&mut *conn).await?;
        month = next;
    }
    Ok(())
}

/// The tables without a partition for what happens at `at`.
pub async fn tables_without_partition(
    conn: &mut Conn,
    at: OffsetDateTime,
) -> Result<Vec<String>, DbError> {
    let month = format!("_{:04}_{:02}", at.year(), u8::from(at.month()));
    let tables = PARTITIONED_TABLES.map(str::to_owned);
    let missing = sqlx::query_scalar!(
        r#"SELECT name AS "name!" FROM unnest($1::text[]) AS name WHERE to_regclass(name || $2::text) IS NULL"#,
        &tables[..],
        month,
    )
    .fetch_all(conn)
    .await?;
    Ok(missing)
}

fn first_of_month(date: Date) -> Date {
    date.replace_day(1).unwrap_or(date)
}

fn next_month(month: Date) -> Date {
    let year = month.year() + i32::from(month.month() == Month::December);
    Date::from_calendar_date(year, month.month().next(), 1).unwrap_or(month)
}

fn previous_month(month: Date) -> Date {
    let year = month.year() - i32::from(month.month() == Month::January);
    Date::from_calendar_date(year, month.month().previous(), 1).unwrap_or(month)
}
