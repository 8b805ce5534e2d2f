//! Detects the cgroup hierarchies and their controllers.

use std::path::{Path, PathBuf};

use crate::SandboxError;

/// Required controllers of the limits; `cpuacct` is optional and only measures.
const REQUIRED_CONTROLLERS: [&str; 3] = ["cpu", "memory", "pids"];
const USED_CONTROLLERS: [&str; 4] = ["cpu", "cpuacct", "memory", "pids"];

/// A hierarchy in use, and the node's directory in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CgroupHierarchy {
    /// Mount point.
    pub(super) root: PathBuf,
    /// Directory of the node.
    pub(super) directory: PathBuf,
    /// Required controllers that the hierarchy has.
    pub(super) controllers: Vec<String>,
    /// Whether it is the unified (v2) hierarchy.
    pub(super) unified: bool,
}

impl CgroupHierarchy {
    pub(super) fn has_controller(&self, controller: &str) -> bool {
        self.controllers.iter().any(|name| name == controller)
    }
}

/// Mounted cgroup hierarchies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CgroupLayout {
    /// Mount point and controllers of each v1 hierarchy.
    old: Vec<(PathBuf, Vec<String>)>,
    /// Mount point of the v2 hierarchy, and the path of this process in it.
    unified: Option<(PathBuf, PathBuf)>,
    /// Mount points of v1 hierarchies without required controllers.
    others: Vec<PathBuf>,
}

impl CgroupLayout {
    /// Parses `/proc/self/mountinfo` and `/proc/self/cgroup`.
    pub(super) fn parse_mounts(mounts: &str, own: &str) -> Self {
        let mut layout = Self { old: Vec::new(), unified: None, others: Vec::new() };
        for line in mounts.lines() {
            let Some((place, kind)) = line.split_once(" - ") else { continue };
            let Some(point) = place.split(' ').nth(4).map(PathBuf::from) else { continue };
            let mut kind = kind.split(' ');
            match kind.next() {
                Some("cgroup2") => {
                    let own = own.lines().find_map(|line| line.strip_prefix("0::/"));
                    layout.unified = Some((point, own.unwrap_or_default().into()));
                }
                Some("cgroup") => {
                    let options = kind.nth(1).unwrap_or_default();
                    let known = |name: &&str| USED_CONTROLLERS.contains(name);
                    let controllers: Vec<String> =
                        options.split(',').filter(known).map(str::to_owned).collect();
                    // The same hierarchy can be mounted twice.
                    let new = !layout.old.iter().any(|(_, others)| *others == controllers);
                    if controllers.is_empty() {
                        layout.others.push(point);
                    } else if new {
                        layout.old.push((point, controllers));
                    }
                }
                _ => {}
            }
        }
        layout
    }

    /// Returns the hierarchies for a node with this name. In v1, the node's directory is at the top, as container runtimes do it. In v2,
    /// it is below the cgroup of this process, which is the delegated subtree. If v1 has all required controllers, v2 is not used:
    /// joining a v2 cgroup takes a machine-wide lock, which can take longer than all other steps together.
    pub(super) fn node_hierarchies(
        &self,
        name: &str,
    ) -> Result<Vec<CgroupHierarchy>, SandboxError> {
        let old = self.old.iter().map(|(root, controllers)| CgroupHierarchy {
            root: root.clone(),
            directory: root.join(name),
            controllers: controllers.clone(),
            unified: false,
        });
        let mut all: Vec<CgroupHierarchy> = old.collect();
        let missing: Vec<&str> = REQUIRED_CONTROLLERS
            .into_iter()
            .filter(|controller| !all.iter().any(|hierarchy| hierarchy.has_controller(controller)))
            .collect();
        if missing.is_empty() {
            return Ok(all);
        }
        if let Some((root, own)) = &self.unified {
            all.push(CgroupHierarchy {
                root: root.clone(),
                directory: root.join(strip_own_cgroup(own, name)).join(name),
                controllers: missing.iter().map(ToString::to_string).collect(),
                unified: true,
            });
        } else {
            return Err(SandboxError::Missing {
                what: format!("no cgroup hierarchy limits {}", missing.join(", ")),
                todo: "mount the unified hierarchy: mount -t cgroup2 none /sys/fs/cgroup".into(),
            });
        }
        Ok(all)
    }

