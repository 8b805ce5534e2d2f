//! A fake identity provider on loopback: OpenID Connect with the code flow, PKCE, rotating refresh tokens and keys. It signs with
//! Ed25519 and can be told to misbehave.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    sync::{Arc, Mutex, MutexGuard},
};

use axum::{
    Router,
    body::Bytes,
    extract::State,
    http::{HeaderMap, StatusCode, Uri, header},
    response::{IntoResponse, Response},
};
use cynode_app::Clock;
use data_encoding::BASE64URL_NOPAD;
use ed25519_dalek::{Signer, SigningKey};
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};
use tokio::net::TcpListener;
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use url::{Url, form_urlencoded};

use crate::TestClock;

/// Our id at every fake identity provider.
pub const CLIENT_ID: &str = "cynode";
/// Our secret at every fake identity provider.
pub const CLIENT_SECRET: &str = "idp-secret-1";

/// Lifetime of ID tokens and access tokens in seconds.
const TOKEN_SECONDS: i64 = 300;

/// A running fake identity provider.
pub struct TestIdentityProvider {
    /// Its clock. It goes with that of the application only if the test says so.
    pub clock: TestClock,
    address: SocketAddr,
    world: Arc<Mutex<ProviderWorld>>,
    stop: CancellationToken,
}

/// State of the provider.
#[derive(Default)]
struct ProviderWorld {
    issuer: String,
    people: BTreeMap<String, Value>,
    codes: BTreeMap<String, IssuedCode>,
    /// Access and refresh tokens, and their subjects.
    tokens: BTreeMap<String, String>,
    key_number: u8,
    counter: u64,
    unavailable: bool,
    without_refresh_tokens: bool,
    key_fetches: usize,
    /// Status and error code of the endpoints that fail, by path.
    failures: BTreeMap<String, (u16, String)>,
    /// Claims of the next ID token that differ from the right ones; `null` leaves one out.
    id_changes: Map<String, Value>,
}

struct IssuedCode {
    subject: String,
    nonce: String,
    challenge: String,
    redirect_uri: String,
}

/// The answer that a browser brings back from the provider.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProviderAnswer {
    /// The code.
    pub code: String,
    /// The state of the login.
    pub state: String,
    /// The issuer.
    pub issuer: String,
    /// Where the browser is sent.
    pub redirect_uri: String,
}

impl ProviderAnswer {
    /// Returns the path and query that the browser is sent to.
    pub fn callback(&self) -> String {
        let url: Url = self.redirect_uri.parse().unwrap();
        let query = form_urlencoded::Serializer::new(String::new())
            .append_pair("code", &self.code)
            .append_pair("state", &self.state)
            .append_pair("iss", &self.issuer)
            .finish();
        format!("{}?{query}", url.path())
    }
}

