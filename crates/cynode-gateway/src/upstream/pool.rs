//! One connection per server, opened when needed and given up when it fails.

use std::collections::HashMap;
use std::fmt;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::future::join_all;
use reqwest::redirect::Policy;
use reqwest::{Client, ClientBuilder};
use tokio::sync::{Mutex as AsyncMutex, Semaphore, SemaphorePermit};
use tokio::time::error::Elapsed;
use tokio::time::{Instant, timeout, timeout_at};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use uuid::Uuid;

use super::breaker::{Breaker, Strike};
use super::connection::Connection;
use super::error::{Effect, Failure};
use super::{Call, Definition, Reply, Server, Transport, UpstreamError};
use crate::egress::Public;
use cynode_core::sync::lock;

/// How long servers are given to end.
const FAREWELL: Duration = Duration::from_secs(5);
/// How long a TCP connection, and TLS on it, may take to come about.
const CONNECT: Duration = Duration::from_secs(5);

/// The longest that anything may take, whatever a server's own limit says.
const LONGEST: Duration = Duration::from_hours(24);

/// What is the same for all servers.
#[derive(Clone, Debug)]
pub struct Options {
    /// The bubblewrap program. Without it servers that are processes are refused.
    pub bubblewrap: PathBuf,
    /// How long a server may think about a request of the modern era before it is taken for a legacy
    /// one that ignores what it does not know.
    pub patience: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self { bubblewrap: PathBuf::from("/usr/bin/bwrap"), patience: Duration::from_secs(10) }
    }
}

/// The connections to all servers.
///
/// Servers share nothing here but the HTTP client, whose connections are kept per host, and a map
/// whose lock is held for no longer than a look into it takes.
pub struct Upstreams {
    clients: Clients,
    options: Options,
    entries: Mutex<HashMap<Uuid, Arc<Entry>>>,
    tasks: TaskTracker,
    closed: CancellationToken,
}

/// The HTTP clients.
#[derive(Debug)]
pub(super) struct Clients {
    /// For servers that an admin may have put anywhere.
    pub(super) anywhere: Client,
    /// For all others: it finds no private addresses.
    pub(super) public: Client,
}

fn client() -> ClientBuilder {
    Client::builder()
        // A redirect would send a server's credential to where it does not belong, and a
        // proxy from the environment would send everything.
        .redirect(Policy::none())
        .no_proxy()
        .connect_timeout(CONNECT)
}

impl fmt::Debug for Upstreams {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Addresses may hold credentials.
        f.debug_struct("Upstreams").finish_non_exhaustive()
    }
}

impl Upstreams {
    /// Nothing connected yet.
    pub fn new(options: Options) -> Result<Self, UpstreamError> {
        let clients = Clients {
            anywhere: client().build().map_err(UpstreamError::unreachable)?,
            public: client()
                .dns_resolver(Arc::new(Public))
                .build()
                .map_err(UpstreamError::unreachable)?,
        };
        Ok(Self {
            clients,
            options,
            entries: Mutex::default(),
            tasks: TaskTracker::new(),
            closed: CancellationToken::new(),
        })
    }

    /// All tools of a server.
    #[tracing::instrument(name = "upstream.list", skip_all, fields(server.id = %server.id))]
    pub async fn list(&self, server: &Server) -> Result<Vec<Definition>, UpstreamError> {
        let entry = self.entry(server)?;
        tokio::select! {
            biased;
            () = entry.closed.cancelled() => Err(UpstreamError::Closed),
            tools = self.try_list(&entry, server) => tools,
        }
    }

    async fn try_list(
        &self,
        entry: &Entry,
        server: &Server,
    ) -> Result<Vec<Definition>, UpstreamError> {
        let mut attempts = self.attempts(entry, server)?;
        loop {
            let connection = attempts.connection().await?;
            let outcome = timeout_at(attempts.deadline, connection.list()).await;
            if let ControlFlow::Break(tools) = attempts.settle(&connection, outcome) {
                return tools;
            }
        }
    }

