//! Load on the search of memory: how fast it is, whether it repeats itself, and whether anything of one scope is seen in another.
//!
//! Everything goes through the public interface of a real server. The database is asked directly only for the bare statements that
//! the search is compared with.

mod corpus;
mod evaluate;
mod isolation;

use std::{
    net::SocketAddr,
    time::{Duration, Instant},
};

use anyhow::{Context, ensure};
use clap::{Args, Subcommand};
use cynode_memory::{lexemes, rescore::MAX_CANDIDATES};
use cynode_testkit::pause;
use hyper::Method;
use serde_json::{Value, json};
use sqlx::{Connection, PgConnection};
use uuid::Uuid;

use self::corpus::{Corpus, SplitMix};
use crate::load::Connected;

/// Searches that are not counted.
const WARM_UP: u64 = 100;

/// Connections of the concurrent run.
const CONNECTIONS: usize = 8;

/// Timeout of an ingest.
const STUCK: Duration = Duration::from_mins(30);

/// Load on the search of memory.
#[derive(Subcommand)]
pub(crate) enum MemoryCommand {
    /// Fills a project with chunks by ingests of files.
    Fill(FillLoad),
    /// Searches one after the other, beside the bare statements.
    Search(SearchLoad),
    /// Searches twice and at the same time, and compares.
    Same(SameResults),
    /// Searches several projects and profiles at random, and looks for records of others.
    Isolation(isolation::Isolation),
    /// Cuts files into chunks.
    Chunks(evaluate::Chunks),
    /// Measures retrieval on a labelled set.
    Evaluate(evaluate::Evaluate),
}

