//! The real project manager in a real installation, from a plain sentence to a delivered change. It runs the example of the
//! requirements undisturbed, and with a process killed at every message. The model's answers are a recording and agents run a
//! script; everything else is real. Needs root.

mod facts;
mod kills;
mod review;
mod script;
mod stage;

use std::{fs, path::PathBuf, time::Instant};

use clap::{Args, ValueEnum};

pub(crate) use self::review::{Review, run as review};
use self::stage::Stage;
use crate::Places;

/// The project manager at work.
#[derive(Args)]
pub(crate) struct Manager {
    #[command(flatten)]
    places: Places,
    /// `cynode-node`.
    #[arg(long)]
    node: PathBuf,
    /// `cynode-runner`.
    #[arg(long)]
    runner: PathBuf,
    /// `cynode-pma`.
    #[arg(long)]
    pma: PathBuf,
    /// The instructions of the project manager and the analyst.
    #[arg(long)]
    instructions: PathBuf,
    /// The sample: a repository, what the model answers, what the agents play, and the recording of the model.
    #[arg(long)]
    sample: PathBuf,
    /// Makes the recording anew: the model answers by what the sample says it does, and what is asked and answered is kept.
    #[arg(long)]
    record: bool,
    /// What the namespace that is made is called; whoever starts this can so find and remove it.
    #[arg(long)]
    tag: String,
    /// Keeps the world's directory when something is wrong.
    #[arg(long)]
    keep: bool,
    /// Fails unless this process sees nothing of a network but loopback.
    #[arg(long)]
    offline: bool,
    /// Where somebody is killed.
    #[arg(long, value_enum, default_value_t = Kills::All)]
    kills: Kills,
    /// Only places whose name holds this.
    #[arg(long)]
    only: Option<String>,
}

/// Where somebody is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Kills {
    /// Nowhere.
    None,
    /// At a few places, of every kind.
    Few,
    /// Before and after every message.
    All,
}

/// Returns whether the example runs as described, and ends the same wherever a process is killed.
pub(crate) async fn run(manager: Manager) -> bool {
    let networks = networks();
    println!("networks before the node has its cable: {}", networks.join(", "));
    if manager.offline && networks != ["lo"] {
        println!(
            "S001-09, X-09, X-10: WRONG S001-09: there is a network; WRONG there is a network (X-09, X-10)"
        );
        return false;
    }
    let begun = Instant::now();
    let mut stage = Stage::new(&manager).await;
    println!("everything runs after {:.1} s\n", begun.elapsed().as_secs_f64());
    let (unbroken, mut good) = script::tell(&stage).await;
    if good && manager.kills != Kills::None {
        let places =
            kills::places(&unbroken.heard, manager.kills == Kills::Few, manager.only.as_deref());
        good = kills::all(&stage, &unbroken, &places).await;
    }
    if manager.record {
        println!("{} answers are recorded", stage.recorded(&manager.sample));
    }
    if good {
        stage.world.keep_not();
    }
    good
}

/// Returns the network interfaces that this process can see.
fn networks() -> Vec<String> {
    let text = fs::read_to_string("/proc/net/dev").unwrap();
    let names = text.lines().filter_map(|line| line.split_once(':'));
    names.map(|(name, _)| name.trim().to_owned()).collect()
}
