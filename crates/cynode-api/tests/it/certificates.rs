//! Mutual TLS of the internal port, over real connections.

use std::{path::PathBuf, sync::Arc, time::Duration};

use cynode_app::identity::service_tokens::{self, ServiceKind};
use cynode_core::ids::NodeId;
use cynode_net::tls::{
    CaPin, ClientTls, KeySource, PrivatePkcs8KeyDer, ReloadableKey, split_pinned_token,
};
use cynode_testkit::{NOW, TestApp, TlsInternalPort};
use cynode_wire::nodes::signed_bytes;
use data_encoding::HEXLOWER;
use ed25519_dalek::{Signer, SigningKey};
use serde_json::{Value, json};
use tempfile::TempDir;

/// DER before the 32 bytes of an Ed25519 private key.
const KEY_PREFIX: [u8; 16] = [
    0x30, 0x2e, 0x02, 0x01, 0x00, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x04, 0x22, 0x04, 0x20,
];

/// Longer than a revoked certificate may work.
const REVOCATION_TIMEOUT: Duration = Duration::from_secs(20);

/// A machine that has joined.
struct Machine {
    key: SigningKey,
    id: NodeId,
    certificate: PathBuf,
    _directory: TempDir,
}

async fn post(port: &TlsInternalPort, tls: &ClientTls, path: &str, body: &Value) -> (u16, Value) {
    let request = port.client(tls).post(format!("{}{path}", port.url));
    let request = request.header("content-type", "application/json").body(body.to_string());
    let answer = request.send().await.unwrap();
    let status = answer.status().as_u16();
    (status, serde_json::from_str(&answer.text().await.unwrap()).unwrap_or_default())
}

fn joining(token: &str, name: &str, key: &SigningKey) -> Value {
    let report = json!({ "version": "0.1.0", "cores": 2, "memory_mib": 4096, "disk_free_mib": 9000, "slots": 1, "backends": [],
        "agents": [], "facts": {} });
    json!({ "join_token": token, "name": name, "report": report,
        "public_key": HEXLOWER.encode(key.verifying_key().as_bytes()) })
}

impl Machine {
    async fn join(port: &TlsInternalPort, number: u8) -> Self {
        let once = cynode_app::nodes::issue_local_join_token(&port.app, Vec::new()).await.unwrap();
        let (token, pin) = split_pinned_token(&once.0).unwrap();
        assert_eq!(pin, Some(port.pin), "the token carries the pin");
        let key = SigningKey::from_bytes(&[number; 32]);
        let pinned = ClientTls::trust_pin(port.pin);
        let body = joining(token, &format!("node-{number}"), &key);
        let (status, joined) = post(port, &pinned, "/v1/nodes/join", &body).await;
        assert_eq!(status, 200, "{joined}");
        let directory = tempfile::tempdir().unwrap();
        let certificate = directory.path().join("node.pem");
        let chain = joined["certificate"]["chain_pem"].as_str().unwrap();
        std::fs::write(&certificate, chain).unwrap();
        let id = joined["node_id"].as_str().unwrap().parse().unwrap();
        Self { key, id, certificate, _directory: directory }
    }

    /// The trust and the certificate of this machine.
    fn tls(&self, pin: CaPin) -> ClientTls {
        let der = [KEY_PREFIX.as_slice(), &self.key.to_bytes()].concat();
        let key = KeySource::Key(PrivatePkcs8KeyDer::from(der).into());
        let own = ReloadableKey::load_client_files(self.certificate.clone(), key).unwrap();
        ClientTls::trust_pin(pin).with_identity(Arc::new(own))
    }

    async fn signed(&self, port: &TlsInternalPort, tls: &ClientTls) -> Value {
        let ask = json!({ "node_id": self.id });
        let (status, given) = post(port, tls, "/v1/nodes/challenge", &ask).await;
        assert_eq!(status, 200, "{given}");
        let challenge = given["challenge"].as_str().unwrap();
        let signature = self.key.sign(&signed_bytes(self.id, challenge));
        json!({ "node_id": self.id, "challenge": challenge, "signature": HEXLOWER.encode(&signature.to_bytes()) })
    }

    async fn token(&self, port: &TlsInternalPort, tls: &ClientTls) -> (u16, Value) {
        post(port, tls, "/v1/nodes/token", &self.signed(port, tls).await).await
    }
}

/// Reports with the token of a node on connections with some certificate.
async fn report(port: &TlsInternalPort, tls: &ClientTls, token: &str) -> u16 {
    let body = joining("", "", &SigningKey::from_bytes(&[9; 32]))["report"].to_string();
    let request = port.client(tls).post(format!("{}/v1/nodes/report", port.url));
    let request = request.bearer_auth(token).header("content-type", "application/json").body(body);
    request.send().await.unwrap().status().as_u16()
}

#[tokio::test]
async fn a_node_joins_by_its_pin_and_works_with_its_certificate_alone() {
    let app = TestApp::new().await;
    let port = app.serve_internal_tls().await;
    let machine = Machine::join(&port, 1).await;
    let pinned = ClientTls::trust_pin(port.pin);
    let (status, problem) = machine.token(&port, &pinned).await;
    assert_eq!((status, problem["code"].as_str()), (401, Some("unauthenticated")));
    assert!(problem["detail"].as_str().unwrap().contains("client certificate"), "{problem}");
    let own = machine.tls(port.pin);
    let (status, given) = machine.token(&port, &own).await;
    assert_eq!(status, 200, "{given}");
    let token = given["token"].as_str().unwrap();
    assert_eq!(report(&port, &own, token).await, 200);
    assert_eq!(report(&port, &pinned, token).await, 401, "a stolen token alone");
    let other = Machine::join(&port, 2).await;
    assert_eq!(report(&port, &other.tls(port.pin), token).await, 401, "with another certificate");
}

