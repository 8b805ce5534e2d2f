//! A connection to one server, whatever it runs over.

use cynode_app::egress::may_be_public;
use tokio_util::task::TaskTracker;

use super::error::Failure;
use super::http::Http;
use super::pool::Clients;
use super::sandbox::Program;
use super::stdio::Stdio;
use super::{Call, Definition, Options, Reply, Transport, UpstreamError};

/// A connection whose era is known.
#[derive(Debug)]
pub(super) enum Connection {
    Http(Http),
    Stdio(Stdio),
}

impl Connection {
    /// Connects and finds out the era.
    pub(super) async fn open(
        transport: &Transport,
        clients: &Clients,
        options: &Options,
        tasks: &TaskTracker,
    ) -> Result<Self, UpstreamError> {
        match transport {
            Transport::Http { url, headers, private } => {
                let client = if *private { &clients.anywhere } else { &clients.public };
                if !private && !url.parse().is_ok_and(|url| may_be_public(&url)) {
                    return Err(UpstreamError::Misconfigured("its address is not a public one"));
                }
                Http::open(client, url, headers, options.patience, tasks).await.map(Self::Http)
            }
            Transport::Stdio { program, args, env, files, network } => {
                let program = Program { name: program, args, env, files, network: *network };
                Stdio::open(options, &program, tasks).await.map(Self::Stdio)
            }
        }
    }

    /// All tools of the server.
    pub(super) async fn list(&self) -> Result<Vec<Definition>, Failure> {
        match self {
            Self::Http(http) => http.list().await,
            Self::Stdio(stdio) => stdio.list().await,
        }
    }

    /// Calls a tool.
    pub(super) async fn call(&self, call: &Call<'_>) -> Result<Reply, Failure> {
        match self {
            Self::Http(http) => http.call(call).await,
            Self::Stdio(stdio) => stdio.call(call).await,
        }
    }

    /// What it means for the connection that an answer did not come in time.
    ///
    /// Over HTTP nothing: requests have nothing to do with each other. A process that does not
    /// answer may hang, and nothing but its end frees what it holds.
    pub(super) const fn late(&self) -> Failure {
        match self {
            Self::Http(_) => Failure::keep(UpstreamError::Timeout),
            Self::Stdio(_) => Failure::retire(UpstreamError::Timeout),
        }
    }

    /// Whether it can still be used, as far as can be seen without trying.
    pub(super) fn is_open(&self) -> bool {
        match self {
            Self::Http(_) => true,
            Self::Stdio(stdio) => stdio.is_open(),
        }
    }

    /// Takes leave of the server and waits for its end.
    pub(super) async fn close(&self) {
        match self {
            Self::Http(http) => http.close().await,
            Self::Stdio(stdio) => stdio.close().await,
        }
    }
}
