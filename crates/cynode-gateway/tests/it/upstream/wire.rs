//! What goes over the wire, byte by byte.

use std::collections::BTreeSet;

use axum::http::Method;
use cynode_gateway::upstream::{UpstreamCall, UpstreamServer, UpstreamTransport};
use secrecy::SecretString;
use serde_json::Value;
use tokio::sync::mpsc;

use super::fake::{Answers, Era, Fake};
use super::support::{http, raw, upstreams};

/// Every key of every object in `value`, except below `arguments`, which are the agent's own.
fn keys(value: &Value, into: &mut BTreeSet<String>) {
    match value {
        Value::Object(map) => {
            for (key, value) in map {
                into.insert(key.clone());
                if key != "arguments" {
                    keys(value, into);
                }
            }
        }
        Value::Array(values) => values.iter().for_each(|value| keys(value, into)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

async fn everything_said_to(era: Era) -> (BTreeSet<String>, BTreeSet<String>) {
    let fake = Fake::start(era, Answers::Sse).await;
    let upstreams = upstreams();
    let transport = UpstreamTransport::Http {
        url: fake.url.clone(),
        headers: vec![("Authorization".to_owned(), SecretString::from("Bearer of-the-server"))],
        private: true,
    };
    let server = UpstreamServer { transport, ..http("") };
    upstreams.list_server_tools(&server).await.unwrap();
    let arguments = raw("{}");
    let (sender, _receiver) = mpsc::channel(1);
    let call = UpstreamCall {
        trace: Some("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
        progress: Some(sender),
        ..UpstreamCall::new("echo", &arguments)
    };
    upstreams.call_server_tool(&server, call).await.unwrap();
    upstreams.shutdown_all().await;

    let (mut fields, mut headers) = (BTreeSet::new(), BTreeSet::new());
    for seen in fake.seen() {
        keys(&seen.body, &mut fields);
        headers.extend(seen.headers.keys().map(ToString::to_string));
        assert_eq!(seen.headers["authorization"], "Bearer of-the-server");
        assert_eq!(seen.headers.get_all("authorization").iter().count(), 1);
    }
    (fields, headers)
}

fn set(items: &[&str]) -> BTreeSet<String> {
    items.iter().map(|item| (*item).to_owned()).collect()
}

#[tokio::test]
async fn a_modern_server_gets_standard_fields_and_headers_alone() {
    let (fields, headers) = everything_said_to(Era::Modern).await;
    assert_eq!(
        fields,
        set(&[
            "jsonrpc",
            "id",
            "method",
            "params",
            "name",
            "arguments",
            "cursor",
            "_meta",
            "progressToken",
            "traceparent",
            "version",
            "io.modelcontextprotocol/protocolVersion",
            "io.modelcontextprotocol/clientInfo",
            "io.modelcontextprotocol/clientCapabilities",
        ])
    );
    assert_eq!(
        headers,
        set(&[
            "accept",
            "authorization",
            "content-length",
            "content-type",
            "host",
            "mcp-method",
            "mcp-name",
            "mcp-protocol-version",
        ])
    );
}

#[tokio::test]
async fn a_legacy_server_gets_standard_fields_and_headers_alone() {
    let (fields, headers) = everything_said_to(Era::Legacy).await;
    // The modern fields are those of the one question that finds out the era.
    assert_eq!(
        fields,
        set(&[
            "jsonrpc",
            "id",
            "method",
            "params",
            "name",
            "arguments",
            "cursor",
            "_meta",
            "progressToken",
            "traceparent",
            "version",
            "protocolVersion",
            "capabilities",
            "clientInfo",
            "io.modelcontextprotocol/protocolVersion",
            "io.modelcontextprotocol/clientInfo",
            "io.modelcontextprotocol/clientCapabilities",
        ])
    );
    assert_eq!(
        headers,
        set(&[
            "accept",
            "authorization",
            "content-length",
            "content-type",
            "host",
            "mcp-method",
            "mcp-protocol-version",
            "mcp-session-id",
        ])
    );
}

#[tokio::test]
async fn the_bytes_of_the_arguments_are_forwarded_untouched() {
    let odd =
        raw("{ \"b\" : 1.0,\n\t\"a\":1e2, \"a\":\"\\u00e9\", \"n\":12345678901234567890123 }");
    for era in [Era::Modern, Era::Legacy] {
        let fake = Fake::start(era, Answers::Json).await;
        upstreams()
            .call_server_tool(&http(&fake.url), UpstreamCall::new("echo", &odd))
            .await
            .unwrap();
        let seen = fake.seen().last().unwrap().clone();
        let text = std::str::from_utf8(&seen.bytes).unwrap();
        assert!(text.contains(&format!("\"arguments\":{}", odd.get())), "{text}");
    }
}

#[tokio::test]
async fn a_session_is_ended_at_shutdown() {
    let fake = Fake::start(Era::Legacy, Answers::Json).await;
    let upstreams = upstreams();
    upstreams.list_server_tools(&http(&fake.url)).await.unwrap();
    assert_eq!(fake.open_sessions(), 1);
    upstreams.shutdown_all().await;
    assert_eq!(fake.open_sessions(), 0);
    assert_eq!(fake.seen().last().unwrap().method, Method::DELETE);
}
