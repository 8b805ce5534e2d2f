//! Which crate may use which: design decisions, kept by Cargo's own word.

use std::collections::{BTreeMap, BTreeSet};

use cargo_metadata::{DependencyKind, MetadataCommand};

use crate::source::{files, read, root};

/// The crates, lowest first, and what of ours each may use. A crate that is not here needs a page in
/// `docs/decisions/` and a line here.
const ALLOWED: [(&str, &[&str]); 28] = [
    ("cynode-core", &[]),
    ("cynode-net", &[]),
    ("cynode-sandbox-init", &[]),
    ("cynode-sandbox", &["cynode-core", "cynode-net", "cynode-sandbox-init"]),
    ("cynode-packages", &["cynode-core", "cynode-sandbox"]),
    ("cynode-wire", &["cynode-core"]),
    ("cynode-detection", &["cynode-core"]),
    ("cynode-test-reports", &["cynode-core"]),
    ("cynode-memory", &[]),
    ("cynode-policy", &["cynode-core"]),
    ("cynode-audit", &["cynode-core", "cynode-policy"]),
    ("cynode-db", &["cynode-core", "cynode-policy"]),
    ("cynode-models", &["cynode-core", "cynode-net", "cynode-wire", "cynode-policy"]),
    ("cynode-notify", &["cynode-core", "cynode-net"]),
    ("cynode-forge", &["cynode-core", "cynode-net"]),
    ("cynode-audit-export", &["cynode-core", "cynode-net", "cynode-audit", "cynode-notify"]),
    ("cynode-oidc", &["cynode-net"]),
    (
        "cynode-app",
        &[
            "cynode-core",
            "cynode-net",
            "cynode-wire",
            "cynode-policy",
            "cynode-audit",
            "cynode-audit-export",
            "cynode-db",
            "cynode-models",
            "cynode-notify",
            "cynode-forge",
            "cynode-oidc",
            "cynode-detection",
            "cynode-memory",
        ],
    ),
    ("cynork", &["cynode-core", "cynode-net", "cynode-wire", "cynode-detection"]),
    (
        "cynode-gateway",
        &[
            "cynode-core",
            "cynode-net",
            "cynode-sandbox",
            "cynode-wire",
            "cynode-policy",
            "cynode-app",
        ],
    ),
    ("cynode-api", &["cynode-core", "cynode-wire", "cynode-policy", "cynode-app"]),
    (
        "cynode",
        &[
            "cynode-core",
            "cynode-net",
            "cynode-sandbox",
            "cynode-wire",
            "cynode-policy",
            "cynode-audit",
            "cynode-db",
            "cynode-models",
            "cynode-notify",
            "cynode-oidc",
            "cynode-app",
            "cynode-gateway",
            "cynode-api",
            "cynork",
        ],
    ),
    ("cynode-pma", &["cynode-core", "cynode-net", "cynode-wire", "cynode-policy"]),
    ("cynode-runner", &["cynode-core", "cynode-net", "cynode-wire", "cynode-policy"]),
    (
        "cynode-node",
        &[
            "cynode-core",
            "cynode-net",
            "cynode-sandbox",
            "cynode-test-reports",
            "cynode-packages",
            "cynode-wire",
            "cynode-policy",
            "cynode-audit",
        ],
    ),
    ("cynode-testkit-db", &["cynode-core", "cynode-db"]),
    (
        "cynode-testkit",
        &[
            "cynode-core",
            "cynode-net",
            "cynode-wire",
            "cynode-policy",
            "cynode-audit",
            "cynode-db",
            "cynode-models",
            "cynode-notify",
            "cynode-forge",
            "cynode-oidc",
            "cynode-app",
            "cynode-gateway",
            "cynode-api",
            "cynode-testkit-db",
        ],
    ),
    (
        "cynode-e2e",
        &[
            "cynode-core",
            "cynode-wire",
            "cynode-models",
            "cynode-app",
            "cynode-gateway",
            "cynode-memory",
            "cynode-runner",
            "cynode-sandbox",
            "cynode-packages",
            "cynode-node",
            "cynode-testkit",
        ],
    ),
];

/// Libraries that only some of our crates may name.
const ONLY: [(&str, &[&str]); 6] = [
    ("sqlx", &["cynode-db", "cynode-testkit-db", "cynode-e2e"]),
    (
        "axum",
        &[
            "cynode-api",
            "cynode-gateway",
            "cynode",
            "cynode-pma",
            "cynode-node",
            "cynode-testkit",
            "cynode-e2e",
        ],
    ),
    (
        "anyhow",
        &[
            "cynode",
            "cynode-app",
            "cynode-pma",
            "cynode-runner",
            "cynode-sandbox-init",
            "cynode-node",
            "cynork",
            "cynode-e2e",
        ],
    ),
    ("cynode-testkit-db", &["cynode-testkit"]),
    ("cynode-testkit", &["cynode-e2e"]),
    ("cynode-e2e", &[]),
];

