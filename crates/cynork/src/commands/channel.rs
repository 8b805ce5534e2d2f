//! `cynork channel`: the ways by which people are told.

use clap::{Args, Subcommand};
use cynode_wire::notices::{ChannelView, ChannelWithSecret, NotificationView};
use secrecy::ExposeSecret;
use serde_json::json;

use crate::{
    answers::PageArgs,
    client::ApiRequest,
    context::CliContext,
    failure::Result,
    given::{self, SecretPrompt},
    look::ValueFormatter,
    names, operations,
    output::render_record,
};

#[derive(Subcommand)]
pub(crate) enum ChannelCommand {
    /// List notification channels: your own and those of your projects.
    #[command(after_help = "Example: cynork channel list")]
    List {
        /// Everybody's, for an admin of the installation.
        #[arg(long)]
        all_users: bool,
        #[command(flatten)]
        pages: PageArgs,
    },
    /// Show a notification channel.
    #[command(after_help = "Example: cynork channel show phone")]
    Show(ChannelSelector),
    /// Create a notification channel.
    #[command(
        after_help = "Example: cynork channel create phone --kind ntfy --address https://ntfy.sh/a-topic-nobody-guesses"
    )]
    Create(Box<ChannelCreateArgs>),
    /// Change a notification channel: its name, its kinds of events, its quiet hours, its secret; switch it on or off.
    #[command(
        after_help = "Example: cynork channel update phone --event task.waiting --event approval.asked"
    )]
    Update(ChannelUpdateArgs),
    /// Remove a notification channel, with what is still to be sent by it.
    #[command(after_help = "Example: cynork channel delete phone")]
    Delete(ChannelSelector),
    /// Send a test notification. `cynork notification list` says what came of it.
    #[command(after_help = "Example: cynork channel test phone")]
    Test(ChannelSelector),
}

/// One channel.
#[derive(Args)]
pub(crate) struct ChannelSelector {
    /// By name or id.
    channel: String,
}

#[derive(Args)]
pub(crate) struct ChannelCreateArgs {
    /// What you call it.
    name: String,
    /// By which way.
    #[arg(long, value_parser = ["webhook", "mail", "ntfy"])]
    kind: String,
    /// Where: the address of the webhook, the mailbox, or the ntfy server with the topic.
    #[arg(long)]
    address: String,
    /// A kind of event that is told, such as `task.waiting`; may be repeated. All when it is left out.
    #[arg(long, value_name = "KIND")]
    event: Vec<String>,
    /// How long there is quiet after each notice, 0 to 3600.
    #[arg(long, value_name = "SECONDS")]
    min_gap: Option<u16>,
    /// For whom: yourself when it is left out.
    #[arg(long, value_parser = ["user", "project", "installation"])]
    scope: Option<String>,
    /// The project, for `--scope project`.
    #[arg(long, short)]
    project: Option<String>,
    /// Reads what signs a webhook (`whsec_…`), or what opens a topic of ntfy, from standard input. A webhook without one gets
    /// one, which is shown.
    #[arg(long)]
    secret_stdin: bool,
}

#[derive(Args)]
pub(crate) struct ChannelUpdateArgs {
    #[command(flatten)]
    which: ChannelSelector,
    /// What you call it.
    #[arg(long)]
    name: Option<String>,
    /// A kind of event that is told, in place of those that were; may be repeated.
    #[arg(long, value_name = "KIND")]
    event: Vec<String>,
    /// How long there is quiet after each notice, 0 to 3600.
    #[arg(long, value_name = "SECONDS")]
    min_gap: Option<u16>,
    /// It is used.
    #[arg(long, conflicts_with = "disable")]
    enable: bool,
    /// It is not used.
    #[arg(long)]
    disable: bool,
    /// Gives a webhook a new secret, which is shown. For a day the old one signs too.
    #[arg(long)]
    rotate_secret: bool,
}

fn channel_name(channel: &ChannelView) -> String {
    channel.name.clone()
}

fn channel_state(channel: &ChannelView) -> &'static str {
    if channel.enabled { "active" } else { "off" }
}

fn channel_fields(channel: &ChannelView, look: &ValueFormatter) -> Vec<(&'static str, String)> {
    vec![
        ("name", look.style_bold(&channel.name)),
        ("kind", channel.kind.as_str().to_owned()),
        ("address", channel.address.clone()),
        ("for", channel.scope.as_str().to_owned()),
        ("state", look.style_state(channel_state(channel))),
        ("why", channel.disabled_reason.clone().unwrap_or_default()),
        ("told of", channel.kinds.join("\n")),
        ("quiet", format!("{} s after each", channel.min_gap_seconds)),
        ("has secret", look.format_yes_no(channel.has_secret)),
        ("old secret", look.format_optional_time(channel.old_secret_until)),
        ("made", look.format_relative_time(channel.created_at)),
        ("id", channel.channel_id.to_string()),
    ]
}

