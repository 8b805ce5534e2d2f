//! Wake-ups: a worker sleeps until there is work for it.
//!
//! A commit wakes waiters of the same process directly and those of other processes by LISTEN and NOTIFY. One poll per
//! process, over all queues in one statement, finds work that became due by time and notifications that were lost.
//! **Invariant**: a lost wake-up costs time and nothing else. While no process-wide poll runs, each waiter polls by
//! itself.

use std::{
    collections::{HashMap, HashSet},
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use cynode_core::{
    ids::{JobId, NodeId, TaskId},
    sync::lock_unpoisoned,
};
use cynode_db::{
    DbError,
    background::pending::{self, PendingWork},
    nodes,
    platform::wakeups::{self, WakeupListener},
};
use serde::{Deserialize, Serialize};
use tokio::{
    sync::{Notify, futures::OwnedNotified},
    time::timeout,
};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::{
    App, Error,
    platform::{error::log_background_error, operation},
};

/// Intervals of the reconciler.
#[derive(Clone, Copy, Debug)]
pub struct ReconcileInterval {
    /// Interval of its poll.
    pub every: Duration,
    /// How long it waits for a dispatched run before it dispatches the run again.
    pub redispatch_after: Duration,
}

/// Poll interval of a waiter while the process-wide poll runs.
const FALLBACK_POLL_INTERVAL: Duration = Duration::from_mins(1);

/// Poll interval of an event stream while other processes are heard.
const FALLBACK_STREAM_INTERVAL: Duration = Duration::from_secs(5);

/// Minimum interval of the process-wide poll while other processes are not heard.
const MIN_POLL_INTERVAL: Duration = Duration::from_millis(100);

/// How often a process announces its presence, and how long it counts as present.
const HELLO_INTERVAL: Duration = Duration::from_secs(30);
const PEER_TTL: Duration = Duration::from_secs(100);

/// How long our own announcement may take to come back. Without the echo other processes are not heard either.
const ECHO_TIMEOUT: Duration = Duration::from_secs(5);

/// Delay between attempts to listen.
const RELISTEN_DELAY: Duration = Duration::from_secs(30);

/// Minimum time between two announcements. Changes in between go into the next one.
const ANNOUNCE_INTERVAL: Duration = Duration::from_millis(10);

/// Maximum number of nodes in one announcement, whose size is at most 8000 bytes. The poll finds the others.
const MAX_ANNOUNCED_NODES: usize = 100;

/// Maximum number of jobs in one announcement. The streams of the others poll.
const MAX_ANNOUNCED_LOGS: usize = 50;

/// Minimum size of a pool that can spare a connection for listening.
const MIN_LISTEN_CONNECTIONS: u32 = 6;

/// Wake-ups between the requests of one process, and presence of other processes.
#[derive(Default)]
pub(crate) struct Wakeups {
    /// A run may have become due.
    due: Notify,
    /// A lease or a deadline has expired.
    overdue: Notify,
    /// A job or a handoff was queued.
    queued: Arc<Notify>,
    /// A notification was queued.
    told: Notify,
    /// A schedule is due.
    schedules: Notify,
    /// A forge is due to be polled.
    remotes: Notify,
    /// Memory has something to read or to record.
    memory: Notify,
    /// A model call may be lost: its process has not reported it.
    calls: AtomicBool,
    /// Jobs may wait to be placed on a node.
    unplaced: AtomicBool,
    /// Tasks that a long poll waits on.
    watched: Mutex<HashMap<TaskId, Arc<Notify>>>,
    /// Nodes that wait for jobs.
    nodes: Mutex<HashMap<NodeId, Arc<Notify>>>,
    /// Jobs whose log is followed.
    logs: Mutex<HashMap<JobId, Arc<Notify>>>,
    /// Idle nodes with a heartbeat since the last poll.
    beats: Mutex<HashSet<NodeId>>,
    /// The process-wide poll runs.
    attended: AtomicBool,
    /// Announcements of other processes are received.
    listening: AtomicBool,
    /// Number of times that the connection to the database was lost.
    disconnects: AtomicU64,
    /// Unique id of this process among the others, once it listens.
    id: OnceLock<Uuid>,
    /// Other processes and the time of their last announcement.
    peers: Mutex<HashMap<Uuid, Instant>>,
    /// Announcement that is still to be sent.
    outgoing: Mutex<PeerAnnouncement>,
    announces: Notify,
}

/// Announcement of a process to the others.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[expect(clippy::struct_excessive_bools, reason = "each is another thing that happened")]
struct PeerAnnouncement {
    from: Uuid,
    /// Announces presence and asks the others to announce theirs.
    hello: bool,
    runs: bool,
    queued: bool,
    told: bool,
    events: bool,
    nodes: Vec<NodeId>,
    logs: Vec<JobId>,
}

impl PeerAnnouncement {
    fn is_empty(&self) -> bool {
        *self == Self { from: self.from, ..Self::default() }
    }
}

impl Wakeups {
    fn process_id(&self) -> Uuid {
        self.id.get().copied().unwrap_or_default()
    }

    fn wake_queue(&self) {
        self.unplaced.store(true, Ordering::SeqCst);
        self.queued.notify_waiters();
    }

    fn wake_nodes(&self, nodes: &[NodeId]) {
        let waiting = lock_unpoisoned(&self.nodes);
        for node in nodes {
            if let Some(sign) = waiting.get(node) {
                sign.notify_waiters();
            }
        }
    }

    /// Wakes the streams that follow the logs of these jobs.
    fn wake_logs(&self, jobs: &[JobId]) {
        let followed = lock_unpoisoned(&self.logs);
        for job in jobs {
            if let Some(sign) = followed.get(job) {
                sign.notify_waiters();
            }
        }
    }

    /// Adds to the next announcement, if there are other processes.
    fn queue_announcement(&self, change: impl FnOnce(&mut PeerAnnouncement)) {
        if lock_unpoisoned(&self.peers).is_empty() {
            return;
        }
        change(&mut lock_unpoisoned(&self.outgoing));
        self.announces.notify_one();
    }
}

impl App {
    /// Wakes event streams: there may be new events.
    pub(crate) fn announce_commit(&self) {
        self.commits.send_modify(|count| *count = count.wrapping_add(1));
        self.signs.queue_announcement(|outgoing| outgoing.events = true);
    }

    /// Wakes the reconciler and the long polls on these tasks: their runs may be due.
    pub(crate) fn announce_due_runs(&self, tasks: &[TaskId]) {
        self.signs.due.notify_one();
        let mut watched = lock_unpoisoned(&self.signs.watched);
        for task in tasks {
            if let Some(sign) = watched.remove(task) {
                sign.notify_waiters();
            }
        }
        drop(watched);
        self.signs.queue_announcement(|outgoing| outgoing.runs = true);
    }

    /// Waits until a run may have become due.
    pub(crate) async fn until_run_due(&self) {
        self.signs.due.notified().await;
    }

    /// Waits until a lease or a deadline has expired.
    pub(crate) async fn until_overdue(&self) {
        self.signs.overdue.notified().await;
    }

    /// Wakes waiters for work.
    pub(crate) fn announce_queued_work(&self) {
        self.signs.wake_queue();
        self.signs.queue_announcement(|outgoing| outgoing.queued = true);
    }

    /// Wakes nodes that jobs were placed on.
    pub(crate) fn announce_placed_jobs(&self, nodes: &[NodeId]) {
        if nodes.is_empty() {
            return;
        }
        self.signs.wake_nodes(nodes);
        self.signs.queue_announcement(|outgoing| {
            outgoing.nodes.extend_from_slice(nodes);
            outgoing.nodes.sort_unstable();
            outgoing.nodes.dedup();
            outgoing.nodes.truncate(MAX_ANNOUNCED_NODES);
        });
    }

    /// Wakes the streams that follow the log of a job: it has new events, or it has ended.
    pub(crate) fn announce_job_log(&self, job: JobId) {
        self.signs.wake_logs(&[job]);
        self.signs.queue_announcement(|outgoing| {
            if outgoing.logs.len() < MAX_ANNOUNCED_LOGS && !outgoing.logs.contains(&job) {
                outgoing.logs.push(job);
            }
        });
    }

    /// Returns a future that ends when the log of a job has something new.
    pub(crate) fn job_log_signal(&self, job: JobId) -> OwnedNotified {
        lock_unpoisoned(&self.signs.logs).entry(job).or_default().clone().notified_owned()
    }

    /// Removes the jobs whose log nobody follows any more.
    pub(crate) fn prune_log_signals(&self) {
        lock_unpoisoned(&self.signs.logs).retain(|_, sign| Arc::strong_count(sign) > 1);
    }

    /// Wakes the outbox worker: a notification was queued.
    pub(crate) fn announce_notifications(&self) {
        self.signs.told.notify_one();
        self.signs.queue_announcement(|outgoing| outgoing.told = true);
    }

    /// Waits until a notification is due.
    pub(crate) async fn until_notification_due(&self) {
        self.signs.told.notified().await;
    }

    /// Waits until a schedule is due.
    pub(crate) async fn until_schedule_due(&self) {
        self.signs.schedules.notified().await;
    }

    /// Waits until a forge is due to be polled.
    pub(crate) async fn until_remote_due(&self) {
        self.signs.remotes.notified().await;
    }

    /// Waits until memory has something to read or to record.
    pub(crate) async fn until_memory_due(&self) {
        self.signs.memory.notified().await;
    }

    /// Returns whether a model call may be lost, or no poll has checked. Resets the flag.
    pub(crate) fn take_lost_calls(&self) -> bool {
        self.signs.calls.swap(false, Ordering::SeqCst) || !self.has_shared_poll()
    }

    /// Records that jobs may wait to be placed or that a node has become available.
    pub(crate) fn set_unplaced(&self) {
        self.signs.unplaced.store(true, Ordering::SeqCst);
    }

    /// Returns whether jobs may wait to be placed.
    pub(crate) fn is_unplaced(&self) -> bool {
        self.signs.unplaced.load(Ordering::SeqCst)
    }

    /// Returns whether jobs may wait to be placed. Resets the flag.
    pub(crate) fn take_unplaced(&self) -> bool {
        self.signs.unplaced.swap(false, Ordering::SeqCst)
    }

    /// Returns a future that ends when a job or a handoff is queued.
    pub(crate) fn work_signal(&self) -> OwnedNotified {
        self.signs.queued.clone().notified_owned()
    }

    /// Returns a future that ends when a job is placed on this node.
    pub(crate) fn node_signal(&self, node: NodeId) -> OwnedNotified {
        lock_unpoisoned(&self.signs.nodes).entry(node).or_default().clone().notified_owned()
    }

    /// Stops watching a task. A long poll that still waits on it polls by itself.
    pub(crate) fn unwatch_task(&self, task: TaskId) {
        lock_unpoisoned(&self.signs.watched).remove(&task);
    }

    /// Returns a future that ends when something happens to this task in this process.
    pub(crate) fn task_signal(&self, task: TaskId) -> OwnedNotified {
        lock_unpoisoned(&self.signs.watched).entry(task).or_default().clone().notified_owned()
    }

    /// Records the heartbeat of an idle node. Returns `false` when no process-wide poll would write it.
    pub(crate) fn record_idle_heartbeat(&self, node: NodeId) -> bool {
        let attended = self.has_shared_poll();
        if attended {
            lock_unpoisoned(&self.signs.beats).insert(node);
        }
        attended
    }

    /// Returns whether this process hears other processes, and there are some.
    pub fn hears_peers(&self) -> bool {
        self.signs.listening.load(Ordering::SeqCst)
            && !lock_unpoisoned(&self.signs.peers).is_empty()
    }

    /// Returns how often this process has lost its connection to the database.
    pub(crate) fn database_disconnects(&self) -> u64 {
        self.signs.disconnects.load(Ordering::SeqCst)
    }

    /// Records that the connection to the database was lost. Streams end and report it.
    fn record_disconnect(&self) {
        self.signs.disconnects.fetch_add(1, Ordering::SeqCst);
        tracing::warn!(
            event = "database.disconnected",
            "the connection to the database was lost; it is opened again"
        );
        self.wake_all();
    }

    /// Returns whether a process-wide poll runs.
    pub(crate) fn has_shared_poll(&self) -> bool {
        self.signs.attended.load(Ordering::SeqCst)
    }

    /// Returns the delay of a waiter that would poll at this interval by itself.
    pub(crate) fn poll_delay(&self, every: Duration) -> Duration {
        if self.has_shared_poll() { FALLBACK_POLL_INTERVAL } else { every }
    }

    /// Returns the delay of a waiter for commits of any process that would poll at this interval by itself.
    pub(crate) fn stream_poll_delay(&self, every: Duration) -> Duration {
        let heard = self.has_shared_poll() && self.signs.listening.load(Ordering::SeqCst);
        if heard { FALLBACK_STREAM_INTERVAL } else { every }
    }

    /// Waits until a waiter with this poll interval is to poll.
    pub(crate) async fn until_poll_due(&self, every: Duration) {
        sleep_for(self.poll_delay(every)).await;
    }

    /// Wakes all waiters, because an announcement may have been lost.
    fn wake_all(&self) {
        self.commits.send_modify(|count| *count = count.wrapping_add(1));
        let signs = &self.signs;
        signs.due.notify_one();
        signs.told.notify_one();
        signs.wake_queue();
        for sign in lock_unpoisoned(&signs.nodes).values() {
            sign.notify_waiters();
        }
        for sign in lock_unpoisoned(&signs.logs).values() {
            sign.notify_waiters();
        }
    }

    /// Wakes the waiters for the work that a poll found.
    fn wake_for_pending(&self, pending: &PendingWork) {
        let signs = &self.signs;
        if pending.runs {
            signs.due.notify_one();
        }
        if pending.overdue {
            signs.overdue.notify_one();
        }
        if pending.unplaced {
            signs.wake_queue();
        } else if pending.jobs || !pending.handoffs.is_empty() {
            signs.queued.notify_waiters();
        }
        signs.wake_nodes(&pending.nodes);
        if pending.notices {
            signs.told.notify_one();
        }
        if pending.schedules {
            signs.schedules.notify_one();
        }
        if pending.remotes {
            signs.remotes.notify_waiters();
        }
        if pending.memory {
            signs.memory.notify_one();
        }
        if pending.calls {
            signs.calls.store(true, Ordering::SeqCst);
        }
    }

    /// Wakes the waiters that an announcement of another process concerns.
    fn wake_for_announcement(&self, said: &PeerAnnouncement) {
        let signs = &self.signs;
        let known = lock_unpoisoned(&signs.peers).insert(said.from, Instant::now()).is_some();
        if said.hello && !known {
            // The new process does not know of us yet.
            signs.queue_announcement(|outgoing| outgoing.hello = true);
        }
        if said.events {
            self.commits.send_modify(|count| *count = count.wrapping_add(1));
        }
        if said.runs {
            signs.due.notify_one();
        }
        if said.queued {
            signs.wake_queue();
        }
        if said.told {
            signs.told.notify_one();
        }
        signs.wake_nodes(&said.nodes);
        signs.wake_logs(&said.logs);
    }
}

/// Marks the process-wide poll as running until it is dropped.
struct SharedPollGuard<'a>(&'a App);

