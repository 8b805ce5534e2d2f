//! Environments of projects: set up once, kept as read-only layers, and put below the files of jobs.
//!
//! A job's own directories take all its changes: no job changes a layer, and what set-up made never becomes part of a result.

mod build_results;
mod layer_store;
mod locked_versions;
mod secret_texts;
mod service_script;
mod setup;
pub(crate) mod system_packages;

use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
    time::Duration,
};

use cynode_core::{
    environments::{
        EnvironmentBase, EnvironmentService, EnvironmentSpec, PackagePolicy, PackageSource,
    },
    nodes::JobPhase,
    sync::lock_unpoisoned,
    workflow::jobs::WorkerChoice,
};
use cynode_packages::{ClientConfiguration, client_configuration, offline_configuration};
use cynode_wire::nodes::AssignedEnvironment;
use data_encoding::HEXLOWER;
use sha2::{Digest as _, Sha256};
use tokio::time::{Instant, timeout_at};

pub(crate) use self::{
    build_results::{store_build_results, take_build_results},
    layer_store::{LayerLease, LayerStore, build_cache::BuildResults},
    service_script::wrap_with_services,
    setup::SetupError,
};
use self::{
    layer_store::{LayerRecord, layer_key, replacement_key},
    setup::{SetupRun, SetupSource},
};
use crate::{
    clock,
    job::NodeJob,
    node::NodeContext,
    sandbox::{Backend, OverlayMount, SystemLayers},
    store::{self, JobDir, NodeStoreError},
    workers::{HOME_DIR, WORKSPACE_DIR},
    workspace::{
        self, WorkspaceError,
        tree_files::{SourceAge, copy_missing_files, set_source_ages, to_git_pattern},
    },
};

/// Time that a set-up leaves of the job's own, so that its failure can still be reported.
const REPORT_TIME: Duration = Duration::from_secs(10);

/// Environment of a job.
#[derive(Debug)]
pub(crate) struct JobEnvironment {
    base: EnvironmentBase,
    services: Vec<EnvironmentService>,
    variables: BTreeMap<String, String>,
    /// Files of the home directory, with their contents.
    home_files: Vec<(String, String)>,
    /// What set-up left behind; none if there was nothing to set up.
    layer: Option<LayerLease>,
    /// Build results of earlier jobs, over the layer.
    cache: Option<LayerLease>,
    /// Directories below the workspace that hold build results.
    cache_dirs: Vec<String>,
    /// State of the workspace when it was last made.
    checkout: Mutex<CheckoutState>,
    /// Whether layers are mounted below the job's directories. Their files are copied otherwise.
    has_overlays: bool,
}

/// State of a workspace in which nothing has run yet.
#[derive(Clone, Debug, Default)]
struct CheckoutState {
    /// When its files were written, in seconds of the wall clock.
    seconds: u64,
    /// Directories with build results that the commit has no files in.
    cache_dirs: Vec<String>,
}

/// Prepares the environment of a job, if it has one. The first job that needs it sets it up; others wait for that.
pub(crate) async fn prepare_environment(
    node: &NodeContext,
    job: &NodeJob,
    backend: &Arc<dyn Backend>,
    mirror: Option<&Path>,
) -> Result<Option<JobEnvironment>, SetupError> {
    let assignment = job.assignment();
    let assigned = match (&assignment.work.sandbox.environment, &assignment.environment) {
        (None, None) => return Ok(None),
        (Some(named), Some(assigned)) if *named == assigned.reference => assigned,
        _ => {
            let text = "The job names another environment than the one that came with it.";
            return Err(SetupError::Failed(text.to_owned()));
        }
    };
    let spec = &assigned.spec;
    let has_overlays = backend.supports_overlays();
    if let Some(reason) = find_unusable_part(spec, has_overlays) {
        return Err(SetupError::Failed(format!("The environment cannot be used: {reason}.")));
    }
    let layer = if needs_layer(spec) {
        Some(ensure_layer(node, job, assigned, backend, mirror).await?)
    } else {
        None
    };
    let cache = match &layer {
        Some(layer) if has_overlays => build_results::lease_cache(node, job, layer)?,
        _ => None,
    };
    let ClientConfiguration { env: mut variables, home_files } =
        if spec.packages_during_work && node.packages.is_some() {
            client_configuration(&package_sources(spec))
        } else {
            offline_configuration()
        };
    let own = spec.variables.iter().filter(|(name, _)| job.allows_variable(name));
    variables.extend(own.map(|(name, value)| (name.clone(), value.clone())));
    Ok(Some(JobEnvironment {
        base: spec.base.clone(),
        services: spec.services.clone(),
        variables,
        home_files,
        layer,
        cache,
        cache_dirs: spec.cache_dirs().into_iter().map(str::to_owned).collect(),
        checkout: Mutex::default(),
        has_overlays,
    }))
}

