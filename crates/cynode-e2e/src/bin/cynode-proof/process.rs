//! Cost of processes, from the kernel's accounting.

use std::{collections::HashMap, fs, str::FromStr};

use anyhow::Context;

/// A process, or with a `+` after its number a process and all its descendants.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MeasuredProcess {
    pid: u32,
    descendants: bool,
}

impl FromStr for MeasuredProcess {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<Self> {
        let (pid, descendants) = match text.strip_suffix('+') {
            Some(pid) => (pid, true),
            None => (text, false),
        };
        Ok(Self { pid: pid.parse().context("a process is a number")?, descendants })
    }
}

/// Clock ticks per second of `/proc/PID/stat`: constant 100 in the kernel's interface.
const TICKS: f64 = 100.0;

/// Returns the processor time in seconds.
pub(crate) fn cpu_seconds(processes: &[MeasuredProcess]) -> anyhow::Result<f64> {
    let mut ticks = 0;
    for process in processes {
        let own = Stat::read(process.pid).context("a measured process has ended")?;
        ticks += own.ticks;
        if process.descendants {
            // Ended children are counted in their parent.
            ticks += own.ended_ticks;
            let living = descendants(process.pid)?;
            ticks += living.iter().map(|stat| stat.ticks + stat.ended_ticks).sum::<u64>();
        }
    }
    Ok(f64::from(u32::try_from(ticks)?) / TICKS)
}

/// Returns the resident memory in MB. Memory that descendants share is counted for each.
pub(crate) fn rss_mb(processes: &[MeasuredProcess]) -> anyhow::Result<f64> {
    let mut kilobytes = 0;
    for process in processes {
        kilobytes += rss(process.pid).context("a measured process has ended")?;
        if process.descendants {
            let living = descendants(process.pid)?;
            kilobytes += living.iter().filter_map(|stat| rss(stat.pid)).sum::<u32>();
        }
    }
    Ok(f64::from(kilobytes) / 1000.0)
}

fn rss(pid: u32) -> Option<u32> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    line.split_whitespace().next()?.parse().ok()
}

struct Stat {
    pid: u32,
    parent: u32,
    ticks: u64,
    ended_ticks: u64,
}

impl Stat {
    fn read(pid: u32) -> Option<Self> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // The name is in brackets and may contain anything.
        let fields: Vec<_> = stat.rsplit_once(") ")?.1.split(' ').collect();
        let number = |index: usize| fields.get(index)?.parse::<u64>().ok();
        Some(Self {
            pid,
            parent: u32::try_from(number(1)?).ok()?,
            ticks: number(11)? + number(12)?,
            ended_ticks: number(13)? + number(14)?,
        })
    }
}

fn descendants(root: u32) -> anyhow::Result<Vec<Stat>> {
    let pids =
        fs::read_dir("/proc")?.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    let mut by_parent: HashMap<u32, Vec<Stat>> = HashMap::new();
    for stat in pids.filter_map(Stat::read) {
        by_parent.entry(stat.parent).or_default().push(stat);
    }
    let (mut found, mut open) = (Vec::new(), vec![root]);
    while let Some(parent) = open.pop() {
        let children = by_parent.remove(&parent).unwrap_or_default();
        open.extend(children.iter().map(|child| child.pid));
        found.extend(children);
    }
    Ok(found)
}
