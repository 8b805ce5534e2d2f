//! Cost of a durable step: our workflow compared with the bare engine, in one run, on one machine, for
//! `prove/performance/step-cost`.

use std::{
    process::{Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicI64, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use clap::Args;
use cynode_e2e::{
    Executor, Scripts,
    world::{Victim, World, free_address},
};
use cynode_testkit::pause;
use futures::future::join_all;
use serde_json::json;
use tokio_util::task::TaskTracker;

use crate::Places;

/// Measures what a durable step costs.
#[derive(Args)]
pub(crate) struct Steps {
    #[command(flatten)]
    places: Places,
    /// Workflows of each measurement.
    #[arg(long, default_value_t = 1500)]
    count: usize,
    /// Workflows at the same time.
    #[arg(long, default_value_t = 50)]
    concurrency: usize,
    /// How many finished tasks are stored for the last measurement.
    #[arg(long, default_value_t = 100_000)]
    stored: i64,
    /// Minimum ratio to the throughput of the bare engine with commits, for the same steps under our contract.
    #[arg(long, default_value_t = 0.7)]
    min_ratio: f64,
    /// How much steps may slow down, and tasks grow dearer, from a thousand stored tasks to the last measurement.
    #[arg(long, default_value_t = 0.2)]
    flat: f64,
    /// The longest median of one step after the other, in milliseconds.
    #[arg(long, default_value_t = 10.0)]
    serial: f64,
}

const STEPS: f64 = 7.0;

fn raw(task: &str) -> uuid::Uuid {
    task.parse::<cynode_core::ids::TaskId>().unwrap().as_uuid()
}

struct StepBench {
    world: World,
    /// Waits longer for a connection than that of the world, whose processes are killed elsewhere: here all are busy.
    pool: sqlx::PgPool,
    http: reqwest::Client,
    next: AtomicI64,
    cli: Steps,
}

pub(crate) async fn run(cli: Steps) -> bool {
    let world = World::start(cli.places.setup(30, false)).await;
    let scripts = Scripts::read(&cli.places.scripts);
    let base = format!("http://{}", world.internal);
    let worker = Arc::new(Executor::new(&base, &world.worker_token, scripts, 600));
    let crew = TaskTracker::new();
    crew.spawn(worker.clone().run());
    let http = reqwest::Client::builder().no_proxy().build().unwrap();
    let options = (*world.pool.connect_options()).clone();
    let pool = sqlx::postgres::PgPoolOptions::new().max_connections(4).connect_lazy_with(options);
    let bench = StepBench { world, pool, http, next: AtomicI64::new(1), cli };
    let mut bare = bench.start_bare().await;

    let (min_ratio, flat, longest) = (bench.cli.min_ratio, bench.cli.flat, bench.cli.serial);
    // Everything is warmed up before the measurements, and the measurements take turns: a noisy machine affects all alike.
    let warm = bench.cli.count / 3;
    for service in ["Bare", "Committing", "Contract"] {
        bench.engine(service, warm).await;
    }
    bench.ours(warm).await;
    let third = bench.cli.count / 3;
    let (mut a, mut b, mut contract, mut whole) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for _ in 0..3 {
        a.push(bench.engine("Bare", third).await);
        b.push(bench.engine("Committing", third).await);
        contract.push(bench.engine("Contract", third).await);
        whole.push(bench.ours(third).await);
    }
    let mean = |values: &[f64]| {
        values.iter().sum::<f64>() / f64::from(u32::try_from(values.len()).unwrap())
    };
    let (a, b, rate, whole) = (mean(&a), mean(&b), mean(&contract), mean(&whole));
    println!("durable steps per second at concurrency {}:", bench.cli.concurrency);
    println!("  bare engine                        {a:>7.0}");
    println!("  bare engine and a commit per step  {b:>7.0}");
    println!(
        "  the same steps under our contract  {rate:>7.0}   {:.2} of the line above (minimum {min_ratio})",
        rate / b
    );
    println!(
        "  whole tasks with a unit and a job  {whole:>7.0}   {:.2}: asked for, swept, claimed, reported and told of besides",
        whole / b
    );
    let serial = bench.serial(60).await;
    println!(
        "one after the other, a step of ours takes {serial:.1} ms in the median (most {longest})"
    );

    bench.store(1000).await;
    bench.ours(warm).await;
    let few = (bench.ours(bench.cli.count).await, bench.cost().await);
    bench.store(bench.cli.stored).await;
    bench.ours(warm).await;
    let many = (bench.ours(bench.cli.count).await, bench.cost().await);
    let (slower, dearer) = (many.0 / few.0, many.1 / few.1);
    println!(
        "with 1000 and with {} finished tasks stored: {:.0} and {:.0} steps per second ({slower:.2}), {:.1} and {:.1} ms of \
         processor per task ({dearer:.2})",
        bench.cli.stored, few.0, many.0, few.1, many.1
    );
    worker.stop();
    let _ = bare.kill();
    let _ = bare.wait();
    rate / b >= min_ratio && serial < longest && slower >= 1.0 - flat && dearer <= 1.0 + flat
}

impl StepBench {
    async fn start_bare(&self) -> std::process::Child {
        let listen = free_address();
        let (address, database): (String, String) = {
            let options = self.world.pool.connect_options();
            (options.get_host().to_owned(), options.get_port().to_string())
        };
        let child = Command::new(std::env::current_exe().unwrap())
            .arg("bare")
            .args(["--listen", &listen.to_string()])
            .arg("--engine-key-file")
            .arg(self.world.logs().join("engine/key.pub"))
            .args([
                "--database",
                &format!("postgres://postgres@{address}:{database}/postgres?sslmode=disable"),
            ])
            .args(["--orchestrator", &format!("http://{}", self.world.internal)])
            .arg("--token-file")
            .arg(self.world.logs().join("runner-token"))
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        while tokio::net::TcpStream::connect(listen).await.is_err() {
            pause(Duration::from_millis(20)).await;
        }
        let url = format!("http://{}/deployments", self.world.admin);
        let body = json!({ "uri": format!("http://{listen}") });
        let answer = self.http.post(url).json(&body).send().await.unwrap();
        assert!(answer.status().is_success(), "{}", answer.text().await.unwrap());
        child
    }

    /// Creates tasks that are not dispatched, to be driven by hand.
    async fn idle_tasks(&self, count: usize) -> Vec<String> {
        let query = "WITH new AS (
                INSERT INTO tasks (task_id, project_id, name, description, acceptance_criteria, state, created_by,
                    created_at, updated_at)
                SELECT gen_random_uuid(), (SELECT project_id FROM projects LIMIT 1),
                    'idle-' || replace(gen_random_uuid()::text, '-', ''), 'idle', '[]', 'queued',
                    (SELECT user_id FROM users LIMIT 1), now(), now()
                FROM generate_series(1, $1)
                RETURNING task_id
            )
            INSERT INTO workflow_runs (task_id, run_id, trace_id, created_at)
            SELECT task_id, gen_random_uuid(), replace(gen_random_uuid()::text, '-', ''), now() FROM new
            RETURNING task_id";
        let ids: Vec<uuid::Uuid> = sqlx::query_scalar(query)
            .bind(i64::try_from(count).unwrap())
            .fetch_all(&self.pool)
            .await
            .unwrap();
        ids.into_iter().map(|id| cynode_core::ids::TaskId::from_uuid(id).to_string()).collect()
    }

    /// Returns the steps per second of a seven-step service of the engine.
    async fn engine(&self, service: &str, count: usize) -> f64 {
        let keys: Vec<String> = if service == "Contract" {
            self.idle_tasks(count).await
        } else {
            (0..count).map(|_| self.next.fetch_add(1, Ordering::Relaxed).to_string()).collect()
        };
        let begun = Instant::now();
        let next = AtomicUsize::new(0);
        let callers = (0..self.cli.concurrency).map(|_| async {
            while let Some(key) = keys.get(next.fetch_add(1, Ordering::Relaxed)) {
                let url = format!("http://{}/{service}/{key}/run", self.world.ingress);
                let answer = self.http.post(url).send().await.unwrap();
                assert!(answer.status().is_success(), "{}", answer.text().await.unwrap());
            }
        });
        join_all(callers).await;
        let steps = f64::from(u32::try_from(count).unwrap()) * STEPS;
        steps / begun.elapsed().as_secs_f64()
    }

    /// Returns the steps per second of our workflow. Every stored checkpoint counts, and everything around them is included:
    /// creating tasks, leases, waits, claiming and reporting jobs.
    async fn ours(&self, count: usize) -> f64 {
        let begun = Instant::now();
        let (mut asked, mut steps, mut open) = (0, 0, Vec::new());
        while asked < count || !open.is_empty() {
            let now = self.cli.concurrency.saturating_sub(open.len()).min(count - asked);
            let new = join_all((0..now).map(|_| self.world.task("one-unit"))).await;
            open.extend(new.iter().map(|task| raw(task)));
            asked += now;
            let (left, done) = self.split_ended(&open).await;
            open = left;
            steps += done;
            pause(Duration::from_millis(5)).await;
        }
        #[expect(clippy::cast_precision_loss, reason = "a few thousand")]
        let steps = steps as f64;
        steps / begun.elapsed().as_secs_f64()
    }

    /// Returns the tasks that have not ended, and the number of steps of the others.
    async fn split_ended(&self, open: &[uuid::Uuid]) -> (Vec<uuid::Uuid>, i64) {
        let query = "SELECT task_id, sequence FROM workflow_checkpoints WHERE task_id = ANY($1) AND next_step IS NULL";
        let ended: Vec<(uuid::Uuid, i64)> =
            sqlx::query_as(query).bind(open).fetch_all(&self.pool).await.unwrap();
        let left = open.iter().filter(|task| ended.iter().all(|(id, _)| id != *task)).copied();
        (left.collect(), ended.iter().map(|(_, steps)| steps).sum())
    }

    /// Returns the median time between two checkpoints of a single task, in milliseconds.
    async fn serial(&self, count: usize) -> f64 {
        let mut tasks = Vec::new();
        for _ in 0..count {
            let task = raw(&self.world.task("one-unit").await);
            while !self.split_ended(&[task]).await.0.is_empty() {
                pause(Duration::from_millis(2)).await;
            }
            tasks.push(task);
        }
        let query = "SELECT 1000 * percentile_cont(0.5) WITHIN GROUP (ORDER BY extract(epoch FROM took)::float8) FROM (
            SELECT recorded_at - lag(recorded_at) OVER (PARTITION BY task_id ORDER BY sequence) AS took,
                lag(verdict) OVER (PARTITION BY task_id ORDER BY sequence) AS before
            FROM workflow_transitions WHERE task_id = ANY($1)) AS steps
            WHERE took IS NOT NULL AND before <> 'wait'";
        sqlx::query_scalar(query).bind(&tasks).fetch_one(&self.pool).await.unwrap()
    }

    /// Returns the processor time of all processes for one task, in milliseconds.
    async fn cost(&self) -> f64 {
        let count = self.cli.count / 3;
        let before = self.processor();
        self.ours(count).await;
        let tasks = f64::from(u32::try_from(count).unwrap());
        let each: Vec<f64> = self
            .processor()
            .iter()
            .zip(before)
            .map(|(after, before)| (after - before) * 1000.0 / tasks)
            .collect();
        let parts: Vec<_> = Victim::ALL
            .iter()
            .zip(&each)
            .map(|(victim, time)| format!("{} {time:.1}", victim.as_str()))
            .collect();
        println!("  milliseconds of processor per task: {}", parts.join(", "));
        each.iter().sum()
    }

    fn processor(&self) -> [f64; 4] {
        Victim::ALL.map(|victim| self.world.processes.processor_seconds(victim))
    }

    /// Brings the number of stored finished tasks to `count`.
    async fn store(&self, count: i64) {
        let stored: i64 =
            sqlx::query_scalar("SELECT count(*) FROM tasks").fetch_one(&self.pool).await.unwrap();
        let more = (count - stored).max(0);
        sqlx::raw_sql(sqlx::AssertSqlSafe(STORE.replace("{count}", &more.to_string())))
            .execute(&self.pool)
            .await
            .unwrap();
        sqlx::raw_sql("VACUUM ANALYZE").execute(&self.pool).await.unwrap();
    }
}

