//! The worker of ingests: claims one that is due, reads it batch by batch, and ends it.

use std::collections::BTreeMap;

use cynode_core::memory::ingests::{
    Ingest, IngestKind, MAX_INGEST_FILE_BYTES, MAX_INGEST_FILES, ingestible_text,
    normalize_ingest_path,
};
use cynode_db::{
    DbError,
    memory::{
        ingests::{self, ClaimedIngest, SourceFile},
        partitions,
    },
    tasks::policies,
};
use sha2::{Digest, Sha256};
use time::OffsetDateTime;

use super::{
    FetchedPage, PageFetch, PageFetchError, batches,
    batches::{FileBatch, FileText},
    drop_staged,
    page_text::{self, PageText},
    record_finished,
};
use crate::{
    App, Error, OperationRequest,
    delivery::repositories::TreeBlob,
    platform::{error::log_background_error, operation},
    tasks::profiles::find_profile,
};

/// Maximum number of files that one transaction stores.
const MAX_BATCH_FILES: usize = 16;

/// Maximum number of bytes of the files that are in memory at once.
const MAX_BATCH_BYTES: u64 = 1024 * 1024;

/// Maximum number of unchanged files that one transaction notes.
const MAX_UNCHANGED_FILES: usize = 500;

/// Maximum number of attempts in a row without progress.
const MAX_ATTEMPTS: i32 = 6;

/// Delay of the first repeat. It doubles with every further one.
const FIRST_RETRY_DELAY_MS: i64 = 2_000;

/// Maximum number of characters of a stored error.
const MAX_ERROR_CHARS: usize = 500;

/// Maximum number of uploads that one round ends.
const MAX_ABANDONED_UPLOADS: i64 = 50;

/// Maximum number of bytes of the text of a page.
const MAX_PAGE_TEXT_BYTES: usize = 1024 * 1024;

const ABANDONED_MESSAGE: &str =
    "the client did not send the last files within a day: run the ingest again";

/// Reads every ingest that is due and that no other worker has. Returns their number.
#[tracing::instrument(name = "app.memory.run_due_ingests", skip_all)]
#[operation]
pub async fn run_due_ingests(app: &App) -> Result<usize, Error> {
    let mut count = 0;
    while let Some(claim) = claim_next(app).await? {
        run_claimed(app, &claim).await?;
        count += 1;
    }
    Ok(count)
}

async fn claim_next(app: &App) -> Result<Option<ClaimedIngest>, Error> {
    let mut tx = app.begin().await?;
    let claim = ingests::claim_ingest(&mut tx, batches::INGEST_LEASE_MS).await?;
    tx.commit().await.map_err(DbError::from)?;
    Ok(claim)
}

/// Reads a claimed ingest. A failure ends it, or leaves it for later.
async fn run_claimed(app: &App, claim: &ClaimedIngest) -> Result<(), Error> {
    // A worker that settles its failures ends the ingest at the last attempt. More are those of workers that were killed.
    if claim.attempts > MAX_ATTEMPTS {
        return finish(app, claim, Some("its worker ended again and again")).await;
    }
    match read_ingest(app, claim).await {
        // It was cancelled, or another worker goes on with it.
        Ok(()) | Err(Error::Fenced(_)) => Ok(()),
        Err(error) => {
            let message = "an ingest failed; a failure that may pass is retried";
            log_background_error("memory.ingest_failed", &error, message);
            settle_failure(app, claim, &error).await
        }
    }
}

async fn read_ingest(app: &App, claim: &ClaimedIngest) -> Result<(), Error> {
    match claim.ingest.kind {
        IngestKind::Files => read_staged_files(app, claim).await?,
        IngestKind::Repository => read_repository(app, claim).await?,
        IngestKind::Page => read_page(app, claim).await?,
    }
    batches::remove_gone_files(app, claim).await?;
    finish(app, claim, None).await
}

