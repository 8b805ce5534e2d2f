//! Streamed requests at a constant rate, timed from their intended send time, and the latency of each chunk of a response,
//! timed from when the provider sent it.

use std::{collections::BTreeMap, time::Instant};

use anyhow::{Context, ensure};
use clap::Args;
use http_body_util::BodyExt;
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use super::wire::{Asker, DONE, clock, stamps};
use crate::{
    gateway::{
        named,
        wire::{CallFailure, Link},
    },
    pace::{
        BASELINE, Cost, Pace, QUANTILES, WARM_RATE, at, in_rounds, median, micros, on_threads,
        per_thousand,
    },
    process::MeasuredProcess,
};

/// Streamed questions at constant rates to several targets in turn, and what each adds to the target `direct`.
#[derive(Args)]
pub(crate) struct ModelLatency {
    /// NAME=URL of a target, its path included; the one named `direct` is what the others are compared with.
    #[arg(long = "target", required = true, value_parser = named)]
    targets: Vec<(String, String)>,
    /// NAME=TOKEN that is shown to a target.
    #[arg(long = "token", value_parser = named)]
    tokens: Vec<(String, String)>,
    /// NAME=MODEL that a target is asked for; `fast` unless it is given.
    #[arg(long = "model", value_parser = named)]
    models: Vec<(String, String)>,
    /// NAME=PROJECT that a target is to account to.
    #[arg(long = "project", value_parser = named)]
    projects: Vec<(String, String)>,
    /// NAME=PID of a target's process; PID+ takes all its descendants in. May be given again.
    #[arg(long = "pid", value_parser = named)]
    pids: Vec<(String, String)>,
    /// NAME=PID of a process that works for a target, a database, say: its processor time is given apart.
    #[arg(long = "helper", value_parser = named)]
    helpers: Vec<(String, String)>,
    /// Questions in a second. May be given again.
    #[arg(long = "rate", default_values_t = [200_u32])]
    rates: Vec<u32>,
    /// How long each measurement takes.
    #[arg(long, default_value_t = 10)]
    seconds: u32,
    /// Connections that take turns.
    #[arg(long, default_value_t = 32)]
    connections: u32,
    /// Questions to each target that are not counted.
    #[arg(long, default_value_t = 1000)]
    warmup: u32,
    /// The rate of those.
    #[arg(long, default_value_t = WARM_RATE)]
    warm_rate: u32,
    /// Rounds in which the targets take turns.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// About how long a question is.
    #[arg(long, default_value_t = 2000)]
    bytes: usize,
    /// Target under test: it must keep the bounds and answer every question in time and in full.
    #[arg(long)]
    under_test: Option<String>,
    /// Maximum added median latency of the first byte and of each chunk at any rate, in microseconds.
    #[arg(long, default_value_t = 2000)]
    max_p50: i64,
    /// Maximum added 99th percentile latency, in microseconds.
    #[arg(long)]
    max_p99: Option<i64>,
    /// Maximum memory of its processes, in MB.
    #[arg(long)]
    max_rss: Option<f64>,
    /// A target to which the first byte takes so many times longer in the median than with the judged one: NAME=TIMES.
    #[arg(long = "slower", value_parser = named)]
    slower: Vec<(String, String)>,
}

struct ModelTarget {
    name: String,
    asker: Asker,
    processes: Vec<MeasuredProcess>,
    helpers: Vec<MeasuredProcess>,
    sent: u64,
}

impl ModelLatency {
    fn targets(&self) -> anyhow::Result<Vec<ModelTarget>> {
        let known = |name: &String| self.targets.iter().any(|(target, _)| target == name);
        let given = [&self.tokens, &self.models, &self.projects, &self.pids, &self.helpers];
        for (name, _) in given.into_iter().flatten() {
            ensure!(known(name), "there is no target `{name}`");
        }
        self.targets.iter().map(|(name, url)| self.target(name, url)).collect()
    }

    fn target(&self, name: &str, url: &str) -> anyhow::Result<ModelTarget> {
        let find = |list: &[(String, String)]| {
            list.iter().find(|(of, _)| of == name).map(|(_, value)| value.clone())
        };
        let processes = |list: &[(String, String)]| {
            let own = list.iter().filter(|(of, _)| of == name);
            own.map(|(_, pid)| pid.parse()).collect::<anyhow::Result<Vec<MeasuredProcess>>>()
        };
        let asker = Asker {
            endpoint: url.parse()?,
            token: find(&self.tokens).unwrap_or_default(),
            model: find(&self.models).unwrap_or_else(|| "fast".to_owned()),
            project: find(&self.projects),
            max_tokens: 1000,
        };
        let (processes, helpers) = (processes(&self.pids)?, processes(&self.helpers)?);
        Ok(ModelTarget { name: name.to_owned(), asker, processes, helpers, sent: 0 })
    }
}

