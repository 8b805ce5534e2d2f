//! Lists files of commits from the mirror.

use std::{collections::BTreeSet, path::Path};

use data_encoding::HEXLOWER;
use sha2::{Digest as _, Sha256};
use tokio::process::Command;

use super::{
    GIT_TIMEOUT, WorkspaceError, git_command, git_dir_command, tree_files::TrackedFiles,
    validate_commit,
};
use crate::host::{self, HostCommandError, HostCommands};

/// Maximum size of a listing.
const MAX_LISTING_BYTES: usize = 64 * 1024 * 1024;

/// Returns what git lists for the lock files of a commit: modes, ids of the contents, and paths. One that is missing is left out.
pub(crate) async fn list_lock_files(
    host: &HostCommands,
    mirror: &Path,
    commit: &str,
    paths: &[String],
) -> Result<Vec<u8>, WorkspaceError> {
    // Without a path, git would list everything.
    if paths.is_empty() {
        return Ok(Vec::new());
    }
    let mut list = git_dir_command(host, mirror);
    list.args(["ls-tree", "-z", "--full-tree", validate_commit(commit)?, "--"]).args(paths);
    read_listing(list, commit).await
}

/// Returns all files of a commit.
pub(crate) async fn list_tracked_files(
    host: &HostCommands,
    mirror: &Path,
    commit: &str,
) -> Result<TrackedFiles, WorkspaceError> {
    let mut list = git_dir_command(host, mirror);
    list.args(["ls-tree", "-r", "-z", "--full-tree", validate_commit(commit)?]);
    Ok(TrackedFiles::parse_listing(&read_listing(list, commit).await?))
}

/// Returns the paths in which two commits differ.
pub(crate) async fn list_changed_paths(
    host: &HostCommands,
    mirror: &Path,
    from: &str,
    to: &str,
) -> Result<BTreeSet<Vec<u8>>, WorkspaceError> {
    let mut diff = git_dir_command(host, mirror);
    diff.args(["diff-tree", "-r", "-z", "--name-only", "--no-renames", "--no-commit-id"]);
    diff.args([validate_commit(from)?, validate_commit(to)?, "--"]);
    let listing = read_listing(diff, to).await?;
    let names = listing.split(|byte| *byte == 0).filter(|name| !name.is_empty());
    Ok(names.map(<[u8]>::to_vec).collect())
}

/// Returns the SHA-256 of the content of a blob, in hexadecimal.
pub(crate) async fn digest_blob(
    host: &HostCommands,
    mirror: &Path,
    id: &str,
) -> Result<String, WorkspaceError> {
    let mut show = git_dir_command(host, mirror);
    show.args(["cat-file", "blob", validate_commit(id)?]);
    let mut digest = Sha256::new();
    let hash = |piece: &[u8]| {
        digest.update(piece);
        true
    };
    host::run_streaming("git cat-file", show, GIT_TIMEOUT, hash).await?;
    Ok(HEXLOWER.encode(&digest.finalize()))
}

/// Tells git about new modification times of files in a new workspace. A file that does not round-trip through the attributes of the
/// repository looks changed to git: it is written again.
pub(crate) async fn refresh_index(
    host: &HostCommands,
    workspace: &Path,
) -> Result<(), WorkspaceError> {
    let mut refresh = git_command(host);
    refresh.arg("-C").arg(workspace).args(["update-index", "--refresh"]);
    match host::run_program("git update-index", refresh, GIT_TIMEOUT).await {
        Ok(_) => return Ok(()),
        // Git fails if a file looks changed, after it has refreshed the others.
        Err(HostCommandError::Failed { .. }) => {}
        Err(error) => return Err(error.into()),
    }
    let mut checkout = git_command(host);
    checkout.arg("-C").arg(workspace).args(["checkout-index", "--force", "--index", "--all"]);
    host::run_program("git checkout-index", checkout, GIT_TIMEOUT).await?;
    Ok(())
}

async fn read_listing(command: Command, commit: &str) -> Result<Vec<u8>, WorkspaceError> {
    let mut listing = Vec::new();
    let keep = |piece: &[u8]| {
        listing.extend_from_slice(piece);
        listing.len() <= MAX_LISTING_BYTES
    };
    if host::run_streaming("git", command, GIT_TIMEOUT, keep).await? {
        Ok(listing)
    } else {
        Err(WorkspaceError::TooManyFiles(commit.to_owned()))
    }
}
