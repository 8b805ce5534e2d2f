//! Every path of the review loop in a real installation: verdicts, next steps and end state, as a table.

use std::{fmt::Write as _, fs, path::PathBuf, time::Duration};

use clap::Args;
use serde_json::{Value, json};

use super::{
    Manager,
    stage::{Stage, bundle},
};

/// Every path of the review loop.
#[derive(Args)]
pub(crate) struct Review {
    #[command(flatten)]
    manager: Manager,
    /// The page that has the table.
    #[arg(long)]
    page: PathBuf,
    /// Writes the table into the page instead of comparing.
    #[arg(long)]
    write: bool,
}

const BEGIN: &str = "<!-- paths: begin -->\n";
const END: &str = "<!-- paths: end -->";
const OPTIONS: &str = "agents.project_manager.review";
const PATH_TIMEOUT: Duration = Duration::from_mins(4);

/// Verdict of a reviewer or tester in one round.
#[derive(Clone, Copy)]
enum Says {
    Good,
    Critical,
    Major,
    Minor,
    Failing,
}

impl Says {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Good => "good",
            Self::Critical => "critical",
            Self::Major => "major",
            Self::Minor => "minor",
            Self::Failing => "failing",
        }
    }

    /// Returns it as a move of a scripted agent.
    fn reports(self, tester: bool) -> Value {
        let issue = json!([{ "description": "the name is not quoted", "file_location": "greet.sh:2",
            "how_to_fix": "quote it" }]);
        let (kind, details) = match (self, tester) {
            (Self::Good, true) => {
                ("tests_passed", json!({ "passed": 1, "failed": 0, "command": "sh check.sh" }))
            }
            (_, true) => (
                "tests_failed",
                json!({ "passed": 0, "failed": 1, "command": "sh check.sh", "failures": ["greets by name"] }),
            ),
            (Self::Good, false) => ("review_approved", json!({ "summary": "it is good" })),
            (Self::Critical, false) => (
                "review_changes_requested",
                json!({ "critical_issues": issue, "summary": "it is not good" }),
            ),
            (Self::Major | Self::Failing, false) => (
                "review_changes_requested",
                json!({ "major_issues": issue, "summary": "it is not good" }),
            ),
            (Self::Minor, false) => (
                "review_changes_requested",
                json!({ "minor_issues": issue, "summary": "it could be better" }),
            ),
        };
        json!({ "move": "tool", "name": "pm.report",
            "arguments": { "kind": kind, "summary": self.as_str(), "details": details } })
    }
}

/// One path.
struct ReviewCase {
    name: &'static str,
    /// Verdicts of the reviewer by round; the last one repeats.
    reviews: &'static [Says],
    /// Verdicts of the tester by round; empty if no tests are requested.
    tests: &'static [Says],
    /// Whether the checks of the developer's first and later attempts pass.
    holds: (bool, bool),
    options: &'static [(&'static str, &'static str)],
    /// The person's answer, if a person is asked.
    answer: Option<&'static str>,
}

const fn case(name: &'static str, reviews: &'static [Says]) -> ReviewCase {
    ReviewCase { name, reviews, tests: &[], holds: (true, true), options: &[], answer: None }
}

fn cases() -> Vec<ReviewCase> {
    use Says::{Critical, Failing, Good, Major, Minor};
    vec![
        case("passes first", &[Good]),
        case("passes second", &[Major, Good]),
        case("passes third", &[Critical, Major, Good]),
        case("fails always, majors only: goes on with the issues noted", &[Major]),
        ReviewCase {
            answer: Some("stop"),
            ..case("fails always, critical: a person is asked and gives it up", &[Critical])
        },
        ReviewCase {
            answer: Some("proceed"),
            ..case("fails always, critical: a person is asked and takes it", &[Critical])
        },
        ReviewCase {
            options: &[("on_limit", "\"escalate\"")],
            answer: Some("stop"),
            ..case("fails always, policy escalate", &[Major])
        },
        ReviewCase {
            options: &[("on_limit", "\"proceed\"")],
            ..case("fails always, critical, policy proceed", &[Critical])
        },
        ReviewCase {
            options: &[("max_review_iterations", "0")],
            ..case("fails, no revision allowed", &[Major])
        },
        case("minor issues only", &[Minor]),
        ReviewCase {
            options: &[("skip_minor_issues", "false")],
            ..case("minor issues only, and they count", &[Minor, Good])
        },
        ReviewCase { tests: &[Failing, Good], ..case("review good, tests fail once", &[Good]) },
        ReviewCase {
            tests: &[Failing],
            answer: Some("stop"),
            ..case("review good, tests fail always", &[Good])
        },
        ReviewCase {
            tests: &[Failing],
            options: &[("require_tests_pass", "false")],
            ..case("review good, tests fail and need not pass", &[Good])
        },
        ReviewCase {
            tests: &[Good],
            ..case("reviewer and tester disagree: changes wanted, then tests pass", &[Major, Good])
        },
        ReviewCase { holds: (false, true), ..case("evidence fails once", &[Good]) },
        ReviewCase {
            holds: (false, false),
            answer: Some("stop"),
            ..case("evidence fails always", &[Good])
        },
        ReviewCase {
            holds: (false, false),
            options: &[("require_tests_pass", "false")],
            ..case("evidence fails and need not hold", &[Good])
        },
    ]
}