/// Crates without any input or output.
const PURE: [&str; 6] = [
    "cynode-core",
    "cynode-wire",
    "cynode-detection",
    "cynode-policy",
    "cynode-test-reports",
    "cynode-memory",
];

/// Libraries that wait, open or listen.
const IMPURE: [&str; 8] =
    ["tokio", "axum", "sqlx", "hyper", "reqwest", "futures", "rand", "async-trait"];

/// Each of our crates with what it names outside of tests.
fn named() -> BTreeMap<String, BTreeSet<String>> {
    let metadata = MetadataCommand::new()
        .current_dir(root())
        .no_deps()
        .other_options(["--offline".to_owned()])
        .exec()
        .unwrap();
    let direct = |package: &cargo_metadata::Package| {
        let normal = package.dependencies.iter().filter(|d| d.kind != DependencyKind::Development);
        normal.map(|dependency| dependency.name.clone()).collect()
    };
    metadata.packages.iter().map(|package| (package.name.to_string(), direct(package))).collect()
}

/// What is wrong with the arrows.
fn broken(crates: &BTreeMap<String, BTreeSet<String>>) -> Vec<String> {
    let mut wrong = Vec::new();
    for (name, dependencies) in crates {
        let Some((_, allowed)) = ALLOWED.iter().find(|(known, _)| known == name) else {
            wrong.push(format!("{name} is a new crate: decide about it in docs/decisions"));
            continue;
        };
        for dependency in dependencies {
            let ours = ALLOWED.iter().any(|(known, _)| known == dependency);
            if ours && !allowed.contains(&dependency.as_str()) {
                wrong.push(format!("{name} must not use {dependency}"));
            }
            let only = ONLY.iter().find(|(library, _)| library == dependency);
            if only.is_some_and(|(_, users)| !users.contains(&name.as_str())) {
                wrong.push(format!("{name} must not name {dependency}"));
            }
            if PURE.contains(&name.as_str()) && IMPURE.contains(&dependency.as_str()) {
                wrong.push(format!("{name} is pure and must not use {dependency}"));
            }
        }
    }
    wrong
}

#[test]
fn arrows_between_crates_point_down_only() {
    let crates = named();
    assert!(crates.contains_key("cynode-core"), "the workspace was not found");
    assert_eq!(broken(&crates), Vec::<String>::new());
}

#[test]
fn a_broken_arrow_is_found() {
    let set = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<BTreeSet<_>>();
    let crates = BTreeMap::from([
        ("cynode-core".to_owned(), set(&["cynode-db", "tokio"])),
        ("cynode-node".to_owned(), set(&["cynode-db", "cynode-wire"])),
        ("cynode-api".to_owned(), set(&["sqlx", "cynode-testkit"])),
        ("cynode-extra".to_owned(), set(&[])),
    ]);
    assert_eq!(
        broken(&crates),
        [
            "cynode-api must not use cynode-testkit",
            "cynode-api must not name cynode-testkit",
            "cynode-api must not name sqlx",
            "cynode-core must not use cynode-db",
            "cynode-core is pure and must not use tokio",
            "cynode-extra is a new crate: decide about it in docs/decisions",
            "cynode-node must not use cynode-db",
        ]
    );
}

#[test]
fn the_database_and_the_policy_never_link_requests_and_views() {
    let mut open = vec!["cynode-db", "cynode-policy"];
    while let Some(name) = open.pop() {
        assert_ne!(name, "cynode-wire");
        let (_, allowed) = ALLOWED.iter().find(|(known, _)| *known == name).unwrap();
        open.extend(*allowed);
    }
}

#[test]
fn agents_runners_nodes_and_the_command_line_never_link_the_database() {
    let crates = named();
    for name in ["cynode-pma", "cynode-runner", "cynode-node", "cynork"] {
        let (_, allowed) = ALLOWED.iter().find(|(known, _)| *known == name).unwrap();
        assert!(
            !allowed.contains(&"cynode-db") && !allowed.contains(&"cynode-app"),
            "S000-034: {name}"
        );
        assert!(!ONLY[0].1.contains(&name), "{name}");
        let database = ["sqlx", "cynode-db", "cynode-app"];
        let linked = database.iter().any(|library| crates[name].contains(*library));
        assert!(!linked, "S002-19, S002-20, S002-28: {name}");
    }
}

#[test]
fn the_runner_connects_to_the_gateway_and_to_nothing_else() {
    let client = "crates/cynode-runner/src/client.rs";
    let connects = |path: &String| {
        let text = read(path);
        ["reqwest", "TcpStream", "UnixStream", "UdpSocket"].iter().any(|it| text.contains(it))
    };
    let connecting: Vec<_> =
        files("crates/cynode-runner/src").into_iter().filter(connects).collect();
    assert_eq!(connecting, [client], "S002-18, S002-20, S002-63: one client in the runner");
    let addresses: Vec<_> = read(client)
        .lines()
        .filter(|line| line.contains("format!(\"{}/"))
        .map(|line| line.contains("{}/mcp"))
        .collect();
    assert_eq!(addresses, [true], "S002-18, S002-20: the client knows one address, the gateway");
}
