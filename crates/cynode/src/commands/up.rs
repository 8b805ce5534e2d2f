//! `cynode up`: everything on this machine, for the first minutes and for one person.

use std::{
    fs::{File, TryLockError},
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::{Context, bail};
use clap::Args;
use cynode_app::bootstrap;
use secrecy::SecretString;

use super::{app, block_on, bootstrap_link, migrate::migrate, serve};
use crate::{
    cluster::Cluster,
    config::{Config, Loaded},
    output,
    telemetry::{self, Sink},
};

/// Starts everything on this machine.
#[derive(Args)]
pub(crate) struct Up {
    /// Where everything is kept. Default: /var/lib/cynode for root, else ~/.local/share/cynode.
    #[arg(long, value_name = "DIRECTORY")]
    data_dir: Option<PathBuf>,
}

pub(crate) fn run(up: Up, loaded: &Loaded) -> anyhow::Result<ExitCode> {
    let dir = match up.data_dir {
        Some(dir) => std::path::absolute(dir)?,
        None => default_data_dir()?,
    };
    std::fs::create_dir_all(&dir).with_context(|| format!("cannot make {}", dir.display()))?;
    let _lock = lock(&dir)?;
    let log = dir.join("cynode.log");
    let _telemetry = telemetry::start(&loaded.config.telemetry, &Sink::File(&log))?;
    loaded.warn();
    for note in &loaded.notes {
        output::say(&format!("warning: {note}"));
    }
    block_on(start(&loaded.config, &dir))?;
    output::say("stopped; everything is kept");
    Ok(ExitCode::SUCCESS)
}

async fn start(config: &Config, dir: &Path) -> anyhow::Result<()> {
    let stop = serve::stop_signal()?;
    // First the port: it is the likeliest to be taken, and nothing has been started yet.
    let listener = serve::listen(config).await?;
    let mut own = match &config.database.url {
        Some(_) => None,
        None => Some(Cluster::start(dir).await?),
    };
    let url: SecretString = match (&config.database.url, &own) {
        (Some(url), _) => url.clone(),
        (None, Some(cluster)) => cluster.url(),
        (None, None) => bail!("no database"),
    };
    let result = tokio::select! {
        result = serve_over(config, &url, listener, dir, stop) => result,
        error = ended(&mut own) => Err(error),
    };
    if let Some(cluster) = own {
        cluster.stop().await?;
    }
    result
}

/// Without its database the server could only refuse: better to end and say so.
async fn ended(own: &mut Option<Cluster>) -> anyhow::Error {
    match own {
        Some(cluster) => cluster.ended().await,
        None => std::future::pending().await,
    }
}

async fn serve_over(
    config: &Config,
    url: &SecretString,
    listener: tokio::net::TcpListener,
    dir: &Path,
    stop: tokio_util::sync::CancellationToken,
) -> anyhow::Result<()> {
    migrate(config.database.options_for(url)).await?;
    let app = app(config, &config.database.options_for(url))?;
    let admin = bootstrap::issue(&app).await?;
    output::say("CyNode is running");
    output::say(&format!("  open   http://{}", config.server.listen));
    if let Some(token) = admin {
        output::say(&format!("  admin  {}", bootstrap_link(config, &token.0)));
        output::say("         makes the first admin; works once, for 24 hours");
    }
    output::say(&format!("  data   {}", dir.display()));
    output::say(&format!("  log    {}", dir.join("cynode.log").display()));
    output::say("  stop   Ctrl-C");
    serve::serve(config, app, listener, stop).await
}

/// Two instances over one directory would fight for the database; the lock ends with the process.
fn lock(dir: &Path) -> anyhow::Result<File> {
    let path = dir.join("lock");
    let file = File::create(&path).with_context(|| format!("cannot write {}", path.display()))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => {
            bail!(
                "another `cynode up` uses {}: stop it, or choose another --data-dir",
                dir.display()
            )
        }
        Err(TryLockError::Error(error)) => Err(error).context("cannot lock the data directory"),
    }
}

fn default_data_dir() -> anyhow::Result<PathBuf> {
    if rustix::process::geteuid().is_root() {
        return Ok("/var/lib/cynode".into());
    }
    let home = std::env::home_dir().context("there is no home directory: give --data-dir")?;
    Ok(home.join(".local/share/cynode"))
}
