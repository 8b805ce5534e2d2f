//! A plan as a drawing: boxes in rows, each row below its dependencies, with lines between them. If boxes do not fit, a tree.

use std::collections::{BTreeMap, BTreeSet};

use ratatui::{
    style::{Modifier, Style},
    text::{Line, Span},
};

use super::text::{display_width, pad_to_cells, truncate_to_cells};

/// One unit in the drawing.
#[derive(Clone, Debug)]
pub(super) struct GraphUnit {
    /// Name of the unit.
    pub(super) key: String,
    /// Title of the unit, with the mark of its state.
    pub(super) title: String,
    /// Style of the box.
    pub(super) style: Style,
    /// Dependencies of the unit, by index.
    pub(super) after: Vec<usize>,
}

/// The result of drawing.
#[derive(Clone, Debug, Default)]
pub(super) struct GraphDrawing {
    /// The drawn lines.
    pub(super) lines: Vec<Line<'static>>,
    /// The rectangle of each unit: column, line, width, height.
    pub(super) places: Vec<(usize, usize, usize, usize)>,
}

/// Minimum width of a box.
const MIN_BOX_CELLS: usize = 16;

/// Maximum width of a box.
const MAX_BOX_CELLS: usize = 34;

/// Cells between two boxes.
const BOX_GAP_CELLS: usize = 2;

/// Cells of a line that only passes a row.
const PASS_CELLS: usize = 3;

/// Maximum number of units; more are a list, not a picture.
const MAX_DRAWN_UNITS: usize = 24;

/// Draws the units and highlights the selected one. Transitive dependencies have no line.
pub(super) fn draw_graph(units: &[GraphUnit], cells: usize, chosen: Option<usize>) -> GraphDrawing {
    let units = transitive_reduction(units);
    draw_boxes(&units, cells, chosen).unwrap_or_else(|| draw_tree(&units, cells, chosen))
}

/// Removes dependencies that follow from others (transitive reduction).
fn transitive_reduction(units: &[GraphUnit]) -> Vec<GraphUnit> {
    let levels = unit_levels(units);
    let mut order: Vec<usize> = (0..units.len()).collect();
    order.sort_by_key(|unit| levels[*unit]);
    // All predecessors of each unit.
    let mut before: Vec<BTreeSet<usize>> = vec![BTreeSet::new(); units.len()];
    for unit in order {
        for needed in units[unit].after.iter().filter(|it| levels[**it] < levels[unit]) {
            let all = before[*needed].clone();
            before[unit].extend(all);
            before[unit].insert(*needed);
        }
    }
    let mut units = units.to_vec();
    for unit in &mut units {
        let after = unit.after.clone();
        unit.after.retain(|it| !after.iter().any(|other| before[*other].contains(it)));
    }
    units
}

/// Returns the row of each unit.
fn unit_levels(units: &[GraphUnit]) -> Vec<usize> {
    let mut levels = vec![0; units.len()];
    // A plan has no cycles; the bound ends the loop if one occurs all the same.
    for _ in 0..units.len() {
        for (at, unit) in units.iter().enumerate() {
            let before = unit.after.iter().filter(|it| **it != at);
            let level = before.filter_map(|it| levels.get(*it)).map(|it| it + 1).max();
            levels[at] = level.unwrap_or(0).min(units.len() - 1);
        }
    }
    levels
}

/// A slot of a row: a unit, or a line that passes from a unit above to one below.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum GraphSlot {
    Unit(usize),
    Pass(usize, usize),
}

/// The slots of each row, and for each slot below the first row its predecessors above.
struct GraphRows {
    slots: Vec<Vec<GraphSlot>>,
    above: BTreeMap<(usize, GraphSlot), BTreeSet<GraphSlot>>,
}

