//! Commits the work and builds the bundle at the end of a job.

use std::{
    fs::File,
    io::{self, Read},
    path::{Path, PathBuf},
};

use cynode_core::workflow::jobs::WorkerChoice;
use cynode_wire::nodes::{JobAssignment, StoredBlob};
use data_encoding::HEXLOWER;
use sha2::{Digest, Sha256};

use super::{
    MergeResult, WorkspaceError,
    changes::{ChangeListing, LIST_CHANGES_SCRIPT},
    open_plain_file, validate_branch, validate_commit,
};

/// Builds the command line of the program that commits the work inside the sandbox.
///
/// The program trusts nothing that the job may have left in `.git`: it replaces settings, hooks, attributes, grafts and index flags.
/// A nested repository is treated as plain files: git would otherwise run in it with its own settings, and would record a commit that
/// no other repository has instead of its files. Only a submodule that existed before the work stays one, at the commit that its own
/// repository has checked out.
/// If the history was rewritten and does not descend from the base any more, all changes become one commit on the base.
/// Git reads a commit, a directory or a delta as a whole, more than once. An object far larger than any legitimate one is therefore
/// rejected, wherever in the history it is: it would exhaust the memory of every reader.
/// Commits that were merged before the worker started stay ancestors of the result, regardless of what the worker did to the merge.
pub(crate) fn finish_argv(
    assignment: &JobAssignment,
    merged: Option<&MergeResult>,
    listing: ChangeListing,
) -> Result<Vec<String>, WorkspaceError> {
    let branch = validate_branch(&assignment.branch)?;
    let base = assignment.base.as_deref().map_or(Ok(""), validate_commit)?;
    let message = format!(
        "{}\n\nTask: {}\nJob: {}\nAttempt: {}\n",
        assignment.title.trim(),
        assignment.task_id,
        assignment.job_id,
        assignment.attempt,
    );
    // A job without a worker has only committed changes.
    let worked = if assignment.work.worker == WorkerChoice::Merge { "nobody" } else { "worker" };
    let listed;
    let script = match listing {
        ChangeListing::Unlisted => FINISH_SCRIPT,
        ChangeListing::Listed => {
            listed = format!("{FINISH_SCRIPT}{LIST_CHANGES_SCRIPT}");
            listed.as_str()
        }
    };
    let words = ["/bin/sh", "-eu", "-c", script, "finish", base, branch, &message, worked];
    let mut argv = words.map(str::to_owned).to_vec();
    for commit in merged.into_iter().flat_map(MergeResult::parent_commits) {
        argv.push(validate_commit(commit)?.to_owned());
    }
    Ok(argv)
}

const FINISH_SCRIPT: &str = r#"
base=$1 branch=$2 message=$3 worked=$4
shift 4
cd /work
if [ -L .git ] || [ ! -d .git ]; then
    echo "the workspace has no repository any more" >&2
    exit 65
