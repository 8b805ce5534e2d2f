//! Calls at a constant rate, independent of the target, timed from their intended send time. A target that stalls is charged
//! for every call that should have been made meanwhile (no coordinated omission).

use std::{collections::BTreeMap, time::Instant};

use anyhow::{Context, ensure};
use clap::Args;
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use super::{
    named,
    wire::{Caller, Era, Link, Verdict},
};
use crate::{
    pace::{
        BASELINE, Cost, Pace, QUANTILES, WARM_RATE, at, in_rounds, median, micros, on_threads,
        per_thousand,
    },
    process::MeasuredProcess,
};

/// Calls at constant rates to several targets in turn, and what each adds to the target `direct`.
#[derive(Args)]
pub(crate) struct ToolLatency {
    /// NAME=URL of a target; the one named `direct` is what the others are compared with.
    #[arg(long = "target", required = true, value_parser = named)]
    targets: Vec<(String, String)>,
    /// NAME=TOKEN that is shown to a target.
    #[arg(long = "token", value_parser = named)]
    tokens: Vec<(String, String)>,
    /// NAME=TOOL, where a target has another name for `echo`.
    #[arg(long = "tool", value_parser = named)]
    tools: Vec<(String, String)>,
    /// NAME=modern or NAME=legacy; modern unless it is given.
    #[arg(long = "era", value_parser = named)]
    eras: Vec<(String, String)>,
    /// NAME=PID of a target's process; PID+ takes all its descendants in. May be given again.
    #[arg(long = "pid", value_parser = named)]
    pids: Vec<(String, String)>,
    /// NAME=PID of a process that works for a target, a database, say: its processor time is given apart.
    #[arg(long = "helper", value_parser = named)]
    helpers: Vec<(String, String)>,
    /// Calls in a second. May be given again.
    #[arg(long = "rate", default_values_t = [200_u32, 1000])]
    rates: Vec<u32>,
    /// How long each measurement takes.
    #[arg(long, default_value_t = 10)]
    seconds: u32,
    /// Connections that take turns.
    #[arg(long, default_value_t = 16)]
    connections: u32,
    /// Calls to each target that are not counted.
    #[arg(long, default_value_t = 1000)]
    warmup: u32,
    /// Rounds in which the targets take turns.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Length of the text that is echoed.
    #[arg(long, default_value_t = 64)]
    bytes: usize,
    /// Target under test: it must keep the bounds and answer every call in time with success.
    #[arg(long)]
    under_test: Option<String>,
    /// Maximum added median latency at any rate, in microseconds.
    #[arg(long, default_value_t = 300)]
    max_p50: i64,
    /// Maximum added 99th percentile latency, in microseconds.
    #[arg(long, default_value_t = 1500)]
    max_p99: i64,
}

struct ToolTarget {
    name: String,
    caller: Caller,
    tool: String,
    processes: Vec<MeasuredProcess>,
    helpers: Vec<MeasuredProcess>,
    sent: u64,
}

impl ToolLatency {
    fn targets(&self) -> anyhow::Result<Vec<ToolTarget>> {
        let known = |name: &String| self.targets.iter().any(|(target, _)| target == name);
        let given = [&self.tokens, &self.tools, &self.eras, &self.pids, &self.helpers];
        for (name, _) in given.into_iter().flatten() {
            ensure!(known(name), "there is no target `{name}`");
        }
        self.targets.iter().map(|(name, url)| self.target(name, url)).collect()
    }

    fn target(&self, name: &str, url: &str) -> anyhow::Result<ToolTarget> {
        let find = |list: &[(String, String)]| {
            list.iter().find(|(of, _)| of == name).map(|(_, value)| value.clone())
        };
        let processes = |list: &[(String, String)]| {
            let own = list.iter().filter(|(of, _)| of == name);
            own.map(|(_, pid)| pid.parse()).collect::<anyhow::Result<Vec<MeasuredProcess>>>()
        };
        let era = match find(&self.eras).as_deref() {
            None | Some("modern") => Era::Modern,
            Some("legacy") => Era::Legacy,
            Some(other) => anyhow::bail!("there is no era `{other}`"),
        };
        let token = find(&self.tokens).unwrap_or_default();
        Ok(ToolTarget {
            name: name.to_owned(),
            caller: Caller { endpoint: url.parse()?, token, era },
            tool: find(&self.tools).unwrap_or_else(|| "echo".to_owned()),
            processes: processes(&self.pids)?,
            helpers: processes(&self.helpers)?,
            sent: 0,
        })
    }
}

/// One measurement.
#[derive(Default)]
struct ToolMeasurement {
    /// Latencies in microseconds, sorted.
    latencies: Vec<u32>,
    /// Delays in microseconds of calls that left late although their connection was free: errors of this program, sorted.
    late: Vec<u32>,
    errors: u64,
    first_error: Option<String>,
    /// Calls that could not be sent in time; they count with the time until the end.
    missed: u64,
    cost: Cost,
}

