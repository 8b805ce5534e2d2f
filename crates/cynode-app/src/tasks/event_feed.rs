//! Event feed: one reader of the event log serves all event streams of a process.
//!
//! The reader runs while there are streams. It follows the log from its end, keeps the newest events, and wakes the streams, which take
//! what they may see. However many streams there are, each commit is read once.
//!
//! **Invariant**: the segment holds every event behind `start` up to `read_to`, in order. A stream that goes on from a position within it
//! misses nothing and sees nothing twice. A stream with an older position reads the database, page by page, until it is within.

use std::{
    collections::VecDeque,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use cynode_core::{events::EventPosition, sync::lock_unpoisoned};
use cynode_db::tasks::events::{self, EventFilter, EventPage, EventReader, LoggedEvent};
use tokio::sync::{Semaphore, SemaphorePermit, watch};
use tokio_util::task::TaskTracker;

use crate::{App, Error, platform::error::log_background_error};

/// Poll interval of the reader, while other processes are not heard.
const FEED_POLL_INTERVAL: Duration = Duration::from_millis(250);

/// Maximum number of events per read, of the reader and of a stream.
pub(super) const EVENT_BATCH_SIZE: usize = 200;

/// Maximum number of events that are kept. A stream that is further behind reads the database.
const MAX_KEPT_EVENTS: usize = 1024;

/// Maximum number of streams that read the database at once.
const MAX_CONCURRENT_CATCH_UPS: usize = 4;

/// Kinds of event after which an account may see more or less, by the beginning of their names.
const ACCESS_KIND_PREFIXES: [&str; 7] =
    ["session.", "api_key.", "user.", "group.", "identity.", "identity_provider.", "project."];

/// The newest part of the event log, shared by all streams of a process.
pub(crate) struct EventFeed {
    state: Mutex<FeedState>,
    /// Changes whenever the reader has looked.
    progress: watch::Sender<u64>,
    catch_ups: Semaphore,
    /// Number of reads of the log, by the reader and by streams that are behind.
    reads: AtomicU64,
}

#[derive(Default)]
struct FeedState {
    /// Number of open streams.
    streams: usize,
    /// Whether the reader runs.
    running: bool,
    /// `None` until the reader knows where the log ends.
    segment: Option<LogSegment>,
    /// Number of failed reads.
    failures: u64,
    /// Number of events that may have changed what an account may see.
    access_changes: u64,
}

struct LogSegment {
    start: EventPosition,
    read_to: EventPosition,
    events: VecDeque<Arc<LoggedEvent>>,
}

/// What the feed has for a stream.
pub(super) enum FeedRead {
    /// The reader has not looked yet.
    NotReady,
    /// The position is older than what is kept.
    Behind,
    /// The events behind the position.
    Events {
        events: Vec<Arc<LoggedEvent>>,
        /// Position to go on from.
        read_to: EventPosition,
        /// Number of changes of access up to there.
        access_changes: u64,
    },
}

impl Default for EventFeed {
    fn default() -> Self {
        Self {
            state: Mutex::default(),
            progress: watch::channel(0).0,
            catch_ups: Semaphore::new(MAX_CONCURRENT_CATCH_UPS),
            reads: AtomicU64::new(0),
        }
    }
}

impl EventFeed {
    /// Returns the events behind a position, or why there are none.
    pub(super) fn read_after(&self, position: EventPosition) -> FeedRead {
        let state = lock_unpoisoned(&self.state);
        let Some(segment) = &state.segment else { return FeedRead::NotReady };
        if position < segment.start {
            return FeedRead::Behind;
        }
        let first = segment.events.partition_point(|event| event.view.id <= position);
        let events: Vec<_> =
            segment.events.range(first..).take(EVENT_BATCH_SIZE).cloned().collect();
        let read_to = match events.last() {
            Some(last) if events.len() == EVENT_BATCH_SIZE => last.view.id,
            Some(_) | None => segment.read_to.max(position),
        };
        FeedRead::Events { events, read_to, access_changes: state.access_changes }
    }

    /// Waits for a turn to read the database. Only so many streams that are behind read at once.
    pub(super) async fn begin_catch_up(&self) -> Result<SemaphorePermit<'_>, Error> {
        self.catch_ups.acquire().await.map_err(|error| Error::Internal(error.into()))
    }

    /// Reads a page of the log from the database.
    pub(super) async fn read_page(
        &self,
        app: &App,
        reader: EventReader,
        filter: EventFilter,
        after: EventPosition,
    ) -> Result<EventPage, Error> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        let mut conn = app.conn().await?;
        let limit = i64::try_from(EVENT_BATCH_SIZE).unwrap_or(i64::MAX);
        Ok(events::list_events_after(&mut conn, reader, filter, after, limit).await?)
    }

    /// Wakes the streams.
    fn wake_streams(&self) {
        self.progress.send_modify(|count| *count = count.wrapping_add(1));
    }

    /// Ends the reader when there are no more streams.
    fn end_if_unused(&self) -> bool {
        let mut state = lock_unpoisoned(&self.state);
        let unused = state.streams == 0;
        if unused {
            state.running = false;
            state.segment = None;
        }
        unused
    }

    /// Reads what is new in the log. Returns whether events are held back, or `None` when there is more to read.
    async fn follow_log(&self, app: &App) -> Result<Option<bool>, Error> {
        let after = lock_unpoisoned(&self.state).segment.as_ref().map(|segment| segment.read_to);
        let Some(after) = after else {
            let end = events::event_stream_head(&mut *app.conn().await?).await?;
            let segment = LogSegment { start: end, read_to: end, events: VecDeque::new() };
            lock_unpoisoned(&self.state).segment = Some(segment);
            return Ok(None);
        };
        let (reader, filter) = (EventReader::Installation, EventFilter::default());
        let page = self.read_page(app, reader, filter, after).await?;
        let (full, held_back) = (page.events.len() >= EVENT_BATCH_SIZE, page.held_back);
        lock_unpoisoned(&self.state).append_page(page);
        Ok((!full).then_some(held_back))
    }

    fn record_failure(&self, error: &Error) {
        log_background_error("events.read_failed", error, "the event log could not be read");
        lock_unpoisoned(&self.state).failures += 1;
    }
}

