//! Hash chain of audit records: each record holds the hash of the previous one.

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use uuid::Uuid;

use crate::{AuditEntry, encode_entry, hex};

const GENESIS_DOMAIN: &[u8] = b"cynode/audit/genesis/v1\0";
const RECORD_DOMAIN: &[u8] = b"cynode/audit/record/v1\0";

/// Returns the hash that the first record of a chain has as its previous hash.
pub fn genesis_hash(chain: Uuid) -> [u8; 32] {
    Sha256::new().chain_update(GENESIS_DOMAIN).chain_update(chain.as_bytes()).finalize().into()
}

/// One record at its position in a chain.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AuditRecord {
    /// Id of the chain.
    pub chain: Uuid,
    /// Position in the chain. The first record has 0.
    pub seq: u64,
    /// The entry that the record holds.
    pub entry: AuditEntry,
    /// Hash of the previous record, or [`genesis_hash`] for the first.
    #[serde(with = "hex")]
    pub prev: [u8; 32],
    /// Hash over all fields above.
    #[serde(with = "hex")]
    pub hash: [u8; 32],
}

impl AuditRecord {
    /// Creates the record at a position of a chain, after the record with the hash `prev`. A writer that has a store with transactions
    /// of its own chains entries with this, and needs no file.
    pub fn chain_entry(chain: Uuid, seq: u64, prev: [u8; 32], entry: AuditEntry) -> Self {
        let hash = hash(chain, seq, &prev, &encode_entry(&entry));
        Self { chain, seq, entry, prev, hash }
    }

    /// Returns whether the hash is the hash of the record's content and position.
    pub fn has_valid_hash(&self) -> bool {
        self.hash == hash(self.chain, self.seq, &self.prev, &encode_entry(&self.entry))
    }
}

/// Returns the hash of the record with this encoded entry. All parts but the last have a fixed width, so no byte can move from one part to
/// the next.
pub(crate) fn hash(chain: Uuid, seq: u64, prev: &[u8; 32], encoded: &[u8]) -> [u8; 32] {
    Sha256::new()
        .chain_update(RECORD_DOMAIN)
        .chain_update(chain.as_bytes())
        .chain_update(seq.to_be_bytes())
        .chain_update(prev)
        .chain_update(encoded)
        .finalize()
        .into()
}
