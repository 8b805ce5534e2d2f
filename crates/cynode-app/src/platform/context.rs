use std::{future::Future, pin::Pin, sync::Arc};

use cynode_core::{
    accounts::CallerCredential,
    events::{EventKind, EventPosition},
    ids::{NotificationId, ProjectId, SessionId, TaskId, UserId},
    notifications::is_notifiable,
    roles::UserRole,
    trace::TraceId,
};
use cynode_db::{
    Conn, DbError, Tx,
    identity::authentication,
    notifications::{self, NotificationChannel, NotificationTopic},
    tasks::events,
};
use serde::Serialize;
use serde_json::{Value, json};
use time::OffsetDateTime;
use uuid::Uuid;

use crate::{
    App, AppEnvironment, AuthenticatedCaller, Error, IdempotentAttempt, LifetimePolicy,
    OperationAnswer,
    platform::{
        idempotency::{self, AnswerSecrecy},
        operation,
        rate_limits::AccountLimiter,
        tokens::TokenKeys,
    },
};

/// Lock timeout of the reconciler. It retries soon, and other callers wait behind it.
const LOCK_TIMEOUT_MS: u32 = 250;

/// Facts about one request that an interface hands to an operation.
#[derive(Clone, Debug)]
pub struct OperationRequest {
    /// Authenticated caller. `None` for the few operations that need no account.
    pub caller: Option<AuthenticatedCaller>,
    /// Trace of the request.
    pub trace: TraceId,
    /// Idempotency key and digest, by which a repeat is recognized.
    pub attempt: Option<IdempotentAttempt>,
}

/// Future of an operation.
pub type OperationFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, Error>> + Send + 'a>>;

/// An operation that gives the bytes of its answer.
type SerializedOperation<'f> =
    Box<dyn for<'a> FnOnce(&'a mut Ctx) -> OperationFuture<'a, Vec<u8>> + Send + 'f>;

/// Makes one type of all operations, so that what surrounds them is compiled once.
fn serialize_answer_of<'f, T: Serialize + 'static>(
    operation: impl for<'a> FnOnce(&'a mut Ctx) -> OperationFuture<'a, T> + Send + 'f,
) -> SerializedOperation<'f> {
    Box::new(move |ctx| {
        let answer = operation(ctx);
        Box::pin(async move {
            serde_json::to_vec(&answer.await?).map_err(|error| Error::Internal(error.into()))
        })
    })
}

/// Context of an operation: one open transaction, the caller and the time.
pub struct Ctx {
    conn: OperationConnection,
    environment: AppEnvironment,
    limits: Arc<AccountLimiter>,
    tokens: TokenKeys,
    caller: Option<AuthenticatedCaller>,
    /// Trace that the operation belongs to.
    pub trace: TraceId,
    /// Time of the operation. Everything that it writes carries this time.
    pub now: OffsetDateTime,
    /// Configured lifetimes of the installation.
    pub policy: LifetimePolicy,
    /// Whether the caller lacked a role.
    refused: bool,
    /// Tasks whose runs may have become due.
    woke: Vec<TaskId>,
    /// Whether a job was queued.
    queued: bool,
    /// Whether a notification was queued.
    told: bool,
    /// Number of events that streams have to read.
    recorded: usize,
}

