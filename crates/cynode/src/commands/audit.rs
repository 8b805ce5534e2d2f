//! `cynode audit`: verifies that the audit records of tool calls are complete and unchanged.

use std::process::ExitCode;

use clap::Subcommand;
use cynode_app::tools::audit;
use cynode_core::ids::CallId;

use super::{block_on, open_app};
use crate::{
    config::LoadedConfig,
    gateway,
    installation::InstallationArgs,
    output,
    telemetry::{self, LogSink},
};

/// Verify the audit log of tool calls.
#[derive(Subcommand)]
pub(crate) enum CynodeAuditCommand {
    /// Verify every record, hash chain and signature; exits with 1 if something is wrong.
    Verify {
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Print a proof that a call was recorded, which anyone can check with the public key.
    Prove {
        /// Call id, from the header `x-cynode-call-id`.
        call: CallId,
    },
    /// Print the public key of the signatures.
    Key,
}

pub(crate) fn run_audit(
    command: &CynodeAuditCommand,
    installation: &InstallationArgs,
    loaded: &mut LoadedConfig,
) -> anyhow::Result<ExitCode> {
    let _telemetry = telemetry::start_telemetry(&loaded.config.telemetry, &LogSink::Person)?;
    let asks_database = !matches!(command, CynodeAuditCommand::Key);
    // A configured master key is enough to print the public key.
    if asks_database || !gateway::has_key_location(&loaded.config) {
        installation.fill_config(&mut loaded.config, asks_database)?;
    }
    let key = gateway::load_keys(&loaded.config)?.verifying_key();
    let over = || open_app(&loaded.config, &loaded.config.database.pool_options()?);
    match command {
        CynodeAuditCommand::Verify { json } => {
            let report = block_on(async { Ok(audit::verify_audit_log(&over()?, &key).await?) })?;
            if *json {
                output::print_line(&serde_json::to_string_pretty(&report)?);
            } else {
                print_audit_report(&report);
            }
            let good = report.problems.is_empty();
            Ok(if good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
        }
        CynodeAuditCommand::Prove { call } => {
            let proofs = block_on(async { Ok(audit::prove_call(&over()?, *call, &key).await?) })?;
            output::print_line(&serde_json::to_string_pretty(&proofs)?);
            Ok(ExitCode::SUCCESS)
        }
        CynodeAuditCommand::Key => {
            output::print_line(&data_encoding::HEXLOWER.encode(key.as_bytes()));
            Ok(ExitCode::SUCCESS)
        }
    }
}

fn print_audit_report(report: &audit::Report) {
    let audit::Report { chains, pruned, closed, records, covered, head, problems } = report;
    output::print_line(&format!(
        "{records} records in {chains} chains ({closed} closed, {pruned} removed after their time)"
    ));
    output::print_line(&format!("{covered} records are under a signature"));
    output::print_line(&format!(
        "the head of the chain list is {head}: keep it elsewhere to notice a chain that is cut off"
    ));
    for problem in problems {
        output::print_error(problem);
    }
    match problems.len() {
        0 => output::print_line("everything is there and unchanged"),
        many => output::print_error(&format!("{many} problems: records were changed or removed")),
    }
}
