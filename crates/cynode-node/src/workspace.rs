//! The files of a job: fetched into the project's mirror, copied from there as a repository of its own, and taken out again as
//! a bundle.
//!
//! **Invariant**: on the host, git never runs in a workspace that a job has touched. What becomes of the work is put together by
//! a run in a sandbox of its own, and the node reads what that leaves behind as plain bytes.

use std::{
    fs::{self, File},
    io::{self, Read},
    path::{Path, PathBuf},
    time::Duration,
};

use cynode_core::ids::ProjectId;
use cynode_wire::{
    nodes::{Assignment, StoredBlob},
    work::CommitRule,
};
use data_encoding::HEXLOWER;
use rustix::fs::{Mode, OFlags};
use secrecy::{ExposeSecret, SecretString};
use sha2::{Digest, Sha256};
use tokio::process::Command;

use crate::{
    host::{self, Host, HostError},
    store::{self, JobDir, Store, StoreError},
};

/// Longest time of one git command.
const PATIENCE: Duration = Duration::from_mins(10);

/// The workspace cannot be made, or what came of it cannot be taken.
#[derive(Debug, thiserror::Error)]
pub(crate) enum WorkspaceError {
    /// A program failed.
    #[error(transparent)]
    Host(#[from] HostError),
    /// The state directory failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The commit is nowhere.
    #[error("the commit {0} is not in the project's repository")]
    NoCommit(String),
    /// The assignment names something that git would misread.
    #[error("{0:?} is no name for git")]
    Name(String),
    /// What the job left cannot be read.
    #[error("what the job left cannot be taken: {0}")]
    Out(io::Error),
    /// It is too large.
    #[error("what the job left is larger than {0} bytes")]
    TooLarge(u64),
}

impl WorkspaceError {
    /// Whether asking the orchestrator again may help.
    pub(crate) const fn may_pass(&self) -> bool {
        matches!(self, Self::Host(_))
    }

    /// Whether the disk is full.
    pub(crate) fn is_full(&self) -> bool {
        match self {
            Self::Store(error) => error.is_full(),
            Self::Host(HostError::Failed { told, .. }) => told.contains("No space left on device"),
            _ => false,
        }
    }
}

/// Where to fetch from.
pub(crate) struct Origin {
    pub(crate) url: String,
    pub(crate) token: SecretString,
}

/// Makes sure that the mirror of a project has a commit. One caller at a time for each project.
pub(crate) async fn mirror(
    host: &Host,
    store: &Store,
    project: ProjectId,
    base: &str,
    origin: &Origin,
) -> Result<PathBuf, WorkspaceError> {
    let base = checked_commit(base)?;
    let path = store.mirror(project);
    if has(host, &path, base).await {
        return Ok(path);
    }
    if !path.join("HEAD").exists() {
        init_mirror(host, store, &path).await?;
    }
    let mut fetched = fetch(host, &path, "+refs/*:refs/*", origin).await;
    if fetched.is_err() && git_is_broken(host, &path).await {
        // A node that was killed may leave a mirror behind that git does not accept. It is only a copy.
        store.discard(&path)?;
        init_mirror(host, store, &path).await?;
        fetched = fetch(host, &path, "+refs/*:refs/*", origin).await;
    }
    fetched?;
    if !has(host, &path, base).await {
        // The commit may belong to no branch any more.
        let _ = fetch(host, &path, &format!("{base}:refs/cynode/{base}"), origin).await;
    }
    if has(host, &path, base).await {
        Ok(path)
    } else {
        Err(WorkspaceError::NoCommit(base.to_owned()))
    }
}

async fn init_mirror(host: &Host, store: &Store, path: &Path) -> Result<(), WorkspaceError> {
    store.discard(path)?;
    let mut init = git(host);
    init.args(["init", "--quiet", "--bare", "--template="]).arg(path);
    host::run("git init", init, PATIENCE).await?;
    // Workspaces take one commit and its past, not the branches of others.
    let mut config = git_in(host, path);
    config.args(["config", "uploadpack.allowAnySHA1InWant", "true"]);
    host::run("git config", config, PATIENCE).await?;
    Ok(())
}

/// Removes the locks of refs.
fn unlock(directory: &Path) {
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let path = entry.path();
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            unlock(&path);
        } else if path.extension().is_some_and(|extension| extension == "lock") {
            let _ = fs::remove_file(path);
        }
    }
}

