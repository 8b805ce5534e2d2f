//! A plan of twelve units, four in parallel, two pairs of which also change a file that they did not declare: run in parallel,
//! and one at a time. Everything is real except the model and the workers, which take a fixed time.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    time::{Duration, Instant},
};

use clap::Args;
use serde_json::{Value, json};

use crate::{
    nodes::scene::git,
    whole::{Parts, ScriptedAnswer, WORKERS, Whole, bundle, raw},
};

/// Number of units in each layer, and number of layers.
const WIDTH: u32 = 4;
const LAYERS: u32 = 3;

/// Units that also write to an undeclared file, in pairs that run in parallel.
const SHARING: [u32; 4] = [2, 3, 6, 7];

/// Timeout of one run.
const STUCK: Duration = Duration::from_mins(15);

/// Width of the drawing.
const COLUMNS: usize = 96;

/// A plan whose units can be done side by side.
#[derive(Args)]
pub(crate) struct Parallel {
    #[command(flatten)]
    parts: Parts,
    /// How long the worker of a unit takes.
    #[arg(long, default_value_t = 10_000)]
    milliseconds: u32,
    /// Maximum ratio of the parallel time to the sequential time.
    #[arg(long, default_value_t = 0.45)]
    max_ratio: f64,
}

/// Returns whether both runs end in one merged change, and the parallel one is fast enough.
pub(crate) async fn run(parallel: Parallel) -> bool {
    let begun = Instant::now();
    let slots = u16::try_from(WIDTH + 1).unwrap();
    let whole = Whole::start(&parallel.parts, &answers(), slots).await;
    println!("everything runs after {:.1} s", begun.elapsed().as_secs_f64());
    let beside = once(&whole, parallel.milliseconds, WIDTH).await;
    let alone = once(&whole, parallel.milliseconds, 1).await;
    let (Some(beside), Some(alone)) = (beside, alone) else { return false };
    let ratio = beside.as_secs_f64() / alone.as_secs_f64();
    println!(
        "\n{WIDTH} at once: {:.1} s; one at a time: {:.1} s; ratio {ratio:.2}, at most {:.2}",
        beside.as_secs_f64(),
        alone.as_secs_f64(),
        parallel.max_ratio
    );
    let good = ratio < parallel.max_ratio;
    if !good {
        println!("WRONG S004-145: it is not fast enough side by side");
    }
    good
}

/// Returns the answers of the model: it plans the twelve units, and approves everything.
fn answers() -> Vec<ScriptedAnswer> {
    let title = |number: u32| format!("Part {number}");
    let units: Vec<Value> = (1..=WIDTH * LAYERS)
        .map(|number| {
            let layer = (number - 1) / WIDTH;
            let earlier = ((layer.saturating_sub(1) * WIDTH + 1)..=(layer * WIDTH)).map(title);
            json!({
                "title": title(number), "kind": "implementation", "files_to_modify": [format!("part-{number}.txt")],
                "files_to_read_first": [], "pattern_reference": "", "constraints": [], "requirements": [format!("part-{number}.txt is there")],
                "depends_on": earlier.collect::<Vec<_>>(), "checks": [],
            })
        })
        .collect();
    vec![
        (
            "^Decide what kind of work",
            json!({ "reason": "It is new.", "class": "feature_request" }),
        ),
        (
            "^Decide how much of the project",
            json!({ "reason": "Twelve files.", "components": ["parts"], "estimated_files": 12, "scope": "medium" }),
        ),
        (
            "^Plan the task",
            json!({ "reason": "Parts.", "units": units, "leave_out": [], "assumptions": [], "question": "" }),
        ),
        (
            "^Judge whether",
            json!({ "reason": "It is there.", "findings": [], "recommended_actions": [], "status": "pass" }),
        ),
        (
            "was reviewed and found good",
            json!({ "why": "It was.", "commands": [], "needed": false }),
        ),
        ("^Write a summary", json!({ "summary": "All twelve parts are there." })),
    ]
}