impl<'a> SharedPollGuard<'a> {
    fn start_polling(app: &'a App) -> Self {
        app.signs.attended.store(true, Ordering::SeqCst);
        Self(app)
    }
}

impl Drop for SharedPollGuard<'_> {
    fn drop(&mut self) {
        self.0.signs.attended.store(false, Ordering::SeqCst);
        self.0.signs.listening.store(false, Ordering::SeqCst);
        // Waiters with a long delay poll by themselves from now on.
        self.0.wake_all();
    }
}

/// Runs the process-wide poll and listens to other processes until shutdown.
#[operation]
pub async fn run_wakeups(app: App, pace: ReconcileInterval, stop: CancellationToken) {
    let environment = app.environment();
    app.signs.id.get_or_init(|| environment.new_uuid(environment.now()));
    let _attending = SharedPollGuard::start_polling(&app);
    tokio::select! {
        () = stop.cancelled() => {}
        () = run_poll_loop(&app, pace) => {}
        () = run_listen_loop(&app) => {}
        () = run_announce_loop(&app) => {}
    }
}

/// Polls all queues: at the configured interval while other processes are heard, else more often after it found work.
async fn run_poll_loop(app: &App, pace: ReconcileInterval) {
    let mut rest = MIN_POLL_INTERVAL.min(pace.every);
    let mut failing = false;
    loop {
        let looked = poll_queues(app, pace).await;
        let busy = looked.as_ref().is_ok_and(|pending| *pending != PendingWork::default());
        if let (Err(error), false) = (&looked, failing) {
            log_background_error(
                "queue.poll_failed",
                error,
                "the queues could not be polled; it is retried",
            );
        }
        failing = looked.is_err();
        let listens = app.signs.listening.load(Ordering::SeqCst);
        rest = match (listens, busy) {
            (true, _) => pace.every,
            (false, true) => MIN_POLL_INTERVAL.min(pace.every),
            (false, false) => (rest * 2).min(pace.every),
        };
        sleep_for(rest).await;
    }
}

