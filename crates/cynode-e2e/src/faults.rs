//! Fault points: named places between two processes where one of them can be killed, paused or cut off.
//!
//! Processes communicate through proxies here. From outside, the progress of a dead process is visible only in the messages it
//! had sent and received; so a kill before and after each message covers every place inside it.

use std::{
    collections::HashMap,
    fmt,
    net::{Ipv4Addr, SocketAddr},
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
};

use axum::{
    Router,
    body::{Body, Bytes, to_bytes},
    extract::{Request, State},
    http::{StatusCode, request::Parts},
    response::{IntoResponse, Response},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::watch,
};
use tokio_util::task::TaskTracker;

/// Side of a message: before it reaches its receiver, or after its effect and before the response arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Phase {
    /// The fault comes before the message arrives.
    Before,
    /// The message had its effect; the response comes after the fault, if ever.
    After,
}

/// A message that triggers a fault.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Trigger {
    /// Name of the message, such as `checkpoint:plan_steps` or `sql:commit`.
    pub message: String,
    /// Side of the message.
    pub phase: Phase,
}

impl fmt::Display for Trigger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let phase = match self.phase {
            Phase::Before => "before",
            Phase::After => "after",
        };
        write!(f, "{phase} {}", self.message)
    }
}

/// The action at a trigger; it completes before the message continues.
pub type Act = Box<dyn FnOnce() -> Cut + Send>;

/// Whether the connection that carried the message is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// The connection continues.
    No,
    /// The connection ends here.
    Yes,
}

struct Armed {
    trigger: Trigger,
    skip: u32,
    act: Act,
}

/// The faults of a world.
#[derive(Clone, Default)]
pub struct Faults {
    armed: Arc<Mutex<Option<Armed>>>,
    recording: Arc<Mutex<Option<Vec<Trigger>>>>,
}

impl Faults {
    /// Runs `act` at the trigger, after `skip` occurrences.
    pub fn arm(&self, trigger: Trigger, skip: u32, act: Act) {
        *self.armed.lock().unwrap() = Some(Armed { trigger, skip, act });
    }

    /// Removes a fault that has not happened. Returns `true` if there was one.
    pub fn disarm(&self) -> bool {
        self.armed.lock().unwrap().take().is_some()
    }

    /// Starts to record messages.
    pub fn start_recording(&self) {
        *self.recording.lock().unwrap() = Some(Vec::new());
    }

    /// Ends the recording. Returns the messages in order.
    pub fn stop_recording(&self) -> Vec<Trigger> {
        self.recording.lock().unwrap().take().unwrap_or_default()
    }

    fn pass(&self, message: &str, phase: Phase) -> Cut {
        if let Some(recording) = self.recording.lock().unwrap().as_mut() {
            recording.push(Trigger { message: message.to_owned(), phase });
        }
        let act = {
            let mut armed = self.armed.lock().unwrap();
            match armed.as_mut() {
                Some(this) if this.trigger.message == message && this.trigger.phase == phase => {
                    if this.skip > 0 {
                        this.skip -= 1;
                        None
                    } else {
                        armed.take().map(|armed| armed.act)
                    }
                }
                Some(_) | None => None,
            }
        };
        act.map_or(Cut::No, |act| act())
    }
}

/// Forwards HTTP requests to `target`.
pub struct HttpProxy {
    /// Listen address.
    pub address: SocketAddr,
    /// Number of checkpoints that were answered with 200, and with 409.
    pub checkpoints: Arc<[AtomicU64; 2]>,
    /// Number of checkpoints that are delayed.
    pub held: Arc<AtomicU64>,
    hold: watch::Sender<bool>,
}

#[derive(Clone)]
struct Passing {
    http: reqwest::Client,
    target: String,
    /// The sender, if it is a project manager or an analyst.
    agent: Option<&'static str>,
    faults: Faults,
    checkpoints: Arc<[AtomicU64; 2]>,
    held: Arc<AtomicU64>,
    hold: watch::Receiver<bool>,
}

impl HttpProxy {
    /// Delays every message, or releases all of them.
    pub fn hold(&self, hold: bool) {
        self.hold.send_replace(hold);
    }

    /// Starts the proxy.
    pub async fn start(tasks: &TaskTracker, target: SocketAddr, faults: Faults) -> Self {
        Self::start_for(tasks, target, faults, None).await
    }

