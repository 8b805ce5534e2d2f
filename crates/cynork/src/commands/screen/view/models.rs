//! The models, their capabilities and prices.

use cynode_wire::models::ModelView;
use ratatui::{layout::Rect, style::Style, text::Line};

use super::{
    ACTIVE_STYLE, BOLD_STYLE, DIM_STYLE, SUCCESS_STYLE, ScreenPainter, column_line, wrap_lines,
};
use crate::{
    commands::screen::{
        cache::FetchTopic,
        state::{Focus, ScrollArea},
        text,
    },
    draw::format_money,
};

fn format_tokens(number: i64) -> String {
    text::format_count(u64::try_from(number).unwrap_or(0))
}

fn model_abilities(model: &ModelView) -> String {
    let all = [
        (model.tools, "tools"),
        (model.images, "images"),
        (model.json_schema, "JSON schema"),
        (model.skills, "skills"),
    ];
    let can: Vec<&str> = all.into_iter().filter(|(can, _)| *can).map(|(_, what)| what).collect();
    if can.is_empty() { "text only".to_owned() } else { can.join(", ") }
}

impl ScreenPainter<'_> {
    pub(super) fn draw_models_pane(&mut self, area: Rect) {
        let count = self.state.known.models.len();
        let title = self
            .state
            .chosen_model()
            .map_or(String::new(), |it| text::sanitize_for_display(&it.id));
        self.draw_list_and_detail(
            area,
            (count, "Models", &title),
            Self::draw_model_list,
            Self::draw_model_detail,
        );
    }

    fn draw_model_list(&mut self, area: Rect) {
        let state = self.state;
        let area = super::indent_area(area);
        let room = usize::from(area.width).saturating_sub(1);
        let models = &state.known.models;
        let longest = models.iter().map(|it| text::display_width(&it.id)).max().unwrap_or(0);
        let name = longest.clamp(8, 30).min(room.saturating_sub(9 + 5 + 12 + 8 + 4));
        let wide = [name, 9, 5, 12, room.saturating_sub(name + 9 + 5 + 12 + 4)];
        let heads = ["NAME", "TIER", "ON", "PROJECT", "PROVIDER"];
        let heads =
            heads.iter().zip(wide).map(|(head, cells)| ((*head).to_owned(), cells, BOLD_STYLE));
        let head = column_line(&heads.collect::<Vec<_>>());
        let rest = self.draw_heading(area, &head, Some(&FetchTopic::Models));
        if models.is_empty() {
            let lines = self.placeholder_lines(&FetchTopic::Models, room).unwrap_or_else(|| {
                let words = "`cynork provider set` and `cynork model set` connect one; docs/guides/models.md shows how.";
                let mut lines = vec![Line::raw(""), Line::styled("There are no models yet.", BOLD_STYLE)];
                lines.extend(wrap_lines(words, room, DIM_STYLE));
                lines
            });
            return self.draw_text(rest, ScrollArea::Models, &lines);
        }
        let chosen = state.chosen_model().map(|it| it.id.clone());
        let chosen = models.iter().position(|it| Some(&it.id) == chosen.as_ref());
        let focused = state.focus == Focus::List;
        self.draw_rows(rest, ScrollArea::Models, (models.len(), chosen, focused), |at| {
            let model = &models[at];
            let project =
                model.project_id.map_or("all".to_owned(), |id| state.known.project_name(id));
            let providers: Vec<&str> =
                model.routes.iter().map(|route| route.provider.as_str()).collect();
            let (on, style) =
                if model.enabled { ("yes", SUCCESS_STYLE) } else { ("no", DIM_STYLE) };
            column_line(&[
                (text::sanitize_for_display(&model.id), wide[0], Style::new()),
                (model.tier.map_or("", |it| it.as_str()).to_owned(), wide[1], ACTIVE_STYLE),
                (on.to_owned(), wide[2], style),
                (project, wide[3], DIM_STYLE),
                (text::sanitize_for_display(&providers.join(", ")), wide[4], DIM_STYLE),
            ])
        });
    }

    fn draw_model_detail(&mut self, area: Rect) {
        let state = self.state;
        let Some(model) = state.chosen_model() else { return };
        let area = super::indent_area(area);
        let room = usize::from(area.width).saturating_sub(1);
        let mut facts = vec![
            ("title", model.title.clone()),
            ("tier", model.tier.map_or("none", |it| it.as_str()).to_owned()),
            ("offered", if model.enabled { "yes" } else { "no" }.to_owned()),
            (
                "project",
                model.project_id.map_or("all".to_owned(), |id| state.known.project_name(id)),
            ),
            ("can", model_abilities(model)),
            (
                "tokens",
                format!(
                    "{} in a conversation, {} in an answer",
                    format_tokens(model.context_tokens),
                    format_tokens(model.max_output_tokens)
                ),
            ),
        ];
        let currency = state.known.display_currency();
        for route in &model.routes {
            let prices = format!(
                "{} as {}: {} in, {} out for a million tokens",
                route.provider,
                route.upstream,
                format_money(route.prices.input, currency),
                format_money(route.prices.output, currency)
            );
            facts.push(("provider", prices));
        }
        let mut lines = Self::fact_lines(&facts, room);
        let sum = state.known.by_model.iter().find(|sum| sum.key.as_ref() == Some(&model.id));
        if let Some(sum) = sum {
            let spent = format_money(u64::try_from(sum.cost_micros).unwrap_or(0), currency);
            lines.extend(Self::fact_lines(
                &[("spent", format!("{spent} in {} calls", sum.calls))],
                room,
            ));
        }
        self.draw_text(area, ScrollArea::Model, &lines);
    }
}
