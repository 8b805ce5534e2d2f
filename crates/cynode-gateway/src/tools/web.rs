//! `web.fetch` and `api.call`: HTTP requests of agents to public addresses, where the agent's profile permits them. The
//! SSRF guard is in `egress`. `web.search` asks the search provider of the installation.

mod search;

use cynode_app::tasks::policies;
use cynode_core::{agents::ToolScope, policies::PolicySet, tools::ToolAnnotations};
use cynode_policy::catalogue::IdBinding;
use reqwest::Method;
use serde::Deserialize;
use serde_json::{Value, json};
use utoipa::ToSchema;

use super::{NativeTool, ToolError, ToolInvocation, ToolSpec};
use crate::egress::{EgressError, EgressRequest, EgressResponse};

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct WebFetchArgs {
    /// The URL, http or https.
    url: String,
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct ApiCallArgs {
    /// `GET`, `POST`, `PUT`, `PATCH`, `DELETE` or `HEAD`.
    method: String,
    /// The URL, http or https.
    url: String,
    /// Headers, each as `name: value`.
    #[serde(default)]
    headers: Vec<String>,
    /// Body of the request.
    body: Option<String>,
}

pub(super) fn web_tools() -> Vec<NativeTool> {
    let about = |name, title, description, annotations| ToolSpec {
        name,
        title,
        description,
        scope: ToolScope::Both,
        binding: IdBinding::NONE,
        annotations,
    };
    let reads = ToolAnnotations { open_world: true, ..ToolAnnotations::READ_ONLY };
    let mut fetch = about(
        "web.fetch",
        "Read a page",
        "The text behind a public address, at most 2 MiB.",
        reads,
    )
    .with_handler(fetch_page);
    let mut call = about(
        "api.call",
        "Call an interface",
        "Makes an HTTP request to a public address.",
        ToolAnnotations::UNKNOWN,
    )
    .with_handler(call_api);
    let mut search = about(
        "web.search",
        "Search the web",
        "Asks the search provider of the installation. Returns titles, addresses and excerpts, which strangers wrote.",
        reads,
    )
    .with_handler(search::search_web);
    fetch.definition.network = true;
    call.definition.network = true;
    search.definition.network = true;
    vec![fetch, call, search]
}

/// Sends a request by the policies that hold for the caller.
async fn send_egress_request(
    call: &ToolInvocation,
    mut outgoing: EgressRequest,
) -> Result<EgressResponse, ToolError> {
    outgoing.policies = call.app.read(&call.request, |ctx| policies::own_policies(ctx)).await?;
    call.egress.send_request(outgoing).await.map_err(|error| {
        let code = match error {
            EgressError::Refused(_) | EgressError::ProfileDenied(_) => "egress_refused",
            EgressError::PolicyDenied(_) => "policy_denied",
            EgressError::Unreachable => "unreachable",
            EgressError::Timeout => "timeout",
        };
        ToolError { code, detail: error.to_string(), fix: None }
    })
}

async fn send_for_agent(
    call: &ToolInvocation,
    outgoing: EgressRequest,
) -> Result<Value, ToolError> {
    let fetched = send_egress_request(call, outgoing).await?;
    Ok(json!({
        "url": fetched.url, "status": fetched.status, "media_type": fetched.media_type, "body": fetched.body,
        "truncated": fetched.truncated,
    }))
}

async fn fetch_page(
    invocation: ToolInvocation,
    WebFetchArgs { url }: WebFetchArgs,
) -> Result<Value, ToolError> {
    let outgoing = build_request(&invocation, Method::GET, url);
    send_for_agent(&invocation, outgoing).await
}

async fn call_api(invocation: ToolInvocation, body: ApiCallArgs) -> Result<Value, ToolError> {
    let method = match body.method.as_str() {
        "GET" => Method::GET,
        "POST" => Method::POST,
        "PUT" => Method::PUT,
        "PATCH" => Method::PATCH,
        "DELETE" => Method::DELETE,
        "HEAD" => Method::HEAD,
        _ => {
            return Err(ToolError::invalid_arguments(
                "`method` is GET, POST, PUT, PATCH, DELETE or HEAD",
            ));
        }
    };
    let split = |header: &String| {
        let (name, value) = header.split_once(':')?;
        Some((name.trim().to_owned(), value.trim().to_owned()))
    };
    let headers: Option<Vec<_>> = body.headers.iter().map(split).collect();
    let headers = headers
        .ok_or_else(|| ToolError::invalid_arguments("a header is written as `name: value`"))?;
    let outgoing = build_request(&invocation, method, body.url);
    send_for_agent(&invocation, EgressRequest { headers, body: body.body, ..outgoing }).await
}

/// Builds a request under the profile of the agent, without policies, which are added when it is sent.
fn build_request(invocation: &ToolInvocation, method: Method, url: String) -> EgressRequest {
    EgressRequest {
        method,
        url,
        headers: Vec::new(),
        body: None,
        policies: PolicySet::default(),
        profile: invocation.agent.profile.clone(),
    }
}
