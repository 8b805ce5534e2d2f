//! Errors on the wire: statuses, bodies, and error events of a stream.

use std::time::Duration;

use serde_json::{Value, json};

use super::{Dialect, fields::text_field};
use crate::dialect::canonical::{ModelError, ModelErrorKind};

/// Error as a client receives it, before any part of the response was sent.
#[derive(Clone, Debug, PartialEq)]
pub struct WireError {
    /// HTTP status.
    pub status: u16,
    /// Body of the response.
    pub body: Value,
    /// Value of `retry-after`, if waiting helps.
    pub retry_after: Option<Duration>,
    /// Value of `x-should-retry`, which the official clients obey. `None` leaves the decision to them.
    pub should_retry: Option<bool>,
}

/// Code that agents search for when a conversation exceeds the context window.
const CONTEXT_LENGTH_CODE: &str = crate::dialect::canonical::CONTEXT_LENGTH_CODE;
const PROMPT_TOO_LONG_MESSAGE: &str = "prompt is too long";

pub(super) fn encode_wire_error(dialect: Dialect, error: &ModelError) -> WireError {
    let body = match dialect {
        Dialect::Chat | Dialect::Responses => {
            json!({ "error": openai_error_object(dialect, error) })
        }
        Dialect::Messages => json!({ "type": "error", "error": anthropic_error_object(error) }),
    };
    let stop =
        matches!(error.kind, ModelErrorKind::BudgetExhausted | ModelErrorKind::QuotaExhausted);
    WireError {
        status: http_status(dialect, error.kind),
        body,
        retry_after: error.retry_after.filter(|_| !stop),
        should_retry: stop.then_some(false),
    }
}

/// Returns the HTTP status of each kind. For an exhausted quota or budget it is the status at which coding agents stop.
const fn http_status(dialect: Dialect, kind: ModelErrorKind) -> u16 {
    match kind {
        ModelErrorKind::BadRequest | ModelErrorKind::ContentRefused => 400,
        ModelErrorKind::Unauthorized => 401,
        ModelErrorKind::Forbidden => 403,
        ModelErrorKind::NotFound => 404,
        ModelErrorKind::TooLarge => 413,
        ModelErrorKind::RateLimited => 429,
        ModelErrorKind::QuotaExhausted | ModelErrorKind::BudgetExhausted => match dialect {
            Dialect::Chat | Dialect::Messages => 402,
            Dialect::Responses => 429,
        },
        ModelErrorKind::Overloaded => match dialect {
            Dialect::Chat | Dialect::Responses => 503,
            Dialect::Messages => 529,
        },
        ModelErrorKind::Upstream => 502,
        ModelErrorKind::Timeout => 504,
        ModelErrorKind::Unavailable => 503,
    }
}

/// Encodes the `error` object of both `OpenAI` dialects.
pub(super) fn openai_error_object(dialect: Dialect, error: &ModelError) -> Value {
    let kind = match error.kind {
        ModelErrorKind::BadRequest
        | ModelErrorKind::NotFound
        | ModelErrorKind::TooLarge
        | ModelErrorKind::ContentRefused
        | ModelErrorKind::Unauthorized => "invalid_request_error",
        ModelErrorKind::Forbidden => "permission_error",
        ModelErrorKind::RateLimited => "rate_limit_error",
        ModelErrorKind::QuotaExhausted | ModelErrorKind::BudgetExhausted => "insufficient_quota",
        ModelErrorKind::Overloaded
        | ModelErrorKind::Upstream
        | ModelErrorKind::Timeout
        | ModelErrorKind::Unavailable => "server_error",
    };
    json!({ "message": error.message, "type": kind, "param": null, "code": openai_error_code(dialect, error) })
}

/// Returns the specific code, if clients would not understand the kind alone.
pub(super) fn openai_error_code(dialect: Dialect, error: &ModelError) -> Option<String> {
    let code = match (error.kind, dialect) {
        // Clients of Responses recognize only this code.
        (ModelErrorKind::BudgetExhausted | ModelErrorKind::QuotaExhausted, Dialect::Responses) => {
            "insufficient_quota"
        }
        (kind, _) => match &error.code {
            Some(code) => code,
            None => default_error_code(kind)?,
        },
    };
    Some(code.to_owned())
}

