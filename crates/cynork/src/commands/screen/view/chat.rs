//! The conversation with the project manager.

use ratatui::{layout::Rect, style::Style, text::Line};

use super::{
    ACTIVE_STYLE, BOLD_STYLE, DIM_STYLE, SUCCESS_STYLE, ScreenPainter, failure_lines,
    line_from_spans, styled_span, wrap_lines,
};
use crate::commands::screen::{
    state::{ChatSpeaker, Focus, ScrollArea},
    text,
};

impl ScreenPainter<'_> {
    pub(super) fn draw_chat_pane(&mut self, area: Rect) {
        let state = self.state;
        let chat = &state.chat;
        let project = chat.project.map(|id| format!(" about {}", state.known.project_name(id)));
        let title = format!("Chat with the project manager{}", project.unwrap_or_default());
        let typing = state.focus == Focus::Detail;
        let inside = self.draw_panel(area, &title, typing);
        let inside = super::indent_area(inside);
        let room = usize::from(inside.width).saturating_sub(1);
        let mut lines = Vec::new();
        if chat.turns.is_empty() {
            let words = "Ask what is going on, or what should be done: it knows the project, its tasks and its repository. \
                         `:chat PROJECT` begins about another project.";
            lines.extend(wrap_lines(words, room, DIM_STYLE));
        }
        for (speaker, words) in &chat.turns {
            let (name, style) = match speaker {
                ChatSpeaker::Person => ("you", ACTIVE_STYLE),
                ChatSpeaker::Manager => ("manager", SUCCESS_STYLE),
            };
            let mut said = wrap_lines(words, room.saturating_sub(9), Style::new()).into_iter();
            let first = said.next().unwrap_or_default();
            let mut head = line_from_spans([styled_span(format!("{name:<9}"), style)]);
            head.spans.extend(first.spans);
            lines.push(head);
            lines.extend(said.map(|it| {
                let mut indented = line_from_spans([styled_span(" ".repeat(9), Style::new())]);
                indented.spans.extend(it.spans);
                indented
            }));
            lines.push(Line::raw(""));
        }
        if chat.sending {
            lines.push(Line::styled(format!("{} it thinks …", self.spinner_frame()), ACTIVE_STYLE));
        } else if let Some(failure) = &chat.failure {
            lines.extend(failure_lines(failure, room));
        }
        let height = inside.height.saturating_sub(2);
        self.draw_text(Rect { height, ..inside }, ScrollArea::Chat, &lines);
        let field = Rect { y: inside.y + height + 1, height: 1, ..inside };
        self.put_line(
            field.x,
            field.y,
            &line_from_spans([styled_span("› ", if typing { BOLD_STYLE } else { DIM_STYLE })]),
            2,
        );
        let field = Rect { x: field.x + 2, width: field.width.saturating_sub(3), ..field };
        let at = text::display_width(chat.input.before_cursor());
        let cursor = self.draw_field(field, chat.input.as_str(), at, typing);
        if typing {
            self.cursor = Some(cursor);
        }
    }
}
