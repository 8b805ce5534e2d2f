//! Parallel streams through a gateway that is killed meanwhile.

use std::{
    collections::BTreeMap,
    fs::File,
    io::{BufWriter, Write},
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::ensure;
use clap::Args;
use http_body_util::BodyExt;
use rand::{RngExt, SeedableRng, rngs::StdRng};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::{sync::mpsc, task::JoinSet};

use super::wire::{Asker, DONE, call_id};
use crate::gateway::{
    pause,
    wire::{CallFailure, Endpoint, Link},
};

/// Parallel streams through a gateway that somebody kills meanwhile, with a log of what became of each.
#[derive(Args)]
pub(crate) struct ModelStorm {
    /// Where people ask.
    #[arg(long)]
    people: Endpoint,
    /// Their key.
    #[arg(long)]
    key: String,
    /// The project that it is accounted to.
    #[arg(long)]
    project: String,
    /// Where agents ask.
    #[arg(long)]
    agents: Endpoint,
    /// An agent's token.
    #[arg(long)]
    agent_token: String,
    /// The model.
    #[arg(long, default_value = "fast")]
    model: String,
    /// Maximum number of tokens of an answer.
    #[arg(long, default_value_t = 1000)]
    max_tokens: u32,
    /// Streams at a time; of four one is the agent's.
    #[arg(long, default_value_t = 64)]
    streams: u64,
    /// Of a hundred listeners so many go away in between.
    #[arg(long, default_value_t = 3)]
    leaving: u32,
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Where the log is written, one JSON object on each line.
    #[arg(long)]
    log: PathBuf,
    /// Ends the storm when it is there.
    #[arg(long)]
    stop_file: PathBuf,
}

/// One line of the log.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct StreamLine {
    pub(super) n: u64,
    pub(super) agent: bool,
    pub(super) result: String,
    pub(super) call_id: Option<String>,
}

/// Delay after a refusal, and before the next connection attempt.
const AGAIN: Duration = Duration::from_millis(100);

/// Timeout of a call. No call may take longer: a killed process closes its connections.
const HUNG: Duration = Duration::from_mins(1);

struct ModelStormState {
    storm: ModelStorm,
    next: AtomicU64,
}

impl ModelStormState {
    async fn work(
        &self,
        worker: u64,
        log: &mpsc::UnboundedSender<StreamLine>,
    ) -> anyhow::Result<()> {
        let agent = worker.is_multiple_of(4);
        let storm = &self.storm;
        let asker = Asker {
            endpoint: if agent { storm.agents.clone() } else { storm.people.clone() },
            token: if agent { storm.agent_token.clone() } else { storm.key.clone() },
            model: storm.model.clone(),
            project: (!agent).then(|| storm.project.clone()),
            max_tokens: storm.max_tokens,
        };
        let (mut link, mut reached) = (None, Instant::now());
        while !storm.stop_file.exists() {
            let n = self.next.fetch_add(1, Ordering::Relaxed);
            let (result, call_id) = self.ask(&asker, n, &mut link).await?;
            match result.as_str() {
                "unreachable" => ensure!(reached.elapsed() < HUNG, "nobody listens any more"),
                _ => reached = Instant::now(),
            }
            let calm = matches!(result.as_str(), "answered" | "left");
            log.send(StreamLine { n, agent, result, call_id })?;
            if !calm {
                pause(AGAIN).await;
            }
        }
        Ok(())
    }

    /// Makes one request. All requests have the same length, and no two are the same.
    async fn ask(
        &self,
        asker: &Asker,
        n: u64,
        link: &mut Option<Link>,
    ) -> anyhow::Result<(String, Option<String>)> {
        let told = |result: &str| (result.to_owned(), None);
        let mut open = match link.take() {
            Some(open) => open,
            None => match Link::open(&asker.endpoint).await {
                Ok(open) => open,
                Err(_) => return Ok(told("unreachable")),
            },
        };
        let text = format!("Question {:010} of storm {:010}.", n, self.storm.seed);
        let mut rng = StdRng::seed_from_u64(self.storm.seed.rotate_left(32) ^ n);
        let leaving = rng.random_range(0..100) < self.storm.leaving;
        let timeout = if leaving { Duration::from_millis(rng.random_range(5..500)) } else { HUNG };
        let (mut head, mut whole) = (None, Vec::new());
        let heard = async {
            let response = open.send(asker.request(&text)?).await;
            let response = match response {
                Ok(response) => response,
                Err(CallFailure::NeverSent) => return anyhow::Ok("unreachable".to_owned()),
                Err(CallFailure::CutOff { .. }) => return Ok("cut off".to_owned()),
            };
            let status = response.status();
            head = call_id(&response);
            let mut body = response.into_body();
            while let Some(frame) = body.frame().await {
                match frame.map(hyper::body::Frame::into_data) {
                    Ok(Ok(data)) => whole.extend_from_slice(&data),
                    Ok(Err(_)) => {}
                    Err(_) => return Ok("cut off".to_owned()),
                }
            }
            if status != 200 {
                let body: Value = serde_json::from_slice(&whole).unwrap_or_default();
                let error = &body["error"];
                let code = error["code"].as_str().or(error["type"].as_str());
                return Ok(format!("refused {status} {}", code.unwrap_or_default()));
            }
            let done = whole.windows(DONE.len()).any(|part| part == DONE);
            Ok(if done { "answered" } else { "broken" }.to_owned())
        };
        let result = match tokio::time::timeout(timeout, heard).await {
            Ok(result) => result?,
            Err(_) if leaving => "left".to_owned(),
            Err(_) => "hung".to_owned(),
        };
        if result == "answered" || result.starts_with("refused") {
            *link = Some(open);
        }
        Ok((result, head))
    }
}

pub(crate) async fn run(storm: ModelStorm) -> anyhow::Result<bool> {
    let mut log = BufWriter::new(File::create(&storm.log)?);
    let streams = storm.streams;
    let shared = Arc::new(ModelStormState { storm, next: AtomicU64::new(0) });
    let (sender, mut lines) = mpsc::unbounded_channel::<StreamLine>();
    let mut set = JoinSet::new();
    for worker in 0..streams {
        let (shared, sender) = (shared.clone(), sender.clone());
        set.spawn(async move { shared.work(worker, &sender).await });
    }
    drop(sender);
    let (mut people, mut agents) = (BTreeMap::new(), BTreeMap::new());
    while let Some(line) = lines.recv().await {
        serde_json::to_writer(&mut log, &line)?;
        log.write_all(b"\n")?;
        let counts = if line.agent { &mut agents } else { &mut people };
        *counts.entry(line.result).or_insert(0_u64) += 1;
    }
    log.flush()?;
    while let Some(done) = set.join_next().await {
        done??;
    }
    println!("{}", json!({ "people": people, "agents": agents }));
    let hung = people.contains_key("hung") || agents.contains_key("hung");
    let answered = people.contains_key("answered") && agents.contains_key("answered");
    Ok(answered && !hung)
}
