//! A tool server that somebody installs: of either era, with tools that can be changed, and a memory of what it was sent.

use std::{
    collections::HashSet,
    net::SocketAddr,
    sync::{Arc, Mutex},
};

use axum::{
    Router,
    extract::{ConnectInfo, State},
    http::{HeaderMap, StatusCode},
    response::{IntoResponse, Response},
    routing::any,
};
use bytes::Bytes;
use serde_json::{Value, json};
use tokio::{net::TcpListener, sync::watch, task::JoinSet};
use tokio_util::sync::CancellationToken;

/// Which kind of protocol it speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Era {
    Modern,
    Legacy,
}

/// One request as it came.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    /// The client's end of the connection.
    pub(crate) peer: SocketAddr,
    pub(crate) headers: HeaderMap,
    pub(crate) text: String,
    pub(crate) body: Value,
}

pub(crate) struct Offering {
    pub(crate) url: String,
    inner: Arc<Inner>,
    serving: JoinSet<()>,
}

struct Inner {
    era: Era,
    tools: Mutex<Vec<Value>>,
    seen: Mutex<Vec<Seen>>,
    sessions: Mutex<HashSet<String>>,
    /// How many calls of `hang` came, and how many of those were dropped before they were answered.
    hanging: watch::Sender<(usize, usize)>,
    dying: CancellationToken,
}

/// A tool that takes a text.
pub(crate) fn plain(name: &str) -> Value {
    let properties = json!({ "text": { "type": "string" } });
    json!({ "name": name, "description": "A tool.", "inputSchema": { "type": "object", "properties": properties } })
}

/// An object in the property `a` of an object, so many times.
pub(crate) fn deep(levels: usize) -> Value {
    (0..levels).fold(json!({}), |inner, _| json!({ "a": inner }))
}

fn every() -> Vec<Value> {
    let mut tools: Vec<_> =
        ["echo", "fail", "hang", "vanish", "refuse", "ask"].into_iter().map(plain).collect();
    for name in ["honest", "liar"] {
        let mut tool = plain(name);
        tool["outputSchema"] = json!({ "type": "object", "required": ["n"],
            "properties": { "n": { "type": "integer" } } });
        tools.push(tool);
    }
    tools
}

impl Offering {
    /// Begins to serve all tools.
    pub(crate) async fn start(era: Era) -> Self {
        let inner = Arc::new(Inner {
            era,
            tools: Mutex::new(every()),
            seen: Mutex::default(),
            sessions: Mutex::default(),
            hanging: watch::Sender::new((0, 0)),
            dying: CancellationToken::new(),
        });
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/mcp", listener.local_addr().unwrap());
        let router = Router::new()
            .route("/mcp", any(handle))
            .with_state(inner.clone())
            .into_make_service_with_connect_info::<SocketAddr>();
        let mut serving = JoinSet::new();
        serving.spawn(async move { axum::serve(listener, router).await.unwrap() });
        Self { url, inner, serving }
    }

    pub(crate) async fn modern() -> Self {
        Self::start(Era::Modern).await
    }

    /// Stops listening and drops the connections of calls that are under way.
    pub(crate) async fn die(&mut self) {
        self.inner.dying.cancel();
        self.serving.shutdown().await;
    }

    /// Offers these tools from now on.
    pub(crate) fn offer(&self, tools: Vec<Value>) {
        *self.inner.tools.lock().unwrap() = tools;
    }

    /// Everything that came.
    pub(crate) fn seen(&self) -> Vec<Seen> {
        self.inner.seen.lock().unwrap().clone()
    }

    /// The calls of tools that came.
    pub(crate) fn calls(&self) -> Vec<Seen> {
        self.seen().into_iter().filter(|seen| seen.body["method"] == "tools/call").collect()
    }

    /// How many requests of that method came.
    pub(crate) fn count(&self, method: &str) -> usize {
        self.seen().iter().filter(|seen| seen.body["method"] == method).count()
    }

    /// Waits until that many calls of `hang` have come.
    pub(crate) async fn hanging(&self, calls: usize) {
        self.inner.hanging.subscribe().wait_for(|(came, _)| *came >= calls).await.unwrap();
    }

    /// Waits until that many calls of `hang` have been given up by whoever made them.
    pub(crate) async fn abandoned(&self, calls: usize) {
        self.inner.hanging.subscribe().wait_for(|(_, gone)| *gone >= calls).await.unwrap();
    }
}

