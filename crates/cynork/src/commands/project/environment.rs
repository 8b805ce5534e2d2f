//! `cynork project environment`: what the build and the tests of a project need.

use clap::{Args, Subcommand};
use cynode_core::environments::{
    EnvironmentBase, EnvironmentCheck, EnvironmentLimits, EnvironmentSpec, EnvironmentState,
    ProposalReason,
};
use cynode_wire::delivery::environments::EnvironmentView;
use serde_json::{Value, json};

use crate::{
    client::{ApiRequest, ListResponse},
    context::CliContext,
    failure::{CliError, CliErrorKind, Result},
    format::ValueFormatter,
    input,
    names::ProjectSelector,
    operations::{self, Operation},
    output::{render_record, render_table},
    terminal::TextStyle,
};

mod trial;

#[derive(Subcommand)]
pub(crate) enum EnvironmentCommand {
    /// Show a version of the environment: the accepted one by default, else the newest proposal.
    #[command(after_help = "Example: cynork project environment show 2 --project web")]
    Show {
        /// Version of the environment.
        #[arg(value_name = "VERSION")]
        number: Option<u32>,
        #[command(flatten)]
        place: ProjectSelector,
    },
    /// List the versions of the environment, the newest first.
    #[command(after_help = "Example: cynork project environment list --project web")]
    List(ProjectSelector),
    /// Detect an environment from the files of the default branch and propose it, with a reason for each line.
    #[command(
        after_help = "Example: cynork project environment detect --project web\nOn a terminal the command asks whether to accept the proposal; --accept accepts it at once."
    )]
    Detect(DetectArgs),
    /// Try a version: set it up and run its checks in a sandbox, and show what fails and what would mend it.
    #[command(
        after_help = "Example: cynork project environment try 2 --project web\nWithout a version, the newest proposal is tried, else the accepted version. No model is asked."
    )]
    Try {
        /// Version of the environment.
        #[arg(value_name = "VERSION")]
        number: Option<u32>,
        #[command(flatten)]
        place: ProjectSelector,
    },
    /// Propose an environment from a TOML or JSON file; `-` reads standard input.
    #[command(
        after_help = "Example: cynork project environment set environment.toml --project web"
    )]
    Set(SetArgs),
    /// Accept a version: agents and checks of the project run in it from now on.
    #[command(after_help = "Example: cynork project environment accept 2 --project web")]
    Accept(DecideArgs),
    /// Reject a version; if it was the accepted one, the project has no environment any more.
    #[command(
        after_help = "Example: cynork project environment reject 2 --note \"too many packages\" --project web"
    )]
    Reject(DecideArgs),
}

#[derive(Args)]
pub(crate) struct DetectArgs {
    /// Read the devcontainer file instead of the build files.
    #[arg(long)]
    devcontainer: bool,
    /// Accept the proposal at once.
    #[arg(long)]
    accept: bool,
    #[command(flatten)]
    place: ProjectSelector,
}

#[derive(Args)]
pub(crate) struct SetArgs {
    /// File with the environment, in the form of `.cynode/environment.toml` or as JSON.
    file: String,
    /// Accept the proposal at once.
    #[arg(long)]
    accept: bool,
    #[command(flatten)]
    place: ProjectSelector,
}

#[derive(Args)]
pub(crate) struct DecideArgs {
    /// Version of the environment.
    #[arg(value_name = "VERSION")]
    number: u32,
    /// Note about the decision.
    #[arg(long)]
    note: Option<String>,
    #[command(flatten)]
    place: ProjectSelector,
}