impl FeedState {
    fn append_page(&mut self, page: EventPage) {
        let Some(segment) = &mut self.segment else { return };
        for event in page.events {
            self.access_changes += u64::from(changes_access(&event.view.kind));
            segment.events.push_back(Arc::new(event));
        }
        while segment.events.len() > MAX_KEPT_EVENTS {
            if let Some(oldest) = segment.events.pop_front() {
                segment.start = oldest.view.id;
            }
        }
        segment.read_to = segment.read_to.max(page.read_to);
    }
}

/// Returns whether an account may see more or less after an event of this kind.
fn changes_access(kind: &str) -> bool {
    ACCESS_KIND_PREFIXES.iter().any(|prefix| kind.starts_with(prefix))
}

/// An open stream. The reader runs while there is one.
pub(super) struct FeedSubscription {
    app: App,
    /// Number of failed reads when the stream began.
    failures: u64,
    progress: watch::Receiver<u64>,
}

impl FeedSubscription {
    /// Begins a stream, and the reader with the first one.
    pub(super) fn begin_stream(app: &App) -> Self {
        let feed = &app.shared_state().feed;
        let mut state = lock_unpoisoned(&feed.state);
        state.streams += 1;
        if !state.running {
            state.running = true;
            TaskTracker::new().spawn(run_reader(app.clone()));
        }
        Self { app: app.clone(), failures: state.failures, progress: feed.progress.subscribe() }
    }

    /// Marks what the reader has done so far as seen, and fails when a read has failed.
    pub(super) fn check_reader(&mut self) -> Result<(), Error> {
        self.progress.mark_unchanged();
        if lock_unpoisoned(&self.app.shared_state().feed.state).failures == self.failures {
            return Ok(());
        }
        Err(Error::Unavailable(anyhow::anyhow!("the event log could not be read")))
    }

    /// Waits until the reader has looked again.
    pub(super) async fn until_progress(&mut self) {
        let _ = self.progress.changed().await;
    }
}

impl Drop for FeedSubscription {
    fn drop(&mut self) {
        lock_unpoisoned(&self.app.shared_state().feed.state).streams -= 1;
    }
}

/// Marks the reader as ended when it ends in any other way than by itself, so that its streams notice.
struct ReaderGuard<'a> {
    feed: &'a EventFeed,
    finished: bool,
}

impl Drop for ReaderGuard<'_> {
    fn drop(&mut self) {
        if !self.finished {
            let mut state = lock_unpoisoned(&self.feed.state);
            state.running = false;
            state.segment = None;
            state.failures += 1;
            drop(state);
            self.feed.wake_streams();
        }
    }
}

