//! What every command has: the way to the installation, the way to the person, what is kept.

use std::{
    io::IsTerminal,
    path::Path,
    process::{Command, Stdio},
};

use dialoguer::console::{Key, Term};
use serde_json::Value;

use crate::{
    client::{Call, Client},
    config::{Environment, File},
    failure::{Failure, Kind, Result},
    output::{Form, Output},
};

/// What a command has.
#[derive(Debug)]
pub(crate) struct Context {
    pub(crate) client: Client,
    pub(crate) out: Output,
    pub(crate) file: File,
    pub(crate) environment: Environment,
    /// Every question is answered with yes.
    pub(crate) yes: bool,
}

impl Context {
    /// Asks and reads a value, whatever it is.
    pub(crate) async fn ask(&self, call: &Call) -> Result<Value> {
        self.client.send(call).await
    }

    /// The project that is meant where no path is named: see [`Context::meant`].
    pub(crate) fn project(&self, named: Option<String>) -> Result<String> {
        self.project_at(named, Path::new("."))
    }

    /// The project that is meant with a path.
    pub(crate) fn project_at(&self, named: Option<String>, path: &Path) -> Result<String> {
        self.meant(named, path).ok_or_else(|| {
            Failure::new(Kind::Usage, "which project?").fix(
                "name it with --project, or choose one for good with `cynork project use NAME`",
            )
        })
    }

    /// The project that was named, else the one of the repository that a path is in, else the one chosen with `project use`.
    pub(crate) fn meant(&self, named: Option<String>, path: &Path) -> Option<String> {
        let meant = named.or_else(|| project_of(path));
        meant.or_else(|| self.file.kept.project.clone())
    }

    /// Whether there is a person who can be asked.
    pub(crate) fn person(&self) -> bool {
        self.out.form == Form::Readable
            && std::io::stdin().is_terminal()
            && std::io::stdout().is_terminal()
    }

    /// Asks the person before something that cannot be taken back; without a person it must have been said with `--yes`.
    pub(crate) fn sure(&self, question: &str) -> Result<()> {
        if self.yes {
            return Ok(());
        }
        if !self.person() {
            return Err(Failure::new(Kind::Usage, format!("{question} Nobody is there to ask."))
                .fix("say it with --yes"));
        }
        let said = pressed(question).unwrap_or(Err(Kind::EndedBadly));
        said.map_err(|kind| Failure::new(kind, "nothing was done"))
    }
}

/// Asks, and takes the first key that is an answer. The cursor is not hidden meanwhile: whoever leaves must find it.
fn pressed(question: &str) -> std::io::Result<Result<(), Kind>> {
    let terminal = Term::stderr();
    // Without one no key would ever come.
    if !terminal.is_term() {
        return Err(std::io::ErrorKind::NotConnected.into());
    }
    terminal.write_str(&format!("{question} [y/N] "))?;
    let answer = loop {
        if let Some(answer) = meant(&terminal.read_key_raw()?) {
            break answer;
        }
    };
    terminal.clear_line()?;
    terminal.write_line(&format!("{question} {}", if answer.is_ok() { "yes" } else { "no" }))?;
    Ok(answer)
}

/// What a key means where something is to be done or not.
fn meant(key: &Key) -> Option<Result<(), Kind>> {
    match key {
        Key::Char('y' | 'Y') => Some(Ok(())),
        Key::Char('n' | 'N') | Key::Enter => Some(Err(Kind::EndedBadly)),
        Key::CtrlC => Some(Err(Kind::Left)),
        _ => None,
    }
}

/// The project that the repository around a path belongs to, as `cynork` noted it there.
pub(crate) fn project_of(repository: &Path) -> Option<String> {
    let mut git = Command::new("git");
    git.arg("-C").arg(repository).args(["config", "--get", "cynork.project"]);
    let said = git.stderr(Stdio::null()).output().ok().filter(|it| it.status.success())?;
    let project = String::from_utf8(said.stdout).ok()?.trim().to_owned();
    Some(project).filter(|project| !project.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn context(kept: Option<&str>) -> Context {
        let place = tempfile::tempdir().unwrap();
        let environment = Environment::default();
        let mut file = File::read(Some(place.path().join("none")), &environment).unwrap();
        file.kept.project = kept.map(str::to_owned);
        let client = Client::new("http://127.0.0.1:1").unwrap();
        Context { client, out: Output::new(Form::Json, false), file, environment, yes: false }
    }

    fn git(path: &Path, words: &[&str]) {
        assert!(Command::new("git").arg("-C").arg(path).args(words).status().unwrap().success());
    }

    #[test]
    fn a_project_is_named_or_that_of_the_repository_that_is_meant_or_the_one_that_is_kept() {
        let place = tempfile::tempdir().unwrap();
        git(place.path(), &["init", "--quiet"]);
        let context = self::context(Some("kept"));
        let meant = |named: Option<&str>| {
            context.project_at(named.map(str::to_owned), place.path()).unwrap()
        };
        assert_eq!(meant(None), "kept", "a repository that nobody noted a project in");
        git(place.path(), &["config", "cynork.project", "prj_1"]);
        assert_eq!([meant(Some("named")), meant(None)], ["named", "prj_1"]);
        let other = tempfile::tempdir().unwrap();
        assert_eq!(context.project_at(None, other.path()).unwrap(), "kept");
        let failure = self::context(None).project_at(None, other.path()).unwrap_err();
        assert_eq!(failure.kind, Kind::Usage);
    }

    #[test]
    fn only_a_clear_yes_is_sure_and_who_presses_ctrl_c_has_left() {
        for (key, wanted) in [
            (Key::Char('y'), Some(Ok(()))),
            (Key::Char('Y'), Some(Ok(()))),
            (Key::Char('n'), Some(Err(Kind::EndedBadly))),
            (Key::Enter, Some(Err(Kind::EndedBadly))),
            (Key::CtrlC, Some(Err(Kind::Left))),
            (Key::Char('x'), None),
            (Key::Escape, None),
        ] {
            assert_eq!(meant(&key), wanted, "{key:?}");
        }
    }

    #[test]
    fn without_a_person_nothing_is_sure_unless_it_was_said() {
        let context = self::context(None);
        assert_eq!(context.sure("May it?").unwrap_err().kind, Kind::Usage);
        assert_eq!(Context { yes: true, ..context }.sure("May it?"), Ok(()));
    }
}
