//! Revokes a token, or disables a tool, while calls go to every replica. Measures how long later calls were still accepted, and
//! how long calls in flight continued.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Context, ensure};
use clap::Args;
use reqwest::{Method, StatusCode};
use serde::Serialize;
use serde_json::{Value, json};
use tokio::task::JoinSet;

use super::{
    pause,
    wire::{CallFailure, Caller, Endpoint, Link, Verdict},
};

/// Takes a token back and switches a tool off under load, and measures when the last call went through.
#[derive(Args)]
pub(crate) struct Revocation {
    /// A replica of the gateway. May be given again.
    #[arg(long = "target", required = true)]
    targets: Vec<Endpoint>,
    /// Where people change things.
    #[arg(long)]
    admin_url: String,
    #[arg(long)]
    admin_token: String,
    /// The project that tokens are for.
    #[arg(long)]
    project: String,
    /// The task that tokens are for.
    #[arg(long)]
    task: String,
    #[arg(long, default_value = "developer")]
    role: String,
    /// How often each is tried.
    #[arg(long, default_value_t = 20)]
    rounds: usize,
    /// Connections to each replica that make one short call after the other.
    #[arg(long, default_value_t = 4)]
    connections: usize,
    /// Calls to each replica that are under way.
    #[arg(long, default_value_t = 2)]
    in_flight: usize,
    /// Milliseconds between two calls of a connection.
    #[arg(long, default_value_t = 5)]
    every_ms: u64,
    /// Maximum time until a change takes effect, in milliseconds.
    #[arg(long, default_value_t = 100.0)]
    max_ms: f64,
}

/// How long calls go on before and after the change.
const BEFORE: Duration = Duration::from_millis(400);
const AFTER: Duration = Duration::from_millis(600);

/// Duration of a call that is in flight during the change.
const SLOW_MS: u64 = 2000;

/// The tool that is disabled. Its calls can have any duration.
const TOOL: &str = "slow";

/// The change under test.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Change {
    Token,
    Tool,
}

/// One call as its caller saw it.
struct ObservedCall {
    replica: usize,
    sent: Instant,
    ended: Instant,
    under_way: bool,
    /// The verdict of the answer; `None` if the connection broke.
    verdict: Option<Verdict>,
}

impl ObservedCall {
    fn accepted(&self) -> bool {
        matches!(self.verdict, Some(Verdict::Success(_)))
    }
}

/// Measurements of one replica in one round.
#[derive(Debug, Serialize)]
struct Replica {
    change: Change,
    round: usize,
    target: usize,
    accepted_before: usize,
    refused_after: usize,
    /// Zero: no call that was sent after the change was accepted.
    last_accepted_ms_after: f64,
    /// Zero: all calls had ended when the change was confirmed.
    in_flight_ended_ms: f64,
    problems: Vec<String>,
}

struct Issued {
    token: String,
    id: String,
}

struct RevocationBench {
    options: Revocation,
    http: reqwest::Client,
    next: AtomicU64,
}

pub(crate) async fn run(options: Revocation) -> anyhow::Result<bool> {
    let bench = Arc::new(RevocationBench {
        options,
        http: reqwest::Client::new(),
        next: AtomicU64::new(0),
    });
    let mut all = Vec::new();
    for round in 0..bench.options.rounds {
        for change in [Change::Token, Change::Tool] {
            all.extend(bench.round(change, round).await?);
        }
    }
    let worst = |pick: fn(&Replica) -> f64| all.iter().map(pick).fold(0.0, f64::max);
    let problems: Vec<_> = all
        .iter()
        .flat_map(|one| {
            let place = format!("{:?}, round {}, replica {}", one.change, one.round, one.target);
            one.problems.iter().map(move |problem| format!("{place}: {problem}"))
        })
        .collect();
    let report = json!({
        "rounds": bench.options.rounds,
        "replicas": bench.options.targets.len(),
        "worst": {
            "last_accepted_ms_after": worst(|one| one.last_accepted_ms_after),
            "in_flight_ended_ms": worst(|one| one.in_flight_ended_ms),
        },
        "each": all,
        "problems": problems,
    });
    println!("{report}");
    Ok(problems.is_empty())
}

