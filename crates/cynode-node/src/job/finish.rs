//! From the end of the turn to the result.

use std::{collections::BTreeMap, fs, sync::Arc};

use cynode_wire::{
    jobs::JobOutcome,
    nodes::{JobPhase, NodeResult, StoredBlob},
    work::{CommitRule, WorkerChoice},
};

use super::{
    Job,
    aside::{AsideError, aside},
    chain,
};
use crate::{
    client::{ClientError, until_answered},
    node::Node,
    store::{StoreError, Worked},
    workspace::{self, Merged, Taken, WorkspaceError},
};

/// Most files that a job may leave beside its commit.
const MOST_ARTIFACTS: usize = 32;

/// Why the work could not be taken out.
#[derive(Debug, thiserror::Error)]
enum FinishError {
    #[error(transparent)]
    Workspace(#[from] WorkspaceError),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("the work could not be put together")]
    Aside(#[from] AsideError),
    #[error("the orchestrator did not take it")]
    Refused(#[from] ClientError),
}

/// Puts the result together.
pub(super) async fn finish(node: &Arc<Node>, job: &Arc<Job>, worked: Worked) -> NodeResult {
    job.enter(JobPhase::Finishing);
    let Worked { mut succeeded, prepared, mut result } = worked;
    let rule = job.assignment().work.commit;
    let mut fail = |why: &str| {
        succeeded = false;
        if !result.summary.is_empty() {
            result.summary.push_str("\n\n");
        }
        result.summary.push_str(why);
    };
    let nobody = job.assignment().work.worker == WorkerChoice::Merge;
    let required = rule == CommitRule::Required && !nobody;
    if prepared && workspace::wants_commit(rule) {
        match try_commit(node, job).await {
            // What was put together before the worker began is none of its doing.
            Ok((Some(taken), Some(before))) if required && taken.commit == before.head => {
                fail("Nothing was changed.");
            }
            Ok((Some(taken), _)) => {
                result.commit = Some(taken.commit);
                result.bundle = Some(taken.bundle);
            }
            Ok((None, _)) if required => fail("Nothing was changed."),
            Ok((None, _)) => {}
            Err(error) => fail(&format!("What was changed is lost: {}.", chain(error))),
        }
    }
    if prepared {
        result.artifacts = artifacts(node, job).await;
    }
    result.used.wall_ms = u64::try_from(job.kept.claimed.elapsed().as_millis()).unwrap_or(u64::MAX);
    let outcome = if succeeded { JobOutcome::Succeeded } else { JobOutcome::Failed };
    NodeResult { fencing_token: job.fencing_token(), outcome, result }
}

async fn try_commit(
    node: &Node,
    job: &Job,
) -> Result<(Option<Taken>, Option<Merged>), FinishError> {
    let merged = job.dir.merged()?;
    Ok((commit(node, job, merged.as_ref()).await?, merged))
}

/// Makes the commit in a sandbox of its own, takes it out and stores it with the orchestrator.
async fn commit(
    node: &Node,
    job: &Job,
    merged: Option<&Merged>,
) -> Result<Option<Taken>, FinishError> {
    let assignment = job.assignment();
    let argv = workspace::finishing(assignment, merged)?;
    let role = format!("CyNode {}", assignment.work.role.as_str().replace('_', " "));
    let (out, _) = aside(node, job, "finish", &argv, &workspace::shielded(&role), &[]).await?;
    let most = node.settings.most.bundle_bytes();
    let Some(taken) = workspace::take(&out, most)? else { return Ok(None) };
    upload(node, job, &taken.file, &taken.bundle).await?;
    Ok(Some(taken))
}

async fn upload(
    node: &Node,
    job: &Job,
    file: &std::path::Path,
    blob: &StoredBlob,
) -> Result<(), ClientError> {
    let token = job.fencing_token();
    until_answered(|| node.client.blob(job.id(), token, file, blob)).await.map(drop)
}

/// Files that the job left in `/out`, by name. What is no plain file, has an odd name or is too large stays behind, and that is
/// said.
async fn artifacts(node: &Node, job: &Job) -> BTreeMap<String, StoredBlob> {
    let mut stored = BTreeMap::new();
    let mut left = node.settings.most.bundle_bytes();
    let entries = fs::read_dir(job.dir.out()).into_iter().flatten().flatten();
    for (at, entry) in entries.enumerate() {
        let path = entry.path();
        let name = entry.file_name().to_string_lossy().into_owned();
        if at >= MOST_ARTIFACTS {
            job.note(format!(
                "more than {MOST_ARTIFACTS} files were left in /out; the others stay behind"
            ));
            break;
        }
        let plain = name.len() <= 100
            && name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_'));
        if !plain {
            job.note("a file with an odd name in /out stays behind");
            continue;
        }
        let blob = match workspace::measure_file(&path, left) {
            Ok(blob) => blob,
            Err(error) => {
                job.note(format!("/out/{name} stays behind: {error}"));
                continue;
            }
        };
        match upload(node, job, &path, &blob).await {
            Ok(()) => {
                left -= blob.bytes;
                stored.insert(name, blob);
            }
            Err(error) => job.note(format!("/out/{name} stays behind: {error}")),
        }
    }
    stored
}
