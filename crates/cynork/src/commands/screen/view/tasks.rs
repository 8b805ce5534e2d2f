//! The list of tasks, and beside it the selected one.

use cynode_wire::tasks::TaskView;
use ratatui::{
    layout::{Constraint, Layout, Rect},
    style::Style,
    text::Line,
};

use super::{
    BOLD_STYLE, DIM_STYLE, ScreenPainter, column_line, line_from_spans, styled_span, task_status,
    wrap_lines,
};
use crate::{
    commands::screen::{
        cache::FetchTopic,
        state::{Focus, ScrollArea},
        text,
    },
    format::format_amount,
};

/// Width of the columns state, age and cost.
const STATE_CELLS: usize = 11;
const AGE_CELLS: usize = 4;
const COST_CELLS: usize = 8;

/// Minimum useful width of the description column.
const MIN_WORDS_CELLS: usize = 14;

/// Returns the widths of the columns: state, name, project, age, cost, description; columns without room have width zero. Names
/// and projects take the width they need; cost and description take the rest.
fn column_widths(room: usize, longest_name: usize, longest_project: usize) -> [usize; 6] {
    let wide = room >= 76;
    let project = longest_project.clamp(7, if wide { 16 } else { 12 });
    let fixed = STATE_CELLS + AGE_CELLS + project + 3;
    let name = longest_name.clamp(8, 34).min(room.saturating_sub(fixed));
    let left = room.saturating_sub(fixed + name);
    let cost = if left > COST_CELLS { COST_CELLS } else { 0 };
    let left = left.saturating_sub(if cost > 0 { cost + 1 } else { 0 });
    if left > MIN_WORDS_CELLS {
        [STATE_CELLS, name, project, AGE_CELLS, cost, left - 1]
    } else {
        // Without a description the names get its room.
        [STATE_CELLS, name + left, project, AGE_CELLS, cost, 0]
    }
}

impl ScreenPainter<'_> {
    pub(super) fn draw_tasks_pane(&mut self, area: Rect) {
        if self.state.size.is_wide() {
            let part = Layout::horizontal([Constraint::Percentage(42), Constraint::Min(60)]);
            let [list, detail] = part.areas(area);
            let focused = self.state.focus == Focus::List;
            let inside = self.draw_panel(list, "Tasks", focused);
            self.draw_task_list(inside);
            let title = self.state.chosen_task().map_or("", |task| task.name.as_str()).to_owned();
            let inside = self.draw_panel(detail, &title, !focused);
            self.draw_task_detail(inside);
        } else if self.state.focus == Focus::Detail {
            self.draw_task_detail(area);
        } else {
            self.draw_task_list(area);
        }
    }

    fn draw_task_list(&mut self, area: Rect) {
        let state = self.state;
        let area = super::indent_area(area);
        let topic = FetchTopic::Tasks(state.filter.query.clone());
        let tasks = state.listed_tasks();
        let room = usize::from(area.width).saturating_sub(1);
        let longest = |lengths: &mut dyn Iterator<Item = usize>| lengths.max().unwrap_or(0);
        let name = longest(&mut tasks.iter().map(|task| text::display_width(task.name.as_str())));
        let project =
            |task: &&TaskView| text::display_width(&state.known.project_name(task.project_id));
        let wide = column_widths(room, name, longest(&mut tasks.iter().map(project)));
        let cost = format!("COST {}", state.known.display_currency());
        let heads = ["STATE", "NAME", "PROJECT", "AGE", &cost, "WHAT"];
        let cell = |(at, head): (usize, &str)| {
            let right = matches!(at, 3 | 4);
            let head = if right { text::align_right(head, wide[at]) } else { head.to_owned() };
            (head, wide[at], BOLD_STYLE)
        };
        let head = column_line(&heads.into_iter().enumerate().map(cell).collect::<Vec<_>>());
        let mut rest = self.draw_heading(area, &head, Some(&topic));
        let filtered = state.filter.typing || !state.filter.input.as_str().is_empty();
        if filtered {
            let foot = Rect { y: rest.bottom() - 1, height: 1, ..rest };
            rest.height -= 1;
            self.draw_filter(foot, tasks.len());
        }
        if tasks.is_empty() {
            let lines = self.placeholder_lines(&topic, room).unwrap_or_else(|| {
                if filtered {
                    return vec![Line::styled("No task is like that. Esc shows all.", DIM_STYLE)];
                }
                let mut lines =
                    vec![Line::raw(""), Line::styled("There are no tasks yet.", BOLD_STYLE)];
                let words =
                    "c asks for one. In a terminal: cynork run \"add a dark mode switch\" --repo .";
                lines.extend(wrap_lines(words, room, DIM_STYLE));
                lines
            });
            return self.draw_text(rest, ScrollArea::Tasks, &lines);
        }
        let chosen = state.chosen_task().map(|task| task.id);
        let chosen = tasks.iter().position(|task| Some(task.id) == chosen);
        let focused = state.focus == Focus::List;
        self.draw_rows(rest, ScrollArea::Tasks, (tasks.len(), chosen, focused), |at| {
            let task = tasks[at];
            let (word, style) = task_status(state, task);
            let cost =
                state.known.costs.get(&task.id).map_or(String::new(), |it| format_amount(*it));
            column_line(&[
                (word.to_owned(), wide[0], style),
                (task.name.as_str().to_owned(), wide[1], Style::new()),
                (state.known.project_name(task.project_id), wide[2], DIM_STYLE),
                (
                    text::align_right(&text::format_age(task.created_at, state.now), wide[3]),
                    wide[3],
                    DIM_STYLE,
                ),
                (text::align_right(&cost, wide[4]), wide[4], Style::new()),
                (text::first_sanitized_line(task.description.as_str()), wide[5], DIM_STYLE),
            ])
        });
    }

    fn draw_filter(&mut self, area: Rect, count: usize) {
        let filter = &self.state.filter;
        let style = if filter.typing { BOLD_STYLE } else { DIM_STYLE };
        let found = if count == 1 { "1 task".to_owned() } else { format!("{count} tasks") };
        let more = if self.state.known.more.is_some() { " so far" } else { "" };
        let spans = [
            styled_span("/", BOLD_STYLE),
            styled_span(filter.input.as_str(), style),
            styled_span(if filter.typing { "▏" } else { "" }, style),
            styled_span(format!("  {found}{more}"), DIM_STYLE),
        ];
        self.put_line(area.x, area.y, &line_from_spans(spans), area.width);
    }
}
