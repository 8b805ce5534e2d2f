//! Connection pool: one connection per server, opened on first use and closed when it fails. A semaphore limits the calls in flight.

use std::collections::HashMap;
use std::fmt;
use std::ops::ControlFlow;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use cynode_net::circuit_breaker::{CircuitBreaker, CircuitBreakerConfig, HalfOpen};
use cynode_net::ssrf::PublicResolver;
use cynode_sandbox::{EgressDialer, SandboxLimits, SandboxOptions};
use futures::future::join_all;
use reqwest::redirect::Policy;
use reqwest::{Client, ClientBuilder};
use tokio::sync::{Mutex as AsyncMutex, Semaphore, SemaphorePermit};
use tokio::time::error::Elapsed;
use tokio::time::{Instant, timeout, timeout_at};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use uuid::Uuid;

use super::connection::UpstreamConnection;
use super::error::{ConnectionEffect, ExchangeFailure};
use super::sandbox::{PROGRAM_LIMITS, ProgramSandbox};
use super::{
    UpstreamCall, UpstreamError, UpstreamReply, UpstreamServer, UpstreamTool, UpstreamTransport,
};
use cynode_core::sync::lock_unpoisoned;

/// Time that servers have to shut down.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(5);
/// Timeout for a TCP connection and its TLS handshake.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Maximum timeout of a call, whatever a server's own timeout is.
const MAX_CALL_TIMEOUT: Duration = Duration::from_hours(24);

/// Circuit breaker of a server: exponential backoff from the first failure on. Only an answer closes it, so that calls also stop to a
/// server that accepts connections and fails at every call.
const SERVER_BREAKER: CircuitBreaker = CircuitBreaker::new(CircuitBreakerConfig {
    failure_threshold: 1,
    initial_pause: Duration::from_millis(500),
    max_pause: Duration::from_mins(1),
    half_open: HalfOpen::AllCallers,
});

/// Number of failures in a row that open the breaker if the last one is a broken connection. A single one is weak evidence: servers
/// restart.
const BROKEN_CONNECTION_THRESHOLD: u32 = 2;

/// Options that apply to all servers.
#[derive(Clone, Debug)]
pub struct UpstreamOptions {
    /// Sandboxes of servers that are programs, prepared on first use. Without them, such servers are refused.
    pub sandbox: Option<SandboxOptions>,
    /// Limits of each server that is a program.
    pub limits: SandboxLimits,
    /// The way of servers that are programs to their hosts.
    pub dialer: EgressDialer,
    /// Timeout of a modern request to an unknown server. After it, the server counts as a legacy one that ignores unknown requests.
    pub patience: Duration,
}

impl Default for UpstreamOptions {
    fn default() -> Self {
        Self {
            sandbox: None,
            limits: PROGRAM_LIMITS,
            dialer: EgressDialer::default(),
            patience: Duration::from_secs(10),
        }
    }
}

/// Connections to all servers.
///
/// Servers share only the HTTP client, whose connections are pooled per host, and a map whose lock is held only for a lookup.
pub struct UpstreamPool {
    clients: HttpClients,
    sandbox: Arc<ProgramSandbox>,
    patience: Duration,
    entries: Mutex<HashMap<Uuid, Arc<ServerEntry>>>,
    tasks: TaskTracker,
    closed: CancellationToken,
}

/// HTTP clients with and without SSRF guard.
#[derive(Debug)]
pub(super) struct HttpClients {
    /// Client for servers that an admin allows at any address.
    pub(super) anywhere: Client,
    /// Client for all other servers: its resolver drops private addresses.
    pub(super) public: Client,
}

fn client_builder() -> ClientBuilder {
    Client::builder()
        // A redirect would send a server's credential to another host, and a proxy from the environment would receive all traffic.
        .redirect(Policy::none())
        .no_proxy()
        .connect_timeout(CONNECT_TIMEOUT)
}

impl fmt::Debug for UpstreamPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // URLs may hold credentials.
        f.debug_struct("Upstreams").finish_non_exhaustive()
    }
}

/// What an admin reads about a server whose name leads into a private network.
const PRIVATE_ADDRESS_MESSAGE: &str = "the name leads to no public address; an admin allows a private one with `cynork tool update NAME --allow-private`";

