//! What a client trusts, and what it shows of itself.

use std::{path::Path, sync::Arc};

use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme,
    client::{
        Resumption,
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
        verify_server_cert_signed_by_trust_anchor, verify_server_name,
    },
    crypto::{WebPkiSupportedAlgorithms, verify_tls12_signature, verify_tls13_signature},
    pki_types::{CertificateDer, ServerName, UnixTime},
    server::ParsedCertificate,
};

use super::{
    CaPin, KeySource, ReloadableKey, TlsError, certificate::load_certificates, crypto_provider,
};

/// Protocol that our servers speak.
const HTTP1_PROTOCOL: &[u8] = b"http/1.1";

/// TLS of a client. By default it trusts the roots of its machine and shows no certificate.
#[derive(Clone, Debug, Default)]
pub struct ClientTls {
    trust: ServerTrust,
    identity: Option<Arc<ReloadableKey>>,
}

#[derive(Clone, Debug, Default)]
enum ServerTrust {
    /// The roots of the machine.
    #[default]
    System,
    /// These certificate authorities alone.
    Authorities(Vec<CertificateDer<'static>>),
    /// The certificate authority with this public key alone.
    Pin(CaPin),
}

impl ClientTls {
    /// Trusts the certificate authorities of a PEM file, and no others.
    pub fn trust_file(path: &Path) -> Result<Self, TlsError> {
        let trust = ServerTrust::Authorities(load_certificates(path)?);
        Ok(Self { trust, identity: None })
    }

    /// Returns the TLS of a program that is given files: an authority to trust, and a certificate with its key to show.
    pub fn from_files(
        authority: Option<&Path>,
        identity: Option<(&Path, &Path)>,
    ) -> Result<Self, TlsError> {
        let trust = authority.map(Self::trust_file).transpose()?.unwrap_or_default();
        let Some((certificate, key)) = identity else { return Ok(trust) };
        let key = KeySource::File(key.to_owned());
        let identity = ReloadableKey::load_client_files(certificate.to_owned(), key)?;
        Ok(trust.with_identity(Arc::new(identity)))
    }

    /// Trusts the certificate authority with a pin, and no other.
    pub const fn trust_pin(pin: CaPin) -> Self {
        Self { trust: ServerTrust::Pin(pin), identity: None }
    }

    /// Shows a certificate to servers that ask for one. It is shown only where the trust is not that of the machine: our own certificate
    /// authority issued it.
    #[must_use]
    pub fn with_identity(mut self, identity: Arc<ReloadableKey>) -> Self {
        self.identity = Some(identity);
        self
    }

    /// Adds it to an HTTP client.
    pub fn configure_client(
        &self,
        builder: reqwest::ClientBuilder,
    ) -> Result<reqwest::ClientBuilder, TlsError> {
        // The HTTP library knows the roots of the machine.
        if matches!(self.trust, ServerTrust::System) {
            return Ok(builder);
        }
        Ok(builder.tls_backend_preconfigured(self.to_config()?))
    }

    /// Returns the configuration of connections.
    pub fn to_config(&self) -> Result<ClientConfig, TlsError> {
        let provider = crypto_provider();
        let algorithms = provider.signature_verification_algorithms;
        let builder =
            ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
        let builder = match &self.trust {
            ServerTrust::System => {
                let mut roots = RootCertStore::empty();
                let found = rustls_native_certs::load_native_certs().certs;
                if roots.add_parsable_certificates(found).0 == 0 {
                    return Err(TlsError::NoRoots);
                }
                builder.with_root_certificates(roots)
            }
            ServerTrust::Authorities(authorities) => {
                let mut roots = RootCertStore::empty();
                for authority in authorities {
                    roots.add(authority.clone())?;
                }
                builder.with_root_certificates(roots)
            }
            ServerTrust::Pin(pin) => builder
                .dangerous()
                .with_custom_certificate_verifier(Arc::new(PinVerifier { pin: *pin, algorithms })),
        };
        let mut config = match &self.identity {
            Some(identity) => builder.with_client_cert_resolver(identity.clone()),
            None => builder.with_no_client_auth(),
        };
        config.alpn_protocols = vec![HTTP1_PROTOCOL.to_vec()];
        if self.identity.is_some() {
            // A session that is resumed shows the certificate of its beginning, which may have been renewed since.
            config.resumption = Resumption::disabled();
        }
        Ok(config)
    }
}

/// Accepts a chain that ends at the certificate authority with a pin. The authority's own certificate is in the chain that the server sends.
#[derive(Debug)]
struct PinVerifier {
    pin: CaPin,
    algorithms: WebPkiSupportedAlgorithms,
}

impl ServerCertVerifier for PinVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let mut roots = RootCertStore::empty();
        for certificate in intermediates {
            if self.pin.matches_certificate(certificate) {
                roots.add(certificate.clone())?;
            }
        }
        if roots.is_empty() {
            return Err(Error::InvalidCertificate(CertificateError::UnknownIssuer));
        }
        let certificate = ParsedCertificate::try_from(end_entity)?;
        let algorithms = self.algorithms.all;
        verify_server_cert_signed_by_trust_anchor(
            &certificate,
            &roots,
            intermediates,
            now,
            algorithms,
        )?;
        verify_server_name(&certificate, server_name)?;
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, cert, dss, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, cert, dss, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}
