//! `cynork settings`: what holds for the whole installation.

use clap::Subcommand;

use crate::{
    client::Call,
    commands::values::{self, NewValue, OldValue},
    context::Context,
    failure::Result,
    operations,
};

#[derive(Subcommand)]
pub(crate) enum Settings {
    /// Lists the system settings that were written.
    #[command(after_help = "Example: cynork settings list")]
    List,
    /// Shows a system setting.
    #[command(after_help = "Example: cynork settings get gate.calls_per_second --quiet")]
    Get {
        /// What it is about.
        key: String,
    },
    /// Writes a system setting, if nobody wrote it in between.
    #[command(after_help = "Example: cynork settings set gate.calls_per_second 20")]
    Set(NewValue),
    /// Deletes a system setting, if nobody wrote it in between.
    #[command(after_help = "Example: cynork settings delete gate.calls_per_second")]
    Delete(OldValue),
    /// Lists the writes of a system setting, newest first.
    #[command(after_help = "Example: cynork settings history gate.calls_per_second")]
    History {
        /// What it is about.
        key: String,
    },
}

impl Settings {
    pub(crate) async fn run(self, context: &Context) -> Result<()> {
        match self {
            Self::List => values::list(context, &Call::of(operations::LIST_SETTINGS)).await,
            Self::Get { key } => {
                values::get(context, &Call::to(operations::GET_SETTING, [key])).await
            }
            Self::Set(set) => {
                let get = Call::to(operations::GET_SETTING, [&set.key]);
                values::set(context, &get, Call::to(operations::SET_SETTING, [&set.key]), &set)
                    .await
            }
            Self::Delete(delete) => {
                let get = Call::to(operations::GET_SETTING, [&delete.key]);
                let call = Call::to(operations::DELETE_SETTING, [&delete.key]);
                values::delete(context, &get, call, &delete).await
            }
            Self::History { key } => {
                values::history(context, &Call::to(operations::SETTING_HISTORY, [key])).await
            }
        }
    }
}
