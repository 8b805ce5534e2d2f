//! The pull requests, their checks and comments.

use cynode_core::delivery::{PullRequestState, ReviewVerdict};
use cynode_wire::delivery::PullRequestDetail;
use ratatui::{layout::Rect, style::Style, text::Line};

use super::{
    ACTIVE_STYLE, BOLD_STYLE, DIM_STYLE, ERROR_STYLE, SUCCESS_STYLE, ScreenPainter, WARNING_STYLE,
    column_line, line_from_spans, styled_span, wrap_lines,
};
use crate::commands::screen::{
    cache::FetchTopic,
    state::{Focus, ScrollArea},
    text,
};

const fn pull_request_sign(state: PullRequestState) -> (&'static str, Style) {
    match state {
        PullRequestState::Opening => ("◌ opening", ACTIVE_STYLE),
        PullRequestState::Open => ("● open", WARNING_STYLE),
        PullRequestState::Merged => ("✓ merged", SUCCESS_STYLE),
        PullRequestState::Closed => ("– closed", DIM_STYLE),
        PullRequestState::Failed => ("✗ failed", ERROR_STYLE),
    }
}

impl ScreenPainter<'_> {
    pub(super) fn draw_pull_requests_pane(&mut self, area: Rect) {
        let count = self.state.known.pulls.len();
        let scope = self.state.scope.map(|id| format!(" of {}", self.state.known.project_name(id)));
        let title = format!("Pull requests{}", scope.unwrap_or_default());
        let chosen = self.state.chosen_pull_request();
        let chosen = chosen.map_or(String::new(), |it| format!("#{} {}", it.number, it.title));
        let chosen = text::sanitize_for_display(&chosen);
        self.draw_list_and_detail(
            area,
            (count, &title, &chosen),
            Self::draw_pull_request_list,
            Self::draw_pull_request_detail,
        );
    }

    fn draw_pull_request_list(&mut self, area: Rect) {
        let state = self.state;
        let area = super::indent_area(area);
        let room = usize::from(area.width).saturating_sub(1);
        let pulls = &state.known.pulls;
        let project = pulls
            .iter()
            .map(|it| text::display_width(&state.known.project_name(it.project_id)))
            .max();
        let project = project.unwrap_or(0).clamp(7, 16);
        let wide = [9, 5, project, 4, room.saturating_sub(9 + 5 + project + 4 + 4)];
        let heads = ["STATE", "#", "PROJECT", " AGE", "TITLE"];
        let heads =
            heads.iter().zip(wide).map(|(head, cells)| ((*head).to_owned(), cells, BOLD_STYLE));
        let head = column_line(&heads.collect::<Vec<_>>());
        let topic = FetchTopic::Pulls(state.scope);
        let rest = self.draw_heading(area, &head, Some(&topic));
        if pulls.is_empty() {
            let lines = self.placeholder_lines(&topic, room).unwrap_or_else(|| {
                let words = "A task that is completed offers what it changed as a pull request.";
                let mut lines = vec![
                    Line::raw(""),
                    Line::styled("There are no pull requests yet.", BOLD_STYLE),
                ];
                lines.extend(wrap_lines(words, room, DIM_STYLE));
                lines
            });
            return self.draw_text(rest, ScrollArea::PullRequests, &lines);
        }
        let chosen = state.chosen_pull_request().map(|it| it.id);
        let chosen = pulls.iter().position(|it| Some(it.id) == chosen);
        let focused = state.focus == Focus::List;
        self.draw_rows(rest, ScrollArea::PullRequests, (pulls.len(), chosen, focused), |at| {
            let pull = &pulls[at];
            let (word, style) = pull_request_sign(pull.state);
            column_line(&[
                (word.to_owned(), wide[0], style),
                (format!("#{}", pull.number), wide[1], BOLD_STYLE),
                (state.known.project_name(pull.project_id), wide[2], DIM_STYLE),
                (
                    text::align_right(&text::format_age(pull.updated_at, state.now), wide[3]),
                    wide[3],
                    DIM_STYLE,
                ),
                (text::first_sanitized_line(&pull.title), wide[4], Style::new()),
            ])
        });
    }

    fn draw_pull_request_detail(&mut self, area: Rect) {
        let state = self.state;
        let Some(pull) = state.chosen_pull_request() else { return };
        let area = super::indent_area(area);
        let room = usize::from(area.width).saturating_sub(1);
        let (word, style) = pull_request_sign(pull.state);
        let mut lines = vec![line_from_spans([
            styled_span(word, style),
            styled_span(format!("  {} into {}", pull.branch, pull.base_branch), DIM_STYLE),
        ])];
        if pull.url.starts_with("http") {
            lines.extend(wrap_lines(&pull.url, room, DIM_STYLE));
        }
        if let Some(why) = &pull.failure {
            lines.extend(wrap_lines(why, room, ERROR_STYLE));
        }
        lines.push(Line::raw(""));
        lines.extend(wrap_lines(pull.body.trim(), room, Style::new()));
        let topic = FetchTopic::Pull(pull.id);
        match state.known.pull_details.get(&pull.id) {
            Some(detail) => lines.extend(reaction_lines(detail, room)),
            None => lines.extend(self.placeholder_lines(&topic, room).unwrap_or_default()),
        }
        self.draw_text(area, ScrollArea::PullRequest, &lines);
    }
}

/// Returns checks, reviews and comments.
fn reaction_lines(detail: &PullRequestDetail, room: usize) -> Vec<Line<'static>> {
    let mut lines = vec![Line::raw("")];
    for check in &detail.checks {
        let style = match check.state.as_str() {
            "passed" => SUCCESS_STYLE,
            "failed" => ERROR_STYLE,
            _ => WARNING_STYLE,
        };
        let summary = text::first_sanitized_line(check.summary.as_deref().unwrap_or_default());
        lines.extend(wrap_lines(
            &format!("{} {}  {summary}", check.state, check.name),
            room,
            style,
        ));
    }
    for review in &detail.reviews {
        let (word, style) = match review.verdict {
            ReviewVerdict::Approve => ("approved", SUCCESS_STYLE),
            ReviewVerdict::Changes => ("changes wanted", WARNING_STYLE),
            ReviewVerdict::Comment => ("comment", DIM_STYLE),
        };
        let note = review.note.as_deref().unwrap_or_default();
        lines.extend(wrap_lines(&format!("{word}: {note}"), room, style));
    }
    for comment in &detail.comments {
        let at = comment.path.as_deref().map_or(String::new(), |path| format!("{path}: "));
        lines.extend(wrap_lines(&format!("» {at}{}", comment.body), room, DIM_STYLE));
    }
    lines
}
