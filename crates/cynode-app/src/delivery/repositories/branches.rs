//! Commits, branches, merges and diffs in a repository. A branch only fast-forwards, from the commit that the caller
//! read.

use std::path::Path;

use cynode_core::{delivery::CommitAuthor, ids::ProjectId};
use cynode_wire::delivery::ChangedFile;
use time::OffsetDateTime;
use tokio::io::AsyncWriteExt;

use super::{
    GIT_TIMEOUT, GitLimits, GitProcess, MAX_OUTPUT_BYTES, RepositoryError, RepositoryStore,
    is_commit,
};

/// A commit to be created.
#[derive(Clone, Debug)]
pub(crate) struct NewCommit<'a> {
    /// Id of its tree.
    pub(crate) tree: &'a str,
    /// Ids of its parents.
    pub(crate) parents: &'a [&'a str],
    /// Commit message.
    pub(crate) message: &'a str,
    /// Author and committer.
    pub(crate) author: &'a CommitAuthor,
    /// Time of the commit.
    pub(crate) at: OffsetDateTime,
}

/// Outcome of an attempt to move a branch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum BranchMove {
    /// The branch points at the commit, now or already.
    There,
    /// The branch points at another commit.
    Elsewhere(Option<String>),
}

/// Difference between two commits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CommitDiff {
    /// Unified diff.
    pub(crate) text: String,
    /// Whether the text was truncated.
    pub(crate) truncated: bool,
    /// Whether the diff cannot be applied: the text is incomplete, or git omitted binary files.
    pub(crate) inexact: bool,
}

/// Result of a merge of two histories.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum BranchMerge {
    /// Id of the merged tree.
    Clean(String),
    /// Paths with conflicts.
    Conflict(Vec<String>),
}

/// Makes git sync commits and refs to disk, so that delivered work survives a power loss.
const DURABLE_GIT_ARGS: [&str; 2] = ["-c", "core.fsync=committed,loose-object,reference"];

/// Maximum number of listed files.
const MAX_CHANGED_FILES: usize = 3000;

impl RepositoryStore {
    /// Returns the commit that a branch points at.
    pub(crate) async fn branch_head(
        &self,
        project: ProjectId,
        branch: &str,
    ) -> Result<Option<String>, RepositoryError> {
        let name = format!("refs/heads/{branch}");
        let args = ["rev-parse", "--verify", "--quiet", "--end-of-options", &name];
        let (said, code) = self.run_for_status(&self.path_of(project), &args).await?;
        match code {
            Some(0) => Ok(Some(said.trim().to_owned()).filter(|it| is_commit(it))),
            Some(1) => Ok(None),
            _ => Err(RepositoryError::Failed("git could not read a branch".into())),
        }
    }

    /// Returns the tree of a commit.
    pub(crate) async fn tree_of_commit(
        &self,
        project: ProjectId,
        commit: &str,
    ) -> Result<String, RepositoryError> {
        let name = format!("{commit}^{{tree}}");
        let args = ["rev-parse", "--verify", "--end-of-options", &name];
        Ok(self.run_git(&self.path_of(project), &args).await?.trim().to_owned())
    }

    /// Returns the message of a commit.
    pub(crate) async fn message_of_commit(
        &self,
        project: ProjectId,
        commit: &str,
    ) -> Result<String, RepositoryError> {
        let args = ["show", "--no-patch", "--format=%B", "--end-of-options", commit];
        self.run_git(&self.path_of(project), &args).await
    }

    /// Returns the merge base of two commits.
    pub(crate) async fn merge_base(
        &self,
        project: ProjectId,
        one: &str,
        other: &str,
    ) -> Result<Option<String>, RepositoryError> {
        let (said, code) =
            self.run_for_status(&self.path_of(project), &["merge-base", one, other]).await?;
        match code {
            Some(0) => Ok(Some(said.trim().to_owned()).filter(|it| is_commit(it))),
            Some(1) => Ok(None),
            _ => Err(RepositoryError::Failed("git could not compare two commits".into())),
        }
    }

    /// Returns whether the repository has a commit.
    pub(crate) async fn has_commit(
        &self,
        project: ProjectId,
        commit: &str,
    ) -> Result<bool, RepositoryError> {
        match self.run_for_status(&self.path_of(project), &["cat-file", "-e", commit]).await?.1 {
            Some(0) => Ok(true),
            Some(1) => Ok(false),
            _ => Err(RepositoryError::Failed("git could not look for a commit".into())),
        }
    }

    /// Returns whether the history of a commit contains another commit.
    pub(crate) async fn contains_commit(
        &self,
        project: ProjectId,
        commit: &str,
        earlier: &str,
    ) -> Result<bool, RepositoryError> {
        self.is_ancestor(&self.path_of(project), earlier, commit).await
    }

