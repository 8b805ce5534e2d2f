//! The figures as a picture: bars of accuracy, and a confusion matrix for each table and way.

use plotters::{coord::Shift, prelude::*, style::text_anchor};

use super::{
    score::{Figures, Report, TableFigures, Way},
    show::{columns, count, percent, short},
};

/// Why there is no picture.
#[derive(Debug, thiserror::Error)]
#[error("the picture cannot be drawn: {0}")]
pub struct PictureError(String);

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Drawn = Result<(), PictureError>;

const WIDTH: i32 = 960;
const MARGIN: i32 = 40;
const BARS_TOP: i32 = 70;
const BARS_HEIGHT: i32 = 200;
const MATRIX_TOP: i32 = BARS_TOP + BARS_HEIGHT + 80;
const CELL_HEIGHT: i32 = 22;
const LABEL_WIDTH: i32 = 130;

const STRUCTURED: RGBColor = RGBColor(38, 99, 173);
const PLAIN: RGBColor = RGBColor(176, 176, 176);
const INK: RGBColor = RGBColor(40, 40, 40);

/// Draws a report as SVG.
pub fn svg(report: &Report) -> Result<String, PictureError> {
    let height = MATRIX_TOP + report.tables.iter().map(matrix_height).sum::<i32>() + MARGIN;
    let mut out = String::new();
    {
        let size = (WIDTH.unsigned_abs(), height.unsigned_abs());
        let area = SVGBackend::with_string(&mut out, size).into_drawing_area();
        area.fill(&WHITE).map_err(failed)?;
        let heading = format!("Right answers of {}", report.model);
        text(&area, (MARGIN, 24), 20, Side::Left, &heading)?;
        legend(&area)?;
        bars(&area, report)?;
        matrices(&area, report)?;
        area.present().map_err(failed)?;
    }
    Ok(out)
}

fn failed(error: impl std::fmt::Display) -> PictureError {
    PictureError(error.to_string())
}

/// Where a text stands from its point.
#[derive(Clone, Copy)]
enum Side {
    Left,
    Middle,
    Right,
}

fn text(area: &Area<'_>, at: (i32, i32), size: i32, side: Side, words: &str) -> Drawn {
    ink(area, at, size, side, words, INK)
}

fn ink(
    area: &Area<'_>,
    at: (i32, i32),
    size: i32,
    side: Side,
    words: &str,
    color: RGBColor,
) -> Drawn {
    use text_anchor::{HPos, Pos, VPos};
    let across = match side {
        Side::Left => HPos::Left,
        Side::Middle => HPos::Center,
        Side::Right => HPos::Right,
    };
    let style = ("sans-serif", size).into_font().color(&color).pos(Pos::new(across, VPos::Center));
    area.draw(&Text::new(words.to_owned(), at, style)).map_err(failed)
}

fn rectangle(area: &Area<'_>, corners: [(i32, i32); 2], style: ShapeStyle) -> Drawn {
    area.draw(&Rectangle::new(corners, style)).map_err(failed)
}

const fn color(way: Way) -> RGBColor {
    match way {
        Way::Structured => STRUCTURED,
        Way::Plain => PLAIN,
    }
}

fn legend(area: &Area<'_>) -> Drawn {
    for (at, way) in Way::BOTH.into_iter().enumerate() {
        let left = 640 + 140 * pixels(at);
        rectangle(area, [(left, 18), (left + 14, 32)], color(way).filled())?;
        text(area, (left + 20, 25), 14, Side::Left, way.as_str())?;
    }
    Ok(())
}