async fn fetch(
    host: &Host,
    path: &Path,
    what: &str,
    origin: &Origin,
) -> Result<(), WorkspaceError> {
    // Whoever was killed has left its locks; nobody else fetches now.
    for lock in ["shallow.lock", "packed-refs.lock", "config.lock"] {
        let _ = fs::remove_file(path.join(lock));
    }
    unlock(&path.join("refs"));
    let mut fetch = git_in(host, path);
    // In the environment, which only this user can read; the command line is everybody's.
    let header = format!("Authorization: Bearer {}", origin.token.expose_secret());
    configure(
        &mut fetch,
        &[
            ("http.extraHeader", header.as_str()),
            ("http.followRedirects", "false"),
            ("http.lowSpeedLimit", "1"),
            ("http.lowSpeedTime", "30"),
            ("protocol.allow", "never"),
            ("protocol.http.allow", "always"),
            ("protocol.https.allow", "always"),
            ("gc.auto", "0"),
            ("maintenance.auto", "false"),
        ],
    );
    fetch.args([
        "fetch",
        "--quiet",
        "--force",
        "--no-tags",
        "--no-write-fetch-head",
        "--no-auto-maintenance",
    ]);
    fetch.arg(&origin.url).arg(what);
    host::run("git fetch", fetch, PATIENCE).await?;
    Ok(())
}

async fn has(host: &Host, path: &Path, commit: &str) -> bool {
    if !path.join("HEAD").exists() {
        return false;
    }
    let mut look = git_in(host, path);
    look.args(["rev-list", "--quiet", "--objects", "--max-count=1"]).arg(commit).arg("--");
    host::run("git rev-list", look, PATIENCE).await.is_ok()
}

async fn git_is_broken(host: &Host, path: &Path) -> bool {
    let mut look = git_in(host, path);
    look.args(["rev-parse", "--git-dir"]);
    let mut refs = git_in(host, path);
    refs.args(["for-each-ref", "--count=1", "--format=%(objecttype)"]);
    host::run("git rev-parse", look, PATIENCE).await.is_err()
        || host::run("git for-each-ref", refs, PATIENCE).await.is_err()
}

/// Makes the workspace anew: a repository that knows nothing but the commit to start from and what came before it.
pub(crate) async fn make(
    host: &Host,
    store: &Store,
    dir: &JobDir,
    assignment: &Assignment,
    mirror: Option<&Path>,
) -> Result<(), WorkspaceError> {
    let branch = checked_branch(&assignment.branch)?;
    for path in [dir.workspace(), dir.home(), dir.out()] {
        store.discard(&path)?;
        store::private_dir(&path)?;
    }
    let workspace = dir.workspace();
    let mut init = git(host);
    init.args(["init", "--quiet", "--template="]).arg(format!("--initial-branch={branch}"));
    init.arg(&workspace);
    host::run("git init", init, PATIENCE).await?;
    let (Some(base), Some(mirror)) = (&assignment.base, mirror) else { return Ok(()) };
    let base = checked_commit(base)?;
    let mut fetch = git(host);
    fetch.arg("-C").arg(&workspace);
    // Files of the mirror are never shared with a workspace: the job could change them.
    fetch.args(["fetch", "--quiet", "--no-tags", "--no-write-fetch-head", "--update-head-ok"]);
    fetch.arg(mirror).arg(format!("{base}:refs/heads/{branch}"));
    host::run("git fetch", fetch, PATIENCE).await?;
    let mut reset = git(host);
    reset.arg("-C").arg(&workspace).args(["reset", "--quiet", "--hard", base, "--"]);
    host::run("git reset", reset, PATIENCE).await?;
    Ok(())
}

fn git(host: &Host) -> Command {
    let mut git = host.command("git");
    git.env("GIT_CONFIG_NOSYSTEM", "1")
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .env("GIT_TERMINAL_PROMPT", "0")
        .env("GIT_ASKPASS", "/bin/true")
        .env("HOME", "/nonexistent");
    configure(&mut git, &[]);
    git
}

fn git_in(host: &Host, path: &Path) -> Command {
    let mut git = git(host);
    git.arg("--git-dir").arg(path);
    git
}

/// Settings that hold whatever a repository says.
fn configure(git: &mut Command, more: &[(&str, &str)]) {
    let always =
        [("core.hooksPath", "/dev/null"), ("core.fsmonitor", "false"), ("safe.directory", "*")];
    let all = always.iter().chain(more);
    git.env("GIT_CONFIG_COUNT", (always.len() + more.len()).to_string());
    for (at, (key, value)) in all.enumerate() {
        git.env(format!("GIT_CONFIG_KEY_{at}"), key).env(format!("GIT_CONFIG_VALUE_{at}"), value);
    }
}

