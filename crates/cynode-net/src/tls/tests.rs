//! Connections by real TLS on loopback.

use std::{
    convert::Infallible,
    fs,
    net::{Ipv4Addr, SocketAddr},
    os::unix::fs::PermissionsExt as _,
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use http_body_util::Full;
use hyper::{Request, Response};
use rcgen::{
    BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, SanType,
};
use rustls::pki_types::CertificateDer;
use tempfile::TempDir;
use time::OffsetDateTime;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tower::Service;

use super::*;
use crate::server::{LimitedServer, PacedBody, ServerOptions};

const NAME: &str = "cynode.test";

#[expect(
    clippy::disallowed_methods,
    reason = "rustls compares certificates with the clock of the system"
)]
fn now() -> OffsetDateTime {
    OffsetDateTime::now_utc()
}

/// A certificate authority of a test.
struct Authority {
    issuer: Issuer<'static, KeyPair>,
    der: CertificateDer<'static>,
    pem: String,
}

/// A certificate that an authority issues.
struct Wanted<'a> {
    name: &'a str,
    uri: Option<&'a str>,
    ends_in_days: i64,
}

const SERVER: Wanted<'static> = Wanted { name: NAME, uri: None, ends_in_days: 30 };

impl Authority {
    fn new() -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(Vec::<String>::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let certificate = params.self_signed(&key).unwrap();
        let (der, pem) = (certificate.der().clone(), certificate.pem());
        Self { issuer: Issuer::new(params, key), der, pem }
    }

    fn pin(&self) -> CaPin {
        CertificateFacts::parse_der(&self.der).unwrap().pin
    }

    /// Writes a certificate with its chain and its key. Returns their paths.
    fn issue(&self, dir: &TempDir, stem: &str, wanted: &Wanted<'_>) -> (PathBuf, PathBuf) {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(vec![wanted.name.to_owned()]).unwrap();
        if let Some(uri) = wanted.uri {
            params.subject_alt_names.push(SanType::URI(uri.try_into().unwrap()));
        }
        params.not_before = now() - time::Duration::days(60);
        params.not_after = now() + time::Duration::days(wanted.ends_in_days);
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        let leaf = params.signed_by(&key, &self.issuer).unwrap();
        let (certificate, private) =
            (dir.path().join(format!("{stem}.pem")), dir.path().join(format!("{stem}.key")));
        replace_file(&certificate, &format!("{}{}", leaf.pem(), self.pem));
        replace_file(&private, &key.serialize_pem());
        (certificate, private)
    }

    fn file(&self, dir: &TempDir) -> PathBuf {
        let path = dir.path().join("ca.pem");
        fs::write(&path, &self.pem).unwrap();
        path
    }
}

fn replace_file(path: &std::path::Path, text: &str) {
    let draft = path.with_extension("new");
    fs::write(&draft, text).unwrap();
    fs::set_permissions(&draft, fs::Permissions::from_mode(0o600)).unwrap();
    fs::rename(&draft, path).unwrap();
}

fn load((certificate, key): (PathBuf, PathBuf)) -> Arc<ReloadableKey> {
    // An expired certificate is loaded too, so that clients can refuse it.
    let then = now() - time::Duration::days(30);
    Arc::new(ReloadableKey::load_files(certificate, KeySource::File(key), then).unwrap())
}

/// A server that answers with the URIs of the client's certificate.
struct RunningServer {
    address: SocketAddr,
    stop: CancellationToken,
    tasks: TaskTracker,
}

impl RunningServer {
    async fn start(key: Arc<ReloadableKey>, clients: ClientAuthentication) -> Self {
        Self::start_service(key, clients, tower::service_fn(name_client)).await
    }

    async fn start_service<S>(
        key: Arc<ReloadableKey>,
        clients: ClientAuthentication,
        service: S,
    ) -> Self
    where
        S: Service<
                Request<PacedBody>,
                Response = Response<Full<Bytes>>,
                Error = Infallible,
                Future: Send,
            > + Clone
            + Send
            + 'static,
    {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, tasks) = (CancellationToken::new(), TaskTracker::new());
        let tls = ServerTls::new(key, clients).unwrap();
        let (server, until) = (LimitedServer::new(ServerOptions::default()), stop.clone());
        tasks.spawn(async move {
            server.serve_tls_listener(listener, Some(tls), service, until).await;
        });
        Self { address, stop, tasks }
    }

    fn client(&self, tls: &ClientTls) -> reqwest::Client {
        let builder = reqwest::Client::builder().no_proxy().resolve(NAME, self.address);
        tls.configure_client(builder.pool_max_idle_per_host(0)).unwrap().build().unwrap()
    }

    async fn ask(&self, tls: &ClientTls) -> Result<String, reqwest::Error> {
        let url = format!("https://{NAME}:{}/", self.address.port());
        self.client(tls).get(url).send().await?.text().await
    }

    async fn end(self) {
        self.stop.cancel();
        self.tasks.close();
        self.tasks.wait().await;
    }
}

