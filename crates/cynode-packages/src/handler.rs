//! Requests of one job: what is allowed, how it is answered, what is reported.

use std::{
    collections::HashSet,
    io::{self, SeekFrom},
    ops::Range,
    sync::{Arc, Mutex},
};

use bytes::Bytes;
use cynode_core::{
    environments::{PackageFetch, PackageSource},
    sync::lock_unpoisoned,
};
use cynode_sandbox::{SocketBody, SocketBodyError, SocketHandler, full_body};
use futures::TryStreamExt;
use http_body_util::{BodyExt, StreamBody};
use hyper::{
    Method, Request, Response, StatusCode,
    body::{Frame, Incoming},
    ext::ReasonPhrase,
    header::{
        ACCEPT, ACCEPT_RANGES, CACHE_CONTROL, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, ETAG,
        HOST, HeaderMap, HeaderName, HeaderValue, IF_NONE_MATCH, RANGE,
    },
};
use tokio::{
    io::{AsyncReadExt, AsyncSeekExt},
    sync::{OwnedSemaphorePermit, Semaphore},
};
use tokio_util::io::ReaderStream;

use crate::{
    PACKAGE_PORT,
    advisories::Advisories,
    error::Refusal,
    integrity::sha256_text,
    proxy::{JobPackages, PackageProxy, StoredFile},
    registries::{crates, debian, npm, pypi},
    rules::{PackageRules, VersionFacts, VersionRefusal},
    upstreams::decode_percent,
};

/// Maximum length of a path.
const MAX_PATH_BYTES: usize = 1000;

/// Maximum length of a reason in the status line.
const MAX_REASON_PHRASE_BYTES: usize = 300;

/// Maximum number of versions of one package whose absence from the index is reported.
const MAX_HIDDEN_REPORTS: usize = 20;

/// Maximum number of requests of a job that are answered at the same time: fewer than there are fetches at the same time, so that a job
/// leaves some to others. Further ones wait.
const MAX_JOB_REQUESTS: usize = 8;

/// Size of a document above which its request counts until the client has taken it: a client that does not read would fill the memory.
const MAX_FREE_DOCUMENT_BYTES: usize = 256 * 1024;

/// Size of the pieces in which such a document is sent.
const DOCUMENT_PIECE_BYTES: usize = 64 * 1024;

/// Maximum number of refusals of a job that are remembered.
const MAX_REPORTED_REFUSALS: usize = 10_000;

/// What a registry answers.
#[derive(Debug)]
pub(crate) enum Answer {
    /// Bytes that were made here.
    Document { body: Vec<u8>, content_type: &'static str },
    /// A file of the cache that is no package.
    File(StoredFile),
    /// A package.
    Package { file: StoredFile, package: String, version: String },
}

/// Handles the requests of one job.
pub struct JobPackageHandler {
    pub(crate) proxy: Arc<PackageProxy>,
    pub(crate) rules: PackageRules,
    job: JobPackages,
    reported: Mutex<HashSet<String>>,
    requests: Arc<Semaphore>,
}

/// Facts of a request that decide about the form of the answer.
#[derive(Clone, Debug)]
pub(crate) struct ClientFacts {
    /// Address of the proxy as the client sees it.
    pub(crate) base: String,
    /// Media types that the client accepts.
    pub(crate) accept: String,
}

impl JobPackageHandler {
    pub(crate) fn new(
        proxy: Arc<PackageProxy>,
        advisories: Arc<Advisories>,
        job: JobPackages,
    ) -> Self {
        let rules = PackageRules::new(job.policy.clone(), job.locked.clone(), advisories);
        let requests = Arc::new(Semaphore::new(MAX_JOB_REQUESTS));
        Self { proxy, rules, job, reported: Mutex::default(), requests }
    }

    /// Returns why a version is refused, and reports it.
    pub(crate) fn check_version(&self, facts: &VersionFacts<'_>) -> Result<(), Refusal> {
        match self.rules.version_refusal(facts, self.proxy.now()) {
            None => Ok(()),
            Some(VersionRefusal { reason, .. }) => {
                Err(self.refuse_package(facts.source, facts.package, facts.version, reason))
            }
        }
    }

