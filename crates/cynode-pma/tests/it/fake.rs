//! An orchestrator that speaks just enough: handoffs and tools at `/mcp`, models at `/v1/chat/completions`. It notes everything, and
//! answers as it was told to.

use std::{
    collections::{HashMap, VecDeque},
    convert::Infallible,
    net::SocketAddr,
    sync::{Arc, Mutex},
    time::Duration,
};

use axum::{
    Router,
    body::{Body, Bytes},
    extract::State,
    http::{HeaderMap, StatusCode},
    response::{IntoResponse, Response},
    routing::post,
};
use cynode_core::sync::lock_unpoisoned;
use cynode_pma::{
    instructions::InstructionBundle,
    role::PmaRole,
    role_runtime::{RoleRuntime, RoleTuning},
};
use cynode_wire::manager::handoffs::HandoffAssignment;
use serde_json::{Value, json};
use tokio::{
    net::TcpListener,
    sync::{mpsc, watch},
    time::timeout,
};
use tokio_util::task::{AbortOnDropHandle, TaskTracker};

/// The token of the process.
pub(crate) const HOST: &str = "cyn_svc_host_token_of_the_process";
/// The token of the handoff.
pub(crate) const TOKEN: &str = "cyn_agt_token_of_the_handoff";
/// The trace of the handoff.
pub(crate) const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
/// Longer than anything takes that works.
const LONG: Duration = Duration::from_secs(20);

/// Something that was asked.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Seen {
    /// The dotted name of the tool, `tools/list`, or `model`.
    pub(crate) what: String,
    /// Whose token was shown.
    pub(crate) token: String,
    /// The trace.
    pub(crate) trace: Option<String>,
    /// The arguments, or the question.
    pub(crate) body: Value,
}

/// How something is answered.
#[derive(Debug)]
pub(crate) enum Reply {
    /// With a tool's result.
    Given(Value),
    /// By the gate's no.
    Refused(&'static str),
    /// By a tool's failure.
    Failed(&'static str),
    /// With a status and a body.
    Status(u16, Value),
    /// With a model's text.
    Text(String),
    /// With the pieces of a model's answer; ends when the sender is dropped.
    Pieces(mpsc::Receiver<Value>),
    /// With a question of its own.
    Asks,
    /// By sending whoever asks to another address.
    Elsewhere(String),
    /// Never.
    Never,
}

struct Inside {
    seen: Mutex<Vec<Seen>>,
    /// What was being answered when whoever asked went away.
    left: Mutex<Vec<String>>,
    replies: Mutex<HashMap<String, VecDeque<Reply>>>,
    tools: Mutex<Vec<Value>>,
    changed: watch::Sender<u64>,
}

/// The orchestrator.
#[derive(Clone)]
pub(crate) struct Fake {
    /// Where it is.
    pub(crate) base: String,
    inside: Arc<Inside>,
    _served: Arc<AbortOnDropHandle<()>>,
}

/// Notes that somebody went away, unless it was answered before.
struct Asker<'a>(&'a Inside, String);

impl Drop for Asker<'_> {
    fn drop(&mut self) {
        lock_unpoisoned(&self.0.left).push(self.1.clone());
        self.0.changed.send_modify(|n| *n += 1);
    }
}

impl Fake {
    /// One on a port of its own.
    pub(crate) async fn start() -> Self {
        Self::start_at("127.0.0.1:0".parse().unwrap()).await
    }

    /// One on that port.
    pub(crate) async fn start_at(address: SocketAddr) -> Self {
        let listener = TcpListener::bind(address).await.unwrap();
        let base = format!("http://{}", listener.local_addr().unwrap());
        let inside = Arc::new(Inside {
            seen: Mutex::default(),
            left: Mutex::default(),
            replies: Mutex::default(),
            tools: Mutex::default(),
            changed: watch::Sender::new(0),
        });
        let router = Router::new()
            .route("/mcp", post(mcp))
            .route("/v1/chat/completions", post(model))
            .with_state(inside.clone());
        let served =
            TaskTracker::new().spawn(async { axum::serve(listener, router).await.unwrap() });
        Self { base, inside, _served: Arc::new(AbortOnDropHandle::new(served)) }
    }

    /// Answers the next call of a tool, or the next question to a model (`model`), like that.
    pub(crate) fn reply(&self, what: &str, reply: Reply) {
        lock_unpoisoned(&self.inside.replies).entry(what.to_owned()).or_default().push_back(reply);
        self.inside.changed.send_modify(|n| *n += 1);
    }

    /// Hands over a handoff.
    pub(crate) fn hand(&self, handoff: &Value) {
        self.reply("handoff.claim", Reply::Given(json!({ "handoff": handoff })));
    }

    /// Offers a tool.
    pub(crate) fn offer(&self, name: &str, description: &str, input: &Value) {
        let name = name.replace('.', "__");
        lock_unpoisoned(&self.inside.tools)
            .push(json!({ "name": name, "description": description, "inputSchema": input }));
    }

