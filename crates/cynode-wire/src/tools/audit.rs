//! Signed heads of the audit log, proofs between them, and the bundle of an export.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use time::OffsetDateTime;
use utoipa::ToSchema;

use crate::identity::accounts::SecretText;

/// A signed head of a chain: the state of the chain at one moment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CheckpointView {
    /// The chain, as a UUID.
    pub chain: String,
    /// How many records it covers.
    pub size: u64,
    /// The Merkle root over the hashes of these records, hex.
    pub root: String,
    /// The hash of the last of them, hex.
    pub head: String,
    /// The time of the signature, in whole microseconds.
    #[serde(with = "time::serde::rfc3339")]
    pub at: OffsetDateTime,
    /// Whether no record follows.
    pub closed: bool,
    /// The Ed25519 signature over all of this, hex.
    pub signature: String,
    /// The key that signed, as a UUID.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub key_id: String,
}

/// A public key that verifies signatures of the audit log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PublicKeyView {
    /// The key, as a UUID.
    pub key_id: String,
    /// The Ed25519 key, hex.
    pub public_key: String,
    /// The end of its use: it signed nothing later.
    #[serde(
        default,
        with = "time::serde::rfc3339::option",
        skip_serializing_if = "Option::is_none"
    )]
    pub retired_at: Option<OffsetDateTime>,
    /// The key before it, as a UUID.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub introduced_by: Option<String>,
    /// The signature of the key before it under this one, Ed25519, hex. Whoever trusts that key can trust this one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub introduction: Option<String>,
    /// The key after it, as a UUID.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub endorsed_by: Option<String>,
    /// The signature of the key after it under this one and its end, Ed25519, hex.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub endorsement: Option<String>,
}

/// A chain and its newest signed head.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AuditHead {
    /// The chain.
    pub chain_id: String,
    /// Its number among the chains of the installation.
    pub number: i64,
    /// The process that writes it.
    pub writer: String,
    /// The time of its first record.
    #[serde(with = "time::serde::rfc3339")]
    pub started_at: OffsetDateTime,
    /// The time at which its records were removed, after their retention.
    #[serde(
        default,
        with = "time::serde::rfc3339::option",
        skip_serializing_if = "Option::is_none"
    )]
    pub pruned_at: Option<OffsetDateTime>,
    /// The newest signed head; absent while nothing is signed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<CheckpointView>,
}

/// The newest signed heads of the audit log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AuditHeads {
    /// The public key of today's signatures, Ed25519, hex.
    pub public_key: String,
    /// Every public key of the installation, oldest first.
    #[serde(default)]
    pub public_keys: Vec<PublicKeyView>,
    /// Number and hash of the newest chain: keep it elsewhere, and a later list that lacks a chain is found out.
    pub registry_head: String,
    /// The chains, newest first.
    pub heads: Vec<AuditHead>,
    /// Whether these are all chains.
    pub complete: bool,
}

/// A proof that a chain was only appended to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AuditConsistency {
    /// The chain.
    pub chain_id: String,
    /// The size of the earlier head.
    pub from: u64,
    /// The size of the later head.
    pub to: u64,
    /// The consistency proof of RFC 6962, hex.
    pub path: Vec<String>,
    /// The later head, signed.
    pub checkpoint: CheckpointView,
    /// The public key of its signature, Ed25519, hex.
    pub public_key: String,
}

/// A line of an export of the audit log.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum AuditBundleLine {
    /// The first line.
    Bundle {
        /// The version of this form: 1.
        version: u32,
        /// The time of the export.
        #[serde(with = "time::serde::rfc3339")]
        exported_at: OffsetDateTime,
        /// The public key of today's signatures, Ed25519, hex.
        public_key: String,
        /// Every public key of the installation, oldest first.
        #[serde(default)]
        public_keys: Vec<PublicKeyView>,
        /// The search that the records are the result of.
        filter: Value,
    },
    /// A signed head, before the records that it covers.
    Checkpoint {
        /// The head.
        checkpoint: CheckpointView,
    },
    /// A record.
    Record {
        /// The record, as it was hashed.
        record: Value,
        /// The inclusion proof of RFC 6962; absent while no signed head covers the record.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        inclusion: Option<Value>,
    },
    /// The last line.
    End {
        /// How many records there are.
        records: u64,
        /// How many of them have a proof.
        proven: u64,
        /// Whether these are all records that were searched for.
        complete: bool,
    },
}

