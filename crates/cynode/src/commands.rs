//! One file per subcommand.

pub(crate) mod admin;
pub(crate) mod audit;
pub(crate) mod backup;
pub(crate) mod config;
pub(crate) mod demo;
pub(crate) mod doctor;
pub(crate) mod migrate;
pub(crate) mod reference;
pub(crate) mod restore;
pub(crate) mod rotate_key;
pub(crate) mod serve;
pub(crate) mod up;

use std::future::Future;

use anyhow::Context;
use cynode_app::{App, AppEnvironment};
use cynode_db::DbOptions;

use crate::{config::CynodeConfig, master_key, tls};

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

/// Opens the application operations over a database, with the keys of the installation if the configuration names its master key.
async fn open_app_with_keys(config: &CynodeConfig, options: &DbOptions) -> anyhow::Result<App> {
    let app = open_app(config, options)?;
    if !master_key::is_key_present(config) {
        // The database refuses what needs a key.
        return Ok(app);
    }
    let keys = master_key::load_keys(config, &app).await?;
    Ok(app.with_keys(keys))
}

/// Returns the link with which an admin logs in once. The token is in the fragment, so that no server logs it.
fn break_glass_link(config: &CynodeConfig, token: &str) -> String {
    let public = config.server.public_url.clone().or_else(|| tls::browser_url(config));
    let base = public.unwrap_or_else(|| tls::user_port_url(config));
    format!("{}/break-glass#token={token}", base.trim_end_matches('/'))
}

/// Returns the link that creates the first admin. The token is in the fragment, so that no server logs it.
fn bootstrap_link(config: &CynodeConfig, token: &str) -> String {
    format!("{}/setup#bootstrap={token}", tls::user_port_url(config))
}
