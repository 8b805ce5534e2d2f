//! What checks stand on: made anew for each of them, with the files that they go by put back.

use std::{path::Path, sync::Arc};

use cynode_core::evidence::{Check, is_plain_path};
use futures::future::BoxFuture;

use super::{
    Job,
    aside::{AsideError, aside},
    chain, work,
};
use crate::{
    node::Node,
    sandbox::Bind,
    workers::{
        WorkerError,
        checks::{Floor, Unpinned},
    },
    workspace::{self, Spoilt, WorkspaceError},
};

/// The folders of a job, and the commit from which files are put back.
pub(super) struct JobFloor {
    node: Arc<Node>,
    job: Arc<Job>,
    pinned_from: Option<String>,
}

impl JobFloor {
    pub(super) fn new(node: &Arc<Node>, job: &Arc<Job>, pinned_from: Option<&String>) -> Self {
        let pinned_from = pinned_from.cloned();
        Self { node: Arc::clone(node), job: Arc::clone(job), pinned_from }
    }

    async fn pinned(&self) -> Result<Vec<Spoilt>, Unpinned> {
        let Some(commit) = &self.pinned_from else { return Ok(Vec::new()) };
        let failed = |error: WorkspaceError| Unpinned::Failed(chain(error));
        let argv = workspace::pinning(commit).map_err(failed)?;
        let source = Bind { host: self.job.dir.source(), inside: "/source".into(), writable: true };
        let env = workspace::shielded("CyNode");
        match aside(&self.node, &self.job, "pins", &argv, &env, &[source]).await {
            Ok((out, _)) => workspace::spoilt(&out).map_err(failed),
            Err(AsideError::Sandbox(error)) => Err(Unpinned::NoSandbox(WorkerError::from(error))),
            Err(error) => Err(Unpinned::Failed(chain(error))),
        }
    }
}

impl Floor for JobFloor {
    fn anew(&self) -> BoxFuture<'_, Result<(), WorkerError>> {
        Box::pin(work::prepare_again(&self.node, &self.job))
    }

    fn put_back(&self) -> BoxFuture<'_, Result<Vec<Spoilt>, Unpinned>> {
        Box::pin(self.pinned())
    }
}

/// Makes what the files are put back from.
pub(super) async fn source(
    node: &Node,
    job: &Job,
    mirror: &Path,
    checks: &[Check],
    from: &str,
) -> Result<(), WorkspaceError> {
    let mut paths: Vec<_> = checks.iter().flat_map(Check::pinned).collect();
    // Others are told of when their check comes.
    paths.retain(|path| is_plain_path(path));
    paths.sort_unstable();
    paths.dedup();
    workspace::source(&node.host, &node.store, &job.dir, mirror, from, &paths).await
}
