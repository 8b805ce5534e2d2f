//! A plan as a drawing: boxes in rows, each row below what it waits for, lines between them. Where boxes find no room, a tree.

use std::collections::{BTreeMap, BTreeSet};

use ratatui::{
    style::{Modifier, Style},
    text::{Line, Span},
};

use super::text::{cut, fit, width};

/// One unit, as it is drawn.
#[derive(Clone, Debug)]
pub(super) struct Unit {
    /// Its name.
    pub(super) key: String,
    /// What is to be done, with the mark of its state.
    pub(super) title: String,
    /// How it is coloured.
    pub(super) style: Style,
    /// The units that must be done before, by their place.
    pub(super) after: Vec<usize>,
}

/// What came of drawing.
#[derive(Clone, Debug, Default)]
pub(super) struct Drawing {
    /// The lines.
    pub(super) lines: Vec<Line<'static>>,
    /// Where each unit is: column, line, width, height.
    pub(super) places: Vec<(usize, usize, usize, usize)>,
}

/// No box is narrower.
const NARROWEST: usize = 16;

/// No box is wider.
const WIDEST: usize = 34;

/// Cells between two boxes.
const GAP: usize = 2;

/// Cells that a line takes which only passes a row.
const PASS: usize = 3;

/// More units are a list, not a picture.
const MOST: usize = 24;

/// Draws the units; the one that is chosen stands out. What follows from other lines has no line of its own.
pub(super) fn draw(units: &[Unit], cells: usize, chosen: Option<usize>) -> Drawing {
    let units = reduced(units);
    boxes(&units, cells, chosen).unwrap_or_else(|| tree(&units, cells, chosen))
}

/// The same units, each after those only that none of its others is after already.
fn reduced(units: &[Unit]) -> Vec<Unit> {
    let levels = levels(units);
    let mut order: Vec<usize> = (0..units.len()).collect();
    order.sort_by_key(|unit| levels[*unit]);
    // All that come before each unit.
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

/// How many rows come before the row of each unit.
fn levels(units: &[Unit]) -> Vec<usize> {
    let mut levels = vec![0; units.len()];
    // A plan has no circles; where one came in all the same, this ends.
    for _ in 0..units.len() {
        for (at, unit) in units.iter().enumerate() {
            let before = unit.after.iter().filter(|it| **it != at);
            let level = before.filter_map(|it| levels.get(*it)).map(|it| it + 1).max();
            levels[at] = level.unwrap_or(0).min(units.len() - 1);
        }
    }
    levels
}

/// What stands in a row: a unit, or the line from a unit above to one below.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Slot {
    Unit(usize),
    Pass(usize, usize),
}

/// The slots of each row, and for each slot of the rows below the first those above it that lead to it.
struct Rows {
    slots: Vec<Vec<Slot>>,
    above: BTreeMap<(usize, Slot), BTreeSet<Slot>>,
}

fn rows(units: &[Unit]) -> Rows {
    let levels = levels(units);
    let count = levels.iter().max().map_or(0, |it| it + 1);
    let mut slots = vec![Vec::new(); count];
    for (unit, level) in levels.iter().enumerate() {
        slots[*level].push(Slot::Unit(unit));
    }
    let mut above: BTreeMap<(usize, Slot), BTreeSet<Slot>> = BTreeMap::new();
    for (unit, level) in levels.iter().enumerate() {
        for from in units[unit].after.iter().copied().filter(|it| levels[*it] < *level) {
            let mut last = Slot::Unit(from);
            for (row, slots) in slots.iter_mut().enumerate().take(*level).skip(levels[from] + 1) {
                let pass = Slot::Pass(from, unit);
                slots.push(pass);
                above.entry((row, pass)).or_default().insert(last);
                last = pass;
            }
            above.entry((*level, Slot::Unit(unit))).or_default().insert(last);
        }
    }
    let mut rows = Rows { slots, above };
    rows.arrange();
    rows
}

