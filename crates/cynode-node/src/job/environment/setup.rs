//! Set-up of an environment: runs its commands once, in sandboxes over the files of a commit, and stores what they leave behind.
//!
//! It works in a directory of the job that runs it. A kill leaves nothing that a job could take for a layer.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use cynode_core::{
    environments::EnvironmentBase, nodes::JobEventData, workflow::jobs::SandboxNeeds,
};
use cynode_packages::{JobPackages, client_configuration};
use cynode_wire::nodes::{AssignedEnvironment, JobAssignment};
use futures::future::BoxFuture;
use tokio::{sync::mpsc, time::Instant};

use super::{
    find_refused_package,
    layer_store::{LayerLease, LayerParts, LayerRecord},
    locked_versions::find_locked_versions,
    needs_system_root, package_sources, policy_digest, run_blocking,
    secret_texts::SecretTexts,
    system_layers,
    system_packages::{
        self, AptSources, SetupSandbox, StepEnd, SystemPackages, install_system_packages,
    },
    write_home_files,
};
use crate::{
    clock,
    job::{JobSandboxRunner, NodeJob},
    node::NodeContext,
    sandbox::{Backend, BindMount, SandboxError, SandboxProcess, SocketForward},
    sockets::{PackageReport, SocketGuard, bind_package_socket},
    store::{self, JobDir, NodeStoreError},
    workers::{
        HOME_DIR, SandboxRunner, WORKSPACE_DIR,
        setup_step::{SetupStepOutcome, run_setup_step},
    },
    workspace::{
        self, WorkspaceError,
        tree_files::{
            SetupRemains, TrackedFiles, copy_missing_files, display_path, find_setup_remains,
            fits_when_copied, remove_tracked_files, set_source_times,
        },
    },
};

/// Age of the tracked files when set-up begins: whatever it builds is newer.
const SOURCE_AGE_SECONDS: u64 = 2;

/// Maximum number of files that are compared with the commit, and whose names are reported.
const MAX_COMPARED_FILES: usize = 50;

/// Maximum size of a file that is compared with the commit.
const MAX_COMPARED_BYTES: u64 = 64 * 1024 * 1024;

/// Name of the step that adds system packages.
const PACKAGES_STEP: &str = "packages";

/// Reason why an environment could not be set up.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SetupError {
    /// The files of the commit could not be prepared.
    #[error(transparent)]
    Workspace(#[from] WorkspaceError),
    /// The state directory failed.
    #[error(transparent)]
    Store(#[from] NodeStoreError),
    /// There was no sandbox.
    #[error("the sandbox")]
    Sandbox(#[from] SandboxError),
    /// A step failed, or its result cannot be used. The text is for people.
    #[error("{0}")]
    Failed(String),
}

impl From<io::Error> for SetupError {
    fn from(error: io::Error) -> Self {
        Self::Workspace(WorkspaceError::Files(error))
    }
}

/// Commit whose files set-up works with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SetupSource {
    /// Id of the commit; `None` if the project has no repository.
    pub(super) commit: Option<String>,
    /// Whether it is of the default branch. Anybody's code could run in the set-up of another commit, before anybody has reviewed it.
    pub(super) is_trusted: bool,
    /// What git lists for the lock files.
    pub(super) locks: Vec<u8>,
}

impl SetupSource {
    /// Returns the commit of a layer that no other commit shares.
    pub(super) fn own_commit(&self) -> Option<&str> {
        self.commit.as_deref().filter(|_| !self.is_trusted)
    }
}

/// A set-up by a job.
#[derive(Clone, Copy)]
pub(super) struct SetupRun<'a> {
    pub(super) node: &'a NodeContext,
    pub(super) job: &'a NodeJob,
    pub(super) assigned: &'a AssignedEnvironment,
    pub(super) backend: &'a Arc<dyn Backend>,
    /// Mirror with the commit of the job, if it has one.
    pub(super) mirror: Option<&'a Path>,
    /// Commit whose files set-up works with.
    pub(super) source: &'a SetupSource,
    /// Deadline of all steps.
    pub(super) until: Instant,
}

