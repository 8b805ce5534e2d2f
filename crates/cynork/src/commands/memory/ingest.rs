//! `cynork memory ingest`: sends files in batches, or asks the server to read its repository or a page, and waits for the end.

use std::{path::PathBuf, time::Duration};

use clap::Args;
use cynode_core::memory::ingests::{IngestState, MAX_UPLOAD_FILES};
use cynode_wire::memory::ingests::IngestView;
use serde_json::{Value, json};
use tokio::time::MissedTickBehavior;

use super::MemoryPlace;
use crate::{
    client::ApiRequest,
    context::CliContext,
    failure::{CliError, CliErrorKind, Result},
    input, operations,
    output::{CliOutput, CliOutputFormat, print_stderr_line, render_record},
    walk::{self, WalkedFiles},
};

/// Maximum size of a request's body. The server takes a little more by default.
const MAX_BATCH_BYTES: usize = 700 * 1024;

/// Bytes of a file in a request beside its path and text.
const FILE_OVERHEAD_BYTES: usize = 64;

/// Interval at which the progress is looked at.
const POLL_INTERVAL: Duration = Duration::from_millis(500);

#[derive(Args)]
pub(crate) struct MemoryIngestArgs {
    /// File or directory; `.gitignore` and `.cynodeignore` exclude files.
    #[arg(required_unless_present_any = ["repository", "page"], conflicts_with_all = ["repository", "page"])]
    path: Option<PathBuf>,
    /// The project's repository.
    #[arg(long, conflicts_with = "page")]
    repository: bool,
    /// Commit or branch of the repository; defaults to its default branch.
    #[arg(long, requires = "repository", value_name = "COMMIT")]
    commit: Option<String>,
    /// Page, by its address. The profile must reach its domain.
    #[arg(long, value_name = "URL")]
    page: Option<String>,
    /// Name of the source; defaults to that of the file or directory. What it held before is replaced.
    #[arg(long, requires = "path")]
    name: Option<String>,
    /// Do not wait for the end.
    #[arg(long)]
    detach: bool,
    #[command(flatten)]
    place: MemoryPlace,
}

impl MemoryIngestArgs {
    pub(super) async fn run(self, context: &CliContext) -> Result<()> {
        let begun = match &self.path {
            Some(path) => self.send_files(context, path).await?,
            None => {
                let body = input::without_nulls(json!({
                    "kind": if self.repository { "repository" } else { "page" },
                    "profile": self.place.profile_name(), "commit": self.commit, "url": self.page,
                }));
                self.send(context, &body).await?
            }
        };
        let ended = if self.detach { begun } else { wait_for_end(context, begun).await? };
        show_ingest(context, &ended)?;
        fail_unless_done(&ended)
    }

    async fn send(&self, context: &CliContext, body: &Value) -> Result<Value> {
        let call = self
            .place
            .request(context, operations::CREATE_INGEST)?
            .with_json_body(body)
            .with_idempotency_key(format!("{:032x}", rand::random::<u128>()));
        context.client.send_with_retry_timeout(&call).await
    }

    /// Sends the files of a path in batches. The last one lets the server begin.
    async fn send_files(&self, context: &CliContext, path: &std::path::Path) -> Result<Value> {
        let WalkedFiles { files, skipped } = walk::walk_files(path)?;
        let name = match &self.name {
            Some(name) => name.clone(),
            None => source_name(path),
        };
        let total = files.len();
        let mut upload = Upload { name, skipped, ingest: None, batch: Vec::new(), bytes: 0 };
        for (at, (path, place)) in files.into_iter().enumerate() {
            let Some(text) = walk::read_text(&place)? else {
                upload.skipped = upload.skipped.saturating_add(1);
                continue;
            };
            let file = json!({ "path": path, "text": text });
            let bytes = file.to_string().len().saturating_add(FILE_OVERHEAD_BYTES);
            if bytes > MAX_BATCH_BYTES {
                upload.skipped = upload.skipped.saturating_add(1);
                continue;
            }
            if upload.is_full_with(bytes) {
                self.flush(context, &mut upload, true).await?;
                show_progress(context, &format!("{at} of {total} files are sent"));
            }
            upload.batch.push(file);
            upload.bytes = upload.bytes.saturating_add(bytes);
        }
        if upload.ingest.is_none() && upload.batch.is_empty() {
            let what = format!("{} has no text files", path.display());
            return Err(CliError::new(CliErrorKind::Usage, what)
                .with_fix("look at .gitignore and .cynodeignore, and at the size of the files"));
        }
        self.flush(context, &mut upload, false).await
    }

    /// Sends the batch of an upload.
    async fn flush(&self, context: &CliContext, upload: &mut Upload, more: bool) -> Result<Value> {
        let body = input::without_nulls(json!({
            "kind": "files", "profile": self.place.profile_name(), "name": upload.name, "ingest_id": upload.ingest,
            "files": std::mem::take(&mut upload.batch), "skipped": std::mem::take(&mut upload.skipped), "more": more,
        }));
        upload.bytes = 0;
        let answer = self.send(context, &body).await?;
        upload.ingest = answer["ingest_id"].as_str().map(str::to_owned);
        Ok(answer)
    }
}

/// Files that are sent in batches.
struct Upload {
    name: String,
    skipped: u32,
    ingest: Option<String>,
    batch: Vec<Value>,
    bytes: usize,
}

