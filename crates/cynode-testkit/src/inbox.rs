//! Where people are told things, on loopback: a receiver of webhooks, an ntfy server and a mail server that speak the real wire
//! formats and keep what they were sent.

mod http;
mod smtp;

pub use http::{NtfyInbox, Published, WebhookInbox, WebhookRequest};
pub use smtp::{Letter, SmtpInbox};
