//! Drawings of what there is to see: a plan as a tree, evidence as a table, what happened as a list. Pure.

mod change;
mod job;
mod live;
mod spending;

use cynode_core::{
    evidence::Tally,
    workflow::{
        plan::{Plan, UnitKey},
        units::UnitState,
    },
};
use cynode_wire::{
    evidence::{CheckResult, EvidenceView},
    reports::ReportView,
    timeline::{StepEntry, Timeline},
    workflow::UnitView,
};
use serde_json::Value;

pub use self::{
    change::{diff, files, findings, headed},
    job::{happened, said},
    live::{Live, live, stands, waits_for},
    spending::{bar, cost, money, spent},
};
use crate::terminal::{Paint, Style, clean, clock, first_line, fit, shown};

/// How much of the note of a step is shown.
const NOTE: usize = 220;

/// Most lines of what a check wrote.
const LINES: usize = 6;

/// A plan: each unit below what it waits for, with what must hold and what shows it.
pub fn plan(plan: &Plan, paint: Paint) -> Vec<String> {
    planned(plan, &[], paint)
}

/// A plan and where its units stand.
pub fn planned(plan: &Plan, units: &[UnitView], paint: Paint) -> Vec<String> {
    let leaves: Vec<Leaf> = plan
        .steps()
        .iter()
        .map(|unit| Leaf {
            key: unit.key.as_str().to_owned(),
            title: first_line(unit.title.as_str()),
            after: names(&unit.depends_on),
            state: units.iter().find(|it| it.key == unit.key).map(|it| (it.state, it.attempts)),
            notes: notes(&unit.payload),
        })
        .collect();
    let mut lines = Vec::new();
    branch(&leaves, None, "", paint, &mut lines);
    for assumption in plan.assumptions() {
        let assumption = shown(assumption.as_str()).replace('\n', " ");
        lines.push(paint.dye(Style::Dim, &format!("assumed: {assumption}")));
    }
    lines
}

/// The units of a plan, where nothing more is known of it.
pub fn units(units: &[UnitView], paint: Paint) -> Vec<String> {
    let leaf = |unit: &UnitView| Leaf {
        key: unit.key.as_str().to_owned(),
        title: first_line(unit.title.as_str()),
        after: names(&unit.depends_on),
        state: Some((unit.state, unit.attempts)),
        notes: Vec::new(),
    };
    let leaves: Vec<Leaf> = units.iter().map(leaf).collect();
    let mut lines = Vec::new();
    branch(&leaves, None, "", paint, &mut lines);
    lines
}

fn names(keys: &[UnitKey]) -> Vec<String> {
    keys.iter().map(|key| key.as_str().to_owned()).collect()
}

/// One unit as it is drawn.
struct Leaf {
    key: String,
    title: String,
    after: Vec<String>,
    state: Option<(UnitState, u32)>,
    notes: Vec<(&'static str, String)>,
}

/// Draws the units that wait for `parent` last, and what waits for them.
fn branch(
    units: &[Leaf],
    parent: Option<&str>,
    indent: &str,
    paint: Paint,
    lines: &mut Vec<String>,
) {
    let below = |unit: &&Leaf| unit.after.last().map(String::as_str) == parent;
    let here: Vec<&Leaf> = units.iter().filter(below).collect();
    for (at, unit) in here.iter().enumerate() {
        let last = at + 1 == here.len();
        let (mark, rest) = if last { ("└─ ", "   ") } else { ("├─ ", "│  ") };
        let mut line = format!("{indent}{mark}{}", paint.dye(Style::Bold, &unit.title));
        if let Some((state, attempts)) = unit.state {
            let (sign, style) = standing(state);
            let tried = if attempts > 1 { format!(", attempt {attempts}") } else { String::new() };
            let word = paint.dye(style, &format!("{sign} {}{tried}", state.as_str()));
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
                paint.dye(Style::Dim, &format!("{name:<6}"))
            ));
        }
        branch(units, Some(&unit.key), &inner, paint, lines);
    }
}

/// How the state of a unit is marked.
const fn standing(state: UnitState) -> (&'static str, Style) {
    match state {
        UnitState::Pending => ("·", Style::Dim),
        UnitState::Dispatched => ("▶", Style::Cyan),
        UnitState::Collected => ("◆", Style::Yellow),
        UnitState::Done => ("✓", Style::Green),
        UnitState::Failed => ("✗", Style::Red),
        UnitState::Cancelled => ("–", Style::Dim),
    }
}