/// Returns why this node cannot use an environment, if it cannot.
fn find_unusable_part(spec: &EnvironmentSpec, has_overlays: bool) -> Option<String> {
    if let Some(reason) = spec.validation_error() {
        return Some(reason);
    }
    let has_packages = !spec.system_packages.is_empty();
    match &spec.base {
        EnvironmentBase::Image(_) if has_packages => Some(
            "an image has its own system, so `system_packages` cannot be added; use an image that has them"
                .to_owned(),
        ),
        EnvironmentBase::Host | EnvironmentBase::Debian(_)
            if needs_system_root(spec) && !has_overlays =>
        {
            let text = "this node has no overlays (overlayfs), which `system_packages` and the base `debian` need; \
                        `cynode-node doctor` says why, and an image does not need them";
            Some(text.to_owned())
        }
        _ => None,
    }
}

/// Returns whether set-up leaves anything behind.
fn needs_layer(spec: &EnvironmentSpec) -> bool {
    !spec.setup.is_empty() || needs_system_root(spec)
}

/// Returns whether the environment has system packages of its own.
fn needs_system_root(spec: &EnvironmentSpec) -> bool {
    !spec.system_packages.is_empty() || matches!(spec.base, EnvironmentBase::Debian(_))
}

/// Returns the registries that an environment fetches from.
fn package_sources(spec: &EnvironmentSpec) -> Vec<PackageSource> {
    let mut sources = spec.package_sources.clone();
    if needs_system_root(spec) {
        sources.push(PackageSource::Debian);
    }
    sources.sort_unstable();
    sources.dedup();
    sources
}

/// Returns the system of a sandbox, with the packages below `root`.
fn system_layers(base: &EnvironmentBase, root: Option<PathBuf>) -> SystemLayers {
    match base {
        EnvironmentBase::Debian(_) => SystemLayers { root, over: Vec::new() },
        EnvironmentBase::Host | EnvironmentBase::Image(_) => {
            SystemLayers { root: None, over: root.into_iter().collect() }
        }
    }
}

/// Returns the layer of an environment, and sets it up if it is missing.
async fn ensure_layer(
    node: &NodeContext,
    job: &NodeJob,
    assigned: &AssignedEnvironment,
    backend: &Arc<dyn Backend>,
    mirror: Option<&Path>,
) -> Result<LayerLease, SetupError> {
    let source = find_setup_source(node, job, assigned, mirror).await?;
    let policy = policy_digest(assigned);
    let mut key = layer_key(&assigned.reference, &source.locks, source.own_commit(), &policy);
    let dir = loop {
        let dir = node.layers.layer_dir(job.assignment().project_id, &key);
        let Some(layer) = node.layers.lease_layer(&dir)? else { break dir };
        let Some(reason) = find_refused_package(node, &layer.record) else { return Ok(layer) };
        job.push_note(format!("the environment is set up anew: {reason}"));
        key = replacement_key(&key, &reason);
    };
    job.enter_phase(JobPhase::SettingUp);
    let due =
        job.due_at() - REPORT_TIME.min(job.due_at().saturating_duration_since(Instant::now()));
    let lock = node.layers.setup_lock(&dir);
    let _alone = match lock.try_lock() {
        Ok(alone) => alone,
        Err(_) => {
            job.push_note("another job sets the environment up; this one waits for it");
            let text = "The environment was not set up in time: another job was still at it.";
            let alone = timeout_at(due, lock.lock()).await;
            alone.map_err(|_| SetupError::Failed(text.to_owned()))?
        }
    };
    if let Some(layer) = node.layers.lease_layer(&dir)? {
        return Ok(layer);
    }
    let own = Duration::from_secs(u64::from(assigned.spec.setup_seconds()));
    let until = due.min(Instant::now() + own);
    let without_secrets = AssignedEnvironment { secrets: BTreeMap::new(), ..assigned.clone() };
    let assigned = if source.is_trusted { assigned } else { &without_secrets };
    if !source.is_trusted {
        job.push_note(
            "the lock files are not those of the default branch: this set-up is for this commit alone and gets no secrets",
        );
    }
    let run = SetupRun { node, job, assigned, backend, mirror, source: &source, until };
    Box::pin(run.make_layer(&dir)).await
}

