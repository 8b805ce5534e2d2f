//! Load on the path to models, and checks of its ledger and records, for the proofs in `prove/`. Loopback only.

mod latency;
mod ledger;
mod plant;
mod search;
mod storm;
mod upstream;
mod wire;

use clap::Subcommand;

/// Load on the way to models, and the checks of what it left behind.
#[derive(Subcommand)]
pub(crate) enum ModelsCommand {
    /// A very fast provider, to put behind a gateway.
    Upstream(upstream::Upstream),
    /// Streamed questions at constant rates to several targets in turn, and what each adds to the target `direct`.
    Latency(latency::ModelLatency),
    /// Parallel streams through a gateway that somebody kills meanwhile, with a log of what became of each.
    Storm(storm::ModelStorm),
    /// Looks at all ceilings all the time, and in the end compares them with the calls.
    Ledger(ledger::Ledger),
    /// Asks with secrets in every place, and looks at what the provider gets.
    Plant(plant::Plant),
    /// Looks for pieces of planted secrets in files.
    Search(search::Search),
}

/// Runs the command. Returns whether the check passed.
pub(crate) async fn run(command: ModelsCommand) -> anyhow::Result<bool> {
    match command {
        ModelsCommand::Upstream(upstream) => upstream::run(upstream).await.map(|()| true),
        ModelsCommand::Latency(latency) => {
            tokio::task::spawn_blocking(move || latency::run(&latency)).await?
        }
        ModelsCommand::Storm(storm) => storm::run(storm).await,
        ModelsCommand::Ledger(ledger) => ledger::run(ledger).await,
        ModelsCommand::Plant(plant) => plant::run(plant).await,
        ModelsCommand::Search(search) => search::run(&search),
    }
}