impl Rows {
    /// Puts what belongs together beside each other: each slot goes where its neighbours in the row before are.
    fn arrange(&mut self) {
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
                let place = |slot: Slot| self.slots[beside].iter().position(|it| *it == slot);
                let near = |slot: Slot| -> Vec<usize> {
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
                let mut weighed: Vec<(usize, usize, Slot)> = self.slots[row]
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

    /// How wide boxes can be, if there is room for them at all.
    fn box_width(&self, cells: usize) -> Option<usize> {
        let room = |slots: &Vec<Slot>| {
            let boxes = slots.iter().filter(|it| matches!(it, Slot::Unit(_))).count();
            let passes = slots.len() - boxes;
            let taken = passes * PASS + slots.len().saturating_sub(1) * GAP;
            cells.checked_sub(taken)?.checked_div(boxes)
        };
        let mut least = WIDEST;
        for slots in &self.slots {
            least = least.min(room(slots)?);
        }
        (least >= NARROWEST).then_some(least)
    }
}

fn boxes(units: &[Unit], cells: usize, chosen: Option<usize>) -> Option<Drawing> {
    if units.is_empty() || units.len() > MOST {
        return None;
    }
    let rows = rows(units);
    let wide = rows.box_width(cells)?;
    let columns: Vec<Row> = rows.slots.iter().map(|it| placed(it, wide, cells)).collect();
    let mut canvas = Canvas::new(cells);
    let mut places = vec![(0, 0, 0, 0); units.len()];
    let mut y = 0;
    let mut entries = BTreeMap::new();
    for (row, slots) in rows.slots.iter().enumerate() {
        let below = (row + 1 < rows.slots.len()).then(|| channel(&rows, row + 1, &columns));
        let below = if let Some(below) = below { Some(below?) } else { None };
        for slot in slots {
            let (x, middle) = columns[row][slot];
            let Slot::Unit(unit) = slot else {
                (y..y + 3).for_each(|y| canvas.line(middle, y, UP | DOWN));
                continue;
            };
            let leaves =
                below.iter().filter_map(|it| it.exits.get(slot)).flatten().copied().collect();
            let ends = (entries.get(slot).copied(), leaves);
            canvas.one(&units[*unit], (x, y, wide), &ends, chosen == Some(*unit));
            places[*unit] = (x, y, wide, 3);
        }
        y += 3;
        if let Some(below) = below {
            below.draw(&mut canvas, y);
            y += below.height;
            entries = below.entries;
        }
    }
    Some(Drawing { lines: canvas.lines(), places })
}

/// Where the slots of a row are: the first column of each, and its middle.
type Row = BTreeMap<Slot, (usize, usize)>;

fn placed(slots: &[Slot], wide: usize, cells: usize) -> Row {
    let size = |slot: &Slot| if matches!(slot, Slot::Unit(_)) { wide } else { PASS };
    let taken = slots.iter().map(size).sum::<usize>() + slots.len().saturating_sub(1) * GAP;
    let mut x = cells.saturating_sub(taken) / 2;
    let mut row = Row::new();
    for slot in slots {
        row.insert(*slot, (x, x + size(slot) / 2));
        x += size(slot) + GAP;
    }
    row
}

/// Those that lead to the same ones share a line across.
struct Net {
    above: Vec<usize>,
    below: Vec<usize>,
    /// The line of the channel that it goes across in; none when it goes straight down.
    lane: Option<usize>,
}

/// The lines between two rows.
struct Channel {
    nets: Vec<Net>,
    height: usize,
    /// The columns in which each slot above is left.
    exits: BTreeMap<Slot, Vec<usize>>,
    /// The column in which each slot below is entered.
    entries: BTreeMap<Slot, usize>,
}

/// How far from the middle a box may be entered, when its middle is in the way.
const ASIDE: [isize; 5] = [0, 3, -3, 5, -5];

fn channel(rows: &Rows, row: usize, columns: &[Row]) -> Option<Channel> {
    ASIDE.into_iter().find_map(|aside| channel_aside(rows, row, columns, aside))
}

fn channel_aside(rows: &Rows, row: usize, columns: &[Row], aside: isize) -> Option<Channel> {
    let mut entries = BTreeMap::new();
    let mut grouped: BTreeMap<&BTreeSet<Slot>, Vec<usize>> = BTreeMap::new();
    for slot in &rows.slots[row] {
        let Some(above) = rows.above.get(&(row, *slot)) else { continue };
        let aside = if matches!(slot, Slot::Unit(_)) { aside } else { 0 };
        let column = columns[row][slot].1.checked_add_signed(aside)?;
        entries.insert(*slot, column);
        grouped.entry(above).or_default().push(column);
    }
    let mut nets: Vec<Net> = Vec::new();
    let mut leaving: BTreeMap<Slot, Vec<(usize, usize)>> = BTreeMap::new();
    for (above, below) in grouped {
        for slot in above {
            let middle = below.iter().sum::<usize>() / below.len();
            leaving.entry(*slot).or_default().push((middle, nets.len()));
        }
        nets.push(Net { above: Vec::new(), below, lane: None });
    }
    let mut exits = BTreeMap::new();
    for (slot, mut led) in leaving {
        led.sort_unstable();
        let middle = columns[row - 1][&slot].1;
        let straight = led.iter().position(|(_, net)| nets[*net].below == [middle]);
        let centre = straight.unwrap_or(led.len() / 2);
        // There is no room for more beside each other.
        if led.len() > 5 {
            return None;
        }
        for (at, (_, net)) in led.iter().enumerate() {
            let column = (middle + 2 * at).checked_sub(2 * centre)?;
            nets[*net].above.push(column);
            exits.entry(slot).or_insert_with(Vec::new).push(column);
        }
    }
    let height = lay(&mut nets)?;
    Some(Channel { nets, height, exits, entries })
}

/// Gives each net that is not straight a line of its own, so that no two run in the same cell of a column; how many there are.
fn lay(nets: &mut [Net]) -> Option<usize> {
    let straight = |net: &Net| net.above.len() == 1 && net.above == net.below;
    let bent: Vec<usize> = (0..nets.len()).filter(|it| !straight(&nets[*it])).collect();
    // Whoever goes down where another comes from above must turn below it.
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
            laid.iter().any(|(other, on)| *on == lane && nets[net].meets(&nets[*other]))
        };
        let lane = (least..least + bent.len()).find(|lane| !meets(*lane))?;
        laid.push((net, lane));
    }
    for (net, lane) in &laid {
        nets[*net].lane = Some(*lane);
    }
    Some(laid.iter().map(|(_, lane)| lane + 1).max().unwrap_or(1))
}

