//! A proxy with one job, and a client of its socket.

use std::{
    collections::BTreeMap,
    path::PathBuf,
    sync::{Arc, Mutex, atomic::AtomicI64, atomic::Ordering},
};

use bytes::Bytes;
use cynode_core::environments::{PackageFetch, PackagePolicy, PackageSource};
use cynode_packages::{JobPackages, PackageProxy, PackageProxyOptions, Upstreams};
use cynode_sandbox::bind_socket_server;
use cynode_testkit::package_registry::PackageRegistry;
use http_body_util::{BodyExt, Full};
use hyper::{Request, StatusCode, client::conn::http1, header::HeaderMap};
use hyper_util::rt::TokioIo;
use tempfile::TempDir;
use tokio::net::UnixStream;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

/// 2027-01-15T08:00:00Z.
pub(crate) const NOW: i64 = 1_800_000_000;

/// How a proxy is set up.
#[derive(Default)]
pub(crate) struct Setup {
    pub(crate) policy: PackagePolicy,
    pub(crate) sources: Option<Vec<PackageSource>>,
    pub(crate) advisories: Option<String>,
    pub(crate) offline: bool,
    pub(crate) max_cache_bytes: Option<u64>,
    /// Directory of the cache, if it is shared.
    pub(crate) cache: Option<PathBuf>,
    /// Further keys of the node's configuration.
    pub(crate) overrides: Vec<(&'static str, String)>,
}

/// A proxy that serves one job.
pub(crate) struct Scene {
    pub(crate) registry: Arc<PackageRegistry>,
    pub(crate) proxy: Arc<PackageProxy>,
    pub(crate) clock: Arc<AtomicI64>,
    reports: Arc<Mutex<Vec<PackageFetch>>>,
    socket: PathBuf,
    pub(crate) folder: TempDir,
    stop: CancellationToken,
}

impl Drop for Scene {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

/// What the proxy answered.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl Reply {
    /// The status and the reason of a refusal.
    pub(crate) fn refusal(&self) -> (u16, String) {
        let body: serde_json::Value = serde_json::from_slice(&self.body).unwrap();
        (self.status.as_u16(), body["error"].as_str().unwrap().to_owned())
    }

    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }
}

impl Scene {
    pub(crate) async fn start(setup: Setup) -> Self {
        Self::over(Arc::new(PackageRegistry::start().await), setup)
    }

    pub(crate) fn over(registry: Arc<PackageRegistry>, setup: Setup) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut overrides = registry.addresses();
        overrides.extend(setup.overrides.into_iter().map(|(key, value)| (key.to_owned(), value)));
        let (upstreams, warnings) =
            Upstreams::from_machine(&overrides, folder.path(), &BTreeMap::new());
        assert_eq!(warnings, Vec::<String>::new());
        let advisories = setup.advisories.map(|text| {
            let path = folder.path().join("advisories.json");
            std::fs::write(&path, text).unwrap();
            path
        });
        let clock = Arc::new(AtomicI64::new(NOW));
        let now = Arc::clone(&clock);
        let proxy = PackageProxy::open_with_clock(
            PackageProxyOptions {
                directory: setup.cache.unwrap_or_else(|| folder.path().join("cache")),
                max_cache_bytes: setup.max_cache_bytes.unwrap_or(1 << 30),
                min_free_bytes: 0,
                upstreams,
                advisories,
                offline: setup.offline,
            },
            Arc::new(move || now.load(Ordering::Relaxed)),
        )
        .unwrap();
        let reports = Arc::new(Mutex::new(Vec::new()));
        let reported = Arc::clone(&reports);
        let handler = proxy.job_handler(JobPackages {
            sources: setup.sources.unwrap_or(PackageSource::ALL.to_vec()),
            policy: setup.policy,
            locked: [].into(),
            report: Arc::new(move |fetch| reported.lock().unwrap().push(fetch)),
        });
        let (tasks, stop) = (TaskTracker::new(), CancellationToken::new());
        let forward =
            bind_socket_server(folder.path(), "packages", 3129, handler, &tasks, &stop).unwrap();
        Self { registry, proxy, clock, reports, socket: forward.host, folder, stop }
    }

    pub(crate) async fn get(&self, path: &str) -> Reply {
        self.send(Request::get(path).header("host", "127.0.0.1:3129")).await
    }

    pub(crate) async fn send(&self, request: hyper::http::request::Builder) -> Reply {
        let request = request.body(Full::new(Bytes::new())).unwrap();
        let stream = UnixStream::connect(&self.socket).await.unwrap();
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.unwrap();
        let tasks = TaskTracker::new();
        tasks.spawn(connection);
        let (parts, body) = sender.send_request(request).await.unwrap().into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        Reply { status: parts.status, headers: parts.headers, body }
    }

    /// Takes the reports so far.
    pub(crate) fn take_reports(&self) -> Vec<PackageFetch> {
        std::mem::take(&mut *self.reports.lock().unwrap())
    }

    /// Returns the names of files in the cache and of temporary files.
    pub(crate) fn cached_files(&self) -> (usize, usize) {
        let count = |name: &str| walk(&self.folder.path().join("cache").join(name));
        (count("files"), count("tmp"))
    }
}

fn walk(folder: &std::path::Path) -> usize {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries.map(|path| if path.is_dir() { walk(&path) } else { 1 }).sum()
}
