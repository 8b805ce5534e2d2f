//! Commits that are put together before the worker begins.

use cynode_wire::nodes::{Conflict, SandboxUse, WorkResult};

use super::{
    Job,
    aside::{AsideError, aside},
};
use crate::{
    node::Node,
    sandbox::Ended,
    store::{StoreError, Worked},
    workers::stops,
    workspace::{self, Merged, WorkspaceError},
};

/// Who puts commits together. Depends on nothing, so that doing it again gives the same commits.
const WHO: &str = "CyNode";

/// Why commits could not be put together; that they do not fit is no such reason.
#[derive(Debug, thiserror::Error)]
pub(super) enum MergeError {
    #[error(transparent)]
    Workspace(#[from] WorkspaceError),
    #[error("commits could not be put together")]
    Aside(#[from] AsideError),
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Puts the commits of a job together in its new workspace, in a sandbox, and keeps what became of them.
pub(super) async fn merge(node: &Node, job: &Job) -> Result<Merged, MergeError> {
    let assignment = job.assignment();
    let argv = workspace::merging(assignment)?;
    let (out, ended) = aside(node, job, "merge", &argv, &workspace::shielded(WHO), &[]).await?;
    let merged = Merged { used: used(&ended), ..workspace::merged(&out, assignment)? };
    job.dir.set_merged(&merged)?;
    job.note(story(&merged));
    Ok(merged)
}

fn used(ended: &Ended) -> SandboxUse {
    SandboxUse {
        backend: None,
        cpu_ms: u64::try_from(ended.cpu.as_millis()).unwrap_or(u64::MAX),
        peak_memory_bytes: ended.peak_memory,
        wall_ms: 0,
        out_of_memory: ended.out_of_memory,
    }
}

/// What became of it, in words.
fn story(merged: &Merged) -> String {
    match &merged.conflict {
        Some(conflict) => unfit(conflict),
        None => match merged.commits.len() {
            0 => "There was nothing to put together.".to_owned(),
            1 => "One commit was put together with the work.".to_owned(),
            count => format!("{count} commits were put together with the work."),
        },
    }
}

fn unfit(conflict: &Conflict) -> String {
    let Conflict { commit, with, files } = conflict;
    let others = match with.len() {
        0 => "with the work that it is for".to_owned(),
        1 => "after one other was put together".to_owned(),
        count => format!("after {count} others were put together"),
    };
    format!("The commit {commit} does not fit, {others}: {}.", files.join(", "))
}

/// What came of a job in which nobody works: the commits were put together, and that is all.
pub(super) fn alone(job: &Job, merged: Option<Merged>) -> Worked {
    let Some(merged) = merged else {
        let summary = "There was nothing to put together.".to_owned();
        return worked(true, false, summary, None, SandboxUse::default());
    };
    let new = job.assignment().base.as_ref() != Some(&merged.head);
    worked(true, new, story(&merged), None, merged.used)
}

/// What came of a job whose commits do not fit and in which nobody could mend that.
pub(super) fn conflicting(conflict: Conflict, used: SandboxUse) -> Worked {
    worked(false, false, unfit(&conflict), Some(conflict), used)
}

fn worked(
    succeeded: bool,
    prepared: bool,
    summary: String,
    conflict: Option<Conflict>,
    used: SandboxUse,
) -> Worked {
    let stop = if succeeded { stops::END_TURN } else { stops::CONFLICT }.to_owned();
    let result = WorkResult { summary, stop, conflict, used, ..WorkResult::default() };
    Worked { succeeded, prepared, result }
}
