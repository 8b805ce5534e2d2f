//! Workspace of a job: fetched into the project's mirror, cloned from it, and exported as a bundle.
//!
//! **Invariant**: on the host, git never runs in a workspace that a job has touched. A sandboxed run builds the bundle,
//! and the node reads it as plain bytes.

mod changes;
mod finish;
mod listing;
mod merge;
mod pin;
pub(crate) mod tree_files;

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io,
    path::{Path, PathBuf},
    time::Duration,
};

use cynode_core::{git_limits::GIT_MEMORY_SETTINGS, ids::ProjectId, workflow::jobs::CommitRule};
use cynode_wire::nodes::JobAssignment;
use rustix::fs::{Mode, OFlags};
use secrecy::{ExposeSecret, SecretString};
use tokio::process::Command;

pub(crate) use self::{
    changes::{
        CHANGE_SOURCE_PATH, ChangeListing, add_change_references, create_change_source,
        read_changed_paths,
    },
    finish::{WorkBundle, digest_file, finish_argv, read_work_bundle},
    listing::{
        digest_blob, list_changed_lines, list_changed_paths, list_lock_files, list_tracked_files,
        refresh_index,
    },
    merge::{MergeResult, merge_argv, read_merge_result},
    pin::{PinConflict, create_pin_source, pin_restore_argv, read_pin_conflicts},
};
use crate::{
    host::{self, HostCommandError, HostCommands},
    sandbox::users,
    store::{self, JobDir, NodeStore, NodeStoreError},
};

/// Timeout of one git command.
const GIT_TIMEOUT: Duration = Duration::from_mins(10);

/// Error of creating or exporting a workspace.
#[derive(Debug, thiserror::Error)]
pub(crate) enum WorkspaceError {
    /// A host program failed.
    #[error(transparent)]
    Host(#[from] HostCommandError),
    /// The state directory failed.
    #[error(transparent)]
    Store(#[from] NodeStoreError),
    /// The commit does not exist.
    #[error("the commit {0} is not in the project's repository")]
    NoCommit(String),
    /// The assignment contains a name that git could misread.
    #[error("{0:?} is no name for git")]
    Name(String),
    /// The job's output cannot be read.
    #[error("what the job left cannot be taken: {0}")]
    Out(io::Error),
    /// The files of the environment cannot be put into the workspace.
    #[error("the files of the environment cannot be put into the workspace: {0}")]
    Files(io::Error),
    /// Git lists too many files.
    #[error("the commit {0} has too many files for an environment")]
    TooManyFiles(String),
    /// The output is too large.
    #[error("what the job left is larger than {0} bytes")]
    TooLarge(u64),
    /// The files of the base commit exceed the disk limit.
    #[error(
        "the files of the commit {commit} need more than the {most} bytes of disk that the job has"
    )]
    NoRoom {
        /// Id of the commit.
        commit: String,
        /// Disk limit in bytes.
        most: u64,
    },
}

impl WorkspaceError {
    /// Returns whether another request to the orchestrator may help. A repository that git cannot read within its limits stays so.
    pub(crate) const fn is_retryable(&self) -> bool {
        match self {
            Self::Host(HostCommandError::OverLimit { .. }) => false,
            Self::Host(_) => true,
            _ => false,
        }
    }

    /// Returns whether the disk is full.
    pub(crate) fn is_full(&self) -> bool {
        match self {
            Self::Store(error) => error.is_full(),
            Self::Files(error) => {
                use io::ErrorKind::{QuotaExceeded, StorageFull};
                matches!(error.kind(), StorageFull | QuotaExceeded)
            }
            Self::Host(HostCommandError::Failed { told, .. }) => {
                told.contains("No space left on device")
            }
            _ => false,
        }
    }
}

/// Remote of a mirror: URL and credentials.
pub(crate) struct MirrorOrigin {
    pub(crate) url: String,
    pub(crate) token: SecretString,
    /// Certificate authority that git trusts, if it is not one of the machine's.
    pub(crate) authority: Option<PathBuf>,
}

