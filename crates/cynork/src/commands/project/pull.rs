//! `cynork project pull` and `clone`: fetch a project with git itself.

use std::{
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use clap::Args;
use cynode_wire::nodes::RepositoryView;
use secrecy::ExposeSecret;
use serde_json::json;

use super::import::current_branch;
use crate::{
    client::ApiRequest,
    context::CliContext,
    failure::{CliError, CliErrorKind, Result},
    names::ProjectSelector,
    operations,
};

#[derive(Args)]
pub(crate) struct PullArgs {
    /// Working copy; its branch must be checked out.
    #[arg(default_value = ".")]
    path: PathBuf,
    /// Branch to fast-forward; defaults to the project's default branch.
    #[arg(long)]
    branch: Option<String>,
    #[command(flatten)]
    place: ProjectSelector,
}

#[derive(Args)]
pub(crate) struct CloneArgs {
    /// Project, by name or id.
    project: String,
    /// Target directory; defaults to the project's name.
    path: Option<PathBuf>,
}

impl PullArgs {
    pub(crate) async fn run(self, context: &CliContext) -> Result<()> {
        let project = context.require_project_at(self.place.project, &self.path)?;
        let (address, branch) = resolve_git_remote(context, &project).await?;
        let branch = self.branch.unwrap_or(branch);
        ensure_on_branch(&self.path, &branch)?;
        let before = head_commit(&self.path);
        run_git_with_session(
            context,
            &self.path,
            &["pull", "--quiet", "--ff-only", "--no-tags", &address, &branch],
        )?;
        context
            .client
            .log_call(&ApiRequest::with_path_params(operations::PROJECT_PACK, [&project]));
        let now = head_commit(&self.path);
        let value = json!({ "branch": branch, "before": before, "head": now });
        let commit = now.get(..10).unwrap_or(&now);
        let words = if before == now {
            format!("{branch} is at {commit} already")
        } else {
            format!("{branch} is at {commit} now")
        };
        context.out.print_success(&value, &words)
    }
}

impl CloneArgs {
    pub(crate) async fn run(self, context: &CliContext) -> Result<()> {
        let (address, branch) = resolve_git_remote(context, &self.project).await?;
        let path = self.path.unwrap_or_else(|| PathBuf::from(&self.project));
        let into = path.to_string_lossy().into_owned();
        let here = Path::new(".");
        run_git_with_session(
            context,
            here,
            &["clone", "--quiet", "--branch", &branch, "--", &address, &into],
        )?;
        context
            .client
            .log_call(&ApiRequest::with_path_params(operations::PROJECT_PACK, [&self.project]));
        // The address follows from the project; a copy in git's configuration would become stale.
        run_git_with_session(context, &path, &["config", "cynork.project", &self.project])?;
        let value = json!({ "path": into, "branch": branch, "head": head_commit(&path) });
        context.out.print_success(&value, &format!("{into} has {branch} of {}", self.project))
    }
}

/// Returns the git URL of a project, and its branch. The request comes first, so that a missing permission is reported in our
/// words.
async fn resolve_git_remote(context: &CliContext, project: &str) -> Result<(String, String)> {
    let call = ApiRequest::with_path_params(operations::GET_REPOSITORY, [project]);
    let repository: RepositoryView = context.client.send(&call).await?;
    let call = ApiRequest::with_path_params(operations::PROJECT_REFS, [project])
        .with_query("service", Some("git-upload-pack"));
    context.client.open_response(&call, None).await?;
    let address =
        format!("{}/v1/projects/{}/git", context.client.base_url(), repository.project_id);
    Ok((address, repository.default_branch))
}

/// Checks that a working copy is on the branch that is pulled: a pull merges into the checked-out branch.
fn ensure_on_branch(path: &Path, branch: &str) -> Result<()> {
    let here = match current_branch(path) {
        Some(here) if here == branch => return Ok(()),
        Some(here) => format!("{here} is checked out in {}, not {branch}", path.display()),
        None => format!("no branch is checked out in {}", path.display()),
    };
    Err(CliError::new(CliErrorKind::Conflict, format!("{here}; nothing was done"))
        .with_fix(format!("`git switch {branch}` first, or name another branch with --branch")))
}

/// Returns the head commit of a working copy.
fn head_commit(path: &Path) -> String {
    let said = Command::new("git").arg("-C").arg(path).args(["rev-parse", "HEAD"]).output();
    let said = said.map(|it| it.stdout).unwrap_or_default();
    String::from_utf8_lossy(&said).trim().to_owned()
}

/// Runs git with the session token, which is in no argument and in no file.
fn run_git_with_session(context: &CliContext, path: &Path, words: &[&str]) -> Result<()> {
    let mut git = Command::new("git");
    git.arg("-C").arg(path).args(words).stdin(Stdio::null()).env("GIT_TERMINAL_PROMPT", "0");
    if let Some(token) = context.client.session_token() {
        git.env("GIT_CONFIG_COUNT", "1")
            .env("GIT_CONFIG_KEY_0", format!("http.{}/.extraHeader", context.client.base_url()))
            .env("GIT_CONFIG_VALUE_0", format!("Authorization: Bearer {}", token.expose_secret()));
    }
    if let Some(authority) = context.client.ca_file() {
        git.env("GIT_SSL_CAINFO", authority);
    }
    let output = git.output().map_err(|error| {
        CliError::new(CliErrorKind::Usage, format!("git cannot be started: {error}"))
            .with_fix("install git")
    })?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let said =
        said.lines().filter(|line| !line.starts_with("hint:")).collect::<Vec<_>>().join("; ");
    Err(CliError::new(CliErrorKind::Conflict, format!("git did not take it: {said}"))
        .with_fix("is this a working copy of that project, without commits of its own?"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_branch_that_is_checked_out_is_brought_forward() {
        let place = tempfile::tempdir().unwrap();
        let none = ensure_on_branch(place.path(), "main").unwrap_err();
        assert!(none.detail.starts_with("no branch is checked out in "), "{none}");
        let mut git = Command::new("git");
        git.arg("-C").arg(place.path()).args(["init", "--quiet", "--initial-branch", "trunk"]);
        assert!(git.status().unwrap().success());
        assert_eq!(ensure_on_branch(place.path(), "trunk"), Ok(()));
        let other = ensure_on_branch(place.path(), "main").unwrap_err();
        let what = format!(
            "trunk is checked out in {}, not main; nothing was done",
            place.path().display()
        );
        assert_eq!((other.kind, other.detail), (CliErrorKind::Conflict, what));
    }
}