impl UpstreamPool {
    /// Creates a pool without connections.
    pub fn new(options: UpstreamOptions) -> Result<Self, UpstreamError> {
        let clients = HttpClients {
            anywhere: client_builder().build().map_err(UpstreamError::from_transport)?,
            public: client_builder()
                .dns_resolver(Arc::new(PublicResolver::with_message(PRIVATE_ADDRESS_MESSAGE)))
                .build()
                .map_err(UpstreamError::from_transport)?,
        };
        Ok(Self {
            clients,
            patience: options.patience,
            sandbox: Arc::new(ProgramSandbox::new(options)),
            entries: Mutex::default(),
            tasks: TaskTracker::new(),
            closed: CancellationToken::new(),
        })
    }

    /// Lists all tools of a server.
    #[tracing::instrument(name = "gateway.upstream.list_server_tools", skip_all, fields(server.id = %server.id))]
    pub async fn list_server_tools(
        &self,
        server: &UpstreamServer,
    ) -> Result<Vec<UpstreamTool>, UpstreamError> {
        let entry = self.server_entry(server)?;
        tokio::select! {
            biased;
            () = entry.closed.cancelled() => Err(UpstreamError::Closed),
            tools = self.try_list(&entry, server) => tools,
        }
    }

    async fn try_list(
        &self,
        entry: &ServerEntry,
        server: &UpstreamServer,
    ) -> Result<Vec<UpstreamTool>, UpstreamError> {
        let mut attempts = self.begin_attempts(entry, server)?;
        // One list of a server at a time: a list may take much memory.
        let _turn = timeout_at(attempts.deadline, entry.listing.lock())
            .await
            .map_err(|_| UpstreamError::Timeout)?;
        loop {
            let connection = attempts.open_connection().await?;
            let outcome = timeout_at(attempts.deadline, connection.list_tools()).await;
            if let ControlFlow::Break(tools) = attempts.settle_attempt(&connection, outcome) {
                return tools;
            }
        }
    }

    /// Calls a tool of a server.
    ///
    /// A call is sent at most once, except that it is sent again when the server is known not to have executed it. Dropping the future
    /// cancels the call.
    #[tracing::instrument(name = "gateway.upstream.call_server_tool", skip_all, fields(server.id = %server.id))]
    pub async fn call_server_tool(
        &self,
        server: &UpstreamServer,
        call: UpstreamCall<'_>,
    ) -> Result<UpstreamReply, UpstreamError> {
        let entry = self.server_entry(server)?;
        tokio::select! {
            biased;
            () = call.cancel.cancelled() => Err(UpstreamError::Cancelled),
            () = entry.closed.cancelled() => Err(UpstreamError::Closed),
            reply = self.try_call(&entry, server, &call) => reply,
        }
    }

    async fn try_call(
        &self,
        entry: &ServerEntry,
        server: &UpstreamServer,
        call: &UpstreamCall<'_>,
    ) -> Result<UpstreamReply, UpstreamError> {
        let mut attempts = self.begin_attempts(entry, server)?;
        loop {
            let connection = attempts.open_connection().await?;
            let outcome = timeout_at(attempts.deadline, connection.call_tool(call)).await;
            if let ControlFlow::Break(reply) = attempts.settle_attempt(&connection, outcome) {
                return reply;
            }
        }
    }

    /// Closes the connection to a server that was removed or disabled.
    ///
    /// Its process is killed and calls in flight end with [`UpstreamError::Closed`]. Must be called within the runtime.
    pub fn drop_server(&self, id: Uuid) {
        let entry = lock_unpoisoned(&self.entries).remove(&id);
        if let Some(entry) = entry {
            entry.closed.cancel();
            let sandbox = Arc::clone(&self.sandbox);
            self.tasks.spawn(async move {
                entry.close_connection().await;
                sandbox.release_server(id);
            });
        }
    }

