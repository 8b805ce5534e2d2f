//! Reference pages are what the code says, and metrics have their names from the table.

use std::collections::BTreeSet;

use cynode_core::metric_specs::METRICS;

use crate::{
    source::{files, read},
    up::cynode,
};

#[test]
fn the_committed_reference_pages_are_what_the_program_writes() {
    let dir = tempfile::tempdir().unwrap();
    let done = cynode().arg("reference").arg(dir.path()).output().unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    let mut pages = 0;
    for page in std::fs::read_dir(dir.path()).unwrap() {
        let page = page.unwrap();
        let name = page.file_name().into_string().unwrap();
        let written = std::fs::read_to_string(page.path()).unwrap();
        assert!(written == read(&format!("docs/reference/{name}")), "{name}: run `just gen`");
        pages += 1;
    }
    assert_eq!(pages, 6);
}

#[test]
fn every_metric_that_is_recorded_has_its_name_from_the_table() {
    let sources: Vec<String> = files("crates")
        .into_iter()
        .filter(|path| path.ends_with(".rs") && path.contains("/src/"))
        .collect();
    let mut recorded = BTreeSet::new();
    for path in &sources {
        let text = read(path);
        for call in ["counter!(", "gauge!(", "histogram!("] {
            for rest in text.split(call).skip(1) {
                let name = rest.split([',', ')']).next().unwrap().trim();
                assert!(name.ends_with(".name"), "{path}: {call}{name}");
                recorded.insert(name.to_owned());
            }
        }
    }
    assert_eq!(recorded.len(), METRICS.len(), "a metric of the table is not recorded");
}
