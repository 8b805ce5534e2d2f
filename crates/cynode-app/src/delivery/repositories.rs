//! Repositories of projects: bare, on disk, written only from verified bundles.
//!
//! No job writes to a repository directly. A bundle comes in, and git verifies it before a ref points at it; nodes
//! fetch what goes out. Against path traversal, the directory of a repository is its project's id, and paths of files
//! with `.` or `..` are refused.

mod blobs;
mod branches;
mod git_output;

use std::{
    collections::{BTreeSet, HashMap},
    path::{Path, PathBuf},
    pin::Pin,
    process::Stdio,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll},
    time::{Duration, Instant, SystemTime},
};

use bytes::Bytes;
use cynode_core::{
    events::EventKind,
    evidence::{ChangeAnomaly, FileChangeKind, TestComparison, TouchedFile, is_test_file},
    ids::{JobId, ProjectId, TaskId},
    policies::PolicyKey,
    roles::UserRole,
    settings::registry::{DEFAULT_PROJECT_REPOSITORY_BYTES, PROJECT_REPOSITORY_BYTES_SETTING},
    sync::lock_unpoisoned,
};
use cynode_db::delivery::repositories;
use cynode_forge::git_process::{
    GitLimits, GitOutput, GitProcess, is_transient_failure, limited_git_command,
};
use futures::{Stream, StreamExt};
use serde_json::json;
use tokio::{
    io::{AsyncRead, AsyncWriteExt, ReadBuf},
    process::{ChildStdout, Command},
    sync::{OwnedSemaphorePermit, Semaphore},
};
use tokio_util::task::TaskTracker;

pub use cynode_db::delivery::repositories::RepositoryRecord;
pub use git_output::DiffStat;

pub(crate) use blobs::TreeBlob;
pub(crate) use branches::{BranchMerge, BranchMove, CommitDiff, NewCommit};

use git_output::{
    ListedFile, find_bundle_head, find_merge_markers, find_size_violation, is_commit,
    list_bundle_branches, parse_numstat, parse_raw_diff,
};

use crate::{
    App, Ctx, Error, OperationRequest,
    platform::{
        context::EventDraft,
        disk::{DISK_CHECK_BYTES, DiskProbe},
        error::log_background_error,
        operation, orphan_cleanup, settings,
    },
};

/// Maximum size of an imported bundle.
const MAX_BUNDLE_BYTES: u64 = 1 << 30;

/// Timeout of one git command.
const GIT_TIMEOUT: Duration = Duration::from_mins(5);

/// Timeout of counting changed lines. The numbers are only shown to people, and work does not depend on them.
const DIFF_STAT_TIMEOUT: Duration = Duration::from_secs(20);

/// Maximum number of bytes that are read of git's output, and of a ref advertisement.
const MAX_OUTPUT_BYTES: u64 = 16 * 1024 * 1024;
const MAX_ADVERTISEMENT_BYTES: u64 = 64 * 1024 * 1024;

/// Messages of git that mean that the bundle itself is invalid.
const BUNDLE_ERROR_MARKERS: [&str; 9] = [
    "not a bundle",
    "does not look like a v2 or v3 bundle",
    "unrecognized header",
    "lacks these prerequisite commits",
    "fsck error",
    "bad pack",
    "index-pack died",
    "non-fast-forward",
    "rejected",
];

/// Age of an object that nothing refers to, after which it is removed.
const GC_PRUNE_ARGUMENT: &str = "--prune=2.days.ago";

/// Timeout of the removal of objects that nothing refers to.
const GC_TIMEOUT: Duration = Duration::from_mins(15);

/// Minimum time between two collections of one repository that is too large.
const MIN_GC_INTERVAL: Duration = Duration::from_hours(1);

const GC_FAILED_MESSAGE: &str =
    "objects that nothing refers to could not be removed from a repository";

/// Object id of the empty tree.
const EMPTY_TREE: &str = "4b825dc642cb6eb9a060e54bf8d69288fbee4904";

/// Maximum number of concurrent git commands.
const MAX_CONCURRENT_COMMANDS: usize = 8;

/// Maximum number of concurrent fetches by people. A slow reader holds a git process for as long as it reads.
const MAX_CONCURRENT_FETCHES: usize = 16;

/// Maximum number of concurrent fetches from forges. They have a limit of their own, so that an unresponsive forge
/// does not block local work.
const MAX_CONCURRENT_MIRRORS: usize = 16;

/// How long a fetch waits for a free slot.
const FETCH_SLOT_TIMEOUT: Duration = Duration::from_secs(10);

/// Refs of a repository that a fetch can see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefVisibility<'a> {
    /// These commits and their history only, for a job that works on them.
    Commits(&'a [String]),
    /// Branches only, for people.
    Branches,
}

impl RefVisibility<'_> {
    const fn git_settings(self) -> &'static [&'static str] {
        match self {
            Self::Commits(_) => &["-c", "uploadpack.allowAnySHA1InWant=false"],
            Self::Branches => &[
                "-c",
                "uploadpack.hideRefs=refs",
                "-c",
                "uploadpack.hideRefs=!refs/heads",
                "-c",
                "uploadpack.allowAnySHA1InWant=false",
            ],
        }
    }

    /// Sets the git protocol version that the client asks for. Only known versions are accepted, because the value
    /// becomes part of git's environment. Version 2 serves any named object, advertised or not, so nobody gets it.
    fn with_protocol<'a>(git: &'a mut Command, protocol: Option<&str>) -> &'a mut Command {
        if let Some(version) = protocol.filter(|text| *text == "version=1") {
            git.env("GIT_PROTOCOL", version);
        }
        git
    }
}

/// A repository that shows some commits of another with their history, and nothing else. It is removed on drop.
#[derive(Debug)]
struct CommitView(PathBuf);

impl Drop for CommitView {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Store of all repositories.
#[derive(Clone, Debug)]
pub struct RepositoryStore {
    directory: PathBuf,
    places: Arc<Semaphore>,
    fetches: Arc<Semaphore>,
    mirrors: Arc<Semaphore>,
    feeding: TaskTracker,
    disk: DiskProbe,
    /// When the garbage of a repository that is too large was collected last.
    collected: Arc<Mutex<HashMap<ProjectId, Instant>>>,
}

/// A running `git upload-pack`. Dropping it kills the process and frees its slot.
#[derive(Debug)]
pub struct UploadPackStream {
    output: ChildStdout,
    _process: GitProcess,
    _place: Option<OwnedSemaphorePermit>,
    _view: Option<CommitView>,
}

impl AsyncRead for UploadPackStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.output).poll_read(context, into)
    }
}

