//! Unix sockets of a sandbox: they forward to the orchestrator's models and tools and to nothing else.
//!
//! **Invariant**: a process in the sandbox chooses neither the address nor the identity, and only the listed paths. The
//! node adds the job's token; the sandbox never sees it. Semaphores bound the connections.

mod forward;
mod net;

use std::{
    convert::Infallible,
    io,
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::fs::PermissionsExt,
    },
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use cynode_core::nodes::JobEventData;
use http_body_util::{BodyExt, Full, combinators::UnsyncBoxBody};
use hyper::{
    Request, Response, StatusCode,
    body::Incoming,
    header::{CONTENT_TYPE, HeaderValue},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use rustix::fs::{Mode, OFlags};
use secrecy::SecretString;
use serde_json::json;
use tokio::{
    net::{UnixListener, UnixStream},
    sync::Semaphore,
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

pub(crate) use forward::AgentUpstream;
pub(crate) use net::EgressAllowlist;

use crate::sandbox::SocketForward;

/// Port of the models inside the sandbox.
pub(crate) const MODELS_PORT: u16 = 4001;
/// Port of the tools inside the sandbox.
pub(crate) const TOOLS_PORT: u16 = 4002;
/// Port of the egress proxy for package registries inside the sandbox.
pub(crate) const NET_PORT: u16 = 4003;

/// Maximum number of concurrent connections of one socket.
const MAX_CONNECTIONS: usize = 128;

/// Timeout for reading a request's headers.
const HEADER_READ_TIMEOUT: Duration = Duration::from_secs(30);

/// Pause after an accept that failed.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(200);

type Body = UnsyncBoxBody<Bytes, anyhow::Error>;

/// Handles the requests of one kind of socket.
trait SocketHandler: Send + Sync + 'static {
    fn handle_request(
        self: Arc<Self>,
        request: Request<Incoming>,
    ) -> impl Future<Output = Response<Body>> + Send;
}

/// Open sockets of a job. Dropping it closes them and ends every connection.
#[derive(Debug)]
pub(crate) struct JobSockets {
    stop: CancellationToken,
    dir: PathBuf,
    forwards: Vec<SocketForward>,
}

/// Egress permissions of a job.
pub(crate) struct JobEgress {
    /// Access to models and tools, if the worker may use them.
    pub(crate) agent: Option<AgentEgress>,
    /// Allowlist for package registries, if there is one.
    pub(crate) net: Option<EgressAllowlist>,
    /// Receives an event for each use.
    pub(crate) tell: Arc<dyn Fn(JobEventData) + Send + Sync>,
}

/// Access of an agent to models and tools.
pub(crate) struct AgentEgress {
    /// The orchestrator.
    pub(crate) upstream: AgentUpstream,
    /// Token of the job.
    pub(crate) token: SecretString,
    /// Trace header that every forwarded request carries.
    pub(crate) trace: String,
}

impl JobSockets {
    /// Binds the sockets of a job below `dir`.
    pub(crate) fn bind_sockets(
        dir: &Path,
        reach: JobEgress,
        tasks: &TaskTracker,
    ) -> io::Result<Self> {
        let stop = CancellationToken::new();
        let folder = rustix::fs::open(
            dir,
            OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC,
            Mode::empty(),
        )?;
        let mut sockets = Self { stop, dir: dir.to_owned(), forwards: Vec::new() };
        if let Some(AgentEgress { upstream, token, trace }) = reach.agent {
            let forward = |kind| {
                let (upstream, token, trace) = (upstream.clone(), token.clone(), trace.clone());
                Arc::new(forward::UpstreamForwarder::new(kind, upstream, token, trace))
            };
            sockets.bind_socket(
                &folder,
                "llm",
                MODELS_PORT,
                forward(forward::UpstreamKind::Models),
                tasks,
            )?;
            sockets.bind_socket(
                &folder,
                "mcp",
                TOOLS_PORT,
                forward(forward::UpstreamKind::Tools),
                tasks,
            )?;
        }
        if let Some(allowed) = reach.net {
            let door = Arc::new(net::EgressProxy::new(
                allowed,
                reach.tell,
                tasks.clone(),
                sockets.stop.clone(),
            ));
            sockets.bind_socket(&folder, "net", NET_PORT, door, tasks)?;
        }
        Ok(sockets)
    }

    fn bind_socket(
        &mut self,
        folder: &OwnedFd,
        name: &str,
        port: u16,
        door: Arc<impl SocketHandler>,
        tasks: &TaskTracker,
    ) -> io::Result<()> {
        let file = format!("{name}.sock");
        let host = self.dir.join(&file);
        match std::fs::remove_file(&host) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        // The length of a socket address is limited, and state directories can have long paths.
        let short = format!("/proc/self/fd/{}/{file}", folder.as_raw_fd());
        let listener = UnixListener::bind(short)?;
        // The socket belongs to the node until the sandbox gives it to the job's user. No other user ever has access.
        std::fs::set_permissions(&host, std::fs::Permissions::from_mode(0o600))?;
        tasks.spawn(serve_listener(listener, door, tasks.clone(), self.stop.clone()));
        self.forwards.push(SocketForward { host, port, name: name.to_owned() });
        Ok(())
    }

    /// Returns the sockets in the form that a sandbox run expects.
    pub(crate) fn socket_forwards(&self) -> &[SocketForward] {
        &self.forwards
    }

    /// Returns the host path of the gateway socket.
    pub(crate) fn gateway_socket(&self) -> PathBuf {
        self.dir.join("mcp.sock")
    }
}

impl Drop for JobSockets {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

async fn serve_listener(
    listener: UnixListener,
    door: Arc<impl SocketHandler>,
    tasks: TaskTracker,
    stop: CancellationToken,
) {
    let room = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    loop {
        let accepted = tokio::select! {
            () = stop.cancelled() => return,
            accepted = listener.accept() => accepted,
        };
        let Ok((stream, _)) = accepted else {
            // Too many open files: wait until other connections end.
            let _ = tokio::time::timeout(ACCEPT_RETRY_DELAY, stop.cancelled()).await;
            continue;
        };
        // Connections above the limit are closed at once: a sandbox must not exhaust the node.
        let Ok(place) = Arc::clone(&room).try_acquire_owned() else { continue };
        let connection = handle_connection(stream, Arc::clone(&door));
        let stop = stop.clone();
        tasks.spawn(async move {
            let _place = place;
            tokio::select! {
                () = stop.cancelled() => {}
                () = connection => {}
            }
        });
    }
}

async fn handle_connection(stream: UnixStream, door: Arc<impl SocketHandler>) {
    let service = service_fn(move |request| {
        let door = Arc::clone(&door);
        async move { Ok::<_, Infallible>(door.handle_request(request).await) }
    });
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_READ_TIMEOUT)
        .max_buf_size(128 * 1024)
        .serve_connection(TokioIo::new(stream), service)
        .with_upgrades()
        .await;
    if let Err(error) = served {
        tracing::debug!(event = "socket.closed", %error, "a connection from the sandbox ended");
    }
}

/// Builds an error response of the node itself, in a form that clients of every dialect can read.
fn error_response(status: StatusCode, message: &str) -> Response<Body> {
    let body =
        json!({ "error": { "type": "cynode_node", "code": status.as_u16(), "message": message } });
    let mut response = Response::new(full_body(body.to_string()));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

fn full_body(text: impl Into<Bytes>) -> Body {
    Full::new(text.into()).map_err(|never| match never {}).boxed_unsync()
}
