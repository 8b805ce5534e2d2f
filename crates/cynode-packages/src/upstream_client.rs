//! HTTP client of the upstreams. It sends GET requests to hosts of the upstream's allowlist and nothing of what a job sent: no header, no
//! body, no query.

use std::{
    io,
    net::{IpAddr, SocketAddr},
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use reqwest::{
    Response, StatusCode, Version,
    dns::{Addrs, Name, Resolve, Resolving},
    header::{
        ACCEPT, AUTHORIZATION, CONTENT_TYPE, ETAG, HeaderMap, HeaderName, HeaderValue,
        IF_MODIFIED_SINCE, IF_NONE_MATCH, LAST_MODIFIED, LOCATION, TRANSFER_ENCODING,
    },
    redirect::Policy,
};
use secrecy::ExposeSecret;
use tempfile::TempPath;
use tokio::{io::AsyncWriteExt, sync::Semaphore, time::timeout};
use url::Url;

use crate::{
    error::{PackageProxyError, Refusal},
    integrity::{ExpectedDigest, FileHasher},
    store::PackageStore,
    upstreams::{Upstream, Upstreams},
};

/// Maximum number of concurrent fetches.
const MAX_PARALLEL_FETCHES: usize = 16;

/// Maximum number of redirects of one fetch.
const MAX_REDIRECTS: usize = 5;

/// Timeout of a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(15);

/// Timeout between two pieces of a response.
const READ_TIMEOUT: Duration = Duration::from_mins(1);

/// Timeout of a whole fetch.
const FETCH_TIMEOUT: Duration = Duration::from_mins(30);

/// Number of downloaded bytes after which the free disk space is looked at again.
const DISK_CHECK_BYTES: u64 = 16 << 20;

/// Maximum number of bytes of a validator or a media type that is stored.
const MAX_HEADER_BYTES: usize = 500;

/// What is fetched.
pub(crate) struct FetchRequest<'a> {
    pub(crate) upstream: &'a Upstream,
    pub(crate) url: Url,
    pub(crate) accept: &'static str,
    /// Validators of what is in the cache.
    pub(crate) etag: Option<&'a str>,
    pub(crate) last_modified: Option<&'a str>,
    pub(crate) max_bytes: u64,
    pub(crate) expected: Option<&'a ExpectedDigest>,
}

/// What was fetched.
pub(crate) enum FetchOutcome {
    /// What is in the cache is still right.
    NotModified,
    /// The upstream has no such thing.
    Missing,
    /// A whole file, checked and synced.
    File(FetchedFile),
}

/// A fetched file that is not in the cache yet.
pub(crate) struct FetchedFile {
    pub(crate) path: TempPath,
    pub(crate) sha256: String,
    pub(crate) bytes: u64,
    pub(crate) content_type: Option<String>,
    pub(crate) etag: Option<String>,
    pub(crate) last_modified: Option<String>,
}

/// Client of all upstreams.
pub(crate) struct UpstreamClient {
    http: reqwest::Client,
    slots: Semaphore,
    min_free_bytes: u64,
    requests: AtomicU64,
    bytes: AtomicU64,
}

impl UpstreamClient {
    /// Sets the client up.
    pub(crate) fn new(
        upstreams: &Upstreams,
        min_free_bytes: u64,
    ) -> Result<Self, PackageProxyError> {
        let mut certificates = Vec::new();
        for path in &upstreams.certificate_files {
            let pem = std::fs::read(path).map_err(|error| error.to_string());
            let read = pem.and_then(|pem| {
                reqwest::Certificate::from_pem_bundle(&pem).map_err(|error| error.to_string())
            });
            match read {
                Ok(more) => certificates.extend(more),
                Err(error) => tracing::warn!(
                    event = "packages.certificates_unusable", path = %path.display(), error,
                    "certificates of the package clients cannot be read"
                ),
            }
        }
        let mut builder = reqwest::Client::builder()
            .user_agent("cynode-packages")
            .redirect(Policy::none())
            .connect_timeout(CONNECT_TIMEOUT)
            .read_timeout(READ_TIMEOUT)
            .dns_resolver(UpstreamResolver)
            .no_proxy();
        if !certificates.is_empty() {
            builder = builder.tls_certs_merge(certificates);
        }
        if let Some(address) = &upstreams.http_proxy {
            let proxy =
                reqwest::Proxy::all(address.expose_secret()).map_err(PackageProxyError::Client)?;
            let exceptions = upstreams.no_proxy.as_deref().and_then(reqwest::NoProxy::from_string);
            builder = builder.proxy(proxy.no_proxy(exceptions));
        }
        Ok(Self {
            http: builder.build().map_err(PackageProxyError::Client)?,
            slots: Semaphore::new(MAX_PARALLEL_FETCHES),
            min_free_bytes,
            requests: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
        })
    }