    /// Returns whether the index shows a version. A hidden one is reported, unless the registry withdrew it.
    pub(crate) fn shows_version(
        &self,
        facts: &VersionFacts<'_>,
        hidden: &mut HiddenVersions,
    ) -> bool {
        let Some(refusal) = self.rules.version_refusal(facts, self.proxy.now()) else {
            hidden.shown += 1;
            return true;
        };
        if !refusal.is_withdrawn && hidden.reported < MAX_HIDDEN_REPORTS {
            hidden.reported += 1;
            self.report_refusal(facts.source, facts.package, facts.version, &refusal.reason);
        }
        hidden.last_reason = Some(refusal.reason);
        false
    }

    /// Refuses a package as a whole if policy does.
    pub(crate) fn check_package(
        &self,
        source: PackageSource,
        package: &str,
    ) -> Result<(), Refusal> {
        match self.rules.package_refusal(source, package) {
            None => Ok(()),
            Some(reason) => Err(self.refuse_package(source, package, "", reason)),
        }
    }

    /// Refuses a licence that policy forbids.
    pub(crate) fn check_licence(
        &self,
        source: PackageSource,
        package: &str,
        version: &str,
        licence: Option<&str>,
    ) -> Result<(), Refusal> {
        let Some(licence) = licence.filter(|text| !text.trim().is_empty()) else {
            tracing::info!(
                event = "packages.licence_unknown",
                source = source.as_str(),
                package,
                version,
                "the licence of a package is not known; it is allowed"
            );
            return Ok(());
        };
        match self.rules.licence_refusal(licence) {
            None => Ok(()),
            Some(reason) => {
                let reason = format!("{reason} of `{}:{package} {version}`", source.as_str());
                Err(self.refuse_package(source, package, version, reason))
            }
        }
    }

    /// Reports a refusal and returns it.
    pub(crate) fn refuse_package(
        &self,
        source: PackageSource,
        package: &str,
        version: &str,
        reason: String,
    ) -> Refusal {
        self.report_refusal(source, package, version, &reason);
        Refusal::forbidden(reason)
    }

    fn report_refusal(&self, source: PackageSource, package: &str, version: &str, reason: &str) {
        let key = format!("{} {package} {version} {reason}", source.as_str());
        let mut reported = lock_unpoisoned(&self.reported);
        if reported.len() >= MAX_REPORTED_REFUSALS || !reported.insert(key) {
            return;
        }
        drop(reported);
        self.proxy.count_refusal();
        (self.job.report)(PackageFetch {
            source,
            package: package.to_owned(),
            version: version.to_owned(),
            sha256: String::new(),
            bytes: 0,
            cached: false,
            refused: Some(reason.to_owned()),
        });
    }

    async fn answer(
        &self,
        request: &Request<Incoming>,
        turn: Option<OwnedSemaphorePermit>,
    ) -> Result<Response<SocketBody>, Refusal> {
        let method = request.method();
        if method != Method::GET && method != Method::HEAD {
            return Err(Refusal {
                status: StatusCode::FORBIDDEN,
                reason: format!(
                    "the package proxy answers GET and HEAD only, not {method}: uploads, logins and tunnels are refused"
                ),
            });
        }
        let uri = request.uri();
        if uri.query().is_some() {
            return Err(Refusal::forbidden("the package proxy answers no address with a query"));
        }
        if uri.authority().is_some_and(|it| !is_loopback_authority(it.as_str())) {
            return Err(Refusal::forbidden(
                "the package proxy connects to no host of your choice: use its own address",
            ));
        }
        let path = parse_path(uri.path())?;
        let segments: Vec<&str> = path.iter().map(String::as_str).collect();
        let client = ClientFacts::of_request(request.headers());
        let (source, rest) = find_source(&segments)?;
        if !self.job.sources.contains(&source) {
            let name = source.as_str();
            return Err(Refusal::forbidden(format!(
                "the environment does not have the package source `{name}`: add it to `package_sources`"
            )));
        }
        let answer = match source {
            PackageSource::Crates => crates::answer_request(self, rest, &client).await,
            PackageSource::Pypi => pypi::answer_request(self, rest, &client).await,
            PackageSource::Npm => npm::answer_request(self, rest, &client).await,
            PackageSource::Debian => debian::answer_request(self, rest).await,
        }?;
        self.respond(source, answer, request, turn).await
    }

