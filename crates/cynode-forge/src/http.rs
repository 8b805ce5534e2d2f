//! HTTP client of a forge's API: restricted to one host, with limits, pagination and error messages.

use std::{fmt, sync::Arc, time::Duration};

use cynode_net::ssrf::{PublicResolver, is_private_host};
use futures::StreamExt;
use reqwest::{
    Client, Method, Response, StatusCode,
    header::{
        ACCEPT, AUTHORIZATION, CONTENT_TYPE, DATE, HeaderMap, HeaderValue, LINK, RETRY_AFTER,
        USER_AGENT,
    },
    redirect::Policy,
};
use secrecy::{ExposeSecret, SecretString};
use serde::de::DeserializeOwned;
use serde_json::Value;
use time::{OffsetDateTime, format_description::well_known::Rfc2822};
use url::Url;

use crate::ForgeError;

/// Timeouts of a connection and of one response.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);

/// Maximum size of a response.
const MAX_RESPONSE_BYTES: usize = 16 * 1024 * 1024;

/// Maximum number of pages of a list.
const MAX_PAGES: usize = 50;

/// Default retry delay if a forge names none, and the maximum that it may request.
const DEFAULT_RETRY_DELAY: Duration = Duration::from_mins(1);
const MAX_RETRY_DELAY: Duration = Duration::from_hours(1);

/// Reason for rejecting a forge with a private address: only an admin can connect one.
pub(crate) const PRIVATE_ADDRESS_MESSAGE: &str = "the forge is on this machine or in a private network, and only an admin of the installation \
     connects a project with such a forge";

/// API client of one forge.
#[derive(Clone)]
pub(crate) struct ForgeHttpClient {
    client: Client,
    base: Url,
    headers: HeaderMap,
}

impl fmt::Debug for ForgeHttpClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Http").field(&self.base.as_str()).finish()
    }
}

/// Authorization scheme.
#[derive(Clone, Copy, Debug)]
pub(crate) enum AuthScheme {
    /// `Authorization: Bearer …`
    Bearer,
    /// `Authorization: token …`
    Token,
}

impl ForgeHttpClient {
    pub(crate) fn new(
        base: Url,
        token: &SecretString,
        private: bool,
        pass: AuthScheme,
        accept: &'static str,
    ) -> Result<Self, ForgeError> {
        let mut client = Client::builder()
            .connect_timeout(CONNECT_TIMEOUT)
            .timeout(REQUEST_TIMEOUT)
            // The token is sent only to the host that the admin configured, so redirects are not followed.
            .redirect(Policy::none())
            .pool_idle_timeout(Duration::from_secs(4))
            .tcp_nodelay(true)
            .no_proxy();
        if !private {
            if is_private_host(&base) {
                return Err(ForgeError::Refused(PRIVATE_ADDRESS_MESSAGE.into()));
            }
            client = client
                .dns_resolver(Arc::new(PublicResolver::with_message(PRIVATE_ADDRESS_MESSAGE)));
        }
        let client = client.build().map_err(|error| {
            ForgeError::Failed(cynode_core::error_chain::format_error_chain(&error))
        })?;
        let scheme = match pass {
            AuthScheme::Bearer => "Bearer",
            AuthScheme::Token => "token",
        };
        let value = HeaderValue::from_str(&format!("{scheme} {}", token.expose_secret()));
        let mut value =
            value.map_err(|_| ForgeError::Refused("the token cannot be sent".into()))?;
        value.set_sensitive(true);
        let headers = HeaderMap::from_iter([
            (AUTHORIZATION, value),
            (ACCEPT, HeaderValue::from_static(accept)),
            (USER_AGENT, HeaderValue::from_static("cynode")),
        ]);
        Ok(Self { client, base, headers })
    }

    pub(crate) fn with_header(mut self, name: &'static str, value: &'static str) -> Self {
        self.headers.insert(name, HeaderValue::from_static(value));
        self
    }

