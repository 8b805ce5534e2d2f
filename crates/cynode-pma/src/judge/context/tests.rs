use super::*;

fn tree(paths: &[&str]) -> Tree {
    let entry = |path: &&str| TreeEntry { path: (*path).to_owned(), kind: "file".to_owned() };
    Tree { entries: paths.iter().map(entry).collect(), ..Tree::default() }
}

#[test]
fn words_alone_are_bare_and_code_is_not() {
    assert!(tree(&[]).is_bare());
    assert!(
        tree(&["PROJECT-BRIEF.md", "docs/idea.txt", ".gitignore", ".github/x.yml", "LICENSE"])
            .is_bare()
    );
    assert!(!tree(&["PROJECT-BRIEF.md", "src/main.rs"]).is_bare());
    assert!(!tree(&["PROJECT-BRIEF.md", "Makefile"]).is_bare());
    assert!(!Tree { truncated: true, ..tree(&["README.md"]) }.is_bare());
}

#[test]
fn a_brief_calls_itself_one_in_its_first_line() {
    for brief in ["# Project Brief\n\nA shop", "\n\nPROJECT-BRIEF.md\n", "**Project brief: shop**"]
    {
        assert!(is_brief(brief), "{brief}");
    }
    for other in ["", "Read the project brief", "Fix the typo in PROJECT-BRIEF.md"] {
        assert!(!is_brief(other), "{other}");
    }
}

#[test]
fn a_listing_shows_what_is_near_the_root_first_and_counts_the_rest() {
    let deep: Vec<String> = (0..200).map(|n| format!("a/b/f{n:03}.rs")).collect();
    let mut paths: Vec<&str> = deep.iter().map(String::as_str).collect();
    paths.push("z.toml");
    let listing = tree(&paths).listing();
    assert!(listing.starts_with("z.toml\na/b/f000.rs\n"));
    assert!(listing.ends_with("\n… and 81 more"));
    assert_eq!(listing.lines().count(), 121);
}
