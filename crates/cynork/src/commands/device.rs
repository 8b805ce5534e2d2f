//! `cynork device`: the logins of devices without a browser, which a person confirms.

use clap::{Args, Subcommand};
use cynode_wire::identity::single_sign_on::DeviceLoginView;
use serde_json::json;

use crate::{
    client::ApiRequest, context::CliContext, failure::Result, format::ValueFormatter, operations,
};

#[derive(Subcommand)]
pub(crate) enum DeviceCommand {
    /// Show which device asks for a login, and from where.
    #[command(after_help = "Example: cynork device show BCDF-GHJK")]
    Show(DeviceArgs),
    /// Let a device act in your name.
    #[command(after_help = "Example: cynork device approve BCDF-GHJK")]
    Approve(DeviceArgs),
    /// Refuse the login of a device.
    #[command(after_help = "Example: cynork device deny BCDF-GHJK")]
    Deny(DeviceArgs),
}

#[derive(Args)]
pub(crate) struct DeviceArgs {
    /// Code that the device shows.
    code: String,
}

impl DeviceCommand {
    pub(crate) async fn run(self, context: &CliContext) -> Result<()> {
        match self {
            Self::Show(DeviceArgs { code }) => show_device(context, &code).await,
            Self::Approve(DeviceArgs { code }) => {
                let call = ApiRequest::with_path_params(operations::GET_DEVICE_LOGIN, [&code]);
                let asked: DeviceLoginView = context.fetch_as(&call).await?;
                context.confirm_action(&format!(
                    "Let `{}` from {} act in your name? Only if it shows {} and you started it.",
                    asked.device, asked.source, asked.user_code
                ))?;
                decide(context, &code, true).await
            }
            Self::Deny(DeviceArgs { code }) => decide(context, &code, false).await,
        }
    }
}

async fn show_device(context: &CliContext, code: &str) -> Result<()> {
    let call = ApiRequest::with_path_params(operations::GET_DEVICE_LOGIN, [code]);
    context
        .show_item(
            &call,
            |it: &DeviceLoginView| it.user_code.clone(),
            |it, look| {
                vec![
                    ("code", look.style_bold(&it.user_code)),
                    ("device", it.device.clone()),
                    ("from", it.source.clone()),
                    ("asked", look.format_relative_time(it.created_at)),
                    ("ends", look.format_relative_time(it.expires_at)),
                ]
            },
        )
        .await
}

async fn decide(context: &CliContext, code: &str, approved: bool) -> Result<()> {
    let call = ApiRequest::with_path_params(operations::DECIDE_DEVICE_LOGIN, [code])
        .with_json_body(&json!({ "approved": approved }));
    let sentence = |it: &DeviceLoginView, _: &ValueFormatter| {
        let verb = if approved { "acts in your name" } else { "was refused" };
        format!("{} {verb}", it.device)
    };
    context.show_outcome(&call, |it: &DeviceLoginView| it.user_code.clone(), sentence).await
}
