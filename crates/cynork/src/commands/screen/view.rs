//! What is seen. Pure: it reads the state and fills a grid of cells; where what was put is given back.

mod inbox;
mod nodes;
mod over;
mod parts;
mod spend;
mod task;
mod tasks;

use cynode_core::{tasks::TaskStateName, workflow::waits::WaitReason};
use ratatui::{
    Frame,
    buffer::Buffer,
    layout::{Constraint, Layout, Position, Rect},
    style::{Color, Modifier, Style},
    text::{Line, Span},
    widgets::{Block, BorderType, Clear, Widget},
};

pub(super) use inbox::{call_lines, plan_short};

use super::{
    keys::{self, Command},
    known::Item,
    shelf::Topic,
    state::{Drawn, Focus, Hit, Link, Pane, Part, Place, State},
    text,
};
use crate::failure::Failure;

/// The signs of something on its way, in turn.
const WHEEL: [&str; 8] = ["⠋", "⠙", "⠸", "⠴", "⠦", "⠇", "⠏", "⠹"];

const DIM: Style = Style::new().add_modifier(Modifier::DIM);
const BOLD: Style = Style::new().add_modifier(Modifier::BOLD);
const GOOD: Style = Style::new().fg(Color::Green);
const BAD: Style = Style::new().fg(Color::Red);
const WARN: Style = Style::new().fg(Color::Yellow);
const LIVE: Style = Style::new().fg(Color::Cyan);
const CHOSEN: Style = Style::new().add_modifier(Modifier::REVERSED);
const FADED: Style = Style::new().add_modifier(Modifier::BOLD).add_modifier(Modifier::UNDERLINED);

/// Draws the screen.
pub(super) fn view(state: &State, frame: &mut Frame) -> Drawn {
    let (drawn, cursor) = paint(state, frame.buffer_mut());
    if let Some(cursor) = cursor {
        frame.set_cursor_position(cursor);
    }
    drawn
}

/// Fills a grid with the screen; where what was put, and where the next letter goes.
pub(super) fn paint(state: &State, buffer: &mut Buffer) -> (Drawn, Option<Position>) {
    let area = buffer.area;
    let mut sheet = Sheet { state, buffer, drawn: Drawn::default(), cursor: None };
    if state.size.is_too_small() {
        sheet.too_small(area);
    } else {
        sheet.all(area);
    }
    let Sheet { drawn, cursor, buffer, .. } = sheet;
    if !state.colour {
        for cell in &mut buffer.content {
            (cell.fg, cell.bg) = (Color::Reset, Color::Reset);
        }
    }
    (drawn, cursor)
}

/// A grid that is being filled.
struct Sheet<'a> {
    state: &'a State,
    buffer: &'a mut Buffer,
    drawn: Drawn,
    cursor: Option<Position>,
}

/// One line of spans.
fn line<'a>(spans: impl IntoIterator<Item = Span<'a>>) -> Line<'a> {
    Line::from_iter(spans)
}

/// A text in a style, as it may be shown.
fn span(text: impl AsRef<str>, style: Style) -> Span<'static> {
    Span::styled(text::plain(text.as_ref()), style)
}

/// A text that is wrapped, in one style.
fn wrapped(text: &str, cells: usize, style: Style) -> Vec<Line<'static>> {
    let lines = text.lines().map(text::plain).flat_map(|it| match it.as_str() {
        "" => vec![String::new()],
        it => text::wrap(it, cells),
    });
    lines.map(|it| Line::styled(it, style)).collect()
}

/// A table's line: texts that are filled up to their columns.
fn columns(cells: &[(String, usize, Style)]) -> Line<'static> {
    let last = cells.len().saturating_sub(1);
    let spans = cells.iter().enumerate().filter(|(_, (_, cells, _))| *cells > 0);
    let spans = spans.flat_map(|(at, (text, cells, style))| {
        let fitted = if at == last { text::cut(text, *cells) } else { text::fit(text, *cells) };
        [Span::styled(fitted, *style), Span::raw(if at == last { "" } else { " " })]
    });
    line(spans)
}

