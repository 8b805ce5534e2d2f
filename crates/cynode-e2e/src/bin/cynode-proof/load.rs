//! Bounded load on a server of this proof's own, for the proofs in `prove/`. Loopback only.

use std::{
    collections::HashMap,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Context, ensure};
use axum::body::Bytes;
use clap::{Args, Subcommand};
use http_body_util::{BodyExt, Full};
use hyper::{Method, Request, client::conn::http1::SendRequest};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use sqlx::{Connection, PgConnection};
use tokio::{net::TcpStream, sync::Mutex, task::JoinSet};
use uuid::Uuid;

/// Bounded load on a server of our own.
#[derive(Subcommand)]
pub(crate) enum LoadCommand {
    /// Creates and reads tasks, beside a bare INSERT of the same row.
    Api(Api),
    /// Creates tasks, each sent three times at once with the same key.
    Idempotency(Idempotency),
}

#[derive(Args)]
struct Server {
    /// Where the server listens; it must be on loopback.
    #[arg(long)]
    address: SocketAddr,
    /// The one-time token of the first admin.
    #[arg(long)]
    bootstrap: String,
}

#[derive(Args)]
pub(crate) struct Api {
    #[command(flatten)]
    server: Server,
    /// The server's database.
    #[arg(long)]
    database_url: String,
    /// The server's process, whose memory is measured.
    #[arg(long)]
    pid: u32,
    #[arg(long, default_value_t = 2000)]
    creates: usize,
    #[arg(long, default_value_t = 20_000)]
    reads: usize,
    #[arg(long, default_value_t = 32)]
    concurrency: usize,
    /// Connections of the server to the database; the bare INSERT gets as many.
    #[arg(long, default_value_t = 16)]
    connections: usize,
    /// Rounds in which bare INSERT and creation take turns.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Minimum ratio to the bare INSERT's throughput.
    #[arg(long, default_value_t = 0.6)]
    min_ratio: f64,
    /// Maximum memory, in MB.
    #[arg(long, default_value_t = 60.0)]
    max_rss: f64,
}

#[derive(Args)]
pub(crate) struct Idempotency {
    #[command(flatten)]
    server: Server,
    #[arg(long, default_value_t = 500)]
    count: usize,
}

const DESCRIPTION: &str = "Mend the login form: a wrong password must not clear the user's name, and the \
    message must say what to do next. Keep the page usable without JavaScript.";

pub(crate) async fn run(command: LoadCommand) -> anyhow::Result<()> {
    match command {
        LoadCommand::Api(api) => load(api).await,
        LoadCommand::Idempotency(idempotency) => repeats(idempotency).await,
    }
}

/// One keep-alive connection.
pub(crate) struct Connected {
    sender: SendRequest<Full<Bytes>>,
    token: String,
}

impl Connected {
    pub(crate) async fn open(address: SocketAddr, token: &str) -> anyhow::Result<Self> {
        ensure!(address.ip().is_loopback(), "load goes to loopback only");
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        let (sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
        #[expect(clippy::disallowed_methods, reason = "it ends with the process")]
        tokio::spawn(connection);
        Ok(Self { sender, token: token.to_owned() })
    }

    pub(crate) async fn send(
        &mut self,
        method: Method,
        path: &str,
        key: Option<&str>,
        body: Option<&Value>,
    ) -> anyhow::Result<(u16, Bytes)> {
        let mut request = Request::builder().method(method).uri(path).header("host", "localhost");
        if !self.token.is_empty() {
            request = request.header("authorization", format!("Bearer {}", self.token));
        }
        if let Some(key) = key {
            request = request.header("idempotency-key", key);
        }
        if body.is_some() {
            request = request.header("content-type", "application/json");
        }
        let body = body.map(Value::to_string).unwrap_or_default();
        self.sender.ready().await?;
        let response = self.sender.send_request(request.body(Full::from(body))?).await?;
        let status = response.status().as_u16();
        Ok((status, response.into_body().collect().await?.to_bytes()))
    }

    async fn post(&mut self, path: &str, body: &Value) -> anyhow::Result<Value> {
        let (status, answer) = self.send(Method::POST, path, None, Some(body)).await?;
        ensure!(status == 201, "{path}: {status} {}", String::from_utf8_lossy(&answer));
        Ok(serde_json::from_slice(&answer)?)
    }
}

/// Creates the first admin, an API key and a project, as a user would. Returns key and project.
async fn set_up(server: &Server) -> anyhow::Result<(String, String)> {
    let password = "correct horse battery";
    let mut connection = Connected::open(server.address, "").await?;
    let admin = json!({
        "token": server.bootstrap, "handle": "ada", "display_name": "Ada", "password": password,
    });
    connection.post("/v1/bootstrap", &admin).await?;
    let login = json!({ "handle": "ada", "password": password });
    let text = |value: &Value| value.as_str().map(str::to_owned).context("a text");
    connection.token = text(&connection.post("/v1/sessions", &login).await?["token"])?;
    let key = text(&connection.post("/v1/api-keys", &json!({ "name": "load" })).await?["token"])?;
    let project = json!({ "slug": "load", "title": "Load" });
    let project = text(&connection.post("/v1/projects", &project).await?["id"])?;
    Ok((key, project))
}

fn task(project: &str, name: &str) -> Value {
    json!({
        "project_id": project,
        "name": name,
        "description": DESCRIPTION,
        "acceptance_criteria": [{ "text": "the tests pass" }, { "text": "the page works without JavaScript" }],
        "budget": { "max_cost_micros": 2_500_000, "max_tokens": 100_000 },
    })
}

/// Runs `count` jobs on `workers` workers, each with its own state. Returns the duration.
async fn spread<S, F>(workers: Vec<S>, count: usize, job: F) -> anyhow::Result<(Duration, Vec<S>)>
where
    S: Send + 'static,
    F: AsyncJob<S> + Clone + Send + 'static,
{
    let next = Arc::new(AtomicUsize::new(0));
    let start = Instant::now();
    let mut set = JoinSet::new();
    for mut state in workers {
        let (next, job) = (next.clone(), job.clone());
        set.spawn(async move {
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= count {
                    return anyhow::Ok(state);
                }
                state = job.run(state, number).await?;
            }
        });
    }
    let mut states = Vec::new();
    while let Some(state) = set.join_next().await {
        states.push(state??);
    }
    Ok((start.elapsed(), states))
}

