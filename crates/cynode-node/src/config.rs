//! Configuration: flag > file > environment > default. An unknown key is refused.
//!
//! To add a key: a field in [`ConfigLayer`], its meaning in `node.default.toml`, and its use in
//! `ConfigLayer::to_settings`.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, bail, ensure};
use clap::Args;
use cynode_packages::UPSTREAM_KEYS;
use serde::Deserialize;

use crate::{
    node::{JobResourceLimits, NodeSettings, PackageSettings},
    report,
};

/// Default configuration: every key with its default and meaning.
pub const DEFAULT_CONFIG: &str = include_str!("../node.default.toml");

const ENV_PREFIX: &str = "CYNODE_NODE_";

/// What one source says; what it leaves out the next one decides.
#[derive(Args, Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ConfigLayer {
    /// Log filter.
    #[arg(long, global = true, value_name = "FILTER")]
    pub log: Option<String>,
    /// Maximum number of concurrent jobs.
    #[arg(long, value_name = "NUMBER")]
    pub slots: Option<u16>,
    /// Minimum free disk space to take a job.
    #[arg(long, value_name = "MIB")]
    pub min_free_disk_mib: Option<u32>,
    /// Lease of a job: how long the node works without contact to the orchestrator.
    #[arg(long, value_name = "SECONDS")]
    pub lease_seconds: Option<u32>,
    /// Host that jobs may fetch packages from; may be repeated.
    #[arg(long = "egress-host", value_name = "HOST")]
    pub egress_hosts: Option<Vec<String>>,
    /// URL for models and tools, if it is not the orchestrator's.
    #[arg(long, value_name = "URL")]
    pub agents_url: Option<String>,
    /// Certificate authority (PEM) of the orchestrator, if it is the installation's own and the join token has no pin.
    #[arg(long, value_name = "FILE")]
    pub ca_file: Option<PathBuf>,
    /// Allow clear text beyond this machine: everybody on the way can read and change it.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub insecure: Option<bool>,
    /// Directory with further agent recipes.
    #[arg(long, value_name = "DIR")]
    pub recipes: Option<PathBuf>,
    /// Whether agents ask for permission before they act.
    #[arg(long, value_name = "BOOL")]
    pub ask_permission: Option<bool>,
    /// Default image of podman jobs.
    #[arg(long, value_name = "IMAGE")]
    pub default_image: Option<String>,
    /// Directory of this machine to mount read-only in sandboxes; may be repeated.
    #[arg(long, value_name = "DIR")]
    pub show: Option<Vec<PathBuf>>,
    /// Maximum memory of a job.
    #[arg(long, value_name = "MIB")]
    pub memory_mib: Option<u32>,
    /// Maximum CPU of a job, in hundredths of a core.
    #[arg(long, value_name = "PERCENT")]
    pub cpu_percent: Option<u32>,
    /// Maximum number of processes of a job.
    #[arg(long, value_name = "NUMBER")]
    pub processes: Option<u32>,
    /// Maximum disk space of a job.
    #[arg(long, value_name = "MIB")]
    pub disk_mib: Option<u32>,
    /// Maximum size of a job's result bundle.
    #[arg(long, value_name = "MIB")]
    pub bundle_mib: Option<u32>,
    /// Maximum size of the package cache.
    #[arg(long, value_name = "MIB")]
    pub package_cache_mib: Option<u32>,
    /// Registry that packages are fetched from, such as `npm=https://mirror.example/npm/`; may be repeated.
    #[arg(long = "package-upstream", value_name = "NAME=URL")]
    pub package_upstreams: Option<Vec<String>>,
    /// File of advisories (OSV); package versions that it names are refused.
    #[arg(long, value_name = "FILE")]
    pub package_advisories: Option<PathBuf>,
    /// Whether packages come from the cache only.
    #[arg(long, value_name = "BOOL")]
    pub packages_offline: Option<bool>,
    /// Maximum size of all kept environments.
    #[arg(long, value_name = "MIB")]
    pub environments_max_mib: Option<u32>,
    /// Maximum time that an unused environment is kept.
    #[arg(long, value_name = "DAYS")]
    pub environments_max_age_days: Option<u32>,
}

