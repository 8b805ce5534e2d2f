//! HTTP/1.1 server for ports that strangers can reach: accept loop, TLS, timeouts and connection limits.
//!
//! A connection that does not bring its first request within the header timeout is closed (slowloris), and so is one that is idle for the
//! keep-alive timeout. Connections are limited by source and in total; those of this machine are counted apart, so that no stranger takes
//! the places of our own programs. When few places are left, connections are closed after their response. A body has a minimum rate.
//! A failed accept, such as one without a free file descriptor, is retried after a pause. A TLS handshake has the header timeout for itself.

mod paced_body;
mod source;

use std::{
    convert::Infallible,
    error::Error,
    io::{self, Write as _},
    net::SocketAddr,
    ops::ControlFlow,
    pin::pin,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use hyper::{
    Request, Response,
    body::{Body, Incoming},
    header::{CONNECTION, HeaderValue},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, TcpStream},
    time::timeout,
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tower::{Service, ServiceExt as _};

pub use paced_body::{BodyPace, BodyTooSlow, PacedBody};
pub use source::{ClientSource, ProxyNetwork, ProxyNetworkError};

use crate::{
    concurrency::{ConcurrencyLimiter, ConcurrencyPermit},
    tls::{PeerCertificate, ServerTls},
};

/// Maximum size of a request line with its headers. The number of headers is at most 100.
const MAX_HEADER_BYTES: usize = 64 * 1024;

/// Pause after an accept that failed for lack of resources.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(200);

/// Minimum time between two log lines about refused connections.
const REFUSAL_LOG_INTERVAL: Duration = Duration::from_secs(10);

/// Age from which on a connection with a client certificate is closed after its response. The client then shows its renewed certificate.
const MAX_CERTIFIED_CONNECTION_AGE: Duration = Duration::from_hours(1);

/// Answer to a connection above a limit.
const TOO_MANY_CONNECTIONS_RESPONSE: &[u8] =
    b"HTTP/1.1 503 Service Unavailable\r\nretry-after: 1\r\nconnection: close\r\ncontent-length: 0\r\n\r\n";

/// Options of a server.
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// Time in which a new connection has to bring its first request with all headers.
    pub header_timeout: Duration,
    /// Time in which a connection has to bring its next request with all headers. It is longer than clients keep idle connections, so that
    /// no request is sent on a connection that is being closed.
    pub keep_alive_timeout: Duration,
    /// Maximum number of connections from other machines, and of those from this machine.
    pub max_connections: usize,
    /// Maximum number of connections from one source on another machine.
    pub max_connections_per_source: usize,
    /// Minimum rate of request bodies.
    pub body_pace: BodyPace,
    /// Reverse proxies whose `X-Forwarded-For` is believed.
    pub trusted_proxies: Vec<ProxyNetwork>,
    /// Whether only this machine and the trusted proxies may connect: the port is not encrypted, and a proxy before it is.
    pub only_trusted_peers: bool,
}

impl Default for ServerOptions {
    fn default() -> Self {
        Self {
            header_timeout: Duration::from_secs(10),
            keep_alive_timeout: Duration::from_mins(2),
            max_connections: 4096,
            max_connections_per_source: 512,
            body_pace: BodyPace { grace: Duration::from_secs(30), min_bytes_per_second: 8 * 1024 },
            trusted_proxies: Vec::new(),
            only_trusted_peers: false,
        }
    }
}

/// What connections are counted by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum ConnectionScope {
    /// Those of this machine.
    Local,
    /// Those of all other machines.
    Remote,
    /// Those of one source on another machine.
    Source(ClientSource),
    /// Those that only trusted proxies may open. None is admitted.
    Untrusted,
}

/// The other end of a connection.
struct ConnectionPeer {
    address: SocketAddr,
    certificate: Option<PeerCertificate>,
}

/// A server of one or more ports, which share its limits. Cloning it is cheap.
#[derive(Clone, Debug)]
pub struct LimitedServer {
    shared: Arc<ServerShared>,
}

#[derive(Debug)]
struct ServerShared {
    options: ServerOptions,
    connections: ConcurrencyLimiter<ConnectionScope>,
    refused: AtomicU64,
    last_refusal_log: Mutex<Option<Instant>>,
}

impl LimitedServer {
    /// Creates a server.
    pub fn new(options: ServerOptions) -> Self {
        let shared = ServerShared {
            options,
            connections: ConcurrencyLimiter::default(),
            refused: AtomicU64::new(0),
            last_refusal_log: Mutex::default(),
        };
        Self { shared: Arc::new(shared) }
    }

