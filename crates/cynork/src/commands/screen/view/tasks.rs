//! The list of tasks, and beside it the one that is chosen.

use ratatui::{
    layout::{Constraint, Layout, Rect},
    style::Style,
    text::Line,
};

use super::{BOLD, DIM, Sheet, columns, line, span, standing, wrapped};
use crate::{
    commands::screen::{
        shelf::Topic,
        state::{Focus, Place},
        text,
    },
    draw::money,
};

/// The widths of the columns: state, name, project, age, cost, words.
fn widths(room: usize) -> [usize; 6] {
    let name = (room / 4).clamp(16, 30);
    let project = if room >= 76 { (room / 10).clamp(8, 16) } else { 0 };
    let fixed = 11 + 4 + 8 + name + project + 5;
    [11, name, project, 4, 8, room.saturating_sub(fixed)]
}

impl Sheet<'_> {
    pub(super) fn tasks(&mut self, area: Rect) {
        if self.state.size.is_wide() {
            let part = Layout::horizontal([Constraint::Percentage(42), Constraint::Min(60)]);
            let [list, detail] = part.areas(area);
            let focused = self.state.focus == Focus::List;
            let inside = self.panel(list, "Tasks", focused);
            self.list(inside);
            let title = self.state.chosen_task().map_or("", |task| task.name.as_str()).to_owned();
            let inside = self.panel(detail, &title, !focused);
            self.task(inside);
        } else if self.state.focus == Focus::Detail {
            self.task(area);
        } else {
            self.list(area);
        }
    }

    fn list(&mut self, area: Rect) {
        let state = self.state;
        let area = super::indented(area);
        let topic = Topic::Tasks(state.filter.query.clone());
        let tasks = state.listed();
        let room = usize::from(area.width).saturating_sub(1);
        let wide = widths(room);
        let heads = ["STATE", "NAME", "PROJECT", "AGE", "COST", "WHAT"];
        let cell = |(at, head): (usize, &str)| {
            let right = matches!(at, 3 | 4);
            let head = if right { text::right(head, wide[at]) } else { head.to_owned() };
            (head, wide[at], BOLD)
        };
        let head = columns(&heads.into_iter().enumerate().map(cell).collect::<Vec<_>>());
        let mut rest = self.heading(area, &head, Some(&topic));
        let filtered = state.filter.typing || !state.filter.input.text().is_empty();
        if filtered {
            let foot = Rect { y: rest.bottom() - 1, height: 1, ..rest };
            rest.height -= 1;
            self.filter(foot, tasks.len());
        }
        if tasks.is_empty() {
            let lines = self.absent(&topic, room).unwrap_or_else(|| {
                if filtered {
                    return vec![Line::styled("No task is like that. Esc shows all.", DIM)];
                }
                let mut lines = vec![Line::raw(""), Line::styled("There are no tasks yet.", BOLD)];
                let words =
                    "Ask for one in a terminal: cynork run \"add a dark mode switch\" --repo .";
                lines.extend(wrapped(words, room, DIM));
                lines
            });
            return self.text(rest, Place::Tasks, &lines);
        }
        let chosen = state.chosen_task().map(|task| task.id);
        let chosen = tasks.iter().position(|task| Some(task.id) == chosen);
        let focused = state.focus == Focus::List;
        self.rows(rest, Place::Tasks, (tasks.len(), chosen, focused), |at| {
            let task = tasks[at];
            let (word, style) = standing(state, task);
            let cost = state.known.costs.get(&task.id).map_or(String::new(), |it| money(*it));
            columns(&[
                (word.to_owned(), wide[0], style),
                (task.name.as_str().to_owned(), wide[1], Style::new()),
                (state.known.project(task.project_id), wide[2], DIM),
                (text::right(&text::age(task.created_at, state.now), wide[3]), wide[3], DIM),
                (text::right(&cost, wide[4]), wide[4], Style::new()),
                (text::first(task.description.as_str()), wide[5], DIM),
            ])
        });
    }

    fn filter(&mut self, area: Rect, count: usize) {
        let filter = &self.state.filter;
        let style = if filter.typing { BOLD } else { DIM };
        let found = if count == 1 { "1 task".to_owned() } else { format!("{count} tasks") };
        let more = if self.state.known.more.is_some() { " so far" } else { "" };
        let spans = [
            span("/", BOLD),
            span(filter.input.text(), style),
            span(if filter.typing { "▏" } else { "" }, style),
            span(format!("  {found}{more}"), DIM),
        ];
        self.put(area.x, area.y, &line(spans), area.width);
    }
}