    /// Starts a proxy for a project manager or an analyst; the names of its messages begin with its own.
    pub async fn start_for_agent(
        tasks: &TaskTracker,
        target: SocketAddr,
        faults: Faults,
        name: &'static str,
    ) -> Self {
        Self::start_for(tasks, target, faults, Some(name)).await
    }

    async fn start_for(
        tasks: &TaskTracker,
        target: SocketAddr,
        faults: Faults,
        agent: Option<&'static str>,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        // One connection per request: a connection that the receiver's death broke must not look like a refusal.
        let http = reqwest::Client::builder().no_proxy().pool_max_idle_per_host(0).build().unwrap();
        let checkpoints = Arc::<[AtomicU64; 2]>::default();
        let target = format!("http://{target}");
        let (hold, held_back) = watch::channel(false);
        let held = Arc::<AtomicU64>::default();
        let passing = Passing {
            http,
            target,
            agent,
            faults,
            checkpoints: checkpoints.clone(),
            held: held.clone(),
            hold: held_back,
        };
        let router = Router::new().fallback(pass_http).with_state(passing);
        tasks.spawn(async move { axum::serve(listener, router).await.unwrap() });
        Self { address, checkpoints, held, hold }
    }
}

/// Returns the name of an HTTP request.
fn name_http(path: &str, body: &[u8]) -> String {
    if path == "/mcp" {
        let body: serde_json::Value = serde_json::from_slice(body).unwrap_or_default();
        let tool = body["params"]["name"].as_str().unwrap_or_default();
        let arguments = &body["params"]["arguments"];
        return match tool.strip_prefix("workflow__") {
            Some("checkpoint") => name_checkpoint(&arguments["checkpoint"]),
            verb => format!("workflow:{}", verb.unwrap_or(tool)),
        };
    }
    if path.ends_with("/workflow/checkpoint") {
        return name_checkpoint(&serde_json::from_slice(body).unwrap_or_default());
    }
    if path.ends_with("/advance/send") {
        return "engine:send".into();
    }
    if path.ends_with("/result") {
        return "job:result".into();
    }
    let verb = path.rsplit('/').next().unwrap_or_default();
    if path.contains("/jobs/") { format!("job:{verb}") } else { format!("workflow:{verb}") }
}

/// Returns the name of a message of a project manager or an analyst.
fn name_agent_message(who: &str, path: &str, body: &[u8]) -> String {
    let body: serde_json::Value = serde_json::from_slice(body).unwrap_or_default();
    let word = |place: &str| body.pointer(place).and_then(|it| it.as_str()).unwrap_or("?");
    let arguments = |place: &str| word(&format!("/params/arguments/{place}"));
    let what = match (path, word("/params/name")) {
        ("/mcp", "handoff__complete") => format!("complete:{}", arguments("answer/answer")),
        ("/mcp", "think__record") => format!("record:{}", arguments("decision/kind")),
        ("/mcp", tool) => match tool.strip_prefix("handoff__") {
            Some(verb) => verb.to_owned(),
            None => format!("tool:{}", tool.replace("__", ".")),
        },
        _ => format!("think:{}", word("/response_format/json_schema/name")),
    };
    format!("{who}:{what}")
}

