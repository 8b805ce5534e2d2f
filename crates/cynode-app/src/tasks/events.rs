//! Event stream: lists events and follows new ones.

use std::{collections::VecDeque, time::Duration};

use cynode_core::{
    events::{EventPosition, EventView},
    ids::{ProjectId, TaskId},
    roles::UserRole,
};
use cynode_db::tasks::events::{self, EventFilter, EventReader};
use futures::{Stream, stream};
use tokio::sync::watch;

use crate::{
    App, Ctx, Error,
    platform::{operation, tokens::PresentedToken},
};

/// Poll interval of a stream, while other processes are not heard.
const STREAM_POLL_INTERVAL: Duration = Duration::from_millis(250);

/// Maximum number of events per read.
const EVENT_BATCH_SIZE: i64 = 200;

/// Filter of events.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EventSelection {
    /// Only events of this project.
    pub project: Option<ProjectId>,
    /// Only events of this task.
    pub task: Option<TaskId>,
}

/// Start of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamStart {
    /// With the next new event.
    Now,
    /// After an event that the reader has.
    After(EventPosition),
}

/// Rejects a caller who may not see the selected events. Returns the start position.
#[operation]
pub async fn authorize_stream(
    ctx: &mut Ctx,
    wanted: EventSelection,
    start: StreamStart,
) -> Result<EventPosition, Error> {
    ctx.caller()?;
    if let Some(project) = wanted.project {
        ctx.require_project_role(project, UserRole::Viewer).await?;
    }
    if let Some(task) = wanted.task {
        crate::tasks::get_task(ctx, task).await?;
    }
    match start {
        StreamStart::After(position) => Ok(position),
        StreamStart::Now => Ok(events::event_stream_head(ctx.conn()).await?),
    }
}

struct EventTail {
    app: App,
    shown: PresentedToken,
    wanted: EventSelection,
    position: EventPosition,
    ready: VecDeque<EventView>,
    /// Whether an older open transaction holds events back.
    held_back: bool,
    commits: watch::Receiver<u64>,
    /// Number of lost database connections when the stream began.
    disconnects: u64,
}

/// Streams all events after `position` that the caller may see, each once and in order, without end. Credential and
/// memberships are checked again before each read, so a stream ends when its key is revoked. It also ends when the
/// database connection was lost, even if only briefly, so that its reader notices.
pub fn follow_events(
    app: &App,
    shown: PresentedToken,
    wanted: EventSelection,
    position: EventPosition,
) -> impl Stream<Item = Result<EventView, Error>> + Send + use<> {
    let tail = EventTail {
        app: app.clone(),
        shown,
        wanted,
        position,
        ready: VecDeque::new(),
        held_back: false,
        commits: app.subscribe_commits(),
        disconnects: app.database_disconnects(),
    };
    stream::try_unfold(tail, |mut tail| async move {
        loop {
            if let Some(event) = tail.ready.pop_front() {
                return Ok(Some((event, tail)));
            }
            tail.read_batch().await?;
            if tail.ready.is_empty() {
                // Wait for a commit of this process, or for the next poll for those of others. Nothing announces the
                // end of the transaction that holds events back.
                let rest = if tail.held_back {
                    STREAM_POLL_INTERVAL
                } else {
                    tail.app.stream_poll_delay(STREAM_POLL_INTERVAL)
                };
                let _ = tokio::time::timeout(rest, tail.commits.changed()).await;
            }
        }
    })
}

impl EventTail {
    async fn read_batch(&mut self) -> Result<(), Error> {
        self.commits.mark_unchanged();
        if self.app.database_disconnects() != self.disconnects {
            return Err(Error::Unavailable(anyhow::anyhow!(
                "the connection to the database was lost"
            )));
        }
        let caller = self.app.authenticate_caller(&self.shown).await?;
        let reader = match caller.role {
            Some(_) => EventReader::Installation,
            None => EventReader::Member(caller.user),
        };
        let EventSelection { project, task } = self.wanted;
        let mut conn = self.app.conn().await?;
        let filter = EventFilter { project, task };
        let page =
            events::list_events_after(&mut conn, reader, filter, self.position, EVENT_BATCH_SIZE)
                .await?;
        (self.ready, self.position) = (page.events.into(), page.read_to);
        self.held_back = page.held_back;
        Ok(())
    }
}