/// Ensures that the mirror of a project has the given commits. Callers must hold the project's mirror lock.
pub(crate) async fn update_mirror(
    host: &HostCommands,
    store: &NodeStore,
    project: ProjectId,
    commits: &[String],
    origin: &MirrorOrigin,
) -> Result<PathBuf, WorkspaceError> {
    for commit in commits {
        validate_commit(commit)?;
    }
    let path = store.mirror_path(project);
    store.touch_mirror(project);
    if missing_commits(host, &path, commits).await.is_empty() {
        return Ok(path);
    }
    if !path.join("HEAD").exists() || !give_to_git(host, &path) {
        init_mirror(host, store, &path).await?;
    }
    let mut fetched = fetch_refs(host, &path, "+refs/*:refs/*", origin).await;
    if fetched.is_err() && is_mirror_broken(host, &path).await {
        // A killed node may leave a mirror behind that git does not accept. It is only a copy and can be fetched again.
        store.move_to_trash(&path)?;
        init_mirror(host, store, &path).await?;
        fetched = fetch_refs(host, &path, "+refs/*:refs/*", origin).await;
    }
    fetched?;
    for commit in missing_commits(host, &path, commits).await {
        // The commit may not be on a branch any more.
        let _ = fetch_refs(host, &path, &format!("{commit}:refs/cynode/{commit}"), origin).await;
    }
    match missing_commits(host, &path, commits).await.first() {
        None => Ok(path),
        Some(commit) => Err(WorkspaceError::NoCommit((*commit).clone())),
    }
}

/// Returns the mirror of a project if it has the given commits.
pub(crate) async fn find_mirror(
    host: &HostCommands,
    store: &NodeStore,
    project: ProjectId,
    commits: &[String],
) -> Option<PathBuf> {
    let path = store.mirror_path(project);
    let named = commits.iter().all(|commit| validate_commit(commit).is_ok());
    (named && missing_commits(host, &path, commits).await.is_empty()).then_some(path)
}

/// Returns the commits that the mirror does not have.
async fn missing_commits<'a>(
    host: &HostCommands,
    path: &Path,
    commits: &'a [String],
) -> Vec<&'a String> {
    let mut missing = Vec::new();
    for commit in commits {
        if !has_commit(host, path, commit).await {
            missing.push(commit);
        }
    }
    missing
}

async fn init_mirror(
    host: &HostCommands,
    store: &NodeStore,
    path: &Path,
) -> Result<(), WorkspaceError> {
    store.move_to_trash(path)?;
    create_git_dir(host, path)?;
    let mut init = git_command(host);
    init.args(["init", "--quiet", "--bare", "--template="]).arg(path);
    host::run_program("git init", init, GIT_TIMEOUT).await?;
    // A workspace fetches one commit and its history, not the branches of others.
    let mut config = git_dir_command(host, path);
    config.args(["config", "uploadpack.allowAnySHA1InWant", "true"]);
    host::run_program("git config", config, GIT_TIMEOUT).await?;
    Ok(())
}

/// Creates a directory that git writes to.
fn create_git_dir(host: &HostCommands, path: &Path) -> Result<(), WorkspaceError> {
    store::create_private_dir(path)?;
    if give_to_git(host, path) {
        return Ok(());
    }
    let source = io::Error::other("its directory cannot be given to its user");
    Err(HostCommandError::Start { program: "git".to_owned(), source }.into())
}

/// Gives a directory with everything in it to the user of git, where that is not the node's own. Returns whether it has it.
fn give_to_git(host: &HostCommands, path: &Path) -> bool {
    host.git_user().is_none_or(|user| users::chown_tree(path, user).is_ok())
}

/// Returns whether a path is a directory. Git's user could have left a symlink there, and the node may write where that user may not.
fn is_plain_dir(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|meta| meta.is_dir())
}

/// Removes stale lock files of refs.
fn remove_ref_locks(directory: &Path) {
    if !is_plain_dir(directory) {
        return;
    }
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let path = entry.path();
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove_ref_locks(&path);
        } else if path.extension().is_some_and(|extension| extension == "lock") {
            let _ = fs::remove_file(path);
        }
    }
}

