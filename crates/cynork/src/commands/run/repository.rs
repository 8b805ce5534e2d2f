//! The repository that work is asked for in: which project it is, and what the installation lacks of it.

use std::{
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
    time::Duration,
};

use cynode_core::names::{ProjectSlug, Title};
use cynode_wire::{nodes::RepositoryView, projects::ProjectView};
use serde_json::json;

use crate::{
    client::Call,
    context::Context,
    failure::{Failure, Kind, Result},
    operations,
    terminal::{clean, shown},
};

/// The key in the repository's own configuration that says which project it is.
const PROJECT: &str = "cynork.project";

/// The key that says which commit was brought last.
const BROUGHT: &str = "cynork.brought";

/// How long it may take to send a repository.
const SENDING: Duration = Duration::from_mins(20);

/// How often it is sent when nobody answers.
const TRIES: u32 = 5;

/// How many projects of a name are looked at before one is made.
const MOST_NAMES: u32 = 20;

/// A working copy.
#[derive(Debug)]
pub(super) struct Repository {
    root: PathBuf,
}

/// What is to be worked on.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Work {
    pub(super) branch: String,
    pub(super) head: String,
    /// What is not committed, and so not taken.
    pub(super) left: Vec<String>,
}

/// What was done so that the installation has the commits.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Brought {
    /// It had them.
    Known,
    /// It has more than this branch has.
    Ahead(String),
    /// They were sent; so many bytes.
    Sent(usize),
}

/// Runs git as the person would.
fn git(path: &Path, arguments: &[&str]) -> Result<Output> {
    let mut command = Command::new("git");
    command.arg("-C").arg(path).args(arguments).env("LC_ALL", "C").stdin(Stdio::null());
    command.output().map_err(|error| {
        Failure::new(Kind::Usage, format!("git cannot be run: {error}"))
            .fix("install git, or name a project that has its repository with --project")
    })
}

impl Repository {
    /// The repository that a path is in, if it is in one.
    pub(super) fn find(path: &Path) -> Result<Option<Self>> {
        if !path.is_dir() {
            let what = format!("{} is no directory", path.display());
            return Err(Failure::new(Kind::Usage, what));
        }
        let output = git(path, &["rev-parse", "--show-toplevel"])?;
        if output.status.success() {
            let root = String::from_utf8_lossy(&output.stdout).trim_end().to_owned();
            return Ok(Some(Self { root: root.into() }));
        }
        let words = String::from_utf8_lossy(&output.stderr);
        if words.contains("not a git repository") {
            return Ok(None);
        }
        Err(refused(path, &words))
    }

