//! Capabilities of the node, as measured.

use std::{collections::BTreeMap, fs, path::Path};

use cynode_core::{
    nodes::{AgentReport, BackendReport, JobLimitsReport, NodeReport},
    releases::Release,
};

use crate::{
    node::{JobResourceLimits, NodeSettings},
    store::NodeStore,
};

/// Builds the node report from measurements of the machine.
pub(crate) fn build_node_report(
    store: &NodeStore,
    settings: &NodeSettings,
    backends: Vec<BackendReport>,
    agents: Vec<AgentReport>,
    warnings: &[String],
) -> NodeReport {
    NodeReport {
        version: Release::current().to_string(),
        cores: available_cores(),
        memory_mib: memory_mib(),
        disk_free_mib: store.free_bytes().unwrap_or_default() / (1024 * 1024),
        slots: settings.slots.into(),
        backends,
        agents,
        warnings: warnings.to_vec(),
        job_limits: Some(report_job_limits(settings.job_limits)),
        facts: collect_host_facts(),
    }
}

/// Returns what the node gives one job at most.
const fn report_job_limits(limits: JobResourceLimits) -> JobLimitsReport {
    let JobResourceLimits { memory_mib, cpu_percent, processes, disk_mib, bundle_mib: _ } = limits;
    JobLimitsReport { memory_mib, cpu_percent, processes, disk_mib }
}

/// Returns the number of cores that this process may use.
pub(crate) fn available_cores() -> u32 {
    std::thread::available_parallelism().map_or(1, |count| u32::try_from(count.get()).unwrap_or(1))
}

/// Returns the memory of the machine in MiB.
pub(crate) fn memory_mib() -> u64 {
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    total_mib(&text).unwrap_or_default()
}

fn total_mib(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib / 1024)
}

/// Collects facts about the host, for people.
pub(crate) fn collect_host_facts() -> BTreeMap<String, String> {
    let mut facts = BTreeMap::new();
    let name = rustix::system::uname();
    let text = |word: &std::ffi::CStr| word.to_string_lossy().into_owned();
    facts.insert("kernel".to_owned(), text(name.release()));
    facts.insert("machine".to_owned(), text(name.machine()));
    facts.insert("host".to_owned(), text(name.nodename()));
    facts.insert("arch".to_owned(), std::env::consts::ARCH.to_owned());
    facts.insert("cgroups".to_owned(), cgroup_version(Path::new("/sys/fs/cgroup")).to_owned());
    let release = fs::read_to_string("/etc/os-release").unwrap_or_default();
    if let Some(system) = release.lines().find_map(|line| line.strip_prefix("PRETTY_NAME=")) {
        facts.insert("system".to_owned(), system.trim_matches('"').to_owned());
    }
    facts
}

/// Returns which cgroup version enforces the limits: `v2`, `v1`, or `none`.
fn cgroup_version(root: &Path) -> &'static str {
    let controllers = fs::read_to_string(root.join("cgroup.controllers")).unwrap_or_default();
    if controllers.split_whitespace().any(|name| name == "memory") {
        "v2"
    } else if root.join("memory").is_dir() {
        "v1"
    } else {
        "none"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_read_in_mebibytes() {
        let text = "MemTotal:       24682496 kB\nMemFree:          311296 kB\n";
        assert_eq!(total_mib(text), Some(24104));
        assert_eq!(total_mib("MemFree: 1 kB"), None);
    }

    #[test]
    fn the_limits_of_a_job_are_reported() {
        let limits = JobResourceLimits {
            memory_mib: 4096,
            cpu_percent: 200,
            processes: 512,
            disk_mib: 10_240,
            bundle_mib: 256,
        };
        let reported = JobLimitsReport {
            memory_mib: 4096,
            cpu_percent: 200,
            processes: 512,
            disk_mib: 10_240,
        };
        assert_eq!(report_job_limits(limits), reported);
    }

    #[test]
    fn control_groups_are_told_apart_by_where_memory_is() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(cgroup_version(dir.path()), "none");
        fs::create_dir(dir.path().join("memory")).unwrap();
        assert_eq!(cgroup_version(dir.path()), "v1");
        fs::write(dir.path().join("cgroup.controllers"), "cpu memory pids\n").unwrap();
        assert_eq!(cgroup_version(dir.path()), "v2");
    }
}
