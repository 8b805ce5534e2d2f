//! Batches of files: chunked and prepared outside of a transaction, stored in one.

use cynode_core::{
    memory::{
        MAX_CONTENT_BYTES, MAX_TITLE_CHARS, MemoryAuthor, MemoryKind, MemoryScope, MemoryText,
        ingests::IngestProgress, is_hidden_character, remove_hidden,
    },
    paging::PageRequest,
};
use cynode_db::memory::{
    ingests::{self, ClaimedIngest, ReadSource},
    partitions,
};
use cynode_memory::chunks::{Chunk, ChunkKind, chunk_file, chunk_text};

use crate::{
    App, Ctx, Error, OperationRequest,
    memory::{
        MemoryOrigin,
        records::{
            PreparedMemory, find_redactor, prepare_records, redact_whole, remove_paths,
            store_records,
        },
    },
};

/// Lease of a worker. Every batch extends it.
pub(super) const INGEST_LEASE_MS: i64 = 120_000;

/// Maximum number of records that are stored at once.
const MAX_STORED_RECORDS: usize = 500;

/// Maximum number of records of one file. What comes after them is left out.
const MAX_FILE_RECORDS: usize = 2000;

/// Message of a worker that was superseded.
const SHUT_OUT_MESSAGE: &str = "the ingest was cancelled, or another worker has it";

/// A file as it was read. Without a text it is passed over.
#[derive(Clone, Debug)]
pub(super) struct FileText {
    pub(super) path: String,
    pub(super) digest: [u8; 32],
    pub(super) text: Option<String>,
    /// Address of a page.
    pub(super) url: Option<String>,
    /// Title of a page.
    pub(super) title: Option<String>,
}

/// A file whose records can be stored.
#[derive(Debug)]
pub(super) struct PreparedFile {
    path: String,
    digest: [u8; 32],
    records: Vec<PreparedMemory>,
}

/// What one transaction stores.
#[derive(Debug, Default)]
pub(super) struct FileBatch {
    /// Files that were read.
    pub(super) read: Vec<PreparedFile>,
    /// Files that are as they were.
    pub(super) unchanged: Vec<String>,
    /// Files that wait no more.
    pub(super) staged: Vec<String>,
}

/// Returns the scope of the records of an ingest.
pub(super) fn scope_of(claim: &ClaimedIngest) -> MemoryScope {
    MemoryScope { project: claim.ingest.project, profile: claim.ingest.profile.clone() }
}

/// Begins a transaction of a worker, under the trace of the request.
pub(super) async fn begin_claimed(app: &App, claim: &ClaimedIngest) -> Result<Ctx, Error> {
    let trace = claim.ingest.trace;
    app.begin_transaction(&OperationRequest { caller: None, trace, attempt: None }).await
}

/// Rejects a worker that was superseded, and extends its lease. It locks the ingest, so it comes before everything else of a transaction.
pub(super) async fn require_claim(ctx: &mut Ctx, claim: &ClaimedIngest) -> Result<(), Error> {
    add_progress(ctx, claim, IngestProgress::default()).await
}

pub(super) async fn add_progress(
    ctx: &mut Ctx,
    claim: &ClaimedIngest,
    step: IngestProgress,
) -> Result<(), Error> {
    let holds = ingests::record_progress(ctx.conn(), claim, step, INGEST_LEASE_MS).await?;
    if holds { Ok(()) } else { Err(Error::Fenced(SHUT_OUT_MESSAGE)) }
}

