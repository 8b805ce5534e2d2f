//! Schemas and messages that are small to send and large to work on.

use std::time::{Duration, Instant};

use axum::{body::Body, http::Request};
use bytes::Bytes;
use futures::stream;
use serde_json::{Map, Value, json};

use crate::{
    bench::{Bench, promised},
    offering::{Offering, deep, plain},
};

/// A kilobyte of a schema that checks one value two to the power of twenty times.
fn schema_bomb() -> Value {
    let mut definitions = Map::new();
    definitions.insert("a0".into(), json!({ "required": ["x"] }));
    for level in 1..=20 {
        let below = json!({ "$ref": format!("#/$defs/a{}", level - 1) });
        definitions.insert(format!("a{level}"), json!({ "allOf": [below.clone(), below] }));
    }
    json!({ "type": "object", "$ref": "#/$defs/a20", "$defs": definitions })
}

/// A schema that doubles only with the depth of the value: nothing is wrong with it by itself.
fn doubling_schema() -> Value {
    let twice = json!({ "allOf": [{ "$ref": "#" }, { "$ref": "#" }] });
    json!({ "type": "object", "properties": { "a": twice } })
}

fn tool(name: &str, input: Value, output: Option<Value>) -> Value {
    let mut tool = plain(name);
    tool["inputSchema"] = input;
    if let Some(output) = output {
        tool["outputSchema"] = output;
    }
    tool
}

#[tokio::test]
async fn a_tool_whose_schema_is_a_bomb_cannot_be_accepted_and_is_not_called() {
    let bench = Bench::new().await;
    let harmless = json!({ "type": "object" });
    for (name, input, output) in
        [("arguments", schema_bomb(), None), ("result", harmless.clone(), Some(schema_bomb()))]
    {
        let offering = Offering::modern().await;
        offering.offer(vec![tool("bomb", input, output)]);
        let body = json!({ "name": name, "transport": { "type": "http", "url": offering.url },
            "audience": "everybody", "scope": "both", "allow_private": true });
        let server = bench.admin.post("/v1/tool-servers", body).await.expect(201).text("server_id");
        bench.refresh(&server).await;
        let seen = bench.server(&server).await;
        let digest = &seen["tools"][0]["definition_digest"];
        let path = format!("/v1/tool-servers/{server}/accept");
        let since = Instant::now();
        let refused = bench.admin.post(&path, json!({ "tools": { "bomb": digest } })).await;
        assert!(since.elapsed() < Duration::from_secs(2), "{:?}", since.elapsed());
        let told = refused.expect(422).text("detail");
        assert!(told.contains("applies at most 2000 of its parts to one value"), "{told}");
        let agent = bench.agent("developer").await;
        let called = agent.call(&format!("ext.{name}.bomb"), json!({})).await;
        assert_eq!(called.verdict(), "error -32602");
        assert_eq!(offering.calls().len(), 0);
    }
}

#[tokio::test]
async fn arguments_and_results_on_which_a_schema_explodes_are_refused_at_once_and_others_pass() {
    let bench = Bench::new().await;
    let offering = Offering::modern().await;
    let harmless = json!({ "type": "object" });
    offering.offer(vec![
        tool("tree", doubling_schema(), None),
        tool("deep", harmless, Some(doubling_schema())),
        plain("echo"),
    ]);
    bench.install(&offering, "todo").await;
    promised().await;
    let issued = bench.issue(&bench.admin, "developer", json!({})).await;
    let agent = bench.holding(&issued).await;
    let since = Instant::now();
    assert_eq!(agent.call("ext.todo.tree", deep(5)).await.verdict(), "ok");
    assert_eq!(agent.call("ext.todo.tree", deep(100)).await.verdict(), "refused invalid_arguments");
    let result = agent.call("ext.todo.deep", json!({})).await.verdict();
    assert_eq!(result, "failed output_schema_violation");
    assert_eq!(agent.call("ext.todo.echo", json!({ "text": "x" })).await.verdict(), "ok");
    let body = json!({ "agent_token_id": issued["agent_token_id"], "tool": "ext.todo.tree", "arguments": deep(100) });
    let explained = bench.admin.post("/v1/policy/explain", body).await.expect(200);
    assert_eq!(explained.text("reason"), "invalid_arguments");
    assert!(since.elapsed() < Duration::from_secs(10), "{:?}", since.elapsed());
}

#[tokio::test]
async fn a_body_of_a_caller_without_a_token_is_not_read() {
    let bench = Bench::new().await;
    let nobody = bench.app.at_gateway().await.modern();
    let agent = bench.agent("developer").await;
    let flood = format!("[{}", "0,".repeat(4 << 20));
    for (body, status) in [("{", 400), (flood.as_str(), 413)] {
        let refused = nobody.send_text("tools/call", None, body.into()).await.0;
        assert_eq!(refused.status, 401, "{}", body.len());
        let refused = agent.send_text("tools/call", None, body.into()).await.0;
        assert_eq!(refused.status, status, "{}", body.len());
    }
    let never = stream::pending::<Result<Bytes, std::io::Error>>();
    let request = Request::post("/mcp")
        .header("content-type", "application/json")
        .body(Body::from_stream(never))
        .unwrap();
    assert_eq!(nobody.client.oneshot(request).await.status(), 401);
}

#[tokio::test]
async fn a_message_of_too_many_values_or_bytes_is_refused_however_it_is_sent() {
    let bench = Bench::new().await;
    let agent = bench.agent("developer").await;
    let list = vec![0; 100_000];
    let bomb = agent
        .message("tools/call", json!({ "name": "help__overview", "arguments": { "x": list } }));
    let refused = agent.send_text("tools/call", Some("help__overview"), bomb.to_string()).await;
    assert_eq!(refused.0.status, 413);
    let told = refused.json()["error"]["message"].clone();
    assert_eq!(told, "the body has more than 50000 JSON values");
    // Without a length.
    let chunks = (0..64).map(|_| Ok::<_, std::io::Error>(Bytes::from(vec![b' '; 64 * 1024])));
    let request = Request::post("/mcp")
        .header("authorization", format!("Bearer {}", agent.client.token().unwrap()))
        .header("content-type", "application/json")
        .body(Body::from_stream(stream::iter(chunks)))
        .unwrap();
    assert_eq!(agent.client.oneshot(request).await.status(), 413);
    // A long text has as many commas as it likes.
    let text = json!({ "task_id": bench.task, "name": "table.csv", "media_type": "text/csv", "text": ",".repeat(500_000) });
    assert_eq!(agent.call("artifact.put", text).await.verdict(), "ok");
}

#[tokio::test]
async fn a_message_waits_for_memory_and_is_then_refused_until_there_is_some() {
    let bench = Bench::new().await;
    let agent = bench.agent("developer").await;
    let budget = bench.app.app.body_budget();
    let mut reserved = Vec::new();
    // Four callers take all that is there for small messages.
    for caller in 0..4 {
        for _ in 0..64 {
            reserved.push(budget.reserve_memory([caller; 32], 8 * 1024).await.unwrap());
        }
    }
    let refused = agent.call("help.overview", json!({})).await.0;
    assert_eq!((refused.status, refused.headers["retry-after"].to_str().unwrap()), (429, "1"));
    reserved.pop();
    assert_eq!(agent.call("help.overview", json!({})).await.verdict(), "ok");
}
