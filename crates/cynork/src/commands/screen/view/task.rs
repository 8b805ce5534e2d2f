//! One task: its facts, its state, and its visible part.

use cynode_core::{ids::TaskId, tasks::TaskStateName, workflow::waits::WaitReason};
use ratatui::{layout::Rect, style::Style, text::Line};

use super::{
    BOLD_STYLE, DIM_STYLE, ERROR_STYLE, SELECTED_STYLE, ScreenPainter, WARNING_STYLE, area_below,
    line_from_spans, styled_span, task_status, wrap_lines,
};
use crate::{
    commands::screen::{
        cache::FetchTopic,
        state::{ClickTarget, ScrollArea, TaskPart},
        text,
    },
    draw::format_money,
    format::format_amount,
};

/// Maximum number of displayed stalls of a task.
const MAX_STALLS: usize = 2;

impl ScreenPainter<'_> {
    pub(super) fn draw_task_detail(&mut self, area: Rect) {
        let state = self.state;
        let area = super::indent_area(area);
        let room = usize::from(area.width);
        let Some(task) = state.chosen_task() else {
            let lines = [Line::styled("No task is chosen.", DIM_STYLE)];
            return self.draw_text(area, ScrollArea::Plan, &lines);
        };
        let topic = FetchTopic::Timeline(task.id);
        let timeline = state.chosen_timeline();
        let (word, style) = task_status(state, task);
        let told = timeline.map_or_else(String::new, |it| it.standing.clone());
        let told = match state.wait_reason_of(task.id) {
            Some(WaitReason::Approval) => "its plan waits for your yes".to_owned(),
            Some(WaitReason::HumanInput) => "it has a question for you".to_owned(),
            Some(WaitReason::Paused) => {
                // An agent that waits for a person is paused with its question.
                let asked = timeline.and_then(|it| it.waits.last()?.question.as_deref());
                let asked = asked.map(text::first_sanitized_line).filter(|asked| !asked.is_empty());
                asked.unwrap_or_else(|| "somebody paused it".to_owned())
            }
            _ if told == "completed" => String::new(),
            _ => text::first_sanitized_line(&told),
        };
        // Beside the list, the frame has the name.
        let name = if self.state.size.is_wide() {
            String::new()
        } else {
            format!("{}  ", text::truncate_to_cells(task.name.as_str(), room / 2))
        };
        let before = text::display_width(&name) + text::display_width(word) + 2;
        let mut told = text::wrap_words(&told, room.saturating_sub(before + 3)).into_iter();
        let first = told.next().unwrap_or_default();
        let title = line_from_spans([
            styled_span(name, BOLD_STYLE),
            styled_span(format!("{word}  "), style),
            styled_span(first, Style::new()),
        ]);
        let mut rest = self.draw_heading(area, &title, Some(&topic));
        for words in told.take(2) {
            let words = Line::raw(format!("{}{words}", " ".repeat(before)));
            self.put_line(rest.x, rest.y, &words, rest.width);
            rest = area_below(rest, 1);
        }
        let facts = task_facts(self.state, task).join(" · ");
        self.put_line(
            rest.x,
            rest.y,
            &Line::styled(text::truncate_to_cells(&facts, room), DIM_STYLE),
            rest.width,
        );
        let rest = area_below(rest, 1);
        self.draw_part_tabs(rest);
        let rest = area_below(rest, 1);
        let rest = self.draw_open_question(rest, task.id);
        let rest = self.draw_stalls(rest);
        if let Some(lines) = self.placeholder_lines(&topic, room) {
            return self.draw_text(rest, state.part.scroll_area(), &lines);
        }
        match state.part {
            TaskPart::Plan => self.draw_plan(rest, task),
            TaskPart::Timeline => self.draw_timeline(rest),
            TaskPart::Logs => self.draw_logs(rest),
            TaskPart::Diff => self.draw_diff(rest),
            TaskPart::Evidence => self.draw_evidence(rest, task.id),
        }
    }

    /// Draws the question of the task, and how to answer it; it leaves room for the rest.
    fn draw_open_question(&mut self, area: Rect, task: TaskId) -> Rect {
        let Some(wait) = self.state.known.waits.get(&task) else { return area };
        let (question, keys) = match wait.reason {
            WaitReason::HumanInput => (wait.question.as_deref(), "a answers"),
            WaitReason::Paused => (wait.question.as_deref(), "r lets it go on"),
            _ => return area,
        };
        let question = question.map(str::trim).filter(|it| !it.is_empty());
        let Some(question) = question else { return area };
        let room = usize::from(area.width).saturating_sub(1);
        let lines = wrap_lines(question, room, WARNING_STYLE);
        let most = usize::from(area.height / 3).max(2);
        let hidden = lines.len() > most;
        let rest = self.draw_rule(area, if hidden { "it asks; a shows all" } else { "it asks" });
        let shown = if hidden { most } else { lines.len() };
        for (row, line) in (rest.y..rest.bottom()).zip(lines.iter().take(shown)) {
            self.put_line(rest.x, row, line, rest.width);
        }
        let rest = area_below(rest, u16::try_from(shown).unwrap_or(u16::MAX));
        self.put_line(rest.x, rest.y, &Line::styled(keys, BOLD_STYLE), rest.width);
        let rest = area_below(rest, 1);
        self.draw_rule(rest, "")
    }

    /// Draws the stalls of the task: work that no process takes, with the fix.
    fn draw_stalls(&mut self, area: Rect) -> Rect {
        let Some(timeline) = self.state.chosen_timeline().filter(|it| !it.stalls.is_empty()) else {
            return area;
        };
        let room = usize::from(area.width).saturating_sub(1);
        let mut rest = self.draw_rule(area, "it does not go on");
        for stall in timeline.stalls.iter().take(MAX_STALLS) {
            let mut lines = wrap_lines(&stall.detail, room, ERROR_STYLE);
            let command = stall.commands.first().map(|command| format!("next: {command}"));
            lines.extend(command.iter().flat_map(|command| wrap_lines(command, room, BOLD_STYLE)));
            for (row, line) in (rest.y..rest.bottom()).zip(&lines) {
                self.put_line(rest.x, row, line, rest.width);
            }
            rest = area_below(rest, u16::try_from(lines.len()).unwrap_or(u16::MAX));
        }
        self.draw_rule(rest, "")
    }

    /// Draws the names of the parts, which can be clicked.
    fn draw_part_tabs(&mut self, area: Rect) {
        let mut x = area.x;
        for (part, number) in TaskPart::ALL.into_iter().zip(5..) {
            let chosen = self.state.part == part;
            let style = if chosen { SELECTED_STYLE.patch(BOLD_STYLE) } else { Style::new() };
            let name = format!(" {number} {} ", part.title());
            let end = self.put_line(
                x,
                area.y,
                &line_from_spans([styled_span(&name, style)]),
                area.right() - x,
            );
            self.add_click_target(Rect::new(x, area.y, end - x, 1), ClickTarget::Part(part));
            x = end + 1;
        }
    }
}

