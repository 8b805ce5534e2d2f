//! HTTP over Unix sockets that are forwarded into a sandbox. Semaphores bound the connections.

use std::{
    convert::Infallible,
    error::Error as StdError,
    io,
    os::{fd::AsRawFd, unix::fs::PermissionsExt},
    path::Path,
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
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
use serde_json::json;
use tokio::{
    net::{UnixListener, UnixStream},
    sync::Semaphore,
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::SocketForward;

/// Maximum number of concurrent connections of one socket.
const MAX_CONNECTIONS: usize = 128;

/// Pause after an accept that failed.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(200);

/// Timeout for reading a request's headers.
const HEADER_READ_TIMEOUT: Duration = Duration::from_secs(30);

/// Body of a response.
pub type SocketBody = UnsyncBoxBody<Bytes, SocketBodyError>;

/// A body that could not be forwarded to its end.
#[derive(Debug, thiserror::Error)]
#[error("the body could not be forwarded")]
pub struct SocketBodyError(#[source] Box<dyn StdError + Send + Sync>);

impl SocketBodyError {
    /// Wraps the cause.
    pub fn from_cause(cause: impl StdError + Send + Sync + 'static) -> Self {
        Self(Box::new(cause))
    }
}

/// Handles the requests of one kind of socket.
pub trait SocketHandler: Send + Sync + 'static {
    /// Answers one request.
    fn handle_request(
        self: Arc<Self>,
        request: Request<Incoming>,
    ) -> impl Future<Output = Response<SocketBody>> + Send;
}

/// Binds the socket `<name>.sock` in a directory and serves it until `stop`. Until a run takes it over, nobody but this process has
/// access.
pub fn bind_socket_server(
    dir: &Path,
    name: &str,
    port: u16,
    handler: Arc<impl SocketHandler>,
    tasks: &TaskTracker,
    stop: &CancellationToken,
) -> io::Result<SocketForward> {
    let folder = rustix::fs::open(
        dir,
        OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC,
        Mode::empty(),
    )?;
    let file = format!("{name}.sock");
    let host = dir.join(&file);
    match std::fs::remove_file(&host) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    // The length of a socket address is limited, and state directories can have long paths.
    let short = format!("/proc/self/fd/{}/{file}", folder.as_raw_fd());
    let listener = UnixListener::bind(short)?;
    // The socket belongs to this process until the sandbox gives it to its user. No other user ever has access.
    std::fs::set_permissions(&host, std::fs::Permissions::from_mode(0o600))?;
    tasks.spawn(serve_listener(listener, handler, tasks.clone(), stop.clone()));
    Ok(SocketForward { host, port, name: name.to_owned() })
}

async fn serve_listener(
    listener: UnixListener,
    handler: Arc<impl SocketHandler>,
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
        // Connections above the limit are closed at once: a sandbox must not exhaust this process.
        let Ok(place) = Arc::clone(&room).try_acquire_owned() else { continue };
        let connection = handle_connection(stream, Arc::clone(&handler));
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

async fn handle_connection(stream: UnixStream, handler: Arc<impl SocketHandler>) {
    let service = service_fn(move |request| {
        let handler = Arc::clone(&handler);
        async move { Ok::<_, Infallible>(handler.handle_request(request).await) }
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

/// Builds an error response in a form that clients of every dialect can read. `kind` names the part that refuses.
pub fn error_response(kind: &str, status: StatusCode, message: &str) -> Response<SocketBody> {
    let body = json!({ "error": { "type": kind, "code": status.as_u16(), "message": message } });
    let mut response = Response::new(full_body(body.to_string()));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// Builds a body of known bytes.
pub fn full_body(text: impl Into<Bytes>) -> SocketBody {
    Full::new(text.into()).map_err(|never| match never {}).boxed_unsync()
}
