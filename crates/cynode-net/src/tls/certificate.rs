//! Certificates: loaded from PEM files, and described for people.

use std::{
    fs,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    path::Path,
};

use data_encoding::HEXLOWER;
use rustls::{
    pki_types::{CertificateDer, ServerName, pem::PemObject as _},
    server::ParsedCertificate,
};
use time::OffsetDateTime;
use x509_parser::{extensions::GeneralName, parse_x509_certificate, public_key::PublicKey};

use super::{CaPin, TlsError};

/// Minimum size of an RSA key that is not weak.
const MIN_RSA_BITS: usize = 2048;

/// Minimum size of a key on an elliptic curve that is not weak.
const MIN_EC_BITS: usize = 256;

/// Number of bytes of an Ed25519 key.
const ED25519_KEY_BYTES: usize = 32;

/// Facts about a certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateFacts {
    /// Name of its holder.
    pub subject: String,
    /// Name of the certificate authority that issued it.
    pub issuer: String,
    /// Serial number in hexadecimal.
    pub serial: String,
    /// Host names and addresses that it is valid for.
    pub names: Vec<String>,
    /// URIs that it is valid for.
    pub uris: Vec<String>,
    /// Time from which on it is valid.
    pub not_before: OffsetDateTime,
    /// Time until which it is valid.
    pub not_after: OffsetDateTime,
    /// Kind and size of its key.
    pub key: String,
    /// Whether its key is too small, or of a kind that nobody should use.
    pub weak_key: bool,
    /// Pin of its public key.
    pub pin: CaPin,
}

impl CertificateFacts {
    /// Reads the facts of a certificate in DER.
    pub fn parse_der(certificate: &CertificateDer<'_>) -> Result<Self, TlsError> {
        let (_, parsed) =
            parse_x509_certificate(certificate.as_ref()).map_err(|_| TlsError::Malformed)?;
        let time = |seconds: i64| {
            OffsetDateTime::from_unix_timestamp(seconds).map_err(|_| TlsError::Malformed)
        };
        let (mut names, mut uris) = (Vec::new(), Vec::new());
        let alternative = parsed.subject_alternative_name().map_err(|_| TlsError::Malformed)?;
        if let Some(alternative) = alternative {
            for name in &alternative.value.general_names {
                match name {
                    GeneralName::DNSName(name) => names.push((*name).to_owned()),
                    GeneralName::IPAddress(bytes) => {
                        names.extend(parse_address(bytes).map(|it| it.to_string()));
                    }
                    GeneralName::URI(uri) => uris.push((*uri).to_owned()),
                    _ => {}
                }
            }
        }
        let public_key = parsed.public_key();
        let (key, weak_key) = match public_key.parsed() {
            Ok(PublicKey::RSA(key)) => {
                (format!("RSA {}", key.key_size()), key.key_size() < MIN_RSA_BITS)
            }
            Ok(PublicKey::EC(key)) => {
                (format!("EC {}", key.key_size()), key.key_size() < MIN_EC_BITS)
            }
            Ok(PublicKey::Unknown(bytes)) if bytes.len() == ED25519_KEY_BYTES => {
                ("Ed25519".to_owned(), false)
            }
            Ok(_) | Err(_) => ("unknown".to_owned(), true),
        };
        Ok(Self {
            subject: parsed.subject().to_string(),
            issuer: parsed.issuer().to_string(),
            serial: HEXLOWER.encode(parsed.raw_serial()),
            names,
            uris,
            not_before: time(parsed.validity().not_before.timestamp())?,
            not_after: time(parsed.validity().not_after.timestamp())?,
            key,
            weak_key,
            pin: CaPin::from_public_key(public_key.raw),
        })
    }

    /// Returns whether the certificate is valid at a time.
    pub fn is_valid_at(&self, now: OffsetDateTime) -> bool {
        (self.not_before..=self.not_after).contains(&now)
    }

    /// Returns the number of whole days until the certificate expires; negative if it has expired.
    pub fn days_left(&self, now: OffsetDateTime) -> i64 {
        (self.not_after - now).whole_days()
    }
}

fn parse_address(bytes: &[u8]) -> Option<IpAddr> {
    let v4 = <[u8; 4]>::try_from(bytes).map(|bytes| IpAddr::V4(Ipv4Addr::from(bytes)));
    let v6 = || <[u8; 16]>::try_from(bytes).map(|bytes| IpAddr::V6(Ipv6Addr::from(bytes)));
    v4.or_else(|_| v6()).ok()
}

/// Returns the pin of a certificate's public key.
pub(super) fn pin_of(certificate: &CertificateDer<'_>) -> Option<CaPin> {
    let (_, parsed) = parse_x509_certificate(certificate.as_ref()).ok()?;
    Some(CaPin::from_public_key(parsed.public_key().raw))
}

/// Loads all certificates of a PEM file, in their order.
pub fn load_certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let named = path.display().to_string();
    let text = fs::read(path).map_err(|source| TlsError::File { path: named.clone(), source })?;
    parse_certificates(&text).ok_or(TlsError::NoCertificate(named))
}

/// Parses all certificates of a text in PEM, in their order. Returns `None` if there is none, or one is malformed.
pub fn parse_certificates(pem: &[u8]) -> Option<Vec<CertificateDer<'static>>> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    found.ok().filter(|certificates| !certificates.is_empty())
}

/// Returns whether a certificate is valid for a host name or an address.
pub fn covers_name(certificate: &CertificateDer<'_>, host: &str) -> bool {
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let (Ok(parsed), Ok(name)) =
        (ParsedCertificate::try_from(certificate), ServerName::try_from(host))
    else {
        return false;
    };
    rustls::client::verify_server_name(&parsed, &name).is_ok()
}
