//! The repository as text: which files and which tests there are.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
    process::Command,
};

/// The root of the repository.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// A file of the repository as text.
pub(crate) fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_else(|e| panic!("{path}: {e}"))
}

/// Every file that git knows or would add, below `folder`.
pub(crate) fn files(folder: &str) -> Vec<String> {
    let output = Command::new("git")
        .args(["ls-files", "--cached", "--others", "--exclude-standard", "--", folder])
        .current_dir(root())
        .output()
        .unwrap();
    assert!(output.status.success());
    let listed = String::from_utf8(output.stdout).unwrap();
    listed.lines().filter(|path| root().join(path).exists()).map(str::to_owned).collect()
}

/// Every test, as `crate::name`: a function under `#[test]` or `#[tokio::test]`.
pub(crate) fn tests() -> BTreeSet<String> {
    test_bodies().into_iter().map(|(name, _)| name).collect()
}

/// Every test, as `crate::name`, with the text of its body: what stands between its name and the next line that closes a block at the
/// same depth.
pub(crate) fn test_bodies() -> Vec<(String, String)> {
    let mut found = Vec::new();
    for path in files("crates") {
        let mut parts = path.split('/');
        let (Some("crates"), Some(krate)) = (parts.next(), parts.next()) else { continue };
        if !path.ends_with(".rs") {
            continue;
        }
        let text = read(&path);
        let lines: Vec<&str> = text.lines().collect();
        let mut marked = false;
        for (number, line) in lines.iter().enumerate() {
            let trimmed = line.trim();
            if trimmed.starts_with("#[test]") || trimmed.starts_with("#[tokio::test") {
                marked = true;
            } else if marked
                && let Some(rest) = trimmed.trim_start_matches("async ").strip_prefix("fn ")
            {
                let name = rest.split(['(', '<']).next().unwrap();
                let depth = line.len() - line.trim_start().len();
                let close = format!("{}}}", " ".repeat(depth));
                let body = lines[number..].iter().take_while(|line| **line != close);
                let body = body.copied().collect::<Vec<_>>().join("\n");
                found.push((format!("{krate}::{name}"), body));
                marked = false;
            }
        }
    }
    found
}

/// Whether `proof` exists: a test as `crate::name`, a proof as `prove/group/name`, a stage of `.ci/run` as `ci:name`.
pub(crate) fn exists(proof: &str, tests: &BTreeSet<String>) -> bool {
    if let Some(stage) = proof.strip_prefix("ci:") {
        return read(".ci/run").contains(&format!("stage {stage} "));
    }
    if proof.starts_with("prove/") {
        return root().join(proof).is_file();
    }
    tests.contains(proof)
}
