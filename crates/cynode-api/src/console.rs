//! The web console: its embedded files, their compressed forms and their caching.
//!
//! `console/dist` is embedded when the server is built. A build without it has no console, and says how to get one. A
//! path of the console that is no file is a page of the console, which finds its way by the address.

use std::{
    borrow::Cow,
    collections::BTreeMap,
    fmt,
    sync::{Arc, LazyLock},
};

use axum::{
    Router,
    body::Bytes,
    extract::State,
    http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Uri, header},
    response::{Html, IntoResponse, Response},
    routing::get,
};
use data_encoding::BASE64;
use sha2::{Digest, Sha256};

use crate::{
    AppState,
    etag::{content_digest, is_current},
    routes::path_not_found,
};

#[derive(rust_embed::Embed)]
#[folder = "../../console/dist"]
#[allow_missing = true]
struct EmbeddedConsole;

/// The page that every address of the console begins with.
const INDEX_FILE: &str = "index.html";

/// Folder of the files whose names contain a digest of their content.
const HASHED_FOLDER: &str = "assets";

/// Content security policy of the console: it loads from this server only, runs no inline script and no inline style,
/// and no other page may embed it in a frame.
const CONSOLE_SECURITY_POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; \
    connect-src 'self'; font-src 'self'; worker-src 'self'; manifest-src 'self'; base-uri 'none'; form-action 'self'; \
    frame-ancestors 'none'";

/// First segments of paths that are never a page of the console.
const API_SEGMENTS: [&str; 10] = [
    "v1",
    "scim",
    "healthz",
    "readyz",
    "metrics",
    "openapi.json",
    "answer",
    "mcp",
    "docs",
    ".well-known",
];

/// Content encodings in the order of preference, with the suffix of their files.
const CONTENT_ENCODINGS: [(&str, &str); 2] = [("br", ".br"), ("gzip", ".gz")];

/// The files of the console. Cloning them is cheap.
#[derive(Clone, Default)]
pub struct ConsoleFiles {
    files: Arc<BTreeMap<String, ConsoleFile>>,
}

impl fmt::Debug for ConsoleFiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConsoleFiles").field("count", &self.files.len()).finish()
    }
}

struct ConsoleFile {
    body: Bytes,
    digest: String,
}

impl ConsoleFiles {
    /// Returns the files that this program was built with: none, if the console was not built before.
    pub fn load_embedded() -> Self {
        let files = EmbeddedConsole::iter().filter_map(|path| {
            let file = EmbeddedConsole::get(&path)?;
            Some((path.into_owned(), file.data))
        });
        Self::from_files(files)
    }

    /// Returns these files, each with its path below `console/dist`.
    pub fn from_files(files: impl IntoIterator<Item = (String, Cow<'static, [u8]>)>) -> Self {
        let files = files.into_iter().map(|(path, data)| {
            let digest = content_digest(&data);
            let body = match data {
                Cow::Borrowed(data) => Bytes::from_static(data),
                Cow::Owned(data) => Bytes::from(data),
            };
            (path, ConsoleFile { body, digest })
        });
        Self { files: Arc::new(files.collect()) }
    }

    /// Returns the identifier of this build of the console. A page that was loaded from another build reloads itself.
    pub(crate) fn build_id(&self) -> Option<HeaderValue> {
        HeaderValue::from_str(&self.files.get(INDEX_FILE)?.digest).ok()
    }

    /// Returns a file, in the form that the client prefers.
    fn file_response(&self, path: &str, headers: &HeaderMap) -> Option<Response> {
        let file = self.files.get(path)?;
        let compressed = CONTENT_ENCODINGS.into_iter().find_map(|(encoding, suffix)| {
            let file = self.files.get(&format!("{path}{suffix}"))?;
            accepts_encoding(headers, encoding).then_some((encoding, file))
        });
        let (encoding, file) =
            compressed.map_or((None, file), |(encoding, file)| (Some(encoding), file));
        let etag = format!("\"{}\"", file.digest);
        let known = is_current(headers, &etag);
        let mut response = if known {
            StatusCode::NOT_MODIFIED.into_response()
        } else {
            let kind = [(header::CONTENT_TYPE, content_type_of(path))];
            (kind, file.body.clone()).into_response()
        };
        let hashed = path.split('/').next() == Some(HASHED_FOLDER);
        let caching = if hashed { "public, max-age=31536000, immutable" } else { "no-cache" };
        let headers = response.headers_mut();
        let mut set = |name: HeaderName, value: &'static str| {
            headers.insert(name, HeaderValue::from_static(value));
        };
        set(header::CACHE_CONTROL, caching);
        set(header::VARY, "accept-encoding");
        set(header::CONTENT_SECURITY_POLICY, CONSOLE_SECURITY_POLICY);
        if let Some(encoding) = encoding.filter(|_| !known) {
            set(header::CONTENT_ENCODING, encoding);
        }
        if let Ok(etag) = HeaderValue::from_str(&etag) {
            headers.insert(header::ETAG, etag);
        }
        Some(response)
    }