/// Returns the name of an answered message: a claim is named by the claimed item. `None` for a claim that took nothing, which
/// is no fault point.
fn name_answered(name: &str, answer: &[u8]) -> Option<String> {
    if name == "job:claim" {
        return (answer != br#"{"jobs":[]}"#).then(|| name.to_owned());
    }
    if !name.ends_with(":claim") {
        return Some(name.to_owned());
    }
    let answer: serde_json::Value = serde_json::from_slice(answer).ok()?;
    let claimed = answer.pointer("/result/structuredContent/handoff/request/kind")?.as_str()?;
    Some(format!("{name}:{claimed}"))
}

fn name_checkpoint(checkpoint: &serde_json::Value) -> String {
    let word = |key: &str| checkpoint[key].as_str().unwrap_or("?").to_owned();
    format!("checkpoint:{}:{}", word("node"), word("verdict"))
}

async fn pass_http(State(mut passing): State<Passing>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let body = to_bytes(body, usize::MAX).await.unwrap_or_default();
    let path = parts.uri.path();
    let name = match passing.agent {
        Some(who) => name_agent_message(who, path, &body),
        None => name_http(path, &body),
    };
    // A claim ends with its connection: a process that dies while it waits for work must get none.
    if passing.agent.is_some() && name.ends_with(":claim") {
        return forward(passing, parts, body, name).await;
    }
    if *passing.hold.borrow() && name.starts_with("checkpoint") {
        passing.held.fetch_add(1, Ordering::Relaxed);
    }
    // A message in flight arrives, even if its sender has died meanwhile.
    let carried = TaskTracker::new().spawn(async move {
        let _ = passing.hold.wait_for(|hold| !hold).await;
        forward(passing, parts, body, name).await
    });
    carried.await.unwrap_or_else(|_| StatusCode::BAD_GATEWAY.into_response())
}

async fn forward(passing: Passing, parts: Parts, body: Bytes, name: String) -> Response {
    let path = parts.uri.path_and_query().map_or("/", |path| path.as_str());
    if passing.faults.pass(&name, Phase::Before) == Cut::Yes {
        return StatusCode::BAD_GATEWAY.into_response();
    }
    let url = format!("{}{path}", passing.target);
    let sent = passing.http.request(parts.method.clone(), url).headers(parts.headers).body(body);
    let Ok(answer) = sent.send().await else {
        return StatusCode::BAD_GATEWAY.into_response();
    };
    let (status, headers) = (answer.status(), answer.headers().clone());
    let Ok(body) = answer.bytes().await else {
        return StatusCode::BAD_GATEWAY.into_response();
    };
    if let Some(answered) = name_answered(&name, &body)
        && passing.faults.pass(&answered, Phase::After) == Cut::Yes
    {
        return StatusCode::BAD_GATEWAY.into_response();
    }
    if name.starts_with("checkpoint") {
        // At the gateway a refused write is a result with an error.
        let refused = status == StatusCode::CONFLICT
            || body.windows(15).any(|part| part == br#""code":"fenced""#);
        let failed = body.windows(14).any(|part| part == br#""isError":true"#);
        let index = usize::from(refused);
        if refused || (status.is_success() && !failed) {
            passing.checkpoints[index].fetch_add(1, Ordering::Relaxed);
        }
    }
    let mut response = Response::new(Body::from(body));
    *response.status_mut() = status;
    for name in ["content-type", "x-cynode-call"] {
        if let Some(value) = headers.get(name) {
            response.headers_mut().insert(name, value.clone());
        }
    }
    response
}

/// Forwards bytes to a target that can be changed; every connection can be cut.
pub struct TcpProxy {
    /// Listen address.
    pub address: SocketAddr,
    target: watch::Sender<SocketAddr>,
}

impl TcpProxy {
    /// Starts the proxy on loopback.
    pub async fn start(tasks: &TaskTracker, target: SocketAddr) -> Self {
        Self::start_at(tasks, Ipv4Addr::LOCALHOST, target).await
    }

    /// Starts the proxy on an address of this machine.
    pub async fn start_at(tasks: &TaskTracker, listen: Ipv4Addr, target: SocketAddr) -> Self {
        let listener = TcpListener::bind((listen, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let (sender, receiver) = watch::channel(target);
        let children = tasks.clone();
        tasks.spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let mut target = receiver.clone();
                children.spawn(async move {
                    let to = *target.borrow_and_update();
                    let Ok(server) = TcpStream::connect(to).await else { return };
                    let (mut client, mut server) = (client, server);
                    let _ = (client.set_nodelay(true), server.set_nodelay(true));
                    tokio::select! {
                        _ = tokio::io::copy_bidirectional(&mut client, &mut server) => {}
                        _ = target.changed() => {}
                    }
                });
            }
        });
        Self { address, target: sender }
    }

    /// Cuts every connection; new ones go to `target`.
    pub fn point_at(&self, target: SocketAddr) {
        self.target.send_replace(target);
    }
}

/// Forwards the protocol of `PostgreSQL` to `target`, and identifies the statement in progress.
pub struct PostgresProxy {
    /// Listen address.
    pub address: SocketAddr,
}

/// Statements with a fault point: a part of their text, and their name.
const STATEMENTS: [(&str, &str); 16] = [
    ("INSERT INTO workflow_leases", "sql:grant"),
    ("INSERT INTO workflow_checkpoints", "sql:begin"),
    ("WITH lease AS MATERIALIZED", "sql:advance"),
    ("INSERT INTO work_units", "sql:plan"),
    ("SET state = 'dispatched'", "sql:dispatch"),
    ("SET collected_at", "sql:collect"),
    ("UPDATE work_units\n        SET state = $4", "sql:unit"),
    ("INSERT INTO waits", "sql:wait"),
    ("due_at = CASE", "sql:rest"),
    ("SET state = 'running', worker", "sql:claim"),
    ("SET state = $4, result", "sql:report"),
    ("SET dispatched_at = clock_timestamp()", "sql:take_due"),
    ("outcome = $2", "sql:end"),
    ("UPDATE tasks", "sql:task"),
    ("INSERT INTO deliveries", "sql:delivery:begin"),
    ("SET state = 'open', head_commit", "sql:delivery:offer"),
];

impl PostgresProxy {
    /// Starts the proxy.
    pub async fn start(tasks: &TaskTracker, target: SocketAddr, faults: Faults) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let children = tasks.clone();
        tasks.spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let faults = faults.clone();
                children.spawn(async move {
                    if let Ok(server) = TcpStream::connect(target).await {
                        let _ = (client.set_nodelay(true), server.set_nodelay(true));
                        pass_postgres(client, server, faults).await;
                    }
                });
            }
        });
        Self { address }
    }
}