impl Upload {
    fn is_full_with(&self, bytes: usize) -> bool {
        self.batch.len() >= MAX_UPLOAD_FILES
            || (!self.batch.is_empty() && self.bytes.saturating_add(bytes) > MAX_BATCH_BYTES)
    }
}

/// Returns the name of a source from its path, with the characters that a name may have.
fn source_name(path: &std::path::Path) -> String {
    let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let name = absolute
        .components()
        .next_back()
        .map(|part| part.as_os_str().to_string_lossy().into_owned());
    let plain = |c: char| if c.is_alphanumeric() || matches!(c, '.' | '_' | '-') { c } else { '-' };
    let name: String = name.unwrap_or_default().chars().map(plain).take(100).collect();
    if name.is_empty() || name == "-" { "files".to_owned() } else { name }
}

/// Tells a person how far it is.
fn show_progress(context: &CliContext, sentence: &str) {
    if context.is_interactive() {
        print_stderr_line(sentence);
    }
}

/// Waits until an ingest has ended. Whoever interrupts this leaves it to the server.
async fn wait_for_end(context: &CliContext, mut ingest: Value) -> Result<Value> {
    let id = ingest["ingest_id"].as_str().unwrap_or_default().to_owned();
    let call = ApiRequest::with_path_params(operations::GET_INGEST, [&id]);
    let mut turn = tokio::time::interval(POLL_INTERVAL);
    turn.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut told = String::new();
    loop {
        let state = ingest["state"].as_str().and_then(IngestState::from_name);
        // A state of a newer server is not waited for.
        if state.is_none_or(IngestState::is_final) {
            return Ok(ingest);
        }
        turn.tick().await;
        ingest = context.client.send_with_retry_timeout(&call).await?;
        let sentence = describe_progress(&ingest);
        if sentence != told {
            show_progress(context, &sentence);
            told = sentence;
        }
    }
}

fn describe_progress(ingest: &Value) -> String {
    let count = |field: &str| ingest["progress"][field].as_u64().unwrap_or_default();
    let seen = count("read").saturating_add(count("unchanged")).saturating_add(count("skipped"));
    format!("{seen} of {} files, {} records", count("files"), count("records"))
}

/// Returns the files and records of an ingest for a table.
pub(super) fn ingest_fields(it: &IngestView) -> [String; 2] {
    let progress = &it.progress;
    let files = format!(
        "{} read, {} unchanged, {} skipped, {} removed",
        progress.read, progress.unchanged, progress.skipped, progress.removed
    );
    [files, progress.records.to_string()]
}

/// Shows an ingest; a program gets it on one line, with its trace.
fn show_ingest(context: &CliContext, ingest: &Value) -> Result<()> {
    if context.out.form == CliOutputFormat::Json {
        return CliOutput::print_json_line(ingest);
    }
    let names = |it: &IngestView| vec![it.ingest_id.to_string()];
    context.show_answer(ingest, names, |it: &IngestView, look| {
        let [files, records] = ingest_fields(it);
        let fields = [
            ("ingest", it.ingest_id.to_string()),
            ("source", look.style_bold(&it.source)),
            ("profile", it.profile.to_string()),
            ("commit", it.commit.clone().unwrap_or_default()),
            ("state", look.style_state(it.state.as_str())),
            ("files", files),
            ("records", records),
            ("error", it.error.clone().unwrap_or_default()),
            ("trace", it.trace_id.clone()),
        ];
        render_record(look.paint, &fields)
    })
}

/// Returns an error for an ingest that ended badly.
fn fail_unless_done(ingest: &Value) -> Result<()> {
    let state = ingest["state"].as_str().and_then(IngestState::from_name);
    match state {
        Some(IngestState::Failed | IngestState::Cancelled) => {
            let why = ingest["error"].as_str().unwrap_or("it was cancelled");
            Err(CliError::new(CliErrorKind::Failed, format!("the ingest ended: {why}")))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn a_source_is_named_like_its_directory() {
        assert_eq!(source_name(Path::new("/home/ada/my docs")), "my-docs");
        assert_eq!(source_name(Path::new("docs/")), "docs");
        assert_eq!(source_name(Path::new("/")), "files");
    }

    #[test]
    fn a_batch_is_bounded_in_files_and_bytes() {
        let batch = |files: usize, bytes: usize| Upload {
            name: "docs".to_owned(),
            skipped: 0,
            ingest: None,
            batch: vec![Value::Null; files],
            bytes,
        };
        assert!(!batch(0, 0).is_full_with(MAX_BATCH_BYTES), "one file always fits");
        assert!(batch(1, MAX_BATCH_BYTES).is_full_with(1));
        assert!(batch(MAX_UPLOAD_FILES, 0).is_full_with(1));
        assert!(!batch(MAX_UPLOAD_FILES - 1, 0).is_full_with(1));
    }

    #[test]
    fn an_ingest_that_did_not_end_well_is_a_failure() {
        assert_eq!(fail_unless_done(&json!({ "state": "done" })), Ok(()));
        assert_eq!(fail_unless_done(&json!({ "state": "queued" })), Ok(()));
        let failed = json!({ "state": "failed", "error": "the page has no text" });
        let failure = fail_unless_done(&failed).unwrap_err();
        assert_eq!(failure.kind, CliErrorKind::Failed);
        assert!(failure.detail.contains("the page has no text"));
    }
}
