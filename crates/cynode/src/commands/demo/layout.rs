//! The directory and the ports of the demo.

use std::{
    fmt::Write as _,
    fs,
    net::{Ipv4Addr, SocketAddr, TcpListener},
    os::unix::fs::{DirBuilderExt, PermissionsExt},
    path::{Path, PathBuf},
};

use anyhow::{Context, ensure};
use cynode_app::AppEnvironment;
use data_encoding::HEXLOWER;

use crate::restate::write_private_file;

/// A directory with an installation in it.
pub(super) struct DemoLayout {
    pub(super) dir: PathBuf,
    pub(super) listen: SocketAddr,
    /// Whether the files stay at the end.
    keep: bool,
}

/// The configuration keys of listen addresses.
const LISTEN_KEYS: [(&str, &str); 5] = [
    ("server", "listen"),
    ("server", "internal_listen"),
    ("engine", "runner_listen"),
    ("manager", "listen"),
    ("manager", "analyst_listen"),
];

impl DemoLayout {
    /// Creates the directory, or uses an empty one, and writes the configuration into it.
    pub(super) fn create_layout(wanted: Option<PathBuf>, keep: bool) -> anyhow::Result<Self> {
        let named = wanted.is_some();
        let dir = match wanted {
            Some(dir) => std::path::absolute(dir)?,
            None => temporary_directory(),
        };
        // PostgreSQL and the jobs have their own users if we are root.
        let mode = if rustix::process::geteuid().is_root() { 0o711 } else { 0o700 };
        if dir.exists() {
            let empty = fs::read_dir(&dir).is_ok_and(|mut entries| entries.next().is_none());
            ensure!(
                empty,
                "{} is not empty: choose another --data-dir, or `cynode up --data-dir` to look at what is there",
                dir.display()
            );
        } else {
            let made = fs::DirBuilder::new().mode(mode).recursive(named).create(&dir);
            made.with_context(|| {
                format!("cannot make {}: choose another --data-dir", dir.display())
            })?;
            fs::set_permissions(&dir, fs::Permissions::from_mode(mode))?;
        }
        let ports = free_ports(LISTEN_KEYS.len())?;
        write_private_file(&dir.join("config.toml"), &render_config(&ports))?;
        let listen = *ports.first().context("no port")?;
        Ok(Self { dir, listen, keep: keep || named })
    }

    pub(super) fn config_path(&self) -> PathBuf {
        self.dir.join("config.toml")
    }

    /// Returns the path of the sample repository.
    pub(super) fn repository_path(&self) -> PathBuf {
        self.dir.join("slug")
    }

    pub(super) const fn keeps_files(&self) -> bool {
        self.keep
    }

    /// Removes the created files, unless they are to be kept.
    pub(super) fn remove_files(&self) -> anyhow::Result<()> {
        if self.keep {
            return Ok(());
        }
        let removed = fs::remove_dir_all(&self.dir);
        removed.with_context(|| format!("{} could not be removed", self.dir.display()))
    }
}

/// Returns an unused directory. Sockets need short paths, and other users need access.
fn temporary_directory() -> PathBuf {
    let name = HEXLOWER.encode(&AppEnvironment::from_system().random_bytes::<4>());
    Path::new("/var/tmp").join(format!("cynode-demo-{name}"))
}

/// Returns distinct loopback addresses that are free now: all are bound until the last is found.
fn free_ports(count: usize) -> anyhow::Result<Vec<SocketAddr>> {
    let held: Vec<TcpListener> = (0..count)
        .map(|_| TcpListener::bind((Ipv4Addr::LOCALHOST, 0)))
        .collect::<Result<_, _>>()
        .context("no free port on loopback")?;
    held.iter().map(|listener| Ok(listener.local_addr()?)).collect()
}

fn render_config(ports: &[SocketAddr]) -> String {
    let mut text = "# Written by `cynode demo`.\n".to_owned();
    for section in ["server", "engine", "manager"] {
        let _ = writeln!(text, "\n[{section}]");
        let of = LISTEN_KEYS.iter().zip(ports).filter(|((name, _), _)| *name == section);
        for ((_, key), port) in of {
            let _ = writeln!(text, "{key} = \"{port}\"");
        }
        if section == "engine" {
            text.push_str("reconcile_interval_ms = 200\nredispatch_after_ms = 2000\n");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_port_is_another_and_stands_in_the_configuration_once() {
        let ports = free_ports(LISTEN_KEYS.len()).unwrap();
        let text = render_config(&ports);
        let read: toml::Table = text.parse().unwrap();
        let mut found: Vec<String> = LISTEN_KEYS
            .iter()
            .map(|(section, key)| read[*section][*key].as_str().unwrap().to_owned())
            .collect();
        found.sort();
        found.dedup();
        assert_eq!(found.len(), LISTEN_KEYS.len(), "{text}");
    }
}
