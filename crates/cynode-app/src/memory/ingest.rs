//! Ingest: files, the repository of a project at a commit, and pages become records of memory.
//!
//! **Invariant**: what was read of a file is stored in one transaction with the progress, under the fencing token of the worker. A worker
//! that is killed loses nothing and does nothing twice: the next one goes on with the file after it. Everything that is ingested is
//! untrusted, and is marked so.

mod batches;
mod page_text;
mod worker;

use cynode_core::{
    events::EventKind,
    ids::{IngestId, ProjectId},
    memory::{
        MemoryScope,
        ingests::{
            Ingest, IngestKind, IngestProgress, IngestState, MAX_INGEST_FILE_BYTES,
            MAX_INGEST_FILES, MAX_UPLOAD_FILES, ingestible_text, normalize_ingest_path,
        },
    },
    paging::{Page, PageRequest},
    policies::{PolicyKey, PolicySet},
    profiles::{ProfileName, ProfileVersion},
    roles::UserRole,
};
use cynode_db::{
    delivery::repositories,
    memory::{
        ingests::{self, StagedFile},
        partitions::{self, EntryMode},
    },
    tasks::policies,
};
use cynode_wire::memory::ingests::{CreateIngest, IngestFile, IngestView};
use futures::future::BoxFuture;
use serde_json::json;
use sha2::{Digest, Sha256};
use url::Url;

use crate::{
    App, Ctx, Error, OperationRequest,
    memory::records::{find_redactor, redact_whole},
    platform::{context::EventDraft, operation},
    tasks::profiles::require_named_profile,
};

pub use worker::{end_abandoned_uploads, prune_ended_ingests, run_due_ingests};

/// Maximum number of ingests of a project that have not ended.
const MAX_OPEN_INGESTS: i64 = 20;

/// Maximum number of bytes of the files of one ingest that wait to be read.
const MAX_STAGED_BYTES: i64 = 256 * 1024 * 1024;

/// Maximum number of characters of the name of a source.
const MAX_SOURCE_NAME_CHARS: usize = 100;

/// Maximum number of characters of the address of a page.
const MAX_PAGE_URL_CHARS: usize = 480;

/// A page as it was fetched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FetchedPage {
    /// Address after redirects.
    pub url: String,
    /// Media type, as the server states it.
    pub media_type: Option<String>,
    /// Body as text.
    pub body: String,
}

/// A page to fetch, with what bounds every request of it, redirects too.
#[derive(Clone, Debug)]
pub struct PageFetch {
    /// Address of the page.
    pub url: String,
    /// Policies about domains that hold for the user.
    pub policies: PolicySet,
    /// Profile whose network rules hold.
    pub profile: ProfileVersion,
}

/// Why a page was not fetched.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PageFetchError {
    /// The address, the profile or a policy does not allow it, or the server has no such page. A repeat does not help.
    #[error("{0}")]
    Refused(String),
    /// The server did not answer well. A repeat may help.
    #[error("{0}")]
    Unavailable(String),
}

/// Fetches pages through the guarded egress.
pub trait PageFetcher: Send + Sync {
    /// Fetches one page.
    fn fetch_page(&self, page: PageFetch) -> BoxFuture<'_, Result<FetchedPage, PageFetchError>>;
}

/// An ingest whose request was checked, with its secrets removed.
#[derive(Clone, Debug)]
pub struct PreparedIngest {
    profile: ProfileName,
    input: IngestInput,
}

#[derive(Clone, Debug)]
enum IngestInput {
    Files {
        ingest: Option<IngestId>,
        source: String,
        files: Vec<StagedFile>,
        skipped: u64,
        more: bool,
    },
    Repository {
        commit: String,
    },
    Page {
        url: Url,
    },
}

/// Checks the request of an ingest, resolves its commit, and redacts its files. The caller must not have an open transaction.
#[tracing::instrument(name = "app.memory.prepare_ingest", skip_all)]
#[operation]
pub async fn prepare_ingest(
    app: &App,
    request: &OperationRequest,
    project: ProjectId,
    body: CreateIngest,
) -> Result<PreparedIngest, Error> {
    app.require_project_role(request, project, UserRole::Operator).await?;
    let CreateIngest { kind, profile, name, ingest_id, files, skipped, more, commit, url } = body;
    let of_files =
        name.is_some() || ingest_id.is_some() || !files.is_empty() || skipped > 0 || more;
    let fits = match kind {
        IngestKind::Files => commit.is_none() && url.is_none() && name.is_some(),
        IngestKind::Repository => !of_files && url.is_none(),
        IngestKind::Page => !of_files && commit.is_none() && url.is_some(),
    };
    if !fits {
        return Err(Error::Invalid(
            "`files` takes `name`, `ingest_id`, `files`, `skipped` and `more`; `repository` takes `commit`; `page` takes `url`".into(),
        ));
    }
    let input = match kind {
        IngestKind::Files => {
            let source = format!("files:{}", validate_source_name(&name.unwrap_or_default())?);
            let files = stage_upload(app, files).await?;
            IngestInput::Files { ingest: ingest_id, source, files, skipped: skipped.into(), more }
        }
        IngestKind::Repository => {
            IngestInput::Repository { commit: resolve_commit(app, project, commit).await? }
        }
        IngestKind::Page => {
            let url = parse_page_url(&url.unwrap_or_default())?;
            let source = page_source(&url);
            if redact_whole(find_redactor(app).await?.as_deref(), source.clone()) != source {
                return Err(Error::Invalid(
                    "the address holds a secret: ingest the page without it".into(),
                ));
            }
            IngestInput::Page { url }
        }
    };
    Ok(PreparedIngest { profile, input })
}

