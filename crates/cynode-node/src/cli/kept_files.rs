//! Commands about the package cache and the kept environments of a node.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use clap::Subcommand;
use serde::Serialize;
use serde_json::json;

use super::{CommandContext, print_line};
use crate::{clock, job::environment::LayerStore};

const MIB: u64 = 1024 * 1024;

const SECONDS_PER_DAY: u64 = 24 * 60 * 60;

/// Command about the package cache.
#[derive(Debug, Subcommand)]
pub(super) enum PackagesCommand {
    /// Show how much is in the package cache.
    Stats,
    /// Write the package cache into one file, for a machine without a network or another node.
    Export {
        /// File to write.
        file: PathBuf,
    },
    /// Add the packages of an exported file to the package cache. Every digest is checked first.
    Import {
        /// File to read.
        file: PathBuf,
    },
    /// Remove the least recently used packages above the maximum size.
    Prune,
}

/// Command about kept environments.
#[derive(Debug, Subcommand)]
pub(super) enum EnvironmentsCommand {
    /// List the kept environments, the last used first.
    List,
    /// Remove environments that are too old or too large together. Jobs set them up again.
    Prune {
        /// Remove all of them.
        #[arg(long)]
        all: bool,
    },
}

impl CommandContext {
    pub(super) fn run_packages_command(
        &self,
        command: &PackagesCommand,
        json: bool,
    ) -> anyhow::Result<()> {
        let proxy = self.open_package_proxy()?;
        let (text, value) = match command {
            PackagesCommand::Stats => {
                let stats = proxy.stats();
                let directory = self.store.packages_dir();
                let most = self.settings.packages.max_cache_bytes;
                let text = format!(
                    "{} files, {} MiB of at most {} MiB, in {}",
                    stats.cached_files,
                    stats.cached_bytes / MIB,
                    most / MIB,
                    directory.display()
                );
                let value = json!({
                    "directory": directory,
                    "cached_files": stats.cached_files,
                    "cached_bytes": stats.cached_bytes,
                    "max_cache_bytes": most,
                });
                (text, value)
            }
            PackagesCommand::Export { file } => {
                proxy.export_cache(file)?;
                let bytes = std::fs::metadata(file)?.len();
                let text = format!("{} MiB are in {}", bytes / MIB, file.display());
                (text, json!({ "file": file, "bytes": bytes }))
            }
            PackagesCommand::Import { file } => {
                proxy.import_cache(file)?;
                let stats = proxy.stats();
                let text = format!(
                    "the cache has {} files now, {} MiB",
                    stats.cached_files,
                    stats.cached_bytes / MIB
                );
                let value = json!({
                    "cached_files": stats.cached_files,
                    "cached_bytes": stats.cached_bytes,
                });
                (text, value)
            }
            PackagesCommand::Prune => {
                let bytes = proxy.prune()?;
                (format!("{} MiB were removed", bytes / MIB), json!({ "removed_bytes": bytes }))
            }
        };
        print_line(&if json { value.to_string() } else { text })
    }

    pub(super) fn run_environments_command(
        &self,
        command: &EnvironmentsCommand,
        json: bool,
    ) -> anyhow::Result<()> {
        match command {
            EnvironmentsCommand::List => {
                let lines = self.list_environments();
                if json {
                    return print_line(&serde_json::to_string(&lines)?);
                }
                if lines.is_empty() {
                    return print_line("no environment is kept");
                }
                let now = clock::unix_seconds();
                lines.iter().try_for_each(|line| print_line(&line.to_text(now)))
            }
            EnvironmentsCommand::Prune { all } => {
                // A running node knows which environments its jobs use, and this process does not.
                let _alone = self.store.acquire_lock()?;
                let (bytes, age) = if *all {
                    (0, Duration::ZERO)
                } else {
                    (self.settings.environments_max_bytes, self.settings.environments_max_age)
                };
                let removed = LayerStore::new(self.store.clone()).collect_garbage(bytes, age);
                if json {
                    return print_line(&json!({ "removed": removed }).to_string());
                }
                print_line(&format!("{removed} environments were removed"))
            }
        }
    }

    fn list_environments(&self) -> Vec<EnvironmentLine> {
        let layers = LayerStore::new(self.store.clone()).list_layers().into_iter();
        let lines = layers.map(|layer| {
            let (project, key) = name_parts(&layer.dir);
            EnvironmentLine {
                project,
                key,
                version: layer.record.environment.version,
                commit: layer.record.base_commit,
                bytes: layer.record.bytes,
                entries: layer.record.entries,
                created_seconds: layer.record.created_seconds,
                used_seconds: layer.used_seconds,
            }
        });
        lines.collect()
    }
}

/// A kept environment in a list.
#[derive(Debug, Serialize)]
struct EnvironmentLine {
    project: String,
    key: String,
    version: u32,
    commit: Option<String>,
    bytes: u64,
    entries: u64,
    created_seconds: u64,
    used_seconds: u64,
}

impl EnvironmentLine {
    fn to_text(&self, now: u64) -> String {
        let short: String = self.key.chars().take(12).collect();
        let days = now.saturating_sub(self.used_seconds) / SECONDS_PER_DAY;
        format!(
            "{}  version {}  {short}  {} MiB  last used {days} days ago",
            self.project,
            self.version,
            self.bytes / MIB
        )
    }
}

/// Returns the project and the key of an environment: the last two parts of its path.
fn name_parts(directory: &Path) -> (String, String) {
    let text = |path: Option<&Path>| {
        let name = path.and_then(Path::file_name).unwrap_or_default();
        name.to_string_lossy().into_owned()
    };
    (text(directory.parent()), text(Some(directory)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_environment_is_named_by_project_and_key() {
        let names = name_parts(Path::new("/state/environments/p1/abc"));
        assert_eq!(names, ("p1".to_owned(), "abc".to_owned()));
    }

    #[test]
    fn a_line_says_how_large_an_environment_is_and_when_it_was_used() {
        let line = EnvironmentLine {
            project: "p1".to_owned(),
            key: "0123456789abcdef".to_owned(),
            version: 3,
            commit: None,
            bytes: 5 * MIB,
            entries: 7,
            created_seconds: 0,
            used_seconds: SECONDS_PER_DAY,
        };
        assert_eq!(
            line.to_text(3 * SECONDS_PER_DAY),
            "p1  version 3  0123456789ab  5 MiB  last used 2 days ago"
        );
    }
}
