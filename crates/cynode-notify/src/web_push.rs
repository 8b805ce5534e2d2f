//! Web push: messages to browsers through their push services (RFC 8030). The message is encrypted for the browser, so
//! that the push service cannot read it (RFC 8291). The request is signed with the key of the installation (VAPID,
//! RFC 8292).

use std::{fmt, time::Duration};

use data_encoding::BASE64URL_NOPAD;
use p256::{
    PublicKey,
    ecdsa::{Signature, SigningKey, signature::Signer},
    elliptic_curve::sec1::ToEncodedPoint,
};
use serde_json::json;
use time::OffsetDateTime;
use url::Url;
use web_push_native::Auth;

use crate::{
    DeliveryEgress, DeliveryError, DeliveryReceipt, NotificationMessage,
    egress::{DeliveryResponse, EgressClients, to_transport_error},
    text,
};

/// Maximum size of the text. With everything else the message stays below the 4096 bytes that every push service takes.
const MAX_TEXT_BYTES: usize = 1000;

/// How long a push service stores a message for a browser that is offline.
const MESSAGE_TTL: Duration = Duration::from_hours(24);

/// Lifetime of a signature. Push services accept at most a day.
const SIGNATURE_TTL: Duration = Duration::from_hours(12);

/// Size of a public key: an uncompressed point.
const PUBLIC_KEY_BYTES: usize = 65;

/// Maximum number of characters of a topic.
const MAX_TOPIC_CHARS: usize = 32;

/// Key that identifies an installation to push services. A subscription accepts messages that are signed with one key only.
#[derive(Clone)]
pub struct VapidKey(SigningKey);

impl fmt::Debug for VapidKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("VapidKey(…)")
    }
}

impl VapidKey {
    /// Creates the key from the 32 bytes of its scalar; `None` if they are no scalar of the curve.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        (bytes.len() == 32).then(|| SigningKey::from_slice(bytes).ok()).flatten().map(Self)
    }

    /// Returns the public key as browsers take it: an uncompressed point in base64url.
    pub fn encode_public_key(&self) -> String {
        BASE64URL_NOPAD.encode(self.0.verifying_key().to_encoded_point(false).as_bytes())
    }

    /// Returns the header that identifies the installation to the push service of an endpoint.
    fn sign_request(&self, endpoint: &Url, subject: &str, now: OffsetDateTime) -> String {
        let header = BASE64URL_NOPAD.encode(br#"{"typ":"JWT","alg":"ES256"}"#);
        let claims = json!({
            "aud": endpoint.origin().ascii_serialization(),
            "exp": (now + SIGNATURE_TTL).unix_timestamp(),
            "sub": subject,
        });
        let signed = format!("{header}.{}", BASE64URL_NOPAD.encode(claims.to_string().as_bytes()));
        let signature: Signature = self.0.sign(signed.as_bytes());
        let signature = BASE64URL_NOPAD.encode(&signature.to_bytes());
        format!("vapid t={signed}.{signature}, k={}", self.encode_public_key())
    }
}

/// Keys of a browser's subscription. Messages are encrypted with them.
#[derive(Clone)]
pub struct BrowserKeys {
    public_key: PublicKey,
    auth: [u8; 16],
}

impl fmt::Debug for BrowserKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("BrowserKeys(…)")
    }
}

/// The texts are not the keys of a subscription.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "a subscription has the keys `p256dh`, an uncompressed point of P-256, and `auth`, 16 bytes, in base64url"
)]
pub struct BrowserKeysError;

impl BrowserKeys {
    /// Parses the keys as a browser gives them, in base64url.
    pub fn parse_keys(p256dh: &str, auth: &str) -> Result<Self, BrowserKeysError> {
        let decode = |text: &str| BASE64URL_NOPAD.decode(text.as_bytes());
        let point = decode(p256dh).map_err(|_| BrowserKeysError)?;
        let auth = decode(auth).map_err(|_| BrowserKeysError)?;
        if point.len() != PUBLIC_KEY_BYTES {
            return Err(BrowserKeysError);
        }
        let public_key = PublicKey::from_sec1_bytes(&point).map_err(|_| BrowserKeysError)?;
        let auth: [u8; 16] = auth.try_into().map_err(|_| BrowserKeysError)?;
        Ok(Self { public_key, auth })
    }

    /// Parses the stored form.
    pub fn parse_secret(text: &str) -> Result<Self, BrowserKeysError> {
        let (p256dh, auth) = text.split_once('.').ok_or(BrowserKeysError)?;
        Self::parse_keys(p256dh, auth)
    }