    /// Creates a commit. All inputs of its id are given, so creating it again gives the same id.
    pub(crate) async fn create_commit(
        &self,
        project: ProjectId,
        new: &NewCommit<'_>,
    ) -> Result<String, RepositoryError> {
        let _place = self.places.acquire().await.map_err(std::io::Error::other)?;
        let at = format!("{} +0000", new.at.unix_timestamp());
        let mut git = Self::git_command(GitLimits::READ, &self.path_of(project));
        for who in ["AUTHOR", "COMMITTER"] {
            git.env(format!("GIT_{who}_NAME"), &new.author.name)
                .env(format!("GIT_{who}_EMAIL"), &new.author.email)
                .env(format!("GIT_{who}_DATE"), &at);
        }
        git.args(DURABLE_GIT_ARGS).args(["commit-tree", new.tree, "-F", "-"]);
        for parent in new.parents {
            git.args(["-p", parent]);
        }
        let mut process = GitProcess::spawn_limited(git.stdin(std::process::Stdio::piped()))?;
        let Some(mut input) = process.take_stdin() else {
            return Err(std::io::Error::other("git has no pipe").into());
        };
        let making = async {
            input.write_all(new.message.as_bytes()).await?;
            drop(input);
            process.collect_output(MAX_OUTPUT_BYTES).await
        };
        let done = tokio::time::timeout(GIT_TIMEOUT, making)
            .await
            .map_err(|_| RepositoryError::Slow)??;
        let commit = String::from_utf8_lossy(&done.stdout).trim().to_owned();
        if done.status.success() && is_commit(&commit) {
            return Ok(commit);
        }
        let said = done.stderr.lines().next().unwrap_or_default();
        Err(RepositoryError::Failed(format!("git: {said}")))
    }

    /// Moves a branch by compare and swap from the expected commit (or from none) to a descendant.
    pub(crate) async fn move_branch(
        &self,
        project: ProjectId,
        branch: &str,
        from: Option<&str>,
        to: &str,
    ) -> Result<BranchMove, RepositoryError> {
        let directory = self.path_of(project);
        let now = self.branch_head(project, branch).await?;
        if now.as_deref() == Some(to) {
            return Ok(BranchMove::There);
        }
        if now.as_deref() != from {
            return Ok(BranchMove::Elsewhere(now));
        }
        if let Some(from) = from
            && !self.is_ancestor(&directory, from, to).await?
        {
            let why = "a branch only moves forward".to_owned();
            return Err(RepositoryError::Refused(why));
        }
        let name = format!("refs/heads/{branch}");
        let nothing = "0".repeat(to.len());
        let args = ["update-ref", "--no-deref", &name, to, from.unwrap_or(&nothing)];
        let moved = self.run_git(&directory, &[&DURABLE_GIT_ARGS[..], &args].concat()).await;
        // A concurrent move may have won, or ours succeeded without a confirmation.
        match (moved, self.branch_head(project, branch).await?) {
            (_, Some(now)) if now == to => Ok(BranchMove::There),
            (Ok(_), now) => Ok(BranchMove::Elsewhere(now)),
            (Err(_), now) if now.as_deref() != from => Ok(BranchMove::Elsewhere(now)),
            (Err(error), _) => {
                self.remove_stale_lock(&directory, &name).await;
                Err(error)
            }
        }
    }

    /// Removes a lock that a killed process left. A move takes milliseconds, so an old lock is an orphan.
    async fn remove_stale_lock(&self, directory: &Path, name: &str) {
        let lock = directory.join(format!("{name}.lock"));
        let age = tokio::fs::metadata(&lock).await.ok().and_then(|it| it.modified().ok());
        if age.and_then(|at| at.elapsed().ok()).is_some_and(|age| age > GIT_TIMEOUT) {
            let _ = tokio::fs::remove_file(lock).await;
        }
    }

    /// Merges two commits without changing any branch.
    pub(crate) async fn merge_trees(
        &self,
        project: ProjectId,
        ours: &str,
        theirs: &str,
    ) -> Result<BranchMerge, RepositoryError> {
        let args =
            ["merge-tree", "--write-tree", "--name-only", "--no-messages", "-z", ours, theirs];
        let args = [&DURABLE_GIT_ARGS[..], &args].concat();
        let (said, code) = self.run_for_status(&self.path_of(project), &args).await?;
        let mut parts = said.split('\0').filter(|part| !part.is_empty());
        let tree = parts.next().unwrap_or_default().trim().to_owned();
        match code {
            Some(0) if is_commit(&tree) => Ok(BranchMerge::Clean(tree)),
            Some(1) => {
                let mut files: Vec<String> = parts.map(str::to_owned).collect();
                files.dedup();
                Ok(BranchMerge::Conflict(files))
            }
            _ => Err(RepositoryError::Failed("git could not put two commits together".into())),
        }
    }

