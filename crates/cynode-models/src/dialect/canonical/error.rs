use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Why there is no answer, or no more of it, in words that fit every dialect.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{message}")]
pub struct ModelError {
    /// What kind of failure it is.
    pub kind: ModelErrorKind,
    /// What the caller is told.
    pub message: String,
    /// When it is worth trying again, if anybody said.
    pub retry_after: Option<Duration>,
    /// A finer word than the kind, as the provider or we put it.
    pub code: Option<String>,
}

/// The kinds of failure that a caller can tell apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ModelErrorKind {
    /// The request is wrong, or cannot be said in the provider's dialect.
    BadRequest,
    /// The key is missing or wrong.
    Unauthorized,
    /// The key is right, and may not do this.
    Forbidden,
    /// There is no such model.
    NotFound,
    /// The body has too many bytes.
    TooLarge,
    /// Too many requests; later ones will be served.
    RateLimited,
    /// The provider's account has nothing left to spend.
    QuotaExhausted,
    /// Our own budget has nothing left to spend.
    BudgetExhausted,
    /// The provider has too much to do.
    Overloaded,
    /// The provider failed, or said something that is not its dialect.
    Upstream,
    /// The provider took too long.
    Timeout,
    /// The provider cannot be reached.
    Unavailable,
    /// The provider will not work on this content.
    ContentRefused,
}

impl ModelErrorKind {
    /// Every kind.
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

/// The code of a prompt that does not fit the model. Agents look for it and make their conversation shorter.
pub(crate) const CONTEXT_LENGTH_CODE: &str = "context_length_exceeded";

impl ModelError {
    /// An error of `kind` that says `message`.
    pub fn new(kind: ModelErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), retry_after: None, code: None }
    }

    /// The same with a finer word.
    #[must_use]
    pub fn with_code(self, code: impl Into<String>) -> Self {
        Self { code: Some(code.into()), ..self }
    }

    /// The same with a time to wait.
    #[must_use]
    pub fn with_retry_after(self, after: Duration) -> Self {
        Self { retry_after: Some(after), ..self }
    }

    /// The caller's request is wrong.
    pub(crate) fn bad_request(message: impl Into<String>) -> Self {
        Self::new(ModelErrorKind::BadRequest, message)
    }

    /// The provider said something that cannot be understood.
    pub(crate) fn upstream_error(message: impl Into<String>) -> Self {
        Self::new(ModelErrorKind::Upstream, message)
    }

    /// The same, found at `place` of a larger value.
    pub(crate) fn with_context(mut self, place: impl std::fmt::Display) -> Self {
        self.message = format!("{place}: {}", self.message);
        self
    }

    /// The same mistake, made by the provider.
    pub(crate) fn into_upstream_error(self) -> Self {
        let message = format!("the provider's answer is not understood: {}", self.message);
        Self { kind: ModelErrorKind::Upstream, message, ..self }
    }
}
