//! Records of memory. Callers hold the lock of the partition when they write.

use std::fmt::Write as _;

use cynode_core::{
    agents::AgentRole,
    ids::{IngestId, MemoryId, TaskId, UserId},
    memory::{MemoryAuthor, MemoryKind, MemoryScope, MemoryState, MemoryText},
    paging::PageRequest,
};
use serde::Serialize;
use time::OffsetDateTime;
use uuid::Uuid;

use crate::{
    Conn, DbError,
    memory::{
        partitions::Partition,
        postings::{self, IndexEntry},
    },
    platform::error::corrupt_column,
};

/// A record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Memory {
    /// Its id.
    pub id: MemoryId,
    /// The project and profile it belongs to.
    pub scope: MemoryScope,
    /// Its number in the index; `None`: no search finds it.
    pub record_no: Option<i32>,
    /// What it is.
    pub kind: MemoryKind,
    /// Whether it is found.
    pub state: MemoryState,
    /// Its texts.
    pub text: MemoryText,
    /// Who wrote it, and how it came here.
    pub origin: MemoryOrigin,
    /// Whether it outlives its age.
    pub pinned: bool,
    /// The record that it corrects.
    pub supersedes: Option<MemoryId>,
    /// The record that corrects it.
    pub superseded_by: Option<MemoryId>,
    /// The SHA-256 of its kind and texts.
    pub digest: [u8; 32],
    /// When it was written.
    pub created_at: OffsetDateTime,
    /// Who decided about the proposal.
    pub decided_by: Option<UserId>,
    /// When.
    pub decided_at: Option<OffsetDateTime>,
}

/// Who wrote a record, and how it came here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryOrigin {
    /// What wrote it.
    pub author: MemoryAuthor,
    /// The person, or the person for whom the agent works.
    pub user: Option<UserId>,
    /// The role of the agent.
    pub role: Option<AgentRole>,
    /// The task.
    pub task: Option<TaskId>,
    /// The ingest.
    pub ingest: Option<IngestId>,
    /// Whether a stranger may have written it.
    pub untrusted: bool,
}

/// A record that is to be stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewMemory {
    /// Its id.
    pub id: MemoryId,
    /// What it is.
    pub kind: MemoryKind,
    /// Whether it is found.
    pub state: MemoryState,
    /// Its texts.
    pub text: MemoryText,
    /// Who wrote it.
    pub origin: MemoryOrigin,
    /// Whether it outlives its age.
    pub pinned: bool,
    /// The record that it corrects.
    pub supersedes: Option<MemoryId>,
    /// The SHA-256 of its kind and texts.
    pub digest: [u8; 32],
    /// Its lexemes with their counts.
    pub lexemes: Vec<(String, u32)>,
    /// How many lexemes it has.
    pub length: i32,
    /// The version of the rules by which the lexemes were made.
    pub lexer_version: i16,
}

/// Which records are wanted. Those that were corrected are wanted only if asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecordFilter {
    /// Of these kinds; empty: of any.
    pub kinds: Vec<MemoryKind>,
    /// In this state.
    pub state: Option<MemoryState>,
    /// Of this source.
    pub source: Option<String>,
    /// Whose path begins so.
    pub path_prefix: Option<String>,
    /// Also those that were corrected.
    pub with_superseded: bool,
}

/// Which records are to be forgotten. All of the conditions must hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ForgetFilter {
    /// Of this source.
    pub source: Option<String>,
    /// Of these paths of it; empty: of any.
    pub paths: Vec<String>,
    /// Written before this time and not pinned.
    pub before: Option<OffsetDateTime>,
    /// Made by an ingest and found by searches: what people rejected, corrected or wrote is not wanted.
    pub ingested_only: bool,
}

struct MemoryRow {
    memory_id: Uuid,
    record_no: Option<i32>,
    kind: String,
    state: String,
    title: String,
    content: String,
    source: String,
    path: Option<String>,
    url: Option<String>,
    commit_hash: Option<String>,
    author: String,
    user_id: Option<Uuid>,
    agent_role: Option<String>,
    task_id: Option<Uuid>,
    ingest_id: Option<Uuid>,
    untrusted: bool,
    pinned: bool,
    supersedes: Option<Uuid>,
    superseded_by: Option<Uuid>,
    digest: Vec<u8>,
    created_at: OffsetDateTime,
    decided_by: Option<Uuid>,
    decided_at: Option<OffsetDateTime>,
}