/// Returns the code of each kind. It is a code that clients of `OpenAI` already know, where there is one.
const fn default_error_code(kind: ModelErrorKind) -> Option<&'static str> {
    match kind {
        ModelErrorKind::BadRequest => None,
        ModelErrorKind::Unauthorized => Some("invalid_api_key"),
        ModelErrorKind::Forbidden => Some("permission_denied"),
        ModelErrorKind::NotFound => Some("model_not_found"),
        ModelErrorKind::TooLarge => Some("request_too_large"),
        ModelErrorKind::RateLimited => Some("rate_limit_exceeded"),
        ModelErrorKind::QuotaExhausted => Some("insufficient_quota"),
        ModelErrorKind::BudgetExhausted => Some("budget_exhausted"),
        ModelErrorKind::Overloaded => Some("server_is_overloaded"),
        ModelErrorKind::Upstream => Some("server_error"),
        ModelErrorKind::Timeout => Some("upstream_timeout"),
        ModelErrorKind::Unavailable => Some("upstream_unavailable"),
        ModelErrorKind::ContentRefused => Some("content_policy_violation"),
    }
}

/// Encodes the `error` object of Messages.
pub(super) fn anthropic_error_object(error: &ModelError) -> Value {
    let kind = match error.kind {
        ModelErrorKind::BadRequest | ModelErrorKind::ContentRefused => "invalid_request_error",
        ModelErrorKind::Unauthorized => "authentication_error",
        ModelErrorKind::Forbidden => "permission_error",
        ModelErrorKind::NotFound => "not_found_error",
        ModelErrorKind::TooLarge => "request_too_large",
        ModelErrorKind::RateLimited => "rate_limit_error",
        ModelErrorKind::QuotaExhausted | ModelErrorKind::BudgetExhausted => "billing_error",
        ModelErrorKind::Overloaded => "overloaded_error",
        ModelErrorKind::Timeout => "timeout_error",
        ModelErrorKind::Upstream | ModelErrorKind::Unavailable => "api_error",
    };
    let too_long = error.code.as_deref() == Some(CONTEXT_LENGTH_CODE)
        && !error.message.to_ascii_lowercase().contains(PROMPT_TOO_LONG_MESSAGE);
    let message = if too_long {
        format!("{PROMPT_TOO_LONG_MESSAGE}: {}", error.message)
    } else {
        error.message.clone()
    };
    let mut object = json!({ "type": kind, "message": message });
    if let Some(code) = error.code.as_deref().or(default_error_code(error.kind)) {
        object["details"] = json!({ "error_code": code });
    }
    object
}

/// Decodes an error of Chat or Responses. A `status` of 0 is an error event of a stream.
pub(super) fn decode_openai_error(
    status: u16,
    body: &Value,
    retry_after: Option<Duration>,
) -> ModelError {
    let object = body.get("error").unwrap_or(body);
    // Some servers send a number, and some send the error as bare text.
    let code = match object.get("code") {
        Some(Value::String(code)) if !code.is_empty() => Some(code.clone()),
        _ => None,
    };
    // The type that llama.cpp sends.
    let too_long = text_field(object, "type") == "exceed_context_size_error";
    let code = code.or_else(|| too_long.then(|| CONTEXT_LENGTH_CODE.to_owned()));
    let message = object.as_str().unwrap_or_else(|| text_field(object, "message"));
    let kind = code
        .as_deref()
        .and_then(kind_of_code)
        .or_else(|| kind_of_openai_type(status, text_field(object, "type")))
        .unwrap_or_else(|| kind_of_status(status));
    build_model_error(kind, message, status, retry_after, code)
}

