//! An installation that `cynode up` started, for the commands that somebody at the machine gives it.

use std::path::{Path, PathBuf};

use anyhow::{Context, bail, ensure};
use clap::Args;

use crate::{cluster, config::Config};

/// Which installation is meant.
#[derive(Args)]
pub(crate) struct Installation {
    /// The data directory of an installation of `cynode up`. Default: as `cynode up`, when no database is configured.
    #[arg(long, global = true, value_name = "DIRECTORY")]
    data_dir: Option<PathBuf>,
}

impl Installation {
    /// Puts its database, when it is asked, and its gate where the configuration names none.
    pub(crate) fn fill(&self, config: &mut Config, asks_database: bool) -> anyhow::Result<()> {
        let Some(dir) = self.dir(config)? else { return Ok(()) };
        let gate = dir.join("gate");
        if config.gate.directory.is_none() && gate.is_dir() {
            config.gate.directory = Some(gate);
        }
        if asks_database && config.database.url.is_none() {
            config.database.url = Some(cluster::url_in(&dir)?);
        }
        Ok(())
    }

    /// Its data directory; none when the configuration names a database and nobody named a directory.
    fn dir(&self, config: &Config) -> anyhow::Result<Option<PathBuf>> {
        if let Some(dir) = &self.data_dir {
            let dir = std::path::absolute(dir)?;
            ensure!(is_in(&dir), "there is no installation of `cynode up` in {}", dir.display());
            return Ok(Some(dir));
        }
        if config.database.url.is_some() {
            return Ok(None);
        }
        let dir = default_data_dir()?;
        if !is_in(&dir) {
            bail!(
                "no database is configured, and there is no installation of `cynode up` in {}: \
                 give --data-dir, or set DATABASE_URL or database.url_file",
                dir.display()
            );
        }
        Ok(Some(dir))
    }
}

/// Whether a `cynode up` was over that directory.
fn is_in(dir: &Path) -> bool {
    dir.join("lock").exists()
}

/// Where `cynode up` keeps everything when nobody says where.
pub(crate) fn default_data_dir() -> anyhow::Result<PathBuf> {
    if rustix::process::geteuid().is_root() {
        return Ok("/var/lib/cynode".into());
    }
    let home = std::env::home_dir().context("there is no home directory: give --data-dir")?;
    Ok(home.join(".local/share/cynode"))
}
