//! A real coding agent with a real model: small repairs in a real repository, from their description to a pull request. The
//! number of successful repairs is reported and not judged. The proof fails if a task is called done, or a change is offered,
//! whose check does not pass; it verifies that itself, from the offered commit. Plans and reviews come from a script that
//! approves everything.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant},
};

use clap::Args;
use cynode_e2e::{nodes::Machine, world::World};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::{
    agents::link,
    nodes::scene::git,
    whole::{Parts, SCRIPTED, WORKERS, Whole, bundle_of, raw},
};

/// The provider of the real model.
const REAL: &str = "real";

/// The coding agent.
const AGENT: &str = "goose";

/// Timeout until a cancelled task has ended.
const CANCELLED: Duration = Duration::from_secs(30);

/// Output of a test that passes.
const HOLDS: &str = "OK";

/// A real coding agent with a real model.
#[derive(Args)]
pub(crate) struct Real {
    #[command(flatten)]
    parts: Parts,
    /// The folder of installed agents.
    #[arg(long)]
    installed: PathBuf,
    /// The sample: a repository, and what is wrong in it.
    #[arg(long)]
    sample: PathBuf,
    /// Where the model is, up to `/v1`.
    #[arg(long)]
    url: String,
    /// What the model is called there.
    #[arg(long)]
    model: String,
    /// How many repairs are tried.
    #[arg(long)]
    repairs: Option<usize>,
    /// How long one may take.
    #[arg(long, default_value_t = 300)]
    seconds: u64,
    /// After how long none is begun any more.
    #[arg(long, default_value_t = 60)]
    minutes: u64,
}

/// One defect of the sample.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Repair {
    name: String,
    /// A person's description of it.
    words: String,
    /// The file with the defect.
    file: String,
    /// The test that fails because of it.
    test: String,
    /// The wrong text in the file, and the right one.
    wrong: String,
    right: String,
}

impl Repair {
    fn argv(&self) -> [&str; 4] {
        ["python3", "-m", "unittest", &self.test]
    }

    fn criteria(&self) -> Value {
        json!([{ "text": self.words, "check": { "argv": self.argv(), "expect_output": HOLDS } }])
    }

    /// Returns the pattern of the planning question, and its answer.
    fn planned(&self) -> (String, Value) {
        let unit = json!({
            "title": format!("Mend {}", self.file), "kind": "implementation", "files_to_modify": [self.file], "files_to_read_first": [],
            "pattern_reference": "", "constraints": [], "requirements": [], "depends_on": [], "checks": [],
        });
        let plan = json!({ "reason": "One line.", "units": [unit], "leave_out": [], "assumptions": [], "question": "" });
        // In a pattern every character except letters, digits and blanks may be special.
        let plain = |sign: char| sign.is_ascii_alphanumeric() || sign == ' ' || !sign.is_ascii();
        let words = self
            .words
            .chars()
            .map(|sign| if plain(sign) { sign.to_string() } else { format!("\\{sign}") });
        (format!("(?s)^Plan the task.*{}", words.collect::<String>()), plan)
    }
}

/// Outcome of one repair.
struct RepairOutcome {
    task: String,
    /// Its state, or `time is up`.
    state: String,
    evidence: String,
    calls: i64,
    tokens: (i64, i64),
    took: Duration,
    delivered: bool,
    wrong: Vec<String>,
    words: String,
}