impl ConfigLayer {
    /// Merges two layers: values of `self` win over those of `other`.
    fn merge_fallback(self, other: Self) -> Self {
        Self {
            log: self.log.or(other.log),
            slots: self.slots.or(other.slots),
            min_free_disk_mib: self.min_free_disk_mib.or(other.min_free_disk_mib),
            lease_seconds: self.lease_seconds.or(other.lease_seconds),
            egress_hosts: self.egress_hosts.or(other.egress_hosts),
            agents_url: self.agents_url.or(other.agents_url),
            ca_file: self.ca_file.or(other.ca_file),
            insecure: self.insecure.or(other.insecure),
            recipes: self.recipes.or(other.recipes),
            ask_permission: self.ask_permission.or(other.ask_permission),
            default_image: self.default_image.or(other.default_image),
            show: self.show.or(other.show),
            memory_mib: self.memory_mib.or(other.memory_mib),
            cpu_percent: self.cpu_percent.or(other.cpu_percent),
            processes: self.processes.or(other.processes),
            disk_mib: self.disk_mib.or(other.disk_mib),
            bundle_mib: self.bundle_mib.or(other.bundle_mib),
            package_cache_mib: self.package_cache_mib.or(other.package_cache_mib),
            package_upstreams: self.package_upstreams.or(other.package_upstreams),
            package_advisories: self.package_advisories.or(other.package_advisories),
            packages_offline: self.packages_offline.or(other.packages_offline),
            environments_max_mib: self.environments_max_mib.or(other.environments_max_mib),
            environments_max_age_days: self
                .environments_max_age_days
                .or(other.environments_max_age_days),
        }
    }

    /// Converts the layer to settings, with defaults for missing keys.
    pub(crate) fn to_settings(&self) -> anyhow::Result<NodeSettings> {
        let (cores, memory) = (report::available_cores(), report::memory_mib());
        // A job of a coding agent needs a core and two gibibytes.
        let fits = u64::from(cores).min(memory / 2048).clamp(1, 100);
        let slots = self.slots.unwrap_or_else(|| u16::try_from(fits).unwrap_or(1));
        ensure!((1..=1000).contains(&slots), "slots must be 1 to 1000");
        // The lease is shorter than the orchestrator's: a job has ended here before the orchestrator gives it up.
        let lease = self.lease_seconds.unwrap_or(50);
        ensure!((1..=3600).contains(&lease), "lease_seconds must be 1 to 3600");
        let job_limits = JobResourceLimits {
            memory_mib: self.memory_mib.unwrap_or(4096),
            cpu_percent: self.cpu_percent.unwrap_or(200),
            processes: self.processes.unwrap_or(1024),
            disk_mib: self.disk_mib.unwrap_or(8192),
            bundle_mib: self.bundle_mib.unwrap_or(256),
        };
        for (name, value) in [
            ("memory_mib", job_limits.memory_mib),
            ("cpu_percent", job_limits.cpu_percent),
            ("processes", job_limits.processes),
            ("disk_mib", job_limits.disk_mib),
            ("bundle_mib", job_limits.bundle_mib),
        ] {
            ensure!(value > 0, "{name} must be above 0");
        }
        let age_days = self.environments_max_age_days.unwrap_or(30);
        ensure!((1..=3650).contains(&age_days), "environments_max_age_days must be 1 to 3650");
        Ok(NodeSettings {
            slots,
            min_free_disk_bytes: u64::from(self.min_free_disk_mib.unwrap_or(2048)) * 1024 * 1024,
            lease: Duration::from_secs(lease.into()),
            egress_hosts: self.egress_hosts.clone().unwrap_or_default(),
            ask_permission: self.ask_permission.unwrap_or(false),
            job_limits,
            environments_max_bytes: to_bytes(self.environments_max_mib.unwrap_or(20_480)),
            environments_max_age: Duration::from_hours(24 * u64::from(age_days)),
            packages: PackageSettings {
                max_cache_bytes: to_bytes(self.package_cache_mib.unwrap_or(10_240)),
                upstreams: parse_upstreams(self.package_upstreams.as_deref().unwrap_or_default())?,
                advisories: self.package_advisories.clone(),
                offline: self.packages_offline.unwrap_or(false),
            },
        })
    }

    /// Returns whether clear text may leave this machine.
    pub(crate) fn allows_clear_text(&self) -> bool {
        self.insecure.unwrap_or(false)
    }

    /// Returns the log filter.
    pub(crate) fn log_filter(&self) -> &str {
        self.log.as_deref().unwrap_or("info")
    }
}

fn to_bytes(mib: u32) -> u64 {
    u64::from(mib) * 1024 * 1024
}

