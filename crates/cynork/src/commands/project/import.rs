//! `cynork project import`: uploads a local repository as a git bundle.

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
    client::ApiRequest,
    context::CliContext,
    failure::{CliError, CliErrorKind, Result},
    input,
    names::ProjectSelector,
    operations,
    terminal::TextStyle,
};

/// Timeout of the upload of a repository.
const UPLOAD_TIMEOUT: Duration = Duration::from_mins(20);

#[derive(Args)]
pub(crate) struct ImportArgs {
    /// Repository or git bundle; `-` reads a bundle from standard input.
    #[arg(default_value = ".")]
    path: PathBuf,
    /// Default branch of the project; defaults to `main`, `master` or the first branch.
    #[arg(long)]
    branch: Option<String>,
    #[command(flatten)]
    place: ProjectSelector,
}

impl ImportArgs {
    pub(crate) async fn run(self, context: &CliContext) -> Result<()> {
        // A bundle is not inside a repository.
        let place = if self.path.is_dir() { self.path.as_path() } else { Path::new(".") };
        let project = context.require_project_at(self.place.project, place)?;
        let branch = self.branch.or_else(|| current_branch(&self.path));
        let bytes = load_bundle(&self.path)?;
        let call = ApiRequest::with_path_params(operations::IMPORT_REPOSITORY, [&project])
            .with_query("branch", branch)
            .with_file_body(bytes, "application/x-git-bundle");
        let value: Value = context.client.send_with_timeout(&call, UPLOAD_TIMEOUT).await?;
        context.show_answer(
            &value,
            |it: &RepositoryView| vec![it.head.clone()],
            |it, look| {
                let commit = it.head.get(..10).unwrap_or(&it.head);
                let tick = look.paint.apply_style(TextStyle::Green, "✓");
                format!(
                    "{tick} {project} has the repository; work starts from {} at {commit}",
                    it.default_branch
                )
            },
        )
    }
}

/// Returns whether a file starts with the header of a bundle.
fn is_bundle(path: &Path) -> bool {
    let mut begin = [0; 16];
    let read = File::open(path).and_then(|mut file| file.read(&mut begin));
    read.is_ok()
        && begin.starts_with(b"# v")
        && begin.get(4..).is_some_and(|it| it.starts_with(b" git bundle"))
}

/// Returns the checked-out branch of a working copy, which is the default.
pub(super) fn current_branch(path: &Path) -> Option<String> {
    if !path.is_dir() {
        return None;
    }
    let said = run_git(path, &["symbolic-ref", "--quiet", "--short", "HEAD"]).ok()?;
    let branch = String::from_utf8(said).ok()?;
    Some(branch.trim().to_owned()).filter(|branch| !branch.is_empty())
}

/// Creates a bundle of every branch of a repository, or reads the given bundle.
fn load_bundle(path: &Path) -> Result<Vec<u8>> {
    if path.as_os_str() == "-" || is_bundle(path) {
        return input::read_file_bytes(&path.to_string_lossy());
    }
    if !path.is_dir() {
        let what = format!("{} is neither a repository nor a git bundle", path.display());
        return Err(
            CliError::new(CliErrorKind::Usage, what).with_fix("name the directory of a repository")
        );
    }
    // Written to standard output: no file is left behind.
    run_git(path, &["bundle", "create", "--quiet", "-", "--branches"])
}

fn run_git(path: &Path, words: &[&str]) -> Result<Vec<u8>> {
    let output = Command::new("git")
        .arg("-C")
        .arg(path)
        .args(words)
        .stdin(Stdio::null())
        .stderr(Stdio::piped())
        .output()
        .map_err(|error| {
            CliError::new(CliErrorKind::Usage, format!("git cannot be started: {error}"))
                .with_fix("install git")
        })?;
    if output.status.success() {
        return Ok(output.stdout);
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let said = said.lines().next().unwrap_or_default().to_owned();
    Err(CliError::invalid_input(format!("git cannot bundle {}: {said}", path.display()))
        .with_fix("is it a repository with at least one commit?"))
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
            run_git(place.path(), words).unwrap();
        }
        place
    }

    #[test]
    fn a_repository_becomes_a_bundle_and_a_bundle_stays_one() {
        let place = repository();
        let bytes = load_bundle(place.path()).unwrap();
        assert!(bytes.starts_with(b"# v"));
        assert_eq!(current_branch(place.path()).unwrap(), "trunk");
        let file = place.path().join("a.bundle");
        std::fs::write(&file, &bytes).unwrap();
        assert_eq!(load_bundle(&file).unwrap(), bytes);
        assert_eq!(current_branch(&file), None);
    }

    #[test]
    fn what_is_no_repository_is_not_brought() {
        let place = tempfile::tempdir().unwrap();
        let file = place.path().join("a.txt");
        std::fs::write(&file, "text").unwrap();
        assert_eq!(load_bundle(&file).unwrap_err().kind, CliErrorKind::Usage);
        let empty = tempfile::tempdir().unwrap();
        run_git(empty.path(), &["init", "--quiet"]).unwrap();
        assert_eq!(load_bundle(empty.path()).unwrap_err().kind, CliErrorKind::Invalid);
    }
}
