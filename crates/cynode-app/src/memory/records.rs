//! Records: what is stored, by whom, and what people see of it.

use std::sync::Arc;

use cynode_core::{
    accounts::CallerCredential,
    agents::AgentRole,
    events::EventKind,
    ids::{MemoryId, TaskId, UserId},
    memory::{
        AcceptanceRule, MAX_CONTENT_BYTES, MAX_PATH_CHARS, MAX_SOURCE_CHARS, MAX_TITLE_CHARS,
        MAX_URL_CHARS, MemoryAuthor, MemoryKind, MemoryScope, MemoryState, MemoryText,
        MemoryTextError,
    },
    paging::{Page, PageRequest},
    roles::UserRole,
    settings::registry::{
        DEFAULT_MEMORY_ACCEPT, DEFAULT_MEMORY_MAX_RECORDS, MEMORY_ACCEPT_SETTING,
        MEMORY_MAX_RECORDS_SETTING,
    },
};
use cynode_db::{
    Conn,
    memory::{
        partitions::{self, EntryMode, Partition},
        records::{self, Memory, MemoryDecision, NewMemory, RecordFilter, insert_records},
    },
    tools::agent_tokens,
};
use cynode_memory::lexemes;
use cynode_models::redact::Redactor;
use cynode_wire::memory::records::MemoryView;
use data_encoding::HEXLOWER;
use serde_json::json;
use sha2::{Digest, Sha256};

pub use cynode_db::memory::records::MemoryOrigin;

use crate::{
    App, AuthenticatedCaller, Ctx, Error, OperationRequest,
    platform::{context::EventDraft, operation, settings},
    tools::profiles,
};

/// Maximum number of records of one statement.
const INSERT_BATCH_SIZE: usize = 500;

/// Maximum number of proposals of a partition that nobody decided.
const MAX_OPEN_PROPOSALS: i64 = 1000;

/// Refusal of a record that was corrected.
pub(crate) const CORRECTED_MESSAGE: &str =
    "the record was corrected: use the one that supersedes it";

/// Maximum length of a lexeme in the index, in bytes.
pub(crate) const MAX_LEXEME_BYTES: usize = 256;

/// A record that is ready to be stored: cleaned, redacted, checked, and with its lexemes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PreparedMemory {
    /// What it is.
    pub kind: MemoryKind,
    /// Its texts, without secrets.
    pub text: MemoryText,
    lexemes: Vec<(String, u32)>,
    length: i32,
    digest: [u8; 32],
}

/// What an agent remembers for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RememberBy {
    /// The role of the agent.
    pub role: Option<AgentRole>,
    /// Its task.
    pub task: Option<TaskId>,
}

/// What became of records that were to be stored.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoredRecords {
    /// The new ones.
    pub ids: Vec<MemoryId>,
    /// How many were there already, with this text and source.
    pub unchanged: u64,
}

/// Returns what removes secrets. A process without models has neither provider secrets nor redaction rules.
pub(crate) async fn find_redactor(app: &App) -> Result<Option<Arc<Redactor>>, Error> {
    match app.inference_runtime() {
        Ok(_) => Ok(Some(app.redactor().await?)),
        Err(_) => Ok(None),
    }
}

/// Removes secrets from a whole text. A secret that is cut into pieces first may not be found in any of them.
pub(crate) fn redact_whole(redactor: Option<&Redactor>, text: String) -> String {
    match redactor {
        Some(redactor) => redactor.redact_text(&text).value.into_owned(),
        None => text,
    }
}

/// Cleans, redacts and checks texts, and finds their lexemes. The caller must not have an open transaction.
#[tracing::instrument(name = "app.memory.prepare_records", skip_all)]
#[operation]
pub async fn prepare_records(
    app: &App,
    texts: Vec<(MemoryKind, MemoryText)>,
) -> Result<Vec<PreparedMemory>, Error> {
    let redactor = find_redactor(app).await?;
    let prepare_all = move || -> Result<Vec<PreparedMemory>, MemoryTextError> {
        let redactor = redactor.as_deref();
        texts.into_iter().map(|(kind, text)| prepare_record(kind, text, redactor)).collect()
    };
    let prepared = tokio::task::spawn_blocking(prepare_all).await;
    let prepared = prepared.map_err(|error| Error::Internal(error.into()))?;
    prepared.map_err(|error| Error::Invalid(error.to_string()))
}