    /// Returns the unified diff of two commits, up to a number of bytes; of one file if it is named.
    pub(crate) async fn diff_commits(
        &self,
        project: ProjectId,
        from: &str,
        to: &str,
        path: Option<&str>,
        most: usize,
    ) -> Result<CommitDiff, RepositoryError> {
        let mut args = vec!["--literal-pathspecs", "diff", "--no-ext-diff", "--no-textconv"];
        args.extend(["--no-color", "--no-renames", "--end-of-options", from, to, "--"]);
        args.extend(path);
        // Extra bytes show that the diff is longer.
        let bytes = u64::try_from(most).unwrap_or(u64::MAX).saturating_add(4);
        let (said, _) = self.read_bytes(&self.path_of(project), &args, bytes).await?;
        Ok(to_commit_diff(&said, most))
    }

    /// Lists the files that differ between two commits.
    pub(crate) async fn list_changed_files(
        &self,
        project: ProjectId,
        from: &str,
        to: &str,
    ) -> Result<(Vec<ChangedFile>, bool), RepositoryError> {
        let args = [
            "diff",
            "--no-ext-diff",
            "--no-textconv",
            "--no-renames",
            "--numstat",
            "-z",
            "--end-of-options",
            from,
            to,
        ];
        let listed =
            self.read_text_prefix(&self.path_of(project), &args, super::MAX_LISTING_BYTES).await?;
        let mut files: Vec<ChangedFile> =
            listed.split('\0').filter_map(parse_changed_file).collect();
        let truncated =
            files.len() > MAX_CHANGED_FILES || listed.len() as u64 >= super::MAX_LISTING_BYTES;
        files.truncate(MAX_CHANGED_FILES);
        Ok((files, truncated))
    }

    /// Runs git and returns its output and exit code, where a failure is an answer.
    async fn run_for_status(
        &self,
        directory: &Path,
        args: &[&str],
    ) -> Result<(String, Option<i32>), RepositoryError> {
        let _place = self.places.acquire().await.map_err(std::io::Error::other)?;
        let mut git = Self::git_command(GitLimits::READ, directory);
        let done = Self::collect_output(GIT_TIMEOUT, git.args(args), MAX_OUTPUT_BYTES).await?;
        Ok((String::from_utf8_lossy(&done.stdout).into_owned(), done.status.code()))
    }
}

/// Converts the output of git to a diff of at most a number of bytes.
fn to_commit_diff(said: &[u8], most: usize) -> CommitDiff {
    let text = String::from_utf8_lossy(said);
    let mut end = text.len().min(most);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    let shown = &text[..end];
    // Content lines have a sign before them, so this line is not content.
    let binary = |line: &str| line.starts_with("Binary files ") && line.ends_with(" differ");
    CommitDiff {
        text: shown.to_owned(),
        truncated: end < text.len(),
        inexact: !said.starts_with(shown.as_bytes()) || shown.lines().any(binary),
    }
}

/// Parses one line of `--numstat`. Binary files have `-` for both numbers.
fn parse_changed_file(line: &str) -> Option<ChangedFile> {
    let mut fields = line.splitn(3, '\t');
    let (insertions, deletions) = (fields.next()?.parse().ok(), fields.next()?.parse().ok());
    Some(ChangedFile { path: fields.next()?.to_owned(), insertions, deletions })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_difference_says_when_it_is_cut_and_when_it_is_not_what_the_files_hold() {
        let shown = |said: &[u8], most: usize| {
            let CommitDiff { text, truncated, inexact } = to_commit_diff(said, most);
            (text, truncated, inexact)
        };
        let exact = |text: &str| (text.to_owned(), false, false);
        for text in ["", "+a\n", "+ä\u{fffd}\n", "+Binary files a and b differ\n"] {
            assert_eq!(shown(text.as_bytes(), 100), exact(text));
        }
        // Cut within a character, which is left out whole.
        assert_eq!(shown("+aä\n".as_bytes(), 3), ("+a".to_owned(), true, false));
        assert_eq!(shown(b"+aa\xc3", 3), ("+aa".to_owned(), true, false));
        assert_eq!(shown(b"+caf\xe9\n", 100), ("+caf\u{fffd}\n".to_owned(), false, true));
        let image = "index 1..2\nBinary files a/x.png and b/x.png differ\n";
        assert_eq!(shown(image.as_bytes(), 100), (image.to_owned(), false, true));
    }

    #[test]
    fn a_changed_file_has_its_numbers_unless_it_is_no_text() {
        let text =
            ChangedFile { path: "src/a\tb.rs".into(), insertions: Some(3), deletions: Some(1) };
        assert_eq!(parse_changed_file("3\t1\tsrc/a\tb.rs"), Some(text));
        let image = ChangedFile { path: "logo.png".into(), insertions: None, deletions: None };
        assert_eq!(parse_changed_file("-\t-\tlogo.png"), Some(image));
        assert_eq!(parse_changed_file(""), None);
    }
}
