//! Finishing a job: from the end of the worker's turn to the result.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    sync::Arc,
};

use cynode_core::{
    nodes::{JobPhase, WorkStopReason},
    workflow::jobs::{CommitRule, WorkerChoice},
};
use cynode_wire::{
    nodes::{AssignedProfile, NodeResult, StoredBlob},
    workflow::jobs::JobOutcome,
};

use super::{
    NodeJob, format_error_chain,
    trusted_command::{TrustedCommandError, run_trusted_command},
    work,
};
use crate::{
    client::{NodeClientError, call_with_retry},
    job::environment::run_blocking,
    node::NodeContext,
    sandbox::{BindMount, remove_whiteouts},
    store::{NodeStoreError, TurnRecord},
    workers::WorkerError,
    workspace::{self, CHANGE_SOURCE_PATH, ChangeListing, MergeResult, WorkBundle, WorkspaceError},
};

/// Maximum number of files that a job may leave beside its commit.
const MAX_ARTIFACT_COUNT: usize = 32;

/// Maximum number of refused paths that a result names, and maximum number of characters of each.
const MAX_REFUSED_PATHS: usize = 20;
const MAX_REFUSED_PATH_CHARS: usize = 200;

/// Path inside the sandbox of the file that lists what never becomes part of the result.
const EXCLUDE_PATH: &str = "/exclude";

