//! Reads the files of a commit in bulk, for memory. Objects are named by id, so that no path becomes an argument of git.

use std::process::Stdio;

use cynode_core::ids::ProjectId;
use cynode_forge::git_process::GitLimits;

use super::{RepositoryError, RepositoryStore, classify_failure, git_output::is_commit};

/// Maximum number of bytes that are read of a list of all files.
const MAX_BLOB_LISTING_BYTES: u64 = 32 * 1024 * 1024;

/// Mode of a symbolic link in a tree.
const SYMLINK_MODE: &str = "120000";

/// Maximum number of characters of the name of a commit or branch.
const MAX_REVISION_CHARS: usize = 200;

/// A file of a commit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TreeBlob {
    /// Path of the file.
    pub(crate) path: String,
    /// Id of its content.
    pub(crate) object: String,
    /// Size of its content.
    pub(crate) bytes: u64,
}

impl RepositoryStore {
    /// Returns the full id of a commit or of the head of a branch, or `None` if there is none.
    pub(crate) async fn find_revision(
        &self,
        project: ProjectId,
        name: &str,
    ) -> Result<Option<String>, RepositoryError> {
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '/' | '-');
        if name.chars().count() > MAX_REVISION_CHARS || !name.chars().all(plain) {
            return Ok(None);
        }
        let asked = if is_commit(name) {
            format!("{name}^{{commit}}\n")
        } else {
            format!("refs/heads/{name}^{{commit}}\n")
        };
        let told = self.query_objects(&self.path_of(project), asked, "%(objectname)").await?;
        Ok(told.lines().next().filter(|line| is_commit(line)).map(str::to_owned))
    }

    /// Lists the files of a commit, without links and submodules. A commit with too many is refused.
    pub(crate) async fn list_blobs(
        &self,
        project: ProjectId,
        commit: &str,
    ) -> Result<Vec<TreeBlob>, RepositoryError> {
        let args = ["ls-tree", "-r", "-l", "-z", "--full-tree", commit];
        let directory = self.path_of(project);
        let (listed, whole) = self.read_text(&directory, &args, MAX_BLOB_LISTING_BYTES).await?;
        if !whole {
            return Err(RepositoryError::OverLimit("the list of its files is too long".into()));
        }
        Ok(parse_blob_listing(&listed))
    }

    /// Returns the contents of blobs in the order of their ids; `None` for one that is not there. The caller bounds their sizes.
    pub(crate) async fn read_blobs(
        &self,
        project: ProjectId,
        objects: &[&str],
    ) -> Result<Vec<Option<Vec<u8>>>, RepositoryError> {
        let directory = self.path_of(project);
        let asked: String = objects.iter().map(|object| format!("{object}\n")).collect();
        let _place = self.places.acquire().await.map_err(std::io::Error::other)?;
        let mut git = Self::git_command(GitLimits::READ, &directory);
        git.args(["cat-file", "--batch", "--buffer"]);
        let done = Self::feed_process(git.stdin(Stdio::piped()), asked).await?;
        if !done.is_complete || !done.status.success() {
            return Err(classify_failure(&done, "git could not read the repository"));
        }
        let contents = parse_blob_contents(&done.stdout);
        if contents.len() != objects.len() {
            return Err(RepositoryError::Failed("git could not read the repository".into()));
        }
        Ok(contents)
    }
}

/// Parses the output of `git ls-tree -r -l -z`.
fn parse_blob_listing(listed: &str) -> Vec<TreeBlob> {
    let entries = listed.split('\0').filter_map(|line| {
        let (facts, path) = line.split_once('\t')?;
        let mut facts = facts.split_ascii_whitespace();
        let (mode, kind, object) = (facts.next()?, facts.next()?, facts.next()?);
        let bytes = facts.next()?.parse().ok()?;
        let is_file = kind == "blob" && mode != SYMLINK_MODE && is_commit(object);
        is_file.then(|| TreeBlob { path: path.to_owned(), object: object.to_owned(), bytes })
    });
    entries.collect()
}

/// Parses the output of `git cat-file --batch`.
fn parse_blob_contents(mut output: &[u8]) -> Vec<Option<Vec<u8>>> {
    let mut contents = Vec::new();
    while let Some(end) = output.iter().position(|byte| *byte == b'\n') {
        let (head, rest) = output.split_at(end);
        let rest = rest.get(1..).unwrap_or_default();
        let head = String::from_utf8_lossy(head);
        let size = head.rsplit(' ').next().and_then(|size| size.parse::<usize>().ok());
        let (Some(size), true) = (size, head.contains(" blob ")) else {
            contents.push(None);
            output = rest;
            continue;
        };
        let Some(content) = rest.get(..size) else { break };
        contents.push(Some(content.to_vec()));
        // A line break follows the content.
        output = rest.get(size.saturating_add(1)..).unwrap_or_default();
    }
    contents
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_and_submodules_are_no_files() {
        let (a, b) = ("a1".repeat(20), "b2".repeat(20));
        let listed = format!(
            "100644 blob {a}      12\tdocs/a b.md\0120000 blob {b}       3\tlink\0160000 commit {b}       -\tmodule\0100755 blob {b}       0\trun.sh\0"
        );
        let found = parse_blob_listing(&listed);
        let files: Vec<_> = found.iter().map(|it| (it.path.as_str(), it.bytes)).collect();
        assert_eq!(files, [("docs/a b.md", 12), ("run.sh", 0)]);
    }

    #[test]
    fn contents_may_hold_anything_and_one_that_is_missing_is_none() {
        let output = b"a1 blob 6\none\ntw\nb2 missing\nc3 blob 0\n\nd4 blob 3\n\0\xff\n\n";
        let found = parse_blob_contents(output);
        let wanted: Vec<Option<Vec<u8>>> =
            vec![Some(b"one\ntw".to_vec()), None, Some(Vec::new()), Some(b"\0\xff\n".to_vec())];
        assert_eq!(found, wanted);
        assert_eq!(parse_blob_contents(b"a1 blob 60\ncut off"), Vec::<Option<Vec<u8>>>::new());
    }
}