/// One measurement, in microseconds.
#[derive(Default)]
struct ModelMeasurement {
    /// From the intended send time of a request to the first byte of the response body.
    first: Vec<u32>,
    /// From when the provider sent a chunk to its arrival.
    pieces: Vec<u32>,
    /// Between two chunks.
    gaps: Vec<u32>,
    /// Delays of requests that left late although their connection was free: errors of this program.
    late: Vec<u32>,
    errors: u64,
    first_error: Option<String>,
    /// Requests that could not be sent in time; they count with the time until the end.
    missed: u64,
    cost: Cost,
}

type Series = (&'static str, fn(&ModelMeasurement) -> &[u32]);

/// The measured series of a response.
const SERIES: [Series; 3] =
    [("first", |all| &all.first), ("piece", |all| &all.pieces), ("gap", |all| &all.gaps)];

impl ModelMeasurement {
    fn add(&mut self, other: Self) {
        self.first.extend(other.first);
        self.pieces.extend(other.pieces);
        self.gaps.extend(other.gaps);
        self.late.extend(other.late);
        self.errors += other.errors;
        self.missed += other.missed;
        self.first_error = self.first_error.take().or(other.first_error);
        self.cost.add(other.cost);
    }

    fn sorted(mut self) -> Self {
        for series in [&mut self.first, &mut self.pieces, &mut self.gaps, &mut self.late] {
            series.sort_unstable();
        }
        self
    }
}

/// Makes the requests.
fn drive(target: &mut ModelTarget, pace: Pace, bytes: usize) -> anyhow::Result<ModelMeasurement> {
    let first = target.sent;
    target.sent += u64::from(pace.calls);
    let target = &*target;
    let (parts, cost) = Cost::of(&target.processes, &target.helpers, || {
        on_threads(
            pace.connections,
            || ModelConnection::open(&target.asker),
            |opened, connection, begun| opened.drive(target, pace, bytes, connection, first, begun),
        )
    })?;
    let mut all = ModelMeasurement { cost, ..ModelMeasurement::default() };
    for part in parts {
        all.add(part);
    }
    Ok(all.sorted())
}

struct ModelConnection {
    runtime: Runtime,
    link: Link,
}

/// Returns a request of ordinary words. No two are the same.
fn question(number: u64, bytes: usize) -> String {
    const WORDS: &str =
        "The form forgets the name when the password is wrong, and nobody is told why. ";
    let mut text = format!("{number:012}: ");
    while text.len() < bytes {
        text += WORDS;
    }
    text
}

impl ModelConnection {
    fn open(asker: &Asker) -> anyhow::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let link = runtime.block_on(Link::open(&asker.endpoint))?;
        Ok(Self { runtime, link })
    }

    fn drive(
        mut self,
        target: &ModelTarget,
        pace: Pace,
        bytes: usize,
        connection: u32,
        first: u64,
        begun: Instant,
    ) -> anyhow::Result<ModelMeasurement> {
        let mut measured = ModelMeasurement::default();
        let end = pace.end(begun);
        for number in pace.of(connection) {
            let intended = begun + pace.intended(number);
            let request = target.asker.request(&question(first + u64::from(number), bytes))?;
            let early = intended.saturating_duration_since(Instant::now());
            if !early.is_zero() {
                std::thread::sleep(early);
                measured.late.push(micros(intended.elapsed()));
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                measured.missed += 1;
                measured.first.push(micros(end - intended));
                continue;
            }
            let Self { runtime, link } = &mut self;
            let heard = runtime.block_on(async {
                tokio::time::timeout(left, hear(link, request, intended, &mut measured)).await
            });
            match heard {
                Ok(Ok(())) => continue,
                Ok(Err(problem)) => {
                    measured.errors += 1;
                    measured.first_error.get_or_insert(problem);
                }
                Err(_) => {
                    measured.missed += 1;
                    measured.first.push(micros(intended.elapsed()));
                }
            }
            self.link = self.runtime.block_on(Link::open(&target.asker.endpoint))?;
        }
        Ok(measured)
    }
}

