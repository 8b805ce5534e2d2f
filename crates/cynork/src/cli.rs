//! The command line: what may be said, and who does it.

use std::{ffi::OsString, path::PathBuf, process::ExitCode, sync::OnceLock};

use clap::{
    Args, CommandFactory, FromArgMatches, Parser, Subcommand,
    error::{ContextKind, ContextValue, ErrorKind},
};
use clap_complete::CompleteEnv;
use cynode_core::trace::TraceId;
use secrecy::SecretString;

use crate::{
    client::ApiClient,
    commands, complete,
    config::{CliEnvironment, ConfigFile, DEFAULT_URL},
    context::CliContext,
    failure::{CliError, CliErrorKind, Result},
    guesses,
    output::{self, CliOutput, CliOutputFormat},
};

/// CyNode from a terminal: ask for work, watch it, answer it, look after the installation.
#[derive(Parser)]
#[command(
    name = "cynork",
    version,
    disable_help_subcommand = true,
    after_help = "Example: cynork run \"add a dark mode switch\" --repo .\n\
                  Exit codes: 0 done, 1 it ended badly, 2 not understood, 3 refused, 4 not found, 5 conflict, 6 not valid, \
                  7 unreachable, 8 internal."
)]
pub(crate) struct CynorkCli {
    #[command(flatten)]
    pub(crate) globals: GlobalArgs,
    /// Without a command, the terminal screen opens.
    #[command(subcommand)]
    pub(crate) command: Option<CynorkCommand>,
}

/// What every command takes.
#[expect(clippy::struct_excessive_bools, reason = "each is a switch of its own")]
#[derive(Args)]
#[command(next_help_heading = "Everywhere")]
pub(crate) struct GlobalArgs {
    /// The installation; else `CYNORK_URL`, else the one you logged in to, else `http://127.0.0.1:12080`.
    #[arg(long, global = true, value_name = "URL")]
    url: Option<String>,
    /// The configuration file; else `cynork/config.toml` in your configuration directory.
    #[arg(long, global = true, value_name = "FILE")]
    config: Option<PathBuf>,
    /// One JSON value on standard output, for programs.
    #[arg(long, global = true, conflicts_with = "quiet")]
    json: bool,
    /// Names only, one in a line.
    #[arg(long, short, global = true)]
    quiet: bool,
    /// No colours; so does `NO_COLOR`.
    #[arg(long, global = true)]
    no_color: bool,
    /// Answers every question with yes.
    #[arg(long, short, global = true)]
    yes: bool,
    /// Tells each call on standard error.
    #[arg(long, short, global = true)]
    verbose: bool,
    /// The trace that this belongs to, 32 hexadecimal digits; else one is made up. A task that is made carries it on.
    #[arg(long, global = true, value_name = "TRACE")]
    trace_id: Option<TraceId>,
}