/// Parses entries `NAME=URL`. An error does not repeat the address: it may hold a password.
fn parse_upstreams(entries: &[String]) -> anyhow::Result<BTreeMap<String, String>> {
    let mut upstreams = BTreeMap::new();
    for entry in entries {
        let (name, url) = entry.split_once('=').unwrap_or_default();
        let (name, url) = (name.trim(), url.trim());
        ensure!(
            UPSTREAM_KEYS.contains(&name) && !url.is_empty(),
            "an entry of package_upstreams is NAME=URL, and NAME is one of {}",
            UPSTREAM_KEYS.join(", ")
        );
        let earlier = upstreams.insert(name.to_owned(), url.to_owned());
        ensure!(earlier.is_none(), "package_upstreams names `{name}` twice");
    }
    Ok(upstreams)
}

/// The program's environment variables.
#[derive(Clone, Default)]
pub struct NodeEnvironment {
    state: Option<PathBuf>,
    home: Option<PathBuf>,
    /// All variables: package clients are configured by some of them.
    variables: BTreeMap<String, String>,
    layer: ConfigLayer,
}

impl NodeEnvironment {
    /// Reads the process environment. No other code reads it.
    #[expect(clippy::disallowed_methods, reason = "this is the config module")]
    pub fn from_process_env() -> anyhow::Result<Self> {
        Self::from_pairs(std::env::vars())
    }

    fn from_pairs(pairs: impl Iterator<Item = (String, String)>) -> anyhow::Result<Self> {
        let mut found = Self::default();
        for (name, value) in pairs {
            found.variables.insert(name.clone(), value.clone());
            if name == "HOME" {
                found.home = Some(value.into());
            } else if let Some(key) = name.strip_prefix(ENV_PREFIX) {
                found.set_key(&key.to_ascii_lowercase(), value).with_context(|| name.clone())?;
            }
        }
        Ok(found)
    }

    fn set_key(&mut self, key: &str, value: String) -> anyhow::Result<()> {
        let layer = &mut self.layer;
        match key {
            "state" => self.state = Some(value.into()),
            "log" => layer.log = Some(value),
            "slots" => layer.slots = Some(value.parse()?),
            "min_free_disk_mib" => layer.min_free_disk_mib = Some(value.parse()?),
            "lease_seconds" => layer.lease_seconds = Some(value.parse()?),
            "egress_hosts" => {
                let hosts = value.split(',').map(str::trim).filter(|host| !host.is_empty());
                layer.egress_hosts = Some(hosts.map(str::to_owned).collect());
            }
            "agents_url" => layer.agents_url = Some(value),
            "ca_file" => layer.ca_file = Some(value.into()),
            "insecure" => layer.insecure = Some(value.parse()?),
            "recipes" => layer.recipes = Some(value.into()),
            "ask_permission" => layer.ask_permission = Some(value.parse()?),
            "default_image" => layer.default_image = Some(value),
            "show" => layer.show = Some(std::env::split_paths(&value).collect()),
            "memory_mib" => layer.memory_mib = Some(value.parse()?),
            "cpu_percent" => layer.cpu_percent = Some(value.parse()?),
            "processes" => layer.processes = Some(value.parse()?),
            "disk_mib" => layer.disk_mib = Some(value.parse()?),
            "bundle_mib" => layer.bundle_mib = Some(value.parse()?),
            "package_cache_mib" => layer.package_cache_mib = Some(value.parse()?),
            "package_upstreams" => {
                let entries = value.split(',').map(str::trim).filter(|entry| !entry.is_empty());
                layer.package_upstreams = Some(entries.map(str::to_owned).collect());
            }
            "package_advisories" => layer.package_advisories = Some(value.into()),
            "packages_offline" => layer.packages_offline = Some(value.parse()?),
            "environments_max_mib" => layer.environments_max_mib = Some(value.parse()?),
            "environments_max_age_days" => layer.environments_max_age_days = Some(value.parse()?),
            _ => bail!("nobody knows this key"),
        }
        Ok(())
    }

    /// Returns the node's state directory.
    pub fn state_dir(&self, flag: Option<&Path>) -> anyhow::Result<PathBuf> {
        if let Some(path) = flag.or(self.state.as_deref()) {
            return Ok(path.to_owned());
        }
        if rustix::process::geteuid().is_root() {
            return Ok("/var/lib/cynode-node".into());
        }
        let home = self.home.as_deref().context("say where the state is, with --state")?;
        Ok(home.join(".local/state/cynode-node"))
    }

