//! The context of every command: the client, the output, the configuration.

use std::{
    io::IsTerminal,
    path::Path,
    process::{Command, Stdio},
    sync::OnceLock,
};

use cynode_core::{budget::Currency, ids::ProjectId};
use cynode_wire::{
    delivery::PullRequestView,
    identity::accounts::MeView,
    tasks::{TaskView, projects::ProjectView},
};
use dialoguer::console::{Key, Term};
use serde_json::Value;

use crate::{
    client::{ApiClient, ApiRequest},
    config::{CliEnvironment, ConfigFile},
    failure::{CliError, CliErrorKind, Result},
    operations,
    output::{CliOutput, CliOutputFormat},
};

/// The context of a command.
#[derive(Debug)]
pub(crate) struct CliContext {
    pub(crate) client: ApiClient,
    pub(crate) out: CliOutput,
    pub(crate) file: ConfigFile,
    pub(crate) environment: CliEnvironment,
    /// Whether every question is answered with yes.
    pub(crate) yes: bool,
    /// The currency of amounts, once it is fetched.
    pub(crate) currency: OnceLock<Currency>,
    /// Id and name of the command's project, once it is known.
    pub(crate) subject: OnceLock<(ProjectId, String)>,
}

impl CliContext {
    /// Sends a request and returns the response as a JSON value.
    pub(crate) async fn send_request(&self, call: &ApiRequest) -> Result<Value> {
        self.client.send(call).await
    }

    /// Returns the currency, as far as [`CliContext::fetch_currency`] fetched it.
    pub(crate) fn currency(&self) -> Currency {
        self.currency.get().copied().unwrap_or_default()
    }

    /// Fetches the currency, before amounts are shown to a person. A failure is ignored.
    pub(crate) async fn fetch_currency(&self) {
        if self.out.form != CliOutputFormat::Readable || self.currency.get().is_some() {
            return;
        }
        if let Ok(me) = self.client.send::<MeView>(&ApiRequest::for_operation(operations::ME)).await
        {
            let _ = self.currency.set(me.currency);
        }
    }

    /// Returns the project for a command without a path: see [`CliContext::resolve_project`].
    pub(crate) fn require_project(&self, named: Option<String>) -> Result<String> {
        self.require_project_at(named, Path::new("."))
    }

    /// Returns the project for a command with a path.
    pub(crate) fn require_project_at(&self, named: Option<String>, path: &Path) -> Result<String> {
        self.resolve_project(named, path).ok_or_else(|| {
            CliError::new(CliErrorKind::Usage, "which project?").with_fix(
                "name it with --project, choose one for good with `cynork project use NAME`, or let `cynork run` make one for this repository",
            )
        })
    }

    /// Returns the named project, else the one of the repository that contains the path, else the one chosen with `project
    /// use`.
    pub(crate) fn resolve_project(&self, named: Option<String>, path: &Path) -> Option<String> {
        let meant = named.or_else(|| project_of_repository(path));
        meant.or_else(|| self.file.kept.project.clone())
    }

    /// Records the project of the command.
    pub(crate) fn record_project(&self, project: &ProjectView) {
        let _ = self.subject.set((project.id, project.slug.to_string()));
    }

    /// Returns the flag that a command needs to refer to this project; `None` if it is the default.
    fn project_flag(&self, project: ProjectId) -> Option<String> {
        let name = self.subject.get().filter(|(id, _)| *id == project).map(|(_, name)| name);
        let meant = self.resolve_project(None, Path::new("."));
        if meant.is_some_and(|it| it == project.to_string() || Some(&it) == name) {
            return Some(String::new());
        }
        name.map(|name| format!(" --project {name}"))
    }

    /// Returns how the next command refers to a task: by its name if that is enough, else by its id.
    pub(crate) fn task_reference(&self, task: &TaskView) -> String {
        let flag = self.project_flag(task.project_id).filter(|_| task.name.as_str() != "last");
        flag.map_or_else(|| task.id.to_string(), |flag| format!("{}{flag}", task.name))
    }

    /// Returns the same for a pull request: by its number, else by its id.
    pub(crate) fn pull_request_reference(&self, pull: &PullRequestView) -> String {
        let flag = self.project_flag(pull.project_id);
        flag.map_or_else(|| pull.id.to_string(), |flag| format!("{}{flag}", pull.number))
    }

    /// Returns whether there is a person who can be asked.
    pub(crate) fn is_interactive(&self) -> bool {
        self.out.form == CliOutputFormat::Readable
            && std::io::stdin().is_terminal()
            && std::io::stdout().is_terminal()
    }

    /// Asks the person before an irreversible action; without a person `--yes` is required.
    pub(crate) fn confirm_action(&self, question: &str) -> Result<()> {
        if self.yes {
            return Ok(());
        }
        if !self.is_interactive() {
            return Err(CliError::new(
                CliErrorKind::Usage,
                format!("{question} Nobody is there to ask."),
            )
            .with_fix("say it with --yes"));
        }
        let said = prompt_yes_no(question).unwrap_or(Err(CliErrorKind::Failed));
        said.map_err(|kind| CliError::new(kind, "nothing was done"))
    }
}

