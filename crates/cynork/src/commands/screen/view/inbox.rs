//! The inbox: plans, questions and tool calls that wait for the person, each with its exact content.

use cynode_core::{ids::TaskId, workflow::units::UnitState};
use cynode_wire::tools::ApprovalView;
use ratatui::{
    layout::{Constraint, Layout, Rect},
    style::Style,
    text::Line,
};

use super::{
    BOLD_STYLE, DIM_STYLE, ScreenPainter, WARNING_STYLE, column_line, line_from_spans, styled_span,
    wrap_lines,
};
use crate::{
    commands::screen::{
        cache::FetchTopic,
        state::{Focus, ScreenState, ScrollArea},
        store::InboxItem,
        text,
    },
    draw,
    terminal::Colorizer,
};

/// Returns a tool call with its exact arguments.
pub(in super::super) fn call_lines(call: &ApprovalView) -> Vec<String> {
    let mut lines = vec![format!("tool        {}", text::sanitize_for_display(&call.tool))];
    match &call.arguments {
        Some(arguments) => {
            let written = serde_json::to_string_pretty(arguments).unwrap_or_default();
            lines.push("arguments".to_owned());
            lines.extend(text::sanitize_lines(&written).into_iter().map(|it| format!("  {it}")));
        }
        None => lines.push(format!("arguments   not kept; digest {}", call.arguments_digest)),
    }
    lines
}

/// Returns a summary of a waiting task's plan: its units and their work; empty while it is not known.
pub(in super::super) fn plan_summary(state: &ScreenState, task: TaskId) -> Vec<String> {
    let one = |title: &str| format!("• {}", text::first_sanitized_line(title));
    if let Some(Some(planned)) = state.known.pending_plan(task) {
        return planned.plan.planned_units().iter().map(|unit| one(unit.title.as_str())).collect();
    }
    let units = state.known.pending_units(task).iter();
    let units = units.filter(|unit| unit.state != UnitState::Cancelled);
    units.map(|unit| one(unit.title.as_str())).collect()
}

