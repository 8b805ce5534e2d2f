//! `cynode backup`: backs up an installation while it runs.

use std::{path::PathBuf, process::ExitCode, time::Duration};

use clap::Args;
use cynode_app::platform::keys::InstallationKeys;
use cynode_db::{DbOptions, platform::backup as records};
use secrecy::ExposeSecret;
use serde_json::json;

use super::{block_on, open_app};
use crate::{
    backup::{
        self, BackupPlan, BackupVerification, DecryptionArgs, EncryptionArgs, InstallationFiles,
        StoredBackup,
    },
    cluster,
    config::{CynodeConfig, LoadedConfig, MasterKeySource},
    installation::InstallationArgs,
    master_key, output,
    telemetry::{self, LogSink},
};

/// Back up an installation of `cynode up`.
#[derive(Args)]
pub(crate) struct BackupArgs {
    /// Directory of the backups; each backup is a directory in it.
    #[arg(value_name = "DIRECTORY")]
    destination: PathBuf,
    #[command(flatten)]
    installation: InstallationArgs,
    #[command(flatten)]
    encryption: EncryptionArgs,
    #[command(flatten)]
    opening: DecryptionArgs,
    /// Restore the new backup into a scratch directory, compare it with its manifest and verify its audit log; needs --identity or
    /// --passphrase-file.
    #[arg(long)]
    verify: bool,
    /// Number of backups of this installation to keep; older ones are deleted.
    #[arg(long, value_name = "NUMBER")]
    keep: Option<usize>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

pub(crate) fn run_backup(args: &BackupArgs, loaded: &mut LoadedConfig) -> anyhow::Result<ExitCode> {
    let _telemetry = telemetry::start_telemetry(&loaded.config.telemetry, &LogSink::Person)?;
    loaded.log_adjustments();
    // First what can be wrong without touching anything.
    let recipients = args.encryption.key_recipients(&args.opening)?;
    anyhow::ensure!(
        !args.verify || args.opening.is_given(),
        "--verify opens the backup: give --identity FILE, or verify it where the key is with `cynode restore --check`"
    );
    let data_dir = args.installation.own_data_dir(&loaded.config)?;
    args.installation.fill_config(&mut loaded.config, false)?;
    let storage = loaded.config.storage.directory.clone();
    let config = &loaded.config;
    let source = InstallationFiles {
        storage: storage.unwrap_or_else(|| data_dir.join("storage")),
        data_dir: data_dir.clone(),
        // Only a key in a file is copied; a service that holds it has backups of its own.
        master_key: config
            .storage
            .master_key_file
            .clone()
            .filter(|_| config.master_key.source == MasterKeySource::File),
        needs_master_key: config.master_key.source == MasterKeySource::File,
        authority: config.tls.directory.clone(),
    };
    let destination = std::path::absolute(&args.destination)?;
    block_on(async {
        let keys = load_keys(config, &data_dir).await?;
        let plan = BackupPlan { source, destination, recipients, keys };
        let completed = backup::create_backup(&plan).await?;
        let (path, manifest) = (&completed.path, &completed.manifest);
        let verification = if args.verify {
            let scratch = backup::create_verification_dir(&data_dir.join("verify"))?;
            let verified = backup::verify_backup(path, &scratch, &args.opening, None, config);
            Some(verified.await?.1)
        } else {
            None
        };
        let is_good = verification.as_ref().is_none_or(|found| found.problems.is_empty());
        let pruned = match args.keep {
            // A backup that cannot be restored replaces none.
            Some(keep) if is_good => {
                backup::prune_backups(&plan.destination, &backup::public_keys_of(&plan.keys), keep)?
            }
            Some(_) | None => Vec::new(),
        };
        // Also those that were verified elsewhere, or completed by a command that died before it could say so.
        record_backups(&data_dir, &plan, &pruned).await?;
        let pruned: Vec<PathBuf> = pruned.into_iter().map(|backup| backup.path).collect();
        if args.json {
            output::print_json(&json!({
                "path": path,
                "backup_id": manifest.backup_id,
                "taken_at": manifest.taken_at.format(&time::format_description::well_known::Rfc3339)?,
                "bytes": manifest.total_bytes(),
                "fenced_ms": u64::try_from(completed.fenced.as_millis()).unwrap_or(u64::MAX),
                "resumed_parts": completed.resumed_parts,
                "verification": verification,
                "pruned": pruned,
            }))?;
        } else {
            output::print_line(&format!(
                "wrote {} ({} bytes)",
                path.display(),
                manifest.total_bytes()
            ));
            output::print_line(&format!("writers waited {} ms", completed.fenced.as_millis()));
            match &verification {
                Some(found) => print_verification(found),
                None => output::print_line(
                    "not verified: run `cynode restore --check --public-key HEX` on a machine that has the key",
                ),
            }
            for path in pruned {
                output::print_line(&format!("deleted {}", path.display()));
            }
        }
        Ok(if is_good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    })
}

/// Loads the keys of the running installation.
async fn load_keys(
    config: &CynodeConfig,
    data_dir: &std::path::Path,
) -> anyhow::Result<InstallationKeys> {
    // A master key that is missing is reported before the database is asked.
    master_key::open_service(config)?;
    let url = cluster::running_cluster_url(data_dir)?;
    let app = open_app(config, &config.database.pool_options_for(&url))?;
    master_key::load_keys(config, &app).await
}

/// Prints what a verification found.
pub(super) fn print_verification(verification: &BackupVerification) {
    for problem in &verification.problems {
        output::print_error(problem);
    }
    match verification.problems.len() {
        0 => output::print_line("verified: it was restored, and everything is there"),
        count => output::print_error(&format!("{count} problems: do not rely on this backup")),
    }
}

/// Tells the running installation, for its admins, which backups there are and which were deleted.
async fn record_backups(
    data_dir: &std::path::Path,
    plan: &BackupPlan,
    deleted: &[StoredBackup],
) -> anyhow::Result<()> {
    let url = cluster::running_cluster_url(data_dir)?;
    let pool = cynode_db::connect_pool(&DbOptions {
        url: url.expose_secret().to_owned(),
        max_connections: 1,
        acquire_timeout: Duration::from_secs(10),
        statement_timeout: Duration::from_secs(20),
    })?;
    let mut conn = cynode_db::acquire_connection(&pool).await?;
    let public_keys = backup::public_keys_of(&plan.keys);
    backup::import_backups(&mut conn, &plan.destination, &public_keys).await?;
    let deleted: Vec<_> = deleted.iter().map(|backup| backup.manifest.backup_id).collect();
    Ok(records::delete_backup_records(&mut conn, &deleted).await?)
}
