//! Digests of package files, as the indexes of the registries name them.

use std::{fmt, fs::File, io, io::Read};

use data_encoding::{BASE64, HEXLOWER, HEXLOWER_PERMISSIVE};
use ring::digest::{self, Context, SHA1_FOR_LEGACY_USE_ONLY, SHA256, SHA512};

/// Number of bytes that are hashed at a time.
const HASH_BUFFER_BYTES: usize = 64 * 1024;

/// Algorithm of a digest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DigestKind {
    /// SHA-256.
    Sha256,
    /// SHA-512.
    Sha512,
    /// SHA-1, which old npm packages have and nothing better.
    Sha1,
}

impl DigestKind {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Sha256 => "sha256",
            Self::Sha512 => "sha512",
            Self::Sha1 => "sha1",
        }
    }

    const fn byte_count(self) -> usize {
        match self {
            Self::Sha256 => 32,
            Self::Sha512 => 64,
            Self::Sha1 => 20,
        }
    }

    fn algorithm(self) -> &'static digest::Algorithm {
        match self {
            Self::Sha256 => &SHA256,
            Self::Sha512 => &SHA512,
            Self::Sha1 => &SHA1_FOR_LEGACY_USE_ONLY,
        }
    }
}

/// Digest that a file must have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ExpectedDigest {
    kind: DigestKind,
    bytes: Vec<u8>,
}

impl ExpectedDigest {
    /// Reads a digest in hexadecimal.
    pub(crate) fn from_hex(kind: DigestKind, text: &str) -> Option<Self> {
        let bytes = HEXLOWER_PERMISSIVE.decode(text.as_bytes()).ok()?;
        (bytes.len() == kind.byte_count()).then_some(Self { kind, bytes })
    }

    /// Reads subresource integrity, such as `sha512-…`; of several digests the strongest.
    pub(crate) fn from_integrity(text: &str) -> Option<Self> {
        let one = |kind: DigestKind| {
            text.split_ascii_whitespace().find_map(|part| {
                let encoded = part.strip_prefix(kind.as_str())?.strip_prefix('-')?;
                let encoded = encoded.split('?').next().unwrap_or_default();
                let bytes = BASE64.decode(encoded.as_bytes()).ok()?;
                (bytes.len() == kind.byte_count()).then_some(Self { kind, bytes })
            })
        };
        one(DigestKind::Sha512)
            .or_else(|| one(DigestKind::Sha256))
            .or_else(|| one(DigestKind::Sha1))
    }

    /// Reads what [`fmt::Display`] writes.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (kind, hex) = text.split_once(':')?;
        let kinds = [DigestKind::Sha256, DigestKind::Sha512, DigestKind::Sha1];
        let kind = kinds.into_iter().find(|it| it.as_str() == kind)?;
        Self::from_hex(kind, hex)
    }

    /// Returns the digest in hexadecimal if it is SHA-256.
    pub(crate) fn as_sha256(&self) -> Option<String> {
        (self.kind == DigestKind::Sha256).then(|| HEXLOWER.encode(&self.bytes))
    }
}

impl fmt::Display for ExpectedDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.kind.as_str(), HEXLOWER.encode(&self.bytes))
    }
}

/// Hashes a file while it arrives: always SHA-256, and the expected algorithm if it is another one.
pub(crate) struct FileHasher {
    sha256: Context,
    expected: Option<(ExpectedDigest, Context)>,
}

impl FileHasher {
    /// Begins a file.
    pub(crate) fn new(expected: Option<&ExpectedDigest>) -> Self {
        Self {
            sha256: Context::new(&SHA256),
            expected: expected.map(|it| (it.clone(), Context::new(it.kind.algorithm()))),
        }
    }

    /// Adds bytes.
    pub(crate) fn update(&mut self, bytes: &[u8]) {
        self.sha256.update(bytes);
        if let Some((_, context)) = &mut self.expected {
            context.update(bytes);
        }
    }

    /// Returns the SHA-256 in hexadecimal, or the digest that the file has if it is not the expected one.
    pub(crate) fn finish(self) -> Result<String, WrongDigest> {
        if let Some((expected, context)) = self.expected {
            let bytes = context.finish().as_ref().to_vec();
            if bytes != expected.bytes {
                let actual = ExpectedDigest { kind: expected.kind, bytes };
                return Err(WrongDigest {
                    expected: expected.to_string(),
                    actual: actual.to_string(),
                });
            }
        }
        Ok(HEXLOWER.encode(self.sha256.finish().as_ref()))
    }
}

/// A file is not the one that the index names.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the index names {expected}, the file has {actual}")]
pub(crate) struct WrongDigest {
    expected: String,
    actual: String,
}

/// Returns the SHA-256 of a text, in hexadecimal.
pub(crate) fn sha256_text(text: &str) -> String {
    HEXLOWER.encode(digest::digest(&SHA256, text.as_bytes()).as_ref())
}

/// Hashes a file of the disk.
pub(crate) fn hash_file(
    file: &mut File,
    expected: Option<&ExpectedDigest>,
) -> io::Result<Result<String, WrongDigest>> {
    let mut hasher = FileHasher::new(expected);
    let mut buffer = vec![0; HASH_BUFFER_BYTES];
    loop {
        let count = file.read(&mut buffer)?;
        let Some(bytes) = buffer.get(..count).filter(|bytes| !bytes.is_empty()) else {
            return Ok(hasher.finish());
        };
        hasher.update(bytes);
    }
}

/// Returns whether a text is a SHA-256 in hexadecimal as this crate writes it.
pub(crate) fn is_sha256_hex(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digests_are_read_in_the_forms_of_the_registries() {
        let hex = "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824";
        let expected = ExpectedDigest::from_hex(DigestKind::Sha256, hex).unwrap();
        assert_eq!(expected.to_string(), format!("sha256:{hex}"));
        assert_eq!(ExpectedDigest::parse(&expected.to_string()), Some(expected.clone()));
        assert_eq!(expected.as_sha256().as_deref(), Some(hex));
        let integrity =
            "sha1-qvTGHdzF6KLavt4PO0gs2a6pQ00= sha256-LPJNul+wow4m6DsqxbninhsWHlwfp0JecwQzYpOLmCQ=";
        assert_eq!(ExpectedDigest::from_integrity(integrity), Some(expected));
        assert_eq!(ExpectedDigest::from_integrity("md5-abc"), None);
        assert_eq!(ExpectedDigest::from_hex(DigestKind::Sha256, "2cf2"), None);
    }

    #[test]
    fn a_file_with_another_digest_is_refused_with_both() {
        let integrity =
            ExpectedDigest::from_integrity("sha1-qvTGHdzF6KLavt4PO0gs2a6pQ00=").unwrap();
        let hash = |text: &str| {
            let mut hasher = FileHasher::new(Some(&integrity));
            hasher.update(text.as_bytes());
            hasher.finish().map_err(|error| error.to_string())
        };
        assert_eq!(
            hash("hello"),
            Ok("2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824".to_owned())
        );
        assert_eq!(
            hash("hellp"),
            Err("the index names sha1:aaf4c61ddcc5e8a2dabede0f3b482cd9aea9434d, \
                 the file has sha1:d4baaad7a68a379b1e133e0fea0603051b0124ca"
                .to_owned())
        );
    }
}