/// Removes partial packs of a killed fetch: they may be as large as the whole fetch.
fn remove_partial_fetches(objects: &Path) {
    if !is_plain_dir(objects) {
        return;
    }
    for folder in fs::read_dir(objects).into_iter().flatten().flatten() {
        if !is_plain_dir(&folder.path()) {
            continue;
        }
        for entry in fs::read_dir(folder.path()).into_iter().flatten().flatten() {
            if entry.file_name().as_encoded_bytes().starts_with(b"tmp_") {
                let _ = fs::remove_file(entry.path());
            }
        }
    }
}

async fn fetch_refs(
    host: &HostCommands,
    path: &Path,
    what: &str,
    origin: &MirrorOrigin,
) -> Result<(), WorkspaceError> {
    // A killed git process leaves its lock files. No other process fetches now.
    for lock in ["shallow.lock", "packed-refs.lock", "config.lock"] {
        let _ = fs::remove_file(path.join(lock));
    }
    remove_ref_locks(&path.join("refs"));
    remove_partial_fetches(&path.join("objects"));
    let mut fetch = git_dir_command(host, path);
    // The token is passed in the environment, which only this user can read. Every user can read the command line.
    let header = format!("Authorization: Bearer {}", origin.token.expose_secret());
    let authority = origin.authority.as_ref().map(|path| path.to_string_lossy().into_owned());
    let mut settings = vec![
        ("http.extraHeader", header.as_str()),
        ("http.followRedirects", "false"),
        ("http.lowSpeedLimit", "1"),
        ("http.lowSpeedTime", "30"),
        ("http.sslVerify", "true"),
        ("protocol.allow", "never"),
        ("protocol.http.allow", "always"),
        ("protocol.https.allow", "always"),
        ("gc.auto", "0"),
        ("maintenance.auto", "false"),
    ];
    settings.extend(authority.as_deref().map(|path| ("http.sslCAInfo", path)));
    set_git_config(&mut fetch, &settings);
    fetch.args([
        "fetch",
        "--quiet",
        "--force",
        "--no-tags",
        "--no-write-fetch-head",
        "--no-auto-maintenance",
    ]);
    fetch.arg(&origin.url).arg(what);
    host::run_program("git fetch", fetch, GIT_TIMEOUT).await?;
    Ok(())
}

/// Returns whether a mirror has a commit with all its objects.
pub(crate) async fn has_commit(host: &HostCommands, path: &Path, commit: &str) -> bool {
    if !path.join("HEAD").exists() {
        return false;
    }
    let mut look = git_dir_command(host, path);
    look.args(["rev-list", "--quiet", "--objects", "--max-count=1"]).arg(commit).arg("--");
    host::run_program("git rev-list", look, GIT_TIMEOUT).await.is_ok()
}

async fn is_mirror_broken(host: &HostCommands, path: &Path) -> bool {
    let mut look = git_dir_command(host, path);
    look.args(["rev-parse", "--git-dir"]);
    let mut refs = git_dir_command(host, path);
    refs.args(["for-each-ref", "--count=1", "--format=%(objecttype)"]);
    host::run_program("git rev-parse", look, GIT_TIMEOUT).await.is_err()
        || host::run_program("git for-each-ref", refs, GIT_TIMEOUT).await.is_err()
}

/// Recreates the workspace: a repository that has only the base commit, the commits to merge with it, and their history. Its files
/// must fit into the disk limit.
pub(crate) async fn create_workspace(
    host: &HostCommands,
    store: &NodeStore,
    dir: &JobDir,
    assignment: &JobAssignment,
    mirror: Option<&Path>,
    most: u64,
) -> Result<(), WorkspaceError> {
    let branch = validate_branch(&assignment.branch)?;
    for path in [dir.workspace_dir(), dir.home_dir(), dir.out_dir()] {
        store.move_to_trash(&path)?;
        store::create_private_dir(&path)?;
    }
    let workspace = dir.workspace_dir();
    create_git_dir(host, &workspace)?;
    let mut init = git_command(host);
    init.args(["init", "--quiet", "--template="]).arg(format!("--initial-branch={branch}"));
    init.arg(&workspace);
    host::run_program("git init", init, GIT_TIMEOUT).await?;
    let mut wanted = Vec::new();
    if let Some(base) = &assignment.base {
        wanted.push(format!("{}:refs/heads/{branch}", validate_commit(base)?));
    }
    for (at, commit) in assignment.merge.iter().enumerate() {
        wanted.push(format!("{}:refs/cynode/merge/{at}", validate_commit(commit)?));
    }
    if let Some(mirror) = mirror
        && !wanted.is_empty()
    {
        copy_commits(host, mirror, &workspace, &[], &wanted).await?;
    }
    if let Some(base) = &assignment.base {
        if !fits_disk_limit(host, &workspace, base, most).await? {
            return Err(WorkspaceError::NoRoom { commit: base.clone(), most });
        }
        let mut reset = git_command(host);
        reset.arg("-C").arg(&workspace).args(["reset", "--quiet", "--hard", base, "--"]);
        host::run_program("git reset", reset, GIT_TIMEOUT).await?;
    }
    Ok(())
}