    /// Returns the page of the console, or with that status the page of a server without one.
    pub(crate) fn index_response(&self, missing: StatusCode, headers: &HeaderMap) -> Response {
        self.file_response(INDEX_FILE, headers)
            .unwrap_or_else(|| (missing, CONSOLE_MISSING_PAGE.to_response()).into_response())
    }
}

/// Returns the media type of a file by its name. A file of an unknown kind is only bytes.
fn content_type_of(path: &str) -> &'static str {
    match path.rsplit_once('.').map_or("", |(_, kind)| kind) {
        "html" => "text/html; charset=utf-8",
        "js" | "mjs" => "text/javascript; charset=utf-8",
        "css" => "text/css; charset=utf-8",
        "json" | "map" => "application/json",
        "webmanifest" => "application/manifest+json",
        "svg" => "image/svg+xml",
        "png" => "image/png",
        "ico" => "image/x-icon",
        "woff2" => "font/woff2",
        "wasm" => "application/wasm",
        "txt" => "text/plain; charset=utf-8",
        _ => "application/octet-stream",
    }
}

/// Returns whether a client takes a content encoding that it has to name.
fn accepts_encoding(headers: &HeaderMap, encoding: &str) -> bool {
    let values = headers.get_all(header::ACCEPT_ENCODING).iter();
    let mut offers = values.filter_map(|value| value.to_str().ok()).flat_map(|v| v.split(','));
    offers.any(|offer| {
        let (name, weight) = offer.split_once(';').unwrap_or((offer, ""));
        let weight = weight.trim().strip_prefix("q=").map_or(Ok(1.0), str::parse::<f32>);
        name.trim().eq_ignore_ascii_case(encoding) && weight.is_ok_and(|weight| weight > 0.0)
    })
}

/// Returns the page of the setup link.
pub(crate) fn page_routes() -> Router<AppState> {
    Router::new().route("/setup", get(setup_page))
}

async fn setup_page() -> Response {
    SETUP_PAGE.to_response()
}

/// Serves what has no route: a file of the console, or a page of it to a browser. Everything else is not found.
pub(crate) async fn serve_console(
    State(state): State<AppState>,
    method: Method,
    uri: Uri,
    headers: HeaderMap,
) -> Response {
    let path = uri.path().trim_start_matches('/');
    let first = path.split('/').next().unwrap_or_default();
    let compressed = CONTENT_ENCODINGS.iter().any(|(_, suffix)| path.ends_with(suffix));
    if !matches!(method, Method::GET | Method::HEAD) || API_SEGMENTS.contains(&first) || compressed
    {
        return path_not_found().await;
    }
    if let Some(file) = state.console.file_response(path, &headers) {
        return file;
    }
    let accepted = headers.get(header::ACCEPT).and_then(|value| value.to_str().ok());
    let page = accepted.is_some_and(|kinds| kinds.contains("text/html")) && first != HASHED_FOLDER;
    if page {
        state.console.index_response(StatusCode::NOT_FOUND, &headers)
    } else {
        path_not_found().await
    }
}

const PAGE_STYLE: &str = include_str!("../assets/home.css");
const PAGE_SCRIPT: &str = include_str!("../assets/home.js");

/// The page of the setup link.
static SETUP_PAGE: LazyLock<HomePage> = LazyLock::new(|| {
    HomePage::new("<p>The control plane is running. <a href=\"/\">Open it</a></p>")
});

/// The page of a server that was built without the console.
static CONSOLE_MISSING_PAGE: LazyLock<HomePage> = LazyLock::new(|| {
    HomePage::new(
        "<p>The control plane is running. It was built without the web console: use <code>cynork</code>, or run \
         <code>npm ci</code> and <code>npm run build</code> in <code>console/</code> and build the server again.</p>\
         <p><a href=\"/readyz\">Readiness</a> · <a href=\"/v1/openapi.json\">OpenAPI document</a></p>",
    )
});

/// A page of the server itself. Its style and its script are allowed by their digests.
struct HomePage {
    html: String,
    security_policy: Option<HeaderValue>,
}

impl HomePage {
    fn new(note: &str) -> Self {
        let html = include_str!("../assets/home.html")
            .replace("{{style}}", PAGE_STYLE)
            .replace("{{script}}", PAGE_SCRIPT)
            .replace("{{note}}", note);
        let digest = |text: &str| BASE64.encode(&Sha256::digest(text));
        let policy = format!(
            "default-src 'none'; style-src 'sha256-{}'; script-src 'sha256-{}'; connect-src 'self'; base-uri 'none'; \
             form-action 'none'; frame-ancestors 'none'",
            digest(PAGE_STYLE),
            digest(PAGE_SCRIPT),
        );
        Self { html, security_policy: HeaderValue::from_str(&policy).ok() }
    }

    fn to_response(&self) -> Response {
        let mut response = Html(self.html.clone()).into_response();
        if let Some(policy) = &self.security_policy {
            response.headers_mut().insert(header::CONTENT_SECURITY_POLICY, policy.clone());
        }
        response
    }
}
