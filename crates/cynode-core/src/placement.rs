//! Placement: chooses the node of a job. Only capable nodes are candidates, a requested node is the only one, and round
//! robin decides among equals.

use crate::policies::PlacementBounds;

/// How long nothing may be heard of a node before it counts as away, in milliseconds.
pub const NODE_SILENCE_TIMEOUT_MS: i64 = 20_000;

/// What a job asks of a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PlacementRequirements<'a> {
    /// This node and no other.
    pub node: Option<&'a str>,
    /// Labels, all of which it must have.
    pub labels: &'a [String],
    /// The backend that makes its sandbox.
    pub backend: Option<&'a str>,
    /// The coding agent.
    pub agent: Option<&'a str>,
    /// Memory, in MiB.
    pub memory_mib: u64,
    /// Disk space, in MiB.
    pub disk_mib: u64,
    /// The nodes that admins allow; none bounds nothing.
    pub bounds: Option<&'a PlacementBounds>,
    /// Names of nodes that get it only when no other free node can do it.
    pub avoid: &'a [String],
}

/// A node that is alive and takes jobs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeCandidate {
    /// What it is called.
    pub name: String,
    /// Its labels.
    pub labels: Vec<String>,
    /// The backends that work there.
    pub backends: Vec<String>,
    /// The coding agents that are there.
    pub agents: Vec<String>,
    /// Memory that it gives a job, in MiB.
    pub memory_mib: u64,
    /// Disk space that it gives a job, in MiB.
    pub disk_mib: u64,
    /// How many more jobs it takes.
    pub free: u32,
    /// When it was given a job last; the smallest is next.
    pub turn: i64,
}

/// Why a job has no node yet.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlacementError {
    /// There is none at all.
    #[error(
        "no node is connected: make a join token and run `cynode-node join` on a machine of yours"
    )]
    NoNodes,
    /// The one that was asked for is not there.
    #[error("the node `{0}` was asked for and is not connected")]
    NotThere(String),
    /// A policy keeps it from every node that is there.
    #[error("no connected node may do it: {0}")]
    NotAllowed(String),
    /// None can do it.
    #[error("no connected node has {0}")]
    Unable(String),
    /// None gives a job that much.
    #[error("{0}")]
    TooSmall(ResourceShortage),
    /// All that could are busy.
    #[error("every node that can do it is busy")]
    Busy,
}

/// Resource that every allowed node has too little of.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "it needs {needed_mib} MiB of {resource}; the largest allowed node `{node}` gives a job {given_mib} MiB"
)]
pub struct ResourceShortage {
    /// The resource, for people: `memory` or `disk`.
    pub resource: &'static str,
    /// Key of the limit in the configuration of a node.
    pub config_key: &'static str,
    /// What the job needs, in MiB.
    pub needed_mib: u64,
    /// The node that gives most.
    pub node: String,
    /// What that node gives a job, in MiB.
    pub given_mib: u64,
}