/// Cleans, redacts and checks one text. The caller must not have an open transaction.
#[operation]
pub async fn prepare_memory(
    app: &App,
    kind: MemoryKind,
    text: MemoryText,
) -> Result<PreparedMemory, Error> {
    let prepared = prepare_records(app, vec![(kind, text)]).await?.into_iter().next();
    prepared.ok_or_else(|| Error::Internal(anyhow::anyhow!("a prepared record is missing")))
}

fn prepare_record(
    kind: MemoryKind,
    text: MemoryText,
    redactor: Option<&Redactor>,
) -> Result<PreparedMemory, MemoryTextError> {
    let text = text.without_hidden();
    text.validate()?;
    let text = match redactor {
        Some(redactor) => redact_memory(redactor, text),
        None => text,
    };
    text.validate()?;
    let counts = lexemes::record_term_counts(&text.title, &text.searchable_body());
    let lexemes: Vec<(String, u32)> =
        counts.into_iter().filter(|(lexeme, _)| lexeme.len() <= MAX_LEXEME_BYTES).collect();
    let total: u64 = lexemes.iter().map(|(_, count)| u64::from(*count)).sum();
    let digest = digest_of(kind, &text);
    Ok(PreparedMemory {
        kind,
        text,
        lexemes,
        length: i32::try_from(total).unwrap_or(i32::MAX),
        digest,
    })
}

/// Removes secrets from a record. Marks in their place may make a text too long: its end is cut off.
fn redact_memory(redactor: &Redactor, text: MemoryText) -> MemoryText {
    let redacted = |text: String| redactor.redact_text(&text).value.into_owned();
    let line = |text: String, max: usize| redacted(text).chars().take(max).collect::<String>();
    let mut content = redacted(text.content);
    content.truncate(content.floor_char_boundary(MAX_CONTENT_BYTES));
    MemoryText {
        title: line(text.title, MAX_TITLE_CHARS),
        content,
        source: line(text.source, MAX_SOURCE_CHARS),
        path: text.path.map(|path| line(path, MAX_PATH_CHARS)),
        url: text.url.map(|url| line(url, MAX_URL_CHARS)),
        commit: text.commit,
    }
}

/// The SHA-256 of what a record says. Equal text in two files is two records.
fn digest_of(kind: MemoryKind, text: &MemoryText) -> [u8; 32] {
    let mut hash = Sha256::new();
    for part in
        [kind.as_str(), &text.title, text.path.as_deref().unwrap_or_default(), &text.content]
    {
        hash.update(part.as_bytes());
        hash.update([0]);
    }
    hash.finalize().into()
}

/// Requires a role in the project of a scope. An agent also works under the profile of the scope; for any other, there is nothing.
pub(crate) async fn require_memory_role(
    ctx: &mut Ctx,
    scope: &MemoryScope,
    needed: UserRole,
) -> Result<AuthenticatedCaller, Error> {
    let caller = ctx.require_project_role(scope.project, needed).await?;
    if caller.bounds.is_some() {
        let CallerCredential::Agent(token) = caller.credential else {
            return Err(Error::not_found("profile", &scope.profile));
        };
        let own = agent_tokens::profile_of_token(ctx.conn(), token).await?;
        if own.as_deref() != Some(scope.profile.as_str()) {
            return Err(Error::not_found("profile", &scope.profile));
        }
    }
    Ok(caller)
}

/// Rejects agents: people decide what is found.
pub(crate) fn require_person(ctx: &Ctx) -> Result<(), Error> {
    if ctx.is_agent() {
        let place = "as a person: agents propose what is remembered, and people decide";
        return Err(Error::forbidden(UserRole::Operator, place));
    }
    Ok(())
}

/// Returns the rule for what agents remember.
pub(crate) async fn acceptance_rule(conn: &mut Conn) -> Result<AcceptanceRule, Error> {
    let set = settings::setting_value(conn, MEMORY_ACCEPT_SETTING).await?;
    let rule = set.as_ref().and_then(|value| AcceptanceRule::from_name(value.as_str()?));
    Ok(rule.unwrap_or(DEFAULT_MEMORY_ACCEPT))
}

