//! Workspace of a check: created anew for each check, with the pinned files restored.

use std::{path::Path, sync::Arc};

use cynode_core::evidence::{EvidenceCheck, is_plain_path};
use futures::future::BoxFuture;

use super::{
    NodeJob, format_error_chain,
    trusted_command::{TrustedCommandError, run_trusted_command},
    work,
};
use crate::{
    node::NodeContext,
    sandbox::BindMount,
    workers::{
        WorkerError,
        checks::{CheckWorkspace, PinRestoreError},
    },
    workspace::{self, PinConflict, WorkspaceError},
};

/// Directories of a job, and the commit from which pinned files are restored.
pub(super) struct JobCheckWorkspace {
    node: Arc<NodeContext>,
    job: Arc<NodeJob>,
    pinned_from: Option<String>,
}

impl JobCheckWorkspace {
    pub(super) fn new(
        node: &Arc<NodeContext>,
        job: &Arc<NodeJob>,
        pinned_from: Option<&String>,
    ) -> Self {
        let pinned_from = pinned_from.cloned();
        Self { node: Arc::clone(node), job: Arc::clone(job), pinned_from }
    }

    async fn run_pin_restore(&self) -> Result<Vec<PinConflict>, PinRestoreError> {
        let Some(commit) = &self.pinned_from else { return Ok(Vec::new()) };
        let failed = |error: WorkspaceError| PinRestoreError::Failed(format_error_chain(error));
        let argv = workspace::pin_restore_argv(commit).map_err(failed)?;
        let source =
            BindMount { host: self.job.dir.source_dir(), inside: "/source".into(), writable: true };
        let env = workspace::sandbox_git_env("CyNode");
        match run_trusted_command(&self.node, &self.job, "pins", &argv, &env, &[source]).await {
            Ok((out, _)) => workspace::read_pin_conflicts(&out).map_err(failed),
            Err(TrustedCommandError::Sandbox(error)) => {
                Err(PinRestoreError::NoSandbox(WorkerError::from(error)))
            }
            Err(error) => Err(PinRestoreError::Failed(format_error_chain(error))),
        }
    }
}

impl CheckWorkspace for JobCheckWorkspace {
    fn recreate_files(&self) -> BoxFuture<'_, Result<(), WorkerError>> {
        Box::pin(work::reset_workspace(&self.node, &self.job))
    }

    fn restore_pinned_files(&self) -> BoxFuture<'_, Result<Vec<PinConflict>, PinRestoreError>> {
        Box::pin(self.run_pin_restore())
    }
}

/// Creates the repository from which pinned files are restored.
pub(super) async fn prepare_pin_source(
    node: &NodeContext,
    job: &NodeJob,
    mirror: &Path,
    checks: &[EvidenceCheck],
    from: &str,
) -> Result<(), WorkspaceError> {
    let mut paths: Vec<_> = checks.iter().flat_map(EvidenceCheck::pinned_paths).collect();
    // An invalid path is reported when its check runs.
    paths.retain(|path| is_plain_path(path));
    paths.sort_unstable();
    paths.dedup();
    workspace::create_pin_source(&node.host, &node.store, &job.dir, mirror, from, &paths).await
}
