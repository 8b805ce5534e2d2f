//! An installation that `cynode up` started, for the commands that somebody at the machine gives it.

use std::path::{Path, PathBuf};

use anyhow::{Context, bail, ensure};
use clap::Args;

use crate::{cluster, config::Config, restate::write_secret};

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
            same_database(&dir, config)?;
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

/// The two places where a database can be, as they are written down.
const OWN: &str = "own";
const ELSEWHERE: &str = "elsewhere";

fn record(dir: &Path) -> PathBuf {
    dir.join("database")
}

/// Refuses another database than the one that the installation has: a variable of the shell must not exchange it unnoticed.
pub(crate) fn same_database(dir: &Path, config: &Config) -> anyhow::Result<()> {
    let written = std::fs::read_to_string(record(dir)).ok();
    let before = match written.as_deref().map(str::trim) {
        Some(ELSEWHERE) => ELSEWHERE,
        Some(OWN) => OWN,
        // An older version wrote nothing down.
        _ if cluster::is_in(dir) => OWN,
        _ => return Ok(()),
    };
    let (place, file) = (dir.display(), record(dir));
    let file = file.display();
    match (before, &config.database.url) {
        (OWN, Some(_)) => bail!(
            "the installation in {place} has a database of its own, and another is configured: unset DATABASE_URL \
             (database.url, database.url_file); to use the other from now on, write `{ELSEWHERE}` into {file}"
        ),
        (ELSEWHERE, None) => bail!(
            "the database of the installation in {place} is elsewhere, and none is configured: set DATABASE_URL or \
             database.url_file; to begin with an empty one of its own, write `{OWN}` into {file}"
        ),
        _ => Ok(()),
    }
}

/// Writes down which database the installation has.
pub(crate) fn remember_database(dir: &Path, config: &Config) -> anyhow::Result<()> {
    let now = if config.database.url.is_some() { ELSEWHERE } else { OWN };
    write_secret(&record(dir), &format!("{now}\n"))
}

/// Where `cynode up` keeps everything when nobody says where.
pub(crate) fn default_data_dir() -> anyhow::Result<PathBuf> {
    if rustix::process::geteuid().is_root() {
        return Ok("/var/lib/cynode".into());
    }
    let home = std::env::home_dir().context("there is no home directory: give --data-dir")?;
    Ok(home.join(".local/share/cynode"))
}