    /// Returns the directories that container runtimes may leave below the node's name in other hierarchies.
    pub(super) fn extra_directories(&self, name: &str) -> Vec<PathBuf> {
        let unified = self.unified.iter().filter(|_| !self.old.is_empty()).map(|(point, _)| point);
        self.others.iter().chain(unified).map(|point| point.join(name)).collect()
    }
}

/// Returns the parent of the node's own cgroup, if this process was moved into it before.
fn strip_own_cgroup<'a>(own: &'a Path, name: &str) -> &'a Path {
    let moved = own.file_name().is_some_and(|last| last == format!("{name}.node").as_str());
    if moved { own.parent().unwrap_or(own) } else { own }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HYBRID: &str = "\
31 23 0:27 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
32 31 0:28 / /sys/fs/cgroup/cpu rw,relatime shared:9 - cgroup cgroup rw,cpu
33 31 0:29 / /sys/fs/cgroup/cpuacct rw,relatime - cgroup cgroup rw,cpuacct
34 31 0:30 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
35 31 0:31 / /sys/fs/cgroup/pids rw,relatime - cgroup cgroup rw,pids
36 31 0:32 / /sys/fs/cgroup/systemd rw,relatime - cgroup cgroup rw,name=systemd
37 31 0:33 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
";

    fn old(controller: &str, point: &str) -> CgroupHierarchy {
        CgroupHierarchy {
            root: format!("/sys/fs/cgroup/{point}").into(),
            directory: format!("/sys/fs/cgroup/{point}/cynode-a").into(),
            controllers: controller.split(',').map(str::to_owned).collect(),
            unified: false,
        }
    }

    fn unified(root: &str, directory: &str, controllers: &[&str]) -> CgroupHierarchy {
        CgroupHierarchy {
            root: root.into(),
            directory: directory.into(),
            controllers: controllers.iter().map(ToString::to_string).collect(),
            unified: true,
        }
    }

    #[test]
    fn beside_the_old_hierarchies_the_unified_one_is_left_alone() {
        let layout = CgroupLayout::parse_mounts(HYBRID, "4:memory:/elsewhere\n0::/\n");
        let expected = vec![
            old("cpu", "cpu"),
            old("cpuacct", "cpuacct"),
            old("memory", "memory"),
            old("pids", "pids"),
        ];
        assert_eq!(layout.node_hierarchies("cynode-a").unwrap(), expected);
        let others = ["/sys/fs/cgroup/systemd/cynode-a", "/sys/fs/cgroup/unified/cynode-a"];
        assert_eq!(layout.extra_directories("cynode-a"), others.map(PathBuf::from));
    }

    #[test]
    fn the_unified_hierarchy_alone_has_everything_below_where_the_node_was_put() {
        let mounts = "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw,nsdelegate\n";
        for own in
            ["0::/system.slice/node.service\n", "0::/system.slice/node.service/cynode-a.node\n"]
        {
            let expected = unified(
                "/sys/fs/cgroup",
                "/sys/fs/cgroup/system.slice/node.service/cynode-a",
                &["cpu", "memory", "pids"],
            );
            assert_eq!(
                CgroupLayout::parse_mounts(mounts, own).node_hierarchies("cynode-a").unwrap(),
                vec![expected]
            );
        }
    }

    #[test]
    fn old_hierarchies_alone_are_enough_also_when_two_controllers_share_one() {
        let mounts = "\
32 31 0:28 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct
34 31 0:30 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory
35 31 0:31 / /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids
";
        let expected =
            vec![old("cpu,cpuacct", "cpu,cpuacct"), old("memory", "memory"), old("pids", "pids")];
        assert_eq!(
            CgroupLayout::parse_mounts(mounts, "").node_hierarchies("cynode-a").unwrap(),
            expected
        );
    }

    #[test]
    fn where_nothing_limits_memory_there_is_no_sandbox() {
        let mounts = "32 31 0:28 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n";
        let refused =
            CgroupLayout::parse_mounts(mounts, "").node_hierarchies("cynode-a").unwrap_err();
        assert_eq!(
            refused.to_string(),
            "no cgroup hierarchy limits memory, pids: mount the unified hierarchy: \
             mount -t cgroup2 none /sys/fs/cgroup"
        );
    }
}