    async fn respond(
        &self,
        source: PackageSource,
        answer: Answer,
        request: &Request<Incoming>,
        turn: Option<OwnedSemaphorePermit>,
    ) -> Result<Response<SocketBody>, Refusal> {
        let is_head = request.method() == Method::HEAD;
        match answer {
            Answer::Document { body, content_type } => {
                let etag = sha256_text(&String::from_utf8_lossy(&body));
                Ok(document_response(body, content_type, &etag, request, turn))
            }
            Answer::File(file) => self.file_response(&file, request).await,
            Answer::Package { file, package, version } => {
                let response = self.file_response(&file, request).await?;
                if !is_head {
                    self.proxy.count_served_file();
                    (self.job.report)(PackageFetch {
                        source,
                        package,
                        version,
                        sha256: file.sha256,
                        bytes: file.bytes,
                        cached: file.cached,
                        refused: None,
                    });
                }
                Ok(response)
            }
        }
    }

    async fn file_response(
        &self,
        file: &StoredFile,
        request: &Request<Incoming>,
    ) -> Result<Response<SocketBody>, Refusal> {
        let mut response = Response::new(full_body(""));
        set_header(response.headers_mut(), ETAG, &format!("\"{}\"", file.sha256));
        set_header(response.headers_mut(), ACCEPT_RANGES, "bytes");
        if matches_etag(request.headers(), &file.sha256) {
            *response.status_mut() = StatusCode::NOT_MODIFIED;
            return Ok(response);
        }
        set_header(response.headers_mut(), CONTENT_TYPE, "application/octet-stream");
        let range = match requested_range(request.headers(), file.bytes) {
            RequestedRange::Whole => 0..file.bytes,
            RequestedRange::Part(range) => {
                *response.status_mut() = StatusCode::PARTIAL_CONTENT;
                let last = range.end.saturating_sub(1);
                let text = format!("bytes {}-{last}/{}", range.start, file.bytes);
                set_header(response.headers_mut(), CONTENT_RANGE, &text);
                range
            }
            RequestedRange::Outside => {
                *response.status_mut() = StatusCode::RANGE_NOT_SATISFIABLE;
                let text = format!("bytes */{}", file.bytes);
                set_header(response.headers_mut(), CONTENT_RANGE, &text);
                return Ok(response);
            }
        };
        let length = range.end - range.start;
        set_header(response.headers_mut(), CONTENT_LENGTH, &length.to_string());
        if request.method() != Method::HEAD {
            *response.body_mut() =
                self.file_body(file, range).await.map_err(|error| Refusal::disk(&error))?;
        }
        Ok(response)
    }

