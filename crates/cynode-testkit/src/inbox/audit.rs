//! Receivers of audit records: a syslog server, and an object store that takes objects.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    sync::{Arc, Mutex},
};

use axum::{
    Router,
    body::Bytes,
    extract::State,
    http::{HeaderMap, StatusCode, Uri, header},
    response::{IntoResponse, Response},
    routing::put,
};
use tokio::{io::AsyncReadExt, net::TcpListener};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

/// A syslog server over TCP. It reads a connection to its end and closes it.
pub struct SyslogInbox {
    /// Listen address.
    pub address: SocketAddr,
    messages: Arc<Mutex<Vec<String>>>,
    stop: CancellationToken,
}

impl SyslogInbox {
    /// Starts it on a free port.
    pub async fn start() -> Self {
        Self::over(TcpListener::bind("127.0.0.1:0").await.unwrap())
    }

    /// Starts it on a given listener.
    pub fn over(listener: TcpListener) -> Self {
        let address = listener.local_addr().unwrap();
        let messages = Arc::new(Mutex::new(Vec::new()));
        let stop = CancellationToken::new();
        let (received, until) = (Arc::clone(&messages), stop.clone());
        TaskTracker::new().spawn(async move {
            loop {
                let mut stream = tokio::select! {
                    () = until.cancelled() => return,
                    accepted = listener.accept() => accepted.unwrap().0,
                };
                let mut bytes = Vec::new();
                if stream.read_to_end(&mut bytes).await.is_ok() {
                    received.lock().unwrap().extend(read_frames(&bytes));
                }
            }
        });
        Self { address, messages, stop }
    }

    /// Returns the messages, in the order of their arrival.
    pub fn messages(&self) -> Vec<String> {
        self.messages.lock().unwrap().clone()
    }
}

impl Drop for SyslogInbox {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

/// Reads messages that are framed by octet counting.
fn read_frames(mut bytes: &[u8]) -> Vec<String> {
    let mut messages = Vec::new();
    while let Some(space) = bytes.iter().position(|byte| *byte == b' ') {
        let length: usize = std::str::from_utf8(&bytes[..space]).unwrap().parse().unwrap();
        let (message, rest) = bytes[space + 1..].split_at(length);
        messages.push(String::from_utf8(message.to_vec()).unwrap());
        bytes = rest;
    }
    messages
}

type StoredObjects = Arc<Mutex<BTreeMap<String, Vec<u8>>>>;

/// An object store that takes objects in the form of S3.
pub struct ObjectInbox {
    /// Listen address.
    pub address: SocketAddr,
    objects: StoredObjects,
    stop: CancellationToken,
}

impl ObjectInbox {
    /// Starts it on a free port.
    pub async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let objects = StoredObjects::default();
        let router = Router::new().route("/{*path}", put(take_object)).with_state(objects.clone());
        let stop = CancellationToken::new();
        let until = stop.clone().cancelled_owned();
        TaskTracker::new().spawn(async move {
            let _ = axum::serve(listener, router).with_graceful_shutdown(until).await;
        });
        Self { address, objects, stop }
    }

    /// Returns the objects by path, the bucket first.
    pub fn objects(&self) -> BTreeMap<String, String> {
        let objects = self.objects.lock().unwrap();
        let text = |bytes: &Vec<u8>| String::from_utf8(bytes.clone()).unwrap();
        objects.iter().map(|(path, bytes)| (path.clone(), text(bytes))).collect()
    }
}

impl Drop for ObjectInbox {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

async fn take_object(
    State(objects): State<StoredObjects>,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let signed = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    if !signed.is_some_and(|text| text.starts_with("AWS4-HMAC-SHA256 Credential=")) {
        return StatusCode::FORBIDDEN.into_response();
    }
    objects.lock().unwrap().insert(uri.path().to_owned(), body.to_vec());
    ([(header::ETAG, "\"an-etag\"")], StatusCode::OK).into_response()
}
