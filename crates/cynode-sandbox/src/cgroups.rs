//! Resource limits of a process tree by cgroup: v1 hierarchies (one per controller) where they are in use, else the
//! unified v2 hierarchy.
//!
//! A node has one directory in each hierarchy, `cynode-<instance>`; a run has one below it, `<job>.<run>`. A kill of a
//! run kills its cgroup: by `cgroup.kill` in v2, else process by process. The first process of the pid namespace is
//! among them, and the rest die with it.

mod layout;

use std::{
    collections::BTreeSet,
    fs, io,
    path::{Path, PathBuf},
    time::Duration,
};

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use self::layout::{CgroupHierarchy, CgroupLayout};
use super::{IoContext, SandboxError, SandboxLimits};

/// Processes of a run besides its command: the sandbox program, the first process and the forwarding threads.
const OVERHEAD_PROCESS_COUNT: u32 = 32;
/// Period of the CPU limit.
const CPU_PERIOD_MICROSECONDS: u64 = 100_000;

/// Cgroup directories of this node.
#[derive(Clone, Debug)]
pub(super) struct NodeCgroups {
    hierarchies: Vec<CgroupHierarchy>,
    /// Directories in hierarchies without limits for us. Container runtimes create cgroups there nevertheless.
    others: Vec<PathBuf>,
}

impl NodeCgroups {
    /// Detects the hierarchies and creates the node's directories.
    pub(super) fn prepare_hierarchies(instance: &str) -> Result<Self, SandboxError> {
        let read =
            |path: &str| fs::read_to_string(path).with_io_context(|| format!("cannot read {path}"));
        let layout =
            CgroupLayout::parse_mounts(&read("/proc/self/mountinfo")?, &read("/proc/self/cgroup")?);
        let name = format!("cynode-{instance}");
        Self::from_hierarchies(layout.node_hierarchies(&name)?, layout.extra_directories(&name))
    }

    fn from_hierarchies(
        hierarchies: Vec<CgroupHierarchy>,
        others: Vec<PathBuf>,
    ) -> Result<Self, SandboxError> {
        let made = Self { hierarchies, others };
        made.create_directories()?;
        Ok(made)
    }

    /// Creates the node's directories where they are missing.
    fn create_directories(&self) -> Result<(), SandboxError> {
        for hierarchy in &self.hierarchies {
            create_cgroup(&hierarchy.directory)?;
            if hierarchy.unified {
                delegate_controllers(hierarchy)?;
            }
        }
        Ok(())
    }

    /// Creates the cgroup of a run, with its limits.
    pub(super) fn create_run_group(
        &self,
        name: &str,
        limits: &SandboxLimits,
    ) -> Result<RunCgroup, SandboxError> {
        let group = self.run_group(name);
        // Another program may remove empty cgroup directories while the node runs, which can be months.
        if self.hierarchies.iter().any(|hierarchy| !hierarchy.directory.is_dir()) {
            self.create_directories()?;
        }
        for hierarchy in &group.hierarchies {
            create_cgroup(&hierarchy.directory)?;
            for (file, value) in limit_settings(hierarchy, limits) {
                let path = hierarchy.directory.join(file);
                // Memory is limited even where swap accounting is not available.
                if path.exists() || !file.contains("sw") {
                    fs::write(&path, value)
                        .with_io_context(|| format!("cannot set {}", path.display()))?;
                }
            }
        }
        Ok(group)
    }

    /// Returns the cgroup of a run, whether it exists or not.
    pub(super) fn run_group(&self, name: &str) -> RunCgroup {
        let below = |hierarchy: &CgroupHierarchy| CgroupHierarchy {
            directory: hierarchy.directory.join(name),
            ..hierarchy.clone()
        };
        RunCgroup {
            hierarchies: self.hierarchies.iter().map(below).collect(),
            others: self.others.iter().map(|other| other.join(name)).collect(),
        }
    }

    /// Returns the names of the runs that have a cgroup.
    pub(super) fn run_names(&self) -> BTreeSet<String> {
        let used = self.hierarchies.iter().map(|hierarchy| &hierarchy.directory);
        used.chain(&self.others)
            .filter_map(|directory| fs::read_dir(directory).ok())
            .flat_map(|entries| entries.flatten())
            .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
            .filter_map(|entry| entry.file_name().into_string().ok())
            .collect()
    }