impl MemoryRow {
    fn into_memory(self, scope: &MemoryScope) -> Result<Memory, DbError> {
        let wrong = |column| DbError::Corrupt { table: "memories", column };
        let role = match &self.agent_role {
            Some(name) => Some(AgentRole::from_name(name).ok_or_else(|| wrong("agent_role"))?),
            None => None,
        };
        let origin = MemoryOrigin {
            author: MemoryAuthor::from_name(&self.author).ok_or_else(|| wrong("author"))?,
            user: self.user_id.map(UserId::from_uuid),
            role,
            task: self.task_id.map(TaskId::from_uuid),
            ingest: self.ingest_id.map(IngestId::from_uuid),
            untrusted: self.untrusted,
        };
        let text = MemoryText {
            title: self.title,
            content: self.content,
            source: self.source,
            path: self.path,
            url: self.url,
            commit: self.commit_hash,
        };
        Ok(Memory {
            id: MemoryId::from_uuid(self.memory_id),
            scope: scope.clone(),
            record_no: self.record_no,
            kind: MemoryKind::from_name(&self.kind).ok_or_else(|| wrong("kind"))?,
            state: MemoryState::from_name(&self.state).ok_or_else(|| wrong("state"))?,
            text,
            origin,
            pinned: self.pinned,
            supersedes: self.supersedes.map(MemoryId::from_uuid),
            superseded_by: self.superseded_by.map(MemoryId::from_uuid),
            digest: self.digest.try_into().map_err(corrupt_column("memories", "digest"))?,
            created_at: self.created_at,
            decided_by: self.decided_by.map(UserId::from_uuid),
            decided_at: self.decided_at,
        })
    }
}

fn into_memories(rows: Vec<MemoryRow>, partition: &Partition) -> Result<Vec<Memory>, DbError> {
    rows.into_iter().map(|row| row.into_memory(&partition.scope)).collect()
}

/// A new record as the database reads it.
#[derive(Serialize)]
struct NewMemoryRow<'a> {
    memory_id: Uuid,
    record_no: Option<i32>,
    kind: &'static str,
    state: &'static str,
    title: &'a str,
    content: &'a str,
    source: &'a str,
    path: Option<&'a str>,
    url: Option<&'a str>,
    commit_hash: Option<&'a str>,
    author: &'static str,
    user_id: Option<Uuid>,
    agent_role: Option<&'static str>,
    task_id: Option<Uuid>,
    ingest_id: Option<Uuid>,
    untrusted: bool,
    pinned: bool,
    supersedes: Option<Uuid>,
    digest: String,
    lexemes: String,
    length: i32,
    lexer_version: i16,
}

impl<'a> NewMemoryRow<'a> {
    fn new(record: &'a NewMemory, record_no: Option<i32>) -> Self {
        let (text, origin) = (&record.text, &record.origin);
        Self {
            memory_id: record.id.as_uuid(),
            record_no,
            kind: record.kind.as_str(),
            state: record.state.as_str(),
            title: &text.title,
            content: &text.content,
            source: &text.source,
            path: text.path.as_deref(),
            url: text.url.as_deref(),
            commit_hash: text.commit.as_deref(),
            author: origin.author.as_str(),
            user_id: origin.user.map(UserId::as_uuid),
            agent_role: origin.role.map(AgentRole::as_str),
            task_id: origin.task.map(TaskId::as_uuid),
            ingest_id: origin.ingest.map(IngestId::as_uuid),
            untrusted: origin.untrusted,
            pinned: record.pinned,
            supersedes: record.supersedes.map(MemoryId::as_uuid),
            digest: to_hex(&record.digest),
            lexemes: write_lexemes(&record.lexemes),
            length: record.length,
            lexer_version: record.lexer_version,
        }
    }
}

fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// The lexemes of a record as they are stored: `lexeme:count`, separated by spaces.
fn write_lexemes(lexemes: &[(String, u32)]) -> String {
    let words: Vec<String> =
        lexemes.iter().map(|(lexeme, count)| format!("{lexeme}:{count}")).collect();
    words.join(" ")
}

