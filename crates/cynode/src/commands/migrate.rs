//! `cynode migrate`: applies schema migrations.

use std::{fs, path::PathBuf, process::ExitCode, time::Duration};

use anyhow::Context;
use clap::Args;
use cynode_app::AppEnvironment;
use cynode_db::{
    DbOptions,
    platform::{database_roles, schema},
};

use super::block_on;
use crate::{
    config::LoadedConfig,
    installation::InstallationArgs,
    output,
    telemetry::{self, LogSink},
};

/// Migrate the database schema.
#[derive(Args)]
pub(crate) struct MigrateArgs {
    #[command(flatten)]
    installation: InstallationArgs,
    /// File with the password of the role `cynode_runtime`, hexadecimal digits. The role is created, or gets this password: with it a
    /// server reads and writes rows and changes no tables. The owner must be allowed to create roles.
    #[arg(long, value_name = "FILE")]
    runtime_password_file: Option<PathBuf>,
}

pub(crate) fn run_migrate(
    args: &MigrateArgs,
    loaded: &mut LoadedConfig,
) -> anyhow::Result<ExitCode> {
    let _telemetry = telemetry::start_telemetry(&loaded.config.telemetry, &LogSink::Person)?;
    loaded.log_adjustments();
    args.installation.fill_config(&mut loaded.config, true)?;
    let options = loaded.config.database.pool_options()?;
    let password = args.runtime_password_file.as_ref().map(|file| {
        fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))
    });
    let password = password.transpose()?;
    let migrated = block_on(async {
        // First the role: a migration grants what it needs.
        if let Some(password) = &password {
            create_runtime_role(&options, password.trim()).await?;
        }
        apply_migrations(options).await
    })?;
    output::print_line(&match migrated.applied {
        0 => format!("up to date: all {} migrations were applied before", migrated.total),
        applied => format!("applied {applied} of {} migrations", migrated.total),
    });
    Ok(ExitCode::SUCCESS)
}

async fn create_runtime_role(options: &DbOptions, password: &str) -> anyhow::Result<()> {
    let pool = cynode_db::connect_pool(options)?;
    let conn = cynode_db::acquire_connection(&pool).await;
    let mut conn = conn.context("the database cannot be reached: is PostgreSQL running there?")?;
    let created = database_roles::ensure_runtime_role(&mut conn, password).await;
    created.context(
        "the role of a running server could not be created: its password is hexadecimal digits",
    )?;
    drop(conn);
    pool.close().await;
    Ok(())
}

/// Applies the missing migrations, without a timeout.
pub(crate) async fn apply_migrations(
    options: DbOptions,
) -> anyhow::Result<schema::MigrationSummary> {
    let options = DbOptions { statement_timeout: Duration::ZERO, max_connections: 1, ..options };
    let pool = cynode_db::connect_pool(&options)?;
    let conn = cynode_db::acquire_connection(&pool).await;
    let mut conn = conn.context("the database cannot be reached: is PostgreSQL running there?")?;
    Ok(schema::migrate_schema(&mut conn, AppEnvironment::from_system().now()).await?)
}