impl SetupRun<'_> {
    /// Sets the environment up and stores it. It starts from the layer of other lock files if there is one, and once more from nothing
    /// if that fails.
    pub(super) async fn make_layer(&self, layer_dir: &Path) -> Result<LayerLease, SetupError> {
        let policy = policy_digest(self.assigned);
        let is_allowed = |record: &LayerRecord| {
            record.policy == policy && find_refused_package(self.node, record).is_none()
        };
        let layers = &self.node.layers;
        let earlier = layers.lease_predecessor(layer_dir, &self.assigned.reference, is_allowed);
        if let Some(earlier) = earlier {
            self.job.push_note("the set-up starts from the one for other lock files");
            match self.try_make_layer(layer_dir, Some(&earlier)).await {
                Err(SetupError::Failed(reason)) if Instant::now() < self.until => {
                    self.job.push_note(format!("it starts again from nothing: {reason}"));
                }
                made => return made,
            }
        }
        self.try_make_layer(layer_dir, None).await
    }

    async fn try_make_layer(
        &self,
        layer_dir: &Path,
        earlier: Option<&LayerLease>,
    ) -> Result<LayerLease, SetupError> {
        let Self { node, job, assigned, .. } = *self;
        let started = Instant::now();
        for path in job.dir.setup_dirs() {
            node.store.move_to_trash(&path)?;
        }
        let dirs = job.dir.new_setup_dir();
        store::create_traversable_dir(dirs.as_path())?;
        let (tracked, source_seconds) = self.prepare_directories(&dirs, earlier).await?;
        let secrets = SecretTexts::from_environment(assigned);
        let mut packages = self.run_steps(&dirs, &secrets, earlier.is_some()).await?;
        packages.extend(earlier.iter().flat_map(|layer| layer.record.packages.iter().cloned()));
        let tracked = Arc::new(tracked);
        let remains = {
            let (workspace, tracked) = (dirs.workspace_dir(), Arc::clone(&tracked));
            run_blocking(move || find_setup_remains(&workspace, &tracked, source_seconds)).await?
        };
        self.report_changed_files(&remains, &tracked).await;
        let record = LayerRecord {
            environment: assigned.reference.clone(),
            base_commit: self.source.commit.clone(),
            is_trusted: self.source.is_trusted,
            source_seconds,
            exclude: remains.patterns,
            has_root: false,
            created_seconds: clock::unix_seconds(),
            setup_milliseconds: to_milliseconds(started.elapsed()),
            bytes: 0,
            entries: 0,
            policy: policy_digest(assigned),
            packages,
            cache: None,
        };
        let parts = LayerParts {
            work: dirs.workspace_dir(),
            home: dirs.home_dir(),
            root: Some(dirs.system_root_dir()).filter(|_| needs_system_root(&assigned.spec)),
        };
        let (layers, layer_dir) = (Arc::clone(&node.layers), layer_dir.to_owned());
        let most = node.settings.job_limits.disk_bytes(&self.sandbox_needs());
        let stored = run_blocking(move || {
            remove_tracked_files(&parts.work, &tracked)?;
            // A later set-up or a job may copy the layer, and nothing else limits that.
            let mut left = most;
            for tree in [&parts.work, &parts.home].into_iter().chain(&parts.root) {
                if !fits_when_copied(tree, &mut left)? {
                    return Ok(Err(SetupError::Failed(format!(
                        "The set-up of the environment left more than {} MiB, with the holes of files and with every name of a file. \
                         Remove what jobs do not need in the last command, or raise `disk_mib` of the environment.",
                        most >> 20
                    ))));
                }
            }
            if let Some(path) = find_secret(&secrets, &parts)? {
                return Ok(Err(SetupError::Failed(format!(
                    "The set-up of the environment wrote the value of a secret to {path}, where every job could read it. \
                     Use the secret without writing it down, or remove that file in the last command."
                ))));
            }
            Ok(layers.add_layer(&layer_dir, &parts, record).map_err(SetupError::from))
        });
        let layer = stored.await??;
        node.store.move_to_trash(dirs.as_path())?;
        job.push_note(format!(
            "the environment is set up: {} MiB in {} files, after {} s",
            layer.record.bytes >> 20,
            layer.record.entries,
            started.elapsed().as_secs()
        ));
        Ok(layer)
    }

    /// Creates the directories of the set-up: the files of the commit with one modification time, what an earlier set-up left, and
    /// the configuration of package clients. Returns the files of the commit and that time.
    async fn prepare_directories(
        &self,
        dirs: &JobDir,
        earlier: Option<&LayerLease>,
    ) -> Result<(TrackedFiles, u64), SetupError> {
        let Self { node, job, assigned, mirror, .. } = *self;
        let assignment = JobAssignment {
            merge: Vec::new(),
            base: self.source.commit.clone(),
            ..job.assignment().clone()
        };
        let most = node.settings.job_limits.disk_bytes(&self.sandbox_needs());
        workspace::create_workspace(&node.host, &node.store, dirs, &assignment, mirror, most)
            .await?;
        let tracked = match (mirror, &assignment.base) {
            (Some(mirror), Some(base)) => {
                workspace::list_tracked_files(&node.host, mirror, base).await?
            }
            _ => TrackedFiles::default(),
        };
        let seconds = clock::unix_seconds().saturating_sub(SOURCE_AGE_SECONDS);
        let configuration = client_configuration(&package_sources(&assigned.spec));
        write_home_files(&dirs.home_dir(), &configuration.home_files)?;
        let (workspace, home) = (dirs.workspace_dir(), dirs.home_dir());
        if needs_system_root(&assigned.spec) {
            store::create_private_dir(&dirs.system_root_dir())?;
        }
        let root = dirs.system_root_dir();
        let from = earlier.map(|layer| (layer.work_dir(), layer.home_dir(), layer.root_dir()));
        run_blocking(move || {
            set_source_times(&workspace, seconds, &BTreeSet::new())?;
            if let Some((work_from, home_from, root_from)) = from {
                copy_missing_files(&work_from, &workspace)?;
                copy_missing_files(&home_from, &home)?;
                if let Some(root_from) = root_from {
                    copy_missing_files(&root_from, &root)?;
                }
            }
            Ok(())
        })
        .await?;
        if assignment.base.is_some() {
            workspace::refresh_index(&node.host, &dirs.workspace_dir()).await?;
        }
        Ok((tracked, seconds))
    }

    /// Runs all steps and forwards their output. Returns the packages that they fetched.
    async fn run_steps(
        &self,
        dirs: &JobDir,
        secrets: &SecretTexts,
        has_earlier: bool,
    ) -> Result<BTreeSet<String>, SetupError> {
        let outbox = &self.job.outbox;
        let (events, mut happened) = mpsc::channel(256);
        let steps = async move {
            let done = self.run_each_step(dirs, secrets, has_earlier, &events).await;
            drop(events);
            done
        };
        let forward = async {
            while let Some(event) = happened.recv().await {
                outbox.push(secrets.redact_event(event));
            }
        };
        // The last sender ends with the steps, and the forwarding with it.
        let (done, ()) = tokio::join!(steps, forward);
        done
    }

    async fn run_each_step(
        &self,
        dirs: &JobDir,
        secrets: &SecretTexts,
        has_earlier: bool,
        events: &mpsc::Sender<JobEventData>,
    ) -> Result<BTreeSet<String>, SetupError> {
        let Self { node, job, assigned, .. } = *self;
        let spec = &assigned.spec;
        let outbox = Arc::clone(&job.outbox);
        let fetches = Arc::new(PackageReport::new(Arc::new(move |event| outbox.push(event))));
        let (sockets, _open) = self.open_package_socket(dirs, &fetches)?;
        let has_root = needs_system_root(spec);
        let count = spec.setup.len() + usize::from(has_root);
        let steps = StepReport { job, count: u32::try_from(count).unwrap_or(u32::MAX) };
        let mut number = 0;
        if has_root {
            number += 1;
            steps.push_begin(PACKAGES_STEP, number);
            let began = Instant::now();
            // The packages of an earlier set-up of the same environment are the same.
            let added = if has_earlier {
                Ok(())
            } else {
                let runner = self.build_runner(dirs, &sockets);
                let sandbox = StepSandbox { runner: &runner, until: self.until, events };
                let sources = self.apt_sources();
                let root = dirs.system_root_dir();
                install_system_packages(
                    &sandbox,
                    &spec.base,
                    &spec.system_packages,
                    &root,
                    &sources,
                )
                .await
                .map(|SystemPackages { packages, bytes }| {
                    job.push_note(format!(
                        "{packages} system packages were added, {} MiB",
                        bytes >> 20
                    ));
                })
            };
            fetches.flush_fetches();
            steps.push_end(PACKAGES_STEP, number, added.is_ok(), began.elapsed());
            added.map_err(|error| {
                let reason = secrets.redact_text(format!("{:#}", anyhow::Error::from(error)));
                steps.describe_failure(PACKAGES_STEP, number, &reason, "")
            })?;
        }
        let root = has_root.then(|| dirs.system_root_dir());
        let mut variables = client_configuration(&package_sources(spec)).env;
        variables.extend(spec.variables.clone());
        let secret_variables = assigned.secrets.iter();
        variables.extend(secret_variables.map(|(name, value)| (name.clone(), value.0.clone())));
        let runner = self
            .build_runner(dirs, &sockets)
            .with_system(system_layers(&spec.base, root))
            .with_variables(variables);
        for command in &spec.setup {
            number += 1;
            steps.push_begin(command, number);
            let argv = ["/bin/sh", "-c", command].map(str::to_owned);
            let ended = run_setup_step(&runner, &argv, &[], self.until, events).await?;
            fetches.flush_fetches();
            steps.push_end(command, number, ended.is_success(), ended.took);
            if !ended.is_success() {
                let SetupStepOutcome { description, tail, .. } = ended;
                let tail = secrets.redact_text(tail);
                return Err(steps.describe_failure(
                    command,
                    number,
                    &format!("it {description}"),
                    &tail,
                ));
            }
            if !node.has_disk_space() {
                let reason = "the node's disk is almost full";
                return Err(steps.describe_failure(command, number, reason, ""));
            }
        }
        Ok(fetches.list_packages())
    }

    /// Returns the limits of the set-up's sandbox, in the form of a job's needs.
    fn sandbox_needs(&self) -> SandboxNeeds {
        let limits = &self.assigned.spec.limits;
        SandboxNeeds {
            memory_mib: limits.memory_mib,
            cpu_percent: limits.cpu_percent,
            processes: limits.processes,
            disk_mib: limits.disk_mib,
            ..self.job.sandbox_needs()
        }
    }

    fn build_runner(&self, dirs: &JobDir, sockets: &[SocketForward]) -> JobSandboxRunner {
        let needs = self.sandbox_needs();
        let wall = self.until.saturating_duration_since(Instant::now());
        let limits = self.node.settings.job_limits.run_limits(&needs, wall);
        let job = self.job.job_id().to_string();
        JobSandboxRunner::new(Arc::clone(self.backend), job, limits, self.until)
            .with_image(needs.image)
            .with_folders(dirs, dirs.out_dir())
            .with_sockets(sockets)
    }

    /// Opens the socket of the package proxy, if the environment fetches packages. It closes when the returned guard is dropped.
    fn open_package_socket(
        &self,
        dirs: &JobDir,
        fetches: &Arc<PackageReport>,
    ) -> Result<(Vec<SocketForward>, Option<SocketGuard>), SetupError> {
        let Self { node, job, assigned, .. } = *self;
        let sources = package_sources(&assigned.spec);
        if sources.is_empty() {
            return Ok((Vec::new(), None));
        }
        let Some(proxy) = &node.packages else {
            return Err(SetupError::Failed(
                "The environment could not be set up: it needs packages, and this node has no package proxy. \
                 `cynode-node doctor` says why."
                    .to_owned(),
            ));
        };
        store::create_traversable_dir(&job.dir.sockets_dir())?;
        let packages = JobPackages {
            sources,
            policy: assigned.package_policy.clone(),
            locked: find_locked_versions(&dirs.workspace_dir(), &assigned.spec.lock_files),
            report: fetches.to_sink(),
        };
        let (forward, open) =
            bind_package_socket(&job.dir.sockets_dir(), proxy, packages, &node.tasks)?;
        Ok((vec![forward], Some(open)))
    }

    fn apt_sources(&self) -> AptSources {
        let release = match &self.assigned.spec.base {
            EnvironmentBase::Debian(release) => Some(release.as_str()),
            EnvironmentBase::Host | EnvironmentBase::Image(_) => None,
        };
        let proxy = self.node.packages.as_ref();
        AptSources {
            lines: proxy.map(|proxy| proxy.apt_sources(release)).unwrap_or_default(),
            // The indexes of a machine without a network grow old.
            check_expiry: system_packages::machine_checks_expiry()
                && !self.node.settings.packages.offline,
        }
    }

    /// Reports tracked files that set-up changed. The changes are not kept: jobs start from their own commits.
    async fn report_changed_files(&self, remains: &SetupRemains, tracked: &TrackedFiles) {
        let mut changed = Vec::new();
        for path in remains.touched.iter().take(MAX_COMPARED_FILES) {
            if !self.has_committed_content(path, remains, tracked).await {
                changed.push(display_path(path));
            }
        }
        if changed.is_empty() {
            return;
        }
        let rest = remains.touched.len().saturating_sub(MAX_COMPARED_FILES);
        let more = if rest > 0 { format!(" and {rest} others") } else { String::new() };
        self.job.push_note(format!(
            "the set-up changed tracked files; that is not kept: {}{more}",
            changed.join(", ")
        ));
    }

    /// Returns whether a rewritten file has the content that the commit has.
    async fn has_committed_content(
        &self,
        path: &[u8],
        remains: &SetupRemains,
        tracked: &TrackedFiles,
    ) -> bool {
        let (Some(place), Some(id), Some(mirror)) =
            (remains.rewritten.get(path), tracked.blobs.get(path), self.mirror)
        else {
            return false;
        };
        let committed = workspace::digest_blob(&self.node.host, mirror, id).await;
        match (workspace::digest_file(place, MAX_COMPARED_BYTES), committed) {
            (Ok(own), Ok(committed)) => own.sha256 == committed,
            _ => false,
        }
    }
}

