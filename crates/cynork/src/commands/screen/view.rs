//! The view of the screen. Pure: it reads the state, fills a grid of cells, and returns the layout.

mod chat;
mod inbox;
mod models;
mod nodes;
mod overlay;
mod parts;
mod projects;
mod pulls;
mod spend;
mod task;
mod tasks;

use cynode_core::{delivery::PullRequestState, tasks::TaskStateName, workflow::waits::WaitReason};
use cynode_wire::platform::health::ReadinessCheck;
use ratatui::{
    Frame,
    buffer::Buffer,
    layout::{Constraint, Layout, Position, Rect},
    style::{Color, Modifier, Style},
    text::{Line, Span},
    widgets::{Block, BorderType, Clear, Widget},
};

pub(super) use inbox::{call_lines, plan_summary};
pub(super) use parts::part_text;

use super::{
    cache::FetchTopic,
    keys::{self, KeyCommand},
    prompt,
    state::{
        ClickTarget, ConnectionState, Focus, Pane, ScreenLayout, ScreenState, ScrollArea, TaskPart,
    },
    store::InboxItem,
    text,
};
use crate::failure::CliError;

/// The frames of the spinner.
const SPINNER_FRAMES: [&str; 8] = ["⠋", "⠙", "⠸", "⠴", "⠦", "⠇", "⠏", "⠹"];

/// Maximum length of an unwrapped line.
const MAX_UNWRAPPED_CELLS: usize = 10_000;

const DIM_STYLE: Style = Style::new().add_modifier(Modifier::DIM);
const BOLD_STYLE: Style = Style::new().add_modifier(Modifier::BOLD);
const SUCCESS_STYLE: Style = Style::new().fg(Color::Green);
const ERROR_STYLE: Style = Style::new().fg(Color::Red);
const WARNING_STYLE: Style = Style::new().fg(Color::Yellow);
const ACTIVE_STYLE: Style = Style::new().fg(Color::Cyan);
const SELECTED_STYLE: Style = Style::new().add_modifier(Modifier::REVERSED);
const UNFOCUSED_STYLE: Style =
    Style::new().add_modifier(Modifier::BOLD).add_modifier(Modifier::UNDERLINED);

/// Draws a frame.
pub(super) fn render_frame(state: &ScreenState, frame: &mut Frame) -> ScreenLayout {
    let (drawn, cursor) = render_screen(state, frame.buffer_mut());
    if let Some(cursor) = cursor {
        frame.set_cursor_position(cursor);
    }
    drawn
}

/// Fills a grid with the screen. Returns the layout and the cursor position.
pub(super) fn render_screen(
    state: &ScreenState,
    buffer: &mut Buffer,
) -> (ScreenLayout, Option<Position>) {
    let area = buffer.area;
    let mut sheet = ScreenPainter { state, buffer, drawn: ScreenLayout::default(), cursor: None };
    if state.size.is_too_small() {
        sheet.draw_too_small(area);
    } else {
        sheet.draw_all(area);
    }
    let ScreenPainter { drawn, cursor, buffer, .. } = sheet;
    if !state.colour {
        for cell in &mut buffer.content {
            (cell.fg, cell.bg) = (Color::Reset, Color::Reset);
        }
    }
    (drawn, cursor)
}

/// A grid that is being filled.
struct ScreenPainter<'a> {
    state: &'a ScreenState,
    buffer: &'a mut Buffer,
    drawn: ScreenLayout,
    cursor: Option<Position>,
}

/// Builds a line from spans.
fn line_from_spans<'a>(spans: impl IntoIterator<Item = Span<'a>>) -> Line<'a> {
    Line::from_iter(spans)
}

/// Returns a sanitized text in a style.
fn styled_span(text: impl AsRef<str>, style: Style) -> Span<'static> {
    Span::styled(text::sanitize_for_display(text.as_ref()), style)
}

/// Wraps a text in one style.
fn wrap_lines(text: &str, cells: usize, style: Style) -> Vec<Line<'static>> {
    let lines = text.lines().map(text::sanitize_for_display).flat_map(|it| match it.as_str() {
        "" => vec![String::new()],
        it => text::wrap_words(it, cells),
    });
    lines.map(|it| Line::styled(it, style)).collect()
}