/// Reads stored lexemes.
pub(crate) fn read_lexemes(stored: &str) -> Result<Vec<(String, u32)>, DbError> {
    let corrupt = || DbError::Corrupt { table: "memories", column: "lexemes" };
    let read = |word: &str| {
        let (lexeme, count) = word.rsplit_once(':')?;
        Some((lexeme.to_owned(), count.parse().ok()?))
    };
    stored
        .split(' ')
        .filter(|word| !word.is_empty())
        .map(|word| read(word).ok_or_else(corrupt))
        .collect()
}

/// Stores records, and adds those that are accepted to the index. A record whose text and source are there already is left out. Gives the
/// ids of the others.
#[tracing::instrument(name = "db.memory.insert_records", skip_all, fields(records = records.len()))]
pub async fn insert_records(
    conn: &mut Conn,
    partition: &mut Partition,
    records: &[NewMemory],
    now: OffsetDateTime,
) -> Result<Vec<MemoryId>, DbError> {
    let mut last = partition.last_record_no;
    let mut rows = Vec::with_capacity(records.len());
    let mut entries = Vec::new();
    for record in records {
        let record_no = (record.state == MemoryState::Accepted).then(|| {
            last = last.saturating_add(1);
            last
        });
        rows.push(NewMemoryRow::new(record, record_no));
        entries.extend(record_no.map(|record_no| {
            let (lexemes, length) = (record.lexemes.clone(), record.length);
            (record.id, IndexEntry { record_no, lexemes, length })
        }));
    }
    let inserted = insert_rows(conn, partition, &rows, now).await?;
    let entries: Vec<IndexEntry> = entries
        .into_iter()
        .filter(|(id, _)| inserted.contains(&id.as_uuid()))
        .map(|(_, entry)| entry)
        .collect();
    postings::add_entries(conn, partition, &entries).await?;
    let new = records.iter().map(|record| record.id);
    Ok(new.filter(|id| inserted.contains(&id.as_uuid())).collect())
}

