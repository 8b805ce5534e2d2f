//! Drawings of what there is to see: a plan as a tree, evidence as a table, what happened as a list. Pure.

use cynode_core::{evidence::Tally, workflow::plan::Plan};
use cynode_wire::{
    evidence::{CheckResult, EvidenceView},
    timeline::{StepEntry, Timeline},
};
use serde_json::Value;

use super::screen::{Paint, Style, clock};

/// Most lines of what a check wrote.
const LINES: usize = 6;

/// A plan: each unit below what it waits for, with what must hold and what shows it.
pub(super) fn plan(plan: &Plan, paint: Paint) -> Vec<String> {
    let units: Vec<Leaf> = plan
        .steps()
        .iter()
        .map(|unit| Leaf {
            key: unit.key.as_str().to_owned(),
            title: unit.title.as_str().to_owned(),
            after: unit.depends_on.iter().map(|key| key.as_str().to_owned()).collect(),
            notes: notes(&unit.payload),
        })
        .collect();
    let mut lines = Vec::new();
    branch(&units, None, "", paint, &mut lines);
    for assumption in plan.assumptions() {
        lines.push(paint.dye(Style::Dim, &format!("assumed: {}", assumption.as_str())));
    }
    lines
}

/// One unit as it is drawn.
struct Leaf {
    key: String,
    title: String,
    after: Vec<String>,
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
        lines.push(format!("{indent}{mark}{}", paint.dye(Style::Bold, &unit.title)));
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

/// What the plan says of a unit, as far as people want to see it.
fn notes(payload: &Value) -> Vec<(&'static str, String)> {
    let texts = |value: &Value| -> Vec<String> {
        let texts = value.as_array().into_iter().flatten();
        texts.filter_map(|text| text.as_str().map(str::to_owned)).collect()
    };
    let mut notes = Vec::new();
    if let Some(kind) = payload["kind"].as_str() {
        notes.push(("kind", kind.to_owned()));
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
            notes.push(("check", check.told()));
        }
    }
    notes
}

/// What the checks of one commit came to.
pub(super) fn evidence(view: &EvidenceView, paint: Paint) -> Vec<String> {
    let commit = view.commit.as_deref().map_or("none", |commit| &commit[..commit.len().min(10)]);
    let mut lines = vec![format!(
        "evidence for attempt {} of {}, commit {commit}: {}",
        view.attempt,
        view.unit,
        view.state.as_str()
    )];
    let width = view.checks.iter().map(|it| it.check.told().chars().count()).max().unwrap_or(0);
    for result in &view.checks {
        lines.push(row(result, width, paint));
        if !result.tally.is_good() {
            let shown: Vec<&str> = result.excerpt.lines().filter(|it| !it.is_empty()).collect();
            let from = shown.len().saturating_sub(LINES);
            let shown = shown[from..].iter();
            lines.extend(shown.map(|line| paint.dye(Style::Dim, &format!("      {line}"))));
        }
    }
    lines.extend(view.trouble.iter().map(|why| format!("  {}", paint.dye(Style::Yellow, why))));
    lines
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
    let (told, rounds) = (result.check.told(), result.rounds);
    let runs = if rounds == 1 { String::new() } else { format!(", {rounds} runs") };
    let word = paint.dye(style, &format!("{mark} {word:<6}"));
    format!("  {word}  {told:<width$}  {exit}, {} ms{runs}", result.milliseconds)
}

/// What happened, step by step, without those that only waited.
pub(super) fn timeline(timeline: &Timeline, paint: Paint) -> Vec<String> {
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
    let note = step.note.as_deref().and_then(|note| note.lines().next()).unwrap_or_default();
    let note = note.trim_end_matches(':');
    let line = format!("{after:>5}  {:<18} {verdict} {about}  {note}", step.node);
    line.trim_end().to_owned()
}

/// A difference, with what came and what went.
pub(super) fn diff(text: &str, paint: Paint) -> Vec<String> {
    let line = |line: &str| match line.as_bytes() {
        [b'+', b'+', b'+', ..] | [b'-', b'-', b'-', ..] => paint.dye(Style::Bold, line),
        [b'+', ..] => paint.dye(Style::Green, line),
        [b'-', ..] => paint.dye(Style::Red, line),
        [b'@', b'@', ..] => paint.dye(Style::Cyan, line),
        _ => line.to_owned(),
    };
    let shown =
        text.lines().filter(|line| !line.starts_with("index ") && !line.starts_with("diff "));
    shown.map(line).collect()
}

/// Money, from millionths.
pub(super) fn money(micros: u64) -> String {
    let (whole, rest) = (micros / 1_000_000, micros % 1_000_000);
    format!("{whole}.{:04}", rest / 100)
}

#[cfg(test)]
mod tests;