/// The mark, word and colour of a task as it stands.
fn standing(state: &State, task: &cynode_wire::tasks::TaskView) -> (&'static str, Style) {
    match (task.state, state.waits_for(task.id)) {
        (TaskStateName::Running, Some(WaitReason::Approval)) => ("⚑ plan", WARN),
        (TaskStateName::Running, Some(WaitReason::HumanInput)) => ("? asks", WARN),
        (TaskStateName::Running, Some(WaitReason::Paused)) => ("‖ paused", WARN),
        (TaskStateName::Running, _) => ("▸ running", LIVE),
        (TaskStateName::Queued, _) => ("· queued", DIM),
        (TaskStateName::Completed, _) => ("✓ done", GOOD),
        (TaskStateName::Failed, _) => ("✗ failed", BAD),
        (TaskStateName::Cancelled, _) => ("– cancelled", DIM),
    }
}

impl Sheet<'_> {
    fn too_small(&mut self, area: Rect) {
        let size = self.state.size;
        let words = [
            format!("This terminal is {}x{}.", size.width, size.height),
            "CyNode needs 60x15 or more.".to_owned(),
            "Make it larger, or q to quit.".to_owned(),
        ];
        let top = area.y + area.height.saturating_sub(3) / 2;
        for (row, words) in (top..).zip(words).take(usize::from(area.height)) {
            let room = usize::from(area.width);
            let words = text::cut(&words, room);
            let left = (room - text::width(&words)) / 2;
            self.put(area.x + u16::try_from(left).unwrap_or(0), row, &Line::raw(words), area.width);
        }
    }

    fn all(&mut self, area: Rect) {
        let rows = Layout::vertical([
            Constraint::Length(1),
            Constraint::Min(1),
            Constraint::Length(1),
            Constraint::Length(1),
        ]);
        let [head, body, hints, status] = rows.areas(area);
        self.head(head);
        if self.state.login.is_some() {
            self.login(body);
        } else {
            match self.state.pane {
                Pane::Tasks => self.tasks(body),
                Pane::Inbox => self.inbox(body),
                Pane::Nodes => self.nodes(body),
                Pane::Spend => self.spend(body),
            }
        }
        self.hints(hints);
        self.status(status);
        if self.state.help {
            self.help(area);
        }
        if self.state.dialog.is_some() {
            self.dialog(area);
        }
    }

    /// Puts a line somewhere; gives the column behind it.
    fn put(&mut self, x: u16, y: u16, line: &Line, cells: u16) -> u16 {
        if !self.buffer.area.contains(Position::new(x, y)) {
            return x;
        }
        let room = self.buffer.area.right() - x;
        self.buffer.set_line(x, y, line, cells.min(room)).0
    }

    fn hit(&mut self, area: Rect, hit: Hit) {
        self.drawn.hits.push((area, hit));
    }

    /// The sign of something on its way.
    fn wheel(&self) -> &'static str {
        let turn = self.state.now.unix_timestamp_nanos() / 250_000_000;
        let turn = usize::try_from(turn.rem_euclid(8)).unwrap_or(0);
        WHEEL.get(turn).copied().unwrap_or_default()
    }

    fn head(&mut self, area: Rect) {
        let mut x = self.put(area.x, area.y, &line([span(" CyNode ", BOLD), Span::raw(" ")]), 9);
        let waiting = self.state.inbox().len();
        for (pane, number) in Pane::ALL.into_iter().zip(1..) {
            let chosen = self.state.pane == pane && self.state.login.is_none();
            let style = if chosen { CHOSEN.patch(BOLD) } else { Style::new() };
            let mut spans = vec![span(format!(" {number} {}", pane.title()), style)];
            if pane == Pane::Inbox && waiting > 0 {
                spans.push(span(format!(" ({waiting})"), style.patch(WARN)));
            }
            spans.push(span(" ", style));
            let end = self.put(x, area.y, &line(spans), area.width);
            self.hit(Rect::new(x, area.y, end - x, 1), Hit::Pane(pane));
            x = end + 1;
        }
        let help = " ? help ";
        let cells = u16::try_from(help.len()).unwrap_or(0);
        let at = area.right().saturating_sub(cells);
        self.put(at, area.y, &line([span(help, DIM)]), cells);
        self.hit(Rect::new(at, area.y, cells, 1), Hit::Help);
    }

    fn status(&mut self, area: Rect) {
        let state = self.state;
        let dot = || span(" · ", DIM);
        let base = state.base.trim_start_matches("http://").trim_start_matches("https://");
        let user = state.known.me.as_ref().map_or("nobody", |me| me.user.handle.as_str());
        let link = match &state.link {
            _ if state.login.is_some() => span("◌ not logged in", WARN),
            Link::Opening => span("◌ connecting", WARN),
            Link::Live => span("● live", GOOD),
            Link::Lost { since, .. } => {
                let since = text::age(*since, state.now);
                span(format!("✗ reconnecting for {since}"), BAD)
            }
        };
        let waiting = match state.inbox().len() {
            0 => span("nothing waits for you", DIM),
            1 => span("1 thing waits for you", WARN),
            more => span(format!("{more} things wait for you"), WARN),
        };
        let spans = [span(format!(" {base}"), BOLD), dot(), span(user, Style::new()), dot(), link];
        let mut line = line(spans);
        if state.login.is_none() {
            line.push_span(dot());
            line.push_span(waiting);
        }
        self.put(area.x, area.y, &line, area.width);
        if state.shelf.any_slow(state.now) && !matches!(state.link, Link::Lost { .. }) {
            let wheel = self.wheel();
            let at = area.right().saturating_sub(3);
            self.put(at, area.y, &Line::styled(format!("{wheel} "), LIVE), 3);
        }
    }

    /// What is said now: a note, why nobody answers, or the keys that mean something here.
    fn hints(&mut self, area: Rect) {
        let state = self.state;
        let room = usize::from(area.width).saturating_sub(2);
        if let Some(note) = &state.note {
            let (mark, style) = if note.good { ("✓", GOOD) } else { ("✗", BAD) };
            let words = text::cut(&text::plain(&note.text), room.saturating_sub(2));
            let line = line([span(format!(" {mark} "), style), span(words, style)]);
            self.put(area.x, area.y, &line, area.width);
            return;
        }
        if let (Link::Lost { why, .. }, None) = (&state.link, &state.login) {
            let words = text::cut(&text::first(&why.detail), room);
            self.put(area.x, area.y, &line([span(format!(" {words}"), BAD)]), area.width);
            return;
        }
        let mut used = 1;
        let mut spans = vec![Span::raw(" ")];
        for (key, words) in hints(state) {
            let cells = text::width(key) + text::width(words) + 3;
            if used + cells > room + 2 {
                break;
            }
            used += cells;
            spans.push(span(key, BOLD));
            spans.push(span(format!(" {words}  "), DIM));
        }
        self.put(area.x, area.y, &line(spans), area.width);
    }

    /// A frame around something, with a title; what is left inside.
    fn panel(&mut self, area: Rect, title: &str, focused: bool) -> Rect {
        let style = if focused { LIVE } else { DIM };
        let block = Block::bordered().border_type(BorderType::Rounded).border_style(style);
        let title = text::cut(title, usize::from(area.width).saturating_sub(6));
        let title = if title.is_empty() { title } else { format!(" {title} ") };
        let block = block.title(line([span(title, BOLD)]));
        let inside = block.inner(area);
        block.render(area, self.buffer);
        inside
    }

    /// A title above something; what is left below.
    fn heading(&mut self, area: Rect, title: &Line, topic: Option<&Topic>) -> Rect {
        self.put(area.x, area.y, title, area.width);
        if let Some(topic) = topic {
            self.sign(area, topic);
        }
        below(area, 1)
    }

    /// At the right end of a line: that something is on its way, or could not be had.
    fn sign(&mut self, area: Rect, topic: &Topic) {
        let (now, shelf) = (self.state.now, &self.state.shelf);
        let (sign, style) = if shelf.is_slow(topic, now) {
            (self.wheel(), LIVE)
        } else if shelf.failure(topic).is_some() && shelf.has(topic) {
            ("! old", WARN)
        } else {
            return;
        };
        let cells = u16::try_from(text::width(sign)).unwrap_or(1);
        self.put(area.right().saturating_sub(cells + 1), area.y, &Line::styled(sign, style), cells);
    }

    /// What stands where nothing is known yet, and why; nothing when it is known.
    fn absent(&self, topic: &Topic, room: usize) -> Option<Vec<Line<'static>>> {
        let shelf = &self.state.shelf;
        if let Some(failure) = shelf.failure(topic).filter(|_| !shelf.has(topic)) {
            return Some(complaint(failure, room));
        }
        if shelf.has(topic) {
            return None;
        }
        let sign = if shelf.is_slow(topic, self.state.now) { self.wheel() } else { "·" };
        Some(vec![Line::styled(format!("{sign} the server is asked"), DIM)])
    }

    /// Lines that scroll.
    fn text(&mut self, area: Rect, place: Place, lines: &[Line]) {
        let page = usize::from(area.height);
        let end = lines.len().saturating_sub(page);
        let follows = place == Place::Log && self.state.follow;
        let top = if follows { end } else { self.state.offset(place).min(end) };
        for (row, line) in (area.y..area.bottom()).zip(lines.iter().skip(top)) {
            self.put(area.x, row, line, area.width);
        }
        self.scrolled(area, place, (top, page, end));
    }

    /// Notes how far a place is scrolled, and shows it at its right side.
    fn scrolled(&mut self, area: Rect, place: Place, (top, page, end): (usize, usize, usize)) {
        self.hit(area, Hit::Area(place));
        self.drawn.tops.insert(place, top);
        self.drawn.pages.insert(place, page);
        self.drawn.ends.insert(place, end);
        if end == 0 || area.height < 3 {
            return;
        }
        let at = (top * (page - 1) + end / 2) / end;
        for (row, y) in (area.y..area.bottom()).enumerate() {
            let (sign, style) = if row == at { ("┃", LIVE) } else { ("│", DIM) };
            self.put(area.right() - 1, y, &Line::styled(sign, style), 1);
        }
    }

    /// Rows of which one is chosen and kept in sight.
    fn rows(
        &mut self,
        area: Rect,
        place: Place,
        (count, chosen, focused): (usize, Option<usize>, bool),
        row: impl Fn(usize) -> Line<'static>,
    ) {
        let page = usize::from(area.height).max(1);
        let end = count.saturating_sub(page);
        let mut top = self.state.offset(place).min(end);
        if let Some(chosen) = chosen {
            top = top.min(chosen).max((chosen + 1).saturating_sub(page));
        }
        let bar = u16::from(end > 0 && area.height >= 3);
        for (at, y) in (top..count).zip(area.y..area.bottom()) {
            let spot = Rect::new(area.x, y, area.width.saturating_sub(bar), 1);
            self.put(area.x, y, &row(at), spot.width);
            if chosen == Some(at) {
                // One bar, whatever its words are coloured in.
                let plain = Style::new().fg(Color::Reset).remove_modifier(Modifier::DIM);
                let style = if focused { plain.patch(CHOSEN) } else { FADED };
                self.buffer.set_style(spot, style);
            }
        }
        self.scrolled(area, place, (top, page, end));
        for (at, y) in (top..count).zip(area.y..area.bottom()) {
            self.hit(Rect::new(area.x, y, area.width, 1), Hit::Row(place, at));
        }
    }

    /// A line across.
    fn rule(&mut self, area: Rect, title: &str) -> Rect {
        let room = usize::from(area.width);
        let title = if title.is_empty() { String::new() } else { format!(" {title} ") };
        let title = text::cut(&title, room.saturating_sub(4));
        let rest = room.saturating_sub(text::width(&title) + 2);
        let spans = [span("──", DIM), span(&title, BOLD), span("─".repeat(rest), DIM)];
        self.put(area.x, area.y, &line(spans), area.width);
        below(area, 1)
    }

    /// Empties a place for something that lies over all else.
    fn clear(&mut self, area: Rect) {
        Clear.render(area, self.buffer);
    }
}

