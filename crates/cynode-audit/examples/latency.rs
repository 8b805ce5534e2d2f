//! Latency benchmark: accepting a record and syncing it to the disk, for one caller and for many.
//!
//! `cargo run --release -p cynode-audit --example latency [directory]`
#![expect(clippy::print_stdout, reason = "the numbers are for people")]

use std::{
    error::Error,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use cynode_audit::{
    AgentFacts, AppendError, AuditEntry, AuditWriter, AuditWriterOptions, Phase, Verdict,
};
use ed25519_dalek::SigningKey;
use time::OffsetDateTime;
use tokio_util::task::TaskTracker;
use uuid::Uuid;

static CALLS: AtomicU64 = AtomicU64::new(1);

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let directory = std::env::args().nth(1).map_or_else(
        || std::env::temp_dir().join(format!("audit-latency-{}", std::process::id())),
        PathBuf::from,
    );
    let options =
        AuditWriterOptions { max_backlog: 10_000_000, ..AuditWriterOptions::new("latency") };
    let ids = AtomicU64::new(1);
    let (writer, _) = AuditWriter::open_in_directory(
        &directory,
        options,
        SigningKey::from_bytes(&[1; 32]),
        Arc::new(|| OffsetDateTime::UNIX_EPOCH),
        Arc::new(move || Uuid::from_u128(ids.fetch_add(1, Ordering::Relaxed).into())),
    )?;
    let writer = Arc::new(writer);
    for callers in [1, 64] {
        tell(&format!("append, {callers} callers"), run(&writer, callers, 100_000, false).await?);
        tell(&format!("durable, {callers} callers"), run(&writer, callers, 20_000, true).await?);
    }
    drop(writer);
    Ok(std::fs::remove_dir_all(directory)?)
}

/// Measures the time of every append, or of append and durable sync, and the total time.
async fn run(
    writer: &Arc<AuditWriter>,
    callers: usize,
    records: usize,
    durable: bool,
) -> Result<(Vec<Duration>, Duration), Box<dyn Error>> {
    let tracker = TaskTracker::new();
    let since = Instant::now();
    let tasks: Vec<_> = (0..callers)
        .map(|_| tracker.spawn(caller(Arc::clone(writer), records / callers, durable)))
        .collect();
    let mut times = Vec::with_capacity(records);
    for task in tasks {
        times.extend(task.await??);
    }
    Ok((times, since.elapsed()))
}

async fn caller(
    writer: Arc<AuditWriter>,
    records: usize,
    durable: bool,
) -> Result<Vec<Duration>, AppendError> {
    let mut times = Vec::with_capacity(records);
    for _ in 0..records {
        let entry = entry();
        let since = Instant::now();
        let ticket = writer.append_entry(entry)?;
        if durable {
            writer.wait_durable(ticket).await?;
        }
        times.push(since.elapsed());
    }
    Ok(times)
}

fn entry() -> AuditEntry {
    AuditEntry {
        call: Uuid::from_u128(CALLS.fetch_add(1, Ordering::Relaxed).into()),
        at: OffsetDateTime::UNIX_EPOCH,
        phase: Phase::Decision,
        decision: Verdict::Deny,
        reason: "no_rule".to_owned(),
        rules: vec!["role.developer".to_owned()],
        shadow: Vec::new(),
        outcome: None,
        agent: Some(AgentFacts {
            token: Uuid::from_u128(70),
            kind: "coder".to_owned(),
            role: "developer".to_owned(),
            user: Some(Uuid::from_u128(71)),
            project: Some(Uuid::from_u128(72)),
            task: Some(Uuid::from_u128(73)),
            run: Some(Uuid::from_u128(74)),
            job: Some(Uuid::from_u128(75)),
            profile: Some("default".to_owned()),
        }),
        method: "tools/call".to_owned(),
        tool: Some("files.read".to_owned()),
        definition: Some([1; 32]),
        server: Some(Uuid::from_u128(76)),
        node: None,
        policy: [2; 32],
        catalogue: [3; 32],
        trace: "4bf92f3577b34da6a3ce929d0e0e4736".to_owned(),
        arguments: None,
        arguments_size: 17,
        result: None,
        result_size: 0,
        duration_us: 5,
    }
}

fn tell(what: &str, (mut times, all): (Vec<Duration>, Duration)) {
    times.sort_unstable();
    let at = |share: usize| times.get(times.len() * share / 1_000).copied().unwrap_or_default();
    let rate = times.len() as u128 * 1_000_000 / all.as_micros().max(1);
    println!("{what:>22}: p50 {:?}, p99 {:?}, p99.9 {:?}, {rate}/s", at(500), at(990), at(999));
}
