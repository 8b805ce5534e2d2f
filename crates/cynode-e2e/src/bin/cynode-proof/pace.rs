//! Load at a constant rate, and the summary of many measurements.

use std::{
    collections::BTreeMap,
    sync::Barrier,
    time::{Duration, Instant},
};

use anyhow::Context;

use crate::process::{MeasuredProcess, cpu_seconds, rss_mb};

/// The target that the others are compared with.
pub(crate) const BASELINE: &str = "direct";

/// The rate of the warm-up calls, which are not counted.
pub(crate) const WARM_RATE: u32 = 200;

/// The quantiles of the summary, in thousandths.
pub(crate) const QUANTILES: [(&str, usize); 4] =
    [("p50", 500), ("p95", 950), ("p99", 990), ("p99_9", 999)];

/// A constant rate for some time.
#[derive(Clone, Copy)]
pub(crate) struct Pace {
    pub(crate) rate: u32,
    pub(crate) calls: u32,
    pub(crate) connections: u32,
}

impl Pace {
    /// Returns the time at which a slow driver is stopped; calls that were not sent by then are counted as missed.
    pub(crate) fn end(self, begun: Instant) -> Instant {
        begun + Duration::from_secs(1) * self.calls / self.rate * 2 + Duration::from_secs(1)
    }

    /// Returns the intended send time of a call.
    pub(crate) fn intended(self, number: u32) -> Duration {
        Duration::from_secs(1) * number / self.rate
    }

    /// Returns the numbers of the calls that a connection makes.
    pub(crate) fn of(self, connection: u32) -> impl Iterator<Item = u32> {
        (connection..self.calls).step_by(self.connections as usize)
    }
}

/// Opens all connections, each on its own thread, which sleeps more precisely than a timer of the runtime; then starts all of
/// them at the same moment.
pub(crate) fn on_threads<C, T: Send>(
    connections: u32,
    open: impl Fn() -> anyhow::Result<C> + Sync,
    drive: impl Fn(C, u32, Instant) -> anyhow::Result<T> + Sync,
) -> anyhow::Result<Vec<T>> {
    let barrier = Barrier::new(connections as usize);
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..connections)
            .map(|connection| {
                let (open, drive, barrier) = (&open, &drive, &barrier);
                scope.spawn(move || {
                    let opened = open();
                    barrier.wait();
                    let begun = Instant::now() + Duration::from_millis(20);
                    drive(opened?, connection, begun)
                })
            })
            .collect();
        let joined = threads.into_iter().map(|thread| {
            thread.join().map_err(|_| anyhow::anyhow!("a connection's thread died"))?
        });
        joined.collect()
    })
}

/// Measures each target at each rate in each round, with a rotating order of targets.
pub(crate) fn in_rounds<T, M>(
    targets: &mut [T],
    rates: &[u32],
    rounds: usize,
    measure: impl Fn(&mut T, u32) -> anyhow::Result<M>,
) -> anyhow::Result<BTreeMap<(usize, u32), Vec<M>>> {
    let mut all: BTreeMap<(usize, u32), Vec<M>> = BTreeMap::new();
    for round in 0..rounds {
        for &rate in rates {
            for turn in 0..targets.len() {
                let index = (turn + round) % targets.len();
                let measured = measure(&mut targets[index], rate);
                let measured = measured.with_context(|| format!("target {index} at {rate}/s"))?;
                all.entry((index, rate)).or_default().push(measured);
            }
        }
    }
    Ok(all)
}

/// Measured cost of some work, as far as it is known.
#[derive(Clone, Copy, Default)]
pub(crate) struct Cost {
    pub(crate) cpu_seconds: Option<f64>,
    pub(crate) helpers_cpu_seconds: Option<f64>,
    pub(crate) rss_mb: Option<f64>,
}

impl Cost {
    /// Measures the cost of some work of processes and their children.
    pub(crate) fn of<T>(
        processes: &[MeasuredProcess],
        helpers: &[MeasuredProcess],
        work: impl FnOnce() -> anyhow::Result<T>,
    ) -> anyhow::Result<(T, Self)> {
        let (cpu, helping) = (cpu_seconds(processes)?, cpu_seconds(helpers)?);
        let done = work()?;
        let mut cost = Self::default();
        if !processes.is_empty() {
            cost.cpu_seconds = Some(cpu_seconds(processes)? - cpu);
            cost.rss_mb = Some(rounded(rss_mb(processes)?));
        }
        if !helpers.is_empty() {
            cost.helpers_cpu_seconds = Some(cpu_seconds(helpers)? - helping);
        }
        Ok((done, cost))
    }

    /// Adds times; memory is the last value.
    pub(crate) fn add(&mut self, other: Self) {
        let sum = |one: Option<f64>, more: Option<f64>| match (one, more) {
            (Some(one), Some(more)) => Some(one + more),
            (one, more) => one.or(more),
        };
        self.cpu_seconds = sum(self.cpu_seconds, other.cpu_seconds);
        self.helpers_cpu_seconds = sum(self.helpers_cpu_seconds, other.helpers_cpu_seconds);
        self.rss_mb = other.rss_mb.or(self.rss_mb);
    }
}

/// Returns the value per thousand answered calls.
pub(crate) fn per_thousand(seconds: Option<f64>, calls: usize, missed: u64) -> Option<f64> {
    let calls = u32::try_from(calls).ok()?;
    let answered = f64::from(calls) - f64::from(u32::try_from(missed).ok()?);
    seconds.filter(|_| answered > 0.0).map(|seconds| rounded(seconds * 1000.0 / answered))
}

/// Returns the quantile, in thousandths.
pub(crate) fn at(sorted: &[u32], per_mille: usize) -> u32 {
    let place = (sorted.len() * per_mille).div_ceil(1000).saturating_sub(1);
    sorted.get(place).copied().unwrap_or_default()
}

pub(crate) fn median(mut values: Vec<i64>) -> Option<i64> {
    values.sort_unstable();
    values.get(values.len() / 2).copied()
}

pub(crate) fn rounded(value: f64) -> f64 {
    (value * 10_000.0).round() / 10_000.0
}

pub(crate) fn micros(time: Duration) -> u32 {
    u32::try_from(time.as_micros()).unwrap_or(u32::MAX)
}
