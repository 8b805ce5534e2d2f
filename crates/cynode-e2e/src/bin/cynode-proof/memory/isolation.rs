//! Several projects and profiles with words of their own, and queries at random over all of them.

use std::net::SocketAddr;

use anyhow::ensure;
use clap::Args;
use hyper::Method;
use serde_json::{Value, json};

use super::{
    CONNECTIONS, call,
    corpus::{Corpus, SplitMix},
    ingest, search,
};
use crate::load::Connected;

/// Profiles of each project.
const PROFILES: [&str; 3] = ["default", "offline", "research"];

/// Number of projects.
const PROJECTS: usize = 3;

/// Files and sections of each scope.
const FILES: (usize, usize) = (4, 25);

/// Queries whose answers are compared before and after other scopes are filled.
const FIXED_QUERIES: u64 = 30;

#[derive(Args)]
pub(crate) struct Isolation {
    /// Where the server listens; it must be on loopback.
    #[arg(long)]
    address: SocketAddr,
    /// The token of an admin.
    #[arg(long)]
    token: String,
    #[arg(long, default_value_t = 10_000)]
    queries: u64,
    #[arg(long, default_value_t = 7)]
    seed: u64,
}

/// A project under a profile, with a word that each of its records has.
#[derive(Clone)]
struct MarkedScope {
    project: String,
    profile: &'static str,
    mark: String,
}

pub(super) async fn run(options: Isolation) -> anyhow::Result<bool> {
    let mut connection = Connected::open(options.address, &options.token).await?;
    let scopes = create_scopes(&mut connection).await?;
    let unchanged = fill_scopes(&mut connection, &scopes, options.seed).await?;
    let mut tasks = tokio::task::JoinSet::new();
    for number in 0..CONNECTIONS {
        let connection = Connected::open(options.address, &options.token).await?;
        let seed = options.seed + u64::try_from(number)?;
        tasks.spawn(ask(
            connection,
            scopes.clone(),
            seed,
            options.queries / u64::try_from(CONNECTIONS)?,
        ));
    }
    let (mut hits, mut foreign) = (0, 0);
    while let Some(done) = tasks.join_next().await {
        let (found, wrong) = done??;
        hits += found;
        foreign += wrong;
    }
    let counted = counts_are_own(&mut connection, &scopes).await?;
    println!(
        "{} queries over {} projects and profiles: {hits} hits, {foreign} foreign; ranks unchanged by other scopes: {unchanged}; lists have own records only: {counted} (S001-14, B001-24)",
        options.queries,
        scopes.len()
    );
    println!("figure: foreign_records {foreign} records");
    println!("figure: isolation_queries {} queries", options.queries);
    Ok(foreign == 0 && hits > 0 && unchanged && counted)
}

async fn create_scopes(connection: &mut Connected) -> anyhow::Result<Vec<MarkedScope>> {
    let mut scopes = Vec::new();
    for number in 0..PROJECTS {
        let body = json!({ "slug": format!("scope-{number}"), "title": "Scope" });
        let made = call(connection, Method::POST, "/v1/projects", Some(&body)).await?;
        let project = made["id"].as_str().unwrap_or_default().to_owned();
        for profile in PROFILES {
            let mark = format!("scopemark{number}{profile}");
            scopes.push(MarkedScope { project: project.clone(), profile, mark });
        }
    }
    Ok(scopes)
}

/// Fills the first scope, then all others. Returns whether the first one's answers are the same afterwards.
async fn fill_scopes(
    connection: &mut Connected,
    scopes: &[MarkedScope],
    seed: u64,
) -> anyhow::Result<bool> {
    let mut before = Vec::new();
    for (number, scope) in scopes.iter().enumerate() {
        // The same words everywhere: only the mark tells the records apart.
        let files = Corpus::new(seed).files(FILES.0, FILES.1, Some(&scope.mark));
        let place = (scope.project.as_str(), scope.profile);
        let records = ingest(connection, place, "marked", &[files]).await?;
        ensure!(records > 0, "an ingest made no record");
        if number == 0 {
            before = fixed_answers(connection, scope, seed).await?;
        }
    }
    let Some(first) = scopes.first() else { return Ok(false) };
    Ok(!before.is_empty() && fixed_answers(connection, first, seed).await? == before)
}

/// Ids and scores of queries that are always the same.
async fn fixed_answers(
    connection: &mut Connected,
    scope: &MarkedScope,
    seed: u64,
) -> anyhow::Result<Vec<Value>> {
    let mut corpus = Corpus::new(seed + 1);
    let mut answers = Vec::new();
    for _ in 0..FIXED_QUERIES {
        answers.extend(search(connection, &scope.project, scope.profile, &corpus.query()).await?);
    }
    Ok(answers)
}

/// Asks random scopes for their own words and those of others. Returns the number of hits and of foreign ones.
async fn ask(
    mut connection: Connected,
    scopes: Vec<MarkedScope>,
    seed: u64,
    queries: u64,
) -> anyhow::Result<(u64, u64)> {
    let (mut dice, mut corpus) = (SplitMix::new(seed), Corpus::new(seed));
    let (mut hits, mut foreign) = (0, 0);
    let count = u64::try_from(scopes.len())?;
    for _ in 0..queries {
        let (own, other) = (dice.below(count), dice.below(count));
        let (own, other) = (&scopes[usize::try_from(own)?], &scopes[usize::try_from(other)?]);
        let query = format!("{} {}", corpus.query(), other.mark);
        let found = search(&mut connection, &own.project, own.profile, &query).await?;
        for hit in found {
            hits += 1;
            foreign += u64::from(!belongs(&hit, own));
        }
    }
    Ok((hits, foreign))
}

/// Whether a record is of the scope, by what it says of itself and by its text.
fn belongs(hit: &Value, scope: &MarkedScope) -> bool {
    let record = &hit["memory"];
    record["project_id"] == scope.project.as_str()
        && record["profile"] == scope.profile
        && record["content"].as_str().is_some_and(|text| text.contains(&scope.mark))
}

/// Whether lists have records of their own scope only.
async fn counts_are_own(
    connection: &mut Connected,
    scopes: &[MarkedScope],
) -> anyhow::Result<bool> {
    let mut counts = Vec::new();
    for scope in scopes {
        let path =
            format!("/v1/projects/{}/memories?profile={}&limit=200", scope.project, scope.profile);
        let listed = call(connection, Method::GET, &path, None).await?;
        let items = listed["items"].as_array().cloned().unwrap_or_default();
        let foreign = items
            .iter()
            .any(|it| it["project_id"] != scope.project.as_str() || it["profile"] != scope.profile);
        if foreign {
            return Ok(false);
        }
        counts.push(items.len());
    }
    Ok(counts.iter().all(|count| *count > 0 && Some(count) == counts.first()))
}