/// A job on a worker's state, which it returns.
trait AsyncJob<S> {
    fn run(&self, state: S, number: usize) -> impl Future<Output = anyhow::Result<S>> + Send;
}

/// The part of a response that is read.
#[derive(serde::Deserialize)]
struct Named {
    id: String,
}

#[derive(Clone)]
struct Create {
    project: String,
    round: usize,
    made: Arc<Mutex<Vec<String>>>,
    errors: Arc<AtomicUsize>,
}

impl AsyncJob<Connected> for Create {
    async fn run(&self, mut connection: Connected, number: usize) -> anyhow::Result<Connected> {
        let name = format!("api-{}-{number}", self.round);
        let body = task(&self.project, &name);
        let (status, answer) =
            connection.send(Method::POST, "/v1/tasks", Some(&name), Some(&body)).await?;
        if status == 201 {
            self.made.lock().await.push(serde_json::from_slice::<Named>(&answer)?.id);
        } else {
            self.errors.fetch_add(1, Ordering::Relaxed);
        }
        Ok(connection)
    }
}

#[derive(Clone)]
struct Read {
    ids: Arc<Vec<String>>,
    errors: Arc<AtomicUsize>,
}

impl AsyncJob<Connected> for Read {
    async fn run(&self, mut connection: Connected, number: usize) -> anyhow::Result<Connected> {
        let id = &self.ids[number % self.ids.len()];
        let (status, answer) =
            connection.send(Method::GET, &format!("/v1/tasks/{id}"), None, None).await?;
        let right = status == 200 && serde_json::from_slice::<Named>(&answer)?.id == *id;
        if !right {
            self.errors.fetch_add(1, Ordering::Relaxed);
        }
        Ok(connection)
    }
}

#[derive(Clone)]
struct BareInsert {
    project: Uuid,
    user: Uuid,
    round: usize,
}

impl AsyncJob<PgConnection> for BareInsert {
    async fn run(
        &self,
        mut connection: PgConnection,
        number: usize,
    ) -> anyhow::Result<PgConnection> {
        sqlx::query(
            "INSERT INTO tasks (task_id, project_id, name, description, acceptance_criteria,
                max_cost_micros, max_tokens, state, created_by, created_at, updated_at)
             VALUES ($1, $2, $3, $4, $5, $6, $7, 'queued', $8, now(), now())",
        )
        .bind(
            cynode_app::AppEnvironment::from_system()
                .new_uuid(cynode_app::AppEnvironment::from_system().now()),
        )
        .bind(self.project)
        .bind(format!("bare-{}-{number}", self.round))
        .bind(DESCRIPTION)
        .bind(
            json!([{ "text": "the tests pass" }, { "text": "the page works without JavaScript" }]),
        )
        .bind(2_500_000_i64)
        .bind(100_000_i64)
        .bind(self.user)
        .execute(&mut connection)
        .await?;
        Ok(connection)
    }
}

async fn connections(
    address: SocketAddr,
    token: &str,
    count: usize,
) -> anyhow::Result<Vec<Connected>> {
    let mut all = Vec::with_capacity(count);
    for _ in 0..count {
        all.push(Connected::open(address, token).await?);
    }
    Ok(all)
}

fn per_second(count: usize, time: Duration) -> f64 {
    f64::from(u32::try_from(count).unwrap_or(u32::MAX)) / time.as_secs_f64()
}

/// Returns the resident memory in MB.
fn rss(pid: u32) -> anyhow::Result<f64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("VmRSS")?;
    let kilobytes: f64 = line.split_whitespace().next().context("a number")?.parse()?;
    Ok(kilobytes / 1000.0)
}