/// Makes a request and reads the response to the end. Returns its problem.
async fn hear(
    link: &mut Link,
    request: hyper::Request<http_body_util::Full<axum::body::Bytes>>,
    intended: Instant,
    measured: &mut ModelMeasurement,
) -> Result<(), String> {
    let response = link.send(request).await.map_err(|cut: CallFailure| format!("{cut:?}"))?;
    let status = response.status();
    let mut body = response.into_body();
    if status != 200 {
        let told = body.collect().await.map(http_body_util::Collected::to_bytes);
        return Err(format!("{status}: {}", String::from_utf8_lossy(&told.unwrap_or_default())));
    }
    let (mut begun, mut last): (bool, Option<Instant>) = (false, None);
    let (mut open, mut done) = (Vec::new(), false);
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| error.to_string())?;
        let Ok(data) = frame.into_data() else { continue };
        if data.is_empty() {
            continue;
        }
        if !begun {
            begun = true;
            measured.first.push(micros(intended.elapsed()));
        }
        let (now, arrived) = (clock(), Instant::now());
        open.extend_from_slice(&data);
        let Some(whole) = open.iter().rposition(|byte| *byte == b'\n') else { continue };
        let rest = open.split_off(whole + 1);
        for line in open.split(|byte| *byte == b'\n') {
            done |= line.starts_with(DONE);
            let Some(sent) = std::str::from_utf8(line).ok().and_then(stamps) else { continue };
            measured.pieces.push(u32::try_from(now - sent).unwrap_or_default());
            if let Some(last) = last.replace(arrived) {
                measured.gaps.push(micros(arrived - last));
            }
        }
        open = rest;
    }
    if done { Ok(()) } else { Err("the answer has no end".to_owned()) }
}

/// Target and rate.
type Key = (usize, u32);

