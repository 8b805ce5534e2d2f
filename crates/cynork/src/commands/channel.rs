//! `cynork channel`: the ways by which people are told.

use clap::{Args, Subcommand};
use cynode_wire::notices::{ChannelView, ChannelWithSecret, NotificationView};
use secrecy::ExposeSecret;
use serde_json::json;

use crate::{
    answers::Pages,
    client::Call,
    context::Context,
    failure::Result,
    given::{self, Ask},
    look::Look,
    names, operations,
    output::record,
};

#[derive(Subcommand)]
pub(crate) enum Channel {
    /// Lists the ways to be told: your own and those of your projects.
    #[command(after_help = "Example: cynork channel list")]
    List {
        /// Everybody's, for an admin of the installation.
        #[arg(long)]
        everybody: bool,
        #[command(flatten)]
        pages: Pages,
    },
    /// Shows a way to be told.
    #[command(after_help = "Example: cynork channel show phone")]
    Show(Which),
    /// Adds a way to be told.
    #[command(
        after_help = "Example: cynork channel create phone --kind ntfy --address https://ntfy.sh/a-topic-nobody-guesses"
    )]
    Create(Box<Create>),
    /// Changes a way to be told: its name, what it is told of, its quiet, its secret; switches it on or off.
    #[command(
        after_help = "Example: cynork channel change phone --of task.waiting --of approval.asked"
    )]
    Change(Change),
    /// Removes a way to be told, with what was to be told by it.
    #[command(after_help = "Example: cynork channel remove phone")]
    Remove(Which),
    /// Tries a way to be told. What comes of it is with the notices.
    #[command(after_help = "Example: cynork channel test phone")]
    Test(Which),
}

/// One channel.
#[derive(Args)]
pub(crate) struct Which {
    /// By name or id.
    channel: String,
}

#[derive(Args)]
pub(crate) struct Create {
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
    of: Vec<String>,
    /// How long there is quiet after each notice, 0 to 3600.
    #[arg(long, value_name = "SECONDS")]
    quiet_for: Option<u16>,
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
pub(crate) struct Change {
    #[command(flatten)]
    which: Which,
    /// What you call it.
    #[arg(long)]
    name: Option<String>,
    /// A kind of event that is told, in place of those that were; may be repeated.
    #[arg(long, value_name = "KIND")]
    of: Vec<String>,
    /// How long there is quiet after each notice, 0 to 3600.
    #[arg(long, value_name = "SECONDS")]
    quiet_for: Option<u16>,
    /// It is used.
    #[arg(long, conflicts_with = "off")]
    on: bool,
    /// It is not used.
    #[arg(long)]
    off: bool,
    /// Gives a webhook a new secret, which is shown. For a day the old one signs too.
    #[arg(long)]
    rotate: bool,
}

fn name(channel: &ChannelView) -> String {
    channel.name.clone()
}

fn state(channel: &ChannelView) -> &'static str {
    if channel.enabled { "active" } else { "off" }
}

fn sides(channel: &ChannelView, look: &Look) -> Vec<(&'static str, String)> {
    vec![
        ("name", look.bold(&channel.name)),
        ("kind", channel.kind.as_str().to_owned()),
        ("address", channel.address.clone()),
        ("for", channel.scope.as_str().to_owned()),
        ("state", look.state(state(channel))),
        ("why", channel.disabled_reason.clone().unwrap_or_default()),
        ("told of", channel.kinds.join("\n")),
        ("quiet", format!("{} s after each", channel.min_gap_seconds)),
        ("has secret", look.yes(channel.has_secret)),
        ("old secret", look.when_ever(channel.old_secret_until)),
        ("made", look.when(channel.created_at)),
        ("id", channel.channel_id.to_string()),
    ]
}

fn with_secret(made: &ChannelWithSecret, look: &Look) -> String {
    let mut sides = sides(&made.channel, look);
    if let Some(secret) = &made.secret {
        sides.push(("secret", look.bold(&secret.0) + " (it is not shown again)"));
    }
    record(look.paint, &sides)
}

impl Channel {
    pub(crate) async fn run(self, context: &Context) -> Result<()> {
        match self {
            Self::List { everybody, pages } => list(context, everybody, &pages).await,
            Self::Show(which) => {
                let call = Call::to(operations::GET_CHANNEL, [which.id(context).await?]);
                context.one(&call, name, sides).await
            }
            Self::Create(create) => create.run(context).await,
            Self::Change(change) => change.run(context).await,
            Self::Remove(which) => {
                let id = which.id(context).await?;
                context.sure(&format!("Remove the channel {}?", which.channel))?;
                let call = Call::to(operations::REMOVE_CHANNEL, [id]);
                context.done(&call, &format!("{} is removed", which.channel)).await
            }
            Self::Test(which) => {
                let call = Call::to(operations::TRY_CHANNEL, [which.id(context).await?]);
                let sentence = |it: &NotificationView, _: &Look| {
                    format!("{} is on its way; see `cynork notice list`", it.notification_id)
                };
                context
                    .told(&call, |it: &NotificationView| it.notification_id.to_string(), sentence)
                    .await
            }
        }
    }
}

async fn list(context: &Context, everybody: bool, pages: &Pages) -> Result<()> {
    let call = Call::of(operations::LIST_CHANNELS).query("all", everybody.then_some(true));
    context
        .list(
            &call,
            Some(pages),
            name,
            ["name", "kind", "state", "for", "address", "made"],
            |it: &ChannelView, look| {
                [
                    look.bold(&it.name),
                    it.kind.as_str().to_owned(),
                    look.state(state(it)),
                    it.scope.as_str().to_owned(),
                    it.address.clone(),
                    look.when(it.created_at),
                ]
            },
        )
        .await
}

impl Which {
    async fn id(&self, context: &Context) -> Result<String> {
        names::CHANNEL.id(context, &self.channel).await
    }
}

impl Create {
    async fn run(self, context: &Context) -> Result<()> {
        let secret = match (self.kind.as_str(), self.secret_stdin) {
            (_, true) => Some(given::line()?),
            ("ntfy", false) => {
                let prompt = "Token of the topic (empty: it has none)";
                given::optional_secret(
                    context,
                    Ask { prompt, flag: "--secret-stdin", stdin: false },
                )?
            }
            _ => None,
        };
        let body = given::said(json!({
            "name": self.name, "kind": self.kind, "address": self.address, "scope": self.scope,
            "project_id": context.project_id_if(self.project.as_deref()).await?,
            "kinds": (!self.of.is_empty()).then_some(self.of), "min_gap_seconds": self.quiet_for,
            "secret": secret.as_ref().map(|it| it.expose_secret()),
        }));
        let value = context.ask(&Call::of(operations::CREATE_CHANNEL).body(&body)).await?;
        context.show(
            &value,
            |it: &ChannelWithSecret| vec![it.channel.channel_id.to_string()],
            with_secret,
        )
    }
}

impl Change {
    async fn run(self, context: &Context) -> Result<()> {
        let enabled = (self.on || self.off).then_some(self.on);
        let body = given::changes(json!({
            "name": self.name, "kinds": (!self.of.is_empty()).then_some(self.of),
            "min_gap_seconds": self.quiet_for, "enabled": enabled, "rotate_secret": self.rotate.then_some(true),
        }))?;
        let call =
            Call::to(operations::UPDATE_CHANNEL, [self.which.id(context).await?]).body(&body);
        let value = context.ask(&call).await?;
        context.show(
            &value,
            |it: &ChannelWithSecret| vec![it.channel.channel_id.to_string()],
            with_secret,
        )
    }
}