/// What is left of an area below some rows.
fn below(area: Rect, rows: u16) -> Rect {
    let rows = rows.min(area.height);
    Rect { y: area.y + rows, height: area.height - rows, ..area }
}

/// The same, with a column free on the left.
fn indented(area: Rect) -> Rect {
    let cells = 1.min(area.width);
    Rect { x: area.x + cells, width: area.width - cells, ..area }
}

/// A place of a size in the middle.
fn middle(area: Rect, width: u16, height: u16) -> Rect {
    let (width, height) = (width.min(area.width), height.min(area.height));
    Rect {
        x: area.x + (area.width - width) / 2,
        y: area.y + (area.height - height) / 2,
        width,
        height,
    }
}

/// Why something is not there, and what to do next.
fn complaint(failure: &Failure, room: usize) -> Vec<Line<'static>> {
    let mut lines = wrapped(&format!("✗ {}", failure.detail), room, BAD);
    if let Some(fix) = &failure.fix {
        lines.extend(wrapped(&format!("  next: {fix}"), room, DIM));
    }
    lines
}

/// The keys that mean something here, the most useful first.
fn hints(state: &State) -> Vec<(&'static str, &'static str)> {
    let key = |command, words| (keys::shown(command), words);
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
        (Pane::Tasks, focus) => {
            if focus == Focus::List {
                hints.push(key(Command::Open, "open"));
                hints.push(key(Command::Filter, "filter"));
            } else {
                hints.push(key(Command::Back, "back"));
                hints.push(("5-9", "parts"));
            }
            if state.shows_task() && matches!(state.part, Part::Logs | Part::Diff) {
                let words = if state.part == Part::Logs { "other job" } else { "other file" };
                hints.push(("[ ]", words));
            }
            if state.shows_task() && state.part == Part::Logs {
                hints.push(key(Command::Follow, if state.follow { "stay here" } else { "follow" }));
            }
            let task = state.chosen_task();
            let waits = task.and_then(|task| state.waits_for(task.id));
            let lives = task.is_some_and(|task| {
                matches!(task.state, TaskStateName::Queued | TaskStateName::Running)
            });
            match waits {
                Some(WaitReason::Approval) => {
                    hints.push(key(Command::Approve, "approve"));
                    hints.push(key(Command::Deny, "send back"));
                }
                Some(WaitReason::HumanInput) => hints.push(key(Command::Approve, "answer")),
                Some(WaitReason::Paused) => hints.push(key(Command::Resume, "resume")),
                _ if lives => hints.push(key(Command::Pause, "pause")),
                _ => {}
            }
            if state.may_merge().is_some() && state.shows_task() {
                hints.push(key(Command::Merge, "merge"));
            }
            if lives {
                hints.push(key(Command::Cancel, "cancel"));
            }
        }
        (Pane::Inbox, _) => {
            let (yes, no) = match state.chosen_item() {
                Some(Item::Plan(_)) => ("approve", "send back"),
                Some(Item::Question(_)) => ("answer", ""),
                Some(Item::Call(_)) => ("approve", "deny"),
                None => ("", ""),
            };
            if !yes.is_empty() {
                hints.push(key(Command::Approve, yes));
            }
            if !no.is_empty() {
                hints.push(key(Command::Deny, no));
            }
            if !yes.is_empty() {
                hints.push(key(Command::GoToTask, "its task"));
                hints.push(key(Command::Open, "read"));
            }
        }
        (Pane::Nodes, _) => hints.push(key(Command::Open, "read")),
        (Pane::Spend, _) => hints.push(("j k", "scroll")),
    }
    hints.push(("Tab", "next pane"));
    hints.push(key(Command::Quit, "quit"));
    hints
}
