//! Browsers: cookie sessions, the same-origin rule for requests that a cookie authenticates, and security headers.
//!
//! A browser gets its session token as a cookie that scripts cannot read, and never in a body. Over HTTPS the cookie is
//! `__Host-cynode`. Over plain HTTP there is a cookie only between a browser on this machine and a loopback host name.
//! The cookie names its port there, because browsers share cookies between the ports of a host. Everywhere else a
//! browser is refused.
//!
//! Cross-site request forgery: a request that a cookie authenticates comes from this origin (`Sec-Fetch-Site`, `Origin`).
//! If it changes something it is JSON, even without a body, or a git bundle, which no form of another site can send.

use std::sync::Arc;

use axum::{
    extract::{FromRequestParts, Request, State},
    http::{HeaderMap, HeaderValue, header, request::Parts},
    middleware::Next,
    response::Response,
};
use cookie::{Cookie, SameSite};
use cynode_app::{
    Error,
    platform::tokens::{self, PresentedToken, TokenKind},
};
use cynode_wire::identity::accounts::SecretText;
use time::Duration;
use url::{Host, Url};

use crate::{AppState, console::ConsoleFiles, error::ApiError, extract::source_of};

/// Name of the session cookie over HTTPS. Browsers accept the prefix only from this very host and only over TLS.
const HTTPS_COOKIE_NAME: &str = "__Host-cynode";

/// Prefix of the session cookie's name over plain HTTP; the port follows.
const LOOPBACK_COOKIE_PREFIX: &str = "cynode-";

const FETCH_SITE_HEADER: &str = "sec-fetch-site";

const JSON_MEDIA_TYPE: &str = "application/json";

/// Media type of an uploaded repository, the only body of a browser that is not JSON.
const BUNDLE_MEDIA_TYPE: &str = "application/x-git-bundle";

/// Time for which a browser uses only HTTPS after it was here: one year.
const STRICT_TRANSPORT_SECURITY: &str = "max-age=31536000";

/// Headers of every response, unless the response has its own.
const RESPONSE_HEADERS: [(&str, &str); 7] = [
    (
        "content-security-policy",
        "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
    ("x-content-type-options", "nosniff"),
    ("referrer-policy", "no-referrer"),
    ("cross-origin-opener-policy", "same-origin"),
    ("cross-origin-resource-policy", "same-origin"),
    (
        "permissions-policy",
        "camera=(), display-capture=(), geolocation=(), microphone=(), payment=(), usb=()",
    ),
    ("cache-control", "no-store"),
];

/// How browsers may use cookie sessions on a port.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum BrowserAccess {
    /// A cookie is no credential.
    #[default]
    Disabled,
    /// People reach the port over plain HTTP. A cookie is a credential only on this machine.
    Loopback,
    /// People reach the port over HTTPS, at this origin.
    Https(Arc<str>),
}

impl BrowserAccess {
    /// Returns the access of a server with that public URL.
    pub fn from_public_url(url: Option<&Url>) -> Self {
        match url {
            Some(url) if url.scheme() == "https" => {
                Self::Https(url.origin().ascii_serialization().into())
            }
            Some(_) | None => Self::Loopback,
        }
    }

    /// Returns the session cookie of a request, or none where its connection is not safe enough for one.
    fn session_cookie(&self, parts: &Parts) -> Option<SessionCookie> {
        match self {
            Self::Disabled => None,
            Self::Https(_) => {
                Some(SessionCookie { name: HTTPS_COOKIE_NAME.to_owned(), secure: true })
            }
            Self::Loopback => {
                let (_, port) = loopback_host(&parts.headers)?;
                let name = format!("{LOOPBACK_COOKIE_PREFIX}{port}");
                source_of(&parts.extensions)
                    .is_local()
                    .then_some(SessionCookie { name, secure: false })
            }
        }
    }

    /// Refuses a request of a browser that another origin has caused. A request that changes something has to name its
    /// origin.
    fn require_same_origin(&self, parts: &Parts) -> Result<(), ApiError> {
        let site = single_header(&parts.headers, FETCH_SITE_HEADER)?;
        let origin = single_header(&parts.headers, header::ORIGIN.as_str())?;
        if site.is_some_and(|site| !matches!(site, "same-origin" | "none")) {
            return Err(ApiError::CrossSite);
        }
        if origin.is_some_and(|origin| !self.is_own_origin(origin, &parts.headers)) {
            return Err(ApiError::CrossSite);
        }
        if !parts.method.is_safe() && site.is_none() && origin.is_none() {
            return Err(ApiError::CrossSite);
        }
        Ok(())
    }