/// Answers with the serial of the client's certificate, and ends the connection.
async fn show_serial(request: Request<PacedBody>) -> Result<Response<Full<Bytes>>, Infallible> {
    let certificate = request.extensions().get::<PeerCertificate>();
    let serial = certificate.map(|certificate| certificate.facts().serial.clone());
    let response = Response::builder().header("connection", "close");
    Ok(response.body(Full::from(serial.unwrap_or_default())).unwrap())
}

async fn name_client(request: Request<PacedBody>) -> Result<Response<Full<Bytes>>, Infallible> {
    let certificate = request.extensions().get::<PeerCertificate>();
    let uris = certificate.map(|certificate| certificate.facts().uris.join(" "));
    Ok(Response::new(Full::from(uris.unwrap_or_else(|| "nobody".to_owned()))))
}

#[tokio::test]
async fn a_client_with_the_right_pin_or_file_is_served_and_any_other_is_not() {
    let dir = tempfile::tempdir().unwrap();
    let (own, foreign) = (Authority::new(), Authority::new());
    let key = load(own.issue(&dir, "server", &SERVER));
    let server = RunningServer::start(key, ClientAuthentication::None).await;
    let pinned = ClientTls::trust_pin(own.pin());
    assert_eq!(server.ask(&pinned).await.unwrap(), "nobody");
    let by_file = ClientTls::trust_file(&own.file(&dir)).unwrap();
    assert_eq!(server.ask(&by_file).await.unwrap(), "nobody");
    let wrong_pin = ClientTls::trust_pin(foreign.pin());
    assert!(server.ask(&wrong_pin).await.unwrap_err().is_connect());
    assert!(server.ask(&ClientTls::default()).await.unwrap_err().is_connect());
    server.end().await;
}

#[tokio::test]
async fn a_server_with_an_expired_certificate_or_another_name_is_refused_although_the_pin_is_right()
{
    let dir = tempfile::tempdir().unwrap();
    let own = Authority::new();
    let pinned = ClientTls::trust_pin(own.pin());
    let expired = Wanted { ends_in_days: -1, ..SERVER };
    let other_name = Wanted { name: "other.test", ..SERVER };
    for (stem, wanted) in [("expired", expired), ("other", other_name)] {
        let key = load(own.issue(&dir, stem, &wanted));
        let server = RunningServer::start(key, ClientAuthentication::None).await;
        assert!(server.ask(&pinned).await.unwrap_err().is_connect(), "{stem}");
        server.end().await;
    }
}

#[tokio::test]
async fn a_chain_that_only_shows_the_pinned_authority_without_being_signed_by_it_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (own, foreign) = (Authority::new(), Authority::new());
    let (certificate, key) = foreign.issue(&dir, "server", &SERVER);
    let chain = fs::read_to_string(&certificate).unwrap();
    replace_file(&certificate, &format!("{chain}{}", own.pem));
    let server = RunningServer::start(load((certificate, key)), ClientAuthentication::None).await;
    assert!(server.ask(&ClientTls::trust_pin(own.pin())).await.is_err());
    server.end().await;
}

#[tokio::test]
async fn the_certificate_of_a_client_reaches_the_service_and_a_foreign_one_ends_the_connection() {
    let dir = tempfile::tempdir().unwrap();
    let (own, foreign) = (Authority::new(), Authority::new());
    let key = load(own.issue(&dir, "server", &SERVER));
    let clients = ClientAuthentication::Optional(vec![own.der.clone()]);
    let server = RunningServer::start(key, clients).await;
    let wanted = Wanted { name: "node", uri: Some("cynode:node:7"), ends_in_days: 30 };
    let trusted = ClientTls::trust_pin(own.pin());
    let with_own = trusted.clone().with_identity(load(own.issue(&dir, "own", &wanted)));
    assert_eq!(server.ask(&with_own).await.unwrap(), "cynode:node:7");
    assert_eq!(server.ask(&trusted).await.unwrap(), "nobody");
    let with_foreign = trusted.clone().with_identity(load(foreign.issue(&dir, "foreign", &wanted)));
    assert!(server.ask(&with_foreign).await.is_err());
    let ended = Wanted { ends_in_days: -1, ..wanted };
    let with_expired = trusted.with_identity(load(own.issue(&dir, "expired", &ended)));
    assert!(server.ask(&with_expired).await.is_err());
    server.end().await;
}

