//! The order of folders within a crate, held as the arrows between crates are.
//!
//! The operations crate is laid out in ordered folders: a folder uses only those before it. In no crate do two folders use each other,
//! not even by way of others.

use std::collections::{BTreeMap, BTreeSet};

use crate::source::{files, read};

/// The folders of `cynode-app`, lowest first.
const APP_FOLDERS: [&str; 12] = [
    "platform",
    "identity",
    "tasks",
    "tools",
    "models",
    "delivery",
    "memory",
    "manager",
    "workflow",
    "nodes",
    "notifications",
    "background",
];

/// Which top-level module of a crate uses which: the files that do, by the two modules.
type Uses = BTreeMap<(String, String), BTreeSet<String>>;

/// The source files of each crate, without tests and other programs: the crate, the path below `src`, and the path.
fn sources() -> impl Iterator<Item = (String, String, String)> {
    files("crates").into_iter().filter_map(|path| {
        let (name, below) = path.strip_prefix("crates/")?.split_once("/src/")?;
        let tested = below.split('/').any(|part| part == "tests" || part == "tests.rs");
        let source = below.ends_with(".rs") && !tested && !below.starts_with("bin/");
        source.then(|| (name.to_owned(), below.to_owned(), path.clone()))
    })
}

/// The source without comments and without its own tests.
fn code_of(path: &str) -> String {
    let text = read(path);
    let end = text.find("#[cfg(test)]\nmod tests {").unwrap_or(text.len());
    let lines = text[..end].lines().map(|line| line.split("//").next().unwrap_or_default());
    lines.collect::<Vec<_>>().join("\n")
}

/// The first module of each path that begins with `crate::`.
fn first_modules(code: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for rest in code.split("crate::").skip(1) {
        match rest.strip_prefix('{') {
            Some(group) => found.extend(group_heads(group)),
            None => {
                found.insert(leading_name(rest));
            }
        }
    }
    found
}

/// The first names of a group in braces, which begins after its opening brace.
fn group_heads(group: &str) -> Vec<String> {
    let (mut heads, mut depth, mut fresh) = (Vec::new(), 0, true);
    for (at, letter) in group.char_indices() {
        match letter {
            '{' => depth += 1,
            '}' if depth == 0 => break,
            '}' => depth -= 1,
            ',' if depth == 0 => fresh = true,
            letter if fresh && depth == 0 && !letter.is_whitespace() => {
                heads.push(leading_name(&group[at..]));
                fresh = false;
            }
            _ => {}
        }
    }
    heads
}

fn leading_name(text: &str) -> String {
    text.chars().take_while(|letter| letter.is_alphanumeric() || *letter == '_').collect()
}

/// The uses between the top-level modules of a crate.
fn uses_in(wanted: &str) -> Uses {
    let mut uses = Uses::new();
    for (_, below, path) in sources().filter(|(name, ..)| name == wanted) {
        let top = below.split('/').next().unwrap_or_default().trim_end_matches(".rs");
        for used in first_modules(&code_of(&path)).into_iter().filter(|used| used != top) {
            uses.entry((top.to_owned(), used)).or_default().insert(below.clone());
        }
    }
    uses
}

/// The top-level folders of a crate.
fn folders_of(wanted: &str) -> BTreeSet<String> {
    let all = sources().filter(|(name, ..)| name == wanted);
    all.filter_map(|(_, below, _)| Some(below.split_once('/')?.0.to_owned())).collect()
}

/// Everything that `from` uses, directly or by way of others.
fn reachable(uses: &Uses, from: &str) -> BTreeSet<String> {
    let (mut found, mut open) = (BTreeSet::new(), vec![from.to_owned()]);
    while let Some(next) = open.pop() {
        for (_, used) in uses.keys().filter(|(user, _)| *user == next) {
            if found.insert(used.clone()) {
                open.push(used.clone());
            }
        }
    }
    found
}

#[test]
fn operations_use_only_folders_below_their_own() {
    let place = |name: &str| APP_FOLDERS.iter().position(|folder| *folder == name);
    let uses = uses_in("cynode-app");
    let upward: Vec<_> = uses
        .iter()
        .filter(
            |((user, used), _)| matches!((place(user), place(used)), (Some(a), Some(b)) if a < b),
        )
        .map(|((user, used), files)| format!("{user} uses {used} in {files:?}"))
        .collect();
    assert_eq!(upward, [""; 0], "\n{}", upward.join("\n"));
    // Everything is in a folder.
    let others: BTreeSet<_> = sources()
        .filter(|(name, below, _)| name == "cynode-app" && below != "lib.rs")
        .filter_map(|(_, below, _)| {
            let top = below.split('/').next()?.trim_end_matches(".rs").to_owned();
            place(&top).is_none().then_some(top)
        })
        .collect();
    assert_eq!(others, BTreeSet::new());
}

#[test]
fn no_two_folders_of_a_crate_use_each_other() {
    let crates: BTreeSet<_> = sources().map(|(name, ..)| name).collect();
    let mut circles = Vec::new();
    for name in crates {
        let (uses, folders) = (uses_in(&name), folders_of(&name));
        for one in &folders {
            let below = reachable(&uses, one);
            for other in folders.iter().filter(|other| *other > one && below.contains(*other)) {
                if reachable(&uses, other).contains(one) {
                    circles.push(format!("{name}: {one} and {other}"));
                }
            }
        }
    }
    assert_eq!(circles, [""; 0], "\n{}", circles.join("\n"));
}

/// Operations whose future cannot be boxed by the attribute, with the reason.
const UNBOXED_OPERATIONS: [(&str, &str); 1] =
    [("claim_handoff", "it borrows a permission check with a lifetime of its own")];

#[test]
fn every_public_operation_is_compiled_in_its_own_crate() {
    let mut unboxed = BTreeSet::new();
    for (_, _, path) in sources().filter(|(name, ..)| name == "cynode-app") {
        let code = code_of(&path);
        let mut above = "";
        for line in code.lines() {
            // What is generic is compiled where it is used in any case.
            if let Some(rest) = line.strip_prefix("pub async fn ")
                && let Some((name, _)) = rest.split_once('(')
                && !name.contains('<')
                && above != "#[operation]"
            {
                unboxed.insert(name.to_owned());
            }
            above = line;
        }
    }
    let known = UNBOXED_OPERATIONS.iter().map(|(name, _)| (*name).to_owned()).collect();
    assert_eq!(unboxed, known);
}

#[test]
fn paths_in_groups_and_alone_are_found_and_those_of_comments_are_not() {
    let code = "use crate::{\n    App, models::{inference, usage},\n    tools,\n};\n fn a() { crate::tasks::get(); }";
    let found: Vec<_> = first_modules(code).into_iter().collect();
    assert_eq!(found, ["App", "models", "tasks", "tools"]);
}
