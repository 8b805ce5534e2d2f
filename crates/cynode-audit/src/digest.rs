//! Keyed digests, which the audit log stores instead of arguments and results.

use std::fmt;

use hmac::{Hmac, KeyInit, Mac};
use serde::{Deserialize, Serialize};
use sha2::Sha256;

use crate::hex;

/// Digest of the arguments or of the result of a call.
///
/// Equal digests mean equal bytes. Without the [`DigestKey`], a digest reveals nothing else.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct KeyedDigest(#[serde(with = "hex")] pub [u8; 32]);

impl fmt::Display for KeyedDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex::encode_hex(&self.0))
    }
}

impl fmt::Debug for KeyedDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Secret key of an installation for its digests.
///
/// Arguments are often guessable (`{"amount":5}`): anyone who can compute digests can find the arguments by trial. So the digest is an
/// HMAC, and only the holder of the key can try.
#[derive(Clone)]
pub struct DigestKey([u8; 32]);

impl DigestKey {
    /// Creates a key from a secret. The secret must come from a cryptographically secure random source.
    pub const fn new(secret: [u8; 32]) -> Self {
        Self(secret)
    }

    /// Returns the HMAC-SHA256 of `bytes`.
    pub fn digest_bytes(&self, bytes: &[u8]) -> KeyedDigest {
        // HMAC pads a key with zeros to the block length. A whole block cannot have an invalid length.
        let mut block = [0; 64];
        block[..32].copy_from_slice(&self.0);
        let mut mac = <Hmac<Sha256> as KeyInit>::new(&block.into());
        mac.update(bytes);
        KeyedDigest(mac.finalize().into_bytes().into())
    }
}

impl fmt::Debug for DigestKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("DigestKey(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_is_the_hmac_that_others_would_compute() {
        // The first message of RFC 4231 with a key of 32 bytes.
        let digest = DigestKey::new([0x0b; 32]).digest_bytes(b"Hi There");
        assert_eq!(
            digest.to_string(),
            "198a607eb44bfbc69903a0f1cf2bbdc5ba0aa3f3d9ae3c1c7a3b1696a0b68cf7"
        );
    }

    #[test]
    fn another_key_gives_another_digest() {
        let bytes = br#"{"amount":5}"#;
        assert_ne!(
            DigestKey::new([1; 32]).digest_bytes(bytes),
            DigestKey::new([2; 32]).digest_bytes(bytes)
        );
    }

    #[test]
    fn a_key_does_not_show_itself() {
        assert_eq!(format!("{:?}", DigestKey::new([7; 32])), "DigestKey(..)");
    }
}