/// Rejects a name of a source that is not plain.
fn validate_source_name(name: &str) -> Result<&str, Error> {
    let plain = |c: char| c.is_alphanumeric() || matches!(c, '.' | '_' | '-');
    let fits = (1..=MAX_SOURCE_NAME_CHARS).contains(&name.chars().count());
    if fits && name.chars().all(plain) {
        return Ok(name);
    }
    Err(Error::Invalid(format!(
        "`name` has 1 to {MAX_SOURCE_NAME_CHARS} letters, digits, `.`, `_` and `-`, got {name:?}"
    )))
}

fn parse_page_url(text: &str) -> Result<Url, Error> {
    let rule = || {
        Error::Invalid(format!(
            "`url` is an http or https address of at most {MAX_PAGE_URL_CHARS} characters, without a password"
        ))
    };
    let mut url: Url = text.parse().map_err(|_| rule())?;
    url.set_fragment(None);
    let is_web = matches!(url.scheme(), "http" | "https") && url.host_str().is_some();
    let is_open = url.username().is_empty() && url.password().is_none();
    let fits = url.as_str().chars().count() <= MAX_PAGE_URL_CHARS;
    if is_web && is_open && fits { Ok(url) } else { Err(rule()) }
}

/// Returns the source of the records of a page.
fn page_source(url: &Url) -> String {
    format!("page:{url}")
}

/// Returns the commit that a repository is read at.
async fn resolve_commit(
    app: &App,
    project: ProjectId,
    named: Option<String>,
) -> Result<String, Error> {
    let mut conn = app.conn().await?;
    let found = repositories::get_repository(&mut conn, project).await?;
    drop(conn);
    let found = found.ok_or_else(|| Error::not_found("repository of project", project))?;
    let Some(named) = named else { return Ok(found.head) };
    let commit = app.gateway_parts()?.repositories.find_revision(project, &named).await?;
    commit.ok_or_else(|| Error::not_found("commit or branch", named))
}

/// Checks and redacts uploaded files.
async fn stage_upload(app: &App, files: Vec<IngestFile>) -> Result<Vec<StagedFile>, Error> {
    if files.len() > MAX_UPLOAD_FILES {
        return Err(Error::TooLarge(format!(
            "{} files were sent, and at most {MAX_UPLOAD_FILES} are taken at once: send the rest with the `ingest_id` of the answer",
            files.len()
        )));
    }
    let redactor = find_redactor(app).await?;
    let mut staged: Vec<StagedFile> = Vec::with_capacity(files.len());
    for IngestFile { path, text } in files {
        let Some(path) = normalize_ingest_path(&path) else {
            return Err(Error::Invalid(format!(
                "{path:?} is no path below the root of the source"
            )));
        };
        if ingestible_text(text.as_bytes()).is_none() {
            return Err(Error::Invalid(format!(
                "`{path}` is binary, empty or has more than {MAX_INGEST_FILE_BYTES} bytes: leave it out"
            )));
        }
        let content = redact_whole(redactor.as_deref(), text);
        // Of a path that is sent twice at once the last one counts.
        staged.retain(|file| file.path != path);
        let digest = Sha256::digest(content.as_bytes()).into();
        staged.push(StagedFile { path, content, digest });
    }
    Ok(staged)
}

