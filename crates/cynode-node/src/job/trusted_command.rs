//! Trusted commands of the node over the files of a job: each in a sandbox of its own, without sockets.

use std::{collections::BTreeMap, path::PathBuf, time::Duration};

use tokio::{io::AsyncReadExt, time::Instant};

use super::{JobSandboxRunner, NodeJob};
use crate::{
    node::NodeContext,
    sandbox::{BindMount, ExitReason, SandboxError, SandboxExit, SandboxLimits, SandboxProcess},
    store::{self, NodeStoreError},
    workers::SandboxRunner,
};

/// Timeout of a trusted command.
pub(super) const TRUSTED_COMMAND_TIMEOUT: Duration = Duration::from_mins(3);

/// Error of a trusted command.
#[derive(Debug, thiserror::Error)]
pub(super) enum TrustedCommandError {
    #[error(transparent)]
    Store(#[from] NodeStoreError),
    #[error("the sandbox")]
    Sandbox(#[from] SandboxError),
    #[error("the node has no sandbox for it")]
    NoSandbox,
    #[error("{}", describe_failure(*.why, .told))]
    Failed { why: ExitReason, told: String },
}

fn describe_failure(why: ExitReason, told: &str) -> String {
    match why {
        ExitReason::Exited => told.to_owned(),
        ExitReason::Killed => "it was stopped".to_owned(),
        ExitReason::WallClock => "it took too long".to_owned(),
        ExitReason::OutOfMemory => "it needed too much memory".to_owned(),
        ExitReason::Disk => "it needed too much disk".to_owned(),
    }
}

/// Runs a command to its exit and returns the directory with its output. Earlier content of that directory is removed.
pub(super) async fn run_trusted_command(
    node: &NodeContext,
    job: &NodeJob,
    out: &str,
    argv: &[String],
    env: &BTreeMap<String, String>,
    binds: &[BindMount],
) -> Result<(PathBuf, SandboxExit), TrustedCommandError> {
    let out = job.dir.as_path().join(out);
    node.store.move_to_trash(&out)?;
    store::create_private_dir(&out)?;
    let needs = &job.sandbox_needs();
    let (backend, image) = match node.select_trusted_backend() {
        Some(backend) => (backend, None),
        None => {
            (node.select_backend(needs).ok_or(TrustedCommandError::NoSandbox)?, needs.image.clone())
        }
    };
    let limits = node.settings.job_limits.run_limits(needs, TRUSTED_COMMAND_TIMEOUT);
    // A low disk ends the runs of workers. This run saves their work, so it continues.
    let limits = SandboxLimits { despite_low_disk: true, ..limits };
    let runs = JobSandboxRunner::new(
        backend,
        job.job_id().to_string(),
        limits,
        Instant::now() + TRUSTED_COMMAND_TIMEOUT,
    )
    .with_image(image)
    .with_folders(&job.dir, out.clone());
    let (ended, told) = wait_with_stderr(runs.run_program(argv, env, binds).await?).await;
    if ended.exit_code == Some(0) {
        Ok((out, ended))
    } else {
        Err(TrustedCommandError::Failed { why: ended.why, told })
    }
}

/// Waits for the end of a run and returns the tail of its standard error.
async fn wait_with_stderr(mut running: SandboxProcess) -> (SandboxExit, String) {
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
    let ((), told, ended) = tokio::join!(quiet, loud, running.wait_for_exit());
    (ended, told)
}
