//! The nodes, their health and load.

use cynode_core::nodes::NodeState;
use cynode_wire::nodes::NodeView;
use ratatui::{
    layout::{Constraint, Layout, Rect},
    style::Style,
    text::Line,
};

use super::{
    ACTIVE_STYLE, BOLD_STYLE, DIM_STYLE, ERROR_STYLE, SUCCESS_STYLE, ScreenPainter, WARNING_STYLE,
    column_line, line_from_spans, styled_span, wrap_lines,
};
use crate::commands::screen::{
    cache::FetchTopic,
    state::{Focus, ScrollArea},
    text,
};

/// Width of the job bar.
const JOBS_BAR_CELLS: usize = 8;

fn node_sign(node: &NodeView) -> (&'static str, Style) {
    match (node.state, node.alive) {
        (NodeState::Removed, _) => ("– removed", DIM_STYLE),
        (_, false) => ("✗ silent", ERROR_STYLE),
        (NodeState::Active, true) => ("● active", SUCCESS_STYLE),
        (NodeState::Draining, true) => ("◌ draining", WARNING_STYLE),
    }
}

impl ScreenPainter<'_> {
    pub(super) fn draw_nodes_pane(&mut self, area: Rect) {
        let focused = self.state.focus == Focus::List;
        if self.state.size.is_wide() {
            let part = Layout::horizontal([Constraint::Percentage(55), Constraint::Min(50)]);
            let [list, detail] = part.areas(area);
            let inside = self.draw_panel(list, "Nodes", focused);
            self.draw_node_list(inside);
            let title = self.state.chosen_node().map_or("", |node| node.name.as_str()).to_owned();
            let inside = self.draw_panel(detail, &title, !focused);
            self.draw_node_detail(inside);
        } else {
            let count = u16::try_from(self.state.known.nodes.len()).unwrap_or(u16::MAX);
            let rows = count.saturating_add(1).clamp(4, (area.height / 2).max(4));
            let part = Layout::vertical([Constraint::Length(rows), Constraint::Min(1)]);
            let [list, detail] = part.areas(area);
            self.draw_node_list(list);
            if let Some(node) = self.state.chosen_node() {
                let rest = self.draw_rule(detail, &text::sanitize_for_display(&node.name));
                self.draw_node_detail(rest);
            }
        }
    }

    fn draw_node_list(&mut self, area: Rect) {
        let state = self.state;
        let area = super::indent_area(area);
        let room = usize::from(area.width).saturating_sub(1);
        let wide = [room.saturating_sub(63).clamp(12, 30), 10, 16, 5, 7, 7, 5];
        let heads = ["NAME", "STATE", "JOBS", "CORES", " MEMORY", "   DISK", "SEEN"];
        let heads =
            heads.iter().zip(wide).map(|(head, cells)| ((*head).to_owned(), cells, BOLD_STYLE));
        let head = column_line(&heads.collect::<Vec<_>>());
        let rest = self.draw_heading(area, &head, Some(&FetchTopic::Nodes));
        if state.known.nodes.is_empty() {
            let lines = self.placeholder_lines(&FetchTopic::Nodes, room).unwrap_or_else(|| {
                let mut lines = vec![Line::raw(""), Line::styled("There are no nodes.", BOLD_STYLE)];
                let words = "Nothing can be worked on without one. `cynork node join-token` lets a machine join.";
                lines.extend(wrap_lines(words, room, DIM_STYLE));
                lines
            });
            return self.draw_text(rest, ScrollArea::Nodes, &lines);
        }
        let nodes = &state.known.nodes;
        let chosen = state.chosen_node().map(|node| node.node_id);
        let chosen = nodes.iter().position(|node| Some(node.node_id) == chosen);
        let focused = state.focus == Focus::List;
        self.draw_rows(rest, ScrollArea::Nodes, (nodes.len(), chosen, focused), |at| {
            let node = &nodes[at];
            let (word, style) = node_sign(node);
            let slots = node.report.slots;
            let bar = text::render_bar(u64::from(node.jobs), u64::from(slots), JOBS_BAR_CELLS);
            let full = if slots > 0 && node.jobs >= slots { WARNING_STYLE } else { ACTIVE_STYLE };
            column_line(&[
                (text::sanitize_for_display(&node.name), wide[0], Style::new()),
                (word.to_owned(), wide[1], style),
                (format!("{bar} {}/{slots}", node.jobs), wide[2], full),
                (text::align_right(&node.report.cores.to_string(), wide[3]), wide[3], DIM_STYLE),
                (
                    text::align_right(&text::format_mebibytes(node.report.memory_mib), wide[4]),
                    wide[4],
                    DIM_STYLE,
                ),
                (
                    text::align_right(&text::format_mebibytes(node.report.disk_free_mib), wide[5]),
                    wide[5],
                    DIM_STYLE,
                ),
                (text::format_age(node.last_seen_at, state.now), wide[6], DIM_STYLE),
            ])
        });
    }

    fn draw_node_detail(&mut self, area: Rect) {
        let Some(node) = self.state.chosen_node() else { return };
        let area = super::indent_area(area);
        let room = usize::from(area.width).saturating_sub(1);
        let backends = node.report.backends.iter().map(|it| {
            let name = match it.backend {
                cynode_core::workflow::jobs::SandboxBackend::Bubblewrap => "bubblewrap",
                cynode_core::workflow::jobs::SandboxBackend::Podman => "podman",
            };
            // Some programs repeat their name in their version.
            if it.version.starts_with(name) {
                it.version.clone()
            } else {
                format!("{name} {}", it.version)
            }
        });
        let agents = node.report.agents.iter().map(|it| format!("{} {}", it.agent, it.version));
        let facts = node.report.facts.iter().map(|(name, value)| format!("{name} {value}"));
        let join =
            |all: Vec<String>| if all.is_empty() { "none".to_owned() } else { all.join(", ") };
        let sides = [
            ("id", node.node_id.to_string()),
            ("version", node.report.version.clone()),
            ("labels", join(node.labels.clone())),
            ("sandboxes", join(backends.collect())),
            ("agents", join(agents.collect())),
            ("joined", format!("{} ago", text::format_age(node.joined_at, self.state.now))),
            ("facts", join(facts.collect())),
        ];
        let mut lines = Vec::new();
        for (name, value) in sides {
            let pieces =
                text::wrap_words(&text::sanitize_for_display(&value), room.saturating_sub(11));
            for (at, piece) in pieces.into_iter().enumerate() {
                let name = if at == 0 { name } else { "" };
                lines.push(line_from_spans([
                    styled_span(format!("{name:<11}"), DIM_STYLE),
                    styled_span(piece, Style::new()),
                ]));
            }
        }
        self.draw_text(area, ScrollArea::Node, &lines);
    }
}
