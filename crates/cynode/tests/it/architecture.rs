//! Pages name the crates, programs, processes, ports, tables and tools that there are, and no others.

use std::collections::BTreeSet;

use crate::source::{files, read};

/// The rows of the first table below a heading of the map, as cells.
fn rows(heading: &str) -> Vec<Vec<String>> {
    let map = read("ARCHITECTURE.md");
    let (_, section) = map.split_once(&format!("\n## {heading}\n")).unwrap();
    let rows: Vec<Vec<String>> = section
        .lines()
        .skip_while(|line| !line.starts_with('|'))
        .take_while(|line| line.starts_with('|'))
        .skip(2)
        .map(|line| line.trim_matches('|').split(" | ").map(|it| it.trim().to_owned()).collect())
        .collect();
    assert!(!rows.is_empty(), "{heading} has no table");
    rows
}

/// What stands between backquotes.
fn quoted(text: &str) -> BTreeSet<String> {
    text.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

fn is_name(text: &str) -> bool {
    !text.is_empty()
        && text.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
}

#[test]
fn the_map_lists_exactly_the_crates_of_the_workspace() {
    let listed: BTreeSet<_> =
        rows("Crates").iter().map(|row| row[0].trim_matches('`').to_owned()).collect();
    let there: BTreeSet<_> = files("crates")
        .iter()
        .filter(|path| path.ends_with("/Cargo.toml"))
        .map(|path| path.split('/').nth(1).unwrap().to_owned())
        .collect();
    assert_eq!(listed, there);
}

#[test]
fn the_map_lists_exactly_the_tables_of_the_schema() {
    let listed: BTreeSet<_> = rows("Tables")
        .iter()
        .flat_map(|row| quoted(&row[1]))
        .filter(|name| is_name(name))
        .collect();
    let mut there = BTreeSet::new();
    for path in files("crates/cynode-db/migrations") {
        for line in read(&path).lines() {
            let rest = line.strip_prefix("CREATE TABLE ");
            if let Some(rest) = rest.or_else(|| line.strip_prefix("CREATE UNLOGGED TABLE "))
                && !line.contains("PARTITION OF")
            {
                there.insert(rest.split([' ', '(']).next().unwrap().to_owned());
            }
        }
    }
    assert_eq!(listed, there);
}

#[test]
fn the_map_lists_exactly_the_processes_of_an_installation_and_their_ports() {
    let rows = rows("Processes");
    let listed: BTreeSet<_> = rows.iter().flat_map(|row| quoted(&row[1])).collect();
    let started: BTreeSet<_> = ["crates/cynode/src/commands/up.rs", "crates/cynode/src/restate.rs"]
        .iter()
        .flat_map(|path| {
            let text = read(path);
            let names = text.split("SupervisedProgram::new(\"").skip(1);
            names.map(|rest| rest.split('"').next().unwrap().to_owned()).collect::<Vec<_>>()
        })
        .chain(["cynode".to_owned(), "postgres".to_owned()])
        .collect();
    assert_eq!(listed, started);

    let numbers = |text: &str| -> BTreeSet<String> {
        let words = text.split(|c: char| !c.is_ascii_digit());
        words.filter(|word| word.len() == 5 && word.starts_with("120")).map(str::to_owned).collect()
    };
    let ports: BTreeSet<_> = rows.iter().flat_map(|row| numbers(&row[2])).collect();
    let config: toml::Table = read("crates/cynode/config.default.toml").parse().unwrap();
    let bound: BTreeSet<_> = config
        .values()
        .filter_map(toml::Value::as_table)
        .flat_map(|section| section.iter())
        .filter(|(key, _)| key.ends_with("listen"))
        .flat_map(|(_, value)| numbers(value.as_str().unwrap()))
        .collect();
    assert_eq!(ports, bound);
    for path in pages() {
        let other: Vec<_> = numbers(&read(&path)).difference(&bound).cloned().collect();
        assert_eq!(other, Vec::<String>::new(), "{path} names ports that nothing listens on");
    }
}

/// The pages that say how CyNode is.
fn pages() -> Vec<String> {
    let mut pages = files("docs");
    pages.retain(|path| path.ends_with(".md") && !path.starts_with("docs/decisions/"));
    pages.extend(["README.md", "ARCHITECTURE.md", "AGENTS.md"].map(str::to_owned));
    pages
}

#[test]
fn pages_name_only_tools_that_are_in_the_catalogue() {
    let tools: BTreeSet<_> = cynode_gateway::tools::tool_definitions()
        .iter()
        .map(|definition| definition.name.to_string())
        .collect();
    let spaces: BTreeSet<_> = tools.iter().filter_map(|name| name.split('.').next()).collect();
    // Other dotted names: those of pages that list them, events of the log, and a field of a unit.
    let listing = ["configuration", "settings", "preferences", "policies", "events", "errors"];
    let mut others: BTreeSet<_> = listing
        .iter()
        .flat_map(|page| quoted(&read(&format!("docs/reference/{page}.md"))))
        .collect();
    let more = ["model.content_refused", "node.superseded", "node.toml", "sandbox.egress_hosts"];
    others.extend(more.map(str::to_owned));
    let mut unknown = Vec::new();
    for path in pages() {
        for name in quoted(&read(&path)) {
            let Some((space, rest)) = name.split_once('.') else { continue };
            let dotted = is_name(space) && rest.split('.').all(is_name);
            if dotted && spaces.contains(space) && !tools.contains(&name) && !others.contains(&name)
            {
                unknown.push(format!("{path}: {name}"));
            }
        }
    }
    assert_eq!(unknown, Vec::<String>::new());
}
