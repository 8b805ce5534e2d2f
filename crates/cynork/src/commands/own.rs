//! What `cynork` says of itself: completions, pages of the manual, its configuration, its contract.

use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use clap_complete::Shell;
use serde::Serialize;

use crate::{
    cli,
    context::Context,
    contract,
    failure::{Failure, Kind, Result},
    output::{Output, record, say},
};

#[derive(Subcommand)]
pub(crate) enum Own {
    /// Writes completions for a shell to standard output.
    #[command(after_help = "Example: cynork completions bash")]
    Completions {
        /// The shell.
        shell: Shell,
    },
    /// Writes pages of the manual, one for each command, into a directory.
    #[command(after_help = "Example: cynork man man1")]
    Man {
        /// The directory; made if it is not there.
        directory: PathBuf,
    },
    /// What is kept between commands.
    #[command(subcommand)]
    Config(Config),
    /// Writes what every command promises, for tests and programs.
    #[command(hide = true, after_help = "Example: cynork contract")]
    Contract {
        /// The table of commands of docs/cynork.md in its place.
        #[arg(long)]
        table: bool,
    },
}

#[derive(Subcommand)]
pub(crate) enum Config {
    /// Shows where the configuration is kept and what is in it, without the session.
    #[command(after_help = "Example: cynork config show")]
    Show,
    /// Keeps a value; without one, keeps none.
    #[command(after_help = "Example: cynork config set url http://127.0.0.1:12080")]
    Set(Set),
}

#[derive(Args)]
pub(crate) struct Set {
    /// The address of the installation, the project that is meant when none is named, or the program that keeps the session.
    #[arg(value_parser = ["url", "project", "helper"])]
    key: String,
    /// The value; of a helper, the program and its arguments, behind `--` if they begin with a dash.
    value: Vec<String>,
}

/// The configuration, without its secret.
#[derive(Serialize)]
struct Kept {
    file: String,
    url: String,
    project: Option<String>,
    helper: Option<Vec<String>>,
    logged_in: bool,
}

/// Completions of a shell.
#[derive(Serialize)]
struct Script {
    shell: String,
    script: String,
}

/// Pages that were written.
#[derive(Serialize)]
struct Pages {
    directory: String,
    pages: Vec<String>,
}

impl Own {
    pub(crate) fn run(self, context: &mut Context) -> Result<()> {
        match self {
            Self::Completions { shell } => completions(context, shell),
            Self::Man { directory } => man(context, &directory),
            Self::Config(Config::Show) => show(context),
            Self::Config(Config::Set(set)) => set.run(context),
            Self::Contract { table: false } => Output::json(&contract::document()),
            Self::Contract { table: true } => {
                say(contract::table().trim_end());
                Ok(())
            }
        }
    }
}

fn completions(context: &Context, shell: Shell) -> Result<()> {
    let mut bytes = Vec::new();
    clap_complete::generate(shell, &mut cli::command(), "cynork", &mut bytes);
    let script =
        Script { shell: shell.to_string(), script: String::from_utf8_lossy(&bytes).into_owned() };
    context.out.show(&script, |it| vec![it.script.clone()], |it, _| it.script.clone())
}

/// Every command that is not hidden, itself first.
fn each(command: &clap::Command) -> Vec<&clap::Command> {
    let inner = command.get_subcommands().filter(|it| !it.is_hide_set());
    std::iter::once(command).chain(inner.flat_map(each)).collect()
}

fn man(context: &Context, directory: &Path) -> Result<()> {
    let failed = |error: std::io::Error| {
        Failure::new(Kind::Usage, format!("{} cannot be written: {error}", directory.display()))
    };
    std::fs::create_dir_all(directory).map_err(failed)?;
    let mut whole = cli::command();
    whole.build();
    let mut pages = Vec::new();
    for command in each(&whole) {
        let page = clap_mangen::Man::new(command.clone()).manual("cynork");
        page.generate_to(directory).map_err(failed)?;
        pages.push(page.get_filename());
    }
    let count = pages.len();
    let written = Pages { directory: directory.display().to_string(), pages };
    context.out.show(
        &written,
        |it| it.pages.clone(),
        |it, _| format!("{count} pages in {0}; read one with: man {0}/cynork.1", it.directory),
    )
}

fn show(context: &Context) -> Result<()> {
    let kept = &context.file.kept;
    let value = Kept {
        file: context.file.path().display().to_string(),
        url: context.client.base().to_owned(),
        project: kept.project.clone(),
        helper: kept.credential_helper.clone(),
        logged_in: context.client.has_token(),
    };
    context.out.show(
        &value,
        |it| vec![it.file.clone()],
        |it, paint| {
            let logged_in = if it.logged_in { "yes" } else { "no: cynork login" };
            record(
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

impl Set {
    fn run(self, context: &mut Context) -> Result<()> {
        let one = match self.value.as_slice() {
            [] => None,
            [one] => Some(one.clone()),
            _ if self.key == "helper" => None,
            _ => return Err(Failure::new(Kind::Usage, format!("{} is one word", self.key))),
        };
        match self.key.as_str() {
            "url" => {
                let url = one.map(|url| cli::address(&url)).transpose()?;
                // A session is given to the installation that gave it and to no other.
                if url != context.file.kept.url && context.file.token()?.is_some() {
                    context.file.keep(None)?;
                }
                context.file.kept.url = url;
            }
            "project" => context.file.kept.project = one,
            _ => {
                // The session moves to its new keeper.
                let token = context.file.token()?;
                let helper = (!self.value.is_empty()).then(|| self.value.clone());
                if context.file.kept.credential_helper.is_some() && token.is_some() {
                    context.file.keep(None)?;
                }
                context.file.kept.credential_helper = helper;
                if token.is_some() {
                    context.file.keep(token.as_ref())?;
                }
            }
        }
        context.file.write()?;
        show(context)
    }
}