/// Ends an ingest: well without an error.
async fn finish(app: &App, claim: &ClaimedIngest, error: Option<&str>) -> Result<(), Error> {
    let mut ctx = batches::begin_claimed(app, claim).await?;
    let now = ctx.now;
    if !ingests::finish_ingest(ctx.conn(), claim, error, now).await? {
        return ctx.rollback().await;
    }
    drop_staged(&mut ctx, &claim.ingest).await?;
    record_finished(&mut ctx, claim.ingest.id).await?;
    app.commit_operation(ctx).await
}

async fn settle_failure(app: &App, claim: &ClaimedIngest, error: &Error) -> Result<(), Error> {
    let text: String = error.to_string().chars().take(MAX_ERROR_CHARS).collect();
    // The count was reset when the worker got on.
    let mut conn = app.conn().await?;
    let attempts = ingests::count_attempts(&mut conn, claim.ingest.id).await?;
    drop(conn);
    if is_permanent(error) || attempts >= MAX_ATTEMPTS {
        return finish(app, claim, Some(&text)).await;
    }
    let doublings = u32::try_from(attempts).unwrap_or(0).min(10);
    let delay = FIRST_RETRY_DELAY_MS.saturating_mul(1_i64 << doublings);
    let mut tx = app.begin().await?;
    ingests::postpone_ingest(&mut tx, claim, &text, delay).await?;
    Ok(tx.commit().await.map_err(DbError::from)?)
}

/// Returns whether a repeat would not help.
const fn is_permanent(error: &Error) -> bool {
    matches!(
        error,
        Error::Invalid(_)
            | Error::NotFound { .. }
            | Error::PolicyDenied(_)
            | Error::UpstreamRejected(_)
            | Error::LimitExceeded(_)
            | Error::TooLarge(_)
    )
}

/// Returns what earlier ingests of the source have read.
async fn known_files(
    app: &App,
    claim: &ClaimedIngest,
) -> Result<BTreeMap<String, SourceFile>, Error> {
    let mut ctx = batches::begin_claimed(app, claim).await?;
    batches::require_claim(&mut ctx, claim).await?;
    let scope = batches::scope_of(claim);
    let partition = partitions::open_partition(ctx.conn(), &scope).await?.number;
    let source = &claim.ingest.source;
    let known = ingests::list_source_files(ctx.conn(), partition, source).await?;
    app.commit_operation(ctx).await?;
    Ok(known.into_iter().map(|file| (file.path.clone(), file)).collect())
}

/// Counts the files of an ingest, once.
async fn record_listing(
    app: &App,
    claim: &ClaimedIngest,
    files: usize,
    skipped: usize,
) -> Result<(), Error> {
    if claim.is_listed {
        return Ok(());
    }
    let count = |number: usize| u64::try_from(number).unwrap_or(u64::MAX);
    let now = app.environment().now();
    let mut conn = app.conn().await?;
    let (files, skipped) = (count(files), count(skipped));
    if ingests::record_listing(&mut conn, claim, files, skipped, now).await? {
        Ok(())
    } else {
        Err(Error::Fenced("the ingest was cancelled, or another worker has it"))
    }
}

/// Returns whether a file is as it was, and its records are there.
fn is_unchanged(known: Option<&SourceFile>, digest: &[u8; 32]) -> bool {
    known.is_some_and(|file| file.digest == *digest && !file.is_forgotten)
}

/// Reads the files that the client has sent.
async fn read_staged_files(app: &App, claim: &ClaimedIngest) -> Result<(), Error> {
    let known = known_files(app, claim).await?;
    let scope = batches::scope_of(claim);
    loop {
        let mut ctx = batches::begin_claimed(app, claim).await?;
        batches::require_claim(&mut ctx, claim).await?;
        let partition = partitions::open_partition(ctx.conn(), &scope).await?.number;
        let limit = i64::try_from(MAX_BATCH_FILES).unwrap_or(i64::MAX);
        let conn = ctx.conn();
        let files = ingests::list_staged_files(conn, claim.ingest.id, partition, limit).await?;
        app.commit_operation(ctx).await?;
        if files.is_empty() {
            return Ok(());
        }
        let (mut batch, mut bytes) = (FileBatch::default(), 0_u64);
        for file in files {
            bytes = bytes.saturating_add(u64::try_from(file.content.len()).unwrap_or(u64::MAX));
            // The others are read by the next batch.
            if bytes > MAX_BATCH_BYTES && !batch.staged.is_empty() {
                break;
            }
            batch.staged.push(file.path.clone());
            if is_unchanged(known.get(&file.path), &file.digest) {
                batch.unchanged.push(file.path);
                continue;
            }
            let (path, digest, text) = (file.path, file.digest, Some(file.content));
            let file = FileText { path, digest, text, url: None, title: None };
            batch.read.push(batches::prepare_file(app, claim, file).await?);
        }
        batches::store_batch(app, claim, batch).await?;
    }
}

