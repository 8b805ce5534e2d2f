//! Merkle tree (RFC 6962) over the record hashes of one chain.

use ct_merkle::{RootHash, mem_backed_tree::MemoryBackedTree};
use sha2::Sha256;

/// Merkle tree over the records of one chain so far.
///
/// It is kept in memory, about 100 bytes per record. The length of a chain is limited, so the memory is too.
#[derive(Clone, Debug, Default)]
pub struct MerkleTree(MemoryBackedTree<Sha256, [u8; 32]>);

impl MerkleTree {
    /// Creates an empty tree.
    pub fn new() -> Self {
        Self::default()
    }

    /// Appends the hash of the next record.
    pub fn push(&mut self, hash: [u8; 32]) {
        self.0.push(hash);
    }

    /// Returns the number of records that the tree covers.
    pub fn leaf_count(&self) -> u64 {
        self.0.len()
    }

    /// Returns the Merkle root.
    pub fn merkle_root(&self) -> [u8; 32] {
        (*self.0.root().as_bytes()).into()
    }

    pub(crate) fn as_inner(&self) -> &MemoryBackedTree<Sha256, [u8; 32]> {
        &self.0
    }
}

impl FromIterator<[u8; 32]> for MerkleTree {
    fn from_iter<I: IntoIterator<Item = [u8; 32]>>(hashes: I) -> Self {
        let mut tree = Self::new();
        hashes.into_iter().for_each(|hash| tree.push(hash));
        tree
    }
}

/// Converts a root to the type of `ct_merkle`.
pub(crate) fn root_hash(root: [u8; 32], size: u64) -> RootHash<Sha256> {
    RootHash::new(root.into(), size)
}
