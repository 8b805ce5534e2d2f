//! `cynode migrate`: the schema, brought up to date.

use std::{process::ExitCode, time::Duration};

use anyhow::Context;
use cynode_app::Environment;
use cynode_db::{Options, schema};

use super::block_on;
use crate::{
    config::Loaded,
    installation::Installation,
    output,
    telemetry::{self, Sink},
};

pub(crate) fn run(installation: &Installation, loaded: &mut Loaded) -> anyhow::Result<ExitCode> {
    let _telemetry = telemetry::start(&loaded.config.telemetry, &Sink::Person)?;
    loaded.warn();
    installation.fill(&mut loaded.config, true)?;
    let options = loaded.config.database.options()?;
    let migrated = block_on(migrate(options))?;
    output::say(&match migrated.applied {
        0 => format!("up to date: all {} migrations were applied before", migrated.total),
        applied => format!("applied {applied} of {} migrations", migrated.total),
    });
    Ok(ExitCode::SUCCESS)
}

/// Applies what is missing, however long it takes.
pub(crate) async fn migrate(options: Options) -> anyhow::Result<schema::Migrated> {
    let options = Options { statement_timeout: Duration::ZERO, max_connections: 1, ..options };
    let pool = cynode_db::connect(&options)?;
    let conn = pool.acquire().await;
    let mut conn = conn.context("the database cannot be reached: is PostgreSQL running there?")?;
    Ok(schema::migrate(&mut conn, Environment::system().now()).await?)
}
