//! Advisories about versions of packages, in the OSV format: a JSON array, or one object per line.

use std::{cmp::Ordering, collections::HashMap, fs, path::Path};

use cynode_core::environments::PackageSource;
use serde::Deserialize;

use crate::{
    error::PackageProxyError,
    versions::{compare_versions, normalize_name},
};

/// Loaded advisories, by package.
#[derive(Debug, Default)]
pub(crate) struct Advisories {
    by_package: HashMap<(PackageSource, String), Vec<AffectedVersions>>,
}

/// Versions that an advisory is about.
#[derive(Debug)]
struct AffectedVersions {
    id: String,
    versions: Vec<String>,
    ranges: Vec<Vec<RangeEvent>>,
}

#[derive(Deserialize)]
struct OsvRecord {
    id: String,
    #[serde(default)]
    withdrawn: Option<String>,
    affected: Vec<OsvAffected>,
}

#[derive(Deserialize)]
struct OsvAffected {
    package: OsvPackage,
    #[serde(default)]
    versions: Vec<String>,
    #[serde(default)]
    ranges: Vec<OsvRange>,
}

#[derive(Deserialize)]
struct OsvPackage {
    ecosystem: String,
    name: String,
}

#[derive(Deserialize)]
struct OsvRange {
    #[serde(rename = "type")]
    kind: String,
    events: Vec<RangeEvent>,
}

/// Begin or end of a range of versions.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
enum RangeEvent {
    Introduced(String),
    Fixed(String),
    LastAffected(String),
    Limit(String),
}

impl Advisories {
    /// Reads a file. A file that cannot be read whole is an error: nothing is then allowed by mistake.
    pub(crate) fn read(path: &Path) -> Result<Self, PackageProxyError> {
        let text = fs::read_to_string(path)
            .map_err(|error| PackageProxyError::io("the advisory file could not be read", error))?;
        Self::parse(&text)
            .map_err(|reason| PackageProxyError::Advisories { path: path.to_owned(), reason })
    }

    fn parse(text: &str) -> Result<Self, String> {
        let records: Vec<OsvRecord> = if text.trim_start().starts_with('[') {
            serde_json::from_str(text).map_err(|error| error.to_string())?
        } else {
            let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
            lines
                .map(|(at, line)| {
                    serde_json::from_str(line).map_err(|error| format!("line {}: {error}", at + 1))
                })
                .collect::<Result<_, _>>()?
        };
        let mut advisories = Self::default();
        for record in records.into_iter().filter(|record| record.withdrawn.is_none()) {
            for affected in record.affected {
                let Some(source) = source_of_ecosystem(&affected.package.ecosystem) else {
                    continue;
                };
                let key = (source, normalize_name(source, &affected.package.name));
                advisories.by_package.entry(key).or_default().push(AffectedVersions {
                    id: record.id.clone(),
                    versions: affected.versions,
                    ranges: affected
                        .ranges
                        .into_iter()
                        .filter(|range| range.kind != "GIT")
                        .map(|range| range.events)
                        .collect(),
                });
            }
        }
        Ok(advisories)
    }

    /// Returns the id of an advisory about a version.
    pub(crate) fn find(&self, source: PackageSource, name: &str, version: &str) -> Option<&str> {
        let affected = self.by_package.get(&(source, normalize_name(source, name)))?;
        affected.iter().find(|it| it.includes(version)).map(|it| it.id.as_str())
    }
}

impl AffectedVersions {
    fn includes(&self, version: &str) -> bool {
        self.versions.iter().any(|it| it == version)
            || self.ranges.iter().any(|events| is_in_range(events, version))
    }
}

/// Walks the events in the order of their versions.
fn is_in_range(events: &[RangeEvent], version: &str) -> bool {
    let at_least = |begin: &str| begin == "0" || compare_versions(version, begin) != Ordering::Less;
    let mut sorted: Vec<&RangeEvent> = events.iter().collect();
    sorted.sort_by(|a, b| match (a.version(), b.version()) {
        ("0", "0") => Ordering::Equal,
        ("0", _) => Ordering::Less,
        (_, "0") => Ordering::Greater,
        (a, b) => compare_versions(a, b),
    });
    let mut inside = false;
    for event in sorted {
        match event {
            RangeEvent::Introduced(begin) if at_least(begin) => inside = true,
            RangeEvent::Fixed(end) | RangeEvent::Limit(end) if at_least(end) => inside = false,
            RangeEvent::LastAffected(last)
                if compare_versions(version, last) == Ordering::Greater =>
            {
                inside = false;
            }
            _ => {}
        }
    }
    inside
}

impl RangeEvent {
    fn version(&self) -> &str {
        match self {
            Self::Introduced(text)
            | Self::Fixed(text)
            | Self::LastAffected(text)
            | Self::Limit(text) => text,
        }
    }
}

fn source_of_ecosystem(name: &str) -> Option<PackageSource> {
    match name.split(':').next()? {
        "crates.io" => Some(PackageSource::Crates),
        "PyPI" => Some(PackageSource::Pypi),
        "npm" => Some(PackageSource::Npm),
        "Debian" => Some(PackageSource::Debian),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_advisory_names_versions_or_ranges() {
        let lines = concat!(
            r#"{"id":"A-1","affected":[{"package":{"ecosystem":"npm","name":"left"},"ranges":[{"type":"SEMVER","events":[{"introduced":"0"},{"fixed":"1.2.0"},{"introduced":"2.0.0"},{"last_affected":"2.1.0"}]}]}]}"#,
            "\n",
            r#"{"id":"A-2","affected":[{"package":{"ecosystem":"PyPI","name":"My_Pack"},"versions":["1.0"]}]}"#,
            "\n",
            r#"{"id":"A-3","withdrawn":"2024-01-01T00:00:00Z","affected":[{"package":{"ecosystem":"npm","name":"left"},"versions":["1.3.0"]}]}"#,
        );
        let advisories = Advisories::parse(lines).unwrap();
        let found: Vec<_> = ["1.1.9", "1.2.0", "1.3.0", "2.0.5", "2.1.0", "2.1.1"]
            .into_iter()
            .map(|version| advisories.find(PackageSource::Npm, "left", version))
            .collect();
        assert_eq!(found, [Some("A-1"), None, None, Some("A-1"), Some("A-1"), None]);
        assert_eq!(advisories.find(PackageSource::Pypi, "my-pack", "1.0"), Some("A-2"));
        assert_eq!(advisories.find(PackageSource::Crates, "left", "1.0"), None);
    }

    #[test]
    fn a_broken_line_fails_with_its_number() {
        let error = Advisories::parse("\n{\"id\":1}").unwrap_err();
        assert!(error.starts_with("line 2: "), "{error}");
        assert!(Advisories::parse("[]").is_ok());
    }
}
