//! Errors of upstream servers.

use std::io;
use std::time::Duration;

use serde_json::value::RawValue;

/// Why a call or a listing has no answer.
///
/// A tool that ran and failed is not among these: that is a [`super::UpstreamReply::Result`]. No message
/// repeats an address, a header or anything a server sent, except [`Self::Protocol`], whose message
/// is the server's and is to be treated as such.
#[derive(Debug, thiserror::Error)]
pub enum UpstreamError {
    /// No connection, or it broke. The call may have been carried out.
    #[error("the server cannot be reached")]
    Unreachable(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The server did not answer in time. The call may have been carried out.
    #[error("the server did not answer in time")]
    Timeout,
    /// The caller cancelled.
    #[error("the call was cancelled")]
    Cancelled,
    /// The server answered with a JSON-RPC error.
    #[error("the server answered with error {code}: {message}")]
    Protocol {
        /// The JSON-RPC code.
        code: i64,
        /// The server's message.
        message: String,
        /// The server's data, if any.
        data: Option<Box<RawValue>>,
    },
    /// The server answered with an HTTP status and nothing else of use, such as 401.
    #[error("the server answered with HTTP status {status}")]
    Status {
        /// The status.
        status: u16,
    },
    /// What the server sent is not MCP.
    #[error("the server sent something that is not MCP: {0}")]
    Malformed(&'static str),
    /// The answer is larger than [`super::MAX_ANSWER_BYTES`].
    #[error("the answer is larger than {limit} bytes")]
    TooLarge {
        /// The limit that was passed.
        limit: usize,
    },
    /// As many calls are in flight as the server may have.
    #[error("the server has too many calls in flight")]
    Overloaded,
    /// The circuit breaker is open: the last attempts failed, and the server is left alone for a while.
    #[error("the server failed lately and is tried again in {retry_after:?}")]
    CircuitOpen {
        /// When it is worth to try again.
        retry_after: Duration,
    },
    /// The server's configuration cannot be used.
    #[error("the server's configuration cannot be used: {0}")]
    Misconfigured(&'static str),
    /// The sandbox could not be started, and without it nothing is.
    #[error("the sandbox cannot be started")]
    Sandbox(#[source] io::Error),
    /// The server was forgotten, or we are shutting down.
    #[error("the connection was closed on our side")]
    Closed,
}

impl UpstreamError {
    /// An [`Self::Unreachable`] from whatever the transport says.
    pub(super) fn from_transport(
        cause: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Self {
        Self::Unreachable(cause.into())
    }
}

/// What a failed exchange means for the connection it was made on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ConnectionEffect {
    /// None: the server answered, only not well.
    Keep,
    /// The server no longer knows the connection and did nothing: connect and ask again.
    Renew,
    /// Nothing new goes over the connection; what is under way on it may come to its end.
    Retire,
    /// The connection is gone.
    Lose,
}

/// A failed exchange.
#[derive(Debug)]
pub(super) struct ExchangeFailure {
    pub(super) error: UpstreamError,
    pub(super) effect: ConnectionEffect,
}

impl ExchangeFailure {
    pub(super) const fn keep_connection(error: UpstreamError) -> Self {
        Self { error, effect: ConnectionEffect::Keep }
    }

    pub(super) const fn renew_connection(error: UpstreamError) -> Self {
        Self { error, effect: ConnectionEffect::Renew }
    }

    pub(super) const fn retire_connection(error: UpstreamError) -> Self {
        Self { error, effect: ConnectionEffect::Retire }
    }

    pub(super) const fn lose_connection(error: UpstreamError) -> Self {
        Self { error, effect: ConnectionEffect::Lose }
    }
}