/// The place of the node in `candidates` that gets the job.
pub fn choose_node(
    needs: PlacementRequirements<'_>,
    candidates: &[NodeCandidate],
) -> Result<usize, PlacementError> {
    if candidates.is_empty() {
        return Err(PlacementError::NoNodes);
    }
    let mut left: Vec<_> = candidates.iter().enumerate().collect();
    if let Some(bounds) = needs.bounds {
        let refusal = |node: &NodeCandidate| bounds.find_refusal(&node.name, &node.labels);
        let first = left.iter().find_map(|(_, node)| refusal(node)).map(|it| it.describe_policy());
        left.retain(|(_, node)| refusal(node).is_none());
        if left.is_empty() {
            return Err(PlacementError::NotAllowed(first.unwrap_or_default()));
        }
    }
    if let Some(name) = needs.node {
        left.retain(|(_, node)| node.name == name);
        if left.is_empty() {
            return Err(PlacementError::NotThere(name.to_owned()));
        }
    }
    let mut keep = |what: &dyn Fn(&NodeCandidate) -> bool,
                    words: &dyn Fn(&NodeCandidate) -> PlacementError| {
        let nearest = left.first().map(|(_, node)| *node);
        left.retain(|(_, node)| what(node));
        match nearest {
            Some(nearest) if left.is_empty() => Err(words(nearest)),
            Some(_) | None => Ok(()),
        }
    };
    for label in needs.labels {
        let words = |nearest: &NodeCandidate| {
            let (name, labels) = (&nearest.name, quote_names(&nearest.labels));
            PlacementError::Unable(format!(
                "the label `{label}`: the nearest, `{name}`, has {labels}"
            ))
        };
        keep(&|node| node.labels.contains(label), &words)?;
    }
    if let Some(backend) = needs.backend {
        let words = |nearest: &NodeCandidate| {
            let (name, backends) = (&nearest.name, quote_names(&nearest.backends));
            PlacementError::Unable(format!(
                "the sandbox backend `{backend}`: the nearest, `{name}`, has {backends}"
            ))
        };
        keep(&|node| node.backends.iter().any(|there| there == backend), &words)?;
    } else {
        let words =
            |_: &NodeCandidate| PlacementError::Unable("a sandbox backend that works".to_owned());
        keep(&|node| !node.backends.is_empty(), &words)?;
    }
    if let Some(agent) = needs.agent {
        let words = |_: &NodeCandidate| {
            PlacementError::Unable(format!(
                "the coding agent `{agent}`: run `cynode-node agents install {agent}` on one"
            ))
        };
        keep(&|node| node.agents.iter().any(|there| there == agent), &words)?;
    }
    let resources: [(&'static str, &'static str, u64, GivenMib); 2] = [
        ("memory", "memory_mib", needs.memory_mib, |node| node.memory_mib),
        ("disk", "disk_mib", needs.disk_mib, |node| node.disk_mib),
    ];
    for (resource, config_key, needed_mib, gives) in resources {
        let largest = left.iter().map(|(_, node)| *node).max_by_key(|node| gives(node));
        left.retain(|(_, node)| gives(node) >= needed_mib);
        if let Some(node) = largest.filter(|_| left.is_empty()) {
            return Err(PlacementError::TooSmall(ResourceShortage {
                resource,
                config_key,
                needed_mib,
                node: node.name.clone(),
                given_mib: gives(node),
            }));
        }
    }
    left.retain(|(_, node)| node.free > 0);
    let next =
        left.into_iter().min_by_key(|(_, node)| (needs.avoid.contains(&node.name), node.turn));
    next.map(|(place, _)| place).ok_or(PlacementError::Busy)
}

/// Returns what a node gives of a resource, in MiB.
type GivenMib = fn(&NodeCandidate) -> u64;