    /// Everything that was asked, but for claims, signs of life and the word that a model is about to be asked.
    pub(crate) fn seen(&self) -> Vec<Seen> {
        let dull = ["handoff.claim", "handoff.keep", "think.begin"];
        lock_unpoisoned(&self.inside.seen)
            .iter()
            .filter(|seen| !dull.contains(&seen.what.as_str()))
            .cloned()
            .collect()
    }

    /// What was asked of one kind.
    pub(crate) fn asked(&self, what: &str) -> Vec<Seen> {
        lock_unpoisoned(&self.inside.seen)
            .iter()
            .filter(|seen| seen.what == what)
            .cloned()
            .collect()
    }

    /// Waits until something of a kind was asked so often, and gives it all.
    pub(crate) async fn until(&self, what: &str, times: usize) -> Vec<Seen> {
        self.wait(what, || self.asked(what).len() >= times).await;
        self.asked(what)
    }

    /// Waits until whoever asked something of a kind went away without an answer.
    pub(crate) async fn until_left(&self, what: &str) {
        self.wait(what, || lock_unpoisoned(&self.inside.left).iter().any(|left| left == what))
            .await;
    }

    async fn wait(&self, what: &str, mut there: impl FnMut() -> bool) {
        let mut changes = self.inside.changed.subscribe();
        let waited = timeout(LONG, async {
            while !there() {
                changes.changed().await.unwrap();
            }
        });
        assert!(waited.await.is_ok(), "{what} did not come; seen: {:#?}", self.seen());
    }

    /// An office at it.
    pub(crate) fn office(&self, role: PmaRole, patience: Duration) -> RoleRuntime {
        office_at(&self.base, role, patience)
    }
}

/// An office at an address.
pub(crate) fn office_at(base: &str, role: PmaRole, patience: Duration) -> RoleRuntime {
    let bundle = InstructionBundle {
        role,
        baseline: "BASELINE".into(),
        instructions: "INSTRUCTIONS".into(),
        digest: String::new(),
    };
    let tuning = RoleTuning { max_steps: 20, temperature: 0.2, patience };
    RoleRuntime::new(bundle, tuning, base, HOST.to_owned().into()).unwrap()
}

/// A handoff that asks for something.
pub(crate) fn handoff(request: &Value) -> Value {
    json!({
        "handoff_id": "hof_00000000000000000000000000000001",
        "fencing_token": 7,
        "attempt": 1,
        "request": request,
        "context": {
            "trace_id": TRACE,
            "user_id": null,
            "group_ids": [],
            "project": { "id": "prj_00000000000000000000000000000002", "name": "Shop", "slug": "shop", "description": "Sells.", "head": null },
            "task": { "id": "tsk_00000000000000000000000000000003", "name": "dark-mode", "description": "Make it dark.",
                "acceptance_criteria": [{ "text": "It is dark" }], "status": "running" },
            "thread_id": null,
            "run_id": null,
            "additional_context": "Be brief.",
            "preferences": {},
            "preferences_applied": {},
            "reports": [],
            "planned": null,
            "skill": null,
        },
        "token": TOKEN,
        "models": ["cynodeai.fast", "cynodeai.standard"],
        "tool_models": ["cynodeai.fast", "cynodeai.standard"],
        "decisions": [],
        "delegated": [],
        "expires_at": "2030-01-01T00:00:00Z",
    })
}

/// The same as a value of ours.
pub(crate) fn read(handoff: &Value) -> HandoffAssignment {
    serde_json::from_value(handoff.clone()).unwrap()
}

/// Pieces of an answer that are all there.
pub(crate) fn pieces(all: impl IntoIterator<Item = Value>) -> Reply {
    let all: Vec<Value> = all.into_iter().collect();
    let (sender, receiver) = mpsc::channel(all.len().max(1));
    for piece in all {
        sender.try_send(piece).unwrap();
    }
    Reply::Pieces(receiver)
}

/// One piece of an answer.
pub(crate) fn piece(delta: &Value, finish: Option<&str>) -> Value {
    json!({ "id": "x", "object": "chat.completion.chunk", "created": 1700, "model": "m",
        "choices": [{ "index": 0, "delta": delta, "finish_reason": finish }] })
}

/// The piece with what was used.
pub(crate) fn used(input: u64, output: u64) -> Value {
    json!({ "id": "x", "object": "chat.completion.chunk", "created": 1700, "model": "m", "choices": [],
        "usage": { "prompt_tokens": input, "completion_tokens": output, "total_tokens": input + output } })
}

impl Inside {
    fn note(&self, what: &str, headers: &HeaderMap, body: Value) {
        let text = |name: &str| headers.get(name).map(|value| value.to_str().unwrap().to_owned());
        let token = text("authorization").unwrap_or_default();
        let seen = Seen {
            what: what.to_owned(),
            token: token.strip_prefix("Bearer ").unwrap_or_default().to_owned(),
            trace: text("traceparent").map(|parent| parent.split('-').nth(1).unwrap().to_owned()),
            body,
        };
        lock_unpoisoned(&self.seen).push(seen);
        self.changed.send_modify(|n| *n += 1);
    }

