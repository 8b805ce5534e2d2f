//! Pinned files: restores the files that checks depend on to their state before the change.

use std::{
    fs,
    io::{self, Read},
    path::Path,
};

use super::{
    GIT_TIMEOUT, WorkspaceError, copy_commits, create_git_dir, git_command, open_plain_file,
    validate_commit,
};
use crate::{
    host::{self, HostCommands},
    store::{self, JobDir, NodeStore},
};

/// Maximum number of bytes that are read of the restore report.
const MAX_PIN_REPORT_BYTES: u64 = 256 * 1024;

/// A pinned file that could not be restored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PinConflict {
    /// Path of the file in the workspace.
    pub(crate) path: String,
    /// Reason of the failure.
    pub(crate) reason: String,
}

/// Creates the source of pinned files: a repository beside the workspace, which no check ever sees.
pub(crate) async fn create_pin_source(
    host: &HostCommands,
    store: &NodeStore,
    dir: &JobDir,
    mirror: &Path,
    from: &str,
    paths: &[String],
) -> Result<(), WorkspaceError> {
    let from = validate_commit(from)?;
    let source = dir.source_dir();
    store.move_to_trash(&source)?;
    store::create_private_dir(&source)?;
    // The node writes before git does: it never follows what git left.
    let lines: String = paths.iter().map(|path| format!("{path}\n")).collect();
    let write = || {
        fs::write(source.join("paths"), lines)?;
        fs::create_dir_all(source.join("info"))?;
        // Files are restored byte for byte: attributes of the change must not alter them.
        fs::write(
            source.join("info/attributes"),
            "* -text !eol !ident !filter !working-tree-encoding\n",
        )
    };
    write().map_err(WorkspaceError::Out)?;
    create_git_dir(host, &source)?;
    let mut init = git_command(host);
    init.args(["init", "--quiet", "--bare", "--template="]).arg(&source);
    host::run_program("git init", init, GIT_TIMEOUT).await?;
    let wanted = [format!("{from}:refs/heads/pinned")];
    copy_commits(host, mirror, &source, &["--depth=1"], &wanted).await
}

/// Builds the command line of the program that restores pinned files, inside a sandbox with the source.
pub(crate) fn pin_restore_argv(from: &str) -> Result<Vec<String>, WorkspaceError> {
    let words = ["/bin/sh", "-eu", "-c", PIN_RESTORE_SCRIPT, "pin", validate_commit(from)?];
    Ok(words.map(str::to_owned).to_vec())
}

// Workspace and source are new: only git has written to them. The index is in the source.
const PIN_RESTORE_SCRIPT: &str = r#"
from=$1
export GIT_DIR=/source GIT_WORK_TREE=/work
cd /work
while IFS= read -r path; do
    printf '%s:%s\n' "$from" "$path"
done < /source/paths | git cat-file --batch-check='%(objecttype)' > /source/types
while IFS= read -r path <&3 && IFS= read -r type <&4; do
    [ "$type" != blob ] || printf '%s\n' "$path"
done 3< /source/paths 4< /source/types > /source/files
git read-tree "$from"
: > /source/now
: > /out/spoilt
while IFS= read -r path; do
    if [ -d "$path" ] && [ ! -L "$path" ]; then
        printf '%s\n' "$path" >> /out/spoilt
    else
        printf '%s\n' "$path" >> /source/now
    fi
done < /source/files
git checkout-index --force --index --stdin < /source/now
"#;

/// Reads which files could not be restored.
pub(crate) fn read_pin_conflicts(out: &Path) -> Result<Vec<PinConflict>, WorkspaceError> {
    let mut text = String::new();
    let read = open_plain_file(&out.join("spoilt"))
        .and_then(|file| file.take(MAX_PIN_REPORT_BYTES + 1).read_to_string(&mut text));
    if read.map_err(WorkspaceError::Out)? as u64 > MAX_PIN_REPORT_BYTES {
        return Err(WorkspaceError::Out(io::Error::other("there is too much of it")));
    }
    let reason = "it was a file before the change and is a directory now";
    let each = text.lines();
    Ok(each.map(|path| PinConflict { path: path.to_owned(), reason: reason.to_owned() }).collect())
}
