//! Injects faults into a whole installation and compares the outcome with an undisturbed run, for the proofs in `prove/`.
//! Loopback only; it kills only its own processes.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use clap::{Args, Subcommand};
use cynode_e2e::{
    Executor, Scripts,
    faults::{Cut, Phase, Trigger},
    world::{Processes, Victim, World},
};
use cynode_testkit::pause;
use sqlx::PgPool;
use time::OffsetDateTime;
use tokio_util::task::TaskTracker;

use crate::Places;

/// Breaks an installation of its own.
#[derive(Args)]
pub(crate) struct Chaos {
    #[command(flatten)]
    places: Places,
    /// Keeps the world's directory when something is wrong.
    #[arg(long)]
    keep: bool,
    #[command(subcommand)]
    command: ChaosCommand,
}

#[derive(Subcommand)]
enum ChaosCommand {
    /// Kills, pauses and cuts at every fault point, one after the other.
    Matrix {
        /// Takes only so many points, spread over all of them.
        #[arg(long)]
        take: Option<usize>,
        /// Only points whose name holds this.
        #[arg(long)]
        only: Option<String>,
        /// How many seconds longer than a lease it may take until a run goes on.
        #[arg(long, default_value_t = 2)]
        slack: u32,
    },
    /// Kills a random process again and again while many tasks run.
    Storm {
        #[arg(long, default_value_t = 500)]
        tasks: usize,
        #[arg(long, default_value_t = 300)]
        seconds: u64,
        #[arg(long, default_value_t = 1000)]
        every_ms: u64,
    },
    /// Deletes everything the engine knows while tasks run.
    Wipe {
        #[arg(long, default_value_t = 50)]
        tasks: usize,
    },
    /// Pauses the holder of leases past their end while another runner takes over.
    SplitBrain {
        #[arg(long, default_value_t = 20)]
        tasks: usize,
    },
}

/// Lease time of runners in these worlds, in seconds.
const LEASE: u32 = 3;

/// Timeout after which a task counts as stuck.
const STUCK: Duration = Duration::from_mins(1);

/// Observable facts about an ended task, to compare two runs.
pub(crate) type Facts = BTreeMap<String, i64>;

pub(crate) async fn run(chaos: Chaos) -> bool {
    let Chaos { places, keep, command } = chaos;
    let places = (places, keep);
    match command {
        ChaosCommand::Matrix { take, only, slack } => {
            matrix(&places, take, only.as_deref(), slack).await
        }
        ChaosCommand::Storm { tasks, seconds, every_ms } => {
            storm(&places, tasks, Duration::from_secs(seconds), Duration::from_millis(every_ms))
                .await
        }
        ChaosCommand::Wipe { tasks } => wipe(&places, tasks).await,
        ChaosCommand::SplitBrain { tasks } => split_brain(&places, tasks).await,
    }
}

/// The paths of everything, and whether the directory of a failed world is kept.
type Where = (Places, bool);

/// A world with a worker.
struct ChaosStage {
    world: World,
    worker: Arc<Executor>,
    crew: TaskTracker,
    keep: bool,
}

impl ChaosStage {
    async fn new(places: &Where, proxied: bool) -> Self {
        let (places, keep) = places;
        let world = World::start(places.setup(LEASE, proxied)).await;
        let base = format!("http://{}", world.internal);
        let scripts = Scripts::read(&places.scripts);
        let worker = Arc::new(Executor::new(&base, &world.worker_token, scripts, 600));
        let crew = TaskTracker::new();
        crew.spawn(worker.clone().run());
        Self { world, worker, crew, keep: *keep }
    }

    async fn end(mut self, good: bool) {
        self.worker.stop();
        self.crew.close();
        let _ = tokio::time::timeout(Duration::from_secs(10), self.crew.wait()).await;
        if !good && self.keep {
            self.world.keep();
            println!("kept {}", self.world.logs().display());
        }
    }

    /// Returns the facts about a task, including those of its worker.
    async fn facts(&self, task: &str) -> Facts {
        let mut facts = observe(&self.world.pool, task).await;
        for ((of, unit, attempt), times) in self.worker.ledger.entries() {
            if of == task {
                facts.insert(format!("ledger {unit} {attempt}"), times.into());
            }
        }
        facts
    }
}