#[derive(Subcommand)]
pub(crate) enum CynorkCommand {
    #[command(flatten)]
    Account(commands::account::AccountCommand),
    /// Asks for work, shows the plan, follows it to its end.
    Run(commands::run::RunArgs),
    /// Makes a small repository to try a first task with, and a script in place of a model.
    Sample(commands::sample::SampleArgs),
    /// Tasks: what was asked for and what became of it.
    #[command(subcommand)]
    Task(commands::task::TaskCommand),
    /// Projects: who may do what where, and which repository.
    #[command(subcommand)]
    Project(commands::project::ProjectCommand),
    /// The repository of a project on a forge.
    #[command(subcommand)]
    Remote(commands::remote::RemoteCommand),
    /// Pull requests: what tasks brought.
    #[command(subcommand)]
    Pr(commands::pr::PullRequestCommand),
    Chat(commands::chat::ChatArgs),
    /// Calls of agents that wait for your answer.
    #[command(subcommand)]
    Approval(commands::approval::ApprovalCommand),
    Events(commands::events::EventsArgs),
    /// Models: what may be asked, what it costs, the ways to it.
    #[command(subcommand)]
    Model(commands::model::ModelCommand),
    /// Providers of models, and the keys to them.
    #[command(subcommand)]
    Provider(commands::provider::ProviderCommand),
    /// Budgets: the most that models may cost.
    #[command(subcommand)]
    Budget(commands::budget::BudgetCommand),
    /// What models were used for.
    #[command(subcommand)]
    Usage(commands::usage::UsageCommand),
    /// Tools of agents, and the servers that offer them.
    #[command(subcommand)]
    Tool(commands::tool::ToolCommand),
    /// Rules of the gate.
    #[command(subcommand)]
    Rule(commands::rule::RuleCommand),
    /// Keys for your programs, and tokens of agents.
    #[command(subcommand)]
    ApiKey(commands::api_key::ApiKeyCommand),
    /// Manage tokens of agents.
    #[command(subcommand)]
    AgentToken(commands::agent_token::AgentTokenCommand),
    /// Records of tool calls.
    #[command(subcommand)]
    Audit(commands::audit::AuditCommand),
    /// The machines that run jobs.
    #[command(subcommand)]
    Node(commands::node::NodeCommand),
    /// Images that sandboxes may be made from.
    #[command(subcommand)]
    Image(commands::image::ImageCommand),
    /// Work that is asked for at its time.
    #[command(subcommand)]
    Schedule(commands::schedule::ScheduleCommand),
    /// Instructions that agents of a project may be given.
    #[command(subcommand)]
    Skill(commands::skill::SkillCommand),
    /// What people prefer; the more specific scope holds.
    #[command(subcommand)]
    Prefs(commands::prefs::PreferencesCommand),
    /// What holds for the whole installation.
    #[command(subcommand)]
    Settings(commands::settings::SettingsCommand),
    /// People with an account.
    #[command(subcommand)]
    User(commands::user::UserCommand),
    /// Groups of people who have a role together.
    #[command(subcommand)]
    Group(commands::group::GroupCommand),
    /// Notification channels: how people hear of what happens.
    #[command(subcommand)]
    Channel(commands::channel::ChannelCommand),
    /// Notifications that were sent, or are to be sent.
    #[command(subcommand)]
    Notification(commands::notification::NotificationCommand),
    /// Work that was given to the project manager, and what it decided.
    #[command(subcommand)]
    Handoff(commands::handoff::HandoffCommand),
    /// The page behind a link of a notification.
    #[command(subcommand)]
    Link(commands::link::LinkCommand),
    Metrics(commands::metrics::MetricsArgs),
    Api(commands::api::ApiArgs),
    #[command(flatten)]
    Own(commands::own::MetaCommand),
}

/// The command line as it is parsed; for help, completions, pages of the manual and tests.
pub fn build_command() -> clap::Command {
    complete::with_name_completion(CynorkCli::command())
}

/// Runs the program.
pub fn main() -> ExitCode {
    // A shell that completes a line asks for candidates; the program ends with them.
    CompleteEnv::with_factory(build_command).complete();
    let environment = CliEnvironment::from_process();
    let arguments: Vec<OsString> = std::env::args_os().collect();
    let json = arguments.iter().any(|argument| argument == "--json");
    let cli = match build_command()
        .try_get_matches_from(&arguments)
        .and_then(|it| CynorkCli::from_arg_matches(&it))
    {
        Ok(cli) => cli,
        Err(error) => return report_usage_error(&error, &arguments, json),
    };
    let form = match (cli.globals.json, cli.globals.quiet) {
        (true, _) => CliOutputFormat::Json,
        (_, true) => CliOutputFormat::Quiet,
        _ => CliOutputFormat::Readable,
    };
    let out = CliOutput::new(form, !cli.globals.no_color && !environment.no_colour);
    to_exit_code(run_cli(cli, environment, out).and_then(|()| output::check_stdout()), out)
}

/// What the shell is told; why it failed is told to the person first.
fn to_exit_code(done: Result<()>, out: CliOutput) -> ExitCode {
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            out.print_error(&failure);
            ExitCode::from(failure.kind as u8)
        }
    }
}

/// Help and version are answers; everything else was not understood, which programs are told in their own way.
fn report_usage_error(error: &clap::Error, arguments: &[OsString], json: bool) -> ExitCode {
    if !error.use_stderr() {
        let printed = error.print().or_else(|error| output::ignore_broken_pipe(&error));
        return to_exit_code(printed, CliOutput::new(CliOutputFormat::Readable, false));
    }
    let hint = suggest_command(error, arguments);
    if json {
        let said = error.render().to_string();
        let first =
            said.lines().next().unwrap_or_default().trim_start_matches("error: ").to_owned();
        let failure =
            CliError::new(CliErrorKind::Usage, first).with_fix(hint.unwrap_or("see --help"));
        CliOutput::new(CliOutputFormat::Json, false).print_error(&failure);
    } else {
        let _ = error.print();
        if let Some(hint) = hint {
            output::print_stderr_line(&format!("\n  tip: {hint}"));
        }
    }
    ExitCode::from(CliErrorKind::Usage as u8)
}

