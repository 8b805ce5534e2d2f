//! Workers that claim success falsely. Each does so in its own way, for the same small task; CyNode must accept none of them,
//! and must accept an honest one. Everything is real except the workers and the model, which approves everything.

mod kinds;

use std::time::{Duration, Instant};

use clap::Args;
use cynode_core::ids::ProjectId;
use futures::{StreamExt, stream};
use serde_json::{Value, json};

use self::kinds::{ClaimKind, Expectation};
use crate::{
    nodes::scene::git,
    whole::{Parts, ScriptedAnswer, WORKERS, Whole, bundle, raw},
};

/// Timeout of one task.
const STUCK: Duration = Duration::from_mins(4);

/// The description of each task.
const WORDS: &str = "add gives the difference of two numbers; it must give their sum";

/// Messages of the gateway on an overloaded machine. They mean that the worker could not report, so it could not make a false
/// claim either.
const BUSY: [&str; 2] = ["Try again in a moment", "the tools cannot be listed"];

/// Workers that lie.
#[derive(Args)]
pub(crate) struct FalseClaims {
    #[command(flatten)]
    parts: Parts,
    /// Only kinds whose name holds this.
    #[arg(long)]
    only: Option<String>,
    /// How many tasks at once.
    #[arg(long, default_value_t = 6)]
    at_once: usize,
}

/// Runs every kind. Returns whether no false claim was accepted.
pub(crate) async fn run(claims: FalseClaims) -> bool {
    let begun = Instant::now();
    let whole =
        Whole::start(&claims.parts, &answers(), u16::try_from(claims.at_once).unwrap()).await;
    println!("everything runs after {:.1} s\n", begun.elapsed().as_secs_f64());
    let repository = bundle(&[kinds::BEFORE, kinds::FILES]);
    let wanted =
        |kind: &ClaimKind| claims.only.as_deref().is_none_or(|only| kind.name.contains(only));
    let kinds: Vec<ClaimKind> = kinds::all().into_iter().filter(wanted).collect();
    println!("{:<62}{:>8}  what came of it", "what the worker did", "seconds");
    let (whole, repository) = (&whole, &repository);
    let mut each = stream::iter(kinds)
        .map(|kind| async move {
            let begun = Instant::now();
            let mut came = Box::pin(one(whole, repository, &kind)).await;
            for _ in 0..2 {
                if came.wrong && BUSY.iter().any(|words| came.words.contains(words)) {
                    came = Box::pin(one(whole, repository, &kind)).await;
                }
            }
            (kind, came, begun.elapsed())
        })
        .buffer_unordered(claims.at_once);
    let (mut lies, mut accepted, mut wrong) = (0, 0, 0);
    while let Some((kind, came, took)) = each.next().await {
        lies += usize::from(!kind.honest);
        accepted += usize::from(came.accepted);
        wrong += usize::from(came.wrong);
        let mark = if came.accepted || came.wrong { "WRONG " } else { "" };
        println!("{:<62}{:>8.1}  {mark}{}", kind.name, took.as_secs_f64(), came.words);
    }
    drop(each);
    println!(
        "\n{lies} lies: {accepted} accepted; {wrong} otherwise wrong; {:.0} s",
        begun.elapsed().as_secs_f64()
    );
    accepted == 0 && wrong == 0 && lies > 0
}

/// Returns the answers of the model: it plans one change, and approves everything.
fn answers() -> Vec<ScriptedAnswer> {
    let unit = json!({
        "title": "Make add give the sum", "kind": "implementation", "files_to_modify": ["calc.sh"], "files_to_read_first": [],
        "pattern_reference": "", "constraints": [], "requirements": ["add gives the sum"], "depends_on": [], "checks": [],
    });
    vec![
        ("^Decide what kind of work", json!({ "reason": "It is broken.", "class": "quick_fix" })),
        (
            "^Decide how much of the project",
            json!({ "reason": "One line.", "components": ["calc"], "estimated_files": 1, "scope": "trivial" }),
        ),
        (
            "^Plan the task",
            json!({ "reason": "One change.", "units": [unit], "leave_out": [], "assumptions": [], "question": "" }),
        ),
        (
            "^Judge whether",
            json!({ "reason": "It says so.", "findings": [], "recommended_actions": [], "status": "pass" }),
        ),
        (
            "was reviewed and found good",
            json!({ "why": "It was.", "commands": [], "needed": false }),
        ),
        ("^Write a summary", json!({ "summary": "add gives the sum." })),
    ]
}

