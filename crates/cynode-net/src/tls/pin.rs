//! The pin of a certificate authority, and tokens that carry one.

use std::{fmt, str::FromStr};

use data_encoding::HEXLOWER;
use rustls::pki_types::CertificateDer;
use sha2::{Digest, Sha256};

use super::certificate;

/// Prefix of a pin: the name of its hash function.
const PIN_PREFIX: &str = "sha256:";

/// Separator of a token and the pin that it carries. No token has it.
const PIN_SEPARATOR: char = '.';

/// SHA-256 of the public key (`SubjectPublicKeyInfo`) of a certificate authority.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CaPin([u8; 32]);

/// Why a text is not a [`CaPin`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a pin is `sha256:` and 64 hexadecimal digits")]
pub struct CaPinError;

impl CaPin {
    /// Returns the pin of a public key (`SubjectPublicKeyInfo`) in DER.
    pub fn from_public_key(public_key: &[u8]) -> Self {
        Self(Sha256::digest(public_key).into())
    }

    /// Returns whether a certificate has the pinned public key.
    pub(super) fn matches_certificate(self, certificate: &CertificateDer<'_>) -> bool {
        certificate::pin_of(certificate).is_some_and(|pin| pin == self)
    }
}

impl fmt::Display for CaPin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{PIN_PREFIX}{}", HEXLOWER.encode(&self.0))
    }
}

impl FromStr for CaPin {
    type Err = CaPinError;

    fn from_str(text: &str) -> Result<Self, CaPinError> {
        let digits = text.strip_prefix(PIN_PREFIX).ok_or(CaPinError)?;
        let bytes = HEXLOWER.decode(digits.as_bytes()).map_err(|_| CaPinError)?;
        <[u8; 32]>::try_from(bytes).map(Self).map_err(|_| CaPinError)
    }
}

/// Returns a token that carries a pin.
pub fn pin_token(token: &str, pin: CaPin) -> String {
    format!("{token}{PIN_SEPARATOR}{pin}")
}

/// Returns a token without its pin, and the pin if the token carries one.
pub fn split_pinned_token(text: &str) -> Result<(&str, Option<CaPin>), CaPinError> {
    match text.split_once(PIN_SEPARATOR) {
        Some((token, pin)) => Ok((token, Some(pin.parse()?))),
        None => Ok((text, None)),
    }
}