    /// Closes all connections and waits until no process is left. Later calls are refused.
    pub async fn shutdown_all(&self) {
        let entries: Vec<Arc<ServerEntry>> = {
            let mut entries = lock_unpoisoned(&self.entries);
            // Inside the lock, so that no entry is added afterwards.
            self.closed.cancel();
            entries.drain().map(|(_, entry)| entry).collect()
        };
        join_all(entries.iter().map(|entry| entry.close_connection())).await;
        drop(entries);
        self.tasks.close();
        if timeout(SHUTDOWN_TIMEOUT, self.tasks.wait()).await.is_err() {
            tracing::warn!(tasks = self.tasks.len(), "upstream servers did not end in time");
        }
        self.sandbox.shut_down().await;
    }

    fn server_entry(&self, server: &UpstreamServer) -> Result<Arc<ServerEntry>, UpstreamError> {
        let mut entries = lock_unpoisoned(&self.entries);
        if self.closed.is_cancelled() {
            return Err(UpstreamError::Closed);
        }
        match entries.get(&server.id) {
            Some(entry) if entry.is_for(server) => Ok(Arc::clone(entry)),
            // A changed server gets a new connection. Calls on the old connection finish, and the last of them closes it.
            Some(_) | None => {
                let entry = Arc::new(ServerEntry::new(server, self.closed.child_token()));
                entries.insert(server.id, Arc::clone(&entry));
                Ok(entry)
            }
        }
    }

    fn begin_attempts<'a>(
        &'a self,
        entry: &'a ServerEntry,
        server: &UpstreamServer,
    ) -> Result<CallAttempts<'a>, UpstreamError> {
        Ok(CallAttempts {
            upstreams: self,
            entry,
            deadline: Instant::now() + server.timeout.min(MAX_CALL_TIMEOUT),
            renewed: false,
            _slot: entry.acquire_slot()?,
        })
    }

    /// Returns the server's connection, and opens it if needed. Concurrent callers wait for the same connection instead of opening another.
    async fn get_or_connect(
        &self,
        entry: &ServerEntry,
        deadline: Instant,
    ) -> Result<Arc<UpstreamConnection>, UpstreamError> {
        if let Some(connection) = entry.current_connection()? {
            return Ok(connection);
        }
        let _turn = timeout_at(deadline, entry.connecting.lock())
            .await
            .map_err(|_| UpstreamError::Timeout)?;
        if let Some(connection) = entry.current_connection()? {
            return Ok(connection);
        }
        let opening = UpstreamConnection::open_connection(
            entry.id,
            &entry.transport,
            &self.clients,
            &self.sandbox,
            self.patience,
            &self.tasks,
        );
        let opened =
            timeout_at(deadline, Box::pin(opening)).await.unwrap_or(Err(UpstreamError::Timeout));
        entry.record_connect(opened)
    }
}

/// Attempts of one operation: one, or two if the first was not executed.
struct CallAttempts<'a> {
    upstreams: &'a UpstreamPool,
    entry: &'a ServerEntry,
    deadline: Instant,
    renewed: bool,
    _slot: SemaphorePermit<'a>,
}

impl CallAttempts<'_> {
    async fn open_connection(&self) -> Result<Arc<UpstreamConnection>, UpstreamError> {
        self.upstreams.get_or_connect(self.entry, self.deadline).await
    }

    /// Records the result of an attempt. Breaks unless another attempt is due.
    fn settle_attempt<T>(
        &mut self,
        connection: &Arc<UpstreamConnection>,
        outcome: Result<Result<T, ExchangeFailure>, Elapsed>,
    ) -> ControlFlow<Result<T, UpstreamError>> {
        let outcome = outcome.unwrap_or_else(|_| Err(connection.timeout_failure()));
        self.entry.record_exchange(connection, outcome.as_ref().err());
        match outcome {
            Ok(done) => ControlFlow::Break(Ok(done)),
            Err(ExchangeFailure { effect: ConnectionEffect::Renew, .. }) if !self.renewed => {
                self.renewed = true;
                ControlFlow::Continue(())
            }
            Err(failure) => ControlFlow::Break(Err(failure.error)),
        }
    }
}

/// State of one server.
#[derive(Debug)]
struct ServerEntry {
    id: Uuid,
    transport: UpstreamTransport,
    max_in_flight: usize,
    slots: Semaphore,
    /// Held by the caller that connects.
    connecting: AsyncMutex<()>,
    /// Held by the caller that lists the tools.
    listing: AsyncMutex<()>,
    state: Mutex<ServerConnectionState>,
    closed: CancellationToken,
}