impl TestIdentityProvider {
    /// Starts a provider without people.
    pub async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let clock = TestClock::default();
        let world = Arc::new(Mutex::new(ProviderWorld {
            issuer: format!("http://{address}"),
            key_number: 1,
            ..ProviderWorld::default()
        }));
        let router = Router::new().fallback(answer).with_state((world.clone(), clock.clone()));
        let stop = CancellationToken::new();
        let until = stop.clone().cancelled_owned();
        TaskTracker::new().spawn(async move {
            let _ = axum::serve(listener, router).with_graceful_shutdown(until).await;
        });
        Self { clock, address, world, stop }
    }

    /// Returns its host, as the configuration names it.
    pub fn host(&self) -> String {
        self.address.to_string()
    }

    /// Returns its issuer.
    pub fn issuer(&self) -> String {
        self.world().issuer.clone()
    }

    fn world(&self) -> MutexGuard<'_, ProviderWorld> {
        self.world.lock().unwrap()
    }

    /// Adds a person, or changes one.
    pub fn set_person(&self, subject: &str, claims: Value) {
        self.world().people.insert(subject.to_owned(), claims);
    }

    /// Removes a person. Their tokens stop working.
    pub fn remove_person(&self, subject: &str) {
        self.world().people.remove(subject);
    }

    /// Makes it fail every request, or work again.
    pub fn set_available(&self, available: bool) {
        self.world().unavailable = !available;
    }

    /// Makes one of its endpoints fail with a status and an error code, until [`Self::mend_endpoints`].
    pub fn fail_endpoint(&self, path: &str, status: u16, error: &str) {
        self.world().failures.insert(path.to_owned(), (status, error.to_owned()));
    }

    /// Makes every endpoint work again.
    pub fn mend_endpoints(&self) {
        self.world().failures.clear();
    }

    /// Makes it give no refresh tokens.
    pub fn disable_refresh_tokens(&self) {
        self.world().without_refresh_tokens = true;
    }

    /// Signs with a new key from now on.
    pub fn rotate_key(&self) {
        self.world().key_number += 1;
    }

    /// Returns how often its keys were fetched.
    pub fn key_fetches(&self) -> usize {
        self.world().key_fetches
    }

    /// Changes the claims of the next ID token; `null` leaves one out.
    pub fn change_next_id_token(&self, changes: Value) {
        let Value::Object(changes) = changes else { panic!("changes are an object") };
        self.world().id_changes = changes;
    }

    /// Logs a person in as a browser does that was sent to this address. Returns what the browser brings back.
    pub fn log_in(&self, subject: &str, authorization_url: &str) -> ProviderAnswer {
        let url: Url = authorization_url.parse().unwrap();
        let query: BTreeMap<String, String> = url.query_pairs().into_owned().collect();
        let given = |name: &str| query.get(name).unwrap_or_else(|| panic!("no {name}")).clone();
        assert_eq!(given("response_type"), "code");
        assert_eq!(given("client_id"), CLIENT_ID);
        assert_eq!(given("code_challenge_method"), "S256");
        let mut world = self.world();
        let code = world.next_secret("code");
        let issued = IssuedCode {
            subject: subject.to_owned(),
            nonce: given("nonce"),
            challenge: given("code_challenge"),
            redirect_uri: given("redirect_uri"),
        };
        world.codes.insert(code.clone(), issued);
        let issuer = world.issuer.clone();
        ProviderAnswer { code, state: given("state"), issuer, redirect_uri: given("redirect_uri") }
    }

    /// Signs a logout token with these claims beside the usual ones; `null` leaves one out.
    pub fn logout_token(&self, changes: &Value) -> String {
        let mut world = self.world();
        let id = world.next_secret("jti");
        let claims = json!({
            "iss": world.issuer,
            "aud": CLIENT_ID,
            "iat": self.clock.now().unix_timestamp(),
            "jti": id,
            "events": { "http://schemas.openid.net/event/backchannel-logout": {} },
        });
        world.sign("logout+jwt", claims, changes.as_object().unwrap())
    }
}

impl Drop for TestIdentityProvider {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

impl ProviderWorld {
    fn next_secret(&mut self, kind: &str) -> String {
        self.counter += 1;
        format!("{kind}-{}", self.counter)
    }

    fn signing_key(&self) -> SigningKey {
        SigningKey::from_bytes(&[self.key_number; 32])
    }

    fn sign(&self, kind: &str, claims: Value, changes: &Map<String, Value>) -> String {
        let Value::Object(mut claims) = claims else { panic!("claims are an object") };
        for (name, value) in changes {
            if value.is_null() {
                claims.remove(name);
            } else {
                claims.insert(name.clone(), value.clone());
            }
        }
        let header = json!({ "alg": "EdDSA", "typ": kind, "kid": format!("k{}", self.key_number) });
        let part = |text: String| BASE64URL_NOPAD.encode(text.as_bytes());
        let signed =
            format!("{}.{}", part(header.to_string()), part(Value::Object(claims).to_string()));
        let signature = self.signing_key().sign(signed.as_bytes()).to_bytes();
        format!("{signed}.{}", BASE64URL_NOPAD.encode(&signature))
    }

    fn configuration(&self) -> Value {
        let at = |path: &str| format!("{}{path}", self.issuer);
        json!({
            "issuer": self.issuer,
            "authorization_endpoint": at("/authorize"),
            "token_endpoint": at("/token"),
            "userinfo_endpoint": at("/userinfo"),
            "jwks_uri": at("/keys"),
            "end_session_endpoint": at("/logout"),
            "code_challenge_methods_supported": ["S256"],
            "authorization_response_iss_parameter_supported": true,
            "backchannel_logout_supported": true,
        })
    }