/// Stores records of one origin. Those whose text and source are there already are left as they are. It requires no role and records no
/// event: the caller does both.
#[tracing::instrument(name = "app.memory.store_records", skip_all)]
#[operation]
pub async fn store_records(
    ctx: &mut Ctx,
    scope: &MemoryScope,
    origin: &MemoryOrigin,
    prepared: Vec<PreparedMemory>,
) -> Result<StoredRecords, Error> {
    let state = initial_state(ctx, origin.author).await?;
    let mut partition = partitions::open_partition(ctx.conn(), scope).await?;
    require_room(ctx, &partition, state, prepared.len()).await?;
    let total = prepared.len();
    let (mut stored, now) = (StoredRecords::default(), ctx.now);
    let new: Vec<NewMemory> =
        prepared.into_iter().map(|one| to_new_memory(ctx, one, origin.clone(), state)).collect();
    for batch in new.chunks(INSERT_BATCH_SIZE) {
        let ids = insert_records(ctx.conn(), &mut partition, batch, now).await?;
        stored.ids.extend(ids);
    }
    stored.unchanged = u64::try_from(total - stored.ids.len()).unwrap_or_default();
    Ok(stored)
}

/// Returns the state that a new record begins in.
async fn initial_state(ctx: &mut Ctx, author: MemoryAuthor) -> Result<MemoryState, Error> {
    match author {
        MemoryAuthor::Person | MemoryAuthor::System => Ok(MemoryState::Accepted),
        MemoryAuthor::Agent => Ok(match acceptance_rule(ctx.conn()).await? {
            AcceptanceRule::All => MemoryState::Accepted,
            AcceptanceRule::SameTask | AcceptanceRule::Person => MemoryState::Proposed,
        }),
    }
}

/// Rejects records that a partition has no room for.
async fn require_room(
    ctx: &mut Ctx,
    partition: &Partition,
    state: MemoryState,
    count: usize,
) -> Result<(), Error> {
    if state == MemoryState::Proposed {
        if records::count_proposals(ctx.conn(), partition).await? >= MAX_OPEN_PROPOSALS {
            return Err(Error::LimitExceeded(format!(
                "{MAX_OPEN_PROPOSALS} proposals for memory wait for a person: accept or reject some first"
            )));
        }
        return Ok(());
    }
    let max = settings::setting_number(
        ctx.conn(),
        MEMORY_MAX_RECORDS_SETTING,
        DEFAULT_MEMORY_MAX_RECORDS,
    )
    .await?;
    if partition.records.saturating_add(i64::try_from(count).unwrap_or(i64::MAX)) > max {
        return Err(Error::LimitExceeded(format!(
            "the memory of a project holds {max} records under a profile: forget some, or raise `{MEMORY_MAX_RECORDS_SETTING}`"
        )));
    }
    Ok(())
}

pub(crate) fn to_new_memory(
    ctx: &Ctx,
    prepared: PreparedMemory,
    origin: MemoryOrigin,
    state: MemoryState,
) -> NewMemory {
    NewMemory {
        id: MemoryId::from_uuid(ctx.new_uuid()),
        kind: prepared.kind,
        state,
        text: prepared.text,
        origin,
        pinned: false,
        supersedes: None,
        digest: prepared.digest,
        lexemes: prepared.lexemes,
        length: prepared.length,
        lexer_version: lexemes::VERSION,
    }
}

/// Returns the origin of what the caller writes.
fn origin_of_caller(caller: &AuthenticatedCaller, by: RememberBy) -> MemoryOrigin {
    let is_agent = caller.bounds.is_some();
    MemoryOrigin {
        author: if is_agent { MemoryAuthor::Agent } else { MemoryAuthor::Person },
        user: Some(caller.user),
        role: by.role.filter(|_| is_agent),
        task: by.task,
        ingest: None,
        // An agent may repeat what a stranger told it.
        untrusted: is_agent,
    }
}

