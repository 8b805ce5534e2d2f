//! Keys of signatures: the one that signs, and all that verify.
//!
//! Signing keys are rotated. Every signed statement names its key by an id, so that a verifier takes that key and no other. The id is
//! not part of what is signed: a statement that names another key is not signed by it.

use std::{fmt, sync::Arc};

use ed25519_dalek::{SigningKey, VerifyingKey};
use serde::{Deserialize, Serialize};
use time::OffsetDateTime;
use uuid::Uuid;

use crate::{
    AuditCheckpoint, BadSignature, ChainStart,
    checkpoint::{sign_message, verify_message},
    hex,
};

const INTRODUCTION_DOMAIN: &[u8] = b"cynode/audit/next-key/v1\0";

/// A signing key and its id.
#[derive(Clone)]
pub struct NamedSigningKey {
    /// Id of the key.
    pub id: Uuid,
    /// The key.
    pub key: SigningKey,
}

impl fmt::Debug for NamedSigningKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NamedSigningKey").field("id", &self.id).finish_non_exhaustive()
    }
}

/// Source of the key that signs now. A writer asks for every signature, so that a rotation needs no restart.
#[derive(Clone)]
pub struct AuditSigner(Arc<dyn Fn() -> NamedSigningKey + Send + Sync>);

impl AuditSigner {
    /// Creates a source that gives the present key.
    pub fn new(source: impl Fn() -> NamedSigningKey + Send + Sync + 'static) -> Self {
        Self(Arc::new(source))
    }

    /// Returns the key that signs now.
    pub fn current_key(&self) -> NamedSigningKey {
        (self.0)()
    }
}

impl From<SigningKey> for AuditSigner {
    /// Creates a source of one key without a name.
    fn from(key: SigningKey) -> Self {
        Self::new(move || NamedSigningKey { id: Uuid::nil(), key: key.clone() })
    }
}

impl fmt::Debug for AuditSigner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AuditSigner(..)")
    }
}

/// A public key that verifies signatures.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PublicAuditKey {
    /// Id of the key. A key without one verifies statements that name any key.
    #[serde(default, skip_serializing_if = "Uuid::is_nil")]
    pub key_id: Uuid,
    /// The Ed25519 key.
    #[serde(with = "verifying_key")]
    pub public_key: VerifyingKey,
    /// End of its use: it verifies nothing that was signed later.
    #[serde(
        default,
        with = "time::serde::rfc3339::option",
        skip_serializing_if = "Option::is_none"
    )]
    pub retired_at: Option<OffsetDateTime>,
    /// Signature of the key before it. A witness who trusts that key can trust this one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub introduction: Option<KeyIntroduction>,
    /// Signature of its successor, once it is retired. A witness who trusts that key can trust this one until its end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub endorsement: Option<KeyIntroduction>,
}

impl PublicAuditKey {
    /// Creates a key without a name, which is in use.
    pub const fn unnamed(public_key: VerifyingKey) -> Self {
        Self {
            key_id: Uuid::nil(),
            public_key,
            retired_at: None,
            introduction: None,
            endorsement: None,
        }
    }
}

/// Signature of a key under the public key of another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KeyIntroduction {
    /// Id of the key that signed.
    pub by: Uuid,
    /// Ed25519 signature.
    #[serde(with = "hex")]
    pub signature: [u8; 64],
}

impl KeyIntroduction {
    /// Signs the public key of a successor.
    pub fn sign_successor(signer: &NamedSigningKey, id: Uuid, public_key: &VerifyingKey) -> Self {
        let signature = sign_message(&introduction_payload(id, public_key), &signer.key);
        Self { by: signer.id, signature }
    }

    /// Verifies that `signer` introduced the key of this id.
    pub fn verify_successor(
        &self,
        signer: &VerifyingKey,
        id: Uuid,
        public_key: &VerifyingKey,
    ) -> Result<(), BadSignature> {
        verify_message(&introduction_payload(id, public_key), &self.signature, signer)
    }
}