fn build_rows(units: &[GraphUnit]) -> GraphRows {
    let levels = unit_levels(units);
    let count = levels.iter().max().map_or(0, |it| it + 1);
    let mut slots = vec![Vec::new(); count];
    for (unit, level) in levels.iter().enumerate() {
        slots[*level].push(GraphSlot::Unit(unit));
    }
    let mut above: BTreeMap<(usize, GraphSlot), BTreeSet<GraphSlot>> = BTreeMap::new();
    for (unit, level) in levels.iter().enumerate() {
        for from in units[unit].after.iter().copied().filter(|it| levels[*it] < *level) {
            let mut last = GraphSlot::Unit(from);
            for (row, slots) in slots.iter_mut().enumerate().take(*level).skip(levels[from] + 1) {
                let pass = GraphSlot::Pass(from, unit);
                slots.push(pass);
                above.entry((row, pass)).or_default().insert(last);
                last = pass;
            }
            above.entry((*level, GraphSlot::Unit(unit))).or_default().insert(last);
        }
    }
    let mut rows = GraphRows { slots, above };
    rows.reorder_slots();
    rows
}

impl GraphRows {
    /// Reorders slots so that connected ones are close: each slot moves toward its neighbours in the row before.
    fn reorder_slots(&mut self) {
        for turn in 0..6 {
            let down = turn % 2 == 0;
            let count = self.slots.len();
            let order: Vec<usize> = if down {
                (1..count).collect()
            } else {
                (0..count.saturating_sub(1)).rev().collect()
            };
            for row in order {
                let beside = if down { row - 1 } else { row + 1 };
                let place = |slot: GraphSlot| self.slots[beside].iter().position(|it| *it == slot);
                let near = |slot: GraphSlot| -> Vec<usize> {
                    if down {
                        let above = self.above.get(&(row, slot)).into_iter().flatten();
                        above.filter_map(|it| place(*it)).collect()
                    } else {
                        let below = self.slots[beside].iter().enumerate().filter(|(_, it)| {
                            self.above
                                .get(&(beside, **it))
                                .is_some_and(|above| above.contains(&slot))
                        });
                        below.map(|(at, _)| at).collect()
                    }
                };
                let mut weighed: Vec<(usize, usize, GraphSlot)> = self.slots[row]
                    .iter()
                    .enumerate()
                    .map(|(at, slot)| {
                        let near = near(*slot);
                        let others = self.slots[beside].len().max(1);
                        let here = at * 1000 * others / self.slots[row].len().max(1);
                        let middle = near.iter().sum::<usize>() * 1000;
                        (middle.checked_div(near.len()).unwrap_or(here), at, *slot)
                    })
                    .collect();
                weighed.sort_unstable();
                self.slots[row] = weighed.into_iter().map(|(_, _, slot)| slot).collect();
            }
        }
    }

    /// Returns the width of boxes, if they fit at all.
    fn box_width(&self, cells: usize) -> Option<usize> {
        let room = |slots: &Vec<GraphSlot>| {
            let boxes = slots.iter().filter(|it| matches!(it, GraphSlot::Unit(_))).count();
            let passes = slots.len() - boxes;
            let taken = passes * PASS_CELLS + slots.len().saturating_sub(1) * BOX_GAP_CELLS;
            cells.checked_sub(taken)?.checked_div(boxes)
        };
        let mut least = MAX_BOX_CELLS;
        for slots in &self.slots {
            least = least.min(room(slots)?);
        }
        (least >= MIN_BOX_CELLS).then_some(least)
    }
}