async fn insert_rows(
    conn: &mut Conn,
    partition: &Partition,
    rows: &[NewMemoryRow<'_>],
    now: OffsetDateTime,
) -> Result<std::collections::HashSet<Uuid>, DbError> {
    let rows = serde_json::to_value(rows).map_err(corrupt_column("memories", "content"))?;
    let inserted = sqlx::query_scalar!(
        "
        INSERT INTO memories (memory_id, partition_no, project_id, profile, record_no, kind, state, title, content, source, path, url,
            commit_hash, author, user_id, agent_role, task_id, ingest_id, untrusted, pinned, supersedes, digest, lexemes, length,
            lexer_version, created_at)
        SELECT memory_id, $1, $2, $3, record_no, kind, state, title, content, source, path, url, commit_hash, author, user_id,
            agent_role, task_id, ingest_id, untrusted, pinned, supersedes, decode(digest, 'hex'), lexemes, length, lexer_version, $4
        FROM jsonb_to_recordset($5) AS new (memory_id uuid, record_no integer, kind text, state text, title text, content text,
            source text, path text, url text, commit_hash text, author text, user_id uuid, agent_role text, task_id uuid,
            ingest_id uuid, untrusted boolean, pinned boolean, supersedes uuid, digest text, lexemes text, length integer,
            lexer_version smallint)
        ON CONFLICT ON CONSTRAINT memories_digest_unique DO NOTHING
        RETURNING memory_id
        ",
        partition.number,
        partition.scope.project.as_uuid(),
        partition.scope.profile.as_str(),
        now,
        rows,
    )
    .fetch_all(conn)
    .await?;
    Ok(inserted.into_iter().collect())
}

/// The record with this text and source, if there is one.
#[tracing::instrument(name = "db.memory.find_equal_record", skip_all)]
pub async fn find_equal_record(
    conn: &mut Conn,
    partition: &Partition,
    source: &str,
    digest: &[u8; 32],
) -> Result<Option<MemoryId>, DbError> {
    let found = sqlx::query_scalar!(
        "SELECT memory_id FROM memories WHERE partition_no = $1 AND source = $2 AND digest = $3",
        partition.number,
        source,
        digest as &[u8],
    );
    Ok(found.fetch_optional(conn).await?.map(MemoryId::from_uuid))
}

/// One record.
#[tracing::instrument(name = "db.memory.get_record", skip_all)]
pub async fn get_record(
    conn: &mut Conn,
    partition: &Partition,
    id: MemoryId,
) -> Result<Option<Memory>, DbError> {
    let row = sqlx::query_as!(
        MemoryRow,
        "
        SELECT memory_id, record_no, kind, state, title, content, source, path, url, commit_hash, author, user_id, agent_role, task_id,
            ingest_id, untrusted, pinned, supersedes, superseded_by, digest, created_at, decided_by, decided_at
        FROM memories WHERE partition_no = $1 AND memory_id = $2
        ",
        partition.number,
        id.as_uuid(),
    )
    .fetch_optional(conn)
    .await?;
    row.map(|row| row.into_memory(&partition.scope)).transpose()
}

/// The indexed records with these numbers.
#[tracing::instrument(name = "db.memory.list_indexed_records", skip_all)]
pub async fn list_indexed_records(
    conn: &mut Conn,
    partition: &Partition,
    numbers: &[i32],
) -> Result<Vec<Memory>, DbError> {
    let rows = sqlx::query_as!(
        MemoryRow,
        "
        SELECT memory_id, record_no, kind, state, title, content, source, path, url, commit_hash, author, user_id, agent_role, task_id,
            ingest_id, untrusted, pinned, supersedes, superseded_by, digest, created_at, decided_by, decided_at
        FROM memories WHERE partition_no = $1 AND record_no = ANY ($2)
        ",
        partition.number,
        numbers,
    );
    into_memories(rows.fetch_all(conn).await?, partition)
}

/// The newest proposals of a task that nobody corrected.
#[tracing::instrument(name = "db.memory.list_task_proposals", skip_all)]
pub async fn list_task_proposals(
    conn: &mut Conn,
    partition: &Partition,
    task: TaskId,
    limit: i64,
) -> Result<Vec<Memory>, DbError> {
    let rows = sqlx::query_as!(
        MemoryRow,
        "
        SELECT memory_id, record_no, kind, state, title, content, source, path, url, commit_hash, author, user_id, agent_role, task_id,
            ingest_id, untrusted, pinned, supersedes, superseded_by, digest, created_at, decided_by, decided_at
        FROM memories
        WHERE partition_no = $1 AND task_id = $2 AND state = 'proposed' AND superseded_by IS NULL
        ORDER BY memory_id DESC LIMIT $3
        ",
        partition.number,
        task.as_uuid(),
        limit,
    );
    into_memories(rows.fetch_all(conn).await?, partition)
}

/// Some records, newest first, one more than the page holds.
#[tracing::instrument(name = "db.memory.list_records", skip_all)]
pub async fn list_records(
    conn: &mut Conn,
    partition: &Partition,
    filter: &RecordFilter,
    page: PageRequest,
) -> Result<Vec<Memory>, DbError> {
    let kinds: Vec<String> = filter.kinds.iter().map(|kind| kind.as_str().to_owned()).collect();
    let rows = sqlx::query_as!(
        MemoryRow,
        "
        SELECT memory_id, record_no, kind, state, title, content, source, path, url, commit_hash, author, user_id, agent_role, task_id,
            ingest_id, untrusted, pinned, supersedes, superseded_by, digest, created_at, decided_by, decided_at
        FROM memories
        WHERE partition_no = $1 AND ($2::uuid IS NULL OR memory_id < $2) AND (cardinality($3::text[]) = 0 OR kind = ANY ($3))
            AND ($4::text IS NULL OR state = $4) AND ($5::text IS NULL OR source = $5)
            AND ($6::text IS NULL OR starts_with(path, $6)) AND ($7 OR superseded_by IS NULL)
        ORDER BY memory_id DESC LIMIT $8
        ",
        partition.number,
        page.after.map(|cursor| cursor.0),
        &kinds,
        filter.state.map(MemoryState::as_str),
        filter.source.as_deref(),
        filter.path_prefix.as_deref(),
        filter.with_superseded,
        page.row_limit(),
    );
    into_memories(rows.fetch_all(conn).await?, partition)
}

/// How many proposals of the partition nobody has decided or corrected.
#[tracing::instrument(name = "db.memory.count_proposals", skip_all)]
pub async fn count_proposals(conn: &mut Conn, partition: &Partition) -> Result<i64, DbError> {
    let counted = sqlx::query_scalar!(
        r#"
        SELECT count(*) AS "proposals!" FROM memories
        WHERE partition_no = $1 AND state = 'proposed' AND superseded_by IS NULL
        "#,
        partition.number,
    );
    Ok(counted.fetch_one(conn).await?)
}

/// A decision about a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryDecision {
    /// What becomes of the record.
    pub state: MemoryState,
    /// Who decided; `None`: a rule.
    pub by: Option<UserId>,
    /// When.
    pub at: OffsetDateTime,
}