/// Returns what identifies the package policy of a set-up; empty if it fetches nothing or nothing is forbidden. A layer of another policy
/// may have packages that this one forbids.
fn policy_digest(assigned: &AssignedEnvironment) -> String {
    let mut policy = assigned.package_policy.clone();
    if policy == PackagePolicy::default() || package_sources(&assigned.spec).is_empty() {
        return String::new();
    }
    for list in [&mut policy.forbidden, &mut policy.forbidden_licences] {
        list.sort_unstable();
        list.dedup();
    }
    let text = serde_json::to_vec(&policy).unwrap_or_default();
    HEXLOWER.encode(&Sha256::digest(text))
}

/// Returns why a package of a layer would be refused now, if one would: advisories may have come after the set-up.
fn find_refused_package(node: &NodeContext, record: &LayerRecord) -> Option<String> {
    node.packages.as_ref()?.find_advisory(&record.packages)
}

/// Returns the commit whose files set-up works with: that of the default branch which the task began with, as long as the lock files of
/// the job's own commit are the same.
async fn find_setup_source(
    node: &NodeContext,
    job: &NodeJob,
    assigned: &AssignedEnvironment,
    mirror: Option<&Path>,
) -> Result<SetupSource, SetupError> {
    let (Some(mirror), Some(base)) = (mirror, &job.assignment().base) else {
        return Ok(SetupSource { commit: None, is_trusted: true, locks: Vec::new() });
    };
    let paths = &assigned.spec.lock_files;
    let locks = workspace::list_lock_files(&node.host, mirror, base, paths).await?;
    // The mirror has the trusted commit if it is among the ancestors of the job's own.
    if let Some(trusted) = &assigned.trusted_commit
        && workspace::has_commit(&node.host, mirror, trusted).await
        && workspace::list_lock_files(&node.host, mirror, trusted, paths).await? == locks
    {
        return Ok(SetupSource { commit: Some(trusted.clone()), is_trusted: true, locks });
    }
    Ok(SetupSource { commit: Some(base.clone()), is_trusted: false, locks })
}

impl JobEnvironment {
    /// Returns the environment variables of every run.
    pub(crate) const fn variables(&self) -> &BTreeMap<String, String> {
        &self.variables
    }

    /// Returns the services of every run.
    pub(crate) fn services(&self) -> &[EnvironmentService] {
        &self.services
    }

    /// Returns the system below every run.
    pub(crate) fn system_layers(&self) -> SystemLayers {
        system_layers(&self.base, self.layer.as_ref().and_then(LayerLease::root_dir))
    }

    /// Returns the mounts that put a job's directories over the layer.
    pub(crate) fn overlay_mounts(&self, dir: &JobDir) -> Vec<OverlayMount> {
        let Some(layer) = self.layer.as_ref().filter(|_| self.has_overlays) else {
            return Vec::new();
        };
        let [work, home] = scratch_dirs(dir);
        let lower = |tree: fn(&LayerLease) -> PathBuf| -> Vec<PathBuf> {
            self.cache.iter().chain([layer]).map(tree).collect()
        };
        let mount = |lower, upper, scratch, inside: &str| OverlayMount {
            lower,
            upper,
            scratch,
            inside: inside.into(),
        };
        vec![
            mount(lower(LayerLease::work_dir), dir.workspace_dir(), work, WORKSPACE_DIR),
            mount(lower(LayerLease::home_dir), dir.home_dir(), home, HOME_DIR),
        ]
    }

    /// Creates the directories that the kernel needs for the overlays of a job.
    pub(crate) fn create_scratch_dirs(&self, dir: &JobDir) -> Result<(), NodeStoreError> {
        if self.overlay_mounts(dir).is_empty() {
            return Ok(());
        }
        store::create_traversable_dir(&dir.scratch_dir())?;
        scratch_dirs(dir).iter().try_for_each(|path| store::create_private_dir(path))
    }