/// Follows the log until there are no more streams.
async fn run_reader(app: App) {
    let feed = &app.shared_state().feed;
    let mut guard = ReaderGuard { feed, finished: false };
    let mut commits = app.subscribe_commits();
    let mut disconnects = app.database_disconnects();
    while !feed.end_if_unused() {
        commits.mark_unchanged();
        if app.database_disconnects() != disconnects {
            // Streams end at once, and do not wait for a read over a lost connection.
            disconnects = app.database_disconnects();
            feed.wake_streams();
        }
        let looked = match feed.follow_log(&app).await {
            // A connection of the pool may be dead. The next one is tried before streams end for it.
            Err(_) => feed.follow_log(&app).await,
            looked => looked,
        };
        let delay = match looked {
            Ok(None) => Duration::ZERO,
            // Nothing announces the end of the transaction that holds events back.
            Ok(Some(true)) => FEED_POLL_INTERVAL,
            Ok(Some(false)) => app.stream_poll_delay(FEED_POLL_INTERVAL),
            Err(error) => {
                feed.record_failure(&error);
                FEED_POLL_INTERVAL
            }
        };
        feed.wake_streams();
        if !delay.is_zero() {
            let _ = tokio::time::timeout(delay, commits.changed()).await;
        }
    }
    guard.finished = true;
}

impl App {
    /// Returns how often this process has read the event log for its streams.
    pub fn count_event_log_reads(&self) -> u64 {
        self.shared_state().feed.reads.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use cynode_core::events::EventView;
    use serde_json::json;
    use time::macros::datetime;

    use super::*;

    const fn at(xact: i64) -> EventPosition {
        EventPosition { xact, seq: 0 }
    }

    fn event(xact: i64, kind: &str) -> LoggedEvent {
        let view = EventView {
            id: at(xact),
            kind: kind.to_owned(),
            occurred_at: datetime!(2026-11-16 12:00 UTC),
            actor_id: None,
            project_id: None,
            task_id: None,
            trace_id: String::new(),
            data: json!({}),
        };
        LoggedEvent { view, subject: None }
    }

    fn feed_from(start: i64) -> EventFeed {
        let feed = EventFeed::default();
        let segment = LogSegment { start: at(start), read_to: at(start), events: VecDeque::new() };
        lock_unpoisoned(&feed.state).segment = Some(segment);
        feed
    }

    fn append(feed: &EventFeed, xacts: std::ops::RangeInclusive<i64>, kind: &str) {
        let read_to = at(*xacts.end());
        let events = xacts.map(|xact| event(xact, kind)).collect();
        let page = EventPage { events, read_to, held_back: false };
        lock_unpoisoned(&feed.state).append_page(page);
    }

    /// Reads as a stream does until there is nothing more. Returns what it saw, or `None` if it is behind.
    fn read_all(feed: &EventFeed, mut position: EventPosition) -> Option<Vec<i64>> {
        let mut seen = Vec::new();
        loop {
            let FeedRead::Events { events, read_to, .. } = feed.read_after(position) else {
                return None;
            };
            if events.is_empty() {
                return Some(seen);
            }
            seen.extend(events.iter().map(|event| event.view.id.xact));
            position = read_to;
        }
    }

    #[test]
    fn a_stream_within_the_segment_sees_every_event_once_and_an_older_one_is_behind() {
        let feed = feed_from(10);
        append(&feed, 11..=600, "task.created");
        assert_eq!(read_all(&feed, at(10)), Some((11..=600).collect()));
        assert_eq!(read_all(&feed, at(590)), Some((591..=600).collect()));
        assert_eq!(read_all(&feed, at(900)), Some(vec![]), "it is ahead of the reader");
        assert_eq!(read_all(&feed, at(9)), None);
    }

    #[test]
    fn a_bounded_number_of_events_is_kept_and_what_was_dropped_is_not_skipped() {
        let feed = feed_from(0);
        append(&feed, 1..=1000, "task.created");
        append(&feed, 1001..=3000, "task.created");
        assert_eq!(lock_unpoisoned(&feed.state).segment.as_ref().unwrap().events.len(), 1024);
        assert_eq!(read_all(&feed, at(1975)), None);
        assert_eq!(read_all(&feed, at(1976)), Some((1977..=3000).collect()));
    }

    #[test]
    fn a_change_of_access_is_told_with_the_events_that_follow_it() {
        let feed = feed_from(0);
        append(&feed, 1..=1, "task.created");
        append(&feed, 2..=2, "api_key.revoked");
        let FeedRead::Events { access_changes, .. } = feed.read_after(at(0)) else { panic!() };
        assert_eq!(access_changes, 1);
        for kind in ["user.updated", "group.updated", "project.member_removed", "session.ended"] {
            assert!(changes_access(kind), "{kind}");
        }
    }
}