/// Returns whether every task that is called done, and every offered change, passes its check.
pub(crate) async fn run(real: Real) -> bool {
    let text = fs::read_to_string(real.sample.join("repairs.json")).unwrap();
    let mut repairs: Vec<Repair> = serde_json::from_str(&text).unwrap();
    repairs.truncate(real.repairs.unwrap_or(usize::MAX));
    let repository = real.sample.join("repository");
    for repair in &repairs {
        assert!(is_sound(&repository, repair), "{} is no repair that can be made", repair.name);
    }
    let begun = Instant::now();
    let install = |machine: &Machine| link(&real.installed, &machine.state.join("agents"));
    let whole = Whole::start_with(&real.parts, &answers(&repairs), 1, install).await;
    let project = set_up(&whole, &real, &repository).await;
    println!("everything runs after {:.1} s; {}", begun.elapsed().as_secs_f64(), load());
    println!("\n{AGENT} with {}", real.model);
    println!(
        "{:<12}{:<14}{:<20}{:>6}{:>10}{:>8}{:>9}  what came of it",
        "repair", "state", "evidence", "calls", "in", "out", "seconds"
    );
    let mut came = Vec::new();
    for repair in &repairs {
        if begun.elapsed() > Duration::from_mins(real.minutes) {
            println!("{:<12}not tried: {} minutes are over", repair.name, real.minutes);
            continue;
        }
        let one = one(&whole, &project, repair, Duration::from_secs(real.seconds)).await;
        println!(
            "{:<12}{:<14}{:<20}{:>6}{:>10}{:>8}{:>9.1}  {}",
            repair.name,
            one.state,
            one.evidence,
            one.calls,
            one.tokens.0,
            one.tokens.1,
            one.took.as_secs_f64(),
            one.words
        );
        came.push((repair, one));
    }
    let mut wrong = 0;
    for (repair, one) in &came {
        // A task that was left alone may have progressed since.
        let now = DeliveryStatus::of(&whole, &one.task).await;
        let again = unfounded(&whole, &project, repair, &one.task, &now);
        for words in one.wrong.iter().chain(&again) {
            println!("WRONG {}: {words}", repair.name);
            wrong += 1;
        }
    }
    let count = |is: fn(&RepairOutcome) -> bool| came.iter().filter(|(_, one)| is(one)).count();
    println!(
        "\n{} repairs: {} done and offered, and hold; {} end with a question, {} paused, {} failed, {} out of time; {wrong} called done without evidence; {:.0} s; {}",
        came.len(),
        count(|one| one.delivered && one.wrong.is_empty()),
        count(|one| one.state == ASKS),
        count(|one| one.state == PAUSED),
        count(|one| one.state == "failed"),
        count(|one| one.state == LATE),
        begun.elapsed().as_secs_f64(),
        load()
    );
    wrong == 0 && !came.is_empty()
}

/// The task may make no model call before a person resumes it.
const PAUSED: &str = "paused";

/// A person is asked.
const ASKS: &str = "asks";

/// The timeout is over.
const LATE: &str = "time is up";

/// Returns the load of the machine.
fn load() -> String {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let first = text.split(' ').next().unwrap_or("?").to_owned();
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    format!("load {first} on {cores} cores")
}

/// Returns the answers of the script: it plans each repair, and approves everything.
fn answers(repairs: &[Repair]) -> Vec<(String, Value)> {
    let of = |asked: &str, answer: Value| (asked.to_owned(), answer);
    let mut answers = vec![
        of("^Decide what kind of work", json!({ "reason": "It is broken.", "class": "quick_fix" })),
        of(
            "^Decide how much of the project",
            json!({ "reason": "One line.", "components": ["tidy"], "estimated_files": 1, "scope": "trivial" }),
        ),
        of(
            "^Judge whether",
            json!({ "reason": "It says so.", "findings": [], "recommended_actions": [], "status": "pass" }),
        ),
        of(
            "was reviewed and found good",
            json!({ "why": "It was.", "commands": [], "needed": false }),
        ),
        of(
            "^A unit of work came to nothing",
            json!({ "reason": "It failed.", "note": "Try it again.", "decision": "retry" }),
        ),
        of(
            "^An agent that works on the task below asks",
            json!({ "reason": "It asks.", "instruction": "", "can_answer": false }),
        ),
        of("^Write a summary", json!({ "summary": "It was mended." })),
    ];
    answers.extend(repairs.iter().map(Repair::planned));
    answers
}

/// Creates the project. Its agents use the real model, its managers the script.
async fn set_up(whole: &Whole, real: &Real, repository: &Path) -> String {
    let world = &whole.world;
    let address = format!("{}/v1", real.url.trim_end_matches('/').trim_end_matches("/v1"));
    let provider = json!({ "kind": "compatible", "base_url": address, "local": false });
    world.put(&format!("/v1/providers/{REAL}"), &provider).await;
    let model = json!({
        "context_tokens": 32_768, "max_output_tokens": 512, "tools": true, "tier": "fast",
        "routes": [{ "provider": REAL, "upstream": real.model }],
    });
    world.put(&format!("/v1/model-registry/{REAL}"), &model).await;
    narrow(world).await;
    let asks = |role: &str, provider: &str| {
        let key = format!("agents.{role}.model_routing.allowed_external_providers");
        (key, json!([provider]))
    };
    let preferences = [
        asks("project_manager", SCRIPTED),
        asks("project_analyst", SCRIPTED),
        asks("sandbox_agent", REAL),
        (format!("{WORKERS}.fixer"), json!({ "kind": "acp", "agent": AGENT })),
        ("agents.project_manager.review.max_review_iterations".to_owned(), json!(1)),
        ("workflow.max_step_retries".to_owned(), json!(2)),
    ];
    whole.project(&bundle_of(repository), &preferences).await
}