/// Chunks a file and prepares its records. A file that gives no record is passed over.
///
/// Secrets are removed from the whole text before it is cut: a private key that is longer than a chunk would be found in none. A record
/// whose path or source holds a secret is left out, since the file could not be found by them again.
pub(super) async fn prepare_file(
    app: &App,
    claim: &ClaimedIngest,
    file: FileText,
) -> Result<PreparedFile, Error> {
    let FileText { path, digest, text, url, title } = file;
    let Some(text) = text else {
        return Ok(PreparedFile { path, digest, records: Vec::new() });
    };
    let chunked_path = path.clone();
    let redactor = find_redactor(app).await?;
    // Parsing source takes time that other requests of this thread would wait for.
    let chunks = tokio::task::spawn_blocking(move || {
        let text = redact_whole(redactor.as_deref(), remove_hidden(&text));
        match title {
            Some(title) => chunk_text(&title, &text),
            None => chunk_file(&chunked_path, &text),
        }
    });
    let chunks = chunks.await.map_err(|error| Error::Internal(error.into()))?;
    let ingest = &claim.ingest;
    let records: Vec<_> = chunks
        .into_iter()
        .flat_map(|chunk| {
            to_records(&chunk, &path, &ingest.source, url.as_deref(), ingest.commit.as_deref())
        })
        // A chunk that cannot be a record must not take the others of its file along.
        .filter(|(_, text)| text.clone().without_hidden().validate().is_ok())
        .take(MAX_FILE_RECORDS)
        .collect();
    let mut records = match prepare_records(app, records).await {
        // A file that cannot be a record must not end the ingest of the others.
        Err(Error::Invalid(_)) => Vec::new(),
        prepared => prepared?,
    };
    records.retain(|record| {
        let text = &record.text;
        text.path.as_deref() == Some(path.as_str()) && text.source == ingest.source
    });
    Ok(PreparedFile { path, digest, records })
}

/// Converts a chunk. A chunk that is too long for one record becomes several.
fn to_records(
    chunk: &Chunk,
    path: &str,
    source: &str,
    url: Option<&str>,
    commit: Option<&str>,
) -> Vec<(MemoryKind, MemoryText)> {
    let kind = match chunk.kind {
        ChunkKind::Document => MemoryKind::Document,
        ChunkKind::Code => MemoryKind::Code,
    };
    let shown = chunk.title.chars().filter(|c| !is_hidden_character(*c));
    let plain: String = shown.map(|c| if c.is_control() { ' ' } else { c }).collect();
    let title = if plain.trim().is_empty() { path } else { plain.trim() };
    let title: String = title.chars().take(MAX_TITLE_CHARS).collect();
    let text = |content: &str| MemoryText {
        title: title.clone(),
        content: content.to_owned(),
        source: source.to_owned(),
        path: Some(path.to_owned()),
        url: url.map(str::to_owned),
        commit: commit.map(str::to_owned),
    };
    // Marks in place of secrets may be longer than these.
    let parts = split_text(&chunk.text, MAX_CONTENT_BYTES / 2);
    parts.into_iter().map(|part| (kind, text(part))).collect()
}

/// Splits a text into parts of at most so many bytes, between characters.
fn split_text(text: &str, max_bytes: usize) -> Vec<&str> {
    let mut parts = Vec::new();
    let mut rest = text;
    while rest.len() > max_bytes {
        let mut end = max_bytes;
        while end > 0 && !rest.is_char_boundary(end) {
            end -= 1;
        }
        if end == 0 {
            break;
        }
        let (part, tail) = rest.split_at(end);
        parts.push(part);
        rest = tail;
    }
    if !rest.trim().is_empty() {
        parts.push(rest);
    }
    parts
}

/// Stores a batch with the progress in one transaction.
pub(super) async fn store_batch(
    app: &App,
    claim: &ClaimedIngest,
    batch: FileBatch,
) -> Result<(), Error> {
    let mut ctx = begin_claimed(app, claim).await?;
    require_claim(&mut ctx, claim).await?;
    let (ingest, scope, now) = (&claim.ingest, scope_of(claim), ctx.now);
    let partition = partitions::open_partition(ctx.conn(), &scope).await?.number;
    let mut step = IngestProgress {
        unchanged: u64::try_from(batch.unchanged.len()).unwrap_or(u64::MAX),
        ..IngestProgress::default()
    };
    let paths: Vec<String> = batch.read.iter().map(|file| file.path.clone()).collect();
    remove_paths(&mut ctx, &scope, &ingest.source, &paths).await?;
    for file in batch.read {
        let stored = store_file_records(&mut ctx, claim, &scope, file.records).await?;
        if stored == 0 {
            step.skipped += 1;
        } else {
            step.read += 1;
        }
        step.records += u64::try_from(stored).unwrap_or_default();
        let read = ReadSource {
            source: &ingest.source,
            path: &file.path,
            digest: &file.digest,
            records: stored,
            ingest: ingest.id,
        };
        ingests::set_source_file(ctx.conn(), partition, read, now).await?;
    }
    let unchanged = &batch.unchanged;
    ingests::mark_unchanged_files(ctx.conn(), partition, &ingest.source, unchanged, ingest.id)
        .await?;
    ingests::delete_staged_files(ctx.conn(), ingest.id, partition, &batch.staged).await?;
    add_progress(&mut ctx, claim, step).await?;
    app.commit_operation(ctx).await
}

