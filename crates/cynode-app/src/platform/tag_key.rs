//! Authentication tags (MAC) over values that are handed out and must come back unchanged.

use cynode_audit::DigestKey;

/// Key of authentication tags.
#[derive(Clone, Debug)]
pub(crate) struct TagKey(DigestKey);

impl TagKey {
    /// Creates a key from a secret.
    pub(crate) const fn new(secret: [u8; 32]) -> Self {
        Self(DigestKey::new(secret))
    }

    /// Computes the tag over some parts in their order.
    pub(crate) fn compute_tag(&self, parts: &[&[u8]]) -> [u8; 32] {
        let mut whole = Vec::new();
        for part in parts {
            // The length of each part keeps parts from running into each other.
            whole.extend_from_slice(&(part.len() as u64).to_be_bytes());
            whole.extend_from_slice(part);
        }
        self.0.digest_bytes(&whole).0
    }

    /// Verifies a tag in constant time.
    pub(crate) fn verify_tag(&self, parts: &[&[u8]], tag: &[u8]) -> bool {
        let own = self.compute_tag(parts);
        tag.len() == own.len() && own.iter().zip(tag).fold(0, |all, (a, b)| all | (a ^ b)) == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tag_is_good_for_its_parts_in_their_order_only() {
        let key = TagKey::new([7; 32]);
        let tag = key.compute_tag(&[b"ab", b"c"]);
        assert!(key.verify_tag(&[b"ab", b"c"], &tag));
        for parts in [[b"a".as_slice(), b"bc"], [b"c", b"ab"], [b"abc", b""]] {
            assert!(!key.verify_tag(&parts, &tag));
        }
        assert!(!key.verify_tag(&[b"ab", b"c"], &tag[..31]));
    }
}