    /// Returns the number of requests that were sent and of bytes that were received.
    pub(crate) fn traffic(&self) -> (u64, u64) {
        (self.requests.load(Ordering::Relaxed), self.bytes.load(Ordering::Relaxed))
    }

    /// Fetches into a temporary file of the cache, and checks it.
    pub(crate) async fn fetch(
        &self,
        request: FetchRequest<'_>,
        store: &PackageStore,
    ) -> Result<FetchOutcome, Refusal> {
        let Ok(_slot) = self.slots.acquire().await else {
            return Err(Refusal::unavailable("the package proxy is shutting down"));
        };
        self.check_free_disk(store)?;
        let fetched = timeout(FETCH_TIMEOUT, self.fetch_whole(request, store)).await;
        fetched.unwrap_or_else(|_| Err(Refusal::upstream("the registry takes too long")))
    }

    fn check_free_disk(&self, store: &PackageStore) -> Result<(), Refusal> {
        if store.has_free_disk(self.min_free_bytes) {
            return Ok(());
        }
        Err(Refusal {
            status: StatusCode::INSUFFICIENT_STORAGE,
            reason: "the node's disk is full: nothing more is fetched".to_owned(),
        })
    }

    async fn fetch_whole(
        &self,
        request: FetchRequest<'_>,
        store: &PackageStore,
    ) -> Result<FetchOutcome, Refusal> {
        let response = self.send_following_redirects(&request).await?;
        match response.status() {
            StatusCode::NOT_MODIFIED => Ok(FetchOutcome::NotModified),
            StatusCode::NOT_FOUND
            | StatusCode::GONE
            | StatusCode::UNAVAILABLE_FOR_LEGAL_REASONS => Ok(FetchOutcome::Missing),
            StatusCode::OK => {
                self.download(response, &request, store).await.map(FetchOutcome::File)
            }
            status => Err(Refusal::upstream(format!("the registry answered {status}"))),
        }
    }

    async fn send_following_redirects(
        &self,
        request: &FetchRequest<'_>,
    ) -> Result<Response, Refusal> {
        let mut url = request.url.clone();
        for _ in 0..=MAX_REDIRECTS {
            if let Some(reason) = request.upstream.forbidden_reason(&url) {
                return Err(Refusal::forbidden(reason));
            }
            let response = self.send(request, url.clone()).await?;
            if !response.status().is_redirection() || response.status() == StatusCode::NOT_MODIFIED
            {
                return Ok(response);
            }
            let target = response.headers().get(LOCATION).and_then(|it| it.to_str().ok());
            url = target
                .and_then(|target| url.join(target).ok())
                .ok_or_else(|| Refusal::upstream("the registry redirects to no address"))?;
        }
        Err(Refusal::upstream("the registry redirects too often"))
    }

    async fn send(&self, request: &FetchRequest<'_>, url: Url) -> Result<Response, Refusal> {
        let mut headers = HeaderMap::new();
        headers.insert(ACCEPT, HeaderValue::from_static(request.accept));
        let mut add = |name: HeaderName, value: Option<&str>| {
            if let Some(value) = value.and_then(|it| HeaderValue::from_str(it).ok()) {
                headers.insert(name, value);
            }
        };
        add(IF_NONE_MATCH, request.etag);
        add(IF_MODIFIED_SINCE, request.last_modified);
        if let Some(secret) = request.upstream.authorization_for(&url)
            && let Ok(mut value) = HeaderValue::from_str(secret.expose_secret())
        {
            value.set_sensitive(true);
            headers.insert(AUTHORIZATION, value);
        }
        self.requests.fetch_add(1, Ordering::Relaxed);
        self.http.get(url).headers(headers).send().await.map_err(|error| {
            // The address may be that of a private mirror: it stays in the log of the node.
            let error = error.without_url();
            tracing::warn!(event = "packages.upstream_failed", error = ?error, "a registry does not answer");
            Refusal::upstream("the registry cannot be reached from the node")
        })
    }

