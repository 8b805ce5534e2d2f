//! Placement: which nodes can be given a job, as `cynode_core::placement` chooses among them.

use cynode_core::{
    nodes::NodeState,
    placement::{NODE_SILENCE_TIMEOUT_MS, NodeCandidate, PlacementRequirements},
    workflow::jobs::{JobSpec, SandboxBackend, SandboxNeeds, WorkerChoice},
};
use cynode_db::nodes::NodeRecord;

/// Returns whether a node is alive: its program has started, and its last contact is recent.
pub(crate) fn is_alive(node: &NodeRecord) -> bool {
    node.generation > 0
        && node.silent_ms < NODE_SILENCE_TIMEOUT_MS
        && node.state != NodeState::Removed
}

/// Returns whether a node gets jobs now.
pub(crate) fn takes_jobs(node: &NodeRecord) -> bool {
    node.state == NodeState::Active && is_alive(node)
}

/// Returns the nodes that get jobs now, as candidates for placement.
pub(crate) fn placement_candidates(there: &[NodeRecord]) -> Vec<NodeCandidate> {
    there.iter().filter(|node| takes_jobs(node)).map(to_candidate).collect()
}

pub(crate) fn to_candidate(node: &NodeRecord) -> NodeCandidate {
    let report = &node.report;
    let limits = report.job_limits;
    let backends = report.backends.iter().map(|there| backend_name(there.backend).to_owned());
    NodeCandidate {
        name: node.name.clone(),
        labels: node.labels.clone(),
        backends: backends.collect(),
        agents: report.agents.iter().map(|there| there.agent.clone()).collect(),
        memory_mib: limits.map_or(report.memory_mib, |limits| limits.memory_mib.into()),
        // A node that does not say what it gives a job is not refused for it.
        disk_mib: limits.map_or(u64::MAX, |limits| limits.disk_mib.into()),
        free: report.slots.saturating_sub(node.jobs),
        turn: node.turn,
    }
}

/// Returns the requirements of a job on its node.
pub(crate) fn placement_needs(work: &JobSpec) -> PlacementRequirements<'_> {
    PlacementRequirements {
        node: work.placement.node.as_deref(),
        labels: &work.placement.labels,
        backend: needed_backend(&work.sandbox).map(backend_name),
        agent: match &work.worker {
            WorkerChoice::Acp { agent } => Some(agent),
            WorkerChoice::Command { .. }
            | WorkerChoice::Scripted { .. }
            | WorkerChoice::Checks { .. }
            | WorkerChoice::Merge => None,
        },
        memory_mib: work.sandbox.memory_mib.unwrap_or_default().into(),
        disk_mib: work.sandbox.disk_mib.unwrap_or_default().into(),
        bounds: None,
        avoid: &[],
    }
}

/// Returns the backend that a sandbox needs: only containers have images.
const fn needed_backend(needs: &SandboxNeeds) -> Option<SandboxBackend> {
    match (needs.backend, &needs.image) {
        (Some(backend), _) => Some(backend),
        (None, Some(_)) => Some(SandboxBackend::Podman),
        (None, None) => None,
    }
}

const fn backend_name(backend: SandboxBackend) -> &'static str {
    match backend {
        SandboxBackend::Bubblewrap => "bubblewrap",
        SandboxBackend::Podman => "podman",
    }
}