/// What to type instead of a command that other tools have.
fn suggest_command(error: &clap::Error, arguments: &[OsString]) -> Option<&'static str> {
    if error.kind() != ErrorKind::InvalidSubcommand {
        return None;
    }
    let Some(ContextValue::String(unknown)) = error.get(ContextKind::InvalidSubcommand) else {
        return None;
    };
    let words: Vec<&str> = arguments.iter().skip(1).filter_map(|word| word.to_str()).collect();
    let end = words.iter().position(|word| word == unknown)?;
    let words: Vec<&str> =
        words[..=end].iter().copied().filter(|word| !word.starts_with('-')).collect();
    guesses::find_command_hint(&words)
}

/// A client of the installation that is meant, with the session that is kept for it.
pub(crate) fn connect_client(
    url: Option<String>,
    config: Option<PathBuf>,
    environment: &CliEnvironment,
) -> Result<(ApiClient, ConfigFile)> {
    let file = ConfigFile::load_config(config, environment)?;
    let url = url.or_else(|| environment.url.clone());
    let url = url.or_else(|| file.kept.url.clone()).unwrap_or_else(|| DEFAULT_URL.to_owned());
    let mut client = ApiClient::new(&validate_base_url(&url)?)?;
    // A session is given to the installation that gave it and to no other.
    let ours =
        file.kept.url.as_deref().is_none_or(|kept| kept.trim_end_matches('/') == client.base_url());
    let token: Option<SecretString> = match &environment.token {
        Some(token) => Some(token.clone()),
        None if ours => file.load_token()?,
        None => None,
    };
    if let Some(token) = token {
        client = client.with_token(token);
    }
    Ok((client, file))
}

fn run_cli(cli: CynorkCli, environment: CliEnvironment, out: CliOutput) -> Result<()> {
    let (client, file) = connect_client(cli.globals.url, cli.globals.config, &environment)?;
    let mut client = client.with_call_log(cli.globals.verbose);
    if let Some(trace) = cli.globals.trace_id {
        client = client.with_trace(trace);
    }
    let mut context = CliContext {
        client,
        out,
        file,
        environment,
        yes: cli.globals.yes,
        currency: OnceLock::new(),
        subject: OnceLock::new(),
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| CliError::internal_error(error.to_string()))?;
    runtime.block_on(async {
        match cli.command {
            None => commands::screen::open_screen(&mut context).await,
            Some(command) => command.run(&mut context).await,
        }
    })
}

/// An address with its scheme; a session goes over an open line only on this machine.
pub(crate) fn validate_base_url(given: &str) -> Result<String> {
    let url = url::Url::parse(given).ok().filter(|url| matches!(url.scheme(), "http" | "https"));
    let url = url.ok_or_else(|| {
        CliError::new(
            CliErrorKind::Usage,
            format!("`{given}` is not the address of an installation"),
        )
        .with_fix(format!("write it like {DEFAULT_URL}"))
    })?;
    Ok(url.as_str().trim_end_matches('/').to_owned())
}

impl CynorkCommand {
    async fn run(self, context: &mut CliContext) -> Result<()> {
        match self {
            Self::Account(account) => account.run(context).await,
            Self::Run(run) => run.run(context).await,
            Self::Sample(sample) => sample.run(context).await,
            Self::Task(task) => task.run(context).await,
            Self::Project(project) => project.run(context).await,
            Self::Remote(remote) => remote.run(context).await,
            Self::Pr(pr) => pr.run(context).await,
            Self::Chat(chat) => chat.run(context).await,
            Self::Approval(approval) => approval.run(context).await,
            Self::Events(events) => events.run(context).await,
            Self::Model(model) => model.run(context).await,
            Self::Provider(provider) => provider.run(context).await,
            Self::Budget(budget) => budget.run(context).await,
            Self::Usage(usage) => usage.run(context).await,
            Self::Tool(tool) => tool.run(context).await,
            Self::Rule(rule) => rule.run(context).await,
            Self::ApiKey(api_key) => api_key.run(context).await,
            Self::AgentToken(agent_token) => agent_token.run(context).await,
            Self::Audit(audit) => audit.run(context).await,
            Self::Node(node) => node.run(context).await,
            Self::Image(image) => image.run(context).await,
            Self::Schedule(schedule) => schedule.run(context).await,
            Self::Skill(skill) => skill.run(context).await,
            Self::Prefs(prefs) => prefs.run(context).await,
            Self::Settings(settings) => settings.run(context).await,
            Self::User(user) => user.run(context).await,
            Self::Group(group) => group.run(context).await,
            Self::Channel(channel) => channel.run(context).await,
            Self::Notification(notification) => notification.run(context).await,
            Self::Handoff(handoff) => handoff.run(context).await,
            Self::Link(link) => link.run(context).await,
            Self::Metrics(metrics) => metrics.run(context).await,
            Self::Api(api) => api.run(context).await,
            Self::Own(own) => own.run(context),
        }
    }
}