async fn pass_postgres(client: TcpStream, server: TcpStream, faults: Faults) {
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = server.into_split();
    let current: Arc<Mutex<Option<&'static str>>> = Arc::default();
    let (asked, answers) = (current.clone(), faults.clone());
    let asking = async move {
        // The start-up message has no type.
        let mut length = [0; 4];
        from_client.read_exact(&mut length).await.ok()?;
        let mut rest = vec![0; u32::from_be_bytes(length).saturating_sub(4) as usize];
        from_client.read_exact(&mut rest).await.ok()?;
        to_server.write_all(&[&length[..], &rest].concat()).await.ok()?;
        let mut names: HashMap<Vec<u8>, &'static str> = HashMap::new();
        loop {
            let (kind, message) = read_message(&mut from_client).await?;
            let body = &message[5..];
            let found = match kind {
                b'P' => {
                    let (name, rest) = text(body);
                    let (sql, _) = text(rest);
                    let sql = String::from_utf8_lossy(sql);
                    let known = STATEMENTS.iter().find(|(piece, _)| sql.contains(piece));
                    if let Some((_, label)) = known {
                        names.insert(name.to_vec(), label);
                    }
                    None
                }
                b'B' => names.get(text(text(body).1).0).copied(),
                b'Q' if text(body).0 == b"COMMIT" => Some("sql:commit"),
                _ => None,
            };
            if let Some(label) = found {
                *asked.lock().unwrap() = Some(label);
                if faults.pass(label, Phase::Before) == Cut::Yes {
                    return None::<()>;
                }
            }
            to_server.write_all(&message).await.ok()?;
        }
    };
    let answering = async move {
        loop {
            let (kind, message) = read_message(&mut from_server).await?;
            if kind == b'Z' {
                let label = current.lock().unwrap().take();
                if let Some(label) = label
                    && answers.pass(label, Phase::After) == Cut::Yes
                {
                    return None::<()>;
                }
            }
            to_client.write_all(&message).await.ok()?;
        }
    };
    tokio::select! {
        _ = asking => {}
        _ = answering => {}
    }
}

async fn read_message(from: &mut (impl AsyncReadExt + Unpin)) -> Option<(u8, Vec<u8>)> {
    let mut head = [0; 5];
    from.read_exact(&mut head).await.ok()?;
    let length = u32::from_be_bytes([head[1], head[2], head[3], head[4]]) as usize;
    let mut message = head.to_vec();
    message.resize(1 + length, 0);
    from.read_exact(&mut message[5..]).await.ok()?;
    Some((head[0], message))
}

/// Splits off a text that ends with a zero byte.
fn text(bytes: &[u8]) -> (&[u8], &[u8]) {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    (&bytes[..end], bytes.get(end + 1..).unwrap_or_default())
}
