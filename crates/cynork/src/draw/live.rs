//! The live area of a running task: lines that are redrawn.

use std::{collections::BTreeSet, time::Duration};

use cynode_core::{
    budget::Currency,
    tasks::TaskStateName,
    workflow::{
        timeline::{JobEntry, WaitEntry},
        units::{UnitState, UnitView},
        waits::WaitReason,
    },
};
use cynode_wire::workflow::timeline::TaskTimeline;

use super::{format_money, render_bar, step_label, unit_state_mark};
use crate::format::format_amount;
use crate::terminal::{
    Colorizer, StyledLine, TextStyle, escape_for_terminal, first_line, format_clock,
};

/// Column of the attempt counter.
const ATTEMPTS_COLUMN: usize = 14;

/// Column of the titles.
const TITLE_COLUMN: usize = 21;

/// Width of a bar.
const BAR_COLUMNS: usize = 10;

/// The progress of a running task.
#[derive(Clone, Copy, Debug)]
pub struct TaskProgress<'a> {
    /// Time since it was followed.
    pub elapsed: Duration,
    /// The timeline of the task.
    pub timeline: &'a TaskTimeline,
    /// Cost so far, in millionths.
    pub spent: u64,
    /// The budget limit.
    pub most: Option<u64>,
    /// Currency of the amounts.
    pub currency: Currency,
    /// The current action.
    pub action: Option<&'a str>,
    /// The last lines of output.
    pub tail: &'a [String],
    /// Why the project manager is blocked.
    pub held: Option<&'a str>,
    /// Why the server does not respond, if it does not.
    pub away: Option<&'a str>,
}

/// Renders the lines, at most `columns` wide and at most `rows`.
pub fn render_progress(
    view: &TaskProgress<'_>,
    columns: usize,
    rows: usize,
    paint: Colorizer,
) -> Vec<String> {
    let fitted = |line: StyledLine| line.render_fitted(columns, paint);
    let mut head = StyledLine::default()
        .with_styled(TextStyle::Dim, format_clock(view.elapsed))
        .with_text("  ");
    head = match view.away {
        Some(why) => {
            head.with_styled(TextStyle::Yellow, format!("{}; it is asked again", first_line(why)))
        }
        None => head
            .with_text(view.timeline.node.map_or(String::new(), |node| step_label(node.as_str()))),
    };
    let mut lines = vec![fitted(head), fitted(render_totals(view))];
    let mut below = Vec::new();
    if let Some(action) = view.action {
        let line = StyledLine::default()
            .with_styled(TextStyle::Cyan, "now")
            .pad_to_column(6)
            .with_text(first_line(action));
        below.push(fitted(line));
    }
    for line in view.tail.iter().rev().take(3).rev() {
        below.push(fitted(
            StyledLine::default().with_styled(TextStyle::Dim, format!("│ {}", line.trim())),
        ));
    }
    if let Some(stall) = view.timeline.stalls.first() {
        let line = StyledLine::default()
            .with_styled(TextStyle::Red, "stuck ")
            .with_text(first_line(&stall.detail));
        below.push(fitted(line));
        if let Some(command) = stall.commands.first() {
            below.push(fitted(
                StyledLine::default()
                    .with_styled(TextStyle::Bold, "next: ")
                    .with_text(first_line(command)),
            ));
        }
    } else if let Some(why) = view.held {
        let line = StyledLine::default()
            .with_styled(TextStyle::Red, "cannot go on: ")
            .with_text(first_line(why));
        below.push(fitted(line));
    } else if let Some(reason) = describe_wait(view.timeline) {
        below.push(fitted(
            StyledLine::default().with_styled(TextStyle::Yellow, "waits for ").with_text(reason),
        ));
    }
    let room = rows.saturating_sub(lines.len() + below.len());
    lines.extend(render_unit_rows(&view.timeline.units, room).into_iter().map(fitted));
    lines.extend(below);
    lines
}

/// Renders the number of completed units, and the spending.
fn render_totals(view: &TaskProgress<'_>) -> StyledLine {
    let all = view.timeline.units.len();
    let done = view.timeline.units.iter().filter(|unit| unit.state.is_final()).count();
    let count = |number: usize| u64::try_from(number).unwrap_or(0);
    let line = StyledLine::default();
    let line = if all == 0 {
        line.with_styled(TextStyle::Dim, "no plan yet")
    } else {
        line.with_styled(TextStyle::Green, render_bar(count(done), count(all), BAR_COLUMNS))
            .with_text(format!("  {done} of {all} units"))
    };
    let line = line.pad_to_column(30);
    match view.most {
        Some(most) => {
            let style = if view.spent.saturating_mul(10) < most.saturating_mul(7) {
                TextStyle::Green
            } else if view.spent < most {
                TextStyle::Yellow
            } else {
                TextStyle::Red
            };
            line.with_styled(style, render_bar(view.spent, most, BAR_COLUMNS)).with_text(format!(
                "  cost {} of {}",
                format_amount(view.spent),
                format_money(most, view.currency)
            ))
        }
        None => line.with_text(format!("cost {}", format_money(view.spent, view.currency))),
    }
}

