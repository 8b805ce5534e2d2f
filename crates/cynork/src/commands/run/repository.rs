//! The local repository of `cynork run`: its project, and the commits that the installation lacks.

use std::{
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
    time::Duration,
};

use cynode_core::names::{ProjectSlug, Title};
use cynode_wire::{nodes::RepositoryView, tasks::projects::ProjectView};
use serde_json::json;

use crate::{
    client::ApiRequest,
    context::CliContext,
    failure::{CliError, CliErrorKind, Result},
    operations,
    terminal::{escape_for_terminal, sanitize_text},
};

/// The key in the repository's own configuration that names its project.
const PROJECT_CONFIG_KEY: &str = "cynork.project";

/// The key that names the last uploaded commit.
const IMPORTED_CONFIG_KEY: &str = "cynork.brought";

/// Timeout of the upload of a repository.
const UPLOAD_TIMEOUT: Duration = Duration::from_mins(20);

/// Maximum number of upload attempts.
const MAX_UPLOAD_ATTEMPTS: u32 = 5;

/// Maximum number of candidate names before a project is created.
const MAX_PROJECT_NAMES: u32 = 20;

/// A working copy.
#[derive(Debug)]
pub(super) struct WorkingCopy {
    root: PathBuf,
}

/// The branch to work on.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct CheckedOutBranch {
    pub(super) branch: String,
    pub(super) head: String,
    /// Uncommitted files, which are not uploaded.
    pub(super) left: Vec<String>,
}

/// Result of the upload.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ImportOutcome {
    /// The installation already had the commits.
    Known,
    /// The installation has more commits than this branch.
    Ahead(String),
    /// The commits were uploaded; number of bytes.
    Sent(usize),
}

/// Runs git as the person would.
fn run_git(path: &Path, arguments: &[&str]) -> Result<Output> {
    let mut command = Command::new("git");
    command.arg("-C").arg(path).args(arguments).env("LC_ALL", "C").stdin(Stdio::null());
    command.output().map_err(|error| {
        CliError::new(CliErrorKind::Usage, format!("git cannot be run: {error}"))
            .with_fix("install git, or name a project that has its repository with --project")
    })
}

impl WorkingCopy {
    /// Returns the repository that contains a path, if there is one.
    pub(super) fn find_repository(path: &Path) -> Result<Option<Self>> {
        if !path.is_dir() {
            let what = format!("{} is no directory", path.display());
            return Err(CliError::new(CliErrorKind::Usage, what));
        }
        let output = run_git(path, &["rev-parse", "--show-toplevel"])?;
        if output.status.success() {
            let root = String::from_utf8_lossy(&output.stdout).trim_end().to_owned();
            return Ok(Some(Self { root: root.into() }));
        }
        let words = String::from_utf8_lossy(&output.stderr);
        if words.contains("not a git repository") {
            return Ok(None);
        }
        Err(git_failure(path, &words))
    }