/// The recorded calls of each tool in some time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ToolStats {
    /// The begin of the time that is counted.
    #[serde(with = "time::serde::rfc3339")]
    pub since: OffsetDateTime,
    /// Its end, exclusive.
    #[serde(with = "time::serde::rfc3339")]
    pub until: OffsetDateTime,
    /// The tools that were called, the most called first.
    pub items: Vec<ToolCallStats>,
}

/// Counts of the recorded calls of one tool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ToolCallStats {
    /// The tool.
    pub tool: String,
    /// Calls that the policy allowed.
    pub allowed: i64,
    /// Calls that the policy refused.
    pub refused: i64,
    /// Calls that needed the approval of a person.
    pub needs_approval: i64,
    /// Calls that were allowed and ended without a result: an error, a timeout, a lost connection, a revocation or an unknown end.
    pub failed: i64,
    /// The median duration of the calls that reached the tool, in microseconds; absent when none did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub p50_us: Option<i64>,
    /// The 95th percentile of that duration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub p95_us: Option<i64>,
    /// The time of the newest record.
    #[serde(with = "time::serde::rfc3339")]
    pub last_at: OffsetDateTime,
}

/// Sets a sink: a receiver of audit records outside of the installation. Its position stays when it is changed.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SetAuditSink {
    /// The receiver. `{"kind":"syslog","transport":"tcp|tls|unix","address":…,"ca_pem":…}`, `{"kind":"webhook","url":…}` or
    /// `{"kind":"object_store","endpoint":…,"region":…,"bucket":…,"prefix":…,"access_key_id":…}`.
    #[schema(value_type = Object)]
    pub target: Value,
    /// The secret that signs a webhook (`whsec_…`), or the secret access key of an object store. It is stored encrypted and never shown
    /// again. Without it the stored one stays, if the target does too.
    #[serde(default)]
    #[schema(value_type = Option<String>)]
    pub secret: Option<SecretText>,
    /// Whether it gets records; it does by default.
    #[serde(default)]
    pub enabled: Option<bool>,
}

/// A receiver of audit records outside of the installation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct AuditSinkView {
    /// Its name.
    pub name: String,
    /// `syslog`, `webhook` or `object_store`.
    pub kind: String,
    /// The receiver, without its secret.
    #[schema(value_type = Object)]
    pub target: Value,
    /// Whether it gets records.
    pub enabled: bool,
    /// The time of its last change.
    #[serde(with = "time::serde::rfc3339")]
    pub updated_at: OffsetDateTime,
    /// The last delivery.
    #[serde(
        default,
        with = "time::serde::rfc3339::option",
        skip_serializing_if = "Option::is_none"
    )]
    pub sent_at: Option<OffsetDateTime>,
    /// The last delivery of signed heads.
    #[serde(
        default,
        with = "time::serde::rfc3339::option",
        skip_serializing_if = "Option::is_none"
    )]
    pub heads_sent_at: Option<OffsetDateTime>,
    /// Records that it has not received.
    pub lag_records: u64,
    /// Age of the oldest record that it has not received.
    pub lag_seconds: u64,
    /// Failures since the last delivery.
    pub failures: u32,
    /// The cause of the last failure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// The time of the next attempt after a failure.
    #[serde(
        default,
        with = "time::serde::rfc3339::option",
        skip_serializing_if = "Option::is_none"
    )]
    pub retry_at: Option<OffsetDateTime>,
}