impl RevocationBench {
    async fn admin(
        &self,
        method: Method,
        path: &str,
        body: Option<Value>,
    ) -> anyhow::Result<(StatusCode, Value)> {
        let url = format!("{}{path}", self.options.admin_url);
        let mut request = self.http.request(method, url).bearer_auth(&self.options.admin_token);
        if let Some(body) = body {
            request = request.json(&body);
        }
        let response = request.send().await?;
        let status = response.status();
        let bytes = response.bytes().await?;
        let said = String::from_utf8_lossy(&bytes);
        ensure!(status.is_success(), "{path}: {status} {said}");
        Ok((status, serde_json::from_slice(&bytes).unwrap_or(Value::Null)))
    }

    async fn issue(&self) -> anyhow::Result<Issued> {
        let body = json!({
            "role": self.options.role, "project_id": self.options.project, "task_id": self.options.task,
            "profile": "networked", "network": true, "expires_in_seconds": 3600,
        });
        let (_, issued) = self.admin(Method::POST, "/v1/agent-tokens", Some(body)).await?;
        let text =
            |name: &str| issued[name].as_str().map(str::to_owned).context("no token was issued");
        Ok(Issued { token: text("token")?, id: text("agent_token_id")? })
    }

    async fn switch(&self, enabled: bool) -> anyhow::Result<()> {
        let body = json!({ "enabled": enabled });
        self.admin(Method::PUT, &format!("/v1/tools/{TOOL}"), Some(body)).await?;
        Ok(())
    }

    /// Waits until every replica accepts calls.
    async fn ready(&self, token: &str) -> anyhow::Result<()> {
        for endpoint in &self.options.targets {
            let caller = Caller::modern(endpoint.clone(), token);
            let end = Instant::now() + Duration::from_secs(10);
            loop {
                let mut link = Link::open(endpoint).await?;
                let request = self.request(&caller, 0)?;
                let answer = link.call(request).await.ok().map(|answer| answer.verdict());
                if matches!(answer, Some(Verdict::Success(_))) {
                    break;
                }
                ensure!(Instant::now() < end, "{endpoint:?} takes no calls: {answer:?}");
                pause(Duration::from_millis(20)).await;
            }
        }
        Ok(())
    }

    /// Builds a call of the given duration. No two calls have the same arguments.
    fn request(
        &self,
        caller: &Caller,
        ms: u64,
    ) -> anyhow::Result<hyper::Request<http_body_util::Full<axum::body::Bytes>>> {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        caller.request(id, TOOL, &json!({ "ms": ms, "text": format!("revocation-{id}") }))
    }

    async fn round(self: &Arc<Self>, change: Change, round: usize) -> anyhow::Result<Vec<Replica>> {
        let issued = self.issue().await?;
        self.ready(&issued.token).await?;
        let stop = Arc::new(AtomicBool::new(false));
        let mut set = JoinSet::new();
        for replica in 0..self.options.targets.len() {
            for _ in 0..self.options.connections {
                set.spawn(self.clone().load(replica, issued.token.clone(), stop.clone()));
            }
        }
        pause(BEFORE / 2).await;
        for replica in 0..self.options.targets.len() {
            for _ in 0..self.options.in_flight {
                set.spawn(self.clone().hold(replica, issued.token.clone()));
            }
        }
        pause(BEFORE / 2).await;
        match change {
            Change::Token => {
                self.admin(Method::DELETE, &format!("/v1/agent-tokens/{}", issued.id), None)
                    .await?;
            }
            Change::Tool => self.switch(false).await?,
        }
        let changed = Instant::now();
        pause(AFTER).await;
        stop.store(true, Ordering::Relaxed);
        let mut seen = Vec::new();
        while let Some(done) = set.join_next().await {
            seen.extend(done??);
        }
        if change == Change::Tool {
            self.switch(true).await?;
            self.admin(Method::DELETE, &format!("/v1/agent-tokens/{}", issued.id), None).await?;
        }
        let replicas = 0..self.options.targets.len();
        Ok(replicas.map(|replica| self.judge(change, round, replica, changed, &seen)).collect())
    }