impl ToolMeasurement {
    fn add(&mut self, other: Self) {
        self.latencies.extend(other.latencies);
        self.late.extend(other.late);
        self.errors += other.errors;
        self.missed += other.missed;
        self.first_error = self.first_error.take().or(other.first_error);
        self.cost.add(other.cost);
    }

    fn sorted(mut self) -> Self {
        self.latencies.sort_unstable();
        self.late.sort_unstable();
        self
    }

    /// Returns the quantile, in thousandths.
    fn quantile(&self, per_mille: usize) -> u32 {
        at(&self.latencies, per_mille)
    }
}

/// Makes the calls.
fn drive(target: &mut ToolTarget, pace: Pace, bytes: usize) -> anyhow::Result<ToolMeasurement> {
    let first = target.sent;
    target.sent += u64::from(pace.calls);
    let target = &*target;
    let (parts, cost) = Cost::of(&target.processes, &target.helpers, || {
        on_threads(
            pace.connections,
            || ToolConnection::open(&target.caller),
            |opened, connection, begun| opened.drive(target, pace, bytes, connection, first, begun),
        )
    })?;
    let mut all = ToolMeasurement { cost, ..ToolMeasurement::default() };
    for part in parts {
        all.add(part);
    }
    Ok(all.sorted())
}

struct ToolConnection {
    runtime: Runtime,
    link: Link,
}

impl ToolConnection {
    fn open(caller: &Caller) -> anyhow::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let link = runtime.block_on(Link::open(&caller.endpoint))?;
        Ok(Self { runtime, link })
    }

    fn drive(
        mut self,
        target: &ToolTarget,
        pace: Pace,
        bytes: usize,
        connection: u32,
        first: u64,
        begun: Instant,
    ) -> anyhow::Result<ToolMeasurement> {
        let mut measured = ToolMeasurement::default();
        let end = pace.end(begun);
        for number in pace.of(connection) {
            let intended = begun + pace.intended(number);
            let id = first + u64::from(number);
            let text = format!("{id:0bytes$}");
            let request = target.caller.request(id, &target.tool, &json!({ "text": text }))?;
            let early = intended.saturating_duration_since(Instant::now());
            if !early.is_zero() {
                std::thread::sleep(early);
                measured.late.push(micros(intended.elapsed()));
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                measured.missed += 1;
                measured.latencies.push(micros(end - intended));
                continue;
            }
            let call = self.link.call(request);
            let answer = self.runtime.block_on(async { tokio::time::timeout(left, call).await });
            measured.latencies.push(micros(intended.elapsed()));
            let problem = match answer {
                Ok(Ok(answered)) => match answered.verdict() {
                    Verdict::Success(Some(said)) if said == text => None,
                    Verdict::Success(said) => Some(format!("another text came back: {said:?}")),
                    other => Some(other.to_string()),
                },
                Ok(Err(cut)) => Some(format!("{cut:?}")),
                Err(_) => {
                    measured.missed += 1;
                    self.link = self.runtime.block_on(Link::open(&target.caller.endpoint))?;
                    continue;
                }
            };
            if let Some(problem) = problem {
                measured.errors += 1;
                measured.first_error.get_or_insert(problem);
                self.link = self.runtime.block_on(Link::open(&target.caller.endpoint))?;
            }
        }
        Ok(measured)
    }
}

/// Target and rate.
type Key = (usize, u32);

pub(crate) fn run(latency: &ToolLatency) -> anyhow::Result<bool> {
    ensure!(latency.rounds > 0 && latency.seconds > 0 && latency.connections > 0, "nothing to do");
    ensure!(latency.rates.iter().all(|rate| *rate > 0), "a rate is at least 1");
    let mut targets = latency.targets()?;
    let pace = |rate, calls| Pace { rate, calls, connections: latency.connections };
    for target in &mut targets {
        if latency.warmup > 0 {
            drive(target, pace(WARM_RATE, latency.warmup), latency.bytes)
                .with_context(|| format!("{} does not take calls", target.name))?;
        }
    }
    let all = in_rounds(&mut targets, &latency.rates, latency.rounds, |target, rate| {
        drive(target, pace(rate, rate * latency.seconds), latency.bytes)
    })?;
    let baseline = targets.iter().position(|target| target.name == BASELINE);
    let results = summary(&targets, baseline, all);
    print_table(&results);
    let sent: BTreeMap<_, _> =
        targets.iter().map(|target| (target.name.as_str(), target.sent)).collect();
    let problems = latency.problems(&results);
    let report = json!({
        "seconds": latency.seconds, "connections": latency.connections, "rounds": latency.rounds,
        "bytes": latency.bytes, "sent": sent, "results": results, "problems": problems,
    });
    println!("{report}");
    Ok(problems.is_empty())
}