/// Returns whether the files and directories of a commit fit into the disk limit. A small commit can have any number of files of any
/// size, and nothing else limits git on the host.
async fn fits_disk_limit(
    host: &HostCommands,
    workspace: &Path,
    commit: &str,
    most: u64,
) -> Result<bool, WorkspaceError> {
    let mut list = git_command(host);
    list.arg("-C").arg(workspace).args(["ls-tree", "-r", "-t", "-l", "-z", "--full-tree", commit]);
    let mut sizes = TreeSizeCounter { left: most, head: Vec::new(), in_name: false };
    Ok(host::run_streaming("git ls-tree", list, GIT_TIMEOUT, |piece| sizes.add_listing(piece))
        .await?)
}

/// Sums the sizes in a file listing of git. An entry is mode, kind, object and size, a tab, the name, and a NUL byte.
struct TreeSizeCounter {
    left: u64,
    /// Part of the current entry before its name.
    head: Vec<u8>,
    in_name: bool,
}

impl TreeSizeCounter {
    /// Minimum disk usage of a file or directory.
    const MIN_ENTRY_BYTES: u64 = 4096;

    /// Adds a chunk of the listing. Returns whether everything fits so far.
    fn add_listing(&mut self, piece: &[u8]) -> bool {
        for &byte in piece {
            match (self.in_name, byte) {
                (true, 0) => self.in_name = false,
                (true, _) => {}
                (false, b'\t') => {
                    self.in_name = true;
                    let size = parse_entry_size(&self.head).max(Self::MIN_ENTRY_BYTES);
                    self.head.clear();
                    match self.left.checked_sub(size) {
                        Some(left) => self.left = left,
                        None => return false,
                    }
                }
                (false, _) => self.head.push(byte),
            }
        }
        true
    }
}

/// Returns the size field, which is the last word before the name. An entry that is not a file has none.
fn parse_entry_size(head: &[u8]) -> u64 {
    let word = head.rsplit(|byte| *byte == b' ').next().unwrap_or_default();
    std::str::from_utf8(word).ok().and_then(|word| word.parse().ok()).unwrap_or(0)
}

/// Copies commits of the mirror into a repository. Files of the mirror are never hard-linked: the job could change them.
async fn copy_commits(
    host: &HostCommands,
    mirror: &Path,
    to: &Path,
    flags: &[&str],
    wanted: &[String],
) -> Result<(), WorkspaceError> {
    let mut fetch = git_command(host);
    fetch.arg("-C").arg(to);
    fetch.args(["fetch", "--quiet", "--no-tags", "--no-write-fetch-head", "--update-head-ok"]);
    // Git does not pass its settings on to the process that reads the mirror.
    let settings = GIT_MEMORY_SETTINGS.map(|(key, value)| format!("-c {key}={value}")).join(" ");
    fetch.arg(format!("--upload-pack=git {settings} upload-pack"));
    fetch.args(flags).arg(mirror).args(wanted);
    host::run_program("git fetch", fetch, GIT_TIMEOUT).await?;
    Ok(())
}

fn git_command(host: &HostCommands) -> Command {
    let mut git = host.build_git_command();
    git.env("GIT_CONFIG_NOSYSTEM", "1")
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .env("GIT_TERMINAL_PROMPT", "0")
        .env("GIT_ASKPASS", "/bin/true")
        .env("HOME", "/nonexistent");
    set_git_config(&mut git, &[]);
    git
}

fn git_dir_command(host: &HostCommands, path: &Path) -> Command {
    let mut git = git_command(host);
    git.arg("--git-dir").arg(path);
    git
}

