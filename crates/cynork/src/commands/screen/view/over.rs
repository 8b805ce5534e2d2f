//! What lies over the panes: the form of whoever is not logged in, the help, questions before something is done.

use ratatui::{
    layout::{Position, Rect},
    style::Style,
    text::Line,
};

use super::{BAD, BOLD, CHOSEN, DIM, LIVE, Sheet, below, complaint, line, middle, span, wrapped};
use crate::commands::screen::{
    keys::{Binding, KEYS},
    state::{Hit, Place, Words},
    text,
};

impl Sheet<'_> {
    pub(super) fn login(&mut self, area: Rect) {
        let Some(login) = &self.state.login else { return };
        let wide = 62.min(area.width);
        let inside_width = usize::from(wide).saturating_sub(4);
        let mut below_form: Vec<Line> = Vec::new();
        if login.sending {
            below_form.push(Line::styled(format!("{} asking …", self.wheel()), LIVE));
        } else if let Some(failure) = &login.failure {
            below_form.extend(complaint(failure, inside_width));
        }
        let more = u16::try_from(below_form.len()).unwrap_or(0);
        let outside = middle(area, wide, 9 + more);
        let inside = self.panel(outside, "Log in", true);
        let inside = super::indented(inside);
        let base = text::cut(&self.state.base, inside_width);
        self.put(inside.x, inside.y, &Line::styled(base, DIM), inside.width);
        let hidden = "•".repeat(login.password.text().chars().count());
        let at = text::width(&"•".repeat(login.password.before().chars().count()));
        let handle = login.handle.text().to_owned();
        let handle_at = text::width(login.handle.before());
        let fields = [("name", handle, handle_at), ("password", hidden, at)];
        for (number, (name, shown, at)) in fields.into_iter().enumerate() {
            let y = inside.y + 2 + u16::try_from(number).unwrap_or(0) * 2;
            let chosen = login.field == number;
            let style = if chosen { BOLD } else { DIM };
            self.put(inside.x, y, &line([span(format!("{name:<10}"), style)]), 10);
            let field =
                Rect { x: inside.x + 10, y, width: inside.width.saturating_sub(12), height: 1 };
            let cursor = self.field(field, &shown, at, chosen);
            self.hit(Rect { x: inside.x, width: inside.width, ..field }, Hit::Field(number));
            if chosen && !login.sending {
                self.cursor = Some(cursor);
            }
        }
        for (row, line) in (inside.y + 6..inside.bottom()).zip(&below_form) {
            self.put(inside.x, row, line, inside.width);
        }
    }

    /// A line that is typed; where the next letter goes.
    fn field(&mut self, area: Rect, shown: &str, at: usize, chosen: bool) -> Position {
        let room = usize::from(area.width).saturating_sub(1);
        let skipped = at.saturating_sub(room);
        // The end of what is typed stays in sight.
        let seen: String = shown.chars().skip(skipped).collect();
        let seen = text::fit(&text::plain(&seen), room + 1);
        let style = Style::new().add_modifier(ratatui::style::Modifier::UNDERLINED);
        let style = if chosen { style } else { style.patch(DIM) };
        self.put(area.x, area.y, &Line::styled(seen, style), area.width);
        let column = u16::try_from(at - skipped).unwrap_or(0);
        Position::new(area.x + column.min(area.width.saturating_sub(1)), area.y)
    }

    pub(super) fn help(&mut self, area: Rect) {
        let [go, panes, deeds, look] = KEYS else { return };
        let column = |groups: [&(&str, &[Binding]); 2]| {
            let mut lines: Vec<Line> = Vec::new();
            for (head, rows) in groups {
                if !lines.is_empty() {
                    lines.push(Line::raw(""));
                }
                lines.push(Line::styled((*head).to_owned(), BOLD));
                for row in *rows {
                    lines.push(line([
                        span(format!("{:<11}", row.shown), LIVE),
                        span(row.says, Style::new()),
                    ]));
                }
            }
            lines
        };
        let (left, right) = (column([go, deeds]), column([panes, look]));
        let count = left.len().max(right.len());
        let outside = middle(area, 80, u16::try_from(count + 2).unwrap_or(u16::MAX));
        self.clear(outside);
        let inside = self.panel(outside, "Keys; any other closes this. The mouse works too.", true);
        let half = inside.width / 2;
        let page = usize::from(inside.height);
        let end = count.saturating_sub(page);
        let top = self.state.offset(Place::Help).min(end);
        for (x, lines) in [(inside.x + 1, &left), (inside.x + half, &right)] {
            for (row, line) in (inside.y..inside.bottom()).zip(lines.iter().skip(top)) {
                self.put(x, row, line, half.saturating_sub(1));
            }
        }
        self.scrolled(inside, Place::Help, (top, page, end));
        self.hit(outside, Hit::Area(Place::Help));
    }

    pub(super) fn dialog(&mut self, area: Rect) {
        let Some(dialog) = &self.state.dialog else { return };
        let wide = 76.min(area.width.saturating_sub(2));
        let room = usize::from(wide).saturating_sub(4);
        let question = wrapped(&dialog.question, room, BOLD);
        let body: Vec<Line> = dialog
            .body
            .iter()
            .flat_map(|it| wrapped(it, room.saturating_sub(1), Style::new()))
            .collect();
        let mut foot: Vec<Line> = Vec::new();
        if dialog.sending {
            foot.push(Line::styled(format!("{} it is sent …", self.wheel()), LIVE));
        } else if let Some(failure) = &dialog.failure {
            foot.extend(complaint(failure, room));
        }
        let small = |number: usize| u16::try_from(number).unwrap_or(u16::MAX);
        let typed = dialog.words != Words::None;
        let fixed = small(question.len() + foot.len()) + 5 + if typed { 2 } else { 0 };
        let shown = small(body.len()).min(area.height.saturating_sub(fixed));
        let outside = middle(area, wide, fixed + shown);
        self.clear(outside);
        let inside = self.panel(outside, "", true);
        let inside = super::indented(inside);
        let mut rest = inside;
        for words in &question {
            self.put(rest.x, rest.y, words, rest.width);
            rest = below(rest, 1);
        }
        if !body.is_empty() {
            rest = below(rest, 1);
            self.text(Rect { height: shown.min(rest.height), ..rest }, Place::Dialog, &body);
            rest = below(rest, shown);
        }
        if typed {
            rest = below(rest, 1);
            let at = text::width(dialog.input.before());
            let field = Rect { height: 1, ..rest };
            let cursor = self.field(field, dialog.input.text(), at, true);
            if !dialog.sending {
                self.cursor = Some(cursor);
            }
            rest = below(rest, 1);
        }
        for words in &foot {
            self.put(rest.x, rest.y, words, rest.width);
            rest = below(rest, 1);
        }
        self.buttons(Rect { y: inside.bottom().saturating_sub(1), height: 1, ..inside }, typed);
    }

    fn buttons(&mut self, area: Rect, typed: bool) {
        let (yes, no) =
            if typed { (" Enter: send ", " Esc: leave ") } else { (" y: yes ", " n: no ") };
        let end = self.put(area.x, area.y, &line([span(yes, CHOSEN)]), area.width);
        self.hit(Rect::new(area.x, area.y, end - area.x, 1), Hit::Yes);
        let from = end + 2;
        let end = self.put(from, area.y, &line([span(no, BAD)]), area.width);
        self.hit(Rect::new(from, area.y, end - from, 1), Hit::No);
    }
}