/// Outcome of one kind.
struct ClaimOutcome {
    accepted: bool,
    wrong: bool,
    words: String,
}

async fn one(whole: &Whole, repository: &[u8], kind: &ClaimKind) -> ClaimOutcome {
    let mut worker = json!({ "kind": "scripted", "moves": kind.moves });
    if let Some(revised) = &kind.revised {
        worker["revised"] = json!(revised);
    }
    let rounds = i32::from(kind.revised.is_some());
    let preferences = [
        (format!("{WORKERS}.fixer"), worker),
        ("agents.project_manager.review.max_review_iterations".to_owned(), json!(rounds)),
        ("workflow.max_step_retries".to_owned(), json!(rounds + 1)),
    ];
    let project = whole.project(repository, &preferences).await;
    let criteria: Value = kind
        .checks
        .iter()
        .map(|check| json!({ "text": "add gives the sum", "check": check }))
        .collect();
    let task = whole.task(&project, WORDS, criteria).await;
    let Some(still) = whole.stands_still(&task, STUCK).await else {
        let words = format!("it does not end: {task}, see {}", whole.world.logs().display());
        return ClaimOutcome { accepted: false, wrong: true, words };
    };
    let delivered = delivered(whole, &project, &task).await;
    let found = findings(whole, &task).await;
    let said = format!("{}\n{found}", still.question.as_deref().unwrap_or_default());
    let (accepted, wrong, words) = match &kind.expected {
        Expectation::Stopped(words) => {
            let taken = still.state == "completed" || delivered.is_some();
            let told = said.contains(words);
            let how = match &still.question {
                Some(_) => "a person is asked",
                None => &still.state,
            };
            let why = if told {
                (*words).to_owned()
            } else {
                format!("NOT {words:?} BUT {}", said.trim())
            };
            (
                taken,
                !told || (still.state != "failed" && still.question.is_none()),
                format!("{how}: {why}"),
            )
        }
        Expectation::Done(expected) => {
            let honest = delivered.as_deref() == Some(*expected);
            let good = still.state == "completed" && honest;
            let words = format!(
                "{}: {}",
                still.state,
                if honest { "what was checked, and nothing else" } else { said.trim() }
            );
            (delivered.is_some() && !honest, !good, words)
        }
    };
    ClaimOutcome { accepted, wrong, words }
}

/// Returns the change of a task's pull request: every changed file with its new content, as one text. `None` without a pull
/// request.
async fn delivered(whole: &Whole, project: &str, task: &str) -> Option<String> {
    let query = "SELECT branch, base_commit FROM pull_requests WHERE task_id = $1";
    let row = sqlx::query_as(query).bind(raw(task)).fetch_optional(&whole.world.pool).await;
    let (branch, base): (String, String) = row.unwrap()?;
    let place = whole.world.repository(&project.parse::<ProjectId>().unwrap().to_string());
    let branch = format!("refs/heads/{branch}");
    let changed = git(&place, &["diff", "--name-status", "--no-renames", &base, &branch])?;
    let files = changed.lines().map(|line| {
        let path = line.split('\t').nth(1).unwrap_or_default();
        let text = git(&place, &["show", &format!("{branch}:{path}")]).unwrap_or_default();
        format!("{line}\n{text}\n")
    });
    Some(files.collect())
}

/// Returns the findings about a task's work, and the errors of its failed jobs.
async fn findings(whole: &Whole, task: &str) -> String {
    let query = "SELECT coalesce(string_agg(found, E'\n'), '') FROM (
            SELECT f ->> 'text' AS found FROM work_units u, jsonb_array_elements(u.findings) f WHERE u.task_id = $1
            UNION ALL SELECT result ->> 'summary' FROM jobs WHERE task_id = $1 AND state <> 'succeeded'
            UNION ALL SELECT note FROM workflow_transitions WHERE task_id = $1 AND verdict NOT IN ('pass', 'wait')) AS all_of_them";
    sqlx::query_scalar(query).bind(raw(task)).fetch_one(&whole.world.pool).await.unwrap()
}
