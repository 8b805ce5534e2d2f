//! `cynork notification`: messages to people, sent and pending.

use clap::Subcommand;
use cynode_wire::notifications::NotificationView;

use crate::{
    answers::PageArgs, client::ApiRequest, context::CliContext, failure::Result,
    format::ValueFormatter, operations,
};

#[derive(Subcommand)]
pub(crate) enum NotificationCommand {
    /// List notifications and their delivery state, newest first.
    #[command(after_help = "Example: cynork notification list --state failed")]
    List {
        /// Include the notifications of all users; requires an admin.
        #[arg(long)]
        all_users: bool,
        /// Filter by state.
        #[arg(long, value_parser = ["pending", "sent", "failed", "dropped"])]
        state: Option<String>,
        #[command(flatten)]
        pages: PageArgs,
    },
    /// Redeliver a notification, with the same id.
    #[command(
        after_help = "Example: cynork notification replay ntf_0192d5c8b6f07cc1a1a3c2b4d5e6f708"
    )]
    Replay {
        /// Notification id.
        notification: String,
    },
}

fn notification_id(notification: &NotificationView) -> String {
    notification.notification_id.to_string()
}

impl NotificationCommand {
    pub(crate) async fn run(self, context: &CliContext) -> Result<()> {
        match self {
            Self::List { all_users, state, pages } => {
                let call = ApiRequest::for_operation(operations::LIST_NOTIFICATIONS)
                    .with_query("all", all_users.then_some(true))
                    .with_query("state", state);
                let heads = ["id", "event", "state", "happened", "attempts", "last answer"];
                context
                    .show_list(&call, Some(&pages), notification_id, heads, notification_row)
                    .await
            }
            Self::Replay { notification } => {
                let call =
                    ApiRequest::with_path_params(operations::REPLAY_NOTIFICATION, [&notification]);
                let sentence = |it: &NotificationView, look: &ValueFormatter| {
                    format!("{} is {}", notification_id(it), look.style_state(it.state.as_str()))
                };
                context.show_outcome(&call, notification_id, sentence).await
            }
        }
    }
}

fn notification_row(it: &NotificationView, look: &ValueFormatter) -> [String; 6] {
    let last = it.attempts.last().map(|attempt| attempt.answer.clone());
    [
        notification_id(it),
        look.style_bold(&it.kind),
        look.style_state(it.state.as_str()),
        look.format_relative_time(it.occurred_at),
        it.attempts.len().to_string(),
        it.reason.clone().or(last).unwrap_or_default(),
    ]
}
