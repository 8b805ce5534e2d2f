//! Order of versions and names of packages, as the registries see them.

use std::cmp::Ordering;

use cynode_core::environments::PackageSource;

/// Returns the one spelling of a package's name.
pub(crate) fn normalize_name(source: PackageSource, name: &str) -> String {
    match source {
        PackageSource::Crates => name.to_ascii_lowercase().replace('_', "-"),
        PackageSource::Pypi => normalize_python_name(name),
        PackageSource::Npm | PackageSource::Debian => name.to_owned(),
    }
}

/// Lower case, with runs of `-`, `_` and `.` as one `-` (PEP 503).
fn normalize_python_name(name: &str) -> String {
    let parts = name.split(['-', '_', '.']).filter(|part| !part.is_empty());
    parts.collect::<Vec<_>>().join("-").to_ascii_lowercase()
}

/// A piece of a version.
#[derive(Debug, PartialEq, Eq)]
enum Piece<'a> {
    Number(&'a str),
    Word(&'a str),
}

/// Compares two versions: numbers by value, a version with a suffix such as `-beta` or `rc1` before the same without, `post` after it.
pub(crate) fn compare_versions(left: &str, right: &str) -> Ordering {
    let (left, right) = (release_of(left), release_of(right));
    let (mut a, mut b) = (pieces(left).into_iter(), pieces(right).into_iter());
    loop {
        let order = match (a.next(), b.next()) {
            (None, None) => return Ordering::Equal,
            (Some(piece), None) => rank_against_end(&piece),
            (None, Some(piece)) => rank_against_end(&piece).reverse(),
            (Some(Piece::Number(x)), Some(Piece::Number(y))) => compare_numbers(x, y),
            (Some(x @ Piece::Word(left)), Some(y @ Piece::Word(right))) => {
                rank_against_end(&x).cmp(&rank_against_end(&y)).then(left.cmp(right))
            }
            (Some(Piece::Number(_)), Some(word @ Piece::Word(_))) => {
                rank_against_end(&word).reverse()
            }
            (Some(word @ Piece::Word(_)), Some(Piece::Number(_))) => rank_against_end(&word),
        };
        if order != Ordering::Equal {
            return order;
        }
    }
}

/// Returns whether a version is a prerelease.
pub(crate) fn is_prerelease(version: &str) -> bool {
    let words = pieces(release_of(version));
    words.iter().any(|piece| matches!(piece, Piece::Word(word) if !word.starts_with("post")))
}

/// Without a leading `v` and without build metadata.
fn release_of(version: &str) -> &str {
    version.trim_start_matches('v').split('+').next().unwrap_or_default()
}

fn rank_against_end(piece: &Piece<'_>) -> Ordering {
    match piece {
        Piece::Number(text) => compare_numbers(text, "0"),
        Piece::Word(word) if word.starts_with("post") => Ordering::Greater,
        Piece::Word(_) => Ordering::Less,
    }
}

fn compare_numbers(left: &str, right: &str) -> Ordering {
    let (left, right) = (left.trim_start_matches('0'), right.trim_start_matches('0'));
    left.len().cmp(&right.len()).then_with(|| left.cmp(right))
}

fn pieces(version: &str) -> Vec<Piece<'_>> {
    let mut pieces = Vec::new();
    for part in version.split(['.', '-', '_']) {
        let mut rest = part;
        while let Some(first) = rest.chars().next() {
            let number = first.is_ascii_digit();
            let end = rest.find(|c: char| c.is_ascii_digit() != number).unwrap_or(rest.len());
            let (piece, after) = rest.split_at(end);
            pieces.push(if number { Piece::Number(piece) } else { Piece::Word(piece) });
            rest = after;
        }
    }
    pieces
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_ordered_as_their_registries_order_them() {
        let order = [
            "0.9",
            "1.0.0-alpha.1",
            "1.0.0-beta",
            "1.0.0rc1",
            "1.0.0",
            "1.0.0.post1",
            "1.2.9",
            "1.2.10",
            "2",
        ];
        for (at, left) in order.iter().enumerate() {
            for (with, right) in order.iter().enumerate() {
                assert_eq!(compare_versions(left, right), at.cmp(&with), "{left} {right}");
            }
        }
        assert_eq!(compare_versions("1.0", "1.0.0+build"), Ordering::Equal);
        assert_eq!(["1.0-rc1", "1.0", "1.0.post1"].map(is_prerelease), [true, false, false]);
    }

    #[test]
    fn a_package_has_one_name() {
        let names = [
            normalize_name(PackageSource::Pypi, "Ruamel.YAML__x"),
            normalize_name(PackageSource::Crates, "Serde_Json"),
            normalize_name(PackageSource::Npm, "@A/b"),
        ];
        assert_eq!(names, ["ruamel-yaml-x", "serde-json", "@A/b"]);
    }
}