fn to_milliseconds(took: Duration) -> u64 {
    u64::try_from(took.as_millis()).unwrap_or(u64::MAX)
}

/// Returns a file with a secret, as the sandbox names it.
fn find_secret(secrets: &SecretTexts, parts: &LayerParts) -> io::Result<Option<String>> {
    for (tree, inside) in [(&parts.work, WORKSPACE_DIR), (&parts.home, HOME_DIR)] {
        if let Some(path) = secrets.find_file(tree)? {
            let below = path.strip_prefix(tree).map(Path::to_owned).unwrap_or_default();
            return Ok(Some(PathBuf::from(inside).join(below).display().to_string()));
        }
    }
    Ok(None)
}

/// Reports the steps of a set-up.
struct StepReport<'a> {
    job: &'a NodeJob,
    /// Number of steps.
    count: u32,
}

impl StepReport<'_> {
    fn push_begin(&self, step: &str, number: u32) {
        self.push_step(step, number, None, Duration::ZERO);
    }

    fn push_end(&self, step: &str, number: u32, succeeded: bool, took: Duration) {
        self.push_step(step, number, Some(succeeded), took);
    }

    fn push_step(&self, step: &str, number: u32, succeeded: Option<bool>, took: Duration) {
        self.job.outbox.push(JobEventData::Setup {
            step: step.to_owned(),
            number,
            of: self.count,
            succeeded,
            milliseconds: to_milliseconds(took),
        });
    }

    fn describe_failure(&self, step: &str, number: u32, reason: &str, tail: &str) -> SetupError {
        let count = self.count;
        let mut text = format!(
            "The set-up of the environment failed at step {number} of {count}, `{step}`: {reason}."
        );
        if !tail.trim().is_empty() {
            text.push_str("\n\n");
            text.push_str(tail.trim_end());
        }
        SetupError::Failed(text)
    }
}