    /// Returns the form that is stored, encrypted.
    pub fn to_secret_text(&self) -> String {
        let point = self.public_key.to_encoded_point(false);
        let (p256dh, auth) = (point.as_bytes(), &self.auth);
        format!("{}.{}", BASE64URL_NOPAD.encode(p256dh), BASE64URL_NOPAD.encode(auth))
    }

    fn encrypt_message(&self, message: String) -> Result<Vec<u8>, DeliveryError> {
        web_push_native::encrypt(message.into_bytes(), &self.public_key, &Auth::from(self.auth))
            .map_err(|_| DeliveryError::permanent_error("the message cannot be encrypted"))
    }
}

/// Subscription of a browser, with what identifies the installation to its push service.
#[derive(Clone, Debug)]
pub struct PushTarget {
    /// URL of the subscription at the push service.
    pub endpoint: Url,
    /// Keys of the subscription.
    pub keys: BrowserKeys,
    /// Key of the installation.
    pub vapid: VapidKey,
    /// Address by which the push service can reach the people of the installation: `https:` or `mailto:`.
    pub subject: String,
}

/// Builds the message. It has a title, a short text and a page to open, and no link that answers: the page asks who it is.
fn build_message(notice: &NotificationMessage) -> String {
    let text = match text::truncate_to_bytes(&notice.text, MAX_TEXT_BYTES) {
        Some(part) => format!("{part}…"),
        None => notice.text.clone(),
    };
    json!({
        "id": notice.id,
        "kind": notice.kind,
        "title": text::to_single_line(&notice.title),
        "text": text,
        "path": notice.path,
        "asks": notice.exact.is_some(),
    })
    .to_string()
}

/// Returns the topic of a message: a later message of the same topic replaces one that is not delivered yet.
fn message_topic(id: &str) -> String {
    let own = id.rsplit('_').next().unwrap_or(id);
    own.chars().filter(char::is_ascii_alphanumeric).take(MAX_TOPIC_CHARS).collect()
}

pub(crate) async fn send_web_push(
    ways: &EgressClients,
    target: &PushTarget,
    notice: &NotificationMessage,
    reach: DeliveryEgress,
    now: OffsetDateTime,
) -> Result<DeliveryReceipt, DeliveryError> {
    let client = ways.client_for(&target.endpoint, reach)?;
    let body = target.keys.encrypt_message(build_message(notice))?;
    let request = client
        .post(target.endpoint.clone())
        .header("content-type", "application/octet-stream")
        .header("content-encoding", "aes128gcm")
        .header("ttl", MESSAGE_TTL.as_secs().to_string())
        .header("urgency", if notice.exact.is_some() { "high" } else { "normal" })
        .header("topic", message_topic(&notice.id))
        .header("authorization", target.vapid.sign_request(&target.endpoint, &target.subject, now))
        .body(body);
    let response = request.send().await.map_err(|error| to_transport_error(&error))?;
    let answer = DeliveryResponse::read_response(response).await;
    match answer.status.as_u16() {
        200..=299 => Ok(answer.to_delivery_receipt()),
        // The subscription has ended.
        404 | 410 => Err(DeliveryError { gone: true, ..answer.to_delivery_error(false) }),
        // These statuses are permanent rejections.
        400 | 401 | 403 | 413 => Err(answer.to_delivery_error(false)),
        _ => Err(answer.to_delivery_error(true)),
    }
}

#[cfg(test)]
mod tests {
    use p256::SecretKey;
    use time::macros::datetime;

    use super::*;

    const P256DH: &str =
        "BCVxsr7N_eNgVRqvHtD0zTZsEc6-VV-JvLexhqUzORcxaOzi6-AYWXvTBHm4bjyPjs7Vd8pZGH6SRpkNtoIAiw4";

    const AUTH: &str = "BTBZMqHH6r4Tts7J_aSIgg";

    fn browser_secret() -> SecretKey {
        let bytes = BASE64URL_NOPAD.decode(b"q1dXpw3UpT5VOmu_cf_v6ih07Aems3njxI-JWgLcM94").unwrap();
        SecretKey::from_slice(&bytes).unwrap()
    }

    fn decrypt(message: Vec<u8>) -> String {
        let auth: [u8; 16] = BASE64URL_NOPAD.decode(AUTH.as_bytes()).unwrap().try_into().unwrap();
        let text = web_push_native::decrypt(message, &browser_secret(), &Auth::from(auth)).unwrap();
        String::from_utf8(text).unwrap()
    }

    fn notice(text: &str) -> NotificationMessage {
        NotificationMessage {
            id: "ntf_0192d5c8b6f07cc1a1a3c2b4d5e6f708".into(),
            kind: "approval.requested".into(),
            title: "May an agent call git.push?\r\nX-Evil: 1".into(),
            text: text.into(),
            exact: Some("command: rm -rf build".into()),
            links: Vec::new(),
            path: "/?item=apr_1".into(),
            about: json!({ "secret": "of nobody" }),
            at: datetime!(2026-11-15 12:00 UTC),
        }
    }