/// What the plan says of a unit, as far as people want to see it.
fn notes(payload: &Value) -> Vec<(&'static str, String)> {
    let texts = |value: &Value| -> Vec<String> {
        let texts = value.as_array().into_iter().flatten();
        texts.filter_map(|text| text.as_str().map(|it| shown(it).replace('\n', " "))).collect()
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
        if let Ok(check) = serde_json::from_value::<cynode_core::evidence::Check>(check.clone()) {
            notes.push(("check", shown(&check.told()).replace('\n', " ")));
        }
    }
    notes
}

/// What the checks of one commit came to.
pub fn evidence(view: &EvidenceView, paint: Paint) -> Vec<String> {
    let commit = view.commit.as_deref().map_or("none", |commit| &commit[..commit.len().min(10)]);
    let mut lines = vec![format!(
        "evidence for attempt {} of {}, commit {commit}: {}",
        view.attempt,
        view.unit,
        view.state.as_str()
    )];
    let width = view.checks.iter().map(|it| told(it).chars().count()).max().unwrap_or(0);
    for result in &view.checks {
        lines.push(row(result, width, paint));
        if !result.tally.is_good() {
            let words = clean(&result.excerpt);
            let shown: Vec<&str> = words.lines().filter(|it| !it.is_empty()).collect();
            let from = shown.len().saturating_sub(LINES);
            let shown = shown[from..].iter();
            lines.extend(shown.map(|line| paint.dye(Style::Dim, &format!("      {line}"))));
        }
    }
    for (word, why) in [("", &view.trouble), ("taken though: ", &view.waived)] {
        let why = why.iter().map(|why| format!("{word}{}", first_line(why)));
        lines.extend(why.map(|why| format!("  {}", paint.dye(Style::Yellow, &why))));
    }
    lines
}

fn told(result: &CheckResult) -> String {
    first_line(&result.check.told())
}

fn row(result: &CheckResult, width: usize, paint: Paint) -> String {
    let (mark, word, style) = match result.tally {
        Tally::Passed => ("✓", "passed", Style::Green),
        Tally::Flaky => ("~", "flaky", Style::Yellow),
        Tally::Before => ("~", "before", Style::Yellow),
        Tally::Failed => ("✗", "failed", Style::Red),
        Tally::Again => ("…", "runs", Style::Dim),
    };
    let exit = result.exit_code.map_or("ended".to_owned(), |code| format!("exit {code}"));
    let (told, rounds) = (told(result), result.rounds);
    let runs = if rounds == 1 { String::new() } else { format!(", {rounds} runs") };
    let word = paint.dye(style, &format!("{mark} {word:<6}"));
    format!("  {word}  {told:<width$}  {exit}, {} ms{runs}", result.milliseconds)
}

/// What happened, step by step, without those that only waited.
pub fn timeline(timeline: &Timeline, paint: Paint) -> Vec<String> {
    let Some(first) = timeline.steps.first().map(|step| step.at) else { return Vec::new() };
    let told = timeline.steps.iter().filter(|step| step.verdict != "wait");
    let told = told.map(|step| {
        let after = std::time::Duration::try_from(step.at - first).unwrap_or_default();
        one_step(step, &clock(after), paint)
    });
    told.collect()
}

fn one_step(step: &StepEntry, after: &str, paint: Paint) -> String {
    let style = match step.verdict.as_str() {
        "pass" | "done" => Style::Green,
        "fail" => Style::Red,
        _ => Style::Yellow,
    };
    let verdict = paint.dye(style, &format!("{:<6}", step.verdict));
    let about = step.unit.as_deref().unwrap_or_default();
    let note = fit(&first_line(step.note.as_deref().unwrap_or_default()), NOTE);
    let note = note.trim_end_matches(':');
    let line = format!("{after:>5}  {:<18} {verdict} {about}  {note}", step.node);
    line.trim_end().to_owned()
}

/// What agents reported, each with what goes with it.
pub fn reports(reports: &[ReportView], paint: Paint) -> Vec<String> {
    let mut lines = Vec::new();
    for report in reports {
        let role = paint.dye(Style::Cyan, report.agent_role.as_str());
        let unit = report.unit.as_deref().map(|unit| format!(" about {}", first_line(unit)));
        let unit = unit.unwrap_or_default();
        let kind = paint.dye(Style::Bold, report.kind.as_str());
        lines.push(format!("{role}{unit}  {kind}"));
        lines.extend(shown(&report.summary).lines().map(|line| format!("  {line}")));
    }
    lines
}

#[cfg(test)]
mod tests;
