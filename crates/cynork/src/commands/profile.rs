//! `cynork profile`: what agents may use. What a profile does not name is not there.

use clap::{Args, Subcommand};
use cynode_core::profiles::{NetworkRule, ProfileSpec};
use cynode_wire::tools::{
    profile_checks::{ProfileDecision, ProfileDecisions, ProfileQuestion},
    profiles::{ProfileVersionView, ProfileView},
};
use serde_json::json;

use crate::{
    client::ApiRequest,
    context::CliContext,
    failure::{CliError, CliErrorKind, Result},
    format::ValueFormatter,
    input,
    operations::{self, Operation},
    output::{render_record, render_table},
};

#[derive(Subcommand)]
pub(crate) enum ProfileCommand {
    /// List the profiles of the product, of the installation and of a project.
    #[command(after_help = "Example: cynork profile list --project web")]
    List {
        /// Project, by name or id; defaults to the installation.
        #[arg(long, short)]
        project: Option<String>,
    },
    /// Show what a profile permits.
    #[command(after_help = "Example: cynork profile show research")]
    Show(ProfileSelector),
    /// Create a profile from a file, or as a copy of another one.
    #[command(
        after_help = "Example: cynork profile create docs-writer --file docs-writer.toml --project web"
    )]
    Create(ProfileCreateArgs),
    /// Replace what a profile permits; agents under it have the new version at once.
    #[command(
        after_help = "Example: cynork profile update docs-writer --file docs-writer.toml --project web"
    )]
    Update(ProfileUpdateArgs),
    /// Delete a profile; agents under it are refused everything from then on.
    #[command(after_help = "Example: cynork profile delete docs-writer --project web")]
    Delete(ProfileSelector),
    /// List the versions of a profile, newest first.
    #[command(after_help = "Example: cynork profile history docs-writer --project web")]
    History(ProfileSelector),
    /// Ask whether a profile permits a tool, a request, a variable, a file or a model; nothing is done.
    #[command(
        after_help = "Example: cynork profile check research --tool web.fetch --request \"GET docs.rs\" --write src/main.rs"
    )]
    Check(ProfileCheckArgs),
}

/// Profile, and where it is looked up.
#[derive(Args)]
pub(crate) struct ProfileSelector {
    /// Name of the profile.
    profile: String,
    /// Project, by name or id; defaults to the installation.
    #[arg(long, short)]
    project: Option<String>,
}

#[derive(Args)]
pub(crate) struct ProfileCreateArgs {
    /// Name: small letters, digits and single dashes.
    name: String,
    /// File with what it permits, as TOML or JSON; `-` reads standard input.
    #[arg(long, required_unless_present = "like")]
    file: Option<String>,
    /// Profile to copy.
    #[arg(long, value_name = "PROFILE", conflicts_with = "file")]
    like: Option<String>,
    /// Project, by name or id; defaults to the installation.
    #[arg(long, short)]
    project: Option<String>,
}

#[derive(Args)]
pub(crate) struct ProfileUpdateArgs {
    #[command(flatten)]
    which: ProfileSelector,
    /// File with what it permits, as TOML or JSON; `-` reads standard input.
    #[arg(long)]
    file: String,
    /// Version that you expect; defaults to the current one.
    #[arg(long, value_name = "VERSION")]
    expected_version: Option<u32>,
}

#[derive(Args)]
pub(crate) struct ProfileCheckArgs {
    #[command(flatten)]
    which: ProfileSelector,
    /// Tool, by its dotted name; may be repeated.
    #[arg(long, value_name = "TOOL")]
    tool: Vec<String>,
    /// Request: a method and a host; may be repeated.
    #[arg(long, value_name = "METHOD HOST", value_parser = parse_request)]
    request: Vec<ProfileQuestion>,
    /// Environment variable; may be repeated.
    #[arg(long, value_name = "NAME")]
    variable: Vec<String>,
    /// File of the repository that is read; may be repeated.
    #[arg(long, value_name = "PATH")]
    read: Vec<String>,
    /// File of the repository that is changed; may be repeated.
    #[arg(long, value_name = "PATH")]
    write: Vec<String>,
    /// Model, by its id; may be repeated.
    #[arg(long, value_name = "MODEL")]
    model: Vec<String>,
}

