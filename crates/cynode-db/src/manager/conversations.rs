//! Chat threads with the project manager.

use cynode_core::{
    ids::{ProjectId, ThreadId, UserId},
    names::ProfileName,
    paging::PageRequest,
    workflow::handoffs::{ChatMessageState, ChatRole},
};
use time::{Duration, OffsetDateTime};
use uuid::Uuid;

use crate::{Conn, DbError, platform::error::corrupt_column};

/// A conversation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChatThread {
    /// Its id.
    pub id: ThreadId,
    /// Whose.
    pub user: UserId,
    /// Where.
    pub project: ProjectId,
    /// What it is called.
    pub title: String,
    /// The profile that its handoffs are worked on under; that of the preferences when it names none.
    pub profile: Option<ProfileName>,
    /// When it began.
    pub created_at: OffsetDateTime,
    /// When something was said last.
    pub updated_at: OffsetDateTime,
}

/// One turn.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChatMessageRecord {
    /// Its place.
    pub number: i64,
    /// Who said it.
    pub role: ChatRole,
    /// What was said.
    pub content: String,
    /// Whether it is complete.
    pub state: ChatMessageState,
    /// When.
    pub created_at: OffsetDateTime,
}

struct ChatMessageRow {
    number: i64,
    role: String,
    content: String,
    state: String,
    created_at: OffsetDateTime,
}

impl TryFrom<ChatMessageRow> for ChatMessageRecord {
    type Error = DbError;

    fn try_from(row: ChatMessageRow) -> Result<Self, DbError> {
        let corrupt = |column| DbError::Corrupt { table: "chat_messages", column };
        Ok(Self {
            number: row.number,
            role: ChatRole::from_name(&row.role).ok_or_else(|| corrupt("role"))?,
            content: row.content,
            state: ChatMessageState::from_name(&row.state).ok_or_else(|| corrupt("state"))?,
            created_at: row.created_at,
        })
    }
}

struct ChatThreadRow {
    thread_id: Uuid,
    user_id: Uuid,
    project_id: Uuid,
    title: String,
    profile: Option<String>,
    created_at: OffsetDateTime,
    updated_at: OffsetDateTime,
}

impl TryFrom<ChatThreadRow> for ChatThread {
    type Error = DbError;

    fn try_from(row: ChatThreadRow) -> Result<Self, DbError> {
        let profile: Result<Option<ProfileName>, _> =
            row.profile.map(TryInto::try_into).transpose();
        Ok(Self {
            id: ThreadId::from_uuid(row.thread_id),
            user: UserId::from_uuid(row.user_id),
            project: ProjectId::from_uuid(row.project_id),
            title: row.title,
            profile: profile.map_err(corrupt_column("chat_threads", "profile"))?,
            created_at: row.created_at,
            updated_at: row.updated_at,
        })
    }
}

/// The conversation that a person last had in a project, unless it is older than `idle`. It is locked.
#[tracing::instrument(name = "db.chat.lock_recent_thread", skip_all)]
pub async fn lock_recent_thread(
    conn: &mut Conn,
    user: UserId,
    project: ProjectId,
    idle: Duration,
    now: OffsetDateTime,
) -> Result<Option<ChatThread>, DbError> {
    let found = sqlx::query_as!(
        ChatThreadRow,
        "
        SELECT thread_id, user_id, project_id, title, profile, created_at, updated_at FROM chat_threads
        WHERE user_id = $1 AND project_id = $2 AND updated_at > $3
        ORDER BY updated_at DESC LIMIT 1 FOR UPDATE
        ",
        user.as_uuid(),
        project.as_uuid(),
        now - idle,
    );
    found.fetch_optional(conn).await?.map(ChatThread::try_from).transpose()
}

/// One conversation.
#[tracing::instrument(name = "db.chat.get_thread", skip_all)]
pub async fn get_thread(conn: &mut Conn, id: ThreadId) -> Result<Option<ChatThread>, DbError> {
    let found = sqlx::query_as!(
        ChatThreadRow,
        "
        SELECT thread_id, user_id, project_id, title, profile, created_at, updated_at FROM chat_threads
        WHERE thread_id = $1
        ",
        id.as_uuid(),
    );
    found.fetch_optional(conn).await?.map(ChatThread::try_from).transpose()
}

