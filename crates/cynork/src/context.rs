//! What every command has: the way to the installation, the way to the person, what is kept.

use std::{
    io::IsTerminal,
    path::Path,
    process::{Command, Stdio},
};

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

    /// The project that is meant: the one that was named, the one of the repository one is in, or the one that is kept.
    pub(crate) fn project(&self, named: Option<String>) -> Result<String> {
        let meant = named.or_else(|| project_of(Path::new(".")));
        meant.or_else(|| self.file.kept.project.clone()).ok_or_else(|| {
            Failure::new(Kind::Usage, "which project?").fix(
                "name it with --project, or choose one for good with `cynork project use NAME`",
            )
        })
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
        let answer = dialoguer::Confirm::new().with_prompt(question).default(false).interact();
        match answer {
            Ok(true) => Ok(()),
            _ => Err(Failure::new(Kind::EndedBadly, "nothing was done")),
        }
    }
}

/// The project that a repository of this machine belongs to, as `cynork` noted it there.
pub(crate) fn project_of(repository: &Path) -> Option<String> {
    let mut git = Command::new("git");
    git.arg("-C").arg(repository).args(["config", "--get", "cynork.project"]);
    let said = git.stderr(Stdio::null()).output().ok().filter(|it| it.status.success())?;
    let project = String::from_utf8(said.stdout).ok()?.trim().to_owned();
    Some(project).filter(|project| !project.is_empty())
}
