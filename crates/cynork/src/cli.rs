//! The command line: what may be said, and who does it.

use std::{ffi::OsString, path::PathBuf, process::ExitCode};

use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand};
use cynode_core::trace::TraceId;
use secrecy::SecretString;

use crate::{
    client::Client,
    commands,
    config::{DEFAULT_URL, Environment, File},
    context::Context,
    failure::{Failure, Kind, Result},
    output::{self, Form, Output},
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
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) globals: Globals,
    /// Without a command, the terminal screen opens.
    #[command(subcommand)]
    pub(crate) command: Option<Command>,
}

/// What every command takes.
#[expect(clippy::struct_excessive_bools, reason = "each is a switch of its own")]
#[derive(Args)]
#[command(next_help_heading = "Everywhere")]
pub(crate) struct Globals {
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
pub(crate) enum Command {
    #[command(flatten)]
    Account(commands::account::Account),
    /// Asks for work, shows the plan, follows it to its end.
    Run(commands::run::Run),
    /// Makes a small repository to try a first task with, and a script in place of a model.
    Sample(commands::sample::Sample),
    /// Tasks: what was asked for and what became of it.
    #[command(subcommand)]
    Task(commands::task::Task),
    /// Projects: who may do what where, and which repository.
    #[command(subcommand)]
    Project(commands::project::Project),
    /// The repository of a project on a forge.
    #[command(subcommand)]
    Remote(commands::remote::Remote),
    /// Pull requests: what tasks brought.
    #[command(subcommand)]
    Pr(commands::pr::Pr),
    Chat(commands::chat::Chat),
    /// Calls of agents that wait for your answer.
    #[command(subcommand)]
    Approval(commands::approval::Approval),
    Events(commands::events::Events),
    /// Models: what may be asked, what it costs, the ways to it.
    #[command(subcommand)]
    Model(commands::model::Model),
    /// Providers of models, and the keys to them.
    #[command(subcommand)]
    Provider(commands::provider::Provider),
    /// Ceilings on what models may cost.
    #[command(subcommand)]
    Budget(commands::budget::Budget),
    /// What models were used for.
    #[command(subcommand)]
    Usage(commands::usage::Usage),
    /// Tools of agents, and the servers that offer them.
    #[command(subcommand)]
    Tool(commands::tool::Tool),
    /// Rules of the gate.
    #[command(subcommand)]
    Rule(commands::rule::Rule),
    /// Keys for your programs, and tokens of agents.
    #[command(subcommand)]
    Token(commands::token::Token),
    /// Records of tool calls.
    #[command(subcommand)]
    Audit(commands::audit::Audit),
    /// The machines that run jobs.
    #[command(subcommand)]
    Node(commands::node::Node),
    /// Images that sandboxes may be made from.
    #[command(subcommand)]
    Image(commands::image::Image),
    /// Work that is asked for at its time.
    #[command(subcommand)]
    Schedule(commands::schedule::Schedule),
    /// Instructions that agents of a project may be given.
    #[command(subcommand)]
    Skill(commands::skill::Skill),
    /// What people prefer; the more specific scope holds.
    #[command(subcommand)]
    Prefs(commands::prefs::Prefs),
    /// What holds for the whole installation.
    #[command(subcommand)]
    Settings(commands::settings::Settings),
    /// People with an account.
    #[command(subcommand)]
    User(commands::user::User),
    /// Groups of people who have a role together.
    #[command(subcommand)]
    Group(commands::group::Group),
    /// The ways by which people are told.
    #[command(subcommand)]
    Channel(commands::channel::Channel),
    /// What people were told and what is to be told.
    #[command(subcommand)]
    Notice(commands::notice::Notice),
    /// What was given to the project manager, and what it thought.
    #[command(subcommand)]
    Handoff(commands::handoff::Handoff),
    /// The page behind a link of a notice.
    #[command(subcommand)]
    Link(commands::link::Link),
    Metrics(commands::metrics::Metrics),
    Api(commands::api::Api),
    #[command(flatten)]
    Own(commands::own::Own),
}

/// The command line as it is parsed; for help, completions, pages of the manual and tests.
pub fn command() -> clap::Command {
    Cli::command()
}

/// Runs the program.
pub fn main() -> ExitCode {
    let environment = Environment::read();
    let arguments: Vec<OsString> = std::env::args_os().collect();
    let json = arguments.iter().any(|argument| argument == "--json");
    let cli =
        match command().try_get_matches_from(arguments).and_then(|it| Cli::from_arg_matches(&it)) {
            Ok(cli) => cli,
            Err(error) => return not_understood(&error, json),
        };
    let form = match (cli.globals.json, cli.globals.quiet) {
        (true, _) => Form::Json,
        (_, true) => Form::Quiet,
        _ => Form::Readable,
    };
    let out = Output::new(form, !cli.globals.no_color && !environment.no_colour);
    ended(begin(cli, environment, out).and_then(|()| output::written()), out)
}

/// What the shell is told; why it failed is told to the person first.
fn ended(done: Result<()>, out: Output) -> ExitCode {
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            out.complain(&failure);
            ExitCode::from(failure.kind as u8)
        }
    }
}