    /// Removes the node's directories if they are empty.
    pub(super) fn remove_empty_directories(&self) {
        let used = self.hierarchies.iter().map(|hierarchy| &hierarchy.directory);
        for directory in used.chain(&self.others) {
            let _ = fs::remove_dir(directory);
        }
    }

    /// Returns the path of a run's cgroup in the form that container runtimes expect for a parent.
    pub(super) fn parent_of(&self, name: &str) -> Option<String> {
        let first = self.hierarchies.iter().find(|hierarchy| !hierarchy.controllers.is_empty())?;
        let directory = first.directory.join(name);
        directory.strip_prefix(&first.root).ok().map(|path| format!("/{}", path.display()))
    }
}

/// Cgroup of a run.
#[derive(Clone, Debug)]
pub(super) struct RunCgroup {
    hierarchies: Vec<CgroupHierarchy>,
    others: Vec<PathBuf>,
}

/// Resource usage of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct CgroupUsage {
    pub(super) cpu: Duration,
    pub(super) peak_memory: u64,
    /// Number of processes killed by the memory limit.
    pub(super) out_of_memory: u64,
}

impl RunCgroup {
    /// Returns the files to which a single-threaded process writes its id to join the cgroup. In v1 that is `tasks`, which moves one
    /// thread and avoids a machine-wide lock.
    pub(super) fn join_files(&self) -> Vec<PathBuf> {
        let door = |hierarchy: &CgroupHierarchy| {
            hierarchy.directory.join(if hierarchy.unified { "cgroup.procs" } else { "tasks" })
        };
        self.hierarchies.iter().map(door).collect()
    }

    /// Returns the processes of the cgroup and its descendants.
    pub(super) fn list_processes(&self) -> BTreeSet<i32> {
        let mut found = BTreeSet::new();
        for hierarchy in &self.hierarchies {
            for directory in list_tree(&hierarchy.directory) {
                let text = fs::read_to_string(directory.join("cgroup.procs")).unwrap_or_default();
                found.extend(text.lines().filter_map(|line| line.parse::<i32>().ok()));
            }
        }
        found.remove(&0);
        found
    }

    /// Kills all processes of the cgroup.
    pub(super) fn kill_all(&self) {
        for hierarchy in &self.hierarchies {
            if hierarchy.unified {
                let _ = fs::write(hierarchy.directory.join("cgroup.kill"), "1");
            }
        }
        for process in self.list_processes() {
            self.kill_one(process);
        }
    }

    /// Kills all processes of the cgroup but one.
    pub(super) fn kill_all_except(&self, spared: i32) {
        for process in self.list_processes().into_iter().filter(|process| *process != spared) {
            self.kill_one(process);
        }
    }

    /// Kills a process if it is still in this cgroup: its pid may have been reused.
    fn kill_one(&self, process: i32) {
        let Some(handle) =
            Pid::from_raw(process).and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok())
        else {
            return;
        };
        if self.list_processes().contains(&process) {
            let _ = pidfd_send_signal(handle, Signal::KILL);
        }
    }

    /// Reads the current resource usage.
    pub(super) fn read_usage(&self) -> CgroupUsage {
        let mut used = CgroupUsage::default();
        for hierarchy in &self.hierarchies {
            let read =
                |file: &str| fs::read_to_string(hierarchy.directory.join(file)).unwrap_or_default();
            let whole = |file: &str| read(file).trim().parse().ok();
            if hierarchy.has_controller("cpuacct") {
                used.cpu = Duration::from_nanos(whole("cpuacct.usage").unwrap_or(0));
            }
            if hierarchy.unified && hierarchy.has_controller("cpu") {
                used.cpu = Duration::from_micros(parse_field(&read("cpu.stat"), "usage_usec"));
            }
            if hierarchy.has_controller("memory") {
                let (peak, kills) = if hierarchy.unified {
                    ("memory.peak", "memory.events")
                } else {
                    ("memory.max_usage_in_bytes", "memory.oom_control")
                };
                used.peak_memory = whole(peak).unwrap_or(0);
                used.out_of_memory = list_tree(&hierarchy.directory)
                    .iter()
                    .map(|directory| {
                        let text = fs::read_to_string(directory.join(kills)).unwrap_or_default();
                        parse_field(&text, "oom_kill")
                    })
                    .max()
                    .unwrap_or(0);
            }
        }
        used
    }

    /// Removes the directories of the cgroup. The kernel may refuse right after the last process has exited: the caller then retries.
    pub(super) fn remove_directories(&self) -> bool {
        let mut gone = true;
        let used = self.hierarchies.iter().map(|hierarchy| &hierarchy.directory);
        for root in used.chain(&self.others) {
            for directory in list_tree(root).iter().rev() {
                let removed = fs::remove_dir(directory);
                gone &= !removed.is_err_and(|error| error.kind() != io::ErrorKind::NotFound);
            }
        }
        gone
    }
}

