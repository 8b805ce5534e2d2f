//! Calls of all kinds, one after the other on each connection, to a gateway that is killed meanwhile.

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
use rand::{RngExt, SeedableRng, rngs::StdRng};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::{sync::mpsc, task::JoinSet};

use super::{
    pause,
    wire::{CallFailure, Caller, Endpoint, Link},
};

/// Calls of all kinds to a gateway that somebody kills meanwhile, with a log of what became of each.
#[derive(Args)]
pub(crate) struct ToolStorm {
    /// The gateway.
    #[arg(long)]
    target: Endpoint,
    /// The agent's token.
    #[arg(long)]
    token: String,
    /// Where the log is written, one JSON object on each line.
    #[arg(long)]
    log: PathBuf,
    /// Calls that are sent.
    #[arg(long, default_value_t = 20_000)]
    calls: u64,
    #[arg(long, default_value_t = 64)]
    connections: usize,
    /// Decides what is called when.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// A tool that the token may not call.
    #[arg(long)]
    refused_tool: String,
    /// How long a held call takes at most, so that many calls are under way whenever the gateway dies.
    #[arg(long, default_value_t = 500)]
    hold_ms: u64,
    /// How long a call takes that the gateway gives up on: more than it allows the tool's server.
    #[arg(long, default_value_t = 10_000)]
    timeout_ms: u64,
    /// Ends the storm when it is there.
    #[arg(long)]
    stop_file: Option<PathBuf>,
}

/// Kind of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum CallKind {
    /// Allowed, answered at once.
    Echo,
    /// Allowed, answered after a delay.
    Held,
    /// A call of a tool that the token may not use.
    Refused,
    /// A call of a tool that fails.
    Fail,
    /// A call that exceeds the gateway's timeout.
    Timeout,
    /// A call whose caller disconnects.
    Cancel,
}

impl CallKind {
    /// Share of each kind, in thousandths.
    const SHARES: [(Self, u32); 6] = [
        (Self::Echo, 390),
        (Self::Held, 330),
        (Self::Refused, 150),
        (Self::Fail, 100),
        (Self::Timeout, 15),
        (Self::Cancel, 15),
    ];

    fn pick(rng: &mut StdRng) -> Self {
        let mut left = rng.random_range(0..1000);
        for (kind, share) in Self::SHARES {
            if left < share {
                return kind;
            }
            left -= share;
        }
        Self::Echo
    }
}

/// End of a call, as its caller saw it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum CallEnd {
    /// A complete answer arrived.
    Answered,
    /// The request was sent, and no complete answer arrived.
    CutOff,
    /// The request was never sent.
    NeverSent,
}

/// One line of the log.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct CallLine {
    pub(super) n: u64,
    pub(super) kind: CallKind,
    pub(super) result: CallEnd,
    pub(super) call_id: Option<String>,
    pub(super) answer: Option<String>,
}

/// Delay before the next connection attempt.
const AGAIN: Duration = Duration::from_millis(20);

/// Timeout of a call. No call may take longer: a killed process closes its connections.
const HUNG: Duration = Duration::from_mins(1);

struct ToolStormState {
    storm: ToolStorm,
    caller: Caller,
    next: AtomicU64,
    /// Remaining calls; one that was never sent is added again.
    left: AtomicU64,
    hung: AtomicU64,
}

