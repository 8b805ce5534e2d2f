use super::*;

fn units(plan: &[(&str, &[usize])]) -> Vec<GraphUnit> {
    let one = |(key, after): &(&str, &[usize])| GraphUnit {
        key: (*key).to_owned(),
        title: format!("✓ do {key}"),
        style: Style::new(),
        after: after.to_vec(),
    };
    plan.iter().map(one).collect()
}

fn text(drawing: &GraphDrawing) -> String {
    let lines = drawing.lines.iter().map(|line| line.to_string().trim_end().to_owned());
    lines.collect::<Vec<_>>().join("\n")
}

/// Compares a drawing with the one that is kept.
fn same(name: &str, drawing: &GraphDrawing) {
    let mut settings = insta::Settings::clone_current();
    settings.set_snapshot_path("../snapshots");
    settings.set_prepend_module_to_snapshot(false);
    settings.set_omit_expression(true);
    settings.bind(|| insta::assert_snapshot!(format!("graph-{name}"), text(drawing)));
}

const SEVEN: &[(&str, &[usize])] = &[
    ("design", &[]),
    ("store", &[0]),
    ("api", &[0]),
    ("page", &[0]),
    ("sync", &[1, 2]),
    ("view", &[2, 3]),
    ("tests", &[4, 5]),
];

#[test]
fn seven_units_are_boxes_in_four_rows_at_eighty_columns() {
    same("boxes", &draw_graph(&units(SEVEN), 78, Some(2)));
}

#[test]
fn a_line_that_passes_a_row_is_drawn_beside_its_boxes() {
    let plan = units(&[("a", &[]), ("e", &[]), ("b", &[0]), ("c", &[2]), ("d", &[1, 3])]);
    same("passes", &draw_graph(&plan, 60, None));
}

#[test]
fn what_follows_from_other_lines_has_none_of_its_own() {
    let plan = units(&[("a", &[]), ("b", &[0]), ("c", &[0, 1]), ("d", &[0, 2]), ("e", &[1, 0])]);
    let after: Vec<Vec<usize>> =
        transitive_reduction(&plan).into_iter().map(|unit| unit.after).collect();
    assert_eq!(after, [vec![], vec![0], vec![1], vec![2], vec![1]]);
}

#[test]
fn where_boxes_find_no_room_there_is_a_tree_that_names_what_else_is_waited_for() {
    same("tree", &draw_graph(&units(SEVEN), 40, Some(4)));
}

#[test]
fn every_unit_has_a_place_that_shows_its_name() {
    for cells in [30, 60, 78, 120] {
        let units = units(SEVEN);
        let drawing = draw_graph(&units, cells, None);
        let text = drawing.lines.iter().map(ToString::to_string).collect::<Vec<_>>();
        for (unit, (x, y, wide, height)) in units.iter().zip(&drawing.places) {
            let shown: Vec<String> = text[*y..y + height]
                .iter()
                .map(|line| line.chars().skip(*x).take(*wide).collect())
                .collect();
            assert!(shown.concat().contains(&unit.key), "{} at {cells}: {shown:?}", unit.key);
        }
        assert!(drawing.lines.iter().all(|line| line.width() <= cells), "at {cells}");
    }
}

/// Where the lines from the bottom of a unit lead to, by following them.
fn reached(drawing: &GraphDrawing, from: usize) -> BTreeSet<usize> {
    let grid: Vec<Vec<char>> =
        drawing.lines.iter().map(|line| line.to_string().chars().collect()).collect();
    let at = |x: usize, y: usize| grid.get(y).and_then(|row| row.get(x)).copied().unwrap_or(' ');
    let (x, y, wide, height) = drawing.places[from];
    let bottom = y + height;
    let mut open: Vec<(usize, usize, u8)> =
        (x..x + wide).filter(|x| at(*x, bottom - 1) == '┬').map(|x| (x, bottom, DOWN)).collect();
    let (mut seen, mut found) = (BTreeSet::new(), BTreeSet::new());
    while let Some((x, y, going)) = open.pop() {
        let inside = |(left, top, wide, height): &(usize, usize, usize, usize)| {
            (*left..left + wide).contains(&x) && (*top..top + height).contains(&y)
        };
        if let Some(unit) = drawing.places.iter().position(inside) {
            // The name of a box may stand where a line comes in.
            if going == DOWN {
                found.insert(unit);
            }
            continue;
        }
        if !seen.insert((x, y, going)) {
            continue;
        }
        let mask = LINE_CHARS
            .iter()
            .position(|sign| *sign == at(x, y))
            .map_or(0, |it| u8::try_from(it).unwrap());
        let across = going == LEFT || going == RIGHT;
        // Lines go under what stands upright.
        let ways = if across && mask == (UP | DOWN) { going } else { mask };
        // What comes before stands above: nobody follows a line up.
        for (way, next) in [(DOWN, (x, y + 1)), (LEFT, (x.wrapping_sub(1), y)), (RIGHT, (x + 1, y))]
        {
            let back = (way == LEFT && going == RIGHT) || (way == RIGHT && going == LEFT);
            if ways & way != 0 && !back {
                open.push((next.0, next.1, way));
            }
        }
    }
    found
}

#[test]
fn lines_lead_where_they_should_in_whatever_plan() {
    // A small generator of its own, so that the plans are always the same.
    let mut seed = 7_u64;
    let mut chance = |most: u64| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) % most
    };
    let mut drawn = 0;
    for _ in 0..120 {
        let count = 2 + usize::try_from(chance(9)).unwrap();
        let names: Vec<String> = (0..count).map(|it| format!("u{it}")).collect();
        let mut plan: Vec<GraphUnit> = Vec::new();
        for (at, name) in names.iter().enumerate() {
            let after = (0..at).filter(|_| chance(3) == 0).collect();
            plan.push(GraphUnit {
                key: name.clone(),
                title: String::new(),
                style: Style::new(),
                after,
            });
        }
        let Some(drawing) = draw_boxes(&plan, 120, None) else { continue };
        drawn += 1;
        for from in 0..count {
            let meant: BTreeSet<usize> =
                (0..count).filter(|it| plan[*it].after.contains(&from)).collect();
            // Whoever shares a line with another leads to the same units by it, and to no others.
            assert_eq!(reached(&drawing, from), meant, "from u{from}\n{}", text(&drawing));
        }
    }
    assert!(drawn > 60, "only {drawn} of 120 plans were boxes");
}

#[test]
fn nothing_and_circles_are_drawn_without_an_end_that_never_comes() {
    assert!(draw_graph(&[], 80, None).lines.is_empty());
    let circle = units(&[("a", &[1]), ("b", &[0])]);
    assert_eq!(draw_graph(&circle, 10, None).lines.len(), 2);
    assert!(!draw_graph(&circle, 80, None).lines.is_empty());
}
