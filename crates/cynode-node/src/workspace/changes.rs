//! Paths that the result of a job changes. They are listed in a repository that the job has never touched: nothing that it left among its own
//! objects can hide a change.

use std::{
    collections::{BTreeMap, BTreeSet},
    io::{self, Read},
    path::Path,
};

use cynode_wire::nodes::JobAssignment;

use super::{
    GIT_TIMEOUT, MergeResult, WorkspaceError, copy_commits, create_git_dir, git_command,
    open_plain_file, validate_commit,
};
use crate::{
    host::{self, HostCommands},
    store::{JobDir, NodeStore},
};

/// Maximum number of bytes that are read of a list of paths.
const MAX_CHANGE_LIST_BYTES: u64 = 16 * 1024 * 1024;

/// Path inside the sandbox of the repository that the changes are listed in.
pub(crate) const CHANGE_SOURCE_PATH: &str = "/source";

/// Environment variables of the finishing program: the commits which the changes are told from, and the one that is enough if it is there.
const CHANGED_FROM_VARIABLE: &str = "CHANGED_FROM";
const CHANGED_ALONE_VARIABLE: &str = "CHANGED_ALONE";

/// Whether the finishing program lists the paths that a result changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ChangeListing {
    /// It does not.
    Unlisted,
    /// It does. This needs the source of [`create_change_source`].
    Listed,
}

/// Continues the finishing program: the bundle is read into the source, where git checks every object of it. A path counts as changed if it
/// differs from what the work began with: a merge without conflicts, or else each of the commits that were put together.
pub(super) const LIST_CHANGES_SCRIPT: &str = r#"
export GIT_DIR=/source
cd /source
git bundle unbundle /out/work.bundle > /dev/null
number=0
for from in $CHANGED_FROM; do
    git cat-file -e "$from^{commit}" 2> /dev/null || continue
    git diff-tree -r -z --name-only --no-renames --no-commit-id "$from" "$head" -- > "/out/changed.$number"
    number=$((number + 1))
    [ "$from" != "$CHANGED_ALONE" ] || break
done
[ "$number" != 0 ] || git ls-tree -r -z --name-only --full-tree "$head" > /out/changed.0
"#;

/// Creates the source: a repository with the commits that the work began with, as the mirror has them.
pub(crate) async fn create_change_source(
    host: &HostCommands,
    store: &NodeStore,
    dir: &JobDir,
    assignment: &JobAssignment,
    mirror: Option<&Path>,
) -> Result<(), WorkspaceError> {
    let source = dir.source_dir();
    store.move_to_trash(&source)?;
    create_git_dir(host, &source)?;
    let mut init = git_command(host);
    init.args(["init", "--quiet", "--bare", "--template="]).arg(&source);
    host::run_program("git init", init, GIT_TIMEOUT).await?;
    let mut wanted = Vec::new();
    for (at, commit) in assignment.base.iter().chain(&assignment.merge).enumerate() {
        wanted.push(format!("{}:refs/cynode/from/{at}", validate_commit(commit)?));
    }
    match mirror {
        Some(mirror) if !wanted.is_empty() => {
            copy_commits(host, mirror, &source, &[], &wanted).await
        }
        _ => Ok(()),
    }
}

/// Tells the finishing program what the changes are told from: what the merge made, the base, and the commits that were to be merged with
/// it. The first one is not in the bundle where the worker rewrote the history.
pub(crate) fn add_change_references(
    env: &mut BTreeMap<String, String>,
    assignment: &JobAssignment,
    merged: Option<&MergeResult>,
) -> Result<(), WorkspaceError> {
    let commits = merged.map(|merged| &merged.head).into_iter();
    let commits = commits.chain(&assignment.base).chain(&assignment.merge);
    let commits: Result<Vec<&str>, _> = commits.map(|commit| validate_commit(commit)).collect();
    env.insert(CHANGED_FROM_VARIABLE.to_owned(), commits?.join(" "));
    let whole = merged.filter(|merged| merged.conflict.is_none());
    let whole = whole.map(|merged| merged.head.clone()).unwrap_or_default();
    env.insert(CHANGED_ALONE_VARIABLE.to_owned(), whole);
    Ok(())
}

/// Reads the output of the finishing program: the paths that differ from each of the commits.
pub(crate) fn read_changed_paths(out: &Path) -> Result<BTreeSet<String>, WorkspaceError> {
    let mut changed: Option<BTreeSet<String>> = None;
    for number in 0_usize.. {
        let file = match open_plain_file(&out.join(format!("changed.{number}"))) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => break,
            opened => opened.map_err(WorkspaceError::Out)?,
        };
        let mut bytes = Vec::new();
        let read = file.take(MAX_CHANGE_LIST_BYTES + 1).read_to_end(&mut bytes);
        if read.map_err(WorkspaceError::Out)? as u64 > MAX_CHANGE_LIST_BYTES {
            return Err(WorkspaceError::TooLarge(MAX_CHANGE_LIST_BYTES));
        }
        let names = bytes.split(|byte| *byte == 0).filter(|name| !name.is_empty());
        let names: BTreeSet<String> =
            names.map(|name| String::from_utf8_lossy(name).into_owned()).collect();
        changed = Some(match changed {
            None => names,
            Some(before) => before.intersection(&names).cloned().collect(),
        });
    }
    changed.ok_or_else(|| WorkspaceError::Out(io::Error::other("its changes were not listed")))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_path_is_changed_if_it_differs_from_every_commit_that_the_work_began_with() {
        let dir = tempfile::tempdir().unwrap();
        let out = dir.path();
        assert!(matches!(read_changed_paths(out), Err(WorkspaceError::Out(_))));
        fs::write(out.join("changed.0"), "a\0dir/b\0c\0").unwrap();
        let names = |names: &[&str]| -> BTreeSet<String> {
            names.iter().map(|name| (*name).to_owned()).collect()
        };
        assert_eq!(read_changed_paths(out).unwrap(), names(&["a", "c", "dir/b"]));
        fs::write(out.join("changed.1"), "dir/b\0c\0d\0").unwrap();
        fs::write(out.join("changed.3"), "").unwrap();
        assert_eq!(read_changed_paths(out).unwrap(), names(&["c", "dir/b"]));
        fs::remove_file(out.join("changed.1")).unwrap();
        std::os::unix::fs::symlink("/etc/passwd", out.join("changed.1")).unwrap();
        assert!(matches!(read_changed_paths(out), Err(WorkspaceError::Out(_))));
    }
}
