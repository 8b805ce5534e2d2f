//! Where the demonstration lives: a directory of its own, ports of its own.

use std::{
    fmt::Write as _,
    fs,
    net::{Ipv4Addr, SocketAddr, TcpListener},
    os::unix::fs::{DirBuilderExt, PermissionsExt},
    path::{Path, PathBuf},
};

use anyhow::{Context, ensure};
use cynode_app::Environment;
use data_encoding::HEXLOWER;

/// A directory with an installation in it.
pub(super) struct Place {
    pub(super) dir: PathBuf,
    pub(super) listen: SocketAddr,
    /// Whether it is left as it is in the end.
    keep: bool,
}

/// What listens where, by its key in the configuration.
const PORTS: [(&str, &str); 8] = [
    ("server", "listen"),
    ("server", "internal_listen"),
    ("engine", "runner_listen"),
    ("engine", "ingress_listen"),
    ("engine", "admin_listen"),
    ("engine", "node_listen"),
    ("manager", "listen"),
    ("manager", "analyst_listen"),
];

impl Place {
    /// Makes the directory, or takes an empty one, and writes the configuration into it.
    pub(super) fn make(wanted: Option<PathBuf>, keep: bool) -> anyhow::Result<Self> {
        let named = wanted.is_some();
        let dir = match wanted {
            Some(dir) => std::path::absolute(dir)?,
            None => fresh(),
        };
        // PostgreSQL and the jobs have users of their own when we are root.
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
        let ports = free_ports(PORTS.len())?;
        fs::write(dir.join("config.toml"), configuration(&ports))?;
        let listen = *ports.first().context("no port")?;
        Ok(Self { dir, listen, keep: keep || named })
    }

    pub(super) fn config(&self) -> PathBuf {
        self.dir.join("config.toml")
    }

    /// Where the sample is.
    pub(super) fn repository(&self) -> PathBuf {
        self.dir.join("slug")
    }

    pub(super) const fn is_kept(&self) -> bool {
        self.keep
    }

    /// Removes what was made, unless it is to be kept.
    pub(super) fn leave(&self) -> anyhow::Result<()> {
        if self.keep {
            return Ok(());
        }
        let removed = fs::remove_dir_all(&self.dir);
        removed.with_context(|| format!("{} could not be removed", self.dir.display()))
    }
}

/// A directory that nobody has. Sockets need short paths, and other users a way in.
fn fresh() -> PathBuf {
    let name = HEXLOWER.encode(&Environment::system().bytes::<4>());
    Path::new("/var/tmp").join(format!("cynode-demo-{name}"))
}

/// Loopback addresses that are free now, all different: they are held until the last is found.
fn free_ports(count: usize) -> anyhow::Result<Vec<SocketAddr>> {
    let held: Vec<TcpListener> = (0..count)
        .map(|_| TcpListener::bind((Ipv4Addr::LOCALHOST, 0)))
        .collect::<Result<_, _>>()
        .context("no free port on loopback")?;
    held.iter().map(|listener| Ok(listener.local_addr()?)).collect()
}

fn configuration(ports: &[SocketAddr]) -> String {
    let mut text = "# Written by `cynode demo`.\n".to_owned();
    for section in ["server", "engine", "manager"] {
        let _ = writeln!(text, "\n[{section}]");
        let of = PORTS.iter().zip(ports).filter(|((name, _), _)| *name == section);
        for ((_, key), port) in of {
            let _ = writeln!(text, "{key} = \"{port}\"");
        }
        if section == "engine" {
            text.push_str("sweep_milliseconds = 200\nresend_milliseconds = 2000\n");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_port_is_another_and_stands_in_the_configuration_once() {
        let ports = free_ports(PORTS.len()).unwrap();
        let text = configuration(&ports);
        let read: toml::Table = text.parse().unwrap();
        let mut found: Vec<String> = PORTS
            .iter()
            .map(|(section, key)| read[*section][*key].as_str().unwrap().to_owned())
            .collect();
        found.sort();
        found.dedup();
        assert_eq!(found.len(), PORTS.len(), "{text}");
    }
}
