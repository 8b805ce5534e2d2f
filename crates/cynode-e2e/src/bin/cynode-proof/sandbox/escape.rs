//! The escape attempts, first outside as a control, then inside.

use std::{
    collections::BTreeMap,
    fs,
    os::unix::net::UnixListener,
    path::{Path, PathBuf},
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use clap::Args;
use cynode_sandbox::SocketForward;
use serde::Deserialize;
use serde_json::json;

use super::{
    bombs,
    layout::{BackendKind, NodeLayout, Wish, processes_with},
    targets::{Targets, unix},
};

/// Minimum number of attempts, and of attempts that succeed outside; fewer prove too little.
const ENOUGH: usize = 60;

#[derive(Args)]
pub(crate) struct Escape {
    #[arg(long)]
    backend: BackendKind,
    /// The image for podman.
    #[arg(long)]
    image: Option<String>,
    /// The program of attempts.
    #[arg(long)]
    script: PathBuf,
}

/// Output of an attempt.
#[derive(Deserialize)]
struct EscapeLine {
    attempt: String,
    outcome: String,
    how: String,
}

pub(super) type Attempts = BTreeMap<String, (String, String)>;

pub(super) fn read(text: &str) -> anyhow::Result<Attempts> {
    let lines = text.lines().map(serde_json::from_str::<EscapeLine>);
    Ok(lines
        .map(|line| line.map(|line| (line.attempt, (line.outcome, line.how))))
        .collect::<Result<_, _>>()?)
}

pub(crate) async fn run(escape: Escape) -> anyhow::Result<bool> {
    let script = escape.script.canonicalize()?;
    let place = NodeLayout::new(escape.backend, escape.image.as_deref())?;
    println!("{}", place.backend.probe_backend().await?);
    let health = Health::watch();
    let targets = Targets::new(&place, &script).await?;

    let control = outside(&place, &targets, &script)?;
    let inside = inside(&place, &targets, &script).await?;
    let mut good = compare(&control, &inside);

    let (bombs, failed) = bombs::run(&place, &targets.mark).await?;
    good &= failed == 0;
    println!("{} attempts from inside and {bombs} bombs", inside.len());
    good &= inside.len() + bombs >= ENOUGH;

    let mark = targets.mark.clone();
    targets.unharmed(&place).await?;
    good &= health.print_report();
    // A fresh job on the same node, after all attempts.
    let began = Instant::now();
    let fresh = Wish::new("fresh", &["/bin/sh", "-c", "echo fine"]).done(&place).await?;
    println!(
        "a fresh sandbox afterwards: {:?} in {:?}",
        fresh.stdout.to_lossy_text().trim(),
        began.elapsed()
    );
    good &= fresh.stdout.to_lossy_text() == "fine\n";
    place.backend.cleanup_orphans(&[]).await;
    let (left, processes) = (place.remaining_cgroups(), processes_with(&mark));
    println!("left of it all: {} cgroups, {} processes", left.len(), processes.len());
    Ok(good && left.is_empty() && processes.is_empty())
}

/// Runs the same attempts without a sandbox, as root. They can only harm copies: mounts and the host name.
pub(super) fn outside(
    place: &NodeLayout,
    targets: &Targets,
    script: &Path,
) -> anyhow::Result<Attempts> {
    let workspace = place.folder("control", "/", false).host;
    fs::write(workspace.join("given"), "given")?;
    let facts = targets.facts_for(
        true,
        &json!({"workspace": workspace, "readonly": workspace, "beside_system": "/usr/bin", "search": place.path(""),
               "own_socket": place.path("host.sock")}),
    );
    let path = place.path("control.json");
    fs::write(&path, facts.to_string())?;
    let said = Command::new("unshare")
        .args(["--mount", "--uts", "--propagation", "private", "/usr/bin/python3"])
        .args([script, &path])
        .output()?;
    anyhow::ensure!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
    read(&String::from_utf8(said.stdout)?)
}

async fn inside(place: &NodeLayout, targets: &Targets, script: &Path) -> anyhow::Result<Attempts> {
    let tools = place.folder("tools", "/opt/tools", false);
    fs::copy(script, tools.host.join("escape.py"))?;
    let facts = targets.facts_for(
        false,
        &json!({"workspace": "/work", "readonly": "/given", "beside_system": "/work", "own_socket": "/run/cynode/llm.sock"}),
    );
    fs::write(tools.host.join("facts.json"), facts.to_string())?;
    let given = place.folder("given", "/given", false);
    fs::write(given.host.join("given"), "given")?;
    let socket = place.path("own.sock");
    unix(UnixListener::bind(&socket)?, "this job's own".into());
    let mut job =
        Wish::new("attacker", &["python3", "/opt/tools/escape.py", "/opt/tools/facts.json"]);
    job.binds = vec![tools, given, place.folder("attacker", "/work", true)];
    job.sockets = vec![SocketForward { host: socket, port: 4001, name: "llm".into() }];
    let done = job.done(place).await?;
    anyhow::ensure!(
        done.ended.exit_code == Some(0),
        "{:?} {}",
        done.ended,
        done.stderr.to_lossy_text()
    );
    read(&done.stdout.to_lossy_text())
}

/// Prints the outcome of each attempt. Returns whether none succeeded inside and enough did outside.
pub(super) fn compare(control: &Attempts, inside: &Attempts) -> bool {
    let (mut good, mut shown) = (true, 0);
    for (name, (outcome, how)) in inside {
        let (outside, said) =
            control.get(name).map_or(("missing", ""), |(outcome, how)| (outcome, how));
        if outside == "succeeded" {
            shown += 1;
        } else {
            println!("no control here: {name}: {outside} ({said})");
        }
        if outcome != "refused" {
            println!("NOT REFUSED: {name}: {outcome} ({how})");
            good = false;
        }
    }
    println!("{} attempts refused inside, {shown} of them shown to succeed outside", inside.len());
    good && shown >= ENOUGH
}

/// Health of this process, which stands for a node.
pub(super) struct Health {
    over: Arc<AtomicBool>,
    longest: Arc<AtomicU64>,
}

/// A node that blocks for longer than this would lose its heartbeat.
const LONGEST: Duration = Duration::from_secs(1);
/// Maximum memory of the node, whatever a job writes.
const MAX_NODE_MEMORY_BYTES: u64 = 200 << 20;

impl Health {
    pub(super) fn watch() -> Self {
        let (over, longest) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (done, most) = (Arc::clone(&over), Arc::clone(&longest));
        thread::spawn(move || {
            let mut last = Instant::now();
            while !done.load(Ordering::Relaxed) {
                thread::park_timeout(Duration::from_millis(10));
                let gap = u64::try_from(last.elapsed().as_millis()).unwrap_or(u64::MAX);
                most.fetch_max(gap, Ordering::Relaxed);
                last = Instant::now();
            }
        });
        Self { over, longest }
    }

    pub(super) fn print_report(&self) -> bool {
        self.over.store(true, Ordering::Relaxed);
        let longest = Duration::from_millis(self.longest.load(Ordering::Relaxed));
        let peak = peak_memory();
        println!("the node's longest pause was {longest:?}, its peak of memory {} MiB", peak >> 20);
        longest < LONGEST && peak < MAX_NODE_MEMORY_BYTES
    }
}

fn peak_memory() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let number: Option<u64> = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
    number.unwrap_or(0) << 10
}