async fn poll_queues(app: &App, pace: ReconcileInterval) -> Result<PendingWork, Error> {
    let beats: Vec<Uuid> = lock_unpoisoned(&app.signs.beats).drain().map(NodeId::as_uuid).collect();
    let redispatch_after_ms = i64::try_from(pace.redispatch_after.as_millis()).unwrap_or(i64::MAX);
    let now = app.environment().now();
    let mut conn = app.conn().await?;
    if !beats.is_empty() {
        nodes::touch_nodes(&mut conn, &beats).await?;
    }
    let silence_ms = cynode_core::placement::NODE_SILENCE_TIMEOUT_MS;
    let pending =
        pending::find_pending_work(&mut conn, now, redispatch_after_ms, silence_ms).await?;
    app.wake_for_pending(&pending);
    Ok(pending)
}

/// Receives announcements of other processes. Where that is not possible, only the poll finds work.
async fn run_listen_loop(app: &App) {
    if app.pool().options().get_max_connections() < MIN_LISTEN_CONNECTIONS {
        return std::future::pending().await;
    }
    loop {
        let ended = listen_to_peers(app).await;
        let listened = app.signs.listening.swap(false, Ordering::SeqCst);
        if let Err(error) = ended {
            tracing::debug!(event = "wakeups.listen_failed", error = %error, "cannot listen to other processes; polling instead");
            if listened {
                app.record_disconnect();
            }
        }
        app.wake_all();
        sleep_for(RELISTEN_DELAY).await;
    }
}

