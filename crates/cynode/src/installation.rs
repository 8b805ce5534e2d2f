//! An installation of `cynode up`, for the commands that a person runs on the same machine.

use std::{
    fs::{File, TryLockError},
    io::Write as _,
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, bail, ensure};
use clap::Args;

use crate::{
    cluster,
    config::CynodeConfig,
    restate::{close_file_to_others, write_private_file},
};

/// File that locks a directory.
pub(crate) const LOCK_FILE: &str = "lock";

/// How long a predecessor that was killed may take to exit.
const LOCK_TIMEOUT: Duration = Duration::from_secs(3);

/// The installation to work on.
#[derive(Args)]
pub(crate) struct InstallationArgs {
    /// Data directory of an installation of `cynode up`; defaults to that of `cynode up` if no database is configured.
    #[arg(long, global = true, value_name = "DIRECTORY")]
    data_dir: Option<PathBuf>,
}

impl InstallationArgs {
    /// Returns whether the user named an installation.
    pub(crate) const fn is_given(&self) -> bool {
        self.data_dir.is_some()
    }

    /// Fills in its database, if one is needed, and its storage, where the configuration names none.
    pub(crate) fn fill_config(
        &self,
        config: &mut CynodeConfig,
        asks_database: bool,
    ) -> anyhow::Result<()> {
        let Some(dir) = self.find_data_dir(config)? else { return Ok(()) };
        let storage = dir.join("storage");
        if config.storage.directory.is_none() && storage.is_dir() {
            config.storage.directory = Some(storage);
        }
        if asks_database && config.database.url.is_none() {
            config.database.url = Some(cluster::running_cluster_url(&dir)?);
        }
        Ok(())
    }

    /// Returns the data directory of an installation whose database is its own: only that one can be backed up as a whole.
    pub(crate) fn own_data_dir(&self, config: &CynodeConfig) -> anyhow::Result<PathBuf> {
        let dir = self.find_data_dir(config)?.filter(|dir| cluster::has_cluster(dir));
        dir.context(
            "the database is not of `cynode up`: back it up with PostgreSQL's own tools, then copy storage.directory \
             (docs/guides/backup-and-restore.md)",
        )
    }

    /// Returns its data directory; `None` if the configuration names a database and the user named no directory.
    fn find_data_dir(&self, config: &CynodeConfig) -> anyhow::Result<Option<PathBuf>> {
        if let Some(dir) = &self.data_dir {
            let dir = std::path::absolute(dir)?;
            ensure!(
                has_installation(&dir),
                "there is no installation of `cynode up` in {}",
                dir.display()
            );
            ensure_same_database(&dir, config)?;
            return Ok(Some(dir));
        }
        if config.database.url.is_some() {
            return Ok(None);
        }
        let dir = default_data_dir()?;
        if !has_installation(&dir) {
            bail!(
                "no database is configured, and there is no installation of `cynode up` in {}: \
                 give --data-dir, or set DATABASE_URL or database.url_file",
                dir.display()
            );
        }
        Ok(Some(dir))
    }
}

/// Returns whether the directory belongs to a `cynode up`.
fn has_installation(dir: &Path) -> bool {
    dir.join(LOCK_FILE).exists()
}

/// The two kinds of databases, as they are recorded.
const OWN_DATABASE: &str = "own";
const EXTERNAL_DATABASE: &str = "elsewhere";

fn database_record_path(dir: &Path) -> PathBuf {
    dir.join("database")
}

/// Refuses a different database than the recorded one: an environment variable must not replace it unnoticed.
pub(crate) fn ensure_same_database(dir: &Path, config: &CynodeConfig) -> anyhow::Result<()> {
    let written = std::fs::read_to_string(database_record_path(dir)).ok();
    let before = match written.as_deref().map(str::trim) {
        Some(EXTERNAL_DATABASE) => EXTERNAL_DATABASE,
        Some(OWN_DATABASE) => OWN_DATABASE,
        // An older version recorded nothing.
        _ if cluster::has_cluster(dir) => OWN_DATABASE,
        _ => return Ok(()),
    };
    let (place, file) = (dir.display(), database_record_path(dir));
    let file = file.display();
    match (before, &config.database.url) {
        (OWN_DATABASE, Some(_)) => bail!(
            "the installation in {place} has a database of its own, and another is configured: unset DATABASE_URL \
             (database.url, database.url_file); to use the other from now on, write `{EXTERNAL_DATABASE}` into {file}"
        ),
        (EXTERNAL_DATABASE, None) => bail!(
            "the database of the installation in {place} is elsewhere, and none is configured: set DATABASE_URL or \
             database.url_file; to begin with an empty one of its own, write `{OWN_DATABASE}` into {file}"
        ),
        _ => Ok(()),
    }
}

/// Returns whether an installation was started in that directory before: it has a database then.
pub(crate) fn has_recorded_database(dir: &Path) -> bool {
    database_record_path(dir).exists()
}

/// Records the database of the installation.
pub(crate) fn record_database(dir: &Path, config: &CynodeConfig) -> anyhow::Result<()> {
    let now = if config.database.url.is_some() { EXTERNAL_DATABASE } else { OWN_DATABASE };
    write_private_file(&database_record_path(dir), &format!("{now}\n"))
}

/// Returns the default data directory of `cynode up`.
pub(crate) fn default_data_dir() -> anyhow::Result<PathBuf> {
    if rustix::process::geteuid().is_root() {
        return Ok("/var/lib/cynode".into());
    }
    let home = std::env::home_dir().context("there is no home directory: give --data-dir")?;
    Ok(home.join(".local/share/cynode"))
}

/// Locks a data directory: two instances in one directory would compete for the database, and two restores would write over each other.
/// The lock ends with the process, whose id is in the file.
pub(crate) fn lock_directory(dir: &Path) -> anyhow::Result<File> {
    let path = dir.join(LOCK_FILE);
    let unwritten = || format!("cannot write {}", path.display());
    // The holder wrote its id there: the file must not be truncated before we hold the lock.
    let opened = File::options().create(true).truncate(false).write(true).mode(0o600).open(&path);
    let mut file = opened.with_context(unwritten)?;
    close_file_to_others(&file).with_context(unwritten)?;
    // A predecessor that was killed just now may still be exiting.
    let turn = Duration::from_millis(50);
    let mut turns = LOCK_TIMEOUT.as_millis() / turn.as_millis();
    while turns > 0 && matches!(file.try_lock(), Err(TryLockError::WouldBlock)) {
        std::thread::sleep(turn);
        turns -= 1;
    }
    match file.try_lock() {
        Ok(()) => {
            file.set_len(0).with_context(unwritten)?;
            writeln!(file, "{}", std::process::id()).with_context(unwritten)?;
            Ok(file)
        }
        Err(TryLockError::WouldBlock) => {
            bail!(
                "another `cynode up` or `cynode restore` uses {}: stop it, or choose another --data-dir",
                dir.display()
            )
        }
        Err(TryLockError::Error(error)) => Err(error).context("cannot lock the data directory"),
    }
}
