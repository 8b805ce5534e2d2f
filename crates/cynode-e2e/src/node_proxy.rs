//! The connection of one node to the orchestrator: it records the answers to results, and can delay messages.

use std::{
    net::{Ipv4Addr, SocketAddr},
    sync::{Arc, Mutex},
};

use axum::{
    Router,
    body::{Body, Bytes, to_bytes},
    extract::{Request, State},
    http::{StatusCode, request::Parts},
    response::{IntoResponse, Response},
};
use tokio::{net::TcpListener, sync::watch};
use tokio_util::task::TaskTracker;

use crate::faults::Phase;

/// Which messages are delayed, and where: before the orchestrator gets them, or before the node gets the response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hold {
    /// A part of the path.
    pub path: String,
    /// On the way to the orchestrator, or on the way back.
    pub phase: Phase,
}

/// What happens to delayed messages on release.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Release {
    /// They are delivered.
    #[default]
    Pass,
    /// They are lost.
    Lose,
}

/// The orchestrator's answer to a result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResultAnswer {
    /// Id of the job.
    pub job: String,
    /// HTTP status.
    pub status: u16,
}

#[derive(Clone, Default)]
struct Valve {
    holds: Vec<Hold>,
    release: Release,
}

/// The proxy of one node.
pub struct NodeProxy {
    /// Listen address, for the node.
    pub address: SocketAddr,
    valve: watch::Sender<Valve>,
    held: watch::Sender<Vec<Hold>>,
    answers: Arc<Mutex<Vec<ResultAnswer>>>,
}

#[derive(Clone)]
struct Way {
    http: reqwest::Client,
    target: String,
    valve: watch::Receiver<Valve>,
    held: watch::Sender<Vec<Hold>>,
    answers: Arc<Mutex<Vec<ResultAnswer>>>,
}

impl NodeProxy {
    /// Starts the proxy on an address of this machine.
    pub async fn start(tasks: &TaskTracker, listen: Ipv4Addr, target: SocketAddr) -> Self {
        let listener = TcpListener::bind((listen, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let http = reqwest::Client::builder().no_proxy().pool_max_idle_per_host(0).build().unwrap();
        let valve = watch::Sender::new(Valve::default());
        let held = watch::Sender::new(Vec::new());
        let answers = Arc::<Mutex<Vec<ResultAnswer>>>::default();
        let way = Way {
            http,
            target: format!("http://{target}"),
            valve: valve.subscribe(),
            held: held.clone(),
            answers: answers.clone(),
        };
        let router = Router::new().fallback(pass).with_state(way);
        tasks.spawn(async move { axum::serve(listener, router).await.unwrap() });
        Self { address, valve, held, answers }
    }

    /// Delays matching messages from now on.
    pub fn hold(&self, hold: Hold) {
        self.valve.send_modify(|valve| valve.holds.push(hold));
    }

    /// Returns whether a matching message is delayed now.
    pub fn holds(&self, hold: &Hold) -> bool {
        self.held.borrow().contains(hold)
    }

    /// Releases all delayed messages and stops delaying.
    pub fn release(&self, release: Release) {
        self.valve.send_replace(Valve { holds: Vec::new(), release });
        self.held.send_replace(Vec::new());
    }

    /// Returns the answers to results so far, in order.
    pub fn answers(&self) -> Vec<ResultAnswer> {
        self.answers.lock().unwrap().clone()
    }
}

impl Way {
    /// Waits while the message is delayed. Returns `false` if it is lost.
    async fn may_pass(&mut self, path: &str, phase: Phase) -> bool {
        let ours = |hold: &Hold| hold.phase == phase && path.contains(&hold.path);
        let hold = self.valve.borrow().holds.iter().find(|hold| ours(hold)).cloned();
        let Some(hold) = hold else { return true };
        self.held.send_modify(|held| held.push(hold.clone()));
        let opened = self.valve.wait_for(|valve| !valve.holds.contains(&hold)).await;
        opened.is_ok_and(|valve| valve.release == Release::Pass)
    }
}

async fn pass(State(way): State<Way>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let body = to_bytes(body, usize::MAX).await.unwrap_or_default();
    // A message in flight arrives, even if its sender has died meanwhile.
    let carried = TaskTracker::new().spawn(carry(way, parts, body));
    carried.await.unwrap_or_else(|_| StatusCode::BAD_GATEWAY.into_response())
}

async fn carry(mut way: Way, parts: Parts, body: Bytes) -> Response {
    let lost = || StatusCode::BAD_GATEWAY.into_response();
    let path = parts.uri.path_and_query().map_or("/", |path| path.as_str());
    if !way.may_pass(path, Phase::Before).await {
        return lost();
    }
    let url = format!("{}{path}", way.target);
    let sent = way.http.request(parts.method, url).headers(parts.headers).body(body).send().await;
    let Ok(answer) = sent else { return lost() };
    if let Some(job) = path.strip_suffix("/result").and_then(|path| path.rsplit('/').next()) {
        let reported = ResultAnswer { job: job.to_owned(), status: answer.status().as_u16() };
        way.answers.lock().unwrap().push(reported);
    }
    if !way.may_pass(path, Phase::After).await {
        return lost();
    }
    let (status, kind) = (answer.status(), answer.headers().get("content-type").cloned());
    let mut response = Response::new(Body::from_stream(answer.bytes_stream()));
    *response.status_mut() = status;
    if let Some(kind) = kind {
        response.headers_mut().insert("content-type", kind);
    }
    response
}