fn create_cgroup(directory: &Path) -> Result<(), SandboxError> {
    match fs::create_dir(directory) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(SandboxError::Missing {
            what: format!("no cgroup can be made at {}: {error}", directory.display()),
            todo: match error.kind() {
                io::ErrorKind::NotFound => {
                    "see that cgroups are mounted where they were when this program began, or start it again"
                }
                _ => {
                    "run this program as root, or as a service to which its cgroup is delegated \
                     (systemd: Delegate=yes)"
                }
            }
            .into(),
        }),
        _ => Ok(()),
    }
}

/// Returns a cgroup directory and its descendants, parents first.
fn list_tree(root: &Path) -> Vec<PathBuf> {
    let mut all = vec![root.to_owned()];
    let mut next = 0;
    while let Some(directory) = all.get(next) {
        let below = fs::read_dir(directory)
            .map(|entries| entries.flatten().collect::<Vec<_>>())
            .unwrap_or_default();
        all.extend(
            below
                .into_iter()
                .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
                .map(|entry| entry.path()),
        );
        next += 1;
    }
    all
}

/// Enables the controllers for the node's child cgroups. The parent cgroup must not contain processes for that, so the node moves
/// itself to its own cgroup first if necessary.
fn delegate_controllers(hierarchy: &CgroupHierarchy) -> Result<(), SandboxError> {
    let all: Vec<String> = hierarchy.controllers.iter().map(|name| format!("+{name}")).collect();
    let hand_on =
        |directory: &Path| fs::write(directory.join("cgroup.subtree_control"), all.join(" "));
    let above = hierarchy.directory.parent().unwrap_or(&hierarchy.root);
    if hand_on(above).is_err() {
        let own = hierarchy.directory.with_extension("node");
        create_cgroup(&own)?;
        let _ = fs::write(own.join("cgroup.procs"), std::process::id().to_string());
        hand_on(above).map_err(|error| SandboxError::Missing {
            what: format!("{} cannot hand on its controllers: {error}", above.display()),
            todo: "run this program as a service of its own with Delegate=yes".into(),
        })?;
    }
    hand_on(&hierarchy.directory).with_io_context(|| {
        format!("cannot hand on the controllers of {}", hierarchy.directory.display())
    })
}

/// Returns the files of the limits and the values to write.
fn limit_settings(
    hierarchy: &CgroupHierarchy,
    limits: &SandboxLimits,
) -> Vec<(&'static str, String)> {
    let memory = limits.memory_bytes.to_string();
    let quota = u64::from(limits.cpu_percent) * CPU_PERIOD_MICROSECONDS / 100;
    let processes = limits.processes.saturating_add(OVERHEAD_PROCESS_COUNT).to_string();
    let mut all = Vec::new();
    if hierarchy.has_controller("memory") && hierarchy.unified {
        all.extend([("memory.max", memory), ("memory.swap.max", "0".into())]);
    } else if hierarchy.has_controller("memory") {
        all.extend([
            ("memory.limit_in_bytes", memory.clone()),
            ("memory.memsw.limit_in_bytes", memory),
        ]);
    }
    if hierarchy.has_controller("cpu") && hierarchy.unified {
        all.push(("cpu.max", format!("{quota} {CPU_PERIOD_MICROSECONDS}")));
    } else if hierarchy.has_controller("cpu") {
        all.extend([
            ("cpu.cfs_period_us", CPU_PERIOD_MICROSECONDS.to_string()),
            ("cpu.cfs_quota_us", quota.to_string()),
        ]);
    }
    if hierarchy.has_controller("pids") {
        all.push(("pids.max", processes));
    }
    all
}