/// Returns the repository, with the check that every part is there.
fn repository() -> Vec<u8> {
    let sharing = SHARING.map(|number| number.to_string()).join(" ");
    let check = format!(
        "for number in $(seq 1 {}); do [ -s part-$number.txt ] || {{ echo no part $number; exit 1; }}; done
for number in {sharing}; do grep -qx \"part $number was here\" shared.txt || {{ echo part $number is not in shared.txt; exit 1; }}; done
! grep -q '^[<=>]\\{{7\\}}' shared.txt
",
        WIDTH * LAYERS
    );
    bundle(&[&[("shared.txt", "Who was here:\n"), ("check.sh", &check)]])
}

/// Returns the worker of a unit. It finds its unit by the branch, takes a fixed time, and writes the shared file in some units.
fn developer(milliseconds: u32) -> Value {
    let sharing = SHARING.map(|number| format!("part-{number}")).join("|");
    let script = format!(
        "unit=$(git symbolic-ref --short HEAD); unit=${{unit##*/}}
echo \"$unit\" > $unit.txt
case $unit in {sharing}) echo \"part ${{unit#part-}} was here\" >> shared.txt ;; esac"
    );
    let report =
        json!({ "kind": "work_completed", "summary": "The part is there.", "details": {} });
    json!({ "kind": "scripted", "moves": [
        { "move": "wait", "milliseconds": milliseconds },
        { "move": "run", "argv": ["sh", "-euc", script] },
        { "move": "tool", "name": "pm.report", "arguments": report },
    ] })
}

/// Returns the worker that resolves merge conflicts: it keeps both changes.
fn fixer() -> Value {
    let script =
        "sed -i -e '/^<<<<<<< /d' -e '/^|||||||/d' -e '/^=======$/d' -e '/^>>>>>>> /d' shared.txt";
    let report =
        json!({ "kind": "work_completed", "summary": "Both sides are kept.", "details": {} });
    json!({ "kind": "scripted", "moves": [
        { "move": "run", "argv": ["sh", "-euc", script] },
        { "move": "tool", "name": "pm.report", "arguments": report },
    ] })
}

fn reviewer() -> Value {
    let details = json!({ "critical_issues": [], "major_issues": [], "minor_issues": [], "summary": "Good." });
    let report = json!({ "kind": "review_approved", "summary": "Good.", "details": details });
    json!({ "kind": "scripted", "moves": [{ "move": "tool", "name": "pm.report", "arguments": report }] })
}

/// Runs the plan with this number of concurrent units. Returns the duration if the outcome is right.
async fn once(whole: &Whole, milliseconds: u32, at_once: u32) -> Option<Duration> {
    let preferences = [
        (format!("{WORKERS}.developer"), developer(milliseconds)),
        (format!("{WORKERS}.fixer"), fixer()),
        (format!("{WORKERS}.reviewer"), reviewer()),
        ("workflow.max_parallel_units".to_owned(), json!(at_once)),
    ];
    let project = whole.project(&repository(), &preferences).await;
    println!("\n{at_once} at once");
    let begun = Instant::now();
    let check = json!({ "argv": ["sh", "check.sh"] });
    let criteria = json!([{ "text": "All twelve parts are there", "check": check }]);
    let task = whole.task(&project, "Write the twelve parts", criteria).await;
    let still = whole.stands_still(&task, STUCK).await;
    let took = begun.elapsed();
    draw(whole, &task).await;
    let state = still.as_ref().map_or("not at its end", |still| &still.state);
    let question = still.as_ref().and_then(|still| still.question.as_deref()).unwrap_or_default();
    let wrong = wrong(whole, &project, &task).await;
    println!("it is {state} after {:.1} s {question}", took.as_secs_f64());
    for words in &wrong {
        println!("WRONG {words}");
    }
    (state == "completed" && wrong.is_empty()).then_some(took)
}