/// Reads the project's repository at the commit.
async fn read_repository(app: &App, claim: &ClaimedIngest) -> Result<(), Error> {
    let Some(commit) = claim.ingest.commit.as_deref() else {
        return Err(Error::Invalid("the ingest names no commit".into()));
    };
    let repositories = &app.gateway_parts()?.repositories;
    let all = repositories.list_blobs(claim.ingest.project, commit).await?;
    let total = all.len();
    let files: Vec<TreeBlob> = all.into_iter().filter(is_readable).collect();
    if files.len() > MAX_INGEST_FILES {
        return Err(Error::TooLarge(format!(
            "the commit has {} files, and at most {MAX_INGEST_FILES} are read: ingest its directories from a working copy, each under a name of \
             its own",
            files.len()
        )));
    }
    record_listing(app, claim, total, total - files.len()).await?;
    let known = known_files(app, claim).await?;
    // An earlier attempt of this ingest has stored these.
    let is_stored = |file: &TreeBlob| {
        known.get(&file.path).is_some_and(|before| before.ingest == claim.ingest.id)
    };
    let files: Vec<TreeBlob> = files.into_iter().filter(|file| !is_stored(file)).collect();
    let (unchanged, changed): (Vec<TreeBlob>, Vec<TreeBlob>) = files
        .into_iter()
        .partition(|file| is_unchanged(known.get(&file.path), &blob_digest(&file.object)));
    for files in unchanged.chunks(MAX_UNCHANGED_FILES) {
        let unchanged = files.iter().map(|file| file.path.clone()).collect();
        batches::store_batch(app, claim, FileBatch { unchanged, ..FileBatch::default() }).await?;
    }
    for files in split_batches(&changed) {
        let mut batch = FileBatch::default();
        for file in read_blob_texts(app, &claim.ingest, files).await? {
            batch.read.push(batches::prepare_file(app, claim, file).await?);
        }
        batches::store_batch(app, claim, batch).await?;
    }
    Ok(())
}

/// Returns whether a file of a commit can be text.
fn is_readable(file: &TreeBlob) -> bool {
    let fits = usize::try_from(file.bytes).is_ok_and(|bytes| bytes <= MAX_INGEST_FILE_BYTES);
    fits && file.bytes > 0 && normalize_ingest_path(&file.path).as_ref() == Some(&file.path)
}

/// Returns the digest of a blob by its id, so that an unchanged file is not read.
fn blob_digest(object: &str) -> [u8; 32] {
    Sha256::digest(format!("blob {object}").as_bytes()).into()
}

/// Splits files into batches that are bounded in number and bytes.
fn split_batches(files: &[TreeBlob]) -> Vec<&[TreeBlob]> {
    let mut batches = Vec::new();
    let (mut start, mut bytes) = (0, 0_u64);
    for (at, file) in files.iter().enumerate() {
        let is_full =
            at - start >= MAX_BATCH_FILES || bytes.saturating_add(file.bytes) > MAX_BATCH_BYTES;
        if at > start && is_full {
            batches.extend(files.get(start..at));
            (start, bytes) = (at, 0);
        }
        bytes = bytes.saturating_add(file.bytes);
    }
    batches.extend(files.get(start..).filter(|rest| !rest.is_empty()));
    batches
}