/// Disables all sandbox tools except the report tool, because a small model reads little.
async fn narrow(world: &World) {
    let listed = world.get("/v1/tools").await;
    let tools = listed["items"].as_array().or(listed.as_array()).cloned().unwrap_or_default();
    assert!(!tools.is_empty(), "there are no tools: {listed}");
    for name in tools.iter().filter_map(|tool| tool["name"].as_str()) {
        if name != "pm.report" {
            world.put(&format!("/v1/tools/{name}"), &json!({ "scope": "pm" })).await;
        }
    }
}

async fn one(whole: &Whole, project: &str, repair: &Repair, timeout: Duration) -> RepairOutcome {
    let begun = Instant::now();
    let task = whole.task(project, &repair.words, repair.criteria()).await;
    let still = whole.stands_still(&task, timeout).await;
    if still.is_none() {
        whole.world.try_post(&format!("/v1/tasks/{task}/cancel"), &Value::Null).await;
        whole.stands_still(&task, CANCELLED).await;
    }
    let took = begun.elapsed();
    let now = DeliveryStatus::of(whole, &task).await;
    let wrong = unfounded(whole, project, repair, &task, &now);
    let state = match &still {
        Some(still) if still.question.as_deref() == Some(PAUSED) => PAUSED.to_owned(),
        Some(still) if still.question.is_some() => ASKS.to_owned(),
        Some(still) => still.state.clone(),
        // It may have completed while it was being cancelled.
        None if now.state == "completed" => now.state.clone(),
        None => LATE.to_owned(),
    };
    let query = "SELECT count(*), coalesce(sum(input_tokens + cached_tokens), 0)::bigint, coalesce(sum(output_tokens), 0)::bigint
        FROM model_calls WHERE task_id = $1 AND provider = $2";
    let (calls, input, output) = sqlx::query_as(query)
        .bind(raw(&task))
        .bind(REAL)
        .fetch_one(&whole.world.pool)
        .await
        .unwrap();
    let words = match still.and_then(|still| still.question) {
        Some(question) if question != PAUSED => question,
        _ if now.is_taken() => "it holds".to_owned(),
        _ => failure_summaries(whole, &task).await,
    };
    let words: String = words.split_whitespace().collect::<Vec<_>>().join(" ");
    RepairOutcome {
        state,
        evidence: now.evidence_states(),
        calls,
        tokens: (input, output),
        took,
        delivered: now.is_taken(),
        wrong,
        words: words.chars().take(160).collect(),
        task,
    }
}

/// Returns the errors of a task's failed jobs.
async fn failure_summaries(whole: &Whole, task: &str) -> String {
    let query = "SELECT coalesce(string_agg(result ->> 'summary', '; '), '') FROM jobs WHERE task_id = $1 AND state <> 'succeeded'";
    sqlx::query_scalar(query).bind(raw(task)).fetch_one(&whole.world.pool).await.unwrap()
}

/// State of a task.
struct DeliveryStatus {
    state: String,
    /// The offered branch and its base.
    offered: Option<(String, String)>,
    evidence: Vec<Value>,
}

impl DeliveryStatus {
    async fn of(whole: &Whole, task: &str) -> Self {
        let pool = &whole.world.pool;
        let state = sqlx::query_scalar("SELECT state FROM tasks WHERE task_id = $1");
        let state = state.bind(raw(task)).fetch_one(pool).await.unwrap();
        let offered =
            sqlx::query_as("SELECT branch, base_commit FROM pull_requests WHERE task_id = $1");
        let offered = offered.bind(raw(task)).fetch_optional(pool).await.unwrap();
        let shown = whole.world.get(&format!("/v1/tasks/{task}/evidence")).await;
        let evidence = shown["evidence"].as_array().cloned().unwrap_or_default();
        Self { state, offered, evidence }
    }

    /// Returns whether the task is presented as done.
    fn is_taken(&self) -> bool {
        self.state == "completed" || self.offered.is_some()
    }

