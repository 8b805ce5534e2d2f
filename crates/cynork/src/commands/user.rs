//! `cynork user`: people with an account.

use clap::{Args, Subcommand};
use cynode_wire::accounts::UserView;
use secrecy::ExposeSecret;
use serde_json::json;

use crate::{
    answers::Pages,
    client::Call,
    commands::{ROLES, ROLES_OR_NONE},
    context::Context,
    failure::Result,
    given::{self, Ask},
    look::Look,
    operations,
};

#[derive(Subcommand)]
pub(crate) enum User {
    /// Lists the users.
    #[command(after_help = "Example: cynork user list --all")]
    List(Pages),
    /// Makes a user; the password is typed, or read from standard input.
    #[command(
        after_help = "Example: cynork user create bob --name \"Bob Builder\" --role operator"
    )]
    Create(Create),
    /// Shows a user.
    #[command(after_help = "Example: cynork user show bob")]
    Show {
        /// By handle or id; `me` is you.
        user: String,
    },
    /// Switches a user on or off, gives a role, sets a password.
    #[command(after_help = "Example: cynork user change bob --role none --off")]
    Change(Change),
}

#[derive(Args)]
pub(crate) struct Create {
    /// What the user logs in with.
    handle: String,
    /// What others see; the handle when it is left out.
    #[arg(long)]
    name: Option<String>,
    /// Where the user can be written to.
    #[arg(long)]
    email: Option<String>,
    /// What the user may do in the whole installation; nothing when it is left out.
    #[arg(long, value_parser = ROLES)]
    role: Option<String>,
    /// Reads the password from standard input, its first line.
    #[arg(long)]
    password_stdin: bool,
}

#[expect(clippy::struct_excessive_bools, reason = "each is a switch of its own")]
#[derive(Args)]
pub(crate) struct Change {
    /// By handle or id; `me` is you.
    user: String,
    /// What the user may do in the whole installation.
    #[arg(long, value_parser = ROLES_OR_NONE)]
    role: Option<String>,
    /// The account may be used.
    #[arg(long, conflicts_with = "off")]
    on: bool,
    /// The account may not be used; its sessions end at once.
    #[arg(long)]
    off: bool,
    /// Sets a new password, which is typed. It ends every session of somebody else, revokes their API keys and switches off
    /// their channels; your own ends your other sessions.
    #[arg(long)]
    new_password: bool,
    /// Sets a new password from standard input, its first line.
    #[arg(long)]
    password_stdin: bool,
    /// Revokes every API key of the user.
    #[arg(long)]
    revoke_keys: bool,
}

/// How a password is asked for.
const PASSWORD: Ask<'_> = Ask { prompt: "New password", flag: "--password-stdin", stdin: false };

impl User {
    pub(crate) async fn run(self, context: &Context) -> Result<()> {
        match self {
            Self::List(pages) => list(context, &pages).await,
            Self::Create(create) => create.run(context).await,
            Self::Show { user } => {
                let id = context.user(&user).await?;
                context.one(&Call::to(operations::GET_USER, [id]), handle, sides).await
            }
            Self::Change(change) => change.run(context).await,
        }
    }
}

fn handle(user: &UserView) -> String {
    user.handle.to_string()
}

fn state(user: &UserView) -> &'static str {
    if user.active { "active" } else { "off" }
}

fn role(user: &UserView) -> String {
    user.role.map(|role| role.as_str()).unwrap_or_default().to_owned()
}

fn sides(user: &UserView, look: &Look) -> Vec<(&'static str, String)> {
    vec![
        ("handle", look.bold(user.handle.as_str())),
        ("name", user.display_name.to_string()),
        ("role", role(user)),
        ("account", look.state(state(user))),
        ("mail", user.email.as_ref().map(ToString::to_string).unwrap_or_default()),
        ("made", look.when(user.created_at)),
        ("id", user.id.to_string()),
    ]
}

async fn list(context: &Context, pages: &Pages) -> Result<()> {
    context
        .list(
            &Call::of(operations::LIST_USERS),
            Some(pages),
            handle,
            ["handle", "name", "role", "account", "made", "id"],
            |user, look| {
                [
                    look.bold(user.handle.as_str()),
                    user.display_name.to_string(),
                    role(user),
                    look.state(state(user)),
                    look.when(user.created_at),
                    look.dim(&user.id.to_string()),
                ]
            },
        )
        .await
}

impl Create {
    async fn run(self, context: &Context) -> Result<()> {
        let password = given::new_secret(context, Ask { stdin: self.password_stdin, ..PASSWORD })?;
        let name = self.name.unwrap_or_else(|| self.handle.clone());
        let body =
            given::said(json!({ "handle": self.handle, "display_name": name, "email": self.email,
            "role": self.role, "password": password.expose_secret() }));
        let call = Call::of(operations::CREATE_USER).body(&body);
        context.told(&call, handle, |user, _| format!("{} can log in", user.handle)).await
    }
}

impl Change {
    async fn run(self, context: &Context) -> Result<()> {
        let id = context.user(&self.user).await?;
        if self.off {
            context.sure(&format!("Switch off the account of {}?", self.user))?;
        }
        if self.revoke_keys {
            context.sure(&format!("Revoke every API key of {}?", self.user))?;
        }
        let password = if self.new_password || self.password_stdin {
            Some(given::new_secret(context, Ask { stdin: self.password_stdin, ..PASSWORD })?)
        } else {
            None
        };
        let active = (self.on || self.off).then_some(self.on);
        let password = password.as_ref().map(|it| it.expose_secret());
        let revoke_keys = self.revoke_keys.then_some(true);
        let body =
            given::changes(json!({ "active": active, "role": self.role, "password": password,
            "revoke_keys": revoke_keys }))?;
        let call = Call::to(operations::UPDATE_USER, [id]).body(&body);
        let sentence = |user: &UserView, look: &Look| {
            let role = user.role.map_or("no role of their own", |role| role.as_str());
            format!("{} is {}, {role}", user.handle, look.state(state(user)))
        };
        context.told(&call, handle, sentence).await
    }
}
