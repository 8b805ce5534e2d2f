//! The nodes: which there are, how they are, what they have to do.

use cynode_wire::nodes::{NodeState, NodeView};
use ratatui::{
    layout::{Constraint, Layout, Rect},
    style::Style,
    text::Line,
};

use super::{BAD, BOLD, DIM, GOOD, LIVE, Sheet, WARN, columns, line, span, wrapped};
use crate::commands::screen::{
    shelf::Topic,
    state::{Focus, Place},
    text,
};

/// The cells of a bar of jobs.
const BAR: usize = 8;

fn node_sign(node: &NodeView) -> (&'static str, Style) {
    match (node.state, node.alive) {
        (NodeState::Removed, _) => ("– removed", DIM),
        (_, false) => ("✗ silent", BAD),
        (NodeState::Active, true) => ("● active", GOOD),
        (NodeState::Draining, true) => ("◌ draining", WARN),
    }
}

impl Sheet<'_> {
    pub(super) fn nodes(&mut self, area: Rect) {
        let focused = self.state.focus == Focus::List;
        if self.state.size.is_wide() {
            let part = Layout::horizontal([Constraint::Percentage(55), Constraint::Min(50)]);
            let [list, detail] = part.areas(area);
            let inside = self.panel(list, "Nodes", focused);
            self.node_list(inside);
            let title = self.state.chosen_node().map_or("", |node| node.name.as_str()).to_owned();
            let inside = self.panel(detail, &title, !focused);
            self.node(inside);
        } else {
            let count = u16::try_from(self.state.known.nodes.len()).unwrap_or(u16::MAX);
            let rows = count.saturating_add(1).clamp(4, (area.height / 2).max(4));
            let part = Layout::vertical([Constraint::Length(rows), Constraint::Min(1)]);
            let [list, detail] = part.areas(area);
            self.node_list(list);
            if let Some(node) = self.state.chosen_node() {
                let rest = self.rule(detail, &text::plain(&node.name));
                self.node(rest);
            }
        }
    }

    fn node_list(&mut self, area: Rect) {
        let state = self.state;
        let area = super::indented(area);
        let room = usize::from(area.width).saturating_sub(1);
        let wide = [room.saturating_sub(63).clamp(12, 30), 10, 16, 5, 7, 7, 5];
        let heads = ["NAME", "STATE", "JOBS", "CORES", " MEMORY", "   DISK", "SEEN"];
        let heads = heads.iter().zip(wide).map(|(head, cells)| ((*head).to_owned(), cells, BOLD));
        let head = columns(&heads.collect::<Vec<_>>());
        let rest = self.heading(area, &head, Some(&Topic::Nodes));
        if state.known.nodes.is_empty() {
            let lines = self.absent(&Topic::Nodes, room).unwrap_or_else(|| {
                let mut lines = vec![Line::raw(""), Line::styled("There are no nodes.", BOLD)];
                let words = "Nothing can be worked on without one. `cynork node join-token` lets a machine join.";
                lines.extend(wrapped(words, room, DIM));
                lines
            });
            return self.text(rest, Place::Nodes, &lines);
        }
        let nodes = &state.known.nodes;
        let chosen = state.chosen_node().map(|node| node.node_id);
        let chosen = nodes.iter().position(|node| Some(node.node_id) == chosen);
        let focused = state.focus == Focus::List;
        self.rows(rest, Place::Nodes, (nodes.len(), chosen, focused), |at| {
            let node = &nodes[at];
            let (word, style) = node_sign(node);
            let slots = node.report.slots;
            let bar = text::bar(u64::from(node.jobs), u64::from(slots), BAR);
            let full = if slots > 0 && node.jobs >= slots { WARN } else { LIVE };
            columns(&[
                (text::plain(&node.name), wide[0], Style::new()),
                (word.to_owned(), wide[1], style),
                (format!("{bar} {}/{slots}", node.jobs), wide[2], full),
                (text::right(&node.report.cores.to_string(), wide[3]), wide[3], DIM),
                (text::right(&text::mebibytes(node.report.memory_mib), wide[4]), wide[4], DIM),
                (text::right(&text::mebibytes(node.report.disk_free_mib), wide[5]), wide[5], DIM),
                (text::age(node.last_seen_at, state.now), wide[6], DIM),
            ])
        });
    }

    fn node(&mut self, area: Rect) {
        let Some(node) = self.state.chosen_node() else { return };
        let area = super::indented(area);
        let room = usize::from(area.width).saturating_sub(1);
        let backends = node.report.backends.iter().map(|it| {
            let name = match it.backend {
                cynode_wire::work::SandboxBackend::Bubblewrap => "bubblewrap",
                cynode_wire::work::SandboxBackend::Podman => "podman",
            };
            // Some programs name themselves in their version.
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
            ("joined", format!("{} ago", text::age(node.joined_at, self.state.now))),
            ("facts", join(facts.collect())),
        ];
        let mut lines = Vec::new();
        for (name, value) in sides {
            let pieces = text::wrap(&text::plain(&value), room.saturating_sub(11));
            for (at, piece) in pieces.into_iter().enumerate() {
                let name = if at == 0 { name } else { "" };
                lines.push(line([span(format!("{name:<11}"), DIM), span(piece, Style::new())]));
            }
        }
        self.text(area, Place::Node, &lines);
    }
}