impl ProfileCommand {
    pub(crate) async fn run(self, context: &CliContext) -> Result<()> {
        match self {
            Self::List { project } => {
                let project = context.optional_project_id(project.as_deref()).await?;
                let call = ApiRequest::for_operation(operations::LIST_PROFILES)
                    .with_query("project_id", project);
                let heads = ["name", "of", "version", "network", "memory", "description"];
                let name = |it: &ProfileView| it.name.clone();
                context.show_list(&call, None, name, heads, profile_row).await
            }
            Self::Show(which) => {
                let call = which.to_request(context, operations::GET_PROFILE).await?;
                context.show_item(&call, |it: &ProfileView| it.name.clone(), profile_fields).await
            }
            Self::Create(create) => create.run(context).await,
            Self::Update(update) => update.run(context).await,
            Self::Delete(which) => {
                let profile = which.profile.clone();
                context.confirm_action(&format!(
                    "Delete the profile {profile}? Agents under it are refused everything."
                ))?;
                let call = which.to_request(context, operations::DELETE_PROFILE).await?;
                context.send_and_confirm(&call, &format!("{profile} is deleted")).await
            }
            Self::History(which) => {
                let call = which.to_request(context, operations::LIST_PROFILE_VERSIONS).await?;
                let name = |it: &ProfileVersionView| it.version.to_string();
                let heads = ["version", "when", "by", "network", "memory", "description"];
                context.show_list(&call, None, name, heads, version_row).await
            }
            Self::Check(check) => check.run(context).await,
        }
    }
}

impl ProfileSelector {
    async fn to_request(&self, context: &CliContext, operation: Operation) -> Result<ApiRequest> {
        let project = context.optional_project_id(self.project.as_deref()).await?;
        Ok(ApiRequest::with_path_params(operation, [&self.profile])
            .with_query("project_id", project))
    }
}

impl ProfileCreateArgs {
    async fn run(self, context: &CliContext) -> Result<()> {
        let spec = match (&self.file, self.like) {
            (Some(file), _) => json!(read_profile_file(file)?),
            (None, Some(profile)) => {
                let which = ProfileSelector { profile, project: self.project.clone() };
                let call = which.to_request(context, operations::GET_PROFILE).await?;
                context.send_request(&call).await?["spec"].take()
            }
            (None, None) => {
                return Err(CliError::new(CliErrorKind::Usage, "what does the profile permit?")
                    .with_fix("name a file with --file, or a profile to copy with --like"));
            }
        };
        let project = context.optional_project_id(self.project.as_deref()).await?;
        let body = json!({ "name": self.name, "project_id": project, "spec": spec });
        let call = ApiRequest::for_operation(operations::CREATE_PROFILE)
            .with_json_body(&input::without_nulls(body));
        let words = |it: &ProfileView, _: &ValueFormatter| {
            format!("{} can be named by tasks, schedules and chats", it.name)
        };
        context.show_outcome(&call, |it: &ProfileView| it.name.clone(), words).await
    }
}

impl ProfileUpdateArgs {
    async fn run(self, context: &CliContext) -> Result<()> {
        let spec = read_profile_file(&self.file)?;
        let version = match self.expected_version {
            Some(version) => json!(version),
            None => {
                let call = self.which.to_request(context, operations::GET_PROFILE).await?;
                context.send_request(&call).await?["version"].take()
            }
        };
        let call = self.which.to_request(context, operations::UPDATE_PROFILE).await?;
        let call = call.with_json_body(&json!({ "expected_version": version, "spec": spec }));
        let words = |it: &ProfileView, _: &ValueFormatter| {
            format!("{} is at version {}", it.name, it.version)
        };
        context.show_outcome(&call, |it: &ProfileView| it.name.clone(), words).await
    }
}

