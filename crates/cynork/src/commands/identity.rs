//! `cynork identity`: your accounts at identity providers.

use clap::Subcommand;
use cynode_wire::identity::single_sign_on::IdentityView;

use crate::{client::ApiRequest, context::CliContext, failure::Result, operations};

#[derive(Subcommand)]
pub(crate) enum IdentityCommand {
    /// List your accounts at identity providers. You link one in the console.
    #[command(after_help = "Example: cynork identity list")]
    List,
    /// Unlink an account at an identity provider from yours; its sessions end.
    #[command(after_help = "Example: cynork identity unlink xid_0192d5c8b6f07cc1a1a3c2b4d5e6f708")]
    Unlink {
        /// Account, by id.
        identity: String,
    },
}

impl IdentityCommand {
    pub(crate) async fn run(self, context: &CliContext) -> Result<()> {
        match self {
            Self::List => list_identities(context).await,
            Self::Unlink { identity } => {
                context.confirm_action(&format!("Unlink {identity}, and end its sessions?"))?;
                let call = ApiRequest::with_path_params(operations::UNLINK_IDENTITY, [&identity]);
                context.send_and_confirm(&call, &format!("{identity} is unlinked")).await
            }
        }
    }
}

async fn list_identities(context: &CliContext) -> Result<()> {
    context
        .show_list(
            &ApiRequest::for_operation(operations::LIST_IDENTITIES),
            None,
            |it: &IdentityView| it.id.to_string(),
            ["provider", "your id there", "linked", "id"],
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