fn draw_boxes(units: &[GraphUnit], cells: usize, chosen: Option<usize>) -> Option<GraphDrawing> {
    if units.is_empty() || units.len() > MAX_DRAWN_UNITS {
        return None;
    }
    let rows = build_rows(units);
    let wide = rows.box_width(cells)?;
    let columns: Vec<SlotColumns> =
        rows.slots.iter().map(|it| place_slots(it, wide, cells)).collect();
    let mut canvas = Canvas::new(cells);
    let mut places = vec![(0, 0, 0, 0); units.len()];
    let mut y = 0;
    let mut entries = BTreeMap::new();
    for (row, slots) in rows.slots.iter().enumerate() {
        let below = (row + 1 < rows.slots.len()).then(|| route_channel(&rows, row + 1, &columns));
        let below = if let Some(below) = below { Some(below?) } else { None };
        for slot in slots {
            let (x, middle) = columns[row][slot];
            let GraphSlot::Unit(unit) = slot else {
                (y..y + 3).for_each(|y| canvas.join_line(middle, y, UP | DOWN));
                continue;
            };
            let leaves =
                below.iter().filter_map(|it| it.exits.get(slot)).flatten().copied().collect();
            let ends = (entries.get(slot).copied(), leaves);
            canvas.draw_box(&units[*unit], (x, y, wide), &ends, chosen == Some(*unit));
            places[*unit] = (x, y, wide, 3);
        }
        y += 3;
        if let Some(below) = below {
            below.draw_lines(&mut canvas, y);
            y += below.height;
            entries = below.entries;
        }
    }
    Some(GraphDrawing { lines: canvas.into_lines(), places })
}

/// The columns of the slots of a row: the first column of each, and its middle.
type SlotColumns = BTreeMap<GraphSlot, (usize, usize)>;

fn place_slots(slots: &[GraphSlot], wide: usize, cells: usize) -> SlotColumns {
    let size =
        |slot: &GraphSlot| if matches!(slot, GraphSlot::Unit(_)) { wide } else { PASS_CELLS };
    let taken =
        slots.iter().map(size).sum::<usize>() + slots.len().saturating_sub(1) * BOX_GAP_CELLS;
    let mut x = cells.saturating_sub(taken) / 2;
    let mut row = SlotColumns::new();
    for slot in slots {
        row.insert(*slot, (x, x + size(slot) / 2));
        x += size(slot) + BOX_GAP_CELLS;
    }
    row
}

/// A net: edges with the same targets share a horizontal line.
struct EdgeNet {
    above: Vec<usize>,
    below: Vec<usize>,
    /// The lane of its horizontal line; `None` if it goes straight down.
    lane: Option<usize>,
}

/// The lines between two rows.
struct EdgeChannel {
    nets: Vec<EdgeNet>,
    height: usize,
    /// The columns in which lines leave each slot above.
    exits: BTreeMap<GraphSlot, Vec<usize>>,
    /// The column in which lines enter each slot below.
    entries: BTreeMap<GraphSlot, usize>,
}

/// Possible offsets from the middle at which a line enters a box, if the middle is occupied.
const ENTRY_OFFSETS: [isize; 5] = [0, 3, -3, 5, -5];

fn route_channel(rows: &GraphRows, row: usize, columns: &[SlotColumns]) -> Option<EdgeChannel> {
    ENTRY_OFFSETS.into_iter().find_map(|aside| route_channel_at(rows, row, columns, aside))
}