async fn read_blob_texts(
    app: &App,
    ingest: &Ingest,
    files: &[TreeBlob],
) -> Result<Vec<FileText>, Error> {
    let objects: Vec<&str> = files.iter().map(|file| file.object.as_str()).collect();
    let repositories = &app.gateway_parts()?.repositories;
    let contents = repositories.read_blobs(ingest.project, &objects).await?;
    let texts = files.iter().zip(contents).map(|(file, content)| FileText {
        path: file.path.clone(),
        digest: blob_digest(&file.object),
        text: content.as_deref().and_then(ingestible_text).map(str::to_owned),
        url: None,
        title: None,
    });
    Ok(texts.collect())
}

/// Reads a page through the egress, under the profile and the policies of the user who asked for it.
async fn read_page(app: &App, claim: &ClaimedIngest) -> Result<(), Error> {
    let ingest = &claim.ingest;
    let Some(url) = ingest.page_url() else {
        return Err(Error::Invalid("the ingest names no page".into()));
    };
    record_listing(app, claim, 1, 0).await?;
    let mut conn = app.conn().await?;
    let profile = find_profile(&mut conn, Some(ingest.project), &ingest.profile).await?;
    let profile = profile.ok_or_else(|| Error::not_found("profile", &ingest.profile))?;
    let held =
        policies::load_policies(&mut conn, ingest.requested_by, Some(ingest.project)).await?;
    drop(conn);
    let fetch = PageFetch { url: url.to_owned(), policies: held, profile };
    let pages = &app.gateway_parts()?.pages;
    let page = pages.fetch_page(fetch).await.map_err(|error| match error {
        PageFetchError::Refused(why) => Error::UpstreamRejected(why),
        PageFetchError::Unavailable(why) => {
            Error::UpstreamUnavailable { after: std::time::Duration::from_secs(10), why }
        }
    })?;
    let path = page_path(&page.url);
    let final_url = page.url.clone();
    let read = tokio::task::spawn_blocking(move || read_page_text(page));
    let PageText { title, text } = read.await.map_err(|error| Error::Internal(error.into()))??;
    let digest: [u8; 32] = Sha256::digest(text.as_bytes()).into();
    let known = known_files(app, claim).await?;
    if is_unchanged(known.get(&path), &digest) {
        // A repeat after a kill finds what it has stored itself: that was counted.
        if known.get(&path).is_some_and(|file| file.ingest == ingest.id) {
            return Ok(());
        }
        let batch = FileBatch { unchanged: vec![path], ..FileBatch::default() };
        return batches::store_batch(app, claim, batch).await;
    }
    let title = if title.is_empty() { path.clone() } else { title };
    let file =
        FileText { path, digest, text: Some(text), url: Some(final_url), title: Some(title) };
    let read = vec![batches::prepare_file(app, claim, file).await?];
    batches::store_batch(app, claim, FileBatch { read, ..FileBatch::default() }).await
}

/// Returns the path of a page's records: its host and path.
fn page_path(url: &str) -> String {
    let bare = url.split_once("://").map_or(url, |(_, rest)| rest);
    let bare = bare.split(['?', '#']).next().unwrap_or(bare).trim_end_matches('/');
    let plain = bare.chars().filter(|c| !c.is_control());
    let path: String = plain.take(cynode_core::memory::MAX_PATH_CHARS).collect();
    if path.is_empty() { "page".to_owned() } else { path }
}

/// Converts the body of a page to text. A body that is no text is refused.
fn read_page_text(page: FetchedPage) -> Result<PageText, Error> {
    let media_type = page.media_type.unwrap_or_default().to_ascii_lowercase();
    let kind = media_type.split(';').next().unwrap_or_default().trim();
    let is_html = matches!(kind, "text/html" | "application/xhtml+xml")
        || (kind.is_empty() && page.body.trim_start().starts_with('<'));
    let is_text = is_html
        || kind.is_empty()
        || kind.starts_with("text/")
        || matches!(
            kind,
            "application/json" | "application/xml" | "application/yaml" | "application/toml"
        );
    if !is_text || page.body.contains('\0') {
        return Err(Error::UpstreamRejected(format!("the page is no text but `{kind}`")));
    }
    let mut read = if is_html {
        page_text::html_to_text(&page.body)
    } else {
        PageText { title: String::new(), text: page.body }
    };
    if read.text.trim().is_empty() {
        return Err(Error::UpstreamRejected("the page has no text".into()));
    }
    let mut end = read.text.len().min(MAX_PAGE_TEXT_BYTES);
    while !read.text.is_char_boundary(end) {
        end -= 1;
    }
    read.text.truncate(end);
    Ok(read)
}

