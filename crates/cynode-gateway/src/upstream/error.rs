//! Errors of upstream servers.

use std::time::Duration;

use cynode_sandbox::SandboxError;
use serde_json::value::RawValue;

/// Error of a call or a listing.
///
/// A tool that ran and failed is not an error here: that is an [`super::UpstreamReply::Result`]. No message repeats a URL, a header or any
/// text of a server, except [`Self::Protocol`], whose message comes from the server and is untrusted.
#[derive(Debug, thiserror::Error)]
pub enum UpstreamError {
    /// No connection, or it broke. The call may have been executed.
    #[error("the server cannot be reached")]
    Unreachable(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The server did not answer in time. The call may have been executed.
    #[error("the server did not answer in time")]
    Timeout,
    /// The caller cancelled the call.
    #[error("the call was cancelled")]
    Cancelled,
    /// The server answered with a JSON-RPC error.
    #[error("the server answered with error {code}: {message}")]
    Protocol {
        /// JSON-RPC error code.
        code: i64,
        /// Message of the server.
        message: String,
        /// Data of the server, if any.
        data: Option<Box<RawValue>>,
    },
    /// The server answered with an HTTP status without an MCP message, such as 401.
    #[error("the server answered with HTTP status {status}")]
    Status {
        /// HTTP status.
        status: u16,
    },
    /// The server's answer is not MCP.
    #[error("the server sent something that is not MCP: {0}")]
    Malformed(&'static str),
    /// The answer is larger than such an answer may be, at most [`super::MAX_ANSWER_BYTES`].
    #[error("the answer is larger than {limit} bytes")]
    TooLarge {
        /// Maximum size in bytes.
        limit: usize,
    },
    /// The server has reached its maximum number of calls in flight.
    #[error("the server has too many calls in flight")]
    Overloaded,
    /// The circuit breaker is open: the last attempts failed, and calls are refused for a pause.
    #[error("the server failed lately and is tried again in {retry_after:?}")]
    CircuitOpen {
        /// Time until the next attempt.
        retry_after: Duration,
    },
    /// The server's configuration is invalid.
    #[error("the server's configuration cannot be used: {0}")]
    Misconfigured(&'static str),
    /// The sandbox could not be started. The server never runs without it. The source says how to fix it; it names paths of this machine,
    /// which agents need not know.
    #[error("the sandbox cannot be started")]
    Sandbox(#[source] SandboxError),
    /// The server was removed, or the gateway is shutting down.
    #[error("the connection was closed on our side")]
    Closed,
}

impl UpstreamError {
    /// Describes the error for an admin, who can fix the machine.
    pub(crate) fn describe_for_admin(&self) -> String {
        let mut text = self.to_string();
        if matches!(self, Self::Sandbox(_) | Self::Unreachable { .. }) {
            let mut cause = std::error::Error::source(self);
            while let Some(error) = cause {
                text.push_str(": ");
                text.push_str(&error.to_string());
                cause = error.source();
            }
        }
        text
    }

    /// Wraps an error of the transport as [`Self::Unreachable`].
    pub(super) fn from_transport(
        cause: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Self {
        Self::Unreachable(cause.into())
    }
}

/// Effect of a failed exchange on its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ConnectionEffect {
    /// No effect: the server answered, but with an error.
    Keep,
    /// The server no longer knows the connection and executed nothing: reconnect and send the request again.
    Renew,
    /// No new request uses the connection; requests in flight may finish.
    Retire,
    /// The connection is lost.
    Lose,
}

/// A failed exchange, with its effect on the connection.
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