fn route_channel_at(
    rows: &GraphRows,
    row: usize,
    columns: &[SlotColumns],
    aside: isize,
) -> Option<EdgeChannel> {
    let mut entries = BTreeMap::new();
    let mut grouped: BTreeMap<&BTreeSet<GraphSlot>, Vec<usize>> = BTreeMap::new();
    for slot in &rows.slots[row] {
        let Some(above) = rows.above.get(&(row, *slot)) else { continue };
        let aside = if matches!(slot, GraphSlot::Unit(_)) { aside } else { 0 };
        let column = columns[row][slot].1.checked_add_signed(aside)?;
        entries.insert(*slot, column);
        grouped.entry(above).or_default().push(column);
    }
    let mut nets: Vec<EdgeNet> = Vec::new();
    let mut leaving: BTreeMap<GraphSlot, Vec<(usize, usize)>> = BTreeMap::new();
    for (above, below) in grouped {
        for slot in above {
            let middle = below.iter().sum::<usize>() / below.len();
            leaving.entry(*slot).or_default().push((middle, nets.len()));
        }
        nets.push(EdgeNet { above: Vec::new(), below, lane: None });
    }
    let mut exits = BTreeMap::new();
    for (slot, mut led) in leaving {
        led.sort_unstable();
        let middle = columns[row - 1][&slot].1;
        let straight = led.iter().position(|(_, net)| nets[*net].below == [middle]);
        let centre = straight.unwrap_or(led.len() / 2);
        // There is no room for more lines beside each other.
        if led.len() > 5 {
            return None;
        }
        for (at, (_, net)) in led.iter().enumerate() {
            let column = (middle + 2 * at).checked_sub(2 * centre)?;
            nets[*net].above.push(column);
            exits.entry(slot).or_insert_with(Vec::new).push(column);
        }
    }
    let height = assign_lanes(&mut nets)?;
    Some(EdgeChannel { nets, height, exits, entries })
}

/// Assigns a lane to each net that is not straight, so that no two share a cell of a column. Returns the number of lanes.
fn assign_lanes(nets: &mut [EdgeNet]) -> Option<usize> {
    let straight = |net: &EdgeNet| net.above.len() == 1 && net.above == net.below;
    let bent: Vec<usize> = (0..nets.len()).filter(|it| !straight(&nets[*it])).collect();
    // A net that goes down where another comes from above must turn below it.
    let waits = |net: usize, other: usize| {
        net != other && nets[net].below.iter().any(|it| nets[other].above.contains(it))
    };
    let passed = |net: &usize| nets.iter().any(|it| straight(it) && nets[*net].below == it.above);
    if bent.iter().any(passed) {
        return None;
    }
    let mut laid: Vec<(usize, usize)> = Vec::new();
    while laid.len() < bent.len() {
        let lane_of = |net: usize| laid.iter().find(|(it, _)| *it == net).map(|(_, lane)| *lane);
        let free = |net: &&usize| {
            lane_of(**net).is_none()
                && bent.iter().all(|it| lane_of(*it).is_some() || !waits(**net, *it))
        };
        let net = *bent.iter().find(free)?;
        let after = bent.iter().filter(|it| waits(net, **it)).filter_map(|it| lane_of(*it));
        let least = after.max().map_or(0, |it| it + 1);
        let meets = |lane: usize| {
            laid.iter().any(|(other, on)| *on == lane && nets[net].overlaps_with(&nets[*other]))
        };
        let lane = (least..least + bent.len()).find(|lane| !meets(*lane))?;
        laid.push((net, lane));
    }
    for (net, lane) in &laid {
        nets[*net].lane = Some(*lane);
    }
    Some(laid.iter().map(|(_, lane)| lane + 1).max().unwrap_or(1))
}

impl EdgeNet {
    /// Returns the first and the last column of its horizontal line.
    fn column_span(&self) -> (usize, usize) {
        let all = || self.above.iter().chain(&self.below).copied();
        (all().min().unwrap_or(0), all().max().unwrap_or(0))
    }

    /// Returns whether two horizontal lines would touch.
    fn overlaps_with(&self, other: &Self) -> bool {
        let ((from, to), (other_from, other_to)) = (self.column_span(), other.column_span());
        from <= other_to + 1 && other_from <= to + 1
    }
}

impl EdgeChannel {
    fn draw_lines(&self, canvas: &mut Canvas, top: usize) {
        for net in &self.nets {
            let Some(lane) = net.lane else { continue };
            let (from, to) = net.column_span();
            for x in from..=to {
                let mut mask = 0;
                mask |= if x > from { LEFT } else { 0 };
                mask |= if x < to { RIGHT } else { 0 };
                mask |= if net.above.contains(&x) { UP } else { 0 };
                mask |= if net.below.contains(&x) { DOWN } else { 0 };
                canvas.join_line(x, top + lane, mask);
            }
        }
        // A vertical line that only passes crosses over a horizontal one.
        for net in &self.nets {
            let lane = net.lane.unwrap_or(self.height);
            for column in &net.above {
                (0..lane).for_each(|y| canvas.cross_line(*column, top + y));
            }
            for column in &net.below {
                (lane + 1..self.height).for_each(|y| canvas.cross_line(*column, top + y));
            }
        }
    }
}

