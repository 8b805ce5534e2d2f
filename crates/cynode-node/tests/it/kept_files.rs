//! The package cache and the kept environments, by the commands of the program.

use serde_json::{Value, json};

use crate::{fake::Fake, program::Machine};

fn print(machine: &Machine, words: &[&str]) -> String {
    let output = machine.command().args(words).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn fail(machine: &Machine, words: &[&str]) -> String {
    let output = machine.command().args(words).output().unwrap();
    assert!(!output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    String::from_utf8(output.stderr).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_package_cache_is_counted_exported_and_imported_by_commands() {
    let fake = Fake::start().await;
    let (first, second) = (Machine::new(&fake), Machine::new(&fake));
    let file = first.dir.path().join("packages.tar");
    let file = file.to_str().unwrap();
    let counted: Value =
        serde_json::from_str(&print(&first, &["packages", "stats", "--json"])).unwrap();
    let directory = first.state().join("packages");
    let max_cache_bytes = 10_240_u64 << 20;
    assert_eq!(
        counted,
        json!({ "directory": directory, "cached_files": 0, "cached_bytes": 0, "max_cache_bytes": max_cache_bytes })
    );
    print(&first, &["packages", "export", file]);
    let imported = print(&second, &["packages", "import", file]);
    assert_eq!(imported, "the cache has 0 files now, 0 MiB\n");
    assert_eq!(print(&second, &["packages", "prune"]), "0 MiB were removed\n");
    std::fs::write(file, "no archive").unwrap();
    let refused = fail(&second, &["packages", "import", file]);
    assert!(refused.starts_with("cynode-node: "), "{refused}");
}

#[tokio::test(flavor = "multi_thread")]
async fn kept_environments_are_listed_and_only_the_node_removes_them_while_it_runs() {
    let fake = Fake::start().await;
    let machine = Machine::joined(&fake);
    assert_eq!(print(&machine, &["environments", "list"]), "no environment is kept\n");
    assert_eq!(print(&machine, &["environments", "list", "--json"]), "[]\n");
    assert_eq!(print(&machine, &["environments", "prune"]), "0 environments were removed\n");
    let _node = machine.start();
    fake.until("it is heard", |world| (world.heartbeats > 0).then_some(())).await;
    let refused = fail(&machine, &["environments", "prune", "--all"]);
    assert!(refused.contains("another node has"), "{refused}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_doctor_names_the_registries_without_credentials_and_which_it_does_not_reach() {
    let fake = Fake::start().await;
    let machine = Machine::joined(&fake);
    let flags = [
        "doctor",
        "--min-free-disk-mib",
        "1",
        "--package-upstream",
        "npm=http://somebody:hush@127.0.0.1:1/npm/",
    ];
    let told = print(&machine, &flags);
    let place = machine.state().join("packages");
    for part in [
        "! packages      crates from ",
        ", npm from 127.0.0.1 (node.toml), ",
        &format!("; a cache of at most 10240 MiB in {}; not reached: ", place.display()),
    ] {
        assert!(told.contains(part), "{part}: {told}");
    }
    assert!(!told.contains("hush"), "{told}");
    let refused = fail(&machine, &["doctor", "--package-upstream", "npm"]);
    assert!(refused.contains("package_upstreams is NAME=URL"), "{refused}");
}
