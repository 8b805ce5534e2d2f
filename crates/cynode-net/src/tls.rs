//! TLS by rustls: certificates of files that are loaded again when they change, certificate authorities that clients trust by file or by
//! pin, client certificates, and facts about certificates for people.
//!
//! Trust: a client trusts the roots of its machine, the certificates of a file, or a pin. A [`CaPin`] is the SHA-256 of the public key of a
//! certificate authority; the server sends the authority's certificate in its chain. Name, validity and signatures are checked in each case.

mod certificate;
mod client;
mod pin;
mod reload;
mod server;

use std::{io, sync::Arc};

use rustls::crypto::CryptoProvider;

pub use certificate::{CertificateFacts, covers_name, load_certificates, parse_certificates};
pub use client::ClientTls;
pub use pin::{CaPin, CaPinError, pin_token, split_pinned_token};
pub use reload::{KeySource, ReloadOutcome, ReloadableKey};
pub use server::{ClientAuthentication, PeerCertificate, ServerTls};

/// Certificates and resolvers, in the version that this crate uses.
pub use rustls::{
    ClientConfig, RootCertStore,
    pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer},
    server::ResolvesServerCert,
};

/// Error of a certificate, of a key or of the configuration of TLS.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read.
    #[error("cannot read {path}")]
    File {
        /// Path of the file.
        path: String,
        /// Cause of the failure.
        source: io::Error,
    },
    /// A file holds no certificate.
    #[error("{0} holds no certificate in PEM")]
    NoCertificate(String),
    /// A file holds no private key.
    #[error("{0} holds no private key in PEM")]
    NoKey(String),
    /// Other accounts of the machine can read a private key.
    #[error("other accounts can read the private key {0}: `chmod 600` it")]
    OpenKey(String),
    /// A certificate is not in the form of X.509.
    #[error("a certificate is malformed")]
    Malformed,
    /// A certificate is not valid any more, or not yet.
    #[error("the certificate of {0} is not valid now")]
    NotValidNow(String),
    /// The machine has no root certificates.
    #[error(
        "no root certificate of this machine can be used: install ca-certificates, or name a file"
    )]
    NoRoots,
    /// The list of accepted certificate authorities cannot be used.
    #[error("the certificate authority cannot be used: {0}")]
    Authority(String),
    /// The TLS library refuses the configuration.
    #[error(transparent)]
    Rustls(#[from] rustls::Error),
}

/// Returns the cryptography of all connections.
fn crypto_provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::aws_lc_rs::default_provider())
}

#[cfg(test)]
mod tests;
