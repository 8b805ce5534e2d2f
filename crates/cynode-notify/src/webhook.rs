//! Webhooks, by the Standard Webhooks scheme: id, time and body are signed together.

use data_encoding::BASE64;
use hmac::{Hmac, KeyInit, Mac};
use secrecy::{ExposeSecret, SecretSlice};
use serde_json::json;
use sha2::Sha256;
use time::{OffsetDateTime, format_description::well_known::Rfc3339};
use url::Url;

use crate::{
    DeliveryEgress, DeliveryError, DeliveryReceipt, NotificationMessage,
    egress::{DeliveryResponse, EgressClients, to_transport_error},
};

/// Prefix of an encoded secret.
const SECRET_PREFIX: &str = "whsec_";

/// Signing secret of a webhook.
#[derive(Clone, Debug)]
pub struct WebhookSecret(SecretSlice<u8>);

/// The text is not a valid webhook secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a webhook's secret is `whsec_` and 24 to 64 bytes in base64")]
pub struct WebhookSecretError;

impl WebhookSecret {
    /// Creates a secret from bytes; `None` if there are too few or too many.
    pub fn new(bytes: Vec<u8>) -> Option<Self> {
        (24..=64).contains(&bytes.len()).then(|| Self(bytes.into()))
    }

    /// Parses an encoded secret.
    pub fn parse_secret(text: &str) -> Result<Self, WebhookSecretError> {
        let bytes =
            text.strip_prefix(SECRET_PREFIX).and_then(|rest| BASE64.decode(rest.as_bytes()).ok());
        bytes.and_then(Self::new).ok_or(WebhookSecretError)
    }

    /// Returns the encoded secret.
    pub fn to_secret_text(&self) -> String {
        format!("{SECRET_PREFIX}{}", BASE64.encode(self.0.expose_secret()))
    }

    /// Signs a payload with its id and its time, as the specification says.
    pub fn sign_payload(&self, id: &str, seconds: i64, body: &str) -> Option<String> {
        let mut mac = Hmac::<Sha256>::new_from_slice(self.0.expose_secret()).ok()?;
        mac.update(format!("{id}.{seconds}.{body}").as_bytes());
        Some(format!("v1,{}", BASE64.encode(&mac.finalize().into_bytes())))
    }
}

/// Builds the body: the event, its time, and everything that a person would be shown.
pub(crate) fn build_payload(notice: &NotificationMessage) -> String {
    json!({
        "type": notice.kind,
        "timestamp": notice.at.format(&Rfc3339).unwrap_or_default(),
        "data": {
            "notification_id": notice.id,
            "title": notice.title,
            "text": notice.text,
            "exact": notice.exact,
            "links": notice.links,
            "about": notice.about,
        },
    })
    .to_string()
}

pub(crate) async fn send_webhook(
    ways: &EgressClients,
    url: &Url,
    secrets: &[WebhookSecret],
    notice: &NotificationMessage,
    reach: DeliveryEgress,
    now: OffsetDateTime,
) -> Result<DeliveryReceipt, DeliveryError> {
    let client = ways.client_for(url, reach)?;
    let (body, seconds) = (build_payload(notice), now.unix_timestamp());
    let signatures: Vec<_> = secrets
        .iter()
        .filter_map(|secret| secret.sign_payload(&notice.id, seconds, &body))
        .collect();
    if signatures.is_empty() {
        return Err(DeliveryError::permanent_error("the channel has no secret to sign with"));
    }
    let request = client
        .post(url.clone())
        .header("content-type", "application/json")
        .header("webhook-id", &notice.id)
        .header("webhook-timestamp", seconds.to_string())
        .header("webhook-signature", signatures.join(" "))
        .body(body);
    let response = request.send().await.map_err(|error| to_transport_error(&error))?;
    let answer = DeliveryResponse::read_response(response).await;
    match answer.status.as_u16() {
        200..=299 => Ok(answer.to_delivery_receipt()),
        410 => Err(DeliveryError { gone: true, ..answer.to_delivery_error(false) }),
        // A receiver that is being set up or moved may return any status: the delivery is retried, and redirects are not followed.
        _ => Err(answer.to_delivery_error(true)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of the specification's own libraries.
    #[test]
    fn a_signature_is_the_one_of_the_specification() {
        let secret = WebhookSecret::parse_secret("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").unwrap();
        let signed = secret.sign_payload(
            "msg_p5jXN8AQM9LWM0D4loKWxJek",
            1_614_265_330,
            r#"{"test": 2432232314}"#,
        );
        assert_eq!(signed.unwrap(), "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
        assert_eq!(secret.to_secret_text(), "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw");
    }

    #[test]
    fn a_secret_that_is_short_or_written_otherwise_is_none() {
        for text in [
            "",
            "whsec_",
            "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
            "whsec_AAAA",
            "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaS",
        ] {
            assert_eq!(WebhookSecret::parse_secret(text).err(), Some(WebhookSecretError), "{text}");
        }
    }
}