/// Repeats the last verdict for every round that follows.
fn by_round(says: &[Says], tester: bool) -> Value {
    let mut chosen = json!([says[0].reports(tester)]);
    for (round, next) in says.iter().enumerate().skip(1) {
        chosen = json!([{ "move": "when", "path": format!("round-{round}"), "moves": [next.reports(tester)],
            "otherwise": chosen }]);
    }
    chosen
}

fn scripted(moves: &Value, revised: Option<Value>) -> Value {
    let mut worker = json!({ "kind": "scripted", "moves": moves });
    if let Some(revised) = revised {
        worker["revised"] = revised;
    }
    worker
}

/// Returns the script of each agent of a path.
fn workers(case: &ReviewCase) -> Vec<(&'static str, Value)> {
    let writes = |holds: bool, mark: &str| {
        let text = if holds { "echo \"hello $1\"" } else { "echo \"hi $1\"" };
        json!([{ "move": "write", "path": "greet.sh", "text": format!("#!/bin/sh\n# {mark}\n{text}\n") },
            { "move": "say", "text": "done" }])
    };
    let mended = "n=$(ls round-* 2>/dev/null | wc -l); echo mended > round-$((n + 1))";
    let mut all = vec![
        (
            "developer",
            scripted(&writes(case.holds.0, "first"), Some(writes(case.holds.1, "again"))),
        ),
        ("fixer", scripted(&json!([{ "move": "run", "argv": ["sh", "-c", mended] }]), None)),
        ("reviewer", scripted(&by_round(case.reviews, false), None)),
    ];
    if !case.tests.is_empty() {
        all.push(("tester", scripted(&by_round(case.tests, true), None)));
    }
    all
}

/// Outcome of a path.
struct Gone {
    steps: Vec<String>,
    end: String,
}

pub(crate) async fn run(review: Review) -> bool {
    let mut stage = Stage::new(&review.manager).await;
    let brought = bundle(&review.manager.sample.join("repository"));
    let all = cases();
    let mut tasks = Vec::new();
    for case in &all {
        tasks.push(begin(&stage, case, brought.clone()).await);
    }
    let (mut table, mut good) = (String::new(), true);
    writeln!(table, "| path | review | tests | what followed | end |\n|---|---|---|---|---|")
        .unwrap();
    for (case, task) in all.iter().zip(&tasks) {
        let Some(gone) = follow(&stage, case, task).await else {
            println!("WRONG  {}: it does not end (X-18)", case.name);
            good = false;
            continue;
        };
        let said = |says: &[Says]| says.iter().map(|it| it.as_str()).collect::<Vec<_>>().join(", ");
        let line = format!(
            "| {} | {} | {} | {} | {} |",
            case.name,
            said(case.reviews),
            said(case.tests),
            gone.steps.join(" → "),
            gone.end
        );
        println!("{line}");
        writeln!(table, "{line}").unwrap();
    }
    good &= compared(&review, &table);
    if good {
        stage.world.keep_not();
    }
    good
}

async fn begin(stage: &Stage, case: &ReviewCase, brought: Vec<u8>) -> String {
    let world = &stage.world;
    let project = world.project().await;
    world.bring(&project, brought).await;
    let scope = format!("scope_type=project&scope_id={project}");
    for (role, worker) in workers(case) {
        let body = json!({ "value": worker, "expected_version": 0 });
        world
            .put(&format!("/v1/preferences/agents.project_manager.workers.{role}?{scope}"), &body)
            .await;
    }
    for (name, value) in case.options {
        let value: Value = serde_json::from_str(value).unwrap();
        let body = json!({ "value": value, "expected_version": 0 });
        world.put(&format!("/v1/preferences/{OPTIONS}.{name}?{scope}"), &body).await;
    }
    let words =
        if case.tests.is_empty() { "Greet by name" } else { "Greet by name, and try it out" };
    let checked = json!([{ "text": "it greets by name", "check": { "argv": ["sh", "check.sh"] } }]);
    // If only the tester's verdict is negative, the check itself passes.
    let body =
        json!({ "project_id": project, "description": words, "acceptance_criteria": checked });
    world.post("/v1/tasks", body).await["id"].as_str().unwrap().to_owned()
}