/// Builds a table row: texts that are padded to their columns.
fn column_line(cells: &[(String, usize, Style)]) -> Line<'static> {
    let last = cells.iter().rposition(|(_, cells, _)| *cells > 0).unwrap_or(0);
    let spans = cells.iter().enumerate().filter(|(_, (_, cells, _))| *cells > 0);
    let spans = spans.flat_map(|(at, (text, cells, style))| {
        let fitted = if at == last {
            text::truncate_to_cells(text, *cells)
        } else {
            text::pad_to_cells(text, *cells)
        };
        [Span::styled(fitted, *style), Span::raw(if at == last { "" } else { " " })]
    });
    line_from_spans(spans)
}

/// Returns the text of a blocking check, with its fix.
fn check_words(check: &ReadinessCheck) -> String {
    let next = check.commands.first().or(check.fix.as_ref());
    let next = next.map(|next| format!("; next: {next}")).unwrap_or_default();
    text::sanitize_for_display(&format!("{}{next}", check.detail))
}

/// Returns mark, label and colour of a task's state.
fn task_status(state: &ScreenState, task: &cynode_wire::tasks::TaskView) -> (&'static str, Style) {
    match (task.state, state.wait_reason_of(task.id)) {
        (TaskStateName::Running, Some(WaitReason::Approval)) => ("⚑ plan", WARNING_STYLE),
        (TaskStateName::Running, Some(WaitReason::HumanInput)) => ("? asks", WARNING_STYLE),
        (TaskStateName::Running, Some(WaitReason::Paused)) => ("‖ paused", WARNING_STYLE),
        (TaskStateName::Running, _) => ("▸ running", ACTIVE_STYLE),
        (TaskStateName::Queued, _) => ("· queued", DIM_STYLE),
        (TaskStateName::Completed, _) => ("✓ done", SUCCESS_STYLE),
        (TaskStateName::Failed, _) => ("✗ failed", ERROR_STYLE),
        (TaskStateName::Cancelled, _) => ("– cancelled", DIM_STYLE),
    }
}