/// Returns the number after a field name at the start of a line.
fn parse_field(text: &str, name: &str) -> u64 {
    text.lines()
        .filter_map(|line| line.split_once(' '))
        .find(|(word, _)| *word == name)
        .and_then(|(_, number)| number.trim().parse().ok())
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits() -> SandboxLimits {
        SandboxLimits {
            memory_bytes: 1000,
            cpu_percent: 150,
            processes: 10,
            ..SandboxLimits::default()
        }
    }

    fn hierarchy(place: &Path, unified: bool, controllers: &[&str]) -> CgroupHierarchy {
        CgroupHierarchy {
            root: place.to_owned(),
            directory: place.join("cynode-a"),
            controllers: controllers.iter().map(ToString::to_string).collect(),
            unified,
        }
    }

    fn group(hierarchy: CgroupHierarchy) -> RunCgroup {
        RunCgroup { hierarchies: vec![hierarchy], others: Vec::new() }
    }

    #[test]
    fn the_unified_hierarchy_gets_its_own_words() {
        let unified = hierarchy(Path::new("/"), true, &["cpu", "memory", "pids"]);
        let expected = [
            ("memory.max", "1000".to_owned()),
            ("memory.swap.max", "0".to_owned()),
            ("cpu.max", "150000 100000".to_owned()),
            ("pids.max", "42".to_owned()),
        ];
        assert_eq!(limit_settings(&unified, &limits()), expected);
    }

    #[test]
    fn the_old_hierarchies_get_theirs() {
        let all = [&["memory"][..], &["cpu"], &["cpuacct"], &["pids"]];
        let settings: Vec<_> = all
            .into_iter()
            .flat_map(|names| limit_settings(&hierarchy(Path::new("/"), false, names), &limits()))
            .collect();
        let expected = [
            ("memory.limit_in_bytes", "1000".to_owned()),
            ("memory.memsw.limit_in_bytes", "1000".to_owned()),
            ("cpu.cfs_period_us", "100000".to_owned()),
            ("cpu.cfs_quota_us", "150000".to_owned()),
            ("pids.max", "42".to_owned()),
        ];
        assert_eq!(settings, expected);
    }

    #[test]
    fn a_node_hands_its_controllers_on_in_the_unified_hierarchy() {
        let place = tempfile::tempdir().unwrap();
        let groups = NodeCgroups::from_hierarchies(
            vec![hierarchy(place.path(), true, &["cpu", "memory"])],
            Vec::new(),
        )
        .unwrap();
        let written = ["cgroup.subtree_control", "cynode-a/cgroup.subtree_control"]
            .map(|file| fs::read_to_string(place.path().join(file)).unwrap());
        assert_eq!(written, ["+cpu +memory", "+cpu +memory"]);
        assert_eq!(groups.parent_of("job.run").unwrap(), "/cynode-a/job.run");
    }

    #[test]
    fn what_was_used_is_read_in_both_worlds() {
        let place = tempfile::tempdir().unwrap();
        let write =
            |file: &str, text: &str| fs::write(place.path().join("cynode-a").join(file), text);
        fs::create_dir(place.path().join("cynode-a")).unwrap();
        write("memory.peak", "4096\n").unwrap();
        write("memory.events", "low 0\noom 3\noom_kill 2\n").unwrap();
        write("cpu.stat", "usage_usec 1500\nuser_usec 1000\n").unwrap();
        let unified = group(hierarchy(place.path(), true, &["cpu", "memory"]));
        let expected =
            CgroupUsage { cpu: Duration::from_micros(1500), peak_memory: 4096, out_of_memory: 2 };
        assert_eq!(unified.read_usage(), expected);

        write("memory.max_usage_in_bytes", "8192\n").unwrap();
        write("memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 1\n").unwrap();
        write("cpuacct.usage", "1500000\n").unwrap();
        let old = group(hierarchy(place.path(), false, &["cpu", "cpuacct", "memory"]));
        let expected =
            CgroupUsage { cpu: Duration::from_micros(1500), peak_memory: 8192, out_of_memory: 1 };
        assert_eq!(old.read_usage(), expected);
    }
}
