//! Commands about `cynork` itself: completions, manual pages, its configuration, its contract.

use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use clap_complete::{Shell, env::Shells};
use serde::Serialize;

use crate::{
    cli,
    context::CliContext,
    contract,
    failure::{CliError, CliErrorKind, Result},
    output::{CliOutput, print_line, render_record},
};

#[derive(Subcommand)]
pub(crate) enum MetaCommand {
    /// Print a shell completion script. It completes commands, flags and names of tasks, projects, models, nodes and
    /// providers.
    #[command(after_help = "Example: cynork completions bash")]
    Completions {
        /// Shell.
        shell: Shell,
    },
    /// Write man pages, one per command, into a directory.
    #[command(after_help = "Example: cynork man man1")]
    Man {
        /// Output directory; created if it does not exist.
        directory: PathBuf,
    },
    /// Manage the local configuration.
    #[command(subcommand)]
    Config(ConfigCommand),
    /// Print the contract of every command, for tests and programs.
    #[command(hide = true, after_help = "Example: cynork contract")]
    Contract {
        /// Print the command table of docs/reference/cynork.md instead.
        #[arg(long)]
        table: bool,
    },
}

#[derive(Subcommand)]
pub(crate) enum ConfigCommand {
    /// Show the path and content of the configuration, without the session.
    #[command(after_help = "Example: cynork config show")]
    Show,
    /// Set a configuration value; without a value, unset it.
    #[command(after_help = "Example: cynork config set url http://127.0.0.1:12080")]
    Set(ConfigSetArgs),
}

#[derive(Args)]
pub(crate) struct ConfigSetArgs {
    /// Key: the URL of the installation, the default project, or the credential helper.
    #[arg(value_parser = ["url", "project", "helper"])]
    key: String,
    /// Value; for a helper, the program and its arguments, after `--` if they begin with a dash.
    value: Vec<String>,
}

/// The configuration, without its secret.
#[derive(Serialize)]
struct ConfigSummary {
    file: String,
    url: String,
    project: Option<String>,
    helper: Option<Vec<String>>,
    logged_in: bool,
}

/// Completions of a shell.
#[derive(Serialize)]
struct CompletionScript {
    shell: String,
    script: String,
}

/// The written manual pages.
#[derive(Serialize)]
struct ManualPages {
    directory: String,
    pages: Vec<String>,
}

impl MetaCommand {
    pub(crate) fn run(self, context: &mut CliContext) -> Result<()> {
        match self {
            Self::Completions { shell } => print_completions(context, shell),
            Self::Man { directory } => write_manual_pages(context, &directory),
            Self::Config(ConfigCommand::Show) => show_config(context),
            Self::Config(ConfigCommand::Set(set)) => set.run(context),
            Self::Contract { table: false } => {
                CliOutput::print_json(&contract::contract_document())
            }
            Self::Contract { table: true } => {
                print_line(contract::commands_table().trim_end());
                Ok(())
            }
        }
    }
}

fn print_completions(context: &CliContext, shell: Shell) -> Result<()> {
    let mut bytes = Vec::new();
    let shells = Shells::builtins();
    let completer = shells.completer(&shell.to_string()).ok_or_else(|| {
        CliError::new(CliErrorKind::Usage, format!("there is no completion for {shell}"))
    })?;
    completer
        .write_registration("COMPLETE", "cynork", "cynork", "cynork", &mut bytes)
        .map_err(|error| CliError::internal_error(error.to_string()))?;
    let script = CompletionScript {
        shell: shell.to_string(),
        script: String::from_utf8_lossy(&bytes).into_owned(),
    };
    context.out.print_answer(&script, |it| vec![it.script.clone()], |it, _| it.script.clone())
}

/// Returns every command that is not hidden, starting with itself.
fn collect_visible_commands(command: &clap::Command) -> Vec<&clap::Command> {
    let inner = command.get_subcommands().filter(|it| !it.is_hide_set());
    std::iter::once(command).chain(inner.flat_map(collect_visible_commands)).collect()
}

fn write_manual_pages(context: &CliContext, directory: &Path) -> Result<()> {
    let failed = |error: std::io::Error| {
        CliError::new(
            CliErrorKind::Usage,
            format!("{} cannot be written: {error}", directory.display()),
        )
    };
    std::fs::create_dir_all(directory).map_err(failed)?;
    let mut whole = cli::build_command();
    whole.build();
    let mut pages = Vec::new();
    for command in collect_visible_commands(&whole) {
        let page = clap_mangen::Man::new(command.clone()).manual("cynork");
        page.generate_to(directory).map_err(failed)?;
        pages.push(page.get_filename());
    }
    let count = pages.len();
    let written = ManualPages { directory: directory.display().to_string(), pages };
    context.out.print_answer(
        &written,
        |it| it.pages.clone(),
        |it, _| format!("{count} pages in {0}; read one with: man {0}/cynork.1", it.directory),
    )
}

fn show_config(context: &CliContext) -> Result<()> {
    let kept = &context.file.kept;
    let value = ConfigSummary {
        file: context.file.file_path().display().to_string(),
        url: context.client.base_url().to_owned(),
        project: kept.project.clone(),
        helper: kept.credential_helper.clone(),
        logged_in: context.client.has_token(),
    };
    context.out.print_answer(
        &value,
        |it| vec![it.file.clone()],
        |it, paint| {
            let logged_in = if it.logged_in { "yes" } else { "no: cynork login" };
            render_record(
                paint,
                &[
                    ("file", it.file.clone()),
                    ("url", it.url.clone()),
                    ("project", it.project.clone().unwrap_or_default()),
                    ("helper", it.helper.as_ref().map(|words| words.join(" ")).unwrap_or_default()),
                    ("logged in", logged_in.to_owned()),
                ],
            )
        },
    )
}

impl ConfigSetArgs {
    fn run(self, context: &mut CliContext) -> Result<()> {
        let one = match self.value.as_slice() {
            [] => None,
            [one] => Some(one.clone()),
            _ if self.key == "helper" => None,
            _ => {
                return Err(CliError::new(
                    CliErrorKind::Usage,
                    format!("{} is one word", self.key),
                ));
            }
        };
        match self.key.as_str() {
            "url" => {
                let url = one.map(|url| cli::validate_base_url(&url)).transpose()?;
                // A session is sent only to the installation that issued it.
                if url != context.file.kept.url && context.file.load_token()?.is_some() {
                    context.file.store_token(None)?;
                }
                context.file.kept.url = url;
            }
            "project" => context.file.kept.project = one,
            _ => {
                // The session moves to the new store.
                let token = context.file.load_token()?;
                let helper = (!self.value.is_empty()).then(|| self.value.clone());
                if context.file.kept.credential_helper.is_some() && token.is_some() {
                    context.file.store_token(None)?;
                }
                context.file.kept.credential_helper = helper;
                if token.is_some() {
                    context.file.store_token(token.as_ref())?;
                }
            }
        }
        context.file.write_config()?;
        show_config(context)
    }
}
