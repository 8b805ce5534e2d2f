//! A server of either era whose tools misbehave on demand, and which remembers what it was sent.

use std::collections::HashSet;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::Body;
use axum::extract::{ConnectInfo, State};
use axum::http::{HeaderMap, Method, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::any;
use bytes::Bytes;
use futures::StreamExt as _;
use futures::channel::mpsc::{UnboundedSender, unbounded};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::task::JoinSet;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Era {
    Modern,
    Legacy,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answers {
    Json,
    Sse,
}

/// One request as it came.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    pub(crate) method: Method,
    /// The client's end of the connection.
    pub(crate) peer: SocketAddr,
    pub(crate) headers: HeaderMap,
    pub(crate) bytes: Bytes,
    pub(crate) body: Value,
}

pub(crate) struct Fake {
    pub(crate) url: String,
    pub(crate) inner: Arc<Inner>,
    serving: JoinSet<()>,
}

pub(crate) struct Inner {
    era: Mutex<Era>,
    answers: Answers,
    seen: Mutex<Vec<Seen>>,
    sessions: Mutex<HashSet<String>>,
    opened: AtomicUsize,
    /// Streams that are still open, by the request's id.
    streams: Mutex<Vec<UnboundedSender<Result<Bytes, Infallible>>>>,
    /// How often a handler was dropped before it answered.
    abandoned: AtomicUsize,
    /// How the header of the tool `mirror` is called.
    mirrored: Mutex<&'static str>,
}

impl Fake {
    pub(crate) async fn start(era: Era, answers: Answers) -> Self {
        Self::start_at("127.0.0.1:0", era, answers).await
    }

    pub(crate) async fn start_at(address: &str, era: Era, answers: Answers) -> Self {
        let inner = Arc::new(Inner {
            era: Mutex::new(era),
            answers,
            seen: Mutex::default(),
            sessions: Mutex::default(),
            opened: AtomicUsize::new(0),
            streams: Mutex::default(),
            abandoned: AtomicUsize::new(0),
            mirrored: Mutex::new("Region"),
        });
        let listener = TcpListener::bind(address).await.unwrap();
        let url = format!("http://{}/mcp", listener.local_addr().unwrap());
        let router = Router::new()
            .route("/mcp", any(handle))
            .route("/moved", any(moved))
            .route("/locked", any(locked))
            .with_state(Arc::clone(&inner))
            .into_make_service_with_connect_info::<SocketAddr>();
        let mut serving = JoinSet::new();
        serving.spawn(async move { axum::serve(listener, router).await.unwrap() });
        Self { url, inner, serving }
    }

    pub(crate) fn address(&self) -> String {
        self.url.trim_start_matches("http://").trim_end_matches("/mcp").to_owned()
    }

    /// Stops listening and forgets all connections.
    pub(crate) async fn die(mut self) {
        self.serving.shutdown().await;
    }

    pub(crate) fn become_era(&self, era: Era) {
        *self.inner.era.lock().unwrap() = era;
    }

    pub(crate) fn lose_sessions(&self) {
        self.inner.sessions.lock().unwrap().clear();
    }

    pub(crate) fn open_sessions(&self) -> usize {
        self.inner.sessions.lock().unwrap().len()
    }

    pub(crate) fn rename_mirror(&self, name: &'static str) {
        *self.inner.mirrored.lock().unwrap() = name;
    }

    pub(crate) fn abandoned(&self) -> usize {
        self.inner.abandoned.load(Ordering::SeqCst)
    }

    pub(crate) fn seen(&self) -> Vec<Seen> {
        self.inner.seen.lock().unwrap().clone()
    }

    /// The JSON-RPC methods seen, in order.
    pub(crate) fn methods(&self) -> Vec<String> {
        self.seen()
            .iter()
            .filter_map(|seen| seen.body["method"].as_str().map(ToOwned::to_owned))
            .collect()
    }

    /// How many requests of this JSON-RPC method were seen.
    pub(crate) fn count(&self, method: &str) -> usize {
        self.methods().iter().filter(|seen| *seen == method).count()
    }
}

async fn moved(State(fake): State<Arc<Inner>>, headers: HeaderMap) -> Response {
    drop(fake);
    let host = headers["host"].to_str().unwrap();
    (StatusCode::TEMPORARY_REDIRECT, [("location", format!("http://{host}/mcp"))]).into_response()
}

async fn locked() -> StatusCode {
    StatusCode::UNAUTHORIZED
}

async fn handle(
    State(fake): State<Arc<Inner>>,
    ConnectInfo(peer): ConnectInfo<SocketAddr>,
    method: Method,
    headers: HeaderMap,
    bytes: Bytes,
) -> Response {
    let body: Value = serde_json::from_slice(&bytes).unwrap_or_default();
    let seen =
        Seen { method: method.clone(), peer, headers: headers.clone(), bytes, body: body.clone() };
    fake.seen.lock().unwrap().push(seen);
    if method == Method::DELETE {
        fake.sessions.lock().unwrap().remove(headers["mcp-session-id"].to_str().unwrap());
        return StatusCode::OK.into_response();
    }
    if method != Method::POST {
        return StatusCode::METHOD_NOT_ALLOWED.into_response();
    }
    let era = *fake.era.lock().unwrap();
    let refusal = match era {
        Era::Modern => check_modern(&fake, &headers, &body),
        Era::Legacy => check_legacy(&fake, &headers, &body),
    };
    if let Some(refusal) = refusal {
        return refusal;
    }
    if body.get("id").is_none() || body.get("method").is_none() {
        fake.notified(&body);
        return StatusCode::ACCEPTED.into_response();
    }
    answer(&fake, &body).await
}

fn check_modern(fake: &Inner, headers: &HeaderMap, body: &Value) -> Option<Response> {
    let header = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let id = &body["id"];
    let meta = &body["params"]["_meta"];
    let mismatch = |message| Some(error(StatusCode::BAD_REQUEST, id, -32020, message));
    if meta["io.modelcontextprotocol/protocolVersion"] != "2026-07-28" {
        let data = json!({"supported": ["2026-07-28"]});
        let error = json!({"code": -32022, "message": "version", "data": data});
        let body = json!({"jsonrpc": "2.0", "id": id, "error": error});
        return Some(json_response(StatusCode::BAD_REQUEST, &body));
    }
    if header("mcp-protocol-version") != Some("2026-07-28") {
        return mismatch("version");
    }
    if header("mcp-method") != body["method"].as_str() {
        return mismatch("method");
    }
    if header("mcp-name") != body["params"]["name"].as_str() {
        return mismatch("name");
    }
    if body["params"]["name"] == "mirror" {
        let name = format!("mcp-param-{}", fake.mirrored.lock().unwrap());
        if header(&name) != body["params"]["arguments"]["region"].as_str() {
            return mismatch("parameter");
        }
    }
    None
}

fn check_legacy(fake: &Inner, headers: &HeaderMap, body: &Value) -> Option<Response> {
    if body["method"] == "initialize" {
        return None;
    }
    let Some(session) = headers.get("mcp-session-id") else {
        return Some(error(StatusCode::BAD_REQUEST, &Value::Null, -32000, "no session"));
    };
    let known = fake.sessions.lock().unwrap().contains(session.to_str().unwrap());
    if !known {
        return Some(error(StatusCode::NOT_FOUND, &body["id"], -32600, "session not found"));
    }
    assert_eq!(headers["mcp-protocol-version"], "2025-06-18");
    None
}

async fn answer(fake: &Arc<Inner>, body: &Value) -> Response {
    let id = &body["id"];
    let params = &body["params"];
    match body["method"].as_str().unwrap() {
        "server/discover" => fake.respond(
            id,
            &json!({"resultType": "complete", "supportedVersions": ["2026-07-28"],
                "capabilities": {"tools": {}}, "serverInfo": {"name": "fake", "version": "1"}}),
        ),
        "initialize" => fake.initialize(id),
        "tools/list" => fake.list(id, params),
        "tools/call" => fake.call(id, params).await,
        _ => error(StatusCode::NOT_FOUND, id, -32601, "Method not found"),
    }
}

impl Inner {
    fn initialize(&self, id: &Value) -> Response {
        let session = format!("session-{}", self.opened.fetch_add(1, Ordering::SeqCst));
        self.sessions.lock().unwrap().insert(session.clone());
        // An older revision than asked for: what the server says holds.
        let result = json!({"protocolVersion": "2025-06-18", "capabilities": {"tools": {}},
            "serverInfo": {"name": "fake", "version": "1"}});
        let mut response = self.respond(id, &result);
        response.headers_mut().insert("mcp-session-id", session.parse().unwrap());
        response
    }

    fn list(&self, id: &Value, params: &Value) -> Response {
        let name = *self.mirrored.lock().unwrap();
        let object = json!({"type": "object"});
        let first = json!([
            {"name": "echo", "title": "Echo", "description": "Says it again.",
             "inputSchema": {"type": "object", "properties": {"text": {"type": "string"}}},
             "outputSchema": object, "annotations": {"readOnlyHint": true}, "vendor": [1, 2]},
            {"name": "mirror", "inputSchema": {"type": "object", "properties":
                {"region": {"type": "string", "x-mcp-header": name}}}},
        ]);
        let second = json!([{"name": "fail", "inputSchema": object}]);
        let result = if params["cursor"] == "two" {
            json!({"tools": second})
        } else {
            json!({"tools": first, "nextCursor": "two"})
        };
        self.respond(id, &result)
    }

    async fn call(self: &Arc<Self>, id: &Value, params: &Value) -> Response {
        let arguments = &params["arguments"];
        match params["name"].as_str().unwrap() {
            "echo" | "mirror" => self.respond(id, &content(&arguments.to_string())),
            "fail" => {
                let mut result = content("it failed");
                result["isError"] = true.into();
                self.respond(id, &result)
            }
            "refuse" => error(StatusCode::OK, id, -32602, "not like this"),
            "slow" => {
                let _abandoned = Abandoned(self);
                std::future::pending().await
            }
            "huge" => self.respond(id, &content(&"x".repeat(9 * 1024 * 1024))),
            "huge_chunked" => endless("application/json", r#"{"jsonrpc":"2.0","result":{"a":""#),
            "huge_line" => endless("text/event-stream", "data: "),
            "huge_stream" => endless("text/event-stream", "a comment that is a little longer\n\n"),
            "garbage" => ([("content-type", "application/json")], "<html>").into_response(),
            "wrong_type" => ([("content-type", "text/html")], "<html>").into_response(),
            "garbage_event" => sse(&[json!("nonsense")]),
            "wrong_id" => {
                let body = json!({"jsonrpc": "2.0", "id": 999_999, "result": content("x")});
                json_response(StatusCode::OK, &body)
            }
            "not_an_object" => self.respond(id, &json!(17)),
            "accepted" => StatusCode::ACCEPTED.into_response(),
            "broken" => StatusCode::BAD_GATEWAY.into_response(),
            "vanish" => sse(&[json!({"jsonrpc": "2.0", "method": "notifications/message"})]),
            "trailing" => trailing(id),
            "progress" => progress(id, &params["_meta"]["progressToken"]),
            "ask" => self.ask(id, params),
            "nosy" => self.nosy(id),
            name => error(StatusCode::OK, id, -32602, &format!("unknown tool {name}")),
        }
    }

    /// Wants input in the first round, and says in the second what it got.
    fn ask(&self, id: &Value, params: &Value) -> Response {
        if params.get("inputResponses").is_some() {
            let got = json!([params["inputResponses"], params["requestState"]]);
            return self.respond(id, &content(&got.to_string()));
        }
        let declared = &params["_meta"]["io.modelcontextprotocol/clientCapabilities"];
        if declared.get("elicitation").is_none() {
            return error(StatusCode::BAD_REQUEST, id, -32021, "elicitation is required");
        }
        let request = json!({"method": "elicitation/create", "params": {"message": "sure?"}});
        self.respond(
            id,
            &json!({"resultType": "input_required", "inputRequests": {"q": request},
                "requestState": "opaque"}),
        )
    }

    /// Asks for a completion and a ping, and only answers when it has got both answers.
    fn nosy(&self, id: &Value) -> Response {
        let (sender, receiver) = unbounded();
        for request in [
            json!({"jsonrpc": "2.0", "id": "sampling", "method": "sampling/createMessage"}),
            json!({"jsonrpc": "2.0", "id": "ping", "method": "ping"}),
        ] {
            sender.unbounded_send(Ok(event(&request))).unwrap();
        }
        let _ = id;
        self.streams.lock().unwrap().push(sender);
        ([("content-type", "text/event-stream")], Body::from_stream(receiver)).into_response()
    }

    /// Takes in a notification, or an answer to a request of [`Self::nosy`].
    fn notified(&self, body: &Value) {
        if body.get("method").is_some() {
            return;
        }
        let seen = self.seen.lock().unwrap();
        let answers: Vec<Value> = seen
            .iter()
            .filter(|seen| seen.body.get("id").is_some() && seen.body.get("method").is_none())
            .map(|seen| seen.body.clone())
            .collect();
        if answers.len() == 2 {
            let call = seen.iter().rfind(|seen| seen.body["params"]["name"] == "nosy").unwrap();
            let stream = self.streams.lock().unwrap().pop().unwrap();
            let got = serde_json::to_string(&answers).unwrap();
            let answer = json!({"jsonrpc": "2.0", "id": call.body["id"], "result": content(&got)});
            stream.unbounded_send(Ok(event(&answer))).unwrap();
        }
    }

    fn respond(&self, id: &Value, result: &Value) -> Response {
        let body = json!({"jsonrpc": "2.0", "id": id, "result": result});
        match self.answers {
            Answers::Json => json_response(StatusCode::OK, &body),
            Answers::Sse => sse(&[body]),
        }
    }
}

struct Abandoned<'a>(&'a Inner);

impl Drop for Abandoned<'_> {
    fn drop(&mut self) {
        self.0.abandoned.fetch_add(1, Ordering::SeqCst);
    }
}

