//! Shell completion of names: tasks, projects, models, nodes, providers and profiles, as the installation has them now.
//!
//! A shell waits for the candidates while a person types, so the timeout is short. Without a login, or without a response in
//! time, there are no names and no error.

use std::{
    ffi::OsString,
    path::{Path, PathBuf},
    sync::mpsc,
    time::Duration,
};

use clap::Command;
use clap_complete::{ArgValueCandidates, CompletionCandidate};
use serde_json::Value;

use crate::{
    cli,
    client::{ApiClient, ApiRequest},
    config::CliEnvironment,
    context::project_of_repository,
    failure::{CliError, Result},
    operations,
    terminal::first_line,
};

/// Timeout of a completion.
const COMPLETION_TIMEOUT: Duration = Duration::from_millis(300);

/// Maximum number of tasks.
const MAX_TASKS: u32 = 50;

/// Maximum number of items of a list.
const MAX_ITEMS: u32 = 200;

/// A kind of named object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CompletionKind {
    Task,
    Project,
    Model,
    Node,
    Provider,
    Profile,
}

impl CompletionKind {
    /// Returns the kind of object that an argument names, by the argument's id.
    fn of_argument(id: &str) -> Option<Self> {
        match id {
            "task" | "after" => Some(Self::Task),
            "project" => Some(Self::Project),
            "model" => Some(Self::Model),
            "node" => Some(Self::Node),
            "provider" => Some(Self::Provider),
            "profile" | "like" => Some(Self::Profile),
            _ => None,
        }
    }
}

/// Adds name completion to the arguments that take names.
pub(crate) fn with_name_completion(command: Command) -> Command {
    let command = command.mut_args(|argument| {
        match CompletionKind::of_argument(argument.get_id().as_str()) {
            Some(kind) if argument.get_action().takes_values() => {
                argument.add(ArgValueCandidates::new(move || completion_candidates(kind)))
            }
            _ => argument,
        }
    });
    command.mut_subcommands(with_name_completion)
}

/// Returns the candidates.
fn completion_candidates(kind: CompletionKind) -> Vec<CompletionCandidate> {
    let line = CompletionLine::parse_arguments(std::env::args_os());
    let (sender, receiver) = mpsc::channel();
    // A credential helper may be slow, too; the thread ends with the program.
    std::thread::spawn(move || {
        let _ = sender.send(look_up_names(kind, line).unwrap_or_default());
    });
    let names = receiver.recv_timeout(COMPLETION_TIMEOUT).unwrap_or_default();
    let candidate = |(name, help): (String, String)| {
        let help = Some(help).filter(|help| !help.is_empty());
        CompletionCandidate::new(name).help(help.map(Into::into))
    };
    names.into_iter().map(candidate).collect()
}

/// The relevant arguments of the line that is being completed.
#[derive(Debug, Default, PartialEq, Eq)]
struct CompletionLine {
    url: Option<String>,
    config: Option<PathBuf>,
    project: Option<String>,
}

impl CompletionLine {
    /// Parses the line: the words after `--` are those that were typed.
    fn parse_arguments(arguments: impl Iterator<Item = OsString>) -> Self {
        let words = arguments.skip_while(|word| word != "--").skip(1);
        let words: Vec<String> = words.filter_map(|word| word.into_string().ok()).collect();
        let value = |names: [&str; 2]| {
            words.iter().enumerate().find_map(|(at, word)| {
                let joined =
                    names.iter().find_map(|name| word.strip_prefix(name)?.strip_prefix('='));
                let next = || words.get(at + 1).filter(|_| names.contains(&word.as_str()));
                joined.map(str::to_owned).or_else(|| next().cloned())
            })
        };
        Self {
            url: value(["--url", "--url"]),
            config: value(["--config", "--config"]).map(PathBuf::from),
            project: value(["--project", "-p"]),
        }
    }
}

/// Fetches the names from the installation, each with a description.
fn look_up_names(kind: CompletionKind, line: CompletionLine) -> Result<Vec<(String, String)>> {
    let environment = CliEnvironment::from_process();
    let named = cli::ConnectionArgs {
        url: line.url,
        config: line.config,
        ..cli::ConnectionArgs::default()
    };
    let (client, file) = cli::connect_client(named, &environment)?;
    if !client.has_token() {
        return Ok(Vec::new());
    }
    let project =
        line.project.or_else(|| project_of_repository(Path::new("."))).or(file.kept.project);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| CliError::internal_error(error.to_string()))?;
    runtime.block_on(fetch_names(&client, kind, project))
}