impl ScreenPainter<'_> {
    pub(super) fn draw_inbox_pane(&mut self, area: Rect) {
        let items = self.state.inbox_items();
        if items.is_empty() {
            return self.draw_empty_inbox(area);
        }
        let focused = self.state.focus == Focus::List;
        if self.state.size.is_wide() {
            let part = Layout::horizontal([Constraint::Percentage(42), Constraint::Min(60)]);
            let [list, detail] = part.areas(area);
            let inside = self.draw_panel(list, "What waits for you", focused);
            self.draw_inbox_list(inside, &items);
            let inside = self.draw_panel(detail, self.item_title(), !focused);
            self.draw_inbox_item(inside);
        } else {
            let rows = u16::try_from(items.len()).unwrap_or(u16::MAX).saturating_add(1);
            let rows = rows.min((area.height / 3).max(4));
            let part = Layout::vertical([Constraint::Length(rows), Constraint::Min(1)]);
            let [list, detail] = part.areas(area);
            self.draw_inbox_list(list, &items);
            let rest = self.draw_rule(detail, self.item_title());
            self.draw_inbox_item(rest);
        }
    }

    fn draw_empty_inbox(&mut self, area: Rect) {
        let area = super::indent_area(area);
        let room = usize::from(area.width);
        let lines = self.placeholder_lines(&FetchTopic::Approvals, room).unwrap_or_else(|| {
            let mut lines = vec![Line::raw(""), Line::styled("Nothing waits for you.", BOLD_STYLE)];
            let words = "Plans that need your yes, questions of tasks, and calls of tools that a rule wants \
                         a person to see come here by themselves.";
            lines.extend(wrap_lines(words, room, DIM_STYLE));
            if !self.state.known.unsure.is_empty() {
                let count = self.state.known.unsure.len();
                lines.push(Line::raw(""));
                lines.push(Line::styled(format!("{count} tasks are still looked at …"), DIM_STYLE));
            }
            lines
        });
        self.draw_text(area, ScrollArea::Inbox, &lines);
    }

    fn item_title(&self) -> &'static str {
        match self.state.chosen_item() {
            Some(InboxItem::Plan(_)) => "The plan, as it will be carried out",
            Some(InboxItem::Question(_)) => "The question",
            Some(InboxItem::Call(_)) => "The call, exactly",
            None => "",
        }
    }

    fn draw_inbox_list(&mut self, area: Rect, items: &[InboxItem]) {
        let state = self.state;
        let area = super::indent_area(area);
        let room = usize::from(area.width).saturating_sub(1);
        let name = (room / 4).clamp(14, 30);
        let wide = [8, name, 4, room.saturating_sub(8 + name + 4 + 3)];
        let heads = ["WHAT", "OF", " AGE", "IN SHORT"];
        let heads =
            heads.iter().zip(wide).map(|(head, cells)| ((*head).to_owned(), cells, BOLD_STYLE));
        let head = column_line(&heads.collect::<Vec<_>>());
        let rest = self.draw_heading(area, &head, Some(&FetchTopic::Approvals));
        let chosen = state.chosen_item();
        let chosen = items.iter().position(|item| Some(*item) == chosen);
        let focused = state.focus == Focus::List;
        self.draw_rows(rest, ScrollArea::Inbox, (items.len(), chosen, focused), |at| {
            let (word, of, since, short) = inbox_row(state, items[at]);
            let age = since.map_or(String::new(), |since| text::format_age(since, state.now));
            column_line(&[
                (word.to_owned(), wide[0], WARNING_STYLE),
                (of, wide[1], Style::new()),
                (text::align_right(&age, wide[2]), wide[2], DIM_STYLE),
                (short, wide[3], DIM_STYLE),
            ])
        });
    }

    fn draw_inbox_item(&mut self, area: Rect) {
        let area = super::indent_area(area);
        let room = usize::from(area.width).saturating_sub(1);
        let lines = match self.state.chosen_item() {
            Some(InboxItem::Plan(task)) => self.plan_lines(task, room),
            Some(InboxItem::Question(task)) => self.question_lines(task, room),
            Some(InboxItem::Call(id)) => {
                let topic = FetchTopic::Approval(id);
                match self.state.known.looked_at.get(&id) {
                    Some(call) => self.approval_lines(call, room),
                    None => self.placeholder_lines(&topic, room).unwrap_or_default(),
                }
            }
            None => Vec::new(),
        };
        self.draw_text(area, ScrollArea::Item, &lines);
    }

    fn plan_lines(&self, task: TaskId, room: usize) -> Vec<Line<'static>> {
        let state = self.state;
        let mut lines = self.task_request_lines(task, room);
        let Some(wait) = state.known.waits.get(&task) else { return lines };
        lines.extend(wait.question.iter().flat_map(|it| wrap_lines(it, room, WARNING_STYLE)));
        for (name, words) in state.known.plan_preview(task) {
            lines.extend(wrap_lines(&format!("{name:<9} {words}"), room, Style::new()));
        }
        lines.push(Line::raw(""));
        match state.known.pending_plan(task) {
            Some(Some(planned)) => {
                let judged = format!(
                    "class {}, scope {}",
                    planned.class.as_str().replace('_', " "),
                    planned.scope.as_str()
                );
                lines.push(Line::styled(judged, DIM_STYLE));
                let tree = draw::render_plan(&planned.plan, Colorizer(false));
                lines.extend(tree.iter().flat_map(|it| tree_lines(it, room)));
            }
            Some(None) => {
                let units = plan_summary(state, task);
                lines.extend(units.iter().flat_map(|it| wrap_lines(it, room, Style::new())));
            }
            None => {
                if let Some(project) = wait.project {
                    let topic = FetchTopic::Plan(project, task, wait.id);
                    lines.extend(self.placeholder_lines(&topic, room).unwrap_or_default());
                }
            }
        }
        lines
    }

    fn question_lines(&self, task: TaskId, room: usize) -> Vec<Line<'static>> {
        let mut lines = self.task_request_lines(task, room);
        let wait = self.state.known.waits.get(&task);
        let question = wait.and_then(|wait| wait.question.as_deref()).unwrap_or("May it go on?");
        lines.push(Line::styled("It asks:", BOLD_STYLE));
        lines.extend(wrap_lines(question, room, WARNING_STYLE));
        lines
    }

    /// Returns the description of the task.
    fn task_request_lines(&self, task: TaskId, room: usize) -> Vec<Line<'static>> {
        let Some(task) = self.state.known.tasks.get(&task) else { return Vec::new() };
        let mut lines = vec![line_from_spans([
            styled_span(task.name.as_str(), BOLD_STYLE),
            styled_span(
                format!("  in {}", self.state.known.project_name(task.project_id)),
                DIM_STYLE,
            ),
        ])];
        lines.extend(wrap_lines(task.description.as_str(), room, Style::new()));
        for criterion in &task.acceptance_criteria {
            let check = criterion
                .check
                .as_ref()
                .map_or(String::new(), |it| format!(" by {}", it.command_line()));
            let words = format!("must be shown: {}{check}", criterion.text.as_str());
            lines.extend(wrap_lines(&words, room, DIM_STYLE));
        }
        lines.push(Line::raw(""));
        lines
    }

    fn approval_lines(&self, call: &ApprovalView, room: usize) -> Vec<Line<'static>> {
        let state = self.state;
        let mut lines = Vec::new();
        for words in call_lines(call) {
            lines.extend(wrap_lines(&words, room, Style::new()));
        }
        lines.push(Line::raw(""));
        let task = call.task_id.and_then(|id| state.known.tasks.get(&id));
        let facts = [
            ("task", task.map(|task| task.name.as_str().to_owned())),
            ("project", call.project_id.map(|id| state.known.project_name(id))),
            ("agent", Some(call.agent_token_id.to_string())),
            ("because of", Some(call.rules.join(", "))),
            ("too late in", Some(text::format_duration(call.expires_at - state.now))),
            ("digest", Some(call.arguments_digest.clone())),
        ];
        for (name, value) in facts {
            let Some(value) = value.filter(|it| !it.is_empty()) else { continue };
            lines.extend(wrap_lines(&format!("{name:<12}{value}"), room, DIM_STYLE));
        }
        lines
    }
}