fn content(text: &str) -> Value {
    json!({"content": [{"type": "text", "text": text}]})
}

fn error(status: StatusCode, id: &Value, code: i32, message: &str) -> Response {
    let error = json!({"code": code, "message": message});
    json_response(status, &json!({"jsonrpc": "2.0", "id": id, "error": error}))
}

fn json_response(status: StatusCode, body: &Value) -> Response {
    (status, [("content-type", "application/json; charset=utf-8")], body.to_string())
        .into_response()
}

fn event(message: &Value) -> Bytes {
    Bytes::from(format!("event: message\ndata: {message}\n\n"))
}

fn sse(messages: &[Value]) -> Response {
    // As servers do that could resume: an empty event first, only to give the stream an id.
    let mut body = "id: 0\ndata:\n\n".to_owned();
    for message in messages {
        body.push_str(std::str::from_utf8(&event(message)).unwrap());
    }
    ([("content-type", "text/event-stream")], body).into_response()
}

fn progress(id: &Value, token: &Value) -> Response {
    let step = |progress: Value, message: &str| {
        let params = json!({"progressToken": token, "progress": progress, "total": 2,
            "message": message});
        json!({"jsonrpc": "2.0", "method": "notifications/progress", "params": params})
    };
    let answer = json!({"jsonrpc": "2.0", "id": id, "result": content("done")});
    sse(&[step(json!(1), "half"), step(json!(2), "whole"), answer])
}

/// A stream whose end comes a little after its answer.
fn trailing(id: &Value) -> Response {
    let answer = event(&json!({"jsonrpc": "2.0", "id": id, "result": content("done")}));
    let chunks = futures::stream::once(async move { Ok::<Bytes, Infallible>(answer) }).chain(
        futures::stream::once(async {
            for _ in 0..10 {
                tokio::task::yield_now().await;
            }
            Ok(Bytes::from_static(b": the end\n\n"))
        }),
    );
    ([("content-type", "text/event-stream")], Body::from_stream(chunks)).into_response()
}

/// A body that never ends.
fn endless(kind: &'static str, start: &'static str) -> Response {
    let again = if start.ends_with('\n') { start } else { "x" };
    let chunk = Bytes::from(again.repeat(64 * 1024 / again.len()));
    let chunks = futures::stream::iter(std::iter::once(Bytes::from_static(start.as_bytes())))
        .chain(futures::stream::repeat(chunk))
        .map(Ok::<Bytes, Infallible>);
    ([("content-type", kind)], Body::from_stream(chunks)).into_response()
}