async fn handle(
    State(inner): State<Arc<Inner>>,
    ConnectInfo(peer): ConnectInfo<SocketAddr>,
    headers: HeaderMap,
    bytes: Bytes,
) -> Response {
    let text = String::from_utf8(bytes.to_vec()).unwrap();
    let body: Value = serde_json::from_str(&text).unwrap_or_default();
    inner.seen.lock().unwrap().push(Seen {
        peer,
        headers: headers.clone(),
        text,
        body: body.clone(),
    });
    if body.is_null() {
        return StatusCode::METHOD_NOT_ALLOWED.into_response();
    }
    let (id, method) = (&body["id"], body["method"].as_str().unwrap_or_default());
    match inner.era {
        Era::Modern if headers.get("mcp-protocol-version").is_none_or(|v| v != "2026-07-28") => {
            return failure(StatusCode::BAD_REQUEST, id, -32022, "version");
        }
        Era::Legacy if method != "initialize" => {
            let session = headers.get("mcp-session-id").and_then(|session| session.to_str().ok());
            let known = |session: &str| inner.sessions.lock().unwrap().contains(session);
            if !session.is_some_and(known) {
                return failure(StatusCode::BAD_REQUEST, &Value::Null, -32000, "no session");
            }
        }
        Era::Modern | Era::Legacy => {}
    }
    if body.get("id").is_none() {
        return StatusCode::ACCEPTED.into_response();
    }
    match (inner.era, method) {
        (Era::Modern, "server/discover") => answer(
            id,
            &json!({ "resultType": "complete", "supportedVersions": ["2026-07-28"],
                "capabilities": { "tools": {} }, "serverInfo": { "name": "offering", "version": "1" } }),
        ),
        (Era::Legacy, "initialize") => {
            let session = format!("session-{}", inner.sessions.lock().unwrap().len());
            inner.sessions.lock().unwrap().insert(session.clone());
            let mut response = answer(
                id,
                &json!({ "protocolVersion": "2025-06-18", "capabilities": { "tools": {} },
                    "serverInfo": { "name": "offering", "version": "1" } }),
            );
            response.headers_mut().insert("mcp-session-id", session.parse().unwrap());
            response
        }
        (_, "tools/list") => {
            let tools = inner.tools.lock().unwrap().clone();
            answer(id, &json!({ "tools": tools }))
        }
        (_, "tools/call") => inner.call(id, &body["params"]).await,
        _ => failure(StatusCode::NOT_FOUND, id, -32601, "Method not found"),
    }
}

impl Inner {
    async fn call(&self, id: &Value, params: &Value) -> Response {
        match params["name"].as_str().unwrap() {
            "fail" => {
                let mut result = content("it failed, RESULT-MARKER");
                result["isError"] = json!(true);
                answer(id, &result)
            }
            "hang" => {
                self.hanging.send_modify(|(came, _)| *came += 1);
                let _abandoned = Abandoned(self);
                self.dying.cancelled().await;
                // As a process that crashes: no answer, and the connection is gone.
                std::panic::resume_unwind(Box::new("the server died"))
            }
            // The stream ends before the answer.
            "vanish" => ([("content-type", "text/event-stream")], ": nothing\n\n").into_response(),
            "refuse" => failure(StatusCode::OK, id, -32602, "not like this"),
            "honest" => answer(id, &structured(&json!({ "n": 1 }))),
            "deep" => answer(id, &structured(&deep(100))),
            "liar" => answer(id, &structured(&json!({ "n": "one" }))),
            "ask" => match params.get("inputResponses") {
                None => answer(
                    id,
                    &json!({ "resultType": "input_required", "requestState": "the-server's-own",
                        "inputRequests": { "q": { "method": "elicitation/create", "params": { "message": "sure?" } } } }),
                ),
                Some(said) => answer(id, &content(&format!("{said} {}", params["requestState"]))),
            },
            _ => answer(id, &content(&format!("RESULT-MARKER {}", params["arguments"]))),
        }
    }
}

struct Abandoned<'a>(&'a Inner);

impl Drop for Abandoned<'_> {
    fn drop(&mut self) {
        self.0.hanging.send_modify(|(_, gone)| *gone += 1);
    }
}

fn content(text: &str) -> Value {
    json!({ "content": [{ "type": "text", "text": text }] })
}

fn structured(value: &Value) -> Value {
    let mut result = content(&value.to_string());
    result["structuredContent"] = value.clone();
    result
}

fn answer(id: &Value, result: &Value) -> Response {
    let body = json!({ "jsonrpc": "2.0", "id": id, "result": result });
    ([("content-type", "application/json")], body.to_string()).into_response()
}

fn failure(status: StatusCode, id: &Value, code: i32, message: &str) -> Response {
    let error = json!({ "code": code, "message": message });
    let body = json!({ "jsonrpc": "2.0", "id": id, "error": error });
    (status, [("content-type", "application/json")], body.to_string()).into_response()
}