/// Remembers something: of a person at once, of an agent as a proposal unless the rule accepts all. What is there already with the same
/// text and source is left as it is; a person's word accepts a proposal of the same text.
#[tracing::instrument(name = "app.memory.remember", skip_all)]
#[operation]
pub async fn remember(
    ctx: &mut Ctx,
    scope: &MemoryScope,
    by: RememberBy,
    prepared: PreparedMemory,
) -> Result<Memory, Error> {
    let caller = require_memory_role(ctx, scope, UserRole::Operator).await?;
    profiles::resolve_profile(ctx, Some(scope.project), &scope.profile).await?;
    let origin = origin_of_caller(&caller, by);
    let (digest, source) = (prepared.digest, prepared.text.source.clone());
    let stored = store_records(ctx, scope, &origin, vec![prepared]).await?;
    let mut partition = partitions::open_partition(ctx.conn(), scope).await?;
    let id = match stored.ids.first() {
        Some(id) => *id,
        None => records::find_equal_record(ctx.conn(), &partition, &source, &digest)
            .await?
            .ok_or_else(missing_record)?,
    };
    let mut record = get_record(ctx, &partition, id).await?;
    if stored.ids.is_empty() {
        if record.superseded_by.is_some() {
            return Err(Error::Conflict(CORRECTED_MESSAGE));
        }
        if record.state != MemoryState::Accepted && caller.bounds.is_none() {
            record = decide(ctx, &mut partition, &record, MemoryState::Accepted).await?;
        }
        return Ok(record);
    }
    record_memory_event(ctx, EventKind::MemoryRecorded, &record).await?;
    Ok(record)
}

fn missing_record() -> Error {
    Error::Internal(anyhow::anyhow!("a stored record is missing"))
}

/// Reads a record of a partition that this transaction has entered.
pub(crate) async fn get_record(
    ctx: &mut Ctx,
    partition: &Partition,
    id: MemoryId,
) -> Result<Memory, Error> {
    let found = records::get_record(ctx.conn(), partition, id).await?;
    found.ok_or_else(|| Error::not_found("memory", id))
}

/// Accepts or rejects a record for the caller, and records the event.
pub(crate) async fn decide(
    ctx: &mut Ctx,
    partition: &mut Partition,
    record: &Memory,
    state: MemoryState,
) -> Result<Memory, Error> {
    if state == MemoryState::Accepted {
        require_room(ctx, partition, state, 1).await?;
    }
    let by: Option<UserId> = Some(ctx.caller()?.user);
    let decision = MemoryDecision { state, by, at: ctx.now };
    records::decide_record(ctx.conn(), partition, record.id, decision).await?;
    let decided = get_record(ctx, partition, record.id).await?;
    let kind = match state {
        MemoryState::Accepted => EventKind::MemoryAccepted,
        MemoryState::Rejected | MemoryState::Proposed => EventKind::MemoryRejected,
    };
    record_memory_event(ctx, kind, &decided).await?;
    Ok(decided)
}

/// Records an event about a record. It carries no text.
pub(crate) async fn record_memory_event(
    ctx: &mut Ctx,
    kind: EventKind,
    record: &Memory,
) -> Result<(), Error> {
    let data = json!({
        "memory_id": record.id,
        "profile": record.scope.profile,
        "kind": record.kind,
        "state": record.state,
    });
    let draft = EventDraft::new(kind, data).with_project(record.scope.project);
    let draft = match record.origin.task {
        Some(task) if kind == EventKind::MemoryRecorded => draft.with_task(task),
        _ => draft,
    };
    ctx.record_event(draft).await
}

/// Enters the partition of a record that the caller may see, and reads the record. For others it does not exist.
pub(crate) async fn enter_record(
    ctx: &mut Ctx,
    id: MemoryId,
    mode: EntryMode,
) -> Result<(Partition, Memory), Error> {
    ctx.caller()?;
    let missing = || Error::not_found("memory", id);
    let scope = partitions::find_scope(ctx.conn(), id).await?.ok_or_else(missing)?;
    require_memory_role(ctx, &scope, UserRole::Viewer).await.map_err(|_| missing())?;
    if mode != EntryMode::Read {
        ctx.require_project_role(scope.project, UserRole::Operator).await?;
    }
    let partition = partitions::enter_partition(ctx.conn(), &scope, mode).await?;
    let partition = partition.ok_or_else(missing)?;
    let record = get_record(ctx, &partition, id).await?;
    Ok((partition, record))
}

