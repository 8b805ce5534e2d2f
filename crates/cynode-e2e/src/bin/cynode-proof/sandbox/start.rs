//! Time until the first output of a command, with every limit enabled, compared with the bare programs.

use std::{
    path::PathBuf,
    process::{Command as Program, Stdio},
    time::{Duration, Instant},
};

use clap::Args;
use futures::future::join_all;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};

use super::layout::{BackendKind, NodeLayout, Wish};

#[derive(Args)]
pub(crate) struct Start {
    /// How many of each fast kind.
    #[arg(long, default_value_t = 200)]
    starts: usize,
    /// How many of each kind that needs podman.
    #[arg(long, default_value_t = 50)]
    slow_starts: usize,
    /// How many at the same moment.
    #[arg(long, default_value_t = 100)]
    concurrent: usize,
    /// 95 of 100 starts of bubblewrap's sandbox must be faster, in milliseconds.
    #[arg(long, default_value_t = 50)]
    max_p95: u64,
    /// A bundle for runc that says something.
    #[arg(long)]
    bundle: PathBuf,
    /// An image for podman.
    #[arg(long)]
    image: String,
}

pub(crate) async fn run(start: Start) -> anyhow::Result<bool> {
    let ours = NodeLayout::new(BackendKind::Bubblewrap, None)?;
    let podman = NodeLayout::new(BackendKind::Podman, Some(&start.image))?;
    let bundle = start.bundle.display().to_string();
    let bwrap = "bwrap --unshare-all --die-with-parent --new-session --ro-bind / / --dev /dev --proc /proc --tmpfs /tmp -- /bin/echo ready";
    let plain = "podman --runtime runc --cgroup-manager cgroupfs run --rm --network=none --pull=never \
                 --ulimit nofile=4096:4096 --ulimit nproc=4096:4096";
    let mut all: Vec<(&str, Vec<Duration>)> = Vec::new();
    let (mut bare, mut ready, mut runc) = (Vec::new(), Vec::new(), Vec::new());
    // In turns, so that other load of the machine affects all of them.
    for number in 0..start.starts {
        bare.push(words(bwrap)?);
        ready.push(sandbox(&ours, number).await?);
        runc.push(words(&format!(
            "runc run --bundle {bundle} proof-{}-{number}",
            std::process::id()
        ))?);
    }
    all.push(("bare bwrap, no limits", bare));
    all.push(("cynode bubblewrap, all limits", ready));
    all.push(("bare runc", runc));
    let (mut bare, mut ready) = (Vec::new(), Vec::new());
    for number in 0..start.slow_starts {
        bare.push(words(&format!("{plain} {} /bin/echo ready", start.image))?);
        ready.push(sandbox(&podman, number).await?);
    }
    all.push(("bare podman", bare));
    all.push(("cynode podman, all limits", ready));
    let mut good = true;
    for (name, times) in &mut all {
        times.sort();
        let at = |percent: usize| times[(times.len() * percent / 100).min(times.len() - 1)];
        println!(
            "{name:>30}: {} starts, p50 {:>6.1?}, p95 {:>6.1?}, max {:>6.1?}",
            times.len(),
            at(50),
            at(95),
            at(100)
        );
        if *name == "cynode bubblewrap, all limits" {
            good &= at(95) < Duration::from_millis(start.max_p95);
        }
    }
    good &= at_once(&ours, start.concurrent).await?;
    ours.backend.cleanup_orphans(&[]).await;
    let left = ours.remaining_cgroups().len() + podman.remaining_cgroups().len();
    println!("left of it all: {left} cgroups");
    Ok(good && left == 0)
}

/// Measures the time from the request to the first output of the command.
async fn sandbox(place: &NodeLayout, number: usize) -> anyhow::Result<Duration> {
    let mut job = Wish::new(&format!("start-{number}"), &["/bin/echo", "ready"]);
    job.binds = vec![place.folder("work", "/work", true)];
    job.job = "start".into();
    job.id = format!("run-{number}");
    let began = Instant::now();
    let mut running = job.start(place).await?;
    let mut line = String::new();
    BufReader::new(running.stdout.take().unwrap()).read_line(&mut line).await?;
    let took = began.elapsed();
    anyhow::ensure!(line == "ready\n", "it said {line:?}");
    running.wait_for_exit().await;
    Ok(took)
}

/// Measures the same for a program without our sandbox.
fn words(line: &str) -> anyhow::Result<Duration> {
    use std::io::BufRead;
    let mut words = line.split_whitespace();
    let began = Instant::now();
    let mut child = Program::new(words.next().unwrap_or_default())
        .args(words)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()?;
    let mut said = String::new();
    std::io::BufReader::new(child.stdout.take().unwrap()).read_line(&mut said)?;
    let took = began.elapsed();
    child.wait()?;
    anyhow::ensure!(said == "ready\n", "{line} said {said:?}");
    Ok(took)
}

/// Starts many at the same moment: all must write output, run together, answer, and end without an error.
async fn at_once(place: &NodeLayout, many: usize) -> anyhow::Result<bool> {
    let began = Instant::now();
    let jobs: Vec<Wish> = (0..many)
        .map(|number| {
            let mut job = Wish::new(
                &format!("many-{number}"),
                &["/bin/sh", "-c", "echo ready; read -r word; echo $word"],
            );
            job.binds = vec![place.folder(&format!("many-{number}"), "/work", true)];
            job
        })
        .collect();
    let started = join_all(jobs.iter().map(|job| job.start(place))).await;
    let mut runs = Vec::new();
    for running in started {
        let mut running = running?;
        let mut stdout = BufReader::new(running.stdout.take().unwrap());
        let mut line = String::new();
        stdout.read_line(&mut line).await?;
        anyhow::ensure!(line == "ready\n", "it said {line:?}");
        runs.push((running, stdout));
    }
    let up = began.elapsed();
    let mut well = 0;
    for (number, (mut running, mut stdout)) in runs.into_iter().enumerate() {
        let mut stdin = running.stdin.take().unwrap();
        stdin.write_all(format!("word-{number}\n").as_bytes()).await?;
        let mut line = String::new();
        stdout.read_line(&mut line).await?;
        let ended = running.wait_for_exit().await;
        if line == format!("word-{number}\n") && ended.exit_code == Some(0) {
            well += 1;
        }
    }
    println!(
        "{well} of {many} at the same moment ended well; all were up after {up:.1?}, all gone after {:.1?}",
        began.elapsed()
    );
    Ok(well == many)
}