    /// Prepares the new directories of a job: the files of the home directory, the modification times of unchanged files, and the paths
    /// that never become part of the result.
    pub(crate) async fn prepare_files(
        &self,
        node: &NodeContext,
        job: &NodeJob,
        mirror: Option<&Path>,
    ) -> Result<(), WorkspaceError> {
        let dir = &job.dir;
        // What the kernel left belongs to the directories of before.
        node.store.move_to_trash(&dir.scratch_dir())?;
        self.create_scratch_dirs(dir)?;
        write_home_files(&dir.home_dir(), &self.home_files).map_err(WorkspaceError::Files)?;
        let Some(layer) = &self.layer else { return Ok(()) };
        let workspace = dir.workspace_dir();
        let is_free = |below: &&String| fs::symlink_metadata(workspace.join(below)).is_err();
        let cache_dirs: Vec<String> = self.cache_dirs.iter().filter(is_free).cloned().collect();
        let own = cache_dirs.iter().map(|below| to_git_pattern(below.as_bytes(), true));
        let patterns = layer.record.exclude.iter().cloned().chain(own);
        let patterns: String = patterns.map(|pattern| format!("{pattern}\n")).collect();
        *lock_unpoisoned(&self.checkout) =
            CheckoutState { seconds: clock::unix_seconds(), cache_dirs };
        restore_source_times(node, job, layer, self.cache.as_ref(), mirror).await?;
        let written = workspace::write_excludes(&workspace, &patterns)
            .and_then(|()| write_shared_file(&dir.exclude_file(), &patterns));
        written.map_err(WorkspaceError::Files)?;
        if !self.has_overlays {
            let (work, home, to) = (layer.work_dir(), layer.home_dir(), dir.home_dir());
            let copied = run_blocking(move || {
                copy_missing_files(&work, &workspace)?;
                copy_missing_files(&home, &to)
            });
            copied.await.map_err(WorkspaceError::Files)?;
        }
        Ok(())
    }
}

/// Gives the files that are as they were during set-up the time that they had there, and those that are as they were when build
/// results were made the time of then. Programs such as make then build only what is different: it is newer than everything below.
async fn restore_source_times(
    node: &NodeContext,
    job: &NodeJob,
    layer: &LayerLease,
    cache: Option<&LayerLease>,
    mirror: Option<&Path>,
) -> Result<(), WorkspaceError> {
    let assignment = job.assignment();
    let (Some(to), Some(mirror)) = (&assignment.base, mirror) else { return Ok(()) };
    let (since_setup, since_cache) =
        tokio::join!(list_changed_since(node, mirror, &layer.record, to), async {
            match cache {
                Some(cache) => list_changed_since(node, mirror, &cache.record, to).await.map(Some),
                None => Some(None),
            }
        });
    // The commit of the set-up may be gone. Then every file is new.
    let (Some(mut since_setup), Some(since_cache)) = (since_setup, since_cache) else {
        return Ok(());
    };
    let mut ages = Vec::new();
    if let (Some(cache), Some(changed)) = (cache, since_cache) {
        // What is different from then may have been built from the files of then.
        since_setup.extend(changed.iter().cloned());
        ages.push(SourceAge { seconds: cache.record.source_seconds, changed });
    }
    let seconds = layer.record.source_seconds;
    ages.insert(0, SourceAge { seconds, changed: since_setup });
    let workspace = job.dir.workspace_dir();
    let timed = {
        let workspace = workspace.clone();
        run_blocking(move || set_source_ages(&workspace, &ages))
    };
    timed.await.map_err(WorkspaceError::Files)?;
    let is_check = matches!(assignment.work.worker, WorkerChoice::Checks { .. });
    if !is_check || !assignment.merge.is_empty() {
        workspace::refresh_index(&node.host, &workspace).await?;
    }
    Ok(())
}

/// Lists the paths that are others than in the commit of a layer; none if that commit is not known.
async fn list_changed_since(
    node: &NodeContext,
    mirror: &Path,
    record: &LayerRecord,
    to: &str,
) -> Option<BTreeSet<Vec<u8>>> {
    let from = record.base_commit.as_ref()?;
    let mut changed = if from == to {
        BTreeSet::new()
    } else {
        workspace::list_changed_paths(&node.host, mirror, from, to).await.ok()?
    };
    let pinned = record.cache.iter().flat_map(|cache| &cache.pinned_paths);
    changed.extend(pinned.map(|path| path.as_bytes().to_vec()));
    Some(changed)
}

