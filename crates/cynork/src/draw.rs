//! Text rendering: a plan as a tree, evidence as a table, a timeline as a list. Pure.

mod change;
mod given_context;
mod job;
mod live;
mod spending;

use cynode_core::{
    evidence::{CheckTally, base::BaseOutcome},
    workflow::{
        evidence::{BaseChecks, CheckResult, EvidenceState, EvidenceView},
        plan::{Plan, UnitKey},
        reports::ReportView,
        timeline::{LeaseTakeover, StepEntry},
        units::{UnitState, UnitView},
    },
};
use cynode_wire::workflow::timeline::TaskTimeline;
use serde_json::Value;
use time::OffsetDateTime;

pub use self::{
    change::{mark_header_lines, render_changed_files, render_diff, render_findings},
    given_context::{describe_given, render_given_rows},
    job::{render_job_event, render_job_highlight},
    live::{TaskProgress, describe_standing, describe_wait, render_progress, render_stalls},
    spending::{format_money, render_bar, render_spending, render_task_cost, sum_cost_micros},
};
pub use crate::format::format_amount;
use crate::terminal::{
    Colorizer, TextStyle, escape_for_terminal, first_line, format_clock, sanitize_text,
    truncate_to_width,
};

/// Maximum length of a step's note.
const MAX_NOTE_COLUMNS: usize = 220;

/// Maximum number of output lines of a check.
const MAX_EXCERPT_LINES: usize = 6;

/// Maximum number of names of each list of tests.
const MAX_NAMED_TESTS: usize = 5;

/// Renders a plan: each unit below its dependencies, with its criteria and checks.
pub fn render_plan(plan: &Plan, paint: Colorizer) -> Vec<String> {
    render_plan_status(plan, &[], paint)
}

/// Renders a plan with the states of its units.
pub fn render_plan_status(plan: &Plan, units: &[UnitView], paint: Colorizer) -> Vec<String> {
    let leaves: Vec<PlanTreeItem> = plan
        .planned_units()
        .iter()
        .map(|unit| PlanTreeItem {
            key: unit.key.as_str().to_owned(),
            title: first_line(unit.title.as_str()),
            after: unit_key_names(&unit.depends_on),
            state: units.iter().find(|it| it.key == unit.key).map(|it| (it.state, it.attempts)),
            notes: unit_notes(&unit.payload),
        })
        .collect();
    let mut lines = Vec::new();
    render_subtree(&leaves, None, "", paint, &mut lines);
    for assumption in plan.assumptions() {
        let assumption = escape_for_terminal(assumption.as_str()).replace('\n', " ");
        lines.push(paint.apply_style(TextStyle::Dim, &format!("assumed: {assumption}")));
    }
    lines
}

/// Renders the units of a plan of which nothing more is known.
pub fn render_units(units: &[UnitView], paint: Colorizer) -> Vec<String> {
    let leaf = |unit: &UnitView| PlanTreeItem {
        key: unit.key.as_str().to_owned(),
        title: first_line(unit.title.as_str()),
        after: unit_key_names(&unit.depends_on),
        state: Some((unit.state, unit.attempts)),
        notes: Vec::new(),
    };
    let leaves: Vec<PlanTreeItem> = units.iter().map(leaf).collect();
    let mut lines = Vec::new();
    render_subtree(&leaves, None, "", paint, &mut lines);
    lines
}

fn unit_key_names(keys: &[UnitKey]) -> Vec<String> {
    keys.iter().map(|key| key.as_str().to_owned()).collect()
}

