//! `cynork notice`: what people were told and what is to be told.

use clap::Subcommand;
use cynode_wire::notices::NotificationView;

use crate::{
    answers::Pages, client::Call, context::Context, failure::Result, look::Look, operations,
};

#[derive(Subcommand)]
pub(crate) enum Notice {
    /// Lists what was told and what is to be told, newest first, with what came of it.
    #[command(after_help = "Example: cynork notice list --state failed")]
    List {
        /// Everybody's, for an admin of the installation.
        #[arg(long)]
        everybody: bool,
        /// Only in this state.
        #[arg(long, value_parser = ["pending", "sent", "failed", "dropped"])]
        state: Option<String>,
        #[command(flatten)]
        pages: Pages,
    },
    /// Tells something once more, under the same id.
    #[command(after_help = "Example: cynork notice replay ntf_0192d5c8b6f07cc1a1a3c2b4d5e6f708")]
    Replay {
        /// Its id.
        notice: String,
    },
}

fn id(notice: &NotificationView) -> String {
    notice.notification_id.to_string()
}

impl Notice {
    pub(crate) async fn run(self, context: &Context) -> Result<()> {
        match self {
            Self::List { everybody, state, pages } => {
                let call = Call::of(operations::LIST_NOTIFICATIONS)
                    .query("all", everybody.then_some(true))
                    .query("state", state);
                let heads = ["id", "what", "state", "happened", "tried", "last answer"];
                context.list(&call, Some(&pages), id, heads, row).await
            }
            Self::Replay { notice } => {
                let call = Call::to(operations::REPLAY_NOTIFICATION, [&notice]);
                let sentence = |it: &NotificationView, look: &Look| {
                    format!("{} is {}", id(it), look.state(it.state.as_str()))
                };
                context.told(&call, id, sentence).await
            }
        }
    }
}

fn row(it: &NotificationView, look: &Look) -> [String; 6] {
    let last = it.attempts.last().map(|attempt| attempt.answer.clone());
    [
        id(it),
        look.bold(&it.kind),
        look.state(it.state.as_str()),
        look.when(it.occurred_at),
        it.attempts.len().to_string(),
        it.reason.clone().or(last).unwrap_or_default(),
    ]
}