/// Summarises each target at each rate.
fn summary(
    targets: &[ToolTarget],
    baseline: Option<usize>,
    mut all: BTreeMap<Key, Vec<ToolMeasurement>>,
) -> Vec<Value> {
    let mut added: BTreeMap<Key, Value> = BTreeMap::new();
    if let Some(baseline) = baseline {
        for (&(index, rate), rounds) in &all {
            let bare = all.get(&(baseline, rate)).map_or(&[] as &[_], Vec::as_slice);
            let value = QUANTILES.into_iter().map(|(name, per_mille)| {
                let differences = rounds.iter().zip(bare).map(|(ours, bare)| {
                    i64::from(ours.quantile(per_mille)) - i64::from(bare.quantile(per_mille))
                });
                (format!("{name}_us"), json!(median(differences.collect())))
            });
            added.insert((index, rate), Value::Object(value.collect()));
        }
    }
    let mut results = Vec::new();
    for (key, rounds) in std::mem::take(&mut all) {
        let each: Vec<_> = rounds
            .iter()
            .map(|round| json!({ "p50_us": round.quantile(500), "p99_us": round.quantile(990) }))
            .collect();
        let mut whole = ToolMeasurement::default();
        for round in rounds {
            whole.add(round);
        }
        let whole = whole.sorted();
        let mut told = json!({
            "target": targets[key.0].name,
            "rate": key.1,
            "calls": whole.latencies.len(),
            "errors": whole.errors,
            "first_error": whole.first_error,
            "missed": whole.missed,
            "max_us": whole.quantile(1000),
            "added": added.get(&key),
            "cpu_seconds_per_1000_calls": per_thousand(whole.cost.cpu_seconds, whole.latencies.len(), whole.missed),
            "helpers_cpu_seconds_per_1000_calls": per_thousand(whole.cost.helpers_cpu_seconds, whole.latencies.len(), whole.missed),
            "rss_mb": whole.cost.rss_mb,
            "sent_late_p99_us": at(&whole.late, 990),
            "rounds": each,
        });
        for (name, per_mille) in QUANTILES {
            told[format!("{name}_us")] = json!(whole.quantile(per_mille));
        }
        results.push(told);
    }
    results
}

impl ToolLatency {
    fn problems(&self, results: &[Value]) -> Vec<String> {
        let Some(judged) = &self.under_test else { return Vec::new() };
        let own = results.iter().filter(|result| result["target"] == judged.as_str());
        let mut problems = Vec::new();
        let mut seen = false;
        for result in own {
            seen = true;
            let mut wrong =
                |what: String| problems.push(format!("{judged} at {}/s: {what}", result["rate"]));
            if result["errors"] != 0 || result["missed"] != 0 {
                wrong(format!("{} errors, {} missed", result["errors"], result["missed"]));
            }
            for (name, max) in [("p50_us", self.max_p50), ("p99_us", self.max_p99)] {
                match result["added"][name].as_i64() {
                    Some(added) if added < max => {}
                    Some(added) => {
                        wrong(format!("added {name} is {added}, under {max} was promised"));
                    }
                    None => wrong("there is nothing to compare with".to_owned()),
                }
            }
        }
        if !seen {
            problems.push(format!("there is no target `{judged}`"));
        }
        problems
    }
}

#[expect(clippy::print_stderr, reason = "for people; programs read the other output")]
fn print_table(results: &[Value]) {
    eprintln!(
        "{:<14} {:>6} {:>8} {:>6} {:>7} {:>9} {:>9} {:>9} {:>9} {:>10} {:>10} {:>10} {:>8}",
        "target",
        "rate",
        "calls",
        "errors",
        "missed",
        "p50 ms",
        "p99 ms",
        "p99.9 ms",
        "max ms",
        "+p50 ms",
        "+p99 ms",
        "CPU s/1000",
        "RSS MB"
    );
    let ms =
        |value: &Value| value.as_f64().map_or_else(String::new, |us| format!("{:.3}", us / 1000.0));
    let plain =
        |value: &Value| value.as_f64().map_or_else(String::new, |number| format!("{number:.3}"));
    for result in results {
        eprintln!(
            "{:<14} {:>6} {:>8} {:>6} {:>7} {:>9} {:>9} {:>9} {:>9} {:>10} {:>10} {:>10} {:>8}",
            result["target"].as_str().unwrap_or_default(),
            result["rate"].to_string(),
            result["calls"].to_string(),
            result["errors"].to_string(),
            result["missed"].to_string(),
            ms(&result["p50_us"]),
            ms(&result["p99_us"]),
            ms(&result["p99_9_us"]),
            ms(&result["max_us"]),
            ms(&result["added"]["p50_us"]),
            ms(&result["added"]["p99_us"]),
            plain(&result["cpu_seconds_per_1000_calls"]),
            plain(&result["rss_mb"]),
        );
    }
}
