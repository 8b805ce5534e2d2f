//! Records, each holding the hash of the one before it.

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use uuid::Uuid;

use crate::{AuditEntry, encode_entry, hex};

const GENESIS_DOMAIN: &[u8] = b"cynode/audit/genesis/v1\0";
const RECORD_DOMAIN: &[u8] = b"cynode/audit/record/v1\0";

/// What stands before the first record of a chain.
pub fn genesis_hash(chain: Uuid) -> [u8; 32] {
    Sha256::new().chain_update(GENESIS_DOMAIN).chain_update(chain.as_bytes()).finalize().into()
}

/// One record in its place in a chain.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AuditRecord {
    /// The chain it is in.
    pub chain: Uuid,
    /// Its place there; the first is 0.
    pub seq: u64,
    /// What it says.
    pub entry: AuditEntry,
    /// The hash of the record before it, or [`genesis`].
    #[serde(with = "hex")]
    pub prev: [u8; 32],
    /// The hash over all of the above.
    #[serde(with = "hex")]
    pub hash: [u8; 32],
}

impl AuditRecord {
    /// Whether the hash is the one of what the record says, in its place.
    pub fn has_valid_hash(&self) -> bool {
        self.hash == hash(self.chain, self.seq, &self.prev, &encode_entry(&self.entry))
    }
}

/// The hash of the record with this encoded entry. All but the last part have a fixed width, so
/// no byte can move from one part to the next.
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
