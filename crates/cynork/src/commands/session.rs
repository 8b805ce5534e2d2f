//! `cynork session`: open sessions, with their devices and identity providers.

use clap::Subcommand;
use cynode_wire::identity::single_sign_on::OpenSessionView;

use crate::{
    answers::PageArgs, client::ApiRequest, context::CliContext, failure::Result,
    format::ValueFormatter, operations,
};

#[derive(Subcommand)]
pub(crate) enum SessionCommand {
    /// List your open sessions, with the device and the identity provider of each.
    #[command(after_help = "Example: cynork session list")]
    List {
        /// List the sessions of this user, by handle or id; requires an admin.
        #[arg(long)]
        user: Option<String>,
        #[command(flatten)]
        pages: PageArgs,
    },
    /// End a session immediately.
    #[command(after_help = "Example: cynork session end ses_0192d5c8b6f07cc1a1a3c2b4d5e6f708")]
    End {
        /// Session, by id.
        session: String,
    },
}

impl SessionCommand {
    pub(crate) async fn run(self, context: &CliContext) -> Result<()> {
        match self {
            Self::List { user, pages } => {
                let user = context.optional_user_id(user.as_deref()).await?;
                list_sessions(context, user, &pages).await
            }
            Self::End { session } => {
                context.confirm_action(&format!("End the session {session}?"))?;
                let call = ApiRequest::with_path_params(operations::END_SESSION, [&session]);
                context.send_and_confirm(&call, &format!("{session} works no more")).await
            }
        }
    }
}

async fn list_sessions(context: &CliContext, user: Option<String>, pages: &PageArgs) -> Result<()> {
    context
        .show_list(
            &ApiRequest::for_operation(operations::LIST_SESSIONS).with_query("user_id", user),
            Some(pages),
            |it: &OpenSessionView| it.id.to_string(),
            ["device", "from", "by", "started", "ends", "id"],
            |it, look| {
                [
                    look.style_bold(it.device.as_deref().unwrap_or("unknown")),
                    it.source.clone().unwrap_or_default(),
                    describe_login(it, look),
                    look.format_relative_time(it.created_at),
                    look.format_relative_time(it.expires_at),
                    look.style_dim(&it.id.to_string()),
                ]
            },
        )
        .await
}

/// Describes how a session was started, and whether it is this one.
fn describe_login(session: &OpenSessionView, look: &ValueFormatter) -> String {
    let method = session.method.map_or("", |method| method.as_str());
    let by = session.provider.as_deref().unwrap_or(method);
    if session.current { format!("{by} {}", look.style_state("active")) } else { by.to_owned() }
}