impl App {
    /// Runs an operation that only reads.
    pub async fn read<T>(
        &self,
        request: &OperationRequest,
        operation: impl for<'a> FnOnce(&'a mut Ctx) -> OperationFuture<'a, T>,
    ) -> Result<T, Error> {
        let mut ctx = self.begin_read(request).await?;
        operation(&mut ctx).await
    }

    /// Runs an operation that changes state. Its writes, its events and the answer stored for a repeat are one
    /// transaction. A repeat with the same idempotency key gets the same answer and has no effect.
    pub async fn mutate<T: Serialize + 'static>(
        &self,
        request: &OperationRequest,
        operation: impl for<'a> FnOnce(&'a mut Ctx) -> OperationFuture<'a, T> + Send,
    ) -> Result<OperationAnswer, Error> {
        let operation = serialize_answer_of(operation);
        self.run_operation(request, AnswerSecrecy::Open, operation).await
    }

    /// Runs an operation like [`Self::mutate`] whose answer holds a secret: the stored answer is sealed with the
    /// caller's own token, which is not stored.
    pub async fn run_secret_mutation<T: Serialize + 'static>(
        &self,
        request: &OperationRequest,
        operation: impl for<'a> FnOnce(&'a mut Ctx) -> OperationFuture<'a, T> + Send,
    ) -> Result<OperationAnswer, Error> {
        let operation = serialize_answer_of(operation);
        self.run_operation(request, AnswerSecrecy::Sealed, operation).await
    }

    #[operation]
    async fn begin_read(&self, request: &OperationRequest) -> Result<Ctx, Error> {
        let conn = self.conn().await?;
        Ok(self.build_ctx(request, OperationConnection::Plain(conn)))
    }

    fn run_operation<'f>(
        &'f self,
        request: &'f OperationRequest,
        secrecy: AnswerSecrecy,
        operation: SerializedOperation<'f>,
    ) -> OperationFuture<'f, OperationAnswer> {
        Box::pin(async move {
            let mut ctx = self.begin_transaction(request).await?;
            let body = match operation(&mut ctx).await {
                Ok(body) => body,
                // A caller who lost the role gets nothing more, not even an earlier answer.
                Err(error) if ctx.refused => return Err(error),
                // The first attempt may have made a second one impossible: a name is taken, a token is used.
                Err(error) => {
                    return self.replay_answer(ctx, request, secrecy).await?.ok_or(error);
                }
            };
            if let Some(attempt) = &request.attempt {
                let kept =
                    idempotency::store_answer(&mut ctx, request, attempt, secrecy, &body).await?;
                if !kept {
                    let earlier = self.replay_answer(ctx, request, secrecy).await?;
                    return earlier.ok_or(Error::IdempotencyKeyReused);
                }
            }
            self.commit_operation(ctx).await?;
            Ok(OperationAnswer { body, replayed: false })
        })
    }

    /// Commits the operation and wakes the waiters that it concerns.
    pub(crate) async fn commit_operation(&self, mut ctx: Ctx) -> Result<(), Error> {
        let (woke, queued, told) = (std::mem::take(&mut ctx.woke), ctx.queued, ctx.told);
        let recorded = ctx.recorded;
        ctx.commit().await?;
        // Every stream reads after an announcement: without new events that would cost more than the commit.
        if recorded > 0 {
            self.announce_commit();
        }
        if !woke.is_empty() {
            self.announce_due_runs(&woke);
        }
        if queued {
            self.announce_queued_work();
        }
        if told {
            self.announce_notifications();
        }
        Ok(())
    }

    async fn replay_answer(
        &self,
        ctx: Ctx,
        request: &OperationRequest,
        secrecy: AnswerSecrecy,
    ) -> Result<Option<OperationAnswer>, Error> {
        // The failed transaction accepts no more statements. Dropping it rolls it back.
        drop(ctx);
        let Some(attempt) = &request.attempt else { return Ok(None) };
        let mut ctx = self.begin_transaction(request).await?;
        idempotency::find_stored_answer(&mut ctx, request, attempt, secrecy).await
    }

    pub(crate) async fn begin_transaction(&self, request: &OperationRequest) -> Result<Ctx, Error> {
        let tx = self.begin().await?;
        Ok(self.build_ctx(request, OperationConnection::Tx(tx)))
    }

    /// Begins a transaction that gives up soon when it waits for a lock.
    pub(crate) async fn begin_transaction_with_lock_timeout(
        &self,
        request: &OperationRequest,
    ) -> Result<Ctx, Error> {
        let mut ctx = self.begin_transaction(request).await?;
        cynode_db::workflow::set_lock_timeout(ctx.conn(), LOCK_TIMEOUT_MS).await?;
        Ok(ctx)
    }

    fn build_ctx(&self, request: &OperationRequest, conn: OperationConnection) -> Ctx {
        Ctx {
            conn,
            environment: self.environment.clone(),
            limits: self.limits.clone(),
            tokens: self.tokens.clone(),
            caller: request.caller,
            trace: request.trace,
            now: self.environment.now(),
            policy: self.policy,
            refused: false,
            woke: Vec::new(),
            queued: false,
            told: false,
            recorded: 0,
        }
    }

    /// Requires a role in the project without opening a transaction. Rejects a caller whose role is weaker.
    pub(crate) async fn require_project_role(
        &self,
        request: &OperationRequest,
        project: ProjectId,
        needed: UserRole,
    ) -> Result<AuthenticatedCaller, Error> {
        match request.caller {
            // The role in the installation is enough: no query is needed.
            Some(caller) if caller.role >= Some(needed) => Ok(caller),
            _ => {
                self.read(request, |ctx| Box::pin(ctx.require_project_role(project, needed))).await
            }
        }
    }

    /// Returns the sources of time and randomness.
    pub const fn environment(&self) -> &AppEnvironment {
        &self.environment
    }

    /// Returns a receiver of the count of this process's commits that brought events.
    pub fn subscribe_commits(&self) -> tokio::sync::watch::Receiver<u64> {
        self.commits.subscribe()
    }

    /// A connection of the pool, for queries that need no transaction.
    pub(crate) async fn conn(&self) -> Result<cynode_db::PooledConn, DbError> {
        cynode_db::acquire_connection(&self.pool).await
    }

    /// A transaction of the pool, for work without an operation's context.
    pub(crate) async fn begin(&self) -> Result<cynode_db::Tx, DbError> {
        cynode_db::begin_transaction(&self.pool).await
    }

    /// The pool itself, for parts that take connections in batches.
    pub(crate) const fn pool(&self) -> &cynode_db::Pool {
        &self.pool
    }

    pub(crate) fn shared_state(&self) -> &crate::SharedState {
        &self.shared
    }

    pub(crate) fn password_hashing(&self) -> crate::platform::password_hashing::PasswordHashing {
        self.hashing.clone()
    }
}

