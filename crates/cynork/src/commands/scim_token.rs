//! `cynork scim-token`: tokens with which the directory of a company provisions users and groups.

use clap::Subcommand;
use cynode_wire::identity::accounts::{CreatedScimToken, ScimTokenView};
use serde_json::json;

use super::api_key::{render_secret_once, token_status};
use crate::{
    client::ApiRequest, context::CliContext, failure::Result, format::ValueFormatter, input, names,
    operations,
};

#[derive(Subcommand)]
pub(crate) enum ScimTokenCommand {
    /// List the tokens of directories, without their secrets.
    #[command(after_help = "Example: cynork scim-token list")]
    List,
    /// Issue a token for a directory; printed once.
    #[command(after_help = "Example: cynork scim-token create entra --days 180")]
    Create {
        /// Name of the token.
        name: String,
        /// Days until the token expires, 1 to 3650; 365 by default.
        #[arg(long, value_name = "N")]
        days: Option<u16>,
    },
    /// Revoke the token of a directory immediately.
    #[command(after_help = "Example: cynork scim-token revoke entra")]
    Revoke {
        /// Token, by name or id.
        scim_token: String,
    },
}

impl ScimTokenCommand {
    pub(crate) async fn run(self, context: &CliContext) -> Result<()> {
        match self {
            Self::List => list_scim_tokens(context).await,
            Self::Create { name, days } => {
                let body = input::without_nulls(json!({ "name": name, "expires_in_days": days }));
                let call =
                    ApiRequest::for_operation(operations::CREATE_SCIM_TOKEN).with_json_body(&body);
                let value = context.send_request(&call).await?;
                context.show_answer(
                    &value,
                    |it: &CreatedScimToken| vec![it.token.0.clone()],
                    |it, look| {
                        let token = &it.scim_token;
                        let state = token_status(token.revoked_at, Some(token.expires_at), look);
                        let sides = [
                            ("name", token.name.to_string()),
                            ("state", state),
                            ("id", token.id.to_string()),
                        ];
                        render_secret_once(look, &it.token.0, &sides)
                    },
                )
            }
            Self::Revoke { scim_token } => {
                let id = names::SCIM_TOKEN.resolve_id(context, &scim_token).await?;
                context.confirm_action(&format!("Revoke the token {scim_token}?"))?;
                let call = ApiRequest::with_path_params(operations::REVOKE_SCIM_TOKEN, [id]);
                let sentence =
                    |it: &ScimTokenView, _: &ValueFormatter| format!("{} works no more", it.name);
                context.show_outcome(&call, |it: &ScimTokenView| it.id.to_string(), sentence).await
            }
        }
    }
}

async fn list_scim_tokens(context: &CliContext) -> Result<()> {
    context
        .show_list(
            &ApiRequest::for_operation(operations::LIST_SCIM_TOKENS),
            None,
            |token: &ScimTokenView| token.name.to_string(),
            ["name", "state", "used", "made", "id"],
            |token, look| {
                [
                    look.style_bold(token.name.as_str()),
                    token_status(token.revoked_at, Some(token.expires_at), look),
                    look.format_optional_time(token.last_used_at),
                    look.format_relative_time(token.created_at),
                    look.style_dim(&token.id.to_string()),
                ]
            },
        )
        .await
}
