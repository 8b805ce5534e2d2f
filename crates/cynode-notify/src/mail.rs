//! E-mail, through the mail server that an admin configured.

use std::{fmt, net::IpAddr, time::Duration};

use cynode_net::ssrf::is_globally_routable;
use lettre::{
    Address, AsyncSmtpTransport, AsyncTransport, Message, Tokio1Executor,
    message::{
        Mailbox, SinglePart,
        header::{HeaderName, HeaderValue},
    },
    transport::smtp::{authentication::Credentials, client::Tls, extension::ClientId},
};
use secrecy::{ExposeSecret, SecretString};
use url::{Host, Url};

use crate::{DeliveryError, DeliveryReceipt, NotificationMessage, text};

/// Timeout of one SMTP command.
const SMTP_TIMEOUT: Duration = Duration::from_secs(10);

/// Mail server.
#[derive(Clone, Debug)]
pub struct MailServer {
    /// `smtps://host[:465]`, `smtp://host[:587]` with STARTTLS, or `plain://host[:25]` for this machine and private networks.
    pub server: Url,
    /// User name for authentication.
    pub user: Option<String>,
    /// Password for authentication.
    pub password: Option<SecretString>,
    /// Sender of the mail.
    pub from: String,
}

/// Error of the mail configuration.
#[derive(Debug, thiserror::Error)]
pub enum MailError {
    /// The server URL is invalid.
    #[error("a mail server is smtps://HOST[:PORT], smtp://HOST[:PORT] or plain://HOST[:PORT]")]
    Address,
    /// The connection to a public server would not be encrypted.
    #[error("plain:// is for this machine and for private networks")]
    Plain,
    /// The sender is not a valid mailbox.
    #[error("`from` is no mailbox")]
    From,
    /// The system's certificates could not be read.
    #[error("encryption cannot be set up")]
    Tls(#[source] lettre::transport::smtp::Error),
}

/// Returns whether a text is a mailbox address.
pub fn is_mailbox(text: &str) -> bool {
    text.parse::<Address>().is_ok()
}

type Transport = AsyncSmtpTransport<Tokio1Executor>;

#[derive(Clone)]
pub(crate) struct MailSender {
    transport: Transport,
    from: Mailbox,
}

impl fmt::Debug for MailSender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Mail(from {})", self.from)
    }
}

impl MailSender {
    pub(crate) fn new(server: MailServer) -> Result<Self, MailError> {
        let host = server.server.host_str().ok_or(MailError::Address)?;
        let (builder, port) = match server.server.scheme() {
            "smtps" => (Transport::relay(host).map_err(MailError::Tls)?, 465),
            "smtp" => (Transport::starttls_relay(host).map_err(MailError::Tls)?, 587),
            "plain" if is_private_server(&server.server) => {
                (Transport::builder_dangerous(host).tls(Tls::None), 25)
            }
            "plain" => return Err(MailError::Plain),
            _ => return Err(MailError::Address),
        };
        let from: Mailbox = server.from.parse().map_err(|_| MailError::From)?;
        let mut builder = builder
            .port(server.server.port().unwrap_or(port))
            .timeout(Some(SMTP_TIMEOUT))
            .hello_name(ClientId::Domain(from.email.domain().to_owned()));
        if let (Some(user), Some(password)) = (server.user, server.password) {
            let password = password.expose_secret().to_owned();
            builder = builder.credentials(Credentials::new(user, password));
        }
        Ok(Self { transport: builder.build(), from })
    }

    pub(crate) async fn send_mail(
        &self,
        to: &str,
        notice: &NotificationMessage,
    ) -> Result<DeliveryReceipt, DeliveryError> {
        let message = self.build_mail(to, notice)?;
        match self.transport.send(message).await {
            Ok(said) => {
                let words = said.message().next().unwrap_or_default().to_owned();
                Ok(DeliveryReceipt {
                    answer: text::to_single_line(&format!("{} {words}", said.code())),
                })
            }
            Err(error) => {
                // An authentication failure is a configuration error and not specific to this notification, so it is retried.
                let ours = error.status().is_some_and(|code| {
                    let code: u16 = code.into();
                    (530..540).contains(&code)
                });
                let why =
                    text::to_single_line(&cynode_core::error_chain::format_error_chain(&error));
                Err(DeliveryError {
                    again: !error.is_permanent() || ours,
                    after: None,
                    gone: false,
                    why,
                })
            }
        }
    }