/// Stores the records of one file. Returns how many are new.
async fn store_file_records(
    ctx: &mut Ctx,
    claim: &ClaimedIngest,
    scope: &MemoryScope,
    mut records: Vec<PreparedMemory>,
) -> Result<usize, Error> {
    let origin = MemoryOrigin {
        author: MemoryAuthor::System,
        user: Some(claim.ingest.requested_by),
        role: None,
        task: None,
        ingest: Some(claim.ingest.id),
        untrusted: true,
    };
    let mut count = 0;
    while !records.is_empty() {
        let rest = records.split_off(records.len().min(MAX_STORED_RECORDS));
        count += store_records(ctx, scope, &origin, records).await?.ids.len();
        records = rest;
    }
    Ok(count)
}

/// Removes the records of files that the ingest has not seen, a few in each transaction.
pub(super) async fn remove_gone_files(app: &App, claim: &ClaimedIngest) -> Result<(), Error> {
    let (ingest, scope) = (&claim.ingest, scope_of(claim));
    loop {
        let mut ctx = begin_claimed(app, claim).await?;
        require_claim(&mut ctx, claim).await?;
        let partition = partitions::open_partition(ctx.conn(), &scope).await?.number;
        let limit = i64::from(PageRequest::MAX_LIMIT);
        let conn = ctx.conn();
        let gone =
            ingests::list_gone_files(conn, partition, &ingest.source, ingest.id, limit).await?;
        if gone.is_empty() {
            return ctx.rollback().await;
        }
        remove_paths(&mut ctx, &scope, &ingest.source, &gone).await?;
        ingests::delete_source_files(ctx.conn(), partition, &ingest.source, &gone).await?;
        let removed = u64::try_from(gone.len()).unwrap_or_default();
        add_progress(&mut ctx, claim, IngestProgress { removed, ..IngestProgress::default() })
            .await?;
        app.commit_operation(ctx).await?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chunk_keeps_its_path_and_what_is_too_long_is_split_between_characters() {
        let text = "ä".repeat(MAX_CONTENT_BYTES);
        let chunk = Chunk {
            title: "a\tb".to_owned(),
            text: text.clone(),
            start_line: 1,
            end_line: 1,
            kind: ChunkKind::Document,
        };
        let records = to_records(&chunk, "docs/a.md", "files:docs", None, None);
        let whole: String = records.iter().map(|(_, it)| it.content.as_str()).collect();
        assert_eq!(whole, text);
        for (kind, record) in &records {
            assert_eq!(*kind, MemoryKind::Document);
            assert_eq!(record.path.as_deref(), Some("docs/a.md"), "S001-48");
            assert_eq!(record.title, "a b");
            record.validate().unwrap();
        }
        let hidden = Chunk { title: "\u{200b}".to_owned(), text: "x".to_owned(), ..chunk };
        let records = to_records(&hidden, "docs/a.md", "files:docs", None, None);
        assert_eq!(records[0].1.title, "docs/a.md", "a title that nobody sees is none");
        assert_eq!(split_text("ä", 1), ["ä"], "a character is never cut");
        assert_eq!(split_text(" \n", 10), [""; 0]);
    }
}
