//! Merges the base commits of a job before the worker starts.

use cynode_core::nodes::WorkStopReason;
use cynode_wire::nodes::{MergeConflict, SandboxUse, WorkResult};

use super::{
    NodeJob,
    trusted_command::{TrustedCommandError, run_trusted_command},
};
use crate::{
    node::NodeContext,
    sandbox::SandboxExit,
    store::{NodeStoreError, TurnRecord},
    workspace::{self, MergeResult, WorkspaceError},
};

/// Committer of merge commits. It is constant, so that a repeated merge gives the same commits.
const MERGE_COMMITTER: &str = "CyNode";

/// Error of a merge. A conflict is not an error.
#[derive(Debug, thiserror::Error)]
pub(super) enum MergeError {
    #[error(transparent)]
    Workspace(#[from] WorkspaceError),
    #[error("commits could not be put together")]
    Aside(#[from] TrustedCommandError),
    #[error(transparent)]
    Store(#[from] NodeStoreError),
}

/// Merges the commits of a job in its new workspace, in a sandbox, and persists the outcome.
pub(super) async fn merge_commits(
    node: &NodeContext,
    job: &NodeJob,
) -> Result<MergeResult, MergeError> {
    let assignment = job.assignment();
    let argv = workspace::merge_argv(assignment)?;
    let (out, ended) = run_trusted_command(
        node,
        job,
        "merge",
        &argv,
        &workspace::sandbox_git_env(MERGE_COMMITTER),
        &[],
    )
    .await?;
    let merged = MergeResult {
        used: to_sandbox_use(&ended),
        ..workspace::read_merge_result(&out, assignment)?
    };
    job.dir.save_merge_result(&merged)?;
    job.push_note(describe_merge(&merged));
    Ok(merged)
}

fn to_sandbox_use(ended: &SandboxExit) -> SandboxUse {
    SandboxUse {
        backend: None,
        cpu_ms: u64::try_from(ended.cpu.as_millis()).unwrap_or(u64::MAX),
        peak_memory_bytes: ended.peak_memory,
        wall_ms: 0,
        out_of_memory: ended.out_of_memory,
    }
}

/// Describes the outcome of a merge in words.
fn describe_merge(merged: &MergeResult) -> String {
    match &merged.conflict {
        Some(conflict) => describe_conflict(conflict),
        None => match merged.commits.len() {
            0 => "There was nothing to put together.".to_owned(),
            1 => "One commit was put together with the work.".to_owned(),
            count => format!("{count} commits were put together with the work."),
        },
    }
}

fn describe_conflict(conflict: &MergeConflict) -> String {
    let MergeConflict { commit, merged_commits, files } = conflict;
    let others = match merged_commits.len() {
        0 => "with the work that it is for".to_owned(),
        1 => "after one other was put together".to_owned(),
        count => format!("after {count} others were put together"),
    };
    format!("The commit {commit} does not fit, {others}: {}.", files.join(", "))
}

/// Builds the record of a job without a worker: the merge is its only work.
pub(super) fn merge_only_record(job: &NodeJob, merged: Option<MergeResult>) -> TurnRecord {
    let Some(merged) = merged else {
        let summary = "There was nothing to put together.".to_owned();
        return build_turn_record(true, false, summary, None, SandboxUse::default());
    };
    let new = job.assignment().base.as_ref() != Some(&merged.head);
    build_turn_record(true, new, describe_merge(&merged), None, merged.used)
}

/// Builds the record of a job that ends with a merge conflict, because it has no worker that could resolve it.
pub(super) fn conflict_record(conflict: MergeConflict, used: SandboxUse) -> TurnRecord {
    build_turn_record(false, false, describe_conflict(&conflict), Some(conflict), used)
}

fn build_turn_record(
    succeeded: bool,
    prepared: bool,
    summary: String,
    conflict: Option<MergeConflict>,
    resource_usage: SandboxUse,
) -> TurnRecord {
    let stop_reason = if succeeded { WorkStopReason::EndTurn } else { WorkStopReason::Conflict };
    let stop_reason = Some(stop_reason);
    let result =
        WorkResult { summary, stop_reason, conflict, resource_usage, ..WorkResult::default() };
    TurnRecord { succeeded, prepared, result }
}