impl EnvironmentCommand {
    pub(crate) async fn run(self, context: &CliContext) -> Result<()> {
        match self {
            Self::Show { number, place } => {
                let project = context.require_project(place.project)?;
                let value = fetch_environment(context, &project, number).await?;
                show_environment(context, &value)
            }
            Self::List(place) => list_environments(context, place).await,
            Self::Detect(detect) => {
                let project = context.require_project(detect.place.project)?;
                let call = ApiRequest::with_path_params(operations::DETECT_ENVIRONMENT, [&project])
                    .with_json_body(&json!({ "devcontainer": detect.devcontainer }));
                let value = context.send_request(&call).await?;
                offer_proposal(context, &project, value, detect.accept).await
            }
            Self::Try { number, place } => {
                let project = context.require_project(place.project)?;
                trial::try_environment(context, &project, number).await
            }
            Self::Set(set) => {
                let project = context.require_project(set.place.project)?;
                let spec = read_environment_file(&set.file)?;
                let call =
                    ApiRequest::with_path_params(operations::PROPOSE_ENVIRONMENT, [&project])
                        .with_json_body(&json!({ "spec": spec }));
                let value = context.send_request(&call).await?;
                offer_proposal(context, &project, value, set.accept).await
            }
            Self::Accept(decide) => {
                let sentence = |it: &EnvironmentView, _: &ValueFormatter| {
                    format!("agents and checks run in environment {} from now on", it.version)
                };
                let call = decide.into_request(context, operations::ACCEPT_ENVIRONMENT)?;
                context.show_outcome(&call, environment_name, sentence).await
            }
            Self::Reject(decide) => {
                let sentence = |it: &EnvironmentView, _: &ValueFormatter| {
                    format!("environment {} is rejected", it.version)
                };
                let call = decide.into_request(context, operations::REJECT_ENVIRONMENT)?;
                context.show_outcome(&call, environment_name, sentence).await
            }
        }
    }
}

impl DecideArgs {
    fn into_request(self, context: &CliContext, operation: Operation) -> Result<ApiRequest> {
        let project = context.require_project(self.place.project)?;
        let body = input::without_nulls(json!({ "note": self.note }));
        Ok(ApiRequest::with_path_params(operation, [project, self.number.to_string()])
            .with_json_body(&body))
    }
}

fn environment_name(environment: &EnvironmentView) -> String {
    environment.version.to_string()
}

/// Fetches a version; without a number the accepted one, else the newest proposal.
async fn fetch_environment(
    context: &CliContext,
    project: &str,
    number: Option<u32>,
) -> Result<Value> {
    if let Some(number) = number {
        let places = [project.to_owned(), number.to_string()];
        let call = ApiRequest::with_path_params(operations::GET_ENVIRONMENT, places);
        return context.send_request(&call).await;
    }
    let call = ApiRequest::with_path_params(operations::ACCEPTED_ENVIRONMENT, [project]);
    match context.send_request(&call).await {
        Err(failure) if failure.kind == CliErrorKind::NotFound => {
            let newest = find_proposal(context, project).await?;
            newest.ok_or_else(|| missing_environment_error(project))
        }
        result => result,
    }
}

/// Returns the newest proposal that waits for a decision.
async fn find_proposal(context: &CliContext, project: &str) -> Result<Option<Value>> {
    let call = ApiRequest::with_path_params(operations::LIST_ENVIRONMENTS, [project]);
    let listed: ListResponse<Value> = context.fetch_as(&call).await?;
    Ok(listed.items.into_iter().find(|it| it["state"] == "proposed"))
}

fn missing_environment_error(project: &str) -> CliError {
    CliError::new(CliErrorKind::NotFound, format!("{project} has no environment")).with_fix(
        "`cynork project environment detect` proposes one from the files of the repository",
    )
}

/// Parses an environment file: TOML as in a repository, or JSON.
fn read_environment_file(path: &str) -> Result<EnvironmentSpec> {
    let text = input::read_file_text(path)?;
    let spec = parse_environment(&text)
        .map_err(|why| CliError::invalid_input(format!("{path} is no environment: {why}")))?;
    match spec.validation_error() {
        Some(why) => Err(CliError::invalid_input(format!("{path}: {why}"))),
        None => Ok(spec),
    }
}

fn parse_environment(text: &str) -> std::result::Result<EnvironmentSpec, String> {
    if text.trim_start().starts_with('{') {
        return serde_json::from_str(text).map_err(|error| error.to_string());
    }
    toml::from_str(text).map_err(|error| error.to_string())
}

