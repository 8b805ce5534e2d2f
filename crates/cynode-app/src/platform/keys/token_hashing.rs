//! Storage of tokens: the SHA-256 of a token, encrypted as one block under a key of the installation.
//!
//! A token has 256 random bits, so its digest tells nothing about it. The key is there against writers: without it nobody can store a
//! token of their own in the database. Encryption instead of a keyed hash lets a rotation store every token under the new key without
//! knowing it. The digest is uniformly random and exactly one block of Threefish-256, so no mode of operation is needed.

use cynode_audit::DigestKey;
use threefish::Threefish256;

use crate::platform::tag_key::TagKey;

/// Tweak of the cipher, which separates this use of the key from any other.
const TOKEN_TWEAK: [u8; 16] = *b"cynode/token/v1\0";

/// Size of the material of a key of tokens.
pub(super) const TOKEN_MATERIAL_BYTES: usize = 96;

/// What follows from a key of tokens.
#[derive(Clone)]
pub(super) struct TokenSecrets {
    /// Encrypts digests of tokens. `None` for the first key, which is none.
    hashing: Option<[u8; 32]>,
    /// Authenticates links and challenges.
    pub(super) tags: TagKey,
    /// Makes digests of values that must not be stored.
    pub(super) digest: DigestKey,
    material: [u8; TOKEN_MATERIAL_BYTES],
}

impl TokenSecrets {
    /// Creates the secrets of an installation that stored tokens without a key.
    pub(super) fn without_hash_key(tags: [u8; 32], digest: [u8; 32]) -> Self {
        let mut material = [0; TOKEN_MATERIAL_BYTES];
        material[32..64].copy_from_slice(&tags);
        material[64..].copy_from_slice(&digest);
        Self { hashing: None, tags: TagKey::new(tags), digest: DigestKey::new(digest), material }
    }

    /// Reads the secrets from their material. The first key stays without a key for hashes.
    pub(super) fn from_material(bytes: &[u8], is_first: bool) -> Option<Self> {
        let material: [u8; TOKEN_MATERIAL_BYTES] = bytes.try_into().ok()?;
        let (hashing, rest) = material.split_first_chunk::<32>()?;
        let (tags, digest) = rest.split_first_chunk::<32>()?;
        let digest: [u8; 32] = digest.try_into().ok()?;
        Some(Self {
            hashing: (!is_first).then_some(*hashing),
            tags: TagKey::new(*tags),
            digest: DigestKey::new(digest),
            material,
        })
    }

    /// Returns the material, which is stored wrapped.
    pub(super) const fn as_material(&self) -> &[u8; TOKEN_MATERIAL_BYTES] {
        &self.material
    }

    /// Returns what a token with that digest is stored under.
    pub(super) fn hash_digest(&self, digest: &[u8; 32]) -> [u8; 32] {
        self.apply_cipher(digest, Threefish256::encrypt_block_u64)
    }

    /// Returns the digest of a token that is stored under this.
    pub(super) fn recover_digest(&self, stored: &[u8; 32]) -> [u8; 32] {
        self.apply_cipher(stored, Threefish256::decrypt_block_u64)
    }

    fn apply_cipher(&self, bytes: &[u8; 32], apply: fn(&Threefish256, &mut [u64; 4])) -> [u8; 32] {
        let Some(key) = &self.hashing else { return *bytes };
        let mut words = [0; 4];
        for (word, chunk) in words.iter_mut().zip(bytes.as_chunks::<8>().0) {
            *word = u64::from_le_bytes(*chunk);
        }
        apply(&Threefish256::new_with_tweak(key, &TOKEN_TWEAK), &mut words);
        let mut out = [0; 32];
        for (chunk, word) in out.as_chunks_mut::<8>().0.iter_mut().zip(words) {
            *chunk = word.to_le_bytes();
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_comes_back_with_its_key_and_with_no_other() {
        let key = |seed: u8| TokenSecrets::from_material(&[seed; 96], false).unwrap();
        let digest = [3; 32];
        let stored = key(1).hash_digest(&digest);
        assert_ne!(stored, digest);
        assert_ne!(stored, key(2).hash_digest(&digest));
        assert_eq!(key(1).recover_digest(&stored), digest);
        assert_ne!(key(2).recover_digest(&stored), digest);
    }

    #[test]
    fn the_first_key_stores_the_digest_itself() {
        let first = TokenSecrets::without_hash_key([1; 32], [2; 32]);
        assert_eq!(first.hash_digest(&[3; 32]), [3; 32]);
        let again = TokenSecrets::from_material(first.as_material(), true).unwrap();
        assert_eq!(again.hash_digest(&[3; 32]), [3; 32]);
        assert!(TokenSecrets::from_material(&[0; 95], false).is_none());
    }
}
