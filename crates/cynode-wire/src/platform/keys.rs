//! Keys of the installation, as its admins see them. No view holds a secret.

use serde::{Deserialize, Serialize};
use time::OffsetDateTime;
use utoipa::ToSchema;

/// How often things of one kind name a key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct KeyUseView {
    /// The kind of thing.
    #[schema(example = "provider keys")]
    pub kind: String,
    /// How many name the key.
    pub count: u64,
}

/// A key of the installation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct KeyView {
    /// The key, as a UUID: sealed secrets, hashes of tokens and signed heads name it.
    pub key_id: String,
    /// What it is for: `master` seals secrets, `signing` signs audit records, `token` stores tokens.
    #[schema(example = "master")]
    pub purpose: String,
    /// `staged`: every process loads it. `active`: it is used. `retiring`: it still opens. `retired`: its material is destroyed.
    #[schema(example = "active")]
    pub state: String,
    /// The time of its creation.
    #[serde(with = "time::serde::rfc3339")]
    pub created_at: OffsetDateTime,
    /// The time of its first use.
    #[serde(with = "time::serde::rfc3339")]
    pub activates_at: OffsetDateTime,
    /// The earliest time of its end; absent while no newer key takes over.
    #[serde(
        default,
        with = "time::serde::rfc3339::option",
        skip_serializing_if = "Option::is_none"
    )]
    pub retires_at: Option<OffsetDateTime>,
    /// The time of its end.
    #[serde(
        default,
        with = "time::serde::rfc3339::option",
        skip_serializing_if = "Option::is_none"
    )]
    pub retired_at: Option<OffsetDateTime>,
    /// Whether it follows from the master key that the installation began with.
    pub derived: bool,
    /// Whether it is no key: tokens are stored as SHA-256 alone.
    pub unkeyed: bool,
    /// The version of the master key that wraps it; absent while it is derived.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wrapped_by: Option<String>,
    /// The public key of a key that signs, hex.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub public_key: Option<String>,
    /// What names it.
    pub uses: Vec<KeyUseView>,
}

/// The master key, which wraps every key of the installation. It is not in the database.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct MasterKeyView {
    /// Where it is: `file`, `credential` (of systemd) or `vault` (a key management service).
    #[schema(example = "file")]
    pub place: String,
    /// Its version, which wraps the keys; absent while the keys follow from the first one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// Since when it wraps the keys.
    #[serde(
        default,
        with = "time::serde::rfc3339::option",
        skip_serializing_if = "Option::is_none"
    )]
    pub since: Option<OffsetDateTime>,
    /// Whether the end of its rotation is missing: the old one still opens what it wrapped.
    pub unfinished: bool,
    /// Why that cannot be told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

/// The keys of the installation, and the rotation that is under way.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct KeyringView {
    /// The keys, oldest first.
    pub keys: Vec<KeyView>,
    /// Whether a newer key takes over from an older one.
    pub rotating: bool,
    /// How many secrets and tokens still name an older key.
    pub remaining: u64,
    /// The processes that have not loaded a new key: the rotation waits for them.
    #[serde(default)]
    pub waiting_for: Vec<String>,
    /// The master key; absent in answers of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub master_key: Option<MasterKeyView>,
}
