//! `cynork identity`: accounts at identity providers.

use clap::Subcommand;
use cynode_wire::identity::single_sign_on::IdentityView;

use crate::{client::ApiRequest, context::CliContext, failure::Result, operations};

#[derive(Subcommand)]
pub(crate) enum IdentityCommand {
    /// List your accounts at identity providers. You link one in the console.
    #[command(after_help = "Example: cynork identity list")]
    List {
        /// List the accounts of this user, by handle or id; requires an admin.
        #[arg(long)]
        user: Option<String>,
    },
    /// Unlink an account at an identity provider from yours; its sessions end.
    #[command(after_help = "Example: cynork identity unlink xid_0192d5c8b6f07cc1a1a3c2b4d5e6f708")]
    Unlink {
        /// Account, by id.
        identity: String,
        /// Unlink it from this user, by handle or id; requires an admin.
        #[arg(long)]
        user: Option<String>,
    },
}

impl IdentityCommand {
    pub(crate) async fn run(self, context: &CliContext) -> Result<()> {
        match self {
            Self::List { user } => {
                let call = match context.optional_user_id(user.as_deref()).await? {
                    Some(user) => {
                        ApiRequest::with_path_params(operations::LIST_USER_IDENTITIES, [&user])
                    }
                    None => ApiRequest::for_operation(operations::LIST_IDENTITIES),
                };
                list_identities(context, &call).await
            }
            Self::Unlink { identity, user } => {
                let user = context.optional_user_id(user.as_deref()).await?;
                context.confirm_action(&format!("Unlink {identity}, and end its sessions?"))?;
                let call = match user {
                    Some(user) => ApiRequest::with_path_params(
                        operations::REMOVE_USER_IDENTITY,
                        [&user, &identity],
                    ),
                    None => ApiRequest::with_path_params(operations::UNLINK_IDENTITY, [&identity]),
                };
                context.send_and_confirm(&call, &format!("{identity} is unlinked")).await
            }
        }
    }
}

async fn list_identities(context: &CliContext, call: &ApiRequest) -> Result<()> {
    context
        .show_list(
            call,
            None,
            |it: &IdentityView| it.id.to_string(),
            ["provider", "id there", "linked", "id"],
            |it, look| {
                [
                    look.style_bold(&it.provider_title),
                    it.subject.clone(),
                    look.format_relative_time(it.linked_at),
                    look.style_dim(&it.id.to_string()),
                ]
            },
        )
        .await
}
