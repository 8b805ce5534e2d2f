//! Whatever git says about a bundle that an agent wrote is read or refused: a ref is one ref, and an object is of a known kind and small.
#![no_main]
#![allow(dead_code)]

#[path = "../../crates/cynode-app/src/delivery/repositories/git_output.rs"]
mod git_output;

use std::{os::unix::process::ExitStatusExt, process::ExitStatus};

use cynode_forge::git_process::{is_over_limit, is_transient_failure};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    // The first line is the commit that a node names; the rest is what git says.
    let text = String::from_utf8_lossy(data);
    let Some((commit, said)) = text.split_once('\n') else { return };
    check_heads(commit, said);
    check_sizes(said);
    check_changes(said);
    for status in [0, 24, 25, 128 << 8] {
        // A full disk is no verdict on the bundle.
        let verdict = is_over_limit(ExitStatus::from_raw(status), said);
        assert!(!(verdict && is_transient_failure(said)));
    }
});

fn check_heads(commit: &str, said: &str) {
    if let Some(name) = git_output::find_bundle_head(said, commit) {
        assert!(said.lines().any(|line| line == format!("{commit} {name}")));
        assert!(name == "HEAD" || name.starts_with("refs/"));
        let is_special = |c: char| c.is_whitespace() || c.is_control() || ":*?[\\^~".contains(c);
        assert!(!name.chars().any(is_special), "{name:?}");
    }
    for branch in git_output::list_bundle_branches(said) {
        assert!(said.lines().any(|line| line.ends_with(&format!(" refs/heads/{branch}"))));
    }
    if git_output::is_commit(commit) {
        assert!(commit.bytes().all(|byte| byte.is_ascii_hexdigit()));
    }
}

fn check_sizes(said: &str) {
    let count = said.lines().count();
    if git_output::find_size_violation(count, said).is_none() {
        for line in said.lines() {
            let (kind, size) = line.split_once(' ').unwrap();
            let most = match kind {
                "blob" => git_output::MAX_JOB_FILE_BYTES,
                "commit" | "tree" | "tag" => git_output::MAX_JOB_TREE_BYTES,
                other => panic!("{other:?} is no kind of object"),
            };
            assert!(size.parse::<u64>().unwrap() <= most);
        }
    }
    // An object that git does not speak of is never taken.
    assert!(git_output::find_size_violation(count + 1, said).is_some());
}

fn check_changes(said: &str) {
    for file in git_output::parse_raw_diff(said) {
        assert!(said.split('\0').any(|field| field == file.touched.path));
    }
    for anomaly in git_output::find_merge_markers(said) {
        assert!(said.contains(anomaly.file_path()));
    }
    let lines = u64::try_from(said.lines().count()).unwrap();
    assert_eq!(git_output::parse_numstat(said).files, lines);
}
