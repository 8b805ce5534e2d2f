//! A very small and very fast MCP server, as a baseline for measurements.
//!
//! It answers both protocol eras on one endpoint, keeps no state between requests and validates almost nothing. The cost of a
//! client or a gateway is then the difference to a direct call.

use std::borrow::Cow;
use std::time::Duration;

use axum::Router;
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use bytes::Bytes;
use serde::Deserialize;
use serde_json::value::RawValue;

const DISCOVERED: &str = r#"{"resultType":"complete","supportedVersions":["2026-07-28"],"capabilities":{"tools":{}},"serverInfo":{"name":"echo","version":"1"},"ttlMs":60000,"cacheScope":"public"}"#;

const TOOLS: &str = r#"{"resultType":"complete","ttlMs":60000,"cacheScope":"public","tools":[{"name":"echo","description":"Says the text again.","inputSchema":{"type":"object","properties":{"text":{"type":"string"}},"required":["text"]},"annotations":{"readOnlyHint":true}},{"name":"fail","description":"Fails.","inputSchema":{"type":"object"}},{"name":"slow","description":"Takes its time.","inputSchema":{"type":"object","properties":{"ms":{"type":"integer"}},"required":["ms"]}}]}"#;

/// Returns the server, at `/` and at `/mcp`.
///
/// Its tools are `echo {"text"}`, `fail {}`, whose result is an error, and `slow {"ms"}`.
pub fn router() -> Router {
    Router::new().route("/", post(handle)).route("/mcp", post(handle))
}

#[derive(Deserialize)]
struct Request<'a> {
    #[serde(borrow)]
    id: Option<&'a RawValue>,
    #[serde(borrow)]
    method: Cow<'a, str>,
    #[serde(borrow)]
    params: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct CallParams<'a> {
    #[serde(borrow)]
    name: Cow<'a, str>,
    #[serde(borrow)]
    arguments: Option<&'a RawValue>,
}

/// A JSON-RPC error: its code and message.
struct Refusal(i32, &'static str);

const INVALID: Refusal = Refusal(-32602, "Invalid params");

async fn handle(body: Bytes) -> Response {
    let Ok(request) = serde_json::from_slice::<Request<'_>>(&body) else {
        return refuse("null", &Refusal(-32700, "Parse error"));
    };
    let Some(id) = request.id else { return StatusCode::ACCEPTED.into_response() };
    let id = id.get();
    let result = match &*request.method {
        "tools/call" => call(request.params).await,
        "tools/list" => Ok(TOOLS.to_owned()),
        "server/discover" => Ok(DISCOVERED.to_owned()),
        "initialize" => initialize(request.params),
        "ping" => Ok("{}".to_owned()),
        _ => Err(Refusal(-32601, "Method not found")),
    };
    match result {
        Ok(result) => json(format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{result}}}"#)),
        Err(refusal) => refuse(id, &refusal),
    }
}

async fn call(params: Option<&RawValue>) -> Result<String, Refusal> {
    #[derive(Deserialize)]
    struct Echo<'a> {
        #[serde(borrow)]
        text: &'a RawValue,
    }
    #[derive(Deserialize)]
    struct Slow {
        ms: u64,
    }
    let CallParams { name, arguments } = read(params)?;
    match &*name {
        "echo" => {
            let Echo { text } = read(arguments)?;
            if text.get().starts_with('"') { Ok(content(text.get(), false)) } else { Err(INVALID) }
        }
        "fail" => Ok(content(r#""failed, as asked""#, true)),
        "slow" => {
            let Slow { ms } = read(arguments)?;
            #[expect(clippy::disallowed_methods, reason = "to be slow is what this tool is for")]
            tokio::time::sleep(Duration::from_millis(ms)).await;
            Ok(content(r#""done""#, false))
        }
        _ => Err(Refusal(-32602, "Unknown tool")),
    }
}

fn initialize(params: Option<&RawValue>) -> Result<String, Refusal> {
    #[derive(Deserialize)]
    struct Greeting<'a> {
        #[serde(borrow, rename = "protocolVersion")]
        version: Cow<'a, str>,
    }
    let Greeting { version } = read(params)?;
    let version = match &*version {
        known @ ("2025-11-25" | "2025-06-18" | "2025-03-26" | "2024-11-05") => known,
        _ => "2025-11-25",
    };
    Ok(format!(
        r#"{{"protocolVersion":"{version}","capabilities":{{"tools":{{}}}},"serverInfo":{{"name":"echo","version":"1"}}}}"#
    ))
}

fn read<'a, T: Deserialize<'a>>(value: Option<&'a RawValue>) -> Result<T, Refusal> {
    value.and_then(|value| serde_json::from_str(value.get()).ok()).ok_or(INVALID)
}

fn content(text: &str, is_error: bool) -> String {
    format!(
        r#"{{"resultType":"complete","content":[{{"type":"text","text":{text}}}],"isError":{is_error}}}"#
    )
}

fn refuse(id: &str, Refusal(code, message): &Refusal) -> Response {
    json(format!(
        r#"{{"jsonrpc":"2.0","id":{id},"error":{{"code":{code},"message":"{message}"}}}}"#
    ))
}

fn json(body: String) -> Response {
    ([(CONTENT_TYPE, HeaderValue::from_static("application/json"))], body).into_response()
}
