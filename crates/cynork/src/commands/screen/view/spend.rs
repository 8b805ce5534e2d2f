//! Spending by project and by model, and the state of the budgets.

use cynode_wire::models::{BudgetScopeType, BudgetStatusView, UsageSum};
use ratatui::{
    layout::{Constraint, Layout, Rect},
    style::Style,
    text::Line,
};

use super::{
    ACTIVE_STYLE, BOLD_STYLE, DIM_STYLE, ERROR_STYLE, SUCCESS_STYLE, ScreenPainter, WARNING_STYLE,
    column_line, line_from_spans, styled_span,
};
use crate::{
    commands::screen::{
        cache::FetchTopic,
        state::{Focus, ScreenState, ScrollArea},
        text,
    },
    draw::format_money,
    format::format_amount,
};

/// Converts negative numbers to zero.
fn non_negative(number: i64) -> u64 {
    u64::try_from(number).unwrap_or(0)
}

impl ScreenPainter<'_> {
    pub(super) fn draw_spend_pane(&mut self, area: Rect) {
        if self.state.size.is_wide() {
            let part = Layout::horizontal([Constraint::Percentage(50), Constraint::Min(50)]);
            let [left, right] = part.areas(area);
            let focused = self.state.focus == Focus::List;
            let inside = self.draw_panel(left, "Spent", focused);
            let inside = super::indent_area(inside);
            let room = usize::from(inside.width).saturating_sub(1);
            let lines =
                [self.total_lines(), self.project_sum_lines(room), self.model_sum_lines(room)]
                    .concat();
            self.draw_text(inside, ScrollArea::Spend, &lines);
            let inside = self.draw_panel(right, "Budgets", !focused);
            let inside = super::indent_area(inside);
            let room = usize::from(inside.width).saturating_sub(1);
            let lines = self.budget_list_lines(room);
            self.draw_text(inside, ScrollArea::Budgets, &lines);
        } else {
            let area = super::indent_area(area);
            let room = usize::from(area.width).saturating_sub(1);
            let lines =
                [self.total_lines(), self.project_sum_lines(room), self.model_sum_lines(room)];
            let mut lines = lines.concat();
            lines.push(Line::styled("Budgets", BOLD_STYLE));
            lines.extend(self.budget_list_lines(room));
            self.draw_text(area, ScrollArea::Spend, &lines);
        }
    }

    fn total_lines(&self) -> Vec<Line<'static>> {
        let sums = &self.state.known.by_model;
        let cost: u64 = sums.iter().map(|sum| non_negative(sum.cost_micros)).sum();
        let calls: u64 = sums.iter().map(|sum| non_negative(sum.calls)).sum();
        let failed: u64 = sums.iter().map(|sum| non_negative(sum.failed)).sum();
        let read: u64 = sums.iter().map(|sum| non_negative(sum.input_tokens)).sum();
        let wrote: u64 = sums.iter().map(|sum| non_negative(sum.output_tokens)).sum();
        let failed = if failed > 0 { format!(", {failed} failed") } else { String::new() };
        let facts = format!(
            "  in {calls} calls{failed}, {} tokens in, {} out",
            text::format_count(read),
            text::format_count(wrote)
        );
        vec![
            line_from_spans([
                styled_span(format_money(cost, self.state.known.display_currency()), BOLD_STYLE),
                styled_span(facts, DIM_STYLE),
            ]),
            Line::raw(""),
        ]
    }

    fn project_sum_lines(&self, room: usize) -> Vec<Line<'static>> {
        let state = self.state;
        let name = |key: &str| {
            key.parse().map_or_else(|_| key.to_owned(), |id| state.known.project_name(id))
        };
        self.sum_lines("By project", &FetchTopic::ByProject, &state.known.by_project, room, name)
    }

    fn model_sum_lines(&self, room: usize) -> Vec<Line<'static>> {
        let sums = &self.state.known.by_model;
        self.sum_lines("By model", &FetchTopic::ByModel, sums, room, ToOwned::to_owned)
    }

    fn sum_lines(
        &self,
        title: &str,
        topic: &FetchTopic,
        sums: &[UsageSum],
        room: usize,
        name: impl Fn(&str) -> String,
    ) -> Vec<Line<'static>> {
        let mut lines = vec![Line::styled(title.to_owned(), BOLD_STYLE)];
        if let Some(absent) = self.placeholder_lines(topic, room) {
            lines.extend(absent);
        } else if sums.is_empty() {
            lines.push(Line::styled("nothing yet", DIM_STYLE));
        }
        let most = sums.iter().map(|sum| non_negative(sum.cost_micros)).max().unwrap_or(0);
        let names = (room / 3).clamp(16, 32);
        let bar = room.saturating_sub(names + 3 * 10 + 4).clamp(6, 40);
        for sum in sums {
            let cost = non_negative(sum.cost_micros);
            let tokens = non_negative(sum.input_tokens) + non_negative(sum.output_tokens);
            let key = sum.key.as_deref().map_or_else(|| "none".to_owned(), &name);
            lines.push(column_line(&[
                (text::sanitize_for_display(&key), names, Style::new()),
                (text::align_right(&format_amount(cost), 10), 10, Style::new()),
                (text::render_bar(cost, most, bar), bar, ACTIVE_STYLE),
                (
                    text::align_right(
                        &format!("{} calls", text::format_count(non_negative(sum.calls))),
                        10,
                    ),
                    10,
                    DIM_STYLE,
                ),
                (
                    text::align_right(&format!("{} tok", text::format_count(tokens)), 10),
                    10,
                    DIM_STYLE,
                ),
            ]));
        }
        lines.push(Line::raw(""));
        lines
    }

    fn budget_list_lines(&self, room: usize) -> Vec<Line<'static>> {
        let budgets = &self.state.known.budgets;
        if let Some(lines) = self.placeholder_lines(&FetchTopic::Budgets, room) {
            return lines;
        }
        if budgets.is_empty() {
            let words = "There is no budget. `cynork budget set` makes one.";
            return vec![Line::styled(words, DIM_STYLE)];
        }
        budgets.iter().flat_map(|budget| budget_lines(self.state, budget, room)).collect()
    }
}

