//! The projects and their repositories.

use cynode_wire::tasks::projects::ProjectView;
use ratatui::{
    layout::{Constraint, Layout, Rect},
    style::Style,
    text::Line,
};

use super::{
    BOLD_STYLE, DIM_STYLE, ScreenPainter, column_line, line_from_spans, styled_span, wrap_lines,
};
use crate::{
    commands::screen::{
        cache::FetchTopic,
        state::{Focus, ScrollArea},
        text,
    },
    draw::format_money,
};

impl ScreenPainter<'_> {
    /// Draws a list and the detail of its selection: side by side if there is room, else below each other.
    pub(super) fn draw_list_and_detail(
        &mut self,
        area: Rect,
        (rows, title, detail_title): (usize, &str, &str),
        list: impl FnOnce(&mut Self, Rect),
        detail: impl FnOnce(&mut Self, Rect),
    ) {
        let focused = self.state.focus == Focus::List;
        if self.state.size.is_wide() {
            let part = Layout::horizontal([Constraint::Percentage(50), Constraint::Min(50)]);
            let [left, right] = part.areas(area);
            let inside = self.draw_panel(left, title, focused);
            list(self, inside);
            let inside = self.draw_panel(right, detail_title, !focused);
            detail(self, inside);
        } else {
            let rows = u16::try_from(rows).unwrap_or(u16::MAX).saturating_add(1);
            let rows = rows.clamp(4, (area.height / 2).max(4));
            let part = Layout::vertical([Constraint::Length(rows), Constraint::Min(1)]);
            let [above, below] = part.areas(area);
            list(self, above);
            let rest = self.draw_rule(below, detail_title);
            detail(self, rest);
        }
    }

    /// Returns names with their values; long ones are below each other.
    pub(super) fn fact_lines(facts: &[(&str, String)], room: usize) -> Vec<Line<'static>> {
        let mut lines = Vec::new();
        for (name, value) in facts {
            let pieces =
                text::wrap_words(&text::sanitize_for_display(value), room.saturating_sub(11));
            for (at, piece) in pieces.into_iter().enumerate() {
                let name = if at == 0 { *name } else { "" };
                lines.push(line_from_spans([
                    styled_span(format!("{name:<11}"), DIM_STYLE),
                    styled_span(piece, Style::new()),
                ]));
            }
        }
        lines
    }

    pub(super) fn draw_projects_pane(&mut self, area: Rect) {
        let count = self.state.known.project_views.len();
        let title = self.state.chosen_project().map_or("", |it| it.slug.as_str()).to_owned();
        let titles = (count, "Projects", title.as_str());
        self.draw_list_and_detail(area, titles, Self::draw_project_list, Self::draw_project_detail);
    }

    fn draw_project_list(&mut self, area: Rect) {
        let state = self.state;
        let area = super::indent_area(area);
        let room = usize::from(area.width).saturating_sub(1);
        let projects = &state.known.project_views;
        let longest =
            projects.iter().map(|it| text::display_width(it.slug.as_str())).max().unwrap_or(0);
        let name = longest.clamp(8, 30);
        let wide = [name, 4, 10, room.saturating_sub(name + 4 + 10 + 3)];
        let heads = ["NAME", " AGE", "     SPENT", "TITLE"];
        let heads =
            heads.iter().zip(wide).map(|(head, cells)| ((*head).to_owned(), cells, BOLD_STYLE));
        let head = column_line(&heads.collect::<Vec<_>>());
        let rest = self.draw_heading(area, &head, Some(&FetchTopic::Projects));
        if projects.is_empty() {
            let lines = self.placeholder_lines(&FetchTopic::Projects, room).unwrap_or_else(|| {
                let words = "`cynork run` in a repository makes one for it; `cynork sample slug` makes one to try.";
                let mut lines = vec![Line::raw(""), Line::styled("There are no projects yet.", BOLD_STYLE)];
                lines.extend(wrap_lines(words, room, DIM_STYLE));
                lines
            });
            return self.draw_text(rest, ScrollArea::Projects, &lines);
        }
        let chosen = state.chosen_project().map(|it| it.id);
        let chosen = projects.iter().position(|it| Some(it.id) == chosen);
        let focused = state.focus == Focus::List;
        self.draw_rows(rest, ScrollArea::Projects, (projects.len(), chosen, focused), |at| {
            let project = &projects[at];
            let spent = self::project_spend(state, project);
            column_line(&[
                (project.slug.as_str().to_owned(), wide[0], Style::new()),
                (
                    text::align_right(&text::format_age(project.created_at, state.now), wide[1]),
                    wide[1],
                    DIM_STYLE,
                ),
                (text::align_right(&spent, wide[2]), wide[2], Style::new()),
                (text::sanitize_for_display(project.title.as_str()), wide[3], DIM_STYLE),
            ])
        });
    }

    fn draw_project_detail(&mut self, area: Rect) {
        let state = self.state;
        let Some(project) = state.chosen_project() else { return };
        let area = super::indent_area(area);
        let room = usize::from(area.width).saturating_sub(1);
        let repository = match state.known.repositories.get(&project.id) {
            None => "…".to_owned(),
            Some(None) => "none yet: `cynork project import`, or `cynork run` in it".to_owned(),
            Some(Some(it)) => {
                let commit = it.head.get(..10).unwrap_or(&it.head);
                let age = text::format_age(it.imported_at, state.now);
                format!("{} at {commit}, brought {age} ago", it.default_branch)
            }
        };
        let open = state.known.tasks.values().filter(|task| {
            use cynode_core::tasks::TaskStateName::{Queued, Running};
            task.project_id == project.id && matches!(task.state, Queued | Running)
        });
        let mut lines = Self::fact_lines(
            &[
                ("title", project.title.as_str().to_owned()),
                ("repository", repository),
                ("at work", format!("{} tasks", open.count())),
                ("spent", project_spend(state, project)),
                ("id", project.id.to_string()),
            ],
            room,
        );
        if let Some(words) = &project.description {
            lines.push(Line::raw(""));
            lines.extend(wrap_lines(words.as_str(), room, Style::new()));
        }
        lines.push(Line::raw(""));
        lines.push(Line::styled("Enter lists its tasks, c asks for a new one.", DIM_STYLE));
        self.draw_text(area, ScrollArea::Project, &lines);
    }
}

fn project_spend(
    state: &crate::commands::screen::state::ScreenState,
    project: &ProjectView,
) -> String {
    let id = project.id.to_string();
    let sum = state.known.by_project.iter().find(|sum| sum.key.as_deref() == Some(id.as_str()));
    let currency = state.known.display_currency();
    sum.map_or(String::new(), |sum| {
        format_money(u64::try_from(sum.cost_micros).unwrap_or(0), currency)
    })
}
