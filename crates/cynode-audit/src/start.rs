//! The chains of an installation, linked to each other.

use ed25519_dalek::{SigningKey, VerifyingKey};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use time::OffsetDateTime;
use uuid::Uuid;

use crate::{
    BadSignature,
    bytes::BinaryEncoder,
    checkpoint::{sign_message, verify_message},
    hex, truncate_to_micros,
};

const CHAIN_START_DOMAIN: &[u8] = b"cynode/audit/start/v1\0";
const CHAIN_LINK_DOMAIN: &[u8] = b"cynode/audit/link/v1\0";

/// A chain as its writer announces it, before the store has given it its number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewChain {
    /// The chain.
    pub chain: Uuid,
    /// When it was begun, in whole microseconds.
    pub at: OffsetDateTime,
    /// Who writes it.
    pub writer: String,
}

impl NewChain {
    /// Puts the chain after the last one that was registered.
    ///
    /// A store reads its tip and writes the signed start within one transaction that no other
    /// registration can come between.
    pub fn sign_start(&self, tip: ChainRegistryHead, key: &SigningKey) -> ChainStart {
        let mut start = ChainStart {
            chain: self.chain,
            number: tip.number.saturating_add(1),
            previous: tip.link,
            at: truncate_to_micros(self.at),
            writer: self.writer.clone(),
            signature: [0; 64],
        };
        start.signature = sign_message(&start.signing_payload(), key);
        start
    }
}

/// The end of the list of chains: what the next one is linked to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChainRegistryHead {
    /// The number of the last chain.
    pub number: u64,
    /// Its [`ChainStart::link`].
    pub link: [u8; 32],
}

impl ChainRegistryHead {
    /// The tip of an installation without chains.
    pub const ORIGIN: Self = Self { number: 0, link: [0; 32] };
}

/// A registered chain: its place among the chains of the installation, signed.
///
/// Numbers have no gaps and each start holds the hash of the one before, so a whole chain cannot
/// be taken out of the middle. The last one can; a copy of the [`ChainRegistryHead`] elsewhere shows that too.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ChainStart {
    /// The chain.
    pub chain: Uuid,
    /// Its number; the first chain of an installation has 1.
    pub number: u64,
    /// The link of the chain with the number before.
    #[serde(with = "hex")]
    pub previous: [u8; 32],
    /// When it was begun, in whole microseconds.
    #[serde(with = "time::serde::rfc3339")]
    pub at: OffsetDateTime,
    /// Who writes it.
    pub writer: String,
    /// The Ed25519 signature over all of the above.
    #[serde(with = "hex")]
    pub signature: [u8; 64],
}

impl ChainStart {
    /// Whether it was signed with this key and not changed since.
    pub fn verify_signature(&self, key: &VerifyingKey) -> Result<(), BadSignature> {
        if self.at != truncate_to_micros(self.at) {
            return Err(BadSignature);
        }
        verify_message(&self.signing_payload(), &self.signature, key)
    }

    /// The hash the next chain holds as `previous`.
    pub fn link_hash(&self) -> [u8; 32] {
        Sha256::new()
            .chain_update(CHAIN_LINK_DOMAIN)
            .chain_update(self.signing_payload())
            .finalize()
            .into()
    }

    /// The tip of the list while this is its last chain.
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