#[tokio::test]
async fn a_certificate_is_exchanged_under_load_and_no_request_fails() {
    let dir = tempfile::tempdir().unwrap();
    let own = Authority::new();
    let key = load(own.issue(&dir, "server", &SERVER));
    let first = key.facts().unwrap().serial;
    let server = RunningServer::start(key.clone(), ClientAuthentication::None).await;
    let pinned = ClientTls::trust_pin(own.pin());
    // A connection that is open before the exchange.
    let builder = reqwest::Client::builder().no_proxy().resolve(NAME, server.address);
    let kept = pinned.configure_client(builder).unwrap().build().unwrap();
    let url = format!("https://{NAME}:{}/", server.address.port());
    assert!(kept.get(&url).send().await.unwrap().status().is_success());
    let load_of_requests = async {
        for _ in 0..40 {
            assert_eq!(server.ask(&pinned).await.unwrap(), "nobody");
        }
    };
    let exchange = async {
        for _ in 0..5 {
            own.issue(&dir, "server", &SERVER);
            assert!(matches!(key.reload_if_changed(now()), ReloadOutcome::Reloaded(_)));
            tokio::task::yield_now().await;
        }
    };
    tokio::join!(load_of_requests, exchange);
    assert_ne!(key.facts().unwrap().serial, first);
    assert!(kept.get(&url).send().await.unwrap().status().is_success());
    server.end().await;
}

#[tokio::test]
async fn a_client_shows_its_renewed_certificate_on_its_next_connection() {
    let dir = tempfile::tempdir().unwrap();
    let own = Authority::new();
    let key = load(own.issue(&dir, "server", &SERVER));
    let clients = ClientAuthentication::Optional(vec![own.der.clone()]);
    let service = tower::service_fn(show_serial);
    let server = RunningServer::start_service(key, clients, service).await;
    let wanted = Wanted { name: "node", uri: Some("cynode:node:7"), ends_in_days: 30 };
    let identity = load(own.issue(&dir, "node", &wanted));
    let first = identity.facts().unwrap().serial;
    let tls = ClientTls::trust_pin(own.pin()).with_identity(identity.clone());
    let client = server.client(&tls);
    let url = format!("https://{NAME}:{}/", server.address.port());
    let ask = async || client.get(&url).send().await.unwrap().text().await.unwrap();
    assert_eq!([ask().await, ask().await], [first.clone(), first.clone()]);
    own.issue(&dir, "node", &wanted);
    assert!(matches!(identity.reload_if_changed(now()), ReloadOutcome::Reloaded(_)));
    let renewed = identity.facts().unwrap().serial;
    assert_ne!(renewed, first);
    assert_eq!(ask().await, renewed);
    server.end().await;
}

#[tokio::test]
async fn a_server_that_asks_for_certificates_resumes_no_session() {
    use rustls::HandshakeKind::{Full, Resumed};

    let dir = tempfile::tempdir().unwrap();
    let own = Authority::new();
    let key = load(own.issue(&dir, "server", &SERVER));
    let config = async |clients| {
        let server = RunningServer::start(key.clone(), clients).await;
        let tls = Arc::new(ClientTls::trust_pin(own.pin()).to_config().unwrap());
        let mut kinds = Vec::new();
        for _ in 0..2 {
            let stream = TcpStream::connect(server.address).await.unwrap();
            let connector = tokio_rustls::TlsConnector::from(tls.clone());
            let mut stream = connector.connect(NAME.try_into().unwrap(), stream).await.unwrap();
            let request = format!("GET / HTTP/1.1\r\nhost: {NAME}\r\nconnection: close\r\n\r\n");
            stream.write_all(request.as_bytes()).await.unwrap();
            let _ = stream.read_to_end(&mut Vec::new()).await;
            kinds.push(stream.get_ref().1.handshake_kind().unwrap());
        }
        server.end().await;
        kinds
    };
    assert_eq!(config(ClientAuthentication::None).await, [Full, Resumed]);
    let asked = ClientAuthentication::Optional(vec![own.der.clone()]);
    assert_eq!(config(asked).await, [Full, Full]);
}

#[tokio::test]
async fn clear_text_to_an_encrypted_port_gets_no_answer() {
    let dir = tempfile::tempdir().unwrap();
    let own = Authority::new();
    let key = load(own.issue(&dir, "server", &SERVER));
    let server = RunningServer::start(key, ClientAuthentication::None).await;
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    stream.write_all(b"GET / HTTP/1.1\r\nhost: here\r\n\r\n").await.unwrap();
    let mut answer = Vec::new();
    let read = stream.read_to_end(&mut answer);
    let _ = tokio::time::timeout(Duration::from_secs(20), read).await.unwrap();
    assert!(!answer.starts_with(b"HTTP/"), "{answer:?}");
    server.end().await;
}