/// Renders as many units as fit: those in progress first, then waiting ones, then ended ones.
fn render_unit_rows(units: &[UnitView], room: usize) -> Vec<StyledLine> {
    if units.len() <= room {
        return units.iter().map(render_unit_row).collect();
    }
    let mut order: Vec<usize> = (0..units.len()).collect();
    order.sort_by_key(|at| match units[*at].state {
        UnitState::Dispatched | UnitState::Collected => 0,
        UnitState::Pending => 1,
        UnitState::Done | UnitState::Failed | UnitState::Cancelled => 2,
    });
    let kept: BTreeSet<usize> = order.into_iter().take(room.saturating_sub(1)).collect();
    let mut lines: Vec<StyledLine> = kept.iter().map(|at| render_unit_row(&units[*at])).collect();
    let hidden = units.len() - kept.len();
    lines.push(StyledLine::default().with_styled(TextStyle::Dim, format!("… and {hidden} more")));
    lines
}

fn render_unit_row(unit: &UnitView) -> StyledLine {
    let (sign, style) = unit_state_mark(unit.state);
    let tried = if unit.attempts > 1 { format!("try {}", unit.attempts) } else { String::new() };
    StyledLine::default()
        .with_styled(style, format!("{sign} {}", unit.state.as_str()))
        .pad_to_column(ATTEMPTS_COLUMN)
        .with_styled(TextStyle::Yellow, tried)
        .pad_to_column(TITLE_COLUMN)
        .with_text(first_line(unit.title.as_str()))
}

/// Describes the state of a task: its wait with the whole question, else the server's description.
pub fn describe_standing(timeline: &TaskTimeline) -> String {
    match describe_wait_with(timeline, escape_for_terminal)
        .filter(|_| timeline.state == TaskStateName::Running)
    {
        Some(what) => format!("waits for {what}"),
        None => escape_for_terminal(&timeline.standing),
    }
}

/// Renders the stalls of a task: a sentence each, with the fix below it.
pub fn render_stalls(timeline: &TaskTimeline, paint: Colorizer) -> Vec<String> {
    let mut lines = Vec::new();
    for stall in &timeline.stalls {
        lines.push(paint.apply_style(TextStyle::Red, &first_line(&stall.detail)));
        lines.extend(
            stall.commands.iter().map(|command| format!("  next: {}", first_line(command))),
        );
    }
    lines
}

/// Describes the wait of a task, with the first line of the question; `None` if it does not wait.
pub fn describe_wait(timeline: &TaskTimeline) -> Option<String> {
    describe_wait_with(timeline, first_line)
}

/// Describes the wait of a task, with the question formatted by `words`.
fn describe_wait_with(timeline: &TaskTimeline, words: fn(&str) -> String) -> Option<String> {
    let asked = |wait: &WaitEntry| words(wait.question.as_deref().unwrap_or("a question"));
    let wait = timeline.waits.last().filter(|wait| wait.resolved_at.is_none())?;
    Some(match wait.reason {
        WaitReason::Job => describe_open_jobs(&timeline.jobs),
        WaitReason::Approval => "your yes to the plan".to_owned(),
        WaitReason::HumanInput => format!("your answer: {}", asked(wait)),
        WaitReason::Paused if wait.question.is_some() => {
            format!("somebody who lets it go on: {}", asked(wait))
        }
        WaitReason::Paused => "somebody who lets it go on: it is paused".to_owned(),
        WaitReason::Retry => "the time of the next attempt".to_owned(),
        WaitReason::Quota => "a provider's quota".to_owned(),
        WaitReason::Agent => "the project manager, who thinks".to_owned(),
    })
}

/// Describes the set-up of an environment with its step, such as `2 of 5: npm ci`.
pub(super) fn describe_setup(step: &str) -> String {
    let step = first_line(step);
    if step.is_empty() {
        "setting up the environment".to_owned()
    } else {
        format!("setting up the environment ({step})")
    }
}

/// Describes the open jobs.
fn describe_open_jobs(jobs: &[JobEntry]) -> String {
    let of = |state: &str| -> Vec<&str> {
        jobs.iter().filter(|job| job.state == state).map(|job| job.unit.as_str()).collect()
    };
    let (running, queued) = (of("running"), of("queued"));
    if let Some(step) = jobs.iter().find_map(|job| job.setup_step.as_deref()) {
        return describe_setup(step);
    }
    match (running.is_empty(), queued.is_empty()) {
        (false, _) => format!("the work on {}", running.join(", ")),
        (true, false) => format!("a machine that takes {}", queued.join(", ")),
        (true, true) => "the result of a job".to_owned(),
    }
}
