//! The stream of what happens.

use std::{collections::VecDeque, time::Duration};

use cynode_core::{
    ids::{ProjectId, TaskId},
    roles::Role,
};
use cynode_db::{
    DbError,
    events::{self, Filter, Reader},
};
use cynode_wire::events::{EventView, Position};
use futures::{Stream, stream};
use tokio::sync::watch;

use crate::{App, Ctx, Error, tokens::Presented};

/// How long a stream waits for a sign from this process before it looks by itself: other processes
/// write too.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// Most events read at once.
const BATCH: i64 = 200;

/// Which events are wanted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    /// Only of this project.
    pub project: Option<ProjectId>,
    /// Only of this task.
    pub task: Option<TaskId>,
}

/// Where a stream begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// With what happens from now on.
    Now,
    /// Behind an event that the reader has.
    After(Position),
}

/// Refuses a caller who may not see what it asks for, and says where to begin.
pub async fn begin(ctx: &mut Ctx, wanted: Wanted, start: Start) -> Result<Position, Error> {
    ctx.caller()?;
    if let Some(project) = wanted.project {
        ctx.require_in(project, Role::Viewer).await?;
    }
    if let Some(task) = wanted.task {
        crate::tasks::get(ctx, task).await?;
    }
    match start {
        Start::After(position) => Ok(position),
        Start::Now => Ok(events::head(ctx.conn()).await?),
    }
}

struct Tail {
    app: App,
    shown: Presented,
    wanted: Wanted,
    position: Position,
    ready: VecDeque<EventView>,
    commits: watch::Receiver<u64>,
}

/// Everything behind `position` that the caller may see, each event once and in order, without end.
/// The credential and the memberships are looked at again before each read, so that a stream ends
/// when its key is revoked.
pub fn follow(
    app: &App,
    shown: Presented,
    wanted: Wanted,
    position: Position,
) -> impl Stream<Item = Result<EventView, Error>> + Send + use<> {
    let tail = Tail {
        app: app.clone(),
        shown,
        wanted,
        position,
        ready: VecDeque::new(),
        commits: app.commits(),
    };
    stream::try_unfold(tail, |mut tail| async move {
        loop {
            if let Some(event) = tail.ready.pop_front() {
                return Ok(Some((event, tail)));
            }
            tail.read().await?;
            if tail.ready.is_empty() {
                // Either there was a commit here, or it is time to look what others wrote.
                let _ = tokio::time::timeout(LOOK_EVERY, tail.commits.changed()).await;
            }
        }
    })
}

impl Tail {
    async fn read(&mut self) -> Result<(), Error> {
        self.commits.mark_unchanged();
        let caller = self.app.authenticate(&self.shown).await?;
        let reader = match caller.role {
            Some(_) => Reader::Installation,
            None => Reader::Member(caller.user),
        };
        let Wanted { project, task } = self.wanted;
        let mut conn = self.app.pool().acquire().await.map_err(DbError::from)?;
        let filter = Filter { project, task };
        let (ready, read) = events::after(&mut conn, reader, filter, self.position, BATCH).await?;
        (self.ready, self.position) = (ready.into(), read);
        Ok(())
    }
}