/// One unit in the tree.
struct PlanTreeItem {
    key: String,
    title: String,
    after: Vec<String>,
    state: Option<(UnitState, u32)>,
    notes: Vec<(&'static str, String)>,
}

/// Renders the units whose last dependency is `parent`, and their dependents.
fn render_subtree(
    units: &[PlanTreeItem],
    parent: Option<&str>,
    indent: &str,
    paint: Colorizer,
    lines: &mut Vec<String>,
) {
    let below = |unit: &&PlanTreeItem| unit.after.last().map(String::as_str) == parent;
    let here: Vec<&PlanTreeItem> = units.iter().filter(below).collect();
    for (at, unit) in here.iter().enumerate() {
        let last = at + 1 == here.len();
        let (mark, rest) = if last { ("└─ ", "   ") } else { ("├─ ", "│  ") };
        let mut line = format!("{indent}{mark}{}", paint.apply_style(TextStyle::Bold, &unit.title));
        if let Some((state, attempts)) = unit.state {
            let (sign, style) = unit_state_mark(state);
            let tried = if attempts > 1 { format!(", attempt {attempts}") } else { String::new() };
            let word = paint.apply_style(style, &format!("{sign} {}{tried}", state.as_str()));
            line.push_str("  ");
            line.push_str(&word);
        }
        lines.push(line);
        let inner = format!("{indent}{rest}");
        let children = units.iter().any(|it| it.after.last() == Some(&unit.key));
        let bar = if children { "│  " } else { "   " };
        for (name, text) in &unit.notes {
            lines.push(format!(
                "{inner}{bar}{} {text}",
                paint.apply_style(TextStyle::Dim, &format!("{name:<6}"))
            ));
        }
        render_subtree(units, Some(&unit.key), &inner, paint, lines);
    }
}

/// Returns the mark and style of a unit's state.
const fn unit_state_mark(state: UnitState) -> (&'static str, TextStyle) {
    match state {
        UnitState::Pending => ("·", TextStyle::Dim),
        UnitState::Dispatched => ("▶", TextStyle::Cyan),
        UnitState::Collected => ("◆", TextStyle::Yellow),
        UnitState::Done => ("✓", TextStyle::Green),
        UnitState::Failed => ("✗", TextStyle::Red),
        UnitState::Cancelled => ("–", TextStyle::Dim),
    }
}

/// Returns the details of a unit that are relevant to people.
fn unit_notes(payload: &Value) -> Vec<(&'static str, String)> {
    let texts = |value: &Value| -> Vec<String> {
        let texts = value.as_array().into_iter().flatten();
        texts
            .filter_map(|text| text.as_str().map(|it| escape_for_terminal(it).replace('\n', " ")))
            .collect()
    };
    let mut notes = Vec::new();
    if let Some(kind) = payload["kind"].as_str() {
        notes.push(("kind", first_line(kind)));
    }
    let files = texts(&payload["brief"]["files_to_modify"]);
    if !files.is_empty() {
        notes.push(("files", files.join(", ")));
    }
    if payload["kind"] != "review" {
        notes.extend(texts(&payload["brief"]["requirements"]).into_iter().map(|it| ("must", it)));
    }
    for check in payload["checks"].as_array().into_iter().flatten() {
        if let Ok(check) =
            serde_json::from_value::<cynode_core::evidence::EvidenceCheck>(check.clone())
        {
            notes.push(("check", escape_for_terminal(&check.command_line()).replace('\n', " ")));
        }
    }
    notes
}

/// Renders the results of the checks before any change, and the fix for those that cannot run.
pub fn render_base_checks(base: &BaseChecks, paint: Colorizer) -> Vec<String> {
    let commit = base.commit.as_deref().map_or("none", |commit| &commit[..commit.len().min(10)]);
    let mut lines = vec![format!("checks before any change, commit {commit}:")];
    if base.state == EvidenceState::Gathering {
        lines.push(paint.apply_style(TextStyle::Dim, "  they are being tried"));
    }
    for result in &base.checks {
        let (mark, style) = match result.outcome {
            BaseOutcome::Passes => ("✓", TextStyle::Green),
            BaseOutcome::Fails => ("·", TextStyle::Yellow),
            BaseOutcome::CannotRun => ("✗", TextStyle::Red),
            BaseOutcome::TimedOut | BaseOutcome::NotTried => ("…", TextStyle::Dim),
        };
        lines.push(format!(
            "  {} {}",
            paint.apply_style(style, mark),
            first_line(&result.describe_result())
        ));
    }
    let error = base.error.iter().map(|_| first_line(&base.summary_line()));
    lines.extend(error.map(|why| format!("  {}", paint.apply_style(TextStyle::Yellow, &why))));
    lines
}

/// Renders the check results of one commit.
pub fn render_evidence(view: &EvidenceView, paint: Colorizer) -> Vec<String> {
    let commit = view.commit.as_deref().map_or("none", |commit| &commit[..commit.len().min(10)]);
    let mut lines = vec![format!(
        "evidence for attempt {} of {}, commit {commit}: {}",
        view.attempt,
        view.unit,
        view.state.as_str()
    )];
    let width = view.checks.iter().map(|it| check_label(it).chars().count()).max().unwrap_or(0);
    for result in &view.checks {
        lines.push(render_check_row(result, width, paint));
        lines.extend(render_tests(result, paint));
        if !result.tally.is_good() {
            let words = sanitize_text(&result.excerpt);
            let shown: Vec<&str> = words.lines().filter(|it| !it.is_empty()).collect();
            let from = shown.len().saturating_sub(MAX_EXCERPT_LINES);
            let shown = shown[from..].iter();
            lines.extend(
                shown.map(|line| paint.apply_style(TextStyle::Dim, &format!("      {line}"))),
            );
        }
    }
    for (word, why) in [("", &view.error), ("taken though: ", &view.waived)] {
        let why = why.iter().map(|why| format!("{word}{}", first_line(why)));
        lines.extend(why.map(|why| format!("  {}", paint.apply_style(TextStyle::Yellow, &why))));
    }
    lines
}

/// Renders the results per test: a summary, and the first names of each list.
fn render_tests(result: &CheckResult, paint: Colorizer) -> Vec<String> {
    let Some(tests) = &result.tests else { return Vec::new() };
    let mut lines = vec![format!("      tests: {}", tests.summary_line())];
    let lists = tests.describe_lists(MAX_NAMED_TESTS);
    let lists = lists.iter().map(|list| format!("      {}", first_line(list)));
    lines.extend(lists.map(|line| {
        let line = truncate_to_width(&line, MAX_NOTE_COLUMNS);
        paint.apply_style(TextStyle::Dim, &line)
    }));
    lines
}

fn check_label(result: &CheckResult) -> String {
    first_line(&result.check.command_line())
}

fn render_check_row(result: &CheckResult, width: usize, paint: Colorizer) -> String {
    let (mark, word, style) = match result.tally {
        CheckTally::Passed => ("✓", "passed", TextStyle::Green),
        CheckTally::Flaky => ("~", "flaky", TextStyle::Yellow),
        CheckTally::Before => ("~", "before", TextStyle::Yellow),
        CheckTally::Failed => ("✗", "failed", TextStyle::Red),
        CheckTally::Again => ("…", "runs", TextStyle::Dim),
    };
    let exit = result.exit_code.map_or("ended".to_owned(), |code| format!("exit {code}"));
    let (told, rounds) = (check_label(result), result.rounds);
    let runs = if rounds == 1 { String::new() } else { format!(", {rounds} runs") };
    let word = paint.apply_style(style, &format!("{mark} {word:<6}"));
    format!("  {word}  {told:<width$}  {exit}, {} ms{runs}", result.milliseconds)
}

/// Renders the steps, without those that only waited, and where another process went on.
pub fn render_timeline(timeline: &TaskTimeline, paint: Colorizer) -> Vec<String> {
    let Some(first) = timeline.steps.first().map(|step| step.at) else { return Vec::new() };
    let after = |at: OffsetDateTime| {
        format_clock(std::time::Duration::try_from(at - first).unwrap_or_default())
    };
    let steps = timeline.steps.iter().filter(|step| step.verdict != "wait");
    let steps = steps.map(|step| (step.at, render_step(step, &after(step.at), paint)));
    let takeovers = timeline.takeovers.iter().map(|takeover| {
        let (taken, seen) = (after(takeover.taken_at), after(takeover.previous_seen_at));
        (takeover.taken_at, render_takeover(takeover, &taken, &seen, paint))
    });
    let mut lines: Vec<(OffsetDateTime, String)> = steps.chain(takeovers).collect();
    lines.sort_by_key(|(at, _)| *at);
    lines.into_iter().map(|(_, line)| line).collect()
}

fn render_takeover(takeover: &LeaseTakeover, taken: &str, seen: &str, paint: Colorizer) -> String {
    let ended = paint.apply_style(TextStyle::Yellow, takeover.ended_by.as_str());
    let next = name_process(&takeover.holder, takeover.instance.as_deref());
    let previous = name_process(&takeover.previous_holder, takeover.previous_instance.as_deref());
    format!(
        "{taken:>5}  takeover           {ended} {next} after {previous}, last heard of at {seen}"
    )
}

fn name_process(holder: &str, instance: Option<&str>) -> String {
    let process: String = instance.unwrap_or_default().chars().take(8).collect();
    first_line(&format!("{holder} {process}")).trim_end().to_owned()
}

/// Returns the label of a workflow step; the wire name if it is unknown.
pub fn step_label(name: &str) -> String {
    let words = match name {
        "load_task_context" => "read the task",
        "plan_steps" => "plan",
        "dispatch_step" => "start work",
        "collect_result" => "wait for work",
        "verify_step_result" => "check work",
        "finalize_summary" => "sum up",
        "mark_failed" => "give up",
        other => return other.replace('_', " "),
    };
    words.to_owned()
}

fn render_step(step: &StepEntry, after: &str, paint: Colorizer) -> String {
    let style = match step.verdict.as_str() {
        "pass" | "done" => TextStyle::Green,
        "fail" => TextStyle::Red,
        _ => TextStyle::Yellow,
    };
    let verdict = paint.apply_style(style, &format!("{:<6}", step.verdict));
    let about = step.unit.as_deref().unwrap_or_default();
    let note =
        truncate_to_width(&first_line(step.note.as_deref().unwrap_or_default()), MAX_NOTE_COLUMNS);
    let note = note.trim_end_matches(':');
    let line = format!("{after:>5}  {:<18} {verdict} {about}  {note}", step_label(&step.node));
    line.trim_end().to_owned()
}

/// Renders the reports of agents, each with its details.
pub fn render_reports(reports: &[ReportView], paint: Colorizer) -> Vec<String> {
    let mut lines = Vec::new();
    for report in reports {
        let role = paint.apply_style(TextStyle::Cyan, report.agent_role.as_str());
        let unit = report.unit.as_deref().map(|unit| format!(" about {}", first_line(unit)));
        let unit = unit.unwrap_or_default();
        let kind = paint.apply_style(TextStyle::Bold, report.kind.as_str());
        lines.push(format!("{role}{unit}  {kind}"));
        lines.extend(escape_for_terminal(&report.summary).lines().map(|line| format!("  {line}")));
    }
    lines
}

#[cfg(test)]
mod tests;