    fn keys(&mut self) -> Value {
        self.key_fetches += 1;
        let x = BASE64URL_NOPAD.encode(self.signing_key().verifying_key().as_bytes());
        let kid = format!("k{}", self.key_number);
        json!({ "keys": [{ "kty": "OKP", "crv": "Ed25519", "use": "sig", "alg": "EdDSA", "kid": kid, "x": x }] })
    }

    /// Answers a request to the token endpoint.
    fn redeem(&mut self, form: &BTreeMap<String, String>, now: i64) -> Result<Value, &'static str> {
        let given = |name: &str| form.get(name).map(String::as_str).unwrap_or_default();
        let (subject, nonce) = match given("grant_type") {
            "authorization_code" => {
                let code = self.codes.remove(given("code")).ok_or("invalid_grant")?;
                let digest = Sha256::digest(given("code_verifier").as_bytes());
                let good = BASE64URL_NOPAD.encode(&digest) == code.challenge
                    && given("redirect_uri") == code.redirect_uri;
                if !good {
                    return Err("invalid_grant");
                }
                (code.subject, Some(code.nonce))
            }
            "refresh_token" => {
                let subject = self.tokens.remove(given("refresh_token")).ok_or("invalid_grant")?;
                (subject, None)
            }
            _ => return Err("unsupported_grant_type"),
        };
        if !self.people.contains_key(&subject) {
            return Err("invalid_grant");
        }
        let (access, refresh) = (self.next_secret("access"), self.next_secret("refresh"));
        self.tokens.insert(access.clone(), subject.clone());
        let mut answer =
            json!({ "access_token": access, "token_type": "Bearer", "expires_in": TOKEN_SECONDS });
        if !self.without_refresh_tokens {
            self.tokens.insert(refresh.clone(), subject.clone());
            answer["refresh_token"] = json!(refresh);
        }
        let claims = json!({
            "iss": self.issuer,
            "aud": CLIENT_ID,
            "sub": subject,
            "sid": format!("session-of-{subject}"),
            "iat": now,
            "exp": now + TOKEN_SECONDS,
            "nonce": nonce,
        });
        let changes = std::mem::take(&mut self.id_changes);
        answer["id_token"] = json!(self.sign("JWT", claims, &changes));
        Ok(answer)
    }

    fn userinfo(&self, headers: &HeaderMap) -> Option<Value> {
        let token = headers.get(header::AUTHORIZATION)?.to_str().ok()?.strip_prefix("Bearer ")?;
        let subject = self.tokens.get(token)?;
        let mut claims = self.people.get(subject)?.clone();
        claims["sub"] = json!(subject);
        Some(claims)
    }
}

async fn answer(
    State((world, clock)): State<(Arc<Mutex<ProviderWorld>>, TestClock)>,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let mut world = world.lock().unwrap();
    if world.unavailable {
        return StatusCode::SERVICE_UNAVAILABLE.into_response();
    }
    if let Some((status, error)) = world.failures.get(uri.path()) {
        let status = StatusCode::from_u16(*status).unwrap();
        return (status, json!({ "error": error }).to_string()).into_response();
    }
    let (status, value) = match uri.path() {
        "/.well-known/openid-configuration" => (StatusCode::OK, world.configuration()),
        "/keys" => (StatusCode::OK, world.keys()),
        "/token" if !is_our_client(&headers) => {
            (StatusCode::UNAUTHORIZED, json!({ "error": "invalid_client" }))
        }
        "/token" => {
            let form = form_urlencoded::parse(&body).into_owned().collect();
            match world.redeem(&form, clock.now().unix_timestamp()) {
                Ok(answer) => (StatusCode::OK, answer),
                Err(error) => (StatusCode::BAD_REQUEST, json!({ "error": error })),
            }
        }
        "/userinfo" => match world.userinfo(&headers) {
            Some(claims) => (StatusCode::OK, claims),
            None => (StatusCode::UNAUTHORIZED, json!({ "error": "invalid_token" })),
        },
        _ => (StatusCode::NOT_FOUND, Value::Null),
    };
    (status, [(header::CONTENT_TYPE, "application/json")], value.to_string()).into_response()
}

fn is_our_client(headers: &HeaderMap) -> bool {
    let expected = data_encoding::BASE64.encode(format!("{CLIENT_ID}:{CLIENT_SECRET}").as_bytes());
    headers.get(header::AUTHORIZATION).is_some_and(|value| *value == format!("Basic {expected}"))
}