/// Begins an ingest, or adds files to one. A path that is sent again replaces the file, so that a repeat changes nothing.
#[tracing::instrument(name = "app.memory.create_ingest", skip_all, fields(project.id = %project))]
#[operation]
pub async fn create_ingest(
    ctx: &mut Ctx,
    project: ProjectId,
    prepared: PreparedIngest,
) -> Result<IngestView, Error> {
    let caller = ctx.require_project_role(project, UserRole::Operator).await?;
    if caller.bounds.is_some() {
        return Err(Error::forbidden(UserRole::Operator, "as a person: agents ingest nothing"));
    }
    let PreparedIngest { profile, input } = prepared;
    let spec = require_named_profile(ctx.conn(), project, Some(&profile)).await?;
    let scope = MemoryScope { project, profile };
    match input {
        IngestInput::Files { ingest, source, files, skipped, more } => {
            let ingest = match ingest {
                Some(id) => lock_open_upload(ctx, id, &scope, &source).await?,
                None => insert_ingest(ctx, &scope, IngestKind::Files, source, None).await?,
            };
            add_files(ctx, &scope, ingest.id, &files, skipped, more).await
        }
        IngestInput::Repository { commit } => {
            let source = "repository".to_owned();
            let kind = IngestKind::Repository;
            Ok(insert_ingest(ctx, &scope, kind, source, Some(commit)).await?.into())
        }
        IngestInput::Page { url } => {
            if let Some(profile) = &spec {
                require_reachable_page(ctx, project, profile, &url).await?;
            }
            let source = page_source(&url);
            Ok(insert_ingest(ctx, &scope, IngestKind::Page, source, None).await?.into())
        }
    }
}

/// Rejects a page that the profile or a policy does not let the worker fetch. The egress checks it again, with every redirect.
async fn require_reachable_page(
    ctx: &mut Ctx,
    project: ProjectId,
    profile: &ProfileVersion,
    url: &Url,
) -> Result<(), Error> {
    let host = url.host_str().unwrap_or_default().to_ascii_lowercase();
    if !profile.spec.allows_request("GET", &host) {
        return Err(Error::Invalid(format!(
            "the profile `{}` does not reach `{host}`: name a profile with network, such as `research`, or add the domain to a profile of \
             your own",
            profile.name
        )));
    }
    let user = ctx.caller()?.user;
    let held = policies::load_policies(ctx.conn(), user, Some(project)).await?;
    match held.find_refusal(PolicyKey::AllowedDomains, &host) {
        Some(entry) => Err(Error::PolicyDenied(format!(
            "`{host}` is not reached: {}",
            entry.describe_policy()
        ))),
        None => Ok(()),
    }
}

async fn insert_ingest(
    ctx: &mut Ctx,
    scope: &MemoryScope,
    kind: IngestKind,
    source: String,
    commit: Option<String>,
) -> Result<Ingest, Error> {
    if ingests::count_open_ingests(ctx.conn(), scope.project).await? >= MAX_OPEN_INGESTS {
        return Err(Error::LimitExceeded(format!(
            "a project has at most {MAX_OPEN_INGESTS} ingests that have not ended: wait for one, or cancel it"
        )));
    }
    let ingest = Ingest {
        id: IngestId::from_uuid(ctx.new_uuid()),
        project: scope.project,
        profile: scope.profile.clone(),
        kind,
        source,
        commit,
        state: IngestState::Queued,
        uploaded_at: (kind != IngestKind::Files).then_some(ctx.now),
        progress: IngestProgress::default(),
        error: None,
        requested_by: ctx.caller()?.user,
        trace: ctx.trace,
        created_at: ctx.now,
        finished_at: None,
    };
    match ingests::insert_ingest(ctx.conn(), &ingest).await {
        Err(error) if error.is_refused_by("memory_ingests_source_unique") => Err(Error::Conflict(
            "an ingest of this source has not ended: wait for it, or cancel it",
        )),
        Err(error) if error.is_refused_by("memory_ingests_project_id_fkey") => {
            Err(Error::not_found("project", scope.project))
        }
        result => Ok(result.map(|()| ingest)?),
    }
}

/// Returns an ingest of files that takes more of them, locked.
async fn lock_open_upload(
    ctx: &mut Ctx,
    id: IngestId,
    scope: &MemoryScope,
    source: &str,
) -> Result<Ingest, Error> {
    let missing = || Error::not_found("ingest", id);
    let ingest = ingests::lock_ingest(ctx.conn(), id).await?.ok_or_else(missing)?;
    if ingest.project != scope.project || ingest.profile != scope.profile || ingest.source != source
    {
        return Err(missing());
    }
    if ingest.state != IngestState::Queued || ingest.uploaded_at.is_some() {
        return Err(Error::Conflict("this ingest takes no more files: begin another one"));
    }
    Ok(ingest)
}

async fn add_files(
    ctx: &mut Ctx,
    scope: &MemoryScope,
    id: IngestId,
    files: &[StagedFile],
    skipped: u64,
    more: bool,
) -> Result<IngestView, Error> {
    let partition = partitions::open_partition(ctx.conn(), scope).await?.number;
    ingests::stage_files(ctx.conn(), id, partition, files).await?;
    let (count, bytes) = ingests::sum_staged_files(ctx.conn(), id, partition).await?;
    if usize::try_from(count).is_ok_and(|count| count > MAX_INGEST_FILES)
        || bytes > MAX_STAGED_BYTES
    {
        return Err(Error::TooLarge(format!(
            "one ingest has at most {MAX_INGEST_FILES} files and {MAX_STAGED_BYTES} bytes: ingest the directories one by one, each under a \
             name of its own"
        )));
    }
    let uploaded_at = (!more).then_some(ctx.now);
    let count = u64::try_from(count).unwrap_or_default();
    ingests::record_upload(ctx.conn(), id, count, skipped, uploaded_at).await?;
    let stored = ingests::get_ingest(ctx.conn(), id).await?;
    stored.map(IngestView::from).ok_or_else(|| Error::not_found("ingest", id))
}

