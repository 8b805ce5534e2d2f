//! One task: what it is, where it stands, and the part of it that is looked at.

use cynode_core::{tasks::TaskStateName, workflow::waits::WaitReason};
use ratatui::{layout::Rect, style::Style, text::Line};

use super::{BOLD, CHOSEN, DIM, Sheet, below, line, span, standing};
use crate::{
    commands::screen::{
        shelf::Topic,
        state::{Hit, Part, Place},
        text,
    },
    draw::money,
};

impl Sheet<'_> {
    pub(super) fn task(&mut self, area: Rect) {
        let state = self.state;
        let area = super::indented(area);
        let room = usize::from(area.width);
        let Some(task) = state.chosen_task() else {
            let lines = [Line::styled("No task is chosen.", DIM)];
            return self.text(area, Place::Plan, &lines);
        };
        let topic = Topic::Timeline(task.id);
        let timeline = state.timeline();
        let (word, style) = standing(state, task);
        let told = timeline.map_or_else(String::new, |it| it.standing.clone());
        let told = match state.waits_for(task.id) {
            Some(WaitReason::Approval) => "its plan waits for your yes".to_owned(),
            Some(WaitReason::HumanInput) => "it has a question for you".to_owned(),
            Some(WaitReason::Paused) => {
                // An agent that waits for a person is paused with its question.
                let asked = timeline.and_then(|it| it.waits.last()?.question.as_deref());
                let asked = asked.map(text::first).filter(|asked| !asked.is_empty());
                asked.unwrap_or_else(|| "somebody paused it".to_owned())
            }
            _ if told == "completed" => String::new(),
            _ => text::first(&told),
        };
        let name = text::cut(task.name.as_str(), room / 2);
        let title = line([
            span(format!("{name}  "), BOLD),
            span(format!("{word}  "), style),
            span(told, Style::new()),
        ]);
        let rest = self.heading(area, &title, Some(&topic));
        let facts = facts(self.state, task).join(" · ");
        self.put(rest.x, rest.y, &Line::styled(text::cut(&facts, room), DIM), rest.width);
        let rest = below(rest, 1);
        self.parts(rest);
        let rest = below(rest, 1);
        if let Some(lines) = self.absent(&topic, room) {
            return self.text(rest, state.part.place(), &lines);
        }
        match state.part {
            Part::Plan => self.plan(rest, task),
            Part::Timeline => self.timeline(rest),
            Part::Logs => self.logs(rest),
            Part::Diff => self.diff(rest),
            Part::Evidence => self.evidence(rest, task.id),
        }
    }

    /// The names of the parts, to be clicked.
    fn parts(&mut self, area: Rect) {
        let mut x = area.x;
        for (part, number) in Part::ALL.into_iter().zip(5..) {
            let chosen = self.state.part == part;
            let style = if chosen { CHOSEN.patch(BOLD) } else { Style::new() };
            let name = format!(" {number} {} ", part.title());
            let end = self.put(x, area.y, &line([span(&name, style)]), area.right() - x);
            self.hit(Rect::new(x, area.y, end - x, 1), Hit::Part(part));
            x = end + 1;
        }
    }
}

/// What is to be said of a task in one line.
fn facts(
    state: &crate::commands::screen::state::State,
    task: &cynode_wire::tasks::TaskView,
) -> Vec<String> {
    let timeline = state.known.timelines.get(&task.id);
    let mut facts = vec![state.known.project(task.project_id)];
    let cost =
        timeline.map(|it| it.cost_micros).or_else(|| state.known.costs.get(&task.id).copied());
    if let Some(cost) = cost {
        let cap = task.budget.max_cost_micros.and_then(|it| u64::try_from(it.as_i64()).ok());
        let of = cap.map_or(String::new(), |cap| format!(" of {}", money(cap)));
        facts.push(format!("cost {}{of}", money(cost)));
    }
    let begun = timeline.and_then(|it| it.steps.first()).map(|step| step.at).or(task.started_at);
    match (task.state, begun, task.ended_at) {
        (TaskStateName::Running, Some(begun), _) => {
            facts.push(format!("runs for {}", text::took(state.now - begun)));
        }
        (_, Some(begun), Some(ended)) => facts.push(format!("took {}", text::took(ended - begun))),
        _ => facts.push(format!("asked for {} ago", text::age(task.created_at, state.now))),
    }
    if let Some(timeline) = timeline {
        match timeline.retries_used {
            0 => {}
            1 => facts.push("1 retry".to_owned()),
            more => facts.push(format!("{more} retries")),
        }
        if let Some(entry) = &timeline.pull_request {
            facts.push(format!("PR #{} {}", entry.number, entry.state.as_str()));
        }
    }
    facts
}