/// Ends ingests whose client has sent nothing more since a time. Returns their number.
#[tracing::instrument(name = "app.memory.end_abandoned_uploads", skip_all)]
#[operation]
pub async fn end_abandoned_uploads(app: &App, before: OffsetDateTime) -> Result<usize, Error> {
    let mut conn = app.conn().await?;
    let ids = ingests::list_abandoned_uploads(&mut conn, before, MAX_ABANDONED_UPLOADS).await?;
    drop(conn);
    let mut count = 0;
    for id in ids {
        let trace = app.environment().new_trace_id();
        let request = OperationRequest { caller: None, trace, attempt: None };
        let mut ctx = app.begin_transaction(&request).await?;
        let now = ctx.now;
        let Some(ingest) = ingests::lock_ingest(ctx.conn(), id).await? else { continue };
        if ingests::fail_upload(ctx.conn(), id, ABANDONED_MESSAGE, now).await? {
            drop_staged(&mut ctx, &ingest).await?;
            record_finished(&mut ctx, id).await?;
            app.commit_operation(ctx).await?;
            count += 1;
        }
    }
    Ok(count)
}

/// Removes ingests that ended before a time, at most so many at once. Returns how many were removed.
#[operation]
pub async fn prune_ended_ingests(
    app: &App,
    before: OffsetDateTime,
    limit: i64,
) -> Result<u64, Error> {
    let mut conn = app.conn().await?;
    Ok(ingests::prune_ingests(&mut conn, before, limit).await?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn blob(path: &str, bytes: u64) -> TreeBlob {
        TreeBlob { path: path.to_owned(), object: "a1".repeat(20), bytes }
    }

    #[test]
    fn batches_are_bounded_and_hold_every_file_once_in_order() {
        let mut files: Vec<TreeBlob> = (0..40).map(|at| blob(&format!("f{at:02}"), 10)).collect();
        files.push(blob("g1", MAX_BATCH_BYTES));
        files.push(blob("g2", 1));
        let split = split_batches(&files);
        assert!(split.iter().all(|batch| (1..=MAX_BATCH_FILES).contains(&batch.len())));
        let again: Vec<TreeBlob> = split.concat();
        assert_eq!(again, files);
        assert_eq!(split_batches(&[]).len(), 0);
    }

    #[test]
    fn a_file_that_cannot_be_text_is_not_read() {
        assert!(is_readable(&blob("src/a b.rs", 10)));
        let large = u64::try_from(MAX_INGEST_FILE_BYTES).unwrap() + 1;
        for refused in [blob("a", 0), blob("a", large), blob("a/../b", 1), blob("a\nb", 1)] {
            assert!(!is_readable(&refused), "{refused:?}");
        }
    }

    #[test]
    fn a_page_is_known_by_its_host_and_path() {
        assert_eq!(page_path("https://docs.rs/serde/latest/?a=b#c"), "docs.rs/serde/latest");
        assert_eq!(page_path("https://example.org/"), "example.org");
        assert_eq!(page_path(""), "page");
    }

    #[test]
    fn only_text_is_read_of_a_page() {
        let page = |kind: &str, body: &str| FetchedPage {
            url: "https://example.org/".to_owned(),
            media_type: (!kind.is_empty()).then(|| kind.to_owned()),
            body: body.to_owned(),
        };
        let html = read_page_text(page("text/html; charset=utf-8", "<h1>A</h1><p>b")).unwrap();
        assert_eq!(html.text, "# A\n\nb");
        assert_eq!(read_page_text(page("text/plain", "<h1>")).unwrap().text, "<h1>");
        assert_eq!(read_page_text(page("", "<p>x</p>")).unwrap().text, "x");
        for refused in
            [page("image/png", "x"), page("text/html", "<p>"), page("text/plain", "a\0b")]
        {
            assert!(read_page_text(refused).is_err());
        }
    }
}
