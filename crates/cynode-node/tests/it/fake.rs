//! A small orchestrator that speaks the node protocol, remembers everything, and fails on request.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    path::{Path, PathBuf},
    process::Stdio,
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use axum::{
    Router,
    body::{Body, Bytes, to_bytes},
    extract::{Request, State},
    http::{HeaderMap, Method, StatusCode, header},
    response::Response,
};
use cynode_core::{
    ids::{JobId, NodeId},
    nodes::{JobEvent, JobPhase, NodeReport, NodeState},
};
use cynode_wire::{identity::accounts::SecretText, nodes::*};
use data_encoding::HEXLOWER;
use ed25519_dalek::{Signature, VerifyingKey};
use futures::stream;
use serde::{Serialize, de::DeserializeOwned};
use serde_json::json;
use sha2::{Digest, Sha256};
use tokio::{io::AsyncWriteExt, sync::watch};
use tokio_util::task::TaskTracker;
use uuid::Uuid;

/// What goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// Answers 500 and does nothing.
    Fail,
    /// Does it and cuts the connection before the answer is whole.
    LoseAnswer,
    /// Cuts the connection and does nothing.
    Cut,
    /// Waits with doing it until it is released.
    Hold,
    /// Does it, and waits with the answer until it is released.
    HoldAnswer,
}

/// All that the orchestrator knows.
#[derive(Default)]
pub(crate) struct World {
    pub(crate) keys: BTreeMap<NodeId, VerifyingKey>,
    pub(crate) joins: Vec<JoinNode>,
    pub(crate) challenges: Vec<String>,
    pub(crate) tokens: Vec<String>,
    /// The process of the node that may speak; each that starts takes the next number.
    pub(crate) generation: i64,
    pub(crate) verified: u32,
    pub(crate) queue: Vec<JobAssignment>,
    pub(crate) claims: BTreeMap<Uuid, Vec<JobAssignment>>,
    pub(crate) jobs: BTreeMap<JobId, Record>,
    pub(crate) blobs: BTreeMap<String, Vec<u8>>,
    pub(crate) report: Option<NodeReport>,
    pub(crate) heartbeats: u64,
    pub(crate) delivered: Vec<Uuid>,
    pub(crate) instructions: Vec<JobInstruction>,
    pub(crate) permission: Option<PermissionAnswer>,
    pub(crate) asked: Vec<AskPermission>,
    pub(crate) draining: bool,
    pub(crate) agents: Vec<Seen>,
    pub(crate) fetches: u32,
    pub(crate) held: u32,
    pub(crate) faults: Vec<(&'static str, Fault, u32)>,
    pub(crate) deaf: bool,
}

impl World {
    /// Whether a challenge of ours was signed with the key of the node.
    fn has_signed(&self, node: NodeId, challenge: &str, signature: &str) -> bool {
        let signature = HEXLOWER.decode(signature.as_bytes()).unwrap();
        let signature = Signature::from_slice(&signature).unwrap();
        let signed = signed_bytes(node, challenge);
        let key = self.keys.get(&node).filter(|_| self.challenges.iter().any(|it| it == challenge));
        key.is_some_and(|key| key.verify_strict(&signed, &signature).is_ok())
    }
}

/// A job, as the orchestrator sees it.
#[derive(Default)]
pub(crate) struct Record {
    pub(crate) fencing_token: i64,
    pub(crate) events: Vec<JobEvent>,
    pub(crate) results: Vec<NodeResult>,
    /// How often a result arrived, the refused and repeated ones too.
    pub(crate) posts: u32,
    pub(crate) stop: Option<String>,
    pub(crate) phase: Option<JobPhase>,
}

/// A request of an agent that arrived.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    pub(crate) method: String,
    pub(crate) path: String,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

pub(crate) struct Shared {
    world: Mutex<World>,
    changed: watch::Sender<u64>,
    release: watch::Sender<u64>,
    repository: Mutex<Option<PathBuf>>,
}

#[derive(Clone)]
pub(crate) struct Fake {
    pub(crate) url: String,
    shared: Arc<Shared>,
}

impl Fake {
    pub(crate) async fn start() -> Self {
        let shared = Arc::new(Shared {
            world: Mutex::default(),
            changed: watch::Sender::new(0),
            release: watch::Sender::new(0),
            repository: Mutex::default(),
        });
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address: SocketAddr = listener.local_addr().unwrap();
        let router = Router::new().fallback(faulty).with_state(Arc::clone(&shared));
        TaskTracker::new().spawn(async move { axum::serve(listener, router).await });
        Self { url: format!("http://{address}"), shared }
    }