/// Lists names for people.
fn quote_names(names: &[String]) -> String {
    let quoted: Vec<_> = names.iter().map(|name| format!("`{name}`")).collect();
    if quoted.is_empty() { "none".to_owned() } else { quoted.join(", ") }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn node(name: &str, turn: i64) -> NodeCandidate {
        NodeCandidate {
            name: name.to_owned(),
            labels: vec!["linux".into()],
            backends: vec!["bubblewrap".into()],
            agents: vec!["goose".into()],
            memory_mib: 4096,
            disk_mib: 10_240,
            free: 1,
            turn,
        }
    }

    #[test]
    fn a_job_goes_only_where_it_can_be_done_and_says_what_is_missing() {
        let nodes = [node("a", 1), NodeCandidate { memory_mib: 6144, ..node("b", 2) }];
        let labels = ["gpu".to_owned()];
        let unable = |words: &str| Err(PlacementError::Unable(words.to_owned()));
        let cases = [
            (PlacementRequirements::default(), Ok(0)),
            (PlacementRequirements { node: Some("b"), ..PlacementRequirements::default() }, Ok(1)),
            (
                PlacementRequirements { node: Some("c"), ..PlacementRequirements::default() },
                Err(PlacementError::NotThere("c".to_owned())),
            ),
            (
                PlacementRequirements { labels: &labels, ..PlacementRequirements::default() },
                unable("the label `gpu`: the nearest, `a`, has `linux`"),
            ),
            (
                PlacementRequirements {
                    backend: Some("podman"),
                    ..PlacementRequirements::default()
                },
                unable("the sandbox backend `podman`: the nearest, `a`, has `bubblewrap`"),
            ),
            (
                PlacementRequirements { agent: Some("codex"), ..PlacementRequirements::default() },
                unable("the coding agent `codex`: run `cynode-node agents install codex` on one"),
            ),
            (
                PlacementRequirements { memory_mib: 8192, ..PlacementRequirements::default() },
                Err(PlacementError::TooSmall(ResourceShortage {
                    resource: "memory",
                    config_key: "memory_mib",
                    needed_mib: 8192,
                    node: "b".to_owned(),
                    given_mib: 6144,
                })),
            ),
            (
                PlacementRequirements { disk_mib: 10_241, ..PlacementRequirements::default() },
                Err(PlacementError::TooSmall(ResourceShortage {
                    resource: "disk",
                    config_key: "disk_mib",
                    needed_mib: 10_241,
                    node: "b".to_owned(),
                    given_mib: 10_240,
                })),
            ),
            (PlacementRequirements { memory_mib: 5000, ..PlacementRequirements::default() }, Ok(1)),
        ];
        for (needs, expected) in cases {
            assert_eq!(choose_node(needs, &nodes), expected, "{needs:?}");
        }
        assert_eq!(
            choose_node(PlacementRequirements::default(), &[]),
            Err(PlacementError::NoNodes),
            "S001-57: an empty list is a typed error"
        );
        let busy = [NodeCandidate { free: 0, ..node("a", 1) }];
        assert_eq!(choose_node(PlacementRequirements::default(), &busy), Err(PlacementError::Busy));
        let too_much =
            PlacementRequirements { memory_mib: 8192, ..PlacementRequirements::default() };
        assert_eq!(
            choose_node(too_much, &nodes).unwrap_err().to_string(),
            "it needs 8192 MiB of memory; the largest allowed node `b` gives a job 6144 MiB",
            "S000-022: it is refused, and no smaller one takes its place"
        );
    }

    #[test]
    fn a_node_to_avoid_gets_a_job_only_when_no_other_free_one_can_do_it() {
        let avoid = ["a".to_owned()];
        let needs = PlacementRequirements { avoid: &avoid, ..PlacementRequirements::default() };
        assert_eq!(choose_node(needs, &[node("a", 1), node("b", 2)]), Ok(1));
        let busy = [node("a", 1), NodeCandidate { free: 0, ..node("b", 2) }];
        assert_eq!(choose_node(needs, &busy), Ok(0));
        assert_eq!(choose_node(needs, &[node("a", 1)]), Ok(0), "it is never refused");
    }

    #[test]
    fn whoever_is_asked_for_is_never_replaced_by_another() {
        let nodes = [NodeCandidate { free: 0, ..node("a", 1) }, node("b", 2)];
        let needs = PlacementRequirements { node: Some("a"), ..PlacementRequirements::default() };
        assert_eq!(choose_node(needs, &nodes), Err(PlacementError::Busy), "X-12");
    }

    proptest! {
        #[test]
        fn turns_are_fair_to_within_one(workers in 1..12_usize, jobs in 0..200_usize) {
            let mut nodes: Vec<_> = (0..workers)
                .map(|i| NodeCandidate { free: u32::MAX, ..node(&format!("n{i}"), 0) })
                .collect();
            let mut given = vec![0_usize; workers];
            for turn in 1..=jobs {
                let place = choose_node(PlacementRequirements::default(), &nodes).unwrap();
                given[place] += 1;
                nodes[place].turn = i64::try_from(turn).unwrap();
            }
            let (least, most) = (jobs / workers, jobs.div_ceil(workers));
            prop_assert!(
                given.iter().all(|got| (least..=most).contains(got)),
                "S001-56, S001-58: {given:?}"
            );
        }
    }
}
