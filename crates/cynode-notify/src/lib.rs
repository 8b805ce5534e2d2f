//! The way to people: what waits for somebody is told by a webhook, by e-mail or by ntfy.
//!
//! **Invariant**: no database, and no way to an address that is not public unless the caller says so for this one notice.
//! Nothing is followed elsewhere. A notice bears its id everywhere, so that whoever gets it twice can drop the second.

mod egress;
mod mail;
mod ntfy;
mod text;
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
pub use webhook::{WebhookSecret, WebhookSecretError};

/// Longest time of one attempt.
const SEND_TIMEOUT: Duration = Duration::from_secs(15);

/// Most bytes of an answer that are read and kept.
const MAX_RESPONSE_BYTES: usize = 1024;

/// Something to be told to a person.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct NotificationMessage {
    /// Its id: the same whenever it is told again.
    pub id: String,
    /// What kind of thing happened.
    pub kind: String,
    /// One line.
    pub title: String,
    /// A few sentences.
    pub text: String,
    /// The command, diff, plan or question that a person is to decide about, word for word.
    pub exact: Option<String>,
    /// Where it can be answered.
    pub links: Vec<NotificationLink>,
    /// What it is about, for programs.
    pub about: Value,
    /// When it happened.
    pub at: OffsetDateTime,
}

/// A way to answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct NotificationLink {
    /// What it does, in a word.
    pub label: String,
    /// Where it leads.
    pub url: String,
    /// What is sent there as a form to answer at once; without it the address is to be opened and looked at.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub post: Option<String>,
}

/// Where somebody is told.
#[derive(Clone, Debug)]
pub enum DeliveryChannel {
    /// A program, by the scheme of Standard Webhooks.
    Webhook {
        /// Where it is.
        url: Url,
        /// What it knows us by: the present secret first, then one that is being replaced.
        secrets: Vec<WebhookSecret>,
    },
    /// A mailbox.
    Mail {
        /// Its address.
        to: String,
    },
    /// A topic of an ntfy server.
    Ntfy {
        /// The server's address and the topic.
        url: Url,
        /// What opens the topic.
        token: Option<SecretString>,
    },
}

/// A notice that was taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeliveryReceipt {
    /// What the other side said: a status, or its words.
    pub answer: String,
}

/// A notice that was not taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{why}")]
pub struct DeliveryError {
    /// Whether it may pass.
    pub again: bool,
    /// How long the other side wants to be left alone.
    pub after: Option<Duration>,
    /// Whether the other side says that it is gone for good.
    pub gone: bool,
    /// Why.
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

/// Tells people. Cloning it is cheap.
#[derive(Clone, Debug)]
pub struct NotificationSender {
    ways: egress::EgressClients,
    mail: Option<mail::MailSender>,
}

/// Why there can be no courier.
#[derive(Debug, thiserror::Error)]
pub enum NotificationSenderError {
    /// The HTTP client could not be made.
    #[error("the HTTP client cannot be made")]
    Http(#[source] reqwest::Error),
    /// The mail server is described wrongly.
    #[error(transparent)]
    Mail(#[from] MailError),
}

impl NotificationSender {
    /// A courier that sends mail through that server, if there is one.
    pub fn new(mail: Option<MailServer>) -> Result<Self, NotificationSenderError> {
        let ways = egress::EgressClients::new().map_err(NotificationSenderError::Http)?;
        Ok(Self { ways, mail: mail.map(mail::MailSender::new).transpose()? })
    }

    /// Whether it can send mail.
    pub const fn can_send_mail(&self) -> bool {
        self.mail.is_some()
    }

    /// Tells somebody, once. Whether it is to be tried again is the caller's to see to.
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
            }
        };
        let late = || Err(DeliveryError::transient_error("there was no answer in time"));
        tokio::time::timeout(SEND_TIMEOUT, attempt).await.unwrap_or_else(|_| late())
    }
}