/// A person's conversations, newest first.
#[tracing::instrument(name = "db.chat.list_threads", skip_all)]
pub async fn list_threads(
    conn: &mut Conn,
    user: UserId,
    page: PageRequest,
) -> Result<Vec<ChatThread>, DbError> {
    let found = sqlx::query_as!(
        ChatThreadRow,
        "
        SELECT thread_id, user_id, project_id, title, profile, created_at, updated_at FROM chat_threads
        WHERE user_id = $1 AND ($2::uuid IS NULL OR thread_id < $2)
        ORDER BY thread_id DESC LIMIT $3
        ",
        user.as_uuid(),
        page.after.map(|cursor| cursor.0),
        page.row_limit(),
    );
    found.fetch_all(conn).await?.into_iter().map(ChatThread::try_from).collect()
}

/// Begins a conversation.
#[tracing::instrument(name = "db.chat.insert_thread", skip_all)]
pub async fn insert_thread(conn: &mut Conn, thread: &ChatThread) -> Result<(), DbError> {
    sqlx::query!(
        "
        INSERT INTO chat_threads (thread_id, user_id, project_id, title, created_at, updated_at, profile)
        VALUES ($1, $2, $3, $4, $5, $6, $7)
        ",
        thread.id.as_uuid(),
        thread.user.as_uuid(),
        thread.project.as_uuid(),
        thread.title,
        thread.created_at,
        thread.updated_at,
        thread.profile.as_ref().map(ProfileName::as_str),
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// Adds a turn; to be called in a transaction.
#[tracing::instrument(name = "db.chat.append_message", skip_all)]
pub async fn append_message(
    conn: &mut Conn,
    thread: ThreadId,
    role: ChatRole,
    content: &str,
    state: ChatMessageState,
    now: OffsetDateTime,
) -> Result<(), DbError> {
    // First, and by itself: whoever waits for another turn must see it when it counts.
    let locked = sqlx::query_scalar!(
        "SELECT thread_id FROM chat_threads WHERE thread_id = $1 FOR UPDATE",
        thread.as_uuid(),
    );
    locked.fetch_optional(&mut *conn).await?;
    sqlx::query!(
        "
        WITH thread AS (
            UPDATE chat_threads SET updated_at = greatest(updated_at, $5) WHERE thread_id = $1 RETURNING thread_id
        )
        INSERT INTO chat_messages (thread_id, number, role, content, state, created_at)
        SELECT thread_id, 1 + coalesce((SELECT max(number) FROM chat_messages m WHERE m.thread_id = $1), 0), $2, $3, $4, $5
        FROM thread
        ",
        thread.as_uuid(),
        role.as_str(),
        content,
        state.as_str(),
        now,
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// What was said, oldest first.
#[tracing::instrument(name = "db.chat.list_thread_messages", skip_all)]
pub async fn list_thread_messages(
    conn: &mut Conn,
    thread: ThreadId,
) -> Result<Vec<ChatMessageRecord>, DbError> {
    let found = sqlx::query_as!(
        ChatMessageRow,
        "
        SELECT number, role, content, state, created_at FROM
            (SELECT * FROM chat_messages WHERE thread_id = $1 ORDER BY number DESC LIMIT 500) newest
        ORDER BY number
        ",
        thread.as_uuid(),
    );
    found.fetch_all(conn).await?.into_iter().map(ChatMessageRecord::try_from).collect()
}

/// The person's own project for conversations that name none: the only one they are in, if there is one.
#[tracing::instrument(name = "db.chat.only_project", skip_all)]
pub async fn only_project(conn: &mut Conn, user: UserId) -> Result<Option<ProjectId>, DbError> {
    let found = sqlx::query_scalar!(
        "
        SELECT project_id FROM projects p
        WHERE EXISTS (SELECT FROM project_members m WHERE m.project_id = p.project_id AND m.user_id = $1)
            OR EXISTS (SELECT FROM role_bindings b WHERE b.user_id = $1 AND (b.project_id IS NULL OR b.project_id = p.project_id))
            OR EXISTS (SELECT FROM group_members g JOIN role_bindings b USING (group_id)
                WHERE g.user_id = $1 AND (b.project_id IS NULL OR b.project_id = p.project_id))
        LIMIT 2
        ",
        user.as_uuid(),
    )
    .fetch_all(conn)
    .await?;
    Ok(match found.as_slice() {
        [only] => Some(ProjectId::from_uuid(*only)),
        _ => None,
    })
}
