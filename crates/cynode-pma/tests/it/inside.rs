//! What the program is made of, and what it cannot have.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
};

use cargo_metadata::{DependencyKind, MetadataCommand};

fn here() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Every crate that is linked into the program.
fn linked() -> BTreeSet<String> {
    let metadata = MetadataCommand::new()
        .current_dir(here())
        .other_options(["--offline".to_owned()])
        .exec()
        .unwrap();
    let resolve = metadata.resolve.unwrap();
    let own =
        metadata.packages.iter().find(|package| package.name.as_str() == "cynode-pma").unwrap();
    let (mut open, mut seen) = (vec![own.id.clone()], BTreeSet::new());
    while let Some(id) = open.pop() {
        if seen.insert(id.clone()) {
            let node = resolve.nodes.iter().find(|node| node.id == id).unwrap();
            let normal = node.deps.iter().filter(|dependency| {
                dependency.dep_kinds.iter().any(|kind| kind.kind == DependencyKind::Normal)
            });
            open.extend(normal.map(|dependency| dependency.pkg.clone()));
        }
    }
    let names = metadata.packages.iter().filter(|package| seen.contains(&package.id));
    names.map(|package| package.name.to_string()).collect()
}

#[test]
fn no_database_driver_is_linked_and_nothing_of_ours_that_has_one() {
    let linked = linked();
    assert!(linked.contains("reqwest"), "{linked:?}");
    let forbidden = [
        "sqlx",
        "postgres",
        "mysql",
        "sqlite",
        "diesel",
        "libloading",
        "wasmtime",
        "rhai",
        "mlua",
        "pyo3",
    ];
    let found: Vec<&String> =
        linked.iter().filter(|name| forbidden.iter().any(|bad| name.contains(bad))).collect();
    assert_eq!(found, Vec::<&String>::new(), "S000-078: no database driver is linked");
    let ours: Vec<&str> =
        linked.iter().map(String::as_str).filter(|name| name.starts_with("cynode")).collect();
    assert_eq!(
        ours,
        ["cynode-core", "cynode-net", "cynode-pma", "cynode-wire"],
        "S000-064, S000-078: nothing of ours that reads the database"
    );
}

fn sources(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(sources(&path));
        } else if path.extension().is_some_and(|ending| ending == "rs") {
            found.push(path);
        }
    }
    found
}

#[test]
fn nothing_in_the_program_starts_another_program_or_loads_code() {
    let sources = sources(&here().join("src"));
    assert!(sources.len() > 10);
    for path in sources {
        let text = std::fs::read_to_string(&path).unwrap();
        for (number, line) in text.lines().enumerate() {
            let line = line.replace("process::ExitCode", "");
            for bad in [
                "std::process",
                "tokio::process",
                "process::Command",
                "Command::new",
                "dlopen",
                "execve",
                "include_bytes!",
            ] {
                let at = format!("{}:{}", path.display(), number + 1);
                assert!(!line.contains(bad), "S000-005: {at}: {bad}");
            }
        }
    }
    let interpreters =
        ["libloading", "wasmtime", "rhai", "mlua", "pyo3", "deno_core", "rquickjs", "boa_engine"];
    let mut found = linked();
    found.retain(|name| interpreters.contains(&name.as_str()));
    assert_eq!(found, BTreeSet::new(), "S000-005");
}

#[test]
fn each_part_of_the_requirements_is_named_by_a_test_that_shows_it() {
    let lists = ["src/instructions/tests.rs", "tests/it/inside.rs"];
    let tests = [sources(&here().join("src")), sources(&here().join("tests"))].concat();
    let tests = tests.into_iter().filter(|path| {
        let test =
            path.ends_with("tests.rs") || path.components().any(|it| it.as_os_str() == "tests");
        test && !lists.iter().any(|list| path.ends_with(list))
    });
    let text: String = tests.map(|path| std::fs::read_to_string(path).unwrap()).collect();
    let parts = [
        "Doc.CyNodePma",
        "RequestSource",
        "RoleModes",
        "InstructionsLoading",
        "LLMContextComposition",
        "ChatSurfaceMapping",
        "PolicyAndTools",
        "McpToolAccess",
        "SkillsAndDefaultSkill",
    ];
    let unnamed: Vec<&str> =
        parts.into_iter().filter(|part| !text.contains(&format!("CYNAI.PMAGNT.{part}"))).collect();
    assert_eq!(unnamed, Vec::<&str>::new(), "S000-003");
}

#[test]
fn the_environment_is_read_in_one_place_and_nobody_but_the_orchestrator_is_named() {
    for path in sources(&here().join("src")) {
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(
            !text.contains("env::var") || path.ends_with("src/config.rs"),
            "{}",
            path.display()
        );
        for provider in ["api.openai.com", "api.anthropic.com", "googleapis.com"] {
            assert!(!text.contains(provider), "S000-079: {}: {provider}", path.display());
        }
    }
}
