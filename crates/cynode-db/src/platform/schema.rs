//! Schema: embedded forward-only migrations, and monthly partitions of tables that grow.

use std::borrow::Cow;

use cynode_core::releases::Release;
use sqlx::migrate::{Migrate, MigrateError, Migrator};
use time::{Date, Month, OffsetDateTime};

use crate::{
    Conn, DbError,
    platform::{database_roles, error::corrupt_column},
};

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
    /// A later release migrated the database, and this program is too old for its schema.
    #[error(
        "a later release migrated the database: its schema needs {needed} or newer, and this program is {present}; install {needed} or \
         newer, or restore the backup that was made before the upgrade"
    )]
    TooNew {
        /// Oldest release that works with the schema.
        needed: Release,
        /// Release of this program.
        present: Release,
    },
    /// Migrations are missing, and the role of this connection may not change tables.
    #[error(
        "{pending} migrations are missing, and the role of this URL may change no tables: migrate with the URL of the owner (`cynode-setup` \
         takes it as SETUP_OWNER_URL)"
    )]
    NotOwner {
        /// Number of missing migrations.
        pending: usize,
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
/// since each migration is one transaction. A database that something else has tables in is left alone. A role that may not change tables
/// finds that nothing is missing, or is refused.
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
    ensure_release_fits(conn, Release::current()).await?;
    if !database_roles::get_role_privileges(conn).await?.creates_tables {
        return match before {
            0 => Ok(MigrationSummary { applied: 0, total }),
            pending => Err(MigrationError::NotOwner { pending }),
        };
    }
    let migrator = Migrator {
        migrations: Cow::Borrowed(&MIGRATOR.migrations),
        // What a later release added was checked above. A missing migration in between is another lineage and is refused.
        ignore_missing: has_only_later_migrations(conn).await?,
        ..Migrator::DEFAULT
    };
    migrator.run(&mut *conn).await?;
    ensure_partitions(conn, now).await?;
    database_roles::grant_runtime_privileges(conn).await?;
    Ok(MigrationSummary { applied: before, total })
}

/// Refuses a schema that a later release made unusable for this program. One that it only added to is accepted: a downgrade within one
/// release needs no restore.
#[tracing::instrument(name = "db.schema.ensure_release_fits", skip_all)]
pub async fn ensure_release_fits(conn: &mut Conn, present: Release) -> Result<(), MigrationError> {
    let needed = min_release(conn).await?;
    match needed {
        Some(needed) if needed > present => Err(MigrationError::TooNew { needed, present }),
        Some(_) | None => Ok(()),
    }
}

/// Whether every migration that this program does not have is newer than all of its own.
async fn has_only_later_migrations(conn: &mut Conn) -> Result<bool, MigrationError> {
    let own = program_schema_version();
    let applied = list_applied_versions(conn).await?;
    Ok(applied.into_iter().all(|version| MIGRATOR.version_exists(version) || version > own))
}

/// The oldest release that works with the schema; `None` before the migration that records it.
async fn min_release(conn: &mut Conn) -> Result<Option<Release>, DbError> {
    let recorded = sqlx::query_scalar!(
        r#"SELECT to_regclass('schema_requirements') IS NOT NULL AS "recorded!""#
    )
    .fetch_one(&mut *conn)
    .await?;
    if !recorded {
        return Ok(None);
    }
    let text =
        sqlx::query_scalar!("SELECT min_release FROM schema_requirements").fetch_one(conn).await?;
    text.parse().map(Some).map_err(corrupt_column("schema_requirements", "min_release"))
}

/// The version of the newest migration that the database has seen; 0 for none.
#[tracing::instrument(name = "db.schema.schema_version", skip_all)]
pub async fn schema_version(conn: &mut Conn) -> Result<i64, MigrationError> {
    Ok(list_applied_versions(conn).await?.into_iter().max().unwrap_or(0))
}

/// The version of the newest migration that this program has.
pub fn program_schema_version() -> i64 {
    MIGRATOR.iter().map(|migration| migration.version).max().unwrap_or(0)
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
    let applied = list_applied_versions(conn).await?;
    let pending = MIGRATOR.iter().filter(|migration| !applied.contains(&migration.version));
    Ok(pending.map(|migration| migration.description.to_string()).collect())
}

/// The versions of the migrations that the database has seen.
async fn list_applied_versions(conn: &mut Conn) -> Result<Vec<i64>, MigrationError> {
    let recorded =
        sqlx::query_scalar!(r#"SELECT to_regclass('_sqlx_migrations') IS NOT NULL AS "recorded!""#)
            .fetch_one(&mut *conn)
            .await
            .map_err(DbError::from)?;
    if !recorded {
        return Ok(Vec::new());
    }
    let applied = conn.list_applied_migrations(&MIGRATOR.table_name).await?;
    Ok(applied.iter().map(|migration| migration.version).collect())
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
        // The role of a running server may not create tables: the function has the rights of the owner.
        sqlx::query!("SELECT FROM ensure_month_partition($1, $2)", table, month)
            .execute(&mut *conn)
            .await?;
        month = next_month(month);
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
