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
    ids::{NodeId, TaskId},
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

use crate::{App, Error, platform::error::log_background_error};

/// How often the reconciler looks, and when it dispatches again.
#[derive(Clone, Copy, Debug)]
pub struct ReconcileInterval {
    /// How often it looks by itself.
    pub every: Duration,
    /// How long it waits for a run that it dispatched before it dispatches the run again.
    pub redispatch_after: Duration,
}

/// How long somebody who waits rests while a look is made for the whole process.
const FALLBACK_POLL_INTERVAL: Duration = Duration::from_mins(1);

/// How long a stream of events rests while other processes are heard.
const FALLBACK_STREAM_INTERVAL: Duration = Duration::from_secs(5);

/// Shortest time between looks while other processes are not heard.
const MIN_POLL_INTERVAL: Duration = Duration::from_millis(100);

/// How often a process says that it is there, and for how long it counts as there.
const HELLO_INTERVAL: Duration = Duration::from_secs(30);
const PEER_TTL: Duration = Duration::from_secs(100);

/// How long our own word may take to come back to us: where it does not, nothing would be heard of others either.
const ECHO_TIMEOUT: Duration = Duration::from_secs(5);

/// Between attempts to listen.
const RELISTEN_DELAY: Duration = Duration::from_secs(30);

/// Shortest time between two announcements: what happens meanwhile goes into the next one.
const ANNOUNCE_INTERVAL: Duration = Duration::from_millis(10);

/// Most nodes of one announcement, which has at most 8000 bytes; the look finds the others.
const MAX_ANNOUNCED_NODES: usize = 100;

/// A pool with fewer connections has none to spare for listening.
const MIN_LISTEN_CONNECTIONS: u32 = 6;

/// Signs between requests of one process, and what is known of other processes.
#[derive(Default)]
pub(crate) struct Wakeups {
    /// A run may have become due.
    due: Notify,
    /// Something was not heard of for too long, or its time is over.
    overdue: Notify,
    /// A job or a handoff was queued.
    queued: Arc<Notify>,
    /// Somebody is to be told something.
    told: Notify,
    /// A schedule is to be fired.
    schedules: Notify,
    /// A forge is to be looked at.
    remotes: Notify,
    /// Nothing was heard of a model call.
    calls: AtomicBool,
    /// Jobs may wait for a node to be chosen.
    unplaced: AtomicBool,
    /// Tasks that somebody looks at.
    watched: Mutex<HashMap<TaskId, Arc<Notify>>>,
    /// Nodes that wait for jobs.
    nodes: Mutex<HashMap<NodeId, Arc<Notify>>>,
    /// Idle nodes that were heard of since the last look.
    beats: Mutex<HashSet<NodeId>>,
    /// A look is made for the whole process.
    attended: AtomicBool,
    /// Other processes are heard.
    listening: AtomicBool,
    /// How often the connection to the database was lost.
    disconnects: AtomicU64,
    /// This process among the others, once it listens.
    id: OnceLock<Uuid>,
    /// The other processes, and when each was heard of.
    peers: Mutex<HashMap<Uuid, Instant>>,
    /// What is still to be announced to them.
    outgoing: Mutex<PeerAnnouncement>,
    announces: Notify,
}

/// What a process says to the others.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[expect(clippy::struct_excessive_bools, reason = "each is another thing that happened")]
struct PeerAnnouncement {
    from: Uuid,
    /// Whether it only says that it is there, and wants to know who else is.
    hello: bool,
    runs: bool,
    queued: bool,
    told: bool,
    events: bool,
    nodes: Vec<NodeId>,
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

    /// Adds to what the other processes are told, if there are any.
    fn queue_announcement(&self, change: impl FnOnce(&mut PeerAnnouncement)) {
        if lock_unpoisoned(&self.peers).is_empty() {
            return;
        }
        change(&mut lock_unpoisoned(&self.outgoing));
        self.announces.notify_one();
    }
}

impl App {
    /// Tells streams that there may be something new.
    pub(crate) fn announce_commit(&self) {
        self.commits.send_modify(|count| *count = count.wrapping_add(1));
        self.signs.queue_announcement(|outgoing| outgoing.events = true);
    }

    /// Tells the sweep, and whoever looks at these tasks, that their runs may be due.
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

    /// Ends when a run may have become due.
    pub(crate) async fn until_run_due(&self) {
        self.signs.due.notified().await;
    }

    /// Ends when something is overdue.
    pub(crate) async fn until_overdue(&self) {
        self.signs.overdue.notified().await;
    }

    /// Tells whoever waits for work that there is some.
    pub(crate) fn announce_queued_work(&self) {
        self.signs.wake_queue();
        self.signs.queue_announcement(|outgoing| outgoing.queued = true);
    }

    /// Tells nodes that they were given jobs.
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

    /// Tells whoever tells people that there is something to be told.
    pub(crate) fn announce_notifications(&self) {
        self.signs.told.notify_one();
        self.signs.queue_announcement(|outgoing| outgoing.told = true);
    }

    /// Ends when somebody is to be told something.
    pub(crate) async fn until_notification_due(&self) {
        self.signs.told.notified().await;
    }

    /// Ends when a schedule is due.
    pub(crate) async fn until_schedule_due(&self) {
        self.signs.schedules.notified().await;
    }

    /// Ends when a forge is to be looked at.
    pub(crate) async fn until_remote_due(&self) {
        self.signs.remotes.notified().await;
    }