/// Applies git settings that override those of any repository.
fn set_git_config(git: &mut Command, more: &[(&str, &str)]) {
    let always =
        [("core.hooksPath", "/dev/null"), ("core.fsmonitor", "false"), ("safe.directory", "*")];
    let all: Vec<_> = always.iter().chain(&GIT_MEMORY_SETTINGS).chain(more).collect();
    git.env("GIT_CONFIG_COUNT", all.len().to_string());
    for (at, (key, value)) in all.into_iter().enumerate() {
        git.env(format!("GIT_CONFIG_KEY_{at}"), key).env(format!("GIT_CONFIG_VALUE_{at}"), value);
    }
}

/// Returns the environment of git inside a sandbox: settings that override those of any repository, and the committer.
pub(crate) fn sandbox_git_env(name: &str) -> BTreeMap<String, String> {
    const GIT_SETTINGS: [(&str, &str); 14] = [
        ("safe.directory", "*"),
        ("core.hooksPath", "/dev/null"),
        ("core.fsmonitor", "false"),
        ("core.commitGraph", "false"),
        ("core.attributesFile", "/dev/null"),
        ("core.excludesFile", "/dev/null"),
        ("commit.gpgSign", "false"),
        ("gc.auto", "0"),
        ("maintenance.auto", "false"),
        ("submodule.recurse", "false"),
        ("rerere.enabled", "false"),
        ("merge.ff", "true"),
        ("merge.renormalize", "false"),
        // Shows the merge base too: resolving a conflict requires seeing the changes of both sides.
        ("merge.conflictStyle", "diff3"),
    ];
    let mut env: BTreeMap<_, _> = [
        ("PATH", "/usr/local/bin:/usr/bin:/bin"),
        ("HOME", "/nonexistent"),
        ("LC_ALL", "C"),
        ("GIT_CONFIG_NOSYSTEM", "1"),
        ("GIT_CONFIG_GLOBAL", "/dev/null"),
        ("GIT_ATTR_NOSYSTEM", "1"),
        ("GIT_OPTIONAL_LOCKS", "0"),
        ("GIT_TERMINAL_PROMPT", "0"),
        ("GIT_NO_REPLACE_OBJECTS", "1"),
        ("GIT_LITERAL_PATHSPECS", "1"),
        ("GIT_AUTHOR_NAME", name),
        ("GIT_AUTHOR_EMAIL", "agent@cynode.invalid"),
        ("GIT_COMMITTER_NAME", name),
        ("GIT_COMMITTER_EMAIL", "agent@cynode.invalid"),
    ]
    .map(|(name, value)| (name.to_owned(), value.to_owned()))
    .into();
    env.insert("GIT_CONFIG_COUNT".to_owned(), GIT_SETTINGS.len().to_string());
    for (at, (key, value)) in GIT_SETTINGS.iter().enumerate() {
        env.insert(format!("GIT_CONFIG_KEY_{at}"), (*key).to_owned());
        env.insert(format!("GIT_CONFIG_VALUE_{at}"), (*value).to_owned());
    }
    env
}

/// Makes git inside a sandbox ignore the untracked paths that a file lists as patterns.
pub(crate) fn add_exclude_file(env: &mut BTreeMap<String, String>, path: &str) {
    // The last of several settings counts.
    let count = env.get("GIT_CONFIG_COUNT").and_then(|count| count.parse().ok()).unwrap_or(0_usize);
    env.insert(format!("GIT_CONFIG_KEY_{count}"), "core.excludesFile".to_owned());
    env.insert(format!("GIT_CONFIG_VALUE_{count}"), path.to_owned());
    env.insert("GIT_CONFIG_COUNT".to_owned(), (count + 1).to_string());
}

/// Writes patterns of untracked paths that git ignores in a new workspace. It follows no symlink that git may have left.
pub(crate) fn write_excludes(workspace: &Path, patterns: &str) -> io::Result<()> {
    let git = workspace.join(".git");
    let info = git.join("info");
    if !is_plain_dir(&git) {
        return Err(io::Error::other("the workspace has no repository"));
    }
    if !is_plain_dir(&info) {
        fs::create_dir(&info)?;
    }
    let mut file =
        fs::OpenOptions::new().write(true).create_new(true).open(info.join("exclude"))?;
    io::Write::write_all(&mut file, patterns.as_bytes())
}