    async fn download(
        &self,
        mut response: Response,
        request: &FetchRequest<'_>,
        store: &PackageStore,
    ) -> Result<FetchedFile, Refusal> {
        let too_large = || {
            let limit = request.max_bytes >> 20;
            Refusal::upstream(format!("the registry's answer is larger than {limit} MiB"))
        };
        let announced = response.content_length();
        if announced.is_some_and(|bytes| bytes > request.max_bytes) {
            return Err(too_large());
        }
        // Without a length the end of the connection would be the end of the file, so that a broken one looks whole.
        let delimited = announced.is_some()
            || response.version() >= Version::HTTP_2
            || response.headers().contains_key(TRANSFER_ENCODING);
        if !delimited {
            return Err(Refusal::upstream("the registry's answer has no length"));
        }
        let header = |name: HeaderName| {
            let value = response.headers().get(name)?.to_str().ok()?;
            (value.len() <= MAX_HEADER_BYTES).then(|| value.to_owned())
        };
        let (content_type, etag, last_modified) =
            (header(CONTENT_TYPE), header(ETAG), header(LAST_MODIFIED));
        let disk = |error: io::Error| Refusal::disk(&error);
        let (file, path) = store.create_temporary().map_err(disk)?.into_parts();
        let mut file = tokio::fs::File::from_std(file);
        let mut hasher = FileHasher::new(request.expected);
        let (mut bytes, mut unchecked) = (0_u64, 0_u64);
        loop {
            let chunk = response.chunk().await.map_err(|error| {
                let error = error.without_url();
                tracing::warn!(event = "packages.upstream_failed", error = ?error, "a registry's answer broke off");
                Refusal::upstream("the registry's answer broke off")
            })?;
            let Some(chunk) = chunk else { break };
            bytes += chunk.len() as u64;
            self.bytes.fetch_add(chunk.len() as u64, Ordering::Relaxed);
            if bytes > request.max_bytes {
                return Err(too_large());
            }
            // Many downloads at once could fill the disk, and the runs of all jobs would end.
            unchecked += chunk.len() as u64;
            if unchecked > DISK_CHECK_BYTES {
                unchecked = 0;
                self.check_free_disk(store)?;
            }
            hasher.update(&chunk);
            file.write_all(&chunk).await.map_err(disk)?;
        }
        if announced.is_some_and(|announced| announced != bytes) {
            return Err(Refusal::upstream("the registry's answer broke off"));
        }
        file.flush().await.map_err(disk)?;
        file.sync_all().await.map_err(disk)?;
        let sha256 = hasher.finish().map_err(|error| {
            Refusal::forbidden(format!("the file has a wrong digest and was not kept: {error}"))
        })?;
        Ok(FetchedFile { path, sha256, bytes, content_type, etag, last_modified })
    }
}

/// Resolves names of upstreams. The names come from the configuration, and a mirror may be in a private network; loopback, link-local and
/// cloud metadata addresses are never connected to by name.
#[derive(Clone, Copy, Debug)]
struct UpstreamResolver;

impl Resolve for UpstreamResolver {
    fn resolve(&self, name: Name) -> Resolving {
        Box::pin(async move {
            let resolved = tokio::net::lookup_host((name.as_str(), 0)).await?;
            let addresses: Vec<SocketAddr> =
                resolved.filter(|address| is_upstream_address(address.ip())).collect();
            if addresses.is_empty() {
                return Err("the name of the registry leads to no usable address".into());
            }
            Ok(Box::new(addresses.into_iter()) as Addrs)
        })
    }
}

fn is_upstream_address(ip: IpAddr) -> bool {
    let ip = ip.to_canonical();
    let link_local = match ip {
        IpAddr::V4(ip) => ip.is_link_local() || ip.is_broadcast(),
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    };
    !(ip.is_loopback() || ip.is_unspecified() || ip.is_multicast() || link_local)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_never_leads_to_this_machine_or_to_cloud_metadata() {
        let usable = |text: &str| is_upstream_address(text.parse().unwrap());
        for address in ["93.184.216.34", "10.0.0.1", "2606:2800:220:1::1"] {
            assert!(usable(address), "{address}");
        }
        for address in
            ["127.0.0.1", "169.254.169.254", "0.0.0.0", "::1", "::ffff:127.0.0.1", "fe80::1"]
        {
            assert!(!usable(address), "{address}");
        }
    }
}
