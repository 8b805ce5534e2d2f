//! Event stream: lists events and follows new ones.

use std::{
    collections::{HashSet, VecDeque},
    sync::Arc,
    time::{Duration, Instant},
};

use cynode_core::{
    events::EventPosition,
    ids::{ProjectId, TaskId},
    roles::UserRole,
};
use cynode_db::tasks::{
    events::{self, EventFilter, EventReader},
    projects,
};
use futures::{Stream, stream};

use super::event_feed::{FeedRead, FeedSubscription};
use crate::{
    App, Ctx, Error,
    platform::{operation, stream_limits::StreamPermit, tokens::PresentedToken},
};

pub use cynode_db::tasks::events::LoggedEvent;

/// How old the check of a credential may be when an event is delivered.
const CREDENTIAL_CHECK_TTL: Duration = Duration::from_millis(100);

/// How old the memberships of a reader may be when an event is delivered, unless an event says that they may have changed.
const MEMBERSHIP_CHECK_TTL: Duration = Duration::from_secs(1);

/// How often the credential of a stream without events is checked.
const IDLE_CHECK_INTERVAL: Duration = Duration::from_secs(5);

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
    if wanted.project.is_none() && wanted.task.is_none() {
        ctx.reject_limited_key()?;
    }
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

/// What a reader may see, as of the last check.
struct StreamAccess {
    reader: EventReader,
    /// Projects of a reader without a role in the installation.
    projects: HashSet<ProjectId>,
    credential_checked: Instant,
    memberships_checked: Instant,
    /// Number of changes of access that the check has seen.
    access_changes: u64,
}

impl StreamAccess {
    fn admits_event(&self, event: &LoggedEvent) -> bool {
        match self.reader {
            EventReader::Installation => true,
            EventReader::Member(user) => {
                event.subject == Some(user)
                    || event.view.project_id.is_some_and(|id| self.projects.contains(&id))
            }
        }
    }
}

struct EventTail {
    app: App,
    shown: PresentedToken,
    wanted: EventSelection,
    position: EventPosition,
    ready: VecDeque<Arc<LoggedEvent>>,
    feed: FeedSubscription,
    access: Option<StreamAccess>,
    /// Number of lost database connections when the stream began.
    disconnects: u64,
    _permit: StreamPermit,
}

/// Streams all events after `position` that the caller may see, each once and in order, without end. One reader serves
/// all streams of the process. Before events are delivered, the credential is checked again, and memberships are when
/// they may have changed, so a stream ends when its key is revoked. It also ends when the database connection was lost,
/// even if only briefly, so that its reader notices.
pub fn follow_events(
    app: &App,
    shown: PresentedToken,
    wanted: EventSelection,
    position: EventPosition,
    permit: StreamPermit,
) -> impl Stream<Item = Result<Arc<LoggedEvent>, Error>> + Send + use<> {
    let tail = EventTail {
        app: app.clone(),
        shown,
        wanted,
        position,
        ready: VecDeque::new(),
        feed: FeedSubscription::begin_stream(app),
        access: None,
        disconnects: app.database_disconnects(),
        _permit: permit,
    };
    stream::try_unfold(tail, |mut tail| async move {
        loop {
            if let Some(event) = tail.ready.pop_front() {
                return Ok(Some((event, tail)));
            }
            tail.read_batch().await?;
        }
    })
}

impl EventTail {
    /// Takes the next events, or waits until there may be some.
    async fn read_batch(&mut self) -> Result<(), Error> {
        self.feed.check_reader()?;
        if self.app.database_disconnects() != self.disconnects {
            return Err(Error::Unavailable(anyhow::anyhow!(
                "the connection to the database was lost"
            )));
        }
        match self.app.shared_state().feed.read_after(self.position) {
            FeedRead::NotReady => self.feed.until_progress().await,
            FeedRead::Behind => self.catch_up().await?,
            FeedRead::Events { events, read_to, access_changes } if events.is_empty() => {
                self.position = read_to;
                let is_due = |access: &StreamAccess| {
                    access.credential_checked.elapsed() >= IDLE_CHECK_INTERVAL
                };
                if self.access.as_ref().is_none_or(is_due) {
                    self.refresh_access(access_changes).await?;
                }
                self.feed.until_progress().await;
            }
            FeedRead::Events { events, read_to, access_changes } => {
                let access = self.refresh_access(access_changes).await?;
                let admitted = events.into_iter().filter(|event| access.admits_event(event));
                let admitted: Vec<_> = admitted.collect();
                let EventSelection { project, task } = self.wanted;
                self.ready.extend(admitted.into_iter().filter(|event| {
                    project.is_none_or(|project| event.view.project_id == Some(project))
                        && task.is_none_or(|task| event.view.task_id == Some(task))
                }));
                self.position = read_to;
            }
        }
        Ok(())
    }

    /// Reads a page of the database, because the position is older than what the feed has.
    async fn catch_up(&mut self) -> Result<(), Error> {
        let EventSelection { project, task } = self.wanted;
        let (feed, filter) = (&self.app.shared_state().feed, EventFilter { project, task });
        let _turn = feed.begin_catch_up().await?;
        // After the wait, which may have been long.
        let reader = self.authenticate_reader().await?;
        let page = feed.read_page(&self.app, reader, filter, self.position).await?;
        self.ready = page.events.into_iter().map(Arc::new).collect();
        self.position = page.read_to;
        Ok(())
    }

    /// Checks the credential. A revoked, ended, expired or disabled one is rejected.
    async fn authenticate_reader(&self) -> Result<EventReader, Error> {
        let caller = self.app.reauthenticate_caller(&self.shown).await?;
        Ok(match caller.role {
            Some(_) => EventReader::Installation,
            None => EventReader::Member(caller.user),
        })
    }

    /// Returns what the reader may see. Checks it again when the last check is too old or the log says that it may have
    /// changed.
    async fn refresh_access(&mut self, access_changes: u64) -> Result<&StreamAccess, Error> {
        let known = self.access.take().filter(|known| known.access_changes == access_changes);
        let fresh = match known {
            Some(known) if known.credential_checked.elapsed() < CREDENTIAL_CHECK_TTL => known,
            known => {
                let reader = self.authenticate_reader().await?;
                let now = Instant::now();
                let known = known.filter(|known| {
                    known.reader == reader
                        && known.memberships_checked.elapsed() < MEMBERSHIP_CHECK_TTL
                });
                match known {
                    Some(known) => StreamAccess { credential_checked: now, ..known },
                    None => StreamAccess {
                        reader,
                        projects: self.followed_projects(reader).await?,
                        credential_checked: now,
                        memberships_checked: now,
                        access_changes,
                    },
                }
            }
        };
        Ok(self.access.insert(fresh))
    }

    async fn followed_projects(&self, reader: EventReader) -> Result<HashSet<ProjectId>, Error> {
        let EventReader::Member(user) = reader else { return Ok(HashSet::new()) };
        let projects = projects::list_member_projects(&mut *self.app.conn().await?, user).await?;
        Ok(projects.into_iter().collect())
    }
}