    async fn file_body(&self, file: &StoredFile, range: Range<u64>) -> io::Result<SocketBody> {
        let opened = self.proxy.store().open_file(&file.sha256)?;
        let mut opened = tokio::fs::File::from_std(opened);
        if range.start > 0 {
            opened.seek(SeekFrom::Start(range.start)).await?;
        }
        let stream = ReaderStream::with_capacity(opened.take(range.end - range.start), 64 * 1024);
        let frames = stream.map_ok(Frame::data).map_err(SocketBodyError::from_cause);
        Ok(StreamBody::new(frames).boxed_unsync())
    }
}

impl SocketHandler for JobPackageHandler {
    async fn handle_request(self: Arc<Self>, request: Request<Incoming>) -> Response<SocketBody> {
        let turn = Arc::clone(&self.requests).acquire_owned().await.ok();
        match self.answer(&request, turn).await {
            Ok(response) => response,
            Err(refusal) => {
                tracing::debug!(
                    event = "packages.refused",
                    status = refusal.status.as_u16(),
                    reason = refusal.reason,
                    "a request of a job was refused"
                );
                refusal_response(&refusal)
            }
        }
    }
}

/// Count of versions that an index shows and hides.
#[derive(Debug, Default)]
pub(crate) struct HiddenVersions {
    shown: usize,
    reported: usize,
    last_reason: Option<String>,
}

impl HiddenVersions {
    /// Refuses an index whose versions are all hidden, so that the client gets the reason.
    pub(crate) fn check_any_shown(self) -> Result<(), Refusal> {
        match self.last_reason.filter(|_| self.shown == 0) {
            Some(reason) => Err(Refusal::forbidden(format!("no version is allowed: {reason}"))),
            None => Ok(()),
        }
    }
}

impl ClientFacts {
    fn of_request(headers: &HeaderMap) -> Self {
        let text = |name: HeaderName| {
            headers.get(name).and_then(|it| it.to_str().ok()).unwrap_or_default().to_owned()
        };
        let host = Some(text(HOST)).filter(|host| is_loopback_authority(host));
        let host = host.unwrap_or_else(|| format!("127.0.0.1:{PACKAGE_PORT}"));
        Self { base: format!("http://{host}"), accept: text(ACCEPT) }
    }
}

/// Returns whether an authority is an address at which a client reaches the proxy.
fn is_loopback_authority(text: &str) -> bool {
    let port = text.strip_prefix("127.0.0.1:").or_else(|| text.strip_prefix("localhost:"));
    port.is_some_and(|port| port.parse::<u16>().is_ok())
}

/// Takes a path apart. Segments that a file system or an upstream could understand in another way are refused.
fn parse_path(path: &str) -> Result<Vec<String>, Refusal> {
    let refuse = || Refusal::forbidden("the package proxy has no such address");
    if path.len() > MAX_PATH_BYTES {
        return Err(refuse());
    }
    let decoded = decode_percent(path);
    let rest = decoded.strip_prefix('/').ok_or_else(refuse)?;
    let segments: Vec<String> = rest.split('/').map(str::to_owned).collect();
    let allowed = |c: char| c.is_ascii_alphanumeric() || "-._~+@:,=!()*'$".contains(c);
    let plain = |(at, segment): (usize, &String)| {
        // A path may end with a slash.
        let is_end = segment.is_empty() && at + 1 == segments.len();
        is_end
            || (!segment.is_empty()
                && segment != "."
                && segment != ".."
                && segment.chars().all(allowed))
    };
    if segments.iter().enumerate().all(plain) { Ok(segments) } else { Err(refuse()) }
}

/// Finds the registry of a path.
fn find_source<'a, 'b>(segments: &'b [&'a str]) -> Result<(PackageSource, &'b [&'a str]), Refusal> {
    let refuse = || {
        Refusal::forbidden(
            "the package proxy has no such address: it serves /crates/, /pypi/simple/, /npm/ and /debian/",
        )
    };
    let (first, rest) = segments.split_first().ok_or_else(refuse)?;
    let source = PackageSource::ALL.into_iter().find(|it| it.as_str() == *first);
    match source {
        Some(source) => Ok((source, rest)),
        // Lock files of npm hold addresses without the prefix of the registry.
        None if segments.contains(&"-") => Ok((PackageSource::Npm, segments)),
        None => Err(refuse()),
    }
}

/// Part of a file that a client asks for.
#[derive(Debug, PartialEq, Eq)]
enum RequestedRange {
    Whole,
    Part(Range<u64>),
    Outside,
}

fn requested_range(headers: &HeaderMap, length: u64) -> RequestedRange {
    let text = headers.get(RANGE).and_then(|it| it.to_str().ok());
    let Some((first, last)) =
        text.and_then(|text| text.strip_prefix("bytes=")).and_then(|text| text.split_once('-'))
    else {
        return RequestedRange::Whole;
    };
    let number = |text: &str| text.trim().parse::<u64>().ok();
    // Several ranges, or none that can be read: the whole file is a right answer.
    let range = match (first.trim().is_empty(), number(first), last.trim().is_empty(), number(last))
    {
        (false, Some(first), true, _) => first..length,
        (false, Some(first), false, Some(last)) => first..last.saturating_add(1).min(length),
        (true, _, false, Some(count)) => length.saturating_sub(count)..length,
        _ => return RequestedRange::Whole,
    };
    if range.is_empty() { RequestedRange::Outside } else { RequestedRange::Part(range) }
}

fn matches_etag(headers: &HeaderMap, etag: &str) -> bool {
    let sent = headers.get(IF_NONE_MATCH).and_then(|it| it.to_str().ok()).unwrap_or_default();
    sent.split(',').any(|it| it.trim().trim_start_matches("W/").trim_matches('"') == etag)
}