fn bars(area: &Area<'_>, report: &Report) -> Drawn {
    let bottom = BARS_TOP + BARS_HEIGHT;
    for step in 0..=4 {
        let y = bottom - BARS_HEIGHT * step / 4;
        let line = vec![(MARGIN + 30, y), (WIDTH - MARGIN, y)];
        area.draw(&PathElement::new(line, RGBColor(225, 225, 225))).map_err(failed)?;
        text(area, (MARGIN + 24, y), 12, Side::Right, &format!("{} %", step * 25))?;
    }
    let width = (WIDTH - 2 * MARGIN - 30) / pixels(report.tables.len().max(1));
    for (at, table) in report.tables.iter().enumerate() {
        let left = MARGIN + 30 + width * pixels(at);
        for (place, way) in Way::BOTH.into_iter().enumerate() {
            let Some(figures) = table.all.get(&way) else { continue };
            bar(area, left + width / 2 + (pixels(place) - 1) * 52 + 2, figures, way)?;
        }
        let name = format!(
            "{} ({})",
            table.table.as_str(),
            table.all.values().map(|f| f.asked).max().unwrap_or(0)
        );
        text(area, (left + width / 2, bottom + 16), 14, Side::Middle, &name)?;
    }
    Ok(())
}

#[expect(clippy::cast_possible_truncation, reason = "a share of a height in pixels")]
fn bar(area: &Area<'_>, left: i32, figures: &Figures, way: Way) -> Drawn {
    let bottom = BARS_TOP + BARS_HEIGHT;
    let top = bottom - (f64::from(BARS_HEIGHT) * figures.accuracy()).round() as i32;
    rectangle(area, [(left, top), (left + 48, bottom)], color(way).filled())?;
    text(area, (left + 24, top - 9), 12, Side::Middle, &percent(figures.accuracy()))
}

fn matrix_height(table: &TableFigures) -> i32 {
    CELL_HEIGHT * (pixels(table.table.labels().len()) + 2) + 24
}

/// For each table the two matrices beside each other: right answers down, given ones across.
fn matrices(area: &Area<'_>, report: &Report) -> Drawn {
    let mut top = MATRIX_TOP;
    for table in &report.tables {
        for (at, way) in Way::BOTH.into_iter().enumerate() {
            let Some(figures) = table.all.get(&way) else { continue };
            matrix(area, (MARGIN + pixels(at) * (WIDTH - MARGIN) / 2, top), table, way, figures)?;
        }
        top += matrix_height(table);
    }
    Ok(())
}

fn matrix(
    area: &Area<'_>,
    (left, top): (i32, i32),
    table: &TableFigures,
    way: Way,
    figures: &Figures,
) -> Drawn {
    let title = format!(
        "{}, {}: right answer down, given answer across",
        table.table.as_str(),
        way.as_str()
    );
    text(area, (left, top), 13, Side::Left, &title)?;
    let width =
        ((WIDTH - MARGIN) / 2 - MARGIN - LABEL_WIDTH) / pixels(table.table.labels().len() + 1);
    for (column, said) in columns(table.table).enumerate() {
        let x = left + LABEL_WIDTH + width * pixels(column) + width / 2;
        text(area, (x, top + CELL_HEIGHT), 11, Side::Middle, short(said))?;
    }
    for (line, truth) in table.table.labels().iter().enumerate() {
        let y = top + CELL_HEIGHT * (pixels(line) + 2);
        text(area, (left + LABEL_WIDTH - 8, y), 11, Side::Right, truth)?;
        let all = columns(table.table).map(|said| count(figures, truth, said)).sum::<u32>().max(1);
        for (column, said) in columns(table.table).enumerate() {
            let x = left + LABEL_WIDTH + width * pixels(column);
            let number = count(figures, truth, said);
            cell(area, (x, y), width, number, f64::from(number) / f64::from(all), color(way))?;
        }
    }
    Ok(())
}

/// One field of a matrix: the more, the darker.
fn cell(
    area: &Area<'_>,
    (x, y): (i32, i32),
    width: i32,
    number: u32,
    share: f64,
    full: RGBColor,
) -> Drawn {
    let half = CELL_HEIGHT / 2;
    let corners = [(x + 1, y - half + 1), (x + width - 1, y + half - 1)];
    rectangle(area, corners, full.mix(0.05 + 0.95 * share).filled())?;
    let letters = if share > 0.6 && full == STRUCTURED { WHITE } else { INK };
    ink(area, (x + width / 2, y), 11, Side::Middle, &number.to_string(), letters)
}

/// A small number as pixels.
fn pixels(number: usize) -> i32 {
    i32::try_from(number).unwrap_or(i32::MAX)
}
