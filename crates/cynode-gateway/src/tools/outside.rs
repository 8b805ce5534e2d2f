//! `web.fetch` and `api.call`: out of the house, if the profile permits it, and never into anybody's cellar.

use cynode_core::agents::ToolScope;
use cynode_policy::catalogue::{Annotations, Binding};
use reqwest::Method;
use serde::Deserialize;
use serde_json::{Value, json};
use utoipa::ToSchema;

use super::{About, Invocation, Native, ToolError};
use crate::egress::{EgressError, Outgoing};

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct Fetch {
    /// The address, http or https.
    url: String,
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct Call {
    /// `GET`, `POST`, `PUT`, `PATCH`, `DELETE` or `HEAD`.
    method: String,
    /// The address, http or https.
    url: String,
    /// Headers, as `name: value`.
    #[serde(default)]
    headers: Vec<String>,
    /// The body.
    body: Option<String>,
}

pub(super) fn tools() -> Vec<Native> {
    let about = |name, title, description, annotations| About {
        name,
        title,
        description,
        scope: ToolScope::Both,
        binding: Binding::NONE,
        annotations,
    };
    let reads = Annotations { open_world: true, ..Annotations::READS };
    let mut fetch = about(
        "web.fetch",
        "Read a page",
        "The text behind a public address, at most 2 MiB.",
        reads,
    )
    .does(fetch);
    let mut call = about(
        "api.call",
        "Call an interface",
        "Makes an HTTP request to a public address.",
        Annotations::UNKNOWN,
    )
    .does(call);
    fetch.definition.network = true;
    call.definition.network = true;
    vec![fetch, call]
}

async fn send(call: &Invocation, outgoing: Outgoing) -> Result<Value, ToolError> {
    let fetched = call.egress.send(outgoing).await.map_err(|error| {
        let code = match error {
            EgressError::Refused(_) => "egress_refused",
            EgressError::Unreachable => "unreachable",
            EgressError::Timeout => "timeout",
        };
        ToolError { code, detail: error.to_string(), fix: None }
    })?;
    Ok(json!({
        "url": fetched.url, "status": fetched.status, "media_type": fetched.media_type, "body": fetched.body,
        "truncated": fetched.truncated,
    }))
}

async fn fetch(invocation: Invocation, Fetch { url }: Fetch) -> Result<Value, ToolError> {
    let outgoing = Outgoing { method: Method::GET, url, headers: Vec::new(), body: None };
    send(&invocation, outgoing).await
}

async fn call(invocation: Invocation, body: Call) -> Result<Value, ToolError> {
    let method = match body.method.as_str() {
        "GET" => Method::GET,
        "POST" => Method::POST,
        "PUT" => Method::PUT,
        "PATCH" => Method::PATCH,
        "DELETE" => Method::DELETE,
        "HEAD" => Method::HEAD,
        _ => return Err(ToolError::invalid("`method` is GET, POST, PUT, PATCH, DELETE or HEAD")),
    };
    let split = |header: &String| {
        let (name, value) = header.split_once(':')?;
        Some((name.trim().to_owned(), value.trim().to_owned()))
    };
    let headers: Option<Vec<_>> = body.headers.iter().map(split).collect();
    let headers =
        headers.ok_or_else(|| ToolError::invalid("a header is written as `name: value`"))?;
    send(&invocation, Outgoing { method, url: body.url, headers, body: body.body }).await
}