    /// Returns the home directory and the variables by which package clients of this machine are configured.
    pub(crate) fn package_clients(&self) -> (PathBuf, BTreeMap<String, String>) {
        (self.home.clone().unwrap_or_else(|| "/".into()), self.variables.clone())
    }

    /// Merges flags, file and environment in their order of precedence.
    pub fn merge_layers(
        self,
        flags: ConfigLayer,
        file: Option<&Path>,
        state: &Path,
    ) -> anyhow::Result<ConfigLayer> {
        let read = |path: &Path| {
            let text = std::fs::read_to_string(path);
            text.with_context(|| format!("cannot read {}", path.display()))
        };
        let usual = state.join("node.toml");
        let (path, text) = match file {
            Some(path) => (path, read(path)?),
            None if usual.exists() => (usual.as_path(), read(&usual)?),
            None => (usual.as_path(), String::new()),
        };
        let layer: ConfigLayer =
            toml::from_str(&text).with_context(|| format!("{} is wrong", path.display()))?;
        Ok(flags.merge_fallback(layer).merge_fallback(self.layer))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn environment(pairs: &[(&str, &str)]) -> anyhow::Result<NodeEnvironment> {
        let owned = pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        NodeEnvironment::from_pairs(owned)
    }

    #[test]
    fn a_flag_goes_before_the_file_and_the_file_before_the_environment() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("node.toml"), "slots = 2\nlog = \"file\"\n").unwrap();
        let environment = environment(&[
            ("CYNODE_NODE_SLOTS", "3"),
            ("CYNODE_NODE_LOG", "environment"),
            ("CYNODE_NODE_DISK_MIB", "77"),
            ("PATH", "/bin"),
        ]);
        let flags = ConfigLayer { slots: Some(1), ..ConfigLayer::default() };
        let layer = environment.unwrap().merge_layers(flags, None, dir.path()).unwrap();
        assert_eq!((layer.slots, layer.log_filter(), layer.disk_mib), (Some(1), "file", Some(77)));
    }

    #[test]
    fn a_key_that_nobody_knows_is_refused() {
        assert!(environment(&[("CYNODE_NODE_SLOTZ", "3")]).is_err());
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("node.toml"), "slotz = 2\n").unwrap();
        let layers =
            NodeEnvironment::default().merge_layers(ConfigLayer::default(), None, dir.path());
        assert!(format!("{:#}", layers.unwrap_err()).contains("slotz"));
    }

    #[test]
    fn a_registry_is_named_once_and_by_a_name_that_is_known() {
        let parse = |entries: &[&str]| {
            let entries: Vec<_> = entries.iter().map(|entry| (*entry).to_owned()).collect();
            parse_upstreams(&entries).map_err(|error| error.to_string())
        };
        let debian = "debian=deb [signed-by=/k.gpg] http://m/d stable main";
        assert_eq!(
            parse(&["npm=https://m/npm/?a=b", debian]),
            Ok(BTreeMap::from([
                ("debian".to_owned(), "deb [signed-by=/k.gpg] http://m/d stable main".to_owned()),
                ("npm".to_owned(), "https://m/npm/?a=b".to_owned()),
            ]))
        );
        let names = "crates, crates_files, debian, npm, npm_files, pypi, pypi_files";
        let rule = format!("an entry of package_upstreams is NAME=URL, and NAME is one of {names}");
        assert_eq!(parse(&["maven=https://u:secret@m/"]), Err(rule.clone()));
        assert_eq!(parse(&["https://m/"]), Err(rule.clone()));
        assert_eq!(parse(&["npm="]), Err(rule));
        let twice = "package_upstreams names `npm` twice".to_owned();
        assert_eq!(parse(&["npm=a", "npm=b"]), Err(twice));
    }

    #[test]
    fn the_printed_defaults_are_the_defaults() {
        let uncommented: String = DEFAULT_CONFIG
            .lines()
            .filter_map(|line| line.strip_prefix("# "))
            .filter(|line| line.contains(" = "))
            .map(|line| format!("{line}\n"))
            .collect();
        let printed: ConfigLayer = toml::from_str(&uncommented).unwrap();
        let nothing = ConfigLayer::default();
        let (mut printed, nothing) =
            (printed.to_settings().unwrap(), nothing.to_settings().unwrap());
        printed.slots = nothing.slots;
        printed.packages.advisories.clone_from(&nothing.packages.advisories);
        assert_eq!(printed, nothing);
    }
}
