//! `cynork user`: people with an account.

use clap::{Args, Subcommand};
use cynode_wire::identity::accounts::UserView;
use secrecy::ExposeSecret;
use serde_json::json;

use crate::{
    answers::PageArgs,
    client::ApiRequest,
    commands::{ROLES, ROLES_OR_NONE},
    context::CliContext,
    failure::Result,
    format::ValueFormatter,
    input::{self, SecretPrompt},
    operations,
};

#[derive(Subcommand)]
pub(crate) enum UserCommand {
    /// List the users of the installation.
    #[command(after_help = "Example: cynork user list --all")]
    List(PageArgs),
    /// Create a user; the password is typed or read from standard input.
    #[command(
        after_help = "Example: cynork user create bob --name \"Bob Builder\" --role operator"
    )]
    Create(UserCreateArgs),
    /// Show a user.
    #[command(after_help = "Example: cynork user show bob")]
    Show {
        /// User, by handle or id; `me` is you.
        user: String,
    },
    /// Update a user: enable or disable the account, set the role or the password.
    #[command(after_help = "Example: cynork user update bob --role none --disable")]
    Update(UserUpdateArgs),
}

#[derive(Args)]
pub(crate) struct UserCreateArgs {
    /// Handle to log in with.
    handle: String,
    /// Display name; defaults to the handle.
    #[arg(long)]
    name: Option<String>,
    /// Email address.
    #[arg(long)]
    email: Option<String>,
    /// Role in the installation; none by default.
    #[arg(long, value_parser = ROLES)]
    role: Option<String>,
    /// Let the user create projects without being an operator of the installation.
    #[arg(long)]
    can_create_projects: bool,
    /// Read the password from the first line of standard input.
    #[arg(long)]
    password_stdin: bool,
}

#[expect(clippy::struct_excessive_bools, reason = "each is a switch of its own")]
#[derive(Args)]
pub(crate) struct UserUpdateArgs {
    /// User, by handle or id; `me` is you.
    user: String,
    /// Role in the installation.
    #[arg(long, value_parser = ROLES_OR_NONE)]
    role: Option<String>,
    /// Enable the account.
    #[arg(long, conflicts_with = "disable")]
    enable: bool,
    /// Disable the account and end its sessions.
    #[arg(long)]
    disable: bool,
    /// Whether the user may create projects without being an operator of the installation.
    #[arg(long, value_name = "BOOL")]
    can_create_projects: Option<bool>,
    /// Set a new password for another user, which is typed. It also ends their sessions, revokes their API keys and disables their
    /// channels. Your own is changed with `cynork password`.
    #[arg(long)]
    new_password: bool,
    /// Read a new password from the first line of standard input.
    #[arg(long)]
    password_stdin: bool,
    /// Revoke every API key of the user.
    #[arg(long)]
    revoke_keys: bool,
    /// Delete the second factor of a user who has lost it, and end their sessions.
    #[arg(long)]
    delete_second_factor: bool,
    /// Put the account under the directory, which knows it by this `userName`; an empty text takes it out.
    #[arg(long, value_name = "NAME")]
    scim_name: Option<String>,
}

/// The prompt for a password.
const PASSWORD_PROMPT: SecretPrompt<'_> =
    SecretPrompt { prompt: "New password", flag: "--password-stdin", stdin: false };

impl UserCommand {
    pub(crate) async fn run(self, context: &CliContext) -> Result<()> {
        match self {
            Self::List(pages) => list_users(context, &pages).await,
            Self::Create(create) => create.run(context).await,
            Self::Show { user } => {
                let id = context.user_id(&user).await?;
                context
                    .show_item(
                        &ApiRequest::with_path_params(operations::GET_USER, [id]),
                        user_handle,
                        user_fields,
                    )
                    .await
            }
            Self::Update(update) => update.run(context).await,
        }
    }
}

fn user_handle(user: &UserView) -> String {
    user.handle.to_string()
}

fn user_state(user: &UserView) -> &'static str {
    if user.active { "active" } else { "off" }
}

fn user_role(user: &UserView) -> String {
    user.role.map(|role| role.as_str()).unwrap_or_default().to_owned()
}

fn user_fields(user: &UserView, look: &ValueFormatter) -> Vec<(&'static str, String)> {
    vec![
        ("handle", look.style_bold(user.handle.as_str())),
        ("name", user.display_name.to_string()),
        ("role", user_role(user)),
        ("creates projects", look.format_yes_no(user.can_create_projects)),
        ("account", look.style_state(user_state(user))),
        ("mail", user.email.as_ref().map(ToString::to_string).unwrap_or_default()),
        ("made", look.format_relative_time(user.created_at)),
        ("id", user.id.to_string()),
    ]
}

async fn list_users(context: &CliContext, pages: &PageArgs) -> Result<()> {
    context
        .show_list(
            &ApiRequest::for_operation(operations::LIST_USERS),
            Some(pages),
            user_handle,
            ["handle", "name", "role", "account", "made", "id"],
            |user, look| {
                [
                    look.style_bold(user.handle.as_str()),
                    user.display_name.to_string(),
                    user_role(user),
                    look.style_state(user_state(user)),
                    look.format_relative_time(user.created_at),
                    look.style_dim(&user.id.to_string()),
                ]
            },
        )
        .await
}

impl UserCreateArgs {
    async fn run(self, context: &CliContext) -> Result<()> {
        let password = input::read_new_password(
            context,
            SecretPrompt { stdin: self.password_stdin, ..PASSWORD_PROMPT },
        )?;
        let name = self.name.unwrap_or_else(|| self.handle.clone());
        let body = input::without_nulls(
            json!({ "handle": self.handle, "display_name": name, "email": self.email,
            "role": self.role, "can_create_projects": self.can_create_projects.then_some(true),
            "password": password.expose_secret() }),
        );
        let call = ApiRequest::for_operation(operations::CREATE_USER).with_json_body(&body);
        context
            .show_outcome(&call, user_handle, |user, _| format!("{} can log in", user.handle))
            .await
    }
}

impl UserUpdateArgs {
    async fn run(self, context: &CliContext) -> Result<()> {
        let id = context.user_id(&self.user).await?;
        if self.disable {
            context.confirm_action(&format!("Disable the account of {}?", self.user))?;
        }
        if self.revoke_keys {
            context.confirm_action(&format!("Revoke every API key of {}?", self.user))?;
        }
        if self.delete_second_factor {
            context.confirm_action(&format!("Delete the second factor of {}?", self.user))?;
        }
        let password = if self.new_password || self.password_stdin {
            Some(input::read_new_password(
                context,
                SecretPrompt { stdin: self.password_stdin, ..PASSWORD_PROMPT },
            )?)
        } else {
            None
        };
        let active = (self.enable || self.disable).then_some(self.enable);
        let password = password.as_ref().map(|it| it.expose_secret());
        let revoke_keys = self.revoke_keys.then_some(true);
        let body = input::require_changes(
            json!({ "active": active, "role": self.role, "password": password,
            "can_create_projects": self.can_create_projects, "revoke_keys": revoke_keys,
            "delete_second_factor": self.delete_second_factor.then_some(true),
            "scim_user_name": self.scim_name }),
        )?;
        let call =
            ApiRequest::with_path_params(operations::UPDATE_USER, [id]).with_json_body(&body);
        let sentence = |user: &UserView, look: &ValueFormatter| {
            let role = user.role.map_or("no role of their own", |role| role.as_str());
            format!("{} is {}, {role}", user.handle, look.style_state(user_state(user)))
        };
        context.show_outcome(&call, user_handle, sentence).await
    }
}
