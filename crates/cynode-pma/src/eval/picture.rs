//! Renders the figures as an image: accuracy bars, and a confusion matrix per table and way.

use plotters::{coord::Shift, prelude::*, style::text_anchor};

use super::{
    score::{AskMethod, EvalMetrics, EvalReport, TableMetrics},
    show::{answer_columns, confusion_count, format_percent, short_label},
};

/// Error of drawing the image.
#[derive(Debug, thiserror::Error)]
#[error("the picture cannot be drawn: {0}")]
pub struct PictureError(String);

type SvgArea<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type DrawResult = Result<(), PictureError>;

const IMAGE_WIDTH_PX: i32 = 960;
const MARGIN_PX: i32 = 40;
const BARS_TOP_PX: i32 = 70;
const BARS_HEIGHT_PX: i32 = 200;
const MATRIX_TOP_PX: i32 = BARS_TOP_PX + BARS_HEIGHT_PX + 80;
const CELL_HEIGHT_PX: i32 = 22;
const LABEL_WIDTH_PX: i32 = 130;

const STRUCTURED_COLOR: RGBColor = RGBColor(38, 99, 173);
const PLAIN_COLOR: RGBColor = RGBColor(176, 176, 176);
const TEXT_COLOR: RGBColor = RGBColor(40, 40, 40);

/// Draws a report as SVG.
pub fn render_svg(report: &EvalReport) -> Result<String, PictureError> {
    let height = MATRIX_TOP_PX + report.tables.iter().map(matrix_height).sum::<i32>() + MARGIN_PX;
    let mut out = String::new();
    {
        let size = (IMAGE_WIDTH_PX.unsigned_abs(), height.unsigned_abs());
        let area = SVGBackend::with_string(&mut out, size).into_drawing_area();
        area.fill(&WHITE).map_err(to_picture_error)?;
        let heading = format!("Right answers of {}", report.model);
        draw_text(&area, (MARGIN_PX, 24), 20, TextAlignment::Left, &heading)?;
        draw_legend(&area)?;
        draw_bars(&area, report)?;
        draw_matrices(&area, report)?;
        area.present().map_err(to_picture_error)?;
    }
    Ok(out)
}

fn to_picture_error(error: impl std::fmt::Display) -> PictureError {
    PictureError(error.to_string())
}

/// Alignment of a text relative to its point.
#[derive(Clone, Copy)]
enum TextAlignment {
    Left,
    Middle,
    Right,
}

fn draw_text(
    area: &SvgArea<'_>,
    at: (i32, i32),
    size: i32,
    side: TextAlignment,
    words: &str,
) -> DrawResult {
    draw_colored_text(area, at, size, side, words, TEXT_COLOR)
}

fn draw_colored_text(
    area: &SvgArea<'_>,
    at: (i32, i32),
    size: i32,
    side: TextAlignment,
    words: &str,
    color: RGBColor,
) -> DrawResult {
    use text_anchor::{HPos, Pos, VPos};
    let across = match side {
        TextAlignment::Left => HPos::Left,
        TextAlignment::Middle => HPos::Center,
        TextAlignment::Right => HPos::Right,
    };
    let style = ("sans-serif", size).into_font().color(&color).pos(Pos::new(across, VPos::Center));
    area.draw(&Text::new(words.to_owned(), at, style)).map_err(to_picture_error)
}

fn draw_rectangle(area: &SvgArea<'_>, corners: [(i32, i32); 2], style: ShapeStyle) -> DrawResult {
    area.draw(&Rectangle::new(corners, style)).map_err(to_picture_error)
}

const fn method_color(way: AskMethod) -> RGBColor {
    match way {
        AskMethod::Structured => STRUCTURED_COLOR,
        AskMethod::Plain => PLAIN_COLOR,
    }
}

fn draw_legend(area: &SvgArea<'_>) -> DrawResult {
    for (at, way) in AskMethod::ALL.into_iter().enumerate() {
        let left = 640 + 140 * to_pixels(at);
        draw_rectangle(area, [(left, 18), (left + 14, 32)], method_color(way).filled())?;
        draw_text(area, (left + 20, 25), 14, TextAlignment::Left, way.as_str())?;
    }
    Ok(())
}

