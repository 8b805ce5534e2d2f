//! Checkpoints: signed statements of the state of a chain at one moment.

use ed25519_dalek::{Signature, Signer, SigningKey, VerifyingKey};
use serde::{Deserialize, Serialize};
use time::OffsetDateTime;
use uuid::Uuid;

use crate::{MerkleTree, NamedSigningKey, bytes::BinaryEncoder, hex, truncate_to_micros};

const CHECKPOINT_DOMAIN: &[u8] = b"cynode/audit/checkpoint/v1\0";

/// Error: the signed content was changed, or another key signed it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the signature does not fit")]
pub struct BadSignature;

/// Signed statement of the state of a chain at one moment.
///
/// A third party that holds a checkpoint can verify later that a record is among the records that it covers, and that the chain was only
/// appended to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AuditCheckpoint {
    /// Id of the chain.
    pub chain: Uuid,
    /// Number of records that the checkpoint covers.
    pub size: u64,
    /// Merkle root over the hashes of these records.
    #[serde(with = "hex")]
    pub root: [u8; 32],
    /// Hash of the last covered record.
    #[serde(with = "hex")]
    pub head: [u8; 32],
    /// Creation time, in whole microseconds.
    #[serde(with = "time::serde::rfc3339")]
    pub at: OffsetDateTime,
    /// Whether the chain is closed: no record follows.
    pub closed: bool,
    /// Ed25519 signature over all fields above.
    #[serde(with = "hex")]
    pub signature: [u8; 64],
    /// Id of the key that signed. Statements of earlier versions name none.
    #[serde(default, skip_serializing_if = "Uuid::is_nil")]
    pub key_id: Uuid,
}

impl AuditCheckpoint {
    /// Signs the present state of the chain.
    pub fn sign_tree(
        chain: Uuid,
        tree: &MerkleTree,
        head: [u8; 32],
        at: OffsetDateTime,
        closed: bool,
        key: &SigningKey,
    ) -> Self {
        let mut checkpoint = Self {
            chain,
            size: tree.leaf_count(),
            root: tree.merkle_root(),
            head,
            at: truncate_to_micros(at),
            closed,
            signature: [0; 64],
            key_id: Uuid::nil(),
        };
        checkpoint.signature = sign_message(&checkpoint.signing_payload(), key);
        checkpoint
    }

    /// Signs the present state of the chain and names the key.
    pub fn sign_named(
        chain: Uuid,
        tree: &MerkleTree,
        head: [u8; 32],
        at: OffsetDateTime,
        closed: bool,
        key: &NamedSigningKey,
    ) -> Self {
        let signed = Self::sign_tree(chain, tree, head, at, closed, &key.key);
        Self { key_id: key.id, ..signed }
    }

    /// Verifies that this key signed the checkpoint and that it was not changed since.
    pub fn verify_signature(&self, key: &VerifyingKey) -> Result<(), BadSignature> {
        if self.at != truncate_to_micros(self.at) {
            return Err(BadSignature);
        }
        verify_message(&self.signing_payload(), &self.signature, key)
    }

    fn signing_payload(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(160);
        out.put_bytes(CHECKPOINT_DOMAIN);
        out.put_uuid(self.chain);
        out.put_u64(self.size);
        out.put_bytes(&self.root);
        out.put_bytes(&self.head);
        out.put_timestamp(self.at);
        out.put_u8(u8::from(self.closed));
        out
    }
}

pub(crate) fn sign_message(message: &[u8], key: &SigningKey) -> [u8; 64] {
    key.sign(message).to_bytes()
}

pub(crate) fn verify_message(
    message: &[u8],
    signature: &[u8; 64],
    key: &VerifyingKey,
) -> Result<(), BadSignature> {
    // Strict verification: a signature that other implementations might reject is invalid.
    key.verify_strict(message, &Signature::from_bytes(signature)).map_err(|_| BadSignature)
}