/// Returns whether a task has ended. The database may be down.
async fn has_ended(pool: &PgPool, task: &str) -> bool {
    let query = "SELECT ended_at IS NOT NULL FROM workflow_runs WHERE task_id = $1";
    sqlx::query_scalar::<_, bool>(query).bind(raw(task)).fetch_one(pool).await.unwrap_or(false)
}

fn raw(task: &str) -> uuid::Uuid {
    task.parse::<cynode_core::ids::TaskId>().unwrap().as_uuid()
}

/// Waits until a task has ended. Returns `false` if it is stuck.
async fn until_ended(stage: &ChaosStage, task: &str, timeout: Duration) -> bool {
    let begun = Instant::now();
    while !has_ended(&stage.world.pool, task).await {
        if begun.elapsed() > timeout {
            return false;
        }
        for victim in Victim::ALL {
            stage.world.processes.revive(victim);
        }
        pause(Duration::from_millis(10)).await;
    }
    true
}

/// Reads the facts about a task from the database. Steps that only wait, and dispatches between results, depend on the order of
/// results and are not compared; everything else is, with its number of occurrences.
async fn observe(pool: &PgPool, task: &str) -> Facts {
    let query = "
        SELECT 'task ' || state AS fact, 1::bigint AS times FROM tasks WHERE task_id = $1
        UNION ALL
        SELECT 'run ' || coalesce(outcome, 'open') || ' retries ' || retries_used, 1 FROM workflow_runs WHERE task_id = $1
        UNION ALL
        SELECT 'unit ' || key || ' ' || state || ' ' || attempts, 1 FROM work_units WHERE task_id = $1
        UNION ALL
        SELECT 'job ' || u.key || ' ' || j.attempt || ' ' || j.state
            || CASE WHEN j.collected_at IS NULL THEN ' left' ELSE ' collected' END, count(*)
        FROM jobs j JOIN work_units u USING (unit_id) WHERE j.task_id = $1 GROUP BY 1
        UNION ALL
        SELECT 'step ' || step || ' ' || verdict || ' ' || coalesce(unit_key, ''), count(*)
        FROM workflow_transitions
        WHERE task_id = $1 AND verdict <> 'wait' AND NOT (step = 'dispatch_step' AND verdict = 'pass')
        GROUP BY 1
        UNION ALL
        SELECT 'event ' || kind, count(*) FROM events WHERE task_id = $1 AND kind <> 'job.changed' GROUP BY 1
        UNION ALL
        SELECT 'steps out of order', max(sequence) - count(*) FROM workflow_transitions WHERE task_id = $1
        UNION ALL
        SELECT 'steps stored twice', count(*) - count(DISTINCT sequence) FROM workflow_transitions WHERE task_id = $1
        UNION ALL
        SELECT 'waits left open', count(*) FROM waits WHERE task_id = $1 AND resolved_at IS NULL
        UNION ALL
        SELECT 'leases left', count(*) FROM workflow_leases WHERE task_id = $1 AND expires_at > clock_timestamp()
        UNION ALL
        SELECT 'summary ' || coalesce(state ->> 'summary', 'none'), 1 FROM workflow_checkpoints WHERE task_id = $1";
    loop {
        let rows = sqlx::query_as::<_, (String, i64)>(query).bind(raw(task)).fetch_all(pool).await;
        if let Ok(rows) = rows {
            return rows.into_iter().collect();
        }
        pause(Duration::from_millis(20)).await;
    }
}

/// Lists the differences between two runs.
pub(crate) fn differences(expected: &Facts, found: &Facts) -> Vec<String> {
    let mut differences = Vec::new();
    for (fact, times) in expected {
        match found.get(fact) {
            Some(other) if other == times => {}
            other => differences.push(format!("{fact}: {times} times, here {other:?}")),
        }
    }
    for (fact, times) in found.iter().filter(|(fact, _)| !expected.contains_key(*fact)) {
        differences.push(format!("{fact}: never, here {times} times"));
    }
    differences
}