    fn next(&self, what: &str) -> Option<Reply> {
        lock_unpoisoned(&self.replies).get_mut(what).and_then(VecDeque::pop_front)
    }

    /// The next reply; claims wait for one, everything else is answered with nothing in particular.
    async fn reply(&self, what: &str) -> Reply {
        let mut changes = self.changed.subscribe();
        loop {
            match self.next(what) {
                Some(reply) => return reply,
                None if what != "handoff.claim" => return Reply::Given(json!({})),
                None => changes.changed().await.unwrap(),
            }
        }
    }
}

async fn mcp(State(inside): State<Arc<Inside>>, headers: HeaderMap, body: Bytes) -> Response {
    let message: Value = serde_json::from_slice(&body).unwrap();
    assert_eq!(message["method"], headers["mcp-method"].to_str().unwrap());
    if message["method"] == "tools/list" {
        inside.note("tools/list", &headers, Value::Null);
        let tools = lock_unpoisoned(&inside.tools).clone();
        return answered(&json!({ "tools": tools }));
    }
    let params = &message["params"];
    assert_eq!(params["name"], headers["mcp-name"].to_str().unwrap());
    let tool = params["name"].as_str().unwrap().replace("__", ".");
    inside.note(&tool, &headers, params["arguments"].clone());
    let asker = Asker(&inside, tool.clone());
    let reply = inside.reply(&tool).await;
    let failed = |structured: Value| json!({ "content": [{ "type": "text", "text": "no" }], "structuredContent": structured, "isError": true });
    let response = match reply {
        Reply::Given(value) => answered(
            &json!({ "content": [], "structuredContent": value, "isError": false, "resultType": "complete" }),
        ),
        Reply::Refused(code) => answered(&failed(
            json!({ "refused": { "code": code, "step": "rules", "reason": "because", "advice": "stop" } }),
        )),
        Reply::Failed(code) => {
            answered(&failed(json!({ "error": { "code": code, "detail": "it went wrong" } })))
        }
        Reply::Status(status, body) => json(status, &body),
        Reply::Text(text) => {
            answered(&json!({ "content": [{ "type": "text", "text": text }], "isError": false }))
        }
        Reply::Pieces(_) => panic!("a tool does not answer in pieces"),
        Reply::Asks => answered(&json!({ "resultType": "input_required", "inputRequests": {} })),
        Reply::Elsewhere(address) => elsewhere(&address),
        Reply::Never => std::future::pending().await,
    };
    std::mem::forget(asker);
    response
}

async fn model(State(inside): State<Arc<Inside>>, headers: HeaderMap, body: Bytes) -> Response {
    inside.note("model", &headers, serde_json::from_slice(&body).unwrap());
    let asker = Asker(&inside, "model".into());
    let reply = inside.reply("model").await;
    let mut response = match reply {
        Reply::Text(text) => json(
            200,
            &json!({ "id": "x", "object": "chat.completion", "created": 1700, "model": "m",
                "choices": [{ "index": 0, "message": { "role": "assistant", "content": text }, "finish_reason": "stop" }],
                "usage": { "prompt_tokens": 10, "completion_tokens": 3, "total_tokens": 13 } }),
        ),
        Reply::Status(status, body) => json(status, &body),
        Reply::Pieces(receiver) => {
            let held = Held { inside: inside.clone(), ended: false };
            let stream =
                futures::stream::unfold((receiver, held), |(mut receiver, mut held)| async {
                    let bytes = match receiver.recv().await {
                        Some(piece) => format!("data: {piece}\n\n"),
                        None if held.ended => return None,
                        None => {
                            held.ended = true;
                            "data: [DONE]\n\n".to_owned()
                        }
                    };
                    Some((Ok::<_, Infallible>(bytes), (receiver, held)))
                });
            Response::new(Body::from_stream(stream))
        }
        Reply::Elsewhere(address) => elsewhere(&address),
        Reply::Never => std::future::pending().await,
        other => panic!("a model does not answer with {other:?}"),
    };
    response.headers_mut().insert("x-cynode-call", "call_1".parse().unwrap());
    std::mem::forget(asker);
    response
}

/// Notes that whoever listened went away before the end.
struct Held {
    inside: Arc<Inside>,
    ended: bool,
}

impl Drop for Held {
    fn drop(&mut self) {
        if !self.ended {
            lock_unpoisoned(&self.inside.left).push("model".into());
            self.inside.changed.send_modify(|n| *n += 1);
        }
    }
}

fn elsewhere(address: &str) -> Response {
    (StatusCode::TEMPORARY_REDIRECT, [("location", address)]).into_response()
}

fn answered(result: &Value) -> Response {
    json(200, &json!({ "jsonrpc": "2.0", "id": 1, "result": result }))
}

fn json(status: u16, body: &Value) -> Response {
    let status = StatusCode::from_u16(status).unwrap();
    (status, [("content-type", "application/json")], body.to_string()).into_response()
}
