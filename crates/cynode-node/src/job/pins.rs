//! Files that checks go by, put back before each of them.

use std::{path::Path, sync::Arc};

use cynode_core::evidence::{Check, is_plain_path};
use futures::future::BoxFuture;

use super::{
    Job,
    aside::{AsideError, aside},
    chain,
};
use crate::{
    node::Node,
    sandbox::Bind,
    workers::{
        WorkerError,
        checks::{Pins, Unpinned},
    },
    workspace::{self, Spoilt, WorkspaceError},
};

/// Puts files back from a commit.
pub(super) struct PinnedFrom {
    node: Arc<Node>,
    job: Arc<Job>,
    commit: String,
}

impl PinnedFrom {
    pub(super) fn new(node: &Arc<Node>, job: &Arc<Job>, commit: &str) -> Self {
        Self { node: Arc::clone(node), job: Arc::clone(job), commit: commit.to_owned() }
    }

    async fn again(&self) -> Result<Vec<Spoilt>, Unpinned> {
        let failed = |error: WorkspaceError| Unpinned::Failed(chain(error));
        let argv = workspace::pinning(&self.commit).map_err(failed)?;
        let source = Bind { host: self.job.dir.source(), inside: "/source".into(), writable: true };
        let env = workspace::shielded("CyNode");
        match aside(&self.node, &self.job, "pins", &argv, &env, &[source]).await {
            Ok((out, _)) => workspace::spoilt(&out).map_err(failed),
            Err(AsideError::Sandbox(error)) => Err(Unpinned::NoSandbox(WorkerError::from(error))),
            Err(error) => Err(Unpinned::Failed(chain(error))),
        }
    }
}

impl Pins for PinnedFrom {
    fn put_back(&self) -> BoxFuture<'_, Result<Vec<Spoilt>, Unpinned>> {
        Box::pin(self.again())
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
    let assignment = job.assignment();
    // What several commits were put together to is no commit yet.
    let checked = assignment.base.as_deref().filter(|_| assignment.merge.is_empty());
    workspace::source(&node.host, &node.store, &job.dir, mirror, from, checked, &paths).await
}