    fn build_mail(&self, to: &str, notice: &NotificationMessage) -> Result<Message, DeliveryError> {
        let wrong = |_| DeliveryError::permanent_error("the address is no mailbox");
        let to: Address = to.parse().map_err(wrong)?;
        let header = |name: &'static str, value: &str| {
            HeaderValue::new(HeaderName::new_from_ascii_str(name), value.to_owned())
        };
        Message::builder()
            .from(self.from.clone())
            .to(Mailbox::new(None, to))
            .subject(text::to_single_line(&notice.title))
            .date(notice.at.into())
            .message_id(Some(format!("<{}@{}>", notice.id, self.from.email.domain())))
            .raw_header(header("Auto-Submitted", "auto-generated"))
            .singlepart(SinglePart::plain(render_mail_body(notice)))
            .map_err(|error| {
                DeliveryError::permanent_error(format!("the mail cannot be written: {error}"))
            })
    }
}

/// Returns whether the URL names this machine or a private address.
fn is_private_server(url: &Url) -> bool {
    let ip: Option<IpAddr> = match url.host() {
        // For a scheme other than HTTP, the URL parser returns every host as a domain name.
        Some(Host::Domain("localhost")) => return true,
        Some(Host::Domain(name)) => name.parse().ok(),
        Some(Host::Ipv4(ip)) => Some(ip.into()),
        Some(Host::Ipv6(ip)) => Some(ip.into()),
        None => None,
    };
    ip.is_some_and(|ip| !is_globally_routable(ip))
}

/// Renders the mail body: the event, the verbatim question, and the links for an answer.
pub(crate) fn render_mail_body(notice: &NotificationMessage) -> String {
    let mut parts = vec![notice.text.clone()];
    parts.extend(notice.exact.clone());
    let opened = notice.links.iter().filter(|link| link.post.is_none());
    parts.extend(opened.map(|link| format!("{}: {}", link.label, link.url)));
    parts.push(format!("-- \n{} {}", notice.kind, notice.id));
    parts.join("\n\n")
}

#[cfg(test)]
mod tests {
    use time::macros::datetime;

    use super::*;

    fn server(text: &str, from: &str) -> Result<MailSender, MailError> {
        let server = text.parse().unwrap();
        MailSender::new(MailServer { server, user: None, password: None, from: from.into() })
    }

    #[test]
    fn a_server_is_spoken_to_in_the_open_only_when_it_is_near() {
        for good in [
            "smtps://mail.example",
            "smtp://mail.example:2525",
            "plain://127.0.0.1:25",
            "plain://localhost",
            "plain://10.0.0.7",
        ] {
            assert!(server(good, "CyNode <a@b.example>").is_ok(), "{good}");
        }
        for (wrong, from) in [
            ("plain://mail.example", "a@b"),
            ("plain://1.1.1.1", "a@b"),
            ("http://x", "a@b"),
            ("smtps://x", "nobody"),
        ] {
            assert!(server(wrong, from).is_err(), "{wrong}");
        }
    }

    #[test]
    fn no_word_of_a_notice_becomes_a_header() {
        let mail = server("smtps://mail.example", "CyNode <c@cynode.example>").unwrap();
        let notice = NotificationMessage {
            id: "ntf_1".into(),
            kind: "task.waiting".into(),
            title: "Hé\r\nBcc: evil@example.com\r\n\r\nbody".into(),
            text: "It waits.".into(),
            exact: Some("rm -rf build\r\n.\r\nRSET".into()),
            links: Vec::new(),
            path: "/?item=wai_1".into(),
            about: serde_json::Value::Null,
            at: datetime!(2026-11-15 12:00 UTC),
        };
        let written =
            String::from_utf8(mail.build_mail("ada@example.com", &notice).unwrap().formatted())
                .unwrap();
        let (headers, _) = written.split_once("\r\n\r\n").unwrap();
        let names: Vec<_> = headers
            .split("\r\n")
            .filter(|line| !line.starts_with(' '))
            .map(|line| line.split(':').next().unwrap())
            .collect();
        assert_eq!(
            names,
            [
                "From",
                "To",
                "Subject",
                "Date",
                "Message-ID",
                "Auto-Submitted",
                "MIME-Version",
                "Content-Type",
                "Content-Transfer-Encoding",
            ]
        );
        assert!(mail.build_mail("ada@example.com\r\nBcc: x@y.z", &notice).is_err());
    }
}