    /// Runs git and returns its output.
    fn git_output(&self, arguments: &[&str]) -> Result<String> {
        let output = run_git(&self.root, arguments)?;
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).trim_end().to_owned());
        }
        Err(git_failure(&self.root, &String::from_utf8_lossy(&output.stderr)))
    }

    fn git_succeeds(&self, arguments: &[&str]) -> Result<bool> {
        Ok(run_git(&self.root, arguments)?.status.success())
    }

    /// Returns the name of its directory.
    pub(super) fn directory_name(&self) -> String {
        let name = self.root.file_name().map(|name| name.to_string_lossy().into_owned());
        sanitize_text(&name.unwrap_or_default()).replace('\n', " ").trim().to_owned()
    }

    /// Returns the checked-out branch and its commit.
    pub(super) fn checked_out_branch(&self) -> Result<CheckedOutBranch> {
        let branch =
            self.git_output(&["symbolic-ref", "--quiet", "--short", "HEAD"]).map_err(|_| {
                CliError::new(
                    CliErrorKind::Usage,
                    "no branch is checked out, so there is nothing to work on",
                )
                .with_fix("check one out: `git switch main`, or `git switch -c NAME`")
            })?;
        let head = self
            .git_output(&["rev-parse", "--verify", "--quiet", "HEAD^{commit}"])
            .map_err(|_| {
                CliError::new(CliErrorKind::Usage, format!("{branch} has no commit yet"))
                    .with_fix("commit what is there: `git add -A && git commit -m Start`")
            })?;
        if self.git_output(&["rev-parse", "--is-shallow-repository"])? == "true" {
            let what = "this copy of the repository has only its last commits";
            return Err(CliError::new(CliErrorKind::Usage, what)
                .with_fix("fetch the rest: `git fetch --unshallow`"));
        }
        let listed = run_git(&self.root, &["status", "--porcelain=v1", "-z"])?;
        let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
        Ok(CheckedOutBranch { branch, head, left: parse_status_paths(&listed) })
    }

    fn has_commit(&self, commit: &str) -> Result<bool> {
        self.git_succeeds(&["cat-file", "-e", &format!("{commit}^{{commit}}")])
    }

    /// Returns whether a commit is an ancestor of another, or the same.
    fn is_ancestor(&self, before: &str, after: &str) -> Result<bool> {
        self.git_succeeds(&["merge-base", "--is-ancestor", before, after])
    }

    fn read_config(&self, key: &str) -> Option<String> {
        let name = self.git_output(&["config", "--get", key]).ok()?;
        (!name.is_empty()).then_some(name)
    }

    fn write_config(&self, key: &str, value: &str) -> Result<()> {
        self.git_output(&["config", "--local", key, value]).map(|_| ())
    }

    /// Creates a bundle of the branch and its history, without the commits that the installation has.
    fn create_bundle(&self, branch: &str, known: Option<&str>) -> Result<Vec<u8>> {
        let (name, except) = (format!("refs/heads/{branch}"), known.map(|it| format!("^{it}")));
        let mut arguments = vec!["bundle", "create", "--quiet", "-", name.as_str()];
        arguments.extend(except.as_deref());
        let output = run_git(&self.root, &arguments)?;
        if output.status.success() {
            return Ok(output.stdout);
        }
        Err(git_failure(&self.root, &String::from_utf8_lossy(&output.stderr)))
    }

    /// Returns the project of this repository: the named one, the remembered one, or one of its name, which is created if there
    /// is none. Also returns whether it was created.
    pub(super) async fn find_or_create_project(
        &self,
        context: &CliContext,
        named: Option<&str>,
    ) -> Result<(ProjectView, bool)> {
        if let Some(named) = named {
            let found = find_project(context, named).await?.ok_or_else(|| {
                CliError::new(CliErrorKind::NotFound, format!("there is no project {named} for you"))
                    .with_fix(format!("make it with `cynork project create {named}`, or leave --project out: one is made for this repository"))
            })?;
            self.write_config(PROJECT_CONFIG_KEY, &found.id.to_string())?;
            return Ok((found, false));
        }
        if let Some(kept) = self.read_config(PROJECT_CONFIG_KEY)
            && let Some(found) = find_project(context, &kept).await?
        {
            return Ok((found, false));
        }
        let name = self.directory_name();
        for number in 1..=MAX_PROJECT_NAMES {
            let slug = derive_slug(&name, number)?;
            let there = match find_project(context, slug.as_str()).await? {
                Some(there) => {
                    self.matches_project(context, &there).await?.then_some((there, false))
                }
                None => create_project(context, &slug, &name).await?.map(|made| (made, true)),
            };
            if let Some((project, new)) = there {
                self.write_config(PROJECT_CONFIG_KEY, &project.id.to_string())?;
                return Ok((project, new));
            }
        }
        Err(CliError::new(
            CliErrorKind::Conflict,
            format!("every project called {name} is another one"),
        )
        .with_fix("name a project with --project"))
    }

    /// Returns whether a project belongs to this repository: it has no repository yet, or its head commit is here.
    async fn matches_project(&self, context: &CliContext, project: &ProjectView) -> Result<bool> {
        match find_stored_repository(context, project).await? {
            None => Ok(true),
            Some(stored) => self.has_commit(&stored.head),
        }
    }

    /// Uploads the commits that the installation lacks.
    pub(super) async fn import_commits(
        &self,
        context: &CliContext,
        project: &ProjectView,
        work: &CheckedOutBranch,
    ) -> Result<ImportOutcome> {
        let stored = find_stored_repository(context, project).await?;
        let mut known = None;
        if let Some(stored) = stored {
            let here = self.has_commit(&stored.head)?;
            let brought =
                self.read_config(IMPORTED_CONFIG_KEY).as_deref() == Some(work.head.as_str());
            let same = stored.default_branch == work.branch;
            let lacks = here && !self.is_ancestor(&work.head, &stored.head)?;
            match (same, here) {
                (true, _) if stored.head == work.head => {
                    self.write_config(IMPORTED_CONFIG_KEY, &work.head)?;
                    return Ok(ImportOutcome::Known);
                }
                (true, true) if !lacks => return Ok(ImportOutcome::Ahead(stored.head)),
                (true, true) if !self.is_ancestor(&stored.head, &work.head)? => {
                    return Err(diverged_failure());
                }
                // The installation's head is newer than the last upload.
                (true, false) if brought => return Ok(ImportOutcome::Ahead(stored.head)),
                (true, false) => return Err(diverged_failure()),
                (true | false, _) => {}
            }
            // Known commits need not be sent, unless the bundle would be empty.
            known = lacks.then_some(stored.head);
        }
        let bundle = self.create_bundle(&work.branch, known.as_deref())?;
        let bytes = bundle.len();
        let call =
            ApiRequest::with_path_params(operations::IMPORT_REPOSITORY, [project.id.to_string()])
                .with_query("branch", Some(&work.branch))
                .with_file_body(bundle, "application/x-git-bundle");
        upload_bundle(context, &call).await?;
        self.write_config(IMPORTED_CONFIG_KEY, &work.head)?;
        Ok(ImportOutcome::Sent(bytes))
    }
}

