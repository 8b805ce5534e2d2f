//! Merges commits in the workspace before the worker starts.

use std::{io::Read, path::Path};

use cynode_wire::nodes::{JobAssignment, MergeConflict, SandboxUse};
use serde::{Deserialize, Serialize};

use super::{WorkspaceError, open_plain_file, validate_commit};

/// Maximum number of conflicting files that are reported.
const MAX_CONFLICT_FILES: usize = 100;
/// Maximum number of bytes that are read of their names: more than that many of the longest names.
const MAX_CONFLICT_LIST_BYTES: u64 = 1024 * 1024;

/// Outcome of a merge.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct MergeResult {
    /// Head commit of the workspace.
    pub(crate) head: String,
    /// Commits that it descends from, in order.
    pub(crate) commits: Vec<String>,
    /// The first conflict. Later commits were not merged.
    pub(crate) conflict: Option<MergeConflict>,
    /// Resource usage of the merge.
    #[serde(default)]
    pub(crate) used: SandboxUse,
}

impl MergeResult {
    /// Returns the commits that any result of the work must descend from.
    pub(crate) fn parent_commits(&self) -> impl Iterator<Item = &str> {
        let unfit = self.conflict.iter().map(|conflict| conflict.commit.as_str());
        self.commits.iter().map(String::as_str).chain(unfit)
    }
}

/// Builds the command line of the program that merges commits inside a sandbox.
///
/// The merge is deterministic: author, time and message depend only on the commits and the task. A repeated merge gives the same
/// commits.
pub(crate) fn merge_argv(assignment: &JobAssignment) -> Result<Vec<String>, WorkspaceError> {
    let task = assignment.task_id.to_string();
    let mut argv =
        ["/bin/sh", "-eu", "-c", MERGE_SCRIPT, "merge", &task].map(str::to_owned).to_vec();
    for commit in &assignment.merge {
        argv.push(validate_commit(commit)?.to_owned());
    }
    Ok(argv)
}

// The files were given to another user after git's last index update, and nobody has changed them. Size and time are therefore
// sufficient, in the second of their creation too. Otherwise git compares the content, and reports files as changed that do not
// round-trip through the repository's own attributes, such as line endings.
// The attributes of the repository apply as they do for people, but conflict markers have one fixed length, by which they are found.
const MERGE_SCRIPT: &str = r#"
task=$1
shift
cd /work
mkdir -p .git/info
echo '* conflict-marker-size=7' > .git/info/attributes
merged=0
for commit in "$@"; do
    when=0
    for side in HEAD "$commit"; do
        at=$(git log -1 --format=%ct "$side" -- 2> /dev/null || echo 0)
        case $at in '' | *[!0-9]* | ????????????*) at=0 ;; esac
        [ "$at" -le "$when" ] || when=$at
    done
    export GIT_AUTHOR_DATE="@$when +0000" GIT_COMMITTER_DATE="@$when +0000"
    [ ! -e .git/index ] || touch -t 203701010000 .git/index
    status=0
    git -c core.trustctime=false -c core.checkStat=minimal \
        merge --quiet --ff --no-edit --no-verify --no-stat --no-autostash --allow-unrelated-histories --strategy=ort \
        --message="Merge $(printf %.12s "$commit")

Task: $task" "$commit" || status=$?
    if [ "$status" = 1 ] && [ -e .git/MERGE_HEAD ]; then
        git diff --name-only --no-ext-diff --diff-filter=U -z > /out/conflict
        break
    fi
    [ "$status" = 0 ] || exit "$status"
    merged=$((merged + 1))
done
touch .git/index
git rev-parse --verify 'HEAD^{commit}' > /out/head
echo "$merged" > /out/merged
"#;

/// Reads the output of the merging run from `out`. It can only report how far the merge came and where it stopped.
pub(crate) fn read_merge_result(
    out: &Path,
    assignment: &JobAssignment,
) -> Result<MergeResult, WorkspaceError> {
    let odd = |what: &str| WorkspaceError::Out(std::io::Error::other(what.to_owned()));
    let text = |name: &str| {
        let mut text = String::new();
        let file = open_plain_file(&out.join(name)).map_err(WorkspaceError::Out)?;
        file.take(100).read_to_string(&mut text).map_err(WorkspaceError::Out)?;
        Ok::<_, WorkspaceError>(text.trim_end().to_owned())
    };
    let head = validate_commit(&text("head")?)?.to_owned();
    let count: usize = text("merged")?.parse().map_err(|_| odd("it is no number"))?;
    let commits = assignment.merge.get(..count).ok_or_else(|| odd("the number is too large"))?;
    let commits = commits.to_vec();
    let conflict = match assignment.merge.get(count) {
        None => None,
        Some(commit) => {
            let files = read_conflict_files(&out.join("conflict"))?;
            Some(MergeConflict { commit: commit.clone(), merged_commits: commits.clone(), files })
        }
    };
    Ok(MergeResult { head, commits, conflict, used: SandboxUse::default() })
}

/// Reads the first conflicting files. A file name need not be valid UTF-8.
fn read_conflict_files(path: &Path) -> Result<Vec<String>, WorkspaceError> {
    let mut bytes = Vec::new();
    let file = open_plain_file(path).map_err(WorkspaceError::Out)?;
    file.take(MAX_CONFLICT_LIST_BYTES).read_to_end(&mut bytes).map_err(WorkspaceError::Out)?;
    let names = bytes.split(|byte| *byte == 0).filter(|name| !name.is_empty());
    Ok(names
        .take(MAX_CONFLICT_FILES)
        .map(|name| String::from_utf8_lossy(name).into_owned())
        .collect())
}
