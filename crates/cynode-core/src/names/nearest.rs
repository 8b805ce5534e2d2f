//! Suggests the nearest known name for a mistyped one.

/// The known name that is nearest to `name` by edit distance, if it is near enough to be meant: at most a third of its
/// letters are different.
pub fn nearest_name<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let distances = known.into_iter().map(|known| (edit_distance(name, known), known));
    let (distance, known) = distances.min()?;
    (distance <= known.len() / 3).then_some(known)
}

/// How many letters are to be put in, taken out or changed to make one name of the other (Levenshtein).
fn edit_distance(one: &str, other: &str) -> usize {
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (line, here) in one.bytes().enumerate() {
        let mut corner = line;
        row[0] = line + 1;
        for (at, there) in other.bytes().enumerate() {
            let changed = corner + usize::from(here != there);
            corner = row[at + 1];
            row[at + 1] = changed.min(corner + 1).min(row[at] + 1);
        }
    }
    row[other.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_was_mistyped_is_found_and_another_is_not() {
        let known = ["workflow.approve_plan", "delivery.mode", "web"];
        assert_eq!(nearest_name("workflow.aprove_plan", known), Some("workflow.approve_plan"));
        assert_eq!(nearest_name("wbe", known), None);
        assert_eq!(nearest_name("weeb", known), Some("web"));
        assert_eq!(nearest_name("foo.bar", known), None);
        assert_eq!(nearest_name("web", []), None);
    }
}
