//! `cynork project import`: a repository of this machine as a git bundle.

use std::{
    fs::File,
    io::Read as _,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

use clap::Args;
use cynode_wire::nodes::RepositoryView;
use serde_json::Value;

use crate::{
    client::Call,
    context::Context,
    failure::{Failure, Kind, Result},
    given,
    names::In,
    operations,
    terminal::Style,
};

/// How long it may take to send a repository.
const SENDING: Duration = Duration::from_mins(20);

#[derive(Args)]
pub(crate) struct Import {
    /// A repository, or a git bundle of one; `-` is a bundle on standard input.
    #[arg(default_value = ".")]
    path: PathBuf,
    /// The branch that work starts from; `main`, `master` or the first one when it is left out.
    #[arg(long)]
    branch: Option<String>,
    #[command(flatten)]
    place: In,
}

impl Import {
    pub(crate) async fn run(self, context: &Context) -> Result<()> {
        // A bundle is in no repository.
        let place = if self.path.is_dir() { self.path.as_path() } else { Path::new(".") };
        let project = context.project_at(self.place.project, place)?;
        let branch = self.branch.or_else(|| present(&self.path));
        let bytes = bundle(&self.path)?;
        let call = Call::to(operations::IMPORT_REPOSITORY, [&project])
            .query("branch", branch)
            .file(bytes, "application/x-git-bundle");
        let value: Value = context.client.send_slowly(&call, SENDING).await?;
        context.show(
            &value,
            |it: &RepositoryView| vec![it.head.clone()],
            |it, look| {
                let commit = it.head.get(..10).unwrap_or(&it.head);
                let tick = look.paint.dye(Style::Green, "✓");
                format!(
                    "{tick} {project} has the repository; work starts from {} at {commit}",
                    it.default_branch
                )
            },
        )
    }
}

/// Whether a file begins like a bundle.
fn is_bundle(path: &Path) -> bool {
    let mut begin = [0; 16];
    let read = File::open(path).and_then(|mut file| file.read(&mut begin));
    read.is_ok()
        && begin.starts_with(b"# v")
        && begin.get(4..).is_some_and(|it| it.starts_with(b" git bundle"))
}

/// The branch that a working copy is on, which is the one that its owner means.
pub(super) fn present(path: &Path) -> Option<String> {
    if !path.is_dir() {
        return None;
    }
    let said = git(path, &["symbolic-ref", "--quiet", "--short", "HEAD"]).ok()?;
    let branch = String::from_utf8(said).ok()?;
    Some(branch.trim().to_owned()).filter(|branch| !branch.is_empty())
}

/// A bundle of every branch of a repository, or the bundle itself.
fn bundle(path: &Path) -> Result<Vec<u8>> {
    if path.as_os_str() == "-" || is_bundle(path) {
        return given::bytes(&path.to_string_lossy());
    }
    if !path.is_dir() {
        let what = format!("{} is neither a repository nor a git bundle", path.display());
        return Err(Failure::new(Kind::Usage, what).fix("name the directory of a repository"));
    }
    // Written to standard output: nothing is left behind.
    git(path, &["bundle", "create", "--quiet", "-", "--branches"])
}

fn git(path: &Path, words: &[&str]) -> Result<Vec<u8>> {
    let output = Command::new("git")
        .arg("-C")
        .arg(path)
        .args(words)
        .stdin(Stdio::null())
        .stderr(Stdio::piped())
        .output()
        .map_err(|error| {
            Failure::new(Kind::Usage, format!("git cannot be started: {error}")).fix("install git")
        })?;
    if output.status.success() {
        return Ok(output.stdout);
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let said = said.lines().next().unwrap_or_default().to_owned();
    Err(Failure::invalid(format!("git cannot bundle {}: {said}", path.display()))
        .fix("is it a repository with at least one commit?"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn repository() -> tempfile::TempDir {
        let place = tempfile::tempdir().unwrap();
        for words in [
            &["init", "--quiet", "--initial-branch", "trunk"][..],
            &[
                "-c",
                "user.name=a",
                "-c",
                "user.email=a@b",
                "commit",
                "--quiet",
                "--allow-empty",
                "-m",
                "one",
            ],
        ] {
            git(place.path(), words).unwrap();
        }
        place
    }

    #[test]
    fn a_repository_becomes_a_bundle_and_a_bundle_stays_one() {
        let place = repository();
        let bytes = bundle(place.path()).unwrap();
        assert!(bytes.starts_with(b"# v"));
        assert_eq!(present(place.path()).unwrap(), "trunk");
        let file = place.path().join("a.bundle");
        std::fs::write(&file, &bytes).unwrap();
        assert_eq!(bundle(&file).unwrap(), bytes);
        assert_eq!(present(&file), None);
    }

    #[test]
    fn what_is_no_repository_is_not_brought() {
        let place = tempfile::tempdir().unwrap();
        let file = place.path().join("a.txt");
        std::fs::write(&file, "text").unwrap();
        assert_eq!(bundle(&file).unwrap_err().kind, Kind::Usage);
        let empty = tempfile::tempdir().unwrap();
        git(empty.path(), &["init", "--quiet"]).unwrap();
        assert_eq!(bundle(empty.path()).unwrap_err().kind, Kind::Invalid);
    }
}