/// Returns one record of a project that the caller may see.
#[tracing::instrument(name = "app.memory.get_memory", skip_all)]
#[operation]
pub async fn get_memory(
    app: &App,
    request: &OperationRequest,
    id: MemoryId,
) -> Result<Memory, Error> {
    let mut ctx = app.begin_transaction(request).await?;
    let (_, record) = enter_record(&mut ctx, id, EntryMode::Read).await?;
    ctx.rollback().await?;
    Ok(record)
}

/// Lists records, newest first.
#[tracing::instrument(name = "app.memory.list_memories", skip_all)]
#[operation]
pub async fn list_memories(
    app: &App,
    request: &OperationRequest,
    scope: &MemoryScope,
    filter: &RecordFilter,
    page: PageRequest,
) -> Result<Page<Memory>, Error> {
    let mut ctx = app.begin_transaction(request).await?;
    require_memory_role(&mut ctx, scope, UserRole::Viewer).await?;
    let entered = partitions::enter_partition(ctx.conn(), scope, EntryMode::Read).await?;
    let found = match entered {
        Some(partition) => records::list_records(ctx.conn(), &partition, filter, page).await?,
        None => Vec::new(),
    };
    ctx.rollback().await?;
    Ok(page.into_page(found, |record| record.id.as_uuid()))
}

/// Removes the records that ingests made of some paths of a source; how many. What people rejected, corrected or wrote stays, so that the
/// same text does not come back. It requires no role and records no event: the caller does both.
#[tracing::instrument(name = "app.memory.remove_paths", skip_all)]
#[operation]
pub async fn remove_paths(
    ctx: &mut Ctx,
    scope: &MemoryScope,
    source: &str,
    paths: &[String],
) -> Result<u64, Error> {
    let entered = partitions::enter_partition(ctx.conn(), scope, EntryMode::Lock).await?;
    let Some(mut partition) = entered else { return Ok(0) };
    if paths.is_empty() {
        return Ok(0);
    }
    let filter = records::ForgetFilter {
        source: Some(source.to_owned()),
        paths: paths.to_vec(),
        ingested_only: true,
        ..records::ForgetFilter::default()
    };
    super::forget::delete_matching(ctx, &mut partition, &filter, u64::MAX).await
}

/// Converts a record to its API view.
pub fn to_memory_view(record: &Memory) -> MemoryView {
    let (text, origin) = (&record.text, &record.origin);
    MemoryView {
        memory_id: record.id,
        project_id: record.scope.project,
        profile: record.scope.profile.clone(),
        kind: record.kind,
        state: record.state,
        title: text.title.clone(),
        content: text.content.clone(),
        source: text.source.clone(),
        path: text.path.clone(),
        url: text.url.clone(),
        commit: text.commit.clone(),
        author: origin.author,
        user_id: origin.user,
        role: origin.role.map(|role| role.as_str().to_owned()),
        task_id: origin.task,
        ingest_id: origin.ingest,
        pinned: record.pinned,
        untrusted: origin.untrusted,
        supersedes: record.supersedes,
        superseded_by: record.superseded_by,
        sha256: HEXLOWER.encode(&record.digest),
        created_at: record.created_at,
        decided_by: record.decided_by,
        decided_at: record.decided_at,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(path: Option<&str>) -> MemoryText {
        MemoryText {
            title: "Retries".to_owned(),
            content: "Wait twice as long each time.".to_owned(),
            source: "note".to_owned(),
            path: path.map(str::to_owned),
            url: None,
            commit: None,
        }
    }

    #[test]
    fn what_a_record_says_has_one_digest_and_a_file_has_its_own() {
        let digest = |path| digest_of(MemoryKind::Fact, &text(path));
        assert_eq!(digest(None), digest(None));
        assert_ne!(digest(None), digest(Some("a.md")));
        assert_ne!(digest(Some("a.md")), digest(Some("b.md")));
        assert_ne!(digest(None), digest_of(MemoryKind::Decision, &text(None)));
    }

    #[test]
    fn a_prepared_record_has_lexemes_and_their_number() {
        let prepared = prepare_record(MemoryKind::Fact, text(None), None).unwrap();
        let total: u32 = prepared.lexemes.iter().map(|(_, count)| count).sum();
        assert_eq!(i64::from(prepared.length), i64::from(total));
        assert!(prepared.lexemes.len() > 3, "{:?}", prepared.lexemes);
    }
}
