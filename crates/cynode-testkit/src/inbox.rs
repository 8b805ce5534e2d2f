//! Receivers of notifications and audit records on loopback: a webhook receiver, an ntfy server, a push service, a mail server, a syslog
//! server and an object store that implement the real wire formats and store their input.

mod audit;
mod http;
mod push;
mod smtp;

pub use audit::{ObjectInbox, SyslogInbox};
pub use http::{NtfyInbox, Published, WebhookInbox, WebhookRequest};
pub use push::{Browser, PushMessage, PushService};
pub use smtp::{Letter, SmtpInbox};