/// Merges the change. Returns the problems of the result.
async fn wrong(whole: &Whole, project: &str, task: &str) -> Vec<String> {
    let mut wrong = Vec::new();
    let query =
        "SELECT count(*) FROM work_units WHERE task_id = $1 AND state = 'done' AND key LIKE $2";
    let pool = &whole.world.pool;
    for (like, meant) in [("part-%", 12), ("fit%", 2), ("integrate%", 3), ("review%", 1)] {
        let done: i64 =
            sqlx::query_scalar(query).bind(raw(task)).bind(like).fetch_one(pool).await.unwrap();
        if done != meant {
            wrong.push(format!("{done} units like {like} are done and not {meant}"));
        }
    }
    let page = whole.world.get(&format!("/v1/projects/{project}/pull-requests")).await;
    let offered = page["items"].as_array().map_or(&[][..], Vec::as_slice);
    let [offered] = offered else {
        wrong.push(format!("there are {} pull requests", offered.len()));
        return wrong;
    };
    let id = offered["id"].as_str().unwrap();
    let whole_of_it = whole.world.get(&format!("/v1/pull-requests/{id}")).await;
    let checks = &whole_of_it["checks"];
    let good = |it: &Value| it["state"] == "passed";
    if !checks.as_array().is_some_and(|checks| !checks.is_empty() && checks.iter().all(good)) {
        wrong.push(format!("its checks: {checks}"));
    }
    let merged = whole.world.post(&format!("/v1/pull-requests/{id}/merge"), Value::Null).await;
    if merged["state"] != "merged" {
        wrong.push(format!("it cannot be merged: {merged}"));
    }
    let repository = whole.world.repository(project);
    let files =
        git(&repository, &["ls-tree", "--name-only", "refs/heads/main"]).unwrap_or_default();
    let parts = files.lines().filter(|path| path.starts_with("part-")).count();
    let shared = git(&repository, &["show", "refs/heads/main:shared.txt"]).unwrap_or_default();
    if parts != 12 || shared.lines().count() != 1 + SHARING.len() {
        wrong.push(format!("{parts} parts are on the branch, and shared.txt says {shared:?}"));
    }
    println!(
        "pull request {} of {} checks is {}: {parts} parts, {} lines that two wrote at once",
        offered["number"],
        checks.as_array().map_or(0, Vec::len),
        merged["state"],
        shared.lines().count() - 1
    );
    wrong
}

/// Draws the jobs over time: `=` work, `~` checks, `.` waiting for a node.
async fn draw(whole: &Whole, task: &str) {
    let query = "
        SELECT u.key, j.evidence_id IS NOT NULL AS checks,
            extract(epoch FROM j.queued_at - t.created_at)::float8 AS queued,
            extract(epoch FROM coalesce(j.started_at, clock_timestamp()) - t.created_at)::float8 AS started,
            extract(epoch FROM coalesce(j.ended_at, clock_timestamp()) - t.created_at)::float8 AS ended
        FROM jobs j JOIN work_units u USING (unit_id) JOIN tasks t ON t.task_id = j.task_id
        WHERE j.task_id = $1 ORDER BY j.queued_at, j.job_id";
    let rows: Vec<(String, bool, f64, f64, f64)> =
        sqlx::query_as(query).bind(raw(task)).fetch_all(&whole.world.pool).await.unwrap();
    let all = rows.iter().map(|row| row.4).fold(0.0, f64::max).max(1.0);
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss,
        reason = "columns of a drawing"
    )]
    let column = |seconds: f64| ((seconds / all * (COLUMNS - 1) as f64) as usize).min(COLUMNS - 1);
    let mut lines: Vec<(String, Vec<u8>)> = Vec::new();
    let mut at: BTreeMap<String, usize> = BTreeMap::new();
    for (key, checks, queued, started, ended) in rows {
        let line = *at.entry(key.clone()).or_insert_with(|| {
            lines.push((key, vec![b' '; COLUMNS]));
            lines.len() - 1
        });
        let (queued, started, ended) = (column(queued), column(started), column(ended));
        lines[line].1[queued..started].fill(b'.');
        lines[line].1[started..=ended].fill(if checks { b'~' } else { b'=' });
    }
    let mut drawing = String::new();
    for (key, line) in lines {
        let _ = writeln!(drawing, "{key:<14}|{}|", String::from_utf8_lossy(&line));
    }
    print!("{drawing}");
    println!("{:<14} 0 s{:>width$.1} s", "", all, width = COLUMNS - 5);
}