/// The action on a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    Kill,
    Pause,
    Cut,
}

/// One fault point.
#[derive(Clone, Debug)]
struct Point {
    trigger: Trigger,
    victim: Victim,
    action: Action,
}

impl Point {
    fn name(&self) -> String {
        let verb = match self.action {
            Action::Kill => "kill",
            Action::Pause => "pause",
            Action::Cut => "cut off",
        };
        format!("{verb} {} {}", self.victim.as_str(), self.trigger)
    }

    /// Returns the length of a pause. A runner is paused longer than its lease, so that it is superseded when it resumes.
    fn length(&self) -> Duration {
        match self.victim {
            Victim::Runner => Duration::from_millis(u64::from(LEASE) * 1000 + 500),
            Victim::Orchestrator
            | Victim::Engine
            | Victim::Database
            | Victim::Manager
            | Victim::Analyst => Duration::from_secs(1),
        }
    }
}

/// Messages between the runner, the workers and the orchestrator, and from the orchestrator to the engine.
const MESSAGES: [&str; 14] = [
    "workflow:start",
    "checkpoint:load_task_context:pass",
    "checkpoint:plan_steps:pass",
    "checkpoint:dispatch_step:pass",
    "checkpoint:collect_result:wait",
    "checkpoint:collect_result:pass",
    "checkpoint:collect_result:redo",
    "checkpoint:verify_step_result:pass",
    "checkpoint:verify_step_result:redo",
    "checkpoint:dispatch_step:done",
    "checkpoint:finalize_summary:pass",
    "job:claim",
    "job:result",
    "engine:send",
];

/// SQL statements of the orchestrator.
const STATEMENTS: [&str; 15] = [
    "sql:grant",
    "sql:begin",
    "sql:advance",
    "sql:plan",
    "sql:dispatch",
    "sql:collect",
    "sql:unit",
    "sql:wait",
    "sql:rest",
    "sql:claim",
    "sql:report",
    "sql:take_due",
    "sql:end",
    "sql:task",
    "sql:commit",
];

fn points() -> Vec<Point> {
    let mut points = Vec::new();
    for message in MESSAGES {
        for phase in [Phase::Before, Phase::After] {
            let trigger = Trigger { message: message.to_owned(), phase };
            for victim in Victim::ALL {
                points.push(Point { trigger: trigger.clone(), victim, action: Action::Kill });
            }
            let cut = if message.starts_with("engine") { Victim::Engine } else { Victim::Runner };
            points.push(Point { trigger: trigger.clone(), victim: cut, action: Action::Cut });
            for victim in [Victim::Runner, Victim::Orchestrator] {
                if message.starts_with("checkpoint") {
                    let trigger = trigger.clone();
                    points.push(Point { trigger, victim, action: Action::Pause });
                }
            }
        }
    }
    for message in STATEMENTS {
        for phase in [Phase::Before, Phase::After] {
            let trigger = Trigger { message: message.to_owned(), phase };
            for victim in [Victim::Orchestrator, Victim::Database] {
                points.push(Point { trigger: trigger.clone(), victim, action: Action::Kill });
            }
            points.push(Point { trigger, victim: Victim::Database, action: Action::Cut });
        }
    }
    points
}

/// Injects the fault and records the time.
fn act(point: &Point, processes: Processes, fired: &Mutex<Option<OffsetDateTime>>) -> Cut {
    #[expect(clippy::disallowed_methods, reason = "it is compared with the database's clock")]
    let now = OffsetDateTime::now_utc();
    *fired.lock().unwrap() = Some(now);
    match point.action {
        Action::Cut => return Cut::Yes,
        Action::Kill => {
            processes.kill(point.victim);
            processes.start(point.victim);
        }
        Action::Pause => {
            processes.pause(point.victim);
            let (victim, length) = (point.victim, point.length());
            std::thread::spawn(move || {
                std::thread::sleep(length);
                processes.go_on(victim);
            });
        }
    }
    Cut::No
}