#[derive(Debug)]
struct ServerConnectionState {
    connection: Option<Arc<UpstreamConnection>>,
    breaker: CircuitBreaker,
}

impl ServerEntry {
    fn new(server: &UpstreamServer, closed: CancellationToken) -> Self {
        Self {
            id: server.id,
            transport: server.transport.clone(),
            max_in_flight: server.max_in_flight,
            slots: Semaphore::new(server.max_in_flight.min(Semaphore::MAX_PERMITS)),
            connecting: AsyncMutex::default(),
            listing: AsyncMutex::default(),
            state: Mutex::new(ServerConnectionState { connection: None, breaker: SERVER_BREAKER }),
            closed,
        }
    }

    fn is_for(&self, server: &UpstreamServer) -> bool {
        self.max_in_flight == server.max_in_flight
            && self.transport.is_equivalent(&server.transport)
    }

    fn acquire_slot(&self) -> Result<SemaphorePermit<'_>, UpstreamError> {
        self.slots.try_acquire().map_err(|_| UpstreamError::Overloaded)
    }

    /// Returns the connection, if there is one. Fails if the circuit breaker is open.
    fn current_connection(&self) -> Result<Option<Arc<UpstreamConnection>>, UpstreamError> {
        let mut state = lock_unpoisoned(&self.state);
        // A process that ended while it was idle is restarted.
        state.connection.take_if(|connection| !connection.is_open());
        match (&state.connection, state.breaker.retry_after(Instant::now().into_std())) {
            (Some(connection), _) => Ok(Some(Arc::clone(connection))),
            (None, Some(retry_after)) => Err(UpstreamError::CircuitOpen { retry_after }),
            (None, None) => Ok(None),
        }
    }

    /// Records the result of connecting.
    fn record_connect(
        &self,
        opened: Result<UpstreamConnection, UpstreamError>,
    ) -> Result<Arc<UpstreamConnection>, UpstreamError> {
        let mut state = lock_unpoisoned(&self.state);
        match opened {
            Ok(connection) => {
                let connection = Arc::new(connection);
                state.connection = Some(Arc::clone(&connection));
                Ok(connection)
            }
            // Retrying later does not fix these errors, and their message is more useful than an open breaker.
            Err(error @ (UpstreamError::Misconfigured(_) | UpstreamError::Sandbox(_))) => {
                Err(error)
            }
            Err(error) => {
                state.breaker.record_failure(Instant::now().into_std());
                Err(error)
            }
        }
    }

    /// Records the result of an exchange on `connection`.
    fn record_exchange(
        &self,
        connection: &Arc<UpstreamConnection>,
        failure: Option<&ExchangeFailure>,
    ) {
        let mut state = lock_unpoisoned(&self.state);
        let mut give_up = || {
            // Another call may already have dropped the connection, and a third may have opened the next one.
            state.connection.take_if(|current| Arc::ptr_eq(current, connection)).is_some()
        };
        match failure {
            // A timeout does not prove that the server is healthy.
            Some(ExchangeFailure {
                effect: ConnectionEffect::Keep,
                error: UpstreamError::Timeout,
            }) => {}
            None | Some(ExchangeFailure { effect: ConnectionEffect::Keep, .. }) => {
                state.breaker.record_success();
            }
            Some(ExchangeFailure {
                effect: ConnectionEffect::Renew | ConnectionEffect::Retire,
                ..
            }) => {
                give_up();
            }
            Some(ExchangeFailure { effect: ConnectionEffect::Lose, .. }) => {
                if give_up() {
                    let now = Instant::now().into_std();
                    state.breaker.record_failure_with_threshold(BROKEN_CONNECTION_THRESHOLD, now);
                }
            }
        }
    }

    async fn close_connection(&self) {
        self.closed.cancel();
        let connection = lock_unpoisoned(&self.state).connection.take();
        if let Some(connection) = connection {
            drop(timeout(SHUTDOWN_TIMEOUT, connection.close_connection()).await);
        }
    }
}
