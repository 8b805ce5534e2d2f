//! Parses what git says about the work of a job: refs, sizes and changes.
//!
//! An agent wrote the bundle that git reads, so the names and texts in git's output are untrusted. These functions are pure and take any
//! text; a text that they cannot read is no permission.

use cynode_core::evidence::{ChangeAnomaly, FileChangeKind, TouchedFile};
use serde::Serialize;

/// Maximum size of a file in the new commits of a job, and of a commit or directory. Git holds an object and the one that it
/// is a delta of in memory, more than once.
pub(super) const MAX_JOB_FILE_BYTES: u64 = 100 * 1024 * 1024;
pub(super) const MAX_JOB_TREE_BYTES: u64 = 16 * 1024 * 1024;

/// Size of a change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct DiffStat {
    /// Number of changed files.
    pub files: u64,
    /// Number of added lines.
    pub insertions: u64,
    /// Number of removed lines.
    pub deletions: u64,
}

/// A changed file with the object id of its earlier version.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ListedFile {
    pub(super) touched: TouchedFile,
    pub(super) was: String,
}

/// Returns whether the text is a full commit id and nothing else.
pub(super) fn is_commit(text: &str) -> bool {
    matches!(text.len(), 40 | 64) && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
}

/// Lists the branches in the output of `git bundle list-heads`.
pub(super) fn list_bundle_branches(heads: &str) -> Vec<&str> {
    heads.lines().filter_map(|line| line.split_once(' ')?.1.strip_prefix("refs/heads/")).collect()
}

/// Finds the ref of a commit in the output of `git bundle list-heads`. Git repeats a bundle's names as they are, and the name becomes
/// part of a refspec: a name that is more than one ref is passed over.
pub(super) fn find_bundle_head<'a>(heads: &'a str, commit: &str) -> Option<&'a str> {
    let mut heads = heads.lines().filter_map(|line| line.split_once(' '));
    heads.find(|(id, name)| *id == commit && is_plain_ref(name)).map(|(_, name)| name)
}

/// Returns whether git reads the name as one ref, in a refspec too.
fn is_plain_ref(name: &str) -> bool {
    let special = |c: char| {
        c.is_whitespace() || c.is_control() || matches!(c, ':' | '?' | '*' | '[' | '\\' | '^' | '~')
    };
    (name == "HEAD" || name.starts_with("refs/"))
        && !name.contains("..")
        && !name.contains("@{")
        && !name.contains(special)
}

/// Returns why the new objects of a job are refused, or `None` if each is small enough. `listing` has a line for each of `count` objects:
/// its type and its size.
pub(super) fn find_size_violation(count: usize, listing: &str) -> Option<String> {
    if listing.lines().count() != count {
        return Some("git does not know the size of everything in its history".to_owned());
    }
    listing.lines().find_map(|line| {
        let (kind, size) = line.split_once(' ').unwrap_or_default();
        let most = match kind {
            "blob" => MAX_JOB_FILE_BYTES,
            "commit" | "tree" | "tag" => MAX_JOB_TREE_BYTES,
            _ => return Some("git does not know an object in its history".to_owned()),
        };
        let fits = size.parse().is_ok_and(|size: u64| size <= most);
        (!fits).then(|| {
            format!(
                "a {kind} in its history has {size} bytes, and at most {most} are taken: leave it out of every commit"
            )
        })
    })
}

/// Parses the output of `git diff --raw -z`. A truncated last entry is left out.
pub(super) fn parse_raw_diff(text: &str) -> Vec<ListedFile> {
    let mut fields = text.split('\0');
    let mut found = Vec::new();
    while let (Some(facts), Some(path)) = (fields.next(), fields.next()) {
        let facts: Vec<&str> = facts.trim_start_matches(':').split(' ').collect();
        let [mode_before, mode, object_before, object, how] = facts.as_slice() else { break };
        let how = match *how {
            "A" => FileChangeKind::Added,
            "D" => FileChangeKind::Removed,
            _ => FileChangeKind::Changed,
        };
        let (path, is) = (path.to_owned(), format!("{mode} {object}"));
        let touched = TouchedFile { path, how, is, compared: None };
        found.push(ListedFile { touched, was: format!("{mode_before} {object_before}") });
    }
    found
}

/// Finds merge markers in the added lines of a diff.
pub(super) fn find_merge_markers(diff: &str) -> Vec<ChangeAnomaly> {
    let mut found: Vec<ChangeAnomaly> = Vec::new();
    let (mut path, mut line) = (String::new(), 0_usize);
    for text in diff.lines() {
        if let Some(named) = text.strip_prefix("+++ b/") {
            named.clone_into(&mut path);
        } else if let Some(hunk) = text.strip_prefix("@@ ") {
            let new = hunk.split('+').nth(1).and_then(|it| it.split([',', ' ']).next());
            line = new.and_then(|it| it.parse().ok()).unwrap_or(1);
        } else if let Some(added) = text.strip_prefix('+') {
            let mark = added.starts_with("<<<<<<< ") || added.starts_with(">>>>>>> ");
            if mark && !found.iter().any(|it| it.file_path() == path) {
                found.push(ChangeAnomaly::MergeMarks { path: path.clone(), line });
            }
            line = line.saturating_add(1);
        }
    }
    found
}