fn document_response(
    body: Vec<u8>,
    content_type: &'static str,
    etag: &str,
    request: &Request<Incoming>,
    turn: Option<OwnedSemaphorePermit>,
) -> Response<SocketBody> {
    let mut response = Response::new(full_body(""));
    set_header(response.headers_mut(), ETAG, &format!("\"{etag}\""));
    set_header(response.headers_mut(), CACHE_CONTROL, "no-cache");
    if matches_etag(request.headers(), etag) {
        *response.status_mut() = StatusCode::NOT_MODIFIED;
        return response;
    }
    set_header(response.headers_mut(), CONTENT_TYPE, content_type);
    set_header(response.headers_mut(), CONTENT_LENGTH, &body.len().to_string());
    if request.method() != Method::HEAD {
        *response.body_mut() = document_body(body, turn);
    }
    response
}

/// Builds the body of a document. A large one keeps the turn of its request until the client has taken it.
fn document_body(body: Vec<u8>, turn: Option<OwnedSemaphorePermit>) -> SocketBody {
    if body.len() <= MAX_FREE_DOCUMENT_BYTES {
        return full_body(body);
    }
    let body = Bytes::from(body);
    let pieces = (0..body.len()).step_by(DOCUMENT_PIECE_BYTES).map(move |start| {
        let _turn = &turn;
        let end = (start + DOCUMENT_PIECE_BYTES).min(body.len());
        Ok::<_, SocketBodyError>(Frame::data(body.slice(start..end)))
    });
    StreamBody::new(futures::stream::iter(pieces)).boxed_unsync()
}

/// Says why in the body and in the status line, because some clients show only one of them.
fn refusal_response(refusal: &Refusal) -> Response<SocketBody> {
    let body = serde_json::json!({ "error": refusal.reason }).to_string();
    let mut response = Response::new(full_body(body));
    *response.status_mut() = refusal.status;
    set_header(response.headers_mut(), CONTENT_TYPE, "application/json");
    let phrase: String = refusal
        .reason
        .chars()
        .map(|c| if c.is_ascii_graphic() || c == ' ' { c } else { '?' })
        .take(MAX_REASON_PHRASE_BYTES)
        .collect();
    if let Ok(phrase) = ReasonPhrase::try_from(phrase) {
        response.extensions_mut().insert(phrase);
    }
    response
}

fn set_header(headers: &mut HeaderMap, name: HeaderName, value: &str) {
    if let Ok(value) = HeaderValue::from_str(value) {
        headers.insert(name, value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_with_another_meaning_elsewhere_is_refused() {
        let parsed = |path: &str| parse_path(path).ok().map(|it| it.join("|"));
        assert_eq!(parsed("/npm/@types%2fnode").as_deref(), Some("npm|@types|node"));
        assert_eq!(parsed("/pypi/simple/a/").as_deref(), Some("pypi|simple|a|"));
        for path in [
            "/a/../b",
            "/a/%2e%2e/b",
            "//a",
            "/a//b",
            "/a%00",
            "/a\\b",
            "/a%5cb",
            "/a%0d%0ab",
            "/a%25",
            "*",
            "/a?b",
            "/a#b",
            "/a b",
        ] {
            assert_eq!(parsed(path), None, "{path}");
        }
    }

    #[test]
    fn the_source_of_a_path_is_its_first_segment() {
        let source =
            |path: &[&str]| find_source(path).ok().map(|(source, rest)| (source, rest.len()));
        assert_eq!(source(&["pypi", "simple", "x"]), Some((PackageSource::Pypi, 2)));
        assert_eq!(source(&["qs", "-", "qs-1.tgz"]), Some((PackageSource::Npm, 3)));
        assert_eq!(source(&["legacy", ""]), None);
    }

    #[test]
    fn ranges_are_cut_to_the_file() {
        let range = |text: &'static str| {
            let headers = HeaderMap::from_iter([(RANGE, HeaderValue::from_static(text))]);
            requested_range(&headers, 10)
        };
        assert_eq!(range("bytes=0-3"), RequestedRange::Part(0..4));
        assert_eq!(range("bytes=4-"), RequestedRange::Part(4..10));
        assert_eq!(range("bytes=-3"), RequestedRange::Part(7..10));
        assert_eq!(range("bytes=4-100"), RequestedRange::Part(4..10));
        assert_eq!(range("bytes=10-"), RequestedRange::Outside);
        assert_eq!(range("bytes=0-1,3-4"), RequestedRange::Whole);
        assert_eq!(range("lines=1-2"), RequestedRange::Whole);
    }
}