/// Outcome of a fault.
struct Outcome {
    ended: bool,
    fired: bool,
    differences: Vec<String>,
    recovery: Option<Duration>,
}

async fn break_at(stage: &ChaosStage, point: &Point, expected: &Facts) -> Outcome {
    let fired: Arc<Mutex<Option<OffsetDateTime>>> = Arc::default();
    let (inner, noted) = (point.clone(), fired.clone());
    let processes = stage.world.processes.clone();
    stage.world.faults.arm(
        point.trigger.clone(),
        0,
        Box::new(move || act(&inner, processes, &noted)),
    );
    let task = stage.world.task("six-units").await;
    let ended = until_ended(stage, &task, STUCK).await;
    // Events after the last message may follow shortly after the task has ended.
    let passed = async || fired.lock().unwrap().is_some();
    crate::agents::within(Duration::from_secs(2), passed).await;
    stage.world.faults.disarm();
    // Resume every paused process.
    for victim in Victim::ALL {
        stage.world.processes.go_on(victim);
    }
    let at = *fired.lock().unwrap();
    stage.world.wait_until_it_works().await;
    let differences = differences(expected, &stage.facts(&task).await);
    let recovery = match at {
        Some(at) => {
            // A pause of a process that has no replacement counts from its end.
            let paused = point.action == Action::Pause && point.victim != Victim::Runner;
            let from = if paused { at + point.length() } else { at };
            let query = "SELECT min(recorded_at) FROM workflow_transitions WHERE task_id = $1 AND recorded_at > $2";
            let next = sqlx::query_scalar::<_, Option<OffsetDateTime>>(query)
                .bind(raw(&task))
                .bind(from)
                .fetch_one(&stage.world.pool)
                .await
                .ok()
                .flatten();
            // `None`: no work was left.
            next.map(|next| (next - from).unsigned_abs())
        }
        None => None,
    };
    Outcome { ended, fired: at.is_some(), differences, recovery }
}

/// Checks that the orchestrator called the engine, that the runner stored checkpoints, and that the run took every step of a
/// task that succeeds.
fn check_execution_model(facts: &Facts, heard: &[Trigger]) {
    for message in ["engine:send", "workflow:start", "checkpoint:plan_steps:pass"] {
        let sent = heard.iter().any(|trigger| trigger.message == message);
        assert!(sent, "S002-07, S002-38: nobody sent {message}");
    }
    for step in [
        "load_task_context",
        "plan_steps",
        "dispatch_step",
        "collect_result",
        "verify_step_result",
        "finalize_summary",
    ] {
        let fact = format!("step {step} ");
        let taken = facts.keys().any(|it| it.starts_with(&fact));
        assert!(taken, "S002-01, S002-05: the engine's run has no step {step}");
    }
}

/// Coprime to every number of points.
const STRIDE: usize = 97;

