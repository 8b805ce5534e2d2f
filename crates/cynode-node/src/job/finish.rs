//! From the end of the turn to the result.

use std::{collections::BTreeMap, fs, sync::Arc, time::Duration};

use cynode_wire::{
    jobs::JobOutcome,
    nodes::{JobPhase, NodeResult, StoredBlob},
    work::CommitRule,
};
use tokio::{io::AsyncReadExt, time::Instant};

use super::{Job, JobRuns};
use crate::{
    client::{ClientError, until_answered},
    node::Node,
    sandbox::{Ended, Running, SandboxError, Why},
    store::{self, StoreError, Worked},
    workers::Runs,
    workspace::{self, Taken, WorkspaceError},
};

/// How long it may take to put the work together, whatever is left of the job's time.
const FINISH_WITHIN: Duration = Duration::from_mins(3);

/// Most files that a job may leave beside its commit.
const MOST_ARTIFACTS: usize = 32;

/// Why the work could not be taken out.
#[derive(Debug, thiserror::Error)]
enum FinishError {
    #[error(transparent)]
    Workspace(#[from] WorkspaceError),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("the sandbox: {0}")]
    Sandbox(#[from] SandboxError),
    #[error("the node has no sandbox to put the work together in")]
    NoSandbox,
    #[error("the work could not be put together ({why:?}): {told}")]
    Failed { why: Why, told: String },
    #[error("the orchestrator did not take it: {0}")]
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
    if prepared && workspace::wants_commit(rule) {
        match commit(node, job).await {
            Ok(Some(taken)) => {
                result.commit = Some(taken.commit);
                result.bundle = Some(taken.bundle);
            }
            Ok(None) if rule == CommitRule::Required => fail("Nothing was changed."),
            Ok(None) => {}
            Err(error) => fail(&format!("What was changed is lost: {error}.")),
        }
    }
    if prepared {
        result.artifacts = artifacts(node, job).await;
    }
    result.used.wall_ms = u64::try_from(job.kept.claimed.elapsed().as_millis()).unwrap_or(u64::MAX);
    let outcome = if succeeded { JobOutcome::Succeeded } else { JobOutcome::Failed };
    NodeResult { fencing_token: job.fencing_token(), outcome, result }
}

/// Makes the commit in a sandbox of its own, takes it out and stores it with the orchestrator.
async fn commit(node: &Node, job: &Job) -> Result<Option<Taken>, FinishError> {
    let assignment = job.assignment();
    let out = job.dir.path().join("finish");
    node.store.discard(&out)?;
    store::private_dir(&out)?;
    let needs = &assignment.work.sandbox;
    let (backend, image) = match node.finisher() {
        Some(backend) => (backend, None),
        None => (node.backend(needs).ok_or(FinishError::NoSandbox)?, needs.image.clone()),
    };
    let limits = node.settings.most.limits(needs, FINISH_WITHIN);
    let until = Instant::now() + FINISH_WITHIN;
    let runs = JobRuns::new(backend, job.id().to_string(), limits, until)
        .in_image(image)
        .with_folders(&job.dir, out.clone());
    let argv = workspace::finishing(assignment)?;
    let env = [("PATH", "/usr/local/bin:/usr/bin:/bin"), ("HOME", "/nonexistent")];
    let env: BTreeMap<_, _> = env.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
    let (ended, told) = to_the_end(runs.run(&argv, &env, &[]).await?).await;
    if ended.exit_code != Some(0) {
        return Err(FinishError::Failed { why: ended.why, told });
    }
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

/// Waits for the end of a run and gives the end of what it complained of.
async fn to_the_end(mut running: Running) -> (Ended, String) {
    drop(running.stdin.take());
    let (stdout, stderr) = (running.stdout.take(), running.stderr.take());
    let quiet = async {
        if let Some(mut pipe) = stdout {
            let _ = tokio::io::copy(&mut pipe, &mut tokio::io::sink()).await;
        }
    };
    let loud = async {
        let mut kept = Vec::new();
        if let Some(mut pipe) = stderr {
            let _ = (&mut pipe).take(4096).read_to_end(&mut kept).await;
            let _ = tokio::io::copy(&mut pipe, &mut tokio::io::sink()).await;
        }
        String::from_utf8_lossy(&kept).trim().to_owned()
    };
    let ((), told, ended) = tokio::join!(quiet, loud, running.wait());
    (ended, told)
}