/// Reason why a git command failed.
#[derive(Debug, thiserror::Error)]
pub enum RepositoryError {
    /// The process could not be run.
    #[error("git could not be run: {0}")]
    Io(#[from] std::io::Error),
    /// Git rejected the input.
    #[error("{0}")]
    Refused(String),
    /// Git hit a limit of its resources. A repeat would, too.
    #[error(
        "it needs more memory or time than git is given; it has too many objects or too large files: {0}"
    )]
    OverLimit(String),
    /// The command failed for a reason that may be transient.
    #[error("{0}")]
    Failed(String),
    /// Too many fetches run at once.
    #[error("too many fetch at once")]
    Busy,
    /// The command timed out.
    #[error("git took longer than {} s", GIT_TIMEOUT.as_secs())]
    Slow,
}

impl From<RepositoryError> for Error {
    fn from(error: RepositoryError) -> Self {
        match error {
            RepositoryError::Refused(_) | RepositoryError::OverLimit(_) => {
                Self::Invalid(error.to_string())
            }
            RepositoryError::Busy => Self::Overloaded,
            RepositoryError::Io(_) | RepositoryError::Failed(_) | RepositoryError::Slow => {
                Self::Internal(error.into())
            }
        }
    }
}

/// A file of a commit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommitFile {
    /// Path of the file in the repository.
    pub path: String,
    /// Size of the file in bytes.
    pub bytes: u64,
}

impl RepositoryStore {
    /// Creates a store in a directory.
    pub fn new(directory: PathBuf) -> Self {
        let feeding = TaskTracker::new();
        let [places, fetches, mirrors] =
            [MAX_CONCURRENT_COMMANDS, MAX_CONCURRENT_FETCHES, MAX_CONCURRENT_MIRRORS]
                .map(|most| Arc::new(Semaphore::new(most)));
        let (disk, collected) = (DiskProbe::default(), Arc::default());
        Self { directory, places, fetches, mirrors, feeding, disk, collected }
    }

    /// Returns the probe of the disk that repositories and objects are on.
    pub const fn disk_probe(&self) -> &DiskProbe {
        &self.disk
    }

    /// Refuses a job's bundle when the disk is almost full. Its node tries again.
    pub(crate) fn require_space_for_node(&self) -> Result<(), Error> {
        self.disk.require_space_for_node(&self.directory)
    }

    /// Returns the size of a project's repository on disk.
    pub(crate) async fn repository_bytes(
        &self,
        project: ProjectId,
    ) -> Result<u64, RepositoryError> {
        let directory = self.path_of(project);
        let sum = tokio::task::spawn_blocking(move || sum_file_bytes(&directory));
        Ok(sum.await.map_err(std::io::Error::other)??)
    }

    /// Removes the refs of jobs, and the objects that nothing refers to any more. It is idempotent.
    pub(crate) async fn remove_job_refs(
        &self,
        project: ProjectId,
        jobs: &[JobId],
    ) -> Result<(), RepositoryError> {
        let directory = self.path_of(project);
        if jobs.is_empty() || !tokio::fs::try_exists(&directory).await? {
            return Ok(());
        }
        let lines: String = jobs
            .iter()
            .flat_map(|job| [job_ref(*job), incoming_ref(*job)])
            .map(|name| format!("delete {name}\n"))
            .collect();
        let _place = self.places.acquire().await.map_err(std::io::Error::other)?;
        let mut git = Self::git_command(GitLimits::READ, &directory);
        git.args(["update-ref", "--no-deref", "--stdin"]);
        let done = Self::feed_process(git.stdin(Stdio::piped()), lines).await?;
        if !done.status.success() {
            return Err(classify_failure(&done, "git could not remove the refs of jobs"));
        }
        Self::collect_garbage(&directory).await;
        Ok(())
    }

    /// Begins to remove objects of a repository that nothing refers to, in the background and at most once an hour: whoever sends too much
    /// does not wait for it, and cannot have it done again and again.
    fn begin_garbage_collection(&self, project: ProjectId) {
        let now = Instant::now();
        let mut collected = lock_unpoisoned(&self.collected);
        let last = collected.get(&project);
        if last.is_some_and(|last| now.duration_since(*last) < MIN_GC_INTERVAL) {
            return;
        }
        collected.insert(project, now);
        let (places, directory) = (self.places.clone(), self.path_of(project));
        self.feeding.spawn(async move {
            if let Ok(_place) = places.acquire_owned().await {
                Self::collect_garbage(&directory).await;
            }
        });
    }

    /// Removes objects that nothing refers to. Those that a process has written lately may get a ref yet.
    async fn collect_garbage(directory: &Path) {
        let mut git = Self::git_command(GitLimits::WRITE_PACK, directory);
        git.args(["gc", "--quiet", GC_PRUNE_ARGUMENT]);
        let done = Self::collect_output(GC_TIMEOUT, &mut git, MAX_OUTPUT_BYTES).await;
        // The space comes back in the round of the next task.
        match done {
            Ok(done) if done.status.success() => {}
            Ok(done) => {
                let error = classify_failure(&done, done.stderr.trim());
                log_background_error("repository.gc_failed", &error, GC_FAILED_MESSAGE);
            }
            Err(error) => log_background_error("repository.gc_failed", &error, GC_FAILED_MESSAGE),
        }
    }

    /// Acquires a slot for a fetch. Only people need one: the number of jobs is already bounded by the nodes.
    async fn acquire_fetch_slot(
        &self,
        shown: RefVisibility<'_>,
        patience: Duration,
    ) -> Result<Option<OwnedSemaphorePermit>, RepositoryError> {
        match shown {
            RefVisibility::Commits(_) => Ok(None),
            RefVisibility::Branches => {
                let place = self.fetches.clone().acquire_owned();
                let place = tokio::time::timeout(patience, place).await;
                Ok(Some(place.map_err(|_| RepositoryError::Busy)?.map_err(std::io::Error::other)?))
            }
        }
    }

    /// Removes orphans of killed processes: incoming bundles, partial repositories, partial packs.
    pub(crate) async fn remove_orphaned_files(&self, before: SystemTime) -> std::io::Result<u64> {
        let mut removed =
            orphan_cleanup::remove_orphans(&self.directory.join("incoming"), "", before).await?;
        if !tokio::fs::try_exists(&self.directory).await? {
            return Ok(0);
        }
        let mut all = tokio::fs::read_dir(&self.directory).await?;
        while let Some(one) = all.next_entry().await? {
            let packs = one.path().join("objects/pack");
            removed += orphan_cleanup::remove_orphans(&packs, "tmp_", before).await?;
            // A git process that was killed while it removed a ref has left its lock.
            removed +=
                orphan_cleanup::remove_orphans(&one.path(), "packed-refs.lock", before).await?;
        }
        Ok(removed)
    }