/// The server and a project.
#[derive(Args)]
pub(crate) struct SearchedScope {
    /// Where the server listens; it must be on loopback.
    #[arg(long)]
    address: SocketAddr,
    /// The token of an admin.
    #[arg(long)]
    token: String,
    /// The project.
    #[arg(long)]
    project: String,
    /// The profile.
    #[arg(long, default_value = "default")]
    profile: String,
    /// Seed of texts and queries.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

#[derive(Args)]
pub(crate) struct FillLoad {
    #[command(flatten)]
    scope: SearchedScope,
    #[arg(long)]
    chunks: u64,
}

#[derive(Args)]
pub(crate) struct SearchLoad {
    #[command(flatten)]
    scope: SearchedScope,
    /// The server's database.
    #[arg(long)]
    database_url: String,
    #[arg(long, default_value_t = 1000)]
    searches: u64,
    /// Maximum median, in milliseconds.
    #[arg(long, default_value_t = 20.0)]
    max_p50: f64,
    /// Maximum of 99 of 100, in milliseconds.
    #[arg(long, default_value_t = 60.0)]
    max_p99: f64,
}

#[derive(Args)]
pub(crate) struct SameResults {
    #[command(flatten)]
    scope: SearchedScope,
    #[arg(long, default_value_t = 200)]
    searches: u64,
}

pub(crate) async fn run(command: MemoryCommand) -> anyhow::Result<bool> {
    match command {
        MemoryCommand::Fill(fill) => run_fill(&fill).await,
        MemoryCommand::Search(search) => run_search(&search).await,
        MemoryCommand::Same(same) => run_same(same).await,
        MemoryCommand::Isolation(options) => isolation::run(options).await,
        MemoryCommand::Chunks(options) => evaluate::cut(&options),
        MemoryCommand::Evaluate(options) => evaluate::run(&options),
    }
}

impl SearchedScope {
    async fn connect(&self) -> anyhow::Result<Connected> {
        Connected::open(self.address, &self.token).await
    }
}

/// Sends a request and returns the JSON of the answer; everything but success is an error.
async fn call(
    connection: &mut Connected,
    method: Method,
    path: &str,
    body: Option<&Value>,
) -> anyhow::Result<Value> {
    let (status, answer) = connection.send(method, path, None, body).await?;
    let text = String::from_utf8_lossy(&answer);
    ensure!((200..300).contains(&status), "{path}: {status} {text}");
    if answer.is_empty() { Ok(Value::Null) } else { Ok(serde_json::from_slice(&answer)?) }
}

/// Searches a scope. Returns the hits, the best first.
async fn search(
    connection: &mut Connected,
    project: &str,
    profile: &str,
    query: &str,
) -> anyhow::Result<Vec<Value>> {
    let path = format!("/v1/projects/{project}/memories/search");
    let body = json!({ "query": query, "profile": profile, "limit": 10 });
    let answer = call(connection, Method::POST, &path, Some(&body)).await?;
    answer["hits"].as_array().cloned().context("hits")
}

/// Ingests files under a name, and waits for the end. Returns the number of records.
async fn ingest(
    connection: &mut Connected,
    (project, profile): (&str, &str),
    name: &str,
    batches: &[Vec<Value>],
) -> anyhow::Result<u64> {
    let path = format!("/v1/projects/{project}/memory-ingests");
    let mut id = Value::Null;
    for (number, files) in batches.iter().enumerate() {
        let mut body = json!({
            "kind": "files", "name": name, "profile": profile, "files": files, "more": number + 1 < batches.len(),
        });
        if !id.is_null() {
            body["ingest_id"] = id;
        }
        let answer = call(connection, Method::POST, &path, Some(&body)).await?;
        id = answer["ingest_id"].clone();
    }
    let id = id.as_str().context("an ingest has an id")?;
    let one = format!("/v1/memory-ingests/{id}");
    let begun = Instant::now();
    while begun.elapsed() < STUCK {
        let found = call(connection, Method::GET, &one, None).await?;
        match found["state"].as_str() {
            Some("done") => return found["progress"]["records"].as_u64().context("records"),
            Some("failed" | "cancelled") => anyhow::bail!("the ingest ended: {found}"),
            _ => pause(Duration::from_millis(50)).await,
        }
    }
    anyhow::bail!("the ingest does not end")
}

async fn run_fill(fill: &FillLoad) -> anyhow::Result<bool> {
    let scope = &fill.scope;
    let mut connection = scope.connect().await?;
    let mut corpus = Corpus::new(scope.seed);
    let (mut records, mut round) = (0, 0);
    let begun = Instant::now();
    while records < fill.chunks {
        let batches: Vec<_> = (0..10).map(|_| corpus.files(10, 100, None)).collect();
        let name = format!("fill-{round}");
        let place = (scope.project.as_str(), scope.profile.as_str());
        records += ingest(&mut connection, place, &name, &batches).await?;
        round += 1;
        ensure!(round <= 10_000, "ingests make no records");
    }
    let seconds = begun.elapsed().as_secs_f64();
    let counted = f64::from(u32::try_from(records)?);
    println!("{records} chunks in {seconds:.1} s");
    println!("figure: chunks {records} chunks");
    println!("figure: ingested_per_second {:.0} chunks", counted / seconds);
    Ok(true)
}

/// A term with its number of records, its last postings and a packed block of the others.
type BarePostings = (String, i32, Vec<u8>, Option<Vec<u8>>);

/// The bare statements of a search: its postings, and the texts of the candidates.
async fn search_bare(
    database: &mut PgConnection,
    (project, profile): (Uuid, &str),
    query: &str,
    dice: &mut SplitMix,
) -> anyhow::Result<()> {
    let terms: Vec<String> = lexemes::term_counts(query).into_keys().collect();
    let postings = "SELECT l.term, l.df, l.tail, p.packed
        FROM memory_partitions m
        JOIN memory_lexemes l USING (partition_no)
        LEFT JOIN memory_postings p USING (partition_no, term)
        WHERE m.project_id = $1 AND m.profile = $2 AND l.term = ANY ($3)";
    let found: Vec<BarePostings> = sqlx::query_as(postings)
        .bind(project)
        .bind(profile)
        .bind(&terms)
        .fetch_all(&mut *database)
        .await?;
    std::hint::black_box(found);
    let newest: i32 = sqlx::query_scalar(
        "SELECT last_record_no FROM memory_partitions WHERE project_id = $1 AND profile = $2",
    )
    .bind(project)
    .bind(profile)
    .fetch_one(&mut *database)
    .await?;
    let newest = u64::try_from(newest.max(1))?;
    let mut numbers = Vec::new();
    // As many texts as the search rescores.
    for _ in 0..MAX_CANDIDATES {
        numbers.push(i32::try_from(dice.below(newest) + 1)?);
    }
    let texts = "SELECT memory_id, title, content FROM memories m
        JOIN memory_partitions p USING (partition_no)
        WHERE p.project_id = $1 AND p.profile = $2 AND m.record_no = ANY ($3)";
    let found: Vec<(Uuid, String, String)> =
        sqlx::query_as(texts).bind(project).bind(profile).bind(numbers).fetch_all(database).await?;
    std::hint::black_box(found);
    Ok(())
}

async fn run_search(options: &SearchLoad) -> anyhow::Result<bool> {
    let scope = &options.scope;
    let project: Uuid =
        scope.project.parse::<cynode_core::ids::ProjectId>().map(|id| id.as_uuid())?;
    let mut connection = scope.connect().await?;
    let mut database = PgConnection::connect(&options.database_url).await?;
    let mut corpus = Corpus::new(scope.seed);
    let mut dice = SplitMix::new(scope.seed);
    let (mut ours, mut bare, mut hits) = (Vec::new(), Vec::new(), 0);
    for number in 0..WARM_UP + options.searches {
        let query = corpus.query();
        let begun = Instant::now();
        let found = search(&mut connection, &scope.project, &scope.profile, &query).await?;
        let taken = begun.elapsed();
        let begun = Instant::now();
        search_bare(&mut database, (project, scope.profile.as_str()), &query, &mut dice).await?;
        if number >= WARM_UP {
            ours.push(taken);
            bare.push(begun.elapsed());
            hits += found.len();
        }
    }
    ensure!(hits > 0, "no search found anything");
    let (p50, p99) = (quantile(&mut ours, 500), quantile(&mut ours, 990));
    let (bare_p50, bare_p99) = (quantile(&mut bare, 500), quantile(&mut bare, 990));
    println!(
        "{} searches, {hits} hits: p50 {p50:.1} ms, p99 {p99:.1} ms; bare statements p50 {bare_p50:.1} ms, p99 {bare_p99:.1} ms",
        options.searches
    );
    println!("figure: search_p50 {p50:.2} ms");
    println!("figure: search_p99 {p99:.2} ms");
    println!("figure: bare_sql_p50 {bare_p50:.2} ms");
    println!("figure: search_to_bare_sql_p50 {:.2} times", p50 / bare_p50);
    Ok(p50 < options.max_p50 && p99 < options.max_p99)
}

/// Returns a quantile in milliseconds; the rank is in thousandths.
fn quantile(times: &mut [Duration], rank: usize) -> f64 {
    times.sort_unstable();
    let at = (times.len() * rank / 1000).min(times.len().saturating_sub(1));
    times.get(at).map_or(f64::NAN, |time| time.as_secs_f64() * 1000.0)
}

/// The same queries one after the other, again, and at the same time.
async fn run_same(options: SameResults) -> anyhow::Result<bool> {
    let SameResults { scope, searches } = options;
    let mut corpus = Corpus::new(scope.seed + 1);
    let queries: Vec<String> = (0..searches).map(|_| corpus.query()).collect();
    let mut connection = scope.connect().await?;
    let mut runs = Vec::new();
    for _ in 0..2 {
        let mut found = Vec::new();
        for query in &queries {
            found.push(search(&mut connection, &scope.project, &scope.profile, query).await?);
        }
        runs.push(found);
    }
    let mut tasks = tokio::task::JoinSet::new();
    for first in 0..CONNECTIONS {
        let mut connection = scope.connect().await?;
        let (queries, project, profile) =
            (queries.clone(), scope.project.clone(), scope.profile.clone());
        tasks.spawn(async move {
            let mut found = Vec::new();
            for (number, query) in queries.iter().enumerate().skip(first).step_by(CONNECTIONS) {
                found.push((number, search(&mut connection, &project, &profile, query).await?));
            }
            anyhow::Ok(found)
        });
    }
    let mut together = vec![Vec::new(); queries.len()];
    while let Some(done) = tasks.join_next().await {
        for (number, hits) in done?? {
            together[number] = hits;
        }
    }
    runs.push(together);
    let different = (0..queries.len())
        .filter(|number| runs.iter().any(|run| run[*number] != runs[0][*number]))
        .count();
    let hits: usize = runs[0].iter().map(Vec::len).sum();
    println!(
        "{searches} searches with {hits} hits, twice one after the other and once over {CONNECTIONS} connections: {different} differ (S001-46, S001-55)"
    );
    Ok(different == 0 && hits > 0)
}