impl ProfileCheckArgs {
    /// Returns the questions, in the order of the options.
    fn questions(&self) -> Vec<ProfileQuestion> {
        let tools = self.tool.iter().map(|name| ProfileQuestion::Tool { name: name.clone() });
        let variables =
            self.variable.iter().map(|name| ProfileQuestion::Variable { name: name.clone() });
        let reads = self.read.iter().map(|path| ProfileQuestion::Read { path: path.clone() });
        let writes = self.write.iter().map(|path| ProfileQuestion::Write { path: path.clone() });
        let models = self.model.iter().map(|id| ProfileQuestion::Model { id: id.clone() });
        let requests = self.request.iter().cloned();
        tools.chain(requests).chain(variables).chain(reads).chain(writes).chain(models).collect()
    }

    async fn run(self, context: &CliContext) -> Result<()> {
        let questions = self.questions();
        if questions.is_empty() {
            return Err(CliError::new(CliErrorKind::Usage, "what is asked?").with_fix(
                "say it with --tool, --request, --variable, --read, --write or --model",
            ));
        }
        let call = self.which.to_request(context, operations::CHECK_PROFILE).await?;
        let value =
            context.send_request(&call.with_json_body(&json!({ "questions": questions }))).await?;
        let allowed = |it: &ProfileDecisions| {
            let allowed = it.decisions.iter().filter(|decision| decision.allowed);
            allowed.map(|decision| describe_question(&decision.question)).collect::<Vec<_>>()
        };
        context.show_answer(&value, allowed, render_decisions)
    }
}

/// Parses `GET docs.rs`.
fn parse_request(text: &str) -> std::result::Result<ProfileQuestion, String> {
    match text.split_whitespace().collect::<Vec<_>>().as_slice() {
        [method, host] => Ok(ProfileQuestion::Request {
            method: method.to_ascii_uppercase(),
            host: (*host).to_owned(),
        }),
        _ => Err("a request is a method and a host, such as `GET docs.rs`".to_owned()),
    }
}

/// Reads a profile file: TOML, or JSON.
fn read_profile_file(path: &str) -> Result<ProfileSpec> {
    let text = input::read_file_text(path)?;
    let spec = parse_profile(&text)
        .map_err(|why| CliError::invalid_input(format!("{path} is no profile: {why}")))?;
    spec.validate().map_err(|why| CliError::invalid_input(format!("{path}: {why}")))?;
    Ok(spec)
}

fn parse_profile(text: &str) -> std::result::Result<ProfileSpec, String> {
    if text.trim_start().starts_with('{') {
        return serde_json::from_str(text).map_err(|error| error.to_string());
    }
    toml::from_str(text).map_err(|error| error.to_string())
}

fn render_decisions(it: &ProfileDecisions, look: &ValueFormatter) -> String {
    let row = |decision: &ProfileDecision| {
        [describe_question(&decision.question), look.format_yes_no(decision.allowed)]
    };
    let by = format!("{} (version {})", it.name, it.version);
    let head = render_record(look.paint, &[("profile", look.style_bold(&by))]);
    let rows = it.decisions.iter().map(row).collect();
    format!("{head}\n{}", render_table(look.paint, ["asked", "allowed"], rows))
}

/// Renders a question as it is asked.
fn describe_question(question: &ProfileQuestion) -> String {
    match question {
        ProfileQuestion::Tool { name } => format!("tool {name}"),
        ProfileQuestion::Request { method, host } => format!("request {method} {host}"),
        ProfileQuestion::Variable { name } => format!("variable {name}"),
        ProfileQuestion::Read { path } => format!("read {path}"),
        ProfileQuestion::Write { path } => format!("write {path}"),
        ProfileQuestion::Model { id } => format!("model {id}"),
    }
}

/// Renders where a profile belongs.
fn render_owner(it: &ProfileView) -> &'static str {
    match (it.shipped, it.project_id) {
        (true, _) => "product",
        (false, Some(_)) => "project",
        (false, None) => "installation",
    }
}

fn render_network(rules: &[NetworkRule]) -> String {
    let rules = rules.iter().map(|rule| format!("{} {}", rule.methods.join(","), rule.domain));
    rules.collect::<Vec<_>>().join("\n")
}

fn first_line(text: &str) -> String {
    text.lines().next().unwrap_or_default().to_owned()
}

fn profile_row(it: &ProfileView, look: &ValueFormatter) -> [String; 6] {
    [
        look.style_bold(&it.name),
        render_owner(it).to_owned(),
        it.version.to_string(),
        look.format_yes_no(it.spec.has_network()),
        it.spec.memory.as_str().to_owned(),
        first_line(&it.spec.description),
    ]
}