/// Wraps a long line of a tree below its text.
fn tree_lines(words: &str, room: usize) -> Vec<Line<'static>> {
    let words = text::sanitize_for_display(words);
    let tree = |letter: char| matches!(letter, ' ' | '│' | '├' | '└' | '─');
    let begin = words.find(|letter| !tree(letter)).unwrap_or(0);
    let (branch, said) = words.split_at(begin);
    let cells = text::display_width(branch);
    let rest: String =
        branch.chars().map(|it| if matches!(it, '│' | '├') { '│' } else { ' ' }).collect();
    let pieces = text::wrap_words(said, room.saturating_sub(cells).max(8));
    let pieces = pieces.into_iter().enumerate().map(|(at, said)| {
        let before = if at == 0 { branch } else { &rest };
        line_from_spans([styled_span(before, DIM_STYLE), styled_span(said, Style::new())])
    });
    pieces.collect()
}

/// Returns the row of an item: kind, task, age, summary.
fn inbox_row(
    state: &ScreenState,
    item: InboxItem,
) -> (&'static str, String, Option<time::OffsetDateTime>, String) {
    let wait = item.waiting_task().and_then(|task| state.known.waits.get(&task));
    let name = wait.map_or(String::new(), |wait| wait.name.clone());
    let since = wait.map(|wait| wait.since);
    let question = wait
        .and_then(|it| it.question.as_deref())
        .map(text::first_sanitized_line)
        .unwrap_or_default();
    match item {
        InboxItem::Plan(_) => ("⚑ plan", name, since, question),
        InboxItem::Question(_) => ("? asks", name, since, question),
        InboxItem::Call(id) => {
            let call = state.known.approvals.iter().find(|it| it.approval_id == id);
            let task = call.and_then(|call| call.task_id).and_then(|id| state.known.tasks.get(&id));
            let of = task.map_or("an agent".to_owned(), |task| task.name.as_str().to_owned());
            let short = call.map_or(String::new(), |call| {
                let seen = state.known.looked_at.get(&id).and_then(|it| it.arguments.as_ref());
                let seen = seen.map_or(String::new(), |it| format!(" {it}"));
                text::sanitize_for_display(&format!("{}{seen}", call.tool))
            });
            ("⚙ call", of, call.map(|call| call.asked_at), short)
        }
    }
}
