//! The internal port of a [`TestApp`] over real TLS on loopback, with its own certificate authority.

use std::{net::Ipv4Addr, sync::Arc};

use cynode_app::{
    App, AppEnvironment, Clock as _,
    platform::certificates::{
        CertificateAuthority, ServedCertificate, ServedCertificates, TlsParts,
    },
};
use cynode_net::{
    server::{LimitedServer, ServerOptions},
    tls::{
        CaPin, CertificateDer, ClientAuthentication, ClientTls, KeySource, ReloadableKey,
        ServerTls, load_certificates,
    },
};
use cynode_wire::platform::certificates::{CertificateOrigin, CertificateUse};
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio_util::{
    sync::{CancellationToken, DropGuard},
    task::TaskTracker,
};

use crate::{Client, TestApp};

/// A served internal port. It ends when it is dropped.
pub struct TlsInternalPort {
    /// Its URL.
    pub url: String,
    /// The application with its certificate authority.
    pub app: App,
    /// Pin of the certificate authority.
    pub pin: CaPin,
    /// A client of the user-facing port of the same application, without a credential.
    pub people: Client,
    _directory: TempDir,
    _stop: DropGuard,
}

impl TlsInternalPort {
    /// Returns an HTTP client with that trust and certificate. It opens a connection for each request.
    pub fn client(&self, tls: &ClientTls) -> reqwest::Client {
        let builder = reqwest::Client::builder().no_proxy().pool_max_idle_per_host(0);
        tls.configure_client(builder).unwrap().build().unwrap()
    }
}

/// The one certificate of the port.
struct OneCertificate(Arc<ReloadableKey>);

impl ServedCertificates for OneCertificate {
    fn list_served(&self) -> Vec<ServedCertificate> {
        vec![ServedCertificate {
            used_for: CertificateUse::InternalPort,
            origin: CertificateOrigin::Own,
            facts: self.0.facts().ok(),
            uncovered_names: Vec::new(),
        }]
    }
}

/// Makes a certificate authority in a directory.
fn make_authority(
    directory: &TempDir,
    environment: &AppEnvironment,
) -> (CertificateAuthority, CertificateDer<'static>) {
    let (pem, key) = CertificateAuthority::generate_files(environment).unwrap();
    let path = directory.path().join("ca.pem");
    std::fs::write(&path, &pem).unwrap();
    let certificate = load_certificates(&path).unwrap().remove(0);
    (CertificateAuthority::from_pem(certificate.clone(), pem, &key).unwrap(), certificate)
}

impl TestApp {
    /// Serves the internal port over TLS. Its clock shows the real time from now on, because TLS compares certificates with that.
    pub async fn serve_internal_tls(&self) -> TlsInternalPort {
        let system = AppEnvironment::from_system();
        self.clock.advance(system.now() - self.clock.now());
        let directory = tempfile::tempdir().unwrap();
        let (authority, certificate) = make_authority(&directory, &system);
        let issued = authority.issue_server_key(&system, &["127.0.0.1".to_owned()]).unwrap();
        let (path, key) =
            (directory.path().join("server.pem"), directory.path().join("server.key"));
        std::fs::write(&path, &issued.certificate.chain_pem).unwrap();
        std::fs::write(&key, &issued.key_pem).unwrap();
        close_to_others(&key);
        let key = ReloadableKey::load_files(path, KeySource::File(key), system.now()).unwrap();
        let key = Arc::new(key);
        let clients = ClientAuthentication::Optional(vec![certificate]);
        let tls = ServerTls::new(key.clone(), clients).unwrap();
        let pin = authority.facts().pin;
        let app = self.app.clone().with_tls(TlsParts {
            authority: Some(authority),
            encrypts_internal_port: true,
            served: Arc::new(OneCertificate(key)),
        });
        let (people, internal) = self.routers_of(app.clone());
        let internal = cynode_api::require_client_certificates(internal, app.clone());
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let url = format!("https://{}", listener.local_addr().unwrap());
        let (stop, server) =
            (CancellationToken::new(), LimitedServer::new(ServerOptions::default()));
        let until = stop.clone();
        TaskTracker::new().spawn(async move {
            server.serve_tls_listener(listener, Some(tls), internal, until).await;
        });
        TlsInternalPort { url, app, pin, people, _directory: directory, _stop: stop.drop_guard() }
    }
}

fn close_to_others(path: &std::path::Path) {
    use std::os::unix::fs::PermissionsExt as _;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).unwrap();
}
