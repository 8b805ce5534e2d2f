//! Webhooks, by the scheme of Standard Webhooks: the id, the time and the body are signed together.

use data_encoding::BASE64;
use hmac::{Hmac, KeyInit, Mac};
use secrecy::{ExposeSecret, SecretSlice};
use serde_json::json;
use sha2::Sha256;
use time::{OffsetDateTime, format_description::well_known::Rfc3339};
use url::Url;

use crate::{
    Failed, Notice, Reach, Sent,
    reach::{Answer, Ways, unanswered},
};

/// What a secret begins with in writing.
const PREFIX: &str = "whsec_";

/// What the receiver of a webhook knows us by.
#[derive(Clone, Debug)]
pub struct WebhookSecret(SecretSlice<u8>);

/// A text that is no secret of a webhook.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a webhook's secret is `whsec_` and 24 to 64 bytes in base64")]
pub struct SecretError;

impl WebhookSecret {
    /// The secret of these bytes; `None` when there are too few or too many.
    pub fn new(bytes: Vec<u8>) -> Option<Self> {
        (24..=64).contains(&bytes.len()).then(|| Self(bytes.into()))
    }

    /// Reads a secret as it is written.
    pub fn read(text: &str) -> Result<Self, SecretError> {
        let bytes = text.strip_prefix(PREFIX).and_then(|rest| BASE64.decode(rest.as_bytes()).ok());
        bytes.and_then(Self::new).ok_or(SecretError)
    }

    /// The secret as it is written.
    pub fn written(&self) -> String {
        format!("{PREFIX}{}", BASE64.encode(self.0.expose_secret()))
    }

    fn sign(&self, id: &str, seconds: i64, body: &str) -> Option<String> {
        let mut mac = Hmac::<Sha256>::new_from_slice(self.0.expose_secret()).ok()?;
        mac.update(format!("{id}.{seconds}.{body}").as_bytes());
        Some(format!("v1,{}", BASE64.encode(&mac.finalize().into_bytes())))
    }
}

/// The body: what happened, when, and everything a person would be shown.
pub(crate) fn body(notice: &Notice) -> String {
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

pub(crate) async fn send(
    ways: &Ways,
    url: &Url,
    secrets: &[WebhookSecret],
    notice: &Notice,
    reach: Reach,
    now: OffsetDateTime,
) -> Result<Sent, Failed> {
    let client = ways.to(url, reach)?;
    let (body, seconds) = (body(notice), now.unix_timestamp());
    let signatures: Vec<_> =
        secrets.iter().filter_map(|secret| secret.sign(&notice.id, seconds, &body)).collect();
    if signatures.is_empty() {
        return Err(Failed::lasting("the channel has no secret to sign with"));
    }
    let request = client
        .post(url.clone())
        .header("content-type", "application/json")
        .header("webhook-id", &notice.id)
        .header("webhook-timestamp", seconds.to_string())
        .header("webhook-signature", signatures.join(" "))
        .body(body);
    let response = request.send().await.map_err(|error| unanswered(&error))?;
    let answer = Answer::read(response).await;
    match answer.status.as_u16() {
        200..=299 => Ok(answer.sent()),
        410 => Err(Failed { gone: true, ..answer.failed(false) }),
        // A receiver that is being set up or moved answers anything; it is asked again, and never followed.
        _ => Err(answer.failed(true)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of the specification's own libraries.
    #[test]
    fn a_signature_is_the_one_of_the_specification() {
        let secret = WebhookSecret::read("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").unwrap();
        let signed =
            secret.sign("msg_p5jXN8AQM9LWM0D4loKWxJek", 1_614_265_330, r#"{"test": 2432232314}"#);
        assert_eq!(signed.unwrap(), "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
        assert_eq!(secret.written(), "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw");
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
            assert_eq!(WebhookSecret::read(text).err(), Some(SecretError), "{text}");
        }
    }
}
