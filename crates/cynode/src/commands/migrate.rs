//! `cynode migrate`: applies schema migrations.

use std::{process::ExitCode, time::Duration};

use anyhow::Context;
use cynode_app::AppEnvironment;
use cynode_db::{DbOptions, platform::schema};

use super::block_on;
use crate::{
    config::LoadedConfig,
    installation::InstallationArgs,
    output,
    telemetry::{self, LogSink},
};

pub(crate) fn run_migrate(
    installation: &InstallationArgs,
    loaded: &mut LoadedConfig,
) -> anyhow::Result<ExitCode> {
    let _telemetry = telemetry::start_telemetry(&loaded.config.telemetry, &LogSink::Person)?;
    loaded.log_adjustments();
    installation.fill_config(&mut loaded.config, true)?;
    let options = loaded.config.database.pool_options()?;
    let migrated = block_on(apply_migrations(options))?;
    output::print_line(&match migrated.applied {
        0 => format!("up to date: all {} migrations were applied before", migrated.total),
        applied => format!("applied {applied} of {} migrations", migrated.total),
    });
    Ok(ExitCode::SUCCESS)
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