impl ToolStormState {
    /// Returns the number of the next call, if any is left.
    fn next(&self) -> Option<u64> {
        let stopped = self.storm.stop_file.as_ref().is_some_and(|file| file.exists());
        let take = |left: u64| if stopped { None } else { left.checked_sub(1) };
        self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).ok()?;
        Some(self.next.fetch_add(1, Ordering::Relaxed))
    }

    /// Makes one call after the other, on one connection at a time.
    async fn work(&self, log: &mpsc::UnboundedSender<CallLine>) -> anyhow::Result<()> {
        let (mut link, mut reached) = (None, Instant::now());
        while let Some(number) = self.next() {
            let line = self.make(number, &mut link).await?;
            let result = line.result;
            log.send(line)?;
            match result {
                CallEnd::Answered => reached = Instant::now(),
                CallEnd::CutOff => pause(AGAIN).await,
                CallEnd::NeverSent => {
                    ensure!(reached.elapsed() < HUNG, "nobody listens any more");
                    self.left.fetch_add(1, Ordering::Relaxed);
                    pause(AGAIN).await;
                }
            }
        }
        Ok(())
    }

    /// Returns name and arguments of a call. No two calls have the same.
    fn call(&self, number: u64, kind: CallKind, rng: &mut StdRng) -> (&str, Value) {
        let text = format!("storm-{}-{number}", self.storm.seed);
        match kind {
            CallKind::Echo => ("echo", json!({ "text": text })),
            CallKind::Refused => (&self.storm.refused_tool, json!({ "text": text })),
            CallKind::Fail => ("fail", json!({ "text": text })),
            CallKind::Held => {
                let ms = rng.random_range(1..=self.storm.hold_ms);
                ("slow", json!({ "text": text, "ms": ms }))
            }
            CallKind::Timeout | CallKind::Cancel => {
                ("slow", json!({ "text": text, "ms": self.storm.timeout_ms }))
            }
        }
    }

    async fn make(&self, number: u64, link: &mut Option<Link>) -> anyhow::Result<CallLine> {
        let mut rng = StdRng::seed_from_u64(self.storm.seed.rotate_left(32) ^ number);
        let kind = CallKind::pick(&mut rng);
        let line = |result, call_id, answer| CallLine { n: number, kind, result, call_id, answer };
        let mut open = match link.take() {
            Some(open) => open,
            None => match Link::open(&self.caller.endpoint).await {
                Ok(open) => open,
                Err(_) => return Ok(line(CallEnd::NeverSent, None, None)),
            },
        };
        let (tool, arguments) = self.call(number, kind, &mut rng);
        let request = self.caller.request(number, tool, &arguments)?;
        let timeout = match kind {
            CallKind::Cancel => Duration::from_millis(rng.random_range(5..100)),
            CallKind::Echo
            | CallKind::Held
            | CallKind::Refused
            | CallKind::Fail
            | CallKind::Timeout => HUNG,
        };
        Ok(match tokio::time::timeout(timeout, open.call(request)).await {
            Ok(Ok(answered)) => {
                let answer = answered.verdict().to_string();
                *link = Some(open);
                line(CallEnd::Answered, answered.call_id, Some(answer))
            }
            Ok(Err(CallFailure::NeverSent)) => line(CallEnd::NeverSent, None, None),
            Ok(Err(CallFailure::CutOff { call_id })) => line(CallEnd::CutOff, call_id, None),
            Err(_) => {
                if kind != CallKind::Cancel {
                    self.hung.fetch_add(1, Ordering::Relaxed);
                }
                line(CallEnd::CutOff, None, None)
            }
        })
    }
}

pub(crate) async fn run(storm: ToolStorm) -> anyhow::Result<bool> {
    let mut log = BufWriter::new(File::create(&storm.log)?);
    let connections = storm.connections;
    let caller = Caller::modern(storm.target.clone(), &storm.token);
    let shared = Arc::new(ToolStormState {
        left: AtomicU64::new(storm.calls),
        storm,
        caller,
        next: AtomicU64::new(0),
        hung: AtomicU64::new(0),
    });
    let (sender, mut lines) = mpsc::unbounded_channel::<CallLine>();
    let mut set = JoinSet::new();
    for _ in 0..connections {
        let (shared, sender) = (shared.clone(), sender.clone());
        set.spawn(async move { shared.work(&sender).await });
    }
    drop(sender);
    let (mut results, mut answers) = (BTreeMap::new(), BTreeMap::new());
    while let Some(line) = lines.recv().await {
        serde_json::to_writer(&mut log, &line)?;
        log.write_all(b"\n")?;
        let name = serde_json::to_value(line.kind)?;
        let kind = name.as_str().unwrap_or_default().to_owned();
        *results.entry(serde_json::to_string(&line.result)?.replace('"', "")).or_insert(0) += 1;
        if let Some(answer) = line.answer {
            *answers.entry(format!("{kind} {answer}")).or_insert(0) += 1;
        }
    }
    log.flush()?;
    while let Some(done) = set.join_next().await {
        done??;
    }
    let hung = shared.hung.load(Ordering::Relaxed);
    println!("{}", json!({ "results": results, "answers": answers, "hung": hung }));
    Ok(hung == 0)
}
