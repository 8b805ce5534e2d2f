//! Build results of jobs: which cache a job starts over, and what its checks leave for later jobs.

use std::{collections::BTreeSet, path::PathBuf, sync::Arc};

use cynode_core::{evidence::EvidenceCheck, sync::lock_unpoisoned, workflow::jobs::WorkerChoice};
use cynode_wire::nodes::JobAssignment;

use super::{
    JobEnvironment, LayerLease, SetupError,
    layer_store::{
        CacheOrigin, LayerRecord,
        build_cache::{BuildResults, CacheScope, CachedDirs, DEFAULT_BRANCH, NewGeneration},
    },
    run_blocking,
};
use crate::{clock, job::NodeJob, node::NodeContext, store};

/// Takes a lease of the build results that a job starts over. Checks start over those of the default branch; agents start over those
/// of their own task if there are any. An agent that is resumed keeps the ones that it began with.
pub(super) fn lease_cache(
    node: &NodeContext,
    job: &NodeJob,
    layer: &LayerLease,
) -> Result<Option<LayerLease>, SetupError> {
    let assignment = job.assignment();
    if matches!(assignment.work.worker, WorkerChoice::Checks { .. }) {
        let scope = CacheScope::new(layer, DEFAULT_BRANCH);
        return Ok(node.layers.lease_newest_generation(&scope));
    }
    let file = cache_file(job);
    if job.dir.load_session()?.is_some() {
        let name: Option<String> = store::read_json(&file)?;
        return Ok(name.and_then(|name| node.layers.lease_generation(layer, &name)));
    }
    let task = assignment.task_id.to_string();
    let scopes = [task.as_str(), DEFAULT_BRANCH].map(|branch| CacheScope::new(layer, branch));
    let found = scopes.iter().find_map(|scope| node.layers.lease_newest_generation(scope));
    let name = found.as_ref().map(LayerLease::dir_name).unwrap_or_default();
    if !name.is_empty() || file.exists() {
        store::write_json(&file, &name)?;
    }
    Ok(found)
}

/// Returns the file with the name of the generation that an agent began with.
fn cache_file(job: &NodeJob) -> PathBuf {
    job.dir.as_path().join("cache.json")
}

/// Returns the branch whose cache gets the build results of a job; none if they are not worth keeping.
fn find_target_branch(assignment: &JobAssignment) -> Option<String> {
    let base = assignment.base.as_ref().filter(|_| assignment.merge.is_empty())?;
    let environment = assignment.environment.as_ref()?;
    let is_default = environment.trusted_commit.as_ref() == Some(base);
    Some(if is_default { DEFAULT_BRANCH.to_owned() } else { assignment.task_id.to_string() })
}

/// Returns the paths whose files the checks of a job find as they are in another commit.
fn list_pinned_paths(assignment: &JobAssignment) -> Vec<String> {
    let WorkerChoice::Checks { checks, pinned_from: Some(from) } = &assignment.work.worker else {
        return Vec::new();
    };
    if Some(from) == assignment.base.as_ref() {
        return Vec::new();
    }
    let mut paths: Vec<_> = checks.iter().flat_map(EvidenceCheck::pinned_paths).collect();
    paths.sort_unstable();
    paths.dedup();
    paths
}

/// Takes the build results that a check left in the directories of its job, if later jobs could use them.
pub(crate) async fn take_build_results(node: &NodeContext, job: &NodeJob) -> Option<BuildResults> {
    let environment = job.environment.get().filter(|it| it.has_overlays)?;
    let layer = environment.layer.as_ref()?;
    let assignment = job.assignment();
    let scope = CacheScope::new(layer, &find_target_branch(assignment)?);
    let known = environment.cache.as_ref().map(|cache| &cache.record);
    if known.is_some_and(|record| is_same_origin(record, assignment, &scope)) {
        return None;
    }
    let checkout = lock_unpoisoned(&environment.checkout).clone();
    let dirs = CachedDirs {
        work: job.dir.workspace_dir(),
        work_dirs: checkout.cache_dirs,
        home: job.dir.home_dir(),
    };
    let most = node.settings.job_limits.disk_bytes(&assignment.work.sandbox);
    let (layers, seconds) = (Arc::clone(&node.layers), checkout.seconds);
    let taken = run_blocking(move || layers.take_build_results(&scope, &dirs, seconds, most)).await;
    taken.unwrap_or_else(|error| {
        tracing::warn!(event = "build_cache.take_failed", job.id = %job.job_id(), %error, "build results are not kept");
        None
    })
}

/// Returns whether a cache has the build results of the same commit already.
fn is_same_origin(record: &LayerRecord, assignment: &JobAssignment, scope: &CacheScope) -> bool {
    let branch = record.cache.as_ref().map(|cache| cache.branch.as_str());
    branch == Some(scope.branch()) && record.base_commit == assignment.base
}

/// Stores build results for later jobs, in the background: no result waits for it.
pub(crate) fn store_build_results(node: &NodeContext, job: &NodeJob, results: BuildResults) {
    let assignment = job.assignment();
    let Some((generation, branch)) = job
        .environment
        .get()
        .and_then(|environment| plan_generation(node, environment, assignment, results))
    else {
        return;
    };
    let layers = Arc::clone(&node.layers);
    node.tasks.spawn_blocking(move || match layers.add_generation(generation) {
        Ok(Some(bytes)) => {
            tracing::info!(event = "build_cache.stored", branch, bytes, "later jobs start over these build results");
        }
        Ok(None) => {
            tracing::info!(event = "build_cache.too_large", branch, "the build cache begins anew");
        }
        Err(error) => {
            tracing::warn!(event = "build_cache.store_failed", branch, %error, "build results are not kept");
        }
    });
}

fn plan_generation(
    node: &NodeContext,
    environment: &JobEnvironment,
    assignment: &JobAssignment,
    results: BuildResults,
) -> Option<(NewGeneration, String)> {
    let layer = environment.layer.as_ref()?.lease_again().ok().flatten()?;
    let branch = find_target_branch(assignment)?;
    let earlier = environment.cache.as_ref().map(LayerLease::lease_again);
    // What was made over a generation that is gone is not whole.
    let earlier = match earlier {
        None => None,
        Some(lease) => Some(lease.ok().flatten()?),
    };
    let record = LayerRecord {
        environment: layer.record.environment.clone(),
        base_commit: assignment.base.clone(),
        is_trusted: branch == DEFAULT_BRANCH,
        source_seconds: results.checkout_seconds,
        exclude: Vec::new(),
        has_root: false,
        created_seconds: clock::unix_seconds(),
        setup_milliseconds: 0,
        bytes: 0,
        entries: 0,
        policy: layer.record.policy.clone(),
        packages: BTreeSet::new(),
        cache: Some(CacheOrigin {
            branch: branch.clone(),
            pinned_paths: list_pinned_paths(assignment),
        }),
    };
    let scope = CacheScope::new(&layer, &branch);
    let max_bytes = node.settings.job_limits.disk_bytes(&assignment.work.sandbox);
    Some((NewGeneration { scope, results, layer, earlier, record, max_bytes }, branch))
}
