//! TLS of a listening port.

use std::sync::Arc;

use rustls::{
    RootCertStore, ServerConfig,
    pki_types::CertificateDer,
    server::{NoServerSessionStorage, ResolvesServerCert, WebPkiClientVerifier},
};
use tokio::net::TcpStream;
use tokio_rustls::{TlsAcceptor, server::TlsStream};

use super::{CertificateFacts, TlsError, crypto_provider};

/// Protocols of a port: HTTP/1.1, and the challenge of a certificate authority (RFC 8737).
const HTTP1_PROTOCOL: &[u8] = b"http/1.1";
const ACME_PROTOCOL: &[u8] = b"acme-tls/1";

/// Whether a port asks its clients for certificates.
#[derive(Clone, Debug)]
pub enum ClientAuthentication {
    /// It asks for none.
    None,
    /// It asks, and takes certificates of these authorities. A client without one is served: the service decides what it may do.
    Optional(Vec<CertificateDer<'static>>),
}

/// TLS of a port. Cloning it is cheap.
#[derive(Clone)]
pub struct ServerTls {
    acceptor: TlsAcceptor,
}

impl std::fmt::Debug for ServerTls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ServerTls").finish_non_exhaustive()
    }
}

impl ServerTls {
    /// Creates the TLS of a port whose certificate a resolver chooses for each new connection.
    pub fn new(
        resolver: Arc<dyn ResolvesServerCert>,
        clients: ClientAuthentication,
    ) -> Result<Self, TlsError> {
        let provider = crypto_provider();
        let builder = ServerConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()?;
        let asks_clients = matches!(clients, ClientAuthentication::Optional(_));
        let builder = match clients {
            ClientAuthentication::None => builder.with_no_client_auth(),
            ClientAuthentication::Optional(authorities) => {
                let mut roots = RootCertStore::empty();
                for authority in authorities {
                    roots.add(authority)?;
                }
                let verifier =
                    WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
                        .allow_unauthenticated()
                        .build()
                        .map_err(|error| TlsError::Authority(error.to_string()))?;
                builder.with_client_cert_verifier(verifier)
            }
        };
        let mut config = builder.with_cert_resolver(resolver);
        config.alpn_protocols = vec![HTTP1_PROTOCOL.to_vec(), ACME_PROTOCOL.to_vec()];
        if asks_clients {
            // A session that is resumed has the client certificate of its beginning, which may have been renewed or revoked since.
            config.session_storage = Arc::new(NoServerSessionStorage {});
            config.send_tls13_tickets = 0;
        }
        Ok(Self { acceptor: TlsAcceptor::from(Arc::new(config)) })
    }

    /// Accepts a connection. Returns it with the certificate of its client, if the client showed one.
    pub(crate) async fn accept_stream(
        &self,
        stream: TcpStream,
    ) -> std::io::Result<(TlsStream<TcpStream>, Option<PeerCertificate>)> {
        let stream = self.acceptor.accept(stream).await?;
        let chain = stream.get_ref().1.peer_certificates();
        let certificate = match chain.and_then(<[_]>::first) {
            Some(leaf) => {
                let facts = CertificateFacts::parse_der(leaf).map_err(std::io::Error::other)?;
                Some(PeerCertificate(Arc::new(facts)))
            }
            None => None,
        };
        Ok((stream, certificate))
    }
}

/// Certificate of the client of a connection, verified. Requests carry it as an extension.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerCertificate(Arc<CertificateFacts>);

impl PeerCertificate {
    /// Returns its facts.
    pub fn facts(&self) -> &CertificateFacts {
        &self.0
    }
}