fn version_row(it: &ProfileVersionView, look: &ValueFormatter) -> [String; 6] {
    [
        it.version.to_string(),
        look.format_relative_time(it.written_at),
        it.written_by.to_string(),
        look.format_yes_no(it.spec.has_network()),
        it.spec.memory.as_str().to_owned(),
        first_line(&it.spec.description),
    ]
}

fn profile_fields(it: &ProfileView, look: &ValueFormatter) -> Vec<(&'static str, String)> {
    let spec = &it.spec;
    let limit = |value: Option<u32>, unit: &str| value.map(|value| format!("{value}{unit}"));
    let sandbox = [
        limit(spec.sandbox.memory_mib, " MiB memory"),
        limit(spec.sandbox.cpu_percent, " % of a core"),
        limit(spec.sandbox.processes, " processes"),
        limit(spec.sandbox.disk_mib, " MiB disk"),
    ];
    let budget = spec.budget_micros.map(|micros| i64::try_from(micros).unwrap_or(i64::MAX));
    vec![
        ("name", look.style_bold(&it.name)),
        ("of", render_owner(it).to_owned()),
        ("version", it.version.to_string()),
        ("description", spec.description.clone()),
        ("tools", spec.tools.join("  ")),
        ("network", render_network(&spec.network)),
        ("variables", spec.variables.join("  ")),
        ("reads", spec.paths.read.join("  ")),
        ("writes", spec.paths.write.join("  ")),
        ("models", spec.models.join("  ")),
        ("memory", spec.memory.as_str().to_owned()),
        ("sandbox", sandbox.into_iter().flatten().collect::<Vec<_>>().join(", ")),
        ("budget", budget.map(|micros| look.format_money(micros)).unwrap_or_default()),
        ("changed", look.format_optional_time(it.updated_at)),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOML: &str = r#"
description = "Writes the manual"
tools = ["db.*", "memory.*"]
variables = ["DOCS_*"]
models = ["*"]
memory = "read"
budget_micros = 500000

[[network]]
domain = "docs.rs"
methods = ["GET"]

[paths]
read = ["**"]
write = ["docs/**"]

[sandbox]
memory_mib = 1024
"#;

    #[test]
    fn a_profile_is_read_from_toml_and_from_json_and_a_mistake_is_told() {
        let toml = parse_profile(TOML).unwrap();
        toml.validate().unwrap();
        let json = serde_json::to_string(&toml).unwrap();
        assert_eq!(parse_profile(&json), Ok(toml.clone()));
        assert!(toml.allows_write("docs/a.md") && !toml.allows_write("src/a.rs"));
        assert_eq!(toml.sandbox.memory_mib, Some(1024));
        assert!(parse_profile("tool = [\"*\"]").unwrap_err().contains("tool"));
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "variables = [\"A B\"]").unwrap();
        let wrong = read_profile_file(file.path().to_str().unwrap()).unwrap_err();
        assert!(wrong.detail.contains("variables"), "{}", wrong.detail);
    }

    #[test]
    fn a_request_to_check_is_a_method_and_a_host() {
        let request = ProfileQuestion::Request { method: "GET".into(), host: "docs.rs".into() };
        assert_eq!(parse_request("get docs.rs"), Ok(request));
        for wrong in ["", "docs.rs", "GET docs.rs /"] {
            assert!(parse_request(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn every_question_is_asked_and_shown() {
        let which = ProfileSelector { profile: "research".into(), project: None };
        let one = |text: &str| vec![text.to_owned()];
        let check = ProfileCheckArgs {
            which,
            tool: one("web.fetch"),
            request: vec![parse_request("GET docs.rs").unwrap()],
            variable: one("CI"),
            read: one("a"),
            write: one("b"),
            model: one("m"),
        };
        let asked: Vec<String> = check.questions().iter().map(describe_question).collect();
        let shown = [
            "tool web.fetch",
            "request GET docs.rs",
            "variable CI",
            "read a",
            "write b",
            "model m",
        ];
        assert_eq!(asked, shown);
    }
}