    /// Serves the connections of a listener without TLS, like [`Self::serve_tls_listener`].
    pub async fn serve_listener<S, B>(
        &self,
        listener: TcpListener,
        service: S,
        stop: CancellationToken,
    ) where
        S: Service<Request<PacedBody>, Response = Response<B>, Error = Infallible>,
        S: Clone + Send + 'static,
        S::Future: Send + 'static,
        B: Body<Data: Send, Error: Into<Box<dyn Error + Send + Sync>>> + Send + 'static,
    {
        self.serve_tls_listener(listener, None, service, stop).await;
    }

    /// Serves the connections of a listener until `stop`, then lets running requests end. Each request carries its [`ClientSource`] as an
    /// extension, and its [`PeerCertificate`] if the client showed one.
    pub async fn serve_tls_listener<S, B>(
        &self,
        listener: TcpListener,
        tls: Option<ServerTls>,
        service: S,
        stop: CancellationToken,
    ) where
        S: Service<Request<PacedBody>, Response = Response<B>, Error = Infallible>,
        S: Clone + Send + 'static,
        S::Future: Send + 'static,
        B: Body<Data: Send, Error: Into<Box<dyn Error + Send + Sync>>> + Send + 'static,
    {
        let tasks = TaskTracker::new();
        loop {
            let accepted = tokio::select! {
                () = stop.cancelled() => break,
                accepted = listener.accept() => accepted,
            };
            match accepted {
                Ok((stream, peer)) => match self.shared.admit_connection(peer) {
                    Ok(permit) => {
                        let (shared, service) = (self.shared.clone(), service.clone());
                        let (tls, stop) = (tls.clone(), stop.clone());
                        tasks.spawn(async move {
                            let _permit = permit;
                            shared.accept_connection(stream, peer, tls, service, stop).await;
                        });
                    }
                    Err(scope) => self.shared.refuse_connection(stream, scope, tls.is_some()),
                },
                // The client went away before it was accepted.
                Err(error) if is_connection_error(&error) => {}
                Err(error) => {
                    tracing::error!(event = "server.accept_failed", %error, "a connection could not be accepted; it is retried");
                    let _ = timeout(ACCEPT_RETRY_DELAY, stop.cancelled()).await;
                }
            }
        }
        drop(listener);
        tasks.close();
        tasks.wait().await;
    }
}

fn is_connection_error(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionRefused
            | io::ErrorKind::ConnectionAborted
            | io::ErrorKind::ConnectionReset
    )
}

impl ServerShared {
    /// Counts a connection. Returns the limit that it exceeds.
    fn admit_connection(
        &self,
        peer: SocketAddr,
    ) -> Result<ConcurrencyPermit<ConnectionScope>, ConnectionScope> {
        self.connections.try_acquire(self.limits_of(peer))
    }

    /// Returns what a connection is counted by, each with its maximum. A trusted proxy has the connections of many sources.
    fn limits_of(&self, peer: SocketAddr) -> Vec<(ConnectionScope, usize)> {
        let ServerOptions { max_connections, max_connections_per_source, .. } = self.options;
        let source = ClientSource::from_address(peer.ip());
        if source.is_local() {
            return vec![(ConnectionScope::Local, max_connections)];
        }
        let mut limits = vec![(ConnectionScope::Remote, max_connections)];
        if !source::is_trusted_proxy(&self.options.trusted_proxies, peer.ip()) {
            if self.options.only_trusted_peers {
                return vec![(ConnectionScope::Untrusted, 0)];
            }
            limits.insert(0, (ConnectionScope::Source(source), max_connections_per_source));
        }
        limits
    }

    /// Returns whether few places are left for connections like this one.
    fn is_crowded(&self, peer: SocketAddr) -> bool {
        self.limits_of(peer)
            .into_iter()
            .any(|(scope, max)| self.connections.count_open(&scope) > max - max / 4)
    }

    /// Closes a connection above a limit. The answer is best effort: the server does not wait for the client to read it.
    fn refuse_connection(&self, stream: TcpStream, scope: ConnectionScope, encrypted: bool) {
        let answerable = !encrypted && scope != ConnectionScope::Untrusted;
        if let Ok(mut stream) = stream.into_std()
            && answerable
        {
            let _ = stream.write_all(TOO_MANY_CONNECTIONS_RESPONSE);
        }
        let refused = self.refused.fetch_add(1, Ordering::Relaxed) + 1;
        let mut last = self.last_refusal_log.lock().unwrap_or_else(PoisonError::into_inner);
        if last.is_none_or(|last| last.elapsed() >= REFUSAL_LOG_INTERVAL) {
            *last = Some(Instant::now());
            let limit = match scope {
                ConnectionScope::Local => "this machine",
                ConnectionScope::Remote => "all other machines",
                ConnectionScope::Source(_) => "one source",
                ConnectionScope::Untrusted => "server.trusted_proxies",
            };
            tracing::warn!(
                event = "server.connections_refused",
                limit,
                refused,
                "too many connections are open, or they are of no trusted proxy"
            );
        }
    }

