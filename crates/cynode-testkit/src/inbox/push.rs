//! A push service (RFC 8030) and the browsers that are subscribed to it.

use std::{
    collections::{BTreeMap, VecDeque},
    net::SocketAddr,
    sync::{Arc, Mutex},
};

use axum::{
    Router,
    body::Bytes,
    extract::State,
    http::{HeaderMap, StatusCode, Uri, header},
    response::{IntoResponse, Response},
    routing::post,
};
use data_encoding::BASE64URL_NOPAD;
use p256::{PublicKey, SecretKey, ecdh, elliptic_curve::sec1::ToEncodedPoint};
use ring::{
    aead::{AES_128_GCM, Aad, LessSafeKey, Nonce, UnboundKey},
    hkdf,
    signature::{ECDSA_P256_SHA256_FIXED, UnparsedPublicKey},
};
use serde_json::Value;
use tokio::{net::TcpListener, sync::watch};
use tokio_util::sync::CancellationToken;

use super::http::serve;

/// Maximum size of a message, as of the real services.
const MAX_MESSAGE_BYTES: usize = 4096;

/// A browser with a subscription.
#[derive(Clone)]
pub struct Browser {
    /// Number of the browser.
    pub number: u8,
    /// URL of its subscription.
    pub endpoint: String,
    /// The public key `p256dh`.
    pub p256dh: String,
    /// The secret `auth`.
    pub auth: String,
    secret: SecretKey,
    auth_bytes: [u8; 16],
}

impl Browser {
    fn new(number: u8, origin: &str) -> Self {
        let (secret, auth_bytes) = (SecretKey::from_slice(&[number; 32]).unwrap(), [number; 16]);
        Self {
            number,
            endpoint: format!("{origin}/push/{number}"),
            p256dh: BASE64URL_NOPAD.encode(secret.public_key().to_encoded_point(false).as_bytes()),
            auth: BASE64URL_NOPAD.encode(&auth_bytes),
            secret,
            auth_bytes,
        }
    }

    /// Decrypts a message (RFC 8291 and RFC 8188) with another library than the one that encrypts it.
    fn decrypt(&self, message: &[u8]) -> Option<Vec<u8>> {
        let (salt, rest) = message.split_at_checked(16)?;
        let (record_size, rest) = rest.split_at_checked(4)?;
        let (key_length, rest) = rest.split_first()?;
        let (sender, record) = rest.split_at_checked(usize::from(*key_length))?;
        let record_size = u32::from_be_bytes(record_size.try_into().ok()?);
        // A push message is one record.
        if record.len() > usize::try_from(record_size).ok()? {
            return None;
        }
        let public = PublicKey::from_sec1_bytes(sender).ok()?;
        let shared: ecdh::SharedSecret =
            ecdh::diffie_hellman(self.secret.to_nonzero_scalar(), public.as_affine());
        let own = self.secret.public_key().to_encoded_point(false);
        let info = [&b"WebPush: info\0"[..], own.as_bytes(), sender].concat();
        let key = derive(&self.auth_bytes, shared.raw_secret_bytes(), &info, 32);
        let content_key = derive(salt, &key, b"Content-Encoding: aes128gcm\0", 16);
        let nonce = derive(salt, &key, b"Content-Encoding: nonce\0", 12);
        let opening = LessSafeKey::new(UnboundKey::new(&AES_128_GCM, &content_key).ok()?);
        let nonce = Nonce::try_assume_unique_for_key(&nonce).ok()?;
        let mut record = record.to_vec();
        let padded = opening.open_in_place(nonce, Aad::empty(), &mut record).ok()?;
        let end = padded.iter().rposition(|byte| *byte != 0)?;
        // The last record ends with a 2 and zeros.
        (padded[end] == 2).then(|| padded[..end].to_vec())
    }
}

struct OutputLength(usize);

impl hkdf::KeyType for OutputLength {
    fn len(&self) -> usize {
        self.0
    }
}

fn derive(salt: &[u8], secret: &[u8], info: &[u8], length: usize) -> Vec<u8> {
    let mut output = vec![0; length];
    let key = hkdf::Salt::new(hkdf::HKDF_SHA256, salt).extract(secret);
    key.expand(&[info], OutputLength(length)).unwrap().fill(&mut output).unwrap();
    output
}

/// A message that a browser got.
#[derive(Clone, Debug, PartialEq)]
pub struct PushMessage {
    /// Number of the browser.
    pub browser: u8,
    /// The header `ttl`.
    pub ttl: String,
    /// The header `urgency`.
    pub urgency: String,
    /// The header `topic`.
    pub topic: String,
    /// The claims of the verified signature.
    pub claims: Value,
    /// The public key of the sender, in base64url.
    pub sender: String,
    /// The decrypted JSON.
    pub body: Value,
}

