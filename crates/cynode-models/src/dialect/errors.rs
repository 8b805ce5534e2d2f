//! Errors on the wire: statuses, bodies, and the forms in the middle of a stream.

use std::time::Duration;

use serde_json::{Value, json};

use super::{Dialect, fields::word};
use crate::talk::{Kind, ModelError};

/// An error as a client gets it, before anything has been answered.
#[derive(Clone, Debug, PartialEq)]
pub struct WireError {
    /// The HTTP status.
    pub status: u16,
    /// The body.
    pub body: Value,
    /// For `retry-after`, where waiting helps.
    pub retry_after: Option<Duration>,
    /// For `x-should-retry`, which the official clients obey; `None` leaves it to them.
    pub should_retry: Option<bool>,
}

/// What agents look for when a conversation has become too long.
const CONTEXT_LENGTH: &str = crate::talk::CONTEXT_LENGTH;
const PROMPT_TOO_LONG: &str = "prompt is too long";

pub(super) fn write(dialect: Dialect, error: &ModelError) -> WireError {
    let body = match dialect {
        Dialect::Chat | Dialect::Responses => json!({ "error": openai_object(dialect, error) }),
        Dialect::Messages => json!({ "type": "error", "error": anthropic_object(error) }),
    };
    let stop = matches!(error.kind, Kind::BudgetExhausted | Kind::QuotaExhausted);
    WireError {
        status: status(dialect, error.kind),
        body,
        retry_after: error.retry_after.filter(|_| !stop),
        should_retry: stop.then_some(false),
    }
}

/// The status of each kind. The two ways of having nothing left to spend are those at which coding agents stop.
const fn status(dialect: Dialect, kind: Kind) -> u16 {
    match kind {
        Kind::BadRequest | Kind::ContentRefused => 400,
        Kind::Unauthorized => 401,
        Kind::Forbidden => 403,
        Kind::NotFound => 404,
        Kind::TooLarge => 413,
        Kind::RateLimited => 429,
        Kind::QuotaExhausted | Kind::BudgetExhausted => match dialect {
            Dialect::Chat | Dialect::Messages => 402,
            Dialect::Responses => 429,
        },
        Kind::Overloaded => match dialect {
            Dialect::Chat | Dialect::Responses => 503,
            Dialect::Messages => 529,
        },
        Kind::Upstream => 502,
        Kind::Timeout => 504,
        Kind::Unavailable => 503,
    }
}

/// The `error` object of both `OpenAI` dialects.
pub(super) fn openai_object(dialect: Dialect, error: &ModelError) -> Value {
    let kind = match error.kind {
        Kind::BadRequest
        | Kind::NotFound
        | Kind::TooLarge
        | Kind::ContentRefused
        | Kind::Unauthorized => "invalid_request_error",
        Kind::Forbidden => "permission_error",
        Kind::RateLimited => "rate_limit_error",
        Kind::QuotaExhausted | Kind::BudgetExhausted => "insufficient_quota",
        Kind::Overloaded | Kind::Upstream | Kind::Timeout | Kind::Unavailable => "server_error",
    };
    json!({ "message": error.message, "type": kind, "param": null, "code": openai_code(dialect, error) })
}

/// The finer word, where the kind alone would not be understood.
pub(super) fn openai_code(dialect: Dialect, error: &ModelError) -> Option<String> {
    let code = match (error.kind, dialect) {
        // Clients of Responses look for this one and for no other.
        (Kind::BudgetExhausted | Kind::QuotaExhausted, Dialect::Responses) => "insufficient_quota",
        (kind, _) => match &error.code {
            Some(code) => code,
            None => own_code(kind)?,
        },
    };
    Some(code.to_owned())
}

/// Our word for each kind. Where clients of `OpenAI` know one already, it is theirs.
const fn own_code(kind: Kind) -> Option<&'static str> {
    match kind {
        Kind::BadRequest => None,
        Kind::Unauthorized => Some("invalid_api_key"),
        Kind::Forbidden => Some("permission_denied"),
        Kind::NotFound => Some("model_not_found"),
        Kind::TooLarge => Some("request_too_large"),
        Kind::RateLimited => Some("rate_limit_exceeded"),
        Kind::QuotaExhausted => Some("insufficient_quota"),
        Kind::BudgetExhausted => Some("budget_exhausted"),
        Kind::Overloaded => Some("server_is_overloaded"),
        Kind::Upstream => Some("server_error"),
        Kind::Timeout => Some("upstream_timeout"),
        Kind::Unavailable => Some("upstream_unavailable"),
        Kind::ContentRefused => Some("content_policy_violation"),
    }
}