/// Parses the output of `git diff --numstat`.
pub(super) fn parse_numstat(numstat: &str) -> DiffStat {
    let mut stat = DiffStat::default();
    for line in numstat.lines() {
        // Binary files have `-` for both numbers.
        let mut numbers = line.split('\t').map(|field| field.parse::<u64>().unwrap_or(0));
        stat.files += 1;
        stat.insertions = stat.insertions.saturating_add(numbers.next().unwrap_or(0));
        stat.deletions = stat.deletions.saturating_add(numbers.next().unwrap_or(0));
    }
    stat
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_commit_has_the_ref_that_names_it_and_no_refspec_is_taken_for_a_ref() {
        let (commit, other) = ("a1".repeat(20), "b2".repeat(20));
        for name in ["HEAD", "refs/heads/main", "refs/heads/größe"] {
            let heads = format!("{other} refs/heads/other\n{commit} {name}\n");
            assert_eq!(find_bundle_head(&heads, &commit), Some(name));
            assert_eq!(find_bundle_head(&heads, &"c3".repeat(20)), None);
        }
        for name in [
            "",
            "main",
            "--upload-pack=x",
            "refs/heads/a:refs/heads/main",
            "refs/heads/*",
            "^refs/heads/main",
            "refs/heads/a b",
            "refs/heads/a..b",
            "refs/heads/a@{1}",
            "refs/heads/a\u{1b}[2J",
        ] {
            assert_eq!(find_bundle_head(&format!("{commit} {name}\n"), &commit), None, "{name}");
        }
        let heads = format!("{commit} refs/heads/*\n{commit} refs/heads/main\n");
        assert_eq!(find_bundle_head(&heads, &commit), Some("refs/heads/main"));
        assert_eq!(list_bundle_branches(&format!("{commit} HEAD\n{heads}")), ["*", "main"]);
    }

    #[test]
    fn every_object_of_a_job_has_a_known_kind_and_a_size_below_its_limit() {
        let (file, tree) = (MAX_JOB_FILE_BYTES, MAX_JOB_TREE_BYTES);
        let fits = format!("commit 200\ntree {tree}\nblob {file}\ntag 0\n");
        assert_eq!(find_size_violation(4, &fits), None);
        assert_eq!(find_size_violation(0, ""), None);
        for listing in [
            format!("blob {}\n", file + 1),
            format!("tree {}\n", tree + 1),
            format!("commit {}\n", tree + 1),
            "blob -1\n".into(),
            "blob 1e3\n".into(),
            "blob \n".into(),
            "blob\n".into(),
            "\n".into(),
            format!("{} missing\n", "a".repeat(40)),
            "blob 18446744073709551616\n".into(),
        ] {
            assert!(find_size_violation(1, &listing).is_some(), "{listing}");
        }
        // An object that git says nothing about is not small.
        assert!(find_size_violation(5, &fits).is_some());
        assert!(find_size_violation(1, "").is_some());
    }

    #[test]
    fn changed_lines_are_counted_and_files_that_are_no_text_have_none() {
        let stat = parse_numstat("3\t1\tsrc/a.rs\n-\t-\tlogo.png\n0\t7\tb\n");
        assert_eq!(stat, DiffStat { files: 3, insertions: 3, deletions: 8 });
        assert_eq!(parse_numstat(""), DiffStat::default());
    }

    #[test]
    fn what_differs_is_listed_with_what_git_calls_it() {
        let (one, two) = ("1".repeat(40), "2".repeat(40));
        let none = "0".repeat(40);
        let text = format!(
            ":100644 100755 {one} {two} M\0a b\0:000000 120000 {none} {one} A\0c\0:100644 000000 {two} {none} D\0d\0:1006"
        );
        let file = |path: &str, how, was: String, is: String| {
            let path = path.to_owned();
            ListedFile { touched: TouchedFile { path, how, is, compared: None }, was }
        };
        let meant = [
            file("a b", FileChangeKind::Changed, format!("100644 {one}"), format!("100755 {two}")),
            file("c", FileChangeKind::Added, format!("000000 {none}"), format!("120000 {one}")),
            file("d", FileChangeKind::Removed, format!("100644 {two}"), format!("000000 {none}")),
        ];
        assert_eq!(parse_raw_diff(&text), meant);
    }

    #[test]
    fn marks_of_a_merge_are_found_where_a_change_brings_them() {
        let diff = "--- a/x\n+++ b/x\n@@ -3 +3,3 @@ fn\n+one\n+<<<<<<< ours\n+>>>>>>> theirs\n\
            --- a/y\n+++ b/y\n@@ -9,0 +10 @@\n-<<<<<<< gone\n+======= no mark\n";
        assert_eq!(
            find_merge_markers(diff),
            [ChangeAnomaly::MergeMarks { path: "x".into(), line: 4 }]
        );
    }

    #[test]
    fn only_a_whole_name_is_a_commit() {
        assert!(is_commit(&"a1".repeat(20)) && is_commit(&"0f".repeat(32)));
        for text in ["", "HEAD", "--upload-pack=x", &"A1".repeat(20), &"a".repeat(41)] {
            assert!(!is_commit(text), "{text}");
        }
    }
}