const UP: u8 = 1;
const DOWN: u8 = 2;
const LEFT: u8 = 4;
const RIGHT: u8 = 8;

/// The box-drawing character of a junction, by its directions.
const LINE_CHARS: [char; 16] =
    [' ', '╵', '╷', '│', '╴', '╯', '╮', '┤', '╶', '╰', '╭', '├', '─', '┴', '┬', '┼'];

/// A grid of characters, each with its style.
struct Canvas {
    cells: usize,
    grid: Vec<Vec<(char, Style)>>,
}

impl Canvas {
    const fn new(cells: usize) -> Self {
        Self { cells, grid: Vec::new() }
    }

    fn put_char(&mut self, x: usize, y: usize, sign: char, style: Style) {
        while self.grid.len() <= y {
            self.grid.push(vec![(' ', Style::new()); self.cells]);
        }
        if let Some(cell) = self.grid[y].get_mut(x) {
            *cell = (sign, style);
        }
    }

    /// Adds a line segment that joins existing ones.
    fn join_line(&mut self, x: usize, y: usize, mask: u8) {
        let there = self.grid.get(y).and_then(|row| row.get(x)).map_or(' ', |it| it.0);
        let before = LINE_CHARS.iter().position(|sign| *sign == there).unwrap_or(0);
        let sign = LINE_CHARS[before | usize::from(mask)];
        self.put_char(x, y, sign, Style::new().add_modifier(Modifier::DIM));
    }

    /// Adds a line segment that crosses over existing ones.
    fn cross_line(&mut self, x: usize, y: usize) {
        self.put_char(x, y, '│', Style::new().add_modifier(Modifier::DIM));
    }

    /// Draws a box, with the positions where lines enter and leave.
    fn draw_box(
        &mut self,
        unit: &GraphUnit,
        (x, y, wide): (usize, usize, usize),
        (enters, leaves): &(Option<usize>, Vec<usize>),
        chosen: bool,
    ) {
        let border = if chosen { unit.style.add_modifier(Modifier::BOLD) } else { unit.style };
        let (corners, across, upright) = if chosen {
            (['┏', '┓', '┗', '┛'], '━', '┃')
        } else {
            (['╭', '╮', '╰', '╯'], '─', '│')
        };
        let right = x + wide - 1;
        for at in x..=right {
            self.put_char(at, y, across, border);
            self.put_char(at, y + 2, across, border);
        }
        for (at, row, sign) in [
            (x, y, corners[0]),
            (right, y, corners[1]),
            (x, y + 2, corners[2]),
            (right, y + 2, corners[3]),
        ] {
            self.put_char(at, row, sign, border);
        }
        self.put_char(x, y + 1, upright, border);
        self.put_char(right, y + 1, upright, border);
        let name = format!(" {} ", truncate_to_cells(&unit.key, wide - 6));
        self.write_text(x + 1, y, &name, border);
        if let Some(at) = enters.filter(|at| *at > x + display_width(&name)) {
            self.put_char(at, y, if chosen { '┻' } else { '┴' }, border);
        }
        for at in leaves {
            self.put_char(*at, y + 2, if chosen { '┳' } else { '┬' }, border);
        }
        let inside = if chosen { unit.style.add_modifier(Modifier::REVERSED) } else { unit.style };
        self.write_text(x + 1, y + 1, &format!(" {}", pad_to_cells(&unit.title, wide - 3)), inside);
    }