    /// Makes the TLS handshake, if there is to be one, and serves the connection.
    async fn accept_connection<S, B>(
        self: Arc<Self>,
        stream: TcpStream,
        address: SocketAddr,
        tls: Option<ServerTls>,
        service: S,
        stop: CancellationToken,
    ) where
        S: Service<Request<PacedBody>, Response = Response<B>, Error = Infallible>,
        S: Clone + Send + 'static,
        S::Future: Send + 'static,
        B: Body<Data: Send, Error: Into<Box<dyn Error + Send + Sync>>> + Send + 'static,
    {
        // Responses are small; waiting for more bytes would only delay them.
        let _ = stream.set_nodelay(true);
        let Some(tls) = tls else {
            let peer = ConnectionPeer { address, certificate: None };
            return self.serve_connection(stream, peer, service, stop).await;
        };
        let accepted = tokio::select! {
            () = stop.cancelled() => return,
            accepted = timeout(self.options.header_timeout, tls.accept_stream(stream)) => accepted,
        };
        match accepted {
            Ok(Ok((stream, certificate))) => {
                let peer = ConnectionPeer { address, certificate };
                self.serve_connection(stream, peer, service, stop).await;
            }
            Ok(Err(error)) => {
                tracing::debug!(event = "server.handshake_failed", %address, %error, "a TLS handshake failed");
            }
            Err(_) => {}
        }
    }

    async fn serve_connection<I, S, B>(
        self: Arc<Self>,
        stream: I,
        peer: ConnectionPeer,
        service: S,
        stop: CancellationToken,
    ) where
        I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
        S: Service<Request<PacedBody>, Response = Response<B>, Error = Infallible>,
        S: Clone + Send + 'static,
        S::Future: Send + 'static,
        B: Body<Data: Send, Error: Into<Box<dyn Error + Send + Sync>>> + Send + 'static,
    {
        let header_timeout = self.options.header_timeout;
        let mut http = http1::Builder::new();
        http.timer(TokioTimer::new())
            .header_read_timeout(self.options.keep_alive_timeout)
            .max_header_size(MAX_HEADER_BYTES);
        let (certified, opened) = (peer.certificate.is_some(), Instant::now());
        let first_request = CancellationToken::new();
        let arrived = first_request.clone();
        let handler = service_fn(move |request: Request<Incoming>| {
            arrived.cancel();
            let answer = service.clone().oneshot(self.prepare_request(request, &peer));
            let (shared, address) = (self.clone(), peer.address);
            async move {
                let mut response = answer.await?;
                let aged = certified && opened.elapsed() > MAX_CERTIFIED_CONNECTION_AGE;
                if aged || shared.is_crowded(address) {
                    response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
                }
                Ok::<_, Infallible>(response)
            }
        });
        let mut connection = pin!(http.serve_connection(TokioIo::new(stream), handler));
        let begun = timeout(header_timeout, async {
            tokio::select! {
                _ = connection.as_mut() => ControlFlow::Break(()),
                () = first_request.cancelled() => ControlFlow::Continue(()),
                () = stop.cancelled() => ControlFlow::Continue(()),
            }
        });
        if begun.await != Ok(ControlFlow::Continue(())) {
            return;
        }
        tokio::select! {
            _ = connection.as_mut() => return,
            () = stop.cancelled() => {}
        }
        connection.as_mut().graceful_shutdown();
        let _ = connection.await;
    }

    /// Adds the source of a request, the certificate of its client and the minimum rate of its body.
    fn prepare_request(
        &self,
        request: Request<Incoming>,
        peer: &ConnectionPeer,
    ) -> Request<PacedBody> {
        let (mut parts, body) = request.into_parts();
        let proxies = &self.options.trusted_proxies;
        let source = source::resolve_source(proxies, peer.address.ip(), &parts.headers);
        parts.extensions.insert(source);
        if let Some(certificate) = &peer.certificate {
            parts.extensions.insert(certificate.clone());
        }
        Request::from_parts(parts, PacedBody::new(body, self.options.body_pace))
    }
}

#[cfg(test)]
mod tests;