    /// Makes short calls, one after the other, until it is stopped.
    async fn load(
        self: Arc<Self>,
        replica: usize,
        token: String,
        stop: Arc<AtomicBool>,
    ) -> anyhow::Result<Vec<ObservedCall>> {
        let caller = Caller::modern(self.options.targets[replica].clone(), &token);
        let mut link = Link::open(&caller.endpoint).await?;
        let mut seen = Vec::new();
        while !stop.load(Ordering::Relaxed) {
            let request = self.request(&caller, 0)?;
            let sent = Instant::now();
            let verdict = match link.call(request).await {
                Ok(answer) => Some(answer.verdict()),
                Err(cut) => {
                    link = Link::open(&caller.endpoint).await?;
                    // A server may close a connection between two calls.
                    if cut == CallFailure::NeverSent {
                        continue;
                    }
                    None
                }
            };
            seen.push(ObservedCall {
                replica,
                sent,
                ended: Instant::now(),
                under_way: false,
                verdict,
            });
            pause(Duration::from_millis(self.options.every_ms)).await;
        }
        Ok(seen)
    }

    /// Makes one long call.
    async fn hold(
        self: Arc<Self>,
        replica: usize,
        token: String,
    ) -> anyhow::Result<Vec<ObservedCall>> {
        let caller = Caller::modern(self.options.targets[replica].clone(), &token);
        let mut link = Link::open(&caller.endpoint).await?;
        let request = self.request(&caller, SLOW_MS)?;
        let sent = Instant::now();
        let verdict = link.call(request).await.ok().map(|answer| answer.verdict());
        Ok(vec![ObservedCall { replica, sent, ended: Instant::now(), under_way: true, verdict }])
    }

    fn judge(
        &self,
        change: Change,
        round: usize,
        replica: usize,
        changed: Instant,
        seen: &[ObservedCall],
    ) -> Replica {
        let own: Vec<_> = seen.iter().filter(|call| call.replica == replica).collect();
        let (held, short): (Vec<_>, Vec<_>) = own.into_iter().partition(|call| call.under_way);
        let (after, before): (Vec<_>, Vec<_>) =
            short.into_iter().partition(|call| call.sent > changed);
        let ms = |call: &&ObservedCall| {
            call.ended.saturating_duration_since(changed).as_secs_f64() * 1000.0
        };
        let longest = |calls: &mut dyn Iterator<Item = f64>| calls.fold(0.0, f64::max);
        let last_accepted = longest(&mut after.iter().filter(|call| call.accepted()).map(ms));
        let in_flight = longest(&mut held.iter().map(ms));
        let accepted_before = before.iter().filter(|call| call.accepted()).count();
        let refused_after = after.iter().filter(|call| !call.accepted()).count();
        let mut problems = Vec::new();
        if accepted_before == 0 || refused_after == 0 {
            problems.push("the load does not show the change".to_owned());
        }
        if last_accepted > self.options.max_ms {
            problems
                .push(format!("S003-26, S003-41: a call went through {last_accepted:.1} ms after"));
        }
        if in_flight > self.options.max_ms {
            problems.push(format!("a call under way went on for {in_flight:.1} ms"));
        }
        if held.iter().any(|call| call.accepted()) {
            problems.push("a call under way was carried out to its end".to_owned());
        }
        let broken = before.iter().chain(&after).chain(&held).filter(|call| call.verdict.is_none());
        let broken = broken.count();
        if broken > 0 {
            problems.push(format!("{broken} calls got no answer at all"));
        }
        Replica {
            change,
            round,
            target: replica,
            accepted_before,
            refused_after,
            last_accepted_ms_after: tenths(last_accepted),
            in_flight_ended_ms: tenths(in_flight),
            problems,
        }
    }
}

fn tenths(value: f64) -> f64 {
    (value * 10.0).round() / 10.0
}