impl ScreenPainter<'_> {
    fn draw_too_small(&mut self, area: Rect) {
        let size = self.state.size;
        let words = [
            format!("This terminal is {}x{}.", size.width, size.height),
            "CyNode needs 60x15 or more.".to_owned(),
            "Make it larger, or q to quit.".to_owned(),
        ];
        let top = area.y + area.height.saturating_sub(3) / 2;
        for (row, words) in (top..).zip(words).take(usize::from(area.height)) {
            let room = usize::from(area.width);
            let words = text::truncate_to_cells(&words, room);
            let left = (room - text::display_width(&words)) / 2;
            self.put_line(
                area.x + u16::try_from(left).unwrap_or(0),
                row,
                &Line::raw(words),
                area.width,
            );
        }
    }

    fn draw_all(&mut self, area: Rect) {
        let rows = Layout::vertical([
            Constraint::Length(1),
            Constraint::Min(1),
            Constraint::Length(1),
            Constraint::Length(1),
        ]);
        let [head, body, hints, status] = rows.areas(area);
        self.draw_header(head);
        if self.state.login.is_some() {
            self.draw_login(body);
        } else {
            match self.state.pane {
                Pane::Tasks => self.draw_tasks_pane(body),
                Pane::Inbox => self.draw_inbox_pane(body),
                Pane::Nodes => self.draw_nodes_pane(body),
                Pane::Spend => self.draw_spend_pane(body),
                Pane::Projects => self.draw_projects_pane(body),
                Pane::PullRequests => self.draw_pull_requests_pane(body),
                Pane::Models => self.draw_models_pane(body),
                Pane::Chat => self.draw_chat_pane(body),
            }
        }
        self.draw_hints(hints);
        self.draw_status_bar(status);
        if self.state.help {
            self.draw_help(area);
        }
        if self.state.form.is_some() {
            self.draw_form(area);
        }
        if self.state.dialog.is_some() {
            self.draw_dialog(area);
        }
    }

    /// Draws a line. Returns the column after it.
    fn put_line(&mut self, x: u16, y: u16, line: &Line, cells: u16) -> u16 {
        if !self.buffer.area.contains(Position::new(x, y)) {
            return x;
        }
        let room = self.buffer.area.right() - x;
        self.buffer.set_line(x, y, line, cells.min(room)).0
    }

    fn add_click_target(&mut self, area: Rect, hit: ClickTarget) {
        self.drawn.hits.push((area, hit));
    }

    /// Returns the current frame of the spinner.
    fn spinner_frame(&self) -> &'static str {
        let turn = self.state.now.unix_timestamp_nanos() / 250_000_000;
        let turn = usize::try_from(turn.rem_euclid(8)).unwrap_or(0);
        SPINNER_FRAMES.get(turn).copied().unwrap_or_default()
    }

    fn draw_header(&mut self, area: Rect) {
        let mut x = self.put_line(
            area.x,
            area.y,
            &line_from_spans([styled_span(" CyNode ", BOLD_STYLE), Span::raw(" ")]),
            9,
        );
        let help = " ? help ";
        let cells = u16::try_from(help.len()).unwrap_or(0);
        let at = area.right().saturating_sub(cells);
        let gap = u16::from(area.width >= 100);
        for (pane, title) in self.visible_tabs(at.saturating_sub(x), gap) {
            let chosen = self.state.pane == pane && self.state.login.is_none();
            let style = if chosen { SELECTED_STYLE.patch(BOLD_STYLE) } else { Style::new() };
            let waits = pane == Pane::Inbox && title.ends_with(')');
            let spans = if waits {
                let (name, count) = title.rsplit_once(' ').unwrap_or((&title, ""));
                vec![
                    styled_span(format!(" {name}"), style),
                    styled_span(format!(" {count} "), style.patch(WARNING_STYLE)),
                ]
            } else {
                vec![styled_span(format!(" {title} "), style)]
            };
            let end = self.put_line(x, area.y, &line_from_spans(spans), at.saturating_sub(x));
            self.add_click_target(Rect::new(x, area.y, end - x, 1), ClickTarget::Pane(pane));
            x = end + gap;
        }
        self.put_line(at, area.y, &line_from_spans([styled_span(help, DIM_STYLE)]), cells);
        self.add_click_target(Rect::new(at, area.y, cells, 1), ClickTarget::Help);
    }

    /// Returns the panes whose names fit, including the visible one, each with its key.
    fn visible_tabs(&self, room: u16, gap: u16) -> Vec<(Pane, String)> {
        let waiting = self.state.inbox_items().len();
        let title = |pane: Pane| {
            let key = keys::key_label(KeyCommand::Pane(pane));
            match (pane, waiting) {
                (Pane::Inbox, 1..) => format!("{key} {} ({waiting})", pane.title()),
                _ => format!("{key} {}", pane.title()),
            }
        };
        let mut tabs: Vec<(Pane, String)> = Pane::ALL.map(|pane| (pane, title(pane))).to_vec();
        let cells = |tabs: &[(Pane, String)]| -> usize {
            tabs.iter().map(|(_, title)| text::display_width(title) + 2 + usize::from(gap)).sum()
        };
        while tabs.len() > 1 && cells(&tabs) > usize::from(room) {
            let last = tabs.iter().rposition(|(pane, _)| *pane != self.state.pane).unwrap_or(0);
            tabs.remove(last);
        }
        tabs
    }

    fn draw_status_bar(&mut self, area: Rect) {
        let state = self.state;
        let dot = || styled_span(" · ", DIM_STYLE);
        let base = state.base.trim_start_matches("http://").trim_start_matches("https://");
        let user = state.known.me.as_ref().map_or("nobody", |me| me.user.handle.as_str());
        let link = match &state.link {
            _ if state.login.is_some() => styled_span("◌ not logged in", WARNING_STYLE),
            ConnectionState::Opening => styled_span("◌ connecting", WARNING_STYLE),
            ConnectionState::Live => styled_span("● live", SUCCESS_STYLE),
            ConnectionState::Lost { since, .. } => {
                let since = text::format_age(*since, state.now);
                styled_span(format!("✗ reconnecting for {since}"), ERROR_STYLE)
            }
        };
        let waiting = match state.inbox_items().len() {
            0 => styled_span("nothing waits for you", DIM_STYLE),
            1 => styled_span("1 thing waits for you", WARNING_STYLE),
            more => styled_span(format!("{more} things wait for you"), WARNING_STYLE),
        };
        let spans = [
            styled_span(format!(" {base}"), BOLD_STYLE),
            dot(),
            styled_span(user, Style::new()),
            dot(),
            link,
        ];
        let mut line = line_from_spans(spans);
        if state.login.is_none() {
            line.push_span(dot());
            line.push_span(waiting);
        }
        if let Some(check) = state.known.worst_check().filter(|check| !check.blocks_work) {
            line.push_span(dot());
            line.push_span(styled_span(check_words(check), WARNING_STYLE));
        }
        self.put_line(area.x, area.y, &line, area.width);
        if state.shelf.has_slow_fetch(state.now)
            && !matches!(state.link, ConnectionState::Lost { .. })
        {
            let wheel = self.spinner_frame();
            let at = area.right().saturating_sub(3);
            self.put_line(at, area.y, &Line::styled(format!("{wheel} "), ACTIVE_STYLE), 3);
        }
    }

    /// Draws a note, the reason of a lost connection, or the available keys.
    fn draw_hints(&mut self, area: Rect) {
        let state = self.state;
        let room = usize::from(area.width).saturating_sub(2);
        if let Some(input) = &state.prompt {
            return self.draw_prompt(area, input);
        }
        if state.search.typing {
            let at = text::display_width(state.search.input.before_cursor());
            self.draw_typed_line(area, "/", state.search.input.as_str(), at);
            return;
        }
        if let Some(note) = &state.note {
            let (mark, style) =
                if note.good { ("✓", SUCCESS_STYLE) } else { ("✗", ERROR_STYLE) };
            let words = text::truncate_to_cells(
                &text::sanitize_for_display(&note.text),
                room.saturating_sub(2),
            );
            let line = line_from_spans([
                styled_span(format!(" {mark} "), style),
                styled_span(words, style),
            ]);
            self.put_line(area.x, area.y, &line, area.width);
            return;
        }
        if let (ConnectionState::Lost { why, .. }, None) = (&state.link, &state.login) {
            let words = text::truncate_to_cells(&text::first_sanitized_line(&why.detail), room);
            self.put_line(
                area.x,
                area.y,
                &line_from_spans([styled_span(format!(" {words}"), ERROR_STYLE)]),
                area.width,
            );
            return;
        }
        if let Some(check) = state.known.worst_check().filter(|check| check.blocks_work) {
            let words = text::truncate_to_cells(&check_words(check), room);
            self.put_line(
                area.x,
                area.y,
                &line_from_spans([styled_span(format!(" {words}"), ERROR_STYLE)]),
                area.width,
            );
            return;
        }
        let mut used = 1;
        let mut spans = vec![Span::raw(" ")];
        for (key, words) in key_hints(state) {
            let cells = text::display_width(key) + text::display_width(words) + 3;
            if used + cells > room + 2 {
                break;
            }
            used += cells;
            spans.push(styled_span(key, BOLD_STYLE));
            spans.push(styled_span(format!(" {words}  "), DIM_STYLE));
        }
        self.put_line(area.x, area.y, &line_from_spans(spans), area.width);
    }

    /// Draws the prompt and the candidates of its last word.
    fn draw_prompt(&mut self, area: Rect, input: &super::input::LineInput) {
        let at = text::display_width(input.before_cursor());
        let end = self.draw_typed_line(area, ":", input.as_str(), at);
        let candidates = prompt::completion_candidates(self.state, input.as_str());
        let from = end.saturating_add(3);
        let room = usize::from(area.right().saturating_sub(from));
        if room > 0 {
            let words =
                text::truncate_to_cells(&text::sanitize_for_display(&candidates.join("  ")), room);
            self.put_line(
                from,
                area.y,
                &Line::styled(words, DIM_STYLE),
                area.right().saturating_sub(from),
            );
        }
    }

    /// Draws an input line at the bottom. Returns the column after it.
    fn draw_typed_line(&mut self, area: Rect, sign: &str, text: &str, at: usize) -> u16 {
        let room = usize::from(area.width).saturating_sub(4);
        // The end of the text stays visible.
        let skipped = at.saturating_sub(room);
        let seen: String = text::sanitize_for_display(text).chars().skip(skipped).collect();
        let words = line_from_spans([
            styled_span(format!(" {sign}"), BOLD_STYLE),
            styled_span(text::truncate_to_cells(&seen, room), BOLD_STYLE),
        ]);
        let end = self.put_line(area.x, area.y, &words, area.width);
        let column = u16::try_from(at - skipped).unwrap_or(0);
        self.cursor = Some(Position::new(area.x + 2 + column, area.y));
        end
    }

    /// Draws a titled frame. Returns the inner area.
    fn draw_panel(&mut self, area: Rect, title: &str, focused: bool) -> Rect {
        let style = if focused { ACTIVE_STYLE } else { DIM_STYLE };
        let block = Block::bordered().border_type(BorderType::Rounded).border_style(style);
        let title = text::truncate_to_cells(title, usize::from(area.width).saturating_sub(6));
        let title = if title.is_empty() { title } else { format!(" {title} ") };
        let block = block.title(line_from_spans([styled_span(title, BOLD_STYLE)]));
        let inside = block.inner(area);
        block.render(area, self.buffer);
        inside
    }

    /// Draws a title. Returns the area below it.
    fn draw_heading(&mut self, area: Rect, title: &Line, topic: Option<&FetchTopic>) -> Rect {
        self.put_line(area.x, area.y, title, area.width);
        if let Some(topic) = topic {
            self.draw_fetch_sign(area, topic);
        }
        area_below(area, 1)
    }

    /// Draws a spinner or a failure mark at the right end of a line.
    fn draw_fetch_sign(&mut self, area: Rect, topic: &FetchTopic) {
        let (now, shelf) = (self.state.now, &self.state.shelf);
        let (sign, style) = if shelf.is_fetch_slow(topic, now) {
            (self.spinner_frame(), ACTIVE_STYLE)
        } else if shelf.last_failure(topic).is_some() && shelf.has_fetched(topic) {
            ("! old", WARNING_STYLE)
        } else {
            return;
        };
        let cells = u16::try_from(text::display_width(sign)).unwrap_or(1);
        self.put_line(
            area.right().saturating_sub(cells + 1),
            area.y,
            &Line::styled(sign, style),
            cells,
        );
    }

    /// Returns the placeholder of missing data, with the reason; `None` if the data is there.
    fn placeholder_lines(&self, topic: &FetchTopic, room: usize) -> Option<Vec<Line<'static>>> {
        let shelf = &self.state.shelf;
        if let Some(failure) = shelf.last_failure(topic).filter(|_| !shelf.has_fetched(topic)) {
            return Some(failure_lines(failure, room));
        }
        if shelf.has_fetched(topic) {
            return None;
        }
        let sign =
            if shelf.is_fetch_slow(topic, self.state.now) { self.spinner_frame() } else { "·" };
        Some(vec![Line::styled(format!("{sign} the server is asked"), DIM_STYLE)])
    }

    /// Returns the maximum length of a text line: unlimited in unwrapped mode.
    fn text_room(&self, area: Rect) -> usize {
        let room = usize::from(area.width).saturating_sub(1);
        if self.state.wrap { room } else { MAX_UNWRAPPED_CELLS }
    }

    /// Draws scrollable lines.
    fn draw_text(&mut self, area: Rect, place: ScrollArea, lines: &[Line]) {
        let page = usize::from(area.height);
        let end = lines.len().saturating_sub(page);
        let follows = matches!(place, ScrollArea::Log | ScrollArea::Chat) && self.state.follow;
        let top = if follows { end } else { self.state.scroll_offset(place).min(end) };
        let shift = if place.is_text() { self.state.shift } else { 0 };
        for (row, line) in (area.y..area.bottom()).zip(lines.iter().skip(top)) {
            if shift == 0 {
                self.put_line(area.x, row, line, area.width);
            } else {
                self.put_line(area.x, row, &shift_line(line, shift), area.width);
            }
        }
        if place.is_text() {
            let room = usize::from(area.width).saturating_sub(1);
            let longest = lines.iter().map(Line::width).max().unwrap_or(0);
            self.drawn.overflow = longest.saturating_sub(shift + room);
            self.mark_matches(area, lines, top, shift);
        }
        self.record_scroll(area, place, (top, page, end));
    }

    /// Highlights matches, and records their lines.
    fn mark_matches(&mut self, area: Rect, lines: &[Line], top: usize, shift: usize) {
        let needle = self.state.search.input.as_str().to_lowercase();
        if needle.is_empty() {
            return;
        }
        for (at, line) in lines.iter().enumerate() {
            let words: String = line.spans.iter().map(|span| span.content.as_ref()).collect();
            let lower = words.to_lowercase();
            let Some(first) = lower.find(&needle) else { continue };
            self.drawn.matches.push(at);
            let Some(row) = at.checked_sub(top).and_then(|it| u16::try_from(it).ok()) else {
                continue;
            };
            if row >= area.height {
                continue;
            }
            let before = text::display_width(&lower[..first]);
            let end = (before + text::display_width(&needle)).saturating_sub(shift);
            let begin = before.saturating_sub(shift);
            let small = |number: usize| u16::try_from(number).unwrap_or(u16::MAX);
            let width = small(end - begin);
            let spot = Rect::new(area.x.saturating_add(small(begin)), area.y + row, width, 1);
            let style = if self.state.found == Some(at) {
                SELECTED_STYLE
            } else {
                WARNING_STYLE.patch(UNFOCUSED_STYLE)
            };
            self.buffer.set_style(spot.intersection(area), style);
        }
    }

    /// Records the scroll position of an area, and draws its scroll bar.
    fn record_scroll(
        &mut self,
        area: Rect,
        place: ScrollArea,
        (top, page, end): (usize, usize, usize),
    ) {
        self.add_click_target(area, ClickTarget::Area(place));
        self.drawn.tops.insert(place, top);
        self.drawn.pages.insert(place, page);
        self.drawn.ends.insert(place, end);
        if end == 0 || area.height < 3 {
            return;
        }
        let at = (top * (page - 1) + end / 2) / end;
        for (row, y) in (area.y..area.bottom()).enumerate() {
            let (sign, style) = if row == at { ("┃", ACTIVE_STYLE) } else { ("│", DIM_STYLE) };
            self.put_line(area.right() - 1, y, &Line::styled(sign, style), 1);
        }
    }

    /// Draws rows and keeps the selected one visible.
    fn draw_rows(
        &mut self,
        area: Rect,
        place: ScrollArea,
        (count, chosen, focused): (usize, Option<usize>, bool),
        row: impl Fn(usize) -> Line<'static>,
    ) {
        let page = usize::from(area.height).max(1);
        let end = count.saturating_sub(page);
        let mut top = self.state.scroll_offset(place).min(end);
        if let Some(chosen) = chosen {
            top = top.min(chosen).max((chosen + 1).saturating_sub(page));
        }
        let bar = u16::from(end > 0 && area.height >= 3);
        for (at, y) in (top..count).zip(area.y..area.bottom()) {
            let spot = Rect::new(area.x, y, area.width.saturating_sub(bar), 1);
            self.put_line(area.x, y, &row(at), spot.width);
            if chosen == Some(at) {
                // One bar, whatever the colours of its text.
                let plain = Style::new().fg(Color::Reset).remove_modifier(Modifier::DIM);
                let style = if focused { plain.patch(SELECTED_STYLE) } else { UNFOCUSED_STYLE };
                self.buffer.set_style(spot, style);
            }
        }
        self.record_scroll(area, place, (top, page, end));
        for (at, y) in (top..count).zip(area.y..area.bottom()) {
            self.add_click_target(Rect::new(area.x, y, area.width, 1), ClickTarget::Row(place, at));
        }
    }

    /// Draws a horizontal rule.
    fn draw_rule(&mut self, area: Rect, title: &str) -> Rect {
        let room = usize::from(area.width);
        let title = if title.is_empty() { String::new() } else { format!(" {title} ") };
        let title = text::truncate_to_cells(&title, room.saturating_sub(4));
        let rest = room.saturating_sub(text::display_width(&title) + 2);
        let spans = [
            styled_span("──", DIM_STYLE),
            styled_span(&title, BOLD_STYLE),
            styled_span("─".repeat(rest), DIM_STYLE),
        ];
        self.put_line(area.x, area.y, &line_from_spans(spans), area.width);
        area_below(area, 1)
    }

    /// Clears an area for an overlay.
    fn clear_area(&mut self, area: Rect) {
        Clear.render(area, self.buffer);
    }
}