/// Accepts or rejects a record that was not corrected, and adds it to the index or removes it from there.
#[tracing::instrument(name = "db.memory.decide_record", skip_all)]
pub async fn decide_record(
    conn: &mut Conn,
    partition: &mut Partition,
    id: MemoryId,
    decision: MemoryDecision,
) -> Result<(), DbError> {
    let accepts = decision.state == MemoryState::Accepted;
    let present = read_entries(conn, partition, &[id]).await?;
    let next = partition.last_record_no.saturating_add(1);
    let record_no = accepts.then(|| present.iter().find_map(|row| row.record_no).unwrap_or(next));
    sqlx::query!(
        "
        UPDATE memories SET state = $3, record_no = $4, decided_by = $5, decided_at = $6
        WHERE partition_no = $1 AND memory_id = $2 AND superseded_by IS NULL
        ",
        partition.number,
        id.as_uuid(),
        decision.state.as_str(),
        record_no,
        decision.by.map(UserId::as_uuid),
        decision.at,
    )
    .execute(&mut *conn)
    .await?;
    if accepts {
        let added: Result<Vec<_>, _> = present
            .iter()
            .filter(|row| row.record_no.is_none())
            .map(|row| row.entry(next))
            .collect();
        postings::add_entries(conn, partition, &added?).await
    } else {
        remove_indexed(conn, partition, &present).await
    }
}

/// Notes that a record was corrected by another one. It is no longer found.
#[tracing::instrument(name = "db.memory.supersede_record", skip_all)]
pub async fn supersede_record(
    conn: &mut Conn,
    partition: &mut Partition,
    old: MemoryId,
    new: MemoryId,
) -> Result<(), DbError> {
    let present = read_entries(conn, partition, &[old]).await?;
    sqlx::query!(
        "UPDATE memories SET superseded_by = $3, record_no = NULL WHERE partition_no = $1 AND memory_id = $2",
        partition.number,
        old.as_uuid(),
        new.as_uuid(),
    )
    .execute(&mut *conn)
    .await?;
    remove_indexed(conn, partition, &present).await
}

