//! Who is asking: the first admin, logging in and out, and how the installation is.

use std::fmt::Write as _;

use clap::{Args, Subcommand};
use cynode_wire::{
    accounts::{MeView, SessionView},
    health::{CheckStatus, Health, Readiness},
};
use secrecy::{ExposeSecret, SecretString};
use serde_json::{Value, json};

use crate::{
    cli,
    client::Call,
    context::Context,
    failure::{Failure, Kind, Result},
    given::{self, Ask},
    look::{Look, plain},
    operations,
    terminal::Style,
};

#[derive(Subcommand)]
pub(crate) enum Account {
    /// Makes the first admin of a new installation, with the link or token that `cynode up` printed.
    #[command(
        after_help = "Example: cynork setup 'http://127.0.0.1:12080/#bootstrap=TOKEN' --handle ada"
    )]
    Setup(Setup),
    /// Logs in and keeps the session.
    #[command(after_help = "Example: cynork login http://127.0.0.1:12080 --handle ada")]
    Login(Login),
    /// Ends the session.
    #[command(after_help = "Example: cynork logout")]
    Logout,
    /// Says who you are and what you may do.
    #[command(after_help = "Example: cynork whoami --json")]
    Whoami,
    /// Says whether the installation can do its work, and what is missing.
    #[command(after_help = "Example: cynork status")]
    Status,
}

#[derive(Args)]
pub(crate) struct Setup {
    /// The link that `cynode up` printed, or the token in it; `-` reads it from standard input.
    link: String,
    /// The name you will log in with.
    #[arg(long)]
    handle: String,
    /// The name that people see.
    #[arg(long)]
    name: Option<String>,
    /// Reads the password from standard input, its next line.
    #[arg(long)]
    password_stdin: bool,
}

#[derive(Args)]
pub(crate) struct Login {
    /// The installation.
    #[arg(value_name = "ADDRESS")]
    address: Option<String>,
    /// Your name there.
    #[arg(long)]
    handle: Option<String>,
    /// Reads the password from standard input, its first line.
    #[arg(long, conflicts_with = "token_stdin")]
    password_stdin: bool,
    /// Keeps an API key from standard input in place of a session.
    #[arg(long)]
    token_stdin: bool,
    /// A program that keeps the session in place of the file; see docs/cynork.md.
    #[arg(long, value_name = "PROGRAM", num_args = 1..)]
    helper: Option<Vec<String>>,
}

impl Account {
    pub(crate) async fn run(self, context: &mut Context) -> Result<()> {
        match self {
            Self::Setup(setup) => setup.run(context).await,
            Self::Login(login) => login.run(context).await,
            Self::Logout => logout(context).await,
            Self::Whoami => whoami(context).await,
            Self::Status => status(context).await,
        }
    }
}

/// The installation and the token in a link; a token alone is for the installation that is meant.
fn taken_apart(link: &str) -> (Option<String>, String) {
    let Some((before, token)) = link.trim().split_once("#bootstrap=") else {
        return (None, link.trim().to_owned());
    };
    (Some(before.to_owned()), token.to_owned())
}

impl Setup {
    async fn run(self, context: &mut Context) -> Result<()> {
        let link =
            if self.link == "-" { given::line()?.expose_secret().to_owned() } else { self.link };
        let (address, token) = taken_apart(&link);
        if let Some(address) = address {
            context.client = context.client.elsewhere(&cli::address(&address)?)?;
        }
        let ask = Ask {
            prompt: "Choose a password",
            flag: "--password-stdin",
            stdin: self.password_stdin,
        };
        let password = given::new_secret(context, ask)?;
        let name = self.name.unwrap_or_else(|| self.handle.clone());
        let body = json!({ "token": token, "handle": self.handle, "display_name": name,
            "password": password.expose_secret() });
        let call = Call::of(operations::BOOTSTRAP).body(&body);
        let made: Value = context.ask(&call).await?;
        session(context, &self.handle, &password).await?;
        let words = format!("you are {}, the first admin, and logged in", self.handle);
        context.out.done(&made, &words)
    }
}