    fn evidence_states(&self) -> String {
        let states: Vec<&str> =
            self.evidence.iter().filter_map(|it| it["state"].as_str()).collect();
        if states.is_empty() { "none".to_owned() } else { states.join(", ") }
    }
}

/// Returns why a task that is called done, or a change that is offered, is not valid; `None` if it is valid or not presented as
/// done.
fn unfounded(
    whole: &Whole,
    project: &str,
    repair: &Repair,
    task: &str,
    now: &DeliveryStatus,
) -> Vec<String> {
    if !now.is_taken() {
        return Vec::new();
    }
    let Some((branch, base)) = &now.offered else {
        return vec![format!("{task} is completed and nothing is offered")];
    };
    let repository = whole.world.repository(project);
    let commit = format!("refs/heads/{branch}");
    let tree = |commit: &str| {
        git(&repository, &["rev-parse", "--verify", "--quiet", &format!("{commit}^{{tree}}")])
    };
    let mut wrong = Vec::new();
    let offered = tree(&commit);
    // A check ran over exactly these files, and no finding was waived.
    let shows = |it: &&Value| {
        let of = it["commit"].as_str().and_then(tree);
        it["state"] == "passed" && it["waived"].is_null() && of.is_some() && of == offered
    };
    if !now.evidence.iter().any(|it| shows(&it)) {
        wrong.push(format!(
            "nothing was shown of the files that are offered: {}",
            now.evidence_states()
        ));
    }
    for tests_from in [None, Some(base.as_str())] {
        if let Err(said) = holds_at(&repository, branch, tests_from, repair) {
            let tests = tests_from.map_or("as they are offered", |_| "as they were before");
            wrong.push(format!("it does not hold with the tests {tests}: {said}"));
        }
    }
    wrong
}

/// Checks a repair on a branch of a repository, optionally with the tests of another commit.
fn holds_at(
    repository: &Path,
    branch: &str,
    tests_from: Option<&str>,
    repair: &Repair,
) -> Result<(), String> {
    let place = tempfile::tempdir().unwrap();
    let from = repository.to_str().unwrap();
    let run = |arguments: &[&str]| {
        git(place.path(), arguments).ok_or_else(|| format!("git {arguments:?} failed"))
    };
    run(&["clone", "--quiet", "--no-hardlinks", "--branch", branch, from, "."])?;
    if let Some(commit) = tests_from {
        run(&["rm", "-r", "--quiet", "--ignore-unmatch", "tests"])?;
        run(&["checkout", "--quiet", commit, "--", "tests"])?;
    }
    holds(place.path(), repair)
}

/// Checks a repair in a folder. Returns the output on failure. Code of a model runs in a sandbox here too, one of our own.
fn holds(folder: &Path, repair: &Repair) -> Result<(), String> {
    let mut command = Command::new("bwrap");
    command.args(["--unshare-all", "--die-with-parent", "--new-session", "--cap-drop", "ALL"]);
    command.args(["--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc", "--tmpfs", "/tmp"]);
    command.arg("--ro-bind").arg(folder).arg("/tmp/work").args(["--chdir", "/tmp/work"]);
    command.args(["--clearenv", "--setenv", "PATH", "/usr/local/bin:/usr/bin:/bin"]);
    command.args(["--setenv", "PYTHONDONTWRITEBYTECODE", "1", "timeout", "60"]);
    let done = command.args(repair.argv()).output().unwrap();
    let said = String::from_utf8_lossy(&[done.stdout, done.stderr].concat()).into_owned();
    if done.status.success() && said.contains(HOLDS) {
        return Ok(());
    }
    Err(said.lines().last().unwrap_or_default().to_owned())
}

/// Returns whether a repair is valid: its check fails before it, and passes after it.
fn is_sound(repository: &Path, repair: &Repair) -> bool {
    let place = tempfile::tempdir().unwrap();
    let mut copy = Command::new("cp");
    copy.args(["--recursive", "--no-target-directory"]).arg(repository).arg(place.path());
    let copied = copy.status().unwrap().success();
    let file = place.path().join(&repair.file);
    let text = fs::read_to_string(&file).unwrap();
    let before = holds(place.path(), repair).is_err();
    fs::write(&file, text.replacen(&repair.wrong, &repair.right, 1)).unwrap();
    copied && before && holds(place.path(), repair).is_ok()
}
