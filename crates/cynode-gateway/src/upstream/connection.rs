//! A connection to one server over any transport.

use std::time::Duration;

use cynode_net::ssrf::is_private_host;
use tokio_util::task::TaskTracker;
use uuid::Uuid;

use super::error::ExchangeFailure;
use super::http::HttpConnection;
use super::pool::HttpClients;
use super::sandbox::{ProgramSandbox, SandboxProgram};
use super::stdio::{ProgramLaunch, StdioConnection};
use super::{UpstreamCall, UpstreamError, UpstreamReply, UpstreamTool, UpstreamTransport};

/// A connection whose era is known.
#[derive(Debug)]
pub(super) enum UpstreamConnection {
    Http(HttpConnection),
    Stdio(StdioConnection),
}

impl UpstreamConnection {
    /// Connects and detects the era.
    pub(super) async fn open_connection(
        server: Uuid,
        transport: &UpstreamTransport,
        clients: &HttpClients,
        sandbox: &ProgramSandbox,
        patience: Duration,
        tasks: &TaskTracker,
    ) -> Result<Self, UpstreamError> {
        match transport {
            UpstreamTransport::Http { url, headers, private } => {
                let client = if *private { &clients.anywhere } else { &clients.public };
                if !private && !url.parse().is_ok_and(|url| !is_private_host(&url)) {
                    return Err(UpstreamError::Misconfigured("its address is not a public one"));
                }
                HttpConnection::open_connection(client, url, headers, patience, tasks)
                    .await
                    .map(Self::Http)
            }
            UpstreamTransport::Stdio { program, args, env, files, network_hosts } => {
                let program = SandboxProgram { name: program, args, env, files, network_hosts };
                let launch = ProgramLaunch { sandbox, server, program: &program, tasks };
                StdioConnection::open_connection(launch, patience).await.map(Self::Stdio)
            }
        }
    }

    /// Lists all tools of the server.
    pub(super) async fn list_tools(&self) -> Result<Vec<UpstreamTool>, ExchangeFailure> {
        match self {
            Self::Http(http) => http.list_tools().await,
            Self::Stdio(stdio) => stdio.list_tools().await,
        }
    }

    /// Calls a tool.
    pub(super) async fn call_tool(
        &self,
        call: &UpstreamCall<'_>,
    ) -> Result<UpstreamReply, ExchangeFailure> {
        match self {
            Self::Http(http) => http.call_tool(call).await,
            Self::Stdio(stdio) => stdio.call_tool(call).await,
        }
    }

    /// Returns the effect of a timeout on the connection.
    ///
    /// Over HTTP it has none: requests are independent. A process that does not answer may hang, and only its end frees its resources.
    pub(super) const fn timeout_failure(&self) -> ExchangeFailure {
        match self {
            Self::Http(_) => ExchangeFailure::keep_connection(UpstreamError::Timeout),
            Self::Stdio(_) => ExchangeFailure::retire_connection(UpstreamError::Timeout),
        }
    }

    /// Returns whether the connection is still usable, as far as is known without a request.
    pub(super) fn is_open(&self) -> bool {
        match self {
            Self::Http(_) => true,
            Self::Stdio(stdio) => stdio.is_open(),
        }
    }

    /// Closes the connection and waits for its end.
    pub(super) async fn close_connection(&self) {
        match self {
            Self::Http(http) => http.close_session().await,
            Self::Stdio(stdio) => stdio.close_process().await,
        }
    }
}