/// Help and version are answers; everything else was not understood, which programs are told in their own way.
fn not_understood(error: &clap::Error, json: bool) -> ExitCode {
    if !error.use_stderr() {
        let printed = error.print().or_else(|error| output::unless_gone(&error));
        return ended(printed, Output::new(Form::Readable, false));
    }
    if json {
        let said = error.render().to_string();
        let first =
            said.lines().next().unwrap_or_default().trim_start_matches("error: ").to_owned();
        let failure = Failure::new(Kind::Usage, first).fix("see --help");
        Output::new(Form::Json, false).complain(&failure);
    } else {
        let _ = error.print();
    }
    ExitCode::from(Kind::Usage as u8)
}

fn begin(cli: Cli, environment: Environment, out: Output) -> Result<()> {
    let file = File::read(cli.globals.config, &environment)?;
    let url = cli.globals.url.or_else(|| environment.url.clone());
    let url = url.or_else(|| file.kept.url.clone()).unwrap_or_else(|| DEFAULT_URL.to_owned());
    let mut client = Client::new(&address(&url)?)?.telling(cli.globals.verbose);
    if let Some(trace) = cli.globals.trace_id {
        client = client.in_trace(trace);
    }
    // A session is given to the installation that gave it and to no other.
    let ours =
        file.kept.url.as_deref().is_none_or(|kept| kept.trim_end_matches('/') == client.base());
    let token: Option<SecretString> = match &environment.token {
        Some(token) => Some(token.clone()),
        None if ours => file.token()?,
        None => None,
    };
    if let Some(token) = token {
        client = client.with_token(token);
    }
    let mut context = Context { client, out, file, environment, yes: cli.globals.yes };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::internal(error.to_string()))?;
    runtime.block_on(async {
        match cli.command {
            None => commands::screen::open(&mut context).await,
            Some(command) => command.run(&mut context).await,
        }
    })
}

/// An address with its scheme; a session goes over an open line only on this machine.
pub(crate) fn address(given: &str) -> Result<String> {
    let url = url::Url::parse(given).ok().filter(|url| matches!(url.scheme(), "http" | "https"));
    let url = url.ok_or_else(|| {
        Failure::new(Kind::Usage, format!("`{given}` is not the address of an installation"))
            .fix(format!("write it like {DEFAULT_URL}"))
    })?;
    Ok(url.as_str().trim_end_matches('/').to_owned())
}

impl Command {
    async fn run(self, context: &mut Context) -> Result<()> {
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
            Self::Token(token) => token.run(context).await,
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
            Self::Notice(notice) => notice.run(context).await,
            Self::Handoff(handoff) => handoff.run(context).await,
            Self::Link(link) => link.run(context).await,
            Self::Metrics(metrics) => metrics.run(context).await,
            Self::Api(api) => api.run(context).await,
            Self::Own(own) => own.run(context),
        }
    }
}
