//! Events on their way to the orchestrator: in order, in batches, again until they are acknowledged, and never more of them
//! in memory than there is room for.

use std::{
    collections::VecDeque,
    sync::{
        Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use cynode_core::{ids::JobId, sync::lock};
use cynode_wire::nodes::{Happened, JobEvent, JobEvents};
use tokio::{
    sync::Notify,
    time::{Instant, timeout, timeout_at},
};

use crate::{
    client::{Client, ClientError, until_answered},
    clock::Moment,
};

/// How long an event waits for others to travel with.
const GATHER: Duration = Duration::from_millis(200);

/// Most events of a batch.
const BATCH_EVENTS: usize = 500;

/// Most bytes of a batch; a single event may be larger.
const BATCH_BYTES: usize = 256 * 1024;

/// Most bytes of one text.
const TEXT_BYTES: usize = 64 * 1024;

/// Up to this size, words that follow each other are made one event.
const MERGE_BYTES: usize = 4 * 1024;

/// Most bytes that wait.
const QUEUE_BYTES: usize = 4 * 1024 * 1024;

/// The events of one job.
#[derive(Debug)]
pub(crate) struct Outbox {
    claimed: Moment,
    queue: Mutex<Queue>,
    /// Something was put in, or is wanted at once.
    wake: Notify,
    /// Everything was sent, or nothing more will be.
    still: Notify,
    hurry: AtomicBool,
}

/// The job is not ours any more: its events are not wanted.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Unwanted;

impl Outbox {
    /// For a job that was claimed then.
    pub(crate) fn new(claimed: Moment) -> Self {
        Self {
            claimed,
            queue: Mutex::new(Queue::new(QUEUE_BYTES)),
            wake: Notify::new(),
            still: Notify::new(),
            hurry: AtomicBool::new(false),
        }
    }

    /// Puts an event in.
    pub(crate) fn push(&self, what: Happened) {
        let at_ms = u64::try_from(self.claimed.elapsed().as_millis()).unwrap_or(u64::MAX);
        let full = {
            let mut queue = lock(&self.queue);
            queue.push(JobEvent { at_ms, what });
            queue.is_worth_a_batch()
        };
        if full {
            self.hurry.store(true, Ordering::Relaxed);
        }
        self.wake.notify_one();
    }

    /// Waits until everything is acknowledged, though not for ever.
    pub(crate) async fn flush(&self, patience: Duration) {
        self.hurry.store(true, Ordering::Relaxed);
        self.wake.notify_one();
        let empty = async {
            loop {
                let still = self.still.notified();
                if lock(&self.queue).is_empty() {
                    return;
                }
                still.await;
            }
        };
        if timeout(patience, empty).await.is_err() {
            tracing::warn!(event = "events.late", "events of a job were not taken in time");
        }
    }

    /// Sends until it is dropped, or until nothing more is wanted. Whether the job was begun by an earlier process makes a
    /// difference: then the orchestrator says which number comes next.
    pub(crate) async fn send(
        &self,
        client: &Client,
        job: JobId,
        fencing_token: i64,
        begun_before: bool,
    ) -> Unwanted {
        if begun_before {
            let ask = JobEvents { fencing_token, first: 0, events: Vec::new() };
            match until_answered(|| client.events(job, &ask)).await {
                Ok(stored) => lock(&self.queue).expect_next(stored.next),
                Err(error) if error.is_gone() => return self.unwanted(),
                Err(error) => Self::complain(&error),
            }
        }
        loop {
            self.gather().await;
            let (first, events) = lock(&self.queue).batch();
            if events.is_empty() {
                continue;
            }
            let body = JobEvents { fencing_token, first, events };
            match until_answered(|| client.events(job, &body)).await {
                Ok(stored) => lock(&self.queue).stored(stored.next),
                Err(error) if error.is_gone() => return self.unwanted(),
                Err(error) => {
                    // These ones are never taken. The others may be.
                    Self::complain(&error);
                    lock(&self.queue).give_up(body.events.len());
                }
            }
            self.still.notify_waiters();
        }
    }

    /// Waits for something to send, and a moment longer for more.
    async fn gather(&self) {
        while lock(&self.queue).is_empty() {
            self.hurry.store(false, Ordering::Relaxed);
            self.wake.notified().await;
        }
        let end = Instant::now() + GATHER;
        while !self.hurry.load(Ordering::Relaxed) {
            if timeout_at(end, self.wake.notified()).await.is_err() {
                return;
            }
        }
    }

    fn unwanted(&self) -> Unwanted {
        lock(&self.queue).close();
        self.still.notify_waiters();
        Unwanted
    }

    fn complain(error: &ClientError) {
        tracing::warn!(event = "events.refused", %error, "events of a job were refused");
    }
}

/// What waits. Events get their number when they are first sent, so that what is left out before leaves no gap.
#[derive(Debug)]
struct Queue {
    events: VecDeque<(JobEvent, usize)>,
    bytes: usize,
    most: usize,
    /// The number of the first one.
    next: u64,
    /// How many of them were sent, and so must stay as they are.
    sent: usize,
    closed: bool,
}

impl Queue {
    const fn new(most: usize) -> Self {
        Self { events: VecDeque::new(), bytes: 0, most, next: 0, sent: 0, closed: false }
    }

    fn is_empty(&self) -> bool {
        self.events.is_empty()
    }

    fn is_worth_a_batch(&self) -> bool {
        self.events.len() >= BATCH_EVENTS || self.bytes >= BATCH_BYTES
    }

    fn close(&mut self) {
        self.closed = true;
        self.events.clear();
        self.bytes = 0;
        self.sent = 0;
    }

    fn push(&mut self, mut event: JobEvent) {
        if self.closed {
            return;
        }
        let at_ms = event.at_ms;
        let cut = shorten(&mut event.what);
        if !self.merged(&event) {
            self.put(event);
        }
        if cut > 0 {
            self.put(JobEvent { at_ms, what: Happened::Truncated { bytes: cut } });
        }
        if self.bytes > self.most {
            self.make_room();
        }
    }

    fn put(&mut self, event: JobEvent) {
        let size = size(&event.what);
        self.bytes += size;
        self.events.push_back((event, size));
    }

    /// Adds words to those before, when they are of the same kind and were not sent.
    fn merged(&mut self, event: &JobEvent) -> bool {
        if self.events.len() == self.sent {
            return false;
        }
        let Some((last, size)) = self.events.back_mut() else { return false };
        let more = match (&mut last.what, &event.what) {
            (Happened::Said { text }, Happened::Said { text: more })
            | (Happened::Thought { text }, Happened::Thought { text: more }) => (text, more),
            (Happened::Output { stream, text }, Happened::Output { stream: same, text: more })
                if stream == same =>
            {
                (text, more)
            }
            _ => return false,
        };
        let (text, more) = more;
        if text.len() + more.len() > MERGE_BYTES {
            return false;
        }
        text.push_str(more);
        *size += more.len();
        self.bytes += more.len();
        true
    }

    /// Leaves out the oldest output, and when that is not enough the oldest of anything, until half of the room is free.
    fn make_room(&mut self) {
        for spare in [is_output as fn(&Happened) -> bool, |_| true] {
            let mut left_out = 0_u64;
            let mut place = None;
            let mut kept = VecDeque::with_capacity(self.events.len());
            for (at, (event, size)) in self.events.drain(..).enumerate() {
                let full = self.bytes > self.most / 2;
                let is_mark = matches!(event.what, Happened::Truncated { .. });
                if at < self.sent || !full || !(spare(&event.what) || is_mark) {
                    kept.push_back((event, size));
                    continue;
                }
                self.bytes -= size;
                left_out += match event.what {
                    Happened::Truncated { bytes } => bytes,
                    _ => size as u64,
                };
                place.get_or_insert((kept.len(), event.at_ms));
            }
            self.events = kept;
            if let Some((place, at_ms)) = place {
                let mark = JobEvent { at_ms, what: Happened::Truncated { bytes: left_out } };
                let size = size(&mark.what);
                self.bytes += size;
                self.events.insert(place, (mark, size));
            }
            if self.bytes <= self.most {
                return;
            }
        }
    }

    /// The next ones to send. What was sent before is sent again as it was.
    fn batch(&mut self) -> (u64, Vec<JobEvent>) {
        if self.sent == 0 {
            let mut bytes = 0;
            let fits = self.events.iter().take(BATCH_EVENTS).take_while(|(_, size)| {
                let first = bytes == 0;
                bytes += size;
                first || bytes <= BATCH_BYTES
            });
            self.sent = fits.count();
        }
        let events = self.events.iter().take(self.sent).map(|(event, _)| event.clone());
        (self.next, events.collect())
    }

    /// The orchestrator has everything before `next`.
    fn stored(&mut self, next: u64) {
        let known = usize::try_from(next.saturating_sub(self.next)).unwrap_or(usize::MAX);
        self.drop_first(known.min(self.sent));
        self.next = next;
        self.sent = 0;
    }

    /// Only used before anything was sent.
    const fn expect_next(&mut self, next: u64) {
        self.next = next;
    }

    /// Leaves out what was sent.
    fn give_up(&mut self, count: usize) {
        let bytes: usize = self.events.iter().take(count).map(|(_, size)| size).sum();
        let at_ms = self.events.front().map_or(0, |(event, _)| event.at_ms);
        let only_a_mark = count == 1
            && matches!(
                self.events.front(),
                Some((JobEvent { what: Happened::Truncated { .. }, .. }, _))
            );
        self.drop_first(count);
        self.sent = 0;
        if !only_a_mark {
            let mark = JobEvent { at_ms, what: Happened::Truncated { bytes: bytes as u64 } };
            let size = size(&mark.what);
            self.bytes += size;
            self.events.push_front((mark, size));
        }
    }

    fn drop_first(&mut self, count: usize) {
        for (_, size) in self.events.drain(..count.min(self.events.len())) {
            self.bytes -= size;
        }
    }
}

const fn is_output(what: &Happened) -> bool {
    matches!(what, Happened::Output { .. })
}

/// Roughly how many bytes an event has.
fn size(what: &Happened) -> usize {
    const FRAME: usize = 64;
    FRAME
        + match what {
            Happened::Told { text }
            | Happened::Said { text }
            | Happened::Thought { text }
            | Happened::Note { text }
            | Happened::Output { text, .. } => text.len(),
            Happened::Plan { entries: value } | Happened::Usage { usage: value } => {
                value.to_string().len()
            }
            Happened::Tool { title, input, .. } => title.len() + input.to_string().len(),
            Happened::Permission { title, .. } => title.len(),
            Happened::Session { session, .. } => session.len(),
            Happened::Phase { .. } | Happened::Truncated { .. } => 0,
        }
}

/// Cuts what is too long; gives how many bytes were cut.
fn shorten(what: &mut Happened) -> u64 {
    let cut = |text: &mut String| {
        let before = text.len();
        if before > TEXT_BYTES {
            text.truncate(text.floor_char_boundary(TEXT_BYTES));
        }
        before - text.len()
    };
    let clear = |value: &mut serde_json::Value| {
        let length = value.to_string().len();
        if length <= TEXT_BYTES {
            return 0;
        }
        *value = serde_json::Value::Null;
        length
    };
    let bytes = match what {
        Happened::Told { text }
        | Happened::Said { text }
        | Happened::Thought { text }
        | Happened::Note { text }
        | Happened::Output { text, .. } => cut(text),
        Happened::Plan { entries: value } | Happened::Usage { usage: value } => clear(value),
        Happened::Tool { title, input, .. } => cut(title) + clear(input),
        Happened::Permission { title, .. } => cut(title),
        Happened::Session { session, .. } => cut(session),
        Happened::Phase { .. } | Happened::Truncated { .. } => 0,
    };
    bytes as u64
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn output(text: &str) -> JobEvent {
        let what = Happened::Output { stream: "stdout".to_owned(), text: text.to_owned() };
        JobEvent { at_ms: 0, what }
    }

    fn note(text: &str) -> JobEvent {
        JobEvent { at_ms: 0, what: Happened::Note { text: text.to_owned() } }
    }

    fn texts(events: &[JobEvent]) -> Vec<String> {
        let text = |event: &JobEvent| match &event.what {
            Happened::Output { text, .. } | Happened::Note { text } => text.clone(),
            Happened::Truncated { bytes } => format!("-{bytes}"),
            other => format!("{other:?}"),
        };
        events.iter().map(text).collect()
    }

    #[test]
    fn words_that_follow_each_other_are_one_event_until_they_are_sent() {
        let mut queue = Queue::new(1 << 20);
        queue.push(output("a"));
        queue.push(output("b"));
        assert_eq!(texts(&queue.batch().1), ["ab"]);
        queue.push(output("c"));
        assert_eq!(texts(&queue.batch().1), ["ab"]);
        queue.stored(1);
        let (first, events) = queue.batch();
        assert_eq!((first, texts(&events)), (1, vec!["c".to_owned()]));
    }

    #[test]
    fn the_orchestrator_says_what_it_has() {
        let mut queue = Queue::new(1 << 20);
        for text in ["a", "b", "c"] {
            queue.push(note(text));
        }
        assert_eq!(queue.batch().0, 0);
        queue.stored(2);
        let (first, events) = queue.batch();
        assert_eq!((first, texts(&events)), (2, vec!["c".to_owned()]));
    }

    #[test]
    fn when_there_is_no_room_the_oldest_output_goes_and_a_mark_stays() {
        let mut queue = Queue::new(2_000);
        queue.push(note("begin"));
        for at in 0..8 {
            queue.push(output(&format!("{at}").repeat(500)));
            queue.push(note("n"));
        }
        let (_, events) = queue.batch();
        let texts = texts(&events);
        assert_eq!(texts[0], "begin");
        assert!(texts[1].starts_with('-'), "{texts:?}");
        assert_eq!(texts.iter().filter(|text| *text == "n").count(), 8);
        assert!(queue.bytes <= 2_000);
    }

    #[test]
    fn what_is_refused_does_not_stop_the_rest() {
        let mut queue = Queue::new(1 << 20);
        queue.push(note("bad"));
        let sent = queue.batch().1.len();
        queue.push(note("good"));
        queue.give_up(sent);
        let (first, events) = queue.batch();
        assert_eq!((first, texts(&events)), (0, vec!["-67".to_owned(), "good".to_owned()]));
        queue.give_up(1);
        assert_eq!(texts(&queue.batch().1), ["good"]);
    }

    proptest! {
        #[test]
        fn there_is_never_more_than_fits_and_numbers_have_no_gap(
            steps in proptest::collection::vec((0..4_u8, 0..300_usize), 0..200),
        ) {
            let mut queue = Queue::new(4_000);
            let mut stored = 0_u64;
            for (step, length) in steps {
                match step {
                    0 => queue.push(output(&"x".repeat(length))),
                    1 => queue.push(note(&"y".repeat(length))),
                    2 => {
                        let (first, events) = queue.batch();
                        prop_assert_eq!(first, stored);
                        stored += events.len() as u64;
                        queue.stored(stored);
                    }
                    _ => { queue.batch(); }
                }
                let counted: usize = queue.events.iter().map(|(_, size)| size).sum();
                prop_assert_eq!(counted, queue.bytes);
                // What is on its way cannot be taken back, so there may be that much more.
                prop_assert!(queue.bytes <= 4_000 * 2 + 1_000);
            }
        }
    }
}