    pub(crate) fn world(&self) -> MutexGuard<'_, World> {
        self.shared.world.lock().unwrap()
    }

    /// Knows a node by its key, as if it had joined.
    pub(crate) fn know(&self, node: NodeId, public_key: &str) {
        self.world().keys.insert(node, read_key(public_key));
    }

    pub(crate) fn serve_repository(&self, path: &Path) {
        *self.shared.repository.lock().unwrap() = Some(path.to_owned());
    }

    /// The next `times` requests whose path contains `path` go wrong.
    pub(crate) fn fault(&self, path: &'static str, fault: Fault, times: u32) {
        self.world().faults.push((path, fault, times));
    }

    pub(crate) fn release(&self) {
        self.shared.release.send_modify(|count| *count += 1);
    }

    pub(crate) fn give(&self, assignment: JobAssignment) {
        self.world().queue.push(assignment);
        self.shared.touch();
    }

    pub(crate) fn instruct(&self, instruction: JobInstruction) {
        self.world().instructions.push(instruction);
    }

    /// Waits until something holds.
    pub(crate) async fn until<T>(&self, what: &str, look: impl Fn(&World) -> Option<T>) -> T {
        let mut changes = self.shared.changed.subscribe();
        let found = async {
            loop {
                changes.borrow_and_update();
                if let Some(found) = look(&self.world()) {
                    return found;
                }
                changes.changed().await.unwrap();
            }
        };
        let found = tokio::time::timeout(Duration::from_secs(25), found).await;
        found.unwrap_or_else(|_| panic!("waited in vain until {what}"))
    }

    pub(crate) async fn result(&self, job: JobId) -> NodeResult {
        self.until("there is a result", |world| {
            world.jobs.get(&job).and_then(|record| record.results.first().cloned())
        })
        .await
    }

    pub(crate) async fn phase(&self, job: JobId, phase: JobPhase) {
        let what = format!("the job is {phase:?}");
        self.until(&what, |world| {
            let at = world.jobs.get(&job).and_then(|record| record.phase);
            (at == Some(phase)).then_some(())
        })
        .await;
    }
}

impl Shared {
    fn touch(&self) {
        self.changed.send_modify(|count| *count += 1);
    }

    fn next_fault(&self, path: &str) -> Option<Fault> {
        let mut world = self.world.lock().unwrap();
        let (_, fault, times) =
            world.faults.iter_mut().find(|(part, _, times)| *times > 0 && path.contains(part))?;
        *times -= 1;
        Some(*fault)
    }

    async fn hold(&self) {
        let mut release = self.release.subscribe();
        release.borrow_and_update();
        self.world.lock().unwrap().held += 1;
        self.touch();
        let _ = release.changed().await;
    }
}

async fn faulty(State(shared): State<Arc<Shared>>, request: Request) -> Response {
    if shared.world.lock().unwrap().deaf {
        return cut();
    }
    let path = request.uri().path().to_owned();
    match shared.next_fault(&path) {
        None => answer(&shared, request).await,
        Some(Fault::Fail) => plain(StatusCode::INTERNAL_SERVER_ERROR, "on purpose"),
        Some(Fault::Cut) => cut(),
        Some(Fault::LoseAnswer) => {
            answer(&shared, request).await;
            cut()
        }
        Some(Fault::Hold) => {
            shared.hold().await;
            answer(&shared, request).await
        }
        Some(Fault::HoldAnswer) => {
            let answer = answer(&shared, request).await;
            shared.hold().await;
            answer
        }
    }
}

