//! `cynork project secret`: secrets that the set-up of an environment may use.

use clap::Subcommand;
use cynode_wire::delivery::environments::ProjectSecretView;
use secrecy::ExposeSecret;
use serde_json::json;

use crate::{
    client::ApiRequest,
    context::CliContext,
    failure::Result,
    input::{self, SecretPrompt},
    names::ProjectSelector,
    operations,
};

#[derive(Subcommand)]
pub(crate) enum SecretCommand {
    /// Set a secret of a project, typed or read from standard input. It is stored encrypted and never shown again.
    #[command(
        after_help = "Example: cynork project secret set npm-token --project web\nAn environment names it in `secrets`; its set-up gets it only if the setting `environments.allow_secrets` is true."
    )]
    Set {
        /// Name of the secret: `[a-z0-9_-]`.
        name: String,
        /// Read the value from the first line of standard input.
        #[arg(long)]
        value_stdin: bool,
        #[command(flatten)]
        place: ProjectSelector,
    },
    /// List the secrets of a project by name; values are never shown.
    #[command(after_help = "Example: cynork project secret list --project web")]
    List(ProjectSelector),
    /// Delete a secret of a project.
    #[command(after_help = "Example: cynork project secret delete npm-token --project web")]
    Delete {
        /// Name of the secret.
        name: String,
        #[command(flatten)]
        place: ProjectSelector,
    },
}

impl SecretCommand {
    pub(crate) async fn run(self, context: &CliContext) -> Result<()> {
        match self {
            Self::Set { name, value_stdin, place } => {
                let project = context.require_project(place.project)?;
                let ask =
                    SecretPrompt { prompt: "Value", flag: "--value-stdin", stdin: value_stdin };
                let value = input::read_secret(context, ask)?;
                let call = ApiRequest::with_path_params(operations::SET_SECRET, [&project, &name])
                    .with_json_body(&json!({ "value": value.expose_secret() }));
                context
                    .show_outcome(
                        &call,
                        |it: &ProjectSecretView| it.name.clone(),
                        |it, _| format!("{project} has the secret {}", it.name),
                    )
                    .await
            }
            Self::List(place) => list_secrets(context, place).await,
            Self::Delete { name, place } => {
                let project = context.require_project(place.project)?;
                context.confirm_action(&format!("Delete the secret {name} of {project}?"))?;
                let call =
                    ApiRequest::with_path_params(operations::DELETE_SECRET, [&project, &name]);
                context
                    .send_and_confirm(&call, &format!("the secret {name} of {project} is deleted"))
                    .await
            }
        }
    }
}

async fn list_secrets(context: &CliContext, place: ProjectSelector) -> Result<()> {
    context
        .show_list(
            &ApiRequest::with_path_params(
                operations::LIST_SECRETS,
                [context.require_project(place.project)?],
            ),
            None,
            |secret: &ProjectSecretView| secret.name.clone(),
            ["name", "set", "by"],
            |secret, look| {
                [
                    look.style_bold(&secret.name),
                    look.format_relative_time(secret.set_at),
                    look.style_dim(&secret.set_by.to_string()),
                ]
            },
        )
        .await
}