    /// Calls a tool of a server.
    ///
    /// A call is made at most once, except that it is made again when the server is known not to
    /// have carried it out. Dropping the future withdraws the call.
    #[tracing::instrument(name = "upstream.call", skip_all, fields(server.id = %server.id))]
    pub async fn call(&self, server: &Server, call: Call<'_>) -> Result<Reply, UpstreamError> {
        let entry = self.entry(server)?;
        tokio::select! {
            biased;
            () = call.cancel.cancelled() => Err(UpstreamError::Cancelled),
            () = entry.closed.cancelled() => Err(UpstreamError::Closed),
            reply = self.try_call(&entry, server, &call) => reply,
        }
    }

    async fn try_call(
        &self,
        entry: &Entry,
        server: &Server,
        call: &Call<'_>,
    ) -> Result<Reply, UpstreamError> {
        let mut attempts = self.attempts(entry, server)?;
        loop {
            let connection = attempts.connection().await?;
            let outcome = timeout_at(attempts.deadline, connection.call(call)).await;
            if let ControlFlow::Break(reply) = attempts.settle(&connection, outcome) {
                return reply;
            }
        }
    }

    /// Ends everything that goes on with a server, because it was removed or switched off.
    ///
    /// Its process is killed and calls in flight end with [`UpstreamError::Closed`]. Must be
    /// called within the runtime.
    pub fn forget(&self, id: Uuid) {
        let entry = lock(&self.entries).remove(&id);
        if let Some(entry) = entry {
            entry.closed.cancel();
            self.tasks.spawn(async move { entry.close().await });
        }
    }

    /// Ends everything and waits until no process is left. Calls made later are refused.
    pub async fn shutdown(&self) {
        let entries: Vec<Arc<Entry>> = {
            let mut entries = lock(&self.entries);
            // Within the lock, so that no entry is added after this.
            self.closed.cancel();
            entries.drain().map(|(_, entry)| entry).collect()
        };
        join_all(entries.iter().map(|entry| entry.close())).await;
        drop(entries);
        self.tasks.close();
        if timeout(FAREWELL, self.tasks.wait()).await.is_err() {
            tracing::warn!(tasks = self.tasks.len(), "upstream servers did not end in time");
        }
    }

    fn entry(&self, server: &Server) -> Result<Arc<Entry>, UpstreamError> {
        let mut entries = lock(&self.entries);
        if self.closed.is_cancelled() {
            return Err(UpstreamError::Closed);
        }
        match entries.get(&server.id) {
            Some(entry) if entry.is_for(server) => Ok(Arc::clone(entry)),
            // A changed server gets a new connection. Calls on the old one come to their end and
            // take it with them.
            Some(_) | None => {
                let entry = Arc::new(Entry::new(server, self.closed.child_token()));
                entries.insert(server.id, Arc::clone(&entry));
                Ok(entry)
            }
        }
    }

    fn attempts<'a>(
        &'a self,
        entry: &'a Entry,
        server: &Server,
    ) -> Result<Attempts<'a>, UpstreamError> {
        Ok(Attempts {
            upstreams: self,
            entry,
            deadline: Instant::now() + server.timeout.min(LONGEST),
            renewed: false,
            _slot: entry.slot()?,
        })
    }

    /// The server's connection, opened now if there is none. Who comes while it is being opened
    /// waits for it rather than opening another.
    async fn connection(
        &self,
        entry: &Entry,
        deadline: Instant,
    ) -> Result<Arc<Connection>, UpstreamError> {
        if let Some(connection) = entry.current()? {
            return Ok(connection);
        }
        let _turn = timeout_at(deadline, entry.connecting.lock())
            .await
            .map_err(|_| UpstreamError::Timeout)?;
        if let Some(connection) = entry.current()? {
            return Ok(connection);
        }
        let opening = Connection::open(&entry.transport, &self.clients, &self.options, &self.tasks);
        let opened =
            timeout_at(deadline, Box::pin(opening)).await.unwrap_or(Err(UpstreamError::Timeout));
        entry.opened(opened)
    }
}

/// The attempts to do one thing: one, or two when the first was not carried out.
struct Attempts<'a> {
    upstreams: &'a Upstreams,
    entry: &'a Entry,
    deadline: Instant,
    renewed: bool,
    _slot: SemaphorePermit<'a>,
}

