//! Outbox of job events: delivers them in order and in batches, and retries until the orchestrator acknowledges them,
//! after a restart too. The queue is bounded. Backpressure would stop the worker, so a full queue sheds the oldest
//! output and leaves a mark.

mod spool;

use std::{
    collections::VecDeque,
    path::PathBuf,
    sync::{
        Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use cynode_core::{
    environments::PackageFetch,
    ids::JobId,
    nodes::{JobEvent, JobEventData},
    sync::lock_unpoisoned,
};
use cynode_wire::nodes::JobEvents;
use tokio::{
    sync::Notify,
    time::{Instant, timeout, timeout_at},
};

use self::spool::{EventSpool, SpoolBacklog};
use crate::{
    chunking::{MAX_LINE_BYTES, safe_cut_length},
    client::{NodeClient, NodeClientError, call_with_retry},
    clock::PersistentInstant,
};

/// Time that an event waits for others, to be sent in one batch.
const EVENT_BATCH_DELAY: Duration = Duration::from_millis(200);

/// Maximum number of events in a batch.
const MAX_BATCH_EVENTS: usize = 500;

/// Maximum size of a batch; a single event may be larger.
const MAX_BATCH_BYTES: usize = 256 * 1024;

/// Maximum size of one text.
const MAX_TEXT_BYTES: usize = 64 * 1024;

/// Maximum size of an event that consecutive text of one kind is merged into.
const MAX_MERGE_BYTES: usize = 4 * 1024;

/// Maximum size of the queue.
const MAX_QUEUE_BYTES: usize = 4 * 1024 * 1024;

/// Maximum size of all events of one job. A process that resumes the job starts counting at zero.
const MAX_JOB_EVENT_BYTES: u64 = 64 * 1024 * 1024;

/// Outbox of one job's events.
#[derive(Debug)]
pub(crate) struct EventOutbox {
    claimed: PersistentInstant,
    /// Backlog of an earlier process, until the orchestrator has said which of its events arrived.
    earlier: Mutex<Option<SpoolBacklog>>,
    queue: Mutex<EventQueue>,
    /// Notified when an event was queued or a flush is requested.
    wake: Notify,
    /// Notified when the queue is empty or closed.
    still: Notify,
    hurry: AtomicBool,
}

/// The job is no longer assigned to this node: its events are not wanted.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct JobGone;

impl EventOutbox {
    /// Creates the outbox of a job with its claim time and its spool file.
    pub(crate) fn new(claimed: PersistentInstant, file: PathBuf) -> Self {
        Self::with_spool(claimed, EventSpool::new(file), None)
    }

    /// Restores the outbox of a job for which an earlier process sent events.
    pub(crate) fn resume_from(claimed: PersistentInstant, file: PathBuf) -> Self {
        let (spool, earlier) = EventSpool::open_existing(file);
        Self::with_spool(claimed, spool, Some(earlier))
    }

    fn with_spool(
        claimed: PersistentInstant,
        spool: EventSpool,
        earlier: Option<SpoolBacklog>,
    ) -> Self {
        let mut queue = EventQueue::new(MAX_QUEUE_BYTES, Some(spool));
        queue.whole = earlier.is_none();
        Self {
            claimed,
            earlier: Mutex::new(earlier),
            queue: Mutex::new(queue),
            wake: Notify::new(),
            still: Notify::new(),
            hurry: AtomicBool::new(false),
        }
    }

    /// Queues an event.
    pub(crate) fn push(&self, what: JobEventData) {
        let at_ms = u64::try_from(self.claimed.elapsed().as_millis()).unwrap_or(u64::MAX);
        let full = {
            let mut queue = lock_unpoisoned(&self.queue);
            queue.push(JobEvent { at_ms, data: what });
            queue.is_batch_ready()
        };
        if full {
            self.hurry.store(true, Ordering::Relaxed);
        }
        self.wake.notify_one();
    }

    /// Waits until all events are acknowledged, at most for `patience`.
    pub(crate) async fn flush_within(&self, patience: Duration) {
        self.hurry.store(true, Ordering::Relaxed);
        self.wake.notify_one();
        let empty = async {
            loop {
                let still = self.still.notified();
                if lock_unpoisoned(&self.earlier).is_none()
                    && lock_unpoisoned(&self.queue).is_empty()
                {
                    return;
                }
                still.await;
            }
        };
        if timeout(patience, empty).await.is_err() {
            tracing::warn!(
                event = "job_events.flush_timed_out",
                "events of a job were not delivered in time"
            );
        }
    }

    /// Sends events until it is dropped or the job is gone. For a resumed job, it first asks the orchestrator for the next sequence
    /// number.
    pub(crate) async fn send_events(
        &self,
        client: &NodeClient,
        job: JobId,
        fencing_token: i64,
    ) -> JobGone {
        if lock_unpoisoned(&self.earlier).is_some() {
            let ask = JobEvents { fencing_token, first: 0, events: Vec::new() };
            match call_with_retry(|| client.store_events(job, &ask)).await {
                Ok(stored) => {
                    let mut earlier = lock_unpoisoned(&self.earlier);
                    lock_unpoisoned(&self.queue)
                        .continue_from(stored.next, earlier.take().unwrap_or_default());
                }
                Err(error) if error.is_gone() => return self.discard_events(),
                Err(error) => {
                    Self::log_refused_events(&error);
                    *lock_unpoisoned(&self.earlier) = None;
                    lock_unpoisoned(&self.queue).whole = true;
                }
            }
            self.still.notify_waiters();
        }
        loop {
            self.gather_batch().await;
            let (first, events) = lock_unpoisoned(&self.queue).next_batch();
            if events.is_empty() {
                continue;
            }
            let body = JobEvents { fencing_token, first, events };
            match call_with_retry(|| client.store_events(job, &body)).await {
                Ok(stored) => lock_unpoisoned(&self.queue).acknowledge_until(stored.next),
                Err(error) if error.is_gone() => return self.discard_events(),
                Err(error) => {
                    // The orchestrator never accepts these events. It may accept others.
                    Self::log_refused_events(&error);
                    lock_unpoisoned(&self.queue).drop_sent_batch(body.events.len());
                }
            }
            self.still.notify_waiters();
        }
    }

    /// Waits for an event, and then for the batch delay.
    async fn gather_batch(&self) {
        while lock_unpoisoned(&self.queue).is_empty() {
            self.hurry.store(false, Ordering::Relaxed);
            self.wake.notified().await;
        }
        let end = Instant::now() + EVENT_BATCH_DELAY;
        while !self.hurry.load(Ordering::Relaxed) {
            if timeout_at(end, self.wake.notified()).await.is_err() {
                return;
            }
        }
    }

    fn discard_events(&self) -> JobGone {
        *lock_unpoisoned(&self.earlier) = None;
        lock_unpoisoned(&self.queue).close();
        self.still.notify_waiters();
        JobGone
    }

    fn log_refused_events(error: &NodeClientError) {
        tracing::warn!(event = "job_events.refused", %error, "events of a job were refused");
    }
}

/// A queued event.
#[derive(Debug)]
struct QueuedEvent {
    event: JobEvent,
    /// Approximate size in bytes.
    size: usize,
    /// Last position in the spool file that this event covers; 0 if it is not in the file.
    place: u64,
}

impl QueuedEvent {
    fn new(event: JobEvent, place: u64) -> Self {
        Self { size: event_size(&event.data), event, place }
    }
}

/// Bounded event queue. An event gets its sequence number when it is first sent, so that shedding before leaves no gap.
#[derive(Debug)]
struct EventQueue {
    events: VecDeque<QueuedEvent>,
    spool: Option<EventSpool>,
    /// Last position in the spool file that the sent events cover.
    through: u64,
    bytes: usize,
    most: usize,
    /// Sequence number of the first queued event.
    next: u64,
    /// Number of queued events that were sent at least once and must not change any more.
    sent: usize,
    /// Whether every event in the file that is still wanted is queued here.
    whole: bool,
    closed: bool,
    /// Remaining byte budget of the job; 0 once something was omitted.
    budget: u64,
    /// Bytes omitted since the last truncation mark.
    left_out: u64,
}

impl EventQueue {
    const fn new(most: usize, spool: Option<EventSpool>) -> Self {
        Self {
            events: VecDeque::new(),
            spool,
            through: 0,
            bytes: 0,
            most,
            next: 0,
            sent: 0,
            whole: true,
            closed: false,
            budget: MAX_JOB_EVENT_BYTES,
            left_out: 0,
        }
    }

    fn is_empty(&self) -> bool {
        self.events.is_empty()
    }

    fn is_batch_ready(&self) -> bool {
        self.events.len() >= MAX_BATCH_EVENTS || self.bytes >= MAX_BATCH_BYTES
    }

    fn close(&mut self) {
        self.closed = true;
        self.spool = None;
        self.events.clear();
        self.bytes = 0;
        self.sent = 0;
    }

    fn push(&mut self, mut event: JobEvent) {
        if self.closed {
            return;
        }
        let at_ms = event.at_ms;
        let cut = truncate_event(&mut event.data);
        if is_worker_event(&event.data) {
            let bytes = event_size(&event.data) as u64 + cut;
            let first = self.budget > 0;
            self.budget = self.budget.saturating_sub(bytes);
            if self.budget == 0 {
                self.left_out += bytes;
                if first {
                    self.push_truncation_mark(at_ms);
                }
                return;
            }
        } else if matches!(event.data, JobEventData::Phase { .. }) {
            self.push_truncation_mark(at_ms);
        }
        let place = self.spool_event(&event);
        if !self.try_merge_text(&event, place) {
            self.enqueue_event(event, place);
        }
        if cut > 0 {
            self.left_out += cut;
            self.push_truncation_mark(at_ms);
        }
        if self.bytes > self.most {
            self.drop_oldest_events();
        }
        if self.spool.as_ref().is_some_and(EventSpool::needs_compaction) {
            self.rewrite_spool();
        }
    }

    /// Queues a mark that says how many bytes were omitted, if any were.
    fn push_truncation_mark(&mut self, at_ms: u64) {
        let bytes = std::mem::take(&mut self.left_out);
        if bytes > 0 {
            let mark = JobEvent { at_ms, data: JobEventData::Truncated { bytes } };
            let place = self.spool_event(&mark);
            self.enqueue_event(mark, place);
        }
    }

    /// Appends an event to the spool file and returns its position.
    fn spool_event(&mut self, event: &JobEvent) -> u64 {
        self.spool.as_mut().map_or(0, |spool| spool.append_event(event))
    }

    fn enqueue_event(&mut self, event: JobEvent, place: u64) {
        let waiting = QueuedEvent::new(event, place);
        self.bytes += waiting.size;
        self.events.push_back(waiting);
    }

    /// Appends text to the last event if it has the same kind and was not sent.
    fn try_merge_text(&mut self, event: &JobEvent, place: u64) -> bool {
        if self.events.len() == self.sent {
            return false;
        }
        let Some(last) = self.events.back_mut() else { return false };
        let more = match (&mut last.event.data, &event.data) {
            (JobEventData::Message { text }, JobEventData::Message { text: more })
            | (JobEventData::Reasoning { text }, JobEventData::Reasoning { text: more }) => {
                (text, more)
            }
            (
                JobEventData::Output { stream, text },
                JobEventData::Output { stream: same, text: more },
            ) if stream == same => (text, more),
            _ => return false,
        };
        let (text, more) = more;
        if text.len() + more.len() > MAX_MERGE_BYTES {
            return false;
        }
        text.push_str(more);
        last.size += more.len();
        last.place = place;
        self.bytes += more.len();
        true
    }

    /// Sheds the oldest output until half of the queue is free. If that is not enough, it sheds the oldest events of any kind.
    fn drop_oldest_events(&mut self) {
        for spare in [is_output as fn(&JobEventData) -> bool, |_| true] {
            let mut left_out = 0_u64;
            let mut place = None;
            let mut kept = VecDeque::with_capacity(self.events.len());
            for (at, waiting) in self.events.drain(..).enumerate() {
                let full = self.bytes > self.most / 2;
                let what = &waiting.event.data;
                let is_mark = matches!(what, JobEventData::Truncated { .. });
                if at < self.sent || !full || !(spare(what) || is_mark) {
                    kept.push_back(waiting);
                    continue;
                }
                self.bytes -= waiting.size;
                left_out += match what {
                    JobEventData::Truncated { bytes } => *bytes,
                    _ => waiting.size as u64,
                };
                place.get_or_insert((kept.len(), waiting.event.at_ms));
            }
            self.events = kept;
            if let Some((place, at_ms)) = place {
                let mark = JobEvent { at_ms, data: JobEventData::Truncated { bytes: left_out } };
                let mark = QueuedEvent::new(mark, 0);
                self.bytes += mark.size;
                self.events.insert(place, mark);
            }
            if self.bytes <= self.most {
                return;
            }
        }
    }

    /// Returns the next batch. Events that were sent before are sent again unchanged.
    fn next_batch(&mut self) -> (u64, Vec<JobEvent>) {
        if self.sent == 0 {
            let mut bytes = 0;
            let fits = self.events.iter().take(MAX_BATCH_EVENTS).take_while(|waiting| {
                let first = bytes == 0;
                bytes += waiting.size;
                first || bytes <= MAX_BATCH_BYTES
            });
            let places = fits.map(|waiting| waiting.place);
            (self.sent, self.through) =
                places.fold((0, self.through), |(count, most), place| (count + 1, most.max(place)));
            if let Some(spool) = self.spool.as_mut().filter(|_| self.sent > 0) {
                spool.append_batch_mark(self.next + self.sent as u64, self.through);
            }
        }
        let events = self.events.iter().take(self.sent).map(|waiting| waiting.event.clone());
        (self.next, events.collect())
    }

    /// Removes all events before `next`, which the orchestrator has acknowledged.
    fn acknowledge_until(&mut self, next: u64) {
        let known = usize::try_from(next.saturating_sub(self.next)).unwrap_or(usize::MAX);
        self.drop_first_events(known.min(self.sent));
        self.next = next;
        self.sent = 0;
        if self.events.is_empty() {
            self.rewrite_spool();
        }
    }

    /// Rewrites the spool file with the queued events only.
    fn rewrite_spool(&mut self) {
        let Some(spool) = self.spool.as_mut().filter(|_| self.whole) else { return };
        let sent = self.sent as u64;
        spool
            .compact_to(self.events.iter().map(|waiting| &waiting.event), (sent, self.next + sent));
        for (place, waiting) in (1..).zip(&mut self.events) {
            waiting.place = place;
        }
        self.through = sent;
    }

    /// Continues after an earlier process, with the events that did not arrive. Called only before anything is sent.
    fn continue_from(&mut self, next: u64, earlier: SpoolBacklog) {
        (self.next, self.whole) = (next, true);
        for event in earlier.unacknowledged_after(next).into_iter().rev() {
            let waiting = QueuedEvent::new(event, 0);
            self.bytes += waiting.size;
            self.events.push_front(waiting);
        }
        if self.bytes > self.most {
            self.drop_oldest_events();
        }
        // Events that the earlier process sent and that did not arrive have other sequence numbers now.
        self.rewrite_spool();
    }

    /// Removes the events of a sent batch.
    fn drop_sent_batch(&mut self, count: usize) {
        let bytes: usize = self.events.iter().take(count).map(|waiting| waiting.size).sum();
        let first = self.events.front().map(|waiting| &waiting.event);
        let at_ms = first.map_or(0, |event| event.at_ms);
        let is_mark = first.is_some_and(|it| matches!(it.data, JobEventData::Truncated { .. }));
        let only_a_mark = count == 1 && is_mark;
        self.drop_first_events(count);
        self.sent = 0;
        if !only_a_mark {
            let mark = JobEvent { at_ms, data: JobEventData::Truncated { bytes: bytes as u64 } };
            let mark = QueuedEvent::new(mark, 0);
            self.bytes += mark.size;
            self.events.push_front(mark);
        }
    }

    fn drop_first_events(&mut self, count: usize) {
        for waiting in self.events.drain(..count.min(self.events.len())) {
            self.bytes -= waiting.size;
        }
    }
}

/// Returns whether the worker controls how many events of this kind there are.
const fn is_worker_event(what: &JobEventData) -> bool {
    match what {
        JobEventData::Message { .. }
        | JobEventData::Reasoning { .. }
        | JobEventData::Plan { .. }
        | JobEventData::Tool { .. }
        | JobEventData::Usage { .. }
        | JobEventData::Permission { .. }
        | JobEventData::Output { .. } => true,
        JobEventData::Phase { .. }
        | JobEventData::Session { .. }
        | JobEventData::Prompt { .. }
        | JobEventData::Note { .. }
        | JobEventData::Setup { .. }
        | JobEventData::Packages { .. }
        | JobEventData::Truncated { .. } => false,
    }
}

const fn is_output(what: &JobEventData) -> bool {
    matches!(what, JobEventData::Output { .. })
}

/// Returns the approximate size of an event in bytes.
fn event_size(what: &JobEventData) -> usize {
    const FRAME_BYTES: usize = 64;
    FRAME_BYTES
        + match what {
            JobEventData::Prompt { text }
            | JobEventData::Message { text }
            | JobEventData::Reasoning { text }
            | JobEventData::Note { text }
            | JobEventData::Output { text, .. } => text.len(),
            JobEventData::Plan { entries: value } | JobEventData::Usage { usage: value } => {
                value.to_string().len()
            }
            JobEventData::Tool { title, input, .. } => title.len() + input.to_string().len(),
            JobEventData::Permission { title, .. } => title.len(),
            JobEventData::Session { session, .. } => session.len(),
            JobEventData::Setup { step, .. } => step.len(),
            JobEventData::Packages { fetches } => fetches.iter().map(fetch_size).sum(),
            JobEventData::Phase { .. } | JobEventData::Truncated { .. } => 0,
        }
}

/// Returns the approximate size of a package fetch in bytes.
fn fetch_size(fetch: &PackageFetch) -> usize {
    let refused = fetch.refused.as_ref().map_or(0, String::len);
    fetch.package.len() + fetch.version.len() + fetch.sha256.len() + refused + 64
}

/// Truncates texts that are too long. Returns the number of bytes removed.
fn truncate_event(what: &mut JobEventData) -> u64 {
    let cut = |text: &mut String| {
        let before = text.len();
        if before > MAX_TEXT_BYTES {
            let most = text.floor_char_boundary(MAX_TEXT_BYTES);
            text.truncate(safe_cut_length(&text.as_bytes()[..most], MAX_LINE_BYTES));
        }
        before - text.len()
    };
    let clear = |value: &mut serde_json::Value| {
        let length = value.to_string().len();
        if length <= MAX_TEXT_BYTES {
            return 0;
        }
        *value = serde_json::Value::Null;
        length
    };
    let bytes = match what {
        JobEventData::Prompt { text }
        | JobEventData::Message { text }
        | JobEventData::Reasoning { text }
        | JobEventData::Note { text }
        | JobEventData::Output { text, .. } => cut(text),
        JobEventData::Plan { entries: value } | JobEventData::Usage { usage: value } => {
            clear(value)
        }
        JobEventData::Tool { title, input, .. } => cut(title) + clear(input),
        JobEventData::Permission { title, .. } => cut(title),
        JobEventData::Session { session, .. } => cut(session),
        JobEventData::Setup { step, .. } => cut(step),
        // The package proxy reports few fetches at once, with short texts.
        JobEventData::Packages { .. } => 0,
        JobEventData::Phase { .. } | JobEventData::Truncated { .. } => 0,
    };
    bytes as u64
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn output(text: &str) -> JobEvent {
        let what = JobEventData::Output { stream: "stdout".to_owned(), text: text.to_owned() };
        JobEvent { at_ms: 0, data: what }
    }

    fn note(text: &str) -> JobEvent {
        JobEvent { at_ms: 0, data: JobEventData::Note { text: text.to_owned() } }
    }

    fn texts(events: &[JobEvent]) -> Vec<String> {
        let text = |event: &JobEvent| match &event.data {
            JobEventData::Output { text, .. } | JobEventData::Note { text } => text.clone(),
            JobEventData::Truncated { bytes } => format!("-{bytes}"),
            other => format!("{other:?}"),
        };
        events.iter().map(text).collect()
    }

    #[test]
    fn words_that_follow_each_other_are_one_event_until_they_are_sent() {
        let mut queue = EventQueue::new(1 << 20, None);
        queue.push(output("a"));
        queue.push(output("b"));
        assert_eq!(texts(&queue.next_batch().1), ["ab"]);
        queue.push(output("c"));
        assert_eq!(texts(&queue.next_batch().1), ["ab"]);
        queue.acknowledge_until(1);
        let (first, events) = queue.next_batch();
        assert_eq!((first, texts(&events)), (1, vec!["c".to_owned()]));
    }

    #[test]
    fn what_is_too_long_ends_with_a_line() {
        let mut queue = EventQueue::new(1 << 20, None);
        let line = "words and words\n".repeat(MAX_TEXT_BYTES / 16 - 1);
        queue.push(note(&format!("{line}key-{}", "a".repeat(20))));
        assert_eq!(texts(&queue.next_batch().1), [line, "-24".to_owned()]);
    }

    #[test]
    fn a_job_tells_so_much_and_then_only_how_it_goes_on() {
        let mut queue = EventQueue::new(1 << 20, None);
        queue.budget = 300;
        for text in ["a", "b", "c"] {
            queue.push(output(&text.repeat(100)));
        }
        queue.push(output("d"));
        queue.push(note("n"));
        let finishing = JobEventData::Phase { phase: cynode_core::nodes::JobPhase::Finishing };
        queue.push(JobEvent { at_ms: 0, data: finishing.clone() });
        queue.push(output("e"));
        let expected = [
            "a".repeat(100),
            "-164".to_owned(),
            "n".to_owned(),
            "-229".to_owned(),
            format!("{finishing:?}"),
        ];
        assert_eq!(texts(&queue.next_batch().1), expected);
    }

    #[test]
    fn the_orchestrator_says_what_it_has() {
        let mut queue = EventQueue::new(1 << 20, None);
        for text in ["a", "b", "c"] {
            queue.push(note(text));
        }
        assert_eq!(queue.next_batch().0, 0);
        queue.acknowledge_until(2);
        let (first, events) = queue.next_batch();
        assert_eq!((first, texts(&events)), (2, vec!["c".to_owned()]));
    }

    #[test]
    fn when_there_is_no_room_the_oldest_output_goes_and_a_mark_stays() {
        let mut queue = EventQueue::new(2_000, None);
        queue.push(note("begin"));
        for at in 0..8 {
            queue.push(output(&format!("{at}").repeat(500)));
            queue.push(note("n"));
        }
        let (_, events) = queue.next_batch();
        let texts = texts(&events);
        assert_eq!(texts[0], "begin");
        assert!(texts[1].starts_with('-'), "{texts:?}");
        assert_eq!(texts.iter().filter(|text| *text == "n").count(), 8);
        assert!(queue.bytes <= 2_000);
    }

    #[test]
    fn what_is_refused_does_not_stop_the_rest() {
        let mut queue = EventQueue::new(1 << 20, None);
        queue.push(note("bad"));
        let sent = queue.next_batch().1.len();
        queue.push(note("good"));
        queue.drop_sent_batch(sent);
        let (first, events) = queue.next_batch();
        assert_eq!((first, texts(&events)), (0, vec!["-67".to_owned(), "good".to_owned()]));
        queue.drop_sent_batch(1);
        assert_eq!(texts(&queue.next_batch().1), ["good"]);
    }

    #[test]
    fn what_a_killed_process_had_not_sent_is_sent_by_the_next() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("events");
        let mut queue = EventQueue::new(1 << 20, Some(EventSpool::new(file.clone())));
        queue.push(output("a"));
        queue.push(output("b"));
        queue.push(note("n"));
        assert_eq!(texts(&queue.next_batch().1), ["ab", "n"]);
        queue.push(note("later"));
        drop(queue);
        // Killed in the middle of a line.
        let mut half = std::fs::OpenOptions::new().append(true).open(&file).unwrap();
        std::io::Write::write_all(&mut half, br#"{"event":{"at_ms":1,"#).unwrap();
        for (stored, left) in [(0, vec!["a", "b", "n", "later"]), (2, vec!["later"])] {
            let copy = dir.path().join(format!("events-{stored}"));
            std::fs::copy(&file, &copy).unwrap();
            let (spool, earlier) = EventSpool::open_existing(copy);
            let mut queue = EventQueue::new(1 << 20, Some(spool));
            queue.continue_from(stored, earlier);
            let all: Vec<_> = queue.events.iter().map(|waiting| waiting.event.clone()).collect();
            assert_eq!(texts(&all), left);
        }
    }

    #[test]
    fn where_nothing_can_be_written_events_wait_in_memory() {
        let dir = tempfile::tempdir().unwrap();
        let nowhere = dir.path().join("missing/events");
        let (spool, earlier) = EventSpool::open_existing(nowhere.clone());
        let mut queue = EventQueue::new(1 << 20, Some(spool));
        queue.continue_from(7, earlier);
        queue.push(note("a"));
        let (first, events) = queue.next_batch();
        assert_eq!((first, texts(&events)), (7, vec!["a".to_owned()]));
        queue.acknowledge_until(8);
        assert!(queue.is_empty() && !nowhere.exists());
    }

    #[test]
    fn a_file_of_another_claim_is_not_taken_for_ones_own() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("events");
        EventQueue::new(1 << 20, Some(EventSpool::new(file.clone()))).push(note("old"));
        drop(EventSpool::new(file.clone()));
        assert_eq!(
            EventSpool::open_existing(file).1.unacknowledged_after(0),
            Vec::<JobEvent>::new()
        );
    }

    proptest! {
        #[test]
        fn wherever_it_is_killed_everything_arrives_once_and_in_order(
            steps in proptest::collection::vec((0..7_u8, 1..40_usize), 0..60),
        ) {
            let dir = tempfile::tempdir().unwrap();
            let file = dir.path().join("events");
            let mut queue = EventQueue::new(1 << 26, Some(EventSpool::new(file.clone())));
            let (mut said, mut stored) = (String::new(), Vec::new());
            let take = |queue: &mut EventQueue, stored: &mut Vec<JobEvent>| {
                let (first, events) = queue.next_batch();
                // What it has already, it does not store again.
                let new = (first..).zip(events).filter(|(number, _)| *number >= stored.len() as u64);
                let new: Vec<_> = new.map(|(_, event)| event).collect();
                stored.extend(new);
                stored.len() as u64
            };
            for (step, length) in steps {
                let words = char::from(b'a' + u8::try_from(said.len() % 26).unwrap()).to_string().repeat(length);
                match step {
                    0 | 1 => {
                        said += &words;
                        queue.push(if step == 0 { output(&words) } else { note(&words) });
                    }
                    2 => { queue.next_batch(); }
                    // More than fits in a batch, once it is not put together any more.
                    6 => for _ in 0..300 {
                        said += &words;
                        queue.push(output(&words));
                    },
                    // The orchestrator has them, and nobody heard of it.
                    3 => { take(&mut queue, &mut stored); }
                    4 => {
                        let next = take(&mut queue, &mut stored);
                        queue.acknowledge_until(next);
                    }
                    _ => {
                        drop(queue);
                        let (spool, earlier) = EventSpool::open_existing(file.clone());
                        queue = EventQueue::new(1 << 26, Some(spool));
                        queue.continue_from(stored.len() as u64, earlier);
                    }
                }
            }
            while !queue.is_empty() {
                let next = take(&mut queue, &mut stored);
                queue.acknowledge_until(next);
            }
            prop_assert_eq!(texts(&stored).concat(), said, "S001-60: complete and in order");
            prop_assert_eq!(std::fs::metadata(&file).unwrap().len(), 0);
        }

        #[test]
        fn there_is_never_more_than_fits_and_numbers_have_no_gap(
            steps in proptest::collection::vec((0..4_u8, 0..300_usize), 0..200),
        ) {
            let mut queue = EventQueue::new(4_000, None);
            let mut stored = 0_u64;
            for (step, length) in steps {
                match step {
                    0 => queue.push(output(&"x".repeat(length))),
                    1 => queue.push(note(&"y".repeat(length))),
                    2 => {
                        let (first, events) = queue.next_batch();
                        prop_assert_eq!(first, stored);
                        stored += events.len() as u64;
                        queue.acknowledge_until(stored);
                    }
                    _ => { queue.next_batch(); }
                }
                let counted: usize = queue.events.iter().map(|waiting| waiting.size).sum();
                prop_assert_eq!(counted, queue.bytes);
                // What is on its way cannot be taken back, so there may be that much more.
                prop_assert!(queue.bytes <= 4_000 * 2 + 1_000);
            }
        }
    }
}