fn draw_bars(area: &SvgArea<'_>, report: &EvalReport) -> DrawResult {
    let bottom = BARS_TOP_PX + BARS_HEIGHT_PX;
    for step in 0..=4 {
        let y = bottom - BARS_HEIGHT_PX * step / 4;
        let line = vec![(MARGIN_PX + 30, y), (IMAGE_WIDTH_PX - MARGIN_PX, y)];
        area.draw(&PathElement::new(line, RGBColor(225, 225, 225))).map_err(to_picture_error)?;
        draw_text(
            area,
            (MARGIN_PX + 24, y),
            12,
            TextAlignment::Right,
            &format!("{} %", step * 25),
        )?;
    }
    let width = (IMAGE_WIDTH_PX - 2 * MARGIN_PX - 30) / to_pixels(report.tables.len().max(1));
    for (at, table) in report.tables.iter().enumerate() {
        let left = MARGIN_PX + 30 + width * to_pixels(at);
        for (place, way) in AskMethod::ALL.into_iter().enumerate() {
            let Some(figures) = table.all.get(&way) else { continue };
            draw_bar(area, left + width / 2 + (to_pixels(place) - 1) * 52 + 2, figures, way)?;
        }
        let name = format!(
            "{} ({})",
            table.table.as_str(),
            table.all.values().map(|f| f.asked).max().unwrap_or(0)
        );
        draw_text(area, (left + width / 2, bottom + 16), 14, TextAlignment::Middle, &name)?;
    }
    Ok(())
}

#[expect(clippy::cast_possible_truncation, reason = "a share of a height in pixels")]
fn draw_bar(area: &SvgArea<'_>, left: i32, figures: &EvalMetrics, way: AskMethod) -> DrawResult {
    let bottom = BARS_TOP_PX + BARS_HEIGHT_PX;
    let top = bottom - (f64::from(BARS_HEIGHT_PX) * figures.accuracy()).round() as i32;
    draw_rectangle(area, [(left, top), (left + 48, bottom)], method_color(way).filled())?;
    draw_text(
        area,
        (left + 24, top - 9),
        12,
        TextAlignment::Middle,
        &format_percent(figures.accuracy()),
    )
}

fn matrix_height(table: &TableMetrics) -> i32 {
    CELL_HEIGHT_PX * (to_pixels(table.table.answer_labels().len()) + 2) + 24
}

/// Draws the two confusion matrices of each table side by side: correct answers in rows, given answers in columns.
fn draw_matrices(area: &SvgArea<'_>, report: &EvalReport) -> DrawResult {
    let mut top = MATRIX_TOP_PX;
    for table in &report.tables {
        for (at, way) in AskMethod::ALL.into_iter().enumerate() {
            let Some(figures) = table.all.get(&way) else { continue };
            draw_matrix(
                area,
                (MARGIN_PX + to_pixels(at) * (IMAGE_WIDTH_PX - MARGIN_PX) / 2, top),
                table,
                way,
                figures,
            )?;
        }
        top += matrix_height(table);
    }
    Ok(())
}

fn draw_matrix(
    area: &SvgArea<'_>,
    (left, top): (i32, i32),
    table: &TableMetrics,
    way: AskMethod,
    figures: &EvalMetrics,
) -> DrawResult {
    let title = format!(
        "{}, {}: right answer down, given answer across",
        table.table.as_str(),
        way.as_str()
    );
    draw_text(area, (left, top), 13, TextAlignment::Left, &title)?;
    let width = ((IMAGE_WIDTH_PX - MARGIN_PX) / 2 - MARGIN_PX - LABEL_WIDTH_PX)
        / to_pixels(table.table.answer_labels().len() + 1);
    for (column, said) in answer_columns(table.table).enumerate() {
        let x = left + LABEL_WIDTH_PX + width * to_pixels(column) + width / 2;
        draw_text(area, (x, top + CELL_HEIGHT_PX), 11, TextAlignment::Middle, short_label(said))?;
    }
    for (line, truth) in table.table.answer_labels().iter().enumerate() {
        let y = top + CELL_HEIGHT_PX * (to_pixels(line) + 2);
        draw_text(area, (left + LABEL_WIDTH_PX - 8, y), 11, TextAlignment::Right, truth)?;
        let all = answer_columns(table.table)
            .map(|said| confusion_count(figures, truth, said))
            .sum::<u32>()
            .max(1);
        for (column, said) in answer_columns(table.table).enumerate() {
            let x = left + LABEL_WIDTH_PX + width * to_pixels(column);
            let number = confusion_count(figures, truth, said);
            draw_cell(
                area,
                (x, y),
                width,
                number,
                f64::from(number) / f64::from(all),
                method_color(way),
            )?;
        }
    }
    Ok(())
}

/// Draws one cell of a matrix: a higher count is darker.
fn draw_cell(
    area: &SvgArea<'_>,
    (x, y): (i32, i32),
    width: i32,
    number: u32,
    share: f64,
    full: RGBColor,
) -> DrawResult {
    let half = CELL_HEIGHT_PX / 2;
    let corners = [(x + 1, y - half + 1), (x + width - 1, y + half - 1)];
    draw_rectangle(area, corners, full.mix(0.05 + 0.95 * share).filled())?;
    let letters = if share > 0.6 && full == STRUCTURED_COLOR { WHITE } else { TEXT_COLOR };
    draw_colored_text(
        area,
        (x + width / 2, y),
        11,
        TextAlignment::Middle,
        &number.to_string(),
        letters,
    )
}

/// Converts a small number to pixels.
fn to_pixels(number: usize) -> i32 {
    i32::try_from(number).unwrap_or(i32::MAX)
}
