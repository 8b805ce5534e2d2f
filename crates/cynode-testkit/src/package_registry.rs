//! A package registry on loopback that speaks the wire formats of crates, Python, npm and Debian packages, and records every request.
//!
//! Documents are made of the packages that a test adds. A reply at any path can be replaced: by a redirect, a body that breaks off, a body
//! that waits.

use std::{
    collections::BTreeMap,
    convert::Infallible,
    io,
    net::SocketAddr,
    sync::{Arc, Mutex},
};

use axum::{
    Router,
    body::{Body, Bytes},
    extract::State,
    http::{HeaderMap, Method, StatusCode, Uri, header},
    response::Response,
};
use data_encoding::{BASE64, HEXLOWER};
use futures::{StreamExt, stream};
use ring::digest::{SHA256, SHA512, digest};
use serde_json::{Value, json};
use tokio::{net::TcpListener, sync::watch};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

/// Reply of the registry at a path.
#[derive(Clone, Debug)]
pub enum RegistryReply {
    /// A media type and a body.
    Body(&'static str, Vec<u8>),
    /// A redirect to an address.
    Redirect(String),
    /// A body that breaks off in the middle of its announced length.
    Truncated(Vec<u8>),
    /// A body that comes when [`PackageRegistry::release_held`] was called.
    Held(Vec<u8>),
    /// A status without a body.
    Status(u16),
}

/// A request that the registry got.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegistryRequest {
    /// Method.
    pub method: String,
    /// Path and query.
    pub path: String,
    /// Names of its headers, in order of the alphabet.
    pub headers: Vec<String>,
    /// Size of its body.
    pub body_bytes: usize,
}

/// A version that is published, with what the index says about it.
#[derive(Clone, Debug)]
pub struct PublishedVersion {
    /// Name of the package.
    pub name: String,
    /// Version.
    pub version: String,
    /// The file.
    pub file: Vec<u8>,
    /// Bytes whose digest the index names, if it is not the file.
    pub digest_of: Option<Vec<u8>>,
    /// When it was published, as RFC 3339.
    pub published: Option<String>,
    /// Whether it was yanked.
    pub yanked: bool,
    /// Licence, for the registries whose index has it.
    pub licence: Option<String>,
}

impl PublishedVersion {
    /// A version with a file and nothing special.
    pub fn new(name: &str, version: &str, file: &[u8]) -> Self {
        Self {
            name: name.to_owned(),
            version: version.to_owned(),
            file: file.to_owned(),
            digest_of: None,
            published: None,
            yanked: false,
            licence: None,
        }
    }

    fn named_bytes(&self) -> &[u8] {
        self.digest_of.as_deref().unwrap_or(&self.file)
    }

    fn sha256(&self) -> String {
        HEXLOWER.encode(digest(&SHA256, self.named_bytes()).as_ref())
    }
}

struct RegistryState {
    replies: Mutex<BTreeMap<String, RegistryReply>>,
    requests: watch::Sender<Vec<RegistryRequest>>,
    released: watch::Sender<bool>,
}

/// A package registry.
pub struct PackageRegistry {
    /// Listen address.
    pub address: SocketAddr,
    shared: Arc<RegistryState>,
    stop: CancellationToken,
}

impl Drop for PackageRegistry {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

impl PackageRegistry {
    /// Starts it on a free port.
    pub async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(RegistryState {
            replies: Mutex::default(),
            requests: watch::Sender::default(),
            released: watch::Sender::new(false),
        });
        let stop = CancellationToken::new();
        let router = Router::new().fallback(reply).with_state(Arc::clone(&shared));
        let until = stop.clone().cancelled_owned();
        TaskTracker::new().spawn(async move {
            let _ = axum::serve(listener, router).with_graceful_shutdown(until).await;
        });
        let registry = Self { address, shared, stop };
        let dl = json!({ "dl": registry.url("/crates/dl/{crate}-{version}.crate") });
        registry.put_json("/crates/config.json", &dl);
        registry
    }

    /// Returns the address of a path.
    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    /// Returns the addresses of the four registries, by the keys of the node's configuration.
    pub fn addresses(&self) -> BTreeMap<String, String> {
        BTreeMap::from(
            [
                ("crates", self.url("/crates/")),
                ("pypi", self.url("/simple/")),
                ("npm", self.url("/npm/")),
                ("debian", format!("deb {} stable main", self.url("/debian"))),
            ]
            .map(|(key, value)| (key.to_owned(), value)),
        )
    }

    /// Sets the reply at a path.
    pub fn put_reply(&self, path: &str, reply: RegistryReply) {
        self.shared.replies.lock().unwrap().insert(path.to_owned(), reply);
    }

    fn put_json(&self, path: &str, value: &Value) {
        let body = value.to_string().into_bytes();
        self.put_reply(path, RegistryReply::Body("application/json", body));
    }

    /// Publishes versions of one crate. The archives are at `/crates/dl/NAME-VERSION.crate`.
    pub fn publish_crates(&self, versions: &[PublishedVersion]) {
        let mut lines = String::new();
        for it in versions {
            let line = json!({
                "name": it.name, "vers": it.version, "deps": [], "features": {},
                "cksum": it.sha256(), "yanked": it.yanked, "pubtime": it.published,
            });
            lines.push_str(&line.to_string());
            lines.push('\n');
            let path = format!("/crates/dl/{}-{}.crate", it.name, it.version);
            self.put_reply(&path, RegistryReply::Body("application/gzip", it.file.clone()));
        }
        let name = &versions[0].name;
        let path = format!("/crates/{}/{}/{name}", &name[..2], &name[2..4]);
        self.put_reply(&path, RegistryReply::Body("text/plain", lines.into_bytes()));
    }