    /// Removes the repository of a deleted project. It is idempotent.
    pub(crate) async fn remove_repository(&self, project: ProjectId) -> std::io::Result<()> {
        match tokio::fs::remove_dir_all(self.path_of(project)).await {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    fn path_of(&self, project: ProjectId) -> PathBuf {
        self.directory.join(format!("{project}.git"))
    }

    /// Returns a git command under limits that ignores all configuration but its arguments.
    fn git_command(limits: GitLimits, directory: &Path) -> Command {
        let mut git = limited_git_command(limits);
        git.args(["-c", "core.hooksPath=/dev/null", "-c", "fetch.fsckObjects=true"])
            .args(["-c", "gc.auto=0", "-c", "uploadpack.allowAnySHA1InWant=true"])
            .arg("--git-dir")
            .arg(directory);
        git
    }

    /// Runs a git command to its end within a time. Output above the maximum is an error.
    async fn collect_output(
        patience: Duration,
        git: &mut Command,
        most: u64,
    ) -> Result<GitOutput, RepositoryError> {
        let process = GitProcess::spawn_limited(git)?;
        let done = process.collect_output_within(patience, most).await?;
        let done = done.ok_or(RepositoryError::Slow)?;
        if !done.is_complete {
            let why = format!("git has more than {most} bytes to say about it");
            return Err(RepositoryError::OverLimit(why));
        }
        Ok(done)
    }

    /// Returns the beginning of the output of a git command, up to a number of bytes.
    async fn read_text_prefix(
        &self,
        directory: &Path,
        args: &[&str],
        most: u64,
    ) -> Result<String, RepositoryError> {
        self.read_text(directory, args, most).await.map(|(text, _)| text)
    }

    /// Returns the beginning of the output of a git command, and whether it is complete.
    async fn read_text(
        &self,
        directory: &Path,
        args: &[&str],
        most: u64,
    ) -> Result<(String, bool), RepositoryError> {
        let (bytes, whole) = self.read_bytes(directory, args, most).await?;
        Ok((String::from_utf8_lossy(&bytes).into_owned(), whole))
    }

    /// Returns the beginning of the output of a git command as bytes, and whether it is complete.
    async fn read_bytes(
        &self,
        directory: &Path,
        args: &[&str],
        most: u64,
    ) -> Result<(Vec<u8>, bool), RepositoryError> {
        let _place = self.places.acquire().await.map_err(std::io::Error::other)?;
        let mut git = Self::git_command(GitLimits::READ, directory);
        let process = GitProcess::spawn_limited(git.args(args))?;
        let done = process.collect_output_within(GIT_TIMEOUT, most).await?;
        let done = done.ok_or(RepositoryError::Slow)?;
        // Of output that is not complete the rest is not needed.
        if done.is_complete && !done.status.success() {
            return Err(classify_failure(&done, "git could not read the repository"));
        }
        let whole = done.is_complete;
        Ok((done.stdout, whole))
    }

    async fn run_git(&self, directory: &Path, args: &[&str]) -> Result<String, RepositoryError> {
        self.run_git_within(GIT_TIMEOUT, directory, args).await
    }

    async fn run_git_within(
        &self,
        patience: Duration,
        directory: &Path,
        args: &[&str],
    ) -> Result<String, RepositoryError> {
        let _place = self.places.acquire().await.map_err(std::io::Error::other)?;
        let mut git = Self::git_command(GitLimits::READ, directory);
        let done = Self::collect_output(patience, git.args(args), MAX_OUTPUT_BYTES).await?;
        if done.status.success() {
            return Ok(String::from_utf8_lossy(&done.stdout).into_owned());
        }
        let said = &done.stderr;
        let lines =
            said.lines().filter(|line| !line.trim().is_empty() && !line.starts_with("From "));
        let words = format!("git: {}", lines.take(3).collect::<Vec<_>>().join("; "));
        Err(classify_failure(&done, &words))
    }

    /// Returns whether one commit is an ancestor of another. Only an explicit no of git counts as no.
    async fn is_ancestor(
        &self,
        directory: &Path,
        base: &str,
        commit: &str,
    ) -> Result<bool, RepositoryError> {
        let _place = self.places.acquire().await.map_err(std::io::Error::other)?;
        let mut git = Self::git_command(GitLimits::READ, directory);
        git.args(["merge-base", "--is-ancestor", base, commit]);
        let done = Self::collect_output(GIT_TIMEOUT, &mut git, MAX_OUTPUT_BYTES).await?;
        match done.status.code() {
            Some(0) => Ok(true),
            Some(1) => Ok(false),
            _ => Err(classify_failure(&done, &done.stderr)),
        }
    }

    async fn ensure_repository(&self, project: ProjectId) -> Result<PathBuf, RepositoryError> {
        let directory = self.path_of(project);
        if !tokio::fs::try_exists(&directory).await? {
            // The repository is created in a temporary place and moved: nobody sees a partial one, and of two the
            // first is used.
            let beside =
                self.directory.join(format!("incoming/{project}-{:016x}", rand::random::<u64>()));
            tokio::fs::create_dir_all(&beside).await?;
            self.run_git(&beside, &["init", "--quiet", "--bare", "--initial-branch=main"]).await?;
            if tokio::fs::rename(&beside, &directory).await.is_err() {
                tokio::fs::remove_dir_all(&beside).await?;
            }
        }
        Ok(directory)
    }

    /// Imports the branches of a bundle. Branches only fast-forward. Returns the default branch and its commit.
    pub async fn import_bundle(
        &self,
        project: ProjectId,
        bundle: &Path,
        branch: Option<&str>,
    ) -> Result<(String, String), RepositoryError> {
        let directory = self.ensure_repository(project).await?;
        let bundle = bundle.to_string_lossy();
        let heads = self.run_git(&directory, &["bundle", "list-heads", &bundle]).await?;
        let named = list_bundle_branches(&heads);
        if let Some(option) = named.iter().find(|name| name.starts_with('-')) {
            return Err(RepositoryError::Refused(format!(
                "the branch `{option}` is named like an option of git: rename it first"
            )));
        }
        let wanted = branch.or_else(|| {
            let usual = ["main", "master"].into_iter().find(|usual| named.contains(usual));
            usual.or(named.first().copied())
        });
        let wanted = wanted.filter(|wanted| named.contains(wanted));
        let wanted = wanted.ok_or_else(|| {
            RepositoryError::Refused(
                "the bundle has no such branch; `git bundle create F --branches` makes a good one"
                    .into(),
            )
        })?;
        let refs = "refs/heads/*:refs/heads/*";
        // With `--quiet` git would not say which branch it rejects.
        let fetch = ["fetch", "--no-tags", "--atomic", "--no-write-fetch-head", &bundle];
        self.run_git(&directory, &[&fetch[..], &[refs]].concat()).await.map_err(
            |error| {
                match error {
            RepositoryError::Refused(said) if said.contains("rejected") => RepositoryError::Refused(
                "a branch of the bundle lacks what the project has; branches only move forward: \
                 pull first, then bring it again"
                    .into(),
            ),
            other => other,
        }
            },
        )?;
        let head = self.resolve_commit(&directory, &format!("refs/heads/{wanted}")).await?;
        Ok((wanted.to_owned(), head))
    }

    /// Returns the directory of a project's repository. Creates it if necessary.
    pub(crate) async fn repository_directory(
        &self,
        project: ProjectId,
    ) -> Result<PathBuf, RepositoryError> {
        self.ensure_repository(project).await
    }

    /// Fetches the newest commit of a branch from a remote. The branch only fast-forwards.
    pub(crate) async fn mirror_branch(
        &self,
        project: ProjectId,
        remote: &cynode_forge::git::GitRemote,
        branch: &str,
    ) -> Result<String, RepositoryError> {
        use cynode_forge::git;
        let directory = self.ensure_repository(project).await?;
        if self.disk.require_space(&self.directory).is_err() {
            let why = "the disk is almost full: nothing is fetched until there is room";
            return Err(RepositoryError::Failed(why.into()));
        }
        let _place = self.mirrors.acquire().await.map_err(std::io::Error::other)?;
        git::fetch_branch(&directory, remote, branch).await.map_err(|error| match error {
            git::GitRemoteError::Refused(why) => RepositoryError::Refused(why),
            git::GitRemoteError::Failed(why) => RepositoryError::Failed(why),
            git::GitRemoteError::Io(error) => RepositoryError::Io(error),
            git::GitRemoteError::Slow => RepositoryError::Slow,
        })
    }

    async fn resolve_commit(
        &self,
        directory: &Path,
        name: &str,
    ) -> Result<String, RepositoryError> {
        let name = format!("{name}^{{commit}}");
        let found =
            self.run_git(directory, &["rev-parse", "--verify", "--end-of-options", &name]).await?;
        Ok(found.trim().to_owned())
    }

    /// Imports and verifies the commit of a job: it must be in the bundle and descend from the commit it started
    /// from. Returns the size of the change, if git can compute it in time.
    pub async fn import_job_commit(
        &self,
        project: ProjectId,
        job: JobId,
        bundle: &Path,
        commit: &str,
        base: Option<&str>,
        merge: &[String],
    ) -> Result<Option<DiffStat>, RepositoryError> {
        if !is_commit(commit) {
            return Err(RepositoryError::Refused("a commit is 40 or 64 hexadecimal digits".into()));
        }
        let directory = self.ensure_repository(project).await?;
        let bundle = bundle.to_string_lossy();
        let heads = self.run_git(&directory, &["bundle", "list-heads", &bundle]).await?;
        let name = find_bundle_head(&heads, commit).ok_or_else(|| {
            RepositoryError::Refused("the commit that was named is not in the bundle".into())
        })?;
        // A process that was killed during the import of this job has left its locks.
        let (incoming, kept) = (incoming_ref(job), job_ref(job));
        for name in [&incoming, &kept] {
            let _ = tokio::fs::remove_file(directory.join(format!("{name}.lock"))).await;
        }
        let refs = format!("+{name}:{incoming}");
        let fetch = ["fetch", "--quiet", "--no-tags", "--no-write-fetch-head", &bundle, &refs];
        let verified = async {
            self.run_git(&directory, &fetch).await?;
            // Of two heads of the same name git takes one: it must be the named commit.
            if self.resolve_commit(&directory, &incoming).await? != commit {
                return Err(RepositoryError::Refused(
                    "the bundle holds another commit of that name".into(),
                ));
            }
            self.verify_job_commit(&directory, commit, base, merge).await?;
            self.run_git(&directory, &["update-ref", "--no-deref", &kept, commit]).await
        };
        let verified = verified.await;
        // The ref of a refused commit must not stay: nodes would fetch the commit, and retention would keep it.
        let removed = ["update-ref", "--no-deref", "-d", &incoming];
        if let Err(error) = self.run_git(&directory, &removed).await {
            // No node sees this ref, and expiry removes it: a lock that a killed process left must not stop imports.
            let message = "the ref of an import could not be removed; it is removed with its task";
            log_background_error("repository.incoming_ref_left", &error, message);
        }
        verified?;
        let base = base.unwrap_or(EMPTY_TREE);
        Ok(self.compute_diff_stat(DIFF_STAT_TIMEOUT, &directory, base, commit).await)
    }

    /// Verifies a commit of a job: its ancestors, and the sizes of its new objects.
    async fn verify_job_commit(
        &self,
        directory: &Path,
        commit: &str,
        base: Option<&str>,
        merge: &[String],
    ) -> Result<(), RepositoryError> {
        for merged in merge {
            if !self.is_ancestor(directory, merged, commit).await? {
                let why = "the commit does not hold everything that was to be put together";
                return Err(RepositoryError::Refused(why.into()));
            }
        }
        if let Some(base) = base
            && !self.is_ancestor(directory, base, commit).await?
        {
            let why = "the commit does not follow the one it started from";
            return Err(RepositoryError::Refused(why.into()));
        }
        let mut list = vec!["rev-list", "--objects", "--no-object-names", commit, "--not"];
        list.extend(base.into_iter().chain(merge.iter().map(String::as_str)));
        let objects = self.run_git(directory, &list).await?;
        let count = objects.lines().count();
        // The size of a delta's result is in its head: nothing is expanded to learn it.
        let listed = self.query_objects(directory, objects, "%(objecttype) %(objectsize)").await?;
        match find_size_violation(count, &listed) {
            Some(why) => Err(RepositoryError::Refused(why)),
            None => Ok(()),
        }
    }

    /// Computes the size of a change. A crafted commit can keep git busy for hours: on a timeout or an error the size
    /// is unknown.
    async fn compute_diff_stat(
        &self,
        patience: Duration,
        directory: &Path,
        base: &str,
        commit: &str,
    ) -> Option<DiffStat> {
        // Lines of large files are not counted, because git would read the whole file.
        let large = format!("core.bigFileThreshold={MAX_DIFFED_FILE_BYTES}");
        let diff = ["diff", "--no-ext-diff", "--no-textconv", "--numstat", base, commit];
        let args = [&["-c", large.as_str()][..], &diff].concat();
        match self.run_git_within(patience, directory, &args).await {
            Ok(told) => Some(parse_numstat(&told)),
            Err(error) => {
                log_background_error(
                    "commit.diff_failed",
                    &error,
                    "the size of a commit's diff is unknown",
                );
                None
            }
        }
    }

    /// Returns those of several commits that no other contains, in the given order.
    pub async fn independent_heads(
        &self,
        project: ProjectId,
        commits: &[String],
    ) -> Result<Vec<String>, RepositoryError> {
        let directory = self.path_of(project);
        let mut heads: Vec<String> = Vec::new();
        'commits: for (at, commit) in commits.iter().enumerate() {
            if commits[..at].contains(commit) {
                continue;
            }
            for other in commits {
                if other != commit && self.is_ancestor(&directory, commit, other).await? {
                    continue 'commits;
                }
            }
            heads.push(commit.clone());
        }
        Ok(heads)
    }

    /// Lists the files that differ between two commits, and compares tests except those in `asked_for`. Also returns
    /// anomalies that do not depend on the checks: leftover merge markers and files that could not be inspected.
    pub async fn inspect_changes(
        &self,
        project: ProjectId,
        base: &str,
        commit: &str,
        asked_for: &[String],
    ) -> Result<(Vec<TouchedFile>, Vec<ChangeAnomaly>), RepositoryError> {
        let directory = self.path_of(project);
        let plain = ["diff", "--no-ext-diff", "--no-textconv", "--no-renames"];
        let args = [&plain[..], &["--raw", "--no-abbrev", "-z", base, commit]].concat();
        let (text, whole) = self.read_text(&directory, &args, MAX_LISTING_BYTES).await?;
        let mut anomalies = Vec::new();
        let mut unseen = |reason: &str| {
            anomalies
                .push(ChangeAnomaly::Unseen { path: String::new(), reason: reason.to_owned() });
        };
        if !whole {
            unseen("it touches so many files that not all of them were listed");
        }
        let mut listed = parse_raw_diff(&text);
        let sizes = self.file_sizes(&directory, &listed).await?;
        let fits = |file: &ListedFile, most: u64| {
            let mut sides = [&file.was, &file.touched.is].into_iter();
            sides.all(|called| sizes.get(called).is_none_or(|bytes| *bytes <= most))
        };
        let is_read = |it: &&mut ListedFile| {
            let file = &it.touched;
            file.how == FileChangeKind::Changed
                && is_test_file(&file.path)
                && !asked_for.contains(&file.path)
        };
        // Tests above the limit stay without a comparison, so they do not count as good.
        for file in listed.iter_mut().filter(is_read).take(MAX_COMPARED_TESTS) {
            if !fits(file, MAX_TEST_BYTES) {
                continue;
            }
            let before = self.read_blob(&directory, &file.was).await?;
            let after = self.read_blob(&directory, &file.touched.is).await?;
            file.touched.compared = before
                .zip(after)
                .map(|(before, after)| TestComparison::compare_versions(&before, &after));
        }
        let large: Vec<&TouchedFile> = listed
            .iter()
            .filter(|it| !fits(it, MAX_DIFFED_FILE_BYTES))
            .map(|it| &it.touched)
            .collect();
        // Invalid UTF-8 in a name was replaced: git would not find the name.
        let unnamed = large.iter().any(|file| file.path.contains('\u{fffd}'));
        if whole && (unnamed || large.len() > MAX_LARGE_FILES) {
            unseen("too many of its files, or one without a good name, are too large to be read");
        }
        if !whole || unnamed || large.len() > MAX_LARGE_FILES {
            // To find merge markers, git would read files of any size as a whole.
            return Ok((listed.into_iter().map(|it| it.touched).collect(), anomalies));
        }
        // The diff shows only files with such lines, regardless of attributes that mark files as binary.
        let marked = "-G^(<<<<<<<|>>>>>>>) ";
        let left_out: Vec<String> =
            large.iter().map(|file| format!(":(exclude,literal){}", file.path)).collect();
        let mut args = [&plain[..], &["--text", "-U0", marked, base, commit, "--", "."]].concat();
        args.extend(left_out.iter().map(String::as_str));
        match self.read_text(&directory, &args, MAX_LISTING_BYTES).await {
            Ok((text, whole)) => {
                if !whole {
                    unseen("files with marks of merges are too large to be read to their end");
                }
                anomalies.extend(find_merge_markers(&text));
            }
            Err(
                RepositoryError::Failed(_) | RepositoryError::OverLimit(_) | RepositoryError::Slow,
            ) => {
                unseen("git could not look for marks of merges in it");
            }
            Err(other) => return Err(other),
        }
        for file in large.into_iter().filter(|file| file.how != FileChangeKind::Removed) {
            let reason = format!("it has more than {} MiB", MAX_DIFFED_FILE_BYTES >> 20);
            anomalies.push(ChangeAnomaly::Unseen { path: file.path.clone(), reason });
        }
        Ok((listed.into_iter().map(|it| it.touched).collect(), anomalies))
    }

    /// Returns the sizes of changed files by object id.
    async fn file_sizes(
        &self,
        directory: &Path,
        listed: &[ListedFile],
    ) -> Result<HashMap<String, u64>, RepositoryError> {
        let sides = listed.iter().flat_map(|it| [&it.was, &it.touched.is]);
        let called: Vec<(&String, &str)> = sides
            .filter_map(|called| {
                let (mode, object) = called.split_once(' ')?;
                let is_file = mode != GITLINK_MODE && object.bytes().any(|byte| byte != b'0');
                is_file.then_some((called, object))
            })
            .collect();
        let asked: String = called.iter().map(|(_, object)| format!("{object}\n")).collect();
        let told = self.query_objects(directory, asked, "%(objectsize)").await?;
        let sizes: Vec<u64> = told.lines().filter_map(|line| line.parse().ok()).collect();
        if sizes.len() != called.len() {
            return Err(RepositoryError::Failed("git could not read the repository".into()));
        }
        Ok(called.into_iter().map(|(called, _)| called.clone()).zip(sizes).collect())
    }

    /// Returns a line about each of several objects, without reading their contents.
    async fn query_objects(
        &self,
        directory: &Path,
        objects: String,
        format: &str,
    ) -> Result<String, RepositoryError> {
        let _place = self.places.acquire().await.map_err(std::io::Error::other)?;
        let mut git = Self::git_command(GitLimits::READ, directory);
        git.args(["cat-file", &format!("--batch-check={format}"), "--buffer"]);
        let done = Self::feed_process(git.stdin(Stdio::piped()), objects).await?;
        if !done.is_complete || !done.status.success() {
            return Err(classify_failure(&done, "git could not read the repository"));
        }
        Ok(String::from_utf8_lossy(&done.stdout).into_owned())
    }

    /// Runs a git command that reads lines.
    async fn feed_process(git: &mut Command, lines: String) -> Result<GitOutput, RepositoryError> {
        let mut process = GitProcess::spawn_limited(git)?;
        let input = process.take_stdin();
        // It runs concurrently with reading the answer, because both pipes may be full.
        let asking = async move {
            if let Some(mut input) = input {
                let _ = input.write_all(lines.as_bytes()).await;
            }
        };
        let answer = process.collect_output_within(GIT_TIMEOUT, MAX_OUTPUT_BYTES);
        let ((), done) = tokio::join!(asking, answer);
        done?.ok_or(RepositoryError::Slow)
    }

    /// Returns the text of a blob by object id. Returns `None` when it is too large or not a file.
    async fn read_blob(
        &self,
        directory: &Path,
        called: &str,
    ) -> Result<Option<String>, RepositoryError> {
        let Some((mode, object)) = called.split_once(' ') else { return Ok(None) };
        if mode == GITLINK_MODE {
            return Ok(None);
        }
        let (text, whole) =
            self.read_text(directory, &["cat-file", "blob", object], MAX_TEST_BYTES).await?;
        Ok(whole.then_some(text))
    }

    /// Lists the files of a commit, at most `most` of them.
    pub async fn list_tree(
        &self,
        project: ProjectId,
        commit: &str,
        most: usize,
    ) -> Result<(Vec<CommitFile>, bool), RepositoryError> {
        let args = ["ls-tree", "-r", "-l", "-z", "--full-tree", commit];
        let listed =
            self.read_text_prefix(&self.path_of(project), &args, MAX_LISTING_BYTES).await?;
        let mut entries = Vec::new();
        for line in listed.split('\0').filter(|line| !line.is_empty()) {
            if entries.len() == most {
                return Ok((entries, true));
            }
            let Some((facts, path)) = line.split_once('\t') else { continue };
            let bytes = facts.split_ascii_whitespace().nth(3).and_then(|size| size.parse().ok());
            entries.push(CommitFile { path: path.to_owned(), bytes: bytes.unwrap_or(0) });
        }
        Ok((entries, false))
    }

    /// Returns the text of a file in a commit, up to a number of bytes. Returns `None` when the file does not exist.
    pub async fn read_file(
        &self,
        project: ProjectId,
        commit: &str,
        path: &str,
        most: usize,
    ) -> Result<Option<(String, bool)>, RepositoryError> {
        // The path is looked up literally first: a colon or a wildcard in it stands for itself.
        let args = ["--literal-pathspecs", "ls-tree", "-z", "--full-tree", commit, "--", path];
        let listed =
            self.read_text_prefix(&self.path_of(project), &args, MAX_LISTING_BYTES).await?;
        let entry = listed.split('\0').find_map(|line| {
            let (facts, name) = line.split_once('\t')?;
            let mut facts = facts.split_ascii_whitespace();
            let (_, kind, object) = (facts.next()?, facts.next()?, facts.next()?);
            (name == path && kind == "blob").then(|| object.to_owned())
        });
        let Some(object) = entry else { return Ok(None) };
        let args = ["cat-file", "blob", &object];
        // Extra bytes show that the file is longer.
        let bytes = u64::try_from(most).unwrap_or(u64::MAX).saturating_add(4);
        let text = self.read_text_prefix(&self.path_of(project), &args, bytes).await?;
        let mut end = text.len().min(most);
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        Ok(Some((text[..end].to_owned(), end < text.len())))
    }

    /// Returns the directory that a fetch reads: the repository, or a view of it that lives as long as the fetch.
    async fn open_view(
        &self,
        project: ProjectId,
        shown: RefVisibility<'_>,
    ) -> Result<(PathBuf, Option<CommitView>), RepositoryError> {
        let directory = self.path_of(project);
        match shown {
            RefVisibility::Branches => Ok((directory, None)),
            RefVisibility::Commits(commits) => {
                if !tokio::fs::try_exists(directory.join("HEAD")).await? {
                    let why = "the project has no repository".into();
                    return Err(RepositoryError::Refused(why));
                }
                let view = self.create_commit_view(project, commits).await?;
                Ok((view.0.clone(), Some(view)))
            }
        }
    }

    /// Creates a repository that borrows the objects of a project's and has refs for these commits alone.
    async fn create_commit_view(
        &self,
        project: ProjectId,
        commits: &[String],
    ) -> Result<CommitView, RepositoryError> {
        static VIEWS: AtomicU64 = AtomicU64::new(0);
        let incoming = self.directory.join("incoming");
        tokio::fs::create_dir_all(&incoming).await?;
        // A directory that exists belongs to another process, or to one that was killed: nobody else's refs are ever shown.
        let directory = loop {
            let number = VIEWS.fetch_add(1, Ordering::Relaxed);
            let name = format!("view-{project}-{}-{number}", std::process::id());
            match tokio::fs::create_dir(incoming.join(&name)).await {
                Ok(()) => break incoming.join(name),
                Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error.into()),
            }
        };
        let view = CommitView(directory);
        let at = &view.0;
        tokio::fs::create_dir_all(at.join("objects/info")).await?;
        tokio::fs::create_dir(at.join("refs")).await?;
        tokio::fs::write(at.join("HEAD"), "ref: refs/heads/main\n").await?;
        let config = "[core]\n\trepositoryformatversion = 0\n\tbare = true\n";
        tokio::fs::write(at.join("config"), config).await?;
        let objects = std::path::absolute(self.path_of(project).join("objects"))?;
        let mut alternates = objects.into_os_string().into_encoded_bytes();
        alternates.push(b'\n');
        tokio::fs::write(at.join("objects/info/alternates"), alternates).await?;
        let commits: BTreeSet<_> = commits.iter().filter(|commit| is_commit(commit)).collect();
        let refs: String =
            commits.iter().map(|commit| format!("{commit} refs/cynode/{commit}\n")).collect();
        tokio::fs::write(at.join("packed-refs"), refs).await?;
        Ok(view)
    }