    fn write_text(&mut self, x: usize, y: usize, text: &str, style: Style) {
        let mut at = x;
        for letter in text.chars() {
            let cells = display_width(letter.encode_utf8(&mut [0; 4]));
            self.put_char(at, y, letter, style);
            // A wide character covers the next cell too.
            (1..cells).for_each(|more| self.put_char(at + more, y, '\0', style));
            at += cells;
        }
    }

    fn into_lines(self) -> Vec<Line<'static>> {
        let line = |row: Vec<(char, Style)>| {
            let mut spans: Vec<Span<'static>> = Vec::new();
            let mut last: Option<(String, Style)> = None;
            for (sign, style) in row.into_iter().filter(|(sign, _)| *sign != '\0') {
                match &mut last {
                    Some((text, before)) if *before == style => text.push(sign),
                    _ => {
                        spans.extend(last.take().map(|(text, style)| Span::styled(text, style)));
                        last = Some((sign.to_string(), style));
                    }
                }
            }
            spans.extend(last.map(|(text, style)| Span::styled(text, style)));
            Line::from(spans)
        };
        self.grid.into_iter().map(line).collect()
    }
}

/// Draws the units as a tree: each below its last dependency, with the others named.
fn draw_tree(units: &[GraphUnit], cells: usize, chosen: Option<usize>) -> GraphDrawing {
    let mut drawing = GraphDrawing { lines: Vec::new(), places: vec![(0, 0, 0, 0); units.len()] };
    let mut left: BTreeSet<usize> = (0..units.len()).collect();
    draw_branch(units, None, "", (cells, chosen), &mut left, &mut drawing);
    // A unit whose dependencies are missing is shown all the same.
    while let Some(unit) = left.pop_first() {
        draw_tree_row(units, unit, "", (cells, chosen), &mut drawing);
    }
    drawing
}

fn draw_branch(
    units: &[GraphUnit],
    parent: Option<usize>,
    indent: &str,
    look: (usize, Option<usize>),
    left: &mut BTreeSet<usize>,
    drawing: &mut GraphDrawing,
) {
    let below = |it: &usize| units[*it].after.iter().max().copied() == parent;
    let here: Vec<usize> = left.iter().copied().filter(below).collect();
    for (at, unit) in here.iter().enumerate() {
        left.remove(unit);
        let last = at + 1 == here.len();
        let (mark, rest) = match (parent, last) {
            (None, _) => ("", ""),
            (_, true) => ("└─ ", "   "),
            (_, false) => ("├─ ", "│  "),
        };
        draw_tree_row(units, *unit, &format!("{indent}{mark}"), look, drawing);
        draw_branch(units, Some(*unit), &format!("{indent}{rest}"), look, left, drawing);
    }
}

fn draw_tree_row(
    units: &[GraphUnit],
    unit: usize,
    before: &str,
    (cells, chosen): (usize, Option<usize>),
    drawing: &mut GraphDrawing,
) {
    let it = &units[unit];
    let last = it.after.iter().max();
    let others = it.after.iter().filter(|other| Some(*other) != last);
    let others: Vec<&str> =
        others.filter_map(|other| units.get(*other)).map(|other| other.key.as_str()).collect();
    let also = if others.is_empty() {
        String::new()
    } else {
        format!("  (also after {})", others.join(", "))
    };
    let room = cells.saturating_sub(display_width(before));
    let text = truncate_to_cells(&format!("{}  {}{also}", it.title, it.key), room);
    let style =
        if chosen == Some(unit) { it.style.add_modifier(Modifier::REVERSED) } else { it.style };
    drawing.places[unit] = (display_width(before), drawing.lines.len(), display_width(&text), 1);
    let dim = Style::new().add_modifier(Modifier::DIM);
    let spans = vec![Span::styled(before.to_owned(), dim), Span::styled(text, style)];
    drawing.lines.push(Line::from(spans));
}

#[cfg(test)]
mod tests;