fn budget_lines(state: &ScreenState, budget: &BudgetStatusView, room: usize) -> Vec<Line<'static>> {
    let id = budget.scope_id.clone().unwrap_or_default();
    let (kind, name) = match budget.scope_type {
        BudgetScopeType::Installation => ("the whole installation", String::new()),
        BudgetScopeType::User => {
            let me = state.known.me.as_ref().filter(|me| me.user.id.to_string() == id);
            ("user", me.map_or(id, |me| me.user.handle.as_str().to_owned()))
        }
        BudgetScopeType::Project => {
            ("project", id.parse().map_or(id, |project| state.known.project_name(project)))
        }
        BudgetScopeType::Task => {
            let task = id.parse().ok().and_then(|task| state.known.tasks.get(&task));
            ("task", task.map_or(id, |task| task.name.as_str().to_owned()))
        }
    };
    let period = match budget.period.as_str() {
        "total" => "in all".to_owned(),
        other => format!("a {other}"),
    };
    let mut lines = vec![line_from_spans([
        styled_span(format!("{kind} {name}").trim_end(), Style::new()),
        styled_span(format!("  {period}"), DIM_STYLE),
    ])];
    let bar = (room / 3).clamp(10, 40);
    let unit = format!(" {}", state.known.display_currency());
    let mut limit = |most: Option<cynode_core::budget::Amount>,
                     spent: i64,
                     held: i64,
                     write: fn(u64) -> String,
                     unit: &str| {
        let Some(most) = most.map(|it| non_negative(it.as_i64())) else { return };
        let used = non_negative(spent) + non_negative(held);
        let percent = used.saturating_mul(100) / most.max(1);
        let style = if percent >= 100 {
            ERROR_STYLE
        } else if percent >= 80 {
            WARNING_STYLE
        } else {
            SUCCESS_STYLE
        };
        let held =
            if held > 0 { format!(", {} held", write(non_negative(held))) } else { String::new() };
        lines.push(line_from_spans([
            styled_span(format!("  {} ", text::render_bar(used, most, bar)), style),
            styled_span(format!("{percent:>3}%  "), style),
            styled_span(
                format!("{} of {}{unit}{held}", write(non_negative(spent)), write(most)),
                DIM_STYLE,
            ),
        ]));
    };
    limit(
        budget.max_cost_micros,
        budget.spent_micros,
        budget.reserved_micros,
        format_amount,
        &unit,
    );
    limit(
        budget.max_tokens,
        budget.spent_tokens,
        budget.reserved_tokens,
        text::format_count,
        " tokens",
    );
    lines
}