fi
# What the job has closed to itself is its work too.
find . -type d ! -perm -500 -exec chmod u+rwx {} \; || true
find . -type d ! -perm -200 -exec chmod u+w {} + || true
find . -type f ! -perm -400 -exec chmod u+r {} + || true
format=$(git config --file .git/config --get extensions.objectFormat || true)
rm -rf .git/config .git/config.worktree .git/hooks .git/info .git/commondir .git/objects/info/alternates
rm -f .git/*.lock .git/shallow .git/MERGE_HEAD .git/CHERRY_PICK_HEAD .git/REVERT_HEAD
printf '[core]\n\trepositoryformatversion = %s\n\tbare = false\n\tfilemode = true\n' "$([ "$format" = sha256 ] && echo 1 || echo 0)" > .git/config
[ "$format" != sha256 ] || printf '[extensions]\n\tobjectFormat = sha256\n' >> .git/config
parent=$(git rev-parse --quiet --verify 'HEAD^{commit}' || true)
root=$(pwd -P)
first_line() {
    [ -L "$1" ] || [ ! -f "$1" ] || head -c 4096 "$1" | head -n 1
}
# What the repository of a submodule has checked out. It is read: git would run in it by its own settings.
checked_out() {
    to=.git
    [ ! -f "./$1/.git" ] || to=$(first_line "./$1/.git")
    to=${to#gitdir: }
    case $to in /*) ;; *) to=./$1/$to ;; esac
    to=$(cd -P -- "$to" 2>/dev/null && pwd -P) || return 0
    case $to in "$root/.git/modules/"* | "$root/$1/.git") ;; *) return 0 ;; esac
    id=$(first_line "$to/HEAD")
    case $id in
        *..*) return 0 ;;
        'ref: refs/'*)
            ref=${id#ref: }
            id=$(first_line "$to/$ref")
            if [ -z "$id" ] && [ -f "$to/packed-refs" ]; then
                id=$({ grep -F -e " $ref" "$to/packed-refs" || true; } | while read -r one name; do
                    [ "$name" != "$ref" ] || printf '%s\n' "$one"
                done)
            fi
            ;;
    esac
    case $id in *[!0-9a-f]*) ;; *[1-9a-f]*) printf %s "$id" ;; esac
}
if [ "$worked" = nobody ]; then
    tree=$(git rev-parse 'HEAD^{tree}')
else
    # The same entries without any mark: what is said not to be in the files would else stay in the tree. Of submodules, those that
    # were there before. Names with odd characters are quoted in both lists.
    tab=$(printf '\t')
    links=$(for commit in $base "$@"; do git ls-tree -r --full-tree "$commit"; done | grep '^160000 ' | cut -f 2)
    rm -rf .git/index.new
    {
        git ls-files --stage | grep -v '^160000 ' || true
        git ls-files --stage | { grep '^160000 ' || true; } | while IFS= read -r entry; do
            name=${entry#*"$tab"}
            printf '%s\n' "$links" | grep -qxF -e "$name" || continue
            staged=${entry#160000 } staged=${staged%% *}
            id=$(checked_out "$name")
            [ ${#id} != ${#staged} ] || entry="160000 $id 0$tab$name"
            printf '%s\n' "$entry"
        done
    } | GIT_INDEX_FILE=/work/.git/index.new git update-index --index-info
    rm -rf .git/index
    [ ! -e .git/index.new ] || mv .git/index.new .git/index
    find . -path ./.git -prune -o -name '.[Gg][Ii][Tt]' -prune -exec rm -rf {} +
    git add --all
    tree=$(git write-tree)
fi
if [ -n "$base" ] && ! { [ -n "$parent" ] && git merge-base --is-ancestor "$base" "$parent"; }; then
    parent=$base
fi
parents=$parent
for commit in "$@"; do
    known=
    for one in $parents; do
        ! git merge-base --is-ancestor "$commit" "$one" || known=1
    done
    [ -n "$known" ] || parents="$parents $commit"
done
set -- $parents
if [ $# = 0 ] && [ -z "$(git ls-files | head -c 1)" ]; then
    exit 0
elif [ $# = 1 ] && [ "$tree" = "$(git rev-parse "$1^{tree}")" ]; then
    head=$1
else
    flags=
    for one in "$@"; do flags="$flags -p $one"; done
    head=$(printf %s "$message" | git commit-tree $flags "$tree")
fi
[ "$head" != "$base" ] || exit 0
git update-ref --no-deref "refs/heads/$branch" "$head"
git symbolic-ref HEAD "refs/heads/$branch"
if [ -n "$base" ]; then set -- "^$base"; else set --; fi
git rev-list --objects --no-object-names "$head" "$@" |
    git cat-file --batch-check='%(objecttype) %(objectsize)' | while read -r type size; do
    most=16777216
    [ "$type" != blob ] || most=104857600
    # A size that is no number does not pass either.
    [ "$size" -le "$most" ] || {
        echo "a $type in its history is larger than $most bytes" >&2
        exit 65
    }
done
git bundle create --quiet /out/work.bundle "refs/heads/$branch" "$@"
printf %s "$head" > /out/commit
"#;

/// Output of the finishing run: the commit and its bundle, or nothing if nothing changed.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct WorkBundle {
    pub(crate) commit: String,
    pub(crate) file: PathBuf,
    pub(crate) bundle: StoredBlob,
}

/// Reads the output of the finishing run from `out`. Symlinks are not followed, and the size is limited.
pub(crate) fn read_work_bundle(
    out: &Path,
    most: u64,
) -> Result<Option<WorkBundle>, WorkspaceError> {
    let commit = match open_plain_file(&out.join("commit")) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        opened => opened.map_err(WorkspaceError::Out)?,
    };
    let mut text = String::new();
    commit.take(65).read_to_string(&mut text).map_err(WorkspaceError::Out)?;
    let commit = validate_commit(&text)?.to_owned();
    let file = out.join("work.bundle");
    let mut bundle = open_plain_file(&file).map_err(WorkspaceError::Out)?;
    let bundle = digest_contents(&mut bundle, most)?;
    Ok(Some(WorkBundle { commit, file, bundle }))
}

/// Returns the digest and size of a plain file.
pub(crate) fn digest_file(path: &Path, most: u64) -> Result<StoredBlob, WorkspaceError> {
    digest_contents(&mut open_plain_file(path).map_err(WorkspaceError::Out)?, most)
}

fn digest_contents(file: &mut File, most: u64) -> Result<StoredBlob, WorkspaceError> {
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

#[cfg(test)]
mod tests {
    use std::fs;

    use rustix::fs::Mode;

    use super::*;

    #[test]
    fn a_link_or_a_pipe_in_the_place_of_the_bundle_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let out = dir.path();
        assert_eq!(read_work_bundle(out, 10).unwrap(), None);
        fs::write(out.join("commit"), "ab".repeat(20)).unwrap();
        std::os::unix::fs::symlink("/etc/passwd", out.join("work.bundle")).unwrap();
        assert!(matches!(read_work_bundle(out, 10), Err(WorkspaceError::Out(_))));
        fs::remove_file(out.join("work.bundle")).unwrap();
        rustix::fs::mknodat(
            rustix::fs::CWD,
            out.join("work.bundle"),
            rustix::fs::FileType::Fifo,
            Mode::RWXU,
            0,
        )
        .unwrap();
        assert!(matches!(read_work_bundle(out, 10), Err(WorkspaceError::Out(_))));
        fs::remove_file(out.join("work.bundle")).unwrap();
        fs::write(out.join("work.bundle"), "too much for it").unwrap();
        assert!(matches!(read_work_bundle(out, 10), Err(WorkspaceError::TooLarge(10))));
        let taken = read_work_bundle(out, 100).unwrap().unwrap();
        assert_eq!((taken.commit, taken.bundle.bytes), ("ab".repeat(20), 15));
    }
}
