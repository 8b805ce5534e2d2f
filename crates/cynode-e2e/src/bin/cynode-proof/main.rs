//! The program behind the proofs in `prove/`: load, fault injection, cost of a step, and the test doubles that they need.
//! Loopback only; it kills only its own processes.

#![expect(clippy::print_stdout, reason = "its output is its purpose")]
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a proof that cannot be set up has failed"
)]

mod agents;
mod bare;
mod chaos;
mod false_claims;
mod gateway;
mod idle_nodes;
mod load;
mod manager;
mod memory;
mod models;
mod nodes;
mod notify;
mod pace;
mod packages;
mod parallel;
mod process;
mod profiles;
mod real;
mod sandbox;
mod steps;
mod whole;

use std::{path::PathBuf, process::ExitCode, sync::Arc};

use clap::{Args, Parser, Subcommand};
use cynode_e2e::{
    ScriptedBackend, Scripts,
    world::{Programs, WorldSetup},
};

#[derive(Parser)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Bounded load on a server of our own.
    #[command(subcommand)]
    Load(load::LoadCommand),
    /// Breaks an installation of its own and compares what came of it with an unbroken run.
    Chaos(chaos::Chaos),
    /// Load on the gateway, and what its records say afterwards.
    #[command(subcommand)]
    Gateway(gateway::GatewayCommand),
    /// Load on the way to models, and what its ledger says meanwhile and afterwards.
    #[command(subcommand)]
    Models(models::ModelsCommand),
    /// Real coding agents on a real node.
    Agents(agents::Agents),
    /// Nodes that have nothing to do, until it is killed.
    IdleNodes(idle_nodes::IdleNodes),
    /// Workers that say that they are done and are not.
    FalseClaims(false_claims::FalseClaims),
    /// The real project manager, from a plain sentence to a delivered change.
    Manager(manager::Manager),
    /// Load on the search of memory, and what it must never show.
    #[command(subcommand)]
    Memory(memory::MemoryCommand),
    /// Every path of the review loop.
    Review(manager::Review),
    /// Real nodes, and what becomes of their jobs.
    Nodes(nodes::Nodes),
    /// People who are told, and who answer by a link.
    Notify(notify::Notify),
    /// The package proxy of a node by itself.
    #[command(subcommand)]
    Packages(packages::PackagesCommand),
    /// A plan whose units can be done side by side, done so and one at a time.
    Parallel(parallel::Parallel),
    /// What a profile permits, as the crates of the product decide it.
    #[command(subcommand)]
    Profiles(profiles::ProfilesCommand),
    /// A real coding agent with a real model, and whether what it delivers holds.
    Real(real::Real),
    /// Sandboxes: what gets out of them, and how fast they start.
    #[command(subcommand)]
    Sandbox(sandbox::SandboxCommand),
    /// Measures what a durable step costs.
    Steps(steps::Steps),
    /// The runner with agents that play a script.
    Runner {
        /// The file of scripts.
        #[arg(long)]
        scripts: PathBuf,
        #[command(flatten)]
        runner: cynode_runner::cli::RunnerCli,
    },
    /// Seven steps on the bare engine, without and with one commit each.
    Bare(bare::BareSteps),
}

/// Where the programs are.
#[derive(Args)]
struct Places {
    #[arg(long)]
    cynode: PathBuf,
    #[arg(long)]
    restate: PathBuf,
    #[arg(long)]
    postgres: PathBuf,
    #[arg(long)]
    scripts: PathBuf,
}

impl Places {
    fn setup(&self, lease_seconds: u32, proxied: bool) -> WorldSetup {
        let programs = Programs {
            cynode: self.cynode.clone(),
            runner: vec![std::env::current_exe().unwrap().into(), "runner".into()],
            restate: self.restate.clone(),
            postgres: self.postgres.clone(),
        };
        let scripts = Some(self.scripts.clone());
        let settings = Vec::new();
        WorldSetup { programs, scripts, manager: None, lease_seconds, proxied, settings }
    }
}

fn main() -> anyhow::Result<ExitCode> {
    let command = match Cli::parse().command {
        Command::Runner { scripts, runner } => {
            runner.serve_until_signal(Arc::new(ScriptedBackend(Scripts::read(&scripts))))?;
            return Ok(ExitCode::SUCCESS);
        }
        command => command,
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let good = runtime.block_on(async {
        anyhow::Ok(match command {
            Command::Load(command) => load::run(command).await.map(|()| true)?,
            Command::Chaos(chaos) => chaos::run(chaos).await,
            Command::Gateway(command) => gateway::run(command).await?,
            Command::Models(command) => models::run(command).await?,
            Command::Agents(agents) => Box::pin(agents::run(agents)).await,
            Command::IdleNodes(nodes) => idle_nodes::run(nodes).await?,
            Command::Review(review) => Box::pin(manager::review(review)).await,
            Command::FalseClaims(claims) => Box::pin(false_claims::run(claims)).await,
            Command::Manager(manager) => Box::pin(manager::run(manager)).await,
            Command::Memory(command) => Box::pin(memory::run(command)).await?,
            Command::Nodes(nodes) => nodes::run(nodes).await,
            Command::Notify(notify) => Box::pin(notify::run(notify)).await,
            Command::Packages(command) => Box::pin(packages::run(command)).await?,
            Command::Parallel(parallel) => Box::pin(parallel::run(parallel)).await,
            Command::Profiles(command) => profiles::run(&command)?,
            Command::Real(real) => Box::pin(real::run(real)).await,
            Command::Sandbox(command) => sandbox::run(command).await?,
            Command::Steps(steps) => steps::run(steps).await,
            Command::Bare(served) => {
                bare::run(served).await;
                true
            }
            Command::Runner { .. } => false,
        })
    })?;
    Ok(if good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
