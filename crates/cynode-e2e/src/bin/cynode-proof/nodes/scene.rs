//! Shared setup of both proofs: a world with a repository, its nodes, and queries about their jobs.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant},
};

use cynode_core::ids::{JobId, TaskId};
use cynode_e2e::{
    nodes::{Machine, NodeSetup},
    world::World,
};
use cynode_testkit::pause;
use serde_json::{Value, json};
use sqlx::PgPool;
use uuid::Uuid;

use crate::Places;

/// Lease time of a runner in these worlds, in seconds.
const LEASE: u32 = 5;

/// Timeout until a node's first heartbeat.
const START: Duration = Duration::from_secs(30);

/// Paths of the programs, and options of the proof.
pub(crate) struct SceneOptions {
    pub(crate) places: Places,
    pub(crate) node: PathBuf,
    pub(crate) tag: String,
    pub(crate) keep: bool,
}

impl SceneOptions {
    /// Starts an installation whose agents run `scripts`.
    pub(crate) async fn world(&self, scripts: &Value, directory: &Path) -> World {
        let file = directory.join("scripts.json");
        std::fs::write(&file, scripts.to_string()).unwrap();
        let mut setup = self.places.setup(LEASE, false);
        setup.scripts = Some(file);
        let mut world = World::start(setup).await;
        if self.keep {
            world.keep();
            println!("kept unless all is well: {}", world.logs().display());
        }
        world
    }

    /// Creates a machine of the world; nothing runs on it yet.
    pub(crate) fn machine(
        &self,
        world: &World,
        name: &str,
        disk_mib: Option<u32>,
        flags: &[&str],
    ) -> Machine {
        Machine::new(NodeSetup {
            program: self.node.clone(),
            name: name.to_owned(),
            tag: self.tag.clone(),
            directory: world.logs().join("nodes"),
            disk_mib,
            flags: flags.iter().map(ToString::to_string).collect(),
        })
    }
}

/// Joins a machine as a node, starts it and waits until the orchestrator has its heartbeat.
pub(crate) async fn enlist(world: &World, machine: &Machine, url: &str) {
    let issued = world.post("/v1/nodes/join-tokens", json!({})).await;
    machine.join(url, issued["join_token"].as_str().unwrap());
    machine.start();
    until("the node is not heard of", START, async || {
        assert!(!machine.has_ended(), "the node has ended: see {}", machine.log().display());
        heard_of(&world.pool, &machine.name, 3.0).await
    })
    .await;
}

/// Returns whether a node sent a heartbeat within the last seconds.
pub(crate) async fn heard_of(pool: &PgPool, name: &str, seconds: f64) -> bool {
    let query = "SELECT last_seen_at > clock_timestamp() - $2 * interval '1 second'
        AND EXISTS (SELECT FROM node_tokens t WHERE t.node_id = n.node_id) FROM nodes n WHERE name = $1";
    let seen = sqlx::query_scalar::<_, bool>(query).bind(name).bind(seconds);
    seen.fetch_optional(pool).await.ok().flatten().unwrap_or(false)
}

/// Waits until a condition holds. The proof fails if it does not in time.
pub(crate) async fn until(why: &str, timeout: Duration, holds: impl AsyncFn() -> bool) {
    let begun = Instant::now();
    while !holds().await {
        assert!(begun.elapsed() < timeout, "{why} after {} s", timeout.as_secs());
        pause(Duration::from_millis(20)).await;
    }
}

/// Returns a unit that runs a shell script in the sandbox and must make a commit.
pub(crate) fn unit(key: &str, after: Option<&str>, script: &str) -> Value {
    let steps = json!([{ "argv": ["/bin/sh", "-euc", script] }]);
    unit_of(key, after, &json!({ "kind": "command", "steps": steps }))
}

/// Returns a unit of the given worker that must make a commit.
pub(crate) fn unit_of(key: &str, after: Option<&str>, worker: &Value) -> Value {
    let work = json!({
        "role": "developer", "worker": worker, "commit": "required", "models": ["scripted"],
        "sandbox": { "memory_mib": 512, "processes": 64 },
    });
    let depends_on: Vec<_> = after.into_iter().collect();
    json!({ "key": key, "title": format!("Do {key}"), "depends_on": depends_on, "payload": { "work": work } })
}

/// Runs git with no configuration but its arguments. Returns its output, or `None` if it failed.
pub(crate) fn git(directory: &Path, arguments: &[&str]) -> Option<String> {
    let done = Command::new("git")
        .arg("-C")
        .arg(directory)
        .args(["-c", "user.name=Ada", "-c", "user.email=ada@example.com", "-c", "safe.directory=*"])
        .args(arguments)
        .env("GIT_CONFIG_NOSYSTEM", "1")
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .output()
        .unwrap();
    done.status.success().then(|| String::from_utf8_lossy(&done.stdout).trim().to_owned())
}

/// Returns a small repository as a bundle; its commit differs each time.
pub(crate) fn repository() -> Vec<u8> {
    let place = tempfile::tempdir().unwrap();
    let readme = format!("# A project\n\n{:016x}\n", rand::random::<u64>());
    std::fs::write(place.path().join("README.md"), readme).unwrap();
    let run = |arguments: &[&str]| git(place.path(), arguments).unwrap();
    run(&["init", "--quiet", "--initial-branch=main"]);
    run(&["add", "--all"]);
    run(&["commit", "--quiet", "--message=First"]);
    run(&["bundle", "create", "--quiet", "repository.bundle", "main"]);
    std::fs::read(place.path().join("repository.bundle")).unwrap()
}