/// Takes a record that was corrected out of the chain of versions: the one before it and the one behind it name each other.
#[tracing::instrument(name = "db.memory.unlink_version", skip_all)]
pub async fn unlink_version(
    conn: &mut Conn,
    partition: &Partition,
    id: MemoryId,
) -> Result<(), DbError> {
    sqlx::query!(
        "
        UPDATE memories m
        SET supersedes = CASE WHEN m.memory_id = gone.superseded_by THEN gone.supersedes ELSE m.supersedes END,
            superseded_by = CASE WHEN m.memory_id = gone.supersedes THEN gone.superseded_by ELSE m.superseded_by END
        FROM memories gone
        WHERE gone.partition_no = $1 AND gone.memory_id = $2 AND gone.superseded_by IS NOT NULL
            AND m.partition_no = $1 AND m.memory_id IN (gone.supersedes, gone.superseded_by)
        ",
        partition.number,
        id.as_uuid(),
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// Pins a record, or no longer.
#[tracing::instrument(name = "db.memory.set_pinned", skip_all)]
pub async fn set_pinned(
    conn: &mut Conn,
    partition: &Partition,
    id: MemoryId,
    pinned: bool,
) -> Result<(), DbError> {
    sqlx::query!(
        "UPDATE memories SET pinned = $3 WHERE partition_no = $1 AND memory_id = $2",
        partition.number,
        id.as_uuid(),
        pinned,
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// A record and those that it corrects, and that those do.
#[tracing::instrument(name = "db.memory.list_versions", skip_all)]
pub async fn list_versions(
    conn: &mut Conn,
    partition: &Partition,
    id: MemoryId,
) -> Result<Vec<MemoryId>, DbError> {
    let ids = sqlx::query_scalar!(
        r#"
        WITH RECURSIVE versions AS (
            SELECT memory_id, supersedes FROM memories WHERE partition_no = $1 AND memory_id = $2
            UNION
            SELECT m.memory_id, m.supersedes FROM memories m JOIN versions v ON m.memory_id = v.supersedes WHERE m.partition_no = $1
        )
        SELECT memory_id AS "memory_id!" FROM versions
        "#,
        partition.number,
        id.as_uuid(),
    );
    Ok(ids.fetch_all(conn).await?.into_iter().map(MemoryId::from_uuid).collect())
}

/// Some of the records that are to be forgotten.
#[tracing::instrument(name = "db.memory.find_forgettable", skip_all)]
pub async fn find_forgettable(
    conn: &mut Conn,
    partition: &Partition,
    filter: &ForgetFilter,
    limit: i64,
) -> Result<Vec<MemoryId>, DbError> {
    let ids = sqlx::query_scalar!(
        "
        SELECT memory_id FROM memories
        WHERE partition_no = $1 AND ($2::text IS NULL OR source = $2)
            AND (cardinality($3::text[]) = 0 OR md5(path) IN (SELECT md5(wanted) FROM unnest($3::text[]) AS wanted))
            AND ($4::timestamptz IS NULL OR (created_at < $4 AND NOT pinned))
            AND (NOT $5::boolean OR (ingest_id IS NOT NULL AND record_no IS NOT NULL))
        ORDER BY memory_id LIMIT $6
        ",
        partition.number,
        filter.source.as_deref(),
        &filter.paths,
        filter.before,
        filter.ingested_only,
        limit,
    );
    Ok(ids.fetch_all(conn).await?.into_iter().map(MemoryId::from_uuid).collect())
}

/// Deletes records, and all that the index has of them; how many.
#[tracing::instrument(name = "db.memory.delete_records", skip_all, fields(records = ids.len()))]
pub async fn delete_records(
    conn: &mut Conn,
    partition: &mut Partition,
    ids: &[MemoryId],
) -> Result<u64, DbError> {
    let present = read_entries(conn, partition, ids).await?;
    remove_indexed(conn, partition, &present).await?;
    let ids: Vec<Uuid> = ids.iter().map(|id| id.as_uuid()).collect();
    let done = sqlx::query!(
        "DELETE FROM memories WHERE partition_no = $1 AND memory_id = ANY ($2)",
        partition.number,
        &ids,
    );
    Ok(done.execute(conn).await?.rows_affected())
}

/// What the index has of a record.
struct EntryRow {
    record_no: Option<i32>,
    lexemes: String,
    length: i32,
}

impl EntryRow {
    fn entry(&self, record_no: i32) -> Result<IndexEntry, DbError> {
        let lexemes = read_lexemes(&self.lexemes)?;
        Ok(IndexEntry { record_no, lexemes, length: self.length })
    }
}

async fn read_entries(
    conn: &mut Conn,
    partition: &Partition,
    ids: &[MemoryId],
) -> Result<Vec<EntryRow>, DbError> {
    let ids: Vec<Uuid> = ids.iter().map(|id| id.as_uuid()).collect();
    let rows = sqlx::query_as!(
        EntryRow,
        "SELECT record_no, lexemes, length FROM memories WHERE partition_no = $1 AND memory_id = ANY ($2)",
        partition.number,
        &ids,
    );
    Ok(rows.fetch_all(conn).await?)
}

async fn remove_indexed(
    conn: &mut Conn,
    partition: &mut Partition,
    rows: &[EntryRow],
) -> Result<(), DbError> {
    let indexed = rows.iter().filter_map(|row| Some(row.entry(row.record_no?)));
    let entries: Result<Vec<IndexEntry>, DbError> = indexed.collect();
    postings::remove_entries(conn, partition, &entries?).await
}