    /// Runs git and gives what it says.
    fn said(&self, arguments: &[&str]) -> Result<String> {
        let output = git(&self.root, arguments)?;
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).trim_end().to_owned());
        }
        Err(refused(&self.root, &String::from_utf8_lossy(&output.stderr)))
    }

    fn holds(&self, arguments: &[&str]) -> Result<bool> {
        Ok(git(&self.root, arguments)?.status.success())
    }

    /// What people call it: the name of its directory.
    pub(super) fn name(&self) -> String {
        let name = self.root.file_name().map(|name| name.to_string_lossy().into_owned());
        clean(&name.unwrap_or_default()).replace('\n', " ").trim().to_owned()
    }

    /// What is to be worked on: the branch that is checked out, at its commit.
    pub(super) fn work(&self) -> Result<Work> {
        let branch = self.said(&["symbolic-ref", "--quiet", "--short", "HEAD"]).map_err(|_| {
            Failure::new(Kind::Usage, "no branch is checked out, so there is nothing to work on")
                .fix("check one out: `git switch main`, or `git switch -c NAME`")
        })?;
        let head =
            self.said(&["rev-parse", "--verify", "--quiet", "HEAD^{commit}"]).map_err(|_| {
                Failure::new(Kind::Usage, format!("{branch} has no commit yet"))
                    .fix("commit what is there: `git add -A && git commit -m Start`")
            })?;
        if self.said(&["rev-parse", "--is-shallow-repository"])? == "true" {
            let what = "this copy of the repository has only its last commits";
            return Err(
                Failure::new(Kind::Usage, what).fix("fetch the rest: `git fetch --unshallow`")
            );
        }
        let listed = git(&self.root, &["status", "--porcelain=v1", "-z"])?;
        let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
        Ok(Work { branch, head, left: untaken(&listed) })
    }

    fn knows(&self, commit: &str) -> Result<bool> {
        self.holds(&["cat-file", "-e", &format!("{commit}^{{commit}}")])
    }

    /// Whether a commit is in the history of another, or the same.
    fn follows(&self, before: &str, after: &str) -> Result<bool> {
        self.holds(&["merge-base", "--is-ancestor", before, after])
    }

    fn configured(&self, key: &str) -> Option<String> {
        let name = self.said(&["config", "--get", key]).ok()?;
        (!name.is_empty()).then_some(name)
    }

    fn remember(&self, key: &str, value: &str) -> Result<()> {
        self.said(&["config", "--local", key, value]).map(|_| ())
    }

    /// The branch and all that it builds on, without what is known already.
    fn bundle(&self, branch: &str, known: Option<&str>) -> Result<Vec<u8>> {
        let (name, except) = (format!("refs/heads/{branch}"), known.map(|it| format!("^{it}")));
        let mut arguments = vec!["bundle", "create", "--quiet", "-", name.as_str()];
        arguments.extend(except.as_deref());
        let output = git(&self.root, &arguments)?;
        if output.status.success() {
            return Ok(output.stdout);
        }
        Err(refused(&self.root, &String::from_utf8_lossy(&output.stderr)))
    }

    /// The project that this repository is: the one that is named, the one that is remembered, or one of its name, made if there is
    /// none. Whether it was made.
    pub(super) async fn project(
        &self,
        context: &Context,
        named: Option<&str>,
    ) -> Result<(ProjectView, bool)> {
        if let Some(named) = named {
            let found = found(context, named).await?.ok_or_else(|| {
                Failure::new(Kind::NotFound, format!("there is no project {named} for you"))
                    .fix(format!("make it with `cynork project create {named}`, or leave --project out: one is made for this repository"))
            })?;
            self.remember(PROJECT, &found.id.to_string())?;
            return Ok((found, false));
        }
        if let Some(kept) = self.configured(PROJECT)
            && let Some(found) = found(context, &kept).await?
        {
            return Ok((found, false));
        }
        let name = self.name();
        for number in 1..=MOST_NAMES {
            let slug = slug(&name, number)?;
            let there = match found(context, slug.as_str()).await? {
                Some(there) => self.is(context, &there).await?.then_some((there, false)),
                None => make(context, &slug, &name).await?.map(|made| (made, true)),
            };
            if let Some((project, new)) = there {
                self.remember(PROJECT, &project.id.to_string())?;
                return Ok((project, new));
            }
        }
        Err(Failure::new(Kind::Conflict, format!("every project called {name} is another one"))
            .fix("name a project with --project"))
    }

    /// Whether a project is this repository: it has none yet, or one whose commit is here.
    async fn is(&self, context: &Context, project: &ProjectView) -> Result<bool> {
        match stored(context, project).await? {
            None => Ok(true),
            Some(stored) => self.knows(&stored.head),
        }
    }

    /// Brings the commits that the installation lacks.
    pub(super) async fn bring(
        &self,
        context: &Context,
        project: &ProjectView,
        work: &Work,
    ) -> Result<Brought> {
        let stored = stored(context, project).await?;
        let mut known = None;
        if let Some(stored) = stored {
            let here = self.knows(&stored.head)?;
            let brought = self.configured(BROUGHT).as_deref() == Some(work.head.as_str());
            let same = stored.default_branch == work.branch;
            let lacks = here && !self.follows(&work.head, &stored.head)?;
            match (same, here) {
                (true, _) if stored.head == work.head => {
                    self.remember(BROUGHT, &work.head)?;
                    return Ok(Brought::Known);
                }
                (true, true) if !lacks => return Ok(Brought::Ahead(stored.head)),
                (true, true) if !self.follows(&stored.head, &work.head)? => return Err(apart()),
                // What it has came later than what was brought.
                (true, false) if brought => return Ok(Brought::Ahead(stored.head)),
                (true, false) => return Err(apart()),
                (true | false, _) => {}
            }
            // What is known need not be sent, unless nothing would be left.
            known = lacks.then_some(stored.head);
        }
        let bundle = self.bundle(&work.branch, known.as_deref())?;
        let bytes = bundle.len();
        let call = Call::to(operations::IMPORT_REPOSITORY, [project.id.to_string()])
            .query("branch", Some(&work.branch))
            .file(bundle, "application/x-git-bundle");
        import(context, &call).await?;
        self.remember(BROUGHT, &work.head)?;
        Ok(Brought::Sent(bytes))
    }
}

