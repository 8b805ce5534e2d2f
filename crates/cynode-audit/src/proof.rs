//! Proofs for a third party that has a checkpoint but not the log.

use ct_merkle::{ConsistencyProof, InclusionProof};
use ed25519_dalek::VerifyingKey;
use serde::{Deserialize, Serialize};
use sha2::Sha256;
use uuid::Uuid;

use crate::{AuditCheckpoint, AuditRecord, BadSignature, MerkleTree, hex, tree::root_hash};

/// Maximum size of a tree. No chain gets this large, and beyond it the arithmetic of the tree would overflow.
const MAX_TREE_SIZE: u64 = 1 << 40;

/// Reason why a proof could not be made or is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadProof {
    /// The tree has no such record.
    #[error("there is no such record in the tree")]
    OutOfRange,
    /// The proof, the record and the checkpoints do not agree about chain, position and size.
    #[error("the proof is about another record or checkpoint")]
    Other,
    /// The record was changed.
    #[error("the hash of the record is not the hash of what it says")]
    Record,
    /// The checkpoint was changed, or another key signed it.
    #[error(transparent)]
    Signature(#[from] BadSignature),
    /// The hash path does not lead to the root.
    #[error("the path does not lead to the root")]
    Path,
}

/// Reason why a bundle could not be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MalformedBundle {
    /// A line is not one of a bundle, or stands in the wrong place.
    #[error("line {0} is not one of an exported bundle")]
    Line(usize),
    /// The last line is missing.
    #[error("the bundle has no last line: it is not whole")]
    NoEnd,
}

/// Proof that a record is among the records that a checkpoint covers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RecordInclusionProof {
    /// Id of the chain.
    pub chain: Uuid,
    /// Position of the record.
    pub seq: u64,
    /// Size of the checkpoint.
    pub size: u64,
    /// Hashes on the path from the record to the root.
    #[serde(with = "hex::list")]
    pub path: Vec<[u8; 32]>,
}

impl RecordInclusionProof {
    /// Proves that the record at `seq` is in the tree. The tree must have the size of the checkpoint.
    pub fn prove_record(chain: Uuid, tree: &MerkleTree, seq: u64) -> Result<Self, BadProof> {
        let index = usize::try_from(seq).map_err(|_| BadProof::OutOfRange)?;
        if seq >= tree.leaf_count() {
            return Err(BadProof::OutOfRange);
        }
        let proof = tree.as_inner().prove_inclusion(index);
        Ok(Self { chain, seq, size: tree.leaf_count(), path: split_hashes(proof.as_bytes()) })
    }

    /// Verifies that `record` is among the records that `checkpoint` covers.
    pub fn verify_record(
        &self,
        record: &AuditRecord,
        checkpoint: &AuditCheckpoint,
        key: &VerifyingKey,
    ) -> Result<(), BadProof> {
        let of = (self.chain, self.seq, self.size);
        if of != (record.chain, record.seq, checkpoint.size) || self.chain != checkpoint.chain {
            return Err(BadProof::Other);
        }
        if self.seq >= self.size || self.size > MAX_TREE_SIZE {
            return Err(BadProof::OutOfRange);
        }
        if !record.has_valid_hash() {
            return Err(BadProof::Record);
        }
        checkpoint.verify_signature(key)?;
        let proof = InclusionProof::<Sha256>::try_from_bytes(self.path.concat())
            .map_err(|_| BadProof::Path)?;
        root_hash(checkpoint.root, checkpoint.size)
            .verify_inclusion(&record.hash, self.seq, &proof)
            .map_err(|_| BadProof::Path)
    }
}

/// Proof that a chain was only appended to between two checkpoints.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ChainConsistencyProof {
    /// Id of the chain.
    pub chain: Uuid,
    /// Size of the earlier checkpoint.
    pub from: u64,
    /// Size of the later checkpoint.
    pub to: u64,
    /// Hashes from which both roots are computed.
    #[serde(with = "hex::list")]
    pub path: Vec<[u8; 32]>,
}

impl ChainConsistencyProof {
    /// Proves that the tree still begins with its first `from` records. The tree must have the size of the later checkpoint.
    pub fn prove_append_only(chain: Uuid, tree: &MerkleTree, from: u64) -> Result<Self, BadProof> {
        if from == 0 {
            return Err(BadProof::OutOfRange);
        }
        let added = tree.leaf_count().checked_sub(from).ok_or(BadProof::OutOfRange)?;
        let added = usize::try_from(added).map_err(|_| BadProof::OutOfRange)?;
        let proof = tree.as_inner().prove_consistency(added);
        Ok(Self { chain, from, to: tree.leaf_count(), path: split_hashes(proof.as_bytes()) })
    }

    /// Verifies that `later` has every record of `earlier` unchanged.
    pub fn verify_append_only(
        &self,
        earlier: &AuditCheckpoint,
        later: &AuditCheckpoint,
        key: &VerifyingKey,
    ) -> Result<(), BadProof> {
        let of = (self.chain, self.from, self.to);
        if of != (earlier.chain, earlier.size, later.size) || self.chain != later.chain {
            return Err(BadProof::Other);
        }
        if self.from == 0 || self.from > self.to || self.to > MAX_TREE_SIZE {
            return Err(BadProof::OutOfRange);
        }
        earlier.verify_signature(key)?;
        later.verify_signature(key)?;
        let proof = ConsistencyProof::<Sha256>::try_from_bytes(self.path.concat())
            .map_err(|_| BadProof::Path)?;
        root_hash(later.root, later.size)
            .verify_consistency(&root_hash(earlier.root, earlier.size), &proof)
            .map_err(|_| BadProof::Path)
    }
}

fn split_hashes(path: &[u8]) -> Vec<[u8; 32]> {
    path.as_chunks::<32>().0.to_vec()
}