async fn matrix(places: &Where, take: Option<usize>, only: Option<&str>, slack: u32) -> bool {
    let stage = ChaosStage::new(places, true).await;
    let task = stage.world.task("six-units").await;
    assert!(until_ended(&stage, &task, STUCK).await, "the unbroken run did not end");
    let expected = stage.facts(&task).await;
    println!("the unbroken run: {} facts, such as {:?}", expected.len(), expected.iter().next());
    stage.world.faults.start_recording();
    let again = stage.world.task("six-units").await;
    assert!(until_ended(&stage, &again, STUCK).await, "the second unbroken run did not end");
    check_execution_model(&expected, &stage.world.faults.stop_recording());
    assert_eq!(differences(&expected, &stage.facts(&again).await), Vec::<String>::new());

    let all: Vec<_> = points()
        .into_iter()
        .filter(|point| only.is_none_or(|only| point.name().contains(only)))
        .collect();
    let points: Vec<_> = match take.filter(|take| *take < all.len()) {
        Some(take) => (0..take).map(|index| all[index * STRIDE % all.len()].clone()).collect(),
        None => all,
    };
    let limit = Duration::from_secs((LEASE + slack).into());
    let (mut lost, mut doubled, mut stuck, mut missed, mut slow) = (0, 0, 0, 0, 0);
    let mut slowest = Duration::ZERO;
    for point in &points {
        let outcome = break_at(&stage, point, &expected).await;
        let word = if !outcome.fired {
            missed += 1;
            "not reached"
        } else if !outcome.ended {
            stuck += 1;
            "STUCK (X-03)"
        } else if outcome.differences.is_empty() {
            "exact"
        } else {
            let more = outcome.differences.iter().any(|text| !text.contains("here None"));
            if more {
                doubled += 1;
            } else {
                lost += 1;
            }
            "DIFFERS (X-02, X-03, B023-06)"
        };
        let took = outcome.recovery.unwrap_or_default();
        slowest = slowest.max(took);
        let late = took > limit;
        slow += usize::from(late);
        println!(
            "{:<62} {word:<12} went on after {:>6.0} ms{}",
            point.name(),
            took.as_secs_f64() * 1000.0,
            if late { "  TOO LATE" } else { "" }
        );
        for text in &outcome.differences {
            println!("    {text}");
        }
    }
    println!(
        "\n{} fault points: {lost} lost, {doubled} doubled, {stuck} stuck, {missed} not reached, {slow} too late; \
         slowest recovery {:.1} s (limit {:.1} s)",
        points.len(),
        slowest.as_secs_f64(),
        limit.as_secs_f64()
    );
    let good = lost + doubled + stuck + missed + slow == 0;
    if !good {
        println!("WRONG S002-03, S002-11, S002-17: a run did not go on from its last checkpoint");
    }
    stage.end(good).await;
    good
}

/// Compares every task with an undisturbed run. Returns the number of tasks that differ.
async fn compare(stage: &ChaosStage, tasks: &[String], expected: &Facts) -> usize {
    let mut wrong = 0;
    let ledger = stage.worker.ledger.entries();
    for task in tasks {
        let mut facts = observe(&stage.world.pool, task).await;
        let from = (task.clone(), String::new(), 0);
        for ((_, unit, attempt), times) in
            ledger.range(from..).take_while(|((of, ..), _)| of == task)
        {
            facts.insert(format!("ledger {unit} {attempt}"), i64::from(*times));
        }
        let differences = differences(expected, &facts);
        if !differences.is_empty() {
            wrong += 1;
            if wrong <= 5 {
                println!("task {task} differs (X-03): {differences:#?}");
            }
        }
    }
    wrong
}

async fn unbroken(stage: &ChaosStage) -> Facts {
    let task = stage.world.task("six-units").await;
    assert!(until_ended(stage, &task, STUCK).await, "the unbroken run did not end");
    stage.facts(&task).await
}

async fn count_open(pool: &PgPool) -> Option<i64> {
    let query = "SELECT count(*) FROM workflow_runs WHERE ended_at IS NULL";
    sqlx::query_scalar(query).fetch_one(pool).await.ok()
}

/// Waits until every task has ended. Returns the number of tasks that have not ended in time, or -1 if the database is down.
async fn until_all_ended(stage: &ChaosStage, timeout: Duration) -> i64 {
    let begun = Instant::now();
    loop {
        for victim in Victim::ALL {
            stage.world.processes.revive(victim);
        }
        match count_open(&stage.world.pool).await {
            Some(0) => return 0,
            open if begun.elapsed() > timeout => return open.unwrap_or(-1),
            Some(_) | None => pause(Duration::from_millis(50)).await,
        }
    }
}

/// Prints the positions of the tasks that have not ended.
async fn tell_stuck(pool: &PgPool) {
    let query = "
        SELECT format('stuck: %s at %s since %s; waits %s, jobs %s', r.task_id, c.next_step, c.updated_at,
            (SELECT json_agg(w.reason) FROM waits w WHERE w.task_id = r.task_id AND w.resolved_at IS NULL),
            (SELECT json_agg(j.state) FROM jobs j WHERE j.task_id = r.task_id AND j.collected_at IS NULL))
        FROM workflow_runs r LEFT JOIN workflow_checkpoints c USING (task_id) WHERE r.ended_at IS NULL LIMIT 5";
    match sqlx::query_scalar::<_, String>(query).fetch_all(pool).await {
        Ok(lines) => lines.iter().for_each(|line| println!("{line}")),
        Err(error) => println!("where they stand cannot be read: {error}"),
    }
}

