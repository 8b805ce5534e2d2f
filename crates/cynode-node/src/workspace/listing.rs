//! Lists files of commits from the mirror.

use std::{collections::BTreeSet, path::Path};

use cynode_test_reports::ChangedLines;
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

/// Returns the lines that one commit adds or changes of another one, by file. Files whose names are no plain text are left out.
pub(crate) async fn list_changed_lines(
    host: &HostCommands,
    mirror: &Path,
    from: &str,
    to: &str,
) -> Result<ChangedLines, WorkspaceError> {
    let mut diff = git_dir_command(host, mirror);
    diff.args(["diff-tree", "-r", "-p", "-U0", "--no-renames", "--no-commit-id", "--no-color"]);
    diff.args(["--no-ext-diff", "--no-textconv", "--src-prefix=a/", "--dst-prefix=b/"]);
    diff.args([validate_commit(from)?, validate_commit(to)?, "--"]);
    let patch = read_listing(diff, to).await?;
    Ok(parse_changed_lines(&String::from_utf8_lossy(&patch)))
}

/// Maximum number of changed lines that are looked at.
const MAX_CHANGED_LINES: usize = 100_000;

/// Reads a patch without context lines.
fn parse_changed_lines(patch: &str) -> ChangedLines {
    let mut changed = ChangedLines::new();
    let (mut file, mut hunk_lines, mut left) = (None, 0_u64, MAX_CHANGED_LINES);
    for line in patch.lines() {
        // What a hunk holds may look like a header.
        if hunk_lines > 0 && line.starts_with(['+', '-']) {
            hunk_lines -= 1;
        } else if let Some(name) = line.strip_prefix("+++ ") {
            file = name.strip_prefix("b/").map(|name| name.trim_end_matches('\t').to_owned());
        } else if let Some((old, first, count)) = parse_hunk_header(line) {
            hunk_lines = u64::from(old) + u64::from(count);
            if let Some(file) = &file {
                let numbers = (first..first.saturating_add(count)).take(left);
                let lines = changed.entry(file.clone()).or_default();
                let before = lines.len();
                lines.extend(numbers);
                left -= lines.len() - before;
            }
        }
    }
    changed.retain(|_, lines| !lines.is_empty());
    changed
}

/// Reads `@@ -1,2 +3,4 @@`: the number of old lines, the first new line, and the number of new lines.
fn parse_hunk_header(line: &str) -> Option<(u32, u32, u32)> {
    let mut words = line.strip_prefix("@@ -")?.split(' ');
    let (old, new) = (words.next()?, words.next()?.strip_prefix('+')?);
    let split = |range: &str| -> Option<(u32, u32)> {
        match range.split_once(',') {
            Some((first, count)) => Some((first.parse().ok()?, count.parse().ok()?)),
            None => Some((range.parse().ok()?, 1)),
        }
    };
    let (first, count) = split(new)?;
    Some((split(old)?.1, first, count))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changed_lines_are_read_from_headers_and_not_from_what_looks_like_one() {
        let patch = "diff --git a/a.py b/a.py\n--- a/a.py\n+++ b/a.py\n@@ -1,2 +1,3 @@ def f():\n-a\n--- b\n+++ b/c.py\n+@@ -1 +50 @@\n+c\n\\ No newline at end of file\n\
            @@ -9 +10 @@\n-x\n+y\n@@ -20,2 +20,0 @@\n-x\n-y\ndiff --git a/gone b/gone\n--- a/gone\n+++ /dev/null\n@@ -1 +0,0 @@\n-x\n\
            diff --git a/n b/n\n--- /dev/null\n+++ b/n o\t\n@@ -0,0 +1,2 @@\n+a\n+b\n";
        let lines = |numbers: &[u32]| numbers.iter().copied().collect::<BTreeSet<u32>>();
        let expected = [("a.py", lines(&[1, 2, 3, 10])), ("n o", lines(&[1, 2]))]
            .map(|(name, lines)| (name.to_owned(), lines));
        assert_eq!(parse_changed_lines(patch), ChangedLines::from(expected));
        let huge = "+++ b/a\n@@ -0,0 +1,4294967295 @@\n";
        assert_eq!(parse_changed_lines(huge)["a"].len(), MAX_CHANGED_LINES);
    }
}