impl Net {
    /// The first and the last column of its line across.
    fn reach(&self) -> (usize, usize) {
        let all = || self.above.iter().chain(&self.below).copied();
        (all().min().unwrap_or(0), all().max().unwrap_or(0))
    }

    /// Whether two lines across would touch.
    fn meets(&self, other: &Self) -> bool {
        let ((from, to), (other_from, other_to)) = (self.reach(), other.reach());
        from <= other_to + 1 && other_from <= to + 1
    }
}

impl Channel {
    fn draw(&self, canvas: &mut Canvas, top: usize) {
        for net in &self.nets {
            let Some(lane) = net.lane else { continue };
            let (from, to) = net.reach();
            for x in from..=to {
                let mut mask = 0;
                mask |= if x > from { LEFT } else { 0 };
                mask |= if x < to { RIGHT } else { 0 };
                mask |= if net.above.contains(&x) { UP } else { 0 };
                mask |= if net.below.contains(&x) { DOWN } else { 0 };
                canvas.line(x, top + lane, mask);
            }
        }
        // What only passes a line goes over it.
        for net in &self.nets {
            let lane = net.lane.unwrap_or(self.height);
            for column in &net.above {
                (0..lane).for_each(|y| canvas.over(*column, top + y));
            }
            for column in &net.below {
                (lane + 1..self.height).for_each(|y| canvas.over(*column, top + y));
            }
        }
    }
}

const UP: u8 = 1;
const DOWN: u8 = 2;
const LEFT: u8 = 4;
const RIGHT: u8 = 8;

/// The sign for lines that meet, by where they come from.
const SIGNS: [char; 16] =
    [' ', '╵', '╷', '│', '╴', '╯', '╮', '┤', '╶', '╰', '╭', '├', '─', '┴', '┬', '┼'];

/// A grid of letters, each with its style.
struct Canvas {
    cells: usize,
    grid: Vec<Vec<(char, Style)>>,
}

impl Canvas {
    const fn new(cells: usize) -> Self {
        Self { cells, grid: Vec::new() }
    }