async fn storm(places: &Where, want: usize, length: Duration, every: Duration) -> bool {
    let stage = Arc::new(ChaosStage::new(places, false).await);
    let expected = unbroken(&stage).await;
    let over = Arc::new(AtomicBool::new(false));
    // Keep the wanted number of tasks in flight until the storm is over.
    let (feeding, done) = (stage.clone(), over.clone());
    let feeder = stage.crew.spawn(async move {
        let mut tasks = Vec::new();
        while !done.load(Ordering::Relaxed) {
            let open = count_open(&feeding.world.pool).await;
            let missing = open
                .and_then(|open| usize::try_from(open).ok())
                .map_or(0, |open| want.saturating_sub(open));
            // Create them concurrently: tasks that are created one after the other would end as fast as they are created, and
            // the number in flight would never be reached.
            let new = (0..missing.min(50)).map(|_| feeding.world.task("six-units"));
            tasks.extend(futures::future::join_all(new).await);
            if missing == 0 {
                pause(Duration::from_millis(50)).await;
            }
        }
        tasks
    });
    // The storm begins when the wanted number of tasks is in flight.
    let full = i64::try_from(want).unwrap() * 9 / 10;
    let filling = Instant::now();
    loop {
        let open = count_open(&stage.world.pool).await.unwrap_or(0);
        if open >= full {
            break;
        }
        let limit = STUCK + Duration::from_millis(200) * u32::try_from(want).unwrap();
        assert!(
            filling.elapsed() < limit,
            "only {open} of {want} tasks are in flight after {limit:?}"
        );
        pause(Duration::from_millis(20)).await;
    }
    println!("{want} tasks in flight after {:.1} s", filling.elapsed().as_secs_f64());
    let begun = Instant::now();
    let mut kills: BTreeMap<&str, u32> = BTreeMap::new();
    let mut turn = tokio::time::interval(every);
    while begun.elapsed() < length {
        turn.tick().await;
        let victim = Victim::ALL[rand::random_range(0..4)];
        stage.world.processes.kill(victim);
        stage.world.processes.start(victim);
        *kills.entry(victim.as_str()).or_default() += 1;
        for victim in Victim::ALL {
            stage.world.processes.revive(victim);
        }
    }
    over.store(true, Ordering::Relaxed);
    let ended_meanwhile = sqlx::query_scalar::<_, i64>(
        "SELECT count(*) FROM workflow_runs WHERE ended_at IS NOT NULL",
    )
    .fetch_one(&stage.world.pool)
    .await
    .unwrap_or(-1);
    println!("the storm is over: {kills:?}");
    let tasks = feeder.await.unwrap();
    let calm = Instant::now();
    // Longer than any lease, and shorter than the patience of the script that runs this.
    let open = until_all_ended(&stage, STUCK + length.max(STUCK) * 2).await;
    if open != 0 {
        tell_stuck(&stage.world.pool).await;
    }
    let wrong = compare(&stage, &tasks, &expected).await;
    let total: u32 = kills.values().sum();
    println!(
        "{} tasks, {want} in flight, {total} kills in {:.0} s {kills:?}: {ended_meanwhile} ended during the storm, the rest \
         {:.1} s after it; {open} stuck, {wrong} differ from an unbroken run",
        tasks.len(),
        length.as_secs_f64(),
        calm.elapsed().as_secs_f64()
    );
    let good = open == 0 && wrong == 0 && total > 0;
    if let Some(stage) = Arc::into_inner(stage) {
        stage.end(good).await;
    }
    good
}