    /// The example of RFC 8291, section 5 and appendix A.
    #[test]
    fn the_example_of_the_standard_is_read_and_what_we_encrypt_is_read_with_its_keys() {
        let example = BASE64URL_NOPAD
            .decode(
                b"DGv6ra1nlYgDCS1FRnbzlwAAEABBBP4z9KsN6nGRTbVYI_c7VJSPQTBtkgcy27mlmlMoZIIgDll6e3vCYLocInmYWAmS6TlzAC8wEqKK6PBru3jl7A\
                _yl95bQpu6cVPTpK4Mqgkf1CXztLVBSt2Ks3oZwbuwXPXLWyouBWLVWGNWQexSgSxsj_Qulcy4a-fN",
            )
            .unwrap();
        assert_eq!(decrypt(example), "When I grow up, I want to be a watermelon");
        let keys = BrowserKeys::parse_keys(P256DH, AUTH).unwrap();
        let point = browser_secret().public_key();
        assert_eq!(keys.public_key, point);
        let sealed = keys.encrypt_message("Größe".to_owned()).unwrap();
        assert_ne!(
            sealed,
            keys.encrypt_message("Größe".to_owned()).unwrap(),
            "each has its own key"
        );
        assert_eq!(decrypt(sealed), "Größe");
    }

    #[test]
    fn keys_come_back_as_they_were_and_others_are_refused() {
        let keys = BrowserKeys::parse_keys(P256DH, AUTH).unwrap();
        assert_eq!(keys.to_secret_text(), format!("{P256DH}.{AUTH}"));
        let again = BrowserKeys::parse_secret(&keys.to_secret_text()).unwrap();
        assert_eq!(again.to_secret_text(), keys.to_secret_text());
        assert_eq!(format!("{keys:?}"), "BrowserKeys(…)");
        let off_the_curve = format!("{}A", &P256DH[..86]);
        let point = browser_secret().public_key().to_encoded_point(true);
        let compressed = BASE64URL_NOPAD.encode(point.as_bytes());
        for (p256dh, auth) in [
            ("", AUTH),
            (P256DH, ""),
            (P256DH, "BTBZMqHH6r4Tts7J_aSI"),
            (P256DH, "BTBZMqHH6r4Tts7J_aSIgg=="),
            (off_the_curve.as_str(), AUTH),
            (compressed.as_str(), AUTH),
            (AUTH, P256DH),
        ] {
            let parsed = BrowserKeys::parse_keys(p256dh, auth);
            assert_eq!(parsed.err(), Some(BrowserKeysError), "{p256dh} {auth}");
        }
        assert_eq!(BrowserKeys::parse_secret(P256DH).err(), Some(BrowserKeysError));
    }

    #[test]
    fn a_message_has_what_is_shown_and_a_page_and_no_more() {
        insta::assert_snapshot!(build_message(&notice("Asked by an agent.")), @r#"{"id":"ntf_0192d5c8b6f07cc1a1a3c2b4d5e6f708","kind":"approval.requested","title":"May an agent call git.push? X-Evil: 1","text":"Asked by an agent.","path":"/?item=apr_1","asks":true}"#);
    }

    #[test]
    fn the_longest_message_fits_into_what_every_push_service_takes() {
        let keys = BrowserKeys::parse_keys(P256DH, AUTH).unwrap();
        for text in ["\"".repeat(9000), "é\n".repeat(9000), "\\".repeat(9000)] {
            let long = NotificationMessage { title: text.clone(), ..notice(&text) };
            let sealed = keys.encrypt_message(build_message(&long)).unwrap();
            assert!(sealed.len() <= 4096, "{}", sealed.len());
        }
    }

    #[test]
    fn a_key_is_made_of_a_scalar_only() {
        assert!(VapidKey::from_bytes(&[0; 32]).is_none());
        assert!(VapidKey::from_bytes(&[255; 32]).is_none());
        assert!(VapidKey::from_bytes(&[7; 31]).is_none());
        let key = VapidKey::from_bytes(&[7; 32]).unwrap();
        let public = BASE64URL_NOPAD.decode(key.encode_public_key().as_bytes()).unwrap();
        assert_eq!((public.len(), public[0]), (PUBLIC_KEY_BYTES, 4));
        assert_eq!(format!("{key:?}"), "VapidKey(…)");
    }

    #[test]
    fn a_topic_has_the_letters_that_push_services_take() {
        assert_eq!(message_topic(&notice("").id), "0192d5c8b6f07cc1a1a3c2b4d5e6f708");
        assert_eq!(message_topic("ntf_a/b\r\nc"), "abc");
    }
}
