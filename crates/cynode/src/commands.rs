//! One file per subcommand.

pub(crate) mod admin;
pub(crate) mod audit;
pub(crate) mod config;
pub(crate) mod demo;
pub(crate) mod doctor;
pub(crate) mod migrate;
pub(crate) mod reference;
pub(crate) mod serve;
pub(crate) mod up;

use std::future::Future;

use anyhow::Context;
use cynode_app::{App, AppEnvironment};
use cynode_db::DbOptions;

use crate::config::CynodeConfig;

/// Runs a future to its end on its own runtime.
fn block_on<T>(future: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    runtime.context("the async runtime could not be started")?.block_on(future)
}

/// Opens the application operations over a database.
fn open_app(config: &CynodeConfig, options: &DbOptions) -> anyhow::Result<App> {
    let pool = cynode_db::connect_pool(options)?;
    let app = App::new(pool, AppEnvironment::from_system(), config.auth.policy);
    Ok(app.with_account_limits(config.server.account_limits))
}

/// Returns the link that creates the first admin. The token is in the fragment, so that no server logs it.
fn bootstrap_link(config: &CynodeConfig, token: &str) -> String {
    format!("http://{}/setup#bootstrap={token}", config.server.listen)
}