#[test]
fn files_that_do_not_fit_are_refused_once_and_the_certificate_before_them_stays() {
    let dir = tempfile::tempdir().unwrap();
    let own = Authority::new();
    let files = own.issue(&dir, "server", &SERVER);
    let key = load(files.clone());
    let serial = key.facts().unwrap().serial;
    assert!(matches!(key.reload_if_changed(now()), ReloadOutcome::Unchanged));
    // The certificate is replaced before its key: for a moment they do not fit.
    let (other_certificate, other_key) = own.issue(&dir, "other", &SERVER);
    fs::rename(&other_certificate, &files.0).unwrap();
    assert!(matches!(key.reload_if_changed(now()), ReloadOutcome::Refused(TlsError::Rustls(_))));
    assert!(matches!(key.reload_if_changed(now()), ReloadOutcome::Unchanged));
    assert_eq!(key.facts().unwrap().serial, serial);
    fs::rename(&other_key, &files.1).unwrap();
    let ReloadOutcome::Reloaded(facts) = key.reload_if_changed(now()) else { panic!("not loaded") };
    assert_ne!(facts.serial, serial);
    own.issue(&dir, "server", &Wanted { ends_in_days: -1, ..SERVER });
    let expired = key.reload_if_changed(now());
    assert!(matches!(expired, ReloadOutcome::Refused(TlsError::NotValidNow(_))), "{expired:?}");
    assert_eq!(key.facts().unwrap().serial, facts.serial);
}

#[test]
fn a_certificate_that_was_not_valid_yet_is_used_once_it_is_and_reported_once() {
    let dir = tempfile::tempdir().unwrap();
    let own = Authority::new();
    let key = load(own.issue(&dir, "server", &SERVER));
    let first = key.facts().unwrap().serial;
    own.issue(&dir, "server", &SERVER);
    // A clock that goes wrong by a year.
    let early = now() - time::Duration::days(365);
    let refused = key.reload_if_changed(early);
    assert!(matches!(refused, ReloadOutcome::Refused(TlsError::NotValidNow(_))), "{refused:?}");
    assert!(matches!(key.reload_if_changed(early), ReloadOutcome::Unchanged));
    assert_eq!(key.facts().unwrap().serial, first);
    assert!(matches!(key.reload_if_changed(now()), ReloadOutcome::Reloaded(_)));
    assert_ne!(key.facts().unwrap().serial, first);
}

#[test]
fn a_key_that_everybody_can_read_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (certificate, key) = Authority::new().issue(&dir, "server", &SERVER);
    fs::set_permissions(&key, fs::Permissions::from_mode(0o644)).unwrap();
    let loaded = ReloadableKey::load_files(certificate, KeySource::File(key), now());
    assert!(matches!(loaded, Err(TlsError::OpenKey(_))));
}

#[test]
fn a_certificate_is_described_with_what_people_look_for() {
    let dir = tempfile::tempdir().unwrap();
    let own = Authority::new();
    let wanted = Wanted { name: "127.0.0.1", uri: Some("cynode:service:runner"), ends_in_days: 10 };
    let key = load(own.issue(&dir, "server", &wanted));
    let facts = key.facts().unwrap();
    assert_eq!(
        (facts.names, facts.uris),
        (vec!["127.0.0.1".to_owned()], vec!["cynode:service:runner".to_owned()])
    );
    assert_eq!((facts.key.as_str(), facts.weak_key), ("EC 256", false));
    assert!((9..=10).contains(&key.facts().unwrap().days_left(now())));
    assert!(key.covers_name("127.0.0.1") && !key.covers_name("127.0.0.2"));
}

#[test]
fn a_pin_survives_its_text_and_a_token_carries_it() {
    let pin = Authority::new().pin();
    assert_eq!(pin.to_string().parse(), Ok(pin));
    let token = pin_token("cyn_join_x-_y", pin);
    assert_eq!(split_pinned_token(&token), Ok(("cyn_join_x-_y", Some(pin))));
    assert_eq!(split_pinned_token("cyn_join_x"), Ok(("cyn_join_x", None)));
    assert_eq!(split_pinned_token("cyn_join_x.sha256:00"), Err(CaPinError));
    assert_eq!(split_pinned_token("cyn_join_x."), Err(CaPinError));
}