/// Returns the facts of a task in one line.
fn task_facts(
    state: &crate::commands::screen::state::ScreenState,
    task: &cynode_wire::tasks::TaskView,
) -> Vec<String> {
    let timeline = state.known.timelines.get(&task.id);
    let mut facts = vec![state.known.project_name(task.project_id)];
    let cost =
        timeline.map(|it| it.cost_micros).or_else(|| state.known.costs.get(&task.id).copied());
    if let Some(cost) = cost {
        let cap = task.budget.max_cost_micros.and_then(|it| u64::try_from(it.as_i64()).ok());
        let currency = state.known.display_currency();
        facts.push(match cap {
            Some(cap) => format!("cost {} of {}", format_amount(cost), format_money(cap, currency)),
            None => format!("cost {}", format_money(cost, currency)),
        });
    }
    let begun = timeline.and_then(|it| it.steps.first()).map(|step| step.at).or(task.started_at);
    match (task.state, begun, task.ended_at) {
        (TaskStateName::Running, Some(begun), _) => {
            facts.push(format!("runs for {}", text::format_duration(state.now - begun)));
        }
        (_, Some(begun), Some(ended)) => {
            facts.push(format!("took {}", text::format_duration(ended - begun)));
        }
        _ => facts.push(format!("asked for {} ago", text::format_age(task.created_at, state.now))),
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