/// Shows a proposal and accepts it: at once on request, else if a person says so.
async fn offer_proposal(
    context: &CliContext,
    project: &str,
    value: Value,
    accept: bool,
) -> Result<()> {
    let open = value["state"] == "proposed";
    let number = value["version"].as_u64().unwrap_or_default();
    if open && accept {
        let places = [project.to_owned(), number.to_string()];
        let call = ApiRequest::with_path_params(operations::ACCEPT_ENVIRONMENT, places)
            .with_json_body(&json!({}));
        let accepted = context.send_request(&call).await?;
        return show_environment(context, &accepted);
    }
    show_environment(context, &value)?;
    // `--yes` answers questions of other commands; an environment is accepted by its own word.
    if !open || context.yes || !context.is_interactive() {
        return Ok(());
    }
    let question = format!("Accept environment {number}? Agents and checks run in it then.");
    match context.confirm_action(&question) {
        Ok(()) => {
            let places = [project.to_owned(), number.to_string()];
            let call = ApiRequest::with_path_params(operations::ACCEPT_ENVIRONMENT, places)
                .with_json_body(&json!({}));
            let sentence = format!("agents and checks run in environment {number} from now on");
            context.send_and_confirm(&call, &sentence).await
        }
        Err(failure) if failure.kind == CliErrorKind::Failed => Ok(()),
        Err(failure) => Err(failure),
    }
}

fn show_environment(context: &CliContext, value: &Value) -> Result<()> {
    context.show_answer::<EnvironmentView>(
        value,
        |it| vec![environment_name(it)],
        render_environment,
    )
}

/// Renders a version: what it is, its lines with their reasons, its warnings, and what to do next.
fn render_environment(environment: &EnvironmentView, look: &ValueFormatter) -> String {
    let about = render_record(
        look.paint,
        &[
            ("environment", look.style_bold(&environment.version.to_string())),
            ("state", look.style_state(environment.state.as_str())),
            ("from", environment.origin.as_str().to_owned()),
            ("commit", short_commit(environment.source_commit.as_deref())),
            ("proposed", look.format_relative_time(environment.proposed_at)),
            ("decided", look.format_optional_time(environment.decided_at)),
            ("note", environment.note.clone().unwrap_or_default()),
        ],
    );
    let lines = list_lines(&environment.spec, &environment.reasons);
    let table = render_table(look.paint, ["line", "value", "reason"], lines);
    let warnings = environment
        .warnings
        .iter()
        .map(|warning| format!("{} {warning}", look.paint.apply_style(TextStyle::Yellow, "!")));
    let number = environment.version;
    let next = match environment.state {
        EnvironmentState::Proposed => Some(format!(
            "next: `cynork project environment try {number}`, then `cynork project environment accept {number}`"
        )),
        EnvironmentState::Accepted | EnvironmentState::Rejected | EnvironmentState::Superseded => {
            None
        }
    };
    let mut parts = vec![about.trim_end_matches('\n').to_owned(), String::new(), table];
    parts.extend(warnings);
    parts.extend(next.map(|next| look.style_dim(&next)));
    parts.join("\n")
}

fn short_commit(commit: Option<&str>) -> String {
    commit.map(|commit| commit.get(..10).unwrap_or(commit).to_owned()).unwrap_or_default()
}