/// Removes the first cells of a line.
fn shift_line(line: &Line, cells: usize) -> Line<'static> {
    let mut left = cells;
    let spans = line.spans.iter().map(|span| {
        let mut words = span.content.as_ref();
        while left > 0
            && let Some(letter) = words.chars().next()
        {
            let (head, rest) = words.split_at(letter.len_utf8());
            left = left.saturating_sub(text::display_width(head).max(1));
            words = rest;
        }
        Span::styled(words.to_owned(), line.style.patch(span.style))
    });
    Line::from_iter(spans.collect::<Vec<_>>())
}

/// Returns the area below some rows.
fn area_below(area: Rect, rows: u16) -> Rect {
    let rows = rows.min(area.height);
    Rect { y: area.y + rows, height: area.height - rows, ..area }
}

/// Returns the area with a free column on the left.
fn indent_area(area: Rect) -> Rect {
    let cells = 1.min(area.width);
    Rect { x: area.x + cells, width: area.width - cells, ..area }
}

/// Returns a centered area.
fn centered_area(area: Rect, width: u16, height: u16) -> Rect {
    let (width, height) = (width.min(area.width), height.min(area.height));
    Rect {
        x: area.x + (area.width - width) / 2,
        y: area.y + (area.height - height) / 2,
        width,
        height,
    }
}

