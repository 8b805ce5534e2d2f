//! Client of upstream MCP servers, the ones that users install.
//!
//! [`UpstreamPool`] keeps one connection per server and opens it on first use. It hides the transport (HTTP or a sandboxed process) and the
//! era of the protocol:
//!
//! * **modern** (2026-07-28): every request is self-contained and carries its context in `_meta`;
//! * **legacy** (up to 2025-11-25): a handshake first, then requests in its session.
//!
//! The pool detects the era once per connection (`server/discover`, then `initialize`) and again after each reconnect, so a server may be
//! upgraded at any time.
//!
//! **Invariants.** The wire format is standard MCP: no proprietary field, and no credential except those configured for that very server.
//! The bytes of a call's arguments are forwarded unchanged, so that a digest taken before is the digest of the bytes that the tool
//! receives. Each server is isolated: its calls in flight, their time and the size of its answers are limited, and no lock is held while
//! waiting for it.

mod catalog;
mod connection;
mod error;
mod header;
mod http;
mod message;
mod pool;
mod sandbox;
mod stdio;

use std::path::PathBuf;
use std::time::Duration;

use secrecy::{ExposeSecret, SecretString};
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Number, Value};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

pub use error::UpstreamError;
pub use pool::{UpstreamOptions, UpstreamPool};

/// Maximum size of an answer of a server.
///
/// A tool result ends up in a model's context. A larger one is a mistake or an attack, and reading it would let one server exhaust the
/// memory of all.
pub const MAX_ANSWER_BYTES: usize = 8 * 1024 * 1024;

/// An installed server: its transport and its limits.
#[derive(Clone, Debug)]
pub struct UpstreamServer {
    /// Id of the server. Connections are keyed by it.
    pub id: Uuid,
    /// Transport of the server.
    pub transport: UpstreamTransport,
    /// Timeout of one call, or of one listing of the tools, connecting included.
    pub timeout: Duration,
    /// Maximum number of calls in flight. Further calls fail with [`UpstreamError::Overloaded`].
    pub max_in_flight: usize,
}

/// Transport of a server.
#[derive(Clone, Debug)]
pub enum UpstreamTransport {
    /// Streamable HTTP.
    Http {
        /// URL of the MCP endpoint.
        url: String,
        /// Headers sent with every request, such as the server's own credential.
        headers: Vec<(String, SecretString)>,
        /// Whether the server may be on this machine or in a private network.
        private: bool,
    },
    /// A process that communicates over standard input and output, inside the sandbox of jobs.
    Stdio {
        /// The program, by its path or name inside the sandbox.
        program: String,
        /// Arguments of the program.
        args: Vec<String>,
        /// Environment of the program, in addition to `PATH`, `HOME` and `LANG`.
        env: Vec<(String, SecretString)>,
        /// Absolute paths of files and folders that the program may read, in addition to the system's own.
        files: Vec<PathBuf>,
        /// Hosts that the program may reach, through a proxy with an SSRF guard. Without any it has no network.
        network_hosts: Vec<String>,
    },
}

impl UpstreamTransport {
    /// Returns whether a connection opened for `self` serves `other` too.
    ///
    /// Secrets deliberately have no `PartialEq`. Here both sides are CyNode's own configuration.
    fn is_equivalent(&self, other: &Self) -> bool {
        match (self, other) {
            (
                Self::Http { url, headers, private },
                Self::Http { url: url2, headers: headers2, private: private2 },
            ) => url == url2 && same_pairs(headers, headers2) && private == private2,
            (
                Self::Stdio { program, args, env, files, network_hosts },
                Self::Stdio {
                    program: program2,
                    args: args2,
                    env: env2,
                    files: files2,
                    network_hosts: network_hosts2,
                },
            ) => {
                program == program2
                    && args == args2
                    && same_pairs(env, env2)
                    && files == files2
                    && network_hosts == network_hosts2
            }
            (Self::Http { .. }, Self::Stdio { .. }) | (Self::Stdio { .. }, Self::Http { .. }) => {
                false
            }
        }
    }
}

fn same_pairs(left: &[(String, SecretString)], right: &[(String, SecretString)]) -> bool {
    left.len() == right.len()
        && left.iter().zip(right).all(|((name, value), (name2, value2))| {
            name == name2 && value.expose_secret() == value2.expose_secret()
        })
}

/// A tool as its server describes it. It has not been checked yet.
#[derive(Clone, Debug, PartialEq)]
pub struct UpstreamTool {
    /// Name of the tool at its server.
    pub name: String,
    /// Display name.
    pub title: Option<String>,
    /// Purpose, in the server's words.
    pub description: Option<String>,
    /// The whole object as the server sent it, with the schemas and the hints, which are untrusted. The tool's digest is computed from it.
    pub raw: Value,
}

/// One call of a tool.
#[derive(Debug)]
pub struct UpstreamCall<'a> {
    /// Name of the tool at its server.
    pub tool: &'a str,
    /// Arguments, forwarded unchanged.
    pub arguments: &'a RawValue,
    /// W3C `traceparent` of the call.
    pub trace: Option<&'a str>,
    /// Capabilities of the agent's client, as it states them: an object.
    ///
    /// A modern server may answer [`UpstreamReply::InputRequired`] only for these capabilities: the gateway itself cannot provide input.
    pub capabilities: Option<&'a RawValue>,
    /// Responses of the agent's client to an earlier [`UpstreamReply::InputRequired`].
    pub input: Option<UpstreamInput<'a>>,
    /// Channel for progress. Messages that do not fit are dropped.
    pub progress: Option<mpsc::Sender<CallProgress>>,
    /// Cancelling it ends the call at once with [`UpstreamError::Cancelled`].
    pub cancel: CancellationToken,
}

impl<'a> UpstreamCall<'a> {
    /// Creates a call of `tool` without optional fields.
    pub fn new(tool: &'a str, arguments: &'a RawValue) -> Self {
        Self {
            tool,
            arguments,
            trace: None,
            capabilities: None,
            input: None,
            progress: None,
            cancel: CancellationToken::new(),
        }
    }
}

/// Second round of a call that required input, forwarded unchanged.
#[derive(Clone, Copy, Debug)]
pub struct UpstreamInput<'a> {
    /// Responses, by the keys of the `inputRequests`.
    pub responses: Option<&'a RawValue>,
    /// Opaque state of the server, a JSON string.
    pub state: Option<&'a RawValue>,
}

/// Progress of a running call.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct CallProgress {
    /// Progress so far. It increases with each message.
    pub progress: Number,
    /// Final value of `progress`, if the server knows it.
    pub total: Option<Number>,
    /// Description of the current step, for people.
    pub message: Option<String>,
}

/// Reply of a server to a call.
#[derive(Clone, Debug)]
pub enum UpstreamReply {
    /// The call has ended.
    Result {
        /// The `CallToolResult`, unchanged.
        result: Box<RawValue>,
        /// Whether the tool reports an error.
        is_error: bool,
    },
    /// The server requires input first: the whole `InputRequiredResult`, unchanged.
    InputRequired(Box<RawValue>),
}
