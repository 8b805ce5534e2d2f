use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Error of a request or of a stream, in a form that fits every dialect.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{message}")]
pub struct ModelError {
    /// Kind of failure.
    pub kind: ModelErrorKind,
    /// Message for the caller.
    pub message: String,
    /// Time after which a retry is useful, if it is known.
    pub retry_after: Option<Duration>,
    /// Code that is more specific than the kind, set by the provider or by CyNode.
    pub code: Option<String>,
}

/// Kinds of failure that a caller can distinguish.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ModelErrorKind {
    /// The request is invalid, or the provider's dialect cannot express it.
    BadRequest,
    /// The API key is missing or invalid.
    Unauthorized,
    /// The API key is valid, but lacks the permission.
    Forbidden,
    /// The model does not exist.
    NotFound,
    /// The body is too large.
    TooLarge,
    /// Rate limit: too many requests. Later ones will be served.
    RateLimited,
    /// The quota of the provider's account is exhausted.
    QuotaExhausted,
    /// CyNode's own budget is exhausted.
    BudgetExhausted,
    /// The provider is overloaded.
    Overloaded,
    /// The provider failed, or its response is not valid in its dialect.
    Upstream,
    /// The provider did not respond in time.
    Timeout,
    /// The provider is unreachable.
    Unavailable,
    /// The provider refuses this content.
    ContentRefused,
}

impl ModelErrorKind {
    /// All kinds.
    pub const ALL: [Self; 13] = [
        Self::BadRequest,
        Self::Unauthorized,
        Self::Forbidden,
        Self::NotFound,
        Self::TooLarge,
        Self::RateLimited,
        Self::QuotaExhausted,
        Self::BudgetExhausted,
        Self::Overloaded,
        Self::Upstream,
        Self::Timeout,
        Self::Unavailable,
        Self::ContentRefused,
    ];
}

/// Code of a prompt that exceeds the context window. Agents react to it by shortening their conversation.
pub(crate) const CONTEXT_LENGTH_CODE: &str = "context_length_exceeded";

impl ModelError {
    /// Creates an error of `kind` with `message`.
    pub fn new(kind: ModelErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), retry_after: None, code: None }
    }

    /// Sets a more specific code.
    #[must_use]
    pub fn with_code(self, code: impl Into<String>) -> Self {
        Self { code: Some(code.into()), ..self }
    }

    /// Sets the time after which a retry is useful.
    #[must_use]
    pub fn with_retry_after(self, after: Duration) -> Self {
        Self { retry_after: Some(after), ..self }
    }

    /// Creates the error of an invalid request.
    pub(crate) fn bad_request(message: impl Into<String>) -> Self {
        Self::new(ModelErrorKind::BadRequest, message)
    }

    /// Creates the error of an invalid response of a provider.
    pub(crate) fn upstream_error(message: impl Into<String>) -> Self {
        Self::new(ModelErrorKind::Upstream, message)
    }

    /// Prefixes the message with the position `place` in the enclosing value.
    pub(crate) fn with_context(mut self, place: impl std::fmt::Display) -> Self {
        self.message = format!("{place}: {}", self.message);
        self
    }

    /// Turns an error about a request into the same error about a provider's response.
    pub(crate) fn into_upstream_error(self) -> Self {
        let message = format!("the provider's answer is not understood: {}", self.message);
        Self { kind: ModelErrorKind::Upstream, message, ..self }
    }
}
