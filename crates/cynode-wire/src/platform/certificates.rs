//! Certificates of the installation.

use serde::{Deserialize, Serialize};
use time::OffsetDateTime;
use utoipa::ToSchema;

/// What a certificate is used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum CertificateUse {
    /// The user-facing port.
    UserPort,
    /// The internal port.
    InternalPort,
    /// The certificate authority of the installation.
    Authority,
    /// A node, as a client of the internal port.
    Node,
    /// A service of the installation, as a client of the internal port.
    Service,
}

/// Where a certificate comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum CertificateOrigin {
    /// Files that an operator put there.
    Files,
    /// A certificate authority that speaks ACME.
    Acme,
    /// The certificate authority of the installation.
    Own,
}

/// A certificate of the installation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CertificateView {
    /// What it is used for.
    pub used_for: CertificateUse,
    /// Where it comes from.
    pub origin: CertificateOrigin,
    /// Name of its holder.
    pub name: String,
    /// Name of the certificate authority that issued it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub issuer: Option<String>,
    /// Serial number in hexadecimal.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub serial: Option<String>,
    /// Host names and addresses that it is valid for.
    pub host_names: Vec<String>,
    /// Kind and size of its key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// SHA-256 of its public key, as join tokens carry that of the authority.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pin: Option<String>,
    /// Time from which on it is valid.
    #[serde(
        with = "time::serde::rfc3339::option",
        skip_serializing_if = "Option::is_none",
        default
    )]
    pub not_before: Option<OffsetDateTime>,
    /// Time until which it is valid.
    #[serde(
        with = "time::serde::rfc3339::option",
        skip_serializing_if = "Option::is_none",
        default
    )]
    pub not_after: Option<OffsetDateTime>,
    /// Whole days until it expires; negative if it has expired.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub days_left: Option<i64>,
    /// What is wrong with it.
    pub problems: Vec<String>,
}