#[tokio::test]
async fn the_token_of_a_program_opens_nothing_with_the_certificate_of_a_node() {
    let app = TestApp::new().await;
    let port = app.serve_internal_tls().await;
    let name = "runner-1".parse().unwrap();
    let issued = service_tokens::issue_service_token(&port.app, ServiceKind::Runner, &name).await;
    let token = issued.unwrap().0;
    // Where no certificate is shown, the token counts alone: the body is what is wrong then.
    let plain = app.at_internal_port().with_token(&token);
    let refused = plain.post("/v1/workflow/start", json!({})).await;
    assert_ne!(refused.status, 401);
    let machine = Machine::join(&port, 1).await;
    let request =
        port.client(&machine.tls(port.pin)).post(format!("{}/v1/workflow/start", port.url));
    let request = request.bearer_auth(&token).header("content-type", "application/json").body("{}");
    assert_eq!(request.send().await.unwrap().status().as_u16(), 401);
}

#[tokio::test]
async fn with_another_pin_nothing_is_sent() {
    let app = TestApp::new().await;
    let (port, foreign) = (app.serve_internal_tls().await, app.serve_internal_tls().await);
    let wrong = ClientTls::trust_pin(foreign.pin);
    let answer = port.client(&wrong).get(format!("{}/healthz", port.url)).send().await;
    assert!(answer.unwrap_err().is_connect());
    let machine = Machine::join(&foreign, 3).await;
    // The certificate of a foreign authority ends the handshake.
    let answer = port
        .client(&ClientTls::trust_pin(port.pin).with_identity({
            let der = [KEY_PREFIX.as_slice(), &machine.key.to_bytes()].concat();
            let key = KeySource::Key(PrivatePkcs8KeyDer::from(der).into());
            Arc::new(ReloadableKey::load_client_files(machine.certificate.clone(), key).unwrap())
        }))
        .get(format!("{}/healthz", port.url))
        .send()
        .await;
    assert!(answer.is_err());
}

#[tokio::test]
async fn the_certificate_of_a_removed_node_stops_working_and_a_stranger_gets_none() {
    let app = TestApp::new().await;
    let admin = app.admin().await;
    let port = app.serve_internal_tls().await;
    let machine = Machine::join(&port, 1).await;
    let own = machine.tls(port.pin);
    let document = format!("{}/v1/openapi.json", port.url);
    let status = async || {
        let answer = port.client(&own).get(&document).send().await;
        answer.unwrap().status().as_u16()
    };
    assert_eq!(status().await, 200);
    // The session of the admin is of the time before the clock was set.
    let real = cynode_app::Clock::now(&app.clock);
    app.clock.advance(NOW - real);
    admin.delete(&format!("/v1/nodes/{}", machine.id)).await.expect(204);
    app.clock.advance(real - NOW);
    let refused = async {
        let mut turn = tokio::time::interval(Duration::from_millis(100));
        while status().await != 401 {
            turn.tick().await;
        }
    };
    tokio::time::timeout(REVOCATION_TIMEOUT, refused).await.unwrap();
    let pinned = ClientTls::trust_pin(port.pin);
    let body = machine.signed(&port, &pinned).await;
    assert_eq!(post(&port, &pinned, "/v1/nodes/certificate", &body).await.0, 401);
}

#[tokio::test]
async fn a_node_without_a_certificate_gets_one_for_its_signature() {
    let app = TestApp::new().await;
    let port = app.serve_internal_tls().await;
    let machine = Machine::join(&port, 1).await;
    let pinned = ClientTls::trust_pin(port.pin);
    let body = machine.signed(&port, &pinned).await;
    let (status, renewed) = post(&port, &pinned, "/v1/nodes/certificate", &body).await;
    assert_eq!(status, 200, "{renewed}");
    std::fs::write(&machine.certificate, renewed["chain_pem"].as_str().unwrap()).unwrap();
    assert_eq!(machine.token(&port, &machine.tls(port.pin)).await.0, 200);
    let mut forged = machine.signed(&port, &pinned).await;
    forged["signature"] = json!("00".repeat(64));
    assert_eq!(post(&port, &pinned, "/v1/nodes/certificate", &forged).await.0, 401);
}

#[tokio::test]
async fn an_admin_sees_every_certificate_with_the_days_that_it_has_left() {
    let app = TestApp::new().await;
    let admin = app.admin().await;
    let port = app.serve_internal_tls().await;
    Machine::join(&port, 1).await;
    let real = cynode_app::Clock::now(&app.clock);
    app.clock.advance(NOW - real);
    let listed = port.people.with_token(&admin.token().unwrap()).get("/v1/certificates").await;
    let listed = listed.expect(200).json();
    let shown: Vec<_> = listed["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|item| (item["used_for"].as_str().unwrap(), item["origin"].as_str().unwrap()))
        .collect();
    assert_eq!(shown, [("internal_port", "own"), ("authority", "own"), ("node", "own")]);
    assert_eq!(listed["items"][2]["name"], "node-1");
    assert_eq!(listed["items"][1]["pin"], port.pin.to_string());
    let none = admin.get("/v1/certificates").await.expect(200).json();
    assert_eq!(none["items"].as_array().unwrap().len(), 1, "a port without TLS has none");
}