/// Listens until no announcement arrives any more.
async fn listen_to_peers(app: &App) -> Result<(), DbError> {
    let signs = &app.signs;
    let mut listener = WakeupListener::open_listener(app.pool()).await?;
    send_announcement(
        app,
        &PeerAnnouncement { from: signs.process_id(), hello: true, ..PeerAnnouncement::default() },
    )
    .await?;
    let mut patience = ECHO_TIMEOUT;
    loop {
        let Ok(heard) = timeout(patience, listener.next()).await else { return Ok(()) };
        let Some(heard) = heard? else {
            // The listener has reconnected.
            app.record_disconnect();
            continue;
        };
        // The poll finds what an unreadable announcement of a newer version meant.
        let Ok(said) = serde_json::from_str::<PeerAnnouncement>(&heard) else { continue };
        if said.from != signs.process_id() {
            app.wake_for_announcement(&said);
        } else if !signs.listening.swap(true, Ordering::SeqCst) {
            // From here on no announcement is missed. Earlier ones may have been.
            app.wake_all();
            patience = HELLO_INTERVAL * 2 + ECHO_TIMEOUT;
        }
    }
}

/// Announces changes of this process, and its presence at an interval.
async fn run_announce_loop(app: &App) {
    let signs = &app.signs;
    let mut hello = tokio::time::interval(HELLO_INTERVAL);
    loop {
        tokio::select! {
            () = signs.announces.notified() => {}
            _ = hello.tick() => {
                lock_unpoisoned(&signs.peers).retain(|_, heard| heard.elapsed() < PEER_TTL);
                if signs.listening.load(Ordering::SeqCst) {
                    lock_unpoisoned(&signs.outgoing).hello = true;
                }
            }
        }
        let mut said = std::mem::take(&mut *lock_unpoisoned(&signs.outgoing));
        said.from = signs.process_id();
        if said.is_empty() {
            continue;
        }
        if let Err(error) = send_announcement(app, &said).await {
            tracing::debug!(event = "wakeups.notify_failed", error = %error, "cannot notify other processes; they find it by polling");
        }
        sleep_for(ANNOUNCE_INTERVAL).await;
    }
}

async fn send_announcement(app: &App, said: &PeerAnnouncement) -> Result<(), DbError> {
    let Ok(payload) = serde_json::to_string(said) else { return Ok(()) };
    let mut conn = app.conn().await?;
    wakeups::notify_listeners(&mut conn, &payload).await
}

/// Waits for that time.
pub(crate) async fn sleep_for(time: Duration) {
    let _ = timeout(time, std::future::pending::<()>()).await;
}