fn validate_commit(text: &str) -> Result<&str, WorkspaceError> {
    let good = matches!(text.len(), 40 | 64)
        && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    if good { Ok(text) } else { Err(WorkspaceError::Name(text.to_owned())) }
}

/// Validates a branch name by a narrower rule than git's: an accepted name cannot be read as an option, a path or a revision.
fn validate_branch(text: &str) -> Result<&str, WorkspaceError> {
    let word = |part: &str| {
        !part.is_empty()
            && !part.starts_with(['-', '.'])
            && !part.ends_with('.')
            && !part.ends_with(".lock")
            && !part.contains("..")
            && part.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'))
    };
    let good = text.len() <= 200 && text.split('/').all(word);
    if good { Ok(text) } else { Err(WorkspaceError::Name(text.to_owned())) }
}

/// Returns whether changes are to be exported at all.
pub(crate) const fn wants_commit(rule: CommitRule) -> bool {
    match rule {
        CommitRule::IfChanged | CommitRule::Required => true,
        CommitRule::Never => false,
    }
}

/// Opens a plain file that a sandbox left. Symlinks are not followed.
fn open_plain_file(path: &Path) -> io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = File::from(rustix::fs::open(path, flags, Mode::empty())?);
    if file.metadata()?.is_file() { Ok(file) } else { Err(io::Error::other("it is no plain file")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_plain_names_reach_git() {
        for good in ["main", "cynode/tsk_1/unit-2.a", "v1.2"] {
            assert!(validate_branch(good).is_ok(), "{good}");
        }
        for bad in [
            "", "-x", "a/../b", "a//b", "/a", "a/", "a b", "a:b", "a.lock", ".a", "a~1", "a\n",
            "@{u}",
        ] {
            assert!(validate_branch(bad).is_err(), "{bad:?}");
        }
        assert!(validate_commit(&"a1".repeat(20)).is_ok());
        assert!(validate_commit("HEAD").is_err());
        assert!(validate_commit(&"A1".repeat(20)).is_err());
    }

    #[test]
    fn a_list_of_ignored_paths_is_the_last_setting_of_git() {
        let mut env = sandbox_git_env("CyNode");
        let before: usize = env["GIT_CONFIG_COUNT"].parse().unwrap();
        add_exclude_file(&mut env, "/exclude");
        assert_eq!(env["GIT_CONFIG_COUNT"], (before + 1).to_string());
        let last =
            ["KEY", "VALUE"].map(|part| env[&format!("GIT_CONFIG_{part}_{before}")].as_str());
        assert_eq!(last, ["core.excludesFile", "/exclude"]);
    }

    #[test]
    fn ignored_paths_are_written_through_no_symlink() {
        let dir = tempfile::tempdir().unwrap();
        let (workspace, outside) = (dir.path().join("work"), dir.path().join("outside"));
        fs::create_dir_all(workspace.join(".git")).unwrap();
        fs::create_dir(&outside).unwrap();
        write_excludes(&workspace, "/made\n").unwrap();
        assert_eq!(fs::read_to_string(workspace.join(".git/info/exclude")).unwrap(), "/made\n");
        fs::remove_dir_all(workspace.join(".git/info")).unwrap();
        std::os::unix::fs::symlink(&outside, workspace.join(".git/info")).unwrap();
        assert!(write_excludes(&workspace, "/made\n").is_err());
        assert_eq!(fs::read_dir(&outside).unwrap().count(), 0);
    }

    #[test]
    fn files_fit_when_their_sizes_do_however_the_list_comes() {
        let list = b"100644 blob ab12       5\ta\t9\n\x00160000 commit ab12       -\tsub\x00100755 blob ab12   10000\tb\0";
        for length in 1..list.len() {
            let fits = |most: u64| {
                let mut sizes = TreeSizeCounter { left: most, head: Vec::new(), in_name: false };
                list.chunks(length).all(|piece| sizes.add_listing(piece))
            };
            assert_eq!((fits(2 * 4096 + 10_000), fits(2 * 4096 + 9_999)), (true, false));
        }
    }
}
