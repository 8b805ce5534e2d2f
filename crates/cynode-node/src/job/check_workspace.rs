//! Workspace of a check: created anew for each check, with the pinned files restored.

use std::{
    path::Path,
    sync::{Arc, Mutex},
};

use cynode_core::{
    evidence::{EvidenceCheck, is_plain_path, is_test_file},
    sync::lock_unpoisoned,
};
use cynode_test_reports::ChangedLines;
use futures::future::BoxFuture;

use super::{
    NodeJob,
    environment::{self, BuildResults},
    format_error_chain,
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
    /// Build results of the check that left most.
    build_results: Mutex<Option<BuildResults>>,
}

impl JobCheckWorkspace {
    pub(super) fn new(
        node: &Arc<NodeContext>,
        job: &Arc<NodeJob>,
        pinned_from: Option<&String>,
    ) -> Self {
        let pinned_from = pinned_from.cloned();
        let build_results = Mutex::new(None);
        Self { node: Arc::clone(node), job: Arc::clone(job), pinned_from, build_results }
    }

    /// Returns the lines that the commit of the job changes of the one that its task began with; none if either is not known.
    async fn find_changed_lines(&self) -> Option<ChangedLines> {
        let assignment = self.job.assignment();
        let environment = assignment.environment.as_ref();
        let trusted = environment.and_then(|environment| environment.trusted_commit.as_ref());
        let from = trusted.or(self.pinned_from.as_ref())?;
        let to =
            assignment.base.as_ref().filter(|to| *to != from && assignment.merge.is_empty())?;
        let commits = [from.clone(), to.clone()];
        let Self { node, .. } = self;
        let mirror =
            workspace::find_mirror(&node.host, &node.store, assignment.project_id, &commits)
                .await?;
        workspace::list_changed_lines(&node.host, &mirror, from, to).await.ok()
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

    fn list_changed_lines(&self) -> BoxFuture<'_, ChangedLines> {
        Box::pin(async {
            let mut changed = self.find_changed_lines().await.unwrap_or_default();
            changed.retain(|path, _| !is_test_file(path));
            changed
        })
    }

    fn take_build_results(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {
            let taken = environment::take_build_results(&self.node, &self.job).await;
            let mut results = lock_unpoisoned(&self.build_results);
            // Each check starts from the same files: the results of two of them are no whole together.
            let known = results.as_ref().map(|known| known.bytes);
            if let Some(taken) = taken.filter(|taken| Some(taken.bytes) > known) {
                *results = Some(taken);
            }
        })
    }

    fn store_build_results(&self) {
        let results = lock_unpoisoned(&self.build_results).take();
        if let Some(results) = results {
            environment::store_build_results(&self.node, &self.job, results);
        }
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
