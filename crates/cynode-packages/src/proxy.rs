//! The proxy: cache, upstreams, advisories, and what all jobs share.

use std::{
    collections::BTreeSet,
    fmt, io,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use cynode_core::environments::{PackageFetch, PackagePolicy, PackageSource};
use time::OffsetDateTime;
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    task::spawn_blocking,
};
use url::Url;

use crate::{
    advisories::Advisories,
    error::{PackageProxyError, Refusal},
    handler::JobPackageHandler,
    integrity::ExpectedDigest,
    single_flight::SingleFlight,
    store::{CacheEntry, PackageStore},
    upstream_client::{FetchOutcome, FetchRequest, UpstreamClient},
    upstreams::{Upstream, Upstreams},
};

/// Maximum size of a document of an index, which is parsed in memory.
const MAX_DOCUMENT_BYTES: u64 = 64 << 20;

/// Maximum size of a package.
const MAX_FILE_BYTES: u64 = 4 << 30;

/// Size of a document up to which it is parsed at any time.
const SMALL_DOCUMENT_BYTES: u64 = 4 << 20;

/// Maximum number of large documents that are in memory at the same time.
const MAX_PARALLEL_PARSES: usize = 2;

/// How long a document is used without asking whether it has changed, in seconds.
const DOCUMENT_TTL_SECONDS: i64 = 300;

/// Media type that is asked for where the upstream has one form only.
const ANY_TYPE: &str = "*/*";

/// Returns the time in seconds since 1970.
pub type UnixClock = Arc<dyn Fn() -> i64 + Send + Sync>;

/// Configuration of the proxy.
#[derive(Clone, Debug)]
pub struct PackageProxyOptions {
    /// Directory of the cache.
    pub directory: PathBuf,
    /// Size of the cache above which the least recently used files are removed.
    pub max_cache_bytes: u64,
    /// Free disk space below which nothing more is fetched.
    pub min_free_bytes: u64,
    /// Registries.
    pub upstreams: Upstreams,
    /// File of advisories in the OSV format; versions that it names are refused.
    pub advisories: Option<PathBuf>,
    /// Whether nothing is fetched: only the cache answers.
    pub offline: bool,
}

/// What a job may fetch, and who is told about it.
#[derive(Clone)]
pub struct JobPackages {
    /// Registries that the job may use.
    pub sources: Vec<PackageSource>,
    /// Package policy.
    pub policy: PackagePolicy,
    /// Versions that a lock file names, such as `crates:textwrap==0.15.1`. They may be yanked: whoever locked them has built with them.
    pub locked: BTreeSet<String>,
    /// Receives every fetch of a package and every refusal.
    pub report: Arc<dyn Fn(PackageFetch) + Send + Sync>,
}

impl fmt::Debug for JobPackages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JobPackages")
            .field("sources", &self.sources)
            .field("policy", &self.policy)
            .finish_non_exhaustive()
    }
}

/// Figures of the proxy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PackageProxyStats {
    /// Number of files in the cache.
    pub cached_files: u64,
    /// Bytes of the files in the cache.
    pub cached_bytes: u64,
    /// Number of requests to upstreams since the start.
    pub upstream_requests: u64,
    /// Bytes received from upstreams since the start.
    pub upstream_bytes: u64,
    /// Number of package files given to jobs since the start.
    pub served_files: u64,
    /// Number of refusals since the start.
    pub refusals: u64,
}

/// A file of the cache, ready to be given to a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StoredFile {
    pub(crate) sha256: String,
    pub(crate) bytes: u64,
    /// Whether it was there before the request.
    pub(crate) cached: bool,
}

/// A document of an index.
#[derive(Debug)]
pub(crate) struct IndexDocument {
    pub(crate) body: Vec<u8>,
    pub(crate) content_type: String,
    /// Where it came from, for addresses in it that are relative.
    pub(crate) url: Url,
    /// Place of a large document in memory. Whoever keeps what was parsed of it keeps this, too.
    pub(crate) turn: Option<OwnedSemaphorePermit>,
}

