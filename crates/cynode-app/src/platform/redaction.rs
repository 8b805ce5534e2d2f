//! Redaction: removes secrets that are known or recognised from values before they are stored.

use cynode_core::names::{Prose, TextError};
use serde_json::Value;

use crate::{App, Error, platform::operation};

/// Redacts a value. Without the secrets of the installation nothing can be redacted, and the value is rejected.
#[operation]
pub async fn redact_value(app: &App, value: &mut Value) -> Result<(), Error> {
    app.redactor().await?.redact_json(value);
    Ok(())
}

/// Redacts a text.
#[operation]
pub async fn redact_text(app: &App, text: String) -> Result<String, Error> {
    let mut value = Value::String(text);
    redact_value(app, &mut value).await?;
    Ok(match value {
        Value::String(text) => text,
        _ => String::new(),
    })
}

/// Redacts texts of a request. It takes a connection of its own, so the caller must not have an open transaction.
#[tracing::instrument(name = "app.redaction.redact_prose", skip_all)]
#[operation]
pub async fn redact_prose(app: &App, texts: Vec<&mut Prose>) -> Result<(), Error> {
    // A process without models has no provider secrets.
    if texts.is_empty() || app.inference_runtime().is_err() {
        return Ok(());
    }
    let redactor = app.redactor().await?;
    for text in texts {
        let mut value = Value::String(text.to_string());
        if redactor.redact_json(&mut value).is_empty() {
            continue;
        }
        let Value::String(left) = value else { continue };
        *text = left.try_into().map_err(|error: TextError| {
            Error::Invalid(format!("with marks in place of its secrets: {error}"))
        })?;
    }
    Ok(())
}