/// Reason why the work could not be exported.
#[derive(Debug, thiserror::Error)]
enum FinishError {
    #[error(transparent)]
    Workspace(#[from] WorkspaceError),
    #[error(transparent)]
    Store(#[from] NodeStoreError),
    #[error("the work could not be put together")]
    Aside(#[from] TrustedCommandError),
    #[error("the orchestrator did not take it")]
    Refused(#[from] NodeClientError),
    #[error("its changes could not be told from what was there before")]
    Unlisted(#[from] WorkerError),
    /// The profile of the job does not allow the changes.
    #[error("{0}")]
    Forbidden(String),
}

/// Builds the result of a job.
pub(super) async fn finish_job(
    node: &Arc<NodeContext>,
    job: &Arc<NodeJob>,
    worked: TurnRecord,
) -> NodeResult {
    job.enter_phase(JobPhase::Finishing);
    let TurnRecord { mut succeeded, prepared, mut result } = worked;
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
        match try_commit_work(node, job).await {
            // Commits that were merged before the worker started do not count as its work.
            Ok((Some(taken), Some(before))) if required && taken.commit == before.head => {
                fail("Nothing was changed.");
            }
            Ok((Some(taken), _)) => {
                result.commit = Some(taken.commit);
                result.bundle = Some(taken.bundle);
            }
            Ok((None, _)) if required => fail("Nothing was changed."),
            Ok((None, _)) => {}
            Err(FinishError::Forbidden(why)) => {
                fail(&why);
                result.stop_reason = Some(WorkStopReason::Refused);
            }
            Err(error) => {
                fail(&format!("What was changed is lost: {}.", format_error_chain(error)));
            }
        }
    }
    if prepared {
        result.artifacts = upload_artifacts(node, job).await;
    }
    result.resource_usage.wall_ms =
        u64::try_from(job.kept.claimed.elapsed().as_millis()).unwrap_or(u64::MAX);
    let outcome = if succeeded { JobOutcome::Succeeded } else { JobOutcome::Failed };
    NodeResult { fencing_token: job.fencing_token(), outcome, result }
}

async fn try_commit_work(
    node: &NodeContext,
    job: &NodeJob,
) -> Result<(Option<WorkBundle>, Option<MergeResult>), FinishError> {
    let merged = job.dir.load_merge_result()?;
    Ok((commit_work(node, job, merged.as_ref()).await?, merged))
}

/// Creates the commit in its own sandbox, exports it and uploads it to the orchestrator.
async fn commit_work(
    node: &NodeContext,
    job: &NodeJob,
    merged: Option<&MergeResult>,
) -> Result<Option<WorkBundle>, FinishError> {
    let assignment = job.assignment();
    let limited = job.agent_profile().filter(|profile| !writes_everything(profile));
    let listing = match limited {
        Some(_) => ChangeListing::Listed,
        None => ChangeListing::Unlisted,
    };
    let argv = workspace::finish_argv(assignment, merged, listing)?;
    let role = format!("CyNode {}", assignment.work.role.as_str().replace('_', " "));
    let mut env = workspace::sandbox_git_env(&role);
    let mut binds = exclude_environment_files(job, &mut env).await;
    if limited.is_some() {
        binds.push(Box::pin(prepare_change_source(node, job)).await?);
        workspace::add_change_references(&mut env, assignment, merged)?;
    }
    let (out, _) = run_trusted_command(node, job, "finish", &argv, &env, &binds).await?;
    let most = node.settings.job_limits.bundle_bytes();
    let Some(taken) = workspace::read_work_bundle(&out, most)? else { return Ok(None) };
    if let Some(profile) = limited {
        require_allowed_changes(profile, &workspace::read_changed_paths(&out)?)?;
    }
    upload_file(node, job, &taken.file, &taken.bundle).await?;
    Ok(Some(taken))
}

/// Returns whether a profile lets a result change every file.
fn writes_everything(profile: &AssignedProfile) -> bool {
    profile.spec.paths.write.iter().any(|glob| glob == "**")
}

/// Creates the repository in which the changes of the result are listed. Returns its bind mount.
async fn prepare_change_source(
    node: &NodeContext,
    job: &NodeJob,
) -> Result<BindMount, FinishError> {
    let mirror = work::mirror_of_job(node, job).await?;
    let (host, store, mirror) = (&node.host, &node.store, mirror.as_deref());
    workspace::create_change_source(host, store, &job.dir, job.assignment(), mirror).await?;
    Ok(BindMount { host: job.dir.source_dir(), inside: CHANGE_SOURCE_PATH.into(), writable: true })
}

/// Rejects a result that changes files which the profile does not let it change.
fn require_allowed_changes(
    profile: &AssignedProfile,
    changed: &BTreeSet<String>,
) -> Result<(), FinishError> {
    let refused: Vec<&String> =
        changed.iter().filter(|path| !profile.spec.allows_write(path)).collect();
    if refused.is_empty() {
        return Ok(());
    }
    let shown = refused.iter().take(MAX_REFUSED_PATHS);
    let shown: Vec<String> = shown.map(|path| printable_path(path)).collect();
    let more = match refused.len().saturating_sub(MAX_REFUSED_PATHS) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    Err(FinishError::Forbidden(format!(
        "The profile `{}` (version {}) does not let the result change: {}{more}. Nothing of it was kept.",
        profile.name,
        profile.version,
        shown.join(", ")
    )))
}

/// Returns a path as one short line.
fn printable_path(path: &str) -> String {
    let printable = path.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c });
    printable.take(MAX_REFUSED_PATH_CHARS).collect()
}

/// Makes git ignore what the set-up of the environment made. Returns the bind mounts that this needs.
///
/// The run sees the job's own changes without the layer below them, so the marks of deleted files of the layer are removed first. One
/// that stays matters only where the commit has a file, and then the run fails.
async fn exclude_environment_files(
    job: &NodeJob,
    env: &mut BTreeMap<String, String>,
) -> Vec<BindMount> {
    let host = job.dir.exclude_file();
    if !host.exists() {
        return Vec::new();
    }
    let workspace = job.dir.workspace_dir();
    if let Err(error) = run_blocking(move || remove_whiteouts(&workspace)).await {
        job.push_note(format!("marks of deleted files could not be removed: {error}"));
    }
    workspace::add_exclude_file(env, EXCLUDE_PATH);
    vec![BindMount { host, inside: EXCLUDE_PATH.into(), writable: false }]
}

async fn upload_file(
    node: &NodeContext,
    job: &NodeJob,
    file: &std::path::Path,
    blob: &StoredBlob,
) -> Result<(), NodeClientError> {
    let token = job.fencing_token();
    call_with_retry(|| node.client.upload_blob(job.job_id(), token, file, blob)).await.map(drop)
}

/// Uploads the files that the job left in `/out`, by name. It skips and reports a file that is not a plain file, has an invalid
/// name or is too large.
async fn upload_artifacts(node: &NodeContext, job: &NodeJob) -> BTreeMap<String, StoredBlob> {
    let mut stored = BTreeMap::new();
    let mut left = node.settings.job_limits.bundle_bytes();
    let entries = fs::read_dir(job.dir.out_dir()).into_iter().flatten().flatten();
    for (at, entry) in entries.enumerate() {
        let path = entry.path();
        let name = entry.file_name().to_string_lossy().into_owned();
        if at >= MAX_ARTIFACT_COUNT {
            job.push_note(format!(
                "more than {MAX_ARTIFACT_COUNT} files were left in /out; the others stay behind"
            ));
            break;
        }
        let plain = name.len() <= 100
            && name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_'));
        if !plain {
            job.push_note("a file with an odd name in /out stays behind");
            continue;
        }
        let blob = match workspace::digest_file(&path, left) {
            Ok(blob) => blob,
            Err(error) => {
                job.push_note(format!("/out/{name} stays behind: {error}"));
                continue;
            }
        };
        match upload_file(node, job, &path, &blob).await {
            Ok(()) => {
                left -= blob.bytes;
                stored.insert(name, blob);
            }
            Err(error) => job.push_note(format!("/out/{name} stays behind: {error}")),
        }
    }
    stored
}
