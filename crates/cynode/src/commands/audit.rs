//! `cynode audit`: whether the records of tool calls are all there and unchanged.

use std::process::ExitCode;

use clap::Subcommand;
use cynode_app::audit;
use cynode_core::ids::CallId;

use super::{app, block_on};
use crate::{
    config::Loaded,
    gate,
    installation::Installation,
    output,
    telemetry::{self, Sink},
};

/// Records of tool calls.
#[derive(Subcommand)]
pub(crate) enum Command {
    /// Checks every record, chain and signature. Ends with 1 when something is wrong.
    Verify {
        /// Prints JSON.
        #[arg(long)]
        json: bool,
    },
    /// Prints a proof, for somebody who has only our public key, that a call was recorded.
    Prove {
        /// The call, as the header `x-cynode-call-id` named it.
        call: CallId,
    },
    /// Prints the public key that signatures are checked with.
    Key,
}

pub(crate) fn run(
    command: &Command,
    installation: &Installation,
    loaded: &mut Loaded,
) -> anyhow::Result<ExitCode> {
    let _telemetry = telemetry::start(&loaded.config.telemetry, &Sink::Person)?;
    let asks_database = !matches!(command, Command::Key);
    // A master key that is named is enough to tell the public one.
    if asks_database || !gate::names_key(&loaded.config) {
        installation.fill(&mut loaded.config, asks_database)?;
    }
    let key = gate::keys(&loaded.config)?.verifying();
    let over = || app(&loaded.config, &loaded.config.database.options()?);
    match command {
        Command::Verify { json } => {
            let report = block_on(async { Ok(audit::verify(&over()?, &key).await?) })?;
            if *json {
                output::say(&serde_json::to_string_pretty(&report)?);
            } else {
                tell(&report);
            }
            let good = report.problems.is_empty();
            Ok(if good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
        }
        Command::Prove { call } => {
            let proofs = block_on(async { Ok(audit::prove(&over()?, *call, &key).await?) })?;
            output::say(&serde_json::to_string_pretty(&proofs)?);
            Ok(ExitCode::SUCCESS)
        }
        Command::Key => {
            output::say(&data_encoding::HEXLOWER.encode(key.as_bytes()));
            Ok(ExitCode::SUCCESS)
        }
    }
}

fn tell(report: &audit::Report) {
    let audit::Report { chains, pruned, closed, records, covered, tip, problems } = report;
    output::say(&format!(
        "{records} records in {chains} chains ({closed} closed, {pruned} removed after their time)"
    ));
    output::say(&format!("{covered} records are under a signature"));
    output::say(&format!(
        "the end of the list is {tip}: keep it elsewhere to notice a chain that is cut off"
    ));
    for problem in problems {
        output::complain(problem);
    }
    match problems.len() {
        0 => output::say("everything is there and unchanged"),
        many => output::complain(&format!("{many} problems: records were changed or removed")),
    }
}