/// Finished tasks as a run of our workflow leaves them.
const STORE: &str = "
    CREATE TEMP TABLE new_tasks ON COMMIT DROP AS
        SELECT gen_random_uuid() AS task_id, gen_random_uuid() AS run_id, gen_random_uuid() AS unit_id, number
        FROM generate_series(1, {count}) AS number;
    INSERT INTO tasks (task_id, project_id, name, description, acceptance_criteria, state, started_at, ended_at,
            created_by, created_at, updated_at)
        SELECT task_id, (SELECT project_id FROM projects LIMIT 1), 'old-' || replace(task_id::text, '-', ''), 'one-unit', '[]',
            'completed', now(), now(), (SELECT user_id FROM users LIMIT 1), now(), now()
        FROM new_tasks;
    INSERT INTO workflow_runs (task_id, run_id, trace_id, wake_count, dispatched_at, dispatched_wake_count, created_at, ended_at, outcome)
        SELECT task_id, run_id, replace(run_id::text, '-', ''), 1, now(), 1, now(), now(), 'completed' FROM new_tasks;
    INSERT INTO workflow_leases SELECT task_id, 'old', 'runner', 'old', 2, now() FROM new_tasks;
    INSERT INTO workflow_checkpoints
        SELECT task_id, run_id, 8, 'finalize_summary', NULL, '{}', 2, replace(run_id::text, '-', ''), now() FROM new_tasks;
    INSERT INTO workflow_transitions (task_id, run_id, sequence, step, verdict, next_step, attempt, actor, fencing_token,
            duration_ms, cost_micros, trace_id, recorded_at)
        SELECT task_id, run_id, sequence, 'dispatch_step', 'pass', 'collect_result', 1, 'runner', 2, 0, 0,
            replace(run_id::text, '-', ''), clock_timestamp()
        FROM new_tasks, generate_series(1, 8) AS sequence;
    INSERT INTO work_units (unit_id, task_id, key, title, position, depends_on, payload, state, attempts, updated_at)
        SELECT unit_id, task_id, 'only', 'The only unit', 0, '{}', 'null', 'done', 1, now() FROM new_tasks;
    INSERT INTO jobs (job_id, task_id, unit_id, attempt, state, payload, fencing_token, worker, claim_id, result, trace_id,
            queued_at, started_at, ended_at, collected_at)
        SELECT gen_random_uuid(), task_id, unit_id, 1, 'succeeded', 'null', 1, 'main', gen_random_uuid(), '{}',
            replace(run_id::text, '-', ''), now(), now(), now(), now() FROM new_tasks;
    INSERT INTO waits (wait_id, task_id, sequence, reason, owner, opened_at, resolved_at, resolution)
        SELECT gen_random_uuid(), task_id, 4, 'job', 'worker', now(), now(), 'woken' FROM new_tasks;
";
