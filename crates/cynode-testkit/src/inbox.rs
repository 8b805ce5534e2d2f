//! Receivers of notifications on loopback: a webhook receiver, an ntfy server, a push service and a mail server that
//! implement the real wire formats and store their input.

mod http;
mod push;
mod smtp;

pub use http::{NtfyInbox, Published, WebhookInbox, WebhookRequest};
pub use push::{Browser, PushMessage, PushService};
pub use smtp::{Letter, SmtpInbox};