impl Login {
    async fn run(self, context: &mut Context) -> Result<()> {
        if let Some(address) = &self.address {
            context.client = context.client.elsewhere(&cli::address(address)?)?;
        }
        if let Some(helper) = self.helper {
            context.file.kept.credential_helper = Some(helper);
        }
        if self.token_stdin {
            let token = given::line()?;
            context.client = context.client.clone().with_token(token.clone());
            let me = context.ask(&Call::of(operations::ME)).await?;
            keep(context, &token)?;
            return context.out.done(&me, &format!("you are {}", plain(&me["user"]["handle"])));
        }
        let handle = match self.handle {
            Some(handle) => handle,
            None if context.person() => dialoguer::Input::<String>::new()
                .with_prompt("Your name there")
                .interact_text()
                .map_err(|error| Failure::invalid(error.to_string()))?,
            None => {
                return Err(Failure::new(Kind::Usage, "who are you?").fix("say it with --handle"));
            }
        };
        let ask = Ask { prompt: "Password", flag: "--password-stdin", stdin: self.password_stdin };
        let password = given::secret(context, ask)?;
        session(context, &handle, &password).await?;
        let me = context.ask(&Call::of(operations::ME)).await?;
        context.out.done(&me, &format!("logged in to {} as {handle}", context.client.base()))
    }
}

/// Logs in and keeps the session.
async fn session(context: &mut Context, handle: &str, password: &SecretString) -> Result<()> {
    let body = json!({ "handle": handle, "password": password.expose_secret() });
    let call = Call::of(operations::LOGIN).body(&body);
    let session: SessionView = context.client.send(&call).await?;
    let token: SecretString = session.token.0.into();
    context.client = context.client.clone().with_token(token.clone());
    keep(context, &token)
}

pub(crate) fn keep(context: &mut Context, token: &SecretString) -> Result<()> {
    context.file.kept.url = Some(context.client.base().to_owned());
    context.file.keep(Some(token))
}

async fn logout(context: &mut Context) -> Result<()> {
    if !context.client.has_token() {
        return context.out.done(&Value::Null, "nobody was logged in");
    }
    let ended: Result<Value> = context.ask(&Call::of(operations::LOGOUT)).await;
    // What the server does not know any more need not be kept either.
    if let Err(failure) = ended
        && failure.kind != Kind::Refused
    {
        return Err(failure);
    }
    context.file.keep(None)?;
    context.out.done(&Value::Null, "logged out")
}

async fn whoami(context: &Context) -> Result<()> {
    let base = context.client.base().to_owned();
    let sides = |me: &MeView, look: &Look| {
        let user = &me.user;
        vec![
            ("name", look.bold(user.handle.as_str())),
            ("shown as", user.display_name.to_string()),
            (
                "may do",
                me.installation_role.map_or("what projects allow", |role| role.as_str()).to_owned(),
            ),
            ("id", user.id.to_string()),
            ("at", base),
        ]
    };
    context.one(&Call::of(operations::ME), |me: &MeView| me.user.handle.to_string(), sides).await
}

async fn status(context: &mut Context) -> Result<()> {
    let health: Health = context.client.send(&Call::of(operations::HEALTHZ)).await?;
    let ready: Readiness = context.client.ready(&Call::of(operations::READYZ)).await?;
    let value = json!({ "url": context.client.base(), "version": health.version, "ready": ready.ready,
        "checks": ready.checks, "logged_in": context.client.has_token() });
    context.out.show(
        &value,
        |_| vec![if ready.ready { "ready" } else { "not ready" }.to_owned()],
        |_, paint| {
            let word = if ready.ready {
                paint.dye(Style::Green, "ready")
            } else {
                paint.dye(Style::Red, "not ready")
            };
            let mut text =
                format!("CyNode {} at {}: {word}\n", health.version, context.client.base());
            for check in &ready.checks {
                let (mark, style) = match check.status {
                    CheckStatus::Ok => ("✓", Style::Green),
                    CheckStatus::Warning => ("!", Style::Yellow),
                    CheckStatus::Failed => ("✗", Style::Red),
                };
                let mark = paint.dye(style, mark);
                let _ = writeln!(text, " {mark} {}  {}", check.name, check.detail);
                if let Some(fix) = &check.fix {
                    let _ = writeln!(text, "   next: {fix}");
                }
            }
            text
        },
    )?;
    if ready.ready {
        Ok(())
    } else {
        Err(Failure::new(Kind::EndedBadly, "the installation is not ready"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_is_an_installation_and_a_token() {
        let taken = taken_apart(" http://127.0.0.1:12080/#bootstrap=abc\n");
        assert_eq!(taken, (Some("http://127.0.0.1:12080/".to_owned()), "abc".to_owned()));
        assert_eq!(taken_apart("abc"), (None, "abc".to_owned()));
    }
}