    /// Returns the ref advertisement of the repository, in git's protocol.
    pub async fn advertise_refs(
        &self,
        project: ProjectId,
        protocol: Option<&str>,
        shown: RefVisibility<'_>,
    ) -> Result<Bytes, RepositoryError> {
        let _place = self.acquire_fetch_slot(shown, FETCH_SLOT_TIMEOUT).await?;
        let (directory, _view) = self.open_view(project, shown).await?;
        let mut git = Self::git_command(GitLimits::READ, &directory);
        git.args(shown.git_settings());
        git.args(["upload-pack", "--stateless-rpc", "--http-backend-info-refs"]);
        let git = RefVisibility::with_protocol(&mut git, protocol).arg(&directory);
        let done = Self::collect_output(GIT_TIMEOUT, git, MAX_ADVERTISEMENT_BYTES).await?;
        if !done.status.success() {
            return Err(RepositoryError::Refused("the project has no repository".into()));
        }
        Ok([b"001e# service=git-upload-pack\n0000", done.stdout.as_slice()].concat().into())
    }

    /// Answers one request of a git client that fetches. The process lives as long as its answer is read.
    pub async fn upload_pack(
        &self,
        project: ProjectId,
        protocol: Option<&str>,
        shown: RefVisibility<'_>,
        question: Bytes,
    ) -> Result<UploadPackStream, RepositoryError> {
        let place = self.acquire_fetch_slot(shown, FETCH_SLOT_TIMEOUT).await?;
        let (directory, view) = self.open_view(project, shown).await?;
        let mut git = Self::git_command(GitLimits::WRITE_PACK, &directory);
        git.args(shown.git_settings());
        git.args(["upload-pack", "--stateless-rpc"]);
        let git = RefVisibility::with_protocol(&mut git, protocol).arg(&directory);
        let git = git.stdin(Stdio::piped()).stderr(Stdio::null());
        let mut process = GitProcess::spawn_limited(git)?;
        let (input, output) = (process.take_stdin(), process.take_stdout());
        let (Some(mut input), Some(output)) = (input, output) else {
            return Err(std::io::Error::other("git has no pipes").into());
        };
        // It runs concurrently with reading the answer, because both pipes may be full.
        self.feeding.spawn(async move {
            let _ = tokio::time::timeout(GIT_TIMEOUT, input.write_all(&question)).await;
        });
        Ok(UploadPackStream { output, _process: process, _place: place, _view: view })
    }

