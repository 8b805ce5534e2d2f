//! `cynork channel`: notification channels.

use clap::{Args, Subcommand};
use cynode_core::notifications::ChannelKind;
use cynode_wire::notifications::{ChannelView, ChannelWithSecret, NotificationView};
use secrecy::ExposeSecret;
use serde_json::json;

use crate::{
    answers::PageArgs,
    client::ApiRequest,
    context::CliContext,
    failure::Result,
    format::ValueFormatter,
    input::{self, SecretPrompt},
    names, operations,
    output::render_record,
};

#[derive(Subcommand)]
pub(crate) enum ChannelCommand {
    /// List your notification channels and those of your projects.
    #[command(after_help = "Example: cynork channel list")]
    List {
        /// Include the channels of all users; requires an admin.
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
    /// Update a notification channel.
    #[command(
        after_help = "Example: cynork channel update phone --event task.waiting --event approval.requested"
    )]
    Update(ChannelUpdateArgs),
    /// Delete a notification channel and its pending notifications.
    #[command(after_help = "Example: cynork channel delete phone")]
    Delete(ChannelSelector),
    /// Send a test notification; `cynork notification list` shows the result.
    #[command(after_help = "Example: cynork channel test phone")]
    Test(ChannelSelector),
}

/// One channel.
#[derive(Args)]
pub(crate) struct ChannelSelector {
    /// Channel, by name or id.
    channel: String,
}

#[derive(Args)]
pub(crate) struct ChannelCreateArgs {
    /// Name of the channel.
    name: String,
    /// Kind of channel.
    #[arg(long, value_parser = ["webhook", "mail", "ntfy"])]
    kind: String,
    /// Webhook URL, email address, or ntfy topic URL.
    #[arg(long)]
    address: String,
    /// Kind of event to send, such as `task.waiting`; may be repeated. Defaults to all.
    #[arg(long, value_name = "KIND")]
    event: Vec<String>,
    /// Minimum time between two notifications, 0 to 3600.
    #[arg(long, value_name = "SECONDS")]
    min_gap: Option<u16>,
    /// Scope of the channel; defaults to `user`.
    #[arg(long, value_parser = ["user", "project", "installation"])]
    scope: Option<String>,
    /// Project, by name or id; for `--scope project`.
    #[arg(long, short)]
    project: Option<String>,
    /// Read the signing secret of a webhook (`whsec_…`) or the access token of an ntfy topic from standard input. Without it,
    /// a webhook gets a generated secret, which is printed.
    #[arg(long)]
    secret_stdin: bool,
}

#[derive(Args)]
pub(crate) struct ChannelUpdateArgs {
    #[command(flatten)]
    which: ChannelSelector,
    /// Name of the channel.
    #[arg(long)]
    name: Option<String>,
    /// Kind of event to send, replacing the current kinds; may be repeated.
    #[arg(long, value_name = "KIND")]
    event: Vec<String>,
    /// Minimum time between two notifications, 0 to 3600.
    #[arg(long, value_name = "SECONDS")]
    min_gap: Option<u16>,
    /// Enable the channel.
    #[arg(long, conflicts_with = "disable")]
    enable: bool,
    /// Disable the channel.
    #[arg(long)]
    disable: bool,
    /// Rotate the signing secret of a webhook and print the new one. The old secret also signs for one day.
    #[arg(long)]
    rotate_secret: bool,
}

fn channel_name(channel: &ChannelView) -> String {
    channel.name.clone()
}

fn channel_state(channel: &ChannelView) -> &'static str {
    if channel.enabled { "active" } else { "off" }
}

/// Returns the address for a table. The endpoint of a browser is long and says nothing to people but its push service.
fn short_address(channel: &ChannelView) -> String {
    match channel.kind {
        ChannelKind::WebPush => channel.address.split('/').nth(2).unwrap_or_default().to_owned(),
        ChannelKind::Webhook | ChannelKind::Mail | ChannelKind::Ntfy => channel.address.clone(),
    }
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
                let call = ApiRequest::with_path_params(operations::DELETE_CHANNEL, [id]);
                context.send_and_confirm(&call, &format!("{} is deleted", which.channel)).await
            }
            Self::Test(which) => {
                let call = ApiRequest::with_path_params(
                    operations::TEST_CHANNEL,
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
                    short_address(it),
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
            (_, true) => Some(input::read_stdin_line()?),
            ("ntfy", false) => {
                let prompt = "Token of the topic (empty: it has none)";
                input::read_optional_secret(
                    context,
                    SecretPrompt { prompt, flag: "--secret-stdin", stdin: false },
                )?
            }
            _ => None,
        };
        let body = input::without_nulls(json!({
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
        let body = input::require_changes(json!({
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