/// Returns the lines of an error and its fix.
fn failure_lines(failure: &CliError, room: usize) -> Vec<Line<'static>> {
    let mut lines = wrap_lines(&format!("✗ {}", failure.detail), room, ERROR_STYLE);
    if let Some(fix) = &failure.fix {
        lines.extend(wrap_lines(&format!("  next: {fix}"), room, DIM_STYLE));
    }
    lines
}

/// Returns the available keys, the most useful first.
fn key_hints(state: &ScreenState) -> Vec<(&'static str, &'static str)> {
    let key = |command, words| (keys::key_label(command), words);
    if state.login.is_some() {
        return vec![("Tab", "other field"), ("Enter", "log in"), ("Esc", "quit")];
    }
    if state.filter.typing {
        return vec![
            ("Enter", "look"),
            ("Esc", "all again"),
            ("state:running project:web words", "what may be typed"),
        ];
    }
    let mut hints = Vec::new();
    match (state.pane, state.focus) {
        (Pane::Tasks, _) => hints = task_hints(state),
        (Pane::Inbox, _) => {
            let (yes, no) = match state.chosen_item() {
                Some(InboxItem::Plan(_)) => ("approve", "send back"),
                Some(InboxItem::Question(_)) => ("answer", ""),
                Some(InboxItem::Call(_)) => ("approve", "deny"),
                None => ("", ""),
            };
            if !yes.is_empty() {
                hints.push(key(KeyCommand::Approve, yes));
            }
            if !no.is_empty() {
                hints.push(key(KeyCommand::Deny, no));
            }
            if !yes.is_empty() {
                hints.push(key(KeyCommand::GoToTask, "its task"));
                hints.push(key(KeyCommand::Open, "read"));
            }
        }
        (Pane::Nodes, _) => hints.push(key(KeyCommand::Open, "read")),
        (Pane::Spend, _) => hints.push(("j k", "scroll")),
        (Pane::Projects, _) => {
            hints.push(key(KeyCommand::Open, "its tasks"));
            hints.push(key(KeyCommand::NewTask, "new task"));
        }
        (Pane::PullRequests, _) => {
            if state.chosen_pull_request().is_some_and(|it| it.state == PullRequestState::Open) {
                hints.push(key(KeyCommand::Merge, "merge"));
            }
            hints.push(key(KeyCommand::GoToTask, "its task"));
            hints.push(key(KeyCommand::Edit, "diff in $EDITOR"));
            hints.push(key(KeyCommand::Open, "read"));
        }
        (Pane::Models, _) => hints.push(key(KeyCommand::Open, "read")),
        (Pane::Chat, Focus::Detail) => {
            let leave = if state.chat.sending { "stop" } else { "other keys" };
            return vec![("Enter", "send"), ("Esc", leave), ("PgUp PgDn", "scroll")];
        }
        (Pane::Chat, Focus::List) => hints.push(key(KeyCommand::Open, "type")),
    }
    hints.push((":", "commands"));
    hints.push(("Tab", "next pane"));
    hints.push(key(KeyCommand::Quit, "quit"));
    hints
}