    /// Writes an incoming bundle to a temporary file. The file is removed when the returned value is dropped.
    pub(crate) async fn receive_bundle<E>(
        &self,
        name: &str,
        bytes: impl Stream<Item = Result<Bytes, E>> + Send,
    ) -> Result<IncomingBundle, Error> {
        let directory = self.directory.join("incoming");
        let broken = |error: std::io::Error| Error::Internal(error.into());
        self.disk.require_space(&self.directory)?;
        tokio::fs::create_dir_all(&directory).await.map_err(broken)?;
        let incoming = IncomingBundle(directory.join(name));
        let mut file = tokio::fs::File::create(&incoming.0).await.map_err(broken)?;
        let mut bytes = std::pin::pin!(bytes);
        let (mut size, mut measured) = (0_u64, 0_u64);
        while let Some(piece) = bytes.next().await {
            let piece = piece.map_err(|_| Error::Invalid("the bytes were cut off".into()))?;
            size += piece.len() as u64;
            if size - measured >= DISK_CHECK_BYTES {
                self.disk.require_space(&self.directory)?;
                measured = size;
            }
            if size > MAX_BUNDLE_BYTES {
                return Err(Error::Invalid(format!(
                    "a bundle has at most {MAX_BUNDLE_BYTES} bytes"
                )));
            }
            file.write_all(&piece).await.map_err(broken)?;
        }
        file.flush().await.map_err(broken)?;
        Ok(incoming)
    }
}