/// Asks a question and accepts the first valid key. The cursor stays visible, so that it is there after an interruption.
fn prompt_yes_no(question: &str) -> std::io::Result<Result<(), CliErrorKind>> {
    let terminal = Term::stderr();
    // Without a terminal no key would ever arrive.
    if !terminal.is_term() {
        return Err(std::io::ErrorKind::NotConnected.into());
    }
    terminal.write_str(&format!("{question} [y/N] "))?;
    let answer = loop {
        if let Some(answer) = parse_answer_key(&terminal.read_key_raw()?) {
            break answer;
        }
    };
    terminal.clear_line()?;
    terminal.write_line(&format!("{question} {}", if answer.is_ok() { "yes" } else { "no" }))?;
    Ok(answer)
}

/// Interprets a key as yes, no or interruption.
fn parse_answer_key(key: &Key) -> Option<Result<(), CliErrorKind>> {
    match key {
        Key::Char('y' | 'Y') => Some(Ok(())),
        Key::Char('n' | 'N') | Key::Enter => Some(Err(CliErrorKind::Failed)),
        Key::CtrlC => Some(Err(CliErrorKind::Interrupted)),
        _ => None,
    }
}

/// Returns the project that `cynork` recorded in the repository around a path.
pub(crate) fn project_of_repository(repository: &Path) -> Option<String> {
    let mut git = Command::new("git");
    git.arg("-C").arg(repository).args(["config", "--get", "cynork.project"]);
    let said = git.stderr(Stdio::null()).output().ok().filter(|it| it.status.success())?;
    let project = String::from_utf8(said.stdout).ok()?.trim().to_owned();
    Some(project).filter(|project| !project.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn context(kept: Option<&str>) -> CliContext {
        let place = tempfile::tempdir().unwrap();
        let environment = CliEnvironment::default();
        let mut file =
            ConfigFile::load_config(Some(place.path().join("none")), &environment).unwrap();
        file.kept.project = kept.map(str::to_owned);
        let client = ApiClient::new("http://127.0.0.1:1").unwrap();
        CliContext {
            client,
            out: CliOutput::new(CliOutputFormat::Json, false),
            file,
            environment,
            yes: false,
            currency: OnceLock::new(),
            subject: OnceLock::new(),
        }
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
            context.require_project_at(named.map(str::to_owned), place.path()).unwrap()
        };
        assert_eq!(meant(None), "kept", "a repository that nobody noted a project in");
        git(place.path(), &["config", "cynork.project", "prj_1"]);
        assert_eq!([meant(Some("named")), meant(None)], ["named", "prj_1"]);
        let other = tempfile::tempdir().unwrap();
        assert_eq!(context.require_project_at(None, other.path()).unwrap(), "kept");
        let failure = self::context(None).require_project_at(None, other.path()).unwrap_err();
        assert_eq!(failure.kind, CliErrorKind::Usage);
    }

    #[test]
    fn a_task_is_named_as_short_as_it_is_understood_here() {
        let id = "tsk_0192d5c8b6f07cc1a1a3c2b4d5e6f708";
        let project = "prj_0192d5c8b6f07cc1a1a3c2b4d5e6f708";
        let task = |name: &str| -> TaskView {
            serde_json::from_value(
                serde_json::json!({ "id": id, "project_id": project, "name": name,
                "description": "x", "acceptance_criteria": [], "budget": {}, "state": "queued",
                "depends_on": [], "created_by": "usr_0192d5c8b6f07cc1a1a3c2b4d5e6f708",
                "created_at": "2026-01-01T00:00:00Z", "updated_at": "2026-01-01T00:00:00Z" }),
            )
            .unwrap()
        };
        let known = |kept: Option<&str>| {
            let context = self::context(kept);
            let _ = context.subject.set((project.parse().unwrap(), "web".to_owned()));
            context
        };
        assert_eq!(known(Some("web")).task_reference(&task("fix")), "fix");
        assert_eq!(known(Some(project)).task_reference(&task("fix")), "fix");
        assert_eq!(known(Some("other")).task_reference(&task("fix")), "fix --project web");
        assert_eq!(known(None).task_reference(&task("last")), id, "`last` is another one");
        assert_eq!(
            self::context(None).task_reference(&task("fix")),
            id,
            "nobody knows its project"
        );
    }

    #[test]
    fn only_a_clear_yes_is_sure_and_who_presses_ctrl_c_has_left() {
        for (key, wanted) in [
            (Key::Char('y'), Some(Ok(()))),
            (Key::Char('Y'), Some(Ok(()))),
            (Key::Char('n'), Some(Err(CliErrorKind::Failed))),
            (Key::Enter, Some(Err(CliErrorKind::Failed))),
            (Key::CtrlC, Some(Err(CliErrorKind::Interrupted))),
            (Key::Char('x'), None),
            (Key::Escape, None),
        ] {
            assert_eq!(parse_answer_key(&key), wanted, "{key:?}");
        }
    }

    #[test]
    fn without_a_person_nothing_is_sure_unless_it_was_said() {
        let context = self::context(None);
        assert_eq!(context.confirm_action("May it?").unwrap_err().kind, CliErrorKind::Usage);
        assert_eq!(CliContext { yes: true, ..context }.confirm_action("May it?"), Ok(()));
    }
}