/// Returns those of the task pane.
fn task_hints(state: &ScreenState) -> Vec<(&'static str, &'static str)> {
    let key = |command, words| (keys::key_label(command), words);
    let focus = state.focus;
    let mut hints = Vec::new();
    if focus == Focus::List {
        hints.push(key(KeyCommand::Open, "open"));
        hints.push(key(KeyCommand::NewTask, "new task"));
        hints.push(key(KeyCommand::Filter, "filter"));
    } else {
        hints.push(key(KeyCommand::Back, "back"));
        hints.push(("5-9", "parts"));
    }
    if state.shows_task() && matches!(state.part, TaskPart::Logs | TaskPart::Diff) {
        let words = if state.part == TaskPart::Logs { "other job" } else { "other file" };
        hints.push(("[ ]", words));
    }
    if state.shows_task() && state.part == TaskPart::Logs {
        hints.push(key(KeyCommand::Follow, if state.follow { "stay here" } else { "follow" }));
    }
    let task = state.chosen_task();
    let waits = task.and_then(|task| state.wait_reason_of(task.id));
    let lives = task
        .is_some_and(|task| matches!(task.state, TaskStateName::Queued | TaskStateName::Running));
    match waits {
        Some(WaitReason::Approval) => {
            hints.push(key(KeyCommand::Approve, "approve"));
            hints.push(key(KeyCommand::Deny, "send back"));
        }
        Some(WaitReason::HumanInput) => hints.push(key(KeyCommand::Approve, "answer")),
        Some(WaitReason::Paused) => hints.push(key(KeyCommand::Resume, "resume")),
        _ if lives => hints.push(key(KeyCommand::Pause, "pause")),
        _ => {}
    }
    if state.mergeable_pull_request().is_some() && state.shows_task() {
        hints.push(key(KeyCommand::Merge, "merge"));
    }
    if lives {
        hints.push(key(KeyCommand::Cancel, "cancel"));
    }
    if task
        .is_some_and(|task| matches!(task.state, TaskStateName::Failed | TaskStateName::Cancelled))
    {
        hints.push(key(KeyCommand::Retry, "retry"));
    }
    if focus == Focus::Detail && state.visible_text_area().is_some() {
        hints.push(key(KeyCommand::Filter, "search"));
        let words = if state.wrap { "unwrap" } else { "wrap" };
        hints.push(key(KeyCommand::Wrap, words));
    }
    if focus == Focus::Detail {
        hints.push(key(KeyCommand::Edit, "editor"));
    }
    hints
}