pub(crate) fn run(latency: &ModelLatency) -> anyhow::Result<bool> {
    ensure!(latency.rounds > 0 && latency.seconds > 0 && latency.connections > 0, "nothing to do");
    ensure!(latency.rates.iter().all(|rate| *rate > 0), "a rate is at least 1");
    let mut targets = latency.targets()?;
    let pace = |rate, calls| Pace { rate, calls, connections: latency.connections };
    for target in &mut targets {
        if latency.warmup > 0 {
            let warm = drive(target, pace(latency.warm_rate, latency.warmup), latency.bytes)
                .with_context(|| format!("{} does not take questions", target.name))?;
            if let Some(error) = warm.first_error {
                anyhow::bail!("{} fails: {error}", target.name);
            }
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
    let problems = latency.problems(&results)?;
    let report = json!({
        "seconds": latency.seconds, "connections": latency.connections, "rounds": latency.rounds,
        "bytes": latency.bytes, "sent": sent, "results": results, "problems": problems,
    });
    println!("{report}");
    Ok(problems.is_empty())
}

/// Summarises each target at each rate.
fn summary(
    targets: &[ModelTarget],
    baseline: Option<usize>,
    all: BTreeMap<Key, Vec<ModelMeasurement>>,
) -> Vec<Value> {
    let mut added: BTreeMap<Key, Value> = BTreeMap::new();
    for (&(index, rate), rounds) in &all {
        let bare = baseline.and_then(|baseline| all.get(&(baseline, rate)));
        let Some(bare) = bare else { continue };
        let mut told = json!({});
        for (series, values) in SERIES {
            for (name, per_mille) in QUANTILES {
                let differences = rounds.iter().zip(bare).map(|(ours, bare)| {
                    i64::from(at(values(ours), per_mille)) - i64::from(at(values(bare), per_mille))
                });
                told[format!("{series}_{name}_us")] = json!(median(differences.collect()));
            }
        }
        added.insert((index, rate), told);
    }
    let mut results = Vec::new();
    for (key, rounds) in all {
        let each: Vec<_> = rounds
            .iter()
            .map(|round| {
                json!({ "first_p50_us": at(&round.first, 500), "piece_p50_us": at(&round.pieces, 500) })
            })
            .collect();
        let mut whole = ModelMeasurement::default();
        for round in rounds {
            whole.add(round);
        }
        let whole = whole.sorted();
        let calls = whole.first.len();
        let mut told = json!({
            "target": targets[key.0].name,
            "rate": key.1,
            "calls": calls,
            "pieces": whole.pieces.len(),
            "errors": whole.errors,
            "first_error": whole.first_error,
            "missed": whole.missed,
            "added": added.get(&key),
            "cpu_seconds_per_1000_calls": per_thousand(whole.cost.cpu_seconds, calls, whole.missed),
            "helpers_cpu_seconds_per_1000_calls":
                per_thousand(whole.cost.helpers_cpu_seconds, calls, whole.missed),
            "rss_mb": whole.cost.rss_mb,
            "sent_late_p99_us": at(&whole.late, 990),
            "rounds": each,
        });
        for (series, values) in SERIES {
            for (name, per_mille) in QUANTILES {
                told[format!("{series}_{name}_us")] = json!(at(values(&whole), per_mille));
            }
        }
        results.push(told);
    }
    results
}

impl ModelLatency {
    fn problems(&self, results: &[Value]) -> anyhow::Result<Vec<String>> {
        let Some(judged) = &self.under_test else { return Ok(Vec::new()) };
        let own = results.iter().filter(|result| result["target"] == judged.as_str());
        let mut problems = Vec::new();
        let mut seen = false;
        for result in own {
            seen = true;
            let rate = &result["rate"];
            let mut wrong = |what: String| problems.push(format!("{judged} at {rate}/s: {what}"));
            if result["errors"] != 0 || result["missed"] != 0 || result["pieces"] == 0 {
                wrong(format!("{} errors, {} missed", result["errors"], result["missed"]));
            }
            for series in ["first", "piece"] {
                let bounds = [("p50", Some(self.max_p50)), ("p99", self.max_p99)];
                for (name, max) in bounds {
                    let Some(max) = max else { continue };
                    match result["added"][format!("{series}_{name}_us")].as_i64() {
                        Some(added) if added < max => {}
                        Some(added) => wrong(format!(
                            "added {series} {name} is {added} us, under {max} was promised"
                        )),
                        None => wrong("there is nothing to compare with".to_owned()),
                    }
                }
            }
            if let Some(max) = self.max_rss
                && result["rss_mb"].as_f64().is_none_or(|rss| rss >= max)
            {
                wrong(format!("{} MB of memory, under {max} were promised", result["rss_mb"]));
            }
            for (name, times) in &self.slower {
                let times: i64 = times.parse().context("NAME=TIMES is needed")?;
                let other = results
                    .iter()
                    .find(|other| other["target"] == name.as_str() && other["rate"] == *rate);
                let added =
                    |of: &Value| of["added"]["first_p50_us"].as_i64().unwrap_or(i64::MAX / 1000);
                match other.map(added) {
                    Some(theirs) if theirs >= added(result).max(1) * times => {}
                    theirs => wrong(format!(
                        "adds {} us where {name} adds {theirs:?}, {times} times as much was promised",
                        added(result)
                    )),
                }
            }
        }
        if !seen {
            problems.push(format!("there is no target `{judged}`"));
        }
        Ok(problems)
    }
}

#[expect(clippy::print_stderr, reason = "for people; programs read the other output")]
fn print_table(results: &[Value]) {
    const COLUMNS: [(&str, &str); 8] = [
        ("first p50", "first_p50_us"),
        ("first p99", "first_p99_us"),
        ("+first p50", "+first_p50_us"),
        ("+first p99", "+first_p99_us"),
        ("piece p50", "piece_p50_us"),
        ("piece p99", "piece_p99_us"),
        ("+piece p50", "+piece_p50_us"),
        ("+piece p99", "+piece_p99_us"),
    ];
    eprint!("{:<10} {:>5} {:>7} {:>6} {:>6}", "target", "rate", "calls", "errors", "missed");
    for (title, _) in COLUMNS {
        eprint!(" {title:>10}");
    }
    eprintln!(" {:>10} {:>8}", "CPU s/1000", "RSS MB");
    for result in results {
        let name = result["target"].as_str().unwrap_or_default();
        let numbers = ["rate", "calls", "errors", "missed"].map(|name| result[name].to_string());
        let [rate, calls, errors, missed] = numbers;
        eprint!("{name:<10} {rate:>5} {calls:>7} {errors:>6} {missed:>6}");
        for (_, column) in COLUMNS {
            let value = match column.strip_prefix('+') {
                Some(column) => &result["added"][column],
                None => &result[column],
            };
            let told =
                value.as_f64().map_or_else(String::new, |us| format!("{:.3} ms", us / 1000.0));
            eprint!(" {told:>10}");
        }
        let plain = |value: &Value| {
            value.as_f64().map_or_else(String::new, |number| format!("{number:.2}"))
        };
        let (cpu, rss) = (plain(&result["cpu_seconds_per_1000_calls"]), plain(&result["rss_mb"]));
        eprintln!(" {cpu:>10} {rss:>8}");
    }
}