fn checked_commit(text: &str) -> Result<&str, WorkspaceError> {
    let good = matches!(text.len(), 40 | 64)
        && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    if good { Ok(text) } else { Err(WorkspaceError::Name(text.to_owned())) }
}

/// Narrower than git: what is left cannot be taken for an option, a path or a revision.
fn checked_branch(text: &str) -> Result<&str, WorkspaceError> {
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

/// The program that puts the work together, inside the sandbox, and what it is told.
///
/// It trusts nothing that the job may have left in `.git`: settings, hooks, attributes and grafts are replaced. When the history
/// was rewritten so that it does not come from the base any more, everything becomes one commit on the base.
pub(crate) fn finishing(assignment: &Assignment) -> Result<Vec<String>, WorkspaceError> {
    let branch = checked_branch(&assignment.branch)?;
    let base = assignment.base.as_deref().map_or(Ok(""), checked_commit)?;
    let role = format!("CyNode {}", assignment.work.role.as_str().replace('_', " "));
    let message = format!(
        "{}\n\nTask: {}\nJob: {}\nAttempt: {}\n",
        assignment.title.trim(),
        assignment.task_id,
        assignment.job_id,
        assignment.attempt,
    );
    let words = ["/bin/sh", "-eu", "-c", FINISHING, "finish", base, branch, &role, &message];
    Ok(words.map(str::to_owned).to_vec())
}

const FINISHING: &str = r#"
base=$1 branch=$2 role=$3 message=$4
export GIT_CONFIG_NOSYSTEM=1 GIT_CONFIG_GLOBAL=/dev/null GIT_OPTIONAL_LOCKS=0 GIT_TERMINAL_PROMPT=0 GIT_NO_REPLACE_OBJECTS=1
export GIT_AUTHOR_NAME="$role" GIT_AUTHOR_EMAIL=agent@cynode.invalid
export GIT_COMMITTER_NAME="$role" GIT_COMMITTER_EMAIL=agent@cynode.invalid
export GIT_CONFIG_COUNT=7
export GIT_CONFIG_KEY_0=safe.directory GIT_CONFIG_VALUE_0='*'
export GIT_CONFIG_KEY_1=core.hooksPath GIT_CONFIG_VALUE_1=/dev/null
export GIT_CONFIG_KEY_2=core.fsmonitor GIT_CONFIG_VALUE_2=false
export GIT_CONFIG_KEY_3=commit.gpgSign GIT_CONFIG_VALUE_3=false
export GIT_CONFIG_KEY_4=core.attributesFile GIT_CONFIG_VALUE_4=/dev/null
export GIT_CONFIG_KEY_5=core.excludesFile GIT_CONFIG_VALUE_5=/dev/null
export GIT_CONFIG_KEY_6=gc.auto GIT_CONFIG_VALUE_6=0
cd /work
if [ -L .git ] || [ ! -d .git ]; then
    echo "the workspace has no repository any more" >&2
    exit 65
fi
format=$(git config --file .git/config --get extensions.objectFormat || true)
rm -rf .git/config .git/config.worktree .git/hooks .git/info .git/commondir .git/objects/info/alternates
rm -f .git/*.lock .git/shallow .git/MERGE_HEAD .git/CHERRY_PICK_HEAD .git/REVERT_HEAD
printf '[core]\n\trepositoryformatversion = %s\n\tbare = false\n\tfilemode = true\n' "$([ "$format" = sha256 ] && echo 1 || echo 0)" > .git/config
[ "$format" != sha256 ] || printf '[extensions]\n\tobjectFormat = sha256\n' >> .git/config
git add --all
parent=$(git rev-parse --quiet --verify 'HEAD^{commit}' || true)
if [ -n "$base" ] && ! { [ -n "$parent" ] && git merge-base --is-ancestor "$base" "$parent"; }; then
    parent=$base
fi
tree=$(git write-tree)
if [ -z "$parent" ]; then
    [ -n "$(git ls-files | head -c 1)" ] || exit 0
    head=$(printf %s "$message" | git commit-tree "$tree")
elif [ "$tree" != "$(git rev-parse "$parent^{tree}")" ]; then
    head=$(printf %s "$message" | git commit-tree -p "$parent" "$tree")
else
    head=$parent
fi
[ "$head" != "$base" ] || exit 0
git update-ref --no-deref "refs/heads/$branch" "$head"
git symbolic-ref HEAD "refs/heads/$branch"
if [ -n "$base" ]; then set -- "^$base"; else set --; fi
git bundle create --quiet /out/work.bundle "refs/heads/$branch" "$@"
printf %s "$head" > /out/commit
"#;

/// What the finishing run left: the commit and its bundle, or nothing when nothing was changed.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Taken {
    pub(crate) commit: String,
    pub(crate) file: PathBuf,
    pub(crate) bundle: StoredBlob,
}

/// Reads what the finishing run left in `out`. No link is followed, and no more is read than is allowed.
pub(crate) fn take(out: &Path, most: u64) -> Result<Option<Taken>, WorkspaceError> {
    let commit = match open_plain(&out.join("commit")) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        opened => opened.map_err(WorkspaceError::Out)?,
    };
    let mut text = String::new();
    commit.take(65).read_to_string(&mut text).map_err(WorkspaceError::Out)?;
    let commit = checked_commit(&text)?.to_owned();
    let file = out.join("work.bundle");
    let mut bundle = open_plain(&file).map_err(WorkspaceError::Out)?;
    let bundle = measure(&mut bundle, most)?;
    Ok(Some(Taken { commit, file, bundle }))
}

/// The digest and the size of a plain file.
pub(crate) fn measure_file(path: &Path, most: u64) -> Result<StoredBlob, WorkspaceError> {
    measure(&mut open_plain(path).map_err(WorkspaceError::Out)?, most)
}

fn open_plain(path: &Path) -> io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = File::from(rustix::fs::open(path, flags, Mode::empty())?);
    if file.metadata()?.is_file() { Ok(file) } else { Err(io::Error::other("it is no plain file")) }
}

fn measure(file: &mut File, most: u64) -> Result<StoredBlob, WorkspaceError> {
    let mut digest = Sha256::new();
    let mut bytes = 0_u64;
    let mut buffer = vec![0; 64 * 1024];
    loop {
        let read = file.read(&mut buffer).map_err(WorkspaceError::Out)?;
        if read == 0 {
            break;
        }
        bytes += read as u64;
        if bytes > most {
            return Err(WorkspaceError::TooLarge(most));
        }
        digest.update(&buffer[..read]);
    }
    Ok(StoredBlob { sha256: HEXLOWER.encode(&digest.finalize()), bytes })
}

/// Whether what was changed is to be taken out at all.
pub(crate) const fn wants_commit(rule: CommitRule) -> bool {
    match rule {
        CommitRule::IfChanged | CommitRule::Required => true,
        CommitRule::Never => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_plain_names_reach_git() {
        for good in ["main", "cynode/tsk_1/unit-2.a", "v1.2"] {
            assert!(checked_branch(good).is_ok(), "{good}");
        }
        for bad in [
            "", "-x", "a/../b", "a//b", "/a", "a/", "a b", "a:b", "a.lock", ".a", "a~1", "a\n",
            "@{u}",
        ] {
            assert!(checked_branch(bad).is_err(), "{bad:?}");
        }
        assert!(checked_commit(&"a1".repeat(20)).is_ok());
        assert!(checked_commit("HEAD").is_err());
        assert!(checked_commit(&"A1".repeat(20)).is_err());
    }

    #[test]
    fn a_link_or_a_pipe_in_the_place_of_the_bundle_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let out = dir.path();
        assert_eq!(take(out, 10).unwrap(), None);
        fs::write(out.join("commit"), "ab".repeat(20)).unwrap();
        std::os::unix::fs::symlink("/etc/passwd", out.join("work.bundle")).unwrap();
        assert!(matches!(take(out, 10), Err(WorkspaceError::Out(_))));
        fs::remove_file(out.join("work.bundle")).unwrap();
        rustix::fs::mknodat(
            rustix::fs::CWD,
            out.join("work.bundle"),
            rustix::fs::FileType::Fifo,
            Mode::RWXU,
            0,
        )
        .unwrap();
        assert!(matches!(take(out, 10), Err(WorkspaceError::Out(_))));
        fs::remove_file(out.join("work.bundle")).unwrap();
        fs::write(out.join("work.bundle"), "too much for it").unwrap();
        assert!(matches!(take(out, 10), Err(WorkspaceError::TooLarge(10))));
        let taken = take(out, 100).unwrap().unwrap();
        assert_eq!((taken.commit, taken.bundle.bytes), ("ab".repeat(20), 15));
    }
}
