use std::{future::Future, pin::Pin, sync::Arc};

use cynode_core::{
    accounts::Credential,
    events::EventKind,
    ids::{NotificationId, ProjectId, TaskId, UserId},
    notices::is_told,
    roles::Role,
    trace::TraceId,
};
use cynode_db::{
    Conn, Tx, authentication, events,
    notices::{self, Concerns},
};
use cynode_wire::events::Position;
use serde::Serialize;
use serde_json::Value;
use time::OffsetDateTime;
use tokio::sync::futures::OwnedNotified;
use uuid::Uuid;

use crate::{
    Answer, App, Attempt, Caller, Environment, Error, Policy,
    idempotency::{self, Secrecy},
};

/// What a front door knows about one request.
#[derive(Clone, Debug)]
pub struct Request {
    /// Who asks; `None` for the few operations that come before an account.
    pub caller: Option<Caller>,
    /// The trace it belongs to.
    pub trace: TraceId,
    /// How a repeat of it is recognised.
    pub attempt: Option<Attempt>,
}

/// The future of an operation.
pub type Operation<'a, T> = Pin<Box<dyn Future<Output = Result<T, Error>> + Send + 'a>>;

/// What an operation works with: one open transaction, who asks, and when.
pub struct Ctx {
    conn: Connection,
    environment: Environment,
    caller: Option<Caller>,
    /// The trace the operation belongs to.
    pub trace: TraceId,
    /// The moment of the operation; everything it writes bears this time.
    pub now: OffsetDateTime,
    /// What the installation decided.
    pub policy: Policy,
    /// Whether the caller was refused for want of a role.
    refused: bool,
    /// Whose runs may have become due.
    woke: Vec<TaskId>,
    /// Whether a job was queued.
    queued: bool,
    /// Whether somebody is to be told something.
    told: bool,
    /// How many events there are for streams to read.
    recorded: usize,
}