/// Decodes an error of Messages. A `status` of 0 is an error event of a stream.
pub(super) fn decode_anthropic_error(
    status: u16,
    body: &Value,
    retry_after: Option<Duration>,
) -> ModelError {
    let object = body.get("error").unwrap_or(body);
    let message = object.as_str().unwrap_or_else(|| text_field(object, "message"));
    let code = object.pointer("/details/error_code").and_then(Value::as_str).map(str::to_owned);
    let kind = code.as_deref().and_then(kind_of_code);
    let kind = kind.unwrap_or_else(|| match text_field(object, "type") {
        "invalid_request_error" if message.contains("credit balance is too low") => {
            ModelErrorKind::QuotaExhausted
        }
        "invalid_request_error" if status == 413 => ModelErrorKind::TooLarge,
        "invalid_request_error" => ModelErrorKind::BadRequest,
        "authentication_error" => ModelErrorKind::Unauthorized,
        "billing_error" => ModelErrorKind::QuotaExhausted,
        "permission_error" => ModelErrorKind::Forbidden,
        "not_found_error" => ModelErrorKind::NotFound,
        "request_too_large" => ModelErrorKind::TooLarge,
        "rate_limit_error" => ModelErrorKind::RateLimited,
        "timeout_error" => ModelErrorKind::Timeout,
        "overloaded_error" => ModelErrorKind::Overloaded,
        _ => kind_of_status(status),
    });
    let too_long = kind == ModelErrorKind::BadRequest && message.contains(PROMPT_TOO_LONG_MESSAGE);
    let code = code.or_else(|| too_long.then(|| CONTEXT_LENGTH_CODE.to_owned()));
    build_model_error(kind, message, status, retry_after, code)
}

fn build_model_error(
    kind: ModelErrorKind,
    message: &str,
    status: u16,
    retry_after: Option<Duration>,
    code: Option<String>,
) -> ModelError {
    let message = match (message, status) {
        ("", 0) => "the provider failed and did not say why".to_owned(),
        ("", status) => format!("the provider answered with status {status}"),
        (message, _) => message.to_owned(),
    };
    ModelError { kind, message, retry_after, code }
}

fn kind_of_code(code: &str) -> Option<ModelErrorKind> {
    Some(match code {
        CONTEXT_LENGTH_CODE | "invalid_prompt" | "bio_policy" => ModelErrorKind::BadRequest,
        "billing_not_active"
        | "billing_hard_limit_reached"
        | "enforced_spend_limit_reached"
        | "usage_not_included"
        | "budget_exhausted" => ModelErrorKind::QuotaExhausted,
        "content_filter" | "content_policy_violation" | "cyber_policy" => {
            ModelErrorKind::ContentRefused
        }
        "rate_limit_error" => ModelErrorKind::RateLimited,
        "slow_down" | "overloaded_error" => ModelErrorKind::Overloaded,
        code => {
            ModelErrorKind::ALL.into_iter().find(|kind| default_error_code(*kind) == Some(code))?
        }
    })
}

fn kind_of_openai_type(status: u16, kind: &str) -> Option<ModelErrorKind> {
    match kind {
        // This type covers half of all errors. If there is a status, the status is more specific.
        "invalid_request_error" if status == 0 => Some(ModelErrorKind::BadRequest),
        "insufficient_quota" => Some(ModelErrorKind::QuotaExhausted),
        "tokens" | "requests" | "rate_limit_error" => Some(ModelErrorKind::RateLimited),
        "authentication_error" => Some(ModelErrorKind::Unauthorized),
        _ => None,
    }
}

const fn kind_of_status(status: u16) -> ModelErrorKind {
    match status {
        401 => ModelErrorKind::Unauthorized,
        402 => ModelErrorKind::QuotaExhausted,
        403 => ModelErrorKind::Forbidden,
        404 => ModelErrorKind::NotFound,
        408 | 504 => ModelErrorKind::Timeout,
        413 => ModelErrorKind::TooLarge,
        429 => ModelErrorKind::RateLimited,
        503 => ModelErrorKind::Unavailable,
        529 => ModelErrorKind::Overloaded,
        400..=499 => ModelErrorKind::BadRequest,
        _ => ModelErrorKind::Upstream,
    }
}