/// Returns the directories that the kernel needs for the overlays of workspace and home.
fn scratch_dirs(dir: &JobDir) -> [PathBuf; 2] {
    ["work", "home"].map(|name| dir.scratch_dir().join(name))
}

/// Writes files into a new home directory.
fn write_home_files(home: &Path, files: &[(String, String)]) -> io::Result<()> {
    for (path, text) in files {
        let path = home.join(path);
        if let Some(above) = path.parent() {
            fs::create_dir_all(above)?;
        }
        fs::write(path, text)?;
    }
    Ok(())
}

/// Writes a file that the user of a job may read.
fn write_shared_file(path: &Path, text: &str) -> io::Result<()> {
    fs::write(path, text)?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o644))
}

/// Runs file operations that may take long.
pub(crate) async fn run_blocking<T: Send + 'static>(
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|error| Err(io::Error::other(error)))
}

#[cfg(test)]
mod tests {
    use cynode_core::environments::EnvironmentRef;

    use super::*;

    fn spec(text: &str) -> EnvironmentSpec {
        toml::from_str(text).unwrap()
    }

    #[test]
    fn only_what_leaves_something_behind_is_set_up() {
        let specs = [
            "",
            "variables = { A = \"1\" }",
            "setup = [\"make\"]",
            "system_packages = [\"cmake\"]",
            "base = { debian = \"bookworm\" }",
            "base = { image = \"some/image\" }",
        ];
        let needed = specs.map(|text| needs_layer(&spec(text)));
        assert_eq!(needed, [false, false, true, true, true, false]);
    }

    #[test]
    fn a_layer_is_of_the_policy_that_it_was_set_up_under() {
        let assigned = |spec_text: &str, package_policy: PackagePolicy| AssignedEnvironment {
            reference: EnvironmentRef { version: 1, digest: "ab".repeat(32) },
            spec: spec(spec_text),
            secrets: BTreeMap::new(),
            package_policy,
            trusted_commit: None,
        };
        let policy = |forbidden: &[&str], min_age_days| PackagePolicy {
            forbidden: forbidden.iter().map(|entry| (*entry).to_owned()).collect(),
            min_age_days,
            ..PackagePolicy::default()
        };
        let fetching = "package_sources = [\"npm\"]";
        let digest = |policy| policy_digest(&assigned(fetching, policy));
        assert_eq!(digest(policy(&["npm:a", "npm:b"], 0)), digest(policy(&["npm:b", "npm:a"], 0)));
        assert_ne!(digest(policy(&["npm:a"], 0)), digest(policy(&["npm:a"], 7)));
        assert_eq!(digest(policy(&[], 0)), "");
        assert_eq!(policy_digest(&assigned("setup = [\"make\"]", policy(&["npm:a"], 0))), "");
    }

    #[test]
    fn system_packages_come_from_debian() {
        let sources = ["package_sources = [\"npm\"]\nsystem_packages = [\"cmake\"]", ""];
        let sources = sources.map(|text| package_sources(&spec(text)));
        assert_eq!(sources, [vec![PackageSource::Npm, PackageSource::Debian], Vec::new()]);
    }

    #[test]
    fn packages_lie_over_the_node_and_replace_it_for_a_release() {
        let root = || Some(PathBuf::from("/layer/root"));
        let over = system_layers(&EnvironmentBase::Host, root());
        assert_eq!(over, SystemLayers { root: None, over: vec!["/layer/root".into()] });
        let instead = system_layers(&EnvironmentBase::Debian("bookworm".to_owned()), root());
        assert_eq!(instead, SystemLayers { root: root(), over: Vec::new() });
        assert_eq!(system_layers(&EnvironmentBase::Host, None), SystemLayers::default());
    }

    #[test]
    fn a_part_that_this_node_cannot_give_is_named() {
        let with_packages = spec("system_packages = [\"cmake\"]");
        assert_eq!(find_unusable_part(&with_packages, true), None);
        assert!(find_unusable_part(&with_packages, false).unwrap().contains("overlays"));
        let release = spec("base = { debian = \"bookworm\" }");
        assert!(find_unusable_part(&release, false).unwrap().contains("overlays"));
        let image = spec("base = { image = \"x\" }\nsystem_packages = [\"cmake\"]");
        assert!(find_unusable_part(&image, true).unwrap().contains("an image"));
    }
}
