//! Sends notifications to people by webhook, e-mail, ntfy or web push.
//!
//! **Invariant**: no database. SSRF guard: only public addresses are contacted, unless the caller allows others for this one
//! notification. Redirects are not followed. Every delivery carries the notification's id, so that a receiver can drop duplicates.

mod egress;
mod mail;
mod ntfy;
mod text;
mod web_push;
mod webhook;

use std::time::Duration;

use secrecy::SecretString;
use serde::Serialize;
use serde_json::Value;
use time::OffsetDateTime;
use url::Url;

pub use egress::DeliveryEgress;
pub use mail::{MailError, MailServer, is_mailbox};
pub use text::{escape_hidden_chars, to_single_line, truncate_to_bytes};
pub use web_push::{BrowserKeys, BrowserKeysError, PushTarget, VapidKey};
pub use webhook::{WebhookSecret, WebhookSecretError};

/// Timeout of one attempt.
const SEND_TIMEOUT: Duration = Duration::from_secs(15);

/// Maximum number of bytes of a response that are read and kept.
const MAX_RESPONSE_BYTES: usize = 1024;

/// A notification.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct NotificationMessage {
    /// Unique id, the same for every redelivery.
    pub id: String,
    /// Kind of the event.
    pub kind: String,
    /// Title of one line.
    pub title: String,
    /// Text of a few sentences.
    pub text: String,
    /// The command, diff, plan or question that a person decides about, verbatim.
    pub exact: Option<String>,
    /// Links for an answer.
    pub links: Vec<NotificationLink>,
    /// Path of the page of the web console about the subject.
    pub path: String,
    /// Subject, in a form for programs.
    pub about: Value,
    /// Time of the event.
    pub at: OffsetDateTime,
}

/// A link for an answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct NotificationLink {
    /// Short label.
    pub label: String,
    /// Target of the link.
    pub url: String,
    /// Form body to post for an immediate answer. Without it, the URL is opened in a browser.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub post: Option<String>,
}

/// Notification channel.
#[derive(Clone, Debug)]
pub enum DeliveryChannel {
    /// Webhook, by the Standard Webhooks scheme.
    Webhook {
        /// URL of the receiver.
        url: Url,
        /// Signing secrets: the current one first, then one that is being rotated out.
        secrets: Vec<WebhookSecret>,
    },
    /// E-mail.
    Mail {
        /// Address of the mailbox.
        to: String,
    },
    /// Topic of an ntfy server.
    Ntfy {
        /// URL of the server with the topic.
        url: Url,
        /// Access token of the topic.
        token: Option<SecretString>,
    },
    /// Browser, through its push service.
    WebPush(Box<PushTarget>),
}

/// Receipt of a delivered notification.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeliveryReceipt {
    /// Response of the receiver: a status or a text.
    pub answer: String,
}

/// Failure of a delivery.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{why}")]
pub struct DeliveryError {
    /// Whether a retry may succeed.
    pub again: bool,
    /// Retry delay that the receiver requests.
    pub after: Option<Duration>,
    /// Whether the receiver says that it is permanently gone.
    pub gone: bool,
    /// Reason of the failure.
    pub why: String,
}

impl DeliveryError {
    fn transient_error(why: impl Into<String>) -> Self {
        Self { again: true, after: None, gone: false, why: why.into() }
    }

    fn permanent_error(why: impl Into<String>) -> Self {
        Self { again: false, after: None, gone: false, why: why.into() }
    }
}

/// Sends notifications. Cloning is cheap.
#[derive(Clone, Debug)]
pub struct NotificationSender {
    ways: egress::EgressClients,
    mail: Option<mail::MailSender>,
}

/// Reason why the sender cannot be created.
#[derive(Debug, thiserror::Error)]
pub enum NotificationSenderError {
    /// The HTTP client could not be created.
    #[error("the HTTP client cannot be made")]
    Http(#[source] reqwest::Error),
    /// The configuration of the mail server is invalid.
    #[error(transparent)]
    Mail(#[from] MailError),
}

impl NotificationSender {
    /// Creates a sender, with mail through the given server if there is one.
    pub fn new(mail: Option<MailServer>) -> Result<Self, NotificationSenderError> {
        let ways = egress::EgressClients::new().map_err(NotificationSenderError::Http)?;
        Ok(Self { ways, mail: mail.map(mail::MailSender::new).transpose()? })
    }

    /// Returns whether mail can be sent.
    pub const fn can_send_mail(&self) -> bool {
        self.mail.is_some()
    }

    /// Sends a notification once. The caller is responsible for retries.
    pub async fn send_notification(
        &self,
        channel: &DeliveryChannel,
        notice: &NotificationMessage,
        reach: DeliveryEgress,
        now: OffsetDateTime,
    ) -> Result<DeliveryReceipt, DeliveryError> {
        let attempt = async {
            match channel {
                DeliveryChannel::Webhook { url, secrets } => {
                    webhook::send_webhook(&self.ways, url, secrets, notice, reach, now).await
                }
                DeliveryChannel::Mail { to } => match &self.mail {
                    Some(mail) => mail.send_mail(to, notice).await,
                    None => Err(DeliveryError::transient_error("no mail server is configured")),
                },
                DeliveryChannel::Ntfy { url, token } => {
                    ntfy::send_ntfy(&self.ways, url, token.as_ref(), notice, reach).await
                }
                DeliveryChannel::WebPush(target) => {
                    web_push::send_web_push(&self.ways, target, notice, reach, now).await
                }
            }
        };
        let late = || Err(DeliveryError::transient_error("there was no answer in time"));
        tokio::time::timeout(SEND_TIMEOUT, attempt).await.unwrap_or_else(|_| late())
    }
}
