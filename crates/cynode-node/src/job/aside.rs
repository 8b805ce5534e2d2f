//! Programs of the node's own over the files of a job: each in a sandbox of its own, without any socket.

use std::{collections::BTreeMap, path::PathBuf, time::Duration};

use tokio::{io::AsyncReadExt, time::Instant};

use super::{Job, JobRuns};
use crate::{
    node::Node,
    sandbox::{Bind, Ended, Limits, Running, SandboxError, Why},
    store::{self, StoreError},
    workers::Runs,
};

/// How long such a program may take.
pub(super) const WITHIN: Duration = Duration::from_mins(3);

/// Why it did not do what it was to do.
#[derive(Debug, thiserror::Error)]
pub(super) enum AsideError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("the sandbox")]
    Sandbox(#[from] SandboxError),
    #[error("the node has no sandbox for it")]
    NoSandbox,
    #[error("{}", story(*.why, .told))]
    Failed { why: Why, told: String },
}

fn story(why: Why, told: &str) -> String {
    match why {
        Why::Exited => told.to_owned(),
        Why::Killed => "it was stopped".to_owned(),
        Why::WallClock => "it took too long".to_owned(),
        Why::OutOfMemory => "it needed too much memory".to_owned(),
        Why::Disk => "it needed too much disk".to_owned(),
    }
}

/// Runs one to its end; gives where it has left what it has to say. What lay there before is gone.
pub(super) async fn aside(
    node: &Node,
    job: &Job,
    out: &str,
    argv: &[String],
    env: &BTreeMap<String, String>,
    binds: &[Bind],
) -> Result<(PathBuf, Ended), AsideError> {
    let out = job.dir.path().join(out);
    node.store.discard(&out)?;
    store::private_dir(&out)?;
    let needs = &job.assignment().work.sandbox;
    let (backend, image) = match node.finisher() {
        Some(backend) => (backend, None),
        None => (node.backend(needs).ok_or(AsideError::NoSandbox)?, needs.image.clone()),
    };
    let limits = node.settings.most.limits(needs, WITHIN);
    // When the disk is low, runs of workers are ended, and this saves what they did.
    let limits = Limits { despite_low_disk: true, ..limits };
    let runs = JobRuns::new(backend, job.id().to_string(), limits, Instant::now() + WITHIN)
        .in_image(image)
        .with_folders(&job.dir, out.clone());
    let (ended, told) = to_the_end(runs.run(argv, env, binds).await?).await;
    if ended.exit_code == Some(0) {
        Ok((out, ended))
    } else {
        Err(AsideError::Failed { why: ended.why, told })
    }
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
