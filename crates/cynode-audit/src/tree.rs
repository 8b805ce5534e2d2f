//! The Merkle tree (RFC 6962) over the record hashes of one chain.

use ct_merkle::{RootHash, mem_backed_tree::MemoryBackedTree};
use sha2::Sha256;

/// The Merkle tree over the records of one chain so far.
///
/// It is held in memory, about 100 bytes a record; chains are bounded so that this is too.
#[derive(Clone, Debug, Default)]
pub struct MerkleTree(MemoryBackedTree<Sha256, [u8; 32]>);

impl MerkleTree {
    /// An empty tree.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds the hash of the next record.
    pub fn push(&mut self, hash: [u8; 32]) {
        self.0.push(hash);
    }

    /// How many records it covers.
    pub fn leaf_count(&self) -> u64 {
        self.0.len()
    }

    /// Its root.
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

/// A root as `ct_merkle` wants it.
pub(crate) fn root_hash(root: [u8; 32], size: u64) -> RootHash<Sha256> {
    RootHash::new(root.into(), size)
}
