//! Registry of the chains of an installation. Each chain is linked to the previous one.

use ed25519_dalek::{SigningKey, VerifyingKey};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use time::OffsetDateTime;
use uuid::Uuid;

use crate::{
    BadSignature, NamedSigningKey,
    bytes::BinaryEncoder,
    checkpoint::{sign_message, verify_message},
    hex, truncate_to_micros,
};

const CHAIN_START_DOMAIN: &[u8] = b"cynode/audit/start/v1\0";
const CHAIN_LINK_DOMAIN: &[u8] = b"cynode/audit/link/v1\0";

/// A chain as its writer announces it, before the store has assigned its number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewChain {
    /// Id of the chain.
    pub chain: Uuid,
    /// Start time, in whole microseconds.
    pub at: OffsetDateTime,
    /// Name of the writer.
    pub writer: String,
}

impl NewChain {
    /// Registers the chain after the last registered one.
    ///
    /// A store reads its registry head and writes the signed start in one transaction that excludes other registrations.
    pub fn sign_start(&self, tip: ChainRegistryHead, key: &SigningKey) -> ChainStart {
        let mut start = ChainStart {
            chain: self.chain,
            number: tip.number.saturating_add(1),
            previous: tip.link,
            at: truncate_to_micros(self.at),
            writer: self.writer.clone(),
            signature: [0; 64],
            key_id: Uuid::nil(),
        };
        start.signature = sign_message(&start.signing_payload(), key);
        start
    }

    /// Registers the chain like [`Self::sign_start`], and names the key.
    pub fn sign_named_start(&self, tip: ChainRegistryHead, key: &NamedSigningKey) -> ChainStart {
        ChainStart { key_id: key.id, ..self.sign_start(tip, &key.key) }
    }
}

/// Head of the registry: the last chain, to which the next one is linked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChainRegistryHead {
    /// Number of the last chain.
    pub number: u64,
    /// [`ChainStart::link_hash`] of the last chain.
    pub link: [u8; 32],
}

impl ChainRegistryHead {
    /// Registry head of an installation without chains.
    pub const ORIGIN: Self = Self { number: 0, link: [0; 32] };
}

/// A registered chain: its position among the chains of the installation, signed.
///
/// Numbers have no gaps, and each start holds the hash of the previous start, so a whole chain cannot be removed from the middle. The last
/// chain can be removed; a copy of the [`ChainRegistryHead`] elsewhere reveals that too.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ChainStart {
    /// Id of the chain.
    pub chain: Uuid,
    /// Number of the chain. The first chain of an installation has 1.
    pub number: u64,
    /// Link hash of the previous chain.
    #[serde(with = "hex")]
    pub previous: [u8; 32],
    /// Start time, in whole microseconds.
    #[serde(with = "time::serde::rfc3339")]
    pub at: OffsetDateTime,
    /// Name of the writer.
    pub writer: String,
    /// Ed25519 signature over all fields above.
    #[serde(with = "hex")]
    pub signature: [u8; 64],
    /// Id of the key that signed. Statements of earlier versions name none.
    #[serde(default, skip_serializing_if = "Uuid::is_nil")]
    pub key_id: Uuid,
}

impl ChainStart {
    /// Verifies that this key signed the start and that it was not changed since.
    pub fn verify_signature(&self, key: &VerifyingKey) -> Result<(), BadSignature> {
        if self.at != truncate_to_micros(self.at) {
            return Err(BadSignature);
        }
        verify_message(&self.signing_payload(), &self.signature, key)
    }

    /// Returns the hash that the next chain holds as `previous`.
    pub fn link_hash(&self) -> [u8; 32] {
        Sha256::new()
            .chain_update(CHAIN_LINK_DOMAIN)
            .chain_update(self.signing_payload())
            .finalize()
            .into()
    }

    /// Returns the registry head while this is the last chain.
    pub fn registry_head(&self) -> ChainRegistryHead {
        ChainRegistryHead { number: self.number, link: self.link_hash() }
    }

    fn signing_payload(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(160);
        out.put_bytes(CHAIN_START_DOMAIN);
        out.put_uuid(self.chain);
        out.put_u64(self.number);
        out.put_bytes(&self.previous);
        out.put_timestamp(self.at);
        out.put_text(&self.writer);
        out
    }
}