/// Uploads it, and retries while there is no response: the upload is idempotent.
async fn upload_bundle(context: &CliContext, call: &ApiRequest) -> Result<RepositoryView> {
    let mut turn = tokio::time::interval(Duration::from_secs(1));
    let mut tries = 0;
    loop {
        turn.tick().await;
        tries += 1;
        match context.client.send_with_timeout(call, UPLOAD_TIMEOUT).await {
            Err(failure) if failure.is_transient() && tries < MAX_UPLOAD_ATTEMPTS => {}
            Err(failure) if failure.detail.contains("fast-forward") => {
                return Err(diverged_failure());
            }
            other => return other,
        }
    }
}

/// Returns the error for diverged branches. Branches only move forward, so a branch without the project's newest commits cannot
/// be uploaded.
fn diverged_failure() -> CliError {
    let what = "the project has commits that this branch does not have";
    CliError::new(CliErrorKind::Conflict, what).with_fix(
        "take them in first (`git pull` where there is a forge), work on a branch of another name, or start from what the project has with --no-import",
    )
}

fn git_failure(root: &Path, words: &str) -> CliError {
    let words = escape_for_terminal(words);
    let words = words.lines().find(|line| !line.trim().is_empty()).unwrap_or("it said nothing");
    CliError::new(
        CliErrorKind::Usage,
        format!("git refused in {}: {}", root.display(), words.trim()),
    )
}

async fn find_project(context: &CliContext, named: &str) -> Result<Option<ProjectView>> {
    none_if_missing(
        context.client.send(&ApiRequest::with_path_params(operations::GET_PROJECT, [named])).await,
    )
}

async fn find_stored_repository(
    context: &CliContext,
    project: &ProjectView,
) -> Result<Option<RepositoryView>> {
    let call = ApiRequest::with_path_params(operations::GET_REPOSITORY, [project.id.to_string()]);
    none_if_missing(context.client.send(&call).await)
}

/// Returns `None` if the object does not exist.
fn none_if_missing<T>(answer: Result<T>) -> Result<Option<T>> {
    match answer {
        Ok(found) => Ok(Some(found)),
        Err(failure) if failure.kind == CliErrorKind::NotFound => Ok(None),
        Err(failure) => Err(failure),
    }
}

/// Creates a project; returns `None` if the name is taken.
async fn create_project(
    context: &CliContext,
    slug: &ProjectSlug,
    name: &str,
) -> Result<Option<ProjectView>> {
    let title = name.parse::<Title>().map_or_else(|_| slug.to_string(), |title| title.to_string());
    let body = json!({ "slug": slug, "title": title });
    let key = format!("{:032x}", rand::random::<u128>());
    let call = ApiRequest::with_path_params(operations::CREATE_PROJECT, [""; 0])
        .with_json_body(&body)
        .with_idempotency_key(key);
    match context.client.send_with_retry_timeout(&call).await {
        Ok(made) => Ok(Some(made)),
        Err(failure) if failure.kind == CliErrorKind::Conflict => Ok(None),
        Err(failure) => Err(failure),
    }
}

/// Derives a slug from the name of a directory, with a number from the second attempt on.
fn derive_slug(name: &str, number: u32) -> Result<ProjectSlug> {
    let words = name.to_lowercase();
    let words = words.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
    let mut slug = words.collect::<Vec<_>>().join("-");
    if !slug.starts_with(|c: char| c.is_ascii_lowercase()) {
        slug = format!("project-{slug}");
    }
    slug.truncate(56);
    let slug = slug.trim_end_matches('-');
    let slug = if number > 1 { format!("{slug}-{number}") } else { slug.to_owned() };
    slug.parse()
        .map_err(|error| CliError::internal_error(format!("no name for the project: {error}")))
}

/// Parses the files of `git status`, each once.
fn parse_status_paths(listed: &str) -> Vec<String> {
    let mut names = Vec::new();
    let mut fields = listed.split('\0');
    while let Some(field) = fields.next() {
        let Some((how, name)) = field.split_at_checked(3) else { continue };
        names.push(escape_for_terminal(name).replace('\n', " "));
        // A renamed file is followed by its old name.
        if how.starts_with(['R', 'C']) {
            fields.next();
        }
    }
    names
}

#[cfg(test)]
mod tests;