struct PushState {
    origin: String,
    browsers: Mutex<BTreeMap<String, Option<Browser>>>,
    answers: Mutex<VecDeque<(u16, Option<u64>)>>,
    messages: watch::Sender<Vec<PushMessage>>,
}

/// A push service.
pub struct PushService {
    address: SocketAddr,
    shared: Arc<PushState>,
    stop: CancellationToken,
}

impl PushService {
    /// Starts it on a free port.
    pub async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(PushState {
            origin: format!("http://{address}"),
            browsers: Mutex::default(),
            answers: Mutex::default(),
            messages: watch::Sender::default(),
        });
        let stop = CancellationToken::new();
        let router = Router::new().route("/push/{browser}", post(take)).with_state(shared.clone());
        serve(listener, router, &stop);
        Self { address, shared, stop }
    }

    /// Returns its port.
    pub fn port(&self) -> u16 {
        self.address.port()
    }

    /// Subscribes one more browser.
    pub fn subscribe(&self) -> Browser {
        let mut browsers = self.shared.browsers.lock().unwrap();
        let number = u8::try_from(browsers.len() + 1).unwrap();
        let browser = Browser::new(number, &self.shared.origin);
        browsers.insert(format!("/push/{number}"), Some(browser.clone()));
        browser
    }

    /// Ends the subscription of a browser.
    pub fn unsubscribe(&self, browser: &Browser) {
        let path = format!("/push/{}", browser.number);
        self.shared.browsers.lock().unwrap().insert(path, None);
    }

    /// Queues this status, with a `retry-after`, for the next request without one.
    pub fn answer(&self, status: u16, retry_after: Option<u64>) {
        self.shared.answers.lock().unwrap().push_back((status, retry_after));
    }

    /// Returns all messages that browsers got, in order.
    pub fn messages(&self) -> Vec<PushMessage> {
        self.shared.messages.borrow().clone()
    }
}

impl Drop for PushService {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

/// Verifies `vapid t=TOKEN, k=KEY` (RFC 8292) with another library than the one that signs. Returns the claims and the key.
fn verify_vapid(authorization: &str, origin: &str) -> Option<(Value, String)> {
    let (token, key) = authorization.strip_prefix("vapid t=")?.split_once(", k=")?;
    let (signed, signature) = token.rsplit_once('.')?;
    let decode = |text: &str| BASE64URL_NOPAD.decode(text.as_bytes()).ok();
    let public = UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, decode(key)?);
    public.verify(signed.as_bytes(), &decode(signature)?).ok()?;
    let (head, claims) = signed.split_once('.')?;
    let head: Value = serde_json::from_slice(&decode(head)?).ok()?;
    let claims: Value = serde_json::from_slice(&decode(claims)?).ok()?;
    let good = head["alg"] == "ES256" && claims["aud"] == origin && claims["exp"].is_i64();
    good.then(|| (claims, key.to_owned()))
}

async fn take(
    State(shared): State<Arc<PushState>>,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    if let Some((status, after)) = shared.answers.lock().unwrap().pop_front() {
        let mut response = StatusCode::from_u16(status).unwrap().into_response();
        if let Some(after) = after {
            response.headers_mut().insert(header::RETRY_AFTER, after.into());
        }
        return response;
    }
    let browser = match shared.browsers.lock().unwrap().get(uri.path()) {
        Some(Some(browser)) => browser.clone(),
        Some(None) => return StatusCode::GONE.into_response(),
        None => return StatusCode::NOT_FOUND.into_response(),
    };
    let text = |name: &str| {
        headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default().to_owned()
    };
    let Some((claims, sender)) = verify_vapid(&text("authorization"), &shared.origin) else {
        return StatusCode::FORBIDDEN.into_response();
    };
    if body.len() > MAX_MESSAGE_BYTES {
        return StatusCode::PAYLOAD_TOO_LARGE.into_response();
    }
    let plain: Option<Value> =
        browser.decrypt(&body).and_then(|plain| serde_json::from_slice(&plain).ok());
    let (Some(body), "aes128gcm") = (plain, text("content-encoding").as_str()) else {
        return StatusCode::BAD_REQUEST.into_response();
    };
    let message = PushMessage {
        browser: browser.number,
        ttl: text("ttl"),
        urgency: text("urgency"),
        topic: text("topic"),
        claims,
        sender,
        body,
    };
    shared.messages.send_modify(|messages| messages.push(message));
    StatusCode::CREATED.into_response()
}