impl OperationRequest {
    /// Returns the owner of idempotency keys. The keys of one credential never collide with those of another.
    pub(crate) fn idempotency_owner(&self) -> Uuid {
        match self.caller.map(|caller| caller.credential) {
            Some(CallerCredential::Session(id)) => id.as_uuid(),
            Some(CallerCredential::ApiKey(id)) => id.as_uuid(),
            Some(CallerCredential::Agent(id)) => id.as_uuid(),
            Some(CallerCredential::Link(id)) => id.as_uuid(),
            Some(CallerCredential::Schedule(id)) => id.as_uuid(),
            None => Uuid::nil(),
        }
    }
}

impl Ctx {
    /// Returns the connection to the database.
    pub(crate) fn conn(&mut self) -> &mut Conn {
        match &mut self.conn {
            OperationConnection::Plain(conn) => conn,
            OperationConnection::Tx(tx) => tx,
        }
    }

    /// Commits the writes. Without a commit all of them are rolled back.
    pub(crate) async fn commit(self) -> Result<(), Error> {
        match self.conn {
            OperationConnection::Plain(_) => Ok(()),
            OperationConnection::Tx(tx) => {
                Ok(tx.commit().await.map_err(cynode_db::DbError::from)?)
            }
        }
    }

    /// Rolls back at once. A transaction that is only dropped keeps its locks until the pool cleans up its
    /// connection.
    pub(crate) async fn rollback(self) -> Result<(), Error> {
        match self.conn {
            OperationConnection::Plain(_) => Ok(()),
            OperationConnection::Tx(tx) => {
                Ok(tx.rollback().await.map_err(cynode_db::DbError::from)?)
            }
        }
    }

    /// Returns the authenticated caller.
    pub fn caller(&self) -> Result<AuthenticatedCaller, Error> {
        self.caller.ok_or(Error::Unauthenticated)
    }

    /// Returns whether the caller is an agent, and not a person.
    pub(crate) fn is_agent(&self) -> bool {
        self.caller.is_some_and(|caller| caller.bounds.is_some())
    }

    /// Requires the session of a person. Rejects API keys, links and agents, however strong their user is.
    pub(crate) fn require_session(
        &mut self,
        act: &str,
    ) -> Result<(AuthenticatedCaller, SessionId), Error> {
        let caller = self.caller()?;
        if let CallerCredential::Session(session) = caller.credential {
            return Ok((caller, session));
        }
        self.refused = true;
        Err(Error::KeyDenied(format!("only a person who is logged in can {act}")))
    }

    /// Rejects an API key of some projects, for what is not about one project.
    pub(crate) fn reject_limited_key(&mut self) -> Result<(), Error> {
        if !is_limited_to_projects(&self.caller()?) {
            return Ok(());
        }
        self.refused = true;
        Err(Error::KeyDenied("this API key opens some projects only: name one of them".into()))
    }

