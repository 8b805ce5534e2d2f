//! `cynode restore`: restores a backup into an empty data directory, or checks that it can be restored.

use std::{path::PathBuf, process::ExitCode};

use clap::Args;
use cynode_db::platform::backup::RestoreSummary;
use time::{OffsetDateTime, format_description::well_known::Rfc3339};

use super::{backup::print_verification, block_on};
use crate::{
    backup::{self, DecryptionArgs, RestorePlan},
    config::CynodeConfig,
    installation, output,
    telemetry::{self, LogSink},
};

/// Restore a backup.
#[derive(Args)]
pub(crate) struct RestoreArgs {
    /// The backup: a directory that `cynode backup` wrote.
    backup: PathBuf,
    /// Data directory to restore into, which must be empty; defaults to that of `cynode up`.
    #[arg(long, value_name = "DIRECTORY")]
    data_dir: Option<PathBuf>,
    #[command(flatten)]
    opening: DecryptionArgs,
    /// Public key of the installation, as `cynode audit key` printed it: a backup of another one is refused.
    #[arg(long, value_name = "HEX", required_unless_present = "any_origin")]
    public_key: Option<String>,
    /// Accept a backup whatever installation signed it. Its database runs commands that its settings name: only for a place that nobody
    /// else can write to.
    #[arg(long, conflicts_with = "public_key")]
    any_origin: bool,
    /// Directory of archived segments (`database.wal_archive`): restore the database to a later moment than that of the backup.
    #[arg(long, value_name = "DIRECTORY")]
    wal_archive: Option<PathBuf>,
    /// Time at which the database is restored, such as 2026-11-18T09:00:00Z; without it, the end of the archive.
    #[arg(long, value_name = "TIME", requires = "wal_archive", value_parser = parse_time)]
    until: Option<OffsetDateTime>,
    /// Restore into a scratch directory below --data-dir, compare with the manifest, verify the audit log, and delete it again.
    #[arg(long, conflicts_with_all = ["wal_archive", "until"])]
    check: bool,
}

/// Reads a time of RFC 3339.
pub(super) fn parse_time(text: &str) -> Result<OffsetDateTime, String> {
    OffsetDateTime::parse(text, &Rfc3339)
        .map_err(|_| "a time is written as 2026-11-18T09:00:00Z".to_owned())
}

pub(crate) fn run_restore(args: &RestoreArgs, config: &CynodeConfig) -> anyhow::Result<ExitCode> {
    let _telemetry = telemetry::start_telemetry(&config.telemetry, &LogSink::Person)?;
    let data_dir = match &args.data_dir {
        Some(dir) => std::path::absolute(dir)?,
        None => installation::default_data_dir()?,
    };
    let backup = std::path::absolute(&args.backup)?;
    let wal_archive = args.wal_archive.as_deref().map(std::path::absolute).transpose()?;
    let public_key = args.public_key.as_deref();
    if args.check {
        let scratch = backup::create_verification_dir(&data_dir.join("verify"))?;
        let verified = backup::verify_backup(&backup, &scratch, &args.opening, public_key, config);
        let (_, verification) = block_on(verified)?;
        print_verification(&verification);
        let is_good = verification.problems.is_empty();
        return Ok(if is_good { ExitCode::SUCCESS } else { ExitCode::FAILURE });
    }
    let plan = RestorePlan {
        backup,
        data_dir: data_dir.clone(),
        opening: &args.opening,
        public_key,
        wal_archive: wal_archive.as_deref(),
        until: args.until,
    };
    let (manifest, summary) = block_on(backup::restore_backup(&plan))?;
    if args.any_origin {
        output::print_line("with --any-origin it was not checked whose backup this is");
    }
    let taken_at = manifest.taken_at.format(&Rfc3339)?;
    output::print_line(&format!("restored the backup of {taken_at} into {}", data_dir.display()));
    if let Some(summary) = summary {
        print_summary(&summary);
    }
    output::print_line(&format!("start it with `cynode up --data-dir {}`", data_dir.display()));
    Ok(ExitCode::SUCCESS)
}

/// Prints what a restored installation put aside, and what a person must look at.
pub(super) fn print_summary(summary: &RestoreSummary) {
    output::print_line(&format!(
        "epoch {}: leases and {} sessions ended; work that the lost installation did later is looked up before it is repeated",
        summary.epoch, summary.ended_sessions
    ));
    output::print_line(&format!(
        "{} notifications may have been delivered before and are held: `cynork notification list` shows them",
        summary.held_notifications
    ));
    output::print_line(
        "API keys, tokens of directories and certificates that were revoked after the backup are valid again, and so are accounts that were disabled: take them back",
    );
}
