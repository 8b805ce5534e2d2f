//! A task at work: the lines that are drawn anew while somebody looks on.

use std::{collections::BTreeSet, time::Duration};

use cynode_core::{
    tasks::TaskStateName,
    workflow::{units::UnitState, waits::WaitReason},
};
use cynode_wire::{
    timeline::{JobEntry, Timeline, WaitEntry},
    workflow::UnitView,
};

use super::{bar, money, standing};
use crate::terminal::{Line, Paint, Style, clock, first_line, shown};

/// Where it stands how often a unit was tried.
const TRIES: usize = 14;

/// Where the titles of units begin.
const TITLES: usize = 21;

/// How many columns a bar takes.
const BAR: usize = 10;

/// What is known of a task at work.
#[derive(Clone, Copy, Debug)]
pub struct Live<'a> {
    /// Since when it is looked at.
    pub elapsed: Duration,
    /// Where it stands.
    pub timeline: &'a Timeline,
    /// What it has cost, in millionths.
    pub spent: u64,
    /// What it may cost.
    pub most: Option<u64>,
    /// What is being done now.
    pub action: Option<&'a str>,
    /// The last that was said or written.
    pub tail: &'a [String],
    /// Why the project manager gets nowhere for now.
    pub held: Option<&'a str>,
    /// Why nobody answers, if nobody does.
    pub away: Option<&'a str>,
}

/// The lines, each no wider than `columns` and no more than `rows`.
pub fn live(view: &Live<'_>, columns: usize, rows: usize, paint: Paint) -> Vec<String> {
    let fitted = |line: Line| line.fitted(columns, paint);
    let mut head = Line::default().dyed(Style::Dim, clock(view.elapsed)).plain("  ");
    head = match view.away {
        Some(why) => head.dyed(Style::Yellow, format!("{}; it is asked again", first_line(why))),
        None => head.plain(first_line(view.timeline.node.map_or("", |node| node.title()))),
    };
    let mut lines = vec![fitted(head), fitted(sums(view))];
    let mut below = Vec::new();
    if let Some(action) = view.action {
        let line = Line::default().dyed(Style::Cyan, "now").until(6).plain(first_line(action));
        below.push(fitted(line));
    }
    for line in view.tail.iter().rev().take(3).rev() {
        below.push(fitted(Line::default().dyed(Style::Dim, format!("│ {}", line.trim()))));
    }
    if let Some(why) = view.held {
        let line = Line::default().dyed(Style::Red, "held up ").plain(first_line(why));
        below.push(fitted(line));
    } else if let Some(reason) = waits_for(view.timeline) {
        below.push(fitted(Line::default().dyed(Style::Yellow, "waits for ").plain(reason)));
    }
    let room = rows.saturating_sub(lines.len() + below.len());
    lines.extend(some(&view.timeline.units, room).into_iter().map(fitted));
    lines.extend(below);
    lines
}

/// How many units are done, and what was spent.
fn sums(view: &Live<'_>) -> Line {
    let all = view.timeline.units.len();
    let done = view.timeline.units.iter().filter(|unit| unit.state.is_final()).count();
    let count = |number: usize| u64::try_from(number).unwrap_or(0);
    let line = Line::default();
    let line = if all == 0 {
        line.dyed(Style::Dim, "no plan yet")
    } else {
        line.dyed(Style::Green, bar(count(done), count(all), BAR))
            .plain(format!("  {done} of {all} units"))
    };
    let line = line.until(30);
    match view.most {
        Some(most) => {
            let style = if view.spent.saturating_mul(10) < most.saturating_mul(7) {
                Style::Green
            } else if view.spent < most {
                Style::Yellow
            } else {
                Style::Red
            };
            line.dyed(style, bar(view.spent, most, BAR)).plain(format!(
                "  cost {} of {}",
                money(view.spent),
                money(most)
            ))
        }
        None => line.plain(format!("cost {}", money(view.spent))),
    }
}

/// As many units as there is room for: those that are worked on first, then those that wait, then those that have ended.
fn some(units: &[UnitView], room: usize) -> Vec<Line> {
    if units.len() <= room {
        return units.iter().map(one).collect();
    }
    let mut order: Vec<usize> = (0..units.len()).collect();
    order.sort_by_key(|at| match units[*at].state {
        UnitState::Dispatched | UnitState::Collected => 0,
        UnitState::Pending => 1,
        UnitState::Done | UnitState::Failed | UnitState::Cancelled => 2,
    });
    let kept: BTreeSet<usize> = order.into_iter().take(room.saturating_sub(1)).collect();
    let mut lines: Vec<Line> = kept.iter().map(|at| one(&units[*at])).collect();
    let hidden = units.len() - kept.len();
    lines.push(Line::default().dyed(Style::Dim, format!("… and {hidden} more")));
    lines
}

fn one(unit: &UnitView) -> Line {
    let (sign, style) = standing(unit.state);
    let tried = if unit.attempts > 1 { format!("try {}", unit.attempts) } else { String::new() };
    Line::default()
        .dyed(style, format!("{sign} {}", unit.state.as_str()))
        .until(TRIES)
        .dyed(Style::Yellow, tried)
        .until(TITLES)
        .plain(first_line(unit.title.as_str()))
}

/// Where a task stands: what it waits for with all that is asked, else what the server says.
pub fn stands(timeline: &Timeline) -> String {
    match waits(timeline, shown).filter(|_| timeline.state == TaskStateName::Running) {
        Some(what) => format!("waits for {what}"),
        None => shown(&timeline.standing),
    }
}

/// What a task waits for, in words, with the first line of what is asked; nothing when it works.
pub fn waits_for(timeline: &Timeline) -> Option<String> {
    waits(timeline, first_line)
}

/// What a task waits for, with what is asked in such words.
fn waits(timeline: &Timeline, words: fn(&str) -> String) -> Option<String> {
    let asked = |wait: &WaitEntry| words(wait.question.as_deref().unwrap_or("a question"));
    let wait = timeline.waits.last().filter(|wait| wait.resolved_at.is_none())?;
    Some(match wait.reason {
        WaitReason::Job => jobs(&timeline.jobs),
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

/// The jobs that are out.
fn jobs(jobs: &[JobEntry]) -> String {
    let of = |state: &str| -> Vec<&str> {
        jobs.iter().filter(|job| job.state == state).map(|job| job.unit.as_str()).collect()
    };
    let (running, queued) = (of("running"), of("queued"));
    match (running.is_empty(), queued.is_empty()) {
        (false, _) => format!("the work on {}", running.join(", ")),
        (true, false) => format!("a machine that takes {}", queued.join(", ")),
        (true, true) => "the result of a job".to_owned(),
    }
}