    /// Returns the address of this server as the client of a request knows it, or none where a browser could not log in.
    fn public_origin(&self, parts: &Parts) -> Option<String> {
        match self {
            Self::Disabled => None,
            Self::Https(origin) => Some(origin.to_string()),
            Self::Loopback => {
                let (host, _) = loopback_host(&parts.headers)?;
                source_of(&parts.extensions).is_local().then(|| format!("http://{host}"))
            }
        }
    }

    fn is_own_origin(&self, origin: &str, headers: &HeaderMap) -> bool {
        let public = matches!(self, Self::Https(own) if **own == *origin);
        let local = loopback_host(headers).map(|(host, _)| host);
        public || (local.is_some() && origin.strip_prefix("http://") == local)
    }

    /// Returns the session token of a browser's cookie, with its text.
    pub(crate) fn cookie_credential(
        &self,
        parts: &Parts,
    ) -> Result<(String, PresentedToken), ApiError> {
        let cookie = self.session_cookie(parts).ok_or(Error::Unauthenticated)?;
        let text = cookie.read_token(&parts.headers).ok_or(Error::Unauthenticated)?;
        let shown = tokens::parse_token(&text).map_err(|_| Error::Unauthenticated)?;
        if shown.kind != TokenKind::Session {
            return Err(Error::Unauthenticated.into());
        }
        self.require_same_origin(parts)?;
        let kinds = [JSON_MEDIA_TYPE, BUNDLE_MEDIA_TYPE];
        if !parts.method.is_safe() && !kinds.iter().any(|kind| has_media_type(&parts.headers, kind))
        {
            return Err(ApiError::MediaType);
        }
        Ok((text, shown))
    }
}

/// Returns the `Host` of a request and its port, if it is a name of this machine for itself.
fn loopback_host(headers: &HeaderMap) -> Option<(&str, u16)> {
    let text = single_header(headers, header::HOST.as_str()).ok()??;
    let url: Url = format!("http://{text}/").parse().ok()?;
    // What has a user or a path in it is not a host.
    let plain = url.path() == "/"
        && url.username().is_empty()
        && url.query().is_none()
        && url.fragment().is_none();
    let local = match url.host()? {
        Host::Domain(name) => name == "localhost" || name.ends_with(".localhost"),
        Host::Ipv4(address) => address.is_loopback(),
        Host::Ipv6(address) => address.is_loopback(),
    };
    (plain && local).then_some((text, url.port_or_known_default()?))
}

/// Returns the value of a header that may be sent once.
fn single_header<'a>(headers: &'a HeaderMap, name: &str) -> Result<Option<&'a str>, ApiError> {
    let mut values = headers.get_all(name).iter();
    let Some(value) = values.next() else { return Ok(None) };
    match (value.to_str(), values.next()) {
        (Ok(text), None) => Ok(Some(text)),
        _ => Err(ApiError::CrossSite),
    }
}

/// Returns whether a request says that it is JSON.
pub(crate) fn is_json_content(headers: &HeaderMap) -> bool {
    has_media_type(headers, JSON_MEDIA_TYPE)
}

/// Returns whether a request says that its body is of that media type.
fn has_media_type(headers: &HeaderMap, expected: &str) -> bool {
    let kind = headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
    let essence = kind.and_then(|kind| kind.split(';').next()).map(str::trim);
    essence.is_some_and(|essence| essence.eq_ignore_ascii_case(expected))
}

/// The session cookie of a browser.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SessionCookie {
    name: String,
    secure: bool,
}

impl SessionCookie {
    /// Reads the token. Two cookies of the name are none: one of them is not ours.
    fn read_token(&self, headers: &HeaderMap) -> Option<String> {
        let texts = headers.get_all(header::COOKIE).iter().filter_map(|value| value.to_str().ok());
        let mut own = texts
            .flat_map(Cookie::split_parse)
            .filter_map(Result::ok)
            .filter(|cookie| cookie.name() == self.name)
            .map(|cookie| cookie.value().to_owned());
        let (first, second) = (own.next(), own.next());
        first.filter(|_| second.is_none())
    }

    /// Returns the header that stores a token for as long as its session lasts.
    pub(crate) fn store_token(
        &self,
        token: &SecretText,
        lifetime: Duration,
    ) -> Option<HeaderValue> {
        self.to_header(&token.0, lifetime)
    }

    /// Returns the header that removes the token.
    pub(crate) fn clear_token(&self) -> Option<HeaderValue> {
        self.to_header("", Duration::ZERO)
    }

