//! Receivers of notifications on loopback: a webhook receiver, an ntfy server and a mail server that implement the real wire
//! formats and store their input.

mod http;
mod smtp;

pub use http::{NtfyInbox, Published, WebhookInbox, WebhookRequest};
pub use smtp::{Letter, SmtpInbox};