fn render_channel_with_secret(made: &ChannelWithSecret, look: &ValueFormatter) -> String {
    let mut sides = channel_fields(&made.channel, look);
    if let Some(secret) = &made.secret {
        sides.push(("secret", look.style_bold(&secret.0) + " (it is not shown again)"));
    }
    render_record(look.paint, &sides)
}

impl ChannelCommand {
    pub(crate) async fn run(self, context: &CliContext) -> Result<()> {
        match self {
            Self::List { all_users, pages } => list_channels(context, all_users, &pages).await,
            Self::Show(which) => {
                let call = ApiRequest::with_path_params(
                    operations::GET_CHANNEL,
                    [which.resolve_channel_id(context).await?],
                );
                context.show_item(&call, channel_name, channel_fields).await
            }
            Self::Create(create) => create.run(context).await,
            Self::Update(update) => update.run(context).await,
            Self::Delete(which) => {
                let id = which.resolve_channel_id(context).await?;
                context.confirm_action(&format!("Delete the channel {}?", which.channel))?;
                let call = ApiRequest::with_path_params(operations::REMOVE_CHANNEL, [id]);
                context.send_and_confirm(&call, &format!("{} is deleted", which.channel)).await
            }
            Self::Test(which) => {
                let call = ApiRequest::with_path_params(
                    operations::TRY_CHANNEL,
                    [which.resolve_channel_id(context).await?],
                );
                let sentence = |it: &NotificationView, _: &ValueFormatter| {
                    format!("{} is on its way; see `cynork notification list`", it.notification_id)
                };
                context
                    .show_outcome(
                        &call,
                        |it: &NotificationView| it.notification_id.to_string(),
                        sentence,
                    )
                    .await
            }
        }
    }
}

async fn list_channels(context: &CliContext, all_users: bool, pages: &PageArgs) -> Result<()> {
    let call = ApiRequest::for_operation(operations::LIST_CHANNELS)
        .with_query("all", all_users.then_some(true));
    context
        .show_list(
            &call,
            Some(pages),
            channel_name,
            ["name", "kind", "state", "for", "address", "made"],
            |it: &ChannelView, look| {
                [
                    look.style_bold(&it.name),
                    it.kind.as_str().to_owned(),
                    look.style_state(channel_state(it)),
                    it.scope.as_str().to_owned(),
                    it.address.clone(),
                    look.format_relative_time(it.created_at),
                ]
            },
        )
        .await
}

impl ChannelSelector {
    async fn resolve_channel_id(&self, context: &CliContext) -> Result<String> {
        names::CHANNEL.resolve_id(context, &self.channel).await
    }
}

impl ChannelCreateArgs {
    async fn run(self, context: &CliContext) -> Result<()> {
        let secret = match (self.kind.as_str(), self.secret_stdin) {
            (_, true) => Some(given::read_stdin_line()?),
            ("ntfy", false) => {
                let prompt = "Token of the topic (empty: it has none)";
                given::read_optional_secret(
                    context,
                    SecretPrompt { prompt, flag: "--secret-stdin", stdin: false },
                )?
            }
            _ => None,
        };
        let body = given::without_nulls(json!({
            "name": self.name, "kind": self.kind, "address": self.address, "scope": self.scope,
            "project_id": context.optional_project_id(self.project.as_deref()).await?,
            "kinds": (!self.event.is_empty()).then_some(self.event), "min_gap_seconds": self.min_gap,
            "secret": secret.as_ref().map(|it| it.expose_secret()),
        }));
        let value = context
            .send_request(
                &ApiRequest::for_operation(operations::CREATE_CHANNEL).with_json_body(&body),
            )
            .await?;
        context.show_answer(
            &value,
            |it: &ChannelWithSecret| vec![it.channel.channel_id.to_string()],
            render_channel_with_secret,
        )
    }
}

impl ChannelUpdateArgs {
    async fn run(self, context: &CliContext) -> Result<()> {
        let enabled = (self.enable || self.disable).then_some(self.enable);
        let body = given::require_changes(json!({
            "name": self.name, "kinds": (!self.event.is_empty()).then_some(self.event),
            "min_gap_seconds": self.min_gap, "enabled": enabled, "rotate_secret": self.rotate_secret.then_some(true),
        }))?;
        let call = ApiRequest::with_path_params(
            operations::UPDATE_CHANNEL,
            [self.which.resolve_channel_id(context).await?],
        )
        .with_json_body(&body);
        let value = context.send_request(&call).await?;
        context.show_answer(
            &value,
            |it: &ChannelWithSecret| vec![it.channel.channel_id.to_string()],
            render_channel_with_secret,
        )
    }
}