    fn put(&mut self, x: usize, y: usize, sign: char, style: Style) {
        while self.grid.len() <= y {
            self.grid.push(vec![(' ', Style::new()); self.cells]);
        }
        if let Some(cell) = self.grid[y].get_mut(x) {
            *cell = (sign, style);
        }
    }

    /// A piece of a line; it joins what is there.
    fn line(&mut self, x: usize, y: usize, mask: u8) {
        let there = self.grid.get(y).and_then(|row| row.get(x)).map_or(' ', |it| it.0);
        let before = SIGNS.iter().position(|sign| *sign == there).unwrap_or(0);
        let sign = SIGNS[before | usize::from(mask)];
        self.put(x, y, sign, Style::new().add_modifier(Modifier::DIM));
    }

    /// A piece of a line that goes over whatever is there.
    fn over(&mut self, x: usize, y: usize) {
        self.put(x, y, '│', Style::new().add_modifier(Modifier::DIM));
    }

    /// One box, with the places where lines come in and go out.
    fn one(
        &mut self,
        unit: &Unit,
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
            self.put(at, y, across, border);
            self.put(at, y + 2, across, border);
        }
        for (at, row, sign) in [
            (x, y, corners[0]),
            (right, y, corners[1]),
            (x, y + 2, corners[2]),
            (right, y + 2, corners[3]),
        ] {
            self.put(at, row, sign, border);
        }
        self.put(x, y + 1, upright, border);
        self.put(right, y + 1, upright, border);
        let name = format!(" {} ", cut(&unit.key, wide - 6));
        self.write(x + 1, y, &name, border);
        if let Some(at) = enters.filter(|at| *at > x + width(&name)) {
            self.put(at, y, if chosen { '┻' } else { '┴' }, border);
        }
        for at in leaves {
            self.put(*at, y + 2, if chosen { '┳' } else { '┬' }, border);
        }
        let inside = if chosen { unit.style.add_modifier(Modifier::REVERSED) } else { unit.style };
        self.write(x + 1, y + 1, &format!(" {}", fit(&unit.title, wide - 3)), inside);
    }

    fn write(&mut self, x: usize, y: usize, text: &str, style: Style) {
        let mut at = x;
        for letter in text.chars() {
            let cells = width(letter.encode_utf8(&mut [0; 4]));
            self.put(at, y, letter, style);
            // A wide letter covers the cell behind it.
            (1..cells).for_each(|more| self.put(at + more, y, '\0', style));
            at += cells;
        }
    }

    fn lines(self) -> Vec<Line<'static>> {
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

/// The units as a tree: each below the last that it waits for, with the others named.
fn tree(units: &[Unit], cells: usize, chosen: Option<usize>) -> Drawing {
    let mut drawing = Drawing { lines: Vec::new(), places: vec![(0, 0, 0, 0); units.len()] };
    let mut left: BTreeSet<usize> = (0..units.len()).collect();
    branch(units, None, "", (cells, chosen), &mut left, &mut drawing);
    // What hangs on nothing that is there is shown all the same.
    while let Some(unit) = left.pop_first() {
        one(units, unit, "", (cells, chosen), &mut drawing);
    }
    drawing
}

fn branch(
    units: &[Unit],
    parent: Option<usize>,
    indent: &str,
    look: (usize, Option<usize>),
    left: &mut BTreeSet<usize>,
    drawing: &mut Drawing,
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
        one(units, *unit, &format!("{indent}{mark}"), look, drawing);
        branch(units, Some(*unit), &format!("{indent}{rest}"), look, left, drawing);
    }
}

fn one(
    units: &[Unit],
    unit: usize,
    before: &str,
    (cells, chosen): (usize, Option<usize>),
    drawing: &mut Drawing,
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
    let room = cells.saturating_sub(width(before));
    let text = cut(&format!("{}  {}{also}", it.title, it.key), room);
    let style =
        if chosen == Some(unit) { it.style.add_modifier(Modifier::REVERSED) } else { it.style };
    drawing.places[unit] = (width(before), drawing.lines.len(), width(&text), 1);
    let dim = Style::new().add_modifier(Modifier::DIM);
    let spans = vec![Span::styled(before.to_owned(), dim), Span::styled(text, style)];
    drawing.lines.push(Line::from(spans));
}

#[cfg(test)]
mod tests;
