//! What people are told, and by which ways.

pub mod inbox;

use cynode_core::{
    ids::{ChannelId, NotificationId, ProjectId, TaskId, UserId},
    notifications::{ChannelKind, ChannelScope, NotificationState},
};
use serde::{Deserialize, Serialize};
use time::OffsetDateTime;
use utoipa::ToSchema;

use crate::identity::accounts::SecretText;

/// Adds a way to be told.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateChannel {
    /// `user` for yourself, which it is when it is left out; `project` and `installation` for those who are admins there.
    #[serde(default)]
    #[schema(value_type = Option<String>)]
    pub scope: Option<ChannelScope>,
    /// The project, for `project`.
    #[serde(default)]
    #[schema(value_type = Option<String>)]
    pub project_id: Option<ProjectId>,
    /// What you call it.
    #[schema(example = "my telephone")]
    pub name: String,
    /// `webhook`, `mail` or `ntfy`. A browser subscribes itself.
    #[schema(value_type = String, example = "ntfy")]
    pub kind: ChannelKind,
    /// Where: the address of the webhook, the mailbox, or the ntfy server with the topic. It cannot be changed later.
    #[schema(example = "https://ntfy.sh/my-topic")]
    pub address: String,
    /// What signs a webhook (`whsec_…`; made for you when it is left out), or what opens a topic of ntfy. It is stored encrypted
    /// and never shown again.
    #[serde(default)]
    #[schema(value_type = Option<String>)]
    pub secret: Option<SecretText>,
    /// Of which kinds of events; of all that are told when it is left out.
    #[serde(default)]
    pub kinds: Option<Vec<String>>,
    /// How long there is quiet after each notice, 0 to 3600; what happens meanwhile is told afterwards.
    #[serde(default)]
    pub min_gap_seconds: Option<u16>,
}

/// Changes a way to be told. What is left out stays.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct UpdateChannel {
    /// What you call it.
    #[serde(default)]
    pub name: Option<String>,
    /// Of which kinds of events.
    #[serde(default)]
    pub kinds: Option<Vec<String>>,
    /// How long there is quiet after each notice, 0 to 3600.
    #[serde(default)]
    pub min_gap_seconds: Option<u16>,
    /// Whether it is used.
    #[serde(default)]
    pub enabled: Option<bool>,
    /// Gives a webhook a new secret. For a day the old one signs too.
    #[serde(default)]
    pub rotate_secret: bool,
}

/// A way to be told.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ChannelView {
    /// Its id.
    #[schema(value_type = String)]
    pub channel_id: ChannelId,
    /// `user`, `project` or `installation`.
    #[schema(value_type = String)]
    pub scope: ChannelScope,
    /// Whose it is, for `user`.
    #[schema(value_type = Option<String>)]
    pub user_id: Option<UserId>,
    /// The project, for `project`.
    #[schema(value_type = Option<String>)]
    pub project_id: Option<ProjectId>,
    /// What people call it.
    pub name: String,
    /// `webhook`, `mail`, `ntfy` or `web_push`.
    #[schema(value_type = String)]
    pub kind: ChannelKind,
    /// Where.
    pub address: String,
    /// Whether it has a secret.
    pub has_secret: bool,
    /// Until when the secret before signs too.
    #[serde(with = "time::serde::rfc3339::option")]
    pub old_secret_until: Option<OffsetDateTime>,
    /// Of which kinds of events.
    pub kinds: Vec<String>,
    /// How long there is quiet after each notice.
    pub min_gap_seconds: u16,
    /// Whether it is used.
    pub enabled: bool,
    /// Why it is not.
    pub disabled_reason: Option<String>,
    /// When it was made.
    #[serde(with = "time::serde::rfc3339")]
    pub created_at: OffsetDateTime,
}

/// A way to be told, with its secret if one was just made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ChannelWithSecret {
    /// The channel.
    pub channel: ChannelView,
    /// The new secret of a webhook. It is shown only here.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub secret: Option<SecretText>,
}

/// The key of the installation for web push.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct WebPushKeyView {
    /// The public key (VAPID, RFC 8292): an uncompressed point of P-256 in base64url. A browser subscribes with it as
    /// `applicationServerKey`.
    pub public_key: String,
}

/// Subscribes a browser to your notifications.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SubscribeBrowser {
    /// What you call the browser.
    #[schema(example = "Firefox on my laptop")]
    pub name: String,
    /// The endpoint of the subscription at the push service.
    #[schema(example = "https://push.example.com/send/abc")]
    pub endpoint: String,
    /// The key `p256dh` of the subscription, in base64url.
    pub p256dh: String,
    /// The secret `auth` of the subscription, in base64url. It is stored encrypted and never shown.
    #[schema(value_type = String)]
    pub auth: SecretText,
    /// Of which kinds of events; of all that are told when it is left out. A browser that is subscribed already keeps its own.
    #[serde(default)]
    pub kinds: Option<Vec<String>>,
}

/// Something that is told.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct NotificationView {
    /// Its id, which it bears wherever it is told.
    #[schema(value_type = String)]
    pub notification_id: NotificationId,
    /// By which channel.
    #[schema(value_type = String)]
    pub channel_id: ChannelId,
    /// What kind of thing happened.
    pub kind: String,
    /// In which project.
    #[schema(value_type = Option<String>)]
    pub project_id: Option<ProjectId>,
    /// To which task.
    #[schema(value_type = Option<String>)]
    pub task_id: Option<TaskId>,
    /// `pending`, `sent`, `failed` or `dropped`.
    #[schema(value_type = String)]
    pub state: NotificationState,
    /// Why it was not told, or not yet.
    pub reason: Option<String>,
    /// When it happened.
    #[serde(with = "time::serde::rfc3339")]
    pub occurred_at: OffsetDateTime,
    /// When it is next tried.
    #[serde(with = "time::serde::rfc3339::option")]
    pub due_at: Option<OffsetDateTime>,
    /// When it was told or given up.
    #[serde(with = "time::serde::rfc3339::option")]
    pub ended_at: Option<OffsetDateTime>,
    /// Every attempt, in order.
    pub attempts: Vec<AttemptView>,
}

/// One attempt to tell somebody.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AttemptView {
    /// Its number.
    pub number: i32,
    /// When.
    #[serde(with = "time::serde::rfc3339")]
    pub at: OffsetDateTime,
    /// Whether it was taken.
    pub sent: bool,
    /// What the other side said, or why nobody said anything.
    pub answer: String,
}