/// Sends it, again while nobody answers: sent twice, nothing changes.
async fn import(context: &Context, call: &Call) -> Result<RepositoryView> {
    let mut turn = tokio::time::interval(Duration::from_secs(1));
    let mut tries = 0;
    loop {
        turn.tick().await;
        tries += 1;
        match context.client.send_slowly(call, SENDING).await {
            Err(failure) if failure.may_pass() && tries < TRIES => {}
            Err(failure) if failure.detail.contains("fast-forward") => return Err(apart()),
            other => return other,
        }
    }
}

/// Branches only move forward, so a branch that lacks something of the project's cannot be brought.
fn apart() -> Failure {
    let what = "the project has commits that this branch does not have";
    Failure::new(Kind::Conflict, what).fix(
        "take them in first (`git pull` where there is a forge), work on a branch of another name, or start from what the project has with --as-is",
    )
}

fn refused(root: &Path, words: &str) -> Failure {
    let words = shown(words);
    let words = words.lines().find(|line| !line.trim().is_empty()).unwrap_or("it said nothing");
    Failure::new(Kind::Usage, format!("git refused in {}: {}", root.display(), words.trim()))
}

async fn found(context: &Context, named: &str) -> Result<Option<ProjectView>> {
    missing(context.client.send(&Call::to(operations::GET_PROJECT, [named])).await)
}

async fn stored(context: &Context, project: &ProjectView) -> Result<Option<RepositoryView>> {
    let call = Call::to(operations::GET_REPOSITORY, [project.id.to_string()]);
    missing(context.client.send(&call).await)
}

/// Nothing in place of what is not there.
fn missing<T>(answer: Result<T>) -> Result<Option<T>> {
    match answer {
        Ok(found) => Ok(Some(found)),
        Err(failure) if failure.kind == Kind::NotFound => Ok(None),
        Err(failure) => Err(failure),
    }
}

/// Makes a project; nothing when somebody has one of that name.
async fn make(context: &Context, slug: &ProjectSlug, name: &str) -> Result<Option<ProjectView>> {
    let title = name.parse::<Title>().map_or_else(|_| slug.to_string(), |title| title.to_string());
    let body = json!({ "slug": slug, "title": title });
    let key = format!("{:032x}", rand::random::<u128>());
    let call = Call::to(operations::CREATE_PROJECT, [""; 0]).body(&body).key(key);
    match context.client.for_a_while(&call).await {
        Ok(made) => Ok(Some(made)),
        Err(failure) if failure.kind == Kind::Conflict => Ok(None),
        Err(failure) => Err(failure),
    }
}

/// A name for URLs from the name of a directory, with a number from the second on.
fn slug(name: &str, number: u32) -> Result<ProjectSlug> {
    let words = name.to_lowercase();
    let words = words.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
    let mut slug = words.collect::<Vec<_>>().join("-");
    if !slug.starts_with(|c: char| c.is_ascii_lowercase()) {
        slug = format!("project-{slug}");
    }
    slug.truncate(56);
    let slug = slug.trim_end_matches('-');
    let slug = if number > 1 { format!("{slug}-{number}") } else { slug.to_owned() };
    slug.parse().map_err(|error| Failure::internal(format!("no name for the project: {error}")))
}

/// The files that `git status` names, each once.
fn untaken(listed: &str) -> Vec<String> {
    let mut names = Vec::new();
    let mut fields = listed.split('\0');
    while let Some(field) = fields.next() {
        let Some((how, name)) = field.split_at_checked(3) else { continue };
        names.push(shown(name).replace('\n', " "));
        // What was renamed has its old name behind it.
        if how.starts_with(['R', 'C']) {
            fields.next();
        }
    }
    names
}

#[cfg(test)]
mod tests;
