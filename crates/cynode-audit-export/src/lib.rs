//! Delivers audit records and signed heads to receivers outside of the installation: syslog (RFC 5424), signed webhooks and object
//! stores, as events of the Open Cybersecurity Schema Framework (OCSF).
//!
//! **Invariant**: no database. A delivery succeeds only when the receiver has taken the whole batch, so that the caller can keep its
//! position and repeat a batch that failed. Batches have the same id and the same content when they are repeated. Records hold no
//! payload, so neither does anything that leaves here.

mod objects;
mod ocsf;
mod syslog;
mod webhook;

use std::{collections::HashMap, net::IpAddr, time::Duration};

use cynode_audit::{AuditCheckpoint, AuditRecord};
use cynode_net::ssrf::{is_localhost_name, is_private_host};
use reqwest::{Client, redirect::Policy};
use secrecy::SecretString;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use time::OffsetDateTime;
use url::Url;
use uuid::Uuid;

pub use ocsf::{OCSF_VERSION, head_event, record_event};

/// Timeout of the delivery of one batch.
pub const DELIVERY_TIMEOUT: Duration = Duration::from_secs(30);

/// Way of syslog messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SyslogTransport {
    /// TCP with octet counting (RFC 6587), for a receiver on the same machine.
    Tcp,
    /// TLS (RFC 5425).
    Tls,
    /// Unix socket, datagrams or a stream.
    Unix,
}

/// Receiver of audit records. It holds no secret.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum SinkTarget {
    /// Syslog server.
    Syslog {
        /// Way of the messages.
        transport: SyslogTransport,
        /// `HOST:PORT`, or the path of a Unix socket.
        address: String,
        /// Certificates of the authorities of a TLS server, PEM. Without them those of the machine are used.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        ca_pem: Option<String>,
    },
    /// Webhook, signed by the Standard Webhooks scheme.
    Webhook {
        /// URL of the receiver.
        url: Url,
    },
    /// Bucket of an object store that speaks S3.
    ObjectStore {
        /// Endpoint, for stores outside of AWS.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        endpoint: Option<Url>,
        /// Region of the bucket.
        region: String,
        /// Name of the bucket.
        bucket: String,
        /// First part of the names of objects.
        #[serde(default)]
        prefix: String,
        /// Id of the access key. Its secret is the secret of the sink.
        access_key_id: String,
    },
}

/// Reason why a target cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct BadTarget(&'static str);

impl SinkTarget {
    /// Returns the kind of the target.
    pub const fn kind_name(&self) -> &'static str {
        match self {
            Self::Syslog { .. } => "syslog",
            Self::Webhook { .. } => "webhook",
            Self::ObjectStore { .. } => "object_store",
        }
    }

    /// Returns whether a delivery needs a secret.
    pub const fn needs_secret(&self) -> bool {
        matches!(self, Self::Webhook { .. } | Self::ObjectStore { .. })
    }

    /// Validates the target. Records do not leave the machine or a private network in the clear.
    pub fn validate_target(&self) -> Result<(), BadTarget> {
        match self {
            Self::Syslog { transport: SyslogTransport::Unix, address, ca_pem: None } => {
                let good = address.starts_with('/') && (2..=107).contains(&address.len());
                check(good, "`address` of a Unix socket is an absolute path of at most 107 bytes")
            }
            Self::Syslog { transport: SyslogTransport::Unix, .. } => {
                Err(BadTarget("`ca_pem` is for TLS"))
            }
            Self::Syslog { transport: SyslogTransport::Tcp, address, ca_pem } => {
                check(ca_pem.is_none(), "`ca_pem` is for TLS")?;
                let local = address.parse().is_ok_and(|address: std::net::SocketAddr| {
                    !cynode_net::ssrf::is_globally_routable(address.ip())
                });
                let rule = "syslog over plain TCP needs the private or loopback address of the receiver: use `tls`";
                check(local, rule)
            }
            Self::Syslog { transport: SyslogTransport::Tls, address, ca_pem } => {
                check(syslog::split_address(address).is_some(), "`address` is HOST:PORT")?;
                let good = ca_pem.as_ref().is_none_or(|pem| !syslog::read_roots(pem).is_empty());
                check(good, "`ca_pem` holds no certificate")
            }
            Self::Webhook { url } => check_url(url),
            Self::ObjectStore { endpoint, region, bucket, prefix, access_key_id } => {
                endpoint.as_ref().map_or(Ok(()), check_url)?;
                let is_name = |text: &str, extra: &[u8], longest: usize| {
                    let good = |b: u8| b.is_ascii_alphanumeric() || extra.contains(&b);
                    text.len() <= longest && text.bytes().all(good)
                };
                check(is_name(region, b"-", 64) && !region.is_empty(), "`region` is no region")?;
                let rule = "`bucket` has 3 to 63 letters, digits, `-` and `.`";
                check(is_name(bucket, b"-.", 63) && bucket.len() >= 3, rule)?;
                let rule = "`prefix` has letters, digits, `-`, `_`, `.` and `/`, and no `..`";
                check(is_name(prefix, b"-_./", 200) && !prefix.contains(".."), rule)?;
                let good = is_name(access_key_id, b"-_", 128) && !access_key_id.is_empty();
                check(good, "`access_key_id` is no id of an access key")
            }
        }
    }
}

