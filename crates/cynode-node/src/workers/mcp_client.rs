//! Tool calls of the node itself, through the socket of the sandbox: the gateway applies the same policy.

use std::path::Path;

use bytes::Bytes;
use cynode_net::sse::SseEventParser;
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::{Request, StatusCode, client::conn::http1, header};
use hyper_util::rt::TokioIo;
use serde_json::{Map, Value, json};
use tokio::net::UnixStream;

use super::PLACEHOLDER_KEY;

/// Latest MCP revision that allows a client without a session.
const MCP_PROTOCOL_VERSION: &str = "2025-11-25";
/// Maximum size of a response.
const MAX_RESPONSE_BYTES: usize = 4 * 1024 * 1024;
/// Maximum number of pages of the tool list.
const MAX_TOOL_LIST_PAGES: usize = 50;

/// Error of a tool call.
#[derive(Debug, thiserror::Error)]
pub(super) enum ToolCallError {
    #[error("the gate cannot be reached: {0}")]
    Unreachable(#[from] std::io::Error),
    #[error("the gate broke off: {0}")]
    Broken(#[from] hyper::Error),
    #[error("the request is not one: {0}")]
    Request(#[from] hyper::http::Error),
    #[error("the gate's answer: {0}")]
    Answer(String),
    #[error("the gate answered {0}: {1}")]
    Status(StatusCode, String),
    #[error("{0}")]
    Refused(String),
}

/// Returns the argument names of a tool; `None` if the gateway does not list it. The gateway lists `pm.report` as `pm__report`.
pub(super) async fn fetch_tool_arguments(
    socket: &Path,
    tool: &str,
) -> Result<Option<Vec<String>>, ToolCallError> {
    let names = [tool.to_owned(), tool.replace('.', "__")];
    let named =
        |one: &&Value| one["name"].as_str().is_some_and(|name| names.iter().any(|it| it == name));
    let mut cursor = Value::Null;
    for _ in 0..MAX_TOOL_LIST_PAGES {
        let page = match &cursor {
            Value::Null => json!({}),
            cursor => json!({ "cursor": cursor }),
        };
        let mut list = send_rpc(socket, "tools/list", &page).await?;
        let found = list["tools"].as_array().into_iter().flatten().find(named);
        if let Some(found) = found {
            let named = found["inputSchema"]["properties"].as_object();
            return Ok(Some(named.map(Map::keys).into_iter().flatten().cloned().collect()));
        }
        cursor = list["nextCursor"].take();
        if cursor.is_null() {
            break;
        }
    }
    Ok(None)
}

/// Calls a tool and returns its result.
pub(super) async fn call_tool(
    socket: &Path,
    tool: &str,
    arguments: &Value,
) -> Result<Value, ToolCallError> {
    let called = json!({ "name": tool, "arguments": arguments });
    let result = send_rpc(socket, "tools/call", &called).await?;
    if result["isError"] == true {
        let texts = result["content"].as_array().into_iter().flatten();
        let texts: Vec<_> = texts.filter_map(|part| part["text"].as_str()).collect();
        return Err(ToolCallError::Refused(texts.join("\n")));
    }
    Ok(result)
}

async fn send_rpc(socket: &Path, method: &str, params: &Value) -> Result<Value, ToolCallError> {
    let asked = json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params });
    let request = Request::post("/mcp")
        .header(header::HOST, "cynode")
        .header(header::AUTHORIZATION, format!("Bearer {PLACEHOLDER_KEY}"))
        .header(header::CONTENT_TYPE, "application/json")
        .header(header::ACCEPT, "application/json, text/event-stream")
        .header("mcp-protocol-version", MCP_PROTOCOL_VERSION)
        .body(Full::new(Bytes::from(asked.to_string())))?;
    let stream = TokioIo::new(UnixStream::connect(socket).await?);
    let (mut sender, connection) = http1::handshake(stream).await?;
    let answered = async move {
        let response = sender.send_request(request).await?;
        let status = response.status();
        let body = Limited::new(response.into_body(), MAX_RESPONSE_BYTES).collect().await;
        let body = body.map_err(|error| ToolCallError::Answer(error.to_string()))?.to_bytes();
        Ok::<_, ToolCallError>((status, body))
    };
    let (answered, _) = tokio::join!(answered, connection);
    let (status, body) = answered?;
    let text = String::from_utf8_lossy(&body);
    if !status.is_success() {
        return Err(ToolCallError::Status(status, text.chars().take(2000).collect()));
    }
    let mut message = find_rpc_answer(&text)
        .ok_or_else(|| ToolCallError::Answer("it holds no answer to the question".into()))?;
    match message["error"]["message"].as_str() {
        Some(error) => Err(ToolCallError::Refused(error.to_owned())),
        None => Ok(message["result"].take()),
    }
}

/// Returns the JSON-RPC answer in a body, which is plain JSON or an event stream that contains it.
fn find_rpc_answer(body: &str) -> Option<Value> {
    let answers = |message: &Value| message["id"] == 1 && message.get("method").is_none();
    let whole = serde_json::from_str::<Value>(body).ok().filter(answers);
    whole.or_else(|| {
        let mut events = Vec::new();
        SseEventParser::new(MAX_RESPONSE_BYTES).push_bytes(body.as_bytes(), &mut events).ok()?;
        events.iter().filter_map(|event| serde_json::from_str(&event.data).ok()).find(answers)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_found_alone_and_in_a_stream() {
        let answer = json!({ "jsonrpc": "2.0", "id": 1, "result": {} });
        assert_eq!(find_rpc_answer(&answer.to_string()), Some(answer.clone()));
        let stream = format!(
            ": hello\n\nevent: message\ndata: {{\"jsonrpc\":\"2.0\",\"method\":\"notifications/progress\"}}\n\ndata: {answer}\n\n"
        );
        assert_eq!(find_rpc_answer(&stream), Some(answer));
        assert_eq!(find_rpc_answer("nonsense"), None);
        assert_eq!(find_rpc_answer(r#"{"id": 1, "method": "roots/list"}"#), None);
    }
}