async fn load(api: Api) -> anyhow::Result<()> {
    let (token, project) = set_up(&api.server).await?;
    let mut bare = Vec::new();
    for _ in 0..api.connections {
        bare.push(PgConnection::connect(&api.database_url).await?);
    }
    let (project_id, user): (Uuid, Uuid) =
        sqlx::query_as("SELECT project_id, created_by FROM projects")
            .fetch_one(&mut bare[0])
            .await?;
    let mut clients = connections(api.server.address, &token, api.concurrency).await?;
    let (made, errors) = (Arc::new(Mutex::new(Vec::new())), Arc::new(AtomicUsize::new(0)));

    // The baseline and our server take turns, so that a noisy neighbour disturbs both.
    let each = api.creates / api.rounds;
    let (mut bare_time, mut api_time) = (Duration::ZERO, Duration::ZERO);
    for round in 0..=api.rounds {
        let time;
        (time, bare) = spread(bare, each, BareInsert { project: project_id, user, round }).await?;
        let create =
            Create { project: project.clone(), round, made: made.clone(), errors: errors.clone() };
        let ours;
        (ours, clients) = spread(clients, each, create).await?;
        // The first round warms up plans and caches of both, and does not count.
        if round > 0 {
            bare_time += time;
            api_time += ours;
        }
    }
    let ids = Arc::new(made.lock().await.clone());
    ensure!(!ids.is_empty(), "no task was created");
    let read = Read { ids, errors: errors.clone() };
    let (read_time, _) = spread(clients, api.reads, read).await?;
    let rss = rss(api.pid)?;

    let counted = each * api.rounds;
    let (bare_rate, api_rate) = (per_second(counted, bare_time), per_second(counted, api_time));
    let ratio = api_rate / bare_rate;
    let errors = errors.load(Ordering::Relaxed);
    println!("bare INSERT      {bare_rate:8.0} /s  ({} connections)", api.connections);
    println!("task creation    {api_rate:8.0} /s  (concurrency {})", api.concurrency);
    println!("task read        {:8.0} /s", per_second(api.reads, read_time));
    println!("memory           {rss:8.1} MB");
    println!("errors           {errors:8}");
    println!(
        "ratio {ratio:.2} (at least {}), RSS {rss:.1} MB (under {}), errors {errors}",
        api.min_ratio, api.max_rss
    );
    ensure!(
        errors == 0 && ratio >= api.min_ratio && rss < api.max_rss,
        "the promise does not hold"
    );
    Ok(())
}

async fn repeats(idempotency: Idempotency) -> anyhow::Result<()> {
    let Idempotency { server, count } = idempotency;
    let (token, project) = set_up(&server).await?;
    let mut three = connections(server.address, &token, 3).await?;
    let mut wider = connections(server.address, &token, 27).await?;
    three.append(&mut wider);
    let pool = Arc::new(Mutex::new(three));
    let answers: Arc<Mutex<HashMap<usize, Vec<Bytes>>>> = Arc::default();

    // Ten creations at a time, each three times at once on three connections.
    let mut set = JoinSet::new();
    let slots = Arc::new(tokio::sync::Semaphore::new(30));
    for number in 0..count {
        for _ in 0..3 {
            let permit = slots.clone().acquire_owned().await?;
            let (pool, answers, project) = (pool.clone(), answers.clone(), project.clone());
            set.spawn(async move {
                let mut connection = pool.lock().await.pop().expect("a permit is a connection");
                let (name, key) = (format!("task-{number}"), format!("key-{number}"));
                let body = task(&project, &name);
                let sent =
                    connection.send(Method::POST, "/v1/tasks", Some(&key), Some(&body)).await;
                pool.lock().await.push(connection);
                drop(permit);
                let (status, answer) = sent?;
                ensure!(status == 201, "{status}: {}", String::from_utf8_lossy(&answer));
                answers.lock().await.entry(number).or_default().push(answer);
                Ok(())
            });
        }
    }
    while let Some(done) = set.join_next().await {
        done??;
    }

    let answers = answers.lock().await;
    let alike = answers
        .values()
        .filter(|three| three.iter().all(|one| *one == three[0]) && three.len() == 3);
    let (alike, mut stored) = (alike.count(), 0);
    let mut path = "/v1/tasks?project=load&limit=200".to_owned();
    let mut connection = Connected::open(server.address, &token).await?;
    loop {
        let (_, page) = connection.send(Method::GET, &path, None, None).await?;
        let page: Value = serde_json::from_slice(&page)?;
        stored += page["items"].as_array().context("items")?.len();
        match page["next_cursor"].as_str() {
            Some(cursor) => path = format!("/v1/tasks?project=load&limit=200&cursor={cursor}"),
            None => break,
        }
    }
    println!(
        "{count} creations sent three times at once: {stored} tasks, {alike} with three identical answers"
    );
    ensure!(stored == count && alike == count, "the promise does not hold");
    Ok(())
}
