//! `cynork settings`: settings of the whole installation.

use clap::Subcommand;

use crate::{
    client::ApiRequest,
    commands::values::{self, NewValue, OldValue},
    context::CliContext,
    failure::Result,
    operations,
};

#[derive(Subcommand)]
pub(crate) enum SettingsCommand {
    /// List the system settings that are set.
    #[command(after_help = "Example: cynork settings list")]
    List,
    /// Show a system setting.
    #[command(after_help = "Example: cynork settings get gateway.calls_per_second --quiet")]
    Get {
        /// Key of the setting.
        key: String,
    },
    /// Set a system setting; fails on a version conflict.
    #[command(after_help = "Example: cynork settings set gateway.calls_per_second 20")]
    Set(NewValue),
    /// Delete a system setting; fails on a version conflict.
    #[command(after_help = "Example: cynork settings delete gateway.calls_per_second")]
    Delete(OldValue),
    /// List the versions of a system setting, newest first.
    #[command(after_help = "Example: cynork settings history gateway.calls_per_second")]
    History {
        /// Key of the setting.
        key: String,
    },
}

impl SettingsCommand {
    pub(crate) async fn run(self, context: &CliContext) -> Result<()> {
        match self {
            Self::List => {
                values::list_values(context, &ApiRequest::for_operation(operations::LIST_SETTINGS))
                    .await
            }
            Self::Get { key } => {
                values::show_value(
                    context,
                    &ApiRequest::with_path_params(operations::GET_SETTING, [key]),
                )
                .await
            }
            Self::Set(set) => {
                let get = ApiRequest::with_path_params(operations::GET_SETTING, [&set.key]);
                values::write_value(
                    context,
                    &get,
                    ApiRequest::with_path_params(operations::SET_SETTING, [&set.key]),
                    &set,
                )
                .await
            }
            Self::Delete(delete) => {
                let get = ApiRequest::with_path_params(operations::GET_SETTING, [&delete.key]);
                let call = ApiRequest::with_path_params(operations::DELETE_SETTING, [&delete.key]);
                values::delete_value(context, &get, call, &delete).await
            }
            Self::History { key } => {
                values::list_history(
                    context,
                    &ApiRequest::with_path_params(operations::SETTING_HISTORY, [key]),
                )
                .await
            }
        }
    }
}