    /// Requires a role in the installation. Rejects a caller whose role is weaker.
    pub fn require_role(&mut self, needed: UserRole) -> Result<AuthenticatedCaller, Error> {
        let caller = self.caller()?;
        self.refused = caller.role < Some(needed);
        if self.refused { Err(Error::forbidden(needed, "in the installation")) } else { Ok(caller) }
    }

    /// Requires a role in the project. Rejects a caller whose role is weaker. For a caller without any role in it,
    /// the project does not exist.
    pub async fn require_project_role(
        &mut self,
        project: ProjectId,
        needed: UserRole,
    ) -> Result<AuthenticatedCaller, Error> {
        let caller = self.caller()?;
        if caller.role >= Some(needed) {
            return Ok(caller);
        }
        if caller.bounds.is_some_and(|bounds| bounds.project != project) {
            self.refused = true;
            return Err(Error::not_found("project", project));
        }
        let limit = caller.key.and_then(|key| key.project_limit);
        let covered = match (limit, caller.credential) {
            (None, _) => true,
            (Some(_), CallerCredential::ApiKey(key)) => {
                authentication::is_project_of_key(self.conn(), key, project).await?
            }
            (Some(_), _) => false,
        };
        if !covered {
            self.refused = true;
            return Err(Error::not_found("project", project));
        }
        let own = authentication::project_role(self.conn(), caller.user, project).await?;
        let role = match (caller.bounds, limit) {
            // An agent never manages users, settings or policy, even when it works for an admin.
            (Some(bounds), _) => own.max(bounds.person).min(Some(UserRole::Operator)),
            (None, Some(limit)) => own.max(limit.person),
            (None, None) => own.max(caller.role),
        };
        self.refused = role < Some(needed);
        match role {
            Some(role) if role >= needed => Ok(caller),
            Some(_) => Err(Error::forbidden(needed, "in the project")),
            None => Err(Error::not_found("project", project)),
        }
    }

    /// Requires a role in the installation or in any project. Rejects a caller whose roles are all weaker.
    pub(crate) async fn require_role_anywhere(
        &mut self,
        needed: UserRole,
    ) -> Result<AuthenticatedCaller, Error> {
        let caller = self.caller()?;
        if caller.role >= Some(needed) {
            return Ok(caller);
        }
        self.reject_limited_key()?;
        let role = authentication::strongest_project_role(self.conn(), caller.user).await?;
        self.refused = role < Some(needed);
        if self.refused {
            return Err(Error::forbidden(needed, "in the installation or in a project"));
        }
        Ok(caller)
    }

    /// Returns `None` when the caller may see every project, else the user whose projects are visible.
    pub(crate) fn visibility_filter(&self) -> Result<Option<UserId>, Error> {
        let caller = self.caller()?;
        if caller.bounds.is_some() {
            return Err(Error::Invalid("an agent asks for its project".into()));
        }
        if is_limited_to_projects(&caller) {
            let told = "this API key opens some projects only: name one of them";
            return Err(Error::KeyDenied(told.into()));
        }
        Ok(if caller.role.is_some() { None } else { Some(caller.user) })
    }

    /// Marks a run as possibly due. The reconciler is woken after the commit.
    pub(crate) fn wake_task(&mut self, task: TaskId) {
        self.woke.push(task);
    }

    /// Marks that a job was queued. Waiting workers are woken after the commit.
    pub(crate) const fn mark_job_queued(&mut self) {
        self.queued = true;
    }

    /// Marks that the state of a job changed. The database has stored the event; streams are woken after the commit.
    pub(crate) const fn mark_job_changed(&mut self) {
        self.recorded += 1;
    }

    /// Makes every replica load its policy again, and the models with it. Call it only when a policy decision may have
    /// changed. Rejects an account that does so too often.
    pub(crate) async fn invalidate_policy(&mut self) -> Result<(), Error> {
        self.count_change()?;
        Ok(cynode_db::tools::policy::bump_policy_epoch(self.conn()).await?)
    }

    /// Makes every replica load its models and known secrets again. Call it only when one of them has changed. Rejects
    /// an account that does so too often.
    pub(crate) async fn invalidate_models(&mut self) -> Result<(), Error> {
        self.count_change()?;
        Ok(cynode_db::models::registry::bump_registry_epoch(self.conn()).await?)
    }