fn introduction_payload(id: Uuid, public_key: &VerifyingKey) -> Vec<u8> {
    [INTRODUCTION_DOMAIN, id.as_bytes(), public_key.as_bytes()].concat()
}

/// Serde format of a public key: lower-case hex.
mod verifying_key {
    use ed25519_dalek::VerifyingKey;
    use serde::{Deserializer, Serializer, de::Error};

    use super::hex;

    pub(super) fn serialize<S: Serializer>(
        key: &VerifyingKey,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        hex::serialize(key.as_bytes(), serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<VerifyingKey, D::Error> {
        let bytes: [u8; 32] = hex::deserialize(deserializer)?;
        VerifyingKey::from_bytes(&bytes).map_err(|_| D::Error::custom("not an Ed25519 key"))
    }
}

/// The public keys of an installation, those in use and those of earlier signatures.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PublicKeyring(Vec<PublicAuditKey>);

/// Error: the text holds no public keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "expected Ed25519 keys: one per line in hexadecimal, or JSON as `cynode audit key --json` prints it"
)]
pub struct BadPublicKeys;

impl PublicKeyring {
    /// Creates a keyring.
    pub const fn new(keys: Vec<PublicAuditKey>) -> Self {
        Self(keys)
    }

    /// Reads keys from a file: one per line in hexadecimal, or a JSON list.
    pub fn parse_text(text: &str) -> Result<Self, BadPublicKeys> {
        let keys = if text.trim_start().starts_with('[') {
            serde_json::from_str(text).map_err(|_| BadPublicKeys)?
        } else {
            let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
            let parse = |line: &str| {
                let bytes: [u8; 32] = hex::decode_hex(line)?;
                VerifyingKey::from_bytes(&bytes).ok().map(PublicAuditKey::unnamed)
            };
            lines.map(parse).collect::<Option<Vec<_>>>().ok_or(BadPublicKeys)?
        };
        if keys.is_empty() { Err(BadPublicKeys) } else { Ok(Self(keys)) }
    }

    /// Returns the keys.
    pub fn public_keys(&self) -> &[PublicAuditKey] {
        &self.0
    }

    /// Verifies the signature of a head with the key that it names. Returns the key.
    pub fn verify_checkpoint(
        &self,
        checkpoint: &AuditCheckpoint,
    ) -> Result<&VerifyingKey, BadSignature> {
        self.find_signer(checkpoint.key_id, checkpoint.at, |key| checkpoint.verify_signature(key))
    }

    /// Verifies the signature of the start of a chain with the key that it names.
    pub fn verify_start(&self, start: &ChainStart) -> Result<(), BadSignature> {
        self.find_signer(start.key_id, start.at, |key| start.verify_signature(key)).map(drop)
    }

    /// Finds the key that a statement names and that signed it. A key signs nothing after its end; a chain may have begun a while
    /// before its start was signed, so `at` is a lower bound there.
    pub fn find_signer(
        &self,
        named: Uuid,
        at: OffsetDateTime,
        verify: impl Fn(&VerifyingKey) -> Result<(), BadSignature>,
    ) -> Result<&VerifyingKey, BadSignature> {
        let candidates = self.0.iter().filter(|key| {
            let fits = named.is_nil() || key.key_id.is_nil() || key.key_id == named;
            fits && key.retired_at.is_none_or(|end| at <= end)
        });
        let mut keys = candidates.map(|key| &key.public_key);
        keys.find(|&key| verify(key).is_ok()).ok_or(BadSignature)
    }
}

impl From<&[VerifyingKey]> for PublicKeyring {
    fn from(keys: &[VerifyingKey]) -> Self {
        Self(keys.iter().copied().map(PublicAuditKey::unnamed).collect())
    }
}

impl<const N: usize> From<&[VerifyingKey; N]> for PublicKeyring {
    fn from(keys: &[VerifyingKey; N]) -> Self {
        keys.as_slice().into()
    }
}

impl From<&PublicKeyring> for PublicKeyring {
    fn from(keys: &PublicKeyring) -> Self {
        keys.clone()
    }
}
