//! Placeholders that replace secrets.

use std::{collections::BTreeSet, fmt, sync::Arc};

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use super::{
    own_secrets::SecretLiterals,
    rules::RedactionRules,
    scan::{SecretSpan, SpanSource},
};

/// Prefix of every placeholder.
pub(super) const PLACEHOLDER_PREFIX: &str = "[redacted:";

/// Kind of text that a stream held back for too long.
pub(super) const UNBROKEN_KIND: &str = "unbroken";

/// Maximum length of a kind.
pub(super) const MAX_KIND_BYTES: usize = 48;

/// Secret key of an installation for the fingerprints.
#[derive(Clone)]
pub struct FingerprintKey([u8; 32]);

/// Names of all kinds. Writes and recognizes placeholders.
pub(super) struct PlaceholderLabels {
    key: FingerprintKey,
    rules: Vec<Arc<str>>,
    known: Vec<(Arc<str>, String)>,
    unbroken: Arc<str>,
    all: BTreeSet<Arc<str>>,
}

/// Result of matching a text against a placeholder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PlaceholderMatch {
    /// A placeholder that ends at this offset.
    Placeholder(usize),
    /// Not a placeholder.
    Other,
    /// Undecided: the text ends too early.
    Unknown,
}

impl FingerprintKey {
    /// Creates a key from 256 random bits. They must stay the same for an installation.
    pub const fn new(key: [u8; 32]) -> Self {
        Self(key)
    }

    fn fingerprint_of(&self, secret: &[u8]) -> String {
        let mut block = [0; 64];
        block[..32].copy_from_slice(&self.0);
        let mut mac = <Hmac<Sha256> as KeyInit>::new(&block.into());
        mac.update(secret);
        let digest = mac.finalize().into_bytes();
        format!("{:02x}{:02x}", digest[0], digest[1])
    }
}

impl fmt::Debug for FingerprintKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FingerprintKey")
    }
}

impl PlaceholderLabels {
    pub(super) fn new(
        key: FingerprintKey,
        rules: &RedactionRules,
        literals: &SecretLiterals,
    ) -> Self {
        let rules: Vec<Arc<str>> = rules.kind_names().map(Arc::from).collect();
        let known: Vec<_> = literals
            .names_and_values()
            .map(|(name, value)| (Arc::from(name), key.fingerprint_of(value.as_bytes())))
            .collect();
        let unbroken: Arc<str> = Arc::from(UNBROKEN_KIND);
        let names = known.iter().map(|(name, _)| name);
        let all = rules.iter().chain(names).chain([&unbroken]).cloned().collect();
        Self { key, rules, known, unbroken, all }
    }

    /// Writes the placeholder of a span and returns its kind.
    pub(super) fn write_span(&self, span: &SecretSpan, text: &str, out: &mut String) -> Arc<str> {
        let (kind, fingerprint) = match span.who {
            SpanSource::Known(index) => {
                let (name, fingerprint) = &self.known[index];
                (name, fingerprint.clone())
            }
            SpanSource::Rule(index) => {
                let secret = &text.as_bytes()[span.named.0..span.named.1];
                (&self.rules[index], self.key.fingerprint_of(secret))
            }
        };
        write_placeholder(kind, &fingerprint, out);
        kind.clone()
    }

    /// Writes the placeholder of text that a stream held back for too long.
    pub(super) fn write_unbroken(&self, held: &str, out: &mut String) -> Arc<str> {
        write_placeholder(&self.unbroken, &self.key.fingerprint_of(held.as_bytes()), out);
        self.unbroken.clone()
    }

    /// Writes a placeholder for a whole string that a rule matched.
    pub(super) fn write_whole(&self, rule: usize, secret: &str, out: &mut String) -> Arc<str> {
        let kind = &self.rules[rule];
        write_placeholder(kind, &self.key.fingerprint_of(secret.as_bytes()), out);
        kind.clone()
    }

    /// Checks whether a placeholder starts at `at`, where [`PLACEHOLDER_PREFIX`] was found.
    pub(super) fn match_placeholder(
        &self,
        text: &[u8],
        at: usize,
        complete: bool,
    ) -> PlaceholderMatch {
        let kind_at = at + PLACEHOLDER_PREFIX.len();
        let rest = &text[kind_at..];
        let name = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || *byte == b'_';
        let kind = rest.iter().take_while(|byte| name(byte)).take(MAX_KIND_BYTES + 1).count();
        let tail = &rest[kind..];
        let shape = |(place, byte): (usize, &u8)| match place {
            0 => *byte == b'#',
            1..5 => byte.is_ascii_digit() || (b'a'..=b'f').contains(byte),
            _ => *byte == b']',
        };
        if kind > MAX_KIND_BYTES || !tail.iter().take(6).enumerate().all(shape) {
            return PlaceholderMatch::Other;
        }
        if tail.len() < 6 {
            return if complete { PlaceholderMatch::Other } else { PlaceholderMatch::Unknown };
        }
        match std::str::from_utf8(&rest[..kind]) {
            Ok(kind_text) if self.all.contains(kind_text) => {
                PlaceholderMatch::Placeholder(kind_at + kind + 6)
            }
            _ => PlaceholderMatch::Other,
        }
    }
}

fn write_placeholder(kind: &str, fingerprint: &str, out: &mut String) {
    for part in [PLACEHOLDER_PREFIX, kind, "#", fingerprint, "]"] {
        out.push_str(part);
    }
}