fn cut() -> Response {
    let broken = stream::iter([Err::<Bytes, _>(std::io::Error::other("cut"))]);
    Response::builder().header(header::CONTENT_LENGTH, 100).body(Body::from_stream(broken)).unwrap()
}

fn plain(status: StatusCode, text: &str) -> Response {
    Response::builder().status(status).body(Body::from(text.to_owned())).unwrap()
}

fn ok(value: &impl Serialize) -> Response {
    let body = serde_json::to_vec(value).unwrap();
    Response::builder().header("content-type", "application/json").body(body.into()).unwrap()
}

fn read<T: DeserializeOwned>(body: &[u8]) -> T {
    serde_json::from_slice(body).unwrap()
}

fn read_key(text: &str) -> VerifyingKey {
    let bytes = HEXLOWER.decode(text.as_bytes()).unwrap();
    VerifyingKey::from_bytes(&bytes.try_into().unwrap()).unwrap()
}

async fn answer(shared: &Arc<Shared>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let path = parts.uri.path().to_owned();
    let words: Vec<_> = path.trim_start_matches('/').split('/').collect();
    if let ["v1", "nodes", rest @ ..] = words.as_slice() {
        let query = parts.uri.query().unwrap_or_default().to_owned();
        let answer = node(shared, &parts.method, rest, &query, &parts.headers, body).await;
        shared.touch();
        return answer;
    }
    agent(shared, parts, body).await
}

/// Models and tools: shows what arrived, and streams two pieces of which the second waits to be released.
async fn agent(shared: &Arc<Shared>, parts: axum::http::request::Parts, body: Body) -> Response {
    let Ok(body) = to_bytes(body, usize::MAX).await else { return cut() };
    let path = parts.uri.to_string();
    let seen = Seen { method: parts.method.to_string(), path, headers: parts.headers, body };
    shared.world.lock().unwrap().agents.push(seen);
    shared.touch();
    let waiting = Arc::clone(shared);
    let pieces = stream::unfold(0, move |at| {
        let shared = Arc::clone(&waiting);
        async move {
            match at {
                0 => Some((Ok::<_, std::io::Error>(Bytes::from("first,")), 1)),
                1 => {
                    shared.hold().await;
                    Some((Ok(Bytes::from("second")), 2))
                }
                _ => None,
            }
        }
    });
    Response::builder()
        .header("content-type", "text/event-stream")
        .header("set-cookie", "who=me")
        .header("server", "http://secret.example")
        .header("mcp-session-id", "s1")
        .body(Body::from_stream(pieces))
        .unwrap()
}

async fn node(
    shared: &Arc<Shared>,
    method: &Method,
    words: &[&str],
    query: &str,
    headers: &HeaderMap,
    body: Body,
) -> Response {
    let bearer = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    let bearer = bearer.and_then(|value| value.strip_prefix("Bearer ")).unwrap_or_default();
    let open = matches!(words, ["join" | "challenge" | "token" | "verify"]);
    if !open && !shared.world.lock().unwrap().tokens.iter().any(|token| token == bearer) {
        return plain(StatusCode::UNAUTHORIZED, "no token");
    }
    if let ["jobs", _, "git", rest @ ..] = words {
        shared.world.lock().unwrap().fetches += 1;
        return git(shared, method, rest, query, headers, body).await;
    }
    let Ok(body) = to_bytes(body, usize::MAX).await else { return cut() };
    match words {
        ["claim"] => claim(shared, &read(&body)).await,
        ["jobs", job, rest @ ..] => of_job(shared, job.parse().unwrap(), rest, query, &body),
        _ => of_node(shared, words, &body),
    }
}