/// The `error` object of Messages.
pub(super) fn anthropic_object(error: &ModelError) -> Value {
    let kind = match error.kind {
        Kind::BadRequest | Kind::ContentRefused => "invalid_request_error",
        Kind::Unauthorized => "authentication_error",
        Kind::Forbidden => "permission_error",
        Kind::NotFound => "not_found_error",
        Kind::TooLarge => "request_too_large",
        Kind::RateLimited => "rate_limit_error",
        Kind::QuotaExhausted | Kind::BudgetExhausted => "billing_error",
        Kind::Overloaded => "overloaded_error",
        Kind::Timeout => "timeout_error",
        Kind::Upstream | Kind::Unavailable => "api_error",
    };
    let too_long = error.code.as_deref() == Some(CONTEXT_LENGTH)
        && !error.message.to_ascii_lowercase().contains(PROMPT_TOO_LONG);
    let message = if too_long {
        format!("{PROMPT_TOO_LONG}: {}", error.message)
    } else {
        error.message.clone()
    };
    let mut object = json!({ "type": kind, "message": message });
    if let Some(code) = error.code.as_deref().or(own_code(error.kind)) {
        object["details"] = json!({ "error_code": code });
    }
    object
}

/// What an error of Chat or Responses means. A `status` of 0 is an error in the middle of a stream.
pub(super) fn read_openai(status: u16, body: &Value, retry_after: Option<Duration>) -> ModelError {
    let object = body.get("error").unwrap_or(body);
    // Some servers give a number, and some give the error as bare text.
    let code = match object.get("code") {
        Some(Value::String(code)) if !code.is_empty() => Some(code.clone()),
        _ => None,
    };
    // llama.cpp's word for it.
    let too_long = word(object, "type") == "exceed_context_size_error";
    let code = code.or_else(|| too_long.then(|| CONTEXT_LENGTH.to_owned()));
    let message = object.as_str().unwrap_or_else(|| word(object, "message"));
    let kind = code
        .as_deref()
        .and_then(kind_of_code)
        .or_else(|| kind_of_openai_type(status, word(object, "type")))
        .unwrap_or_else(|| kind_of_status(status));
    said(kind, message, status, retry_after, code)
}

/// What an error of Messages means. A `status` of 0 is an error in the middle of a stream.
pub(super) fn read_anthropic(
    status: u16,
    body: &Value,
    retry_after: Option<Duration>,
) -> ModelError {
    let object = body.get("error").unwrap_or(body);
    let message = object.as_str().unwrap_or_else(|| word(object, "message"));
    let code = object.pointer("/details/error_code").and_then(Value::as_str).map(str::to_owned);
    let kind = code.as_deref().and_then(kind_of_code);
    let kind = kind.unwrap_or_else(|| match word(object, "type") {
        "invalid_request_error" if message.contains("credit balance is too low") => {
            Kind::QuotaExhausted
        }
        "invalid_request_error" if status == 413 => Kind::TooLarge,
        "invalid_request_error" => Kind::BadRequest,
        "authentication_error" => Kind::Unauthorized,
        "billing_error" => Kind::QuotaExhausted,
        "permission_error" => Kind::Forbidden,
        "not_found_error" => Kind::NotFound,
        "request_too_large" => Kind::TooLarge,
        "rate_limit_error" => Kind::RateLimited,
        "timeout_error" => Kind::Timeout,
        "overloaded_error" => Kind::Overloaded,
        _ => kind_of_status(status),
    });
    let too_long = kind == Kind::BadRequest && message.contains(PROMPT_TOO_LONG);
    let code = code.or_else(|| too_long.then(|| CONTEXT_LENGTH.to_owned()));
    said(kind, message, status, retry_after, code)
}

fn said(
    kind: Kind,
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

fn kind_of_code(code: &str) -> Option<Kind> {
    Some(match code {
        CONTEXT_LENGTH | "invalid_prompt" | "bio_policy" => Kind::BadRequest,
        "billing_not_active"
        | "billing_hard_limit_reached"
        | "enforced_spend_limit_reached"
        | "usage_not_included"
        | "budget_exhausted" => Kind::QuotaExhausted,
        "content_filter" | "content_policy_violation" | "cyber_policy" => Kind::ContentRefused,
        "rate_limit_error" => Kind::RateLimited,
        "slow_down" | "overloaded_error" => Kind::Overloaded,
        code => Kind::ALL.into_iter().find(|kind| own_code(*kind) == Some(code))?,
    })
}

fn kind_of_openai_type(status: u16, kind: &str) -> Option<Kind> {
    match kind {
        // A word for half of all errors: where there is a status, that says more.
        "invalid_request_error" if status == 0 => Some(Kind::BadRequest),
        "insufficient_quota" => Some(Kind::QuotaExhausted),
        "tokens" | "requests" | "rate_limit_error" => Some(Kind::RateLimited),
        "authentication_error" => Some(Kind::Unauthorized),
        _ => None,
    }
}

const fn kind_of_status(status: u16) -> Kind {
    match status {
        401 => Kind::Unauthorized,
        402 => Kind::QuotaExhausted,
        403 => Kind::Forbidden,
        404 => Kind::NotFound,
        408 | 504 => Kind::Timeout,
        413 => Kind::TooLarge,
        429 => Kind::RateLimited,
        503 => Kind::Unavailable,
        529 => Kind::Overloaded,
        400..=499 => Kind::BadRequest,
        _ => Kind::Upstream,
    }
}
