//! Webhooks, signed by the Standard Webhooks scheme: id, time and body are signed together.

use cynode_notify::WebhookSecret;
use reqwest::Client;
use secrecy::{ExposeSecret, SecretString};
use serde_json::json;
use time::{OffsetDateTime, format_description::well_known::Rfc3339};
use url::Url;

use crate::{ExportBatch, ExportError};

pub(crate) async fn send_batch(
    client: &Client,
    url: &Url,
    secret: &SecretString,
    batch: &ExportBatch,
    now: OffsetDateTime,
) -> Result<(), ExportError> {
    let secret = WebhookSecret::parse_secret(secret.expose_secret())
        .map_err(|error| ExportError::new(error.to_string()))?;
    let (id, seconds) = (batch.batch_id(), now.unix_timestamp());
    let events: Vec<_> = batch.to_events().into_iter().map(|event| event.body).collect();
    let body = json!({
        "type": "audit.batch",
        "timestamp": now.format(&Rfc3339).unwrap_or_default(),
        "data": { "events": events },
    })
    .to_string();
    let signature = secret
        .sign_payload(&id, seconds, &body)
        .ok_or_else(|| ExportError::new("the batch cannot be signed"))?;
    let request = client
        .post(url.clone())
        .header("content-type", "application/json")
        .header("webhook-id", id)
        .header("webhook-timestamp", seconds.to_string())
        .header("webhook-signature", signature)
        .body(body);
    // The URL may hold a secret, so it is not in the error.
    let answer = request.send().await.map_err(|error| {
        ExportError::new(if error.is_timeout() {
            "there was no answer in time"
        } else {
            "there was no connection"
        })
    })?;
    match answer.status() {
        status if status.is_success() => Ok(()),
        status => Err(ExportError::new(format!("the answer was {}", status.as_u16()))),
    }
}