/// A temporary file that is removed on drop.
pub(crate) struct IncomingBundle(PathBuf);

impl IncomingBundle {
    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    fn size_bytes(&self) -> Result<u64, RepositoryError> {
        Ok(std::fs::metadata(&self.0)?.len())
    }
}

impl Drop for IncomingBundle {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Returns the size of the files below a directory. A file that is removed meanwhile counts nothing.
fn sum_file_bytes(directory: &Path) -> std::io::Result<u64> {
    let entries = match std::fs::read_dir(directory) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(0),
        entries => entries?,
    };
    let mut sum = 0_u64;
    for entry in entries {
        let entry = entry?;
        match entry.metadata() {
            Ok(about) if about.is_dir() => sum += sum_file_bytes(&entry.path())?,
            Ok(about) => sum += about.len(),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok(sum)
}

/// Returns why bytes do not fit into the quota of a project's repository, or `None` if they do.
pub(crate) async fn find_quota_violation(
    app: &App,
    project: ProjectId,
    bytes: u64,
) -> Result<Option<String>, Error> {
    let mut conn = app.conn().await?;
    let most = settings::setting_number(
        &mut conn,
        PROJECT_REPOSITORY_BYTES_SETTING,
        DEFAULT_PROJECT_REPOSITORY_BYTES,
    )
    .await?;
    drop(conn);
    let (git, limit) =
        (&app.gateway_parts()?.repositories, u64::try_from(most).unwrap_or_default());
    let used = git.repository_bytes(project).await?;
    if used.saturating_add(bytes) <= limit {
        return Ok(None);
    }
    // Commits that were refused are in the repository until they are collected.
    git.begin_garbage_collection(project);
    Ok(Some(format!(
        "the project's repository has {used} bytes, {bytes} more were sent, and at most {most} are kept for one: wait until the \
         commits of ended tasks expire, or ask an admin to raise `{PROJECT_REPOSITORY_BYTES_SETTING}`"
    )))
}

/// Returns the ref of the verified commit of a job.
fn job_ref(job: JobId) -> String {
    format!("refs/cynode/jobs/{job}")
}

/// Returns the ref of a commit of a job while it is verified. Nodes do not see it.
fn incoming_ref(job: JobId) -> String {
    format!("refs/cynode/incoming/{job}")
}

/// Classifies a failure of git. A full disk, a stale lock or a process that somebody killed does not mean that the input
/// is invalid: these errors may be transient. A process that hit a limit would hit it again.
fn classify_failure(done: &GitOutput, words: &str) -> RepositoryError {
    if is_transient_failure(&done.stderr) {
        RepositoryError::Failed(words.to_owned())
    } else if !done.is_complete || done.is_over_limit() {
        RepositoryError::OverLimit(words.to_owned())
    } else if BUNDLE_ERROR_MARKERS.iter().any(|verdict| done.stderr.contains(verdict)) {
        RepositoryError::Refused(words.to_owned())
    } else {
        RepositoryError::Failed(words.to_owned())
    }
}

/// Creates the repository of a project, or updates it, from a git bundle.
#[tracing::instrument(name = "app.repositories.import_repository", skip_all, fields(project.id = %project))]
pub async fn import_repository<E>(
    app: &App,
    request: &OperationRequest,
    project: ProjectId,
    branch: Option<&str>,
    bytes: impl Stream<Item = Result<Bytes, E>> + Send,
) -> Result<RepositoryRecord, Error> {
    let caller = app.require_project_role(request, project, UserRole::Operator).await?;
    if caller.bounds.is_some() {
        return Err(Error::forbidden(UserRole::Operator, "as a person"));
    }
    app.read(request, |ctx| Box::pin(require_direct_import(ctx, project))).await?;
    let repositories = &app.gateway_parts()?.repositories;
    let name = app.environment().new_uuid(app.environment().now()).to_string();
    let incoming = repositories.receive_bundle(&name, bytes).await?;
    if let Some(why) = find_quota_violation(app, project, incoming.size_bytes()?).await? {
        return Err(Error::TooLarge(why));
    }
    let (default_branch, head) =
        repositories.import_bundle(project, incoming.path(), branch).await?;
    let mut ctx = app.begin_transaction(request).await?;
    ctx.require_project_role(project, UserRole::Operator).await?;
    let mut repository = RepositoryRecord {
        project,
        default_branch,
        head,
        imported_by: caller.user,
        imported_at: ctx.now,
    };
    repositories::set_repository(ctx.conn(), &repository).await?;
    // A merge may have happened meanwhile: the branch itself is authoritative.
    if let Some(now) =
        app.gateway_parts()?.repositories.branch_head(project, &repository.default_branch).await?
    {
        repositories::set_repository_head(ctx.conn(), project, &now).await?;
        repository.head = now;
    }
    let data = json!({ "branch": repository.default_branch, "head": repository.head });
    ctx.record_event(EventDraft::new(EventKind::RepositoryImported, data).with_project(project))
        .await?;
    app.commit_operation(ctx).await?;
    Ok(repository)
}

/// Rejects commits that would reach the default branch past an approval that a policy demands. An admin of the project
/// may import them, and anybody may import the first ones.
async fn require_direct_import(ctx: &mut Ctx, project: ProjectId) -> Result<(), Error> {
    let user = ctx.caller()?.user;
    let held = cynode_db::tasks::policies::load_policies(ctx.conn(), user, Some(project)).await?;
    let demand = held.find_demand(PolicyKey::FourEyes);
    let Some(entry) = demand.or_else(|| held.find_demand(PolicyKey::DeliveryApproval)) else {
        return Ok(());
    };
    if repositories::get_repository(ctx.conn(), project).await?.is_none() {
        return Ok(());
    }
    match ctx.require_project_role(project, UserRole::Admin).await {
        Err(Error::Forbidden { .. }) => Err(crate::tasks::policies::deny_by_policy(
            "commits come by approved pull requests, or from an admin of the project",
            entry,
        )),
        result => result.map(drop),
    }
}

/// Returns the repository of a project.
#[tracing::instrument(name = "app.repositories.get_repository", skip_all)]
#[operation]
pub async fn get_repository(ctx: &mut Ctx, project: ProjectId) -> Result<RepositoryRecord, Error> {
    ctx.require_project_role(project, UserRole::Viewer).await?;
    let found = repositories::get_repository(ctx.conn(), project).await?;
    found.ok_or_else(|| Error::not_found("repository of project", project))
}

/// Maximum number of compared tests, and maximum size of one.
const MAX_COMPARED_TESTS: usize = 200;
const MAX_TEST_BYTES: u64 = 1024 * 1024;

/// Maximum size of a file that is searched for merge markers, and maximum number of larger files.
const MAX_DIFFED_FILE_BYTES: u64 = 32 * 1024 * 1024;
const MAX_LARGE_FILES: usize = 100;

/// Mode of a submodule entry in a tree.
const GITLINK_MODE: &str = "160000";

/// Maximum number of bytes that are read of a file list of git.
const MAX_LISTING_BYTES: u64 = 8 * 1024 * 1024;

/// Maximum number of files in a listing, and maximum number of bytes that are read of a file.
const MAX_TREE_FILES: usize = 4000;
const MAX_FILE_BYTES: usize = 64 * 1024;

/// Lists the files of a task's project at the commit that work starts from.
#[tracing::instrument(name = "app.repositories.list_task_files", skip_all, fields(task.id = %task))]
#[operation]
pub async fn list_task_files(
    app: &App,
    request: &OperationRequest,
    task: TaskId,
) -> Result<(String, Vec<CommitFile>, bool), Error> {
    let (project, head) = base_commit_of_task(app, request, task).await?;
    let (entries, cut) =
        app.gateway_parts()?.repositories.list_tree(project, &head, MAX_TREE_FILES).await?;
    Ok((head, entries, cut))
}

/// Returns the text of one file of a task's project.
#[tracing::instrument(name = "app.repositories.read_task_file", skip_all, fields(task.id = %task))]
#[operation]
pub async fn read_task_file(
    app: &App,
    request: &OperationRequest,
    task: TaskId,
    path: &str,
) -> Result<(String, bool), Error> {
    let plain = |part: &str| !part.is_empty() && part != "." && part != "..";
    if path.len() > 1000 || path.contains('\0') || !path.split('/').all(plain) {
        return Err(Error::Invalid("`path` is the path of a file below the root".into()));
    }
    let (project, head) = base_commit_of_task(app, request, task).await?;
    let found =
        app.gateway_parts()?.repositories.read_file(project, &head, path, MAX_FILE_BYTES).await?;
    found.ok_or_else(|| Error::not_found("file", path))
}

/// Returns the project of a task that the caller may see, and the commit that work starts from.
async fn base_commit_of_task(
    app: &App,
    request: &OperationRequest,
    task: TaskId,
) -> Result<(ProjectId, String), Error> {
    let look = app.read(request, |ctx| {
        Box::pin(async move {
            let project = crate::tasks::get_task(ctx, task).await?.project;
            ctx.require_project_role(project, UserRole::Viewer).await?;
            Ok((project, repositories::get_repository(ctx.conn(), project).await?))
        })
    });
    let (project, found) = look.await?;
    let found = found.ok_or_else(|| Error::not_found("repository of project", project))?;
    let continued = crate::delivery::pull_requests::continuation_base(app, task).await?;
    Ok((project, continued.unwrap_or(found.head)))
}

/// Returns the commit that work on a project starts from.
pub(crate) async fn project_head(app: &App, project: ProjectId) -> Result<Option<String>, Error> {
    let mut conn = app.conn().await?;
    Ok(repositories::get_repository(&mut conn, project).await?.map(|repository| repository.head))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn lines_that_git_cannot_count_or_not_soon_are_no_reason_to_fail() {
        let repositories = RepositoryStore::new(PathBuf::new());
        let nowhere = Path::new("/nonexistent");
        for patience in [Duration::ZERO, GIT_TIMEOUT] {
            let counted =
                repositories.compute_diff_stat(patience, nowhere, EMPTY_TREE, EMPTY_TREE).await;
            assert_eq!(counted, None);
        }
    }

    #[tokio::test]
    async fn people_wait_for_a_place_and_jobs_do_not() {
        let repositories = RepositoryStore::new(PathBuf::new());
        let place = |shown| repositories.acquire_fetch_slot(shown, Duration::from_millis(1));
        let mut taken = Vec::new();
        for _ in 0..MAX_CONCURRENT_FETCHES {
            taken.push(place(RefVisibility::Branches).await.unwrap());
        }
        assert!(matches!(place(RefVisibility::Branches).await, Err(RepositoryError::Busy)));
        assert!(place(RefVisibility::Commits(&[])).await.unwrap().is_none());
        taken.pop();
        assert!(place(RefVisibility::Branches).await.unwrap().is_some());
    }
}