/// Runs the programs of system packages in the sandbox of a set-up.
struct StepSandbox<'a> {
    runner: &'a JobSandboxRunner,
    until: Instant,
    events: &'a mpsc::Sender<JobEventData>,
}

impl SetupSandbox for StepSandbox<'_> {
    fn run_step<'a>(
        &'a self,
        argv: &'a [String],
        env: &'a BTreeMap<String, String>,
        binds: &'a [BindMount],
    ) -> BoxFuture<'a, Result<StepEnd, SandboxError>> {
        Box::pin(async move {
            let runner = RunnerWithVariables { runner: self.runner, env };
            let ended = run_setup_step(&runner, argv, binds, self.until, self.events).await?;
            Ok(StepEnd { exit_code: ended.exit_code, tail: ended.tail })
        })
    }
}

/// Runs programs with variables that win over all others.
struct RunnerWithVariables<'a> {
    runner: &'a JobSandboxRunner,
    env: &'a BTreeMap<String, String>,
}

impl SandboxRunner for RunnerWithVariables<'_> {
    fn run_program<'a>(
        &'a self,
        argv: &'a [String],
        env: &'a BTreeMap<String, String>,
        binds: &'a [BindMount],
    ) -> BoxFuture<'a, Result<SandboxProcess, SandboxError>> {
        Box::pin(async move {
            let mut all = env.clone();
            all.extend(self.env.clone());
            self.runner.run_program(argv, &all, binds).await
        })
    }
}