    /// Builds a URL below the API's base URL. Each segment is escaped and stays one segment.
    pub(crate) fn build_url(&self, segments: &[&str], query: &[(&str, &str)]) -> Url {
        let mut url = self.base.clone();
        if let Ok(mut path) = url.path_segments_mut() {
            path.pop_if_empty().extend(segments);
        }
        if !query.is_empty() {
            url.query_pairs_mut().extend_pairs(query);
        }
        url
    }

    pub(crate) async fn get_json<T: DeserializeOwned>(&self, url: Url) -> Result<T, ForgeError> {
        let response = self.send_request(Method::GET, url, None).await?;
        parse_body(&read_body(response).await?)
    }

    /// Reads JSON like `get_json`, and returns `None` if the resource does not exist.
    pub(crate) async fn find_json<T: DeserializeOwned>(
        &self,
        url: Url,
    ) -> Result<Option<T>, ForgeError> {
        match self.get_json(url).await {
            Ok(found) => Ok(Some(found)),
            Err(ForgeError::Missing(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    pub(crate) async fn post_json<T: DeserializeOwned>(
        &self,
        url: Url,
        body: &Value,
    ) -> Result<T, ForgeError> {
        let response = self.send_request(Method::POST, url, Some(body)).await?;
        parse_body(&read_body(response).await?)
    }

    /// Returns all entries of a paginated list. More than `MAX_PAGES` pages are an error.
    pub(crate) async fn get_all_pages<T: DeserializeOwned>(
        &self,
        first: Url,
    ) -> Result<Vec<T>, ForgeError> {
        let (all, whole) = self.get_first_pages(first, MAX_PAGES).await?;
        if !whole {
            return Err(ForgeError::Failed(format!("a list has more than {MAX_PAGES} pages")));
        }
        Ok(all)
    }

    /// Returns the entries of the first `most` pages, and whether the list is complete.
    pub(crate) async fn get_first_pages<T: DeserializeOwned>(
        &self,
        first: Url,
        most: usize,
    ) -> Result<(Vec<T>, bool), ForgeError> {
        let mut all = Vec::new();
        let mut next = Some(first);
        for _ in 0..most {
            let Some(url) = next.take() else { break };
            let response = self.send_request(Method::GET, url.clone(), None).await?;
            next = next_page_url(response.headers(), &url)?;
            all.extend(parse_body::<Vec<T>>(&read_body(response).await?)?);
        }
        Ok((all, next.is_none()))
    }

    async fn send_request(
        &self,
        method: Method,
        url: Url,
        body: Option<&Value>,
    ) -> Result<Response, ForgeError> {
        let mut request = self.client.request(method, url).headers(self.headers.clone());
        if let Some(body) = body {
            request = request.header(CONTENT_TYPE, "application/json").body(body.to_string());
        }
        let response = request.send().await.map_err(|error| unreachable_error(&error))?;
        if response.status().is_success() {
            return Ok(response);
        }
        Err(self.error_from_response(response).await)
    }

    async fn error_from_response(&self, response: Response) -> ForgeError {
        let (status, wait) = (response.status(), parse_retry_delay(response.headers()));
        let spent = response.headers().get("x-ratelimit-remaining").is_some_and(|left| left == "0");
        let body = read_body(response).await.unwrap_or_default();
        let said = extract_error_message(&body);
        let host = self.base.host_str().unwrap_or("the forge");
        let told = if said.is_empty() {
            format!("{host} answered {status}")
        } else {
            format!("{host} answered {status}: {said}")
        };
        let limited = status == StatusCode::TOO_MANY_REQUESTS
            || (status == StatusCode::FORBIDDEN
                && (spent || said.to_ascii_lowercase().contains("rate limit")));
        if limited || status.is_server_error() || status == StatusCode::REQUEST_TIMEOUT {
            return ForgeError::Retry { after: wait.unwrap_or(DEFAULT_RETRY_DELAY), why: told };
        }
        match status {
            StatusCode::UNAUTHORIZED => ForgeError::Refused(format!(
                "{told}. The token is wrong, has ended or was withdrawn: set a new one on the project's remote"
            )),
            StatusCode::FORBIDDEN => ForgeError::Refused(format!(
                "{told}. The token does not allow it: docs/guides/forges.md lists what it must be allowed"
            )),
            StatusCode::NOT_FOUND | StatusCode::GONE => {
                ForgeError::Missing(format!("{told}. It is not there, or the token may not see it"))
            }
            StatusCode::CONFLICT | StatusCode::UNPROCESSABLE_ENTITY => ForgeError::Conflict(told),
            status if status.is_redirection() => ForgeError::Failed(format!(
                "{told}. It sends us elsewhere, which is not followed: was the repository renamed?"
            )),
            _ => ForgeError::Failed(told),
        }
    }
}

fn unreachable_error(error: &reqwest::Error) -> ForgeError {
    let why = std::error::Error::source(error).map_or_else(
        || "the connection failed".into(),
        cynode_core::error_chain::format_error_chain,
    );
    ForgeError::Retry {
        after: DEFAULT_RETRY_DELAY,
        why: format!("the forge could not be reached: {why}"),
    }
}

async fn read_body(response: Response) -> Result<Vec<u8>, ForgeError> {
    let mut body = Vec::new();
    let mut pieces = response.bytes_stream();
    while let Some(piece) = pieces.next().await {
        let piece = piece.map_err(|error| unreachable_error(&error))?;
        if body.len() + piece.len() > MAX_RESPONSE_BYTES {
            return Err(ForgeError::Failed("the forge's answer is too long".into()));
        }
        body.extend_from_slice(&piece);
    }
    Ok(body)
}

fn parse_body<T: DeserializeOwned>(body: &[u8]) -> Result<T, ForgeError> {
    serde_json::from_slice(body).map_err(|error| {
        ForgeError::Failed(format!("the forge's answer is not what its API promises: {error}"))
    })
}

/// Extracts the forge's error message as one line.
fn extract_error_message(body: &[u8]) -> String {
    let Ok(body) = serde_json::from_slice::<Value>(body) else { return String::new() };
    let mut parts = Vec::new();
    for part in [&body["message"], &body["error"]] {
        match part {
            Value::Null => {}
            Value::String(text) => parts.push(text.clone()),
            other => parts.push(other.to_string()),
        }
    }
    let errors = body["errors"].as_array().into_iter().flatten();
    parts.extend(errors.filter_map(|error| error["message"].as_str().map(Into::into)));
    let line = parts.join("; ");
    line.chars().filter(|c| !c.is_control()).take(300).collect()
}

/// Returns the retry delay that the forge requests: `retry-after` in seconds, or the time until its rate limit resets.
fn parse_retry_delay(headers: &HeaderMap) -> Option<Duration> {
    let text = |name: &str| headers.get(name)?.to_str().ok();
    let seconds = text(RETRY_AFTER.as_str()).and_then(|text| text.trim().parse::<u64>().ok());
    let seconds = seconds.or_else(|| {
        let until = text("x-ratelimit-reset").or_else(|| text("ratelimit-reset"))?;
        let until = until.trim().parse::<i64>().ok()?;
        // Both times are of the forge's clock.
        let now = OffsetDateTime::parse(text(DATE.as_str())?, &Rfc2822).ok()?;
        u64::try_from(until - now.unix_timestamp()).ok()
    });
    let wait = seconds.map(Duration::from_secs)?;
    Some(wait.clamp(Duration::from_secs(1), MAX_RETRY_DELAY))
}

/// Returns the URL of the next page, if there is one. It must be on the same host.
fn next_page_url(headers: &HeaderMap, now: &Url) -> Result<Option<Url>, ForgeError> {
    if let Some(page) = headers.get("x-next-page").and_then(|value| value.to_str().ok()) {
        if page.is_empty() {
            return Ok(None);
        }
        let mut next = now.clone();
        let kept: Vec<(String, String)> =
            now.query_pairs().into_owned().filter(|(name, _)| name != "page").collect();
        next.query_pairs_mut().clear().extend_pairs(kept).append_pair("page", page);
        return Ok(Some(next));
    }
    let links = headers.get_all(LINK).iter().filter_map(|value| value.to_str().ok());
    let next = links.flat_map(|value| value.split(',')).find_map(|link| {
        let (target, attributes) = link.split_once(';')?;
        let next =
            attributes.split(';').any(|one| matches!(one.trim(), "rel=\"next\"" | "rel=next"));
        let target = target.trim().strip_prefix('<')?.strip_suffix('>')?;
        next.then(|| now.join(target).ok()).flatten()
    });
    match next {
        Some(url) if url.origin() != now.origin() => Err(ForgeError::Failed(
            "the forge says that the next page is on another host, where the token does not go"
                .into(),
        )),
        next => Ok(next),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        pairs
            .iter()
            .map(|(name, value)| (name.parse().unwrap(), HeaderValue::from_static(value)))
            .collect()
    }

    fn asking(base: &str, private: bool) -> Result<ForgeHttpClient, ForgeError> {
        ForgeHttpClient::new(base.parse().unwrap(), &"t".into(), private, AuthScheme::Bearer, "*/*")
    }

    #[tokio::test]
    async fn a_name_that_leads_to_this_machine_is_not_asked_unless_it_may_be_here() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let port = listener.local_addr().unwrap().port();
        let http = asking(&format!("http://localhost:{port}/"), false).unwrap();
        match http.get_json::<Value>(http.build_url(&[], &[])).await {
            Err(ForgeError::Retry { why, .. }) => {
                assert!(why.contains(PRIVATE_ADDRESS_MESSAGE), "{why}");
            }
            other => panic!("{other:?}"),
        }
        let nobody = listener.accept().unwrap_err();
        assert_eq!(nobody.kind(), std::io::ErrorKind::WouldBlock);
        for here in ["http://127.0.0.1/", "https://[::1]/", "http://10.0.0.5/", "http://[fd00::1]/"]
        {
            assert_eq!(
                asking(here, false).unwrap_err(),
                ForgeError::Refused(PRIVATE_ADDRESS_MESSAGE.into())
            );
            assert!(asking(here, true).is_ok());
        }
    }

    #[test]
    fn a_segment_with_a_slash_stays_one() {
        let url = asking("https://h/api/v4", false)
            .unwrap()
            .build_url(&["projects", "a/b"], &[("q", "c d&e")]);
        assert_eq!(url.as_str(), "https://h/api/v4/projects/a%2Fb?q=c+d%26e");
    }

    #[test]
    fn the_next_page_is_read_from_either_header_and_never_from_another_host() {
        let now: Url = "https://h/api/x?per_page=2&page=1".parse().unwrap();
        let next = |pairs: &[(&'static str, &'static str)]| {
            next_page_url(&headers(pairs), &now).map(|url| url.map(String::from))
        };
        assert_eq!(
            next(&[("x-next-page", "2")]),
            Ok(Some("https://h/api/x?per_page=2&page=2".into()))
        );
        assert_eq!(next(&[("x-next-page", "")]), Ok(None));
        assert_eq!(
            next(&[(
                "link",
                "<https://h/api/x?page=9>; rel=\"last\", <https://h/api/x?page=2>; rel=\"next\""
            )]),
            Ok(Some("https://h/api/x?page=2".into()))
        );
        assert_eq!(next(&[]), Ok(None));
        for elsewhere in ["<https://evil/x>; rel=\"next\"", "<http://h/api/x>; rel=\"next\""] {
            assert!(next(&[("link", elsewhere)]).is_err());
        }
    }

    #[test]
    fn a_wait_is_in_seconds_or_until_the_limit_begins_anew() {
        let wait = |pairs: &[(&'static str, &'static str)]| parse_retry_delay(&headers(pairs));
        assert_eq!(wait(&[("retry-after", "7")]), Some(Duration::from_secs(7)));
        assert_eq!(wait(&[("retry-after", "999999")]), Some(MAX_RETRY_DELAY));
        let date = ("date", "Thu, 01 Jan 1970 00:01:40 GMT");
        assert_eq!(wait(&[("x-ratelimit-reset", "130"), date]), Some(Duration::from_secs(30)));
        assert_eq!(wait(&[("x-ratelimit-reset", "90"), date]), None);
        assert_eq!(wait(&[]), None);
    }
}