/// Package proxy of a node.
pub struct PackageProxy {
    store: Arc<PackageStore>,
    client: UpstreamClient,
    upstreams: Upstreams,
    advisories: Arc<Advisories>,
    offline: bool,
    flights: SingleFlight,
    parses: Arc<Semaphore>,
    clock: UnixClock,
    served_files: AtomicU64,
    refusals: AtomicU64,
}

impl fmt::Debug for PackageProxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PackageProxy").field("offline", &self.offline).finish_non_exhaustive()
    }
}

impl PackageProxy {
    /// Opens the proxy over its cache.
    pub fn open(options: PackageProxyOptions) -> Result<Arc<Self>, PackageProxyError> {
        Self::open_with_clock(options, Arc::new(system_time))
    }

    /// Opens the proxy with a clock, which decides about the age of versions and of documents.
    pub fn open_with_clock(
        options: PackageProxyOptions,
        clock: UnixClock,
    ) -> Result<Arc<Self>, PackageProxyError> {
        let PackageProxyOptions {
            directory,
            max_cache_bytes,
            min_free_bytes,
            upstreams,
            advisories,
            offline,
        } = options;
        let store = PackageStore::open(&directory, max_cache_bytes).map_err(|source| {
            let what = format!("the package cache {} cannot be used", directory.display());
            PackageProxyError::Io { what, source }
        })?;
        let advisories = advisories.map(|path| Advisories::read(&path)).transpose()?;
        Ok(Arc::new(Self {
            store: Arc::new(store),
            client: UpstreamClient::new(&upstreams, min_free_bytes)?,
            upstreams,
            advisories: Arc::new(advisories.unwrap_or_default()),
            offline,
            flights: SingleFlight::default(),
            parses: Arc::new(Semaphore::new(MAX_PARALLEL_PARSES)),
            clock,
            served_files: AtomicU64::new(0),
            refusals: AtomicU64::new(0),
        }))
    }

    /// Makes the handler of a job's socket.
    pub fn job_handler(self: &Arc<Self>, job: JobPackages) -> Arc<JobPackageHandler> {
        Arc::new(JobPackageHandler::new(Arc::clone(self), Arc::clone(&self.advisories), job))
    }