async fn wipe(places: &Where, count: usize) -> bool {
    let stage = ChaosStage::new(places, false).await;
    let expected = unbroken(&stage).await;
    let mut tasks = Vec::new();
    for _ in 0..count {
        tasks.push(stage.world.task("six-units").await);
    }
    // In the middle: some tasks have taken steps, few or none have ended.
    let halfway = "SELECT count(*) FROM workflow_transitions";
    let goal = i64::try_from(count * 12).unwrap();
    while sqlx::query_scalar::<_, i64>(halfway).fetch_one(&stage.world.pool).await.unwrap() < goal {
        pause(Duration::from_millis(5)).await;
    }
    stage.world.processes.kill(Victim::Engine);
    let open = count_open(&stage.world.pool).await.unwrap();
    stage.world.wipe_engine();
    stage.world.processes.start(Victim::Engine);
    let begun = Instant::now();
    let left = until_all_ended(&stage, Duration::from_mins(3)).await;
    let wrong = compare(&stage, &tasks, &expected).await;
    println!(
        "{count} tasks, {open} of them open when the engine lost its memory: all ended {:.1} s later; {left} stuck, {wrong} \
         differ from an unbroken run",
        begun.elapsed().as_secs_f64()
    );
    let good = left == 0 && wrong == 0 && open > 0;
    if !good {
        println!("WRONG S002-15: checkpoints in PostgreSQL alone did not suffice to go on");
    }
    stage.end(good).await;
    good
}

async fn split_brain(places: &Where, count: usize) -> bool {
    let stage = ChaosStage::new(places, true).await;
    let task = stage.world.task("slow-units").await;
    assert!(until_ended(&stage, &task, STUCK).await, "the unbroken run did not end");
    let expected = stage.facts(&task).await;
    let (mut second, second_at, second_http) = stage.world.second_runner().await;
    let mut tasks = Vec::new();
    for _ in 0..count {
        tasks.push(stage.world.task("slow-units").await);
    }
    // The first runner is in the middle of many steps.
    let thinking = "SELECT count(*) FROM workflow_checkpoints WHERE next_step = 'plan_steps'";
    let goal = i64::try_from(count * 8 / 10).unwrap();
    while sqlx::query_scalar::<_, i64>(thinking).fetch_one(&stage.world.pool).await.unwrap() < goal
    {
        pause(Duration::from_millis(2)).await;
    }
    // Delay its messages from now on; once enough of them are delayed, it is paused.
    let first = stage.world.runner_http.as_ref().unwrap();
    first.hold(true);
    while first.held.load(Ordering::Relaxed) < u64::try_from(count / 2).unwrap() {
        pause(Duration::from_millis(2)).await;
    }
    stage.world.processes.pause(Victim::Runner);
    let accepted_before = first.checkpoints[0].load(Ordering::Relaxed);
    let refused_before = first.checkpoints[1].load(Ordering::Relaxed);
    // The engine's connections break, and it finds the second runner at the address of the first.
    stage.world.runner_link.point_at(second_at);
    pause(Duration::from_secs(u64::from(LEASE) + 1)).await;
    let taken_over = second_http.checkpoints[0].load(Ordering::Relaxed);
    stage.world.processes.go_on(Victim::Runner);
    first.hold(false);
    let left = until_all_ended(&stage, Duration::from_mins(1)).await;
    // By then the late writes of the first runner have arrived.
    let begun = Instant::now();
    while first.checkpoints[1].load(Ordering::Relaxed) == refused_before
        && begun.elapsed() < Duration::from_secs(10)
    {
        pause(Duration::from_millis(20)).await;
    }
    pause(Duration::from_millis(500)).await;
    let accepted = first.checkpoints[0].load(Ordering::Relaxed) - accepted_before;
    let refused = first.checkpoints[1].load(Ordering::Relaxed) - refused_before;
    let wrong = compare(&stage, &tasks, &expected).await;
    println!(
        "{count} tasks: the holder was paused past its leases, the second runner wrote {taken_over} checkpoints meanwhile; \
         of the first one's late writes {refused} were refused and {accepted} accepted; {left} stuck, {wrong} differ"
    );
    let good = left == 0 && wrong == 0 && accepted == 0 && refused > 0 && taken_over > 0;
    if accepted > 0 || refused == 0 {
        println!("WRONG S002-13, S002-46: a runner without the lease could write");
    }
    let _ = second.kill();
    let _ = second.wait();
    stage.end(good).await;
    good
}