/// Waits until a path has ended, and answers its questions.
async fn follow(stage: &Stage, case: &ReviewCase, task: &str) -> Option<Gone> {
    let (world, begun) = (&stage.world, std::time::Instant::now());
    let mut asked = None;
    loop {
        let timeline = world.get(&format!("/v1/tasks/{task}/timeline")).await;
        let open = timeline["waits"].as_array().into_iter().flatten();
        let mut open =
            open.filter(|wait| wait["resolved_at"].is_null() && wait["reason"] == "human_input");
        let open = open.next_back();
        if let (Some(wait), Some(answer)) = (open, case.answer)
            && asked.is_none()
        {
            asked = Some(
                wait["question"]
                    .as_str()
                    .unwrap_or_default()
                    .lines()
                    .next()
                    .unwrap_or_default()
                    .to_owned(),
            );
            world.post(&format!("/v1/tasks/{task}/answer"), json!({ "text": answer })).await;
        }
        let state = timeline["state"].as_str().unwrap_or_default().to_owned();
        if matches!(state.as_str(), "completed" | "failed" | "cancelled") {
            return Some(Gone {
                steps: steps(&timeline, asked, case.answer),
                end: describe_end(stage, task, &state).await,
            });
        }
        if begun.elapsed() > PATH_TIMEOUT {
            println!("{timeline:#}");
            return None;
        }
        cynode_testkit::pause(Duration::from_millis(50)).await;
    }
}

/// Returns the verdicts in order.
fn steps(timeline: &Value, asked: Option<String>, answer: Option<&str>) -> Vec<String> {
    let verify = timeline["steps"].as_array().into_iter().flatten();
    let judged =
        verify.filter(|step| step["node"] == "verify_step_result" && step["verdict"] != "wait");
    let mut all: Vec<String> = judged
        .map(|step| {
            let unit = step["unit"].as_str().or(step["unit_key"].as_str()).unwrap_or_default();
            format!("{unit}: {}", step["verdict"].as_str().unwrap_or_default())
        })
        .collect();
    if let (Some(question), Some(answer)) = (asked, answer) {
        let at = all.len().saturating_sub(1);
        all.insert(at, format!("asks \"{question}\", told \"{answer}\""));
    }
    all
}

async fn describe_end(stage: &Stage, task: &str, state: &str) -> String {
    let view = stage.world.get(&format!("/v1/tasks/{task}")).await;
    let project = view["project_id"].as_str().unwrap();
    let offered = stage.list(&format!("/v1/projects/{project}/pull-requests")).await;
    let noted = stage.world.get(&format!("/v1/tasks/{task}/evidence")).await;
    let count = |severity: &str| noted["feedback"][severity].as_array().map_or(0, Vec::len);
    let issues = format!(
        "{} critical, {} major, {} minor",
        count("critical_issues"),
        count("major_issues"),
        count("minor_issues")
    );
    match offered.as_slice() {
        [] => format!("{state}, no pull request"),
        [one] => format!(
            "{state}, pull request {}; noted: {issues}",
            one["state"].as_str().unwrap_or_default()
        ),
        several => format!("{state}, {} pull requests", several.len()),
    }
}

/// Compares the table with the page, or writes it there.
fn compared(review: &Review, table: &str) -> bool {
    let page = fs::read_to_string(&review.page).unwrap();
    let (head, rest) = page.split_once(BEGIN).expect("the page has a place for the table");
    let (there, tail) = rest.split_once(END).expect("the place for the table ends");
    if review.write {
        fs::write(&review.page, format!("{head}{BEGIN}{table}{END}{tail}")).unwrap();
        return true;
    }
    let same = there == table;
    println!(
        "{}     the table of {} says the same (S004-108, S004-109, S004-110, S004-115, S004-116, S004-117, S004-119, X-18)",
        if same { "ok   " } else { "WRONG" },
        review.page.display()
    );
    same
}