    fn to_header(&self, value: &str, lifetime: Duration) -> Option<HeaderValue> {
        let cookie = Cookie::build((self.name.as_str(), value))
            .path("/")
            .http_only(true)
            .secure(self.secure)
            .same_site(SameSite::Lax)
            .max_age(lifetime)
            .build();
        let mut header = HeaderValue::from_str(&cookie.to_string()).ok()?;
        header.set_sensitive(true);
        Some(header)
    }
}

/// Number of letters of a login's state that the name of its cookie ends with. Several logins may be under way.
const LOGIN_COOKIE_LETTERS: usize = 8;

/// A browser on its way to an identity provider or back, or a device that needs an address to show.
pub(crate) struct ProviderNavigation {
    /// Address of this server.
    pub(crate) origin: String,
    /// The session cookie.
    pub(crate) session: SessionCookie,
    headers: HeaderMap,
}

impl ProviderNavigation {
    /// Returns the cookie that holds the login with that state.
    pub(crate) fn login_cookie(&self, state: &str) -> SessionCookie {
        let letters = state.chars().filter(char::is_ascii_alphanumeric).take(LOGIN_COOKIE_LETTERS);
        let name = format!("{}-sso-{}", self.session.name, letters.collect::<String>());
        SessionCookie { name, secure: self.session.secure }
    }

    /// Reads the login with that state.
    pub(crate) fn read_login(&self, state: &str) -> Option<String> {
        self.login_cookie(state).read_token(&self.headers)
    }

    /// Returns the session token of the browser, whatever site sent it here. It says who comes back, and is no credential
    /// for anything else.
    pub(crate) fn session_token(&self) -> Option<PresentedToken> {
        let text = self.session.read_token(&self.headers)?;
        tokens::parse_token(&text).ok().filter(|shown| shown.kind == TokenKind::Session)
    }
}

impl FromRequestParts<AppState> for ProviderNavigation {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &AppState) -> Result<Self, ApiError> {
        let origin = state.browser.public_origin(parts).ok_or(ApiError::InsecureTransport)?;
        let session = state.browser.session_cookie(parts).ok_or(ApiError::InsecureTransport)?;
        Ok(Self { origin, session, headers: parts.headers.clone() })
    }
}

/// The client of a login: a browser gets a cookie, a program gets the token.
pub(crate) enum LoginClient {
    Program,
    Browser(SessionCookie),
}

impl FromRequestParts<AppState> for LoginClient {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &AppState) -> Result<Self, ApiError> {
        let from_browser = parts.headers.contains_key(FETCH_SITE_HEADER)
            || parts.headers.contains_key(header::ORIGIN);
        if !from_browser {
            return Ok(Self::Program);
        }
        state.browser.require_same_origin(parts)?;
        let cookie = state.browser.session_cookie(parts).ok_or(ApiError::InsecureTransport)?;
        Ok(Self::Browser(cookie))
    }
}

/// The session cookie that a request was authenticated with, if it was.
pub(crate) struct UsedCookie(pub(crate) Option<SessionCookie>);

impl FromRequestParts<AppState> for UsedCookie {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &AppState) -> Result<Self, ApiError> {
        let by_cookie = !parts.headers.contains_key(header::AUTHORIZATION);
        let cookie = state.browser.session_cookie(parts);
        Ok(Self(cookie.filter(|cookie| by_cookie && cookie.read_token(&parts.headers).is_some())))
    }
}

/// The security headers of a port.
#[derive(Clone, Debug)]
pub(crate) struct SecurityHeaders {
    https: bool,
    console_build: Option<HeaderValue>,
}

impl SecurityHeaders {
    pub(crate) fn new(access: &BrowserAccess, console: &ConsoleFiles) -> Self {
        let https = matches!(access, BrowserAccess::Https(_));
        Self { https, console_build: console.build_id() }
    }
}

/// Adds the security headers to a response that has not set its own.
pub(crate) async fn add_security_headers(
    State(own): State<SecurityHeaders>,
    request: Request,
    next: Next,
) -> Response {
    let mut response = next.run(request).await;
    let headers = response.headers_mut();
    for (name, value) in RESPONSE_HEADERS {
        headers.entry(name).or_insert(HeaderValue::from_static(value));
    }
    if own.https {
        let value = HeaderValue::from_static(STRICT_TRANSPORT_SECURITY);
        headers.insert(header::STRICT_TRANSPORT_SECURITY, value);
    }
    if let Some(build) = own.console_build {
        headers.insert("x-cynode-console", build);
    }
    response
}