fn check(good: bool, rule: &'static str) -> Result<(), BadTarget> {
    if good { Ok(()) } else { Err(BadTarget(rule)) }
}

fn check_url(url: &Url) -> Result<(), BadTarget> {
    let plain = url.scheme() == "http" && (is_private_host(url) || is_localhost_name(url));
    let good = (url.scheme() == "https" || plain)
        && url.has_host()
        && url.username().is_empty()
        && url.password().is_none()
        && url.fragment().is_none();
    check(good, "a URL is https://, or http:// to a private address, without a user and a fragment")
}

/// Reason why a batch was not delivered. It holds no secret.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ExportError(pub(crate) String);

impl ExportError {
    pub(crate) fn new(what: impl Into<String>) -> Self {
        Self(what.into())
    }
}

/// What one delivery carries.
#[derive(Clone, Debug, Default)]
pub struct ExportBatch {
    /// Records of one chain, in order.
    pub records: Vec<AuditRecord>,
    /// Newest signed heads of chains.
    pub heads: Vec<AuditCheckpoint>,
    /// Number and hash of the newest chain: a later list that lacks a chain is found out.
    pub registry_head: String,
    /// What the events of privileged records say beside their records, by the id of the record.
    pub details: HashMap<Uuid, EventDetail>,
}

/// What a privileged event says beside its record. The digest in the record covers it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EventDetail {
    /// The user whose account it concerns.
    pub subject: Option<Uuid>,
    /// The address that a login came from.
    pub source: Option<IpAddr>,
}

/// An event of a batch.
pub(crate) struct ExportEvent {
    pub(crate) at: OffsetDateTime,
    /// Whether somebody should look at it.
    pub(crate) notable: bool,
    /// Short name of the kind of event.
    pub(crate) name: &'static str,
    pub(crate) body: Value,
}

impl ExportBatch {
    /// Returns the id of the batch: the same when the batch is repeated.
    pub fn batch_id(&self) -> String {
        match (self.records.first(), self.records.last(), self.heads.first()) {
            (Some(first), Some(last), _) => {
                format!("{}-{}-{}", first.chain, first.seq, last.seq)
            }
            (_, _, Some(head)) => {
                let micros = head.at.unix_timestamp_nanos() / 1000;
                format!("heads-{}-{micros}-{}", head.chain, self.heads.len())
            }
            _ => "empty".to_owned(),
        }
    }

    pub(crate) fn to_events(&self) -> Vec<ExportEvent> {
        let records = self.records.iter().map(|record| ExportEvent {
            at: record.entry.at,
            notable: record.entry.decision != cynode_audit::Verdict::Allow,
            name: if record.entry.tool.is_some() { "tool" } else { "event" },
            body: record_event(record, self.details.get(&record.entry.call)),
        });
        let heads = self.heads.iter().map(|head| ExportEvent {
            at: head.at,
            notable: false,
            name: "head",
            body: head_event(head, &self.registry_head),
        });
        records.chain(heads).collect()
    }