async fn fetch_names(
    client: &ApiClient,
    kind: CompletionKind,
    project: Option<String>,
) -> Result<Vec<(String, String)>> {
    let call = match kind {
        CompletionKind::Task => ApiRequest::for_operation(operations::LIST_TASKS)
            .with_query("project", project.as_ref())
            .with_query("limit", Some(MAX_TASKS)),
        CompletionKind::Project => ApiRequest::for_operation(operations::LIST_PROJECTS)
            .with_query("limit", Some(MAX_ITEMS)),
        CompletionKind::Model => ApiRequest::for_operation(operations::LIST_REGISTRY),
        CompletionKind::Node => ApiRequest::for_operation(operations::LIST_NODES),
        CompletionKind::Provider => ApiRequest::for_operation(operations::LIST_PROVIDERS),
        CompletionKind::Profile => ApiRequest::for_operation(operations::LIST_PROFILES)
            .with_query("project_id", project.as_ref().filter(|id| id.starts_with("prj_"))),
    };
    let list: Value = client.send(&call).await?;
    Ok(extract_names(kind, &list, project.is_some()))
}

/// Extracts the names from a list. Task names are unique only within a project: elsewhere their ids are offered.
fn extract_names(kind: CompletionKind, list: &Value, in_project: bool) -> Vec<(String, String)> {
    let items = list["items"].as_array().into_iter().flatten();
    let text = |item: &Value, field: &str| item[field].as_str().map(first_line).unwrap_or_default();
    let named = items.map(|item| match kind {
        CompletionKind::Task if in_project => (text(item, "name"), text(item, "description")),
        CompletionKind::Task => (text(item, "id"), text(item, "name")),
        CompletionKind::Project => (text(item, "slug"), text(item, "title")),
        CompletionKind::Model => (text(item, "id"), text(item, "title")),
        CompletionKind::Node | CompletionKind::Provider => {
            (text(item, "name"), text(item, "state"))
        }
        CompletionKind::Profile => (text(item, "name"), text(&item["spec"], "description")),
    });
    let last = ("last".to_owned(), "the newest that you asked for".to_owned());
    let last = (kind == CompletionKind::Task).then_some(last);
    last.into_iter().chain(named).filter(|(name, _)| !name.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use serde_json::json;

    use super::*;

    #[test]
    fn arguments_that_name_something_are_completed_with_names() {
        let mut command = cli::build_command();
        command.build();
        let has = |path: &[&str], argument: &str| {
            let found = path.iter().fold(&command, |at, word| at.find_subcommand(word).unwrap());
            let mut arguments = found.get_arguments();
            let argument = arguments.find(|it| it.get_id() == argument).unwrap();
            argument.get::<ArgValueCandidates>().is_some()
        };
        assert!(has(&["task", "show"], "task") && has(&["task", "show"], "project"));
        assert!(has(&["run"], "project") && has(&["project", "show"], "project"));
        assert!(has(&["model", "delete"], "model") && has(&["node", "drain"], "node"));
        assert!(has(&["provider", "delete"], "provider"));
        assert!(has(&["profile", "show"], "profile") && has(&["task", "create"], "profile"));
        assert!(has(&["schedule", "create"], "profile") && has(&["chat"], "profile"));
        assert!(!has(&["run"], "description"));
    }

    #[test]
    fn tasks_are_completed_by_name_in_a_project_and_by_id_elsewhere() {
        let list =
            json!({ "items": [{ "id": "tsk_1", "name": "fix", "description": "Fix it\nnow" }] });
        let pairs = |all: &[(&str, &str)]| -> Vec<(String, String)> {
            all.iter().map(|(name, help)| ((*name).to_owned(), (*help).to_owned())).collect()
        };
        let last = ("last", "the newest that you asked for");
        assert_eq!(
            extract_names(CompletionKind::Task, &list, true),
            pairs(&[last, ("fix", "Fix it")])
        );
        assert_eq!(
            extract_names(CompletionKind::Task, &list, false),
            pairs(&[last, ("tsk_1", "fix")])
        );
        let list = json!({ "items": [{ "slug": "web", "title": "The web" }, {}] });
        assert_eq!(
            extract_names(CompletionKind::Project, &list, false),
            pairs(&[("web", "The web")])
        );
    }

    #[test]
    fn what_the_line_says_already_is_heeded() {
        let words = ["cynork", "--", "cynork", "--url=http://a", "task", "show", "-p", "web", ""];
        let line = CompletionLine::parse_arguments(words.into_iter().map(OsString::from));
        assert_eq!(
            line,
            CompletionLine {
                url: Some("http://a".into()),
                config: None,
                project: Some("web".into())
            }
        );
    }

    #[test]
    fn whoever_is_not_answered_in_time_gets_no_names_and_no_complaint() {
        let place = tempfile::tempdir().unwrap();
        let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", silent.local_addr().unwrap());
        let config = place.path().join("config.toml");
        let line = || CompletionLine {
            url: Some(url.clone()),
            config: Some(config.clone()),
            project: None,
        };
        assert_eq!(
            look_up_names(CompletionKind::Project, line()),
            Ok(Vec::new()),
            "nobody is logged in"
        );
        let begun = Instant::now();
        assert!(completion_candidates(CompletionKind::Project).is_empty());
        assert!(begun.elapsed() < COMPLETION_TIMEOUT * 3, "{:?}", begun.elapsed());
    }
}