    /// Whether nothing was heard of a model call, or nobody has looked. It is said once.
    pub(crate) fn take_lost_calls(&self) -> bool {
        self.signs.calls.swap(false, Ordering::SeqCst) || !self.has_shared_poll()
    }

    /// Jobs may wait for a node to be chosen, or a node may be there that was not.
    pub(crate) fn set_unplaced(&self) {
        self.signs.unplaced.store(true, Ordering::SeqCst);
    }

    /// Whether jobs may wait for a node to be chosen.
    pub(crate) fn is_unplaced(&self) -> bool {
        self.signs.unplaced.load(Ordering::SeqCst)
    }

    /// The same; from then on it is believed that none waits.
    pub(crate) fn take_unplaced(&self) -> bool {
        self.signs.unplaced.swap(false, Ordering::SeqCst)
    }

    /// Ends when a job or a handoff was queued.
    pub(crate) fn work_signal(&self) -> OwnedNotified {
        self.signs.queued.clone().notified_owned()
    }

    /// Ends when a job was placed on this node.
    pub(crate) fn node_signal(&self, node: NodeId) -> OwnedNotified {
        lock_unpoisoned(&self.signs.nodes).entry(node).or_default().clone().notified_owned()
    }

    /// Nobody looks at this task any more; whoever still does looks by itself.
    pub(crate) fn unwatch_task(&self, task: TaskId) {
        lock_unpoisoned(&self.signs.watched).remove(&task);
    }

    /// Ends when something happened to this task in this process.
    pub(crate) fn task_signal(&self, task: TaskId) -> OwnedNotified {
        lock_unpoisoned(&self.signs.watched).entry(task).or_default().clone().notified_owned()
    }

    /// Notes that an idle node was heard of; `false` when nobody would write it down.
    pub(crate) fn record_idle_heartbeat(&self, node: NodeId) -> bool {
        let attended = self.has_shared_poll();
        if attended {
            lock_unpoisoned(&self.signs.beats).insert(node);
        }
        attended
    }

    /// Whether this process hears other processes, and there are some.
    pub fn hears_peers(&self) -> bool {
        self.signs.listening.load(Ordering::SeqCst)
            && !lock_unpoisoned(&self.signs.peers).is_empty()
    }

    /// How often this process has lost its connection to the database.
    pub(crate) fn database_disconnects(&self) -> u64 {
        self.signs.disconnects.load(Ordering::SeqCst)
    }

    /// Records that the connection to the database was lost. Streams end and say so.
    fn record_disconnect(&self) {
        self.signs.disconnects.fetch_add(1, Ordering::SeqCst);
        tracing::warn!(
            event = "database.disconnected",
            "the connection to the database was lost; it is opened again"
        );
        self.wake_all();
    }

    /// Whether one look is made for the whole process.
    pub(crate) fn has_shared_poll(&self) -> bool {
        self.signs.attended.load(Ordering::SeqCst)
    }

    /// How long somebody rests who would look by itself every so often.
    pub(crate) fn poll_delay(&self, every: Duration) -> Duration {
        if self.has_shared_poll() { FALLBACK_POLL_INTERVAL } else { every }
    }

    /// The same for whoever waits for what is committed anywhere.
    pub(crate) fn stream_poll_delay(&self, every: Duration) -> Duration {
        let heard = self.has_shared_poll() && self.signs.listening.load(Ordering::SeqCst);
        if heard { FALLBACK_STREAM_INTERVAL } else { every }
    }

    /// Ends when somebody who would look every so often is to look.
    pub(crate) async fn until_poll_due(&self, every: Duration) {
        sleep_for(self.poll_delay(every)).await;
    }

    /// Wakes everybody: something may not have been heard.
    fn wake_all(&self) {
        self.commits.send_modify(|count| *count = count.wrapping_add(1));
        let signs = &self.signs;
        signs.due.notify_one();
        signs.told.notify_one();
        signs.wake_queue();
        for sign in lock_unpoisoned(&signs.nodes).values() {
            sign.notify_waiters();
        }
    }

    /// Wakes whoever waits for what was found.
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
        if pending.calls {
            signs.calls.store(true, Ordering::SeqCst);
        }
    }

    /// Wakes whoever waits for what another process says.
    fn wake_for_announcement(&self, said: &PeerAnnouncement) {
        let signs = &self.signs;
        let known = lock_unpoisoned(&signs.peers).insert(said.from, Instant::now()).is_some();
        if said.hello && !known {
            // It does not know of us yet.
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
    }
}

/// Says that looks are made for the whole process, until it is dropped.
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
        // Whoever rests for long looks by itself from now on.
        self.0.wake_all();
    }
}

/// Looks for this process and hears the others until it is told to stop.
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

/// Looks at all queues: now and then while other processes are heard, more often where they are not and something happens.
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

/// Hears what other processes say. Where that is not possible, it is only looked.
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

/// Listens until nothing can be heard any more.
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
            // The connection is a new one.
            app.record_disconnect();
            continue;
        };
        // What a newer version says is not lost on the look.
        let Ok(said) = serde_json::from_str::<PeerAnnouncement>(&heard) else { continue };
        if said.from != signs.process_id() {
            app.wake_for_announcement(&said);
        } else if !signs.listening.swap(true, Ordering::SeqCst) {
            // From here on nothing is missed; what came before may have been.
            app.wake_all();
            patience = HELLO_INTERVAL * 2 + ECHO_TIMEOUT;
        }
    }
}

/// Says to the other processes what happens here, and now and then that we are there.
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

/// Ends after that time.
pub(crate) async fn sleep_for(time: Duration) {
    let _ = timeout(time, std::future::pending::<()>()).await;
}