/// Lists the lines of an environment: field, value, and the reason why it was proposed.
fn list_lines(spec: &EnvironmentSpec, reasons: &[ProposalReason]) -> Vec<[String; 3]> {
    let mut rows: Vec<(&'static str, String)> = Vec::new();
    match &spec.base {
        EnvironmentBase::Host => {}
        EnvironmentBase::Image(name) => rows.push(("base", format!("image {name}"))),
        EnvironmentBase::Debian(release) => rows.push(("base", format!("debian {release}"))),
    }
    rows.extend(spec.system_packages.iter().map(|it| ("system_packages", it.clone())));
    rows.extend(spec.setup.iter().map(|it| ("setup", it.clone())));
    let check = |it: &EnvironmentCheck| ("checks", format!("{}: {}", it.kind.as_str(), it.command));
    rows.extend(spec.checks.iter().map(check));
    rows.extend(spec.services.iter().map(|it| ("services", it.name.clone())));
    rows.extend(
        spec.variables.iter().map(|(name, value)| ("variables", format!("{name}={value}"))),
    );
    rows.extend(spec.secrets.iter().map(|(name, secret)| ("secrets", format!("{name}={secret}"))));
    rows.extend(spec.caches.iter().map(|it| ("caches", it.clone())));
    rows.extend(spec.lock_files.iter().map(|it| ("lock_files", it.clone())));
    rows.extend(spec.package_sources.iter().map(|it| ("package_sources", it.as_str().to_owned())));
    if spec.packages_during_work {
        rows.push(("packages_during_work", "true".to_owned()));
    }
    rows.extend(list_limits(spec.limits).into_iter().map(|it| ("limits", it)));
    let reason_of = |field: &str, value: &str| {
        let line = format!("{field}: {value}");
        let reason = reasons.iter().find(|reason| reason.line == line);
        reason.map(|it| format!("{} ({})", it.reason, it.file)).unwrap_or_default()
    };
    rows.into_iter()
        .map(|(field, value)| {
            let reason = reason_of(field, &value);
            let service = spec.services.iter().find(|it| field == "services" && it.name == value);
            let value = match service {
                Some(it) => format!("{value}: {} (ready: {})", it.command, it.ready),
                None => value,
            };
            [field.to_owned(), value, reason]
        })
        .collect()
}

fn list_limits(limits: EnvironmentLimits) -> Vec<String> {
    let all = [
        ("memory_mib", limits.memory_mib),
        ("cpu_percent", limits.cpu_percent),
        ("processes", limits.processes),
        ("disk_mib", limits.disk_mib),
        ("setup_seconds", limits.setup_seconds),
    ];
    all.into_iter().filter_map(|(name, value)| Some(format!("{name} = {}", value?))).collect()
}

async fn list_environments(context: &CliContext, place: ProjectSelector) -> Result<()> {
    context
        .show_list(
            &ApiRequest::with_path_params(
                operations::LIST_ENVIRONMENTS,
                [context.require_project(place.project)?],
            ),
            None,
            environment_name,
            ["version", "state", "from", "commit", "proposed", "decided", "set-up", "checks"],
            |it: &EnvironmentView, look| {
                [
                    look.style_bold(&it.version.to_string()),
                    look.style_state(it.state.as_str()),
                    it.origin.as_str().to_owned(),
                    short_commit(it.source_commit.as_deref()),
                    look.format_relative_time(it.proposed_at),
                    look.format_optional_time(it.decided_at),
                    it.spec.setup.len().to_string(),
                    it.spec.checks.len().to_string(),
                ]
            },
        )
        .await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_environment_is_read_from_toml_and_from_json() {
        let toml = parse_environment("setup = [\"make\"]\n").unwrap();
        let json = parse_environment(" {\"setup\": [\"make\"]}").unwrap();
        assert_eq!(toml, json);
        assert_eq!(toml.setup, ["make"]);
        assert!(parse_environment("steps = []").unwrap_err().contains("unknown field `steps`"));
    }

    #[test]
    fn each_line_stands_with_the_reason_that_was_given_for_it() {
        let spec = parse_environment(
            "setup = [\"npm ci\"]\nlock_files = [\"package-lock.json\"]\n[[checks]]\nkind = \"test\"\ncommand = \"npm test\"\n\
             [limits]\nmemory_mib = 512\n",
        )
        .unwrap();
        let reason = |line: &str, reason: &str| ProposalReason {
            line: line.to_owned(),
            file: "package.json".to_owned(),
            reason: reason.to_owned(),
        };
        let reasons = [
            reason("setup: npm ci", "There is a lock file."),
            reason("checks: test: npm test", "The script is there."),
        ];
        assert_eq!(
            list_lines(&spec, &reasons),
            [
                ["setup", "npm ci", "There is a lock file. (package.json)"],
                ["checks", "test: npm test", "The script is there. (package.json)"],
                ["lock_files", "package-lock.json", ""],
                ["limits", "memory_mib = 512", ""],
            ]
        );
    }
}