    /// Returns why a package that was fetched earlier would be refused now, if one has an advisory. A package is written as
    /// `SOURCE:PACKAGE==VERSION`.
    pub fn find_advisory<'a>(
        &self,
        packages: impl IntoIterator<Item = &'a String>,
    ) -> Option<String> {
        packages.into_iter().find_map(|package| {
            let (source, rest) = package.split_once(':')?;
            let (name, version) = rest.rsplit_once("==")?;
            let source = PackageSource::ALL.into_iter().find(|it| it.as_str() == source)?;
            let id = self.advisories.find(source, name, version)?;
            Some(format!("`{}:{name} {version}` has the advisory {id}", source.as_str()))
        })
    }

    /// Returns lines of apt's sources that lead through the proxy; see [`Upstreams::apt_sources`].
    pub fn apt_sources(&self, release: Option<&str>) -> String {
        self.upstreams.apt_sources(release)
    }

    /// Writes the cache into one tar file, which appears whole or not at all. It blocks.
    pub fn export_cache(&self, to: &Path) -> Result<(), PackageProxyError> {
        self.store.export(to).map(|_| ())
    }

    /// Takes over a tar file of [`Self::export_cache`]. All digests are checked first; if one is wrong, nothing is taken over. It blocks.
    pub fn import_cache(&self, from: &Path) -> Result<(), PackageProxyError> {
        self.store.import(from).map(|_| ())
    }

    /// Removes the least recently used files if the cache is too large. Returns the number of removed bytes. It blocks.
    pub fn prune(&self) -> Result<u64, PackageProxyError> {
        self.store
            .prune()
            .map_err(|error| PackageProxyError::io("the package cache could not be pruned", error))
    }

    /// Returns figures. It blocks while the cache is measured.
    pub fn stats(&self) -> PackageProxyStats {
        let size = self.store.measure_size().unwrap_or_default();
        let (upstream_requests, upstream_bytes) = self.client.traffic();
        PackageProxyStats {
            cached_files: size.files,
            cached_bytes: size.bytes,
            upstream_requests,
            upstream_bytes,
            served_files: self.served_files.load(Ordering::Relaxed),
            refusals: self.refusals.load(Ordering::Relaxed),
        }
    }

    pub(crate) const fn upstreams(&self) -> &Upstreams {
        &self.upstreams
    }

    pub(crate) const fn store(&self) -> &Arc<PackageStore> {
        &self.store
    }

    pub(crate) fn now(&self) -> i64 {
        (self.clock)()
    }

    pub(crate) fn count_served_file(&self) {
        self.served_files.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn count_refusal(&self) {
        self.refusals.fetch_add(1, Ordering::Relaxed);
    }

    /// Waits until a document of that size may be read: a parsed one takes several times its size.
    async fn reserve_parse(&self, bytes: u64) -> Option<OwnedSemaphorePermit> {
        if bytes <= SMALL_DOCUMENT_BYTES {
            return None;
        }
        Arc::clone(&self.parses).acquire_owned().await.ok()
    }

    /// Loads a document of an index, from the cache if it is fresh.
    pub(crate) async fn load_document(
        &self,
        upstream: &Upstream,
        url: Url,
        accept: &'static str,
    ) -> Result<IndexDocument, Refusal> {
        let key = format!("document {accept} {url}");
        let entry =
            self.load_entry(&key, upstream, url.clone(), accept, MAX_DOCUMENT_BYTES, None).await?.0;
        let turn = self.reserve_parse(entry.bytes).await;
        let store = Arc::clone(&self.store);
        let body = spawn_blocking(move || store.read_file(&entry.sha256, MAX_DOCUMENT_BYTES))
            .await
            .map_err(io::Error::other)
            .flatten()
            .map_err(|error| Refusal::disk(&error))?;
        let content_type = entry.content_type.unwrap_or_default();
        Ok(IndexDocument { body, content_type, url, turn })
    }

    /// Loads a file that may change at its address, such as an index of Debian.
    pub(crate) async fn load_changing_file(
        &self,
        upstream: &Upstream,
        url: Url,
    ) -> Result<StoredFile, Refusal> {
        let key = format!("file {url}");
        let (entry, cached) =
            self.load_entry(&key, upstream, url, ANY_TYPE, MAX_FILE_BYTES, None).await?;
        Ok(StoredFile { sha256: entry.sha256, bytes: entry.bytes, cached })
    }

    /// Loads a file that never changes at its address and whose digest no index of ours names.
    pub(crate) async fn load_lasting_file(
        &self,
        upstream: &Upstream,
        url: Url,
    ) -> Result<StoredFile, Refusal> {
        let key = format!("lasting {url}");
        if let Some(entry) = self.store.find_entry(&key) {
            return Ok(StoredFile { sha256: entry.sha256, bytes: entry.bytes, cached: true });
        }
        let (entry, cached) =
            self.load_entry(&key, upstream, url, ANY_TYPE, MAX_FILE_BYTES, None).await?;
        Ok(StoredFile { sha256: entry.sha256, bytes: entry.bytes, cached })
    }

    /// Loads a package whose digest the index names.
    pub(crate) async fn load_checked_file(
        &self,
        upstream: &Upstream,
        url: Url,
        expected: &ExpectedDigest,
    ) -> Result<StoredFile, Refusal> {
        let key = format!("digest {expected}");
        if let Some(stored) = self.find_checked_file(&key, expected) {
            return Ok(stored);
        }
        let (entry, cached) =
            self.load_entry(&key, upstream, url, ANY_TYPE, MAX_FILE_BYTES, Some(expected)).await?;
        Ok(StoredFile { sha256: entry.sha256, bytes: entry.bytes, cached })
    }

    fn find_checked_file(&self, key: &str, expected: &ExpectedDigest) -> Option<StoredFile> {
        if let Some(sha256) = expected.as_sha256() {
            let bytes = self.store.find_file(&sha256)?;
            return Some(StoredFile { sha256, bytes, cached: true });
        }
        let entry = self.store.find_entry(key)?;
        Some(StoredFile { sha256: entry.sha256, bytes: entry.bytes, cached: true })
    }

    /// Loads what a key stands for. Returns whether it was in the cache. One request per key goes to the upstream at a time.
    async fn load_entry(
        &self,
        key: &str,
        upstream: &Upstream,
        url: Url,
        accept: &'static str,
        max_bytes: u64,
        expected: Option<&ExpectedDigest>,
    ) -> Result<(CacheEntry, bool), Refusal> {
        if let Some(entry) = self.find_fresh_entry(key, expected) {
            return Ok((entry, true));
        }
        if self.offline {
            return Err(Refusal::unavailable(
                "the node is offline and its package cache does not have this: import a cache that has it",
            ));
        }
        let _flight = self.flights.lock_key(key).await;
        if let Some(entry) = self.find_fresh_entry(key, expected) {
            return Ok((entry, true));
        }
        let stale = self.store.find_entry(key);
        let request = FetchRequest {
            upstream,
            url,
            accept,
            etag: stale.as_ref().and_then(|entry| entry.etag.as_deref()),
            last_modified: stale.as_ref().and_then(|entry| entry.last_modified.as_deref()),
            max_bytes,
            expected,
        };
        let entry = match (self.client.fetch(request, &self.store).await, stale) {
            (Ok(FetchOutcome::NotModified), Some(mut entry)) => {
                entry.fetched_at = self.now();
                self.store.commit_entry(&entry).map_err(|error| Refusal::disk(&error))?;
                return Ok((entry, true));
            }
            (Ok(FetchOutcome::NotModified), None) => {
                return Err(Refusal::upstream("the registry answered 304 without being asked"));
            }
            (Ok(FetchOutcome::Missing), _) => {
                return Err(Refusal::not_found("the registry has no such package or file"));
            }
            (Ok(FetchOutcome::File(file)), _) => {
                let entry = CacheEntry {
                    key: key.to_owned(),
                    sha256: file.sha256,
                    bytes: file.bytes,
                    content_type: file.content_type,
                    etag: file.etag,
                    last_modified: file.last_modified,
                    fetched_at: self.now(),
                    digest: expected.map(ToString::to_string),
                };
                let committed = self.store.commit_file(file.path, &entry.sha256, entry.bytes);
                committed
                    .and_then(|()| self.store.commit_entry(&entry))
                    .map_err(|error| Refusal::disk(&error))?;
                entry
            }
            // A registry that fails for a while does not stop jobs that need nothing new.
            (Err(refusal), Some(entry)) if refusal.status.is_server_error() => {
                tracing::warn!(
                    event = "packages.stale_used",
                    key,
                    reason = refusal.reason,
                    "a registry fails; an older index is used"
                );
                return Ok((entry, true));
            }
            (Err(refusal), _) => return Err(refusal),
        };
        self.prune_if_large();
        Ok((entry, false))
    }

    fn find_fresh_entry(&self, key: &str, expected: Option<&ExpectedDigest>) -> Option<CacheEntry> {
        let entry = self.store.find_entry(key)?;
        let age = self.now().saturating_sub(entry.fetched_at);
        let fresh = expected.is_some() || self.offline || (0..DOCUMENT_TTL_SECONDS).contains(&age);
        fresh.then_some(entry)
    }

    fn prune_if_large(&self) {
        if !self.store.is_over_limit() {
            return;
        }
        let store = Arc::clone(&self.store);
        drop(spawn_blocking(move || {
            if let Err(error) = store.prune() {
                tracing::warn!(event = "packages.prune_failed", %error, "the package cache could not be pruned");
            }
        }));
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "this is the clock of the program; tests give another"
)]
fn system_time() -> i64 {
    OffsetDateTime::now_utc().unix_timestamp()
}
