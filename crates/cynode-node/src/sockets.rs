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

/// The port of the models inside.
pub(crate) const MODELS_PORT: u16 = 4001;
/// The port of the tools inside.
pub(crate) const TOOLS_PORT: u16 = 4002;
/// The port of the way to package registries inside.
pub(crate) const NET_PORT: u16 = 4003;

/// Most connections of one socket at once.
const MAX_CONNECTIONS: usize = 128;

/// How long a request may take to be told.
const HEADER_READ_TIMEOUT: Duration = Duration::from_secs(30);

type Body = UnsyncBoxBody<Bytes, anyhow::Error>;

/// What one kind of socket does with requests.
trait SocketHandler: Send + Sync + 'static {
    fn handle_request(
        self: Arc<Self>,
        request: Request<Incoming>,
    ) -> impl Future<Output = Response<Body>> + Send;
}

/// The open sockets of a job. Dropped, they are closed and every connection ends.
#[derive(Debug)]
pub(crate) struct JobSockets {
    stop: CancellationToken,
    dir: PathBuf,
    forwards: Vec<SocketForward>,
}

/// What a job may reach.
pub(crate) struct JobEgress {
    /// Models and tools, when somebody works who may ask for them.
    pub(crate) agent: Option<AgentEgress>,
    /// The hosts that may be asked for packages, when there are any.
    pub(crate) net: Option<EgressAllowlist>,
    /// Where uses of them are told.
    pub(crate) tell: Arc<dyn Fn(JobEventData) + Send + Sync>,
}

/// What an agent may reach.
pub(crate) struct AgentEgress {
    /// The orchestrator.
    pub(crate) upstream: AgentUpstream,
    /// What opens it for this job.
    pub(crate) token: SecretString,
    /// The trace that everything carries.
    pub(crate) trace: String,
}

impl JobSockets {
    /// Opens the sockets of a job below `dir`.
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
        // The address of a socket is short; state directories may be anywhere.
        let short = format!("/proc/self/fd/{}/{file}", folder.as_raw_fd());
        let listener = UnixListener::bind(short)?;
        // The node's, until the sandbox gives it to the user of the job; nobody else's at any time.
        std::fs::set_permissions(&host, std::fs::Permissions::from_mode(0o600))?;
        tasks.spawn(serve_listener(listener, door, tasks.clone(), self.stop.clone()));
        self.forwards.push(SocketForward { host, port, name: name.to_owned() });
        Ok(())
    }

    /// The sockets, as a sandbox wants them.
    pub(crate) fn socket_forwards(&self) -> &[SocketForward] {
        &self.forwards
    }

    /// The socket of the tool gate, on the host.
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
            // Too many open files: those that are open will end.
            tokio::task::yield_now().await;
            continue;
        };
        // One too many is closed at once: the sandbox must not fill the node.
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

/// An answer of the node itself, in a form that clients of every dialect can read.
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
