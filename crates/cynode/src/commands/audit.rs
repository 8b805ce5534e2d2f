//! `cynode audit`: verifies that the audit records of tool calls and privileged events are complete and unchanged.

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::Context;
use clap::Subcommand;
use cynode_app::tools::audit::{
    self, ChainRegistryHead, KeptHeads, PublicKeyring, VerificationScope,
};
use cynode_core::ids::CallId;

use super::{block_on, open_app};
use crate::{
    config::LoadedConfig,
    installation::InstallationArgs,
    master_key, output,
    telemetry::{self, LogSink},
};

/// Verify the audit log of tool calls and privileged events.
#[derive(Subcommand)]
pub(crate) enum CynodeAuditCommand {
    /// Verify every record, hash chain and signature; exits with 1 if something is wrong.
    Verify {
        /// Verify with the public keys in this file instead of the master key: one key per line in hexadecimal, or what
        /// `cynode audit key --json` prints.
        #[arg(long, value_name = "FILE")]
        public_key: Option<PathBuf>,
        /// Verify an exported bundle (`cynork audit bundle`) instead of the database. Nothing of the installation is needed.
        #[arg(long, value_name = "FILE", requires = "public_key", conflicts_with_all = ["head", "heads"])]
        bundle: Option<PathBuf>,
        /// Accept records that no signed head covers though they are older than five minutes: only their hashes protect them.
        #[arg(long)]
        allow_unproven: bool,
        /// Compare with a head of the list of chains that was kept elsewhere, as `verify` printed it: finds chains that were cut off.
        #[arg(long, value_name = "SIZE:HASH")]
        head: Vec<ChainRegistryHead>,
        /// Compare with the signed heads in this file: the output of `cynork audit head --json`, a bundle, or what a sink received.
        #[arg(long, value_name = "FILE")]
        heads: Vec<PathBuf>,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Print a proof that a call was recorded, which anyone can check with the public key.
    Prove {
        /// Call id, from the header `x-cynode-call-id`.
        call: CallId,
    },
    /// Print the public keys of the signatures, the newest last.
    Key {
        /// Print JSON, with the id and the end of each key.
        #[arg(long)]
        json: bool,
    },
}

pub(crate) fn run_audit(
    command: &CynodeAuditCommand,
    installation: &InstallationArgs,
    loaded: &mut LoadedConfig,
) -> anyhow::Result<ExitCode> {
    let _telemetry = telemetry::start_telemetry(&loaded.config.telemetry, &LogSink::Person)?;
    if let CynodeAuditCommand::Verify {
        public_key: Some(keys),
        bundle: Some(bundle),
        allow_unproven,
        json,
        ..
    } = command
    {
        return verify_bundle(keys, bundle, *allow_unproven, *json);
    }
    installation.fill_config(&mut loaded.config, true)?;
    match command {
        CynodeAuditCommand::Verify { public_key, allow_unproven, head, heads, json, .. } => {
            let given = public_key.as_deref().map(read_public_keys).transpose()?;
            let scope = VerificationScope {
                allow_unproven: *allow_unproven,
                kept: read_kept_heads(head, heads)?,
                ..VerificationScope::default()
            };
            let report = block_on(async {
                let (app, keys) = open_keys(loaded, given).await?;
                Ok(audit::verify_audit_log_within(&app, &keys, &scope).await?)
            })?;
            if *json {
                output::print_line(&serde_json::to_string_pretty(&report)?);
            } else {
                print_audit_report(&report);
            }
            let good = report.problems.is_empty();
            Ok(if good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
        }
        CynodeAuditCommand::Prove { call } => {
            let proofs = block_on(async {
                let (app, keys) = open_keys(loaded, None).await?;
                Ok(audit::prove_call(&app, *call, &keys).await?)
            })?;
            output::print_line(&serde_json::to_string_pretty(&proofs)?);
            Ok(ExitCode::SUCCESS)
        }
        CynodeAuditCommand::Key { json } => {
            let (_, keys) = block_on(open_keys(loaded, None))?;
            if *json {
                output::print_line(&serde_json::to_string_pretty(keys.public_keys())?);
            } else {
                for key in keys.public_keys() {
                    let key = data_encoding::HEXLOWER.encode(key.public_key.as_bytes());
                    output::print_line(&key);
                }
            }
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// Opens the database, and the public keys of the installation unless some were given.
async fn open_keys(
    loaded: &LoadedConfig,
    given: Option<PublicKeyring>,
) -> anyhow::Result<(cynode_app::App, PublicKeyring)> {
    let config = &loaded.config;
    if given.is_none() {
        // A master key that is missing is reported before the database is asked.
        master_key::open_service(config)?;
    }
    let app = open_app(config, &config.database.pool_options()?)?;
    let keys = match given {
        Some(keys) => keys,
        None => master_key::load_keys(config, &app).await?.public_keys(),
    };
    Ok((app, keys))
}

fn read_public_keys(path: &Path) -> anyhow::Result<PublicKeyring> {
    let text =
        std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    PublicKeyring::parse_text(&text).with_context(|| format!("in {}", path.display()))
}

/// Reads the heads that were kept elsewhere.
fn read_kept_heads(heads: &[ChainRegistryHead], files: &[PathBuf]) -> anyhow::Result<KeptHeads> {
    let mut kept = KeptHeads { registry: heads.to_vec(), ..KeptHeads::default() };
    for path in files {
        let text = std::fs::read_to_string(path)
            .with_context(|| format!("cannot read {}", path.display()))?;
        let found =
            KeptHeads::parse_text(&text).with_context(|| format!("in {}", path.display()))?;
        kept.registry.extend(found.registry);
        kept.checkpoints.extend(found.checkpoints);
    }
    Ok(kept)
}

/// Verifies an exported bundle. Neither the database nor the master key is used.
fn verify_bundle(
    keys: &Path,
    bundle: &Path,
    allow_unproven: bool,
    json: bool,
) -> anyhow::Result<ExitCode> {
    let keys = read_public_keys(keys)?;
    let text = std::fs::read_to_string(bundle)
        .with_context(|| format!("cannot read {}", bundle.display()))?;
    let found =
        audit::verify_bundle(&text, &keys).with_context(|| format!("in {}", bundle.display()))?;
    let audit::VerifiedBundle { records, proven, recent, heads, complete, problems } = &found;
    let unproven = found.unproven();
    let good = problems.is_empty() && (unproven == 0 || allow_unproven);
    if json {
        let value = serde_json::json!({
            "records": records, "proven": proven, "recent": recent, "unproven": unproven, "heads": heads,
            "complete": complete, "problems": problems,
        });
        output::print_line(&serde_json::to_string_pretty(&value)?);
    } else {
        output::print_line(&format!(
            "{records} records, {proven} of them proven by {heads} signed heads"
        ));
        if !complete {
            output::print_line("these are not all records that were searched for");
        }
        for problem in problems {
            output::print_error(problem);
        }
        if *recent > 0 {
            output::print_line(&format!(
                "{recent} records are too young for a signed head: export them again in five minutes"
            ));
        }
        if unproven > 0 {
            output::print_error(&format!(
                "no signed head covers {unproven} records: whoever had the bundle may have changed them"
            ));
        }
        if good && proven == records {
            output::print_line("everything in it is genuine");
        } else if good {
            output::print_line(&format!("the {proven} proven records are genuine"));
        }
    }
    Ok(if good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn print_audit_report(report: &audit::Report) {
    let audit::Report { chains, pruned, closed, records, covered, dropped_events, head, problems } =
        report;
    output::print_line(&format!(
        "{records} records in {chains} chains ({closed} closed, {pruned} removed after their time)"
    ));
    output::print_line(&format!("{covered} records are under a signature"));
    if *dropped_events > 0 {
        output::print_line(&format!(
            "{dropped_events} records of events in dropped months have no event to be compared with"
        ));
    }
    output::print_line(&format!(
        "the head of the chain list is {head}: keep it elsewhere to notice a chain that is cut off"
    ));
    for problem in problems {
        output::print_error(problem);
    }
    match problems.len() {
        0 => output::print_line("everything is there and unchanged"),
        many => output::print_error(&format!("{many} problems with the records")),
    }
}