/// A row of the jobs table.
#[derive(Clone, Debug, sqlx::FromRow)]
pub(crate) struct Job {
    id: Uuid,
    pub(crate) unit: String,
    pub(crate) attempt: i32,
    pub(crate) state: String,
    pub(crate) phase: Option<String>,
    pub(crate) node: Option<String>,
    pub(crate) base_commit: Option<String>,
    pub(crate) result: Option<Value>,
}

impl Job {
    pub(crate) fn id(&self) -> String {
        JobId::from_uuid(self.id).to_string()
    }

    pub(crate) fn is_final(&self) -> bool {
        !["queued", "running"].contains(&self.state.as_str())
    }

    fn result_text(&self, field: &str) -> Option<&str> {
        self.result.as_ref()?.get(field)?.as_str()
    }

    pub(crate) fn commit(&self) -> Option<&str> {
        self.result_text("commit")
    }

    /// Returns its stop reason as text.
    pub(crate) fn words(&self) -> String {
        let result_text = |field: &str| self.result_text(field).unwrap_or("");
        let words = format!("{} {}", result_text("stop_reason"), result_text("summary"));
        words.split_whitespace().collect::<Vec<_>>().join(" ")
    }
}

fn raw(task: &str) -> Uuid {
    task.parse::<TaskId>().unwrap().as_uuid()
}

/// Returns the jobs of a task, by unit and attempt. The database is always up in these worlds.
pub(crate) async fn jobs(pool: &PgPool, task: &str) -> Vec<Job> {
    let query = "
        SELECT j.job_id AS id, u.key AS unit, j.attempt, j.state, j.phase, n.name AS node, j.base_commit, j.result
        FROM jobs j JOIN work_units u USING (unit_id) LEFT JOIN nodes n ON n.node_id = j.node_id
        WHERE j.task_id = $1 ORDER BY u.key, j.attempt";
    sqlx::query_as(query).bind(raw(task)).fetch_all(pool).await.unwrap()
}

/// Returns the final state of a task; `None` while it has not ended.
pub(crate) async fn final_state(pool: &PgPool, task: &str) -> Option<String> {
    let query = "SELECT t.state FROM tasks t JOIN workflow_runs r USING (task_id)
        WHERE task_id = $1 AND r.ended_at IS NOT NULL";
    sqlx::query_scalar(query).bind(raw(task)).fetch_optional(pool).await.unwrap()
}

/// Returns how often the run accepted each unit of a task as done.
async fn passes(pool: &PgPool, task: &str) -> BTreeMap<String, i64> {
    let query = "SELECT unit_key, count(*) FROM workflow_transitions
        WHERE task_id = $1 AND step = 'verify_step_result' AND verdict = 'pass' GROUP BY unit_key";
    let rows: Vec<(String, i64)> =
        sqlx::query_as(query).bind(raw(task)).fetch_all(pool).await.unwrap();
    rows.into_iter().collect()
}

/// Checks the outcome of a completed task. Every unit was done by exactly one job; its commit is in the project's repository,
/// adds the expected file, and is based only on its predecessors; nothing of a lost job is there.
pub(crate) async fn wrong(world: &World, project: &str, task: &str, units: &[&str]) -> Vec<String> {
    let mut wrong = Vec::new();
    let (jobs, passes) = (jobs(&world.pool, task).await, passes(&world.pool, task).await);
    let repository = world.repository(project);
    for unit in units {
        let of: Vec<_> = jobs.iter().filter(|job| job.unit == *unit).collect();
        let good = of.iter().filter(|job| job.state == "succeeded").count();
        if good != 1 || passes.get(*unit) != Some(&1) {
            let states: Vec<_> = of.iter().map(|job| (job.attempt, job.state.as_str())).collect();
            wrong.push(format!("{unit}: {states:?}, passed {:?} times", passes.get(*unit)));
        }
        wrong.extend(wrong_history(&repository, unit, &of));
    }
    for job in &jobs {
        if !job.is_final() {
            wrong.push(format!("job {} is {}", job.id(), job.state));
        }
        if job.state == "lost" && job.result.is_some() {
            wrong.push(format!("job {} is lost and has a result", job.id()));
        }
        let reference = format!("refs/cynode/jobs/{}", job.id());
        let stored = git(&repository, &["rev-parse", "--verify", "--quiet", &reference]);
        if stored.as_deref() != job.commit() {
            wrong.push(format!("job {} ({}): stored is {stored:?}", job.id(), job.state));
        }
    }
    wrong
}

/// Checks the commits of a unit: from the base of its first attempt there is one commit for each attempt that made one, in
/// order, and together they add one file of the unit's name.
fn wrong_history(repository: &Path, unit: &str, attempts: &[&Job]) -> Option<String> {
    let base = attempts.first().and_then(|job| job.base_commit.as_deref());
    let mut made: Vec<_> = attempts.iter().filter_map(|job| job.commit()).collect();
    let (Some(base), Some(commit)) = (base, made.last().copied()) else {
        return Some(format!("{unit}: no base or no commit"));
    };
    made.reverse();
    let history = git(repository, &["rev-list", &format!("{base}..{commit}")]);
    let changed = git(repository, &["diff", "--name-status", base, commit]);
    let right = history.as_deref() == Some(&made.join("\n"))
        && changed.as_deref() == Some(&format!("A\t{unit}"));
    (!right).then(|| format!("{unit}: history {history:?} of {made:?}, changes {changed:?}"))
}