impl App {
    /// Runs an operation that only reads.
    pub async fn read<T>(
        &self,
        request: &Request,
        operation: impl for<'a> FnOnce(&'a mut Ctx) -> Operation<'a, T>,
    ) -> Result<T, Error> {
        let conn = self.pool.acquire().await.map_err(cynode_db::DbError::from)?;
        let mut ctx = self.context(request, Connection::Plain(conn));
        operation(&mut ctx).await
    }

    /// Runs an operation that changes state: its writes, its events and the answer kept for a repeat
    /// are one transaction. Sent again with the same key, it gives the same answer and does nothing.
    pub async fn mutate<T: Serialize>(
        &self,
        request: &Request,
        operation: impl for<'a> FnOnce(&'a mut Ctx) -> Operation<'a, T>,
    ) -> Result<Answer, Error> {
        self.run(request, Secrecy::Open, operation).await
    }

    /// Like [`Self::mutate`], for an answer that holds a secret: what is kept for a repeat is sealed
    /// with the caller's own token, which we do not keep.
    pub async fn mutate_secret<T: Serialize>(
        &self,
        request: &Request,
        operation: impl for<'a> FnOnce(&'a mut Ctx) -> Operation<'a, T>,
    ) -> Result<Answer, Error> {
        self.run(request, Secrecy::Sealed, operation).await
    }

    async fn run<T: Serialize>(
        &self,
        request: &Request,
        secrecy: Secrecy,
        operation: impl for<'a> FnOnce(&'a mut Ctx) -> Operation<'a, T>,
    ) -> Result<Answer, Error> {
        let mut ctx = self.open(request).await?;
        let body = match operation(&mut ctx).await {
            Ok(value) => serde_json::to_vec(&value).map_err(|e| Error::Internal(e.into()))?,
            // Who lost the role gets nothing more, not even what was theirs.
            Err(error) if ctx.refused => return Err(error),
            // The first attempt may have made a second one impossible: a name taken, a token used up.
            Err(error) => return self.replay(ctx, request, secrecy).await?.ok_or(error),
        };
        if let Some(attempt) = &request.attempt {
            let kept = idempotency::keep(&mut ctx, request, attempt, secrecy, &body).await?;
            if !kept {
                return self.replay(ctx, request, secrecy).await?.ok_or(Error::KeyReused);
            }
        }
        self.commit(ctx).await?;
        Ok(Answer { body, replayed: false })
    }

    /// Makes what was written last, and tells whoever waits for it.
    pub(crate) async fn commit(&self, mut ctx: Ctx) -> Result<(), Error> {
        let (woke, queued, told) = (std::mem::take(&mut ctx.woke), ctx.queued, ctx.told);
        let recorded = ctx.recorded;
        ctx.commit().await?;
        // Each stream reads when it is told to: for nothing, that costs more than the commit.
        if recorded > 0 {
            self.committed();
        }
        if !woke.is_empty() {
            self.woken(&woke);
        }
        if queued {
            self.queued();
        }
        if told {
            self.signs.told.notify_one();
        }
        Ok(())
    }

    async fn replay(
        &self,
        ctx: Ctx,
        request: &Request,
        secrecy: Secrecy,
    ) -> Result<Option<Answer>, Error> {
        // The failed transaction cannot be asked anything more; dropped, it is rolled back.
        drop(ctx);
        let Some(attempt) = &request.attempt else { return Ok(None) };
        let mut ctx = self.open(request).await?;
        idempotency::find(&mut ctx, request, attempt, secrecy).await
    }

    pub(crate) async fn open(&self, request: &Request) -> Result<Ctx, Error> {
        let tx = self.pool.begin().await.map_err(cynode_db::DbError::from)?;
        Ok(self.context(request, Connection::Tx(tx)))
    }

    fn context(&self, request: &Request, conn: Connection) -> Ctx {
        Ctx {
            conn,
            environment: self.environment.clone(),
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

    /// Refuses a caller whose role in the project is weaker, without a transaction.
    pub(crate) async fn permit(
        &self,
        request: &Request,
        project: ProjectId,
        needed: Role,
    ) -> Result<Caller, Error> {
        match request.caller {
            // No need to ask the database.
            Some(caller) if caller.role >= Some(needed) => Ok(caller),
            _ => self.read(request, |ctx| Box::pin(ctx.require_in(project, needed))).await,
        }
    }

    /// The sources of time and randomness.
    pub const fn environment(&self) -> &Environment {
        &self.environment
    }

    /// Counts this process's commits that brought events.
    pub fn commits(&self) -> tokio::sync::watch::Receiver<u64> {
        self.commits.subscribe()
    }

    pub(crate) const fn pool(&self) -> &cynode_db::Pool {
        &self.pool
    }

    pub(crate) fn shared(&self) -> &crate::Shared {
        &self.shared
    }

    /// Tells streams of this process that there may be something new.
    pub(crate) fn committed(&self) {
        self.commits.send_modify(|count| *count = count.wrapping_add(1));
    }

    /// Tells the sweep of this process, and whoever looks at these tasks, that their runs may be due.
    pub(crate) fn woken(&self, tasks: &[TaskId]) {
        self.signs.due.notify_one();
        if let Ok(mut watched) = self.signs.watched.lock() {
            for task in tasks {
                if let Some(sign) = watched.remove(task) {
                    sign.notify_waiters();
                }
            }
        }
    }

    /// Ends when a run may have become due.
    pub(crate) async fn until_woken(&self) {
        self.signs.due.notified().await;
    }

    /// Tells whoever waits for work that there is some.
    pub(crate) fn queued(&self) {
        self.signs.queued.notify_waiters();
    }

    /// Ends when somebody is to be told something.
    pub(crate) async fn until_told(&self) {
        self.signs.told.notified().await;
    }

    /// Ends when a job was queued in this process.
    pub(crate) fn sign_of_work(&self) -> OwnedNotified {
        self.signs.queued.clone().notified_owned()
    }

    /// Nobody looks at this task any more; whoever still does looks by itself.
    pub(crate) fn unwatch(&self, task: TaskId) {
        if let Ok(mut watched) = self.signs.watched.lock() {
            watched.remove(&task);
        }
    }

    /// Ends when something happened to this task in this process.
    pub(crate) fn sign_of(&self, task: TaskId) -> OwnedNotified {
        let sign = match self.signs.watched.lock() {
            Ok(mut watched) => watched.entry(task).or_default().clone(),
            Err(_) => Arc::default(),
        };
        sign.notified_owned()
    }

    pub(crate) fn hashing(&self) -> crate::passwords::Hashing {
        self.hashing.clone()
    }
}

impl Request {
    /// Whose repeats are meant: keys of one credential never meet those of another.
    pub(crate) fn key_owner(&self) -> Uuid {
        match self.caller.map(|caller| caller.credential) {
            Some(Credential::Session(id)) => id.as_uuid(),
            Some(Credential::ApiKey(id)) => id.as_uuid(),
            Some(Credential::Agent(id)) => id.as_uuid(),
            Some(Credential::Link(id)) => id.as_uuid(),
            Some(Credential::Schedule(id)) => id.as_uuid(),
            None => Uuid::nil(),
        }
    }
}

impl Ctx {
    /// The way to the database.
    pub(crate) fn conn(&mut self) -> &mut Conn {
        match &mut self.conn {
            Connection::Plain(conn) => conn,
            Connection::Tx(tx) => tx,
        }
    }

    /// Makes what was written last; without it everything is undone.
    pub(crate) async fn commit(self) -> Result<(), Error> {
        match self.conn {
            Connection::Plain(_) => Ok(()),
            Connection::Tx(tx) => Ok(tx.commit().await.map_err(cynode_db::DbError::from)?),
        }
    }

    /// Undoes everything now. A transaction that is only dropped keeps its locks until its connection is looked after.
    pub(crate) async fn undo(self) -> Result<(), Error> {
        match self.conn {
            Connection::Plain(_) => Ok(()),
            Connection::Tx(tx) => Ok(tx.rollback().await.map_err(cynode_db::DbError::from)?),
        }
    }

    /// Who asks.
    pub fn caller(&self) -> Result<Caller, Error> {
        self.caller.ok_or(Error::Unauthenticated)
    }

    /// Refuses a caller whose role in the whole installation is weaker.
    pub fn require(&mut self, needed: Role) -> Result<Caller, Error> {
        let caller = self.caller()?;
        self.refused = caller.role < Some(needed);
        if self.refused { Err(Error::forbidden(needed, "in the installation")) } else { Ok(caller) }
    }

    /// Refuses a caller whose role in the project is weaker. To somebody without any role there, the
    /// project does not exist.
    pub async fn require_in(&mut self, project: ProjectId, needed: Role) -> Result<Caller, Error> {
        let caller = self.caller()?;
        if caller.role >= Some(needed) {
            return Ok(caller);
        }
        if caller.bounds.is_some_and(|bounds| bounds.project != project) {
            self.refused = true;
            return Err(Error::not_found("project", project));
        }
        let own = authentication::project_role(self.conn(), caller.user, project).await?;
        let role = match caller.bounds {
            // An agent never decides about people, settings and policy, whoever it works for.
            Some(bounds) => own.max(bounds.person).min(Some(Role::Operator)),
            None => own.max(caller.role),
        };
        self.refused = role < Some(needed);
        match role {
            Some(role) if role >= needed => Ok(caller),
            Some(_) => Err(Error::forbidden(needed, "in the project")),
            None => Err(Error::not_found("project", project)),
        }
    }

    /// `None` when the caller may see every project, else the user whose projects may be seen.
    pub(crate) fn seen_by(&self) -> Result<Option<UserId>, Error> {
        let caller = self.caller()?;
        if caller.bounds.is_some() {
            return Err(Error::Invalid("an agent asks for its project".into()));
        }
        Ok(if caller.role.is_some() { None } else { Some(caller.user) })
    }

    /// Notes that a run may have become due: the sweep is told after the commit.
    pub(crate) fn wake(&mut self, task: TaskId) {
        self.woke.push(task);
    }

    /// Notes that a job was queued: whoever waits for work is told after the commit.
    pub(crate) const fn queue(&mut self) {
        self.queued = true;
    }

    /// A new id.
    pub(crate) fn uuid(&self) -> Uuid {
        self.environment.uuid(self.now)
    }

    /// The source of randomness.
    pub(crate) const fn environment(&self) -> &Environment {
        &self.environment
    }

    /// Tells what happened, in this transaction.
    pub(crate) async fn record(&mut self, told: Told) -> Result<(), Error> {
        let (trace, now, actor) = (self.trace, self.now, self.caller.map(|caller| caller.user));
        let event = told.by(actor);
        let place = events::insert(self.conn(), &event, trace, now).await?;
        self.recorded += 1;
        self.tell(&event, place).await
    }

    /// Puts what happened into the outboxes of those who are told of it. Most kinds are told to nobody, and cost nothing.
    async fn tell(&mut self, event: &events::NewEvent, place: Position) -> Result<(), Error> {
        let kind = event.kind.as_str();
        if !is_told(kind) {
            return Ok(());
        }
        let about = Concerns { kind, project: event.project, subject: event.subject };
        for channel in notices::listeners(self.conn(), about, None).await? {
            let (trace, now) = (self.trace, self.now);
            let id = NotificationId::from_uuid(self.uuid());
            notices::queue(self.conn(), id, channel, event, place, trace, now).await?;
            self.told = true;
        }
        Ok(())
    }

    /// Notes that somebody is to be told something: whoever tells it is called after the commit.
    pub(crate) const fn has_told(&mut self) {
        self.told = true;
    }
}

/// What an operation speaks to the database through.
enum Connection {
    /// Reads need no transaction: each statement sees what is committed.
    Plain(cynode_db::Pooled),
    /// Writes are one transaction; dropped, it is rolled back.
    Tx(Tx),
}

/// What happened, before it has a place and a time.
pub(crate) struct Told {
    kind: EventKind,
    subject: Option<UserId>,
    project: Option<ProjectId>,
    task: Option<TaskId>,
    data: Value,
}

impl Told {
    /// Something of that kind, about the installation.
    pub(crate) fn new(kind: EventKind, data: Value) -> Self {
        Self { kind, subject: None, project: None, task: None, data }
    }

    /// The event, done by `actor`.
    pub(crate) fn by(self, actor: Option<UserId>) -> events::NewEvent {
        let Self { kind, subject, project, task, data } = self;
        events::NewEvent { kind, actor, subject, project, task, data }
    }

    /// It concerns this user's account.
    pub(crate) const fn about(mut self, user: UserId) -> Self {
        self.subject = Some(user);
        self
    }

    /// It happened in this project.
    pub(crate) const fn project(mut self, project: ProjectId) -> Self {
        self.project = Some(project);
        self
    }

    /// It happened to this task.
    pub(crate) const fn task(mut self, task: TaskId) -> Self {
        self.task = Some(task);
        self
    }
}