    /// Returns the events as lines of JSON.
    pub(crate) fn to_lines(&self) -> String {
        self.to_events().iter().map(|event| format!("{}\n", event.body)).collect()
    }
}

/// Delivers batches. Cloning it is cheap.
#[derive(Clone, Debug)]
pub struct AuditExporter {
    client: Client,
}

impl AuditExporter {
    /// Creates the exporter.
    pub fn new() -> Result<Self, ExportError> {
        let client = Client::builder()
            .redirect(Policy::none())
            .no_proxy()
            .user_agent(concat!("cynode/", env!("CARGO_PKG_VERSION")))
            .connect_timeout(DELIVERY_TIMEOUT / 3)
            .timeout(DELIVERY_TIMEOUT)
            .build()
            .map_err(|_| ExportError::new("the HTTP client cannot be made"))?;
        Ok(Self { client })
    }

    /// Delivers a batch. Returns once the receiver has taken all of it.
    pub async fn deliver_batch(
        &self,
        target: &SinkTarget,
        secret: Option<&SecretString>,
        batch: &ExportBatch,
        now: OffsetDateTime,
    ) -> Result<(), ExportError> {
        target.validate_target().map_err(|error| ExportError::new(error.to_string()))?;
        let delivery = async {
            match target {
                SinkTarget::Syslog { transport, address, ca_pem } => {
                    syslog::send_batch(*transport, address, ca_pem.as_deref(), batch).await
                }
                SinkTarget::Webhook { url } => {
                    let secret = secret.ok_or_else(|| ExportError::new("it has no secret"))?;
                    webhook::send_batch(&self.client, url, secret, batch, now).await
                }
                SinkTarget::ObjectStore { .. } => {
                    let secret = secret.ok_or_else(|| ExportError::new("it has no secret"))?;
                    objects::send_batch(target, secret, batch).await
                }
            }
        };
        match tokio::time::timeout(DELIVERY_TIMEOUT, delivery).await {
            Ok(delivered) => delivered,
            Err(_) => Err(ExportError::new("there was no answer in time")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_leave_in_the_clear_to_private_addresses_only() {
        let syslog = |transport, address: &str| {
            let target = SinkTarget::Syslog { transport, address: address.into(), ca_pem: None };
            target.validate_target().is_ok()
        };
        assert!(syslog(SyslogTransport::Tcp, "127.0.0.1:601"));
        assert!(syslog(SyslogTransport::Tcp, "10.0.0.7:601"));
        assert!(!syslog(SyslogTransport::Tcp, "8.8.8.8:601"));
        assert!(!syslog(SyslogTransport::Tcp, "siem.example.com:601"));
        assert!(syslog(SyslogTransport::Tls, "siem.example.com:6514"));
        assert!(!syslog(SyslogTransport::Tls, "siem.example.com"));
        assert!(syslog(SyslogTransport::Unix, "/dev/log"));
        assert!(!syslog(SyslogTransport::Unix, "dev/log"));
        let webhook =
            |url: &str| SinkTarget::Webhook { url: url.parse().unwrap() }.validate_target().is_ok();
        assert!(webhook("https://siem.example.com/cynode"));
        assert!(webhook("http://127.0.0.1:8080/"));
        assert!(!webhook("http://siem.example.com/"));
        assert!(!webhook("https://user:pass@siem.example.com/"));
    }

    #[test]
    fn a_target_is_read_and_written_with_its_kind() {
        let text = r#"{"kind":"syslog","transport":"tls","address":"siem.example.com:6514"}"#;
        let target: SinkTarget = serde_json::from_str(text).unwrap();
        assert_eq!(target.kind_name(), "syslog");
        assert_eq!(serde_json::to_string(&target).unwrap(), text);
    }
}
