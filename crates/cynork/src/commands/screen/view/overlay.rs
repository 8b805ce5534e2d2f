//! Overlays: the login form, the help, confirmation dialogs.

use ratatui::{
    layout::{Position, Rect},
    style::Style,
    text::Line,
};

use super::{
    ACTIVE_STYLE, BOLD_STYLE, DIM_STYLE, ERROR_STYLE, SELECTED_STYLE, ScreenPainter, area_below,
    centered_area, failure_lines, line_from_spans, styled_span, wrap_lines,
};
use crate::commands::screen::{
    keys::{KEY_BINDINGS, KeyBinding},
    state::{ClickTarget, ScrollArea, TextRequirement},
    text,
};

fn to_u16_saturating(number: usize) -> u16 {
    u16::try_from(number).unwrap_or(u16::MAX)
}

impl ScreenPainter<'_> {
    pub(super) fn draw_login(&mut self, area: Rect) {
        let Some(login) = &self.state.login else { return };
        let wide = 62.min(area.width);
        let inside_width = usize::from(wide).saturating_sub(4);
        let mut below_form: Vec<Line> = Vec::new();
        if login.sending {
            below_form
                .push(Line::styled(format!("{} asking …", self.spinner_frame()), ACTIVE_STYLE));
        } else if let Some(failure) = &login.failure {
            below_form.extend(failure_lines(failure, inside_width));
        }
        let more = u16::try_from(below_form.len()).unwrap_or(0);
        let outside = centered_area(area, wide, 9 + more);
        let inside = self.draw_panel(outside, "Log in", true);
        let inside = super::indent_area(inside);
        let base = text::truncate_to_cells(&self.state.base, inside_width);
        self.put_line(inside.x, inside.y, &Line::styled(base, DIM_STYLE), inside.width);
        let hidden = "•".repeat(login.password.as_str().chars().count());
        let at = text::display_width(&"•".repeat(login.password.before_cursor().chars().count()));
        let handle = login.handle.as_str().to_owned();
        let handle_at = text::display_width(login.handle.before_cursor());
        let fields = [("name", handle, handle_at), ("password", hidden, at)];
        for (number, (name, shown, at)) in fields.into_iter().enumerate() {
            let y = inside.y + 2 + u16::try_from(number).unwrap_or(0) * 2;
            let chosen = login.field == number;
            let style = if chosen { BOLD_STYLE } else { DIM_STYLE };
            self.put_line(
                inside.x,
                y,
                &line_from_spans([styled_span(format!("{name:<10}"), style)]),
                10,
            );
            let field =
                Rect { x: inside.x + 10, y, width: inside.width.saturating_sub(12), height: 1 };
            let cursor = self.draw_field(field, &shown, at, chosen);
            self.add_click_target(
                Rect { x: inside.x, width: inside.width, ..field },
                ClickTarget::Field(number),
            );
            if chosen && !login.sending {
                self.cursor = Some(cursor);
            }
        }
        for (row, line) in (inside.y + 6..inside.bottom()).zip(&below_form) {
            self.put_line(inside.x, row, line, inside.width);
        }
    }

    /// Draws an input field. Returns the cursor position.
    pub(super) fn draw_field(
        &mut self,
        area: Rect,
        shown: &str,
        at: usize,
        chosen: bool,
    ) -> Position {
        let room = usize::from(area.width).saturating_sub(1);
        let skipped = at.saturating_sub(room);
        // The end of the text stays visible.
        let seen: String = shown.chars().skip(skipped).collect();
        let seen = text::pad_to_cells(&text::sanitize_for_display(&seen), room + 1);
        let style = Style::new().add_modifier(ratatui::style::Modifier::UNDERLINED);
        let style = if chosen { style } else { style.patch(DIM_STYLE) };
        self.put_line(area.x, area.y, &Line::styled(seen, style), area.width);
        let column = u16::try_from(at - skipped).unwrap_or(0);
        Position::new(area.x + column.min(area.width.saturating_sub(1)), area.y)
    }

    pub(super) fn draw_help(&mut self, area: Rect) {
        let [go, panes, deeds, look] = KEY_BINDINGS else { return };
        let column = |groups: [&(&str, &[KeyBinding]); 2]| {
            let mut lines: Vec<Line> = Vec::new();
            for (head, rows) in groups {
                if !lines.is_empty() {
                    lines.push(Line::raw(""));
                }
                lines.push(Line::styled((*head).to_owned(), BOLD_STYLE));
                for row in *rows {
                    lines.push(line_from_spans([
                        styled_span(format!("{:<11}", row.shown), ACTIVE_STYLE),
                        styled_span(row.says, Style::new()),
                    ]));
                }
            }
            lines
        };
        let (left, right) = (column([go, deeds]), column([panes, look]));
        let count = left.len().max(right.len());
        let outside = centered_area(area, 80, u16::try_from(count + 2).unwrap_or(u16::MAX));
        self.clear_area(outside);
        let inside = self.draw_panel(
            outside,
            "Keys; j and k scroll, any other closes this. The mouse works too.",
            true,
        );
        let half = inside.width / 2;
        let page = usize::from(inside.height);
        let end = count.saturating_sub(page);
        let top = self.state.scroll_offset(ScrollArea::Help).min(end);
        for (x, lines) in [(inside.x + 1, &left), (inside.x + half, &right)] {
            for (row, line) in (inside.y..inside.bottom()).zip(lines.iter().skip(top)) {
                self.put_line(x, row, line, half.saturating_sub(1));
            }
        }
        self.record_scroll(inside, ScrollArea::Help, (top, page, end));
        self.add_click_target(outside, ClickTarget::Area(ScrollArea::Help));
    }

    pub(super) fn draw_form(&mut self, area: Rect) {
        let Some(form) = &self.state.form else { return };
        let wide = 84.min(area.width.saturating_sub(2));
        let room = usize::from(wide).saturating_sub(4);
        let mut foot: Vec<Line> = Vec::new();
        if form.sending {
            foot.push(Line::styled(format!("{} it is sent …", self.spinner_frame()), ACTIVE_STYLE));
        } else if let Some(failure) = &form.failure {
            foot.extend(failure_lines(failure, room));
        } else {
            let words = match form.field {
                0 => "The project. Tab completes its name.",
                1 => {
                    "What you want, in your own words. The work starts from what the project has; `cynork run` also brings your commits."
                }
                at if at + 1 == form.field_count() => {
                    "The most that it may cost, such as 0.50; may be left empty."
                }
                _ => {
                    "A command that must succeed in the end, such as `make test`; may be left empty."
                }
            };
            foot.extend(wrap_lines(words, room, DIM_STYLE));
        }
        let fields = form.named_fields();
        let words = text::wrap_words(form.words.as_str(), room.saturating_sub(11));
        // The description may be long: it has several lines.
        let tall = |at: usize| if at == 1 { to_u16_saturating(words.len().clamp(1, 5)) } else { 1 };
        let rows: u16 = (0..fields.len()).map(tall).sum();
        let outside = centered_area(area, wide, rows + to_u16_saturating(foot.len().max(2)) + 6);
        self.clear_area(outside);
        let inside = self.draw_panel(outside, "New task", true);
        let inside = super::indent_area(inside);
        let mut rest = area_below(inside, 1);
        for (number, (name, input)) in fields.into_iter().enumerate() {
            let chosen = form.field == number;
            let style = if chosen { BOLD_STYLE } else { DIM_STYLE };
            self.put_line(
                rest.x,
                rest.y,
                &line_from_spans([styled_span(format!("{name:<9}"), style)]),
                9,
            );
            let height = tall(number).min(rest.height);
            let width = inside.width.saturating_sub(11);
            let field = Rect { x: rest.x + 9, width, height: 1, ..rest };
            let at = text::display_width(input.before_cursor());
            let cursor = if height > 1 {
                self.draw_tall_field(Rect { height, ..field }, &words, at)
            } else {
                self.draw_field(field, input.as_str(), at, chosen)
            };
            self.add_click_target(
                Rect { x: inside.x, width: inside.width, height, ..field },
                ClickTarget::Field(number),
            );
            if chosen && !form.sending {
                self.cursor = Some(cursor);
            }
            rest = area_below(rest, height);
        }
        rest = area_below(rest, 1);
        for words in &foot {
            self.put_line(rest.x, rest.y, words, rest.width);
            rest = area_below(rest, 1);
        }
        let buttons = Rect { y: inside.bottom().saturating_sub(1), height: 1, ..inside };
        self.draw_buttons(buttons, (" Enter: next, send ", " Esc: leave "));
    }

    /// Draws a multi-line input; its end stays visible. Returns the cursor position.
    fn draw_tall_field(&mut self, area: Rect, lines: &[String], at: usize) -> Position {
        let (mut row, mut column) = (0, at);
        for line in lines {
            // A line ends with the space at which it was broken.
            let cells = text::display_width(line) + 1;
            if column < cells || row + 1 == lines.len() {
                break;
            }
            column -= cells;
            row += 1;
        }
        let page = usize::from(area.height);
        let top = (row + 1).saturating_sub(page);
        let style = Style::new().add_modifier(ratatui::style::Modifier::UNDERLINED);
        for (y, line) in (area.y..area.bottom()).zip(lines.iter().skip(top)) {
            let shown =
                text::pad_to_cells(&text::sanitize_for_display(line), usize::from(area.width));
            self.put_line(area.x, y, &Line::styled(shown, style), area.width);
        }
        let column = to_u16_saturating(column).min(area.width.saturating_sub(1));
        Position::new(area.x + column, area.y + to_u16_saturating(row - top))
    }

    pub(super) fn draw_dialog(&mut self, area: Rect) {
        let Some(dialog) = &self.state.dialog else { return };
        let wide = 76.min(area.width.saturating_sub(2));
        let room = usize::from(wide).saturating_sub(4);
        let question = wrap_lines(&dialog.question, room, BOLD_STYLE);
        let body: Vec<Line> = dialog
            .body
            .iter()
            .flat_map(|it| wrap_lines(it, room.saturating_sub(1), Style::new()))
            .collect();
        let mut foot: Vec<Line> = Vec::new();
        if dialog.sending {
            foot.push(Line::styled(format!("{} it is sent …", self.spinner_frame()), ACTIVE_STYLE));
        } else if let Some(failure) = &dialog.failure {
            foot.extend(failure_lines(failure, room));
        }
        let typed = dialog.words != TextRequirement::None;
        let fixed = to_u16_saturating(question.len() + foot.len()) + 5 + if typed { 2 } else { 0 };
        let shown = to_u16_saturating(body.len()).min(area.height.saturating_sub(fixed));
        let outside = centered_area(area, wide, fixed + shown);
        self.clear_area(outside);
        let inside = self.draw_panel(outside, "", true);
        let inside = super::indent_area(inside);
        let mut rest = inside;
        for words in &question {
            self.put_line(rest.x, rest.y, words, rest.width);
            rest = area_below(rest, 1);
        }
        if !body.is_empty() {
            rest = area_below(rest, 1);
            self.draw_text(
                Rect { height: shown.min(rest.height), ..rest },
                ScrollArea::Dialog,
                &body,
            );
            rest = area_below(rest, shown);
        }
        if typed {
            rest = area_below(rest, 1);
            let at = text::display_width(dialog.input.before_cursor());
            let field = Rect { height: 1, ..rest };
            let cursor = self.draw_field(field, dialog.input.as_str(), at, true);
            if !dialog.sending {
                self.cursor = Some(cursor);
            }
            rest = area_below(rest, 1);
        }
        for words in &foot {
            self.put_line(rest.x, rest.y, words, rest.width);
            rest = area_below(rest, 1);
        }
        let words = if typed { (" Enter: send ", " Esc: leave ") } else { (" y: yes ", " n: no ") };
        self.draw_buttons(
            Rect { y: inside.bottom().saturating_sub(1), height: 1, ..inside },
            words,
        );
    }

    fn draw_buttons(&mut self, area: Rect, (yes, no): (&str, &str)) {
        let end = self.put_line(
            area.x,
            area.y,
            &line_from_spans([styled_span(yes, SELECTED_STYLE)]),
            area.width,
        );
        self.add_click_target(Rect::new(area.x, area.y, end - area.x, 1), ClickTarget::Yes);
        let from = end + 2;
        let end = self.put_line(
            from,
            area.y,
            &line_from_spans([styled_span(no, ERROR_STYLE)]),
            area.width,
        );
        self.add_click_target(Rect::new(from, area.y, end - from, 1), ClickTarget::No);
    }
}