/// Lists the ingests of a project under a profile, newest first.
#[tracing::instrument(name = "app.memory.list_ingests", skip_all, fields(project.id = %project))]
#[operation]
pub async fn list_ingests(
    ctx: &mut Ctx,
    project: ProjectId,
    profile: &ProfileName,
    page: PageRequest,
) -> Result<Page<IngestView>, Error> {
    ctx.require_project_role(project, UserRole::Viewer).await?;
    let found = ingests::list_ingests(ctx.conn(), project, profile, page).await?;
    Ok(page.into_page(found, |ingest| ingest.id.as_uuid()).map(IngestView::from))
}

/// Returns one ingest of a project that the caller may see.
#[tracing::instrument(name = "app.memory.get_ingest", skip_all, fields(ingest.id = %id))]
#[operation]
pub async fn get_ingest(ctx: &mut Ctx, id: IngestId) -> Result<IngestView, Error> {
    ctx.caller()?;
    let missing = || Error::not_found("ingest", id);
    let ingest = ingests::get_ingest(ctx.conn(), id).await?.ok_or_else(missing)?;
    ctx.require_project_role(ingest.project, UserRole::Viewer).await.map_err(|_| missing())?;
    Ok(ingest.into())
}

/// Stops an ingest. What was read until then stays. An ingest that has ended stays as it is.
#[tracing::instrument(name = "app.memory.cancel_ingest", skip_all, fields(ingest.id = %id))]
#[operation]
pub async fn cancel_ingest(ctx: &mut Ctx, id: IngestId) -> Result<IngestView, Error> {
    let project = get_ingest(ctx, id).await?.project_id;
    ctx.require_project_role(project, UserRole::Operator).await?;
    let missing = || Error::not_found("ingest", id);
    let ingest = ingests::lock_ingest(ctx.conn(), id).await?.ok_or_else(missing)?;
    let now = ctx.now;
    if ingests::cancel_ingest(ctx.conn(), id, now).await? {
        drop_staged(ctx, &ingest).await?;
        record_finished(ctx, id).await?;
    }
    let stored = ingests::get_ingest(ctx.conn(), id).await?.ok_or_else(missing)?;
    Ok(stored.into())
}

/// Removes the files of an ingest that nobody will read.
async fn drop_staged(ctx: &mut Ctx, ingest: &Ingest) -> Result<(), Error> {
    if ingest.kind != IngestKind::Files {
        return Ok(());
    }
    let scope = MemoryScope { project: ingest.project, profile: ingest.profile.clone() };
    let entered = partitions::enter_partition(ctx.conn(), &scope, EntryMode::Read).await?;
    if let Some(partition) = entered {
        ingests::drop_staged_files(ctx.conn(), ingest.id, partition.number).await?;
    }
    Ok(())
}

/// Records that an ingest has ended, however it did.
async fn record_finished(ctx: &mut Ctx, id: IngestId) -> Result<(), Error> {
    let Some(ingest) = ingests::get_ingest(ctx.conn(), id).await? else { return Ok(()) };
    let data = json!({
        "ingest_id": id, "kind": ingest.kind, "source": ingest.source, "profile": ingest.profile, "state": ingest.state,
        "progress": ingest.progress, "error": ingest.error,
    });
    let draft = EventDraft::new(EventKind::MemoryIngestFinished, data);
    ctx.record_event(draft.with_project(ingest.project)).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_of_a_page_is_one_of_the_web_and_holds_no_password() {
        let page = parse_page_url("https://docs.rs/serde/latest#traits").unwrap();
        assert_eq!(page.as_str(), "https://docs.rs/serde/latest", "a part of a page is the page");
        let long = format!("https://example.org/{}", "x".repeat(MAX_PAGE_URL_CHARS));
        for refused in [
            "",
            "docs.rs",
            "ftp://example.org/x",
            "file:///etc/passwd",
            "https://a:b@example.org/",
            &long,
        ] {
            assert!(parse_page_url(refused).is_err(), "{refused}");
        }
    }

    #[test]
    fn the_name_of_a_source_is_plain() {
        assert!(validate_source_name("docs-2.1_de").is_ok());
        for refused in ["", "a b", "a/b", "a:b", "a\nb"] {
            assert!(validate_source_name(refused).is_err(), "{refused:?}");
        }
    }
}