fn of_node(shared: &Shared, words: &[&str], body: &[u8]) -> Response {
    let mut world = shared.world.lock().unwrap();
    match words {
        ["join"] => {
            let join: JoinNode = read(body);
            if join.join_token != SecretText("welcome".to_owned()) {
                return plain(StatusCode::UNAUTHORIZED, "unknown token");
            }
            let key = read_key(&join.public_key);
            let known = world.keys.iter().find(|(_, known)| **known == key).map(|(id, _)| *id);
            let node_id = known.unwrap_or_else(|| {
                NodeId::from_uuid(Uuid::from_u128(world.keys.len() as u128 + 1))
            });
            world.keys.insert(node_id, key);
            let name = join.name.clone();
            world.joins.push(join);
            ok(&JoinedNode { node_id, name, certificate: None })
        }
        ["challenge"] => {
            let _: AskChallenge = read(body);
            let challenge = format!("challenge {}", world.challenges.len());
            world.challenges.push(challenge.clone());
            ok(&NodeChallenge { challenge })
        }
        ["token"] => {
            let ask: AskNodeToken = read(body);
            if !world.has_signed(ask.node_id, &ask.challenge, &ask.signature) {
                return plain(StatusCode::UNAUTHORIZED, "wrong signature");
            }
            match ask.generation {
                None => {
                    world.generation += 1;
                    world.tokens.clear();
                }
                Some(generation) if generation != world.generation => {
                    return plain(StatusCode::CONFLICT, "another process started later");
                }
                Some(_) => {}
            }
            let generation = world.generation;
            let token = format!("token-{}", world.challenges.len());
            world.tokens.push(token.clone());
            ok(&NodeToken { token: SecretText(token), expires_in_seconds: 600, generation })
        }
        ["verify"] => {
            let ask: VerifyNode = read(body);
            if !world.has_signed(ask.node_id, &ask.challenge, &ask.signature) {
                return plain(StatusCode::UNAUTHORIZED, "wrong signature");
            }
            world.verified += 1;
            let (node_id, state) = (ask.node_id, NodeState::Active);
            ok(&VerifiedNode { node_id, name: "here".to_owned(), state, alive: true })
        }
        ["report"] => {
            world.report = Some(read(body));
            plain(StatusCode::NO_CONTENT, "")
        }
        ["heartbeat"] => {
            let beat: NodeHeartbeat = read(body);
            world.heartbeats += 1;
            world.delivered.extend(beat.delivered);
            let mut answer = HeartbeatAnswer { draining: world.draining, ..Default::default() };
            for held in beat.jobs {
                let (job_id, fencing_token) = (held.job_id, held.fencing_token);
                let record = world.jobs.get_mut(&job_id);
                let stop = match record {
                    Some(record) if record.fencing_token == fencing_token => {
                        record.phase = Some(held.phase);
                        let ended = (!record.results.is_empty()).then(|| "ended".to_owned());
                        record.stop.clone().or(ended)
                    }
                    _ => Some("not yours".to_owned()),
                };
                if let Some(reason) = stop {
                    answer.stop.push(StopJob { job_id, fencing_token, reason });
                }
            }
            let world = &*world;
            answer.instructions = world
                .instructions
                .iter()
                .filter(|one| !world.delivered.contains(&one.instruction_id))
                .cloned()
                .collect();
            ok(&answer)
        }
        _ => plain(StatusCode::NOT_FOUND, "no such thing"),
    }
}

async fn claim(shared: &Arc<Shared>, body: &ClaimAssignments) -> Response {
    let mut changes = shared.changed.subscribe();
    let found = async {
        loop {
            changes.borrow_and_update();
            {
                let mut world = shared.world.lock().unwrap();
                if let Some(jobs) = world.claims.get(&body.claim_id) {
                    return jobs.clone();
                }
                let most = usize::from(body.max_jobs).min(world.queue.len());
                if most > 0 {
                    let jobs: Vec<_> = world.queue.drain(..most).collect();
                    for job in &jobs {
                        let record = world.jobs.entry(job.job_id).or_default();
                        *record = Record { fencing_token: job.fencing_token, ..Record::default() };
                    }
                    world.claims.insert(body.claim_id, jobs.clone());
                    return jobs;
                }
            }
            changes.changed().await.unwrap();
        }
    };
    let wait = Duration::from_millis(body.wait_ms.into());
    let jobs = tokio::time::timeout(wait, found).await.unwrap_or_default();
    ok(&JobAssignments { jobs })
}

