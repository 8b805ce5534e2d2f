//! Client of upstream MCP servers, the ones that users install.
//!
//! [`UpstreamPool`] keeps one connection per server and opens it on first use. It hides the transport (HTTP or a
//! sandboxed process) and the era of the protocol:
//!
//! * **modern** (2026-07-28): every request stands alone and carries its context in `_meta`;
//! * **legacy** (up to 2025-11-25): a handshake first, then requests in its session.
//!
//! The pool detects the era once per connection (`server/discover`, then `initialize`) and again after each reconnect,
//! so a server may be upgraded at any time.
//!
//! **Invariants.** The wire format is standard MCP: no field of our own, and no credential except those configured for
//! that very server. The bytes of a call's arguments are forwarded unchanged, so that a digest taken before is the
//! digest of what the tool got. Each server is isolated: its calls in flight, their time and the size of its answers
//! are bounded, and no lock is held while waiting for it.

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

/// The largest answer that is accepted from a server.
///
/// A tool result ends up in a model's context; one that is larger than this is a mistake or an
/// attack, and reading it on would let one server take the memory of all.
pub const MAX_ANSWER_BYTES: usize = 8 * 1024 * 1024;

/// An installed server: where it is and how much of us it may use.
#[derive(Clone, Debug)]
pub struct UpstreamServer {
    /// Which server this is. Connections are kept by it.
    pub id: Uuid,
    /// How the server is reached.
    pub transport: UpstreamTransport,
    /// How long one call, or one listing of the tools, may take, connecting included.
    pub timeout: Duration,
    /// How many calls may be in flight at once; more are [`UpstreamError::Overloaded`].
    pub max_in_flight: usize,
}

/// How a server is reached.
#[derive(Clone, Debug)]
pub enum UpstreamTransport {
    /// Streamable HTTP.
    Http {
        /// The MCP endpoint.
        url: String,
        /// Headers sent with every request, such as the server's own credential.
        headers: Vec<(String, SecretString)>,
        /// Whether it may be on this machine or in a private network.
        private: bool,
    },
    /// A process of ours that speaks over its standard input and output, inside bubblewrap.
    Stdio {
        /// The program, as it is called inside the sandbox.
        program: String,
        /// Its arguments.
        args: Vec<String>,
        /// Its whole environment, apart from `PATH`, `HOME` and `LANG`.
        env: Vec<(String, SecretString)>,
        /// Files and folders it may read besides the system's own, by absolute path.
        files: Vec<PathBuf>,
        /// Whether it may use the network.
        network: bool,
    },
}

impl UpstreamTransport {
    /// Whether a connection opened for `self` serves `other` too.
    ///
    /// Secrets have no `PartialEq`, for good reason; here both sides are our own configuration.
    fn is_equivalent(&self, other: &Self) -> bool {
        match (self, other) {
            (
                Self::Http { url, headers, private },
                Self::Http { url: url2, headers: headers2, private: private2 },
            ) => url == url2 && same_pairs(headers, headers2) && private == private2,
            (
                Self::Stdio { program, args, env, files, network },
                Self::Stdio {
                    program: program2,
                    args: args2,
                    env: env2,
                    files: files2,
                    network: network2,
                },
            ) => {
                program == program2
                    && args == args2
                    && same_pairs(env, env2)
                    && files == files2
                    && network == network2
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

/// A tool as its server describes it. Nothing in it has been judged yet.
#[derive(Clone, Debug, PartialEq)]
pub struct UpstreamTool {
    /// The name by which it is called.
    pub name: String,
    /// A name for people.
    pub title: Option<String>,
    /// What it does, in the server's words.
    pub description: Option<String>,
    /// The JSON Schema of its arguments.
    pub input_schema: Value,
    /// The JSON Schema of its structured result, if it promises one.
    pub output_schema: Option<Value>,
    /// The server's own, untrusted hints.
    pub annotations: Option<Value>,
    /// The whole object as the server gave it; what a digest is taken of.
    pub raw: Value,
}

/// One call of a tool.
#[derive(Debug)]
pub struct UpstreamCall<'a> {
    /// The tool's name at its server.
    pub tool: &'a str,
    /// The arguments, forwarded byte for byte.
    pub arguments: &'a RawValue,
    /// The W3C `traceparent` under which the call runs.
    pub trace: Option<&'a str>,
    /// What the agent's own client can do, as it said: an object.
    ///
    /// Only for what is in it may a modern server answer [`UpstreamReply::InputRequired`]; we have nobody to ask.
    pub capabilities: Option<&'a RawValue>,
    /// What the agent's side answered to an earlier [`UpstreamReply::InputRequired`].
    pub input: Option<UpstreamInput<'a>>,
    /// Where progress is told. What does not fit into the channel is left out.
    pub progress: Option<mpsc::Sender<CallProgress>>,
    /// Cancelling it ends the call at once with [`UpstreamError::Cancelled`].
    pub cancel: CancellationToken,
}

impl<'a> UpstreamCall<'a> {
    /// A call of `tool` without anything optional.
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

/// The second round of a call that needed input, passed on as it came.
#[derive(Clone, Copy, Debug)]
pub struct UpstreamInput<'a> {
    /// The answers, by the keys of the `inputRequests`.
    pub responses: Option<&'a RawValue>,
    /// The server's own opaque state, a JSON string.
    pub state: Option<&'a RawValue>,
}

/// How far a running call has come.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct CallProgress {
    /// Grows from one message to the next.
    pub progress: Number,
    /// What `progress` grows to, if the server knows.
    pub total: Option<Number>,
    /// What is being done, for people.
    pub message: Option<String>,
}

/// How a server answered a call.
#[derive(Clone, Debug)]
pub enum UpstreamReply {
    /// The call came to its end.
    Result {
        /// The `CallToolResult` as the server wrote it.
        result: Box<RawValue>,
        /// Whether the tool says that it failed.
        is_error: bool,
    },
    /// The server wants input first: the whole `InputRequiredResult` as it wrote it.
    InputRequired(Box<RawValue>),
}
