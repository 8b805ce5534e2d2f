//! `cynork backup`: the backups of the installation. They are made on the server, by `cynode backup`.

use clap::Subcommand;
use cynode_wire::platform::backups::BackupView;

use crate::{client::ApiRequest, context::CliContext, failure::Result, operations};

#[derive(Subcommand)]
pub(crate) enum BackupCommand {
    /// List the backups with their last verification, newest first.
    #[command(after_help = "Example: cynork backup list")]
    List,
}

impl BackupCommand {
    pub(crate) async fn run(self, context: &CliContext) -> Result<()> {
        match self {
            Self::List => list_backups(context).await,
        }
    }
}

async fn list_backups(context: &CliContext) -> Result<()> {
    context
        .show_list(
            &ApiRequest::for_operation(operations::LIST_BACKUPS),
            None,
            |backup: &BackupView| backup.backup_id.clone(),
            ["taken", "MiB", "verified", "result", "opened by", "place"],
            |backup: &BackupView, look| {
                let opened_by = if backup.recipients.is_empty() {
                    "passphrase".to_owned()
                } else {
                    backup.recipients.join(" ")
                };
                [
                    look.format_relative_time(backup.taken_at),
                    (backup.bytes >> 20).max(1).to_string(),
                    look.format_optional_time(backup.verified_at),
                    describe_result(backup),
                    opened_by,
                    backup.location.clone(),
                ]
            },
        )
        .await
}

fn describe_result(backup: &BackupView) -> String {
    match (backup.verified_at, backup.problems.first()) {
        (None, _) => "never restored for a trial".to_owned(),
        (Some(_), None) => "good".to_owned(),
        (Some(_), Some(first)) => {
            format!("{} problems, the first: {first}", backup.problems.len())
        }
    }
}