    /// Counts a change that every replica has to load. The installation itself and its admins have no limit.
    pub(crate) fn count_change(&self) -> Result<(), Error> {
        match self.caller {
            Some(caller) if caller.role < Some(UserRole::Admin) => {
                self.limits.count_change(caller.user)
            }
            Some(_) | None => Ok(()),
        }
    }

    /// Counts the look-up of a device's code by the caller.
    pub(crate) fn count_device_code(&self) -> Result<(), Error> {
        self.limits.count_device_code(self.caller()?.user)
    }

    /// Returns a new id.
    pub(crate) fn new_uuid(&self) -> Uuid {
        self.environment.new_uuid(self.now)
    }

    /// Returns the sources of time and randomness.
    pub(crate) const fn environment(&self) -> &AppEnvironment {
        &self.environment
    }

    /// Returns the keys under which tokens are stored.
    pub(crate) const fn token_keys(&self) -> &TokenKeys {
        &self.tokens
    }

    /// Records an event in this transaction.
    pub(crate) async fn record_event(&mut self, told: EventDraft) -> Result<(), Error> {
        let (trace, now, actor) = (self.trace, self.now, self.caller.map(|caller| caller.user));
        let event = told.into_event(actor);
        let inserted = events::insert_event(self.conn(), &event, trace, now).await?;
        self.recorded += 1;
        if inserted.has_channels {
            self.queue_notifications(&event, inserted.position).await?;
        }
        Ok(())
    }

    /// Queues notifications of an event in the outboxes of subscribed channels. Most kinds of event notify nobody and
    /// cost nothing.
    async fn queue_notifications(
        &mut self,
        event: &events::NewEvent,
        place: EventPosition,
    ) -> Result<(), Error> {
        let kind = event.kind.as_str();
        if !is_notifiable(kind) {
            return Ok(());
        }
        let about = NotificationTopic { kind, project: event.project, subject: event.subject };
        let (trace, now) = (self.trace, self.now);
        let channels = notifications::list_subscribed_channels(self.conn(), about, None, now);
        for channel in channels.await? {
            let id = NotificationId::from_uuid(self.new_uuid());
            notifications::queue_notification(self.conn(), id, channel, event, place, trace, now)
                .await?;
            self.told = true;
        }
        Ok(())
    }

    /// Marks that a notification was queued. The outbox worker is woken after the commit.
    pub(crate) const fn mark_notified(&mut self) {
        self.told = true;
    }
}

/// Returns whether the caller is an API key that opens some projects only.
pub(crate) fn is_limited_to_projects(caller: &AuthenticatedCaller) -> bool {
    caller.key.is_some_and(|key| key.project_limit.is_some())
}

/// Connection of an operation.
enum OperationConnection {
    /// A read needs no transaction: each statement sees committed data.
    Plain(cynode_db::PooledConn),
    /// Writes are one transaction. Dropping it rolls it back.
    Tx(Tx),
}

/// An event before it has a sequence number and a time.
pub(crate) struct EventDraft {
    kind: EventKind,
    subject: Option<UserId>,
    project: Option<ProjectId>,
    task: Option<TaskId>,
    data: Value,
}

impl EventDraft {
    /// Creates an event of that kind about the installation.
    pub(crate) fn new(kind: EventKind, data: Value) -> Self {
        Self { kind, subject: None, project: None, task: None, data }
    }

    /// Creates the event of a changed notification channel.
    pub(crate) fn of_channel(channel: &NotificationChannel, change: &str) -> Self {
        let data = json!({ "channel_id": channel.id, "kind": channel.kind, "change": change });
        Self::new(EventKind::NotificationChannelSet, data)
    }

    /// Returns the event with `actor` as its cause.
    pub(crate) fn into_event(self, actor: Option<UserId>) -> events::NewEvent {
        let Self { kind, subject, project, task, data } = self;
        events::NewEvent { kind, actor, subject, project, task, data }
    }

    /// Sets the user account that the event concerns.
    pub(crate) const fn with_subject(mut self, user: UserId) -> Self {
        self.subject = Some(user);
        self
    }

    /// Sets the project of the event.
    pub(crate) const fn with_project(mut self, project: ProjectId) -> Self {
        self.project = Some(project);
        self
    }

    /// Sets the task of the event.
    pub(crate) const fn with_task(mut self, task: TaskId) -> Self {
        self.task = Some(task);
        self
    }
}