    /// Publishes versions of one Python package as source archives, at `/files/NAME-VERSION.tar.gz`.
    pub fn publish_python(&self, versions: &[PublishedVersion]) {
        let mut files = Vec::new();
        for it in versions {
            let name = format!("{}-{}.tar.gz", it.name, it.version);
            let mut file = json!({
                "filename": name, "url": format!("../../files/{name}"),
                "hashes": { "sha256": it.sha256() }, "yanked": it.yanked,
            });
            if let Some(time) = &it.published {
                file["upload-time"] = json!(time);
            }
            if let Some(licence) = &it.licence {
                let text = format!("Name: {}\nLicense-Expression: {licence}\n", it.name);
                let sha256 = HEXLOWER.encode(digest(&SHA256, text.as_bytes()).as_ref());
                file["core-metadata"] = json!({ "sha256": sha256 });
                let reply = RegistryReply::Body("text/plain", text.into_bytes());
                self.put_reply(&format!("/files/{name}.metadata"), reply);
            }
            files.push(file);
            let reply = RegistryReply::Body("application/gzip", it.file.clone());
            self.put_reply(&format!("/files/{name}"), reply);
        }
        let index = json!({ "meta": { "api-version": "1.0" }, "files": files });
        let body = index.to_string().into_bytes();
        self.put_reply(
            &format!("/simple/{}/", versions[0].name),
            RegistryReply::Body("application/vnd.pypi.simple.v1+json", body),
        );
    }

    /// Publishes versions of one npm package. The tarballs are at `/npm/NAME/-/FILE-VERSION.tgz`.
    pub fn publish_npm(&self, versions: &[PublishedVersion]) {
        let name = &versions[0].name;
        let (mut entries, mut times) = (json!({}), json!({}));
        for it in versions {
            let file = name.rsplit('/').next().unwrap();
            let path = format!("/npm/{name}/-/{file}-{}.tgz", it.version);
            let sha512 = BASE64.encode(digest(&SHA512, it.named_bytes()).as_ref());
            let dist =
                json!({ "tarball": self.url(&path), "integrity": format!("sha512-{sha512}") });
            entries[&it.version] =
                json!({ "name": name, "version": it.version, "dist": dist, "license": it.licence });
            times[&it.version] = json!(it.published);
            self.put_reply(&path, RegistryReply::Body("application/gzip", it.file.clone()));
        }
        let latest = &versions[versions.len() - 1].version;
        let document = json!({
            "name": name, "dist-tags": { "latest": latest }, "versions": entries, "time": times,
        });
        self.put_json(&format!("/npm/{}", name.replace('/', "%2f")), &document);
    }

    /// Lets all [`RegistryReply::Held`] bodies come.
    pub fn release_held(&self) {
        self.shared.released.send_replace(true);
    }

    /// Returns all requests so far.
    pub fn requests(&self) -> Vec<RegistryRequest> {
        self.shared.requests.borrow().clone()
    }

    /// Returns the number of requests for a path.
    pub fn count_requests(&self, path: &str) -> usize {
        self.shared.requests.borrow().iter().filter(|it| it.path == path).count()
    }

    /// Waits until a path was asked for.
    pub async fn wait_requested(&self, path: &str) {
        let mut requests = self.shared.requests.subscribe();
        requests.wait_for(|all| all.iter().any(|it| it.path == path)).await.unwrap();
    }
}

async fn reply(
    State(shared): State<Arc<RegistryState>>,
    method: Method,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let path = uri.path_and_query().map(ToString::to_string).unwrap_or_default();
    let mut names: Vec<String> = headers.keys().map(ToString::to_string).collect();
    names.sort();
    shared.requests.send_modify(|all| {
        all.push(RegistryRequest {
            method: method.to_string(),
            path: path.clone(),
            headers: names,
            body_bytes: body.len(),
        });
    });
    let found = shared.replies.lock().unwrap().get(&path).cloned();
    let response = Response::builder();
    match found.unwrap_or(RegistryReply::Status(404)) {
        RegistryReply::Body(kind, bytes) => {
            response.header(header::CONTENT_TYPE, kind).body(Body::from(bytes))
        }
        RegistryReply::Redirect(target) => {
            response.status(StatusCode::FOUND).header(header::LOCATION, target).body(Body::empty())
        }
        RegistryReply::Truncated(bytes) => {
            let half = Bytes::copy_from_slice(&bytes[..bytes.len() / 2]);
            let end = async {
                // The server sends what it has while the body makes it wait.
                tokio::task::yield_now().await;
                Err(io::Error::other("broken off"))
            };
            let first = stream::iter([Ok(half)]);
            let body = Body::from_stream(first.chain(stream::once(end)));
            response.header(header::CONTENT_LENGTH, bytes.len()).body(body)
        }
        RegistryReply::Held(bytes) => {
            let half = Bytes::copy_from_slice(&bytes[..bytes.len() / 2]);
            let rest = Bytes::copy_from_slice(&bytes[bytes.len() / 2..]);
            let mut released = shared.released.subscribe();
            let second = async move {
                let _ = released.wait_for(|it| *it).await;
                Ok::<_, Infallible>(rest)
            };
            let first = stream::iter([Ok(half)]);
            let body = Body::from_stream(first.chain(stream::once(second)));
            response.header(header::CONTENT_LENGTH, bytes.len()).body(body)
        }
        RegistryReply::Status(status) => response.status(status).body(Body::empty()),
    }
    .unwrap()
}
