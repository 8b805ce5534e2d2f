//! What was spent, by project and by model, and how near the ceilings are.

use cynode_wire::models::{BudgetScopeType, CeilingView, UsageSum};
use ratatui::{
    layout::{Constraint, Layout, Rect},
    style::Style,
    text::Line,
};

use super::{BAD, BOLD, DIM, GOOD, LIVE, Sheet, WARN, columns, line, span};
use crate::{
    commands::screen::{
        shelf::Topic,
        state::{Focus, Place, State},
        text,
    },
    draw::money,
};

/// A number that is never below nothing.
fn least(number: i64) -> u64 {
    u64::try_from(number).unwrap_or(0)
}

impl Sheet<'_> {
    pub(super) fn spend(&mut self, area: Rect) {
        if self.state.size.is_wide() {
            let part = Layout::horizontal([Constraint::Percentage(50), Constraint::Min(50)]);
            let [left, right] = part.areas(area);
            let focused = self.state.focus == Focus::List;
            let inside = self.panel(left, "Spent", focused);
            let inside = super::indented(inside);
            let room = usize::from(inside.width).saturating_sub(1);
            let lines = [self.total(), self.by_project(room), self.by_model(room)].concat();
            self.text(inside, Place::Spend, &lines);
            let inside = self.panel(right, "Budgets", !focused);
            let inside = super::indented(inside);
            let room = usize::from(inside.width).saturating_sub(1);
            let lines = self.budgets(room);
            self.text(inside, Place::Budgets, &lines);
        } else {
            let area = super::indented(area);
            let room = usize::from(area.width).saturating_sub(1);
            let lines = [self.total(), self.by_project(room), self.by_model(room)];
            let mut lines = lines.concat();
            lines.push(Line::styled("Budgets", BOLD));
            lines.extend(self.budgets(room));
            self.text(area, Place::Spend, &lines);
        }
    }

    fn total(&self) -> Vec<Line<'static>> {
        let sums = &self.state.known.by_model;
        let cost: u64 = sums.iter().map(|sum| least(sum.cost_micros)).sum();
        let calls: u64 = sums.iter().map(|sum| least(sum.calls)).sum();
        let failed: u64 = sums.iter().map(|sum| least(sum.failed)).sum();
        let read: u64 = sums.iter().map(|sum| least(sum.input_tokens)).sum();
        let wrote: u64 = sums.iter().map(|sum| least(sum.output_tokens)).sum();
        let failed = if failed > 0 { format!(", {failed} failed") } else { String::new() };
        let facts = format!(
            "  in {calls} calls{failed}, {} tokens in, {} out",
            text::short(read),
            text::short(wrote)
        );
        vec![line([span(money(cost), BOLD), span(facts, DIM)]), Line::raw("")]
    }

    fn by_project(&self, room: usize) -> Vec<Line<'static>> {
        let state = self.state;
        let name =
            |key: &str| key.parse().map_or_else(|_| key.to_owned(), |id| state.known.project(id));
        self.sums("By project", &Topic::ByProject, &state.known.by_project, room, name)
    }

    fn by_model(&self, room: usize) -> Vec<Line<'static>> {
        let sums = &self.state.known.by_model;
        self.sums("By model", &Topic::ByModel, sums, room, ToOwned::to_owned)
    }

    fn sums(
        &self,
        title: &str,
        topic: &Topic,
        sums: &[UsageSum],
        room: usize,
        name: impl Fn(&str) -> String,
    ) -> Vec<Line<'static>> {
        let mut lines = vec![Line::styled(title.to_owned(), BOLD)];
        if let Some(absent) = self.absent(topic, room) {
            lines.extend(absent);
        } else if sums.is_empty() {
            lines.push(Line::styled("nothing yet", DIM));
        }
        let most = sums.iter().map(|sum| least(sum.cost_micros)).max().unwrap_or(0);
        let names = (room / 3).clamp(16, 32);
        let bar = room.saturating_sub(names + 3 * 10 + 4).clamp(6, 40);
        for sum in sums {
            let cost = least(sum.cost_micros);
            let tokens = least(sum.input_tokens) + least(sum.output_tokens);
            let key = sum.key.as_deref().map_or_else(|| "none".to_owned(), &name);
            lines.push(columns(&[
                (text::plain(&key), names, Style::new()),
                (text::right(&money(cost), 10), 10, Style::new()),
                (text::bar(cost, most, bar), bar, LIVE),
                (text::right(&format!("{} calls", text::short(least(sum.calls))), 10), 10, DIM),
                (text::right(&format!("{} tok", text::short(tokens)), 10), 10, DIM),
            ]));
        }
        lines.push(Line::raw(""));
        lines
    }

    fn budgets(&self, room: usize) -> Vec<Line<'static>> {
        let budgets = &self.state.known.budgets;
        if let Some(lines) = self.absent(&Topic::Budgets, room) {
            return lines;
        }
        if budgets.is_empty() {
            let words = "There is no ceiling. `cynork budget set` makes one.";
            return vec![Line::styled(words, DIM)];
        }
        budgets.iter().flat_map(|budget| budget_lines(self.state, budget, room)).collect()
    }
}

fn budget_lines(state: &State, budget: &CeilingView, room: usize) -> Vec<Line<'static>> {
    let id = budget.scope_id.clone().unwrap_or_default();
    let (kind, name) = match budget.scope_type {
        BudgetScopeType::Installation => ("the whole installation", String::new()),
        BudgetScopeType::User => {
            let me = state.known.me.as_ref().filter(|me| me.user.id.to_string() == id);
            ("user", me.map_or(id, |me| me.user.handle.as_str().to_owned()))
        }
        BudgetScopeType::Project => {
            ("project", id.parse().map_or(id, |project| state.known.project(project)))
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
    let mut lines = vec![line([
        span(format!("{kind} {name}").trim_end(), Style::new()),
        span(format!("  {period}"), DIM),
    ])];
    let bar = (room / 3).clamp(10, 40);
    let mut limit = |most: Option<cynode_core::budget::Amount>,
                     spent: i64,
                     held: i64,
                     write: fn(u64) -> String,
                     unit: &str| {
        let Some(most) = most.map(|it| least(it.as_i64())) else { return };
        let used = least(spent) + least(held);
        let percent = used.saturating_mul(100) / most.max(1);
        let style = if percent >= 100 {
            BAD
        } else if percent >= 80 {
            WARN
        } else {
            GOOD
        };
        let held = if held > 0 { format!(", {} held", write(least(held))) } else { String::new() };
        lines.push(line([
            span(format!("  {} ", text::bar(used, most, bar)), style),
            span(format!("{percent:>3}%  "), style),
            span(format!("{} of {}{unit}{held}", write(least(spent)), write(most)), DIM),
        ]));
    };
    limit(budget.max_cost_micros, budget.spent_micros, budget.held_micros, money, "");
    limit(budget.max_tokens, budget.spent_tokens, budget.held_tokens, text::short, " tokens");
    lines
}