impl Attempts<'_> {
    async fn connection(&self) -> Result<Arc<Connection>, UpstreamError> {
        self.upstreams.connection(self.entry, self.deadline).await
    }

    /// Notes how an attempt went. Breaks unless another one is due.
    fn settle<T>(
        &mut self,
        connection: &Arc<Connection>,
        outcome: Result<Result<T, Failure>, Elapsed>,
    ) -> ControlFlow<Result<T, UpstreamError>> {
        let outcome = outcome.unwrap_or_else(|_| Err(connection.late()));
        self.entry.note(connection, outcome.as_ref().err());
        match outcome {
            Ok(done) => ControlFlow::Break(Ok(done)),
            Err(Failure { effect: Effect::Renew, .. }) if !self.renewed => {
                self.renewed = true;
                ControlFlow::Continue(())
            }
            Err(failure) => ControlFlow::Break(Err(failure.error)),
        }
    }
}

/// What is known of one server.
#[derive(Debug)]
struct Entry {
    transport: Transport,
    max_in_flight: usize,
    slots: Semaphore,
    /// Held while connecting, by the one who does.
    connecting: AsyncMutex<()>,
    state: Mutex<State>,
    closed: CancellationToken,
}

#[derive(Debug, Default)]
struct State {
    connection: Option<Arc<Connection>>,
    breaker: Breaker,
}

impl Entry {
    fn new(server: &Server, closed: CancellationToken) -> Self {
        Self {
            transport: server.transport.clone(),
            max_in_flight: server.max_in_flight,
            slots: Semaphore::new(server.max_in_flight.min(Semaphore::MAX_PERMITS)),
            connecting: AsyncMutex::default(),
            state: Mutex::default(),
            closed,
        }
    }

    fn is_for(&self, server: &Server) -> bool {
        self.max_in_flight == server.max_in_flight && self.transport.same(&server.transport)
    }

    fn slot(&self) -> Result<SemaphorePermit<'_>, UpstreamError> {
        self.slots.try_acquire().map_err(|_| UpstreamError::Busy)
    }

    /// The connection, if there is one; an error, if none is to be opened for now.
    fn current(&self) -> Result<Option<Arc<Connection>>, UpstreamError> {
        let mut state = lock(&self.state);
        // A process that ended while nobody used it is simply started again.
        state.connection.take_if(|connection| !connection.is_open());
        match (&state.connection, state.breaker.pause(Instant::now())) {
            (Some(connection), _) => Ok(Some(Arc::clone(connection))),
            (None, Some(retry_after)) => Err(UpstreamError::Broken { retry_after }),
            (None, None) => Ok(None),
        }
    }

    /// Notes how connecting went.
    fn opened(
        &self,
        opened: Result<Connection, UpstreamError>,
    ) -> Result<Arc<Connection>, UpstreamError> {
        let mut state = lock(&self.state);
        match opened {
            Ok(connection) => {
                let connection = Arc::new(connection);
                state.connection = Some(Arc::clone(&connection));
                Ok(connection)
            }
            // Time does not heal these, and the reason is worth more than a pause.
            Err(error @ (UpstreamError::Misconfigured(_) | UpstreamError::Sandbox(_))) => {
                Err(error)
            }
            Err(error) => {
                state.breaker.strike(Strike::Connecting, Instant::now());
                Err(error)
            }
        }
    }

    /// Notes how an exchange went on `connection`.
    fn note(&self, connection: &Arc<Connection>, failure: Option<&Failure>) {
        let mut state = lock(&self.state);
        let mut give_up = || {
            // Another call may have given it up already, and a third have opened the next one.
            state.connection.take_if(|current| Arc::ptr_eq(current, connection)).is_some()
        };
        match failure {
            // No answer is no proof of health.
            Some(Failure { effect: Effect::Keep, error: UpstreamError::Timeout }) => {}
            None | Some(Failure { effect: Effect::Keep, .. }) => state.breaker.clear(),
            Some(Failure { effect: Effect::Renew | Effect::Retire, .. }) => {
                give_up();
            }
            Some(Failure { effect: Effect::Lose, .. }) => {
                if give_up() {
                    state.breaker.strike(Strike::Connected, Instant::now());
                }
            }
        }
    }

    async fn close(&self) {
        self.closed.cancel();
        let connection = lock(&self.state).connection.take();
        if let Some(connection) = connection {
            drop(timeout(FAREWELL, connection.close()).await);
        }
    }
}
