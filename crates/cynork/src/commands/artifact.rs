//! `cynork artifact`: files that jobs and agents stored.

use std::{
    fs::File,
    io::Write as _,
    path::{Path, PathBuf},
};

use clap::Subcommand;
use cynode_wire::delivery::artifacts::ArtifactView;
use serde_json::json;

use super::task::TaskSelector;
use crate::{
    client::ApiRequest,
    context::CliContext,
    failure::{CliError, CliErrorKind, Result},
    operations,
};

#[derive(Subcommand)]
pub(crate) enum ArtifactCommand {
    /// List the artifacts of a task, oldest first.
    #[command(after_help = "Example: cynork artifact list last")]
    List(TaskSelector),
    /// Download an artifact into a file that does not exist yet.
    #[command(
        after_help = "Example: cynork artifact get art_0192d5c8b6f07cc1a1a3c2b4d5e6f708 --output report.html"
    )]
    Get {
        /// Artifact, by id.
        artifact: String,
        /// File to write.
        #[arg(long, short, value_name = "FILE")]
        output: PathBuf,
    },
}

impl ArtifactCommand {
    pub(crate) async fn run(self, context: &CliContext) -> Result<()> {
        match self {
            Self::List(named) => {
                let id = named.resolve_task_id(context).await?;
                let call = ApiRequest::with_path_params(operations::LIST_ARTIFACTS, [&id]);
                let heads = ["name", "bytes", "stored", "id"];
                let name = |it: &ArtifactView| it.id.to_string();
                context
                    .show_list(&call, None, name, heads, |it: &ArtifactView, look| {
                        [
                            look.style_bold(&it.name),
                            it.bytes.to_string(),
                            look.format_relative_time(it.created_at),
                            it.id.to_string(),
                        ]
                    })
                    .await
            }
            Self::Get { artifact, output } => {
                let bytes = download_artifact(context, &artifact, &output).await?;
                let path = output.display().to_string();
                let value = json!({ "artifact_id": artifact, "path": path, "bytes": bytes });
                context.out.print_success(&value, &format!("{bytes} bytes are in {path}"))
            }
        }
    }
}

/// Writes the bytes of an artifact into a new file. Returns how many there are. A file that is incomplete is removed.
async fn download_artifact(context: &CliContext, artifact: &str, output: &Path) -> Result<u64> {
    let call = ApiRequest::with_path_params(operations::GET_ARTIFACT, [artifact]);
    let mut response = context.client.open_response(&call, None).await?;
    let failed = |error: std::io::Error| {
        let what = format!("{} cannot be written: {error}", output.display());
        CliError::new(CliErrorKind::Usage, what).with_fix("name another file with --output")
    };
    let mut file = File::create_new(output).map_err(failed)?;
    let mut bytes = 0;
    let outcome = loop {
        match response.chunk().await {
            Ok(Some(piece)) => {
                if let Err(error) = file.write_all(&piece) {
                    break Err(failed(error));
                }
                bytes += piece.len() as u64;
            }
            Ok(None) => break Ok(bytes),
            Err(error) => {
                let what = format!("the download was cut off after {bytes} bytes: {error}");
                break Err(CliError::new(CliErrorKind::Unreachable, what).with_fix("try it again"));
            }
        }
    };
    if outcome.is_err() {
        let _ = std::fs::remove_file(output);
    }
    outcome
}