fn of_job(shared: &Shared, job: JobId, words: &[&str], query: &str, body: &[u8]) -> Response {
    let mut world = shared.world.lock().unwrap();
    let World { jobs, blobs, asked, permission, .. } = &mut *world;
    let gone = || plain(StatusCode::CONFLICT, "not yours any more");
    let Some(record) = jobs.get_mut(&job) else { return gone() };
    let over = record.stop.is_some() || !record.results.is_empty();
    match words {
        ["events"] => {
            let told: JobEvents = read(body);
            if told.fencing_token != record.fencing_token || over {
                return gone();
            }
            let next = record.events.len() as u64;
            let known = next.saturating_sub(told.first);
            if told.first <= next {
                record.events.extend(told.events.into_iter().skip(usize::try_from(known).unwrap()));
            }
            ok(&EventsReceipt { next: record.events.len() as u64 })
        }
        ["permission"] => {
            asked.push(read(body));
            ok(&permission.unwrap_or(PermissionAnswer::Waiting))
        }
        ["blobs", sha256] => {
            if query != format!("fencing_token={}", record.fencing_token) || over {
                return gone();
            }
            assert_eq!(HEXLOWER.encode(&Sha256::digest(body)), *sha256);
            blobs.insert((*sha256).to_owned(), body.to_vec());
            ok(&StoredBlob { sha256: (*sha256).to_owned(), bytes: body.len() as u64 })
        }
        ["result"] => {
            let told: NodeResult = read(body);
            record.posts += 1;
            if told.fencing_token != record.fencing_token || record.stop.is_some() {
                return gone();
            }
            // The same result again is acknowledged again; another one is not wanted.
            if record.results.first().is_some_and(|first| *first != told) {
                return gone();
            }
            if record.results.is_empty() {
                record.results.push(told);
            }
            ok(&json!({}))
        }
        _ => plain(StatusCode::NOT_FOUND, "no such thing"),
    }
}

/// The repository, by git's own program.
async fn git(
    shared: &Arc<Shared>,
    method: &Method,
    rest: &[&str],
    query: &str,
    headers: &HeaderMap,
    body: Body,
) -> Response {
    let repository = shared.repository.lock().unwrap().clone();
    let Some(repository) = repository else { return plain(StatusCode::NOT_FOUND, "none") };
    let body = to_bytes(body, usize::MAX).await.unwrap();
    let text = |name: &str| {
        headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default().to_owned()
    };
    let mut child = tokio::process::Command::new("git")
        .arg("http-backend")
        .env_clear()
        .env("PATH", "/usr/bin:/bin")
        .env("GIT_PROJECT_ROOT", &repository)
        .env("GIT_HTTP_EXPORT_ALL", "1")
        .env("PATH_INFO", format!("/{}", rest.join("/")))
        .env("REQUEST_METHOD", method.as_str())
        .env("QUERY_STRING", query)
        .env("CONTENT_TYPE", text("content-type"))
        .env("HTTP_CONTENT_ENCODING", text("content-encoding"))
        .env("GIT_PROTOCOL", text("git-protocol"))
        .env("CONTENT_LENGTH", body.len().to_string())
        .env("GIT_CONFIG_COUNT", "1")
        .env("GIT_CONFIG_KEY_0", "safe.directory")
        .env("GIT_CONFIG_VALUE_0", "*")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let feed = async move {
        let _ = stdin.write_all(&body).await;
    };
    let ((), output) = tokio::join!(feed, child.wait_with_output());
    let output = output.unwrap().stdout;
    let split = output.windows(4).position(|four| four == b"\r\n\r\n").unwrap();
    let mut response = Response::builder();
    for line in String::from_utf8_lossy(&output[..split]).lines() {
        let (name, value) = line.split_once(": ").unwrap();
        match name {
            "Status" => response = response.status(&value[..3]),
            _ => response = response.header(name, value),
        }
    }
    response.body(Body::from(output[split + 4..].to_vec())).unwrap()
}
